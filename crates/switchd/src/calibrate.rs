//! `sluiced --calibrate-ports`: measures what ports cost on this machine, without running a switch.
//!
//! Given rules, it also runs them over such ports, and so measures all that a switch would do.
//!
//! `sluice predict` starts this as a separate process, because DPDK can be set up only once per
//! process, and because a prediction must not touch a running switch. It opens ports, lets a worker
//! forward frames from one to the other under the simplest rules, prints one JSON object
//! ([`predict::ports::Costs`]) and exits. It does so in a network namespace of its own, in which it
//! creates a TAP device and a veth pair: they disappear with the process, however it ends.
//!
//! Ports of kernel interfaces and guests are measured separately, without the user's rules
//! ([`pump`] plays their other ends): whoever receives a frame copies it, so rules find it in the
//! cache anyway.

mod error;
mod guest;
mod pump;
mod veth;

use self::error::Error;
use crate::switch::processors;
use datapath::PortSettings;
use packet::io::TxQueue;
use ports::{Dpdk, Eal, EalOptions, Mbuf, Memory, OpenPort, PortSpec, PortType, Xdp};
use predict::Effort;
use predict::engine::{Alone, ROUND_MIN, Reference, on_a_thread};
use predict::machine::Watch;
use predict::ports::{Costs, Device, OPTION, Plan, PortCost, devices_of_text};
use predict::rules::Rules;
use predict::spread::Spread;
use predict::traffic::Traffic;
use predict::worker::{self, INTERRUPTED, Port, Setting, Turns};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most frames replayed without huge pages, where there are fewer buffers.
const FRAMES_WITHOUT_HUGE_PAGES: usize = 16_384;
/// Memory for DPDK where there are no huge pages, MB.
const ORDINARY_MEGABYTES: u32 = 512;
/// Number of timed polls of an idle kernel interface.
const LOOKS: usize = 2000;
/// How long a worker runs under the rules at a time: 25 such slices last as long as a running
/// switch would be observed.
const SLICE: Duration = Duration::from_millis(50);
/// How long a worker runs under a reference at a time. Where the rules themselves are measured, the
/// reference only says how their cost divides into stages.
const REFERENCE_SLICE: Duration = Duration::from_millis(10);

/// Cycles above which a burst of a veth pair or a guest, which takes at least one system call,
/// counts as interrupted.
const INTERRUPTED_KERNEL: u64 = 4_000_000;
/// Packets per round on ports whose frames are copied; the number does not affect the result.
const COPIED_ROUND: u64 = 8192;
/// Different frames that such a port receives.
const COPIED_FRAMES: usize = 1024;
/// Longest time to measure such a port.
const COPIED_LIMIT: Duration = Duration::from_secs(15);
/// Longest time to wait for a link to come up.
const LINK_LIMIT: Duration = Duration::from_secs(5);

/// What DPDK's driver does with a pair by itself: a queue, in driver mode.
const AF_XDP: PortType = PortType::AfXdp {
    mode: Xdp::BestEffort,
    rx_queues: 1,
};

/// Where and how often something is measured, and what watches the machine meanwhile.
struct Measuring {
    cpu: usize,
    rounds: usize,
    watch: Watch,
}

type TxQueues = Vec<Box<dyn TxQueue<Mbuf>>>;

/// Carries out `sluiced --calibrate-ports CAPTURE MEMORY CPU ROUNDS DEVICES [RULES PLAN]`.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    match calibrate(arguments).and_then(|cost| Ok(serde_json::to_string(&cost)?)) {
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

