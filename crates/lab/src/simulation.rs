//! Paper c's experiments that need four cores, by the simulator that runs the same policy as the
//! switch ([`steer::simulator`]).

use crate::lines::Line;
use crate::results::Value;
use std::collections::BTreeMap;
use steer::cores::{CoreError, CoreId, CoreTable, Load, Sample, VmId};
use steer::policy::{Decision, Request, Stay, choose};
use steer::settings::Settings;
use steer::simulator::paper::{self, DRAWS, SIZES, Size};
use steer::simulator::{Mode, ScenarioError, simulate};

/// What can be simulated.
pub const EXPERIMENTS: [&str; 4] = ["C2", "C5", "C6", "C11"];

/// How packets are assigned to cores, by the names of the report's subjects.
const MODES: [(&str, Mode); 3] = [
    ("default", paper::DEFAULT),
    ("rss", Mode::Rss),
    ("sluice", Mode::Adaptive),
];

/// Intervals of the time series of C11, ns.
const STEP_NS: u64 = 200_000_000;

/// Why an experiment is not simulated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is none of [`EXPERIMENTS`].
    #[error("{} is not simulated: {} are", .0, EXPERIMENTS.join(", "))]
    Unknown(String),
    /// The simulator does not accept what it simulates.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The policy's table does not accept the cores.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The policy does not move the flow of the paper's example.
    #[error("the flow stays where it is: {0:?}")]
    Stays(Stay),
}

/// Runs one of [`EXPERIMENTS`] with this many five-tuples ([`DRAWS`] at most). Each line is one of
/// them.
pub fn run(experiment: &str, draws: u64) -> Result<Vec<Line>, Error> {
    let draws = draws.clamp(1, DRAWS);
    match experiment {
        "C2" => two_flows(draws),
        "C5" => three_flows(draws),
        "C6" => table_two(),
        "C11" => priority_switched(),
        other => Err(Error::Unknown(other.to_owned())),
    }
}

fn bytes(size: Size) -> Value {
    Value::Number(f64::from(size.bytes()))
}

fn line<const N: usize, const M: usize>(
    subject: &str,
    at: [(&str, Value); N],
    figures: [(&str, f64); M],
) -> Line {
    Line {
        subject: subject.into(),
        at: at.map(|(name, value)| (name.into(), value)).into(),
        figures: figures.map(|(name, value)| (name.into(), value)).into(),
        ..Line::default()
    }
}

/// Two flows, by who assigns them (V-B; figure 7, tables V and VI).
fn two_flows(draws: u64) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    for size in SIZES {
        for (subject, mode) in MODES {
            for draw in 0..draws {
                let run = simulate(&paper::two_flows(size, mode, draw))?;
                let all: u64 = run.cores.iter().map(|core| core.packets).sum();
                let most = run.cores.iter().map(|core| core.packets).max();
                let busiest = most.unwrap_or_default() as f64 / all.max(1) as f64;
                lines.push(line(
                    subject,
                    [("size", bytes(size))],
                    [
                        ("delivered", run.bits_per_second() / 1e6),
                        ("lost1", 100.0 * run.flows[0].loss()),
                        ("lost2", 100.0 * run.flows[1].loss()),
                        ("busiest", 100.0 * busiest),
                    ],
                ));
            }
        }
    }
    Ok(lines)
}

/// Three flows, the first with priority (V-C; table VII).
fn three_flows(draws: u64) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    for size in SIZES {
        for (subject, mode) in &MODES[1..] {
            for draw in 0..draws {
                let run = simulate(&paper::three_flows(size, *mode, draw))?;
                for (flow, vm) in run.flows.iter().zip(["VM1 (priority)", "VM2", "VM3"]) {
                    lines.push(line(
                        subject,
                        [("size", bytes(size)), ("flow", Value::Text(vm.into()))],
                        [("delivered", flow.bits_per_second / 1e6)],
                    ));
                }
            }
        }
    }
    Ok(lines)
}

