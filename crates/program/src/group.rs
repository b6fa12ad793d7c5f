//! Groups (OpenFlow 1.3.5 section 5.6), as workers see them.
//!
//! A step names a group by a [`GroupRef`]: its number and a slot that the writer has assigned, so a
//! packet finds it without a search. The slot holds a list of the group's versions, the newest
//! first. Each carries the epoch in which it appears, so groups change by epochs as rules do: a
//! burst takes the first version that has appeared in its epoch, and only bursts of older epochs
//! look at older ones. Slots outlive groups. A slot that has been given to another group is
//! recognised by the number, so a stale step (in a packet-out that waited) meets no group instead
//! of a wrong one.

mod select;

pub use select::{GroupHash, Selector};

use crate::actions::{Op, PortNo};
use crate::counters::CounterId;
use crate::epoch::{Epoch, Guard, NEVER};
use crate::table::GroupEdges;
use packet::WordSet;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Slots in a chunk, which is allocated as a whole.
pub(crate) const CHUNK: usize = 1024;
/// Most chunks.
pub(crate) const CHUNKS: usize = 1024;

/// Most groups of a bridge, including those that are only referred to.
pub const GROUPS_MAX: usize = CHUNK * CHUNKS;

/// Most watched buckets examined for one choice, including those of watched groups; further ones
/// count as dead. Without this limit, groups that watch each other would be examined forever.
pub const LOOKS: u32 = 1024;

/// A reference to a group, as in a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupRef {
    /// The group's OpenFlow number.
    pub number: u32,
    pub(crate) slot: u32,
}

impl GroupRef {
    /// Creates a reference without a slot, which does nothing.
    pub const fn unbound(number: u32) -> GroupRef {
        GroupRef {
            number,
            slot: u32::MAX,
        }
    }
}

/// What a bucket watches: it is live when one of these is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Watch {
    /// A port.
    pub port: Option<PortNo>,
    /// A group, live when one of its buckets is.
    pub group: Option<GroupRef>,
}

/// A bucket: one of a group's lists of steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    /// Its steps, in the order of an action set.
    pub(crate) ops: Box<[Op]>,
    pub(crate) counter: CounterId,
    pub(crate) watch: Option<Watch>,
    /// The port, if its only step is an output to one.
    pub(crate) only_output: Option<PortNo>,
    /// Whether it changes the packet or its metadata.
    pub(crate) changes: bool,
    /// Whether it runs rules, which may do anything.
    pub(crate) resubmits: bool,
}

impl Bucket {
    /// Creates a bucket of these steps, which are in the order of an action set.
    pub fn new(ops: Box<[Op]>, counter: CounterId, watch: Option<Watch>) -> Bucket {
        // A nested group may change the length with which the packet is counted (a select group by
        // the datapath's own hash).
        let harmless = Op::only_sends;
        Bucket {
            only_output: match &*ops {
                [Op::Output(port)] => Some(*port),
                _ => None,
            },
            changes: !ops.iter().all(harmless),
            resubmits: ops.iter().any(Op::runs_rules),
            ops,
            counter,
            watch,
        }
    }

    /// Returns the words of the key that its steps read or change.
    pub fn words(&self) -> WordSet {
        self.ops
            .iter()
            .fold(WordSet::EMPTY, |set, op| set.union(op.words()))
    }
}

/// How a group chooses buckets.
#[derive(Debug)]
pub(crate) enum Selection {
    /// Every bucket: one step for each.
    Every(Box<[Op]>),
    /// The first live bucket.
    FirstLive(Box<[Bucket]>),
    /// A live bucket that the packet's hash chooses.
    Selected {
        buckets: Box<[Bucket]>,
        selector: Selector,
    },
}

/// One version of a group.
#[derive(Debug)]
pub struct Group {
    pub(crate) number: u32,
    pub(crate) kind: Selection,
    pub(crate) counter: CounterId,
    /// First epoch in which it holds.
    pub(crate) added: Epoch,
    /// First epoch in which the group is gone.
    pub(crate) removed: AtomicU64,
    /// The previous version: alive as long as a burst may be in an epoch before `added`, and not
    /// looked at by others.
    pub(crate) older: AtomicPtr<Group>,
    /// Whether `older` has been retired.
    pub(crate) cut: AtomicBool,
    /// Where its buckets lead, for as long as a burst may meet it.
    pub(crate) edges: Option<GroupEdges>,
}

