//! Transfers frames by lists of buffers, as `readv`, `recvmmsg` and the like take them.
//!
//! When receiving, a frame's first bytes go directly into a packet buffer. The rest (local TCP
//! sends frames of up to 64 KiB) goes into long buffers that are chained to it or, if too few of
//! these are free, into a spill area, from which it is copied. When sending, all buffers of a chain
//! are listed.

use crate::egress::{self, Abilities};
use crate::mbuf::{HEADROOM, Mbuf};
use crate::pool::{Pool, TAIL};
use crate::vnet;
use libc::iovec;
use packet::frame::Frame;

/// Most bytes behind the first buffer: the largest GSO frame with its headers fits.
pub(crate) const SPILL: usize = 64 * 1024 + 256;

/// Number of long buffers that hold as much.
const TAILS: usize = SPILL.div_ceil(TAIL as usize);

/// Most parts of a list (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;

/// Offloads of kernel devices, as requested by a virtio-net header. The kernel itself checks
/// lengths.
pub(crate) const KERNEL: Abilities = Abilities {
    longest: u32::MAX,
    checksum: true,
    tcp_segmentation: true,
    udp_segmentation: true,
    chains: true,
};

/// Pools for received frames.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub pool: Pool,
    /// Pool of long buffers for the rest of a frame, if there is memory for them.
    pub tails: Option<Pool>,
}

/// Buffers for one frame to be received.
pub(crate) struct Slot {
    pub header: [u8; vnet::LENGTH],
    buffer: Option<Mbuf>,
    /// Buffers for the bytes behind the first one, [`TAILS`] of them; if empty the spill area is
    /// used.
    tails: Vec<Mbuf>,
    spill: Vec<u8>,
}

/// Parts for a frame's bytes, in order.
pub(crate) struct Parts {
    list: [iovec; 2 + TAILS],
    count: usize,
}

impl Parts {
    /// An empty list.
    pub(crate) const NONE: Parts = Parts {
        list: [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 2 + TAILS],
        count: 0,
    };

    fn push(&mut self, start: *mut u8, length: usize) {
        self.list[self.count] = iovec {
            iov_base: start.cast(),
            iov_len: length,
        };
        self.count += 1;
    }

    /// Returns the used parts, as system calls take them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [iovec] {
        &mut self.list[..self.count]
    }
}

/// Why a received frame is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    Malformed,
    NoBuffer,
}

impl Slot {
    pub(crate) fn new() -> Slot {
        Slot {
            header: [0; vnet::LENGTH],
            buffer: None,
            tails: Vec::new(),
            spill: Vec::new(),
        }
    }

    /// Prepares for a frame. None if there is no buffer.
    ///
    /// The parts point into the slot, which must neither be moved nor used before the kernel has
    /// filled them.
    pub(crate) fn parts(&mut self, buffers: &Buffers) -> Option<Parts> {
        if self.buffer.is_none() {
            self.buffer = Some(buffers.pool.empty()?);
        }
        if let Some(tails) = buffers.tails {
            let missing = TAILS - self.tails.len();
            self.tails.extend((0..missing).map_while(|_| tails.tail()));
        }
        let mut parts = Parts::NONE;
        parts.push(self.header.as_mut_ptr(), vnet::LENGTH);
        let raw = self.buffer.as_mut()?.raw_mut();
        let room = usize::from(raw.buffer_len - HEADROOM);
        // SAFETY: a fresh buffer is longer than its headroom.
        parts.push(unsafe { raw.buffer.add(usize::from(HEADROOM)) }, room);
        if self.tails.len() == TAILS {
            let mut left = SPILL;
            for tail in &mut self.tails {
                let raw = tail.raw_mut();
                let room = left.min(usize::from(raw.buffer_len));
                parts.push(raw.buffer, room);
                left -= room;
            }
        } else {
            self.tails.clear();
            // Only reserved: pages that no long frame reaches are never allocated.
            self.spill.reserve_exact(SPILL);
            parts.push(self.spill.as_mut_ptr(), SPILL);
        }
        Some(parts)
    }

    /// Gives long buffers back. Must be called after receiving, so that idle ports hold none.
    pub(crate) fn rest(&mut self) {
        self.tails.clear();
    }

