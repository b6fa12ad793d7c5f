//! Markers against the words of their RFCs, token by token.

use proptest::prelude::*;
use qos::policer::{Color, PeakRate, Profile, QueuePolicer, SingleRate, TwoRates, counted};

const SECOND: u128 = 1_000_000_000;

/// A bucket of an RFC: tokens that have come since a look, at the ticks of a counter that runs since the clock's zero.
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

    /// RFC 4115 section 3, aware of colours, and RFC 2698 section 3, blind to them.
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

#[test]
fn queues_police_first_and_the_port_after() {
    let none = Profile::default();
    let burst = |burst| Profile { rate: 0, burst };
    let policer = QueuePolicer::new(
        (burst(1000), burst(500)),
        [(3, burst(2000), none), (0, burst(100), burst(300))],
        0,
    );
    // Queue 3 says green, and the port has 1000 committed and 500 more.
    assert!(policer.pass(Some(3), 1000, 0));
    assert!(policer.pass(Some(3), 400, 0), "the port's excess");
    assert!(!policer.pass(Some(3), 400, 0), "only 100 are left");
    // One that is not there goes by queue 0: 100 green that the port has no more, for which its excess does.
    assert!(policer.pass(Some(9), 100, 0));
    assert!(!policer.pass(None, 100, 0));
    let empty = QueuePolicer::new((burst(1000), none), [(1, burst(1000), none)], 0);
    assert!(
        !empty.pass(Some(2), 60, 0),
        "neither its queue nor queue 0 is there"
    );
    assert!(empty.pass(Some(1), 60, 0));
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
