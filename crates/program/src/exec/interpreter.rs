//! Runs one packet's walk, step by step, for all that lanes do not handle.

mod choices;
pub(crate) mod connection;
mod encapsulation;
mod groups;
mod meters;
mod replies;

use crate::actions::block::READ_BY_OUTPUTS;
use crate::actions::set::ActionSet;
use crate::actions::{Bits, Op, PacketInReason, PortNo, ToController, bits, reserved};
use crate::counters::WorkerCounters;
use crate::epoch::Guard;
use crate::exec::Order;
use crate::host::{Context, DropReason, Host};
use crate::table::Bridge;
use conntrack::Earlier;
use packet::edit::{self, CompiledSet};
use packet::key::at;
use packet::parse::Layers;
use packet::{Field, FlowKey, Frame, Value, WordSet};
use smallvec::SmallVec;
use stages::Stage;
use std::ptr::NonNull;

/// Most resubmits, gotos and action lists that one packet may run through, as Open vSwitch's
/// `MAX_RESUBMITS`.
pub const MAX_RESUBMITS: u32 = 4096;
/// Most of [`Walk::spare`].
const SPARE: usize = 4;
/// How deep resubmits may nest, as Open vSwitch's `MAX_DEPTH`.
pub const MAX_DEPTH: u32 = 64;
/// Most values on a walk's stack. Open vSwitch's 64 KiB of 16 bytes each would be 4096; fewer here
/// to save workers' memory.
pub const MAX_STACK: usize = 1024;

/// Cookie shown where no rule acts.
pub const NO_COOKIE: u64 = u64::MAX;

/// Steps to run. Valid during the burst: lists belong to rules seen under the burst's guard or in
/// an epoch that is held, to the walk itself, or to the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps(pub(super) NonNull<[Op]>);

impl Steps {
    pub(crate) fn of(ops: &[Op]) -> Steps {
        Steps(NonNull::from(ops))
    }

    #[inline(always)]
    pub(crate) fn get<'a>(self) -> &'a [Op] {
        // SAFETY: see the type; the engine finishes every walk of a burst, and so drops every
        // `Steps`, before the guard or the caller's list can go.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: between bursts a `Steps` is kept only in held walks, whose epoch is held with them
// (`Guard::hold`), so an idle engine may move to another thread.
unsafe impl Send for Steps {}
// SAFETY: lists of steps are only read.
unsafe impl Sync for Steps {}

/// State that the steps of a clone or bucket must not change, restored when they are done.
pub(crate) struct Saved<F> {
    pub(crate) frame: Option<F>,
    pub(crate) key: FlowKey,
    pub(crate) layers: Layers,
    pub(crate) counted: u32,
    pub(crate) tracked: Earlier,
    pub(crate) recirculated: u8,
    pub(crate) packet_out: bool,
    pub(crate) queue: Option<u32>,
    pub(crate) set: ActionSet,
    pub(crate) values: Vec<(u128, u16)>,
    /// The clone's own action set while it runs, after the clone's list has ended.
    pub(crate) running_set: Option<Box<[Op]>>,
    /// What runs meanwhile.
    pub(crate) by: Aside,
}

/// What runs while the packet's state is saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aside {
    /// A clone.
    Clone,
    /// A bucket, which does not restore action set and stack. Its `exit` ends only itself.
    Bucket,
    /// The tracked copy of a packet. Its `exit` ends only itself, and so does a step in it that
    /// fails.
    Fork,
}

impl<F> Saved<F> {
    /// Makes one with room for any packet's state.
    #[cold]
    fn empty() -> Box<Saved<F>> {
        Box::new(Saved {
            frame: None,
            key: FlowKey::ZERO,
            layers: Layers::default(),
            counted: 0,
            tracked: Earlier::default(),
            recirculated: 0,
            packet_out: false,
            queue: None,
            set: ActionSet::default(),
            values: Vec::new(),
            running_set: None,
            by: Aside::Clone,
        })
    }
}

/// Where a walk continues.
pub(crate) struct Position<F> {
    pub(crate) steps: Steps,
    pub(crate) next: usize,
    pub(crate) table: u8,
    pub(crate) cookie: u64,
    pub(crate) depth: u32,
    /// Number of select groups passed on the way here.
    pub(crate) level: u32,
    pub(crate) saved: Option<Box<Saved<F>>>,
}

/// One packet's state. Fields that packets with action blocks need are together, behind the key.
#[repr(C)]
pub(crate) struct Walk<F> {
    pub(crate) key: FlowKey,
    pub(crate) frame: Option<F>,
    pub(crate) at: Position<F>,
    pub(crate) layers: Layers,
    pub(crate) resubmits: u32,
    /// How often it has gone on behind the connection tracker.
    pub(crate) recirculated: u8,
    /// What the last lookup in the connection tracker said.
    pub(crate) tracked: Earlier,
    /// The length with which rules and groups count the packet: that on arrival, whatever has been
    /// pushed or popped since. Where Open vSwitch would recirculate a packet, its length at that
    /// time.
    pub(crate) counted: u32,
    pub(crate) mirrored: u32,
    pub(crate) sent: bool,
    /// Whether it has been sent to the local port, or will be by whoever goes on with it; known
    /// only where [`Burst::replies`].
    pub(crate) at_local: bool,
    /// Whether the packet is a packet-out's, and outputs to CONTROLLER say so.
    pub(crate) packet_out: bool,
    /// Whether the current lookup is from a resubmit, so that no match means to continue.
    pub(crate) resubmitted: bool,
    pub(crate) queue: Option<u32>,
    /// Table and cookie to which the action set is attributed.
    pub(crate) first: Option<First>,
    pub(crate) stack: SmallVec<[Position<F>; 2]>,
    pub(crate) set: ActionSet,
    /// The action set while it runs.
    pub(crate) running_set: Option<Box<[Op]>>,
    pub(crate) values: Vec<(u128, u16)>,
    /// Outputs that are deferred until the packet changes or the walk ends.
    pub(crate) pending: SmallVec<[Pending; 4]>,
    /// Lists of a thawed walk.
    pub(crate) owned: Vec<Box<[Op]>>,
    /// Memory that clones, buckets and tracked copies reuse.
    pub(crate) spare: Vec<Box<Saved<F>>>,
}

/// Table and cookie of the first rule that a packet met. The action set is attributed to it, as in
/// Open vSwitch: its packet-ins name them, and a resubmit in it without a table looks up there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    pub(crate) table: u8,
    pub(crate) cookie: u64,
}

