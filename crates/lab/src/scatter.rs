//! What figures of few runs scatter by, with the help of others of their kind.
//!
//! Two or three runs say little about what they scatter by: of two, the interval of 95% is nine
//! times their difference. Other cells of the same experiment are measured by the same means on the
//! same machine, and their scatter says something about this one's. [`moderate`] uses it the way
//! that Smyth's moderated t-statistics do (Linear models and empirical Bayes methods for assessing
//! differential expression in microarray experiments, 2004, section 6; `eBayes` of limma):
//!
//! * The logarithms of a figure's runs have a variance s^2 with d degrees of freedom (one less than
//!   runs). Relative scatter is compared, since cells differ in size.
//! * Of all figures of a kind the variances are taken to be drawn from a scaled inverse chi-squared
//!   distribution with d0 degrees of freedom around s0^2. Both follow from mean and variance of the
//!   logarithms of the variances. Where cells scatter alike d0 is great, and where one scatters by
//!   1% and the next by 30% it is near 0: then nothing is borrowed.
//! * A figure's variance is (d0 s0^2 + d s^2) / (d0 + d), with d0 + d degrees of freedom for
//!   Student's t; at most as many as all figures of the kind have together.
//!
//! A kind is one measure of one subject in one experiment; of all its subjects where that are fewer
//! than [`LEAST`] figures. Figures with a run that is not above 0 are left as they are, and so are
//! those of one run, of nine and more, and of kinds that do not scatter at all.
//!
//! What an hour changes is not in the scatter of runs that were minutes apart. [`DRIFT`] is added
//! for it.

use crate::results::{Cell, Measure};
use crate::statistics::{COVERAGE, MEDIAN_VARIANCE, deviation, median};
use std::collections::BTreeMap;

/// Fewest figures that a distribution is fitted to.
pub const LEAST: usize = 3;

/// The standard deviation of what two runs of the lab differ by that are hours apart, as a share,
/// beside what their own runs scatter by. Two quick runs of a two-core virtual machine, two hours
/// apart, had 173 figures whose intervals without this were within 5%: of these, 68% differed by at
/// most 1.0%, and 80% by at most 2.5%.
pub const DRIFT: f64 = 0.02;

/// A variance that is this share of the others' median is taken to be no smaller: its logarithm
/// would outweigh all others. (limma's bound.)
const SMALLEST: f64 = 1e-5;

/// The normal distribution's quantile at 97.5%.
const NORMAL: f64 = 1.959_964;

/// What the variances of figures of a kind are drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Degrees of freedom; infinite where all may have one variance.
    pub freedom: f64,
    /// The variance that they lie around.
    pub variance: f64,
}

/// Fits the distribution that variances, each with its degrees of freedom, are drawn from. None of
/// fewer than [`LEAST`], or where none is above 0.
pub fn fit(variances: &[(f64, f64)]) -> Option<Prior> {
    let positive: Vec<f64> = variances
        .iter()
        .map(|&(v, _)| v)
        .filter(|v| *v > 0.0)
        .collect();
    if variances.len() < LEAST || positive.is_empty() {
        return None;
    }
    let least = SMALLEST * median(&positive);
    let logarithms: Vec<f64> = variances
        .iter()
        .map(|&(v, d)| v.max(least).ln() - digamma(d / 2.0) + (d / 2.0).ln())
        .collect();
    let count = logarithms.len() as f64;
    let mean = logarithms.iter().sum::<f64>() / count;
    // What the logarithms scatter by beyond what they would if all variances were the same.
    let own = variances
        .iter()
        .map(|&(_, d)| trigamma(d / 2.0))
        .sum::<f64>();
    let beyond = deviation(&logarithms).powi(2) - own / count;
    if beyond <= 0.0 {
        let (squares, freedom) = variances
            .iter()
            .fold((0.0, 0.0), |(s, f), &(v, d)| (s + v * d, f + d));
        return Some(Prior {
            freedom: f64::INFINITY,
            variance: squares / freedom,
        });
    }
    let half = trigamma_inverse(beyond);
    Some(Prior {
        freedom: 2.0 * half,
        variance: (mean + digamma(half) - half.ln()).exp(),
    })
}

/// The variance of a figure that has this one by itself, and its degrees of freedom.
pub fn moderated(variance: f64, freedom: f64, prior: Prior) -> (f64, f64) {
    if prior.freedom.is_infinite() {
        return (prior.variance, f64::INFINITY);
    }
    let sum = prior.freedom + freedom;
    let mixed = (prior.freedom * prior.variance + freedom * variance) / sum;
    (mixed, sum)
}

