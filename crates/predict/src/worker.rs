//! Times a real worker over any ports, from outside.
//!
//! A worker calls a port's receive queue once per turn, so the time from one call to the next is
//! what a burst costs from receiving to sending. [`Timed`] wraps a receive queue and records these
//! times; the worker itself contains no code for measuring.
//!
//! A [`Stand`] is such a worker that pauses between slices of its work: then others get the
//! processor, and a [`Watch`] measures its speed. A slice's figure is the mean over some tens of
//! milliseconds, as a switch's rate is; the median of all slices ignores slow moments.

use crate::engine::reading_cycles;
use crate::machine::Watch;
use crate::rules::Rules;
use crate::spread::Spread;
use crate::{Effort, Error};
use datapath::clock::{Clock, cycles, cycles_per_second};
use datapath::{Allocate, Datapath, MakeTx, Options, PortKind, PortSettings, PortSpec, ThreadInit};
use packet::Frame;
use packet::io::{QueueDrops, RxQueue, TxOutcome, TxQueue};
use program::Program;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Rounds at the beginning of a slice that do not count, since the caches were used by others: with
/// rounds of 100,000 packets after a pause of 50 ms, copying takes more than twice as long in the
/// first two as in the third.
pub(crate) const WARM: usize = 2;
/// How long a measurement with the usual number of slices may take, once the worker has settled.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it goes on with at least [`SOME`] slices, but not all.
const ENOUGH: Duration = Duration::from_secs(4);
/// The usual number of slices.
const USUAL: usize = 25;
/// The number of slices that is enough after [`ENOUGH`].
const SOME: usize = 5;
/// How long a worker may take to settle.
const SETTLING: Duration = Duration::from_secs(4);
/// Number of slices that are compared with as many before, to see whether the worker has settled.
const COMPARED: usize = 6;
/// It has settled if they are not faster by more than this share.
const FASTER: f64 = 0.01;
/// A turn that takes longer, in cycles, was interrupted and does not count.
pub const INTERRUPTED: u64 = 200_000;

/// One port of the worker's bridge.
pub struct Port<F: Frame> {
    /// Its number.
    pub number: u32,
    /// Its receive queue, if it receives.
    pub rx: Option<Box<dyn RxQueue<F>>>,
    /// Its transmit queue.
    pub tx: Box<dyn TxQueue<F>>,
    /// Its settings.
    pub settings: PortSettings,
}

/// What a worker needs besides ports.
pub struct Setting<F: Frame> {
    /// Makes frames from bytes.
    pub allocate: Allocate<F>,
    /// Prepares the worker's thread.
    pub thread_init: Option<ThreadInit>,
    /// Fewest packets of a slice: as many as there are distinct ones.
    pub round: u64,
    /// Shortest duration of a slice.
    pub slice: Duration,
}

/// Result of timing a worker.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Turns {
    /// Cycles per packet, in total: median, minimum and maximum of the slices.
    pub cycles: Spread,
    /// Frames sent per packet received.
    pub sent: f64,
    /// Frames per sent batch.
    pub batch: f64,
    /// Whether the worker uses its flow cache, and why, in the words of
    /// `program::exec::CacheReport`; None if its packets have no use for it.
    pub remembers: Option<&'static str>,
}

/// Runs a worker with these ports, a slice at a time, with a reading of the machine after each.
pub fn run<F: Frame + 'static>(
    rules: &Rules,
    ports: Vec<Port<F>>,
    setting: Setting<F>,
    effort: Effort,
    watch: &mut Watch,
) -> Result<Turns, Error> {
    let mut stands = [Stand::new(rules, ports, setting, effort.cpu)?];
    in_turns(&mut stands, effort.rounds, watch)?;
    let [stand] = stands;
    stand.finish()
}

