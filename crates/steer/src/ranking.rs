//! The policy as a sorted list, for a program that cannot run it.
//!
//! An XDP program must choose in a few steps, without the core table. So the sampler publishes a
//! [`Rankings`] after every sample, and the program [`walk`](Rankings::walk)s it. Between samples
//! only counters change that the program itself maintains ([`Live`]): the load that it has placed
//! on each core since, and where it has placed priority flows.
//!
//! Cores are sorted by their load when the ranking was published. Loads only grow until the next
//! one, so the walk ends at the first core that could not be better even if nothing had been placed
//! on it; usually that is the second. A walk makes the same choice as [`crate::policy::choose`] on
//! a core table with the same placements (property test below).
//!
//! When a virtual machine starts or stops, a new ranking must be published at once.

use crate::cores::{CoreId, CoreTable, Load, VmId};
use crate::policy::{Basis, Decision, Request, Stay, may_use};
use crate::settings::Settings;

/// A core in a ranking.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Candidate {
    /// The load that is compared: the core's when the ranking was published; in the displacing
    /// list, without flows that would leave.
    pub load: Load,
    /// The core.
    pub core: CoreId,
}

/// What has changed since the ranking was published, as counted by the program that walks it.
pub trait Live {
    /// Returns the load expected of flows that were placed on a core since.
    fn placed(&self, core: CoreId) -> Load;
    /// Returns whether a core without virtual machines has priority flows now.
    fn is_held(&self, core: CoreId) -> bool;
    /// Returns how many cores are held now.
    fn held_cores(&self) -> u16;
}

/// What is published at every sample. Each list is sorted by load, then by core number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rankings {
    /// When it was published, ns.
    pub published_ns: u64,
    /// Until when it may be used, ns.
    pub usable_until_ns: u64,
    /// A core is fit while its load, including what was placed on it since, is below this.
    pub high: Load,
    /// Most cores that priority flows may hold.
    pub held_cores: u16,
    /// Whether every core was measured to be highly loaded; the lists are empty then.
    pub all_high: bool,
    /// For all flows: cores without virtual machines.
    pub normal: Vec<Candidate>,
    /// For priority flows that find none of these fit: the same cores, by the load that remains
    /// when flows without priority have left.
    pub displacing: Vec<Candidate>,
    /// For flows that have found no core at all: the cores of each virtual machine.
    pub own: Vec<(VmId, Candidate)>,
}

impl Rankings {
    /// Makes the rankings of a core table. Call it after a sample, once the balancer's moves are in
    /// the table.
    pub fn publish(cores: &CoreTable, settings: &Settings, now_ns: u64) -> Rankings {
        let all_high = cores.all_high(settings.high);
        let samples = u64::from(settings.ranking_samples);
        let lasts = settings.sample_period_ns.saturating_mul(samples);
        let mut rankings = Rankings {
            published_ns: now_ns,
            usable_until_ns: now_ns.saturating_add(lasts),
            high: settings.high,
            held_cores: settings.held_cores,
            all_high,
            normal: Vec::new(),
            displacing: Vec::new(),
            own: Vec::new(),
        };
        if all_high {
            return rankings;
        }
        for core in cores.ids() {
            let load = cores.load(core);
            if cores.runs_vm(core) {
                let candidate = Candidate { load, core };
                let vms = cores.vms(core).iter();
                rankings.own.extend(vms.map(|vm| (*vm, candidate)));
                continue;
            }
            let remaining = cores.load_without_normal_flows(core);
            for (list, load) in [
                (&mut rankings.normal, load),
                (&mut rankings.displacing, remaining),
            ] {
                // Loads only grow until the next ranking.
                if load < settings.high {
                    list.push(Candidate { load, core });
                }
            }
        }
        rankings.normal.sort_unstable();
        rankings.displacing.sort_unstable();
        rankings.own.sort_unstable();
        rankings
    }

    /// Chooses a core for a flow, as the XDP program does.
    pub fn walk(&self, request: Request, live: &impl Live, now_ns: u64) -> Decision {
        if now_ns > self.usable_until_ns {
            return Decision::Stay(Stay::OldRanking);
        }
        if self.all_high {
            return Decision::Stay(Stay::AllHigh);
        }
        let all_held = request.priority && live.held_cores() >= self.held_cores;
        let usable = |core| may_use(request.priority, live.is_held(core), all_held);
        if let Some(core) = self.first_fit(self.normal.iter(), live, usable) {
            return Decision::Use(core, Basis::LeastLoad);
        }
        if request.priority
            && let Some(core) = self.first_fit(self.displacing.iter(), live, usable)
        {
            return Decision::Use(core, Basis::Displacing);
        }
        let own = |(vm, _): &&(VmId, Candidate)| request.vm == Some(*vm);
        let own = self.own.iter().filter(own).map(|(_, candidate)| candidate);
        match self.first_fit(own, live, |_| true) {
            Some(core) => Decision::Use(core, Basis::OwnCore),
            None => Decision::Stay(Stay::NoneFit),
        }
    }

