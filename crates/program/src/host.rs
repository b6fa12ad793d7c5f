//! The interface through which a walk uses the datapath around it.

use crate::actions::learn::{Ended, LearnOutcome, Request};
use crate::actions::{Op, PortNo, ToController};
use crate::exec::suspend::fragment::{Arrived, Parked};
use crate::exec::suspend::freeze::Frozen;
use crate::rule::Rule;
use conntrack::{Earlier, Request as TrackRequest, Tracked, Tracker};
use packet::io::Lengths;
use packet::mini_key::MiniKey;
use packet::parse::Layers;
use packet::tunnel::{TunnelInfo, TunnelWords};
use packet::{FlowKey, Frame, WordSet};

/// What a walk tells the host it calls.
pub struct Context<'a> {
    /// The packet's key as it is now. Only the words in `valid` are filled; others count as zero.
    pub key: &'a FlowKey,
    /// The words of `key` that are filled.
    pub valid: WordSet,
    /// The bridge's port that the packet came in by (not changed by resubmit), or a reserved
    /// number for packet-outs.
    pub in_port: PortNo,
    /// Table of the rule whose actions run.
    pub table: u8,
    /// Cookie of the rule whose actions run, `u64::MAX` for a table miss or a packet-out.
    pub cookie: u64,
    /// Queue chosen by set_queue.
    pub queue: Option<u32>,
    /// The length with which rules count the packet, less [`Host::longer`]; 0: its length as it is.
    pub counted: u32,
    /// Mirrors that have already had this packet, one bit each; the host maintains it.
    pub mirrored: &'a mut u32,
    /// Whether the packet has left by some port already; the host sets it when it sends.
    pub sent: &'a mut bool,
}

impl<'a> Context<'a> {
    /// Creates the context of a packet in a run whose rule has a single step. The key that the rule
    /// matched has not been kept.
    pub fn of_run(in_port: PortNo, mirrored: &'a mut u32, sent: &'a mut bool) -> Context<'a> {
        Context {
            key: &FlowKey::ZERO,
            valid: WordSet::EMPTY,
            in_port,
            table: 0,
            cookie: 0,
            queue: None,
            counted: 0,
            mirrored,
            sent,
        }
    }
}

/// Why a walk ended without sending the packet, or why an action could not be carried out.
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
    /// No memory to copy the packet for another output.
    NoBuffer,
    /// TTL ran out.
    TtlExpired,
    /// An action could not be carried out on this packet (no room for a tag, say).
    ActionFailed,
    /// Above the rate of a meter.
    Meter,
    /// A packet-in above the rate of a meter.
    MeterController,
    /// An IP fragment in a bridge that drops fragments (`OFPC_FRAG_DROP`).
    Fragment,
    /// Too many packets already wait for rules that they asked for.
    HeldTooMany,
    /// An action named a group that does not exist.
    NoGroup,
    /// A group none of whose buckets is live.
    NoLiveBucket,
    /// Groups nested in groups deeper than allowed.
    GroupTooDeep,
    /// Sent through the connection tracker, on to a table, more often than allowed.
    TooManyRecirculations,
}

impl DropReason {
    /// Number of variants.
    pub const COUNT: usize = 15;

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
    ];
}

/// Where a walk takes place, so that a held walk can be resumed there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResumePoint {
    /// The host's number for the bridge.
    pub bridge: u32,
    /// Number of patch ports passed so far.
    pub depth: u32,
    /// The host's number for the port by which the packet was received, whatever ports it has come
    /// by since.
    pub received: u32,
}

/// Countable events, other than drops, of rules that packets ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A packet is being held.
    Held,
    /// The rule that was asked for has been made.
    Learned,
    /// The rule was refused, for this reason.
    Refused(LearnOutcome),
    /// Control did not answer in time.
    NoAnswer,
    /// Too many requests are open already; the packet goes on without its rule.
    AskedTooMuch,
    /// Packets of its port have asked for too many rules lately; the packet goes on without.
    AskedTooOften,
}

