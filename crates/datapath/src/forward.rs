//! Outputs: what the engine's host does with a frame that is to leave.
//!
//! Frames for a device collect in a batch for each port, sent when it is full and at the end of
//! every receive burst. Frames for a patch port wait for the end of the walk and are then walked in
//! the peer's bridge, as a burst; how often one burst may be walked again is bounded.

mod bridging;

use crate::clock::Clock;
use crate::counters::{Cell, DropReason, PortCounters, WorkerCounters};
use crate::fcf;
use crate::fragments::{self, Held, Taken};
use crate::learn_requests::{RequestKind, RequestRing, WorkerRequest};
use crate::mirror::MirrorOutput;
use crate::normal::{self, Decision};
use crate::packet_in::{PacketIn, PacketInRing, weight};
use crate::port::LOCAL;
use crate::shape::{NoDevice, ShapedSender, Shaping, inspect};
use crate::snapshot::{Behind, BridgeState, PortState, Snapshot};
use crate::tunnel::{Arrivals, Asked, Sending};
use crate::vlan::{self, Ethernet, Inner, Malformed, Tag};
use conntrack::{Earlier, Tracked, Tracker};
use packet::io::{BURST, Lengths, TxQueue};
use packet::mini_key::MiniKey;
use packet::parse::Layers;
use packet::tunnel::TunnelWords;
use packet::{FlowKey, Frame};
use program::actions::learn::{Ended, Request};
use program::actions::{PacketInReason, PortNo, ToController};
use program::counters::DIFFERENCES;
use program::exec::{Arrived, Frozen, Parked};
use program::host::{Context, DropReason as WalkDrop, Event, Host, ResumePoint};
use stages::Stage;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most patch ports that a packet may pass.
pub const MAX_PATCHES: u32 = 64;
/// Most walks behind patch ports that one received frame may cause, on average over its burst: this
/// ends copies that are flooded around a loop of bridges.
const WALKS_PER_FRAME: usize = 256;

/// Number of walks that adding a header counts for, to a frame that came by a tunnel or has a
/// tunnel's header already: it takes about as long, and a route into its own tunnel makes each copy
/// longer.
const WALKS_OF_TUNNEL: usize = 4;
/// Further walks allowed for each tunnel, for bridges that flood into many.
const WALKS_PER_TUNNEL: usize = 2;

/// Most batches that are searched for one that a frame can join.
const PEERS_LOOKED_AT: usize = 8;

/// A worker's output to one port.
pub(crate) struct EgressPort<F: Frame> {
    pub tx: Box<dyn TxQueue<F>>,
    pub counters: Arc<PortCounters>,
    batch: Vec<F>,
    /// Of `batch`, the number of frames at its front that are finished (nothing left to do) and
    /// whose lengths are in `lengths`. 0 for a batch that has been sent.
    finished_frames: usize,
    lengths: Lengths,
    /// The sender to the port's shaper, where it is shaped.
    sender: Option<Box<ShapedSender<F>>>,
    /// Whether it is a device, and not a patch port.
    device: bool,
}

/// A worker's outputs, by port slot.
pub(crate) struct Egress<F: Frame> {
    ports: Vec<Option<EgressPort<F>>>,
    /// Slots with a non-empty batch.
    dirty: Vec<u32>,
    /// Frames on their way to shaped ports.
    pub(crate) shaping: Shaping<F>,
    worker: usize,
    counters: Arc<WorkerCounters>,
}

impl<F: Frame> Egress<F> {
    pub fn new(worker: usize, counters: Arc<WorkerCounters>) -> Egress<F> {
        Egress {
            ports: Vec::new(),
            dirty: Vec::new(),
            shaping: Shaping::new(),
            worker,
            counters,
        }
    }

    /// Sets a port's transmit queue.
    pub fn set(&mut self, slot: u32, tx: Box<dyn TxQueue<F>>, counters: Arc<PortCounters>) {
        self.put(slot, tx, counters, true);
    }

    fn put(
        &mut self,
        slot: u32,
        tx: Box<dyn TxQueue<F>>,
        counters: Arc<PortCounters>,
        device: bool,
    ) {
        let slot = slot as usize;
        if self.ports.len() <= slot {
            self.ports.resize_with(slot + 1, || None);
        }
        self.ports[slot] = Some(EgressPort {
            tx,
            counters,
            batch: Vec::with_capacity(BURST),
            finished_frames: 0,
            lengths: Lengths::default(),
            sender: None,
            device,
        });
    }

    /// Shapes a port; one without a transmit queue is a patch port.
    pub fn shape(&mut self, slot: u32, sender: Box<ShapedSender<F>>) {
        if !matches!(self.ports.get(slot as usize), Some(Some(_))) {
            let counters = Arc::clone(&sender.counters);
            self.put(slot, Box::new(NoDevice), counters, false);
        }
        self.shaping.begin_use();
        self.shaping.own(slot, sender.mine);
        if let Some(Some(port)) = self.ports.get_mut(slot as usize) {
            if let Some(former) = &port.sender {
                sender.hand_on(former);
            }
            port.sender = Some(sender);
        }
    }

    /// Returns the number of frames that have left this worker so far, to devices or to shaped
    /// ports of other workers; frames held by its own shaped ports do not count.
    pub fn gone(&self) -> u64 {
        self.counters.tx_packets.get() + self.shaping.handed_over
    }

    /// Returns the worker's number.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Returns whether the port is a device.
    #[inline]
    pub fn has_device(&self, slot: u32) -> bool {
        let port = self.ports.get(slot as usize).and_then(Option::as_ref);
        port.is_some_and(|port| port.device)
    }

