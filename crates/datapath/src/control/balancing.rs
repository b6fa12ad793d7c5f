//! Automatic balancing of receive queues (`other_config:pmd-auto-lb`), control's side: watches how
//! loaded workers are, and carries out what [`crate::assign::rebalance`] decides.
//!
//! Steering moves flows within milliseconds, balancing moves queues within minutes. Both may be on:
//! a worker that steering relieves is no longer overloaded, so balancing acts where steering is
//! off, or is not worth its cost. Before queues move all flows come back, and steering begins anew.

use super::Datapath;
use crate::assign::{AutoBalance, Decision, Working, rebalance};
use packet::Frame;

const MINUTE_MS: u64 = 60_000;

/// Control's state of automatic balancing.
#[derive(Default)]
pub(super) struct Balancing {
    settings: AutoBalance,
    /// When it was checked last, in ms; None before the first time.
    checked_ms: Option<u64>,
}

impl Balancing {
    pub(super) fn settings(&self) -> &AutoBalance {
        &self.settings
    }

    /// Returns whether a check is due, and begins the next interval if so.
    fn is_due(&mut self, now_ms: u64) -> bool {
        if !self.settings.is_enabled {
            return false;
        }
        let interval_ms = self
            .settings
            .interval_minutes
            .max(1)
            .saturating_mul(MINUTE_MS);
        let since = self
            .checked_ms
            .map(|checked| now_ms.saturating_sub(checked));
        let is_due = since.is_some_and(|passed| passed > interval_ms);
        if is_due || since.is_none() {
            self.checked_ms = Some(now_ms);
        }
        is_due
    }
}

impl<F: Frame + 'static> Datapath<F> {
    /// Sets when queues are assigned anew by themselves.
    pub fn set_auto_balance(&mut self, settings: AutoBalance) {
        let before = std::mem::replace(&mut self.balancing.settings, settings);
        let AutoBalance {
            is_enabled,
            interval_minutes: minutes,
            load_threshold: load,
            improvement_threshold: improvement,
        } = settings;
        if minutes != before.interval_minutes {
            tracing::info!(target: "dpif_netdev",
                "PMD auto load balance interval set to {minutes} mins");
        }
        if improvement != before.improvement_threshold {
            tracing::info!(target: "dpif_netdev",
                "PMD auto load balance improvement threshold set to {improvement}%");
        }
        if load != before.load_threshold {
            tracing::info!(target: "dpif_netdev",
                "PMD auto load balance load threshold set to {load}%");
        }
        if settings == before {
            return;
        }
        if is_enabled {
            tracing::info!(target: "dpif_netdev",
                "PMD auto load balance is enabled, interval {minutes} mins, pmd load threshold \
                 {load}%, improvement threshold {improvement}%.");
        } else {
            self.balancing.checked_ms = None;
            tracing::info!(target: "dpif_netdev", "PMD auto load balance is disabled.");
        }
    }

    /// Assigns queues anew if that is due, and worth it. Called about once a second.
    pub(super) fn balance(&mut self, now_ms: u64) {
        if !self.balancing.is_due(now_ms) {
            return;
        }
        let layout = self.layout();
        let workers: Vec<Working> = (layout.order.iter().zip(&layout.isolated))
            .map(|(at, is_isolated)| {
                let worker = &self.workers[*at];
                let (busy, queues) = self.load(worker);
                Working {
                    passed: worker.history.recent(worker.all_cycles()),
                    busy: busy.min(u64::MAX.into()) as u64,
                    is_overloaded: worker.is_overloaded(),
                    is_isolated: *is_isolated,
                    queues,
                }
            })
            .collect();
        let settings = self.balancing.settings;
        let told = |now: u64, then: u64, by: u64| {
            format!("Current variance {now} Estimated variance {then}. Variance improvement {by}%.")
        };
        match rebalance(self.assignment, &settings, &layout.queues, &workers) {
            Decision::NotOverloaded => {}
            Decision::RoundRobin => tracing::debug!(target: "dpif_netdev",
                "PMD auto load balance nothing to do, pmd-rxq-assign=roundrobin assignment type \
                 configured."),
            Decision::TooFew => tracing::debug!(target: "dpif_netdev",
                "PMD auto load balance nothing to do, not enough non-isolated PMDs or RxQs."),
            Decision::TooLittle(now, then, by) => {
                tracing::debug!(target: "dpif_netdev", "{}", told(now, then, by));
                tracing::debug!(target: "dpif_netdev",
                    "PMD load variance improvement threshold {}% is not met.",
                    settings.improvement_threshold);
            }
            Decision::Move(now, then, by, chosen) => {
                tracing::debug!(target: "dpif_netdev", "{}", told(now, then, by));
                tracing::info!(target: "dpif_netdev",
                    "PMD auto load balance dry run. Requesting datapath reconfigure.");
                if let Err(error) = self.move_queues(&layout, &chosen) {
                    tracing::warn!(target: "dpif_netdev", "PMD auto load balance: {error}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_an_interval_apart() {
        let mut balancing = Balancing::default();
        assert!(!balancing.is_due(0) && !balancing.is_due(1_000_000));
        balancing.settings.is_enabled = true;
        balancing.settings.interval_minutes = 2;
        // The first look only begins the interval.
        let due = |ms| balancing.is_due(ms);
        let looks = [
            1_000_000, 1_120_000, 1_120_001, 1_120_002, 1_240_001, 1_240_002,
        ];
        let expected = [false, false, true, false, false, true];
        assert_eq!(looks.map(due), expected);
    }
}
