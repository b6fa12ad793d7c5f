//! Workers' counters: frames by port, drops by reason, cycles by queue.
//!
//! Every counter has one writer, so adding is a load and a store to a cache line that only that
//! worker touches; readers compute sums. Counts survive their worker, because they are in the cell
//! of the worker's reader slot and not in the worker.

use crossbeam_utils::CachePadded;
use packet::io::{QueueDrops, TxOutcome};
use packet::parse::Malformed;
use program::actions::learn::LearnOutcome;
use program::epoch::MAX_READERS;
use program::host::Event;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer.
#[derive(Default, Debug)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a frame was dropped. The first variants are those of the walk
/// ([`program::host::DropReason`]), in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// No rule matched, and the table drops packets that match none.
    TableMiss,
    /// A rule without an output.
    Action,
    /// More resubmits than allowed, or nested too deep.
    TooManyResubmits,
    /// The walk's stack was full.
    StackFull,
    /// No memory to copy or create a frame.
    NoBuffer,
    /// TTL ran out.
    TtlExpired,
    /// An action could not be carried out.
    ActionFailed,
    /// Above the rate of a meter.
    Meter,
    /// A packet-in above the rate of a meter.
    MeterController,
    /// An IP fragment in a bridge that drops fragments.
    Fragment,
    /// Too many packets already waited for rules that they asked for.
    HeldTooMany,
    /// Sent to a group that does not exist.
    NoGroup,
    /// Sent to a group none of whose buckets is live.
    NoLiveBucket,
    /// Groups nested in groups deeper than allowed.
    GroupTooDeep,
    /// Sent through the connection tracker, on to a table, more often than allowed.
    TooManyRecirculations,
    /// Sent to a port number that no port has, or by such a one to NORMAL.
    UnknownPort,
    /// Sent to the ingress port by number, without `in_port`.
    IngressPort,
    /// Came in by, or was sent to, a port that is down.
    PortDown,
    /// Came in by a port that does not receive.
    NoReceive,
    /// Sent to a port that does not forward.
    NoForward,
    /// The port has just been removed, or its device gave no transmit queue; or the frame waited in
    /// a shaper when shaping ended and there was no worker to send it.
    PortGone,
    /// Shorter than an Ethernet header.
    Runt,
    /// Ends inside its VLAN tag.
    TruncatedTag,
    /// Its headers are spread over segments and could not be made contiguous.
    SplitHeaders,
    /// In a VLAN that its port does not carry.
    VlanNotCarried,
    /// To an address that bridges do not forward (IEEE 802.1D section 7.12.6).
    ReservedAddress,
    /// Came in by a mirror's output port.
    MirrorPort,
    /// The destination was learned on the ingress port.
    LearnedOnIngress,
    /// The port on which the destination was learned no longer exists.
    LearnedPortGone,
    /// There is no other port to flood to.
    NowhereToFlood,
    /// Went through too many patch ports.
    TooManyPatches,
    /// The patch port has no peer.
    NoPatchPeer,
    /// The device's transmit queue was full.
    TransmitFull,
    /// Longer than the device accepts.
    TransmitTooLong,
    /// Its segments would be too small to segment it.
    TransmitTinySegments,
    /// An error occurred while sending.
    TransmitFailed,
    /// The packet-in queue to the control thread was full.
    PacketInQueueFull,
    /// Too many packets waited for the monitors of ports.
    MonitorQueueFull,
    /// Too many packets of one port waited for its monitor.
    MonitorPortFull,
    /// For the port's monitor, with a TTL that says that it has passed a router.
    MonitorTtl,
    /// The port is configured to cause no packet-ins.
    NoPacketIn,
    /// Being processed when a worker failed, or held when it ended.
    WorkerFailed,
    /// A packet-out for a bridge that no longer exists.
    BridgeGone,
    /// The ring to a shaped port's owner was full.
    ShaperRingFull,
    /// Dropped by a port's shaper: its queue was full, or the frame could not leave in time.
    Shaped,
    /// Exceeded the rates of the egress port's policer.
    EgressPolicer,
    /// Exceeded the ingress port's rate.
    IngressPolicer,
    /// Sent to a tunnel whose remote endpoint has no route by a bridge's local port.
    TunnelNoRoute,
    /// Sent to a tunnel whose next hop did not answer with its MAC address in time.
    TunnelNoNeighbour,
    /// Too many packets already waited for next hops' MAC addresses.
    TunnelTooManyWait,
    /// Sent to a tunnel with `remote_ip=flow` without a usable remote endpoint in its metadata.
    TunnelNoDestination,
    /// Not an IP packet, sent to a tunnel that carries IP packets only.
    TunnelNotIp,
    /// Came for a tunnel, but no port has its addresses and key.
    TunnelNoPort,
    /// Could not be segmented before a tunnel's header was added.
    TunnelPushSegment,
    /// No headroom for a tunnel's header.
    TunnelPushNoRoom,
    /// Too long for an IP packet with a tunnel's header.
    TunnelPushTooLong,
    /// Sent to a tunnel with an unfinished checksum that lies outside the inner packet.
    TunnelPushChecksum,
    // Packets that come by tunnels and cannot be decapsulated: `packet::tunnel::Reason`, in its
    // order. These, `TunnelNoPort` and `TunnelSegment...` count what the underlay carried: an STT
    // frame that was put together counts as many as its segments, so each segment is in one of
    // these or in `tunnel_joined_segments`. (A packet that came in fragments counts once it is
    // whole; `TunnelFragment...` count fragments.) What has come in by a tunnel's port, and what
    // that port counts as received, are frames.
    /// Ends before its tunnel's header does.
    TunnelShort,
    /// Of another protocol than its tunnel's.
    TunnelProtocol,
    /// Invalid outer IP header.
    TunnelIp,
    /// Wrong checksum of the outer IPv4 header.
    TunnelIpChecksum,
    /// A fragment of a tunnel's packet inside another tunnel's packet.
    TunnelFragment,
    /// The outer IPv6 header has extension headers.
    TunnelIpv6Extension,
    /// Invalid outer UDP length.
    TunnelUdpLength,
    /// Wrong outer checksum of UDP or GRE.
    TunnelChecksum,
    /// Invalid flags in a tunnel's header.
    TunnelFlags,
    /// An invalid length in a tunnel's header.
    TunnelLength,
    /// Invalid options, or not as long as the bridge's map says.
    TunnelOptions,
    /// A critical option that is not in the bridge's map.
    TunnelCriticalOption,
    /// A payload that its tunnel cannot carry.
    TunnelPayload,
    /// The inner packet is too short.
    TunnelInnerShort,
    /// Still to be segmented.
    TunnelSegment,
    /// An unfinished checksum inside the tunnel's header.
    TunnelPartialChecksum,
    /// The outer header says "congestion experienced", but the inner packet is not ECN-capable (RFC
    /// 6040 section 4.2).
    TunnelCongestion,
    /// No memory to make its headers contiguous.
    TunnelNoBuffer,
    /// Had to be handed to another worker, whose ring was full.
    SteeringRingFull,
    /// A packet with its tunnel's header that had to be fragmented and could not be.
    TunnelPushFragment,
    // Fragments of what may be a tunnel's packet: `packet::fragment::Refusal`, in its order.
    /// Invalid length, offset or checksum.
    TunnelFragmentBad,
    /// Contradicts other fragments of its packet; counts those dropped with it, too.
    TunnelFragmentContradiction,
    /// A duplicate.
    TunnelFragmentTwice,
    /// Too many fragments already waited for others of their packets.
    TunnelFragmentFull,
    /// No memory to reassemble the packet.
    TunnelFragmentNoMemory,
    /// Waited too long for other fragments of its packet.
    TunnelFragmentLate,
    /// STT's header says of the inner packet's checksum and segmentation what is not so.
    TunnelOffload,
    // Segments of STT: `packet::fragment::Refusal`, in its order.
    /// Could not be read.
    TunnelSegmentBad,
    /// Contradicts other segments of its STT frame; counts those dropped with it, too.
    TunnelSegmentContradiction,
    /// A duplicate.
    TunnelSegmentTwice,
    /// Too many segments already waited for others of their STT frames, or it waited longest and
    /// gave way.
    TunnelSegmentFull,
    /// No memory to put the STT frame together.
    TunnelSegmentNoMemory,
    /// Waited too long for other segments of its STT frame.
    TunnelSegmentLate,
    /// Waited, and gave way to another of its source, which has at most half of the room.
    TunnelSegmentShare,
}

