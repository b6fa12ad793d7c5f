//! The common case of a guest's rings, without the library: split rings, frames that lie in one descriptor and ask for nothing.
//!
//! DPDK's vhost library goes to a ring frame by frame: each waits for the descriptor's cache line, then for the frame's, which the guest's processor wrote last.
//! Here a burst's descriptors are asked for first, then its frames, then all is copied. What is uncommon (packed rings, chained or indirect descriptors, large frames, checksums to
//! be filled in, an IOMMU, a log of written pages) is left where it is, and the library takes it.
//!
//! Where a ring stands ([`Place`]) is read from the library before every burst and written back, so either can go on where the other has stopped. The library guards the rings
//! against its own thread by a lock that only it can take. It tells before and after each message of the hypervisor instead ([`super::MESSAGES`]), which is when
//! memory and rings may change: meanwhile the gate in front of this is closed, and afterwards everything is read anew.
//!
//! Everything that a guest writes may change at any time and is read once, by volatile or atomic reads, before it is checked.
//!
//! A frame that comes alone waits for one cache line of another processor after the other. So what can be known is asked for early: the descriptor that most likely comes
//! next while the ring says which it is, and the guest's next buffer when frames have been put. Whether the guest wants to be told that its frames have been taken
//! is looked at when the queue is looked at next: it has to wait until all that was written has arrived at the guest's processor, and frames need not wait for that.

use crate::mbuf::{HEADROOM, Mbuf};
use crate::pool::DATA_ROOM;
use crate::raw::{self, RawMbuf, VhostRegion, VhostRing};
use libc::c_int;
use packet::io::BURST;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU16, Ordering};

/// Bits of virtio and virtio-net (virtio 1.1 sections 5.1.3 and 6; vhost-user's log), by what follows from them.
mod feature {
    const LOG_ALL: u64 = 1 << 26;
    const IOMMU: u64 = 1 << 33;
    const PACKED: u64 = 1 << 34;
    /// Left to the library.
    pub const UNCOMMON: u64 = LOG_ALL | IOMMU | PACKED;
    /// A header says what is to be done to the frame: checksums, segments (TCP over IPv4 and IPv6, with congestion marks, UDP).
    pub const GUEST_OFFLOADS: u64 = 1 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14;
    /// Headers have 12 bytes: mergeable buffers, or virtio 1.
    pub const LONG_HEADER: u64 = 1 << 15 | 1 << 32;
    pub const EVENT_INDEX: u64 = 1 << 29;
}

/// Flag of a descriptor that the guest lets us write to; no other is common.
const WRITE: u16 = 2;
/// Flag of an available ring whose guest wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// Regions of memory that a guest has at most (the library's own bound is 8).
const MAX_REGIONS: usize = 16;

/// A descriptor (virtio 1.1 section 2.6.5).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

/// A ring and the memory that its descriptors point into, as they are until the next message.
pub(super) struct View {
    descriptors: *const Descriptor,
    /// Flags, index and heads, two bytes each.
    available: *const u16,
    /// Flags and index, two bytes each, then elements of eight.
    used: *mut u16,
    /// The ring's size less 1.
    mask: u16,
    /// Bytes in front of a frame.
    header: u32,
    /// Headers are to be looked at.
    offloads: bool,
    event_index: bool,
    regions: Vec<VhostRegion>,
}

// SAFETY: what the pointers lead to is shared memory, which any thread may touch; one thread at a time uses a ring.
unsafe impl Send for View {}

/// Where a ring stands.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    /// The next entry of the available ring.
    pub next: u16,
    /// The next element of the used ring.
    pub used: u16,
    /// Entries from `next` on that are known to be there: as many need no look at the ring's index, whose cache line the guest keeps writing.
    pub known: u16,
}

