//! A trie's nodes: their layout in memory, and how one writer changes them while others read.
//!
//! Memory is a sequence of cache lines of 16 words. A slot is a word; a node is named by the number
//! of its first line. The root is the first 65,536 words. A node has one of four sizes, chosen by
//! how often the value of its slots changes from one to the next:
//!
//! * Up to 13 runs lie in one line: 12 bytes with the last slot before each run but the first, and
//!   then the runs' values.
//! * Up to 23 or 55 runs lie in two or four lines: a bit for each slot at which a run begins (words
//!   0 to 7), the number of runs that begin before each 64 slots (word 8, a byte each), and the
//!   values.
//! * More runs take an array of 16 lines.
//!
//! Where runs begin never changes while others may read it: a node with other runs is written
//! elsewhere, and replaces the old one by one store to the slot that names it. Values change by
//! single stores.

use crate::classifier::trie::ELSEWHERE;
use crate::epoch::Domain;
use crate::growing::{Cell, Growing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words in a line.
const LINE_WORDS: usize = 16;
/// Lines of the root.
const ROOT: usize = (1 << 16) / LINE_WORDS;
/// Most lines: half a gigabyte.
const LINES_MAX: usize = 1 << 23;
/// Words before the values of a node of one line; for more lines `HEAD`.
pub(crate) const SMALL_HEAD: usize = 3;
pub(crate) const HEAD: usize = 9;
/// Unused byte of a row in a node of one line: no further run begins.
pub(crate) const NO_RUN: u8 = 0xff;
/// Most runs of a node of one line.
const SMALL: usize = LINE_WORDS - SMALL_HEAD;
/// Slots of a node.
const SLOTS: usize = 256;
/// Lines of a node by size; the last are arrays.
const SIZES: [usize; 4] = [1, 2, 4, SLOTS / LINE_WORDS];
const WIDE_SIZE: usize = 3;
/// An array with at most this many runs is converted back to runs.
const RUNS_AGAIN: usize = 40;
/// More runs than a node of runs can have after one more prefix, which adds two.
const RUNS_MAX: usize = 64;
const _: () = assert!(SIZES[2] * LINE_WORDS - HEAD + 2 <= RUNS_MAX && RUNS_AGAIN < RUNS_MAX);

const NODE: u32 = 1 << 31;
/// Position of a node's size in its entry.
const SIZE_SHIFT: u32 = 29;
pub(crate) const SIZE: u32 = 3 << SIZE_SHIFT;
/// Shift from a line's number to that of its first word.
pub(crate) const LINE_SHIFT: u32 = LINE_WORDS.trailing_zeros();
const _: () = assert!(LINES_MAX <= 1 << SIZE_SHIFT);

/// The contents of a slot: the number of a place, or a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry(pub u32);

impl Entry {
    fn node(line: usize, size: usize) -> Entry {
        Entry(NODE | (size as u32) << SIZE_SHIFT | line as u32)
    }

    #[inline(always)]
    pub fn is_node(self) -> bool {
        self.0 & NODE != 0
    }

    /// Returns whether a node is an array.
    #[inline(always)]
    pub fn is_wide(self) -> bool {
        self.0 & SIZE == SIZE
    }

    /// Returns whether a node has one line.
    #[inline(always)]
    pub fn is_small(self) -> bool {
        self.0 & SIZE == 0
    }

    fn size(self) -> usize {
        (self.0 >> SIZE_SHIFT & 3) as usize
    }

    #[inline(always)]
    fn line(self) -> u32 {
        self.0 & !(NODE | SIZE)
    }

    /// Returns a node's first word.
    #[inline(always)]
    pub fn first(self) -> Slot {
        Slot(self.line() << LINE_SHIFT)
    }
}

/// The number of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub u32);

/// A cache line. Code that reads several words at once treats contiguous lines as contiguous words.
#[repr(C, align(64))]
struct Line([AtomicU32; LINE_WORDS]);
const _: () = assert!(size_of::<Line>() == size_of::<u32>() * LINE_WORDS);

// SAFETY: zero is a valid value of each word.
unsafe impl Cell for Line {
    fn copy(&self, from: &Self) {
        for (to, from) in self.0.iter().zip(&from.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// The memory of a trie.
pub(crate) struct Lines(Growing<Line>);

impl Lines {
    #[inline(always)]
    pub fn view(&self) -> LinesView<'_> {
        LinesView(self.0.view())
    }

    fn load(&self, slot: Slot) -> Entry {
        self.view().load(slot)
    }

    /// Returns the slot of a node for a byte.
    fn slot_of(&self, node: Entry, byte: u32) -> Slot {
        self.view().slot_of(node, byte)
    }

    fn store(&self, slot: Slot, entry: Entry) {
        if let Some(word) = self.view().word(slot) {
            word.store(entry.0, Ordering::Release);
        }
    }
}

/// The memory of a trie, as readers see it.
#[derive(Clone, Copy)]
pub(crate) struct LinesView<'a>(&'a [Line]);

impl<'a> LinesView<'a> {
    #[inline(always)]
    fn line(self, slot: Slot) -> Option<&'a Line> {
        self.0.get(slot.0 as usize / LINE_WORDS)
    }

    #[inline(always)]
    pub fn word(self, slot: Slot) -> Option<&'a AtomicU32> {
        Some(&self.line(slot)?.0[slot.0 as usize % LINE_WORDS])
    }

    /// Returns all words.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn words(self) -> *const [u32] {
        std::ptr::slice_from_raw_parts(self.0.as_ptr().cast(), self.0.len() * LINE_WORDS)
    }

    /// Returns the address of a slot, for prefetching.
    #[inline(always)]
    pub fn address(self, slot: Slot) -> *const u32 {
        self.0.as_ptr().cast::<u32>().wrapping_add(slot.0 as usize)
    }

    #[inline(always)]
    pub fn load(self, slot: Slot) -> Entry {
        Entry(
            self.word(slot)
                .map_or(0, |word| word.load(Ordering::Acquire)),
        )
    }

    /// Returns the word of a node that is read first for a byte: the slot itself in an array.
    #[inline(always)]
    pub fn way_to(self, node: Entry, byte: u32) -> Slot {
        Slot(node.first().0 + if node.is_wide() { byte } else { 0 })
    }

    /// Returns the slot of a node for a byte. Reads only the line of [`LinesView::way_to`], which
    /// also contains the slot, unless the node has runs in more than one line.
    #[inline(always)]
    pub fn slot_of(self, node: Entry, byte: u32) -> Slot {
        let first = node.first();
        if node.is_wide() {
            return Slot(first.0 + byte);
        }
        let Some(line) = self.line(first) else {
            return first;
        };
        Slot(
            first.0
                + if node.is_small() {
                    small(line, byte)
                } else {
                    ranked(line, byte)
                },
        )
    }
}

