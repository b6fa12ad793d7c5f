//! Tests of the balancer, most of them in a closed loop: each core's load is what its flows demand,
//! measured at every sample.

use super::*;
use crate::cores::Sample;
use proptest::prelude::*;

/// Cores with flows that demand a share of a core each.
struct Host {
    settings: Settings,
    cores: CoreTable,
    balancer: Balancer,
    flows: Vec<Flow<usize>>,
    /// Each flow's demand, in percent of a core.
    demands: Vec<u32>,
    /// Load of each core that is not caused by flows, in percent.
    other: Vec<u32>,
    now_ns: u64,
}

impl Host {
    fn new(cores: u16) -> Host {
        let settings = Settings::default();
        Host {
            settings,
            cores: CoreTable::new(cores, 0).unwrap(),
            balancer: Balancer::new(cores, &settings),
            flows: Vec::new(),
            demands: Vec::new(),
            other: vec![0; usize::from(cores)],
            now_ns: 0,
        }
    }

    fn flow(&mut self, core: u16, demand: u32, vm: Option<u16>, priority: bool) {
        self.flows.push(Flow {
            key: self.flows.len(),
            core: CoreId(core),
            load: Load::percent(demand),
            vm: vm.map(VmId),
            priority,
            basis: Basis::LeastLoad,
            moved_ns: 0,
        });
        self.demands.push(demand);
        if priority {
            self.cores.hold(CoreId(core));
        }
    }

    /// Takes one sample and makes the moves that follow.
    fn sample(&mut self) -> Vec<Move<usize>> {
        self.now_ns += self.settings.sample_period_ns;
        let mut samples = vec![Sample::default(); self.other.len()];
        for core in self.cores.ids() {
            let here = |flow: &Flow<usize>| flow.core == core;
            let flows = self.flows.iter().zip(&self.demands);
            let demand: u32 = flows.filter(|(f, _)| here(f)).map(|(_, d)| *d).sum();
            // An overloaded core processes the same share of each demand.
            let whole = demand + self.other[core.index()];
            let part = |demand| Load::percent(demand * 100 / whole.max(100));
            for (flow, demand) in self.flows.iter_mut().zip(&self.demands) {
                if flow.core == core {
                    flow.load = part(*demand);
                    if !flow.priority {
                        let yielding = &mut samples[core.index()].yielding;
                        *yielding = yielding.plus(flow.load);
                    }
                }
            }
            samples[core.index()].load = Load::percent(whole.min(100));
        }
        self.cores.sample(&samples, self.now_ns).unwrap();
        self.balancer.observe(&self.cores);
        let sources = self.balancer.sources(&self.cores, &self.settings);
        let wanted = self.flows.iter().filter(|flow| sources[flow.core.index()]);
        let wanted: Vec<_> = wanted.copied().collect();
        let (cores, settings) = (&self.cores, &self.settings);
        let moves = self.balancer.decide(cores, &wanted, settings, self.now_ns);
        // The flows of other cores would not have moved either.
        if moves.is_empty() && (self.now_ns / self.settings.sample_period_ns).is_multiple_of(16) {
            let all = self
                .balancer
                .clone()
                .decide(cores, &self.flows, settings, self.now_ns);
            assert_eq!(all, []);
        }
        for step in &moves {
            let flow = &mut self.flows[step.key];
            assert_eq!(flow.core, step.from);
            let (load, priority) = (flow.load, flow.priority);
            self.cores
                .moved(step.from, step.to, load, priority, self.now_ns);
            flow.core = step.to;
            flow.basis = step.basis;
            flow.moved_ns = self.now_ns;
        }
        moves
    }

    fn samples(&mut self, count: usize) -> Vec<Move<usize>> {
        (0..count).flat_map(|_| self.sample()).collect()
    }

    fn cores_of_flows(&self) -> Vec<u16> {
        self.flows.iter().map(|flow| flow.core.0).collect()
    }
}

#[test]
fn nothing_moves_before_the_hold_time() {
    let mut host = Host::new(2);
    for _ in 0..4 {
        host.flow(0, 25, None, false);
    }
    assert_eq!(host.samples(11), []);
    let moves = host.sample();
    assert_eq!(moves.len(), 2);
    assert!(moves.iter().all(|step| step.cause == Cause::Load));
    assert_eq!(host.samples(100), []);
}

