//! Packets on straight ways ([`super::straight`]), a whole burst's from table to table.
//!
//! A packet of the common kinds is a lane: two cache lines with its hot words, metadata and registers, and beside them its frame and what one of IPv6 or ARP tells besides. Lanes that wait for the same table
//! are a set, 64 bits. They are looked up together, the answer is a list of rules, each with the set of lanes that have met it, and what a rule does is
//! decided once for all of them. So a stage with one rule for everything costs next to nothing however many packets pass it.
//!
//! A rule may look up in the middle of its steps and then go on. The lanes that wait for such a lookup know where they are to come back to; the places form a chain
//! ([`Back`]).
//!
//! Where a packet meets another kind of rule or table, or an edit cannot be done, it leaves its lane and gets a whole walk, which holds what the general way wants to
//! find there.

mod fly;
mod steps;
mod wide;

pub(super) use wide::word_beyond;

use super::straight::{End, LANE_WORDS, Spread, Stretch, Stretches, Write};
use super::{Burst, Engine, First, NO_COOKIE, Next, Position, Steps, Walk};
use crate::action_set;
use crate::host::{Drop as DropReason, Host};
use crate::ops::PortNo;
use crate::rule::Rule;
use crate::table::{Found, HotWords, LOOKUP_MAX, Members, SetOfLanes};
use crate::tuple::Words;
use packet::edit::Rewrite;
use packet::key::at;
use packet::parse::{Extent, HOT_WORDS, MoreWords};
use packet::{FlowKey, Frame, WordSet};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Sets of lanes that are looked up for a burst before those that are left go the general way, which counts its lookups itself. So lists that branch stay within bounds.
const ROUNDS: usize = 256;
/// Lists of places by their hash.
const RECENT: usize = 64;
/// No place to come back to.
const NOWHERE: u16 = u16::MAX;

/// How a burst's packets came in.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub in_port: PortNo,
    /// Mirrors that have had them.
    pub mirrored: u32,
}

