//! STT (draft-davie-stt-08): a frame goes over TCP's wire format in one piece of up to 64 KiB, and
//! any device that segments TCP cuts that to the network's MTU.
//!
//! There is no connection. The TCP header's sequence number holds the length of the *STT frame*
//! (this header and the inner frame) in its upper half and the segment's offset in the lower one,
//! where segmentation adds to it; the acknowledgement number identifies the STT frame. Only the
//! first segment has the STT header:
//!
//! ```text
//! 0  version (0)   flags   L4 offset   reserved   MSS (2 bytes)   VLAN tag (2 bytes)
//! 8  context id: the tunnel's key
//! 16 padding (2 bytes)   inner frame ...
//! ```
//!
//! Flags, L4 offset and MSS are the inner frame's offload work, which the receiver gets as it was.

mod reassembly;

pub use reassembly::{Displaced, Limits, Outcome, Reassembly};

use super::decapsulate::{head, header, outer};
use super::{
    Addresses, Decapsulated, InnerIp, Payload, PushError, Reason, TCP, TunnelFlags, TunnelInfo,
    TunnelKind, UDP,
};
use crate::checksum::{self, Sum};
use crate::frame::{Frame, Gso, Offload};
use crate::parse::{ETHERNET_LEN, HEADERS_LIMIT, IPV4_LEN, IPV6_LEN, TAG_LEN};
use crate::segment;

/// Length of the STT header, with its padding.
pub(super) const HEADER_LEN: usize = 18;
/// Length of a TCP header without options.
pub(super) const TCP_LEN: usize = 20;
/// Offset of the checksum in a TCP header.
pub(super) const TCP_CHECKSUM: u16 = 16;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: u16 = 6;

/// Flag: the inner transport checksum has been verified.
const VERIFIED: u8 = 0x01;
/// Flag: the inner transport checksum is partial: it holds the sum of the pseudo header.
const PARTIAL: u8 = 0x02;
/// Flag: the inner packet is IPv4, else IPv6. Has a meaning with [`PARTIAL`] only.
const INNER_IPV4: u8 = 0x04;
/// Flag: the inner transport is TCP, else UDP. Has a meaning with [`PARTIAL`] only.
const INNER_TCP: u8 = 0x08;

/// Bit of the VLAN field: there is a tag. In a tag it is "drop eligible".
const TAGGED: u16 = 0x1000;
const TPID: u16 = 0x8100;

/// The range of source ports: the dynamic ones (RFC 6335), as the draft says.
const FIRST_SOURCE_PORT: u16 = 49_152;

/// Returns the TCP source port of segments of a flow with this hash, 49152 to 65535.
pub fn source_port(hash: u32) -> u16 {
    FIRST_SOURCE_PORT | (hash >> 18) as u16
}

/// What an STT header says of the inner frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    flags: u8,
    l4: u8,
    mss: u16,
    /// The outermost tag, which the inner frame is sent without; 0 for none.
    tag: u16,
}

