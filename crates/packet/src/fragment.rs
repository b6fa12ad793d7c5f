//! IP fragments: reads them, cuts a packet into fragments, and reassembles packets (RFC 791 section
//! 3.2, RFC 8200 section 4.5).
//!
//! All bytes of a fragment are checked. Refusals are reported ([`Refusal`]). If two fragments of a
//! packet overlap, the whole packet is dropped (RFC 5722; like Linux, for IPv4 as well).

mod reassembly;

pub use reassembly::{Limits, Outcome, Reassembly};

use crate::checksum;
use crate::frame::{Frame, Gso, Offload};
use crate::parse::{ETHERNET_LEN, HEADERS_LIMIT, IPV4_LEN, IPV6_LEN, TAG_LEN};
use crate::tunnel::Addresses;
use smallvec::SmallVec;

/// Bytes of an IPv6 fragment header.
const HEADER_LEN: usize = 8;
/// Protocol number of an IPv6 fragment header.
const FRAGMENT: u8 = 44;
/// The "more fragments" bit in the offset fields of IPv4 and IPv6.
const MORE_V4: u16 = 0x2000;
const MORE_V6: u16 = 1;
/// The largest payload of an IP packet, in bytes.
const LONGEST: usize = 65_535;

/// What identifies the packet that a fragment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Datagram {
    /// Source and destination.
    pub addresses: Addresses,
    /// The identification field: 16 bits in IPv4, 32 in IPv6.
    pub id: u32,
    /// The protocol, which identifies an IPv4 packet, too; 0 for IPv6.
    pub protocol: u8,
}

/// What a fragment's headers say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// The packet that it belongs to.
    pub datagram: Datagram,
    /// The protocol of the packet's payload; for IPv6, the next header of the fragment header.
    pub protocol: u8,
    /// Offset of this payload in the packet's payload, in bytes.
    pub offset: usize,
    /// Payload bytes, at least 1; a multiple of 8 if more fragments follow.
    pub length: usize,
    /// Whether more fragments follow.
    pub more: bool,
    /// First byte of its payload in the frame. All bytes before it are in the first segment.
    pub start: usize,
    /// First byte of its IP header.
    l3: usize,
    /// Offset of the next-header byte that names the IPv6 fragment header; 0 for IPv4.
    named_at: usize,
    /// Explicit congestion notification (RFC 3168).
    ecn: u8,
}

/// Why a fragment, or the packet that it belongs to, was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// A length, offset or checksum is invalid, or offload work is left to be done.
    #[error("a fragment that cannot be")]
    Bad,
    /// Two fragments overlap, or imply different lengths of their packet, or only some support
    /// explicit congestion notification (RFC 3168 section 5.3). The packet is lost.
    #[error("fragments contradict each other")]
    Contradiction,
    /// The fragment has come already: a network may duplicate packets. Its packet still waits.
    #[error("a fragment that has come already")]
    Twice,
    /// The packet has too many fragments, or there is no room for another packet.
    #[error("too many fragments")]
    Full,
    /// No memory to reassemble the packet. It is lost.
    #[error("no memory")]
    NoMemory,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the frame's first `len` bytes, moved into its first segment if necessary.
fn head<F: Frame>(frame: &mut F, len: usize) -> Result<&[u8], Refusal> {
    if frame.head().len() < len && (frame.len() < len || !frame.linearize(len)) {
        return Err(Refusal::Bad);
    }
    frame.head().get(..len).ok_or(Refusal::Bad)
}

/// Returns the offset of a frame's network header, after at most two VLAN tags, and its Ethertype.
fn network<F: Frame>(frame: &mut F) -> Result<(usize, u16), Refusal> {
    let mut l3 = ETHERNET_LEN;
    let mut eth_type = u16_at(head(frame, l3)?, l3 - 2);
    while matches!(eth_type, 0x8100 | 0x88a8) && l3 < ETHERNET_LEN + 2 * TAG_LEN {
        l3 += TAG_LEN;
        eth_type = u16_at(head(frame, l3)?, l3 - 2);
    }
    Ok((l3, eth_type))
}

/// Sets the length and the flags and offset in an IPv4 header, and updates its checksum.
fn place_ipv4(header: &mut [u8], length: u16, place: u16) {
    set_u16(header, 2, length);
    set_u16(header, 6, place);
    set_u16(header, 10, 0);
    let checksum = checksum::ipv4_header(header);
    set_u16(header, 10, checksum);
}

impl Fragment {
    /// Reads a frame's IP header, after at most two VLAN tags; None if the packet is no fragment.
    pub fn read<F: Frame>(frame: &mut F) -> Result<Option<Fragment>, Refusal> {
        let (l3, eth_type) = network(frame)?;
        Fragment::read_behind(frame, l3, eth_type)
    }

