//! Rules compared one after the other, by precedence.

use super::effort::Count;
use super::lanes::Found;
use super::mini_key::Reads;
use super::prefilter::Behind;
use super::tuple::MaskedWord;
use super::{Classify, Keys};
use crate::actions::learn::Learn;
use crate::burst::{LOOKUP_MAX, LaneSet, Members, Words};
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::Summaries;
use packet::FlowKey;
use packet::mini_key::{Pattern, RawPrefilter};
use smallvec::SmallVec;
use std::ptr::NonNull;

/// Most rules of a linear table.
pub const LINEAR_MAX: usize = 12;

/// A short list of rules, by precedence.
pub(crate) struct Linear(pub(crate) Box<[LinearEntry]>);

/// One rule of a linear table, with its match beside it.
pub(crate) struct LinearEntry {
    pub(crate) words: SmallVec<[MaskedWord; 4]>,
    pub(crate) rule: NonNull<Rule>,
}

impl LinearEntry {
    /// Returns the rule.
    #[inline(always)]
    pub(crate) fn rule(&self) -> &Rule {
        // SAFETY: a rule outlives every classifier that names it, and this entry is part of one.
        unsafe { self.rule.as_ref() }
    }

    /// Returns whether both have the same match and priority.
    pub(crate) fn is_version_of(&self, other: &LinearEntry) -> bool {
        self.words == other.words && self.rule().spec.priority == other.rule().spec.priority
    }
}

impl Classify for Linear {
    fn reads(&self) -> Reads {
        let words = self.0.iter().flat_map(|entry| &entry.words);
        Reads::of(words.map(|word| (word.word, word.mask)))
    }

    #[inline(always)]
    fn look_up<'k, 'g, K: Words + 'k>(
        &'g self,
        keys: impl Keys<'k, K>,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        _: Option<&mut Summaries<'g>>,
    ) {
        for (index, found) in out.iter_mut().enumerate() {
            *found = linear(&self.0, keys.key(index), epoch);
        }
    }

    #[inline(always)]
    fn look_up_lanes<'g, K: Words>(
        &'g self,
        set: LaneSet,
        lanes: &[K; LOOKUP_MAX],
        epoch: Epoch,
        found: &mut Found<'g>,
    ) -> LaneSet {
        compare(&self.0, set, lanes, epoch, found)
    }

    fn find_exact<'g>(&'g self, learn: &Learn, key: &FlowKey, epoch: Epoch) -> Option<&'g Rule> {
        let priority = u32::from(learn.priority);
        self.0.iter().find_map(|entry| {
            let same = |(word, (at, mask)): (&MaskedWord, &(u8, u64))| {
                (word.word, word.mask) == (*at, *mask)
                    && key.words[usize::from(*at)] & mask == word.value
            };
            let same = entry.words.len() == learn.shape.len()
                && entry.words.iter().zip(&learn.shape).all(same);
            let rule = entry.rule();
            (same && rule.spec.priority == priority && rule.holds_in(epoch)).then_some(rule)
        })
    }

    fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count) {
        of_list(&self.0, key, epoch, count);
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn patterns(&self) -> Option<Box<[Pattern]>> {
        patterns(&self.0)
    }

    #[inline(always)]
    fn behind_patterns(&self, epoch: Epoch) -> Option<Behind<'_>> {
        let entries = &self.0;
        if entries.iter().all(|entry| entry.rule().holds_in(epoch)) {
            return Some(Behind::Rules(entries));
        }
        has_versions(entries, epoch).then_some(Behind::Versions(entries, epoch))
    }

    fn prefilter(&self, patterns: &[Pattern]) -> Option<Box<RawPrefilter>> {
        prefilter(&self.0, patterns)
    }

    #[inline(always)]
    fn look_up_at_once(&self, key: &FlowKey, epoch: Epoch) -> Option<&Rule> {
        linear(&self.0, key, epoch)
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

/// Compares rule by rule; returns the lanes that meet none.
#[inline(always)]
pub(crate) fn compare<'g, K: Words>(
    entries: &'g [LinearEntry],
    set: LaneSet,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> LaneSet {
    // For a single packet, stop at the first match.
    if set.len() == 1
        && let Some(lane) = set.first()
    {
        return match linear(entries, &lanes[lane], epoch) {
            Some(rule) => {
                found.push(Some(rule), set);
                LaneSet::EMPTY
            }
            None => set,
        };
    }
    let mut rest = set;
    for entry in entries {
        let met = match &entry.words[..] {
            [] => rest,
            words => {
                let words = words.iter();
                let words = words.map(|word| (word.word, word.mask, word.value));
                K::having(lanes, rest, words)
            }
        };
        if met.is_empty() {
            continue;
        }
        // SAFETY: the entry belongs to a classifier that is alive for 'g, and a rule outlives every
        // classifier that names it.
        let rule: &'g Rule = unsafe { entry.rule.as_ref() };
        if !rule.holds_in(epoch) {
            continue;
        }
        found.push(Some(rule), met);
        rest = rest.minus(met);
        if rest.is_empty() {
            break;
        }
    }
    rest
}

fn of_list(entries: &[LinearEntry], key: &FlowKey, epoch: Epoch, count: &mut Count) {
    for entry in entries {
        count.compares += 1;
        count.reads(entry);
        count.reads(&entry.words[..]);
        let has = |word: &MaskedWord| key.words[usize::from(word.word)] & word.mask == word.value;
        if entry.words.iter().all(has) {
            // SAFETY: as in `linear`: the entry belongs to a classifier that is alive, and a rule
            // outlives every classifier that names it.
            let rule = unsafe { entry.rule.as_ref() };
            count.reads_rule(rule);
            if rule.holds_in(epoch) {
                return;
            }
        }
    }
}

/// Compiles a short list's patterns for comparison with packets in their buffers, if callers need
/// only know which rule these meet.
pub(crate) fn prefilter(
    entries: &[LinearEntry],
    patterns: &[Pattern],
) -> Option<Box<RawPrefilter>> {
    let ends = entries.iter().all(|entry| entry.rule().only_ends());
    ends.then(|| RawPrefilter::new(patterns).map(Box::new))?
}

/// Returns a short list's matches as patterns over mini keys.
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

/// Returns the version in force of the rule whose first version is entry `index`.
#[inline(never)] // only while a rule is being replaced
pub(crate) fn version(entries: &[LinearEntry], index: u8, epoch: Epoch) -> Option<&Rule> {
    let versions = versions(entries.get(usize::from(index)..)?);
    let mut rules = versions.iter().map(LinearEntry::rule);
    rules.find(|rule| rule.holds_in(epoch))
}

/// Returns the first entries with the same match and priority: the versions of one rule.
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
