//! Moves entries of a device's indirection table (RETA) from one receive queue to another, and
//! keeps packets in order.
//!
//! After the table has been written, packets of an entry that has moved come by its new queue,
//! while earlier ones may still lie in the old one. So the move goes in steps:
//!
//! 1. The new queue's end ([`Receiver`]) is told to keep packets of the entry ([`Table::begin`]).
//! 2. The table is written ([`Table::write`]). Packets that were on their way then have [`SETTLED`]
//!    to arrive in the old queue.
//! 3. The old queue's end is asked to say when all of these have been received and processed
//!    ([`Table::ask`]): the queue was empty, or as many have come as it can hold; and its worker
//!    has come back for more, so it has finished those.
//! 4. The new queue's end hands out what it has kept, in order, and goes on ([`Table::end`]).
//!
//! Nobody waits for anybody: a receive queue's end looks at the table's state after each look at
//! the queue. A packet that comes by the new queue was received after the table was written, and so
//! is seen together with what step 1 has said. A thread for each device takes the steps. A move
//! ends after [`LONGEST`] whatever happens, and the packets kept for all moves to a queue are at
//! most [`PARKED_MOST`]; where that is not enough, order may be lost, which is counted.
//!
//! "Finished" means that the worker has passed them on: packets that it holds (for a rule, or a
//! tunnel's next hop) or has handed to another worker may be overtaken.

use packet::Frame;
use packet::io::{Indirection, IndirectionCounts};
use packet::rss::Rss;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver as Requests, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most frames that a queue keeps for all moves to it.
const PARKED_MOST: usize = 1_280;
/// Most entries that move at a time.
const MOVES_MOST: usize = 64;
/// Time for a packet to get from a card's table to memory. Some microseconds, in fact.
const SETTLED: Duration = Duration::from_micros(100);
/// How often it is checked whether old queues have been emptied.
const LOOK: Duration = Duration::from_micros(50);
/// Longest time that packets are kept.
const LONGEST: Duration = Duration::from_millis(100);
/// A watched queue counts one burst in this many.
const SAMPLE: u32 = 8;
/// No queue, in [`Table::arriving`].
const NONE: u16 = u16::MAX;
/// Bit of [`Table::state`]: packets are counted.
const WATCHED: u32 = 1;

/// Writes a device's table: the index of a queue for each entry. The error is a negative error
/// number.
pub(crate) trait Write: Send {
    fn write(&mut self, queues: &[u16]) -> Result<(), i32>;
}

/// Entries to be moved, each with its new queue.
type Moves = Vec<(u16, u16)>;

/// An indirection table, shared by the ends of its device's queues, control, and the thread that
/// moves entries.
pub(crate) struct Table {
    /// Changes with whatever the ends of queues must look at: a number, and [`WATCHED`].
    state: AtomicU32,
    /// The queue of each entry.
    at: Box<[AtomicU16]>,
    /// The queue that each moving entry comes to, and which keeps its packets; else [`NONE`].
    arriving: Box<[AtomicU16]>,
    /// The number of the moves for which packets are kept now; 0 for none.
    keeping: AtomicU32,
    /// The number of the last moves.
    latest: AtomicU32,
    /// For each queue the number of the last moves whose end it has seen, with nothing kept left.
    ended: Box<[AtomicU32]>,
    /// For each queue the number of the moves for which it is to say that it has been emptied; 0
    /// for none.
    leave: Box<[AtomicU32]>,
    /// For each queue the number of the last moves for which it has said so.
    left: Box<[AtomicU32]>,
    packets: Box<[AtomicU64]>,
    rss: Rss,
    device: Mutex<Option<Box<dyn Write>>>,
    /// Whether the device does not run.
    stopped: AtomicBool,
    /// Whether the device has said that it cannot do this.
    unable: AtomicBool,
    requests: Mutex<Option<SyncSender<Moves>>>,
    moving: AtomicBool,
    /// Whether a queue had no room for the frames of these moves.
    overflowed: AtomicBool,
    moved: AtomicU64,
    hurried: AtomicU64,
    failed: AtomicU64,
    parked: AtomicU64,
}

