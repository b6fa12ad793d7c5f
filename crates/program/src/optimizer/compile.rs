//! Computes what packets do behind a rule, from what the rule says of them.
//!
//! The rule's steps and those of the rules behind it are followed as a packet would, with the bits
//! known of all packets that come this way ([`Known`]). At a lookup, the table's rules that such
//! packets may meet are collected. If one is left that matches all of them, they meet it; if a few
//! are left, each of which looks at more than is known, the path branches; else it ends there and
//! packets are looked up. Everything is bounded: paths of a rule, stages of a path, rules looked
//! at, paths in total.

use crate::Program;
use crate::actions::block::{ActionBlock, End, LANE_WORDS, Write};
use crate::burst::beyond;
use crate::classifier::tuple::MaskedWord;
use crate::counters::{CounterId, Share};
use crate::epoch::{Epoch, NEVER};
use crate::optimizer::unwildcarded::{TableSet, add_table};
use crate::rule::Rule;
use crate::rule::fused::Here;
use crate::rule::fused::{FusedPath, FusedPaths, Stage};
use packet::edit::Rewrite;
use packet::key::at;
use packet::matching::MatchWord;
use packet::parse::MINI_KEY_WORDS;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

/// Most paths of a rule.
const WAYS_MAX: usize = 8;
/// Most branches at one lookup.
const CASES_MAX: usize = 4;
/// Most stages of a path.
const STAGES_MAX: usize = 64;
/// Most rules of one set of masks that are compared with the known bits, one by one.
const SCAN_MAX: usize = 1024;
/// Fewest bits of one word of the packet in which a group of rules must agree entirely, so that
/// these bits can tell packets that meet none of the group: a port, an address.
const TELLING_BITS: u32 = 16;

/// Most paths of a bridge.
pub(crate) const ALL_WAYS_MAX: usize = 8192;
/// Most comparisons of a rule with known bits, in one run.
const WORK_MAX: u64 = 30_000_000;

/// The rules of a bridge's tables from which paths are made: those in force in the held epoch.
#[derive(Default)]
pub(crate) struct Tables<'a>(HashMap<u8, Listed<'a>>);

/// A table's rules.
enum Listed<'a> {
    /// Not listed: the table is always looked up.
    Opaque,
    /// Grouped by the bits that they look at.
    Groups(Vec<Group<'a>>),
}

/// Words that rules look at, and which bits of them.
type Masks = SmallVec<[(u8, u64); 4]>;

/// Rules that look at the same bits.
struct Group<'a> {
    mask: Masks,
    /// The highest precedence first.
    rules: Vec<&'a Rule>,
    /// Bits in which all of them agree.
    agreed: Vec<MatchWord>,
    /// By value, the index of the first rule.
    index: HashMap<SmallVec<[u64; 4]>, u32>,
}

impl<'a> Tables<'a> {
    /// Adds a table with too many rules, or with soft ones.
    pub fn opaque(&mut self, table: u8) {
        self.0.insert(table, Listed::Opaque);
    }

    /// Adds a table's rules, in any order.
    pub fn list(&mut self, table: u8, rules: impl Iterator<Item = &'a Rule>) {
        let mut groups: HashMap<Masks, Vec<&'a Rule>> = HashMap::new();
        for rule in rules {
            let words = rule.spec.matching.words().iter();
            let mask = words.map(|word| (word.word, word.mask)).collect();
            groups.entry(mask).or_default().push(rule);
        }
        let groups = groups.into_iter();
        let groups = groups.map(|(mask, rules)| Group::new(mask, rules));
        self.0.insert(table, Listed::Groups(groups.collect()));
    }

    /// Returns whether a rule of a table looks at words that lanes do not have themselves.
    fn reads_beyond(&self, table: u8) -> bool {
        let beyond = |(word, _): &(u8, u64)| usize::from(*word) >= LANE_WORDS;
        match self.0.get(&table) {
            None => false,
            Some(Listed::Opaque) => true,
            Some(Listed::Groups(groups)) => {
                groups.iter().any(|group| group.mask.iter().any(beyond))
            }
        }
    }

