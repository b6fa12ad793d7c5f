//! Counts how often intervals contained what was measured afterwards.

use crate::{Span, Z95};
use serde::Serialize;

/// A count of intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Intervals that contained the measurement.
    pub held: u64,
    /// Intervals that were judged.
    pub judged: u64,
}

impl Record {
    /// Judges one more interval; differences up to `resolution` are ignored.
    pub fn judge(&mut self, interval: &Span, measured: f64, resolution: f64) {
        self.judged += 1;
        self.held += u64::from(interval.holds(measured, resolution));
    }

    /// Returns the share of right intervals, with its own interval (Wilson's); None if none were
    /// judged.
    pub fn coverage(&self) -> Option<Span> {
        if self.judged == 0 {
            return None;
        }
        let (count, share) = (self.judged as f64, self.held as f64 / self.judged as f64);
        let square = Z95 * Z95;
        let middle = (share + square / (2.0 * count)) / (1.0 + square / count);
        let half = Z95 / (1.0 + square / count)
            * (share * (1.0 - share) / count + square / (4.0 * count * count)).sqrt();
        Some(Span {
            value: share,
            low: (middle - half).max(0.0),
            high: (middle + half).min(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_counted() {
        let mut record = Record::default();
        assert_eq!(record.coverage(), None);
        let interval = Span {
            value: 2.0,
            low: 1.0,
            high: 3.0,
        };
        for measured in [0.9, 1.0, 2.0, 3.1] {
            record.judge(&interval, measured, 0.0);
        }
        record.judge(&interval, 0.9, 0.2);
        assert_eq!((record.held, record.judged), (3, 5));
        let coverage = record.coverage().unwrap();
        assert!(
            coverage.low > 0.2 && coverage.low < 0.6 && coverage.high > 0.6 && coverage.high < 0.95
        );
    }
}
