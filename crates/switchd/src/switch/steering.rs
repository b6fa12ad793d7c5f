//! The switch's part in steering, apart from that of the workers (`datapath::control::steering`):
//! capabilities and mode for controllers, virtual machines, and steering tables of kernel
//! interfaces.
//!
//! Kernel interfaces are steered by other processes, residents (`sluice steer run`), which are
//! asked through their sockets in the run directory. A request waits for them for [`ANSWER`] at
//! most, and nothing else waits meanwhile.
//!
//! Every [`LOOK`] it is checked where virtual machines run: `vm-core` says it, or the threads of
//! the process behind a vhost-user socket. Residents are told of changes.

use super::bridge::{Bridge, Port};
use super::{NotRunning, Switch};
use crate::openflow::LocalFuture;
use datapath::SteeringMode;
use openflow::Error;
use openflow::port::PortReason;
use openflow::steering::{
    Abilities, Command, Device, HostCapabilities, IrqCore, Layout, Mode, ModeReply, ModeSource,
    NO_CORE, SteeringMod, SteeringStats, Target, VmReason, VmStatus, XdpMode,
};
use ports::PortControl;
use softirq::control::{Answer, RefusalKind, Request, devices, socket_path};
use softirq::key::parse_match;
use softirq::session::{EntryRequest, FlowsStatus, Status};
use softirq::vms::{Vm, VmLocation};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Longest wait for a resident's reply.
const ANSWER: Duration = Duration::from_secs(2);
/// Most bytes of a reply; a reply about 4,096 entries is shorter.
const ANSWER_MAX: u64 = 8 << 20;
/// Interval at which virtual machines and residents are checked.
const LOOK: Duration = Duration::from_millis(500);
/// Shortest time between two rounds of messages to residents.
const ROUND: Duration = Duration::from_millis(20);
/// Pause before something that a resident refused is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Most virtual machines whose processes are checked at a time; the others follow at the next
/// check.
const PROCESSES_MAX: usize = 64;
/// Most interfaces for controllers' capabilities and for changes of virtual machines.
const DEVICES_MAX: usize = 64;

/// State of the switch's part in steering.
#[derive(Default)]
pub struct State {
    /// The mode that a controller has chosen last.
    chosen: Cell<Option<Mode>>,
    /// Notified when virtual machines may have changed.
    changed: tokio::sync::Notify,
}

impl State {
    /// Returns the mode in force: the database's, else the controllers'.
    pub fn mode(&self, database: Option<SteeringMode>) -> SteeringMode {
        let chosen = self.chosen.get().map(mode_of);
        database.or(chosen).unwrap_or_default()
    }
}

/// What is known about the virtual machine behind a port.
#[derive(Default)]
pub struct KnownVm {
    /// Its process, as last checked.
    process: Option<Vm>,
    /// What controllers were told last; none if there is no virtual machine.
    pub told: Option<VmStatus>,
}

/// Identity of a resident's socket: a new resident has another one, and knows nothing.
type SocketId = (u64, u64, i64);

fn socket_id(rundir: &Path, device: &str) -> Option<SocketId> {
    let file = std::fs::metadata(socket_path(rundir, device)).ok()?;
    Some((file.dev(), file.ino(), file.ctime_nsec()))
}

/// What a resident has been told about virtual machines.
#[derive(Default)]
struct Resident {
    socket: Option<SocketId>,
    told: BTreeMap<u16, VmLocation>,
    /// What it has refused, and when.
    refused: BTreeMap<u16, (VmLocation, Instant)>,
}

impl Resident {
    /// Sends what it has not been told yet, for [`ANSWER`] at most; the rest follows in the next
    /// round.
    async fn tell(&mut self, rundir: &Path, device: &str, places: &BTreeMap<u16, VmLocation>) {
        let socket = socket_id(rundir, device);
        if socket != self.socket {
            *self = Resident {
                socket,
                ..Resident::default()
            };
        }
        let end = Instant::now() + ANSWER;
        self.refused.retain(|_, (_, since)| since.elapsed() < AGAIN);
        let gone = self.told.keys().filter(|vm| !places.contains_key(vm));
        let gone: Vec<_> = gone.map(|vm| (*vm, None)).collect();
        let is_new = |(vm, place): &(&u16, &VmLocation)| {
            let refused = self.refused.get(vm);
            self.told.get(vm) != Some(place) && refused.is_none_or(|(other, _)| other != *place)
        };
        let new = places.iter().filter(is_new);
        let new: Vec<_> = new.map(|(vm, place)| (*vm, Some(place.clone()))).collect();
        for (id, place) in gone.into_iter().chain(new) {
            if Instant::now() >= end || !self.tell_one(rundir, device, id, place).await {
                break;
            }
        }
    }

