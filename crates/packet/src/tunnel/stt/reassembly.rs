//! Puts the segments of STT frames together.

use super::Segment;
use crate::fragment::Refusal;
use crate::frame::{Frame, Offload};
use crate::keyed::Keyed;
use crate::tunnel::Addresses;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};

/// Limits on what waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// STT frames at a time; another one displaces the oldest.
    pub frames: usize,
    /// STT frames from one source address; another one displaces its oldest, so that a sender of
    /// first segments alone leaves room to others.
    pub frames_of_one: usize,
    /// Bytes of all STT frames, each with the length that it is to have; to make room for another,
    /// the oldest are dropped.
    pub bytes: usize,
    /// Separate runs of bytes of one STT frame: one more than it has gaps.
    pub runs_of_one: usize,
    /// How long an STT frame's segments wait, in milliseconds from the first that came.
    pub wait_ms: u64,
}

impl Default for Limits {
    /// Segments of an STT frame leave back to back, so those that wait are mostly of frames that
    /// have lost one. An STT frame of 64 KiB has 45 segments on Ethernet.
    fn default() -> Limits {
        Limits {
            frames: 256,
            frames_of_one: 128,
            bytes: 8 << 20,
            runs_of_one: 64,
            wait_ms: 1000,
        }
    }
}

/// What became of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<F> {
    /// It waits for other segments of its STT frame.
    Waits,
    /// It completed its STT frame: the segment that is all of it, and the frame that this is in.
    Whole(Segment, F),
    /// It was refused, mostly with the segments of its STT frame that were held; the number lost.
    Refused(Refusal, u64),
}

/// What identifies an STT frame: addresses, ports and its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    addresses: Addresses,
    ports: (u16, u16),
    id: u32,
}

#[derive(Debug)]
struct Partial {
    /// What the outer headers of the first that came say; "congestion experienced" if any says so.
    first: Segment,
    /// Bytes up to the last one that has come.
    bytes: Vec<u8>,
    /// Which of them have come: ranges in order, with gaps between them.
    runs: SmallVec<[(usize, usize); 4]>,
    /// Segments that have come.
    count: u64,
    /// Distinguishes it from a later one with the same key.
    serial: u64,
}

/// A worker's STT frames that wait for the rest of their segments. Segments are copied, so that
/// they do not keep a device's buffers.
#[derive(Debug)]
pub struct Reassembly {
    limits: Limits,
    frames: HashMap<Key, Partial, Keyed>,
    /// STT frames in order of arrival of their first-seen segment: time at which they expire,
    /// serial, key.
    order: VecDeque<(u64, u64, Key)>,
    /// Lengths that all are to have, in bytes.
    bytes: usize,
    serial: u64,
}

impl Reassembly {
    /// Makes a reassembly that holds nothing.
    pub fn new(limits: Limits) -> Reassembly {
        Reassembly {
            limits,
            frames: HashMap::default(),
            order: VecDeque::new(),
            bytes: 0,
            serial: 0,
        }
    }

    /// Returns whether something waits: then call [`Reassembly::expire`] now and then.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Adds a segment, read from this frame, at a time in milliseconds, which never goes back.
    /// Returns what became of it, and how many segments of other STT frames were dropped to make
    /// room.
    pub fn add<F: Frame>(
        &mut self,
        segment: &Segment,
        frame: &F,
        now_ms: u64,
    ) -> (Outcome<F>, u64) {
        let Some(addresses) = segment.info.addresses else {
            return (Outcome::Refused(Refusal::Bad, 1), 0);
        };
        let key = Key {
            addresses,
            ports: segment.ports,
            id: segment.id,
        };
        let mut lost = 0;
        if !self.frames.contains_key(&key) {
            match self.make_room(segment.total, &addresses) {
                Some(displaced) => lost = displaced,
                None => return (Outcome::Refused(Refusal::Full, 1), 0),
            }
            self.begin(key, segment, now_ms);
        }
        (self.add_to(&key, segment, frame), lost)
    }

    fn add_to<F: Frame>(&mut self, key: &Key, segment: &Segment, frame: &F) -> Outcome<F> {
        let Some(partial) = self.frames.get_mut(key) else {
            return Outcome::Refused(Refusal::Full, 1);
        };
        let (from, to) = (segment.offset, segment.offset + segment.length());
        let runs = &mut partial.runs;
        let at = runs.partition_point(|run| run.1 <= from);
        let is_same_frame = segment.total == partial.first.total;
        if is_same_frame && runs.get(at).is_some_and(|run| run.0 <= from && to <= run.1) {
            // Duplicated by the network: the STT frame loses nothing.
            return Outcome::Refused(Refusal::Twice, 1);
        }
        let overlaps = runs.get(at).is_some_and(|run| run.0 < to);
        let touches =
            at > 0 && runs[at - 1].1 == from || runs.get(at).is_some_and(|run| run.0 == to);
        let refusal = match (overlaps || !is_same_frame, touches) {
            (true, _) => Some(Refusal::Contradiction),
            (_, false) if runs.len() >= self.limits.runs_of_one => Some(Refusal::Full),
            _ => None,
        };
        if let Some(refusal) = refusal {
            let lost = self.forget(key) + 1;
            return Outcome::Refused(refusal, lost);
        }
        if partial.bytes.len() < to {
            partial.bytes.resize(to, 0);
        }
        if !frame.read_at(segment.start, &mut partial.bytes[from..to]) {
            let lost = self.forget(key) + 1;
            return Outcome::Refused(Refusal::Bad, lost);
        }
        insert(runs, at, (from, to));
        partial.count += 1;
        if segment.info.tos & ECN_CE == ECN_CE {
            partial.first.info.tos |= ECN_CE;
        }
        let total = partial.first.total;
        if runs[..] != [(0, total)] {
            return Outcome::Waits;
        }
        let Some(partial) = self.take(key) else {
            return Outcome::Waits; // cannot happen: it was there just now
        };
        let Some(mut whole) = frame.sibling(&partial.bytes) else {
            return Outcome::Refused(Refusal::NoMemory, partial.count);
        };
        whole.set_offload(Offload::default());
        let all = Segment {
            offset: 0,
            start: 0,
            end: total,
            ..partial.first
        };
        Outcome::Whole(all, whole)
    }

