//! The writer's side of a trie: which rules are in it, what its slots hold, and when memory that
//! readers may still see is reused.
//!
//! A linked rule is a member, or not: rules of another kind are not, nor are those whose precedence
//! contradicts the length of their prefix. For members the following holds:
//!
//! * A slot has the rule of the highest precedence of all members that hold its packets, and no
//!   member with a longer prefix holds them.
//! * So when the rule of a slot goes, the next one is the longest that holds the rule's own prefix,
//!   and it is the same for all of the rule's slots. It is found in the tuples.
//! * A member that has no slot, because longer ones have taken them all, may have been contradicted
//!   by a shorter one that came later. This is noticed only when it is to get a slot. The slots'
//!   packets are then looked up in tuples ([`ELSEWHERE`]), until the trie is rebuilt.

use crate::actions::OpList;
use crate::actions::block::ActionBlock;
use crate::classifier::describe::Work;
use crate::classifier::trie::nodes::{Entry, Nodes, Prefix, visit};
use crate::classifier::trie::{ELSEWHERE, KeptEdits, NONE, Run, Trie};
use crate::classifier::tuple::Tuple;
use crate::classifier::tuple_space::{Example, TupleWriters};
use crate::epoch::{Domain, Epoch, NEVER};
use crate::growing::Growing;
use crate::rule::Rule;
use crate::rule::RuleRef;
use crate::rule::summary::{ASK, EDITS, Effect, RuleSummary};
use packet::Match;
use packet::fields::FIELDS;
use packet::matching::MatchWord;
use smallvec::SmallVec;
use std::collections::btree_map;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Initial room for places, and for edits.
const PLACES_AT_FIRST: usize = 1024;
const EDITS_AT_FIRST: usize = 64;
/// Shortest field, in bytes, for which a trie pays off.
const BYTES_MIN: usize = 4;
/// Longest field, in bytes.
const BYTES_MAX: usize = 16;
/// Most bytes of nodes for each rule, and in addition a constant.
const NODE_BYTES: usize = 256;
const NODE_BYTES_MIN: usize = 8 << 20;

/// Tuples of prefixes of one field whose rules share all other values.
pub(crate) struct Candidate {
    run: Run,
    shared: SmallVec<[MatchWord; 4]>,
    /// Number of their rules.
    pub rules: usize,
    /// Number of the tuples.
    pub masks: usize,
}

impl Run {
    /// Returns the bits of word `word` of the key that belong to the field.
    fn mask(self, word: u8) -> u64 {
        let first = usize::from(word) * 8;
        let field = usize::from(self.offset)..usize::from(self.offset) + usize::from(self.bytes);
        let byte = |index: usize| {
            if field.contains(&(first + index)) {
                0xff
            } else {
                0
            }
        };
        u64::from_ne_bytes(std::array::from_fn(byte))
    }

    /// Splits a match into its prefix and the rest; None where it looks at other bits of the field
    /// than the first ones.
    fn split<'a>(
        self,
        words: impl Iterator<Item = &'a MatchWord>,
    ) -> Option<(Prefix, SmallVec<[MatchWord; 4]>)> {
        let mut rest = SmallVec::new();
        let (mut bytes, mut masks) = ([0; BYTES_MAX], [0; BYTES_MAX]);
        for word in words {
            let mask = self.mask(word.word);
            if word.mask & !mask != 0 {
                let (value, mask) = (word.value & !mask, word.mask & !mask);
                rest.push(MatchWord::of_key(word.word, value, mask));
            }
            let (value, mask) = (word.value & mask, word.mask & mask);
            let both = value.to_ne_bytes().into_iter().zip(mask.to_ne_bytes());
            for (index, (value, mask)) in both.enumerate().filter(|(_, (_, mask))| *mask != 0) {
                let at = usize::from(word.word) * 8 + index - usize::from(self.offset);
                (bytes[at], masks[at]) = (value, mask);
            }
        }
        let mask = u128::from_be_bytes(masks);
        let length = mask.leading_ones();
        (mask.count_ones() == length).then_some((
            Prefix {
                bytes,
                length: length as u8,
            },
            rest,
        ))
    }
}

