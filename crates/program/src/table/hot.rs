//! Lookups in the part of a key that is read first.
//!
//! A whole key has 512 bytes, and a burst's keys more than a first-level cache holds beside everything else. Most tables look at Ethernet, IPv4 and ports
//! only, which fit one cache line a packet ([`HotWords`]); some look at nothing but the ingress port, and one answer holds for the whole burst. What a
//! table reads is told when its shape is made ([`Reads`]), and the burst's way in (`walk::front`) goes by it.

#[cfg(test)]
mod tests;

use super::exact::{ByWords, Search};
use super::{
    Bridge, Deeds, LINEAR_MAX, LOOKUP_MAX, LinearEntry, NO_COUNTER, NextHops, PrefixesShape,
    Published, Shape, Told, TupleEntry, Verdict, exact_of, linear, lookup_exact, lookup_pending,
    lookup_prefixes, lookup_trees,
};
use crate::counters::{CounterId, WorkerCounters};
use crate::epoch::{Epoch, Guard};
use crate::rule::Rule;
use crate::tuple::Words;
pub(crate) use packet::hot::HotWords;
use packet::hot::{NO_PATTERN, Pattern, Sorting};
use packet::key::at;
use packet::{FlowKey, WordSet};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Most tuples whose agreed bits packets are compared with while they are read.
const GATES_MAX: usize = 8;

/// What a table's lookup looks at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reads {
    /// The ingress port, or nothing.
    Port,
    /// Words of [`WordSet::HOT`].
    Hot,
    /// Others too.
    Deep,
    /// Whole keys, and nothing else will do.
    Whole,
}

/// The bits of word 0 that hold the ingress port.
const PORT_MASK: u64 = {
    let mut bytes = [0_u8; 8];
    let mut index = 0;
    while index < 4 {
        bytes[at::IN_PORT % 8 + index] = 0xff;
        index += 1;
    }
    u64::from_ne_bytes(bytes)
};

impl Reads {
    fn of(words: impl Iterator<Item = (u8, u64)>) -> Reads {
        words.fold(Reads::Port, |reads, (word, mask)| match (reads, word) {
            (Reads::Deep | Reads::Whole, _) => reads,
            (_, word) if !WordSet::HOT.contains(usize::from(word)) => Reads::Deep,
            (Reads::Port, 0) if mask & !PORT_MASK == 0 => Reads::Port,
            _ => Reads::Hot,
        })
    }
}

impl Published {
    /// What readers of `table` are to find.
    pub fn new(table: u8, shape: Shape) -> Published {
        let reads = match &shape {
            Shape::Linear(entries) => Reads::of(
                entries
                    .iter()
                    .flat_map(|entry| entry.words.iter().map(|word| (word.word, word.mask))),
            ),
            Shape::Tuples(tuples) => Reads::of(
                tuples
                    .iter()
                    .flat_map(|entry| entry.tuple.words().iter().copied()),
            ),
            Shape::Trees(shape) => {
                let tuples = shape.all.iter();
                let tuples = tuples.flat_map(|entry| entry.tuple.words().iter().copied());
                let trees = shape.trees.reads().map(|word| (word, u64::MAX));
                Reads::of(tuples.chain(trees))
            }
            Shape::Prefixes(shape) => {
                let tuples = shape.all.iter();
                let tuples = tuples.flat_map(|entry| entry.tuple.words().iter().copied());
                let trie = shape.trie.reads().map(|word| (word, u64::MAX));
                Reads::of(tuples.chain(trie))
            }
            // Gathers conditions from whole keys.
            Shape::Conjunctive { .. } => Reads::Whole,
        };
        let patterns = match &shape {
            Shape::Linear(entries) if reads != Reads::Deep => patterns(entries),
            Shape::Tuples(tuples) if reads != Reads::Deep => gates(tuples),
            _ => None,
        };
        let sorting = match (&shape, &patterns) {
            (Shape::Linear(entries), Some(patterns)) if table == 0 => sorting(entries, patterns),
            _ => None,
        };
        Published {
            quick: reads <= Reads::Hot && shape.is_quick(),
            shape,
            reads,
            patterns,
            sorting,
        }
    }
}

