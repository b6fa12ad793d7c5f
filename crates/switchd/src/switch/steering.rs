//! What the switch has to do with steering beside its workers' own (`datapath::control::steering`):
//! capabilities and mode for controllers, virtual machines, and steering tables of kernel
//! interfaces.
//!
//! Kernel interfaces are steered by other processes (`sluice steer run`), which are asked by their
//! sockets in the run directory. Whoever waits for them waits for [`ANSWER`] at most, and nobody
//! else waits meanwhile.
//!
//! Where virtual machines run is looked at every [`LOOK`]: `vm-core` says it, or the threads of the
//! process behind a vhost-user socket. Those that steer kernel interfaces are told what has
//! changed.

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
use softirq::control::{Answer, RefusalKind, Request, devices, socket_path};
use softirq::key::parse_match;
use softirq::session::{EntryRequest, FlowsStatus, Status};
use softirq::vms::{Place, Vm};
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

/// How long an answer of whoever steers an interface is waited for.
const ANSWER: Duration = Duration::from_secs(2);
/// Bytes of an answer at most: what is said of 4,096 entries has less.
const ANSWER_MAX: u64 = 8 << 20;
/// How often it is looked where virtual machines run, and who steers interfaces.
const LOOK: Duration = Duration::from_millis(500);
/// The least time between two rounds to those who steer interfaces.
const ROUND: Duration = Duration::from_millis(20);
/// After how long what one of them has refused is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Virtual machines whose processes are looked at in one look; the others have their turn next.
const PROCESSES_MAX: usize = 64;
/// Interfaces that controllers and virtual machines are told of.
const DEVICES_MAX: usize = 64;

/// What the switch knows for steering.
#[derive(Default)]
pub struct State {
    /// What controllers have chosen last.
    chosen: Cell<Option<Mode>>,
    /// Told when virtual machines may have changed.
    changed: tokio::sync::Notify,
}

impl State {
    /// The mode in force, where the database says this.
    pub fn mode(&self, database: Option<SteeringMode>) -> SteeringMode {
        let chosen = self.chosen.get().map(mode_of);
        database.or(chosen).unwrap_or_default()
    }
}

/// What is known of the virtual machine behind a port.
#[derive(Default)]
pub struct KnownVm {
    /// Its process, as last looked at.
    process: Option<Vm>,
    /// What controllers were told last; none where there is none.
    pub told: Option<VmStatus>,
}

/// What one who steers an interface knows of virtual machines.
#[derive(Default)]
struct Resident {
    /// Its socket: who comes next has another, and knows nothing.
    socket: Option<(u64, u64, i64)>,
    told: BTreeMap<u16, Place>,
    /// What it has refused, and when.
    refused: BTreeMap<u16, (Place, Instant)>,
}

impl Resident {
    /// Tells what it does not know yet, for [`ANSWER`] at most; the rest has its turn next.
    async fn tell(&mut self, rundir: &Path, device: &str, places: &BTreeMap<u16, Place>) {
        let socket = std::fs::metadata(socket_path(rundir, device)).ok();
        let socket = socket.map(|file| (file.dev(), file.ino(), file.ctime_nsec()));
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
        let is_new = |(vm, place): &(&u16, &Place)| {
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

    /// Tells where one is, or that it has gone. False where nobody answers.
    async fn tell_one(
        &mut self,
        rundir: &Path,
        device: &str,
        id: u16,
        place: Option<Place>,
    ) -> bool {
        let asked = |place: Option<Place>| async move {
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
            // It is asked again at the next look.
            tracing::debug!(target: "steering", "VM {id}: {text}");
            return false;
        }
        let known = self.told.remove(&id).is_some();
        // One that has ended is forgotten there by itself.
        if let Some(place) = place {
            tracing::warn!(target: "steering", "VM {id}: {}", printable(&text));
            self.refused.insert(id, (place, Instant::now()));
            if known {
                // Where it was it is no more.
                let _ = asked(None).await;
            }
        }
        true
    }
}

/// Words of others without what terminals and logs would take for more than words.
fn printable(text: &str) -> String {
    let plain = |char: char| if char.is_control() { '?' } else { char };
    text.chars().map(plain).collect()
}

/// A layout in the datapath's words.
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

/// Asks whoever steers an interface. The error has a code for the peer and words for the log.
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
    // Large ones take longer than others are to wait.
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

/// Why something was not done: for the peer, and for people.
struct Refused(Error, String);

impl Refused {
    /// Logs the words and gives the code.
    fn told(self) -> Error {
        tracing::warn!(target: "steering", "{}", printable(&self.1));
        self.0
    }
}

/// The workers have no steering table: what they do is chosen by the mode.
fn no_table() -> Refused {
    let text = "the workers have no steering table; name an interface of sluice steer run";
    Refused(Error::FlowModPermission, text.to_owned())
}

/// A change in the words of whoever steers the interface.
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

/// Entries as controllers are told of them.
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
        // Numbers beyond what the protocol has were given by hand.
        vm: entry
            .vm
            .filter(|vm| (1..=openflow::steering::VM_ID_MAX).contains(vm)),
        priority: entry.priority,
        matching: entry.matching,
    });
    stats.collect()
}

/// Asks for something that has a type.
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

/// What whoever steers an interface says of it; not known where nothing is said in time.
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

