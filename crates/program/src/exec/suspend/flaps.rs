//! Rules that packets keep changing back and forth, as when two hosts send from one MAC address
//! before a rule that learns where it is: how often one rule is changed is bounded, or every such
//! packet would cost a change of the tables and an epoch.
//!
//! A rule may be changed [`TOKENS`] times at once, and then once in [`REFILL_MS`] milliseconds. A
//! packet that would change it sooner goes on as if it had; what it wanted is remembered, in the
//! place of what an earlier one wanted, and asked for when its time has come. So the last packet
//! counts in the end, whichever worker had it: control takes no lesson that is older than what the
//! rule does, nor a late one that no rule teaches any more. Open vSwitch's datapath, too, carries
//! `learn` out for a flow's first packet and then, at most once in each of its revalidators'
//! rounds, for all that came since.

use crate::actions::learn::{Learn, Values};
use packet::Match;
use smallvec::SmallVec;
use std::sync::Arc;

/// Most changes of a rule at once.
const TOKENS: u64 = 64;
/// Milliseconds after which it may be changed once more.
const REFILL_MS: u64 = 20;
/// Most rules whose changes are counted. Those of others count as new rules do ([`super::rates`]).
const MOST: usize = 64;

/// A rule of a worker's bridge, by what it matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub bridge: u32,
    pub learn: &'a Arc<Learn>,
    pub matching: &'a Match,
    /// Hash of `matching`.
    pub hash: u64,
}

/// What a packet wanted of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Deferred {
    pub bridge: u32,
    pub learn: Arc<Learn>,
    pub values: Values,
    pub matching: Match,
    /// Hash of `matching`.
    pub hash: u64,
    /// When the packet came, in milliseconds.
    pub seen_ms: u64,
    /// Whether there was such a rule already, or one had been asked for.
    pub is_change: bool,
}

struct Flap {
    bridge: u32,
    table: u8,
    priority: u16,
    hash: u64,
    matching: Match,
    /// When it would be as if it had never been changed, in milliseconds: each change adds
    /// [`REFILL_MS`] to that.
    calm_ms: u64,
    /// What the last packet wanted, and when it came.
    wanted: Option<(Arc<Learn>, Values, u64)>,
}

impl Flap {
    fn is(&self, rule: &Named<'_>) -> bool {
        self.hash == rule.hash
            && self.bridge == rule.bridge
            && (self.table, self.priority) == (rule.learn.table, rule.learn.priority)
            && self.matching == *rule.matching
    }

    /// When it may be changed next.
    fn due_ms(&self) -> u64 {
        self.calm_ms.saturating_sub((TOKENS - 1) * REFILL_MS)
    }

    fn change(&mut self, now_ms: u64) {
        self.calm_ms = self.calm_ms.max(now_ms) + REFILL_MS;
    }
}

/// The rules that have been changed lately.
#[derive(Default)]
pub(crate) struct Flaps {
    list: SmallVec<[Flap; 4]>,
    /// Number of rules with something wanted.
    deferred: usize,
}

impl Flaps {
    /// Returns whether something is to be asked for later.
    #[inline(always)]
    pub fn is_deferring(&self) -> bool {
        self.deferred > 0
    }

    /// Returns whether something of a rule, by the hash of its match, may have to be asked for
    /// later.
    pub fn may_defer(&self, bridge: u32, learn: &Learn, hash: u64) -> bool {
        self.list.iter().any(|flap| {
            flap.wanted.is_some()
                && (flap.hash, flap.bridge) == (hash, bridge)
                && (flap.table, flap.priority) == (learn.table, learn.priority)
        })
    }

    /// Returns whether the changes of a rule are counted.
    pub fn counts(&self, rule: &Named<'_>) -> bool {
        self.list.iter().any(|flap| flap.is(rule))
    }

    /// Notes that a packet wants to change a rule, and returns whether it may; if not, what it
    /// wants is asked for later.
    pub fn may_change(&mut self, rule: &Named<'_>, values: &Values, now_ms: u64) -> bool {
        if let Some(flap) = self.list.iter_mut().find(|flap| flap.is(rule)) {
            if flap.due_ms() <= now_ms {
                flap.change(now_ms);
                self.deferred -= usize::from(flap.wanted.take().is_some());
                return true;
            }
            let wanted = (Arc::clone(rule.learn), values.clone(), now_ms);
            self.deferred += usize::from(flap.wanted.replace(wanted).is_none());
            return false;
        }
        if self.list.len() == MOST {
            self.list
                .retain(|flap| flap.calm_ms > now_ms || flap.wanted.is_some());
        }
        if self.list.len() < MOST {
            self.list.push(Flap {
                bridge: rule.bridge,
                table: rule.learn.table,
                priority: rule.learn.priority,
                hash: rule.hash,
                matching: rule.matching.clone(),
                calm_ms: now_ms + REFILL_MS,
                wanted: None,
            });
        }
        true
    }

    /// Notes that a packet wants the rule as it is, or as it has been asked for: what an earlier
    /// one wanted does not count any more.
    #[cold]
    pub fn keep(&mut self, rule: &Named<'_>) {
        if let Some(flap) = self.list.iter_mut().find(|flap| flap.is(rule)) {
            self.deferred -= usize::from(flap.wanted.take().is_some());
        }
    }

