//! Runs packets whose rules have action blocks ([`crate::actions::block`]), a whole burst from
//! table to table.
//!
//! A packet of the common kinds is a lane: two cache lines with its mini key, metadata and
//! registers, and beside them its frame and, for some, further words: those of IPv6 and ARP, of its
//! connection, of tunnels. Lanes that wait for
//! the same table are a set, 64 bits. They are looked up together, the result is a list of rules,
//! each with the set of lanes that have met it, and what a rule does is decided once for all of
//! them. So a stage with one rule for everything costs next to nothing however many packets pass
//! it.
//!
//! A rule may look up in the middle of its steps and then continue. Lanes that wait for such a
//! lookup know where to return to; these places form a chain ([`Back`]).
//!
//! Where a packet meets another kind of rule or table, or an edit cannot be done, it leaves its
//! lane and becomes a walk, with the state that the general way expects.

mod fused;
mod learn;
mod steps;
mod tracked;
mod tunnelled;
mod wide;

pub(crate) use tunnelled::SEVERAL;
pub(crate) use wide::word_beyond;

use crate::actions::PortNo;
use crate::actions::block::{ActionBlock, End, LANE_WORDS, MultipathHash, Write};
use crate::actions::reserved;
use crate::burst::Words;
use crate::burst::beyond;
use crate::burst::{LOOKUP_MAX, LaneSet, Members};
use crate::classifier::lanes::Found;
use crate::classifier::mini_key::Reads;
use crate::exec::Engine;
use crate::exec::interpreter::{Burst, First, NO_COOKIE, Next, Position, Steps, Walk};
use crate::host::{DropReason, Host};
use crate::rule::Rule;
use crate::rule::fused::{Here, Met};
use conntrack::{Earlier, Tracked};
use packet::edit::Rewrite;
use packet::key::at;
use packet::mini_key::MiniKey;
use packet::parse::{Extent, MINI_KEY_WORDS, MoreWords};
use packet::tunnel::TunnelWords;
use packet::{FlowKey, Frame, WordSet};
use std::marker::PhantomData;
use std::ptr::NonNull;
use tracked::Connections;

/// Sets of lanes that are looked up for a burst before the remaining lanes go the general way,
/// which counts its lookups itself. This bounds rules that branch again and again.
const ROUNDS: usize = 256;
/// Number of hash buckets of places to return to.
const RECENT: usize = 64;
/// No place to return to.
const NOWHERE: u16 = u16::MAX;

/// Returns the bits of a key's first word that say by which port a packet came in.
#[inline(always)]
pub(crate) fn in_port_word(port: PortNo) -> u64 {
    const { assert!(at::IN_PORT == 0) };
    let [a, b, c, d] = port.to_be_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

/// Returns whether a packet, whose mini key begins with `word`, came in by a port.
#[inline(always)]
fn came_by(word: u64, port: PortNo) -> bool {
    word & crate::classifier::mini_key::PORT_MASK == in_port_word(port)
}

/// How a burst came in.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// [`SEVERAL`] for packets that came by different ports.
    pub in_port: PortNo,
    /// Mirrors that have had its packets.
    pub mirrored: u32,
}

/// The state of one packet.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Lane {
    words: [u64; LANE_WORDS],
    extent: Extent,
    len: u32,
    /// Lookups after the first.
    hops: u32,
}

impl Lane {
    const ZERO: Lane = Lane {
        words: [0; LANE_WORDS],
        extent: Extent::ZERO,
        len: 0,
        hops: 0,
    };

    #[inline(always)]
    fn begin(&mut self, hot: &MiniKey) {
        self.words[..MINI_KEY_WORDS].copy_from_slice(&hot.words);
        self.words[MINI_KEY_WORDS..].fill(0);
        (self.extent, self.len, self.hops) = (hot.extent, hot.len, 0);
    }

    #[inline(always)]
    fn hot(&mut self) -> &mut [u64; MINI_KEY_WORDS] {
        let hot = self.words.first_chunk_mut();
        hot.unwrap_or_else(|| unreachable!("a lane has more words than a mini key"))
    }

    #[inline(always)]
    fn mini_key(&self) -> &[u64; MINI_KEY_WORDS] {
        let hot = self.words.first_chunk();
        hot.unwrap_or_else(|| unreachable!("a lane has more words than a mini key"))
    }

    /// Writes bits of a word.
    #[inline(always)]
    fn write(&mut self, write: &Write) {
        if let Some(word) = self.words.get_mut(usize::from(write.word)) {
            *word = *word & !write.mask | write.value;
        }
    }

    /// Edits its packet.
    #[inline(always)]
    fn rewrite<F: Frame>(&mut self, frame: &mut Option<F>, rewrite: &Rewrite) {
        if !rewrite.is_nothing()
            && let Some(frame) = frame
        {
            rewrite.run(frame, self.extent, self.hot());
        }
    }
}

/// Initializes the first words of a key from `words`, and the others that are `valid` with their
/// initial values.
#[inline(always)]
pub(crate) fn begin_key<const N: usize>(key: &mut FlowKey, words: &[u64; N], valid: WordSet) {
    key.words[..N].copy_from_slice(words);
    let others = valid.minus(const { WordSet((1 << N) - 1) });
    if !others.is_empty() {
        key.clear(others);
    }
    if others.contains(at::ACTSET_OUTPUT / 8) {
        key.set_u32(at::ACTSET_OUTPUT, reserved::UNSET);
    }
}

impl Words for Lane {
    const AT_HAND: u8 = LANE_WORDS as u8;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        match self.words.get(usize::from(index)) {
            Some(word) => *word,
            None => beyond(index),
        }
    }

    #[inline(always)]
    fn at_hand(&self, index: usize) -> u64 {
        self.words[index]
    }

    /// As the trait's default, but locates the word once for all lanes.
    #[inline(always)]
    fn differing(packets: &[Lane; LOOKUP_MAX], set: LaneSet, index: u8, wanted: u64) -> u64 {
        let at = usize::from(index);
        if at >= LANE_WORDS {
            return beyond(index) ^ wanted;
        }
        set.fold(packets, 0, |differ, lane| differ | lane.words[at] ^ wanted)
    }
}

