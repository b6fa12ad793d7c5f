//! Whatever a guest may write into its rings: descriptors, chains, indirect tables and headers of
//! any kind, in memory with nothing readable around it. Frames are accepted or refused, delivered
//! or not, and only memory that the guest has shared is accessed.
//!
//! The modules are included by path, and stubs replace the DPDK functions they call, so that DPDK
//! need not be linked.
//!
//! Input: features, then the ring's memory, then how the ring is used.
#![no_main]
#![allow(dead_code, unused_imports)]

use input::Input;
use libfuzzer_sys::fuzz_target;
use packet::frame::{Frame, Gso, Offload};
use memory::DirtyLog;
use message::VhostUserLog;
use packet::io::BURST;
use raw::{RawMbuf, RawPool};
use ring::{LONGEST, Log, RingPosition, RingAddresses, Region, Taken, View};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

mod input;
#[path = "../../crates/ports/src/egress.rs"]
mod egress;
#[path = "../../crates/ports/src/mbuf.rs"]
mod mbuf;
#[path = "../../crates/ports/src/vhost/memory.rs"]
mod memory;
#[path = "../../crates/ports/src/vhost/message.rs"]
mod message;
#[path = "../../crates/ports/src/raw.rs"]
mod raw;
#[path = "../../crates/ports/src/vhost/ring.rs"]
mod ring;
#[path = "../../crates/ports/src/vhost/sizes.rs"]
mod sizes;
#[path = "../../crates/ports/src/vnet.rs"]
mod vnet;

// No guest takes its memory away here.
mod fault {
    pub fn forget(_: usize) {}
    pub fn has_replaced(_: usize) -> bool {
        false
    }
}

mod pool {
    pub const DATA_ROOM: u16 = 2048;
}

mod error {
    pub fn last_errno() -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }
}

fn describe(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

const SIZE: u16 = 16;
/// Bytes that the guest has: a page of rings, and a page of tables and buffers.
const PAGE: usize = 4096;
const GUEST: u64 = 0x1000;
const ROOM: usize = 2176;

/// Two pages of the guest's, each between pages that nobody may touch.
fn memory() -> [*mut u8; 2] {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    let start = *MEMORY.get_or_init(|| {
        // SAFETY: a new mapping, of which two pages are opened.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let place = libc::mmap(std::ptr::null_mut(), PAGE * 5, libc::PROT_NONE, flags, -1, 0);
            assert!(place != libc::MAP_FAILED);
            for page in [1, 3] {
                let open = libc::PROT_READ | libc::PROT_WRITE;
                assert_eq!(libc::mprotect(place.cast::<u8>().add(page * PAGE).cast(), PAGE, open), 0);
            }
            place as usize
        }
    });
    [start + PAGE, start + 3 * PAGE].map(|place| place as *mut u8)
}

/// Returns a log of one byte, which covers two pages more than the guest has.
fn dirty_log() -> Arc<DirtyLog> {
    static LOG: OnceLock<Arc<DirtyLog>> = OnceLock::new();
    let make = || {
        // SAFETY: the name is a string; the descriptor is new and nobody else's.
        let file = unsafe {
            let fd = libc::memfd_create(c"log".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0 && libc::ftruncate(fd, 8) == 0);
            OwnedFd::from_raw_fd(fd)
        };
        let whole = VhostUserLog::new(1, 0);
        Arc::new(DirtyLog::map(&whole, &file).expect("a log"))
    };
    Arc::clone(LOG.get_or_init(make))
}

fn buffer() -> *mut RawMbuf {
    // SAFETY: all zeroes is a valid mbuf; its buffer is freed with it, below.
    let mut raw: Box<RawMbuf> = Box::new(unsafe { std::mem::zeroed() });
    raw.buffer = Box::leak(Box::new([0u8; ROOM])).as_mut_ptr();
    (raw.buffer_len, raw.reference_count, raw.segments) = (ROOM as u16, 1, 1);
    Box::into_raw(raw)
}