/// Returns the index of the word with the value of a byte's run, in a node of one line.
#[inline(always)]
fn small(line: &Line, byte: u32) -> u32 {
    let begins: [u32; SMALL_HEAD] =
        std::array::from_fn(|word| line.0[word].load(Ordering::Relaxed));
    SMALL_HEAD as u32 + below(begins, byte)
}

/// Returns how many bytes of an ascending row are below another one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn below(row: [u32; SMALL_HEAD], byte: u32) -> u32 {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_max_epu8, _mm_movemask_epi8, _mm_set_epi32, _mm_set1_epi32,
    };
    // SAFETY: SSE2 is part of x86-64.
    let reached = unsafe {
        let row: __m128i = _mm_set_epi32(-1, row[2] as i32, row[1] as i32, row[0] as i32);
        let byte = _mm_set1_epi32((byte * 0x0101_0101) as i32);
        _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(row, byte), row)) as u32
    };
    (reached | 1 << (4 * SMALL_HEAD)).trailing_zeros()
}

#[cfg(not(target_arch = "x86_64"))]
use below_plain as below;

#[cfg(any(test, not(target_arch = "x86_64")))]
fn below_plain(row: [u32; SMALL_HEAD], byte: u32) -> u32 {
    let bytes = row.iter().flat_map(|word| word.to_le_bytes());
    bytes.filter(|other| u32::from(*other) < byte).count() as u32
}

