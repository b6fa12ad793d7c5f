//! A real worker over any ports, timed from outside.
//!
//! A worker calls a port's receive queue once a turn, so the time from one call to the next is what a burst costs from receiving to sending. [`Timed`] stands in front of a
//! receive queue and notes these times; nothing in the worker knows of being measured.

use crate::rules::Rules;
use crate::spread::Spread;
use crate::{Effort, Error};
use datapath::clock::{Clock, cycles};
use datapath::{Allocate, Datapath, MakeTx, Options, PortKind, PortSettings, PortSpec, ThreadInit};
use packet::Frame;
use packet::io::{QueueDrops, RxQueue, TxOutcome, TxQueue};
use program::Program;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Rounds that do not count, once a worker has made up its mind whether to remember walks.
pub(crate) const WARM: usize = 2;
/// How long a measurement may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long it goes on where it has some rounds, but not all.
const ENOUGH: Duration = Duration::from_secs(3);
/// Rounds that will do then.
const SOME: usize = 7;
/// A turn that takes longer was interrupted: it does not count, in cycles.
const INTERRUPTED: u64 = 200_000;

/// One port of the worker's bridge.
pub struct Port<F: Frame> {
    /// Its number.
    pub number: u32,
    /// Where it receives from, if it does.
    pub rx: Option<Box<dyn RxQueue<F>>>,
    /// Where it sends.
    pub tx: Box<dyn TxQueue<F>>,
}

/// What a worker needs besides ports.
pub struct Setting<F: Frame> {
    /// Makes frames from bytes.
    pub allocate: Allocate<F>,
    /// Prepares the worker's thread.
    pub thread_init: Option<ThreadInit>,
    /// Packets of a round.
    pub round: u64,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Turns {
    /// Cycles of a packet, all in all.
    pub cycles: Spread,
    /// Frames sent for each packet.
    pub sent: f64,
    /// Frames of a batch that is sent.
    pub batch: f64,
}

/// Lets a worker walk what comes in by the ports, until enough rounds have been timed.
pub fn run<F: Frame + 'static>(
    rules: &Rules,
    ports: Vec<Port<F>>,
    setting: Setting<F>,
    effort: Effort,
) -> Result<Turns, Error> {
    let failed = |error: datapath::Error| Error::new(error.to_string());
    let recorder = Arc::new(Recorder::new(
        setting.round,
        effort.rounds.max(3) + WARM,
        Arc::clone(&rules.program),
    ));
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
    // Those that only send first, so that nothing is received before there is a way out.
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
            settings: PortSettings::default(),
            kind: PortKind::Device {
                rx: rx.into_iter().collect(),
                tx: once(Counted(port.tx, Arc::clone(&recorder))),
            },
        };
        datapath.add_port(spec).map_err(failed)?;
    }
    datapath.set_workers(&[effort.cpu]).map_err(failed)?;
    let end = Instant::now() + PATIENCE;
    let enough = Instant::now() + ENOUGH;
    while !recorder.is_done() && Instant::now() < end {
        if Instant::now() > enough && recorder.rounds().len() >= WARM + SOME {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
        // As the daemon does now and then: frees what has been replaced, takes packet-ins away.
        datapath.run();
        datapath.take_packet_ins(1024);
    }
    datapath.set_workers(&[]).map_err(failed)?;
    recorder.turns()
}

/// Hands a transmit queue to the one worker that there is.
fn once<F: Frame + 'static>(tx: impl TxQueue<F> + 'static) -> MakeTx<F> {
    let mut tx = Some(Box::new(tx) as Box<dyn TxQueue<F>>);
    Box::new(move |_| tx.take().ok_or_else(|| "one worker only".to_owned()))
}

/// Rounds as they are timed.
struct Recorder {
    /// Packets of a round.
    round: u64,
    /// Rounds wanted.
    wanted: usize,
    now: Now,
    rounds: Mutex<Vec<f64>>,
    done: AtomicBool,
    begun: Instant,
    /// Whose caches of walks are asked whether they have been judged.
    program: Arc<Program>,
    received: AtomicU64,
    sent: AtomicU64,
    batches: AtomicU64,
}

/// Where the round stands; written by the worker alone, and by plain stores, since what they cost is measured with the rest.
#[derive(Default)]
struct Now {
    last: AtomicU64,
    packets: AtomicU64,
    spent: AtomicU64,
    in_hand: AtomicU64,
}

/// Adds to a count that has one writer.
#[inline]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Recorder {
    fn new(round: u64, wanted: usize, program: Arc<Program>) -> Recorder {
        Recorder {
            round,
            wanted,
            now: Now::default(),
            rounds: Mutex::default(),
            done: AtomicBool::new(false),
            begun: Instant::now(),
            program,
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    /// What has passed since the last burst began is that one's.
    #[inline]
    fn begin(&self) {
        let Now {
            last,
            packets,
            spent,
            in_hand,
        } = &self.now;
        let time = cycles();
        let before = last.load(Ordering::Relaxed);
        let passed = time.wrapping_sub(before);
        if before != 0 && passed < INTERRUPTED {
            add(spent, passed);
            add(packets, in_hand.load(Ordering::Relaxed));
            if packets.load(Ordering::Relaxed) >= self.round {
                self.end_round();
            }
        }
        in_hand.store(0, Ordering::Relaxed);
        last.store(time, Ordering::Relaxed);
    }

    #[cold]
    fn end_round(&self) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed) as f64;
        let round = take(&self.now.spent) / take(&self.now.packets);
        let mut rounds = self.rounds();
        // Until the worker has made up its mind for the first time; that it asks itself again later is part of what it costs.
        let unsettled = rounds.is_empty() && !self.program.walk_caches.is_judged();
        if unsettled && self.begun.elapsed() < ENOUGH {
            return;
        }
        rounds.push(round);
        if rounds.len() >= self.wanted {
            self.done.store(true, Ordering::Release);
        }
    }

    #[inline]
    fn received(&self, count: usize) {
        self.now.in_hand.store(count as u64, Ordering::Relaxed);
        add(&self.received, count as u64);
    }

    fn rounds(&self) -> MutexGuard<'_, Vec<f64>> {
        self.rounds
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn turns(&self) -> Result<Turns, Error> {
        let rounds = self.rounds();
        if rounds.len() <= WARM {
            return Err(Error::new("the processor was too busy to measure anything"));
        }
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let sent = load(&self.sent);
        Ok(Turns {
            cycles: Spread::of(rounds[WARM..].to_vec()),
            sent: sent / load(&self.received).max(1.0),
            batch: sent / load(&self.batches).max(1.0),
        })
    }
}

/// A receive queue whose bursts are timed; empty once there are enough.
struct Timed<F: Frame> {
    inner: Box<dyn RxQueue<F>>,
    recorder: Arc<Recorder>,
}

impl<F: Frame> RxQueue<F> for Timed<F> {
    fn receive(&mut self, out: &mut Vec<F>) -> usize {
        if self.recorder.is_done() {
            return 0;
        }
        self.recorder.begin();
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
