//! Existing kernel interfaces, through AF_PACKET sockets.
//!
//! A local veth sends frames whose checksum is still to be filled in, TCP frames of 64 KiB, and VLAN tags beside the
//! bytes. With `PACKET_VNET_HDR` the first two arrive with a header that says so, and leave again with one, so a frame from one
//! kernel interface to another is never segmented; with `PACKET_AUXDATA` the tag arrives too and is put back into the
//! bytes. Frames of the common size arrive in memory shared with the kernel ([`ring`]), longer ones by `recvmmsg`. What this switch sends is not received again (`PACKET_IGNORE_OUTGOING`). The host's own stack goes on seeing what arrives, as with Open
//! vSwitch.

mod ring;

use crate::closing::{self, Lingering};
use crate::descriptor::Descriptor;
use crate::egress;
use crate::error::{Error, last_errno};
use crate::interface::Interface;
use crate::link::{Links, set_option};
use crate::mbuf::{self, Mbuf};
use crate::spec::PortSpec;
use crate::turn::Turn;
use crate::vector::{self, Buffers, KERNEL, Parts, Refused, Slot};
use crate::vnet;
use crate::{Eal, Mac, OpenPort, PortControl, PortInfo};
use libc::{c_int, c_void, iovec, mmsghdr};
use packet::frame::Frame;
use packet::io::{BURST, QueueDrops, RxQueue, TxOutcome, TxQueue};
use ring::{Next, PacketRing};
use std::cell::Cell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

// linux/if_packet.h
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_STATISTICS: c_int = 6;
const PACKET_AUXDATA: c_int = 8;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_IGNORE_OUTGOING: c_int = 23;
const PACKET_MR_PROMISC: u16 = 1;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const TPID_DEFAULT: u16 = 0x8100;

/// What the kernel may hold for us: a few hundred frames of 64 KiB.
const RECEIVE_BUFFER: c_int = 8 << 20;
const SEND_BUFFER: c_int = 4 << 20;

/// Frames that are fetched from the socket's queue at once; each may have 64 KiB.
const AT_ONCE: usize = 8;

/// No frame is taken for older than this.
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

/// `struct packet_mreq`.
#[repr(C)]
struct Membership {
    ifindex: c_int,
    kind: u16,
    address_length: u16,
    address: [u8; 8],
}

/// Room for one control message with an `AuxData`, aligned as the kernel wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Ancillary([u8; 64]);

pub(crate) fn open(eal: &Eal, spec: &PortSpec) -> Result<OpenPort, Error> {
    let failed = |errno| Error::Open {
        name: spec.name.clone(),
        errno,
    };
    let mut links = Links::new().map_err(failed)?;
    let link = links.by_name(&spec.name).map_err(failed)?;
    // What is sent to a loopback device comes back at once.
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
    closing::start();
    let (socket, ring) = receiver(link.ifindex).map_err(failed)?;
    let socket = Arc::new(Descriptor::new(socket));
    let rx = KernelRx::new(socket.clone(), ring, eal.buffers()?);
    let mut control = Box::new(KernelControl {
        interface: Interface::new(&spec.name, links, &link),
        socket,
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

fn packet_socket() -> Result<OwnedFd, c_int> {
    // Protocol 0 receives nothing until the socket is bound to one.
    // SAFETY: plain values.
    let fd = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        )
    };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, &1)?;
    Ok(fd)
}

fn bind(fd: &OwnedFd, ifindex: u32, protocol: u16) -> Result<(), c_int> {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex as c_int;
    // SAFETY: the address is readable for its size.
    let code = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            std::mem::size_of_val(&address) as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(last_errno()) }
}

/// A socket that receives what comes in by an interface, with a ring where the kernel has memory for one.
fn receiver(ifindex: u32) -> Result<(OwnedFd, Option<PacketRing>), c_int> {
    let fd = packet_socket()?;
    let ring = PacketRing::new(&fd);
    if let Err(errno) = &ring {
        tracing::warn!(target: "netdev_linux", "no shared memory for received packets ({}): each is fetched by a system call", crate::describe(*errno));
    }
    set_option(&fd, libc::SOL_PACKET, PACKET_AUXDATA, &1)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER)?;
    let promiscuous = Membership {
        ifindex: ifindex as c_int,
        kind: PACKET_MR_PROMISC,
        address_length: 0,
        address: [0; 8],
    };
    set_option(&fd, libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous)?;
    bind(&fd, ifindex, libc::ETH_P_ALL as u16)?;
    Ok((fd, ring.ok()))
}

fn sender(ifindex: u32) -> Result<OwnedFd, c_int> {
    let fd = packet_socket()?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)?;
    bind(&fd, ifindex, 0)?;
    Ok(fd)
}

/// Nanoseconds of the clock of the day, which the kernel stamps frames with.
fn day_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