/// Lets workers that share a processor settle, and then run in turns, for this many slices each,
/// with a reading of the machine after each turn.
pub fn in_turns<F: Frame + 'static>(
    stands: &mut [Stand<F>],
    slices: usize,
    watch: &mut Watch,
) -> Result<(), Error> {
    for stand in stands.iter_mut() {
        stand.settle();
    }
    watch.look()?;
    let settled = Instant::now();
    for turn in 0..slices.max(3) {
        let late = settled.elapsed() > ENOUGH.saturating_mul(longer(slices)) && turn >= SOME;
        if late || settled.elapsed() > patience(slices) {
            break;
        }
        for stand in stands.iter_mut() {
            let figure = stand.slice(stand.slice);
            stand.figures.extend(figure);
        }
        watch.look()?;
    }
    Ok(())
}

/// Returns by which factor this many slices may take longer than the usual number.
pub(crate) fn longer(slices: usize) -> u32 {
    u32::try_from(slices.div_ceil(USUAL)).unwrap_or(u32::MAX)
}

/// Returns how long a measurement of this many slices may take.
pub(crate) fn patience(slices: usize) -> Duration {
    PATIENCE.saturating_mul(longer(slices))
}

/// A worker with its own ports, which runs only during slices.
pub struct Stand<F: Frame> {
    recorder: Arc<Recorder>,
    datapath: Datapath<F>,
    slice: Duration,
    /// Cycles per packet of each slice that counts.
    figures: Vec<f64>,
}

impl<F: Frame + 'static> Stand<F> {
    /// Makes a paused worker on this processor.
    pub fn new(
        rules: &Rules,
        ports: Vec<Port<F>>,
        setting: Setting<F>,
        cpu: Option<usize>,
    ) -> Result<Stand<F>, Error> {
        let failed = |error: datapath::Error| Error::new(error.to_string());
        let recorder = Arc::new(Recorder::new(setting.round, Arc::clone(&rules.program)));
        let mut datapath: Datapath<F> = Datapath::new(Options {
            program: Arc::clone(&rules.program),
            allocate: setting.allocate,
            thread_init: setting.thread_init,
            clock: Arc::new(Clock::default()),
        })
        .map_err(failed)?;
        let bridge = datapath
            .add_bridge("predicted", Arc::clone(rules.bridge()))
            .map_err(failed)?;
        // Adds ports that only send first, so that nothing is received before it can be sent.
        let (inwards, outwards): (Vec<_>, Vec<_>) =
            ports.into_iter().partition(|port| port.rx.is_some());
        for port in outwards.into_iter().chain(inwards) {
            let rx = port.rx.map(|inner| {
                let recorder = Arc::clone(&recorder);
                Box::new(Timed { inner, recorder }) as Box<dyn RxQueue<F>>
            });
            let spec = PortSpec {
                name: format!("p{}", port.number),
                bridge,
                number: port.number,
                settings: port.settings,
                kind: PortKind::Device {
                    rx: rx.into_iter().collect(),
                    tx: once(Counted(port.tx, Arc::clone(&recorder))),
                },
            };
            datapath.add_port(spec).map_err(failed)?;
        }
        // From here on, an error must end the worker.
        let mut stand = Stand {
            recorder,
            datapath,
            slice: setting.slice,
            figures: Vec::new(),
        };
        // A worker that waits in its first queue would not take the others, of which there may be
        // more than its mailbox holds.
        stand.recorder.open(Duration::MAX);
        stand.datapath.set_workers(&[cpu]).map_err(failed)?;
        stand.recorder.close();
        Ok(stand)
    }

    /// Runs until the worker has decided whether to use its flow cache, and packets have stopped
    /// becoming cheaper: the cache fills slowly. That the worker reconsiders later is part of the
    /// cost of packets.
    fn settle(&mut self) {
        let end = Instant::now() + SETTLING;
        let mut figures = Vec::new();
        while Instant::now() < end {
            figures.extend(self.slice(self.slice));
            if self.recorder.program.walk_caches.is_judged() && is_settled(&figures) {
                return;
            }
        }
    }

    /// Runs for this time and returns the cycles per packet; None if the worker did not complete a
    /// slice.
    fn slice(&mut self, length: Duration) -> Option<f64> {
        self.recorder.open(length);
        // On a shared processor, a slice takes longer.
        let end = Instant::now() + 30 * length.max(Duration::from_millis(50));
        while self.recorder.is_open() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
            // Like the daemon, now and then: frees what has been replaced, and removes packet-ins.
            self.datapath.run();
            self.datapath.take_packet_ins(1024);
        }
        self.recorder.close()
    }

    /// Ends the worker and returns its result.
    pub fn finish(mut self) -> Result<Turns, Error> {
        self.end();
        if self.figures.len() < 3 {
            return Err(Error::new("the processor was too busy to measure anything"));
        }
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let sent = load(&self.recorder.sent);
        // Of the readers of these rules, only this worker has had bursts to measure.
        let reports = self.recorder.program.walk_caches.reports();
        let measured = reports.iter().find(|report| report.walk_cycles > 0);
        Ok(Turns {
            remembers: measured.map(|report| report.standing),
            cycles: Spread::of_slices(std::mem::take(&mut self.figures)),
            sent: sent / load(&self.recorder.received).max(1.0),
            batch: sent / load(&self.recorder.batches).max(1.0),
        })
    }

    fn end(&mut self) {
        self.recorder.end();
        // Fails only if there is no worker.
        let _ = self.datapath.set_workers(&[]);
    }
}