fn calibrate(arguments: &[String]) -> Result<Costs, Error> {
    let (capture, memory, cpu, rounds, devices, whole) = match arguments {
        [capture, memory, cpu, rounds, devices] => (capture, memory, cpu, rounds, devices, None),
        [capture, memory, cpu, rounds, devices, rules, plan] => {
            (capture, memory, cpu, rounds, devices, Some((rules, plan)))
        }
        _ => return Err(Error::Arguments),
    };
    let devices = devices_of_text(devices).ok_or_else(|| Error::Devices(devices.clone()))?;
    let devices = BTreeSet::from_iter(devices);
    let memory = match predict::ports::Memory::by_name(memory) {
        Some(predict::ports::Memory::Huge) => Memory::Auto,
        Some(predict::ports::Memory::Ordinary) => Memory::Ordinary(ORDINARY_MEGABYTES),
        None => return Err(Error::Memory(memory.clone())),
    };
    let number = |text: &String| {
        let number = text.parse::<usize>();
        number.map_err(|_| Error::Number(text.clone()))
    };
    let (cpu, rounds) = (number(cpu)?, number(rounds)?.clamp(3, 1000));
    // Allocate rules as the daemon does.
    crate::daemon::keep_free_memory(false);
    // No other threads exist yet, so the whole process changes its namespace.
    let is_apart = veth::enter_namespace();
    // Never experiment with the machine's own interfaces.
    if let Some(device) = devices.iter().find(|device| device.is_kernels())
        && !is_apart
    {
        return Err(Error::NoNamespace(device.name()));
    }
    let whole = match whole {
        Some((rules, plan)) => {
            let rules = Path::new(rules);
            let bytes = std::fs::read(rules).map_err(Error::file(rules))?;
            let plan = Plan::of_text(plan).ok_or_else(|| Error::Plan(plan.clone()))?;
            // Rules in the syntax of OpenFlow 1.0 may say what later versions refuse.
            Some((Rules::of_messages(&bytes), plan))
        }
        None => None,
    };
    let capture = Path::new(capture);
    let traffic = traffic(capture)?;
    let eal = ports::eal::init(&EalOptions {
        memory,
        extra: "--no-pci".to_owned(),
        ..EalOptions::default()
    })?;
    let watch = Watch::new(Some(cpu));
    let mut measuring = Measuring { cpu, rounds, watch };
    let look = look(&eal, cpu);
    let costs = devices.iter().map(|device| {
        let cost = match device {
            Device::Dpdk => with_dpdk(&eal, (capture, &traffic), whole.as_ref(), &mut measuring),
            Device::Veth => with_veth(&eal, PortType::System, &traffic, &mut measuring),
            Device::AfXdp => with_veth(&eal, AF_XDP, &traffic, &mut measuring),
            Device::Tap => with_tap(&eal, &traffic, &mut measuring),
            Device::Vhost => with_guest(&eal, capture, &traffic, &mut measuring),
        };
        let cost = cost.map_err(|error| Error::Device {
            device: device.name(),
            error: Box::new(error),
        })?;
        Ok((*device, PortCost { look, ..cost }))
    });
    let mut costs = costs.collect::<Result<Costs, Error>>();
    // The readings cover all devices; the first one carries them.
    if let Some(cost) = costs
        .as_mut()
        .ok()
        .and_then(|costs| costs.values_mut().next())
    {
        cost.readings = measuring.watch.into_readings();
    }
    eal.cleanup();
    costs
}

/// Measures DPDK's devices and, given rules, those rules over them.
fn with_dpdk(
    eal: &Eal,
    (capture, traffic): (&Path, &Traffic),
    whole: Option<&(Result<Rules, predict::Error>, Plan)>,
    measuring: &mut Measuring,
) -> Result<PortCost, Error> {
    let replay = replay(capture, traffic, eal)?;
    let mut files = Files(Vec::new());
    if replay.file != capture {
        files.0.push(replay.file.clone());
    }
    let mut cost = with_devices(eal, &replay, measuring)?;
    cost.notes = replay.notes.clone();
    let Some((rules, plan)) = whole else {
        return Ok(cost);
    };
    let rules = rules.as_ref().map_err(|error| error.clone().into());
    match rules.and_then(|rules| with_rules(eal, (capture, traffic), (rules, plan), measuring)) {
        Ok(turns) => {
            cost.whole = Some(turns.cycles);
            cost.remembers = turns.remembers.map(str::to_owned);
        }
        // The costs of the parts are known all the same.
        Err(error) => cost.notes.push(format!(
            "the rules were not carried out over ports, the figure is a sum of parts: {error}"
        )),
    }
    Ok(cost)
}

/// Frames for a port whose frames are copied.
fn copied_frames(traffic: &Traffic) -> Vec<Vec<u8>> {
    let arrivals = traffic.arrivals.iter().take(COPIED_FRAMES);
    arrivals.map(|arrival| arrival.bytes.clone()).collect()
}

fn traffic(capture: &Path) -> Result<Traffic, Error> {
    let bytes = std::fs::read(capture).map_err(Error::file(capture))?;
    Ok(Traffic::capture(&capture.display().to_string(), &bytes, 1)?)
}

