//! Axes: what they cover, where their ticks are, and how these are written.

use crate::report::number;

/// Numbers further from zero cannot be drawn: differences of them would overflow.
pub const LARGEST: f64 = 1e200;

/// A tick of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where.
    pub at: f64,
    /// How it is written; empty: a line only.
    pub label: String,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Where it begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// Whether equal steps are equal factors.
    pub log: bool,
    /// Its ticks, rising; the first is at `low`, the last at `high`.
    pub ticks: Vec<Tick>,
}

/// Whether an axis can show it.
pub fn drawable(number: f64, log: bool) -> bool {
    number.is_finite() && number.abs() <= LARGEST && (!log || number >= 1.0 / LARGEST)
}

impl Axis {
    /// An axis that covers the values, with about `most` steps at most. `zero`: it begins at zero
    /// (or ends there). Values that cannot be drawn are ignored.
    pub fn linear(values: impl IntoIterator<Item = f64>, zero: bool, most: usize) -> Axis {
        let mut whole = true;
        let values = values
            .into_iter()
            .inspect(|value| whole &= value.fract() == 0.0);
        let (mut low, mut high) = range(values, false).unwrap_or((0.0, 1.0));
        if zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        let size = low.abs().max(high.abs());
        if size < 1.0 / LARGEST {
            high = 1.0;
        } else if high - low < 1e-9 * size {
            // One value, or several that no axis could tell apart.
            (low, high) = (low - size * 0.1, high + size * 0.1);
        }
        let mut size = (high - low) / most.max(1) as f64;
        if whole && high - low >= 1.0 {
            // Halves of what is counted are no values.
            size = size.max(1.0);
        }
        let step = Step::at_least(size);
        let first = step.below(low);
        let last = step.above(high).max(first + 1.0);
        let count = (last - first).round() as usize;
        let at: Vec<f64> = (0..=count)
            .map(|number| step.times(first + number as f64))
            .collect();
        let labels = linear_labels(&at, &step);
        Axis {
            low: at[0],
            high: at[count],
            log: false,
            ticks: at
                .into_iter()
                .zip(labels)
                .map(|(at, label)| Tick { at, label })
                .collect(),
        }
    }

    /// A logarithmic axis that covers the values above zero, or nothing if there is none.
    pub fn log(values: impl IntoIterator<Item = f64>, most: usize) -> Option<Axis> {
        let (least, largest) = range(values, true)?;
        // Numbers 1, 2, 5, 10, 20, 50, ... by their places in this sequence.
        let mut first = (decade(least) - 1) * 3;
        while round(first + 1) <= least {
            first += 1;
        }
        let mut last = first;
        while round(last) < largest {
            last += 1;
        }
        if last == first {
            last += 1;
        }
        let decades = (last - first) / 3;
        let at: Vec<i32> = if decades < 2 {
            (first..=last).collect()
        } else {
            let every = (decades as usize).div_ceil(most.max(2)) as i32;
            let inner = (first..=last).filter(|place| place % (3 * every) == 0);
            let mut at: Vec<i32> = [first].into_iter().chain(inner).chain([last]).collect();
            at.dedup();
            at
        };
        Some(Axis {
            low: round(first),
            high: round(last),
            log: true,
            ticks: at
                .into_iter()
                .map(|place| Tick {
                    at: round(place),
                    label: log_label(round(place)),
                })
                .collect(),
        })
    }

    /// Categories: one tick in the middle of each.
    pub fn categories(names: &[String]) -> Axis {
        Axis {
            low: -0.5,
            high: names.len().max(1) as f64 - 0.5,
            log: false,
            ticks: names
                .iter()
                .enumerate()
                .map(|(number, name)| Tick {
                    at: number as f64,
                    label: name.clone(),
                })
                .collect(),
        }
    }

    /// Where a value is: 0 at the axis's beginning, 1 at its end; the nearer of these where it is
    /// outside.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.log {
            (value.max(1.0 / LARGEST).log10() - self.low.log10())
                / (self.high.log10() - self.low.log10())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if place.is_nan() {
            0.0
        } else {
            place.clamp(0.0, 1.0)
        }
    }
}

/// The least and the largest value that can be drawn.
pub fn range(values: impl IntoIterator<Item = f64>, log: bool) -> Option<(f64, f64)> {
    values
        .into_iter()
        .filter(|&value| drawable(value, log))
        .fold(None, |range, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        })
}

