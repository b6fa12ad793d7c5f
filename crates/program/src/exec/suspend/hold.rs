//! Holds packets that wait for a rule, and resumes them.
//!
//! A walk that comes to a `learn` step whose rule is not in force asks control for it and is held:
//! moved out of the burst as it is, with its deferred outputs, so that no answer to the packet can
//! overtake the rule. It resumes when control has answered and every worker works in the answer's
//! epoch. It does so in the epoch before that of its rule: as in Open vSwitch, a packet does not
//! meet the rules that it learned itself, but those of the packets before it. Later packets of this
//! worker whose lookup the pending rule would decide are held behind it, and then look up again in
//! the rule's epoch. So packets of one worker behave as if each were finished before the next,
//! except that a packet held at a lookup learns its later rules only after that.
//!
//! Steps of a held walk still belong to rules, by address: the worker holds its oldest epoch
//! ([`Guard::hold`]), so they are not freed. Everything is bounded: rules asked for
//! ([`ASKED_MAX`]), walks held ([`HELD_MAX`], [`HELD_BYTES`]), and time ([`PATIENCE_MS`]), after
//! which a walk resumes without an answer.

use crate::actions::learn::{Answer, Ended, Learn, LearnOutcome, Request, Values};
use crate::actions::{Bits, Op, OpList, PortNo};
use crate::epoch::{Epoch, Guard, NEVER};
use crate::exec::Engine;
use crate::exec::interpreter::{Burst, Next, Walk};
use crate::exec::suspend::asked::{Asked, AskedRules};
use crate::exec::suspend::flaps::{Deferred, Flaps, Named};
use crate::exec::suspend::rates::Rates;
use crate::host::{DropReason, Event, Host, ResumePoint};
use crate::rule::Rule;
use crate::table::Bridge;
use packet::key::at;
use packet::parse::{self, Layers};
use packet::{FlowKey, Frame, Match, WordSet};
use smallvec::SmallVec;
use stages::Stage;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most rules that a worker asks for at a time. Packets that would ask for more go on without.
pub const ASKED_MAX: usize = 256;
/// Most walks held at a time. Packets beyond are dropped.
pub const HELD_MAX: usize = 1024;
/// Most bytes of packets in held walks. Packets beyond are dropped.
pub const HELD_BYTES: usize = 8 << 20;
/// How long a walk is held in total, and a rule waited for, in milliseconds.
pub const PATIENCE_MS: u64 = 50;
/// Most finished walks whose memory is kept for reuse.
const SPARE: usize = 64;
/// Most refusals remembered.
const REFUSALS: usize = 64;
/// FIN and RST.
const ENDS: u16 = 0x05;

/// The lookup that a held walk waits to make.
#[derive(Clone, Copy)]
struct Wanted {
    table: u8,
    /// The ingress port to match, when it is not the packet's own.
    from: Option<PortNo>,
}

/// Facts about a walk that stay the same however often it is held.
#[derive(Clone)]
struct Origin {
    /// Its place in the order of held walks.
    order: u64,
    /// The oldest epoch whose rules its steps belong to.
    since: Epoch,
    /// When it resumes, answered or not.
    deadline_ms: u64,
    /// The last ticket of the packets before it, whose rules apply to it.
    before: u64,
    /// The epoch of the first rule that it has learned itself, which it does not reach.
    own_from: Epoch,
    /// The rules that it has asked for: what its epoch says of them may have changed since.
    taught: SmallVec<[Lesson; 2]>,
    /// The list that it began with, if that belongs to no rule: kept alive for the steps that point
    /// into it.
    #[allow(dead_code)]
    keep: Option<Arc<OpList>>,
}

/// A rule that a walk has asked for, roughly: two may be taken for one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lesson {
    table: u8,
    priority: u16,
    /// Hash of its match.
    hash: u64,
}

/// A request that a walk waits for.
#[derive(Clone, Copy)]
struct Ticket {
    number: u64,
    /// Whether the walk itself made the request, not one before it.
    own: bool,
    /// Index of the result that it decides.
    result: Option<usize>,
}

type Tickets = SmallVec<[Ticket; 2]>;
/// Bits that `learn` steps write, in the order of the steps, and whether their rules are there:
/// false until that is known.
type Results = SmallVec<[(Bits, bool); 2]>;

/// A walk that waits.
pub struct Held<F> {
    walk: Walk<F>,
    /// The lookup to make, if it waits at one.
    wanted: Option<Wanted>,
    tickets: Tickets,
    /// Bits to write when it resumes.
    results: Results,
    origin: Origin,
    /// The epoch to resume in.
    epoch: Epoch,
    valid: WordSet,
    place: ResumePoint,
    bytes: usize,
    longer: i32,
}

