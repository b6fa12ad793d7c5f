//! `sluice steer`: sends packets of a kernel interface to suitable cores.
//!
//! `run` stays and steers; the other commands talk to it through its socket.

mod show;

use crate::output::{errln, outln};
use crate::up::DIRECTORY;
use anyhow::{Context, Result, anyhow, bail, ensure};
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
    /// Steer packets of an interface, and stay until stopped. The programs in the kernel go with
    /// this process, however it ends.
    Run(Box<RunOptions>),
    /// Show the core table, the mode, virtual machines, constants and counters.
    Show(AskOptions),
    /// Show entries and the cores that were chosen.
    Flows(FlowsOptions),
    /// Change entries, virtual machines and constants.
    Set(SetOptions),
    /// Show a line for each core, again and again.
    Watch(WatchOptions),
    /// End `run`.
    Stop(AskOptions),
}

/// How a program is attached.
#[derive(Clone, Copy, ValueEnum)]
enum ModeOption {
    /// In the driver
    Driver,
    /// In the kernel's receive path; any interface has it
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
    /// The interface
    device: String,
    /// How the program is attached [default: driver where that works, generic on veth]
    #[arg(long)]
    mode: Option<ModeOption>,
    /// Cores that packets are sent to, as 0-3,6 [default: all]
    #[arg(long)]
    cores: Option<String>,
    /// Where the flow control field is [default: nowhere]
    #[arg(long)]
    layout: Option<LayoutOption>,
    /// Believe the flow control field: the interface is on the underlay, not a guest's
    #[arg(long)]
    fcf_trusted: bool,
    /// Take the field off before the stack sees the packet [default: yes with tos8 and vlan]
    #[arg(long)]
    fcf_strip: Option<bool>,
    /// UDP port of VXLAN
    #[arg(long, default_value_t = 4789)]
    vxlan_port: u16,
    /// Entries at most
    #[arg(long, default_value_t = 4096)]
    entries: u32,
    /// Flows with cores of their own at most
    #[arg(long, default_value_t = 16_384)]
    flows: u32,
    /// A constant of the policy, NAME=VALUE: loads in percent, times in ms (high=80, hold=200)
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = constant)]
    constants: Vec<(String, f64)>,
    /// Take loads from /proc/stat, which may not see interrupts
    #[arg(long)]
    proc_stat: bool,
    /// Directory of the socket
    #[arg(long, default_value = DIRECTORY)]
    rundir: PathBuf,
}

