//! Opens the ports of a spec.

use crate::clock::Clock;
use crate::engine::{Ends, Store};
use crate::file::FilePort;
use crate::plan::{Plan, Problem};
use crate::spec::{Port, Spec};
use packet::io::{RxQueue, TxQueue};
use ports::{Dpdk, Eal, EalOptions, Mbuf, OpenPort, Pool, PortControl, PortSpec, PortType, Xdp};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a port that is not there yet is tried, or asked.
const RETRY: Duration = Duration::from_millis(50);
/// Most huge page memory, megabytes on each NUMA node: what it measures needs some, too.
const HUGE_MEGABYTES: u32 = 256;
/// Bytes of a frame beyond the MTU: the Ethernet header, and a VLAN tag.
const ETHERNET: u32 = 14;
const VLAN: u32 = 4;

/// Open ports.
pub struct Opened {
    /// DPDK.
    pub eal: Eal,
    /// Queues of the ports.
    pub ends: Ends<Mbuf>,
    /// Their control sides; they must be closed after the queues have been dropped.
    pub controls: Vec<Box<dyn PortControl>>,
    /// Where frames come from.
    pub pool: Pool,
}

/// Takes frames from a pool, many at once.
pub struct PoolStore {
    pool: Pool,
    /// Empty frames.
    fresh: Vec<Mbuf>,
}

impl PoolStore {
    /// How many frames are taken at once.
    const MANY: usize = 64;

    /// Makes a store of a pool's frames. It must be dropped before the pool is.
    pub fn new(pool: Pool) -> PoolStore {
        PoolStore {
            pool,
            fresh: Vec::with_capacity(PoolStore::MANY),
        }
    }
}

impl Store<Mbuf> for PoolStore {
    #[inline(always)]
    fn take(&mut self, bytes: &[u8]) -> Option<Mbuf> {
        if self.fresh.is_empty() && !self.pool.take(PoolStore::MANY, &mut self.fresh) {
            return self.pool.frame(bytes);
        }
        let mut frame = self.fresh.pop()?;
        frame.fill(bytes).then_some(frame)
    }
}

/// What is being done, for the error if it takes too long.
type Doing = Arc<Mutex<Problem>>;

