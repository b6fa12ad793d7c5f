//! Checks, reads and removes the outer headers of received frames.
//!
//! Every length is checked against what encloses it before it is used, so that an inner packet
//! never extends beyond its outer packet, nor that beyond the frame.

use super::{
    Addresses, ETHERNET_BRIDGING, GBP_FLAGS, GENEVE_OAM, GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE,
    GTPU_EXTENSION, GTPU_G_PDU, GTPU_OPTIONAL, GTPU_VERSION, GTPU_VERSION_MASK, GeneveOptions,
    IPV4, IPV6, InnerIp, Payload, TunnelFlags, TunnelInfo, TunnelKind, UDP_LEN, VXLAN_GBP,
    VXLAN_VNI, inner, stt,
};
use crate::checksum::{self, Sum};
use crate::frame::{Frame, Gso, Offload};
use crate::parse::{ETH_TYPE_MIN, ETHERNET_LEN, HEADERS_LIMIT, IPV4_LEN, IPV6_LEN, TAG_LEN};

/// Length of the header of VXLAN and GTP-U, and of Geneve without options.
const TUNNEL_LEN: usize = 8;

/// Why a tunnel refuses a frame, which is then dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("{}", self.name())]
#[repr(u8)]
pub enum Reason {
    /// Ends inside an outer header.
    Short,
    /// Not a packet of this tunnel's protocol: another Ethertype, IP version or protocol number.
    Protocol,
    /// IPv4 header with a wrong version or length, or an outer IP packet longer than the frame.
    Ip,
    /// Wrong IPv4 header checksum.
    IpChecksum,
    /// An IP fragment, or a segment of a longer STT frame: these are to be reassembled first.
    Fragment,
    /// IPv6 extension headers extend beyond the packet, or there are more than are searched.
    Ipv6Extension,
    /// UDP length below 8 bytes or beyond the IP packet.
    UdpLength,
    /// Wrong checksum of UDP, TCP (STT) or GRE.
    Checksum,
    /// Invalid flags or version in the tunnel's header.
    Flags,
    /// GTP-U length below that of its header or beyond the UDP packet; STT segment without bytes or
    /// beyond its STT frame, or STT frame shorter than its header.
    Length,
    /// Geneve options or GTP-U extension headers that extend beyond the packet or the first
    /// [`HEADERS_LIMIT`] bytes, or an option whose length is not that of the bridge's map.
    Options,
    /// A critical Geneve option that the bridge's map lacks.
    CriticalOption,
    /// Carries a payload that the tunnel cannot pass to a bridge.
    Payload,
    /// The inner packet is shorter than its first header.
    InnerShort,
    /// The outer packet is still to be segmented.
    Segment,
    /// The frame's partial checksum is neither the outer UDP header's nor inside the inner packet.
    PartialChecksum,
    /// The outer header says "congestion experienced", and the inner packet's endpoints do not
    /// support ECN.
    Congestion,
    /// No memory to move headers into the first segment.
    NoBuffer,
    /// What an STT header says of the inner packet's checksum and segmentation is not so.
    Offload,
}

impl Reason {
    /// Every reason, in order.
    pub const ALL: [Reason; 19] = [
        Reason::Short,
        Reason::Protocol,
        Reason::Ip,
        Reason::IpChecksum,
        Reason::Fragment,
        Reason::Ipv6Extension,
        Reason::UdpLength,
        Reason::Checksum,
        Reason::Flags,
        Reason::Length,
        Reason::Options,
        Reason::CriticalOption,
        Reason::Payload,
        Reason::InnerShort,
        Reason::Segment,
        Reason::PartialChecksum,
        Reason::Congestion,
        Reason::NoBuffer,
        Reason::Offload,
    ];

