//! The descent of a trie with AVX-512, for fields of four bytes: one gather reads the slots of
//! sixteen packets, and two such groups are interleaved.

use crate::actions::batch::{ActionBatch, STEP};
use crate::burst::LOOKUP_MAX;
use crate::burst::Words;
use crate::classifier::trie::nodes::{HEAD, LINE_SHIFT, LinesView, NO_RUN, SIZE, SMALL_HEAD};
use crate::classifier::trie::{NONE, NextHops};
use crate::counters::WorkerCounters;
use crate::rule::summary::{ASK, EDITS, MARKS};
use crate::vector::Quads;
use packet::matching::MatchWord;
use packet::mini_key::MiniKey;
use packet::parse::MINI_KEY_WORDS;
use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;

/// Packets in a register.
const LANES: usize = 16;
/// Groups of packets that are interleaved.
const GROUPS: usize = 2;
const _: () = assert!(LOOKUP_MAX.is_multiple_of(GROUPS * LANES));

/// A trie's words, of which one gather reads sixteen.
#[derive(Clone, Copy)]
struct TrieWords<'a> {
    first: *const u32,
    count: __m512i,
    lines: PhantomData<LinesView<'a>>,
}

impl<'a> TrieWords<'a> {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn of(lines: LinesView<'a>) -> TrieWords<'a> {
        let words = lines.words();
        TrieWords {
            first: words.cast(),
            count: _mm512_set1_epi32(words.len() as i32),
            lines: PhantomData,
        }
    }

    /// Returns the words of these numbers, each as an acquiring load would; `before` in lanes that
    /// are not `wanted`, and zero where there is no such word. Acquire order is needed: a node is
    /// read after the slot that names it, and a node's row before its slot. It rests on x86, where
    /// loads keep their order and aligned elements are read whole.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn gather(self, wanted: __mmask16, numbers: __m512i, before: __m512i) -> __m512i {
        let there = _mm512_mask_cmplt_epu32_mask(wanted, numbers, self.count);
        let mut out = _mm512_mask_mov_epi32(before, wanted, _mm512_setzero_si512());
        // SAFETY: lanes that are `there` name words of the trie's memory, which is alive as long as
        // the view. Each is aligned, so the processor reads it whole, and, since loads of x86 keep
        // their order, before what this function's caller reads next, as an acquiring load does.
        // Inline assembly makes the compiler keep that order too: it must assume that the assembly
        // reads and writes memory.
        unsafe {
            asm!(
                "vpgatherdd {out}{{{there}}}, dword ptr [{first} + 4*{numbers}]",
                out = inout(zmm_reg) out,
                there = inout(kreg) there => _,
                first = in(reg) self.first,
                numbers = in(zmm_reg) numbers,
                options(nostack, preserves_flags),
            );
        }
        out
    }
}

/// How to extract packets' addresses from mini keys: which four bytes (by index of such quartets)
/// hold the address, and which bits of another quartet must have which values.
#[derive(Clone, Copy)]
pub(crate) struct Sought {
    address: u32,
    kind: u32,
    mask: u32,
    value: u32,
}

/// Quartets of bytes in a mini key.
const QUARTETS: u32 = MINI_KEY_WORDS as u32 * 2;
const _: () = assert!(offset_of!(MiniKey, words) == 0 && size_of::<MiniKey>() == 64);
const _: () = assert!(align_of::<MiniKey>() == 64);

impl Sought {
    /// Returns it for the field of four bytes at `offset`, in packets that match `kind`; None where
    /// either does not fit one quartet.
    #[inline(always)]
    pub fn of(offset: u16, kind: MatchWord) -> Option<Sought> {
        // On x86 the lower half of a word comes first in memory.
        let (low, high) = (kind.mask as u32, (kind.mask >> 32) as u32);
        let (half, mask, value) = match (low, high) {
            (mask, 0) => (0, mask, kind.value as u32),
            (0, mask) => (1, mask, (kind.value >> 32) as u32),
            _ => return None,
        };
        let (address, kind) = (u32::from(offset / 4), u32::from(kind.word) * 2 + half);
        (offset.is_multiple_of(4) && address < QUARTETS && kind < QUARTETS).then_some(Sought {
            address,
            kind,
            mask,
            value,
        })
    }

