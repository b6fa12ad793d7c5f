//! Steering between workers: flows that are processed by another worker than the one that receives
//! them.
//!
//! A queue is received by one worker, however many flows come by it. Where that worker is
//! overloaded, it hands flows to others: each frame's flow is hashed into one of [`BUCKETS`]
//! buckets, and a bucket is processed by one worker, to which its frames go through a bounded ring
//! for each pair of workers. Control decides where buckets are to be ([`Buckets`]); the receiving
//! worker moves them there ([`Giver`]) without reordering or losing a frame ([`steer::handover`]);
//! the other worker takes frames out of its rings as it takes them out of queues ([`Inbox`]).
//!
//! Frames with priority ([`crate::fcf::Urgency`]) always stay with the worker that receives them;
//! where that one is overloaded, control has all others leave it.
//!
//! A ring is its own marker: its sender counts the frames it has put in, and its receiver publishes
//! how many of these are finished (sent, dropped, or handed to the owner of a shaped port). So a
//! bucket has drained when as many are finished as had been put in when its move began.
//!
//! Frames that a worker holds for long (packets that wait for a rule, or for a tunnel's next hop)
//! are not finished; a move waits for them, and is given up after the times in [`LIMITS`].
//! "Finished" means given to a device's transmit queue: each worker has one of its own, and in
//! which order a device serves them is not controlled here.

mod give;
mod take;

pub(crate) use give::{Giver, Lane, Looked};
pub(crate) use take::Inbox;

use crate::counters::Count;
use crate::port::PortId;
use crossbeam_utils::CachePadded;
use packet::Frame;
use packet::parse::prefetch_at;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use steer::handover::Limits;

/// Buckets of a worker. With two dozen workers each gets about twenty.
pub const BUCKETS: usize = 512;
/// Most frames that wait in the ring from one worker to another.
pub const RING: usize = 1024;
/// Most buckets of a worker that move at a time.
const MOVING_MOST: usize = 16;
/// Most frames that are parked over all of a worker's moving buckets.
const PARKED_MOST: usize = 2_048;
/// A worker that keeps all its flows looks at one burst in this many.
const SAMPLE: u64 = 8;
/// Limits of one bucket's move.
pub(crate) const LIMITS: Limits = Limits {
    parked: 1_280,
    wait_ns: 100_000_000,
};

/// Frames up to this many bytes are copied by the worker that takes them, and their buffers stay
/// with the one that received them: moving a buffer's metadata between two processors' caches and
/// back takes longer than copying the bytes.
const COPIED: usize = 256;
const CACHE_LINE: usize = 64;

/// A bucket's place: the worker that receives it.
pub(crate) const HERE: u8 = u8::MAX;
/// A bucket's place: being moved.
const MOVING: u8 = u8::MAX - 1;

/// A frame on its way to the worker that processes it.
pub(crate) struct Handed<F> {
    pub frame: F,
    /// How it came in.
    pub origin: Origin,
}

/// How a frame came in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub port: PortId,
    /// Index of the port's receive queue.
    pub queue: u16,
    /// Whether it was received finished (nothing left to do).
    pub finished: bool,
}

/// A ring's entry for a frame.
struct Entry<F> {
    /// The frame itself; None where its sender keeps it until its bytes have been copied.
    frame: Option<F>,
    origin: Origin,
    /// Address of its bytes, or of those of its first segment.
    bytes: *const u8,
    length: u32,
}

// SAFETY: the bytes may be read by whoever has the entry, on any thread: they belong to `frame`, or
// to a frame that its sender keeps unchanged meanwhile (`Lane::lent`).
unsafe impl<F: Send> Send for Entry<F> {}

impl<F: Frame> Entry<F> {
    fn new(handed: Handed<F>) -> Entry<F> {
        let head = handed.frame.head();
        Entry {
            bytes: head.as_ptr(),
            length: head.len() as u32,
            frame: Some(handed.frame),
            origin: handed.origin,
        }
    }