    /// Sends the place of one virtual machine, or that it is gone. Returns false without a reply.
    async fn tell_one(
        &mut self,
        rundir: &Path,
        device: &str,
        id: u16,
        place: Option<VmLocation>,
    ) -> bool {
        let asked = |place: Option<VmLocation>| async move {
            ask(rundir, device, &Request::Vm { id, place }).await
        };
        let Err(Refused(code, text)) = asked(place.clone()).await else {
            match place {
                Some(place) => self.told.insert(id, place),
                None => self.told.remove(&id),
            };
            return true;
        };
        if matches!(code, Error::BadOutPort | Error::Hardware) {
            // Retried at the next check.
            tracing::debug!(target: "steering", "VM {id}: {text}");
            return false;
        }
        let known = self.told.remove(&id).is_some();
        // A virtual machine that is gone is forgotten there anyway.
        if let Some(place) = place {
            tracing::warn!(target: "steering", "VM {id}: {}", printable(&text));
            self.refused.insert(id, (place, Instant::now()));
            if known {
                // It is no longer at its old place, so remove that.
                let _ = asked(None).await;
            }
        }
        true
    }
}

/// Replaces control characters in others' text, for terminals and logs.
pub(super) fn printable(text: &str) -> String {
    let plain = |char: char| if char.is_control() { '?' } else { char };
    text.chars().map(plain).collect()
}

/// Converts a layout to the datapath's type.
pub fn layout_of(layout: Layout) -> datapath::fcf::Layout {
    match layout {
        Layout::Dscp6 => datapath::fcf::Layout::Dscp6,
        Layout::Tos8 => datapath::fcf::Layout::Tos8,
        Layout::Vlan => datapath::fcf::Layout::Vlan,
    }
}

fn mode_of(mode: Mode) -> SteeringMode {
    match mode {
        Mode::Off => SteeringMode::Off,
        Mode::Rss => SteeringMode::Rss,
        Mode::Adaptive => SteeringMode::Adaptive,
        Mode::Auto => SteeringMode::Auto,
    }
}

fn mode_from(mode: SteeringMode) -> Mode {
    match mode {
        SteeringMode::Off => Mode::Off,
        SteeringMode::Rss => Mode::Rss,
        SteeringMode::Adaptive => Mode::Adaptive,
        SteeringMode::Auto => Mode::Auto,
    }
}

/// Sends a request to an interface's resident. The error has a code for the peer and a text for the
/// log.
async fn ask(rundir: &Path, device: &str, request: &Request) -> Result<serde_json::Value, Refused> {
    let path = socket_path(rundir, device);
    let talk = async {
        let mut stream = UnixStream::connect(&path).await?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = match tokio::time::timeout(ANSWER, talk).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let text = format!("{device} is not steered ({}: {error})", path.display());
            return Err(Refused(Error::BadOutPort, text));
        }
        Err(_) => {
            let seconds = ANSWER.as_secs();
            let text = format!("whoever steers {device} has not answered for {seconds} s");
            return Err(Refused(Error::Hardware, text));
        }
    };
    // Decoding a large reply would block other tasks for too long.
    let read = tokio::task::spawn_blocking(move || {
        let answer = String::from_utf8_lossy(&answer);
        Answer::read(answer.trim_end())
    });
    read.await
        .unwrap_or(Err(None))
        .map_err(|refused| match refused {
            None => {
                let text = format!("whoever steers {device} gives no answer that is understood");
                Refused(Error::Hardware, text)
            }
            Some((kind, text)) => {
                let code = match kind {
                    RefusalKind::Full => Error::TableFull,
                    RefusalKind::Core => Error::BadActionArgument,
                    RefusalKind::Entry => Error::FlowModPermission,
                    RefusalKind::Other => Error::BadActionArgument,
                };
                Refused(code, format!("{device}: {text}"))
            }
        })
}

