//! Steering between workers, control's side: measures, decides by the policy of the crate `steer`,
//! and tells workers which flows to give away ([`crate::steering`]).

use super::Datapath;
use super::cards::{Card, SteeringCard};
use super::workers::{Handle, send};
use crate::clock::{cycles, monotonic_ns};
use crate::error::Error;
use crate::port::LOCAL;
use crate::steering::{BUCKETS, HERE, ring};
use crate::worker::Command;
use packet::Frame;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use steer::balance::{Balancer, Flow};
use steer::cores::{CoreId, CoreTable, Load, Sample};
use steer::policy::Basis;
use steer::settings::Settings;
use steer::worth::{Cost, HAND_OVER, gain, is_worth};

/// How long workers have to take their flows back; frames that are elsewhere after that are lost
/// with the ring.
const RECALL: Duration = Duration::from_secs(2);
/// How often workers are told again meanwhile, because a move that takes too long is given up.
const RECALL_AGAIN: Duration = Duration::from_millis(20);
/// Samples over which a worker's load is averaged. A worker that has lost its processor to another
/// thread for some milliseconds looks fully busy in that time, which does not make it highly
/// loaded.
const AVERAGED: usize = 6;
/// All flows come back where steering gains less than this factor: below the gain needed for them
/// to leave ([`steer::worth::LEAST_GAIN`]), since flows that stayed may be cheaper than those that
/// left.
const NO_GAIN: f64 = 1.05;
/// Samples of a cost, of which the least counts.
const COSTS: usize = 25;
/// A worker whose flows find rings full takes back one in this many, and at least this many at a
/// time.
const RETREAT: usize = 8;
/// How long a worker gives nothing away after it has taken some back, in ns: the first time, and at
/// most. It doubles each time, so that a load that others cannot take does not move to and fro.
const CONTENT_NS: (u64, u64) = (1_000_000_000, 64_000_000_000);
/// Frames after which a cost counts as measured.
const FRAMES_FOR_COST: u64 = 1_000;

/// Which worker processes a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SteeringMode {
    /// Adaptive where there are more workers than receive queues (not counting those of bridges'
    /// local ports) or a card spreads flows over several workers, else off.
    #[default]
    Auto,
    /// The worker that receives it.
    Off,
    /// A worker chosen by a hash.
    Rss,
    /// The worker that receives it, or a less loaded one while that one is highly loaded.
    Adaptive,
}

impl SteeringMode {
    /// All modes, with their names.
    pub const ALL: [(&'static str, SteeringMode); 4] = [
        ("auto", SteeringMode::Auto),
        ("off", SteeringMode::Off),
        ("rss", SteeringMode::Rss),
        ("adaptive", SteeringMode::Adaptive),
    ];

    /// Returns the mode's name.
    pub fn name(self) -> &'static str {
        let found = SteeringMode::ALL
            .into_iter()
            .find(|(_, mode)| *mode == self);
        found.map_or("", |(name, _)| name)
    }
}

/// The state of steering, and its counts.
#[derive(Clone, PartialEq, Debug)]
pub struct SteeringInfo {
    /// The configured mode.
    pub mode: SteeringMode,
    /// The mode in effect: never [`SteeringMode::Auto`].
    pub effective: SteeringMode,
    /// Each worker.
    pub workers: Vec<SteeringWorker>,
    /// Each card with an indirection table.
    pub cards: Vec<SteeringCard>,
}

/// Why a worker hands no more flows to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// Steering is off, or there is no other worker.
    Off,
    /// It is not highly loaded.
    NotLoaded,
    /// It is not known yet what its frames cost.
    Unmeasured,
    /// Handing over costs too much beside what there is to do for a frame ([`steer::worth`]).
    NotWorth,
    /// Others could not keep up with what it gave them, so it waits before it gives more.
    Pausing,
    /// All others are highly loaded, too.
    OthersLoaded,
}

impl Keeps {
    /// All of them.
    pub const ALL: [Keeps; 6] = [
        Keeps::Off,
        Keeps::NotLoaded,
        Keeps::Unmeasured,
        Keeps::NotWorth,
        Keeps::Pausing,
        Keeps::OthersLoaded,
    ];