/// A short list's patterns made ready for packets as they lie, where nobody asks for more than which rule they meet.
fn sorting(entries: &[LinearEntry], patterns: &[Pattern]) -> Option<Box<Sorting>> {
    let ends = entries.iter().all(|entry| entry.rule().only_ends());
    ends.then(|| Sorting::new(patterns).map(Box::new))?
}

/// A short list's matches as patterns over the hot words.
fn patterns(entries: &[LinearEntry]) -> Option<Box<[Pattern]>> {
    if entries.len() > LINEAR_MAX {
        return None;
    }
    let pattern = |entry: &LinearEntry| {
        let words = entry.words.iter();
        Pattern::of(words.map(|word| (word.word, word.mask, word.value)))
    };
    entries.iter().map(pattern).collect()
}

/// The bits in which each of a few tuples' rules agree as patterns over the hot words. One tuple is looked up by all packets anyway, most of the time.
fn gates(tuples: &[TupleEntry]) -> Option<Box<[Pattern]>> {
    let one = matches!(tuples, [only] if !only.single);
    if one || tuples.len() > GATES_MAX {
        return None;
    }
    let gate = |entry: &TupleEntry| {
        let words = entry.agreed.iter();
        Pattern::of(words.map(|word| (word.word, word.mask, word.value)))
    };
    tuples.iter().map(gate).collect()
}

/// A table over the hot words whose packets are compared with patterns while they are read.
#[derive(Clone, Copy)]
pub(crate) struct Patterned<'g> {
    /// In order of precedence.
    pub patterns: &'g [Pattern],
    /// Where each is a rule's that only sends or drops: the same for packets as they lie.
    pub sorting: Option<&'g Sorting>,
    behind: Behind<'g>,
}

