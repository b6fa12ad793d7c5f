//! Indexes that find the rules of a non-strict command without looking at every rule of the table.
//!
//! A command with exact fields or a cookie selects few rules, but their matches may look at more
//! than the command's match, so [`Store::find`] cannot find them. Commands have a *shape*: the bits
//! that their match looks at, with or without the cookie. When a shape is used on a large table for
//! the second time, the table's rules that look at all of these bits are put into a hash table
//! keyed by just these bits, which is kept while it is used. A table keeps a few shapes. For a very
//! large table the index is built in slices, while the command that asked for it scans the table.

use crate::state::criteria::{Criteria, INTERNAL};
use crate::state::overlap::Census;
use crate::state::store::{Cursor, Rule, RuleId, Store};
use openflow::flow::TABLE_ALL;
use packet::Match;
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap, hash_map};
use std::hash::{BuildHasher, RandomState};

/// Tables with fewer rules are simply scanned.
pub(crate) const SMALL: u32 = 256;
/// Largest table that is indexed at once; larger ones are indexed in slices, together with the scan
/// of the query that asks for the index.
const AT_ONCE: u32 = 16_384;
/// Maximum shapes per table that have an index; also the maximum remembered as seen once.
const SHAPES: usize = 4;

/// The bits looked at, by word.
pub(crate) type Bits = SmallVec<[(u8, u64); 3]>;

pub(crate) fn bits_of(matching: &Match) -> Bits {
    let words = matching.words().iter();
    words.map(|entry| (entry.word, entry.mask)).collect()
}

/// The bits, and perhaps the cookie, that commands of one kind fix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    cookie: bool,
    bits: Bits,
}

impl Shape {
    /// Returns the shape of a non-strict command; None when it fixes nothing.
    fn of(criteria: &Criteria<'_>) -> Option<Shape> {
        let shape = Shape {
            cookie: criteria.cookie_mask == u64::MAX,
            bits: bits_of(criteria.matching),
        };
        (shape.cookie || !shape.bits.is_empty()).then_some(shape)
    }

    /// Hashes the values of a match and a cookie in the shape's bits; None when the match does not
    /// look at all of them.
    fn project(&self, random: &RandomState, matching: &Match, cookie: u64) -> Option<u64> {
        let words = matching.words();
        let mut values: SmallVec<[u64; 4]> = SmallVec::new();
        if self.cookie {
            values.push(cookie);
        }
        for (word, mask) in &self.bits {
            let entry = words.iter().find(|entry| entry.word == *word)?;
            if entry.mask & mask != *mask {
                return None;
            }
            values.push(entry.value & mask);
        }
        Some(random.hash_one(&values))
    }
}

/// Rules with the same values in some bits, oldest first, by serial and number. Nearly always there
/// is one; with one cookie for a whole table there can be very many, and removing one must not take
/// time in proportion to the others.
pub(crate) enum Alike {
    One(u64, RuleId),
    More(BTreeSet<(u64, RuleId)>),
}

impl Alike {
    /// Adds a rule.
    pub fn add(place: hash_map::Entry<'_, u64, Alike>, id: RuleId, rule: &Rule) {
        let new = (rule.serial, id);
        match place {
            hash_map::Entry::Vacant(place) => {
                place.insert(Alike::One(new.0, new.1));
            }
            hash_map::Entry::Occupied(mut place) => match place.get_mut() {
                Alike::More(rules) => {
                    rules.insert(new);
                }
                // The rule was added while the index was being built, and the scan has now reached
                // it.
                Alike::One(_, first) if *first == id => {}
                Alike::One(serial, first) => {
                    let rules = BTreeSet::from([(*serial, *first), new]);
                    place.insert(Alike::More(rules));
                }
            },
        }
    }

    /// Removes a rule.
    pub fn remove(all: &mut HashMap<u64, Alike>, hash: u64, id: RuleId, rule: &Rule) {
        let hash_map::Entry::Occupied(mut place) = all.entry(hash) else {
            return;
        };
        let empty = match place.get_mut() {
            Alike::One(_, only) => *only == id,
            Alike::More(rules) => {
                rules.remove(&(rule.serial, id));
                rules.is_empty()
            }
        };
        if empty {
            place.remove();
        }
    }

    /// Returns the rules, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = RuleId> {
        let (one, more) = match self {
            Alike::One(_, only) => (Some(*only), None),
            Alike::More(rules) => (None, Some(rules)),
        };
        let more = more.into_iter().flatten().map(|(_, id)| *id);
        one.into_iter().chain(more)
    }
}

/// The rules of a table by their values in a shape's bits.
struct Projection {
    shape: Shape,
    rules: HashMap<u64, Alike>,
    /// Changes of the table since the index was last used.
    unused: usize,
    /// How far the table has been scanned; None when the index is complete.
    making: Option<Cursor>,
}

/// The indexes of one table.
#[derive(Default)]
pub(crate) struct Indexes {
    projections: Vec<Projection>,
    seen: Vec<Shape>,
    /// For overlap checks.
    pub census: Option<Census>,
}

impl Indexes {
    /// Returns whether there is nothing to keep up to date.
    fn is_idle(&self) -> bool {
        self.projections.is_empty() && self.census.is_none()
    }