    /// Reads the IP header that begins at the byte `l3` of a frame, whose Ethertype is given; None
    /// if the packet is no fragment.
    pub fn read_behind<F: Frame>(
        frame: &mut F,
        l3: usize,
        eth_type: u16,
    ) -> Result<Option<Fragment>, Refusal> {
        let read = match eth_type {
            0x0800 => Fragment::read_v4(frame, l3)?,
            0x86dd => Fragment::read_v6(frame, l3)?,
            _ => None,
        };
        let Some(fragment) = read else {
            return Ok(None);
        };
        let offload = frame.offload();
        let is_cut = fragment.more && !fragment.length.is_multiple_of(8);
        if is_cut
            || fragment.length == 0
            || fragment.offset + fragment.length > LONGEST
            || offload.partial_checksum
            || offload.gso != Gso::None
        {
            return Err(Refusal::Bad);
        }
        Ok(Some(fragment))
    }

    fn read_v4<F: Frame>(frame: &mut F, l3: usize) -> Result<Option<Fragment>, Refusal> {
        let length = frame.len();
        let first = head(frame, l3 + IPV4_LEN)?[l3];
        let header_len = usize::from(first & 0x0f) * 4;
        if first >> 4 != 4 || header_len < IPV4_LEN {
            return Err(Refusal::Bad);
        }
        let ip = &head(frame, l3 + header_len)?[l3..];
        let (total, place) = (usize::from(u16_at(ip, 2)), u16_at(ip, 6));
        if place & 0x3fff == 0 {
            return Ok(None);
        }
        if total < header_len || l3 + total > length || checksum::ipv4_header(ip) != 0 {
            return Err(Refusal::Bad);
        }
        let address = |at: usize| u32::from(u16_at(ip, at)) << 16 | u32::from(u16_at(ip, at + 2));
        Ok(Some(Fragment {
            datagram: Datagram {
                addresses: Addresses::V4 {
                    src: address(12),
                    dst: address(16),
                },
                id: u16_at(ip, 4).into(),
                protocol: ip[9],
            },
            protocol: ip[9],
            offset: usize::from(place & 0x1fff) * 8,
            length: total - header_len,
            more: place & MORE_V4 != 0,
            start: l3 + header_len,
            l3,
            named_at: 0,
            ecn: ip[1] & 3,
        }))
    }

    fn read_v6<F: Frame>(frame: &mut F, l3: usize) -> Result<Option<Fragment>, Refusal> {
        let length = frame.len();
        let ip = &head(frame, l3 + IPV6_LEN)?[l3..];
        let end = l3 + IPV6_LEN + usize::from(u16_at(ip, 4));
        if ip[0] >> 4 != 6 || end > length {
            return Err(Refusal::Bad);
        }
        let address = |at: usize| {
            let mut address = [0; 16];
            address.copy_from_slice(&ip[at..at + 16]);
            address
        };
        let addresses = Addresses::V6 {
            src: address(8),
            dst: address(24),
        };
        let ecn = ip[1] >> 4 & 3;
        let (mut named_at, mut at) = (l3 + 6, l3 + IPV6_LEN);
        loop {
            let bytes = head(frame, at)?;
            let kind = bytes[named_at];
            // Hop-by-hop, routing and destination options may precede the fragment header; each
            // takes at least 8 bytes.
            if !matches!(kind, 0 | 43 | 60 | FRAGMENT) {
                return Ok(None);
            }
            if at + HEADER_LEN > end.min(HEADERS_LIMIT) {
                return Err(Refusal::Bad);
            }
            let header = &head(frame, at + HEADER_LEN)?[at..];
            if kind != FRAGMENT {
                let behind = at + (usize::from(header[1]) + 1) * 8;
                if behind > end.min(HEADERS_LIMIT) {
                    return Err(Refusal::Bad);
                }
                (named_at, at) = (at, behind);
                continue;
            }
            let place = u16_at(header, 2);
            if place & 0xfff9 == 0 {
                // A whole packet with a fragment header ("atomic fragment", RFC 6946).
                return Ok(None);
            }
            let id = u32::from(u16_at(header, 4)) << 16 | u32::from(u16_at(header, 6));
            return Ok(Some(Fragment {
                datagram: Datagram {
                    addresses,
                    id,
                    protocol: 0,
                },
                protocol: header[0],
                offset: usize::from(place & 0xfff8),
                length: end - at - HEADER_LEN,
                more: place & MORE_V6 != 0,
                start: at + HEADER_LEN,
                l3,
                named_at,
                ecn,
            }));
        }
    }