/// What patterns stand for.
#[derive(Clone, Copy)]
enum Behind<'g> {
    /// Each for a rule, all in force.
    Rules(&'g [LinearEntry]),
    /// Each for a version of a rule. Versions of one rule are neighbours, so the first of them is
    /// what packets find, and one of them is in force in this epoch.
    Versions(&'g [LinearEntry], Epoch),
    /// Each for a tuple: a packet has no rule in those before its first one.
    Tuples(&'g [TupleEntry], Epoch),
}

impl<'g> Patterned<'g> {
    /// Whether each pattern is a rule's.
    #[inline(always)]
    pub fn is_list(&self) -> bool {
        !matches!(self.behind, Behind::Tuples(..))
    }

    /// The rule that packets meet whose first pattern is `index`, or [`NO_PATTERN`], if that tells: Some(None) for no rule, None where it does not tell.
    #[inline(always)]
    pub fn decided(&self, index: u8) -> Option<Option<&'g Rule>> {
        match self.behind {
            Behind::Rules(_) | Behind::Versions(..) => Some(self.rule(index)),
            Behind::Tuples(..) if index == NO_PATTERN => Some(None),
            Behind::Tuples(tuples, epoch) => {
                let at = usize::from(index);
                let entry = tuples.get(at).filter(|entry| entry.single)?;
                let rule = entry.only(epoch);
                let is_best = rule.is_some_and(|rule| rule.spec.priority >= entry.max_priority);
                (is_best || at + 1 == tuples.len()).then_some(rule)
            }
        }
    }

    /// The rule of a list's pattern `index`; None for [`NO_PATTERN`].
    #[inline(always)]
    pub fn rule(&self, index: u8) -> Option<&'g Rule> {
        match self.behind {
            Behind::Rules(entries) => Some(entries.get(usize::from(index))?.rule()),
            Behind::Versions(entries, epoch) => version(entries, index, epoch),
            Behind::Tuples(..) => None,
        }
    }

    /// Looks packets up whose first patterns are known, in those tuples where they may have a rule; `out` is empty before.
    #[inline(always)]
    pub fn look_up(
        &self,
        keys: &[HotWords],
        first: &[u8],
        out: &mut [Option<&'g Rule>],
        told: Option<&mut Told<'g>>,
    ) {
        let Behind::Tuples(tuples, epoch) = self.behind else {
            return;
        };
        let mut pending: SmallVec<[u8; LOOKUP_MAX]> = SmallVec::new();
        let mut answers = [None; GATES_MAX];
        let (mut asked, mut from) = (0_u32, tuples.len());
        for (index, gate) in first.iter().enumerate() {
            let at = usize::from(*gate);
            if at >= tuples.len().min(GATES_MAX) {
                continue;
            }
            if asked >> at & 1 == 0 {
                asked |= 1 << at;
                answers[at] = self.decided(*gate);
            }
            if let Some(rule) = answers[at] {
                out[index] = rule;
            } else {
                pending.push(index as u8);
                from = from.min(at);
            }
        }
        let tuples = &tuples[from..];
        lookup_exact(tuples, &mut pending, keys, epoch, out, told);
    }
}

/// Returns the version in force of the rule whose first version `index` names.
#[inline(never)] // only while a rule is being replaced
fn version(entries: &[LinearEntry], index: u8, epoch: Epoch) -> Option<&Rule> {
    let versions = versions(entries.get(usize::from(index)..)?);
    let mut rules = versions.iter().map(LinearEntry::rule);
    rules.find(|rule| rule.holds_in(epoch))
}

/// Returns the first entries that match the same at the same priority: the versions of one rule.
fn versions(entries: &[LinearEntry]) -> &[LinearEntry] {
    let Some(first) = entries.first() else {
        return entries;
    };
    let same = entries
        .iter()
        .take_while(|entry| entry.is_version_of(first));
    &entries[..same.count()]
}

/// Returns whether each rule has a version in force.
#[inline(never)] // only while rules change
fn has_versions(mut entries: &[LinearEntry], epoch: Epoch) -> bool {
    while !entries.is_empty() {
        let (those, others) = entries.split_at(versions(entries).len());
        if !those.iter().any(|entry| entry.rule().holds_in(epoch)) {
            return false;
        }
        entries = others;
    }
    true
}

/// What becomes of a burst's packets, as lookups say that know it before they find the rules: what a switch's tables call a verdict. By kind of table.
pub(crate) enum VerdictsBy<'g, 'n> {
    Routes(Routes<'g, 'n>),
    OneWord(ExactMatches<'g, 'n, 1, 4>),
    TwoWords(ExactMatches<'g, 'n, 2, 2>),
}

/// What all of these tell, of the packets whose keys they have been looked up by.
pub(crate) trait Verdicts<'g> {
    /// Whether two packets, of which these are the numbers and the keys, have met different rules.
    fn differ<K: Words>(&self, one: (usize, &K), other: (usize, &K)) -> bool;

    /// The verdict of the rule that packet `index` has met, where it is known. It cannot be where the rule does not hold in the guard's epoch.
    fn verdict<K: Words>(&self, index: usize, key: &K) -> Option<Verdict<'g>>;

    /// Says what is to be done to packets of these numbers by their verdicts, up to the first without one, or to [`STEP`](super::STEP) of them. Returns how many these are. `verdict` is
    /// [`Verdicts::verdict`] of such a packet.
    #[inline(always)]
    fn deeds<'d>(
        &self,
        those: Range<usize>,
        verdict: impl Fn(usize) -> Option<Verdict<'g>>,
        counters: WorkerCounters<'d>,
        deeds: &mut Deeds<'d>,
    ) -> usize
    where
        'g: 'd,
    {
        deeds.fill(counters, those.len(), |at| verdict(those.start + at))
    }

    /// The rules of packets from number `from` on, whatever their verdicts.
    fn resolve<K: Words>(
        &self,
        from: usize,
        keys: &[K],
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        told: &mut Told<'g>,
    );
}

/// Packets' next hops in a table of prefixes.
pub(crate) struct Routes<'g, 'n> {
    shape: &'g PrefixesShape,
    next_hops: NextHops<'g, 'n>,
}