/// Why a request failed: a code for the peer, and a text for people.
struct Refused(Error, String);

impl Refused {
    /// Logs the text and returns the code.
    fn told(self) -> Error {
        tracing::warn!(target: "steering", "{}", printable(&self.1));
        self.0
    }
}

/// Returns the error for a table of the workers: they have none, since the mode decides what they
/// do.
fn no_table() -> Refused {
    let text = "the workers have no steering table; name an interface of sluice steer run";
    Refused(Error::FlowModPermission, text.to_owned())
}

/// Converts a change to a request to the resident.
fn request_of(change: &SteeringMod) -> Result<Request, Refused> {
    parse_match(&change.matching)
        .map_err(|error| Refused(Error::BadMatchValue, error.to_string()))?;
    let seconds = |timeout: u16| (timeout > 0).then_some(u64::from(timeout) * 1000);
    let (core, per_flow) = match change.core {
        IrqCore::Choose => (None, None),
        IrqCore::PerEntry => (None, Some(false)),
        IrqCore::PerFlow => (None, Some(true)),
        IrqCore::Core(core) => (Some(core), None),
    };
    let entry = EntryRequest {
        matching: change.matching.clone(),
        precedence: change.precedence,
        core,
        per_flow,
        vm: change.vm,
        priority: change.priority,
        cookie: change.cookie,
        idle_timeout_ms: seconds(change.idle_timeout),
        hard_timeout_ms: seconds(change.hard_timeout),
    };
    Ok(match change.command {
        Command::Add => Request::Add(entry),
        Command::Modify => Request::Modify(entry),
        Command::Delete => Request::Delete {
            matching: entry.matching,
            precedence: None,
        },
        Command::DeleteStrict => Request::Delete {
            matching: entry.matching,
            precedence: Some(entry.precedence),
        },
    })
}

/// Converts entries to the form for controllers.
fn stats_of(flows: FlowsStatus) -> Vec<SteeringStats> {
    let own: BTreeMap<u64, u32> = (flows.choices.iter())
        .filter(|choice| choice.flow.is_none())
        .map(|choice| (choice.entry, choice.core))
        .collect();
    let entries = flows.entries.into_iter();
    let stats = entries.map(|entry| SteeringStats {
        cookie: entry.cookie,
        packets: entry.packets,
        bytes: entry.bytes,
        precedence: entry.precedence,
        core: match entry.target.as_str() {
            "choose per entry" => IrqCore::PerEntry,
            "choose per flow" => IrqCore::PerFlow,
            target => target
                .strip_prefix("core ")
                .and_then(|core| core.parse().ok())
                .map_or(IrqCore::Choose, IrqCore::Core),
        },
        chosen: own.get(&entry.entry).copied().unwrap_or(NO_CORE),
        // Numbers that the protocol cannot express were set by hand.
        vm: entry
            .vm
            .filter(|vm| (1..=openflow::steering::VM_ID_MAX).contains(vm)),
        priority: entry.priority,
        matching: entry.matching,
    });
    stats.collect()
}

