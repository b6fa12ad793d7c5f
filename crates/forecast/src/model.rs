//! Queueing models: formulas for mean waiting time and loss.
//!
//! With service time S (a packet's bits over the rate), utilization rho and squared coefficients of
//! variation ca² of gaps and cs² of sizes:
//!
//! | model | waiting time | assumes |
//! | --- | --- | --- |
//! | paper | g E\[S\] / (1 - rho), with the packet's own transmission | M/M/1 whose service takes a group of g packets (Powell et al., "Predictable Bandwidth Slicing with Open vSwitch") |
//! | M/M/1 | rho E\[S\] / (1 - rho) | Poisson arrivals, exponential sizes |
//! | M/G/1 | rho E\[S\] (1 + cs²) / 2 (1 - rho) | Poisson arrivals (Pollaczek and Khinchine) |
//! | batches | (rho E\[S\] (1 + cs²) / 2 + (m - 1) E\[S\]) / (1 - rho) | Poisson batches of geometric size, mean m |
//! | G/G/1 | rho E\[S\] (ca² + cs²) / 2 (1 - rho), times a factor for light load | independent gaps (Kingman; Allen and Cunneen; factor of Krämer and Langenbach-Belz) |
//! | dispersion | the same with ca² + cs² as it is in the long run | heavy load, any dependence |
//! | periodic | 0 up to rho = 1 | D/D/1 |
//! | cap | limit * size / rate | a sender that fills the queue, such as TCP |
//! | sawtooth | (limit - 0.75 / sqrt(loss)) * size / rate | senders that fill the queue and halve their windows when a packet is lost (Reno) |
//!
//! With a token bucket of depth B, packets leave at once while the debt is below B. The waiting
//! time is then `E[(V - B)+] / R`, where the virtual queue V is the debt that would build up
//! without a limit; its mean is R times the waiting time without a bucket.

use crate::queue::{Arrivals, Load, Server};
use crate::{Error, finite, replay};
use serde::Serialize;

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// The paper's.
    Paper,
    /// M/M/1.
    Mm1,
    /// M/G/1.
    Mg1,
    /// Poisson batches.
    Batches,
    /// G/G/1.
    Gg1,
    /// G/G/1 with the long-run dispersion.
    Dispersion,
    /// D/D/1.
    Periodic,
    /// M/M/1/K.
    Mm1k,
    /// M/G/1/K.
    Mg1k,
    /// A simulation of independent gaps and sizes drawn from the records, through the shaper's
    /// rules.
    Replay,
    /// A queue that is always full.
    Cap,
    /// A queue that is filled until a packet is lost.
    Sawtooth,
    /// The past continues: what was measured is the forecast.
    Seen,
}

/// All models that can be computed, the simplest first.
pub const MODELS: [Model; 12] = [
    Model::Paper,
    Model::Mm1,
    Model::Mg1,
    Model::Batches,
    Model::Gg1,
    Model::Dispersion,
    Model::Periodic,
    Model::Mm1k,
    Model::Mg1k,
    Model::Replay,
    Model::Cap,
    Model::Sawtooth,
];

/// A model's result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Mean waiting time of packets that are sent, in seconds; infinite if the queue grows without
    /// limit.
    pub wait: f64,
    /// Share of packets dropped.
    pub loss: f64,
}

