//! Compares the meter with its reference, and its rates with the clock.

use proptest::prelude::*;
use qos::bucket::{Rate, TokenBucket};
use qos::meter::{BandKind, BandSpec, Count, Meter, MeterOutcome, Unit};
use qos::reference;

const SECOND: u64 = 1_000_000_000;

fn rate() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u32::MAX),
        1..2000_u32,
        1..=100_000_000_u32,
        any::<u32>(),
    ]
}

fn band() -> impl Strategy<Value = BandSpec> {
    let kind = prop_oneof![Just(BandKind::Drop), (0..4_u8).prop_map(BandKind::Remark)];
    let burst = prop_oneof![Just(0), Just(1), 1..5000_u32, any::<u32>()];
    (kind, rate(), burst).prop_map(|(kind, rate, burst)| BandSpec { kind, rate, burst })
}

/// Pauses between packets: none, within a burst, long, and very long.
fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0_u64),
        0..2000_u64,
        0..SECOND,
        0..100 * SECOND,
        0..3600 * 24 * SECOND,
        Just(40 * 24 * 3600 * SECOND),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_packet_meets_the_same_fate_as_in_the_reference(
        packets in any::<bool>(),
        bands in prop::collection::vec(band(), 0..5),
        start in prop_oneof![Just(0_u64), 0..1_u64 << 50],
        events in prop::collection::vec((pause(), 0..70_000_u64), 1..300),
    ) {
        let unit = if packets { Unit::Packets } else { Unit::Kilobits };
        let meter = Meter::new(unit, &bands, start);
        let mut slow = reference::Meter::new(unit, &bands, start);
        let mut acted = vec![Count::default(); bands.len()];
        let mut met = Count::default();
        let mut now = start;
        for (pause, bytes) in events {
            now += pause;
            let (verdict, band) = slow.police(bytes, now);
            prop_assert_eq!(meter.police(bytes, now), verdict);
            met.packets += 1;
            met.bytes += bytes;
            if let Some(band) = band {
                acted[band].packets += 1;
                acted[band].bytes += bytes;
            }
        }
        prop_assert_eq!(meter.met(), met);
        prop_assert_eq!(meter.acted().collect::<Vec<_>>(), acted);
    }

    /// Twice the rate is offered for a second, after the burst is used up: the rate passes, within
    /// 0.5 percent and a packet.
    #[test]
    fn the_rate_passes_in_a_second(
        rate in prop_oneof![Just(1_u32), Just(u32::MAX), 1..100_u32, 1..=100_000_u32, any::<u32>()],
        packets in any::<bool>(),
        bytes in 60..9000_u64,
        start in 0..1_u64 << 50,
        uneven in 1..1000_u64,
    ) {
        prop_assume!(rate > 0);
        let unit = if packets { Unit::Packets } else { Unit::Kilobits };
        let spec = BandSpec { kind: BandKind::Drop, rate, burst: 0 };
        // The bucket, a second deep, is emptied first so that it is not the limit; packets of many
        // tokens stand for many packets.
        let (per_second, unit_cost) = match unit {
            Unit::Packets => (u64::from(rate), 1),
            Unit::Kilobits => (u64::from(rate) * 1000, bytes * 8),
        };
        let bucket = match unit {
            Unit::Packets => TokenBucket::new(Rate::per_second(rate), spec.depth().into(), start),
            Unit::Kilobits => TokenBucket::new(Rate::thousands_per_second(rate), u64::from(spec.depth()) * 1000, start),
        };
        prop_assert!(bucket.take(bucket.level(start), start));
        // At most 20,000 steps; packets are large enough that together they make twice the rate.
        let steps = (2 * per_second / unit_cost).clamp(10, 20_000);
        let cost = (2 * per_second / steps).max(unit_cost);
        let mut passed = 0_u64;
        for step in 1..=steps {
            let jitter = (step * uneven) % (SECOND / steps);
            let now = start + SECOND / steps * step - jitter;
            if bucket.take(cost, now) {
                passed += cost;
            }
        }
        let error = passed.abs_diff(per_second);
        prop_assert!(error <= per_second / 200 + 2 * cost, "{passed} of {per_second}");
    }
}

#[test]
fn the_rate_holds_over_a_day_to_the_token() {
    for rate in [1_u32, 7, 333, 999_983, u32::MAX] {
        let bucket = TokenBucket::new(Rate::thousands_per_second(rate), 1 << 50, 0);
        assert!(bucket.take(1 << 50, 0));
        let (mut now, mut taken) = (0_u64, 0_u64);
        while now < 86_400 * SECOND {
            now += 977_000_003;
            let level = bucket.level(now);
            assert!(bucket.take(level, now));
            taken += level;
        }
        let exact = u128::from(now) * u128::from(rate) * 1000 / u128::from(SECOND);
        assert_eq!(u128::from(taken), exact);
    }
}

#[test]
fn a_long_rest_fills_and_a_clock_that_goes_back_gives_nothing() {
    let bucket = TokenBucket::new(Rate::thousands_per_second(u32::MAX), 1000, 0);
    assert!(bucket.take(1000, 0));
    // About 2^63 and 2^64 tokens later.
    for days in [24_u64, 25, 26, 49, 50, 60, 3650] {
        let now = days * 86_400 * SECOND;
        assert_eq!(bucket.level(now), 1000, "after {days} days");
    }
    assert!(bucket.take(1000, 50 * 86_400 * SECOND));
    assert!(!bucket.take(1, 50 * 86_400 * SECOND - 5));
    assert_eq!(bucket.level(3), 0);
}

#[test]
fn threads_together_get_what_the_bucket_holds() {
    let meter = Meter::new(
        Unit::Packets,
        &[BandSpec {
            kind: BandKind::Drop,
            rate: 0,
            burst: 10_000,
        }],
        0,
    );
    let passed = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for now in 0..8000 {
                    if meter.police(100, now) == MeterOutcome::Pass {
                        passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 10_000);
    assert_eq!(meter.met().packets, 32_000);
    assert_eq!(meter.acted().next().unwrap().packets, 22_000);
}

#[test]
fn the_highest_rate_that_is_exceeded_acts() {
    let band = |kind, rate| BandSpec {
        kind,
        rate,
        burst: rate,
    };
    let meter = Meter::new(
        Unit::Packets,
        &[band(BandKind::Remark(1), 2), band(BandKind::Drop, 4)],
        0,
    );
    let fates: Vec<MeterOutcome> = (0..6).map(|_| meter.police(60, 0)).collect();
    use MeterOutcome::*;
    assert_eq!(fates, [Pass, Pass, Remark(1), Remark(1), Drop, Drop]);
}