    /// Returns the address of one packet, and whether it matches.
    #[inline(always)]
    fn in_words(self, key: &MiniKey) -> (u32, bool) {
        let four = |at: u32| (key.word((at / 2) as u8) >> (at % 2 * 32)) as u32;
        let kind = four(self.kind) & self.mask == self.value;
        (u32::from_be(four(self.address)), kind)
    }
}

/// Extracts the addresses of at most [`LOOKUP_MAX`] packets, and returns a bit for each that
/// matches. Two quartets of each line are needed, and each level of permutations merges twice as
/// many lines: sixteen lines need as many permutations.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn addresses(keys: &[MiniKey], sought: Sought, to: &mut [u32; LOOKUP_MAX]) -> u64 {
    let (a, k) = (sought.address as i32, sought.kind as i32);
    // Address and kind of two lines in the lower half; the upper half is unused.
    let pick = _mm512_set4_epi32(16 + k, k, 16 + a, a);
    // Merges two lists, each of which begins with addresses and then as many kinds, into all
    // addresses and then all kinds.
    let two = _mm512_castsi256_si512(_mm256_setr_epi32(0, 1, 16, 17, 2, 3, 18, 19));
    let four = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let turn = _mm512_broadcast_i32x4(_mm_setr_epi8(
        3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,
    ));
    let mask = _mm512_set1_epi32(sought.mask as i32);
    let value = _mm512_set1_epi32(sought.value as i32);
    let (blocks, rest) = keys.as_chunks::<LANES>();
    let (to_blocks, _) = to.as_chunks_mut::<LANES>();
    let mut known = 0;
    for (at, (block, to)) in blocks.iter().zip(to_blocks).enumerate() {
        let line = |index: usize| {
            // SAFETY: a `MiniKey` is 64 initialized bytes, aligned to 64.
            unsafe { _mm512_load_si512(std::ptr::from_ref(&block[index]).cast()) }
        };
        let pair = |index: usize| _mm512_permutex2var_epi32(line(index), pick, line(index + 1));
        let of_four = |index: usize| _mm512_permutex2var_epi32(pair(index), two, pair(index + 2));
        let of_eight =
            |index: usize| _mm512_permutex2var_epi32(of_four(index), four, of_four(index + 4));
        let (low, high) = (of_eight(0), of_eight(8));
        let addresses = _mm512_shuffle_i64x2::<0b01_00_01_00>(low, high);
        let kinds = _mm512_shuffle_i64x2::<0b11_10_11_10>(low, high);
        // SAFETY: 64 writable bytes.
        unsafe {
            _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_shuffle_epi8(addresses, turn))
        };
        let of_kind = _mm512_cmpeq_epi32_mask(_mm512_and_si512(kinds, mask), value);
        known |= u64::from(of_kind) << (at * LANES);
    }
    let done = blocks.len() * LANES;
    for (at, (key, to)) in rest.iter().zip(&mut to[done..]).enumerate() {
        let (address, of_kind) = sought.in_words(key);
        *to = address;
        known |= u64::from(of_kind) << (done + at);
    }
    known
}

/// Leads the first `count` addresses, or some more, to the entries of their last slots; those that
/// are not `known` get `otherwise`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn descend(
    lines: LinesView<'_>,
    addresses: &[u32; LOOKUP_MAX],
    known: u64,
    otherwise: u32,
    count: usize,
    places: &mut [u32; LOOKUP_MAX],
) {
    let words = TrieWords::of(lines);
    let (addresses, _) = addresses.as_chunks::<{ GROUPS * LANES }>();
    let (places, _) = places.as_chunks_mut::<{ GROUPS * LANES }>();
    let steps = addresses.iter().zip(places).enumerate();
    for (at, (addresses, places)) in steps.take(count.div_ceil(GROUPS * LANES)) {
        let mut group = [_mm512_setzero_si512(); GROUPS];
        let mut entries = group;
        let (from, _) = addresses.as_chunks::<LANES>();
        for ((group, entries), from) in group.iter_mut().zip(&mut entries).zip(from) {
            // SAFETY: 64 readable bytes.
            *group = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
            let roots = _mm512_srli_epi32::<16>(*group);
            *entries = words.gather(__mmask16::MAX, roots, *group);
        }
        step::<1>(words, &group, &mut entries);
        step::<0>(words, &group, &mut entries);
        let (to, _) = places.as_chunks_mut::<LANES>();
        for (turn, (entries, to)) in entries.into_iter().zip(to).enumerate() {
            let known = (known >> ((at * GROUPS + turn) * LANES)) as __mmask16;
            let otherwise = _mm512_set1_epi32(otherwise as i32);
            let entries = _mm512_mask_mov_epi32(otherwise, known, entries);
            // SAFETY: 64 writable bytes.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), entries) };
        }
    }
}

