//! Tunnel ports: what is sent there gets an outer header and goes on in the underlay's bridge, and
//! what comes to that bridge's local port for a tunnel comes in at the tunnel's port.

use packet::tunnel::TunnelKind;
use std::net::IpAddr;

/// A tunnel port's options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelSpec {
    /// The protocol.
    pub kind: TunnelKind,
    /// UDP destination port; 0 for protocols that are not over UDP.
    pub udp_dst: u16,
    /// The other end. None: packets say it (`remote_ip=flow`), by `tun_dst` or `tun_ipv6_dst`.
    pub remote: Option<IpAddr>,
    /// This end.
    pub local: LocalAddress,
    /// The key of packets that come in by this port.
    pub in_key: TunnelKey,
    /// The key of packets that are sent there.
    pub out_key: TunnelKey,
    /// Outer DSCP (6 bits) and ECN (2 bits, without meaning). None: the inner packet's.
    pub tos: Option<u8>,
    /// Outer TTL or hop limit. None: the inner packet's.
    pub ttl: Option<u8>,
    /// Whether to compute a checksum of UDP or GRE that need not be there.
    pub csum: bool,
    /// Whether outer IPv4 headers say "do not fragment".
    pub df: bool,
    /// Whether GRE and GTP-U headers have a sequence number.
    pub sequence: bool,
    /// What is carried.
    pub carries: Carries,
}

impl TunnelSpec {
    /// A tunnel of this kind to `remote`, with what Open vSwitch has where nothing is said.
    pub fn new(kind: TunnelKind, remote: Option<IpAddr>) -> TunnelSpec {
        TunnelSpec {
            kind,
            udp_dst: kind.udp_port().unwrap_or(0),
            remote,
            local: LocalAddress::Any,
            in_key: TunnelKey::None,
            out_key: TunnelKey::None,
            tos: Some(0),
            ttl: Some(64),
            csum: false,
            df: true,
            sequence: false,
            carries: match kind {
                TunnelKind::Gtpu => Carries::Packets,
                _ => Carries::Frames,
            },
        }
    }
}

/// This end of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LocalAddress {
    /// Any: of packets that are sent it is the one that the route prefers.
    #[default]
    Any,
    /// Packets say it (`local_ip=flow`), by `tun_src` or `tun_ipv6_src`.
    Flow,
    /// This one.
    Address(IpAddr),
}

/// A tunnel's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TunnelKey {
    /// No key, which counts as 0.
    #[default]
    None,
    /// Packets say it, by `tun_id`.
    Flow,
    /// This one.
    Fixed(u64),
}

/// What a tunnel carries (`options:packet_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Carries {
    /// Frames with an Ethernet header (`legacy_l2`).
    #[default]
    Frames,
    /// IP packets without one (`legacy_l3`): it is taken off before they are sent, and one with
    /// zero addresses is put in front of those that come.
    Packets,
}