    /// Returns all rules that have been listed, by table.
    fn rules(&self) -> Vec<(u8, &'a Rule)> {
        let mut tables: Vec<_> = self.0.iter().collect();
        tables.sort_by_key(|(table, _)| **table);
        let of = |(table, listed): (&u8, &Listed<'a>)| match listed {
            Listed::Opaque => Vec::new(),
            Listed::Groups(groups) => {
                let rules = groups.iter().flat_map(|group| &group.rules);
                rules.map(|rule| (*table, *rule)).collect()
            }
        };
        tables.into_iter().flat_map(of).collect()
    }
}

impl<'a> Group<'a> {
    fn new(mask: Masks, mut rules: Vec<&'a Rule>) -> Group<'a> {
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.spec.priority));
        let mut index = HashMap::with_capacity(rules.len());
        for (number, rule) in rules.iter().enumerate() {
            let words = rule.spec.matching.words().iter();
            let values = words.map(|word| word.value).collect();
            index.entry(values).or_insert(number as u32);
        }
        Group {
            agreed: agreed(rules.iter().map(|rule| rule.spec.matching.words())),
            mask,
            rules,
            index,
        }
    }
}

/// Returns the bits in which lists of the same words with the same masks agree; words in which none
/// do are left out.
fn agreed<'m>(mut lists: impl Iterator<Item = &'m [MatchWord]>) -> Vec<MatchWord> {
    let mut agreed = lists.next().unwrap_or_default().to_vec();
    for list in lists {
        for (agreed, word) in agreed.iter_mut().zip(list) {
            let same = !(agreed.value ^ word.value);
            agreed.mask &= same;
            agreed.value &= same;
        }
    }
    agreed.retain(|word| word.mask != 0);
    agreed
}

/// What is known of packets.
#[derive(Clone)]
struct Known {
    mask: [u64; LANE_WORDS],
    value: [u64; LANE_WORDS],
    /// Bits that edits have changed, so that they are not in packets yet.
    edited: [u64; MINI_KEY_WORDS],
}

/// Bits that still have to be compared, of a match whose other bits are known to match.
type Left = SmallVec<[MaskedWord; 4]>;

impl Known {
    /// Returns what is known of packets that come to `table` in lanes and may take paths: those of
    /// IPv4 (see `Engine::fused`).
    fn of_lanes(table: u8) -> Known {
        let mut bytes = [0; 8];
        let mut known = Known {
            mask: [0; LANE_WORDS],
            value: [0; LANE_WORDS],
            edited: [0; MINI_KEY_WORDS],
        };
        bytes[at::ETH_TYPE % 8..at::ETH_TYPE % 8 + 2].fill(u8::MAX);
        known.mask[at::ETH_TYPE / 8] = u64::from_ne_bytes(bytes);
        bytes[at::ETH_TYPE % 8..at::ETH_TYPE % 8 + 2].copy_from_slice(&[8, 0]);
        known.value[at::ETH_TYPE / 8] = u64::from_ne_bytes(bytes);
        let mut bytes = [0; 8];
        bytes[at::IP_FRAG % 8] = u8::MAX;
        known.mask[at::IP_FRAG / 8] = u64::from_ne_bytes(bytes);
        if table == 0 {
            // Nothing has been written yet: lanes only go forward.
            known.mask[MINI_KEY_WORDS..].fill(u64::MAX);
        }
        known
    }

    fn learn(&mut self, word: u8, mask: u64, value: u64) {
        if let Some(known) = self.mask.get_mut(usize::from(word)) {
            *known |= mask;
            let known = &mut self.value[usize::from(word)];
            *known = *known & !mask | value;
        }
    }

    /// Returns the known mask and value of a word.
    fn word(&self, word: u8) -> (u64, u64) {
        match self.mask.get(usize::from(word)) {
            Some(mask) => (*mask, self.value[usize::from(word)]),
            None => (u64::MAX, beyond(word)),
        }
    }

    /// Returns the bits in which packets must be compared to decide whether they match; None where
    /// they cannot match.
    fn left(&self, words: &[MatchWord]) -> Option<Left> {
        let mut left = Left::new();
        for word in words {
            let (mask, value) = self.word(word.word);
            if (value ^ word.value) & word.mask & mask != 0 {
                return None;
            }
            let open = word.mask & !mask;
            if open != 0 {
                left.push(MaskedWord {
                    word: word.word,
                    mask: open,
                    value: word.value & open,
                });
            }
        }
        Some(left)
    }

