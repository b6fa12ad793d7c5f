//! A guest's side of vhost-user, played by this process: it polls two rings in its memory, like a
//! guest that forwards packets.

use super::pump::Peer;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{Error, Read, Result, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Descriptors per ring.
const RING: u16 = 256;
/// Distance between rings, and offsets of a ring's parts within it.
const STEP: usize = 0x1_0000;
const AVAILABLE: usize = 0x2000;
const USED: usize = 0x4000;
/// Offset of the buffers (all of one ring, then all of the other), and the length of each.
const BUFFERS: usize = 2 * STEP;
const ROOM: usize = 2048;
const MEMORY: usize = BUFFERS + 2 * RING as usize * ROOM;
/// Hypervisor's (front end's) address of the memory; vhost-user messages name rings by it.
const USER: u64 = 0x7f00_0000_0000;
/// Guest-physical address of the memory; descriptors name buffers by it.
const GUEST: u64 = 0x1_0000_0000;
/// Index of the ring that the guest receives by, and of the one that it sends by.
const RX: usize = 0;
const TX: usize = 1;
/// Length of `struct virtio_net_hdr_v1`, in front of each frame.
const HEADER: usize = 12;
/// The longest frame that fits into a buffer.
const FRAME_MAX: usize = ROOM - HEADER;
/// Longest time to wait for the port's reply.
const PATIENCE: Duration = Duration::from_secs(5);

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ENABLE: u32 = 18;

const MERGEABLE: u64 = 1 << 15;
const VERSION_1: u64 = 1 << 32;
/// Descriptor flag: the switch writes to the buffer (`VRING_DESC_F_WRITE`).
const WRITE: u16 = 2;
/// Flag of the available ring: the guest polls, and needs no notification
/// (`VRING_AVAIL_F_NO_INTERRUPT`).
const NO_INTERRUPT: u16 = 1;

/// Memory shared with the port.
struct Shared {
    bytes: *mut u8,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to this object, and is reached through it alone.
unsafe impl Send for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.bytes.cast(), MEMORY) };
    }
}

impl Shared {
    fn new() -> Result<Shared> {
        let file = memfd_create("sluice-guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, MEMORY as u64)?;
        // SAFETY: a new mapping of a new file, which is this object's alone.
        unsafe {
            let bytes = libc::mmap(
                std::ptr::null_mut(),
                MEMORY,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if bytes == libc::MAP_FAILED {
                return Err(Error::last_os_error());
            }
            let bytes = bytes.cast();
            Ok(Shared { bytes, file })
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MEMORY);
        // SAFETY: within the mapping, which the port may read at any time, but reads only what has
        // been made available to it.
        unsafe {
            let to = self.bytes.add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn read(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(4) && at + 4 <= MEMORY);
        // SAFETY: an aligned word of the mapping.
        unsafe { self.bytes.add(at).cast::<u32>().read_volatile() }
    }

    /// Returns a ring index that both sides access.
    fn index(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2) && at + 2 <= MEMORY);
        // SAFETY: an aligned half word of the mapping, which lives as long as this.
        unsafe { &*self.bytes.add(at).cast::<AtomicU16>() }
    }
}

/// A guest with one ring each way.
pub(super) struct Guest {
    /// The port goes down when this is closed.
    _stream: UnixStream,
    memory: Shared,
    frames: Vec<Vec<u8>>,
    /// Descriptors made available so far, by ring.
    offered: [u16; 2],
    /// Frames that the switch has sent and the guest has taken.
    taken: u64,
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(first: u32, second: u32) -> Vec<u8> {
    [first.to_ne_bytes(), second.to_ne_bytes()].concat()
}

/// Returns the offset of buffer `number` of a ring.
fn buffer(ring: usize, number: u16) -> usize {
    BUFFERS + (ring * usize::from(RING) + usize::from(number % RING)) * ROOM
}

/// Sends a front end's message, with a file descriptor if one is given.
fn say(stream: &mut UnixStream, request: u32, payload: &[u8], file: Option<RawFd>) -> Result<()> {
    let head = [request, 1, payload.len() as u32].map(u32::to_ne_bytes);
    let bytes = [&head.concat()[..], payload].concat();
    let Some(file) = file else {
        return stream.write_all(&bytes);
    };
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut room = [0_u64; 8];
    // SAFETY: the header's parts live until the call returns, and there is room for one descriptor.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        header.msg_control = room.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let control = libc::CMSG_FIRSTHDR(&raw const header);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(control)
            .cast::<RawFd>()
            .write_unaligned(file);
        libc::sendmsg(stream.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(Error::other("the port took a part of a message")),
        Err(_) => Err(Error::last_os_error()),
    }
}

fn event() -> Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

impl Guest {
    /// Connects to a port that listens at `path`, and enables both rings. The guest then sends
    /// `frames` over and over, except those too long for its buffers.
    pub(super) fn connect(path: &Path, frames: Vec<Vec<u8>>) -> Result<Guest> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let frames: Vec<Vec<u8>> = frames
            .into_iter()
            .filter(|frame| frame.len() <= FRAME_MAX)
            .collect();
        if frames.is_empty() {
            return Err(Error::other("no frame fits into a guest's buffers"));
        }
        let mut guest = Guest {
            memory: Shared::new()?,
            frames,
            offered: [0; 2],
            taken: 0,
            _stream: stream.try_clone()?,
        };
        guest.fill();
        guest.negotiate(&mut stream)?;
        Ok(guest)
    }

