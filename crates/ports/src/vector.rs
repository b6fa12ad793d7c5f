//! Frames to and from descriptors: the lists of buffers that `readv`, `recvmmsg` and their like
//! take.
//!
//! On the way in, a frame's first bytes go straight into a packet buffer and what does not fit
//! there (frames of up to 64 KiB come from local TCP) into long ones that are chained on, or, where
//! too few of these are free, into a spill area, from where it is copied. On the way out,
//! all buffers of a chain are listed.

use crate::egress::{self, Abilities};
use crate::mbuf::{HEADROOM, Mbuf};
use crate::pool::{Pool, TAIL};
use crate::vnet;
use libc::iovec;
use packet::frame::Frame;

/// The most that can follow the first buffer: the largest GSO frame with its headers fits.
pub(crate) const SPILL: usize = 64 * 1024 + 256;

/// Long buffers that hold as much.
const TAILS: usize = SPILL.div_ceil(TAIL as usize);

/// Parts of a list that the kernel takes (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;

/// What a kernel device does for a frame when it is told in a virtio-net header. The kernel judges
/// lengths itself.
pub(crate) const KERNEL: Abilities = Abilities {
    longest: u32::MAX,
    checksum: true,
    tcp_segmentation: true,
    udp_segmentation: true,
    chains: true,
};

/// Where frames' buffers come from.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub pool: Pool,
    /// Long buffers for what does not fit into the first, where there is memory for some.
    pub tails: Option<Pool>,
}

/// One frame's place on the way in.
pub(crate) struct Slot {
    pub header: [u8; vnet::LENGTH],
    buffer: Option<Mbuf>,
    /// What take the bytes that follow the first buffer's, [`TAILS`] of them; without them the
    /// spill area does.
    tails: Vec<Mbuf>,
    spill: Vec<u8>,
}

/// Where a frame's bytes are to go, in order.
pub(crate) struct Parts {
    list: [iovec; 2 + TAILS],
    count: usize,
}

impl Parts {
    /// No part at all.
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

    /// The parts in use, as system calls want them.
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

    /// Gets ready for a frame. None when there is no buffer.
    ///
    /// The parts point into the slot, which must neither move nor be touched before the kernel has
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
            // Reserved, not touched: pages that no long frame reaches are never made.
            self.spill.reserve_exact(SPILL);
            parts.push(self.spill.as_mut_ptr(), SPILL);
        }
        Some(parts)
    }

    /// Gives back what only long frames need. To be called when a receive is over, so that ports at
    /// rest hold none of it.
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
    /// Hangs the `rest` bytes that did not fit into the first buffer behind it, [`SPILL`] at most;
    /// false when memory ran out.
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

/// Puts a VLAN tag behind the MAC addresses. False when there is no room or no Ethernet header.
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

/// The header for a frame that goes to the kernel.
pub(crate) fn header(frame: &Mbuf) -> [u8; vnet::LENGTH] {
    if !frame.has_work() {
        return [0; vnet::LENGTH];
    }
    let offload = frame.offload();
    vnet::encode(&offload, egress::transport(frame, &offload))
}

/// Appends the parts of `frame`, header first, to `parts`; returns how many. None when there are
/// too many for the kernel. They point into the header and the frame, which must stay until the
/// kernel has read them. In front of a frame in one piece the header is written into the frame's
/// headroom, since one part costs the kernel less than two.
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
