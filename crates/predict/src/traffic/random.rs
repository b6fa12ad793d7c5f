//! Pseudo-random numbers, always the same, so that predictions are reproducible.

/// A generator: Steele and Vigna's SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `end`, which must be above zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (2..=list.len()).rev() {
            list.swap(end - 1, self.below(end));
        }
    }

    /// Draws `count` numbers below `kinds`, number n with a weight of `1 / (n + 1) ^ exponent`.
    pub fn zipf(&mut self, kinds: usize, exponent: f64, count: usize) -> Vec<usize> {
        let mut sum = 0.0;
        let sums: Vec<f64> = (0..kinds)
            .map(|n| {
                sum += ((n + 1) as f64).powf(-exponent);
                sum
            })
            .collect();
        (0..count)
            .map(|_| {
                let wanted = self.share() * sum;
                sums.partition_point(|sum| *sum <= wanted).min(kinds - 1)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_gives_each_its_weight() {
        let mut counts = [0_usize; 4];
        Random::new(1)
            .zipf(4, 1.0, 25_000)
            .into_iter()
            .for_each(|kind| counts[kind] += 1);
        // 12 : 6 : 4 : 3 of 25
        for (count, expected) in counts.iter().zip([12_000, 6_000, 4_000, 3_000]) {
            assert!(count.abs_diff(expected) < 400, "{counts:?}");
        }
    }

    #[test]
    fn shuffling_loses_nothing() {
        let mut list: Vec<u32> = (0..1000).collect();
        Random::new(3).shuffle(&mut list);
        assert_ne!(list, (0..1000).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..1000).collect::<Vec<_>>());
    }
}
