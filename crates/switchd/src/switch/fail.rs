//! What a bridge does without a controller.
//!
//! A standalone bridge without configured controllers has an ordinary rule of priority 0 with
//! action NORMAL. If controllers are configured but none has answered for three probe intervals, it
//! gets the same as a hidden rule above all others, until one comes back (Open vSwitch's
//! `fail-open.c`). A secure bridge has neither. When the first controller is configured, or the
//! last one removed, rules, groups and meters are deleted, as in `bridge.c`; likewise where a
//! bridge without controllers becomes secure or standalone (`connmgr_set_fail_mode`).

use super::Bridge;
use crate::config::controller::Controller;
use crate::config::desired::FailMode;
use crate::openflow::Switch as _;
use openflow::action::{Action, Instruction};
use openflow::flow::FlowMod;
use openflow::group::{self, GroupCommand, GroupKind, GroupMod};
use openflow::meter::{self, MeterCommand, MeterConfig, MeterFlags, MeterMod};
use openflow::port;
use openflow::{Error, Version};
use packet::Match;
use std::cell::{Cell, RefCell};

/// Priority of the hidden rule, above every other (Open vSwitch's `FAIL_OPEN_PRIORITY`).
const FAIL_OPEN_PRIORITY: u32 = 0x00f0_f0f0;

/// State of a bridge's controllers.
#[derive(Default)]
pub(super) struct Fail {
    /// How many are configured; None before the first configuration.
    configured: Cell<Option<usize>>,
    /// Whether the bridge was standalone then.
    standalone: Cell<bool>,
    /// When the last connection was lost, ms; None while one is connected.
    lost_ms: Cell<Option<u64>>,
    /// How long to wait before the hidden rule is added, ms.
    patience_ms: Cell<u64>,
    open: Cell<bool>,
    /// The configured controllers.
    pub(super) controllers: RefCell<Vec<Controller>>,
    /// Whether they have yet to be applied.
    pub(super) changed: Cell<bool>,
    /// Whether rules were being restored at the last configuration: then the next one must not
    /// delete them.
    restored: Cell<bool>,
}

impl Fail {
    /// Returns whether the bridge has been configured.
    pub(super) fn is_configured(&self) -> bool {
        self.configured.get().is_some()
    }
}

/// Returns the instructions of the switch's own rules: NORMAL, by a queue where one is given.
pub(super) fn normal(queue: Option<u32>) -> Vec<Instruction> {
    let normal = Action::Output {
        port: port::NORMAL,
        max_len: 0,
    };
    let actions = queue.map(Action::SetQueue).into_iter().chain([normal]);
    vec![Instruction::ApplyActions(actions.collect())]
}

/// Returns the rule of a standalone bridge without controllers.
fn switch_everything() -> FlowMod {
    FlowMod::add(Match::any(), 0, normal(None))
}

impl Bridge {
    /// Sets how many primary controllers are configured and how long they may be silent. Called
    /// with every configuration.
    pub(super) fn configure_fail(&self, controllers: usize, probe_ms: u64) {
        self.when_idle(move |bridge| bridge.configure_fail_now(controllers, probe_ms));
    }

    fn configure_fail_now(&self, controllers: usize, probe_ms: u64) {
        let fail = &self.fail;
        fail.patience_ms.set(probe_ms.max(5000) * 3);
        let before = fail.configured.replace(Some(controllers));
        // Restored rules stay even if controllers are added now.
        let restored = fail.restored.replace(self.switch().restoring.get());
        let now_ms = self.switch().clock.now_ms();
        let others = before.map(|count| count > 0) != Some(controllers > 0);
        let standalone = self.settings.borrow().fail_mode == FailMode::Standalone;
        let another_mode = fail.standalone.replace(standalone) != standalone;
        if before.is_some() && !restored && (others || controllers == 0 && another_mode) {
            self.flush();
            self.when_idle(|bridge| bridge.flush_groups_and_meters());
        }
        if others {
            fail.lost_ms.set((controllers > 0).then_some(now_ms));
        }
        self.when_idle(move |bridge| bridge.apply_fail_mode(controllers, restored));
    }