    /// Returns the core of a list with the lowest load now, if that is not highly loaded.
    fn first_fit<'a>(
        &self,
        list: impl Iterator<Item = &'a Candidate>,
        live: &impl Live,
        usable: impl Fn(CoreId) -> bool,
    ) -> Option<CoreId> {
        let mut best: Option<Candidate> = None;
        for candidate in list {
            if best.is_some_and(|best| best < *candidate) {
                break;
            }
            if !usable(candidate.core) {
                continue;
            }
            let now = Candidate {
                load: candidate.load.plus(live.placed(candidate.core)),
                core: candidate.core,
            };
            if now.load < self.high && best.is_none_or(|best| now < best) {
                best = Some(now);
            }
        }
        best.map(|best| best.core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::Sample;
    use crate::policy::choose;
    use proptest::prelude::*;

    /// The counters of a program that places the same flows as the core table.
    struct Counters<'a> {
        cores: &'a CoreTable,
        placed: Vec<Load>,
    }

    impl Live for Counters<'_> {
        fn placed(&self, core: CoreId) -> Load {
            self.placed[core.index()]
        }
        fn is_held(&self, core: CoreId) -> bool {
            self.cores.is_held(core)
        }
        fn held_cores(&self) -> u16 {
            self.cores.held_cores()
        }
    }

    fn core() -> impl Strategy<Value = (u32, u32, Option<u16>, bool)> {
        // Few distinct loads, so that many are equal.
        let load = prop_oneof![3 => 0..8_u32, 1 => 70..100_u32];
        (load, 0..100_u32, prop::option::of(0..3_u16), any::<bool>())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_walk_makes_the_choice_of_the_policy(
            table in prop::collection::vec(core(), 1..12),
            held_cores in prop_oneof![Just(u16::MAX), 1..4_u16],
            carried in prop::collection::vec((0..12_u16, 0..5_u32, any::<bool>()), 0..6),
            flows in prop::collection::vec(
                (prop::option::of(0..3_u16), any::<bool>(), 0..30_u32),
                1..60,
            ),
        ) {
            let settings = Settings { held_cores, ..Settings::default() };
            let mut cores = CoreTable::new(table.len() as u16, 0).unwrap();
            let samples: Vec<Sample> = table
                .iter()
                .map(|(load, yielding, ..)| Sample {
                    load: Load::percent(*load),
                    yielding: Load::percent(*load * *yielding / 100),
                })
                .collect();
            cores.sample(&samples, 0).unwrap();
            for (index, (.., vm, held)) in table.iter().enumerate() {
                let core = CoreId(index as u16);
                if let Some(vm) = vm {
                    cores.vm_started(VmId(*vm), core).unwrap();
                }
                if *held {
                    cores.hold(core);
                }
            }
            // Placed before the ranking is published: its loads include them.
            for (core, load, priority) in carried {
                cores.place(CoreId(core), Load::percent(load), priority, 0);
            }
            let rankings = Rankings::publish(&cores, &settings, 0);
            let mut placed = vec![Load::ZERO; table.len()];
            for (vm, priority, load) in flows {
                let request = Request { vm: vm.map(VmId), priority };
                let chosen = choose(&cores, request, &settings);
                let live = Counters { cores: &cores, placed: placed.clone() };
                prop_assert_eq!(rankings.walk(request, &live, 1), chosen);
                if let Decision::Use(core, _) = chosen {
                    let load = Load::percent(load);
                    cores.place(core, load, priority, 1);
                    placed[core.index()] = placed[core.index()].plus(load);
                }
            }
        }
    }

    #[test]
    fn an_old_ranking_is_not_used() {
        let cores = CoreTable::new(2, 0).unwrap();
        let settings = Settings::default();
        let rankings = Rankings::publish(&cores, &settings, 1_000);
        let live = Counters {
            cores: &cores,
            placed: vec![Load::ZERO; 2],
        };
        let request = Request::default();
        let last = 1_000 + 3 * settings.sample_period_ns;
        let used = Decision::Use(CoreId(0), Basis::LeastLoad);
        assert_eq!(rankings.walk(request, &live, last), used);
        let old = Decision::Stay(Stay::OldRanking);
        assert_eq!(rankings.walk(request, &live, last + 1), old);
    }
}
