//! What a cell's settings ask of a switch, of guests and of the generator, and trials with all.

mod error;

pub use self::error::{Error, Reason, SetupError, Unfit};

use crate::changes::{self, Changes, Wires};
use crate::frames;
use crate::generator::Generate;
use crate::guests::Guest;
use crate::methods::{self, Latency, Outcome, Stepped, Trial};
use crate::place::run;
use crate::settings::{GuestKind, JobKind, Order as FlowOrder, Pattern, Ports, Settings};
use crate::subject::{self, Counters, End, Job, Plan, Running, Subject};
use crate::subjects::is_pci;
use std::path::Path;
use std::time::{Duration, Instant};
use traffic::report::Report;
use traffic::spec::{Field, Flows, Headers, Order, Port, Rate, Size, Spec, Step, Stream};

/// Seconds before a window in which the switch settles.
const WARM_UP: f64 = 0.2;
/// Seconds after the last frame in which stragglers are taken.
const DRAIN: f64 = 0.2;
/// How long a switch with new rules may take until its rate is level, at most; how far apart looks
/// at it are, seconds; and what share it may still gain from one to the next. (What
/// bench/predict.py does.)
const SETTLING: Duration = Duration::from_secs(10);
const LOOK: f64 = 0.5;
const LEVEL: f64 = 0.02;
/// Share of frames for guests that they may leave before they count as the limit; and share of time
/// in which the generator may stand still.
const TOLERATED: f64 = 0.001;

/// What stands for a physical port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Physical {
    /// Frames in memory.
    Memory,
    /// A guest's interface.
    Virtual,
    /// A veth.
    Veth,
    /// A device that was given.
    Device,
}

impl Physical {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Physical::Memory => "memory",
            Physical::Virtual => "vhost-user",
            Physical::Veth => "veth",
            Physical::Device => "given devices",
        }
    }
}

/// What stands for physical ports, in the order of preference.
pub fn candidates(ports: Ports, offers: bool) -> &'static [Physical] {
    match (ports, offers) {
        (Ports::Memory, _) => &[Physical::Memory],
        (Ports::Veth, _) => &[Physical::Veth],
        (Ports::Virtual, _) => &[Physical::Virtual],
        (Ports::Devices, _) => &[Physical::Device],
        (Ports::Auto, false) => &[Physical::Memory, Physical::Veth],
        // Memory offers what is taken, so it cannot offer a load.
        (Ports::Auto, true) => &[Physical::Virtual, Physical::Veth],
    }
}

/// What a cell asks of a switch.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// What the switch is asked for.
    pub plan: Plan,
    /// Ports on which frames come in, counted from 0.
    pub sources: Vec<usize>,
    /// Ports on which they leave, counted from 0.
    pub sinks: Vec<usize>,
    /// What guests do.
    pub guests: Vec<Guest>,
    /// What guests are.
    pub kind: GuestKind,
    /// What stands for physical ports.
    pub physical: Physical,
    /// By port: the device at the other end of its wire, where the generator is.
    pub peers: Vec<Option<String>>,
    /// The generator's core.
    pub core: usize,
    /// That of all guests.
    pub guests_core: usize,
    /// Whether the generator shares its core with a worker.
    pub shared: bool,
}

impl Setup {
    /// Whether a guest sends on what it gets.
    fn forwards(&self) -> bool {
        self.guests
            .iter()
            .any(|guest| matches!(guest, Guest::Forward(..)))
    }

    /// How cores are shared, a sentence.
    pub fn sharing(&self) -> String {
        let numbers: Vec<String> = self.plan.cores.iter().map(usize::to_string).collect();
        let numbers = numbers.join(", ");
        let workers = match self.plan.cores.len() {
            1 => format!("the worker has core {numbers}"),
            _ => format!("workers have cores {numbers}"),
        };
        let core = self.core;
        match (self.shared, self.guests_core) {
            (true, _) => {
                format!("{workers}, and generator and guests share core {core} with one")
            }
            (false, guests) if guests == core => {
                format!("{workers}, generator and guests share core {core}")
            }
            (false, guests) => {
                format!("{workers}, the generator core {core}, guests core {guests}")
            }
        }
    }
}

/// What a cell asks of a switch, with the first kind of physical port that the switch can have.
/// For the arguments see [`setup`].
pub fn fitting(
    settings: &Settings,
    offers: bool,
    subject: &dyn Subject,
    cores: &[usize],
    directory: &Path,
) -> Result<Setup, Unfit> {
    let mut why = Vec::new();
    for physical in candidates(settings.ports, offers) {
        let made = setup(settings, *physical, offers, cores, directory);
        let fits = made.map_err(Reason::from).and_then(|setup| {
            subject.can(&setup.plan)?;
            Ok(setup)
        });
        match fits {
            Ok(setup) => return Ok(setup),
            Err(reason) => why.push(reason),
        }
    }
    Err(Unfit(why))
}