/// Measures one end of a veth pair, of which the other end sends, by a port of this kind.
fn with_veth(
    eal: &Eal,
    kind: PortType,
    traffic: &Traffic,
    measuring: &mut Measuring,
) -> Result<PortCost, Error> {
    // Each kind makes a pair.
    let names = match kind {
        AF_XDP => ["sluice-xdp0", "sluice-xdp1"],
        _ => ["sluice-veth0", "sluice-veth1"],
    };
    let mut pair = veth::Sender::of_pair(names, copied_frames(traffic)).map_err(Error::Veth)?;
    let port = ports::open(eal, &PortSpec::new(names[0], kind))?;
    copied(port, &mut pair, measuring)
}

/// Measures a TAP device.
fn with_tap(eal: &Eal, traffic: &Traffic, measuring: &mut Measuring) -> Result<PortCost, Error> {
    let name = "sluice-tap0";
    let mut port = ports::open(eal, &PortSpec::new(name, PortType::Tap))?;
    port.control.set_admin(true)?;
    let mut sender = veth::Sender::on(name, copied_frames(traffic)).map_err(Error::Tap)?;
    copied(port, &mut sender, measuring)
}

/// Measures a guest's rings.
fn with_guest(
    eal: &Eal,
    capture: &Path,
    traffic: &Traffic,
    measuring: &mut Measuring,
) -> Result<PortCost, Error> {
    let path = capture.with_extension("vhost");
    // Removes the socket file if the port leaves it behind.
    let _files = Files(vec![path.clone()]);
    let kind = PortType::VhostServer {
        path: path.clone(),
        rx_queues: 1,
    };
    let port = ports::open(eal, &PortSpec::new("sluice-guest", kind))?;
    let guest = guest::Guest::connect(&path, copied_frames(traffic));
    let mut guest = guest.map_err(Error::file(&path))?;
    copied(port, &mut guest, measuring)
}

/// Returns frames from a port's other end to it, and measures the port's own share of the cost.
fn copied(
    mut port: OpenPort,
    peer: &mut dyn pump::Peer,
    measuring: &mut Measuring,
) -> Result<PortCost, Error> {
    let until = Instant::now() + LINK_LIMIT;
    while !port.control.info().link_up {
        if Instant::now() > until {
            return Err(Error::LinkDown);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut tx = port.control.tx_queue(0)?;
    let mut others = processors::allowed().iter().copied().rev();
    let other = others.find(|other| *other != measuring.cpu);
    let until = Instant::now() + COPIED_LIMIT;
    let alone = Alone {
        rounds: measuring.rounds,
        round: COPIED_ROUND,
        interrupted: INTERRUPTED_KERNEL,
    };
    measuring.watch.look()?;
    let (rx, cpu) = (&mut port.rx, measuring.cpu);
    let cost = pump::with_peer(peer, other, until, |gauge| {
        as_worker(cpu, || {
            predict::engine::ports_loop(rx, &mut tx, alone, &mut |handed| gauge.ready(handed))
        })
    });
    measuring.watch.look()?;
    drop(tx);
    port.control.close();
    let mut cost = cost??;
    if other.is_none() {
        cost.notes.push(
            "there is one processor only, which both ends of these ports shared: what one writes \
             the other finds in its cache, and has more to do where they do not share"
                .to_owned(),
        );
    }
    Ok(cost)
}

/// Measures a worker's turns under the rules themselves, with a device for each port.
fn with_rules(
    eal: &Eal,
    (capture, traffic): (&Path, &Traffic),
    (rules, plan): (&Rules, &Plan),
    measuring: &mut Measuring,
) -> Result<Turns, Error> {
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
        let (own, rest) = frames.split_at_checked(packets).ok_or(Error::PlanTooLong)?;
        frames = rest;
        let spec = |devargs: String| PortSpec::new("rules", PortType::Dpdk(Dpdk::new(devargs)));
        // Where memory is short, each port replays its share of the frames.
        let own = &own[..own.len().min((most.saturating_mul(packets) / all).max(1))];
        let mut rx = None;
        if !own.is_empty() {
            let file = capture.with_extension(format!("in{index}"));
            let arrivals = own.to_vec();
            std::fs::write(&file, Traffic { arrivals }.to_capture()).map_err(Error::file(&file))?;
            let devargs = format!(
                "net_pcap{},rx_pcap={},infinite_rx=1",
                index + 10,
                file.display()
            );
            files.0.push(file);
            let mut port = ports::open(eal, &spec(devargs))?;
            rx = port.rx.pop();
            controls.push(port.control);
            round += own.len();
        }
        let devargs = format!("net_null{},no-rx=1", index + 10);
        let mut sink = ports::open(eal, &spec(devargs))?;
        let tx = sink.control.tx_queue(0)?;
        controls.push(sink.control);
        let settings = PortSettings::default();
        through.push(Port {
            number,
            rx,
            tx,
            settings,
        });
    }
    let size = (round.max(ROUND_MIN) as u64, SLICE);
    let turns = turns(eal, through, rules, size, measuring);
    controls.into_iter().for_each(|control| control.close());
    turns
}

/// Temporary files, removed when this is dropped.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A capture that ports replay.
struct Replay {
    file: PathBuf,
    /// Frames in it.
    frames: usize,
    notes: Vec<String>,
}

/// Returns the capture itself, or a shorter copy if its frames would not fit into memory.
fn replay(capture: &Path, traffic: &Traffic, eal: &Eal) -> Result<Replay, Error> {
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
        let arrivals = traffic.arrivals[..replay.frames].to_vec();
        replay.file = capture.with_extension("short");
        std::fs::write(&replay.file, Traffic { arrivals }.to_capture())
            .map_err(Error::file(&replay.file))?;
        replay.notes.push(format!(
            "ports were measured with {FRAMES_WITHOUT_HUGE_PAGES} frames for want of memory"
        ));
    }
    Ok(replay)
}

