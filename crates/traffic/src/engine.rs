//! The loop that sends and receives: one thread, all ports in turn.
//!
//! A frame's stamp has the time at which it was due by the schedule, not at which it left. So a
//! generator, or a port, that falls behind makes frames late, and what it measures worse, never
//! better. Frames that a port refuses are counted and not sent again.

use crate::capture::Capture;
use crate::clock::{Clock, Watch};
use crate::frames::Make;
use crate::histogram::Histogram;
use crate::ledger::Ledger;
use crate::plan::{Content, Frames, Made, Plan, Planned};
use crate::random::number;
use crate::report::{Arrived, Generator, Received, Report, Sent, SentStep};
use crate::schedule::{Part, Schedule};
use crate::stamp::{Layout, Stamp, owner, payload_at};
use packet::Frame;
use packet::io::{Lengths, RxQueue, TxQueue};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most frames sent at once.
const SENT_AT_ONCE: usize = 32;
/// How long after the end of the measured time frames that were due in it are still sent.
const GRACE: u64 = 10_000_000;
/// Time between the start of the loop and the first frame.
const LEAD: u64 = 100_000;
/// Bytes of the frame that must be in one piece for its stamp to be found.
const HEADERS: usize = 256;

/// Where frames get their memory from.
pub trait Store<F> {
    /// Returns a frame that holds these bytes; None if there is no memory.
    fn take(&mut self, bytes: &[u8]) -> Option<F>;
}

/// The ports' queues.
pub struct Ends<F> {
    /// Queues to send to.
    pub tx: Vec<Box<dyn TxQueue<F>>>,
    /// For each stream, which of `tx` it is sent to.
    pub stream_tx: Vec<usize>,
    /// Queues to receive from, and of which sink each is.
    pub rx: Vec<(usize, Box<dyn RxQueue<F>>)>,
    /// Is shown each frame that a sink receives, with the time.
    pub taps: Vec<Box<dyn Tap<F>>>,
}

/// Something that is shown every frame that is received.
pub trait Tap<F>: Send {
    /// Takes note of a frame, received at this time in nanoseconds.
    fn note(&mut self, frame: &F, now: u64);

    /// Ends. Fails if not all frames were noted.
    fn end(&mut self) -> Result<(), NotWhole>;
}

/// A file that lacks frames.
#[derive(Debug, thiserror::Error)]
#[error("{} is not whole: {error}", .path.display())]
pub struct NotWhole {
    /// The file.
    pub path: PathBuf,
    /// Why it could not be written.
    pub error: std::io::Error,
}

/// What a stream has sent so far.
struct Sender<'a> {
    plan: &'a Planned,
    stream: u8,
    schedule: Schedule,
    /// Time of the clock that the schedule begins at.
    start: u64,
    sequence: u64,
    /// How many frames there are; None: as many as the time has room for.
    frames: Option<u64>,
    /// Whether all that is due in the time has been offered.
    done: bool,
    last_departure: Option<u64>,
    packets: u64,
    bytes: u64,
    refused: u64,
    /// By step, where the rate has steps.
    steps: Vec<SentStep>,
}

/// What a sink has received so far.
struct Sink {
    /// Where all stamps begin, if all begin at one place.
    only_at: Option<usize>,
    /// Frames of files, by a hash of their bytes.
    recorded: HashMap<u64, Expected>,
    ledgers: Vec<Ledger>,
    /// For each stream, how many frames of each step, where its rate has steps.
    steps: Vec<Vec<u64>>,
    foreign: u64,
}

/// A frame of a file that may arrive.
#[derive(Clone, Copy)]
struct Expected {
    stream: usize,
    /// How often it is sent; further ones are duplicates.
    times: u64,
    arrived: u64,
}

/// Returns the frames of files that are sent, by a hash of their bytes. Those of several streams
/// are taken for the first one's.
fn recorded(streams: &[Planned]) -> HashMap<u64, Expected> {
    let mut known: HashMap<u64, Expected> = HashMap::new();
    for (stream, plan) in streams.iter().enumerate() {
        let Content::Recorded { capture, repeat } = &plan.content else {
            continue;
        };
        for number in 0..capture.len() {
            let expected = known
                .entry(hash(capture.frame(number)))
                .or_insert(Expected {
                    stream,
                    times: 0,
                    arrived: 0,
                });
            expected.times = match repeat {
                true => u64::MAX,
                false => expected.times.saturating_add(1),
            };
        }
    }
    known
}

