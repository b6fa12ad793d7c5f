//! Records what arrives at a queue and how long it waits there, for predictions.
//!
//! A shaper records this only for queues that somebody has asked about ([`Watch::ask`]): some
//! twenty additions per packet, in memory of that queue's own. One thread writes (the shaper's
//! owner), any may read. A temporary watch ([`Watch::ask_for_a_while`]) ends with
//! [`Watch::let_go`].
//!
//! Means and second moments of sizes and gaps give load and variability, histograms the
//! distributions. Batches (at most [`BATCHES`], which double their length when all are full) give
//! the statistical error: packets of one queue are not independent, but long batches nearly are.

use super::counters::Count;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// Most queues of a port that are watched: each takes some 8 KB.
pub const MAX_WATCHED: usize = 1024;
/// Most batches kept.
pub const BATCHES: usize = 64;
/// Initial number of packets per batch.
const FIRST_BATCH: u64 = 16;
/// Intervals of a histogram: four per doubling, up to 2^40.
pub const INTERVALS: usize = 4 * 39;

/// Returns the interval that a value lies in.
#[inline]
pub fn interval(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let octave = value.ilog2() as usize;
    let quarter = (value >> (octave - 2)) as usize & 3;
    (4 * (octave - 1) + quarter).min(INTERVALS - 1)
}

/// Returns the smallest value in an interval.
pub fn lower_end(interval: usize) -> u64 {
    if interval < 4 {
        return interval as u64;
    }
    let (octave, quarter) = (interval / 4 + 1, interval as u64 % 4);
    (4 + quarter) << (octave - 2)
}

/// A floating-point sum that one thread writes.
#[derive(Default)]
struct Sum(AtomicU64);

impl Sum {
    #[inline(always)]
    fn add(&self, more: f64) {
        let sum = f64::from_bits(self.0.load(Ordering::Relaxed)) + more;
        self.0.store(sum.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// A histogram: counts and sums by interval.
struct Spread {
    counts: [Count; INTERVALS],
    sums: [Count; INTERVALS],
}

impl Default for Spread {
    fn default() -> Spread {
        Spread {
            counts: std::array::from_fn(|_| Count::default()),
            sums: std::array::from_fn(|_| Count::default()),
        }
    }
}

impl Spread {
    #[inline]
    fn add(&self, value: u64) {
        let at = interval(value);
        self.counts[at].add(1);
        self.sums[at].add(value);
    }

    fn clear(&self) {
        self.counts
            .iter()
            .chain(&self.sums)
            .for_each(|count| count.set(0));
    }

    fn read(&self) -> Vec<Atom> {
        let pairs = self.counts.iter().zip(&self.sums);
        pairs
            .filter(|(count, _)| count.get() != 0)
            .map(|(count, sum)| Atom {
                count: count.get(),
                mean: sum.get() as f64 / count.get() as f64,
            })
            .collect()
    }
}

/// One interval of a histogram that is not empty.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Atom {
    /// Number of values in it.
    pub count: u64,
    /// Mean of these values.
    pub mean: f64,
}

/// Totals over a number of consecutive arrivals.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Batch {
    /// Duration, in nanoseconds.
    pub ns: u64,
    /// Packets that arrived.
    pub packets: u64,
    /// Their bytes, including the port's overhead.
    pub bytes: u64,
    /// Packets refused.
    pub refused: u64,
    /// Packets that left.
    pub sent: u64,
    /// Sum of their waiting times, in nanoseconds.
    pub waited_ns: u64,
}

impl Batch {
    fn join(&mut self, other: Batch) {
        self.ns += other.ns;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.refused += other.refused;
        self.sent += other.sent;
        self.waited_ns += other.waited_ns;
    }
}

#[derive(Default)]
struct BatchCell {
    ns: Count,
    packets: Count,
    bytes: Count,
    refused: Count,
    sent: Count,
    waited_ns: Count,
}

impl BatchCell {
    fn get(&self) -> Batch {
        Batch {
            ns: self.ns.get(),
            packets: self.packets.get(),
            bytes: self.bytes.get(),
            refused: self.refused.get(),
            sent: self.sent.get(),
            waited_ns: self.waited_ns.get(),
        }
    }

