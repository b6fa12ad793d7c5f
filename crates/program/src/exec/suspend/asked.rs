//! Rules that packets have asked for and that are not there yet, indexed by what they match.
//!
//! Any packet of a worker that has asked for rules may have to wait for one of them, so every
//! packet pays for this check. Rules of one table, precedence and set of bits are found by a hash
//! of these bits, as in a tuple. Where all of them match a whole Ethernet address, as rules that
//! learn where hosts are do, most packets are told apart by their addresses alone, before they are
//! parsed ([`AskedRules::none_has_addresses_of`]).

use crate::actions::learn::{Answer, Learn, NO_COOKIE, Values};
use crate::rule::Rule;
use packet::key::at;
use packet::keyed::Keyed;
use packet::mini_key::MiniKey;
use packet::{FlowKey, Frame, Match, WordSet};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// The words of the key that begin with an Ethernet address, and its place in a frame.
const ADDRESSES: [(u8, usize); 2] = [((at::ETH_DST / 8) as u8, 0), ((at::ETH_SRC / 8) as u8, 6)];
/// The bits of such a word that are the address, in the order of a little-endian processor.
const ADDRESS: u64 = u64::from_le_bytes([255, 255, 255, 255, 255, 255, 0, 0]);
/// Classes of addresses by their hash: many more than there may be rules.
const CLASSES: usize = 4096;

/// A rule that has been asked for.
pub(crate) struct Asked {
    pub ticket: u64,
    pub bridge: u32,
    pub learn: Arc<Learn>,
    pub values: Values,
    pub matching: Match,
    pub fingerprint: u64,
    /// Whether there was such a rule already, or one had been asked for.
    pub is_change: bool,
    pub deadline_ms: u64,
    pub answer: Option<Answer>,
}

/// Rules that look at the same bits.
struct Group {
    bridge: u32,
    table: u8,
    priority: u32,
    shape: Vec<(u8, u64)>,
    words: WordSet,
    /// Index into [`ADDRESSES`] of an address that they match as a whole.
    address: Option<usize>,
    /// Their tickets, ascending, by the hash of these bits.
    tickets: HashMap<u64, SmallVec<[u64; 2]>, Keyed>,
}

/// All rules asked for, in the order of the requests.
#[derive(Default)]
pub(crate) struct AskedRules {
    list: Vec<Asked>,
    groups: Vec<Group>,
    /// Numbers of rules by the class of the address that their group matches; empty before the
    /// first.
    classes: Vec<u16>,
    keyed: Keyed,
}

impl AskedRules {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Asked> {
        self.list.iter()
    }

    pub fn clear(&mut self) {
        self.list.clear();
        self.groups.clear();
        self.classes.clear();
    }

    /// Returns the rule with this ticket.
    pub fn get(&self, ticket: u64) -> Option<&Asked> {
        Some(&self.list[self.place(ticket)?])
    }

