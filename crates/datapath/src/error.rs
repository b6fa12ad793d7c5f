//! Errors of changes to a datapath.

/// Why a function that the datapath's owner gave it failed; the datapath passes its text on.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a change cannot be made. The datapath is unchanged, unless the text says otherwise.
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
        /// The port that is to have it.
        name: String,
        /// The number.
        number: u32,
        /// The port that has it.
        other: String,
    },
    /// A number that no port can have.
    #[error("{name}: {number} is not a port number")]
    BadNumber {
        /// The port that is to have it.
        name: String,
        /// The number.
        number: u32,
    },
    /// There are as many ports as possible.
    #[error("{0}: too many ports")]
    TooManyPorts(String),
    /// There are as many bridges as possible.
    #[error("{0}: too many bridges")]
    TooManyBridges(String),
    /// There are as many workers as possible, or no thread could be started.
    #[error("worker {name}: {reason}")]
    Worker {
        /// The worker.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The device gave no transmit queue.
    #[error("{name}: no transmit queue for {worker}: {reason}")]
    Transmit {
        /// The port.
        name: String,
        /// The worker.
        worker: String,
        /// The device's error.
        reason: String,
    },
    /// The bridge still has ports.
    #[error("{0}: bridge still has ports")]
    BridgeInUse(String),
    /// The port is not a patch port.
    #[error("{0}: not a patch port")]
    NotAPatch(String),
    /// The port is not a tunnel port.
    #[error("{0}: not a tunnel port")]
    NotATunnel(String),
    /// Too many mirrors, or an invalid one.
    #[error("mirror {name}: {reason}")]
    Mirror {
        /// The mirror.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A worker did not answer in time; what it still holds is taken back when it does.
    #[error("{what}: {worker} has not answered within {seconds} s")]
    Timeout {
        /// The operation.
        what: String,
        /// The worker that did not answer.
        worker: String,
        /// How long it had, in seconds.
        seconds: u64,
    },
    /// A queue to the workers is full.
    #[error("{0} queue is full")]
    QueueFull(&'static str),
    /// There is no worker.
    #[error("no worker")]
    NoWorker,
    /// There is no worker with this index.
    #[error("there is no worker {0}")]
    NoSuchWorker(usize),
    /// There is no bucket of flows with this number.
    #[error("there is no bucket {0}: they are numbered from 0 to {last}", last = crate::steering::BUCKETS - 1)]
    NoSuchBucket(usize),
    /// The port's device has no indirection table, or one receive queue only.
    #[error("its device has no indirection table, or only one receive queue")]
    NoTable,
    /// The device's indirection table has no entry with this number.
    #[error("the indirection table has no entry {0}")]
    NoSuchEntry(usize),
    /// The port has no receive queue with this index.
    #[error("the port has no receive queue {0}")]
    NoSuchQueue(usize),
    /// More entries than can move at a time.
    #[error("at most {0} entries move at a time")]
    TooManyEntries(usize),
    /// Entries of the device's indirection table are being moved.
    #[error("other entries are being moved; try again")]
    TableIsBusy,
    /// The MAC table is full of static entries.
    #[error("learning table is full of static entries")]
    TableFull,
    /// No thread can be pinned to the processor: it is beyond the largest set of them.
    #[error("there is no CPU {0}")]
    NoSuchCpu(usize),
    /// The kernel does not pin the thread to the processor.
    #[error("cannot run on CPU {cpu}: {reason}")]
    Pin {
        /// The processor.
        cpu: usize,
        /// The system's error.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {reason}")]
    System {
        /// The call.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
}