/// Makes the plan of a cell. `offers`: whether the method offers loads of its choice. `cores` are
/// those that the run may use, workers' first. Captures are written into `directory`.
pub fn setup(
    settings: &Settings,
    physical: Physical,
    offers: bool,
    cores: &[usize],
    directory: &Path,
) -> Result<Setup, SetupError> {
    if settings.workers > cores.len() {
        return Err(SetupError::TooFewCores {
            workers: settings.workers,
            cores: cores.len(),
        });
    }
    let path = settings.path;
    if path.through > 0 && (settings.both || settings.job != JobKind::Cross) {
        return Err(SetupError::OneWay(path));
    }
    let mut guests = path.guests();
    if settings.job.has_outputs() {
        let last = guests[1];
        guests.extend(std::iter::repeat_n(last, settings.outputs - 1));
    }
    let sinks: Vec<usize> = match (settings.both, path.through) {
        (true, _) => vec![0, 1],
        (false, 1..) => vec![guests.len() - 1],
        (false, 0) => (1..guests.len()).collect(),
    };
    let sources = if settings.both { vec![0, 1] } else { vec![0] };
    if settings.both && settings.job != JobKind::Cross {
        return Err(SetupError::BothWays);
    }
    if settings.job == JobKind::Given && (physical != Physical::Memory || guests[0]) {
        return Err(SetupError::GivenFrames);
    }
    let mut devices = settings.devices.iter();
    let mut wires = settings.peers.iter();
    let (mut ports, mut peers) = (Vec::new(), Vec::new());
    for (index, guest) in guests.iter().enumerate() {
        peers.push(None);
        ports.push(match (guest, physical) {
            (true, _) | (false, Physical::Virtual) => subject::Port::Virtual,
            (false, Physical::Veth) => subject::Port::Veth,
            (false, Physical::Device) => {
                let Some(device) = devices.next() else {
                    return Err(SetupError::NoDevice(index + 1));
                };
                is_there("devices", device)?;
                if let Some(peer) = wires.next() {
                    is_there("peers", peer)?;
                    is_up(peer)?;
                    peers[index] = Some(peer.clone());
                }
                subject::Port::Device(device.clone())
            }
            (false, Physical::Memory) => {
                let frames = if !sources.contains(&index) {
                    Default::default()
                } else if let Some(capture) = &settings.capture {
                    // The switch may run elsewhere.
                    std::path::absolute(capture)
                        .and_then(|path| std::fs::File::open(&path).map(|_| path))
                        .map_err(|error| crate::Error::file("read", capture, error))?
                } else {
                    if settings.flows > frames::MOST_FRAMES {
                        return Err(SetupError::TooManyFlows(settings.flows));
                    }
                    frames::capture(directory, settings, opposite(index) as u16 + 1)?
                };
                subject::Port::Memory { frames }
            }
        });
    }
    let pairs = path.pairs();
    let mut behind: Vec<Guest> = pairs.map(|(one, two)| Guest::Forward(one, two)).collect();
    // Where no load is offered, counters tell what came out, and guests take it. (The generator
    // takes it to tell losses and latency, and where it sends as a guest.)
    if !offers && !guests[0] {
        let taken = sinks.iter().filter(|sink| guests[**sink]);
        behind.extend(taken.map(|sink| Guest::Sink(*sink as u16 + 1)));
    }
    let (workers, free) = cores.split_at(settings.workers);
    let core = *free.first().or(cores.last()).expect("there is a worker's");
    Ok(Setup {
        core,
        guests_core: free.get(1).copied().unwrap_or(core),
        shared: free.is_empty(),
        plan: Plan {
            job: job(settings, guests.len())?,
            ports,
            cores: workers.to_vec(),
        },
        guests: behind,
        kind: settings.guest,
        sources,
        sinks,
        physical,
        peers,
    })
}

/// Checks that there is a device, which a setting names.
fn is_there(setting: &'static str, device: &str) -> Result<(), SetupError> {
    let is_pci = is_pci(device);
    let found = match is_pci {
        true => Path::new("/sys/bus/pci/devices").join(device).exists(),
        false => flags(device).is_some(),
    };
    match found {
        true => Ok(()),
        false => Err(SetupError::NotThere {
            setting,
            device: device.to_owned(),
            is_pci,
        }),
    }
}

/// An interface's flags, as `ip` shows them. (/sys may be that of another network namespace.)
fn flags(interface: &str) -> Option<String> {
    let text = run(&["ip", "-o", "link", "show", "dev", interface]).ok()?;
    let (_, behind) = text.split_once('<')?;
    let (flags, _) = behind.split_once('>')?;
    Some(flags.to_owned())
}

/// Checks that an interface is up: the generator leaves that to whoever gave it.
fn is_up(device: &str) -> Result<(), SetupError> {
    match flags(device) {
        Some(flags) if !flags.split(',').any(|flag| flag == "UP") => {
            Err(SetupError::PeerDown(device.to_owned()))
        }
        _ => Ok(()),
    }
}

/// The port beside, counted from 0.
fn opposite(index: usize) -> usize {
    index ^ 1
}

fn job(settings: &Settings, ports: usize) -> Result<Job, crate::Error> {
    Ok(match settings.job {
        JobKind::Cross => Job::Cross,
        JobKind::Stations => Job::Stations(settings.flows as u32),
        JobKind::Routes => Job::Routes(settings.rules.unwrap_or(settings.flows as u32)),
        JobKind::Copies => Job::To(vec![(1, (2..=ports as u16).collect())]),
        JobKind::Rules => {
            let count = u64::from(settings.rules.unwrap_or(settings.flows as u32));
            let rule = |flow| {
                let to = frames::destination(settings, 2, flow);
                format!(
                    "priority=10,udp,nw_dst={},tp_dst={},actions=output:2",
                    to.address, to.port
                )
            };
            Job::Rules {
                rules: (0..count).map(rule).collect(),
                groups: Vec::new(),
            }
        }
        JobKind::Given => {
            let file = settings.openflow.as_deref().unwrap_or(Path::new(""));
            let text = std::fs::read_to_string(file)
                .map_err(|error| crate::Error::file("read", file, error))?;
            let rules = text.lines().map(|line| line.trim());
            let rules = rules.filter(|line| !line.is_empty() && !line.starts_with('#'));
            Job::Rules {
                rules: rules.map(str::to_owned).collect(),
                groups: Vec::new(),
            }
        }
    })
}

/// Trials with a switch that runs.
pub struct Live<'a> {
    /// The switch.
    pub running: &'a mut dyn Running,
    /// What it was asked for.
    pub setup: &'a Setup,
    /// The cell's settings.
    pub settings: &'a Settings,
    /// Starts generators.
    pub generator: &'a mut dyn Generate,
    /// Whether the run is to end.
    pub stop: &'a dyn Fn() -> bool,
}