impl Model {
    /// Returns its name in commands and output.
    pub fn name(self) -> &'static str {
        match self {
            Model::Paper => "paper",
            Model::Mm1 => "m/m/1",
            Model::Mg1 => "m/g/1",
            Model::Batches => "batches",
            Model::Gg1 => "g/g/1",
            Model::Dispersion => "dispersion",
            Model::Periodic => "d/d/1",
            Model::Mm1k => "m/m/1/k",
            Model::Mg1k => "m/g/1/k",
            Model::Replay => "replay",
            Model::Cap => "cap",
            Model::Sawtooth => "sawtooth",
            Model::Seen => "seen",
        }
    }

    /// Returns the model of this name.
    pub fn named(name: &str) -> Option<Model> {
        MODELS.into_iter().find(|model| model.name() == name)
    }

    /// Returns the relative standard deviation of the formula itself if its assumptions hold.
    pub fn own_error(self) -> f64 {
        match self {
            Model::Paper => 0.3,
            Model::Mg1 | Model::Replay => 0.02,
            Model::Mg1k => 0.03,
            Model::Seen => 0.0,
            _ => 0.05,
        }
    }

    /// Evaluates the model for this queue and load; an error if it does not apply.
    pub fn evaluate(self, server: &Server, load: &Load) -> Result<Outcome, Error> {
        server.check()?;
        load.check()?;
        if load.packets == 0.0 && !matches!(self, Model::Cap | Model::Sawtooth | Model::Seen) {
            return Ok(Outcome {
                wait: 0.0,
                loss: 0.0,
            });
        }
        let endless = || match (server.limit, server.bound) {
            (None, None) => Ok(()),
            _ => Err(self.not("a queue with an end")),
        };
        let wait = match self {
            Model::Paper => paper(server, load),
            Model::Mm1 | Model::Mg1 => {
                endless()?;
                poisson(server, load, self == Model::Mm1)
            }
            Model::Batches => {
                endless()?;
                batches(server, load).ok_or_else(|| self.not("single packets"))?
            }
            Model::Gg1 => {
                endless()?;
                general(server, load)
            }
            Model::Dispersion => {
                endless()?;
                let long = load.dispersion;
                let long = long.ok_or_else(|| self.not("a load whose dispersion is not known"))?;
                let rho = load.utilization(server);
                beyond_bucket(server, rho, heavy(server, load, long))
            }
            Model::Periodic => {
                endless()?;
                match load.utilization(server) <= 1.0 {
                    true => 0.0,
                    false => f64::INFINITY,
                }
            }
            Model::Mm1k => return finite::exponential(server, load),
            Model::Mg1k => return finite::general(server, load),
            Model::Replay => {
                return replay::simulate(server, load, replay::STEPS, 1).map(|run| run.outcome);
            }
            Model::Cap => cap(server, load)?,
            Model::Sawtooth => sawtooth(server, load)?,
            Model::Seen => return Err(self.not("a queue that nobody has looked at")),
        };
        Ok(Outcome { wait, loss: 0.0 })
    }

    fn not(self, what: &str) -> Error {
        Error::new(format!("{} is not for {what}", self.name()))
    }
}

/// Returns the mean service time, in seconds.
fn service(server: &Server, load: &Load) -> f64 {
    load.size() / server.rate
}

fn over_idle(numerator: f64, rho: f64) -> f64 {
    if rho >= 1.0 {
        f64::INFINITY
    } else {
        numerator / (1.0 - rho)
    }
}

/// Returns the paper's W, which includes the packet's own transmission.
fn paper(server: &Server, load: &Load) -> f64 {
    over_idle(
        server.group * service(server, load),
        load.utilization(server),
    )
}

/// Returns the heavy-traffic wait without a bucket; `variation` is that of gaps plus that of sizes.
fn heavy(server: &Server, load: &Load, variation: f64) -> f64 {
    let rho = load.utilization(server);
    over_idle(rho * service(server, load) * variation / 2.0, rho)
}

fn poisson(server: &Server, load: &Load, exponential: bool) -> f64 {
    let rho = load.utilization(server);
    let scv = if exponential { 1.0 } else { load.size_scv() };
    let mean = heavy(server, load, 1.0 + scv);
    if exponential || load.exponential_sizes {
        // The virtual queue of M/M/1 is exponential except for an atom at 0.
        return beyond_bucket(server, rho, mean);
    }
    if server.burst == 0.0 || !mean.is_finite() {
        return late(server, mean, rho);
    }
    match beyond_by_sum(server, load, rho) {
        Some((rest, waiting)) => late(server, rest, waiting),
        None => beyond_bucket(server, rho, mean),
    }
}

/// Adds the mean delay that ticks cause for packets that wait.
fn late(server: &Server, wait: f64, waiting: f64) -> f64 {
    wait + server.tick / 2.0 * waiting.min(1.0)
}

/// Reduces a mean wait by the effect of a bucket, if the virtual queue is exponential except for an
/// atom of 1 - rho at 0.
fn beyond_bucket(server: &Server, rho: f64, mean: f64) -> f64 {
    if mean == 0.0 || !mean.is_finite() {
        return mean;
    }
    let left = (-server.burst / server.rate * rho / mean).exp();
    late(server, mean * left, rho * left)
}