    /// Returns whether packets still have these bits as they arrived.
    fn may_ask(&self, left: &Left) -> bool {
        left.iter().all(|word| {
            let edited = self.edited.get(usize::from(word.word));
            edited.is_none_or(|edited| edited & word.mask == 0)
        })
    }

    fn edit(&mut self, rewrite: &Rewrite) {
        for (word, touched) in rewrite.touches().into_iter().enumerate() {
            self.edited[word] |= touched;
            self.mask[word] &= !touched;
            self.value[word] &= !touched;
        }
    }
}

/// What packets with known bits may meet in a table.
enum Residue<'a> {
    /// They must be looked up.
    Many,
    /// In order: packets with these bits meet the rule, or must be looked up; all others meet the
    /// last rule, or none.
    Few {
        cases: Vec<(Left, Option<&'a Rule>)>,
        last: Option<&'a Rule>,
    },
}

/// A path that is being followed.
#[derive(Clone)]
struct Path<'a> {
    known: Known,
    words: Left,
    writes: SmallVec<[Write; 4]>,
    rewrites: Vec<Rewrite>,
    hops: u32,
    shares: Vec<(CounterId, Share)>,
    here: RulePosition<'a>,
    stack: SmallVec<[RulePosition<'a>; 2]>,
}

/// A place in a rule.
#[derive(Clone, Copy)]
struct RulePosition<'a> {
    rule: &'a Rule,
    blocks: &'a [ActionBlock],
    next: usize,
    table: u8,
}

impl<'a> RulePosition<'a> {
    /// Returns the beginning of a rule, if packets that meet it there can stay in their lanes.
    fn of(rule: &'a Rule, table: u8, nothing_behind: bool) -> Option<RulePosition<'a>> {
        let blocks = rule.blocks()?.get();
        let fits = blocks.iter().all(|block| match block.end {
            End::Table { table: next, .. } => next > table,
            End::Output(_) => nothing_behind,
            End::Copy(_)
            | End::Multipath
            | End::Track(_)
            | End::Untrack
            | End::Transfer
            | End::Learn => false,
            End::Nothing => true,
        });
        (fits && !rule.shortens_timeouts()).then_some(RulePosition {
            rule,
            blocks,
            next: 0,
            table,
        })
    }
}

/// A rule's paths, before they are attached to it.
pub(crate) struct Made {
    pub fused: Box<FusedPaths>,
    /// For each path, the shares of its counter.
    pub shares: Vec<Vec<(CounterId, Share)>>,
}

impl Made {
    /// Gives rules and tables their shares of the paths' counters.
    pub fn share(&self, counters: &crate::counters::Counters) {
        for (way, shares) in self.fused.ways.iter().zip(&self.shares) {
            counters.share(way.counter, shares);
        }
    }
}

/// Compiles paths, rule by rule.
pub(crate) struct Compiler<'a> {
    pub tables: Tables<'a>,
    pub program: &'a Arc<Program>,
    /// Returns the counter of a table's lookups.
    pub lookups: &'a dyn Fn(u8) -> Option<CounterId>,
    pub from: Epoch,
    /// Paths that may still be made.
    pub room: usize,
    /// Number of rules left out for lack of room or time.
    pub left_out: usize,
    work: u64,
}

/// One rule's paths while they are made.
struct Making<'a> {
    ways: Vec<Path<'a>>,
    ends: Vec<End>,
    tables: TableSet,
    /// What packets meet there.
    met: Vec<Stage>,
    /// Tables before which paths end.
    stops: TableSet,
    /// Whether a rule of the tables looks at words that lanes do not have themselves.
    reads_beyond: bool,
    /// Paths that have been begun.
    open: usize,
    /// Stages behind the first rule.
    stages: usize,
}

