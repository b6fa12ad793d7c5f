//! What a worker does with frames within one turn.

use super::mailbox::{Mailbox, PacketOut, Shared};
use crate::counters::{Cell, DropReason};
use crate::forward::{Again, Batch, Egress, Forward, Patches};
use crate::fragments;
use crate::learn_requests::{RequestKind, WorkerRequest};
use crate::port::{BridgeId, PortId};
use crate::shape::Released;
use crate::snapshot::{Behind, BridgeState, PortState, Snapshot};
use crate::steering::Origin;
use crate::tunnel::{self, Arrivals, Sending};
use conntrack::{Earlier, Tracked};
use packet::io::BURST;
use packet::key::at;
use packet::tunnel::TunnelWords;
use packet::{FlowKey, Frame, WordSet};
use program::actions::PortNo;
use program::epoch::Guard;
use program::exec::{Engine, Parked, Thaw};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of an Ethernet header.
const ETHERNET_HEADER: usize = 14;
/// Most packet-outs executed in a turn.
const PACKET_OUTS: usize = BURST;

/// State of one turn.
pub(crate) struct Turn<'a, F: Frame> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) guard: &'a Guard<'a>,
    pub(crate) shared: &'a Shared<F>,
    pub(crate) mailbox: &'a Mailbox<F>,
    pub(crate) cell: &'a Cell,
    pub(crate) engine: &'a mut Engine<F>,
    pub(crate) egress: &'a mut Egress<F>,
    pub(crate) patches: &'a mut Patches<F>,
    pub(crate) sending: &'a mut Sending<F>,
    /// Whether the current frames were received finished (nothing left to do).
    pub(crate) finished: bool,
    /// Whether the current frames have come through patch ports from a packet-out.
    pub(crate) packet_out: bool,
    /// Whether the current frames have come by a patch port.
    pub(crate) patched: bool,
    /// Slot of the port by which the current frames were received, whatever ports they have come by
    /// since.
    pub(crate) received: u32,
    /// By how many bytes more than they have the current frames are counted.
    pub(crate) longer: i32,
    /// The clock, at most [`super::TIME_INTERVAL`] old.
    pub(crate) now_ms: u64,
    /// Number of packet-outs whose packets wait for rules; they count as done when these are.
    pub(crate) outs_held: &'a mut u64,
}

impl<'a, F: Frame> Turn<'a, F> {
    /// Processes a received burst to its end: walks, patch ports, transmit batches. `finished`:
    /// whether frames were received with nothing left to do.
    #[inline]
    pub(super) fn burst(&mut self, port: &'a PortState, frames: &mut Vec<F>, finished: bool) {
        self.begin(frames.len());
        self.finished = finished;
        self.received = port.id.slot();
        self.arrive(port, 0, frames);
        self.finished = false;
        self.finish();
    }

    /// [`Turn::burst`] for frames that another worker has received, by a port that may have gone
    /// meanwhile. Leaves `frames` empty.
    #[inline]
    pub(super) fn burst_of(&mut self, port: PortId, frames: &mut Vec<F>, finished: bool) {
        let state = self.snapshot.port(port.slot());
        match state.filter(|state| state.id == port) {
            Some(state) => self.burst(state, frames, finished),
            None => self.cell.drop(DropReason::PortGone, frames.len() as u64),
        }
        frames.clear();
    }

    /// Charges the queue by which another worker has received frames for the cycles that these
    /// took.
    #[inline]
    pub(super) fn charge(&self, origin: Origin, cycles: u64) {
        let state = self.snapshot.port(origin.port.slot());
        let state = state.filter(|state| state.id == origin.port);
        if let Some(taken) = state.and_then(|state| state.taken.get(usize::from(origin.queue))) {
            taken.fetch_add(cycles, Ordering::Relaxed);
        }
    }

    /// Returns whether packets are held that are neither sent nor dropped.
    pub(super) fn holds(&self) -> bool {
        self.engine.is_waiting() || self.sending.is_waiting()
    }

    /// Completes all outputs: through patch ports, into shapers, out by devices.
    #[inline]
    pub(crate) fn finish(&mut self) {
        loop {
            self.follow_patches();
            self.egress.flush(self.cell);
            if !self.egress.shaping.has_released() {
                return;
            }
            self.release();
        }
    }

    /// Does the owner's part for shaped ports: sends what may leave.
    #[cold]
    pub(super) fn serve_shaped(&mut self) {
        self.egress.serve(self.cell);
        self.let_go();
    }

