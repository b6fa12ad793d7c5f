//! Runs a spec: opens its ports, calibrates, sends and receives, and reports.

use crate::clock::{self, Clock};
use crate::engine::{self, Ends, Store};
use crate::memory;
use crate::open::{self, Opened, PoolStore};
use crate::plan::{Plan, Problem};
use crate::report::{Calibration, Report};
use crate::schedule::{Arrivals, Schedule};
use crate::spec::Spec;
use packet::{Frame, HeapFrame};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Frames that a port of memory holds while the generator is calibrated.
const ROOM: usize = 4096;
/// Bytes of frames that may be on their way in a self-test.
const TEST_BYTES: usize = 1 << 28;
/// How long the generator is calibrated with its own schedule, and as fast as it can; nanoseconds.
const CALIBRATED: u64 = 200_000_000;
const FASTEST: u64 = 50_000_000;
/// Share of its time that the thread may be stopped, and of frames that may not be offered, before
/// that is told.
const TOLERATED: f64 = 0.001;
/// Share of frames whose latency may have a stop of the thread in it before that is told.
const DISTURBED: f64 = 0.01;
/// How late one frame of a hundred may leave before that is told, nanoseconds.
const LATE: u64 = 20_000;

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long ports are waited for.
    pub wait: Duration,
    /// Whether the generator measures itself first. Takes a quarter of a second.
    pub calibrate: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            wait: Duration::from_secs(30),
            calibrate: true,
        }
    }
}

/// Returns a number that tells this process's frames from those of others.
fn run_number() -> u8 {
    let mut byte = [0];
    // SAFETY: the buffer has the length given. Without random numbers it stays 0.
    let got = unsafe { libc::getrandom(byte.as_mut_ptr().cast(), 1, libc::GRND_NONBLOCK) };
    match got {
        1 => byte[0],
        _ => std::process::id() as u8,
    }
}

/// Runs a spec until its time is over or `stop` is set. Sets DPDK up, once per process.
///
/// After an error the process should end: see [`open::open`].
pub fn run(spec: &Spec, options: &Options, stop: &AtomicBool) -> Result<Report, Problem> {
    let plan = Plan::new(spec, run_number())?;
    let clock = Clock::new();
    let opened = open::open(spec, &plan, &clock, options.wait, stop)?;
    let Opened {
        eal,
        mut ends,
        controls,
        pool,
    } = opened;
    let result = on_a_thread(spec, || {
        // Without it all works, but more slowly.
        let _registration = ports::eal::register_thread();
        let mut store = PoolStore::new(pool);
        let report = measure(&plan, options, &mut ends, &mut store, &clock, stop);
        drop(ends);
        report
    });
    controls.into_iter().for_each(|control| control.close());
    ports::finish(Duration::from_secs(2));
    eal.cleanup();
    result
}

/// Runs a spec's streams into a delay line of memory that holds each frame for `delay`, in place of
/// the spec's ports: a test of the generator itself.
pub fn self_test(
    spec: &Spec,
    options: &Options,
    delay: Duration,
    stop: &AtomicBool,
) -> Result<Report, Problem> {
    let mut plan = Plan::new(spec, run_number())?;
    plan.sinks = 1;
    let delay = delay.as_nanos() as u64;
    plan.drain = plan.drain.max(2 * delay);
    on_a_thread(spec, || {
        let clock = Clock::new();
        let longest = plan.streams.iter().map(|stream| stream.longest).max();
        let room = TEST_BYTES / (usize::from(longest.unwrap_or(0)) + 256);
        let mut ends = ends_in_memory::<HeapFrame>(&plan, &clock, delay, room);
        measure(&plan, options, &mut ends, &mut Heap, &clock, stop)
    })
}

/// Takes frames from the heap.
struct Heap;

impl Store<HeapFrame> for Heap {
    fn take(&mut self, bytes: &[u8]) -> Option<HeapFrame> {
        Some(HeapFrame::new(bytes))
    }
}

/// Runs `act` on a thread of its own, on the core that the spec wants.
fn on_a_thread(spec: &Spec, act: impl FnOnce() -> Report + Send) -> Result<Report, Problem> {
    let core = spec.core;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("generator".into())
            .spawn_scoped(scope, move || {
                if let Some(core) = core {
                    clock::pin(core)
                        .map_err(|error| Problem::new("core", format!("{core}: {error}")))?;
                }
                Ok(act())
            })
            .map_err(|error| Problem::new("core", format!("cannot start a thread: {error}")))?;
        let failed = |_| {
            Err(Problem::new(
                "generator",
                "it failed; this is a fault of it",
            ))
        };
        thread.join().unwrap_or_else(failed)
    })
}

