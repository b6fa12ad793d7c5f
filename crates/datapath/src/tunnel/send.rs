//! Packets into tunnels, and out of them: the worker's part.
//!
//! A packet for a tunnel port gets outer headers, addressed to the next hop, and continues in the
//! underlay's bridge as if it had come in by that bridge's local port, as through a patch port; the
//! bound on patch ports also ends routing loops (a route that leads into its own tunnel). Headers
//! are prepared once for each tunnel, remote endpoint and local address ([`HeaderKey`]) and then
//! copied; when routes or neighbours change, all are prepared again.
//!
//! Where the next hop's MAC address is not known, the worker tells control, which sends an ARP
//! request or neighbour solicitation in the underlay's bridge. The packet waits at most
//! [`WAIT_MS`]. One worker keeps at most [`WAITING_MAX`] packets and [`WAITING_BYTES`], for one
//! next hop at most [`WAITING_OF_ONE`], for one that does not answer [`WAITING_OF_SILENT`].
//!
//! A packet that is sent to an underlay's local port, to its MAC address and one of its IP
//! addresses, and that a tunnel's protocol claims loses its outer headers and comes in at the
//! tunnel's port; fragments of such packets wait for each other ([`Reassembly`]), and so do
//! segments of STT ([`stt::Reassembly`]). Workers report neighbours found in ARP and neighbour
//! discovery there to control; such packets go to the device as well.

use super::inner::InnerFlow;
use super::{
    Arrivals, Carries, LocalAddress, Over, Protocol, TunnelKey, TunnelPort, Tunnels, WORDS,
};
use crate::counters::DropReason;
use crate::fcf;
use crate::forward::Forward;
use crate::learn_requests::{RequestKind, WorkerRequest};
use crate::port::{BridgeId, LOCAL, PortId};
use crate::snapshot::{BridgeState, PortState, Snapshot};
use crate::worker::Turn;
use packet::fragment::{Fragment, Fragments, Limits, Outcome, Reassembly};
use packet::frame::Gso;
use packet::io::BURST;
use packet::key::at;
use packet::keyed::Keyed;
use packet::segment::Cut;
use packet::tunnel::{
    Addresses, Decapsulated, GeneveOptions, Header, OptionBuffer, Payload, PerPacket, PushError,
    TunnelFlags, TunnelInfo, TunnelKind, TunnelWords, Usual, add_ethernet, decapsulate, flow_hash,
    outer_tos, outer_ttl, parse_into, parse_quick, strip_ethernet, stt,
};
use packet::{FlowKey, Frame, Layers, WordSet};
use program::actions::PortNo;
use program::host::Context;
use smallvec::SmallVec;
use stages::Stage;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use underlay::{Device, Seen, Told, Unresolved};

/// Milliseconds that a packet waits for its next hop's MAC address.
pub const WAIT_MS: u64 = 1000;
/// Most waiting packets of a worker.
pub const WAITING_MAX: usize = 1024;
/// Most bytes of waiting packets of a worker.
pub const WAITING_BYTES: usize = 1 << 20;
/// Most packets that wait for one next hop.
pub const WAITING_OF_ONE: usize = 64;
/// Most packets that wait for a next hop after several requests without an answer.
pub const WAITING_OF_SILENT: usize = 2;
const SILENT: u32 = 3;
/// Most next hops whose MAC address is wanted at a time, and how long one without waiting packets
/// is remembered.
const NEXT_HOPS_MAX: usize = 256;
const FORGET_MS: u64 = 10_000;
/// Headroom in front of a header that found no room: as much as received frames have.
const ROOM_BEFORE: usize = 64;
/// Bytes at the front of a frame that tell whether it came by a tunnel: Ethernet, IPv6, and ports.
const FRONT: usize = 14 + 40 + 8;
/// Interval at which control is asked for the same next hop, in milliseconds.
const ASK_MS: u64 = 200;
/// Interval at which waiting packets are retried, in milliseconds, while routes and neighbours do
/// not change.
const RETRY_MS: u64 = 100;
/// Most unsolicited neighbours that control is told of, and most requests to it, in [`TOLD_MS`]
/// milliseconds: this limits how busy a flood of answers on an underlay can keep it.
const TOLD_MAX: u32 = 32;
const TOLD_MS: u64 = 10;
/// Most prepared headers.
const HEADERS_MAX: usize = 16_384;

/// Words of an inner packet's key that its flow's hash needs.
const READ: WordSet = WordSet::MINI_KEY.union(WordSet::of_bytes(at::IPV6_SRC, 32));

const ETHERNET_LEN: usize = 14;
/// Bytes of the smallest segments that STT is cut into.
const STT_LEAST: u32 = packet::segment::MIN_TCP_SIZE as u32;
/// Bits of IPv4's flags and offset that only fragments have.
const FRAGMENT_V4: u16 = 0x3fff;
const FRAGMENT_V6: u8 = 44;
const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;
const ICMPV6: u8 = 58;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
/// Type of a neighbour advertisement (RFC 4861 section 4.4).
const ADVERTISEMENT: u8 = 136;
/// Bytes of a packet that control needs to learn a neighbour: Ethernet with a tag, IPv6, and a
/// neighbour advertisement with an option.
const SNOOPED: usize = 18 + 40 + 32;

/// The tunnel metadata of the current packet: how it is to be sent.
#[derive(Clone, Default)]
struct Said {
    info: TunnelInfo,
    options: OptionBuffer,
}

impl Said {
    fn clear(&mut self) {
        self.info = TunnelInfo::default();
        self.options.clear();
    }

    /// Whether it says nothing that [`Prepared::push_quick`] cannot write.
    #[inline(always)]
    fn is_common(&self) -> bool {
        let info = &self.info;
        !info.flags.contains(TunnelFlags::OAM) && (info.gbp_id, info.gbp_flags) == (0, 0)
    }
}

/// What the first bytes say of a frame that is being sent to an underlay's local port.
enum Front {
    /// It may announce a neighbour.
    Neighbour,
    /// It may have come by a tunnel.
    Outer(Outer),
    /// It may be a fragment of a packet that came by a tunnel.
    Fragment(Outer),
    Other,
}

/// The outer headers of a packet that may have come by a tunnel.
pub(crate) struct Outer {
    mac: [u8; 6],
    dst: IpAddr,
    pub over: Over,
}

impl Outer {
    /// Reads those of a frame; None where it came by no tunnel.
    pub fn of(frame: &[u8]) -> Option<Outer> {
        match Front::of(frame) {
            Front::Outer(outer) => Some(outer),
            Front::Neighbour | Front::Fragment(_) | Front::Other => None,
        }
    }

    /// Returns whether it is for this device.
    #[inline(always)]
    pub fn is_for(&self, device: &Device) -> bool {
        self.mac == device.mac && device.owns(self.dst)
    }
}

impl Front {
    #[inline(always)]
    fn of(head: &[u8]) -> Front {
        let Some(header) = head.first_chunk::<ETHERNET_LEN>() else {
            return Front::Other;
        };
        let eth_type = u16::from_be_bytes([header[12], header[13]]);
        let (dst, protocol, l4) = match eth_type {
            IPV4 if head.len() >= 34 => {
                let dst = [head[30], head[31], head[32], head[33]];
                let l4 = ETHERNET_LEN + usize::from(head[14] & 0xf) * 4;
                if u16::from_be_bytes([head[20], head[21]]) & FRAGMENT_V4 != 0 {
                    return Front::fragment(header, dst.into());
                }
                (IpAddr::from(dst), head[23], l4)
            }
            IPV6 if head.len() >= 54 => {
                let mut dst = [0; 16];
                dst.copy_from_slice(&head[38..54]);
                if head[20] == FRAGMENT_V6 {
                    return Front::fragment(header, dst.into());
                }
                (IpAddr::from(dst), head[20], 54)
            }
            ARP => return Front::Neighbour,
            _ => return Front::Other,
        };
        let over = match protocol {
            UDP | TCP => match head.get(l4 + 2..l4 + 4) {
                Some(port) if protocol == UDP => Over::Udp(u16::from_be_bytes([port[0], port[1]])),
                Some(port) => Over::Tcp(u16::from_be_bytes([port[0], port[1]])),
                None => return Front::Other,
            },
            GRE => Over::Gre,
            ICMPV6 if eth_type == IPV6 && head.get(l4) == Some(&ADVERTISEMENT) => {
                return Front::Neighbour;
            }
            _ => return Front::Other,
        };
        let mut mac = [0; 6];
        mac.copy_from_slice(&header[..6]);
        Front::Outer(Outer { mac, dst, over })
    }

    #[cold]
    fn fragment(header: &[u8; ETHERNET_LEN], dst: IpAddr) -> Front {
        let mut mac = [0; 6];
        mac.copy_from_slice(&header[..6]);
        Front::Fragment(Outer {
            mac,
            dst,
            over: Over::Gre, // not known
        })
    }
}