/// Sends a request and decodes the reply as `T`.
async fn ask_for<T: serde::de::DeserializeOwned + Send + 'static>(
    rundir: &Path,
    device: &str,
    request: &Request,
) -> Result<T, Refused> {
    let answer = ask(rundir, device, request).await?;
    let read = tokio::task::spawn_blocking(move || serde_json::from_value(answer));
    let error = match read.await {
        Ok(Ok(known)) => return Ok(known),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let text = format!("{device}: another version of sluice steers it: {error}");
    Err(Refused(Error::Hardware, text))
}

/// Returns the state of an interface as its resident reports it; unknown without a timely reply.
async fn describe_device(rundir: &Path, name: String) -> Device {
    match ask_for::<Status>(rundir, &name, &Request::Show).await {
        Ok(status) => Device {
            mode: match status.mode.mode {
                softirq::program::Mode::Driver => XdpMode::Driver,
                softirq::program::Mode::Generic => XdpMode::Generic,
            },
            layout: match status.layout {
                softirq::parse::Layout::None => None,
                softirq::parse::Layout::Dscp6 => Some(Layout::Dscp6),
                softirq::parse::Layout::Tos8 => Some(Layout::Tos8),
                softirq::parse::Layout::Vlan => Some(Layout::Vlan),
            },
            trusted: status.trusted,
            name,
        },
        Err(Refused(_, text)) => {
            tracing::debug!(target: "steering", "{text}");
            Device {
                name,
                mode: XdpMode::Unknown,
                layout: None,
                trusted: false,
            }
        }
    }
}

/// Returns the interfaces whose residents answer. Those that are known are not asked again.
async fn answering(
    rundir: &Path,
    known: &BTreeMap<String, SocketId>,
) -> BTreeMap<String, SocketId> {
    let mut now = BTreeMap::new();
    let mut asked = JoinSet::new();
    for device in devices(rundir).into_iter().take(DEVICES_MAX) {
        let Some(socket) = socket_id(rundir, &device) else {
            continue;
        };
        if known.get(&device) == Some(&socket) {
            now.insert(device, socket);
            continue;
        }
        let rundir = rundir.to_owned();
        asked.spawn(async move { (describe_device(&rundir, device).await, socket) });
    }
    for (device, socket) in asked.join_all().await {
        if device.mode != XdpMode::Unknown {
            now.insert(device.name, socket);
        }
    }
    now
}

/// Returns whether the kernel can run the programs of `sluice steer run`, which need its type
/// information (BTF).
fn has_xdp() -> bool {
    Path::new("/sys/kernel/btf/vmlinux").exists()
}

impl Switch {
    fn rundir(&self) -> PathBuf {
        self.shell.options.directories.run.clone()
    }

    fn database_mode(&self) -> Option<SteeringMode> {
        let applied = self.applied.borrow();
        applied.global.as_ref().and_then(|global| global.steering)
    }

    /// Sets the mode that a controller chooses, if it is given; returns the mode in force.
    pub fn choose_steering(&self, wanted: Option<Mode>) -> ModeReply {
        let database = self.database_mode();
        if let Some(wanted) = wanted {
            self.steering.chosen.set(Some(wanted));
            let mode = self.steering.mode(database);
            tracing::info!(target: "steering", "a controller chooses {}; {} is in force",
                mode_of(wanted).name(), mode.name());
            // Without a datapath the mode is set when that starts.
            let _: Result<(), NotRunning> =
                self.with_datapath(|datapath| datapath.set_steering(mode));
        }
        let chosen = self.steering.chosen.get();
        ModeReply {
            mode: mode_from(self.steering.mode(database)),
            source: match (database, chosen) {
                (Some(_), _) => ModeSource::Database,
                (None, Some(_)) => ModeSource::Controller,
                (None, None) => ModeSource::Default,
            },
            chosen,
        }
    }

    /// Watches virtual machines until the daemon ends: where they run, and who must be told.
    pub async fn follow_vms(self: Rc<Self>) -> anyhow::Result<()> {
        // A resident that does not reply must not delay controllers.
        tokio::join!(
            self.look_at_vms(),
            self.follow_residents(),
            self.follow_devices()
        );
        Ok(())
    }

    async fn look_at_vms(&self) {
        let mut first = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            self.look_at_processes(&mut first).await;
            self.tell_vms();
        }
    }

    async fn follow_residents(&self) {
        let mut residents = BTreeMap::new();
        loop {
            // Continue in either case: a resident that has started meanwhile knows nothing.
            let _ = tokio::time::timeout(LOOK, self.steering.changed.notified()).await;
            self.tell_residents(&mut residents).await;
            tokio::time::sleep(ROUND).await;
        }
    }

    /// Tells controllers that have asked for capabilities when an interface is steered that was not
    /// before, or by another resident, whose table is empty, or no longer.
    async fn follow_devices(&self) {
        let mut known = BTreeMap::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let rundir = self.rundir();
            let now = answering(&rundir, &known).await;
            if now != known {
                known = now;
                self.tell_capabilities().await;
            }
        }
    }

    async fn tell_capabilities(&self) {
        let bridges: Vec<Rc<Bridge>> = self.bridges.borrow().values().cloned().collect();
        for bridge in bridges {
            let knows = |bridge: &Bridge| {
                let openflow = bridge.openflow.get();
                openflow.is_some_and(|openflow| openflow.knows_steering())
            };
            if !knows(&bridge) {
                continue;
            }
            let capabilities = bridge.host_capabilities().await;
            if let Some(openflow) = bridge.openflow.get() {
                openflow.capabilities(&capabilities);
            }
        }
    }

    /// Tells controllers which virtual machines have started, moved or stopped behind existing
    /// ports, each with its port's status. Stopped ones come first: a machine that has moved from
    /// one port to another stops before it starts.
    pub fn tell_vms(&self) {
        let bridges: Vec<Rc<Bridge>> = self.bridges.borrow().values().cloned().collect();
        let mut told = Vec::new();
        for bridge in &bridges {
            for (number, news) in bridge.news_of_vms() {
                told.push((bridge, number, news));
            }
        }
        if told.is_empty() {
            return;
        }
        told.sort_by_key(|(_, _, news)| news.reason != VmReason::Stopped);
        self.steering.changed.notify_one();
        for (bridge, number, news) in told {
            bridge.tell_port(number, PortReason::Modify);
            if let Some(openflow) = bridge.openflow.get() {
                openflow.vm_status(&news);
            }
        }
    }

    /// Checks where the threads of processes behind vhost-user sockets run.
    async fn look_at_processes(&self, first: &mut usize) {
        let mut looked = Vec::new();
        for bridge in self.bridges.borrow().values() {
            for (number, port) in bridge.ports.borrow_mut().iter_mut() {
                let asks = port.config.vm.is_some_and(|vm| vm.core.is_none());
                let process = match &mut port.control {
                    Some(control) if asks => control.peer_process(),
                    _ => None,
                };
                let Some(process) = process.map(VmLocation::Process) else {
                    port.vm.process = None;
                    continue;
                };
                // The last known state holds until a newer one is known.
                let known = port.vm.process.clone();
                let known = known.filter(|known| known.place == process);
                let known = known.unwrap_or_else(|| Vm::new(process));
                looked.push((Rc::clone(bridge), *number, port.id, known));
            }
        }
        if looked.is_empty() {
            return;
        }
        let count = looked.len();
        let start = *first % count;
        *first = start + PROCESSES_MAX.min(count);
        let (places, mut vms): (Vec<_>, Vec<Vm>) = (looked.into_iter())
            .map(|(bridge, number, id, vm)| ((bridge, number, id), vm))
            .unzip();
        // On another thread: a machine has some dozen threads, and for each a file is read.
        let look = tokio::task::spawn_blocking(move || {
            for step in 0..PROCESSES_MAX.min(count) {
                vms[(start + step) % count].look();
            }
            vms
        });
        let Ok(vms) = look.await else { return };
        for ((bridge, number, id), vm) in places.into_iter().zip(vms) {
            // Another port may have taken its number meanwhile.
            if let Some(port) = bridge.ports.borrow_mut().get_mut(&number)
                && port.id == id
            {
                port.vm.process = Some(vm);
            }
        }
    }

    /// Returns where each virtual machine runs, as far as known. If two have the same number, the
    /// first counts.
    fn places(&self) -> BTreeMap<u16, VmLocation> {
        let mut places = BTreeMap::new();
        for bridge in self.bridges.borrow().values() {
            for port in bridge.ports.borrow().values() {
                let Some(vm) = port.config.vm else { continue };
                let process = port
                    .vm
                    .process
                    .as_ref()
                    .map(|process| process.place.clone());
                if let Some(place) = vm.core.map(VmLocation::Core).or(process) {
                    places.entry(vm.id).or_insert(place);
                }
            }
        }
        places
    }

    /// Tells residents of changed places of virtual machines, all at once.
    async fn tell_residents(&self, residents: &mut BTreeMap<String, Resident>) {
        let places = Arc::new(self.places());
        let knows_none = |resident: &Resident| resident.told.is_empty();
        if places.is_empty() && residents.values().all(knows_none) {
            residents.clear();
            return;
        }
        let rundir = self.rundir();
        let mut round = JoinSet::new();
        for device in devices(&rundir).into_iter().take(DEVICES_MAX) {
            let mut resident = residents.remove(&device).unwrap_or_default();
            let (rundir, places) = (rundir.clone(), Arc::clone(&places));
            round.spawn(async move {
                resident.tell(&rundir, &device, &places).await;
                (device, resident)
            });
        }
        // The remaining ones steer nothing any more.
        residents.clear();
        while let Some(done) = round.join_next().await {
            residents.extend(done);
        }
    }
}