impl<F> Held<F> {
    /// Creates one that waits for nothing.
    fn of(walk: Walk<F>, origin: Origin) -> Held<F> {
        Held {
            walk,
            wanted: None,
            tickets: Tickets::new(),
            results: Results::new(),
            origin,
            epoch: 0,
            valid: WordSet::EMPTY,
            place: ResumePoint::default(),
            bytes: 0,
            longer: 0,
        }
    }

    /// Applies the outcomes of requests that it waits for.
    fn hear(&mut self, resolved: &[Resolved]) {
        let Held {
            tickets,
            results,
            origin,
            epoch,
            ..
        } = self;
        let since = *epoch;
        tickets.retain(|ticket| {
            let Ok(at) = resolved.binary_search_by_key(&ticket.number, |end| end.ticket) else {
                return true;
            };
            let end = &resolved[at];
            if let Some(at) = ticket.result {
                results[at].1 = end.learned;
            }
            if ticket.own && end.new {
                origin.own_from = end.epoch.min(origin.own_from);
            }
            false
        });
        // Resume in the epoch of the newest rule that packets before it have learned by now,
        // whether it waits for that rule or not.
        let earlier = resolved.partition_point(|end| end.ticket <= origin.before);
        if let Some(last) = resolved[..earlier].last() {
            *epoch = last.epoch.max(*epoch);
        }
        if origin.own_from != NEVER {
            *epoch = (origin.own_from - 1).max(since);
        }
    }

    /// Returns where it was.
    pub fn place(&self) -> ResumePoint {
        self.place
    }

    /// Returns what [`Host::longer`] is to return when it is resumed.
    pub fn longer(&self) -> i32 {
        self.longer
    }

    /// Returns whether its packet is a packet-out's.
    pub fn is_of_packet_out(&self) -> bool {
        self.walk.packet_out
    }
}

/// A request that has been resolved.
struct Resolved {
    ticket: u64,
    learned: bool,
    /// Whether the rule was not there before.
    new: bool,
    /// The epoch from which on the rule holds.
    epoch: Epoch,
}

/// A refusal, which is valid until something is published.
struct Refusal {
    learn: Arc<Learn>,
    /// None: the limit is reached, whatever the values.
    values: Option<Values>,
    epoch: Epoch,
}

/// Held walks and pending requests of an engine, kept between bursts.
pub(crate) struct Waiting<F> {
    pub(crate) asked: AskedRules,
    /// Rules that packets change too often, and what of them is to be asked for later.
    flaps: Flaps,
    /// How many rules packets of each port have asked for lately.
    pub(crate) rates: Rates,
    /// Waiting walks, in order.
    held: VecDeque<Box<Held<F>>>,
    /// Walks that may resume, in order.
    ready: VecDeque<Box<Held<F>>>,
    refusals: VecDeque<Refusal>,
    /// Memory of finished walks, for reuse: a walk is a kilobyte.
    spare: Vec<Box<Held<F>>>,
    /// Bytes of all held walks.
    bytes: usize,
    /// The oldest epoch among answers that not every worker has reached yet, [`NEVER`] for none.
    answered: Epoch,
    /// No deadline, of a rule asked for or of a held walk, is before this.
    due_ms: u64,
    tickets: u64,
    orders: u64,
    /// Whether an epoch is held.
    pinned: bool,
    /// The origin of the walk that is being resumed, or that began with a list of its own.
    origin: Option<Origin>,
}

impl<F> Waiting<F> {
    pub fn new() -> Waiting<F> {
        Waiting {
            asked: AskedRules::default(),
            flaps: Flaps::default(),
            rates: Rates::default(),
            held: VecDeque::new(),
            ready: VecDeque::new(),
            refusals: VecDeque::new(),
            spare: Vec::new(),
            bytes: 0,
            answered: NEVER,
            due_ms: 0,
            tickets: 0,
            orders: 0,
            // True, because an engine that failed before this one may have left an epoch held.
            pinned: true,
            origin: None,
        }
    }

    /// Returns whether rules that packets change too often are to be asked for later.
    #[inline(always)]
    pub fn is_deferring(&self) -> bool {
        self.flaps.is_deferring()
    }

    /// Returns whether the rule with these words of its match may be one of them.
    #[cold]
    pub fn may_defer(&self, bridge: u32, learn: &Learn, words: impl Iterator<Item = u64>) -> bool {
        self.flaps.may_defer(bridge, learn, self.asked.hash(words))
    }

