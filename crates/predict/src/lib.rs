//! Predicts what a set of rules will cost on this machine, before a switch runs it.
//!
//! A prediction is a sum of parts, each of which is measured separately:
//!
//! * What packets do under the rules: [`rules`] compiles them as the daemon does; [`trace`] walks
//!   each packet of the [`traffic`] through the result and records its lookups, the cache lines
//!   that these read and the ports it leaves by. These figures are exact.
//! * What that takes on this processor: [`engine`] has a real worker process the traffic in bursts,
//!   over ports in memory that is laid out like DPDK's buffers, once under the rules and once under
//!   a reference. [`stages`] times the parser and each table's lookups separately, to divide the
//!   cycles into stages.
//! * What policers cost: how much longer the reference's worker takes if its ports police.
//! * What real ports cost: [`ports`], measured under the reference only, by a process that can open
//!   ports. If all packets arrive and leave by such ports, the rules themselves are measured over
//!   them, too, and that is the total: cache misses on a packet, its rule and its counter overlap
//!   in ways that the parts do not show.
//!
//! [`predict`] combines them. A worker is measured in slices of some milliseconds over a second or
//! more. The figure is the median of the slices, and its interval their minimum and maximum (for a
//! sum of parts, the root of the sum of squares of their deviations). Between slices, [`machine`]
//! records how fast the machine is, since that may change within a minute.

pub mod engine;
pub mod kinds;
pub mod machine;
mod memory;
pub mod ports;
pub mod report;
pub mod rules;
pub mod spread;
pub mod stages;
pub mod trace;
pub mod traffic;
pub mod worker;

use engine::Reference;
use machine::{Machine, Watch};
use ports::{Edge, Shares};
use rules::Rules;
use serde::Serialize;
use spread::Spread;
use stages::StageCost;
use trace::Trace;
use traffic::Traffic;

/// A request that cannot be carried out.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

/// How much to measure, and where.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The processor to measure on; None lets the scheduler choose.
    pub cpu: Option<usize>,
    /// Number of slices of a worker's time, and of rounds of ports alone; at least 3.
    pub rounds: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Effort {
            cpu: None,
            rounds: 25,
        }
    }
}

/// The cost of packets.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// Where packets go, and their lookups.
    pub trace: Trace,
    /// Cycles per packet by stage, in the order in which a packet passes them.
    pub stages: Vec<Stage>,
    /// Total cycles per packet; the interval is the minimum and maximum of the measured slices. If
    /// the figure is a sum of parts, the distances of the interval's ends are the root of the sum
    /// of squares of the parts' own distances.
    pub cycles: Spread,
    /// Millions of packets per second of one core, likewise.
    pub mpps: Spread,
    /// Whether a worker uses its flow cache, and why; None if packets have no use for it.
    pub remembers: Option<String>,
    /// How fast the machine was during the measurement.
    pub machine: Machine,
    /// Frequency of the counter that cycles are counted by, in Hz.
    pub hz: u64,
}

/// One stage's cost.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// Its name; for lookups, it includes the table.
    pub name: String,
    /// Cycles per packet.
    pub cycles: f64,
}