/// Returns queues of memory for a plan, whose streams all come out at the first sink.
fn ends_in_memory<F: Frame + 'static>(
    plan: &Plan,
    clock: &Clock,
    delay: u64,
    room: usize,
) -> Ends<F> {
    let (into, out) = memory::line(clock, delay, room);
    Ends {
        tx: vec![Box::new(into)],
        stream_tx: vec![0; plan.streams.len()],
        rx: vec![(0, Box::new(out))],
        taps: Vec::new(),
    }
}

fn measure<F: Frame + 'static, S: Store<F>>(
    plan: &Plan,
    options: &Options,
    ends: &mut Ends<F>,
    store: &mut S,
    clock: &Clock,
    stop: &AtomicBool,
) -> Report {
    let calibration = match options.calibrate && !plan.streams.is_empty() {
        true => Some(calibrate::<F, S>(plan, store, clock, stop)),
        false => None,
    };
    let mut report = engine::run(plan, ends, store, clock, stop);
    let mut limited = limit(plan, &report, calibration.as_ref());
    for tap in &mut ends.taps {
        limited.extend(tap.end().err().map(|error| error.to_string()));
    }
    report.generator.limited = (!limited.is_empty()).then(|| limited.join("; "));
    report.generator.calibration = calibration;
    report
}

/// Sends a plan's streams into memory and receives them again.
fn calibrate<F: Frame + 'static, S: Store<F>>(
    plan: &Plan,
    store: &mut S,
    clock: &Clock,
    stop: &AtomicBool,
) -> Calibration {
    let mut short = Plan {
        sinks: 1,
        seconds: CALIBRATED,
        warm_up: 0,
        drain: 0,
        ..plan.clone()
    };
    let mut ends = ends_in_memory::<F>(&short, clock, 0, ROOM);
    let own = engine::run(&short, &mut ends, store, clock, stop).generator;
    for stream in &mut short.streams {
        stream.schedule = Schedule::new(Arrivals::Most, 0);
    }
    short.seconds = FASTEST;
    let mut ends = ends_in_memory::<F>(&short, clock, 0, ROOM);
    let fastest = engine::run(&short, &mut ends, store, clock, stop);
    Calibration {
        rate_error: own.rate_error,
        lateness: own.lateness,
        departures: own.departures,
        stalled_ns: own.stalled_ns,
        most_pps: taken(&fastest) as f64 / fastest.seconds.max(1e-9),
    }
}

/// Returns how many frames the ports took.
fn taken(report: &Report) -> u64 {
    report.streams.iter().map(|stream| stream.packets).sum()
}

