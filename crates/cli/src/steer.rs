//! `sluice steer`: sends packets of a kernel interface to suitable cores.
//!
//! `run` stays and steers; the other commands talk to it through its socket.

mod show;

use crate::output::{errln, outln};
use crate::up::DIRECTORY;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use softirq::control::{self, End, Owner, Request, Signals};
use softirq::parse::Layout;
use softirq::program::Mode;
use softirq::session::{EntryRequest, FlowsStatus, Options, Session, Status};
use softirq::vms::VmLocation;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to do.
#[derive(Args)]
pub struct SteerOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Steer packets of an interface until stopped. When this process ends, for whatever reason,
    /// the kernel removes its programs from the interface.
    Run(Box<RunOptions>),
    /// Show mode, core table, virtual machines, constants of the policy, and counters.
    Show(AskOptions),
    /// Show entries of the steering table, and the cores chosen for them.
    Flows(FlowsOptions),
    /// Change entries, virtual machines and constants.
    Set(SetOptions),
    /// Show one line for each core, repeatedly.
    Watch(WatchOptions),
    /// Stop `run`.
    Stop(AskOptions),
}

/// How a program is attached.
#[derive(Clone, Copy, ValueEnum)]
enum ModeOption {
    /// In the driver (fast; not all drivers support it)
    Driver,
    /// In the kernel's receive path (works with any interface)
    Generic,
}

/// Where the flow control field is.
#[derive(Clone, Copy, ValueEnum)]
enum LayoutOption {
    /// DSCP: bit 5 priority, bits 4-0 VM id; ECN untouched
    Dscp6,
    /// ToS: bit 7 priority, bits 6-0 VM id
    Tos8,
    /// 802.1Q tag: top PCP bit priority, VLAN id the VM id
    Vlan,
}

#[derive(Args)]
struct RunOptions {
    /// Name of the interface
    device: String,
    /// Where the XDP program is attached [default: driver if supported; generic on veth]
    #[arg(long)]
    mode: Option<ModeOption>,
    /// Cores that may process packets, such as 0-3,6 [default: all]
    #[arg(long)]
    cores: Option<String>,
    /// Where frames have the flow control field [default: they have none]
    #[arg(long)]
    layout: Option<LayoutOption>,
    /// Trust the flow control field in received packets: the interface is connected to the
    /// underlay, not to a guest
    #[arg(long)]
    fcf_trusted: bool,
    /// Remove the field before the kernel's network stack sees the packet [default: true with tos8
    /// and vlan, else false]
    #[arg(long)]
    fcf_strip: Option<bool>,
    /// UDP port of VXLAN packets
    #[arg(long, default_value_t = 4789)]
    vxlan_port: u16,
    /// Most entries in the steering table
    #[arg(long, default_value_t = 4096)]
    entries: u32,
    /// Most flows that have their own choice of core
    #[arg(long, default_value_t = 16_384)]
    flows: u32,
    /// Set a constant of the policy: loads in percent, times in ms, such as high=80 or hold=200;
    /// may be repeated (`sluice steer show` lists all)
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = constant)]
    constants: Vec<(String, f64)>,
    /// Read loads of cores from /proc/stat, which may leave out time in interrupts
    #[arg(long)]
    proc_stat: bool,
    /// Directory of the control socket
    #[arg(long, default_value = DIRECTORY)]
    rundir: PathBuf,
}