/// Waits until something is so, or [`LONGEST`].
fn wait_for(is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONGEST;
    while !is_so() && Instant::now() < end {
        std::thread::sleep(LOOK);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Creates the state of a table that now leads to these queues, of `count`.
    fn new(at: &[u16], count: u16, rss: Rss, device: Box<dyn Write>) -> Table {
        let queues = || (0..count).map(|_| AtomicU32::new(0)).collect();
        Table {
            state: AtomicU32::new(0),
            at: at.iter().map(|queue| AtomicU16::new(*queue)).collect(),
            arriving: at.iter().map(|_| AtomicU16::new(NONE)).collect(),
            keeping: AtomicU32::new(0),
            latest: AtomicU32::new(0),
            ended: queues(),
            leave: queues(),
            left: queues(),
            packets: at.iter().map(|_| AtomicU64::new(0)).collect(),
            rss,
            device: Mutex::new(Some(device)),
            stopped: AtomicBool::new(false),
            unable: AtomicBool::new(false),
            requests: Mutex::new(None),
            moving: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            hurried: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            parked: AtomicU64::new(0),
        }
    }

    /// Creates it, with the thread that moves entries, which ends when the table is closed. None
    /// where no thread can be had.
    pub(crate) fn start(
        name: &str,
        at: &[u16],
        count: u16,
        rss: Rss,
        device: Box<dyn Write>,
    ) -> Option<Arc<Table>> {
        let table = Arc::new(Table::new(at, count, rss, device));
        let (sender, requests) = sync_channel(1);
        *lock(&table.requests) = Some(sender);
        let moved = Arc::clone(&table);
        let short: String = name.chars().take(10).collect();
        let thread = std::thread::Builder::new().name(format!("reta-{short}"));
        match thread.spawn(move || moved.serve(&requests)) {
            Ok(_) => Some(table),
            Err(error) => {
                tracing::warn!(target: "dpdk", "{name}: its flows stay in their queues: {error}");
                None
            }
        }
    }

    /// Waits until nobody writes the device's table, and keeps others from it. What it returns
    /// rewrites the table, or forgets the device.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held {
            table: self,
            device: lock(&self.device),
        }
    }

    fn serve(&self, requests: &Requests<Moves>) {
        while let Ok(moves) = requests.recv() {
            self.perform(&moves);
            self.moving.store(false, Ordering::Release);
        }
    }

    /// Takes all steps of these moves.
    fn perform(&self, moves: &[(u16, u16)]) {
        let number = self.begin(moves);
        let Some(old) = self.write(moves) else {
            return self.forget();
        };
        std::thread::sleep(SETTLED);
        self.ask(number, &old);
        wait_for(|| self.are_left(number, &old));
        self.end(number, moves, &old);
        // The end of a queue that has missed the end of these moves would take frames that it keeps
        // for those of the next.
        wait_for(|| self.are_ended(number, moves));
    }

    /// Has the new queues keep packets of entries that come; returns the number of these moves.
    fn begin(&self, moves: &[(u16, u16)]) -> u32 {
        // Nobody reads it now: the ends of queues have seen the end of the moves before.
        for arriving in &self.arriving {
            arriving.store(NONE, Ordering::Relaxed);
        }
        for (entry, queue) in moves {
            self.arriving[usize::from(*entry)].store(*queue, Ordering::Relaxed);
        }
        let number = self.number();
        self.latest.store(number, Ordering::Relaxed);
        self.keeping.store(number, Ordering::Release);
        self.changed();
        // Before the device is told.
        fence(Ordering::SeqCst);
        number
    }

    /// Returns a number for the next moves, which is not 0.
    fn number(&self) -> u32 {
        self.state.load(Ordering::Relaxed) / 2 + 1
    }

    /// Writes the device's table; returns the queues that entries have left. None if the device
    /// refuses, and then nothing moves.
    fn write(&self, moves: &[(u16, u16)]) -> Option<Vec<u16>> {
        let mut queues = self.queues();
        let mut old = Vec::new();
        for (entry, queue) in moves {
            let from = std::mem::replace(&mut queues[usize::from(*entry)], *queue);
            if from != *queue && !old.contains(&from) {
                old.push(from);
            }
        }
        let mut device = lock(&self.device);
        let written = match &mut *device {
            Some(_) if self.stopped.load(Ordering::Relaxed) => Err(-libc::ENETDOWN),
            Some(device) => device.write(&queues),
            None => Err(-libc::ENODEV),
        };
        if let Err(code) = written {
            drop(device);
            (self.unable).fetch_or(code == -libc::ENOTSUP, Ordering::Relaxed);
            let why = crate::describe(-code);
            tracing::warn!(target: "dpdk", "a device does not take its indirection table: {why}");
            self.failed.fetch_add(moves.len() as u64, Ordering::Relaxed);
            return None;
        }
        // Under the lock: whoever rewrites the table must not write the old one.
        for (entry, queue) in moves {
            self.at[usize::from(*entry)].store(*queue, Ordering::Relaxed);
        }
        Some(old)
    }

    /// Asks old queues to say when they have been emptied.
    fn ask(&self, number: u32, old: &[u16]) {
        for queue in old {
            if let Some(leave) = self.leave.get(usize::from(*queue)) {
                leave.store(number, Ordering::Relaxed);
            }
        }
        self.changed();
    }

    fn are_left(&self, number: u32, old: &[u16]) -> bool {
        let left = |queue: &u16| {
            let left = self.left.get(usize::from(*queue));
            left.is_none_or(|left| left.load(Ordering::Acquire) == number)
        };
        old.iter().all(left)
    }

    /// Ends moves, whether old queues have been emptied or not.
    fn end(&self, number: u32, moves: &[(u16, u16)], old: &[u16]) {
        self.moved.fetch_add(moves.len() as u64, Ordering::Relaxed);
        let overflowed = self.overflowed.swap(false, Ordering::Relaxed);
        if overflowed || !self.are_left(number, old) {
            self.hurried
                .fetch_add(moves.len() as u64, Ordering::Relaxed);
        }
        for leave in &self.leave {
            leave.store(0, Ordering::Relaxed);
        }
        self.forget();
    }

    /// Has packets kept no longer. `arriving` is read only by who has seen the number of its moves.
    fn forget(&self) {
        self.keeping.store(0, Ordering::Release);
        self.changed();
    }

    /// Returns whether the new queues' ends have seen the end of these moves, and keep nothing.
    fn are_ended(&self, number: u32, moves: &[(u16, u16)]) -> bool {
        moves.iter().all(|(_, queue)| {
            let ended = self.ended.get(usize::from(*queue));
            ended.is_none_or(|ended| ended.load(Ordering::Acquire) == number)
        })
    }

    /// Has the ends of queues look.
    fn changed(&self) {
        self.state.fetch_add(2, Ordering::AcqRel);
    }

    fn queues(&self) -> Vec<u16> {
        self.at
            .iter()
            .map(|at| at.load(Ordering::Relaxed))
            .collect()
    }

    /// Returns the entry of a frame, whose hash the device may have reported.
    fn entry<F: Frame>(&self, frame: &F, hash: Option<u32>) -> usize {
        let hash = hash.unwrap_or_else(|| self.rss.hash(frame.head()));
        hash as usize % self.at.len()
    }
}

