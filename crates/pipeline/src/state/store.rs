//! The rules of a bridge, as OpenFlow sees them.
//!
//! Rules are in slots that never move; a slot's number identifies its rule while the rule exists. A
//! rule can be found by its number; by its table, match and priority (a hash, for adds and strict
//! commands); and by its table's list, in the order in which rules were added (for everything else:
//! non-strict commands, statistics, overlap checks). A rule that replaces another takes over its
//! position too.
//!
//! A match is the largest part of a rule, so it is stored once, in the rule's compiled form.

mod numbers;

use crate::state::behaviour::Behaviour;
use crate::state::index::Indexes;
use numbers::Numbers;
use openflow::flow::FlowFlags;
use packet::Match;
use packet::keyed::Keyed;
use program::counters::CounterId;
use program::table::RuleRef;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// A slot's number.
pub(crate) type RuleId = u32;

/// The number that means no rule.
const NONE: RuleId = RuleId::MAX;
/// Slots allocated at a time.
const CHUNK: usize = 1024;
/// Number of tables, the internal one included.
pub(crate) const TABLES: usize = 255;

/// A rule.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Its instructions, shared.
    pub behaviour: Arc<Behaviour>,
    pub cookie: u64,
    /// When it was added.
    pub created_ms: u64,
    /// When it was added or last modified: its hard timeout counts from here.
    pub modified_ms: u64,
    /// Where its idle timeout counts from until it has had a packet.
    pub idle_base_ms: u64,
    /// Its compiled form, which holds its match. A removed rule keeps it until the removal is
    /// published.
    pub handle: RuleRef,
    /// Counts its packets and bytes.
    pub counter: CounterId,
    pub priority: u32,
    /// The timer entry that is in force, 0 for none; see [`crate::state::timers`].
    pub timer: u32,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub importance: u16,
    pub flags: FlowFlags,
    pub table: u8,
    /// Serial numbers ascend in the order in which a table's rules were added.
    pub serial: u64,
    /// The pages of its addition and of its last change; see [`crate::queries::changes`].
    pub added_page: u32,
    pub changed_page: u32,
}

impl Rule {
    /// Returns its match.
    pub fn matching(&self) -> &Match {
        self.handle.matching()
    }

    /// Returns when it was added, last modified, or last learned again.
    pub fn refreshed_ms(&self) -> u64 {
        self.modified_ms.max(self.handle.learned_ms())
    }

    /// Returns whether what it does was decided after this time: by a packet that came later, or by
    /// a controller.
    pub fn changed_after(&self, ms: u64) -> bool {
        match self.handle.is_learned() {
            true => self.handle.learned_ms() > ms,
            false => self.modified_ms > ms,
        }
    }

    /// Returns whether it is invisible to OpenFlow.
    pub fn is_hidden(&self) -> bool {
        self.priority > u32::from(u16::MAX)
    }
}

#[derive(Debug)]
struct Entry {
    rule: Rule,
    /// Neighbours in the table's list.
    previous: RuleId,
    next: RuleId,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: RuleId,
    last: RuleId,
    rules: u32,
    hidden: u32,
}

/// All rules.
pub(crate) struct Store {
    chunks: Vec<Vec<Option<Entry>>>,
    free: Vec<RuleId>,
    lists: Box<[List]>,
    /// Numbers of rules by table, match and priority.
    numbers: Numbers,
    /// Makes the hashes of `numbers`, with a random key, since peers choose what is hashed.
    keyed: Keyed,
    random: RandomState,
    count: usize,
    /// The last serial number given.
    serial: u64,
    /// By table: see [`crate::state::index`].
    indexes: Box<[Indexes]>,
    /// Positions of the dumps in progress.
    cursors: Vec<Weak<AtomicU32>>,
    /// The rules that use a group.
    group_users: HashMap<u32, BTreeSet<RuleId>>,
}

/// A position in a table's list: the next rule's number. When that rule is removed, the store moves
/// the cursor on.
#[derive(Debug)]
pub(crate) struct Cursor(Arc<AtomicU32>);

