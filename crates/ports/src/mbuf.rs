//! DPDK's packet buffer as a [`Frame`].
//!
//! An [`Mbuf`] is one pointer, so a burst in a `Vec<Mbuf>` is the array of pointers that DPDK's
//! burst functions take. It owns its whole chain of segments: nothing in Sluice makes DPDK clones,
//! so no two frames share bytes.
//!
//! Pending work on a frame (`Offload`) is stored in the mbuf, packed into `tx_offload` and marked
//! by one bit in the flags, so frames without such work cost one test of a word that is in the
//! cache anyway. The packing is Sluice's own; when a port sends, it converts it to what its device
//! needs ([`crate::egress`]).

use crate::raw::{self, RawMbuf, flag};
use packet::frame::{Frame, Gso, Offload};
use stages::Stage;
use std::ptr::NonNull;

/// Bytes of a cache line; an mbuf takes two.
const CACHE_LINE: usize = 64;
/// Free bytes in front of a new frame.
pub(crate) const HEADROOM: u16 = 128;

/// Flag that `tx_offload` holds a packed [`Offload`]. No driver sets it on receive.
pub(crate) const WORK: u64 = flag::TX_TCP_CKSUM;

/// A frame in a DPDK buffer, with all its segments.
#[repr(transparent)]
pub struct Mbuf(NonNull<RawMbuf>);

