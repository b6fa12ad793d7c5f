//! Errors of ports, with the texts for `Interface.error`.

use std::ffi::CStr;

/// Why a port could not be opened or changed. `Display` is the text for `Interface.error`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The interface type is not one that Sluice knows.
    #[error("could not create netdev {name} of unknown type {kind}")]
    UnknownType {
        /// The port's name.
        name: String,
        /// The requested type.
        kind: String,
    },
    /// An option is missing, malformed or out of range; the text names it.
    #[error("{0}")]
    Option(String),
    /// A device could not be opened; Open vSwitch's text.
    #[error("could not open network device {name} ({})", describe(*.errno))]
    Open {
        /// The device.
        name: String,
        /// The system's error number, positive.
        errno: i32,
    },
    /// A device was opened but cannot be a port; Open vSwitch's text.
    #[error("could not add network device {name} to ofproto ({})", describe(*.errno))]
    Add {
        /// The device.
        name: String,
        /// The system's error number, positive.
        errno: i32,
    },
    /// A device that is in use elsewhere, where all its frames go.
    #[error(
        "could not add network device {name} to ofproto ({}): {holder}",
        describe(libc::EBUSY)
    )]
    Held {
        /// The device.
        name: String,
        /// What uses it, in words.
        holder: String,
    },
    /// DPDK does not accept the device arguments.
    #[error("Error attaching device '{devargs}' to DPDK{}", in_brackets(.why))]
    Attach {
        /// The device arguments.
        devargs: String,
        /// DPDK's reason; may be empty.
        why: String,
    },
    /// An operation on a device failed.
    #[error("{name}: {what} failed ({})", describe(*.errno))]
    Device {
        /// The device.
        name: String,
        /// The operation.
        what: String,
        /// The system's error number, positive.
        errno: i32,
    },
    /// A device was stopped for a change and does not start again: the port carries nothing until
    /// it does. Setting its MTU, even to the same value, tries again.
    #[error("{why}; the port is closed")]
    Closed {
        /// What failed, and with which device.
        why: String,
    },
    /// The device does not support the operation.
    #[error("{name}: {what} is not supported")]
    Unsupported {
        /// The device.
        name: String,
        /// The operation.
        what: String,
    },
    /// DPDK's environment could not be set up, or does not exist.
    #[error("{0}")]
    Environment(String),
}

/// Why a device could not be detached from DPDK. `Display` is Open vSwitch's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DetachError {
    /// Ports use the device.
    #[error(
        "Device '{device}' is being used by the following interfaces: {}. \
         Remove them before detaching.", .users.join(" ")
    )]
    InUse {
        /// The device.
        device: String,
        /// The interfaces that use it.
        users: Vec<String>,
    },
    /// DPDK has no such device.
    #[error("Device '{0}' not found in DPDK")]
    NotFound(String),
    /// DPDK does not detach the device.
    #[error("Device '{0}' can not be detached")]
    Failed(String),
}

/// Formats a reason in brackets, if there is one.
fn in_brackets(why: &str) -> String {
    match why {
        "" => String::new(),
        why => format!(" ({why})"),
    }
}

/// Returns the system's text for an error number.
pub fn describe(errno: i32) -> String {
    let mut buffer = [0 as libc::c_char; 128];
    // SAFETY: the buffer is writable for the given length, and strerror_r ends what it writes with
    // a zero.
    let found = unsafe { libc::strerror_r(errno, buffer.as_mut_ptr(), buffer.len()) };
    if found != 0 {
        return format!("error {errno}");
    }
    // SAFETY: strerror_r succeeded, so the buffer holds a string.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

/// Returns the calling thread's last system error (`errno`).
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_open_vswitch() {
        let error = Error::Open {
            name: "veth9".into(),
            errno: libc::ENODEV,
        };
        assert_eq!(
            error.to_string(),
            "could not open network device veth9 (No such device)"
        );
        let attach = |why: &str| Error::Attach {
            devargs: "net_foo".into(),
            why: why.into(),
        };
        assert_eq!(
            attach("").to_string(),
            "Error attaching device 'net_foo' to DPDK"
        );
        assert_eq!(
            attach("no such file").to_string(),
            "Error attaching device 'net_foo' to DPDK (no such file)"
        );
        let error = Error::Held {
            name: "veth9".into(),
            holder: "it is a port of bridge lb0".into(),
        };
        assert_eq!(
            error.to_string(),
            "could not add network device veth9 to ofproto (Device or resource busy): it is a port of bridge lb0"
        );
    }
}