impl First {
    /// For a packet that begins with a list of its own.
    pub(crate) const NO_RULE: First = First {
        table: 0,
        cookie: NO_COOKIE,
    };
}

#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) kind: PendingKind,
    pub(crate) queue: Option<u32>,
}

#[derive(Clone, Copy)]
pub(crate) enum PendingKind {
    Port(PortNo),
    InPort,
    All { flood: bool },
    Normal,
}

/// State shared by all walks of a burst.
pub(crate) struct Burst<'b, 'g> {
    pub(crate) bridge: &'b Bridge,
    pub(crate) guard: &'g Guard<'g>,
    pub(crate) valid: WordSet,
    pub(crate) now_ms: u64,
    pub(crate) counters: WorkerCounters<'b>,
    /// By how many bytes more than they are given `counters` count packets.
    pub(crate) longer: i32,
    /// Whether packets are walked one after the other, each to its end; where there is a barrier,
    /// those that are no lanes.
    pub(crate) ordered: bool,
    /// Where packets are lanes though they may ask for rules that others of the burst meet: the
    /// first table that packets come to behind all steps that ask. No packet looks up there or in
    /// a later table until those before it have asked. Otherwise 0.
    pub(crate) barrier: u8,
    /// Lookups wait for pending rules with tickets up to this one.
    pub(crate) before: u64,
    /// Whether DHCP replies must also reach the local port, and one may be among the packets.
    pub(crate) replies: bool,
}

impl<'b, 'g> Burst<'b, 'g> {
    /// Creates a burst of packets that a host has, whose keys have `words` in addition to what
    /// tables look at. They are walked in any order, and DHCP replies may be among them.
    #[inline(always)]
    pub(crate) fn new<F: Frame, H: Host<F>>(
        bridge: &'b Bridge,
        guard: &'g Guard<'g>,
        words: WordSet,
        now_ms: u64,
        host: &H,
    ) -> Burst<'b, 'g> {
        let longer = host.longer();
        Burst {
            bridge,
            guard,
            valid: bridge.needed().union(words),
            now_ms,
            counters: (bridge.program().counters).of_worker_by(guard.index(), longer),
            longer,
            ordered: false,
            barrier: 0,
            before: u64::MAX,
            replies: bridge.delivers_replies() && host.are_first_here(),
        }
    }

