//! Compares markers with the text of their RFCs, token by token.

use proptest::prelude::*;
use qos::policer::{
    Color, IngressPolicer, IngressSpec, PeakRate, PolicerError, PolicerSpec, PolicerTotals,
    PortPolicer, Profile, Rates, SingleRate, TwoRates, counted,
};

const SECOND: u128 = 1_000_000_000;

/// A bucket of an RFC: counts the tokens that have arrived since the last use, at the ticks of a
/// counter that runs since the clock's zero.
#[derive(Clone, Copy)]
struct Tokens {
    rate: u128,
    depth: u128,
    level: u128,
}

impl Tokens {
    fn new(profile: Profile) -> Tokens {
        Tokens {
            rate: profile.rate.into(),
            depth: profile.burst.into(),
            level: profile.burst.into(),
        }
    }

    fn came(&self, from: u64, to: u64) -> u128 {
        let ticks = |at: u64| u128::from(at) * self.rate / SECOND;
        ticks(to) - ticks(from)
    }

    fn fill(&mut self, tokens: u128) -> u128 {
        let level = (self.level + tokens).min(self.depth);
        let spilled = self.level + tokens - level;
        self.level = level;
        spilled
    }

    fn take(&mut self, bytes: u64) -> bool {
        let enough = self.level >= bytes.into();
        if enough {
            self.level -= u128::from(bytes);
        }
        enough
    }
}

fn profile() -> impl Strategy<Value = Profile> {
    let rate = prop_oneof![Just(0_u64), 1..100_000_u64, 1..=u64::from(u32::MAX)];
    let burst = prop_oneof![Just(0_u64), 1..10_000_u64, 1..1_000_000_000_u64];
    (rate, burst).prop_map(|(rate, burst)| Profile { rate, burst })
}