impl Said {
    /// Returns the header with this key.
    pub fn bytes(&self, key: u64) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        (bytes[1], bytes[2]) = (self.flags, self.l4);
        bytes[4..6].copy_from_slice(&self.mss.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.tag.to_be_bytes());
        bytes[8..16].copy_from_slice(&key.to_be_bytes());
        bytes
    }

    /// Returns the number of bytes by which the inner frame becomes shorter.
    pub fn tag_len(&self) -> usize {
        if self.tag == 0 { 0 } else { TAG_LEN }
    }

    /// Notes the frame's outermost tag if the header can say it: of TPID 0x8100, not drop eligible.
    /// Moves headers into the first segment if necessary.
    pub fn tag_of(frame: &mut impl Frame) -> Said {
        let mut said = Said::default();
        if frame.head().len() < ETHERNET_LEN + TAG_LEN {
            frame.linearize(ETHERNET_LEN + TAG_LEN);
        }
        if let Some(head) = frame.head().first_chunk::<{ ETHERNET_LEN + TAG_LEN }>() {
            let tci = u16::from_be_bytes([head[14], head[15]]);
            if head[12..14] == TPID.to_be_bytes() && tci & TAGGED == 0 {
                said.tag = tci | TAGGED;
            }
        }
        said
    }

    /// Notes a frame's offload work. A partial checksum that the header cannot say is finished.
    /// [`PushError::Segment`] if the frame must be segmented first; otherwise also on errors the
    /// frame is unchanged.
    pub fn note_offload(&mut self, frame: &mut impl Frame) -> Result<(), PushError> {
        let offload = frame.offload();
        if offload.partial_checksum && self.note_partial(frame, offload) {
            return Ok(());
        }
        if offload.gso != Gso::None {
            return Err(PushError::Segment);
        }
        if !checksum::finish_partial(frame) {
            return Err(PushError::Checksum);
        }
        if frame.offload().checksum_valid {
            self.flags = VERIFIED;
        }
        Ok(())
    }

    fn note_partial(&mut self, frame: &impl Frame, offload: Offload) -> bool {
        let Some(inner) = Inner::find(frame, 0, frame.len()) else {
            return false;
        };
        let l4 = usize::from(offload.csum_start);
        let checksum = if inner.tcp {
            TCP_CHECKSUM
        } else {
            UDP_CHECKSUM
        };
        let mss = match (offload.gso, inner.tcp, inner.ipv6) {
            (Gso::None, ..) => 0,
            (Gso::Tcp4, true, false) | (Gso::Tcp6, true, true) => offload.gso_size,
            _ => return false,
        };
        let Ok(offset) = u8::try_from(l4.saturating_sub(self.tag_len())) else {
            return false;
        };
        if inner.l4 != l4 || offload.csum_offset != checksum || segment::asks_too_much(frame) {
            return false;
        }
        (self.l4, self.mss) = (offset, mss);
        self.flags = PARTIAL
            | if inner.ipv6 { 0 } else { INNER_IPV4 }
            | if inner.tcp { INNER_TCP } else { 0 };
        true
    }

    /// Reads a header.
    fn read(bytes: &[u8; HEADER_LEN]) -> Said {
        let tag = u16::from_be_bytes([bytes[6], bytes[7]]);
        Said {
            flags: bytes[1],
            l4: bytes[2],
            mss: u16::from_be_bytes([bytes[4], bytes[5]]),
            tag: if tag & TAGGED == 0 { 0 } else { tag },
        }
    }

    /// Returns the offload work of the inner frame in the bytes `start..end`, if that is what the
    /// header says it is.
    fn offload(&self, frame: &impl Frame, start: usize, end: usize) -> Result<Offload, Reason> {
        if self.flags & PARTIAL == 0 {
            return Ok(Offload {
                checksum_valid: self.flags & VERIFIED != 0,
                ..Offload::default()
            });
        }
        let inner = Inner::find(frame, start, end).ok_or(Reason::Offload)?;
        let ipv6 = self.flags & INNER_IPV4 == 0;
        let tcp = self.flags & INNER_TCP != 0;
        if (inner.ipv6, inner.tcp, inner.l4) != (ipv6, tcp, start + usize::from(self.l4)) {
            return Err(Reason::Offload);
        }
        let gso = match (self.mss, tcp, ipv6) {
            (0, ..) => Gso::None,
            (_, true, false) => Gso::Tcp4,
            (_, true, true) => Gso::Tcp6,
            (_, false, _) => return Err(Reason::Offload),
        };
        if gso != Gso::None && segment::is_refused(gso, self.mss, inner.payload) {
            return Err(Reason::Offload);
        }
        Ok(Offload {
            partial_checksum: true,
            checksum_valid: false,
            csum_start: self.l4.into(),
            csum_offset: if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM },
            gso,
            gso_size: self.mss,
        })
    }
}

/// The inner packet of a frame: TCP or UDP, whole and with all its headers.
struct Inner {
    ipv6: bool,
    tcp: bool,
    /// First byte of the TCP or UDP header, from the start of the outer frame.
    l4: usize,
    /// Bytes behind that header, in the IP packet.
    payload: usize,
}

