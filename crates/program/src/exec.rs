//! Runs bursts of packets through a bridge's tables.
//!
//! The engine parses a burst, looks all of it up in the first table at once, and runs each packet's
//! steps until the packet is done or needs another lookup. Packets that wait for the same table are
//! looked up together, tables in ascending order. A walk's state (key, position in the lists of
//! steps, registers, action set, stack) lies in [`Walk`], not on a call stack, so that it can stop
//! at any lookup and resume.
//!
//! Outputs are deferred until something changes the packet or the walk ends: the last output takes
//! the frame itself, and only the others copy it.

mod first_table;
pub(crate) mod flow_cache;
pub(crate) mod interpreter;
pub(crate) mod lanes;
pub(crate) mod suspend;

pub use flow_cache::{CacheBoard, CacheMode, CacheReport};
pub use interpreter::{MAX_DEPTH, MAX_RESUBMITS, MAX_STACK, NO_COOKIE};
pub use suspend::fragment::{Arrived, Parked};
pub use suspend::freeze::{Frozen, Thaw};
pub use suspend::hold::{ASKED_MAX, HELD_BYTES, HELD_MAX, Held, PATIENCE_MS, Wait};
pub use suspend::rates::{ASKED_AT_ONCE, ASKED_PER_MS};

use crate::actions::reserved;
use crate::actions::{OpList, PacketInReason, PortNo, ToController};
use crate::burst::LOOKUP_MAX;
use crate::epoch::Guard;
use crate::host::{Context, DropReason, Host};
use crate::table::{Bridge, Miss};
use conntrack::Earlier;
use interpreter::{Burst, First, Next, Steps, Walk};
use packet::key::at;
use packet::mini_key::{MiniKey, Run};
use packet::parse::{self, Malformed, MoreWords};
use packet::tunnel::{TunnelInfo, TunnelWords};
use packet::{FlowKey, Frame, WordSet};
use smallvec::SmallVec;
use stages::Stage;
use std::sync::Arc;

/// In which order the packets of a burst are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// In any.
    Any,
    /// As lanes, which do not look up in this table (not the first) or a later one until those
    /// before them have asked for rules: see `table::learning`.
    Steps(u8),
    /// One after the other: they may ask for a rule other than lanes do, or a rule that has been
    /// asked for may decide one of their lookups.
    Walks,
}

impl Order {
    /// Returns whether packets may be lanes.
    #[inline(always)]
    fn has_lanes(self) -> bool {
        self != Order::Walks
    }
}

/// Runs bursts. Each worker has one; it keeps its memory between bursts.
pub struct Engine<F> {
    walks: Vec<Walk<F>>,
    /// Mini keys of the first packets during the first lookup.
    hot: Box<[MiniKey]>,
    /// Further words of IPv6 and ARP packets, where the first table looks at them.
    more: Box<[MoreWords]>,
    /// Runs of neighbouring packets that met the same rule, where mini keys are not needed.
    runs: Vec<Run>,
    /// Walks that wait for a lookup: table, and index of the walk.
    waiting: Vec<(u8, u16)>,
    group: Vec<u16>,
    /// Walks that wait until all others of a burst are done: they are to ask for a rule, or may
    /// have to meet one that others ask for. With what they do then.
    to_learn: Vec<(u16, Next)>,
    /// Bytes of the burst so far.
    received: u64,
    /// Packets that do not need a walk.
    lanes: lanes::Lanes<F>,
    waiting_for: suspend::hold::Waiting<F>,
    caches: flow_cache::Caches,
}

impl<F: Frame> Default for Engine<F> {
    fn default() -> Self {
        Engine::new()
    }
}

impl<F: Frame> Engine<F> {
    /// Creates an engine with room for bursts of any size.
    pub fn new() -> Engine<F> {
        Engine {
            walks: Vec::new(),
            hot: vec![MiniKey::ZERO; LOOKUP_MAX].into(),
            more: vec![MoreWords::ZERO; LOOKUP_MAX].into(),
            runs: Vec::with_capacity(LOOKUP_MAX),
            waiting: Vec::new(),
            group: Vec::new(),
            to_learn: Vec::new(),
            received: 0,
            lanes: lanes::Lanes::new(),
            waiting_for: suspend::hold::Waiting::new(),
            caches: flow_cache::Caches::new(),
        }
    }

