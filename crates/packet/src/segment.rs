//! Segmentation in software (GSO), for devices that cannot do it: cuts a large TCP or UDP frame
//! into many that fit the link.
//!
//! Does what a device would do (virtio 1.1 section 5.1.6, and the kernel's generic segmentation):
//! repeats the headers, adapts lengths, IPv4 identification, TCP sequence number and flags, and
//! gives every segment its own checksums.

use crate::checksum::{self, Sum};
use crate::frame::{Frame, Gso, Offload};
use crate::key::{FlowKey, at};
use crate::parse::{self, Layers};
use smallvec::SmallVec;

/// The smallest TCP segments that a frame is cut into, in payload bytes: what Linux lets a peer ask
/// for (`tcp_min_snd_mss`). Cutting 64 KiB into smaller ones would only keep others busy.
pub const MIN_TCP_SIZE: u16 = 48;

/// Most segments that one UDP frame may become, as in Linux (`UDP_MAX_SEGMENTS`). They may be
/// short.
pub const MAX_UDP_SEGMENTS: usize = 128;

/// Most segments that one frame may become: 64 KiB of payload in the smallest ones.
pub const MAX_SEGMENTS: usize = 1366;

/// Returns whether this many payload bytes must not be cut into segments of `size` bytes.
pub(crate) fn is_refused(gso: Gso, size: u16, payload: usize) -> bool {
    let count = payload.div_ceil(usize::from(size).max(1));
    size == 0
        || match gso {
            Gso::None => false,
            Gso::Tcp4 | Gso::Tcp6 => size < MIN_TCP_SIZE || count > MAX_SEGMENTS,
            Gso::UdpL4 => count > MAX_UDP_SEGMENTS,
        }
}

/// Returns whether a frame asks for segments that are too small ([`SegmentError::Size`]), as far as
/// can be told without its headers; for devices that segment in hardware.
pub fn asks_too_much<F: Frame>(frame: &F) -> bool {
    let offload = frame.offload();
    let headers = usize::from(offload.csum_start) + 8;
    let payload = frame.len().saturating_sub(headers);
    offload.gso != Gso::None && is_refused(offload.gso, offload.gso_size, payload)
}

/// Why a frame could not be segmented.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentError {
    /// The headers contradict the offload flags, or lie outside the frame.
    #[error("headers do not fit the offload flags")]
    Headers,
    /// The segment size is below [`MIN_TCP_SIZE`], or there would be more than [`MAX_SEGMENTS`]
    /// (for UDP, [`MAX_UDP_SEGMENTS`]) segments.
    #[error("segment size is too small")]
    Size,
    /// No memory for a segment; `emitted` segments were handed out before.
    #[error("no memory after {emitted} segments")]
    NoMemory {
        /// Segments handed out.
        emitted: usize,
    },
}

/// Passes the frame's segments to `emit`, in order, and returns their number. A frame that need not
/// be segmented is passed on whole, with its partial checksum finished. Emitted frames have no
/// offload work left.
pub fn segment<F: Frame>(mut frame: F, emit: &mut impl FnMut(F)) -> Result<usize, SegmentError> {
    if frame.offload().gso == Gso::None {
        if !checksum::finish_partial(&mut frame) {
            return Err(SegmentError::Headers);
        }
        emit(frame);
        return Ok(1);
    }
    let mut cut = Cut::new(frame)?;
    for segment in cut.by_ref() {
        emit(segment?);
    }
    Ok(cut.next)
}

/// A frame being segmented: yields its segments one by one, so that a sender need not hold all of
/// them at once.
pub struct Cut<F> {
    frame: F,
    plan: Plan,
    /// Number of the next segment.
    next: usize,
    /// Bytes of the last segment made.
    bytes: SmallVec<[u8; 2048]>,
}

impl<F: Frame> Cut<F> {
    /// Begins to segment a frame; [`SegmentError::Headers`] if it is not to be segmented.
    pub fn new(mut frame: F) -> Result<Cut<F>, SegmentError> {
        let plan = Plan::new(&mut frame)?;
        Ok(Cut {
            frame,
            plan,
            next: 0,
            bytes: SmallVec::new(),
        })
    }

    /// Returns the number of segments still to come.
    pub fn left(&self) -> usize {
        self.plan.count - self.next
    }

    /// Ends the iteration with an error.
    fn fail(&mut self, error: SegmentError) -> Option<Result<F, SegmentError>> {
        self.plan.count = self.next;
        Some(Err(error))
    }
}

/// Yields segments without offload work. The first error ends the iteration.
impl<F: Frame> Iterator for Cut<F> {
    type Item = Result<F, SegmentError>;

