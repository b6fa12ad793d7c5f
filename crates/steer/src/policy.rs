//! The policy: chooses a core for a flow (paper, III-B, III-D, IV and V-C).
//!
//! [`choose`] uses the core table and what is known of a flow, in this order:
//!
//! 1. If every core was measured to be highly loaded, nothing is moved.
//! 2. Of the cores that are not highly loaded and run no virtual machine, the least loaded one.
//!    Load is what was measured plus what is expected of flows placed since. A flow without
//!    priority skips cores that hold priority flows.
//! 3. For a priority flow that found none: of the cores without a virtual machine, the one that
//!    would be least loaded once flows without priority have left it. They leave at the next sample
//!    ([`crate::balance`]).
//! 4. The least loaded core on which the flow's own virtual machine runs, if it is not highly
//!    loaded.
//! 5. None: the flow stays where it is.
//!
//! Of equal loads, the lower core number wins.

use crate::cores::{CoreId, CoreTable, Load, VmId};
use crate::settings::Settings;

/// What the policy needs to know of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Request {
    /// The virtual machine that the flow is for, if known.
    pub vm: Option<VmId>,
    /// Whether it has the priority bit.
    pub priority: bool,
}

/// Why a flow is on its core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Basis {
    /// The least loaded core without a virtual machine.
    LeastLoad,
    /// A core without a virtual machine that flows without priority are about to leave.
    Displacing,
    /// Its virtual machine's core, because no other was fit.
    OwnCore,
    /// It stayed, because no core was fit.
    Stayed,
}

/// Why a flow stays where it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stay {
    /// All cores are highly loaded.
    AllHigh,
    /// No core without a virtual machine is fit, and its virtual machine's core is highly loaded
    /// or unknown.
    NoneFit,
    /// The published ranking is too old to be used.
    OldRanking,
}

/// The policy's choice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// The flow gets this core.
    Use(CoreId, Basis),
    /// The flow stays on its core.
    Stay(Stay),
}

/// Chooses a core for a flow. Takes time proportional to the number of cores.
pub fn choose(cores: &CoreTable, request: Request, settings: &Settings) -> Decision {
    choose_among(cores, request, settings, |_| true)
}

/// Chooses a core among those that `eligible` returns true for.
pub(crate) fn choose_among(
    cores: &CoreTable,
    request: Request,
    settings: &Settings,
    eligible: impl Fn(CoreId) -> bool,
) -> Decision {
    let high = settings.high;
    if cores.all_high(high) {
        return Decision::Stay(Stay::AllHigh);
    }
    let all_held = request.priority && cores.held_cores() >= settings.held_cores;
    let least = |fit: &dyn Fn(CoreId) -> bool, load: &dyn Fn(CoreId) -> Load| {
        let fit = cores.ids().filter(|core| fit(*core) && eligible(*core));
        let least = fit.map(|core| (load(core), core)).min();
        least.filter(|(load, _)| *load < high).map(|(_, core)| core)
    };
    let free = |core: CoreId| {
        let held = cores.is_held(core);
        !cores.runs_vm(core) && may_use(request.priority, held, all_held)
    };
    if let Some(core) = least(&free, &|core| cores.load(core)) {
        return Decision::Use(core, Basis::LeastLoad);
    }
    if request.priority
        && let Some(core) = least(&free, &|core| cores.load_without_normal_flows(core))
    {
        return Decision::Use(core, Basis::Displacing);
    }
    let own = |core: CoreId| request.vm.is_some_and(|vm| cores.runs(core, vm));
    match least(&own, &|core| cores.load(core)) {
        Some(core) => Decision::Use(core, Basis::OwnCore),
        None => Decision::Stay(Stay::NoneFit),
    }
}