    fn set(&self, batch: Batch) {
        self.ns.set(batch.ns);
        self.packets.set(batch.packets);
        self.bytes.set(batch.bytes);
        self.refused.set(batch.refused);
        self.sent.set(batch.sent);
        self.waited_ns.set(batch.waited_ns);
    }
}

/// The complete batches and the current one.
struct Batches {
    /// Odd while batches are moved (a sequence lock).
    version: AtomicU64,
    filled: Count,
    /// Packets per batch.
    length: Count,
    /// When the current one began.
    began_ns: Count,
    cells: [BatchCell; BATCHES],
    present: BatchCell,
}

impl Default for Batches {
    fn default() -> Batches {
        let length = Count::default();
        length.set(FIRST_BATCH);
        Batches {
            version: AtomicU64::new(0),
            filled: Count::default(),
            length,
            began_ns: Count::default(),
            cells: std::array::from_fn(|_| BatchCell::default()),
            present: BatchCell::default(),
        }
    }
}

impl Batches {
    #[cold]
    fn complete(&self, now_ns: u64) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        if self.filled.get() as usize == BATCHES {
            for at in 0..BATCHES / 2 {
                let mut joined = self.cells[2 * at].get();
                joined.join(self.cells[2 * at + 1].get());
                self.cells[at].set(joined);
            }
            self.filled.set(BATCHES as u64 / 2);
            self.length.set(2 * self.length.get());
        }
        // If batches have just become longer, this one goes on.
        if self.present.packets.get() >= self.length.get() {
            let mut batch = self.present.get();
            batch.ns = now_ns.saturating_sub(self.began_ns.get());
            self.cells[self.filled.get() as usize].set(batch);
            self.filled.add(1);
            self.present.set(Batch::default());
            self.began_ns.set(now_ns);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    fn clear(&self) {
        self.filled.set(0);
        self.length.set(FIRST_BATCH);
        self.present.set(Batch::default());
    }

    /// Returns the complete batches; none if they are being moved at three attempts in a row, which
    /// hardly ever happens.
    fn read(&self) -> Vec<Batch> {
        for _ in 0..3 {
            let before = self.version.load(Ordering::Acquire);
            let filled = (self.filled.get() as usize).min(BATCHES);
            let batches = self.cells[..filled].iter().map(BatchCell::get).collect();
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                return batches;
            }
        }
        Vec::new()
    }
}

/// The record of one queue.
#[derive(Default)]
pub(crate) struct Cell {
    /// Whether recording is off: not asked for yet, or no longer.
    off: AtomicBool,
    /// Whether somebody asked for permanent recording.
    kept: AtomicBool,
    began_ns: Count,
    last_ns: Count,
    arrivals: Count,
    refused: Count,
    bytes: Count,
    bytes_squared: Sum,
    gaps_squared: Sum,
    sizes: Spread,
    gaps: Spread,
    sent: Count,
    sent_bytes: Count,
    waited_ns: Sum,
    waited_squared: Sum,
    at_once: Count,
    waits: Spread,
    /// Longest wait since it was last taken.
    longest_ns: AtomicU64,
    /// When the last packet left, if others were still waiting; else 0.
    left_ns: Count,
    left_bytes: Count,
    busy_ns: Count,
    busy_bytes: Count,
    busy_packets: Count,
    groups: Count,
    batches: Batches,
}

impl Cell {
    /// Records the arrival of a packet that counts `cost` bytes.
    #[inline]
    pub fn arrive(&self, cost: u32, now_ns: u64) {
        let present = &self.batches.present;
        if self.arrivals.get() == 0 {
            self.began_ns.set(now_ns);
            self.batches.began_ns.set(now_ns);
        } else {
            let gap = now_ns.saturating_sub(self.last_ns.get());
            self.gaps_squared.add(gap as f64 * gap as f64);
            self.gaps.add(gap);
            if present.packets.get() >= self.batches.length.get() {
                self.batches.complete(now_ns);
            }
        }
        self.last_ns.set(now_ns);
        self.arrivals.add(1);
        let cost = u64::from(cost);
        self.bytes.add(cost);
        self.bytes_squared.add((cost * cost) as f64);
        self.sizes.add(cost);
        present.packets.add(1);
        present.bytes.add(cost);
    }

    #[inline]
    pub fn refuse(&self) {
        self.refused.add(1);
        self.batches.present.refused.add(1);
    }

    /// Records a departure; `behind` says whether others still wait.
    #[inline]
    pub fn leave(&self, cost: u32, waited_ns: u64, behind: bool, now_ns: u64) {
        self.sent.add(1);
        self.sent_bytes.add(cost.into());
        self.waited_ns.add(waited_ns as f64);
        self.waited_squared.add(waited_ns as f64 * waited_ns as f64);
        self.at_once.add(u64::from(waited_ns == 0));
        self.waits.add(waited_ns);
        if waited_ns > self.longest_ns.load(Ordering::Relaxed) {
            self.longest_ns.store(waited_ns, Ordering::Relaxed);
        }
        let present = &self.batches.present;
        present.sent.add(1);
        present.waited_ns.add(waited_ns);
        let before = self.left_ns.get();
        if before != 0 {
            self.busy_ns.add(now_ns.saturating_sub(before));
            self.busy_bytes.add(self.left_bytes.get());
            self.busy_packets.add(1);
            self.groups.add(u64::from(now_ns > before));
        }
        self.left_ns.set(if behind { now_ns } else { 0 });
        self.left_bytes.set(cost.into());
    }

