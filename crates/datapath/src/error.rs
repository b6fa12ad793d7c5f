//! What can go wrong when a datapath is told to change.

/// An answer to a change that cannot be made. The datapath is as it was before, unless the text
/// says otherwise.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The bridge does not exist, or no longer.
    #[error("no such bridge")]
    NoSuchBridge,
    /// The port does not exist, or no longer.
    #[error("no such port")]
    NoSuchPort,
    /// Another bridge or port has the name.
    #[error("{0}: name is in use")]
    NameInUse(String),
    /// Another port of the bridge has the number.
    #[error("{name}: port number {number} is in use by {other}")]
    NumberInUse {
        /// The port that wants it.
        name: String,
        /// The number.
        number: u32,
        /// The port that has it.
        other: String,
    },
    /// A number that no port can have.
    #[error("{name}: {number} is not a port number")]
    BadNumber {
        /// The port that wants it.
        name: String,
        /// The number.
        number: u32,
    },
    /// No more ports.
    #[error("{0}: too many ports")]
    TooManyPorts(String),
    /// No more bridges.
    #[error("{0}: too many bridges")]
    TooManyBridges(String),
    /// No more workers, or no thread for one.
    #[error("worker {name}: {reason}")]
    Worker {
        /// The worker.
        name: String,
        /// Why.
        reason: String,
    },
    /// The device gave no transmit queue.
    #[error("{name}: no transmit queue for {worker}: {reason}")]
    Transmit {
        /// The port.
        name: String,
        /// The worker.
        worker: String,
        /// Why, as the device says.
        reason: String,
    },
    /// The bridge still has ports.
    #[error("{0}: bridge still has ports")]
    BridgeInUse(String),
    /// A patch port's kind of change on another kind.
    #[error("{0}: not a patch port")]
    NotAPatch(String),
    /// A tunnel port's kind of change on another kind.
    #[error("{0}: not a tunnel port")]
    NotATunnel(String),
    /// Too many mirrors, or one that cannot be.
    #[error("mirror {name}: {reason}")]
    Mirror {
        /// The mirror.
        name: String,
        /// Why.
        reason: String,
    },
    /// A worker did not answer in time; what it still holds is taken back when it does.
    #[error("{what}: {worker} has not answered within {seconds} s")]
    Timeout {
        /// What was under way.
        what: String,
        /// Who did not answer.
        worker: String,
        /// How long it had.
        seconds: u64,
    },
    /// A queue to the workers is full.
    #[error("{0} queue is full")]
    QueueFull(&'static str),
    /// There is no worker.
    #[error("no worker")]
    NoWorker,
    /// There is no worker with this place.
    #[error("there is no worker {0}")]
    NoSuchWorker(usize),
    /// There is no bucket of flows with this number.
    #[error("there is no bucket {0}: they are numbered from 0 to {last}", last = crate::steering::BUCKETS - 1)]
    NoSuchBucket(usize),
    /// The learning table holds only static entries and is full.
    #[error("learning table is full of static entries")]
    TableFull,
    /// The system refused something.
    #[error("{what}: {reason}")]
    System {
        /// What.
        what: &'static str,
        /// The system's text.
        reason: String,
    },
}