    /// Drops STT frames whose time is over; returns the number of segments lost.
    pub fn expire(&mut self, now_ms: u64) -> u64 {
        let mut lost = 0;
        while let Some(&(until_ms, serial, key)) = self.order.front() {
            let is_there = self.is_there(serial, &key);
            if is_there && until_ms > now_ms {
                break;
            }
            self.order.pop_front();
            if is_there {
                lost += self.forget(&key);
            }
        }
        lost
    }

    /// Drops all; returns the number of segments lost.
    pub fn clear(&mut self) -> u64 {
        self.order.clear();
        self.bytes = 0;
        self.frames.drain().map(|(_, partial)| partial.count).sum()
    }

    /// Makes room for one more STT frame of this length. Returns how many segments that has lost;
    /// None if there can be none.
    fn make_room(&mut self, total: usize, addresses: &Addresses) -> Option<u64> {
        let Limits {
            frames,
            frames_of_one,
            bytes,
            ..
        } = self.limits;
        if frames == 0 || frames_of_one == 0 || total > bytes {
            return None;
        }
        let mut lost = 0;
        // A linear search: once for each new STT frame, and few wait.
        let of_source = self.frames.keys().filter(|key| key.is_from(addresses));
        if of_source.count() >= frames_of_one {
            let mut order = self.order.iter();
            let oldest = order
                .find(|(_, serial, key)| key.is_from(addresses) && self.is_there(*serial, key));
            if let Some(&(_, _, key)) = oldest {
                lost += self.forget(&key);
            }
        }
        while self.frames.len() >= frames || self.bytes + total > bytes {
            let (_, serial, key) = self.order.pop_front()?;
            if self.is_there(serial, &key) {
                lost += self.forget(&key);
            }
        }
        Some(lost)
    }

    fn begin(&mut self, key: Key, segment: &Segment, now_ms: u64) {
        self.serial += 1;
        self.bytes += segment.total;
        self.frames.insert(
            key,
            Partial {
                first: *segment,
                bytes: Vec::with_capacity(segment.total),
                runs: SmallVec::new(),
                count: 0,
                serial: self.serial,
            },
        );
        let until_ms = now_ms + self.limits.wait_ms;
        self.order.push_back((until_ms, self.serial, key));
        // Entries of completed STT frames stay here until they reach the front; limits how many.
        if self.order.len() > 2 * self.limits.frames {
            let frames = &self.frames;
            self.order.retain(|(_, serial, key)| {
                (frames.get(key)).is_some_and(|partial| partial.serial == *serial)
            });
        }
    }

    fn is_there(&self, serial: u64, key: &Key) -> bool {
        (self.frames.get(key)).is_some_and(|partial| partial.serial == serial)
    }

    fn take(&mut self, key: &Key) -> Option<Partial> {
        let gone = self.frames.remove(key)?;
        self.bytes -= gone.first.total;
        Some(gone)
    }

    fn forget(&mut self, key: &Key) -> u64 {
        self.take(key).map_or(0, |partial| partial.count)
    }
}

impl Key {
    /// Returns whether it has the source of these addresses.
    fn is_from(&self, addresses: &Addresses) -> bool {
        match (&self.addresses, addresses) {
            (Addresses::V4 { src, .. }, Addresses::V4 { src: of, .. }) => src == of,
            (Addresses::V6 { src, .. }, Addresses::V6 { src: of, .. }) => src == of,
            _ => false,
        }
    }
}

/// ECN: congestion experienced.
const ECN_CE: u8 = 3;

/// Inserts a range, which overlaps none, at its place; joins it to those that it touches.
fn insert(runs: &mut SmallVec<[(usize, usize); 4]>, at: usize, (from, to): (usize, usize)) {
    let joins_before = at > 0 && runs[at - 1].1 == from;
    let joins_after = runs.get(at).is_some_and(|run| run.0 == to);
    match (joins_before, joins_after) {
        (true, true) => runs[at - 1].1 = runs.remove(at).1,
        (true, false) => runs[at - 1].1 = to,
        (false, true) => runs[at].0 = from,
        (false, false) => runs.insert(at, (from, to)),
    }
}