    /// Returns the name of its counter.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Short => "tunnel_short",
            Reason::Protocol => "tunnel_protocol",
            Reason::Ip => "tunnel_ip",
            Reason::IpChecksum => "tunnel_ip_checksum",
            Reason::Fragment => "tunnel_fragment",
            Reason::Ipv6Extension => "tunnel_ipv6_extension",
            Reason::UdpLength => "tunnel_udp_length",
            Reason::Checksum => "tunnel_checksum",
            Reason::Flags => "tunnel_flags",
            Reason::Length => "tunnel_length",
            Reason::Options => "tunnel_options",
            Reason::CriticalOption => "tunnel_critical_option",
            Reason::Payload => "tunnel_payload",
            Reason::InnerShort => "tunnel_inner_short",
            Reason::Segment => "tunnel_segment",
            Reason::PartialChecksum => "tunnel_partial_checksum",
            Reason::Congestion => "tunnel_congestion",
            Reason::NoBuffer => "tunnel_no_buffer",
            Reason::Offload => "tunnel_offload",
        }
    }
}

/// What a frame's outer headers say, and where its inner packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decapsulated {
    /// What the outer headers say.
    pub info: TunnelInfo,
    /// What the inner packet is.
    pub payload: Payload,
    /// First byte of the inner packet, from the start of the frame; all bytes before it are in the
    /// first segment. 0 if the frame is to stay as it is: a GTP-U message other than a user's
    /// packet, which Open vSwitch also passes to the bridge with its outer headers.
    pub start: usize,
    /// The byte after its last one, at most the frame's length.
    pub end: usize,
    /// Where Geneve options begin and end.
    options: (u16, u16),
    /// Whether an STT header ends at `start`: it says what is left to do to the inner frame.
    is_stt: bool,
}

impl Decapsulated {
    pub(super) fn of_stt(info: TunnelInfo, start: usize, end: usize) -> Decapsulated {
        Decapsulated {
            info,
            payload: Payload::Ethernet,
            start,
            end,
            options: (0, 0),
            is_stt: true,
        }
    }

    /// Returns the Geneve options of the parsed frame, before [`decapsulate`]; none for other
    /// kinds.
    pub fn options<'f>(&self, frame: &'f impl Frame) -> GeneveOptions<'f> {
        let range = usize::from(self.options.0)..usize::from(self.options.1);
        let bytes = frame.head().get(range).unwrap_or_default();
        GeneveOptions::new(bytes).unwrap_or_default()
    }
}

/// Where the outer IP packet's payload begins and ends.
#[derive(Clone, Copy)]
pub(super) struct Outer {
    /// First byte behind the IP header.
    pub l4: usize,
    /// The byte after the IP packet.
    pub end: usize,
}

/// Reads the outer headers of a frame that was received for a tunnel of this kind: Ethernet with at
/// most two VLAN tags, IPv4 (options, which Open vSwitch refuses, are skipped) or IPv6, UDP or GRE,
/// and the tunnel's own. The destination port is not checked: the caller has chosen the kind by it.
///
/// Moves headers into the first segment if necessary; changes nothing else.
///
/// A UDP checksum is verified unless it is 0 (also over IPv6, RFC 6935) or `Offload` says that it
/// is valid; a GRE checksum always, since devices do not verify it. Neither is verified while a
/// checksum of the frame, outer or inner, is still partial: then the bytes have not left this host.
pub fn parse<F: Frame>(frame: &mut F, kind: TunnelKind) -> Result<Decapsulated, Reason> {
    let mut found = Decapsulated::default();
    parse_into(frame, kind, &mut found)?;
    Ok(found)
}

/// Length of the headers in front of the inner frame of most VXLAN and Geneve packets: Ethernet,
/// IPv4 without options, UDP, 8 bytes of the tunnel's own.
const COMMON: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN + 8;

/// What the outer headers of most packets say ([`parse_quick`]), in a few words: writing and
/// reading those of a [`Decapsulated`] takes longer than parsing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usual {
    /// The key: a VNI (24 bits).
    pub id: u32,
    /// Outer IPv4 source.
    pub src: u32,
    /// Outer IPv4 destination.
    pub dst: u32,
    /// First byte of the inner frame, which ends with the outer one.
    start: u16,
    flags: TunnelFlags,
    tos: u8,
    ttl: u8,
}

