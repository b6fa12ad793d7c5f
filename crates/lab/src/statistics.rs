//! Figures and what is known about their error.
//!
//! A figure is the median of a few runs, and its interval says where the median of the *next* run
//! of the same experiment lies with 95%. That is wider than a confidence interval of the median,
//! since the next median has an error of its own.
//!
//! * From nine runs on the interval is between two of the runs, found by counting: if both runs of
//!   the experiment draw from one distribution, all orders of their values are equally likely, and
//!   the share of orders in which the next median lies between the k-th least and the k-th greatest
//!   value does not depend on the distribution. The narrowest such interval with 95% is taken.
//! * With fewer runs even least and greatest are too narrow (three: 60%, five: 83%, seven: 93%), so
//!   they are widened by what a normal distribution of the runs' standard deviation s gives: median
//!   +- t s sqrt(2 v), where t is Student's quantile with one degree of freedom less than runs and
//!   v the variance of a median of that many standard normal values. A bootstrap cannot see what
//!   three runs do not have. For distributions far from normal this is approximate; the tests hold
//!   it to 90% for skewed and heavy-tailed ones.
//! * [`scatter`](crate::scatter) narrows these where other cells of the experiment say more about
//!   what runs scatter by than the few of one cell do.
//! * One run says nothing about its error: its interval is the run itself, and `runs` shows that it
//!   was one.
//!
//! Two figures of one run of the lab are compared by the [ratio] of their medians, not by whether
//! these intervals overlap: what runs scatter by is taken to be the same share of both, since it is
//! the machine's, and is known better from the runs of both together.

use crate::results::Figure;

/// The share of next medians that an interval is for.
pub const COVERAGE: f64 = 0.95;

/// Student's t at 97.5% by degrees of freedom, from 1.
const T: [f64; 7] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365];
/// Variance of the median of so many standard normal values, from 2 (numerical integration).
pub(crate) const MEDIAN_VARIANCE: [f64; 7] = [0.5, 0.4487, 0.2982, 0.2868, 0.2147, 0.2104, 0.1682];

/// The median; of an even number of values the mean of the two in the middle. 0 without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// The standard deviation of a sample (n - 1); 0 of fewer than two values.
pub fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// Where the median of as many further values lies with 95%. The module's head says how.
pub fn interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
        return (0.0, 0.0);
    };
    if count == 1 {
        return (least, most);
    }
    if count < T.len() + 2 {
        let half = T[count - 2] * deviation(values) * (2.0 * MEDIAN_VARIANCE[count - 2]).sqrt();
        let middle = median(values);
        let low = (middle - half).min(least);
        // What cannot be negative stays so.
        let low = if least >= 0.0 { low.max(0.0) } else { low };
        return (low, (middle + half).max(most));
    }
    let mut k = 1;
    while 2 * (k + 1) <= count && 1.0 - 2.0 * below(count, k + 1) >= COVERAGE {
        k += 1;
    }
    (sorted[k - 1], sorted[count - k])
}

/// The share of orders of `n` and `n` further values in which the median of the further ones is
/// below the k-th least of the first. (For an even number: its lower middle value, which makes the
/// interval wider.)
fn below(n: usize, k: usize) -> f64 {
    // At least `middle` of the further values come before the k-th of the first: sum over how many
    // of them, j, come before it. Of all C(2n, n) orders, C(k-1+j, j) C(2n-k-j, n-j) have j.
    let middle = n.div_ceil(2);
    let orders: f64 = (middle..=n)
        .map(|j| (choose(k - 1 + j, j) + choose(2 * n - k - j, n - j)).exp())
        .sum();
    orders / choose(2 * n, n).exp()
}

/// The logarithm of a binomial coefficient.
fn choose(n: usize, k: usize) -> f64 {
    (0..k).map(|i| ((n - i) as f64 / (k - i) as f64).ln()).sum()
}

/// Where the ratio of two medians lies with 95%, if what their runs scatter by is the same share of
/// both: the ratio itself, and the ends of the interval. One value is exact, and has no error of
/// its own. None where a value is not above 0.
pub fn ratio(one: &[f64], other: &[f64]) -> Option<(f64, f64, f64)> {
    let logarithms = |values: &[f64]| -> Option<Vec<f64>> {
        let whole = !values.is_empty() && values.iter().all(|v| v.is_finite() && *v > 0.0);
        whole.then(|| values.iter().map(|value| value.ln()).collect())
    };
    let (one, other) = (logarithms(one)?, logarithms(other)?);
    let middle = median(&one) - median(&other);
    let freedom = one.len() + other.len() - 2;
    let squares = |values: &[f64]| (values.len() - 1) as f64 * deviation(values).powi(2);
    let variance = |values: &[f64]| match values.len() {
        0 | 1 => 0.0,
        n if n < MEDIAN_VARIANCE.len() + 2 => MEDIAN_VARIANCE[n - 2],
        // Of many.
        n => std::f64::consts::FRAC_PI_2 / n as f64,
    };
    let half = match freedom {
        0 => 0.0,
        _ => {
            let pooled = (squares(&one) + squares(&other)) / freedom as f64;
            let t = T[freedom.min(T.len()) - 1];
            t * (pooled * (variance(&one) + variance(&other))).sqrt()
        }
    };
    Some((middle.exp(), (middle - half).exp(), (middle + half).exp()))
}