#[derive(Args)]
struct AskOptions {
    /// Name of the interface [default: the only one that is steered]
    device: Option<String>,
    /// Directory of the control socket
    #[arg(long, default_value = DIRECTORY)]
    rundir: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct FlowsOptions {
    #[command(flatten)]
    ask: AskOptions,
    /// Most choices to list
    #[arg(long, default_value_t = 1000)]
    limit: usize,
}

#[derive(Args)]
struct WatchOptions {
    #[command(flatten)]
    ask: AskOptions,
    /// Seconds between updates, 0.1 to 3600
    #[arg(long, short, default_value_t = 1.0)]
    interval: f64,
    /// Print this many updates, then exit [default: no limit]
    #[arg(long, short = 'n')]
    count: Option<u32>,
}

#[derive(Args)]
struct SetOptions {
    #[command(subcommand)]
    what: Set,
    /// Name of the interface [default: the only one that is steered]
    #[arg(long, short, global = true)]
    device: Option<String>,
    /// Directory of the control socket
    #[arg(long, default_value = DIRECTORY, global = true)]
    rundir: PathBuf,
}

#[derive(Subcommand)]
enum Set {
    /// Add an entry, or replace the entry with the same match and precedence.
    Add(EntryOptions),
    /// Change the core, virtual machine, priority bit and cookie of an entry.
    Modify(EntryOptions),
    /// Delete all entries whose match is within a match, or one entry.
    Delete {
        /// The match; "" means all entries
        #[arg(default_value = "")]
        matching: String,
        /// Delete only the entry with exactly this match and precedence
        #[arg(long)]
        precedence: Option<u16>,
    },
    /// Set where a virtual machine runs.
    Vm {
        /// Number of the virtual machine
        id: u16,
        /// Core that it runs on
        #[arg(long, conflicts_with_all = ["pid", "stopped"])]
        core: Option<u32>,
        /// Its process (such as QEMU); the cores of the process's threads are read repeatedly
        #[arg(long, conflicts_with = "stopped")]
        pid: Option<u32>,
        /// It no longer runs
        #[arg(long)]
        stopped: bool,
    },
    /// Set or clear the priority bit of a virtual machine's entries.
    Priority {
        /// Number of the virtual machine
        vm: u16,
        /// on or off
        #[arg(value_parser = on_off, action = clap::ArgAction::Set)]
        value: bool,
    },
    /// Set a constant of the policy: loads in percent, times in ms.
    Constant {
        /// NAME=VALUE, such as high=80 (`sluice steer show` lists all)
        #[arg(value_parser = constant)]
        value: (String, f64),
    },
    /// Move an entry or a flow to a core, whatever the policy says. Takes effect when the old core
    /// has finished the flow's packets.
    Move {
        /// Number of the entry
        entry: u64,
        /// Hash of the flow, as `flows` shows it; needed if each flow of the entry has its own core
        #[arg(long)]
        flow: Option<String>,
        /// Core to move to
        #[arg(long)]
        core: u32,
    },
}

#[derive(Args)]
struct EntryOptions {
    /// Match, written as for ovs-ofctl: udp,tp_dst=4789,vni=5,inner_nw_dst=10.0.0.1
    matching: String,
    /// Core that processes the packets [default: chosen by the policy]
    #[arg(long, conflicts_with = "choose")]
    core: Option<u32>,
    /// What the policy chooses a core for [default: entry if the match has the flow control field,
    /// else flow]
    #[arg(long)]
    choose: Option<ScopeOption>,
    /// Precedence, 0 to 65535: of several entries that match, the highest is used
    #[arg(long, default_value_t = 32_768)]
    precedence: u16,
    /// Number of the virtual machine that receives the packets
    #[arg(long)]
    vm: Option<u16>,
    /// Set the entry's priority bit
    #[arg(long)]
    priority: bool,
    /// Any number, shown with the entry
    #[arg(long, default_value_t = 0)]
    cookie: u64,
    /// Delete the entry after this many seconds without a packet [default: never]
    #[arg(long)]
    idle_timeout: Option<u64>,
    /// Delete the entry after this many seconds [default: never]
    #[arg(long)]
    hard_timeout: Option<u64>,
}

/// What shares a choice.
#[derive(Clone, Copy, ValueEnum)]
enum ScopeOption {
    /// All packets that match
    Entry,
    /// Each flow by itself
    Flow,
}

fn constant(text: &str) -> Result<(String, f64), String> {
    let wanted = || {
        let names = control::CONSTANTS.join(", ");
        format!("must be NAME=VALUE; names are {names}")
    };
    let (name, value) = text.split_once('=').ok_or_else(wanted)?;
    let value = value.parse().map_err(|_| wanted())?;
    Ok((name.to_owned(), value))
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("must be on or off".to_owned()),
    }
}

/// Carries out a command.
///
/// # Errors
///
/// Describes what could not be done.
pub fn run(options: &SteerOptions) -> Result<()> {
    match &options.command {
        Command::Run(options) => stay(options),
        Command::Show(options) => {
            let answer = ask(&options.rundir, options.device.as_deref(), &Request::Show)?;
            match options.json {
                true => outln!("{answer}"),
                false => show::status(&understood::<Status>(answer)?),
            }
            Ok(())
        }
        Command::Flows(options) => {
            let request = Request::Flows {
                limit: options.limit,
            };
            let options = &options.ask;
            let answer = ask(&options.rundir, options.device.as_deref(), &request)?;
            match options.json {
                true => outln!("{answer}"),
                false => show::flows(&understood::<FlowsStatus>(answer)?),
            }
            Ok(())
        }
        Command::Set(options) => set(options),
        Command::Watch(options) => watch(options),
        Command::Stop(options) => {
            ask(&options.rundir, options.device.as_deref(), &Request::Stop)?;
            Ok(())
        }
    }
}

fn understood<T: serde::de::DeserializeOwned>(answer: serde_json::Value) -> Result<T> {
    serde_json::from_value(answer).context("the answer is not understood: another version runs")
}

/// Sends a request to the resident of an interface, or to the only one.
fn ask(rundir: &Path, device: Option<&str>, request: &Request) -> Result<serde_json::Value> {
    let device = match device {
        Some(device) => device.to_owned(),
        None => {
            let mut devices = control::devices(rundir);
            match devices.len() {
                1 => devices.remove(0),
                0 => bail!(
                    "{}: nothing is steered there (sluice steer run)",
                    rundir.display()
                ),
                _ => bail!(
                    "several interfaces are steered; name one of {}",
                    devices.join(", ")
                ),
            }
        }
    };
    Ok(control::ask(
        &control::socket_path(rundir, &device),
        request,
    )?)
}