/// What became of an attempt.
pub(super) struct Done {
    /// Frames taken or put.
    pub frames: usize,
    /// The ring had nothing, or no room, left. Otherwise what comes next is for the library, or the next burst.
    pub exhausted: bool,
    /// The guest may want to be told.
    pub tell: bool,
}

impl Done {
    pub const NOTHING: Done = Done {
        frames: 0,
        exhausted: false,
        tell: false,
    };
}

impl View {
    /// Reads a ring. None when it is not of the common kind.
    ///
    /// # Safety
    /// The device exists until this returns.
    pub unsafe fn read(vid: c_int, index: u16) -> Option<View> {
        let mut features = 0;
        let nowhere = std::ptr::null_mut();
        let mut ring = VhostRing {
            descriptors: nowhere,
            available: nowhere,
            used: nowhere,
            size: 0,
        };
        let empty = VhostRegion {
            guest: 0,
            host: std::ptr::null_mut(),
            size: 0,
        };
        let mut regions = vec![empty; MAX_REGIONS];
        // SAFETY: the caller keeps the device; the places are writable, the array for as many as is said.
        let known = unsafe {
            if raw::rte_vhost_get_negotiated_features(vid, &mut features) != 0
                || raw::sluice_vhost_ring(vid, index, &mut ring) != 0
            {
                return None;
            }
            raw::sluice_vhost_regions(vid, regions.as_mut_ptr(), MAX_REGIONS as c_int)
        };
        if features & feature::UNCOMMON != 0 || known <= 0 {
            return None;
        }
        regions.truncate(known as usize);
        View::of(&ring, regions, features)
    }

    /// The ring that lies there, if it is whole in memory that the guest has given: the library goes on with addresses of rings that it knows to be cut short.
    fn of(ring: &VhostRing, regions: Vec<VhostRegion>, features: u64) -> Option<View> {
        let size = usize::from(ring.size);
        let fits = ring.size.is_power_of_two()
            && is_place(&regions, ring.descriptors, 16, size * 16)
            && is_place(&regions, ring.available, 2, 6 + size * 2)
            && is_place(&regions, ring.used, 4, 6 + size * 8);
        fits.then(|| View {
            descriptors: ring.descriptors.cast(),
            available: ring.available.cast(),
            used: ring.used.cast(),
            mask: ring.size - 1,
            header: if features & feature::LONG_HEADER != 0 {
                12
            } else {
                10
            },
            offloads: features & feature::GUEST_OFFLOADS != 0,
            event_index: features & feature::EVENT_INDEX != 0,
            regions,
        })
    }

    /// Takes frames that the guest has sent, in buffers that `allocate` writes to the array (as many as it is told, or false); writes them to `room`, which has place
    /// for [`BURST`]. Whether the guest wants to be told is for the caller to ask, by [`View::wants_call`].
    ///
    /// # Safety
    /// The view is that of the device's present state, which does not change meanwhile, and nobody else uses the ring. Buffers are the caller's, as a pool has
    /// them, with room for [`DATA_ROOM`] bytes behind the headroom.
    #[inline(always)]
    pub unsafe fn take(
        &self,
        at: &mut Place,
        room: *mut *mut RawMbuf,
        allocate: impl FnOnce(*mut *mut RawMbuf, u32) -> bool,
    ) -> Done {
        // SAFETY: as the caller promises, the ring is mapped and ours.
        unsafe {
            let mut heads = [MaybeUninit::uninit(); BURST];
            let Some(heads) = self.begin(at, &mut heads, BURST) else {
                return Done::NOTHING;
            };
            let mut parts = [MaybeUninit::uninit(); BURST];
            let mut found = 0;
            for (head, slot) in heads.iter().zip(&mut parts) {
                let Some(part) = self.part_to_read(*head) else {
                    break;
                };
                prefetch(part.0);
                slot.write(part);
                found += 1;
            }
            let count = heads.len();
            if found == 0 || !allocate(room, found as u32) {
                return Done {
                    exhausted: count == 0,
                    ..Done::NOTHING
                };
            }
            for (step, part) in parts[..found].iter().enumerate() {
                let (from, length): (*const u8, u16) = part.assume_init();
                let mbuf = *room.add(step);
                start(mbuf, length);
                let to = (*mbuf).buffer.add(usize::from(HEADROOM));
                copy(from, to, usize::from(length));
                self.give_back(at.used.wrapping_add(step as u16), heads[step], 0);
            }
            self.end(at, found);
            Done {
                frames: found,
                exhausted: found == count,
                tell: false,
            }
        }
    }