/// Returns the index of the word with the value of a byte's run, in a node of two or four lines.
#[inline(always)]
fn ranked(line: &Line, byte: u32) -> u32 {
    let word = byte as usize / 64 % 4;
    let half = |index: usize| u64::from(line.0[index].load(Ordering::Relaxed));
    let bits = half(2 * word) | half(2 * word + 1) << 32;
    let before = line.0[8].load(Ordering::Relaxed) >> (8 * word) & 0xff;
    let within = (bits << (63 - byte % 64)).count_ones();
    HEAD as u32 + ((before + within).wrapping_sub(1) & (SLOTS as u32 - 1))
}

/// The first bits of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prefix {
    /// The bytes of the address; zeros behind the prefix.
    pub bytes: [u8; 16],
    /// Number of bits.
    pub length: u8,
}

impl Prefix {
    /// Returns the first and last of the slots that belong to it, in a node behind `depth` bits.
    fn slots(&self, depth: usize) -> (u32, u32) {
        let first = u32::from(self.bytes[depth / 8]);
        let open = 8 - usize::from(self.length).saturating_sub(depth).min(8);
        (first, first + ((1 << open) - 1))
    }

    /// Returns the first and last slot of the root that belong to it.
    fn roots(&self) -> (u32, u32) {
        let first = u32::from(self.bytes[0]) << 8 | u32::from(self.bytes[1]);
        let open = 16 - usize::from(self.length).min(16);
        (first, first + ((1 << open) - 1))
    }
}

/// A node's runs: where they begin, and their values.
struct Runs {
    count: usize,
    starts: [u8; RUNS_MAX],
    values: [Entry; RUNS_MAX],
}

impl Runs {
    /// Reads the runs of a node of runs.
    fn of(lines: &Lines, node: Entry) -> Runs {
        let mut runs = Runs::none();
        let first = node.first().0;
        let word = |index: usize| lines.load(Slot(first + index as u32)).0;
        let mut add = |start: u32, head: usize| {
            runs.starts[runs.count] = start as u8;
            runs.values[runs.count] = Entry(word(head + runs.count));
            runs.count += 1;
        };
        if node.is_small() {
            add(0, SMALL_HEAD);
            let bytes = (0..SMALL_HEAD).flat_map(|index| word(index).to_le_bytes());
            for before in bytes.take_while(|before| *before != NO_RUN) {
                add(u32::from(before) + 1, SMALL_HEAD);
            }
            return runs;
        }
        for index in 0..8 {
            let mut bits = word(index);
            while bits != 0 {
                add(index as u32 * 32 + bits.trailing_zeros(), HEAD);
                bits &= bits - 1;
            }
        }
        runs
    }

    fn starts(&self) -> &[u8] {
        &self.starts[..self.count]
    }

    /// Returns the first and the last slot of a run.
    fn reach(&self, run: usize) -> (u32, u32) {
        let next = self.starts().get(run + 1);
        let end = next.map_or(SLOTS as u32, |next| u32::from(*next));
        (u32::from(self.starts[run]), end - 1)
    }

    fn none() -> Runs {
        Runs {
            count: 0,
            starts: [0; RUNS_MAX],
            values: [Entry(0); RUNS_MAX],
        }
    }

