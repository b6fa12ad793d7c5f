//! How many rules packets of one port may ask for while their worker has no time to spare.
//!
//! A rule costs the worker and control some microseconds each, at the expense of the ports beside.
//! Who sends from a new address with each packet, before a rule that learns where addresses are,
//! would have them spend all that he can send. So a port of a pressed worker gets
//! [`ASKED_AT_ONCE`] rules, and from then on [`ASKED_PER_MS`] in each millisecond; packets beyond
//! go on without, as if the rule had been refused, and the next packet asks again. A rule that
//! flaps has a bound of its own ([`super::flaps`]). A worker is pressed that has had no turn
//! without frames for [`REST_MS`]: while it rests now and then nobody is short of time, and there
//! is no limit. Open vSwitch's limit is what its upcalls can carry.

use crate::actions::PortNo;
use std::collections::HashMap;

/// Most rules that packets of a port may ask for at once.
pub const ASKED_AT_ONCE: u64 = 2048;
/// Rules that they may ask for in each millisecond from then on.
pub const ASKED_PER_MS: u64 = 1;
/// Milliseconds after its last turn without frames in which a worker is not pressed yet.
const REST_MS: u64 = 10;
/// Most ports that are counted. Packets of others ask as often as they like.
const MOST: usize = 4096;

/// What packets have asked for lately, by bridge and port.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// When a port would be as if it had asked for nothing, in parts of a millisecond: each rule
    /// adds one.
    calm: HashMap<(u32, PortNo), u64>,
    rested_ms: u64,
}

impl Rates {
    /// Notes that the worker had nothing to do in a turn.
    #[inline(always)]
    pub fn rest(&mut self, now_ms: u64) {
        self.rested_ms = now_ms;
    }

    fn is_pressed(&self, now_ms: u64) -> bool {
        now_ms >= self.rested_ms + REST_MS
    }

    /// Returns whether a packet of a bridge's port may ask for a rule, which counts if so.
    pub fn may_ask(&mut self, bridge: u32, port: PortNo, now_ms: u64) -> bool {
        if !self.is_pressed(now_ms) {
            return true;
        }
        let now = now_ms * ASKED_PER_MS;
        if self.calm.len() >= MOST && !self.calm.contains_key(&(bridge, port)) {
            self.calm.retain(|_, calm| *calm > now);
            if self.calm.len() >= MOST {
                return true;
            }
        }
        let calm = self.calm.entry((bridge, port)).or_insert(0);
        let asked = (*calm).max(now);
        let may = asked - now < ASKED_AT_ONCE;
        if may {
            *calm = asked + 1;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(rates: &mut Rates, port: PortNo, now_ms: u64, times: u64) -> u64 {
        (0..times)
            .filter(|_| rates.may_ask(1, port, now_ms))
            .count() as u64
    }

    #[test]
    fn each_port_of_a_pressed_worker_has_its_own_rate() {
        let mut rates = Rates::default();
        let now = 1_000_000;
        assert_eq!(asked(&mut rates, 1, now, 3 * ASKED_AT_ONCE), ASKED_AT_ONCE);
        assert_eq!(asked(&mut rates, 2, now, 100), 100);
        assert!(rates.may_ask(2, 1, now), "a port of another bridge");
        assert_eq!(
            asked(&mut rates, 1, now + 25, 3 * ASKED_AT_ONCE),
            25 * ASKED_PER_MS
        );
        // After a while it is as if nothing had been, and not better than that.
        let later = now + 25 + ASKED_AT_ONCE / ASKED_PER_MS;
        assert_eq!(
            asked(&mut rates, 1, later, 3 * ASKED_AT_ONCE),
            ASKED_AT_ONCE
        );
        assert_eq!(asked(&mut rates, 2, u64::MAX / ASKED_PER_MS, 1), 1);
    }

    #[test]
    fn a_worker_that_rests_now_and_then_has_no_limit() {
        let mut rates = Rates::default();
        rates.rest(5000);
        let before = 5000 + REST_MS - 1;
        assert_eq!(
            asked(&mut rates, 1, before, 3 * ASKED_AT_ONCE),
            3 * ASKED_AT_ONCE
        );
        assert_eq!(
            asked(&mut rates, 1, before + 1, 3 * ASKED_AT_ONCE),
            ASKED_AT_ONCE
        );
        rates.rest(before + 2);
        assert_eq!(
            asked(&mut rates, 1, before + 2, 3 * ASKED_AT_ONCE),
            3 * ASKED_AT_ONCE
        );
    }

    #[test]
    fn so_many_ports_are_counted_and_no_more() {
        let mut rates = Rates::default();
        for port in 0..MOST as PortNo {
            assert_eq!(
                asked(&mut rates, port, 1000, 2 * ASKED_AT_ONCE),
                ASKED_AT_ONCE
            );
        }
        let other = MOST as PortNo;
        assert_eq!(
            asked(&mut rates, other, 1000, 2 * ASKED_AT_ONCE),
            2 * ASKED_AT_ONCE
        );
        assert_eq!(rates.calm.len(), MOST);
        // Ports at rest make room.
        let later = 1000 + ASKED_AT_ONCE / ASKED_PER_MS;
        assert_eq!(
            asked(&mut rates, other, later, 2 * ASKED_AT_ONCE),
            ASKED_AT_ONCE
        );
        assert_eq!(rates.calm.len(), 1);
    }
}