/// Replaces entries that are nodes by their entries for byte `BYTE` of the addresses, counted from
/// the last; other entries stay.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
#[allow(clippy::needless_range_loop)] // indexes several arrays side by side
fn step<const BYTE: u8>(
    words: TrieWords<'_>,
    addresses: &[__m512i; GROUPS],
    entries: &mut [__m512i; GROUPS],
) {
    let zero = _mm512_setzero_si512();
    let mut nodes = [0; GROUPS];
    for (nodes, entries) in nodes.iter_mut().zip(&*entries) {
        *nodes = _mm512_cmplt_epi32_mask(*entries, zero); // the highest bit marks nodes
    }
    if nodes == [0; GROUPS] {
        return;
    }
    // Spreads the byte to all four bytes of its lane.
    let spread = _mm512_set4_epi32(
        const { (0x0101_0101 * (12 + BYTE as u32)) as i32 },
        const { (0x0101_0101 * (8 + BYTE as u32)) as i32 },
        const { (0x0101_0101 * (4 + BYTE as u32)) as i32 },
        const { (0x0101_0101 * BYTE as u32) as i32 },
    );
    let size = _mm512_set1_epi32(SIZE as i32);
    let one = _mm512_set1_epi8(1);
    let none = _mm512_set1_epi8(NO_RUN as i8);
    // Both groups take each step before either takes the next, so that one's memory accesses are in
    // flight while the other waits.
    let mut bytes = [zero; GROUPS];
    let mut first = [zero; GROUPS];
    let mut small = [0; GROUPS];
    let mut rows = [zero; GROUPS];
    for group in 0..GROUPS {
        bytes[group] = _mm512_shuffle_epi8(addresses[group], spread);
        first[group] = _mm512_slli_epi32::<LINE_SHIFT>(entries[group]); // drops the size bits
        small[group] = _mm512_mask_testn_epi32_mask(nodes[group], entries[group], size);
        rows[group] = words.gather(small[group], first[group], none);
    }
    let mut slots = [zero; GROUPS];
    for group in 0..GROUPS {
        let (bytes, first, small) = (bytes[group], first[group], small[group]);
        // For nodes of one line, count bytes of the row that are below this one; most rows are
        // short.
        let mut below = _mm512_maskz_mov_epi8(_mm512_cmplt_epu8_mask(rows[group], bytes), one);
        let long = _mm512_mask_cmpeq_epi32_mask(small, below, one);
        if long != 0 {
            for word in 1..SMALL_HEAD as i32 {
                let number = _mm512_add_epi32(first, _mm512_set1_epi32(word));
                let row = words.gather(long, number, none);
                let more = _mm512_maskz_mov_epi8(_mm512_cmplt_epu8_mask(row, bytes), one);
                below = _mm512_add_epi8(below, more);
            }
        }
        let below = _mm512_madd_epi16(_mm512_maddubs_epi16(below, one), _mm512_set1_epi16(1));
        let run = _mm512_add_epi32(below, _mm512_set1_epi32(SMALL_HEAD as i32));
        let byte = _mm512_and_si512(bytes, _mm512_set1_epi32(0xff));
        let sizes = _mm512_and_si512(entries[group], size);
        let wide = _mm512_mask_cmpeq_epi32_mask(nodes[group], sizes, size);
        let way = _mm512_mask_mov_epi32(run, wide, byte);
        slots[group] = _mm512_add_epi32(first, way);
        let others = nodes[group] & !small & !wide;
        if others != 0 {
            slots[group] = ranked(words, others, first, byte, slots[group]);
        }
    }
    for group in 0..GROUPS {
        entries[group] = words.gather(nodes[group], slots[group], entries[group]);
    }
}