impl Usual {
    /// Returns what the outer headers say.
    #[inline]
    pub fn info(&self) -> TunnelInfo {
        TunnelInfo {
            id: u64::from(self.id),
            addresses: Some(Addresses::V4 {
                src: self.src,
                dst: self.dst,
            }),
            flags: self.flags,
            tos: self.tos,
            ttl: self.ttl,
            ..TunnelInfo::default()
        }
    }

    /// Returns the same as [`parse`] has it; `frame` is the parsed one, and `kind` its tunnel's.
    pub fn decapsulated(&self, frame: &impl Frame, kind: TunnelKind) -> Decapsulated {
        Decapsulated {
            info: self.info(),
            payload: Payload::Ethernet,
            start: self.start.into(),
            end: frame.len(),
            options: match kind {
                TunnelKind::Geneve => (COMMON as u16, self.start),
                _ => (0, 0),
            },
            is_stt: false,
        }
    }

    /// Whether there are Geneve options.
    #[inline(always)]
    pub fn has_options(&self) -> bool {
        usize::from(self.start) > COMMON
    }

    /// Returns the Geneve options of the parsed frame, before [`Usual::remove`].
    #[inline]
    pub fn options<'f>(&self, frame: &'f impl Frame) -> GeneveOptions<'f> {
        let bytes = frame.head().get(COMMON..usize::from(self.start));
        GeneveOptions::new(bytes.unwrap_or_default()).unwrap_or_default()
    }

    /// Whether the outer header says "congestion experienced".
    #[inline(always)]
    pub fn is_congested(&self) -> bool {
        inner::is_congested(self.tos)
    }

    /// Propagates congestion to the parsed frame's inner packet, as [`decapsulate`] does, where the
    /// outer header [says so](Usual::is_congested); to be done before [`Usual::remove`].
    #[cold]
    pub fn carry_congestion<F: Frame>(&self, frame: &mut F) -> Result<(), Reason> {
        let (start, end) = (self.start.into(), frame.len());
        carry_congestion(frame, start, end, Payload::Ethernet)
    }

    /// Removes the outer headers from the parsed frame; what is in them does not matter any more.
    #[inline(always)]
    pub fn remove<F: Frame>(&self, frame: &mut F) {
        frame.pull_front(self.start.into());
        frame.set_offload(Offload::default());
    }
}

/// [`parse`] for most packets: VXLAN or Geneve over IPv4, unfragmented, without options of IP,
/// headers in one segment, no offload work. Returns None for all others, valid or not.
#[inline(always)]
pub fn parse_quick<F: Frame>(frame: &F, kind: TunnelKind) -> Option<Usual> {
    let offload = frame.offload();
    if offload.partial_checksum || offload.gso != Gso::None {
        return None;
    }
    let head = frame.head().first_chunk::<{ COMMON + ETHERNET_LEN }>()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let double = |at: usize| u32_at(head, at);
    // The first four bytes of the tunnel's header: only flags. Geneve's number of options, and
    // whether one is critical, do not matter yet.
    let (wanted, ignored) = match kind {
        TunnelKind::Vxlan { .. } => (u32::from(VXLAN_VNI) << 24, 0),
        TunnelKind::Geneve => {
            let ignored = [0x3f, super::GENEVE_CRITICAL, 0, 0];
            (
                u32::from(super::ETHERNET_BRIDGING),
                u32::from_be_bytes(ignored),
            )
        }
        _ => return None,
    };
    let mut start = COMMON;
    if kind == TunnelKind::Geneve {
        start += usize::from(head[COMMON - 8] & 0x3f) * 4;
        if start != COMMON {
            let bytes = frame.head().get(COMMON..start);
            if bytes.and_then(GeneveOptions::new).is_none()
                || frame.head().len() < start + ETHERNET_LEN
            {
                return None;
            }
        }
    }
    let (total, fragment) = (usize::from(word(16)), word(20));
    let common = head[12..15] == [0x08, 0x00, 0x45]
        && total + ETHERNET_LEN == frame.len()
        && fragment & 0x3fff == 0
        && head[23] == super::UDP
        && usize::from(word(38)) + IPV4_LEN == total
        && double(42) & !ignored == wanted
        && head[49] == 0;
    let ip = head[ETHERNET_LEN..].first_chunk::<IPV4_LEN>()?;
    // One word after the other, without a loop.
    let (words, _) = ip.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    if !common || !checksum::is_sound(sum) {
        return None;
    }
    let has_checksum = word(40) != 0;
    if has_checksum && !offload.checksum_valid {
        let mut sum = Sum::new();
        sum.add_u32(double(26));
        sum.add_u32(double(30));
        sum.add_u16(super::UDP.into());
        sum.add_u16(word(38));
        sum.add_u16(checksum::frame_sum(frame, COMMON - 16, frame.len()));
        if sum.fold() != 0xffff {
            return None;
        }
    }
    let mut flags = TunnelFlags::KEY;
    flags.set(TunnelFlags::DF, fragment & 0x4000 != 0);
    flags.set(TunnelFlags::CSUM, has_checksum);
    Some(Usual {
        id: double(46) >> 8,
        src: double(26),
        dst: double(30),
        start: start as u16,
        flags,
        tos: head[15],
        ttl: head[22],
    })
}

