//! Overlap checks (`OFPFF_CHECK_OVERLAP`, OpenFlow 1.3.5 section 6.4) without looking at every rule
//! of the table.
//!
//! Two rules of one priority overlap exactly when they agree in the bits that both look at. So a
//! table's rules are grouped by the bits they look at, their *kind*. Against each kind, a new rule
//! needs one question: does a rule of the kind have the same values in the bits that both have in
//! common? If these are all bits of the kind, the store's own hash answers. Otherwise a hash table
//! of the kind's rules keyed by the common bits does (a [`Cut`]), built when it is first needed and
//! kept while checks are made.
//!
//! A kind has a bounded number of cuts, and none is built while the table's cuts hold too many
//! rules; where a cut is missing, all rules are compared.

use crate::state::index::{Alike, Bits, SMALL, bits_of};
use crate::state::store::{Rule, RuleId, Store};
use packet::Match;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Maximum cuts of one kind.
const CUTS: usize = 16;
/// Maximum rules in all cuts of a table, some 100 MB; beyond it no cut is built.
const CUT_RULES: usize = 2 << 20;

/// The rules of a kind by priority and by their values in some of its bits.
struct Cut {
    bits: Bits,
    rules: HashMap<u64, Alike>,
}

/// The rules that look at the same bits.
#[derive(Default)]
struct Tuple {
    rules: usize,
    cuts: Vec<Cut>,
}

/// The kinds of a table's rules.
#[derive(Default)]
pub(crate) struct Census {
    kinds: HashMap<Bits, Tuple>,
    /// Rules added since the last check.
    unused: usize,
}

/// Returns the bits that are in both, in the order of their words.
fn in_common(some: &Bits, others: &Bits) -> Bits {
    let both = some.iter().filter_map(|(word, mask)| {
        let at = others.binary_search_by_key(word, |(word, _)| *word).ok()?;
        let common = mask & others[at].1;
        (common != 0).then_some((*word, common))
    });
    both.collect()
}

/// Hashes a priority and a match's values in these bits, all of which it looks at.
fn hash(random: &RandomState, bits: &Bits, priority: u32, matching: &Match) -> u64 {
    let mut words = matching.words().iter();
    let value = |(word, mask): &(u8, u64)| {
        let entry = words.find(|entry| entry.word == *word);
        entry.map_or(0, |entry| entry.value & mask)
    };
    let values: SmallVec<[u64; 4]> = bits.iter().map(value).collect();
    random.hash_one((priority, values))
}

impl Cut {
    fn add(&mut self, random: &RandomState, id: RuleId, rule: &Rule) {
        let hash = hash(random, &self.bits, rule.priority, rule.matching());
        Alike::add(self.rules.entry(hash), id, rule);
    }
}

impl Census {
    /// Adds a rule; returns how many have been added since the last check.
    pub fn insert(&mut self, random: &RandomState, id: RuleId, rule: &Rule) -> usize {
        let kind = self.kinds.entry(bits_of(rule.matching())).or_default();
        kind.rules += 1;
        kind.cuts
            .iter_mut()
            .for_each(|cut| cut.add(random, id, rule));
        self.unused += 1;
        self.unused
    }

    /// Removes a rule.
    pub fn remove(&mut self, random: &RandomState, id: RuleId, rule: &Rule) {
        let bits = bits_of(rule.matching());
        let Some(kind) = self.kinds.get_mut(&bits) else {
            return;
        };
        kind.rules -= 1;
        if kind.rules == 0 {
            self.kinds.remove(&bits);
            return;
        }
        for cut in &mut kind.cuts {
            let hash = hash(random, &cut.bits, rule.priority, rule.matching());
            Alike::remove(&mut cut.rules, hash, id, rule);
        }
    }

