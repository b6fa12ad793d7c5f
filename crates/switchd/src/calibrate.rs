//! `sluiced --calibrate-ports`: what ports cost on this machine, without a switch.
//!
//! Given rules, it carries them out over such ports, too: what a switch would do, without one.
//!
//! `sluice predict` starts this as a process of its own, because DPDK can be set up once in a process, and because a prediction must not touch a switch that runs. It opens
//! ports, lets a worker hand frames from one to the other under the simplest rules, prints one JSON object ([`predict::ports::PortCost`]) and ends. It does so in a network
//! namespace of its own where it may, since it makes a TAP device.

use packet::io::TxQueue;
use ports::{Dpdk, Eal, EalOptions, Kind, Mbuf, Memory, PortSpec};
use predict::engine::{ROUND_MIN, Reference, on_a_thread};
use predict::machine::Watch;
use predict::ports::{OPTION, Plan, PortCost};
use predict::rules::Rules;
use predict::spread::Spread;
use predict::traffic::Traffic;
use predict::worker::{self, Port, Setting, Turns};
use predict::{Effort, Error};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Frames replayed where there are no huge pages, and so fewer buffers.
const FRAMES_WITHOUT_HUGE_PAGES: usize = 16_384;
/// Ordinary memory to do with.
const ORDINARY_MEGABYTES: u32 = 512;
/// Looks at an idle kernel interface.
const LOOKS: usize = 2000;
/// How long a worker works at a time under the rules: with 25 slices as long as a switch would be looked at.
const SLICE: Duration = Duration::from_millis(50);
/// The same under a reference, of which only the division into stages comes where the rules themselves are measured.
const REFERENCE_SLICE: Duration = Duration::from_millis(10);

/// Where and for how long something is measured, and who watches the machine meanwhile.
struct Measuring {
    cpu: usize,
    rounds: usize,
    watch: Watch,
}

type TxQueues = Vec<Box<dyn TxQueue<Mbuf>>>;

/// Carries out `sluiced --calibrate-ports CAPTURE MEMORY CPU ROUNDS [RULES PLAN]`.
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
    let (capture, memory, cpu, rounds, whole) = match arguments {
        [capture, memory, cpu, rounds] => (capture, memory, cpu, rounds, None),
        [capture, memory, cpu, rounds, rules, plan] => {
            (capture, memory, cpu, rounds, Some((rules, plan)))
        }
        _ => return Err("CAPTURE MEMORY CPU ROUNDS [RULES PLAN] are wanted".to_owned()),
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
    // Rules lie in memory as the daemon's do.
    crate::daemon::keep_free_memory(false);
    // SAFETY: takes no pointers; there are no other threads yet. Where it is not allowed, the TAP device cannot be made either.
    unsafe { libc::unshare(libc::CLONE_NEWNET) };
    let whole = match whole {
        Some((rules, plan)) => {
            let bytes = std::fs::read(rules).map_err(|error| format!("{rules}: {error}"))?;
            let plan = Plan::of_text(plan).ok_or_else(|| format!("{plan}: no plan of ports"))?;
            // In the words of 1.0 rules may say what the latest version refuses.
            let rules = Rules::of_messages(&bytes).map_err(|error| error.to_string());
            Some((rules, plan))
        }
        None => None,
    };
    let eal = ports::eal::init(&EalOptions {
        memory,
        extra: "--no-pci".to_owned(),
        ..EalOptions::default()
    })
    .map_err(|error| error.to_string())?;
    let replay = replay(Path::new(capture), &eal)?;
    let watch = Watch::new(Some(cpu));
    let mut measuring = Measuring { cpu, rounds, watch };
    let mut cost = with_devices(&eal, &replay, &mut measuring).map(|cost| PortCost {
        notes: replay.notes.clone(),
        look: look(&eal, cpu),
        ..cost
    });
    if let (Ok(cost), Some((rules, plan))) = (&mut cost, &whole) {
        let rules = rules.as_ref().map_err(Clone::clone);
        let whole = rules
            .and_then(|rules| with_rules(&eal, Path::new(capture), (rules, plan), &mut measuring));
        match whole {
            Ok(turns) => {
                cost.whole = Some(turns.cycles);
                cost.remembers = turns.remembers.map(str::to_owned);
            }
            // The parts are there.
            Err(error) => cost.notes.push(format!(
                "the rules were not carried out over ports, the figure is a sum of parts: {error}"
            )),
        }
    }
    if let Ok(cost) = &mut cost {
        cost.readings = measuring.watch.into_readings();
    }
    if replay.file != Path::new(capture) {
        let _ = std::fs::remove_file(&replay.file);
    }
    eal.cleanup();
    cost
}