    /// Deletes all groups and meters, after the rules (Open vSwitch's `ofproto_flush_flows`).
    fn flush_groups_and_meters(&self) {
        let groups = GroupMod {
            command: GroupCommand::Delete,
            kind: GroupKind::All,
            group: group::ALL,
            command_bucket: group::BUCKET_ALL,
            buckets: Vec::new(),
            selection: None,
        };
        let meters = MeterMod {
            command: MeterCommand::Delete,
            config: MeterConfig {
                meter: meter::ALL,
                flags: MeterFlags::empty(),
                bands: Vec::new(),
            },
        };
        let name = self.name.clone();
        let told = move |what: &str, error: Error| {
            tracing::error!(target: "bridge", "{name}: cannot delete its {what}: {error}");
        };
        if let Err(error) = self.group_mod(&groups, Version::V1_3) {
            told("groups", error);
        }
        self.when_idle(move |bridge| {
            if let Err(error) = bridge.meter_mod(&meters) {
                told("meters", error);
            }
        });
    }

    /// Adds the NORMAL rule to a standalone bridge without controllers, and removes the hidden rule
    /// from a bridge that must not have it.
    fn apply_fail_mode(&self, controllers: usize, restored: bool) {
        let standalone = self.settings.borrow().fail_mode == FailMode::Standalone;
        if controllers == 0 && standalone && !restored {
            let outcome = self.pipeline.borrow_mut().flow_mod(
                &switch_everything(),
                Version::V1_0,
                self.switch().now(),
            );
            if let Err(error) = outcome {
                tracing::error!(target: "bridge", "{}: cannot add the rule for NORMAL: {error}", self.name);
            }
        }
        if controllers == 0 || !standalone {
            self.set_open(false);
        }
        self.publish();
    }

    /// Notes that a controller has connected, or that the last one is gone.
    pub(super) fn note_controllers(&self, connected: bool) {
        if connected {
            self.fail.lost_ms.set(None);
            self.when_idle(|bridge| {
                bridge.set_open(false);
                bridge.publish();
            });
        } else if self.fail.lost_ms.get().is_none() {
            self.fail.lost_ms.set(Some(self.switch().clock.now_ms()));
        }
    }

    /// Adds the hidden rule when controllers have been silent for too long.
    pub(super) fn fail_step(&self) {
        let fail = &self.fail;
        let Some(lost_ms) = fail.lost_ms.get().filter(|_| !self.is_busy()) else {
            return;
        };
        let waited = self.switch().clock.now_ms().saturating_sub(lost_ms);
        let standalone = self.settings.borrow().fail_mode == FailMode::Standalone;
        if !fail.open.get()
            && standalone
            && fail.configured.get().is_some_and(|count| count > 0)
            && waited >= fail.patience_ms.get()
        {
            tracing::warn!(target: "fail_open",
                "Could not connect to controller (or switch failed controller's post-connection admission control policy) for {} seconds, failing open",
                waited / 1000);
            self.set_open(true);
            self.publish();
        }
    }

    fn set_open(&self, open: bool) {
        if self.fail.open.replace(open) == open {
            return;
        }
        let mut pipeline = self.pipeline.borrow_mut();
        if open {
            let now = self.switch().now();
            if let Err(error) =
                pipeline.add_hidden(0, FAIL_OPEN_PRIORITY, &Match::any(), &normal(None), now)
            {
                tracing::error!(target: "fail_open", "{}: cannot fail open: {error}", self.name);
                self.fail.open.set(false);
            }
        } else {
            tracing::warn!(target: "fail_open", "No longer in fail-open mode");
            pipeline.remove_hidden(0, FAIL_OPEN_PRIORITY, &Match::any());
        }
    }
}