/// A round step: 1, 2 or 5 times a power of ten.
struct Step {
    factor: f64,
    exponent: i32,
}

impl Step {
    fn at_least(size: f64) -> Step {
        let exponent = decade(size);
        let rest = size / power(exponent);
        match rest {
            rest if rest <= 1.0 + 1e-9 => Step {
                factor: 1.0,
                exponent,
            },
            rest if rest <= 2.0 + 1e-9 => Step {
                factor: 2.0,
                exponent,
            },
            rest if rest <= 5.0 + 1e-9 => Step {
                factor: 5.0,
                exponent,
            },
            _ => Step {
                factor: 1.0,
                exponent: exponent + 1,
            },
        }
    }

    /// A multiple of it, without the error that adding up would have.
    fn times(&self, count: f64) -> f64 {
        if self.exponent < 0 {
            count * self.factor / power(-self.exponent)
        } else {
            count * self.factor * power(self.exponent)
        }
    }

    /// How many of it reach at most so far.
    fn below(&self, value: f64) -> f64 {
        let mut count = (value / self.times(1.0)).floor();
        while self.times(count) > value {
            count -= 1.0;
        }
        if self.times(count + 1.0) <= value {
            count + 1.0
        } else {
            count
        }
    }

    /// How many of it reach at least so far.
    fn above(&self, value: f64) -> f64 {
        -self.below(-value)
    }
}

/// The exponent of the power of ten at or below a positive number.
fn decade(size: f64) -> i32 {
    let mut exponent = size.log10().floor() as i32;
    while power(exponent) > size {
        exponent -= 1;
    }
    exponent
}

fn power(exponent: i32) -> f64 {
    // As it is written, which is nearer than multiplying.
    format!("1e{exponent}").parse().unwrap_or(1.0)
}

/// Number `place` of 1, 2, 5, 10, 20, ...; 0 is 1.
fn round(place: i32) -> f64 {
    let digit = [1, 2, 5][place.rem_euclid(3) as usize];
    format!("{digit}e{}", place.div_euclid(3))
        .parse()
        .unwrap_or(1.0)
}

fn linear_labels(at: &[f64], step: &Step) -> Vec<String> {
    let size = at.iter().fold(0.0f64, |size, value| size.max(value.abs()));
    if !(1e-3..1e15).contains(&size) {
        let exponent = decade(size);
        let decimals = (exponent - step.exponent).clamp(0, 12) as usize;
        let raised = number::raised(exponent);
        return at
            .iter()
            .map(|&value| match value {
                0.0 => "0".to_string(),
                value => format!(
                    "{}×10{raised}",
                    number::fixed(value / power(exponent), decimals)
                ),
            })
            .collect();
    }
    let (thousands, suffix) = match size {
        size if size >= 1e12 => (12, " T"),
        size if size >= 1e9 => (9, " G"),
        size if size >= 1e6 => (6, " M"),
        size if size >= 1e5 => (3, " k"),
        _ => (0, ""),
    };
    let decimals = (thousands - step.exponent).clamp(0, 12) as usize;
    at.iter()
        .map(|&value| match value {
            0.0 => "0".to_string(),
            value => format!(
                "{}{suffix}",
                number::fixed(value / power(thousands), decimals)
            ),
        })
        .collect()
}