impl PrefixesShape {
    /// Apart, so that what its loops need stays in registers.
    #[inline(never)]
    fn next_hops<'g, 'n, K: Words>(
        &'g self,
        keys: &[K],
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> NextHops<'g, 'n> {
        match K::hot(keys) {
            Some(hot) => self.trie.next_hops_of_hot(hot, numbers),
            None => (self.trie).next_hops(&|index| &keys[index], keys.len(), numbers),
        }
    }
}

impl<'g> Verdicts<'g> for Routes<'g, '_> {
    #[inline(always)]
    fn differ<K: Words>(&self, (one, _): (usize, &K), (other, _): (usize, &K)) -> bool {
        self.next_hops.differ(one, other)
    }

    #[inline(always)]
    fn verdict<K: Words>(&self, index: usize, _: &K) -> Option<Verdict<'g>> {
        self.next_hops.verdict(index)
    }

    #[inline(always)]
    fn deeds<'d>(
        &self,
        those: Range<usize>,
        _: impl Fn(usize) -> Option<Verdict<'g>>,
        counters: WorkerCounters<'d>,
        deeds: &mut Deeds<'d>,
    ) -> usize
    where
        'g: 'd,
    {
        self.next_hops.deeds(those, counters, deeds)
    }

    #[inline(never)] // most bursts' packets need only their verdicts
    fn resolve<K: Words>(
        &self,
        from: usize,
        keys: &[K],
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        told: &mut Told<'g>,
    ) {
        let key = |index: usize| &keys[index];
        (self.shape).resolve(&self.next_hops, from, &key, epoch, out, Some(told));
    }
}

/// Packets in a table of exact matches.
pub(crate) struct ExactMatches<'g, 'n, const N: usize, const SLOTS: usize> {
    tuples: &'g [TupleEntry],
    search: Search<'g, 'n, N, SLOTS>,
}

impl<'g, const N: usize, const SLOTS: usize> Verdicts<'g> for ExactMatches<'g, '_, N, SLOTS> {
    #[inline(always)]
    fn differ<K: Words>(&self, one: (usize, &K), other: (usize, &K)) -> bool {
        self.search.differ(one, other)
    }

    #[inline(always)]
    fn verdict<K: Words>(&self, index: usize, key: &K) -> Option<Verdict<'g>> {
        self.search.verdict(index, key)
    }

    #[inline(never)] // as above
    fn resolve<K: Words>(
        &self,
        from: usize,
        keys: &[K],
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        told: &mut Told<'g>,
    ) {
        let mut pending = (from as u8..keys.len() as u8).collect();
        self.search.resolve(&mut pending, keys, out, told);
        lookup_pending(self.tuples, &mut pending, &|index| &keys[index], epoch, out);
    }
}

impl Words for HotWords {
    const AT_HAND: u8 = packet::parse::HOT_WORDS as u8;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        // Only asked by shapes that read nothing else.
        self.words[usize::from(index)]
    }

    #[inline(always)]
    fn hot(keys: &[HotWords]) -> Option<&[HotWords]> {
        Some(keys)
    }
}

impl Bridge {
    /// What `table` looks at. Ask before [`Bridge::lookup_hot`], which answers only what may be asked of it.
    #[inline(always)]
    pub fn reads(&self, table: u8, guard: &Guard<'_>) -> Reads {
        self.published(table, guard)
            .map_or(Reads::Port, |published| published.reads)
    }

