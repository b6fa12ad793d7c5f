//! Prints the simulator's results for the paper's tables, or for a host of any size:
//!
//!     cargo run --release -p sluice-steer --example simulate -- tables
//!     cargo run --release -p sluice-steer --example simulate -- tables --draws 10 --cost 1.05
//!     cargo run --release -p sluice-steer --example simulate -- priority
//!     cargo run --release -p sluice-steer --example simulate -- moves
//!     cargo run --release -p sluice-steer --example simulate -- many --cores 64 --flows 1000000

use clap::{Args, Parser, Subcommand};
use std::time::Instant;
use steer::cores::CoreId;
use steer::handover::Limits;
use steer::simulator::paper::{self, DRAWS, SIZES, Size};
use steer::simulator::{Mode, Moving, Outcome, Scenario, ScenarioError, simulate};

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Tables V, VI and VII of the paper.
    Tables(Variation),
    /// A flow that has priority for two of six seconds.
    Priority,
    /// Flows that are moved all the time, in three ways.
    Moves {
        /// Moves a second.
        #[arg(long, default_value_t = 500.0)]
        rate: f64,
    },
    /// Many cores and flows.
    Many {
        /// Number of cores.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
        cores: u16,
        /// Number of background flows.
        #[arg(long, default_value_t = 1_000_000)]
        flows: u32,
        /// Their load, as a part of the cores without virtual machines.
        #[arg(long, default_value_t = 0.5)]
        load: f64,
    },
}

/// What may be varied of the paper's experiments.
#[derive(Args)]
struct Variation {
    /// Five-tuples that each is repeated with.
    #[arg(long, default_value_t = DRAWS)]
    draws: u64,
    /// Cost of everything, as a multiple of what was derived.
    #[arg(long, default_value_t = 1.0)]
    cost: f64,
    /// Part of a core that virtual machines get from packets that never let it rest.
    #[arg(long, default_value_t = 0.02)]
    task_share: f64,
    /// Packets that a core's queue holds. As many are parked, and a burst.
    #[arg(long, default_value_t = 1024)]
    queue: usize,
}

impl Variation {
    fn of(&self, mut scenario: Scenario) -> Scenario {
        scenario.task_share = self.task_share;
        scenario.queue = self.queue;
        scenario.moving = Moving::Handover(Limits {
            parked: self.queue + 256,
            wait_ns: 100_000 * self.queue as u64,
        });
        for flow in &mut scenario.flows {
            flow.fragment_ns *= self.cost;
            flow.datagram_ns *= self.cost;
            flow.guest_ns *= self.cost;
        }
        scenario
    }

    fn draws(&self, scenario: impl Fn(u64) -> Scenario) -> Result<Vec<Outcome>, ScenarioError> {
        let draws = 0..self.draws.max(1);
        draws
            .map(|draw| simulate(&self.of(scenario(draw))))
            .collect()
    }
}

fn main() -> Result<(), ScenarioError> {
    match Options::parse().what {
        What::Tables(variation) => tables(&variation),
        What::Priority => priority(),
        What::Moves { rate } => moves(rate),
        What::Many { cores, flows, load } => many(cores, flows, load),
    }
}

const MODES: [(&str, Mode); 3] = [
    ("default", paper::DEFAULT),
    ("rss", Mode::Rss),
    ("steering", Mode::Adaptive),
];

fn mean(outcomes: &[Outcome], value: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(value).sum::<f64>() / outcomes.len() as f64
}

fn tables(vary: &Variation) -> Result<(), ScenarioError> {
    println!(
        "Two flows, means of {} five-tuples (tables V and VI)\n",
        vary.draws
    );
    println!(
        "{:>5} {:>9} {:>30} {:>8} {:>15}",
        "bytes", "", "packets by core, %", "Mbit/s", "loss VM1, VM2 %"
    );
    for size in SIZES {
        for (name, mode) in MODES {
            let runs = vary.draws(|draw| paper::two_flows(size, mode, draw))?;
            let all = |run: &Outcome| run.cores.iter().map(|core| core.packets).sum::<u64>() as f64;
            let packets: Vec<String> = (0..4)
                .map(|core| mean(&runs, |run| run.cores[core].packets as f64 / all(run)))
                .map(|part| format!("{:6.1}", part * 100.0))
                .collect();
            println!(
                "{:>5} {name:>9} {:>30} {:>8.1} {:>7.1} {:>7.1}",
                size.bytes(),
                packets.join(" "),
                mean(&runs, Outcome::bits_per_second) / 1e6,
                mean(&runs, |run| run.flows[0].loss()) * 100.0,
                mean(&runs, |run| run.flows[1].loss()) * 100.0,
            );
        }
    }
    let mut rss: Vec<f64> = vary
        .draws(|draw| paper::two_flows(Size::Medium, Mode::Rss, draw))?
        .iter()
        .map(|run| run.bits_per_second() / 1e6)
        .collect();
    rss.sort_by(f64::total_cmp);
    let (worst, best) = (rss[0], rss[rss.len() - 1]);
    println!("\nrss at 1400 bytes, by five-tuple: {worst:.1} to {best:.1} Mbit/s (figure 7)");

    println!("\nThree flows, VM1's with priority, Mbit/s (table VII)\n");
    println!(
        "{:>5} {:>9} {:>8} {:>8} {:>8}",
        "bytes", "", "VM1", "VM2", "VM3"
    );
    for size in SIZES {
        for (name, mode) in &MODES[1..] {
            let runs = vary.draws(|draw| paper::three_flows(size, *mode, draw))?;
            let [vm1, vm2, vm3] =
                [0, 1, 2].map(|flow| mean(&runs, |run| run.flows[flow].bits_per_second) / 1e6);
            println!(
                "{:>5} {name:>9} {vm1:>8.1} {vm2:>8.1} {vm3:>8.1}",
                size.bytes()
            );
        }
    }
    Ok(())
}

