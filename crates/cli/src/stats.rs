//! What `sluice/stats` tells: counters of ports, workers, tables and drops, as JSON; and rates made from two of them.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// One reading of a daemon's counters.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Stats {
    /// Monotonic time of the reading, microseconds.
    pub time_us: u64,
    /// Time-stamp counter ticks in a second.
    pub tsc_hz: u64,
    /// Ports of all bridges.
    pub ports: Vec<Port>,
    /// Workers.
    pub workers: Vec<Worker>,
    /// Tables that hold rules.
    pub tables: Vec<Table>,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// A port's counters.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Port {
    /// Its bridge.
    pub bridge: String,
    /// Its name.
    pub name: String,
    /// Its OpenFlow number.
    pub ofport: u32,
    /// `Interface.type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets lost on the way in.
    pub rx_dropped: u64,
    /// Packets lost on the way out.
    pub tx_dropped: u64,
}

/// A worker's counters.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Worker {
    /// Its thread's name.
    pub name: String,
    /// The core it is pinned to.
    pub cpu: Option<u32>,
    /// Ticks spent on packets.
    pub busy_cycles: u64,
    /// Ticks spent polling for nothing.
    pub idle_cycles: u64,
    /// Packets handled.
    pub packets: u64,
    /// Bursts that were not empty.
    pub batches: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
}

/// A flow table's counters.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Table {
    /// Its bridge.
    pub bridge: String,
    /// Its number.
    pub id: u8,
    /// Rules in it.
    pub rules: u64,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that found a rule.
    pub matches: u64,
    /// How it is looked up.
    pub template: String,
}

impl Stats {
    /// Reads the daemon's answer.
    pub fn parse(text: &str) -> Result<Stats> {
        serde_json::from_str(text).context("the daemon's sluice/stats is not understood")
    }
}

/// One worker's figures over an interval.
#[derive(Debug, PartialEq, Clone, Copy)]
pub struct WorkerRates {
    /// Share of the interval spent on packets, percent.
    pub busy_percent: f64,
    /// Ticks for each packet, None when there was none.
    pub cycles_per_packet: Option<f64>,
    /// Packets in a burst that was not empty.
    pub batch: Option<f64>,
    /// Packets a second.
    pub packets_per_s: f64,
}

/// Events a second between two readings; counters that went back (a restart) count as zero.
pub fn per_second(before: u64, after: u64, interval_us: u64) -> f64 {
    if interval_us == 0 {
        0.0
    } else {
        after.saturating_sub(before) as f64 * 1e6 / interval_us as f64
    }
}

/// A worker's figures between two readings.
pub fn worker_rates(before: &Worker, after: &Worker, interval_us: u64, tsc_hz: u64) -> WorkerRates {
    let busy = after.busy_cycles.saturating_sub(before.busy_cycles) as f64;
    let packets = after.packets.saturating_sub(before.packets) as f64;
    let batches = after.batches.saturating_sub(before.batches) as f64;
    let all = interval_us as f64 / 1e6 * tsc_hz as f64;
    WorkerRates {
        busy_percent: if all > 0.0 {
            (busy / all * 100.0).min(100.0)
        } else {
            0.0
        },
        cycles_per_packet: (packets > 0.0).then(|| busy / packets),
        batch: (batches > 0.0).then(|| packets / batches),
        packets_per_s: per_second(before.packets, after.packets, interval_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_differences() {
        let before = Worker {
            busy_cycles: 100,
            packets: 10,
            batches: 2,
            ..Worker::default()
        };
        let after = Worker {
            busy_cycles: 1_000_100,
            packets: 1010,
            batches: 102,
            ..Worker::default()
        };
        let rates = worker_rates(&before, &after, 1_000_000, 4_000_000);
        assert_eq!(rates.busy_percent, 25.0);
        assert_eq!(rates.cycles_per_packet, Some(1000.0));
        assert_eq!(rates.batch, Some(10.0));
        assert_eq!(rates.packets_per_s, 1000.0);
    }

    #[test]
    fn a_restart_or_a_standstill_is_not_a_rate() {
        assert_eq!(per_second(10, 5, 1_000_000), 0.0);
        assert_eq!(per_second(0, 5, 0), 0.0);
        let same = Worker::default();
        assert_eq!(
            worker_rates(&same, &same, 1_000_000, 1_000).cycles_per_packet,
            None
        );
    }

    #[test]
    fn a_reading_is_understood_and_rubbish_is_not() {
        let text = r#"{"time_us":5,"tsc_hz":1,"ports":[{"bridge":"br0","name":"p","ofport":1,"type":"system","rx_packets":1,"rx_bytes":2,
            "tx_packets":3,"tx_bytes":4,"rx_dropped":5,"tx_dropped":6}],"workers":[{"name":"pmd-c00/id:1","cpu":null,"busy_cycles":1,
            "idle_cycles":2,"packets":3,"batches":4,"sleeps":5}],"tables":[],"drops":{"table_miss":7}}"#;
        let stats = Stats::parse(text).unwrap();
        assert_eq!((stats.ports[0].tx_bytes, stats.drops["table_miss"]), (4, 7));
        assert!(Stats::parse("{}").is_err());
    }
}
