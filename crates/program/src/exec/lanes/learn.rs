//! Lanes that come to a `learn` step.
//!
//! While the rules that packets would teach are in force, nothing is to be asked for and lanes go
//! on. Packets whose rule is not in force become walks that wait until the others of the burst are
//! done; then they ask one after the other, in the order in which they came. So do packets that
//! teach the same rule as one before them that waits, and those behind one that may still come to a
//! step. This is as if each packet were finished before the next only where packets of the burst's
//! port cannot meet what is asked for, and where no two steps teach the same rule:
//! `table::learning` says where that is so. Packets of a port that may not ask for more rules now
//! ([`super::super::suspend::rates`]) go on, too.

use crate::actions::block::{ActionBlock, End, LANE_WORDS};
use crate::actions::lane_learn::{LaneLearn, Loaded};
use crate::burst::{LaneSet, Words};
use crate::exec::Engine;
use crate::exec::interpreter::{Burst, Next};
use crate::exec::lanes::{Arrival, Lanes, NOWHERE};
use crate::host::{Event, Host, ResumePoint};
use crate::rule::fused::Here;
use crate::table::Bridge;
use packet::{FlowKey, Frame};

impl<F: Frame> Lanes<F> {
    /// Returns a word of a lane, also of its tunnel's metadata and connection.
    #[inline(always)]
    fn word(&self, lane: usize, index: u8) -> u64 {
        match usize::from(index) {
            at @ ..LANE_WORDS => self.lanes[lane].words[at],
            _ => Words::word(&self.sided(&self.all(), lane), index),
        }
    }
}

impl<F: Frame> Engine<F> {
    /// Sends lanes through a `learn` step, and returns those that stay lanes. The places are those
    /// behind the step.
    #[inline(never)]
    pub(super) fn learn_lanes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        arrival: Arrival,
        host: &mut H,
        block: &ActionBlock,
        (here, back): (Here, u16),
        set: LaneSet,
    ) -> LaneSet {
        let Some(step) = block.learn.as_deref() else {
            return set;
        };
        if host.has_taught() {
            return set;
        }
        let mut known = Known::new(self, step, host);
        let mut waiting = LaneSet::EMPTY;
        let first = self.first_on_its_way(burst);
        for lane in set.iter() {
            match known.state(self, burst, lane, lane > first) {
                State::Known => {}
                State::Refused => host.noted(Event::AskedTooOften),
                State::Unknown => waiting = waiting.union(LaneSet::one(lane)),
            }
        }
        if let Some(first) = waiting.first()
            && first < self.lanes.may_teach_again
            && (back != NOWHERE || here.leads_to_learn(burst.bridge))
        {
            self.lanes.may_teach_again = first;
        }
        for lane in waiting.iter() {
            if self.leave_to(burst, arrival, here, back, lane).is_some() {
                self.to_learn.push((lane as u16, Next::Learn));
            }
        }
        set.minus(waiting)
    }

    /// Returns the first packet that is elsewhere and may still come to a step.
    fn first_on_its_way(&self, burst: &Burst<'_, '_>) -> usize {
        let lanes = self.lanes.waiting.iter().chain([&self.lanes.unmet]);
        // Those that are to return to a rule may come to a step there.
        let lanes = lanes
            .filter(|waiting| !burst.is_behind_steps(waiting.table))
            .filter(|waiting| waiting.back != NOWHERE || burst.bridge.leads_to_learn(waiting.table))
            .filter_map(|waiting| waiting.set.first());
        let walks = (self.waiting.iter())
            .filter(|(table, _)| !burst.is_behind_steps(*table))
            .map(|(_, index)| usize::from(*index));
        let first = lanes.chain(walks).min().unwrap_or(usize::MAX);
        first.min(self.lanes.may_teach_again)
    }

    /// Has walks that wait for those that are to ask for rules wait with them.
    #[cold]
    #[inline(never)]
    pub(crate) fn let_go_first(&mut self) {
        let waiting = self.waiting.drain(..);
        self.to_learn
            .extend(waiting.map(|(table, index)| (index, Next::Lookup(table))));
    }

    /// Has walks ask for rules, in the order in which their packets came, each to its end.
    #[cold]
    #[inline(never)]
    pub(crate) fn learn_in_order<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        let burst = Burst {
            ordered: true,
            barrier: 0,
            ..*burst
        };
        let mut walks = std::mem::take(&mut self.to_learn);
        walks.sort_unstable_by_key(|(index, _)| *index);
        for (index, next) in walks.drain(..) {
            self.run_to_end(&burst, host, index.into(), next);
        }
        self.to_learn = walks;
        self.lanes.unknown = 0;
        self.lanes.may_teach_again = usize::MAX;
    }
}