/// Returns the same place in the form that walks use.
fn position<F>(here: &Here) -> Position<F> {
    let spec = &here.rule.get().spec;
    let steps = Steps::of(&spec.ops.ops);
    let next = here.block().map(|block| usize::from(block.first));
    Position {
        steps,
        next: next.unwrap_or(steps.get().len()),
        table: here.table,
        cookie: spec.cookie,
        depth: 0,
        level: 0,
        saved: None,
    }
}

/// Where lanes continue after a lookup, and the index of the place where they continue after that.
#[derive(Clone, Copy)]
struct Back {
    here: Here,
    up: u16,
    /// An earlier place whose hash may be the same; none if it is not earlier.
    before: u16,
}

/// Lanes before a lookup.
#[derive(Clone, Copy)]
struct Waiting {
    table: u8,
    /// Whether no match means to continue, not a miss.
    resubmit: bool,
    back: u16,
    set: LaneSet,
}

impl Waiting {
    const NONE: Waiting = Waiting {
        table: 0,
        resubmit: false,
        back: NOWHERE,
        set: LaneSet::EMPTY,
    };
}

/// The lanes of a burst.
pub(crate) struct Lanes<F> {
    lanes: Box<[Lane; LOOKUP_MAX]>,
    /// Lanes whose packets have further words: those of `others`, `tracked` and `tunnelled`.
    wide: LaneSet,
    /// Lanes of other protocols than IPv4.
    others: LaneSet,
    /// The further words of packets that are not IPv4.
    more: Box<[MoreWords; LOOKUP_MAX]>,
    /// Lanes whose packets have been tracked, and what they know of their connections.
    tracked: LaneSet,
    connections: Box<Connections>,
    /// Lanes whose packets have tunnel metadata, and that.
    tunnelled: LaneSet,
    tunnels: Box<[TunnelWords; LOOKUP_MAX]>,
    /// Lanes of whose packets copies have been sent.
    copied: LaneSet,
    /// Tracker's answers for packets that become walks.
    aside: Vec<(usize, Tracked)>,
    /// Translations of packets that stay lanes; empty but while these are made.
    edits: Vec<(Rewrite, usize)>,
    frames: Box<[Option<F>; LOOKUP_MAX]>,
    /// Cookies of the rules that packets have met in the first table, noted only where rules write
    /// action sets; otherwise stale.
    firsts: Box<[u64; LOOKUP_MAX]>,
    /// Ports to which the lanes of `sent` go, once all are done.
    ports: [PortNo; LOOKUP_MAX],
    sent: LaneSet,
    /// The last of those ports, and whether there are others.
    port: PortNo,
    mixed: bool,
    waiting: Vec<Waiting>,
    /// Those of the last lookup whose rules have not been executed yet, where there are several.
    unmet: Waiting,
    backs: Vec<Back>,
    /// The last place noted for each hash; may name places of earlier bursts.
    recent: [u16; RECENT],
    rounds: usize,
    /// Rules that packets teach which wait to ask, a bit for each, by which several may be taken
    /// for one.
    unknown: u64,
    /// The first packet that waits to ask and may come to another step then.
    may_teach_again: usize,
    /// Frames on their way out.
    out: Vec<F>,
}

impl<F: Frame> Lanes<F> {
    pub fn new() -> Lanes<F> {
        Lanes {
            lanes: Box::new([Lane::ZERO; LOOKUP_MAX]),
            wide: LaneSet::EMPTY,
            others: LaneSet::EMPTY,
            more: Box::new([MoreWords::ZERO; LOOKUP_MAX]),
            tracked: LaneSet::EMPTY,
            connections: Box::new(Connections::NONE),
            tunnelled: LaneSet::EMPTY,
            tunnels: Box::new([TunnelWords::ZERO; LOOKUP_MAX]),
            copied: LaneSet::EMPTY,
            aside: Vec::with_capacity(LOOKUP_MAX),
            edits: Vec::with_capacity(LOOKUP_MAX),
            frames: Box::new([const { None }; LOOKUP_MAX]),
            firsts: Box::new([NO_COOKIE; LOOKUP_MAX]),
            ports: [0; LOOKUP_MAX],
            sent: LaneSet::EMPTY,
            port: 0,
            mixed: false,
            waiting: Vec::new(),
            unmet: Waiting::NONE,
            backs: Vec::new(),
            recent: [NOWHERE; RECENT],
            rounds: 0,
            unknown: 0,
            may_teach_again: usize::MAX,
            out: Vec::new(),
        }
    }

    /// Puts a packet that has been read into a lane.
    #[inline(always)]
    pub fn begin(&mut self, index: usize, hot: &MiniKey, frame: F) {
        let index = index % LOOKUP_MAX;
        self.lanes[index].begin(hot);
        self.put(index, frame);
        if !hot.extent.is_ipv4() {
            self.begin_wide(index..index + 1);
        }
    }

    /// Puts neighbouring packets that have been read into lanes, from `first` on.
    #[inline(always)]
    pub fn begin_run(
        &mut self,
        first: usize,
        read: &[MiniKey],
        frames: &mut impl Iterator<Item = F>,
    ) {
        let run = first..(first + read.len()).min(LOOKUP_MAX);
        let mut others = false;
        let lanes = self.lanes[run.clone()].iter_mut().zip(read);
        for ((lane, hot), place) in lanes.zip(&mut self.frames[run.clone()]) {
            lane.begin(hot);
            others |= !hot.extent.is_ipv4();
            *place = frames.next();
        }
        if others {
            self.begin_wide(run);
        }
    }

    /// Fills the words of a key that are `valid`.
    fn fill(&self, lane: usize, key: &mut FlowKey, valid: WordSet) {
        let from = &self.lanes[lane];
        begin_key(key, &from.words, valid);
        if !from.extent.is_ipv4() {
            self.more[lane].fill(key);
        }
        if self.tracked.contains(lane) {
            self.connections.fill(lane, key, valid);
        }
        if self.tunnelled.contains(lane) {
            self.tunnels[lane].fill(key, valid);
        }
    }