    /// Records that the queue became empty without a departure, so that the time until the next one
    /// does not count as busy.
    pub fn rest(&self) {
        self.left_ns.set(0);
    }

    /// Clears the record while recording is off: at worst, a packet that was being processed when
    /// recording ended still counts.
    fn clear(&self) {
        let counts = [
            &self.began_ns,
            &self.last_ns,
            &self.arrivals,
            &self.refused,
            &self.bytes,
            &self.sent,
            &self.sent_bytes,
            &self.at_once,
            &self.left_ns,
            &self.left_bytes,
            &self.busy_ns,
            &self.busy_bytes,
            &self.busy_packets,
            &self.groups,
        ];
        counts.into_iter().for_each(|count| count.set(0));
        let sums = [
            &self.bytes_squared,
            &self.gaps_squared,
            &self.waited_ns,
            &self.waited_squared,
        ];
        sums.into_iter()
            .for_each(|sum| sum.0.store(0, Ordering::Relaxed));
        [&self.sizes, &self.gaps, &self.waits]
            .into_iter()
            .for_each(Spread::clear);
        self.longest_ns.store(0, Ordering::Relaxed);
        self.batches.clear();
    }

    fn read(&self) -> Seen {
        Seen {
            ns: self.last_ns.get().saturating_sub(self.began_ns.get()),
            arrivals: self.arrivals.get(),
            refused: self.refused.get(),
            bytes: self.bytes.get(),
            bytes_squared: self.bytes_squared.get(),
            gaps_squared: self.gaps_squared.get(),
            sizes: self.sizes.read(),
            gaps: self.gaps.read(),
            sent: self.sent.get(),
            sent_bytes: self.sent_bytes.get(),
            waited_ns: self.waited_ns.get(),
            waited_squared: self.waited_squared.get(),
            at_once: self.at_once.get(),
            waits: self.waits.read(),
            busy_ns: self.busy_ns.get(),
            busy_bytes: self.busy_bytes.get(),
            busy_packets: self.busy_packets.get(),
            groups: self.groups.get(),
            batches: self.batches.read(),
        }
    }
}

/// What was recorded about a queue since somebody asked. Bytes are those that count for rates
/// (frame plus the port's overhead).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    /// From the first arrival to the last, in nanoseconds.
    pub ns: u64,
    /// Packets that arrived, refused ones included.
    pub arrivals: u64,
    /// Packets of these that were dropped on arrival.
    pub refused: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Sum of the squares of their sizes.
    pub bytes_squared: f64,
    /// Sum of the squares of the gaps between arrivals, in ns².
    pub gaps_squared: f64,
    /// Histogram of sizes, ascending, in bytes.
    pub sizes: Vec<Atom>,
    /// Histogram of gaps, ascending, in nanoseconds.
    pub gaps: Vec<Atom>,
    /// Packets that left.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Sum of their waiting times, in nanoseconds.
    pub waited_ns: f64,
    /// Sum of the squares of their waiting times, in ns².
    pub waited_squared: f64,
    /// Packets of these that had not waited at all.
    pub at_once: u64,
    /// Histogram of waiting times, ascending, in nanoseconds.
    pub waits: Vec<Atom>,
    /// Time between departures while packets were waiting, in nanoseconds.
    pub busy_ns: u64,
    /// Bytes that left during this time.
    pub busy_bytes: u64,
    /// Packets that left during this time.
    pub busy_packets: u64,
    /// Distinct times of these departures: packets per time give the size of the groups in which
    /// the shaper sends.
    pub groups: u64,
    /// Batches of equally many arrivals, in order.
    pub batches: Vec<Batch>,
}

/// The watched queues of a port.
pub struct Watch {
    queues: usize,
    cells: OnceLock<Box<[OnceLock<Box<Cell>>]>>,
    watched: AtomicUsize,
}