// SAFETY: an Mbuf owns its chain exclusively, and DPDK's pools may be given buffers back from any
// thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes ownership of a chain.
    ///
    /// # Safety
    /// `raw` is the head of a chain that nobody else uses: reference counts of 1, no indirect
    /// segments, and `packet_len` and `segments` agree with the chain.
    pub(crate) unsafe fn from_raw(raw: NonNull<RawMbuf>) -> Mbuf {
        Mbuf(raw)
    }

    /// Gives up ownership of the chain; the caller must free it.
    pub(crate) fn into_raw(self) -> *mut RawMbuf {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }

    pub(crate) fn raw(&self) -> &RawMbuf {
        // SAFETY: the pointer is valid and owned for as long as self lives.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn raw_mut(&mut self) -> &mut RawMbuf {
        // SAFETY: as in `raw`, and self is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }

    /// Returns the flow hash that the device computed, if there is one.
    pub fn hash(&self) -> Option<u32> {
        let raw = self.raw();
        (raw.flags & flag::RX_RSS_HASH != 0).then_some(raw.hash_low)
    }

    /// Returns whether a checksum must be filled in or the frame be segmented.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.raw().flags & WORK != 0
    }

    /// Clears all offload flags, but not those about the memory.
    pub(crate) fn clear_flags(&mut self) {
        let raw = self.raw_mut();
        raw.flags &= flag::MEMORY;
        raw.tx_offload = 0;
    }

    /// Returns the free bytes behind those of the last segment.
    pub(crate) fn tailroom(&self) -> usize {
        let last = self.chain().last().expect("a chain has a head");
        usize::from(last.buffer_len) - usize::from(last.data_off) - usize::from(last.data_len)
    }

    /// Returns the segments, first to last.
    fn chain(&self) -> impl Iterator<Item = &RawMbuf> {
        let mut next = Some(self.raw());
        std::iter::from_fn(move || {
            let current = next?;
            // SAFETY: `next` is null or the following segment of the chain that self owns.
            next = unsafe { current.next.as_ref() };
            Some(current)
        })
    }

    /// Returns the bytes of each segment, in order.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.chain().map(bytes_of)
    }

    /// Appends `tail`'s segments to this frame's. False, with `tail` freed, if there would be too
    /// many.
    pub(crate) fn chain_behind(&mut self, tail: Mbuf) -> bool {
        let Some(segments) = self.raw().segments.checked_add(tail.raw().segments) else {
            return false;
        };
        let mut last = self.0;
        // SAFETY: walks the chain that self owns; `tail`'s chain is owned too and given up to self.
        unsafe {
            while let Some(next) = NonNull::new(last.as_ref().next) {
                last = next;
            }
            let added = tail.raw().packet_len;
            last.as_mut().next = tail.into_raw();
            let head = self.0.as_mut();
            head.segments = segments;
            head.packet_len += added;
        }
        true
    }

    /// Copies as many of `bytes` as fit into the last segment, and returns how many that were.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        let mut last = self.0;
        // SAFETY: walks the chain that self owns to its last segment.
        while let Some(next) = NonNull::new(unsafe { last.as_ref() }.next) {
            last = next;
        }
        // SAFETY: the last segment belongs to self alone.
        let last = unsafe { last.as_mut() };
        let used = usize::from(last.data_off) + usize::from(last.data_len);
        let take = bytes.len().min(usize::from(last.buffer_len) - used);
        // SAFETY: `used + take` lies within the segment's buffer, which cannot overlap the borrowed
        // bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), last.buffer.add(used), take) };
        last.data_len += take as u16;
        self.raw_mut().packet_len += take as u32;
        take
    }

    /// Makes an empty frame hold `bytes`, in as many segments as needed. False, with some of them,
    /// if there are no buffers.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) -> bool {
        let raw = self.raw_mut();
        let offset = usize::from(raw.data_off);
        let fits = bytes.len() <= usize::from(raw.buffer_len).saturating_sub(offset);
        if !fits || raw.packet_len != 0 || raw.segments != 1 {
            return self.extend(bytes);
        }
        // SAFETY: they lie within the only segment's buffer, which belongs to self alone.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), raw.buffer.add(offset), bytes.len());
        }
        raw.data_len = bytes.len() as u16;
        raw.packet_len = bytes.len() as u32;
        true
    }

    /// Frees the segment behind the head.
    fn drop_second(&mut self) {
        let head = self.raw_mut();
        let second = head.next;
        debug_assert!(!second.is_null());
        // SAFETY: the second segment belongs to this chain and is taken out of it before it is
        // freed.
        unsafe {
            head.next = (*second).next;
            (*second).next = std::ptr::null_mut();
            (*second).segments = 1;
            raw::sluice_mbuf_free_segment(second);
        }
        head.segments -= 1;
    }

    /// Moves bytes from later segments into the head until it holds `wanted`; the head must have
    /// room for them.
    fn pull_up(&mut self, wanted: usize) {
        while usize::from(self.raw().data_len) < wanted {
            let head = self.raw_mut();
            let have = usize::from(head.data_len);
            // SAFETY: the whole is at least `wanted` long, so there is a next segment; both buffers
            // are this frame's and distinct, and the caller made sure that the head's
            // has room for `wanted` bytes behind `data_off`.
            let emptied = unsafe {
                let next = &mut *head.next;
                let take = (wanted - have).min(usize::from(next.data_len));
                std::ptr::copy_nonoverlapping(
                    next.buffer.add(usize::from(next.data_off)),
                    head.buffer.add(usize::from(head.data_off) + have),
                    take,
                );
                head.data_len += take as u16;
                next.data_off += take as u16;
                next.data_len -= take as u16;
                next.data_len == 0
            };
            if emptied {
                self.drop_second();
            }
        }
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: self owns the chain and is gone after this.
        unsafe { raw::sluice_mbuf_free(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mbuf")
            .field("len", &self.len())
            .field("segments", &self.segment_count())
            .field("offload", &self.offload())
            .finish()
    }
}

/// Frees all frames in `frames` at once.
pub(crate) fn free_all(frames: &mut Vec<Mbuf>) {
    let count = frames.len();
    let Some(pool) = frames.first().map(|frame| frame.raw().pool) else {
        return;
    };
    let _stage = stages::enter(Stage::Memory, count);
    // Buffers that are in the pool's default state are returned without a check of each: a chain of
    // one has no links, and there are no other references to it.
    let plain = |raw: &RawMbuf| {
        raw.pool == pool
            && raw.segments == 1
            && raw.reference_count == 1
            && raw.flags & flag::MEMORY == 0
    };
    let plain = frames
        .iter()
        .fold(true, |all, frame| all & plain(frame.raw()));
    debug_assert!(!plain || frames.iter().all(|frame| frame.raw().next.is_null()));
    // SAFETY: the vector's elements are pointers to chains it owns; it forgets them before they are
    // freed.
    unsafe {
        frames.set_len(0);
        let first = frames.as_mut_ptr().cast();
        if plain {
            raw::sluice_pool_put(pool, first, count as u32);
        } else {
            raw::sluice_mbuf_free_bulk(first, count as u32);
        }
    }
}

fn bytes_of(segment: &RawMbuf) -> &[u8] {
    // SAFETY: a segment's `data_len` bytes from `data_off` lie in its buffer and are initialised
    // (they were received or written), and they live and stay unchanged as long as the segment
    // is borrowed.
    unsafe {
        std::slice::from_raw_parts(
            segment.buffer.add(usize::from(segment.data_off)),
            usize::from(segment.data_len),
        )
    }
}

fn bytes_of_mut(segment: &mut RawMbuf) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; the segment is borrowed exclusively and shares its buffer with
    // nobody.
    unsafe {
        std::slice::from_raw_parts_mut(
            segment.buffer.add(usize::from(segment.data_off)),
            usize::from(segment.data_len),
        )
    }
}

