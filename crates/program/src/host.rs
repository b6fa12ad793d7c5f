//! What a walk asks of the datapath around it.

use crate::actions::learn::{Ended, Request, Verdict};
use crate::actions::{Op, PortNo, ToController};
use crate::exec::suspend::freeze::Frozen;
use crate::rule::Rule;
use packet::io::Lengths;
use packet::mini_key::MiniKey;
use packet::{FlowKey, Frame, WordSet};

/// What a host may know about the walk that calls it.
pub struct Context<'a> {
    /// The packet's key as it is now; only the words in `valid` mean something, others count as
    /// zero.
    pub key: &'a FlowKey,
    /// The words of `key` that are filled.
    pub valid: WordSet,
    /// The bridge's port that the packet came in by (not changed by resubmit), or a reserved
    /// number for packet-outs.
    pub in_port: PortNo,
    /// Table of the rule that acts.
    pub table: u8,
    /// Cookie of the rule that acts, `u64::MAX` for a table miss or a packet-out.
    pub cookie: u64,
    /// Queue chosen by set_queue.
    pub queue: Option<u32>,
    /// Mirrors that have had this packet, a bit each; the host keeps it.
    pub mirrored: &'a mut u32,
    /// Whether the packet has left by some port already; the host sets it when it sends.
    pub sent: &'a mut bool,
}

impl<'a> Context<'a> {
    /// That of a packet of a run, whose rule did one thing only: what the rule matched on has not
    /// been kept.
    pub fn of_run(in_port: PortNo, mirrored: &'a mut u32, sent: &'a mut bool) -> Context<'a> {
        Context {
            key: &FlowKey::ZERO,
            valid: WordSet::EMPTY,
            in_port,
            table: 0,
            cookie: 0,
            queue: None,
            mirrored,
            sent,
        }
    }
}

/// Why a walk ended without the packet leaving, or a step could not be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// No rule, and the table drops what it has no rule for.
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
    /// An IP fragment, where the bridge drops them (`OFPC_FRAG_DROP`).
    Fragment,
    /// Too many packets wait for rules that they have asked for.
    HeldTooMany,
    /// A group that there is not.
    NoGroup,
    /// A group none of whose buckets is live.
    NoLiveBucket,
    /// Groups behind groups, deeper than allowed.
    GroupTooDeep,
}

impl DropReason {
    /// How many kinds there are.
    pub const COUNT: usize = 14;

    /// Names for counters, in the order of the variants.
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
    ];
}

/// Where a walk takes place, so that one which waits finds its way back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The host's name for the bridge.
    pub bridge: u32,
    /// Patch ports passed.
    pub depth: u32,
}

/// What is worth counting about rules that packets ask for, beside drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A packet waits.
    Held,
    /// A rule that was asked for is there.
    Learned,
    /// It is not, for this reason.
    Refused(Verdict),
    /// Control did not answer in time.
    NoAnswer,
    /// Too much was asked for already; the packet goes on without.
    AskedTooMuch,
}

/// The datapath, as a walk sees it. All ports are numbers of the walk's bridge.
pub trait Host<F: Frame> {
    /// Sends out of one port (physical, local or patch). An unknown port drops and counts. Never
    /// the ingress port unless `to_in_port`.
    fn output(&mut self, context: Context<'_>, port: PortNo, frame: F, to_in_port: bool);

    /// Sends frames that all came in by `in_port`, all have been to the same mirrors, and all met a
    /// rule that sends to this port last. What rules matched on has not been kept.
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

    /// [`Host::output_run`] for all of `frames`, which it leaves empty. It may take the vector's
    /// memory and leave other. `lengths` are those of just these frames, where they go as they
    /// came.
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

    /// Sends out of every port but the ingress one, without those marked no-flood when `flood`.
    fn output_all(&mut self, context: Context<'_>, frame: F, flood: bool);

    /// Whether a port, not a reserved one, exists, is up and has carrier, so that what is sent
    /// there may arrive.
    fn port_is_live(&self, port: PortNo) -> bool;

    /// The learning switch.
    fn normal(&mut self, context: Context<'_>, frame: F);

    /// Whether [`Host::normal_run`] gains something over [`Host::normal`] for each frame; else
    /// packets are walked there with their keys.
    const NORMAL_RUNS: bool = false;

    /// The learning switch, for frames that all came in by `in_port`, all have been to the same
    /// mirrors, and all met a rule that does nothing else. They are of the common kinds; `hot`
    /// is what has been read of each, as many as there are frames. What rules matched on has not
    /// been kept.
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

    /// To the controllers; the frame stays with the walk.
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &F);

    /// To the controllers, one of which may send it back with what remains to be done; the frame
    /// stays with the walk, which ends here.
    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &F, rest: Frozen) {
        drop(rest);
        self.controller(context, to, frame);
    }

    /// Where the walk takes place.
    fn place(&self) -> Place {
        Place::default()
    }

    /// Asks control for a rule; false when that is not possible now. The answer goes to
    /// [`crate::exec::Engine::answer`].
    fn learn(&mut self, request: Request) -> bool {
        drop(request);
        false
    }

    /// Whether the rules that the packet asks for have been made already, so that it need not ask.
    fn has_taught(&self) -> bool {
        false
    }

    /// Tells control that a rule has seen a connection's end; false when that is not possible now.
    fn connection_ended(&mut self, ended: Ended) -> bool {
        drop(ended);
        false
    }

    /// A packet has been looked up in `table`, and this rule found; `key` is what was looked up,
    /// where the packet has a whole key. Nothing needs to be done: this is for those who ask
    /// which way a packet takes.
    #[inline(always)]
    fn looked_up(&mut self, table: u8, key: Option<&FlowKey>, rule: Option<&Rule>) {
        let _ = (table, key, rule);
    }

    /// Whether [`Host::looked_up`] is of use to it, so that keys are put together for it.
    const WATCHES: bool = false;

    /// Whether it is told of each step, and each lookup is made for one packet.
    const FOLLOWS: bool = false;

    /// A step is about to be run on a packet with this key; `top` is what lies on top of the walk's
    /// stack. Only a host that [`Host::FOLLOWS`] is told.
    #[inline(always)]
    fn steps(&mut self, op: &Op, key: &FlowKey, top: Option<u128>) {
        let _ = (op, key, top);
    }

    /// Counts an event.
    fn noted(&mut self, event: Event) {
        let _ = event;
    }

    /// Counts a packet whose headers lie. It is still walked, with the fields of the broken header
    /// zero, unless it is not even a frame.
    fn malformed(&mut self, reason: packet::parse::Malformed);

    /// Nanoseconds of the datapath's clock, read once for a burst: what meters go by.
    fn now_ns(&mut self) -> u64;

    /// Counts a drop. The frame is gone already, or about to be.
    fn dropped(&mut self, reason: DropReason);
}