#[derive(Args)]
struct AskOptions {
    /// The interface [default: the only one that is steered]
    device: Option<String>,
    /// Directory of the socket
    #[arg(long, default_value = DIRECTORY)]
    rundir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct FlowsOptions {
    #[command(flatten)]
    ask: AskOptions,
    /// Choices to list at most
    #[arg(long, default_value_t = 1000)]
    limit: usize,
}

#[derive(Args)]
struct WatchOptions {
    #[command(flatten)]
    ask: AskOptions,
    /// Seconds between lines, 0.1 to 3600
    #[arg(long, short, default_value_t = 1.0)]
    interval: f64,
    /// Print so many times and end
    #[arg(long, short = 'n')]
    count: Option<u32>,
}

#[derive(Args)]
struct SetOptions {
    #[command(subcommand)]
    what: Set,
    /// The interface [default: the only one that is steered]
    #[arg(long, short, global = true)]
    device: Option<String>,
    /// Directory of the socket
    #[arg(long, default_value = DIRECTORY, global = true)]
    rundir: PathBuf,
}

#[derive(Subcommand)]
enum Set {
    /// Add an entry, or replace the one of the same match and precedence.
    Add(EntryOptions),
    /// Change core, virtual machine, priority bit and cookie of an entry.
    Modify(EntryOptions),
    /// Delete an entry, or all entries within a match.
    Delete {
        /// The match; everything is within ""
        #[arg(default_value = "")]
        matching: String,
        /// Only the entry of this very match and precedence
        #[arg(long)]
        precedence: Option<u16>,
    },
    /// Say where a virtual machine runs.
    Vm {
        /// Its number
        id: u16,
        /// It runs on this core
        #[arg(long, conflicts_with_all = ["pid", "stopped"])]
        core: Option<u32>,
        /// It is this process; its threads say where it runs
        #[arg(long, conflicts_with = "stopped")]
        pid: Option<u32>,
        /// It runs nowhere any more
        #[arg(long)]
        stopped: bool,
    },
    /// Switch the priority bit of a virtual machine's entries.
    Priority {
        /// The virtual machine
        vm: u16,
        /// on or off
        #[arg(value_parser = on_off, action = clap::ArgAction::Set)]
        value: bool,
    },
    /// Change a constant of the policy: loads in percent, times in ms.
    Constant {
        /// NAME=VALUE
        #[arg(value_parser = constant)]
        value: (String, f64),
    },
    /// Move a choice to a core, whatever the policy says, once its flow has drained.
    Move {
        /// The entry's number
        entry: u64,
        /// The flow's hash, as `flows` shows it
        #[arg(long)]
        flow: Option<String>,
        /// The core
        #[arg(long)]
        core: u32,
    },
}

#[derive(Args)]
struct EntryOptions {
    /// Fields with commas between, as for ovs-ofctl: udp,tp_dst=4789,vni=5,inner_nw_dst=10.0.0.1
    matching: String,
    /// Send packets to this core
    #[arg(long, conflicts_with = "choose")]
    core: Option<u32>,
    /// Choose a core for all that matches, or for each flow [default: entry where the flow control
    /// field is matched, else flow]
    #[arg(long)]
    choose: Option<ScopeOption>,
    /// The entry of the highest precedence is used
    #[arg(long, default_value_t = 32_768)]
    precedence: u16,
    /// The virtual machine that the packets are for
    #[arg(long)]
    vm: Option<u16>,
    /// Set the priority bit
    #[arg(long)]
    priority: bool,
    /// A number of yours
    #[arg(long, default_value_t = 0)]
    cookie: u64,
    /// Seconds without a packet after which it goes
    #[arg(long)]
    idle_timeout: Option<u64>,
    /// Seconds after which it goes
    #[arg(long)]
    hard_timeout: Option<u64>,
}

/// What shares a choice.
#[derive(Clone, Copy, ValueEnum)]
enum ScopeOption {
    /// All that matches
    Entry,
    /// Each flow
    Flow,
}

fn constant(text: &str) -> Result<(String, f64), String> {
    let wanted = || {
        let names = control::CONSTANTS.join(", ");
        format!("NAME=VALUE is meant; names are {names}")
    };
    let (name, value) = text.split_once('=').ok_or_else(wanted)?;
    let value = value.parse().map_err(|_| wanted())?;
    Ok((name.to_owned(), value))
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off is meant".to_owned()),
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
    control::ask(&control::socket_path(rundir, &device), request).map_err(|error| anyhow!(error))
}

fn stay(options: &RunOptions) -> Result<()> {
    let cores = match &options.cores {
        None => None,
        Some(text) => {
            let cores: Option<BTreeSet<u32>> = softirq::cpus::parse(text);
            let cores = cores.filter(|cores| !cores.is_empty());
            let wanted = || format!("--cores {text}: numbers and ranges are meant, as 0-3,6");
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
    control::set_constants(&mut settings, &options.constants).map_err(|error| anyhow!(error))?;
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
    let listen = |device| control::listen(&options.rundir, device).map_err(|error| anyhow!(error));
    let mut server = listen(&options.device)?;
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
    match control::serve(&mut session, &mut server, &owner).map_err(|error| anyhow!(error))? {
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
                "virtual machine {id}: one of --core, --pid and --stopped is meant"
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
        "--interval {}: seconds between 0.1 and 3600 are meant",
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
