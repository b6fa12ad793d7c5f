//! A packet's way through the tables, as data, a burst at a time.
//!
//! The engine parses a burst, looks all of it up in the first table at once, and runs each packet's steps until the packet is done or needs
//! another lookup; packets that wait for the same table are looked up together, tables in ascending order. A walk's state (key, position in the lists
//! of steps, registers, action set, stack) lies in [`Walk`], not on a call stack, so that it can stop at any lookup and go on.
//!
//! Outputs are put off as long as nothing changes the packet: the last one takes the frame itself, only the others cost a copy.

mod asked;
mod cache;
mod edits;
mod freeze;
mod front;
mod fused;
mod groups;
mod hold;
mod lanes;
mod meters;
mod straight;
mod ways;

pub use cache::{CacheBoard, CacheMode, CacheReport};
pub use freeze::{Frozen, Thaw};
pub(crate) use fused::Fused;
pub(crate) use fused::compile::{ALL_WAYS_MAX, Compiler, Made, Tables};
pub(crate) use straight::{Outline, Stretch, Stretches, stretches};

pub use hold::{ASKED_MAX, HELD_BYTES, HELD_MAX, Held, PATIENCE_MS, Wait};

use crate::action_set::{self, ActionSet};
use crate::bits;
use crate::counters::WorkerCounters;
use crate::epoch::Guard;
use crate::host::{Context, Drop as DropReason, Host};
use crate::ops::{Bits, Op, OpList, PacketInReason, PortNo, ToController};
use crate::table::{Bridge, HotWords, LOOKUP_MAX, Miss};
use packet::edit::{self, CompiledSet};
use packet::hot::Run;
use packet::key::at;
use packet::parse::{self, Layers, Malformed, MoreWords};
use packet::{Field, FlowKey, Frame, Value, WordSet};
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::sync::Arc;

/// Most resubmits, gotos and action lists that one packet may run through, as Open vSwitch's `MAX_RESUBMITS`.
pub const MAX_RESUBMITS: u32 = 4096;
/// How deep resubmits may nest, as Open vSwitch's `MAX_DEPTH`.
pub const MAX_DEPTH: u32 = 64;
/// Most values on a walk's stack, as Open vSwitch's 64 KiB of 16 bytes would be 4096; less is kept here for the sake of a worker's memory.
pub const MAX_STACK: usize = 1024;

/// Cookie shown where no rule acts.
pub const NO_COOKIE: u64 = u64::MAX;

/// Words of metadata that say how an output is sent, so that outputs that wait must go before they change: ingress port, tunnel, mark.
const READ_BY_OUTPUTS: WordSet = WordSet::of_bytes(at::IN_PORT, 4)
    .union(WordSet::of_bytes(at::TUN_ID, 8))
    .union(WordSet::of_bytes(at::PKT_MARK, 4))
    .union(WordSet::of_bytes(
        at::TUN_SRC,
        at::TUN_TTL + 1 - at::TUN_SRC,
    ));

/// Reserved port numbers that a register may name.
pub(crate) mod reserved {
    /// The first that no port may have (`OFPP_MAX`).
    pub const FIRST: u32 = 0xffff_ff00;
    pub const IN_PORT: u32 = 0xffff_fff8;
    pub const NORMAL: u32 = 0xffff_fffa;
    pub const FLOOD: u32 = 0xffff_fffb;
    pub const ALL: u32 = 0xffff_fffc;
    pub const CONTROLLER: u32 = 0xffff_fffd;
    pub const NONE: u32 = 0xffff_ffff;
}

/// Steps to run. Valid for the burst: lists belong to rules seen under the burst's guard or in an epoch that is held, to the walk itself, or to the caller.
#[derive(Clone, Copy, Debug)]
struct Steps(NonNull<[Op]>);

impl Steps {
    fn of(ops: &[Op]) -> Steps {
        Steps(NonNull::from(ops))
    }