#[test]
fn a_gain_below_the_margin_moves_nothing() {
    let mut host = Host::new(2);
    host.other = vec![80, 66];
    // 85% on core 0; with the flow, core 1 would have 71%: a gain of 14%.
    host.flow(0, 5, None, false);
    assert_eq!(host.samples(12).len(), 1);
    let mut host = Host::new(2);
    host.other = vec![80, 71];
    // Core 1 would have 76%: a gain of 9%.
    host.flow(0, 5, None, false);
    assert_eq!(host.samples(50), []);
}

#[test]
fn a_heavy_flow_stays_and_its_neighbours_move() {
    let mut host = Host::new(3);
    host.flow(0, 85, None, false);
    for _ in 0..5 {
        host.flow(0, 3, None, false);
    }
    host.samples(50);
    let cores = host.cores_of_flows();
    assert_eq!(cores[0], 0);
    assert!(cores[1..].iter().all(|core| *core != 0), "{cores:?}");
    // Alone on its overloaded core, it stays.
    assert_eq!(host.samples(100), []);
}

#[test]
fn flows_leave_a_core_at_the_sample_after_a_vm_has_started() {
    let mut host = Host::new(3);
    host.flow(0, 20, Some(1), false);
    host.flow(1, 10, Some(1), false);
    assert_eq!(host.samples(3), []);
    host.cores.vm_started(VmId(9), CoreId(0)).unwrap();
    let moves = host.sample();
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].key, moves[0].to), (0, CoreId(2)));
    assert_eq!(moves[0].cause, Cause::VirtualMachine);
    assert_eq!(host.samples(100), []);
}

#[test]
fn a_flow_prefers_its_vm_core_to_overloading_another() {
    let mut host = Host::new(3);
    host.flow(0, 70, Some(1), false);
    host.other = vec![0, 60, 10];
    host.cores.vm_started(VmId(1), CoreId(2)).unwrap();
    host.cores.vm_started(VmId(9), CoreId(0)).unwrap();
    let moves = host.sample();
    assert_eq!((moves[0].to, moves[0].basis), (CoreId(2), Basis::OwnCore));
    assert_eq!(host.samples(100), []);
}

#[test]
fn nothing_moves_when_all_cores_are_high() {
    let mut host = Host::new(3);
    for core in [0, 0, 0, 1, 1, 1, 2, 2, 2] {
        host.flow(core, 30, Some(1), core == 2);
    }
    host.cores.vm_started(VmId(1), CoreId(0)).unwrap();
    assert_eq!(host.samples(100), []);
}

#[test]
fn priority_empties_a_core_and_the_others_come_back_after_it() {
    // Paper, V-C, with two flows that fit one core together; VM n + 1 runs on core n.
    let mut host = Host::new(3);
    host.flow(2, 35, Some(1), false);
    host.flow(2, 35, Some(2), false);
    host.cores.vm_started(VmId(1), CoreId(0)).unwrap();
    host.cores.vm_started(VmId(2), CoreId(1)).unwrap();
    assert_eq!(host.samples(20), []);
    host.flows[0].priority = true;
    host.cores.hold(CoreId(2));
    let moves = host.sample();
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].key, moves[0].to), (1, CoreId(1)));
    assert_eq!(
        (moves[0].basis, moves[0].cause),
        (Basis::OwnCore, Cause::Priority)
    );
    assert_eq!(host.samples(50), []);
    host.flows[0].priority = false;
    host.cores.release(CoreId(2));
    let moves = host.samples(50);
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].to, moves[0].cause), (CoreId(2), Cause::Return));
    assert_eq!(host.samples(100), []);
}

#[test]
fn a_priority_flow_leaves_its_vm_core_when_another_has_room() {
    let mut host = Host::new(2);
    host.flow(0, 30, Some(1), true);
    host.flows[0].basis = Basis::OwnCore;
    host.flow(1, 75, Some(2), true);
    host.cores.vm_started(VmId(1), CoreId(0)).unwrap();
    // Core 1 would have 105%.
    assert_eq!(host.samples(50), []);
    host.demands[1] = 40;
    let moves = host.sample();
    assert_eq!((moves[0].to, moves[0].cause), (CoreId(1), Cause::Priority));
    assert_eq!(host.samples(100), []);
}

