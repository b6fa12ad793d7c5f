//! Describes a table's lookup and its cost, for people and for predictions of a switch's speed.

use crate::classifier::tuple_space::TupleWriters;
use packet::fields::FIELDS;
use packet::key::at;
use std::collections::BTreeMap;

/// How a table looks up its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Template {
    /// No rules.
    Empty,
    /// Rules are compared one after the other.
    Linear,
    /// One hash table: all rules look at the same bits.
    Hash,
    /// A hash table for each set of bits.
    Tuples,
    /// Decision trees; rules that are not in them are in tuples.
    Trees,
    /// A trie of prefixes; rules that are not prefixes are in tuples.
    LongestPrefix,
    /// Any of the others for ordinary rules, and tuples of soft rules for conjunctive matches.
    Conjunctive,
}

impl Template {
    /// Returns the template's name.
    pub fn name(self) -> &'static str {
        match self {
            Template::Empty => "empty",
            Template::Linear => "linear",
            Template::Hash => "hash",
            Template::Tuples => "tuples",
            Template::Trees => "trees",
            Template::LongestPrefix => "longest prefix",
            Template::Conjunctive => "conjunctive",
        }
    }
}

/// A lookup's work for one packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Memory accesses, in cache lines, each of which may miss; including the rule that is found.
    pub accesses: f64,
    /// Rules compared with the packet.
    pub compares: f64,
    /// Hashes computed.
    pub hashes: f64,
}

impl Work {
    /// Returns the work of looking into so many tuples.
    pub(crate) fn in_tuples(count: usize) -> Work {
        Work {
            accesses: count as f64,
            compares: 0.0,
            hashes: count as f64,
        }
    }

    /// Returns the work of both, one after the other.
    pub fn and(self, other: Work) -> Work {
        Work {
            accesses: self.accesses + other.accesses,
            compares: self.compares + other.compares,
            hashes: self.hashes + other.hashes,
        }
    }

    /// Estimates the cycles when lookup and rules occupy `bytes`, from costs measured on one
    /// machine (Zen 4), where a burst's accesses overlap.
    pub fn cycles(&self, bytes: usize) -> f64 {
        let access = match bytes {
            0..=0x7fff => 3.0,
            0x8000..=0x7f_ffff => 7.0,
            0x80_0000..=0x1ff_ffff => 18.0,
            _ => 45.0,
        };
        self.accesses * access + self.compares * 5.0 + self.hashes * 20.0
    }
}

/// A table's lookup.
#[derive(Clone, Debug)]
pub struct Description {
    /// How rules are looked up.
    pub template: Template,
    /// Number of linked rules, including those that have ended and are not yet unlinked.
    pub rules: usize,
    /// Number of different sets of bits that rules look at.
    pub masks: usize,
    /// Average work for packets spread evenly over the rules.
    pub typical: Work,
    /// Work for the most expensive packet.
    pub worst: Work,
    /// Memory of the lookup itself in bytes, without the rules.
    pub bytes: usize,
    /// Which fields the rules look at, and why this template was chosen.
    pub why: String,
}

impl Description {
    /// Estimates the cycles for an average packet.
    pub fn typical_cycles(&self) -> f64 {
        self.typical.cycles(self.bytes + self.rules * RULE_BYTES)
    }

    /// Estimates the cycles for the most expensive packet.
    pub fn worst_cycles(&self) -> f64 {
        self.worst.cycles(self.bytes + self.rules * RULE_BYTES)
    }
}

/// Bytes of a rule that a packet which meets it reads or writes.
pub(crate) const RULE_BYTES: usize = 128;
impl TupleWriters {
    pub(crate) fn describe(&self) -> Description {
        let masks = self.tuples.len();
        let visit = |tuples: f64| Work {
            accesses: tuples + 1.0,
            compares: 1.0,
            hashes: tuples,
        };
        let (template, why) = if masks == 1 {
            (Template::Hash, "all rules look at the same bits")
        } else {
            (Template::Tuples, "rules look at different bits")
        };
        Description {
            template,
            rules: self.rules,
            masks,
            typical: visit(self.visited()),
            worst: visit(masks as f64),
            bytes: self.tuples.iter().map(|writer| writer.shared.bytes()).sum(),
            why: format!(
                "{why}; {}",
                fields(self.tuples.iter().map(|writer| writer.shared.words()))
            ),
        }
    }