    /// Looks up waiting lanes, some of which may be wide; see
    /// [`crate::table::Bridge::lookup_lanes`].
    #[inline(always)]
    fn look_up<'g>(
        &self,
        burst: &Burst<'_, 'g>,
        Waiting { table, set, .. }: Waiting,
        found: &mut Found<'g>,
    ) -> bool {
        let _stage = stages::enter(stages::Stage::Lookup, set.len());
        if !set.also_in(self.wide).is_empty()
            && burst.bridge.reads(table, burst.guard) > Reads::Lane
        {
            return self.look_up_wide(burst, table, set, found);
        }
        (burst.bridge).lookup_lanes(table, set, &self.lanes, burst.guard, found)
    }

    /// Queues a lane for lookup in the first table.
    #[inline(always)]
    pub fn look_up_first(&mut self, index: usize) {
        self.wait(Waiting {
            table: 0,
            resubmit: false,
            back: NOWHERE,
            set: LaneSet::run(index, 1),
        });
    }

    /// Notes the rule that lanes have met in the first table.
    #[inline(never)]
    fn note_first(&mut self, rule: &Rule, set: LaneSet) {
        set.each(|lane| self.firsts[lane] = rule.spec.cookie);
    }

    /// Keeps a frame that only waits to be sent.
    #[inline(always)]
    pub fn put(&mut self, index: usize, frame: F) {
        self.frames[index % LOOKUP_MAX] = Some(frame);
    }

    #[inline(always)]
    fn wait(&mut self, new: Waiting) {
        for waiting in self.waiting.iter_mut().rev() {
            let same = waiting.table == new.table
                && waiting.resubmit == new.resubmit
                && waiting.back == new.back;
            if same {
                waiting.set = waiting.set.union(new.set);
                return;
            }
        }
        self.waiting.push(new);
    }

    /// Queues lanes for a lookup, unless the set is empty.
    #[inline(always)]
    fn wait_if_any(&mut self, new: Waiting) {
        if !new.set.is_empty() {
            self.wait(new);
        }
    }

    /// Returns the set to look up next: the lowest table, and among equals the earliest packets.
    /// Packets that rules cannot tell apart go the same way, so they stay in order however many
    /// sets they are in. Packets of one connection that meet different rules (by flags, ECN, TTL)
    /// may be reordered within a burst, as they may in Open vSwitch's batches.
    #[inline(always)]
    fn next(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.iter().enumerate();
        let (at, _) = waiting.min_by_key(|(_, waiting)| (waiting.table, waiting.set.first()))?;
        Some(self.waiting.swap_remove(at))
    }

    /// Notes a place to return to. Lanes that return to the same place share it, so that they wait
    /// together: if packets of one connection were in two sets, the one with an earlier packet of
    /// another connection would overtake.
    fn note(&mut self, here: Here, up: u16) -> u16 {
        let blocks = here.blocks.get().as_ptr() as usize;
        let recent = &mut self.recent[(blocks >> 4 ^ usize::from(here.next ^ up)) % RECENT];
        let mut at = *recent;
        while let Some(known) = self.backs.get(usize::from(at)) {
            let same = std::ptr::eq(known.here.blocks.get(), here.blocks.get())
                && (known.here.next, known.here.table, known.up) == (here.next, here.table, up)
                && known.here.rule.get().spec.cookie == here.rule.get().spec.cookie;
            if same {
                return at;
            }
            // Stale entries of earlier bursts lead nowhere or to a wrong place.
            if known.before >= at {
                break;
            }
            at = known.before;
        }
        let before = std::mem::replace(recent, self.backs.len() as u16);
        self.backs.push(Back { here, up, before });
        *recent
    }

    /// Does [`Lanes::put`] and [`Lanes::send`] for one packet.
    #[inline(always)]
    pub fn send_one(&mut self, index: usize, port: PortNo, frame: F) {
        let index = index % LOOKUP_MAX;
        self.mixed |= port != self.port && !self.sent.is_empty();
        self.port = port;
        self.ports[index] = port;
        self.sent = self.sent.union(LaneSet::one(index));
        self.frames[index] = Some(frame);
    }

    /// Sends the first `count` frames of a burst, each to the port at its index in `ports`, in each
    /// port's order of arrival. `hot` has the mini key of each.
    #[inline(always)]
    pub fn send_first<H: Host<F>>(
        arrival: Arrival,
        host: &mut H,
        hot: &[MiniKey],
        ports: &[PortNo; LOOKUP_MAX],
        count: usize,
        frames: &mut Vec<F>,
    ) {
        let count = count.min(LOOKUP_MAX).min(frames.len());
        if arrival.in_port == SEVERAL {
            return Self::send_by_origin(arrival, host, hot, ports, count, frames);
        }
        let Some(first) = ports[..count].first() else {
            return;
        };
        let with_first = LaneSet::run(0, count).those_with(ports, *first);
        if count == frames.len() && with_first.len() == count {
            return host.output_burst(arrival.in_port, *first, arrival.mirrored, frames, None);
        }
        let mut leaving = Leaving::new(frames, count);
        Self::send_leaving(arrival, host, ports, with_first, &mut leaving);
    }

    /// [`Lanes::send_first`] for packets that came by several ports: the host drops those that
    /// would go back where they came from, of which it is told by themselves.
    #[inline(never)]
    fn send_by_origin<H: Host<F>>(
        arrival: Arrival,
        host: &mut H,
        hot: &[MiniKey],
        ports: &[PortNo; LOOKUP_MAX],
        count: usize,
        frames: &mut Vec<F>,
    ) {
        let all = match count {
            0 => return,
            count => LaneSet::run(0, count),
        };
        let back = all.those(|at| came_by(hot[at].words[0], ports[at % LOOKUP_MAX]));
        let mut leaving = Leaving::new(frames, count);
        for at in back.iter() {
            let (port, mut one) = (ports[at % LOOKUP_MAX], leaving.take(LaneSet::one(at)));
            host.output_run(port, port, arrival.mirrored, &mut one);
        }
        Self::send_leaving(arrival, host, ports, LaneSet::EMPTY, &mut leaving);
    }

    /// Sends frames that leave a burst, each to the port at its index in `ports`. `with_first`:
    /// those that go to the first one's port, if that has been found already.
    #[inline(always)]
    fn send_leaving<H: Host<F>>(
        arrival: Arrival,
        host: &mut H,
        ports: &[PortNo; LOOKUP_MAX],
        with_first: LaneSet,
        leaving: &mut Leaving<'_, F>,
    ) {
        let Arrival { in_port, mirrored } = arrival;
        let all = leaving.rest;
        let those = all.iter().map(|lane| (lane, ports[lane]));
        let each = LaneSet(host.sends_together(those)).also_in(all);
        if !each.is_empty() {
            let to = each.iter().map(|lane| ports[lane]);
            let taken = to.zip(leaving.take(each));
            let mut taken = taken.map(|(port, frame)| (port, frame, None));
            host.output_each(in_port, mirrored, each.len(), &mut taken);
        }
        let with_first = with_first.minus(each);
        if let Some(first) = with_first.first() {
            let mut taken = leaving.take(with_first);
            host.output_run(in_port, ports[first], mirrored, &mut taken);
        }
        while let Some((port, mut taken)) = leaving.next(ports) {
            host.output_run(in_port, port, mirrored, &mut taken);
        }
    }

    /// Marks lanes to be sent to a port.
    #[inline(always)]
    pub fn send(&mut self, port: PortNo, set: impl Members) {
        self.mixed |= port != self.port && !self.sent.is_empty();
        self.port = port;
        set.each(|lane| self.ports[lane] = port);
        self.sent = self.sent.union(set.whole());
    }

    /// Sends marked lanes, in each port's order of arrival.
    #[inline(always)]
    fn flush<H: Host<F>>(&mut self, arrival: Arrival, host: &mut H) {
        let mut rest = std::mem::take(&mut self.sent);
        if self.mixed {
            let ports = rest.iter().map(|lane| (lane, self.ports[lane]));
            let each = LaneSet(host.sends_together(ports)).also_in(rest);
            if !each.is_empty() {
                rest = rest.minus(self.send_each(arrival, host, each));
            }
        }
        // A local variable, so that its fields stay in registers.
        let mut out = std::mem::take(&mut self.out);
        while let Some(first) = rest.first() {
            let port = self.ports[first];
            let set = if self.mixed {
                rest.those_with(&self.ports, port)
            } else {
                rest
            };
            rest = rest.minus(set);
            let mut arrival = arrival;
            let mut set = set;
            if arrival.in_port == SEVERAL {
                let back = self.those_by(set, port);
                if !back.is_empty() {
                    // The host drops what goes back; the rest goes next.
                    rest = rest.union(set.minus(back));
                    (set, arrival.in_port) = (back, port);
                }
            }
            if !self.tracked.is_empty() && host.carries(port)
                || !self.tunnelled.is_empty() && host.reads_tunnel(port)
            {
                self.carry(arrival, host, port, set);
                continue;
            }
            debug_assert!(out.is_empty());
            out.reserve(set.len());
            let (room, mut count) = (out.spare_capacity_mut(), 0);
            set.over(&mut self.frames, |place| {
                if let (Some(frame), Some(room)) = (place.take(), room.get_mut(count)) {
                    room.write(frame);
                    count += 1;
                }
            });
            // SAFETY: `out` is empty, and its first `count` places have been written just now.
            unsafe { out.set_len(count) };
            host.output_burst(arrival.in_port, port, arrival.mirrored, &mut out, None);
            out.clear();
        }
        self.out = out;
        self.mixed = false;
    }

    /// Sends lanes together, each to its port, but for those that would go back where they came
    /// from; returns those that have left.
    #[inline(never)]
    fn send_each<H: Host<F>>(&mut self, arrival: Arrival, host: &mut H, each: LaneSet) -> LaneSet {
        let each = match arrival.in_port {
            SEVERAL => each.minus(each.those(|lane| self.came_by(lane, self.ports[lane]))),
            _ => each,
        };
        let (ports, frames) = (&self.ports, &mut self.frames);
        let (tunnels, tunnelled) = (&self.tunnels, self.tunnelled);
        let mut leaving = each.iter().filter_map(|lane| {
            let words = tunnelled.contains(lane).then(|| &tunnels[lane]);
            Some((ports[lane], frames[lane].take()?, words))
        });
        let Arrival { in_port, mirrored } = arrival;
        host.output_each(in_port, mirrored, each.len(), &mut leaving);
        each
    }

    /// Executes a block's edits.
    #[inline(always)]
    fn edit(&mut self, block: &ActionBlock, set: impl Members) {
        for write in block.writes() {
            set.over(&mut self.lanes, |lane| lane.write(write));
        }
        self.rewrite(&block.rewrite, set);
    }

    /// Executes the choice at a block's end, packet by packet.
    #[inline(always)]
    fn multipath(&mut self, block: &ActionBlock, set: impl Members) {
        if let Some(multipath) = &block.multipath {
            self.multipath_by(multipath, set.whole());
        }
    }

    #[inline(never)]
    fn multipath_by(&mut self, multipath: &MultipathHash, set: LaneSet) {
        let narrow = set.minus(self.wide);
        set.minus(narrow)
            .each(|lane| self.multipath_wide(lane, multipath));
        narrow.over(&mut self.lanes, |lane| {
            let write = multipath.write(lane);
            lane.write(&write);
        });
    }

    /// Edits packets.
    #[inline(always)]
    fn rewrite(&mut self, rewrite: &Rewrite, set: impl Members) {
        if rewrite.is_nothing() {
            return;
        }
        for lane in set.places() {
            self.lanes[lane].rewrite(&mut self.frames[lane], rewrite);
        }
    }
}

