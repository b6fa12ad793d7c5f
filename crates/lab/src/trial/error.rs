//! Why a cell cannot be set up, and why a trial with a switch has failed.

use crate::frames::MOST_FRAMES;
use crate::{changes, generator, methods, settings, subject};

/// Why a cell's settings are no plan.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There are fewer cores than workers.
    #[error("{workers} workers need as many cores, and the run has {cores} (--core)")]
    TooFewCores {
        /// The workers.
        workers: usize,
        /// The cores.
        cores: usize,
    },
    /// This path has guests between its ends, where frames can only pass one way.
    #[error("the path {} goes one way, with job: cross", .0.name())]
    OneWay(settings::Path),
    /// Frames are to go both ways, and the switch is not to cross them.
    #[error("direction: both needs job: cross")]
    BothWays,
    /// Frames of a file are to come from something else than memory.
    #[error("the frames of job: given come from a port in memory")]
    GivenFrames,
    /// No device is left for the port of this number.
    #[error("port {0} has no device (devices)")]
    NoDevice(usize),
    /// A device does not exist.
    #[error("{setting}: there is no {device} {}", among(*.is_pci))]
    NotThere {
        /// The setting that names it.
        setting: &'static str,
        /// Its name.
        device: String,
        /// Whether it would be a PCI device, and not an interface.
        is_pci: bool,
    },
    /// The interface at the other end of a wire is down.
    #[error("peers: {0} is down (ip link set {0} up)")]
    PeerDown(String),
    /// So many flows need more frames than a port in memory has.
    #[error("{0} flows do not fit into the memory of a port, which holds {MOST_FRAMES} frames")]
    TooManyFlows(u64),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] crate::Error),
}

fn among(is_pci: bool) -> &'static str {
    match is_pci {
        true => "in /sys/bus/pci/devices",
        false => "among the interfaces here",
    }
}

/// Why a kind of physical port is not there for a cell.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The settings are no plan with it.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The switch has no such ports, or cannot do the rest.
    #[error(transparent)]
    Subject(#[from] subject::Error),
}

/// A cell that a switch cannot have, whatever its physical ports are.
#[derive(Debug, thiserror::Error)]
#[error("{}", joined(.0))]
pub struct Unfit(pub Vec<Reason>);

fn joined(reasons: &[Reason]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for reason in reasons {
        let text = reason.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join("; ")
}

/// Why a trial with a switch has failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run is to end.
    #[error("the run was ended")]
    Stopped,
    /// The switch does not tell its counters.
    #[error(transparent)]
    Subject(#[from] subject::Error),
    /// The switch tells counters of fewer ports than these.
    #[error("counters of {0} ports are missing")]
    CountersMissing(usize),
    /// The generator failed.
    #[error(transparent)]
    Generator(#[from] generator::Error),
    /// Rules could not be changed.
    #[error(transparent)]
    Changes(#[from] changes::Error),
    /// Two sources are in different namespaces.
    #[error("the generator cannot send from two namespaces")]
    SourcesApart,
    /// A sink is in another namespace than the source.
    #[error("the generator cannot be in two namespaces")]
    SinkApart,
    /// Nobody can send to the given devices.
    #[error("a load needs devices at the other ends of the wires (peers)")]
    NoPeers,
    /// Ports have frames in memory, and take as many as they like.
    #[error("ports that feed themselves take no load")]
    FeedThemselves,
    /// The report has no steps of what was sent.
    #[error("the generator told nothing of its steps")]
    NoSteps,
    /// The report has no steps of what came.
    #[error("the generator told nothing of what came of its steps")]
    NoArrivedSteps,
    /// A burst has more frames than can be counted.
    #[error("the burst is too long")]
    BurstTooLong,
    /// Packets do not pass where they could be sent and seen.
    #[error("rules are changed between kernel interfaces only (ports: veth)")]
    NotInterfaces,
    /// There are not two outputs to change between.
    #[error("flow-setup needs two outputs (job: copies, outputs: 2)")]
    NotTwoOutputs,
    /// Source and outputs are not in one namespace.
    #[error("the switch's ports end in different namespaces")]
    EndsApart,
    /// The switch has no OpenFlow.
    #[error("it takes no OpenFlow here")]
    NoOpenFlow,
}

impl From<Error> for methods::Error {
    fn from(error: Error) -> methods::Error {
        methods::Error::Trial(Box::new(error))
    }
}
