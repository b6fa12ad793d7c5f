//! Two sessions over a channel that loses, delays and reorders messages.

use bfd::session::{Session, Settings};
use bfd::wire::{Diagnostic, Message, State, TTL};
use proptest::prelude::*;

/// What the channel does to messages.
#[derive(Clone, Copy, Debug)]
struct Channel {
    /// Share of messages that are lost, percent.
    loss: u32,
    /// Longest delay, ms; each message has its own, so that they overtake each other.
    delay: u64,
}

const CLEAN: Channel = Channel { loss: 0, delay: 5 };
const CUT: Channel = Channel {
    loss: 100,
    delay: 5,
};

struct Pair {
    now: u64,
    ends: [Session; 2],
    /// Messages under way: when they arrive, at which end, and their bytes.
    way: Vec<(u64, usize, [u8; 24])>,
    random: u64,
    sent: [Vec<(u64, Message)>; 2],
    /// Changes of `is_forwarding` seen.
    changes: [u64; 2],
}

impl Pair {
    fn new(settings: [Settings; 2], random: u64) -> Pair {
        let [one, two] = settings;
        Pair {
            now: 5000,
            ends: [
                Session::new(one, 0x1111_1111, 5000, 0),
                Session::new(two, 0x2222_2222, 5000, 0),
            ],
            way: Vec::new(),
            random: random | 1,
            sent: Default::default(),
            changes: [0; 2],
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005) | 1;
        (self.random >> 33) % below
    }

    /// Lets so much time pass, in ms; ends are looked at when they are due, or up to `late` ms
    /// later.
    fn pass(&mut self, channel: Channel, ms: u64, late: u64) {
        let end = self.now + ms;
        while self.now < end {
            for index in 0..2 {
                let before = self.ends[index].is_forwarding();
                if self.ends[index].due() + self.random(late + 1) <= self.now {
                    self.ends[index].run(self.now, 0);
                }
                while let Some(message) = self.ends[index].transmit(self.now) {
                    self.sent[index].push((self.now, message));
                    if self.random(100) >= u64::from(channel.loss) {
                        let at = self.now + 1 + self.random(channel.delay + 1);
                        self.way.push((at, 1 - index, message.encode()));
                    }
                }
                let arriving: Vec<[u8; 24]> = (self.way)
                    .extract_if(.., |(at, to, _)| *at <= self.now && *to == index)
                    .map(|(_, _, bytes)| bytes)
                    .collect();
                for bytes in arriving {
                    // A message that is older than the receiver's last fall is refused, rightly.
                    let _ = self.ends[index].receive(TTL, &bytes, self.now);
                }
                let after = self.ends[index].is_forwarding();
                self.changes[index] += u64::from(before != after);
            }
            self.now += 1;
        }
    }

    fn states(&self) -> [State; 2] {
        [self.ends[0].state().0, self.ends[1].state().0]
    }

    /// The longest detection time of either end, ms.
    fn detection(&self) -> u64 {
        let of = |one: &Session, other: &Session| {
            one.rx_interval_ms() * u64::from(other.settings().multiplier)
        };
        of(&self.ends[0], &self.ends[1]).max(of(&self.ends[1], &self.ends[0]))
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    let decay = prop_oneof![Just(0_u32), 1..3000_u32];
    // Longer than what the clean channel delays messages by.
    (20..3000_u32, 20..3000_u32, 2..6_u8, any::<bool>(), decay).prop_map(
        |(min_rx_ms, min_tx_ms, multiplier, cpath_down, decay)| Settings {
            min_rx_ms,
            min_tx_ms,
            multiplier,
            cpath_down,
            decay_min_rx_ms: if decay == 0 { 0 } else { min_rx_ms + decay },
            ..Settings::default()
        },
    )
}

/// Long enough for three messages of either end, whatever the settings.
const SETTLING: u64 = 30_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever a bad channel and changes of settings have done: once the channel is clean both
    /// ends come up, agree on what each has wanted, and stay up.
    #[test]
    fn ends_come_up_and_stay_up(
        first in settings(),
        second in settings(),
        bad in prop::collection::vec((settings(), 0..2_usize, 0..100_u32, 1..400_u64, 1..4000_u64), 0..5),
        random in any::<u64>(),
    ) {
        let mut pair = Pair::new([first, second], random);
        for (settings, end, loss, delay, ms) in bad {
            pair.pass(Channel { loss, delay }, ms, 30);
            let now = pair.now;
            pair.ends[end].configure(settings, now, 0);
        }
        pair.pass(CLEAN, SETTLING, 0);
        let flaps = [pair.ends[0].flaps(), pair.ends[1].flaps()];
        prop_assert_eq!(pair.states(), [State::Up; 2]);
        // By now one that decays has.
        pair.pass(CLEAN, SETTLING, 0);
        prop_assert_eq!(pair.states(), [State::Up; 2]);
        prop_assert_eq!([pair.ends[0].flaps(), pair.ends[1].flaps()], flaps);
        for (one, other) in [(0, 1), (1, 0)] {
            let wanted = pair.ends[other].settings();
            let remote = pair.ends[one].remote();
            let rx = match wanted.decay_min_rx_ms {
                0 => wanted.min_rx_ms,
                decay => decay,
            };
            prop_assert_eq!(remote.min_tx_ms, u64::from(wanted.min_tx_ms));
            prop_assert_eq!(remote.min_rx_ms, u64::from(rx));
            let forwards = !wanted.cpath_down;
            prop_assert_eq!(pair.ends[one].is_forwarding(), forwards);
            let diagnostic = remote.diagnostic == Diagnostic::CONCATENATED_PATH_DOWN;
            prop_assert_eq!(diagnostic, wanted.cpath_down);
        }
        for (seen, end) in pair.changes.iter().zip(&pair.ends) {
            // Two changes by messages that arrived in the same millisecond are not seen.
            prop_assert!(*seen <= end.flaps() && (end.flaps() - seen) % 2 == 0);
        }
    }

