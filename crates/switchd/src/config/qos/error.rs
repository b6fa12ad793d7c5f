//! Why a port's QoS and policing are not as the rows ask.

use super::{MOST_QUEUES, TYPES};
use qos::policer::PolicerError;
use qos::shaper::SpecError;
use qos::shaper::spec::MAX_RATE;
use qos::shaper::watch::MAX_WATCHED;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Why a port's QoS row is not in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QosError {
    /// The row, of this type, is unusable.
    #[error("QoS {kind}: {error}")]
    Row {
        /// The row's type.
        kind: String,
        /// What is wrong with it.
        error: RowError,
    },
    /// The port is a tunnel.
    #[error("QoS: a tunnel has none; its packets are shaped where they leave")]
    Tunnel,
}

/// What is wrong with a row of `QoS` or `Queue`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Its type is one of Open vSwitch's that this switch lacks.
    #[error("type \"{}\" is not supported yet; there are {}", .0, TYPES.join(", "))]
    TypeNotSupported(String),
    /// Its type does not exist.
    #[error("type \"{}\" does not exist; there are {}", .0, TYPES.join(", "))]
    UnknownType(String),
    /// It has too many queues; their number.
    #[error("{0} queues are more than {MOST_QUEUES}")]
    TooManyQueues(usize),
    /// A queue's number is out of range.
    #[error("queue {}: numbers are 0 to {}", .0, u32::MAX - 1)]
    QueueNumber(i64),
    /// A queue's row is wrong.
    #[error("queue {number}: {error}")]
    Queue {
        /// The queue's number.
        number: u32,
        /// What is wrong with its row.
        error: Box<RowError>,
    },
    /// A value is not a number.
    #[error("{key}: \"{text}\" is not a whole number from 0 on")]
    NotANumber {
        /// The key.
        key: String,
        /// The value.
        text: String,
    },
    /// A number is too large.
    #[error("{key}: {value} is more than {most}")]
    TooLarge {
        /// The key.
        key: String,
        /// The value.
        value: u64,
        /// The largest that is accepted.
        most: u32,
    },
    /// A rate is out of range.
    #[error("{key}: {rate} bit/s is not a rate between {least} and {MAX_RATE} bit/s")]
    Rate {
        /// The key.
        key: String,
        /// The value.
        rate: u64,
        /// The lowest that is accepted.
        least: u64,
    },
    /// A value is not a boolean.
    #[error("{key}: \"{text}\" is neither true nor false")]
    NotABoolean {
        /// The key.
        key: &'static str,
        /// The value.
        text: String,
    },
    /// A tenant's name is empty.
    #[error("tenant: a name has at least one character")]
    TenantName,
    /// Too many queues are to be measured; their number.
    #[error("measure-latency: {0} queues are more than {MAX_WATCHED}")]
    TooManyMeasured(usize),
    /// The values do not make a shaper together.
    #[error("{}", named(.error, .tenants))]
    Shaper {
        /// What is wrong, with tenants' numbers.
        error: SpecError,
        /// The tenants' numbers by their names.
        tenants: BTreeMap<String, u32>,
    },
    /// The values do not make a policer together.
    #[error(transparent)]
    Policer(#[from] PolicerError),
}

impl RowError {
    /// Says that the error is in the row of the queue with this number.
    pub(in crate::config) fn of_queue(self, number: u32) -> RowError {
        RowError::Queue {
            number,
            error: Box::new(self),
        }
    }
}

/// Returns the text of an error with tenants' names in place of their numbers.
fn named(error: &SpecError, tenants: &BTreeMap<String, u32>) -> String {
    let mut text = error.to_string();
    let mut by_number: Vec<(&String, &u32)> = tenants.iter().collect();
    // Highest number first, because a number may begin with another's digits.
    by_number.sort_by_key(|(_, number)| Reverse(**number));
    for (name, number) in by_number {
        text = text.replace(&format!("tenant {number}"), &format!("tenant {name}"));
    }
    text
}

/// Why what a port receives is not policed as its row asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngressError {
    /// A value is out of range.
    #[error("{column}: {error}")]
    Column {
        /// The column.
        column: &'static str,
        /// Its value, and the bounds.
        error: OutOfRange,
    },
    /// The port is a tunnel.
    #[error("ingress_policing_rate: a tunnel has none")]
    Tunnel,
}

/// A value that is negative or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value} is not between 0 and {most}")]
pub struct OutOfRange {
    /// The value.
    pub value: i64,
    /// The largest that is accepted.
    pub most: i64,
}