impl Indirection for Table {
    fn entries(&self) -> usize {
        self.at.len()
    }

    fn queue(&self, entry: usize) -> u16 {
        self.at[entry].load(Ordering::Relaxed)
    }

    fn watch(&self, on: bool) {
        match on {
            true => self.state.fetch_or(WATCHED, Ordering::AcqRel),
            false => self.state.fetch_and(!WATCHED, Ordering::AcqRel),
        };
    }

    fn packets(&self, entry: usize) -> u64 {
        self.packets[entry].load(Ordering::Relaxed)
    }

    fn begin_moves(&self, moves: &[(u16, u16)]) -> bool {
        let exists = |(entry, queue): &(u16, u16)| {
            usize::from(*entry) < self.at.len() && usize::from(*queue) < self.leave.len()
        };
        if moves.len() > MOVES_MOST
            || !moves.iter().all(exists)
            || self.unable.load(Ordering::Relaxed)
            || self.moving.swap(true, Ordering::Acquire)
        {
            return false;
        }
        let sent = match &*lock(&self.requests) {
            Some(requests) => requests.try_send(moves.to_vec()),
            None => Err(TrySendError::Disconnected(Vec::new())),
        };
        if sent.is_err() {
            self.moving.store(false, Ordering::Release);
        }
        sent.is_ok()
    }

