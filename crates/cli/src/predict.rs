//! `sluice predict`: computes, without a switch, what a file of rules will cost on this machine
//! and, by its subcommands, how long packets will wait.

mod machine;
mod message;
mod path;
mod place;
mod ports;
mod queue;
mod report;
mod scratch;
mod units;

use crate::output::{out, outln};
use crate::up::daemon_path;
use ::predict::Effort;
use ::predict::kinds::{Kinds, shares};
use ::predict::ports::{Costs, Device, Edge, Helper, Memory, PortCost, Shares, add_notes};
use ::predict::rules::Rules;
use ::predict::trace::Trace;
use ::predict::traffic::Traffic;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use ports::{Policed, Ports};
use rustix::thread::{CpuSet, sched_getaffinity};
use scratch::Scratch;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum size of a file of rules in bytes.
const RULES_MAX: u64 = 1 << 30;
/// Maximum size of a capture in bytes: more than 200,000 packets of the longest size, the most that
/// are used.
const CAPTURE_MAX: u64 = 1 << 29;

/// Which rules, ports and packets.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct PredictOptions {
    /// Predicts how long packets will wait, or measures the machine.
    #[command(subcommand)]
    pub waits: Option<Waits>,
    /// File of rules as `ovs-ofctl add-flows` reads them, one per line; - for standard input
    #[arg(long, value_name = "FILE", required = true)]
    pub flows: Option<PathBuf>,
    /// File of the groups that the rules use, as `ovs-ofctl add-groups` reads them
    #[arg(long, value_name = "FILE")]
    pub groups: Option<PathBuf>,
    /// File of the meters that the rules use, as `ovs-ofctl add-meter` takes them, one per line
    #[arg(long, value_name = "FILE")]
    pub meters: Option<PathBuf>,
    /// Ports, separated by commas: NAME=NUMBER, NUMBER:TYPE or NAME=NUMBER:TYPE. TYPE is dpdk (if
    /// none is given), veth, tap or afxdp (these need root), vhost (a guest) or memory (costs
    /// nothing). Ports that are not listed are of type dpdk
    #[arg(long, value_name = "PORTS", default_value = "")]
    pub ports: String,
    /// Ports that police received packets (ingress_policing_rate): names or numbers, separated by
    /// commas, or all. Costs are given for packets that pass [default: none]
    #[arg(long, value_name = "PORTS")]
    pub policed: Option<String>,
    /// Ports that police sent packets (QoS of type egress-policer), given likewise [default: none]
    #[arg(long, value_name = "PORTS")]
    pub policed_out: Option<String>,
    /// Packets: a pcap file, or a description such as udp,tp_dst=80,flows=10000,size=64,zipf
    /// [default: packets made from the rules]
    #[arg(long, value_name = "FILE|DESCRIPTION")]
    pub traffic: Option<String>,
    /// Port that packets enter by if --traffic does not say: a name or a number
    #[arg(long, value_name = "PORT", default_value = "1")]
    pub in_port: String,
    /// Number of the processor to measure on [default: the last one that this command may use]
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Number of windows of each measurement, 3 to 1000; the median is reported
    #[arg(long, default_value_t = 25)]
    pub rounds: usize,
    /// Print figures even if the machine's speed changed while they were measured
    #[arg(long)]
    pub anyway: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Path of the daemon, which measures ports [default: sluiced in the directory of this command,
    /// else in PATH]
    #[arg(long)]
    pub sluiced: Option<PathBuf>,
}

/// Predictions about queues, and what all predictions depend on.
#[derive(Subcommand)]
pub enum Waits {
    /// Predict the mean wait in a queue, given by options or read from a running switch.
    Queue(Box<queue::QueueOptions>),
    /// Predict the mean delay over several queues and links in a row.
    Path(path::PathOptions),
    /// Find out how to split messages into packets if a queue sends packets in groups.
    Message(message::MessageOptions),
    /// Find out whether tasks fit on ports, and with which queues.
    Place(place::PlaceOptions),
    /// Measure how fast this machine is now, as predictions for rules report it too.
    Machine(machine::MachineOptions),
}

/// Predicts and prints the result.
pub fn run(options: &PredictOptions) -> Result<()> {
    match &options.waits {
        Some(Waits::Queue(options)) => queue::run(options),
        Some(Waits::Path(options)) => path::run(options),
        Some(Waits::Message(options)) => message::run(options),
        Some(Waits::Place(options)) => place::run(options),
        Some(Waits::Machine(options)) => machine::run(options),
        None => rules(options),
    }
}

