//! Fragments that wait at `ct` until their datagram is whole: one table for all workers, because
//! fragments of one datagram may come to several. Only fragments and their expiry take its lock,
//! and nobody keeps it for longer than one fragment's search and the freezing of its walk, what a
//! turn lets expire, or a part of a list.

use conntrack::fragments::{Fragments, OutOfRange, Outcome, ReassemblyContext, Request, Status};
use conntrack::{Tracked, Tracker, state};
use packet::fragment::{self, Fragment};
use packet::{FlowKey, Frame, HeapFrame, WordSet, parse};
use program::actions::Op;
use program::exec::{Arrived, Parked};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a frame that holds one buffer.
const FRAME_BYTES: usize = 2048;
/// Most datagrams that are looked at under the lock at a time, for a list.
const LISTED: usize = 64;

/// A held fragment.
pub(crate) type Held<F> = Box<Parked<F>>;

/// The table.
pub(crate) struct Table<F> {
    inner: Mutex<Fragments<Held<F>>>,
    /// When the oldest fragments expire, in milliseconds; `u64::MAX` while none wait.
    due_ms: AtomicU64,
}

/// What became of a fragment.
pub(crate) enum Taken<F> {
    /// It waits.
    Held,
    /// It completed its datagram, all of whose fragments these are.
    Whole(Vec<(Fragment, Held<F>)>),
    /// It is not held.
    Refused,
}

impl<F: Frame> Table<F> {
    pub fn new() -> Table<F> {
        Table {
            inner: Mutex::new(Fragments::default()),
            due_ms: AtomicU64::new(u64::MAX),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Fragments<Held<F>>> {
        // Nothing that is done under the lock can leave it such that using it panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the table, and notes what is due then.
    fn with<R>(&self, act: impl FnOnce(&mut Fragments<Held<F>>) -> R) -> R {
        let mut table = self.lock();
        let result = act(&mut table);
        let due_ms = table.due_ms().unwrap_or(u64::MAX);
        self.due_ms.store(due_ms, Ordering::Relaxed);
        result
    }

    /// Takes a fragment, which `park` freezes. Returns with it those whose waiting ended because of
    /// it, which are to go on as expired.
    pub fn take(
        &self,
        arrived: &Arrived<'_>,
        bridge: u32,
        now_ms: u64,
        park: impl FnOnce() -> Held<F>,
    ) -> (Taken<F>, Vec<Held<F>>) {
        let place = ReassemblyContext {
            bridge,
            pass: arrived.pass.into(),
            zone: arrived.request.zone,
        };
        let bytes = arrived.length + arrived.steps * size_of::<Op>();
        // A chain may be of short ones.
        let buffers = bytes.div_ceil(FRAME_BYTES).max(arrived.segments);
        let request = Request {
            place,
            holder: u64::from(bridge) << 32 | u64::from(arrived.in_port),
            buffers: u32::try_from(buffers).unwrap_or(u32::MAX),
            makes_room: arrived.earlier.state != expired().state,
        };
        let offer = self.with(|table| table.offer(arrived.fragment, &request, now_ms, park));
        let taken = match offer.outcome {
            Outcome::Held => Taken::Held,
            Outcome::Whole(all) => Taken::Whole(all),
            Outcome::Refused(_) => Taken::Refused,
        };
        (taken, offer.ended)
    }

    /// Returns whether fragments have expired.
    #[inline(always)]
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.due_ms.load(Ordering::Relaxed) <= now_ms
    }

    /// Returns expired fragments: of whole datagrams, and not many more than `most`.
    pub fn expire(&self, now_ms: u64, most: usize) -> Vec<Held<F>> {
        self.with(|table| table.expire(now_ms, most))
    }

    /// Frees all fragments, or those that no worker has let go on in time.
    pub fn purge(&self, overdue_at: Option<u64>) {
        // Freed without the lock.
        drop(self.with(|table| match overdue_at {
            None => table.purge(),
            Some(now_ms) => table.purge_overdue(now_ms),
        }));
    }

    /// Sets how many buffers may be held.
    pub fn bound(&self, buffers: u64) {
        self.lock().set_most_buffers(buffers);
    }

    pub fn set_enabled(&self, v6: bool, is_enabled: bool) {
        self.lock().set_enabled(v6, is_enabled);
    }

    pub fn set_minimum(&self, v6: bool, bytes: u32) -> Result<(), OutOfRange> {
        self.lock().set_minimum(v6, bytes)
    }

    pub fn set_most(&self, most: u32) -> Result<(), OutOfRange> {
        self.lock().set_most(most)
    }

    pub fn status(&self) -> Status {
        self.lock().status()
    }

    /// Returns a line for each datagram that waits, the oldest first. Keeps the lock for no more
    /// than [`LISTED`] of them at a time, and puts the text together without it.
    pub fn lines(&self) -> String {
        let (mut text, mut after) = (String::new(), None);
        let latest = self.lock().latest();
        loop {
            let waiting = self.lock().waiting(after, LISTED);
            let listed = waiting
                .iter()
                .take_while(|waiting| waiting.serial <= latest);
            listed.for_each(|waiting| waiting.print(&mut text));
            match waiting.last() {
                Some(last) if waiting.len() == LISTED && last.serial < latest => {
                    after = Some(last.serial);
                }
                _ => return text,
            }
        }
    }
}

/// Looks a whole datagram up in the tracker.
pub(crate) fn track<F: Frame>(
    tracker: &Tracker,
    all: &[(Fragment, Held<F>)],
    arrived: &Arrived<'_>,
    now_ms: u64,
) -> Tracked {
    let invalid = Tracked {
        state: state::INVALID | state::TRACKED,
        zone: arrived.request.zone,
        ..Tracked::default()
    };
    let frames = all
        .iter()
        .map(|(fragment, held)| Some((fragment, held.frame()?)));
    let Some(frames) = frames.collect::<Option<Vec<_>>>() else {
        return invalid;
    };
    let Ok(bytes) = fragment::join_bytes(frames.into_iter()) else {
        return invalid;
    };
    let mut whole = HeapFrame::new(&bytes);
    let mut key = FlowKey::ZERO;
    let layers = parse::parse_frame(&mut whole, arrived.in_port, WordSet::MINI_KEY, &mut key);
    tracker.track_again(&whole, &layers, arrived.earlier, arrived.request, now_ms)
}

/// The answer for fragments whose time was over. As in Open vSwitch, they do not count as tracked.
pub(crate) fn expired() -> Tracked {
    Tracked {
        state: state::INVALID,
        ..Tracked::default()
    }
}
