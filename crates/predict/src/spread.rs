//! A measured figure with an interval.

use serde::{Deserialize, Serialize};

/// A median and an interval around it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The 10th percentile of the rounds, or the minimum of the slices.
    pub low: f64,
    /// The 90th percentile of the rounds, or the maximum of the slices.
    pub high: f64,
}

impl Spread {
    /// Evaluates rounds; zero without any.
    pub fn of(mut rounds: Vec<f64>) -> Spread {
        rounds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (rounds.len().saturating_sub(1)) as f64 * share;
            rounds.get(index.round() as usize).copied().unwrap_or(0.0)
        };
        Spread {
            median: at(0.5),
            low: at(0.1),
            high: at(0.9),
        }
    }

    /// Evaluates slices, each of which is the mean over many rounds already: the interval is their
    /// minimum and maximum. Zero without any.
    pub fn of_slices(slices: Vec<f64>) -> Spread {
        let ends = slices.iter().copied().fold(None, |ends, slice| {
            let (least, most): (f64, f64) = ends.unwrap_or((slice, slice));
            Some((least.min(slice), most.max(slice)))
        });
        let (low, high) = ends.unwrap_or_default();
        Spread {
            median: Spread::of(slices).median,
            low,
            high,
        }
    }

    /// Returns the relative distance of the interval's upper end from its lower end; 0 for zero.
    pub fn extent(&self) -> f64 {
        match self.low > 0.0 {
            true => self.high / self.low - 1.0,
            false => 0.0,
        }
    }

    /// Returns a figure without error.
    pub fn exact(value: f64) -> Spread {
        Spread {
            median: value,
            low: value,
            high: value,
        }
    }

    /// Returns the sum of two figures with independent errors.
    pub fn plus(self, other: Spread) -> Spread {
        let median = self.median + other.median;
        Spread {
            median,
            low: median - (self.median - self.low).hypot(other.median - other.low),
            high: median + (self.high - self.median).hypot(other.high - other.median),
        }
    }

    /// Returns the difference of two figures with independent errors.
    pub fn minus(self, other: Spread) -> Spread {
        self.plus(other.times(-1.0))
    }

    /// Returns a multiple.
    pub fn times(self, factor: f64) -> Spread {
        let (one, other) = (self.low * factor, self.high * factor);
        Spread {
            median: self.median * factor,
            low: one.min(other),
            high: one.max(other),
        }
    }

    /// Raises figure and interval to at least `least`.
    pub fn at_least(self, least: f64) -> Spread {
        Spread {
            median: self.median.max(least),
            low: self.low.max(least),
            high: self.high.max(least),
        }
    }

    /// Returns `factor` divided by the figure, which must be above zero.
    pub fn inverse(self, factor: f64) -> Spread {
        Spread {
            median: factor / self.median,
            low: factor / self.high,
            high: factor / self.low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_tenths_of_rounds() {
        let spread = Spread::of((0..=100).rev().map(f64::from).collect());
        assert_eq!(
            spread,
            Spread {
                median: 50.0,
                low: 10.0,
                high: 90.0
            }
        );
        assert_eq!(Spread::of(Vec::new()), Spread::exact(0.0));
    }

    #[test]
    fn the_least_and_the_most_of_slices() {
        let spread = Spread::of_slices(vec![12.0, 10.0, 11.0, 15.0, 11.5]);
        assert_eq!((spread.low, spread.median, spread.high), (10.0, 11.5, 15.0));
        assert_eq!(spread.extent(), 0.5);
        assert_eq!(Spread::of_slices(Vec::new()), Spread::exact(0.0));
        assert_eq!(Spread::exact(0.0).extent(), 0.0);
    }

    #[test]
    fn errors_add_as_those_of_independent_figures() {
        let one = Spread {
            median: 10.0,
            low: 7.0,
            high: 13.0,
        };
        let other = Spread {
            median: 5.0,
            low: 1.0,
            high: 9.0,
        };
        let sum = one.plus(other);
        assert_eq!((sum.median, sum.low, sum.high), (15.0, 10.0, 20.0));
        let difference = one.minus(other);
        assert_eq!(
            (difference.median, difference.low, difference.high),
            (5.0, 0.0, 10.0)
        );
        let rate = one.inverse(91.0);
        assert_eq!((rate.low, rate.median, rate.high), (7.0, 9.1, 13.0));
    }
}