struct KernelRx {
    socket: Arc<Descriptor>,
    ring: Option<PacketRing>,
    buffers: Buffers,
    slots: Box<[Slot; BURST]>,
    parts: Box<[Parts; BURST]>,
    ancillary: Box<[Ancillary; BURST]>,
    messages: Box<[mmsghdr; BURST]>,
    malformed: u64,
    no_buffer: u64,
    missed: Cell<u64>,
    /// When the first frame of the last burst came, in nanoseconds of the clock of the day; 0 where nobody knows.
    first_ns: u64,
}

// SAFETY: the raw pointers in `parts` and `messages` point into the boxes beside them and are only used during a receive.
unsafe impl Send for KernelRx {}

impl Drop for KernelRx {
    fn drop(&mut self) {
        // The memory holds the socket as well: whoever lets go of it last closes it.
        if let Some(ring) = self.ring.take() {
            closing::later(ring);
        }
    }
}

impl KernelRx {
    fn new(socket: Arc<Descriptor>, ring: Option<PacketRing>, mut buffers: Buffers) -> KernelRx {
        if ring.is_none() {
            // Frames of every length come by the queue then, and most are short.
            buffers.tails = None;
        }
        KernelRx {
            socket,
            ring,
            buffers,
            slots: Box::new(std::array::from_fn(|_| Slot::new())),
            parts: Box::new([const { Parts::NONE }; BURST]),
            ancillary: Box::new([Ancillary([0; 64]); BURST]),
            // SAFETY: all zeroes is a valid message header.
            messages: Box::new([unsafe { std::mem::zeroed() }; BURST]),
            malformed: 0,
            no_buffer: 0,
            missed: Cell::new(0),
            first_ns: 0,
        }
    }

