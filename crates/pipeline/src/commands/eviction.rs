//! Eviction: which rule a full table removes to make room.
//!
//! Only rules with a timeout may be evicted. They are grouped by their matches' values in the
//! fields that the table's configuration names (`Flow_Table.groups`); without fields there is one
//! group. The victim is a rule of one of the largest groups, so that nobody who fills a table
//! drives out the rules of others: the least important rule and, among equals, the one that would
//! expire first (Open vSwitch's manual, `Flow_Table.overflow_policy`; OpenFlow 1.4 section
//! 7.3.4.4).
//!
//! A rule's idle expiry depends on its counter, which workers update. So the time stored in the
//! order may be too early; the counter of the first rule is read, and the rule is put back if it
//! expires later. A rule is therefore never evicted before one that should have gone first.

use crate::state::store::{Rule, RuleId};
use crate::{Clock, Pipeline};
use openflow::action::Subfield;
use openflow::flow::{FlowRemoved, FlowRemovedReason};
use packet::{Match, Value};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};

/// A rule's position in its group: importance, expiry in milliseconds, number.
type Rank = (u16, u64, RuleId);
/// The values of a rule's match in the fields.
type Group = SmallVec<[u64; 2]>;

/// The rules of one table that may be evicted.
#[derive(Default)]
pub(crate) struct Eviction {
    /// The fields, as bits of the key.
    fields: Match,
    groups: HashMap<Group, BTreeSet<Rank>>,
    /// Groups by size. Empty ones are neither here nor in `groups`.
    sizes: BTreeSet<(usize, Group)>,
    places: HashMap<RuleId, Rank>,
}

impl Eviction {
    pub fn new(fields: Match) -> Eviction {
        Eviction {
            fields,
            ..Eviction::default()
        }
    }

    fn group_of(&self, matching: &Match) -> Group {
        self.fields
            .words()
            .iter()
            .map(|field| {
                let entry = matching.words().iter().find(|own| own.word == field.word);
                entry.map_or(0, |own| own.value & field.mask)
            })
            .collect()
    }

    fn insert(&mut self, matching: &Match, place: Rank) {
        let group = self.group_of(matching);
        let members = self.groups.entry(group.clone()).or_default();
        if !members.is_empty() {
            self.sizes.remove(&(members.len(), group.clone()));
        }
        members.insert(place);
        self.sizes.insert((members.len(), group));
        self.places.insert(place.2, place);
    }

    fn remove(&mut self, matching: &Match, id: RuleId) {
        let Some(place) = self.places.remove(&id) else {
            return;
        };
        let group = self.group_of(matching);
        let Some(members) = self.groups.get_mut(&group) else {
            return;
        };
        self.sizes.remove(&(members.len(), group.clone()));
        members.remove(&place);
        if members.is_empty() {
            self.groups.remove(&group);
        } else {
            self.sizes.insert((members.len(), group));
        }
    }

    /// Returns the first rule of a largest group, by the stored expiry times.
    fn first(&self) -> Option<Rank> {
        let (_, group) = self.sizes.last()?;
        self.groups.get(group)?.first().copied()
    }
}

impl Pipeline {
    /// Sets whether a full table evicts rules to make room, and the fields by which they are
    /// grouped. If the table is already over its limit, it is brought down to it; returns the flow
    /// removed messages of the evicted rules.
    pub fn set_eviction(
        &mut self,
        table: u8,
        fields: Option<&[Subfield]>,
        now: Clock,
    ) -> Vec<FlowRemoved> {
        let place = usize::from(table);
        if place >= self.evictions.len() {
            return Vec::new();
        }
        let Some(fields) = fields else {
            self.evictions[place] = None;
            return Vec::new();
        };
        let mut bits = Match::any();
        for part in fields
            .iter()
            .filter(|part| part.field.tunnel_option().is_none())
        {
            let def = part.field.def();
            let ones = Value::ones_at(
                def.shift + usize::from(part.start),
                part.bits.into(),
                def.bytes,
            );
            bits.set_bytes(def.offset, &ones, &ones);
        }
        let known = self.evictions[place]
            .as_ref()
            .is_some_and(|eviction| eviction.fields == bits);
        if !known {
            let mut eviction = Eviction::new(bits);
            for (id, rule) in self.store.table(table) {
                if let Some(expires) = self.expires_at(rule) {
                    eviction.insert(rule.matching(), (rule.importance, expires, id));
                }
            }
            self.evictions[place] = Some(Box::new(eviction));
        }
        let mut removed = Vec::new();
        while self.store.table_len(table).0 > self.limits[place] {
            match self.evict(table, now) {
                Some(told) => removed.extend(told),
                None => break,
            }
        }
        removed
    }

    /// Returns whether a table has a rule to evict.
    pub(crate) fn can_evict(&self, table: u8) -> bool {
        self.evictions[usize::from(table)]
            .as_ref()
            .is_some_and(|eviction| !eviction.places.is_empty())
    }

    /// Evicts the first rule; None when there is none, otherwise its flow removed message, if it
    /// wants one.
    pub(crate) fn evict(&mut self, table: u8, now: Clock) -> Option<Option<FlowRemoved>> {
        let index = usize::from(table);
        loop {
            let (importance, expected, id) = self.evictions[index].as_ref()?.first()?;
            let rule = self.store.get(id)?;
            let expires = self.expires_at(rule)?;
            if expires <= expected {
                return Some(self.take_out(id, FlowRemovedReason::Eviction, now));
            }
            // It has had packets since it was put there.
            let matching = rule.matching().clone();
            let eviction = self.evictions[index].as_mut()?;
            eviction.remove(&matching, id);
            eviction.insert(&matching, (importance, expires, id));
        }
    }

    /// Returns the time of a rule's first timeout, according to its counter now; None for a rule
    /// without a timeout.
    fn expires_at(&self, rule: &Rule) -> Option<u64> {
        if rule.is_hidden() {
            return None;
        }
        self.deadlines(rule).into_iter().map(|(at, _)| at).min()
    }

    /// Adds a rule that was added or changed to those that may be evicted.
    pub(crate) fn offer_for_eviction(&mut self, id: RuleId) {
        let Some(rule) = self.store.get(id) else {
            return;
        };
        let index = usize::from(rule.table);
        if self.evictions[index].is_none() {
            return;
        }
        if let Some(expires) = self.expires_at(rule) {
            let place = (rule.importance, expires, id);
            let matching = rule.matching().clone();
            if let Some(eviction) = &mut self.evictions[index] {
                eviction.insert(&matching, place);
            }
        }
    }

    /// Takes a rule that is removed or changed out of those that may be evicted.
    pub(crate) fn spare_from_eviction(&mut self, id: RuleId) {
        if let Some(rule) = self.store.get(id)
            && let Some(eviction) = &mut self.evictions[usize::from(rule.table)]
        {
            eviction.remove(rule.matching(), id);
        }
    }
}
