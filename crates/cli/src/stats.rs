//! The JSON answers of `sluice/stats`, `sluice/queues` and `sluice/busiest`, and rates computed
//! from two readings.

use crate::appctl::Appctl;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// One reading of a daemon's counters.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Stats {
    /// Monotonic time of the reading, in microseconds.
    pub time_us: u64,
    /// Frequency of the time-stamp counter in Hz.
    pub tsc_hz: u64,
    /// Ports of all bridges.
    pub ports: Vec<Port>,
    /// The control thread's turns; those of daemons that do not say are 0.
    #[serde(default)]
    pub control: Turns,
    /// Workers.
    pub workers: Vec<Worker>,
    /// Tables that have rules.
    pub tables: Vec<Table>,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Tracked connections; None of daemons that do not say.
    #[serde(default)]
    pub connections: Option<Connections>,
    /// BFD sessions; None where there are none.
    #[serde(default)]
    pub monitors: Option<Monitors>,
    /// What workers' cycles go to; None where that is not accounted.
    #[serde(default)]
    pub stages: Option<Stages>,
    /// Ports that could not be opened, or differ from the database.
    #[serde(default)]
    pub port_errors: Vec<PortError>,
}

/// A thread's uninterrupted pieces of work, from its start or `sluice/turns-clear`.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Turns {
    /// The longest.
    pub longest_turn_us: u64,
    /// The part of it in which the thread had no processor.
    pub longest_turn_away_us: u64,
    /// What it was mostly spent on.
    pub longest_turn_doing: String,
    /// How many took so long that they were logged: 10 ms in a worker, 50 ms in control.
    pub long_turns: u64,
}

/// BFD sessions.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Monitors {
    /// Their number.
    pub count: u64,
    /// Their number by state.
    pub states: BTreeMap<String, u64>,
    /// The number of those whose interfaces may be used.
    pub forwarding: u64,
    /// How often that has changed.
    pub flaps: u64,
    /// Some that are not up.
    pub not_up: Vec<Monitor>,
}

/// A BFD session that is not up.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Monitor {
    /// The interface.
    pub interface: String,
    /// The session's state.
    pub state: String,
    /// Why.
    pub diagnostic: String,
    /// The other end's state.
    pub remote_state: String,
}

/// What workers' cycles go to.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Stages {
    /// Whether it is being accounted now.
    pub on: bool,
    /// The sum over workers.
    pub total: StagesTotal,
}

/// A sum of stages.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct StagesTotal {
    /// Packets received.
    pub packets: u64,
    /// Cycles that have passed on all workers.
    pub elapsed_cycles: u64,
    /// The stages, in the order of a packet's path.
    pub stages: Vec<Stage>,
}

/// What a stage has taken.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Cycles.
    pub cycles: u64,
    /// How often it began.
    pub calls: u64,
    /// Packets with which it began.
    pub packets: u64,
}

/// Tracked connections.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Connections {
    /// Their number.
    pub count: u64,
    /// Their number at most.
    pub limit: u64,
    /// How many have begun.
    pub created: u64,
    /// How many have ended because nothing happened.
    pub expired: u64,
    /// How many were not committed: for a limit, another with the same replies, or want of a free
    /// address and port.
    pub refused: u64,
    /// How many half-open ones gave way to others because the limit was reached.
    pub evicted: u64,
    /// The zones with the most, the largest first.
    pub zones: Vec<Zone>,
}

/// A zone of tracked connections.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Zone {
    /// Its number.
    pub zone: u16,
    /// Its connections.
    pub count: u64,
    /// Their number at most; None: only that of all.
    pub limit: Option<u64>,
}

/// A port with an error.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct PortError {
    /// The bridge to which it belongs.
    pub bridge: String,
    /// Its name.
    pub name: String,
    /// `Interface.type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it may carry packets all the same.
    pub open: bool,
    /// The text of `Interface.error`.
    pub error: String,
}