#[test]
fn a_light_flow_returns_where_a_heavy_one_has_no_room() {
    let mut host = Host::new(2);
    host.flow(0, 60, Some(1), false);
    host.flow(0, 15, Some(1), false);
    for flow in &mut host.flows {
        flow.basis = Basis::OwnCore;
    }
    host.other[1] = 30;
    host.cores.vm_started(VmId(1), CoreId(0)).unwrap();
    host.samples(50);
    assert_eq!(host.cores_of_flows(), [0, 1]);
}

#[test]
fn a_flow_that_gets_priority_displaces_others() {
    let mut host = Host::new(3);
    host.flow(0, 30, Some(1), false);
    host.flows[0].basis = Basis::OwnCore;
    host.flow(2, 85, Some(2), false);
    host.cores.vm_started(VmId(1), CoreId(0)).unwrap();
    host.cores.vm_started(VmId(2), CoreId(1)).unwrap();
    assert_eq!(host.samples(50), []);
    // As `FlowTable::modify` does it.
    host.flows[0].priority = true;
    host.flows[0].basis = Basis::Stayed;
    host.cores.hold(CoreId(0));
    host.sample();
    assert_eq!(host.cores_of_flows(), [2, 1]);
    assert_eq!(host.samples(100), []);
}

/// Returns the share of the next sample period in which a load that alternates with this period is
/// high.
fn part_of_sample(now_ns: u64, period_ms: u64, phase_ms: u64) -> f64 {
    let from_ms = now_ns / 1_000_000 + phase_ms;
    let is_high = |ms: &u64| ms % period_ms < period_ms.div_ceil(2);
    let high = (from_ms..from_ms + 20).filter(is_high).count();
    high as f64 / 20.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_load_that_flips_faster_than_twice_the_hold_time_moves_nothing(
        // Each phase lasts for at least a whole sample: faster changes have a steady mean.
        period_ms in 80..400_u64,
        phase_ms in 0..400_u64,
        high in 80..101_u32,
        low in 0..70_u32,
        flows in prop::collection::vec(1..20_u32, 1..5),
        other in 0..60_u32,
    ) {
        let mut host = Host::new(2);
        let whole: u32 = flows.iter().sum();
        for demand in &flows {
            host.flow(0, *demand, None, false);
        }
        host.other[1] = other;
        let (high, low) = (high.max(whole), low.max(whole));
        prop_assume!(low < 75);
        for _ in 0..200 {
            let part = part_of_sample(host.now_ns, period_ms, phase_ms);
            host.other[0] = low - whole + (part * f64::from(high - low)).round() as u32;
            prop_assert_eq!(host.sample(), []);
        }
    }

    #[test]
    fn a_target_that_flips_gets_nothing(
        period_ms in 80..400_u64,
        phase_ms in 0..400_u64,
        low in 0..70_u32,
    ) {
        let mut host = Host::new(2);
        for _ in 0..5 {
            host.flow(0, 20, None, false);
        }
        for _ in 0..200 {
            let part = part_of_sample(host.now_ns, period_ms, phase_ms);
            host.other[1] = low + (part * f64::from(95 - low)).round() as u32;
            prop_assert_eq!(host.sample(), []);
        }
    }

    #[test]
    fn a_steady_load_settles(
        other in prop::collection::vec(0..100_u32, 2..6),
        vms in prop::collection::vec(0..6_u16, 0..4),
        flows in prop::collection::vec(
            (0..6_u16, 1..70_u32, prop::option::of(0..4_u16), prop::bool::weighted(0.2)),
            0..16,
        ),
        moved_vm in prop::option::of((0..4_u16, 0..6_u16)),
    ) {
        let mut host = Host::new(other.len() as u16);
        host.other = other;
        let count = host.cores.count();
        for (vm, core) in vms.iter().enumerate() {
            host.cores.vm_started(VmId(vm as u16), CoreId(core % count)).unwrap();
        }
        for (core, demand, vm, priority) in flows {
            host.flow(core % count, demand, vm, priority);
        }
        host.samples(300);
        prop_assert_eq!(host.samples(200), []);
        if let Some((vm, core)) = moved_vm {
            host.cores.vm_stopped(VmId(vm));
            host.cores.vm_started(VmId(vm), CoreId(core % count)).unwrap();
            host.samples(300);
            prop_assert_eq!(host.samples(200), []);
        }
    }
}