    /// Returns a word for metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Keeps::Off => "off",
            Keeps::NotLoaded => "not_loaded",
            Keeps::Unmeasured => "unmeasured",
            Keeps::NotWorth => "not_worth_it",
            Keeps::Pausing => "pausing",
            Keeps::OthersLoaded => "others_loaded",
        }
    }
}

/// One worker's state in steering; frames and moves count since it started.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SteeringWorker {
    /// Its thread's name.
    pub name: String,
    /// Fraction of its time spent on frames in the last sample.
    pub load: f64,
    /// Number of buckets that it receives and others process.
    pub away: usize,
    /// Cycles to receive a frame, and to process one of its own.
    pub cost: (f64, f64),
    /// Cycles to process a frame of another worker.
    pub take_cost: f64,
    /// Frames with priority, which it keeps.
    pub urgent: u64,
    /// Whether it is reserved for these, and hands all other flows over.
    pub is_reserved: bool,
    /// Frames given to others.
    pub handed: u64,
    /// Frames taken from others.
    pub taken: u64,
    /// Frames dropped because the other's ring was full.
    pub refused: u64,
    /// Frames that now wait for a move to end.
    pub parked: u64,
    /// Moves of buckets that succeeded.
    pub moved: u64,
    /// Moves given up for lack of room to park frames.
    pub gave_up_full: u64,
    /// Moves given up because the old worker did not finish in time.
    pub gave_up_late: u64,
    /// Why it hands no more flows over; None while it may, and with [`SteeringMode::Rss`].
    pub keeps: Option<Keeps>,
}

/// Ratio of two counters' growth, known once enough has been counted: the least of the last
/// samples, since interruptions of a worker only increase it.
#[derive(Clone, Default)]
struct PerFrame {
    frames: u64,
    cycles: u64,
    recent: VecDeque<f64>,
}

impl PerFrame {
    fn note(&mut self, frames: u64, cycles: u64) {
        let (more, spent) = (frames - self.frames, cycles - self.cycles);
        if more >= FRAMES_FOR_COST {
            if self.recent.len() >= COSTS {
                self.recent.pop_front();
            }
            self.recent.push_back(spent as f64 / more as f64);
            (self.frames, self.cycles) = (frames, cycles);
        }
    }

    fn get(&self) -> f64 {
        let least = self.recent.iter().copied().reduce(f64::min);
        least.unwrap_or_default()
    }
}

/// Samples of a worker.
pub(super) struct Seen {
    number: usize,
    /// Busy cycles and total cycles at the last samples.
    busy: VecDeque<(u64, u64)>,
    pub load: Load,
    receive: PerFrame,
    work: PerFrame,
    take: PerFrame,
    packets: Box<[u64; BUCKETS]>,
    /// Frames in the last sample, by bucket.
    pub recent: Box<[u64; BUCKETS]>,
    /// Time since which a bucket has had no frames, in ns.
    silent_ns: Box<[u64; BUCKETS]>,
    moved_ns: Box<[u64; BUCKETS]>,
    /// Whether its buckets have been spread evenly.
    is_spread: bool,
    /// Frames given and rejected so far, and the number of samples in a row in which one in a
    /// hundred was rejected.
    given: (u64, u64),
    refusals: u32,
    /// Frames with priority so far, and when the last ones came, in ns; 0 for never.
    urgent: u64,
    urgent_ns: u64,
    /// Whether it is reserved for flows with priority, and the number of samples in a row in which
    /// it could have done all of its work by itself.
    is_reserved: bool,
    fits: u32,
    /// Time in ns until which nothing is given away after some came back for that reason, and the
    /// length of the next such pause.
    content_until_ns: u64,
    content_ns: u64,
}

impl Seen {
    /// Creates the record with a first sample.
    fn new(number: usize, now_ns: u64) -> Seen {
        Seen {
            number,
            busy: VecDeque::with_capacity(AVERAGED),
            load: Load::ZERO,
            receive: PerFrame::default(),
            work: PerFrame::default(),
            take: PerFrame::default(),
            packets: Box::new([0; BUCKETS]),
            recent: Box::new([0; BUCKETS]),
            silent_ns: Box::new([now_ns; BUCKETS]),
            moved_ns: Box::new([now_ns; BUCKETS]),
            is_spread: false,
            given: (0, 0),
            refusals: 0,
            urgent: 0,
            urgent_ns: 0,
            is_reserved: false,
            fits: 0,
            content_until_ns: 0,
            content_ns: CONTENT_NS.0,
        }
    }