/// A port's counters.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Port {
    /// Its bridge.
    pub bridge: String,
    /// Its name.
    pub name: String,
    /// Its OpenFlow port number.
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
    /// Received packets dropped.
    pub rx_dropped: u64,
    /// Packets dropped instead of being sent.
    pub tx_dropped: u64,
    /// `up`, or the reason why it carries no packets: `down`, `off`, `gone`, `error`.
    #[serde(default)]
    pub link_state: String,
    /// Packets dropped, by reason.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
}

/// A queue of a shaped port, as in `sluice/queues`.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Queue {
    /// The port.
    pub port: String,
    /// The queue's number.
    pub queue: u32,
    /// Its guaranteed rate in bit/s.
    pub min_rate: u64,
    /// Why it is not observed.
    pub refused: Option<String>,
    /// Packets whose waits were recorded; None if nobody has asked about the queue before.
    pub packets: Option<u64>,
    /// The sum of their waits.
    pub waited_ns: Option<f64>,
    /// What 99 of 100 of them did not exceed, in seconds.
    #[serde(default)]
    pub waited_p99: Option<f64>,
    /// Packets sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets waiting now.
    pub waiting: u64,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// The prediction, if there is one.
    pub told: Option<Told>,
}

/// A prediction and what it came from.
#[derive(Deserialize, Clone, Debug)]
pub struct Told {
    /// The prediction.
    pub forecast: Forecast,
}

/// The mean wait of packets in the near future.
#[derive(Deserialize, Clone, Debug)]
pub struct Forecast {
    /// In seconds.
    pub wait: Wait,
    /// Why no prediction is possible.
    pub cannot_tell: Option<String>,
}

/// A time and its interval; None for an end that is not finite.
#[derive(Deserialize, Clone, Debug)]
pub struct Wait {
    /// The mean.
    pub value: Option<f64>,
    /// The interval's lower end.
    pub low: Option<f64>,
    /// The interval's upper end.
    pub high: Option<f64>,
}

/// All queues.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Queues {
    /// The queues reported.
    pub queues: Vec<Queue>,
    /// The number of queues not reported.
    pub left_out: u64,
}

/// A rule that packets meet, as in `sluice/busiest`.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Rule {
    /// Its bridge.
    pub bridge: String,
    /// Its table.
    pub table: u8,
    /// Priority and match.
    #[serde(rename = "match")]
    pub matching: String,
    /// Its actions.
    pub actions: String,
    /// Packets that have met it.
    pub packets: u64,
    /// Packets per second, as the daemon counted them between two requests.
    pub packets_per_s: Option<f64>,
    /// Bits per second.
    pub bits_per_s: Option<f64>,
}

/// The busiest rules.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Busiest {
    /// The rules, the busiest first.
    pub rules: Vec<Rule>,
    /// The number of rules, if they are too many to examine.
    pub left_out: u64,
}

/// Everything shown of one moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Counters.
    pub stats: Stats,
    /// Queues.
    pub queues: Queues,
    /// Rules.
    pub busiest: Busiest,
}

impl Reading {
    /// Asks the daemon; what an older daemon does not know is left empty.
    pub fn read(daemon: &mut Appctl) -> Result<Reading> {
        let mut ask = |command: &str| match daemon.call(command, &[]) {
            Err(error) if error.to_string().contains("not a valid command") => Ok(None),
            other => other.map(Some),
        };
        let stats = ask("sluice/stats")?
            .context("the daemon does not know sluice/stats: it is not Sluice, or an old one")?;
        Ok(Reading {
            stats: understood(&stats, "sluice/stats")?,
            queues: ask("sluice/queues")?.map_or(Ok(Queues::default()), |text| {
                understood(&text, "sluice/queues")
            })?,
            busiest: ask("sluice/busiest")?.map_or(Ok(Busiest::default()), |text| {
                understood(&text, "sluice/busiest")
            })?,
        })
    }
}

