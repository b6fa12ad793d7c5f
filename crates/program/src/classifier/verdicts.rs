//! What becomes of a burst's packets, where classifiers know that without reading rules.

use super::exact::ExactMatches;
use super::trie::Routes;
use crate::actions::batch::Deeds;
use crate::burst::Words;
use crate::counters::WorkerCounters;
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::{Told, Verdict};
use std::ops::Range;

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
