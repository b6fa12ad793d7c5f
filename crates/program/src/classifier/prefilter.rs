//! Compares packets with patterns while they are read.

use super::linear::{LinearEntry, version};
use super::tuple_space::{TupleEntry, lookup_exact};
use super::verdicts::Rules;
use crate::burst::LOOKUP_MAX;
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::{MatchedRule, Summaries};
use packet::mini_key::{MiniKey, NO_PATTERN, Pattern, RawPrefilter};
use smallvec::SmallVec;

/// Most tuples for which packets are compared with the tuples' agreed bits while they are read.
pub(crate) const GATES_MAX: usize = 8;

/// A table over mini keys whose packets are compared with patterns while they are read.
#[derive(Clone, Copy)]
pub(crate) struct Patterned<'g> {
    /// The patterns, in order of precedence.
    pub patterns: &'g [Pattern],
    /// The patterns compiled for comparison with packets in their buffers, where each is that of a
    /// rule that only sends or drops.
    pub prefilter: Option<&'g RawPrefilter>,
    pub(crate) behind: Behind<'g>,
}

/// What patterns stand for.
#[derive(Clone, Copy)]
pub(crate) enum Behind<'g> {
    /// One rule each, all in force.
    Rules(&'g [LinearEntry]),
    /// One version of a rule each. Versions of one rule are neighbours, so packets match the first
    /// of them, and one of them is in force in this epoch.
    Versions(&'g [LinearEntry], Epoch),
    /// One tuple each: a packet has no rule in those before its first match.
    Tuples(&'g [TupleEntry], Epoch),
}

impl<'g> Patterned<'g> {
    /// Returns whether each pattern is that of a rule.
    #[inline(always)]
    pub fn is_list(&self) -> bool {
        !matches!(self.behind, Behind::Tuples(..))
    }

    /// Returns the rule of packets whose first pattern is `index` or [`NO_PATTERN`], if that
    /// determines it: Some(None) for no rule, None where it does not.
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

    /// Returns the rule of a list's pattern `index`; None for [`NO_PATTERN`].
    #[inline(always)]
    pub fn rule(&self, index: u8) -> Option<&'g Rule> {
        match self.behind {
            Behind::Rules(entries) => Some(entries.get(usize::from(index))?.rule()),
            Behind::Versions(entries, epoch) => version(entries, index, epoch),
            Behind::Tuples(..) => None,
        }
    }

    /// Looks up packets whose first patterns are known, in those tuples where they may have a rule;
    /// `out` must be None for all.
    #[inline(always)]
    pub fn look_up(
        &self,
        keys: &[MiniKey],
        first: &[u8],
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
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
        lookup_exact(tuples, &mut pending, keys, epoch, out, summaries);
    }
}

/// The rules of packets that have been compared with a list's patterns.
pub(crate) struct PatternRules<'g, 'p> {
    pub list: Patterned<'g>,
    /// Each packet's first pattern.
    pub first: &'p [u8],
}

impl<'g> Rules<'g> for PatternRules<'g, '_> {
    #[inline(always)]
    fn rule(&self, index: usize) -> Option<MatchedRule<'g>> {
        self.list.rule(self.first[index]).map(MatchedRule::of)
    }

    #[inline(always)]
    fn same(&self, one: usize, other: usize) -> bool {
        self.first[one] == self.first[other]
    }
}
