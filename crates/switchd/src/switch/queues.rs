//! Queues of a bridge's ports, as controllers see them.

use super::bridge::Bridge;
use crate::config::qos::Shape;
use openflow::Error;
use openflow::message::QueueRequest;
use openflow::port::{self, PortNo};
use openflow::stats::{QueueDescription, QueueStats};
use qos::shaper::{PortSpec, QueueSpec};
use std::collections::HashMap;

impl Bridge {
    /// The counters that a request means. All of a port's queues may be none; one that is named
    /// must be there, and on every port one that is named must be on some (Open vSwitch).
    pub(super) fn stats_of_queues(&self, request: QueueRequest) -> Result<Vec<QueueStats>, Error> {
        let now_ms = self.switch().clock.now_ms();
        let ports = self.ports.borrow();
        let one = match request.port {
            port::ANY => None,
            // A reserved number has no queues, and the answer is that, not that it is no port.
            number => Some(port::to_u16(number).ok_or(Error::QueueBadPort)?),
        };
        if let Some(number) = one
            && !ports.contains_key(&number)
        {
            return Err(Error::QueueBadPort);
        }
        let mut found = Vec::new();
        for port in ports.values() {
            if one.is_some_and(|number| number != port.number) {
                continue;
            }
            let Ok(Ok(totals)) = self
                .switch()
                .with_datapath(|datapath| datapath.queue_stats(port.id))
            else {
                continue;
            };
            let any = [0, u32::MAX].contains(&request.queue);
            if totals.is_empty() && any && crate::commands::is_dummy(&self.switch(), self, port) {
                // As in Open vSwitch it has a queue that tests can ask for, of which nothing is
                // known.
                found.push(QueueStats {
                    port: port.openflow_number(),
                    queue: 0,
                    tx_bytes: port::UNKNOWN,
                    tx_packets: port::UNKNOWN,
                    tx_errors: port::UNKNOWN,
                    duration_ns: port::UNKNOWN,
                });
            }
            found.extend(
                totals
                    .iter()
                    .filter(|totals| request.queue == u32::MAX || request.queue == totals.queue)
                    .map(|totals| QueueStats {
                        port: port.openflow_number(),
                        queue: totals.queue,
                        tx_bytes: totals.bytes,
                        tx_packets: totals.packets,
                        tx_errors: totals.errors,
                        duration_ns: now_ms.saturating_sub(totals.since_ms) * 1_000_000,
                    }),
            );
        }
        if found.is_empty() && request.queue != u32::MAX {
            return Err(Error::QueueBadQueue);
        }
        Ok(found)
    }

    /// The queues that a request means. Rates are parts of the port's rate, in thousandths; where
    /// nothing waits for rates, and for those that are the port's own, none is said.
    pub(super) fn describe_queues(
        &self,
        request: QueueRequest,
    ) -> Result<Vec<QueueDescription>, Error> {
        let stats = self.stats_of_queues(request)?;
        let ports = self.ports.borrow();
        let mut rates: HashMap<(PortNo, u32), (Option<u16>, Option<u16>)> = HashMap::new();
        for port in ports.values() {
            if let Shape::Queues(spec) = &port.config.qos.shape {
                let parts = spec.queues.iter().map(|queue| {
                    let key = (port.openflow_number(), queue.number);
                    (key, (guaranteed(queue, spec), allowed(queue, spec)))
                });
                rates.extend(parts);
            }
        }
        let describe = |queue: &QueueStats| {
            let (min_rate, max_rate) = rates
                .get(&(queue.port, queue.queue))
                .copied()
                .unwrap_or_default();
            QueueDescription {
                port: queue.port,
                queue: queue.queue,
                min_rate,
                max_rate,
            }
        };
        Ok(stats.iter().map(describe).collect())
    }
}

/// A rate in thousandths of the port's, to the nearest, at least one.
fn part(rate: u64, port: &PortSpec) -> u16 {
    let whole = u128::from(port.max_rate.max(1));
    let part = (u128::from(rate) * 1000 + whole / 2) / whole;
    part.clamp(1, 1000) as u16
}

/// The guaranteed part of the port's rate. None for what the default queue gets unasked, which is
/// too little to be said in thousandths of all but slow ports.
fn guaranteed(queue: &QueueSpec, port: &PortSpec) -> Option<u16> {
    let is_said = queue.number != port.default_queue
        || u128::from(queue.min_rate) * 1000 >= u128::from(port.max_rate);
    (queue.min_rate > 0 && is_said).then(|| part(queue.min_rate, port))
}

fn allowed(queue: &QueueSpec, port: &PortSpec) -> Option<u16> {
    (queue.max_rate < port.max_rate).then(|| part(queue.max_rate, port))
}