    /// A cut is noticed by both ends within the detection time, and not before the multiplier's
    /// share of it; both come back afterwards.
    #[test]
    fn a_cut_is_noticed_in_time(first in settings(), second in settings(), random in any::<u64>()) {
        let plain = |settings| Settings { decay_min_rx_ms: 0, cpath_down: false, ..settings };
        let mut pair = Pair::new([plain(first), plain(second)], random);
        pair.pass(CLEAN, SETTLING, 0);
        prop_assert_eq!(pair.states(), [State::Up; 2]);
        let (began, most) = (pair.now, pair.detection());
        while pair.states() != [State::Down; 2] {
            pair.pass(CUT, 1, 0);
            prop_assert!(pair.now <= began + most + 10, "after {} ms", pair.now - began);
        }
        prop_assert_eq!(pair.ends[0].state().1, Diagnostic::EXPIRED);
        pair.pass(CLEAN, SETTLING, 0);
        prop_assert_eq!(pair.states(), [State::Up; 2]);
        // Up, down, up; more where a message of before overtook one of the other end's recovery.
        prop_assert!(pair.ends[0].flaps() >= 3 && pair.ends[0].flaps() % 2 == 1);
    }

    /// Messages keep their distance, never ask and answer at once, and are slow before the session
    /// is up. An end that is looked at up to 100 ms late does not fall, where the detection time
    /// allows for that.
    #[test]
    fn messages_keep_their_distance(first in settings(), second in settings(), random in any::<u64>()) {
        let calm = |settings: Settings| Settings {
            min_rx_ms: settings.min_rx_ms.max(100),
            multiplier: settings.multiplier.max(3),
            decay_min_rx_ms: 0,
            ..settings
        };
        let mut pair = Pair::new([calm(first), calm(second)], random);
        pair.pass(CLEAN, SETTLING, 100);
        prop_assert_eq!(pair.states(), [State::Up; 2]);
        for (index, sent) in pair.sent.iter().enumerate() {
            for (before, (at, message)) in sent.iter().zip(&sent[1..]) {
                prop_assert!(!(message.is_poll() && message.is_final()));
                let news = message.is_poll() || message.is_final() || message.state != before.1.state;
                let up = message.state == State::Up;
                let least = pair.ends[index].tx_interval_ms().max(if up { 0 } else { 1000 }) * 3 / 4;
                let gap = at - before.0;
                prop_assert!(news || !up && gap >= 750 || gap >= least, "{} ms: {:?}", gap, message);
            }
        }
        let late = |step: &bfd::Step| step.to.1 == Diagnostic::EXPIRED;
        for end in &mut pair.ends {
            prop_assert!(!end.take_steps().iter().any(late));
        }
    }

    /// No bytes cause a crash, and what is refused changes nothing.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40), ttl in 254..=255_u8, up in any::<bool>()) {
        let mut pair = Pair::new([Settings::default(), Settings::default()], 7);
        if up {
            pair.pass(CLEAN, 5000, 0);
        }
        let now = pair.now;
        let session = &mut pair.ends[0];
        let before = bfd::text::details(session, now);
        if session.receive(ttl, &bytes, now).is_err() {
            prop_assert_eq!(bfd::text::details(session, now), before);
        }
        let _ = bfd::wire::carried(&bytes);
    }
}

#[test]
fn admin_down_from_the_peer_takes_the_session_down() {
    let mut pair = Pair::new([Settings::default(), Settings::default()], 1);
    pair.pass(CLEAN, 5000, 0);
    assert_eq!(pair.states(), [State::Up; 2]);
    let now = pair.now;
    let message = Message {
        state: State::AdminDown,
        multiplier: 3,
        my_discriminator: 0x2222_2222,
        your_discriminator: 0x1111_1111,
        min_tx_us: 100_000,
        min_rx_us: 100_000,
        ..Message::default()
    };
    let session = &mut pair.ends[0];
    session.receive(TTL, &message.encode(), now).unwrap();
    assert_eq!(session.state(), (State::Down, Diagnostic::NEIGHBOUR_DOWN));
    assert!(!session.is_forwarding());
    assert_eq!(session.flaps(), 2);
    // It stays down while the other end says so.
    session.receive(TTL, &message.encode(), now).unwrap();
    assert_eq!(session.state().0, State::Down);
    // An override counts for others and leaves the count alone.
    session.force(Some(true));
    assert!(session.is_forwarding());
    session.force(None);
    assert!(!session.is_forwarding());
    assert_eq!(session.flaps(), 2);
    let steps = session.take_steps();
    assert_eq!(steps.last().unwrap().to.0, State::Down);
    assert!(session.take_steps().is_empty());
}

#[test]
fn traffic_counts_where_it_is_to() {
    let settings = Settings {
        forwarding_if_rx: true,
        ..Settings::default()
    };
    let mut pair = Pair::new([settings, Settings::default()], 1);
    pair.pass(CLEAN, 5000, 0);
    let session = &mut pair.ends[0];
    let mut now = pair.now;
    let mut packets = 0;
    // Packets keep coming, messages do not: 100 times min_rx that is enough.
    while now < pair.now + 99_000 {
        (now, packets) = (now + 500, packets + 1);
        session.run(now, packets);
    }
    assert_eq!(session.state().0, State::Down);
    assert!(session.is_forwarding());
    while now < pair.now + 101_000 {
        (now, packets) = (now + 500, packets + 1);
        session.run(now, packets);
    }
    assert!(!session.is_forwarding());
}
