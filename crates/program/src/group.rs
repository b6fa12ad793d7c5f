//! Groups (OpenFlow 1.3.5 section 5.6), as workers see them.
//!
//! A step names a group by a [`GroupRef`]: its number and a slot that the writer has given it, so a packet finds it without a search. In the slot hang the
//! group's versions, the newest first. Each carries the epoch in which it appears, so a change of a group obeys epochs as rules do: a burst takes the first
//! version that has appeared in its epoch, and older ones are looked at only by bursts of older epochs. Slots outlive groups; one that has been given to
//! another group is recognised by the number, so a step that is stale (in a packet-out that waited) meets no group instead of a wrong one.

mod select;

pub use select::{GroupHash, Selector};

use crate::Program;
use crate::counters::CounterId;
use crate::epoch::{Epoch, Guard, NEVER};
use crate::ops::{Op, PortNo};
use crate::table::Bridge;
use packet::WordSet;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Slots that are made at a time.
const CHUNK: usize = 1024;
/// Chunks at most.
const CHUNKS: usize = 1024;

/// Most groups of a bridge, those among them that are only mentioned.
pub const GROUPS_MAX: usize = CHUNK * CHUNKS;

/// Buckets that watch something which are looked at for one choice, those of watched groups included; beyond, they count as dead. Groups that watch
/// each other would be looked at for ever.
pub const LOOKS: u32 = 1024;

/// A group, named in a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupRef {
    /// Its number in OpenFlow.
    pub number: u32,
    slot: u32,
}

impl GroupRef {
    /// A group that has no slot yet, and so does nothing.
    pub const fn unbound(number: u32) -> GroupRef {
        GroupRef {
            number,
            slot: u32::MAX,
        }
    }
}

/// What decides whether a bucket is live: it is when one of these is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Watch {
    /// A port.
    pub port: Option<PortNo>,
    /// A group, live when one of its buckets is.
    pub group: Option<GroupRef>,
}

/// One of a group's lists of steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    /// What it does, in the order of an action set.
    pub(crate) ops: Box<[Op]>,
    pub(crate) counter: CounterId,
    pub(crate) watch: Option<Watch>,
    /// The port, when all it does is to send there.
    pub(crate) only_output: Option<PortNo>,
    /// Whether it changes the packet or what is known about it.
    pub(crate) changes: bool,
    /// Whether it runs rules, which may do anything.
    pub(crate) resubmits: bool,
}

impl Bucket {
    /// A bucket of these steps, which are in the order of an action set.
    pub fn new(ops: Box<[Op]>, counter: CounterId, watch: Option<Watch>) -> Bucket {
        let harmless = |op: &Op| op.only_sends() || matches!(op, Op::Group(_));
        Bucket {
            only_output: match &*ops {
                [Op::Output(port)] => Some(*port),
                _ => None,
            },
            changes: !ops.iter().all(harmless),
            resubmits: ops.iter().any(|op| matches!(op, Op::Resubmit { .. })),
            ops,
            counter,
            watch,
        }
    }

    /// The words of the key that its steps read or change.
    pub fn words(&self) -> WordSet {
        self.ops
            .iter()
            .fold(WordSet::EMPTY, |set, op| set.union(op.words()))
    }
}

/// What a group does with a packet.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Every bucket: a step for each.
    Every(Box<[Op]>),
    /// The first live bucket.
    FirstLive(Box<[Bucket]>),
    /// A live bucket that the packet's hash chooses.
    Selected {
        buckets: Box<[Bucket]>,
        selector: Selector,
    },
}

/// A version of a group.
#[derive(Debug)]
pub struct Group {
    number: u32,
    pub(crate) kind: Kind,
    pub(crate) counter: CounterId,
    /// First epoch in which it holds.
    added: Epoch,
    /// First epoch in which the group is gone.
    removed: AtomicU64,
    /// The version before: alive as long as a burst may be in an epoch before `added`, and not looked at by others.
    older: AtomicPtr<Group>,
    /// Whether `older` has been handed over for freeing.
    cut: AtomicBool,
}

impl Group {
    fn new(number: u32, counter: CounterId, kind: Kind) -> Group {
        Group {
            number,
            kind,
            counter,
            added: 0,
            removed: AtomicU64::new(NEVER),
            older: AtomicPtr::default(),
            cut: AtomicBool::new(false),
        }
    }