    fn next(&mut self) -> Option<Result<F, SegmentError>> {
        let (plan, index) = (&self.plan, self.next);
        if index >= plan.count {
            return None;
        }
        let from = plan.header_len + index * plan.size;
        let to = plan.end.min(from + plan.size);
        let bytes = &mut self.bytes;
        bytes.resize(plan.header_len + to - from, 0);
        let (header, payload) = bytes.split_at_mut(plan.header_len);
        header.copy_from_slice(&self.frame.head()[..plan.header_len]);
        if !self.frame.read_at(from, payload) {
            return self.fail(SegmentError::Headers);
        }
        plan.finish(bytes, index);
        let Some(mut segment) = self.frame.sibling(bytes) else {
            return self.fail(SegmentError::NoMemory { emitted: index });
        };
        segment.set_offload(Offload {
            checksum_valid: true,
            ..Offload::default()
        });
        self.next += 1;
        Some(Ok(segment))
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// How a frame is segmented.
struct Plan {
    l3: usize,
    l4: usize,
    ipv4: bool,
    protocol: u8,
    /// Bytes of headers that every segment begins with.
    header_len: usize,
    /// Payload bytes in all segments but the last.
    size: usize,
    /// Offset of the payload's end.
    end: usize,
    count: usize,
}

impl Plan {
    fn new<F: Frame>(frame: &mut F) -> Result<Plan, SegmentError> {
        let offload = frame.offload();
        let mut key = FlowKey::ZERO;
        let layers = parse::innermost(frame, &mut key);
        let eth_type = key.u16(at::ETH_TYPE);
        let protocol = key.u8(at::IP_PROTO);
        let fits = match offload.gso {
            Gso::None => false,
            Gso::Tcp4 => eth_type == 0x0800 && protocol == TCP,
            Gso::Tcp6 => eth_type == 0x86dd && protocol == TCP,
            Gso::UdpL4 => matches!(eth_type, 0x0800 | 0x86dd) && protocol == UDP,
        };
        if !fits || !layers.transport || key.u8(at::IP_FRAG) != 0 {
            return Err(SegmentError::Headers);
        }
        let header_len = header_len(frame, &layers, protocol)?;
        let end = layers.end as usize;
        let size = usize::from(offload.gso_size);
        if is_refused(offload.gso, offload.gso_size, end - header_len) {
            return Err(SegmentError::Size);
        }
        // A frame without payload is one segment.
        let count = (end - header_len).div_ceil(size).max(1);
        Ok(Plan {
            l3: layers.l3.into(),
            l4: layers.l4.into(),
            ipv4: eth_type == 0x0800,
            protocol,
            header_len,
            size,
            end,
            count,
        })
    }

    /// Turns a copy of headers and payload into segment `index`.
    fn finish(&self, bytes: &mut [u8], index: usize) {
        let length = bytes.len();
        let set16 = |bytes: &mut [u8], at: usize, value: u16| {
            bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        let get16 = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if self.ipv4 {
            set16(bytes, self.l3 + 2, (length - self.l3) as u16);
            let id = get16(bytes, self.l3 + 4).wrapping_add(index as u16);
            set16(bytes, self.l3 + 4, id);
            set16(bytes, self.l3 + 10, 0);
            let checksum = checksum::ipv4_header(&bytes[self.l3..self.l4]);
            set16(bytes, self.l3 + 10, checksum);
        } else {
            set16(bytes, self.l3 + 4, (length - self.l3 - 40) as u16);
        }
        let checksum_at = if self.protocol == TCP {
            self.finish_tcp(bytes, index);
            self.l4 + 16
        } else {
            set16(bytes, self.l4 + 4, (length - self.l4) as u16);
            self.l4 + 6
        };
        set16(bytes, checksum_at, 0);
        let checksum = match self.transport_checksum(bytes) {
            0 => 0xffff,
            checksum => checksum,
        };
        set16(bytes, checksum_at, checksum);
    }

    fn finish_tcp(&self, bytes: &mut [u8], index: usize) {
        let sequence = &mut bytes[self.l4 + 4..self.l4 + 8];
        let first = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
        let this = first.wrapping_add((index * self.size) as u32);
        sequence.copy_from_slice(&this.to_be_bytes());
        let flags = &mut bytes[self.l4 + 13];
        if index > 0 {
            *flags &= !TCP_CWR;
        }
        if index + 1 < self.count {
            *flags &= !(TCP_FIN | TCP_PSH);
        }
    }

    fn transport_checksum(&self, bytes: &[u8]) -> u16 {
        let (from, width) = if self.ipv4 { (12, 4) } else { (8, 16) };
        let addresses = &bytes[self.l3 + from..self.l3 + from + 2 * width];
        let (src, dst) = addresses.split_at(width);
        let transport = &bytes[self.l4..];
        let mut sum = Sum::new();
        sum.add_pseudo_header(src, dst, self.protocol, transport.len() as u32);
        sum.add_bytes(transport);
        sum.finish()
    }
}

/// Returns the offset of the end of the transport header with its options, and moves all bytes up
/// to there into the first segment.
fn header_len<F: Frame>(
    frame: &mut F,
    layers: &Layers,
    protocol: u8,
) -> Result<usize, SegmentError> {
    let l4 = usize::from(layers.l4);
    let transport_len = if protocol == TCP {
        let offset = frame.head().get(l4 + 12).ok_or(SegmentError::Headers)?;
        usize::from(offset >> 4) * 4
    } else {
        8
    };
    let header_len = l4 + transport_len;
    let short = protocol == TCP && transport_len < 20;
    if short || header_len > layers.end as usize {
        return Err(SegmentError::Headers);
    }
    if frame.head().len() < header_len && !frame.linearize(header_len) {
        return Err(SegmentError::Headers);
    }
    Ok(header_len)
}

#[cfg(test)]
mod tests;