impl Default for Store {
    fn default() -> Self {
        Store {
            chunks: Vec::new(),
            free: Vec::new(),
            lists: vec![
                List {
                    first: NONE,
                    last: NONE,
                    rules: 0,
                    hidden: 0
                };
                TABLES
            ]
            .into(),
            numbers: Numbers::default(),
            keyed: Keyed::default(),
            random: RandomState::new(),
            count: 0,
            serial: 0,
            indexes: (0..TABLES).map(|_| Indexes::default()).collect(),
            cursors: Vec::new(),
            group_users: HashMap::new(),
        }
    }
}

impl Store {
    fn entry(&self, id: RuleId) -> Option<&Entry> {
        self.chunks
            .get(id as usize / CHUNK)?
            .get(id as usize % CHUNK)?
            .as_ref()
    }

    fn entry_mut(&mut self, id: RuleId) -> Option<&mut Entry> {
        self.chunks
            .get_mut(id as usize / CHUNK)?
            .get_mut(id as usize % CHUNK)?
            .as_mut()
    }

    fn hash(&self, table: u8, priority: u32, matching: &Match) -> u64 {
        let mut hasher = self.keyed.build_hasher();
        hasher.write_u64(u64::from(table) << 32 | u64::from(priority));
        for entry in matching.words() {
            hasher.write_u64(entry.value);
            hasher.write_u64(entry.mask.rotate_left(entry.word.into()));
        }
        hasher.finish()
    }

    /// Returns the rule of this number; None if there is none.
    pub fn get(&self, id: RuleId) -> Option<&Rule> {
        self.entry(id).map(|entry| &entry.rule)
    }

    /// Returns the rule of this number, to change it, but not its table, match or priority.
    pub fn get_mut(&mut self, id: RuleId) -> Option<&mut Rule> {
        self.entry_mut(id).map(|entry| &mut entry.rule)
    }

    /// Returns the one rule of this table, match and priority.
    pub fn find(&self, table: u8, priority: u32, matching: &Match) -> Option<RuleId> {
        let same = |id: &RuleId| {
            self.get(*id).is_some_and(|rule| {
                rule.table == table && rule.priority == priority && rule.matching() == matching
            })
        };
        self.numbers
            .of(self.hash(table, priority, matching))
            .find(same)
    }

    /// Prefetches the memory that [`Store::find`] will look at, and the slot of a rule that is
    /// added after `before` others.
    pub fn expect(&self, table: u8, priority: u32, matching: &Match, before: usize) {
        self.numbers.expect(self.hash(table, priority, matching));
        let slot = self.free.len().checked_sub(before + 1);
        let slot = slot.and_then(|at| self.free.get(at)).and_then(|id| {
            self.chunks
                .get(*id as usize / CHUNK)?
                .get(*id as usize % CHUNK)
        });
        if let Some(slot) = slot {
            program::prefetch(slot);
        }
    }

    /// Prefetches a rule's slot.
    pub fn fetch(&self, id: RuleId) {
        let slot = self
            .chunks
            .get(id as usize / CHUNK)
            .and_then(|chunk| chunk.get(id as usize % CHUNK));
        if let Some(slot) = slot {
            let at = std::ptr::from_ref(slot).cast::<u8>();
            (0..size_of::<Option<Entry>>())
                .step_by(64)
                .for_each(|line| program::prefetch(at.wrapping_add(line)));
        }
    }

    /// Returns the number of rules, hidden ones included.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the numbers of visible and of hidden rules in a table.
    pub fn table_len(&self, table: u8) -> (u32, u32) {
        self.lists
            .get(usize::from(table))
            .map_or((0, 0), |list| (list.rules - list.hidden, list.hidden))
    }

    /// Returns the rules of a table in the order in which they were added.
    pub fn table(&self, table: u8) -> impl Iterator<Item = (RuleId, &Rule)> {
        let mut next = self
            .lists
            .get(usize::from(table))
            .map_or(NONE, |list| list.first);
        std::iter::from_fn(move || {
            let id = next;
            let entry = self.entry(id)?;
            next = entry.next;
            Some((id, &entry.rule))
        })
    }