    /// A group that runs every bucket (types all and indirect).
    pub fn every(number: u32, counter: CounterId, buckets: Vec<Bucket>) -> Group {
        let steps = buckets
            .into_iter()
            .map(|bucket| Op::Bucket(Arc::new(bucket)));
        Group::new(number, counter, Kind::Every(steps.collect()))
    }

    /// A group that runs its first live bucket (fast failover).
    pub fn first_live(number: u32, counter: CounterId, buckets: Vec<Bucket>) -> Group {
        Group::new(number, counter, Kind::FirstLive(buckets.into()))
    }

    /// A group that runs the bucket which the selector chooses (select).
    pub fn selected(
        number: u32,
        counter: CounterId,
        buckets: Vec<Bucket>,
        selector: Selector,
    ) -> Group {
        let kind = Kind::Selected {
            buckets: buckets.into(),
            selector,
        };
        Group::new(number, counter, kind)
    }

    fn words(&self) -> WordSet {
        let of = |buckets: &[Bucket]| {
            buckets
                .iter()
                .fold(WordSet::EMPTY, |set, bucket| set.union(bucket.words()))
        };
        match &self.kind {
            Kind::Every(steps) => steps
                .iter()
                .fold(WordSet::EMPTY, |set, op| set.union(op.words())),
            Kind::FirstLive(buckets) => of(buckets),
            Kind::Selected { buckets, selector } => of(buckets).union(selector.hash.words()),
        }
    }
}

type Chunk = [AtomicPtr<Group>; CHUNK];

#[derive(Debug, Default)]
struct Slots {
    next: u32,
    free: Vec<u32>,
}

/// A bridge's groups by slot.
#[derive(Debug)]
pub(crate) struct GroupTable {
    chunks: Box<[AtomicPtr<Chunk>]>,
    slots: Mutex<Slots>,
}

impl Default for GroupTable {
    fn default() -> Self {
        GroupTable {
            chunks: (0..CHUNKS).map(|_| AtomicPtr::default()).collect(),
            slots: Mutex::default(),
        }
    }
}

impl GroupTable {
    #[inline(always)]
    fn head(&self, slot: u32) -> Option<&AtomicPtr<Group>> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?;
        // SAFETY: a chunk pointer is null or was made by `Box::into_raw` in `allocate`, and is freed only when `self` is dropped.
        let chunk = unsafe { chunk.load(Ordering::Acquire).as_ref() }?;
        Some(&chunk[slot as usize % CHUNK])
    }

    /// The group as it is in the guard's epoch. The guard is one of the table's domain.
    #[inline(always)]
    pub(crate) fn get<'g>(&self, to: GroupRef, guard: &'g Guard<'_>) -> Option<&'g Group> {
        let epoch = guard.epoch();
        let mut version = self.head(to.slot)?.load(Ordering::Acquire);
        loop {
            // SAFETY: a version that a slot names is retired to the domain after it has been taken out; one that a newer version names is retired
            // when the newer one's `added` is about to be published, and only bursts of earlier epochs, which that waits for, come to it.
            let group: &'g Group = unsafe { version.as_ref() }?;
            if group.added <= epoch {
                let holds = epoch < group.removed.load(Ordering::Relaxed);
                return (holds && group.number == to.number).then_some(group);
            }
            version = group.older.load(Ordering::Acquire);
        }
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn allocate(&self) -> Option<u32> {
        let mut slots = self.slots();
        if let Some(slot) = slots.free.pop() {
            return Some(slot);
        }
        let slot = slots.next;
        let place = self.chunks.get(slot as usize / CHUNK)?;
        if place.load(Ordering::Acquire).is_null() {
            let chunk: Vec<AtomicPtr<Group>> = (0..CHUNK).map(|_| AtomicPtr::default()).collect();
            let chunk: Box<Chunk> = chunk
                .into_boxed_slice()
                .try_into()
                .unwrap_or_else(|_| unreachable!());
            place.store(Box::into_raw(chunk), Ordering::Release);
        }
        slots.next += 1;
        Some(slot)
    }
}

