//! Random numbers that follow from a seed and a position, so that sender and receiver can compute
//! the same ones.

/// Returns the n-th number of the sequence of a seed: SplitMix64 (Steele, Lea, Flood: Fast
/// splittable pseudorandom number generators, 2014).
#[inline(always)]
pub fn number(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the n-th number of the sequence, above 0 and at most 1.
#[inline(always)]
pub fn share(seed: u64, n: u64) -> f64 {
    ((number(seed, n) >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// The numbers of a seed's sequence, one after the other.
#[derive(Clone, Debug)]
pub struct Sequence {
    seed: u64,
    drawn: u64,
}

impl Sequence {
    /// Begins the sequence of a seed.
    pub fn new(seed: u64) -> Sequence {
        Sequence { seed, drawn: 0 }
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.drawn += 1;
        number(self.seed, self.drawn)
    }
}

/// A choice among weights by one random number (Walker's alias method): 8 bytes a weight.
#[derive(Clone, Debug)]
pub struct Alias {
    /// For each place, the share of it that is its own, in units of 2^-32, and whose the rest is.
    places: Vec<(u32, u32)>,
}

impl Alias {
    /// Makes a choice of weights. They must be at least one and fewer than 2^32, finite, not
    /// negative, and not all 0.
    pub fn new(weights: &[f64]) -> Alias {
        let total: f64 = weights.iter().sum();
        let scale = weights.len() as f64 / total;
        let mut shares: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
        let all = 0..weights.len() as u32;
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            all.partition(|&place| shares[place as usize] < 1.0);
        let mut places: Vec<(u32, u32)> = (0..weights.len() as u32)
            .map(|place| (u32::MAX, place))
            .collect();
        while let (Some(&few), Some(&many)) = (small.last(), large.last()) {
            small.pop();
            let own = shares[few as usize];
            places[few as usize] = ((own * 4_294_967_296.0) as u32, many);
            shares[many as usize] -= 1.0 - own;
            if shares[many as usize] < 1.0 {
                large.pop();
                small.push(many);
            }
        }
        Alias { places }
    }

    /// Returns the place that a random number of 64 bits chooses.
    #[inline(always)]
    pub fn choose(&self, random: u64) -> usize {
        let product = u128::from(random) * self.places.len() as u128;
        let (own, other) = self.places[(product >> 64) as usize];
        // What is left of the number tells within the place.
        match (product >> 32) as u32 <= own {
            true => (product >> 64) as usize,
            false => other as usize,
        }
    }
}

/// Returns chi-square of counts against shares, for tests.
#[cfg(test)]
pub(crate) fn chi_square(counts: &[u64], weights: &[f64]) -> f64 {
    let total: u64 = counts.iter().sum();
    let whole: f64 = weights.iter().sum();
    let pairs = counts.iter().zip(weights);
    pairs
        .map(|(&count, weight)| {
            let expected = total as f64 * weight / whole;
            (count as f64 - expected).powi(2) / expected
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_spread() {
        let mut counts = [0; 64];
        for n in 0..64_000 {
            counts[(number(7, n) >> 58) as usize] += 1;
        }
        // 63 degrees of freedom: 103.4 is exceeded by one seed of a thousand.
        let chi = chi_square(&counts, &[1.0; 64]);
        assert!(chi < 103.4, "{chi}");
        assert_ne!(number(1, 0), number(2, 0));
    }

    proptest! {
        /// Each place has the share that its weight has, computed from the table itself.
        #[test]
        fn shares_are_exact(weights in proptest::collection::vec(0.0_f64..10.0, 1..50)) {
            prop_assume!(weights.iter().sum::<f64>() > 0.1);
            let alias = Alias::new(&weights);
            let mut shares = vec![0.0; weights.len()];
            for (place, &(own, other)) in alias.places.iter().enumerate() {
                let own = (f64::from(own) + 1.0) / 4_294_967_296.0;
                shares[place] += own;
                shares[other as usize] += 1.0 - own;
            }
            let total: f64 = weights.iter().sum();
            for (share, weight) in shares.iter().zip(&weights) {
                let wanted = weight / total * weights.len() as f64;
                prop_assert!((share - wanted).abs() < 1e-6, "{share} {wanted}");
            }
        }
    }
}