    /// Returns whether packets of a bridge may have to wait for rules.
    #[inline(always)]
    pub fn concerns<H: Host<F>>(&self, host: &H) -> bool
    where
        F: Frame,
    {
        !self.asked.is_empty() && self.concerns_bridge(host.place().bridge)
    }

    #[cold]
    fn concerns_bridge(&self, bridge: u32) -> bool {
        self.asked.concern(bridge)
    }

    /// Returns whether a request has been refused in this epoch, and would be refused again.
    fn is_refused(&self, bridge: u32, learn: &Arc<Learn>, values: &Values, epoch: Epoch) -> bool {
        let refused = self.refusals.iter().any(|refusal| {
            refusal.epoch == epoch
                && Arc::ptr_eq(&refusal.learn, learn)
                && refusal
                    .values
                    .as_ref()
                    .is_none_or(|refused| refused == values)
        });
        refused && !self.has_taught() && !self.asked.may_make_room(bridge, learn, 0)
    }

    /// Returns whether the walk that is being resumed has asked for rules, which its epoch does not
    /// have.
    fn has_taught(&self) -> bool {
        (self.origin.as_ref()).is_some_and(|origin| !origin.taught.is_empty())
    }

    /// Returns whether the walk that is being resumed has asked for this rule.
    fn has_taught_this(&self, learn: &Learn, matching: &Match) -> bool {
        self.has_taught() && {
            let lesson = self.lesson(learn, matching);
            (self.origin.as_ref()).is_some_and(|origin| origin.taught.contains(&lesson))
        }
    }

    fn lesson(&self, learn: &Learn, matching: &Match) -> Lesson {
        Lesson {
            table: learn.table,
            priority: learn.priority,
            hash: self.asked.hash_of(matching),
        }
    }

    fn remember(&mut self, asked: Asked, verdict: LearnOutcome, epoch: Epoch) {
        if self.refusals.len() == REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(Refusal {
            learn: asked.learn,
            values: (verdict == LearnOutcome::Refused).then_some(asked.values),
            epoch,
        });
    }

    /// Removes and returns requests that have been answered in an epoch that every worker has
    /// reached, or that have timed out; by ticket, ascending.
    fn resolve(
        &mut self,
        guard: &Guard<'_>,
        now_ms: u64,
        noted: &mut impl FnMut(Event),
    ) -> Vec<Resolved> {
        let mut resolved = Vec::new();
        let mut passed = 0;
        let ended = self.asked.take_ended(|asked| {
            let answered = asked.answer.is_some_and(|answer| {
                answer.epoch <= passed || {
                    let seen = guard.domain().passed(answer.epoch);
                    passed = if seen {
                        answer.epoch.max(passed)
                    } else {
                        passed
                    };
                    seen
                }
            });
            answered || now_ms >= asked.deadline_ms
        });
        for asked in ended {
            // An answer counts once every worker has reached its epoch.
            let answer = asked.answer.filter(|answer| answer.epoch <= passed);
            let verdict = answer.map(|answer| answer.verdict);
            if answer.is_none() {
                noted(Event::NoAnswer);
            }
            let learned = matches!(verdict, Some(LearnOutcome::Learned | LearnOutcome::Known));
            resolved.push(Resolved {
                ticket: asked.ticket,
                learned,
                new: verdict == Some(LearnOutcome::Learned),
                // Without an answer the current epoch, because earlier requests may have been
                // fulfilled.
                epoch: asked.answer.map_or(guard.epoch(), |answer| answer.epoch),
            });
            match (verdict, asked.answer) {
                (Some(LearnOutcome::Learned | LearnOutcome::Known), _) => noted(Event::Learned),
                (Some(verdict), Some(answer)) => {
                    noted(Event::Refused(verdict));
                    self.remember(asked, verdict, answer.epoch);
                }
                _ => {}
            }
        }
        resolved
    }

    /// Returns whether an answer has come to count, or a deadline has passed. A turn of a worker
    /// takes microseconds and control a hundred times as long, so most turns have nothing to do
    /// here.
    fn has_news(&self, guard: &Guard<'_>, now_ms: u64) -> bool {
        now_ms >= self.due_ms || self.answered != NEVER && guard.domain().passed(self.answered)
    }

