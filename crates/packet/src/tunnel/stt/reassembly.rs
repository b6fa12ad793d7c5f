//! Puts the segments of STT frames together.
//!
//! What a segment says of its STT frame's length is believed only once all of that has come: memory
//! grows with the bytes that come, never with those that are announced. So bytes are kept one
//! behind the other as they come, mostly in order, with a list of where they belong.

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
    /// Bytes of memory for segments of all STT frames; to make room for more, the oldest other ones
    /// are dropped. At most twice as much memory is taken as bytes have come.
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
    /// Nobody wants STT frames from its source to its destination.
    Unwanted,
}

/// What identifies an STT frame: addresses, ports and its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    addresses: Addresses,
    ports: (u16, u16),
    id: u32,
}

/// Bytes of an STT frame that have come one behind the other. The numbers are below 65,536, as the
/// length of an STT frame is.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Where they begin and end in the STT frame.
    from: u16,
    to: u16,
    /// Where they begin in [`Partial::bytes`].
    at: u16,
}

impl Piece {
    fn range(&self) -> (usize, usize) {
        (self.from.into(), self.to.into())
    }

    /// Returns them, out of what has come.
    fn of<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let at = usize::from(self.at);
        &bytes[at..at + usize::from(self.to - self.from)]
    }
}

#[derive(Debug)]
struct Partial {
    /// What the outer headers of the first that came say; "congestion experienced" if any says so.
    first: Segment,
    /// Bytes that have come, in the order in which they came.
    bytes: Vec<u8>,
    /// Bytes of memory for them; never more than twice as many as have come.
    room: usize,
    /// Where they belong: in the STT frame's order, without overlaps.
    pieces: SmallVec<[Piece; 4]>,
    /// Runs of bytes with gaps between them.
    runs: usize,
    /// Segments that wait.
    count: u64,
    /// Distinguishes it from a later one with the same key.
    serial: u64,
}

/// Where a new segment belongs.
#[derive(Clone, Copy)]
struct Place {
    /// Number of pieces before it.
    at: usize,
    /// Whether it continues the piece before it, in the STT frame.
    joins_before: bool,
    /// Whether the piece behind it continues it.
    joins_after: bool,
}

impl Partial {
    fn new(first: &Segment, serial: u64) -> Partial {
        Partial {
            first: *first,
            bytes: Vec::new(),
            room: 0,
            pieces: SmallVec::new(),
            runs: 0,
            count: 0,
            serial,
        }
    }

    /// Finds the place of a segment, where there are to be at most so many runs. Only
    /// [`Refusal::Twice`] leaves the STT frame as good as it was.
    fn place(&self, segment: &Segment, most_runs: usize) -> Result<Place, Refusal> {
        let (from, to) = (segment.offset, segment.offset + segment.length());
        let at = self.pieces.partition_point(|piece| piece.range().1 <= from);
        let next = self.pieces.get(at).map(Piece::range);
        let is_same_frame = segment.total == self.first.total;
        if is_same_frame && self.covers(at, from, to) {
            // Duplicated by the network.
            return Err(Refusal::Twice);
        }
        if !is_same_frame || next.is_some_and(|next| next.0 < to) {
            return Err(Refusal::Contradiction);
        }
        let place = Place {
            at,
            joins_before: at > 0 && self.pieces[at - 1].range().1 == from,
            joins_after: next.is_some_and(|next| next.0 == to),
        };
        if !place.joins_before && !place.joins_after && self.runs >= most_runs {
            return Err(Refusal::Full);
        }
        Ok(place)
    }

    /// Returns whether all bytes of a range have come. Piece `at` is the first that ends behind the
    /// range's start.
    fn covers(&self, at: usize, mut from: usize, to: usize) -> bool {
        for piece in &self.pieces[at..] {
            let (start, end) = piece.range();
            if start > from {
                return false;
            }
            from = end;
            if from >= to {
                return true;
            }
        }
        false
    }

    /// Returns how much memory there is to be for so many bytes more. It is doubled, so that bytes
    /// are not copied often.
    fn room_for(&self, more: usize) -> usize {
        let needed = self.bytes.len() + more;
        if needed <= self.room {
            return self.room;
        }
        needed.max((2 * self.room).min(self.first.total))
    }

    /// Adds a segment's bytes, at most so many pieces being kept; false if its frame is shorter.
    fn push(&mut self, segment: &Segment, frame: &impl Frame, place: Place, most: usize) -> bool {
        self.room = self.room_for(segment.length());
        self.bytes.reserve_exact(self.room - self.bytes.len());
        let at = self.bytes.len();
        self.bytes.resize(at + segment.length(), 0);
        if !frame.read_at(segment.start, &mut self.bytes[at..]) {
            return false;
        }
        // Below 65,536: no more bytes come than the STT frame is to have.
        let piece = Piece {
            from: segment.offset as u16,
            to: (segment.offset + segment.length()) as u16,
            at: at as u16,
        };
        let before = place.at.checked_sub(1).map(|at| &mut self.pieces[at]);
        match before.filter(|_| place.joins_before) {
            Some(before) if before.at + (before.to - before.from) == piece.at => {
                before.to = piece.to;
            }
            _ => self.pieces.insert(place.at, piece),
        }
        self.runs += 1;
        self.runs -= usize::from(place.joins_before) + usize::from(place.joins_after);
        if self.pieces.len() > most {
            self.put_in_order();
        }
        if segment.info.tos & ECN_CE == ECN_CE {
            self.first.info.tos |= ECN_CE;
        }
        true
    }