fn packets() -> impl Strategy<Value = Vec<(u64, u64, u8)>> {
    let pause = prop_oneof![Just(0_u64), 0..100_000_u64, 0..3_000_000_000_u64];
    prop::collection::vec((pause, 0..9000_u64, 0..3_u8), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// RFC 2697 section 3: Tc and Te are incremented CIR times a second, Te only when Tc is full.
    #[test]
    fn a_single_rate_marks_as_its_rfc_says(committed in profile(), excess in 0..100_000_u64, start in 0..1_u64 << 50, packets in packets()) {
        let marker = SingleRate::new(committed, excess, start);
        let mut c = Tokens::new(committed);
        let mut e = Tokens::new(Profile { rate: 0, burst: excess });
        let mut now = start;
        for (pause, bytes, _) in packets {
            let spilled = c.fill(c.came(now, now + pause));
            e.fill(spilled);
            now += pause;
            let color = if c.take(bytes) {
                Color::Green
            } else if e.take(bytes) {
                Color::Yellow
            } else {
                Color::Red
            };
            prop_assert_eq!(marker.mark(bytes, now), color);
        }
    }

    /// RFC 4115 section 3, colour-aware, and RFC 2698 section 3, colour-blind.
    #[test]
    fn two_rates_mark_as_their_rfcs_say(first in profile(), second in profile(), start in 0..1_u64 << 50, packets in packets()) {
        let separate = TwoRates::new(first, second, start);
        let peak = PeakRate::new(first, second, start);
        let (mut c, mut e) = (Tokens::new(first), Tokens::new(second));
        let (mut tc, mut tp) = (c, e);
        let mut now = start;
        for (pause, bytes, color) in packets {
            for tokens in [&mut c, &mut e, &mut tc, &mut tp] {
                tokens.fill(tokens.came(now, now + pause));
            }
            now += pause;
            let came_as = [Color::Green, Color::Yellow, Color::Red][usize::from(color)];
            let expected = match came_as {
                Color::Green if c.take(bytes) => Color::Green,
                Color::Green | Color::Yellow if e.take(bytes) => Color::Yellow,
                _ => Color::Red,
            };
            prop_assert_eq!(separate.mark(bytes, came_as, now), expected);
            let expected = if !tp.take(bytes) {
                Color::Red
            } else if tc.take(bytes) {
                Color::Green
            } else {
                Color::Yellow
            };
            prop_assert_eq!(peak.mark(bytes, now), expected);
        }
    }
}

/// Returns rates that never refill, with these bursts.
fn bursts(committed: u64, excess: u64) -> Rates {
    let burst = |burst| Profile { rate: 0, burst };
    Rates {
        committed: burst(committed),
        excess: burst(excess),
    }
}

/// Returns the length of a frame that policers count as `counted` bytes.
fn frame(counted: usize) -> usize {
    counted + 14
}

#[test]
fn queues_police_first_and_the_port_after() {
    let spec = PolicerSpec::Queues {
        port: bursts(1000, 500),
        queues: vec![(3, bursts(2000, 0)), (0, bursts(100, 300))],
    };
    let policer = PortPolicer::new(&spec, 0);
    // Queue 3 marks it green, and the port has 1000 committed and 500 excess bytes.
    assert!(policer.pass(Some(3), frame(1000), 0));
    assert!(policer.pass(Some(3), frame(400), 0), "the port's excess");
    assert!(!policer.pass(Some(3), frame(400), 0), "only 100 are left");
    // A queue that is not listed uses queue 0: 100 green bytes, which the port's committed bucket
    // no longer has, but its excess bucket does.
    assert!(policer.pass(Some(9), frame(100), 0));
    assert!(!policer.pass(None, frame(100), 0));
    let counted = |packets, bytes, dropped| PolicerTotals {
        packets,
        bytes,
        dropped,
    };
    assert_eq!(
        policer.totals(),
        [(0, counted(1, 100, 1)), (3, counted(2, 1400, 1))]
    );
    let empty = PortPolicer::new(
        &PolicerSpec::Queues {
            port: bursts(1000, 0),
            queues: vec![(1, bursts(1000, 0))],
        },
        0,
    );
    assert!(
        !empty.pass(Some(2), frame(60), 0),
        "neither its queue nor queue 0 is there"
    );
    assert!(empty.pass(Some(1), frame(60), 0));
}

#[test]
fn buckets_that_do_not_change_keep_their_tokens() {
    let spec = |port, third| PolicerSpec::Queues {
        port,
        queues: vec![(0, bursts(500, 0)), (3, third)],
    };
    let policer = PortPolicer::new(&spec(bursts(2000, 0), bursts(800, 0)), 0);
    assert!(policer.pass(Some(3), frame(800), 0) && policer.pass(None, frame(500), 0));
    let changed = policer.changed(&spec(bursts(2000, 0), bursts(900, 0)), 0);
    assert!(
        !changed.pass(None, frame(1), 0),
        "queue 0 is as empty as before"
    );
    assert!(
        !changed.pass(Some(3), frame(900), 0),
        "queue 3 is full, but the port has 700 left"
    );
    assert!(changed.pass(Some(3), frame(0), 0));
    let totals: Vec<(u64, u64)> = changed
        .totals()
        .iter()
        .map(|(_, totals)| (totals.packets, totals.dropped))
        .collect();
    assert_eq!(totals, [(1, 1), (2, 1)], "counts go on");
    let one = |burst| PolicerSpec::One(Profile { rate: 1, burst });
    let single = PortPolicer::new(&one(100), 0);
    assert!(single.pass(Some(7), frame(100), 0));
    assert!(!single.changed(&one(100), 0).pass(None, frame(100), 0));
    assert!(
        single.changed(&one(101), 0).pass(None, frame(100), 0),
        "another burst begins full"
    );
    assert_eq!(single.totals(), []);
}

#[test]
fn rates_that_cannot_be_are_named() {
    let one = |rate, burst| {
        PolicerSpec::One(Profile { rate, burst })
            .check()
            .map_err(|error| error.to_string())
    };
    assert_eq!(one(1000, 1500), Ok(()));
    assert_eq!(
        one(0, 1500).unwrap_err(),
        "cir is missing: nothing would pass"
    );
    assert_eq!(
        one(1000, 0).unwrap_err(),
        "cir of 1000 bytes a second needs cbs, the bytes that may come at once"
    );
    assert_eq!(
        one(50_000_000_001, 1).unwrap_err(),
        "cir: 50000000001 bytes a second are more than 50000000000"
    );
    assert_eq!(
        one(1, 50_000_000_001).unwrap_err(),
        "cbs: 50000000001 bytes are more than 50000000000"
    );
    let queue = |excess| PolicerSpec::Queues {
        port: bursts(1, 0),
        queues: vec![(
            7,
            Rates {
                excess,
                ..bursts(1, 0)
            },
        )],
    };
    let error = queue(Profile { rate: 5, burst: 0 }).check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "queue 7: eir of 5 bytes a second needs ebs, the bytes that may come at once"
    );
    let twice = PolicerSpec::Queues {
        port: bursts(0, 0),
        queues: vec![(7, bursts(0, 0)); 2],
    };
    assert_eq!(twice.check(), Err(PolicerError::Twice(7)));
}

