//! Lookups in the part of a key that is read first.
//!
//! A whole key has 512 bytes, and a burst's keys more than a first-level cache holds beside everything else. Most tables look at Ethernet, IPv4 and ports
//! only, which fit one cache line a packet ([`HotWords`]); some look at nothing but the ingress port, and one answer holds for the whole burst. What a
//! table reads is told when its shape is made ([`Reads`]), and the burst's way in (`walk::front`) goes by it.

#[cfg(test)]
mod tests;

use crate::actions::batch::Deeds;
use crate::burst::LOOKUP_MAX;
use crate::burst::Words;
use crate::classifier::exact::Search;
use crate::classifier::linear::{LINEAR_MAX, LinearEntry};
use crate::classifier::trie::NextHops;
use crate::classifier::tuple_space::{TupleEntry, lookup_exact, lookup_pending};
use crate::classifier::{PrefixesShape, Published, Shape};
use crate::counters::WorkerCounters;
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::{Told, Verdict};
use packet::WordSet;
pub(crate) use packet::hot::HotWords;
use packet::hot::{NO_PATTERN, Pattern, Sorting};
use packet::key::at;
use smallvec::SmallVec;
use std::ops::Range;

/// Most tuples whose agreed bits packets are compared with while they are read.
pub(crate) const GATES_MAX: usize = 8;

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
pub(crate) const PORT_MASK: u64 = {
    let mut bytes = [0_u8; 8];
    let mut index = 0;
    while index < 4 {
        bytes[at::IN_PORT % 8 + index] = 0xff;
        index += 1;
    }
    u64::from_ne_bytes(bytes)
};

impl Reads {
    pub(crate) fn of(words: impl Iterator<Item = (u8, u64)>) -> Reads {
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
pub(crate) fn sorting(entries: &[LinearEntry], patterns: &[Pattern]) -> Option<Box<Sorting>> {
    let ends = entries.iter().all(|entry| entry.rule().only_ends());
    ends.then(|| Sorting::new(patterns).map(Box::new))?
}

/// A short list's matches as patterns over the hot words.
pub(crate) fn patterns(entries: &[LinearEntry]) -> Option<Box<[Pattern]>> {
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
pub(crate) fn gates(tuples: &[TupleEntry]) -> Option<Box<[Pattern]>> {
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
    pub(crate) behind: Behind<'g>,
}

/// What patterns stand for.
#[derive(Clone, Copy)]
pub(crate) enum Behind<'g> {
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
pub(crate) fn version(entries: &[LinearEntry], index: u8, epoch: Epoch) -> Option<&Rule> {
    let versions = versions(entries.get(usize::from(index)..)?);
    let mut rules = versions.iter().map(LinearEntry::rule);
    rules.find(|rule| rule.holds_in(epoch))
}

/// Returns the first entries that match the same at the same priority: the versions of one rule.
pub(crate) fn versions(entries: &[LinearEntry]) -> &[LinearEntry] {
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
pub(crate) fn has_versions(mut entries: &[LinearEntry], epoch: Epoch) -> bool {
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
    pub(crate) shape: &'g PrefixesShape,
    pub(crate) next_hops: NextHops<'g, 'n>,
}

impl PrefixesShape {
    /// Apart, so that what its loops need stays in registers.
    #[inline(never)]
    pub(crate) fn next_hops<'g, 'n, K: Words>(
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
    pub(crate) tuples: &'g [TupleEntry],
    pub(crate) search: Search<'g, 'n, N, SLOTS>,
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