impl Frame for Mbuf {
    #[inline]
    fn len(&self) -> usize {
        self.raw().packet_len as usize
    }

    #[inline]
    fn prefetch(&self) {
        let place: *const RawMbuf = self.raw();
        packet::parse::prefetch_at(place);
        packet::parse::prefetch_at(place.cast::<u8>().wrapping_add(CACHE_LINE));
    }

    #[inline]
    fn prefetch_next(&self, count: usize) {
        // SAFETY: the mbuf is ours, and its pool lives as long as the EAL.
        unsafe { raw::sluice_pool_fetch_next(self.raw(), count as u32) };
    }

    #[inline]
    fn head(&self) -> &[u8] {
        bytes_of(self.raw())
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        bytes_of_mut(self.raw_mut())
    }

    #[inline]
    fn headroom(&self) -> usize {
        usize::from(self.raw().data_off)
    }

    #[inline]
    fn push_front(&mut self, n: usize) -> bool {
        let raw = self.raw_mut();
        if n > usize::from(raw.data_off) {
            return false;
        }
        raw.data_off -= n as u16;
        raw.data_len += n as u16;
        raw.packet_len += n as u32;
        true
    }

    #[inline]
    fn pull_front(&mut self, n: usize) -> bool {
        let raw = self.raw_mut();
        if n > usize::from(raw.data_len) {
            return false;
        }
        raw.data_off += n as u16;
        raw.data_len -= n as u16;
        raw.packet_len -= n as u32;
        true
    }

    fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        let mut keep = len;
        let mut segments = 0u16;
        let mut current = self.0.as_ptr();
        // SAFETY: walks the chain that self owns; what is cut off is unlinked and freed once.
        unsafe {
            loop {
                let segment = &mut *current;
                segments += 1;
                let here = keep.min(usize::from(segment.data_len));
                segment.data_len = here as u16;
                keep -= here;
                if keep == 0 {
                    let rest = std::mem::replace(&mut segment.next, std::ptr::null_mut());
                    if !rest.is_null() {
                        raw::sluice_mbuf_free(rest);
                    }
                    break;
                }
                current = segment.next;
            }
        }
        let head = self.raw_mut();
        head.segments = segments;
        head.packet_len = len as u32;
    }

    #[inline]
    fn linearize(&mut self, n: usize) -> bool {
        let n = n.min(self.len());
        if usize::from(self.raw().data_len) >= n {
            return true;
        }
        self.gather(n)
    }

    #[inline]
    fn segment_count(&self) -> usize {
        usize::from(self.raw().segments)
    }

    fn segment(&self, index: usize) -> Option<&[u8]> {
        self.chain().nth(index).map(bytes_of)
    }

    fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let mut current = self.0.as_ptr();
        for _ in 0..index {
            // SAFETY: `current` is a segment of the chain that self owns.
            current = NonNull::new(unsafe { (*current).next })?.as_ptr();
        }
        // SAFETY: as above, and self is borrowed exclusively for as long as the slice lives.
        Some(bytes_of_mut(unsafe { &mut *current }))
    }

    fn read_at(&self, mut offset: usize, mut out: &mut [u8]) -> bool {
        for segment in self.segments() {
            if out.is_empty() {
                break;
            }
            if offset >= segment.len() {
                offset -= segment.len();
                continue;
            }
            let n = out.len().min(segment.len() - offset);
            out[..n].copy_from_slice(&segment[offset..offset + n]);
            out = &mut out[n..];
            offset = 0;
        }
        out.is_empty()
    }

    fn duplicate(&self) -> Option<Self> {
        let mut copy = Mbuf::allocate(self.raw().pool, self.headroom())?;
        for segment in self.chain() {
            if !copy.extend(bytes_of(segment)) {
                return None;
            }
        }
        let from = self.raw();
        let to = copy.raw_mut();
        to.flags |= from.flags & !flag::MEMORY;
        to.tx_offload = from.tx_offload;
        to.port = from.port;
        to.packet_type = from.packet_type;
        to.hash_low = from.hash_low;
        to.hash_high = from.hash_high;
        Some(copy)
    }

    fn sibling(&self, bytes: &[u8]) -> Option<Self> {
        Mbuf::holding(self.raw().pool, bytes)
    }

    fn sibling_behind(&self, headroom: usize, bytes: &[u8]) -> Option<Self> {
        let headroom = headroom.max(usize::from(HEADROOM));
        let mut mbuf = Mbuf::allocate(self.raw().pool, headroom)?;
        mbuf.extend(bytes).then_some(mbuf)
    }

    fn offload(&self) -> Offload {
        let raw = self.raw();
        if raw.flags & (WORK | flag::RX_L4_CKSUM_NONE) == 0 {
            return Offload::default();
        }
        let checksum_valid = raw.flags & flag::RX_L4_CKSUM_NONE == flag::RX_L4_CKSUM_GOOD;
        if raw.flags & WORK == 0 {
            return Offload {
                checksum_valid,
                ..Offload::default()
            };
        }
        let word = raw.tx_offload;
        Offload {
            partial_checksum: word >> 56 & 1 != 0,
            checksum_valid,
            csum_start: word as u16,
            csum_offset: (word >> 16) as u16,
            gso: match word >> 48 & 0xff {
                1 => Gso::Tcp4,
                2 => Gso::Tcp6,
                3 => Gso::UdpL4,
                _ => Gso::None,
            },
            gso_size: (word >> 32) as u16,
        }
    }

    fn set_offload(&mut self, offload: Offload) {
        let raw = self.raw_mut();
        raw.flags &= !(WORK | flag::RX_L4_CKSUM_NONE);
        if offload.checksum_valid {
            raw.flags |= flag::RX_L4_CKSUM_GOOD;
        }
        if offload.partial_checksum || offload.gso != Gso::None {
            raw.flags |= WORK;
            let gso = match offload.gso {
                Gso::None => 0u64,
                Gso::Tcp4 => 1,
                Gso::Tcp6 => 2,
                Gso::UdpL4 => 3,
            };
            raw.tx_offload = u64::from(offload.csum_start)
                | u64::from(offload.csum_offset) << 16
                | u64::from(offload.gso_size) << 32
                | gso << 48
                | u64::from(offload.partial_checksum) << 56;
        }
    }
}

