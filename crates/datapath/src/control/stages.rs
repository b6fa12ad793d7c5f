//! What workers' cycles go to.

use super::Datapath;
use crate::report::WorkerStages;
use packet::Frame;
use std::sync::OnceLock;

impl<F: Frame + 'static> Datapath<F> {
    /// Has workers account what their cycles go to, from zero, or stop doing so, which leaves what
    /// they have counted. They hear of it in their next turn.
    pub fn account_stages(&self, on: bool) {
        self.shared.stages.set(on);
        self.nudge_workers();
    }

    /// Has workers account what their cycles go to from zero.
    pub fn clear_stages(&self) {
        self.shared.stages.clear();
        self.nudge_workers();
    }

    /// Returns whether workers are to account what their cycles go to.
    pub fn accounts_stages(&self) -> bool {
        self.shared.stages.is_on()
    }

    /// Returns what each worker's cycles have gone to, up to the end of its last turn.
    pub fn stages(&self) -> Vec<WorkerStages> {
        let stages = |worker: &super::workers::Handle<F>| WorkerStages {
            name: worker.mailbox.name.clone(),
            cpu: worker.cpu,
            report: worker.mailbox.stages.read(&self.shared.stages),
        };
        self.workers.iter().map(stages).collect()
    }

    /// Has workers that sleep begin a turn, which also ends the account of their sleep.
    pub fn nudge_workers(&self) {
        let workers = self.workers.iter();
        workers.for_each(|worker| worker.mailbox.nudge());
    }
}

/// Returns the cycles that one change from a stage to another takes while stages are accounted,
/// measured once on this machine.
pub fn change_cycles() -> f64 {
    static COST: OnceLock<f64> = OnceLock::new();
    *COST.get_or_init(stages::cost)
}
