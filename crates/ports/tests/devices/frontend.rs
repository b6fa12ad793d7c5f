//! Tests of vhost-user ports that listen on a socket; the hypervisor's and the guest's side, honest
//! or not, is part of the test.

use crate::support::{bytes, eal, open, receive, send, udp};
use packet::frame::{Frame, Gso};
use ports::{Mbuf, OpenPort, PortSpec, PortType};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Descriptors per ring.
const RING: u16 = 256;
/// Bytes of the guest's memory, and the offset of its buffers.
const MEMORY: usize = 1 << 20;
const BUFFERS: u64 = 0x4_0000;
/// The hypervisor's address of the guest's memory.
const USER: u64 = 0x7f00_0000_0000;
/// Distance between rings.
const STEP: u64 = 0x1_0000;

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
const SEND_RARP: u32 = 19;

const CSUM: u64 = 1;
const HOST_TSO4: u64 = 1 << 11;
const MERGEABLE: u64 = 1 << 15;
const INDIRECT: u64 = 1 << 28;
const VERSION_1: u64 = 1 << 32;
const PACKED: u64 = 1 << 34;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const TABLE: u16 = 4;

/// A guest with two rings, and its hypervisor.
struct FrontEnd {
    stream: UnixStream,
    memory: *mut u8,
    file: OwnedFd,
    /// Position of each ring.
    next: [u16; 2],
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.memory.cast(), MEMORY) };
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(first: u32, second: u32) -> Vec<u8> {
    [first.to_ne_bytes(), second.to_ne_bytes()].concat()
}

fn event() -> OwnedFd {
    // SAFETY: a new descriptor, owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)) }
}

impl FrontEnd {
    fn connect(path: &Path) -> FrontEnd {
        let stream = UnixStream::connect(path).unwrap();
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        stream.set_write_timeout(limit).unwrap();
        // SAFETY: a new file and a new mapping of it.
        unsafe {
            let file = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0 && libc::ftruncate(file, MEMORY as i64) == 0);
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            let memory = libc::mmap(
                std::ptr::null_mut(),
                MEMORY,
                flags,
                libc::MAP_SHARED,
                file,
                0,
            );
            assert!(memory != libc::MAP_FAILED);
            FrontEnd {
                stream,
                memory: memory.cast(),
                file: OwnedFd::from_raw_fd(file),
                next: [0; 2],
            }
        }
    }

    fn message(request: u32, size: usize, payload: &[u8]) -> Vec<u8> {
        let head = [request, 1, size as u32].map(u32::to_ne_bytes).concat();
        [&head[..], payload].concat()
    }

    fn say(&mut self, request: u32, payload: &[u8], fd: Option<RawFd>) {
        let bytes = FrontEnd::message(request, payload.len(), payload);
        let Some(fd) = fd else {
            return self.stream.write_all(&bytes).unwrap();
        };
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut room = [0u64; 8];
        // SAFETY: the header's parts live until the call returns, and there is room for one
        // descriptor.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
            header.msg_control = room.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(fd);
            let sent = libc::sendmsg(self.stream.as_raw_fd(), &raw const header, 0);
            assert_eq!(sent, bytes.len() as isize);
        }
    }

    fn ask(&mut self, request: u32) -> u64 {
        self.say(request, &[], None);
        let mut reply = [0; 20];
        self.stream.read_exact(&mut reply).unwrap();
        u64::from_ne_bytes(reply[12..].try_into().unwrap())
    }

    /// Enables both rings, with as many of these features as are offered.
    fn set_up(&mut self, features: u64) -> u64 {
        let offered = self.ask(GET_FEATURES);
        self.say(SET_OWNER, &[], None);
        self.say(SET_FEATURES, &words(&[offered & features]), None);
        self.give_memory(MEMORY as u64);
        for ring in 0..2u32 {
            let base = USER + u64::from(ring) * STEP;
            self.say(SET_VRING_NUM, &halves(ring, RING.into()), None);
            self.say(SET_VRING_BASE, &halves(ring, 0), None);
            let places = words(&[base, base + 0x4000, base + 0x2000, 0]);
            self.say(SET_VRING_ADDR, &[halves(ring, 0), places].concat(), None);
            let (call, kick) = (event(), event());
            self.say(
                SET_VRING_CALL,
                &words(&[ring.into()]),
                Some(call.as_raw_fd()),
            );
            self.say(
                SET_VRING_KICK,
                &words(&[ring.into()]),
                Some(kick.as_raw_fd()),
            );
        }
        for ring in 0..2 {
            self.say(SET_VRING_ENABLE, &halves(ring, 1), None);
        }
        offered
    }

    fn give_memory(&mut self, size: u64) {
        let table = [halves(1, 0), words(&[0, size, USER, 0])].concat();
        let file = self.file.as_raw_fd();
        self.say(SET_MEM_TABLE, &table, Some(file));
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= MEMORY);
        // SAFETY: within the mapping, which others may read at any time.
        unsafe {
            let to = self.memory.add(at as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        assert!(at as usize + length <= MEMORY);
        // SAFETY: as above.
        unsafe {
            let from = self.memory.add(at as usize);
            (0..length).map(|at| from.add(at).read_volatile()).collect()
        }
    }

    fn describe(&mut self, table: u64, number: u16, address: u64, length: u32, flags: u16) {
        let mut bytes = words(&[address]);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(((number + 1) % RING).to_ne_bytes());
        self.write(table + u64::from(number) * 16, &bytes);
    }

    fn word(&self, at: u64) -> &AtomicU16 {
        // SAFETY: an aligned word of the mapping.
        unsafe { &*self.memory.add(at as usize).cast::<AtomicU16>() }
    }

    /// Makes a chain of descriptors available.
    fn offer(&mut self, ring: usize, head: u16) {
        let available = ring as u64 * STEP + 0x2000;
        let place = available + 4 + u64::from(self.next[ring] % RING) * 2;
        self.write(place, &head.to_ne_bytes());
        self.next[ring] = self.next[ring].wrapping_add(1);
        self.word(available + 2)
            .store(self.next[ring], Ordering::SeqCst);
    }

    /// Returns how many chains the switch has given back.
    fn used(&self, ring: usize) -> u16 {
        self.word(ring as u64 * STEP + 0x4002)
            .load(Ordering::SeqCst)
    }

    /// Sends a frame behind a header, in pieces of `piece` bytes.
    fn transmit(&mut self, header: [u8; 12], frame: &[u8], piece: usize, table: Option<u64>) {
        let all = [&header[..], frame].concat();
        self.write(BUFFERS, &all);
        let count = all.len().div_ceil(piece);
        for (number, part) in all.chunks(piece).enumerate() {
            let flags = if number + 1 < count { NEXT } else { 0 };
            let address = BUFFERS + (number * piece) as u64;
            let place = table.unwrap_or(STEP);
            self.describe(place, number as u16, address, part.len() as u32, flags);
        }
        if let Some(table) = table {
            self.describe(STEP, 0, table, count as u32 * 16, TABLE);
        }
        self.offer(1, 0);
    }
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("sluice-front-{}-{name}", std::process::id()))
}