/// What a header is prepared for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct HeaderKey {
    /// [`TunnelPort::version`].
    tunnel: u64,
    remote: IpAddr,
    local: Option<IpAddr>,
    /// The Ethertype of packets without an Ethernet header; 0 for frames.
    carried: u16,
}

/// A header, and the bridge in which packets with it continue.
#[repr(align(64))] // in as few cache lines as possible
struct Prepared {
    header: Header,
    device: BridgeId,
    /// As in the tunnel's options; the key is that of packets without metadata.
    id: u64,
    /// Whether each packet's metadata says its key.
    has_key_of_packets: bool,
    tos: Option<u8>,
    ttl: Option<u8>,
    /// Longer frames, with the header, are fragmented to fit `mtu` bytes of IP.
    longest: usize,
    mtu: usize,
    /// The next hop, to be marked as used so that it does not age.
    next_hop: Option<Arc<Seen>>,
}

/// What decides by which port a packet comes in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Came {
    /// [`Receivers::version`](super::Receivers::version), which is never 0.
    version: u64,
    kind: TunnelKind,
    port: u16,
    id: u64,
    addresses: Option<Addresses>,
    carries: Carries,
}

/// The same for packets over IPv4, and the port's slot.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CameBefore {
    version: u64,
    addresses: u64,
    id: u64,
    /// Number of the protocol, and whether it carries packets.
    protocol: u32,
    slot: u32,
}

/// Two of them, in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Pair([CameBefore; 2]);

const _: () = assert!(size_of::<Pair>() == 64);

/// Multiplies what packets are found by, to spread it over the places.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Number of results of the search for a port that a worker remembers, a power of two; each is at
/// one of two neighbouring places, which are one cache line.
const REMEMBERED: usize = 8192;

impl Prepared {
    /// Puts the header in front of a frame of the common kinds. Returns false, and changes nothing,
    /// for others.
    #[inline(always)]
    fn push_quick(
        &self,
        frame: &mut impl Frame,
        id: u64,
        secret: &Keyed,
        options: GeneveOptions<'_>,
    ) -> bool {
        let length = self.header.header_len() + options.bytes().len();
        if !self.header.is_quick() || frame.len() + length > self.longest {
            return false;
        }
        let Some(InnerFlow { tos, ttl, hash }) = InnerFlow::of(frame, secret) else {
            return false;
        };
        let (tos, ttl) = (
            outer_tos(self.tos, Some(tos)),
            outer_ttl(self.ttl, Some(ttl)),
        );
        (self.header).push_quick(frame, id, tos, ttl, hash, options)
    }

    /// Keeps the next hop from ageing.
    #[inline(always)]
    fn touch(&self) {
        if let Some(next_hop) = &self.next_hop {
            next_hop.touch();
        }
    }
}

/// Frames with their headers, on their way to the local port of an underlay's bridge.
struct Run<F> {
    frames: Vec<F>,
    device: Option<BridgeId>,
    /// Their bytes without headers.
    bytes: u64,
}