    /// Returns the sender to a shaped port.
    pub fn sender(&mut self, slot: u32) -> Option<&mut ShapedSender<F>> {
        self.ports
            .get_mut(slot as usize)?
            .as_mut()?
            .sender
            .as_deref_mut()
    }

    /// Returns the sender to a shaped port, for reading.
    pub fn sender_of(&self, slot: u32) -> Option<&ShapedSender<F>> {
        self.ports.get(slot as usize)?.as_ref()?.sender.as_deref()
    }

    /// Removes the sender to a shaped port.
    pub fn take_sender(&mut self, slot: u32) -> Option<Box<ShapedSender<F>>> {
        self.shaping.own(slot, false);
        self.ports.get_mut(slot as usize)?.as_mut()?.sender.take()
    }

    /// Returns a transmit queue to be given back, after sending what its batch still holds.
    pub fn take(&mut self, slot: u32, cell: &Cell) -> Option<Box<dyn TxQueue<F>>> {
        self.flush_port(slot, cell);
        if let Some(mut sender) = self.take_sender(slot) {
            cell.drop(DropReason::PortGone, sender.close(cell));
        }
        let port = self.ports.get_mut(slot as usize)?.take()?;
        Some(port.tx)
    }

    /// Drops all batches after a failure, because their state is unknown, and returns the number of
    /// frames.
    pub fn discard(&mut self) -> usize {
        self.dirty.clear();
        let ports = self.ports.iter_mut().flatten();
        let lost = ports.map(|port| {
            let staged = port.sender.as_mut().map_or(0, |sender| sender.discard());
            port.finished_frames = 0;
            staged + port.batch.drain(..).count()
        });
        lost.sum::<usize>() + self.shaping.discard()
    }

    /// Removes and returns all transmit queues.
    pub fn take_all(&mut self) -> Vec<Box<dyn TxQueue<F>>> {
        self.ports.drain(..).flatten().map(|port| port.tx).collect()
    }

    #[inline(always)]
    pub fn push(&mut self, slot: u32, frame: F, cell: &Cell) {
        let Some(Some(port)) = self.ports.get_mut(slot as usize) else {
            return cell.drop(DropReason::PortGone, 1);
        };
        if port.batch.is_empty() {
            self.dirty.push(slot);
        }
        port.batch.push(frame);
        if port.batch.len() >= BURST {
            self.send(slot, cell);
        }
    }

    #[inline(always)]
    fn push_run(&mut self, slot: u32, frames: &mut impl ExactSizeIterator<Item = F>, cell: &Cell) {
        let Some(Some(port)) = self.ports.get_mut(slot as usize) else {
            cell.drop(DropReason::PortGone, frames.len() as u64);
            return frames.for_each(drop);
        };
        if port.batch.is_empty() {
            self.dirty.push(slot);
        }
        port.batch.extend(frames);
        if port.batch.len() >= BURST {
            self.send(slot, cell);
        }
    }

    /// Sends all of `frames`, which gets the batch's empty vector where possible; `lengths` are
    /// theirs, given where they are finished.
    #[inline(always)]
    pub fn push_burst(
        &mut self,
        slot: u32,
        frames: &mut Vec<F>,
        lengths: Option<Lengths>,
        cell: &Cell,
    ) {
        match self.ports.get_mut(slot as usize) {
            Some(Some(port)) if port.batch.is_empty() => {
                std::mem::swap(&mut port.batch, frames);
                if let Some(lengths) = lengths {
                    (port.finished_frames, port.lengths) = (port.batch.len(), lengths);
                }
                self.dirty.push(slot);
            }
            _ => self.push_run(slot, &mut frames.drain(..), cell),
        }
    }

    fn send(&mut self, slot: u32, cell: &Cell) {
        let Some(Some(port)) = self.ports.get_mut(slot as usize) else {
            return;
        };
        let frames = port.batch.len() as u64;
        if frames == 0 {
            return;
        }
        let _stage = stages::enter(Stage::Send, port.batch.len());
        // Frames are only appended until all are sent: if the counts are equal, no unfinished ones
        // have joined.
        let outcome = if std::mem::take(&mut port.finished_frames) == port.batch.len() {
            port.tx.send_finished(&mut port.batch, port.lengths)
        } else {
            port.tx.send(&mut port.batch)
        };
        port.batch.clear();
        port.counters.of(self.worker).sent(&outcome);
        if outcome.full | outcome.too_long | outcome.tiny_segments | outcome.failed != 0 {
            cell.drop(DropReason::TransmitFull, outcome.full);
            cell.drop(DropReason::TransmitTooLong, outcome.too_long);
            cell.drop(DropReason::TransmitTinySegments, outcome.tiny_segments);
            cell.drop(DropReason::TransmitFailed, outcome.failed);
        }
        self.counters.tx_batches.add(1);
        self.counters.tx_packets.add(frames);
    }

    pub fn flush_port(&mut self, slot: u32, cell: &Cell) {
        if let Some(at) = self.dirty.iter().position(|dirty| *dirty == slot) {
            self.dirty.swap_remove(at);
            self.send(slot, cell);
        }
    }

    /// Sends all batches.
    #[inline]
    pub fn flush(&mut self, cell: &Cell) {
        if !self.shaping.is_done() {
            self.admit(cell);
        }
        while let Some(slot) = self.dirty.pop() {
            self.send(slot, cell);
        }
    }
}

/// How frames come in again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Again {
    /// By a patch port.
    Patch,
    /// With a tunnel's header, by the local port of the underlay's bridge, without its device.
    Outer,
    /// Decapsulated, by a tunnel.
    Inner,
}

