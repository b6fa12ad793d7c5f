//! Existing kernel interfaces, through AF_PACKET sockets.
//!
//! A local veth sends frames with checksums to be filled in, TCP frames of 64 KiB, and VLAN tags
//! beside the bytes. With `PACKET_VNET_HDR` the first two arrive and leave with a header that says
//! so, so a frame from one kernel interface to another is never segmented; with `PACKET_AUXDATA`
//! the tag arrives, too, and is put back into the bytes. On a busy port, frames of the common size
//! arrive in memory shared with the kernel ([`ring`]); longer ones, and all frames of a quiet port,
//! are fetched by `recvmmsg`. `line` describes how a port changes from one to the other. Frames
//! that this switch sends are not received again (`PACKET_IGNORE_OUTGOING`). The host's own stack
//! also sees what arrives, as with Open vSwitch.

mod line;
mod ring;

use crate::background::{self, Lingering};
use crate::egress;
use crate::error::{Error, last_errno};
use crate::hold::Hold;
use crate::interface::Interface;
use crate::link::{SharedLinks, set_option};
use crate::mbuf::{self, Mbuf};
use crate::pool::DATA_ROOM;
use crate::spec::PortSpec;
use crate::turn::Turn;
use crate::vector::{self, Buffers, KERNEL, Parts, Refused, Slot};
use crate::vnet;
use crate::{Eal, Mac, OpenPort, PortControl, PortInfo};
use libc::{c_int, c_void, iovec, mmsghdr};
use line::{FEW_RINGS, Line, Sockets, bind, packet_socket};
use packet::frame::Frame;
use packet::io::{BURST, QueueDrops, RxQueue, TxOutcome, TxQueue};
use ring::{MOST_RINGS, Next, PacketRing};
use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

// linux/if_packet.h
const PACKET_STATISTICS: c_int = 6;
const PACKET_AUXDATA: c_int = 8;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const TPID_DEFAULT: u16 = 0x8100;

const SEND_BUFFER: c_int = 4 << 20;

/// Frames at once, or [`OFTEN`] frames within [`OFTEN_WITHIN`], for which a port asks for a ring.
const MANY: usize = BURST / 2;
const OFTEN: usize = 256;
const OFTEN_WITHIN: Duration = Duration::from_millis(250);
/// Frames after which a port that was refused a ring asks again.
const ASK_AGAIN: u64 = 1 << 14;
/// Frames requested from a quiet port's socket at first.
const EXPECTED: usize = 4;

/// Most frames fetched from the socket's queue by one call; each may have 64 KiB.
const AT_ONCE: usize = 8;

/// Number of fetches after a long frame for which long buffers are prepared, too.
const LONG_FETCHES: u32 = 64;

/// Longest credible age of a frame; a larger value means that the clock was set.
const LONGEST_WAIT_NS: u64 = 1_000_000_000;

/// `struct tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AuxData {
    status: u32,
    length: u32,
    captured: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// Room for one control message with an `AuxData`, with the alignment that the kernel needs.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Ancillary([u8; 64]);

pub(crate) fn open(eal: &Eal, spec: &PortSpec) -> Result<OpenPort, Error> {
    let failed = |errno| Error::Open {
        name: spec.name.clone(),
        errno,
    };
    let links = SharedLinks::new().map_err(failed)?;
    let link = links.lock().by_name(&spec.name).map_err(failed)?;
    // Frames sent to a loopback device would come back at once.
    if link.flags & libc::IFF_LOOPBACK as u32 != 0 {
        return Err(Error::Add {
            name: spec.name.clone(),
            errno: libc::EINVAL,
        });
    }
    if link.hardware != libc::ARPHRD_ETHER {
        return Err(Error::Unsupported {
            name: spec.name.clone(),
            what: "an interface that is not Ethernet".into(),
        });
    }
    let hold = Hold::take(&links, &spec.name, &link)?;
    background::start(line::TEND, line::tend);
    let (sockets, line) = Sockets::open(&spec.name, link.ifindex).map_err(failed)?;
    // Made in the background: the port need not wait for it.
    sockets.ask_for_ring(FEW_RINGS);
    let rx = KernelRx::new(Arc::clone(&sockets), line, eal.buffers()?);
    let mut control = Box::new(KernelControl {
        interface: Interface::new(&spec.name, links, &link),
        sockets,
        _hold: hold,
    });
    if let Some(mac) = spec.mac {
        control.set_mac(mac)?;
    }
    if let Some(mtu) = spec.mtu {
        control.set_mtu(mtu)?;
    }
    Ok(OpenPort {
        control,
        rx: vec![Box::new(rx)],
    })
}

