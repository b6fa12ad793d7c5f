//! `Port.qos` and its queues (Open vSwitch's documentation of the tables `QoS` and `Queue`).
//!
//! Unusable settings are reported in the interface's `error` column and in the log, and the port
//! keeps the QoS that it has ([`Qos::keep`]).

mod error;

pub use self::error::{IngressError, OutOfRange, QosError, RowError};

use super::policing;
use super::problem::Problems;
use super::shaping;
use ovsdb::vswitch::{self, Strings};
use qos::policer::PolicerSpec;
use qos::shaper::PortSpec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Types that a port may have, by Open vSwitch's names.
pub const TYPES: [&str; 5] = [
    "linux-htb",
    "linux-hfsc",
    "linux-noop",
    "egress-policer",
    "trtcm-policer",
];
/// Most queues of a port, not counting the default one.
pub const MOST_QUEUES: usize = 100_000;

/// How a port limits what it sends.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// No limit: packets are sent at once.
    #[default]
    None,
    /// Packets wait in queues with rates.
    Queues(Arc<PortSpec>),
    /// Packets above a rate are dropped.
    Policer(Arc<PolicerSpec>),
}

/// A port's QoS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Qos {
    /// Its type; empty for none.
    pub kind: String,
    /// The numbers of its queues, ascending.
    pub queues: Vec<u32>,
    /// How they are shaped or policed.
    pub shape: Shape,
    /// The DSCP that packets of a queue get, by the queue's number, ascending.
    pub marks: Vec<(u32, u8)>,
    /// Tenants' numbers by their names.
    pub tenants: BTreeMap<String, u32>,
    /// The numbers of queues whose waiting times are measured.
    pub measured: Vec<u32>,
    /// The configured guarantees of queues that give up a part to the default queue, by queue
    /// number.
    pub lowered: BTreeMap<u32, u64>,
    /// Why the row is not in force; the other fields are then meaningless until [`Qos::keep`].
    pub error: Option<QosError>,
}

impl Qos {
    /// Keeps the previous QoS if the row is unusable.
    pub fn keep(&mut self, before: Option<&Qos>) {
        if let Some(error) = self.error.take() {
            *self = before.cloned().unwrap_or_default();
            self.error = Some(error);
        }
    }
}

/// Reads a whole number from 0 on; none where the key is missing.
pub(super) fn number(options: &Strings, key: &str) -> Result<Option<u64>, RowError> {
    let Some(text) = options.get(key) else {
        return Ok(None);
    };
    let number = text.trim().parse::<u64>();
    number.map(Some).map_err(|_| RowError::NotANumber {
        key: key.to_owned(),
        text: text.clone(),
    })
}

/// Reads a whole number of at most `most`; none where the key is missing.
pub(super) fn small(options: &Strings, key: &str, most: u32) -> Result<Option<u32>, RowError> {
    match number(options, key)? {
        Some(value) if value > u64::from(most) => {
            let key = key.to_owned();
            Err(RowError::TooLarge { key, value, most })
        }
        value => Ok(value.map(|value| value as u32)),
    }
}

/// Checks a queue's number. The highest 32-bit number stands for all queues (OpenFlow's
/// `OFPQ_ALL`).
pub(super) fn queue_number(number: i64) -> Result<u32, RowError> {
    u32::try_from(number)
        .ok()
        .filter(|number| *number < u32::MAX)
        .ok_or(RowError::QueueNumber(number))
}

/// Reads a port's QoS. Unknown keys and errors become problems of the port `name`.
pub fn read(name: &str, qos: Option<&vswitch::QoS>, problems: &mut Problems) -> Qos {
    let Some(qos) = qos.filter(|qos| !qos.kind.is_empty()) else {
        return Qos::default();
    };
    let mut say = |what: String| problems.add("Port", name, "qos", what);
    match read_kind(qos, &mut say) {
        Ok(read) => Qos {
            marks: marks(qos),
            ..read
        },
        Err(error) => {
            say(format!("{error}; what was configured before stays so"));
            let kind = qos.kind.clone();
            Qos {
                error: Some(QosError::Row { kind, error }),
                ..Qos::default()
            }
        }
    }
}

/// Returns the DSCP of each queue that has one. The schema keeps it within 0 to 63.
fn marks(qos: &vswitch::QoS) -> Vec<(u32, u8)> {
    let rows = qos.queues.iter();
    let marks = rows.filter_map(|(number, row)| {
        let dscp = u8::try_from(row.dscp?).ok().filter(|dscp| *dscp < 64)?;
        Some((queue_number(*number).ok()?, dscp))
    });
    marks.collect()
}

fn read_kind(qos: &vswitch::QoS, say: &mut dyn FnMut(String)) -> Result<Qos, RowError> {
    let kind = qos.kind.clone();
    if qos.queues.len() > MOST_QUEUES {
        return Err(RowError::TooManyQueues(qos.queues.len()));
    }
    match kind.as_str() {
        "linux-noop" => Ok(Qos {
            kind,
            ..Qos::default()
        }),
        "linux-htb" | "linux-hfsc" => {
            let read = shaping::read(qos, say)?;
            let mut queues: Vec<u32> = read.spec.queues.iter().map(|queue| queue.number).collect();
            queues.sort_unstable();
            Ok(Qos {
                kind,
                queues,
                shape: Shape::Queues(Arc::new(read.spec)),
                tenants: read.tenants,
                measured: read.measured,
                lowered: read.lowered,
                ..Qos::default()
            })
        }
        "egress-policer" | "trtcm-policer" => {
            let policer = policing::read(qos, say)?;
            let mut queues: Vec<u32> = match &policer {
                PolicerSpec::One(_) => Vec::new(),
                PolicerSpec::Queues { queues, .. } => queues.iter().map(|queue| queue.0).collect(),
            };
            queues.sort_unstable();
            Ok(Qos {
                kind,
                queues,
                shape: Shape::Policer(Arc::new(policer)),
                ..Qos::default()
            })
        }
        "linux-sfq" | "linux-codel" | "linux-fq_codel" | "linux-netem" => {
            Err(RowError::TypeNotSupported(kind))
        }
        _ => Err(RowError::UnknownType(kind)),
    }
}

#[cfg(test)]
mod tests;
