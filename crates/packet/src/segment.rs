//! Segmentation in software, for devices that cannot do it: one large TCP or UDP frame becomes many that fit the link.
//!
//! What a device would do (virtio 1.1 section 5.1.6, and the kernel's generic segmentation): headers are repeated, lengths, IPv4 identification, TCP
//! sequence number and flags follow, and every segment gets its own checksums.

use crate::checksum::{self, Sum};
use crate::frame::{Frame, Gso, Offload};
use crate::key::{FlowKey, at};
use crate::parse::{self, Layers};
use smallvec::SmallVec;

/// Segments that one frame may become. 64 KiB in the smallest segments that TCP stacks send (48 bytes) are 1366.
pub const MAX_SEGMENTS: usize = 2048;

/// Why a frame could not be segmented.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentError {
    /// The headers are not what the offload flags say, or they lie outside the frame.
    #[error("headers do not fit the offload flags")]
    Headers,
    /// The segment size is zero, or so small that there would be more than [`MAX_SEGMENTS`].
    #[error("segment size is too small")]
    Size,
    /// No memory for a segment; `emitted` were handed out before.
    #[error("no memory after {emitted} segments")]
    NoMemory {
        /// Segments handed out.
        emitted: usize,
    },
}

/// Hands the frame's segments to `emit`, in order, and returns how many there were. A frame that is not to be segmented is handed on as it is, with
/// its partial checksum finished. Nothing remains to be done on what is handed out.
pub fn segment<F: Frame>(mut frame: F, emit: &mut impl FnMut(F)) -> Result<usize, SegmentError> {
    if frame.offload().gso == Gso::None {
        if !checksum::finish_partial(&mut frame) {
            return Err(SegmentError::Headers);
        }
        emit(frame);
        return Ok(1);
    }
    let plan = Plan::new(&mut frame)?;
    let mut bytes: SmallVec<[u8; 2048]> = SmallVec::new();
    for index in 0..plan.count {
        let from = plan.header_len + index * plan.size;
        let to = plan.end.min(from + plan.size);
        bytes.resize(plan.header_len + to - from, 0);
        let (header, payload) = bytes.split_at_mut(plan.header_len);
        header.copy_from_slice(&frame.head()[..plan.header_len]);
        if !frame.read_at(from, payload) {
            return Err(SegmentError::Headers);
        }
        plan.finish(&mut bytes, index);
        let Some(mut segment) = frame.sibling(&bytes) else {
            return Err(SegmentError::NoMemory { emitted: index });
        };
        segment.set_offload(Offload {
            checksum_valid: true,
            ..Offload::default()
        });
        emit(segment);
    }
    Ok(plan.count)
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// How a frame is cut.
struct Plan {
    l3: usize,
    l4: usize,
    ipv4: bool,
    protocol: u8,
    /// Bytes that every segment begins with.
    header_len: usize,
    /// Payload bytes in all segments but the last.
    size: usize,
    /// Where the payload ends.
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
        if size == 0 {
            return Err(SegmentError::Size);
        }
        // A frame without payload is one segment.
        let count = (end - header_len).div_ceil(size).max(1);
        if count > MAX_SEGMENTS {
            return Err(SegmentError::Size);
        }
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

    /// Makes a copy of headers and payload the segment `index`.
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

/// Bytes up to the end of the transport header with its options, which are moved into the first segment.
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