impl Watch {
    pub(crate) fn new(queues: usize) -> Watch {
        Watch {
            queues,
            cells: OnceLock::new(),
            watched: AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    pub(crate) fn of(&self, place: usize) -> Option<&Cell> {
        self.made(place)
            .filter(|cell| !cell.off.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn made(&self, place: usize) -> Option<&Cell> {
        self.cells.get()?.get(place)?.get().map(|cell| &**cell)
    }

    /// Begins to watch the queue at this place; returns false if there is no such queue or too many
    /// are watched already ([`MAX_WATCHED`]).
    pub fn ask(&self, place: usize) -> bool {
        let watched = self.ask_for_a_while(place);
        if let Some(cell) = self.of(place) {
            cell.kept.store(true, Ordering::Relaxed);
        }
        watched
    }

    /// Like [`Watch::ask`], until [`Watch::let_go`], unless somebody asks permanently.
    pub fn ask_for_a_while(&self, place: usize) -> bool {
        if place >= self.queues {
            return false;
        }
        if self.of(place).is_some() {
            return true;
        }
        let admitted = self
            .watched
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |watched| {
                (watched < MAX_WATCHED).then_some(watched + 1)
            });
        if admitted.is_err() {
            return false;
        }
        let none = || (0..self.queues).map(|_| OnceLock::new()).collect();
        let cells = self.cells.get_or_init(none);
        let cell = cells[place].get_or_init(Box::default);
        if cell.off.load(Ordering::Relaxed) {
            cell.clear();
            cell.off.store(false, Ordering::Release);
        }
        true
    }

    /// Ends all temporary watches and returns their number. Only one thread may ask and let go.
    pub fn let_go(&self) -> usize {
        let cells = self.cells.get().map_or(&[][..], |cells| cells);
        let let_go = cells
            .iter()
            .filter_map(|cell| cell.get())
            .filter(|cell| !cell.kept.load(Ordering::Relaxed))
            .filter(|cell| !cell.off.swap(true, Ordering::Release))
            .count();
        self.watched.fetch_sub(let_go, Ordering::Relaxed);
        let_go
    }

    /// Watches the queue at this place if another watch watched its queue at `before`, and as
    /// permanently.
    pub(crate) fn adopt(&self, place: usize, other: &Watch, before: usize) {
        match other.of(before) {
            Some(cell) if cell.kept.load(Ordering::Relaxed) => self.ask(place),
            Some(_) => self.ask_for_a_while(place),
            None => false,
        };
    }

    /// Returns the longest wait since the last call; None if the queue is not watched.
    pub fn take_longest(&self, place: usize) -> Option<u64> {
        let cell = self.of(place)?;
        Some(cell.longest_ns.swap(0, Ordering::Relaxed))
    }

    /// Returns the record of the queue at this place; None if nobody has asked for it.
    pub fn seen(&self, place: usize) -> Option<Seen> {
        self.of(place).map(Cell::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_no_holes() {
        for value in (0..5000).chain([1 << 39, (1 << 40) - 1]) {
            let at = interval(value);
            assert!(lower_end(at) <= value, "{value}");
            assert!(value < lower_end(at + 1), "{value}");
        }
        assert_eq!(interval(u64::MAX), INTERVALS - 1);
    }

    #[test]
    fn batches_double_and_lose_nothing() {
        let cell = Cell::default();
        for at in 0..10_000_u64 {
            cell.arrive(100, at * 10);
            cell.leave(100, 5, false, at * 10 + 5);
        }
        let seen = cell.read();
        assert_eq!(
            (seen.arrivals, seen.sent, seen.bytes),
            (10_000, 10_000, 1_000_000)
        );
        assert!((BATCHES / 2..=BATCHES).contains(&seen.batches.len()));
        let length = seen.batches[0].packets;
        assert!(length.is_power_of_two());
        for batch in &seen.batches {
            assert_eq!((batch.packets, batch.ns), (length, length * 10));
            assert_eq!(batch.waited_ns, batch.sent * 5);
        }
        let covered = length * seen.batches.len() as u64;
        assert!(covered <= 10_000 && covered + length >= 10_000);
    }

    #[test]
    fn the_number_of_watched_queues_is_bounded() {
        let watch = Watch::new(MAX_WATCHED + 10);
        assert!(watch.seen(0).is_none());
        assert!((0..MAX_WATCHED).all(|at| watch.ask(at)));
        assert!(watch.ask(0) && !watch.ask(MAX_WATCHED));
        assert!(!watch.ask(MAX_WATCHED + 10), "there is no such queue");
    }

    #[test]
    fn queues_are_let_go_unless_somebody_asked_for_good() {
        let watch = Watch::new(3);
        assert!(watch.ask_for_a_while(0) && watch.ask(1) && watch.ask_for_a_while(2));
        assert!(watch.ask(2));
        for place in 0..3 {
            let cell = watch.of(place).unwrap();
            (0..100).for_each(|at| {
                cell.arrive(100, at);
                cell.leave(100, 7, true, at + 7);
            });
        }
        assert_eq!(watch.let_go(), 1);
        assert_eq!(watch.let_go(), 0);
        assert!(watch.seen(0).is_none());
        assert_eq!(watch.seen(1).unwrap().sent, 100);
        assert_eq!(watch.seen(2).unwrap().sent, 100);
        // Asked for again, it begins anew.
        assert!(watch.ask_for_a_while(0));
        assert_eq!(watch.seen(0).unwrap(), Seen::default());
        let next = Watch::new(3);
        (0..3).for_each(|place| next.adopt(place, &watch, place));
        assert_eq!(next.let_go(), 1);
        assert!(next.seen(0).is_none() && next.seen(2).is_some());
    }
}
