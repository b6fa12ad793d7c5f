//! Tables of prefixes compared with a reference, a list of rules with the epochs in which they
//! hold, while rules come and go; and that such tables have a trie.

use packet::key::at;
use packet::{Field, FlowKey, Match};
use program::Program;
use program::actions::{Op, OpList};
use program::epoch::{Epoch, Guard};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, LOOKUP_MAX, RuleRef, Template};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Rules that a table has at first, enough for a trie.
const AT_FIRST: u32 = 420;

fn spec(program: &Program, matching: Match, priority: u32, cookie: u64) -> RuleSpec {
    RuleSpec {
        matching,
        priority,
        ops: Arc::new(OpList::new(vec![Op::Output(cookie as u32)])),
        counter: program.counters.allocate().unwrap(),
        cookie,
    }
}

/// What rules match: a prefix of a field, and something that all have in common.
#[derive(Clone, Copy, Debug)]
enum PrefixField {
    Ipv4,
    /// Another address in the same word must match exactly.
    Between,
    Ipv6,
}

impl PrefixField {
    fn bits(self) -> u32 {
        if matches!(self, PrefixField::Ipv6) {
            128
        } else {
            32
        }
    }

    /// Returns the address with this number: few different bytes, so that prefixes overlap, and
    /// many in the third.
    fn address(self, number: u32) -> Vec<u8> {
        let mixed = number.wrapping_mul(0x9e37_79b9);
        let mixed = mixed ^ mixed >> 15;
        let mut bytes = vec![
            10,
            (mixed & 1) as u8,
            (mixed >> 8) as u8,
            (mixed >> 16) as u8 & 0x83,
        ];
        if matches!(self, PrefixField::Ipv6) {
            bytes.extend([(mixed >> 24) as u8 & 0x11; 12]);
        }
        bytes
    }

    fn offset(self) -> usize {
        match self {
            PrefixField::Ipv4 => at::IPV4_DST,
            PrefixField::Between => at::IPV4_SRC,
            PrefixField::Ipv6 => at::IPV6_DST,
        }
    }

    fn matching(self, number: u32, length: u32) -> Match {
        let mut matching = Match::any();
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        let mask = mask.to_be_bytes();
        let bytes = self.bits() as usize / 8;
        matching.set_bytes(self.offset(), &self.address(number), &mask[..bytes]);
        match self {
            PrefixField::Ipv4 => matching.set_exact(Field::EthType, 0x0800),
            PrefixField::Between => matching.set_exact(Field::Ipv4Dst, 0x0a00_0001),
            PrefixField::Ipv6 => {}
        }
        matching
    }

    fn key(self, number: u32, common: bool) -> FlowKey {
        let mut key = FlowKey::ZERO;
        let bytes = self.address(number);
        for (index, byte) in bytes.into_iter().enumerate() {
            key.set_u8(self.offset() + index, byte);
        }
        match self {
            PrefixField::Ipv4 if common => key.set_u16(at::ETH_TYPE, 0x0800),
            PrefixField::Between if common => key.set_u32(at::IPV4_DST, 0x0a00_0001),
            _ => {}
        }
        key
    }
}

/// How rules get their precedence.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Longer prefixes are above shorter ones.
    ByLength,
    /// All have the same, except for the same prefix.
    Alike,
    /// Now and then one contradicts its length.
    Mostly,
    Any,
}

