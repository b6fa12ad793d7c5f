//! The sending end of steering: which worker a received frame goes to, and how flows move.

use super::{
    BUCKETS, Buckets, COPIED, Entry, HERE, Handed, Inbox, LIMITS, MOVING, MOVING_MOST, Origin,
    PARKED_MOST, Progress, RING, SAMPLE,
};
use crate::clock::{cycles, monotonic_ns};
use crate::counters::{Cell, DropReason};
use crate::fcf::Urgency;
use crossbeam_utils::CachePadded;
use packet::Frame;
use packet::flow_hash::{Secret, flow_hash};
use packet::io::BURST;
use packet::parse::prefetch;
use rtrb::Producer;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use steer::cores::CoreId;
use steer::handover::Handover;

/// The ring to one other worker.
pub(crate) struct Lane<F: Frame> {
    /// The other worker's number.
    to: usize,
    ring: Producer<Entry<F>>,
    progress: Arc<CachePadded<Progress>>,
    sent: u64,
    /// Frames of the current burst.
    batch: Vec<Handed<F>>,
    /// Lent frames, whose bytes the other worker copies, and the number of the entry of each.
    lent: VecDeque<(u64, F)>,
    /// Wakes the other worker if it sleeps.
    nudge: Box<dyn Fn() + Send>,
}

impl<F: Frame> Lane<F> {
    pub(super) fn new(
        to: usize,
        ring: Producer<Entry<F>>,
        progress: Arc<CachePadded<Progress>>,
        nudge: Box<dyn Fn() + Send>,
    ) -> Lane<F> {
        Lane {
            to,
            ring,
            progress,
            sent: 0,
            batch: Vec::with_capacity(BURST),
            lent: VecDeque::with_capacity(RING),
            nudge,
        }
    }

    fn is_to(&self, core: CoreId) -> bool {
        self.to == core.index()
    }

    /// Frees the buffers of frames that have been copied.
    #[inline]
    fn release(&mut self) {
        let taken = self.progress.taken.load(Ordering::Acquire);
        let copied = |(entry, _): &&(u64, F)| *entry < taken;
        let count = self.lent.iter().take_while(copied).count();
        self.lent.drain(..count);
    }

    /// Returns how many of the entries sent the other worker has finished.
    fn finished(&self) -> u64 {
        self.progress.finished.load(Ordering::Acquire)
    }

    /// Sends the batch; returns how many frames found no room and were dropped.
    fn flush(&mut self) -> usize {
        self.release();
        let room = self.batch.len().min(self.ring.slots());
        if let Ok(chunk) = self.ring.write_chunk_uninit(room) {
            let (lent, mut number) = (&mut self.lent, self.sent);
            let entries = self.batch.drain(..room).map(|handed| {
                let can_be_lent = handed.origin.finished
                    && handed.frame.len() <= COPIED
                    && handed.frame.segment_count() == 1;
                let mut entry = Entry::new(handed);
                if can_be_lent && let Some(frame) = entry.frame.take() {
                    lent.push_back((number, frame));
                }
                number += 1;
                entry
            });
            self.sent += chunk.fill_from_iter(entries) as u64;
        }
        let refused = self.batch.len();
        self.batch.clear();
        (self.nudge)();
        refused
    }

    fn push(&mut self, handed: Handed<F>) -> Result<(), Handed<F>> {
        match self.ring.push(Entry::new(handed)) {
            Ok(()) => {
                self.sent += 1;
                Ok(())
            }
            Err(rtrb::PushError::Full(Entry { frame, origin, .. })) => match frame {
                Some(frame) => Err(Handed { frame, origin }),
                // Then no frame was lent.
                None => Ok(()),
            },
        }
    }
}

impl<F: Frame> Drop for Lane<F> {
    fn drop(&mut self) {
        self.release();
        // The other worker may still read them, so their memory is leaked.
        std::mem::forget(std::mem::take(&mut self.lent));
    }
}

/// A move of a bucket.
struct Move<F> {
    bucket: usize,
    handover: Handover<Handed<F>>,
    /// The number of entries of the old worker's ring that must be finished.
    after: u64,
    /// Whether they were when the last turn began. A move ends one turn later, because by then what
    /// others left at shaped ports of this worker has been taken in.
    drained: bool,
}