    /// Adds a rule.
    pub fn insert(&mut self, random: &RandomState, id: RuleId, rule: &Rule, rules: u32) {
        if self.is_idle() {
            return;
        }
        let bound = 2 * rules as usize + 10_000;
        self.projections.retain_mut(|projection| {
            projection.unused += 1;
            if let Some(hash) = projection
                .shape
                .project(random, rule.matching(), rule.cookie)
            {
                Alike::add(projection.rules.entry(hash), id, rule);
            }
            projection.unused <= bound
        });
        if let Some(census) = &mut self.census
            && census.insert(random, id, rule) > bound
        {
            self.census = None;
        }
    }

    /// Removes a rule.
    pub fn remove(&mut self, random: &RandomState, id: RuleId, rule: &Rule) {
        for projection in &mut self.projections {
            let hash = projection
                .shape
                .project(random, rule.matching(), rule.cookie);
            if let Some(hash) = hash {
                Alike::remove(&mut projection.rules, hash, id, rule);
            }
        }
        if let Some(census) = &mut self.census {
            census.remove(random, id, rule);
        }
    }

    fn find(&self, shape: &Shape) -> Option<&Projection> {
        self.projections
            .iter()
            .find(|projection| projection.shape == *shape && projection.making.is_none())
    }
}

impl Store {
    /// Prepares for queries of a shape: at the second one, a large table gets an index for it.
    fn prepare(&mut self, table: u8, shape: &Shape) {
        if self.table_len(table).0 < SMALL {
            return;
        }
        let Some(indexes) = self.indexes_mut(table) else {
            return;
        };
        if let Some(known) = indexes
            .projections
            .iter()
            .position(|projection| projection.shape == *shape)
        {
            // Ordered by last use, the most recent at the end.
            let mut projection = indexes.projections.remove(known);
            projection.unused = 0;
            indexes.projections.push(projection);
            return;
        }
        let Some(seen) = indexes.seen.iter().position(|other| other == shape) else {
            if indexes.seen.len() == SHAPES {
                indexes.seen.remove(0);
            }
            indexes.seen.push(shape.clone());
            return;
        };
        indexes.seen.remove(seen);
        let count = self.table_len(table).0;
        // Reserve the full size: growing would move all entries at once.
        let rules = HashMap::with_capacity(if count > AT_ONCE { count as usize } else { 0 });
        let making = Some(self.cursor(table));
        if let Some(indexes) = self.indexes_mut(table) {
            if indexes.projections.len() == SHAPES {
                indexes.projections.remove(0);
            }
            indexes.projections.push(Projection {
                shape: shape.clone(),
                rules,
                unused: 0,
                making,
            });
        }
        if count <= AT_ONCE {
            self.go_on_indexing(table, shape, usize::MAX);
        }
    }

    /// Scans up to `budget` more rules for an unfinished index of this shape.
    fn go_on_indexing(&mut self, table: u8, shape: &Shape, budget: usize) {
        let Some(indexes) = self.indexes_mut(table) else {
            return;
        };
        let found = indexes
            .projections
            .iter()
            .position(|projection| projection.shape == *shape && projection.making.is_some());
        let Some(at) = found else {
            return;
        };
        let mut projection = indexes.projections.remove(at);
        if let Some(cursor) = projection.making.take() {
            let mut ended = false;
            for _ in 0..budget {
                let Some((id, rule)) = self.advance(&cursor) else {
                    ended = true;
                    break;
                };
                if let Some(hash) = shape.project(self.random(), rule.matching(), rule.cookie) {
                    Alike::add(projection.rules.entry(hash), id, rule);
                }
            }
            if !ended {
                projection.making = Some(cursor);
            }
        }
        if let Some(indexes) = self.indexes_mut(table) {
            indexes.projections.insert(at, projection);
        }
    }

    /// Returns candidates that include all rules selected by a query of this shape, oldest first;
    /// None when there is no complete index.
    fn candidates(&self, table: u8, shape: &Shape, criteria: &Criteria<'_>) -> Option<Vec<RuleId>> {
        let projection = self.indexes(table)?.find(shape)?;
        let hash = shape.project(self.random(), criteria.matching, criteria.cookie)?;
        let found = projection.rules.get(&hash);
        Some(found.into_iter().flat_map(Alike::iter).collect())
    }
}

impl Store {
    /// Prepares for a non-strict command or a query.
    pub(crate) fn prepare_for(&mut self, criteria: &Criteria<'_>) {
        if criteria.strict.is_some() {
            return;
        }
        let Some(shape) = Shape::of(criteria) else {
            return;
        };
        match criteria.table {
            TABLE_ALL => (0..INTERNAL).for_each(|table| self.prepare(table, &shape)),
            table => self.prepare(table, &shape),
        }
    }

    /// Continues an unfinished index for queries like this one, if there is one.
    pub(crate) fn index_more(&mut self, table: u8, criteria: &Criteria<'_>, budget: usize) {
        if let Some(shape) = Shape::of(criteria) {
            self.go_on_indexing(table, &shape, budget);
        }
    }

    /// Returns candidates that include all selected rules of a table, oldest first; None when the
    /// whole table must be scanned.
    pub(crate) fn indexed(&self, table: u8, criteria: &Criteria<'_>) -> Option<Vec<RuleId>> {
        let shape = Shape::of(criteria)?;
        self.candidates(table, &shape, criteria)
    }
}