/// [`parse`] that writes its result to `found`, which is undefined after an error. A returned value
/// would be assembled by small stores and copied by wide loads, which must wait for all of them:
/// some ten cycles per packet.
#[inline]
pub fn parse_into<F: Frame>(
    frame: &mut F,
    kind: TunnelKind,
    found: &mut Decapsulated,
) -> Result<(), Reason> {
    // A frame with an inner partial checksum is segmented inside the tunnel later. If outer packets
    // were to be segmented, only the first segment would have the tunnel's header.
    if kind == TunnelKind::Stt {
        *found = stt::Segment::read(frame)?.open(frame)?;
        return Ok(());
    }
    let whole = frame.offload().gso != Gso::None;
    if whole && !frame.offload().partial_checksum {
        return Err(Reason::Segment);
    }
    *found = Decapsulated::default();
    let outer = outer(frame, kind, &mut found.info)?;
    found.end = outer.end;
    let tunnel = if kind.is_udp() {
        found.end = udp(frame, outer, &mut found.info)?;
        outer.l4 + UDP_LEN
    } else {
        outer.l4
    };
    match kind {
        TunnelKind::Vxlan { gbp } => vxlan(frame, tunnel, gbp, found)?,
        TunnelKind::Geneve => geneve(frame, tunnel, found)?,
        TunnelKind::Gtpu => gtpu(frame, tunnel, found)?,
        TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Nvgre => {
            gre(frame, tunnel, kind, found)?;
        }
        TunnelKind::Stt => return Err(Reason::Protocol), // read above
    }
    let offload = frame.offload();
    if offload.partial_checksum {
        let from = usize::from(offload.csum_start);
        if whole && from < found.start {
            return Err(Reason::Segment);
        }
        if from < found.start && from != outer.l4 || from >= found.end {
            return Err(Reason::PartialChecksum);
        }
    }
    let least = match found.payload {
        Payload::Ethernet => ETHERNET_LEN,
        Payload::Packet(_) => 1,
    };
    if found.end < found.start + least {
        return Err(Reason::InnerShort);
    }
    Ok(())
}

/// Returns the frame's first `len` bytes, moved into its first segment if necessary.
#[inline(always)]
pub(super) fn head<F: Frame>(frame: &mut F, len: usize) -> Result<&[u8], Reason> {
    if frame.head().len() < len {
        gather(frame, len)?;
    }
    frame.head().get(..len).ok_or(Reason::Short)
}

#[cold]
fn gather<F: Frame>(frame: &mut F, len: usize) -> Result<(), Reason> {
    if frame.len() < len {
        return Err(Reason::Short);
    }
    if frame.linearize(len) {
        Ok(())
    } else {
        Err(Reason::NoBuffer)
    }
}

