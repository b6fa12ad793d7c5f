//! What is measured: a switch that is set up, told what to forward, and asked what it did.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A switch that the lab can set up.
pub trait Subject {
    /// Its name in results: `sluice`, `ovs-dpdk`, `ovs-netdev`, `linux-bridge`, `linux-ip`,
    /// `testpmd`, `vpp`, or the label of one's own daemon.
    fn id(&self) -> &str;

    /// Its name for people.
    fn name(&self) -> String;

    /// Its version; an error says why it cannot be measured here.
    fn version(&self) -> Result<String, Error>;

    /// How it is set up, in words.
    fn setup(&self) -> String;

    /// Whether it can have such ports and do such a job; the error says what it lacks.
    fn can(&self, plan: &Plan) -> Result<(), Error>;

    /// Starts it in the lab's own place.
    fn start(&self, place: &Place, plan: &Plan) -> Result<Box<dyn Running>, Error>;
}

/// A switch that runs. Dropping it stops it and removes what it made.
pub trait Running {
    /// Where a generator attaches, by port in the order of the plan.
    fn ends(&self) -> Vec<End>;

    /// Its counters, by port in the order of the plan.
    fn counters(&mut self) -> Result<Vec<Counters>, Error>;

    /// Gives it another job with the same ports.
    fn apply(&mut self, job: &Job) -> Result<(), Error>;

    /// The socket at which it takes OpenFlow, if it does.
    fn control(&self) -> Option<PathBuf> {
        None
    }

    /// The process that forwards; absent where it is the kernel.
    fn process(&self) -> Option<u32>;

    /// Threads that forward: their kernel IDs.
    fn workers(&self) -> Vec<u32>;

    /// Cycles of its workers by stage since the last call, where it can tell (the white box).
    fn stages(&mut self) -> Result<Option<Vec<Stage>>, Error>;

    /// Stops it, with all it made. An error says what could not be removed.
    fn stop(self: Box<Self>) -> Result<(), Error>;
}

/// A place of the lab's own: a run directory and network namespaces whose names begin with
/// `prefix`. `sluice lab clean` removes whatever begins so.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where sockets, databases and logs are.
    pub directory: PathBuf,
    /// Beginning of the names of namespaces, DPDK's file prefixes and the like.
    pub prefix: String,
}

/// What a switch is asked to have and to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Plan {
    /// Its ports, numbered from 1.
    pub ports: Vec<Port>,
    /// Cores of its workers. A switch in the kernel has its interrupts handled there.
    pub cores: Vec<usize>,
    /// What it does.
    pub job: Job,
}

/// A kind of port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Port {
    /// Frames come from a capture file in memory, again and again, as fast as they are taken; what
    /// is sent is dropped. A physical port whose wire is never the limit.
    Memory {
        /// The capture; an empty path: none, the port only takes what is sent.
        frames: PathBuf,
    },
    /// A guest's interface: vhost-user for switches in user space, a TAP for the kernel's.
    Virtual,
    /// A veth whose other end is the generator's.
    Veth,
    /// A device that was given: a network card.
    Device(String),
}

/// Where a generator attaches to a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum End {
    /// Nowhere: the port feeds itself.
    Itself,
    /// A vhost-user socket; `server`: whether the generator listens.
    Socket {
        /// The socket.
        path: PathBuf,
        /// Whether the generator listens on it.
        server: bool,
    },
    /// An interface in a namespace.
    Interface {
        /// The namespace, as `ip netns` names it.
        namespace: String,
        /// The interface.
        name: String,
    },
    /// A persistent TAP in a namespace, whose file (`/dev/net/tun`) the generator opens. It has
    /// several queues. DPDK's `net_tap0,iface=NAME,mac=02:00:00:00:00:02` opens it; without `mac`
    /// it would change the TAP's address, to which frames are sent that are to be routed.
    Tap {
        /// The namespace, as `ip netns` names it.
        namespace: String,
        /// The TAP.
        name: String,
    },
}

/// What a switch does with packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Job {
    /// Frames from each port go to the port beside it: 1 to 2, 2 to 1, 3 to 4.
    Cross,
    /// Frames from each port go to these, in order: copies where there are several.
    To(Vec<(u16, Vec<u16>)>),
    /// Frames go by their destination address (learned or set): this many addresses behind each
    /// port, from `02:00:00:<port>:00:00` upwards ([`station`]).
    Stations(u32),
    /// Frames are routed by this many IPv4 prefixes behind the second port ([`route`]). Frames to
    /// be routed are addressed to [`ROUTER`].
    Routes(u32),
    /// OpenFlow rules as `ovs-ofctl add-flows` takes them, and groups.
    Rules {
        /// Rules.
        rules: Vec<String>,
        /// Groups.
        #[serde(default)]
        groups: Vec<String>,
    },
}

/// The most addresses behind a port.
pub const MOST_STATIONS: u32 = 1_000_000;

/// The most prefixes: those below 127.0.0.0.
pub const MOST_ROUTES: u32 = (127 - 11) << 16;

/// The Ethernet address to which frames are sent that are to be routed.
pub const ROUTER: &str = "02:00:00:00:00:02";

/// The Ethernet address of a station, as a number, counted from 0, behind a port.
///
/// Up to 65,536 stations are numbered in the last two bytes and the port is the fourth; where there
/// are more, so that this has no room, the port is the third and they are numbered in the last
/// three.
pub fn station(port: u16, number: u32, of: u32) -> u64 {
    let shift = if of <= 1 << 16 { 16 } else { 24 };
    (0x0200_0000_0000 | u64::from(port) << shift) + u64::from(number)
}

/// The network of a route of [`Job::Routes`], counted from 0: 11.0.0.0, 11.0.1.0 and so on, each
/// with 24 bits.
pub fn route(number: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits((11 << 24) + (number << 8))
}

/// A port's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Frames that the switch received.
    pub received: u64,
    /// Frames that it sent.
    pub sent: u64,
    /// Frames that it dropped or could not send.
    pub dropped: u64,
}

/// A stage of a worker's turn: its name, cycles and packets.
pub type Stage = (String, u64, u64);

/// What went wrong, in words.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be measured here: not installed, or it cannot do what is asked.
    #[error("{0}")]
    Missing(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}