/// Returns the present state of the virtual machine behind a port.
fn status_of(port: &Port) -> Option<VmStatus> {
    let vm = port.config.vm?;
    let process = port.vm.process.as_ref();
    let lowest = process.and_then(|process| process.cores.first().copied());
    Some(VmStatus {
        reason: VmReason::Started,
        vm: vm.id,
        priority: vm.priority,
        port: port.openflow_number(),
        tenant: vm.tenant,
        core: vm.core.or(lowest).unwrap_or(NO_CORE),
    })
}

/// Returns what controllers must be told if they know `known` and `now` is the present state.
fn news(known: Option<VmStatus>, now: Option<VmStatus>) -> Vec<VmStatus> {
    let with = |status: VmStatus, reason| VmStatus { reason, ..status };
    match (known, now) {
        (Some(known), Some(now)) if known.vm == now.vm => match known == now {
            true => Vec::new(),
            false => vec![with(now, VmReason::Moved)],
        },
        (known, now) => {
            let gone = known.map(|known| with(known, VmReason::Stopped));
            gone.into_iter().chain(now).collect()
        }
    }
}

impl Bridge {
    /// Returns what controllers must be told about virtual machines behind its ports, and notes
    /// that they have been told.
    fn news_of_vms(&self) -> Vec<(u16, VmStatus)> {
        let mut told = Vec::new();
        for (number, port) in self.ports.borrow_mut().iter_mut() {
            let now = status_of(port);
            for news in news(port.vm.told, now) {
                told.push((*number, news));
            }
            port.vm.told = now;
        }
        told
    }