impl Inner {
    /// Finds it in the frame's bytes `start..end`; None for other packets.
    fn find(frame: &impl Frame, start: usize, end: usize) -> Option<Inner> {
        let ip = InnerIp::find(frame, start, end, Payload::Ethernet)?;
        let number = |at: usize| {
            let mut bytes = [0; 2];
            (at + 2 <= end && frame.read_at(at, &mut bytes)).then_some(u16::from_be_bytes(bytes))
        };
        let byte = |at: usize| {
            let mut byte = [0];
            (at < end && frame.read_at(at, &mut byte)).then_some(byte[0])
        };
        let at = ip.place;
        let (mut l4, length) = match ip.ipv6 {
            false => {
                if number(at + 6)? & 0x3fff != 0 {
                    return None;
                }
                let header_len = usize::from(byte(at)? & 0x0f) * 4;
                (at + header_len.max(IPV4_LEN), number(at + 2)?.into())
            }
            true => (at + IPV6_LEN, IPV6_LEN + usize::from(number(at + 4)?)),
        };
        let ip_end = at + length;
        let mut protocol = byte(at + if ip.ipv6 { 6 } else { 9 })?;
        // Extension headers: hop-by-hop, routing, destination options.
        while ip.ipv6 && matches!(protocol, 0 | 43 | 60) {
            protocol = byte(l4)?;
            l4 += (usize::from(byte(l4 + 1)?) + 1) * 8;
            if l4 - start > HEADERS_LIMIT {
                return None;
            }
        }
        let header_len = match protocol {
            TCP => usize::from(byte(l4 + 12)? >> 4) * 4,
            UDP => super::UDP_LEN,
            _ => return None,
        };
        let tcp = protocol == TCP;
        let behind = l4 + header_len;
        if ip_end > end || behind > ip_end || tcp && header_len < TCP_LEN {
            return None;
        }
        Some(Inner {
            ipv6: ip.ipv6,
            tcp,
            l4,
            payload: ip_end - behind,
        })
    }
}

/// A received segment of an STT frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// What its outer headers say; the key is in the STT frame's first segment.
    info: TunnelInfo,
    /// TCP source and destination port.
    ports: (u16, u16),
    /// Identifies the STT frame among those with these addresses and ports.
    id: u32,
    /// Bytes of the STT frame.
    total: usize,
    /// Offset of this segment in the STT frame; `offset + end - start` is at most `total`.
    offset: usize,
    /// Where its bytes begin and end in the frame that it came in; at least one.
    start: usize,
    end: usize,
}

