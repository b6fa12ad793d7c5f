//! Reads eight elements at a time from lists that others change, with AVX-512.

use crate::growing::Cell;
use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// A list of eight-byte words, read by gathers. Longer elements count as several words.
#[derive(Clone, Copy)]
pub(crate) struct Quads<'a> {
    first: *const u64,
    count: __m512i,
    list: PhantomData<&'a [u64]>,
}

impl<'a> Quads<'a> {
    /// Returns the words of the elements of a list.
    ///
    /// # Safety
    /// All bytes of an element have values that may change only as those of atomics do: it has no
    /// padding.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub unsafe fn of<T: Cell>(list: &'a [T]) -> Quads<'a> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() >= 8) };
        Quads {
            first: list.as_ptr().cast(),
            count: _mm512_set1_epi64((size_of_val(list) / 8) as i64),
            list: PhantomData,
        }
    }

    /// Returns the words of these numbers, each as an acquiring load would; zero in lanes that are
    /// not `wanted`, or for which there is no such word. It rests on x86, where loads keep their
    /// order and aligned words are read whole.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub fn gather(self, wanted: __mmask8, numbers: __m512i) -> __m512i {
        let there = _mm512_mask_cmplt_epu64_mask(wanted, numbers, self.count);
        let mut out = _mm512_setzero_si512();
        // SAFETY: lanes that are `there` name words of the list, which is alive for 'a. Each is
        // aligned, so the processor reads it whole, and, since loads of x86 keep their order,
        // before what this function's caller reads next, as an acquiring load does. Inline assembly
        // makes the compiler keep that order too: it must assume that the assembly reads and writes
        // memory.
        unsafe {
            asm!(
                "vpgatherqq {out}{{{there}}}, qword ptr [{first} + 8*{numbers}]",
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