impl DropReason {
    /// Returns the reason for a refused segment of STT.
    pub fn of_segment(refusal: packet::fragment::Refusal) -> DropReason {
        use packet::fragment::Refusal as R;
        match refusal {
            R::Bad => DropReason::TunnelSegmentBad,
            R::Contradiction => DropReason::TunnelSegmentContradiction,
            R::Twice => DropReason::TunnelSegmentTwice,
            R::Full => DropReason::TunnelSegmentFull,
            R::NoMemory => DropReason::TunnelSegmentNoMemory,
        }
    }
}

impl From<packet::fragment::Refusal> for DropReason {
    fn from(refusal: packet::fragment::Refusal) -> DropReason {
        use packet::fragment::Refusal as R;
        match refusal {
            R::Bad => DropReason::TunnelFragmentBad,
            R::Contradiction => DropReason::TunnelFragmentContradiction,
            R::Twice => DropReason::TunnelFragmentTwice,
            R::Full => DropReason::TunnelFragmentFull,
            R::NoMemory => DropReason::TunnelFragmentNoMemory,
        }
    }
}

impl From<packet::tunnel::PushError> for DropReason {
    fn from(error: packet::tunnel::PushError) -> DropReason {
        use packet::tunnel::PushError as E;
        match error {
            E::Segment => DropReason::TunnelPushSegment,
            E::NoRoom => DropReason::TunnelPushNoRoom,
            E::TooLong => DropReason::TunnelPushTooLong,
            E::Checksum => DropReason::TunnelPushChecksum,
        }
    }
}

