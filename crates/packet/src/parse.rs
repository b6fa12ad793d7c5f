//! Parses a frame's bytes into a flow key.
//!
//! The common case (Ethernet, at most one VLAN tag, IPv4 without options, whole TCP or UDP header)
//! is recognised by a few compares and written as five words. Everything else goes to `general`,
//! which walks header by header. Invalid packets are read as by Open vSwitch's flow extraction:
//! headers in front of the invalid one count, that one and all behind it are absent.
//!
//! Only the first segment is searched for headers. If one lies beyond it, [`parse`] returns
//! [`Malformed::Split`]; [`parse_frame`] then moves bytes forward and parses again.

mod general;
mod others;
#[cfg(any(test, feature = "reference"))]
pub mod reference;
#[cfg(test)]
pub(crate) mod tests;

use crate::frame::Frame;
use crate::key::{FlowKey, WordSet, at};
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) use general::{ETH_TYPE_MIN, VLAN_PRESENT};
pub use others::{MoreWords, other_words};

/// Bytes of a frame in which headers are searched, as if the packet ended there; this bounds the
/// walk over extension headers and label stacks.
pub const HEADERS_LIMIT: usize = 1024;

/// The words that are filled from the packet's bytes; the others hold metadata and are only
/// cleared.
pub const PACKET_WORDS: WordSet =
    WordSet(WordSet::MINI_KEY.0 | 0x1ff_8000 | 1 << (at::PBB_ISID / 8));

/// Why parsing ended early. The key holds the headers before that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Malformed {
    /// Shorter than an Ethernet header.
    Ethernet,
    /// Ends inside a VLAN tag.
    Vlan,
    /// Ends inside an MPLS label stack.
    Mpls,
    /// Ends inside an ARP packet.
    Arp,
    /// Ends inside the IPv4 header.
    Ipv4Short,
    /// IPv4 header length below 20 bytes or beyond the packet.
    Ipv4HeaderLength,
    /// IPv4 total length beyond the frame or below the header length.
    Ipv4TotalLength,
    /// Ends inside the IPv6 header.
    Ipv6Short,
    /// IPv6 payload length beyond the frame.
    Ipv6PayloadLength,
    /// An IPv6 extension header reaches beyond the payload.
    Ipv6Extension,
    /// A first fragment or whole packet ends inside its transport header.
    Transport,
    /// Headers reach beyond the first segment.
    Split,
    /// Ends inside a PBB service tag or the addresses behind it.
    Pbb,
}

impl Malformed {
    /// Every reason, in order.
    pub const ALL: [Malformed; 13] = [
        Malformed::Ethernet,
        Malformed::Vlan,
        Malformed::Mpls,
        Malformed::Arp,
        Malformed::Ipv4Short,
        Malformed::Ipv4HeaderLength,
        Malformed::Ipv4TotalLength,
        Malformed::Ipv6Short,
        Malformed::Ipv6PayloadLength,
        Malformed::Ipv6Extension,
        Malformed::Transport,
        Malformed::Split,
        Malformed::Pbb,
    ];

    /// Returns the name of its counter.
    pub fn name(self) -> &'static str {
        match self {
            Malformed::Ethernet => "malformed_ethernet",
            Malformed::Vlan => "malformed_vlan",
            Malformed::Mpls => "malformed_mpls",
            Malformed::Arp => "malformed_arp",
            Malformed::Ipv4Short => "malformed_ipv4_short",
            Malformed::Ipv4HeaderLength => "malformed_ipv4_header_length",
            Malformed::Ipv4TotalLength => "malformed_ipv4_total_length",
            Malformed::Ipv6Short => "malformed_ipv6_short",
            Malformed::Ipv6PayloadLength => "malformed_ipv6_payload_length",
            Malformed::Ipv6Extension => "malformed_ipv6_extension",
            Malformed::Transport => "malformed_transport",
            Malformed::Split => "malformed_split",
            Malformed::Pbb => "malformed_pbb",
        }
    }
}

