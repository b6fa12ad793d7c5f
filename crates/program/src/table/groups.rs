//! The one writer of a bridge's groups.

use super::Bridge;
use crate::Program;
use crate::epoch::{Epoch, NEVER};
use crate::group::{Group, GroupRef, GroupTable};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

/// The one writer of a bridge's groups. Its changes appear with the domain's next publication after
/// [`GroupWriter::commit`].
pub struct GroupWriter {
    bridge: Arc<Bridge>,
    /// Slots that have got a version since the last commit.
    touched: Vec<u32>,
    /// Slots to be freed with the next commit.
    leaving: Vec<u32>,
    /// The reserved epoch that changes carry.
    reserved: Option<Epoch>,
}

impl GroupWriter {
    /// Creates the writer of `bridge`'s groups; create one only.
    pub fn new(bridge: Arc<Bridge>) -> GroupWriter {
        GroupWriter {
            bridge,
            touched: Vec::new(),
            leaving: Vec::new(),
            reserved: None,
        }
    }

    fn table(&self) -> &GroupTable {
        self.bridge.groups()
    }

    fn program(&self) -> &Arc<Program> {
        self.bridge.program()
    }

    /// As [`super::BridgeWriter::change_in`].
    pub fn change_in(&mut self, reserved: Option<Epoch>) {
        self.reserved = reserved;
    }

    fn epoch(&self) -> Epoch {
        self.reserved
            .unwrap_or_else(|| self.program().domain.next())
    }

    /// Allocates a slot for a group that has none; None when `GROUPS_MAX` are in use.
    pub fn allocate(&self, number: u32) -> Option<GroupRef> {
        let slot = self.table().allocate()?;
        Some(GroupRef { number, slot })
    }

    /// Frees the slot of a group that is gone or never was. Only rules and groups that are gone too
    /// may name it.
    pub fn release(&mut self, group: GroupRef) {
        self.leaving.push(group.slot);
    }

    fn head(&self, slot: u32) -> &AtomicPtr<Group> {
        self.table()
            .head(slot)
            .expect("a slot that `allocate` has given")
    }

    /// Makes this the group's version from the next epoch on.
    pub fn put(&mut self, to: GroupRef, mut group: Group) {
        debug_assert_eq!(group.number, to.number);
        self.bridge.need(group.words());
        group.added = self.epoch();
        group.edges = Some(self.bridge.learning.group_comes(group.bucket_ops()));
        let head = self.head(to.slot);
        group.older = AtomicPtr::new(head.load(Ordering::Relaxed));
        head.store(Box::into_raw(Box::new(group)), Ordering::Release);
        self.touched.push(to.slot);
    }

    /// Undoes the last [`GroupWriter::put`] for this group, before it has been committed.
    pub fn take_back(&mut self, to: GroupRef) {
        let head = self.head(to.slot);
        let version = head.load(Ordering::Relaxed);
        // SAFETY: the head is alive; this is its only writer.
        let Some(group) = (unsafe { version.as_ref() }) else {
            return;
        };
        debug_assert!(!group.cut.load(Ordering::Relaxed));
        head.store(group.older.load(Ordering::Relaxed), Ordering::Release);
        // SAFETY: made by `Box::into_raw` in `put`, and no longer named by anything; `retire` waits
        // for readers.
        self.program()
            .domain
            .retire(unsafe { Box::from_raw(version) });
    }

    fn mark(&mut self, to: GroupRef, removed: Epoch) {
        let version = self.head(to.slot).load(Ordering::Relaxed);
        // SAFETY: the head is alive; this is its only writer.
        if let Some(group) = unsafe { version.as_ref() } {
            group.removed.store(removed, Ordering::Relaxed);
        }
    }

    /// Ends the group with the next epoch.
    pub fn remove(&mut self, to: GroupRef) {
        let epoch = self.epoch();
        self.mark(to, epoch);
    }

    /// Undoes a [`GroupWriter::remove`] that has not been published.
    pub fn bring_back(&mut self, to: GroupRef) {
        self.mark(to, NEVER);
    }

    /// Retires what the next publication makes unreachable.
    pub fn commit(&mut self) {
        let mut dead: Vec<*mut Group> = Vec::new();
        for slot in std::mem::take(&mut self.touched) {
            let mut version = self.head(slot).load(Ordering::Relaxed);
            // SAFETY: the head is alive, and so is each version up to one that is cut: nothing of
            // the chain has been retired yet.
            while let Some(group) = unsafe { version.as_ref() } {
                if group.cut.swap(true, Ordering::Relaxed) {
                    break;
                }
                version = group.older.load(Ordering::Relaxed);
                if !version.is_null() {
                    dead.push(version);
                }
            }
        }
        let leaving = std::mem::take(&mut self.leaving);
        let domain = &self.program().domain;
        for version in dead {
            // SAFETY: made by `Box::into_raw` in `put`; `cut` ensures that it is taken once.
            // `retire` waits for bursts that may reach it.
            domain.retire(unsafe { Box::from_raw(version) });
        }
        for slot in leaving {
            let bridge = Arc::downgrade(&self.bridge);
            domain.retire(Box::new(Leaving { bridge, slot }));
        }
    }
}

/// A slot that nobody uses any more once this is dropped. Its reference is weak, because retired
/// values are owned by the program.
struct Leaving {
    bridge: Weak<Bridge>,
    slot: u32,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let Some(bridge) = self.bridge.upgrade() else {
            return;
        };
        let Some(head) = bridge.groups().head(self.slot) else {
            return;
        };
        let version = head.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !version.is_null() {
            // A stale step may have reached it just now, so it is retired once more.
            // SAFETY: made by `Box::into_raw` in `put`, and taken out once, by the swap.
            bridge
                .program()
                .domain
                .retire(unsafe { Box::from_raw(version) });
        }
        bridge.groups().slots().free.push(self.slot);
    }
}
