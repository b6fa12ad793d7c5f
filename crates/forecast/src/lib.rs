//! Forecasts how long packets will wait in a queue, with the error of each forecast.
//!
//! * [`queue`]: a queue ([`queue::Server`]) and its arrivals ([`queue::Load`]), with errors.
//! * [`model`]: formulas with their assumptions; [`finite`]: formulas for queues with a limit;
//!   [`replay`]: a simulation by the shaper's own rules of arrivals drawn from what was recorded.
//! * [`calculus`]: worst-case bounds for traffic that keeps to its token bucket.
//! * [`seen`]: loads and waiting times from a shaper's records ([`qos::shaper::watch`]).
//! * [`choose`]: selects the model that fits the records best, or says that none can be trusted;
//!   [`record`] counts how often intervals were right.
//! * [`path`], [`message`], [`place`]: applications: several queues in a row, messages cut into
//!   packets, and the placement of tasks on ports.
//! * [`sweep`]: any number of simulated scenarios, to judge forecasts by.
//!
//! Times are in seconds, rates in bit/s, sizes in bits, unless stated otherwise. Waiting is the
//! time in the queue until the packet is given to the port, without the packet's own transmission.
//! Nothing here reads a clock or a file; random numbers come from a seed.

pub mod calculus;
pub mod choose;
pub mod finite;
pub mod message;
pub mod model;
pub mod path;
pub mod place;
pub mod queue;
pub mod random;
pub mod record;
pub mod replay;
pub mod seen;
pub mod sweep;

use serde::Serialize;

/// A request that cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

/// A value with its 95% interval. An unlimited end is infinite (`null` in JSON).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// The best estimate.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Span {
    /// Returns a value without error.
    pub fn exact(value: f64) -> Span {
        Span {
            value,
            low: value,
            high: value,
        }
    }

    /// Returns a value whose logarithm has this standard deviation.
    pub fn spread(value: f64, deviation: f64) -> Span {
        let factor = (Z95 * deviation).exp();
        Span {
            value,
            low: value / factor,
            high: value * factor,
        }
    }

    /// Returns half of the interval's width, relative to the value.
    pub fn half_width(&self) -> f64 {
        if self.value > 0.0 {
            (self.high - self.low) / (2.0 * self.value)
        } else if self.high > self.low {
            f64::INFINITY
        } else {
            0.0
        }
    }

    /// Returns whether a measured value lies in the interval; differences up to `resolution` are
    /// ignored.
    pub fn holds(&self, measured: f64, resolution: f64) -> bool {
        self.low - resolution <= measured && measured <= self.high + resolution
    }
}

/// Standard deviations of a normal distribution that contain 95%, on either side of the mean.
pub const Z95: f64 = 1.96;