impl From<packet::tunnel::Reason> for DropReason {
    fn from(reason: packet::tunnel::Reason) -> DropReason {
        use packet::tunnel::Reason as R;
        match reason {
            R::Short => DropReason::TunnelShort,
            R::Protocol => DropReason::TunnelProtocol,
            R::Ip => DropReason::TunnelIp,
            R::IpChecksum => DropReason::TunnelIpChecksum,
            R::Fragment => DropReason::TunnelFragment,
            R::Ipv6Extension => DropReason::TunnelIpv6Extension,
            R::UdpLength => DropReason::TunnelUdpLength,
            R::Checksum => DropReason::TunnelChecksum,
            R::Flags => DropReason::TunnelFlags,
            R::Length => DropReason::TunnelLength,
            R::Options => DropReason::TunnelOptions,
            R::CriticalOption => DropReason::TunnelCriticalOption,
            R::Payload => DropReason::TunnelPayload,
            R::InnerShort => DropReason::TunnelInnerShort,
            R::Segment => DropReason::TunnelSegment,
            R::PartialChecksum => DropReason::TunnelPartialChecksum,
            R::Congestion => DropReason::TunnelCongestion,
            R::NoBuffer => DropReason::TunnelNoBuffer,
            R::Offload => DropReason::TunnelOffload,
        }
    }
}

impl DropReason {
    /// Number of variants.
    pub const COUNT: usize = DropReason::TunnelSegmentShare as usize + 1;

