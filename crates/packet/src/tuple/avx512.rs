//! [`super::read_burst`] with AVX-512.

use super::{BEHIND, ShortTuple, read_by};
use crate::frame::Frame;
use crate::parse::Layers;
use std::arch::x86_64::*;

/// Bytes of the shorter vectors. With these alone, all of a processor's units for vectors are used.
const SHORT: usize = 32;

/// Returns whether the processor has what [`read_burst`] is compiled for, beyond what the variant
/// says.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512vl")
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi2")]
#[inline(never)]
pub(super) fn read_burst<'f, F: Frame + 'f>(
    packets: impl Iterator<Item = (&'f F, Layers)>,
    tuples: &mut [ShortTuple],
) -> usize {
    let mut read = 0;
    for (tuple, (frame, layers)) in tuples.iter_mut().zip(packets) {
        let found = read_by(frame, &layers, |packet| sum(&packet[BEHIND..]));
        *tuple = found.unwrap_or(ShortTuple::NONE);
        read += 1;
    }
    read
}

/// As [`crate::checksum::native_sum`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi2")]
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    if bytes.len() > SHORT {
        return long_sum(bytes);
    }
    let there = _bzhi_u32(u32::MAX, bytes.len() as u32);
    // SAFETY: only bytes of `bytes` are loaded.
    let words = unsafe { _mm256_maskz_loadu_epi8(there, bytes.as_ptr().cast()) };
    let lower = _mm256_and_si256(words, _mm256_set1_epi64x(0xffff_ffff));
    total(_mm256_add_epi64(lower, _mm256_srli_epi64::<32>(words)))
}

#[target_feature(enable = "avx512f,avx512bw,avx2,bmi2")]
#[inline(never)] // so that what is short needs no room for it
fn long_sum(bytes: &[u8]) -> u64 {
    let (whole, rest) = bytes.as_chunks::<64>();
    let there = _bzhi_u64(u64::MAX, rest.len() as u32);
    // SAFETY: only bytes of `rest` are loaded.
    let mut all = halves(unsafe { _mm512_maskz_loadu_epi8(there, rest.as_ptr().cast()) });
    for chunk in whole {
        // SAFETY: 64 readable bytes; the load needs no alignment.
        let words = unsafe { _mm512_loadu_si512(chunk.as_ptr().cast()) };
        all = _mm512_add_epi64(all, halves(words));
    }
    let upper = _mm512_extracti64x4_epi64::<1>(all);
    total(_mm256_add_epi64(_mm512_castsi512_si256(all), upper))
}

/// Adds the upper half of each word to the lower.
#[target_feature(enable = "avx512f")]
#[inline]
fn halves(words: __m512i) -> __m512i {
    let lower = _mm512_and_si512(words, _mm512_set1_epi64(0xffff_ffff));
    _mm512_add_epi64(lower, _mm512_srli_epi64::<32>(words))
}

/// Adds four numbers up.
#[target_feature(enable = "avx2")]
#[inline]
fn total(numbers: __m256i) -> u64 {
    let upper = _mm256_extracti128_si256::<1>(numbers);
    let both = _mm_add_epi64(_mm256_castsi256_si128(numbers), upper);
    _mm_cvtsi128_si64(_mm_add_epi64(both, _mm_unpackhi_epi64(both, both))) as u64
}