#[inline(always)]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads Ethernet and IP headers.
#[inline(always)]
pub(super) fn outer<F: Frame>(
    frame: &mut F,
    kind: TunnelKind,
    info: &mut TunnelInfo,
) -> Result<Outer, Reason> {
    let mut l3 = ETHERNET_LEN;
    let mut eth_type = u16_at(head(frame, l3)?, l3 - 2);
    for _ in 0..2 {
        if matches!(eth_type, 0x8100 | 0x88a8) {
            l3 += TAG_LEN;
            eth_type = u16_at(head(frame, l3)?, l3 - 2);
        }
    }
    match eth_type {
        IPV4 if kind.allows(false) => ipv4(frame, l3, kind.ip_protocol(), info),
        IPV6 if kind.allows(true) => ipv6(frame, l3, kind.ip_protocol(), info),
        _ => Err(Reason::Protocol),
    }
}

#[inline(always)]
fn ipv4<F: Frame>(
    frame: &mut F,
    l3: usize,
    protocol: u8,
    info: &mut TunnelInfo,
) -> Result<Outer, Reason> {
    let first = head(frame, l3 + IPV4_LEN)?[l3];
    let header_len = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header_len < IPV4_LEN {
        return Err(Reason::Ip);
    }
    let frame_len = frame.len();
    let ip = &head(frame, l3 + header_len)?[l3..];
    let total = usize::from(u16_at(ip, 2));
    if total < header_len || l3 + total > frame_len {
        return Err(Reason::Ip);
    }
    if header_sum(ip) != 0xffff {
        return Err(Reason::IpChecksum);
    }
    let fragment = u16_at(ip, 6);
    if fragment & 0x3fff != 0 {
        return Err(Reason::Fragment);
    }
    if ip[9] != protocol {
        return Err(Reason::Protocol);
    }
    info.addresses = Some(Addresses::V4 {
        src: u32_at(ip, 12),
        dst: u32_at(ip, 16),
    });
    (info.tos, info.ttl) = (ip[1], ip[8]);
    info.flags.set(TunnelFlags::DF, fragment & 0x4000 != 0);
    Ok(Outer {
        l4: l3 + header_len,
        end: l3 + total,
    })
}

/// Returns the sum over an IPv4 header; most have no options.
#[inline(always)]
fn header_sum(header: &[u8]) -> u16 {
    let mut sum = Sum::new();
    match <&[u8; IPV4_LEN]>::try_from(header) {
        Ok(header) => sum.add_bytes(header),
        Err(_) => sum.add_bytes(header),
    }
    sum.fold()
}

fn ipv6<F: Frame>(
    frame: &mut F,
    l3: usize,
    protocol: u8,
    info: &mut TunnelInfo,
) -> Result<Outer, Reason> {
    let frame_len = frame.len();
    let ip = &head(frame, l3 + IPV6_LEN)?[l3..];
    let end = l3 + IPV6_LEN + usize::from(u16_at(ip, 4));
    if ip[0] >> 4 != 6 || end > frame_len {
        return Err(Reason::Ip);
    }
    let address = |at: usize| {
        let mut address = [0; 16];
        address.copy_from_slice(&ip[at..at + 16]);
        address
    };
    info.addresses = Some(Addresses::V6 {
        src: address(8),
        dst: address(24),
    });
    (info.tos, info.ttl) = (ip[0] << 4 | ip[1] >> 4, ip[7]);
    let mut outer = Outer {
        l4: l3 + IPV6_LEN,
        end,
    };
    let mut next = ip[6];
    while next != protocol {
        (next, outer.l4) = extension(frame, next, outer.l4, end)?;
    }
    Ok(outer)
}

/// Skips an IPv6 extension header; returns the protocol and offset of what follows. Linux's GRE
/// puts one in front of its own header, which limits nested tunnels (RFC 2473 section 4.1.1).
#[cold]
fn extension<F: Frame>(
    frame: &mut F,
    kind: u8,
    at: usize,
    end: usize,
) -> Result<(u8, usize), Reason> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    if !matches!(kind, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
        return Err(Reason::Protocol);
    }
    // Each has at least 8 bytes, so this bounds their number, too.
    if at + 8 > end.min(HEADERS_LIMIT) {
        return Err(Reason::Ipv6Extension);
    }
    let header = &head(frame, at + 8)?[at..];
    let next = header[0];
    if kind == FRAGMENT {
        // A whole packet may have such a header (RFC 6946).
        if u16_at(header, 2) & 0xfff9 != 0 {
            return Err(Reason::Fragment);
        }
        return Ok((next, at + 8));
    }
    // While segments are left, the destination address is not the final one (RFC 8200 section 4.4).
    if kind == ROUTING && header[3] != 0 {
        return Err(Reason::Protocol);
    }
    let behind = at + (usize::from(header[1]) + 1) * 8;
    if behind > end.min(HEADERS_LIMIT) {
        return Err(Reason::Ipv6Extension);
    }
    Ok((next, behind))
}