fn priority() -> Result<(), ScenarioError> {
    let scenario = paper::priority_switched();
    let run = simulate(&scenario)?;
    println!("VM1's flow has priority from 2 s to 4 s; Mbit/s in each 200 ms\n");
    println!("{:>5} {:>7} {:>7}", "s", "VM1", "VM2");
    let intervals = 200_000_000 / scenario.interval_ns as usize;
    for at in (0..run.flows[0].intervals.len()).step_by(intervals) {
        let rate = |flow: usize| {
            let datagrams: u64 = run.flows[flow].intervals[at..][..intervals].iter().sum();
            datagrams as f64 * f64::from(scenario.flows[flow].bytes) * 8.0 / 0.2 / 1e6
        };
        let seconds = at as f64 * scenario.interval_ns as f64 / 1e9;
        println!("{seconds:>5.1} {:>7.1} {:>7.1}", rate(0), rate(1));
    }
    let moves: Vec<u64> = run.flows.iter().map(|flow| flow.moves).collect();
    println!("\nmoves of each flow: {moves:?}");
    Ok(())
}

fn moves(rate: f64) -> Result<(), ScenarioError> {
    println!("Three flows of 30,000 datagrams a second, moved {rate} times a second for 2 s\n");
    println!(
        "{:>9} {:>7} {:>9} {:>9} {:>10} {:>6}",
        "", "moves", "given up", "kept", "reordered", "lost"
    );
    for (name, moving) in [
        ("handover", Moving::Handover(Limits::default())),
        ("drain", Moving::Drain),
        ("at once", Moving::AtOnce),
    ] {
        let run = simulate(&paper::forced_moves(moving, rate))?;
        let sum = |value: &dyn Fn(&steer::simulator::FlowOutcome) -> u64| -> u64 {
            run.flows.iter().map(value).sum()
        };
        println!(
            "{name:>9} {:>7} {:>9} {:>9} {:>10} {:>6}",
            sum(&|flow| flow.moves),
            run.moves_given_up,
            run.packets_kept,
            sum(&|flow| flow.reordered),
            sum(&|flow| flow.lost_in_queue)
        );
    }
    Ok(())
}

fn many(cores: u16, flows: u32, load: f64) -> Result<(), ScenarioError> {
    println!("{cores} cores, {flows} background flows, 8 heavy flows, 3 s\n");
    println!(
        "{:>9} {:>24} {:>10} {:>12} {:>12} {:>10} {:>9} {:>8}",
        "",
        "load of cores, %",
        "on VMs', %",
        "loss, mean %",
        "worst %",
        "heavy, %",
        "moves",
        "took, s"
    );
    for (name, mode) in [
        ("default", Mode::Default(CoreId(cores - 1))),
        MODES[1],
        MODES[2],
    ] {
        let scenario = paper::many(cores, flows, load, mode);
        let begun = Instant::now();
        let run = simulate(&scenario)?;
        let took = begun.elapsed().as_secs_f64();
        let mut loads: Vec<f64> = run.cores.iter().map(|core| core.load * 100.0).collect();
        loads.sort_by(f64::total_cmp);
        let (least, most) = (loads[0], loads[loads.len() - 1]);
        let median = loads[loads.len() / 2];
        let guests = usize::from(cores / 4) + 1;
        let on = |cores: &[steer::simulator::CoreOutcome]| -> f64 {
            cores.iter().map(|core| core.packet_load).sum()
        };
        let on_guests = on(&run.cores[..guests]) / on(&run.cores).max(1e-9);
        let heavy = run.flows.iter().map(|flow| flow.loss()).sum::<f64>() / run.flows.len() as f64;
        let moves = run.background.moves + run.flows.iter().map(|flow| flow.moves).sum::<u64>();
        println!(
            "{name:>9} {:>24} {:>10.1} {:>12.2} {:>12.1} {:>10.2} {moves:>9} {took:>8.1}",
            format!("{least:.0}, {median:.0}, {most:.0}"),
            on_guests * 100.0,
            run.background.loss * 100.0,
            run.background.worst_loss * 100.0,
            heavy * 100.0,
        );
    }
    Ok(())
}