/// The paper's worked example of a choice (table II): core 0 has load 10 and machine 1, core 1
/// load 50 and machine 2, core 2 load 20, core 3 load 50; a flow for machine 2.
fn table_two() -> Result<Vec<Line>, Error> {
    let loads = [10, 50, 20, 50];
    let mut cores = CoreTable::new(loads.len() as u16, 0)?;
    let samples = loads.map(|load| Sample {
        load: Load::percent(load),
        yielding: Load::ZERO,
    });
    cores.sample(&samples, 0)?;
    for core in 0..2 {
        cores.vm_started(VmId(core + 1), CoreId(core))?;
    }
    let request = Request {
        vm: Some(VmId(2)),
        priority: false,
    };
    let chosen = match choose(&cores, request, &Settings::default()) {
        Decision::Use(core, _) => core,
        Decision::Stay(why) => return Err(Error::Stays(why)),
    };
    Ok(loads
        .iter()
        .enumerate()
        .map(|(core, load)| {
            let is = f64::from(u8::from(core == chosen.index()));
            line(
                "sluice",
                [("core", Value::Number(core as f64))],
                [("load", f64::from(*load)), ("chosen", is)],
            )
        })
        .collect())
}

/// A flow that has priority from 2 s to 4 s, and one beside it that has not.
fn priority_switched() -> Result<Vec<Line>, Error> {
    let scenario = paper::priority_switched();
    let run = simulate(&scenario)?;
    let each = (STEP_NS / scenario.interval_ns.max(1)).max(1) as usize;
    let seconds = each as f64 * scenario.interval_ns as f64 / 1e9;
    let mut lines = Vec::new();
    for step in 0..run.flows[0].intervals.len() / each {
        let mut figures = BTreeMap::new();
        for (flow, measure) in ["priority", "other"].into_iter().enumerate() {
            let datagrams: u64 = run.flows[flow].intervals[step * each..][..each]
                .iter()
                .sum();
            let bits = datagrams as f64 * f64::from(scenario.flows[flow].bytes) * 8.0;
            figures.insert(measure.to_owned(), bits / seconds / 1e6);
        }
        let time = (step as f64 * seconds * 10.0).round() / 10.0;
        lines.push(Line {
            subject: "sluice".into(),
            at: [("time".to_owned(), Value::Number(time))].into(),
            figures,
            ..Line::default()
        });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::group;

    fn mean(lines: &[Line], subject: &str, at: &[(&str, Value)], measure: &str) -> f64 {
        let cells = group(lines.iter().cloned());
        let fits = |cell: &&crate::lines::Runs| {
            cell.subject == subject && at.iter().all(|(name, value)| &cell.at[*name] == value)
        };
        let runs = &cells.iter().find(fits).expect(subject).figures[measure];
        runs.iter().sum::<f64>() / runs.len() as f64
    }

    #[test]
    fn collisions_are_equal_when_small_and_steered_apart_when_not() {
        let lines = run("C2", 4).unwrap();
        let at = |bytes: f64| [("size", Value::Number(bytes))];
        let delivered = |subject: &str, bytes: f64| mean(&lines, subject, &at(bytes), "delivered");
        let small = ["default", "rss", "sluice"].map(|subject| delivered(subject, 64.0));
        assert!(
            small
                .iter()
                .all(|rate| (rate / small[0] - 1.0).abs() < 0.05),
            "{small:?}"
        );
        assert!(delivered("sluice", 1400.0) > 1.3 * delivered("default", 1400.0));
        assert!(mean(&lines, "rss", &at(8192.0), "busiest") > 85.0);
    }

    #[test]
    fn the_paper_chooses_core_two() {
        let lines = run("C6", 1).unwrap();
        let chosen: Vec<f64> = lines.iter().map(|line| line.figures["chosen"]).collect();
        assert_eq!(chosen, [0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn priority_is_seen_while_it_is_on() {
        let lines = run("C11", 1).unwrap();
        let other = |time: f64| {
            let found = lines
                .iter()
                .find(|line| line.at["time"] == Value::Number(time));
            found.unwrap().figures["other"]
        };
        assert!(
            other(3.0) < 0.95 * other(1.0),
            "{} {}",
            other(3.0),
            other(1.0)
        );
        assert!(other(5.0) > other(3.0));
        assert!(run("C1", 1).unwrap_err().to_string().contains("C2, C5"));
    }

    #[test]
    fn the_priority_flow_is_ahead() {
        let lines = run("C5", 3).unwrap();
        let at = |flow: &str| {
            [
                ("size", Value::Number(1400.0)),
                ("flow", Value::Text(flow.into())),
            ]
        };
        let first = mean(&lines, "sluice", &at("VM1 (priority)"), "delivered");
        let second = mean(&lines, "sluice", &at("VM2"), "delivered");
        assert!(first > second, "{first} {second}");
    }
}