fn stay(options: &RunOptions) -> Result<()> {
    let cores = match &options.cores {
        None => None,
        Some(text) => {
            let cores: Option<BTreeSet<u32>> = softirq::cpus::parse(text);
            let cores = cores.filter(|cores| !cores.is_empty());
            let wanted = || format!("--cores {text}: must be numbers and ranges, as 0-3,6");
            Some(cores.with_context(wanted)?)
        }
    };
    let layout = match options.layout {
        None => Layout::None,
        Some(LayoutOption::Dscp6) => Layout::Dscp6,
        Some(LayoutOption::Tos8) => Layout::Tos8,
        Some(LayoutOption::Vlan) => Layout::Vlan,
    };
    let mut settings = steer::settings::Settings::default();
    control::set_constants(&mut settings, &options.constants)?;
    let session = Options {
        device: options.device.clone(),
        mode: options.mode.map(|mode| match mode {
            ModeOption::Driver => Mode::Driver,
            ModeOption::Generic => Mode::Generic,
        }),
        cores,
        layout,
        trusted: options.fcf_trusted,
        strip: options
            .fcf_strip
            .unwrap_or(matches!(layout, Layout::Tos8 | Layout::Vlan)),
        vxlan_port: options.vxlan_port,
        entries: options.entries,
        flows: options.flows,
        settings,
        proc_stat: options.proc_stat,
    };
    ensure!(
        !options.device.contains('/'),
        "{}: this is no interface's name",
        options.device
    );
    let signals = Signals::take().context("signals")?;
    let mut server = control::listen(&options.rundir, &options.device)?;
    let mut session = Session::start(&session)?;
    for warning in session.warnings() {
        errln!("sluice: {warning}");
    }
    let mode = session.mode();
    errln!(
        "{}: steered in {} mode: {}.",
        options.device,
        mode.mode.name(),
        mode.reason
    );
    let owner = Owner {
        calls: signals.as_fd(),
        keeps: None,
    };
    match control::serve(&mut session, &mut server, &owner)? {
        End::Asked => Ok(()),
        End::Detached => bail!(
            "{}: the interface has gone, or somebody has taken the program off",
            options.device
        ),
    }
}

fn set(options: &SetOptions) -> Result<()> {
    let entry = |entry: &EntryOptions| EntryRequest {
        matching: entry.matching.clone(),
        precedence: entry.precedence,
        core: entry.core,
        per_flow: entry.choose.map(|scope| matches!(scope, ScopeOption::Flow)),
        vm: entry.vm,
        priority: entry.priority,
        cookie: entry.cookie,
        idle_timeout_ms: entry.idle_timeout.map(|s| s.saturating_mul(1000)),
        hard_timeout_ms: entry.hard_timeout.map(|s| s.saturating_mul(1000)),
    };
    let request = match &options.what {
        Set::Add(options) => Request::Add(entry(options)),
        Set::Modify(options) => Request::Modify(entry(options)),
        Set::Delete {
            matching,
            precedence,
        } => Request::Delete {
            matching: matching.clone(),
            precedence: *precedence,
        },
        Set::Vm {
            id,
            core,
            pid,
            stopped,
        } => {
            let place = core.map(VmLocation::Core).or(pid.map(VmLocation::Process));
            ensure!(
                place.is_some() || *stopped,
                "virtual machine {id}: give one of --core, --pid and --stopped"
            );
            Request::Vm { id: *id, place }
        }
        Set::Priority { vm, value } => Request::Priority {
            vm: *vm,
            on: *value,
        },
        Set::Constant { value } => Request::Constant {
            name: value.0.clone(),
            value: value.1,
        },
        Set::Move { entry, flow, core } => Request::Move {
            entry: *entry,
            flow: flow.clone(),
            core: *core,
        },
    };
    let answer = ask(&options.rundir, options.device.as_deref(), &request)?;
    if let Some(number) = answer.as_u64() {
        match request {
            Request::Delete { .. } => outln!("{number} entries deleted"),
            Request::Priority { .. } => outln!("{number} entries changed"),
            _ => outln!("entry {number}"),
        }
    }
    Ok(())
}

fn watch(options: &WatchOptions) -> Result<()> {
    ensure!(
        (0.1..=3600.0).contains(&options.interval),
        "--interval {}: must be seconds between 0.1 and 3600",
        options.interval
    );
    let mut left = options.count;
    let mut before: Option<Status> = None;
    while left != Some(0) {
        let rundir = &options.ask.rundir;
        let answer = ask(rundir, options.ask.device.as_deref(), &Request::Show)?;
        if options.ask.json {
            outln!("{answer}");
        } else {
            let status = understood::<Status>(answer)?;
            show::line(before.as_ref(), &status, options.interval);
            before = Some(status);
        }
        left = left.map(|left| left - 1);
        if left != Some(0) {
            std::thread::sleep(Duration::from_secs_f64(options.interval));
        }
    }
    Ok(())
}