/// Returns whether a flow may use a core without a virtual machine. A flow without priority may
/// unless the core is held. A priority flow may, but once as many cores are held as allowed
/// (`all_held`), only a held one.
pub(crate) fn may_use(priority: bool, held: bool, all_held: bool) -> bool {
    if priority { held || !all_held } else { !held }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::Sample;

    const VM1: VmId = VmId(1);
    const VM2: VmId = VmId(2);

    /// Makes cores with these loads, in percent; virtual machine n + 1 runs on core n, for `vms`
    /// cores.
    fn table(loads: &[u32], vms: u16) -> CoreTable {
        let mut cores = CoreTable::new(loads.len() as u16, 0).unwrap();
        let samples: Vec<Sample> = loads
            .iter()
            .map(|load| Sample {
                load: Load::percent(*load),
                yielding: Load::ZERO,
            })
            .collect();
        cores.sample(&samples, 0).unwrap();
        for core in 0..vms {
            cores.vm_started(VmId(core + 1), CoreId(core)).unwrap();
        }
        cores
    }

    fn normal(cores: &CoreTable, vm: VmId) -> Decision {
        let request = Request {
            vm: Some(vm),
            priority: false,
        };
        choose(cores, request, &Settings::default())
    }

    fn priority(cores: &CoreTable, vm: VmId) -> Decision {
        let request = Request {
            vm: Some(vm),
            priority: true,
        };
        choose(cores, request, &Settings::default())
    }

    fn least(core: u16) -> Decision {
        Decision::Use(CoreId(core), Basis::LeastLoad)
    }

    fn own(core: u16) -> Decision {
        Decision::Use(CoreId(core), Basis::OwnCore)
    }

    #[test]
    fn table_two_of_the_paper() {
        // Core 0 has load 10 and VM 1, core 1 load 50 and VM 2, core 2 load 20, core 3 load 50.
        let cores = table(&[10, 50, 20, 50], 2);
        assert_eq!(normal(&cores, VM2), least(2));
    }

    #[test]
    fn new_flows_do_not_herd_onto_one_core() {
        let mut cores = table(&[0, 0, 20, 22], 2);
        let mut placed = [0; 4];
        for _ in 0..10 {
            let Decision::Use(core, Basis::LeastLoad) = normal(&cores, VM1) else {
                panic!("no core");
            };
            cores.place(core, Load::percent(1), false, 0);
            placed[core.index()] += 1;
        }
        // Two fill the gap of 2%; the others alternate.
        assert_eq!(placed, [0, 0, 6, 4]);
    }

    #[test]
    fn expected_load_makes_a_core_high() {
        let mut cores = table(&[30, 79], 1);
        assert_eq!(normal(&cores, VM1), least(1));
        cores.place(CoreId(1), Load::percent(1), false, 0);
        assert_eq!(normal(&cores, VM1), own(0));
    }

    #[test]
    fn the_own_core_only_if_it_is_not_high() {
        assert_eq!(normal(&table(&[30, 20, 90], 2), VM1), own(0));
        let cores = table(&[80, 20, 90], 2);
        assert_eq!(normal(&cores, VM1), Decision::Stay(Stay::NoneFit));
        assert_eq!(normal(&cores, VmId(9)), Decision::Stay(Stay::NoneFit));
    }

    #[test]
    fn of_several_own_cores_the_least_loaded() {
        let mut cores = table(&[30, 20, 90], 1);
        cores.vm_started(VM1, CoreId(1)).unwrap();
        assert_eq!(normal(&cores, VM1), own(1));
    }

    #[test]
    fn nothing_moves_when_all_cores_are_high() {
        let cores = table(&[80, 99, 80, 100], 2);
        assert_eq!(normal(&cores, VM1), Decision::Stay(Stay::AllHigh));
        assert_eq!(priority(&cores, VM1), Decision::Stay(Stay::AllHigh));
    }

    #[test]
    fn flows_without_priority_use_their_vm_core_while_the_only_free_core_is_held() {
        // Paper, V-C: VM 1's priority flow has core 3.
        let mut cores = table(&[10, 10, 10, 0], 3);
        assert_eq!(priority(&cores, VM1), least(3));
        cores.place(CoreId(3), Load::percent(70), true, 0);
        assert_eq!(normal(&cores, VM2), own(1));
        assert_eq!(normal(&cores, VmId(3)), own(2));
        // A second priority flow shares the core while it is not high.
        assert_eq!(priority(&cores, VM2), least(3));
    }

    #[test]
    fn a_priority_flow_displaces_others() {
        let mut cores = table(&[10, 0, 0], 1);
        let sample = |load, yielding| Sample {
            load: Load::percent(load),
            yielding: Load::percent(yielding),
        };
        let samples = [sample(10, 0), sample(90, 5), sample(95, 60)];
        cores.sample(&samples, 0).unwrap();
        assert_eq!(normal(&cores, VM1), own(0));
        let displacing = Decision::Use(CoreId(2), Basis::Displacing);
        assert_eq!(priority(&cores, VM1), displacing);
    }

    #[test]
    fn the_number_of_held_cores_is_limited() {
        let mut cores = table(&[10, 0, 0, 0], 1);
        let settings = Settings {
            held_cores: 1,
            ..Settings::default()
        };
        let request = Request {
            vm: None,
            priority: true,
        };
        assert_eq!(choose(&cores, request, &settings), least(1));
        cores.place(CoreId(1), Load::percent(40), true, 0);
        // Cores 2 and 3 are idle, but priority flows may hold only one core.
        assert_eq!(choose(&cores, request, &settings), least(1));
        assert_eq!(normal(&cores, VM1), least(2));
    }
}