/// Frames that come in again together.
pub(crate) struct Batch<F> {
    /// Slot of the port that they come in by; for decapsulated frames, slot of the tunnels' bridge.
    pub slot: u32,
    /// Number of patch ports and tunnels that they have passed.
    pub depth: u32,
    pub again: Again,
    /// Mirrors that have had them.
    pub mirrored: u32,
    /// By how many bytes more than they have they are counted ([`DIFFERENCES`], or 0).
    pub longer: i32,
    pub frames: Vec<F>,
    /// Ports and tunnel metadata of decapsulated frames.
    pub arrivals: Arrivals,
    /// What the tracker has last said of the first frames; of all others, nothing.
    pub tracked: Vec<Earlier>,
}

impl<F> Batch<F> {
    /// Notes what the tracker has said of the frame put in last.
    #[cold]
    fn note(&mut self, earlier: Earlier) {
        self.tracked
            .resize(self.frames.len() - 1, Earlier::default());
        self.tracked.push(earlier);
    }
}

/// Empty vectors of a batch, for reuse.
type Spare<F> = (Vec<F>, Arrivals, Vec<Earlier>);

/// Frames on their way through patch ports and tunnels.
pub(crate) struct Patches<F> {
    waiting: VecDeque<Batch<F>>,
    spare: Vec<Spare<F>>,
    /// Number of frames that may still be walked again in this burst.
    budget: usize,
    /// Share of the budget for each frame of the burst.
    per_frame: usize,
    /// Cost of another tunnel header for the current frames.
    tunnel_counts: usize,
    /// Fragments that go on behind `ct`, with the tracker's answer.
    ready: VecDeque<(Held<F>, Tracked)>,
}

impl<F: Frame> Patches<F> {
    pub fn new() -> Patches<F> {
        Patches {
            waiting: VecDeque::new(),
            spare: Vec::new(),
            budget: 0,
            per_frame: WALKS_PER_FRAME,
            tunnel_counts: 1,
            ready: VecDeque::new(),
        }
    }

    /// Has fragments go on behind `ct` when the current walks are done.
    #[cold]
    pub fn go_on(&mut self, fragments: impl Iterator<Item = Held<F>>, answer: Tracked) {
        (self.ready).extend(fragments.map(|fragment| (fragment, answer)));
    }

    /// Returns the next fragment that goes on, with the tracker's answer.
    #[inline(always)]
    pub fn ready(&mut self) -> Option<(Held<F>, Tracked)> {
        match self.ready.is_empty() {
            true => None,
            false => self.ready.pop_front(),
        }
    }

    /// Sets how many tunnels there are in this turn; each frame may be flooded into all of them.
    #[inline(always)]
    pub fn set_tunnels(&mut self, count: usize) {
        self.per_frame = WALKS_PER_FRAME + WALKS_PER_TUNNEL * count;
    }

    /// Says how the following frames have come in.
    pub fn came(&mut self, again: Again) {
        self.tunnel_counts = match again {
            Again::Patch => 1,
            Again::Outer | Again::Inner => WALKS_OF_TUNNEL,
        };
    }

    /// Begins a new burst of `frames`.
    #[inline(always)]
    pub fn begin(&mut self, frames: usize) {
        self.budget = frames * self.per_frame;
        self.tunnel_counts = 1;
    }

    /// Adds frames to the burst.
    pub fn join(&mut self, frames: usize) {
        self.give_back(frames * self.per_frame);
    }

    /// Takes a frame's share of the budget out of the burst.
    fn lend(&mut self) -> usize {
        let share = self.budget.min(self.per_frame);
        self.budget -= share;
        share
    }

    /// Adds a share of the budget that was taken out of this or another burst: so copies that are
    /// flooded around a loop end, however often they wait.
    pub fn give_back(&mut self, share: usize) {
        self.budget = self.budget.saturating_add(share);
    }

    /// Returns the batch that a frame is to join.
    fn batch(
        &mut self,
        peer: u32,
        depth: u32,
        again: Again,
        mirrored: u32,
        longer: i32,
        count: usize,
    ) -> Result<&mut Batch<F>, DropReason> {
        // Copies made directly of received frames are free: rules and ports bound their number.
        let charged = if depth > 1 { count } else { 0 };
        if depth > MAX_PATCHES || self.budget < charged {
            return Err(DropReason::TooManyPatches);
        }
        self.budget -= charged;
        // Frames flooded to several peers in turn still make bursts. A peer's latest batch is the
        // one to add to, so its frames stay in order.
        let latest = self.waiting.len().saturating_sub(PEERS_LOOKED_AT)..self.waiting.len();
        let place = latest.rev().find(|at| {
            let batch = &self.waiting[*at];
            (batch.slot, batch.depth, batch.again) == (peer, depth, again)
                && (batch.mirrored, batch.longer) == (mirrored, longer)
        });
        let place = match place {
            Some(place) => place,
            None => {
                let (frames, arrivals, tracked) = self.spare.pop().unwrap_or_default();
                self.waiting.push_back(Batch {
                    slot: peer,
                    depth,
                    again,
                    mirrored,
                    longer,
                    frames,
                    arrivals,
                    tracked,
                });
                self.waiting.len() - 1
            }
        };
        Ok(&mut self.waiting[place])
    }

    /// Sends a frame that has passed `depth` patch ports, is counted with the length `counted`, and
    /// of which the tracker has said `earlier`, through one more; `counters` are that port's.
    #[allow(clippy::too_many_arguments)] // what is known of one frame
    pub fn send(
        &mut self,
        counters: &crate::counters::PortCell,
        peer: u32,
        depth: u32,
        frame: F,
        counted: usize,
        earlier: Earlier,
        cell: &Cell,
    ) {
        let longer = (counted as i64 - frame.len() as i64) as i32;
        let longer = match DIFFERENCES.contains(&longer) {
            true => longer,
            false => 0,
        };
        let bytes = (frame.len() as u64).wrapping_add_signed(longer.into());
        match self.batch(peer, depth + 1, Again::Patch, 0, longer, 1) {
            Ok(batch) => {
                batch.frames.push(frame);
                if earlier.state != 0 {
                    batch.note(earlier);
                }
                counters.tx_packets.add(1);
                counters.tx_bytes.add(bytes);
                cell.patched.add(1);
            }
            Err(reason) => cell.drop(reason, 1),
        }
    }