    #[inline(always)]
    fn get<'a>(self) -> &'a [Op] {
        // SAFETY: see the type; the engine finishes every walk of a burst, and so drops every `Steps`, before the guard or the caller's list can go.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: between bursts a `Steps` is kept only in held walks, whose epoch is held with them (`Guard::hold`), so an idle engine may move to another thread.
unsafe impl Send for Steps {}
// SAFETY: lists of steps are only read.
unsafe impl Sync for Steps {}

/// What a clone's or a bucket's steps must not change, put back when they are done.
struct Saved<F> {
    frame: Option<F>,
    key: FlowKey,
    layers: Layers,
    counted: u32,
    queue: Option<u32>,
    set: ActionSet,
    values: Vec<(u128, u16)>,
    /// The clone's own action set once its list has ended, while it is run.
    running_set: Option<Box<[Op]>>,
    /// Whether it is a bucket's: action set and stack are not put back.
    bucket: bool,
}

/// Where a walk goes on.
struct Position<F> {
    steps: Steps,
    next: usize,
    table: u8,
    cookie: u64,
    depth: u32,
    /// How many select groups have chosen on the way here.
    level: u32,
    saved: Option<Box<Saved<F>>>,
}

/// One packet's state. What packets on straight ways need lies together, behind the key.
#[repr(C)]
struct Walk<F> {
    key: FlowKey,
    frame: Option<F>,
    at: Position<F>,
    layers: Layers,
    resubmits: u32,
    /// The length with which rules and groups count the packet: the one that it came with, whatever
    /// has been pushed or popped since. Where Open vSwitch sends a packet through its datapath once
    /// more, the one that it has then.
    counted: u32,
    mirrored: u32,
    sent: bool,
    /// The lookup under way came from a resubmit: no rule means go on, not a miss.
    resubmitted: bool,
    queue: Option<u32>,
    stack: SmallVec<[Position<F>; 2]>,
    set: ActionSet,
    /// The action set while it is run.
    running_set: Option<Box<[Op]>>,
    values: Vec<(u128, u16)>,
    /// Outputs that wait for the packet to change or the walk to end.
    pending: SmallVec<[Pending; 4]>,
    /// Lists of a walk that was frozen.
    owned: Vec<Box<[Op]>>,
    /// Used by buckets again and again.
    spare: Vec<Box<Saved<F>>>,
}

#[derive(Clone, Copy)]
struct Pending {
    kind: PendingKind,
    queue: Option<u32>,
}

#[derive(Clone, Copy)]
enum PendingKind {
    Port(PortNo),
    InPort,
    All { flood: bool },
    Normal,
}

/// What all walks of a burst share.
struct Burst<'b, 'g> {
    bridge: &'b Bridge,
    guard: &'g Guard<'g>,
    valid: WordSet,
    now_ms: u64,
    counters: WorkerCounters<'b>,
    /// Packets are walked one after the other, each to its end.
    ordered: bool,
    /// Lookups wait for rules on their way that have tickets up to this one.
    before: u64,
}

impl<'b, 'g> Burst<'b, 'g> {
    /// A burst of one packet, whose steps read `words` beside what tables look at.
    fn of_one(
        bridge: &'b Bridge,
        guard: &'g Guard<'g>,
        words: WordSet,
        now_ms: u64,
    ) -> Burst<'b, 'g> {
        Burst {
            bridge,
            guard,
            valid: bridge.needed().union(words),
            now_ms,
            counters: bridge.program().counters.of_worker(guard.index()),
            ordered: true,
            before: u64::MAX,
        }
    }
}

enum Next {
    /// Look up in this table.
    Lookup(u8),
    /// Look up with another ingress port, in this table.
    LookupFrom(PortNo, u8),
    /// Ask for the rule that the last step says.
    Learn,
    Done,
}

impl<F: Frame> Walk<F> {
    fn new() -> Walk<F> {
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
            counted: 0,
            mirrored: 0,
            sent: false,
            resubmitted: false,
            owned: Vec::new(),
            spare: Vec::new(),
        }
    }

    #[inline(always)]
    fn start(&mut self, frame: F, mirrored: u32) {
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
        self.mirrored = mirrored;
        self.sent = false;
        self.resubmitted = false;
    }

    #[inline(always)]
    fn context(&mut self, burst: &Burst<'_, '_>) -> (Context<'_>, &mut Option<F>) {
        let context = Context {
            in_port: self.key.u32(at::IN_PORT),
            key: &self.key,
            valid: burst.valid,
            table: self.at.table,
            cookie: self.at.cookie,
            queue: self.queue,
            mirrored: &mut self.mirrored,
            sent: &mut self.sent,
        };
        (context, &mut self.frame)
    }

    /// Sends a frame to where an output said.
    #[inline(always)]
    fn deliver<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H, to: Pending, frame: F) {
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

    /// Carries out the outputs that wait, on copies: the packet is about to change, or somebody must see it in order.
    #[inline(always)]
    fn flush<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if !self.pending.is_empty() {
            self.send_pending(burst, host);
        }
    }

