//! Waiting times of packets in a port's queues, for `Port.status` and `qos/show`.
//!
//! They are read when statistics are written, so each value covers one such interval. A queue is
//! measured from the first reading on.

use super::Switch;
use super::waits::too_many;
use crate::config::qos::Qos;
use datapath::PortId;
use ovsdb::vswitch::Strings;
use qos::shaper::waits::{Look, Waits};
use std::collections::BTreeMap;

/// Readings of a port's queues, by queue number; none for queues that cannot be watched.
#[derive(Default)]
pub struct Latencies(BTreeMap<u32, Option<(Look, Option<Waits>)>>);

impl Latencies {
    /// Reads the queues that are to be measured.
    pub fn look(&mut self, switch: &Switch, id: PortId, qos: &Qos) {
        self.0
            .retain(|number, _| qos.measured.binary_search(number).is_ok());
        if qos.measured.is_empty() {
            return;
        }
        let Ok(Ok(Some(watched))) = switch.with_datapath(|datapath| datapath.watch(id)) else {
            return;
        };
        for (place, number) in watched.queues.iter().enumerate() {
            if qos.measured.binary_search(number).is_err() {
                continue;
            }
            let seen = self.0.entry(*number).or_default();
            if watched.watch.ask(place) {
                let (look, waits) = seen.get_or_insert_default();
                *waits = look.again(&watched.watch, place);
            } else {
                *seen = None;
            }
        }
    }

    /// Describes a queue's waiting times in the last interval, or why they are unknown; none if no
    /// packet was sent.
    pub fn of(&self, queue: u32) -> Option<String> {
        self.0.get(&queue).and_then(told)
    }

    /// Returns the keys for `Port.status`: `queue-N-latency-us`, for queues that sent something.
    pub fn status(&self) -> Strings {
        let told = self
            .0
            .iter()
            .filter_map(|(number, seen)| Some((format!("queue-{number}-latency-us"), told(seen)?)));
        told.collect()
    }
}

fn told(seen: &Option<(Look, Option<Waits>)>) -> Option<String> {
    match seen {
        Some((_, waits)) => waits.as_ref().map(describe),
        None => Some(too_many()),
    }
}

/// Formats waiting times, in microseconds.
fn describe(waits: &Waits) -> String {
    let us = |ns: u64| ns as f64 / 1000.0;
    format!(
        "p50={:.1} p99={:.1} max={:.1} packets={}",
        us(waits.median_ns),
        us(waits.p99_ns),
        us(waits.longest_ns),
        waits.packets
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_cannot_be_watched_says_so() {
        let latencies = Latencies(BTreeMap::from([(3, None), (4, Some(Default::default()))]));
        let why = "not watched: 1024 queues of this port are watched already";
        assert_eq!(latencies.of(3).as_deref(), Some(why));
        assert_eq!(latencies.of(4), None, "nothing has left yet");
        let status: Vec<(String, String)> = latencies.status().into_iter().collect();
        assert_eq!(status, [("queue-3-latency-us".to_owned(), why.to_owned())]);
    }
}