impl Live<'_> {
    /// Sleeps, unless the run is to end.
    fn sleep(&self, seconds: f64) -> Result<(), Error> {
        let until = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e6));
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if (self.stop)() {
                return Err(Error::Stopped);
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }

    /// Lets a switch run that has just got rules until it is no faster than a moment before: it may
    /// still make of them what it looks packets up in.
    fn settle(&mut self) -> Result<(), Error> {
        let end = Instant::now() + SETTLING;
        let (mut counters, mut at) = self.counters()?;
        let mut rate = 0.0;
        while Instant::now() < end {
            self.sleep(LOOK)?;
            let (now, then) = self.counters()?;
            let seconds = then.duration_since(at).as_secs_f64();
            let faster = self.passed(&counters, &now).0 as f64 / seconds.max(1e-9);
            if rate > 0.0 && faster <= rate * (1.0 + LEVEL) {
                break;
            }
            (counters, at, rate) = (now, then, faster);
        }
        Ok(())
    }

    /// Counters, and when they were read.
    fn counters(&mut self) -> Result<(Vec<Counters>, Instant), Error> {
        let before = Instant::now();
        let counters = self.running.counters()?;
        let ports = self.setup.plan.ports.len();
        if counters.len() < ports {
            return Err(Error::CountersMissing(ports));
        }
        Ok((counters, before + before.elapsed() / 2))
    }

    /// The generator's port at a port of the switch, and its namespace; none where the port feeds
    /// itself.
    fn end(&self, index: usize) -> Option<(Port, Option<String>)> {
        match self.running.ends().into_iter().nth(index)? {
            End::Itself => {
                let peer = self.setup.peers.get(index)?.clone()?;
                let port = match is_pci(&peer) {
                    true => Port::Dpdk(peer),
                    false => Port::Interface(peer),
                };
                Some((port, None))
            }
            End::Socket { path, server } => {
                let path = path.display().to_string();
                Some((Port::VirtioUser { path, server }, None))
            }
            End::Interface { namespace, name } => Some((Port::Interface(name), Some(namespace))),
            End::Tap { namespace, name } => {
                let device = format!("net_tap{index},iface={name}");
                Some((Port::Dpdk(device), Some(namespace)))
            }
        }
    }

    /// Where the generator sends and receives, and in which namespace. What it cannot reach from
    /// there is left out if `may_miss`: the kernel drops those frames, and counters tell.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn ends(
        &self,
        may_miss: bool,
    ) -> Result<(Vec<(usize, Port)>, Vec<Port>, Option<String>), Error> {
        let mut namespace = None;
        let (mut sources, mut sinks) = (Vec::new(), Vec::new());
        for index in &self.setup.sources {
            let Some((port, place)) = self.end(*index) else {
                continue;
            };
            if !sources.is_empty() && place != namespace {
                return Err(Error::SourcesApart);
            }
            namespace = place;
            sources.push((*index, port));
        }
        for index in &self.setup.sinks {
            if self.setup.guests.contains(&Guest::Sink(*index as u16 + 1)) {
                continue;
            }
            let Some((port, place)) = self.end(*index) else {
                continue;
            };
            if sources.is_empty() && sinks.is_empty() {
                namespace = place.clone();
            }
            if place == namespace {
                sinks.push(port);
            } else if !may_miss {
                return Err(Error::SinkApart);
            }
        }
        Ok((sources, sinks, namespace))
    }

    fn stream(&self, port: Port, source: usize, rate: Rate) -> Stream {
        let to = opposite(source) as u16 + 1;
        let destination = frames::destination(self.settings, to, 0);
        let field = |field: &str, values, step| Field {
            field: field.into(),
            values,
            step,
        };
        let by = match self.settings.job {
            JobKind::Stations => vec![field("eth_dst", 0, 1)],
            JobKind::Routes => vec![field("ip_dst", 0, 256)],
            JobKind::Rules => vec![
                field("udp_dst", 64.min(self.settings.flows), 1),
                field("ip_dst", self.settings.flows.div_ceil(64), 1),
            ],
            JobKind::Cross | JobKind::Copies | JobKind::Given => vec![field("ip_dst", 0, 1)],
        };
        let bytes = destination.ethernet.map(|byte| format!("{byte:02x}"));
        Stream {
            name: format!("port{}", source + 1),
            port,
            rate,
            size: Size::Fixed(self.settings.size - 4),
            flows: Flows {
                count: self.settings.flows,
                order: match self.settings.order {
                    FlowOrder::InTurn => Order::InTurn,
                    FlowOrder::Random => Order::Random,
                    FlowOrder::Zipf => Order::Zipf { s: 1.1 },
                },
                by,
                rules: None,
            },
            headers: Headers {
                eth_src: format!("02:00:00:{:02x}:00:00", source + 1),
                eth_dst: bytes.join(":"),
                ip_dst: destination.address.to_string(),
                port_dst: destination.port,
                ..Headers::default()
            },
        }
    }

    /// Sends at this rate from every source, and counts.
    fn send(&mut self, rate: &Rate, seconds: f64, warm_up: f64) -> Result<Outcome, Error> {
        self.reported(rate, seconds, warm_up)
            .map(|(outcome, _)| outcome)
    }

    /// The same, with the generator's report; there is none where ports feed themselves.
    fn reported(
        &mut self,
        rate: &Rate,
        seconds: f64,
        warm_up: f64,
    ) -> Result<(Outcome, Option<Report>), Error> {
        let (sources, sinks, namespace) = self.ends(*rate == Rate::Most)?;
        let streams: Vec<Stream> = sources
            .into_iter()
            .map(|(index, port)| self.stream(port, index, rate.clone()))
            .collect();
        let (fed, drained) = (streams.is_empty(), !sinks.is_empty());
        if fed && *rate != Rate::Most {
            return Err(match self.setup.physical {
                Physical::Device => Error::NoPeers,
                _ => Error::FeedThemselves,
            });
        }
        let spec = Spec {
            // The switch's counters cannot tell frames of the warm-up.
            warm_up: if drained && !fed { warm_up } else { 0.0 },
            seconds: if fed {
                seconds + 2.0 * WARM_UP
            } else {
                seconds
            },
            drain: if fed { 0.0 } else { DRAIN },
            core: Some(self.setup.core),
            streams,
            sinks,
            seed: 1,
        };
        let mut whole = None;
        let mut outcome = if !fed {
            let (before, _) = self.counters()?;
            let sending = self.generator.start(&spec, namespace.as_deref())?;
            let report = sending.finish(self.stop)?;
            let mut outcome = outcome(&report, rate, self.settings.job == JobKind::Copies);
            let (after, _) = self.counters()?;
            if !drained {
                outcome.received = self.passed(&before, &after).1;
            }
            // A switch that polls a ring leaves what is too much in it, so one that took everything
            // was not the limit, whatever it could not deliver. (The kernel takes frames and drops
            // them later.) And who stands still does not receive either.
            let rings = self.setup.sources.iter().all(|source| {
                let end = self.running.ends().into_iter().nth(*source);
                matches!(end, Some(End::Socket { .. }))
            });
            let stood = report.generator.stalled_ns as f64 / 1e9 > TOLERATED * report.seconds;
            if (rings && *rate == Rate::Most) || stood {
                outcome.hindered = outcome.limited.take();
            }
            outcome.hindered = self.slow_guests(&before, &after).or(outcome.hindered);
            whole = Some(report);
            outcome
        } else {
            let sending = match drained {
                true => Some(self.generator.start(&spec, namespace.as_deref())?),
                false => None,
            };
            self.sleep(WARM_UP)?;
            if self.settings.job == JobKind::Given {
                self.settle()?;
            }
            let (before, began) = self.counters()?;
            self.sleep(seconds)?;
            let (after, ended) = self.counters()?;
            if let Some(sending) = sending {
                sending.finish(self.stop)?;
            }
            let (sent, received) = self.passed(&before, &after);
            Outcome {
                seconds: ended.duration_since(began).as_secs_f64(),
                sent,
                received,
                hindered: self.slow_guests(&before, &after),
                ..Outcome::default()
            }
        };
        let core = self.setup.core;
        let generates = drained || !fed;
        let guests = !self.setup.guests.is_empty();
        if self.setup.shared && (generates || guests) {
            let who = if generates { "the generator" } else { "guests" };
            let why = || format!("{who} sharing core {core} with a worker");
            outcome.hindered.get_or_insert_with(why);
        }
        if !fed && self.setup.forwards() && self.setup.guests_core == core {
            let why = || format!("generator and guests sharing core {core}");
            outcome.hindered.get_or_insert_with(why);
        }
        Ok((outcome, whole))
    }

    /// Says so if guests left frames that the switch had for them: of what came in at the port that
    /// feeds a guest, not all went out to it. What a guest took and did not get rid of again is the
    /// switch's.
    fn slow_guests(&self, before: &[Counters], after: &[Counters]) -> Option<String> {
        let slow = self.setup.guests.iter().any(|guest| {
            let (Guest::Forward(port, _) | Guest::Sink(port)) = guest;
            let to = usize::from(*port) - 1;
            let from = match self.settings.job {
                JobKind::Copies => self.setup.sources[0],
                _ => opposite(to),
            };
            let came = after[from].received.saturating_sub(before[from].received);
            let taken = after[to].sent.saturating_sub(before[to].sent);
            (taken as f64) < came as f64 * (1.0 - TOLERATED)
        });
        slow.then(|| {
            let core = self.setup.guests_core;
            format!("guests on core {core}, which did not take all that came for them")
        })
    }

    /// Frames that came in and went out between two readings of counters. Of copies those to the
    /// first output count.
    fn passed(&self, before: &[Counters], after: &[Counters]) -> (u64, u64) {
        let sum = |ports: &[usize], part: fn(&Counters) -> u64| {
            ports
                .iter()
                .map(|p| part(&after[*p]).saturating_sub(part(&before[*p])))
                .sum()
        };
        let outputs = match self.settings.job {
            JobKind::Copies => &self.setup.sinks[..1],
            _ => &self.setup.sinks[..],
        };
        (
            sum(&self.setup.sources, |c| c.received),
            sum(outputs, |c| c.sent),
        )
    }
}