/// Whether the kernel can run the programs of `sluice steer run`: what is known of its types is
/// what these need.
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

    /// Takes a controller's choice of mode, if it is one, and says which mode is in force.
    pub fn choose_steering(&self, wanted: Option<Mode>) -> ModeReply {
        let database = self.database_mode();
        if let Some(wanted) = wanted {
            self.steering.chosen.set(Some(wanted));
            let mode = self.steering.mode(database);
            tracing::info!(target: "steering", "a controller chooses {}; {} is in force",
                mode_of(wanted).name(), mode.name());
            // Without a datapath it is done when that starts.
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

    /// Looks after virtual machines until the daemon ends: where they run, and who must know.
    pub async fn follow_vms(self: Rc<Self>) -> anyhow::Result<()> {
        // Who does not answer must not keep controllers from being told.
        tokio::join!(self.look_at_vms(), self.follow_residents());
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
            // Either way: whoever has begun to steer an interface since knows nothing.
            let _ = tokio::time::timeout(LOOK, self.steering.changed.notified()).await;
            self.tell_residents(&mut residents).await;
            tokio::time::sleep(ROUND).await;
        }
    }

    /// Tells controllers which virtual machines have started, moved or stopped behind ports that
    /// are there, each with its port's status. First those that have stopped: a machine that has
    /// gone from one port to another stops before it starts.
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

    /// Looks where the threads of processes behind vhost-user sockets run.
    async fn look_at_processes(&self, first: &mut usize) {
        let mut looked = Vec::new();
        for bridge in self.bridges.borrow().values() {
            for (number, port) in bridge.ports.borrow_mut().iter_mut() {
                let asks = port.config.vm.is_some_and(|vm| vm.core.is_none());
                let process = match &mut port.control {
                    Some(control) if asks => control.peer_process(),
                    _ => None,
                };
                let Some(process) = process.map(Place::Process) else {
                    port.vm.process = None;
                    continue;
                };
                // What is known of it holds until more is.
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
        // A machine has some dozen threads, each a file to be read.
        let look = tokio::task::spawn_blocking(move || {
            for step in 0..PROCESSES_MAX.min(count) {
                vms[(start + step) % count].look();
            }
            vms
        });
        let Ok(vms) = look.await else { return };
        for ((bridge, number, id), vm) in places.into_iter().zip(vms) {
            // Another port may have come in its place meanwhile.
            if let Some(port) = bridge.ports.borrow_mut().get_mut(&number)
                && port.id == id
            {
                port.vm.process = Some(vm);
            }
        }
    }

    /// Where each virtual machine runs, as far as that is known. Of two with one number the first
    /// counts.
    fn places(&self) -> BTreeMap<u16, Place> {
        let mut places = BTreeMap::new();
        for bridge in self.bridges.borrow().values() {
            for port in bridge.ports.borrow().values() {
                let Some(vm) = port.config.vm else { continue };
                let process = port
                    .vm
                    .process
                    .as_ref()
                    .map(|process| process.place.clone());
                if let Some(place) = vm.core.map(Place::Core).or(process) {
                    places.entry(vm.id).or_insert(place);
                }
            }
        }
        places
    }

    /// Tells those who steer interfaces what they do not know yet of where virtual machines run,
    /// all at once.
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
        // Those that are left steer nothing any more.
        residents.clear();
        while let Some(done) = round.join_next().await {
            residents.extend(done);
        }
    }
}

/// The virtual machine behind a port, as it is now.
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

/// What controllers are to be told where they know the one and the other holds now.
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
    /// What controllers are to be told of virtual machines behind its ports; from now on they have
    /// been.
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

    /// Tells controllers of a virtual machine whose port has gone.
    pub fn tell_vm_gone(&self, told: Option<VmStatus>) {
        let news = news(told, None);
        if let (Some(openflow), false) = (self.openflow.get(), news.is_empty()) {
            news.iter().for_each(|status| openflow.vm_status(status));
            self.switch.steering.changed.notify_one();
        }
    }

    /// Virtual machines that controllers have been told of.
    pub(super) fn told_vms(&self) -> Vec<VmStatus> {
        let ports = self.ports.borrow();
        ports.values().filter_map(|port| port.vm.told).collect()
    }

    /// What the host can do and does.
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
            // All together answer in the time of one.
            let mut devices = asked.join_all().await;
            devices.sort_by(|one, other| one.name.cmp(&other.name));
            let mode = switch.choose_steering(None);
            let info = switch.with_datapath(|datapath| datapath.steering());
            let workers = info.map_or(0, |info| info.workers.len());
            let mut abilities = Abilities::WORKERS;
            abilities.set(Abilities::RSS, switch.has_many_queues());
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

    /// What is in a steering table.
    pub(super) fn steering_entries(
        &self,
        target: &Target,
    ) -> LocalFuture<Result<Vec<SteeringStats>, Error>> {
        let (rundir, target) = (self.switch.rundir(), target.clone());
        Box::pin(async move {
            let Target::Device(device) = target else {
                return Err(no_table().told());
            };
            // Choices of entries come before those of flows, of which some are left out.
            let request = Request::Flows { limit: 8192 };
            let flows = ask_for::<FlowsStatus>(&rundir, &device, &request).await;
            flows.map(stats_of).map_err(Refused::told)
        })
    }
}

impl Switch {
    /// Whether a port has several receive queues, among which its device spreads flows.
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
