//! Measures what ports cost.
//!
//! Sending has a cost per call and a cost per packet, because packets that leave by different ports
//! are sent in smaller batches. Receiving is what is left of a worker's turn under a [`Reference`]
//! after the costs of sending and of the reference's own work are subtracted: so it includes cache
//! misses on packets. Ports that copy frames when receiving them leave nothing to wait for: their
//! cost is that of receiving alone.

use crate::engine::{EngineCost, Reference};
use crate::machine::Reading;
use crate::rules::Rules;
use crate::spread::Spread;
use crate::trace::Trace;
use crate::traffic::Traffic;
use crate::worker::longer;
use crate::{Effort, Error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The daemon's option to measure ports: `--calibrate-ports CAPTURE MEMORY CPU ROUNDS DEVICES
/// [RULES PLAN]`.
pub const OPTION: &str = "--calibrate-ports";

/// How long a measurement with the usual number of slices may take; it runs only while the
/// processor is not needed otherwise.
const LIMIT: Duration = Duration::from_secs(120);

/// Where the buffers of measured ports are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// In huge pages, if enough are free.
    Huge,
    /// In ordinary memory, so that huge pages are left to a running switch.
    Ordinary,
}

impl Memory {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Huge => "huge",
            Memory::Ordinary => "ordinary",
        }
    }

    /// Returns the memory of this name.
    pub fn by_name(name: &str) -> Option<Memory> {
        [Memory::Huge, Memory::Ordinary]
            .into_iter()
            .find(|memory| memory.name() == name)
    }
}

/// A kind of port that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// DPDK's `net_pcap` for receiving, `net_null` for sending.
    Dpdk,
    /// One end of a veth pair.
    Veth,
    /// A TAP device, as ports of the types `internal` and `tap` are.
    Tap,
    /// One end of a veth pair, through AF_XDP.
    AfXdp,
    /// A guest's rings (vhost-user).
    Vhost,
}

impl Device {
    /// All kinds.
    pub const ALL: [Device; 5] = [
        Device::Dpdk,
        Device::Veth,
        Device::Tap,
        Device::AfXdp,
        Device::Vhost,
    ];

    /// Returns whether it is a kernel interface, which only root can make to measure it.
    pub fn is_kernels(self) -> bool {
        matches!(self, Device::Veth | Device::Tap | Device::AfXdp)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Device::Dpdk => "dpdk",
            Device::Veth => "veth",
            Device::Tap => "tap",
            Device::AfXdp => "afxdp",
            Device::Vhost => "vhost",
        }
    }

    /// Returns the kind of this name.
    pub fn by_name(name: &str) -> Option<Device> {
        Device::ALL.into_iter().find(|device| device.name() == name)
    }

    /// Returns a note on what is measured, and what is not.
    pub fn note(self) -> &'static str {
        match self {
            Device::Dpdk => "dpdk ports are measured as net_pcap in and net_null out",
            Device::Veth => {
                "veth ports are measured by a pair whose other end sends without pause, and drops \
                 what it gets: the stack behind it costs more, on the worker's time; what the \
                 kernel does to bring packets in costs the sender's processor"
            }
            Device::Tap => {
                "tap and internal ports are measured by a device on which packets come from a \
                 socket without pause, and that drops what it gets: the stack behind it costs \
                 more, on the worker's time"
            }
            Device::AfXdp => {
                "afxdp ports are measured by a veth pair whose other end sends without pause, and \
                 drops what it gets: cards whose driver needs no copy cost less"
            }
            Device::Vhost => {
                "vhost ports are measured by a guest's side that polls, writes each packet and \
                 never lets its rings run empty; a guest that sleeps must be woken, at some \
                 thousand cycles each time"
            }
        }
    }
}

/// Formats several kinds as one argument: `dpdk,veth`.
pub fn devices_to_text(devices: &[Device]) -> String {
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    names.join(",")
}

/// Parses [`devices_to_text`]'s format; None for other words.
pub fn devices_of_text(text: &str) -> Option<Vec<Device>> {
    text.split(',').map(Device::by_name).collect()
}

/// The costs of kinds of ports.
pub type Costs = BTreeMap<Device, PortCost>;

/// Adds the notes on ports that were measured; notes that all kinds share are added once.
pub fn add_notes(costs: &Costs, notes: &mut Vec<String>) {
    for (device, cost) in costs {
        let new = cost.notes.iter().filter(|note| !notes.contains(note));
        let new: Vec<String> = new.cloned().collect();
        notes.extend(new);
        notes.push(device.note().to_owned());
    }
}