    /// Counter names, in the order of the variants.
    pub const NAMES: [&'static str; DropReason::COUNT] = [
        "table_miss",
        "action",
        "too_many_resubmits",
        "stack_full",
        "no_buffer",
        "ttl_expired",
        "action_failed",
        "meter",
        "meter_controller",
        "fragment",
        "held_too_many",
        "no_group",
        "no_live_bucket",
        "group_too_deep",
        "too_many_recirculations",
        "unknown_port",
        "ingress_port",
        "port_down",
        "no_receive",
        "no_forward",
        "port_gone",
        "runt",
        "truncated_tag",
        "split_headers",
        "vlan_not_carried",
        "reserved_address",
        "mirror_port",
        "learned_on_ingress",
        "learned_port_gone",
        "nowhere_to_flood",
        "too_many_patches",
        "no_patch_peer",
        "transmit_full",
        "transmit_too_long",
        "transmit_tiny_segments",
        "transmit_failed",
        "packet_in_queue_full",
        "monitor_queue_full",
        "monitor_port_full",
        "monitor_ttl",
        "no_packet_in",
        "worker_failed",
        "bridge_gone",
        "shaper_ring_full",
        "shaped",
        "egress_policer",
        "ingress_policer",
        "tunnel_no_route",
        "tunnel_no_neighbour",
        "tunnel_too_many_wait",
        "tunnel_no_destination",
        "tunnel_not_ip",
        "tunnel_no_port",
        "tunnel_push_segment",
        "tunnel_push_no_room",
        "tunnel_push_too_long",
        "tunnel_push_checksum",
        "tunnel_short",
        "tunnel_protocol",
        "tunnel_ip",
        "tunnel_ip_checksum",
        "tunnel_fragment",
        "tunnel_ipv6_extension",
        "tunnel_udp_length",
        "tunnel_checksum",
        "tunnel_flags",
        "tunnel_length",
        "tunnel_options",
        "tunnel_critical_option",
        "tunnel_payload",
        "tunnel_inner_short",
        "tunnel_segment",
        "tunnel_partial_checksum",
        "tunnel_congestion",
        "tunnel_no_buffer",
        "steering_ring_full",
        "tunnel_push_fragment",
        "tunnel_fragment_bad",
        "tunnel_fragment_contradiction",
        "tunnel_fragment_twice",
        "tunnel_fragment_full",
        "tunnel_fragment_no_memory",
        "tunnel_fragment_late",
        "tunnel_offload",
        "tunnel_segment_bad",
        "tunnel_segment_contradiction",
        "tunnel_segment_twice",
        "tunnel_segment_full",
        "tunnel_segment_no_memory",
        "tunnel_segment_late",
        "tunnel_segment_share",
    ];

    /// Returns the counter's name.
    pub fn name(self) -> &'static str {
        DropReason::NAMES[self as usize]
    }
}

/// A count for each reason.
struct Drops([Count; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Drops(std::array::from_fn(|_| Count::default()))
    }
}

/// One worker's counts for the whole datapath.
#[derive(Default)]
pub(crate) struct Cell {
    drops: Drops,
    malformed: [Count; Malformed::ALL.len()],
    /// Frames handed to a patch port's peer.
    pub patched: Count,
    /// Frames copied to a mirror.
    pub mirrored: Count,
    /// Packet-ins queued.
    pub packet_ins: Count,
    /// Packet-outs executed.
    pub packet_outs: Count,
    /// Frames encapsulated by tunnels.
    pub tunnel_sent: Count,
    /// Frames decapsulated by tunnels: one for each STT frame, in however many segments it came.
    pub tunnel_received: Count,
    /// Fragments sent, of packets with a tunnel's header.
    pub tunnel_fragments_sent: Count,
    /// Tunnels' packets reassembled from fragments.
    pub tunnel_reassembled: Count,
    /// STT frames put together from segments, of those in `tunnel_received`.
    pub tunnel_joined: Count,
    /// Segments that these came in.
    pub tunnel_joined_segments: Count,
    /// Frames that waited for the MAC address of a tunnel's next hop.
    pub tunnel_waited: Count,
    learning: [Count; LEARNING.len()],
}

/// Names of counters about rules that packets ask for.
pub(crate) const LEARNING: [&str; 7] = [
    "learn_held",
    "learn_done",
    "learn_limit_reached",
    "learn_refused",
    "learn_no_answer",
    "learn_asked_too_much",
    "learn_asked_too_often",
];