    /// Passes on frames with a tunnel's header, which go on at an underlay's local port or are
    /// dropped.
    pub fn push_outer(
        &mut self,
        slot: u32,
        depth: u32,
        mirrored: u32,
        frames: impl ExactSizeIterator<Item = F>,
    ) -> Result<(), DropReason> {
        let count = frames.len() * self.tunnel_counts;
        let batch = self.batch(slot, depth, Again::Outer, mirrored, 0, count)?;
        batch.frames.extend(frames);
        Ok(())
    }

    /// Returns the batch to which at most `count` decapsulated frames are added, each with the
    /// tunnel port by which it comes in at the bridge of this slot; all of them are charged.
    pub fn inner_batch(
        &mut self,
        bridge: u32,
        depth: u32,
        count: usize,
    ) -> Result<&mut Batch<F>, DropReason> {
        self.batch(bridge, depth, Again::Inner, 0, 0, count)
    }

    #[inline(always)]
    pub fn pop(&mut self) -> Option<Batch<F>> {
        self.waiting.pop_front()
    }

    /// Takes back empty vectors for reuse.
    pub fn recycle(&mut self, empty: Spare<F>) {
        if self.spare.len() < 64 {
            self.spare.push(empty);
        }
    }

    /// Drops everything and returns the number of frames.
    pub fn clear(&mut self) -> usize {
        let frames = self.waiting.drain(..).map(|batch| batch.frames.len());
        frames.sum::<usize>() + self.ready.drain(..).count()
    }
}

/// The engine's host on a worker: for one bridge, one ingress port, one burst.
pub(crate) struct Forward<'a, F: Frame> {
    pub snapshot: &'a Snapshot,
    pub bridge: &'a BridgeState,
    pub egress: &'a mut Egress<F>,
    pub patches: &'a mut Patches<F>,
    pub cell: &'a Cell,
    pub worker: usize,
    pub packet_ins: &'a PacketInRing,
    pub requests: &'a RequestRing,
    /// The clock in seconds, for learning.
    pub second: u32,
    /// The queue that the current frame names.
    pub queue: Option<u32>,
    /// The length with which the current frame is counted, less `longer`; 0: its length as it is.
    /// Known for what does not go to plain ports.
    pub counted: u32,
    /// By how many bytes more than they have the burst's frames are counted.
    pub longer: i32,
    pub clock: &'a Clock,
    /// The clock in nanoseconds, read at the burst's first meter; 0 before.
    pub now_ns: u64,
    /// Number of patch ports passed so far.
    pub depth: u32,
    /// Slot of the port by which the frames were received, whatever ports they have come by since.
    pub received: u32,
    /// Whether the burst's frames were received finished (nothing left to do).
    pub finished: bool,
    /// Whether the frames have come through patch ports from a packet-out.
    pub packet_out: bool,
    /// Whether the frames have come by a patch port.
    pub patched: bool,
    /// Whether a frame has been flooded or switched to the local port.
    pub reached_local: bool,
    /// Whether the rules that the current packet asks for have been made already.
    pub taught: bool,
    pub sending: &'a mut Sending<F>,
    pub asked: &'a Asked,
    pub tracker: &'a Tracker,
    pub fragments: &'a fragments::Table<F>,
    /// What the tracker has said of the frame that is being sent.
    pub tracked: Earlier,
}

impl<'a, F: Frame> Forward<'a, F> {
    /// Sends a frame, as it is, out of a port, after copies to mirrors that select it.
    #[inline(always)]
    pub fn emit(&mut self, mirrored: &mut u32, port: &PortState, frame: F) {
        if port.plain {
            return self.egress.push(port.id.slot(), frame, self.cell);
        }
        if port.only_shaped {
            let (slot, queue) = (port.id.slot(), self.queue);
            return self.egress.stage(slot, frame, queue, 0, self.cell);
        }
        self.emit_checked(mirrored, port, frame);
    }

    fn emit_checked(&mut self, mirrored: &mut u32, port: &PortState, mut frame: F) {
        if port.flags.down {
            return self.cell.drop(DropReason::PortDown, 1);
        }
        if port.flags.no_fwd {
            return self.cell.drop(DropReason::NoForward, 1);
        }
        if !port.marks.is_empty() {
            self.mark(port, &mut frame);
        }
        if let Some(layout) = port.fcf
            && port.behind == Behind::Device
        {
            match self.settle(port, layout, frame) {
                Some(settled) => frame = settled,
                None => return,
            }
        }
        if port.mirror_out & !*mirrored != 0 {
            self.mirror(mirrored, port, port.mirror_out, &mut frame);
        }
        if let Some(device) = port.terminates.as_deref() {
            // Decapsulated frames do not leave by the port, so nothing polices or shapes them.
            match self.take_tunnelled(port, device, *mirrored, frame) {
                Some(left) => frame = left,
                None => return,
            }
        }
        self.emit_past_tunnels(port, *mirrored, frame);
    }