/// The datapath as a walk sees it. Port numbers are those of the walk's bridge.
pub trait Host<F: Frame> {
    /// Sends a frame out of one port (physical, local or patch). Drops and counts it if the port is
    /// unknown, or is the ingress port and `to_in_port` is false.
    fn output(&mut self, context: Context<'_>, port: PortNo, frame: F, to_in_port: bool);

    /// Sends frames that share ingress port and mirrors so far, and whose last rule sends to this
    /// port. The keys that rules matched have not been kept.
    fn output_run(
        &mut self,
        in_port: PortNo,
        port: PortNo,
        mirrored: u32,
        frames: &mut impl ExactSizeIterator<Item = F>,
    ) {
        for frame in frames {
            let (mut mirrored, mut sent) = (mirrored, false);
            let context = Context::of_run(in_port, &mut mirrored, &mut sent);
            self.output(context, port, frame, false);
        }
    }

    /// Like [`Host::output_run`] for all of `frames`, which it leaves empty. It may take the
    /// vector's allocation and leave another. `lengths` are the lengths of exactly these frames,
    /// given only where they have not been edited.
    fn output_burst(
        &mut self,
        in_port: PortNo,
        port: PortNo,
        mirrored: u32,
        frames: &mut Vec<F>,
        lengths: Option<Lengths>,
    ) {
        let _ = lengths;
        self.output_run(in_port, port, mirrored, &mut frames.drain(..));
    }

    /// Returns which of these places' ports, bits by the places (below 64), are of many to which
    /// the host sends frames together ([`Host::output_each`]), and prefetches what that reads.
    #[inline(always)]
    fn sends_together(&self, ports: impl Iterator<Item = (usize, PortNo)> + Clone) -> u64 {
        drop(ports);
        0
    }

    /// Like [`Host::output_run`] for each of these `count` frames, in this order, to ports that
    /// [`Host::sends_together`] has named; like [`Host::output_tunnelled`] for those that have
    /// tunnel metadata. `in_port` is `PortNo::MAX` where they came by several ports, none by the
    /// one that it is sent to.
    fn output_each<'w>(
        &mut self,
        in_port: PortNo,
        mirrored: u32,
        count: usize,
        frames: &mut impl Iterator<Item = (PortNo, F, Option<&'w TunnelWords>)>,
    ) {
        let _ = count;
        for (port, frame, words) in frames {
            match words.filter(|_| self.reads_tunnel(port)) {
                Some(words) => {
                    let mut one = std::iter::once((frame, words));
                    self.output_tunnelled(in_port, port, mirrored, &mut one);
                }
                None => self.output_run(in_port, port, mirrored, &mut std::iter::once(frame)),
            }
        }
    }

    /// Sends a frame out of every port but the ingress one; if `flood`, not out of ports marked
    /// no-flood.
    fn output_all(&mut self, context: Context<'_>, frame: F, flood: bool);

    /// Returns whether a port (not a reserved number) exists, is up and has carrier, so that what
    /// is sent there may arrive.
    fn port_is_live(&self, port: PortNo) -> bool;

    /// Processes a frame by the learning switch (action NORMAL).
    fn normal(&mut self, context: Context<'_>, frame: F);

    /// Whether [`Host::normal_run`] is faster than [`Host::normal`] for each frame; otherwise such
    /// packets are walked, with their keys.
    const NORMAL_RUNS: bool = false;

    /// Processes frames by the learning switch. They share ingress port and mirrors so far, are of
    /// the common kinds, and met a rule that does nothing else. `hot` has the mini key of each
    /// frame. The keys that rules matched have not been kept.
    fn normal_run(
        &mut self,
        in_port: PortNo,
        mirrored: u32,
        hot: &[MiniKey],
        frames: &mut impl ExactSizeIterator<Item = F>,
    ) {
        let _ = hot;
        for frame in frames {
            let (mut mirrored, mut sent) = (mirrored, false);
            let context = Context::of_run(in_port, &mut mirrored, &mut sent);
            self.normal(context, frame);
        }
    }

    /// Returns whether the packets have come to the bridge themselves and not through a patch port,
    /// so that DHCP replies among them are for its local port
    /// ([`crate::table::Bridge::deliver_replies`]).
    fn are_first_here(&self) -> bool {
        true
    }

    /// Returns whether, since the last call, [`Host::output_all`] or [`Host::normal`] has sent a
    /// frame to the local port.
    fn take_reached_local(&mut self) -> bool {
        false
    }

    /// Sends a packet-in to the controllers; the frame stays with the walk.
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &F);

    /// Sends a packet-in to the controllers, one of which may send it back with the rest of its
    /// actions. The frame stays with the walk, which ends here.
    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &F, rest: Frozen) {
        drop(rest);
        self.controller(context, to, frame);
    }

    /// Returns where the walk takes place.
    fn place(&self) -> ResumePoint {
        ResumePoint::default()
    }

    /// Returns by how many bytes more than they have the packets of the current burst, or the walk
    /// that is resumed, are counted: one of [`crate::counters::DIFFERENCES`] or 0.
    fn longer(&self) -> i32 {
        0
    }

    /// Asks control for a rule; returns false when that is not possible now. The answer goes to
    /// [`crate::exec::Engine::answer`].
    fn learn(&mut self, request: Request) -> bool {
        drop(request);
        false
    }

    /// Returns whether the rules that the packet asks for have been made already, so that it need
    /// not ask.
    fn has_taught(&self) -> bool {
        false
    }

    /// Tells control that a rule has seen the end of a connection; returns false when that is not
    /// possible now.
    fn connection_ended(&mut self, ended: Ended) -> bool {
        drop(ended);
        false
    }

    /// Looks a packet's connection up in the connection tracker, or commits it there; `earlier` is
    /// what the packet's last such lookup said. The caller translates the packet.
    fn track(
        &mut self,
        frame: &F,
        layers: &Layers,
        earlier: Earlier,
        request: &TrackRequest<'_>,
    ) -> Tracked {
        let _ = (frame, layers, earlier, request);
        Tracked::default()
    }

    /// Returns the connection tracker and the time in milliseconds, for packets that are tracked
    /// together; None where each is to be given to [`Host::track`].
    fn tracker(&mut self) -> Option<(&Tracker, u64)> {
        None
    }

    /// Offers a fragment that has come to a `ct` step. To hold it, the host calls `park`, once,
    /// which ends its walk and returns it. When its datagram is whole or its time is over, the host
    /// passes it to [`crate::exec::Engine::resume_fragment`]. Returns whether it has called `park`.
    fn hold_fragment(
        &mut self,
        arrived: &Arrived<'_>,
        park: &mut dyn FnMut() -> Box<Parked<F>>,
    ) -> bool {
        let _ = (arrived, park);
        false
    }

    /// Returns whether [`Host::carry`] matters for frames that are sent to a port.
    fn carries(&self, port: PortNo) -> bool {
        let _ = port;
        false
    }

    /// Returns whether a mirror may take frames that are sent to a port: then a frame that goes to
    /// several ports has to be told which mirrors have had it.
    fn mirrors(&self, port: PortNo) -> bool {
        let _ = port;
        false
    }

    /// Tells, before a frame is sent, what the tracker has last said of it, and after that the
    /// default. A host that passes frames on to another bridge gives it to
    /// [`crate::exec::Engine::burst_from`] there.
    fn carry(&mut self, earlier: Earlier) {
        let _ = earlier;
    }

    /// Returns whether a port sends by packets' tunnel metadata, so that
    /// [`Host::output_tunnelled`] is to be called for packets that have some.
    fn reads_tunnel(&self, port: PortNo) -> bool {
        let _ = port;
        false
    }

    /// Like [`Host::output_run`], for frames with tunnel metadata. `in_port` is `PortNo::MAX` where
    /// they came by several ports, none of which is `port`.
    fn output_tunnelled<'w>(
        &mut self,
        in_port: PortNo,
        port: PortNo,
        mirrored: u32,
        frames: &mut impl Iterator<Item = (F, &'w TunnelWords)>,
    ) {
        const VALID: WordSet = TunnelInfo::WORDS.union(packet::tunnel::OPTION_WORDS);
        for (frame, words) in frames {
            let (mut mirrored, mut sent) = (mirrored, false);
            let mut key = FlowKey::ZERO;
            words.fill(&mut key, VALID);
            let context = Context {
                key: &key,
                valid: VALID,
                ..Context::of_run(in_port, &mut mirrored, &mut sent)
            };
            self.output(context, port, frame, false);
        }
    }

    /// Tells of a packet's lookup in `table` and the rule it found. `key` is the key that was
    /// looked up, where the packet has a whole one. For hosts that trace a packet's way; others
    /// need do nothing.
    #[inline(always)]
    fn looked_up(&mut self, table: u8, key: Option<&FlowKey>, rule: Option<&Rule>) {
        let _ = (table, key, rule);
    }

    /// Whether the host uses [`Host::looked_up`], so that keys must be assembled for it.
    const WATCHES: bool = false;

    /// Whether the host is told of each step, and each lookup is made for one packet.
    const FOLLOWS: bool = false;

    /// Tells, before a step runs, the step, the packet's key, and the top of the walk's stack. Only
    /// called for a host with [`Host::FOLLOWS`].
    #[inline(always)]
    fn steps(&mut self, op: &Op, key: &FlowKey, top: Option<u128>) {
        let _ = (op, key, top);
    }

    /// Counts an event.
    fn noted(&mut self, event: Event) {
        let _ = event;
    }

    /// Counts a packet with malformed headers. It is still walked, with the fields of the broken
    /// header zero, unless it is not even a frame.
    fn malformed(&mut self, reason: packet::parse::Malformed);

    /// Returns the datapath's clock in nanoseconds, read once for each burst; meters use it.
    fn now_ns(&mut self) -> u64;

    /// Counts a drop. The frame is gone already, or about to be.
    fn dropped(&mut self, reason: DropReason);
}