    /// Copies frames to the guest, the first ones of `frames`; they stay the caller's.
    ///
    /// # Safety
    /// As for [`View::take`].
    #[inline(always)]
    pub unsafe fn put(&self, at: &mut Place, frames: &[Mbuf]) -> Done {
        // SAFETY: as the caller promises, the ring is mapped and ours.
        unsafe {
            let mut heads = [MaybeUninit::uninit(); BURST];
            let wanted = frames.len().min(BURST);
            let Some(heads) = self.begin(at, &mut heads, wanted) else {
                return Done::NOTHING;
            };
            let mut places = [MaybeUninit::uninit(); BURST];
            let mut found = 0;
            for ((head, frame), slot) in heads.iter().zip(frames).zip(&mut places) {
                let Some(place) = self.place_to_write(*head, frame) else {
                    break;
                };
                prefetch(place.cast_const());
                prefetch_to_write(place.add(self.header as usize));
                slot.write(place);
                found += 1;
            }
            let count = heads.len();
            for (step, place) in places[..found].iter().enumerate() {
                let place: *mut u8 = place.assume_init();
                let raw = frames[step].raw();
                self.write_header(place);
                copy(
                    raw.buffer.add(usize::from(raw.data_off)),
                    place.add(self.header as usize),
                    usize::from(raw.data_len),
                );
                let used = at.used.wrapping_add(step as u16);
                self.give_back(used, heads[step], self.header + u32::from(raw.data_len));
            }
            if found > 0 {
                self.end(at, found);
                self.fetch_next(at);
            }
            Done {
                frames: found,
                exhausted: found == count && found < wanted,
                tell: found > 0 && self.wants_call(),
            }
        }
    }