    /// Creates the missing cuts, still empty, that a check of these bits needs; returns the kinds
    /// that have got one.
    fn make_cuts(&mut self, bits: &Bits) -> Vec<Bits> {
        let mut held: usize = self
            .kinds
            .values()
            .map(|kind| kind.rules * kind.cuts.len())
            .sum();
        let mut made = Vec::new();
        for (of, kind) in &mut self.kinds {
            let common = in_common(of, bits);
            let known = common == *of || kind.cuts.iter().any(|cut| cut.bits == common);
            if known || kind.cuts.len() == CUTS || held + kind.rules > CUT_RULES {
                continue;
            }
            held += kind.rules;
            kind.cuts.push(Cut {
                bits: common,
                rules: HashMap::new(),
            });
            made.push(of.clone());
        }
        made
    }

    /// Returns whether a rule would overlap another; None if a cut is missing.
    fn overlaps(&self, store: &Store, table: u8, priority: u32, matching: &Match) -> Option<bool> {
        let bits = bits_of(matching);
        for (of, kind) in &self.kinds {
            let common = in_common(of, &bits);
            if common == *of {
                let whole = cut_down(matching, &common);
                if store.find(table, priority, &whole).is_some() {
                    return Some(true);
                }
                continue;
            }
            let cut = kind.cuts.iter().find(|cut| cut.bits == common)?;
            let hash = hash(store.random(), &common, priority, matching);
            // The candidates may include a few whose hash is equal by chance.
            let mut alike = cut.rules.get(&hash).into_iter().flat_map(Alike::iter);
            let same = |id: RuleId| {
                let rule = store.get(id);
                rule.is_some_and(|rule| {
                    rule.priority == priority && rule.matching().overlaps(matching)
                })
            };
            if alike.any(same) {
                return Some(true);
            }
        }
        Some(false)
    }
}

/// Returns a match reduced to these bits, all of which it looks at.
fn cut_down(matching: &Match, bits: &Bits) -> Match {
    let mut cut = Match::any();
    for (word, mask) in bits {
        let mut words = matching.words().iter();
        if let Some(entry) = words.find(|entry| entry.word == *word) {
            cut.set_word((*word).into(), entry.value, *mask);
        }
    }
    cut
}

impl Store {
    /// Prepares for checks of a table against rules that look at these bits.
    fn prepare_census(&mut self, table: u8, bits: &Bits) {
        let Some(indexes) = self.indexes_mut(table) else {
            return;
        };
        let mut census = indexes.census.take().unwrap_or_default();
        if census.kinds.is_empty() {
            for (id, rule) in self.table(table) {
                census.insert(self.random(), id, rule);
            }
            census.unused = 0;
        }
        let made = census.make_cuts(bits);
        if !made.is_empty() {
            for (id, rule) in self.table(table) {
                let of = bits_of(rule.matching());
                if made.contains(&of)
                    && let Some(cut) = census.kinds.get_mut(&of).and_then(|k| k.cuts.last_mut())
                {
                    cut.add(self.random(), id, rule);
                }
            }
        }
        if let Some(indexes) = self.indexes_mut(table) {
            indexes.census = Some(census);
        }
    }
}

impl Store {
    /// Returns whether a rule of this match and priority would overlap another.
    pub(crate) fn overlaps(&mut self, table: u8, priority: u32, matching: &Match) -> bool {
        if self.table_len(table).0 >= SMALL {
            if let Some(known) = self.ask_census(table, priority, matching) {
                return known;
            }
            self.prepare_census(table, &bits_of(matching));
            if let Some(known) = self.ask_census(table, priority, matching) {
                return known;
            }
        }
        let mut rules = self.table(table);
        rules.any(|(_, rule)| rule.priority == priority && rule.matching().overlaps(matching))
    }

    /// Returns the census's answer; None if the census is not ready for the question.
    fn ask_census(&mut self, table: u8, priority: u32, matching: &Match) -> Option<bool> {
        let census = self.indexes_mut(table)?.census.as_mut()?;
        census.unused = 0;
        let census = self.indexes(table)?.census.as_ref()?;
        census.overlaps(self, table, priority, matching)
    }
}