impl Candidate {
    /// Returns the candidate with most rules among a table's tuples.
    pub fn of(tuples: &TupleWriters) -> Option<Candidate> {
        let fits = |offset: usize, bytes: usize| {
            offset.is_multiple_of(2) && offset % 8 <= 6 && (BYTES_MIN..=BYTES_MAX).contains(&bytes)
        };
        let mut runs: Vec<Run> = (FIELDS.iter())
            .filter(|def| def.bits == def.bytes * 8 && fits(def.offset, def.bytes))
            .map(|def| Run {
                offset: def.offset as u16,
                bytes: def.bytes as u8,
            })
            .collect();
        runs.sort_by_key(|run| (run.bytes, run.offset));
        runs.dedup();
        let mut best: Option<Candidate> = None;
        for run in runs {
            let mut groups: HashMap<SmallVec<[MatchWord; 4]>, (usize, usize)> = HashMap::new();
            let mut partial = false;
            for writer in tuples.writers() {
                let whole = |(agreed, (_, mask)): (&MatchWord, &(u8, u64))| {
                    let rest = !run.mask(agreed.word);
                    agreed.mask & rest == mask & rest
                };
                let masks = writer.shared.words();
                let looked = masks
                    .iter()
                    .zip(&writer.agreed)
                    .map(|((word, mask), agreed)| MatchWord::of_key(*word, agreed.value, *mask));
                let looked: SmallVec<[MatchWord; 4]> = looked.collect();
                let Some((prefix, rest)) = run.split(looked.iter()) else {
                    continue;
                };
                if writer.agreed.iter().zip(masks).all(whole) {
                    partial |=
                        !matches!(usize::from(prefix.length), 0) && prefix.length < run.bytes * 8;
                    let group = groups.entry(rest).or_default();
                    group.0 += writer.rules();
                    group.1 += 1;
                }
            }
            let most = groups.into_iter().max_by_key(|(_, (rules, _))| *rules);
            if let Some((shared, (rules, masks))) = most.filter(|_| partial)
                && best.as_ref().is_none_or(|best| best.rules < rules)
            {
                best = Some(Candidate {
                    run,
                    shared,
                    rules,
                    masks,
                });
            }
        }
        best
    }
}

/// What the writer knows of a place's rule.
#[derive(Clone, Copy)]
struct Grade {
    priority: u32,
    length: u8,
    /// Whether the place may serve as a summary once the rule is in force.
    tells: bool,
}

/// Memory that readers may still see.
enum Left {
    Node(Entry),
    RuleSummary(u32),
    Edits(u32),
}

/// Edits that places name.
struct Kept {
    number: u32,
    places: usize,
}

/// A tuple, and the highest precedence that a rule of it has had.
type Known = (Arc<Tuple>, u32);

/// The writer's state of a trie.
pub(crate) struct Prefixes {
    trie: Arc<Trie>,
    nodes: Nodes,
    /// Tuples of members, by prefix length.
    lengths: Box<[Option<Known>]>,
    /// By place.
    grades: Vec<Grade>,
    free: Vec<u32>,
    /// Which of a rule's two [`Rule::places`] holds its place here.
    lane: usize,
    members: usize,
    /// Number of members of each precedence.
    precedences: BTreeMap<u32, usize>,
    /// Places whose rules must be asked until all readers have reached an epoch.
    fresh: VecDeque<(Epoch, u32)>,
    left: VecDeque<(Epoch, Left)>,
    /// Edits, by the list of steps.
    edits: HashMap<*const OpList, Kept>,
    free_edits: Vec<u32>,
    next_edits: u32,
    /// Whether packets of some slots are looked up in tuples.
    elsewhere: bool,
}

// SAFETY: the lists of steps are only compared by their addresses; each is alive while it is named,
// because a place of a linked rule that has it names it.
unsafe impl Send for Prefixes {}

impl Prefixes {
    /// Creates a trie without rules.
    pub fn new(candidate: &Candidate, domain: &Arc<Domain>, lane: usize) -> Prefixes {
        let (nodes, lines) = Nodes::new(domain);
        let trie = Trie {
            run: candidate.run,
            shared: candidate.shared.as_slice().into(),
            lines,
            places: Growing::new(PLACES_AT_FIRST),
            edits: KeptEdits::new(EDITS_AT_FIRST),
            default: AtomicU32::new(NONE),
            floor: AtomicU32::new(u32::MAX),
        };
        let none = Grade {
            priority: 0,
            length: 0,
            tells: false,
        };
        trie.places.view()[ELSEWHERE as usize].put(std::ptr::null_mut());
        Prefixes {
            lengths: vec![None; usize::from(candidate.run.bytes) * 8 + 1].into(),
            trie: Arc::new(trie),
            nodes,
            grades: vec![none; ELSEWHERE as usize + 1],
            free: Vec::new(),
            lane,
            members: 0,
            precedences: BTreeMap::new(),
            fresh: VecDeque::new(),
            left: VecDeque::new(),
            edits: HashMap::new(),
            free_edits: Vec::new(),
            next_edits: 0,
            elsewhere: false,
        }
    }