/// What is known of one packet.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Lane {
    words: [u64; LANE_WORDS],
    extent: Extent,
    len: u32,
    /// Lookups behind the first.
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
    fn begin(&mut self, hot: &HotWords) {
        self.words[..HOT_WORDS].copy_from_slice(&hot.words);
        self.words[HOT_WORDS..].fill(0);
        (self.extent, self.len, self.hops) = (hot.extent, hot.len, 0);
    }

    #[inline(always)]
    fn hot(&mut self) -> &mut [u64; HOT_WORDS] {
        let hot = self.words.first_chunk_mut();
        hot.unwrap_or_else(|| unreachable!("more words than hot ones"))
    }

    #[inline(always)]
    fn hot_words(&self) -> &[u64; HOT_WORDS] {
        let hot = self.words.first_chunk();
        hot.unwrap_or_else(|| unreachable!("more words than hot ones"))
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

/// Gives a key its first words, and the value that they begin with to the others that are `valid`.
#[inline(always)]
pub(super) fn begin_key<const N: usize>(key: &mut FlowKey, words: &[u64; N], valid: WordSet) {
    key.words[..N].copy_from_slice(words);
    let others = valid.minus(const { WordSet((1 << N) - 1) });
    if !others.is_empty() {
        key.clear(others);
    }
    if others.contains(at::ACTSET_OUTPUT / 8) {
        key.set_u32(at::ACTSET_OUTPUT, action_set::NO_OUTPUT);
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

    /// As it is given, but for one look for all of them at where the word is.
    #[inline(always)]
    fn differing(packets: &[Lane; LOOKUP_MAX], set: SetOfLanes, index: u8, wanted: u64) -> u64 {
        let at = usize::from(index);
        if at >= LANE_WORDS {
            return beyond(index) ^ wanted;
        }
        set.fold(packets, 0, |differ, lane| differ | lane.words[at] ^ wanted)
    }
}

/// A word that packets of the common kinds do not have of their own, but for [`MoreWords`]: as [`begin_key`] begins it.
#[inline(always)]
pub(super) fn beyond(index: u8) -> u64 {
    const NO_OUTPUT: u64 = {
        assert!(at::ACTSET_OUTPUT.is_multiple_of(8));
        let [a, b, c, d] = action_set::NO_OUTPUT.to_be_bytes();
        u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
    };
    if usize::from(index) == at::ACTSET_OUTPUT / 8 {
        NO_OUTPUT
    } else {
        0
    }
}

/// A place in a rule that was met.
#[derive(Clone, Copy)]
pub(super) struct Here {
    stretches: Stretches,
    rule: Met,
    /// The next stretch.
    next: u16,
    table: u8,
}

/// A rule that was met in this burst, or is part of a way that holds in it.
#[derive(Clone, Copy)]
struct Met(NonNull<Rule>);

impl Met {
    #[inline(always)]
    fn get(&self) -> &Rule {
        // SAFETY: places are dropped at the end of the burst in which they were met (see `drive_lanes`), and its guard keeps rules from being freed. Those of a way
        // that was made before are used only where the way holds in the burst's epoch (`Fused::holds`): then its rules are in force, and kept likewise.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: a rule is only read here, and only while its burst lasts.
unsafe impl Send for Met {}
// SAFETY: as above.
unsafe impl Sync for Met {}

impl Here {
    /// A place in a rule on a straight way.
    pub(super) fn of(rule: &Rule, next: u16, table: u8) -> Option<Here> {
        Some(Here {
            stretches: rule.straight()?,
            rule: Met(NonNull::from(rule)),
            next,
            table,
        })
    }

    #[inline(always)]
    fn stretch(&self) -> Option<&Stretch> {
        self.stretches.get().get(usize::from(self.next))
    }

    /// The same place, as the general way knows it.
    fn position<F>(&self) -> Position<F> {
        let spec = &self.rule.get().spec;
        let steps = Steps::of(&spec.ops.ops);
        let next = self.stretch().map(|stretch| usize::from(stretch.first));
        Position {
            steps,
            next: next.unwrap_or(steps.get().len()),
            table: self.table,
            cookie: spec.cookie,
            depth: 0,
            level: 0,
            saved: None,
        }
    }
}

/// Where lanes go on when a lookup has led to its end, and the number of the place where they go on after that.
#[derive(Clone, Copy)]
struct Back {
    here: Here,
    up: u16,
    /// An earlier place that may have the same hash; no earlier one, none.
    before: u16,
}

/// Lanes before a lookup.
#[derive(Clone, Copy)]
struct Waiting {
    table: u8,
    /// No rule means to go on, not a miss.
    resubmit: bool,
    back: u16,
    set: SetOfLanes,
}

/// The lanes of a burst.
pub(super) struct Lanes<F> {
    lanes: Box<[Lane; LOOKUP_MAX]>,
    /// Those whose packets are not of IPv4, and what these tell beside.
    wide: SetOfLanes,
    more: Box<[MoreWords; LOOKUP_MAX]>,
    frames: Box<[Option<F>; LOOKUP_MAX]>,
    /// Cookies of the rules that packets have met in the first table, noted where rules write action
    /// sets; elsewhere those of earlier bursts are left.
    firsts: Box<[u64; LOOKUP_MAX]>,
    /// Where those of `sent` go, when all are done.
    ports: [PortNo; LOOKUP_MAX],
    sent: SetOfLanes,
    /// The last port of those, and whether there are others.
    port: PortNo,
    mixed: bool,
    waiting: Vec<Waiting>,
    backs: Vec<Back>,
    /// The last place noted of each hash; those of earlier bursts are still named.
    recent: [u16; RECENT],
    rounds: usize,
    /// Frames on their way out.
    out: Vec<F>,
}

impl<F: Frame> Lanes<F> {
    pub fn new() -> Lanes<F> {
        Lanes {
            lanes: Box::new([Lane::ZERO; LOOKUP_MAX]),
            wide: SetOfLanes::EMPTY,
            more: Box::new([MoreWords::ZERO; LOOKUP_MAX]),
            frames: Box::new([const { None }; LOOKUP_MAX]),
            firsts: Box::new([NO_COOKIE; LOOKUP_MAX]),
            ports: [0; LOOKUP_MAX],
            sent: SetOfLanes::EMPTY,
            port: 0,
            mixed: false,
            waiting: Vec::new(),
            backs: Vec::new(),
            recent: [NOWHERE; RECENT],
            rounds: 0,
            out: Vec::new(),
        }
    }

    /// Puts a packet that has been read into a lane.
    #[inline(always)]
    pub fn begin(&mut self, index: usize, hot: &HotWords, frame: F) {
        let index = index % LOOKUP_MAX;
        self.lanes[index].begin(hot);
        self.put(index, frame);
        if !hot.extent.is_ipv4() {
            self.begin_wide(index..index + 1);
        }
    }

    /// Puts neighbours that have been read into lanes, from `first` on.
    #[inline(always)]
    pub fn begin_run(
        &mut self,
        first: usize,
        read: &[HotWords],
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
    }

    /// Looks lanes up that wait, some of which may be wide; see [`crate::table::Bridge::lookup_lanes`].
    #[inline(always)]
    fn look_up<'g>(
        &self,
        burst: &Burst<'_, 'g>,
        Waiting { table, set, .. }: Waiting,
        found: &mut Found<'g>,
    ) -> bool {
        if set.minus(self.wide) != set {
            return self.look_up_wide(burst, table, set, found);
        }
        (burst.bridge).lookup_lanes(table, set, &self.lanes, burst.guard, found)
    }

    /// A lane is to be looked up in the first table.
    #[inline(always)]
    pub fn look_up_first(&mut self, index: usize) {
        self.wait(Waiting {
            table: 0,
            resubmit: false,
            back: NOWHERE,
            set: SetOfLanes::run(index, 1),
        });
    }

    /// Notes the rule that lanes have met in the first table.
    #[inline(never)]
    fn note_first(&mut self, rule: &Rule, set: SetOfLanes) {
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

    /// The same; none of none.
    #[inline(always)]
    fn wait_if_any(&mut self, new: Waiting) {
        if !new.set.is_empty() {
            self.wait(new);
        }
    }

    /// Those that wait for the lowest table, and the earliest packets first: packets that rules cannot tell apart go the same way, so these stay in order however
    /// many sets they are in. Those of one connection that meet different rules (by flags, ECN, TTL) may change places within a burst, as they may in Open vSwitch's batches.
    #[inline(always)]
    fn next(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.iter().enumerate();
        let (at, _) = waiting.min_by_key(|(_, waiting)| (waiting.table, waiting.set.first()))?;
        Some(self.waiting.swap_remove(at))
    }

    /// Notes a place to come back to; those that come back to the same place share it, so that they wait together: were packets of one connection in two sets, the one with
    /// the earlier packet of another would overtake.
    fn note(&mut self, here: Here, up: u16) -> u16 {
        let stretches = here.stretches.get().as_ptr() as usize;
        let recent = &mut self.recent[(stretches >> 4 ^ usize::from(here.next ^ up)) % RECENT];
        let mut at = *recent;
        while let Some(known) = self.backs.get(usize::from(at)) {
            let same = std::ptr::eq(known.here.stretches.get(), here.stretches.get())
                && (known.here.next, known.here.table, known.up) == (here.next, here.table, up)
                && known.here.rule.get().spec.cookie == here.rule.get().spec.cookie;
            if same {
                return at;
            }
            // What an earlier burst has left leads to nothing, or astray.
            if known.before >= at {
                break;
            }
            at = known.before;
        }
        let before = std::mem::replace(recent, self.backs.len() as u16);
        self.backs.push(Back { here, up, before });
        *recent
    }

    /// [`Lanes::put`] and [`Lanes::send`] of one packet.
    #[inline(always)]
    pub fn send_one(&mut self, index: usize, port: PortNo, frame: F) {
        let index = index % LOOKUP_MAX;
        self.mixed |= port != self.port && !self.sent.is_empty();
        self.port = port;
        self.ports[index] = port;
        self.sent = self.sent.union(SetOfLanes::one(index));
        self.frames[index] = Some(frame);
    }

    /// Sends the first `count` frames of a burst, each to the port that stands at its place, in each port's order of arrival.
    #[inline(always)]
    pub fn send_first<H: Host<F>>(
        way: Way,
        host: &mut H,
        ports: &[PortNo; LOOKUP_MAX],
        count: usize,
        frames: &mut Vec<F>,
    ) {
        let count = count.min(LOOKUP_MAX).min(frames.len());
        let Some(first) = ports[..count].first() else {
            return;
        };
        let with_first = SetOfLanes::run(0, count).those_with(ports, *first);
        if count == frames.len() && with_first.len() == count {
            return host.output_burst(way.in_port, *first, way.mirrored, frames, None);
        }
        let mut leaving = Leaving::new(frames, count);
        let mut taken = leaving.take(with_first);
        host.output_run(way.in_port, *first, way.mirrored, &mut taken);
        drop(taken);
        while let Some((port, mut taken)) = leaving.next(ports) {
            host.output_run(way.in_port, port, way.mirrored, &mut taken);
        }
    }

    /// Notes that lanes go to a port.
    #[inline(always)]
    pub fn send(&mut self, port: PortNo, set: impl Members) {
        self.mixed |= port != self.port && !self.sent.is_empty();
        self.port = port;
        set.each(|lane| self.ports[lane] = port);
        self.sent = self.sent.union(set.whole());
    }

    /// Sends what goes to ports, in each port's order of arrival.
    #[inline(always)]
    fn flush<H: Host<F>>(&mut self, way: Way, host: &mut H) {
        let mut rest = std::mem::take(&mut self.sent);
        // Here, so that what is known of it stays in registers.
        let mut out = std::mem::take(&mut self.out);
        while let Some(first) = rest.first() {
            let port = self.ports[first];
            let set = if self.mixed {
                rest.those_with(&self.ports, port)
            } else {
                rest
            };
            rest = rest.minus(set);
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
            host.output_burst(way.in_port, port, way.mirrored, &mut out, None);
            out.clear();
        }
        self.out = out;
        self.mixed = false;
    }

    /// Does a stretch's edits.
    #[inline(always)]
    fn edit(&mut self, stretch: &Stretch, set: impl Members) {
        for write in stretch.writes() {
            set.over(&mut self.lanes, |lane| lane.write(write));
        }
        self.rewrite(&stretch.rewrite, set);
    }

    /// Makes the choice at a stretch's end, packet by packet.
    #[inline(always)]
    fn spread(&mut self, stretch: &Stretch, set: impl Members) {
        if let Some(spread) = &stretch.spread {
            self.spread_by(spread, set.whole());
        }
    }

    #[inline(never)]
    fn spread_by(&mut self, spread: &Spread, set: SetOfLanes) {
        let narrow = set.minus(self.wide);
        set.minus(narrow)
            .each(|lane| self.spread_wide(lane, spread));
        narrow.over(&mut self.lanes, |lane| {
            let write = spread.write(lane);
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

/// The first frames of a burst, which leave it set by set. When this goes, whether all have left or somebody has panicked, those that nobody has been given are dropped, and the
/// burst is what stood behind them.
///
/// Meanwhile the vector says that it is empty, and its first `all` places are this one's: at those of `rest` and at those from `count` on is a frame each, at the others none any more.
struct Leaving<'a, F> {
    frames: &'a mut Vec<F>,
    rest: SetOfLanes,
    count: usize,
    all: usize,
}

impl<'a, F> Leaving<'a, F> {
    /// The first `count`, one at least, of as many as there are and as a set has places for.
    #[inline(always)]
    fn new(frames: &'a mut Vec<F>, count: usize) -> Leaving<'a, F> {
        let all = frames.len();
        assert!((1..=all.min(LOOKUP_MAX)).contains(&count));
        // SAFETY: none is not more than there is room for, and there is nothing to be valid. The frames stay where they are, and are now this one's.
        unsafe { frames.set_len(0) };
        Leaving {
            frames,
            rest: SetOfLanes::run(0, count),
            count,
            all,
        }
    }

    /// Those that go to the same port as the first one left, and the port.
    #[inline(always)]
    fn next(&mut self, ports: &[PortNo; LOOKUP_MAX]) -> Option<(PortNo, Taken<'_, F>)> {
        let port = ports[self.rest.first()?];
        let set = self.rest.those_with(ports, port);
        Some((port, self.take(set)))
    }

    /// Those of a set that are left.
    #[inline(always)]
    fn take(&mut self, set: SetOfLanes) -> Taken<'_, F> {
        let others = self.rest.minus(set);
        let set = self.rest.minus(others);
        self.rest = others;
        Taken {
            // At each place of `rest` was a frame of this one's. Those of the set are in it no more.
            from: self.frames.as_mut_ptr(),
            set,
            frames: PhantomData,
        }
    }
}

impl<F> Drop for Leaving<'_, F> {
    #[inline(always)]
    fn drop(&mut self) {
        // There are some only where a host has panicked.
        if !self.rest.is_empty() {
            drop(self.take(self.rest));
        }
        let behind = self.all - self.count;
        let from = self.frames.as_mut_ptr();
        // SAFETY: the vector had `all` frames, so it has memory for them, and whoever was given some could not reach it. Those from `count` on have not been touched; they are moved to
        // the front, where no frame is any more, all having been taken. So as many places as the length now says hold one each, and what is behind belongs to nobody.
        unsafe {
            std::ptr::copy(from.add(self.count), from, behind);
            self.frames.set_len(behind);
        }
    }
}

/// Frames that are taken out of a list, at the places of a set.
struct Taken<'a, F> {
    /// Where the list begins. At each of the set's places is a frame that belongs to this.
    from: *mut F,
    set: SetOfLanes,
    frames: PhantomData<&'a mut F>,
}

impl<F> Iterator for Taken<'_, F> {
    type Item = F;

    #[inline(always)]
    fn next(&mut self) -> Option<F> {
        let lane = self.set.first()?;
        self.set = self.set.minus(SetOfLanes::one(lane));
        // SAFETY: `from` says so of this place, which is in the set no more.
        Some(unsafe { self.from.add(lane).read() })
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.set.len(), Some(self.set.len()))
    }
}

impl<F> ExactSizeIterator for Taken<'_, F> {}

impl<F> Drop for Taken<'_, F> {
    /// Those that nobody has taken.
    #[inline(always)]
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl Stretch {
    /// Whether its end, in a rule of this table with so much to come back to, is for the general way.
    #[inline(always)]
    fn leads_off(&self, from: u8, back: u16) -> bool {
        match self.end {
            // Only forward: such ways end by themselves.
            End::Table { table, .. } => table <= from,
            End::Output(_) => back != NOWHERE,
            End::Spread | End::Nothing => false,
        }
    }
}

impl<F: Frame> Engine<F> {
    /// Lanes have been looked up in `table` and met this rule: does what can be done before their next lookup.
    #[inline(always)]
    pub(super) fn meet_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        table: u8,
        rule: &Rule,
        set: SetOfLanes,
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
        self.meet_after(burst, way, host, waited, rule, set);
    }

    #[inline(always)]
    fn meet_after<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        waited: Waiting,
        rule: &Rule,
        set: impl Members,
    ) {
        if let Some((fused, taken)) = self.fused::<H>(burst, rule, waited.back, set) {
            if taken == set.whole() {
                return self.fly(burst, way, host, fused, waited, set);
            }
            self.fly(burst, way, host, fused, waited, taken);
            let set = set.whole().minus(taken);
            return self.meet_rest(burst, way, host, Waiting { set, ..waited }, rule);
        }
        self.meet_alone(burst, way, host, waited, rule, set);
    }

    #[inline(never)]
    fn meet_rest<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        waited: Waiting,
        rule: &Rule,
    ) {
        self.meet_alone(burst, way, host, waited, rule, waited.set);
    }

    /// Lanes do what a rule says, and no more.
    #[inline(always)]
    fn meet_alone<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
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
        let Some(stretches) = rule.straight() else {
            return self.leave_by(burst, way, host, waited, rule);
        };
        let here = Here {
            stretches,
            rule: Met(NonNull::from(rule)),
            next: 0,
            table,
        };
        self.pass(burst, way, host, here, back, set);
    }

    /// Carries stretches out, up to a lookup or the end.
    #[inline(always)]
    fn pass<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        mut here: Here,
        mut back: u16,
        set: impl Members,
    ) {
        loop {
            let stretches = here.stretches.get();
            let Some(stretch) = stretches.get(usize::from(here.next)) else {
                return;
            };
            if stretch.leads_off(here.table, back) {
                return self.leave_at(burst, way, host, here, back, set.whole());
            }
            if stretch.rewrite.may_expire() {
                let lanes = &mut self.lanes.lanes;
                let mut expired = false;
                set.each(|lane| expired |= stretch.rewrite.expires(lanes[lane].hot()));
                if expired {
                    return self.part(burst, way, host, here, back, set.whole());
                }
            }
            self.lanes.edit(stretch, set);
            match stretch.end {
                End::Output(port) => return self.lanes.send(port, set),
                End::Table { table, resubmit } => {
                    let lanes = &mut self.lanes;
                    set.over(&mut lanes.lanes, |lane| lane.hops += 1);
                    here.next += 1;
                    if usize::from(here.next) < stretches.len() {
                        back = lanes.note(here, back);
                    }
                    return lanes.wait(Waiting {
                        table,
                        resubmit,
                        back,
                        set: set.whole(),
                    });
                }
                End::Spread => {
                    self.lanes.spread(stretch, set);
                    here.next += 1;
                }
                End::Nothing => match self.lanes.backs.get(usize::from(back)) {
                    Some(after) => (here, back) = (after.here, after.up),
                    None => return self.lose(host, set.whole()),
                },
            }
        }
    }

    /// Lanes, some of which cannot pass a stretch, part before it.
    #[inline(never)]
    fn part<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        here: Here,
        back: u16,
        set: SetOfLanes,
    ) {
        let Some(stretch) = here.stretch() else {
            return;
        };
        let lanes = &mut self.lanes.lanes;
        let expired = set.those(|lane| stretch.rewrite.expires(lanes[lane].hot()));
        self.leave_at(burst, way, host, here, back, expired);
        let set = set.minus(expired);
        if !set.is_empty() {
            self.pass(burst, way, host, here, back, set);
        }
    }

    /// Lanes end without having been sent.
    fn lose<H: Host<F>>(&mut self, host: &mut H, set: SetOfLanes) {
        for lane in set.iter() {
            self.lanes.frames[lane] = None;
            host.dropped(DropReason::Action);
        }
    }

    /// Tells the host what was looked up.
    #[inline(always)]
    fn tell<H: Host<F>>(
        &self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
        rule: Option<&Rule>,
        set: SetOfLanes,
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

    /// Gives a lane's packet a walk that comes back to these places. `table`: the one that it has
    /// been looked up in last, or waits to be.
    fn leave(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        lane: usize,
        table: u8,
        back: u16,
    ) -> Option<&mut Walk<F>> {
        let frame = self.lanes.frames[lane].take()?;
        let from = &self.lanes.lanes[lane];
        let walk = &mut self.walks[lane];
        self.lanes.fill(lane, &mut walk.key, burst.valid);
        walk.layers = from.extent.layers();
        walk.start(frame, way.mirrored);
        walk.resubmits = from.hops;
        // Lanes go forward only, so there has been a rule of the first table before any other one.
        walk.first = (table > 0).then_some(First {
            table: 0,
            cookie: self.lanes.firsts[lane],
        });
        let mut next = back;
        while let Some(back) = self.lanes.backs.get(usize::from(next)) {
            walk.stack.insert(0, back.here.position());
            next = back.up;
        }
        Some(walk)
    }

    /// Lanes go the general way from a rule that they have met.
    #[inline(never)]
    fn leave_by<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        waited: Waiting,
        rule: &Rule,
    ) {
        for lane in waited.set.iter() {
            if let Some(walk) = self.leave(burst, way, lane, waited.table, waited.back) {
                walk.wait_for(waited.resubmit);
                let next = Self::hit(walk, burst, host, waited.table, rule);
                self.go_on(burst, host, lane, next);
            }
        }
    }

    /// Lanes go the general way from a place in a rule.
    #[inline(never)]
    fn leave_at<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        here: Here,
        back: u16,
        set: SetOfLanes,
    ) {
        for lane in set.iter() {
            if let Some(walk) = self.leave(burst, way, lane, here.table, back) {
                walk.at = here.position();
                walk.first.get_or_insert(First {
                    table: here.table,
                    cookie: walk.at.cookie,
                });
                let next = walk.run(burst, host);
                self.go_on(burst, host, lane, next);
            }
        }
    }

    /// No rule has been found.
    #[inline(never)]
    fn miss_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        waited: Waiting,
    ) {
        let set = waited.set;
        self.tell(burst, host, waited.table, None, set);
        if waited.resubmit {
            return self.come_back(burst, way, host, waited.back, set);
        }
        for lane in set.iter() {
            if let Some(walk) = self.leave(burst, way, lane, waited.table, waited.back) {
                walk.wait_for(false);
                let next = Self::missed(walk, burst, host, waited.table);
                self.go_on(burst, host, lane, next);
            }
        }
    }

    /// A table that lanes cannot be looked up in.
    #[inline(never)]
    fn wait_in_walks(&mut self, burst: &Burst<'_, '_>, way: Way, waited: Waiting) {
        for lane in waited.set.iter() {
            if let Some(walk) = self.leave(burst, way, lane, waited.table, waited.back) {
                walk.wait_for(waited.resubmit);
                self.waiting.push((waited.table, lane as u16));
            }
        }
    }

    /// A walk that has left its lane has run up to here.
    #[inline(always)]
    pub(super) fn go_on<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        index: usize,
        next: Next,
    ) {
        match next {
            Next::Done => {}
            Next::Lookup(table) => self.waiting.push((table, index as u16)),
            other => self.run_to_end(burst, host, index, other),
        }
    }

    /// Takes lanes to their ends, and sends what has not been yet.
    #[inline]
    pub(super) fn drive_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
    ) {
        if !self.lanes.waiting.is_empty() {
            self.drive_waiting(burst, way, host);
        }
        self.lanes.backs.clear();
        self.lanes.wide = SetOfLanes::EMPTY;
        self.lanes.rounds = 0;
        self.lanes.flush(way, host);
    }

    /// Takes lanes that wait to their ends.
    #[inline(always)]
    fn drive_waiting<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, way: Way, host: &mut H) {
        let mut found = Found::new();
        while let Some(waited) = self.lanes.next() {
            if self.lanes.rounds == ROUNDS {
                // What has gone its way already leaves before what still waits.
                self.lanes.flush(way, host);
                self.wait_in_walks(burst, way, waited);
                continue;
            }
            self.lanes.rounds += 1;
            if !self.lanes.look_up(burst, waited, &mut found) {
                self.wait_in_walks(burst, way, waited);
                continue;
            }
            let found = found.list();
            if found.len() > 1 {
                Self::fetch(burst, found);
            }
            self.meet_all(burst, way, host, waited, found);
        }
    }
}

