//! Measures the latency of frames from one port to another through a switch, at rates that are
//! shares of the highest possible rate.
//!
//! `latency OUT IN SECONDS [--rate PACKETS] [--extra DPDK-EXTRA] SHARE...`, where OUT and IN are
//! DPDK devices (virtio-user ones whose other ends are the switch's ports). Frames carry the time
//! at which they were made. First as many as possible are sent; the rate that arrives is the most.
//! Then, for each share (percent) of it, or of `--rate`, frames are sent at even intervals, and a
//! line shows the results:
//!
//!     most RATE
//!     share PERCENT sent N received N excluded N p50 US p99 US p999 US most US pauses N
//!         longest US observed SECONDS
//!
//! While the generator is not running it cannot tell when a frame arrives. So the loop watches
//! itself: if one turn takes more than 20 us, the frames under way are excluded and the time is not
//! counted as observed. A pause is a time of more than 50 us in which nothing arrives although
//! frames are under way and the loop runs.
//!
//! `latency --spin SECONDS` counts the pauses of a loop that only reads the clock: the
//! interruptions by the machine itself.

use packet::Frame;
use packet::io::{BURST, RxQueue, TxQueue};
use ports::{Dpdk, Eal, EalOptions, Mbuf, OpenPort, Pool, PortSpec, PortType};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// A turn longer than this, in ns, means that the loop was interrupted.
const OWN_PAUSE: u64 = 20_000;
/// Shortest pause, in ns, that is counted, of the switch or of the bare loop.
const PAUSE: u64 = 50_000;
/// Offset of the time stamp in a frame: behind Ethernet, IPv4 and UDP headers.
const STAMP: usize = 42;
/// Most significant bits of a time in ns that a histogram keeps.
const PRECISION: u32 = 6;
const FLOWS: u64 = 1000;

/// A histogram of times in ns, exact to 1.6 percent.
struct Histogram {
    counts: Vec<u64>,
    total: u64,
    most: u64,
}

impl Histogram {
    fn new() -> Histogram {
        Histogram {
            counts: vec![0; 64 << PRECISION],
            total: 0,
            most: 0,
        }
    }

    fn add(&mut self, ns: u64) {
        let shift = (64 - ns.leading_zeros()).saturating_sub(PRECISION + 1);
        let place = (u64::from(shift) << PRECISION) + (ns >> shift);
        self.counts[place as usize] += 1;
        self.total += 1;
        self.most = self.most.max(ns);
    }

    /// Returns the time in microseconds that this share of all times does not exceed.
    fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                let shift = (place >> PRECISION).saturating_sub(1) as u32;
                let value = place as u64 - (u64::from(shift) << PRECISION);
                return (value << shift) as f64 / 1000.0;
            }
        }
        f64::NAN
    }
}

/// Results of one phase.
struct Seen {
    sent: u64,
    received: u64,
    excluded: u64,
    times: Histogram,
    pauses: u64,
    longest: u64,
    observed: u64,
}

struct Lab {
    out: Box<dyn TxQueue<Mbuf>>,
    into: Box<dyn RxQueue<Mbuf>>,
    pool: Pool,
    start: Instant,
    template: Vec<u8>,
    made: u64,
}

impl Lab {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn send(&mut self, count: u64, frames: &mut Vec<Mbuf>) -> u64 {
        for _ in 0..count {
            let flow = (self.made % FLOWS) as u16;
            self.template[34..36].copy_from_slice(&(1024 + flow).to_be_bytes());
            let now = self.start.elapsed().as_nanos() as u64;
            self.template[STAMP..STAMP + 8].copy_from_slice(&now.to_be_bytes());
            let Some(frame) = self.pool.frame(&self.template) else {
                break;
            };
            self.made += 1;
            frames.push(frame);
        }
        self.out.send(frames).packets
    }

    /// Sends `rate` frames a second, or as many as possible, and measures what arrives.
    fn phase(&mut self, rate: Option<f64>, seconds: f64) -> Seen {
        let mut seen = Seen {
            sent: 0,
            received: 0,
            excluded: 0,
            times: Histogram::new(),
            pauses: 0,
            longest: 0,
            observed: 0,
        };
        let (mut frames, mut arrived) = (Vec::new(), Vec::new());
        let begin = self.now();
        let end = begin + (seconds * 1e9) as u64;
        // Frames made before this time were under way while the loop was interrupted, or belong to
        // an earlier phase.
        let mut sound_from = begin;
        let (mut turn, mut last_arrival) = (begin, begin);
        // Number of frames that should have been sent by `turn`; frames missed in an interruption
        // of the loop are not sent later.
        let mut due = 0.0;
        loop {
            let now = self.now();
            if now >= end {
                break;
            }
            let took = now - turn;
            if took > OWN_PAUSE {
                sound_from = now;
                last_arrival = now;
            } else {
                seen.observed += took;
                due += rate.map_or(BURST as f64, |rate| rate * took as f64 / 1e9);
            }
            turn = now;
            let count = (due as u64).min(BURST as u64);
            if count > 0 {
                due = (due - count as f64).min(BURST as f64);
                seen.sent += self.send(count, &mut frames);
            }
            if self.into.receive(&mut arrived) > 0 {
                let now = self.now();
                if now - last_arrival > PAUSE && seen.received > 0 && sound_from != turn {
                    seen.pauses += 1;
                    seen.longest = seen.longest.max(now - last_arrival);
                }
                last_arrival = now;
                for frame in arrived.drain(..) {
                    let Some(stamp) = frame.head().get(STAMP..STAMP + 8) else {
                        continue;
                    };
                    let stamp = u64::from_be_bytes(stamp.try_into().unwrap_or_default());
                    seen.received += 1;
                    if stamp < sound_from || now < stamp {
                        seen.excluded += 1;
                    } else {
                        seen.times.add(now - stamp);
                    }
                }
            } else if seen.sent == seen.received {
                // No frames are under way, so this is not a pause.
                last_arrival = now;
            }
        }
        seen
    }

