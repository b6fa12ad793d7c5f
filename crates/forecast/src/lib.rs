//! How long packets will wait in a queue, and how far that may be off.
//!
//! * [`queue`]: what a queue is ([`queue::Server`]) and what comes to it ([`queue::Load`]), with
//!   errors.
//! * [`model`]: formulas, each with what it assumes; [`finite`] those of queues with an end,
//!   [`replay`] arrivals drawn from what was seen, served by the shaper's own rules.
//! * [`calculus`]: bounds that hold for whatever keeps to its token bucket.
//! * [`seen`]: loads and waiting times from what a shaper notes ([`qos::shaper::watch`]).
//! * [`choose`]: which model to believe, by how each fits what was seen, and when none can be;
//!   [`record`] keeps count of how often that held.
//! * [`path`], [`message`], [`place`]: what follows for several queues in a row, for messages cut
//!   into packets, and for tasks that look for ports.
//! * [`sweep`]: scenarios without end, simulated, to judge all this by.
//!
//! Times are seconds, rates bit/s, sizes bits unless something else is said. Waiting is the time in
//! the queue until the packet is given to the port: the packet's own transmission is not part of
//! it. Nothing here reads a clock or a file; what is random comes from a seed.

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

/// What is wrong with what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

/// A value and the interval in which it lies 95 times of 100. An end that nothing limits is
/// infinite (`null` in JSON).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// The best guess.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Span {
    /// A value without doubt.
    pub fn exact(value: f64) -> Span {
        Span {
            value,
            low: value,
            high: value,
        }
    }

    /// A value whose logarithm has this standard deviation.
    pub fn spread(value: f64, deviation: f64) -> Span {
        let factor = (Z95 * deviation).exp();
        Span {
            value,
            low: value / factor,
            high: value * factor,
        }
    }

    /// Half its width in parts of the value.
    pub fn half_width(&self) -> f64 {
        if self.value > 0.0 {
            (self.high - self.low) / (2.0 * self.value)
        } else if self.high > self.low {
            f64::INFINITY
        } else {
            0.0
        }
    }

    /// Whether a measured value lies in it; `resolution` is what cannot be told apart.
    pub fn holds(&self, measured: f64, resolution: f64) -> bool {
        self.low - resolution <= measured && measured <= self.high + resolution
    }
}

/// Of a normal distribution, 95 of 100 lie within so many standard deviations.
pub const Z95: f64 = 1.96;