/// Where a packet's layers begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// First byte after the Ethernet header, VLAN tags, LLC/SNAP and MPLS labels; that of a PBB
    /// service tag. 0 in frames shorter than an Ethernet header.
    pub l3: u16,
    /// First byte after the IP header and its extension headers; 0 without a valid IP header.
    pub l4: u16,
    /// First byte after the IP packet (padding may follow); the frame's length without a valid IP
    /// header.
    pub end: u32,
    /// Whether the header of TCP, UDP, SCTP, ICMP, IGMP or ICMPv6 is complete, and its fields are
    /// in the key. False for later fragments.
    pub transport: bool,
    /// VLAN tags read (0 to the limit).
    pub vlans: u8,
    /// Why parsing ended early.
    pub malformed: Option<Malformed>,
}

/// How many VLAN tags are read; the Ethertype behind the last one is not interpreted as a tag.
static VLAN_LIMIT: AtomicU8 = AtomicU8::new(1);

/// Sets how many VLAN tags [`parse`] reads, 1 or 2 (`other_config:vlan-limit`, where 0 means 2).
/// With 1, the default as in Open vSwitch, a packet with two tags has the inner tag's TPID as its
/// Ethertype and no network layer. Values above 2 mean 2.
pub fn set_vlan_limit(limit: u8) {
    let limit = if limit == 0 { 2 } else { limit.min(2) };
    VLAN_LIMIT.store(limit, Ordering::Relaxed);
}

/// Returns how many VLAN tags [`parse`] reads.
pub fn vlan_limit() -> u8 {
    VLAN_LIMIT.load(Ordering::Relaxed)
}

#[inline(always)]
fn load<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().unwrap()
}

/// Ethertypes as little-endian loads read them, and header lengths of the common case.
const IPV4: u16 = 0x0800u16.swap_bytes();
const VLAN: u16 = 0x8100u16.swap_bytes();
const PRESENT: u16 = VLAN_PRESENT.swap_bytes();
pub(crate) const ETHERNET_LEN: usize = 14;
pub(crate) const TAG_LEN: usize = 4;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
/// IPv4 without options and the longest transport header that is loaded at once.
pub(crate) const COMMON_LEN: usize = 20 + 20;
const LOW_48: u64 = 0xffff_ffff_ffff;
/// Words of [`WordSet::MINI_KEY`].
pub const MINI_KEY_WORDS: usize = WordSet::MINI_KEY.len();

/// Fills `key` from the frame whose first segment is `head` and whose length over all segments is
/// `total_len`.
///
/// Always fills [`WordSet::MINI_KEY`]. Of the other words, fills only those in `needed`: from the
/// packet if they are in [`PACKET_WORDS`], else with zero. All others are undefined afterwards.
#[inline]
pub fn parse(
    head: &[u8],
    total_len: usize,
    in_port: u32,
    needed: WordSet,
    key: &mut FlowKey,
) -> Layers {
    let mut layers = Layers::default();
    parse_into(head, total_len, in_port, needed, key, &mut layers);
    layers
}

/// [`parse`] that writes the layers in place: a returned value would be assembled from small stores
/// and copied by a wide load, which must wait for all of them (a third of the time of a burst).
#[inline(always)]
fn parse_into(
    head: &[u8],
    total_len: usize,
    in_port: u32,
    needed: WordSet,
    key: &mut FlowKey,
    layers: &mut Layers,
) {
    match common(head, total_len, in_port, key) {
        Some(found) => {
            *layers = found;
            let others = needed.minus(WordSet::MINI_KEY);
            if !others.is_empty() {
                key.clear(others);
            }
        }
        None => *layers = general::extract(head, total_len, in_port, needed, key, vlan_limit()),
    }
}

/// Parses the common case; None, with the key's first words undefined, for any other packet.
///
/// Words are assembled as little-endian numbers, whose lowest byte is the first in memory; `to_le`
/// makes them native.
#[inline(always)]
fn common(head: &[u8], total_len: usize, in_port: u32, key: &mut FlowKey) -> Option<Layers> {
    let words = key
        .words
        .first_chunk_mut()
        .unwrap_or_else(|| unreachable!());
    let extent = common_words(head, total_len, in_port, words)?;
    Some(extent.layers())
}

