//! Puts the segments of STT frames together.
//!
//! What a segment says of its STT frame's length is believed only once all of that has come: memory
//! grows with the bytes that come, never with those that are announced. So bytes are kept one
//! behind the other as they come, mostly in order, with a list of where they belong.
//!
//! One source address has at most half of all room: if it wants more, its own oldest STT frames
//! give way, so that what it sends (first segments alone, say) never takes the other half from
//! others. If there is none left for all sources together, the oldest of all give way. An STT frame
//! does not give way to its own next segment.

use super::Segment;
use crate::fragment::Refusal;
use crate::frame::{Frame, Offload};
use crate::keyed::Keyed;
use crate::tunnel::Addresses;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Limits on what waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// STT frames at a time; another one displaces the oldest.
    pub frames: usize,
    /// STT frames from one source address; another one displaces its oldest.
    pub frames_of_one: usize,
    /// Bytes of memory for segments of all STT frames; to make room for more, the oldest other ones
    /// are dropped. At most twice as much memory is taken as bytes have come.
    pub bytes: usize,
    /// Bytes of memory for segments from one source address; to make room for more, its oldest
    /// other STT frames are dropped.
    pub bytes_of_one: usize,
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
            bytes_of_one: 4 << 20,
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
    /// It completed its STT frame: the segment that is all of it, the frame that this is in, and
    /// the number of segments that it came in.
    Whole(Segment, F, u64),
    /// It was refused, mostly with the segments of its STT frame that were held; the number lost.
    Refused(Refusal, u64),
    /// Nobody wants STT frames from its source to its destination.
    Unwanted,
}

