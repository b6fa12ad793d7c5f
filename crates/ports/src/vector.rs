//! Frames to and from descriptors: the lists of buffers that `readv`, `recvmmsg` and their like take.
//!
//! On the way in, a frame's first bytes go straight into a packet buffer and what does not fit there (frames of up to 64 KiB come from
//! local TCP) into a long one that is chained on, or, where none of these is free, into a spill area, from where it is copied. On the way out,
//! all buffers of a chain are listed.

use crate::egress::{self, Abilities};
use crate::mbuf::{HEADROOM, Mbuf};
use crate::pool::Pool;
use crate::vnet;
use libc::iovec;
use packet::frame::Frame;

/// The most that can follow the first buffer: the largest GSO frame with its headers fits.
pub(crate) const SPILL: usize = 64 * 1024 + 256;

/// Parts of a list that the kernel takes (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;

/// What a kernel device does for a frame when it is told in a virtio-net header. The kernel judges lengths itself.
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
    /// What takes the bytes that follow the first buffer's; without it the spill area does.
    tail: Option<Mbuf>,
    spill: Vec<u8>,
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
            tail: None,
            spill: Vec::new(),
        }
    }

    /// Gets ready for a frame. None when there is no buffer.
    ///
    /// The parts point into the slot, which must neither move nor be touched before the kernel has filled them.
    pub(crate) fn parts(&mut self, buffers: &Buffers) -> Option<[iovec; 3]> {
        if self.buffer.is_none() {
            self.buffer = Some(buffers.pool.empty()?);
        }
        if self.tail.is_none() {
            self.tail = buffers.tails.and_then(|tails| tails.tail());
        }
        let rest = match &mut self.tail {
            Some(tail) => {
                let raw = tail.raw_mut();
                iovec {
                    iov_base: raw.buffer.cast(),
                    iov_len: usize::from(raw.buffer_len),
                }
            }
            None => {
                // Reserved, not touched: pages that no long frame reaches are never made.
                self.spill.reserve_exact(SPILL);
                iovec {
                    iov_base: self.spill.as_mut_ptr().cast(),
                    iov_len: SPILL,
                }
            }
        };
        let raw = self.buffer.as_mut()?.raw_mut();
        let room = usize::from(raw.buffer_len - HEADROOM);
        Some([
            iovec {
                iov_base: self.header.as_mut_ptr().cast(),
                iov_len: vnet::LENGTH,
            },
            iovec {
                // SAFETY: a fresh buffer is longer than its headroom.
                iov_base: unsafe { raw.buffer.add(usize::from(HEADROOM)) }.cast(),
                iov_len: room,
            },
            rest,
        ])
    }

    /// Takes the frame out, after the kernel wrote `length` bytes over the parts, with its offload flags set.
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
        if rest > 0 {
            // SAFETY: the kernel wrote these bytes behind the first buffer's, as the caller promises.
            unsafe { self.take_rest(&mut frame, rest)? };
        }
        frame.set_offload(offload);
        Ok(frame)
    }
}

impl Slot {
    /// Hangs the `rest` bytes that did not fit into the first buffer behind it.
    ///
    /// # Safety
    /// The kernel has written as many bytes to the third of the parts of the last call to `parts`.
    unsafe fn take_rest(&mut self, frame: &mut Mbuf, rest: usize) -> Result<(), Refused> {
        let chained = match self.tail.take() {
            Some(mut tail) => {
                let raw = tail.raw_mut();
                let Some(length) = u16::try_from(rest).ok().filter(|&it| it <= raw.buffer_len)
                else {
                    return Err(Refused::Malformed);
                };
                raw.data_len = length;
                raw.packet_len = u32::from(length);
                frame.chain_behind(tail)
            }
            None if rest > SPILL => return Err(Refused::Malformed),
            None => {
                // SAFETY: the kernel wrote these bytes, as the caller promises, and they lie within the capacity.
                let bytes = unsafe { std::slice::from_raw_parts(self.spill.as_ptr(), rest) };
                frame.extend(bytes)
            }
        };
        if chained {
            Ok(())
        } else {
            Err(Refused::NoBuffer)
        }
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

/// Appends the parts of `frame`, header first, to `parts`; returns how many. None when there are too many for the kernel.
/// They point into the header and the frame, which must stay until the kernel has read them. In front of a frame in one piece the header is written into the frame's
/// headroom, since one part costs the kernel less than two.
pub(crate) fn push_parts(
    header: &[u8; vnet::LENGTH],
    frame: &mut Mbuf,
    parts: &mut Vec<iovec>,
) -> Option<usize> {
    let raw = frame.raw_mut();
    if raw.segments == 1 && usize::from(raw.data_off) >= vnet::LENGTH {
        // SAFETY: the headroom is part of the buffer, which belongs to the frame alone, and there is enough of it.
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