impl Cell {
    #[inline(always)]
    pub fn drop(&self, reason: DropReason, frames: u64) {
        self.drops.0[reason as usize].add(frames);
    }

    /// Returns the number of frames dropped for any reason.
    #[cfg(test)]
    pub fn all_drops(&self) -> u64 {
        self.drops.0.iter().map(Count::get).sum()
    }

    /// Counts a packet with malformed headers.
    #[cold]
    pub fn malformed(&self, reason: Malformed) {
        self.malformed[reason as usize].add(1);
        match reason {
            Malformed::Ethernet => self.drop(DropReason::Runt, 1),
            Malformed::Split => self.drop(DropReason::SplitHeaders, 1),
            _ => {}
        }
    }

    /// Counts an event about a rule that a packet asked for.
    #[cold]
    pub fn noted(&self, event: Event) {
        let which = match event {
            Event::Held => 0,
            Event::Learned | Event::Refused(LearnOutcome::Learned | LearnOutcome::Known) => 1,
            Event::Refused(LearnOutcome::LimitReached) => 2,
            Event::Refused(LearnOutcome::Refused) => 3,
            Event::NoAnswer => 4,
            Event::AskedTooMuch => 5,
            Event::AskedTooOften => 6,
        };
        self.learning[which].add(1);
    }

    /// Counts a drop by the walk; its reasons have the same numbers here.
    #[inline(always)]
    pub fn drop_by_walk(&self, reason: program::host::DropReason) {
        self.drops.0[reason as usize].add(1);
    }
}

/// The cells of all workers, and of the control thread.
pub(crate) struct Cells(Box<[CachePadded<Cell>]>);

impl Default for Cells {
    fn default() -> Self {
        Cells((0..=MAX_READERS).map(|_| CachePadded::default()).collect())
    }
}

impl Cells {
    /// Returns the control thread's cell.
    pub fn control(&self) -> &Cell {
        &self.0[MAX_READERS]
    }

    pub fn of(&self, worker: usize) -> &Cell {
        &self.0[worker]
    }

    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        let sum = |reason: usize| self.0.iter().map(|cell| cell.drops.0[reason].get()).sum();
        DropReason::NAMES
            .iter()
            .enumerate()
            .map(|(reason, name)| (*name, sum(reason)))
            .collect()
    }

    pub fn learning(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let sum = |which: usize| self.0.iter().map(|cell| cell.learning[which].get()).sum();
        LEARNING
            .iter()
            .enumerate()
            .map(move |(which, name)| (*name, sum(which)))
    }

    pub fn malformed(&self) -> Vec<(&'static str, u64)> {
        let sum = |reason: Malformed| {
            self.0
                .iter()
                .map(|cell| cell.malformed[reason as usize].get())
                .sum()
        };
        Malformed::ALL
            .iter()
            .map(|reason| (reason.name(), sum(*reason)))
            .collect()
    }

    pub fn sum(&self, of: impl Fn(&Cell) -> &Count) -> u64 {
        self.0.iter().map(|cell| of(cell).get()).sum()
    }
}

/// One worker's counts for one port.
#[derive(Default)]
pub(crate) struct PortCell {
    pub rx_packets: Count,
    pub rx_bytes: Count,
    /// Received and dropped, because the port is down or does not receive.
    pub rx_refused: Count,
    /// Received and dropped, because the port's ingress rate was exceeded.
    pub rx_policed: Count,
    /// Dropped before sending by the port's policer.
    pub tx_policed: Count,
    pub tx_packets: Count,
    pub tx_bytes: Count,
    pub tx_full: Count,
    pub tx_too_long: Count,
    pub tx_failed: Count,
    /// Those of `tx_failed` whose sender asks for segments that are too small.
    pub tx_tiny: Count,
}

impl PortCell {
    pub fn sent(&self, outcome: &TxOutcome) {
        self.tx_packets.add(outcome.packets);
        self.tx_bytes.add(outcome.bytes);
        let failed = outcome.failed + outcome.tiny_segments;
        if outcome.full | outcome.too_long | failed != 0 {
            self.tx_full.add(outcome.full);
            self.tx_too_long.add(outcome.too_long);
            self.tx_failed.add(failed);
            self.tx_tiny.add(outcome.tiny_segments);
        }
    }
}