    pub fn trie(&self) -> &Arc<Trie> {
        &self.trie
    }

    /// Returns the number of rules in the trie.
    pub fn members(&self) -> usize {
        self.members
    }

    fn prefix(&self, matching: &Match) -> Option<Prefix> {
        let (prefix, rest) = self.trie.run.split(matching.words().iter())?;
        (*rest == *self.trie.shared).then_some(prefix)
    }

    /// Returns the prefix length of a match; None for a match of another kind.
    pub fn length(&self, matching: &Match) -> Option<u8> {
        self.prefix(matching).map(|prefix| prefix.length)
    }

    /// Adds a rule that holds from the domain's next epoch on; returns false where it must be
    /// looked up beside the trie.
    pub fn link(&mut self, domain: &Domain, rule: RuleRef, tuple: &Arc<Tuple>) -> bool {
        let Some(prefix) = self.prefix(rule.matching()) else {
            return false;
        };
        let (length, priority) = (prefix.length, rule.rule().spec.priority);
        if self.contradicts(&prefix, priority) {
            return false;
        }
        let place = self.occupy(domain, rule, length);
        let known = &mut self.lengths[usize::from(length)];
        let highest = known.as_ref().map_or(0, |(_, highest)| *highest);
        *known = Some((Arc::clone(tuple), highest.max(priority)));
        self.members += 1;
        *self.precedences.entry(priority).or_default() += 1;
        self.trie.floor.fetch_min(priority, Ordering::AcqRel);
        let grades = &self.grades;
        let mut better = |old: u32| match old {
            NONE => place,
            ELSEWHERE => ELSEWHERE,
            old => {
                let grade = grades[old as usize];
                let keeps =
                    grade.length > length || grade.length == length && grade.priority >= priority;
                if keeps { old } else { place }
            }
        };
        if length == 0 {
            let default = better(self.trie.default.load(Ordering::Relaxed));
            self.trie.default.store(default, Ordering::Release);
        } else {
            self.nodes.change(&self.trie.lines, &prefix, &mut better);
            self.leave_nodes(domain);
        }
        true
    }

    /// Returns whether a shorter member has a higher precedence than the prefix would have, or a
    /// longer one a lower.
    fn contradicts(&self, prefix: &Prefix, priority: u32) -> bool {
        if prefix.length == 0 {
            return priority > self.trie.floor();
        }
        let above = |grade: Grade| grade.priority > priority;
        let mut contradicts = match self.trie.default.load(Ordering::Relaxed) {
            NONE => false,
            default => above(self.grades[default as usize]),
        };
        visit(&self.trie.lines, prefix, &mut |place| {
            if place > ELSEWHERE {
                let grade = self.grades[place as usize];
                contradicts |= match grade.length.cmp(&prefix.length) {
                    std::cmp::Ordering::Less => above(grade),
                    std::cmp::Ordering::Equal => false,
                    std::cmp::Ordering::Greater => grade.priority < priority,
                };
            }
        });
        contradicts
    }