    /// Takes the frame out, after the kernel wrote `length` bytes over the parts, with its offload
    /// flags set.
    ///
    /// # Safety
    /// The kernel has written `length` bytes to the parts of the last call to `parts`.
    pub(crate) unsafe fn take(&mut self, length: usize) -> Result<Mbuf, Refused> {
        let frame_len = length.checked_sub(vnet::LENGTH).ok_or(Refused::Malformed)?;
        let offload = vnet::decode(&self.header, frame_len).ok_or(Refused::Malformed)?;
        let mut frame = self.buffer.take().ok_or(Refused::NoBuffer)?;
        let raw = frame.raw_mut();
        let first = frame_len.min(usize::from(raw.buffer_len - HEADROOM));
        raw.data_off = HEADROOM;
        raw.data_len = first as u16;
        raw.packet_len = first as u32;
        let rest = frame_len - first;
        if rest > SPILL {
            return Err(Refused::Malformed);
        }
        // SAFETY: the kernel wrote these bytes behind the first buffer's, as the caller promises,
        // and they lie within what was offered.
        if rest > 0 && !unsafe { self.take_rest(&mut frame, rest) } {
            return Err(Refused::NoBuffer);
        }
        frame.set_offload(offload);
        Ok(frame)
    }
}

impl Slot {
    /// Appends the `rest` bytes, [`SPILL`] at most, that did not fit into the first buffer; false
    /// if there are no buffers left.
    ///
    /// # Safety
    /// The kernel has written as many bytes to the parts of the last call to `parts` that follow
    /// the first two.
    unsafe fn take_rest(&mut self, frame: &mut Mbuf, mut rest: usize) -> bool {
        if self.tails.is_empty() {
            // SAFETY: the kernel wrote these bytes, as the caller promises, and they lie within the
            // capacity.
            return frame.extend(unsafe { std::slice::from_raw_parts(self.spill.as_ptr(), rest) });
        }
        for mut tail in self.tails.drain(..) {
            let raw = tail.raw_mut();
            let here = rest.min(usize::from(raw.buffer_len));
            raw.data_len = here as u16;
            raw.packet_len = here as u32;
            rest -= here;
            if !frame.chain_behind(tail) {
                return false;
            }
            if rest == 0 {
                break;
            }
        }
        true
    }
}

/// Inserts a VLAN tag behind the MAC addresses. False if there is no room or no Ethernet header.
pub(crate) fn insert_tag(frame: &mut Mbuf, tpid: u16, tci: u16) -> bool {
    if frame.head().len() < 12 || !frame.push_front(4) {
        return false;
    }
    let head = frame.head_mut();
    head.copy_within(4..16, 0);
    head[12..14].copy_from_slice(&tpid.to_be_bytes());
    head[14..16].copy_from_slice(&tci.to_be_bytes());
    let mut offload = frame.offload();
    if offload.partial_checksum {
        let Some(start) = offload.csum_start.checked_add(4) else {
            return false;
        };
        offload.csum_start = start;
        frame.set_offload(offload);
    }
    true
}

/// Returns the virtio-net header for a frame to the kernel.
pub(crate) fn header(frame: &Mbuf) -> [u8; vnet::LENGTH] {
    if !frame.has_work() {
        return [0; vnet::LENGTH];
    }
    let offload = frame.offload();
    vnet::encode(&offload, egress::transport(frame, &offload))
}

/// Appends the parts of `frame`, header first, to `parts`; returns how many. None if there are too
/// many for the kernel. They point into the header and the frame, which must exist until the kernel
/// has read them. For a frame in one piece the header is written into the frame's headroom, since
/// one part costs the kernel less than two.
pub(crate) fn push_parts(
    header: &[u8; vnet::LENGTH],
    frame: &mut Mbuf,
    parts: &mut Vec<iovec>,
) -> Option<usize> {
    let raw = frame.raw_mut();
    if raw.segments == 1 && usize::from(raw.data_off) >= vnet::LENGTH {
        // SAFETY: the headroom is part of the buffer, which belongs to the frame alone, and there
        // is enough of it.
        let start = unsafe {
            let start = raw.buffer.add(usize::from(raw.data_off) - vnet::LENGTH);
            start.copy_from_nonoverlapping(header.as_ptr(), vnet::LENGTH);
            start
        };
        parts.push(iovec {
            iov_base: start.cast(),
            iov_len: vnet::LENGTH + usize::from(raw.data_len),
        });
        return Some(1);
    }
    let count = frame.segment_count() + 1;
    if count > MAX_PARTS {
        return None;
    }
    let mut push = |bytes: &[u8]| {
        parts.push(iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
    };
    push(header);
    frame.segments().for_each(&mut push);
    Some(count)
}
