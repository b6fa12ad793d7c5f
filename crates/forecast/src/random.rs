//! Pseudo-random numbers, reproducible by seed (xoshiro256++ of Blackman and Vigna, seeded by
//! splitmix64).

/// A generator.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// Makes the generator of a seed.
    pub fn new(seed: u64) -> Random {
        let mut state = seed;
        Random(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number that is uniform in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an exponentially distributed number of this mean.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Returns a number below `end`, which must not be 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }
}

/// Draws values by weight, in constant time (Walker's alias method).
#[derive(Clone, Debug)]
pub struct Draw {
    values: Vec<f64>,
    /// Probability of keeping the drawn index; otherwise its alias is taken.
    own: Vec<f64>,
    alias: Vec<usize>,
}

impl Draw {
    /// Makes it from (value, weight) pairs; None if no weight is above 0.
    pub fn new(atoms: &[(f64, f64)]) -> Option<Draw> {
        let total: f64 = atoms.iter().map(|atom| atom.1).sum();
        if !(total > 0.0 && total.is_finite()) {
            return None;
        }
        let count = atoms.len();
        let mut own: Vec<f64> = atoms
            .iter()
            .map(|atom| atom.1 / total * count as f64)
            .collect();
        let mut alias: Vec<usize> = (0..count).collect();
        let (mut poor, mut rich): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|at| own[*at] < 1.0);
        while let (Some(&low), Some(&high)) = (poor.last(), rich.last()) {
            poor.pop();
            alias[low] = high;
            own[high] -= 1.0 - own[low];
            if own[high] < 1.0 {
                rich.pop();
                poor.push(high);
            }
        }
        // The remaining ones are 1, except for rounding.
        poor.into_iter().chain(rich).for_each(|at| own[at] = 1.0);
        Some(Draw {
            values: atoms.iter().map(|atom| atom.0).collect(),
            own,
            alias,
        })
    }

    /// Draws one of the values.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> f64 {
        let scaled = random.unit() * self.own.len() as f64;
        let at = scaled as usize;
        let chosen = if scaled - (at as f64) < self.own[at] {
            at
        } else {
            self.alias[at]
        };
        self.values[chosen]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_keep_to_their_weights() {
        let draw = Draw::new(&[(1.0, 7.0), (2.0, 0.0), (3.0, 1.0), (4.0, 2.0)]).unwrap();
        let mut random = Random::new(1);
        let mut counts = [0.0_f64; 5];
        for _ in 0..100_000 {
            counts[draw.draw(&mut random) as usize] += 1e-5;
        }
        for (got, wanted) in counts.iter().zip([0.0, 0.7, 0.0, 0.1, 0.2]) {
            assert!((got - wanted).abs() < 0.01, "{counts:?}");
        }
        assert!(Draw::new(&[]).is_none() && Draw::new(&[(1.0, 0.0)]).is_none());
    }

    #[test]
    fn exponential_numbers_have_their_mean_and_variance() {
        let mut random = Random::new(2);
        let draws: Vec<f64> = (0..200_000).map(|_| random.exponential(3.0)).collect();
        let mean = draws.iter().sum::<f64>() / 2e5;
        let square = draws.iter().map(|x| x * x).sum::<f64>() / 2e5;
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
        assert!((square / 18.0 - 1.0).abs() < 0.05, "{square}");
    }
}
