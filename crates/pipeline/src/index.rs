//! Ways to the rules that a non-strict command means, without looking at every rule of the table.
//!
//! A command with exact fields or a cookie means few rules, but which ones its match does not say: theirs may look at more. So when commands of one
//! shape (the same bits looked at, with or without the cookie) come again to a large table, a hash over just these bits is made of the rules that
//! look at all of them, and kept while it is used. A table keeps a few such shapes.
//!
//! A check for overlaps is served by a count of the rules by the bits they look at: a rule whose bits are all among those of the new one overlaps it
//! exactly when it is the new one's match cut down to them, which a look-up tells. Only where rules look at other bits, all must be compared.

use crate::Pipeline;
use crate::flow_mod::{Criteria, INTERNAL};
use crate::store::{Rule, RuleId, Store};
use openflow::flow::TABLE_ALL;
use packet::Match;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque, hash_map};
use std::hash::{BuildHasher, RandomState};

/// Rules below which a table is simply looked through.
const SMALL: u32 = 256;
/// Shapes that one table keeps, and remembers to have seen once.
const SHAPES: usize = 4;

/// The bits looked at, word by word.
type Bits = SmallVec<[(u8, u64); 3]>;

fn bits_of(matching: &Match) -> Bits {
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

    /// What a match and a cookie hold in the shape's bits; None when the match does not look at all of them.
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

/// Rules that hold the same in a shape's bits, oldest first. Nearly always it is one; where it is a whole table (one cookie for all), it must not cost
/// the length of the list to let the oldest go, which is what a command for all of them does again and again.
enum Alike {
    One(RuleId),
    More(VecDeque<RuleId>),
}

impl Alike {
    /// Takes up a rule as the youngest.
    fn add(place: hash_map::Entry<'_, u64, Alike>, id: RuleId) {
        match place {
            hash_map::Entry::Vacant(place) => {
                place.insert(Alike::One(id));
            }
            hash_map::Entry::Occupied(mut place) => match place.get_mut() {
                Alike::More(rules) => rules.push_back(id),
                Alike::One(first) => {
                    let rules = VecDeque::from([*first, id]);
                    place.insert(Alike::More(rules));
                }
            },
        }
    }

    /// Lets a rule go; whether none is left.
    fn remove(&mut self, id: RuleId) -> bool {
        match self {
            Alike::One(only) => *only == id,
            Alike::More(rules) => {
                if let Some(at) = rules.iter().position(|other| *other == id) {
                    rules.remove(at);
                }
                rules.is_empty()
            }
        }
    }

    fn to_vec(&self) -> Vec<RuleId> {
        match self {
            Alike::One(only) => vec![*only],
            Alike::More(rules) => rules.iter().copied().collect(),
        }
    }
}

/// The rules of a table by what they hold in a shape's bits.
struct Projection {
    shape: Shape,
    rules: HashMap<u64, Alike>,
    /// Changes of the table since it was of use.
    unused: usize,
}

/// What one table keeps.
#[derive(Default)]
pub(crate) struct Indexes {
    projections: Vec<Projection>,
    seen: Vec<Shape>,
    /// Rules by the bits they look at, and changes since this was of use.
    census: Option<(HashMap<Bits, u32>, usize)>,
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
                .project(random, &rule.matching, rule.cookie)
            {
                Alike::add(projection.rules.entry(hash), id);
            }
            projection.unused <= bound
        });
        if let Some((census, unused)) = &mut self.census {
            *census.entry(bits_of(&rule.matching)).or_default() += 1;
            *unused += 1;
            if *unused > bound {
                self.census = None;
            }
        }
    }

    /// Lets a rule go.
    pub fn remove(&mut self, random: &RandomState, id: RuleId, rule: &Rule) {
        for projection in &mut self.projections {
            let hash = projection
                .shape
                .project(random, &rule.matching, rule.cookie);
            if let Some(hash) = hash
                && let Some(rules) = projection.rules.get_mut(&hash)
                && rules.remove(id)
            {
                projection.rules.remove(&hash);
            }
        }
        if let Some((census, _)) = &mut self.census {
            let bits = bits_of(&rule.matching);
            if let Some(count) = census.get_mut(&bits) {
                *count -= 1;
                if *count == 0 {
                    census.remove(&bits);
                }
            }
        }
    }

    fn find(&self, shape: &Shape) -> Option<&Projection> {
        self.projections
            .iter()
            .find(|projection| projection.shape == *shape)
    }
}