    /// Receives the frames still under way.
    fn drain(&mut self) {
        let (end, mut arrived) = (Instant::now() + Duration::from_millis(300), Vec::new());
        while Instant::now() < end {
            self.into.receive(&mut arrived);
            arrived.clear();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn device(eal: &Eal, name: &str, devargs: &str) -> Result<OpenPort, Failure> {
    let spec = PortSpec::new(name, PortType::Dpdk(Dpdk::new(devargs)));
    Ok(ports::open(eal, &spec)?)
}

fn spin(seconds: f64) {
    let start = Instant::now();
    let end = (seconds * 1e9) as u64;
    let (mut last, mut pauses, mut longest) = (0, 0_u64, 0);
    while last < end {
        let now = start.elapsed().as_nanos() as u64;
        if now - last > PAUSE {
            pauses += 1;
            longest = longest.max(now - last);
        }
        last = now;
    }
    println!(
        "spin pauses {pauses} longest {:.1} observed {seconds:.3}",
        longest as f64 / 1000.0
    );
}

fn work(lab: &mut Lab, seconds: f64, rate: Option<f64>, shares: &[f64]) -> Result<(), Failure> {
    let _registration = ports::eal::register_thread()?;
    let most = match rate {
        Some(rate) => rate,
        None => {
            lab.phase(None, 0.5);
            let seen = lab.phase(None, seconds);
            println!("most {:.0}", seen.received as f64 / seconds);
            seen.received as f64 / seconds
        }
    };
    for share in shares {
        lab.drain();
        // The first 0.3 s are not counted, because queues have yet to settle.
        lab.phase(Some(most * share / 100.0), 0.3);
        let seen = lab.phase(Some(most * share / 100.0), seconds);
        let times = &seen.times;
        println!(
            "share {share} sent {} received {} excluded {} p50 {:.2} p99 {:.2} p999 {:.2} most {:.2} pauses {} longest {:.1} observed {:.3}",
            seen.sent,
            seen.received,
            seen.excluded,
            times.quantile(0.5),
            times.quantile(0.99),
            times.quantile(0.999),
            times.most as f64 / 1000.0,
            seen.pauses,
            seen.longest as f64 / 1000.0,
            seen.observed as f64 / 1e9
        );
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut places = Vec::new();
    let (mut rate, mut extra) = (None, String::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or("an option without its value");
        match argument.as_str() {
            "--spin" => {
                spin(value()?.parse()?);
                return Ok(());
            }
            "--rate" => rate = Some(value()?.parse::<f64>()?),
            "--extra" => extra = value()?,
            _ => places.push(argument),
        }
    }
    let [out, into, seconds, shares @ ..] = places.as_slice() else {
        return Err("latency OUT IN SECONDS [--rate PACKETS] [--extra DPDK-EXTRA] SHARE...".into());
    };
    let seconds: f64 = seconds.parse()?;
    let shares: Vec<f64> = shares
        .iter()
        .map(|share| share.parse())
        .collect::<Result<_, _>>()?;
    let eal = ports::eal::init(&EalOptions {
        extra,
        ..EalOptions::default()
    })?;
    println!("ready");
    let (mut out, mut into) = (device(&eal, "out", out)?, device(&eal, "in", into)?);
    let template = packet::build::Builder::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4(0x0a00_0001, 0x0b00_0001)
        .udp(1024, 80)
        .payload(&[0; 18])
        .bytes();
    let mut lab = Lab {
        out: out.control.tx_queue(0)?,
        into: into.rx.remove(0),
        pool: eal.pool()?,
        start: Instant::now(),
        template,
        made: 0,
    };
    println!("connected");
    // Wait until the switch has connected and has its rules.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let worker = std::thread::spawn(move || {
        work(&mut lab, seconds, rate, &shares).map_err(|error| error.to_string())?;
        Ok::<Lab, String>(lab)
    });
    let lab = worker.join().map_err(|_| "the generator panicked")??;
    out.control.close();
    into.control.close();
    drop(lab);
    eal.cleanup();
    Ok(())
}