/// Returns the slots of nodes of two or four lines: counts the runs that begin before the 64 slots
/// that contain the byte's, and among those up to it.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline(never)] // few nodes of prefixes have this form
fn ranked(
    words: TrieWords<'_>,
    those: __mmask16,
    first: __m512i,
    byte: __m512i,
    slots: __m512i,
) -> __m512i {
    let zero = _mm512_setzero_si512();
    let number = |word: i32| _mm512_set1_epi32(word);
    let quarter = _mm512_srli_epi32::<6>(byte);
    let low = _mm512_add_epi32(first, _mm512_add_epi32(quarter, quarter));
    let counts = words.gather(
        those,
        _mm512_add_epi32(first, number(HEAD as i32 - 1)),
        zero,
    );
    let low_bits = words.gather(those, low, zero);
    let high_bits = words.gather(those, _mm512_add_epi32(low, number(1)), zero);
    // Bits up to the byte's own. In the lower half all are taken where the byte is in the upper
    // one, because bits shifted beyond 32 are lost; in the upper half those up to it.
    let within = _mm512_and_si512(byte, number(63));
    let up_to = |at: __m512i| _mm512_sub_epi32(_mm512_sllv_epi32(number(2), at), number(1));
    let upper = _mm512_cmpgt_epi32_mask(within, number(31));
    let low_bits = _mm512_and_si512(low_bits, up_to(within));
    let in_upper = up_to(_mm512_sub_epi32(within, number(32)));
    let high_bits = _mm512_maskz_and_epi32(upper, high_bits, in_upper);
    let runs = _mm512_add_epi8(ones(low_bits), ones(high_bits));
    let runs = _mm512_madd_epi16(
        _mm512_maddubs_epi16(runs, _mm512_set1_epi8(1)),
        _mm512_set1_epi16(1),
    );
    let before = _mm512_srlv_epi32(counts, _mm512_slli_epi32::<3>(quarter));
    let runs = _mm512_add_epi32(runs, _mm512_and_si512(before, number(0xff)));
    // As in `nodes::ranked`, also for lanes that are no such node: no run before the first slot.
    let run = _mm512_and_si512(_mm512_sub_epi32(runs, number(1)), number(0xff));
    let way = _mm512_add_epi32(run, number(HEAD as i32));
    _mm512_mask_add_epi32(slots, those, first, way)
}

/// Counts the bits that are set in each byte, by its halves.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn ones(bits: __m512i) -> __m512i {
    let each = _mm512_broadcast_i32x4(_mm_setr_epi8(
        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,
    ));
    let half = _mm512_set1_epi8(0x0f);
    let low = _mm512_and_si512(bits, half);
    let high = _mm512_and_si512(_mm512_srli_epi32::<4>(bits), half);
    _mm512_add_epi8(
        _mm512_shuffle_epi8(each, low),
        _mm512_shuffle_epi8(each, high),
    )
}

/// Eights of packets that are interleaved.
const EIGHTS: usize = STEP / 8;
const _: () = assert!(STEP.is_multiple_of(LANES));