fn listening(path: &Path) -> OpenPort {
    let kind = PortType::VhostServer {
        path: path.to_path_buf(),
        rx_queues: 1,
    };
    open(&PortSpec::new("guest", kind))
}

fn patiently(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that a guest is served: frames are received from it and sent to it.
fn is_served(port: &mut OpenPort, guest: &mut FrontEnd) {
    patiently("the link comes up", || port.control.info().link_up);
    let sent = udp(7);
    guest.transmit([0; 12], &sent, 4096, None);
    let got = receive(&mut *port.rx[0], 1);
    assert_eq!(bytes(&got), [sent]);
    guest.describe(0, 0, BUFFERS + 0x8000, 2000, WRITE);
    guest.offer(0, 0);
    let mut tx = port.control.tx_queue(0).unwrap();
    let wanted = udp(9);
    assert_eq!(send(&mut *tx, &[&wanted]).packets, 1);
    assert_eq!(guest.read(BUFFERS + 0x8000 + 12, wanted.len()), wanted);
}

#[test]
fn chains_tables_and_offloads_of_a_guest_are_taken() {
    let path = socket("chains");
    let mut port = listening(&path);
    let mut guest = FrontEnd::connect(&path);
    let features = VERSION_1 | INDIRECT | CSUM | HOST_TSO4;
    let offered = guest.set_up(features);
    assert_eq!((offered & features, offered & PACKED), (features, 0));
    is_served(&mut port, &mut guest);
    for (length, piece, table) in [
        (400, 100, None),
        (400, 7, Some(0x3_0000)),
        (9000, 1000, None),
        (60_000, 4096, Some(0x3_0008)),
    ] {
        let mut frame = udp(length);
        guest.transmit([0; 12], &frame, piece, table);
        assert_eq!(bytes(&receive(&mut *port.rx[0], 1)), [frame.clone()]);
        // With a checksum to be filled in, and to be segmented.
        frame.resize(5000, 1);
        let header = [1, 1, 54, 0, 0, 2, 34, 0, 16, 0, 0, 0];
        guest.transmit(header, &frame, piece.max(100), table);
        let got = receive(&mut *port.rx[0], 1);
        let offload = got[0].offload();
        assert!(offload.partial_checksum);
        let asked = (offload.csum_start, offload.csum_offset);
        assert_eq!(
            (asked, offload.gso, offload.gso_size),
            ((34, 16), Gso::Tcp4, 512)
        );
    }
}

#[test]
fn a_frame_goes_to_several_buffers_where_the_guest_takes_that() {
    let path = socket("merge");
    let mut port = listening(&path);
    let mut guest = FrontEnd::connect(&path);
    guest.set_up(VERSION_1 | MERGEABLE);
    is_served(&mut port, &mut guest);
    for number in 1..20 {
        let place = BUFFERS + u64::from(number) * 100;
        guest.describe(0, number, place, 100, WRITE);
        guest.offer(0, number);
    }
    let mut tx = port.control.tx_queue(0).unwrap();
    let wanted = udp(900);
    assert_eq!(send(&mut *tx, &[&wanted]).packets, 1);
    let count = (12 + wanted.len()).div_ceil(100);
    let got = guest.read(BUFFERS + 100, 12 + wanted.len());
    assert_eq!(got[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, count as u8, 0]);
    assert_eq!(got[12..], wanted);
    assert_eq!(usize::from(guest.used(0)), 1 + count);
    // There is no room left for another frame.
    let outcome = send(&mut *tx, &[&wanted]);
    assert_eq!((outcome.packets, outcome.full), (0, 1));
}

/// The guest claims 64 MiB in one frame, 200 times. None of it is copied, and each is counted.
#[test]
fn chains_of_64_mib_take_no_buffers_and_are_counted() {
    let path = socket("huge");
    let mut port = listening(&path);
    let mut guest = FrontEnd::connect(&path);
    guest.set_up(VERSION_1 | INDIRECT);
    is_served(&mut port, &mut guest);
    let before = port.rx[0].drops().malformed;
    for number in 0..RING {
        guest.describe(
            STEP,
            number,
            BUFFERS,
            256 << 10,
            if number < RING - 1 { NEXT } else { 0 },
        );
    }
    let (pool, used) = (eal().pool().unwrap(), guest.used(1));
    for _ in 0..200 {
        guest.offer(1, 0);
    }
    let mut got: Vec<Mbuf> = Vec::new();
    let mut least = u32::MAX;
    patiently("all of it is given back", || {
        assert_eq!(port.rx[0].receive(&mut got), 0);
        least = least.min(pool.available());
        guest.used(1) == used + 200
    });
    assert_eq!(port.rx[0].drops().malformed - before, 200);
    // Other tests of this process may hold some.
    assert!(
        least > pool.count() / 2,
        "{least} of {} are left",
        pool.count()
    );
    let frame = udp(3);
    guest.transmit([0; 12], &frame, 4096, None);
    assert_eq!(bytes(&receive(&mut *port.rx[0], 1)), [frame]);
}

/// As many long frames as the ring holds: each turn takes only some of them.
#[test]
fn a_turn_takes_so_many_bytes() {
    let path = socket("turn");
    let mut port = listening(&path);
    let mut guest = FrontEnd::connect(&path);
    guest.set_up(VERSION_1 | INDIRECT);
    is_served(&mut port, &mut guest);
    let frame = udp(60_000);
    guest.transmit([0; 12], &frame, 65_536, None);
    for _ in 1..40 {
        guest.offer(1, 0);
    }
    let (mut got, mut turns) = (Vec::new(), 0);
    patiently("all come", || {
        let count = port.rx[0].receive(&mut got);
        assert!(count <= 5, "{count} frames of 60 KB in a turn");
        turns += u32::from(count > 0);
        // A worker must not sleep while frames are left.
        assert!(got.len() == 40 || port.rx[0].arm());
        port.rx[0].disarm();
        got.len() == 40
    });
    assert!(turns >= 8);
    assert!(got.iter().all(|got| got.to_vec() == frame));
}

#[test]
fn frames_that_are_seen_on_the_way_to_sleep_stay_in_the_ring() {
    let path = socket("sleepy");
    let mut port = listening(&path);
    let mut guest = FrontEnd::connect(&path);
    guest.set_up(VERSION_1);
    is_served(&mut port, &mut guest);
    let used = guest.used(1);
    guest.transmit([0; 12], &udp(5), 4096, None);
    assert!(port.rx[0].arm());
    assert_eq!(guest.used(1), used, "nothing is taken that could be lost");
    assert_eq!(bytes(&receive(&mut *port.rx[0], 1)), [udp(5)]);
}

#[test]
fn a_guest_that_has_moved_is_announced() {
    let path = socket("moved");
    let mut port = listening(&path);
    let mut guest = FrontEnd::connect(&path);
    guest.set_up(VERSION_1);
    is_served(&mut port, &mut guest);
    guest.say(SEND_RARP, &[2, 3, 4, 5, 6, 7, 0, 0], None);
    let got = bytes(&receive(&mut *port.rx[0], 1));
    assert_eq!(
        got[0][..14],
        [255, 255, 255, 255, 255, 255, 2, 3, 4, 5, 6, 7, 0x80, 0x35]
    );
}

/// A guest truncates its memory and disconnects. The next guest's memory may be mapped at the same
/// address, and must not be confused with it.
#[test]
fn a_guest_is_not_ended_for_what_the_one_before_has_done() {
    for round in 0..5 {
        // Each round has its own path, because the previous socket is removed in the background.
        let path = socket(&format!("robber{round}"));
        let other = socket(&format!("heir{round}"));
        let (mut port, mut heirs) = (listening(&path), listening(&other));
        let mut heir = FrontEnd::connect(&other);
        let mut robber = FrontEnd::connect(&path);
        robber.set_up(VERSION_1);
        is_served(&mut port, &mut robber);
        // SAFETY: the file is ours, and nothing of this side is read or written from here on.
        assert_eq!(unsafe { libc::ftruncate(robber.file.as_raw_fd(), 0) }, 0);
        let mut tx = port.control.tx_queue(0).unwrap();
        send(&mut *tx, &[&udp(1)]);
        port.rx[0].receive(&mut Vec::new());
        robber.stream.shutdown(std::net::Shutdown::Both).unwrap();
        patiently("the robber is gone", || !port.control.info().link_up);
        heir.set_up(VERSION_1);
        is_served(&mut heirs, &mut heir);
        // Connections are checked ten times a second.
        let end = Instant::now() + Duration::from_millis(250);
        while Instant::now() < end {
            assert!(heirs.control.info().link_up, "round {round}");
            std::thread::sleep(Duration::from_millis(5));
        }
        is_served(&mut heirs, &mut heir);
    }
}

/// What a hostile hypervisor does on its own connection.
type Offence = fn(&mut FrontEnd);

/// Sends the header of a message, and not the rest.
fn half_a_message(guest: &mut FrontEnd) {
    let message = FrontEnd::message(SET_FEATURES, 8, &[]);
    guest.stream.write_all(&message).unwrap();
}

/// Sends requests, and reads no reply.
fn unread_replies(guest: &mut FrontEnd) {
    guest.stream.set_nonblocking(true).unwrap();
    let message = FrontEnd::message(GET_FEATURES, 0, &[]);
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        match guest.stream.write(&message) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The switch has closed the connection.
            Err(_) => return,
        }
    }
}

