//! A guest's rings (virtio 1.1 section 2.6, split rings).
//!
//! Handling a ring frame by frame waits for the descriptor's cache line each time, then for the
//! frame's, which the guest's processor wrote last. Here a burst's descriptors are prefetched
//! first, then its frames, then all are copied: this is for frames in one descriptor without
//! offloads ([`View::take`], [`View::put`]). Uncommon frames (chains, indirect descriptors, long
//! frames, checksums to be filled in, several buffers for one frame, a log of written pages) are
//! taken and put one by one ([`View::take_one`], [`View::put_one`]).
//!
//! A chain's descriptors are copied, and their lengths summed, before a byte of the frame is: a
//! chain that is longer than any frame, or has more than [`MAX_PARTS`] parts, costs no buffer, only
//! the reading of so many descriptors. Only the copies are used, so a guest gains nothing by
//! changing them meanwhile.
//!
//! The ring's position ([`RingPosition`]) belongs to the device ([`super::device::Position`]): it
//! is read before every burst and written back, and the device reports it to a front end that asks.
//! Memory and rings change while a message is handled: meanwhile the gate in front of them is
//! closed, and afterwards everything is read again.
//!
//! Everything that a guest writes may change at any time and is read once, by volatile or atomic
//! reads, before it is checked.
//!
//! A single frame waits for one cache line of another processor after the other. So what can be
//! predicted is prefetched early: the descriptor that most likely comes next while the ring's index
//! is read, and the guest's next buffer when frames have been put. Whether the guest wants a
//! notification for taken frames is checked at the next poll of the queue: the check has to wait
//! until all writes have reached the guest's processor, and frames need not wait for that.

use super::memory::DirtyLog;
use super::sizes::Tally;
use crate::mbuf::{HEADROOM, Mbuf};
use crate::pool::DATA_ROOM;
use crate::raw::RawMbuf;
use crate::{egress, vnet};
use packet::frame::{Frame, Offload};
use packet::io::BURST;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Feature bits of virtio and virtio-net (virtio 1.1 sections 5.1.3 and 6; vhost-user's log),
/// grouped by their effect.
mod feature {
    const IOMMU: u64 = 1 << 33;
    const PACKED: u64 = 1 << 34;
    /// Bits that are neither offered nor supported.
    pub const UNKNOWN: u64 = IOMMU | PACKED;
    /// A header says what must be done to the frame: checksums, segmentation (TCP over IPv4 and
    /// IPv6, with ECN, UDP).
    pub const GUEST_OFFLOADS: u64 = 1 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14;
    pub const MERGEABLE: u64 = 1 << 15;
    /// Headers have 12 bytes: mergeable buffers, or virtio 1.
    pub const LONG_HEADER: u64 = MERGEABLE | 1 << 32;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_INDEX: u64 = 1 << 29;
}

/// Descriptor flag: another one of the chain follows.
const NEXT: u16 = 1;
/// Descriptor flag: the guest lets us write to the buffer; common descriptors have no other.
const WRITE: u16 = 2;
/// Descriptor flag: it refers to a table of descriptors.
const INDIRECT: u16 = 4;

/// The longest frame taken from a guest, in bytes: 64 KiB of IP, Ethernet and tags. A ring could
/// describe one of many megabytes, which would take all buffers from other ports.
pub(super) const LONGEST: u32 = 65_536 + 256;

/// Most pieces of memory for a frame. Linux uses up to 19 descriptors.
const MAX_PARTS: usize = 256;

/// Buffers for the longest frame: the first has headroom, the others have none.
const MAX_BUFFERS: usize =
    1 + (LONGEST as usize - DATA_ROOM as usize).div_ceil((DATA_ROOM + HEADROOM) as usize);

/// Flag of an available ring: the guest wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// Flag of a used ring: the switch wants no kicks.
const NO_KICKS: u16 = 1;
/// A part of a guest's memory: its address there, and in this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    pub guest: u64,
    pub host: *mut u8,
    /// Length in bytes.
    pub size: u64,
}

// SAFETY: shared memory, which any thread may touch as such.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Addresses of a ring's parts in this process; null if not mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingAddresses {
    pub descriptors: *mut u8,
    pub available: *mut u8,
    pub used: *mut u8,
    /// Number of descriptors.
    pub size: u16,
}