    fn note_load(&mut self, busy: u64, now: u64) {
        if self.busy.len() >= AVERAGED {
            self.busy.pop_front();
        }
        self.busy.push_back((busy, now));
        if let Some((busy_then, then)) = self.busy.front() {
            let wall = now.wrapping_sub(*then).max(1);
            let spent = busy.saturating_sub(*busy_then).min(wall);
            self.load = Load::of(spent as f64 / wall as f64);
        }
    }

    fn cost(&self) -> Cost {
        Cost {
            receive: self.receive.get(),
            work: self.work.get(),
        }
    }
}

/// What the policy moves.
#[derive(Clone, Copy)]
enum Moved {
    /// A bucket of a worker.
    Bucket(usize, usize),
    /// An entry of a card, and the load that it causes.
    Entry(usize, usize, Load),
}

/// Steering among a set of workers, while there are at least two.
pub(super) struct Group {
    /// By worker, in their order.
    pub seen: Vec<Seen>,
    pub cards: Vec<Card>,
    cores: CoreTable,
    balancer: Balancer,
    sampled: u64,
    effective: SteeringMode,
    /// Whether every received frame has been counted at least once.
    begun: bool,
}

/// Control's state of steering.
pub(super) struct Steering {
    mode: SteeringMode,
    settings: Settings,
    group: Option<Group>,
    /// Rings, by the numbers of their two workers.
    lanes: HashSet<(usize, usize)>,
}

impl Default for Steering {
    fn default() -> Steering {
        // Workers' loads are measured in cycles, and their frames wait in rings made for it.
        let settings = Settings {
            high: Load::percent(90),
            margin: Load::percent(5),
            level: true,
            ..Settings::default()
        };
        Steering {
            mode: SteeringMode::default(),
            settings,
            group: None,
            lanes: HashSet::new(),
        }
    }
}