    /// Sends a frame that is not for a tunnel, after copies to mirrors.
    #[inline(always)]
    pub fn emit_past_tunnels(&mut self, port: &PortState, mirrored: u32, frame: F) {
        if let Some(policer) = &port.policing.egress {
            if !self.passes(port, policer, &frame) {
                return;
            }
        } else if let Some(queue) = self.queue
            && !port.queues.is_empty()
            && !port.shaped
        {
            port.queues.count(queue, frame.len() as u64);
        }
        match port.behind {
            _ if port.shaped => {
                let (slot, queue) = (port.id.slot(), self.queue);
                self.egress.stage(slot, frame, queue, self.depth, self.cell);
            }
            Behind::Device => self.egress.push(port.id.slot(), frame, self.cell),
            Behind::Patch(None) => self.cell.drop(DropReason::NoPatchPeer, 1),
            Behind::Patch(Some(peer)) => self.patch(port, peer, frame),
            Behind::Tunnel => {
                if let Some(tunnel) = port.tunnel.as_deref() {
                    self.send_by_tunnel(port, tunnel, mirrored, frame);
                }
            }
        }
    }

    /// Writes the queue's DSCP into a frame that names a queue.
    #[cold]
    fn mark(&self, port: &PortState, frame: &mut F) {
        let marks = &port.marks;
        if let Some(queue) = self.queue
            && let Ok(at) = marks.binary_search_by_key(&queue, |mark| mark.0)
        {
            inspect::set_dscp(frame, marks[at].1);
        }
    }

    fn patch(&mut self, port: &PortState, peer: u32, frame: F) {
        let (depth, cell) = (self.depth, self.cell);
        let counters = port.counters.of(self.worker);
        let counted = self.counted_of(&frame) as usize;
        let counted = counted.saturating_add_signed(self.longer as isize);
        self.patches
            .send(counters, peer, depth, frame, counted, self.tracked, cell);
    }

    /// Returns the length with which the current frame is counted, less `longer`.
    #[inline(always)]
    fn counted_of(&self, frame: &F) -> u32 {
        match self.counted {
            0 => frame.len() as u32,
            counted => counted,
        }
    }

    /// Copies a frame, in the form it has on the wire of `port`, to those of `mirrors` that select
    /// its VLAN and have not had it.
    pub fn mirror(&mut self, mirrored: &mut u32, port: &PortState, mirrors: u32, frame: &mut F) {
        let Ok(front) = vlan::ethernet(frame) else {
            return;
        };
        let Some(inner) = port.vlan.input(front.tag) else {
            return;
        };
        let bridge = self.bridge;
        for (index, mirror) in bridge.mirrors.iter().enumerate() {
            let bit = 1_u32 << index;
            let wanted = mirrors & bit != 0 && *mirrored & bit == 0;
            if !wanted
                || mirror
                    .vlans
                    .as_ref()
                    .is_some_and(|vlans| !vlans.contains(inner.vid))
            {
                continue;
            }
            *mirrored |= mirror.same_output;
            mirror.counters.add(frame.len() as u64);
            match mirror.output {
                MirrorOutput::Port(output) => {
                    if let Some(output) = self
                        .snapshot
                        .port(output.slot())
                        .filter(|port| port.id == output)
                    {
                        self.copy_to(mirrored, output, &front, inner, mirror.snaplen, frame);
                    }
                }
                MirrorOutput::Vlan(vid) => {
                    if vid == inner.vid || normal::is_reserved(front.dst) {
                        continue;
                    }
                    let inner = Inner { vid, ..inner };
                    for output in &bridge.ports {
                        if output.vlan.includes(vid) && !output.reserved {
                            self.copy_to(mirrored, output, &front, inner, mirror.snaplen, frame);
                        }
                    }
                }
            }
        }
    }

    /// Sends a mirror's copy, which names no queue.
    fn copy_to(
        &mut self,
        mirrored: &mut u32,
        port: &PortState,
        front: &Ethernet,
        inner: Inner,
        snaplen: Option<u32>,
        frame: &F,
    ) {
        let Some(mut copy) = frame.duplicate() else {
            return self.cell.drop(DropReason::NoBuffer, 1);
        };
        self.cell.mirrored.add(1);
        let counted = self.counted;
        self.counted = self.counted_of(frame);
        let tag = port.vlan.output(inner, front.tag.map_or(0, Tag::pcp));
        if !vlan::set_tag(&mut copy, front.tag, tag) {
            self.counted = counted;
            return self.cell.drop(DropReason::NoBuffer, 1);
        }
        if let Some(snaplen) = snaplen {
            cut(&mut copy, snaplen as usize);
        }
        let queue = self.queue.take();
        // The copy keeps the field that the frame has on the wire.
        let fcf = std::mem::replace(&mut self.sending.fcf, fcf::Said::COPY);
        self.emit(mirrored, port, copy);
        self.sending.fcf = fcf;
        self.queue = queue;
        self.counted = counted;
    }

    /// Sends a frame of a VLAN, which carries the tag `present`, out of a port, tagged as the
    /// port's configuration demands.
    #[inline]
    fn emit_in_vlan(
        &mut self,
        mirrored: &mut u32,
        port: &PortState,
        present: Option<Tag>,
        inner: Inner,
        mut frame: F,
    ) {
        let tag = port.vlan.output(inner, present.map_or(0, Tag::pcp));
        let counted = self.counted;
        if !port.plain {
            self.counted = self.counted_of(&frame);
        }
        if vlan::set_tag(&mut frame, present, tag) {
            self.emit(mirrored, port, frame);
        } else {
            self.cell.drop(DropReason::NoBuffer, 1);
        }
        self.counted = counted;
    }

    /// Calls `send` for each of the bridge's ports that `choose` selects: with copies, and with the
    /// frame itself for the last. Returns false when there is none.
    fn send_to_each(
        &mut self,
        frame: F,
        choose: impl Fn(&PortState) -> bool,
        mut send: impl FnMut(&mut Self, &PortState, F),
    ) -> bool {
        let bridge = self.bridge;
        let mut last: Option<&PortState> = None;
        for port in bridge.ports.iter().filter(|port| choose(port)) {
            if let Some(earlier) = last.replace(port) {
                match frame.duplicate() {
                    Some(copy) => send(self, earlier, copy),
                    None => self.cell.drop(DropReason::NoBuffer, 1),
                }
            }
        }
        match last {
            Some(port) => send(self, port, frame),
            None => self.cell.drop(DropReason::NowhereToFlood, 1),
        }
        last.is_some()
    }
}