/// A port's counters, a cell for each worker. They are here and not behind a further pointer, which
/// of many ports would mostly not be in a cache.
pub(crate) struct PortCounters {
    cells: [CachePadded<PortCell>; MAX_READERS],
}

impl Default for PortCounters {
    fn default() -> Self {
        PortCounters {
            cells: std::array::from_fn(|_| CachePadded::default()),
        }
    }
}

/// A port's counters, as exact sums over workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Frames received by workers.
    pub rx_packets: u64,
    /// Their bytes, without FCS.
    pub rx_bytes: u64,
    /// Frames lost before a worker received them, or for lack of memory.
    pub rx_dropped: u64,
    /// Malformed frames that the receive queues rejected.
    pub rx_errors: u64,
    /// Frames received and dropped, because the port is down or does not receive.
    pub rx_refused: u64,
    /// Frames received and dropped, because they exceeded the port's ingress rate.
    pub rx_policed: u64,
    /// Frames dropped before sending by the port's policer or shaper.
    pub tx_policed: u64,
    /// Frames sent, after segmentation.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames for which the device's queue was full.
    pub tx_full: u64,
    /// Frames longer than the device accepts.
    pub tx_too_long: u64,
    /// Frames lost to errors, or whose segments would be too small.
    pub tx_failed: u64,
    /// Those of `tx_failed` whose sender asks for segments that are too small.
    pub tx_tiny: u64,
}

impl PortCounters {
    #[inline(always)]
    pub fn of(&self, worker: usize) -> &PortCell {
        &self.cells[worker]
    }

    /// Prefetches what a worker counts.
    #[inline(always)]
    pub fn prefetch(&self, worker: usize) {
        packet::parse::prefetch_at(self.of(worker));
    }

    /// Returns the sums, without the counts that only the receive queues have.
    pub fn sum(&self) -> PortStats {
        let sum = |of: fn(&PortCell) -> &Count| self.cells.iter().map(|cell| of(cell).get()).sum();
        PortStats {
            rx_packets: sum(|cell| &cell.rx_packets),
            rx_bytes: sum(|cell| &cell.rx_bytes),
            rx_dropped: 0,
            rx_errors: 0,
            rx_refused: sum(|cell| &cell.rx_refused),
            rx_policed: sum(|cell| &cell.rx_policed),
            tx_policed: sum(|cell| &cell.tx_policed),
            tx_packets: sum(|cell| &cell.tx_packets),
            tx_bytes: sum(|cell| &cell.tx_bytes),
            tx_full: sum(|cell| &cell.tx_full),
            tx_too_long: sum(|cell| &cell.tx_too_long),
            tx_failed: sum(|cell| &cell.tx_failed),
            tx_tiny: sum(|cell| &cell.tx_tiny),
        }
    }
}

/// Counts for one receive queue.
#[derive(Default)]
pub(crate) struct QueueCounters {
    pub packets: Count,
    pub batches: Count,
    pub cycles: Count,
    missed: Count,
    malformed: Count,
    no_buffer: Count,
}

impl QueueCounters {
    pub fn set_drops(&self, drops: QueueDrops) {
        self.missed.set(drops.missed);
        self.malformed.set(drops.malformed);
        self.no_buffer.set(drops.no_buffer);
    }

    pub fn drops(&self) -> QueueDrops {
        QueueDrops {
            missed: self.missed.get(),
            malformed: self.malformed.get(),
            no_buffer: self.no_buffer.get(),
        }
    }
}

/// Counts of one worker's time.
#[derive(Default)]
pub(crate) struct WorkerCounters {
    pub packets: Count,
    pub batches: Count,
    pub patched: Count,
    pub tx_packets: Count,
    pub tx_batches: Count,
    pub busy_cycles: Count,
    pub idle_cycles: Count,
    pub sleep_cycles: Count,
    pub busy_turns: Count,
    pub idle_turns: Count,
    pub sleeps: Count,
    pub naps: Count,
    pub naps_cut: Count,
    pub failures: Count,
    /// Durations of its turns.
    pub turns: crate::turns::Told,
}