    /// The heads of up to `most` descriptors that the guest has made available, which are on their way to the cache. None where the guest says that there are more
    /// than the ring has.
    #[inline(always)]
    unsafe fn begin<'a>(
        &self,
        at: &mut Place,
        heads: &'a mut [MaybeUninit<u16>; BURST],
        most: usize,
    ) -> Option<&'a [u16]> {
        // SAFETY: the caller of `take` or `put` keeps the ring mapped; every index is masked to the ring's size.
        unsafe {
            if usize::from(at.known) < most {
                let index = self.available.add(1).cast::<AtomicU16>();
                let waiting = (*index).load(Ordering::Acquire).wrapping_sub(at.next);
                at.known = 0;
                if waiting > self.mask.saturating_add(1) {
                    return None;
                }
                at.known = waiting;
            }
            let count = usize::from(at.known).min(most);
            if count > 0 {
                // A guess: drivers that use one descriptor for a frame go through them in this order. The guest's processor has just written both.
                prefetch(
                    self.descriptors
                        .add(usize::from(at.next & self.mask))
                        .cast(),
                );
            }
            for (step, head) in heads[..count].iter_mut().enumerate() {
                let place = usize::from(at.next.wrapping_add(step as u16) & self.mask);
                let number = self.available.add(2 + place).read_volatile();
                head.write(number);
                prefetch(self.descriptors.add(usize::from(number & self.mask)).cast());
            }
            // The first `count` have just been written.
            Some(std::slice::from_raw_parts(
                heads.as_ptr().cast::<u16>(),
                count,
            ))
        }
    }

    /// Asks for what the next frame to the guest will be written to, where the guest has long made that available.
    #[inline(always)]
    unsafe fn fetch_next(&self, at: &Place) {
        // Descriptors in a cache line, in which the next one most likely lies already.
        const AHEAD: u16 = 4;
        if at.known <= AHEAD {
            return;
        }
        // SAFETY: as in `begin`; addresses are only asked for.
        unsafe {
            let head = |step: u16| {
                let place = usize::from(at.next.wrapping_add(step) & self.mask);
                self.available.add(2 + place).read_volatile() & self.mask
            };
            prefetch(self.descriptors.add(usize::from(head(AHEAD))).cast());
            let Some(next) = self.descriptor(head(0)) else {
                return;
            };
            if let Some(place) = self.host(next.address, self.header + 64) {
                prefetch_to_write(place);
                prefetch_to_write(place.add(64));
            }
        }
    }

    /// Says to the guest that `count` descriptors are used.
    #[inline(always)]
    unsafe fn end(&self, at: &mut Place, count: usize) {
        at.next = at.next.wrapping_add(count as u16);
        at.used = at.used.wrapping_add(count as u16);
        at.known = at.known.saturating_sub(count as u16);
        // SAFETY: as in `begin`.
        unsafe {
            let index = self.used.add(1).cast::<AtomicU16>();
            (*index).store(at.used, Ordering::Release);
        }
    }

    #[inline(always)]
    unsafe fn descriptor(&self, head: u16) -> Option<Descriptor> {
        if head > self.mask {
            return None;
        }
        // SAFETY: the ring has so many descriptors.
        Some(unsafe { self.descriptors.add(usize::from(head)).read_volatile() })
    }

    /// Where a frame of the guest lies, and its length, if it is a common one.
    #[inline(always)]
    unsafe fn part_to_read(&self, head: u16) -> Option<(*const u8, u16)> {
        // SAFETY: as in `begin`; what is read of the header lies within the checked descriptor.
        unsafe {
            let descriptor = self.descriptor(head)?;
            let length = descriptor.length.checked_sub(self.header)?;
            if descriptor.flags != 0 || length == 0 || length > u32::from(DATA_ROOM) {
                return None;
            }
            let place = self.host(descriptor.address, descriptor.length)?;
            // The first two bytes: flags and kind of segmentation.
            if self.offloads && place.cast::<u16>().read_unaligned() != 0 {
                return None;
            }
            let frame = place.add(self.header as usize);
            Some((frame.cast_const(), length as u16))
        }
    }

    /// Where a frame for the guest may be written, with its header, if it and the guest's buffer are common ones.
    #[inline(always)]
    unsafe fn place_to_write(&self, head: u16, frame: &Mbuf) -> Option<*mut u8> {
        let raw = frame.raw();
        // SAFETY: as in `begin`.
        let descriptor = unsafe { self.descriptor(head)? };
        let wanted = self.header + u32::from(raw.data_len);
        let common = raw.segments == 1
            && !frame.has_work()
            && descriptor.flags == WRITE
            && descriptor.length >= wanted;
        if !common {
            return None;
        }
        self.host(descriptor.address, wanted)
    }

    /// Where `length` bytes of the guest's memory are in ours.
    #[inline(always)]
    fn host(&self, address: u64, length: u32) -> Option<*mut u8> {
        self.regions.iter().find_map(|region| {
            let offset = address.wrapping_sub(region.guest);
            let fits = offset < region.size && region.size - offset >= u64::from(length);
            fits.then(|| region.host.wrapping_add(offset as usize))
        })
    }

    /// Lists a descriptor as used.
    #[inline(always)]
    unsafe fn give_back(&self, used: u16, head: u16, length: u32) {
        let element = u64::from(head) | u64::from(length) << 32;
        let place = usize::from(used & self.mask);
        // SAFETY: the used ring has as many elements as the ring, behind two words of two bytes.
        unsafe {
            self.used
                .add(2)
                .cast::<u64>()
                .add(place)
                .write_unaligned(element.to_le())
        };
    }

    /// A header that asks for nothing. Mostly it is one already, and then its cache line stays shared.
    #[inline(always)]
    unsafe fn write_header(&self, place: *mut u8) {
        // SAFETY: the caller has checked that there are `header` bytes.
        unsafe {
            let first = place.cast::<u64>();
            if first.read_unaligned() != 0 {
                first.write_unaligned(0);
            }
            if self.header == 12 {
                // Two bytes of offsets, and in how many buffers the frame lies.
                let (second, one) = (place.add(8).cast::<u32>(), (1_u32 << 16).to_le());
                if second.read_unaligned() != one {
                    second.write_unaligned(one);
                }
            } else {
                let second = place.add(8).cast::<u16>();
                if second.read_unaligned() != 0 {
                    second.write_unaligned(0);
                }
            }
        }
    }

    /// Whether the guest may want an interrupt for what was listed as used.
    ///
    /// # Safety
    /// As for [`View::take`].
    #[inline(always)]
    pub unsafe fn wants_call(&self) -> bool {
        // The guest must see the index before we look at its wish.
        full_fence();
        // SAFETY: as in `begin`.
        self.event_index || unsafe { self.available.read_volatile() } & NO_INTERRUPT == 0
    }
}