/// Truncates a frame. Pending segmentation or checksums are dropped, since they cannot be done any
/// more.
fn cut<F: Frame>(frame: &mut F, len: usize) {
    if len < frame.len() {
        frame.truncate(len);
        frame.set_offload(packet::Offload::default());
    }
}

impl<F: Frame> Host<F> for Forward<'_, F> {
    #[inline(always)]
    fn output(&mut self, context: Context<'_>, number: PortNo, frame: F, to_in_port: bool) {
        *context.sent = true;
        self.queue = context.queue;
        let bridge = self.bridge;
        let Some(port) = bridge.port(number) else {
            return self.cell.drop(DropReason::UnknownPort, 1);
        };
        if number == context.in_port && !to_in_port {
            return self.cell.drop(DropReason::IngressPort, 1);
        }
        if !port.plain && !port.only_shaped {
            self.counted = context.counted;
            self.note_tunnel(&context);
        }
        self.emit(context.mirrored, port, frame);
    }

    #[inline(always)]
    fn output_burst(
        &mut self,
        in_port: PortNo,
        number: PortNo,
        mirrored: u32,
        frames: &mut Vec<F>,
        lengths: Option<Lengths>,
    ) {
        match self.bridge.port(number) {
            Some(port) if port.plain && number != in_port => {
                let lengths = lengths.filter(|_| self.finished);
                (self.egress).push_burst(port.id.slot(), frames, lengths, self.cell);
            }
            Some(port) if port.only_shaped && number != in_port => {
                self.egress.stage_burst(port.id.slot(), frames, self.cell);
            }
            _ => self.output_run(in_port, number, mirrored, &mut frames.drain(..)),
        }
    }

    #[inline(always)]
    fn output_run(
        &mut self,
        in_port: PortNo,
        number: PortNo,
        mirrored: u32,
        frames: &mut impl ExactSizeIterator<Item = F>,
    ) {
        let count = frames.len() as u64;
        let reason = match self.bridge.port(number) {
            None => DropReason::UnknownPort,
            Some(_) if number == in_port => DropReason::IngressPort,
            Some(port) if port.plain => {
                return self.egress.push_run(port.id.slot(), frames, self.cell);
            }
            Some(port) if port.only_tunnel => {
                self.queue = None;
                let mut frames = frames.map(|frame| (frame, None));
                return self.send_run_by_tunnel(port, mirrored, &mut frames);
            }
            Some(port) => {
                // Frames of a run have no queue and no tunnel metadata; forget those of an earlier
                // frame.
                (self.queue, self.counted) = (None, 0);
                self.forget_tunnel(in_port);
                if let Some(device) = port.terminates.as_deref()
                    && port.only_terminates()
                {
                    return self.take_run_tunnelled(port, device, mirrored, frames);
                }
                return frames.for_each(|frame| self.emit(&mut { mirrored }, port, frame));
            }
        };
        frames.for_each(drop);
        self.cell.drop(reason, count);
    }

    #[inline(always)]
    fn sends_together(&self, ports: impl Iterator<Item = (usize, PortNo)> + Clone) -> u64 {
        match self.bridge.many_tunnels {
            true => self.find_tunnels(ports),
            false => 0,
        }
    }

    #[inline(always)]
    fn output_each<'w>(
        &mut self,
        in_port: PortNo,
        mirrored: u32,
        count: usize,
        frames: &mut impl Iterator<Item = (PortNo, F, Option<&'w TunnelWords>)>,
    ) {
        self.queue = None;
        let _stage = stages::enter(Stage::Tunnel, count);
        self.send_each_by_tunnel(in_port, mirrored, frames);
    }

    fn output_all(&mut self, context: Context<'_>, frame: F, flood: bool) {
        *context.sent = true;
        (self.queue, self.counted) = (context.queue, context.counted);
        self.note_tunnel(&context);
        let (in_port, mirrored) = (context.in_port, context.mirrored);
        let choose = |port: &PortState| normal::all_reaches(port, in_port, flood);
        self.send_to_each(frame, choose, |host, port, frame| {
            host.reached_local |= port.number == LOCAL;
            host.emit(mirrored, port, frame)
        });
    }

    fn port_is_live(&self, number: PortNo) -> bool {
        self.bridge.port(number).is_some_and(|port| port.is_live())
    }

    fn normal(&mut self, context: Context<'_>, mut frame: F) {
        let _stage = stages::enter(Stage::Normal, 1);
        *context.sent = true;
        (self.queue, self.counted) = (context.queue, context.counted);
        self.note_tunnel(&context);
        let front = match vlan::ethernet(&mut frame) {
            Ok(front) => front,
            Err(Malformed::Runt) => return self.cell.drop(DropReason::Runt, 1),
            Err(Malformed::TruncatedTag) => return self.cell.drop(DropReason::TruncatedTag, 1),
            Err(Malformed::NoBuffer) => return self.cell.drop(DropReason::NoBuffer, 1),
        };
        let bridge = self.bridge;
        let ingress = bridge.port(context.in_port);
        let mirrored = context.mirrored;
        match normal::decide(bridge, context.in_port, ingress, &front, self.second) {
            Err(reason) => self.cell.drop(reason, 1),
            Ok((Decision::Port(slot), inner)) => match self.snapshot.port(slot) {
                Some(port) if port.bridge == bridge.id.slot() => {
                    self.reached_local |= port.number == LOCAL;
                    self.emit_in_vlan(mirrored, port, front.tag, inner, frame);
                }
                _ => self.cell.drop(DropReason::LearnedPortGone, 1),
            },
            Ok((Decision::Flood, inner)) => {
                self.send_to_each(
                    frame,
                    |port| normal::floods_to(port, ingress, inner),
                    |host, port, frame| {
                        host.reached_local |= port.number == LOCAL;
                        host.emit_in_vlan(mirrored, port, front.tag, inner, frame);
                    },
                );
            }
        }
    }

    #[cold]
    fn are_first_here(&self) -> bool {
        !self.patched
    }

    #[cold]
    fn take_reached_local(&mut self) -> bool {
        std::mem::take(&mut self.reached_local)
    }

    const NORMAL_RUNS: bool = true;

    #[inline]
    fn normal_run(
        &mut self,
        in_port: PortNo,
        mirrored: u32,
        hot: &[MiniKey],
        frames: &mut impl ExactSizeIterator<Item = F>,
    ) {
        self.bridge_run(in_port, mirrored, hot, frames);
    }

    #[cold]
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &F) {
        self.packet_in(context, to, frame, None);
    }

    #[cold]
    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &F, rest: Frozen) {
        self.packet_in(context, to, frame, Some(Box::new(rest)));
    }

    #[inline]
    fn place(&self) -> ResumePoint {
        ResumePoint {
            bridge: self.bridge.id.0,
            depth: self.depth,
            received: self.received,
        }
    }

    #[cold]
    fn learn(&mut self, request: Request) -> bool {
        self.request(RequestKind::Rule(request))
    }

    #[inline]
    fn longer(&self) -> i32 {
        self.longer
    }

    #[inline]
    fn has_taught(&self) -> bool {
        self.taught
    }

    #[inline]
    fn track(
        &mut self,
        frame: &F,
        layers: &Layers,
        earlier: Earlier,
        request: &conntrack::Request<'_>,
    ) -> Tracked {
        let _stage = stages::enter(Stage::Track, 1);
        let now_ms = Host::<F>::now_ns(self) / 1_000_000;
        (self.tracker).track_again(frame, layers, earlier, request, now_ms)
    }

    fn tracker(&mut self) -> Option<(&Tracker, u64)> {
        let now_ms = Host::<F>::now_ns(self) / 1_000_000;
        Some((self.tracker, now_ms))
    }

    #[inline]
    fn carries(&self, number: PortNo) -> bool {
        let port = self.bridge.port(number);
        port.is_some_and(|port| !(port.plain || port.only_shaped || port.only_tunnel))
    }

    #[inline]
    fn mirrors(&self, number: PortNo) -> bool {
        let port = self.bridge.port(number);
        port.is_some_and(|port| port.mirror_out != 0)
    }

    #[inline]
    fn carry(&mut self, earlier: Earlier) {
        self.tracked = earlier;
    }

    #[inline]
    fn reads_tunnel(&self, number: PortNo) -> bool {
        let reads = |port: &PortState| match (&port.tunnel, port.only_tunnel) {
            (Some(tunnel), true) => tunnel.reads_packets,
            _ => !port.plain && !port.only_shaped,
        };
        self.bridge.keeps_tunnel && self.bridge.port(number).is_some_and(reads)
    }

    #[inline]
    fn output_tunnelled<'w>(
        &mut self,
        in_port: PortNo,
        number: PortNo,
        mirrored: u32,
        frames: &mut impl Iterator<Item = (F, &'w TunnelWords)>,
    ) {
        let reason = match self.bridge.port(number) {
            None => DropReason::UnknownPort,
            Some(_) if number == in_port => DropReason::IngressPort,
            Some(port) => return self.emit_tunnelled(in_port, port, mirrored, frames),
        };
        self.cell.drop(reason, frames.count() as u64);
    }

    #[cold]
    fn hold_fragment(
        &mut self,
        arrived: &Arrived<'_>,
        park: &mut dyn FnMut() -> Box<Parked<F>>,
    ) -> bool {
        let _stage = stages::enter(Stage::Track, 1);
        let now_ms = Host::<F>::now_ns(self) / 1_000_000;
        let bridge = self.bridge.id.0;
        let mut share = Some(self.patches.lend());
        let (taken, ended) = self.fragments.take(arrived, bridge, now_ms, || {
            let mut parked = park();
            parked.walks = share.take().unwrap_or_default();
            parked
        });
        self.patches.give_back(share.unwrap_or_default());
        self.patches.go_on(ended.into_iter(), fragments::expired());
        match taken {
            Taken::Held => true,
            Taken::Refused => false,
            Taken::Whole(all) => {
                let answer = fragments::track(self.tracker, &all, arrived, now_ms);
                let all = all.into_iter().map(|(_, held)| held);
                self.patches.go_on(all, answer);
                true
            }
        }
    }

    #[cold]
    fn connection_ended(&mut self, ended: Ended) -> bool {
        self.request(RequestKind::ConnectionEnded(ended))
    }

    #[cold]
    fn noted(&mut self, event: Event) {
        self.cell.noted(event);
    }

    #[cold]
    fn malformed(&mut self, reason: packet::parse::Malformed) {
        self.cell.malformed(reason);
    }

    #[cold]
    fn now_ns(&mut self) -> u64 {
        if self.now_ns == 0 {
            self.now_ns = self.clock.now_ns();
        }
        self.now_ns
    }

    #[inline]
    fn dropped(&mut self, reason: WalkDrop) {
        self.cell.drop_by_walk(reason);
    }
}