/// The process that measures ports: a process can initialise DPDK only once.
pub struct Helper<'a> {
    /// The daemon's program.
    pub program: &'a Path,
    /// Where buffers are.
    pub memory: Memory,
    /// File that the packets are written to and that is removed afterwards; nobody else should be
    /// able to write there.
    pub capture: &'a Path,
}

/// What a worker in the other process does with ports: receives this many packets by each of some,
/// and sends by others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Ports and their numbers of packets, in the order of the capture.
    pub inward: Vec<(u32, usize)>,
    /// Ports that packets leave by, and none arrive by.
    pub outward: Vec<u32>,
}

impl Plan {
    /// Most devices of a plan, two for each port that packets arrive by: a process has 32.
    const DEVICES_MAX: usize = 28;

    /// Makes the plan for this traffic; None if it needs too many ports.
    pub fn of(traffic: &Traffic, trace: &Trace) -> Option<Plan> {
        let inward: Vec<(u32, usize)> = traffic
            .in_ports()
            .into_iter()
            .map(|port| {
                let own = traffic.arrivals.iter().filter(|a| a.in_port == port);
                (port, own.count())
            })
            .collect();
        let outward: Vec<u32> = trace
            .out_ports
            .keys()
            .copied()
            .filter(|port| inward.iter().all(|(inward, _)| inward != port))
            .collect();
        let plan = Plan { inward, outward };
        (2 * plan.inward.len() + plan.outward.len() <= Plan::DEVICES_MAX).then_some(plan)
    }

    /// Formats the plan as one argument: `1:4096,5:100/2,3`.
    pub fn to_text(&self) -> String {
        let inward: Vec<String> = self
            .inward
            .iter()
            .map(|(port, packets)| format!("{port}:{packets}"))
            .collect();
        let outward: Vec<String> = self.outward.iter().map(u32::to_string).collect();
        format!("{}/{}", inward.join(","), outward.join(","))
    }

    /// Parses [`Plan::to_text`]'s format.
    pub fn of_text(text: &str) -> Option<Plan> {
        let (inward, outward) = text.split_once('/')?;
        let inward = inward.split(',').map(|item| {
            let (port, packets) = item.split_once(':')?;
            Some((port.parse().ok()?, packets.parse().ok()?))
        });
        let outward = outward
            .split(',')
            .filter(|item| !item.is_empty())
            .map(|item| item.parse().ok());
        Some(Plan {
            inward: inward.collect::<Option<_>>()?,
            outward: outward.collect::<Option<_>>()?,
        })
    }
}

/// Reads everything from a pipe on a thread, so that its writer never blocks on a full pipe.
fn read_meanwhile(
    pipe: Option<impl Read + Send + 'static>,
) -> JoinHandle<std::io::Result<Vec<u8>>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    })
}

/// Runs a command, for at most `limit`; it is killed when the thread that waits for it ends.
fn run_within(command: &mut Command, limit: Duration) -> std::io::Result<Output> {
    // SAFETY: between fork and exec, only this system call is made, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = read_meanwhile(child.stdout.take());
    let stderr = read_meanwhile(child.stderr.take());
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            let text = format!("it was not done after {} s", limit.as_secs());
            return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let all = |reader: JoinHandle<std::io::Result<Vec<u8>>>| {
        let failed = |_| Err(std::io::Error::other("a thread that read has failed"));
        reader.join().unwrap_or_else(failed)
    };
    Ok(Output {
        status,
        stdout: all(stdout)?,
        stderr: all(stderr)?,
    })
}