    /// Returns the rule with this ticket, to be changed.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut Asked> {
        let at = self.place(ticket)?;
        Some(&mut self.list[at])
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.list
            .binary_search_by_key(&ticket, |asked| asked.ticket)
            .ok()
    }

    /// Returns the hash of what a rule matches, by its words.
    pub fn hash(&self, words: impl Iterator<Item = u64>) -> u64 {
        let mut hasher = self.keyed.build_hasher();
        words.for_each(|word| hasher.write_u64(word));
        hasher.finish()
    }

    /// Returns the hash of the bits that a rule matches.
    pub fn hash_of(&self, matching: &Match) -> u64 {
        self.hash(matching.words().iter().map(|word| word.value))
    }

    fn group(&self, bridge: u32, learn: &Learn) -> Option<usize> {
        let (table, priority) = (learn.table, u32::from(learn.priority));
        self.groups.iter().position(|group| {
            (group.bridge, group.table, group.priority) == (bridge, table, priority)
                && group.shape == learn.shape
        })
    }

    /// Adds a rule that was asked for later than all others.
    pub fn push(&mut self, asked: Asked) {
        let at = self.group(asked.bridge, &asked.learn);
        let at = at.unwrap_or_else(|| self.add_group(&asked));
        let hash = self.hash_of(&asked.matching);
        let tickets = &mut self.groups[at].tickets;
        tickets.entry(hash).or_default().push(asked.ticket);
        if let Some(class) = self.class_of(&self.groups[at], &asked) {
            self.classes.resize(CLASSES, 0);
            self.classes[class] += 1;
        }
        self.list.push(asked);
    }

    /// Adds a group, reusing an empty one, so there are never more groups than rules.
    fn add_group(&mut self, asked: &Asked) -> usize {
        let whole = |place: u8| {
            let mut words = asked.learn.shape.iter();
            words.any(|(word, mask)| *word == place && mask.to_le() & ADDRESS == ADDRESS)
        };
        let group = Group {
            address: ADDRESSES.iter().position(|(word, _)| whole(*word)),
            bridge: asked.bridge,
            table: asked.learn.table,
            priority: asked.learn.priority.into(),
            words: (asked.learn.shape.iter()).fold(WordSet::EMPTY, |words, (word, _)| {
                words.union(WordSet::of_bytes(usize::from(*word) * 8, 8))
            }),
            shape: asked.learn.shape.clone(),
            tickets: HashMap::with_hasher(self.keyed.clone()),
        };
        match self.groups.iter().position(|old| old.tickets.is_empty()) {
            Some(at) => {
                self.groups[at] = group;
                at
            }
            None => {
                self.groups.push(group);
                self.groups.len() - 1
            }
        }
    }

    /// Returns the class of an address.
    fn class(&self, address: u64) -> usize {
        self.hash(std::iter::once(address)) as usize % CLASSES
    }

    /// Returns the class of the address that a rule of a group matches.
    fn class_of(&self, group: &Group, asked: &Asked) -> Option<usize> {
        let (place, _) = ADDRESSES[group.address?];
        let mut words = asked.matching.words().iter();
        let word = words.find(|word| word.word == place)?;
        Some(self.class(word.value.to_le() & ADDRESS))
    }

    /// Removes and returns the rules for which `ends` returns true, in order.
    pub fn take_ended(&mut self, mut ends: impl FnMut(&Asked) -> bool) -> Vec<Asked> {
        let ended: Vec<Asked> = self.list.extract_if(.., |asked| ends(asked)).collect();
        for asked in &ended {
            let hash = self.hash_of(&asked.matching);
            let Some(at) = self.group(asked.bridge, &asked.learn) else {
                continue;
            };
            if let Some(class) = self.class_of(&self.groups[at], asked) {
                self.classes[class] -= 1;
            }
            let all = &mut self.groups[at].tickets;
            if let Some(tickets) = all.get_mut(&hash) {
                tickets.retain(|ticket| *ticket != asked.ticket);
                if tickets.is_empty() {
                    all.remove(&hash);
                }
            }
        }
        ended
    }

    /// Returns whether there are any of a bridge.
    pub fn concern(&self, bridge: u32) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| group.bridge == bridge && !group.tickets.is_empty())
    }

    /// Returns true if none of them can decide a lookup of one of these packets, because none has
    /// their addresses, which no rule writes (they are among the words `kept`). False says nothing.
    pub fn none_has_addresses_of<F: Frame>(
        &self,
        bridge: u32,
        kept: WordSet,
        frames: &[F],
    ) -> bool {
        let mut asks = [false; ADDRESSES.len()];
        let mut groups = (self.groups.iter())
            .filter(|group| group.bridge == bridge && !group.tickets.is_empty());
        let all_have = groups.all(|group| {
            let known = (group.address).filter(|at| kept.contains(ADDRESSES[*at].0.into()));
            known.is_some_and(|at| {
                asks[at] = true;
                true
            })
        });
        if !all_have || self.classes.is_empty() {
            return false;
        }
        let mut last = [None; ADDRESSES.len()];
        frames.iter().all(|frame| {
            let head = frame.head();
            head.len() >= 14
                && (0..ADDRESSES.len()).filter(|at| asks[*at]).all(|at| {
                    let from = ADDRESSES[at].1;
                    let mut bytes = [0; 8];
                    bytes[..6].copy_from_slice(&head[from..from + 6]);
                    let address = u64::from_le_bytes(bytes);
                    last[at].replace(address) == Some(address)
                        || self.classes[self.class(address)] == 0
                })
        })
    }

    /// Returns whether any of them may decide a lookup of one of these packets, judged by the words
    /// `kept`, which no rule writes.
    pub fn may_decide(&self, bridge: u32, kept: WordSet, packets: &[MiniKey]) -> bool {
        let told = kept.intersect(WordSet::MINI_KEY);
        let groups = (self.groups.iter())
            .filter(|group| group.bridge == bridge && !group.tickets.is_empty());
        for group in groups {
            // Words that are not known may have any value.
            if !group.words.minus(told).is_empty() {
                return true;
            }
            let mut last = None;
            for packet in packets {
                let words = group.shape.iter();
                let hash =
                    self.hash(words.map(|(word, mask)| packet.words[usize::from(*word)] & mask));
                // Many packets have the same bits as the one before them.
                if last.replace(hash) != Some(hash) && group.tickets.contains_key(&hash) {
                    return true;
                }
            }
        }
        false
    }

    /// Returns the last one, asked for by a packet before the ticket `before`, that would decide a
    /// lookup.
    pub fn in_the_way(
        &self,
        before: u64,
        bridge: u32,
        table: u8,
        key: &FlowKey,
        found: Option<&Rule>,
    ) -> Option<u64> {
        let groups = self.groups.iter().filter(|group| {
            (group.bridge, group.table) == (bridge, table)
                && !group.tickets.is_empty()
                && found.is_none_or(|rule| rule.spec.priority <= group.priority)
        });
        let last = |group: &Group| {
            let words = group.shape.iter();
            let hash = self.hash(words.map(|(word, mask)| key.words[usize::from(*word)] & mask));
            let tickets = group.tickets.get(&hash)?;
            let earlier = (tickets.iter().rev()).filter(|ticket| **ticket <= before);
            let mut earlier = earlier.copied();
            earlier.find(|ticket| {
                let asked = self.place(*ticket).map(|at| &self.list[at]);
                asked.is_some_and(|asked| asked.matching.matches(key))
            })
        };
        groups.filter_map(last).max()
    }

    /// Returns whether a rule that is refused for its limit may have room after the requests behind
    /// the ticket `after`: one of them may give a rule that counts another cookie.
    pub fn may_make_room(&self, bridge: u32, learn: &Learn, after: u64) -> bool {
        let from = self.list.partition_point(|asked| asked.ticket <= after);
        learn.limit != 0
            && self.list[from..].iter().any(|asked| {
                asked.is_change
                    && (asked.bridge, asked.learn.table) == (bridge, learn.table)
                    && ![learn.cookie, NO_COOKIE].contains(&asked.learn.cookie)
            })
    }

    /// Returns whether there may be one for the rule of the same table, match and precedence; the
    /// match by its words.
    pub fn may_be_like(
        &self,
        bridge: u32,
        learn: &Learn,
        words: impl Iterator<Item = u64>,
    ) -> bool {
        let group = self.group(bridge, learn).map(|at| &self.groups[at]);
        group.is_some_and(|group| group.tickets.contains_key(&self.hash(words)))
    }

    /// Returns the last one for the rule of the same table, match and precedence.
    pub fn like(&self, bridge: u32, learn: &Learn, matching: &Match) -> Option<&Asked> {
        let group = &self.groups[self.group(bridge, learn)?];
        let tickets = group.tickets.get(&self.hash_of(matching))?;
        let asked = |ticket: &u64| Some(&self.list[self.place(*ticket)?]);
        (tickets.iter().rev().filter_map(asked)).find(|asked| asked.matching == *matching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::learn::{Part, Source, Target};
    use crate::actions::{Bits, bits};
    use packet::{Field, HeapFrame};

    fn all(field: Field) -> Bits {
        let bits = (field.def().bytes * 8) as u16;
        Bits {
            field,
            start: 0,
            bits,
        }
    }

    fn learn(fields: &[Field]) -> Arc<Learn> {
        let part = |field: &Field| Part {
            source: Source::Field(all(*field)),
            target: Target::Match(all(*field)),
        };
        let learn = Learn {
            table: fields.len() as u8,
            parts: fields.iter().map(part).collect(),
            ..Learn::default()
        };
        Arc::new(learn.shaped())
    }

    fn packet(dst: u8, src: u8) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        (bytes[0], bytes[5], bytes[6], bytes[11]) = (2, dst, 2, src);
        bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        bytes
    }

    fn key(bytes: &[u8]) -> FlowKey {
        let mut key = FlowKey::ZERO;
        let mut frame = HeapFrame::new(bytes);
        packet::parse::parse_frame(&mut frame, 1, WordSet(u64::MAX), &mut key);
        key
    }

    /// Asks for the rule that a packet would learn.
    fn ask(asked: &mut AskedRules, ticket: u64, learn: &Arc<Learn>, bytes: &[u8]) {
        let values = learn.values(&key(bytes));
        asked.push(Asked {
            ticket,
            bridge: 7,
            learn: Arc::clone(learn),
            matching: learn.matching(&values),
            values,
            fingerprint: 1,
            is_change: false,
            deadline_ms: 0,
            answer: None,
        });
    }

    /// What the addresses say agrees with what rules match: a packet that a rule decides is never
    /// passed over, and nearly all others are.
    #[test]
    fn addresses_tell_packets_apart() {
        let everything = WordSet(u64::MAX);
        for fields in [
            &[Field::EthDst][..],
            &[Field::EthSrc],
            &[Field::EthType, Field::EthDst],
            &[Field::EthSrc, Field::EthDst],
        ] {
            let mut asked = AskedRules::default();
            let none = |asked: &AskedRules, kept, dst, src| {
                let frames = [1, dst].map(|dst| HeapFrame::new(&packet(dst, src)));
                asked.none_has_addresses_of(7, kept, &frames)
            };
            let learn = learn(fields);
            for ticket in 0..20 {
                let number = 100 + ticket as u8;
                ask(&mut asked, ticket, &learn, &packet(number, number));
            }
            let mut passed = 0;
            for number in 0..=255 {
                let decides = (asked.list.iter())
                    .any(|rule| rule.matching.matches(&key(&packet(number, number))));
                let passes = none(&asked, everything, number, number);
                assert!(!(decides && passes), "{fields:?} {number}");
                passed += usize::from(passes);
            }
            assert!((200..=236).contains(&passed), "{fields:?}: {passed}");
            // Rules that are there already are not waited for.
            asked.take_ended(|rule| rule.ticket != 3);
            assert!(none(&asked, everything, 102, 102) && !none(&asked, everything, 103, 103));
            // An address that rules write may be any.
            let written = WordSet::of_bytes(at::ETH_DST, 16);
            assert!(!none(&asked, everything.minus(written), 102, 102));
            // Nor do addresses say anything of rules that match none.
            ask(
                &mut asked,
                30,
                &self::learn(&[Field::EthType]),
                &packet(5, 5),
            );
            assert!(!none(&asked, everything, 102, 102));
            asked.take_ended(|_| true);
            assert!(asked.classes.iter().all(|count| *count == 0));
        }
        assert_eq!(
            bits::read(&key(&packet(3, 4)), all(Field::EthDst)),
            0x02_00_00_00_00_03
        );
    }
}
