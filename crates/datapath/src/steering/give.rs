//! The sending end: which worker a received frame goes to, and how flows move.

use super::{
    BUCKETS, Buckets, HERE, Handed, Inbox, LIMITS, MOVING, MOVING_MOST, PARKED_MOST, SAMPLE,
};
use crate::clock::{cycles, monotonic_ns};
use crate::counters::{Cell, DropReason};
use crate::port::PortId;
use crossbeam_utils::CachePadded;
use packet::Frame;
use packet::flow_hash::{Secret, flow_hash};
use packet::io::BURST;
use packet::parse::prefetch;
use program::epoch::MAX_READERS;
use rtrb::Producer;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use steer::cores::CoreId;
use steer::handover::Handover;

/// The way to one other worker.
pub(crate) struct Lane<F> {
    /// The other's number.
    to: usize,
    ring: Producer<Handed<F>>,
    /// How many of those that were sent the other has finished.
    finished: Arc<CachePadded<AtomicU64>>,
    sent: u64,
    /// Frames of the burst in hand.
    batch: Vec<Handed<F>>,
    /// Wakes the other if it sleeps.
    nudge: Box<dyn Fn() + Send>,
}

impl<F: Frame> Lane<F> {
    pub(super) fn new(
        to: usize,
        ring: Producer<Handed<F>>,
        finished: Arc<CachePadded<AtomicU64>>,
        nudge: Box<dyn Fn() + Send>,
    ) -> Lane<F> {
        Lane {
            to,
            ring,
            finished,
            sent: 0,
            batch: Vec::with_capacity(BURST),
            nudge,
        }
    }

    /// Sends the batch; how many frames found no room and are gone.
    fn flush(&mut self) -> usize {
        let wanted = self.batch.len();
        let room = wanted.min(self.ring.slots());
        if let Ok(chunk) = self.ring.write_chunk_uninit(room) {
            self.sent += chunk.fill_from_iter(self.batch.drain(..room)) as u64;
        }
        let refused = self.batch.len();
        self.batch.clear();
        (self.nudge)();
        refused
    }

    fn push(&mut self, handed: Handed<F>) -> Result<(), Handed<F>> {
        match self.ring.push(handed) {
            Ok(()) => {
                self.sent += 1;
                Ok(())
            }
            Err(rtrb::PushError::Full(handed)) => Err(handed),
        }
    }
}

/// A bucket on its way.
struct Move<F> {
    bucket: usize,
    handover: Handover<Handed<F>>,
    /// So many frames of the old worker's ring must be finished.
    after: u64,
    /// They were when the last turn began. A move ends a turn later: what others left at shaped
    /// ports of this worker has then been taken in.
    drained: bool,
}

/// When a burst was received and shared out, in cycles, and of how many frames.
pub(crate) struct Looked {
    began: u64,
    frames: usize,
}

/// A worker's part in handing flows over: what it gives to others, and where it finds what others
/// give.
pub(crate) struct Giver<F: Frame> {
    buckets: Arc<Buckets>,
    own: u8,
    secret: Secret,
    /// The number of the worker that each bucket is with, [`HERE`] or [`MOVING`].
    to: Box<[u8; BUCKETS]>,
    /// By the other's number.
    lanes: Vec<Option<Lane<F>>>,
    moves: Vec<Move<F>>,
    /// Of what control wants, what has been begun.
    seen: u32,
    /// Not all of it: too many were moving.
    behind: bool,
    away: u32,
    bursts: u64,
    kept: Vec<F>,
    /// Frames of moves that ended here.
    home: Vec<Handed<F>>,
    pub inboxes: Vec<Inbox<F>>,
}

impl<F: Frame> Giver<F> {
    /// Of a worker with this number, which keeps all its flows.
    pub fn new(own: usize, buckets: Arc<Buckets>) -> Giver<F> {
        let random = RandomState::new();
        Giver {
            seen: buckets.changes.load(Ordering::Relaxed),
            buckets,
            own: own as u8,
            secret: Secret([random.hash_one(0), random.hash_one(1)]),
            to: Box::new([HERE; BUCKETS]),
            lanes: (0..MAX_READERS).map(|_| None).collect(),
            moves: Vec::new(),
            behind: false,
            away: 0,
            bursts: 0,
            kept: Vec::with_capacity(BURST),
            home: Vec::new(),
            inboxes: Vec::new(),
        }
    }

    /// Gives flows by this way where control wants that.
    pub fn add_lane(&mut self, lane: Lane<F>) {
        let at = lane.to;
        if let Some(place) = self.lanes.get_mut(at) {
            *place = Some(lane);
        }
    }

    /// Gives no flows any more, and takes none. Control has waited until all were here; what is not
    /// is lost. Returns how many frames these were.
    pub fn part(&mut self) -> usize {
        let mut lost = self.home.len();
        self.home.clear();
        for moving in &mut self.moves {
            lost += moving.handover.abandon().count();
        }
        self.moves.clear();
        self.to.fill(HERE);
        self.behind = false;
        self.lanes.iter_mut().for_each(|lane| *lane = None);
        lost += self.inboxes.iter_mut().map(Inbox::discard).sum::<usize>();
        self.inboxes.clear();
        for bucket in 0..BUCKETS {
            self.buckets.at[bucket].store(HERE, Ordering::Relaxed);
        }
        self.set_away(0);
        lost
    }