    fn counts(&self) -> IndirectionCounts {
        IndirectionCounts {
            moved: self.moved.load(Ordering::Relaxed),
            hurried: self.hurried.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            parked: self.parked.load(Ordering::Relaxed),
        }
    }
}

/// A device's table that nobody else writes meanwhile.
pub(crate) struct Held<'a> {
    table: &'a Table,
    device: MutexGuard<'a, Option<Box<dyn Write>>>,
}

impl Held<'_> {
    /// Keeps others from writing also when this is gone, because the device does not run.
    pub(crate) fn suspend(&mut self) {
        self.table.stopped.store(true, Ordering::Relaxed);
    }

    /// Writes the table again, after the device has been started anew.
    pub(crate) fn rewrite(&mut self) {
        self.table.stopped.store(false, Ordering::Relaxed);
        if let Some(device) = &mut *self.device
            && let Err(code) = device.write(&self.table.queues())
        {
            let why = crate::describe(-code);
            tracing::warn!(target: "dpdk", "a device has its first indirection table again: {why}");
        }
    }

    /// Forgets the device, which is to be closed, and ends the thread.
    pub(crate) fn close(&mut self) {
        *self.device = None;
        *lock(&self.table.requests) = None;
    }
}

/// How far a queue has been emptied since it was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// It has not been asked.
    No,
    /// So many frames have been received since.
    Asked(usize),
    /// All that were in it have been received, by the last call.
    Received,
}

/// The table's part of a receive queue's end.
pub(crate) struct Receiver<F> {
    table: Arc<Table>,
    queue: u16,
    /// How many frames the queue holds.
    capacity: usize,
    /// The last state seen.
    seen: u32,
    /// The number of the moves for which it is being emptied.
    number: u32,
    leaving: Leaving,
    /// The number of the moves for which frames are kept, or have been; 0 for none.
    moves: u32,
    /// Whether these moves have ended.
    ends: bool,
    /// Whether frames of an entry are kept, by entry.
    mine: Box<[bool]>,
    /// Whether frames of some entries are kept.
    keeps: bool,
    /// Frames that are kept, and those that have been and go first.
    parked: VecDeque<F>,
    bursts: u32,
}

impl<F: Frame> Receiver<F> {
    pub(crate) fn new(table: &Arc<Table>, queue: u16, capacity: u16) -> Receiver<F> {
        Receiver {
            table: Arc::clone(table),
            queue,
            capacity: capacity.into(),
            seen: 0,
            number: 0,
            leaving: Leaving::No,
            moves: 0,
            ends: true,
            mine: vec![false; table.at.len()].into(),
            keeps: false,
            parked: VecDeque::new(),
            bursts: 0,
        }
    }

    /// Does what is to be done before the queue is looked at; `finished` if all frames that have
    /// been received are finished. Where frames that had been kept are to go first, appends up to
    /// `most` of them to `out` and returns how many; the queue is not to be looked at then.
    #[inline(always)]
    pub(crate) fn before(
        &mut self,
        most: usize,
        finished: bool,
        out: &mut Vec<F>,
    ) -> Option<usize> {
        if self.leaving == Leaving::Received && finished {
            self.table.left[usize::from(self.queue)].store(self.number, Ordering::Release);
            self.leaving = Leaving::No;
        }
        if self.parked.is_empty() || self.keeps {
            return None;
        }
        Some(self.hand_out(most, out))
    }

    #[cold]
    fn hand_out(&mut self, most: usize, out: &mut Vec<F>) -> usize {
        let count = most.min(self.parked.len());
        out.extend(self.parked.drain(..count));
        self.table.parked.fetch_sub(count as u64, Ordering::Relaxed);
        self.tell_ended();
        count
    }