    /// Writes all descriptors, and makes the receive buffers available.
    fn fill(&mut self) {
        for ring in [RX, TX] {
            for number in 0..RING {
                let (length, flags) = match ring {
                    RX => (ROOM, WRITE),
                    _ => (0, 0),
                };
                self.describe(ring, number, length, flags);
            }
            let available = ring * STEP + AVAILABLE;
            self.memory.write(available, &NO_INTERRUPT.to_ne_bytes());
        }
        for number in 0..RING {
            self.offer(RX, number);
        }
        self.publish(RX);
    }

    fn describe(&self, ring: usize, number: u16, length: usize, flags: u16) {
        let mut bytes = words(&[GUEST + buffer(ring, number) as u64]);
        bytes.extend((length as u32).to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 2]);
        self.memory
            .write(ring * STEP + usize::from(number) * 16, &bytes);
    }

    /// Puts a buffer into the available ring; the port sees it after `publish`.
    fn offer(&mut self, ring: usize, number: u16) {
        let place = usize::from(self.offered[ring] % RING) * 2;
        let place = ring * STEP + AVAILABLE + 4 + place;
        self.memory.write(place, &number.to_ne_bytes());
        self.offered[ring] = self.offered[ring].wrapping_add(1);
    }

    fn publish(&self, ring: usize) {
        let index = self.memory.index(ring * STEP + AVAILABLE + 2);
        index.store(self.offered[ring], Ordering::Release);
    }

    /// Returns how many buffers the switch has given back so far.
    fn used(&self, ring: usize) -> u16 {
        let index = self.memory.index(ring * STEP + USED + 2);
        index.load(Ordering::Acquire)
    }

    fn negotiate(&self, stream: &mut UnixStream) -> Result<()> {
        say(stream, GET_FEATURES, &[], None)?;
        let mut reply = [0; 20];
        stream.read_exact(&mut reply)?;
        let (_, offered) = reply.split_at(12);
        let offered = u64::from_ne_bytes(offered.try_into().unwrap_or_default());
        if offered & VERSION_1 == 0 {
            return Err(Error::other("the port does not speak virtio 1"));
        }
        say(stream, SET_OWNER, &[], None)?;
        let features = words(&[offered & (VERSION_1 | MERGEABLE)]);
        say(stream, SET_FEATURES, &features, None)?;
        let table = [halves(1, 0), words(&[GUEST, MEMORY as u64, USER, 0])].concat();
        say(
            stream,
            SET_MEM_TABLE,
            &table,
            Some(self.memory.file.as_raw_fd()),
        )?;
        for ring in [RX, TX] {
            let number = ring as u32;
            let base = USER + (ring * STEP) as u64;
            say(stream, SET_VRING_NUM, &halves(number, RING.into()), None)?;
            say(stream, SET_VRING_BASE, &halves(number, 0), None)?;
            let parts = [base, base + USED as u64, base + AVAILABLE as u64, 0];
            let places = [halves(number, 0), words(&parts)].concat();
            say(stream, SET_VRING_ADDR, &places, None)?;
            // Both sides poll, so nobody reads these event descriptors here.
            for request in [SET_VRING_CALL, SET_VRING_KICK] {
                let event = event()?;
                let number = words(&[number.into()]);
                say(stream, request, &number, Some(event.as_raw_fd()))?;
            }
        }
        for ring in [RX, TX] {
            say(stream, SET_VRING_ENABLE, &halves(ring as u32, 1), None)?;
        }
        Ok(())
    }
}

impl Peer for Guest {
    fn send(&mut self, count: usize) -> usize {
        let waiting = self.offered[TX].wrapping_sub(self.used(TX));
        let free = usize::from(RING.saturating_sub(waiting));
        let count = count.min(free);
        for _ in 0..count {
            let number = self.offered[TX] % RING;
            let frame = &self.frames[usize::from(self.offered[TX]) % self.frames.len()];
            let at = buffer(TX, number);
            self.memory.write(at, &[0; HEADER]);
            self.memory.write(at + HEADER, frame);
            self.describe(TX, number, HEADER + frame.len(), 0);
            self.offer(TX, number);
        }
        self.publish(TX);
        count
    }

