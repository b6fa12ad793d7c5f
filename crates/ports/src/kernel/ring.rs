//! Receives frames from the kernel through shared memory (`PACKET_RX_RING`, packet(7)).
//!
//! Without it a worker fetches frames by a system call and copies each on its own time. With it the
//! kernel copies frames as they arrive into slots of shared memory, on the sender's time; polling
//! reads one word. A frame longer than a slot (local TCP sends 64 KiB) is queued on the socket
//! instead (`PACKET_COPY_THRESH`) and its slot says so, so the order is kept.

use crate::error::last_errno;
use crate::link::set_option;
use crate::vnet;
use libc::{c_int, c_uint};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

// linux/if_packet.h
const PACKET_RX_RING: c_int = 5;
const PACKET_COPY_THRESH: c_int = 7;
const PACKET_VERSION: c_int = 10;
const TPACKET_V2: c_int = 1;
const STATUS_USER: u32 = 1;
const STATUS_COPY: u32 = 1 << 1;

/// Bytes of a slot: a frame of the usual MTU with its tags and what the kernel puts in front. A
/// block is a whole number of slots.
const SLOT: usize = 2048;
/// Slots of a ring, and so most waiting frames; with [`SLOT`], 2 MiB for each ring.
const SLOTS: usize = 1024;
/// Bytes that the kernel allocates in one piece.
const BLOCK: usize = 64 << 10;

/// `struct tpacket_req`.
#[repr(C)]
struct Request {
    block_size: c_uint,
    blocks: c_uint,
    frame_size: c_uint,
    frames: c_uint,
}

/// `struct tpacket2_hdr`, at the beginning of each slot.
#[repr(C)]
#[derive(Clone, Copy)]
struct SlotHeader {
    status: u32,
    length: u32,
    captured: u32,
    mac: u16,
    net: u16,
    seconds: u32,
    nanoseconds: u32,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// Contents of the next slot.
pub(super) enum Next<'a> {
    /// Nothing yet.
    Nothing,
    /// A frame.
    Frame {
        header: [u8; vnet::LENGTH],
        bytes: &'a [u8],
        /// The VLAN tag that the kernel removed, as TPID and TCI.
        tag: Option<(u16, u16)>,
    },
    /// A frame longer than the slot; all of it is in the socket's queue.
    Queued,
    /// The beginning of a long frame for which the queue had no room.
    Cut,
}

/// Most rings of all ports together: 512 MiB of kernel memory. Further ports fetch each burst by a
/// system call.
pub(super) const MOST_RINGS: usize = 256;

/// Number of rings, including those about to be made.
static RINGS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of rings in the process, including those about to be made.
pub(super) fn rings() -> usize {
    RINGS.load(Ordering::Relaxed)
}

/// Permission to have a ring.
pub(super) struct Permit(());

impl Permit {
    /// Returns a permit if there are fewer than `most` rings ([`MOST_RINGS`] at most).
    pub(super) fn ask(most: usize) -> Option<Permit> {
        let most = most.min(MOST_RINGS);
        let more = |rings| (rings < most).then_some(rings + 1);
        let given = RINGS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        // Made lazily, because dropping an unneeded permit would lower the count.
        given.is_ok().then(|| Permit(()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        RINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The ring of a socket.
pub(super) struct PacketRing {
    memory: *mut u8,
    /// Counts the ring while its memory exists, which is as long as the socket does.
    _permit: Permit,
    /// The next slot to read.
    next: usize,
}

// SAFETY: the memory is shared with the kernel and belongs to this object until it is dropped.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Makes a ring for a socket that receives nothing yet and has virtio-net headers enabled. The
    /// error is an `errno`; the socket can then be used without a ring.
    pub(super) fn new(fd: &OwnedFd, permit: Permit) -> Result<PacketRing, c_int> {
        set_option(fd, libc::SOL_PACKET, PACKET_VERSION, &TPACKET_V2)?;
        set_option(fd, libc::SOL_PACKET, PACKET_COPY_THRESH, &1)?;
        let request = Request {
            block_size: BLOCK as c_uint,
            blocks: (SLOT * SLOTS / BLOCK) as c_uint,
            frame_size: SLOT as c_uint,
            frames: SLOTS as c_uint,
        };
        set_option(fd, libc::SOL_PACKET, PACKET_RX_RING, &request)?;
        // SAFETY: a new mapping of the socket's ring, as long as it was just made.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SLOT * SLOTS,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(last_errno());
        }
        Ok(PacketRing {
            memory: memory.cast(),
            _permit: permit,
            next: 0,
        })
    }

    fn slot(&self, number: usize) -> *mut u8 {
        self.memory.wrapping_add(number % SLOTS * SLOT)
    }

    fn status(&self, number: usize) -> &AtomicU32 {
        // SAFETY: the first word of a slot, aligned as slots are; the kernel writes it as one word.
        unsafe { &*self.slot(number).cast::<AtomicU32>() }
    }

    /// Returns when the frame in the next slot arrived, in ns of the wall clock; 0 if the slot is
    /// empty.
    pub(super) fn came_ns(&self) -> u64 {
        let status = self.status(self.next).load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return 0;
        }
        // SAFETY: the kernel has given the slot to us and leaves it alone; the header lies at its
        // beginning, also of a frame that is in the queue.
        let header = unsafe { self.slot(self.next).cast::<SlotHeader>().read() };
        u64::from(header.seconds) * 1_000_000_000 + u64::from(header.nanoseconds)
    }

    /// Reads the next slot.
    pub(super) fn next(&self) -> Next<'_> {
        let status = self.status(self.next).load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return Next::Nothing;
        }
        if status & STATUS_COPY != 0 {
            return Next::Queued;
        }
        let slot = self.slot(self.next);
        // SAFETY: the kernel has given the slot to us and leaves it alone; the header lies at its
        // beginning.
        let header = unsafe { slot.cast::<SlotHeader>().read() };
        let (mac, captured) = (usize::from(header.mac), header.captured as usize);
        let sound = header.captured == header.length
            && mac >= std::mem::size_of::<SlotHeader>() + vnet::LENGTH
            && mac + captured <= SLOT;
        if !sound {
            return Next::Cut;
        }
        // SAFETY: as above; both parts lie within the slot, as was just checked.
        let (before, bytes) = unsafe {
            (
                slot.add(mac - vnet::LENGTH)
                    .cast::<[u8; vnet::LENGTH]>()
                    .read(),
                std::slice::from_raw_parts(slot.add(mac), captured),
            )
        };
        Next::Frame {
            header: before,
            bytes,
            tag: super::tag(status, header.vlan_tci, header.vlan_tpid),
        }
    }

    /// Returns how many slots from the next one on have their frames in the queue, up to `most`.
    pub(super) fn queued(&self, most: usize) -> usize {
        (0..most.min(SLOTS))
            .take_while(|step| {
                let status = self.status(self.next + step).load(Ordering::Acquire);
                status & (STATUS_USER | STATUS_COPY) == STATUS_USER | STATUS_COPY
            })
            .count()
    }

    /// Gives the next `count` slots back to the kernel.
    pub(super) fn give_back(&mut self, count: usize) {
        for step in 0..count {
            self.status(self.next + step).store(0, Ordering::Release);
        }
        self.next = (self.next + count) % SLOTS;
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, of which nothing is borrowed any more.
        unsafe { libc::munmap(self.memory.cast(), SLOT * SLOTS) };
    }
}