// SAFETY: shared memory, which any thread may touch as such.
unsafe impl Send for RingAddresses {}
// SAFETY: as above.
unsafe impl Sync for RingAddresses {}

/// A descriptor (virtio 1.1 section 2.6.5).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

impl From<[u8; 16]> for Descriptor {
    fn from(bytes: [u8; 16]) -> Descriptor {
        let all = u128::from_le_bytes(bytes);
        Descriptor {
            address: all as u64,
            length: (all >> 64) as u32,
            flags: (all >> 96) as u16,
            next: (all >> 112) as u16,
        }
    }
}

/// A ring and the memory of its descriptors, valid until the next message.
pub(super) struct View {
    descriptors: *const Descriptor,
    /// Flags, index and heads, two bytes each.
    available: *const u16,
    /// Flags and index, two bytes each, then elements of eight.
    used: *mut u16,
    /// The ring's size less 1.
    mask: u16,
    /// Bytes of the header in front of a frame.
    header: u32,
    /// Whether headers must be checked.
    offloads: bool,
    /// Whether a frame may take several buffers.
    mergeable: bool,
    indirect: bool,
    event_index: bool,
    regions: Vec<Region>,
    log: Option<Log>,
}

/// The log of written pages, for a guest that is being migrated to another host.
pub(super) struct Log {
    pub pages: Arc<DirtyLog>,
    /// The guest's address of its used ring, if writes to that are logged.
    pub used: Option<u64>,
}

impl Log {
    /// Logs that a part of the guest's memory was written.
    fn written(&self, address: u64, length: u64) {
        self.pages.written(address, length);
    }

    /// Logs that a part of the used ring was written.
    fn used(&self, offset: u64, length: u64) {
        if let Some(address) = self.used {
            self.pages.written(address.wrapping_add(offset), length);
        }
    }
}

// SAFETY: what the pointers lead to is shared memory, which any thread may touch; one thread at a
// time uses a ring.
unsafe impl Send for View {}

/// A ring's position.
#[derive(Clone, Copy, Default)]
pub(super) struct RingPosition {
    /// The next entry of the available ring.
    pub next: u16,
    /// The next element of the used ring.
    pub used: u16,
    /// The next element of the used ring when it was last checked whether the guest wants a
    /// notification.
    pub told: Option<u16>,
    /// Number of entries from `next` on that are known to be available: they can be used without
    /// reading the ring's index, whose cache line the guest keeps writing.
    pub known: u16,
}

/// Result of transferring common frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// Number of frames taken or put.
    pub frames: usize,
    /// Whether the ring had nothing, or no room, left. Otherwise the next frame is not common, or
    /// is for the next burst.
    pub exhausted: bool,
    /// Frames taken, by size.
    pub sizes: Tally,
}

impl Done {
    pub const NOTHING: Done = Done {
        frames: 0,
        exhausted: false,
        sizes: Tally::NONE,
    };
}

/// Result of taking the next frame of a guest, common or not.
#[derive(Debug)]
pub(super) enum Taken {
    Frame(Mbuf),
    /// It was invalid, or longer than [`LONGEST`], and was given back uncopied.
    Refused,
    /// There is no frame.
    Nothing,
    /// No buffers are free; the frame waits.
    NoBuffer,
}

/// Result of putting a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put {
    Done,
    /// The guest has too few buffers at the moment.
    Full,
    /// Its next buffer is too small, and each frame takes only one.
    TooSmall,
    /// Invalid buffers were given back; there may be others.
    Refused,
}

/// A piece of a guest's memory.
#[derive(Clone, Copy)]
struct Part {
    guest: u64,
    host: *mut u8,
    length: u32,
}

/// The pieces of memory of a chain of descriptors, in order.
struct Parts {
    list: [MaybeUninit<Part>; MAX_PARTS],
    count: usize,
    /// Sum of their lengths in bytes.
    bytes: u64,
}

/// Error for an invalid chain.
struct Senseless;