/// The first frames of a burst, which leave it set by set. On drop, whether all have left or
/// somebody has panicked, those that nobody has taken are dropped, and the burst keeps the frames
/// behind them.
///
/// Meanwhile the vector's length is 0, and its first `all` elements belong to this: those at `rest`
/// and those from `count` on hold a frame each, the others none any more.
struct Leaving<'a, F> {
    frames: &'a mut Vec<F>,
    rest: LaneSet,
    count: usize,
    all: usize,
}

impl<'a, F> Leaving<'a, F> {
    /// Takes the first `count` frames (at least one), at most as many as there are and as a set has
    /// bits.
    #[inline(always)]
    fn new(frames: &'a mut Vec<F>, count: usize) -> Leaving<'a, F> {
        let all = frames.len();
        assert!((1..=all.min(LOOKUP_MAX)).contains(&count));
        // SAFETY: a length of 0 is within the capacity, and no element needs to be valid. The
        // frames stay where they are, and now belong to this.
        unsafe { frames.set_len(0) };
        Leaving {
            frames,
            rest: LaneSet::run(0, count),
            count,
            all,
        }
    }

    /// Returns the remaining frames that go to the same port as the first of them, and the port.
    #[inline(always)]
    fn next(&mut self, ports: &[PortNo; LOOKUP_MAX]) -> Option<(PortNo, Taken<'_, F>)> {
        let port = ports[self.rest.first()?];
        let set = self.rest.those_with(ports, port);
        Some((port, self.take(set)))
    }

    /// Takes the remaining frames of a set.
    #[inline(always)]
    fn take(&mut self, set: LaneSet) -> Taken<'_, F> {
        let others = self.rest.minus(set);
        let set = self.rest.minus(others);
        self.rest = others;
        Taken {
            // Each index in `rest` held a frame of this. Those of the set are no longer in it.
            from: self.frames.as_mut_ptr(),
            set,
            frames: PhantomData,
        }
    }
}