    /// Points the first `count` message headers at free buffers; returns for how many there were some.
    fn get_ready(&mut self, count: usize) -> usize {
        for index in 0..count {
            let Some(parts) = self.slots[index].parts(&self.buffers) else {
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

    fn count(&mut self, refused: Refused) {
        match refused {
            Refused::Malformed => self.malformed += 1,
            Refused::NoBuffer => self.no_buffer += 1,
        }
    }
}

/// The VLAN tag that the kernel took out of the frame, as protocol and content.
fn tag_beside(header: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel filled the control area in and set its length; the macros stay within that length.
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

/// The tag that a status speaks of, as protocol and content.
fn tag(status: u32, tci: u16, tpid: u16) -> Option<(u16, u16)> {
    if status & TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = status & TP_STATUS_VLAN_TPID_VALID != 0;
    Some((if known { tpid } else { TPID_DEFAULT }, tci))
}

/// What a fetch from the socket's queue has come to.
enum Fetched {
    /// So many messages, good and bad.
    Messages(usize),
    /// One that was of no use and is gone.
    Lost,
    /// Nothing; with the error, if it was one.
    Nothing(c_int),
}

impl KernelRx {
    /// Fetches up to `most` frames from the socket's queue.
    fn fetch(&mut self, most: usize, out: &mut Vec<Mbuf>) -> Fetched {
        let ready = self.get_ready(most.min(BURST));
        if ready == 0 {
            return Fetched::Nothing(libc::ENOBUFS);
        }
        let fetched = self.fetch_into(ready, out);
        self.slots[..ready].iter_mut().for_each(Slot::rest);
        fetched
    }

    /// Fetches frames into the first `ready` slots, which are.
    fn fetch_into(&mut self, ready: usize, out: &mut Vec<Mbuf>) -> Fetched {
        // SAFETY: `ready` headers point at writable parts that live in self.
        let got = unsafe {
            libc::recvmmsg(
                self.socket.number(),
                self.messages.as_mut_ptr(),
                ready as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if got < 0 {
            // EINVAL is a frame that a virtio-net header cannot describe (SCTP segmentation, tunnels): the kernel dropped it.
            return match last_errno() {
                libc::EINVAL => {
                    self.malformed += 1;
                    Fetched::Lost
                }
                errno => Fetched::Nothing(errno),
            };
        }
        for index in 0..got as usize {
            match self.take(index) {
                Ok(frame) => out.push(frame),
                Err(refused) => self.count(refused),
            }
        }
        Fetched::Messages(got as usize)
    }

    /// Takes up to a burst of frames from the socket's queue.
    fn receive_by_queue(&mut self, out: &mut Vec<Mbuf>) {
        let mut turn = Turn::default();
        for _ in 0..BURST / AT_ONCE {
            let before = out.len();
            let fetched = self.fetch(AT_ONCE, out);
            out[before..].iter().for_each(|frame| turn.spend(frame));
            if turn.is_over() || !matches!(fetched, Fetched::Messages(AT_ONCE)) {
                return;
            }
        }
    }

    /// Takes up to a burst of frames from the ring and, where it says that they are there, from the queue.
    fn receive_by_ring(&mut self, out: &mut Vec<Mbuf>) {
        let mut left = BURST;
        let (mut turn, mut spent) = (Turn::default(), out.len());
        while let Some(ring) = &self.ring
            && left > 0
        {
            out[spent..].iter().for_each(|frame| turn.spend(frame));
            spent = out.len();
            if turn.is_over() {
                return;
            }
            let used = match ring.next() {
                Next::Nothing => return,
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
                        // Where the queue is empty the frame has got lost.
                        Fetched::Lost | Fetched::Nothing(libc::EAGAIN) => 1,
                        // The frame is still there: another time.
                        Fetched::Nothing(_) => return,
                    }
                }
                Next::Cut => {
                    self.missed.set(self.missed.get() + 1);
                    1
                }
            };
            if let Some(ring) = &mut self.ring {
                ring.give_back(used);
            }
            left -= used.min(left);
        }
    }

    /// A frame of what lies in a slot.
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
        if self.socket.is_shut() {
            return 0;
        }
        let before = out.len();
        self.first_ns = self.ring.as_ref().map_or(0, PacketRing::came_ns);
        if self.ring.is_some() {
            self.receive_by_ring(out);
        } else {
            self.receive_by_queue(out);
        }
        out.len() - before
    }

    fn is_costly(&self) -> bool {
        self.ring.is_none()
    }

    fn waited_ns(&self) -> u64 {
        // Where somebody sets the clock meanwhile, the frames in the ring are taken for older or younger than they are, but for what cannot be.
        let waited = match self.first_ns {
            0 => 0,
            first => day_ns().saturating_sub(first),
        };
        if waited <= LONGEST_WAIT_NS { waited } else { 0 }
    }

    fn disarm(&mut self) {
        // An error of the interface (it went down) makes the socket readable until somebody asks for it, which to look at the ring does not.
        let mut error: c_int = 0;
        let mut length = std::mem::size_of_val(&error) as libc::socklen_t;
        // SAFETY: the number is writable for the length given.
        unsafe {
            libc::getsockopt(
                self.socket.number(),
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                std::ptr::from_mut(&mut error).cast::<c_void>(),
                &mut length,
            )
        };
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.socket.number())
    }

    fn drops(&self) -> QueueDrops {
        let mut counts = [0u32; 3];
        let mut length = std::mem::size_of_val(&counts) as libc::socklen_t;
        // SAFETY: the array is writable for the length given.
        let code = unsafe {
            libc::getsockopt(
                self.socket.number(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                counts.as_mut_ptr().cast::<c_void>(),
                &mut length,
            )
        };
        if code == 0 {
            // The kernel starts over with every question.
            self.missed.set(self.missed.get() + u64::from(counts[1]));
        }
        QueueDrops {
            missed: self.missed.get(),
            malformed: self.malformed,
            no_buffer: self.no_buffer,
        }
    }
}

struct KernelTx {
    fd: Lingering,
    /// The port's receiving socket, which tells whether the port is closed.
    socket: Arc<Descriptor>,
    scratch: Vec<Mbuf>,
    headers: Vec<[u8; vnet::LENGTH]>,
    parts: Vec<iovec>,
    messages: Vec<mmsghdr>,
}

// SAFETY: the raw pointers in `parts` and `messages` are made and used within one call of `send`.
unsafe impl Send for KernelTx {}

impl KernelTx {
    /// Lists all frames for `sendmmsg`. Frames with too many parts are taken out and counted.
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
        // The addresses of `parts` are final only now.
        let mut first = self.parts.as_mut_ptr();
        for message in &mut self.messages {
            message.msg_hdr.msg_iov = first;
            first = first.wrapping_add(message.msg_hdr.msg_iovlen);
        }
    }

    /// Sends what is listed.
    fn transmit(&mut self, frames: &[Mbuf], outcome: &mut TxOutcome) {
        let mut next = 0;
        while next < frames.len() {
            // SAFETY: the headers from `next` on are valid and their parts live in self and in `frames`.
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
            // The error is that of the first frame not sent.
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
    /// Sends frames that the kernel can, and leaves the vector empty.
    fn send_ready(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        self.list(frames, &mut outcome);
        self.transmit(frames, &mut outcome);
        mbuf::free_all(frames);
        outcome
    }
}

impl TxQueue<Mbuf> for KernelTx {
    fn send(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        if self.socket.is_shut() {
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
    socket: Arc<Descriptor>,
}

impl PortControl for KernelControl {
    fn tx_queue(&mut self, _worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        let fd = sender(self.interface.index()).map_err(|errno| Error::Open {
            name: self.interface.name().to_string(),
            errno,
        })?;
        Ok(Box::new(KernelTx {
            fd: Lingering::new(fd),
            socket: self.socket.clone(),
            scratch: Vec::new(),
            headers: Vec::new(),
            parts: Vec::new(),
            messages: Vec::new(),
        }))
    }

    fn info(&mut self) -> PortInfo {
        self.interface.info()
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
        self.socket.shut_slowly();
    }
}
