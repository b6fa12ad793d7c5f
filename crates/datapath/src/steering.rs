//! Flows that another worker processes than the one that receives them.
//!
//! A queue is received by one worker, however many flows come by it. Where that worker is too
//! loaded, it hands flows to others: each frame's flow is hashed into one of [`BUCKETS`] buckets,
//! and a bucket is processed by one worker, to which its frames go through a bounded ring of the
//! pair. Control says where buckets are to be ([`Buckets`]); the receiving worker brings them there
//! ([`Giver`]) without reordering or losing a frame ([`steer::handover`]); the other takes frames
//! out of its rings as it takes them out of queues ([`Inbox`]).
//!
//! A ring is a marker of its own: its sender counts what it has put in, and its receiver tells how
//! many of these are finished (sent, dropped, or with whoever owns a shaped port). So a bucket has
//! drained when as many are finished as had been put in when its move began.
//!
//! What a worker holds for long (packets that wait for a rule, or for a tunnel's next hop) is not
//! finished; a move waits for it, and is given up after [`LIMITS`] of time. "Finished" means given
//! to a device's transmit queue: each worker has one of its own, and what order a device keeps
//! between them is its own affair.

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

/// Buckets of a worker. With two dozen workers each has twenty to be balanced by.
pub const BUCKETS: usize = 512;
/// Frames that wait in the ring from one worker to another at most.
pub const RING: usize = 1024;
/// Buckets of a worker that move at a time at most.
const MOVING_MOST: usize = 16;
/// Frames of all of a worker's moving buckets that are parked at most.
const PARKED_MOST: usize = 2_048;
/// Of how many bursts a worker that keeps all its flows looks at one.
const SAMPLE: u64 = 8;
/// Bounds on one bucket's move.
pub(crate) const LIMITS: Limits = Limits {
    parked: 1_280,
    wait_ns: 100_000_000,
};

/// Frames of so many bytes at most are copied by the worker that takes them, and stay with the one
/// that received them: what a buffer has besides its bytes would have to go from one processor's
/// caches to the other's and back, which takes longer than to copy them.
const COPIED: usize = 256;
const CACHE_LINE: usize = 64;

/// The worker that receives it, as a bucket's place.
pub(crate) const HERE: u8 = u8::MAX;
/// On its way.
const MOVING: u8 = u8::MAX - 1;

/// A frame on its way to the worker that processes it.
pub(crate) struct Handed<F> {
    pub frame: F,
    /// By which it came in, and whether nothing was left to be done to it.
    pub origin: Origin,
}

/// The port that a frame came in by, and whether nothing was left to be done to it.
pub(crate) type Origin = (PortId, bool);

/// What a ring holds of a frame.
struct Entry<F> {
    /// The frame itself; none where its sender keeps it until its bytes have been copied.
    frame: Option<F>,
    origin: Origin,
    /// Its bytes, or those of its first segment.
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

    /// Asks for all of it that lies in the caches of another processor.
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

/// How far the receiver of a ring has come, which its sender reads.
#[derive(Default)]
struct Progress {
    /// Entries taken; what they point to is no longer read.
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

/// What control and a worker know together of the worker's buckets.
pub(crate) struct Buckets {
    /// Where control wants each: a worker's number, or [`HERE`].
    wanted: [AtomicU8; BUCKETS],
    /// Changes whenever `wanted` has.
    changes: AtomicU32,
    /// Whether frames are to be counted by bucket, and what they cost.
    watched: AtomicBool,
    /// Where each is, or was until its move ends.
    at: [AtomicU8; BUCKETS],
    /// How many are not [`HERE`].
    away: AtomicU32,
    /// Whether moves need not wait for packets that are held.
    hurried: AtomicBool,
    /// Frames received, by bucket. Of a worker that keeps all flows they are extrapolated.
    packets: [Count; BUCKETS],
    pub counters: Counters,
}

/// What a worker counts about flows that others process; cycles and frames of looked-at bursts.
#[derive(Default)]
pub(crate) struct Counters {
    pub received: Count,
    pub receive_cycles: Count,
    pub kept: Count,
    pub work_cycles: Count,
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
    /// For control: where a bucket is to be. Takes effect with [`Buckets::changed`].
    pub fn want(&self, bucket: usize, at: u8) {
        self.wanted[bucket].store(at, Ordering::Relaxed);
    }

    /// For control: where it has asked for a bucket to be.
    pub fn wanted(&self, bucket: usize) -> u8 {
        self.wanted[bucket].load(Ordering::Relaxed)
    }

    /// For control: all that was wanted is to be done.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// For control: whether moves are to end without waiting for packets that are held.
    pub fn hurry(&self, on: bool) {
        self.hurried.store(on, Ordering::Relaxed);
    }

    /// For control: has the worker count what its flows cost.
    pub fn watch(&self, on: bool) {
        self.watched.store(on, Ordering::Relaxed);
    }

    /// Where a bucket is.
    pub fn at(&self, bucket: usize) -> u8 {
        self.at[bucket].load(Ordering::Relaxed)
    }

    /// Whether all are with the worker that receives them, with all that was parked.
    pub fn all_here(&self) -> bool {
        self.away.load(Ordering::Acquire) == 0
    }

    /// Frames of a bucket so far.
    pub fn packets(&self, bucket: usize) -> u64 {
        self.packets[bucket].get()
    }
}