/// A paused worker must be resumed to see that it has ended.
impl<F: Frame> Drop for Stand<F> {
    fn drop(&mut self) {
        self.recorder.end();
    }
}

/// Returns whether slices have stopped becoming faster.
fn is_settled(figures: &[f64]) -> bool {
    let Some(first) = figures.len().checked_sub(2 * COMPARED) else {
        return false;
    };
    let middle = |figures: &[f64]| Spread::of(figures.to_vec()).median;
    let (before, after) = figures[first..].split_at(COMPARED);
    middle(after) >= middle(before) * (1.0 - FASTER)
}

/// Gives a transmit queue to the only worker.
fn once<F: Frame + 'static>(tx: impl TxQueue<F> + 'static) -> MakeTx<F> {
    let mut tx = Some(Box::new(tx) as Box<dyn TxQueue<F>>);
    Box::new(move |_| tx.take().ok_or_else(|| "one worker only".into()))
}

/// The timing of a slice, and the gate at which the worker waits between slices.
struct Recorder {
    /// Fewest packets of a slice.
    round: u64,
    /// Fewest cycles of a slice.
    length: AtomicU64,
    now: Now,
    gate: Mutex<Gate>,
    changed: Condvar,
    /// The slice that the gate is open for, or [`SHUT`]; for a running worker to check.
    open_for: AtomicU64,
    /// Cycles for reading the cycle counter.
    reading: u64,
    /// The program whose flow caches are asked whether they have been judged.
    program: Arc<Program>,
    received: AtomicU64,
    sent: AtomicU64,
    batches: AtomicU64,
}

/// Slice number that means the gate is shut.
const SHUT: u64 = u64::MAX;

/// Whether the worker may work.
#[derive(Default)]
struct Gate {
    open: bool,
    /// Number of the last slice that it was opened for, from 1.
    slice: u64,
    /// Whether the worker is to end: there is nothing to receive any more.
    ended: bool,
    /// Result of the last slice.
    figure: Option<f64>,
}

/// Progress of the slice; written only by the worker while the gate is open, and by plain stores,
/// since their cost is measured with the rest.
#[derive(Default)]
struct Now {
    last: AtomicU64,
    packets: AtomicU64,
    spent: AtomicU64,
    in_hand: AtomicU64,
    /// Number of warm-up rounds done.
    warm: AtomicU64,
    /// The slice that all this belongs to; 0 before the first.
    slice: AtomicU64,
}