    /// Creates a cursor at the beginning of a table.
    pub fn cursor(&mut self, table: u8) -> Cursor {
        let first = self
            .lists
            .get(usize::from(table))
            .map_or(NONE, |list| list.first);
        let cursor = Arc::new(AtomicU32::new(first));
        self.cursors.retain(|cursor| cursor.strong_count() > 0);
        self.cursors.push(Arc::downgrade(&cursor));
        Cursor(cursor)
    }

    /// Returns the rule at a cursor and moves the cursor to the next; None at the end.
    pub fn advance(&self, cursor: &Cursor) -> Option<(RuleId, &Rule)> {
        let id = cursor.0.load(Relaxed);
        let entry = self.entry(id)?;
        cursor.0.store(entry.next, Relaxed);
        Some((id, &entry.rule))
    }

    /// Returns the positions of all cursors, for [`Store::restore_cursors`] once the store has the
    /// same rules again.
    pub fn save_cursors(&self) -> Vec<(Weak<AtomicU32>, RuleId)> {
        let place = |cursor: &Weak<AtomicU32>| {
            let at = cursor.upgrade()?.load(Relaxed);
            Some((Weak::clone(cursor), at))
        };
        self.cursors.iter().filter_map(place).collect()
    }

    /// Restores the positions of cursors.
    pub fn restore_cursors(&self, saved: Vec<(Weak<AtomicU32>, RuleId)>) {
        for (cursor, at) in saved {
            if let Some(cursor) = cursor.upgrade() {
                cursor.store(at, Relaxed);
            }
        }
    }

    /// Returns a table's indexes.
    pub fn indexes(&self, table: u8) -> Option<&Indexes> {
        self.indexes.get(usize::from(table))
    }

    /// Returns a table's indexes, to change them.
    pub fn indexes_mut(&mut self, table: u8) -> Option<&mut Indexes> {
        self.indexes.get_mut(usize::from(table))
    }

    /// Returns the hash key of the indexes.
    pub fn random(&self) -> &RandomState {
        &self.random
    }

    /// Returns the tables that have rules.
    pub fn tables(&self) -> impl Iterator<Item = u8> {
        (0..TABLES as u8).filter(|table| self.lists[usize::from(*table)].rules > 0)
    }

    /// Adds a rule at the end of its table, which has none of its match and priority.
    pub fn insert(&mut self, mut rule: Rule) -> RuleId {
        self.serial += 1;
        rule.serial = self.serial;
        self.insert_before(rule, None)
    }

    /// Adds a rule again in front of the rule `next`, or at the end of its table.
    pub fn insert_before(&mut self, rule: Rule, next: Option<RuleId>) -> RuleId {
        let id = self.free.pop().unwrap_or_else(|| self.grow());
        let hash = self.hash(rule.table, rule.priority, rule.matching());
        self.numbers.insert(hash, id);
        let (table, hidden) = (usize::from(rule.table), rule.is_hidden());
        self.uses_groups(id, &rule.behaviour);
        let next = next.unwrap_or(NONE);
        let previous = self
            .entry(next)
            .map_or(self.lists[table].last, |entry| entry.previous);
        self.indexes[table].insert(&self.random, id, &rule, self.lists[table].rules);
        self.chunks[id as usize / CHUNK][id as usize % CHUNK] = Some(Entry {
            rule,
            previous,
            next,
        });
        self.link(table, previous, next, id, id);
        self.lists[table].rules += 1;
        self.lists[table].hidden += u32::from(hidden);
        self.count += 1;
        id
    }

    /// Links `previous` to `after` and `next` to `before`, at the ends of the list too.
    fn link(
        &mut self,
        table: usize,
        previous: RuleId,
        next: RuleId,
        after: RuleId,
        before: RuleId,
    ) {
        match self.entry_mut(previous) {
            Some(entry) => entry.next = after,
            None => self.lists[table].first = after,
        }
        match self.entry_mut(next) {
            Some(entry) => entry.previous = before,
            None => self.lists[table].last = before,
        }
    }