/// What a report says.
fn outcome(report: &Report, rate: &Rate, copies: bool) -> Outcome {
    // What was due and not taken was offered, too; but there is no due where all that fits is sent.
    let due = |stream: &traffic::report::Sent| match rate {
        Rate::Most => stream.packets,
        _ => stream.packets + stream.refused,
    };
    let sinks = if copies {
        &report.sinks[..1.min(report.sinks.len())]
    } else {
        &report.sinks[..]
    };
    let arrived = || sinks.iter().flat_map(|sink| &sink.streams);
    // Of each source's frames where most of them came.
    let latency = |source: usize| {
        let arrived = sinks.iter().filter_map(|sink| sink.streams.get(source));
        let most = arrived.map(|a| &a.latency).max_by_key(|l| l.count)?;
        (most.count > 0).then_some(Latency {
            mean: most.mean,
            p50: most.p50 as f64,
            p90: most.p90 as f64,
            p99: most.p99 as f64,
            p999: most.p999 as f64,
            max: most.max as f64,
        })
    };
    Outcome {
        seconds: report.seconds,
        sent: report.streams.iter().map(due).sum(),
        received: arrived().map(|a| a.packets).sum(),
        latency: latency(0),
        back: latency(1),
        duplicates: arrived().map(|a| a.duplicates).sum(),
        reordered: arrived().map(|a| a.reordered).sum(),
        limited: report
            .generator
            .limited
            .as_ref()
            .map(|why| format!("the generator: {why}")),
        hindered: None,
    }
}

