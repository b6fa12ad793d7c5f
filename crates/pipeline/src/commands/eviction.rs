//! Which rule goes when a full table makes room.
//!
//! Only rules with a timeout may go. They are in groups by the values that their matches give the
//! fields which the table's configuration names (`Flow_Table.groups`), in one group when it names
//! none. A rule of a group with the most rules goes, so that nobody who fills a table drives out
//! the rules of others: the least important, of these the one that would expire first (Open
//! vSwitch's manual, `Flow_Table.overflow_policy`; OpenFlow 1.4 section 7.3.4.4).
//!
//! When an idle rule expires is known only from its counter, which grows without notice. So the
//! order holds a moment that may be too early; the rule that comes first is asked, and put back
//! when its time is later. That never puts a rule before one that should have gone.

use crate::state::store::{Rule, RuleId};
use crate::{Clock, Pipeline};
use openflow::action::Subfield;
use openflow::flow::{FlowRemoved, FlowRemovedReason};
use packet::{Match, Value};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};

/// Where a rule stands in its group: importance, expiry in milliseconds, number.
type Place = (u16, u64, RuleId);
/// The values that a rule's match gives the fields.
type Group = SmallVec<[u64; 2]>;

/// Rules of one table that may go.
#[derive(Default)]
pub(crate) struct Eviction {
    /// The fields, as the bits of the key that they are.
    fields: Match,
    groups: HashMap<Group, BTreeSet<Place>>,
    /// Groups by size. Empty ones are in neither.
    sizes: BTreeSet<(usize, Group)>,
    places: HashMap<RuleId, Place>,
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

    fn insert(&mut self, matching: &Match, place: Place) {
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

    /// The first rule of a largest group, as far as is known.
    fn first(&self) -> Option<Place> {
        let (_, group) = self.sizes.last()?;
        self.groups.get(group)?.first().copied()
    }
}

impl Pipeline {
    /// Says whether a full table makes room for new rules, and by which fields the rules that may
    /// go are grouped. When the table is over its limit already it is brought down to it; what
    /// went and wants it told is returned.
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
        for part in fields {
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

    /// Whether a table can make room.
    pub(crate) fn can_evict(&self, table: u8) -> bool {
        self.evictions[usize::from(table)]
            .as_ref()
            .is_some_and(|eviction| !eviction.places.is_empty())
    }

    /// Removes the rule that is to go first; None when there is none, else what is to be told of
    /// it.
    pub(crate) fn evict(&mut self, table: u8, now: Clock) -> Option<Option<FlowRemoved>> {
        let index = usize::from(table);
        loop {
            let (importance, expected, id) = self.evictions[index].as_ref()?.first()?;
            let rule = self.store.get(id)?;
            let expires = self.expires_at(rule)?;
            if expires <= expected {
                return Some(self.take_out(id, FlowRemovedReason::Eviction, now));
            }
            // It was used since it was put there.
            let matching = rule.matching().clone();
            let eviction = self.evictions[index].as_mut()?;
            eviction.remove(&matching, id);
            eviction.insert(&matching, (importance, expires, id));
        }
    }

    /// When a rule's first timeout passes, by what its counter says now; None for a rule without
    /// one.
    fn expires_at(&self, rule: &Rule) -> Option<u64> {
        if rule.is_hidden() {
            return None;
        }
        self.deadlines(rule).into_iter().map(|(at, _)| at).min()
    }

    /// Puts a rule that was added or changed where it stands.
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

    /// Takes a rule that goes or changes out.
    pub(crate) fn spare_from_eviction(&mut self, id: RuleId) {
        if let Some(rule) = self.store.get(id)
            && let Some(eviction) = &mut self.evictions[usize::from(rule.table)]
        {
            eviction.remove(rule.matching(), id);
        }
    }
}