/// The same for M/G/1, exact up to a grid: the virtual queue is a geometric sum of residual packet
/// sizes (Pollaczek and Khinchine), computed on a grid by Panjer's recursion. Returns the waiting
/// time and the share of packets that wait; None if the bucket is too deep for that, or the wait is
/// negligible.
fn beyond_by_sum(server: &Server, load: &Load, rho: f64) -> Option<(f64, f64)> {
    const CELLS: usize = 128;
    const MOST: usize = 4096;
    let weights: f64 = load.sizes.iter().map(|atom| atom.1).sum();
    let largest = load.sizes.iter().map(|atom| atom.0).fold(0.0, f64::max);
    let width = largest / CELLS as f64;
    let cells = (server.burst / width).ceil() as usize + 1;
    if cells > MOST {
        return None;
    }
    // Probability that a residual size lies in each cell: the tail of the size over its mean,
    // placed at the cell's middle.
    let tail = |from: f64| -> f64 {
        let part = |size: f64| (size - from).clamp(0.0, width);
        let sum: f64 = load
            .sizes
            .iter()
            .map(|(size, weight)| weight * part(*size))
            .sum();
        sum / weights / load.size()
    };
    let left: Vec<f64> = (0..CELLS).map(|cell| tail(cell as f64 * width)).collect();
    // Half of a cell's mass goes to either end, which preserves means.
    let mut jump = vec![0.0; CELLS + 1];
    for (cell, share) in left.iter().enumerate() {
        jump[cell] += share / 2.0;
        jump[cell + 1] += share / 2.0;
    }
    let mut mass = vec![0.0; cells + 1];
    let first = 1.0 / (1.0 - rho * jump[0]);
    mass[0] = (1.0 - rho) * first;
    for at in 1..=cells {
        let sum: f64 = (1..=at.min(CELLS))
            .map(|step| jump[step] * mass[at - step])
            .sum();
        mass[at] = rho * sum * first;
    }
    // E[(V - B)+] = E[V] - the area under V's tail up to B.
    let mean = heavy(server, load, 1.0 + load.size_scv()) * server.rate;
    let (mut area, mut below, mut rest) = (0.0, 0.0, 0.0);
    for (at, mass) in mass.iter().enumerate() {
        below += mass;
        let step = width.min(server.burst - at as f64 * width);
        if step <= 0.0 {
            break;
        }
        rest = 1.0 - below;
        area += step * rest;
    }
    let wait = (mean - area) / server.rate;
    (wait > mean / server.rate * 1e-4).then_some((wait, rest))
}

fn batches(server: &Server, load: &Load) -> Option<f64> {
    let Arrivals::Batches(mean) = load.arrivals else {
        return None;
    };
    let (rho, service) = (load.utilization(server), service(server, load));
    let own = (mean - 1.0) * service;
    let wait = over_idle(rho * service * (1.0 + load.size_scv()) / 2.0 + own, rho);
    Some(beyond_bucket(server, rho, wait))
}

fn general(server: &Server, load: &Load) -> f64 {
    let rho = load.utilization(server);
    let (gaps, sizes) = (load.gap_scv(), load.size_scv());
    let sum = gaps + sizes;
    if rho >= 1.0 || sum == 0.0 {
        return if rho > 1.0 { f64::INFINITY } else { 0.0 };
    }
    let exponent = if gaps < 1.0 {
        -2.0 * (1.0 - rho) * (1.0 - gaps).powi(2) / (3.0 * rho * sum)
    } else {
        -(1.0 - rho) * (gaps - 1.0) / (gaps + 4.0 * sizes)
    };
    beyond_bucket(server, rho, heavy(server, load, sum) * exponent.exp())
}

fn cap(server: &Server, load: &Load) -> Result<f64, Error> {
    let full = server.limit.map(|limit| limit * service(server, load));
    let longest = match (full, server.bound) {
        (Some(full), Some(bound)) => full.min(bound),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => return Err(Model::Cap.not("a queue without an end")),
    };
    Ok(longest)
}

/// Returns the longest wait less what halved windows leave unused: about as many packets as the
/// square root of the arrivals between two losses (windows grow by a packet per round trip). The
/// factor comes from simulated senders.
fn sawtooth(server: &Server, load: &Load) -> Result<f64, Error> {
    const FACTOR: f64 = 0.75;
    let lost = load.lost.filter(|lost| *lost > 0.0);
    let lost = lost.ok_or_else(|| Model::Sawtooth.not("a queue that loses nothing"))?;
    let below = FACTOR / lost.sqrt() * service(server, load);
    Ok((cap(server, load)? - below).max(0.0))
}