/// What a report says of a rate with two steps. Of each stream that sink counts at which most of
/// its frames came.
fn stepped(report: &Report, copies: bool) -> Result<Stepped, Error> {
    let sinks = if copies {
        &report.sinks[..1.min(report.sinks.len())]
    } else {
        &report.sinks[..]
    };
    let mut stepped = Stepped::default();
    for (number, sent) in report.streams.iter().enumerate() {
        let arrived = sinks.iter().filter_map(|sink| sink.streams.get(number));
        let most = arrived.max_by_key(|arrived| arrived.packets);
        let (&[first, second], Some(arrived)) = (&sent.steps[..], most) else {
            return Err(Error::NoSteps);
        };
        let &[early, late] = &arrived.steps[..] else {
            return Err(Error::NoArrivedSteps);
        };
        stepped.before.0 += first.packets + first.refused;
        stepped.before.1 += early;
        stepped.after.0 += second.packets + second.refused;
        stepped.after.1 += late;
        let after = |last: u64| (last as f64 - second.from_ns as f64) / 1e9;
        let last = arrived.last_lost_ns.map(after);
        stepped.last_lost = match (stepped.last_lost, last) {
            (Some(one), Some(other)) => Some(f64::max(one, other)),
            (one, other) => one.or(other),
        };
    }
    Ok(stepped)
}

impl Live<'_> {
    /// Where rules can change while packets pass: from an interface to two others.
    fn wires(&self) -> Result<Wires, Error> {
        let ends = self.running.ends();
        let interface = |index: usize| match ends.get(index) {
            Some(End::Interface { namespace, name }) => Ok((namespace.clone(), name.clone())),
            _ => Err(Error::NotInterfaces),
        };
        let &[one, other] = &self.setup.sinks[..] else {
            return Err(Error::NotTwoOutputs);
        };
        let (namespace, source) = interface(self.setup.sources[0])?;
        let (sinks, same) =
            [one, other]
                .iter()
                .try_fold((Vec::new(), true), |(mut names, same), index| {
                    let (place, name) = interface(*index)?;
                    names.push(name);
                    Ok::<_, Error>((names, same && place == namespace))
                })?;
        match (<[String; 2]>::try_from(sinks), same) {
            (Ok(sinks), true) => Ok(Wires {
                namespace,
                source,
                sinks,
            }),
            _ => Err(Error::EndsApart),
        }
    }
}