    /// Processes frames that have left shaped patch ports: each as a received one, independent of
    /// others in this turn.
    #[cold]
    pub(super) fn let_go(&mut self) {
        self.begin(self.egress.shaping.released());
        self.finish();
    }

    /// Passes frames that have left shaped patch ports to their peers.
    #[cold]
    fn release(&mut self) {
        let (cell, snapshot) = (self.cell, self.snapshot);
        for Released { slot, depth, frame } in self.egress.shaping.take_released() {
            match snapshot.port(slot).map(|port| (port, port.behind)) {
                Some((port, Behind::Patch(Some(peer)))) => {
                    let counters = port.counters.of(self.guard.index());
                    // The port's queue kept neither what the tracker said nor a length to count.
                    let (earlier, length) = (Earlier::default(), frame.len());
                    self.patches
                        .send(counters, peer, depth, frame, length, earlier, cell);
                }
                Some((_, Behind::Patch(None))) => cell.drop(DropReason::NoPatchPeer, 1),
                _ => cell.drop(DropReason::PortGone, 1),
            }
        }
    }

    pub(crate) fn begin(&mut self, frames: usize) {
        self.patches.begin(frames);
    }

    /// Returns a host to be used outside a walk.
    pub(crate) fn forward(&mut self, bridge: &'a BridgeState, depth: u32) -> Forward<'_, F> {
        self.host(bridge, depth).1.forward
    }

    /// Walks what a packet-out has sent through patch ports.
    pub(super) fn follow_packet_out(&mut self) {
        self.packet_out = true;
        self.follow_patches();
        self.packet_out = false;
    }

    fn follow_patches(&mut self) {
        self.follow_batches();
        while let Some((fragment, answer)) = self.patches.ready() {
            self.go_on_tracked(*fragment, &answer);
        }
    }

    /// Has fragments go on that have waited at `ct` for too long.
    #[cold]
    pub(super) fn expire_fragments(&mut self) {
        self.begin(0);
        let expired = self.shared.fragments.expire(self.now_ms, BURST);
        self.patches
            .go_on(expired.into_iter(), fragments::expired());
        self.finish();
    }

    /// Resumes a fragment that has waited at `ct`.
    #[cold]
    fn go_on_tracked(&mut self, fragment: Parked<F>, answer: &Tracked) {
        self.patches.give_back(fragment.walks);
        let place = fragment.place();
        let id = BridgeId(place.bridge);
        let bridge = self.snapshot.bridge(id.slot());
        let Some(bridge) = bridge.filter(|bridge| bridge.id == id) else {
            return self.cell.drop(DropReason::BridgeGone, 1);
        };
        let own = std::mem::replace(&mut self.packet_out, fragment.is_of_packet_out());
        self.patched = place.depth > 0;
        self.received = place.received;
        let (engine, mut host) = self.host(bridge, place.depth);
        engine.resume_fragment(
            fragment,
            answer,
            &bridge.program,
            host.guard,
            host.now_ms,
            &mut host.forward,
        );
        self.patched = false;
        self.follow_batches();
        self.packet_out = own;
    }

    fn follow_batches(&mut self) {
        while let Some(batch) = self.patches.pop() {
            let Batch {
                slot,
                depth,
                again,
                mirrored,
                longer,
                mut frames,
                mut arrivals,
                mut tracked,
            } = batch;
            self.mailbox.counters.patched.add(frames.len() as u64);
            self.patches.came(again);
            self.longer = longer;
            self.patched = again == Again::Patch;
            match again {
                Again::Inner => {
                    if self.snapshot.monitored {
                        self.take_tunnel_probes(&mut frames, &mut arrivals);
                    }
                    if !frames.is_empty() {
                        self.come_by(slot, depth, &mut frames, &arrivals);
                    }
                }
                Again::Patch | Again::Outer => match self.snapshot.port(slot) {
                    Some(port) if tracked.is_empty() => {
                        let outer = (again == Again::Outer).then_some(mirrored);
                        self.enter(port, depth, &mut frames, outer);
                    }
                    Some(port) => self.come_tracked(port, depth, &mut frames, &tracked),
                    None => self.cell.drop(DropReason::NoPatchPeer, frames.len() as u64),
                },
            }
            frames.clear();
            arrivals.clear();
            tracked.clear();
            self.patches.recycle((frames, arrivals, tracked));
        }
        (self.longer, self.patched) = (0, false);
    }

    /// Processes frames that come in by a port. Leaves `frames` empty.
    #[inline]
    fn arrive(&mut self, port: &'a PortState, depth: u32, frames: &mut Vec<F>) {
        self.enter(port, depth, frames, None);
    }

    /// Processes decapsulated frames that come in by tunnel ports of a bridge. Leaves `frames`
    /// empty.
    fn come_by(&mut self, bridge: u32, depth: u32, frames: &mut Vec<F>, arrivals: &Arrivals) {
        let gone = (DropReason::PortGone, frames.len() as u64);
        let slots = arrivals.slots();
        let (Some(&first), Some(bridge)) = (slots.first(), self.snapshot.bridge(bridge)) else {
            return self.cell.drop(gone.0, gone.1);
        };
        let looks = bridge.looks_at_tunnels();
        if !looks && slots.iter().all(|slot| *slot == first) {
            return match self.snapshot.port(first) {
                Some(port) => self.arrive(port, depth, frames),
                None => self.cell.drop(gone.0, gone.1),
            };
        }
        let snapshot = self.snapshot;
        let is_plain = |port: &&PortState| port.plain_ingress;
        let port = |slot: &u32| snapshot.port(*slot).filter(is_plain);
        let mut ports: SmallVec<[&PortState; BURST]> = SmallVec::new();
        ports.extend(slots.iter().map_while(port));
        if ports.len() == slots.len() {
            return self.come_together(bridge, depth, frames, arrivals, &ports, looks);
        }
        // One by one, because the code that drops frames does not know their tunnel metadata.
        let mut one = Vec::with_capacity(1);
        for (index, (frame, slot)) in frames.drain(..).zip(slots).enumerate() {
            let Some(port) = snapshot.port(*slot) else {
                self.cell.drop(DropReason::PortGone, 1);
                continue;
            };
            one.push(frame);
            self.come_by_one(port, bridge, depth, &mut one, (arrivals, index));
        }
    }

    /// Processes frames that came by these tunnel ports of a bridge, none of which drops frames.
    /// `looks`: whether their tunnel metadata matter.
    fn come_together(
        &mut self,
        bridge: &'a BridgeState,
        depth: u32,
        frames: &mut Vec<F>,
        arrivals: &Arrivals,
        ports: &[&PortState],
        looks: bool,
    ) {
        let (map, guard, now_ms) = (bridge.options.as_ref(), self.guard, self.now_ms);
        for (frame, port) in frames.iter().zip(ports) {
            let counters = port.counters.of(guard.index());
            counters.rx_packets.add(1);
            counters.rx_bytes.add(frame.len() as u64);
        }
        let program = &bridge.program;
        let (engine, mut host) = self.host(bridge, depth);
        let forward = &mut host.forward;
        // The flow control field depends on each packet's port.
        if bridge.options_fit && !bridge.keeps_fcf {
            let numbers: SmallVec<[PortNo; BURST]> = ports.iter().map(|port| port.number).collect();
            let say = |index: usize, words: &mut TunnelWords| *words = *arrivals.words(index);
            let say = looks.then_some(say);
            return engine.burst_by_tunnels(program, guard, &numbers, frames, say, now_ms, forward);
        }
        // If one may ask for rules all are walked in order.
        let learns = |port: &&&PortState| program.learns_from(port.number);
        let asking = ports.iter().find(learns).or(ports.first());
        let in_port = asking.map_or(0, |port| port.number);
        let begin = |index: usize, key: &mut FlowKey, _: &mut Earlier| {
            arrivals.to_key(index, map, key);
            key.set_u32(at::IN_PORT, ports[index].number);
        };
        let given = tunnel::WORDS;
        engine.burst_from(
            program, guard, in_port, frames, given, begin, 0, now_ms, forward,
        );
    }

    /// Processes one frame that came by a tunnel port, with all checks.
    #[cold]
    fn come_by_one(
        &mut self,
        port: &'a PortState,
        bridge: &'a BridgeState,
        depth: u32,
        one: &mut Vec<F>,
        (arrivals, index): (&Arrivals, usize),
    ) {
        if port.mirror_in != 0 && bridge.keeps_tunnel {
            self.sending.say(arrivals.info(index));
        }
        let map = bridge.options.as_ref();
        let begin = |_: usize, key: &mut FlowKey, _: &mut Earlier| arrivals.to_key(index, map, key);
        self.come_alone(port, bridge, depth, one, tunnel::WORDS, begin);
    }

    /// Processes frames that come in by a patch port and that rules of another bridge have tracked:
    /// `tracked` says what the tracker has said of the first ones. Leaves `frames` empty.
    #[cold]
    fn come_tracked(
        &mut self,
        port: &'a PortState,
        depth: u32,
        frames: &mut Vec<F>,
        tracked: &[Earlier],
    ) {
        let Some(bridge) = self.snapshot.bridge(port.bridge) else {
            return (self.cell).drop(DropReason::PortGone, frames.len() as u64);
        };
        let said = |index: usize| tracked.get(index).copied().unwrap_or_default();
        let policed = port.policing.ingress.is_some();
        if port.mirror_in == 0 && !port.flags.refuses() && !policed {
            let (guard, now_ms) = (self.guard, self.now_ms);
            let counters = port.counters.of(guard.index());
            counters.rx_packets.add(frames.len() as u64);
            counters.rx_bytes.add(self.counted(frames));
            let begin = |index: usize, _: &mut FlowKey, earlier: &mut Earlier| {
                *earlier = said(index);
            };
            let (engine, mut host) = self.host(bridge, depth);
            let (program, forward) = (&bridge.program, &mut host.forward);
            let (number, given) = (port.number, WordSet::EMPTY);
            return engine.burst_from(
                program, guard, number, frames, given, begin, 0, now_ms, forward,
            );
        }
        // One by one, because the code that drops frames does not know of connections.
        self.sending.forget_said();
        let mut one = Vec::with_capacity(1);
        for (index, frame) in frames.drain(..).enumerate() {
            one.push(frame);
            let begin = |_: usize, _: &mut FlowKey, earlier: &mut Earlier| *earlier = said(index);
            self.come_alone(port, bridge, depth, &mut one, WordSet::EMPTY, begin);
        }
    }

    /// Processes one frame with all checks; `begin` as for [`Engine::burst_from`].
    fn come_alone(
        &mut self,
        port: &'a PortState,
        bridge: &'a BridgeState,
        depth: u32,
        one: &mut Vec<F>,
        given: WordSet,
        begin: impl FnMut(usize, &mut FlowKey, &mut Earlier),
    ) {
        let (guard, now_ms) = (self.guard, self.now_ms);
        let counters = port.counters.of(guard.index());
        counters.rx_packets.add(1);
        counters.rx_bytes.add(self.counted(one));
        if port.flags.refuses() {
            self.refuse(port, one);
        }
        if let Some(policer) = port.policing.ingress.as_deref() {
            self.police(port, policer, one);
        }
        let mut mirrored = 0;
        if let ([frame], true) = (&mut one[..], port.mirror_in != 0) {
            let mut forward = self.forward(bridge, depth);
            forward.mirror(&mut mirrored, port, port.mirror_in, frame);
        }
        let (engine, mut host) = self.host(bridge, depth);
        let (program, forward) = (&bridge.program, &mut host.forward);
        engine.burst_from(
            program,
            guard,
            port.number,
            one,
            given,
            begin,
            mirrored,
            now_ms,
            forward,
        );
    }

    /// Does [`Turn::arrive`]; or, given the mirrors that have had them, the same for frames with a
    /// tunnel's header, which the port's device has not received and so does not count or police.
    #[inline]
    fn enter(&mut self, port: &'a PortState, depth: u32, frames: &mut Vec<F>, outer: Option<u32>) {
        let counters = match outer {
            None => Some(port.counters.of(self.guard.index())),
            Some(_) => None,
        };
        let count = |bytes: u64| {
            if let Some(counters) = counters {
                counters.rx_bytes.add(bytes);
            }
        };
        if let Some(counters) = counters {
            counters.rx_packets.add(frames.len() as u64);
        }
        if let (Some(monitor), None) = (port.monitor.as_deref(), outer) {
            let taken = self.take_probes(port, monitor, frames);
            count(taken);
            if frames.is_empty() {
                return;
            }
        }
        let policer = match outer {
            None => port.policing.ingress.as_deref(),
            Some(_) => None,
        };
        let mirrored = outer.unwrap_or(0);
        let plain = port.mirror_in == 0 && !port.flags.refuses() && policer.is_none();
        if !plain {
            count(self.counted(frames));
        }
        if port.flags.refuses() {
            self.refuse(port, frames);
        }
        if let Some(policer) = policer {
            self.police(port, policer, frames);
        }
        let Some(bridge) = self.snapshot.bridge(port.bridge) else {
            if plain {
                count(self.counted(frames));
            }
            self.cell.drop(DropReason::PortGone, frames.len() as u64);
            return frames.clear();
        };
        if port.mirror_in == 0 {
            let longer = self.longer_by(frames.len());
            let (engine, mut host) = self.host(bridge, depth);
            let received = engine.burst(
                &bridge.program,
                host.guard,
                port.number,
                frames,
                mirrored,
                host.now_ms,
                &mut host.forward,
            );
            if plain {
                count(received.wrapping_add_signed(longer));
            }
        } else {
            self.arrive_mirrored(port, bridge, depth, mirrored, frames);
        }
    }

    /// Returns by how much more than they have so many of the present frames are counted.
    #[inline]
    fn longer_by(&self, count: usize) -> i64 {
        i64::from(self.longer) * count as i64
    }

    /// Returns the bytes with which frames are counted.
    fn counted(&self, frames: &[F]) -> u64 {
        bytes(frames).wrapping_add_signed(self.longer_by(frames.len()))
    }

    /// Drops what the port's state refuses.
    #[cold]
    fn refuse(&mut self, port: &PortState, frames: &mut Vec<F>) {
        const STP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];
        let before = frames.len();
        frames.retain(|frame| {
            let mut dst = [0; 6];
            let refused = if frame.read_at(0, &mut dst) && dst == STP {
                port.flags.no_recv_stp
            } else {
                port.flags.no_recv
            };
            !port.flags.down && !refused
        });
        let refused = (before - frames.len()) as u64;
        port.counters.of(self.guard.index()).rx_refused.add(refused);
        self.cell.drop(
            if port.flags.down {
                DropReason::PortDown
            } else if port.reserved {
                DropReason::MirrorPort
            } else {
                DropReason::NoReceive
            },
            refused,
        );
    }

