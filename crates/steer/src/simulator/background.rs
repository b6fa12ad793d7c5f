//! Fluid flows: each takes a constant share of its core.
//!
//! A core's demand is the sum of its flows' demands and what exact flows offer. While it exceeds a
//! whole core, all lose the same share. The loss of each core is integrated over time, so a flow's
//! own loss is its demand times the difference of that integral between its arrival and its
//! departure: a move takes constant time, and passing time costs nothing per flow.

use super::outcome::BackgroundOutcome;
use super::scenario::Background;
use crate::cores::{CoreId, Load};
use crate::random::Random;
use crate::table::ChoiceId;

/// Shape of the load distribution: a few flows make up most of the load, as in measured traffic.
const PARETO_SHAPE: f64 = 1.2;

/// The largest load, as a multiple of the smallest.
const PARETO_RANGE: f64 = 1e5;

#[derive(Clone, Copy, Debug)]
pub(super) struct Fluid {
    /// Share of a core that it demands.
    demand: f64,
    pub(super) core: CoreId,
    pub(super) choice: Option<ChoiceId>,
    /// Its core's `losses` when it arrived there.
    losses_before: f64,
    /// What it lost on earlier cores, in seconds of a core.
    lost: f64,
    begun_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    demand: f64,
    /// Share of the offered load that is lost now.
    loss: f64,
    /// Integral of `loss` over time, s.
    losses: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Fluids {
    pub(super) flows: Vec<Fluid>,
    demands: Vec<f64>,
    cores: Vec<Core>,
    ramp_ns: u64,
    random: Random,
    pub(super) moves: u64,
}

impl Fluids {
    pub(super) fn new(spec: &Background, cores: u16, seed: u64) -> Fluids {
        let mut random = Random::new(seed ^ 0xf1);
        let mut demands: Vec<f64> = (0..spec.flows)
            .map(|_| {
                (1.0 - random.unit())
                    .powf(-1.0 / PARETO_SHAPE)
                    .min(PARETO_RANGE)
            })
            .collect();
        let sum: f64 = demands.iter().sum();
        for demand in &mut demands {
            *demand *= spec.load / sum;
        }
        Fluids {
            flows: Vec::with_capacity(demands.len()),
            demands,
            cores: vec![Core::default(); usize::from(cores)],
            ramp_ns: spec.ramp_ns,
            random,
            moves: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.demands.is_empty()
    }

    /// Returns how many more flows have to start by a time.
    pub(super) fn due(&self, now_ns: u64) -> usize {
        let part = if self.ramp_ns == 0 {
            1.0
        } else {
            (now_ns as f64 / self.ramp_ns as f64).min(1.0)
        };
        let started = (self.demands.len() as f64 * part) as usize;
        started - self.flows.len()
    }

    /// Returns a hash for the next flow.
    pub(super) fn next_hash(&mut self) -> u64 {
        self.random.bits()
    }

    /// Starts the next flow.
    pub(super) fn start(&mut self, core: CoreId, choice: Option<ChoiceId>, now_ns: u64) {
        let demand = self.demands[self.flows.len()];
        let at = &mut self.cores[core.index()];
        at.demand += demand;
        let losses_before = at.losses;
        self.flows.push(Fluid {
            demand,
            core,
            choice,
            losses_before,
            lost: 0.0,
            begun_ns: now_ns,
        });
    }

    /// Moves a flow.
    pub(super) fn move_to(&mut self, flow: usize, to: CoreId) {
        let fluid = &mut self.flows[flow];
        let from = &mut self.cores[fluid.core.index()];
        from.demand -= fluid.demand;
        fluid.lost += fluid.demand * (from.losses - fluid.losses_before);
        let to_core = &mut self.cores[to.index()];
        to_core.demand += fluid.demand;
        fluid.losses_before = to_core.losses;
        fluid.core = to;
        self.moves += 1;
    }

    /// Advances time for one core, on which exact flows offer `exact`. Returns the share of the
    /// core that background flows take.
    pub(super) fn pass(&mut self, core: CoreId, exact: f64, seconds: f64) -> f64 {
        let core = &mut self.cores[core.index()];
        core.losses += core.loss * seconds;
        let offered = core.demand + exact;
        core.loss = if offered > 1.0 {
            1.0 - 1.0 / offered
        } else {
            0.0
        };
        core.demand.max(0.0) * (1.0 - core.loss)
    }

    /// Returns the load of a flow as it would be measured.
    pub(super) fn load(&self, flow: &Fluid) -> Load {
        Load::of(flow.demand * (1.0 - self.cores[flow.core.index()].loss))
    }

    pub(super) fn outcome(&self, now_ns: u64) -> BackgroundOutcome {
        let (mut offered, mut lost, mut worst_loss) = (0.0, 0.0, 0.0_f64);
        for flow in &self.flows {
            let losses = self.cores[flow.core.index()].losses;
            let its_lost = flow.lost + flow.demand * (losses - flow.losses_before);
            let its_offered = flow.demand * now_ns.saturating_sub(flow.begun_ns) as f64 / 1e9;
            offered += its_offered;
            lost += its_lost;
            if its_offered > 0.0 {
                worst_loss = worst_loss.max(its_lost / its_offered);
            }
        }
        BackgroundOutcome {
            flows: self.flows.len() as u32,
            loss: if offered > 0.0 { lost / offered } else { 0.0 },
            worst_loss,
            moves: self.moves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_follow_a_flow_from_core_to_core() {
        let spec = Background {
            flows: 2,
            load: 2.0,
            ramp_ns: 0,
        };
        let mut fluids = Fluids::new(&spec, 2, 1);
        fluids.demands = vec![1.0, 1.0];
        assert_eq!(fluids.due(0), 2);
        fluids.start(CoreId(0), None, 0);
        fluids.start(CoreId(0), None, 0);
        // Twice the core's capacity: half is lost for a second.
        assert_eq!(fluids.pass(CoreId(0), 0.0, 0.0), 1.0);
        assert_eq!(fluids.load(&fluids.flows[0]), Load::percent(50));
        fluids.pass(CoreId(0), 0.0, 1.0);
        fluids.move_to(1, CoreId(1));
        for core in [CoreId(0), CoreId(1)] {
            fluids.pass(core, 0.0, 0.0);
            assert_eq!(fluids.pass(core, 0.0, 1.0), 1.0);
        }
        let outcome = fluids.outcome(2_000_000_000);
        assert_eq!((outcome.loss, outcome.worst_loss), (0.25, 0.25));
        assert_eq!(outcome.moves, 1);
    }
}