impl<F> Drop for Leaving<'_, F> {
    #[inline(always)]
    fn drop(&mut self) {
        // Some remain only where a host has panicked.
        if !self.rest.is_empty() {
            drop(self.take(self.rest));
        }
        let behind = self.all - self.count;
        let from = self.frames.as_mut_ptr();
        // SAFETY: the vector had `all` frames, so it has memory for them, and nobody who was given
        // some could access it. Those from `count` on have not been touched; they are moved to the
        // front, where no frame is left, all having been taken. So each element below the new
        // length holds a frame, and those behind it belong to nobody.
        unsafe {
            std::ptr::copy(from.add(self.count), from, behind);
            self.frames.set_len(behind);
        }
    }
}

/// Frames taken out of a list, at the indices of a set.
struct Taken<'a, F> {
    /// The list's first element. At each index in the set is a frame that belongs to this.
    from: *mut F,
    set: LaneSet,
    frames: PhantomData<&'a mut F>,
}

impl<F> Iterator for Taken<'_, F> {
    type Item = F;

    #[inline(always)]
    fn next(&mut self) -> Option<F> {
        let lane = self.set.first()?;
        self.set = self.set.minus(LaneSet::one(lane));
        // SAFETY: by the invariant of `from`: this index was in the set, and is no longer.
        Some(unsafe { self.from.add(lane).read() })
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.set.len(), Some(self.set.len()))
    }
}

impl<F> ExactSizeIterator for Taken<'_, F> {}

impl<F> Drop for Taken<'_, F> {
    /// Drops frames that nobody has taken.
    #[inline(always)]
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl ActionBlock {
    /// Returns whether the block's end, in a rule of this table and with this place to return to,
    /// must go the general way.
    #[inline(always)]
    fn leads_off(&self, from: u8, back: u16) -> bool {
        match self.end {
            // Only forward lookups, so that such ways end by themselves.
            End::Table { table, .. } => table <= from,
            End::Output(_) | End::Copy(_) => back != NOWHERE,
            End::Track(Some(table)) => table <= from || back != NOWHERE || !self.is_last,
            End::Multipath
            | End::Track(None)
            | End::Untrack
            | End::Transfer
            | End::Learn
            | End::Nothing => false,
        }
    }
}

