//! The way down a trie with AVX-512, for fields of four bytes: sixteen packets at a time, whose slots are read by one gather.

use super::super::LOOKUP_MAX;
use super::nodes::{Entry, LINE_SHIFT, LinesView, NO_RUN, SIZE, SMALL_HEAD};
use std::arch::asm;
use std::arch::x86_64::*;

/// Packets of a step.
const LANES: usize = 16;
const _: () = assert!(LOOKUP_MAX.is_multiple_of(LANES));

/// A trie's words, sixteen of which are read at once.
#[derive(Clone, Copy)]
struct TrieWords<'a> {
    lines: LinesView<'a>,
    first: *const u32,
    count: __m512i,
}

impl<'a> TrieWords<'a> {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn of(lines: LinesView<'a>) -> TrieWords<'a> {
        let words = lines.words();
        TrieWords {
            lines,
            first: words.cast(),
            count: _mm512_set1_epi32(words.len() as i32),
        }
    }

    /// The words of these numbers, as an acquiring load would find each; `before` in lanes that are not `wanted`, and zero where there is no such word. Acquiring
    /// is needed: a node is read after the slot that names it, and a node's row before its slot. It rests on x86, where loads keep their order, and on
    /// aligned elements being read whole.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn gather(self, wanted: __mmask16, numbers: __m512i, before: __m512i) -> __m512i {
        let there = _mm512_mask_cmplt_epu32_mask(wanted, numbers, self.count);
        let mut out = _mm512_mask_mov_epi32(before, wanted, _mm512_setzero_si512());
        // SAFETY: lanes that are `there` name words of the trie's memory, which is alive as long as the view. Each is aligned, so the processor reads it whole, and,
        // since loads of x86 keep their order, before what this function's caller reads next, as an acquiring load does. That the compiler keeps to this too is why
        // it is shown nothing but assembly, of which it must take it that memory is read and written.
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

/// Leads the first `count` addresses, or some more, to what their last slots hold.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn descend(
    lines: LinesView<'_>,
    addresses: &[u32; LOOKUP_MAX],
    count: usize,
    places: &mut [u32; LOOKUP_MAX],
) {
    let words = TrieWords::of(lines);
    let (addresses, _) = addresses.as_chunks::<LANES>();
    let (places, _) = places.as_chunks_mut::<LANES>();
    for (addresses, places) in (addresses.iter().zip(places)).take(count.div_ceil(LANES)) {
        // SAFETY: 64 readable bytes.
        let addresses = unsafe { _mm512_loadu_si512(addresses.as_ptr().cast()) };
        let roots = _mm512_srli_epi32::<16>(addresses);
        let entries = words.gather(__mmask16::MAX, roots, addresses);
        let entries = step::<1>(words, addresses, entries);
        let entries = step::<0>(words, addresses, entries);
        // SAFETY: 64 writable bytes.
        unsafe { _mm512_storeu_si512(places.as_mut_ptr().cast(), entries) };
    }
}

/// What stands in nodes for byte `BYTE` of the addresses, from the last one on; other entries stay.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn step<const BYTE: u8>(words: TrieWords<'_>, addresses: __m512i, entries: __m512i) -> __m512i {
    let zero = _mm512_setzero_si512();
    let nodes = _mm512_cmplt_epi32_mask(entries, zero); // the highest bit says so
    if nodes == 0 {
        return entries;
    }
    // The byte in all four of its lane.
    let bytes = _mm512_set4_epi32(
        const { (0x0101_0101 * (12 + BYTE as u32)) as i32 },
        const { (0x0101_0101 * (8 + BYTE as u32)) as i32 },
        const { (0x0101_0101 * (4 + BYTE as u32)) as i32 },
        const { (0x0101_0101 * BYTE as u32) as i32 },
    );
    let bytes = _mm512_shuffle_epi8(addresses, bytes);
    let byte = _mm512_and_si512(bytes, _mm512_set1_epi32(0xff));
    let first = _mm512_slli_epi32::<LINE_SHIFT>(entries); // what stands above a line's number goes
    let size = _mm512_set1_epi32(SIZE as i32);
    let small = _mm512_mask_testn_epi32_mask(nodes, entries, size);
    let wide = _mm512_mask_cmpeq_epi32_mask(nodes, _mm512_and_si512(entries, size), size);

    // In nodes of one line, bytes of the row that are below this one; most rows are short.
    let one = _mm512_set1_epi8(1);
    let none = _mm512_set1_epi8(NO_RUN as i8);
    let row = words.gather(small, first, none);
    let mut below = _mm512_maskz_mov_epi8(_mm512_cmplt_epu8_mask(row, bytes), one);
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
    let way = _mm512_mask_mov_epi32(run, wide, byte);
    let mut slots = _mm512_add_epi32(first, way);
    let others = nodes & !small & !wide;
    if others != 0 {
        slots = ranked(words.lines, others, entries, byte, slots);
    }
    words.gather(nodes, slots, entries)
}

/// The slots of nodes with bits for runs, one by one: they are few where prefixes are.
#[target_feature(enable = "avx512f")]
#[inline(never)]
fn ranked(
    lines: LinesView<'_>,
    those: __mmask16,
    entries: __m512i,
    byte: __m512i,
    slots: __m512i,
) -> __m512i {
    let [entries, bytes, mut slots] = [entries, byte, slots].map(|lanes| {
        let mut list = [0_u32; LANES];
        // SAFETY: 64 writable bytes.
        unsafe { _mm512_storeu_si512(list.as_mut_ptr().cast(), lanes) };
        list
    });
    for lane in (0..LANES).filter(|lane| those >> lane & 1 != 0) {
        slots[lane] = lines.slot_of(Entry(entries[lane]), bytes[lane]).0;
    }
    // SAFETY: 64 readable bytes.
    unsafe { _mm512_loadu_si512(slots.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::{Lines, Nodes, Prefix, Slot};
    use super::*;
    use crate::epoch::Domain;
    use packet::hot::Variant;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// One packet, step by step.
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

    proptest! {
        #[test]
        fn it_leads_to_where_one_packet_goes(
            crowds in 1_u32..4,
            prefixes in prop::collection::vec((any::<u32>(), 1_u8..33), 0..400),
            others in prop::collection::vec(any::<u32>(), LOOKUP_MAX),
            count in 0..=LOOKUP_MAX,
        ) {
            if !Variant::Avx512.is_there() {
                return Ok(());
            }
            // Few roots, so that nodes of all sizes come about.
            let crowd = |address: u32| address & 0xffff | ((address >> 16) % crowds) << 16;
            let prefixes: Vec<_> = prefixes.iter().map(|(address, length)| (crowd(*address), *length)).collect();
            let (_nodes, lines) = trie(&prefixes);
            let address = |index: usize| match prefixes.get(index) {
                Some((address, _)) if !index.is_multiple_of(4) => address ^ others[index] & 3,
                _ => crowd(others[index]),
            };
            let addresses: [u32; LOOKUP_MAX] = std::array::from_fn(address);
            let mut places = [0; LOOKUP_MAX];
            // SAFETY: the processor has it.
            unsafe { descend(lines.view(), &addresses, count, &mut places) };
            for (address, place) in addresses.iter().zip(places).take(count) {
                prop_assert_eq!(place, plain(lines.view(), *address), "{:x}", address);
            }
        }
    }
}
