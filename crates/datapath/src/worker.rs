//! A worker: its loop, what it owns, how it rests, and how it survives its own panics.
//!
//! One turn of the loop: begin an epoch, read the snapshot, execute control's commands and
//! packet-outs, then for each receive queue ([`QUIET`] ones less often) receive a burst, walk it,
//! walk what it sent through patch ports, and send the batches. The epoch begins before frames are
//! received, so a frame that arrives after a barrier's reply meets the barrier's rules.
//!
//! A turn without frames is followed by rest. For [`spin::SPIN`] after the last frame the worker
//! keeps polling. Then, when every queue has a descriptor to wait on, it goes offline and sleeps
//! until one is readable, control wants something, or [`SLEEP_LIMIT`] has passed. Otherwise it
//! yields to other threads (`sched_yield`) until [`YIELD`] after the last frame, and from then on
//! sleeps between polls, 10 us at first, twice as long each time, at most [`NAP_LIMIT`].
//!
//! Waking a worker costs its sender a system call and an interrupt to another processor, which may
//! take longer than [`spin::SPIN`]. If the worker sleeps while its sender is busy waking it, both
//! sleep and wake once per packet. A worker with a processor of its own therefore keeps polling for
//! [`spin::PATIENT_SPIN`] once a frame has come sooner than that, and for half as long after each
//! rest that was longer ([`Spin`]): traffic with short gaps is never slept through, and an idle
//! switch sleeps. Where frames have come continuously, it keeps polling for as long as they have,
//! at most [`spin::STEADY_SPIN`], because their sender may only have been interrupted.
//!
//! While it holds back frames for shaped ports, which then leave every few microseconds, it naps
//! instead of polling, for no longer than these frames tolerate ([`nap`]); queues that have been
//! quiet cut naps short ([`watch`]).
//!
//! A worker with many queues waits for the quiet ones together and does not look at them until they
//! have frames ([`parked`]).
//!
//! A queue whose descriptor is repeatedly readable although it yields nothing is not waited on for
//! a while (up to [`MUTE_LIMIT`]), so a peer that keeps signalling for nothing only adds latency to
//! itself. A queue that makes the worker panic is left alone in the same way.

mod fair;
mod mailbox;
mod nap;
mod parked;
mod probes;
mod sleeper;
mod spin;
mod turn;
mod watch;

pub use mailbox::Moment;
pub(crate) use mailbox::{Command, Mailbox, PacketOut, Returned, Returns, Shared};

use crate::clock::{Clock, cycles, cycles_per_second};
use crate::counters::{Cell, DropReason, QueueCounters, WorkerCounters};
use crate::error::Error;
use crate::fcf::Urgency;
use crate::forward::{Egress, Patches};
use crate::port::PortId;
use crate::steering::{Giver, Handed, Inbox, Looked, Origin};
use crate::tunnel::Sending;
use crate::turns::{Doing, Eye, Parts};
use crate::wake::{readable, wait};
use fair::Shares;
use nap::Nap;
use packet::Frame;
use packet::io::{BURST, RxQueue};
use parked::{MANY, Parked, Parking};
use program::epoch::{Epoch, Reader};
use program::exec::{Engine, Wait};
use rustix::thread::{CpuSet, sched_setaffinity};
use spin::Spin;
use stages::Stage;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
pub(crate) use turn::Turn;
use watch::{Habit, Watch};

/// How long after its last frame a worker that cannot wait on descriptors only yields between
/// polls.
pub(crate) const YIELD: Duration = Duration::from_millis(1);
/// Longest sleep between polls of a worker that cannot wait on descriptors.
pub(crate) const NAP_LIMIT: Duration = Duration::from_micros(100);
/// How long after new rules have been published a worker that cannot wait on descriptors only
/// yields between polls. A processor that naps is slow to wake, and the scheduler often puts a
/// client there that sends one change after each answer.
pub(crate) const CHANGING: Duration = Duration::from_micros(200);
/// Longest sleep of a worker that waits on descriptors.
pub(crate) const SLEEP_LIMIT: Duration = Duration::from_secs(1);
/// Longest time that a queue is not waited on, or left alone.
pub(crate) const MUTE_LIMIT: Duration = Duration::from_millis(100);
/// Number of wakeups without frames that are tolerated.
const PATIENCE: u32 = 8;
/// How long a worker whose frames come by other queues leaves an empty one alone, where looking
/// costs a system call: a look every turn at an idle TAP took a fifth of a busy worker's time and
/// half a microsecond of every frame's at low rates, one every 10 us still a twentieth. So the
/// pause doubles each time that the queue is empty, [`LOOK_DOUBLINGS`] times.
const LOOK_INTERVAL: Duration = Duration::from_micros(10);
/// Most doublings of [`LOOK_INTERVAL`].
const LOOK_DOUBLINGS: u32 = 2;
/// Time between a busy worker's looks at a queue that stays empty.
pub const IDLE_LOOKS: Duration =
    Duration::from_micros((LOOK_INTERVAL.as_micros() as u64) << LOOK_DOUBLINGS);
/// Number of empty looks in a row after which a queue that is cheap to look at counts as quiet.
/// While another queue of the worker fills whole bursts, quiet ones are looked at every
/// [`LOOK_INTERVAL`]: every look takes a gate and a driver's call, which for two idle devices were
/// a fortieth of a busy worker's time. A worker with less to do looks at all of them in every turn.
const QUIET: u32 = 8;
/// Largest age of the time with which rules are marked as used.
const TIME_INTERVAL: Duration = Duration::from_micros(100);
/// How often dormant queues ([`RxQueue::is_dormant`]) are looked at: a guest's device has sixteen
/// queues, of which it mostly uses one, and skipping the others took half of a turn without frames.
const DORMANT_INTERVAL: Duration = Duration::from_millis(1);
/// Longest sleep while packets wait for next hops of tunnels.
const TUNNEL_LOOK: Duration = Duration::from_millis(1);
/// How often queues are asked for their drops.
const DROPS_INTERVAL: Duration = Duration::from_millis(100);