impl<'a> Compiler<'a> {
    pub fn new(
        tables: Tables<'a>,
        program: &'a Arc<Program>,
        lookups: &'a dyn Fn(u8) -> Option<CounterId>,
        from: Epoch,
        room: usize,
    ) -> Compiler<'a> {
        Compiler {
            tables,
            program,
            lookups,
            from,
            room,
            left_out: 0,
            work: 0,
        }
    }

    /// Compiles the paths of all rules that have some, other than those for which `has` returns
    /// true, and calls `with` for each.
    pub fn make(&mut self, has: impl Fn(&Rule) -> bool, mut with: impl FnMut(&'a Rule, Made)) {
        for (table, rule) in self.tables.rules() {
            if has(rule) {
                continue;
            }
            if self.work > WORK_MAX || self.room == 0 {
                self.left_out += usize::from(RulePosition::of(rule, table, true).is_some());
                continue;
            }
            if let Some(made) = self.rule(rule, table) {
                with(rule, made);
            }
        }
    }

    fn rule(&mut self, rule: &'a Rule, table: u8) -> Option<Made> {
        let here = RulePosition::of(rule, table, true)?;
        let (first, others) = here.blocks.split_first()?;
        // TTLs are checked only where a path begins.
        if !matches!(first.end, End::Table { .. }) || others.iter().any(ActionBlock::may_expire) {
            return None;
        }
        let mut known = Known::of_lanes(table);
        for word in rule.spec.matching.words() {
            let (mask, value) = known.word(word.word);
            if (value ^ word.value) & word.mask & mask != 0 {
                // No packet of the common kinds meets it.
                return None;
            }
            known.learn(word.word, word.mask, word.value);
        }
        let mut making = Making {
            ways: Vec::new(),
            ends: Vec::new(),
            tables: TableSet::default(),
            met: Vec::new(),
            stops: TableSet::default(),
            reads_beyond: false,
            open: 1,
            stages: 0,
        };
        let path = Path {
            known,
            words: Left::new(),
            writes: SmallVec::new(),
            rewrites: Vec::new(),
            hops: 0,
            shares: vec![(rule.spec.counter, Share::Rule)],
            here,
            stack: SmallVec::new(),
        };
        self.follow(&mut making, path);
        if making.stages == 0 {
            return None;
        }
        if making.ways.len() > self.room {
            self.left_out += 1;
            return None;
        }
        let counters = &self.program.counters;
        let mut numbers = Vec::with_capacity(making.ways.len());
        for _ in &making.ways {
            match counters.allocate() {
                Some(number) => numbers.push(number),
                None => {
                    numbers.into_iter().for_each(|number| counters.free(number));
                    self.left_out += 1;
                    return None;
                }
            }
        }
        self.room -= numbers.len();
        Some(making.finish(first, self.from, Arc::downgrade(self.program), &numbers))
    }

    /// Follows a path until it ends, and those that branch off it.
    fn follow(&mut self, making: &mut Making<'a>, mut path: Path<'a>) {
        loop {
            let Some(block) = path.here.blocks.get(path.here.next) else {
                match path.stack.pop() {
                    Some(back) => path.here = back,
                    None => return making.end(path, End::Nothing),
                }
                continue;
            };
            path.here.next += 1;
            path.pass(block);
            match block.end {
                // `RulePosition::of` rejects rules with copies, a multipath choice, `ct` or
                // transfers.
                End::Copy(_)
                | End::Multipath
                | End::Track(_)
                | End::Untrack
                | End::Transfer
                | End::Learn
                | End::Nothing => {}
                End::Output(port) => return making.end(path, End::Output(port)),
                End::Table { table, resubmit } => {
                    path.hops += 1;
                    if path.here.next < path.here.blocks.len() {
                        let here = path.here;
                        path.stack.push(here);
                    }
                    match self.part(making, path, table, resubmit) {
                        Some(next) => path = next,
                        None => return,
                    }
                }
            }
        }
    }

    /// Branches a path at a lookup: follows the branches, and returns the path of the other
    /// packets, unless it ends.
    fn part(
        &mut self,
        making: &mut Making<'a>,
        mut path: Path<'a>,
        table: u8,
        resubmit: bool,
    ) -> Option<Path<'a>> {
        let stop = End::Table { table, resubmit };
        let residue = if path.shares.len() / 2 < STAGES_MAX && self.work <= WORK_MAX {
            self.residue(&path.known, table)
        } else {
            Residue::Many
        };
        let Residue::Few { cases, last } = residue else {
            making.end(path, stop);
            return None;
        };
        let behind = path.stack.is_empty();
        let enters = |rule: &'a Rule| {
            let place = RulePosition::of(rule, table, behind)?;
            (!place.blocks.iter().any(ActionBlock::may_expire)).then_some(place)
        };
        let last_enters = match last {
            Some(rule) => enters(rule).is_some(),
            // Packets that meet no rule continue after a resubmit.
            None => resubmit,
        };
        let gains = last_enters
            || cases
                .iter()
                .any(|(_, rule)| rule.is_some_and(|rule| enters(rule).is_some()));
        let may_ask = cases.iter().all(|(left, _)| path.known.may_ask(left));
        if !gains || !may_ask || making.open + cases.len() > WAYS_MAX {
            making.end(path, stop);
            return None;
        }
        making.open += cases.len();
        add_table(&mut making.tables, table);
        making.reads_beyond |= self.tables.reads_beyond(table);
        let counter = (self.lookups)(table);
        for (left, rule) in cases {
            let mut path = path.clone();
            for word in left {
                path.known.learn(word.word, word.mask, word.value);
                path.ask(word);
            }
            match rule.and_then(enters) {
                Some(place) => {
                    making.meets(table, Some(place.rule));
                    path.meet(place, counter);
                    self.follow(making, path);
                }
                None => making.end(path, stop),
            }
        }
        match last.map(enters) {
            Some(Some(place)) => {
                making.meets(table, Some(place.rule));
                path.meet(place, counter);
            }
            None if resubmit => {
                making.meets(table, None);
                path.shares
                    .extend(counter.map(|counter| (counter, Share::Lookup)));
                // Continue at the place to return to.
                path.here.next = path.here.blocks.len();
            }
            Some(None) | None => {
                making.end(path, stop);
                return None;
            }
        }
        Some(path)
    }

    /// Returns what packets meet in a table.
    fn residue(&mut self, known: &Known, table: u8) -> Residue<'a> {
        let groups = match self.tables.0.get(&table) {
            None => &[][..],
            Some(Listed::Opaque) => return Residue::Many,
            Some(Listed::Groups(groups)) => groups,
        };
        let mut met: Vec<(&'a Rule, Left, usize)> = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            self.work += 1;
            if known.left(&group.agreed).is_none() {
                continue;
            }
            let exact = (group.mask.iter()).all(|(word, mask)| mask & !known.word(*word).0 == 0);
            if exact {
                let values = group.mask.iter();
                let values: SmallVec<[u64; 4]> = values
                    .map(|(word, mask)| known.word(*word).1 & mask)
                    .collect();
                if let Some(first) = group.index.get(&values) {
                    met.push((group.rules[*first as usize], Left::new(), number));
                }
                continue;
            }
            if group.rules.len() > SCAN_MAX {
                return Residue::Many;
            }
            self.work += group.rules.len() as u64;
            let fits = group
                .rules
                .iter()
                .filter_map(|rule| Some((*rule, known.left(rule.spec.matching.words())?, number)));
            met.extend(fits);
        }
        met.sort_by_key(|(rule, ..)| std::cmp::Reverse(rule.spec.priority));
        let last = met.iter().position(|(_, left, _)| left.is_empty());
        let last = last.map(|at| {
            met.truncate(at + 1);
            met[at].0
        });
        if last.is_some() {
            met.pop();
        }
        if met.len() <= CASES_MAX {
            let cases = met.into_iter().map(|(rule, left, _)| (left, Some(rule)));
            return Residue::Few {
                cases: cases.collect(),
                last,
            };
        }
        self.work += (groups.len() * met.len()) as u64;
        match gates(known, groups.len(), &met) {
            Some(cases) if last.is_some() => Residue::Few { cases, last },
            _ => Residue::Many,
        }
    }
}