    /// Returns whether it is the packet's first fragment.
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }

    /// Returns the offset of the byte after its payload, in the packet's payload.
    pub fn end(&self) -> usize {
        self.offset + self.length
    }

    /// Returns whether it is an IPv6 packet.
    pub fn is_v6(&self) -> bool {
        self.named_at != 0
    }

    /// Returns the length of its IP packet, with headers, in bytes.
    pub fn packet_length(&self) -> usize {
        self.start - self.l3 + self.length
    }

    /// Returns whether a packet with its headers and this many bytes of payload is too long for
    /// IP's length field.
    pub fn is_too_long_with(&self, payload: usize) -> bool {
        let counted = match self.is_v6() {
            true => self.start - self.l3 - HEADER_LEN - IPV6_LEN,
            false => self.start - self.l3,
        };
        counted + payload > LONGEST
    }
}

/// Joins all fragments of a packet, given in order: the first one's headers and all payloads.
fn join<F: Frame>(fragments: &[(Fragment, F)]) -> Result<F, Refusal> {
    let [(_, frame), ..] = fragments else {
        return Err(Refusal::Bad);
    };
    let ecn = joined_ecn(fragments.iter().map(|(fragment, _)| fragment.ecn))?;
    let all = fragments.iter().map(|(fragment, frame)| (fragment, frame));
    let bytes = join_with(all, Some(ecn))?;
    let mut joined = frame.sibling(&bytes).ok_or(Refusal::NoMemory)?;
    joined.set_offload(Offload::default());
    Ok(joined)
}

/// Joins all fragments of a packet, given in order: the first one's headers, as they are but for
/// lengths and what makes it a fragment, and all payloads. The fragments must have been read from
/// these frames.
pub fn join_bytes<'a, F: Frame + 'a>(
    fragments: impl Iterator<Item = (&'a Fragment, &'a F)> + Clone,
) -> Result<Vec<u8>, Refusal> {
    join_with(fragments, None)
}

/// Joins fragments; the packet gets these ECN bits, if any.
fn join_with<'a, F: Frame + 'a>(
    fragments: impl Iterator<Item = (&'a Fragment, &'a F)> + Clone,
    ecn: Option<u8>,
) -> Result<Vec<u8>, Refusal> {
    let (first, frame) = fragments.clone().next().ok_or(Refusal::Bad)?;
    let payload: usize = fragments.clone().map(|(fragment, _)| fragment.length).sum();
    let is_v6 = first.is_v6();
    let headers = first.start - if is_v6 { HEADER_LEN } else { 0 };
    let mut bytes = vec![0; headers + payload];
    bytes[..headers].copy_from_slice(frame.head().get(..headers).ok_or(Refusal::Bad)?);
    let ecn = ecn.unwrap_or(first.ecn);
    let ip_length = headers - first.l3 + payload;
    if is_v6 {
        bytes[first.named_at] = first.protocol;
        let length = u16::try_from(ip_length - IPV6_LEN).map_err(|_| Refusal::Bad)?;
        set_u16(&mut bytes, first.l3 + 4, length);
        bytes[first.l3 + 1] = bytes[first.l3 + 1] & !0x30 | ecn << 4;
    } else {
        let length = u16::try_from(ip_length).map_err(|_| Refusal::Bad)?;
        let ip = &mut bytes[first.l3..headers];
        ip[1] = ip[1] & !3 | ecn;
        place_ipv4(ip, length, 0);
    }
    let mut at = headers;
    for (fragment, frame) in fragments {
        let to = &mut bytes[at..at + fragment.length];
        if !frame.read_at(fragment.start, to) {
            return Err(Refusal::Bad);
        }
        at += fragment.length;
    }
    Ok(bytes)
}

/// Returns the ECN bits of a reassembled packet: "congestion experienced" if any fragment says so.
/// As in Linux, either all fragments support ECN or none does.
fn joined_ecn(all: impl Iterator<Item = u8>) -> Result<u8, Refusal> {
    const EXPERIENCED: u8 = 3;
    let mut joined = None;
    for ecn in all {
        joined = Some(match joined {
            None => ecn,
            Some(before) if (before == 0) != (ecn == 0) => return Err(Refusal::Contradiction),
            Some(before) if before == EXPERIENCED || ecn == EXPERIENCED => EXPERIENCED,
            Some(before) => before,
        });
    }
    joined.ok_or(Refusal::Bad)
}

