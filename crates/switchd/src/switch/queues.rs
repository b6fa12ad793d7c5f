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
    /// Returns the counters of the requested queues. As in Open vSwitch, a port may have no queues,
    /// but a named queue must exist: on the named port, or on at least one port.
    pub(super) fn stats_of_queues(&self, request: QueueRequest) -> Result<Vec<QueueStats>, Error> {
        let now_ms = self.switch().clock.now_ms();
        let ports = self.ports.borrow();
        let one = match request.port {
            port::ANY => None,
            // A reserved number gets an error about queues, not about ports.
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
                // As in Open vSwitch it has a queue, without counters, for tests.
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

    /// Returns the descriptions of the requested queues. Rates are thousandths of the port's rate.
    /// Rates are left out if the port is not shaped, or if the rate is the port's own.
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

/// Returns a rate in thousandths of the port's, rounded, at least one.
fn part(rate: u64, port: &PortSpec) -> u16 {
    let whole = u128::from(port.max_rate.max(1));
    let part = (u128::from(rate) * 1000 + whole / 2) / whole;
    part.clamp(1, 1000) as u16
}

/// Returns the guaranteed part of the port's rate. None for the default queue's automatic
/// guarantee, unless the port is so slow that this is a thousandth of its rate or more.
fn guaranteed(queue: &QueueSpec, port: &PortSpec) -> Option<u16> {
    let is_said = queue.number != port.default_queue
        || u128::from(queue.min_rate) * 1000 >= u128::from(port.max_rate);
    (queue.min_rate > 0 && is_said).then(|| part(queue.min_rate, port))
}

fn allowed(queue: &QueueSpec, port: &PortSpec) -> Option<u16> {
    (queue.max_rate < port.max_rate).then(|| part(queue.max_rate, port))
}