impl Order {
    fn priority(self, length: u32, number: u32) -> u32 {
        match self {
            Order::ByLength => 100 + 4 * length + number % 2,
            Order::Alike => 100,
            Order::Mostly if number.is_multiple_of(13) => number % 300,
            Order::Mostly => 100 + length,
            Order::Any => number.wrapping_mul(0x85eb_ca6b) >> 20,
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    /// Insert a prefix of this length (within the field's), by a number.
    Insert(u32, u32),
    /// Insert many prefixes, about /24, of one network, so that a node has many runs.
    Fill(u32),
    /// Remove these again.
    Empty,
    /// Insert a rule of another kind, with this precedence.
    Other(u32),
    /// Replace a rule by another of the same match and precedence.
    Replace(usize),
    Remove(usize),
    Publish,
    Housekeep,
    Shape,
    Begin,
    /// A reader begins in the newest epoch.
    Begun,
    Look(u32),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let length = prop_oneof![
        8 => 16_u32..33,
        2 => 0_u32..17,
        2 => 30_u32..129,
    ];
    let change = prop_oneof![
        24 => (length, any::<u32>()).prop_map(|(length, number)| Change::Insert(length, number % 3000)),
        1 => any::<u32>().prop_map(Change::Fill),
        1 => Just(Change::Empty),
        1 => (0_u32..400).prop_map(Change::Other),
        4 => any::<usize>().prop_map(Change::Replace),
        16 => any::<usize>().prop_map(Change::Remove),
        6 => Just(Change::Publish),
        4 => Just(Change::Housekeep),
        1 => Just(Change::Shape),
        1 => Just(Change::Begin),
        4 => Just(Change::Begun),
        12 => any::<u32>().prop_map(Change::Look),
    ];
    prop::collection::vec(change, 50..300)
}

struct Entry {
    rule: RuleRef,
    matching: Match,
    priority: u32,
    cookie: u64,
    added: Epoch,
    removed: Epoch,
}

struct Table {
    program: Arc<Program>,
    writer: BridgeWriter,
    reference: Vec<Entry>,
}

impl Table {
    fn new() -> Table {
        let program = Arc::new(Program::new());
        Table {
            writer: BridgeWriter::new(Bridge::new(Arc::clone(&program))),
            program,
            reference: Vec::new(),
        }
    }

    fn insert(&mut self, matching: Match, priority: u32) {
        let same = |entry: &Entry| {
            entry.removed == Epoch::MAX && entry.matching == matching && entry.priority == priority
        };
        // One rule of a match and precedence at a time: pipelines replace, they do not stack.
        if let Some(index) = self.reference.iter().position(same) {
            self.remove(index);
        }
        let cookie = self.reference.len() as u64;
        let spec = spec(&self.program, matching.clone(), priority, cookie);
        self.reference.push(Entry {
            rule: self.writer.insert(0, spec),
            matching,
            priority,
            cookie,
            added: self.program.domain.next(),
            removed: Epoch::MAX,
        });
    }

    fn remove(&mut self, index: usize) {
        let entry = &mut self.reference[index];
        entry.removed = self.program.domain.next();
        self.writer.remove(0, entry.rule);
    }

    /// Returns one of those that have not been removed.
    fn alive(&self, number: usize) -> Option<usize> {
        let alive =
            (0..self.reference.len()).filter(|index| self.reference[*index].removed == Epoch::MAX);
        let alive: Vec<usize> = alive.collect();
        (!alive.is_empty()).then(|| alive[number % alive.len()])
    }

    fn publish(&mut self) {
        self.writer.commit();
        self.program.domain.publish();
    }

    fn check(&self, keys: &[FlowKey], guard: &Guard<'_>) -> Result<(), TestCaseError> {
        let epoch = guard.epoch();
        let mut out = vec![None; keys.len()];
        let bridge = self.writer.bridge();
        bridge.lookup_burst(0, keys.len(), |index| &keys[index], guard, &mut out);
        for (key, found) in keys.iter().zip(out) {
            let holds = |entry: &&Entry| entry.added <= epoch && epoch < entry.removed;
            let best = (self.reference.iter())
                .filter(|entry| holds(entry) && entry.matching.matches(key))
                .map(|entry| entry.priority)
                .max();
            prop_assert_eq!(found.map(|rule| rule.spec.priority), best);
            if let Some(rule) = found {
                let entry = &self.reference[rule.spec.cookie as usize];
                prop_assert!(
                    holds(&entry) && entry.matching.matches(key),
                    "{}",
                    entry.cookie
                );
            }
        }
        Ok(())
    }
}

fn run(kind: PrefixField, order: Order, changes: Vec<Change>) -> Result<(), TestCaseError> {
    let mut table = Table::new();
    let mut reader = table.program.domain.reader().unwrap();
    let mut held = table.program.domain.reader().unwrap();
    let mut guard = held.begin();
    let mut filled = Vec::new();
    let add = |table: &mut Table, length: u32, number: u32| {
        let length = length.min(kind.bits());
        table.insert(
            kind.matching(number, length),
            order.priority(length, number),
        );
    };
    for number in 0..AT_FIRST {
        add(&mut table, 12 + number % 21, number * 7);
    }
    let described = table.writer.describe(0);
    if matches!(order, Order::ByLength | Order::Alike) {
        prop_assert_eq!(
            described.template,
            Template::LongestPrefix,
            "{}",
            described.why
        );
    }
    for change in changes {
        match change {
            Change::Insert(length, number) => add(&mut table, length, number),
            Change::Fill(number) => {
                for index in 0..80_u32 {
                    let before = table.reference.len();
                    add(&mut table, 24, number.wrapping_add(index) % 3000);
                    filled.push(before);
                }
            }
            Change::Empty => {
                for index in filled.drain(..) {
                    if table.reference[index].removed == Epoch::MAX {
                        table.remove(index);
                    }
                }
            }
            Change::Other(priority) => {
                let mut matching = Match::any();
                if priority % 3 != 0 {
                    matching.set_exact(Field::InPort, u128::from(priority % 3));
                }
                table.insert(matching, priority);
            }
            Change::Replace(number) => {
                if let Some(index) = table.alive(number) {
                    let (matching, priority) = (
                        table.reference[index].matching.clone(),
                        table.reference[index].priority,
                    );
                    table.insert(matching, priority);
                }
            }
            Change::Remove(number) => {
                if let Some(index) = table.alive(number) {
                    table.remove(index);
                }
            }
            Change::Publish => table.publish(),
            Change::Housekeep => {
                table.writer.housekeep(usize::MAX);
                table.program.domain.collect();
            }
            Change::Shape => table.writer.shape_now(),
            Change::Begin => {
                table.writer.shape_tables();
            }
            Change::Begun => guard = held.begin(),
            Change::Look(number) => {
                let key = |index: u32| {
                    let number = number.wrapping_add(index.wrapping_mul(index)) % 3500;
                    let mut key = kind.key(number, index % 8 != 7);
                    key.set_u32(at::IN_PORT, index % 5);
                    key
                };
                let keys: Vec<FlowKey> = (0..LOOKUP_MAX as u32).map(key).collect();
                table.check(&keys, &guard)?;
                let now = reader.begin();
                table.check(&keys, &now)?;
                reader.offline();
            }
        }
    }
    Ok(())
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        3 => Just(Order::ByLength),
        1 => Just(Order::Alike),
        3 => Just(Order::Mostly),
        1 => Just(Order::Any),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn prefixes_are_found_as_in_a_list(order in order(), changes in changes()) {
        run(PrefixField::Ipv4, order, changes)?;
    }

    #[test]
    fn prefixes_of_a_source_before_a_wanted_destination_are_found_as_in_a_list(order in order(), changes in changes()) {
        run(PrefixField::Between, order, changes)?;
    }

    #[test]
    fn prefixes_of_ipv6_are_found_as_in_a_list(order in order(), changes in changes()) {
        run(PrefixField::Ipv6, order, changes)?;
    }
}

/// Adds a router's table: prefixes of many lengths, and a rule for the rest.
fn routes(table: &mut Table, count: u32) {
    table.insert(Match::any(), 0);
    for number in 0..count {
        let length = 16 + number % 17;
        let address = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        let mask = (u32::MAX << (32 - length)).to_be_bytes();
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        matching.set(Field::Ipv4Dst, &address, &mask);
        table.insert(matching, 100 + length);
    }
    table.publish();
}

#[test]
fn a_router_s_table_has_a_trie_from_early_on_and_gives_it_up_when_it_is_small() {
    let mut table = Table::new();
    routes(&mut table, 20_000);
    let described = table.writer.describe(0);
    assert_eq!(described.template, Template::LongestPrefix);
    assert!(
        described.why.contains("ip_dst/16-32") && described.why.contains("1 tuples beside"),
        "{}",
        described.why
    );
    // The root, two nodes of at most two lines, a place, a rule; and the tuple for the rest.
    assert_eq!(described.worst.accesses, 8.0);
    assert!(described.typical.accesses < 5.0, "{described:?}");
    assert!(described.bytes < 8 << 20, "{described:?}");
    let mut reader = table.program.domain.reader().unwrap();
    let bridge = Arc::clone(table.writer.bridge());
    let mut key = FlowKey::ZERO;
    key.set_u16(at::ETH_TYPE, 0x0800);
    for number in 0..500_u32 {
        key.set_u32(at::IPV4_DST, number.wrapping_mul(0x9e37_79b9));
        let effort = bridge.effort(0, &key, &reader.begin());
        assert!((effort.compares, effort.probes) <= (0, 2), "{effort:?}");
        assert!(effort.lines <= 10, "{effort:?}");
    }
    reader.offline();
    for index in 20..table.reference.len() {
        table.remove(index);
    }
    table.publish();
    table.writer.housekeep(usize::MAX);
    assert_eq!(table.writer.waiting(), 0);
    let described = table.writer.describe(0);
    assert_eq!(described.template, Template::Tuples);
    assert!(described.why.contains("too few rules for a trie"));
}

#[test]
fn a_table_whose_precedences_contradict_its_prefixes_has_no_trie_and_says_why() {
    let mut table = Table::new();
    for number in 0..2000_u32 {
        let length = 8 + number % 20;
        table.insert(
            PrefixField::Ipv4.matching(number, length),
            1000 - 30 * length + number % 7,
        );
    }
    table.publish();
    table.writer.shape_now();
    let described = table.writer.describe(0);
    assert_ne!(described.template, Template::LongestPrefix);
    assert!(
        described.why.contains("a trie would hold"),
        "{}",
        described.why
    );
}

#[test]
fn memory_of_what_has_gone_is_used_again() {
    let mut table = Table::new();
    routes(&mut table, 5000);
    let mut most = 0;
    for round in 0..40_u32 {
        let from = table.reference.len();
        for number in 0..2000_u32 {
            let mut matching = Match::any();
            matching.set_exact(Field::EthType, 0x0800);
            let address = (number * 977 + round * 131).wrapping_mul(0x85eb_ca6b);
            matching.set_exact(Field::Ipv4Dst, u128::from(address));
            table.insert(matching, 200);
        }
        table.publish();
        for index in from..table.reference.len() {
            if table.reference[index].removed == Epoch::MAX {
                table.remove(index);
            }
        }
        table.publish();
        table.writer.housekeep(usize::MAX);
        table.publish();
        table.writer.housekeep(usize::MAX);
        let described = table.writer.describe(0);
        assert_eq!(described.template, Template::LongestPrefix);
        if round < 10 {
            most = most.max(described.bytes);
        }
        assert!(
            described.bytes <= most + most / 10,
            "{} after {most}",
            described.bytes
        );
    }
}

/// Withdrawn routes leave free memory, which is no reason to give up a trie.
#[test]
fn a_trie_outlives_most_of_its_prefixes() {
    let mut table = Table::new();
    // IPv6 prefixes, each of which has a dozen nodes to itself.
    for number in 0..12_000_u128 {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x86dd);
        // Some shorter ones, for enough masks to get a trie.
        let length = 128 - number % 4;
        let mask = u128::MAX << (128 - length);
        let address = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) & mask;
        matching.set(Field::Ipv6Dst, &address.to_be_bytes(), &mask.to_be_bytes());
        table.insert(matching, length as u32);
    }
    table.publish();
    assert_eq!(table.writer.describe(0).template, Template::LongestPrefix);
    for index in 600..table.reference.len() {
        table.remove(index);
    }
    for _ in 0..2 {
        table.publish();
        table.writer.housekeep(usize::MAX);
    }
    let described = table.writer.describe(0);
    assert_eq!(
        described.template,
        Template::LongestPrefix,
        "{}",
        described.why
    );
}