fn sender(ifindex: u32) -> Result<OwnedFd, c_int> {
    let fd = packet_socket()?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)?;
    bind(&fd, ifindex, 0)?;
    Ok(fd)
}

/// Returns the wall clock time in ns, the clock of the kernel's time stamps.
fn day_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Memory for `recvmmsg`. Each worker has one, for all its ports.
struct Scratch {
    slots: [Slot; BURST],
    parts: [Parts; BURST],
    ancillary: [Ancillary; BURST],
    messages: [mmsghdr; BURST],
}

thread_local! {
    /// None while it is in use, and before the first use.
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    fn new() -> Box<Scratch> {
        Box::new(Scratch {
            slots: std::array::from_fn(|_| Slot::new()),
            parts: [const { Parts::NONE }; BURST],
            ancillary: [Ancillary([0; 64]); BURST],
            // SAFETY: all zeroes is a valid message header.
            messages: [unsafe { std::mem::zeroed() }; BURST],
        })
    }

    /// Points the first `count` message headers at free buffers; returns for how many of them there
    /// were buffers.
    fn get_ready(&mut self, count: usize, buffers: &Buffers) -> usize {
        for index in 0..count {
            let Some(parts) = self.slots[index].parts(buffers) else {
                return index;
            };
            self.parts[index] = parts;
            let header = &mut self.messages[index].msg_hdr;
            let parts = self.parts[index].as_mut_slice();
            header.msg_iov = parts.as_mut_ptr();
            header.msg_iovlen = parts.len();
            header.msg_control = self.ancillary[index].0.as_mut_ptr().cast();
            header.msg_controllen = std::mem::size_of::<Ancillary>();
        }
        count
    }

    /// Takes frame `index` out of its slot.
    fn take(&mut self, index: usize) -> Result<Mbuf, Refused> {
        let message = &self.messages[index];
        if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(Refused::Malformed);
        }
        // SAFETY: the kernel said that it wrote this much to the parts of this slot.
        let mut frame = unsafe { self.slots[index].take(message.msg_len as usize)? };
        if let Some((tpid, tci)) = tag_beside(&message.msg_hdr)
            && !vector::insert_tag(&mut frame, tpid, tci)
        {
            return Err(Refused::Malformed);
        }
        Ok(frame)
    }
}

struct KernelRx {
    sockets: Arc<Sockets>,
    /// None only while one line replaces another.
    line: Option<Line>,
    buffers: Buffers,
    /// Frames requested from the plain socket at a time.
    expected: usize,
    /// Number of further fetches with buffers for long frames.
    long_lately: u32,
    malformed: u64,
    no_buffer: u64,
    missed: Cell<u64>,
    /// When the first frame of the last burst arrived, in ns of the wall clock; 0 if unknown.
    first_ns: u64,
    /// Frames received so far.
    total: u64,
    /// Most frames received at a time, at most [`BURST`].
    most: usize,
    /// Frames without a ring since `window_began`, and the total up to which no ring is requested.
    window: usize,
    window_began: Option<Instant>,
    asks_from: u64,
}

impl Drop for KernelRx {
    fn drop(&mut self) {
        // The socket is closed with the port. The ring's memory keeps it open, too; whoever drops
        // it last closes it.
        if let Some(ring) = self.line.take().and_then(|line| line.ring) {
            background::later(ring);
        }
    }
}

