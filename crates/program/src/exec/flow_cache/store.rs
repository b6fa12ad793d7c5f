//! Memory of a flow cache: packets' bits, and the paths they lead to.
//!
//! Bits are kept in sets of eight, each in a cache line with the number of its path; a word of
//! eight tags says which line of a set to look at, if any. Memory for lines is allocated as needed,
//! a chunk at a time, so that starting causes no pause. A full set replaces its lines in turn.
//!
//! A path has a serial number, which changes when the path's memory is reused or the path no longer
//! holds; lines with an old serial number are invalid. Where paths run out, one that has nothing to
//! flush is reused, in turn.

use crate::actions::{Op, PortNo};
use crate::counters::WorkerCounters;
use crate::epoch::Epoch;
use crate::exec::flow_cache::record::CachedPath;
use crate::exec::interpreter::Burst;
use crate::host::DropReason;
use crate::optimizer::unwildcarded::{MiniKeyBits, Unwildcarded};
use packet::mini_key::MiniKey;
use packet::parse::MINI_KEY_WORDS;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// Lines in a set.
const WAYS: usize = 8;
/// Sets in a chunk of memory.
const CHUNK: usize = 64;
/// Fewest lines of a store.
const FEWEST: usize = CHUNK * WAYS;

/// Stands for "not stored".
pub(crate) const NO_PATH: u32 = u32::MAX;
/// Stands for the path of a packet that must be walked, whatever is stored.
pub(crate) const WALKED: u32 = u32::MAX - 1;

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CachedVerdict {
    /// It leaves by a port, unchanged.
    Port(PortNo),
    /// It is dropped.
    Lost(DropReason),
    /// Steps are run.
    Steps,
    /// It must be walked.
    Walk,
}

/// The bits of one flow.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    words: MiniKeyBits,
    way: u32,
    serial: u32,
}

const EMPTY: Line = Line {
    words: [0; MINI_KEY_WORDS],
    way: NO_PATH,
    serial: 0,
};

type Chunk = [Line; CHUNK * WAYS];

/// A stored path.
struct Kept {
    serial: u32,
    /// Whether it is in the queue of paths to flush.
    noted: bool,
    verdict: CachedVerdict,
    /// The last epoch in which it is known to hold.
    checked: Epoch,
    packets: u64,
    bytes: u64,
    used_ms: u64,
    /// The epoch in which it was queued.
    since: Epoch,
    way: Box<CachedPath>,
}

/// The store of one worker and bridge.
pub(crate) struct Store {
    tags: Box<[u64]>,
    chunks: Box<[Option<Box<Chunk>>]>,
    lines: usize,
    /// Index of the line that is replaced next in a full set.
    turn: usize,
    ways: Vec<Kept>,
    most_ways: usize,
    /// Index of the path that is tried next when one is to be reused.
    hand: usize,
    known: HashMap<u64, u32>,
    hasher: RandomState,
    to_pay: VecDeque<u32>,
    seeds: MiniKeyBits,
}

#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetches a valid reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(std::ptr::from_ref(place).cast(), _MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Returns a hash's tag in each byte of a word; never zero, which stands for an empty line.
#[inline(always)]
fn tags_of(hash: u64) -> u64 {
    (hash >> 56).max(1) * 0x0101_0101_0101_0101
}

/// Returns the highest bit of each byte of a word that is zero. Also, perhaps, of bytes above such
/// a byte: callers compare all bits anyway.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
}

