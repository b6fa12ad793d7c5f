//! The bits that a packet's walk may depend on, and when tables changed: maintained by the writer,
//! for the flow cache (`exec::flow_cache`) and fused paths (`rule::fused`).
//!
//! A packet of the common kinds is identified by its mini key ([`packet::WordSet::MINI_KEY`]). Its
//! walk depends on those bits of it that some rule of the bridge matches or some step reads, and on
//! the rules of the tables in which it is looked up. So two such packets with the same bits take
//! the same path, and still do so later if none of those tables has changed since. Bits are only
//! ever added, before the rule that looks at them is published: a path stored by fewer bits cannot
//! have met that rule.

use crate::actions::Op;
use crate::epoch::Epoch;
use crate::rule::RuleSpec;
use crate::rule::TABLES;
use packet::Field;
use packet::key::at;
use packet::parse::MINI_KEY_WORDS;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of the mini key, each as it lies in the key.
pub(crate) type MiniKeyBits = [u64; MINI_KEY_WORDS];

/// Next serial number of a bridge, so that none is mistaken for an earlier one.
static SERIALS: AtomicU64 = AtomicU64::new(1);

/// The bits looked at so far, and when tables changed.
pub(crate) struct Unwildcarded {
    serial: u64,
    bits: [AtomicU64; MINI_KEY_WORDS],
    /// When tables' rules changed.
    pub rules: Changes,
    /// The same, but only of changes that end every fused path through a table.
    pub paths: Changes,
    /// Number of changes that take effect at once.
    upheavals: AtomicU64,
}

/// When tables changed last.
pub(crate) struct Changes {
    /// For each table the last epoch that has begun, or is to begin, with a change.
    tables: Box<[AtomicU64]>,
    /// The latest of these.
    last: AtomicU64,
}

impl Default for Changes {
    fn default() -> Self {
        Changes {
            tables: (0..TABLES).map(|_| AtomicU64::new(0)).collect(),
            last: AtomicU64::new(0),
        }
    }
}

impl Changes {
    /// Returns whether these tables are in `now` as they were in `then`, which began earlier.
    #[inline]
    pub fn unchanged(&self, tables: &TableSet, then: Epoch, now: Epoch) -> bool {
        debug_assert!(then <= now);
        self.last.load(Ordering::Acquire) <= then
            || members(tables).all(|table| self.tables[table].load(Ordering::Acquire) <= then)
    }

    /// Returns the last epoch that has begun, or is to begin, with a change.
    pub fn last(&self) -> Epoch {
        self.last.load(Ordering::Acquire)
    }

    /// Records that a table will be another one from `epoch` on.
    pub fn record(&self, table: u8, epoch: Epoch) {
        // There is one writer. A change for a reserved epoch may come before one for an earlier
        // epoch.
        for place in [&self.tables[usize::from(table)], &self.last] {
            if place.load(Ordering::Relaxed) < epoch {
                place.store(epoch, Ordering::Release);
            }
        }
    }
}

/// A set of tables.
pub(crate) type TableSet = [u64; TABLES.div_ceil(64)];

impl Default for Unwildcarded {
    fn default() -> Self {
        let mut bits = MiniKeyBits::default();
        // Always needed: the kind of packet decides whether a step finds the header that it is to
        // change, and the port whether the packet may go out again.
        for (from, bytes) in [(at::IN_PORT, 8), (at::IP_PROTO, 1), (at::IP_FRAG, 1)] {
            (from..from + bytes).for_each(|byte| add_byte(&mut bits, byte, 0xff));
        }
        Unwildcarded {
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            bits: bits.map(AtomicU64::new),
            rules: Changes::default(),
            paths: Changes::default(),
            upheavals: AtomicU64::new(0),
        }
    }
}

fn add_byte(bits: &mut MiniKeyBits, byte: usize, mask: u8) {
    if let Some(word) = bits.get_mut(byte / 8) {
        let mut bytes = [0; 8];
        bytes[byte % 8] = mask;
        *word |= u64::from_ne_bytes(bytes);
    }
}

fn add_field(bits: &mut MiniKeyBits, field: Field) {
    let def = field.def();
    for (index, mask) in def.place().iter().enumerate() {
        add_byte(bits, def.offset + index, *mask);
    }
}

/// Adds what steps read of a packet, for steps that a stored path can have.
fn add_steps(bits: &mut MiniKeyBits, ops: &[Op]) {
    for op in ops {
        match op {
            Op::OutputReg { source, .. } | Op::StackPush(source) => add_field(bits, source.field),
            Op::Move { src, .. } => add_field(bits, src.field),
            Op::DecTtl(_) => add_byte(bits, at::IP_TTL, 0xff),
            Op::WriteActions(ops) => add_steps(bits, ops),
            _ => {}
        }
    }
}

