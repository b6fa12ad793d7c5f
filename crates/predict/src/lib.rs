//! What a set of rules will cost on this machine, before a switch runs it.
//!
//! A prediction is a sum of parts, each of which is found by itself:
//!
//! * What the rules make packets do: [`rules`] compiles them as the daemon does, [`trace`] walks
//!   each packet of the [`traffic`] through the result alone and notes its lookups, the cache lines
//!   these read and the ports it leaves by. These figures are exact.
//! * What that takes on this processor: [`engine`] has a real worker walk the traffic in bursts,
//!   over ports that are memory laid out as DPDK's buffers are, once under the rules and once under
//!   a reference. [`stages`] times the parser and each table's lookups alone, to say where the
//!   cycles go.
//! * What policers cost: by how much the reference's worker takes longer where its ports police.
//! * What real ports cost: [`ports`], measured under the reference alone, by whoever can open
//!   ports. Where all packets come and leave by such ports, the rules themselves are carried out
//!   over them, too, and that is the sum: waiting for a packet, for its rule and for its counter
//!   overlap in ways that parts do not tell.
//!
//! [`predict`] puts them together. What workers take is measured in slices of some milliseconds
//! over a second or more, of which the middle counts, and the least and the most make the interval
//! around it (where it is a sum of parts, the root of the squares of theirs does); between slices
//! [`machine`] notes how fast the machine is, since it may be another one the next minute.

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

/// What is wrong with what was asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

/// How a prediction is made.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The processor to measure on; None lets the scheduler choose.
    pub cpu: Option<usize>,
    /// Slices of a worker's time, and rounds of ports alone, that count; at least 3.
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

/// What packets will cost.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// Where the packets go and what they look up.
    pub trace: Trace,
    /// Cycles for each packet by stage, in the order in which a packet comes through them.
    pub stages: Vec<Stage>,
    /// All of them; the interval is that of the slices in which it was measured, from the least to
    /// the most. Where the figure is a sum of parts, the ends of their intervals are as far off as
    /// the root of the squares of the parts' own distances.
    pub cycles: Spread,
    /// Packets per second of one core, in millions; likewise.
    pub mpps: Spread,
    /// Whether a worker remembers walks (its cache of walks), and why; none where packets have no
    /// use for that.
    pub remembers: Option<String>,
    /// How fast the machine was while this was measured.
    pub machine: Machine,
    /// Cycles per second of the counter that cycles are counted by.
    pub hz: u64,
}

/// One stage's share.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// Its name; those of lookups name the table.
    pub name: String,
    /// Cycles for each packet.
    pub cycles: f64,
}

/// Predicts what `traffic`, whose ways are `trace`, costs under `rules` behind this edge.
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
    // All together only where there is one kind of port, which all packets meet.
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
        // All of it together, as it is: what the parts leave is the waiting for frames.
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
    // Of each interval a part goes to looking at a kernel interface that has nothing.
    let interval = datapath::IDLE_LOOKS.as_secs_f64() * hz as f64;
    let look = edge
        .ports
        .iter()
        .map(|(ports, _)| ports.look.median)
        .fold(0.0, f64::max);
    let cycles = work.times(1.0 / (1.0 - (look / interval).clamp(0.0, 0.9)));
    // Where the parts alone take longer than all of it together, they are parts of what it takes
    // together.
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

/// What packets cost all in all. Less than a cycle is no figure: what was taken from what was then
/// larger than it.
fn something(sum: Spread) -> Result<Spread, Error> {
    match sum.median < 1.0 {
        true => Err(Error::new(
            "the processor was too busy: a worker with its ports took less time than the ports alone",
        )),
        false => Ok(sum.at_least(1.0)),
    }
}

/// The sum divided into stages.
fn divided(
    receive: f64,
    parts: &StageCost,
    own: f64,
    (police, send): (f64, f64),
    all: f64,
) -> Vec<Stage> {
    let lookups: f64 = parts.lookups.iter().map(|(_, cycles)| cycles).sum();
    let inner = parts.parse + lookups;
    // Alone, parts may take longer than together, where one's waiting is another's working time.
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
    fn nothing_is_no_figure() {
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
