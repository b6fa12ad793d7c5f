//! `sluiced --calibrate-ports`: what ports cost on this machine, without rules and without a switch.
//!
//! `sluice predict` starts this as a process of its own, because DPDK can be set up once in a process, and because a prediction must not touch a switch that runs. It opens
//! ports, lets a worker hand frames from one to the other under the simplest rules, prints one JSON object ([`predict::ports::PortCost`]) and ends. It does so in a network
//! namespace of its own where it may, since it makes a TAP device.

use packet::io::{RxQueue, TxQueue};
use ports::{Dpdk, Eal, EalOptions, Kind, Mbuf, Memory, PortSpec};
use predict::Effort;
use predict::engine::{ROUND_MIN, Reference};
use predict::ports::{OPTION, PortCost};
use predict::spread::Spread;
use predict::traffic::Traffic;
use predict::worker::{self, Port, Setting, Turns};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Frames replayed where there are no huge pages, and so fewer buffers.
const FRAMES_WITHOUT_HUGE_PAGES: usize = 16_384;
/// Ordinary memory to do with.
const ORDINARY_MEGABYTES: u32 = 512;
/// Looks at an idle kernel interface.
const LOOKS: usize = 2000;

type RxQueues = Vec<Box<dyn RxQueue<Mbuf>>>;
type TxQueues = Vec<Box<dyn TxQueue<Mbuf>>>;