    /// Says in which order packets are done.
    #[inline(always)]
    pub(crate) fn obey(&mut self, order: Order) {
        self.ordered = order != Order::Any;
        self.barrier = match order {
            Order::Steps(table) => table,
            Order::Any | Order::Walks => 0,
        };
    }

    /// Returns whether packets that look up in a table are behind all steps that ask for rules.
    #[inline(always)]
    pub(crate) fn is_behind_steps(&self, table: u8) -> bool {
        self.barrier != 0 && table >= self.barrier
    }

    /// Creates a burst of one packet, whose steps read `words` in addition to what tables look at,
    /// and whose length is counted as it is.
    pub(crate) fn of_one<F: Frame, H: Host<F>>(
        bridge: &'b Bridge,
        guard: &'g Guard<'g>,
        words: WordSet,
        now_ms: u64,
        host: &H,
    ) -> Burst<'b, 'g> {
        Burst {
            counters: bridge.program().counters.of_worker(guard.index()),
            longer: 0,
            ordered: true,
            ..Burst::new(bridge, guard, words, now_ms, host)
        }
    }

    /// Returns counters that count lengths as they are.
    #[inline(always)]
    pub(crate) fn as_they_are(&self) -> WorkerCounters<'b> {
        let counters = &self.bridge.program().counters;
        counters.of_worker(self.guard.index())
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Look up in this table.
    Lookup(u8),
    /// Look up in this table, with another ingress port.
    LookupFrom(PortNo, u8),
    /// Ask for the rule of the step just passed.
    Learn,
    Done,
}

impl<F: Frame> Walk<F> {
    pub(crate) fn new() -> Walk<F> {
        Walk {
            frame: None,
            key: FlowKey::ZERO,
            layers: Layers::default(),
            at: Position {
                steps: Steps::of(&[]),
                next: 0,
                table: 0,
                cookie: NO_COOKIE,
                depth: 0,
                level: 0,
                saved: None,
            },
            stack: SmallVec::new(),
            set: ActionSet::default(),
            running_set: None,
            values: Vec::new(),
            pending: SmallVec::new(),
            queue: None,
            resubmits: 0,
            recirculated: 0,
            tracked: Earlier::default(),
            counted: 0,
            mirrored: 0,
            sent: false,
            at_local: false,
            packet_out: false,
            resubmitted: false,
            first: None,
            owned: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Begins with a frame. What the tracker said of it before is set by the caller.
    #[inline(always)]
    pub(crate) fn start(&mut self, frame: F, mirrored: u32) {
        self.counted = frame.len() as u32;
        self.frame = Some(frame);
        self.at = Position {
            steps: Steps::of(&[]),
            next: 0,
            table: 0,
            cookie: NO_COOKIE,
            depth: 0,
            level: 0,
            saved: None,
        };
        self.queue = None;
        self.resubmits = 0;
        self.recirculated = 0;
        self.mirrored = mirrored;
        self.sent = false;
        self.at_local = false;
        self.packet_out = false;
        self.resubmitted = false;
        self.first = None;
    }

    #[inline(always)]
    pub(crate) fn context(&mut self, burst: &Burst<'_, '_>) -> (Context<'_>, &mut Option<F>) {
        let context = Context {
            in_port: self.key.u32(at::IN_PORT),
            key: &self.key,
            valid: burst.valid,
            table: self.at.table,
            cookie: self.at.cookie,
            queue: self.queue,
            counted: self.counted,
            mirrored: &mut self.mirrored,
            sent: &mut self.sent,
        };
        (context, &mut self.frame)
    }

    /// Sends a frame to an output.
    #[inline(always)]
    pub(crate) fn deliver<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: Pending,
        frame: F,
    ) {
        if self.tracked.state != 0 {
            return self.deliver_tracked(burst, host, to, frame);
        }
        self.hand_on(burst, host, to, frame);
    }

    /// Does what [`Walk::deliver`] does for a packet of which the tracker has spoken.
    #[inline(always)]
    pub(crate) fn hand_on<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: Pending,
        frame: F,
    ) {
        if burst.replies {
            return self.hand_on_reply(burst, host, to, frame);
        }
        self.send(burst, host, to, frame);
    }