/// Gives the figures of an experiment's cells intervals that take other figures' scatter into
/// account. The module's head says how.
pub fn moderate(cells: &mut [Cell], measures: &[Measure]) {
    for measure in measures {
        let name = measure.name.as_str();
        let mut subjects: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, cell) in cells.iter().enumerate() {
            if cell.figures.get(name).is_some_and(|f| is_few(&f.runs)) {
                subjects.entry(&cell.subject).or_default().push(at);
            }
        }
        let (own, together): (Vec<_>, Vec<_>) = subjects
            .into_values()
            .partition(|figures| figures.len() >= LEAST);
        for kind in own.into_iter().chain([together.concat()]) {
            of_a_kind(cells, name, &kind);
        }
    }
}

/// Whether runs are such as can have help.
fn is_few(runs: &[f64]) -> bool {
    (2..MEDIAN_VARIANCE.len() + 2).contains(&runs.len())
        && runs.iter().all(|v| v.is_finite() && *v > 0.0)
}

/// The same for the figures of these cells, which are of one kind.
fn of_a_kind(cells: &mut [Cell], name: &str, kind: &[usize]) {
    let variances: Vec<(f64, f64)> = kind
        .iter()
        .map(|&at| {
            let runs = &cells[at].figures[name].runs;
            let logarithms: Vec<f64> = runs.iter().map(|v| v.ln()).collect();
            (deviation(&logarithms).powi(2), (runs.len() - 1) as f64)
        })
        .collect();
    let Some(prior) = fit(&variances) else {
        return;
    };
    let all = variances.iter().map(|&(_, d)| d).sum::<f64>();
    for (&at, &(variance, own)) in kind.iter().zip(&variances) {
        let figure = cells[at].figures.get_mut(name).expect("it was there");
        let (variance, freedom) = moderated(variance, own, prior);
        let freedom = freedom.min(all);
        let median_variance = MEDIAN_VARIANCE[figure.runs.len() - 2];
        let half = quantile(freedom) * (2.0 * median_variance * variance).sqrt();
        let half = half.hypot(NORMAL * DRIFT);
        let (mut low, mut high) = (figure.median * (-half).exp(), figure.median * half.exp());
        // What was seen is possible.
        for &run in &figure.runs {
            (low, high) = (low.min(run), high.max(run));
        }
        (figure.low, figure.high) = (low, high);
        figure.borrowed = freedom - own;
    }
}

/// Student's t at 97.5% (two-sided 95%) with so many degrees of freedom, above 0; not necessarily a
/// whole number.
pub fn quantile(freedom: f64) -> f64 {
    let outside = 1.0 - COVERAGE;
    let freedom = freedom.clamp(0.05, 1e6);
    let (mut low, mut high) = (0.0_f64, 1e30_f64);
    // The share outside of -t and t falls with t. Halving the exponent, then the rest.
    for _ in 0..200 {
        let middle = match low > 1.0 {
            true => (low * high).sqrt(),
            false if high > 2.0 => high.sqrt().max(1.5),
            false => (low + high) / 2.0,
        };
        let share = beta(freedom / 2.0, 0.5, freedom / (freedom + middle * middle));
        match share > outside {
            true => low = middle,
            false => high = middle,
        }
    }
    (low + high) / 2.0
}