impl Mbuf {
    /// Returns an empty frame with `headroom` bytes in front, or as many as its buffer has. None if
    /// the pool is empty.
    pub(crate) fn allocate(pool: *mut raw::RawPool, headroom: usize) -> Option<Mbuf> {
        let _stage = stages::enter(Stage::Memory, 1);
        // SAFETY: pools live as long as the EAL; a fresh mbuf is a chain of one that nobody else
        // uses.
        let mut mbuf = unsafe { Mbuf::from_raw(NonNull::new(raw::sluice_mbuf_alloc(pool))?) };
        let raw = mbuf.raw_mut();
        raw.data_off = headroom.min(usize::from(raw.buffer_len)) as u16;
        Some(mbuf)
    }

    /// Returns a frame with `bytes`, chained as needed. None if the pool is empty.
    pub(crate) fn holding(pool: *mut raw::RawPool, bytes: &[u8]) -> Option<Mbuf> {
        let mut mbuf = Mbuf::allocate(pool, usize::from(HEADROOM))?;
        mbuf.extend(bytes).then_some(mbuf)
    }

    /// Appends `bytes`, with new segments as needed. False if there are no buffers, with some bytes
    /// added.
    pub(crate) fn extend(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            bytes = &bytes[self.append(bytes)..];
            if bytes.is_empty() {
                return true;
            }
            let Some(more) = Mbuf::allocate(self.raw().pool, 0) else {
                return false;
            };
            if more.tailroom() == 0 || !self.chain_behind(more) {
                return false;
            }
        }
    }

    /// Does the less common part of `linearize`: `n` is more than the head holds and at most the
    /// frame's length.
    #[cold]
    fn gather(&mut self, n: usize) -> bool {
        let head = self.raw();
        if usize::from(head.data_off) + n <= usize::from(head.buffer_len) {
            self.pull_up(n);
            return true;
        }
        if head.segments == u16::MAX {
            return false;
        }
        // The head's buffer is too small behind its headroom: replace the head by a new buffer
        // without headroom.
        let Some(mut fresh) = Mbuf::allocate(head.pool, 0) else {
            return false;
        };
        let room = usize::from(fresh.raw().buffer_len);
        if n > room {
            return false;
        }
        {
            let from = self.raw();
            let to = fresh.raw_mut();
            to.data_off = (room - n).min(usize::from(HEADROOM)) as u16;
            to.flags |= from.flags & !flag::MEMORY;
            to.tx_offload = from.tx_offload;
            to.port = from.port;
            to.packet_type = from.packet_type;
            to.hash_low = from.hash_low;
            to.hash_high = from.hash_high;
        }
        let old = std::mem::replace(self, fresh);
        self.chain_behind(old);
        self.pull_up(n);
        true
    }
}