    /// Finds the walks that may resume, and releases epochs that no walk needs any more.
    fn settle(&mut self, guard: &Guard<'_>, now_ms: u64, noted: &mut impl FnMut(Event)) {
        let idle = match self.asked.is_empty() {
            true => !self.pinned,
            false => !self.has_news(guard, now_ms),
        };
        if idle {
            return;
        }
        let resolved = self.resolve(guard, now_ms, noted);
        let unanswered = self.asked.iter().filter_map(|asked| asked.answer);
        self.answered = (unanswered.map(|answer| answer.epoch).min()).unwrap_or(NEVER);
        for _ in 0..self.held.len() {
            let Some(mut held) = self.held.pop_front() else {
                break;
            };
            held.hear(&resolved);
            if held.tickets.is_empty() || now_ms >= held.origin.deadline_ms {
                held.tickets.clear();
                self.ready.push_back(held);
            } else {
                self.held.push_back(held);
            }
        }
        let asked = self.asked.iter().map(|asked| asked.deadline_ms);
        let held = self.held.iter().map(|held| held.origin.deadline_ms);
        self.due_ms = asked.chain(held).min().unwrap_or(NEVER);
        let waiting = self.held.iter().chain(&self.ready);
        let oldest = waiting.map(|held| held.origin.since).min();
        guard.hold(oldest.unwrap_or(NEVER));
        self.pinned = oldest.is_some();
    }

    /// Requests a rule by `send`, which returns false when that is not possible now. Returns what
    /// is wanted in that case, and when too many have been requested.
    fn request(
        &mut self,
        wanted: Deferred,
        is_late: bool,
        now_ms: u64,
        send: impl FnOnce(Request) -> bool,
    ) -> Option<Deferred> {
        self.tickets += 1;
        let request = Request {
            ticket: self.tickets,
            learn: Arc::clone(&wanted.learn),
            values: wanted.values.clone(),
            seen_ms: wanted.seen_ms,
            is_late,
        };
        if self.asked.len() >= ASKED_MAX || !send(request) {
            return Some(wanted);
        }
        let deadline_ms = now_ms + PATIENCE_MS;
        self.due_ms = deadline_ms.min(self.due_ms);
        self.asked.push(Asked {
            ticket: self.tickets,
            bridge: wanted.bridge,
            matching: wanted.matching,
            fingerprint: wanted.learn.fingerprint(&wanted.values),
            is_change: wanted.is_change,
            learn: wanted.learn,
            values: wanted.values,
            deadline_ms,
            answer: None,
        });
        None
    }

    #[cold]
    fn ask_deferred(&mut self, now_ms: u64, mut send: impl FnMut(u32, Request) -> bool) {
        while let Some(due) = self.flaps.take_due(now_ms) {
            let bridge = due.bridge;
            if let Some(due) = self.request(due, true, now_ms, |request| send(bridge, request)) {
                return self.flaps.defer_again(due);
            }
        }
    }

    fn put_back(&mut self, held: Box<Held<F>>) {
        let order = held.origin.order;
        let at = self
            .held
            .partition_point(|other| other.origin.order < order);
        self.held.insert(at, held);
    }
}

/// When a worker has to call [`Engine::settle`] again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Nothing is held.
    Idle,
    /// Soon, because what is waited for causes no wakeup.
    Now,
    /// When control answers, or after this many milliseconds.
    Until(u64),
}

impl<F: Frame> Engine<F> {
    /// Takes control's answer to a request. Ignores an answer that comes too late.
    pub fn answer(&mut self, answer: Answer) {
        let waiting = &mut self.waiting_for;
        if let Some(asked) = waiting.asked.get_mut(answer.ticket) {
            asked.answer = Some(answer);
            waiting.answered = answer.epoch.min(waiting.answered);
        }
    }

    /// Notes a turn in which the worker had no frames: nobody is short of its time.
    #[inline(always)]
    pub fn rested(&mut self, now_ms: u64) {
        self.waiting_for.rates.rest(now_ms);
    }