impl Parts {
    fn new() -> Parts {
        Parts {
            list: [const { MaybeUninit::uninit() }; MAX_PARTS],
            count: 0,
            bytes: 0,
        }
    }

    fn push(&mut self, part: Part) -> Result<(), Senseless> {
        let slot = self.list.get_mut(self.count).ok_or(Senseless)?;
        slot.write(part);
        self.count += 1;
        self.bytes += u64::from(part.length);
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = Part> {
        // SAFETY: the first `count` have been written.
        let known = |slot: &MaybeUninit<Part>| unsafe { slot.assume_init() };
        self.list[..self.count].iter().map(known)
    }
}

/// Position in a chain's memory.
struct Cursor<'a, I: Iterator<Item = Part>> {
    parts: I,
    now: Part,
    log: Option<&'a Log>,
}

impl<'a, I: Iterator<Item = Part>> Cursor<'a, I> {
    fn new(parts: I, log: Option<&'a Log>) -> Self {
        let now = Part {
            guest: 0,
            host: std::ptr::null_mut(),
            length: 0,
        };
        Cursor { parts, now, log }
    }

    /// Returns the next piece, of `most` bytes at most; None at the end.
    fn next(&mut self, most: usize) -> Option<(*mut u8, usize)> {
        while self.now.length == 0 {
            self.now = self.parts.next()?;
        }
        let (place, length) = (self.now.host, most.min(self.now.length as usize));
        if let Some(log) = self.log {
            log.written(self.now.guest, length as u64);
        }
        self.now.guest += length as u64;
        self.now.host = place.wrapping_add(length);
        self.now.length -= length as u32;
        Some((place, length))
    }

    /// Copies the next `length` bytes to `to`.
    ///
    /// # Safety
    /// The parts lie in mapped memory; `to` is writable for as many bytes and no part of it.
    unsafe fn read(&mut self, mut to: *mut u8, mut length: usize) {
        while length > 0
            && let Some((from, count)) = self.next(length)
        {
            // SAFETY: as the caller promises; a piece is no longer than asked for.
            unsafe {
                std::ptr::copy_nonoverlapping(from.cast_const(), to, count);
                to = to.add(count);
            }
            length -= count;
        }
    }

    /// Copies bytes to the next positions.
    ///
    /// # Safety
    /// The parts lie in mapped memory, and the bytes do not.
    unsafe fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty()
            && let Some((to, count)) = self.next(bytes.len())
        {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count) };
            bytes = &bytes[count..];
        }
    }
}