/// Returns where all streams' stamps begin, if all begin at one place.
fn only_at(streams: &[Planned]) -> Option<usize> {
    let mut places = streams.iter().flat_map(|stream| match &stream.content {
        Content::Made(made) => made.frames.stamps_at(),
        Content::Recorded { .. } => Vec::new(),
    });
    let first = places.next()?;
    places.all(|at| at == first).then_some(first)
}

/// Returns the step in which a frame was due, this long after the schedule's start.
fn step_of(parts: &[Part], time: u64) -> usize {
    let begun = parts.partition_point(|part| part.from as u64 <= time);
    begun.saturating_sub(1)
}

/// Returns a hash of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = number(hash, u64::from_le_bytes(word));
    }
    hash
}

/// Times, in nanoseconds of the clock.
#[derive(Clone, Copy)]
struct Times {
    start: u64,
    /// What is due from here on counts.
    begin: u64,
    end: u64,
}

/// What all streams have in common.
struct Common<'a> {
    clock: &'a Clock,
    times: Times,
    run: u8,
    lateness: Histogram,
    departures: Histogram,
}

impl Sender<'_> {
    /// Takes what is due from the schedule: at most a burst, either all that counts or nothing.
    #[inline(always)]
    fn due(&mut self, now: u64, times: &Times, out: &mut [u64; SENT_AT_ONCE]) -> usize {
        let left = self
            .frames
            .map_or(u64::MAX, |frames| frames - self.sequence);
        if left == 0 {
            self.done = true;
            return 0;
        }
        if self.schedule.is_most() {
            if now >= times.end {
                self.done = true;
            }
            if self.done || now < times.start {
                return 0;
            }
            *out = [now; SENT_AT_ONCE];
            return SENT_AT_ONCE;
        }
        let mut count = 0;
        while count < SENT_AT_ONCE && (count as u64) < left {
            let time = self.start + self.schedule.next();
            if time > now || time >= times.end {
                self.done = time >= times.end && now >= times.end;
                break;
            }
            if count > 0 && (time >= times.begin) != (out[0] >= times.begin) {
                break;
            }
            out[count] = time;
            count += 1;
            self.schedule.advance();
        }
        count
    }

    /// Makes frames that are due at these times. Those that there is no memory for are left out.
    #[inline(always)]
    fn make<F: Frame, S: Store<F>, M: Make>(
        &mut self,
        made: &Made,
        maker: &M,
        due: &[u64],
        run: u8,
        store: &mut S,
        frames: &mut Vec<F>,
    ) -> Lengths {
        let mut lengths = Lengths::default();
        let mut flows = made.chooser.from(self.sequence);
        for &time in due {
            let sequence = self.sequence;
            self.sequence += 1;
            let (flow, size) = (flows.take(), made.sizes.of(sequence));
            let bytes = maker.begin(size, flow);
            let Some(mut frame) = store.take(bytes) else {
                continue;
            };
            lengths.add(bytes.len());
            let stamp = Stamp {
                stream: self.stream,
                run,
                sequence: sequence as u32,
                flow: flow as u32,
                time,
            };
            maker.finish(size, frame.head_mut(), flow, &stamp);
            frames.push(frame);
        }
        lengths
    }

    /// Takes the next frames of a file.
    fn repeat<F: Frame, S: Store<F>>(
        &mut self,
        capture: &Capture,
        count: usize,
        store: &mut S,
        frames: &mut Vec<F>,
    ) -> Lengths {
        let mut lengths = Lengths::default();
        for _ in 0..count {
            let number = (self.sequence % capture.len() as u64) as usize;
            self.sequence += 1;
            let bytes = capture.frame(number);
            if let Some(frame) = store.take(bytes) {
                lengths.add(bytes.len());
                frames.push(frame);
            }
        }
        lengths
    }

    /// Sends what is due.
    #[inline(always)]
    fn turn<F: Frame, S: Store<F>>(
        &mut self,
        now: u64,
        common: &mut Common<'_>,
        store: &mut S,
        frames: &mut Vec<F>,
        tx: &mut dyn TxQueue<F>,
    ) {
        let mut due = [0; SENT_AT_ONCE];
        let count = self.due(now, &common.times, &mut due);
        if count == 0 {
            return;
        }
        let lengths = match &self.plan.content {
            Content::Made(made) => {
                let (due, run) = (&due[..count], common.run);
                match &made.frames {
                    Frames::Swept(maker) => self.make(made, maker, due, run, store, frames),
                    Frames::Listed(table) => self.make(made, table, due, run, store, frames),
                }
            }
            Content::Recorded { capture, .. } => self.repeat(capture, count, store, frames),
        };
        // Of a stream that is sent as fast as possible the distances are the same at any place of
        // the turn.
        let departure = match self.schedule.is_most() {
            true => now,
            false => common.clock.now(),
        };
        let outcome = tx.send_finished(frames, lengths);
        if due[0] < common.times.begin {
            return;
        }
        self.packets += outcome.packets;
        self.bytes += outcome.bytes;
        self.refused += count as u64 - outcome.packets.min(count as u64);
        if !self.steps.is_empty() {
            self.count_steps(&due[..count], outcome.packets);
        }
        if !self.schedule.is_most() {
            for &time in &due[..count] {
                common.lateness.add(departure.saturating_sub(time), 1);
            }
        }
        if let Some(last) = self.last_departure {
            common.departures.add(departure.saturating_sub(last), 1);
        }
        common.departures.add(0, count as u64 - 1);
        self.last_departure = Some(departure);
    }

    /// Counts frames by step, of which the port took the first `packets`.
    fn count_steps(&mut self, due: &[u64], packets: u64) {
        for (number, &time) in (0..).zip(due) {
            let step = step_of(self.schedule.parts(), time - self.start);
            match number < packets {
                true => self.steps[step].packets += 1,
                false => self.steps[step].refused += 1,
            }
        }
    }

    /// Returns the share of what was asked for that was offered to the port, of a stream that is
    /// not sent as fast as possible.
    fn share(&self, times: &Times) -> f64 {
        let seconds = (times.end - times.begin) as f64;
        let offered = (self.packets + self.refused) as f64;
        if self.frames.is_some() && self.done {
            return 1.0;
        }
        let share = match self.schedule.distances() {
            // There may be a burst more or less than the mean, depending on where the time begins.
            Some((distance, burst)) => match offered * distance / seconds {
                share if (share - 1.0).abs() * seconds <= burst => 1.0,
                share => share,
            },
            None if self.done => 1.0,
            None => {
                let next = self.start + self.schedule.next();
                (next.saturating_sub(times.begin) as f64 / seconds).min(1.0)
            }
        };
        // What left after the end took longer than it should.
        let last = self.last_departure.unwrap_or(times.end);
        let took = last.saturating_sub(times.begin) as f64 / seconds;
        share / took.max(1.0)
    }
}