    /// Says that the last moves have ended here, once nothing is kept of them.
    fn tell_ended(&mut self) {
        if self.ends && self.parked.is_empty() {
            let latest = self.table.latest.load(Ordering::Relaxed);
            self.table.ended[usize::from(self.queue)].store(latest, Ordering::Release);
        }
    }

    /// Takes notice of the frames that the queue has given, those from `first` on in `out`: counts
    /// them, and keeps some back. Returns how many of them are left. `hash`: the hash that the
    /// device has reported of a frame.
    #[inline(always)]
    pub(crate) fn after(
        &mut self,
        out: &mut Vec<F>,
        first: usize,
        most: usize,
        hash: impl Fn(&F) -> Option<u32>,
    ) -> usize {
        let state = self.table.state.load(Ordering::Acquire);
        let received = out.len() - first;
        let mut sampled = false;
        if state & WATCHED != 0 && received > 0 {
            self.bursts = self.bursts.wrapping_add(1);
            sampled = self.bursts.is_multiple_of(SAMPLE);
        }
        if state == self.seen && self.leaving == Leaving::No && !self.keeps && !sampled {
            return received;
        }
        if sampled {
            self.count(&out[first..], &hash);
            if state == self.seen && self.leaving == Leaving::No && !self.keeps {
                return received;
            }
        }
        self.look(state, out, first, most, hash)
    }

    #[inline(never)]
    fn count(&self, frames: &[F], hash: &impl Fn(&F) -> Option<u32>) {
        for frame in frames {
            let entry = self.table.entry(frame, hash(frame));
            self.table.packets[entry].fetch_add(SAMPLE.into(), Ordering::Relaxed);
        }
    }

    #[inline(never)]
    fn look(
        &mut self,
        state: u32,
        out: &mut Vec<F>,
        first: usize,
        most: usize,
        hash: impl Fn(&F) -> Option<u32>,
    ) -> usize {
        let table = Arc::clone(&self.table);
        let received = out.len() - first;
        if let Leaving::Asked(before) = self.leaving {
            let so_far = before + received;
            self.leaving = match received == 0 || so_far >= self.capacity {
                true => Leaving::Received,
                false => Leaving::Asked(so_far),
            };
        }
        if state != self.seen {
            let asked = table.leave[usize::from(self.queue)].load(Ordering::Relaxed);
            // What this call has received may have come before the table was written, or not.
            if asked != 0 && asked != self.number {
                (self.number, self.leaving) = (asked, Leaving::Asked(0));
            }
            if asked == 0 {
                self.leaving = Leaving::No;
            }
            let keeping = table.keeping.load(Ordering::Acquire);
            if keeping != self.moves {
                (self.keeps, self.ends) = (false, true);
                if !self.parked.is_empty() {
                    // What has been kept goes first. If other moves have begun meanwhile, the next
                    // call looks at those.
                    self.park(out.drain(first..));
                    return self.hand_out(most, out);
                }
                self.moves = keeping;
                if keeping != 0 {
                    self.ends = false;
                    for (mine, arriving) in self.mine.iter_mut().zip(&table.arriving) {
                        *mine = arriving.load(Ordering::Relaxed) == self.queue;
                    }
                    self.keeps = self.mine.contains(&true);
                }
            }
            self.seen = state;
            self.tell_ended();
        }
        if !self.keeps {
            return received;
        }
        let mine = &self.mine;
        let arrives = |frame: &mut F| mine[table.entry(&*frame, hash(&*frame))];
        let kept: Vec<F> = out.extract_if(first.., arrives).collect();
        self.park(kept.into_iter());
        if self.parked.len() >= PARKED_MOST {
            // They go first from now on, and what comes behind them follows.
            self.keeps = false;
            table.overflowed.store(true, Ordering::Relaxed);
        }
        out.len() - first
    }

    fn park(&mut self, frames: impl ExactSizeIterator<Item = F>) {
        let count = frames.len() as u64;
        self.table.parked.fetch_add(count, Ordering::Relaxed);
        self.parked.extend(frames);
    }
}

impl<F> Drop for Receiver<F> {
    fn drop(&mut self) {
        let count = self.parked.len() as u64;
        self.table.parked.fetch_sub(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
