//! Why bridges and interfaces of the database cannot exist. The texts are for the log and for the
//! interfaces' `error` columns; where Open vSwitch refuses the same, they are its texts.

use std::collections::BTreeSet;

use super::tunnel::{BadTunnel, Conflict};

/// A bridge that cannot exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BridgeError {
    /// The name is empty or not one for a file; bridges' names become parts of sockets' paths.
    #[error("ignoring bridge with invalid name \"{0}\"")]
    Name(String),
    /// A bridge before it has the same name.
    #[error("bridge {0} specified twice")]
    Twice(String),
    /// Its datapath type does not exist.
    #[error("could not create bridge {name} of unknown datapath type {kind}")]
    DatapathType {
        /// The bridge.
        name: String,
        /// The type.
        kind: String,
    },
}

impl BridgeError {
    /// Returns the column of the row that is wrong.
    pub fn column(&self) -> &'static str {
        match self {
            BridgeError::Name(_) | BridgeError::Twice(_) => "name",
            BridgeError::DatapathType { .. } => "datapath_type",
        }
    }
}

/// An interface that cannot exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// Its bridge cannot exist.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// Its port, named here, has several interfaces.
    #[error("port {0}: bonds are not supported")]
    Bond(String),
    /// Its name belongs to a device that Open vSwitch itself creates.
    #[error("could not create interface {0}, name is reserved")]
    Reserved(String),
    /// Another bridge has an interface of this name.
    #[error(
        "could not add network device {name} to bridge {bridge}: bridge {owner} has it already"
    )]
    Taken {
        /// The interface.
        name: String,
        /// The bridge whose row names it.
        bridge: String,
        /// The bridge that has it.
        owner: String,
    },
    /// Its type is missing here. The text contains that of EAFNOSUPPORT, which is all that Open
    /// vSwitch says, and which tools look for.
    #[error(
        "could not open network device {name} (Address family not supported by protocol): \
         type \"{kind}\" {lack}; there are {}",
        listed(.known)
    )]
    Type {
        /// The interface.
        name: String,
        /// The type.
        kind: String,
        /// Why it is missing.
        lack: Lack,
        /// The types that exist here.
        known: BTreeSet<String>,
    },
    /// Its port, named here, has a VLAN mode that is missing here.
    #[error("port {0}: VLAN mode dot1q-tunnel is not supported")]
    VlanMode(String),
    /// It is a tunnel with unusable options.
    #[error(transparent)]
    Tunnel(#[from] BadTunnel),
    /// It is a tunnel that cannot exist beside another one.
    #[error(transparent)]
    Conflict(#[from] Conflict),
}

/// Why an interface type is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// Only daemons for tests have it.
    #[error("needs a daemon with --enable-dummy")]
    Dummy,
    /// Open vSwitch has it, and this switch lacks it.
    #[error("is not supported yet")]
    NotYet,
    /// There is no such type.
    #[error("does not exist")]
    Unknown,
}

fn listed(types: &BTreeSet<String>) -> String {
    let types: Vec<&str> = types.iter().map(String::as_str).collect();
    types.join(", ")
}