impl<F: Frame> Walk<F> {
    /// Gets ready for the answer of a lookup that was made for it. After a resubmit it stands where it is to come back to; a list that went to a table for good is at its
    /// end.
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
    use crate::host::Context;
    use crate::ops::ToController;
    use packet::frame::Offload;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A frame without bytes that counts how often it is dropped.
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

    /// Keeps what is sent, by port, until `left` frames have been: the next one makes it panic.
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

    /// Whenever a host panics, frames that have been sent are the host's, those behind the first stay in the burst, in order, and all others have been dropped, each once.
    #[test]
    fn a_host_that_panics_costs_only_frames_on_their_way_and_each_once() {
        let ports = std::array::from_fn(|at| 7 + at as PortNo % 3);
        for (all, count) in [(11, 8), (9, 9), (64, 64), (80, 64), (5, 1)] {
            // The first port's frames, the second's and so on.
            let order = (0..3).flat_map(|port| (port..count).step_by(3));
            let order = order.collect::<Vec<_>>();
            for left in 0..=count {
                let drops: Arc<[AtomicUsize]> = (0..all).map(|_| AtomicUsize::new(0)).collect();
                let new = |at| Counted(Arc::clone(&drops), at);
                let mut frames = (0..all).map(new).collect::<Vec<_>>();
                let sent = Vec::new();
                let mut host = Fails { sent, left };
                let way = Way {
                    in_port: 1,
                    mirrored: 0,
                };
                let result = catch_unwind(AssertUnwindSafe(|| {
                    Lanes::send_first(way, &mut host, &ports, count, &mut frames);
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