impl WorkerCounters {
    pub fn read(&self) -> WorkerStats {
        WorkerStats {
            packets: self.packets.get(),
            batches: self.batches.get(),
            patched: self.patched.get(),
            tx_packets: self.tx_packets.get(),
            tx_batches: self.tx_batches.get(),
            busy_cycles: self.busy_cycles.get(),
            idle_cycles: self.idle_cycles.get(),
            sleep_cycles: self.sleep_cycles.get(),
            busy_turns: self.busy_turns.get(),
            idle_turns: self.idle_turns.get(),
            sleeps: self.sleeps.get(),
            naps: self.naps.get(),
            naps_cut: self.naps_cut.get(),
            failures: self.failures.get(),
            ..WorkerStats::default()
        }
    }
}

/// How a worker has spent its time, since it started or its counts were cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// Frames received.
    pub packets: u64,
    /// Receive bursts that were not empty.
    pub batches: u64,
    /// Frames walked again behind a patch port.
    pub patched: u64,
    /// Frames given to transmit queues.
    pub tx_packets: u64,
    /// Transmit bursts.
    pub tx_batches: u64,
    /// Cycles spent on frames.
    pub busy_cycles: u64,
    /// Cycles spent polling without finding frames.
    pub idle_cycles: u64,
    /// Cycles slept.
    pub sleep_cycles: u64,
    /// Turns of the loop that found frames.
    pub busy_turns: u64,
    /// Turns that found none.
    pub idle_turns: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Number of these that were naps while it held frames back.
    pub naps: u64,
    /// Naps that ended early because a long quiet queue had frames.
    pub naps_cut: u64,
    /// Number of times that it failed and was restarted.
    pub failures: u64,
    /// Frames of those received that other workers have processed ([`crate::SteeringMode`]).
    pub handed: u64,
    /// Frames that it processed and other workers had received; their cycles are busy ones.
    pub taken: u64,
}

impl WorkerStats {
    /// Returns what was counted since `before`.
    pub fn since(&self, before: &WorkerStats) -> WorkerStats {
        WorkerStats {
            packets: self.packets.wrapping_sub(before.packets),
            batches: self.batches.wrapping_sub(before.batches),
            patched: self.patched.wrapping_sub(before.patched),
            tx_packets: self.tx_packets.wrapping_sub(before.tx_packets),
            tx_batches: self.tx_batches.wrapping_sub(before.tx_batches),
            busy_cycles: self.busy_cycles.wrapping_sub(before.busy_cycles),
            idle_cycles: self.idle_cycles.wrapping_sub(before.idle_cycles),
            sleep_cycles: self.sleep_cycles.wrapping_sub(before.sleep_cycles),
            busy_turns: self.busy_turns.wrapping_sub(before.busy_turns),
            idle_turns: self.idle_turns.wrapping_sub(before.idle_turns),
            sleeps: self.sleeps.wrapping_sub(before.sleeps),
            naps: self.naps.wrapping_sub(before.naps),
            naps_cut: self.naps_cut.wrapping_sub(before.naps_cut),
            failures: self.failures.wrapping_sub(before.failures),
            handed: self.handed.wrapping_sub(before.handed),
            taken: self.taken.wrapping_sub(before.taken),
        }
    }

    /// Returns the number of frames that it has processed, whoever received them.
    pub fn processed(&self) -> u64 {
        self.packets.saturating_sub(self.handed) + self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walks_reasons_come_first_and_bear_its_names() {
        assert_eq!(
            DropReason::NAMES[..program::host::DropReason::COUNT],
            program::host::DropReason::NAMES
        );
        assert_eq!(DropReason::BridgeGone.name(), "bridge_gone");
        assert_eq!(
            DropReason::UnknownPort as usize,
            program::host::DropReason::COUNT
        );
    }
}