fn understood<T: serde::de::DeserializeOwned>(text: &str, command: &str) -> Result<T> {
    serde_json::from_str(text).with_context(|| format!("the daemon's {command} is not understood"))
}

/// A worker's counters.
#[derive(Deserialize, Clone, Debug, Default)]
pub struct Worker {
    /// Its thread's name.
    pub name: String,
    /// The core it is pinned to.
    pub cpu: Option<u32>,
    /// Ticks spent on processing packets.
    pub busy_cycles: u64,
    /// Ticks spent polling empty queues.
    pub idle_cycles: u64,
    /// Packets handled.
    pub packets: u64,
    /// Bursts that were not empty.
    pub batches: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// What it does for others, and they for it.
    #[serde(default)]
    pub steering: Steering,
    /// Its turns.
    #[serde(flatten)]
    pub turns: Turns,
}

/// A worker's part in steering.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Steering {
    /// The share of its time that it spends on packets, 0 to 1, as steering sees it.
    #[serde(default)]
    pub load: f64,
    /// Packets that it received and gave to others.
    pub handed: u64,
    /// Packets that it processed and others received.
    pub taken: u64,
    /// Packets dropped because the other's ring was full.
    pub refused: u64,
    /// Packets that wait for a move to end.
    pub parked: u64,
    /// Buckets of flows that others process.
    pub away: u64,
    /// Moves of these.
    pub moves: u64,
    /// Moves given up.
    pub moves_given_up: u64,
    /// Why it gives no more flows to others.
    pub keeps: Option<String>,
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
    /// Its classifier.
    pub template: String,
}

/// One worker's figures over an interval.
#[derive(Debug, PartialEq, Clone, Copy)]
pub struct WorkerRates {
    /// Share of the interval spent on packets, percent.
    pub busy_percent: f64,
    /// Ticks per packet processed, whoever received it; None if there was none.
    pub cycles_per_packet: Option<f64>,
    /// Packets per burst that was not empty; None if there was none.
    pub batch: Option<f64>,
    /// Packets per second.
    pub packets_per_s: f64,
}

/// Returns events per second between two readings; a counter that went back (a restart) counts as
/// zero.
pub fn per_second(before: u64, after: u64, interval_us: u64) -> f64 {
    if interval_us == 0 {
        0.0
    } else {
        after.saturating_sub(before) as f64 * 1e6 / interval_us as f64
    }
}

/// Returns a worker's figures between two readings.
pub fn worker_rates(before: &Worker, after: &Worker, interval_us: u64, tsc_hz: u64) -> WorkerRates {
    let busy = after.busy_cycles.saturating_sub(before.busy_cycles) as f64;
    let received = after.packets.saturating_sub(before.packets);
    let (old, new) = (&before.steering, &after.steering);
    let handed = new.handed.saturating_sub(old.handed);
    let taken = new.taken.saturating_sub(old.taken);
    let processed = (received.saturating_sub(handed) + taken) as f64;
    let packets = received as f64;
    let batches = after.batches.saturating_sub(before.batches) as f64;
    let all = interval_us as f64 / 1e6 * tsc_hz as f64;
    WorkerRates {
        busy_percent: if all > 0.0 {
            (busy / all * 100.0).min(100.0)
        } else {
            0.0
        },
        cycles_per_packet: (processed > 0.0).then(|| busy / processed),
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
        // What it processes counts, not what it receives.
        let mut steered = after;
        (steered.steering.handed, steered.steering.taken) = (900, 3900);
        let rates = worker_rates(&before, &steered, 1_000_000, 4_000_000);
        assert_eq!(rates.cycles_per_packet, Some(250.0));
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
        let stats = understood::<Stats>(text, "sluice/stats").unwrap();
        assert_eq!((stats.ports[0].tx_bytes, stats.drops["table_miss"]), (4, 7));
        assert!(understood::<Stats>("{}", "sluice/stats").is_err());
    }
}