    /// Appends a run, or extends the last one if it has the same value.
    fn push(&mut self, start: u32, value: Entry) {
        if self.count > 0 && self.values[self.count - 1] == value {
            return;
        }
        self.starts[self.count] = start as u8;
        self.values[self.count] = value;
        self.count += 1;
    }

    /// Returns the smallest size that the runs fit.
    fn size(&self) -> usize {
        if self.count <= SMALL {
            return 0;
        }
        let words = HEAD + self.count;
        let fits = |lines: &usize| words <= lines * LINE_WORDS;
        SIZES[..WIDE_SIZE]
            .iter()
            .position(fits)
            .unwrap_or(WIDE_SIZE)
    }
}

/// The writer's state: changes nodes and keeps the list of free lines.
pub(crate) struct Nodes {
    domain: Arc<Domain>,
    /// The first line that has never been used.
    next: usize,
    /// Free lines at which nodes of each size may begin.
    free: [Vec<u32>; SIZES.len()],
    /// Nodes that are unlinked but that readers may still be in.
    pub left: Vec<Entry>,
    /// Number of nodes of each size.
    pub counts: [usize; SIZES.len()],
}

impl Nodes {
    /// Creates a trie of the root alone.
    pub fn new(domain: &Arc<Domain>) -> (Nodes, Lines) {
        let nodes = Nodes {
            domain: Arc::clone(domain),
            next: ROOT,
            free: Default::default(),
            left: Vec::new(),
            counts: [0; SIZES.len()],
        };
        (nodes, Lines(Growing::new(2 * ROOT)))
    }

    /// Returns the memory of the root and of nodes in use, in bytes.
    pub fn bytes_used(&self) -> usize {
        let nodes = self.counts.iter().zip(SIZES);
        let lines: usize = nodes.map(|(count, lines)| count * lines).sum();
        (ROOT + lines) * size_of::<Line>()
    }

    /// Returns the memory of the root and of nodes, including free ones, in bytes.
    pub fn bytes(&self) -> usize {
        self.next * size_of::<Line>()
    }

    /// Frees the lines of a node that no reader can be in.
    pub fn reuse(&mut self, node: Entry) {
        self.free[node.size()].push(node.line());
    }

    fn allocate(&mut self, lines: &Lines, size: usize) -> Option<usize> {
        if self.free[size].is_empty() {
            let whole = SIZES[WIDE_SIZE];
            let first = match self.free[WIDE_SIZE].pop() {
                Some(first) => first as usize,
                None if self.next + whole > LINES_MAX => return None,
                None => {
                    self.next += whole;
                    lines.0.ensure(&self.domain, self.next - 1);
                    self.next - whole
                }
            };
            let parts = (first..first + whole).step_by(SIZES[size]);
            self.free[size].extend(parts.rev().map(|line| line as u32));
        }
        self.free[size].pop().map(|line| line as usize)
    }

    /// Creates a node of these runs. Without memory for one, returns the entry that sends packets
    /// to tuples.
    fn make(&mut self, lines: &Lines, runs: &Runs) -> Entry {
        let size = runs.size();
        let Some(line) = self.allocate(lines, size) else {
            return Entry(ELSEWHERE);
        };
        self.counts[size] += 1;
        let node = Entry::node(line, size);
        let first = node.first().0;
        let put = |index: usize, value: u32| {
            if let Some(word) = lines.view().word(Slot(first + index as u32)) {
                word.store(value, Ordering::Relaxed);
            }
        };
        if size == WIDE_SIZE {
            for run in 0..runs.count {
                let (start, end) = runs.reach(run);
                (start..=end).for_each(|index| put(index as usize, runs.values[run].0));
            }
            return node;
        }
        if size == 0 {
            let mut row = [NO_RUN; 4 * SMALL_HEAD];
            for (row, start) in row.iter_mut().zip(&runs.starts()[1..]) {
                *row = start - 1;
            }
            for (index, bytes) in row.chunks_exact(4).enumerate() {
                put(
                    index,
                    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                );
            }
            for (run, value) in runs.values[..runs.count].iter().enumerate() {
                put(SMALL_HEAD + run, value.0);
            }
            return node;
        }
        let mut bits = [0_u32; 8];
        for run in 0..runs.count {
            let start = usize::from(runs.starts[run]);
            bits[start / 32] |= 1 << (start % 32);
            put(HEAD + run, runs.values[run].0);
        }
        let (mut before, mut sum) = (0, 0);
        for (index, bits) in bits.iter().enumerate() {
            put(index, *bits);
            if index % 2 == 0 {
                before |= sum << (4 * index);
            }
            sum += bits.count_ones();
        }
        put(8, before);
        node
    }

