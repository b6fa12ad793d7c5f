//! The paper's inequalities, as in docs/steering.md: what must hold in tables V, VI and VII and
//! when a priority bit is switched on and off (experiments C2 to C5, C9, C11).

use steer::cores::CoreId;
use steer::handover::Limits;
use steer::simulator::paper::{self, SIZES, Size};
use steer::simulator::{Change, Mode, Moving, Outcome, Scenario, simulate};

/// Number of five-tuples that each case is repeated with; `examples/simulate.rs` takes more.
const DRAWS: u64 = 6;

fn draws(scenario: impl Fn(u64) -> Scenario) -> Vec<Outcome> {
    (0..DRAWS)
        .map(|draw| simulate(&scenario(draw)).unwrap())
        .collect()
}

fn mean(runs: &[Outcome], value: impl Fn(&Outcome) -> f64) -> f64 {
    runs.iter().map(value).sum::<f64>() / runs.len() as f64
}

fn two_flows(size: Size, mode: Mode) -> Vec<Outcome> {
    draws(|draw| paper::two_flows(size, mode, draw))
}

fn share_of_packets(run: &Outcome, core: usize) -> f64 {
    let all: u64 = run.cores.iter().map(|core| core.packets).sum();
    run.cores[core].packets as f64 / all as f64
}

#[test]
fn no_mode_loses_frames_of_64_bytes() {
    for mode in [paper::DEFAULT, Mode::Rss, Mode::Adaptive] {
        for run in two_flows(Size::Small, mode) {
            for flow in &run.flows {
                assert!(flow.loss() < 0.01, "{mode:?}: {flow:?}");
            }
        }
    }
}

#[test]
fn steering_uses_the_cores_without_virtual_machines_evenly() {
    // Table V: `proposal` uses cores 2 and 3 equally, at every size.
    for size in SIZES {
        for run in two_flows(size, Mode::Adaptive) {
            let [one, other] = [2, 3].map(|core| share_of_packets(&run, core));
            assert!((one - 0.5).abs() < 0.02, "{one}");
            assert!((one + other - 1.0).abs() < 1e-9);
            assert_eq!(run.flows.iter().map(|flow| flow.moves).sum::<u64>(), 0);
        }
    }
}

#[test]
fn rss_puts_nine_tenths_of_fragments_on_one_core() {
    let runs = two_flows(Size::Large, Mode::Rss);
    let share = mean(&runs, |run| share_of_packets(run, 0));
    assert!((0.85..0.95).contains(&share), "{share}");
}

#[test]
fn losses_at_1400_and_8192_bytes() {
    // Table VI. At 1400 bytes, RSS loses less than default, because only some five-tuples collide.
    for size in [Size::Medium, Size::Large] {
        let [default, rss, steering] = [paper::DEFAULT, Mode::Rss, Mode::Adaptive]
            .map(|mode| mean(&two_flows(size, mode), |run| run.flows[0].loss()));
        assert!(default > steering + 0.2, "{default}, {steering}");
        assert!(rss > steering + 0.05, "{rss}, {steering}");
        if size == Size::Large {
            assert!(rss > default + 0.1, "{rss}, {default}");
        } else {
            assert!(default > rss, "{default}, {rss}");
        }
    }
}

#[test]
fn steering_is_as_good_as_the_best_draw_of_rss() {
    // Figure 7, 1400 bytes.
    let rss = two_flows(Size::Medium, Mode::Rss);
    let best = rss.iter().map(Outcome::bits_per_second).fold(0.0, f64::max);
    let average = mean(&rss, Outcome::bits_per_second);
    let steering = mean(
        &two_flows(Size::Medium, Mode::Adaptive),
        Outcome::bits_per_second,
    );
    assert!(steering > 0.99 * best, "{steering}, {best}");
    assert!(steering > 1.1 * average, "{steering}, {average}");
}

#[test]
fn the_priority_flow_is_highest_and_all_are_above_rss() {
    // Table VII.
    let three = |size, mode| {
        let runs = draws(|draw| paper::three_flows(size, mode, draw));
        [0, 1, 2].map(|flow| mean(&runs, |run| run.flows[flow].bits_per_second) / 1e6)
    };
    for size in SIZES {
        let (rss, steering) = (three(size, Mode::Rss), three(size, Mode::Adaptive));
        for flow in 0..3 {
            if size == Size::Small {
                assert!((steering[flow] / rss[flow] - 1.0).abs() < 0.02);
            } else {
                assert!(
                    steering[flow] > rss[flow],
                    "{size:?}: {steering:?}, {rss:?}"
                );
            }
        }
        if size != Size::Small {
            let others = steering[1].max(steering[2]);
            assert!(steering[0] > 1.02 * others, "{size:?}: {steering:?}");
        }
    }
}