    /// Does what [`Walk::deliver`] does, and notes nothing.
    #[inline(always)]
    fn send<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H, to: Pending, frame: F) {
        let queue = std::mem::replace(&mut self.queue, to.queue);
        let (context, _) = self.context(burst);
        match to.kind {
            PendingKind::Port(port) => host.output(context, port, frame, false),
            PendingKind::InPort => {
                let port = context.in_port;
                host.output(context, port, frame, true);
            }
            PendingKind::All { flood } => host.output_all(context, frame, flood),
            PendingKind::Normal => host.normal(context, frame),
        }
        self.queue = queue;
    }

    /// Executes deferred outputs on copies, because the packet is about to change or the order of
    /// outputs becomes visible.
    #[inline(always)]
    pub(crate) fn flush<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if !self.pending.is_empty() {
            self.send_pending(burst, host);
        }
    }

    #[inline(never)]
    pub(crate) fn send_pending<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        for to in std::mem::take(&mut self.pending) {
            match self.frame.as_ref().and_then(Frame::duplicate) {
                Some(copy) => self.deliver(burst, host, to, copy),
                None => host.dropped(DropReason::NoBuffer),
            }
        }
    }

    /// Ends the walk: the last output takes the frame.
    #[inline(always)]
    pub(crate) fn finish<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if self.is_reply(burst) {
            self.reach_local(burst, host);
        }
        if let Some(last) = self.pending.pop() {
            if !self.pending.is_empty() {
                self.flush(burst, host);
            }
            match self.frame.take() {
                Some(frame) => self.deliver(burst, host, last, frame),
                // A clone had no memory to keep the packet.
                None => host.dropped(DropReason::NoBuffer),
            }
        } else if !self.sent {
            host.dropped(DropReason::Action);
        }
        self.clear();
    }

    pub(crate) fn clear(&mut self) {
        self.frame = None;
        self.pending.clear();
        self.stack.clear();
        self.at.saved = None;
        self.set.clear();
        self.running_set = None;
        self.values.clear();
        self.owned.clear();
    }

    /// Ends the walk because a step has failed. In the tracked copy of a packet, ends only that,
    /// and returns None: the list that tracked the packet goes on (as in Open vSwitch, where the
    /// datapath recirculates the copy).
    pub(crate) fn fail<H: Host<F>>(&mut self, host: &mut H, reason: DropReason) -> Option<Next> {
        host.dropped(reason);
        if self.leave_fork() {
            return None;
        }
        self.clear();
        Some(Next::Done)
    }

    /// Fails, and goes on where a tracked copy of the packet has failed.
    pub(crate) fn fail_or_go_on<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        reason: DropReason,
    ) -> Next {
        match self.fail(host, reason) {
            Some(next) => next,
            None => self.run(burst, host),
        }
    }

    pub(crate) fn send_to_controller<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: &ToController,
    ) {
        if self.controller_meter_passes(burst, host) {
            self.hand_to_controller(burst, host, to);
        }
    }

    /// Writes bits of a field, in the key and, for a header field, in the packet. Returns false
    /// when there is no room for a VLAN tag that this needs.
    pub(crate) fn set<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        field: Field,
        value: &Value,
        mask: &Value,
    ) -> bool {
        if !edit::is_metadata(field) {
            self.edit(burst, host, |frame, layers, key| {
                edit::set_field(frame, layers, key, field, value, mask)
            })
        } else {
            if !field.def().words().intersect(READ_BY_OUTPUTS).is_empty() {
                self.flush(burst, host);
            }
            let offset = field.def().offset;
            for (byte, (value, mask)) in self.key.bytes_mut()[offset..offset + value.len()]
                .iter_mut()
                .zip(value.iter().zip(mask.iter()))
            {
                *byte = *byte & !mask | value & mask;
            }
            true
        }
    }

    /// Writes bits of a word of the key that is not a header field.
    #[inline(always)]
    pub(crate) fn write_metadata<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        word: usize,
        value: u64,
        mask: u64,
    ) {
        let word = word % packet::key::SINGLE;
        if READ_BY_OUTPUTS.contains(word) {
            self.flush(burst, host);
        }
        let word = &mut self.key.words[word];
        *word = *word & !mask | value;
    }

    /// Edits the frame by `change`, which returns whether it could be done.
    pub(crate) fn edit<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        change: impl FnOnce(&mut F, &mut Layers, &mut FlowKey) -> bool,
    ) -> bool {
        self.flush(burst, host);
        match &mut self.frame {
            Some(frame) => change(frame, &mut self.layers, &mut self.key),
            None => false,
        }
    }

    /// Defers an output to a port number, which may be reserved. `reason` is that of a packet-in,
    /// where the port is CONTROLLER.
    pub(crate) fn output_number<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        port: PortNo,
        reason: PacketInReason,
    ) {
        let kind = match port {
            reserved::IN_PORT => PendingKind::InPort,
            reserved::NORMAL => PendingKind::Normal,
            reserved::FLOOD => PendingKind::All { flood: true },
            reserved::ALL => PendingKind::All { flood: false },
            reserved::NONE => return,
            reserved::CONTROLLER => {
                let to = ToController {
                    by_output: true,
                    ..ToController::whole(reason)
                };
                return self.send_to_controller(burst, host, &to);
            }
            port => PendingKind::Port(port),
        };
        self.pending.push(Pending {
            kind,
            queue: self.queue,
        });
    }

    /// Returns from the current list to its caller; returns false when there is none.
    #[inline(always)]
    pub(crate) fn go_back<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) -> bool {
        if let Some(saved) = &mut self.at.saved {
            // A clone runs the action set as it is at the clone's end, and the walk does so again
            // at its own end, as in Open vSwitch 3.1.
            if saved.running_set.is_none()
                && saved.by != Aside::Bucket
                && let Some(ops) = self.set.take()
            {
                self.at.steps = Steps::of(saved.running_set.insert(ops));
                self.at.next = 0;
                return true;
            }
            self.flush(burst, host);
        }
        if let Some(saved) = self.at.saved.take() {
            self.restore(saved);
        }
        if let Some(position) = self.stack.pop() {
            self.at = position;
            return true;
        }
        if self.running_set.is_some() {
            return false;
        }
        self.running_set = self.set.take();
        match &self.running_set {
            None => false,
            Some(ops) => {
                // The last list may not be the first rule's, after a goto or a resubmit as last
                // step; the action set is attributed to the first rule.
                let First { table, cookie } = self.first.unwrap_or(First::NO_RULE);
                self.at = Position {
                    steps: Steps::of(ops),
                    next: 0,
                    table,
                    cookie,
                    depth: 0,
                    level: 0,
                    saved: None,
                };
                true
            }
        }
    }

    /// Returns how deep a resubmit to `table` nests. As in Open vSwitch, only resubmits to the same
    /// or an earlier table count, because the others end by themselves.
    #[inline(always)]
    pub(crate) fn depth_in(&self, table: u8) -> u32 {
        self.at.depth + u32::from(self.resubmitted && table <= self.at.table)
    }

    /// Enters a list; where it ends, the walk comes back here.
    pub(crate) fn enter(&mut self, steps: Steps, table: u8, cookie: u64) {
        let (depth, level) = (self.depth_in(table), self.at.level);
        let here = std::mem::replace(
            &mut self.at,
            Position {
                steps,
                next: 0,
                table,
                cookie,
                depth,
                level,
                saved: None,
            },
        );
        self.stack.push(here);
    }

    /// Continues with a rule's steps.
    #[inline(always)]
    pub(crate) fn land(&mut self, table: u8, rule: &crate::rule::Rule) {
        let steps = Steps::of(&rule.spec.ops.ops);
        if self.first.is_none() {
            let cookie = rule.spec.cookie;
            self.first = Some(First { table, cookie });
        }
        if self.at.next == self.at.steps.get().len()
            && self.stack.is_empty()
            && self.at.saved.is_none()
        {
            // Nothing to return to: a first lookup, a goto, or a resubmit at the end of its list.
            let depth = self.depth_in(table);
            self.at = Position {
                steps,
                next: 0,
                table,
                cookie: rule.spec.cookie,
                depth,
                level: self.at.level,
                saved: None,
            };
        } else {
            self.enter(steps, table, rule.spec.cookie);
        }
    }

    /// Looks up and continues in a table with few rules, for which looking up several packets
    /// together gains nothing; many stages of long pipelines have a single rule. Returns false,
    /// with nothing done, for other tables, and where no rule is found.
    #[inline(always)]
    pub(crate) fn look_up_at_once<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
    ) -> bool {
        if burst.ordered || H::FOLLOWS {
            return false;
        }
        self.hide_fragment_ports(burst);
        let found = {
            let _stage = stages::enter(Stage::Lookup, 1);
            let (bridge, counters) = (burst.bridge, burst.counters);
            bridge.lookup_at_once(table, &self.key, burst.guard, counters)
        };
        let Some(rule) = found else {
            return false;
        };
        host.looked_up(table, Some(&self.key), found);
        self.count(burst, rule);
        if rule.shortens_timeouts() {
            self.connection_ends(host, table, rule);
        }
        self.land(table, rule);
        true
    }

    /// Runs steps until the walk needs a lookup or is done.
    #[inline]
    pub(crate) fn run<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) -> Next {
        loop {
            let ops = self.at.steps.get();
            let Some(op) = ops.get(self.at.next) else {
                if self.go_back(burst, host) {
                    continue;
                }
                self.finish(burst, host);
                return Next::Done;
            };
            self.at.next += 1;
            if H::FOLLOWS {
                host.steps(op, &self.key, self.values.last().map(|(value, _)| *value));
            }
            match op {
                Op::Output(port) => self.pending.push(Pending {
                    kind: PendingKind::Port(*port),
                    queue: self.queue,
                }),
                Op::InPort => self.pending.push(Pending {
                    kind: PendingKind::InPort,
                    queue: self.queue,
                }),
                Op::All { flood } => {
                    self.pending.push(Pending {
                        kind: PendingKind::All { flood: *flood },
                        queue: self.queue,
                    });
                }
                Op::Normal => self.pending.push(Pending {
                    kind: PendingKind::Normal,
                    queue: self.queue,
                }),
                Op::Set(CompiledSet::Metadata { word, value, mask }) => {
                    self.write_metadata(burst, host, (*word).into(), *value, *mask);
                }
                Op::Set(set) => {
                    if !self.edit(burst, host, |frame, layers, key| {
                        set.run(frame, layers, key)
                    }) && let Some(next) = self.fail(host, DropReason::ActionFailed)
                    {
                        return next;
                    }
                }
                Op::Goto(table) => {
                    // A goto is the last step of its list, so there is nothing to return to.
                    self.at.next = ops.len();
                    self.resubmits += 1;
                    self.resubmitted = false;
                    if !self.look_up_at_once(burst, host, *table) {
                        return Next::Lookup(*table);
                    }
                }
                Op::Resubmit { in_port, table } => {
                    self.resubmits += 1;
                    if self.resubmits > MAX_RESUBMITS || self.at.depth >= MAX_DEPTH {
                        match self.fail(host, DropReason::TooManyResubmits) {
                            Some(next) => return next,
                            None => continue,
                        }
                    }
                    self.resubmitted = true;
                    if let Some(port) = in_port {
                        let table = table.unwrap_or(self.at.table);
                        if burst.ordered {
                            return Next::LookupFrom(*port, table);
                        }
                        self.resubmit_from(burst, host, *port, table);
                        continue;
                    }
                    let table = table.unwrap_or(self.at.table);
                    if !self.look_up_at_once(burst, host, table) {
                        return Next::Lookup(table);
                    }
                }
                other => {
                    if let Some(next) = self.run_seldom(burst, host, other) {
                        return next;
                    }
                }
            }
        }
    }

    /// Hides, before a lookup, the ports of a fragment where the bridge does not match them,
    /// whatever steps have written there.
    #[inline(always)]
    pub(crate) fn hide_fragment_ports(&mut self, burst: &Burst<'_, '_>) {
        if self.key.u8(at::IP_FRAG) != 0 && !burst.bridge.matches_fragment_ports() {
            self.key.set_u32(at::TP_SRC, 0);
        }
    }

    /// Returns whether the packet is an IP fragment, including a first one.
    pub(crate) fn is_fragment(&self) -> bool {
        self.key.u8(at::IP_FRAG) != 0
    }

    /// Looks up with another ingress port, which applies to this lookup only.
    pub(crate) fn resubmit_from<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        port: PortNo,
        table: u8,
    ) {
        self.hide_fragment_ports(burst);
        let own = self.key.u32(at::IN_PORT);
        self.key.set_u32(at::IN_PORT, port);
        let found = {
            let _stage = stages::enter(Stage::Lookup, 1);
            burst.bridge.lookup(table, &self.key, burst.guard)
        };
        host.looked_up(table, Some(&self.key), found);
        self.key.set_u32(at::IN_PORT, own);
        if let Some(rule) = found {
            self.count(burst, rule);
            if rule.shortens_timeouts() {
                self.connection_ends(host, table, rule);
            }
            self.enter(Steps::of(&rule.spec.ops.ops), table, rule.spec.cookie);
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self, burst: &Burst<'_, '_>, rule: &crate::rule::Rule) {
        let bytes = self.counted.into();
        burst
            .counters
            .add(rule.spec.counter, 1, bytes, burst.now_ms);
    }

    /// Counts the packet with its current length from here on.
    pub(crate) fn count_anew(&mut self, burst: &Burst<'_, '_>) {
        let length = self.frame.as_ref().map_or(0, Frame::len) as u32;
        self.counted = length.wrapping_add_signed(-burst.longer);
    }

    /// Runs the less common steps.
    pub(crate) fn run_seldom<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        op: &Op,
    ) -> Option<Next> {
        match op {
            Op::OutputReg { source, reason } => {
                let port = bits::port_number(bits::read(&self.key, *source));
                self.output_number(burst, host, port, *reason);
            }
            Op::OutputTruncated { port, max_len } => {
                self.output_truncated(burst, host, *port, *max_len)
            }
            Op::Enqueue { port, queue } => {
                let own = self.queue.replace(*queue);
                self.output_number(burst, host, *port, PacketInReason::Action);
                self.queue = own;
            }
            Op::Controller(to) => self.send_to_controller(burst, host, to),
            Op::SetField { field, value, mask } => {
                if !self.set(burst, host, *field, value, mask) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::Move { src, dst } => {
                let value = bits::read(&self.key, *src);
                if !self.write_bits(burst, host, *dst, value) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::PushVlan(tpid) => {
                let tpid = *tpid;
                if !self.edit(burst, host, |frame, layers, key| {
                    edit::push_vlan(frame, layers, key, tpid)
                }) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::PopVlan => {
                self.edit(burst, host, |frame, layers, key| {
                    edit::pop_vlan(frame, layers, key);
                    true
                });
            }
            Op::SetVlanVid { vid, push } => {
                let (vid, push) = (*vid, *push);
                if !self.edit(burst, host, |frame, layers, key| {
                    edit::set_vlan_vid(frame, layers, key, vid, push)
                }) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::SetVlanPcp { pcp, push } => {
                let (pcp, push) = (*pcp, *push);
                if !self.edit(burst, host, |frame, layers, key| {
                    edit::set_vlan_pcp(frame, layers, key, pcp, push)
                }) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::PushMpls(_)
            | Op::PopMpls(_)
            | Op::DecMplsTtl
            | Op::CopyTtlOut
            | Op::CopyTtlIn
            | Op::PushPbb
            | Op::PopPbb => return self.run_encapsulation(burst, host, op),
            Op::DecTtl(controllers) => return self.dec_ttl(burst, host, controllers),
            Op::SetQueue(queue) => {
                self.queue = *queue;
                self.key.set_u32(at::SKB_PRIORITY, queue.unwrap_or(0));
            }
            Op::WriteActions(ops) => {
                if !self.set.write(ops) {
                    return self.fail(host, DropReason::StackFull);
                }
                self.key.set_u32(at::ACTSET_OUTPUT, self.set.output());
            }
            Op::ClearActions => {
                self.set.clear();
                self.key.set_u32(at::ACTSET_OUTPUT, reserved::UNSET);
            }
            Op::StackPush(source) => {
                if self.values.len() == MAX_STACK {
                    return self.fail(host, DropReason::StackFull);
                }
                self.values
                    .push((bits::read(&self.key, *source), source.bits));
            }
            Op::StackPop(to) => {
                if let Some((value, _)) = self.values.pop()
                    && !self.write_bits(burst, host, *to, value)
                {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::Clone(list) => {
                self.flush(burst, host);
                let saved = self.put_aside(Aside::Clone);
                let (table, cookie) = (self.at.table, self.at.cookie);
                self.resubmitted = false; // a clone in a resubmitted rule is as deep as that rule
                self.enter(Steps::of(&list.ops), table, cookie);
                self.at.saved = Some(saved);
            }
            Op::ResubmitTracked { in_port, table } => {
                self.resubmits += 1;
                if self.resubmits > MAX_RESUBMITS || self.at.depth >= MAX_DEPTH {
                    return self.fail(host, DropReason::TooManyResubmits);
                }
                self.resubmitted = true;
                let port = in_port.unwrap_or(self.key.u32(at::IN_PORT));
                self.resubmit_tracked(burst, host, port, table.unwrap_or(self.at.table));
            }
            Op::Track(track) => return self.track(burst, host, track),
            Op::Untrack => self.untrack(),
            Op::Exit => {
                self.unwind(burst, host);
            }
            Op::Group(group) => return self.group(burst, host, *group),
            Op::Bucket(bucket) => return self.bucket(burst, host, bucket, self.at.level),
            Op::Conjunction(_) => {}
            Op::Multipath(multipath) => {
                if !self.multipath(burst, host, multipath) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::Bundle(bundle) => {
                if !self.bundle(burst, host, bundle) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::CheckLength { max_len, dst } => {
                if !self.check_length(burst, host, *max_len, *dst) {
                    return self.fail(host, DropReason::ActionFailed);
                }
            }
            Op::Meter(meter) => return self.meter(burst, host, meter),
            Op::MeterController(meter) => self.meter_controller(burst, host, meter),
            Op::Learn(_) => return Some(Next::Learn),
            Op::FinTimeout { .. } => {} // done when the rule was met
            Op::Pause(to) => self.freeze(burst, host, to),
            Op::Output(_)
            | Op::InPort
            | Op::All { .. }
            | Op::Normal
            | Op::Set(_)
            | Op::Goto(_)
            | Op::Resubmit { .. } => unreachable!("handled in `run`"),
        }
        None
    }

    /// Saves what a clone, a bucket or a tracked copy must not change.
    pub(crate) fn put_aside(&mut self, by: Aside) -> Box<Saved<F>> {
        let mut saved = self.spare.pop().unwrap_or_else(Saved::empty);
        saved.frame = self.frame.as_ref().and_then(Frame::duplicate);
        saved.key = self.key;
        saved.layers = self.layers;
        saved.counted = self.counted;
        saved.tracked = self.tracked;
        saved.recirculated = self.recirculated;
        saved.packet_out = self.packet_out;
        saved.queue = self.queue;
        saved.running_set = None;
        saved.by = by;
        if by != Aside::Bucket {
            saved.set = self.set.clone();
            saved.values.clone_from(&self.values);
        }
        saved
    }

    /// Restores what was saved.
    fn restore(&mut self, mut saved: Box<Saved<F>>) {
        self.frame = saved.frame.take();
        self.key = saved.key;
        self.layers = saved.layers;
        self.counted = saved.counted;
        self.tracked = saved.tracked;
        self.recirculated = saved.recirculated;
        self.queue = saved.queue;
        if saved.by != Aside::Bucket {
            self.packet_out = saved.packet_out;
            self.set = std::mem::take(&mut saved.set);
            std::mem::swap(&mut self.values, &mut saved.values);
        }
        if self.spare.len() < SPARE {
            self.spare.push(saved);
        }
    }

    /// Executes `exit`: leaves every list, restoring what clones saved. The action set does not
    /// run, as in Open vSwitch 3.1 (contrary to its ovs-actions(7)).
    pub(crate) fn unwind<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if self.is_confined() {
            return self.unwind_confined(burst, host);
        }
        self.set.clear();
        self.at.next = self.at.steps.get().len();
        while !self.stack.is_empty() {
            self.go_back(burst, host);
            self.set.clear();
            self.at.next = self.at.steps.get().len();
        }
    }

    pub(crate) fn write_bits<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: Bits,
        value: u128,
    ) -> bool {
        if edit::is_metadata(to.field)
            && let Some((word, value, mask)) = bits::write_in_word(to, value)
        {
            self.write_metadata(burst, host, word, value, mask);
            return true;
        }
        let (value, mask) = bits::write(to, value);
        self.set(burst, host, to.field, &value, &mask)
    }

    pub(crate) fn output_truncated<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        port: PortNo,
        max_len: u32,
    ) {
        self.flush(burst, host);
        let whole = match self.frame.as_ref().map(Frame::duplicate) {
            Some(Some(copy)) => self.frame.replace(copy),
            Some(None) => return host.dropped(DropReason::NoBuffer),
            None => return,
        };
        if let Some(frame) = &mut self.frame {
            frame.truncate(max_len as usize);
        }
        self.output_number(burst, host, port, PacketInReason::Action);
        if let (Some(to), Some(short)) = (self.pending.pop(), self.frame.take()) {
            self.deliver(burst, host, to, short);
        }
        self.frame = whole;
    }

    pub(crate) fn dec_ttl<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        controllers: &[u16],
    ) -> Option<Next> {
        self.flush(burst, host);
        let frame = self.frame.as_mut()?;
        if edit::dec_ttl(frame, &self.layers, &mut self.key).is_ok() {
            return None;
        }
        for id in controllers {
            let to = ToController {
                controller_id: *id,
                ..ToController::whole(PacketInReason::InvalidTtl)
            };
            self.send_to_controller(burst, host, &to);
        }
        if controllers.is_empty() {
            host.dropped(DropReason::TtlExpired);
            self.sent = true; // already counted
        }
        // Only this list ends (Open vSwitch's `compose_dec_ttl`); its caller continues.
        self.at.next = self.at.steps.get().len();
        None
    }
}