impl<F: Frame> Forward<'_, F> {
    fn request(&self, kind: RequestKind) -> bool {
        self.requests.push(WorkerRequest {
            bridge: self.bridge.id,
            worker: self.worker,
            kind,
        })
    }

    fn packet_in(
        &mut self,
        context: Context<'_>,
        to: &ToController,
        frame: &F,
        rest: Option<Box<Frozen>>,
    ) {
        let reason = if self.packet_out {
            to.reason_in_packet_out()
        } else {
            to.reason
        };
        if matches!(
            reason,
            PacketInReason::NoMatch | PacketInReason::TableMiss | PacketInReason::NoRule
        ) && self
            .bridge
            .port(context.in_port)
            .is_some_and(|port| port.flags.no_packet_in)
        {
            return self.cell.drop(DropReason::NoPacketIn, 1);
        }
        // All of it, whatever the action says, because no packet is buffered here for the
        // controller to refer to (1.3.5 section 6.1.2).
        let len = frame.len();
        let more = rest.as_ref().map_or(0, |rest| weight(rest));
        if !self.packet_ins.has_room(len + to.userdata.len() + more) {
            return self.cell.drop(DropReason::PacketInQueueFull, 1);
        }
        let mut key = Box::new(FlowKey::ZERO);
        context
            .valid
            .iter()
            .for_each(|word| key.words[word] = context.key.words[word]);
        let packet = PacketIn {
            bridge: self.bridge.id,
            in_port: context.in_port,
            table: context.table,
            cookie: context.cookie,
            reason,
            controller_id: to.controller_id,
            userdata: to.userdata.clone(),
            total_len: frame.len(),
            data: finished_bytes(frame, len),
            key,
            valid: context.valid,
            rest,
        };
        if self.packet_ins.push(packet) {
            self.cell.packet_ins.add(1);
        } else {
            self.cell.drop(DropReason::PacketInQueueFull, 1);
        }
    }
}