/// Predicts what rules will cost.
fn rules(options: &PredictOptions) -> Result<()> {
    let flows = options.flows.as_deref().context("--flows is missing")?;
    ensure!(
        (3..=1000).contains(&options.rounds),
        "--rounds {}: must be a number from 3 to 1000",
        options.rounds
    );
    let ports = Ports::parse(&options.ports)?;
    let names = |name: &str| ports.number(name);
    let in_port = openflow::parse::port(&options.in_port, &names)
        .filter(|port| (1..0xffff_ff00).contains(port))
        .with_context(|| format!("--in-port {}: no such port", options.in_port))?;
    let file = flows.display().to_string();
    let groups = optional(options.groups.as_deref())?;
    let meters = optional(options.meters.as_deref())?;
    let rules = Rules::read_all(
        (&file, &text(flows, RULES_MAX)?),
        named(&groups),
        named(&meters),
        &names,
    )
    .map_err(|error| {
        let hint = match error.to_string().contains("unknown port") {
            true => " (--ports NAME=NUMBER gives a name its number)",
            false => "",
        };
        anyhow::anyhow!("{error}{hint}")
    })?;
    let traffic = traffic(options, (&file, &rules), in_port, &names)?;
    let cpu = processor(options.cpu)?;
    let effort = Effort {
        cpu: Some(cpu),
        rounds: options.rounds,
    };
    // In an order in which likely errors are found early.
    let prepared = ::predict::trace::trace(&rules, &traffic)?;
    let kinds = Kinds::of(&traffic, &prepared, &|port| ports.kind(port));
    let (policed, mut notes) = policed(options, &traffic, &prepared, &names)?;
    let whole = kinds.shares(Device::Dpdk) == Shares::ALL;
    let costs = match kinds.devices().is_empty() {
        true => Costs::new(),
        false => {
            let whole = whole.then_some((&rules, &prepared));
            measure_ports(options, &kinds.devices(), &traffic, whole, effort)?
        }
    };
    let met: Vec<(&PortCost, Shares)> = costs
        .iter()
        .map(|(device, cost)| (cost, kinds.shares(*device)))
        .collect();
    let edge = Edge {
        ports: &met,
        policed,
    };
    let prediction = ::predict::predict(&rules, &traffic, prepared, edge, effort)?;
    add_notes(&costs, &mut notes);
    let shown = report::Shown {
        file: &file,
        traffic: &traffic,
        cpu,
        notes: &notes,
        kinds: &kinds,
        anyway: options.anyway,
    };
    match options.json {
        true => outln!("{}", shown.json(&prediction)),
        false => out!("{}", shown.text(&prediction)),
    }
    Ok(())
}

/// Returns the shares of the traffic that meet policers, and notes about them.
fn policed(
    options: &PredictOptions,
    traffic: &Traffic,
    trace: &Trace,
    names: &dyn Fn(&str) -> Option<u32>,
) -> Result<(Shares, Vec<String>)> {
    let (mut policed, mut notes) = (Shares::NONE, Vec::new());
    let asked = [
        ("--policed", &options.policed, true),
        ("--policed-out", &options.policed_out, false),
    ];
    for (option, text, inward) in asked {
        let Some(text) = text else { continue };
        let these = Policed::parse(text, names).with_context(|| format!("{option} {text}"))?;
        let met = shares(traffic, trace, &|port| these.contains(port));
        let (part, share) = match inward {
            true => (&mut policed.received, met.received),
            // If everything is dropped, nothing is sent.
            false if trace.out_ports.is_empty() => (&mut policed.sent, 0.0),
            false => (&mut policed.sent, met.sent),
        };
        *part = share;
        if share == 0.0 {
            notes.push(format!("no packet meets a policer of {option} {text}"));
        }
    }
    Ok((policed, notes))
}

/// Returns a file's name and text, if a path is given.
fn optional(path: Option<&Path>) -> Result<Option<(String, String)>> {
    path.map(|path| Ok((path.display().to_string(), text(path, RULES_MAX)?)))
        .transpose()
}

fn named(file: &Option<(String, String)>) -> Option<(&str, &str)> {
    file.as_ref()
        .map(|(name, text)| (name.as_str(), text.as_str()))
}

/// Reads a file or standard input, at most `most` bytes.
fn bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(most + 1)
            .read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    ensure!(
        bytes.len() as u64 <= most,
        "{}: more than {most} bytes",
        path.display()
    );
    Ok(bytes)
}

/// Reads a file or standard input as text, at most `most` bytes.
fn text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(bytes(path, most)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        anyhow::anyhow!("{}:{line}: not UTF-8", path.display())
    })
}

fn traffic(
    options: &PredictOptions,
    (file, rules): (&str, &Rules),
    in_port: u32,
    names: &dyn Fn(&str) -> Option<u32>,
) -> Result<Traffic> {
    let Some(asked) = &options.traffic else {
        return Traffic::of_rules(rules, in_port).with_context(|| file.to_owned());
    };
    // Pipes work like files: `--traffic <(zcat in.pcap.gz)`.
    let path = Path::new(asked);
    if path.exists() && !path.is_dir() {
        let bytes = bytes(path, CAPTURE_MAX)?;
        return Ok(Traffic::capture(asked, &bytes, in_port)?);
    }
    Traffic::described(asked, names, in_port)
        .with_context(|| format!("--traffic {asked}: neither a file nor a description"))
}

/// Returns the processor to measure on: one that this process may use.
fn processor(asked: Option<usize>) -> Result<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let count = CpuSet::MAX_CPU;
    let may = |cpu: usize| cpu < count && allowed.is_set(cpu);
    match asked {
        Some(cpu) if may(cpu) => Ok(cpu),
        Some(cpu) => bail!("--cpu {cpu}: not a processor that this command may use"),
        None => (0..count)
            .rev()
            .find(|cpu| may(*cpu))
            .context("no processor to measure on"),
    }
}

/// Makes the daemon's helper measure devices with this traffic.
fn measure_ports(
    options: &PredictOptions,
    devices: &[Device],
    traffic: &Traffic,
    whole: Option<(&Rules, &Trace)>,
    effort: Effort,
) -> Result<Costs> {
    let directory = Scratch::new()?;
    let program = daemon_path(options.sluiced.as_ref());
    let helper = Helper {
        program: &program,
        memory: Memory::Huge,
        capture: &directory.path().join("traffic.pcap"),
    };
    Ok(helper.measure(devices, traffic, whole, effort)?)
}