impl<F: Frame> Engine<F> {
    /// Executes a rule for the lanes that have met it in `table`, up to their next lookup.
    #[inline(always)]
    pub(crate) fn meet_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        table: u8,
        rule: &Rule,
        set: LaneSet,
    ) {
        let waited = Waiting {
            table,
            resubmit: false,
            back: NOWHERE,
            set,
        };
        if burst.bridge.writes_sets() {
            self.lanes.note_first(rule, set);
        }
        self.meet_after(burst, arrival, host, waited, rule, set);
    }

    #[inline(always)]
    fn meet_after<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        waited: Waiting,
        rule: &Rule,
        set: impl Members,
    ) {
        if let Some((fused, taken)) = self.fused::<H>(burst, rule, &waited, set) {
            if taken == set.whole() {
                return self.run_fused(burst, arrival, host, fused, waited, set);
            }
            self.run_fused(burst, arrival, host, fused, waited, taken);
            let set = set.whole().minus(taken);
            return self.meet_rest(burst, arrival, host, Waiting { set, ..waited }, rule);
        }
        self.meet_alone(burst, arrival, host, waited, rule, set);
    }

    #[inline(never)]
    fn meet_rest<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        waited: Waiting,
        rule: &Rule,
    ) {
        self.meet_alone(burst, arrival, host, waited, rule, waited.set);
    }

    /// Executes a rule's own blocks.
    #[inline(always)]
    fn meet_alone<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        waited: Waiting,
        rule: &Rule,
        set: impl Members,
    ) {
        let Waiting { table, back, .. } = waited;
        let mut bytes = 0;
        set.over(&mut self.lanes.lanes, |lane| bytes += u64::from(lane.len));
        let counters = burst.counters;
        counters.add(rule.spec.counter, set.len() as u64, bytes, burst.now_ms);
        self.tell(burst, host, table, Some(rule), set.whole());
        if let Some(port) = rule.only_output()
            && back == NOWHERE
        {
            return self.lanes.send(port, set);
        }
        let Some(blocks) = rule.blocks() else {
            return self.leave_by(burst, arrival, host, waited, rule);
        };
        let here = Here {
            blocks,
            rule: Met(NonNull::from(rule)),
            next: 0,
            table,
        };
        self.pass(burst, arrival, host, here, back, set);
    }

    /// Executes blocks, up to a lookup or the end.
    #[inline(always)]
    fn pass<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        mut here: Here,
        mut back: u16,
        set: impl Members,
    ) {
        loop {
            let blocks = here.blocks.get();
            let Some(block) = blocks.get(usize::from(here.next)) else {
                return;
            };
            if block.leads_off(here.table, back)
                || block.track.is_some() && !Self::tracks(host)
                || matches!(block.end, End::Copy(port) if !self.copies(arrival, host, port))
            {
                return self.leave_at(burst, arrival, host, here, back, set.whole());
            }
            if block.rewrite.may_expire() {
                let lanes = &mut self.lanes.lanes;
                let mut expired = false;
                set.each(|lane| expired |= block.rewrite.expires(lanes[lane].hot()));
                if expired {
                    return self.part(burst, arrival, host, here, back, set.whole());
                }
            }
            self.lanes.edit(block, set);
            match block.end {
                End::Output(port) => return self.lanes.send(port, set),
                End::Copy(port) => {
                    self.copy(arrival, host, port, set.whole());
                    here.next += 1;
                }
                End::Table { table, resubmit } => {
                    let lanes = &mut self.lanes;
                    set.over(&mut lanes.lanes, |lane| lane.hops += 1);
                    here.next += 1;
                    if usize::from(here.next) < blocks.len() {
                        back = lanes.note(here, back);
                    }
                    return lanes.wait(Waiting {
                        table,
                        resubmit,
                        back,
                        set: set.whole(),
                    });
                }
                End::Multipath => {
                    self.lanes.multipath(block, set);
                    here.next += 1;
                }
                End::Track(table) => {
                    here.next += 1;
                    let (to, all) = ((here, back), set.whole());
                    let rest = self.track_lanes(burst, arrival, host, block, to, table, all);
                    if let Some(table) = table {
                        let (resubmit, back, set) = (false, NOWHERE, rest);
                        return self.lanes.wait_if_any(Waiting {
                            table,
                            resubmit,
                            back,
                            set,
                        });
                    }
                    if rest != all {
                        // At most as deep as there are lanes, for some have left.
                        return self.pass_rest(burst, arrival, host, here, back, rest);
                    }
                }
                End::Untrack => {
                    self.lanes.untrack(set.whole());
                    here.next += 1;
                }
                End::Transfer => {
                    self.lanes.transfer(block, set.whole());
                    here.next += 1;
                }
                End::Learn => {
                    here.next += 1;
                    let all = set.whole();
                    let rest = self.learn_lanes(burst, arrival, host, block, (here, back), all);
                    if rest != all {
                        // As behind the tracker.
                        return self.pass_rest(burst, arrival, host, here, back, rest);
                    }
                }
                End::Nothing => match self.lanes.backs.get(usize::from(back)) {
                    Some(after) => (here, back) = (after.here, after.up),
                    None => return self.lose(host, set.whole()),
                },
            }
        }
    }

    /// Whether lanes can be tracked: not where a host follows each packet.
    #[inline(always)]
    fn tracks<H: Host<F>>(host: &mut H) -> bool {
        !H::WATCHES && !H::FOLLOWS && host.tracker().is_some()
    }

    /// Whether lanes may send copies to a port: not where the host is told of each packet by
    /// itself, nor where what is known of a packet must go with it, or which mirrors have had it.
    #[inline(always)]
    fn copies<H: Host<F>>(&self, arrival: Arrival, host: &H, port: PortNo) -> bool {
        !H::WATCHES
            && !H::FOLLOWS
            && arrival.in_port != SEVERAL
            && !host.mirrors(port)
            && (self.lanes.tracked.is_empty() || !host.carries(port))
            && (self.lanes.tunnelled.is_empty() || !host.reads_tunnel(port))
    }

    /// Sends copies of lanes' packets to a port.
    #[inline(never)]
    fn copy<H: Host<F>>(&mut self, arrival: Arrival, host: &mut H, port: PortNo, set: LaneSet) {
        let lanes = &mut self.lanes;
        lanes.copied = lanes.copied.union(set);
        let mut out = std::mem::take(&mut lanes.out);
        debug_assert!(out.is_empty());
        out.reserve(set.len());
        for frame in set.iter().filter_map(|lane| lanes.frames[lane].as_ref()) {
            match frame.duplicate() {
                Some(copy) => out.push(copy),
                None => host.dropped(DropReason::NoBuffer),
            }
        }
        if !out.is_empty() {
            host.output_burst(arrival.in_port, port, arrival.mirrored, &mut out, None);
            out.clear();
        }
        lanes.out = out;
    }

    #[inline(never)]
    fn pass_rest<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        here: Here,
        back: u16,
        set: LaneSet,
    ) {
        if !set.is_empty() {
            self.pass(burst, arrival, host, here, back, set);
        }
    }

    /// Splits off lanes that cannot pass a block, before it.
    #[inline(never)]
    fn part<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        here: Here,
        back: u16,
        set: LaneSet,
    ) {
        let Some(block) = here.block() else {
            return;
        };
        let lanes = &mut self.lanes.lanes;
        let expired = set.those(|lane| block.rewrite.expires(lanes[lane].hot()));
        self.leave_at(burst, arrival, host, here, back, expired);
        let set = set.minus(expired);
        if !set.is_empty() {
            self.pass(burst, arrival, host, here, back, set);
        }
    }

    /// Drops lanes that end without having been sent.
    fn lose<H: Host<F>>(&mut self, host: &mut H, set: LaneSet) {
        for lane in set.iter() {
            self.lanes.frames[lane] = None;
            host.dropped(DropReason::Action);
        }
    }

    /// Tells the host of a lookup.
    #[inline(always)]
    fn tell<H: Host<F>>(
        &self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
        rule: Option<&Rule>,
        set: LaneSet,
    ) {
        if !H::WATCHES {
            return (0..set.len()).for_each(|_| host.looked_up(table, None, rule));
        }
        for lane in set.iter() {
            let mut key = FlowKey::ZERO;
            self.lanes.fill(lane, &mut key, burst.valid);
            host.looked_up(table, Some(&key), rule);
        }
    }

    /// Turns a lane's packet into a walk that returns to these places. `table`: the one in which it
    /// has been looked up last, or waits to be.
    fn leave(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        lane: usize,
        table: u8,
        back: u16,
    ) -> Option<&mut Walk<F>> {
        let frame = self.lanes.frames[lane].take()?;
        let from = &self.lanes.lanes[lane];
        let walk = &mut self.walks[lane];
        self.lanes.fill(lane, &mut walk.key, burst.valid);
        walk.layers = from.extent.layers();
        walk.start(frame, arrival.mirrored);
        walk.tracked = Earlier::default();
        walk.sent = self.lanes.copied.contains(lane);
        walk.resubmits = from.hops;
        // Lanes only go forward, so a rule of the first table has been met before any later table.
        walk.first = (table > 0).then_some(First {
            table: 0,
            cookie: self.lanes.firsts[lane],
        });
        if self.lanes.tracked.contains(lane) {
            self.lanes.connections.hand_on(lane, walk);
        }
        let mut next = back;
        while let Some(back) = self.lanes.backs.get(usize::from(next)) {
            walk.stack.insert(0, position(&back.here));
            next = back.up;
        }
        Some(walk)
    }

    /// Turns lanes into walks at a rule that they have met.
    #[inline(never)]
    fn leave_by<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        waited: Waiting,
        rule: &Rule,
    ) {
        for lane in waited.set.iter() {
            if let Some(walk) = self.leave(burst, arrival, lane, waited.table, waited.back) {
                walk.wait_for(waited.resubmit);
                let next = Self::hit(walk, burst, host, waited.table, rule);
                self.go_on(burst, host, lane, next);
            }
        }
    }

    /// Turns a lane's packet into a walk at a place in a rule.
    fn leave_to(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        here: Here,
        back: u16,
        lane: usize,
    ) -> Option<&mut Walk<F>> {
        let walk = self.leave(burst, arrival, lane, here.table, back)?;
        walk.at = position(&here);
        let (table, cookie) = (here.table, walk.at.cookie);
        walk.first.get_or_insert(First { table, cookie });
        Some(walk)
    }

    /// Turns lanes into walks at a place in a rule.
    #[inline(never)]
    fn leave_at<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        here: Here,
        back: u16,
        set: LaneSet,
    ) {
        for lane in set.iter() {
            if let Some(walk) = self.leave_to(burst, arrival, here, back, lane) {
                let next = walk.run(burst, host);
                self.go_on(burst, host, lane, next);
            }
        }
    }

    /// Handles lanes that have met no rule.
    #[inline(never)]
    fn miss_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        waited: Waiting,
    ) {
        let set = waited.set;
        self.tell(burst, host, waited.table, None, set);
        if waited.resubmit {
            return self.come_back(burst, arrival, host, waited.back, set);
        }
        for lane in set.iter() {
            if let Some(walk) = self.leave(burst, arrival, lane, waited.table, waited.back) {
                walk.wait_for(false);
                let next = Self::missed(walk, burst, host, waited.table);
                self.go_on(burst, host, lane, next);
            }
        }
    }

    /// Turns lanes into walks for a table in which lanes cannot be looked up.
    #[inline(never)]
    fn wait_in_walks<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        waited: Waiting,
    ) {
        for lane in waited.set.iter() {
            if let Some(walk) = self.leave(burst, arrival, lane, waited.table, waited.back) {
                walk.wait_for(waited.resubmit);
                self.go_on(burst, host, lane, Next::Lookup(waited.table));
            }
        }
    }

    /// Has lanes wait before they look up behind all steps that ask for rules, where packets before
    /// them have not asked yet. Returns the others, which go on.
    #[cold]
    #[inline(never)]
    fn wait_behind(&mut self, burst: &Burst<'_, '_>, arrival: Arrival, waited: Waiting) -> Waiting {
        let first = self.to_learn.iter().map(|(index, _)| *index).min();
        let first = first.map_or(usize::MAX, usize::from);
        let behind = waited.set.those(|lane| lane > first);
        for lane in behind.iter() {
            if let Some(walk) = self.leave(burst, arrival, lane, waited.table, waited.back) {
                walk.wait_for(waited.resubmit);
                self.to_learn
                    .push((lane as u16, Next::Lookup(waited.table)));
            }
        }
        let set = waited.set.minus(behind);
        Waiting { set, ..waited }
    }

    /// Continues a walk that has left its lane, from here on.
    #[inline(always)]
    pub(crate) fn go_on<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        index: usize,
        next: Next,
    ) {
        match next {
            Next::Done => {}
            Next::Lookup(table) if burst.barrier == 0 || burst.is_behind_steps(table) => {
                self.waiting.push((table, index as u16))
            }
            _ if burst.barrier != 0 || matches!(next, Next::Learn) && !burst.ordered => {
                // Whatever it teaches, packets behind it may teach the same.
                self.lanes.unknown = u64::MAX;
                self.to_learn.push((index as u16, next));
            }
            other => self.run_to_end(burst, host, index, other),
        }
    }

    /// Runs lanes to their ends, and sends what has not been sent yet.
    #[inline]
    pub(crate) fn drive_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
    ) {
        if !self.lanes.waiting.is_empty() {
            self.drive_waiting(burst, arrival, host);
        }
        self.lanes.backs.clear();
        (self.lanes.wide, self.lanes.others) = (LaneSet::EMPTY, LaneSet::EMPTY);
        self.lanes.rounds = 0;
        self.lanes.flush(arrival, host);
        (self.lanes.tracked, self.lanes.tunnelled) = (LaneSet::EMPTY, LaneSet::EMPTY);
        self.lanes.copied = LaneSet::EMPTY;
    }

    /// Runs waiting lanes to their ends.
    #[inline(always)]
    fn drive_waiting<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, arrival: Arrival, host: &mut H) {
        let mut found = Found::new();
        while let Some(mut waited) = self.lanes.next() {
            if burst.is_behind_steps(waited.table) && !self.to_learn.is_empty() {
                waited = self.wait_behind(burst, arrival, waited);
                if waited.set.is_empty() {
                    continue;
                }
            }
            if self.lanes.rounds == ROUNDS {
                // Lanes that are done are sent before walks run.
                self.lanes.flush(arrival, host);
                self.wait_in_walks(burst, arrival, host, waited);
                continue;
            }
            self.lanes.rounds += 1;
            if !self.lanes.look_up(burst, waited, &mut found) {
                self.wait_in_walks(burst, arrival, host, waited);
                continue;
            }
            let found = found.list();
            if found.len() > 1 {
                Self::fetch(burst, found);
            }
            self.meet_all(burst, arrival, host, waited, found);
        }
    }
}

