//! Rules compared one after the other, by precedence.

use crate::burst::Words;
use crate::classifier::tuple::MaskedWord;
use crate::epoch::Epoch;
use crate::rule::Rule;
use smallvec::SmallVec;
use std::ptr::NonNull;

/// Most rules of a linear table.
pub const LINEAR_MAX: usize = 12;

/// One rule of a linear table, with its match beside it.
pub(crate) struct LinearEntry {
    pub(crate) words: SmallVec<[MaskedWord; 4]>,
    pub(crate) rule: NonNull<Rule>,
}

impl LinearEntry {
    /// The rule itself.
    #[inline(always)]
    pub(crate) fn rule(&self) -> &Rule {
        // SAFETY: a rule outlives every shape that names it, and this entry is part of one.
        unsafe { self.rule.as_ref() }
    }

    /// Returns whether both match the same at the same priority.
    pub(crate) fn is_version_of(&self, other: &LinearEntry) -> bool {
        self.words == other.words && self.rule().spec.priority == other.rule().spec.priority
    }
}

#[inline(always)]
pub(crate) fn linear<'g>(
    entries: &'g [LinearEntry],
    key: &impl Words,
    epoch: Epoch,
) -> Option<&'g Rule> {
    entries.iter().find_map(|entry| {
        let matches = entry
            .words
            .iter()
            .all(|word| key.word(word.word) & word.mask == word.value);
        if !matches {
            return None;
        }
        let rule = entry.rule();
        rule.holds_in(epoch).then_some(rule)
    })
}