    /// `table` as patterns: its rules, where they are few, look at hot words only, and each has a version in the guard's epoch; or its tuples, where those are few and
    /// look at hot words only.
    #[inline(always)]
    pub(crate) fn patterned<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<Patterned<'g>> {
        let published = self.published(table, guard)?;
        let patterns = published.patterns.as_deref()?;
        let epoch = guard.epoch();
        let behind = match &published.shape {
            Shape::Linear(entries) => {
                if entries.iter().all(|entry| entry.rule().holds_in(epoch)) {
                    Behind::Rules(entries)
                } else {
                    has_versions(entries, epoch).then_some(Behind::Versions(entries, epoch))?
                }
            }
            Shape::Tuples(tuples) => Behind::Tuples(tuples, epoch),
            Shape::Trees(_) | Shape::Prefixes(_) | Shape::Conjunctive { .. } => return None,
        };
        Some(Patterned {
            patterns,
            sorting: published.sorting.as_deref(),
            behind,
        })
    }

    /// As [`Bridge::lookup_burst`], by keys that have no more than tables look at that read `most`; `out` is empty before. False, with `out` undefined, where the table looks at more
    /// by now.
    #[inline(always)]
    pub(crate) fn lookup_hot<'g, K: Words>(
        &self,
        table: u8,
        keys: &[K],
        most: Reads,
        guard: &'g Guard<'_>,
        out: &mut [Option<&'g Rule>],
        told: Option<&mut Told<'g>>,
    ) -> bool {
        debug_assert!(keys.len() <= LOOKUP_MAX && out.iter().all(Option::is_none));
        let out = &mut out[..keys.len()];
        let epoch = guard.epoch();
        match self.published(table, guard) {
            None => {}
            Some(Published { reads, .. }) if *reads > most => return false,
            Some(Published {
                shape: Shape::Linear(entries),
                ..
            }) => {
                for (found, key) in out.iter_mut().zip(keys) {
                    *found = linear(entries, key, epoch);
                }
            }
            Some(Published {
                shape: Shape::Tuples(tuples),
                ..
            }) => {
                let mut all = (0..out.len() as u8).collect();
                lookup_exact(tuples, &mut all, keys, epoch, out, told);
            }
            Some(Published {
                shape: Shape::Trees(shape),
                ..
            }) => lookup_trees(shape, &|index| &keys[index], epoch, out, told),
            Some(Published {
                shape: Shape::Prefixes(shape),
                ..
            }) => lookup_prefixes(shape, &|index| &keys[index], epoch, out, told),
            Some(Published {
                shape: Shape::Conjunctive { .. },
                ..
            }) => return false,
        }
        true
    }

    /// The verdicts of packets, where the table is one of prefixes or of exact matches that looks at no more than `most`, which keys have, and these come before what else it has.
    /// What they are found by goes to `numbers`, and stays there, so that it need not be copied.
    #[inline(always)]
    pub(crate) fn verdicts<'g, 'n, K: Words>(
        &self,
        table: u8,
        keys: &[K],
        most: Reads,
        guard: &'g Guard<'_>,
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> Option<VerdictsBy<'g, 'n>> {
        let published = self.published(table, guard)?;
        if published.reads > most {
            return None;
        }
        match &published.shape {
            Shape::Prefixes(shape) if shape.decides() => {
                let next_hops = shape.next_hops(keys, numbers);
                Some(VerdictsBy::Routes(Routes { shape, next_hops }))
            }
            Shape::Tuples(tuples) => {
                let exact = exact_of(tuples, guard.epoch())?;
                Some(match exact.search(keys, 0..keys.len(), numbers) {
                    ByWords::One(search) => VerdictsBy::OneWord(ExactMatches { tuples, search }),
                    ByWords::Two(search) => VerdictsBy::TwoWords(ExactMatches { tuples, search }),
                })
            }
            _ => None,
        }
    }

    /// The rule of `table` for one packet, if the table is one whose rules are compared one after the other; the lookup is counted then. None where it is another
    /// one, or has no rule for the packet.
    #[inline(always)]
    pub(crate) fn lookup_at_once<'g>(
        &self,
        table: u8,
        key: &FlowKey,
        guard: &'g Guard<'_>,
        counters: WorkerCounters<'_>,
    ) -> Option<&'g Rule> {
        let Shape::Linear(entries) = self.shape(table, guard)? else {
            return None;
        };
        let rule = linear(entries, key, guard.epoch())?;
        let counter = self.slots[usize::from(table)]
            .counter
            .load(Ordering::Relaxed);
        if counter != NO_COUNTER {
            counters.add(CounterId(counter), 1, 1, 0);
        }
        Some(rule)
    }

    /// Counts lookups that were made by [`Bridge::lookup_hot`] for this many packets.
    #[inline(always)]
    pub(crate) fn count_hot(&self, table: u8, lookups: usize, matched: usize, guard: &Guard<'_>) {
        self.count_lookups(table, lookups, matched, guard);
    }
}