/// The same for frames that go by several tunnels: the port of each, and its bytes without header.
struct RunOfEach<'a, F> {
    frames: Vec<F>,
    device: Option<BridgeId>,
    sent: SmallVec<[(&'a PortState, u64); BURST]>,
}

/// Frames whose outer headers have been read, what these say, and the slots of the ports that the
/// frames came for.
type Staged<F> = Vec<(F, u32, Usual)>;

/// Why there is no header.
enum NoHeader {
    /// The next hop's MAC address is not known.
    Neighbour {
        device: u32,
        address: IpAddr,
        source: IpAddr,
    },
    Drop(DropReason),
}

/// A packet that waits for its next hop's MAC address.
struct Waiting<F> {
    until_ms: u64,
    port: PortId,
    said: Said,
    fcf: fcf::Said,
    depth: u32,
    mirrored: u32,
    frame: F,
}

/// A next hop whose MAC address is not known, and the packets that wait for it.
struct NextHop<F> {
    device: u32,
    address: IpAddr,
    source: IpAddr,
    waiting: VecDeque<Waiting<F>>,
    /// When control was last asked, and how often without an answer.
    asked_ms: u64,
    questions: u32,
}

impl<F> NextHop<F> {
    /// Returns whether one more packet may wait for it. After several requests without an answer
    /// only few may, so that next hops that never answer leave room for others.
    fn has_room(&self) -> bool {
        let most = match self.questions {
            0..=SILENT => WAITING_OF_ONE,
            _ => WAITING_OF_SILENT,
        };
        self.waiting.len() < most
    }
}

/// Neighbours that workers have asked for, shared by all workers because the answer may come by
/// another one's queue. One bit for each hash, so some count as asked for by mistake.
pub(crate) struct Asked {
    bits: [AtomicU64; 64],
    secret: Keyed,
}

impl Default for Asked {
    fn default() -> Asked {
        Asked {
            bits: std::array::from_fn(|_| AtomicU64::new(0)),
            secret: Keyed::default(),
        }
    }
}

impl Asked {
    fn place(&self, device: u32, address: IpAddr) -> (&AtomicU64, u64) {
        let hash = self.secret.hash_one((device, address)) >> 32;
        (&self.bits[hash as usize / 64 % 64], 1 << (hash % 64))
    }

    fn note(&self, device: u32, address: IpAddr) {
        let (word, bit) = self.place(device, address);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    /// Returns whether it has been asked for, and clears that.
    fn take(&self, device: u32, address: IpAddr) -> bool {
        let (word, bit) = self.place(device, address);
        word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// A worker's state for tunnels.
pub(crate) struct Sending<F> {
    /// Generation of routes and neighbours that `headers` were made from.
    generation: u64,
    headers: Vec<Prepared>,
    places: HashMap<HeaderKey, u32, Keyed>,
    last: Option<(HeaderKey, u32)>,
    /// For tunnels with one header for all their frames, by the ports' slots: version, which is
    /// never 0, and index of the header.
    fixed: Vec<(u64, u32)>,
    said: Said,
    /// What is known of the current packet's flow control field.
    pub fcf: fcf::Said,
    /// Next hops whose MAC address is unknown, or was lately; packets wait for some.
    next_hops: Vec<NextHop<F>>,
    /// Number of waiting packets, and their bytes.
    waiting: (usize, usize),
    /// Deadline of the current packet, if it has waited already.
    until_ms: Option<u64>,
    /// Generation of routes and neighbours when waiting packets were last retried, and the time.
    tried: (u64, u64),
    /// For the current period, its beginning and the number of unsolicited neighbours that control
    /// was told of; then the same for requests.
    told: (u64, u32),
    asked: (u64, u32),
    key: Box<FlowKey>,
    layers: Layers,
    found: Decapsulated,
    /// The port that the last packet over IPv6 came in by, and what it was found by.
    came: Option<(Came, u32)>,
    /// Ports that packets over IPv4 came in by, at places by a hash of what they were found by;
    /// empty before the first.
    came_before: Vec<Pair>,
    /// Frames of a run, with their headers.
    run: Vec<F>,
    /// Frames whose outer headers have been read.
    staged: Staged<F>,
    /// The identification of the next packet that may be fragmented.
    identification: u32,
    /// Fragments waiting for reassembly.
    fragments: Reassembly<F>,
    /// Segments of STT waiting for reassembly.
    segments: stt::Reassembly,
    /// Number of the next STT frame ([`Sending::next_number`]).
    stt_number: u32,
}

impl<F: Frame> Sending<F> {
    pub fn new() -> Sending<F> {
        Sending {
            generation: 0,
            headers: Vec::new(),
            places: HashMap::default(),
            last: None,
            fixed: Vec::new(),
            said: Said::default(),
            fcf: fcf::Said::default(),
            next_hops: Vec::new(),
            waiting: (0, 0),
            until_ms: None,
            tried: (0, 0),
            told: (0, 0),
            asked: (0, 0),
            key: Box::new(FlowKey::ZERO),
            layers: Layers::default(),
            found: Decapsulated::default(),
            came: None,
            came_before: Vec::new(),
            run: Vec::new(),
            staged: Vec::new(),
            // Must not be predictable (RFC 7739).
            identification: Keyed::default().hash_one(0) as u32,
            fragments: Reassembly::new(Limits::default()),
            segments: stt::Reassembly::new(stt::Limits::default()),
            stt_number: Keyed::default().hash_one(1) as u32,
        }
    }

    /// Returns whether packets wait, for next hops or for other fragments or segments.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.waiting.0 > 0 || self.fragments.is_waiting() || self.segments.is_waiting()
    }

    /// Drops what waits; returns the number of packets.
    pub fn discard(&mut self) -> usize {
        self.next_hops.clear();
        self.until_ms = None;
        self.said.clear();
        self.fcf = fcf::Said::default();
        let late = self.fragments.clear() + self.segments.clear();
        std::mem::take(&mut self.waiting).0 + late as usize
    }

    /// Returns the next number of an STT frame. The lowest bits are the worker's, so that no two
    /// workers give out the same; others see it again after 16 million frames.
    fn next_number(&mut self, worker: usize) -> u32 {
        self.stt_number = self.stt_number.wrapping_add(1);
        self.stt_number << 8 | (worker as u32 & 0xff)
    }

    /// Clears the tunnel metadata and flow control field for the next packets.
    #[inline]
    pub fn forget_said(&mut self) {
        self.said.clear();
        self.fcf = fcf::Said::default();
    }

    /// Sets the tunnel metadata to that of a decapsulated packet, without options.
    pub fn say(&mut self, info: TunnelInfo) {
        self.said.info = info;
        self.said.options.clear();
    }

    /// Returns the port of the packet that has just been parsed.
    #[inline]
    fn receiver(
        &mut self,
        tunnels: &Tunnels,
        protocol: Protocol,
        port: u16,
        found: &Decapsulated,
    ) -> Option<u32> {
        let kind = protocol.kind;
        let carries = match found.payload {
            Payload::Ethernet if kind != TunnelKind::Gtpu => Carries::Frames,
            _ => Carries::Packets,
        };
        match found.info.addresses {
            Some(Addresses::V4 { src, dst }) => {
                let id = found.info.id;
                self.receiver_over_ipv4(tunnels, protocol, port, carries, (src, dst), id)
            }
            _ => self.receiver_over_ipv6(tunnels, kind, port, carries, &found.info),
        }
    }

    /// [`Sending::receiver`] for a packet with these outer addresses and this key.
    #[inline(always)]
    fn receiver_over_ipv4(
        &mut self,
        tunnels: &Tunnels,
        protocol: Protocol,
        port: u16,
        carries: Carries,
        (src, dst): (u32, u32),
        id: u64,
    ) -> Option<u32> {
        let addresses = u64::from(src) << 32 | u64::from(dst);
        // Whoever finds others with the same hash only makes these packets searched for.
        let hash = addresses.wrapping_mul(HASH_FACTOR) ^ id ^ u64::from(port) << 48;
        let pair = (hash.wrapping_mul(HASH_FACTOR) >> 40) as usize % (REMEMBERED / 2);
        let mut came = CameBefore {
            version: tunnels.receivers.version,
            addresses,
            id,
            protocol: protocol.number << 1 | u32::from(carries == Carries::Packets),
            slot: 0,
        };
        if let Some(Pair(both)) = self.came_before.get(pair) {
            for before in both {
                came.slot = before.slot;
                if *before == came {
                    return Some(before.slot);
                }
            }
        }
        let info = TunnelInfo {
            id,
            addresses: Some(Addresses::V4 { src, dst }),
            ..TunnelInfo::default()
        };
        came.slot = (tunnels.receivers).find(protocol.kind, port, &info, carries)?;
        self.remember(came, pair);
        Some(came.slot)
    }

    /// Remembers by which port a packet came, at this place.
    #[inline(never)]
    fn remember(&mut self, came: CameBefore, pair: usize) {
        if self.came_before.is_empty() {
            let none = CameBefore { version: 0, ..came };
            self.came_before = vec![Pair([none; 2]); REMEMBERED / 2];
        }
        let Pair([first, second]) = &mut self.came_before[pair];
        *second = std::mem::replace(first, came);
    }

    /// [`Sending::receiver`] for others. Packets of one tunnel mostly come together, so the last
    /// result is remembered.
    fn receiver_over_ipv6(
        &mut self,
        tunnels: &Tunnels,
        kind: TunnelKind,
        port: u16,
        carries: Carries,
        info: &TunnelInfo,
    ) -> Option<u32> {
        let TunnelInfo { id, addresses, .. } = *info;
        let came = Came {
            version: tunnels.receivers.version,
            kind,
            port,
            id,
            addresses,
            carries,
        };
        if let Some((last, slot)) = &self.came
            && *last == came
        {
            return Some(*slot);
        }
        let slot = tunnels.receivers.find(kind, port, info, carries)?;
        self.came = Some((came, slot));
        Some(slot)
    }

    /// Gives up one next hop to have room for another: one that nothing waits for, or the one that
    /// has been asked for most often in vain. Returns how many packets that has lost.
    fn give_up_one(&mut self) -> u64 {
        let hops = self.next_hops.iter().enumerate();
        let least = hops.min_by_key(|(_, hop)| match hop.waiting.is_empty() {
            true => (0, hop.asked_ms),
            false => (1, u64::MAX - u64::from(hop.questions)),
        });
        let Some((place, _)) = least else { return 0 };
        let hop = self.next_hops.swap_remove(place);
        let (count, bytes) = &mut self.waiting;
        *count -= hop.waiting.len();
        *bytes -= hop
            .waiting
            .iter()
            .map(|waiting| waiting.frame.len())
            .sum::<usize>();
        hop.waiting.len() as u64
    }

    /// Returns whether it is too early to retry what waits.
    fn is_early(&mut self, generation: u64, now_ms: u64) -> bool {
        let (seen, at) = self.tried;
        if seen == generation && now_ms.wrapping_sub(at) < RETRY_MS {
            return true;
        }
        self.tried = (generation, now_ms);
        false
    }

    /// Returns whether control may be told of another unsolicited neighbour.
    fn may_tell(&mut self, now_ms: u64) -> bool {
        within(&mut self.told, now_ms)
    }

    /// Returns whether another request to control is allowed.
    fn may_ask(&mut self, now_ms: u64) -> bool {
        within(&mut self.asked, now_ms)
    }

    /// Returns the index of the header of a tunnel whose frames all get the same one, if that has
    /// been prepared.
    #[inline(always)]
    fn fixed_header(&self, snapshot: &Snapshot, port: &PortState) -> Option<u32> {
        let &(version, place) = self.fixed.get(port.id.slot() as usize)?;
        let valid = version == port.tunnel_version && self.generation == snapshot.generation();
        valid.then_some(place)
    }

    /// Prefetches such a header.
    #[inline(always)]
    fn prefetch_header(&self, port: &PortState) {
        if let Some((_, place)) = self.fixed.get(port.id.slot() as usize)
            && let Some(prepared) = self.headers.get(*place as usize)
        {
            let lines = size_of::<Prepared>() / 64;
            let from = std::ptr::from_ref(prepared).cast::<[u8; 64]>();
            (0..lines).for_each(|line| packet::parse::prefetch_at(from.wrapping_add(line)));
        }
    }

    /// Returns the index of the header for the current packet.
    #[inline]
    fn header(
        &mut self,
        snapshot: &Snapshot,
        slot: u32,
        tunnel: &TunnelPort,
        carried: u16,
    ) -> Result<u32, NoHeader> {
        let generation = snapshot.generation();
        if let Some(&(version, place)) = self.fixed.get(slot as usize)
            && version == tunnel.version
            && carried == 0
            && self.generation == generation
        {
            return Ok(place);
        }
        let spec = &tunnel.spec;
        let info = match tunnel.reads_packets {
            true => self.said.info,
            false => TunnelInfo::default(),
        };
        let Some((local, remote)) = spec.ends_of(&info) else {
            return Err(NoHeader::Drop(DropReason::TunnelNoDestination));
        };
        let header_key = HeaderKey {
            tunnel: tunnel.version,
            remote,
            local,
            carried,
        };
        match self.last {
            Some((last, place)) if last == header_key && self.generation == generation => Ok(place),
            _ => {
                let place = self.find_header(snapshot, tunnel, header_key)?;
                if spec.remote.is_some() && spec.local != LocalAddress::Flow && carried == 0 {
                    let least = slot as usize + 1;
                    if self.fixed.len() < least {
                        self.fixed.resize(least, (0, 0));
                    }
                    self.fixed[slot as usize] = (tunnel.version, place);
                }
                Ok(place)
            }
        }
    }

    fn find_header(
        &mut self,
        snapshot: &Snapshot,
        tunnel: &TunnelPort,
        header_key: HeaderKey,
    ) -> Result<u32, NoHeader> {
        let generation = snapshot.generation();
        if self.generation != generation || self.headers.len() >= HEADERS_MAX {
            self.generation = generation;
            self.headers.clear();
            self.places.clear();
            self.fixed.clear();
            self.last = None;
        }
        let place = match self.places.get(&header_key) {
            Some(place) => *place,
            None => {
                let prepared = prepare(snapshot, tunnel, &header_key)?;
                let place = self.headers.len() as u32;
                self.headers.push(prepared);
                self.places.insert(header_key, place);
                place
            }
        };
        self.last = Some((header_key, place));
        Ok(place)
    }
}

/// Counts an event; returns whether it is within [`TOLD_MAX`] in [`TOLD_MS`].
fn within(since_and_count: &mut (u64, u32), now_ms: u64) -> bool {
    let (since, count) = since_and_count;
    if now_ms.saturating_sub(*since) >= TOLD_MS {
        (*since, *count) = (now_ms, 0);
    }
    *count += 1;
    *count <= TOLD_MAX
}

#[cold]
fn prepare(
    snapshot: &Snapshot,
    tunnel: &TunnelPort,
    header_key: &HeaderKey,
) -> Result<Prepared, NoHeader> {
    let no_route = NoHeader::Drop(DropReason::TunnelNoRoute);
    let Some(tunnels) = snapshot.tunnels.as_deref() else {
        return Err(no_route);
    };
    let hop = match tunnels
        .view
        .resolve(header_key.remote, header_key.local, tunnel.spec.mark)
    {
        Ok(hop) => hop,
        Err(Unresolved::NoRoute) => return Err(no_route),
        Err(Unresolved::Neighbour {
            device,
            address,
            source,
        }) => {
            return Err(NoHeader::Neighbour {
                device,
                address,
                source,
            });
        }
    };
    let Some(spec) = tunnel
        .spec
        .header(&hop, header_key.remote, header_key.carried)
    else {
        return Err(no_route);
    };
    // Over IPv6 only senders fragment packets, so the same option decides whether they do.
    let mtu = usize::from(hop.mtu);
    // STT is segmented instead.
    let cuts = mtu != 0 && !tunnel.spec.df && tunnel.spec.kind != TunnelKind::Stt;
    let header = Header::new(&spec);
    match header {
        Ok(header) => Ok(Prepared {
            header,
            device: BridgeId(hop.device),
            id: tunnel.spec.key_of(&TunnelInfo::default()),
            has_key_of_packets: tunnel.spec.out_key == TunnelKey::Flow,
            tos: tunnel.spec.tos,
            ttl: tunnel.spec.ttl,
            longest: if cuts { ETHERNET_LEN + mtu } else { usize::MAX },
            mtu,
            next_hop: tunnels.view.neighbour(hop.device, hop.via).cloned(),
        }),
        // The packet names an endpoint of a family that the protocol does not support.
        Err(_) => Err(NoHeader::Drop(DropReason::TunnelNoDestination)),
    }
}

/// Removes a frame's outer headers, which have been read, and notes by which port it came in;
/// `looks`: also what they say.
#[inline(always)]
fn take_out<F: Frame>(
    frame: &mut F,
    arrivals: &mut Arrivals,
    slot: u32,
    bridge: Option<&BridgeState>,
    found: &Usual,
    looks: bool,
) -> Result<(), DropReason> {
    // Where somebody looks, options are checked while they are noted, unless something before that
    // may fail.
    if found.is_congested() {
        check_options(bridge, found.options(frame))?;
        found.carry_congestion(frame)?;
    } else if found.has_options() && !looks {
        check_options(bridge, found.options(frame))?;
    }
    match looks {
        true => note(arrivals, slot, bridge, &found.info(), found.options(frame))?,
        false => arrivals.push(slot),
    }
    found.remove(frame);
    Ok(())
}

/// Checks Geneve options by the map of the bridge that they come to.
fn check_options(
    bridge: Option<&BridgeState>,
    options: GeneveOptions<'_>,
) -> Result<(), packet::tunnel::Reason> {
    let map = bridge.and_then(|bridge| bridge.options.as_deref());
    options.check(map.unwrap_or_default())
}

/// Notes by which port a packet came in, and what its outer headers said.
#[inline(always)]
fn note(
    arrivals: &mut Arrivals,
    slot: u32,
    bridge: Option<&BridgeState>,
    info: &TunnelInfo,
    options: GeneveOptions<'_>,
) -> Result<(), packet::tunnel::Reason> {
    let map = bridge.and_then(|bridge| bridge.options.as_ref());
    let fit = bridge.is_none_or(|bridge| bridge.options_fit);
    arrivals.push_with(slot, info, options, map, fit)
}

impl<F: Frame> Forward<'_, F> {
    /// Notes the current packet's tunnel metadata and flow control field.
    #[inline(always)]
    pub fn note_tunnel(&mut self, context: &Context<'_>) {
        if self.bridge.keeps_tunnel {
            self.note_said(context);
        }
        if self.bridge.keeps_fcf {
            self.note_fcf(context);
        }
    }

    #[inline(never)]
    fn note_said(&mut self, context: &Context<'_>) {
        let said = &mut self.sending.said;
        said.clear();
        if !WORDS.minus(context.valid).is_empty() {
            // It has not been walked, so no rule has written these words, and none came with it.
            return;
        }
        said.info = TunnelInfo::from_key(context.key);
        if let Some(map) = &self.bridge.options
            && context.key.u64(at::TUN_METADATA_PRESENT) != 0
            && let Some(options) = OptionBuffer::from_key(&**map, context.key)
        {
            said.options = options;
        }
    }

    #[inline(never)]
    fn note_fcf(&mut self, context: &Context<'_>) {
        self.note_source(context.in_port);
        // A packet that has not been walked has met no rule that sets the field.
        if fcf::WORD.minus(context.valid).is_empty() {
            self.sending.fcf.field = fcf::Field(context.key.u16(at::FCF));
        }
    }

    /// Clears the tunnel metadata for the following frames, which came in by this port.
    #[inline(always)]
    pub fn forget_tunnel(&mut self, in_port: PortNo) {
        if self.bridge.keeps_tunnel {
            self.sending.said.clear();
        }
        if self.bridge.keeps_fcf {
            self.note_source(in_port);
        }
    }

    /// Sets the current packet's tunnel metadata; in this bridge a map's options fit.
    #[inline]
    fn say_words(&mut self, words: &TunnelWords) {
        let said = &mut self.sending.said;
        said.info = words.info();
        said.options.clear();
        if words.has_options()
            && let Some(map) = &self.bridge.options
            && !words.options_into(map, &mut said.options)
        {
            said.options.clear();
        }
    }

    /// Sends frames with tunnel metadata, which came in by this port, to a port that is no plain
    /// device.
    pub fn emit_tunnelled<'w>(
        &mut self,
        in_port: PortNo,
        port: &PortState,
        mirrored: u32,
        frames: &mut impl Iterator<Item = (F, &'w TunnelWords)>,
    ) {
        (self.queue, self.counted) = (None, 0);
        if port.only_tunnel {
            let mut frames = frames.map(|(frame, words)| (frame, Some(words)));
            return self.send_run_by_tunnel(port, mirrored, &mut frames);
        }
        self.forget_tunnel(in_port);
        for (frame, words) in frames {
            self.say_words(words);
            self.emit(&mut { mirrored }, port, frame);
        }
    }

    /// Sends frames by a tunnel, with their tunnel metadata where they have some.
    #[inline(never)]
    pub fn send_run_by_tunnel<'w>(
        &mut self,
        port: &PortState,
        mirrored: u32,
        frames: &mut impl Iterator<Item = (F, Option<&'w TunnelWords>)>,
    ) {
        let (Some(tunnel), Some(tunnels)) = (&port.tunnel, self.snapshot.tunnels.as_deref()) else {
            return frames.for_each(|_| self.cell.drop(DropReason::TunnelNoRoute, 1));
        };
        let _stage = stages::enter(Stage::Tunnel, frames.size_hint().0);
        self.sending.said.clear();
        if !tunnel.reads_packets {
            let mut frames = frames.map(|(frame, _)| frame);
            return self.send_run_alike(port, tunnel, tunnels, mirrored, &mut frames);
        }
        let spec = &tunnel.spec;
        let (slot, carries_frames) = (port.id.slot(), spec.carries == Carries::Frames);
        let find = |sending: &mut Sending<F>, snapshot| match carries_frames {
            true => sending.header(snapshot, slot, tunnel, 0).ok(),
            false => None,
        };
        // Frames with their headers, which go on together also where these differ.
        let mut run = Run {
            frames: std::mem::take(&mut self.sending.run),
            device: None,
            bytes: 0,
        };
        let mut last: Option<&TunnelWords> = None;
        let mut id = spec.key_of(&TunnelInfo::default());
        let mut is_common = true;
        let mut place = find(self.sending, self.snapshot);
        let mut used = None;
        for (mut frame, words) in frames {
            if let Some(words) = words
                && last != Some(words)
            {
                last = Some(words);
                self.say_words(words);
                id = spec.key_of(&self.sending.said.info);
                is_common = self.sending.said.is_common();
                place = find(self.sending, self.snapshot);
                if place == Some(0) {
                    // When there are too many headers they are made anew, from this place on: it
                    // may have another device than before.
                    used = None;
                }
            }
            let length = frame.len() as u64;
            let options = self.sending.said.options.options();
            let header = place.and_then(|place| self.sending.headers.get(place as usize));
            if let Some(prepared) = header
                && is_common
                && prepared.push_quick(&mut frame, id, &tunnels.secret, options)
            {
                if used != place {
                    used = place;
                    prepared.touch();
                    if run.device != Some(prepared.device) {
                        let device = prepared.device;
                        self.send_run(port, mirrored, &mut run);
                        run.device = Some(device);
                    }
                }
                run.bytes += length;
                run.frames.push(frame);
                continue;
            }
            self.send_run(port, mirrored, &mut run);
            self.send_by_tunnel(port, tunnel, mirrored, frame);
            // Headers may have been prepared again.
            (place, used) = (find(self.sending, self.snapshot), None);
        }
        self.send_run(port, mirrored, &mut run);
        self.sending.run = run.frames;
    }

    /// [`Forward::send_run_by_tunnel`] for a tunnel that reads no metadata.
    fn send_run_alike(
        &mut self,
        port: &PortState,
        tunnel: &TunnelPort,
        tunnels: &Tunnels,
        mirrored: u32,
        frames: &mut impl Iterator<Item = F>,
    ) {
        let slot = port.id.slot();
        let mut run = Run {
            frames: std::mem::take(&mut self.sending.run),
            device: None,
            bytes: 0,
        };
        loop {
            // Anew after each frame that is not common, which may have had headers prepared again.
            let place = match tunnel.spec.carries {
                Carries::Frames => self.sending.header(self.snapshot, slot, tunnel, 0).ok(),
                Carries::Packets => None,
            };
            let mut other = None;
            if let Some(prepared) = place.and_then(|at| self.sending.headers.get(at as usize)) {
                prepared.touch();
                run.device = Some(prepared.device);
                for mut frame in frames.by_ref() {
                    let length = frame.len() as u64;
                    let (id, none) = (prepared.id, GeneveOptions::NONE);
                    if !prepared.push_quick(&mut frame, id, &tunnels.secret, none) {
                        other = Some(frame);
                        break;
                    }
                    run.bytes += length;
                    run.frames.push(frame);
                }
            } else {
                other = frames.next();
            }
            self.send_run(port, mirrored, &mut run);
            let Some(frame) = other else { break };
            self.send_by_tunnel(port, tunnel, mirrored, frame);
        }
        self.sending.run = run.frames;
    }

    /// Returns which of these places' ports, bits by the places, are tunnels that frames go to
    /// together, and prefetches what sending to these reads.
    #[inline(never)]
    pub fn find_tunnels(&self, ports: impl Iterator<Item = (usize, PortNo)> + Clone) -> u64 {
        for port in (ports.clone()).filter_map(|(_, number)| self.bridge.port(number)) {
            packet::parse::prefetch_at(std::ptr::from_ref(port));
        }
        let mut found = 0;
        for (place, number) in ports {
            if let Some(port) = self.bridge.port(number)
                && port.takes_frames
            {
                found |= 1 << (place % BURST);
                port.counters.prefetch(self.worker);
                self.sending.prefetch_header(port);
            }
        }
        found
    }

    /// Sends frames by tunnels, each by that with its number, with their tunnel metadata where they
    /// have some. `in_port` as for [`program::host::Host::output_each`].
    #[inline(never)]
    pub fn send_each_by_tunnel<'w>(
        &mut self,
        in_port: PortNo,
        mirrored: u32,
        frames: &mut impl Iterator<Item = (PortNo, F, Option<&'w TunnelWords>)>,
    ) {
        self.sending.said.clear();
        let (bridge, snapshot) = (self.bridge, self.snapshot);
        let mut run = RunOfEach {
            frames: std::mem::take(&mut self.sending.run),
            device: None,
            sent: SmallVec::new(),
        };
        for (number, mut frame, words) in frames {
            let port = match bridge.port(number) {
                None => {
                    self.cell.drop(DropReason::UnknownPort, 1);
                    continue;
                }
                Some(_) if number == in_port => {
                    self.cell.drop(DropReason::IngressPort, 1);
                    continue;
                }
                Some(port) => port,
            };
            let (Some(tunnel), Some(tunnels)) = (&port.tunnel, snapshot.tunnels.as_deref()) else {
                self.cell.drop(DropReason::TunnelNoRoute, 1);
                continue;
            };
            // The tunnel itself is not read here: with many of them it is in no cache.
            let reads = port.reads_metadata;
            if reads {
                self.say_words(words.unwrap_or(&TunnelWords::ZERO));
            }
            let place = match self.sending.fixed_header(snapshot, port) {
                None => (self.sending.header(snapshot, port.id.slot(), tunnel, 0)).ok(),
                place => place,
            };
            let length = frame.len() as u64;
            if let Some(prepared) = place.and_then(|at| self.sending.headers.get(at as usize)) {
                let said = &self.sending.said;
                let id = match prepared.has_key_of_packets {
                    true => said.info.id,
                    false => prepared.id,
                };
                let options = match reads {
                    true => said.options.options(),
                    false => GeneveOptions::NONE,
                };
                if (!reads || said.is_common())
                    && prepared.push_quick(&mut frame, id, &tunnels.secret, options)
                {
                    prepared.touch();
                    if run.device != Some(prepared.device) {
                        let device = prepared.device;
                        self.send_run_of_each(mirrored, &mut run);
                        run.device = Some(device);
                    }
                    run.sent.push((port, length));
                    run.frames.push(frame);
                    continue;
                }
            }
            self.send_run_of_each(mirrored, &mut run);
            self.send_by_tunnel(port, tunnel, mirrored, frame);
        }
        self.send_run_of_each(mirrored, &mut run);
        self.sending.run = run.frames;
    }

    /// Passes on frames with their headers, and counts each for its port.
    fn send_run_of_each(&mut self, mirrored: u32, run: &mut RunOfEach<'_, F>) {
        let (Some(device), false) = (run.device, run.frames.is_empty()) else {
            return;
        };
        let count = run.frames.len() as u64;
        match self.pass_on(device, mirrored, run.frames.drain(..)) {
            Ok(()) => {
                self.cell.tunnel_sent.add(count);
                for (port, length) in run.sent.drain(..) {
                    let counters = port.counters.of(self.worker);
                    counters.tx_packets.add(1);
                    counters.tx_bytes.add(length);
                }
            }
            Err(reason) => {
                run.sent.clear();
                self.cell.drop(reason, count);
            }
        }
    }

    /// Passes on frames with their headers, if there are some.
    #[inline]
    fn send_run(&mut self, port: &PortState, mirrored: u32, run: &mut Run<F>) {
        if let Some(device) = run.device
            && !run.frames.is_empty()
        {
            let counted = (run.frames.len() as u64, std::mem::take(&mut run.bytes));
            self.send_run_of(port, device, mirrored, counted, run.frames.drain(..));
        }
    }

    /// Passes on frames with headers, which come in by the local port of the underlay's bridge.
    /// Counts so many packets of this many bytes without headers, fewer packets than frames where
    /// these are fragments.
    fn send_run_of(
        &mut self,
        port: &PortState,
        device: BridgeId,
        mirrored: u32,
        (count, bytes): (u64, u64),
        frames: impl ExactSizeIterator<Item = F>,
    ) {
        match self.pass_on(device, mirrored, frames) {
            Ok(()) => {
                self.cell.tunnel_sent.add(count);
                let counters = port.counters.of(self.worker);
                counters.tx_packets.add(count);
                counters.tx_bytes.add(bytes);
            }
            Err(reason) => self.cell.drop(reason, count),
        }
    }

    /// Passes frames with headers on to the underlay's bridge. On an error they are gone.
    fn pass_on(
        &mut self,
        device: BridgeId,
        mirrored: u32,
        frames: impl ExactSizeIterator<Item = F>,
    ) -> Result<(), DropReason> {
        let bridge = self.snapshot.bridge(device.slot());
        let bridge = bridge.filter(|bridge| bridge.id == device);
        let Some(local) = bridge.and_then(|bridge| bridge.port(LOCAL)) else {
            return Err(DropReason::TunnelNoRoute);
        };
        // Within one bridge a mirror gets the packet once.
        let mirrored = match device == self.bridge.id {
            true => mirrored,
            false => 0,
        };
        let (slot, depth) = (local.id.slot(), self.depth + 1);
        self.patches.push_outer(slot, depth, mirrored, frames)
    }

    /// Sends a frame by a tunnel.
    #[inline(never)]
    pub fn send_by_tunnel(
        &mut self,
        port: &PortState,
        tunnel: &TunnelPort,
        mirrored: u32,
        frame: F,
    ) {
        let _stage = stages::enter(Stage::Tunnel, 1);
        // STT carries TCP's segments whole.
        let is_whole = match frame.offload().gso {
            Gso::None => true,
            Gso::Tcp4 | Gso::Tcp6 => tunnel.spec.kind == TunnelKind::Stt,
            Gso::UdpL4 => false,
        };
        match is_whole {
            true => self.encapsulate(port, tunnel, mirrored, frame),
            false => self.send_cut(port, tunnel, mirrored, frame),
        }
    }

    /// Segments a frame and sends the segments by a tunnel: each has an outer header of its own.
    fn send_cut(&mut self, port: &PortState, tunnel: &TunnelPort, mirrored: u32, frame: F) {
        match Cut::new(frame) {
            Err(_) => self.cell.drop(DropReason::TunnelPushSegment, 1),
            Ok(cut) => {
                // Segments count as frames received, because their sender could have sent as many.
                self.patches.join(cut.left());
                for segment in cut {
                    match segment {
                        Ok(segment) => self.encapsulate(port, tunnel, mirrored, segment),
                        Err(_) => self.cell.drop(DropReason::NoBuffer, 1),
                    }
                }
            }
        }
    }

    fn encapsulate(&mut self, port: &PortState, tunnel: &TunnelPort, mirrored: u32, mut frame: F) {
        let Some(tunnels) = self.snapshot.tunnels.as_deref() else {
            return self.cell.drop(DropReason::TunnelNoRoute, 1);
        };
        let spec = &tunnel.spec;
        let Sending { key, layers, .. } = &mut *self.sending;
        packet::parse::parse_frame_into(&mut frame, 0, READ, key, layers);
        let (eth_type, l3) = (key.u16(at::ETH_TYPE), usize::from(layers.l3));
        let is_ip = matches!(eth_type, IPV4 | IPV6);
        let tos = is_ip.then(|| key.u8(at::IP_TOS));
        let ttl = is_ip.then(|| key.u8(at::IP_TTL));
        let hash = flow_hash(&tunnels.secret, key);
        let carried = match spec.carries {
            Carries::Frames => 0,
            Carries::Packets if is_ip => eth_type,
            Carries::Packets => return self.cell.drop(DropReason::TunnelNotIp, 1),
        };
        let place = match self
            .sending
            .header(self.snapshot, port.id.slot(), tunnel, carried)
        {
            Ok(place) => place,
            Err(NoHeader::Drop(reason)) => return self.cell.drop(reason, 1),
            Err(NoHeader::Neighbour {
                device,
                address,
                source,
            }) => return self.wait_for(port, (device, address), source, mirrored, frame),
        };
        let length = frame.len() as u64;
        if carried != 0 && !strip_ethernet(&mut frame, l3) {
            return self.cell.drop(DropReason::TunnelNotIp, 1);
        }
        let is_stt = spec.kind == TunnelKind::Stt;
        let sending = &mut *self.sending;
        // Segments of an STT frame count on from its identification; there are at most as many as
        // of the smallest size.
        let packets = if is_stt {
            1 + length as u32 / STT_LEAST
        } else {
            1
        };
        let identification = sending.identification.wrapping_add(1);
        sending.identification = sending.identification.wrapping_add(packets);
        let number = if is_stt {
            sending.next_number(self.worker)
        } else {
            0
        };
        let sending = &*sending;
        let said = tunnel.reads_packets.then_some(&sending.said);
        let info = said.map_or_else(TunnelInfo::default, |said| said.info);
        let packet = PerPacket {
            id: spec.key_of(&info),
            tos: match port.fcf {
                None => outer_tos(spec.tos, tos),
                Some(layout) => (sending.fcf.field).in_tos(layout, outer_tos(spec.tos, tos)),
            },
            ttl: outer_ttl(spec.ttl, ttl),
            hash,
            identification: identification as u16,
            sequence: match spec.sequence {
                true => tunnel.next_sequence(),
                false => number,
            },
            options: said.map_or(GeneveOptions::NONE, |said| said.options.options()),
            ..PerPacket::of(&info)
        };
        let Some(prepared) = sending.headers.get(place as usize) else {
            return self.cell.drop(DropReason::TunnelNoRoute, 1);
        };
        let mut pushed = prepared.header.push(&mut frame, &packet);
        if pushed == Err(PushError::NoRoom) {
            // Tries again with a new frame, which has room for the header and what comes before it.
            let offload = frame.offload();
            let room = prepared.header.header_len() + packet.options.bytes().len() + ROOM_BEFORE;
            let Some(copy) = frame.sibling_behind(room, &frame.to_vec()) else {
                return self.cell.drop(DropReason::NoBuffer, 1);
            };
            frame = copy;
            frame.set_offload(offload);
            pushed = prepared.header.push(&mut frame, &packet);
        }
        if let Err(error) = pushed {
            let may_be_cut = matches!(error, PushError::Segment | PushError::TooLong);
            if is_stt && may_be_cut && frame.offload().gso != Gso::None {
                return self.send_cut(port, tunnel, mirrored, frame);
            }
            return self.cell.drop(error.into(), 1);
        }
        prepared.touch();
        let device = prepared.device;
        // A field's tag, pushed below, does not count.
        let (is_long, mtu) = (frame.len() > prepared.longest, prepared.mtu);
        if port.fcf == Some(fcf::Layout::Vlan)
            && let Some(tag) = sending.fcf.field.tag()
            && !fcf::push(&mut frame, tag)
        {
            return self.cell.drop(DropReason::NoBuffer, 1);
        }
        if is_long {
            return match Fragments::new(frame, mtu, identification) {
                Ok(cut) => self.send_fragments(port, device, mirrored, cut, length),
                Err(_) => self.cell.drop(DropReason::TunnelPushFragment, 1),
            };
        }
        self.send_run_of(port, device, mirrored, (1, length), std::iter::once(frame));
    }

    /// Sends the fragments of a packet with its header, which had this many bytes without; all or
    /// none.
    #[cold]
    fn send_fragments(
        &mut self,
        port: &PortState,
        device: BridgeId,
        mirrored: u32,
        cut: Fragments<F>,
        length: u64,
    ) {
        let count = cut.left();
        let all: Option<Vec<F>> = cut.collect();
        let Some(all) = all else {
            return self.cell.drop(DropReason::NoBuffer, 1);
        };
        self.cell.tunnel_fragments_sent.add(count as u64);
        // Fragments count as one packet of the tunnel.
        self.patches.join(count - 1);
        self.send_run_of(port, device, mirrored, (1, length), all.into_iter());
    }

    /// Keeps a frame until the next hop's MAC address is known, and asks control for it.
    #[cold]
    fn wait_for(
        &mut self,
        port: &PortState,
        next_hop: (u32, IpAddr),
        source: IpAddr,
        mirrored: u32,
        frame: F,
    ) {
        let now_ms = self.clock.now_ms();
        let (device, address) = next_hop;
        let sending = &mut *self.sending;
        let known = |hop: &NextHop<F>| (hop.device, hop.address) == next_hop;
        let place = match sending.next_hops.iter().position(known) {
            Some(place) => place,
            None => {
                if sending.next_hops.len() >= NEXT_HOPS_MAX {
                    let lost = sending.give_up_one();
                    self.cell.drop(DropReason::TunnelNoNeighbour, lost);
                }
                sending.next_hops.push(NextHop {
                    device,
                    address,
                    source,
                    waiting: VecDeque::new(),
                    asked_ms: 0,
                    questions: 0,
                });
                sending.next_hops.len() - 1
            }
        };
        let until_ms = sending.until_ms;
        let (count, bytes) = &mut sending.waiting;
        let hop = &mut sending.next_hops[place];
        if hop.waiting.is_empty() && now_ms.saturating_sub(hop.asked_ms) > FORGET_MS {
            // It may have answered since.
            hop.questions = 0;
        }
        let length = frame.len();
        if *count >= WAITING_MAX || *bytes + length > WAITING_BYTES || !hop.has_room() {
            self.cell.drop(DropReason::TunnelTooManyWait, 1);
        } else {
            (*count, *bytes) = (*count + 1, *bytes + length);
            if until_ms.is_none() {
                self.cell.tunnel_waited.add(1);
            }
            hop.waiting.push_back(Waiting {
                until_ms: until_ms.unwrap_or(now_ms + WAIT_MS),
                port: port.id,
                said: match &port.tunnel {
                    Some(tunnel) if tunnel.reads_packets => sending.said.clone(),
                    // It may be of an earlier packet, and the tunnel may read it by then.
                    _ => Said::default(),
                },
                fcf: sending.fcf,
                depth: self.depth,
                mirrored,
                frame,
            });
        }
        self.ask(place, now_ms);
    }

    /// Asks control for a next hop, unless that was done lately.
    fn ask(&mut self, place: usize, now_ms: u64) {
        let hop = &self.sending.next_hops[place];
        let (device, address, source) = (hop.device, hop.address, hop.source);
        if hop.questions > 0 && now_ms.saturating_sub(hop.asked_ms) < ASK_MS
            || !self.sending.may_ask(now_ms)
        {
            return;
        }
        let bridge = self.snapshot.bridge(BridgeId(device).slot());
        let Some(bridge) = bridge.filter(|bridge| bridge.id == BridgeId(device)) else {
            return;
        };
        let kind = RequestKind::AskNeighbour { address, source };
        let told = self.requests.push(WorkerRequest {
            bridge: bridge.id,
            worker: self.worker,
            kind,
        });
        if told {
            self.asked.note(device, address);
            let hop = &mut self.sending.next_hops[place];
            (hop.asked_ms, hop.questions) = (now_ms, hop.questions + 1);
        }
    }

    /// Handles a frame on its way to an underlay's local port: takes it where it came by a tunnel,
    /// and tells control of neighbours. Other frames are returned.
    #[inline(never)]
    pub fn take_tunnelled(
        &mut self,
        port: &PortState,
        device: &Device,
        mirrored: u32,
        mut frame: F,
    ) -> Option<F> {
        let Some(tunnels) = self.snapshot.tunnels.as_deref() else {
            return Some(frame);
        };
        let _stage = stages::enter(Stage::Tunnel, 1);
        if frame.head().len() < FRONT && frame.head().len() < frame.len() {
            frame.linearize(FRONT);
        }
        match Front::of(frame.head()) {
            Front::Neighbour => {
                self.snoop(device, &frame);
                Some(frame)
            }
            Front::Outer(outer) if outer.is_for(device) => {
                self.terminate(tunnels, frame, outer.over)
            }
            Front::Fragment(outer) if outer.is_for(device) => {
                self.take_fragment(port, tunnels, mirrored, frame)
            }
            Front::Outer(_) | Front::Fragment(_) | Front::Other => Some(frame),
        }
    }

    /// Does [`Forward::take_tunnelled`] for frames that go on where they are for no tunnel. Outer
    /// headers of the common kinds are read, and ports found, for many frames before the first
    /// comes in.
    #[inline(never)]
    pub fn take_run_tunnelled(
        &mut self,
        port: &PortState,
        device: &Device,
        mirrored: u32,
        frames: &mut impl Iterator<Item = F>,
    ) {
        let Some(tunnels) = self.snapshot.tunnels.as_deref() else {
            return frames.for_each(|frame| self.emit_past_tunnels(port, mirrored, frame));
        };
        let mut staged = std::mem::take(&mut self.sending.staged);
        staged.reserve(BURST);
        loop {
            let stage = stages::enter(Stage::Tunnel, 0);
            let mut other = None;
            for frame in frames.by_ref() {
                match self.find_common(tunnels, device, &frame) {
                    Some((slot, found)) => staged.push((frame, slot, found)),
                    None => other = Some(frame),
                }
                if other.is_some() || staged.len() >= BURST {
                    break;
                }
            }
            let ended = other.is_none() && staged.len() < BURST;
            self.arrive_together(&mut staged);
            drop(stage);
            if let Some(frame) = other
                && let Some(left) = self.take_tunnelled(port, device, mirrored, frame)
            {
                self.emit_past_tunnels(port, mirrored, left);
            }
            if ended {
                break;
            }
        }
        self.sending.staged = staged;
    }

    /// Reads the outer headers of a frame of the common kinds, and returns the slot of the port
    /// that it came for. None for other frames.
    #[inline(always)]
    fn find_common(
        &mut self,
        tunnels: &Tunnels,
        device: &Device,
        frame: &F,
    ) -> Option<(u32, Usual)> {
        let head: &[u8; 38] = frame.head().first_chunk()?;
        // Read, like the address, before it is known that this is UDP over IPv4.
        let port = u16::from_be_bytes([head[36], head[37]]);
        if head[..6] != device.mac {
            return None;
        }
        for protocol in tunnels.receivers.by(Over::Udp(port)) {
            // Others' packets are not worth a sum over their payload.
            if !device.owns([head[30], head[31], head[32], head[33]].into()) {
                return None;
            }
            let Some(found) = parse_quick(frame, protocol.kind) else {
                continue;
            };
            let (addresses, id) = ((found.src, found.dst), found.id.into());
            let slot = self.sending.receiver_over_ipv4(
                tunnels,
                protocol,
                port,
                Carries::Frames,
                addresses,
                id,
            )?;
            if let Some(port) = self.snapshot.port(slot) {
                packet::parse::prefetch_at(std::ptr::from_ref(port));
            }
            return Some((slot, found));
        }
        None
    }

    /// Keeps a fragment that came for one of this host's addresses for the rest of its packet,
    /// where that may be a tunnel's. Returns other fragments, and invalid ones, which the host
    /// judges.
    #[cold]
    fn take_fragment(
        &mut self,
        port: &PortState,
        tunnels: &Tunnels,
        mirrored: u32,
        mut frame: F,
    ) -> Option<F> {
        let Ok(Some(fragment)) = Fragment::read(&mut frame) else {
            return Some(frame);
        };
        let receivers = &tunnels.receivers;
        let wanted = match fragment.protocol {
            protocol @ (UDP | TCP)
                if receivers.has_udp() && protocol == UDP
                    || receivers.has_tcp() && protocol == TCP =>
            {
                let mut ports = [0; 4];
                let told = fragment.is_first() && frame.read_at(fragment.start, &mut ports);
                let port = u16::from_be_bytes([ports[2], ports[3]]);
                let over = match protocol {
                    UDP => Over::Udp(port),
                    _ => Over::Tcp(port),
                };
                told.then(|| receivers.by(over).next().is_some())
            }
            GRE if receivers.by(Over::Gre).next().is_some() => Some(true),
            _ => return Some(frame),
        };
        let now_ms = self.clock.now_ms();
        let collected = &mut self.sending.fragments;
        let (outcome, lost) = collected.add(fragment, frame, wanted, now_ms);
        self.cell.drop(DropReason::TunnelFragmentFull, lost);
        match outcome {
            Outcome::Waits => {}
            Outcome::Refused(refusal, lost) => self.cell.drop(refusal.into(), lost),
            Outcome::Passes(frames) => {
                for frame in frames {
                    self.emit_past_tunnels(port, mirrored, frame);
                }
            }
            Outcome::Whole(mut packet) => {
                self.cell.tunnel_reassembled.add(1);
                if packet.head().len() < FRONT && packet.head().len() < packet.len() {
                    packet.linearize(FRONT);
                }
                return match Front::of(packet.head()) {
                    Front::Outer(outer) => self.terminate(tunnels, packet, outer.over),
                    _ => Some(packet),
                };
            }
        }
        None
    }

    /// Removes the outer headers of a frame that came for one of this host's addresses. Returns
    /// frames that no tunnel's protocol claims.
    fn terminate(&mut self, tunnels: &Tunnels, mut frame: F, over: Over) -> Option<F> {
        let receivers = &tunnels.receivers;
        let mut protocols = receivers.by(over).peekable();
        if protocols.peek().is_none() {
            return Some(frame);
        }
        if let Over::Tcp(port) = over {
            match stt::Segment::read(&mut frame) {
                Ok(segment) => self.take_segment(tunnels, segment, frame, port),
                Err(reason) => self.cell.drop(reason.into(), 1),
            }
            return None;
        }
        let mut reason = DropReason::TunnelNoPort;
        for protocol in protocols {
            let found = &mut self.sending.found;
            let parsed = match parse_quick(&frame, protocol.kind) {
                Some(usual) => {
                    *found = usual.decapsulated(&frame, protocol.kind);
                    Ok(())
                }
                None => parse_into(&mut frame, protocol.kind, found),
            };
            match parsed {
                Err(error) => reason = error.into(),
                Ok(()) => {
                    let found = std::mem::take(found);
                    match (self.sending).receiver(tunnels, protocol, over.port(), &found) {
                        Some(slot) => {
                            if let Err(reason) = self.arrive_by(slot, frame, &found) {
                                self.cell.drop(reason, 1);
                            }
                            return None;
                        }
                        None => reason = DropReason::TunnelNoPort,
                    }
                }
            }
        }
        self.cell.drop(reason, 1);
        None
    }

    /// Handles a segment of STT, to this TCP port: keeps it for the rest of its STT frame, or makes
    /// that come in by its tunnel's port. Whatever is dropped on the way there is counted as the
    /// segments that came.
    fn take_segment(&mut self, tunnels: &Tunnels, segment: stt::Segment, frame: F, port: u16) {
        if segment.is_whole() {
            if let Err(reason) = self.take_whole(tunnels, &segment, frame, port) {
                self.cell.drop(reason, 1);
            }
            return;
        }
        let now_ms = self.clock.now_ms();
        let is_wanted = |addresses: &_| tunnels.receivers.has_stt(port, addresses);
        let segments = &mut self.sending.segments;
        let (outcome, lost) = segments.add(&segment, &frame, now_ms, is_wanted);
        self.cell.drop(DropReason::TunnelSegmentShare, lost.own);
        self.cell.drop(DropReason::TunnelSegmentFull, lost.oldest);
        match outcome {
            stt::Outcome::Waits => {}
            stt::Outcome::Unwanted => self.cell.drop(DropReason::TunnelNoPort, 1),
            stt::Outcome::Refused(refusal, lost) => {
                self.cell.drop(DropReason::of_segment(refusal), lost);
            }
            stt::Outcome::Whole(all, whole, count) => {
                match self.take_whole(tunnels, &all, whole, port) {
                    Err(reason) => self.cell.drop(reason, count),
                    Ok(()) => {
                        self.cell.tunnel_joined.add(1);
                        self.cell.tunnel_joined_segments.add(count);
                    }
                }
            }
        }
    }

    /// Makes a whole STT frame, to this TCP port, come in by its tunnel's port.
    fn take_whole(
        &mut self,
        tunnels: &Tunnels,
        all: &stt::Segment,
        mut frame: F,
        port: u16,
    ) -> Result<(), DropReason> {
        let found = all.open(&mut frame)?;
        let protocol = tunnels.receivers.by(Over::Tcp(port)).next();
        let slot = protocol
            .and_then(|protocol| self.sending.receiver(tunnels, protocol, port, &found))
            .ok_or(DropReason::TunnelNoPort)?;
        self.arrive_by(slot, frame, &found)
    }

    /// Makes a frame whose outer headers have been read come in by the tunnel port of this slot.
    fn arrive_by(
        &mut self,
        slot: u32,
        mut frame: F,
        found: &Decapsulated,
    ) -> Result<(), DropReason> {
        let snapshot = self.snapshot;
        let port = snapshot.port(slot).ok_or(DropReason::TunnelNoPort)?;
        let bridge = snapshot.bridge(port.bridge);
        let bytes: SmallVec<[u8; 32]> = SmallVec::from_slice(found.options(&frame).bytes());
        let options = GeneveOptions::new(&bytes).unwrap_or_default();
        check_options(bridge, options)?;
        decapsulate(&mut frame, found)?;
        if let Payload::Packet(eth_type) = found.payload
            && found.start != 0
            && !add_ethernet(&mut frame, [0; 6], [0; 6], eth_type)
        {
            return Err(DropReason::TunnelNoBuffer);
        }
        let batch = (self.patches).inner_batch(port.bridge, self.depth + 1, 1)?;
        // Cannot fail: the options have been checked, so that nothing was charged in vain.
        note(&mut batch.arrivals, slot, bridge, &found.info, options)?;
        batch.frames.push(frame);
        self.cell.tunnel_received.add(1);
        Ok(())
    }

    /// Does the same for staged frames; those that are for one bridge come in together.
    #[inline(always)]
    fn arrive_together(&mut self, staged: &mut Staged<F>) {
        let snapshot = self.snapshot;
        for (_, slot, _) in staged.iter() {
            if let Some(port) = snapshot.port(*slot) {
                port.counters.prefetch(self.worker);
            }
        }
        let bridge_of = |slot: u32| snapshot.port(slot).map(|port| port.bridge);
        let (cell, depth) = (self.cell, self.depth + 1);
        let mut rest = staged.drain(..);
        while let Some((_, first, _)) = rest.as_slice().first() {
            let here = bridge_of(*first);
            let same = |(_, slot, _): &&(F, u32, Usual)| bridge_of(*slot) == here;
            let count = rest.as_slice().iter().take_while(same).count();
            let frames = rest.by_ref().take(count);
            let batch = here.ok_or(DropReason::TunnelNoPort);
            let batch = batch.and_then(|here| self.patches.inner_batch(here, depth, count));
            let (batch, bridge) = match batch {
                Ok(batch) => (batch, here.and_then(|here| snapshot.bridge(here))),
                Err(reason) => {
                    frames.for_each(drop);
                    cell.drop(reason, count as u64);
                    continue;
                }
            };
            // Rules and groups that this turn sees, and what else of the bridge may look at
            // metadata, will be the same when the frames come in: the turn has pinned them. A
            // table's misses may begin to go to controllers meanwhile; these are told of no
            // metadata then.
            let looks = snapshot.monitored || bridge.is_some_and(BridgeState::looks_at_tunnels);
            let before = batch.frames.len();
            for (mut frame, slot, found) in frames {
                let arrivals = &mut batch.arrivals;
                match take_out(&mut frame, arrivals, slot, bridge, &found, looks) {
                    Ok(()) => batch.frames.push(frame),
                    Err(reason) => cell.drop(reason, 1),
                }
            }
            let received = batch.frames.len() - before;
            cell.tunnel_received.add(received as u64);
        }
    }

    /// Tells control of a neighbour that has announced itself, if that was asked for or the limit
    /// for unsolicited ones permits.
    #[cold]
    fn snoop(&mut self, device: &Device, frame: &F) {
        let mut bytes = [0; SNOOPED];
        let length = frame.len().min(SNOOPED);
        if !frame.read_at(0, &mut bytes[..length]) {
            return;
        }
        let told = underlay::told_by(&bytes[..length]);
        let Some(Told { address, mac, .. }) = told.filter(|told| told.concerns(device)) else {
            return;
        };
        let asked = self.asked.take(device.id, address);
        if !asked && !self.sending.may_tell(self.clock.now_ms()) {
            return;
        }
        let told = self.requests.push(WorkerRequest {
            bridge: self.bridge.id,
            worker: self.worker,
            kind: RequestKind::NeighbourSeen {
                address,
                mac,
                asked,
            },
        });
        if !told && asked {
            self.asked.note(device.id, address);
        }
    }
}

impl<F: Frame> Turn<'_, F> {
    /// Retries packets that wait for next hops, where something has changed or it is time to ask
    /// again, and gives up fragments and segments whose packets are late.
    #[cold]
    pub fn retry_tunnels(&mut self) {
        let _stage = stages::enter(Stage::Tunnel, 0);
        let now_ms = self.now_ms;
        let lost = self.sending.fragments.expire(now_ms);
        self.cell.drop(DropReason::TunnelFragmentLate, lost);
        let lost = self.sending.segments.expire(now_ms);
        self.cell.drop(DropReason::TunnelSegmentLate, lost);
        let generation = self.snapshot.generation();
        if (self.sending).is_early(generation, now_ms) {
            return;
        }
        let Some(tunnels) = self.snapshot.tunnels.as_deref() else {
            let lost = self.sending.discard() as u64;
            return self.cell.drop(DropReason::TunnelNoRoute, lost);
        };
        let mut place = 0;
        while place < self.sending.next_hops.len() {
            let hop = &mut self.sending.next_hops[place];
            let known = tunnels.view.neighbour(hop.device, hop.address).is_some();
            let mut late = 0;
            let (count, bytes) = &mut self.sending.waiting;
            while !known
                && let Some(first) = hop.waiting.front()
                && first.until_ms <= now_ms
            {
                (*count, *bytes) = (*count - 1, *bytes - first.frame.len());
                hop.waiting.pop_front();
                late += 1;
            }
            self.cell.drop(DropReason::TunnelNoNeighbour, late);
            if known {
                let hop = self.sending.next_hops.swap_remove(place);
                self.let_wait_end(hop.waiting, now_ms);
            } else if hop.waiting.is_empty() && now_ms.saturating_sub(hop.asked_ms) > FORGET_MS {
                self.sending.next_hops.swap_remove(place);
            } else {
                let waits = !hop.waiting.is_empty();
                if waits && let Some(bridge) = self.snapshot.bridge(BridgeId(hop.device).slot()) {
                    self.forward(bridge, 0).ask(place, now_ms);
                }
                place += 1;
            }
        }
        self.finish();
    }

    /// Sends packets whose next hop is known now.
    fn let_wait_end(&mut self, waiting: VecDeque<Waiting<F>>, now_ms: u64) {
        self.begin(waiting.len());
        for Waiting {
            until_ms,
            port,
            said,
            fcf,
            depth,
            mirrored,
            frame,
        } in waiting
        {
            let (count, bytes) = &mut self.sending.waiting;
            (*count, *bytes) = (*count - 1, *bytes - frame.len());
            let state = self
                .snapshot
                .port(port.slot())
                .filter(|state| state.id == port);
            let tunnel = state.and_then(|state| Some((state, state.tunnel.as_deref()?)));
            let Some((state, tunnel)) = tunnel else {
                self.cell.drop(DropReason::PortGone, 1);
                continue;
            };
            let Some(bridge) = self.snapshot.bridge(state.bridge) else {
                self.cell.drop(DropReason::BridgeGone, 1);
                continue;
            };
            if state.flags.down || state.flags.no_fwd {
                self.cell.drop(DropReason::PortDown, 1);
                continue;
            }
            self.sending.said = said;
            self.sending.fcf = fcf;
            self.sending.until_ms = Some(until_ms.max(now_ms + 1));
            self.forward(bridge, depth)
                .send_by_tunnel(state, tunnel, mirrored, frame);
            self.sending.until_ms = None;
        }
        self.sending.forget_said();
        // Sent before later frames, which this burst's bound does not include.
        self.finish();
    }
}