/// Segments of other STT frames that were dropped to make room for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Displaced {
    /// From the same source, which would have had more than one may have.
    pub own: u64,
    /// The oldest, because all together had as much as they may have.
    pub oldest: u64,
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
    /// Its number, in the order in which they began.
    serial: u64,
    /// When it expires, in milliseconds.
    until_ms: u64,
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
    fn new(first: &Segment, serial: u64, until_ms: u64) -> Partial {
        Partial {
            first: *first,
            bytes: Vec::new(),
            room: 0,
            pieces: SmallVec::new(),
            runs: 0,
            count: 0,
            serial,
            until_ms,
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

/// What waits of one source.
#[derive(Debug, Default)]
struct Held {
    /// Serials of its STT frames, the oldest first.
    serials: SmallVec<[u64; 4]>,
    /// Memory for their bytes.
    bytes: usize,
}

/// A worker's STT frames that wait for the rest of their segments. Segments are copied, so that
/// they do not keep a device's buffers.
#[derive(Debug)]
pub struct Reassembly {
    limits: Limits,
    frames: HashMap<Key, Partial, Keyed>,
    /// All of them by serial: the first is the oldest, and expires first.
    order: BTreeMap<u64, Key>,
    /// What waits of each source; nothing of a source of which none waits.
    sources: HashMap<IpAddr, Held, Keyed>,
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
            order: BTreeMap::new(),
            sources: HashMap::default(),
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
    /// these addresses. Returns what became of it, and the segments of other STT frames that were
    /// dropped to make room.
    pub fn add<F: Frame>(
        &mut self,
        segment: &Segment,
        frame: &F,
        now_ms: u64,
        is_wanted: impl FnOnce(&Addresses) -> bool,
    ) -> (Outcome<F>, Displaced) {
        let mut lost = Displaced::default();
        let Some(addresses) = segment.info.addresses else {
            return (Outcome::Refused(Refusal::Bad, 1), lost);
        };
        let key = Key {
            addresses,
            ports: segment.ports,
            id: segment.id,
        };
        if !self.frames.contains_key(&key) {
            if !is_wanted(&addresses) {
                return (Outcome::Unwanted, lost);
            }
            if !self.make_place(key.source(), &mut lost) {
                return (Outcome::Refused(Refusal::Full, 1), lost);
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
        lost: &mut Displaced,
    ) -> Result<Outcome<F>, Refusal> {
        let most_runs = self.limits.runs_of_one;
        let partial = self.frames.get(key).ok_or(Refusal::Full)?;
        let place = partial.place(segment, most_runs)?;
        let room = partial.room_for(segment.length());
        let more = room - partial.room;
        if room > self.limits.bytes.min(self.limits.bytes_of_one) {
            return Err(Refusal::Full);
        }
        if more > 0 {
            self.make_room(more, partial.serial, key.source(), lost);
        }
        let partial = self.frames.get_mut(key).ok_or(Refusal::Full)?;
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
        let count = self.forget(key) + 1;
        Ok(Outcome::Whole(all, whole, count))
    }

    /// Drops STT frames whose time is over; returns the number of segments lost.
    pub fn expire(&mut self, now_ms: u64) -> u64 {
        let mut lost = 0;
        while let Some(key) = self.order.first_key_value().map(|(_, key)| *key) {
            if (self.frames.get(&key)).is_some_and(|partial| partial.until_ms > now_ms) {
                break;
            }
            lost += self.forget(&key);
        }
        lost
    }

    /// Drops all; returns the number of segments lost.
    pub fn clear(&mut self) -> u64 {
        self.order.clear();
        self.sources.clear();
        self.bytes = 0;
        self.frames.drain().map(|(_, partial)| partial.count).sum()
    }

    /// Makes place for one more STT frame of a source; false if there can be none. Adds to `lost`
    /// what gave way.
    fn make_place(&mut self, source: IpAddr, lost: &mut Displaced) -> bool {
        let Limits {
            frames,
            frames_of_one,
            ..
        } = self.limits;
        if frames == 0 || frames_of_one == 0 {
            return false;
        }
        let own = self.sources.get(&source);
        if let Some(own) = own.filter(|own| own.serials.len() >= frames_of_one) {
            lost.own += self.forget_serial(own.serials[0]);
        }
        if self.frames.len() >= frames
            && let Some((&oldest, _)) = self.order.first_key_value()
        {
            lost.oldest += self.forget_serial(oldest);
        }
        true
    }

    /// Takes so many bytes more of memory for an STT frame that is there, of this source, and that
    /// could have them if it were alone. Adds to `lost` what gave way.
    fn make_room(&mut self, more: usize, serial: u64, source: IpAddr, lost: &mut Displaced) {
        while let Some(own) = self.sources.get(&source)
            && own.bytes + more > self.limits.bytes_of_one
            && let Some(&oldest) = own.serials.iter().find(|other| **other != serial)
        {
            lost.own += self.forget_serial(oldest);
        }
        while self.bytes + more > self.limits.bytes
            && let Some(&oldest) = self.order.keys().find(|other| **other != serial)
        {
            lost.oldest += self.forget_serial(oldest);
        }
        self.bytes += more;
        if let Some(own) = self.sources.get_mut(&source) {
            own.bytes += more;
        }
    }

    fn begin(&mut self, key: Key, segment: &Segment, now_ms: u64) {
        self.serial += 1;
        let until_ms = now_ms + self.limits.wait_ms;
        let partial = Partial::new(segment, self.serial, until_ms);
        self.frames.insert(key, partial);
        self.order.insert(self.serial, key);
        let own = self.sources.entry(key.source()).or_default();
        own.serials.push(self.serial);
    }

    fn forget_serial(&mut self, serial: u64) -> u64 {
        match self.order.get(&serial).copied() {
            Some(key) => self.forget(&key),
            None => 0,
        }
    }

    /// Drops an STT frame; returns how many segments of it waited.
    fn forget(&mut self, key: &Key) -> u64 {
        let Some(gone) = self.frames.remove(key) else {
            return 0;
        };
        self.order.remove(&gone.serial);
        self.bytes -= gone.room;
        let source = key.source();
        if let Some(own) = self.sources.get_mut(&source) {
            own.bytes -= gone.room;
            own.serials.retain(|serial| *serial != gone.serial);
            if own.serials.is_empty() {
                self.sources.remove(&source);
            }
        }
        gone.count
    }

    /// Returns the bytes that have come, and those of the memory that is taken for them.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> (usize, usize) {
        let all = || self.frames.values();
        let room: usize = all().map(|partial| partial.room).sum();
        let of_sources: usize = self.sources.values().map(|own| own.bytes).sum();
        assert_eq!((self.bytes, of_sources), (room, room));
        let held = self.sources.values().map(|own| own.serials.len());
        assert_eq!((self.order.len(), held.sum()), (all().len(), all().len()));
        (
            all().map(|partial| partial.bytes.len()).sum(),
            all().map(|partial| partial.bytes.capacity()).sum(),
        )
    }
}

impl Key {
    fn source(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { src, .. } => IpAddr::V4(src.into()),
            Addresses::V6 { src, .. } => IpAddr::V6(src.into()),
        }
    }
}

/// ECN: congestion experienced.
const ECN_CE: u8 = 3;