/// Checks the UDP header and returns where the UDP packet ends.
#[inline(always)]
fn udp<F: Frame>(frame: &mut F, outer: Outer, info: &mut TunnelInfo) -> Result<usize, Reason> {
    let l4 = outer.l4;
    if l4 + UDP_LEN > outer.end {
        return Err(Reason::Short);
    }
    let header = &head(frame, l4 + UDP_LEN)?[l4..];
    let length = u16_at(header, 4);
    let checksum = u16_at(header, 6);
    let end = l4 + usize::from(length);
    if usize::from(length) < UDP_LEN || end > outer.end {
        return Err(Reason::UdpLength);
    }
    let offload = frame.offload();
    if checksum == 0 && !offload.partial_checksum {
        return Ok(end);
    }
    // The outer header's own partial checksum may be 0 by chance.
    if checksum != 0 || usize::from(offload.csum_start) == l4 {
        info.flags |= TunnelFlags::CSUM;
    }
    if offload.checksum_valid || offload.partial_checksum {
        return Ok(end);
    }
    let mut sum = Sum::new();
    match &info.addresses {
        Some(Addresses::V4 { src, dst }) => {
            sum.add_u32(*src);
            sum.add_u32(*dst);
        }
        Some(Addresses::V6 { src, dst }) => {
            sum.add_bytes(src);
            sum.add_bytes(dst);
        }
        None => {}
    }
    sum.add_u16(super::UDP.into());
    sum.add_u16(length);
    sum.add_u16(checksum::frame_sum(frame, l4, end));
    if sum.fold() == 0xffff {
        Ok(end)
    } else {
        Err(Reason::Checksum)
    }
}

/// Returns the tunnel's header, of `len` bytes at `at`, if the packet contains all of it.
#[inline(always)]
pub(super) fn header<F: Frame>(
    frame: &mut F,
    at: usize,
    len: usize,
    end: usize,
) -> Result<&[u8], Reason> {
    if at + len > end {
        return Err(Reason::Short);
    }
    Ok(&head(frame, at + len)?[at..])
}

/// Reads VXLAN (RFC 7348 section 5). As in Open vSwitch, reserved bits must be zero.
#[inline(always)]
fn vxlan<F: Frame>(
    frame: &mut F,
    at: usize,
    gbp: bool,
    found: &mut Decapsulated,
) -> Result<(), Reason> {
    let bytes = header(frame, at, TUNNEL_LEN, found.end)?;
    let (flags, vni) = (u32_at(bytes, 0), u32_at(bytes, 4));
    let mut allowed = u32::from(VXLAN_VNI) << 24;
    let extension = u32::from(VXLAN_GBP) << 24;
    if gbp && flags & extension != 0 {
        found.info.gbp_id = flags as u16;
        found.info.gbp_flags = (flags >> 16) as u8 & GBP_FLAGS;
        allowed |= extension | u32::from(GBP_FLAGS) << 16 | 0xffff;
    }
    let needed = u32::from(VXLAN_VNI) << 24;
    if flags & needed == 0 || flags & !allowed != 0 || vni & 0xff != 0 {
        return Err(Reason::Flags);
    }
    set_id(found, vni >> 8);
    found.start = at + TUNNEL_LEN;
    Ok(())
}