/// In each even epoch some longer prefixes hold, in each odd one not; readers must see exactly
/// that.
#[test]
fn readers_see_prefixes_of_their_epoch_while_these_come_and_go() {
    let program = Arc::new(Program::new());
    let mut writer = BridgeWriter::new(Bridge::new(Arc::clone(&program)));
    let prefix = |address: u32, length: u32| {
        let mut matching = Match::any();
        let mask = (u32::MAX << (32 - length)).to_be_bytes();
        matching.set(Field::Ipv4Dst, &address.to_be_bytes(), &mask);
        matching
    };
    // Networks of 10/8, each of which has some longer prefixes.
    for number in 0..400_u32 {
        let (address, length) = (0x0a00_0000 | number << 12, 18 + number % 3);
        writer.insert(0, spec(&program, prefix(address, length), length, 1));
    }
    writer.insert(0, spec(&program, prefix(0x0a00_0000, 8), 8, 1));
    writer.commit();
    program.domain.publish();
    assert_eq!(writer.describe(0).template, Template::LongestPrefix);
    let coming = |number: u32| {
        let length = 22 + number % 11;
        (0x0a00_0000 | ((number * 0x0153_3107) & 0x00ff_ffff), length)
    };
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (program, stop) = (Arc::clone(&program), Arc::clone(&stop));
            let begun = Arc::clone(&begun);
            let bridge = Arc::clone(writer.bridge());
            std::thread::spawn(move || {
                let mut reader = program.domain.reader().unwrap();
                program.counters.add_worker(reader.index());
                let keys: Vec<FlowKey> = (0..60)
                    .map(|number| {
                        let mut key = FlowKey::ZERO;
                        key.set_u32(at::IPV4_DST, coming(number).0);
                        key
                    })
                    .collect();
                let mut bursts = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let guard = reader.begin();
                    let mut out = [None; 60];
                    bridge.lookup_burst(0, 60, |index| &keys[index], &guard, &mut out);
                    let holds = guard.epoch().is_multiple_of(2) && guard.epoch() > 2;
                    for rule in out {
                        let rule = rule.expect("10/8 holds them all");
                        assert_eq!(rule.spec.cookie == 2, holds, "in {}", guard.epoch());
                    }
                    begun.fetch_add(u64::from(bursts == 0), Ordering::Relaxed);
                    bursts += 1;
                    if bursts.is_multiple_of(50) {
                        reader.offline();
                    }
                }
                bursts
            })
        })
        .collect();
    assert_eq!(program.domain.current(), 2);
    // They may have to wait for a processor.
    while begun.load(Ordering::Relaxed) < 2 && !readers.iter().any(|reader| reader.is_finished()) {
        std::thread::yield_now();
    }
    program.domain.publish();
    for _ in 0..400 {
        let rules: Vec<RuleRef> = (0..60)
            .map(|number| {
                let (address, length) = coming(number);
                writer.insert(0, spec(&program, prefix(address, length), length, 2))
            })
            .collect();
        writer.commit();
        program.domain.publish();
        for rule in rules {
            writer.remove(0, rule);
        }
        writer.commit();
        program.domain.publish();
        writer.housekeep(usize::MAX);
        program.domain.collect();
    }
    stop.store(true, Ordering::Relaxed);
    let bursts: u64 = (readers.into_iter())
        .map(|reader| reader.join().unwrap())
        .sum();
    assert!(bursts > 0);
    assert_eq!(writer.describe(0).template, Template::LongestPrefix);
}