impl Helper<'_> {
    /// Measures these kinds of ports with this traffic: under the simplest rules, and DPDK's also
    /// under the rules themselves if `rules` names them with what packets do, and that is possible.
    pub fn measure(
        &self,
        devices: &[Device],
        traffic: &Traffic,
        rules: Option<(&Rules, &Trace)>,
        effort: Effort,
    ) -> Result<Costs, Error> {
        // A private directory is removed with everything in it; elsewhere the files are removed.
        struct Remove<'p>(Vec<std::borrow::Cow<'p, Path>>);
        impl Drop for Remove<'_> {
            fn drop(&mut self) {
                for path in &self.0 {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
        let write = |path: &Path, bytes: Vec<u8>| {
            std::fs::write(path, bytes)
                .map_err(|error| Error::new(format!("cannot write {}: {error}", path.display())))
        };
        let mut files = Remove(vec![self.capture.into()]);
        write(self.capture, traffic.to_capture())?;
        let program = self.program.display();
        let mut command = Command::new(self.program);
        command
            .arg(OPTION)
            .arg(self.capture)
            .arg(self.memory.name())
            .args([effort.cpu.unwrap_or(0), effort.rounds].map(|number| number.to_string()))
            .arg(devices_to_text(devices));
        let whole = rules
            .and_then(|(rules, trace)| Some((rules.to_messages()?, Plan::of(traffic, trace)?)));
        if let Some((messages, plan)) = whole {
            let path = self.capture.with_extension("rules");
            files.0.push(path.clone().into());
            write(&path, messages)?;
            command.arg(path).arg(plan.to_text());
        }
        let output = run_within(&mut command, LIMIT.saturating_mul(longer(effort.rounds)));
        drop(files);
        let output = output.map_err(|error| {
            Error::new(format!("cannot run {program} to measure ports: {error}"))
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new(format!(
                "{program} could not measure ports: {}",
                said.trim_end()
            )));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| {
            Error::new(format!(
                "{program} said something else than what ports cost: {error}"
            ))
        })
    }
}

/// Cycles of receiving by one kind of port and sending by another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortCost {
    /// Per packet received, if it is sent at once, without a worker.
    pub receive: Spread,
    /// Per packet sent.
    pub send_packet: Spread,
    /// Additionally, per batch sent.
    pub send_batch: Spread,
    /// A packet's share of a worker's turn under [`Reference::Untouched`]; None if receiving copies
    /// packets, so that reading them later does not miss the cache.
    #[serde(default)]
    pub untouched: Option<Spread>,
    /// The same under [`Reference::Touched`].
    #[serde(default)]
    pub touched: Option<Spread>,
    /// A packet's share of a worker's turn under the rules themselves, over these ports; None if
    /// not measured.
    #[serde(default)]
    pub whole: Option<Spread>,
    /// Whether that worker uses its flow cache, as text.
    #[serde(default)]
    pub remembers: Option<String>,
    /// Polling an idle kernel interface, as a bridge's own port mostly is.
    pub look: Spread,
    /// The machine's speed during the measurement.
    #[serde(default)]
    pub readings: Vec<Reading>,
    /// Notes on the measurement, for example that there were no huge pages.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Shares of the packets that arrive and leave by ports of a cost; the others cost nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shares {
    /// Share of the packets received.
    pub received: f64,
    /// Share of the packets sent.
    pub sent: f64,
}

impl Shares {
    /// All packets arrive and leave by such ports.
    pub const ALL: Shares = Shares {
        received: 1.0,
        sent: 1.0,
    };
    /// No packets do.
    pub const NONE: Shares = Shares {
        received: 0.0,
        sent: 0.0,
    };
}

/// The ports between the rules and the wire.
#[derive(Clone, Copy, Debug)]
pub struct Edge<'a> {
    /// Costs of ports, with the shares of the traffic that use them; other ports cost nothing.
    pub ports: &'a [(&'a PortCost, Shares)],
    /// Shares of the packets that arrive by ports that police (`ingress_policing_rate`), and leave
    /// by such ports (QoS of type `egress-policer`).
    pub policed: Shares,
}

impl PortCost {
    /// Returns the cost of sending `sent` copies of each packet, `batch` at a time.
    pub fn send(&self, sent: f64, batch: f64) -> Spread {
        let calls = sent / batch.max(1.0);
        self.send_packet
            .times(sent)
            .plus(self.send_batch.times(calls))
    }

    /// Evaluates rounds of receiving, and of sending in batches of two sizes, in cycles per packet.
    pub fn of_rounds(
        receive: Vec<f64>,
        (large, in_large): (usize, Vec<f64>),
        (small, in_small): (usize, Vec<f64>),
    ) -> PortCost {
        let (in_large, in_small) = (Spread::of(in_large), Spread::of(in_small));
        // large: packet + batch / large; small: packet + batch / small.
        let share = 1.0 / small as f64 - 1.0 / large as f64;
        let batch = ((in_small.median - in_large.median) / share).max(0.0);
        let packet = (in_large.median - batch / large as f64).max(0.0);
        PortCost {
            receive: Spread::of(receive),
            send_packet: Spread {
                median: packet,
                low: (packet - (in_large.median - in_large.low)).max(0.0),
                high: packet + (in_large.high - in_large.median),
            },
            send_batch: Spread::exact(batch),
            ..PortCost::default()
        }
    }