impl Here {
    /// Returns whether packets may come to a step that asks for a rule from here on, in this rule
    /// or behind its lookups.
    fn leads_to_learn(&self, bridge: &Bridge) -> bool {
        let blocks = self.blocks.get().iter().skip(self.next.into());
        blocks.into_iter().any(|block| {
            let next = match block.end {
                End::Table { table, .. } | End::Track(Some(table)) => Some(table),
                _ => None,
            };
            block.learn.is_some() || next.is_some_and(|table| bridge.leads_to_learn(table))
        })
    }
}

/// Whether the rule that a packet teaches is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is in force, and has been noted to be still taught.
    Known,
    /// It is not, and may not be asked for now.
    Refused,
    /// It may have to be asked for.
    Unknown,
}

/// What is known of a step while lanes pass it.
struct Known<'s> {
    step: &'s LaneLearn,
    place: ResumePoint,
    /// Whether rules of the bridge have been asked for.
    are_asked: bool,
    /// Whether rules that were changed too often are to be asked for later: each packet that
    /// teaches one decides anew what.
    defers: bool,
    /// Whether packets of the port may ask for new rules; None: to be found out.
    may_ask: Option<bool>,
    /// A key that has the words of the last rule that was looked up.
    key: FlowKey,
    /// What the last rule does, and its fingerprint: that of most rules of a port.
    last: Option<(Loaded, u64)>,
}

impl<'s> Known<'s> {
    fn new<F: Frame, H: Host<F>>(engine: &Engine<F>, step: &'s LaneLearn, host: &H) -> Known<'s> {
        let waiting = &engine.waiting_for;
        Known {
            step,
            place: host.place(),
            are_asked: waiting.concerns(host),
            defers: waiting.is_deferring(),
            may_ask: None,
            key: FlowKey::ZERO,
            last: None,
        }
    }

    /// Returns a lane's state. `is_behind`: behind a packet that may still come to a step.
    fn state<F: Frame>(
        &mut self,
        engine: &mut Engine<F>,
        burst: &Burst<'_, '_>,
        lane: usize,
        is_behind: bool,
    ) -> State {
        let (step, mut mark) = (self.step, 0);
        let key = &mut self.key;
        step.matched(
            |word| engine.lanes.word(lane, word),
            |word, value| {
                key.words[usize::from(word)] = value;
                mark ^= mix(value);
            },
        );
        // Which rule it is, roughly: two may be taken for one.
        let mark = 1 << (mark >> 58);
        let (waiting, bridge) = (&engine.waiting_for, self.place.bridge);
        let words = || {
            let shape = step.learn.shape.iter();
            shape.map(|(word, _)| self.key.words[usize::from(*word)])
        };
        // What was asked for last counts, not what is in force until then.
        let state = match is_behind
            || engine.lanes.unknown & mark != 0
            || self.defers && waiting.may_defer(bridge, &step.learn, words())
            || self.are_asked && waiting.asked.may_be_like(bridge, &step.learn, words())
        {
            true => State::Unknown,
            false => self.state_in_force(engine, burst, lane),
        };
        if state == State::Unknown {
            engine.lanes.unknown |= mark;
        }
        state
    }

    /// Returns the state of the rule that has the words of the key, where nobody has asked for it.
    #[inline(always)]
    fn state_in_force<F: Frame>(
        &mut self,
        engine: &mut Engine<F>,
        burst: &Burst<'_, '_>,
        lane: usize,
    ) -> State {
        let step = self.step;
        let Some(rule) = burst.bridge.find_by(&step.learn, &self.key, burst.guard) else {
            let rates = &mut engine.waiting_for.rates;
            let port = self.place.received;
            let mut find_out = || rates.may_ask(port, burst.now_ms);
            return match *self.may_ask.get_or_insert_with(&mut find_out) {
                true => State::Unknown,
                false => State::Refused,
            };
        };
        let read = |word| engine.lanes.word(lane, word);
        let fingerprint = match &self.last {
            Some((last, fingerprint)) if step.loads(last, read) => *fingerprint,
            _ => {
                let loaded = step.loaded(read);
                let fingerprint = step.fingerprint(&loaded);
                self.last = Some((loaded, fingerprint));
                fingerprint
            }
        };
        match rule.is_taught_again(fingerprint, burst.now_ms) {
            true => State::Known,
            false => State::Unknown,
        }
    }
}

/// Spreads a word's bits to the highest ones.
#[inline(always)]
fn mix(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
