//! Histograms of times: HDR's buckets with three significant digits, in an array that is cheap to
//! add to.

use crate::report::Percentiles;
use base64::Engine;
use hdrhistogram::Histogram as Hdr;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

/// Bits of a value that are kept: 2^11 values between two powers of two differ by less than 0.1%.
const PRECISION: u32 = 11;
/// Longest time, nanoseconds (18 minutes); longer ones are taken for it.
const MOST: u64 = (1 << 40) - 1;
const BUCKETS: usize = ((40 - PRECISION as usize) + 2) << (PRECISION - 1);

/// A histogram of times in nanoseconds. Memory that no value has reached is not touched.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    least: u64,
    most: u64,
}

/// Returns the bucket of a value.
#[inline(always)]
fn bucket(value: u64) -> usize {
    let shift = (64 - value.leading_zeros()).saturating_sub(PRECISION);
    ((shift as usize) << (PRECISION - 1)) + (value >> shift) as usize
}

/// Returns the least value of a bucket.
fn value_of(bucket: usize) -> u64 {
    let half = 1 << (PRECISION - 1);
    let shift = (bucket / half).saturating_sub(1);
    ((bucket - shift * half) as u64) << shift
}

impl Histogram {
    /// Makes an empty one.
    pub fn new() -> Histogram {
        Histogram {
            counts: vec![0; BUCKETS],
            count: 0,
            sum: 0,
            least: u64::MAX,
            most: 0,
        }
    }

    /// Adds a time, some times.
    #[inline(always)]
    pub fn add(&mut self, ns: u64, times: u64) {
        if times == 0 {
            return;
        }
        let ns = ns.min(MOST);
        self.counts[bucket(ns)] += times;
        self.count += times;
        self.sum += u128::from(ns) * u128::from(times);
        self.least = self.least.min(ns);
        self.most = self.most.max(ns);
    }

    /// Adds all times of another one.
    pub fn add_all(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            // Memory that no value has reached stays untouched.
            if *more > 0 {
                *count += more;
            }
        }
        self.count += other.count;
        self.sum += other.sum;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    /// Returns how many times there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the greatest time, 0 if there is none.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Returns the time that this share of all does not exceed, to 0.1%; 0 if there is none.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (value_of(bucket + 1) - 1).clamp(self.least, self.most);
            }
        }
        0
    }

    /// Returns what a report says of it.
    pub fn percentiles(&self) -> Percentiles {
        if self.count == 0 {
            return Percentiles::default();
        }
        Percentiles {
            count: self.count,
            min: self.least,
            mean: self.sum as f64 / self.count as f64,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: self.most,
            histogram: self.encoded(),
        }
    }

    /// Returns it as HDR's tools read it: V2, deflated, base64. None only without memory.
    fn encoded(&self) -> Option<String> {
        let mut hdr = Hdr::<u64>::new_with_bounds(1, MOST.max(2), 3).ok()?;
        for (bucket, &count) in self.counts.iter().enumerate() {
            if count > 0 {
                hdr.record_n(value_of(bucket), count).ok()?;
            }
        }
        let mut bytes = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        serializer.serialize(&hdr, &mut bytes).ok()?;
        Some(base64::engine::general_purpose::STANDARD.encode(bytes))
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            mut values in proptest::collection::vec(0_u64..1 << 41, 1..200), split in 0_usize..200,
        ) {
            // In two parts, one of which may have none.
            let (mut histogram, mut other) = (Histogram::new(), Histogram::new());
            for (at, &value) in values.iter().enumerate() {
                let part = if at < split { &mut histogram } else { &mut other };
                part.add(value, 1);
            }
            histogram.add_all(&other);
            values.iter_mut().for_each(|value| *value = (*value).min(MOST));
            values.sort_unstable();
            for share in [0.0, 0.5, 0.9, 0.999, 1.0] {
                let place = ((values.len() as f64 * share).ceil() as usize).max(1) - 1;
                let (found, exact) = (histogram.quantile(share), values[place]);
                prop_assert!(found >= exact && found - exact <= exact / 1000, "{found} {exact}");
            }
            let told = histogram.percentiles();
            prop_assert_eq!((told.min, told.max), (values[0], values[values.len() - 1]));
        }
    }

    #[test]
    fn buckets_are_in_order_without_gaps() {
        for at in 0..BUCKETS {
            assert_eq!(bucket(value_of(at)), at);
            assert!(value_of(at + 1) > value_of(at));
            assert_eq!(bucket(value_of(at + 1) - 1), at);
        }
        assert_eq!(bucket(MOST), BUCKETS - 1);
    }

    #[test]
    fn hdr_reads_what_is_encoded() {
        let mut histogram = Histogram::new();
        for value in [0, 1, 2047, 2048, 123_456, 99_999_999] {
            histogram.add(value, 7);
        }
        let text = histogram.percentiles().histogram.unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(text);
        let read: Hdr<u64> = Deserializer::new()
            .deserialize(&mut bytes.unwrap().as_slice())
            .unwrap();
        assert_eq!(read.len(), 42);
        assert_eq!(read.count_at(123_456), 7);
        assert!(read.max() >= 99_999_999 && read.max() < 100_100_000);
    }
}