    /// Returns whether anything waits: then [`Engine::settle`] must be called each turn.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        let waiting = &self.waiting_for;
        !waiting.asked.is_empty() || waiting.pinned || waiting.flaps.is_deferring()
    }

    /// Returns the number of walks held now, and the bytes of their packets.
    pub fn held(&self) -> (usize, usize) {
        let waiting = &self.waiting_for;
        (waiting.held.len() + waiting.ready.len(), waiting.bytes)
    }

    /// Returns when to call [`Engine::settle`] again at the latest.
    pub fn wait(&self, now_ms: u64) -> Wait {
        let waiting = &self.waiting_for;
        if !self.is_waiting() {
            return Wait::Idle;
        }
        let answered = waiting.answered != NEVER;
        let pinned = waiting.asked.is_empty() && waiting.pinned;
        if answered || !waiting.ready.is_empty() || pinned {
            return Wait::Now;
        }
        let deadlines = waiting.asked.iter().map(|asked| asked.deadline_ms);
        let deadline = deadlines.chain(waiting.flaps.due_ms()).min();
        Wait::Until(deadline.unwrap_or(0).saturating_sub(now_ms))
    }

    /// Finds the walks that may resume; [`Engine::release`] returns them. Must be called at the
    /// beginning of a turn, before packets are received.
    pub fn settle(&mut self, guard: &Guard<'_>, now_ms: u64, noted: &mut impl FnMut(Event)) {
        self.waiting_for.settle(guard, now_ms, noted);
    }

    /// Asks for what packets wanted of rules that had been changed too often, where its time has
    /// come. `send` sends a request for a rule of a bridge, and returns false when that is not
    /// possible now. Must be called after [`Engine::settle`].
    #[inline(always)]
    pub fn ask_deferred(&mut self, now_ms: u64, send: impl FnMut(u32, Request) -> bool) {
        if self.waiting_for.flaps.is_deferring() {
            self.waiting_for.ask_deferred(now_ms, send);
        }
    }

    /// Returns the next walk that may resume: pass it to [`Engine::resume`], or drop it when its
    /// bridge is gone.
    pub fn release(&mut self) -> Option<Box<Held<F>>> {
        let held = self.waiting_for.ready.pop_front()?;
        self.waiting_for.bytes -= held.bytes;
        Some(held)
    }

    /// Drops all held walks, and returns their number.
    pub fn forget_held(&mut self) -> usize {
        let waiting = &mut self.waiting_for;
        let count = waiting.held.len() + waiting.ready.len();
        waiting.held.clear();
        waiting.ready.clear();
        waiting.asked.clear();
        waiting.flaps.clear();
        waiting.bytes = 0;
        (waiting.answered, waiting.due_ms) = (NEVER, 0);
        waiting.origin = None;
        count
    }

    /// Resumes a walk in the bridge that it was in. It may be held again.
    pub fn resume<H: Host<F>>(
        &mut self,
        mut held: Box<Held<F>>,
        bridge: &Bridge,
        guard: &Guard<'_>,
        now_ms: u64,
        host: &mut H,
    ) {
        let _stage = stages::enter(Stage::Actions, 1);
        let guard = guard.in_held(held.epoch);
        let late = now_ms >= held.origin.deadline_ms;
        let burst = Burst {
            ordered: true,
            before: if late { 0 } else { held.origin.before },
            ..Burst::new(bridge, &guard, held.valid, now_ms, host)
        };
        self.waiting_for.origin = Some(held.origin.clone());
        if self.walks.is_empty() {
            self.walks.push(Walk::new());
        }
        let walk = &mut self.walks[0];
        std::mem::swap(walk, &mut held.walk);
        walk.fill(&burst, held.valid);
        let written = walk.write_results(&burst, host, &held.results);
        let next = match held.wanted {
            _ if !written => walk.fail_or_go_on(&burst, host, DropReason::ActionFailed),
            None => walk.run(&burst, host),
            Some(wanted) => wanted.next(),
        };
        self.run_to_end(&burst, host, 0, next);
        self.waiting_for.origin = None;
        if self.waiting_for.spare.len() < SPARE {
            held.origin.keep = None;
            self.waiting_for.spare.push(held);
        }
    }

    /// Notes the list that a walk begins with, which belongs to no rule.
    pub(crate) fn begin_with(&mut self, guard: &Guard<'_>, ops: &Arc<OpList>) {
        self.waiting_for.orders += 1;
        self.waiting_for.origin = Some(Origin {
            order: self.waiting_for.orders,
            since: guard.epoch(),
            deadline_ms: NEVER,
            before: self.waiting_for.tickets,
            own_from: NEVER,
            taught: SmallVec::new(),
            keep: Some(Arc::clone(ops)),
        });
    }

    /// Ends the walk with a list of its own, or notes that it is held.
    pub(crate) fn end_with(&mut self) {
        self.waiting_for.origin = None;
    }

    /// Does what [`Engine::first_lookup`] does, packet after packet, each to its end, so that rules
    /// learned from earlier packets apply to later ones. All look up in one epoch, so the first
    /// lookup may be made for all at once.
    #[inline(never)]
    pub(crate) fn first_lookup_in_order<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        frames: impl ExactSizeIterator<Item = F>,
        mirrored: u32,
        host: &mut H,
    ) {
        let mut found = [None; crate::burst::LOOKUP_MAX];
        self.look_up_first(burst, &mut found[..frames.len()]);
        for (index, (frame, rule)) in frames.zip(found).enumerate() {
            self.walks[index].start(frame, mirrored);
            host.looked_up(0, Some(&self.walks[index].key), rule);
            let first = Wanted {
                table: 0,
                from: None,
            };
            let next = self.obey(burst, host, index, first, rule);
            self.run_to_end(burst, host, index, next);
        }
    }

    /// Runs a walk until it is done, or held.
    pub(crate) fn run_to_end<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        index: usize,
        mut next: Next,
    ) {
        loop {
            let wanted = match next {
                Next::Done => return,
                Next::Learn => {
                    next = self.learn(burst, host, index);
                    continue;
                }
                Next::Lookup(table) => Wanted { table, from: None },
                Next::LookupFrom(port, table) => Wanted {
                    table,
                    from: Some(port),
                },
            };
            let walk = &mut self.walks[index];
            walk.hide_fragment_ports(burst);
            let own = walk.key.u32(at::IN_PORT);
            walk.key.set_u32(at::IN_PORT, wanted.from.unwrap_or(own));
            let found = {
                let _stage = stages::enter(Stage::Lookup, 1);
                burst.bridge.lookup(wanted.table, &walk.key, burst.guard)
            };
            host.looked_up(wanted.table, Some(&walk.key), found);
            walk.key.set_u32(at::IN_PORT, own);
            next = self.obey(burst, host, index, wanted, found);
        }
    }

    /// Continues after a lookup with the rule found, or none, unless a pending rule would take
    /// precedence.
    fn obey<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        index: usize,
        wanted: Wanted,
        found: Option<&Rule>,
    ) -> Next {
        if !self.waiting_for.asked.is_empty() {
            let walk = &mut self.walks[index];
            let own = walk.key.u32(at::IN_PORT);
            walk.key.set_u32(at::IN_PORT, wanted.from.unwrap_or(own));
            let bridge = host.place().bridge;
            let ticket = self.waiting_for.asked.in_the_way(
                burst.before,
                bridge,
                wanted.table,
                &walk.key,
                found,
            );
            walk.key.set_u32(at::IN_PORT, own);
            if let Some(number) = ticket {
                let ticket = Ticket {
                    number,
                    own: false,
                    result: None,
                };
                let tickets = SmallVec::from_slice(&[ticket]);
                let before = self.waiting_for.tickets;
                let results = Results::new();
                return self.hold(burst, host, index, Some(wanted), tickets, results, before);
            }
        }
        let walk = &mut self.walks[index];
        match found {
            Some(rule) => {
                walk.count(burst, rule);
                Self::hit(walk, burst, host, wanted.table, rule)
            }
            None => Self::missed(walk, burst, host, wanted.table),
        }
    }

    /// Executes the `learn` step that the walk has come to, and `learn` steps right behind it.
    fn learn<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H, index: usize) -> Next {
        let before = self.waiting_for.tickets;
        let mut tickets = Tickets::new();
        // Once there is a request, results are written in the order of the steps when it has been
        // answered: several steps may write the same bit.
        let mut results = Results::new();
        // Words to be written then.
        let mut unknown = WordSet::EMPTY;
        loop {
            let walk = &mut self.walks[index];
            let steps = walk.at.steps.get();
            let Some(Op::Learn(learn)) = steps.get(walk.at.next - 1) else {
                break;
            };
            // A packet-out is a controller's own doing, and is carried out as it says.
            let may_wait = !walk.packet_out;
            match Self::ask(
                &mut self.waiting_for,
                burst,
                host,
                learn,
                &walk.key,
                may_wait,
            ) {
                Ok(done) if tickets.is_empty() => {
                    if let Some(to) = learn.result
                        && !walk.write_bits(burst, host, to, u128::from(done))
                    {
                        return walk.fail_or_go_on(burst, host, DropReason::ActionFailed);
                    }
                }
                Ok(done) => results.extend(learn.result.map(|to| (to, done))),
                Err(number) => {
                    tickets.push(Ticket {
                        number,
                        own: number > before,
                        result: learn.result.map(|_| results.len()),
                    });
                    results.extend(learn.result.map(|to| (to, false)));
                }
            }
            if !tickets.is_empty()
                && let Some(to) = learn.result
            {
                unknown = unknown.union(to.field.def().words());
            }
            match steps.get(walk.at.next) {
                Some(Op::Learn(next)) if next.reads().intersect(unknown).is_empty() => {
                    walk.at.next += 1;
                }
                _ => break,
            }
        }
        let late = self.waiting_for.origin.as_ref();
        let late = late.is_some_and(|origin| burst.now_ms >= origin.deadline_ms);
        if tickets.is_empty() || late {
            let walk = &mut self.walks[index];
            return match walk.write_results(burst, host, &results) {
                true => walk.run(burst, host),
                false => walk.fail_or_go_on(burst, host, DropReason::ActionFailed),
            };
        }
        self.hold(burst, host, index, None, tickets, results, before)
    }

    /// Requests a rule unless it is there. If `may_wait`, later where the rule has been changed
    /// often, and not at all where packets of the port have asked for too many. Returns whether it
    /// is there or will be (Ok), or the ticket of the request (Err).
    fn ask<H: Host<F>>(
        waiting: &mut Waiting<F>,
        burst: &Burst<'_, '_>,
        host: &mut H,
        learn: &Arc<Learn>,
        key: &FlowKey,
        may_wait: bool,
    ) -> Result<bool, u64> {
        if host.has_taught() {
            return Ok(true);
        }
        let values = learn.values(key);
        let (fingerprint, place) = (learn.fingerprint(&values), host.place());
        let bridge = place.bridge;
        let matching = learn.matching(&values);
        // The last request for this rule counts, not the rule in force until then.
        let asked = waiting.asked.like(bridge, learn, &matching);
        let asked = asked.map(|asked| (asked.fingerprint == fingerprint, asked.ticket));
        // Control knows what such a rule does now; it is no change that others wait for.
        let is_taught_again = asked.is_none() && waiting.has_taught_this(learn, &matching);
        let is_there = match asked {
            Some((same, _)) => Some(same),
            None if is_taught_again => None,
            None => (burst.bridge.find(learn, &values, burst.guard))
                .map(|rule| rule.is_taught_again(fingerprint, burst.now_ms)),
        };
        let changes = is_there == Some(false) && may_wait;
        let hash = match changes || waiting.flaps.is_deferring() {
            true => waiting.asked.hash_of(&matching),
            false => 0,
        };
        let rule = Named {
            bridge,
            learn,
            matching: &matching,
            hash,
        };
        if !changes && waiting.flaps.is_deferring() {
            // What is asked for now, or is there, is newer than what is to be asked for later.
            waiting.flaps.keep(&rule);
        }
        match (is_there, asked) {
            // It may be refused for its limit, and a later request make room.
            (Some(true), Some((_, ticket)))
                if waiting.asked.may_make_room(bridge, learn, ticket) => {}
            (Some(true), Some((_, ticket))) => return Err(ticket),
            (Some(true), None) => return Ok(true),
            _ => {}
        }
        if waiting.is_refused(bridge, learn, &values, burst.guard.epoch()) {
            return Ok(false);
        }
        let now_ms = burst.now_ms;
        if changes && !waiting.flaps.may_change(&rule, &values, now_ms) {
            return Ok(true);
        }
        let is_limited = may_wait && !(changes && waiting.flaps.counts(&rule));
        let wanted = Deferred {
            bridge,
            learn: Arc::clone(learn),
            values,
            matching,
            hash,
            seen_ms: now_ms,
            is_change: is_there == Some(false) || is_taught_again,
        };
        if is_limited && !waiting.rates.may_ask(place.received, now_ms) {
            host.noted(Event::AskedTooOften);
            return Ok(false);
        }
        if let Some(again) = waiting.request(wanted, false, now_ms, |it| host.learn(it)) {
            if changes {
                waiting.flaps.defer_again(again);
            }
            host.noted(Event::AskedTooMuch);
            return Ok(false);
        }
        if is_limited {
            waiting.rates.asked(place.received, now_ms);
        }
        burst.bridge.rule_requested(learn.table);
        Err(waiting.tickets)
    }

    /// Moves a walk out of the burst, or drops it where there is no room.
    #[allow(clippy::too_many_arguments)] // the parts of a held walk
    fn hold<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        index: usize,
        wanted: Option<Wanted>,
        tickets: Tickets,
        results: Results,
        before: u64,
    ) -> Next {
        let walk = &mut self.walks[index];
        let bytes = walk.bytes();
        let (count, all) = (
            self.waiting_for.held.len() + self.waiting_for.ready.len(),
            self.waiting_for.bytes,
        );
        if count >= HELD_MAX || all + bytes > HELD_BYTES {
            return walk.fail_or_go_on(burst, host, DropReason::HeldTooMany);
        }
        let waiting = &mut self.waiting_for;
        let mut origin = waiting.origin.take().unwrap_or_else(|| {
            waiting.orders += 1;
            Origin {
                order: waiting.orders,
                since: burst.guard.epoch(),
                deadline_ms: NEVER,
                before,
                own_from: NEVER,
                taught: SmallVec::new(),
                keep: None,
            }
        });
        for ticket in tickets.iter().filter(|ticket| ticket.own) {
            let asked = waiting.asked.get(ticket.number);
            origin
                .taught
                .extend(asked.map(|asked| waiting.lesson(&asked.learn, &asked.matching)));
        }
        origin.deadline_ms = origin.deadline_ms.min(burst.now_ms + PATIENCE_MS);
        burst.guard.hold(burst.guard.held().min(origin.since));
        waiting.pinned = true;
        waiting.bytes += bytes;
        let mut held = match waiting.spare.pop() {
            Some(spare) => spare,
            None => Box::new(Held::of(Walk::new(), origin.clone())),
        };
        std::mem::swap(walk, &mut held.walk);
        held.wanted = wanted;
        held.tickets = tickets;
        held.results = results;
        held.origin = origin;
        held.epoch = burst.guard.epoch();
        held.valid = burst.valid;
        held.place = host.place();
        held.longer = burst.longer;
        held.bytes = bytes;
        host.noted(Event::Held);
        waiting.due_ms = held.origin.deadline_ms.min(waiting.due_ms);
        waiting.put_back(held);
        Next::Done
    }
}

