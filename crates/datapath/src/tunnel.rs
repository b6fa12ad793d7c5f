//! Tunnel ports: frames sent to one get outer headers and continue in the underlay's bridge, and
//! frames that reach that bridge's local port for a tunnel come in at the tunnel's port.

mod arrivals;
mod inner;
mod receive;
mod send;

pub(crate) use arrivals::Arrivals;
pub(crate) use receive::{Over, Protocol, Receivers};
pub(crate) use send::{Asked, Outer, Sending};

use packet::keyed::Keyed;
use packet::tunnel::{Addresses, HeaderSpec, Mapping, Payload, TunnelInfo, TunnelKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use underlay::{Hop, View};

/// A tunnel port's options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelSpec {
    /// The protocol.
    pub kind: TunnelKind,
    /// Destination port of UDP or TCP (STT); 0 for protocols that are over neither.
    pub dst_port: u16,
    /// The remote endpoint. None (`remote_ip=flow`): each packet's `tun_dst` or `tun_ipv6_dst`.
    pub remote: Option<IpAddr>,
    /// The local address.
    pub local: LocalAddress,
    /// Key of packets that come in by this port.
    pub in_key: TunnelKey,
    /// Key of packets that are sent there.
    pub out_key: TunnelKey,
    /// Outer DSCP (6 bits; the 2 ECN bits of the byte are ignored). None: the inner packet's.
    pub tos: Option<u8>,
    /// Outer TTL or hop limit. None: the inner packet's.
    pub ttl: Option<u8>,
    /// Whether to compute the checksum of UDP or GRE where it is optional.
    pub csum: bool,
    /// Whether outer IPv4 headers say "do not fragment".
    pub df: bool,
    /// Whether GRE and GTP-U headers have a sequence number.
    pub sequence: bool,
    /// Kind of inner packets.
    pub carries: Carries,
    /// Mark of packets by which routes are chosen (`egress_pkt_mark`); 0 for none.
    pub mark: u32,
}

impl TunnelSpec {
    /// Returns options of a tunnel of this kind to `remote`, with Open vSwitch's defaults.
    pub fn new(kind: TunnelKind, remote: Option<IpAddr>) -> TunnelSpec {
        TunnelSpec {
            kind,
            dst_port: kind.usual_port().unwrap_or(0),
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
            mark: 0,
        }
    }
}

/// A tunnel's local address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LocalAddress {
    /// Any of the machine's: the route chooses the source of packets that are sent.
    #[default]
    Any,
    /// Each packet's `tun_src` or `tun_ipv6_src` (`local_ip=flow`).
    Flow,
    /// A fixed address.
    Address(IpAddr),
}

/// A tunnel's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TunnelKey {
    /// No key, which counts as 0.
    #[default]
    None,
    /// Each packet's `tun_id` (`key=flow`).
    Flow,
    /// A fixed key.
    Fixed(u64),
}

/// What a tunnel carries (`options:packet_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Carries {
    /// Frames with an Ethernet header (`legacy_l2`).
    #[default]
    Frames,
    /// IP packets without one (`legacy_l3`): it is removed before they are sent, and one with zero
    /// addresses is added to those that come.
    Packets,
}

impl TunnelSpec {
    /// Returns the header for packets that go by this hop to `remote`: frames, where `carried` is
    /// 0, or else packets of this Ethertype. None where the addresses are of different families.
    pub fn header(&self, hop: &Hop, remote: IpAddr, carried: u16) -> Option<HeaderSpec> {
        let addresses = match (hop.source, remote) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 {
                src: src.into(),
                dst: dst.into(),
            },
            (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6 {
                src: src.octets(),
                dst: dst.octets(),
            },
            _ => return None,
        };
        Some(HeaderSpec {
            kind: self.kind,
            payload: match carried {
                0 => Payload::Ethernet,
                eth_type => Payload::Packet(eth_type),
            },
            eth_src: hop.eth_src,
            eth_dst: hop.eth_dst,
            vlan: None,
            addresses,
            dst_port: self.dst_port,
            df: self.df,
            checksum: self.csum,
            key: match self.kind {
                TunnelKind::Gre | TunnelKind::Ip6Gre => self.out_key != TunnelKey::None,
                _ => true,
            },
            sequence: self.sequence,
            mtu: hop.mtu,
        })
    }

    /// Returns the key for a packet with this tunnel metadata.
    pub fn key_of(&self, info: &TunnelInfo) -> u64 {
        match self.out_key {
            TunnelKey::None => 0,
            TunnelKey::Fixed(key) => key,
            TunnelKey::Flow => info.id,
        }
    }

    /// Returns local address (None: the route chooses) and remote endpoint for a packet with this
    /// tunnel metadata. None where neither it nor the tunnel names a remote endpoint.
    pub fn ends_of(&self, info: &TunnelInfo) -> Option<(Option<IpAddr>, IpAddr)> {
        let (src, dst) = match info.addresses {
            Some(Addresses::V4 { src, dst }) => {
                let src = (src != 0).then(|| IpAddr::V4(src.into()));
                (src, Some(IpAddr::V4(dst.into())))
            }
            Some(Addresses::V6 { src, dst }) => {
                let src = (src != [0; 16]).then(|| IpAddr::V6(src.into()));
                (src, Some(IpAddr::V6(dst.into())))
            }
            None => (None, None),
        };
        let local = match self.local {
            LocalAddress::Any => None,
            LocalAddress::Flow => src,
            LocalAddress::Address(address) => Some(address),
        };
        Some((local, self.remote.or(dst)?))
    }

    /// Returns whether packets' tunnel metadata (`tun_*` fields) affect how it sends.
    pub fn reads_packets(&self) -> bool {
        self.remote.is_none()
            || self.local == LocalAddress::Flow
            || self.out_key == TunnelKey::Flow
            || matches!(
                self.kind,
                TunnelKind::Geneve | TunnelKind::Vxlan { gbp: true }
            )
    }
}

/// A tunnel port as workers see it.
#[derive(Debug)]
pub(crate) struct TunnelPort {
    pub spec: TunnelSpec,
    /// Changes whenever anything about the port does: prepared headers are cached under it.
    pub version: u64,
    /// Whether `spec` reads packets' metadata.
    pub reads_packets: bool,
    sequence: AtomicU32,
}

impl TunnelPort {
    pub fn new(spec: TunnelSpec) -> TunnelPort {
        static VERSIONS: AtomicU64 = AtomicU64::new(1);
        TunnelPort {
            version: VERSIONS.fetch_add(1, Ordering::Relaxed),
            reads_packets: spec.reads_packets(),
            sequence: AtomicU32::new(0),
            spec,
        }
    }

    /// Returns the next packet's sequence number.
    pub fn next_sequence(&self) -> u32 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }
}

/// State shared by all tunnels of the switch, as workers see it.
pub(crate) struct Tunnels {
    pub view: Arc<View>,
    pub receivers: Arc<Receivers>,
    /// Key for hashes of flows, which become source ports.
    pub secret: Keyed,
}

/// A bridge's map of Geneve options.
pub(crate) type OptionsOf = Arc<[Mapping]>;

/// Words of the key with a packet's tunnel metadata.
pub(crate) const WORDS: packet::WordSet = TunnelInfo::WORDS.union(packet::tunnel::OPTION_WORDS);
