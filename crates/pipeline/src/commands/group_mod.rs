//! Changes and queries of groups (OpenFlow 1.3.5 section 7.3.4.2; 1.5.1 section 7.3.4.3). Deleting
//! a group deletes the rules that use it.

use crate::state::groups::{Entry, Slot, selector_of, used};
use crate::state::options::list_names_options;
use crate::{Clock, Pipeline, check, compile};
use openflow::Version;
use openflow::action::Instruction;
use openflow::error::Error;
use openflow::group::{self, GroupCommand, GroupDescription, GroupKind, GroupMod, GroupStats};
use openflow::port;
use openflow::stats::GroupFeatures;
use program::counters::CounterId;
use program::group::{Group, GroupRef, Watch};
use std::collections::{HashMap, HashSet};

use crate::FlowModOutcome;
use crate::commands::batch::Step;
use crate::commands::flow_mod::Begun;
use crate::commands::sweep::{At, Used};
use crate::state::store::RuleId;

/// Returns the supported features of groups, with Open vSwitch's values. Loops are refused although
/// `CHAINING_CHECKS` is not reported.
pub fn group_features() -> GroupFeatures {
    // Output, set and decrement MPLS TTL, push and pop VLAN and MPLS, set queue, group, set and
    // decrement IP TTL, set field.
    const ACTIONS: [u32; 12] = [0, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];
    const SELECT_WEIGHT: u32 = 1;
    const SELECT_LIVENESS: u32 = 2;
    const CHAINING: u32 = 4;
    GroupFeatures {
        types: 0xf,
        capabilities: SELECT_WEIGHT | SELECT_LIVENESS | CHAINING,
        max_groups: [group::MAX; 4],
        actions: [ACTIONS.iter().fold(0, |bits, number| bits | 1 << number); 4],
    }
}

impl Pipeline {
    /// Carries out a group mod, or refuses it and changes nothing. Errors are those of OpenFlow
    /// 1.3.5 section 7.5.4.7, as Open vSwitch 3.1 gives them. Workers see the change together with
    /// flow mods, at the next publication.
    pub fn group_mod(
        &mut self,
        change: &GroupMod,
        version: Version,
        now: Clock,
    ) -> Result<FlowModOutcome, Error> {
        match self.begin_group_mod(change, version, now, usize::MAX)? {
            Begun::Done(outcome) => Ok(outcome),
            Begun::Long(sweep) => self.sweep_at_once(*sweep, now),
        }
    }

