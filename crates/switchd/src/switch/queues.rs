//! Queues of a bridge's ports, as controllers see them.

use super::bridge::Bridge;
use openflow::Error;
use openflow::message::QueueRequest;
use openflow::port;
use openflow::stats::{QueueDescription, QueueStats};

impl Bridge {
    /// The counters that a request means. All of a port's queues may be none; one that is named must be there, and on every port one that is named must be on some (Open
    /// vSwitch).
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

    /// The queues that a request means. Rates are parts of a port's rate, which is not what the database gives; Open vSwitch leaves them out too.
    pub(super) fn describe_queues(
        &self,
        request: QueueRequest,
    ) -> Result<Vec<QueueDescription>, Error> {
        let stats = self.stats_of_queues(request)?;
        Ok(stats
            .iter()
            .map(|queue| QueueDescription {
                port: queue.port,
                queue: queue.queue,
                min_rate: None,
                max_rate: None,
            })
            .collect())
    }
}