impl Group {
    pub(crate) fn new(number: u32, counter: CounterId, kind: Selection) -> Group {
        Group {
            number,
            kind,
            counter,
            added: 0,
            removed: AtomicU64::new(NEVER),
            older: AtomicPtr::default(),
            cut: AtomicBool::new(false),
            edges: None,
        }
    }

    /// Creates a group that runs every bucket (types all and indirect).
    pub fn every(number: u32, counter: CounterId, buckets: Vec<Bucket>) -> Group {
        let steps = buckets
            .into_iter()
            .map(|bucket| Op::Bucket(Arc::new(bucket)));
        Group::new(number, counter, Selection::Every(steps.collect()))
    }

    /// Creates a group that runs its first live bucket (fast failover).
    pub fn first_live(number: u32, counter: CounterId, buckets: Vec<Bucket>) -> Group {
        Group::new(number, counter, Selection::FirstLive(buckets.into()))
    }

    /// Creates a group that runs the bucket chosen by the selector (select).
    pub fn selected(
        number: u32,
        counter: CounterId,
        buckets: Vec<Bucket>,
        selector: Selector,
    ) -> Group {
        let kind = Selection::Selected {
            buckets: buckets.into(),
            selector,
        };
        Group::new(number, counter, kind)
    }

    /// Returns the steps of each bucket.
    pub(crate) fn bucket_ops(&self) -> impl Iterator<Item = &[Op]> {
        let (every, buckets) = match &self.kind {
            Selection::Every(steps) => (&steps[..], &[][..]),
            Selection::FirstLive(buckets) | Selection::Selected { buckets, .. } => {
                (&[][..], &buckets[..])
            }
        };
        let every = every.iter().filter_map(|op| match op {
            Op::Bucket(bucket) => Some(&*bucket.ops),
            _ => None,
        });
        every.chain(buckets.iter().map(|bucket| &*bucket.ops))
    }

    pub(crate) fn words(&self) -> WordSet {
        let of = |buckets: &[Bucket]| {
            buckets
                .iter()
                .fold(WordSet::EMPTY, |set, bucket| set.union(bucket.words()))
        };
        match &self.kind {
            Selection::Every(steps) => steps
                .iter()
                .fold(WordSet::EMPTY, |set, op| set.union(op.words())),
            Selection::FirstLive(buckets) => of(buckets),
            Selection::Selected { buckets, selector } => of(buckets).union(selector.hash.words()),
        }
    }
}

pub(crate) type Chunk = [AtomicPtr<Group>; CHUNK];

#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) next: u32,
    pub(crate) free: Vec<u32>,
}

/// A bridge's groups by slot.
#[derive(Debug)]
pub(crate) struct GroupTable {
    pub(crate) chunks: Box<[AtomicPtr<Chunk>]>,
    pub(crate) slots: Mutex<Slots>,
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
    pub(crate) fn head(&self, slot: u32) -> Option<&AtomicPtr<Group>> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?;
        // SAFETY: a chunk pointer is null or was made by `Box::into_raw` in `allocate`, and is
        // freed only when `self` is dropped.
        let chunk = unsafe { chunk.load(Ordering::Acquire).as_ref() }?;
        Some(&chunk[slot as usize % CHUNK])
    }

    /// Returns the group as it is in the guard's epoch. The guard is one of the table's domain.
    #[inline(always)]
    pub(crate) fn get<'g>(&self, to: GroupRef, guard: &'g Guard<'_>) -> Option<&'g Group> {
        let epoch = guard.epoch();
        let mut version = self.head(to.slot)?.load(Ordering::Acquire);
        loop {
            // SAFETY: a version that a slot names is retired to the domain after it has been taken
            // out; one that a newer version names is retired when the newer one's
            // `added` is about to be published, and only bursts of earlier epochs, which that waits
            // for, come to it.
            let group: &'g Group = unsafe { version.as_ref() }?;
            if group.added <= epoch {
                let holds = epoch < group.removed.load(Ordering::Relaxed);
                return (holds && group.number == to.number).then_some(group);
            }
            version = group.older.load(Ordering::Acquire);
        }
    }

    pub(crate) fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn allocate(&self) -> Option<u32> {
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
                    // SAFETY: made by `Box::into_raw` in `put`; a version is either named here or
                    // retired (`cut`), never both.
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