impl Drop for GroupTable {
    fn drop(&mut self) {
        for place in &self.chunks {
            let chunk = place.load(Ordering::Acquire);
            if chunk.is_null() {
                continue;
            }
            // SAFETY: made by `Box::into_raw` in `allocate`; nobody else can hold `self` now.
            let chunk = unsafe { Box::from_raw(chunk) };
            for head in chunk.iter() {
                let mut version = head.load(Ordering::Acquire);
                while !version.is_null() {
                    // SAFETY: made by `Box::into_raw` in `put`; a version is either named here or retired (`cut`), never both.
                    let group = unsafe { Box::from_raw(version) };
                    version = if group.cut.load(Ordering::Relaxed) {
                        std::ptr::null_mut()
                    } else {
                        group.older.load(Ordering::Relaxed)
                    };
                }
            }
        }
    }
}

/// The one writer of a bridge's groups. What it changes appears with the domain's next publication after [`GroupWriter::commit`].
pub struct GroupWriter {
    bridge: Arc<Bridge>,
    /// Slots that have got a version since the last commit.
    touched: Vec<u32>,
    /// Slots to be given back with the next commit.
    leaving: Vec<u32>,
    /// The reserved epoch that changes carry.
    reserved: Option<Epoch>,
}

impl GroupWriter {
    /// The writer of `bridge`'s groups; make one only.
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

    /// As [`crate::table::BridgeWriter::change_in`].
    pub fn change_in(&mut self, reserved: Option<Epoch>) {
        self.reserved = reserved;
    }

    fn epoch(&self) -> Epoch {
        self.reserved
            .unwrap_or_else(|| self.program().domain.next())
    }

    /// A slot for a group that has none; None when [`GROUPS_MAX`] are in use.
    pub fn allocate(&self, number: u32) -> Option<GroupRef> {
        let slot = self.table().allocate()?;
        Some(GroupRef { number, slot })
    }

    /// Gives a slot back, whose group is gone or never was: no rule or group that is not gone too names it.
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
        let head = self.head(to.slot);
        group.older = AtomicPtr::new(head.load(Ordering::Relaxed));
        head.store(Box::into_raw(Box::new(group)), Ordering::Release);
        self.touched.push(to.slot);
    }

    /// Takes back the last [`GroupWriter::put`] for this group, before it has been committed.
    pub fn take_back(&mut self, to: GroupRef) {
        let head = self.head(to.slot);
        let version = head.load(Ordering::Relaxed);
        // SAFETY: the head is alive; this is its only writer.
        let Some(group) = (unsafe { version.as_ref() }) else {
            return;
        };
        debug_assert!(!group.cut.load(Ordering::Relaxed));
        head.store(group.older.load(Ordering::Relaxed), Ordering::Release);
        // SAFETY: made by `Box::into_raw` in `put`, and no longer named by anything; readers are waited for by `retire`.
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

    /// Takes back a [`GroupWriter::remove`] that has not been published.
    pub fn bring_back(&mut self, to: GroupRef) {
        self.mark(to, NEVER);
    }

    /// Hands over what the next publication makes unreachable.
    pub fn commit(&mut self) {
        let mut dead: Vec<*mut Group> = Vec::new();
        for slot in std::mem::take(&mut self.touched) {
            let mut version = self.head(slot).load(Ordering::Relaxed);
            // SAFETY: the head is alive, and so is each version up to one that is cut: nothing of the chain has been retired yet.
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
            // SAFETY: made by `Box::into_raw` in `put`; `cut` sees to it that it is taken once. Bursts that may come to it are waited for by `retire`.
            domain.retire(unsafe { Box::from_raw(version) });
        }
        for slot in leaving {
            let bridge = Arc::downgrade(&self.bridge);
            domain.retire(Box::new(Leaving { bridge, slot }));
        }
    }
}

/// A slot that nobody uses any more once this is dropped. Weak: what is retired lies inside the program.
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
            // A stale step may have come to it in this very moment, so it stays a little longer.
            // SAFETY: made by `Box::into_raw` in `put`, and taken out once, by the swap.
            bridge
                .program()
                .domain
                .retire(unsafe { Box::from_raw(version) });
        }
        bridge.groups().slots().free.push(self.slot);
    }
}