#[unsafe(no_mangle)]
extern "C" fn sluice_mbuf_free(mut mbuf: *mut RawMbuf) {
    while !mbuf.is_null() {
        // SAFETY: made by `buffer`, and owned by the chain.
        unsafe {
            let raw = Box::from_raw(mbuf);
            drop(Box::from_raw(raw.buffer.cast::<[u8; ROOM]>()));
            mbuf = raw.next;
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn sluice_mbuf_free_segment(mbuf: *mut RawMbuf) {
    // SAFETY: taken out of its chain.
    unsafe { (*mbuf).next = std::ptr::null_mut() };
    sluice_mbuf_free(mbuf);
}

#[unsafe(no_mangle)]
extern "C" fn sluice_mbuf_alloc(_pool: *mut RawPool) -> *mut RawMbuf {
    buffer()
}

#[unsafe(no_mangle)]
extern "C" fn sluice_mbuf_free_bulk(mbufs: *mut *mut RawMbuf, count: u32) {
    for at in 0..count as usize {
        // SAFETY: an array of `count` elements.
        sluice_mbuf_free(unsafe { *mbufs.add(at) });
    }
}

#[unsafe(no_mangle)]
extern "C" fn sluice_pool_put(_pool: *mut RawPool, mbufs: *mut *mut RawMbuf, count: u32) {
    sluice_mbuf_free_bulk(mbufs, count);
}

/// Allocates buffers for frames of the guest.
fn allocate(room: *mut *mut RawMbuf, count: u32) -> bool {
    assert!(count as usize <= BURST);
    for at in 0..count as usize {
        // SAFETY: there is room for `count`.
        unsafe { room.add(at).write(buffer()) };
    }
    true
}

fn take(view: &View, at: &mut RingPosition) {
    let mut room = [std::ptr::null_mut(); BURST];
    // SAFETY: ring and buffers are ours.
    let done = unsafe { view.take(at, BURST, room.as_mut_ptr(), allocate) };
    for raw in &room[..done.frames] {
        // SAFETY: this many have been written, and each is a separate chain.
        let frame = unsafe { Mbuf::from_raw(NonNull::new(*raw).expect("a frame")) };
        sound(&frame);
    }
    for _ in 0..SIZE {
        // SAFETY: as above.
        match unsafe { view.take_one(at, allocate) } {
            Taken::Frame(frame) => sound(&frame),
            Taken::Refused => {}
            Taken::Nothing | Taken::NoBuffer => break,
        }
    }
}

use mbuf::Mbuf;

/// Checks that a frame is as long as it says, and not longer than frames can be.
fn sound(frame: &Mbuf) {
    let bytes = frame.to_vec();
    assert!(!bytes.is_empty() && bytes.len() == frame.len() && bytes.len() <= LONGEST as usize);
    let offload = frame.offload();
    let end = usize::from(offload.csum_start) + usize::from(offload.csum_offset) + 2;
    assert!(!offload.partial_checksum || end <= bytes.len());
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let places = memory();
    let bits = input.u8();
    // Offloads, mergeable buffers, indirect tables, the event index, virtio 1.
    let mut features = 0;
    for (bit, feature) in [0, 15, 28, 29, 32].iter().enumerate() {
        features |= u64::from(bits >> bit & 1) << feature;
    }
    let uses = input.bytes(6);
    for place in places {
        let bytes = input.bytes(PAGE / 2);
        // SAFETY: the page is ours and writable; nothing else lies there.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
            std::ptr::write_bytes(place.add(bytes.len()), 0, PAGE - bytes.len());
        }
    }
    let regions = [(0, places[0]), (2, places[1])].map(|(page, host)| Region {
        guest: GUEST + page * PAGE as u64,
        host,
        size: PAGE as u64,
    });
    let at = |offset: usize| places[0].wrapping_add(offset);
    let ring = RingAddresses {
        descriptors: at(0),
        available: at(512),
        used: at(1024),
        size: SIZE,
    };
    // The log ends within the guest's memory. The used ring's address for the log is the right one
    // or arbitrary.
    let log = (bits & 0x20 != 0).then(|| Log {
        pages: dirty_log(),
        used: (bits & 0x40 != 0).then_some(if bits & 0x80 != 0 { GUEST } else { u64::MAX - 8 }),
    });
    let view = View::of(&ring, regions.to_vec(), features, log).expect("a ring that is whole");
    let mut here = RingPosition::default();
    for how in uses {
        match how % 4 {
            0 => take(&view, &mut here),
            1 => {
                let mut raw = NonNull::new(buffer()).expect("a buffer");
                // SAFETY: not shared; this many bytes fit.
                let mut frame = unsafe {
                    let first = raw.as_mut();
                    first.data_len = u16::from(how) * 8;
                    first.packet_len = first.data_len.into();
                    Mbuf::from_raw(raw)
                };
                if how & 4 != 0 {
                    frame.set_offload(Offload {
                        partial_checksum: true,
                        gso: Gso::Tcp4,
                        gso_size: 100,
                        ..Offload::default()
                    });
                }
                let frames = vec![frame];
                // SAFETY: ring and frames are ours.
                unsafe {
                    if view.put(&mut here, &frames).frames == 0 {
                        view.put_one(&mut here, &frames[0]);
                    }
                }
            }
            // SAFETY: the ring is ours.
            2 => unsafe { view.ask_for_kicks(&here, how & 4 != 0) },
            // SAFETY: as above.
            _ => {
                unsafe { view.wants_call(&mut here) };
            }
        }
    }
});