    /// Tells controllers that a virtual machine's port has been removed.
    pub fn tell_vm_gone(&self, told: Option<VmStatus>) {
        let news = news(told, None);
        if let (Some(openflow), false) = (self.openflow.get(), news.is_empty()) {
            news.iter().for_each(|status| openflow.vm_status(status));
            self.switch.steering.changed.notify_one();
        }
    }

    /// Returns the virtual machines that controllers have been told of.
    pub(super) fn told_vms(&self) -> Vec<VmStatus> {
        let ports = self.ports.borrow();
        ports.values().filter_map(|port| port.vm.told).collect()
    }

    /// Returns the host's steering capabilities and state.
    pub(super) fn host_capabilities(&self) -> LocalFuture<HostCapabilities> {
        let switch = self.switch();
        let layout = self.settings.borrow().fcf;
        Box::pin(async move {
            let rundir = switch.rundir();
            let mut asked = JoinSet::new();
            for name in devices(&rundir).into_iter().take(DEVICES_MAX) {
                let rundir = rundir.clone();
                asked.spawn(async move { describe_device(&rundir, name).await });
            }
            // Ask all at once, so that it takes only as long as one.
            let mut devices = asked.join_all().await;
            devices.sort_by(|one, other| one.name.cmp(&other.name));
            let mode = switch.choose_steering(None);
            let info = switch.with_datapath(|datapath| datapath.steering());
            let has_table = (info.as_ref()).is_ok_and(|info| !info.cards.is_empty());
            let workers = info.map_or(0, |info| info.workers.len());
            let mut abilities = Abilities::WORKERS;
            abilities.set(Abilities::RSS, switch.has_many_queues());
            abilities.set(Abilities::INDIRECTION, has_table);
            abilities.set(Abilities::XDP_GENERIC, has_xdp());
            let in_driver = |device: &Device| device.mode == XdpMode::Driver;
            abilities.set(Abilities::XDP_DRIVER, devices.iter().any(in_driver));
            HostCapabilities {
                cores: softirq::cpus::present().len().min(0xffff) as u16,
                workers: workers.min(0xffff) as u16,
                mode: mode.mode,
                source: mode.source,
                layouts: Layout::ALL.map(|(_, layout)| layout).into(),
                layout,
                abilities,
                devices,
            }
        })
    }