impl Wanted {
    fn next(self) -> Next {
        match self.from {
            None => Next::Lookup(self.table),
            Some(port) => Next::LookupFrom(port, self.table),
        }
    }
}

impl<F: Frame> Walk<F> {
    /// Returns the bytes that it counts for in [`HELD_BYTES`].
    fn bytes(&self) -> usize {
        let saved = |position: &crate::exec::interpreter::Position<F>| {
            let saved = position.saved.as_ref();
            saved.map_or(0, |saved| {
                saved.frame.as_ref().map_or(0, Frame::len) + size_of::<FlowKey>()
            })
        };
        let copies: usize = self.stack.iter().chain([&self.at]).map(saved).sum();
        size_of::<Held<F>>() + self.frame.as_ref().map_or(0, Frame::len) + copies
    }

    /// Writes what has come of `learn` steps. Returns false where a bit cannot be written.
    fn write_results<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        results: &[(Bits, bool)],
    ) -> bool {
        let mut written = true;
        for (to, learned) in results {
            written &= self.write_bits(burst, host, *to, u128::from(*learned));
        }
        written
    }

    /// Fills words of the key that rules have come to need since `filled` were.
    fn fill(&mut self, burst: &Burst<'_, '_>, filled: WordSet) {
        let missing = burst.valid.minus(filled).minus(WordSet::MINI_KEY);
        if missing.is_empty() {
            return;
        }
        let in_port = self.key.u32(at::IN_PORT);
        let fill = |frame: &mut F, key: &mut FlowKey| {
            let mut fresh = FlowKey::ZERO;
            let _: Layers = parse::parse_frame(frame, in_port, missing, &mut fresh);
            missing
                .iter()
                .for_each(|word| key.words[word] = fresh.words[word]);
        };
        if let Some(frame) = &mut self.frame {
            fill(frame, &mut self.key);
        }
        if missing.contains(at::ACTSET_OUTPUT / 8) {
            self.key.set_u32(at::ACTSET_OUTPUT, self.set.output());
        }
        for position in self.stack.iter_mut().chain([&mut self.at]) {
            if let Some(saved) = &mut position.saved
                && let Some(frame) = &mut saved.frame
            {
                fill(frame, &mut saved.key);
                if missing.contains(at::ACTSET_OUTPUT / 8) {
                    saved.key.set_u32(at::ACTSET_OUTPUT, saved.set.output());
                }
            }
        }
    }

    /// Handles a packet whose rule shortens its timeouts when a connection ends: tells the host if
    /// it has FIN or RST set.
    #[cold]
    pub(crate) fn connection_ends<H: Host<F>>(&self, host: &mut H, table: u8, rule: &Rule) {
        let Some((idle, hard)) = crate::actions::fin_timeouts(&rule.spec.ops.ops) else {
            return;
        };
        let ends = self.key.u16(at::TCP_FLAGS) & ENDS != 0;
        if !ends || idle == 0 && hard == 0 || rule.fin_told().swap(true, Ordering::Relaxed) {
            return;
        }
        let told = host.connection_ended(Ended {
            table,
            priority: rule.spec.priority,
            matching: rule.spec.matching.clone(),
            idle,
            hard,
        });
        if !told {
            rule.fin_told().store(false, Ordering::Relaxed);
            host.noted(Event::AskedTooMuch);
        }
    }
}