/// A receive queue in a worker's hands.
pub(crate) struct RxPort<F: Frame> {
    pub id: PortId,
    pub index: usize,
    pub queue: Box<dyn RxQueue<F>>,
    pub counters: Arc<QueueCounters>,
    /// Whether the descriptor was readable when the worker woke.
    signalled: bool,
    /// Number of such wakeups in a row without frames.
    in_vain: u32,
    /// Number of times that it made the worker panic.
    failures: u32,
    /// Not waited on until then, in cycles.
    muted_until: u64,
    /// Not polled until then, in cycles.
    left_until: u64,
    /// Was empty, and is costly while the worker is busy or quiet while it is crowded: not polled
    /// until then, in cycles.
    next_look: u64,
    /// Number of empty looks in a row: up to [`LOOK_DOUBLINGS`] for a costly queue, counted only
    /// while the worker was busy; up to [`QUIET`] for others.
    empty_looks: u32,
    /// Whether a look at it is costly, as last reported by the queue ([`DORMANT_INTERVAL`]).
    costly: bool,
    /// Whether its frames come finished (nothing left to do), as reported when it was added.
    finished: bool,
    /// Record of how its frames fare at shaped ports.
    habit: Habit,
    parking: Parking,
    /// Most frames it is asked for at a time.
    most: usize,
}

impl<F: Frame> RxPort<F> {
    pub fn new(
        id: PortId,
        index: usize,
        queue: Box<dyn RxQueue<F>>,
        counters: Arc<QueueCounters>,
    ) -> RxPort<F> {
        RxPort {
            id,
            index,
            costly: queue.is_costly(),
            finished: queue.never_offloads(),
            queue,
            counters,
            signalled: false,
            in_vain: 0,
            failures: 0,
            muted_until: 0,
            left_until: 0,
            next_look: 0,
            empty_looks: 0,
            habit: Habit::default(),
            parking: Parking::default(),
            most: BURST,
        }
    }

    /// Returns whether it must not be waited on now.
    fn is_muted(&self, now: u64) -> bool {
        self.muted_until.max(self.left_until) > now
    }

    /// Returns whether there may be more frames than those received.
    #[inline(always)]
    fn has_backlog(&self, count: usize) -> bool {
        2 * count >= self.most
    }

    /// Asks for this many frames at a time from now on.
    #[cold]
    fn fit(&mut self, most: usize) {
        if most != self.most {
            self.most = most;
            self.queue.limit(most);
        }
    }

    /// Returns whether to skip it in this turn of a worker that is `crowded` or not.
    #[inline(always)]
    fn is_left(&self, now: u64, crowded: bool) -> bool {
        self.left_until > now || self.next_look > now && (self.costly || crowded)
    }

    /// Records that it was empty.
    #[inline(always)]
    fn was_empty(&mut self, rest: &Rest, now: u64) {
        if !self.costly {
            self.empty_looks = (self.empty_looks + 1).min(QUIET);
            if rest.crowded && self.empty_looks == QUIET {
                self.next_look = now + rest.look_interval;
            }
        } else if rest.busy || !rest.costly {
            self.next_look = now + (rest.look_interval << self.empty_looks);
            self.empty_looks = (self.empty_looks + 1).min(LOOK_DOUBLINGS);
        }
    }

    /// Records that a wakeup led to no frames.
    #[cold]
    fn woke_in_vain(&mut self, now: u64) {
        self.signalled = false;
        if self.queue.is_dormant() {
            // It was signalled for a change, not for frames.
            return;
        }
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain >= PATIENCE {
            self.muted_until = now + growing(self.in_vain - PATIENCE);
        }
    }
}

/// Returns the cycles to leave a queue alone after `times` failures: 1 ms, doubled each time, up to
/// [`MUTE_LIMIT`].
fn growing(times: u32) -> u64 {
    to_cycles(Duration::from_millis(1 << times.min(16)).min(MUTE_LIMIT))
}

fn to_cycles(time: Duration) -> u64 {
    (time.as_nanos() * u128::from(cycles_per_second()) / 1_000_000_000) as u64
}

fn to_time(cycles: u64) -> Duration {
    Duration::from_nanos(
        (u128::from(cycles) * 1_000_000_000 / u128::from(cycles_per_second())) as u64,
    )
}