    /// Returns what is to be asked for next, if its time has come, and counts it as a change.
    pub fn take_due(&mut self, now_ms: u64) -> Option<Deferred> {
        if self.deferred == 0 {
            return None;
        }
        let mut flaps = self.list.iter_mut();
        let flap = flaps.find(|flap| flap.wanted.is_some() && flap.due_ms() <= now_ms)?;
        let (learn, values, seen_ms) = flap.wanted.take()?;
        flap.change(now_ms);
        self.deferred -= 1;
        Some(Deferred {
            bridge: flap.bridge,
            learn,
            values,
            matching: flap.matching.clone(),
            hash: flap.hash,
            seen_ms,
            is_change: true,
        })
    }

    /// Takes back what could not be asked for, to be asked for when the rule may be changed again.
    pub fn defer_again(&mut self, due: Deferred) {
        let rule = Named {
            bridge: due.bridge,
            learn: &due.learn,
            matching: &due.matching,
            hash: due.hash,
        };
        if let Some(flap) = self.list.iter_mut().find(|flap| flap.is(&rule)) {
            let wanted = (due.learn, due.values, due.seen_ms);
            self.deferred += usize::from(flap.wanted.replace(wanted).is_none());
        }
    }

    /// Returns when something is to be asked for, in milliseconds.
    pub fn due_ms(&self) -> Option<u64> {
        let wanted = self.list.iter().filter(|flap| flap.wanted.is_some());
        wanted.map(Flap::due_ms).min()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Flaps::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Field;

    fn learn(table: u8) -> Arc<Learn> {
        Arc::new(Learn {
            table,
            ..Learn::default()
        })
    }

    fn matching(number: u128) -> Match {
        let mut matching = Match::any();
        matching.set_exact(Field::EthDst, number);
        matching
    }

    struct Rules {
        learn: Arc<Learn>,
        matches: Vec<Match>,
    }

    impl Rules {
        fn new(count: usize) -> Rules {
            Rules {
                learn: learn(5),
                matches: (0..count as u128).map(matching).collect(),
            }
        }

        /// The hash is the same for all: it does not decide alone.
        fn named(&self, at: usize) -> Named<'_> {
            Named {
                bridge: 7,
                learn: &self.learn,
                matching: &self.matches[at],
                hash: 1,
            }
        }
    }

    fn values(number: u128) -> Values {
        Values::from_slice(&[number])
    }

    /// A rule that flaps at every millisecond's thousandth is changed at the bounded rate, and the
    /// last value comes in the end.
    #[test]
    fn the_last_value_counts_and_changes_are_bounded() {
        let (rules, mut flaps) = (Rules::new(1), Flaps::default());
        let rule = rules.named(0);
        let (mut asked, mut last, mut number) = (0, 0, 0);
        for now_ms in 1000..2000 {
            while let Some(due) = flaps.take_due(now_ms) {
                (asked, last) = (asked + 1, due.values[0]);
                assert_eq!((due.bridge, due.learn.table), (7, 5));
            }
            for _ in 0..10 {
                number += 1;
                if flaps.may_change(&rule, &values(number), now_ms) {
                    (asked, last) = (asked + 1, number);
                }
            }
        }
        assert_eq!(asked, TOKENS + 999 / REFILL_MS);
        assert!(flaps.is_deferring() && last < number);
        let due = flaps.due_ms().unwrap();
        assert!((1999..1999 + 2 * REFILL_MS).contains(&due), "{due}");
        assert!(flaps.take_due(due - 1).is_none());
        assert_eq!(flaps.take_due(due).unwrap().values, values(number));
        assert!(!flaps.is_deferring() && flaps.due_ms().is_none());
        assert!(flaps.take_due(u64::MAX).is_none());
        // After a while it is as if nothing had been.
        let at = due + TOKENS * REFILL_MS;
        let changes = (0..100).filter(|at_| flaps.may_change(&rule, &values(*at_), at));
        assert_eq!(changes.count() as u64, TOKENS);
    }

    #[test]
    fn what_is_there_already_needs_no_later_change() {
        let (rules, mut flaps) = (Rules::new(2), Flaps::default());
        let (one, other) = (rules.named(0), rules.named(1));
        while flaps.may_change(&one, &values(1), 5) {}
        assert!(flaps.is_deferring());
        assert!(
            flaps.may_change(&other, &values(2), 5),
            "each rule has its own"
        );
        flaps.keep(&other);
        assert!(flaps.is_deferring());
        flaps.keep(&one);
        assert!(!flaps.is_deferring() && flaps.take_due(u64::MAX).is_none());
        while flaps.may_change(&one, &values(1), 5) {}
        flaps.clear();
        assert!(!flaps.is_deferring() && flaps.may_change(&one, &values(1), 5));
    }

    #[test]
    fn so_many_rules_are_counted_and_no_more() {
        let (rules, mut flaps) = (Rules::new(MOST + 1), Flaps::default());
        assert!(!flaps.counts(&rules.named(0)));
        for at in 0..MOST {
            while flaps.may_change(&rules.named(at), &values(1), 5) {}
        }
        assert_eq!(flaps.deferred, MOST);
        for _ in 0..2 * TOKENS {
            assert!(flaps.may_change(&rules.named(MOST), &values(1), 5));
        }
        assert!(flaps.counts(&rules.named(0)) && !flaps.counts(&rules.named(MOST)));
        // Rules at rest make room, others stay.
        let mut later = 0;
        while flaps.take_due(1000).is_some() {
            later += 1;
        }
        assert_eq!(later, MOST);
        assert!(flaps.may_change(&rules.named(MOST), &values(1), 2000));
        assert_eq!(flaps.list.len(), 1);
    }
}