    /// Unlinks a node that no slot names any more.
    fn leave(&mut self, node: Entry) {
        self.counts[node.size()] -= 1;
        self.left.push(node);
    }

    /// Returns the new entry of a slot behind `depth` bits that has held `old`, when packets of the
    /// prefix are to get `new`.
    fn grown(
        &mut self,
        lines: &Lines,
        new: u32,
        old: Entry,
        depth: usize,
        prefix: &Prefix,
    ) -> Entry {
        if usize::from(prefix.length) <= depth {
            return Entry(new);
        }
        let (first, last) = prefix.slots(depth);
        let inner = self.grown(lines, new, old, depth + 8, prefix);
        let mut runs = Runs::none();
        if first > 0 {
            runs.push(0, old);
        }
        runs.push(first, inner);
        if last + 1 < SLOTS as u32 {
            runs.push(last + 1, old);
        }
        self.make(lines, &runs)
    }

    /// Replaces each place that packets of the prefix are led to by what `with` returns for it.
    pub fn change(&mut self, lines: &Lines, prefix: &Prefix, with: &mut impl FnMut(u32) -> u32) {
        let (first, last) = prefix.roots();
        for slot in first..=last {
            self.change_slot(lines, Slot(slot), 16, prefix, with);
        }
    }

    fn change_slot(
        &mut self,
        lines: &Lines,
        slot: Slot,
        depth: usize,
        prefix: &Prefix,
        with: &mut impl FnMut(u32) -> u32,
    ) {
        let entry = lines.load(slot);
        if !entry.is_node() {
            let new = with(entry.0);
            if new != entry.0 {
                let grown = self.grown(lines, new, entry, depth, prefix);
                lines.store(slot, grown);
            }
            return;
        }
        let (first, last) = prefix.slots(depth);
        if entry.is_wide() {
            // Call `with` once for neighbours that hold the same.
            let mut asked = None;
            for byte in first..=last {
                let inner = Slot(entry.first().0 + byte);
                let value = lines.load(inner);
                if value.is_node() || usize::from(prefix.length) > depth + 8 {
                    self.change_slot(lines, inner, depth + 8, prefix, with);
                    continue;
                }
                let new = match asked {
                    Some((old, new)) if old == value => new,
                    _ => Entry(with(value.0)),
                };
                asked = Some((value, new));
                if new != value {
                    lines.store(inner, new);
                }
            }
            return;
        }
        if first == last {
            let inner = lines.slot_of(entry, first);
            if lines.load(inner).is_node() {
                self.change_slot(lines, inner, depth + 8, prefix, with);
                if lines.load(inner).is_node() {
                    return;
                }
            }
        }
        let old = Runs::of(lines, entry);
        let mut runs = Runs::none();
        for run in 0..old.count {
            let (start, end) = old.reach(run);
            let value = old.values[run];
            if end < first || start > last {
                runs.push(start, value);
                continue;
            }
            if value.is_node() {
                let inner = lines.slot_of(entry, start);
                self.change_slot(lines, inner, depth + 8, prefix, with);
                runs.push(start, lines.load(inner));
                continue;
            }
            let new = with(value.0);
            if new == value.0 {
                runs.push(start, value);
                continue;
            }
            if start < first {
                runs.push(start, value);
            }
            let grown = self.grown(lines, new, value, depth + 8, prefix);
            runs.push(start.max(first), grown);
            if end > last {
                runs.push(last + 1, value);
            }
        }
        if runs.starts() == old.starts() && runs.count > 1 {
            for (run, value) in runs.values[..runs.count].iter().enumerate() {
                if *value != old.values[run] {
                    let slot = lines.slot_of(entry, u32::from(runs.starts[run]));
                    lines.store(slot, *value);
                }
            }
            return;
        }
        self.replace(lines, slot, entry, &runs);
    }