fn log_label(at: f64) -> String {
    match at {
        at if !(9e-5..9e14).contains(&at) => number::scientific(at),
        at if at >= 0.9e12 => format!("{} T", number::exact((at / 1e12).round())),
        at if at >= 0.9e9 => format!("{} G", number::exact((at / 1e9).round())),
        at if at >= 0.9e6 => format!("{} M", number::exact((at / 1e6).round())),
        at if at >= 0.9e3 => format!("{} k", number::exact((at / 1e3).round())),
        at => number::exact(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_those_one_would_write() {
        assert_eq!(
            labels(&Axis::linear([1.87, 1.76], true, 5)),
            ["0", "0.5", "1.0", "1.5", "2.0"]
        );
        assert_eq!(
            labels(&Axis::linear([-3.0, 4.0], true, 5)),
            ["−4", "−2", "0", "2", "4"]
        );
        assert_eq!(
            labels(&Axis::linear([0.0, 2.5e6], false, 3)),
            ["0", "1 M", "2 M", "3 M"]
        );
        assert_eq!(labels(&Axis::linear([], true, 2)), ["0", "1"]);
        assert_eq!(
            labels(&Axis::linear([1.0, 2.0, 3.0], false, 8)),
            ["1", "2", "3"]
        );
    }

    #[test]
    fn log_ticks_are_decades_or_halves_of_them() {
        assert_eq!(
            labels(&Axis::log([1.0, 1e6], 8).unwrap()),
            ["1", "10", "100", "1 k", "10 k", "100 k", "1 M"]
        );
        assert_eq!(
            labels(&Axis::log([0.16, 0.9], 8).unwrap()),
            ["0.1", "0.2", "0.5", "1"]
        );
        assert_eq!(
            labels(&Axis::log([1.0, 2000.0], 8).unwrap()),
            ["1", "10", "100", "1 k", "2 k"]
        );
        assert_eq!(Axis::log([0.0, -1.0, f64::NAN], 8), None);
    }

    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![
            4 => -1000.0..1000.0f64,
            2 => (-200..200i32, -10.0..10.0f64).prop_map(|(e, m)| m * 10f64.powi(e)),
            1 => any::<f64>(),
            1 => Just(0.0),
        ]
    }

    /// Whether it is 1, 2 or 5 times a power of ten, but for errors of representation.
    fn is_round(value: f64) -> bool {
        let digits = format!("{:.9e}", value.abs());
        ["1.", "2.", "5."]
            .iter()
            .any(|first| digits.starts_with(first))
            && digits.split('e').next().unwrap()[2..]
                .bytes()
                .all(|digit| digit == b'0')
    }

    proptest! {
        #[test]
        fn linear_ticks_are_round_and_cover_the_values(
            values in proptest::collection::vec(number(), 0..20), zero: bool, most in 1..12usize
        ) {
            let axis = Axis::linear(values.iter().copied(), zero, most);
            prop_assert!(axis.low.is_finite() && axis.high.is_finite() && axis.low < axis.high);
            prop_assert_eq!(axis.ticks.first().unwrap().at, axis.low);
            prop_assert_eq!(axis.ticks.last().unwrap().at, axis.high);
            prop_assert!(axis.ticks.len() >= 2 && axis.ticks.len() <= most + 3);
            for value in values.into_iter().filter(|&value| drawable(value, false)) {
                prop_assert!(axis.low <= value && value <= axis.high);
            }
            if zero {
                prop_assert!(axis.low <= 0.0 && axis.high >= 0.0);
            }
            let step = (axis.high - axis.low) / (axis.ticks.len() - 1) as f64;
            // An axis far from zero has steps that are not exact.
            if axis.high.abs().max(axis.low.abs()) < 1e5 * step {
                prop_assert!(is_round(step), "{}", step);
            }
            for pair in axis.ticks.windows(2) {
                prop_assert!(pair[0].at < pair[1].at);
                prop_assert!(pair[0].label != pair[1].label, "{:?}", labels(&axis));
            }
        }

        #[test]
        fn log_ticks_are_round_and_cover_the_values(
            values in proptest::collection::vec(number(), 1..20), most in 1..12usize
        ) {
            let shown: Vec<f64> =
                values.iter().copied().filter(|&value| drawable(value, true)).collect();
            let Some(axis) = Axis::log(values, most) else {
                prop_assert!(shown.is_empty());
                return Ok(());
            };
            prop_assert!(shown.iter().all(|&value| axis.low <= value && value <= axis.high));
            prop_assert_eq!(axis.ticks.first().unwrap().at, axis.low);
            prop_assert_eq!(axis.ticks.last().unwrap().at, axis.high);
            prop_assert!(axis.ticks.len() >= 2 && axis.ticks.len() <= most.max(7) + 4);
            for pair in axis.ticks.windows(2) {
                prop_assert!(is_round(pair[0].at) && pair[0].at < pair[1].at);
                prop_assert!(pair[0].label != pair[1].label, "{:?}", labels(&axis));
            }
        }

        #[test]
        fn places_are_within_the_axis(
            values in proptest::collection::vec(number(), 1..9), at in number(), log: bool
        ) {
            let axis = match log {
                true => Axis::log(values, 5),
                false => Some(Axis::linear(values, false, 5)),
            };
            if let Some(axis) = axis {
                prop_assert!((0.0..=1.0).contains(&axis.place(at)));
            }
        }
    }
}