/// The regularized incomplete beta function, by Lentz's continued fraction.
fn beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta(b, a, 1.0 - x);
    }
    let front = log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * x.ln() + b * (-x).ln_1p();
    let away = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, 1.0 / away(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for step in 1..1000 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for factor in [even, odd] {
            d = 1.0 / away(1.0 + factor * d);
            c = away(1.0 + factor / c);
            fraction *= c * d;
        }
        if (fraction / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front.exp() * fraction / a
}

/// The logarithm of the gamma function, above 0: Stirling's series behind a recurrence.
fn log_gamma(mut x: f64) -> f64 {
    let mut before = 0.0;
    while x < 10.0 {
        before += x.ln();
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    (x - 0.5) * x.ln() - x + std::f64::consts::TAU.ln() / 2.0 + series - before
}

/// Its derivative.
fn digamma(mut x: f64) -> f64 {
    let mut before = 0.0;
    while x < 10.0 {
        before += 1.0 / x;
        x += 1.0;
    }
    let square = x * x;
    x.ln() - 1.0 / (2.0 * x) - 1.0 / (12.0 * square) + 1.0 / (120.0 * square.powi(2))
        - 1.0 / (252.0 * square.powi(3))
        - before
}

/// The derivative of that.
fn trigamma(mut x: f64) -> f64 {
    let mut before = 0.0;
    while x < 10.0 {
        before += 1.0 / (x * x);
        x += 1.0;
    }
    let square = x * x;
    before + 1.0 / x + 1.0 / (2.0 * square) + 1.0 / (6.0 * x * square)
        - 1.0 / (30.0 * x * square.powi(2))
        + 1.0 / (42.0 * x * square.powi(3))
}

/// Where that has a value, which is above 0. (It falls from infinity to 0.)
fn trigamma_inverse(value: f64) -> f64 {
    let (mut low, mut high) = (1e-6_f64, 1e9_f64);
    for _ in 0..100 {
        let middle = (low * high).sqrt();
        match trigamma(middle) > value {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Random;
    use crate::statistics::figure;

    fn close(found: f64, known: f64, share: f64) {
        assert!(
            (found / known - 1.0).abs() < share,
            "{found} and not {known}"
        );
    }

    /// From Abramowitz and Stegun's handbook, 6.3.2, 6.3.3, 6.4.4 and 6.1.8.
    #[test]
    fn gamma_and_its_derivatives_have_the_known_values() {
        let pi = std::f64::consts::PI;
        let euler = 0.577_215_664_901_532_9;
        close(digamma(1.0), -euler, 1e-9);
        close(digamma(0.5), -euler - 2.0 * 2.0_f64.ln(), 1e-9);
        close(trigamma(1.0), pi * pi / 6.0, 1e-9);
        close(trigamma(0.5), pi * pi / 2.0, 1e-9);
        close(log_gamma(0.5), pi.ln() / 2.0, 1e-9);
        close(log_gamma(6.0), 120.0_f64.ln(), 1e-9);
        for x in [0.02, 0.5, 3.0, 500.0] {
            close(trigamma_inverse(trigamma(x)), x, 1e-6);
        }
    }

    /// A table of Student's t; with one degree of freedom it is Cauchy's, with two there is a
    /// formula.
    #[test]
    fn quantiles_are_those_of_tables() {
        for (freedom, known) in [
            (1.0, (std::f64::consts::PI * 0.475).tan()),
            (2.0, 0.95 * (2.0_f64 / (1.0 - 0.95 * 0.95)).sqrt()),
            (3.0, 3.18245),
            (7.0, 2.36462),
            (30.0, 2.04227),
            (120.0, 1.97993),
            (f64::INFINITY, NORMAL),
        ] {
            close(quantile(freedom), known, 1e-5);
        }
        // Between two whole numbers, and few: wide, but finite.
        assert!(quantile(1.5) < quantile(1.4) && quantile(1.5) > quantile(2.0));
        assert!(quantile(0.05).is_finite());
    }

    /// Variances with so many degrees of freedom around others that are drawn from a prior.
    fn drawn(count: usize, own: u32, prior: Prior, seed: u64) -> Vec<(f64, f64)> {
        let mut random = Random::new(seed);
        let mut chi = |degrees: u32| -> f64 { (0..degrees).map(|_| random.normal().powi(2)).sum() };
        (0..count)
            .map(|_| {
                let theirs = match prior.freedom.is_infinite() {
                    true => prior.variance,
                    false => prior.variance * prior.freedom / chi(prior.freedom as u32),
                };
                (theirs * chi(own) / f64::from(own), f64::from(own))
            })
            .collect()
    }

    #[test]
    fn what_variances_were_drawn_from_is_found() {
        for freedom in [2.0, 4.0, 10.0] {
            let truth = Prior {
                freedom,
                variance: 0.09,
            };
            let found = fit(&drawn(20_000, 2, truth, 7)).unwrap();
            close(found.freedom, freedom, 0.15);
            close(found.variance, 0.09, 0.1);
        }
        // All the same: many degrees of freedom.
        let same = Prior {
            freedom: f64::INFINITY,
            variance: 0.09,
        };
        let found = fit(&drawn(20_000, 2, same, 7)).unwrap();
        assert!(found.freedom > 20.0, "{found:?}");
        close(found.variance, 0.09, 0.05);
    }

    /// By hand: three equal variances scatter less than chance, so they are pooled.
    #[test]
    fn equal_variances_are_pooled() {
        let prior = fit(&[(4.0, 1.0), (4.0, 1.0), (4.0, 2.0)]).unwrap();
        assert!(prior.freedom.is_infinite());
        close(prior.variance, 4.0, 1e-12);
        assert_eq!(moderated(9.0, 2.0, prior), (prior.variance, f64::INFINITY));
        let prior = Prior {
            freedom: 3.0,
            variance: 1.0,
        };
        // (3 * 1 + 2 * 9) / 5.
        let (variance, freedom) = moderated(9.0, 2.0, prior);
        close(variance, 4.2, 1e-12);
        close(freedom, 5.0, 1e-12);
    }

    #[test]
    fn too_few_and_exact_figures_are_left_alone() {
        assert_eq!(fit(&[(1.0, 1.0), (2.0, 1.0)]), None);
        assert_eq!(fit(&[(0.0, 1.0); 9]), None);
        let measures = [Measure {
            name: "rate".into(),
            ..Measure::default()
        }];
        for runs in [
            vec![3.0, 3.0],
            vec![5.0],
            vec![0.0, 1.0],
            vec![1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.1, 0.9],
        ] {
            let mut cells = cells_of(&vec![runs; 5]);
            let before = cells.clone();
            moderate(&mut cells, &measures);
            assert_eq!(cells, before);
        }
    }

    fn cells_of(runs: &[Vec<f64>]) -> Vec<Cell> {
        runs.iter()
            .map(|runs| Cell {
                subject: "sluice".into(),
                figures: [("rate".to_string(), figure(runs))].into(),
                ..Cell::default()
            })
            .collect()
    }

    /// The share of next medians inside, and the median of half-widths as shares, of experiments
    /// with so many cells whose scatter differs between them as the prior says.
    fn tried(prior: Prior, cells: usize, count: usize, is_moderated: bool) -> (f64, f64) {
        let (mut inside, mut tries, mut halves) = (0, 0, Vec::new());
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let scatters = drawn(cells, 1_000, prior, seed + 1_000_000);
            let mut draw = |variance: f64| -> Vec<f64> {
                (0..count)
                    .map(|_| (100.0_f64.ln() + variance.sqrt() * random.normal()).exp())
                    .collect()
            };
            let first: Vec<_> = scatters.iter().map(|&(v, _)| draw(v)).collect();
            let mut found = cells_of(&first);
            if is_moderated {
                let measure = Measure {
                    name: "rate".into(),
                    ..Measure::default()
                };
                moderate(&mut found, &[measure]);
            }
            for (cell, &(variance, _)) in found.iter().zip(&scatters) {
                let figure = &cell.figures["rate"];
                let next = median(&draw(variance));
                inside += usize::from((figure.low..=figure.high).contains(&next));
                tries += 1;
                halves.push((figure.high - figure.low) / 2.0 / figure.median);
            }
        }
        (f64::from(inside as u32) / f64::from(tries), median(&halves))
    }

    #[test]
    fn moderated_intervals_hold_the_next_median_and_are_narrower() {
        for (freedom, count, cells) in [
            (4.0, 2, 8),
            (4.0, 3, 8),
            (f64::INFINITY, 2, 5),
            (2.0, 3, 12),
        ] {
            let prior = Prior {
                freedom,
                variance: 0.03 * 0.03,
            };
            let (before, wide) = tried(prior, cells, count, false);
            let (inside, narrow) = tried(prior, cells, count, true);
            assert!(
                inside >= 0.92,
                "{freedom} {count} {cells}: {inside}, {before} before"
            );
            assert!(
                narrow < 0.8 * wide,
                "{freedom} {count} {cells}: {narrow} and {wide}"
            );
        }
    }

    #[test]
    fn kinds_are_subjects_where_these_have_enough_figures() {
        let mut cells = cells_of(&[
            vec![10.0, 10.1],
            vec![20.0, 20.4],
            vec![30.0, 30.2],
            vec![5.0, 9.0],
            vec![7.0, 4.0],
        ]);
        cells[3].subject = "linux-bridge".into();
        cells[4].subject = "linux-ip".into();
        let alone = cells[3].figures["rate"].clone();
        let measures = [Measure {
            name: "rate".into(),
            ..Measure::default()
        }];
        moderate(&mut cells, &measures);
        // Three figures of one subject are a kind; two of others are not enough.
        let first = &cells[0].figures["rate"];
        assert!(first.borrowed > 0.5, "{first:?}");
        assert!(
            first.low <= 10.0 && first.high >= 10.1 && first.low > 8.0,
            "{first:?}"
        );
        assert_eq!(cells[3].figures["rate"], alone);
    }
}