impl Trial for Live<'_> {
    fn changes(&mut self, seconds: f64) -> Result<Changes, methods::Error> {
        let wires = self.wires()?;
        let socket = self.running.control().ok_or(Error::NoOpenFlow)?;
        let beside = self.settings.rules.unwrap_or(0);
        let core = self.setup.core;
        let changes = changes::measure(&socket, &wires, beside, core, seconds, self.stop);
        Ok(changes.map_err(Error::from)?)
    }

    fn run(&mut self, offered_pps: Option<f64>, seconds: f64) -> Result<Outcome, methods::Error> {
        // The load is that of all sources together.
        let sources = self.setup.sources.len() as f64;
        let rate = match (offered_pps.map(|pps| pps / sources), self.settings.pattern) {
            (None, _) => Rate::Most,
            (Some(pps), Pattern::Constant) => Rate::Constant { pps },
            (Some(pps), Pattern::Poisson) => Rate::Poisson { pps },
            (Some(pps), Pattern::Bursts) => Rate::Bursts {
                pps,
                length: self.settings.burst,
            },
        };
        Ok(self.send(&rate, seconds, WARM_UP)?)
    }

    fn step(&mut self, rates: (f64, f64), times: (f64, f64)) -> Result<Stepped, methods::Error> {
        let sources = self.setup.sources.len() as f64;
        let step = |from, pps| Step {
            from,
            pps: pps / sources,
        };
        let rate = Rate::Steps(vec![step(0.0, rates.0), step(times.0, rates.1)]);
        let (outcome, report) = self.reported(&rate, times.0 + times.1, WARM_UP)?;
        let report = report.ok_or(Error::FeedThemselves)?;
        let mut stepped = stepped(&report, self.settings.job == JobKind::Copies)?;
        stepped.limited = outcome.limits();
        Ok(stepped)
    }

    fn burst(&mut self, frames: u64, repeats: u32) -> Result<Outcome, methods::Error> {
        // Time for any burst to be sent and forwarded, and a pause.
        let apart = 0.02 + frames as f64 / 250e3;
        let length = u32::try_from(frames).map_err(|_| Error::BurstTooLong)?;
        let rate = Rate::Bursts {
            pps: f64::from(length) / apart,
            length,
        };
        Ok(self.send(&rate, apart * f64::from(repeats), 0.0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{self, Sending};
    use crate::settings::Path as Way;
    use crate::subjects::Linux;
    use std::cell::RefCell;
    use std::rc::Rc;
    use traffic::report::{Arrived, Received, Sent, SentStep};

    fn settings() -> Settings {
        Settings::default()
    }

    fn built(settings: &Settings, physical: Physical) -> Result<Setup, String> {
        let directory = tempfile::tempdir().unwrap();
        setup(settings, physical, false, &[1, 0], directory.path())
            .map_err(|error| error.to_string())
    }

    fn way(name: &str) -> Way {
        Way::of(name).unwrap()
    }

    #[test]
    fn paths_become_ports_and_guests() {
        let at = |path, physical| {
            let path = way(path);
            let setup = built(&Settings { path, ..settings() }, physical).unwrap();
            (
                setup.plan.ports.len(),
                setup.sources,
                setup.sinks,
                setup.guests,
            )
        };
        let (from, to) = (vec![0], vec![1]);
        let forward = Guest::Forward(2, 3);
        assert_eq!(
            at("p-p", Physical::Memory),
            (2, from.clone(), to.clone(), vec![])
        );
        assert_eq!(
            at("p-v", Physical::Memory),
            (2, from.clone(), to.clone(), vec![Guest::Sink(2)])
        );
        // Guests take what nobody measures by frames.
        assert_eq!(
            at("p-v", Physical::Veth),
            (2, from.clone(), to, vec![Guest::Sink(2)])
        );
        assert_eq!(
            at("p-v-p", Physical::Memory),
            (4, from.clone(), vec![3], vec![forward])
        );
        assert_eq!(
            at("p-v-v", Physical::Memory),
            (4, from.clone(), vec![3], vec![forward, Guest::Sink(4)])
        );
        let chain = vec![forward, Guest::Forward(4, 5), Guest::Forward(6, 7)];
        assert_eq!(at("p-v-v-v-p", Physical::Veth), (8, from, vec![7], chain));
        let error = built(
            &Settings {
                path: way("p-v-p"),
                both: true,
                ..settings()
            },
            Physical::Memory,
        );
        assert!(error.unwrap_err().contains("p-v-p goes one way"));
    }

    #[test]
    fn frames_are_where_they_come_in() {
        let both = built(
            &Settings {
                both: true,
                ..settings()
            },
            Physical::Memory,
        )
        .unwrap();
        let one = built(&settings(), Physical::Memory).unwrap();
        let empty = |setup: &Setup| -> Vec<bool> {
            let ports = setup.plan.ports.iter();
            ports
                .map(|port| match port {
                    subject::Port::Memory { frames } => frames.as_os_str().is_empty(),
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        assert_eq!(
            (empty(&both), empty(&one)),
            (vec![false, false], vec![false, true])
        );
        assert_eq!(
            (one.core, one.shared, &one.plan.cores),
            (0, false, &vec![1])
        );
        let two = built(
            &Settings {
                workers: 2,
                ..settings()
            },
            Physical::Memory,
        )
        .unwrap();
        assert!(two.shared);
        assert_eq!(
            (one.sharing().as_str(), two.sharing().as_str()),
            (
                "the worker has core 1, generator and guests share core 0",
                "workers have cores 1, 0, and generator and guests share core 0 with one"
            )
        );
        let error = built(
            &Settings {
                workers: 3,
                ..settings()
            },
            Physical::Memory,
        )
        .unwrap_err();
        assert!(
            error.contains("3 workers need as many cores, and the run has 2"),
            "{error}"
        );
        let many = Settings {
            flows: 1_000_000,
            job: JobKind::Stations,
            ..settings()
        };
        assert!(
            built(&many, Physical::Memory)
                .unwrap_err()
                .contains("do not fit")
        );
        assert!(built(&many, Physical::Veth).is_ok());
    }

    #[test]
    fn generator_and_guests_have_cores_of_their_own_where_there_are_enough() {
        let directory = tempfile::tempdir().unwrap();
        let cores = |cores: &[usize]| {
            let setup = setup(&settings(), Physical::Veth, true, cores, directory.path()).unwrap();
            (setup.core, setup.guests_core, setup.sharing())
        };
        let text = "the worker has core 3, the generator core 2, guests core 1".to_string();
        assert_eq!(cores(&[3, 2, 1, 0]), (2, 1, text));
        let text = "the worker has core 1, generator and guests share core 0".to_string();
        assert_eq!(cores(&[1, 0]), (0, 0, text));
        assert_eq!(cores(&[4]).0, 4);
    }

    /// The first kind of port that a switch can have; where there is none, the reasons.
    #[test]
    fn the_kernel_gets_veths() {
        let directory = tempfile::tempdir().unwrap();
        let cores = &crate::subjects::allowed_cores()[..1];
        let fits = |ports| {
            let settings = Settings {
                ports,
                path: way("p-v-p"),
                ..settings()
            };
            fitting(&settings, false, &Linux::Bridge, cores, directory.path())
        };
        let setup = fits(Ports::Auto).unwrap();
        assert_eq!(setup.physical, Physical::Veth);
        assert_eq!(setup.plan.ports[0], subject::Port::Veth);
        let error = fits(Ports::Memory).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
    }

    #[test]
    fn given_devices_are_ports_and_their_peers_the_generators() {
        let of = |devices: &str, peers: &str| Settings {
            ports: Ports::Devices,
            devices: devices.split_whitespace().map(str::to_owned).collect(),
            peers: peers.split_whitespace().map(str::to_owned).collect(),
            path: way("p-v"),
            ..settings()
        };
        // Every host has lo, and it is up.
        let setup = built(&of("lo", ""), Physical::Device).unwrap();
        assert_eq!(
            setup.plan.ports,
            [subject::Port::Device("lo".into()), subject::Port::Virtual]
        );
        assert_eq!(setup.peers, [None, None]);
        let there = of("lo", "lo");
        let setup = built(&there, Physical::Device).unwrap();
        assert_eq!(setup.peers, [Some("lo".into()), None]);
        let mut running = Counting::still(2);
        running.ends[0] = End::Itself;
        let live = Live {
            running: &mut running,
            setup: &setup,
            settings: &there,
            generator: &mut Asked::default(),
            stop: &|| false,
        };
        assert_eq!(live.end(0), Some((Port::Interface("lo".into()), None)));
        for (devices, peers, wanted) in [
            (
                "nosuch0",
                "",
                "devices: there is no nosuch0 among the interfaces here",
            ),
            ("lo", "nosuch1", "peers: there is no nosuch1"),
            (
                "ffff:ff:1f.7",
                "",
                "devices: there is no ffff:ff:1f.7 in /sys/bus/pci",
            ),
            ("", "", "port 1 has no device"),
        ] {
            let error = built(&of(devices, peers), Physical::Device).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn jobs_are_what_settings_say() {
        let job = |settings: &Settings| built(settings, Physical::Veth).unwrap().plan.job;
        let copies = Settings {
            job: JobKind::Copies,
            outputs: 3,
            ..settings()
        };
        assert_eq!(job(&copies), Job::To(vec![(1, vec![2, 3, 4])]));
        let rules = Settings {
            job: JobKind::Rules,
            flows: 65,
            ..settings()
        };
        let Job::Rules { rules, .. } = job(&rules) else {
            panic!()
        };
        assert_eq!(rules.len(), 65);
        assert_eq!(
            rules[64],
            "priority=10,udp,nw_dst=10.1.0.1,tp_dst=2048,actions=output:2"
        );
        let routes = Settings {
            job: JobKind::Routes,
            flows: 3,
            rules: Some(9),
            ..settings()
        };
        assert_eq!(job(&routes), Job::Routes(9));
    }

    #[test]
    fn given_rules_and_frames_are_taken_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let rules = "# Two.\n\n in_port=1,udp,actions=output:2\npriority=0,actions=output:3\n";
        let given = Settings {
            job: JobKind::Given,
            outputs: 2,
            openflow: Some(file("rules", rules)),
            capture: Some(file("frames.pcap", "")),
            ..settings()
        };
        let setup = built(&given, Physical::Memory).unwrap();
        let none = || subject::Port::Memory {
            frames: Default::default(),
        };
        let first = subject::Port::Memory {
            frames: directory.path().join("frames.pcap"),
        };
        assert_eq!(setup.plan.ports, [first, none(), none()]);
        assert_eq!((setup.sources, setup.sinks), (vec![0], vec![1, 2]));
        let wanted = [
            "in_port=1,udp,actions=output:2",
            "priority=0,actions=output:3",
        ];
        assert!(matches!(&setup.plan.job, Job::Rules { rules, .. } if *rules == wanted));
        let error = built(&given, Physical::Veth).unwrap_err();
        assert!(error.contains("port in memory"), "{error}");
        for (openflow, capture) in [("nosuch", "frames.pcap"), ("rules", "nosuch")] {
            let at = |name| Some(directory.path().join(name));
            let error = built(
                &Settings {
                    openflow: at(openflow),
                    capture: at(capture),
                    ..given.clone()
                },
                Physical::Memory,
            );
            assert!(error.unwrap_err().contains("nosuch"));
        }
    }

    /// A switch whose ports receive and send so many frames between two readings.
    struct Counting {
        ends: Vec<End>,
        each: Vec<(u64, u64)>,
        readings: u64,
    }

    impl Counting {
        /// Behind vhost-user sockets, with counters that stand still.
        fn still(ports: usize) -> Counting {
            let end = |number| End::Socket {
                path: format!("/run/{number}").into(),
                server: true,
            };
            Counting {
                ends: (1..=ports).map(end).collect(),
                each: vec![(0, 0); ports],
                readings: 0,
            }
        }

        /// With a guest at port 2 for which a thousand frames come, of which so many are taken.
        fn feeding(taken: u64) -> Counting {
            Counting {
                ends: vec![End::Itself, End::Itself, End::Itself, End::Itself],
                // What comes out of the guest again does not matter.
                each: vec![(1000, 0), (0, taken), (taken / 2, 0), (0, taken / 2)],
                readings: 0,
            }
        }
    }

    impl Running for Counting {
        fn ends(&self) -> Vec<End> {
            self.ends.clone()
        }

        fn counters(&mut self) -> Result<Vec<Counters>, subject::Error> {
            self.readings += 1;
            let counters = |(received, sent)| Counters {
                received: received * self.readings,
                sent: sent * self.readings,
                ..Counters::default()
            };
            Ok(self.each.iter().copied().map(counters).collect())
        }

        fn apply(&mut self, _: &Job) -> Result<(), subject::Error> {
            Ok(())
        }

        fn process(&self) -> Option<u32> {
            None
        }

        fn workers(&self) -> Vec<u32> {
            Vec::new()
        }

        fn stages(&mut self) -> Result<Option<Vec<subject::Stage>>, subject::Error> {
            Ok(None)
        }

        fn stop(self: Box<Self>) -> Result<(), subject::Error> {
            Ok(())
        }
    }

    #[test]
    fn guests_that_leave_frames_are_the_limit() {
        for (name, taken, slow) in [
            ("p-v", 990, true),
            ("p-v", 1000, false),
            ("p-v-p", 990, true),
            ("p-v-p", 1000, false),
            // No guest.
            ("p-p", 990, false),
        ] {
            let path = way(name);
            let settings = Settings { path, ..settings() };
            let setup = built(&settings, Physical::Memory).unwrap();
            let outcome = Live {
                running: &mut Counting::feeding(taken),
                setup: &setup,
                settings: &settings,
                generator: &mut Asked::default(),
                stop: &|| false,
            }
            .run(None, 0.01)
            .unwrap();
            assert_eq!(outcome.hindered.is_some(), slow, "{name} {taken}");
        }
    }

    /// A generator that keeps what it was asked for, and sends 1000 frames of which 100 are
    /// refused.
    #[derive(Default)]
    struct Asked(Rc<RefCell<Vec<Spec>>>);

    impl Generate for Asked {
        fn start(
            &mut self,
            spec: &Spec,
            _: Option<&str>,
        ) -> Result<Box<dyn Sending>, generator::Error> {
            self.0.borrow_mut().push(spec.clone());
            struct Done;
            impl Sending for Done {
                fn finish(
                    self: Box<Self>,
                    _: &dyn Fn() -> bool,
                ) -> Result<Report, generator::Error> {
                    let arrived = |packets| Received {
                        streams: vec![Arrived {
                            packets,
                            ..Arrived::default()
                        }],
                        ..Received::default()
                    };
                    Ok(Report {
                        seconds: 1.0,
                        streams: vec![Sent {
                            packets: 900,
                            refused: 100,
                            ..Sent::default()
                        }],
                        sinks: vec![arrived(800), arrived(700)],
                        ..Report::default()
                    })
                }
            }
            Ok(Box::new(Done))
        }
    }

    fn trial(
        settings: &Settings,
        offered: Option<f64>,
    ) -> (Result<Outcome, methods::Error>, Vec<Spec>) {
        let setup = built(settings, Physical::Virtual).unwrap();
        let mut generator = Asked::default();
        let specs = generator.0.clone();
        let outcome = Live {
            running: &mut Counting::still(setup.plan.ports.len()),
            setup: &setup,
            settings,
            generator: &mut generator,
            stop: &|| false,
        }
        .run(offered, 0.5);
        let specs = specs.borrow().clone();
        (outcome, specs)
    }

    #[test]
    fn each_direction_has_its_latency() {
        let arrived = |count, p50| Arrived {
            packets: count,
            latency: traffic::report::Percentiles {
                count,
                p50,
                ..Default::default()
            },
            ..Arrived::default()
        };
        let sink = |streams| Received {
            streams,
            ..Received::default()
        };
        let report = Report {
            sinks: vec![
                sink(vec![arrived(0, 0), arrived(900, 7000)]),
                sink(vec![arrived(1000, 5000), arrived(0, 0)]),
            ],
            ..Report::default()
        };
        let rate = Rate::Constant { pps: 1e3 };
        let both = outcome(&report, &rate, false);
        assert_eq!(both.latency.map(|l| l.p50), Some(5000.0));
        assert_eq!(both.back.map(|l| l.p50), Some(7000.0));
        let one = outcome(
            &Report {
                sinks: vec![sink(vec![arrived(1000, 5000)])],
                ..Report::default()
            },
            &rate,
            false,
        );
        assert_eq!(one.back, None);
    }

    #[test]
    fn steps_are_read_from_the_report() {
        let sent = |second: SentStep| Sent {
            steps: vec![
                SentStep {
                    packets: 90,
                    refused: 10,
                    ..SentStep::default()
                },
                second,
            ],
            ..Sent::default()
        };
        let second = SentStep {
            from_ns: 2_000_000,
            packets: 50,
            refused: 0,
        };
        let arrived = |steps: [u64; 2], last| Arrived {
            packets: steps[0] + steps[1],
            steps: steps.to_vec(),
            last_lost_ns: last,
            ..Arrived::default()
        };
        let sink = |streams| Received {
            streams,
            ..Received::default()
        };
        // Each stream comes out at the other's port.
        let report = Report {
            streams: vec![sent(second), sent(second)],
            sinks: vec![
                sink(vec![
                    arrived([0, 0], Some(9_000_000)),
                    arrived([80, 50], Some(1_000_000)),
                ]),
                sink(vec![
                    arrived([85, 47], Some(2_500_000)),
                    arrived([0, 0], None),
                ]),
            ],
            ..Report::default()
        };
        let found = stepped(&report, false).unwrap();
        assert_eq!((found.before, found.after), ((200, 165), (100, 97)));
        assert!(
            (found.last_lost.unwrap() - 0.0005).abs() < 1e-12,
            "{found:?}"
        );
        let bare = Report {
            streams: vec![Sent::default()],
            sinks: vec![sink(vec![Arrived::default()])],
            ..Report::default()
        };
        assert!(stepped(&bare, false).is_err());
    }

    /// One run of the generator, whose load changes.
    #[test]
    fn a_step_is_one_schedule() {
        let setup = built(&settings(), Physical::Virtual).unwrap();
        let mut generator = Asked::default();
        let specs = generator.0.clone();
        let error = Live {
            running: &mut Counting::still(2),
            setup: &setup,
            settings: &settings(),
            generator: &mut generator,
            stop: &|| false,
        }
        .step((2e6, 1e6), (0.5, 0.25))
        .unwrap_err()
        .to_string();
        assert!(error.contains("told nothing of its steps"), "{error}");
        let specs = specs.borrow();
        assert_eq!((specs.len(), specs[0].seconds), (1, 0.75));
        let step = |from, pps| Step { from, pps };
        let wanted = vec![step(0.0, 2e6), step(0.5, 1e6)];
        assert_eq!(specs[0].streams[0].rate, Rate::Steps(wanted));
    }

    #[test]
    fn loads_are_asked_of_the_generator() {
        let stations = Settings {
            job: JobKind::Stations,
            flows: 100,
            size: 128,
            pattern: Pattern::Bursts,
            ..settings()
        };
        let (outcome, specs) = trial(&stations, Some(1e6));
        // What was due and not taken was offered, too.
        let outcome = outcome.unwrap();
        assert_eq!((outcome.sent, outcome.received), (1000, 1500));
        let stream = &specs[0].streams[0];
        assert_eq!(
            stream.rate,
            Rate::Bursts {
                pps: 1e6,
                length: 32
            }
        );
        assert_eq!((&stream.size, stream.flows.count), (&Size::Fixed(124), 100));
        assert_eq!(stream.flows.by[0].field, "eth_dst");
        assert_eq!(stream.headers.eth_dst, "02:00:00:02:00:00");
        assert_eq!(
            stream.port,
            Port::VirtioUser {
                path: "/run/1".into(),
                server: true
            }
        );
        assert_eq!(
            (specs[0].sinks.len(), specs[0].core, specs[0].seconds),
            (1, Some(0), 0.5)
        );
        // Of copies the first output counts, and of the most what was taken.
        let copies = Settings {
            job: JobKind::Copies,
            outputs: 2,
            ..settings()
        };
        let (outcome, specs) = trial(&copies, None);
        let outcome = outcome.unwrap();
        assert_eq!((outcome.sent, outcome.received), (900, 800));
        assert_eq!(
            (specs[0].sinks.len(), &specs[0].streams[0].rate),
            (2, &Rate::Most)
        );
        // Both ways: each source has half of the load.
        let (_, specs) = trial(
            &Settings {
                both: true,
                ..settings()
            },
            Some(1e6),
        );
        let rates: Vec<_> = specs[0].streams.iter().map(|s| s.rate.clone()).collect();
        assert_eq!(rates, vec![Rate::Constant { pps: 5e5 }; 2]);
    }
}
