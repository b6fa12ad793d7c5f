//! What encapsulation and decapsulation need from the inner packet: DSCP, ECN, TTL and a hash of
//! its flow. Also adds and removes Ethernet headers of inner packets.

use super::{IPV4, IPV6, Payload};
use crate::checksum::{update_word, write_at};
use crate::frame::Frame;
use crate::key::{FlowKey, at};
use crate::keyed::Keyed;
use crate::parse::ETHERNET_LEN;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

/// ECN bits of the ToS byte (RFC 3168 section 5).
const ECN: u8 = 0x03;
/// ECN: congestion experienced.
const ECN_CE: u8 = 0x03;
/// ECN: capable, ECT(0).
const ECN_ECT_0: u8 = 0x02;

/// UDP source ports of encapsulated packets: Open vSwitch's default range, whose documented end,
/// 61000, it does not use either.
pub const SOURCE_PORTS: std::ops::Range<u16> = 32768..61000;

/// Returns a hash of the packet's flow: of addresses, protocol and, for TCP, UDP and SCTP, ports of
/// IP packets; of the Ethernet addresses and the Ethertype of others. Ports of fragments are left
/// out, so that all fragments of a packet have the same hash.
///
/// `key` must hold [`crate::WordSet::MINI_KEY`], and for IPv6 packets the addresses. `keyed`
/// contains a secret, so peers cannot construct packets with equal hashes. All workers share one
/// `keyed`, so that a flow keeps its source port when its worker changes.
pub fn flow_hash(keyed: &Keyed, key: &FlowKey) -> u32 {
    let mut hasher = keyed.build_hasher();
    let word = |offset: usize| key.u64(offset);
    let eth_type = key.u16(at::ETH_TYPE);
    match eth_type {
        IPV4 => hasher.write_u64(word(at::IPV4_SRC)),
        IPV6 => {
            for offset in [0, 8] {
                hasher.write_u64(word(at::IPV6_SRC + offset));
                hasher.write_u64(word(at::IPV6_DST + offset));
            }
        }
        _ => {
            hasher.write_u64(word(at::ETH_DST) >> 16);
            hasher.write_u64(word(at::ETH_SRC) >> 16 | u64::from(eth_type) << 48);
        }
    }
    if matches!(eth_type, IPV4 | IPV6) {
        let protocol = key.u8(at::IP_PROTO);
        let whole = key.u8(at::IP_FRAG) == 0;
        let ports = if whole && matches!(protocol, 6 | 17 | 132) {
            key.u32(at::TP_SRC)
        } else {
            0
        };
        hasher.write_u64(u64::from(ports) << 8 | u64::from(protocol));
    }
    (hasher.finish() >> 32) as u32
}

/// Returns the [`flow_hash`] of an IPv4 packet that is not a fragment: its addresses as in the
/// header, its ports (0 for protocols without) and its protocol.
#[inline(always)]
pub fn flow_hash_ipv4(keyed: &Keyed, addresses: u64, ports: u32, protocol: u8) -> u32 {
    let mut hasher = keyed.build_hasher();
    hasher.write_u64(addresses);
    hasher.write_u64(u64::from(ports) << 8 | u64::from(protocol));
    (hasher.finish() >> 32) as u32
}

/// Returns the [`flow_hash`] of an IPv6 packet that is not a fragment: its source and destination
/// as in the header, its ports (0 for protocols without) and its protocol.
#[inline(always)]
pub fn flow_hash_ipv6(keyed: &Keyed, addresses: &[u8; 32], ports: u32, protocol: u8) -> u32 {
    let mut hasher = keyed.build_hasher();
    let (words, _) = addresses.as_chunks();
    for at in [0, 2, 1, 3] {
        hasher.write_u64(u64::from_be_bytes(words[at]));
    }
    hasher.write_u64(u64::from(ports) << 8 | u64::from(protocol));
    (hasher.finish() >> 32) as u32
}

/// The range of source ports of all tunnels: its first port, and its end in the upper half.
static CHOSEN_PORTS: AtomicU32 =
    AtomicU32::new(SOURCE_PORTS.start as u32 | (SOURCE_PORTS.end as u32) << 16);

/// Sets the range of UDP source ports for all tunnels (`tnl/egress_port_range`).
pub fn set_source_ports(range: std::ops::Range<u16>) {
    let both = u32::from(range.start) | u32::from(range.end) << 16;
    CHOSEN_PORTS.store(both, Ordering::Relaxed);
}

/// Returns the range that [`set_source_ports`] has set, at first [`SOURCE_PORTS`].
#[inline(always)]
pub fn source_ports() -> std::ops::Range<u16> {
    let both = CHOSEN_PORTS.load(Ordering::Relaxed);
    both as u16..(both >> 16) as u16
}

/// Returns the UDP source port, in [`source_ports`], of packets with this hash.
#[inline(always)]
pub fn source_port(hash: u32) -> u16 {
    let ports = source_ports();
    let count = u64::from(ports.end.saturating_sub(ports.start));
    ports.start + ((u64::from(hash) * count) >> 32) as u16
}