/// Says why the generator was the limit; nothing if it was not.
fn limit(plan: &Plan, report: &Report, calibration: Option<&Calibration>) -> Vec<String> {
    let own = &report.generator;
    let mut reasons = Vec::new();
    let stalled = own.stalled_ns as f64 / 1e9;
    let is_stalled = stalled > TOLERATED * report.seconds;
    if is_stalled {
        reasons.push(format!(
            "its thread was stopped {} times for {:.1} ms of {:.1} s, for up to {:.2} ms: something else used its processor",
            own.stalls,
            stalled * 1e3,
            report.seconds,
            own.longest_stall_ns as f64 / 1e6
        ));
    }
    let arrived = || report.sinks.iter().flat_map(|sink| &sink.streams);
    let measured: u64 = arrived().map(|stream| stream.latency.count).sum();
    let disturbed: u64 = arrived().map(|stream| stream.disturbed).sum();
    if disturbed as f64 > DISTURBED * measured as f64 {
        reasons.push(format!(
            "it was stopped while {:.1}% of the frames were due or on their way, and their latencies have that in them",
            disturbed as f64 / measured as f64 * 100.0
        ));
    }
    if own.rate_error < -TOLERATED {
        reasons.push(format!(
            "it offered {:.2}% fewer frames than it should",
            -own.rate_error * 100.0
        ));
    }
    if own.lateness.count > 0 && own.lateness.p99 > LATE && !is_stalled {
        reasons.push(format!(
            "one frame of a hundred left {:.1} us or more after it was due",
            own.lateness.p99 as f64 / 1e3
        ));
    }
    let is_most = |stream: &crate::plan::Planned| stream.schedule.is_most();
    let refused: u64 = report.streams.iter().map(|stream| stream.refused).sum();
    let packets = taken(report);
    if plan.streams.iter().any(is_most) && packets > 0 && refused == 0 {
        let rate = packets as f64 / report.seconds.max(1e-9) / 1e6;
        let alone = calibration.map_or(String::new(), |calibration| {
            format!(" (into memory, {:.2})", calibration.most_pps / 1e6)
        });
        reasons.push(format!(
            "the ports took all that it made, {rate:.2} million packets/s{alone}"
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn spec(text: &str) -> Spec {
        crate::plan::read(text).unwrap()
    }

    static STOP: AtomicBool = AtomicBool::new(false);

    fn tested(text: &str, delay_us: u64) -> Report {
        let options = Options {
            calibrate: false,
            ..Options::default()
        };
        self_test(
            &spec(text),
            &options,
            Duration::from_micros(delay_us),
            &STOP,
        )
        .unwrap()
    }

    #[test]
    fn all_frames_come_back_once_and_in_order() {
        let streams = "seconds: 0.1\nwarm_up: 0.05\ndrain: 0.05\nstreams:\n\
            - {port: {dpdk: a}, rate: {constant: {pps: 10000}}, flows: {count: 7}}\n\
            - {port: {dpdk: b}, rate: {poisson: {pps: 10000}}, size: imix,\n  \
               flows: {count: 9, order: random}, headers: {vlan: 4}}\n\
            - {port: {dpdk: b}, rate: {bursts: {pps: 10000, length: 50}},\n  \
               headers: {protocol: tcp}, flows: {count: 1000, order: {zipf: {s: 1}}}}\n";
        let report = tested(streams, 20);
        assert_eq!(report.sinks.len(), 1);
        let sink = &report.sinks[0];
        assert_eq!((sink.foreign, sink.streams.len()), (0, 3));
        let mut bytes = 0;
        for (sent, arrived) in report.streams.iter().zip(&sink.streams) {
            assert_eq!((sent.refused, arrived.lost), (0, 0));
            assert_eq!(
                (arrived.duplicates, arrived.reordered, arrived.stale),
                (0, 0, 0)
            );
            assert_eq!(sent.packets, arrived.packets);
            assert_eq!(arrived.latency.count, sent.packets);
            assert!(arrived.latency.min >= 20_000, "{:?}", arrived.latency);
            bytes += sent.bytes;
        }
        assert_eq!(sink.bytes, bytes);
        // Where the machine let it run, the rates are those of the spec.
        if report.generator.rate_error == 0.0 {
            assert!(
                (999..=1001).contains(&report.streams[0].packets),
                "{report:?}"
            );
            assert_eq!(report.streams[0].bytes, 60 * report.streams[0].packets);
            assert!(
                (950..=1050).contains(&report.streams[2].packets),
                "{report:?}"
            );
        }
    }

    /// Frames out of memory, by one who stops the thread now and then.
    struct Sleeper<R> {
        rx: R,
        next: std::time::Instant,
    }

    const SLEEP: Duration = Duration::from_millis(60);

    impl<F: Frame, R: packet::io::RxQueue<F>> packet::io::RxQueue<F> for Sleeper<R> {
        fn receive(&mut self, out: &mut Vec<F>) -> usize {
            if std::time::Instant::now() >= self.next {
                std::thread::sleep(SLEEP);
                self.next = std::time::Instant::now() + 3 * SLEEP;
            }
            self.rx.receive(out)
        }
    }

    /// Runs a spec whose frames take 5 ms, and is stopped after this time for the first time.
    fn put_to_sleep(text: &str, after: Duration) -> (Plan, Report) {
        let mut plan = Plan::new(&spec(text), 7).unwrap();
        plan.sinks = 1;
        let clock = Clock::new();
        let (into, rx) = memory::line(&clock, 5_000_000, 1 << 20);
        let next = std::time::Instant::now() + after;
        let mut ends = Ends::<HeapFrame> {
            tx: vec![Box::new(into)],
            stream_tx: vec![0],
            rx: vec![(0, Box::new(Sleeper { rx, next }))],
            taps: Vec::new(),
        };
        let report = engine::run(&plan, &mut ends, &mut Heap, &clock, &STOP);
        (plan, report)
    }

    /// Of a stop that began before the time that counts, the rest counts.
    #[test]
    fn stops_at_the_beginning_are_told() {
        let text = "seconds: 0.1\nwarm_up: 0.01\ndrain: 0\nstreams:\n- {port: {dpdk: a}, rate: {constant: {pps: 1000}}}\n";
        let (_, report) = put_to_sleep(text, Duration::ZERO);
        let told = report.generator.stalled_ns;
        assert!(told >= 40_000_000, "{:?}", report.generator);
    }

    /// A stop of the thread is in the latency of frames that were due or on their way, and of no
    /// other.
    #[test]
    fn stops_are_told_from_latency() {
        let text = "seconds: 0.6\ndrain: 0.2\nstreams:\n- {port: {dpdk: a}, rate: {constant: {pps: 5000}}}\n";
        let (plan, mut report) = put_to_sleep(text, SLEEP);
        let arrived = &report.sinks[0].streams[0];
        let clear = arrived.undisturbed.clone().unwrap_or_default();
        // It slept for a quarter of the time at least, and what it was stopped besides is told,
        // too.
        assert!(8 * arrived.disturbed >= arrived.packets, "{arrived:?}");
        assert_eq!(arrived.disturbed + clear.count, arrived.packets);
        assert!(arrived.latency.max >= 60_000_000, "{:?}", arrived.latency);
        assert!(clear.count == 0 || clear.min >= 5_000_000, "{clear:?}");
        assert!(clear.max < 60_000_000, "{clear:?}");
        let why = limit(&plan, &report, None).join("; ");
        assert!(why.contains("their latencies have that in them"), "{why}");
        report.sinks[0].streams[0].disturbed = 0;
        let why = limit(&plan, &report, None).join("; ");
        assert!(!why.contains("their latencies have that in them"), "{why}");
    }

    #[test]
    fn a_port_that_refuses_is_no_loss() {
        let text = "seconds: 1\ndrain: 0.1\nstreams:\n- {port: {dpdk: a}, rate: most, size: {fixed: 60000}}\n";
        // Room for 4455 frames, and all of them held until after the end.
        let report = tested(text, 1_200_000);
        let (sent, arrived) = (&report.streams[0], &report.sinks[0].streams[0]);
        assert!(sent.refused > 0, "{sent:?}");
        assert_eq!((arrived.packets, arrived.lost), (sent.packets, 0));
        let why = report.generator.limited.unwrap_or_default();
        assert!(!why.contains("took all"), "{why}");
    }

    /// A line of memory that holds 100 frames for 10 ms takes 10,000 a second.
    #[test]
    fn steps_are_told_apart() {
        let text = "seconds: 0.4\nwarm_up: 0.05\ndrain: 0.1\nstreams:\n\
            - port: {dpdk: a}\n  \
              rate: {steps: [{from: 0, pps: 40000}, {from: 0.2, pps: 2000}]}\n";
        let mut plan = Plan::new(&spec(text), 7).unwrap();
        plan.sinks = 1;
        let clock = Clock::new();
        let mut ends = ends_in_memory::<HeapFrame>(&plan, &clock, 10_000_000, 100);
        let report = engine::run(&plan, &mut ends, &mut Heap, &clock, &STOP);
        let (sent, arrived) = (&report.streams[0], &report.sinks[0].streams[0]);
        let times: Vec<u64> = sent.steps.iter().map(|step| step.from_ns).collect();
        assert_eq!(times, [0, 200_000_000]);
        let packets: u64 = sent.steps.iter().map(|step| step.packets).sum();
        let refused: u64 = sent.steps.iter().map(|step| step.refused).sum();
        assert_eq!((packets, refused), (sent.packets, sent.refused));
        // All that was taken comes out.
        let taken: Vec<u64> = sent.steps.iter().map(|step| step.packets).collect();
        assert_eq!(arrived.steps, taken);
        assert!(sent.steps[0].refused > 0, "{sent:?}");
        let last = arrived.last_lost_ns.unwrap();
        if sent.steps[1].refused == 0 {
            assert!(last < 200_000_000, "{last}");
        } else {
            assert!(last >= 200_000_000, "{last}");
        }
        // Where the machine let it run: the line is full until 10 ms after the change at most.
        if report.generator.stalled_ns == 0 && report.generator.rate_error == 0.0 {
            assert!((190_000_000..=212_000_000).contains(&last), "{last}");
            let all = |step: &crate::report::SentStep| step.packets + step.refused;
            assert_eq!(all(&sent.steps[0]), 8000, "{sent:?}");
            assert_eq!(all(&sent.steps[1]), 400, "{sent:?}");
        }
    }

    #[test]
    fn a_spec_without_sinks_sends() {
        let text = "seconds: 0.01\ndrain: 0\nstreams:\n- {port: {dpdk: a}, rate: most}\n";
        let report = tested(text, 0);
        let why = report.generator.limited.unwrap_or_default();
        // A busy machine may have stopped it all the time.
        assert!(
            why.contains("took all that it made")
                || report.streams[0].refused > 0
                || report.streams[0].packets == 0 && why.contains("its thread was stopped"),
            "{why}"
        );
    }

    #[test]
    fn a_rate_that_nobody_can_keep_is_told() {
        let text = "seconds: 0.05\ndrain: 0\nstreams:\n- {port: {dpdk: a}, rate: {constant: {pps: 1e9}}}\n";
        let report = tested(text, 0);
        assert!(
            report.generator.rate_error < -0.5,
            "{:?}",
            report.generator.rate_error
        );
        let why = report.generator.limited.unwrap_or_default();
        assert!(why.contains("fewer frames than it should"), "{why}");
    }
}