/// Truncates the memory while the device is in use.
fn no_memory(guest: &mut FrontEnd) {
    guest.give_memory(1 << 50);
}

/// Whatever a hypervisor does, workers go on, other guests can connect and are served, and its port
/// can be deleted.
#[test]
fn a_hostile_hypervisor_holds_up_nobody_else() {
    let offences: [(&str, Offence); 3] = [
        ("half", half_a_message),
        ("unread", unread_replies),
        ("memory", no_memory),
    ];
    for (name, offence) in offences {
        let (path, other) = (socket(name), socket(&format!("{name}-other")));
        let (mut port, mut victim) = (listening(&path), listening(&other));
        let mut guest = FrontEnd::connect(&path);
        guest.set_up(VERSION_1);
        is_served(&mut port, &mut guest);
        let mut tx = port.control.tx_queue(0).unwrap();
        let mut rx = port.rx.remove(0);
        let (stop, turns) = (AtomicBool::new(false), AtomicU16::new(0));
        std::thread::scope(|scope| {
            // A worker that sends to the guest and receives from it.
            scope.spawn(|| {
                let mut got = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    send(&mut *tx, &[&udp(1)]);
                    rx.receive(&mut got);
                    got.clear();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
            offence(&mut guest);
            let seen = turns.load(Ordering::Relaxed);
            patiently("the worker goes on", || {
                turns.load(Ordering::Relaxed).wrapping_sub(seen) > 100
            });
            let mut honest = FrontEnd::connect(&other);
            honest.set_up(VERSION_1);
            is_served(&mut victim, &mut honest);
            port.control.close();
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!path.exists(), "{name}: the port is gone");
    }
}