/// Returns the waiting time behind a sender with a window of `packets` on a path of `round_trip`
/// seconds without waiting.
pub fn window(server: &Server, size: f64, packets: f64, round_trip: f64) -> f64 {
    let wait = packets * size / server.rate - round_trip;
    let longest = server
        .limit
        .map_or(f64::INFINITY, |limit| limit * size / server.rate);
    wait.max(0.0).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a / b - 1.0).abs() < tolerance, "{a} {b}");
    }

    fn wait(model: Model, server: &Server, load: &Load) -> f64 {
        model.evaluate(server, load).unwrap().wait
    }

    /// Paper figure 4: 19.22 ms at 500 Mbit/s; with groups of 16 packets of 1500 bytes, 1/mu is
    /// 0.384 ms.
    #[test]
    fn the_paper_needs_a_utilization_of_98_percent() {
        let server = Server {
            group: 16.0,
            ..Server::new(500e6)
        };
        let load = |rho: f64| Load::new(500e6 * rho, 12_000.0, Arrivals::Poisson);
        close(wait(Model::Paper, &server, &load(0.98)), 19.2e-3, 1e-3);
        close(wait(Model::Paper, &server, &load(0.975)), 15.36e-3, 1e-3);
        close(wait(Model::Paper, &server, &load(0.985)), 25.6e-3, 1e-3);
    }

    #[test]
    fn formulas_agree_where_they_must() {
        let server = Server::new(1e6);
        for rho in [0.1, 0.5, 0.9, 0.98] {
            let load = Load::new(rho * 1e6, 1000.0, Arrivals::Poisson);
            let deterministic = wait(Model::Mg1, &server, &load);
            close(2.0 * deterministic, wait(Model::Mm1, &server, &load), 1e-9);
            close(deterministic, wait(Model::Gg1, &server, &load), 1e-9);
            let one = Load {
                arrivals: Arrivals::Batches(1.0),
                ..load.clone()
            };
            close(deterministic, wait(Model::Batches, &server, &one), 1e-9);
            let periodic = Load {
                arrivals: Arrivals::Periodic,
                ..load.clone()
            };
            assert_eq!(wait(Model::Periodic, &server, &periodic), 0.0);
            assert_eq!(wait(Model::Gg1, &server, &periodic), 0.0);
            let spread = Load {
                exponential_sizes: true,
                ..load
            };
            close(
                wait(Model::Mg1, &server, &spread),
                wait(Model::Mm1, &server, &spread),
                1e-9,
            );
        }
    }

    #[test]
    fn overload_gives_an_infinite_wait_and_models_that_do_not_apply_an_error() {
        let server = Server::new(1e6);
        let over = Load::new(1.1e6, 1000.0, Arrivals::Poisson);
        for model in [
            Model::Paper,
            Model::Mm1,
            Model::Mg1,
            Model::Gg1,
            Model::Periodic,
        ] {
            assert_eq!(wait(model, &server, &over), f64::INFINITY);
        }
        for model in [
            Model::Batches,
            Model::Dispersion,
            Model::Cap,
            Model::Mm1k,
            Model::Seen,
        ] {
            assert!(model.evaluate(&server, &over).is_err(), "{model:?}");
        }
        let finite = Server {
            limit: Some(100.0),
            ..server
        };
        assert!(Model::Mg1.evaluate(&finite, &over).is_err());
        close(wait(Model::Cap, &finite, &over), 0.1, 1e-9);
        assert!(Model::Sawtooth.evaluate(&finite, &over).is_err());
        let losing = Load {
            lost: Some(0.0025),
            ..over.clone()
        };
        close(wait(Model::Sawtooth, &finite, &losing), 0.085, 1e-9);
        close(window(&server, 1000.0, 50.0, 0.01), 0.04, 1e-9);
        assert!(Model::Mg1.evaluate(&Server::new(f64::NAN), &over).is_err());
        assert!(
            Model::Mg1
                .evaluate(&server, &Load::new(-1.0, 1000.0, Arrivals::Poisson))
                .is_err()
        );
        assert!(
            Model::Mg1
                .evaluate(&server, &Load::new(1.0, 0.0, Arrivals::Poisson))
                .is_err()
        );
    }
}