impl<F: Frame> Walk<F> {
    /// Prepares for the result of a lookup made on its behalf. After a resubmit it is at the place
    /// to return to; a list left by a goto is at its end.
    fn wait_for(&mut self, resubmitted: bool) {
        self.resubmitted = resubmitted;
        if resubmitted && let Some(position) = self.stack.pop() {
            self.at = position;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::ToController;
    use crate::host::Context;
    use packet::frame::Offload;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A frame without bytes that counts its drops.
    struct Counted(Arc<[AtomicUsize]>, usize);

    impl std::ops::Drop for Counted {
        fn drop(&mut self) {
            self.0[self.1].fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Frame for Counted {
        fn len(&self) -> usize {
            0
        }
        fn head(&self) -> &[u8] {
            &[]
        }
        fn head_mut(&mut self) -> &mut [u8] {
            &mut []
        }
        fn headroom(&self) -> usize {
            0
        }
        fn push_front(&mut self, _: usize) -> bool {
            false
        }
        fn pull_front(&mut self, _: usize) -> bool {
            false
        }
        fn truncate(&mut self, _: usize) {}
        fn linearize(&mut self, _: usize) -> bool {
            true
        }
        fn segment_count(&self) -> usize {
            1
        }
        fn segment(&self, _: usize) -> Option<&[u8]> {
            None
        }
        fn segment_mut(&mut self, _: usize) -> Option<&mut [u8]> {
            None
        }
        fn duplicate(&self) -> Option<Self> {
            None
        }
        fn sibling(&self, _: &[u8]) -> Option<Self> {
            None
        }
        fn offload(&self) -> Offload {
            Offload::default()
        }
        fn set_offload(&mut self, _: Offload) {}
    }

    /// A host that keeps sent frames by port, and panics after `left` frames.
    struct Fails {
        sent: Vec<(PortNo, Counted)>,
        left: usize,
    }

    impl Host<Counted> for Fails {
        fn output(&mut self, _: Context<'_>, port: PortNo, frame: Counted, _: bool) {
            assert!(self.sent.len() < self.left, "as it should");
            self.sent.push((port, frame));
        }
        fn output_all(&mut self, _: Context<'_>, _: Counted, _: bool) {}
        fn port_is_live(&self, _: PortNo) -> bool {
            true
        }
        fn normal(&mut self, _: Context<'_>, _: Counted) {}
        fn controller(&mut self, _: Context<'_>, _: &ToController, _: &Counted) {}
        fn malformed(&mut self, _: packet::parse::Malformed) {}
        fn now_ns(&mut self) -> u64 {
            0
        }
        fn dropped(&mut self, _: DropReason) {}
    }

    /// When a host panics, frames that have been sent are the host's, those behind the first
    /// `count` stay in the burst, in order, and all others have been dropped, each once.
    #[test]
    fn a_host_that_panics_costs_only_frames_on_their_way_and_each_once() {
        let ports = std::array::from_fn(|at| 7 + at as PortNo % 3);
        for (all, count) in [(11, 8), (9, 9), (64, 64), (80, 64), (5, 1)] {
            // Frames for the first port, then the second, and so on.
            let order = (0..3).flat_map(|port| (port..count).step_by(3));
            let order = order.collect::<Vec<_>>();
            for left in 0..=count {
                let drops: Arc<[AtomicUsize]> = (0..all).map(|_| AtomicUsize::new(0)).collect();
                let new = |at| Counted(Arc::clone(&drops), at);
                let mut frames = (0..all).map(new).collect::<Vec<_>>();
                let sent = Vec::new();
                let mut host = Fails { sent, left };
                // By one port, or by several other ones.
                let arrival = Arrival {
                    in_port: if left % 2 == 0 { 1 } else { SEVERAL },
                    mirrored: 0,
                };
                let hot = [MiniKey::ZERO; LOOKUP_MAX];
                let result = catch_unwind(AssertUnwindSafe(|| {
                    Lanes::send_first(arrival, &mut host, &hot, &ports, count, &mut frames);
                }));
                assert_eq!(result.is_err(), left < count);
                let sent = host.sent.iter().map(|(port, frame)| (*port, frame.1));
                let wanted = order[..left].iter().map(|at| (ports[*at], *at));
                assert!(sent.eq(wanted), "{all} {count} {left}");
                let behind = frames.iter().map(|frame| frame.1);
                assert!(behind.eq(count..all), "{all} {count} {left}");
                let dropped = |at: &usize| drops[*at].load(Ordering::Relaxed);
                assert!(order[..left].iter().all(|at| dropped(at) == 0));
                assert!(order[left..].iter().all(|at| dropped(at) == 1));
                drop((frames, host));
                assert!((0..all).all(|at| dropped(&at) == 1), "{all} {count} {left}");
            }
        }
    }
}