impl View {
    /// Returns the ring at these addresses, if all of it is in the guest's memory and its features
    /// are supported.
    pub fn of(
        ring: &RingAddresses,
        regions: Vec<Region>,
        features: u64,
        log: Option<Log>,
    ) -> Option<View> {
        let size = usize::from(ring.size);
        let fits = features & feature::UNKNOWN == 0
            && ring.size.is_power_of_two()
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
            mergeable: features & feature::MERGEABLE != 0,
            indirect: features & feature::INDIRECT != 0,
            event_index: features & feature::EVENT_INDEX != 0,
            regions,
            log,
        })
    }

    /// Returns the used ring's index.
    ///
    /// # Safety
    /// The view is that of the device's present state.
    pub unsafe fn used_index(&self) -> u16 {
        // SAFETY: as the caller promises, the ring is mapped.
        unsafe { self.used.add(1).read_volatile() }
    }

    /// Takes frames that the guest has sent. `allocate` writes as many buffers to an array as it is
    /// told, or returns false; frames are written to `room`, which has place for [`BURST`]. The
    /// caller must check whether the guest wants a notification ([`View::wants_call`]). Takes
    /// common frames only; there may be others behind them.
    ///
    /// # Safety
    /// The view is that of the device's present state, which does not change meanwhile, and nobody
    /// else uses the ring. Buffers are the caller's, as a pool has them, with room for
    /// [`DATA_ROOM`] bytes behind the headroom.
    #[inline(always)]
    pub unsafe fn take(
        &self,
        at: &mut RingPosition,
        most: usize,
        room: *mut *mut RawMbuf,
        allocate: impl FnOnce(*mut *mut RawMbuf, u32) -> bool,
    ) -> Done {
        // SAFETY: as the caller promises, the ring is mapped and ours.
        unsafe {
            let mut heads = [MaybeUninit::uninit(); BURST];
            if self.log.is_some() {
                return Done::NOTHING;
            }
            let Some(heads) = self.begin(at, &mut heads, most.min(BURST)) else {
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
                    frames: 0,
                    exhausted: count == 0,
                    sizes: Tally::NONE,
                };
            }
            let mut sizes = Tally::NONE;
            for (step, part) in parts[..found].iter().enumerate() {
                let (from, length): (*const u8, u16) = part.assume_init();
                let mbuf = *room.add(step);
                start(mbuf, length);
                let to = (*mbuf).buffer.add(usize::from(HEADROOM));
                copy(from, to, usize::from(length));
                self.give_back(at.used.wrapping_add(step as u16), heads[step], 0);
                sizes.add(usize::from(length));
            }
            self.end(at, found);
            Done {
                frames: found,
                exhausted: found == count && count < most.min(BURST),
                sizes,
            }
        }
    }

    /// Copies the first ones of `frames` to the guest; the caller keeps the frames.
    ///
    /// # Safety
    /// As for [`View::take`].
    #[inline(always)]
    pub unsafe fn put(&self, at: &mut RingPosition, frames: &[Mbuf]) -> Done {
        // SAFETY: as the caller promises, the ring is mapped and ours.
        unsafe {
            let mut heads = [MaybeUninit::uninit(); BURST];
            let wanted = frames.len().min(BURST);
            if self.log.is_some() {
                return Done::NOTHING;
            }
            let Some(heads) = self.begin(at, &mut heads, wanted) else {
                return Done::NOTHING;
            };
            let mut addresses = [MaybeUninit::uninit(); BURST];
            let mut found = 0;
            for ((head, frame), slot) in heads.iter().zip(frames).zip(&mut addresses) {
                let Some(place) = self.place_to_write(*head, frame) else {
                    break;
                };
                prefetch(place.cast_const());
                prefetch_to_write(place.add(self.header as usize));
                slot.write(place);
                found += 1;
            }
            let count = heads.len();
            for (step, place) in addresses[..found].iter().enumerate() {
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
                sizes: Tally::NONE,
            }
        }
    }

    /// Checks how many entries are available, if fewer than `most` are known. None if the guest
    /// claims more than the ring has.
    #[inline(always)]
    unsafe fn look(&self, at: &mut RingPosition, most: usize) -> Option<()> {
        if usize::from(at.known) < most {
            // SAFETY: as in `begin`.
            let index = unsafe { &*self.available.add(1).cast::<AtomicU16>() };
            let waiting = index.load(Ordering::Acquire).wrapping_sub(at.next);
            at.known = 0;
            if waiting > self.mask.saturating_add(1) {
                return None;
            }
            at.known = waiting;
        }
        Some(())
    }

    /// Returns the heads of up to `most` available descriptors, which have been prefetched. None if
    /// the guest claims more than the ring has.
    #[inline(always)]
    unsafe fn begin<'a>(
        &self,
        at: &mut RingPosition,
        heads: &'a mut [MaybeUninit<u16>; BURST],
        most: usize,
    ) -> Option<&'a [u16]> {
        // SAFETY: the caller of `take` or `put` keeps the ring mapped; every index is masked to the
        // ring's size.
        unsafe {
            self.look(at, most)?;
            let count = usize::from(at.known).min(most);
            if count > 0 {
                // A guess: drivers that use one descriptor for a frame use them in order. The
                // guest's processor has just written both.
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

    /// Prefetches the buffer for the next frame to the guest, if the guest made it available some
    /// time ago.
    #[inline(always)]
    unsafe fn fetch_next(&self, at: &RingPosition) {
        // Descriptors in a cache line; the next one is most likely cached already.
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

    /// Publishes `count` descriptors as used.
    #[inline(always)]
    unsafe fn end(&self, at: &mut RingPosition, count: usize) {
        at.next = at.next.wrapping_add(count as u16);
        at.used = at.used.wrapping_add(count as u16);
        at.known = at.known.saturating_sub(count as u16);
        // SAFETY: as in `begin`.
        unsafe {
            let index = self.used.add(1).cast::<AtomicU16>();
            (*index).store(at.used, Ordering::Release);
        }
    }

    /// Takes the next frame, common or not, in buffers that `allocate` writes to the array as for
    /// [`View::take`].
    ///
    /// # Safety
    /// As for [`View::take`].
    #[cold]
    pub unsafe fn take_one(
        &self,
        at: &mut RingPosition,
        allocate: impl FnOnce(*mut *mut RawMbuf, u32) -> bool,
    ) -> Taken {
        // SAFETY: as the caller promises, the ring is mapped and ours.
        unsafe {
            if self.look(at, 1).is_none() || at.known == 0 {
                return Taken::Nothing;
            }
            let head = self.head(at, 0);
            let mut parts = Parts::new();
            let most = u64::from(self.header) + u64::from(LONGEST);
            let sound = self.gather(head, 0, most, &mut parts).is_ok();
            let header = u64::from(self.header);
            if !sound || parts.bytes <= header || parts.bytes > most {
                self.finish(at, &[(head, 0)]);
                return Taken::Refused;
            }
            let length = (parts.bytes - header) as usize;
            let mut from = Cursor::new(parts.iter(), None);
            let mut bytes = [0; 12];
            from.read(bytes.as_mut_ptr(), self.header as usize);
            let offload = match bytes.first_chunk() {
                Some(bytes) if self.offloads => vnet::decode(bytes, length),
                _ => Some(Offload::default()),
            };
            let Some(offload) = offload else {
                self.finish(at, &[(head, 0)]);
                return Taken::Refused;
            };
            let mut buffers = [std::ptr::null_mut(); MAX_BUFFERS];
            let rest = length.saturating_sub(usize::from(DATA_ROOM));
            let count = 1 + rest.div_ceil(usize::from(DATA_ROOM + HEADROOM));
            if !allocate(buffers.as_mut_ptr(), count as u32) {
                return Taken::NoBuffer;
            }
            let mut left = length;
            for step in 0..count {
                let buffer = buffers[step];
                let room = if step == 0 {
                    DATA_ROOM
                } else {
                    DATA_ROOM + HEADROOM
                };
                let here = left.min(usize::from(room));
                start(buffer, here as u16);
                if step > 0 {
                    (*buffer).data_off = 0;
                    (*buffers[step - 1]).next = buffer;
                }
                let raw = &*buffer;
                from.read(raw.buffer.add(usize::from(raw.data_off)), here);
                left -= here;
            }
            (*buffers[0]).segments = count as u16;
            (*buffers[0]).packet_len = length as u32;
            self.finish(at, &[(head, 0)]);
            let Some(first) = NonNull::new(buffers[0]) else {
                return Taken::Refused;
            };
            let mut frame = Mbuf::from_raw(first);
            frame.set_offload(offload);
            Taken::Frame(frame)
        }
    }

    /// Copies a frame to the guest, common or not.
    ///
    /// # Safety
    /// As for [`View::take`].
    #[cold]
    pub unsafe fn put_one(&self, at: &mut RingPosition, frame: &Mbuf) -> Put {
        // SAFETY: as the caller promises, the ring is mapped and ours.
        unsafe {
            let wanted = u64::from(self.header) + frame.len() as u64;
            let mut parts = Parts::new();
            let mut heads = [(0, 0); MAX_PARTS];
            let mut count = 0;
            while parts.bytes < wanted {
                if count == heads.len() || (count > 0 && !self.mergeable) {
                    return Put::TooSmall;
                }
                if self.look(at, count + 1).is_none() || usize::from(at.known) <= count {
                    return Put::Full;
                }
                let (head, before) = (self.head(at, count), parts.bytes);
                heads[count] = (head, 0);
                count += 1;
                if self.gather(head, WRITE, wanted - 1, &mut parts).is_err() {
                    // Data written to earlier buffers cannot be told apart from it, so all are
                    // returned empty.
                    heads[..count].iter_mut().for_each(|head| head.1 = 0);
                    self.finish(at, &heads[..count]);
                    return Put::Refused;
                }
                heads[count - 1].1 = (parts.bytes.min(wanted) - before) as u32;
            }
            let mut header = [0; 12];
            if frame.has_work() {
                let offload = frame.offload();
                let encoded = vnet::encode(&offload, egress::transport(frame, &offload));
                header[..vnet::LENGTH].copy_from_slice(&encoded);
            }
            header[10..].copy_from_slice(&(count as u16).to_le_bytes());
            let mut to = Cursor::new(parts.iter(), self.log.as_ref());
            to.write(&header[..self.header as usize]);
            for segment in frame.segments() {
                to.write(segment);
            }
            self.finish(at, &heads[..count]);
            Put::Done
        }
    }

    /// Returns the head of available entry number `step`.
    #[inline(always)]
    unsafe fn head(&self, at: &RingPosition, step: usize) -> u16 {
        let place = usize::from(at.next.wrapping_add(step as u16) & self.mask);
        // SAFETY: as in `begin`.
        unsafe { self.available.add(2 + place).read_volatile() }
    }

    /// Lists the next entries as used, with the number of bytes written to each. A head that is not
    /// a descriptor of the ring is skipped.
    unsafe fn finish(&self, at: &mut RingPosition, heads: &[(u16, u32)]) {
        let first = at.used;
        // SAFETY: as in `begin`.
        unsafe {
            for (head, length) in heads {
                at.next = at.next.wrapping_add(1);
                at.known = at.known.saturating_sub(1);
                if *head > self.mask {
                    continue;
                }
                self.give_back(at.used, *head, *length);
                if let Some(log) = &self.log {
                    log.used(4 + u64::from(at.used & self.mask) * 8, 8);
                }
                at.used = at.used.wrapping_add(1);
            }
            if at.used != first {
                let index = self.used.add(1).cast::<AtomicU16>();
                (*index).store(at.used, Ordering::Release);
                if let Some(log) = &self.log {
                    log.used(2, 2);
                }
            }
        }
    }

    /// Adds the memory of the chain that begins with descriptor `head`, all of it to be read or,
    /// with [`WRITE`], to be written. Stops beyond `most` bytes.
    unsafe fn gather(
        &self,
        head: u16,
        kind: u16,
        most: u64,
        parts: &mut Parts,
    ) -> Result<(), Senseless> {
        // SAFETY: as in `begin`; tables lie in memory that the guest has given, and numbers are
        // below their length.
        unsafe {
            let first = self.descriptor(head).ok_or(Senseless)?;
            let (mut table, mut length) = (self.descriptors.cast::<[u8; 16]>(), self.mask + 1);
            let mut number = head;
            if first.flags & INDIRECT != 0 {
                let entries = first.length / 16;
                let whole = first.length.is_multiple_of(16) && first.flags & NEXT == 0;
                let most = (u32::from(self.mask) + 1).max(MAX_PARTS as u32);
                if !self.indirect || !whole || entries > most {
                    return Err(Senseless);
                }
                let place = self.host(first.address, first.length).ok_or(Senseless)?;
                (table, length, number) =
                    (place.cast::<[u8; 16]>().cast_const(), entries as u16, 0);
            }
            // A longer chain is a loop, or has too many parts.
            for _ in 0..=MAX_PARTS {
                if number >= length {
                    return Err(Senseless);
                }
                // Copied before it is checked; a guest's table need not be aligned.
                let copied = table.add(usize::from(number)).read_volatile();
                let one = Descriptor::from(copied);
                if one.flags & (WRITE | INDIRECT) != kind {
                    return Err(Senseless);
                }
                self.resolve(one.address, one.length, parts)?;
                if one.flags & NEXT == 0 || parts.bytes > most {
                    return Ok(());
                }
                number = one.next;
            }
            Err(Senseless)
        }
    }

    /// Adds a piece of the guest's memory, which may span several adjacent regions.
    fn resolve(
        &self,
        mut address: u64,
        mut length: u32,
        parts: &mut Parts,
    ) -> Result<(), Senseless> {
        if length == 0 {
            return Err(Senseless);
        }
        while length > 0 {
            let found = self.regions.iter().find_map(|region| {
                let offset = address.wrapping_sub(region.guest);
                (offset < region.size).then(|| (region, offset, region.size - offset))
            });
            let (region, offset, room) = found.ok_or(Senseless)?;
            let here = u64::from(length).min(room) as u32;
            parts.push(Part {
                guest: address,
                host: region.host.wrapping_add(offset as usize),
                length: here,
            })?;
            address = address.wrapping_add(u64::from(here));
            length -= here;
        }
        Ok(())
    }

    /// Returns whether there are entries that have not been taken.
    ///
    /// # Safety
    /// As for [`View::take`].
    pub unsafe fn is_waiting(&self, at: &mut RingPosition) -> bool {
        // SAFETY: as in `begin`.
        unsafe { self.look(at, 1) }.is_some() && at.known > 0
    }

    /// Tells the guest whether to kick when it has put something into the ring.
    ///
    /// # Safety
    /// As for [`View::take`].
    pub unsafe fn ask_for_kicks(&self, at: &RingPosition, wanted: bool) {
        let size = usize::from(self.mask) + 1;
        // SAFETY: as in `begin`; behind the elements of the used ring there is one more number.
        unsafe {
            let (place, value, offset) = match (self.event_index, wanted) {
                (true, true) => (self.used.add(2 + size * 4), at.next, 4 + size as u64 * 8),
                // The guest kicks when it passes the stored number, which it already has.
                (true, false) => return,
                (false, true) => (self.used, 0, 0),
                (false, false) => (self.used, NO_KICKS, 0),
            };
            if place.read_volatile() != value {
                place.write_volatile(value);
                if let Some(log) = &self.log {
                    log.used(offset, 2);
                }
            }
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

    /// Returns the address and length of a frame of the guest, if it is a common one.
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

    /// Returns where a frame for the guest can be written, with its header, if both the frame and
    /// the guest's buffer are common ones.
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

    /// Translates `length` bytes of the guest's memory to an address here.
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

    /// Writes a header without offloads. Mostly it has these contents already, and then its cache
    /// line stays shared.
    #[inline(always)]
    unsafe fn write_header(&self, place: *mut u8) {
        // SAFETY: the caller has checked that there are `header` bytes.
        unsafe {
            let first = place.cast::<u64>();
            if first.read_unaligned() != 0 {
                first.write_unaligned(0);
            }
            if self.header == 12 {
                // Two bytes of offsets, and the number of buffers of the frame.
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

    /// Returns whether the guest wants an interrupt for entries listed as used since the last
    /// check.
    ///
    /// # Safety
    /// As for [`View::take`].
    #[inline(always)]
    pub unsafe fn wants_call(&self, at: &mut RingPosition) -> bool {
        // The guest must see the index before its request is read.
        full_fence();
        let before = at.told.replace(at.used);
        // SAFETY: as in `begin`; behind the heads of the available ring there is one more number.
        unsafe {
            if !self.event_index {
                return self.available.read_volatile() & NO_INTERRUPT == 0;
            }
            let wish = self.available.add(2 + usize::from(self.mask) + 1);
            let wish = wish.read_volatile();
            // virtio 1.1 section 2.6.7.2
            before.is_none_or(|before| {
                at.used.wrapping_sub(wish).wrapping_sub(1) < at.used.wrapping_sub(before)
            })
        }
    }
}

/// Returns whether `length` bytes from an address on lie in one of the regions, with the alignment
/// that a ring's part needs.
fn is_place(regions: &[Region], address: *mut u8, alignment: usize, length: usize) -> bool {
    let lies_in = |region: &Region| {
        let offset = (address as usize).wrapping_sub(region.host as usize) as u64;
        !region.host.is_null() && offset < region.size && region.size - offset >= length as u64
    };
    (address as usize).is_multiple_of(alignment) && regions.iter().any(lies_in)
}

/// Makes a frame of one segment of a fresh buffer. Other fields keep their values: nobody reads
/// them without a flag.
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

/// Orders all earlier writes before all later reads. A locked instruction does that, too, in a
/// third of the time of `mfence`.
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

/// Prefetches a cache line to be written; any address is allowed.
#[inline(always)]
fn prefetch_to_write(place: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory and does not fault; processors that do not know
    // this one do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Prefetches a cache line; any address is allowed.
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
