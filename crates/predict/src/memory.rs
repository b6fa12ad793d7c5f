//! Ports in memory, with buffers laid out and recycled like DPDK's.
//!
//! A [`Source`] replays frames like `net_pcap` with `infinite_rx`: each has its own buffer, from
//! which it is copied into one from a stack of free buffers. Sent buffers go back to that stack, so
//! buffers in use are few and warm, while the replayed frames fill the caches according to their
//! number. A [`Sink`] frees frames. Both belong to one thread, which owns the stack.

use crate::traffic::{Arrival, FRAME_MAX};
use packet::frame::{Frame, Offload};
use packet::io::{BURST, RxQueue, TxOutcome, TxQueue};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Bytes in front of a frame, as DPDK's `RTE_PKTMBUF_HEADROOM`.
const HEADROOM: usize = 128;
/// Bytes for a frame after its headroom.
const ROOM: usize = 2048;
/// Bytes from one replayed frame's buffer to the next: DPDK's object header, `rte_mbuf` and data
/// room.
const STRIDE: usize = 64 + 128 + HEADROOM + ROOM;
/// Offset of a replayed frame's bytes in its buffer; its length is at the front.
const DATA_AT: usize = 64 + 128 + HEADROOM;
/// Most free buffers kept.
const STACK: usize = 1024;

/// A buffer's contents.
#[repr(C, align(128))]
struct Memory {
    start: u16,
    len: u16,
    offload: Offload,
    data: [u8; HEADROOM + ROOM],
}

// A frame is the pointer to its buffer, as in DPDK, so buffers must not move.
#[allow(clippy::vec_box)]
mod stack {
    use super::Memory;
    use std::cell::RefCell;

    thread_local! {
        pub static FREE: RefCell<Vec<Box<Memory>>> = const { RefCell::new(Vec::new()) };
    }
}
use stack::FREE;

/// A frame of one segment.
pub(crate) struct Buffer(ManuallyDrop<Box<Memory>>);

impl Buffer {
    #[inline]
    fn take() -> Buffer {
        let free = FREE.with_borrow_mut(Vec::pop);
        Buffer(ManuallyDrop::new(free.unwrap_or_else(|| {
            Box::new(Memory {
                start: HEADROOM as u16,
                len: 0,
                offload: Offload::default(),
                data: [0; HEADROOM + ROOM],
            })
        })))
    }

    /// Makes a frame that holds `bytes`, which must fit.
    #[inline]
    fn holding(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::take();
        let memory = &mut **buffer.0;
        memory.start = HEADROOM as u16;
        memory.len = bytes.len() as u16;
        memory.offload = Offload::default();
        memory.data[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn range(&self) -> std::ops::Range<usize> {
        let start = usize::from(self.0.start);
        start..start + usize::from(self.0.len)
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the box is taken out only here, and `self` is not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        // At the thread's end, the stack may have been destroyed already.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < STACK {
                free.push(memory);
            }
        });
    }
}

impl Frame for Buffer {
    #[inline]
    fn len(&self) -> usize {
        usize::from(self.0.len)
    }
    #[inline]
    fn head(&self) -> &[u8] {
        &self.0.data[self.range()]
    }
    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.0.data[range]
    }
    fn headroom(&self) -> usize {
        self.0.start.into()
    }
    fn push_front(&mut self, n: usize) -> bool {
        let fits = n <= self.headroom();
        if fits {
            self.0.start -= n as u16;
            self.0.len += n as u16;
        }
        fits
    }
    fn pull_front(&mut self, n: usize) -> bool {
        let fits = n <= self.len();
        if fits {
            self.0.start += n as u16;
            self.0.len -= n as u16;
        }
        fits
    }
    fn truncate(&mut self, len: usize) {
        self.0.len = self.0.len.min(len.min(FRAME_MAX) as u16);
    }
    fn linearize(&mut self, _: usize) -> bool {
        true
    }
    fn segment_count(&self) -> usize {
        1
    }
    fn segment(&self, index: usize) -> Option<&[u8]> {
        (index == 0).then(|| self.head())
    }
    fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        (index == 0).then(|| self.head_mut())
    }
    fn duplicate(&self) -> Option<Self> {
        let mut copy = Buffer::holding(self.head());
        copy.0.offload = self.0.offload;
        Some(copy)
    }
    fn sibling(&self, bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= ROOM).then(|| Buffer::holding(bytes))
    }
    fn offload(&self) -> Offload {
        self.0.offload
    }
    fn set_offload(&mut self, offload: Offload) {
        self.0.offload = offload;
    }
}