    /// Carries out a group mod like [`Pipeline::group_mod`], but only begins to delete groups that
    /// more than `budget` rules use: see [`crate::commands::sweep`].
    pub fn begin_group_mod(
        &mut self,
        change: &GroupMod,
        version: Version,
        now: Clock,
        budget: usize,
    ) -> Result<Begun<'static>, Error> {
        let known = self.groups.known.get(&change.group);
        let description = match (change.command, known) {
            (GroupCommand::Delete, _) => {
                let sweep = self.begin_deletion(Used::Groups(change.group));
                return self.sweep_or_begin(sweep, budget, now);
            }
            (GroupCommand::Add, Some(_)) => return Err(Error::GroupExists),
            (GroupCommand::Add | GroupCommand::AddOrModify, _)
            | (GroupCommand::Modify, Some(_)) => described(change)?,
            (_, None) => return Err(Error::UnknownGroup),
            (GroupCommand::InsertBucket, Some(entry)) => inserted(&entry.description, change)?,
            (GroupCommand::RemoveBucket, Some(entry)) => removed(&entry.description, change)?,
        };
        let keeps = matches!(
            change.command,
            GroupCommand::InsertBucket | GroupCommand::RemoveBucket
        );
        self.check_group(&description, version)?;
        self.put_group(description, keeps, now)?;
        Ok(Begun::Done(FlowModOutcome {
            removed: Vec::new(),
            changed: 1,
        }))
    }

    fn check_group(&self, description: &GroupDescription, version: Version) -> Result<(), Error> {
        for bucket in &description.buckets {
            check::bucket(&bucket.actions, version)?;
            self.check_fcf(&bucket.actions)?;
        }
        if self.groups.loops(description.group, &description.buckets) {
            return Err(Error::GroupLoop);
        }
        if description.fits_in_message() {
            Ok(())
        } else {
            Err(Error::OutOfBuckets)
        }
    }

    /// Compiles groups again that name tunnel options, whose map has changed.
    pub(crate) fn place_options_of_groups(&mut self) {
        let names = |entry: &Entry| {
            let description = &entry.description;
            let hashed = description.selection.iter().flat_map(|hash| &hash.fields);
            let mut hashed = hashed.filter_map(|(field, _)| field.tunnel_option());
            let mut buckets = description.buckets.iter();
            buckets.any(|bucket| list_names_options(&bucket.actions)) || hashed.next().is_some()
        };
        let entries = self.groups.known.values().filter(|entry| names(entry));
        for entry in entries.cloned().collect::<Vec<_>>() {
            // They were compiled before.
            if let Ok(compiled) = self.compiled(&entry) {
                self.group_writer.put(entry.to, compiled);
            }
        }
    }

    /// Adds or replaces a group. `keeps`: buckets that stay keep their counters; those of the group
    /// itself continue in any case (section 6.5).
    fn put_group(
        &mut self,
        description: GroupDescription,
        keeps: bool,
        now: Clock,
    ) -> Result<(), Error> {
        let number = description.group;
        let old = self.groups.known.get(&number).cloned();
        let mut counters = Vec::new();
        let result = self.entry_of(description, old.as_ref(), keeps, now, &mut counters);
        let entry = match result {
            Ok(entry) => entry,
            Err(error) => {
                counters
                    .iter()
                    .for_each(|counter| self.program.counters.free(*counter));
                return Err(error);
            }
        };
        let compiled = self.compiled(&entry)?;
        self.group_writer.put(entry.to, compiled);
        if let Some(old) = &old {
            self.forget_counters(old, &entry);
            self.unmention_all(old);
        }
        self.groups.known.insert(number, entry);
        self.note(Step::GroupPut(number, old.map(Box::new)));
        Ok(())
    }

    /// Creates the entry of a group, with its counters and slots. Puts the counters that it
    /// allocates into `counters`; on failure no mention remains.
    fn entry_of(
        &mut self,
        description: GroupDescription,
        old: Option<&Entry>,
        keeps: bool,
        now: Clock,
        counters: &mut Vec<CounterId>,
    ) -> Result<Entry, Error> {
        let program = std::sync::Arc::clone(&self.program);
        let mut fresh = || {
            let counter = program.counters.allocate().ok_or(Error::OutOfGroups)?;
            counters.push(counter);
            Ok::<_, Error>(counter)
        };
        let counter = old.map_or_else(&mut fresh, |old| Ok(old.counter))?;
        let kept: HashMap<u32, CounterId> = old
            .filter(|_| keeps)
            .map(|old| {
                let ids = old.description.buckets.iter().map(|bucket| bucket.id);
                ids.zip(old.bucket_counters.iter().copied()).collect()
            })
            .unwrap_or_default();
        let bucket_counters = description
            .buckets
            .iter()
            .map(|bucket| kept.get(&bucket.id).map_or_else(&mut fresh, |old| Ok(*old)))
            .collect::<Result<Vec<_>, Error>>()?;
        // Buckets must compile before anything changes.
        if description
            .buckets
            .iter()
            .any(|bucket| compile::bucket(&bucket.actions, self.context()).is_none())
        {
            return Err(Error::TooManyActions);
        }
        let mut entry = Entry {
            to: GroupRef::unbound(description.group),
            description,
            created_ms: old.map_or(now.ms(), |old| old.created_ms),
            counter,
            bucket_counters,
        };
        self.mention_all(&mut entry)?;
        Ok(entry)
    }

    /// Adds the mentions of a group: its own, and those by its buckets. On failure none remains.
    fn mention_all(&mut self, entry: &mut Entry) -> Result<(), Error> {
        let numbers: Vec<u32> = entry.mentioned().chain([entry.description.group]).collect();
        for (index, number) in numbers.iter().enumerate() {
            match self.groups.slots.get_mut(number) {
                Some(slot) => slot.mentions += 1,
                None => match self.group_writer.allocate(*number) {
                    Some(to) => {
                        self.groups.slots.insert(*number, Slot { to, mentions: 1 });
                    }
                    None => {
                        for number in &numbers[..index] {
                            self.groups.unmention(*number);
                        }
                        return Err(Error::OutOfGroups);
                    }
                },
            }
        }
        entry.to = self.groups.find(entry.description.group);
        Ok(())
    }

    fn unmention_all(&mut self, entry: &Entry) {
        for number in entry.mentioned().chain([entry.description.group]) {
            self.groups.unmention(number);
        }
    }

    /// Releases the counters that an entry has and its successor does not.
    fn forget_counters(&mut self, old: &Entry, new: &Entry) {
        let kept: HashSet<CounterId> = new.counters().collect();
        self.dead_counters
            .extend(old.counters().filter(|counter| !kept.contains(counter)));
    }

    /// Returns the parts of the bridge that actions refer to.
    pub(crate) fn context(&self) -> compile::Context<'_> {
        compile::Context {
            meters: &self.meters,
            groups: &self.groups,
            options: &self.options,
        }
    }

    /// Compiles a group for workers.
    fn compiled(&self, entry: &Entry) -> Result<Group, Error> {
        let description = &entry.description;
        let mut buckets = Vec::new();
        for (bucket, counter) in description.buckets.iter().zip(&entry.bucket_counters) {
            let ops =
                compile::bucket(&bucket.actions, self.context()).ok_or(Error::TooManyActions)?;
            let watch = bucket.is_watched().then(|| Watch {
                port: (bucket.watch_port != port::ANY).then_some(bucket.watch_port),
                group: (bucket.watch_group != group::ANY)
                    .then(|| self.groups.find(bucket.watch_group)),
            });
            buckets.push(program::group::Bucket::new(ops, *counter, watch));
        }
        let (number, counter) = (description.group, entry.counter);
        Ok(match description.kind {
            GroupKind::All | GroupKind::Indirect => Group::every(number, counter, buckets),
            GroupKind::FastFailover => Group::first_live(number, counter, buckets),
            GroupKind::Select => Group::selected(
                number,
                counter,
                buckets,
                selector_of(description, &self.options),
            ),
        })
    }

    /// Returns the groups with numbers from `next` on that a number stands for.
    fn groups_of(&self, wanted: u32, next: u32) -> impl Iterator<Item = u32> + '_ {
        let (first, last) = match wanted {
            group::ALL => (next, u32::MAX),
            one => (next.max(one), one),
        };
        let known = self.groups.known.range(first..);
        known
            .map(|(number, _)| *number)
            .take_while(move |number| *number <= last)
    }

    /// Appends rules that use a group, or any for [`group::ALL`], to `found`: looks at up to
    /// `budget` more groups and rules from `at` on. Returns true when there are no more.
    pub(crate) fn seek_users(
        &self,
        wanted: u32,
        at: &mut At,
        budget: usize,
        found: &mut Vec<RuleId>,
    ) -> bool {
        let mut budget = budget;
        for number in self.groups_of(wanted, at.number) {
            let first = if number == at.number { at.rule } else { 0 };
            for id in self.store.users_of_group(number, first) {
                if budget == 0 {
                    *at = At { number, rule: id };
                    return false;
                }
                budget -= 1;
                // A rule may use several of all groups.
                if wanted != group::ALL || self.store.first_group_of(id) == Some(number) {
                    found.push(id);
                }
            }
            if budget == 0 {
                *at = At {
                    number: number + 1,
                    rule: 0,
                };
                return false;
            }
            budget -= 1;
        }
        true
    }

    /// Deletes a group that no rule uses any more, or for [`group::ALL`] up to `budget` of those
    /// with numbers from `next` on; returns true when there are no more. Buckets that name a
    /// deleted group stay.
    pub(crate) fn delete_groups(
        &mut self,
        wanted: u32,
        next: &mut u32,
        budget: usize,
        outcome: &mut FlowModOutcome,
    ) -> bool {
        let numbers: Vec<u32> = self.groups_of(wanted, *next).take(budget).collect();
        for number in &numbers {
            let Some(entry) = self.groups.known.remove(number) else {
                continue;
            };
            outcome.changed += 1;
            self.group_writer.remove(entry.to);
            self.unmention_all(&entry);
            self.dead_counters.extend(entry.counters());
            self.note(Step::GroupRemoved(Box::new(entry)));
        }
        *next = numbers.last().map_or(*next, |last| last + 1);
        numbers.len() < budget
    }

    /// Undoes [`Pipeline::put_group`].
    pub(crate) fn undo_put_group(&mut self, number: u32, old: Option<Box<Entry>>) {
        let Some(new) = self.groups.known.remove(&number) else {
            return;
        };
        self.group_writer.take_back(new.to);
        let kept: HashSet<CounterId> = old.iter().flat_map(|old| old.counters()).collect();
        self.dead_counters
            .extend(new.counters().filter(|counter| !kept.contains(counter)));
        self.unmention_all(&new);
        if let Some(old) = old {
            self.bring_back(*old);
        }
    }

    /// Undoes the removal of a group.
    pub(crate) fn undo_remove_group(&mut self, entry: Entry) {
        self.group_writer.bring_back(entry.to);
        self.bring_back(entry);
    }

    fn bring_back(&mut self, mut entry: Entry) {
        // Slots are kept until a batch has ended, so none is missing.
        let found = self.mention_all(&mut entry);
        debug_assert!(found.is_ok());
        self.groups.known.insert(entry.description.group, entry);
    }

    /// Retires what the next publication makes unreachable.
    pub(crate) fn commit_groups(&mut self) {
        if self.undo.is_some() {
            return;
        }
        for number in std::mem::take(&mut self.groups.idle) {
            let slots = &mut self.groups.slots;
            if slots.get(&number).is_some_and(|slot| slot.mentions == 0)
                && let Some(slot) = slots.remove(&number)
            {
                self.group_writer.release(slot.to);
            }
        }
        self.group_writer.commit();
    }

    /// Checks that every group that a rule would use exists.
    pub(crate) fn check_groups(&self, instructions: &[Instruction]) -> Result<(), Error> {
        let there = |number: u32| self.groups.known.contains_key(&number);
        if used(instructions).all(there) {
            Ok(())
        } else {
            Err(Error::BadOutGroup)
        }
    }

    /// Returns the counters of a group, or of all ([`group::ALL`], [`group::ANY`]), by number. The
    /// reference count is the number of rules that use the group, as in Open vSwitch.
    pub fn group_stats(&self, number: u32, now: Clock) -> Vec<GroupStats> {
        let read = |counter: CounterId| {
            let totals = self.program.counters.read(counter);
            (totals.packets, totals.bytes)
        };
        self.wanted(number)
            .map(|entry| {
                let (packets, bytes) = read(entry.counter);
                let group = entry.description.group;
                GroupStats {
                    group,
                    references: self.store.count_users_of_group(group),
                    packets,
                    bytes,
                    duration_ns: now
                        .ms()
                        .saturating_sub(entry.created_ms)
                        .saturating_mul(1_000_000),
                    buckets: entry.bucket_counters.iter().map(|id| read(*id)).collect(),
                }
            })
            .collect()
    }

    /// Returns the description of a group, or of all ([`group::ALL`], [`group::ANY`]), by number.
    pub fn group_descriptions(&self, number: u32) -> Vec<GroupDescription> {
        self.wanted(number)
            .map(|entry| entry.description.clone())
            .collect()
    }

    fn wanted(&self, number: u32) -> impl Iterator<Item = &Entry> {
        let range = match number {
            group::ALL | group::ANY => 0..=u32::MAX,
            one => one..=one,
        };
        self.groups.known.range(range).map(|(_, entry)| entry)
    }

    /// Returns the number of slots in use, by groups and by numbers that are only mentioned.
    pub fn group_slots(&self) -> usize {
        self.groups.slots.len()
    }

    /// Returns the number of groups.
    pub fn group_count(&self) -> usize {
        self.groups.known.len()
    }
}