impl Store {
    /// Makes ready for questions of a shape: at the second of them a large table gets an index for it.
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
        let mut rules = HashMap::new();
        for (id, rule) in self.table(table) {
            if let Some(hash) = shape.project(self.random(), &rule.matching, rule.cookie) {
                Alike::add(rules.entry(hash), id);
            }
        }
        if let Some(indexes) = self.indexes_mut(table) {
            if indexes.projections.len() == SHAPES {
                indexes.projections.remove(0);
            }
            indexes.projections.push(Projection {
                shape: shape.clone(),
                rules,
                unused: 0,
            });
        }
    }

    /// Rules among which are all that a question of this shape means, oldest first; None when no index knows.
    fn candidates(&self, table: u8, shape: &Shape, criteria: &Criteria<'_>) -> Option<Vec<RuleId>> {
        let projection = self.indexes(table)?.find(shape)?;
        let hash = shape.project(self.random(), criteria.matching, criteria.cookie)?;
        Some(
            projection
                .rules
                .get(&hash)
                .map_or_else(Vec::new, Alike::to_vec),
        )
    }

    /// The kinds of bits that a table's rules look at, counted.
    fn census(&mut self, table: u8) -> Option<&HashMap<Bits, u32>> {
        if self.indexes(table)?.census.is_none() {
            let mut census: HashMap<Bits, u32> = HashMap::new();
            for (_, rule) in self.table(table) {
                *census.entry(bits_of(&rule.matching)).or_default() += 1;
            }
            self.indexes_mut(table)?.census = Some((census, 0));
        }
        let (census, unused) = self.indexes_mut(table)?.census.as_mut()?;
        *unused = 0;
        Some(census)
    }
}

impl Pipeline {
    /// Makes ready for a non-strict command or a question.
    pub(crate) fn prepare(&mut self, criteria: &Criteria<'_>) {
        if criteria.strict.is_some() {
            return;
        }
        let Some(shape) = Shape::of(criteria) else {
            return;
        };
        match criteria.table {
            TABLE_ALL => (0..INTERNAL).for_each(|table| self.store.prepare(table, &shape)),
            table => self.store.prepare(table, &shape),
        }
    }

    /// Rules of a table among which are all that are meant, oldest first; None when they must be sought among all.
    pub(crate) fn indexed(&self, table: u8, criteria: &Criteria<'_>) -> Option<Vec<RuleId>> {
        let shape = Shape::of(criteria)?;
        self.store.candidates(table, &shape, criteria)
    }

    /// Whether a rule of this match and priority would overlap another.
    pub(crate) fn overlaps(&mut self, table: u8, priority: u32, matching: &Match) -> bool {
        let compare = |store: &Store| {
            store
                .table(table)
                .any(|(_, rule)| rule.priority == priority && rule.matching.overlaps(matching))
        };
        if self.store.table_len(table).0 < SMALL {
            return compare(&self.store);
        }
        let Some(census) = self.store.census(table) else {
            return compare(&self.store);
        };
        let mut cuts = Vec::with_capacity(census.len());
        for bits in census.keys() {
            match cut_down(matching, bits) {
                Some(cut) => cuts.push(cut),
                None => return compare(&self.store),
            }
        }
        cuts.iter()
            .any(|cut| self.store.find(table, priority, cut).is_some())
    }
}

/// A match without the bits that are not in `bits`; None when it does not look at all of them.
fn cut_down(matching: &Match, bits: &Bits) -> Option<Match> {
    let mut cut = Match::any();
    for (word, mask) in bits {
        let words = matching.words();
        let entry = words.iter().find(|entry| entry.word == *word)?;
        if entry.mask & mask != *mask {
            return None;
        }
        cut.set_word((*word).into(), entry.value, *mask);
    }
    Some(cut)
}
