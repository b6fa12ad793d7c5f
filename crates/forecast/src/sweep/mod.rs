//! Any number of simulated scenarios, to judge forecasts by.
//!
//! Each is a queue of the real shaper ([`qos::shaper`], in virtual time) under arrivals generated
//! from a seed. Forecasts see what the shaper recorded in the first quarter of a run and are
//! compared with the mean wait of the other three; the run goes on until the interval of that mean
//! is under 3%. The beginning of each run also goes through the exact reference
//! ([`qos::reference::shaper`]), and every wait must be equal.

pub mod simulate;
pub mod source;

use crate::Span;
use crate::choose::{Forecast, Question, forecast};
use crate::model::{MODELS, Model};
use crate::queue::Server;
use crate::random::Random;
use crate::record::Record;
use crate::seen::{Past, endless, server};
use qos::shaper::{PortSpec, QueueSpec};
use serde::Serialize;
use simulate::{Effort, measure};
use source::Source;

/// Differences of waits that are ignored: a tick of the shaper's wheel, in seconds.
pub const RESOLUTION: f64 = qos::shaper::TICK_NS as f64 * 1e-9;

/// Sizes of packets, in bytes, and their weights.
pub type Mix = &'static [(u32, f64)];

/// The mixes with their names.
pub const MIXES: [(&str, Mix); 4] = [
    ("1514", &[(1514, 1.0)]),
    ("64", &[(64, 1.0)]),
    ("imix", &[(64, 7.0), (594, 4.0), (1514, 1.0)]),
    ("64+1514", &[(64, 1.0), (1514, 1.0)]),
];

/// Returns the mean size of a mix, in bytes.
pub fn mean_size(mix: usize) -> f64 {
    let weights: f64 = MIXES[mix].1.iter().map(|one| one.1).sum();
    let bytes: f64 = MIXES[mix]
        .1
        .iter()
        .map(|(len, weight)| f64::from(*len) * weight)
        .sum();
    bytes / weights
}

/// A queue and its arrivals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Its number, which is also its seed.
    pub number: u64,
    /// The queue's rate, in bit/s.
    pub rate: u64,
    /// Offered rate over the queue's; for senders with windows, what they would reach without
    /// waiting.
    pub load: f64,
    /// How packets arrive.
    pub source: Source,
    /// Index of the packet sizes in [`MIXES`].
    pub mix: usize,
    /// Depth of the queue's bucket, in bits.
    pub burst: u64,
    /// Most packets that may wait; None for a million.
    pub limit: Option<u32>,
}

impl Scenario {
    /// Returns the scenario of this number.
    pub fn new(number: u64) -> Scenario {
        let mut random = Random::new(number ^ 0x510_1ce);
        let mix = random.below(4) as usize;
        let load = 0.10 + 0.88 * random.unit();
        let kind = number % 5;
        let rate = [10, 20, 50, 100, 200, 500][random.below(6) as usize] * 1_000_000;
        // A packet takes at least 10 us, so that waits are longer than a tick.
        let rate = rate.min(mean_size(mix) as u64 * 8 * 100_000);
        let frame = MIXES[mix]
            .1
            .iter()
            .map(|(len, _)| u64::from(*len) * 8)
            .max();
        // With a light load, hardly anything waits behind a bucket.
        let frames = if load < 0.5 || kind == 1 {
            0
        } else {
            [0, 0, 1, 4][random.below(4) as usize]
        };
        let burst = frame.unwrap_or(0) * frames;
        let finite = random.below(3) == 0;
        let limit = finite.then(|| 8 + random.below(120) as u32);
        let (a, b) = (random.unit(), random.unit());
        let source = match kind {
            0 | 3 if number % 10 != 8 => Source::Poisson,
            1 => Source::Jittered {
                periods: 2.0 + 20.0 * a,
            },
            // The heavier the load, the shorter the bursts, or runs would take days.
            2 | 3 => Source::OnOff {
                packets: 2.0 + (20.0 * a).min(30.0 * (1.0 - load)),
                peak: load * (1.3 + 3.0 * b),
            },
            _ => Source::Windows {
                senders: 1 + random.below(6) as u32,
                round_trip_ns: 500_000 + random.below(6_000_000),
                adaptive: a < 0.6,
            },
        };
        let closed = matches!(source, Source::Windows { .. });
        Scenario {
            number,
            rate: if closed { rate.min(100_000_000) } else { rate },
            load,
            source,
            mix: if closed { 0 } else { mix },
            burst,
            limit: if closed {
                Some(20 + random.below(180) as u32)
            } else {
                limit
            },
        }
    }

    /// Returns the port, on which this is the only queue.
    pub fn port(&self) -> PortSpec {
        let mut port = PortSpec::new(2 * self.rate);
        port.flows = 1;
        port.limit_packets = 1 << 20;
        port.burst = self.burst.max(1 << 20);
        port.queues.push(QueueSpec {
            burst: self.burst,
            limit_packets: self.limit.unwrap_or(1 << 20),
            ..QueueSpec::new(0, self.rate, self.rate)
        });
        port
    }