    fn uses_groups(&mut self, id: RuleId, behaviour: &Behaviour) {
        for group in &behaviour.groups {
            self.group_users.entry(*group).or_default().insert(id);
        }
    }

    fn uses_groups_no_more(&mut self, id: RuleId, behaviour: &Behaviour) {
        for group in &behaviour.groups {
            if let Some(users) = self.group_users.get_mut(group) {
                users.remove(&id);
                if users.is_empty() {
                    self.group_users.remove(group);
                }
            }
        }
    }

    /// Returns the rules that use a group, from `first` on.
    pub fn users_of_group(&self, group: u32, first: RuleId) -> impl Iterator<Item = RuleId> + '_ {
        let users = self.group_users.get(&group);
        users
            .into_iter()
            .flat_map(move |it| it.range(first..))
            .copied()
    }

    /// Returns the number of rules that use a group.
    pub fn count_users_of_group(&self, group: u32) -> u32 {
        let users = self.group_users.get(&group);
        users.map_or(0, |users| users.len() as u32)
    }

    /// Returns the lowest number of the groups that a rule uses.
    pub fn first_group_of(&self, id: RuleId) -> Option<u32> {
        self.get(id)?.behaviour.groups.iter().copied().min()
    }

    fn grow(&mut self) -> RuleId {
        let first = self.chunks.len() * CHUNK;
        self.chunks.push((0..CHUNK).map(|_| None).collect());
        self.free
            .extend((first + 1..first + CHUNK).rev().map(|id| id as RuleId));
        first as RuleId
    }

    /// Removes a rule. Returns it, and the rule that followed it in its table.
    pub fn remove(&mut self, id: RuleId) -> Option<(Rule, Option<RuleId>)> {
        let hash = {
            let rule = self.get(id)?;
            self.hash(rule.table, rule.priority, rule.matching())
        };
        let Entry {
            rule,
            previous,
            next,
        } = self.chunks[id as usize / CHUNK][id as usize % CHUNK].take()?;
        self.numbers.remove(hash, id);
        self.indexes[usize::from(rule.table)].remove(&self.random, id, &rule);
        if !self.cursors.is_empty() {
            for cursor in self.cursors.iter().filter_map(Weak::upgrade) {
                let _ = cursor.compare_exchange(id, next, Relaxed, Relaxed);
            }
        }
        self.uses_groups_no_more(id, &rule.behaviour);
        let table = usize::from(rule.table);
        self.link(table, previous, next, next, previous);
        self.lists[table].rules -= 1;
        self.lists[table].hidden -= u32::from(rule.is_hidden());
        self.count -= 1;
        self.free.push(id);
        Some((rule, (next != NONE).then_some(next)))
    }

    /// Replaces a rule by one of the same table, match and priority; returns the old one.
    pub fn replace(&mut self, id: RuleId, mut rule: Rule) -> Option<Rule> {
        let before = Arc::clone(&self.get(id)?.behaviour);
        self.uses_groups_no_more(id, &before);
        self.uses_groups(id, &rule.behaviour);
        let entry = self
            .chunks
            .get_mut(id as usize / CHUNK)?
            .get_mut(id as usize % CHUNK)?
            .as_mut()?;
        rule.serial = entry.rule.serial;
        if entry.rule.cookie != rule.cookie {
            let table = usize::from(rule.table);
            let rules = self.lists[table].rules;
            self.indexes[table].remove(&self.random, id, &entry.rule);
            self.indexes[table].insert(&self.random, id, &rule, rules);
        }
        debug_assert!(
            entry.rule.table == rule.table
                && entry.rule.priority == rule.priority
                && entry.rule.matching() == rule.matching()
        );
        Some(std::mem::replace(&mut entry.rule, rule))
    }
}
