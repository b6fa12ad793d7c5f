//! How long packets wait in a port's queues, for `Port.status` and `qos/show`.
//!
//! Looked at when statistics are written, so each look tells of one interval. A queue is measured from the first look on.

use super::Switch;
use crate::config::qos::Qos;
use datapath::PortId;
use ovsdb::vswitch::Strings;
use qos::shaper::waits::{Look, Waits};
use std::collections::BTreeMap;

/// Looks at a port's queues, by their numbers.
#[derive(Default)]
pub struct Latencies(BTreeMap<u32, (Look, Option<Waits>)>);

impl Latencies {
    /// Looks at the queues that are to be measured.
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
            if qos.measured.binary_search(number).is_ok() && watched.watch.ask(place) {
                let (look, waits) = self.0.entry(*number).or_default();
                *waits = look.again(&watched.watch, place);
            }
        }
    }

    /// How long a queue's packets waited in the last interval; none where none left.
    pub fn of(&self, queue: u32) -> Option<Waits> {
        self.0.get(&queue)?.1
    }

    /// The keys of `Port.status`: `queue-N-latency-us`, for queues that sent something.
    pub fn status(&self) -> Strings {
        let told = self.0.iter().filter_map(|(number, (_, waits))| {
            Some((format!("queue-{number}-latency-us"), describe(&(*waits)?)))
        });
        told.collect()
    }
}

/// Waits in words, in microseconds.
pub fn describe(waits: &Waits) -> String {
    let us = |ns: u64| ns as f64 / 1000.0;
    format!(
        "p50={:.1} p99={:.1} max={:.1} packets={}",
        us(waits.median_ns),
        us(waits.p99_ns),
        us(waits.longest_ns),
        waits.packets
    )
}