    fn is_complete(&self) -> bool {
        self.bytes.len() == self.first.total
    }

    /// Puts the bytes that have come in order, so that there are as many pieces as runs.
    fn put_in_order(&mut self) {
        let mut bytes = Vec::with_capacity(self.room);
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        for piece in &self.pieces {
            let at = bytes.len() as u16; // less than has come
            bytes.extend_from_slice(piece.of(&self.bytes));
            match pieces.last_mut().filter(|last| last.to == piece.from) {
                Some(last) => last.to = piece.to,
                None => pieces.push(Piece { at, ..*piece }),
            }
        }
        (self.bytes, self.pieces) = (bytes, pieces);
    }
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
    /// Memory for the bytes of all ([`Partial::room`]).
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

    /// Adds a segment, read from this frame, at a time in milliseconds, which never goes back. If
    /// nothing of its STT frame is there, `is_wanted` is asked first whether anybody wants what has
    /// these addresses. Returns what became of it, and how many segments of other STT frames were
    /// dropped to make room.
    pub fn add<F: Frame>(
        &mut self,
        segment: &Segment,
        frame: &F,
        now_ms: u64,
        is_wanted: impl FnOnce(&Addresses) -> bool,
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
            if !is_wanted(&addresses) {
                return (Outcome::Unwanted, 0);
            }
            match self.make_place(&addresses) {
                Some(displaced) => lost = displaced,
                None => return (Outcome::Refused(Refusal::Full, 1), 0),
            }
            self.begin(key, segment, now_ms);
        }
        match self.add_to(&key, segment, frame, &mut lost) {
            Ok(outcome) => (outcome, lost),
            Err(Refusal::Twice) => (Outcome::Refused(Refusal::Twice, 1), lost),
            Err(refusal) => {
                let own = self.forget(&key) + 1;
                (Outcome::Refused(refusal, own), lost)
            }
        }
    }

    /// Adds a segment to an STT frame that is there, which is to be forgotten on all errors but
    /// [`Refusal::Twice`]. Adds to `lost` what gave way.
    fn add_to<F: Frame>(
        &mut self,
        key: &Key,
        segment: &Segment,
        frame: &F,
        lost: &mut u64,
    ) -> Result<Outcome<F>, Refusal> {
        let most_runs = self.limits.runs_of_one;
        let partial = self.frames.get(key).ok_or(Refusal::Full)?;
        let place = partial.place(segment, most_runs)?;
        let room = partial.room_for(segment.length());
        let more = room - partial.room;
        if room > self.limits.bytes {
            return Err(Refusal::Full);
        }
        *lost += self.make_room(more, key);
        let partial = self.frames.get_mut(key).ok_or(Refusal::Full)?;
        self.bytes += more;
        if !partial.push(segment, frame, place, 2 * most_runs) {
            return Err(Refusal::Bad);
        }
        if !partial.is_complete() {
            partial.count += 1;
            return Ok(Outcome::Waits);
        }
        if partial.pieces.len() > 1 {
            partial.put_in_order();
        }
        let total = partial.first.total;
        let mut whole = frame.sibling(&partial.bytes).ok_or(Refusal::NoMemory)?;
        whole.set_offload(Offload::default());
        let all = Segment {
            offset: 0,
            start: 0,
            end: total,
            ..partial.first
        };
        self.forget(key);
        Ok(Outcome::Whole(all, whole))
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

    /// Makes place for one more STT frame with these addresses. Returns how many segments that has
    /// lost; None if there can be none.
    fn make_place(&mut self, addresses: &Addresses) -> Option<u64> {
        let Limits {
            frames,
            frames_of_one,
            ..
        } = self.limits;
        if frames == 0 || frames_of_one == 0 {
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
        while self.frames.len() >= frames {
            let (_, serial, key) = self.order.pop_front()?;
            if self.is_there(serial, &key) {
                lost += self.forget(&key);
            }
        }
        Some(lost)
    }

    /// Makes room for so many bytes more of an STT frame that is there, and could have them if it
    /// were alone. Returns how many segments of others that has lost.
    fn make_room(&mut self, more: usize, key: &Key) -> u64 {
        let mut lost = 0;
        while self.bytes + more > self.limits.bytes {
            let mut order = self.order.iter();
            let oldest =
                order.find(|(_, serial, other)| other != key && self.is_there(*serial, other));
            let Some(&(_, _, oldest)) = oldest else {
                break; // cannot happen: it is alone
            };
            lost += self.forget(&oldest);
        }
        lost
    }

    fn begin(&mut self, key: Key, segment: &Segment, now_ms: u64) {
        self.serial += 1;
        self.frames.insert(key, Partial::new(segment, self.serial));
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

    /// Drops an STT frame; returns how many segments of it waited.
    fn forget(&mut self, key: &Key) -> u64 {
        let Some(gone) = self.frames.remove(key) else {
            return 0;
        };
        self.bytes -= gone.room;
        gone.count
    }

    /// Returns the bytes that have come, and those of the memory that is taken for them.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> (usize, usize) {
        let all = || self.frames.values();
        assert_eq!(self.bytes, all().map(|partial| partial.room).sum::<usize>());
        (
            all().map(|partial| partial.bytes.len()).sum(),
            all().map(|partial| partial.bytes.capacity()).sum(),
        )
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