/// Returns the bits that tell packets that meet none of these rules, group by group: bits in which
/// all of a group agree and that few packets are likely to have. None where rules do not agree
/// enough.
fn gates<'a>(
    known: &Known,
    groups: usize,
    met: &[(&'a Rule, Left, usize)],
) -> Option<Vec<(Left, Option<&'a Rule>)>> {
    let mut cases = Vec::new();
    for group in 0..groups {
        let rules = met.iter().filter(|(.., of)| *of == group);
        let words = rules.clone().map(|(rule, ..)| rule.spec.matching.words());
        let Some(first) = words.clone().next() else {
            continue;
        };
        let agreed = agreed(words);
        let whole = |word: &MatchWord| {
            let mask = first.iter().find(|other| other.word == word.word);
            let open = word.mask & !known.word(word.word).0;
            // Words that rules have written do not help: all packets that come here have them.
            usize::from(word.word) < MINI_KEY_WORDS
                && mask.is_some_and(|mask| mask.mask == word.mask)
                && open.count_ones() >= TELLING_BITS
        };
        if cases.len() == CASES_MAX || !agreed.iter().any(whole) {
            return None;
        }
        // A single such word suffices for packets that differ in it, as most do.
        cases.push((known.left(&agreed)?, None));
    }
    Some(cases)
}

impl<'a> Path<'a> {
    /// Applies a block.
    fn pass(&mut self, block: &ActionBlock) {
        let writes = std::iter::once(&block.write).chain(&block.more);
        for write in writes.filter(|write| write.mask != 0) {
            self.known.learn(write.word, write.mask, write.value);
            match self
                .writes
                .iter_mut()
                .find(|other| other.word == write.word)
            {
                Some(other) => {
                    other.value = other.value & !write.mask | write.value;
                    other.mask |= write.mask;
                }
                None => self.writes.push(*write),
            }
        }
        if !block.rewrite.is_nothing() {
            self.known.edit(&block.rewrite);
            self.rewrites.push(block.rewrite.clone());
        }
    }

    /// Continues at the beginning of a rule.
    fn meet(&mut self, place: RulePosition<'a>, lookups: Option<CounterId>) {
        self.shares.push((place.rule.spec.counter, Share::Rule));
        self.shares
            .extend(lookups.map(|counter| (counter, Share::Match)));
        self.here = place;
    }

    /// Adds a condition: packets of this path have these bits.
    fn ask(&mut self, bits: MaskedWord) {
        match self.words.iter_mut().find(|word| word.word == bits.word) {
            Some(word) => {
                word.mask |= bits.mask;
                word.value |= bits.value;
            }
            None => self.words.push(bits),
        }
    }

    fn into_way(self, first: &ActionBlock, end: End, counter: CounterId) -> FusedPath {
        let mut writes = self.writes.into_iter();
        let own = !first.rewrite.is_nothing();
        FusedPath {
            words: self.words.as_slice().into(),
            counter,
            hops: self.hops,
            rewrites: self.rewrites[usize::from(own)..].into(),
            backs: self
                .stack
                .iter()
                .filter_map(RulePosition::remembered)
                .collect(),
            block: ActionBlock {
                end,
                first: 0,
                write: writes.next().unwrap_or_default(),
                more: writes.collect(),
                rewrite: first.rewrite.clone(),
                multipath: None,
                track: None,
                transfers: None,
                learn: None,
                is_last: false,
            },
        }
    }
}

impl RulePosition<'_> {
    fn remembered(&self) -> Option<Here> {
        Here::of(self.rule, self.next as u16, self.table)
    }
}

