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

use std::collections::HashMap;

/// Most rules that packets of a port may ask for at once.
pub const ASKED_AT_ONCE: u64 = 2048;
/// Rules that they may ask for in each millisecond from then on.
pub const ASKED_PER_MS: u64 = 1;
/// Milliseconds after its last turn without frames in which a worker is not pressed yet.
const REST_MS: u64 = 10;
/// Most ports that are counted one by one. All others are counted as one.
const MOST: usize = 4096;
/// Stands for the others; no port has this number.
const OTHERS: u32 = u32::MAX;

/// What packets have asked for lately, by the port by which they were received: what matches see of
/// that can be written, and ports behind a patch port have one number there.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// When a port would be as if it had asked for nothing, in parts of a millisecond: each rule
    /// adds one.
    calm: HashMap<u32, u64>,
    /// When ports at rest were last forgotten, in milliseconds.
    forgot_ms: u64,
    rested_ms: u64,
}

impl Rates {
    /// Notes that the worker had nothing to do in a turn.
    #[inline(always)]
    pub fn rest(&mut self, now_ms: u64) {
        self.rested_ms = now_ms;
    }

    fn is_pressed(&self, now_ms: u64) -> bool {
        now_ms >= self.rested_ms.saturating_add(REST_MS)
    }

    /// Returns whether a packet received by a port may ask for a rule.
    pub fn may_ask(&mut self, port: u32, now_ms: u64) -> bool {
        if !self.is_pressed(now_ms) {
            return true;
        }
        let calm = self.calm.get(&self.counted_as(port));
        calm.is_none_or(|calm| calm.saturating_sub(units(now_ms)) < ASKED_AT_ONCE)
    }

    /// Counts a rule that one has asked for.
    pub fn asked(&mut self, port: u32, now_ms: u64) {
        if !self.is_pressed(now_ms) {
            return;
        }
        let now = units(now_ms);
        if self.calm.len() >= MOST && self.forgot_ms != now_ms {
            self.forgot_ms = now_ms;
            self.calm.retain(|_, calm| *calm > now);
        }
        let calm = self.calm.entry(self.counted_as(port)).or_insert(0);
        *calm = (*calm).max(now).saturating_add(1);
    }

    fn counted_as(&self, port: u32) -> u32 {
        match self.calm.len() < MOST || self.calm.contains_key(&port) {
            true => port,
            false => OTHERS,
        }
    }
}

/// Returns a time in parts of a millisecond.
fn units(now_ms: u64) -> u64 {
    now_ms.saturating_mul(ASKED_PER_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(rates: &mut Rates, port: u32, now_ms: u64, times: u64) -> u64 {
        let mut asked = 0;
        for _ in 0..times {
            if rates.may_ask(port, now_ms) {
                rates.asked(port, now_ms);
                asked += 1;
            }
        }
        asked
    }

    #[test]
    fn each_port_of_a_pressed_worker_has_its_own_rate() {
        let mut rates = Rates::default();
        let now = 1_000_000;
        // What is not asked for in the end does not count.
        assert!((0..3 * ASKED_AT_ONCE).all(|_| rates.may_ask(1, now)));
        assert_eq!(ask(&mut rates, 1, now, 3 * ASKED_AT_ONCE), ASKED_AT_ONCE);
        assert_eq!(ask(&mut rates, 2, now, 100), 100);
        let some = 25 * ASKED_PER_MS;
        assert_eq!(ask(&mut rates, 1, now + 25, 3 * ASKED_AT_ONCE), some);
        // After a while it is as if nothing had been, and not better than that.
        let later = now + 25 + ASKED_AT_ONCE / ASKED_PER_MS;
        assert_eq!(ask(&mut rates, 1, later, 3 * ASKED_AT_ONCE), ASKED_AT_ONCE);
        // The clock may stand, go back and end.
        assert_eq!(ask(&mut rates, 1, later - 1, 10), 0);
        assert!(ask(&mut rates, 2, u64::MAX, 3 * ASKED_AT_ONCE) > 0);
    }

    #[test]
    fn a_worker_that_rests_now_and_then_has_no_limit() {
        let mut rates = Rates::default();
        rates.rest(5000);
        let (before, many) = (5000 + REST_MS - 1, 3 * ASKED_AT_ONCE);
        assert_eq!(ask(&mut rates, 1, before, many), many);
        assert_eq!(ask(&mut rates, 1, before + 1, many), ASKED_AT_ONCE);
        rates.rest(before + 2);
        assert_eq!(ask(&mut rates, 1, before + 2, many), many);
    }

    #[test]
    fn so_many_ports_are_counted_and_the_others_together() {
        let mut rates = Rates::default();
        let many = 2 * ASKED_AT_ONCE;
        for port in 0..MOST as u32 {
            assert_eq!(ask(&mut rates, port, 1000, many), ASKED_AT_ONCE);
        }
        assert_eq!(ask(&mut rates, MOST as u32, 1000, 100), 100);
        let left = ASKED_AT_ONCE - 100;
        assert_eq!(ask(&mut rates, MOST as u32 + 1, 1000, many), left);
        assert_eq!(rates.calm.len(), MOST + 1);
        // Ports at rest make room.
        let later = 1000 + ASKED_AT_ONCE / ASKED_PER_MS;
        assert_eq!(ask(&mut rates, 7, later, many), ASKED_AT_ONCE);
        assert_eq!(rates.calm.len(), 1);
        assert_eq!(ask(&mut rates, MOST as u32, later, many), ASKED_AT_ONCE);
        assert_eq!(rates.calm.len(), 2);
    }
}