impl Sink {
    /// Finds a frame's stamp, and its layout.
    #[inline(always)]
    fn read(&mut self, head: &[u8], run: u8, streams: &[Planned]) -> Option<(Stamp, Layout)> {
        let known = |at: usize| -> Option<Layout> {
            let (stream, its) = owner(head, at)?;
            match &streams.get(usize::from(stream))?.content {
                Content::Made(made) if its == run => made.frames.layout_at(at),
                _ => None,
            }
        };
        // Where stamps begin at several places, what is found at the wrong one may look like one.
        let guess = self.only_at.and_then(|at| Some((at, known(at)?)));
        let (at, layout) = match guess {
            Some(found) => found,
            None => {
                let at = payload_at(head)?;
                (at, known(at)?)
            }
        };
        Some((layout.read(head, at)?, layout))
    }

    /// Takes a frame.
    #[inline(always)]
    fn take<F: Frame>(
        &mut self,
        frame: &mut F,
        now: u64,
        until: u64,
        common: &Common<'_>,
        plan: &Plan,
    ) {
        let length = frame.len();
        if frame.head().len() < HEADERS.min(length) {
            frame.linearize(HEADERS);
        }
        let Some((stamp, layout)) = self.read(frame.head(), common.run, &plan.streams) else {
            self.take_bare(frame, now);
            return;
        };
        let stream = usize::from(stamp.stream);
        let ledger = &mut self.ledgers[stream];
        let number = ledger.whole(stamp.sequence);
        let flow = match &plan.streams[stream].content {
            Content::Made(made) if layout != Layout::Full => made.chooser.of(number),
            _ => stamp.flow.into(),
        };
        if stamp.time < common.times.begin {
            ledger.pass(number, flow);
            return;
        }
        let before = ledger.packets;
        ledger.arrive(number, flow, length, (stamp.time, now), until);
        let steps = &mut self.steps[stream];
        if !steps.is_empty() && ledger.packets > before {
            let parts = plan.streams[stream].schedule.parts();
            steps[step_of(parts, stamp.time - common.times.start)] += 1;
        }
    }
}