/// Makes a frame; None if it is too long.
pub(crate) fn frame(bytes: &[u8]) -> Option<Buffer> {
    (bytes.len() <= ROOM).then(|| Buffer::holding(bytes))
}

/// Asks for huge pages for the capacity of an empty vector.
pub(crate) fn in_huge_pages<T>(room: &mut Vec<T>) {
    let page = 1 << 21;
    let size = room.capacity() * size_of::<T>();
    let bytes = room.as_mut_ptr().cast::<u8>();
    let skipped = bytes.align_offset(page);
    if size > skipped + page {
        // An error costs only speed.
        // SAFETY: advice about memory that the vector owns, from the first page that begins in it
        // to the last that ends in it; nothing is read or written.
        unsafe {
            libc::madvise(
                bytes.wrapping_add(skipped).cast(),
                (size - skipped) / page * page,
                libc::MADV_HUGEPAGE,
            );
        }
    }
}

/// Frames to replay, spread over memory like a port's buffers.
pub(crate) struct Store {
    bytes: Vec<u8>,
    /// Offset of the first buffer, which aligns all of them to cache lines.
    from: usize,
    count: usize,
}

impl Store {
    pub fn new<'a>(arrivals: impl ExactSizeIterator<Item = &'a Arrival>) -> Store {
        let count = arrivals.len();
        let size = count * STRIDE;
        let mut bytes = Vec::<u8>::with_capacity(size + 64);
        let from = bytes.as_ptr().align_offset(64);
        // Like a port's buffers.
        in_huge_pages(&mut bytes);
        bytes.resize(from + size, 0);
        for (index, arrival) in arrivals.enumerate() {
            let at = from + index * STRIDE;
            let len = arrival.bytes.len();
            bytes[at..at + 2].copy_from_slice(&(len as u16).to_ne_bytes());
            bytes[at + DATA_AT..at + DATA_AT + len].copy_from_slice(&arrival.bytes);
        }
        Store { bytes, from, count }
    }

    #[inline]
    fn get(&self, index: usize) -> &[u8] {
        let at = self.from + index * STRIDE;
        let len = usize::from(u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]));
        &self.bytes[at + DATA_AT..at + DATA_AT + len]
    }
}

/// Replays frames endlessly.
pub(crate) struct Source {
    store: Arc<Store>,
    next: usize,
}

impl Source {
    pub fn new(store: Arc<Store>) -> Source {
        Source { store, next: 0 }
    }
}

impl RxQueue<Buffer> for Source {
    fn receive(&mut self, out: &mut Vec<Buffer>) -> usize {
        if self.store.count == 0 {
            return 0;
        }
        for _ in 0..BURST {
            out.push(Buffer::holding(self.store.get(self.next)));
            self.next += 1;
            if self.next == self.store.count {
                self.next = 0;
            }
        }
        BURST
    }
}

/// Takes frames and frees their buffers.
pub(crate) struct Sink;

impl TxQueue<Buffer> for Sink {
    fn send(&mut self, frames: &mut Vec<Buffer>) -> TxOutcome {
        let packets = frames.len() as u64;
        let mut bytes = 0;
        frames
            .drain(..)
            .for_each(|frame| bytes += frame.len() as u64);
        TxOutcome {
            packets,
            bytes,
            ..TxOutcome::default()
        }
    }
}