/// Whether `length` bytes from an address on lie in one of the regions, aligned as a ring's part has to be.
fn is_place(
    regions: &[VhostRegion],
    address: *mut libc::c_void,
    alignment: usize,
    length: usize,
) -> bool {
    let lies_in = |region: &VhostRegion| {
        let offset = (address as usize).wrapping_sub(region.host as usize) as u64;
        !region.host.is_null() && offset < region.size && region.size - offset >= length as u64
    };
    (address as usize).is_multiple_of(alignment) && regions.iter().any(lies_in)
}

/// Makes a fresh buffer of the pool a frame of one segment. What else it says stays: nobody reads it without a flag.
///
/// # Safety
/// The buffer is the caller's alone, as the pool gave it.
#[inline(always)]
unsafe fn start(mbuf: *mut RawMbuf, length: u16) {
    // SAFETY: as the caller promises.
    let mbuf = unsafe { &mut *mbuf };
    mbuf.data_off = HEADROOM;
    mbuf.reference_count = 1;
    mbuf.segments = 1;
    mbuf.port = u16::MAX;
    mbuf.flags = 0;
    mbuf.packet_type = 0;
    mbuf.packet_len = u32::from(length);
    mbuf.data_len = length;
    mbuf.vlan_tci = 0;
}

/// Copies exactly `length` bytes; short ones in blocks that may overlap, without a call.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes, and they are apart.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    const BLOCK: usize = 64;
    // SAFETY: as the caller promises; every block lies within the first `length` bytes.
    unsafe {
        if !(BLOCK..=BLOCK * 4).contains(&length) {
            return std::ptr::copy_nonoverlapping(from, to, length);
        }
        let last = length - BLOCK;
        let mut at = 0;
        while at < last {
            std::ptr::copy_nonoverlapping(from.add(at), to.add(at), BLOCK);
            at += BLOCK;
        }
        std::ptr::copy_nonoverlapping(from.add(last), to.add(last), BLOCK);
    }
}

/// Everything written before is seen before anything is read after. A locked instruction is that too, and takes a third of what `mfence` does.
#[inline(always)]
fn full_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: adds nothing to a word of the stack.
    unsafe {
        std::arch::asm!("lock add dword ptr [rsp], 0");
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Asks for a cache line that will be written; any address will do.
#[inline(always)]
fn prefetch_to_write(place: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory and does not fault; processors that do not know this one do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks for a cache line; any address will do.
#[inline(always)]
fn prefetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory and does not fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests;