    /// Processes frames that come in by a port that mirrors select: those that have gone to the
    /// same mirrors are walked together.
    #[cold]
    fn arrive_mirrored(
        &mut self,
        port: &'a PortState,
        bridge: &'a BridgeState,
        depth: u32,
        before: u32,
        frames: &mut Vec<F>,
    ) {
        self.sending.forget_said();
        let (engine, mut host) = self.host(bridge, depth);
        let mut group = Vec::with_capacity(frames.len());
        let mut group_mirrored = before;
        for mut frame in frames.drain(..) {
            let mut mirrored = before;
            host.forward
                .mirror(&mut mirrored, port, port.mirror_in, &mut frame);
            if mirrored != group_mirrored && !group.is_empty() {
                let program = &bridge.program;
                engine.burst(
                    program,
                    host.guard,
                    port.number,
                    &mut group,
                    group_mirrored,
                    host.now_ms,
                    &mut host.forward,
                );
            }
            group_mirrored = mirrored;
            group.push(frame);
        }
        engine.burst(
            &bridge.program,
            host.guard,
            port.number,
            &mut group,
            group_mirrored,
            host.now_ms,
            &mut host.forward,
        );
    }

    #[inline(always)]
    pub(super) fn host(
        &mut self,
        bridge: &'a BridgeState,
        depth: u32,
    ) -> (&mut Engine<F>, TurnHost<'_, F>) {
        let forward = Forward {
            snapshot: self.snapshot,
            bridge,
            egress: self.egress,
            patches: self.patches,
            cell: self.cell,
            worker: self.guard.index(),
            packet_ins: &self.mailbox.packet_ins,
            requests: &self.mailbox.requests,
            second: (self.now_ms / 1000) as u32,
            queue: None,
            counted: 0,
            longer: self.longer,
            clock: &self.shared.clock,
            now_ns: 0,
            depth,
            received: self.received,
            finished: self.finished,
            packet_out: self.packet_out,
            patched: self.patched,
            reached_local: false,
            taught: false,
            sending: self.sending,
            asked: &self.shared.asked,
            tracker: &self.shared.tracker,
            fragments: &self.shared.fragments,
            tracked: Earlier::default(),
        };
        (
            self.engine,
            TurnHost {
                forward,
                guard: self.guard,
                now_ms: self.now_ms,
            },
        )
    }