    /// Returns a packet's share of a turn under the reference.
    fn turn(&self, reference: Reference) -> Option<Spread> {
        match reference {
            Reference::Untouched => self.untouched,
            Reference::Touched => self.touched,
        }
    }

    /// Returns the cost of receiving, for a worker whose rules are close to `reference`; `engine`
    /// has the cost of the reference's own work.
    pub fn receiving(&self, reference: Reference, engine: &EngineCost) -> Spread {
        let Some(turn) = self.turn(reference) else {
            return self.receive;
        };
        let own = engine.without_ports(&engine.reference);
        let send = self.send(engine.reference.sent, engine.reference.batch);
        turn.minus(own)
            .minus(Spread::exact(send.median))
            .at_least(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Turns;

    #[test]
    fn sending_is_split_into_batches_and_packets() {
        // 40 cycles per batch and 10 per packet.
        let cost = PortCost::of_rounds(vec![20.0; 5], (32, vec![11.25; 5]), (4, vec![20.0; 5]));
        assert_eq!(cost.receive, Spread::exact(20.0));
        assert!((cost.send_batch.median - 40.0).abs() < 1e-9);
        assert!((cost.send_packet.median - 10.0).abs() < 1e-9);
        let send = cost.send(2.0, 16.0).median;
        assert!((send - 25.0).abs() < 1e-9, "{send}");
    }

    #[test]
    fn a_helper_may_say_more_than_a_pipe_holds() {
        let script = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero";
        let mut command = Command::new("sh");
        let output = run_within(command.args(["-c", script]), Duration::from_secs(30)).unwrap();
        assert!(output.status.success());
        assert_eq!(
            (output.stdout.len(), output.stderr.len()),
            (300_000, 300_000)
        );
        let mut command = Command::new("sleep");
        let error = run_within(command.arg("60"), Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    }

    #[test]
    fn kinds_of_ports_have_names_that_come_back() {
        let all = devices_to_text(&Device::ALL);
        assert_eq!(all, "dpdk,veth,tap,afxdp,vhost");
        assert_eq!(devices_of_text(&all), Some(Device::ALL.to_vec()));
        for wrong in ["", "dpdk,", "x", "veth vhost"] {
            assert_eq!(devices_of_text(wrong), None, "{wrong}");
        }
        // As the helper prints them.
        let costs: Costs = Device::ALL
            .map(|device| (device, PortCost::default()))
            .into();
        let text = serde_json::to_string(&costs).unwrap();
        assert!(text.starts_with("{\"dpdk\":{"), "{text}");
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
    }

    #[test]
    fn a_plan_comes_back() {
        let plan = Plan {
            inward: vec![(1, 4096), (7, 1)],
            outward: vec![2, 0xffff_fffe],
        };
        assert_eq!(plan.to_text(), "1:4096,7:1/2,4294967294");
        assert_eq!(Plan::of_text(&plan.to_text()), Some(plan));
        let silent = Plan {
            inward: vec![(1, 1)],
            outward: Vec::new(),
        };
        assert_eq!(Plan::of_text("1:1/"), Some(silent));
        for wrong in ["", "1:1", "/2", "1/2", "1:1/x"] {
            assert_eq!(Plan::of_text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn receiving_is_what_the_reference_leaves() {
        let turns = |cycles: f64| Turns {
            cycles: Spread::exact(cycles),
            sent: 1.0,
            batch: 32.0,
            remembers: None,
        };
        let engine = EngineCost {
            rules: turns(90.0),
            reference: turns(50.0),
            police_in: Spread::default(),
            police_out: Spread::default(),
            // 20 to receive and 10 to send in memory: the reference's own work is 20.
            ports: PortCost::of_rounds(vec![20.0; 3], (32, vec![10.0; 3]), (4, vec![10.0; 3])),
        };
        let mut ports = PortCost::of_rounds(vec![30.0; 3], (32, vec![25.0; 3]), (4, vec![25.0; 3]));
        // Frames that are copied on receive are in the cache when they are read.
        let copied = ports.receiving(Reference::Touched, &engine);
        assert_eq!(copied, Spread::exact(30.0));
        ports.touched = Some(Spread::exact(81.0));
        let receiving = ports.receiving(Reference::Touched, &engine);
        assert!((receiving.median - 36.0).abs() < 1e-9, "{receiving:?}");
        // Under the reference itself, the sum is the reference's turn.
        let whole = receiving.median + ports.send(1.0, 32.0).median + 20.0;
        assert!((whole - 81.0).abs() < 1e-9);
    }
}
