//! Why rules could not be changed while packets pass.

use super::LIMIT;
use std::io;

/// Why rules could not be changed while packets pass, or nothing was seen of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file of the namespace cannot be opened.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// The namespace cannot be entered.
    #[error("the namespace: {0}")]
    Namespace(io::Error),
    /// An interface gives no socket.
    #[error("{name}: {error}")]
    Interface {
        /// The interface.
        name: String,
        /// Why not.
        error: io::Error,
    },
    /// The connection to the switch fails.
    #[error("OpenFlow: {0}")]
    OpenFlow(io::Error),
    /// The switch has ended the connection.
    #[error("the switch has closed its OpenFlow connection")]
    Closed,
    /// The switch has answered with an error, whose type and code these bytes are.
    #[error("the switch refused a message: type and code {0:?}")]
    Refused(Vec<u8>),
    /// Rules that were added or removed were not confirmed in time.
    #[error("no answer to a barrier within {} s", LIMIT.as_secs())]
    NoBarrier,
    /// What was waited for did not come in time.
    #[error("waited {} s in vain for {}", LIMIT.as_secs(), .0)]
    InVain(Awaited),
    /// The run is to end.
    #[error("the run was ended")]
    Stopped,
    /// The thread that does it has ended early.
    #[error("the thread that changes rules has panicked")]
    Panicked,
}

/// What is waited for after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Awaited {
    /// The answer to the barrier behind it.
    #[error("the answer to a barrier")]
    Barrier,
    /// The first packet that obeys.
    #[error("a packet that obeys the changed rule")]
    Packet,
    /// The answer with the statistics.
    #[error("statistics")]
    Statistics,
}