#[test]
fn parking_must_hold_what_a_ring_holds() {
    // The three flows begin on one core, whose queue is full when two of them should leave it.
    let moves = |parked| {
        let mut scenario = paper::three_flows(Size::Medium, Mode::Adaptive, 0);
        scenario.warm_up_ns = 0;
        scenario.moving = Moving::Handover(Limits {
            parked,
            ..Limits::default()
        });
        let run = simulate(&scenario).unwrap();
        (run.flows[0].bits_per_second, run.moves_given_up)
    };
    let (enough, given_up) = moves(Limits::default().parked);
    assert_eq!(given_up, 0);
    let (too_little, given_up) = moves(256);
    assert!(given_up > 0);
    assert!(too_little < 0.8 * enough, "{too_little}, {enough}");
}

#[test]
fn others_lose_while_a_flow_has_priority_and_get_it_back() {
    let scenario = paper::priority_switched();
    let run = simulate(&scenario).unwrap();
    let datagrams = |flow: usize, from_ns: u64, to_ns: u64| -> f64 {
        let at = |time_ns: u64| (time_ns / scenario.interval_ns) as usize;
        let counts = &run.flows[flow].intervals[at(from_ns)..at(to_ns)];
        counts.iter().sum::<u64>() as f64 / counts.len() as f64
    };
    let (on, off) = (paper::PRIORITY_ON_NS, paper::PRIORITY_OFF_NS);
    let settle = 500_000_000;
    for flow in 0..2 {
        let before = datagrams(flow, settle, on);
        let during = datagrams(flow, on + settle, off);
        let after = datagrams(flow, off + settle, scenario.end_ns);
        assert!((after / before - 1.0).abs() < 0.03, "{before}, {after}");
        if flow == 0 {
            assert!((during / before - 1.0).abs() < 0.03);
        } else {
            assert!(during < 0.9 * before, "{before}, {during}");
        }
    }
    // Away and back again, and no other moves.
    let moves: Vec<u64> = run.flows.iter().map(|flow| flow.moves).collect();
    assert_eq!(moves, [0, 2]);
    assert_eq!(run.flows[1].reordered, 0);
}

#[test]
fn forced_moves_reorder_only_without_a_handover() {
    let run = |moving| {
        let run = simulate(&paper::forced_moves(moving, 500.0)).unwrap();
        let moves: u64 = run.flows.iter().map(|flow| flow.moves).sum();
        assert!(moves > 500, "{moves}");
        let lost: u64 = run.flows.iter().map(|flow| flow.lost_in_queue).sum();
        assert_eq!(lost, 0);
        run.flows.iter().map(|flow| flow.reordered).sum::<u64>()
    };
    assert_eq!(run(Moving::Handover(Limits::default())), 0);
    assert_eq!(run(Moving::Drain), 0);
    assert!(run(Moving::AtOnce) > 50);
}

#[test]
fn flows_leave_a_core_when_a_virtual_machine_starts_there() {
    // C10. Both flows are on core 2 or 3; a third virtual machine starts on core 2.
    let mut scenario = paper::two_flows(Size::Medium, Mode::Adaptive, 0);
    let half = scenario.end_ns / 2;
    let vm = steer::simulator::VmSpec {
        id: steer::cores::VmId(3),
        core: CoreId(2),
        compute: 0.5,
    };
    scenario.changes = vec![(half, Change::StartVm(vm))];
    let run = simulate(&scenario).unwrap();
    assert_eq!(run.flows[0].moves + run.flows[1].moves, 1);
    let period = scenario.settings.sample_period_ns;
    assert!(run.last_move_ns > half && run.last_move_ns <= half + period);
    assert_eq!(run.flows[0].reordered + run.flows[1].reordered, 0);
}

#[test]
fn many_flows_on_many_cores() {
    let run = |mode| simulate(&paper::many(16, 20_000, 0.5, mode)).unwrap();
    let (rss, steering) = (run(Mode::Rss), run(Mode::Adaptive));
    assert_eq!(steering.background.flows, 20_000);
    let on_guests = |run: &Outcome| -> f64 {
        let load = |range: std::ops::Range<usize>| -> f64 {
            run.cores[range].iter().map(|core| core.packet_load).sum()
        };
        load(0..5) / load(0..16)
    };
    assert!(on_guests(&rss) > 0.2);
    // The fifth virtual machine starts in the middle; its core's flows leave.
    assert!(on_guests(&steering) < 0.05, "{}", on_guests(&steering));
    assert!(steering.background.loss <= rss.background.loss);
    assert!(steering.background.loss < 0.001);
}