    /// Returns the average number of tuples looked up when packets meet the rules evenly: those
    /// that hold a rule of higher precedence than the packet's, and its own.
    fn visited(&self) -> f64 {
        let mut rules: BTreeMap<u32, usize> = BTreeMap::new();
        for writer in &self.tuples {
            for (priority, count) in &writer.priorities {
                *rules.entry(*priority).or_default() += count;
            }
        }
        let mut highest: Vec<u32> = self
            .tuples
            .iter()
            .filter_map(crate::classifier::tuple_space::TupleWriter::highest)
            .collect();
        highest.sort_unstable();
        let above =
            |priority: &u32| highest.len() - highest.partition_point(|highest| highest <= priority);
        let visits: usize = rules
            .iter()
            .map(|(priority, count)| count * (above(priority) + 1).min(highest.len()))
            .sum();
        visits as f64 / self.rules.max(1) as f64
    }
}

/// Lists the fields that masks look at, with the lengths of their prefixes: `ip_src/8-32, tp_dst`.
pub(crate) fn fields<'a>(masks: impl Iterator<Item = &'a [(u8, u64)]>) -> String {
    let mut seen: BTreeMap<(usize, &'static str), Looked> = BTreeMap::new();
    for mask in masks {
        let mut bytes = [0_u8; packet::key::WORDS * 8];
        for (word, mask) in mask {
            let at = usize::from(*word) * 8;
            bytes[at..at + 8].copy_from_slice(&mask.to_ne_bytes());
        }
        for def in FIELDS {
            if def.field.tunnel_option().is_some() {
                continue; // places of options overlap, and are not numbered as options are
            }
            let whole = def.place();
            let place = &mut bytes[def.offset..def.offset + def.bytes];
            if !place
                .iter()
                .zip(&*whole)
                .any(|(bits, whole)| bits & whole != 0)
            {
                continue;
            }
            let looked = Looked::at(place, &whole);
            place
                .iter_mut()
                .zip(&*whole)
                .for_each(|(bits, whole)| *bits &= !whole);
            let name = match def.offset {
                at::TP_SRC => "tp_src",
                at::TP_DST => "tp_dst",
                _ => def.name,
            };
            seen.entry((def.offset, name))
                .and_modify(|other| *other = other.and(looked))
                .or_insert(looked);
        }
        if bytes[at::TUN_METADATA..].iter().any(|bits| *bits != 0) {
            seen.insert((at::TUN_METADATA, "tun_metadata"), Looked::Bits);
        }
    }
    if seen.is_empty() {
        return "nothing is looked at".to_owned();
    }
    let names: Vec<String> = seen
        .iter()
        .map(|((_, name), looked)| match looked {
            Looked::Prefix(from, to, bits) if from == bits && to == bits => (*name).to_owned(),
            Looked::Prefix(from, to, _) if from == to => format!("{name}/{from}"),
            Looked::Prefix(from, to, _) => format!("{name}/{from}-{to}"),
            Looked::Bits => format!("{name}&"),
        })
        .collect();
    names.join(", ")
}

/// Which bits of a field masks look at.
#[derive(Clone, Copy)]
enum Looked {
    /// A prefix: the shortest length, the longest, and the field's width in bits.
    Prefix(u32, u32, u32),
    /// Other bits.
    Bits,
}

impl Looked {
    fn at(place: &[u8], whole: &[u8]) -> Looked {
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
        };
        let (place, whole) = (number(place), number(whole));
        let looked = (place & whole) >> whole.trailing_zeros();
        let width = whole.count_ones();
        let length = looked.count_ones();
        // A prefix has all its ones above its zeros.
        if looked.trailing_zeros() + length == width {
            Looked::Prefix(length, length, width)
        } else {
            Looked::Bits
        }
    }

    fn and(self, other: Looked) -> Looked {
        match (self, other) {
            (Looked::Prefix(from, to, bits), Looked::Prefix(other_from, other_to, _)) => {
                Looked::Prefix(from.min(other_from), to.max(other_to), bits)
            }
            _ => Looked::Bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{Field, Match};

    #[test]
    fn fields_are_named_with_their_prefixes() {
        let masks: Vec<Box<[(u8, u64)]>> = [8_u32, 24]
            .into_iter()
            .map(|bits| {
                let mut matching = Match::any();
                matching.set_exact(Field::EthType, 0x800);
                matching.set(
                    Field::Ipv4Dst,
                    &[0; 4],
                    &(u32::MAX << (32 - bits)).to_be_bytes(),
                );
                matching.set(Field::TcpDst, &[0; 2], &[0xf0, 0x0f]);
                matching
                    .words()
                    .iter()
                    .map(|word| (word.word, word.mask))
                    .collect()
            })
            .collect();
        let text = fields(masks.iter().map(|mask| &**mask));
        assert_eq!(text, "eth_type, ip_dst/8-24, tp_dst&");
        assert_eq!(fields([&[][..]].into_iter()), "nothing is looked at");
    }
}