    /// Replaces a node by one with these runs, or by an equivalent entry.
    fn replace(&mut self, lines: &Lines, slot: Slot, old: Entry, runs: &Runs) {
        let new = match runs.values[0] {
            only if runs.count == 1 && !only.is_node() => only,
            _ => self.make(lines, runs),
        };
        lines.store(slot, new);
        self.leave(old);
    }

    /// Converts arrays on the path to a prefix that have few runs left back to runs.
    pub fn shrink(&mut self, lines: &Lines, prefix: &Prefix) {
        let (first, last) = prefix.roots();
        if first == last {
            self.shrink_slot(lines, Slot(first), 16, prefix);
        }
    }

    fn shrink_slot(&mut self, lines: &Lines, slot: Slot, depth: usize, prefix: &Prefix) {
        let entry = lines.load(slot);
        if !entry.is_node() {
            return;
        }
        let (first, last) = prefix.slots(depth);
        if first == last && depth / 8 + 1 < prefix.bytes.len() {
            self.shrink_slot(lines, lines.slot_of(entry, first), depth + 8, prefix);
        }
        if entry.is_wide() {
            let mut runs = Runs::none();
            for byte in 0..SLOTS as u32 {
                runs.push(byte, lines.load(Slot(entry.first().0 + byte)));
                if runs.count > RUNS_AGAIN {
                    return;
                }
            }
            self.replace(lines, slot, entry, &runs);
        }
    }
}

/// Calls `with` for each place that packets of the prefix are led to, for some several times.
pub(crate) fn visit(lines: &Lines, prefix: &Prefix, with: &mut impl FnMut(u32)) {
    let (first, last) = prefix.roots();
    for slot in first..=last {
        visit_slot(lines, Slot(slot), 16, prefix, with);
    }
}

fn visit_slot(
    lines: &Lines,
    slot: Slot,
    depth: usize,
    prefix: &Prefix,
    with: &mut impl FnMut(u32),
) {
    let entry = lines.load(slot);
    if !entry.is_node() {
        return with(entry.0);
    }
    let (first, last) = prefix.slots(depth);
    if first == last || entry.is_wide() {
        let mut seen = None;
        for byte in first..=last {
            let inner = lines.slot_of(entry, byte);
            let value = lines.load(inner);
            if seen != Some(value) {
                visit_slot(lines, inner, depth + 8, prefix, with);
            }
            seen = Some(value);
        }
        return;
    }
    let runs = Runs::of(lines, entry);
    for run in 0..runs.count {
        let (start, end) = runs.reach(run);
        if end >= first && start <= last {
            visit_slot(lines, lines.slot_of(entry, start), depth + 8, prefix, with);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_below_another_are_counted() {
        for used in 0..=4 * SMALL_HEAD {
            let mut bytes = [NO_RUN; 4 * SMALL_HEAD];
            for (index, byte) in bytes[..used].iter_mut().enumerate() {
                *byte = (index * 23 % 254).max(index) as u8;
            }
            bytes.sort_unstable();
            let word =
                |index: usize| u32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap());
            let row = std::array::from_fn(word);
            for byte in 0..256 {
                assert_eq!(
                    below(row, byte),
                    below_plain(row, byte),
                    "{bytes:?}, {byte}"
                );
            }
        }
    }
}