/// Reads Geneve (RFC 8926 section 3.4).
fn geneve<F: Frame>(frame: &mut F, at: usize, found: &mut Decapsulated) -> Result<(), Reason> {
    let bytes = header(frame, at, TUNNEL_LEN, found.end)?;
    let (version, length) = (bytes[0] >> 6, usize::from(bytes[0] & 0x3f) * 4);
    let (flags, protocol, vni) = (bytes[1], u16_at(bytes, 2), u32_at(bytes, 4));
    if version != 0 {
        return Err(Reason::Flags);
    }
    if protocol != ETHERNET_BRIDGING {
        return Err(Reason::Payload);
    }
    let from = at + TUNNEL_LEN;
    let options = header(frame, from, length, found.end).map_err(|reason| match reason {
        Reason::Short => Reason::Options,
        other => other,
    })?;
    if GeneveOptions::new(options).is_none() {
        return Err(Reason::Options);
    }
    if flags & GENEVE_OAM != 0 {
        found.info.flags |= TunnelFlags::OAM;
    }
    set_id(found, vni >> 8);
    found.start = from + length;
    // Fits 16 bits: `HEADERS_LIMIT` bounds the extension headers, and little precedes them.
    found.options = (from as u16, found.start as u16);
    Ok(())
}

/// Reads GRE (RFC 2784, RFC 2890) and NVGRE (RFC 7637 section 3.2).
fn gre<F: Frame>(
    frame: &mut F,
    at: usize,
    kind: TunnelKind,
    found: &mut Decapsulated,
) -> Result<(), Reason> {
    let bytes = header(frame, at, 4, found.end)?;
    let (flags, protocol) = (u16_at(bytes, 0), u16_at(bytes, 2));
    let known = match kind {
        TunnelKind::Nvgre => flags == GRE_KEY,
        _ => flags & !(GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE) == 0,
    };
    if !known {
        return Err(Reason::Flags);
    }
    let mut length = 4;
    let mut field = |flag: u16| {
        let at = length;
        length += if flags & flag != 0 { 4 } else { 0 };
        (flags & flag != 0).then_some(at)
    };
    let checksum = field(GRE_CHECKSUM);
    let key = field(GRE_KEY);
    field(GRE_SEQUENCE);
    let bytes = header(frame, at, length, found.end)?;
    if let Some(key) = key {
        let key = u32_at(bytes, key);
        let id = if kind == TunnelKind::Nvgre {
            key >> 8
        } else {
            key
        };
        set_id(found, id);
    }
    if checksum.is_some() {
        found.info.flags |= TunnelFlags::CSUM;
        let is_done = frame.offload().partial_checksum;
        if !is_done && checksum::frame_sum(frame, at, found.end) != 0xffff {
            return Err(Reason::Checksum);
        }
    }
    found.payload = match protocol {
        ETHERNET_BRIDGING => Payload::Ethernet,
        eth_type if eth_type >= ETH_TYPE_MIN && kind != TunnelKind::Nvgre => {
            Payload::Packet(eth_type)
        }
        _ => return Err(Reason::Payload),
    };
    found.start = at + length;
    Ok(())
}

/// Reads GTP-U (TS 29.281 section 5). The first bits of a user's packet tell IPv4 from IPv6. Open
/// vSwitch checks neither version nor length, and does not know extension headers.
fn gtpu<F: Frame>(frame: &mut F, at: usize, found: &mut Decapsulated) -> Result<(), Reason> {
    let bytes = header(frame, at, TUNNEL_LEN, found.end)?;
    let (flags, message, length, id) = (bytes[0], bytes[1], u16_at(bytes, 2), u32_at(bytes, 4));
    if flags & GTPU_VERSION_MASK != GTPU_VERSION {
        return Err(Reason::Flags);
    }
    let mut start = at + TUNNEL_LEN;
    let end = start + usize::from(length);
    if end > found.end {
        return Err(Reason::Length);
    }
    if flags & GTPU_OPTIONAL != 0 {
        start = gtpu_optional(frame, start, end, flags)?;
    }
    set_id(found, id);
    found.info.gtpu_flags = flags;
    found.info.gtpu_message = message;
    if message != GTPU_G_PDU {
        found.end = frame.len();
        return Ok(());
    }
    if start >= end {
        return Err(Reason::InnerShort);
    }
    found.payload = match head(frame, start + 1)?[start] >> 4 {
        4 => Payload::Packet(IPV4),
        6 => Payload::Packet(IPV6),
        _ => return Err(Reason::Payload),
    };
    (found.start, found.end) = (start, end);
    Ok(())
}