impl KernelRx {
    fn new(sockets: Arc<Sockets>, line: Line, buffers: Buffers) -> KernelRx {
        KernelRx {
            sockets,
            line: Some(line),
            buffers,
            expected: EXPECTED,
            long_lately: 0,
            malformed: 0,
            no_buffer: 0,
            missed: Cell::new(0),
            first_ns: 0,
            total: 0,
            most: BURST,
            window: 0,
            window_began: None,
            asks_from: 0,
        }
    }

    fn ring(&self) -> Option<&PacketRing> {
        self.line.as_ref()?.ring.as_ref()
    }

    fn count(&mut self, refused: Refused) {
        match refused {
            Refused::Malformed => self.malformed += 1,
            Refused::NoBuffer => self.no_buffer += 1,
        }
    }
}

/// Returns the VLAN tag that the kernel removed from the frame, as TPID and TCI.
fn tag_beside(header: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel filled the control area in and set its length; the macros stay within that
    // length.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(current) = message.as_ref() {
            if current.cmsg_level == libc::SOL_PACKET
                && current.cmsg_type == PACKET_AUXDATA
                && current.cmsg_len
                    >= libc::CMSG_LEN(std::mem::size_of::<AuxData>() as u32) as usize
            {
                let data: AuxData = libc::CMSG_DATA(message).cast::<AuxData>().read_unaligned();
                return tag(data.status, data.vlan_tci, data.vlan_tpid);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// Returns the tag that a status announces, as TPID and TCI.
fn tag(status: u32, tci: u16, tpid: u16) -> Option<(u16, u16)> {
    if status & TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = status & TP_STATUS_VLAN_TPID_VALID != 0;
    Some((if known { tpid } else { TPID_DEFAULT }, tci))
}

/// Result of a fetch from the socket's queue.
enum Fetched {
    /// This many messages, good and bad.
    Messages(usize),
    /// A message that was unusable and is lost.
    Lost,
    /// No message; the `errno`, or 0.
    Nothing(c_int),
}

impl KernelRx {
    /// Fetches up to `most` frames from the socket's queue.
    fn fetch(&mut self, most: usize, out: &mut Vec<Mbuf>) -> Fetched {
        let mut buffers = self.buffers;
        if self.ring().is_none() && self.long_lately == 0 {
            // Without a ring, frames of all lengths use the queue, and most are short.
            buffers.tails = None;
        }
        let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
        let ready = scratch.get_ready(most.min(BURST), &buffers);
        let fetched = match ready {
            0 => Fetched::Nothing(libc::ENOBUFS),
            ready => self.fetch_into(&mut scratch, ready, out),
        };
        scratch.slots[..ready].iter_mut().for_each(Slot::rest);
        SCRATCH.set(Some(scratch));
        fetched
    }

    /// Fetches frames into the first `ready` slots, which have been prepared.
    fn fetch_into(&mut self, scratch: &mut Scratch, ready: usize, out: &mut Vec<Mbuf>) -> Fetched {
        let Some(line) = &self.line else {
            return Fetched::Nothing(libc::EAGAIN);
        };
        // SAFETY: `ready` headers point at writable parts that live in the scratch.
        let got = unsafe {
            libc::recvmmsg(
                line.socket.number(),
                scratch.messages.as_mut_ptr(),
                ready as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if got < 0 {
            // EINVAL: a frame that a virtio-net header cannot describe (SCTP segmentation,
            // tunnels); the kernel has dropped it.
            return match last_errno() {
                libc::EINVAL => {
                    self.malformed += 1;
                    Fetched::Lost
                }
                errno => Fetched::Nothing(errno),
            };
        }
        self.long_lately = self.long_lately.saturating_sub(1);
        for index in 0..got as usize {
            if scratch.messages[index].msg_len > u32::from(DATA_ROOM) {
                self.long_lately = LONG_FETCHES;
            }
            match scratch.take(index) {
                Ok(frame) => out.push(frame),
                Err(refused) => self.count(refused),
            }
        }
        Fetched::Messages(got as usize)
    }

    /// Takes up to a burst of frames from the queue of a socket without a ring; returns whether the
    /// queue is empty afterwards.
    fn receive_by_queue(&mut self, out: &mut Vec<Mbuf>) -> bool {
        let mut left = self.most;
        let mut turn = Turn::default();
        while left > 0 && !turn.is_over() {
            let asked = self.expected.min(left);
            let before = out.len();
            let fetched = self.fetch(asked, out);
            out[before..].iter().for_each(|frame| turn.spend(frame));
            match fetched {
                Fetched::Messages(count) => {
                    left -= count;
                    if count == asked {
                        self.expected = (2 * self.expected).min(AT_ONCE);
                    } else {
                        self.expected = (self.expected / 2).max(EXPECTED);
                        // Empty, or an error is pending: the next call will tell.
                        return false;
                    }
                }
                Fetched::Lost => left -= 1,
                Fetched::Nothing(errno) => return errno == libc::EAGAIN,
            }
        }
        false
    }

    /// Takes up to a burst of frames from the ring and, for slots that say so, from the queue;
    /// returns whether the ring is empty afterwards.
    fn receive_by_ring(&mut self, out: &mut Vec<Mbuf>) -> bool {
        let mut left = self.most;
        let (mut turn, mut spent) = (Turn::default(), out.len());
        while let Some(ring) = self.ring()
            && left > 0
        {
            out[spent..].iter().for_each(|frame| turn.spend(frame));
            spent = out.len();
            if turn.is_over() {
                return false;
            }
            let used = match ring.next() {
                Next::Nothing => return true,
                Next::Frame { header, bytes, tag } => {
                    match self.unpack(&header, bytes, tag) {
                        Ok(frame) => out.push(frame),
                        Err(refused) => self.count(refused),
                    }
                    1
                }
                Next::Queued => {
                    let most = ring.queued(left.min(AT_ONCE));
                    match self.fetch(most, out) {
                        Fetched::Messages(count) => count,
                        // The queue is empty, so the frame is lost.
                        Fetched::Lost | Fetched::Nothing(libc::EAGAIN) => 1,
                        // The frame is still queued; retry later.
                        Fetched::Nothing(_) => return false,
                    }
                }
                Next::Cut => {
                    self.missed.set(self.missed.get() + 1);
                    1
                }
            };
            if let Some(ring) = self.line.as_mut().and_then(|line| line.ring.as_mut()) {
                ring.give_back(used);
            }
            left -= used.min(left);
        }
        false
    }

    /// Takes up to a burst of frames from the present socket; returns whether it is empty
    /// afterwards.
    #[inline]
    fn receive_by_line(&mut self, out: &mut Vec<Mbuf>) -> bool {
        match self.ring().map(PacketRing::came_ns) {
            Some(came_ns) => {
                self.first_ns = came_ns;
                self.receive_by_ring(out)
            }
            None => {
                self.first_ns = 0;
                self.receive_by_queue(out)
            }
        }
    }

    /// Switches to the socket that has taken over: the old one is empty and stays so.
    #[cold]
    fn change_over(&mut self, out: &mut Vec<Mbuf>) {
        let Some(next) = self.sockets.take() else {
            return;
        };
        self.read_missed();
        if let Some(old) = self.line.replace(next) {
            self.sockets.leave(old);
        }
        (self.window, self.window_began) = (0, None);
        self.receive_by_line(out);
    }

    /// Asks for a ring if frames keep coming.
    fn judge(&mut self, count: usize) {
        self.window += count;
        let many = count >= MANY;
        if !many && self.window < OFTEN || self.total < self.asks_from {
            return;
        }
        let now = Instant::now();
        let began = self.window_began.replace(now);
        let often = began.is_some_and(|began| now.duration_since(began) < OFTEN_WITHIN);
        self.window = 0;
        if (many || often) && !self.sockets.ask_for_ring(MOST_RINGS) {
            self.asks_from = self.total + ASK_AGAIN;
        }
    }

    /// Reads the kernel's count of frames that were dropped because they were not fetched in time.
    fn read_missed(&self) {
        let Some(line) = &self.line else { return };
        let mut counts = [0u32; 3];
        let mut length = std::mem::size_of_val(&counts) as libc::socklen_t;
        // SAFETY: the array is writable for the length given.
        let code = unsafe {
            libc::getsockopt(
                line.socket.number(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                counts.as_mut_ptr().cast::<c_void>(),
                &mut length,
            )
        };
        if code == 0 {
            // The kernel resets the count at each reading.
            self.missed.set(self.missed.get() + u64::from(counts[1]));
        }
    }

    /// Makes a frame of a slot's contents.
    fn unpack(
        &self,
        header: &[u8; vnet::LENGTH],
        bytes: &[u8],
        tag: Option<(u16, u16)>,
    ) -> Result<Mbuf, Refused> {
        let offload = vnet::decode(header, bytes.len()).ok_or(Refused::Malformed)?;
        let mut frame = self.buffers.pool.frame(bytes).ok_or(Refused::NoBuffer)?;
        frame.set_offload(offload);
        match tag {
            Some((tpid, tci)) if !vector::insert_tag(&mut frame, tpid, tci) => {
                Err(Refused::Malformed)
            }
            _ => Ok(frame),
        }
    }
}

impl RxQueue<Mbuf> for KernelRx {
    fn receive(&mut self, out: &mut Vec<Mbuf>) -> usize {
        if self.sockets.is_shut() {
            return 0;
        }
        let before = out.len();
        let over = self.sockets.is_over();
        let empty = self.receive_by_line(out);
        if over && empty && out.len() == before {
            self.change_over(out);
        }
        let count = out.len() - before;
        if count > 0 {
            self.total += count as u64;
            self.sockets.came(self.total);
            if self.ring().is_none() {
                self.judge(count);
            }
        }
        count
    }

    fn limit(&mut self, most: usize) {
        self.most = most.min(BURST);
    }

    fn is_costly(&self) -> bool {
        self.ring().is_none()
    }

    fn is_steady(&self) -> bool {
        true
    }

    fn waited_ns(&self) -> u64 {
        // If the wall clock is set meanwhile, waits are wrong; impossible values are ignored.
        let waited = match self.first_ns {
            0 => 0,
            first => day_ns().saturating_sub(first),
        };
        if waited <= LONGEST_WAIT_NS { waited } else { 0 }
    }

    fn disarm(&mut self) {
        // An error of the interface (it went down) makes the socket readable until the error is
        // read, which polling the ring does not do.
        let Some(line) = &self.line else { return };
        let mut error: c_int = 0;
        let mut length = std::mem::size_of_val(&error) as libc::socklen_t;
        // SAFETY: the number is writable for the length given.
        unsafe {
            libc::getsockopt(
                line.socket.number(),
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                std::ptr::from_mut(&mut error).cast::<c_void>(),
                &mut length,
            )
        };
    }

    fn wait_fd(&self) -> Option<RawFd> {
        let line = self.line.as_ref()?;
        Some(self.sockets.wait_fd(line))
    }

    fn drops(&self) -> QueueDrops {
        self.read_missed();
        QueueDrops {
            missed: self.missed.get(),
            malformed: self.malformed,
            no_buffer: self.no_buffer,
        }
    }
}

struct KernelTx {
    fd: Lingering,
    /// The port's receiving sockets, which tell whether the port is closed.
    sockets: Arc<Sockets>,
    scratch: Vec<Mbuf>,
    headers: Vec<[u8; vnet::LENGTH]>,
    parts: Vec<iovec>,
    messages: Vec<mmsghdr>,
}

// SAFETY: the raw pointers in `parts` and `messages` are made and used within one call of `send`.
unsafe impl Send for KernelTx {}

impl KernelTx {
    /// Lists all frames for `sendmmsg`. Frames with too many parts are removed and counted.
    fn list(&mut self, frames: &mut Vec<Mbuf>, outcome: &mut TxOutcome) {
        self.headers.clear();
        self.parts.clear();
        self.messages.clear();
        self.headers.extend(frames.iter().map(vector::header));
        let mut index = 0;
        let (headers, parts, messages) = (&self.headers, &mut self.parts, &mut self.messages);
        frames.retain_mut(|frame| {
            let header = &headers[index];
            index += 1;
            let Some(count) = vector::push_parts(header, frame, parts) else {
                outcome.failed += 1;
                return false;
            };
            // SAFETY: all zeroes is a valid message header.
            let mut message: mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iovlen = count;
            messages.push(message);
            true
        });
        // Only now the addresses in `parts` are final.
        let mut first = self.parts.as_mut_ptr();
        for message in &mut self.messages {
            message.msg_hdr.msg_iov = first;
            first = first.wrapping_add(message.msg_hdr.msg_iovlen);
        }
    }

    /// Sends the listed frames.
    fn transmit(&mut self, frames: &[Mbuf], outcome: &mut TxOutcome) {
        let mut next = 0;
        while next < frames.len() {
            // SAFETY: the headers from `next` on are valid and their parts live in self and in
            // `frames`.
            let sent = unsafe {
                libc::sendmmsg(
                    self.fd.as_raw_fd(),
                    self.messages.as_mut_ptr().add(next),
                    (frames.len() - next) as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            if sent > 0 {
                let sent = sent as usize;
                outcome.packets += sent as u64;
                outcome.bytes += frames[next..next + sent]
                    .iter()
                    .map(|frame| frame.len() as u64)
                    .sum::<u64>();
                next += sent;
                continue;
            }
            // The error belongs to the first frame that was not sent.
            let left = (frames.len() - next) as u64;
            match last_errno() {
                libc::EINTR => {}
                libc::EAGAIN => {
                    outcome.full += left;
                    return;
                }
                libc::ENOBUFS => {
                    outcome.full += 1;
                    next += 1;
                }
                libc::EMSGSIZE => {
                    outcome.too_long += 1;
                    next += 1;
                }
                libc::ENETDOWN | libc::ENXIO | libc::ENODEV => {
                    outcome.failed += left;
                    return;
                }
                _ => {
                    outcome.failed += 1;
                    next += 1;
                }
            }
        }
    }
}

impl KernelTx {
    /// Sends frames that the kernel can handle, and empties the vector.
    fn send_ready(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        let mut unlisted = TxOutcome::default();
        self.list(frames, &mut unlisted);
        outcome.failed += unlisted.failed;
        self.transmit(frames, &mut outcome);
        mbuf::free_all(frames);
        outcome
    }
}

impl TxQueue<Mbuf> for KernelTx {
    fn send(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        if self.sockets.is_shut() {
            let outcome = TxOutcome {
                failed: frames.len() as u64,
                ..TxOutcome::default()
            };
            mbuf::free_all(frames);
            return outcome;
        }
        if !egress::scan(frames, KERNEL.longest).special {
            return self.send_ready(frames);
        }
        let mut slice = std::mem::take(&mut self.scratch);
        let send = |slice: &mut Vec<Mbuf>| self.send_ready(slice);
        let outcome = egress::send_in_slices(frames, &mut slice, &KERNEL, send);
        self.scratch = slice;
        outcome
    }
}

/// The control thread's side.
struct KernelControl {
    interface: Interface,
    sockets: Arc<Sockets>,
    /// Keeps other switches from using the interface.
    _hold: Hold,
}

impl PortControl for KernelControl {
    fn tx_queue(&mut self, _worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        let fd = sender(self.interface.index()).map_err(|errno| Error::Open {
            name: self.interface.name().to_string(),
            errno,
        })?;
        Ok(Box::new(KernelTx {
            fd: Lingering::new(fd),
            sockets: Arc::clone(&self.sockets),
            scratch: Vec::new(),
            headers: Vec::new(),
            parts: Vec::new(),
            messages: Vec::new(),
        }))
    }

    fn info(&mut self) -> PortInfo {
        self.interface.info()
    }

    fn is_announced(&self) -> bool {
        !self.interface.is_late()
    }

    fn status(&mut self) -> Vec<(String, String)> {
        self.interface.status()
    }

    fn device_stats(&mut self) -> Vec<(String, u64)> {
        self.interface.statistics(false)
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        self.interface.set_mtu(mtu)
    }

    fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        self.interface.set_mac(mac)
    }

    fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        self.interface.set_admin(up)
    }

    fn close(self: Box<Self>) {}
}

impl Drop for KernelControl {
    fn drop(&mut self) {
        self.sockets.shut();
    }
}