/// Returns the group that an add or a modify describes.
fn described(change: &GroupMod) -> Result<GroupDescription, Error> {
    if change.group > group::MAX {
        return Err(Error::InvalidGroup);
    }
    if change.kind == GroupKind::Indirect && change.buckets.len() != 1 {
        return Err(Error::InvalidGroup);
    }
    let mut ids = HashSet::new();
    for bucket in &change.buckets {
        bucket.fits(change.kind)?;
        if !ids.insert(bucket.id) {
            return Err(Error::BadBucket);
        }
    }
    Ok(GroupDescription {
        kind: change.kind,
        group: change.group,
        buckets: change.buckets.clone(),
        selection: change.selection.clone(),
    })
}

/// Returns the index of the bucket with this id.
fn place(description: &GroupDescription, id: u32) -> Result<usize, Error> {
    let mut buckets = description.buckets.iter();
    buckets
        .position(|bucket| bucket.id == id)
        .ok_or(Error::UnknownBucket)
}

/// Returns the group with buckets inserted: before all, behind all, or behind the one that the
/// command names.
fn inserted(old: &GroupDescription, change: &GroupMod) -> Result<GroupDescription, Error> {
    let at = match change.command_bucket {
        group::BUCKET_FIRST => 0,
        group::BUCKET_LAST => old.buckets.len(),
        id => place(old, id)? + 1,
    };
    let mut new = old.clone();
    for (offset, bucket) in change.buckets.iter().enumerate() {
        if new.buckets.iter().any(|other| other.id == bucket.id) {
            return Err(Error::BucketExists);
        }
        let mut bucket = bucket.clone();
        // The codec fills in 1 where the message has no weight.
        if old.kind != GroupKind::Select && bucket.weight == 1 {
            bucket.weight = 0;
        }
        match bucket.fits(old.kind) {
            // As in Open vSwitch, such a bucket may watch nothing; it is then always live.
            Err(Error::InvalidGroup)
                if old.kind == GroupKind::FastFailover && bucket.weight == 0 => {}
            result => result?,
        }
        new.buckets.insert(at + offset, bucket);
    }
    if new.kind == GroupKind::Indirect && new.buckets.len() != 1 {
        return Err(Error::InvalidGroup);
    }
    Ok(new)
}

/// Returns the group with buckets removed. Removing the first or last bucket of none removes none.
fn removed(old: &GroupDescription, change: &GroupMod) -> Result<GroupDescription, Error> {
    let mut new = old.clone();
    match change.command_bucket {
        group::BUCKET_ALL => new.buckets.clear(),
        group::BUCKET_FIRST => drop(new.buckets.drain(..new.buckets.len().min(1))),
        group::BUCKET_LAST => drop(new.buckets.pop()),
        id => drop(new.buckets.remove(place(old, id)?)),
    }
    if new.kind == GroupKind::Indirect && new.buckets.len() != 1 {
        return Err(Error::InvalidGroup);
    }
    Ok(new)
}