    /// Gives a rule a place.
    fn occupy(&mut self, domain: &Domain, rule: RuleRef, length: u8) -> u32 {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = self.grades.len();
                self.trie.places.ensure(domain, number);
                self.grades.push(self.grades[0]);
                number as u32
            }
        };
        let spec = &rule.rule().spec;
        let (marks, action) = match Effect::of(rule.rule()) {
            Effect::Sends(port) => (0, port),
            Effect::Edits(blocks) => {
                let block = blocks.first();
                let number = block.map(|block| self.keep(domain, &spec.ops, block));
                number.map_or((ASK, 0), |number| (EDITS, number))
            }
            Effect::More => (ASK, 0),
        };
        let tells = marks & ASK == 0;
        self.grades[number as usize] = Grade {
            priority: spec.priority,
            length,
            tells: tells && rule.rule().removed() == NEVER,
        };
        self.trie.places.view()[number as usize].set(rule.0, marks | ASK, spec.counter, action);
        rule.rule().places[self.lane].store(number, Ordering::Relaxed);
        if tells {
            self.fresh
                .push_back((domain.next().max(rule.rule().added), number));
        }
        number
    }

    /// Returns the number of a list's edits, adding them if needed.
    fn keep(&mut self, domain: &Domain, ops: &Arc<OpList>, block: &ActionBlock) -> u32 {
        if let Some(kept) = self.edits.get_mut(&Arc::as_ptr(ops)) {
            kept.places += 1;
            return kept.number;
        }
        let number = self.free_edits.pop().unwrap_or_else(|| {
            self.trie.edits.ensure(domain, self.next_edits as usize);
            self.next_edits += 1;
            self.next_edits - 1
        });
        let block = std::ptr::from_ref(block).cast_mut(); // only ever read
        block.expose_provenance(); // vector code handles addresses
        self.trie.edits.view()[number as usize].store(block, Ordering::Release);
        let kept = Kept { number, places: 1 };
        self.edits.insert(Arc::as_ptr(ops), kept);
        number
    }

    /// Returns the number of a rule's place.
    fn number(&self, rule: &Rule) -> Option<u32> {
        let number = rule.places[self.lane].load(Ordering::Relaxed);
        let place = self.trie.places.view().get(number as usize)?;
        std::ptr::eq(place.get(Ordering::Relaxed).0, rule).then_some(number)
    }

    fn place(&self, rule: &Rule) -> Option<&RuleSummary> {
        self.trie.places.view().get(self.number(rule)? as usize)
    }

    /// Marks the place of a rule that ends; must be called before its end is published.
    pub fn ends(&mut self, rule: RuleRef) {
        let Some(number) = self.number(rule.rule()) else {
            return;
        };
        self.grades[number as usize].tells = false;
        if let Some(place) = self.place(rule.rule()) {
            place.ask(true);
        }
    }

    /// Removes a rule that is about to be unlinked from its tuple; returns false where it is not
    /// here.
    pub fn unlink(&mut self, domain: &Domain, rule: RuleRef) -> bool {
        let Some(number) = self.number(rule.rule()) else {
            return false;
        };
        let Some(prefix) = self.prefix(rule.matching()) else {
            return false;
        };
        let next = self.next(rule, prefix.length);
        self.elsewhere |= next == ELSEWHERE;
        if prefix.length > 0 {
            let mut other = |old| if old == number { next } else { old };
            self.nodes.change(&self.trie.lines, &prefix, &mut other);
            self.nodes.shrink(&self.trie.lines, &prefix);
        } else if self.trie.default.load(Ordering::Relaxed) == number {
            self.trie.default.store(next, Ordering::Release);
        }
        self.leave_nodes(domain);
        let mut edits = false;
        if let Some(place) = self.place(rule.rule()) {
            edits = place.get(Ordering::Relaxed).1 & EDITS != 0;
            place.put(std::ptr::null_mut());
        }
        let epoch = domain.next();
        self.left.push_back((epoch, Left::RuleSummary(number)));
        let ops = Arc::as_ptr(&rule.rule().spec.ops);
        if edits && let Some(kept) = self.edits.get_mut(&ops) {
            kept.places -= 1;
            if kept.places == 0 {
                self.left.push_back((epoch, Left::Edits(kept.number)));
                self.edits.remove(&ops);
            }
        }
        self.members -= 1;
        self.leave_precedence(rule.rule().spec.priority);
        true
    }

    /// Forgets a member of this precedence, which no reader can see any more, and raises the floor
    /// if possible.
    fn leave_precedence(&mut self, priority: u32) {
        if let btree_map::Entry::Occupied(mut count) = self.precedences.entry(priority) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                let lowest = self.precedences.keys().next();
                let floor = lowest.copied().unwrap_or(u32::MAX);
                self.trie.floor.store(floor, Ordering::Release);
            }
        }
    }

    /// Returns what a rule's slots are to hold when it has gone.
    fn next(&self, rule: RuleRef, length: u8) -> u32 {
        let key = Example(rule.matching().words());
        let mut best: Option<(u32, u32)> = None;
        // The default is in no slot.
        let shortest = usize::from(length.min(1));
        for known in self.lengths[shortest..=usize::from(length)].iter().rev() {
            let Some((tuple, highest)) = known else {
                continue;
            };
            if best.is_some_and(|(_, priority)| priority >= *highest) {
                continue;
            }
            let view = tuple.view();
            let mut chain = view.chain(view.hash(&key), &key);
            let member = chain.find_map(|other| {
                let own = std::ptr::eq(other, rule.rule());
                let number = self.number(other).filter(|_| !own)?;
                Some((number, other.spec.priority))
            });
            match (best, member) {
                (None, Some(_)) => best = member,
                (Some((_, best)), Some((_, priority))) if priority > best => return ELSEWHERE,
                _ => {}
            }
        }
        best.map_or(NONE, |(number, _)| number)
    }

    fn leave_nodes(&mut self, domain: &Domain) {
        if !self.nodes.left.is_empty() {
            let epoch = domain.next();
            let nodes = self.nodes.left.drain(..);
            self.left
                .extend(nodes.map(|node| (epoch, Left::Node(node))));
        }
    }

    /// Makes summaries of places whose rules all readers know to be in force, and frees what no
    /// reader can see.
    pub fn settle(&mut self, domain: &Domain) {
        let fronts = [
            Some(domain.current()),
            self.fresh.front().map(|(epoch, _)| *epoch),
            self.left.front().map(|(epoch, _)| *epoch),
        ];
        let quiet = |epoch: &Epoch| *epoch <= domain.current() && domain.quiet(*epoch);
        let Some(passed) = fronts.into_iter().flatten().filter(quiet).max() else {
            return;
        };
        // A place that has been reused is no longer in `fresh` for the rule before: that came in an
        // earlier epoch than it went.
        while let Some((epoch, number)) = self.fresh.front()
            && *epoch <= passed
        {
            let tells = self.grades[*number as usize].tells;
            if let Some(place) = self
                .trie
                .places
                .view()
                .get(*number as usize)
                .filter(|_| tells)
            {
                place.ask(false);
            }
            self.fresh.pop_front();
        }
        while let Some((epoch, _)) = self.left.front()
            && *epoch <= passed
        {
            match self.left.pop_front() {
                Some((_, Left::Node(node))) => self.nodes.reuse(node),
                Some((_, Left::RuleSummary(number))) => self.free.push(number),
                Some((_, Left::Edits(number))) => self.free_edits.push(number),
                None => {}
            }
        }
    }

    /// Returns whether rules are still asked that need not be once [`Prefixes::settle`] is called.
    pub fn is_settling(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Returns whether packets of some slots are looked up in tuples.
    pub fn leads_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// Returns whether nodes in use take no more memory than allowed. Free ones do not count: new
    /// prefixes will use them.
    pub fn is_small(&self) -> bool {
        self.nodes.bytes_used() <= NODE_BYTES_MIN + NODE_BYTES * self.members
    }

    /// Returns the memory in bytes, without the rules.
    pub fn bytes(&self) -> usize {
        self.nodes.bytes()
            + self.grades.len() * (size_of::<RuleSummary>() + size_of::<Grade>())
            + self.next_edits as usize * size_of::<usize>()
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.counts.iter().sum()
    }

    /// Returns the work of lookups: the average for packets that meet the members evenly, given how
    /// many there are of each length, and the maximum.
    pub fn work(&self, lengths: &[(u8, usize)]) -> (Work, Work) {
        let [_, two, four, _] = self.nodes.counts.map(|count| count as f64);
        // In nodes of more than one line some slots are in the first.
        let further = (0.6 * two + 0.8 * four) / self.nodes().max(1) as f64;
        let nodes = |length: u8| f64::from(length.saturating_sub(16).div_ceil(8));
        let accesses = |nodes: f64, each: f64| Work {
            accesses: 2.0 + nodes * each,
            compares: 0.0,
            hashes: 0.0,
        };
        let rules: usize = lengths.iter().map(|(_, rules)| rules).sum();
        let sum: f64 = (lengths.iter())
            .map(|(length, rules)| nodes(*length) * *rules as f64)
            .sum();
        let deepest = lengths
            .iter()
            .map(|(length, _)| nodes(*length))
            .fold(0.0, f64::max);
        let mut worst = accesses(deepest.min(self.trie.run.levels() as f64), 2.0);
        // A rule that has just been added must be asked.
        worst.accesses += 1.0;
        (accesses(sum / rules.max(1) as f64, 1.0 + further), worst)
    }
}