impl<'a> Making<'a> {
    /// Records that packets of some path meet a rule, or none, in a table.
    fn meets(&mut self, table: u8, rule: Option<&Rule>) {
        self.stages += 1;
        let met = rule.map(|rule| (rule.spec.priority, rule.spec.matching.clone()));
        let stage = Stage { table, met };
        if !self.met.contains(&stage) {
            self.met.push(stage);
        }
    }

    fn end(&mut self, path: Path<'a>, end: End) {
        if let End::Table { table, .. } = end {
            add_table(&mut self.stops, table);
        }
        self.ways.push(path);
        self.ends.push(end);
    }

    fn finish(
        self,
        first: &ActionBlock,
        from: Epoch,
        program: Weak<Program>,
        counters: &[CounterId],
    ) -> Made {
        let sends = self.ends.iter().any(|end| matches!(end, End::Output(_)));
        let shares = self.ways.iter().map(|path| path.shares.clone()).collect();
        let ways = self.ways.into_iter().zip(self.ends).zip(counters);
        let ways = ways.map(|((path, end), counter)| path.into_way(first, end, *counter));
        let fused = FusedPaths {
            from,
            ends: AtomicU64::new(NEVER),
            tables: self.tables,
            met: self.met.into(),
            stops: self.stops,
            stages: self.stages,
            sends,
            may_expire: first.rewrite.may_expire(),
            reads_beyond: self.reads_beyond,
            ways: ways.collect(),
            program,
        };
        Made {
            fused: Box::new(fused),
            shares,
        }
    }
}