/// Predicts what `traffic`, whose walks are recorded in `trace`, costs under `rules` with these
/// ports.
pub fn predict(
    rules: &Rules,
    traffic: &Traffic,
    trace: Trace,
    edge: Edge<'_>,
    effort: Effort,
) -> Result<Prediction, Error> {
    let reference = Reference::of(rules)?;
    let mut watch = Watch::new(effort.cpu);
    let parts = stages::measure(rules, traffic, &trace, effort)?;
    let engine = engine::measure(
        rules,
        traffic,
        &trace,
        (reference, edge.policed),
        effort,
        &mut watch,
    )?;
    let mut readings: Vec<_> = edge
        .ports
        .iter()
        .flat_map(|(ports, _)| &ports.readings)
        .copied()
        .collect();
    readings.extend(watch.into_readings());
    let hz = datapath::clock::cycles_per_second();
    let (sent, batch) = (engine.rules.sent, engine.rules.batch);
    let total =
        |parts: &mut dyn Iterator<Item = Spread>| parts.fold(Spread::default(), Spread::plus);
    let send = total(
        &mut edge
            .ports
            .iter()
            .map(|(ports, shares)| ports.send(sent, batch).times(shares.sent)),
    );
    let police = engine
        .police_in
        .times(edge.policed.received)
        .plus(engine.police_out.times(edge.policed.sent * sent));
    // Measured as a whole only if all packets use one kind of port.
    let together = match edge.ports {
        [(ports, shares)] if *shares == Shares::ALL => {
            ports.whole.map(|whole| (whole, ports.remembers.clone()))
        }
        _ => None,
    };
    let whole = together.as_ref().map(|(whole, _)| *whole);
    let own = engine.without_ports(&engine.rules);
    let remembers = match together {
        Some((_, remembers)) => remembers,
        None => engine.rules.remembers.map(str::to_owned),
    };
    let (receive, work) = match whole {
        // The whole is measured: what the parts do not explain is waiting for frames.
        Some(whole) => {
            let left = whole.median - send.median - own.median.max(0.0);
            (Spread::exact(left.max(0.0)), whole.at_least(1.0))
        }
        _ => {
            let receive =
                total(&mut edge.ports.iter().map(|(ports, shares)| {
                    ports.receiving(reference, &engine).times(shares.received)
                }));
            let sum = receive.plus(Spread::exact(send.median)).plus(own);
            (receive, something(sum)?)
        }
    };
    let own = own.at_least(0.0);
    let work = work.plus(police);
    // A part of each interval is spent polling an idle kernel interface.
    let interval = datapath::IDLE_LOOKS.as_secs_f64() * hz as f64;
    let look = edge
        .ports
        .iter()
        .map(|(ports, _)| ports.look.median)
        .fold(0.0, f64::max);
    let cycles = work.times(1.0 / (1.0 - (look / interval).clamp(0.0, 0.9)));
    // If the parts add up to more than the measured whole, they are scaled down to it.
    let sum = receive.median + own.median + send.median;
    let fit = ((work.median - police.median) / sum.max(1.0)).min(1.0);
    Ok(Prediction {
        stages: divided(
            receive.median * fit,
            &parts,
            own.median * fit,
            (police.median, send.median * fit),
            cycles.median,
        ),
        trace,
        mpps: cycles.inverse(hz as f64 / 1e6),
        cycles,
        remembers,
        machine: Machine::of(&readings),
        hz,
    })
}

/// Checks the total cost. Less than one cycle is not a result: more was subtracted than measured.
fn something(sum: Spread) -> Result<Spread, Error> {
    match sum.median < 1.0 {
        true => Err(Error::new(
            "the processor was too busy: a worker with its ports took less time than the ports alone",
        )),
        false => Ok(sum.at_least(1.0)),
    }
}

/// Divides the total into stages.
fn divided(
    receive: f64,
    parts: &StageCost,
    own: f64,
    (police, send): (f64, f64),
    all: f64,
) -> Vec<Stage> {
    let lookups: f64 = parts.lookups.iter().map(|(_, cycles)| cycles).sum();
    let inner = parts.parse + lookups;
    // Separately, parts may take longer than together, where waiting and work overlap.
    let scale = (own / inner.max(1e-9)).min(1.0);
    let stage = |name: String, cycles: f64| Stage { name, cycles };
    let mut stages = vec![
        stage("receive".into(), receive),
        stage("parse".into(), parts.parse * scale),
    ];
    for (table, cycles) in &parts.lookups {
        stages.push(stage(format!("lookup in table {table}"), cycles * scale));
    }
    stages.push(stage(
        "steps, counters, batches".into(),
        own - inner * scale,
    ));
    if police > 0.0 {
        stages.push(stage("policers".into(), police));
    }
    stages.push(stage("send".into(), send));
    let work: f64 = stages.iter().map(|stage| stage.cycles).sum();
    stages.push(stage("looks at idle ports".into(), all - work));
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_below_one_are_errors() {
        let few = Spread {
            median: 2.0,
            low: -3.0,
            high: 5.0,
        };
        assert_eq!(something(few).unwrap(), few.at_least(1.0));
        for wrong in [0.0, -7.0, 0.9] {
            let error = something(Spread::exact(wrong)).unwrap_err();
            assert!(error.to_string().contains("too busy"));
        }
    }
}