    fn take(&mut self, _: u64) -> u64 {
        let used = self.used(RX);
        // All buffers were offered at the start, and each is offered again when it has come back.
        let seen = self.offered[RX].wrapping_sub(RING);
        let count = used.wrapping_sub(seen).min(RING);
        for behind in 0..count {
            let place = usize::from(seen.wrapping_add(behind) % RING) * 8;
            let number = self.memory.read(RX * STEP + USED + 4 + place) as u16 % RING;
            // Read each frame, as a real guest would.
            std::hint::black_box(self.memory.read(buffer(RX, number) + HEADER));
            self.offer(RX, number);
        }
        self.publish(RX);
        self.taken += u64::from(count);
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// What a port learns from the messages: where the guest's memory and its rings are.
    #[derive(Default)]
    struct Told {
        guest: u64,
        size: u64,
        user: u64,
        rings: Vec<[u64; 3]>,
        enabled: usize,
    }

    /// Plays the port: answers messages until both rings are enabled.
    fn listen(mut stream: UnixStream) -> Told {
        let mut told = Told::default();
        while told.enabled < 2 {
            let mut head = [0; 12];
            stream.read_exact(&mut head).unwrap();
            let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
            let mut payload = vec![0; word(8) as usize];
            stream.read_exact(&mut payload).unwrap();
            let long = |at: usize| u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap());
            match word(0) {
                GET_FEATURES => {
                    let head = [GET_FEATURES, 5, 8].map(u32::to_ne_bytes).concat();
                    stream.write_all(&head).unwrap();
                    stream.write_all(&u64::MAX.to_ne_bytes()).unwrap();
                }
                SET_MEM_TABLE => (told.guest, told.size, told.user) = (long(8), long(16), long(24)),
                SET_VRING_ADDR => told.rings.push([8, 16, 24].map(long)),
                SET_VRING_ENABLE => told.enabled += 1,
                _ => {}
            }
        }
        told
    }

    fn guest(frames: Vec<Vec<u8>>) -> (Guest, Told) {
        let name = format!("sluice-guest-{}-{}", std::process::id(), frames.len());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let port = std::thread::spawn(move || listen(listener.accept().unwrap().0));
        let guest = Guest::connect(&path, frames);
        std::fs::remove_file(&path).unwrap();
        (guest.unwrap(), port.join().unwrap())
    }

    /// Reads bytes of the shared memory.
    fn bytes(guest: &Guest, at: usize, length: usize) -> Vec<u8> {
        let words = (at / 4..(at + length).div_ceil(4)).map(|word| guest.memory.read(word * 4));
        words.flat_map(u32::to_ne_bytes).take(length).collect()
    }

    /// Returns offset and length of the buffer that a descriptor names, as a port would find it.
    fn described(guest: &Guest, told: &Told, ring: usize, number: usize) -> (usize, usize) {
        let table = (told.rings[ring][0] - told.user) as usize;
        let words = bytes(guest, table + number * 16, 12);
        let address = u64::from_ne_bytes(words[..8].try_into().unwrap());
        let length = u32::from_ne_bytes(words[8..].try_into().unwrap());
        let at = address.checked_sub(told.guest).expect("in the memory");
        assert!(at + u64::from(length) <= told.size, "{at:#x}");
        (at as usize, length as usize)
    }

    /// Gives back all available buffers of a ring, as a port does; returns these buffers.
    fn give_back(guest: &Guest, told: &Told, ring: usize) -> Vec<(usize, usize)> {
        let [_, used, available] = told.rings[ring].map(|at| (at - told.user) as usize);
        let size = usize::from(RING);
        let (mut next, mut buffers) = (guest.used(ring), Vec::new());
        while next != guest.memory.index(available + 2).load(Ordering::Acquire) {
            let place = usize::from(next) % size;
            let number = guest.memory.index(available + 4 + place * 2);
            let number = number.load(Ordering::Relaxed);
            buffers.push(described(guest, told, ring, number.into()));
            let element = halves(number.into(), 0);
            guest.memory.write(used + 4 + place * 8, &element);
            next = next.wrapping_add(1);
        }
        let index = guest.memory.index(used + 2);
        index.store(next, Ordering::Release);
        buffers
    }

    #[test]
    fn a_port_finds_the_frames_and_the_guest_what_it_gives_back() {
        let frames = vec![vec![1; 60], vec![2; FRAME_MAX + 1], vec![3; FRAME_MAX]];
        let (mut guest, told) = guest(frames);
        assert_eq!((told.size, told.rings.len()), (MEMORY as u64, 2));
        assert_eq!(guest.take(0), 0);
        // Enough rounds for the 16-bit ring indexes to wrap around.
        for round in 0..300 {
            assert_eq!(guest.send(1000), usize::from(RING), "round {round}");
            assert_eq!(guest.send(1), 0);
            let sent = give_back(&guest, &told, TX);
            assert_eq!(sent.len(), usize::from(RING));
            let lengths = [sent[0].1, sent[1].1];
            assert_eq!(lengths, [HEADER + 60, HEADER + FRAME_MAX]);
            assert_eq!(bytes(&guest, sent[0].0, HEADER + 4)[HEADER..], [1; 4]);
            assert_eq!(bytes(&guest, sent[1].0, HEADER + 4)[HEADER..], [3; 4]);
            let room = give_back(&guest, &told, RX);
            assert!(room.iter().all(|buffer| buffer.1 == ROOM));
            assert_eq!(room.len(), usize::from(RING));
            assert_eq!(guest.take(0), (round + 1) * u64::from(RING));
        }
    }
}