    /// Changes a steering table.
    pub(super) fn change_steering(
        &self,
        target: &Target,
        change: &SteeringMod,
    ) -> LocalFuture<Result<(), Error>> {
        let rundir = self.switch.rundir();
        let asked = match target {
            Target::Datapath => Err(no_table()),
            Target::Device(name) => request_of(change).map(|request| (name.clone(), request)),
        };
        Box::pin(async move {
            let (device, request) = asked.map_err(Refused::told)?;
            let done = ask(&rundir, &device, &request).await;
            done.map(drop).map_err(Refused::told)
        })
    }

    /// Returns the entries of a steering table.
    pub(super) fn steering_entries(
        &self,
        target: &Target,
    ) -> LocalFuture<Result<Vec<SteeringStats>, Error>> {
        let (rundir, target) = (self.switch.rundir(), target.clone());
        Box::pin(async move {
            let Target::Device(device) = target else {
                return Err(no_table().told());
            };
            // Choices of entries come before those of flows; only some flows are listed.
            let request = Request::Flows { limit: 8192 };
            let flows = ask_for::<FlowsStatus>(&rundir, &device, &request).await;
            flows.map(stats_of).map_err(Refused::told)
        })
    }
}

impl Switch {
    /// Returns whether a port has several receive queues, among which its device spreads flows.
    fn has_many_queues(&self) -> bool {
        let bridges = self.bridges.borrow();
        bridges.values().any(|bridge| {
            bridge.ports.borrow().values().any(|port| {
                let queues = port.config.options.get("n_rxq");
                queues
                    .and_then(|text| text.parse::<u32>().ok())
                    .is_some_and(|queues| queues > 1)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(id: u16, core: u32) -> VmStatus {
        VmStatus {
            reason: VmReason::Started,
            vm: id,
            priority: false,
            port: 1,
            tenant: 0,
            core,
        }
    }

    #[test]
    fn a_vm_starts_moves_and_stops() {
        let with = |status: VmStatus, reason| VmStatus { reason, ..status };
        assert_eq!(news(None, Some(vm(1, 2))), [vm(1, 2)]);
        assert_eq!(news(Some(vm(1, 2)), Some(vm(1, 2))), []);
        let moved = with(vm(1, 3), VmReason::Moved);
        assert_eq!(news(Some(vm(1, 2)), Some(vm(1, 3))), [moved]);
        let stopped = with(vm(1, 2), VmReason::Stopped);
        assert_eq!(news(Some(vm(1, 2)), None), [stopped]);
        // Another machine behind the same port.
        assert_eq!(news(Some(vm(1, 2)), Some(vm(7, 2))), [stopped, vm(7, 2)]);
        assert_eq!(news(None, None), []);
    }

    #[test]
    fn the_databases_mode_goes_before_a_controllers() {
        let state = State::default();
        assert_eq!(state.mode(None), SteeringMode::Auto);
        state.chosen.set(Some(Mode::Rss));
        assert_eq!(state.mode(None), SteeringMode::Rss);
        assert_eq!(state.mode(Some(SteeringMode::Off)), SteeringMode::Off);
    }

    #[test]
    fn a_change_is_told_in_the_residents_words() {
        let change = SteeringMod {
            command: Command::Add,
            cookie: 7,
            precedence: 9,
            core: IrqCore::PerFlow,
            idle_timeout: 3,
            hard_timeout: 0,
            vm: Some(4),
            priority: true,
            matching: "vni=5".to_owned(),
        };
        let told = |change: &SteeringMod| {
            let request = request_of(change).map_err(|refused| refused.0)?;
            serde_json::to_value(request).map_err(|_| Error::Hardware)
        };
        let add = told(&change).unwrap();
        let expected = serde_json::json!({
            "do": "add", "matching": "vni=5", "precedence": 9, "core": null, "per_flow": true,
            "vm": 4, "priority": true, "cookie": 7, "idle_timeout_ms": 3000,
            "hard_timeout_ms": null,
        });
        assert_eq!(add, expected);
        let delete = SteeringMod {
            command: Command::DeleteStrict,
            ..change.clone()
        };
        let expected = serde_json::json!({"do": "delete", "matching": "vni=5", "precedence": 9});
        assert_eq!(told(&delete).unwrap(), expected);
        let wrong = SteeringMod {
            matching: "colour=3".to_owned(),
            ..change
        };
        assert_eq!(told(&wrong), Err(Error::BadMatchValue));
    }
}