    /// Prefetches what lies in the caches of another processor.
    #[inline(always)]
    fn prefetch(&self) {
        prefetch_at(self.bytes);
        match &self.frame {
            Some(frame) => frame.prefetch(),
            None => {
                for more in 1..COPIED.div_ceil(CACHE_LINE) {
                    if more * CACHE_LINE < self.length as usize {
                        prefetch_at(self.bytes.wrapping_add(more * CACHE_LINE));
                    }
                }
            }
        }
    }
}

/// A ring's progress, written by its receiver and read by its sender.
#[derive(Default)]
struct Progress {
    /// Entries taken; the memory they point to is no longer read.
    taken: AtomicU64,
    /// Entries that are finished.
    finished: AtomicU64,
}

/// Makes a ring to the worker with this number, which `nudge` wakes.
pub(crate) fn ring<F: Frame>(to: usize, nudge: Box<dyn Fn() + Send>) -> (Lane<F>, Inbox<F>) {
    let (producer, consumer) = rtrb::RingBuffer::new(RING);
    let progress: Arc<CachePadded<Progress>> = Arc::default();
    (
        Lane::new(to, producer, Arc::clone(&progress), nudge),
        Inbox::new(consumer, progress),
    )
}

/// State of a worker's buckets that it shares with control.
pub(crate) struct Buckets {
    /// Where control wants each: a worker's number, or [`HERE`].
    wanted: [AtomicU8; BUCKETS],
    /// Changes whenever `wanted` has.
    changes: AtomicU32,
    /// Whether to count frames by bucket, and their cost.
    watched: AtomicBool,
    /// Where each is, or was until its move ends.
    at: [AtomicU8; BUCKETS],
    /// Number of buckets that are not [`HERE`].
    away: AtomicU32,
    /// Whether moves need not wait for packets that are held.
    hurried: AtomicBool,
    /// Frames received, by bucket. Extrapolated from samples for a worker that keeps all flows.
    packets: [Count; BUCKETS],
    pub counters: Counters,
}

/// A worker's counts about flows that others process; cycles and frames of bursts looked at.
#[derive(Default)]
pub(crate) struct Counters {
    pub received: Count,
    pub receive_cycles: Count,
    pub kept: Count,
    pub work_cycles: Count,
    /// Frames with priority, which are never given away. Extrapolated from samples for a worker
    /// that keeps all flows.
    pub urgent: Count,
    pub handed: Count,
    pub refused: Count,
    pub taken: Count,
    pub take_cycles: Count,
    pub moved: Count,
    pub gave_up_full: Count,
    pub gave_up_late: Count,
    pub parked: Count,
}

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets {
            wanted: std::array::from_fn(|_| AtomicU8::new(HERE)),
            changes: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            at: std::array::from_fn(|_| AtomicU8::new(HERE)),
            away: AtomicU32::new(0),
            hurried: AtomicBool::new(false),
            packets: std::array::from_fn(|_| Count::default()),
            counters: Counters::default(),
        }
    }
}

impl Buckets {
    /// For control: sets where a bucket is to be. Takes effect with [`Buckets::changed`].
    pub fn want(&self, bucket: usize, at: u8) {
        self.wanted[bucket].store(at, Ordering::Relaxed);
    }

    /// For control: returns where it wants a bucket to be.
    pub fn wanted(&self, bucket: usize) -> u8 {
        self.wanted[bucket].load(Ordering::Relaxed)
    }

    /// For control: makes the worker act on all calls of [`Buckets::want`].
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// For control: sets whether moves end without waiting for packets that are held.
    pub fn hurry(&self, on: bool) {
        self.hurried.store(on, Ordering::Relaxed);
    }

    /// For control: sets whether the worker counts the cost of its flows.
    pub fn watch(&self, on: bool) {
        self.watched.store(on, Ordering::Relaxed);
    }

    /// Returns where a bucket is.
    pub fn at(&self, bucket: usize) -> u8 {
        self.at[bucket].load(Ordering::Relaxed)
    }

    /// Returns whether all buckets, with all parked frames, are with the worker that receives them.
    pub fn all_here(&self) -> bool {
        self.away.load(Ordering::Acquire) == 0
    }

    /// Returns the number of frames of a bucket so far.
    pub fn packets(&self, bucket: usize) -> u64 {
        self.packets[bucket].get()
    }
}