fn with_devices(eal: &Eal, replay: &Replay, measuring: &mut Measuring) -> Result<PortCost, Error> {
    let (cpu, rounds) = (measuring.cpu, measuring.rounds);
    let open = |name: &str, devargs: String| {
        let spec = PortSpec::new(name, PortType::Dpdk(Dpdk::new(devargs)));
        ports::open(eal, &spec)
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
    let mut tx = || -> Result<TxQueues, ports::Error> {
        let queues = sinks.iter_mut().map(|sink| sink.control.tx_queue(0));
        queues.collect()
    };
    let input = source()?;
    let (mut sources, mut sink) = (input.rx, tx()?.remove(0));
    let size = Alone {
        rounds,
        round,
        interrupted: INTERRUPTED,
    };
    let alone = as_worker(cpu, || {
        predict::engine::ports_loop(&mut sources, &mut sink, size, &mut |_| true)
    })?;
    drop((sources, sink));
    input.control.close();
    let mut under = |reference: Reference| -> Result<Spread, Error> {
        let mut input = source()?;
        let mut rx = input.rx.pop();
        let through = tx()?
            .into_iter()
            .zip(1..)
            .map(|(tx, number)| Port {
                number,
                rx: rx.take(),
                tx,
                settings: PortSettings::default(),
            })
            .collect();
        let rules = reference.rules()?;
        let turns = turns(eal, through, &rules, (round, REFERENCE_SLICE), measuring);
        input.control.close();
        Ok(turns?.cycles)
    };
    let cost = PortCost {
        untouched: Some(under(Reference::Untouched)?),
        touched: Some(under(Reference::Touched)?),
        ..alone?
    };
    sinks.into_iter().for_each(|sink| sink.control.close());
    Ok(cost)
}

/// Measures a worker's turns under the given rules.
fn turns(
    eal: &Eal,
    through: Vec<Port<Mbuf>>,
    rules: &Rules,
    (round, slice): (u64, Duration),
    measuring: &mut Measuring,
) -> Result<Turns, Error> {
    let pool = eal.pool()?;
    let setting = Setting {
        allocate: Box::new(move |bytes| pool.frame(bytes)),
        thread_init: Some(Arc::new(|_| registered().map_err(datapath::BoxError::from))),
        round,
        slice,
    };
    let effort = Effort {
        cpu: Some(measuring.cpu),
        rounds: measuring.rounds,
    };
    let turns = worker::run(rules, through, setting, effort, &mut measuring.watch);
    Ok(turns?)
}

/// Measures, in cycles, a poll of a kernel interface that has no frames. Empty if no interface can
/// be created.
fn look(eal: &Eal, cpu: usize) -> Spread {
    let name = format!("predict{}", std::process::id());
    let Ok(mut port) = ports::open(eal, &PortSpec::new(name, PortType::Internal)) else {
        return Spread::default();
    };
    let mut frames = Vec::new();
    let mut round = || {
        // The first poll may return frames that the kernel sends on a new interface.
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

fn registered() -> Result<Box<dyn std::any::Any>, ports::Error> {
    Ok(Box::new(ports::eal::register_thread()?))
}

/// Runs `act` on a thread that is set up as a worker's.
fn as_worker<T: Send>(cpu: usize, act: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let work = || Ok(registered().map(|_registration| act()));
    Ok(on_a_thread(Some(cpu), work)??)
}
