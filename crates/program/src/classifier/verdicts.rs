//! Verdicts: what becomes of a burst's packets, where classifiers know that without reading rules.

use super::exact::ExactMatches;
use super::trie::Routes;
use crate::actions::batch::ActionBatch;
use crate::burst::{LOOKUP_MAX, Words};
use crate::counters::WorkerCounters;
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::{CountedVerdict, MatchedRule, Summaries};
use std::ops::Range;

/// Verdicts of a burst's packets, by kind of table.
pub(crate) enum VerdictsBy<'g, 'n> {
    Routes(Routes<'g, 'n>),
    OneWord(ExactMatches<'g, 'n, 1, 4>),
    TwoWords(ExactMatches<'g, 'n, 2, 2>),
}

/// A source of verdicts for the packets of a burst, by index. A packet's verdict is what its rule
/// does, where that is only to send it, perhaps after edits, and is known without reading the rule.
pub(crate) trait Verdicts<'g> {
    /// How often execution by verdicts is resumed after packets without one have been executed by
    /// their rules. Where more packets have none, resuming costs more than it saves.
    const RETURNS: usize = 4;

    /// Returns whether to execute `count` packets by verdicts, one after the other, and not as runs
    /// that have met one rule. Where rules are many, nearly all packets have met different ones.
    /// The first two may be of one flow by chance, so two others are compared as well. Packets of a
    /// single flow are faster as a run, and so is a burst of one packet.
    #[inline(always)]
    fn should_batch<K: Words>(&self, count: usize, key: impl Fn(usize) -> K) -> bool {
        let differ = |a, b| self.differ((a, &key(a)), (b, &key(b)));
        let middle = count / 2;
        count == 1 || count > 1 && differ(0, 1) || middle + 1 < count && differ(middle, middle + 1)
    }

    /// Returns whether two packets, given by index and key, have met different rules.
    fn differ<K: Words>(&self, one: (usize, &K), other: (usize, &K)) -> bool;

    /// Returns the verdict of packet `index`, where it has one. It has none where the rule may not
    /// hold in the guard's epoch.
    fn verdict<K: Words>(&self, index: usize, key: &K) -> Option<CountedVerdict<'g>>;

    /// Fills in the verdicts of these packets, up to the first without one, at most
    /// [`STEP`](crate::actions::batch::STEP). Returns how many were filled in. `verdict` is
    /// [`Verdicts::verdict`] of such a packet.
    #[inline(always)]
    fn batch<'d>(
        &self,
        those: Range<usize>,
        verdict: impl Fn(usize) -> Option<CountedVerdict<'g>>,
        counters: WorkerCounters<'d>,
        batch: &mut ActionBatch<'d>,
    ) -> usize
    where
        'g: 'd,
    {
        batch.fill(counters, those.len(), |at| verdict(those.start + at))
    }

    /// Returns the rules of packets from `from` on, whatever their verdicts; there are as many
    /// keys. `room` is memory for sources that have yet to find them.
    fn rules<'a, K: Words>(
        &'a self,
        from: usize,
        keys: &[K],
        epoch: Epoch,
        room: &'a mut FoundRules<'g>,
    ) -> &'a FoundRules<'g>;
}

/// The rules that packets have met.
pub(crate) trait Rules<'g> {
    /// Returns the rule of packet `index`, with its summary if it has one.
    fn rule(&self, index: usize) -> Option<MatchedRule<'g>>;

    /// Returns whether two packets have met the same rule.
    fn same(&self, one: usize, other: usize) -> bool;

    /// Prefetches what executing the rule of packet `index` reads beyond what its lookup has read.
    #[inline(always)]
    fn prefetch(&self, _index: usize, _counters: WorkerCounters<'_>) {}
}

/// Rules that a lookup has found, and summaries of those that it has not read.
pub(crate) struct FoundRules<'g> {
    pub found: [Option<&'g Rule>; LOOKUP_MAX],
    pub summaries: Summaries<'g>,
}

impl FoundRules<'_> {
    /// No rules.
    pub const EMPTY: Self = FoundRules {
        found: [None; LOOKUP_MAX],
        summaries: Summaries::NOTHING,
    };
}

impl<'g> Rules<'g> for FoundRules<'g> {
    #[inline(always)]
    fn rule(&self, index: usize) -> Option<MatchedRule<'g>> {
        self.found[index].map(|rule| self.summaries.of(index, rule))
    }

    #[inline(always)]
    fn same(&self, one: usize, other: usize) -> bool {
        let address = |index: usize| self.found[index].map(std::ptr::from_ref);
        address(one) == address(other)
    }

    /// Prefetches a rule's counter, and its edits where the rule has not been read.
    #[inline(always)]
    fn prefetch(&self, index: usize, counters: WorkerCounters<'_>) {
        if counters.are_many()
            && let Some(matched_rule) = self.rule(index)
        {
            counters.prefetch(matched_rule.counter());
            if let Some(edits) = matched_rule.edits() {
                edits.prefetch();
            }
        }
    }
}

impl<'g> Verdicts<'g> for FoundRules<'g> {
    const RETURNS: usize = 0;

    /// Compares only the first two: where rules are few, neighbours meet the same one.
    #[inline(always)]
    fn should_batch<K: Words>(&self, count: usize, _: impl Fn(usize) -> K) -> bool {
        match &self.found[..count] {
            [Some(first), Some(second), ..] => !std::ptr::eq(*first, *second),
            [Some(_)] => true,
            _ => false,
        }
    }

    #[inline(always)]
    fn differ<K: Words>(&self, (one, _): (usize, &K), (other, _): (usize, &K)) -> bool {
        !self.same(one, other)
    }

    #[inline(always)]
    fn verdict<K: Words>(&self, index: usize, _: &K) -> Option<CountedVerdict<'g>> {
        self.found[index].and_then(|rule| self.summaries.verdict(index, rule))
    }

    #[inline(always)]
    fn rules<'a, K: Words>(
        &'a self,
        _: usize,
        _: &[K],
        _: Epoch,
        _: &'a mut FoundRules<'g>,
    ) -> &'a FoundRules<'g> {
        self
    }
}