/// The frames of a shared-out burst that are processed here: when that began, in cycles, and how
/// many they are.
pub(crate) struct Looked {
    began: u64,
    frames: usize,
}

impl Looked {
    /// Begins now, with this many frames.
    pub fn now(frames: usize) -> Looked {
        Looked {
            began: cycles(),
            frames,
        }
    }
}

/// A worker's part in steering: what it gives to others, and where it finds what others give.
pub(crate) struct Giver<F: Frame> {
    buckets: Arc<Buckets>,
    own: u8,
    secret: Secret,
    /// For each bucket the index in `lanes` of the worker it is with, [`HERE`] or [`MOVING`].
    to: Box<[u8; BUCKETS]>,
    lanes: Vec<Lane<F>>,
    /// Lanes that are no longer used, until all frames lent by them have been copied.
    parting: Vec<Lane<F>>,
    moves: Vec<Move<F>>,
    /// The value of `Buckets::changes` that has been acted on.
    seen: u32,
    /// Whether some of those changes are still to be made, because too many buckets were moving.
    behind: bool,
    /// For each bucket whose last move was given up, the value of `seen` then: it stays where it is
    /// until that changes.
    given_up: Box<[Option<u32>; BUCKETS]>,
    away: u32,
    bursts: u64,
    kept: Vec<F>,
    /// Memory for current frames, empty between bursts.
    pub spare: Vec<F>,
    /// Frames of moves that ended here.
    home: Vec<Handed<F>>,
    pub inboxes: Vec<Inbox<F>>,
}

impl<F: Frame> Giver<F> {
    /// Creates it for a worker with this number, which keeps all its flows.
    pub fn new(own: usize, buckets: Arc<Buckets>) -> Giver<F> {
        Giver {
            seen: buckets.changes.load(Ordering::Relaxed),
            buckets,
            own: own as u8,
            secret: Secret::random(),
            to: Box::new([HERE; BUCKETS]),
            lanes: Vec::new(),
            parting: Vec::new(),
            moves: Vec::new(),
            behind: false,
            given_up: Box::new([None; BUCKETS]),
            away: 0,
            bursts: 0,
            kept: Vec::with_capacity(BURST),
            spare: Vec::with_capacity(BURST),
            home: Vec::new(),
            inboxes: Vec::new(),
        }
    }

    /// Adds the ring to another worker, to be used where control wants that.
    pub fn add_lane(&mut self, lane: Lane<F>) {
        self.lanes.push(lane);
    }

    /// Stops giving and taking flows. Control has waited until all were here; frames that are not
    /// are lost. Returns how many.
    pub fn part(&mut self) -> usize {
        let mut lost = self.home.len();
        self.home.clear();
        for moving in &mut self.moves {
            lost += moving.handover.abandon().count();
        }
        self.moves.clear();
        self.to.fill(HERE);
        self.behind = false;
        self.given_up.fill(None);
        self.parting.append(&mut self.lanes);
        self.parting.retain(|lane| !lane.lent.is_empty());
        lost += self.inboxes.iter_mut().map(Inbox::discard).sum::<usize>();
        self.inboxes.clear();
        for bucket in 0..BUCKETS {
            self.buckets.at[bucket].store(HERE, Ordering::Relaxed);
        }
        self.set_away(0);
        lost
    }