/// A figure of runs.
pub fn figure(runs: &[f64]) -> Figure {
    let (low, high) = interval(runs);
    Figure {
        median: median(runs),
        low,
        high,
        deviation: deviation(runs),
        runs: runs.to_vec(),
        borrowed: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Random;
    use proptest::prelude::*;

    #[test]
    fn medians_and_deviations_are_right() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        let squared = deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).powi(2);
        assert!((squared - 32.0 / 7.0).abs() < 1e-12);
        assert_eq!(deviation(&[7.0]), 0.0);
    }

    /// Counted by hand: of three and three values 4 of 20 orders, of five and five 21 of 252.
    #[test]
    fn orders_are_counted() {
        for (n, k, share) in [
            (3, 1, 0.2),
            (5, 1, 21.0 / 252.0),
            (1, 1, 0.5),
            (7, 1, 120.0 / 3432.0),
        ] {
            assert!(
                (below(n, k) - share).abs() < 1e-12,
                "{n} {k}: {}",
                below(n, k)
            );
        }
        // Symmetry: the next median is below the middle value half of the time.
        assert!((below(9, 5) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn one_run_and_none_have_no_interval() {
        assert_eq!(interval(&[]), (0.0, 0.0));
        assert_eq!(figure(&[3.0]).low, 3.0);
        assert_eq!(figure(&[3.0]).runs.len(), 1);
    }

    proptest! {
        #[test]
        fn intervals_have_the_median_inside(values in prop::collection::vec(0.0..1e9_f64, 1..40)) {
            let figure = figure(&values);
            prop_assert!(figure.low <= figure.median && figure.median <= figure.high);
            prop_assert!(figure.low >= 0.0);
        }
    }

    /// The share of experiments whose next median lies in the interval of the one before.
    fn coverage(count: usize, draw: impl Fn(&mut Random) -> f64) -> f64 {
        let (mut random, mut inside, tries) = (Random::new(count as u64), 0, 4000);
        for _ in 0..tries {
            let first: Vec<_> = (0..count).map(|_| draw(&mut random)).collect();
            let next: Vec<_> = (0..count).map(|_| draw(&mut random)).collect();
            let (low, high) = interval(&first);
            inside += usize::from((low..=high).contains(&median(&next)));
        }
        inside as f64 / tries as f64
    }

    #[test]
    fn the_next_median_lies_inside() {
        type Draw = fn(&mut Random) -> f64;
        let noises: [(&str, Draw); 5] = [
            ("normal", |r| 100.0 + r.normal()),
            // Most windows are fast, some are slowed down by others.
            ("skewed", |r| 100.0 - (0.8 * r.normal()).exp()),
            ("exponential", |r| 100.0 + r.unit().ln()),
            // Student's t with two degrees of freedom: its variance is infinite.
            ("heavy tails", |r| {
                let chi = (r.normal().powi(2) + r.normal().powi(2)) / 2.0;
                100.0 + r.normal() / chi.sqrt()
            }),
            // One window in ten halves.
            ("outliers", |r| {
                if r.unit() < 0.1 {
                    50.0
                } else {
                    100.0 + r.normal()
                }
            }),
        ];
        for count in [3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 21] {
            for (name, draw) in noises {
                let share = coverage(count, draw);
                assert!(share >= 0.9, "{name}, {count} runs: {share}");
                let normal = if name == "normal" { 0.94 } else { 0.9 };
                assert!(share >= normal, "{name}, {count} runs: {share}");
            }
        }
    }

    /// The share of comparisons whose interval has the true ratio, which is 2.
    #[test]
    fn ratios_lie_inside_their_intervals() {
        for (n, m) in [(2, 2), (3, 3), (2, 5), (9, 9), (3, 12), (1, 4)] {
            for noise in [0.01, 0.1] {
                let (mut random, mut inside, tries) = (Random::new(n as u64), 0, 4000);
                for _ in 0..tries {
                    let mut draw = |count: usize, mean: f64| -> Vec<f64> {
                        let mut one = || mean * (1.0 + noise * random.normal()).max(0.1);
                        match count {
                            1 => vec![mean],
                            _ => (0..count).map(|_| one()).collect(),
                        }
                    };
                    let (one, other) = (draw(n, 2.0), draw(m, 1.0));
                    let (_, low, high) = ratio(&one, &other).unwrap();
                    inside += usize::from((low..=high).contains(&2.0));
                }
                let share = inside as f64 / f64::from(tries);
                assert!(share >= 0.93, "{n} and {m} runs, noise {noise}: {share}");
            }
        }
        let (middle, low, high) = ratio(&[4.0], &[2.0]).unwrap();
        assert!((middle - 2.0).abs() < 1e-12 && low == middle && high == middle);
        assert!(ratio(&[0.0, 1.0], &[1.0]).is_none());
        assert!(ratio(&[], &[1.0]).is_none());
    }

    /// Three runs of 10% scatter tell a factor of 1.5, where intervals of the next median overlap.
    #[test]
    fn ratios_tell_what_separate_intervals_do_not() {
        let (one, other) = ([13.5, 15.0, 16.5], [9.0, 10.0, 11.0]);
        assert!(interval(&one).0 < interval(&other).1);
        let (_, low, _) = ratio(&one, &other).unwrap();
        assert!(low > 1.1, "{low}");
    }

    /// An interval that covers everything would be of no use.
    #[test]
    fn intervals_are_not_wider_than_needed() {
        let mut random = Random::new(1);
        let runs: Vec<_> = (0..21).map(|_| 100.0 + random.normal()).collect();
        let (low, high) = interval(&runs);
        assert!(high - low < 2.0, "{low} {high}");
        assert!(coverage(21, |r| r.normal()) < 0.99);
    }
}