    /// Executes packet-outs, of which `waiting` were there before this turn's epoch began.
    pub(super) fn packet_outs(&mut self, waiting: usize) {
        let mut done = Done(&self.shared.packet_outs_done, 0);
        self.begin(0);
        for _ in 0..waiting.min(PACKET_OUTS) {
            let Some(out) = self.mailbox.packet_outs.pop() else {
                break;
            };
            done.1 += 1;
            self.patches.join(1);
            let held = self.engine.held().0;
            self.packet_out(out);
            self.follow_packet_out();
            if self.engine.held().0 > held {
                *self.outs_held += 1;
                done.1 -= 1;
            }
        }
        self.finish();
    }

    /// Resumes packets that have waited for a rule.
    #[cold]
    pub(super) fn go_on(&mut self) {
        while let Some(answer) = self.mailbox.answers.pop() {
            self.engine.answer(answer);
        }
        self.begin(0);
        let cell = self.cell;
        self.engine
            .settle(self.guard, self.now_ms, &mut |event| cell.noted(event));
        let (requests, worker) = (&self.mailbox.requests, self.guard.index());
        self.engine.ask_deferred(self.now_ms, |bridge, request| {
            requests.push(WorkerRequest {
                bridge: BridgeId(bridge),
                worker,
                kind: RequestKind::Rule(request),
            })
        });
        while let Some(held) = self.engine.release() {
            self.patches.join(1);
            let place = held.place();
            let id = BridgeId(place.bridge);
            let bridge = self.snapshot.bridge(id.slot());
            let Some(bridge) = bridge.filter(|bridge| bridge.id == id) else {
                self.cell.drop(DropReason::BridgeGone, 1);
                continue;
            };
            let of_packet_out = held.is_of_packet_out();
            (self.longer, self.patched) = (held.longer(), place.depth > 0);
            self.received = place.received;
            let (engine, mut host) = self.host(bridge, place.depth);
            engine.resume(
                held,
                &bridge.program,
                host.guard,
                host.now_ms,
                &mut host.forward,
            );
            (self.longer, self.patched) = (0, false);
            if of_packet_out {
                self.follow_packet_out();
            }
            self.follow_patches();
        }
        self.finish();
        if self.engine.held().0 == 0 {
            let done = std::mem::take(self.outs_held);
            let count = &self.shared.packet_outs_done;
            count.fetch_add(done, Ordering::Release);
        }
    }