impl Unwildcarded {
    /// Returns the bridge's serial number.
    #[inline(always)]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns how often something has changed outside of epochs.
    #[inline(always)]
    pub fn upheavals(&self) -> u64 {
        self.upheavals.load(Ordering::Acquire)
    }

    /// Returns the bits that matter. Under a guard these include all bits that rules of its epoch
    /// look at, and perhaps more.
    #[inline(always)]
    pub fn bits(&self) -> MiniKeyBits {
        std::array::from_fn(|word| self.bits[word].load(Ordering::Relaxed))
    }

    /// Adds the bits that a new rule looks at. Must be called before the rule, which holds from
    /// `epoch` on, is published.
    pub fn rule_comes(&self, table: u8, spec: &RuleSpec, epoch: Epoch) {
        let mut bits = MiniKeyBits::default();
        for word in spec.matching.words() {
            if let Some(bits) = bits.get_mut(usize::from(word.word)) {
                *bits |= word.mask;
            }
        }
        add_steps(&mut bits, &spec.ops.ops);
        for (all, new) in self.bits.iter().zip(bits) {
            if new & !all.load(Ordering::Relaxed) != 0 {
                all.fetch_or(new, Ordering::Release);
            }
        }
        self.rules.record(table, epoch);
    }

    /// Records a change that takes effect at once.
    pub fn all_changes(&self) {
        self.upheavals.fetch_add(1, Ordering::Release);
    }
}

/// Adds a table to a set.
pub(crate) fn add_table(tables: &mut TableSet, table: u8) {
    // There is no table 255: nothing is ever found or changed there.
    if usize::from(table) < TABLES {
        tables[usize::from(table) / 64] |= 1 << (table % 64);
    }
}

/// Returns whether a table is in a set.
pub(crate) fn has_table(tables: &TableSet, table: u8) -> bool {
    (tables.get(usize::from(table) / 64)).is_some_and(|word| word >> (table % 64) & 1 != 0)
}

fn members(tables: &TableSet) -> impl Iterator<Item = usize> {
    tables.iter().enumerate().flat_map(|(index, word)| {
        let mut bits = *word;
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(index * 64 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::{Bits, OpList};
    use crate::counters::CounterId;
    use packet::Match;
    use std::sync::Arc;

    fn rule(matching: Match, ops: Vec<Op>) -> RuleSpec {
        RuleSpec {
            matching,
            priority: 1,
            ops: Arc::new(OpList::new(ops)),
            counter: CounterId(0),
            cookie: 0,
        }
    }

    fn byte(unwildcarded: &Unwildcarded, at: usize) -> u8 {
        unwildcarded.bits()[at / 8].to_ne_bytes()[at % 8]
    }

    #[test]
    fn bits_are_those_that_rules_match_and_steps_read() {
        let unwildcarded = Unwildcarded::default();
        assert_eq!(byte(&unwildcarded, at::IN_PORT), 0xff);
        assert_eq!(byte(&unwildcarded, at::TP_DST), 0);
        let mut matching = Match::any();
        matching.set(Field::Ipv4Dst, &[10, 0, 0, 0], &[0xff, 0xf0, 0, 0]);
        matching.set_exact(Field::Reg3, 7);
        unwildcarded.rule_comes(0, &rule(matching, vec![]), 2);
        let dst: Vec<u8> = (0..4)
            .map(|index| byte(&unwildcarded, at::IPV4_DST + index))
            .collect();
        assert_eq!(dst, [0xff, 0xf0, 0, 0]);
        let part = |field| Bits {
            field,
            start: 0,
            bits: 4,
        };
        let copy = Op::Move {
            src: part(Field::UdpSrc),
            dst: part(Field::Reg0),
        };
        let steps = vec![copy, Op::WriteActions(vec![Op::DecTtl([].into())].into())];
        unwildcarded.rule_comes(0, &rule(Match::any(), steps), 3);
        assert_eq!(byte(&unwildcarded, at::TP_SRC + 1), 0xff);
        assert_eq!(byte(&unwildcarded, at::IP_TTL), 0xff);
        assert_eq!(byte(&unwildcarded, at::ETH_DST), 0);
    }

    #[test]
    fn a_walk_outlasts_changes_of_other_tables() {
        let changes = Changes::default();
        let mut tables = TableSet::default();
        add_table(&mut tables, 3);
        add_table(&mut tables, 200);
        changes.record(3, 5);
        assert!(!changes.unchanged(&tables, 4, 6));
        assert!(changes.unchanged(&tables, 5, 6));
        changes.record(4, 9);
        assert!(changes.unchanged(&tables, 5, 12));
        changes.record(200, 12);
        assert!(!changes.unchanged(&tables, 11, 12));
        // A change prepared for a later epoch is not forgotten when one for an earlier epoch comes.
        changes.record(200, 100);
        changes.record(200, 13);
        assert!(!changes.unchanged(&tables, 13, 100));
        assert!(changes.unchanged(&tables, 100, 101));
        assert!(!changes.unchanged(&tables, 5, 12));
    }
}
