//! Verdicts of up to 32 packets as arrays: the counter, edits and port of each. Rules need not be
//! read to execute them.

use crate::actions::PortNo;
use crate::actions::block::ActionBlock;
use crate::counters::{WorkerCounter, WorkerCounters};
use crate::rule::summary::{CountedVerdict, Verdict};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Packets whose verdicts are executed together: the usual length of a burst.
pub(crate) const STEP: usize = 32;

/// The verdicts of up to [`STEP`] packets, as arrays of addresses: vector code writes eight at
/// once.
pub(crate) struct ActionBatch<'g> {
    /// Each 0, or the address of one of the worker's counters, which lives for 'g.
    counters: [usize; STEP],
    /// Each 0, or the address of edits that live for 'g.
    edits: [usize; STEP],
    ports: [PortNo; STEP],
    lives: PhantomData<&'g ActionBlock>,
}

impl<'g> ActionBatch<'g> {
    pub const NONE: ActionBatch<'g> = ActionBatch {
        counters: [0; STEP],
        edits: [0; STEP],
        ports: [0; STEP],
        lives: PhantomData,
    };

    /// Fills in the verdicts of `count` packets, at most [`STEP`], up to the first packet without
    /// one. Returns how many were filled in.
    #[inline(always)]
    pub fn fill(
        &mut self,
        counters: WorkerCounters<'g>,
        count: usize,
        verdict: impl Fn(usize) -> Option<CountedVerdict<'g>>,
    ) -> usize {
        let many = counters.are_many();
        for at in 0..count.min(STEP) {
            let Some((counter, ends)) = verdict(at) else {
                return at;
            };
            let counter = counters.find(counter);
            if many && let Some(counter) = counter {
                counter.prefetch();
            }
            self.counters[at] = counter.map_or(0, WorkerCounter::address);
            match ends {
                Verdict::Sends(port) => (self.edits[at], self.ports[at]) = (0, port),
                Verdict::Edits(block) => {
                    self.edits[at] = std::ptr::from_ref(block).expose_provenance();
                    block.prefetch();
                }
            }
        }
        count.min(STEP)
    }

    /// Fills in the verdicts of eight packets.
    ///
    /// # Safety
    /// `eight` is below [`STEP`] / 8. The elements of `counters` and `edits` are as documented at
    /// the fields of this struct; their provenance has been exposed.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub unsafe fn put_eight(
        &mut self,
        eight: usize,
        counters: __m512i,
        edits: __m512i,
        ports: __m256i,
    ) {
        debug_assert!(eight < STEP / 8);
        // SAFETY: eight elements from there on lie in each list.
        unsafe {
            _mm512_storeu_si512(self.counters.as_mut_ptr().add(eight * 8).cast(), counters);
            _mm512_storeu_si512(self.edits.as_mut_ptr().add(eight * 8).cast(), edits);
            _mm256_storeu_si256(self.ports.as_mut_ptr().add(eight * 8).cast(), ports);
        }
    }

    /// Prefetches what executing the first `count` verdicts reads: edits, and counters if there are
    /// `many`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn prefetch(&self, count: usize, many: bool) {
        use crate::prefetch::prefetch;
        let fetch = |addresses: &[usize]| {
            for address in addresses {
                // Prefetching address 0 is not free: the TLB misses every time.
                if *address != 0 {
                    prefetch(std::ptr::without_provenance::<u8>(*address));
                }
            }
        };
        fetch(&self.edits[..count]);
        if many {
            fetch(&self.counters[..count]);
        }
    }

    /// Returns the counter, edits and port of the first `count` packets. A packet without edits
    /// goes to the port unchanged.
    #[inline(always)]
    pub fn first(
        &self,
        count: usize,
    ) -> impl Iterator<Item = (Option<WorkerCounter<'g>>, Option<&'g ActionBlock>, PortNo)> {
        let lists = (self.counters[..count].iter())
            .zip(&self.edits[..count])
            .zip(&self.ports[..count]);
        lists.map(|((counter, edits), port)| {
            // SAFETY: the address is 0 or that of a counter that lives for 'g, as documented at the
            // field.
            let counter = unsafe { WorkerCounter::at(*counter) };
            // SAFETY: as documented at the field; the provenance of addresses that are put in has
            // been exposed.
            let edits =
                unsafe { std::ptr::with_exposed_provenance::<ActionBlock>(*edits).as_ref() };
            (counter, edits, *port)
        })
    }
}