    /// Runs a burst that came in by `in_port` through the bridge's tables, from table 0, and leaves
    /// `frames` empty. Returns the number of bytes received. `mirrored`: mirrors that have already
    /// had these packets. Time is in milliseconds of the datapath's clock.
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
        let order = self.order(bridge, in_port, frames, host);
        let mut burst = Burst::new(bridge, guard, WordSet::EMPTY, now_ms, host);
        burst.obey(order);
        burst.replies = burst.replies && any_reply(frames);
        self.received = 0;
        // Only the general way recognizes fragments, and sends DHCP replies to the local port.
        let mut short = order.has_lanes() && !bridge.drops_fragments() && !burst.replies;
        // A recorded walk would ask before walks that wait to do so.
        let cacheable = short && !bridge.learns_from(in_port);
        let mut cached = self.caches.begin(&burst, cacheable, frames.len());
        while !frames.is_empty() {
            if let Some(cached) = &mut cached
                && self.by_cache(&burst, in_port, frames, cached, mirrored, host)
            {
                self.drive(&burst, host);
                continue;
            }
            if short && self.front(&burst, in_port, frames, mirrored, host) {
                self.drive(&burst, host);
                short &= !self.may_have_asked(&mut burst, host);
                continue;
            }
            let some = &frames[..frames.len().min(LOOKUP_MAX)];
            self.received += some.iter().map(|frame| frame.len() as u64).sum::<u64>();
            self.walk_some(&burst, in_port, frames, |_| {}, mirrored, host);
            short &= !self.may_have_asked(&mut burst, host);
        }
        self.caches.end(&burst, cached);
        // Not by `enter`, whose value would cost the loops above a register.
        stages::go(Stage::Control, 0);
        self.received
    }

    /// Like [`Engine::burst`], for packets with words in their keys that do not come from their
    /// headers, such as tunnel fields, or that another bridge has tracked. `begin` writes the words
    /// `given` for the packet at this index of the burst, which must not be words that the packet's
    /// own headers fill, and what the tracker has last said of it. Such packets take the general
    /// way, since neither lanes nor the flow cache know of this.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    pub fn burst_from<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        given: WordSet,
        mut begin: impl FnMut(usize, &mut FlowKey, &mut Earlier),
        mirrored: u32,
        now_ms: u64,
        host: &mut H,
    ) {
        let mut burst = Burst::new(bridge, guard, given, now_ms, host);
        burst.ordered = bridge.learns_from(in_port) || self.waiting_for.concerns(host);
        let mut done = 0;
        while !frames.is_empty() {
            let start = |walks: &mut [Walk<F>]| {
                for (index, walk) in walks.iter_mut().enumerate() {
                    begin(done + index, &mut walk.key, &mut walk.tracked);
                }
                done += walks.len();
            };
            self.walk_some(&burst, in_port, frames, start, mirrored, host);
        }
        stages::go(Stage::Control, 0);
    }

    /// Like [`Engine::burst`], for packets that came by tunnels, each by its port. `say` writes the
    /// tunnel metadata of the packet at this index of the burst, all words of it; without `say` no
    /// rule or output may look at that.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    pub fn burst_by_tunnels<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        ports: &[PortNo],
        frames: &mut Vec<F>,
        mut say: Option<impl FnMut(usize, &mut TunnelWords)>,
        now_ms: u64,
        host: &mut H,
    ) {
        const WORDS: WordSet = TunnelInfo::WORDS.union(packet::tunnel::OPTION_WORDS);
        let given = match say {
            Some(_) => WORDS,
            None => WordSet::EMPTY,
        };
        let mut burst = Burst::new(bridge, guard, given, now_ms, host);
        burst.replies = burst.replies && any_reply(frames);
        let order = self.order_by(bridge, ports, host);
        burst.obey(order);
        let in_port = match ports {
            [first, others @ ..] if others.iter().all(|port| port == first) => *first,
            _ => lanes::SEVERAL,
        };
        let arrival = lanes::Arrival {
            in_port,
            mirrored: 0,
        };
        // As in `burst`.
        let mut short = order.has_lanes() && !bridge.drops_fragments() && !burst.replies;
        let mut done = 0;
        while !frames.is_empty() {
            let from = done;
            let mut say = (say.as_mut())
                .map(|say| move |index: usize, words: &mut TunnelWords| say(from + index, words));
            let ports = ports.get(done..).unwrap_or_default();
            let begun = match short {
                true => self.begin_by_tunnels(&burst, arrival, host, frames, ports, say.as_mut()),
                false => 0,
            };
            if begun > 0 {
                self.drive_lanes(&burst, arrival, host);
                self.drive(&burst, host);
                short &= !self.may_have_asked(&mut burst, host);
                done += begun;
                continue;
            }
            let count = frames.len().min(LOOKUP_MAX);
            let start = |walks: &mut [Walk<F>]| {
                for (index, walk) in walks.iter_mut().enumerate() {
                    let port = ports.get(index).copied().unwrap_or_default();
                    walk.key.set_u32(at::IN_PORT, port);
                    if let Some(say) = &mut say {
                        let mut words = TunnelWords::ZERO;
                        say(index, &mut words);
                        walk.key.clear(given);
                        words.fill(&mut walk.key, given);
                    }
                }
            };
            self.walk_some(&burst, in_port, frames, start, 0, host);
            short &= !self.may_have_asked(&mut burst, host);
            done += count;
        }
        stages::go(Stage::Control, 0);
    }

    /// Takes up to [`LOOKUP_MAX`] frames from the front and walks them the general way. `start` may
    /// write more words of their keys after parsing.
    #[inline(always)]
    fn walk_some<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        start: impl FnOnce(&mut [Walk<F>]),
        mirrored: u32,
        host: &mut H,
    ) {
        let count = frames.len().min(LOOKUP_MAX);
        self.walks
            .resize_with(self.walks.len().max(count), Walk::new);
        stages::go(Stage::Parse, count);
        let sound = self.parse(burst, in_port, &mut frames[..count], host);
        start(&mut self.walks[..count]);
        if !sound {
            self.sift(burst, frames, count, mirrored, host);
        } else if burst.ordered {
            return self.first_lookup_in_order(burst, frames.drain(..count), mirrored, host);
        } else {
            self.first_lookup(burst, frames.drain(..count), mirrored, host);
        }
        self.drive(burst, host);
    }

    /// Returns the order that a burst needs.
    #[inline(always)]
    fn order<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        in_port: PortNo,
        frames: &[F],
        host: &H,
    ) -> Order {
        let learns = bridge.learns_from(in_port);
        let meets = || bridge.meets_requested(in_port);
        self.order_of(bridge, learns, meets, host, |engine| {
            engine.may_wait(bridge, in_port, frames, host.place().bridge)
        })
    }

    /// The same for packets that came by these ports.
    #[inline(always)]
    fn order_by<H: Host<F>>(&mut self, bridge: &Bridge, ports: &[PortNo], host: &H) -> Order {
        let learns = ports.iter().any(|port| bridge.learns_from(*port));
        let meets = || ports.iter().any(|port| bridge.meets_requested(*port));
        self.order_of(bridge, learns, meets, host, |_| true)
    }

    /// Returns the order for packets that may come to a step that asks (`learns`), may meet what is
    /// asked for (`meets`), and one of whose lookups a rule that was asked for may decide
    /// (`may_wait`, judged only if there is such a rule).
    #[inline(always)]
    fn order_of<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        learns: bool,
        meets: impl FnOnce() -> bool,
        host: &H,
        may_wait: impl FnOnce(&mut Self) -> bool,
    ) -> Order {
        if learns && !bridge.learns_by_lanes() {
            return Order::Walks;
        }
        let concerned = self.waiting_for.concerns(host);
        if !(learns || concerned) || !meets() {
            return Order::Any;
        }
        match concerned && may_wait(self) {
            true => Order::Walks,
            false if learns => bridge.order_of_steps(),
            false => Order::Any,
        }
    }

    /// Returns whether packets of a burst so far may have asked for rules that the next ones may
    /// meet, which then are walked.
    #[inline(always)]
    fn may_have_asked<H: Host<F>>(&self, burst: &mut Burst<'_, '_>, host: &H) -> bool {
        let may = burst.barrier != 0 && self.waiting_for.concerns(host);
        if may {
            burst.barrier = 0;
        }
        may
    }

    /// Returns whether a rule that has been asked for may decide a lookup of these packets, judged
    /// by words that they came with and that no rule writes.
    #[cold]
    #[inline(never)]
    fn may_wait(&mut self, bridge: &Bridge, in_port: PortNo, frames: &[F], number: u32) -> bool {
        let kept = bridge.kept();
        let asked = &self.waiting_for.asked;
        if asked.none_has_addresses_of(number, kept, frames) {
            return false;
        }
        let mut first = [0; LOOKUP_MAX];
        let hot = &mut self.hot;
        frames.chunks(LOOKUP_MAX).any(|frames| {
            let read = packet::mini_key::read_burst(frames, in_port, &[], hot, &mut first);
            // Packets of other kinds match on more than mini keys.
            read.count < frames.len()
                || self
                    .waiting_for
                    .asked
                    .may_decide(number, kept, &hot[..frames.len()])
        })
    }

    /// Parses frames into the keys of the first walks. Returns false when some are not frames at
    /// all, or are fragments that the bridge drops.
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
            walk.tracked = Earlier::default();
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
                walk.key.set_u32(at::ACTSET_OUTPUT, reserved::UNSET);
            }
        }
        sound
    }

    /// Finds the rules that parsed packets meet in the first table, one for each element of
    /// `found`.
    #[inline(always)]
    fn look_up_first<'g>(
        &mut self,
        burst: &Burst<'_, 'g>,
        found: &mut [Option<&'g crate::rule::Rule>],
    ) {
        let count = found.len();
        stages::go(Stage::Lookup, count);
        self.walks[..count]
            .iter_mut()
            .for_each(|walk| walk.hide_fragment_ports(burst));
        let walks = &self.walks;
        burst
            .bridge
            .lookup_burst(0, count, |index| &walks[index].key, burst.guard, found);
        stages::go(Stage::Actions, count);
    }

    /// Looks parsed frames up in the first table. A rule that only sends to a port is executed at
    /// once.
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
                if let Some(port) = rule.only_output()
                    && walk.tracked.state == 0
                    && !walk.is_reply(burst)
                {
                    walk.mirrored = mirrored;
                    walk.sent = false;
                    let context = Context {
                        in_port: walk.key.u32(at::IN_PORT),
                        key: &walk.key,
                        valid: burst.valid,
                        table: 0,
                        cookie: rule.spec.cookie,
                        queue: None,
                        counted: 0,
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
            self.go_on(burst, host, index, next);
        }
    }

    /// Removes what is not a frame or could not be gathered for want of memory (already counted),
    /// and fragments where the bridge drops them (counted here); looks the rest up.
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

    /// Runs steps on one frame, as a packet-out does; `in_port` may be a reserved number. Lookups
    /// that the steps ask for find rules in the guard's epoch.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    pub fn run_ops<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        in_port: PortNo,
        frame: F,
        ops: &Arc<OpList>,
        now_ms: u64,
        host: &mut H,
    ) {
        let mut metadata = FlowKey::ZERO;
        metadata.set_u32(at::IN_PORT, in_port);
        self.run_ops_with(bridge, guard, &metadata, frame, ops, now_ms, host);
    }

    /// Like [`Engine::run_ops`], on a frame that begins with this metadata: ingress port,
    /// registers, tunnel and so on. Ignores words of `metadata` that describe the packet's own
    /// headers.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    pub fn run_ops_with<H: Host<F>>(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        metadata: &FlowKey,
        mut frame: F,
        ops: &Arc<OpList>,
        now_ms: u64,
        host: &mut H,
    ) {
        let _stage = stages::enter(Stage::Actions, 1);
        // Packet-ins carry these words even where neither tables nor steps read them.
        let given = metadata.nonzero().minus(parse::PACKET_WORDS);
        let words = ops.words().union(given);
        let burst = Burst::of_one(bridge, guard, words, now_ms, host);
        if self.walks.is_empty() {
            self.walks.push(Walk::new());
        }
        let walk = &mut self.walks[0];
        let in_port = metadata.u32(at::IN_PORT);
        walk.layers = parse::parse_frame(&mut frame, in_port, burst.valid, &mut walk.key);
        for word in given.iter() {
            walk.key.words[word] = metadata.words[word];
        }
        walk.key.set_u32(at::ACTSET_OUTPUT, reserved::UNSET);
        walk.start(frame, 0);
        walk.tracked = Earlier::default();
        walk.packet_out = true;
        walk.first = Some(First::NO_RULE);
        walk.at.steps = Steps::of(&ops.ops);
        let next = walk.run(&burst, host);
        self.begin_with(guard, ops);
        self.run_to_end(&burst, host, 0, next);
        self.end_with();
    }

    /// Looks up and runs all waiting walks until none waits.
    #[inline(always)]
    fn drive<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        if !self.waiting.is_empty() {
            if burst.barrier != 0 && !self.to_learn.is_empty() {
                self.let_go_first();
            }
            self.drive_on(burst, host);
        }
        if !self.to_learn.is_empty() {
            self.learn_in_order(burst, host);
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
            stages::go(Stage::Lookup, group.len());
            burst.bridge.lookup_burst(
                table,
                group.len(),
                |index| &walks[usize::from(group[index])].key,
                burst.guard,
                &mut found,
            );
            stages::go(Stage::Actions, group.len());
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
                self.go_on(burst, host, (*index).into(), next);
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
            Miss::Next if usize::from(table) + 1 < crate::rule::TABLES - 1 => {
                Next::Lookup(table + 1)
            }
            // "Continue" behind the last table sends to the controllers, as in Open vSwitch.
            Miss::Controller | Miss::Next => {
                let to = ToController::whole(PacketInReason::NoRule);
                walk.send_to_controller(burst, host, &to);
                walk.run(burst, host)
            }
            Miss::Drop => {
                if walk.pending.is_empty() && !walk.sent && !walk.is_reply(burst) {
                    host.dropped(DropReason::TableMiss);
                    walk.sent = true; // already counted
                }
                walk.run(burst, host)
            }
        }
    }
}

/// Returns whether a DHCP reply is among frames.
#[cold]
#[inline(never)]
fn any_reply<F: Frame>(frames: &[F]) -> bool {
    (frames.iter()).any(|frame| parse::is_dhcp_reply(frame.head()))
}