/// Returns a frame's first bytes as they would be on a wire, with checksums finished: a controller
/// that sends them back must not send an unfinished checksum.
fn finished_bytes<F: Frame>(frame: &F, len: usize) -> Vec<u8> {
    let finished = frame
        .offload()
        .partial_checksum
        .then(|| frame.duplicate())
        .flatten()
        .and_then(|mut copy| {
            let done = packet::checksum::finish_partial(&mut copy);
            done.then_some(copy)
        });
    let mut data = vec![0; len];
    let read = finished.as_ref().unwrap_or(frame).read_at(0, &mut data);
    debug_assert!(read, "`len` is within the frame");
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::HeapFrame;
    use packet::io::TxOutcome;
    use std::sync::Mutex;

    /// For each send, the number of frames, and whether they were sent as finished.
    type Sent = Arc<Mutex<Vec<(usize, bool)>>>;

    fn lengths_of(frames: &[HeapFrame]) -> Lengths {
        let mut lengths = Lengths::default();
        frames.iter().for_each(|frame| lengths.add(frame.len()));
        lengths
    }

    struct Device(Sent);

    impl Device {
        fn note(&self, frames: &mut Vec<HeapFrame>, finished: bool) -> TxOutcome {
            let mut sent = self.0.lock().expect("nobody failed");
            sent.push((frames.drain(..).count(), finished));
            TxOutcome::default()
        }
    }

    impl TxQueue<HeapFrame> for Device {
        fn send(&mut self, frames: &mut Vec<HeapFrame>) -> TxOutcome {
            self.note(frames, false)
        }
        fn send_finished(&mut self, frames: &mut Vec<HeapFrame>, lengths: Lengths) -> TxOutcome {
            assert_eq!(lengths, lengths_of(frames));
            self.note(frames, true)
        }
    }

    /// Lengths are passed only with the burst they belong to: not once others have joined it, nor
    /// with later ones.
    #[test]
    fn lengths_are_told_of_the_same_frames_only() {
        let sent = Sent::default();
        let counters = Arc::<WorkerCounters>::default();
        let (mut egress, cell) = (Egress::new(0, counters), Cell::default());
        let tx = Box::new(Device(Arc::clone(&sent)));
        egress.set(3, tx, Arc::default());
        let frames = |count: usize| -> Vec<HeapFrame> {
            let one = |at| HeapFrame::with_segments(&[&[0; 60], &[1; 20][..at % 20]]);
            (0..count).map(one).collect()
        };
        let push = |egress: &mut Egress<HeapFrame>, count: usize, finished: bool| {
            let mut frames = frames(count);
            let lengths = lengths_of(&frames);
            egress.push_burst(3, &mut frames, finished.then_some(lengths), &cell);
            assert!(frames.is_empty());
        };
        let told = || std::mem::take(&mut *sent.lock().expect("nobody failed"));

        push(&mut egress, 5, true);
        egress.flush(&cell);
        assert_eq!(told(), [(5, true)]);
        push(&mut egress, 5, false);
        egress.flush(&cell);
        assert_eq!(told(), [(5, false)], "the burst before was finished");
        push(&mut egress, 5, true);
        egress.push(3, frames(1).remove(0), &cell);
        egress.flush(&cell);
        assert_eq!(told(), [(6, false)], "one has joined");
        egress.push(3, frames(1).remove(0), &cell);
        push(&mut egress, 5, true);
        egress.flush(&cell);
        assert_eq!(told(), [(6, false)], "one was there");
        push(&mut egress, 5, true);
        egress.push_run(3, &mut frames(2).drain(..), &cell);
        push(&mut egress, 7, true);
        egress.flush(&cell);
        assert_eq!(told(), [(14, false)]);
        push(&mut egress, 5, true);
        assert_eq!(egress.discard(), 5);
        push(&mut egress, 5, false);
        egress.flush(&cell);
        assert_eq!(told(), [(5, false)], "those that were finished are gone");
        push(&mut egress, 9, true);
        egress.flush(&cell);
        assert_eq!(told(), [(9, true)]);
    }
}