/// Network protocol of a packet of a common kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Network {
    /// IPv4 without options.
    #[default]
    Ipv4 = 0,
    /// IPv6 without extension headers.
    Ipv6 = 1,
    /// ARP for Ethernet and IPv4.
    Arp = 2,
}

/// Where the headers of a packet of a common kind ([`mini_key`]) are: enough to derive its
/// [`Layers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Extent {
    /// The first byte behind the Ethernet header and tag, plus 256 times the [`Network`].
    place: u16,
    /// Length of the IP packet; for ARP, of everything behind the Ethernet header and tag.
    pub length: u16,
}

impl Extent {
    /// The extent of a packet of which nothing is known.
    pub const ZERO: Extent = Extent {
        place: 0,
        length: 0,
    };

    /// Makes an extent; `l3` is the first byte behind the Ethernet header and tag.
    #[inline(always)]
    const fn new(l3: usize, network: Network, length: u16) -> Extent {
        Extent {
            place: l3 as u16 | (network as u16) << 8,
            length,
        }
    }

    /// Returns the bytes of an extent, for code that assembles it bytewise.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn bytes(l3: usize, network: Network, length: u16) -> [u8; 4] {
        let extent = Extent::new(l3, network, length);
        let ([a, b], [c, d]) = (extent.place.to_ne_bytes(), length.to_ne_bytes());
        [a, b, c, d]
    }

    /// Returns the layers of a packet that [`mini_key`] has read.
    #[inline(always)]
    pub fn layers(self) -> Layers {
        Layers {
            l3: self.l3(),
            l4: self.l4(),
            end: u32::from(self.l3()) + u32::from(self.length),
            transport: self.network() != Network::Arp,
            vlans: (usize::from(self.l3()) > ETHERNET_LEN) as u8,
            malformed: None,
        }
    }

    /// Returns the first byte of the IP header or ARP packet: 14, or 18 behind a tag.
    #[inline(always)]
    pub fn l3(self) -> u16 {
        self.place & 0xff
    }

    /// Returns the packet's network protocol.
    #[inline(always)]
    pub fn network(self) -> Network {
        match self.place >> 8 {
            0 => Network::Ipv4,
            1 => Network::Ipv6,
            _ => Network::Arp,
        }
    }

    /// Returns the first byte behind the IP header; 0 for ARP.
    #[inline(always)]
    pub fn l4(self) -> u16 {
        match self.network() {
            Network::Ipv4 => self.l3() + IPV4_LEN as u16,
            Network::Ipv6 => self.l3() + IPV6_LEN as u16,
            Network::Arp => 0,
        }
    }

    /// Returns whether the packet is IPv4. Others have fields that the mini key lacks
    /// ([`MoreWords`]).
    #[inline(always)]
    pub fn is_ipv4(self) -> bool {
        self.network() == Network::Ipv4
    }
}

/// Reads the mini key of a packet of the common kinds, by [`common_words`] or [`other_words`].
/// None, with `words` undefined, for any other packet.
#[inline(always)]
pub fn mini_key(
    head: &[u8],
    total_len: usize,
    in_port: u32,
    words: &mut [u64; MINI_KEY_WORDS],
) -> Option<Extent> {
    common_words(head, total_len, in_port, words)
        .or_else(|| other_words(head, total_len, in_port, words))
}

/// An Ethernet header with at most one tag; numbers as little-endian loads read them.
struct Ethernet {
    eth_type: u16,
    /// Includes [`PRESENT`]; 0 without a tag.
    tci: u16,
    /// Offset of the next header.
    l3: usize,
}

/// Reads the Ethernet header of a frame of which at least 18 bytes are available.
#[inline(always)]
fn ethernet(head: &[u8]) -> Ethernet {
    let eth_type = u16::from_le_bytes(load(head, 12));
    if eth_type != VLAN {
        return Ethernet {
            eth_type,
            tci: 0,
            l3: ETHERNET_LEN,
        };
    }
    Ethernet {
        eth_type: u16::from_le_bytes(load(head, 16)),
        tci: u16::from_le_bytes(load(head, 14)) | PRESENT,
        l3: ETHERNET_LEN + TAG_LEN,
    }
}