    fn packet_out(&mut self, out: PacketOut) {
        let Some(bridge) = self
            .snapshot
            .bridge(out.bridge.slot())
            .filter(|bridge| bridge.id == out.bridge)
        else {
            return self.cell.drop(DropReason::BridgeGone, 1);
        };
        // Without an Ethernet header there is nothing to look up, edit or send.
        if out.data.len() < ETHERNET_HEADER {
            self.cell.packet_outs.add(1);
            return self.cell.drop(DropReason::Runt, 1);
        }
        let Some(frame) = (self.shared.allocate)(&out.data) else {
            return self.cell.drop(DropReason::NoBuffer, 1);
        };
        self.cell.packet_outs.add(1);
        let (engine, mut host) = self.host(bridge, 0);
        if let Some(rest) = out.rest {
            let (rest, metadata) = *rest;
            let thaw = Thaw {
                frame,
                metadata: &metadata,
                rest,
            };
            let (guard, now_ms) = (host.guard, host.now_ms);
            return engine.thaw(&bridge.program, guard, thaw, now_ms, &mut host.forward);
        }
        let then;
        let guard = match &out.moment {
            None => host.guard,
            Some(moment) => {
                host.forward.taught = moment.taught;
                then = host.guard.in_pinned(&moment.pinned, moment.epoch);
                &then
            }
        };
        let (program, now_ms) = (&bridge.program, host.now_ms);
        let (ops, forward) = (&out.ops, &mut host.forward);
        match &out.metadata {
            Some(metadata) => {
                engine.run_ops_with(program, guard, metadata, frame, ops, now_ms, forward)
            }
            None => engine.run_ops(program, guard, out.in_port, frame, ops, now_ms, forward),
        }
    }
}

/// Returns the bytes of all frames.
fn bytes<F: Frame>(frames: &[F]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

/// Counts packet-outs as done when dropped, also when executing them panicked.
struct Done<'a>(&'a AtomicU64, u64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1, Ordering::Release);
    }
}

/// A host, and what its walk needs beside it.
pub(super) struct TurnHost<'a, F: Frame> {
    pub(super) forward: Forward<'a, F>,
    pub(super) guard: &'a Guard<'a>,
    pub(super) now_ms: u64,
}