/// Carries out `sluiced --calibrate-ports CAPTURE MEMORY CPU ROUNDS`.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    match calibrate(arguments)
        .and_then(|cost| serde_json::to_string(&cost).map_err(|error| error.to_string()))
    {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sluiced: {OPTION}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn calibrate(arguments: &[String]) -> Result<PortCost, String> {
    let [capture, memory, cpu, rounds] = arguments else {
        return Err("CAPTURE MEMORY CPU ROUNDS are wanted".to_owned());
    };
    let memory = match predict::ports::Memory::by_name(memory) {
        Some(predict::ports::Memory::Huge) => Memory::Auto,
        Some(predict::ports::Memory::Ordinary) => Memory::Ordinary(ORDINARY_MEGABYTES),
        None => return Err(format!("{memory}: huge or ordinary is meant")),
    };
    let number = |text: &str| {
        text.parse::<usize>()
            .map_err(|_| format!("{text}: not a number"))
    };
    let (cpu, rounds) = (number(cpu)?, number(rounds)?.clamp(3, 1000));
    // SAFETY: takes no pointers; there are no other threads yet. Where it is not allowed, the TAP device cannot be made either.
    unsafe { libc::unshare(libc::CLONE_NEWNET) };
    let eal = ports::eal::init(&EalOptions {
        memory,
        extra: "--no-pci".to_owned(),
        ..EalOptions::default()
    })
    .map_err(|error| error.to_string())?;
    let replay = replay(Path::new(capture), &eal)?;
    let cost = with_devices(&eal, &replay, cpu, rounds).map(|cost| PortCost {
        notes: replay.notes,
        look: look(&eal, cpu),
        ..cost
    });
    if replay.file != Path::new(capture) {
        let _ = std::fs::remove_file(&replay.file);
    }
    eal.cleanup();
    cost
}

/// What ports replay.
struct Replay {
    file: PathBuf,
    /// Frames in it.
    frames: usize,
    notes: Vec<String>,
}

/// The capture, or a shorter one where its frames would not fit.
fn replay(capture: &Path, eal: &Eal) -> Result<Replay, String> {
    let bytes =
        std::fs::read(capture).map_err(|error| format!("{}: {error}", capture.display()))?;
    let mut traffic = Traffic::capture(&capture.display().to_string(), &bytes, 1)
        .map_err(|error| error.to_string())?;
    let mut replay = Replay {
        file: capture.to_owned(),
        frames: traffic.arrivals.len(),
        notes: Vec::new(),
    };
    if eal.huge_pages() {
        return Ok(replay);
    }
    replay.notes.push(
        "there were no free huge pages to measure ports with; a switch that has them is faster"
            .to_owned(),
    );
    if replay.frames > FRAMES_WITHOUT_HUGE_PAGES {
        replay.frames = FRAMES_WITHOUT_HUGE_PAGES;
        traffic.arrivals.truncate(replay.frames);
        replay.file = capture.with_extension("short");
        std::fs::write(&replay.file, traffic.to_capture())
            .map_err(|error| format!("{}: {error}", replay.file.display()))?;
        replay.notes.push(format!(
            "ports were measured with {FRAMES_WITHOUT_HUGE_PAGES} frames for want of memory"
        ));
    }
    Ok(replay)
}

fn with_devices(eal: &Eal, replay: &Replay, cpu: usize, rounds: usize) -> Result<PortCost, String> {
    let text = |error: ports::Error| error.to_string();
    let open = |name: &str, devargs: String| {
        ports::open(eal, &PortSpec::new(name, Kind::Dpdk(Dpdk::new(devargs)))).map_err(text)
    };
    let source = || {
        let file = replay.file.display();
        open("in", format!("net_pcap0,rx_pcap={file},infinite_rx=1"))
    };
    let round = replay.frames.max(ROUND_MIN) as u64;
    let mut sinks = Vec::new();
    for number in 0..3 {
        sinks.push(open("out", format!("net_null{number},no-rx=1"))?);
    }
    let mut tx = || -> Result<TxQueues, String> {
        let queues = sinks.iter_mut().map(|sink| sink.control.tx_queue(0));
        queues.collect::<Result<_, _>>().map_err(text)
    };
    let input = source()?;
    let (mut sources, mut sink) = (input.rx, tx()?.remove(0));
    let alone = as_worker(cpu, || {
        predict::engine::ports_loop(&mut sources, &mut sink, (rounds, round))
    });
    drop((sources, sink));
    input.control.close();
    let mut under = |reference: Reference| {
        let input = source()?;
        let turns = turns(eal, (input.rx, tx()?), reference, round, (cpu, rounds));
        input.control.close();
        turns.map(|turns| turns.cycles)
    };
    let cost = PortCost {
        untouched: under(Reference::Untouched)?,
        touched: under(Reference::Touched)?,
        ..alone?
    };
    sinks.into_iter().for_each(|sink| sink.control.close());
    Ok(cost)
}

/// A worker's turns under the reference.
fn turns(
    eal: &Eal,
    (mut sources, sinks): (RxQueues, TxQueues),
    reference: Reference,
    round: u64,
    (cpu, rounds): (usize, usize),
) -> Result<Turns, String> {
    let pool = eal.pool().map_err(|error| error.to_string())?;
    let mut rx = sources.pop();
    let ports = sinks
        .into_iter()
        .zip(1..)
        .map(|(tx, number)| Port {
            number,
            rx: rx.take(),
            tx,
        })
        .collect();
    let setting = Setting {
        allocate: Box::new(move |bytes| pool.frame(bytes)),
        thread_init: Some(Arc::new(|_| registered())),
        round,
    };
    let effort = Effort {
        cpu: Some(cpu),
        rounds,
    };
    let rules = reference.rules().map_err(|error| error.to_string())?;
    worker::run(&rules, ports, setting, effort).map_err(|error| error.to_string())
}

/// A look at a kernel interface that has nothing, in cycles; nothing where none can be made.
fn look(eal: &Eal, cpu: usize) -> Spread {
    let name = format!("predict{}", std::process::id());
    let Ok(mut port) = ports::open(eal, &PortSpec::new(name, Kind::Internal)) else {
        return Spread::default();
    };
    let mut frames = Vec::new();
    let mut round = || {
        // The first may find what the kernel says of itself on a new interface.
        let start = datapath::clock::cycles();
        let found: usize = port.rx.iter_mut().map(|rx| rx.receive(&mut frames)).sum();
        let spent = datapath::clock::cycles().wrapping_sub(start);
        frames.clear();
        (found == 0).then_some(spent as f64)
    };
    let rounds = as_worker(cpu, || (0..LOOKS).filter_map(|_| round()).collect());
    port.control.close();
    Spread::of(rounds.unwrap_or_default())
}

fn registered() -> Result<Box<dyn std::any::Any>, String> {
    let registration = ports::eal::register_thread().map_err(|error| error.to_string())?;
    Ok(Box::new(registration))
}

/// Does something on a thread that is set up as a worker is.
fn as_worker<T: Send>(cpu: usize, act: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let work = || {
            datapath::pin(cpu)?;
            let _registration = registered()?;
            Ok(act())
        };
        let thread = scope.spawn(work);
        thread
            .join()
            .unwrap_or_else(|_| Err("measuring failed".to_owned()))
    })
}