/// Why a packet cannot be cut into fragments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CutError {
    /// "Don't fragment" is set, or the packet is a fragment, or it has IPv4 options or IPv6
    /// extension headers, which would have to be copied selectively; or its lengths are invalid.
    #[error("a packet that cannot be fragmented")]
    Headers,
    /// The link's MTU leaves no room for 8 bytes of payload.
    #[error("the link takes no fragments")]
    Mtu,
}

/// Iterates over a packet's fragments. When memory runs out, it yields `None` once and ends.
#[derive(Debug)]
pub struct Fragments<F> {
    frame: F,
    l3: usize,
    is_v6: bool,
    id: u32,
    /// Payload bytes of all fragments but the last, and of the packet.
    size: usize,
    payload: usize,
    /// The next fragment's offset.
    next: usize,
    bytes: SmallVec<[u8; 2048]>,
}

impl<F: Frame> Fragments<F> {
    /// Begins to cut a frame's IP packet into fragments of at most `mtu` bytes (IP header
    /// included). `id` is the identification to use for IPv6, where the packet has none.
    ///
    /// Finishes the frame's pending checksum first, so its fragments have no offload work left.
    pub fn new(mut frame: F, mtu: usize, id: u32) -> Result<Fragments<F>, CutError> {
        if frame.offload().gso != Gso::None || !checksum::finish_partial(&mut frame) {
            return Err(CutError::Headers);
        }
        let refused = |_| CutError::Headers;
        let (l3, eth_type) = network(&mut frame).map_err(refused)?;
        let (is_v6, header_len) = match eth_type {
            0x0800 => (false, IPV4_LEN),
            0x86dd => (true, IPV6_LEN),
            _ => return Err(CutError::Headers),
        };
        let whole = frame.len();
        let ip = &head(&mut frame, l3 + header_len).map_err(refused)?[l3..];
        let fits = match is_v6 {
            // Extension headers stand where a fragment header would.
            true => ip[0] >> 4 == 6 && !matches!(ip[6], 0 | 43 | 60 | FRAGMENT),
            // Neither "don't fragment" nor a fragment.
            false => ip[0] == 0x45 && u16_at(ip, 6) & 0x7fff == 0,
        };
        let payload = match is_v6 {
            true => usize::from(u16_at(ip, 4)),
            false => usize::from(u16_at(ip, 2)).saturating_sub(header_len),
        };
        if !fits || payload == 0 || l3 + header_len + payload > whole {
            return Err(CutError::Headers);
        }
        let headers = header_len + if is_v6 { HEADER_LEN } else { 0 };
        let size = mtu.saturating_sub(headers) & !7;
        if size == 0 {
            return Err(CutError::Mtu);
        }
        Ok(Fragments {
            frame,
            l3,
            is_v6,
            id,
            size,
            payload,
            next: 0,
            bytes: SmallVec::new(),
        })
    }

    /// Returns the number of fragments that are still to come.
    pub fn left(&self) -> usize {
        (self.payload - self.next).div_ceil(self.size)
    }
}

impl<F: Frame> Iterator for Fragments<F> {
    type Item = Option<F>;

    fn next(&mut self) -> Option<Option<F>> {
        if self.next >= self.payload {
            return None;
        }
        let length = self.size.min(self.payload - self.next);
        let more = self.next + length < self.payload;
        let l3 = self.l3;
        let l4 = l3 + if self.is_v6 { IPV6_LEN } else { IPV4_LEN };
        let from = l4 + self.next;
        let inserted = if self.is_v6 { HEADER_LEN } else { 0 };
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.resize(l4 + inserted + length, 0);
        bytes[..l4].copy_from_slice(&self.frame.head()[..l4]);
        let read = self.frame.read_at(from, &mut bytes[l4 + inserted..]);
        if self.is_v6 {
            let protocol = std::mem::replace(&mut bytes[l3 + 6], FRAGMENT);
            set_u16(bytes, l3 + 4, (length + HEADER_LEN) as u16);
            bytes[l4] = protocol;
            let more = if more { MORE_V6 } else { 0 };
            set_u16(bytes, l4 + 2, self.next as u16 | more);
            bytes[l4 + 4..l4 + 8].copy_from_slice(&self.id.to_be_bytes());
        } else {
            let more = if more { MORE_V4 } else { 0 };
            let place = (self.next / 8) as u16 | more;
            place_ipv4(&mut bytes[l3..l4], (length + IPV4_LEN) as u16, place);
        }
        self.next += length;
        let sibling = match read {
            true => self.frame.sibling(bytes),
            false => None,
        };
        let Some(mut fragment) = sibling else {
            self.next = self.payload;
            return Some(None);
        };
        fragment.set_offload(Offload::default());
        Some(Some(fragment))
    }
}

#[cfg(test)]
mod tests;
