//! Why a tunnel cannot exist as its row asks. The texts are for the interface's `error` column;
//! where Open vSwitch refuses the same, they are its texts.

use super::{Incoming, packet_type};
use datapath::tunnel::{Carries, TunnelSpec};

/// An interface whose options describe no tunnel that this switch has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {defect}")]
pub struct BadTunnel {
    /// The interface's name.
    pub name: String,
    /// Which of its options is wrong, and how.
    pub defect: Defect,
}

/// What is wrong with a tunnel's options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The key of an option that asks for encryption.
    #[error("options:{0} asks for IPsec, which is not supported yet")]
    Ipsec(&'static str),
    /// `exts` has VXLAN's Generic Protocol Extension.
    #[error("extension 'gpe' is not supported yet")]
    Gpe,
    /// `packet_type` is one that tunnels of this kind cannot carry.
    #[error(
        "{} configured on {kind} tunnel that cannot carry {} traffic",
        packet_type(*.carries),
        layer(*.carries)
    )]
    CannotCarry {
        /// The tunnel's kind.
        kind: &'static str,
        /// What it is to carry.
        carries: Carries,
    },
    /// `packet_type` has a value that does not exist.
    #[error("unknown packet_type '{0}'")]
    PacketType(String),
    /// `remote_ip` is missing or the unspecified address.
    #[error("{kind} type requires valid 'remote_ip' argument")]
    NoRemote {
        /// The tunnel's kind.
        kind: &'static str,
    },
    /// `remote_ip` is not an address. Open vSwitch also says that it is missing, on a second line
    /// that begins with the interface's name.
    #[error("bad {kind} 'remote_ip'\n{name}: {kind} type requires valid 'remote_ip' argument")]
    BadRemote {
        /// The tunnel's kind.
        kind: &'static str,
        /// The interface's name.
        name: String,
    },
    /// `remote_ip` is the address of a group, as written.
    #[error("multicast remote_ip={0} not allowed")]
    Multicast(String),
    /// `local_ip` is `flow` and `remote_ip` is not.
    #[error("{kind} type requires 'remote_ip=flow' with 'local_ip=flow'")]
    LocalFlow {
        /// The tunnel's kind.
        kind: &'static str,
    },
    /// One address is of IPv4 and the other one of IPv6.
    #[error("'remote_ip' and 'local_ip' has to be of the same address family")]
    Families,
}

/// Returns the layer whose packets these are.
fn layer(carries: Carries) -> &'static str {
    match carries {
        Carries::Frames => "L2",
        Carries::Packets => "L3",
    }
}

/// A tunnel that cannot exist beside another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// VXLAN tunnels with and without group policies have the same port.
    #[error(
        "{name}: VXLAN-GBP, and non-VXLAN-GBP tunnels can't be configured on the same dst_port"
    )]
    GroupPolicies {
        /// The refused interface.
        name: String,
    },
    /// Another kind of tunnel has the UDP port.
    #[error("{name}: {kind} cannot have UDP port {port}, which {other_kind} port '{other}' has")]
    UdpPort {
        /// The refused interface.
        name: String,
        /// Its kind.
        kind: &'static str,
        /// The port that it asks for.
        port: u16,
        /// The interface that has the port.
        other: String,
        /// That interface's kind.
        other_kind: &'static str,
    },
    /// Packets of both kinds look the same.
    #[error("{name}: {kind} cannot be told from {other_kind}, which port '{other}' has")]
    Alike {
        /// The refused interface.
        name: String,
        /// Its kind.
        kind: &'static str,
        /// The interface that is there already.
        other: String,
        /// That interface's kind.
        other_kind: &'static str,
    },
    /// Another tunnel receives the same packets.
    #[error(
        "could not add network device {name} to ofproto (File exists): attempting to add \
         tunnel port with same config as port '{other}' ({})",
        Incoming(.spec)
    )]
    SamePackets {
        /// The refused interface.
        name: String,
        /// The interface that receives them already.
        other: String,
        /// What both receive.
        spec: Box<TunnelSpec>,
    },
}