    /// Returns the queue in the form that forecasts use.
    pub fn server(&self) -> Server {
        let port = self.port();
        let mut server = server(&port, &port.queues[0], self.rate);
        server.limit = self.limit.map(f64::from);
        server
    }

    /// Returns a short description.
    pub fn describe(&self) -> String {
        let limit = self
            .limit
            .map_or("endless".to_owned(), |limit| format!("{limit} packets"));
        format!(
            "{} Mbit/s, load {:.2}, {}, {} B, bucket {} bits, {}",
            self.rate / 1_000_000,
            self.load,
            self.source.name(),
            MIXES[self.mix].0,
            self.burst,
            limit
        )
    }
}

/// A judged forecast.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scenario.
    pub scenario: Scenario,
    /// Its description.
    pub text: String,
    /// Mean wait in the part that the forecast did not see, in seconds, with its interval.
    pub measured: Span,
    /// Packets simulated.
    pub packets: u64,
    /// The forecast.
    pub forecast: Forecast,
    /// Whether the forecast (the model's mean averaged with the measurement) is within 10% of the
    /// measured mean, or within a tick.
    pub within: bool,
    /// Mean of the chosen model alone, in seconds.
    pub own: f64,
    /// Whether that is within 10%.
    pub own_within: bool,
    /// Whether the interval contained the measured mean.
    pub held: bool,
    /// Models that alone were within 10%.
    pub models_within: Vec<Model>,
}

/// Returns whether two waits are equal within 10%, or within a tick.
pub fn within(forecast: f64, measured: f64) -> bool {
    (forecast - measured).abs() <= (0.1 * measured).max(RESOLUTION)
}

/// Simulates a scenario and judges the forecast; an error is a bug in the shaper or this module.
pub fn judge(scenario: &Scenario, effort: Effort) -> Result<Row, String> {
    let run = measure(scenario, effort)?;
    let past = Past::of(&run.seen).ok_or("nothing came")?;
    let server = endless(&scenario.server(), &run.seen, &past);
    let question = Question {
        server: &server,
        load: &past.load,
        waited: Some(&past.waited),
        horizon: simulate::HORIZON,
        resolution: RESOLUTION,
    };
    let forecast = forecast(&question).map_err(|error| error.to_string())?;
    let own = forecast.own(&past.waited);
    let alone = forecast.candidates.iter();
    Ok(Row {
        scenario: scenario.clone(),
        text: scenario.describe(),
        within: within(forecast.wait.value, run.measured.value),
        own,
        own_within: within(own, run.measured.value),
        held: forecast.wait.holds(run.measured.value, RESOLUTION),
        models_within: alone
            .filter(|candidate| within(candidate.wait.value, run.measured.value))
            .map(|candidate| candidate.model)
            .collect(),
        measured: run.measured,
        packets: run.packets,
        forecast,
    })
}

/// Totals over all rows.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Number of scenarios.
    pub scenarios: usize,
    /// Forecasts within 10%.
    pub within: usize,
    /// Scenarios in which the chosen model's own mean is within 10%.
    pub own_within: usize,
    /// The same, if [`Model::Seen`] does not count as a model.
    pub modelled_within: usize,
    /// Intervals that contained the measured mean.
    pub intervals: Record,
    /// Median of half the intervals' widths, relative to the mean, over waits above a tick.
    pub median_half_width: f64,
    /// Forecasts that were "cannot tell".
    pub cannot_tell: usize,
    /// Measurements whose own interval is not under 3%.
    pub imprecise: usize,
    /// Scenarios in which waits were at most a tick.
    pub trivial: usize,
    /// How often each model was chosen, and in how many scenarios it alone was within 10%.
    pub models: Vec<(Model, usize, usize)>,
}

impl Summary {
    /// Sums up rows.
    pub fn of(rows: &[Row]) -> Summary {
        let count = |wanted: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| wanted(row)).count();
        let trivial = |row: &Row| row.measured.value <= RESOLUTION;
        let mut intervals = Record::default();
        for row in rows {
            intervals.judge(&row.forecast.wait, row.measured.value, RESOLUTION);
        }
        let mut widths: Vec<f64> = rows
            .iter()
            .filter(|row| !trivial(row))
            .map(|row| row.forecast.wait.half_width())
            .collect();
        widths.sort_by(f64::total_cmp);
        let models = MODELS.into_iter().chain([Model::Seen]).map(|model| {
            let chosen = count(&|row| row.forecast.model == model);
            (
                model,
                chosen,
                count(&|row| row.models_within.contains(&model)),
            )
        });
        Summary {
            scenarios: rows.len(),
            within: count(&|row| row.within),
            own_within: count(&|row| row.own_within),
            modelled_within: count(&|row| row.own_within && row.forecast.model != Model::Seen),
            intervals,
            median_half_width: widths.get(widths.len() / 2).copied().unwrap_or(0.0),
            cannot_tell: count(&|row| row.forecast.cannot_tell.is_some()),
            imprecise: count(&|row| !trivial(row) && row.measured.half_width() > 0.03),
            trivial: count(&trivial),
            models: models.collect(),
        }
    }
}