/// UDP's protocol number.
pub const UDP: u8 = 17;
/// The UDP port of DHCP servers.
pub const DHCP_SERVER: u16 = 67;
/// The UDP port of DHCP clients.
pub const DHCP_CLIENT: u16 = 68;

/// Returns whether a frame that begins with `head` is a DHCP server's message to a client: IPv4
/// behind as many VLAN tags as are read ([`vlan_limit`]) or fewer, UDP, ports 67 and 68.
#[inline]
pub fn is_dhcp_reply(head: &[u8]) -> bool {
    const PORTS: [u8; 4] = [0, DHCP_SERVER as u8, 0, DHCP_CLIENT as u8];
    let type_at = |at: usize| head.get(at..at + 2);
    let is_tag = |at| matches!(type_at(at), Some([0x81, 0x00] | [0x88, 0xa8]));
    let mut at = ETHERNET_LEN - 2;
    for _ in 0..vlan_limit() {
        at += if is_tag(at) { TAG_LEN } else { 0 };
    }
    let l3 = at + 2;
    let Some(ip) = head.get(l3..l3 + IPV4_LEN) else {
        return false;
    };
    let transport = l3 + usize::from(ip[0] & 0xf) * 4;
    type_at(at) == Some(&[0x08, 0x00])
        && ip[9] == UDP
        && head.get(transport..transport + 4) == Some(&PORTS)
}

/// Reads the words of [`WordSet::MINI_KEY`] of a packet of the common case: Ethernet, at most one
/// VLAN tag, IPv4 without options and not a fragment, whole TCP or UDP header. None, with `words`
/// undefined, for any other packet, valid or not.
#[inline(always)]
pub fn common_words(
    head: &[u8],
    total_len: usize,
    in_port: u32,
    words: &mut [u64; MINI_KEY_WORDS],
) -> Option<Extent> {
    if head.len() < ETHERNET_LEN + COMMON_LEN {
        return None;
    }
    let Ethernet { eth_type, tci, l3 } = ethernet(head);
    let packet = head.get(l3..l3 + COMMON_LEN)?;
    // Version and header length, then the fragment word without "don't fragment" and the reserved
    // bit.
    let fragment = u16::from_le_bytes(load(packet, 6)) & 0xff3f;
    if eth_type != IPV4 || packet[0] != 0x45 || fragment != 0 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes(load(packet, 2)));
    let protocol = packet[9];
    let (transport_len, tcp_flags) = match protocol {
        17 => (8, 0),
        6 => {
            let data = usize::from(packet[32] >> 4) * 4;
            if data < 20 || data + 20 > length {
                return None;
            }
            (20, u16::from_le_bytes(load(packet, 32)) & 0xff0f)
        }
        _ => return None,
    };
    // A negative difference wraps to a large one. More than 64 KiB behind the packet is not padding
    // (see `general`).
    let padding = total_len.wrapping_sub(l3 + length);
    if length < 20 + transport_len || padding > 0xffff {
        return None;
    }
    let ports = u64::from(u32::from_le_bytes(load(packet, 20)));
    let read = [
        u64::from(in_port.swap_bytes()) | u64::from(eth_type) << 32 | u64::from(tci) << 48,
        u64::from_le_bytes(load(packet, 12)),
        ports | u64::from(protocol) << 32 | u64::from(packet[1]) << 40 | u64::from(packet[8]) << 48,
        u64::from_le_bytes(load(head, 0)) & LOW_48 | u64::from(tcp_flags) << 48,
        u64::from_le_bytes(load(head, 6)) & LOW_48,
    ];
    for (to, from) in words.iter_mut().zip(read) {
        *to = from.to_le();
    }
    Some(Extent::new(l3, Network::Ipv4, length as u16))
}

/// Parses a frame; linearizes it if its headers are not in the first segment.
#[inline]
pub fn parse_frame<F: Frame>(
    frame: &mut F,
    in_port: u32,
    needed: WordSet,
    key: &mut FlowKey,
) -> Layers {
    let mut layers = Layers::default();
    parse_frame_into(frame, in_port, needed, key, &mut layers);
    layers
}