    /// After a failure: what was in hand is lost; how many frames.
    pub fn recover(&mut self) -> usize {
        let mut lost = self.kept.len();
        self.kept.clear();
        for lane in self.lanes.iter_mut().flatten() {
            lost += lane.batch.len();
            lane.batch.clear();
        }
        self.inboxes.iter_mut().for_each(Inbox::tell);
        lost
    }

    fn set_away(&mut self, away: u32) {
        self.away = away;
        self.buckets.away.store(away, Ordering::Release);
    }

    /// Whether there is anything to do at the beginning of a turn.
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        self.buckets.changes.load(Ordering::Relaxed) != self.seen
            || self.behind
            || !self.moves.is_empty()
    }

    /// Whether something is to come that nobody wakes this worker for.
    pub fn is_waiting(&self) -> bool {
        self.is_asked() || self.inboxes.iter().any(Inbox::is_untold)
    }

    /// Whether another worker has left frames.
    #[inline(always)]
    pub fn has_frames(&self) -> bool {
        !self.inboxes.is_empty() && self.inboxes.iter().any(|inbox| !inbox.is_empty())
    }

    /// Brings buckets on their way, when no frame of this worker is in hand. `holds` says whether
    /// it holds packets that are not finished.
    #[cold]
    pub fn advance(&mut self, holds: bool) {
        let now_ns = monotonic_ns();
        let changes = self.buckets.changes.load(Ordering::Acquire);
        let mut at = 0;
        while at < self.moves.len() {
            let moving = &mut self.moves[at];
            let (lanes, home, own) = (&mut self.lanes, &mut self.home, self.own);
            let mut put = |core: CoreId, handed| put(lanes, home, own, core, handed);
            if moving.drained {
                moving.handover.marker_done(0, &mut put);
            }
            moving.handover.turn(now_ns, &mut put);
            if moving.handover.is_settled() {
                let done = self.moves.swap_remove(at);
                self.settle(&done);
                continue;
            }
            let old = moving.handover.core().0 as u8;
            moving.drained = if old == own {
                !holds
            } else {
                let lane = self.lanes.get(usize::from(old)).and_then(Option::as_ref);
                lane.is_none_or(|lane| lane.finished.load(Ordering::Acquire) >= moving.after)
            };
            at += 1;
        }
        if changes != self.seen || self.behind {
            self.seen = changes;
            self.begin_moves(holds, now_ns);
        }
        for lane in self.lanes.iter().flatten() {
            (lane.nudge)();
        }
        let parked = self.moves.iter().map(|moving| moving.handover.parked());
        self.buckets
            .counters
            .parked
            .set(parked.sum::<usize>() as u64);
    }

    fn begin_moves(&mut self, holds: bool, now_ns: u64) {
        self.behind = false;
        for bucket in 0..BUCKETS {
            let now = self.to[bucket];
            let wanted = match self.buckets.wanted(bucket) {
                wanted if wanted == self.own => HERE,
                wanted => wanted,
            };
            if wanted == now || now == MOVING && self.goes_to(bucket, wanted) {
                continue;
            }
            if now == MOVING || self.moves.len() >= MOVING_MOST {
                self.behind = true;
                continue;
            }
            let has_lane = |at: u8| matches!(self.lanes.get(usize::from(at)), Some(Some(_)));
            if wanted != HERE && !has_lane(wanted) {
                continue;
            }
            if now == HERE && !holds {
                // All that came of it before is finished.
                self.buckets.counters.moved.add(1);
                self.place(bucket, wanted);
                continue;
            }
            let core = |at: u8| CoreId(u16::from(if at == HERE { self.own } else { at }));
            let after = match self.lanes.get(usize::from(now)) {
                Some(Some(lane)) => lane.sent,
                _ => 0,
            };
            let mut handover = Handover::new(core(now), LIMITS);
            if handover.begin(core(wanted), now_ns, |_, _| true).is_ok() {
                self.moves.push(Move {
                    bucket,
                    handover,
                    after,
                    drained: false,
                });
                if now == HERE {
                    self.set_away(self.away + 1);
                }
                self.to[bucket] = MOVING;
            }
        }
    }

    /// Whether a moving bucket is on its way there. If its move is given up it is not, and is
    /// looked at again when control wants something else.
    fn goes_to(&self, bucket: usize, wanted: u8) -> bool {
        let wanted = if wanted == HERE { self.own } else { wanted };
        let moving = self.moves.iter().find(|moving| moving.bucket == bucket);
        moving.is_some_and(|moving| moving.handover.goes_to() == CoreId(u16::from(wanted)))
    }

    /// A move has ended, wherever.
    fn settle(&mut self, done: &Move<F>) {
        let (ended, counters) = (done.handover.counters(), &self.buckets.counters);
        counters.moved.add(ended.done.into());
        counters.gave_up_full.add(ended.gave_up_full.into());
        counters.gave_up_late.add(ended.gave_up_late.into());
        let at = done.handover.core().0 as u8;
        self.place(done.bucket, if at == self.own { HERE } else { at });
    }

    fn place(&mut self, bucket: usize, at: u8) {
        let was_here = std::mem::replace(&mut self.to[bucket], at) == HERE;
        self.buckets.at[bucket].store(at, Ordering::Relaxed);
        match (was_here, at == HERE) {
            (true, false) => self.set_away(self.away + 1),
            (false, true) => self.set_away(self.away - 1),
            _ => {}
        }
    }

    /// Whether the next burst is to be looked at.
    #[inline(always)]
    pub fn looks(&mut self) -> bool {
        if self.away == 0 {
            if !self.buckets.watched.load(Ordering::Relaxed) {
                return false;
            }
            self.bursts += 1;
            return self.bursts.is_multiple_of(SAMPLE);
        }
        true
    }

    /// Shares out a burst that was received between `began` and now: `frames` keeps what is
    /// processed here.
    #[inline]
    pub fn share(
        &mut self,
        (port, finished): (PortId, bool),
        frames: &mut Vec<F>,
        began: u64,
        cell: &Cell,
    ) -> Looked {
        let (counters, received) = (&self.buckets.counters, cycles());
        counters.received.add(frames.len() as u64);
        counters.receive_cycles.add(received.wrapping_sub(began));
        for frame in frames.iter() {
            prefetch(frame.head());
        }
        if self.away == 0 {
            for frame in frames.iter() {
                let bucket = flow_hash(frame.head(), self.secret) as usize % BUCKETS;
                self.buckets.packets[bucket].add(SAMPLE);
            }
        } else {
            self.hand_over((port, finished), frames, cell);
        }
        Looked {
            began: cycles(),
            frames: frames.len(),
        }
    }

    fn hand_over(&mut self, (port, finished): (PortId, bool), frames: &mut Vec<F>, cell: &Cell) {
        let (mut handed_over, mut refused) = (0, 0);
        for frame in frames.drain(..) {
            let bucket = flow_hash(frame.head(), self.secret) as usize % BUCKETS;
            self.buckets.packets[bucket].add(1);
            let to = self.to[bucket];
            if to == HERE {
                self.kept.push(frame);
                continue;
            }
            let handed = Handed {
                frame,
                port,
                finished,
            };
            handed_over += 1;
            match self.lanes.get_mut(usize::from(to)) {
                Some(Some(lane)) => lane.batch.push(handed),
                _ => refused += u64::from(!self.moving_packet(bucket, handed)),
            }
        }
        std::mem::swap(frames, &mut self.kept);
        for lane in self.lanes.iter_mut().flatten() {
            if !lane.batch.is_empty() {
                refused += lane.flush() as u64;
            }
        }
        self.buckets.counters.handed.add(handed_over - refused);
        if refused > 0 {
            self.buckets.counters.refused.add(refused);
            cell.drop(DropReason::SteeringRingFull, refused);
        }
    }

    /// A frame of a bucket that is on its way; false where there is no room for it anywhere.
    #[cold]
    fn moving_packet(&mut self, bucket: usize, handed: Handed<F>) -> bool {
        let parked: usize = self
            .moves
            .iter()
            .map(|moving| moving.handover.parked())
            .sum();
        let (lanes, home, own) = (&mut self.lanes, &mut self.home, self.own);
        let mut put = |core: CoreId, handed| put(lanes, home, own, core, handed);
        let Some(moving) = self.moves.iter_mut().find(|moving| moving.bucket == bucket) else {
            return false;
        };
        if parked >= PARKED_MOST {
            moving.handover.give_up(&mut put);
        }
        moving.handover.packet(handed, &mut put).is_ok()
    }

    /// What has come to be processed here after all, in order.
    #[inline(always)]
    pub fn has_home(&self) -> bool {
        !self.home.is_empty()
    }

    /// Takes it: runs of frames of one port.
    #[cold]
    pub fn take_home(&mut self) -> Vec<Handed<F>> {
        std::mem::take(&mut self.home)
    }

    /// Notes what the burst has taken that was looked at.
    #[inline]
    pub fn account(&self, looked: &Looked, now: u64) {
        let counters = &self.buckets.counters;
        counters.kept.add(looked.frames as u64);
        counters.work_cycles.add(now.wrapping_sub(looked.began));
    }

    /// Notes what frames of others have taken.
    #[inline]
    pub fn account_taken(&self, frames: u64, cycles: u64) {
        let counters = &self.buckets.counters;
        counters.taken.add(frames);
        counters.take_cycles.add(cycles);
    }
}

/// Puts a frame where it is processed.
fn put<F: Frame>(
    lanes: &mut [Option<Lane<F>>],
    home: &mut Vec<Handed<F>>,
    own: u8,
    core: CoreId,
    handed: Handed<F>,
) -> Result<(), Handed<F>> {
    if core.0 == u16::from(own) {
        home.push(handed);
        return Ok(());
    }
    match lanes.get_mut(core.index()) {
        Some(Some(lane)) => lane.push(handed),
        _ => Err(handed),
    }
}