/// Frames whose memory belongs to a test, without a pool.
#[cfg(test)]
pub(crate) mod kept {
    use super::*;
    use packet::checksum::Sum;
    use std::sync::atomic::{AtomicU16, Ordering};

    /// A buffer with a reference of its own: freeing the frame does not free it.
    pub(crate) struct Kept {
        raw: Box<RawMbuf>,
        bytes: Vec<u8>,
    }

    // SAFETY: it owns all that it points to.
    unsafe impl Send for Kept {}

    impl Kept {
        pub(crate) fn new() -> Kept {
            Kept {
                // SAFETY: all zeroes is a valid mbuf, if not one to use.
                raw: Box::new(unsafe { std::mem::zeroed() }),
                bytes: vec![0; 2048],
            }
        }

        /// Makes a frame of these bytes, in place of the last one. It must not outlive this, nor
        /// allocate further buffers.
        pub(crate) fn frame(&mut self, bytes: &[u8]) -> Mbuf {
            let start = usize::from(HEADROOM);
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
            // SAFETY: as above.
            *self.raw = unsafe { std::mem::zeroed() };
            self.raw.buffer = self.bytes.as_mut_ptr();
            self.raw.buffer_len = self.bytes.len() as u16;
            (self.raw.data_off, self.raw.data_len) = (HEADROOM, bytes.len() as u16);
            self.raw.packet_len = bytes.len() as u32;
            self.raw.segments = 1;
            // One reference is the frame's and one ours, so that the buffer is never returned to a
            // pool.
            self.raw.reference_count = 2;
            // SAFETY: a chain of one, which only the frame uses until it is freed.
            unsafe { Mbuf::from_raw(NonNull::from(&mut *self.raw)) }
        }

        /// Returns whether the last frame has been freed.
        pub(crate) fn is_freed(&self) -> bool {
            let count = (&raw const self.raw.reference_count).cast_mut();
            // SAFETY: the count lives as long as this and is aligned; while the frame may be freed,
            // it is only changed atomically, by DPDK.
            unsafe { AtomicU16::from_ptr(count) }.load(Ordering::Acquire) == 1
        }

        /// Returns the frame's flags when it was freed.
        pub(crate) fn flags(&self) -> u64 {
            self.raw.flags
        }
    }

    /// Offset of the UDP header in [`unfinished`].
    const UDP: usize = 34;

    /// Returns the sum over the pseudo header of [`unfinished`].
    fn pseudo_header() -> Sum {
        let mut sum = Sum::new();
        sum.add_pseudo_header(&[10, 0, 0, 1], &[10, 0, 0, 2], 17, 26);
        sum
    }

    /// Makes a UDP frame over IPv4 whose checksum must be filled in.
    pub(crate) fn unfinished(kept: &mut Kept) -> Mbuf {
        let mut bytes = [7; 60];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34].copy_from_slice(&[
            0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        bytes[UDP..UDP + 6].copy_from_slice(&[0, 1, 0, 2, 0, 26]);
        bytes[UDP + 6..UDP + 8].copy_from_slice(&pseudo_header().fold().to_be_bytes());
        let mut frame = kept.frame(&bytes);
        frame.set_offload(Offload {
            partial_checksum: true,
            csum_start: UDP as u16,
            csum_offset: 6,
            ..Offload::default()
        });
        frame
    }

    /// Returns whether the checksum of [`unfinished`] has been filled in.
    pub(crate) fn is_finished(kept: &mut Kept) -> bool {
        let start = usize::from(HEADROOM) + UDP;
        let mut sum = pseudo_header();
        sum.add_bytes(&kept.bytes[start..start + 26]);
        sum.finish() == 0
    }
}