/// Opens the ports of a spec. Waits up to `limit` for those that somebody has to connect to, until
/// `stop` is set.
///
/// After an error the process should end: a port that nobody connected to cannot be given up, only
/// left behind.
pub fn open(
    spec: &Spec,
    plan: &Plan,
    clock: &Clock,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Opened, Problem> {
    let end = Instant::now() + limit;
    let doing: Doing = Arc::new(Mutex::new(Problem::new("dpdk", "it does not start")));
    let (sender, receiver) = mpsc::channel();
    let (spec_here, plan_here) = (spec.clone(), plan.clone());
    let (clock, doing_there) = (clock.clone(), Arc::clone(&doing));
    std::thread::Builder::new()
        .name("open".into())
        .spawn(move || {
            // Nobody may wait for it any more.
            let _ = sender.send(open_here(&spec_here, &plan_here, &clock, end, &doing_there));
        })
        .map_err(|error| Problem::new("ports", format!("cannot start a thread: {error}")))?;
    let give_up = |why: &str| {
        let mut problem = doing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        remove_sockets(spec, &problem.place);
        problem.what = format!("{} ({why})", problem.what);
        problem
    };
    loop {
        match receiver.recv_timeout(RETRY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(give_up("it failed")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stop.load(Ordering::Relaxed) {
            return Err(give_up("interrupted"));
        }
        // The thread itself looks at the time where it can.
        if Instant::now() > end + 4 * RETRY {
            return Err(give_up(&format!("waited {} s", limit.as_secs_f64())));
        }
    }
}

/// Removes the sockets of ports that listen, up to the port that was being opened, which is named
/// at `last`.
fn remove_sockets(spec: &Spec, last: &str) {
    let all = distinct(spec);
    let Some(end) = all.iter().position(|(_, place)| place == last) else {
        return;
    };
    for (port, _) in &all[..=end] {
        if let Port::VirtioUser { path, server: true } | Port::Memif { path, server: true } = port
            && is_socket(Path::new(path))
        {
            // The process ends; what cannot be removed is left.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|data| data.file_type().is_socket())
}

/// Removes a socket that nobody listens on, left from a process that was killed.
fn remove_if_unused(path: &Path) {
    let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    if is_socket(path) && UnixStream::connect(path).is_err_and(refused) {
        // If that fails, opening the port says what is wrong.
        let _ = std::fs::remove_file(path);
    }
}

/// Returns the ports of a spec, each once, with the places where they are named.
fn distinct(spec: &Spec) -> Vec<(Port, String)> {
    let mut all: Vec<(Port, String)> = Vec::new();
    let of_streams = spec.streams.iter().enumerate();
    let of_streams = of_streams.map(|(at, stream)| (&stream.port, format!("streams[{at}].port")));
    let of_sinks = spec.sinks.iter().enumerate();
    let of_sinks = of_sinks.map(|(at, port)| (port, format!("sinks[{at}]")));
    for (port, place) in of_streams.chain(of_sinks) {
        if !all.iter().any(|(other, _)| other == port) {
            all.push((port.clone(), place));
        }
    }
    all
}

fn is_pci(devargs: &str) -> bool {
    let name = devargs.split(',').next().unwrap_or_default();
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
    let mut parts = name.split(':');
    let last = parts.next_back();
    let device = last.and_then(|last| last.split_once('.'));
    device.is_some_and(|(slot, function)| digits(slot) && digits(function))
        && parts.clone().count() > 0
        && parts.all(digits)
}

fn eal_options(ports: &[(Port, String)]) -> EalOptions {
    let mut extra = String::from("--single-file-segments");
    let pci = |port: &Port| match port {
        Port::Dpdk(devargs) => is_pci(devargs) || devargs.starts_with("class="),
        _ => false,
    };
    if !ports.iter().any(|(port, _)| pci(port)) {
        extra.push_str(" --no-pci");
    }
    let nodes = std::fs::read_dir("/sys/devices/system/node");
    let nodes = nodes.map_or(1, |entries| {
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with("node")).count()
    });
    let limits = vec![HUGE_MEGABYTES.to_string(); nodes.max(1)];
    EalOptions {
        extra,
        socket_limit: Some(limits.join(",")),
        file_prefix: Some(format!("sluice-gen-{}", std::process::id())),
        ..EalOptions::default()
    }
}

fn open_here(
    spec: &Spec,
    plan: &Plan,
    clock: &Clock,
    end: Instant,
    doing: &Doing,
) -> Result<Opened, Problem> {
    let all = distinct(spec);
    let eal = ports::eal::init(&eal_options(&all))
        .map_err(|error| Problem::new("dpdk", error.to_string()))?;
    let pool = eal
        .pool()
        .map_err(|error| Problem::new("dpdk", error.to_string()))?;
    let mut ends = Ends {
        tx: Vec::new(),
        stream_tx: vec![0; spec.streams.len()],
        rx: Vec::new(),
        taps: Vec::new(),
    };
    let mut controls = Vec::new();
    let mut sink = 0;
    for (number, (port, place)) in all.iter().enumerate() {
        let streams = || {
            let all = spec.streams.iter().enumerate();
            all.filter(|(_, stream)| stream.port == *port)
                .map(|(at, _)| at)
        };
        if let Port::File(path) = port {
            let file = FilePort::create(Path::new(path), clock)
                .map_err(|error| Problem::new(place.as_str(), format!("{path}: {error}")))?;
            for at in streams() {
                ends.stream_tx[at] = ends.tx.len();
            }
            match streams().next() {
                Some(_) => ends.tx.push(Box::new(file)),
                None => ends.taps.push(Box::new(file)),
            }
            continue;
        }
        let longest = streams()
            .map(|at| plan.streams[at].longest)
            .max()
            .unwrap_or(0);
        let OpenPort { mut control, rx } =
            open_one(&eal, number, port, place, longest, end, doing)?;
        wait_for_link(control.as_mut(), port, place, end, doing)?;
        let info = control.info();
        for at in streams() {
            let tag = spec.streams[at].headers.vlan.map_or(0, |_| VLAN);
            let most = u32::from(info.mtu) + ETHERNET + tag;
            let longest = u32::from(plan.streams[at].longest);
            if info.mtu > 0 && longest > most {
                return Err(Problem::new(
                    format!("streams[{at}].size"),
                    format!(
                        "{longest} bytes are more than {} takes: {most}",
                        name_of(port)
                    ),
                ));
            }
            ends.stream_tx[at] = ends.tx.len();
        }
        if streams().next().is_some() {
            let tx: Box<dyn TxQueue<Mbuf>> = control
                .tx_queue(0)
                .map_err(|error| Problem::new(place.as_str(), error.to_string()))?;
            ends.tx.push(tx);
        }
        if spec.sinks.contains(port) {
            let position = spec.sinks.iter().position(|other| other == port);
            // Files among the sinks before it do not count.
            sink = position.map_or(sink, |position| {
                let before = &spec.sinks[..position];
                before
                    .iter()
                    .filter(|port| !matches!(port, Port::File(_)))
                    .count()
            });
            let queues = rx.into_iter();
            ends.rx
                .extend(queues.map(|rx: Box<dyn RxQueue<Mbuf>>| (sink, rx)));
        }
        controls.push(control);
    }
    Ok(Opened {
        eal,
        ends,
        controls,
        pool,
    })
}

/// Returns how people call a port.
pub fn name_of(port: &Port) -> String {
    match port {
        Port::VirtioUser { path, .. } => format!("virtio-user:{path}"),
        Port::Interface(name) => format!("interface:{name}"),
        Port::AfXdp(name) => format!("af-xdp:{name}"),
        Port::Memif { path, .. } => format!("memif:{path}"),
        Port::Dpdk(devargs) => format!("dpdk:{devargs}"),
        Port::File(path) => format!("file:{path}"),
    }
}

fn open_one(
    eal: &Eal,
    number: usize,
    port: &Port,
    place: &str,
    longest: u16,
    end: Instant,
    doing: &Doing,
) -> Result<OpenPort, Problem> {
    let named = |what: String| Problem::new(place, format!("{}: {what}", name_of(port)));
    let note = |what: &str| {
        *doing.lock().unwrap_or_else(PoisonError::into_inner) = named(what.into());
    };
    let usable = |path: &str| match path.contains([',', '=', '"', '\n']) {
        true => Err(named("DPDK takes no path with a comma or '=' in it".into())),
        false => Ok(()),
    };
    let (name, kind) = match port {
        Port::VirtioUser { path, server } => {
            usable(path)?;
            let mut devargs = format!("net_virtio_user{number},path={path},queues=1");
            if *server {
                remove_if_unused(Path::new(path));
                devargs.push_str(",server=1");
                note("nobody connects");
            } else {
                note("nobody listens");
            }
            (format!("port{number}"), PortType::Dpdk(Dpdk::new(devargs)))
        }
        Port::Memif { path, server } => {
            usable(path)?;
            let role = if *server { "server" } else { "client" };
            if *server {
                remove_if_unused(Path::new(path));
            }
            let devargs =
                format!("net_memif{number},role={role},id=0,socket={path},socket-abstract=no");
            note("it does not open");
            (format!("port{number}"), PortType::Dpdk(Dpdk::new(devargs)))
        }
        Port::Dpdk(devargs) => {
            note("it does not open");
            (
                format!("port{number}"),
                PortType::Dpdk(Dpdk::new(devargs.as_str())),
            )
        }
        Port::Interface(name) => (name.clone(), PortType::System),
        Port::AfXdp(name) => (
            name.clone(),
            PortType::AfXdp {
                mode: Xdp::BestEffort,
                rx_queues: 1,
            },
        ),
        Port::File(path) => (path.clone(), PortType::System),
    };
    let mut spec = PortSpec::new(name, kind);
    spec.tx_queues = 1;
    let beyond = u32::from(longest).saturating_sub(ETHERNET + VLAN);
    if matches!(spec.kind, PortType::Dpdk(_)) && beyond > 1500 {
        spec.mtu = Some(beyond as u16);
    }
    loop {
        let error = match ports::open(eal, &spec) {
            Ok(open) => return Ok(open),
            Err(error) => error,
        };
        // A socket may appear later, and be listened on.
        let comes = match port {
            Port::VirtioUser {
                path,
                server: false,
            } => {
                let data = Path::new(path).symlink_metadata();
                data.map_or(true, |data| data.file_type().is_socket())
            }
            _ => false,
        };
        if !comes {
            return Err(named(error.to_string()));
        }
        if Instant::now() > end {
            return Err(named(format!("nobody listens: {error}")));
        }
        std::thread::sleep(RETRY);
    }
}

/// Waits until a port has a link.
fn wait_for_link(
    control: &mut dyn PortControl,
    port: &Port,
    place: &str,
    end: Instant,
    doing: &Doing,
) -> Result<(), Problem> {
    let named = |what: &str| Problem::new(place, format!("{}: {what}", name_of(port)));
    *doing.lock().unwrap_or_else(PoisonError::into_inner) = named("it has no link");
    loop {
        let info = control.info();
        if info.link_up {
            return Ok(());
        }
        if !info.admin_up {
            return Err(named("the interface is down (ip link set it up)"));
        }
        if Instant::now() > end {
            return Err(named("it has no link: nobody is at the other end"));
        }
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_devices_are_told_from_others() {
        for name in ["0000:3b:00.0", "3b:00.1", "0000:3b:00.0,arg=1"] {
            assert!(is_pci(name), "{name}");
        }
        for name in [
            "net_null0",
            "net_pcap0,rx_pcap=a:b.0",
            "eth_af_packet0,iface=a",
            "00.0",
        ] {
            assert!(!is_pci(name), "{name}");
        }
    }

    #[test]
    fn ports_are_opened_once() {
        let spec = crate::plan::read(
            "seconds: 1\nsinks: [{interface: b}, {interface: a}]\nstreams:\n\
             - {port: {interface: a}, rate: most}\n- {port: {interface: a}, rate: most}\n",
        )
        .unwrap();
        let places: Vec<String> = distinct(&spec)
            .into_iter()
            .map(|(_, place)| place)
            .collect();
        assert_eq!(places, ["streams[0].port", "sinks[0]"]);
    }
}