/// [`NextHops::batch`]. All packets take each step before any takes the next: accesses that wait
/// for others would fill the processor's buffers and delay the packets behind.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn batch<'g>(
    next_hops: &NextHops<'g, '_>,
    those: Range<usize>,
    counters: WorkerCounters<'g>,
    batch: &mut ActionBatch<'g>,
) -> usize {
    let numbers = next_hops.numbers;
    let (first, count) = (those.start, those.len().min(STEP));
    assert!(first + count <= numbers.len());
    let all = |number: usize| _mm512_set1_epi64(number as i64);
    // SAFETY: a place is a pointer and two numbers of four bytes, without padding.
    let places = unsafe { Quads::of(next_hops.places) };
    let none = _mm512_set1_epi32(NONE as i32);
    let mut known = [0; EIGHTS];
    let mut rules = [_mm512_setzero_si512(); EIGHTS];
    let mut rests = rules;
    for half in 0..STEP / LANES {
        let from = first + half * LANES;
        let left = count.saturating_sub(half * LANES).min(LANES);
        let lanes = ((1_u32 << left) - 1) as __mmask16;
        let at = numbers.as_ptr().wrapping_add(from);
        let number = if from + LANES <= numbers.len() {
            // Loads the elements that have been written only, so that no store need reach the cache
            // first.
            // SAFETY: this many are there.
            unsafe { _mm512_loadu_si512(at.cast()) }
        } else {
            // SAFETY: as many elements as there are lanes are left.
            unsafe { _mm512_maskz_loadu_epi32(lanes, at.cast()) }
        };
        // As in `place`.
        let default = _mm512_set1_epi32(next_hops.default as i32);
        let number = _mm512_mask_mov_epi32(number, _mm512_cmpeq_epi32_mask(number, none), default);
        let there = _mm512_mask_cmpneq_epi32_mask(lanes, number, none);
        let eights = [
            _mm512_castsi512_si256(number),
            _mm512_extracti64x4_epi64::<1>(number),
        ];
        for (part, eight) in eights.into_iter().enumerate() {
            let (eight, there) = (
                _mm512_cvtepu32_epi64(eight),
                (there >> (part * 8)) as __mmask8,
            );
            let word = _mm512_slli_epi64::<1>(eight);
            let to = half * 2 + part;
            known[to] = there;
            // In this order: the rule's word says whether the rest may be read. Edits, below, come
            // after both.
            rules[to] = places.gather(there, word);
            rests[to] = places.gather(there, _mm512_or_si512(word, all(1)));
        }
    }
    // SAFETY: pointers have no padding.
    let edits = unsafe { Quads::of(next_hops.edits) };
    let mut blocks = [_mm512_setzero_si512(); EIGHTS];
    let mut counted = blocks;
    for at in 0..EIGHTS {
        // As in `RuleSummary::verdict`.
        let (rule, rest) = (rules[at], rests[at]);
        let summaries = _mm512_mask_test_epi64_mask(known[at], rule, all(!MARKS));
        let summaries = _mm512_mask_testn_epi64_mask(summaries, rule, all(ASK));
        let editing = _mm512_mask_test_epi64_mask(summaries, rule, all(EDITS));
        blocks[at] = edits.gather(editing, _mm512_srli_epi64::<32>(rest));
        let counter = _mm512_and_si512(rest, all(u32::MAX as usize));
        counted[at] = counters.find_eight(summaries, counter);
        known[at] = summaries & !(editing & _mm512_testn_epi64_mask(blocks[at], blocks[at]));
    }
    for at in 0..EIGHTS {
        let ports = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(rests[at]));
        // SAFETY: `at` is below `EIGHTS`. Counters' addresses are those of the worker's, and edits'
        // live as long as the guard, as `kept` requires, by loads in the order that it requires.
        // The provenance of both was exposed when they were put there.
        unsafe { batch.put_eight(at, counted[at], blocks[at], ports) };
    }
    let known = known
        .iter()
        .rev()
        .fold(0_u64, |all, eight| all << 8 | u64::from(*eight));
    let known = known.trailing_ones() as usize;
    batch.prefetch(known, counters.are_many());
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::block::ActionBlock;
    use crate::actions::{Op, OpList};
    use crate::classifier::trie::Run;
    use crate::classifier::trie::nodes::{Lines, Nodes, Prefix, Slot};
    use crate::classifier::trie::{kept, place};
    use crate::counters::{CounterId, Counters, WorkerCounter};
    use crate::epoch::Domain;
    use crate::rule::summary::RuleSummary;
    use packet::mini_key::Variant;
    use proptest::prelude::*;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::AtomicPtr;

    /// Descends for one packet, step by step.
    fn plain(lines: LinesView<'_>, address: u32) -> u32 {
        let mut entry = lines.load(Slot(address >> 16));
        for byte in [address >> 8 & 0xff, address & 0xff] {
            if entry.is_node() {
                entry = lines.load(lines.slot_of(entry, byte));
            }
        }
        entry.0
    }

    fn trie(prefixes: &[(u32, u8)]) -> (Nodes, Lines) {
        let (mut nodes, lines) = Nodes::new(&Arc::new(Domain::default()));
        for (number, (address, length)) in prefixes.iter().enumerate() {
            let mask = u32::MAX.checked_shl(32 - u32::from(*length)).unwrap_or(0);
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&(address & mask).to_be_bytes());
            let length = *length;
            let prefix = Prefix { bytes, length };
            nodes.change(&lines, &prefix, &mut |_| number as u32 + 2);
        }
        (nodes, lines)
    }

    fn mini_key() -> impl Strategy<Value = MiniKey> {
        // Few values of the first word's bytes, so that masks of it both match and do not.
        (any::<[u64; MINI_KEY_WORDS]>(), 0_u64..3, 0_u32..64).prop_map(|(mut words, few, at)| {
            words[0] = few << at;
            let words = words.map(|word| if few == 0 { word & 0xff00_00ff } else { word });
            let mut hot = MiniKey::ZERO;
            hot.words = words;
            hot
        })
    }

    proptest! {
        #[test]
        fn addresses_and_kinds_are_those_of_each_packet(
            keys in prop::collection::vec(mini_key(), 0..=LOOKUP_MAX),
            offset in (0_u16..=MINI_KEY_WORDS as u16 * 4).prop_map(|half| half * 2),
            word in 0..MINI_KEY_WORDS as u8 + 1,
            mask in prop_oneof![Just(0xffff), Just(0xffff_u64 << 32), Just(1), any::<u32>().prop_map(|low| u64::from(low | 1)), any::<u64>().prop_map(|any| any | 1)],
            value in prop_oneof![Just(0), any::<u64>()],
            from in any::<prop::sample::Index>(),
            own in any::<bool>(),
        ) {
            if !Variant::Avx512.is_there() {
                return Ok(());
            }
            // A value of some packet, or any value.
            let (at, some) = (usize::from(word), !keys.is_empty() && usize::from(word) < MINI_KEY_WORDS);
            let value = mask & if own && some { keys[from.index(keys.len())].words[at] } else { value };
            let kind = MatchWord::of_key(word, value, mask);
            let run = Run { offset, bytes: 4 };
            let inside = usize::from(offset) + 4 <= MINI_KEY_WORDS * 8 && usize::from(word) < MINI_KEY_WORDS;
            let one_half = mask >> 32 == 0 || mask as u32 == 0;
            let sought = Sought::of(offset, kind);
            prop_assert_eq!(sought.is_some(), inside && one_half && offset.is_multiple_of(4));
            let Some(sought) = sought else {
                return Ok(());
            };
            let mut got = [0; LOOKUP_MAX];
            // SAFETY: the processor has AVX-512.
            let known = unsafe { addresses(&keys, sought, &mut got) };
            for (index, (key, got)) in keys.iter().zip(got).enumerate() {
                let address = (0..4).fold(0, |address, byte| address << 8 | run.byte(key, byte));
                prop_assert_eq!(got, address);
                prop_assert_eq!(known >> index & 1 == 1, key.word(word) & mask == value);
            }
            prop_assert_eq!(known.checked_shr(keys.len() as u32).unwrap_or(0), 0);
        }

        #[test]
        fn it_leads_to_where_one_packet_goes(
            crowds in 1_u32..4,
            // Few prefixes make nodes of two and four lines, many make arrays.
            prefixes in prop_oneof![0_usize..60, 0_usize..400].prop_flat_map(|count| prop::collection::vec((any::<u32>(), 1_u8..33), count)),
            others in prop::collection::vec(any::<u32>(), LOOKUP_MAX),
            count in 0..=LOOKUP_MAX,
            known in any::<u64>(),
        ) {
            if !Variant::Avx512.is_there() {
                return Ok(());
            }
            // Few roots, so that nodes of all sizes occur.
            let crowd = |address: u32| address & 0xffff | ((address >> 16) % crowds) << 16;
            let prefixes: Vec<_> = prefixes.iter().map(|(address, length)| (crowd(*address), *length)).collect();
            let (_nodes, lines) = trie(&prefixes);
            let address = |index: usize| match prefixes.get(index) {
                Some((address, _)) if !index.is_multiple_of(4) => address ^ others[index] & 3,
                _ => crowd(others[index]),
            };
            let addresses: [u32; LOOKUP_MAX] = std::array::from_fn(address);
            let mut places = [0; LOOKUP_MAX];
            // SAFETY: the processor has AVX-512.
            unsafe { descend(lines.view(), &addresses, known, 7, count, &mut places) };
            for (index, (address, place)) in addresses.iter().zip(places).take(count).enumerate() {
                let led = if known >> index & 1 == 0 { 7 } else { plain(lines.view(), *address) };
                prop_assert_eq!(place, led, "{:x}", address);
            }
        }

        #[test]
        fn deeds_are_those_of_each_packet(
            // Some places have no rule, one that must be asked, or one that edits.
            places in prop::collection::vec((0_u8..8, 0_u32..6, 0_u32..6), 1..40),
            numbers in prop::collection::vec(prop_oneof![0_u32..50, 0_u32..20, Just(u32::MAX)], LOOKUP_MAX),
            default in 0_u32..50,
            start in 0..=LOOKUP_MAX,
            count in 0..=LOOKUP_MAX,
            workers in any::<bool>(),
        ) {
            if !Variant::Avx512.is_there() {
                return Ok(());
            }
            let place_of = |(kind, counter, action): (u8, u32, u32)| {
                let marks = match kind {
                    0 => return RuleSummary::default(),
                    1 => ASK,
                    2 => ASK | EDITS,
                    3..6 => EDITS,
                    _ => 0,
                };
                // Chunks of the last counters are not allocated, or beyond all.
                let counter = [0, 1, 4095, 4096, 8192, u32::MAX >> 2][counter as usize];
                RuleSummary::new(NonNull::dangling(), marks, CounterId(counter), action)
            };
            // Most places have a verdict, so that many packets in a row do.
            let places: Vec<RuleSummary> = places.into_iter().map(place_of).collect();
            let lists: Vec<OpList> = (0..4).map(|port| OpList::new(vec![Op::Output(port)])).collect();
            let edits: Vec<AtomicPtr<ActionBlock>> = (0..5)
                .map(|number: usize| {
                    let block = lists.get(number).and_then(|list| list.blocks()?.first());
                    AtomicPtr::new(block.map_or(std::ptr::null_mut(), |block| std::ptr::from_ref(block).cast_mut()))
                })
                .collect();
            let counters = Counters::default();
            counters.add_worker(0);
            for _ in 0..if workers { 4097 } else { 1 } {
                counters.allocate();
            }
            let counters = counters.of_worker(0);
            let numbers: [u32; LOOKUP_MAX] = numbers.try_into().unwrap();
            let next_hops = NextHops { numbers: &numbers, default, places: &places, edits: &edits };
            let those = start..LOOKUP_MAX.min(start + count);
            let mut got = ActionBatch::NONE;
            // SAFETY: the processor has AVX-512.
            let known = unsafe { batch(&next_hops, those.clone(), counters, &mut got) };
            let mut wanted = ActionBatch::NONE;
            let known_so = wanted.fill(counters, those.len(), |at| {
                place(&places, default, numbers[start + at])?.verdict(|number| kept(&edits, number))
            });
            prop_assert_eq!(known, known_so);
            for (got, wanted) in got.first(known).zip(wanted.first(known)) {
                prop_assert_eq!(got.0.map(WorkerCounter::address), wanted.0.map(WorkerCounter::address));
                prop_assert_eq!(got.1.map(std::ptr::from_ref), wanted.1.map(std::ptr::from_ref));
                if got.1.is_none() {
                    prop_assert_eq!(got.2, wanted.2);
                }
            }
        }
    }
}