impl<F: Frame + 'static> Datapath<F> {
    /// Sets which worker processes which flow. Takes effect with the next [`Datapath::steer`].
    pub fn set_steering(&mut self, mode: SteeringMode) {
        self.steering.mode = mode;
    }

    /// Returns how often to call [`Datapath::steer`] while it returns true.
    pub fn steering_period(&self) -> Duration {
        Duration::from_nanos(self.steering.settings.sample_period_ns)
    }

    fn effective_steering(&self) -> SteeringMode {
        let workers = self.workers.len();
        match self.steering.mode {
            _ if workers < 2 => SteeringMode::Off,
            SteeringMode::Auto => {
                let ports = self.ports.iter().flatten();
                let others = ports.filter(|port| port.number != LOCAL);
                let queues: usize = others.map(|port| port.histories.len()).sum();
                match queues > 0 && workers > queues || self.has_shared_card() {
                    true => SteeringMode::Adaptive,
                    false => SteeringMode::Off,
                }
            }
            mode => mode,
        }
    }

    /// Samples workers' loads, and moves flows. Returns whether there is anything to steer, so that
    /// it is to be called again after [`Datapath::steering_period`]; otherwise occasional calls
    /// suffice.
    ///
    /// # Errors
    ///
    /// A worker does not take commands.
    pub fn steer(&mut self) -> Result<bool, Error> {
        let effective = self.effective_steering();
        let numbers: Vec<usize> = self.workers.iter().map(|worker| worker.number()).collect();
        let same = self.steering.group.as_ref().is_some_and(|group| {
            group.effective == effective
                && group
                    .seen
                    .iter()
                    .map(|seen| seen.number)
                    .eq(numbers.iter().copied())
        });
        if !same {
            self.regroup(effective, &numbers)?;
        }
        let Some(mut group) = self.steering.group.take() else {
            return Ok(false);
        };
        let outcome = self.sample(&mut group);
        self.steering.group = Some(group);
        outcome.map(|()| true)
    }

    /// Begins to steer in another mode, or among other workers.
    fn regroup(&mut self, effective: SteeringMode, numbers: &[usize]) -> Result<(), Error> {
        if self.steering.group.take().is_some() {
            self.recall();
        }
        for worker in &self.workers {
            worker
                .mailbox
                .buckets
                .watch(effective == SteeringMode::Adaptive);
        }
        self.watch_cards(effective == SteeringMode::Adaptive);
        if effective == SteeringMode::Off {
            return Ok(());
        }
        let now_ns = monotonic_ns();
        let Ok(cores) = CoreTable::new(numbers.len() as u16, now_ns) else {
            return Ok(());
        };
        let balancer = Balancer::new(cores.count(), &self.steering.settings);
        let seen = numbers.iter().map(|number| Seen::new(*number, now_ns));
        self.steering.group = Some(Group {
            seen: seen.collect(),
            cards: Vec::new(),
            cores,
            balancer,
            sampled: cycles(),
            effective,
            begun: false,
        });
        Ok(())
    }

    /// Spreads the buckets of workers with queues evenly, once.
    fn spread_evenly(&mut self, group: &mut Group) -> Result<(), Error> {
        let count = group.seen.len();
        for (from, seen) in group.seen.iter_mut().enumerate() {
            if seen.is_spread || !self.workers[from].has_queues() {
                continue;
            }
            for bucket in 0..BUCKETS {
                self.want(from, bucket, bucket % count)?;
            }
            seen.is_spread = true;
            self.tell(from);
        }
        Ok(())
    }

    /// Makes another worker, or the receiving one itself, process a worker's bucket; both are
    /// indices in [`Datapath::workers`]. Once it is there, steering may move it again.
    ///
    /// # Errors
    ///
    /// There is no such worker or bucket, or no room for another ring, or a worker does not take
    /// commands.
    pub fn move_bucket(&mut self, from: usize, bucket: usize, to: usize) -> Result<(), Error> {
        let count = self.workers.len();
        if let Some(missing) = [from, to].into_iter().find(|at| *at >= count) {
            return Err(Error::NoSuchWorker(missing));
        }
        if bucket >= BUCKETS {
            return Err(Error::NoSuchBucket(bucket));
        }
        if let Some(group) = &mut self.steering.group
            && let Some(seen) = group.seen.get_mut(from)
        {
            let now_ns = monotonic_ns();
            (seen.moved_ns[bucket], seen.silent_ns[bucket]) = (now_ns, now_ns);
        }
        self.want(from, bucket, to)?;
        self.tell(from);
        Ok(())
    }

    /// Sets where a bucket is to be; [`Datapath::tell`] makes the worker look.
    fn want(&mut self, from: usize, bucket: usize, to: usize) -> Result<(), Error> {
        let (giver, taker) = (&self.workers[from], &self.workers[to]);
        if from == to {
            giver.mailbox.buckets.want(bucket, HERE);
            return Ok(());
        }
        let ends = (giver.number(), taker.number());
        if !self.steering.lanes.contains(&ends) {
            let mailbox = Arc::clone(&taker.mailbox);
            let (lane, inbox) = ring(ends.1, Box::new(move || mailbox.nudge()));
            send(taker, Command::AddInbox(Box::new(inbox)))?;
            send(giver, Command::AddLane(Box::new(lane)))?;
            self.steering.lanes.insert(ends);
        }
        giver.mailbox.buckets.want(bucket, ends.1 as u8);
        Ok(())
    }

    fn tell(&self, worker: usize) {
        let mailbox = &self.workers[worker].mailbox;
        mailbox.buckets.changed();
        mailbox.nudge();
    }

    /// Brings all flows back to the workers that receive them, and removes the rings. Called before
    /// workers or their queues change, so that nothing is overtaken or lost.
    pub(super) fn recall(&mut self) {
        self.steering.group = None;
        if self.steering.lanes.is_empty() {
            return;
        }
        for worker in &self.workers {
            worker.mailbox.buckets.hurry(true);
            for bucket in 0..BUCKETS {
                worker.mailbox.buckets.want(bucket, HERE);
            }
        }
        let deadline = Instant::now() + RECALL;
        let are_here = || {
            let mut workers = self.workers.iter();
            workers.all(|worker| worker.mailbox.buckets.all_here())
        };
        let mut told = None;
        while !are_here() && Instant::now() < deadline {
            if told.is_none_or(|told: Instant| told.elapsed() >= RECALL_AGAIN) {
                (0..self.workers.len()).for_each(|place| self.tell(place));
                told = Some(Instant::now());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        for worker in &self.workers {
            if let Err(error) = send(worker, Command::Part) {
                tracing::warn!(target: "dpif_netdev", "{error}");
            }
            worker.mailbox.buckets.hurry(false);
        }
        self.steering.lanes.clear();
    }

    fn sample(&mut self, group: &mut Group) -> Result<(), Error> {
        let (now, now_ns) = (cycles(), monotonic_ns());
        let wall = now
            .wrapping_sub(std::mem::replace(&mut group.sampled, now))
            .max(1);
        for (worker, seen) in self.workers.iter().zip(&mut group.seen) {
            let counters = &worker.mailbox.counters;
            seen.note_load(counters.busy_cycles.get(), now);
            let buckets = &worker.mailbox.buckets;
            let counted = &buckets.counters;
            seen.receive
                .note(counted.received.get(), counted.receive_cycles.get());
            seen.work
                .note(counted.kept.get(), counted.work_cycles.get());
            seen.take
                .note(counted.taken.get(), counted.take_cycles.get());
            let given = (counted.handed.get(), counted.refused.get());
            let before = std::mem::replace(&mut seen.given, given);
            let (more, refused) = (given.0 - before.0, given.1 - before.1);
            let is_full = refused * 100 > more;
            seen.refusals = if is_full { seen.refusals + 1 } else { 0 };
            let urgent = counted.urgent.get();
            if urgent != std::mem::replace(&mut seen.urgent, urgent) {
                seen.urgent_ns = now_ns;
            }
            for bucket in 0..BUCKETS {
                let packets = buckets.packets(bucket);
                let before = std::mem::replace(&mut seen.packets[bucket], packets);
                seen.recent[bucket] = packets - before;
                if packets != before {
                    seen.silent_ns[bucket] = now_ns;
                }
            }
        }
        if group.effective == SteeringMode::Rss {
            return self.spread_evenly(group);
        }
        self.sample_cards(&mut group.cards, now_ns);
        if !std::mem::replace(&mut group.begun, true) {
            return Ok(());
        }
        self.forget_silent(group, now_ns)?;
        self.retreat(group, now_ns);
        let sample = |seen: &Seen| Sample {
            load: seen.load,
            yielding: Load::ZERO,
        };
        let samples: Vec<Sample> = group.seen.iter().map(sample).collect();
        let settings = self.steering.settings;
        if group.cores.sample(&samples, now_ns).is_err() {
            return Ok(());
        }
        group.balancer.observe(&group.cores);
        self.reserve(group, wall, now_ns);
        let hot = group.balancer.sources(&group.cores, &settings);
        if !hot.contains(&true) {
            return Ok(());
        }
        let flows = self.flows(group, &hot, wall, now_ns);
        let moves = group
            .balancer
            .decide(&group.cores, &flows, &settings, now_ns);
        let mut told = HashSet::new();
        for to_do in moves {
            let to = to_do.to.index();
            match to_do.key {
                Moved::Bucket(from, bucket) => {
                    group.seen[from].moved_ns[bucket] = now_ns;
                    self.want(from, bucket, to)?;
                    told.insert(from);
                }
                Moved::Entry(card, entry, load) => {
                    group.want_entry((card, entry), to, load);
                }
            }
        }
        group.move_entries(now_ns);
        self.clear_reserved(group, wall, now_ns, &mut told)?;
        told.into_iter().for_each(|from| self.tell(from));
        Ok(())
    }

    /// Reserves workers that receive flows with priority for these while they are overloaded, and
    /// ends that once a worker could do everything again, or no such frame has come for long.
    ///
    /// Frames with priority never leave the worker that receives them (`Giver::share`), because
    /// what is lost before a worker looks is lost regardless of priority: the receiving worker has
    /// to keep up with its queue, and whoever stays with it is served first. So it is the other
    /// flows that leave, also if no other worker has room for all of them. What does not fit there
    /// is dropped at the ring.
    fn reserve(&mut self, group: &mut Group, wall: u64, now_ns: u64) {
        let settings = self.steering.settings;
        let patience = settings.hold_ns / settings.sample_period_ns;
        let hot = group.balancer.sources(&group.cores, &settings);
        let elsewhere = |from: usize| match group.seen[from].is_reserved {
            true => self.load_elsewhere(group, from, wall),
            false => Load::ZERO,
        };
        let elsewhere: Vec<Load> = (0..group.seen.len()).map(elsewhere).collect();
        for (from, is_hot) in hot.into_iter().enumerate() {
            let core = CoreId(from as u16);
            let has_others =
                (0..group.seen.len()).any(|other| other != from && !group.seen[other].is_reserved);
            let seen = &mut group.seen[from];
            let is_urgent = seen.urgent_ns != 0
                && now_ns.saturating_sub(seen.urgent_ns) < settings.choice_age_ns;
            if !seen.is_reserved {
                // Otherwise handing over would take longer than the work itself.
                let relieves = seen.cost().work > HAND_OVER;
                if is_urgent && is_hot && has_others && relieves {
                    (seen.is_reserved, seen.fits) = (true, 0);
                    group.cores.hold(core);
                    let name = &self.workers[from].mailbox.name;
                    tracing::info!(target: "dpif_netdev", "{name}: overloaded; it keeps flows with priority, and others leave it");
                }
                continue;
            }
            let buckets = &self.workers[from].mailbox.buckets;
            let fits = seen.load.plus(elsewhere[from]) < settings.high.minus(settings.margin);
            seen.fits = if fits { seen.fits + 1 } else { 0 };
            let ends = u64::from(seen.fits) > patience;
            if is_urgent && !ends {
                continue;
            }
            seen.is_reserved = false;
            group.cores.release(core);
            let name = &self.workers[from].mailbox.name;
            tracing::info!(target: "dpif_netdev", "{name}: no longer kept for flows with priority");
            if ends {
                for bucket in 0..BUCKETS {
                    seen.moved_ns[bucket] = now_ns;
                    buckets.want(bucket, HERE);
                }
                self.tell(from);
            }
        }
    }

    /// Returns the load that flows which a worker has given to others would be for itself.
    fn load_elsewhere(&self, group: &Group, from: usize, wall: u64) -> Load {
        let (seen, buckets) = (&group.seen[from], &self.workers[from].mailbox.buckets);
        let cost = |number: usize| {
            let there = group.seen.iter().find(|seen| seen.number == number);
            // What it has kept may be cheaper.
            there
                .map_or(0.0, |there| there.take.get())
                .max(seen.work.get())
        };
        let away = (0..BUCKETS).filter(|bucket| buckets.at(*bucket) != HERE);
        let cycles: f64 = away
            .map(|bucket| seen.recent[bucket] as f64 * cost(usize::from(buckets.at(bucket))))
            .sum();
        Load::of(cycles / wall as f64)
    }

    /// Has the flows leave reserved workers for which the policy has found no place: each goes to
    /// the worker with the least load among those that are not reserved.
    fn clear_reserved(
        &mut self,
        group: &mut Group,
        wall: u64,
        now_ns: u64,
        told: &mut HashSet<usize>,
    ) -> Result<(), Error> {
        let mut loads: Vec<f64> = group.seen.iter().map(|seen| seen.load.part()).collect();
        for from in 0..group.seen.len() {
            if !group.seen[from].is_reserved {
                continue;
            }
            let buckets = Arc::clone(&self.workers[from].mailbox.buckets);
            for bucket in 0..BUCKETS {
                let recent = group.seen[from].recent[bucket];
                if recent == 0 || buckets.wanted(bucket) != HERE {
                    continue;
                }
                let free = (0..loads.len()).filter(|place| !group.seen[*place].is_reserved);
                let Some(to) = free.min_by(|one, other| loads[*one].total_cmp(&loads[*other]))
                else {
                    break;
                };
                let seen = &mut group.seen[from];
                loads[to] += recent as f64 * seen.work.get() / wall as f64;
                seen.moved_ns[bucket] = now_ns;
                self.want(from, bucket, to)?;
                told.insert(from);
            }
        }
        Ok(())
    }

    /// Returns buckets that have had no frames for long to the worker that receives them.
    fn forget_silent(&mut self, group: &mut Group, now_ns: u64) -> Result<(), Error> {
        let age = self.steering.settings.choice_age_ns;
        for from in 0..group.seen.len() {
            let buckets = Arc::clone(&self.workers[from].mailbox.buckets);
            let mut any = false;
            for bucket in 0..BUCKETS {
                let (at, wanted) = (buckets.at(bucket), buckets.wanted(bucket));
                let settled_ns = now_ns.saturating_sub(group.seen[from].moved_ns[bucket]);
                if at != wanted && settled_ns > 2 * crate::steering::LIMITS.wait_ns {
                    // Given up: it stays where it is.
                    buckets.want(bucket, at);
                }
                let silent = now_ns.saturating_sub(group.seen[from].silent_ns[bucket]) >= age;
                if silent && at != HERE && wanted != HERE {
                    buckets.want(bucket, HERE);
                    any = true;
                }
            }
            if any {
                self.tell(from);
            }
        }
        Ok(())
    }

    /// Takes some buckets back where rings have been full for the hold time and others thus cannot
    /// keep up, so that frames that cannot be processed are lost before any work on them; takes all
    /// back where steering does not pay.
    fn retreat(&mut self, group: &mut Group, now_ns: u64) {
        let settings = self.steering.settings;
        let patience = settings.hold_ns / settings.sample_period_ns;
        let others = group.seen.len() - 1;
        for (from, seen) in group.seen.iter_mut().enumerate() {
            if seen.is_reserved {
                continue;
            }
            let buckets = &self.workers[from].mailbox.buckets;
            let away =
                |bucket: &usize| buckets.at(*bucket) != HERE && buckets.wanted(*bucket) != HERE;
            let away: Vec<usize> = (0..BUCKETS).filter(away).collect();
            let is_known = seen.cost().work > 0.0;
            let gains_nothing = is_known && gain(seen.cost(), others) < NO_GAIN;
            let back = if gains_nothing && !away.is_empty() {
                away.len()
            } else if u64::from(seen.refusals) > patience && !away.is_empty() {
                (away.len() / RETREAT).max(RETREAT)
            } else {
                if now_ns > seen.content_until_ns + CONTENT_NS.1 {
                    seen.content_ns = CONTENT_NS.0;
                }
                continue;
            };
            seen.refusals = 0;
            seen.content_until_ns = now_ns + seen.content_ns;
            seen.content_ns = (2 * seen.content_ns).min(CONTENT_NS.1);
            for &bucket in away.iter().take(back) {
                seen.moved_ns[bucket] = now_ns;
                buckets.want(bucket, HERE);
            }
            self.tell(from);
        }
    }

    /// Returns the buckets and cards' entries of highly loaded workers, with the load that each
    /// causes.
    fn flows(&self, group: &Group, hot: &[bool], wall: u64, now_ns: u64) -> Vec<Flow<Moved>> {
        let place = |number: u8| {
            let number = usize::from(number);
            group.seen.iter().position(|seen| seen.number == number)
        };
        let others = group.seen.len() - 1;
        let by_cards: Vec<bool> = (0..group.seen.len())
            .map(|at| group.is_by_cards(at))
            .collect();
        let mut flows = Vec::new();
        for (from, (seen, worker)) in group.seen.iter().zip(&self.workers).enumerate() {
            let leaves = seen.is_reserved
                || is_worth(seen.cost(), others)
                    && now_ns >= seen.content_until_ns
                    && !by_cards[from];
            for bucket in 0..BUCKETS {
                let number = worker.mailbox.buckets.at(bucket);
                let at = if number == HERE {
                    Some(from)
                } else {
                    place(number)
                };
                let Some(at) = at.filter(|at| hot[*at]) else {
                    continue;
                };
                let is_here = at == from;
                if seen.recent[bucket] == 0 || is_here && !leaves {
                    continue;
                }
                let cost = match is_here {
                    true => seen.work.get(),
                    false => group.seen[at].take.get(),
                };
                let load = seen.recent[bucket] as f64 * cost / wall as f64;
                flows.push(Flow {
                    key: Moved::Bucket(from, bucket),
                    core: CoreId(at as u16),
                    load: Load::of(load),
                    vm: None,
                    priority: false,
                    basis: Basis::LeastLoad,
                    moved_ns: seen.moved_ns[bucket],
                });
            }
        }
        let cards = group.cards.iter().enumerate();
        for (number, card) in cards.filter(|(_, card)| card.is_shared()) {
            for (entry, recent) in card.recent.iter().enumerate() {
                let Some(core) = group.core_of(card, entry).filter(|_| *recent > 0) else {
                    continue;
                };
                let seen = &group.seen[core.index()];
                // Flows with priority stay with the worker that receives them.
                if !hot[core.index()] || seen.is_reserved || !by_cards[core.index()] {
                    continue;
                }
                // Who processes them receives them, too.
                let cost = seen.receive.get() + seen.work.get();
                let load = Load::of(*recent as f64 * cost / wall as f64);
                flows.push(Flow {
                    key: Moved::Entry(number, entry, load),
                    core,
                    load,
                    vm: None,
                    priority: false,
                    basis: Basis::LeastLoad,
                    moved_ns: card.moved_ns[entry],
                });
            }
        }
        flows
    }

    /// Returns why a worker hands no more flows over.
    fn keeps(&self, place: usize, now_ns: u64) -> Option<Keeps> {
        let Some(group) = &self.steering.group else {
            return Some(Keeps::Off);
        };
        let seen = group.seen.get(place)?;
        let high = self.steering.settings.high;
        let mut others = group.seen.iter().enumerate();
        if group.effective == SteeringMode::Rss || seen.is_reserved {
            None
        } else if seen.load < high {
            Some(Keeps::NotLoaded)
        } else if seen.cost().work == 0.0 {
            Some(Keeps::Unmeasured)
        } else if group.is_by_cards(place) {
            None
        } else if !is_worth(seen.cost(), group.seen.len() - 1) {
            Some(Keeps::NotWorth)
        } else if now_ns < seen.content_until_ns {
            Some(Keeps::Pausing)
        } else if others.all(|(other, seen)| other == place || seen.load >= high) {
            Some(Keeps::OthersLoaded)
        } else {
            None
        }
    }

    /// Returns the state of steering.
    pub fn steering(&self) -> SteeringInfo {
        let group = self.steering.group.as_ref();
        let now_ns = monotonic_ns();
        let describe = |(place, worker): (usize, &Handle<F>)| {
            let buckets = &worker.mailbox.buckets;
            let counters = &buckets.counters;
            let seen = group.and_then(|group| group.seen.get(place));
            let cost = |of: fn(&Seen) -> &PerFrame| seen.map_or(0.0, |seen| of(seen).get());
            SteeringWorker {
                name: worker.mailbox.name.clone(),
                load: seen.map_or(0.0, |seen| seen.load.part()),
                away: (0..BUCKETS)
                    .filter(|bucket| buckets.at(*bucket) != HERE)
                    .count(),
                cost: (cost(|seen| &seen.receive), cost(|seen| &seen.work)),
                take_cost: cost(|seen| &seen.take),
                urgent: counters.urgent.get(),
                is_reserved: seen.is_some_and(|seen| seen.is_reserved),
                handed: counters.handed.get(),
                taken: counters.taken.get(),
                refused: counters.refused.get(),
                parked: counters.parked.get(),
                moved: counters.moved.get(),
                gave_up_full: counters.gave_up_full.get(),
                gave_up_late: counters.gave_up_late.get(),
                keeps: self.keeps(place, now_ns),
            }
        };
        SteeringInfo {
            mode: self.steering.mode,
            effective: group.map_or(SteeringMode::Off, |group| group.effective),
            workers: self.workers.iter().enumerate().map(describe).collect(),
            cards: self.describe_cards(),
        }
    }
}
