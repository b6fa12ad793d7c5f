//! What a queue is and what comes to it.

use crate::Error;
use serde::Serialize;

/// A queue with a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Its rate, in bit/s.
    pub rate: f64,
    /// What leaves at once after a rest, in bits: packets wait only when they find more than this
    /// on loan.
    pub burst: f64,
    /// Packets that may wait; none for any number.
    pub limit: Option<f64>,
    /// A packet that would wait longer is dropped when it comes, in seconds.
    pub bound: Option<f64>,
    /// Packets that leave together.
    pub group: f64,
    /// Departures fall on multiples of this, in seconds.
    pub tick: f64,
}

impl Server {
    /// A queue of this rate that has no end, no bucket and sends single packets.
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

    /// Whether there can be such a queue.
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

/// How packets come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independently of each other.
    Poisson,
    /// At equal distances.
    Periodic,
    /// With gaps of this squared coefficient of variation (variance / mean²; 1 for Poisson's).
    Varying(f64),
    /// So many at once on average, groups of geometric size, which come independently of each
    /// other.
    Batches(f64),
}

/// How far what is said about a load may be off: relative standard deviations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Default)]
pub struct Doubt {
    /// Of the rate.
    pub rate: f64,
    /// Of the unevenness of gaps and sizes.
    pub unevenness: f64,
}

/// What comes to a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Packets per second.
    pub packets: f64,
    /// Sizes in bits and their weights; at least one.
    pub sizes: Vec<(f64, f64)>,
    /// How they come.
    pub arrivals: Arrivals,
    /// Gaps in seconds and their weights, where they are known.
    #[serde(skip)]
    pub gaps: Vec<(f64, f64)>,
    /// Unevenness in the long run, where it is known: variance of what came in a long time over
    /// its mean, in packets of mean size (1 + the sizes' variation for Poisson).
    pub dispersion: Option<f64>,
    /// The share of packets that was refused when they came, where that was seen.
    pub lost: Option<f64>,
    /// Sizes are spread like an exponential distribution of the same mean (the paper's model).
    pub exponential_sizes: bool,
    /// How far this may be off.
    pub doubt: Doubt,
}

/// Most sizes or gaps that are told apart.
pub const MAX_ATOMS: usize = 1024;

impl Load {
    /// Packets of one size that come in this way, in bits, at a rate in bit/s.
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

    /// Whether there can be such a load.
    pub fn check(&self) -> Result<(), Error> {
        not_negative("offered load", self.packets)?;
        not_negative("error of the load", self.doubt.rate)?;
        not_negative("error of the unevenness", self.doubt.unevenness)?;
        if self.sizes.is_empty() || self.sizes.len() > MAX_ATOMS {
            return Err(Error::new(format!(
                "{} sizes: 1 to {MAX_ATOMS} are meant",
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
                "batches of {mean} packets: 1 to 1000000 are meant"
            ))),
            _ => Ok(()),
        }
    }

    /// Mean size, in bits.
    pub fn size(&self) -> f64 {
        moment(&self.sizes, 1)
    }

    /// Squared coefficient of variation of sizes.
    pub fn size_scv(&self) -> f64 {
        if self.exponential_sizes {
            return 1.0;
        }
        let mean = self.size();
        (moment(&self.sizes, 2) / (mean * mean) - 1.0).max(0.0)
    }

    /// Squared coefficient of variation of gaps.
    pub fn gap_scv(&self) -> f64 {
        match self.arrivals {
            Arrivals::Poisson => 1.0,
            Arrivals::Periodic => 0.0,
            Arrivals::Varying(scv) => scv,
            // Gaps are 0 but for one in `mean`.
            Arrivals::Batches(mean) => 2.0 * mean - 1.0,
        }
    }

    /// Offered rate, in bit/s.
    pub fn rate(&self) -> f64 {
        self.packets * self.size()
    }

    /// Offered rate over the queue's.
    pub fn utilization(&self, server: &Server) -> f64 {
        self.rate() / server.rate
    }

    /// The same at another rate.
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

/// The mean of a power.
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
