//! Ways to the rules that a non-strict command means, without looking at every rule of the table.
//!
//! A command with exact fields or a cookie means few rules, but which ones its match does not say:
//! theirs may look at more. So when commands of one shape (the same bits looked at, with or without
//! the cookie) come again to a large table, a hash over just these bits is made of the rules that
//! look at all of them, and kept while it is used. A table keeps a few such shapes. Of a very large
//! table the index is made in slices, while the command that asks for it looks through the table.

use crate::state::criteria::{Criteria, INTERNAL};
use crate::state::overlap::Census;
use crate::state::store::{Cursor, Rule, RuleId, Store};
use openflow::flow::TABLE_ALL;
use packet::Match;
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap, hash_map};
use std::hash::{BuildHasher, RandomState};

/// Rules below which a table is simply looked through.
pub(crate) const SMALL: u32 = 256;
/// Rules of which an index is made at once; of more it is made in slices, with those of the
/// question that asks for it.
const AT_ONCE: u32 = 16_384;
/// Shapes that one table keeps, and remembers to have seen once.
const SHAPES: usize = 4;

/// The bits looked at, word by word.
pub(crate) type Bits = SmallVec<[(u8, u64); 3]>;

pub(crate) fn bits_of(matching: &Match) -> Bits {
    let words = matching.words().iter();
    words.map(|entry| (entry.word, entry.mask)).collect()
}

/// What commands of one kind fix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    cookie: bool,
    bits: Bits,
}

impl Shape {
    /// The shape of a non-strict command; None when it fixes nothing.
    fn of(criteria: &Criteria<'_>) -> Option<Shape> {
        let shape = Shape {
            cookie: criteria.cookie_mask == u64::MAX,
            bits: bits_of(criteria.matching),
        };
        (shape.cookie || !shape.bits.is_empty()).then_some(shape)
    }

    /// What a match and a cookie hold in the shape's bits; None when the match does not look at all
    /// of them.
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

/// Rules that hold the same in some bits, oldest first, by serial and number. Nearly always it is
/// one; where it is a whole table (one cookie for all), it must not cost the length of the list to
/// let one of them go.
pub(crate) enum Alike {
    One(u64, RuleId),
    More(BTreeSet<(u64, RuleId)>),
}

impl Alike {
    /// Takes up a rule.
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
                // It came while the index was being made, and is met again.
                Alike::One(_, first) if *first == id => {}
                Alike::One(serial, first) => {
                    let rules = BTreeSet::from([(*serial, *first), new]);
                    place.insert(Alike::More(rules));
                }
            },
        }
    }

    /// Lets a rule go.
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

    /// The rules, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = RuleId> {
        let (one, more) = match self {
            Alike::One(_, only) => (Some(*only), None),
            Alike::More(rules) => (None, Some(rules)),
        };
        let more = more.into_iter().flatten().map(|(_, id)| *id);
        one.into_iter().chain(more)
    }
}

/// The rules of a table by what they hold in a shape's bits.
struct Projection {
    shape: Shape,
    rules: HashMap<u64, Alike>,
    /// Changes of the table since it was of use.
    unused: usize,
    /// How far the table has been looked through; None when all of its rules are here.
    making: Option<Cursor>,
}

/// What one table keeps.
#[derive(Default)]
pub(crate) struct Indexes {
    projections: Vec<Projection>,
    seen: Vec<Shape>,
    /// For checks for overlaps.
    pub census: Option<Census>,
}

impl Indexes {
    /// Whether there is anything to keep up to date.
    fn is_idle(&self) -> bool {
        self.projections.is_empty() && self.census.is_none()
    }

    /// Takes up a rule.
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

    /// Lets a rule go.
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
    /// Makes ready for questions of a shape: at the second of them a large table gets an index for
    /// it.
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
            // The last one used stands last.
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
        // Where it grows it would be moved, at once.
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

    /// Looks at up to `budget` more rules for an index of this shape that is being made.
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

    /// Rules among which are all that a question of this shape means, oldest first; None when no
    /// index knows.
    fn candidates(&self, table: u8, shape: &Shape, criteria: &Criteria<'_>) -> Option<Vec<RuleId>> {
        let projection = self.indexes(table)?.find(shape)?;
        let hash = shape.project(self.random(), criteria.matching, criteria.cookie)?;
        let found = projection.rules.get(&hash);
        Some(found.into_iter().flat_map(Alike::iter).collect())
    }
}

impl Store {
    /// Makes ready for a non-strict command or a question.
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

    /// Goes on with an index for questions like this one, where one is being made.
    pub(crate) fn index_more(&mut self, table: u8, criteria: &Criteria<'_>, budget: usize) {
        if let Some(shape) = Shape::of(criteria) {
            self.go_on_indexing(table, &shape, budget);
        }
    }

    /// Rules of a table among which are all that are meant, oldest first; None when they must be
    /// sought among all.
    pub(crate) fn indexed(&self, table: u8, criteria: &Criteria<'_>) -> Option<Vec<RuleId>> {
        let shape = Shape::of(criteria)?;
        self.candidates(table, &shape, criteria)
    }
}