/// A worker's turns under the rules themselves, each port a device.
fn with_rules(
    eal: &Eal,
    capture: &Path,
    (rules, plan): (&Rules, &Plan),
    measuring: &mut Measuring,
) -> Result<Turns, String> {
    let text = |error: ports::Error| error.to_string();
    let bytes =
        std::fs::read(capture).map_err(|error| format!("{}: {error}", capture.display()))?;
    let traffic = Traffic::capture(&capture.display().to_string(), &bytes, 1)
        .map_err(|error| error.to_string())?;
    let most = match eal.huge_pages() {
        true => usize::MAX,
        false => FRAMES_WITHOUT_HUGE_PAGES,
    };
    let mut files = Files(Vec::new());
    let (mut controls, mut through) = (Vec::new(), Vec::new());
    let mut frames = &traffic.arrivals[..];
    let all = frames.len().max(1);
    let mut round = 0;
    let numbers = plan.inward.iter().map(|(port, packets)| (*port, *packets));
    let outward = plan.outward.iter().map(|port| (*port, 0));
    for (index, (number, packets)) in numbers.chain(outward).enumerate() {
        let (own, rest) = frames
            .split_at_checked(packets)
            .ok_or("the plan has more packets than the capture")?;
        frames = rest;
        let spec = |devargs: String| PortSpec::new("rules", Kind::Dpdk(Dpdk::new(devargs)));
        // Where memory is short, each port has its share.
        let own = &own[..own.len().min((most.saturating_mul(packets) / all).max(1))];
        let mut rx = None;
        if !own.is_empty() {
            let file = capture.with_extension(format!("in{index}"));
            let arrivals = own.to_vec();
            std::fs::write(&file, Traffic { arrivals }.to_capture())
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let devargs = format!(
                "net_pcap{},rx_pcap={},infinite_rx=1",
                index + 10,
                file.display()
            );
            files.0.push(file);
            let mut port = ports::open(eal, &spec(devargs)).map_err(text)?;
            rx = port.rx.pop();
            controls.push(port.control);
            round += own.len();
        }
        let devargs = format!("net_null{},no-rx=1", index + 10);
        let mut sink = ports::open(eal, &spec(devargs)).map_err(text)?;
        let tx = sink.control.tx_queue(0).map_err(text)?;
        controls.push(sink.control);
        through.push(Port { number, rx, tx });
    }
    let size = (round.max(ROUND_MIN) as u64, SLICE);
    let turns = turns(eal, through, rules, size, measuring);
    controls.into_iter().for_each(|control| control.close());
    turns
}

/// Files that go with it.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
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

fn with_devices(eal: &Eal, replay: &Replay, measuring: &mut Measuring) -> Result<PortCost, String> {
    let (cpu, rounds) = (measuring.cpu, measuring.rounds);
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
    })?;
    drop((sources, sink));
    input.control.close();
    let mut under = |reference: Reference| {
        let mut input = source()?;
        let mut rx = input.rx.pop();
        let through = tx()?
            .into_iter()
            .zip(1..)
            .map(|(tx, number)| Port {
                number,
                rx: rx.take(),
                tx,
            })
            .collect();
        let rules = reference.rules().map_err(|error| error.to_string())?;
        let turns = turns(eal, through, &rules, (round, REFERENCE_SLICE), measuring);
        input.control.close();
        turns.map(|turns| turns.cycles)
    };
    let cost = PortCost {
        untouched: under(Reference::Untouched)?,
        touched: under(Reference::Touched)?,
        ..alone.map_err(|error| error.0)?
    };
    sinks.into_iter().for_each(|sink| sink.control.close());
    Ok(cost)
}

/// A worker's turns under rules.
fn turns(
    eal: &Eal,
    through: Vec<Port<Mbuf>>,
    rules: &Rules,
    (round, slice): (u64, Duration),
    measuring: &mut Measuring,
) -> Result<Turns, String> {
    let pool = eal.pool().map_err(|error| error.to_string())?;
    let setting = Setting {
        allocate: Box::new(move |bytes| pool.frame(bytes)),
        thread_init: Some(Arc::new(|_| registered())),
        round,
        slice,
    };
    let effort = Effort {
        cpu: Some(measuring.cpu),
        rounds: measuring.rounds,
    };
    worker::run(rules, through, setting, effort, &mut measuring.watch)
        .map_err(|error| error.to_string())
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
    let work = || {
        let _registration = registered().map_err(Error)?;
        Ok(act())
    };
    on_a_thread(Some(cpu), work).map_err(|error| error.0)
}