impl Sink {
    /// Takes a frame without a stamp: one of a file, or a foreign one.
    fn take_bare<F: Frame>(&mut self, frame: &F, now: u64) {
        if !self.recorded.is_empty() {
            let found = match frame.segment_count() {
                1 => self.recorded.get_mut(&hash(frame.head())),
                _ => self.recorded.get_mut(&hash(&frame.to_vec())),
            };
            if let Some(expected) = found {
                expected.arrived += 1;
                let is_first = expected.arrived <= expected.times;
                self.ledgers[expected.stream].arrive_bare(frame.len(), now, is_first);
                return;
            }
        }
        self.foreign += 1;
    }
}

/// Sends and receives as planned, until the time is over or `stop` is set, and reports. `clock` is
/// the one that the frames are stamped by.
pub fn run<F: Frame, S: Store<F>>(
    plan: &Plan,
    ends: &mut Ends<F>,
    store: &mut S,
    clock: &Clock,
    stop: &AtomicBool,
) -> Report {
    let mut sinks: Vec<Sink> = (0..plan.sinks)
        .map(|_| Sink {
            only_at: only_at(&plan.streams),
            recorded: recorded(&plan.streams),
            ledgers: plan
                .streams
                .iter()
                .map(|stream| Ledger::new(stream.flows()))
                .collect(),
            steps: plan
                .streams
                .iter()
                .map(|stream| vec![0; stream.schedule.parts().len()])
                .collect(),
            foreign: 0,
        })
        .collect();
    let start = clock.now() + LEAD;
    let begin = start + plan.warm_up;
    let end = begin + plan.seconds;
    let mut common = Common {
        clock,
        times: Times { start, begin, end },
        run: plan.run,
        lateness: Histogram::new(),
        departures: Histogram::new(),
    };
    let mut senders: Vec<Sender> = plan
        .streams
        .iter()
        .enumerate()
        .map(|(stream, plan)| Sender {
            plan,
            stream: stream as u8,
            schedule: plan.schedule.clone(),
            // Files are sent when it counts.
            start: match plan.content {
                Content::Made(_) => start,
                Content::Recorded { .. } => begin,
            },
            sequence: 0,
            frames: plan.frames(),
            done: false,
            last_departure: None,
            packets: 0,
            bytes: 0,
            refused: 0,
            steps: plan
                .schedule
                .parts()
                .iter()
                .map(|part| SentStep {
                    from_ns: (part.from as u64).saturating_sub(begin - start),
                    ..SentStep::default()
                })
                .collect(),
        })
        .collect();
    let mut frames = Vec::with_capacity(2 * packet::io::BURST);
    // Until when frames are received, once all have been sent.
    let mut drained = None;
    let mut watch = Watch::new(clock.now());
    let mut watching = false;
    // What it has seen in the time that counts.
    let mut told = watch.clone();
    let mut measured = plan.seconds;
    loop {
        let now = clock.now();
        if now >= begin && !watching {
            // Of what stopped the thread only that counts which was behind the beginning.
            let missed = watch.turn(now).min(now - begin);
            (watch, watching) = (Watch::new(now), true);
            watch.note(missed);
        }
        watch.turn(now);
        if drained.is_none() {
            let stopped = stop.load(Ordering::Relaxed);
            let mut all = senders.iter();
            let done = match senders.is_empty() {
                true => now >= end,
                false => all.all(|sender| sender.done),
            };
            if stopped || done || now >= end + GRACE {
                measured = now.min(end).saturating_sub(begin);
                common.times.end = begin + measured.max(1);
                drained = Some(now + plan.drain);
                told = watch.clone();
            } else {
                for sender in &mut senders {
                    // What is due has been late already; each stream reads the time again.
                    let now = if sender.stream == 0 { now } else { clock.now() };
                    let tx = ends.tx[ends.stream_tx[usize::from(sender.stream)]].as_mut();
                    sender.turn(now, &mut common, store, &mut frames, tx);
                }
            }
        }
        for (sink, rx) in &mut ends.rx {
            let count = rx.receive(&mut frames);
            if count == 0 {
                continue;
            }
            let now = clock.now();
            watch.turn(now);
            for at in 0..frames.len() {
                if let Some(next) = frames.get(at + 4) {
                    packet::parse::prefetch_at(next.head().as_ptr());
                }
                let frame = &mut frames[at];
                for tap in &mut ends.taps {
                    tap.note(frame, now);
                }
                sinks[*sink].take(frame, now, watch.until, &common, plan);
            }
            frames.clear();
        }
        if drained.is_some_and(|until| now >= until) {
            break;
        }
    }
    report(&senders, &sinks, &common, &told, measured)
}