/// Compares without a call to the library's memcmp.
#[inline(always)]
fn same_words(a: &MiniKeyBits, b: &MiniKeyBits) -> bool {
    let both = a.iter().zip(b);
    both.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn masked(words: &MiniKeyBits, bits: &MiniKeyBits) -> MiniKeyBits {
    std::array::from_fn(|index| words[index] & bits[index])
}

impl Store {
    /// Creates an empty store of at least this many lines.
    pub fn new(lines: usize) -> Store {
        let lines = Store::lines_for(lines);
        let hasher = RandomState::new();
        Store {
            tags: vec![0; lines / WAYS].into(),
            chunks: (0..lines / FEWEST).map(|_| None).collect(),
            lines: 0,
            turn: 0,
            ways: Vec::with_capacity(lines / 2),
            most_ways: lines / 2,
            hand: 0,
            known: HashMap::with_capacity(lines / 2),
            to_pay: VecDeque::with_capacity(lines / 2),
            seeds: std::array::from_fn(|index| hasher.hash_one(index) | 1),
            hasher,
        }
    }

    fn lines_for(wanted: usize) -> usize {
        wanted.next_power_of_two().max(FEWEST)
    }

    /// Returns whether it was created for this many lines.
    #[inline(always)]
    pub fn is_of(&self, lines: usize) -> bool {
        self.tags.len() * WAYS == Store::lines_for(lines)
    }

    /// Returns the numbers of lines and paths in use.
    pub fn size(&self) -> (usize, usize) {
        (self.lines, self.known.len())
    }

    /// Forgets all paths. Deferred counters stay.
    pub fn forget(&mut self) {
        self.tags.fill(0);
        self.lines = 0;
        self.known.clear();
        self.ways.iter_mut().for_each(Kept::end);
    }

    #[inline(always)]
    fn hash(&self, words: &MiniKeyBits) -> u64 {
        let seeds = &self.seeds;
        let [a, b, c, d, e] = *words;
        let ab = folded(a ^ seeds[0], b ^ seeds[1]);
        let cd = folded(c ^ seeds[2], d ^ seeds[3]);
        folded(ab ^ cd ^ e, seeds[4])
    }

    #[inline(always)]
    fn line(&self, set: usize, place: usize) -> &Line {
        match &self.chunks[set / CHUNK] {
            Some(chunk) => &chunk[set % CHUNK * WAYS + place],
            None => &EMPTY,
        }
    }

    /// Looks packets up; a path that was found may no longer hold ([`Store::holds`]).
    #[inline(always)]
    pub fn find(&self, packets: &[MiniKey], bits: &MiniKeyBits, found: &mut [u32]) {
        let mut hashes = [0; crate::burst::LOOKUP_MAX];
        let last = self.tags.len() - 1;
        for (packet, hash) in packets.iter().zip(&mut hashes) {
            *hash = self.hash(&masked(&packet.words, bits));
            prefetch(&self.tags[*hash as usize & last]);
        }
        for hash in &hashes[..packets.len()] {
            let set = *hash as usize & last;
            let same = zero_bytes(self.tags[set] ^ tags_of(*hash));
            if same != 0 {
                prefetch(self.line(set, same.trailing_zeros() as usize / 8));
            }
        }
        for ((packet, hash), found) in packets.iter().zip(&hashes).zip(&mut *found) {
            let set = *hash as usize & last;
            let words = masked(&packet.words, bits);
            *found = self.find_in(set, *hash, &words).unwrap_or(NO_PATH);
            if let Some(way) = self.ways.get(*found as usize) {
                prefetch(way);
            }
        }
    }

    #[inline(always)]
    fn find_in(&self, set: usize, hash: u64, words: &MiniKeyBits) -> Option<u32> {
        let mut same = zero_bytes(self.tags[set] ^ tags_of(hash));
        while same != 0 {
            let line = self.line(set, same.trailing_zeros() as usize / 8);
            if same_words(&line.words, words) {
                // A path whose serial number has changed is rejected here. Later changes are found
                // by `holds`, to which paths are given by number; see there.
                return (self.ways[line.way as usize].serial == line.serial).then_some(line.way);
            }
            same &= same - 1;
        }
        None
    }

    /// Returns whether a path that was found still is its packets' path.
    #[inline(always)]
    pub fn holds(&mut self, way: u32, unwildcarded: &Unwildcarded, epoch: Epoch) -> bool {
        match self.ways.get_mut(way as usize) {
            None => false,
            Some(kept) if kept.checked == epoch => true,
            Some(kept) => kept.check(unwildcarded, epoch),
        }
    }

    /// Returns what becomes of a path's packets; packets without a path must be walked.
    #[inline(always)]
    pub fn verdict(&self, way: u32) -> CachedVerdict {
        self.ways
            .get(way as usize)
            .map_or(CachedVerdict::Walk, |kept| kept.verdict)
    }

    /// Returns the steps of a path.
    #[inline(always)]
    pub fn steps(&self, way: u32) -> &[Op] {
        &self.ways[way as usize].way.steps
    }

    /// Counts a packet of this length that has taken a path.
    #[inline(always)]
    pub fn note(&mut self, way: u32, length: u64, burst: &Burst<'_, '_>) {
        let kept = &mut self.ways[way as usize];
        kept.packets += 1;
        kept.bytes += length.wrapping_add_signed(burst.longer.into());
        kept.used_ms = burst.now_ms;
        if !kept.noted {
            kept.noted = true;
            kept.since = burst.guard.epoch();
            self.to_pay.push_back(way);
        }
    }

    /// Returns the oldest epoch with counts that are not flushed.
    pub fn deferred_since(&self) -> Option<Epoch> {
        let first = self.to_pay.front()?;
        Some(self.ways[*first as usize].since)
    }

    /// Flushes the counts of up to `limit` paths.
    pub fn flush_deferred(&mut self, limit: usize, counters: WorkerCounters<'_>) {
        for _ in 0..limit {
            let Some(way) = self.to_pay.pop_front() else {
                return;
            };
            self.ways[way as usize].flush_deferred(counters);
        }
    }

    /// Stores the path of a packet.
    pub fn remember(
        &mut self,
        packet: &MiniKey,
        bits: &MiniKeyBits,
        way: CachedPath,
        unwildcarded: &Unwildcarded,
        epoch: Epoch,
    ) {
        let Some(way) = self.keep(way, unwildcarded, epoch) else {
            return;
        };
        let words = masked(&packet.words, bits);
        let hash = self.hash(&words);
        let set = hash as usize & (self.tags.len() - 1);
        let place = self.place_for(set, hash, &words);
        let tag = tags_of(hash) & 0xff << (place * 8);
        if self.tags[set] >> (place * 8) & 0xff == 0 {
            self.lines += 1;
        }
        self.tags[set] = self.tags[set] & !(0xff << (place * 8)) | tag;
        let serial = self.ways[way as usize].serial;
        let chunk = self.chunks[set / CHUNK].get_or_insert_with(new_chunk);
        chunk[set % CHUNK * WAYS + place] = Line { words, way, serial };
    }

    /// Returns which line of a set takes these bits: the one that has them, an empty one, or the
    /// next in turn.
    fn place_for(&mut self, set: usize, hash: u64, words: &MiniKeyBits) -> usize {
        let tags = self.tags[set];
        let own = (0..WAYS).find(|place| {
            tags >> (place * 8) & 0xff == tags_of(hash) & 0xff
                && self.line(set, *place).words == *words
        });
        let empty = || (0..WAYS).find(|place| tags >> (place * 8) & 0xff == 0);
        own.or_else(empty).unwrap_or_else(|| {
            self.turn = self.turn.wrapping_add(1);
            self.turn % WAYS
        })
    }

    /// Stores a path, or finds it among those stored. None when no path's memory can be reused,
    /// because all have counts to flush.
    fn keep(&mut self, way: CachedPath, unwildcarded: &Unwildcarded, epoch: Epoch) -> Option<u32> {
        let content = self.hasher.hash_one(&way);
        if let Some(known) = self.known.get(&content).copied() {
            let kept = &mut self.ways[known as usize];
            if *kept.way == way {
                if !kept.check(unwildcarded, epoch) {
                    // Packets that took it before may now take another.
                    kept.serial = kept.serial.wrapping_add(1);
                    kept.checked = epoch;
                }
                return Some(known);
            }
        }
        let number = self.free_way()?;
        let kept = &mut self.ways[number as usize];
        kept.verdict = CachedVerdict::of(&way);
        kept.checked = epoch;
        *kept.way = way;
        self.known.insert(content, number);
        Some(number)
    }

    /// Frees a path's memory for reuse, with a serial number that no line has.
    fn free_way(&mut self) -> Option<u32> {
        if self.ways.len() < self.most_ways {
            self.ways.push(Kept::new());
            return Some(self.ways.len() as u32 - 1);
        }
        for _ in 0..16 {
            self.hand = (self.hand + 1) % self.most_ways;
            let kept = &mut self.ways[self.hand];
            if !kept.noted {
                kept.end();
                let content = self.hasher.hash_one(&*kept.way);
                if self.known.get(&content) == Some(&(self.hand as u32)) {
                    self.known.remove(&content);
                }
                return Some(self.hand as u32);
            }
        }
        None
    }
}

fn new_chunk() -> Box<Chunk> {
    let lines = vec![EMPTY; CHUNK * WAYS].into_boxed_slice();
    lines
        .try_into()
        .unwrap_or_else(|_| unreachable!("of that length"))
}

impl CachedVerdict {
    fn of(way: &CachedPath) -> CachedVerdict {
        match &*way.steps {
            _ if !way.pure => CachedVerdict::Walk,
            [] if way.missed => CachedVerdict::Lost(DropReason::TableMiss),
            [] => CachedVerdict::Lost(DropReason::Action),
            [Op::Output(port)] => CachedVerdict::Port(*port),
            _ => CachedVerdict::Steps,
        }
    }
}

impl Kept {
    fn new() -> Kept {
        Kept {
            serial: 0,
            noted: false,
            verdict: CachedVerdict::Walk,
            checked: 0,
            packets: 0,
            bytes: 0,
            used_ms: 0,
            since: 0,
            way: Box::default(),
        }
    }

    /// Changes the serial number, so that no line leads here.
    fn end(&mut self) {
        self.serial = self.serial.wrapping_add(1);
        self.checked = 0;
    }

    /// Returns whether it holds in an epoch later than the one in which that was last checked.
    #[inline(never)]
    fn check(&mut self, unwildcarded: &Unwildcarded, epoch: Epoch) -> bool {
        let holds = self.checked == epoch
            || self.checked != 0
                && self.checked < epoch
                && unwildcarded
                    .rules
                    .unchanged(&self.way.tables, self.checked, epoch);
        if holds {
            self.checked = epoch;
        }
        holds
    }

    fn flush_deferred(&mut self, counters: WorkerCounters<'_>) {
        let (packets, bytes) = (self.packets, self.bytes);
        for counter in &self.way.rules {
            counters.add_late(*counter, packets, bytes, self.used_ms);
        }
        for (counter, matched) in &self.way.lookups {
            let matched = if *matched { packets } else { 0 };
            counters.add(*counter, packets, matched, 0);
        }
        (self.packets, self.bytes, self.noted) = (0, 0, false);
    }
}
