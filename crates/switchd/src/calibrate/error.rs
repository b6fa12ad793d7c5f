//! Why ports cannot be measured. The texts are for whoever reads the process's standard error.

use std::io;
use std::path::Path;

/// Why ports, or one kind of them, cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Arguments are missing, or there are too many.
    #[error("CAPTURE MEMORY CPU ROUNDS DEVICES [RULES PLAN] are wanted")]
    Arguments,
    /// This argument names a kind of device that cannot be measured.
    #[error("{0}: must be some of dpdk, veth, tap, afxdp and vhost")]
    Devices(String),
    /// This argument is no kind of memory.
    #[error("{0}: must be huge or ordinary")]
    Memory(String),
    /// This argument is not a number.
    #[error("{0}: not a number")]
    Number(String),
    /// This argument is not a plan of ports.
    #[error("{0}: no plan of ports")]
    Plan(String),
    /// The plan sends more packets than there are.
    #[error("the plan has more packets than the capture")]
    PlanTooLong,
    /// The kernel does not give this process a network namespace, which this kind of device needs.
    #[error("{0}: interfaces in a network namespace of its own need root")]
    NoNamespace(&'static str),
    /// A file or a socket cannot be used.
    #[error("{path}: {error}")]
    File {
        /// Where it is.
        path: String,
        /// Why it cannot be used.
        error: io::Error,
    },
    /// A pair of interfaces cannot be made.
    #[error("cannot make a veth pair: {0}")]
    Veth(io::Error),
    /// The other end of a TAP device cannot be used.
    #[error("cannot send on a TAP device: {0}")]
    Tap(io::Error),
    /// The other end of a port is not there in time.
    #[error("the link does not come up")]
    LinkDown,
    /// A kind of device cannot be measured.
    #[error("{device}: {error}")]
    Device {
        /// The kind.
        device: &'static str,
        /// Why not.
        error: Box<Error>,
    },
    /// DPDK or a port fails.
    #[error(transparent)]
    Port(#[from] ports::Error),
    /// The capture or the rules cannot be read, or measuring fails.
    #[error(transparent)]
    Predict(#[from] predict::Error),
    /// The result cannot be written.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// Returns what makes an error of the system one about the file at `path`.
    pub(super) fn file(path: &Path) -> impl Fn(io::Error) -> Error {
        move |error| Error::File {
            path: path.display().to_string(),
            error,
        }
    }
}