#[test]
fn receiving_is_policed_by_bits_and_by_packets() {
    let ingress = |kbits_rate, kbits_burst, kpkts_rate, kpkts_burst| {
        IngressPolicer::new(
            &IngressSpec {
                kbits_rate,
                kbits_burst,
                kpkts_rate,
                kpkts_burst,
            },
            0,
        )
    };
    let passes = |policer: &IngressPolicer, counted, now_ns| {
        (0..100_000)
            .take_while(|_| policer.pass(frame(counted), now_ns))
            .count()
    };
    assert!(ingress(0, 9, 0, 9).is_none());
    let bits = ingress(8, 80, 0, 0).unwrap();
    assert_eq!(passes(&bits, 1000, 0), 10, "80 kbit");
    assert_eq!(passes(&bits, 1000, 3_000_000_000), 3, "8 kbit/s for 3 s");
    assert_eq!(
        passes(&ingress(8, 0, 0, 0).unwrap(), 1000, 0),
        1000,
        "8000 kbit where none is said"
    );
    let packets = ingress(0, 0, 1, 2).unwrap();
    assert_eq!(passes(&packets, 0, 0), 2000);
    assert_eq!(passes(&packets, 0, 5_000_000), 5);
    assert_eq!(passes(&ingress(0, 0, 1, 0).unwrap(), 9000, 0), 16_000);
    assert_eq!(
        passes(&ingress(8, 80, 1, 2).unwrap(), 1000, 0),
        10,
        "the tighter of both"
    );
    assert_eq!(passes(&ingress(80_000, 0, 1, 2).unwrap(), 64, 0), 2000);
    let most = ingress(
        u32::MAX,
        u32::MAX,
        IngressSpec::MAX_KPKTS,
        IngressSpec::MAX_KPKTS,
    )
    .unwrap();
    assert!(most.pass(frame(9000), 0));
}

#[test]
fn rates_above_four_gigabytes_are_near_enough() {
    let rate = 12_500_000_000;
    let policer = SingleRate::new(Profile { rate, burst: rate }, 0, 0);
    assert_eq!(policer.mark(rate, 0), Color::Green);
    assert_eq!(policer.mark(rate, 1_000_000_000), Color::Green);
    assert_eq!(policer.mark(1, 1_000_000_000), Color::Red);
    assert_eq!((counted(1514), counted(10)), (1500, 0));
}

#[test]
fn workers_share_a_policer_to_the_byte() {
    let spec = PolicerSpec::Queues {
        port: bursts(900_000, 0),
        queues: vec![(0, bursts(100_000, 0)), (1, bursts(1_000_000, 0))],
    };
    let policer = PortPolicer::new(&spec, 0);
    let ingress = IngressPolicer::new(
        &IngressSpec {
            kbits_rate: 1,
            kbits_burst: 800,
            kpkts_rate: 1,
            kpkts_burst: 1,
        },
        0,
    )
    .unwrap();
    let work = |queue| {
        let sent = (0..20_000)
            .filter(|_| policer.pass(queue, frame(100), 0))
            .count();
        let received = (0..2_000).filter(|_| ingress.pass(frame(100), 0)).count();
        (sent, received)
    };
    let sums = std::thread::scope(|scope| {
        let threads: Vec<_> = [None, Some(1), Some(1), Some(7)]
            .map(|queue| scope.spawn(move || work(queue)))
            .into();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert_eq!(sums, (9_000, 1_000));
    let totals = policer.totals();
    let passed: u64 = totals.iter().map(|(_, totals)| totals.packets).sum();
    let dropped: u64 = totals.iter().map(|(_, totals)| totals.dropped).sum();
    assert_eq!((passed, dropped), (9_000, 71_000));
}