/// [`parse_frame`] that writes the layers in place.
#[inline(always)]
pub fn parse_frame_into<F: Frame>(
    frame: &mut F,
    in_port: u32,
    needed: WordSet,
    key: &mut FlowKey,
    layers: &mut Layers,
) {
    parse_into(frame.head(), frame.len(), in_port, needed, key, layers);
    if layers.malformed == Some(Malformed::Split) {
        *layers = gather(frame, in_port, needed, key);
    }
}

/// The rare case of [`parse_frame`]. A frame that cannot be linearized stays `Split`.
#[cold]
fn gather<F: Frame>(frame: &mut F, in_port: u32, needed: WordSet, key: &mut FlowKey) -> Layers {
    // The headers of most packets fit the first step; buffers always have room for that much.
    for reach in [256, HEADERS_LIMIT] {
        if frame.head().len() >= reach || !frame.linearize(reach) {
            continue;
        }
        let layers = parse(frame.head(), frame.len(), in_port, needed, key);
        if layers.malformed != Some(Malformed::Split) {
            return layers;
        }
    }
    parse(frame.head(), frame.len(), in_port, needed, key)
}

/// [`parse_frame`] for a frame that has been edited: reads `vlan_limit` tags and fills all of
/// [`PACKET_WORDS`].
#[cold]
pub(crate) fn again<F: Frame>(frame: &mut F, key: &mut FlowKey, vlan_limit: u8) -> Layers {
    let words = PACKET_WORDS.minus(WordSet::MINI_KEY);
    let in_port = key.u32(at::IN_PORT);
    let read = |frame: &F, key: &mut FlowKey| {
        general::extract(frame.head(), frame.len(), in_port, words, key, vlan_limit)
    };
    let layers = read(frame, key);
    if layers.malformed == Some(Malformed::Split) && frame.linearize(HEADERS_LIMIT) {
        return read(frame, key);
    }
    layers
}

/// [`parse_frame`] that reads any number of VLAN tags and goes on behind MPLS labels and PBB
/// headers, for callers that need the innermost layers, not what rules match.
pub(crate) fn innermost<F: Frame>(frame: &mut F, key: &mut FlowKey) -> Layers {
    let all = |frame: &F, key: &mut FlowKey| general::innermost(frame.head(), frame.len(), key);
    let layers = all(frame, key);
    if layers.malformed == Some(Malformed::Split) && frame.linearize(HEADERS_LIMIT) {
        return all(frame, key);
    }
    layers
}

/// [`parse`] with its own limit of tags.
#[cfg(test)]
pub(crate) fn with_limit(
    bytes: &[u8],
    in_port: u32,
    needed: WordSet,
    key: &mut FlowKey,
    vlan_limit: u8,
) -> Layers {
    general::extract(bytes, bytes.len(), in_port, needed, key, vlan_limit)
}

/// How many frames ahead memory is prefetched.
const AHEAD: usize = 4;

/// Runs [`parse_frame`] on all of `frames`, which came in through one port; `keys[n]` and
/// `layers[n]` belong to frame `n`.
///
/// Parses only as many frames as `keys` and `layers` have room for, and returns that number.
pub fn parse_burst<F: Frame>(
    frames: &mut [F],
    in_port: u32,
    needed: WordSet,
    keys: &mut [FlowKey],
    layers: &mut [Layers],
) -> usize {
    let count = frames.len().min(keys.len()).min(layers.len());
    for frame in &frames[..count.min(AHEAD)] {
        prefetch(frame.head());
    }
    for index in 0..count {
        if index + AHEAD < count {
            prefetch(frames[index + AHEAD].head());
        }
        parse_frame_into(
            &mut frames[index],
            in_port,
            needed,
            &mut keys[index],
            &mut layers[index],
        );
    }
    count
}

/// Prefetches the first cache line of `bytes`.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    prefetch_at(bytes.as_ptr());
}

/// Prefetches the cache line at an address, which need not be valid.
#[inline(always)]
pub fn prefetch_at<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect but on the cache; SSE, which it belongs to,
    // is part of x86_64.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