/// Returns the outer DSCP and ECN. The DSCP is that of `configured`, whose ECN bits are ignored, or
/// if that is None, the inner packet's. The ECN is always the inner packet's, with "congestion
/// experienced" replaced by ECT(0), so that an outer CE always comes from inside the tunnel (RFC
/// 3168 section 9.1.1, full-functionality option, as in Open vSwitch; RFC 6040 copies CE). `inner`
/// is None if the inner packet is not IP; it then counts as 0.
pub fn outer_tos(configured: Option<u8>, inner: Option<u8>) -> u8 {
    let inner = inner.unwrap_or(0);
    let ecn = match inner & ECN {
        ECN_CE => ECN_ECT_0,
        ecn => ecn,
    };
    configured.unwrap_or(inner) & !ECN | ecn
}

/// Returns the outer TTL: `configured`, else the inner packet's, else (inner packet not IP) 64,
/// Open vSwitch's default.
pub fn outer_ttl(configured: Option<u8>, inner: Option<u8>) -> u8 {
    configured.or(inner).unwrap_or(64)
}

/// Returns whether an outer header says "congestion experienced".
pub(super) fn is_congested(tos: u8) -> bool {
    tos & ECN == ECN_CE
}

/// Fields of an inner packet's IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InnerIp {
    /// First byte of the IP header, from the start of the frame.
    pub place: usize,
    /// Whether it is an IPv6 header.
    pub ipv6: bool,
    /// DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
}

impl InnerIp {
    /// Finds the IP header of the packet in the frame's bytes `start..end`, directly or behind an
    /// Ethernet header and at most two VLAN tags. None if there is no complete one.
    pub fn find(frame: &impl Frame, start: usize, end: usize, payload: Payload) -> Option<InnerIp> {
        let number = |at: usize| {
            let mut bytes = [0; 2];
            frame
                .read_at(at, &mut bytes)
                .then_some(u16::from_be_bytes(bytes))
        };
        let (eth_type, place) = match payload {
            Payload::Packet(eth_type) => (eth_type, start),
            Payload::Ethernet => {
                let mut place = start + ETHERNET_LEN;
                let mut eth_type = number(place - 2)?;
                for _ in 0..2 {
                    if matches!(eth_type, 0x8100 | 0x88a8) {
                        place += 4;
                        eth_type = number(place - 2)?;
                    }
                }
                (eth_type, place)
            }
        };
        let (ipv6, length) = match eth_type {
            IPV4 => (false, 20),
            IPV6 => (true, 40),
            _ => return None,
        };
        let mut header = [0; 9];
        if place + length > end || !frame.read_at(place, &mut header) {
            return None;
        }
        let (tos, ttl) = match (ipv6, header[0] >> 4) {
            (false, 4) => (header[1], header[8]),
            (true, 6) => (header[0] << 4 | header[1] >> 4, header[7]),
            _ => return None,
        };
        Some(InnerIp {
            place,
            ipv6,
            tos,
            ttl,
        })
    }

    /// Returns whether the packet's endpoints support ECN.
    pub(super) fn is_ecn_capable(&self) -> bool {
        self.tos & ECN != 0
    }

    /// Sets "congestion experienced" in the packet. An IPv4 header's checksum is updated; if it was
    /// wrong, it stays wrong.
    pub(super) fn mark_congestion(&self, frame: &mut impl Frame) {
        let mut header = [0; 12];
        let known = if self.ipv6 { 2 } else { 12 };
        if !frame.read_at(self.place, &mut header[..known]) {
            return;
        }
        if self.ipv6 {
            header[1] |= ECN_CE << 4;
        } else {
            let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
            let old = word(header[0], header[1]);
            header[1] |= ECN_CE;
            let checksum = word(header[10], header[11]);
            let checksum = update_word(checksum, old, word(header[0], header[1]));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        write_at(frame, self.place, &header[..known]);
    }
}

/// Removes the first `l3` bytes, an Ethernet header with tags, for tunnels that carry bare packets.
/// Returns false, and changes nothing, if the first segment is shorter or a checksum is still to be
/// computed over some of these bytes.
pub fn strip_ethernet(frame: &mut impl Frame, l3: usize) -> bool {
    let mut offload = frame.offload();
    if offload.partial_checksum {
        let start = usize::from(offload.csum_start).checked_sub(l3);
        let Some(start) = start.and_then(|start| u16::try_from(start).ok()) else {
            return false;
        };
        offload.csum_start = start;
    }
    if !frame.pull_front(l3) {
        return false;
    }
    frame.set_offload(offload);
    true
}

/// Puts an Ethernet header in front of a packet without one. Returns false, and changes nothing, if
/// there is no room.
pub fn add_ethernet(frame: &mut impl Frame, dst: [u8; 6], src: [u8; 6], eth_type: u16) -> bool {
    let mut offload = frame.offload();
    if offload.partial_checksum {
        let Some(start) = offload.csum_start.checked_add(ETHERNET_LEN as u16) else {
            return false;
        };
        offload.csum_start = start;
    }
    if !frame.push_front(ETHERNET_LEN) {
        return false;
    }
    let header = &mut frame.head_mut()[..ETHERNET_LEN];
    header[..6].copy_from_slice(&dst);
    header[6..12].copy_from_slice(&src);
    header[12..].copy_from_slice(&eth_type.to_be_bytes());
    frame.set_offload(offload);
    true
}