/// Adds to a counter that has one writer.
#[inline]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Recorder {
    fn new(round: u64, program: Arc<Program>) -> Recorder {
        Recorder {
            round,
            length: AtomicU64::new(0),
            now: Now::default(),
            gate: Mutex::default(),
            changed: Condvar::new(),
            open_for: AtomicU64::new(SHUT),
            reading: reading_cycles(),
            program,
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    /// Attributes the time since the last burst began to that burst. Waits if the gate is shut;
    /// returns false if the worker is to end. A slice may have ended and another begun since.
    #[inline]
    fn begin(&self) -> bool {
        let slice = self.now.slice.load(Ordering::Relaxed);
        if self.open_for.load(Ordering::Acquire) != slice && !self.wait() {
            return false;
        }
        let Now {
            last,
            packets,
            spent,
            in_hand,
            ..
        } = &self.now;
        let mut time = cycles();
        let before = last.load(Ordering::Relaxed);
        let passed = time.wrapping_sub(before);
        if before != 0 && passed < INTERRUPTED {
            add(spent, passed.saturating_sub(self.reading));
            add(packets, in_hand.load(Ordering::Relaxed));
            if packets.load(Ordering::Relaxed) >= self.round {
                if !self.end_round() {
                    return false;
                }
                time = cycles();
            }
        }
        in_hand.store(0, Ordering::Relaxed);
        last.store(time, Ordering::Relaxed);
        true
    }

    /// Ends a round and possibly the slice; returns whether there is more to do.
    #[cold]
    fn end_round(&self) -> bool {
        let Now {
            packets,
            spent,
            warm,
            ..
        } = &self.now;
        if warm.load(Ordering::Relaxed) < WARM as u64 {
            add(warm, 1);
            packets.store(0, Ordering::Relaxed);
            spent.store(0, Ordering::Relaxed);
            return true;
        }
        if spent.load(Ordering::Relaxed) < self.length.load(Ordering::Relaxed) {
            return true;
        }
        let mut gate = self.gate();
        // The slice may have been ended from outside, and another begun.
        if gate.open && gate.slice == self.now.slice.load(Ordering::Relaxed) {
            self.shut(&mut gate);
        }
        drop(gate);
        self.wait()
    }

    /// Shuts the gate and computes what packets have cost since it was opened.
    fn shut(&self, gate: &mut Gate) {
        gate.open = false;
        self.open_for.store(SHUT, Ordering::Release);
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (spent, packets) = (load(&self.now.spent), load(&self.now.packets));
        // If the worker has not begun this slice, its figures are of the one before.
        let counts = load(&self.now.slice) == gate.slice
            && load(&self.now.warm) >= WARM as u64
            && packets >= self.round;
        gate.figure = counts.then(|| spent as f64 / packets as f64);
    }

    /// Waits for the gate to open; returns false if the worker is to end. The burst that was being
    /// processed does not count, as it took longer than it costs.
    #[cold]
    fn wait(&self) -> bool {
        let mut gate = self.gate();
        while !gate.open && !gate.ended {
            gate = (self.changed.wait(gate)).unwrap_or_else(|poison| poison.into_inner());
        }
        for count in [
            &self.now.last,
            &self.now.packets,
            &self.now.spent,
            &self.now.in_hand,
            &self.now.warm,
        ] {
            count.store(0, Ordering::Relaxed);
        }
        self.now.slice.store(gate.slice, Ordering::Relaxed);
        !gate.ended
    }

    /// Starts a slice.
    fn open(&self, length: Duration) {
        let length = (length.as_secs_f64() * cycles_per_second() as f64) as u64;
        self.length.store(length, Ordering::Relaxed);
        let mut gate = self.gate();
        (gate.open, gate.figure) = (true, None);
        gate.slice += 1;
        self.open_for.store(gate.slice, Ordering::Release);
        self.changed.notify_all();
    }

    fn is_open(&self) -> bool {
        self.open_for.load(Ordering::Acquire) != SHUT
    }

    /// Ends a slice, complete or not.
    fn close(&self) -> Option<f64> {
        let mut gate = self.gate();
        if gate.open {
            self.shut(&mut gate);
        }
        gate.figure.take()
    }

    /// Ends the worker: there is nothing to receive any more.
    fn end(&self) {
        let mut gate = self.gate();
        gate.ended = true;
        gate.open = false;
        self.open_for.store(SHUT, Ordering::Release);
        self.changed.notify_all();
    }

    #[inline]
    fn received(&self, count: usize) {
        self.now.in_hand.store(count as u64, Ordering::Relaxed);
        add(&self.received, count as u64);
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

/// A receive queue whose bursts are timed; empty once the worker is to end.
struct Timed<F: Frame> {
    inner: Box<dyn RxQueue<F>>,
    recorder: Arc<Recorder>,
}

impl<F: Frame> RxQueue<F> for Timed<F> {
    fn receive(&mut self, out: &mut Vec<F>) -> usize {
        if !self.recorder.begin() {
            return 0;
        }
        let count = self.inner.receive(out);
        self.recorder.received(count);
        count
    }

    fn drops(&self) -> QueueDrops {
        self.inner.drops()
    }
}

/// A transmit queue whose frames and batches are counted.
struct Counted<F: Frame>(Box<dyn TxQueue<F>>, Arc<Recorder>);

impl<F: Frame> TxQueue<F> for Counted<F> {
    fn send(&mut self, frames: &mut Vec<F>) -> TxOutcome {
        add(&self.1.sent, frames.len() as u64);
        add(&self.1.batches, 1);
        self.0.send(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_settled_where_slices_are_no_faster_than_before() {
        let level = [100.0; 2 * COMPARED];
        assert!(!is_settled(&level[1..]));
        assert!(is_settled(&level));
        let falling: Vec<f64> = (0..40).map(|n| 200.0 - f64::from(n)).collect();
        assert!(!is_settled(&falling));
        // Slow moments are no reason to wait, and neither are slower slices.
        let mut slow = level;
        slow[2] = 300.0;
        slow[2 * COMPARED - 1] = 300.0;
        assert!(is_settled(&slow));
        let rising: Vec<f64> = falling.into_iter().rev().collect();
        assert!(is_settled(&rising));
    }

    #[test]
    fn a_slice_begins_with_nothing_of_the_one_before() {
        const ROUND: u64 = 10;
        let recorder = Recorder::new(ROUND, Arc::new(Program::new()));
        let burst = |count| {
            assert!(recorder.begin());
            recorder.received(count);
        };
        let has_all = || {
            let [warm, packets] = [&recorder.now.warm, &recorder.now.packets]
                .map(|count| count.load(Ordering::Relaxed));
            warm >= WARM as u64 && packets >= ROUND
        };
        recorder.open(Duration::MAX);
        while !has_all() {
            burst(ROUND as usize);
        }
        assert!(recorder.close().is_some());
        // A slice that the worker does not begin.
        recorder.open(Duration::MAX);
        assert_eq!(recorder.close(), None);
        // A slice that follows at once: what the worker was processing and had counted does not
        // belong to it.
        recorder.open(Duration::MAX);
        burst(1);
        assert!(!has_all());
        assert_eq!(recorder.close(), None);
        recorder.open(Duration::MAX);
        while !has_all() {
            burst(ROUND as usize);
        }
        assert!(recorder.close().is_some());
        recorder.end();
        assert!(!recorder.begin());
    }

    #[test]
    fn more_slices_may_take_longer() {
        assert_eq!([3, 25, 26, 100, 1000].map(longer), [1, 1, 2, 4, 40]);
        assert_eq!(patience(3), PATIENCE);
        assert_eq!(patience(1000), PATIENCE * 40);
    }
}