fn u32_of(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Segment {
    /// Reads the outer headers of a frame: Ethernet with at most two VLAN tags, IPv4 or IPv6, TCP.
    /// The destination port is not checked: the caller has recognised STT by it. Moves headers into
    /// the first segment if necessary; changes nothing else.
    ///
    /// The TCP checksum is verified unless `Offload` says that it is valid, or is still partial,
    /// since then the bytes have not left this host, or a device has joined segments (`gso`) and
    /// verified theirs.
    pub fn read<F: Frame>(frame: &mut F) -> Result<Segment, Reason> {
        let mut info = TunnelInfo::default();
        let outer = outer(frame, TunnelKind::Stt, &mut info)?;
        let (l4, end) = (outer.l4, outer.end);
        let tcp = header(frame, l4, TCP_LEN, end)?;
        let start = l4 + usize::from(tcp[12] >> 4) * 4;
        let (ports, sequence, id) = (u32_of(tcp, 0), u32_of(tcp, 4), u32_of(tcp, 8));
        if start < l4 + TCP_LEN || start >= end {
            return Err(Reason::Length);
        }
        let offload = frame.offload();
        if offload.gso == Gso::UdpL4 {
            return Err(Reason::Segment);
        }
        if offload.partial_checksum {
            let place = (usize::from(offload.csum_start), offload.csum_offset);
            if place != (l4, TCP_CHECKSUM) {
                return Err(Reason::PartialChecksum);
            }
        } else if !offload.checksum_valid && !is_sound(frame, &info, l4, end) {
            return Err(Reason::Checksum);
        }
        info.flags |= TunnelFlags::CSUM;
        let (total, offset) = ((sequence >> 16) as usize, (sequence & 0xffff) as usize);
        if offset + (end - start) > total || total < HEADER_LEN {
            return Err(Reason::Length);
        }
        if total < HEADER_LEN + ETHERNET_LEN {
            return Err(Reason::InnerShort);
        }
        Ok(Segment {
            info,
            ports: ((ports >> 16) as u16, ports as u16),
            id,
            total,
            offset,
            start,
            end,
        })
    }

    /// Returns whether it is all of its STT frame.
    pub fn is_whole(&self) -> bool {
        self.length() == self.total
    }

    /// Returns its number of bytes of the STT frame.
    fn length(&self) -> usize {
        self.end - self.start
    }

    /// Reads the STT header of a [whole](Segment::is_whole) one's frame, for
    /// [`decapsulate`](super::decapsulate()). Moves headers into the first segment if necessary;
    /// changes nothing else.
    pub fn open<F: Frame>(&self, frame: &mut F) -> Result<Decapsulated, Reason> {
        if !self.is_whole() {
            return Err(Reason::Fragment);
        }
        let start = self.start + HEADER_LEN;
        let bytes = &head(frame, start + ETHERNET_LEN)?[self.start..];
        if bytes[0] != 0 {
            return Err(Reason::Flags);
        }
        let key = bytes[8..].first_chunk().ok_or(Reason::Short)?;
        let mut info = self.info;
        info.id = u64::from_be_bytes(*key);
        info.flags |= TunnelFlags::KEY;
        Ok(Decapsulated::of_stt(info, start, self.end))
    }
}

/// Returns whether the TCP checksum of a packet is right.
fn is_sound(frame: &impl Frame, info: &TunnelInfo, l4: usize, end: usize) -> bool {
    let length = (end - l4) as u32;
    let mut sum = Sum::new();
    match &info.addresses {
        Some(Addresses::V4 { src, dst }) => {
            sum.add_pseudo_header(&src.to_be_bytes(), &dst.to_be_bytes(), TCP, length);
        }
        Some(Addresses::V6 { src, dst }) => sum.add_pseudo_header(src, dst, TCP, length),
        None => {}
    }
    sum.add_u16(checksum::frame_sum(frame, l4, end));
    sum.fold() == 0xffff
}

/// Returns the offload work of the frame inside a parsed one, and its tag.
pub(super) fn inside(frame: &impl Frame, found: &Decapsulated) -> Result<(Offload, Tag), Reason> {
    let from = found.start.checked_sub(HEADER_LEN).ok_or(Reason::Short)?;
    let bytes = frame.head().get(from..).and_then(<[u8]>::first_chunk);
    let said = Said::read(bytes.ok_or(Reason::Short)?);
    let offload = said.offload(frame, found.start, found.end)?;
    Ok((offload, Tag(said.tag)))
}

/// A tag that is to be put into a decapsulated frame; 0 for none.
#[derive(Clone, Copy)]
pub(super) struct Tag(u16);

impl Tag {
    /// Puts it in; returns false, and changes nothing, if there is no room.
    pub fn push(self, frame: &mut impl Frame) -> bool {
        if self.0 == 0 {
            return true;
        }
        if frame.head().len() < ETHERNET_LEN || !frame.push_front(TAG_LEN) {
            return false;
        }
        let head = frame.head_mut();
        head.copy_within(TAG_LEN..TAG_LEN + 12, 0);
        head[12..14].copy_from_slice(&TPID.to_be_bytes());
        head[14..16].copy_from_slice(&(self.0 & !TAGGED).to_be_bytes());
        let mut offload = frame.offload();
        if offload.partial_checksum {
            // At most 255 before.
            offload.csum_start += TAG_LEN as u16;
            frame.set_offload(offload);
        }
        true
    }
}