thread_local! {
    /// Whether this thread is a worker's that survives a panic now.
    static CATCHING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns whether a panic on the calling thread would be a worker's, which catches and counts it
/// and continues. For a panic hook that ends the process in every other case.
pub fn catches_panics() -> bool {
    CATCHING.get()
}

/// A worker, on its own thread.
pub(crate) struct Worker<F: Frame> {
    shared: Arc<Shared<F>>,
    mailbox: Arc<Mailbox<F>>,
    reader: Reader,
    rx: Vec<RxPort<F>>,
    /// Indices in `rx` of the queues to look at in every turn.
    awake: Vec<usize>,
    /// Indices of the queues that are not parked: those in `awake`, and dormant ones.
    open: Vec<usize>,
    parked: Parked,
    egress: Egress<F>,
    patches: Patches<F>,
    sending: Sending<F>,
    engine: Engine<F>,
    giver: Giver<F>,
    frames: Vec<F>,
    stop: Option<u64>,
    /// Packet-outs whose packets wait for rules.
    outs_held: u64,
    /// The queue whose frames are being handled, and their number.
    in_hand: Option<(usize, usize)>,
    rest: Rest,
    shares: Shares,
    watch: Watch,
    fds: Vec<libc::pollfd>,
}

/// A worker's state between work and sleep; times in cycles.
struct Rest {
    /// When the last frame was handled.
    since: u64,
    /// When the last turn ended.
    turn_end: u64,
    drops_read: u64,
    /// When dormant queues were last looked at; None to look at them next.
    all_seen: Option<u64>,
    nap: Duration,
    spin: Spin,
    holding: Nap,
    /// Whether the processor is this worker's own.
    alone: bool,
    /// How long after the last frame to yield to other threads, where there is no descriptor to
    /// wait on.
    yields: u64,
    /// The epoch of the last turn, and when a turn first had it.
    epoch: Epoch,
    epoch_began: u64,
    changing: u64,
    drops_interval: u64,
    dormant_interval: u64,
    look_interval: u64,
    /// The clock in milliseconds, and when it was read.
    now_ms: u64,
    time_read: u64,
    time_interval: u64,
    /// Whether the last turn found frames.
    busy: bool,
    /// Whether a queue filled a whole burst in it.
    crowded: bool,
    /// Whether the last frames came by a queue that is costly to look at.
    costly: bool,
    eye: Eye,
    /// Cycles for which it has yielded.
    gave_way: u64,
}

impl Rest {
    fn new(pinned: bool) -> Rest {
        let now = cycles();
        Rest {
            since: now,
            turn_end: now,
            drops_read: now,
            all_seen: None,
            nap: Duration::from_micros(10),
            spin: Spin::new(pinned),
            holding: Nap::new(now),
            alone: pinned,
            yields: to_cycles(YIELD),
            epoch: 0,
            epoch_began: now.wrapping_sub(to_cycles(YIELD)),
            changing: to_cycles(CHANGING),
            drops_interval: to_cycles(DROPS_INTERVAL),
            dormant_interval: to_cycles(DORMANT_INTERVAL),
            look_interval: to_cycles(LOOK_INTERVAL),
            now_ms: 0,
            time_read: now,
            time_interval: to_cycles(TIME_INTERVAL),
            busy: false,
            crowded: false,
            costly: true,
            eye: Eye::new(now),
            gave_way: 0,
        }
    }
}

impl<F: Frame> Worker<F> {
    /// Creates a worker; `pinned` if the thread has a processor of its own.
    pub fn new(
        shared: Arc<Shared<F>>,
        mailbox: Arc<Mailbox<F>>,
        reader: Reader,
        pinned: bool,
    ) -> Worker<F> {
        let egress = Egress::new(reader.index(), Arc::clone(&mailbox.counters));
        let giver = Giver::new(reader.index(), Arc::clone(&mailbox.buckets));
        Worker {
            shared,
            mailbox,
            reader,
            rx: Vec::new(),
            awake: Vec::new(),
            open: Vec::new(),
            parked: Parked::new(),
            egress,
            patches: Patches::new(),
            sending: Sending::new(),
            engine: Engine::new(),
            giver,
            frames: Vec::with_capacity(BURST),
            stop: None,
            outs_held: 0,
            in_hand: None,
            rest: Rest::new(pinned),
            shares: Shares::new(),
            watch: Watch::new(),
            fds: Vec::new(),
        }
    }

    /// Works until told to stop, and gives everything back. A panic is counted and logged, costs
    /// the frames in hand, and the worker continues.
    pub fn run(mut self) {
        loop {
            CATCHING.set(true);
            let ended = catch_unwind(AssertUnwindSafe(|| self.work()));
            CATCHING.set(false);
            let Err(panic) = ended else { break };
            self.recover(&*panic);
        }
        self.mailbox.packet_ins.teller().settle(cycles(), true);
        let guard = self.reader.begin();
        while self.engine.has_deferred() {
            self.engine.flush_deferred(&self.shared.program, &guard);
        }
        self.reader.offline();
        let held = self.forget_held() + self.sending.discard() + self.giver.part();
        let held = held as u64;
        let cell = self.shared.cells.of(self.reader.index());
        cell.drop(DropReason::WorkerFailed, held);
        self.rx
            .iter_mut()
            .for_each(|port| self.parked.release(port));
        let tx = self.egress.take_all();
        if let Some(ticket) = self.stop {
            self.shared.returns.push(Returned {
                ticket,
                rx: std::mem::take(&mut self.rx),
                tx,
            });
        }
    }

    /// Drops packets that wait for rules; returns how many.
    fn forget_held(&mut self) -> usize {
        let outs = std::mem::take(&mut self.outs_held);
        self.shared
            .packet_outs_done
            .fetch_add(outs, Ordering::Release);
        self.engine.forget_held()
    }

    fn work(&mut self) {
        while self.stop.is_none() {
            if self.turn() {
                let gap = self.rest.turn_end.wrapping_sub(self.rest.since);
                self.rest.spin.came(gap);
                self.rest.since = self.rest.turn_end;
                self.rest.nap = Duration::from_micros(10);
            } else {
                self.rest();
            }
        }
    }

    fn recover(&mut self, panic: &(dyn std::any::Any + Send)) {
        let in_hand = self.in_hand.take();
        let mut lost = in_hand.map_or(0, |(_, frames)| frames);
        lost += self.egress.discard() + self.patches.clear() + self.sending.discard();
        lost += self.giver.recover();
        self.frames.clear();
        self.rest.all_seen = None;
        self.parked.place(&self.rx, &mut self.open);
        lost += self.forget_held();
        self.engine = Engine::new();
        self.shares = Shares::new();
        let cell = self.shared.cells.of(self.reader.index());
        cell.drop(DropReason::WorkerFailed, lost as u64);
        self.mailbox.counters.failures.add(1);
        let index = in_hand.map(|(index, _)| index);
        if let Some(port) = index.and_then(|index| self.rx.get_mut(index)) {
            port.failures = port.failures.saturating_add(1);
            port.left_until = cycles() + growing(port.failures - 1);
        } else if let Some(inbox) =
            index.and_then(|index| self.giver.inboxes.get_mut(usize::MAX - index))
        {
            inbox.failures = inbox.failures.saturating_add(1);
            inbox.left_until = cycles() + growing(inbox.failures - 1);
        }
        let failures = self.mailbox.counters.failures.get();
        if failures.is_power_of_two() {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text
                .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("?");
            tracing::error!(target: "dpif_netdev", "{}: failed ({failures} times so far, {lost} frames lost now) and goes on: {text}", self.mailbox.name);
        }
    }

    /// Runs one turn; returns whether there was anything to do.
    fn turn(&mut self) -> bool {
        let Worker {
            shared,
            mailbox,
            reader,
            rx,
            awake,
            open,
            parked,
            egress,
            patches,
            sending,
            engine,
            giver,
            frames,
            stop,
            outs_held,
            in_hand,
            rest,
            shares,
            watch,
            ..
        } = self;
        stages::begin_turn(&shared.stages, &mailbox.stages);
        let mut parts = Parts::begin(rest.turn_end);
        // Counted before the epoch begins: that epoch then includes what was published before these
        // were sent, however many others are published meanwhile.
        let outs = mailbox.packet_outs.len();
        let guard = reader.begin();
        let snapshot = shared.published.load(&guard);
        let cell = shared.cells.of(guard.index());
        // After the snapshot has been read, because control sends a port's transmit queue before it
        // publishes the port. Check for emptiness before popping: popping from an empty queue costs
        // a full fence, which waits for all earlier stores.
        let (mut obeyed, mut reopened) = (false, false);
        while !mailbox.commands.is_empty()
            && let Some(command) = mailbox.commands.pop()
        {
            obeyed = true;
            watch.forget(rx);
            shares.forget();
            match command {
                Command::AddLane(lane) => giver.add_lane(*lane),
                Command::AddInbox(inbox) => giver.inboxes.push(*inbox),
                Command::Part => cell.drop(DropReason::WorkerFailed, giver.part() as u64),
                command => obey(command, rx, parked, egress, cell, &shared.returns, stop),
            }
            rest.all_seen = None;
            parts.end(cycles(), Doing::Commands, 0);
            if stop.is_some() {
                break;
            }
            reopened = true;
        }
        if reopened {
            parked.place(rx, open);
        }
        let mut turn = Turn {
            snapshot,
            guard: &guard,
            shared,
            mailbox,
            cell,
            engine,
            egress,
            patches,
            sending,
            finished: false,
            packet_out: false,
            patched: false,
            received: 0,
            longer: 0,
            now_ms: 0,
            outs_held,
        };
        if let Some(tunnels) = &snapshot.tunnels {
            turn.patches.set_tunnels(tunnels.receivers.count());
        }
        // The end of a turn is the beginning of the next, except that rest moves it.
        let mut now = rest.turn_end;
        turn.now_ms = rest.now_ms(now, &shared.clock);
        if obeyed {
            if turn.egress.shaping.has_released() {
                turn.let_go();
            }
            if stop.is_some() {
                stages::end_turn(&mailbox.stages, false);
                return true;
            }
        }
        let mut busy = 0;
        // Whether nothing has been done since `now` was read.
        let mut read_late = false;
        let mut crowded = false;
        if turn.engine.is_waiting() {
            turn.go_on();
            parts.end(cycles(), Doing::Held, 0);
        }
        if shared.fragments.is_due(turn.now_ms) {
            turn.expire_fragments();
        }
        if turn.sending.is_waiting() {
            turn.retry_tunnels();
        }
        if outs > 0 {
            turn.packet_outs(outs);
            let then = std::mem::replace(&mut now, cycles());
            busy += now.wrapping_sub(then);
            parts.end(now, Doing::PacketOuts, 0);
        }
        if !shared.waiting_probes.probes.is_empty() {
            turn.send_probes();
            let then = std::mem::replace(&mut now, cycles());
            busy += now.wrapping_sub(then);
            parts.end(now, Doing::PacketOuts, 0);
        }
        if giver.lends() {
            giver.release();
        }
        if giver.is_asked() {
            let stage = stages::enter(Stage::Handover, 0);
            giver.advance(turn.holds() && !giver.is_hurried());
            drop(stage);
            come_home(&mut turn, giver.take_home(), in_hand);
            if turn.egress.shaping.has_work() {
                turn.serve_shaped();
            }
        }
        if !giver.inboxes.is_empty() {
            let began = now;
            let (first, shares) = (rx.len(), &mut *shares);
            take_from_others(&mut turn, giver, frames, in_hand, shares, first, &mut now);
            *in_hand = None;
            busy += now.wrapping_sub(began);
            parts.end(now, Doing::Frames, 0);
        }
        let all = rest.all_are_due(now);
        if all {
            for &index in open.iter() {
                rx[index].costly = rx[index].queue.is_costly();
            }
            if rx.len() > MANY {
                parked.park_quiet(rx, open, now);
            }
            awake.clear();
            awake.extend_from_slice(open);
        }
        if parked.is_due(rest.busy, now) {
            parked.ask(rx, open, awake, now);
        }
        for &index in awake.iter() {
            let Some(port) = rx.get_mut(index) else {
                continue;
            };
            let Some(state) = snapshot
                .port(port.id.slot())
                .filter(|state| state.id == port.id)
            else {
                continue;
            };
            if port.is_left(now, rest.crowded) || shares.leaves(index) {
                continue;
            }
            if port.costly && watch.is_empty(&port.habit, now) {
                continue;
            }
            *in_hand = Some((index, 0));
            stages::go(Stage::Receive, 0);
            let mut count = port.queue.receive(frames);
            if count == 0 {
                stages::relabel(Stage::EmptyPolls);
                if port.signalled {
                    port.woke_in_vain(now);
                }
                port.was_empty(rest, now);
                read_late = false;
                continue;
            }
            stages::add_packets(Stage::Receive, count);
            stages::go(Stage::Control, count);
            *in_hand = Some((index, count));
            (port.signalled, port.in_vain, port.empty_looks) = (false, 0, 0);
            port.parking.came = now;
            rest.costly = port.costly;
            crowded |= count >= BURST;
            let (mut looked, mut others) = (None, 0);
            if giver.looks() {
                let urgency = state.urgency;
                looked = Some(share_out(
                    giver, port, urgency, frames, &mut count, now, cell,
                ));
                if giver.has_home() {
                    // That is none of this queue's doing.
                    let began = cycles();
                    come_home(&mut turn, giver.take_home(), in_hand);
                    others = cycles().wrapping_sub(began);
                }
                *in_hand = Some((index, frames.len()));
                while frames.len() > BURST {
                    giver.spare.extend(frames.drain(..BURST));
                    turn.burst(state, &mut giver.spare, port.finished);
                }
            }
            if turn.egress.shaping.is_used() {
                turn.egress.shaping.waited_ns = port.queue.waited_ns();
                let gone = turn.egress.gone();
                turn.burst(state, frames, port.finished);
                turn.egress.shaping.waited_ns = 0;
                watch.came(port, turn.egress.gone() != gone, now);
            } else {
                turn.burst(state, frames, port.finished);
            }
            port.counters.packets.add(count as u64);
            port.counters.batches.add(1);
            mailbox.counters.packets.add(count as u64);
            mailbox.counters.batches.add(1);
            let then = std::mem::replace(&mut now, cycles());
            if let Some(looked) = looked {
                giver.account(&looked, now);
            }
            let took = now.wrapping_sub(then);
            port.counters.cycles.add(took);
            busy += took;
            let took = took.saturating_sub(others);
            let is_long = shares.is_long(took);
            if shares.counts(took) {
                shares.count(index, took, is_long || port.has_backlog(count));
            }
            if is_long || port.most < BURST {
                port.fit(shares.fitting(took, count, port.most));
            }
            parts.end(now, Doing::Frames, port.id.slot());
            read_late = true;
        }
        // Also what has followed a look at an empty queue.
        stages::go(Stage::Control, 0);
        *in_hand = None;
        rest.crowded = crowded;
        if all {
            awake.retain(|index| !rx[*index].queue.is_dormant());
        }
        let freed = shares.end_turn();
        let mut last = Doing::Looking;
        if turn.egress.shaping.has_work() {
            turn.serve_shaped();
            read_late = false;
            last = Doing::Shaped;
        }
        // Deferred counters are flushed before rest.
        let deferred = busy == 0 && turn.engine.has_deferred();
        if deferred {
            turn.engine.flush_deferred(&shared.program, &guard);
            last = Doing::Counters;
        }
        let end = if read_late { now } else { cycles() };
        parts.end(end, last, 0);
        mailbox.packet_ins.teller().settle(end, busy == 0);
        rest.account(&mailbox.counters, busy, end, &parts);
        rest.saw(guard.epoch());
        if rest.turn_end.wrapping_sub(rest.drops_read) > rest.drops_interval {
            rest.drops_read = rest.turn_end;
            let rested = rest.rested(&mailbox.counters);
            rest.eye.mark(rested);
            // A parked queue was asked when it was parked, and has lost nothing since.
            for port in open.iter().filter_map(|index| rx.get(*index)) {
                port.counters.set_drops(port.queue.drops());
            }
        }
        if busy == 0 && !freed {
            turn.engine.rested(turn.now_ms);
        }
        let idle = !(busy > 0 || deferred || freed);
        stages::end_turn(&mailbox.stages, idle && !obeyed);
        !idle
    }

    /// Rests when there was nothing to do: keeps polling, yields, naps, or sleeps.
    fn rest(&mut self) {
        let idle = self.rest.turn_end.wrapping_sub(self.rest.since);
        if idle < self.rest.spin.now() {
            if let Some(nap) = self.nap() {
                stages::go(Stage::Rest, 0);
                self.reader.offline();
                let parked = self.parked.fd();
                let cut = (self.watch).nap(&mut self.rx, parked, nap, self.rest.turn_end);
                self.mailbox.counters.naps.add(1);
                self.mailbox.counters.naps_cut.add(u64::from(cut));
                if cut {
                    // A dormant queue may have caused the wakeup.
                    self.rest.all_seen = None;
                }
                return self.rest.slept(&self.mailbox.counters);
            }
            if !self.rest.alone {
                std::hint::spin_loop();
            }
            return;
        }
        stages::go(Stage::Rest, 0);
        let mut limit = SLEEP_LIMIT;
        if self.engine.is_waiting() {
            match self.engine.wait(self.shared.clock.now_ms()) {
                Wait::Idle => {}
                Wait::Until(ms) => limit = Duration::from_millis(ms.max(1)),
                // Other workers are about to begin a burst with the new rules.
                Wait::Now => return self.rest.give_way(&self.mailbox.counters),
            }
        }
        if self.sending.is_waiting() || self.giver.is_waiting() {
            // Nobody wakes a worker when routes or neighbours change, or when another worker has
            // finished the frames it was given.
            limit = limit.min(TUNNEL_LOOK);
        }
        match self.egress.shaped_in_ns() {
            // A turn sends only for a limited time; there is more to send.
            Some(0) => return self.rest.give_way(&self.mailbox.counters),
            Some(ns) => limit = limit.min(Duration::from_nanos(ns)),
            None => {}
        }
        let waits =
            |index: &usize| (self.rx.get(*index)).is_none_or(|port| port.queue.wait_fd().is_some());
        if self.open.iter().all(waits) {
            self.sleep(limit);
        } else if idle < self.rest.yields || self.rest.is_changing() {
            self.rest.give_way(&self.mailbox.counters);
        } else if self.giver.inboxes.is_empty() {
            self.reader.offline();
            wait(&mut [], self.rest.nap.min(limit));
            self.rest.nap = (self.rest.nap * 2).min(NAP_LIMIT);
            self.rest.slept(&self.mailbox.counters);
        } else {
            self.doze(self.rest.nap.min(limit));
            self.rest.nap = (self.rest.nap * 2).min(NAP_LIMIT);
            self.rest.slept(&self.mailbox.counters);
        }
    }

    /// Sleeps for `limit`, or until another worker or control has something.
    fn doze(&mut self, limit: Duration) {
        let mailbox = &*self.mailbox;
        mailbox.sleeper.lie_down();
        let mut woken = false;
        let probes = &self.shared.waiting_probes.probes;
        let nothing = probes.is_empty() && !mailbox.has_something();
        if !self.giver.has_frames() && !self.giver.is_asked() && nothing {
            self.reader.offline();
            let mut fds = [readable(mailbox.sleeper.wake().as_raw_fd())];
            wait(&mut fds, limit);
            woken = fds[0].revents != 0;
        }
        mailbox.sleeper.get_up(woken);
    }

    /// Returns how long to nap instead of polling, while frames are held back.
    fn nap(&mut self) -> Option<Duration> {
        // A nap does not notice what other workers hand over.
        let has_others = !self.giver.inboxes.is_empty();
        if !self.egress.shaping.has_work() || self.engine.is_waiting() || has_others {
            return None;
        }
        let (now, frames) = (self.rest.turn_end, self.mailbox.counters.packets.get());
        match self.egress.shaped_in_ns() {
            None => {
                self.rest.holding.forget(now, frames);
                self.egress.shaping.take_shortest_ns();
                return None;
            }
            Some(0) => return None,
            Some(_) => {}
        }
        let shaping = &mut self.egress.shaping;
        let shortest = || shaping.take_shortest_ns();
        let nap = self.rest.holding.next(now, frames, shortest)?;
        let handed = self.egress.shaping.handed;
        let Some(most) = self.watch.prepare(&mut self.rx, handed, now) else {
            self.rest.all_seen = None;
            return None;
        };
        Some(match self.egress.shapes_with_bounds() {
            true => nap.min(most).min(nap::MOST_BOUNDED),
            false => nap.min(most),
        })
    }

    /// Sleeps until a queue or control has something.
    fn sleep(&mut self, mut limit: Duration) {
        self.watch.forget(&mut self.rx);
        let mailbox = &*self.mailbox;
        mailbox.sleeper.lie_down();
        let probes = &self.shared.waiting_probes.probes;
        let mut found = !probes.is_empty()
            || mailbox.has_something()
            || self.giver.has_frames()
            || self.giver.is_asked();
        // What others have left at this worker's shaped ports since it last looked.
        match self.egress.shaped_in_ns() {
            Some(0) => found = true,
            Some(ns) => limit = limit.min(Duration::from_nanos(ns)),
            None => {}
        }
        let (mut frames, mut woken) = (false, false);
        let rx = &mut self.rx;
        if rx.len() > MANY {
            self.parked.park_all(rx, &mut self.open, cycles());
        }
        for &index in &self.open {
            frames |= rx[index].queue.arm();
        }
        if !found && !frames {
            self.reader.offline();
            let now = cycles();
            self.fds.clear();
            self.fds.push(readable(mailbox.sleeper.wake().as_raw_fd()));
            // A negative descriptor is ignored.
            self.fds.push(readable(self.parked.fd().unwrap_or(-1)));
            for &index in &self.open {
                let port = &rx[index];
                let muted = port.muted_until.max(port.left_until).saturating_sub(now);
                if muted > 0 {
                    limit = limit.min(to_time(muted));
                }
                self.fds.push(readable(if muted > 0 {
                    -1
                } else {
                    port.queue.wait_fd().unwrap_or(-1)
                }));
            }
            wait(&mut self.fds, limit);
            woken = self.fds[0].revents != 0;
            frames |= woken && self.giver.has_frames();
            // The next turn finds out which of the parked ones it is.
            frames |= self.fds[1].revents != 0;
            for (index, fd) in self.open.iter().zip(&self.fds[2..]) {
                rx[*index].signalled = fd.revents != 0;
                frames |= rx[*index].signalled;
            }
        }
        mailbox.sleeper.get_up(woken);
        for &index in &self.open {
            let port = &mut rx[index];
            (port.next_look, port.empty_looks) = (0, 0);
            port.queue.disarm();
        }
        self.rest.busy = false;
        self.rest.slept(&self.mailbox.counters);
        self.rest.all_seen = None;
        let rest = self.rest.turn_end.wrapping_sub(self.rest.since);
        self.rest.spin.learn(frames.then_some(rest));
        self.rest.since = self.rest.turn_end;
    }
}

impl Rest {
    /// Returns the clock, read again when the last reading is too old.
    #[inline(always)]
    fn now_ms(&mut self, now: u64, clock: &Clock) -> u64 {
        if now.wrapping_sub(self.time_read) > self.time_interval || self.now_ms == 0 {
            (self.time_read, self.now_ms) = (now, clock.now_ms());
        }
        self.now_ms
    }

    /// Returns whether dormant queues are due to be looked at, and notes that they have been.
    #[inline(always)]
    fn all_are_due(&mut self, now: u64) -> bool {
        let seen = self.all_seen;
        let due = seen.is_none_or(|seen| now.wrapping_sub(seen) > self.dormant_interval);
        if due {
            self.all_seen = Some(now);
        }
        due
    }

    /// Ends a turn of which `busy` cycles went to frames, at `now`.
    #[inline(always)]
    fn account(&mut self, counters: &WorkerCounters, busy: u64, now: u64, parts: &Parts) {
        let whole = now.wrapping_sub(self.turn_end);
        let rested = self.rested(counters);
        self.eye.ended(&counters.turns, whole, parts, rested);
        self.turn_end = now;
        self.busy = busy > 0;
        if busy > 0 {
            counters.busy_cycles.add(busy);
            counters.busy_turns.add(1);
        } else {
            counters.idle_turns.add(1);
        }
        counters.idle_cycles.add(whole.saturating_sub(busy));
    }

    /// Notes the epoch of the turn that has ended.
    #[inline(always)]
    fn saw(&mut self, epoch: Epoch) {
        if epoch != self.epoch {
            (self.epoch, self.epoch_began) = (epoch, self.turn_end);
        }
    }

    /// Returns whether new rules have been published lately ([`CHANGING`]).
    fn is_changing(&self) -> bool {
        self.turn_end.wrapping_sub(self.epoch_began) < self.changing
    }

    /// Returns the cycles that it has not been in a turn.
    #[inline(always)]
    fn rested(&self, counters: &WorkerCounters) -> u64 {
        counters.sleep_cycles.get().wrapping_add(self.gave_way)
    }

    /// Yields to other threads.
    fn give_way(&mut self, counters: &WorkerCounters) {
        std::thread::yield_now();
        let now = cycles();
        self.gave_way += now.wrapping_sub(self.turn_end);
        counters.idle_cycles.add(now.wrapping_sub(self.turn_end));
        self.turn_end = now;
    }

    fn slept(&mut self, counters: &WorkerCounters) {
        let now = cycles();
        counters.sleep_cycles.add(now.wrapping_sub(self.turn_end));
        counters.sleeps.add(1);
        self.turn_end = now;
    }
}

/// Bursts that are received one after the other where most of their frames go to other workers.
const BURSTS: usize = 4;

/// Gives other workers their frames of a burst whose receipt began at `began`, in cycles. Where few
/// frames stay, more bursts are received and joined to them, because small batches cost more per
/// frame. `count` grows by these.
#[inline]
fn share_out<F: Frame>(
    giver: &mut Giver<F>,
    port: &mut RxPort<F>,
    urgency: Urgency,
    frames: &mut Vec<F>,
    count: &mut usize,
    began: u64,
    cell: &Cell,
) -> Looked {
    let origin = Origin {
        port: port.id,
        queue: port.index as u16,
        finished: port.finished,
    };
    let _stage = stages::enter(Stage::Handover, 0);
    giver.share(origin, urgency, frames, began, cell);
    let mut last = *count;
    for _ in 1..BURSTS {
        if last < BURST || frames.len() > BURST / 2 {
            break;
        }
        let began = cycles();
        let mut more = std::mem::take(&mut giver.spare);
        last = {
            let _stage = stages::enter(Stage::Receive, 0);
            port.queue.receive_more(&mut more)
        };
        stages::add_packets(Stage::Receive, last);
        if last > 0 {
            *count += last;
            giver.share(origin, urgency, &mut more, began, cell);
            frames.append(&mut more);
        }
        giver.spare = more;
    }
    Looked::now(frames.len())
}

/// Most runs of frames that are taken from another worker in a turn.
const RUNS: usize = 4;

/// Processes frames that other workers have received, as if they had come by this worker's queues.
/// Their rings have shares of the worker like queues, at the places from `first` on. `now` is when
/// the last part of the turn ended, in cycles.
fn take_from_others<F: Frame>(
    turn: &mut Turn<'_, F>,
    giver: &mut Giver<F>,
    frames: &mut Vec<F>,
    in_hand: &mut Option<(usize, usize)>,
    shares: &mut Shares,
    first: usize,
    now: &mut u64,
) {
    let (began, mut taken) = (*now, 0);
    let holds = turn.holds();
    let hurried = giver.is_hurried();
    for (index, inbox) in giver.inboxes.iter_mut().enumerate() {
        let before = *now;
        if !shares.leaves(first + index) {
            taken += take_runs(turn, inbox, index, frames, in_hand, shares, now);
        }
        if inbox.is_untold() && (hurried || !(holds || turn.holds())) {
            inbox.tell();
        }
        let took = now.wrapping_sub(before);
        if took > 0 && shares.counts(took) {
            shares.count(first + index, took, !inbox.is_empty());
        }
    }
    if taken > 0 {
        giver.account_taken(taken, now.wrapping_sub(began));
    }
}

/// Processes the next runs of frames of a ring, and returns the number of frames.
#[inline]
fn take_runs<F: Frame>(
    turn: &mut Turn<'_, F>,
    inbox: &mut Inbox<F>,
    index: usize,
    frames: &mut Vec<F>,
    in_hand: &mut Option<(usize, usize)>,
    shares: &Shares,
    now: &mut u64,
) -> u64 {
    let mut taken = 0;
    for _ in 0..RUNS {
        if inbox.left_until > *now {
            break;
        }
        let taken_run = {
            let _stage = stages::enter(Stage::Handover, 0);
            inbox.take(frames, &turn.shared.allocate)
        };
        let Some((origin, lost)) = taken_run else {
            break;
        };
        stages::add_packets(Stage::Handover, frames.len());
        if lost > 0 {
            turn.cell.drop(DropReason::NoBuffer, lost);
        }
        let count = frames.len();
        *in_hand = Some((usize::MAX - index, count));
        taken += count as u64;
        // Frames that others have left at this worker's shaped ports may be of these flows, and go
        // first.
        if turn.egress.shaping.has_work() {
            turn.serve_shaped();
        }
        turn.burst_of(origin.port, frames, origin.finished);
        let then = std::mem::replace(now, cycles());
        let took = now.wrapping_sub(then);
        turn.charge(origin, took);
        let is_long = shares.is_long(took);
        if is_long || inbox.most < BURST {
            inbox.most = shares.fitting(took, count, inbox.most);
        }
        if is_long {
            break;
        }
    }
    taken
}

/// Processes frames that were to go to another worker and came back, in order.
#[cold]
fn come_home<F: Frame>(
    turn: &mut Turn<'_, F>,
    handed: Vec<Handed<F>>,
    in_hand: &mut Option<(usize, usize)>,
) {
    let mut left = handed.len();
    let mut frames = Vec::with_capacity(BURST);
    let mut run = None;
    for Handed { frame, origin } in handed {
        if run != Some(origin) || frames.len() == BURST {
            if let Some(origin) = run {
                *in_hand = Some((usize::MAX, left));
                left -= frames.len();
                turn.burst_of(origin.port, &mut frames, origin.finished);
            }
            run = Some(origin);
        }
        frames.push(frame);
    }
    if let Some(origin) = run {
        *in_hand = Some((usize::MAX, left));
        turn.burst_of(origin.port, &mut frames, origin.finished);
    }
    *in_hand = None;
}

/// Executes a command from control.
fn obey<F: Frame>(
    command: Command<F>,
    rx: &mut Vec<RxPort<F>>,
    parked: &mut Parked,
    egress: &mut Egress<F>,
    cell: &Cell,
    returns: &Returns<F>,
    stop: &mut Option<u64>,
) {
    let mut give_back = |wanted: &dyn Fn(&RxPort<F>) -> bool| {
        let (gone, kept) = std::mem::take(rx)
            .into_iter()
            .partition(|port| wanted(port));
        *rx = kept;
        let mut gone: Vec<RxPort<F>> = gone;
        for port in &mut gone {
            parked.release(port);
            port.counters.set_drops(port.queue.drops());
        }
        gone
    };
    match command {
        Command::AddRx(port) => rx.push(*port),
        Command::SetTx { slot, tx, counters } => egress.set(slot, tx, counters),
        Command::Shape {
            slot,
            sender: Some(sender),
        } => egress.shape(slot, sender),
        Command::Shape { slot, sender: None } => egress.unshape(slot, cell),
        Command::Remove { slot, ticket } => {
            let rx = give_back(&|port| port.id.slot() == slot);
            let tx = egress.take(slot, cell).into_iter().collect();
            returns.push(Returned { ticket, rx, tx });
        }
        Command::TakeRx { id, index, ticket } => {
            let rx = give_back(&|port| port.id == id && port.index == index);
            returns.push(Returned {
                ticket,
                rx,
                tx: Vec::new(),
            });
        }
        Command::Run(act) => act(),
        // Executed where they are received.
        Command::AddLane(_) | Command::AddInbox(_) | Command::Part => {}
        Command::Stop { ticket } => *stop = Some(ticket),
    }
}

/// Pins the calling thread to a processor.
///
/// # Errors
///
/// [`Error::NoSuchCpu`], [`Error::Pin`].
pub fn pin(cpu: usize) -> Result<(), Error> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Error::NoSuchCpu(cpu));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| Error::Pin {
        cpu,
        reason: std::io::Error::from(error).to_string(),
    })
}

