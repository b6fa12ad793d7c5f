//! A queue and its arrivals.

use crate::Error;
use serde::Serialize;

/// A queue with a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Its rate, in bit/s.
    pub rate: f64,
    /// Depth of its token bucket, in bits: packets leave at once until more than this is in debt.
    pub burst: f64,
    /// Most packets that may wait; None for any number.
    pub limit: Option<f64>,
    /// Longest wait, in seconds: packets that would wait longer are dropped on arrival.
    pub bound: Option<f64>,
    /// Packets that leave together.
    pub group: f64,
    /// Departures happen at multiples of this time, in seconds.
    pub tick: f64,
}

impl Server {
    /// Returns a queue of this rate without limit and bucket that sends single packets.
    pub fn new(rate: f64) -> Server {
        Server {
            rate,
            burst: 0.0,
            limit: None,
            bound: None,
            group: 1.0,
            tick: 0.0,
        }
    }

    /// Checks the values.
    pub fn check(&self) -> Result<(), Error> {
        positive("rate", self.rate)?;
        positive("group", self.group)?;
        not_negative("burst", self.burst)?;
        not_negative("tick", self.tick)?;
        self.limit
            .map_or(Ok(()), |limit| positive("limit", limit))?;
        self.bound
            .map_or(Ok(()), |bound| not_negative("bound", bound))
    }
}

/// How packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independently of each other.
    Poisson,
    /// At equal intervals.
    Periodic,
    /// With gaps of this squared coefficient of variation (variance / mean²; 1 for Poisson).
    Varying(f64),
    /// In batches of geometric size with this mean, which arrive independently of each other.
    Batches(f64),
}

/// Relative standard deviations of the description of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Default)]
pub struct Doubt {
    /// Of the rate.
    pub rate: f64,
    /// Of the variability of gaps and sizes.
    pub unevenness: f64,
}

/// Arrivals at a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Packets per second.
    pub packets: f64,
    /// Sizes in bits with their weights; at least one.
    pub sizes: Vec<(f64, f64)>,
    /// How packets arrive.
    pub arrivals: Arrivals,
    /// Gaps in seconds with their weights, if known.
    #[serde(skip)]
    pub gaps: Vec<(f64, f64)>,
    /// Long-run dispersion, if known: variance of the amount that arrived in a long time over its
    /// mean, in packets of mean size (1 + the sizes' variation for Poisson).
    pub dispersion: Option<f64>,
    /// Share of packets refused on arrival, if observed.
    pub lost: Option<f64>,
    /// Whether sizes are exponentially distributed with the same mean (the paper's model).
    pub exponential_sizes: bool,
    /// Error of this description.
    pub doubt: Doubt,
}

/// Most distinct sizes or gaps.
pub const MAX_ATOMS: usize = 1024;

impl Load {
    /// Returns a load of packets of one size (in bits) at a rate in bit/s.
    pub fn new(rate: f64, size: f64, arrivals: Arrivals) -> Load {
        Load {
            packets: rate / size,
            sizes: vec![(size, 1.0)],
            arrivals,
            gaps: Vec::new(),
            dispersion: None,
            lost: None,
            exponential_sizes: false,
            doubt: Doubt::default(),
        }
    }

    /// Checks the values.
    pub fn check(&self) -> Result<(), Error> {
        not_negative("offered load", self.packets)?;
        not_negative("error of the load", self.doubt.rate)?;
        not_negative("error of the unevenness", self.doubt.unevenness)?;
        if self.sizes.is_empty() || self.sizes.len() > MAX_ATOMS {
            return Err(Error::new(format!(
                "{} sizes: must be 1 to {MAX_ATOMS}",
                self.sizes.len()
            )));
        }
        for &(size, weight) in &self.sizes {
            positive("size", size)?;
            not_negative("weight of a size", weight)?;
        }
        if !self.size().is_finite() {
            return Err(Error::new("the sizes' weights are all 0"));
        }
        match self.arrivals {
            Arrivals::Varying(scv) => not_negative("variation of gaps", scv),
            Arrivals::Batches(mean) if !(1.0..=1e6).contains(&mean) => Err(Error::new(format!(
                "batches of {mean} packets: must be 1 to 1000000"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the mean size, in bits.
    pub fn size(&self) -> f64 {
        moment(&self.sizes, 1)
    }

    /// Returns the squared coefficient of variation of sizes.
    pub fn size_scv(&self) -> f64 {
        if self.exponential_sizes {
            return 1.0;
        }
        let mean = self.size();
        (moment(&self.sizes, 2) / (mean * mean) - 1.0).max(0.0)
    }

    /// Returns the squared coefficient of variation of gaps.
    pub fn gap_scv(&self) -> f64 {
        match self.arrivals {
            Arrivals::Poisson => 1.0,
            Arrivals::Periodic => 0.0,
            Arrivals::Varying(scv) => scv,
            // All gaps are 0 except one in `mean`.
            Arrivals::Batches(mean) => 2.0 * mean - 1.0,
        }
    }

    /// Returns the offered rate, in bit/s.
    pub fn rate(&self) -> f64 {
        self.packets * self.size()
    }

    /// Returns the offered rate over the queue's.
    pub fn utilization(&self, server: &Server) -> f64 {
        self.rate() / server.rate
    }

    /// Returns the load with its rate multiplied by `factor`.
    pub fn times(&self, factor: f64) -> Load {
        Load {
            packets: self.packets * factor,
            gaps: self
                .gaps
                .iter()
                .map(|(gap, weight)| (gap / factor, *weight))
                .collect(),
            ..self.clone()
        }
    }
}

/// Returns the mean of a power of the values.
fn moment(atoms: &[(f64, f64)], power: i32) -> f64 {
    let weights: f64 = atoms.iter().map(|atom| atom.1).sum();
    let sum: f64 = atoms.iter().map(|atom| atom.1 * atom.0.powi(power)).sum();
    sum / weights
}

fn positive(what: &str, value: f64) -> Result<(), Error> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::new(format!(
        "{what}: {value} is not a number above 0"
    )))
}

fn not_negative(what: &str, value: f64) -> Result<(), Error> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::new(format!(
        "{what}: {value} is not a number from 0 on"
    )))
}