/// Returns when the last frame was due that did not arrive, nanoseconds of the time that counts;
/// None where the rate has no steps.
fn last_lost(ledger: &Ledger, sender: &Sender<'_>, times: &Times) -> Option<u64> {
    if sender.steps.is_empty() {
        return None;
    }
    let number = ledger.last_missing(sender.sequence)?;
    let due = sender.start + sender.schedule.time_of(number)?;
    due.checked_sub(times.begin)
}

fn report(
    senders: &[Sender<'_>],
    sinks: &[Sink],
    common: &Common<'_>,
    watch: &Watch,
    measured: u64,
) -> Report {
    let timed = senders.iter().filter(|sender| !sender.schedule.is_most());
    // Each stream counts by what it was asked for.
    let (mut offered, mut asked) = (0.0, 0.0);
    for sender in timed {
        let share = sender.share(&common.times);
        let frames = (sender.packets + sender.refused) as f64;
        offered += frames;
        asked += match share > 0.0 {
            true => frames / share,
            false => 1.0,
        };
    }
    let streams = senders
        .iter()
        .map(|sender| Sent {
            name: sender.plan.name.clone(),
            packets: sender.packets,
            bytes: sender.bytes,
            refused: sender.refused,
            steps: sender.steps.clone(),
        })
        .collect();
    let sinks = sinks
        .iter()
        .map(|sink| Received {
            packets: sink
                .ledgers
                .iter()
                .map(|ledger| ledger.packets + ledger.duplicates)
                .sum(),
            bytes: sink.ledgers.iter().map(|ledger| ledger.bytes).sum(),
            foreign: sink.foreign,
            streams: sink
                .ledgers
                .iter()
                .zip(senders)
                .zip(&sink.steps)
                .map(|((ledger, sender), steps)| Arrived {
                    steps: steps.clone(),
                    last_lost_ns: last_lost(ledger, sender, &common.times),
                    ..ledger.report(sender.packets)
                })
                .collect(),
        })
        .collect();
    Report {
        schema: 1,
        seconds: measured as f64 / 1e9,
        generator: Generator {
            rate_error: if asked > 0.0 {
                offered / asked - 1.0
            } else {
                0.0
            },
            limited: None,
            lateness: common.lateness.percentiles(),
            departures: common.departures.percentiles(),
            stalled_ns: watch.stalled,
            stalls: watch.stalls,
            longest_stall_ns: watch.longest,
            calibration: None,
        },
        streams,
        sinks,
    }
}