    /// Drops frames in hand after a panic; returns how many.
    pub fn recover(&mut self) -> usize {
        // Frames in `spare` are counted as in hand by the worker.
        let mut lost = self.kept.len();
        self.kept.clear();
        self.spare.clear();
        for lane in &mut self.lanes {
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

    /// Returns whether there is anything to do at the beginning of a turn.
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        self.buckets.changes.load(Ordering::Relaxed) != self.seen
            || self.behind
            || !self.moves.is_empty()
    }

    /// Returns whether something is pending for which nobody wakes this worker.
    pub fn is_waiting(&self) -> bool {
        self.is_asked() || self.lends() || self.inboxes.iter().any(Inbox::is_untold)
    }

    /// Returns whether frames are lent.
    #[inline(always)]
    pub fn lends(&self) -> bool {
        (self.away > 0 && self.lanes.iter().any(|lane| !lane.lent.is_empty()))
            || !self.parting.is_empty()
    }

    /// Frees the buffers of lent frames that have been copied.
    pub fn release(&mut self) {
        self.lanes.iter_mut().for_each(Lane::release);
        self.parting.iter_mut().for_each(Lane::release);
        self.parting.retain(|lane| !lane.lent.is_empty());
    }

    /// Returns whether moves may end although packets are held, because control wants all flows
    /// back at once.
    pub fn is_hurried(&self) -> bool {
        self.buckets.hurried.load(Ordering::Relaxed)
    }

    /// Returns whether another worker has left frames.
    #[inline(always)]
    pub fn has_frames(&self) -> bool {
        !self.inboxes.is_empty() && self.inboxes.iter().any(|inbox| !inbox.is_empty())
    }

    /// Advances moves, when this worker has no frame in hand. `holds`: whether it holds packets
    /// that are not finished.
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
            let old = moving.handover.core();
            let lane = self.lanes.iter().find(|lane| lane.is_to(old));
            moving.drained = lane.map_or(!holds, |lane| lane.finished() >= moving.after);
            at += 1;
        }
        if changes != self.seen || self.behind {
            self.seen = changes;
            // Frames in `home` are not finished either.
            self.begin_moves(holds || self.has_home(), now_ns);
        }
        for lane in &self.lanes {
            (lane.nudge)();
        }
        self.buckets.counters.parked.set(self.parked() as u64);
    }

    fn begin_moves(&mut self, holds: bool, now_ns: u64) {
        self.behind = false;
        for bucket in 0..BUCKETS {
            let now = self.to[bucket];
            let wanted = match self.buckets.wanted(bucket) {
                HERE => self.own,
                number => number,
            };
            let to = CoreId(u16::from(wanted));
            if now == MOVING {
                let moving = self.moves.iter().find(|moving| moving.bucket == bucket);
                // If it does not go where control now wants it, look again once this move has
                // ended.
                self.behind |= moving.is_some_and(|moving| moving.handover.goes_to() != to);
                continue;
            }
            let (from, after) = match self.lanes.get(usize::from(now)) {
                Some(lane) => (CoreId(lane.to as u16), lane.sent),
                None => (CoreId(u16::from(self.own)), 0),
            };
            if from == to || self.given_up[bucket] == Some(self.seen) {
                continue;
            }
            if !self.has_way(to) {
                // Its ring has not arrived yet.
                self.behind = true;
                continue;
            }
            if self.moves.len() >= MOVING_MOST {
                self.behind = true;
                return;
            }
            if now == HERE && !holds {
                // All earlier frames of the bucket are finished.
                self.buckets.counters.moved.add(1);
                self.place(bucket, to);
                continue;
            }
            let mut handover = Handover::new(from, LIMITS);
            if handover.begin(to, now_ns, |_, _| true).is_ok() {
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

    fn has_way(&self, to: CoreId) -> bool {
        to.0 == u16::from(self.own) || self.lanes.iter().any(|lane| lane.is_to(to))
    }

    /// Ends a move, wherever its bucket is then.
    fn settle(&mut self, done: &Move<F>) {
        let (ended, counters) = (done.handover.counters(), &self.buckets.counters);
        counters.moved.add(ended.done.into());
        counters.gave_up_full.add(ended.gave_up_full.into());
        counters.gave_up_late.add(ended.gave_up_late.into());
        let gave_up = ended.gave_up_full + ended.gave_up_late > 0;
        self.given_up[done.bucket] = gave_up.then_some(self.seen);
        self.place(done.bucket, done.handover.core());
    }

    fn place(&mut self, bucket: usize, at: CoreId) {
        let lane = self.lanes.iter().position(|lane| lane.is_to(at));
        let place = lane.map_or(HERE, |lane| lane as u8);
        let was_here = std::mem::replace(&mut self.to[bucket], place) == HERE;
        let number = if place == HERE { HERE } else { at.0 as u8 };
        self.buckets.at[bucket].store(number, Ordering::Relaxed);
        match (was_here, place == HERE) {
            (true, false) => self.set_away(self.away + 1),
            (false, true) => self.set_away(self.away - 1),
            _ => {}
        }
    }

    /// Returns whether to look at the next burst.
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
    /// processed here. With adaptive steering that includes all frames with priority.
    #[inline]
    pub fn share(
        &mut self,
        origin: Origin,
        urgency: Urgency,
        frames: &mut Vec<F>,
        began: u64,
        cell: &Cell,
    ) {
        let urgency = match self.buckets.watched.load(Ordering::Relaxed) {
            true => urgency,
            false => Urgency::None,
        };
        let (counters, received) = (&self.buckets.counters, cycles());
        counters.received.add(frames.len() as u64);
        counters.receive_cycles.add(received.wrapping_sub(began));
        for frame in frames.iter() {
            prefetch(frame.head());
        }
        if self.away == 0 {
            for frame in frames.iter() {
                if urgency.has(frame.head()) {
                    counters.urgent.add(SAMPLE);
                    continue;
                }
                let bucket = flow_hash(frame.head(), self.secret) as usize % BUCKETS;
                self.buckets.packets[bucket].add(SAMPLE);
            }
        } else {
            self.hand_over(origin, urgency, frames, cell);
        }
    }

    fn hand_over(&mut self, origin: Origin, urgency: Urgency, frames: &mut Vec<F>, cell: &Cell) {
        let (mut handed_over, mut refused, mut urgent) = (0, 0, 0);
        if let Some(frame) = frames.first()
            && !(origin.finished && frame.len() <= COPIED)
        {
            // Prefetches while the frames that stay here are processed.
            frame.prefetch_next(BURST);
        }
        for frame in frames.drain(..) {
            if urgency.has(frame.head()) {
                urgent += 1;
                self.kept.push(frame);
                continue;
            }
            let bucket = flow_hash(frame.head(), self.secret) as usize % BUCKETS;
            self.buckets.packets[bucket].add(1);
            let to = self.to[bucket];
            if to == HERE {
                self.kept.push(frame);
                continue;
            }
            let handed = Handed { frame, origin };
            handed_over += 1;
            match self.lanes.get_mut(usize::from(to)) {
                Some(lane) => lane.batch.push(handed),
                _ => refused += u64::from(!self.moving_packet(bucket, handed)),
            }
        }
        std::mem::swap(frames, &mut self.kept);
        for lane in &mut self.lanes {
            if !lane.batch.is_empty() {
                refused += lane.flush() as u64;
            }
        }
        self.buckets.counters.handed.add(handed_over - refused);
        self.buckets.counters.urgent.add(urgent);
        if refused > 0 {
            self.buckets.counters.refused.add(refused);
            cell.drop(DropReason::SteeringRingFull, refused);
        }
    }

    /// Returns the number of frames that are parked, over all moving buckets.
    fn parked(&self) -> usize {
        let moves = self.moves.iter();
        moves.map(|moving| moving.handover.parked()).sum()
    }

    /// Parks or sends a frame of a moving bucket; returns false where there is no room for it.
    #[cold]
    fn moving_packet(&mut self, bucket: usize, handed: Handed<F>) -> bool {
        let parked = self.parked();
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

    /// Returns whether frames have come back to be processed here.
    #[inline(always)]
    pub fn has_home(&self) -> bool {
        !self.home.is_empty()
    }

    /// Takes the frames that came back, in order: runs of frames of one port.
    #[cold]
    pub fn take_home(&mut self) -> Vec<Handed<F>> {
        std::mem::take(&mut self.home)
    }

    /// Records the cycles spent on the frames of a burst that was looked at.
    #[inline]
    pub fn account(&self, looked: &Looked, now: u64) {
        let counters = &self.buckets.counters;
        counters.kept.add(looked.frames as u64);
        counters.work_cycles.add(now.wrapping_sub(looked.began));
    }

    /// Records the cycles spent on other workers' frames.
    #[inline]
    pub fn account_taken(&self, frames: u64, cycles: u64) {
        let counters = &self.buckets.counters;
        counters.taken.add(frames);
        counters.take_cycles.add(cycles);
    }
}

/// Puts a frame where it is to be processed.
fn put<F: Frame>(
    lanes: &mut [Lane<F>],
    home: &mut Vec<Handed<F>>,
    own: u8,
    core: CoreId,
    handed: Handed<F>,
) -> Result<(), Handed<F>> {
    if core.0 == u16::from(own) {
        home.push(handed);
        return Ok(());
    }
    match lanes.iter_mut().find(|lane| lane.is_to(core)) {
        Some(lane) => lane.push(handed),
        None => Err(handed),
    }
}