    #[inline(never)]
    fn send_pending<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        for to in std::mem::take(&mut self.pending) {
            match self.frame.as_ref().and_then(Frame::duplicate) {
                Some(copy) => self.deliver(burst, host, to, copy),
                None => host.dropped(DropReason::NoBuffer),
            }
        }
    }

    /// Ends the walk: the last output takes the frame.
    #[inline(always)]
    fn finish<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if let Some(last) = self.pending.pop() {
            if !self.pending.is_empty() {
                self.flush(burst, host);
            }
            match self.frame.take() {
                Some(frame) => self.deliver(burst, host, last, frame),
                // A clone found no memory to keep the packet.
                None => host.dropped(DropReason::NoBuffer),
            }
        } else if !self.sent {
            host.dropped(DropReason::Action);
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.frame = None;
        self.pending.clear();
        self.stack.clear();
        self.at.saved = None;
        self.set.clear();
        self.running_set = None;
        self.values.clear();
        self.owned.clear();
    }

    fn fail<H: Host<F>>(&mut self, host: &mut H, reason: DropReason) -> Next {
        host.dropped(reason);
        self.clear();
        Next::Done
    }

    fn send_to_controller<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: &ToController,
    ) {
        if self.controller_meter_passes(burst, host) {
            self.hand_to_controller(burst, host, to);
        }
    }

    /// Writes bits of a field, in the key and, for a header field, in the packet. False when there is no room for a tag that it takes.
    fn set<H: Host<F>>(
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

    /// Writes bits of a word of the key that packets themselves do not hold.
    #[inline(always)]
    fn write_metadata<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        word: usize,
        value: u64,
        mask: u64,
    ) {
        let word = word % packet::key::WORDS;
        if READ_BY_OUTPUTS.contains(word) {
            self.flush(burst, host);
        }
        let word = &mut self.key.words[word];
        *word = *word & !mask | value;
    }

    /// Changes the frame by `change`, which says whether it could be done.
    fn edit<H: Host<F>>(
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

    /// Notes an output to a port number that may be reserved.
    fn output_number<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H, port: PortNo) {
        let kind = match port {
            reserved::IN_PORT => PendingKind::InPort,
            reserved::NORMAL => PendingKind::Normal,
            reserved::FLOOD => PendingKind::All { flood: true },
            reserved::ALL => PendingKind::All { flood: false },
            reserved::NONE => return,
            reserved::CONTROLLER => {
                let to = ToController {
                    max_len: u16::MAX,
                    reason: PacketInReason::Action,
                    controller_id: 0,
                    userdata: Vec::new(),
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

    /// Leaves the current list for the one that called it; false when there is none.
    #[inline(always)]
    fn go_back<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) -> bool {
        if let Some(saved) = &mut self.at.saved {
            // A clone runs what the action set holds by then, and the walk does so again at its end, as Open vSwitch 3.1.
            if saved.running_set.is_none()
                && !saved.bucket
                && let Some(ops) = self.set.take()
            {
                self.at.steps = Steps::of(saved.running_set.insert(ops));
                self.at.next = 0;
                return true;
            }
            self.flush(burst, host);
        }
        if let Some(saved) = self.at.saved.take_if(|saved| saved.bucket) {
            self.leave_bucket(saved);
        }
        if let Some(saved) = self.at.saved.take() {
            self.frame = saved.frame;
            self.key = saved.key;
            self.layers = saved.layers;
            self.counted = saved.counted;
            self.queue = saved.queue;
            self.set = saved.set;
            self.values = saved.values;
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
                self.at.steps = Steps::of(ops);
                self.at.next = 0;
                true
            }
        }
    }

    /// How deep a resubmit to `table` nests: only those that do not go forward count, as in Open vSwitch, for the others end by themselves.
    #[inline(always)]
    fn depth_in(&self, table: u8) -> u32 {
        self.at.depth + u32::from(self.resubmitted && table <= self.at.table)
    }

    /// Enters a list; where it ends, the walk comes back here.
    fn enter(&mut self, steps: Steps, table: u8, cookie: u64) {
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

    /// Goes on with a rule's steps.
    #[inline(always)]
    fn land(&mut self, table: u8, rule: &crate::rule::Rule) {
        let steps = Steps::of(&rule.spec.ops.ops);
        if self.at.next == self.at.steps.get().len()
            && self.stack.is_empty()
            && self.at.saved.is_none()
        {
            // Nothing to come back to: a first lookup, a goto, or a resubmit at the end of its list.
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

    /// Goes on in a table whose lookup gains nothing by being made for several packets together: one of few rules, of which many a long pipeline's stage
    /// has but one. False, with nothing done, for other tables, and where no rule is found.
    #[inline(always)]
    fn look_up_at_once<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
    ) -> bool {
        if burst.ordered || H::FOLLOWS {
            return false;
        }
        self.hide_fragment_ports(burst);
        let found = burst
            .bridge
            .lookup_at_once(table, &self.key, burst.guard, burst.counters);
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
    fn run<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) -> Next {
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
                    }) {
                        return self.fail(host, DropReason::ActionFailed);
                    }
                }
                Op::Goto(table) => {
                    // Nothing comes after a goto in its list, so there is nothing to come back to.
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
                        return self.fail(host, DropReason::TooManyResubmits);
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

    /// Before a lookup: where fragments' ports are not to be matched, the key of a fragment does not show them, whatever steps have written there.
    #[inline(always)]
    fn hide_fragment_ports(&mut self, burst: &Burst<'_, '_>) {
        if self.key.u8(at::IP_FRAG) != 0 && !burst.bridge.matches_fragment_ports() {
            self.key.set_u32(at::TP_SRC, 0);
        }
    }

    /// Whether the packet is an IP fragment, the first one included.
    fn is_fragment(&self) -> bool {
        self.key.u8(at::IP_FRAG) != 0
    }

    /// Looks up with another ingress port, which holds for the lookup only.
    fn resubmit_from<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        port: PortNo,
        table: u8,
    ) {
        self.hide_fragment_ports(burst);
        let own = self.key.u32(at::IN_PORT);
        self.key.set_u32(at::IN_PORT, port);
        let found = burst.bridge.lookup(table, &self.key, burst.guard);
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
    fn count(&self, burst: &Burst<'_, '_>, rule: &crate::rule::Rule) {
        let bytes = self.counted.into();
        burst
            .counters
            .add(rule.spec.counter, 1, bytes, burst.now_ms);
    }

    /// From here on the packet counts with the length that it has now.
    fn count_anew(&mut self) {
        self.counted = self.frame.as_ref().map_or(0, Frame::len) as u32;
    }

    /// The steps that most packets do without.
    fn run_seldom<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        op: &Op,
    ) -> Option<Next> {
        match op {
            Op::OutputReg(source) => {
                let port = bits::port_number(bits::read(&self.key, *source));
                self.output_number(burst, host, port);
            }
            Op::OutputTruncated { port, max_len } => {
                self.output_truncated(burst, host, *port, *max_len)
            }
            Op::Enqueue { port, queue } => {
                let own = self.queue.replace(*queue);
                self.output_number(burst, host, *port);
                self.queue = own;
            }
            Op::Controller(to) => self.send_to_controller(burst, host, to),
            Op::SetField { field, value, mask } => {
                if !self.set(burst, host, *field, value, mask) {
                    return Some(self.fail(host, DropReason::ActionFailed));
                }
            }
            Op::Move { src, dst } => {
                let value = bits::read(&self.key, *src);
                if !self.write_bits(burst, host, *dst, value) {
                    return Some(self.fail(host, DropReason::ActionFailed));
                }
            }
            Op::PushVlan(tpid) => {
                let tpid = *tpid;
                if !self.edit(burst, host, |frame, layers, key| {
                    edit::push_vlan(frame, layers, key, tpid)
                }) {
                    return Some(self.fail(host, DropReason::ActionFailed));
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
                    return Some(self.fail(host, DropReason::ActionFailed));
                }
            }
            Op::SetVlanPcp { pcp, push } => {
                let (pcp, push) = (*pcp, *push);
                if !self.edit(burst, host, |frame, layers, key| {
                    edit::set_vlan_pcp(frame, layers, key, pcp, push)
                }) {
                    return Some(self.fail(host, DropReason::ActionFailed));
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
                    return Some(self.fail(host, DropReason::StackFull));
                }
                self.key.set_u32(at::ACTSET_OUTPUT, self.set.output());
            }
            Op::ClearActions => {
                self.set.clear();
                self.key.set_u32(at::ACTSET_OUTPUT, action_set::NO_OUTPUT);
            }
            Op::StackPush(source) => {
                if self.values.len() == MAX_STACK {
                    return Some(self.fail(host, DropReason::StackFull));
                }
                self.values
                    .push((bits::read(&self.key, *source), source.bits));
            }
            Op::StackPop(to) => {
                if let Some((value, _)) = self.values.pop()
                    && !self.write_bits(burst, host, *to, value)
                {
                    return Some(self.fail(host, DropReason::ActionFailed));
                }
            }
            Op::Clone(list) => {
                self.flush(burst, host);
                let saved = Saved {
                    frame: self.frame.as_ref().and_then(Frame::duplicate),
                    key: self.key,
                    layers: self.layers,
                    counted: self.counted,
                    queue: self.queue,
                    set: self.set.clone(),
                    values: self.values.clone(),
                    running_set: None,
                    bucket: false,
                };
                let (table, cookie) = (self.at.table, self.at.cookie);
                self.resubmitted = false; // a clone in a rule that a resubmit found is no deeper than the rule
                self.enter(Steps::of(&list.ops), table, cookie);
                self.at.saved = Some(Box::new(saved));
            }
            Op::Exit => {
                self.unwind(burst, host);
            }
            Op::Group(group) => return self.group(burst, host, *group),
            Op::Bucket(bucket) => return self.bucket(burst, host, bucket, self.at.level),
            Op::Conjunction(_) => {}
            Op::Multipath(multipath) => {
                if !self.multipath(burst, host, multipath) {
                    return Some(self.fail(host, DropReason::ActionFailed));
                }
            }
            Op::Bundle(bundle) => {
                if !self.bundle(burst, host, bundle) {
                    return Some(self.fail(host, DropReason::ActionFailed));
                }
            }
            Op::CheckLength { max_len, dst } => {
                if !self.check_length(burst, host, *max_len, *dst) {
                    return Some(self.fail(host, DropReason::ActionFailed));
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

    /// `exit`: leaves every list, putting back what clones saved. The action set is not run: so does Open vSwitch 3.1, though its
    /// ovs-actions(7) says otherwise.
    fn unwind<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if self.is_in_bucket() {
            return self.unwind_bucket(burst, host);
        }
        self.set.clear();
        self.at.next = self.at.steps.get().len();
        while !self.stack.is_empty() {
            self.go_back(burst, host);
            self.set.clear();
            self.at.next = self.at.steps.get().len();
        }
    }

    fn write_bits<H: Host<F>>(
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

    fn output_truncated<H: Host<F>>(
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
        self.output_number(burst, host, port);
        if let (Some(to), Some(short)) = (self.pending.pop(), self.frame.take()) {
            self.deliver(burst, host, to, short);
        }
        self.frame = whole;
    }

    fn dec_ttl<H: Host<F>>(
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
                max_len: u16::MAX,
                reason: PacketInReason::InvalidTtl,
                controller_id: *id,
                userdata: Vec::new(),
            };
            self.send_to_controller(burst, host, &to);
        }
        if controllers.is_empty() {
            host.dropped(DropReason::TtlExpired);
            self.sent = true; // it has been counted
        }
        // Only this list ends (Open vSwitch's `compose_dec_ttl`); what called it goes on.
        self.at.next = self.at.steps.get().len();
        None
    }
}

/// Runs bursts. One for each worker; keeps its memory between bursts.
pub struct Engine<F> {
    walks: Vec<Walk<F>>,
    /// The first packets' hot words, while they are looked up for the first time.
    hot: Box<[HotWords]>,
    /// What those of IPv6 and ARP tell beside, where the first table looks at it.
    more: Box<[MoreWords]>,
    /// The first packets' rules, where their hot words are not asked for.
    runs: Vec<Run>,
    /// Walks that wait for a lookup: table and index.
    waiting: Vec<(u8, u16)>,
    group: Vec<u16>,
    /// Bytes of the burst so far.
    received: u64,
    /// Packets that need less than a walk.
    lanes: lanes::Lanes<F>,
    waiting_for: hold::Waiting<F>,
    caches: cache::Caches,
}

impl<F: Frame> Default for Engine<F> {
    fn default() -> Self {
        Engine::new()
    }
}

impl<F: Frame> Engine<F> {
    /// An engine with room for bursts of any size.
    pub fn new() -> Engine<F> {
        Engine {
            walks: Vec::new(),
            hot: vec![HotWords::ZERO; LOOKUP_MAX].into(),
            more: vec![MoreWords::ZERO; LOOKUP_MAX].into(),
            runs: Vec::with_capacity(LOOKUP_MAX),
            waiting: Vec::new(),
            group: Vec::new(),
            received: 0,
            lanes: lanes::Lanes::new(),
            waiting_for: hold::Waiting::new(),
            caches: cache::Caches::new(),
        }
    }

    /// Walks a burst that came in by `in_port` through the bridge's tables, from table 0, and leaves `frames` empty. Returns how many bytes
    /// they had. `mirrored`: mirrors that have had these
    /// packets already. Time is in milliseconds of the datapath's clock.
    #[allow(clippy::too_many_arguments)] // one call per burst; a struct would only rename them
    pub fn burst<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        mirrored: u32,
        now_ms: u64,
        host: &mut H,
    ) -> u64 {
        let burst = Burst {
            bridge,
            guard,
            valid: bridge.needed(),
            now_ms,
            counters: bridge.program().counters.of_worker(guard.index()),
            ordered: self.goes_in_order(bridge, in_port, frames, host),
            before: u64::MAX,
        };
        self.received = 0;
        // Only the general way tells fragments from others.
        let short = !burst.ordered && !bridge.drops_fragments();
        let mut cached = self.caches.begin(&burst, short, frames.len());
        while !frames.is_empty() {
            if let Some(cached) = &mut cached
                && self.by_cache(&burst, in_port, frames, cached, mirrored, host)
            {
                self.drive(&burst, host);
                continue;
            }
            if short && self.front(&burst, in_port, frames, mirrored, host) {
                self.drive(&burst, host);
                continue;
            }
            let count = frames.len().min(LOOKUP_MAX);
            self.received += frames[..count]
                .iter()
                .map(|frame| frame.len() as u64)
                .sum::<u64>();
            self.walks
                .resize_with(self.walks.len().max(count), Walk::new);
            if self.parse(&burst, in_port, &mut frames[..count], host) {
                if burst.ordered {
                    self.first_lookup_in_order(&burst, frames.drain(..count), mirrored, host);
                    continue;
                }
                self.first_lookup(&burst, frames.drain(..count), mirrored, host);
            } else {
                self.sift(&burst, frames, count, mirrored, host);
            }
            self.drive(&burst, host);
        }
        self.caches.end(&burst, cached);
        self.received
    }

    /// Whether packets are to be walked one after the other: where they may ask for a rule, and where a rule
    /// that has been asked for may decide one of their lookups.
    #[inline(always)]
    fn goes_in_order<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        in_port: PortNo,
        frames: &[F],
        host: &H,
    ) -> bool {
        bridge.learns_from(in_port)
            || (self.waiting_for.concerns(host)
                && self.may_wait(bridge, in_port, frames, host.place().bridge))
    }

    /// Whether a rule that has been asked for may decide a lookup of these packets: told by what they came
    /// with and no rule writes.
    #[cold]
    #[inline(never)]
    fn may_wait(&mut self, bridge: &Bridge, in_port: PortNo, frames: &[F], number: u32) -> bool {
        let kept = bridge.kept();
        let mut first = [0; LOOKUP_MAX];
        let hot = &mut self.hot;
        frames.chunks(LOOKUP_MAX).any(|frames| {
            let read = packet::hot::read_burst(frames, in_port, &[], hot, &mut first);
            // Others tell more than that.
            read.count < frames.len()
                || self
                    .waiting_for
                    .asked
                    .may_decide(number, kept, &hot[..frames.len()])
        })
    }

    /// Parses frames into the keys of the first walks; false when some of them are not frames at all.
    #[inline(always)]
    fn parse<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut [F],
        host: &mut H,
    ) -> bool {
        let mut sound = true;
        for (frame, walk) in frames.iter_mut().zip(&mut self.walks) {
            parse::parse_frame_into(frame, in_port, burst.valid, &mut walk.key, &mut walk.layers);
            if let Some(reason) = walk.layers.malformed {
                host.malformed(reason);
                sound &= !matches!(reason, Malformed::Ethernet | Malformed::Split);
            }
        }
        if burst.bridge.drops_fragments() {
            sound &= !self.walks[..frames.len()].iter().any(Walk::is_fragment);
        }
        if burst.valid.contains(at::ACTSET_OUTPUT / 8) {
            for walk in &mut self.walks[..frames.len()] {
                walk.key.set_u32(at::ACTSET_OUTPUT, action_set::NO_OUTPUT);
            }
        }
        sound
    }

    /// Finds the rules that parsed packets meet in the first table, one for each place of `found`.
    #[inline(always)]
    fn look_up_first<'g>(
        &mut self,
        burst: &Burst<'_, 'g>,
        found: &mut [Option<&'g crate::rule::Rule>],
    ) {
        let count = found.len();
        self.walks[..count]
            .iter_mut()
            .for_each(|walk| walk.hide_fragment_ports(burst));
        let walks = &self.walks;
        burst
            .bridge
            .lookup_burst(0, count, |index| &walks[index].key, burst.guard, found);
    }

    /// Looks parsed frames up in the first table. A rule that only sends to a port is carried out at once.
    #[inline(always)]
    fn first_lookup<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        frames: impl ExactSizeIterator<Item = F>,
        mirrored: u32,
        host: &mut H,
    ) {
        let mut found = [None; LOOKUP_MAX];
        self.look_up_first(burst, &mut found[..frames.len()]);
        for (index, (frame, rule)) in frames.zip(found).enumerate() {
            let walk = &mut self.walks[index];
            host.looked_up(0, Some(&walk.key), rule);
            if let Some(rule) = rule {
                burst
                    .counters
                    .add(rule.spec.counter, 1, frame.len() as u64, burst.now_ms);
                if let Some(port) = rule.only_output() {
                    walk.mirrored = mirrored;
                    walk.sent = false;
                    let context = Context {
                        in_port: walk.key.u32(at::IN_PORT),
                        key: &walk.key,
                        valid: burst.valid,
                        table: 0,
                        cookie: rule.spec.cookie,
                        queue: None,
                        mirrored: &mut walk.mirrored,
                        sent: &mut walk.sent,
                    };
                    host.output(context, port, frame, false);
                    continue;
                }
            }
            walk.start(frame, mirrored);
            let next = match rule {
                Some(rule) => Self::hit(walk, burst, host, 0, rule),
                None => Self::missed(walk, burst, host, 0),
            };
            match next {
                Next::Done => {}
                Next::Lookup(table) => self.waiting.push((table, index as u16)),
                other => self.run_to_end(burst, host, index, other),
            }
        }
    }

    /// Throws out what is not a frame, or could not be gathered for want of memory, and looks the rest up. Such frames have been counted. Throws out
    /// fragments too, where they are dropped.
    #[cold]
    fn sift<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        frames: &mut Vec<F>,
        count: usize,
        mirrored: u32,
        host: &mut H,
    ) {
        let mut kept: SmallVec<[F; LOOKUP_MAX]> = SmallVec::new();
        for (index, frame) in frames.drain(..count).enumerate() {
            let walk = &self.walks[index];
            if burst.bridge.drops_fragments() && walk.is_fragment() {
                host.dropped(DropReason::Fragment);
            } else if !matches!(
                walk.layers.malformed,
                Some(Malformed::Ethernet | Malformed::Split)
            ) {
                self.walks.swap(index, kept.len());
                kept.push(frame);
            }
        }
        if burst.ordered {
            return self.first_lookup_in_order(burst, kept.into_iter(), mirrored, host);
        }
        self.first_lookup(burst, kept.into_iter(), mirrored, host);
    }

    /// Runs steps on one frame, as a packet-out does; `in_port` may be a reserved number. Lookups that the steps ask for find rules in the guard's epoch.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    pub fn run_ops<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        in_port: PortNo,
        mut frame: F,
        ops: &Arc<OpList>,
        now_ms: u64,
        host: &mut H,
    ) {
        let burst = Burst::of_one(bridge, guard, ops.words(), now_ms);
        if self.walks.is_empty() {
            self.walks.push(Walk::new());
        }
        let walk = &mut self.walks[0];
        walk.layers = parse::parse_frame(&mut frame, in_port, burst.valid, &mut walk.key);
        walk.key.set_u32(at::ACTSET_OUTPUT, action_set::NO_OUTPUT);
        walk.start(frame, 0);
        walk.at.steps = Steps::of(&ops.ops);
        let next = walk.run(&burst, host);
        self.begin_with(guard, ops);
        self.run_to_end(&burst, host, 0, next);
        self.end_with();
    }

    /// Looks up and runs all walks that wait until none does.
    #[inline(always)]
    fn drive<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if !self.waiting.is_empty() {
            self.drive_on(burst, host);
        }
    }

    fn drive_on<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        let mut found = [None; LOOKUP_MAX];
        while let Some(table) = self.waiting.iter().map(|(table, _)| *table).min() {
            let mut group = std::mem::take(&mut self.group);
            group.clear();
            self.waiting.retain(|(wanted, index)| {
                let now = *wanted == table && group.len() < LOOKUP_MAX;
                if now {
                    group.push(*index);
                }
                !now
            });
            group
                .iter()
                .for_each(|index| self.walks[usize::from(*index)].hide_fragment_ports(burst));
            let walks = &self.walks;
            burst.bridge.lookup_burst(
                table,
                group.len(),
                |index| &walks[usize::from(group[index])].key,
                burst.guard,
                &mut found,
            );
            for (index, rule) in group.iter().zip(found.iter()) {
                let walk = &mut self.walks[usize::from(*index)];
                host.looked_up(table, Some(&walk.key), *rule);
                let next = match rule {
                    Some(rule) => {
                        walk.count(burst, rule);
                        Self::hit(walk, burst, host, table, rule)
                    }
                    None => Self::missed(walk, burst, host, table),
                };
                match next {
                    Next::Done => {}
                    Next::Lookup(table) => self.waiting.push((table, *index)),
                    other => self.run_to_end(burst, host, (*index).into(), other),
                }
            }
            self.group = group;
        }
    }

    #[inline(always)]
    fn hit<H: Host<F>>(
        walk: &mut Walk<F>,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
        rule: &crate::rule::Rule,
    ) -> Next {
        if rule.shortens_timeouts() {
            walk.connection_ends(host, table, rule);
        }
        walk.land(table, rule);
        walk.run(burst, host)
    }

    fn missed<H: Host<F>>(
        walk: &mut Walk<F>,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
    ) -> Next {
        if walk.resubmitted {
            return walk.run(burst, host);
        }
        walk.at.table = table;
        walk.at.cookie = NO_COOKIE;
        match burst.bridge.miss(table) {
            Miss::Next if usize::from(table) + 1 < crate::table::TABLES - 1 => {
                Next::Lookup(table + 1)
            }
            // "Continue" behind the last table asks the controllers, as in Open vSwitch.
            Miss::Controller | Miss::Next => {
                let to = ToController {
                    max_len: u16::MAX,
                    reason: PacketInReason::NoRule,
                    controller_id: 0,
                    userdata: Vec::new(),
                };
                walk.send_to_controller(burst, host, &to);
                walk.run(burst, host)
            }
            Miss::Drop => {
                if walk.pending.is_empty() && !walk.sent {
                    host.dropped(DropReason::TableMiss);
                    walk.sent = true; // it has been counted
                }
                walk.run(burst, host)
            }
        }
    }
}