/// Skips the optional fields and extension headers (TS 29.281 sections 5.1 and 5.2), and returns
/// where the packet begins.
#[cold]
fn gtpu_optional<F: Frame>(
    frame: &mut F,
    at: usize,
    end: usize,
    flags: u8,
) -> Result<usize, Reason> {
    let mut start = at + 4;
    if start > end {
        return Err(Reason::Length);
    }
    let mut next = head(frame, start)?[start - 1];
    while flags & GTPU_EXTENSION != 0 && next != 0 {
        // Its first byte is its length in units of 4 bytes, its last the type of the next.
        let mut length = [0];
        if !frame.read_at(start, &mut length) || length[0] == 0 {
            return Err(Reason::Options);
        }
        start += usize::from(length[0]) * 4;
        if start > end.min(HEADERS_LIMIT) {
            return Err(Reason::Options);
        }
        next = head(frame, start)?[start - 1];
    }
    Ok(start)
}

#[inline(always)]
fn set_id(found: &mut Decapsulated, id: u32) {
    found.info.id = id.into();
    found.info.flags |= TunnelFlags::KEY;
}

/// Removes the outer headers of a frame that [`parse`] has read, and everything behind the inner
/// packet; propagates congestion.
///
/// If the outer header says "congestion experienced", that is set in an inner IP packet, too; if
/// its endpoints do not support ECN, the frame is refused ([`Reason::Congestion`]) and stays
/// unchanged (RFC 6040 section 4.2; as in Open vSwitch's `tnl_process_ecn`, an outer ECT(1) changes
/// nothing). Other inner packets have no ECN field and are left alone.
///
/// An inner partial checksum stays partial. `Offload::checksum_valid` is cleared, since it was
/// about the outer checksum. What STT's header says is left to do to the inner frame becomes its
/// `Offload`, if the inner packet is what that header says ([`Reason::Offload`]), and its tag is
/// put back; on an error the frame is unchanged.
#[inline]
pub fn decapsulate<F: Frame>(frame: &mut F, found: &Decapsulated) -> Result<(), Reason> {
    let Decapsulated { start, end, .. } = *found;
    if start == 0 {
        return Ok(());
    }
    // Cannot happen for the frame that was parsed.
    if end > frame.len() || start > frame.head().len() {
        return Err(Reason::Short);
    }
    if found.is_stt {
        return decapsulate_stt(frame, found);
    }
    if inner::is_congested(found.info.tos) {
        carry_congestion(frame, start, end, found.payload)?;
    }
    frame.truncate(end);
    frame.pull_front(start);
    let mut offload = frame.offload();
    let inside = usize::from(offload.csum_start).checked_sub(start);
    match inside.filter(|_| offload.partial_checksum) {
        Some(inside) => offload.csum_start = inside as u16,
        None => {
            offload.partial_checksum = false;
            offload.csum_start = 0;
            offload.csum_offset = 0;
        }
    }
    offload.checksum_valid = false;
    frame.set_offload(offload);
    Ok(())
}

fn decapsulate_stt<F: Frame>(frame: &mut F, found: &Decapsulated) -> Result<(), Reason> {
    let Decapsulated { start, end, .. } = *found;
    let (offload, tag) = stt::inside(frame, found)?;
    if inner::is_congested(found.info.tos) {
        carry_congestion(frame, start, end, found.payload)?;
    }
    frame.truncate(end);
    frame.pull_front(start);
    frame.set_offload(offload);
    // There is room where the header was.
    if tag.push(frame) {
        Ok(())
    } else {
        Err(Reason::NoBuffer)
    }
}

#[cold]
fn carry_congestion<F: Frame>(
    frame: &mut F,
    start: usize,
    end: usize,
    payload: Payload,
) -> Result<(), Reason> {
    let Some(ip) = InnerIp::find(frame, start, end, payload) else {
        return Ok(());
    };
    if !ip.is_ecn_capable() {
        return Err(Reason::Congestion);
    }
    ip.mark_congestion(frame);
    Ok(())
}