/// Makes short sleeps of the calling thread end on time, and not up to 50 us later.
pub(crate) fn sleep_precisely() {
    // In nanoseconds. Failure costs precision only.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::HeapFrame;

    /// A queue in memory that is always empty.
    struct Empty;

    impl RxQueue<HeapFrame> for Empty {
        fn receive(&mut self, _out: &mut Vec<HeapFrame>) -> usize {
            0
        }
    }

    /// Quiet queues are skipped, but only by a worker that is crowded, and for a bounded time.
    #[test]
    fn a_crowded_worker_looks_less_at_quiet_queues() {
        let id = PortId::new(0, 0);
        let mut port = RxPort::new(id, 0, Box::new(Empty), Arc::default());
        let mut rest = Rest::new(true);
        let mut now = rest.turn_end;
        for _ in 0..3 * QUIET {
            assert!(!port.is_left(now, false));
            port.was_empty(&rest, now);
            now += 1;
        }
        assert!(!port.is_left(now, true), "the worker had room");
        rest.crowded = true;
        port.was_empty(&rest, now);
        assert!(port.is_left(now, true));
        assert!(!port.is_left(now, false), "the worker has room again");
        assert!(!port.is_left(now + rest.look_interval, true));
        port.empty_looks = 0; // a frame came
        for look in 0..QUIET {
            now += rest.look_interval;
            assert!(!port.is_left(now, true), "look {look}");
            port.was_empty(&rest, now);
        }
        assert!(port.is_left(now, true));
    }
}
