//! Metrics over HTTP, for Prometheus: off unless `other_config:sluice-metrics` of the root row
//! names an address.
//!
//! It speaks only as much HTTP as that needs: `GET /metrics`, one request per connection, at most
//! [`CONNECTIONS`] connections at once, each limited to a few seconds. A further connection
//! replaces the one that has waited longest without sending its request.

pub(crate) mod queues;

use crate::commands::counters::drops;
use crate::commands::stages::Shown;
use crate::switch::Switch;
use crate::switch::monitors::Monitored;
use crate::switch::steered::State;
use crate::switch::waits::{Ask, collect, let_go, refresh};
use conntrack::Tracker;
use datapath::clock::cycles_per_second;
use datapath::stages::{Report, Stage, Tally};
use datapath::{Keeps, PortStats, SteeringCard, SteeringWorker, WorkerInfo, WorkerStages};
use queues::{begin_family, escaped};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Connections served at once.
const CONNECTIONS: usize = 8;
/// Most bytes of a request.
const REQUEST: usize = 4096;
/// Longest duration of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time until a request is complete.
const SILENCE: Duration = Duration::from_secs(2);
/// Interval at which the configuration is checked, and pause after an error.
const LOOK: Duration = Duration::from_secs(1);
/// Zones of tracked connections that are reported.
const ZONES: usize = 8;
/// Most forecasts made for one reply; other queues keep their last ones.
const FORECASTS: usize = 32;

/// Returns all metrics.
pub async fn text(switch: &Rc<Switch>) -> Result<String, String> {
    let (queues, left_out) = collect(switch, None, None, Ask::ForMetrics)?;
    let queues = refresh(switch, queues, FORECASTS).await;
    let (ports, workers, steering) = switch
        .with_datapath(|datapath| {
            datapath.take_turns(false);
            let ports = datapath.ports().into_iter();
            let ports =
                ports.filter_map(|port| Some((port.name, datapath.port_stats(port.id).ok()?)));
            (
                ports.collect::<Vec<_>>(),
                datapath.workers(),
                datapath.steering(),
            )
        })
        .map_err(|error| error.to_string())?;
    let mut page = Page(queues::text(&switch.waits, &queues, left_out));
    page.ports(&ports);
    page.workers(&workers, cycles_per_second() as f64);
    page.steering(&workers, &steering.workers);
    page.cards(&steering.cards);
    page.decisions(steering.effective.name(), &switch.steered.states());
    page.controllers(switch);
    page.stages(&Shown::read(switch));
    page.monitors(switch.monitored());
    if let Some(tracker) = switch.tracker() {
        page.connections(&tracker);
    }
    page.control(&crate::turns::turns());
    let all = drops(switch);
    page.family(
        "sluice_dropped_packets_total",
        "counter",
        "Packets dropped by the switch, by reason (as sluice/drops).",
        all.iter()
            .map(|(reason, count)| (format!("reason=\"{reason}\""), *count as f64)),
    );
    Ok(page.0)
}

/// Returns a worker's labels.
fn worker_label(worker: &WorkerInfo) -> String {
    label_of(&worker.name, worker.cpu)
}

fn label_of(worker: &str, cpu: Option<usize>) -> String {
    let cpu = cpu.map_or(String::new(), |cpu| cpu.to_string());
    format!("worker=\"{}\",cpu=\"{cpu}\"", escaped(worker))
}

/// Metrics in Prometheus' text format 0.0.4.
struct Page(String);

impl Page {
    /// Adds a metric with its samples, by labels.
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl Iterator<Item = (String, f64)>,
    ) {
        begin_family(&mut self.0, name, kind, help);
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
        }
    }

    /// Adds BFD sessions, where there are any.
    fn monitors(&mut self, all: Option<Monitored>) {
        let Some(all) = all else { return };
        let state = |(state, count)| (format!("state=\"{state}\""), count as f64);
        self.family(
            "sluice_bfd_sessions",
            "gauge",
            "BFD sessions by state.",
            all.by_state().into_iter().map(state),
        );
        let one = |value: u64| std::iter::once((String::new(), value as f64));
        self.family(
            "sluice_bfd_forwarding",
            "gauge",
            "Interfaces with BFD sessions that may be used.",
            one(all.forwarding),
        );
    }

    /// Adds what workers' cycles have gone to, where that is or was accounted.
    fn stages(&mut self, shown: &Shown) {
        if !shown.is_something() {
            return;
        }
        type Of = fn(&Tally) -> u64;
        let counts: [(&str, &str, Of); 3] = [
            (
                "sluice_stage_cycles_total",
                "Cycles of the time stamp counter that a stage of a worker's turns has taken.",
                |tally| tally.cycles,
            ),
            (
                "sluice_stage_packets_total",
                "Packets with which a stage of a worker's turns has begun.",
                |tally| tally.packets,
            ),
            (
                "sluice_stage_calls_total",
                "How often a stage of a worker's turns has begun.",
                |tally| tally.calls,
            ),
        ];
        let label = |worker: &WorkerStages| label_of(&worker.name, worker.cpu);
        for (name, help, of) in counts {
            let samples = shown.reports().flat_map(|(worker, report)| {
                let labels = label(worker);
                Stage::ALL.into_iter().map(move |stage| {
                    let labels = format!("{labels},stage=\"{}\"", stage.name());
                    (labels, of(&report.of(stage)) as f64)
                })
            });
            self.family(name, "counter", help, samples);
        }
        let elapsed =
            |(worker, report): (&WorkerStages, &Report)| (label(worker), report.elapsed as f64);
        self.family(
            "sluice_stages_elapsed_cycles_total",
            "counter",
            "Cycles that have passed while stages were accounted.",
            shown.reports().map(elapsed),
        );
    }

    fn ports(&mut self, ports: &[(String, PortStats)]) {
        let label = |name: &str| format!("port=\"{}\"", escaped(name));
        type Of = fn(&PortStats) -> u64;
        let counts: [(&str, &str, Of); 4] = [
            (
                "sluice_port_received_packets_total",
                "Packets received.",
                |port| port.rx_packets,
            ),
            (
                "sluice_port_received_bytes_total",
                "Bytes received, without FCS.",
                |port| port.rx_bytes,
            ),
            (
                "sluice_port_sent_packets_total",
                "Packets sent, after segmentation.",
                |port| port.tx_packets,
            ),
            (
                "sluice_port_sent_bytes_total",
                "Bytes sent, without FCS.",
                |port| port.tx_bytes,
            ),
        ];
        for (name, help, of) in counts {
            let samples = ports
                .iter()
                .map(|(port, stats)| (label(port), of(stats) as f64));
            self.family(name, "counter", help, samples);
        }
        let reasons: [(&str, Of); 8] = [
            ("rx_missed", |port| port.rx_dropped),
            ("rx_malformed", |port| port.rx_errors),
            ("rx_refused", |port| port.rx_refused),
            ("rx_policed", |port| port.rx_policed),
            ("tx_policed", |port| port.tx_policed),
            ("tx_full", |port| port.tx_full),
            ("tx_too_long", |port| port.tx_too_long),
            ("tx_failed", |port| port.tx_failed),
        ];
        let samples = ports.iter().flat_map(|(port, stats)| {
            let each = reasons.iter();
            each.map(move |(reason, of)| {
                let labels = format!("{},reason=\"{reason}\"", label(port));
                (labels, of(stats) as f64)
            })
        });
        self.family(
            "sluice_port_dropped_packets_total",
            "counter",
            "Packets dropped at a port, by reason; tx_policed holds those that its policer or its queues dropped.",
            samples,
        );
    }

    /// Adds metrics of tracked connections.
    fn connections(&mut self, tracker: &Tracker) {
        let gauges = [
            (
                "sluice_connections",
                "Tracked connections, with those that have expired and are not yet removed.",
                tracker.count(),
            ),
            (
                "sluice_connections_limit",
                "Connections that are tracked at most.",
                tracker.limit(),
            ),
            (
                "sluice_connections_expected",
                "Connections that helpers (FTP, TFTP) expect.",
                tracker.expected(),
            ),
        ];
        for (name, help, value) in gauges {
            begin_family(&mut self.0, name, "gauge", help);
            let _ = writeln!(self.0, "{name} {value}");
        }
        self.family(
            "sluice_zone_connections",
            "gauge",
            "Tracked connections of the largest zones.",
            (tracker.largest_zones(ZONES).into_iter())
                .map(|(zone, count)| (format!("zone=\"{zone}\""), count.into())),
        );
        self.family(
            "sluice_connection_events_total",
            "counter",
            "What happened to connections and packets of theirs (coverage/show: conntrack_...).",
            conntrack::Counter::ALL.into_iter().map(|counter| {
                let event = counter.name().trim_start_matches("conntrack_");
                let count = tracker.counters().get(counter);
                (format!("event=\"{event}\""), count as f64)
            }),
        );
    }

    /// Adds metrics of steering between workers, given in the same order twice.
    fn steering(&mut self, workers: &[WorkerInfo], steering: &[SteeringWorker]) {
        let both = || workers.iter().zip(steering);
        type Of = fn(&SteeringWorker) -> f64;
        let counts: [(&str, &str, Of); 3] = [
            (
                "sluice_steering_handed_packets_total",
                "Packets that a worker received and gave to others.",
                |worker| worker.handed as f64,
            ),
            (
                "sluice_steering_taken_packets_total",
                "Packets that a worker processed and others received.",
                |worker| worker.taken as f64,
            ),
            (
                "sluice_steering_refused_packets_total",
                "Packets dropped because the other worker's ring was full (steering_ring_full).",
                |worker| worker.refused as f64,
            ),
        ];
        let per_worker = |text: &mut Self, kind, families: [(&str, &str, Of); 3]| {
            for (name, help, of) in families {
                let samples = both().map(|(worker, state)| (worker_label(worker), of(state)));
                text.family(name, kind, help, samples);
            }
        };
        per_worker(self, "counter", counts);
        let outcomes: [(&str, Of); 3] = [
            ("done", |worker| worker.moved as f64),
            ("full", |worker| worker.gave_up_full as f64),
            ("late", |worker| worker.gave_up_late as f64),
        ];
        let samples = both().flat_map(|(worker, state)| {
            outcomes.iter().map(move |(outcome, of)| {
                let labels = format!("{},outcome=\"{outcome}\"", worker_label(worker));
                (labels, of(state))
            })
        });
        self.family(
            "sluice_steering_moves_total",
            "counter",
            "Moves of a worker's buckets of flows: done, or given up.",
            samples,
        );
        let gauges: [(&str, &str, Of); 3] = [
            (
                "sluice_steering_load",
                "The share of its time that a worker spends on packets, over 120 ms.",
                |worker| worker.load,
            ),
            (
                "sluice_steering_buckets_away",
                "Buckets, of 512, that a worker receives and others process.",
                |worker| worker.away as f64,
            ),
            (
                "sluice_steering_parked_packets",
                "Packets that wait for a move to end.",
                |worker| worker.parked as f64,
            ),
        ];
        per_worker(self, "gauge", gauges);
        let samples = both().flat_map(|(worker, state)| {
            Keeps::ALL.into_iter().map(move |reason| {
                let labels = format!("{},reason=\"{}\"", worker_label(worker), reason.name());
                (labels, f64::from(u8::from(state.keeps == Some(reason))))
            })
        });
        self.family(
            "sluice_steering_keeps",
            "gauge",
            "1 for the reason why a worker gives no more flows to others.",
            samples,
        );
    }

    /// Adds metrics of cards whose indirection tables spread flows over workers.
    fn cards(&mut self, cards: &[SteeringCard]) {
        let samples = cards.iter().flat_map(|card| {
            let queues = card.queues.iter().enumerate();
            queues.map(|(queue, (_, entries))| {
                let labels = format!("port=\"{}\",queue=\"{queue}\"", escaped(&card.port));
                (labels, *entries as f64)
            })
        });
        self.family(
            "sluice_steering_card_entries",
            "gauge",
            "Entries of a card's indirection table that lead to a receive queue.",
            samples,
        );
        let samples = cards.iter().flat_map(|card| {
            let counts = [
                (
                    "done",
                    card.counts.moved.saturating_sub(card.counts.hurried),
                ),
                ("hurried", card.counts.hurried),
                ("refused", card.counts.failed),
            ];
            counts.map(|(outcome, count)| {
                let port = escaped(&card.port);
                (
                    format!("port=\"{port}\",outcome=\"{outcome}\""),
                    count as f64,
                )
            })
        });
        self.family(
            "sluice_steering_card_moves_total",
            "counter",
            "Moves of entries: done, done without the certainty that no packet was reordered, or \
             refused by the card.",
            samples,
        );
        let samples = cards.iter().map(|card| {
            let labels = format!("port=\"{}\"", escaped(&card.port));
            (labels, card.counts.parked as f64)
        });
        self.family(
            "sluice_steering_card_parked_packets",
            "gauge",
            "Packets that wait for an entry's move to end.",
            samples,
        );
    }

    /// Adds what is steered: the mode in effect between workers, and interfaces.
    fn decisions(&mut self, mode: &str, interfaces: &[(String, State)]) {
        self.family(
            "sluice_steering_mode",
            "gauge",
            "1 for the mode in effect between workers.",
            std::iter::once((format!("mode=\"{}\"", escaped(mode)), 1.0)),
        );
        let samples = interfaces.iter().map(|(name, state)| {
            let is_steered = matches!(state, State::Steered(_));
            let labels = format!("interface=\"{}\"", escaped(name));
            (labels, f64::from(u8::from(is_steered)))
        });
        self.family(
            "sluice_steered_interface",
            "gauge",
            "Interfaces of other_config:sluice-steer: 1 where one is steered (sluice/steered says why not).",
            samples,
        );
    }

    /// Adds metrics of connections to controllers.
    fn controllers(&mut self, switch: &Switch) {
        let mut samples = Vec::new();
        for bridge in switch.bridges.borrow().values() {
            let Some(openflow) = bridge.openflow.get() else {
                continue;
            };
            let name = escaped(&bridge.name);
            samples.extend(openflow.controller_status().into_iter().map(|status| {
                let labels = format!("bridge=\"{name}\",target=\"{}\"", escaped(&status.target));
                (labels, f64::from(u8::from(status.is_connected)))
            }));
        }
        self.family(
            "sluice_controller_connected",
            "gauge",
            "1 where a bridge is connected to this controller.",
            samples.into_iter(),
        );
    }

    /// Adds metrics of the control thread, counted from the daemon's start or `sluice/turns-clear`.
    fn control(&mut self, turns: &crate::turns::Turns) {
        let one = |value: f64| std::iter::once((String::new(), value));
        self.family(
            "sluice_control_longest_turn_seconds",
            "gauge",
            "The longest time that the control thread took between two looks at its sockets.",
            one(turns.longest.as_secs_f64()),
        );
        self.family(
            "sluice_control_long_turns_total",
            "counter",
            "Times that it took 50 ms or more.",
            one(turns.long as f64),
        );
    }

    /// Adds metrics of workers. `dpif-netdev/pmd-stats-clear` resets them.
    fn workers(&mut self, workers: &[WorkerInfo], cycles_per_second: f64) {
        let label = worker_label;
        type Of = fn(&WorkerInfo) -> f64;
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let counts: [(&str, &str, Of); 5] = [
            (
                "sluice_worker_received_packets_total",
                "Packets received by a worker.",
                |worker| worker.stats.packets as f64,
            ),
            (
                "sluice_worker_sent_packets_total",
                "Packets given to transmit queues.",
                |worker| worker.stats.tx_packets as f64,
            ),
            (
                "sluice_worker_failures_total",
                "Times that it failed and was started again.",
                |worker| worker.stats.failures as f64,
            ),
            (
                "sluice_worker_long_turns_total",
                "Turns of 10 ms or more.",
                |worker| worker.turns.long as f64,
            ),
            (
                "sluice_worker_long_turns_of_work_total",
                "Turns with 10 ms or more of processor time in them.",
                |worker| worker.turns.long_work as f64,
            ),
        ];
        for (name, help, of) in counts {
            let samples = workers.iter().map(|worker| (label(worker), of(worker)));
            self.family(name, "counter", help, samples);
        }
        let states: [(&str, Of); 3] = [
            ("busy", |worker| worker.stats.busy_cycles as f64),
            ("idle", |worker| worker.stats.idle_cycles as f64),
            ("asleep", |worker| worker.stats.sleep_cycles as f64),
        ];
        let samples = workers.iter().flat_map(|worker| {
            states.iter().map(move |(state, of)| {
                let labels = format!("{},state=\"{state}\"", label(worker));
                (labels, share(of(worker), cycles_per_second))
            })
        });
        self.family(
            "sluice_worker_seconds_total",
            "counter",
            "A worker's time: spent on packets, looking for some in vain, asleep.",
            samples,
        );
        let gauges: [(&str, &str, Of); 4] = [
            (
                "sluice_worker_longest_turn_seconds",
                "The longest turn: for so long one port's frames have waited for others.",
                |worker| worker.turns.longest.as_secs_f64(),
            ),
            (
                "sluice_worker_most_work_seconds",
                "The most processor time that a turn took.",
                |worker| worker.turns.most_work.as_secs_f64(),
            ),
            (
                "sluice_worker_busy_share",
                "The share of its time that a worker has spent on packets.",
                |worker| {
                    let stats = &worker.stats;
                    let all = stats.busy_cycles + stats.idle_cycles + stats.sleep_cycles;
                    stats.busy_cycles as f64 / all.max(1) as f64
                },
            ),
            (
                "sluice_worker_cycles_per_packet",
                "Cycles spent on packets by packets processed, whoever received them.",
                |worker| worker.stats.busy_cycles as f64 / worker.stats.processed().max(1) as f64,
            ),
        ];
        for (name, help, of) in gauges {
            let samples = workers.iter().map(|worker| (label(worker), of(worker)));
            self.family(name, "gauge", help, samples);
        }
    }
}

fn wanted(switch: &Switch) -> Option<SocketAddr> {
    let applied = switch.applied.borrow();
    applied.global.as_ref().and_then(|global| global.metrics)
}

/// Serves metrics at the configured address, while the daemon runs.
pub async fn serve(switch: Rc<Switch>) -> anyhow::Result<()> {
    let mut visitors = Visitors::default();
    let mut refused = None;
    loop {
        let_go(&switch, Instant::now());
        let Some(address) = wanted(&switch) else {
            refused = None;
            tokio::time::sleep(LOOK).await;
            continue;
        };
        match TcpListener::bind(address).await {
            Ok(listener) => {
                refused = None;
                tracing::info!(target: "bridge", "metrics at http://{address}/metrics");
                serve_at(&switch, &listener, address, &mut visitors).await;
            }
            Err(error) => {
                if refused != Some(address) {
                    tracing::warn!(target: "bridge", "no metrics at {address}: {error}");
                    refused = Some(address);
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Connections, the oldest first: their tasks, and whether each has yet to send its request.
#[derive(Default)]
struct Visitors(VecDeque<(JoinHandle<()>, Rc<Cell<bool>>)>);

impl Visitors {
    /// Makes room for one more connection, if necessary by ending the oldest that has not sent its
    /// request; false if there is none.
    fn room(&mut self) -> bool {
        self.0.retain(|(task, _)| !task.is_finished());
        if self.0.len() < CONNECTIONS {
            return true;
        }
        let silent = self.0.iter().position(|(_, silent)| silent.get());
        match silent.and_then(|at| self.0.remove(at)) {
            Some((task, _)) => {
                task.abort();
                true
            }
            None => false,
        }
    }
}

/// Serves at one address until the configuration names another.
async fn serve_at(
    switch: &Rc<Switch>,
    listener: &TcpListener,
    address: SocketAddr,
    visitors: &mut Visitors,
) {
    while wanted(switch) == Some(address) {
        let_go(switch, Instant::now());
        let Ok(accepted) = tokio::time::timeout(LOOK, listener.accept()).await else {
            continue;
        };
        let Ok((stream, _)) = accepted else {
            // A passing error, such as no free descriptors.
            tokio::time::sleep(LOOK).await;
            continue;
        };
        if !visitors.room() {
            continue;
        }
        let silent = Rc::new(Cell::new(true));
        let (switch, waits) = (Rc::clone(switch), Rc::clone(&silent));
        let task = crate::turns::spawn("metrics", async move {
            // A client that disconnects early, or takes too long, gets no reply.
            let _ = tokio::time::timeout(PATIENCE, answer(&switch, stream, &waits)).await;
        });
        visitors.0.push_back((task, silent));
    }
}

/// Reads the head of a request; none if it is too long, or the client stops.
async fn head(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut request = Vec::with_capacity(REQUEST);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let mut chunk = [0; 512];
        let read = stream.read(&mut chunk).await?;
        if read == 0 || request.len() + read > REQUEST {
            return Ok(None);
        }
        request.extend_from_slice(&chunk[..read]);
    }
    Ok(Some(request))
}

async fn answer(
    switch: &Rc<Switch>,
    mut stream: TcpStream,
    silent: &Cell<bool>,
) -> std::io::Result<()> {
    let Ok(request) = tokio::time::timeout(SILENCE, head(&mut stream)).await else {
        return Ok(());
    };
    let Some(request) = request? else {
        return Ok(());
    };
    silent.set(false);
    let (status, body) = match path(&request) {
        Some("/metrics") => match text(switch).await {
            Ok(text) => ("200 OK", text),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        Some(_) => ("404 Not Found", "only /metrics is here\n".to_owned()),
        None => (
            "405 Method Not Allowed",
            "only GET is understood\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Returns the path of a GET request.
fn path(request: &[u8]) -> Option<&str> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(path), Some("HTTP/1.0" | "HTTP/1.1")) => path.split('?').next(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        assert_eq!(
            path(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            Some("/metrics")
        );
        assert_eq!(path(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Some("/metrics"));
        assert_eq!(path(b"GET / HTTP/1.1\r\n\r\n"), Some("/"));
        for bad in [
            &b"POST /metrics HTTP/1.1\r\n\r\n"[..],
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"\xff\xff \r\n",
            b"GET / HTTP/9\r\n\r\n",
        ] {
            assert_eq!(path(bad), None);
        }
    }

    #[test]
    fn ports_and_workers_are_told_in_prometheus_format() {
        let stats = PortStats {
            rx_packets: 5,
            tx_full: 2,
            ..PortStats::default()
        };
        let worker = WorkerInfo {
            name: "pmd-c01/id:3".into(),
            id: 3,
            cpu: Some(1),
            isolated: false,
            stats: datapath::WorkerStats {
                packets: 10,
                handed: 4,
                taken: 14,
                busy_cycles: 2_000,
                idle_cycles: 6_000,
                ..Default::default()
            },
            turns: datapath::turns::TurnStats {
                longest: Duration::from_millis(1500),
                long: 2,
                ..Default::default()
            },
            recent_cycles: 0,
            recent_taken_cycles: 0,
            queues: Vec::new(),
        };
        let mut page = Page(String::new());
        page.ports(&[("a\"b".to_owned(), stats)]);
        let steered = SteeringWorker {
            handed: 4,
            away: 7,
            gave_up_late: 1,
            keeps: Some(Keeps::Pausing),
            ..Default::default()
        };
        page.steering(std::slice::from_ref(&worker), &[steered]);
        let interfaces = [
            ("eth0".to_owned(), State::Steered("natively".into())),
            ("eth1".to_owned(), State::Waits("no such device".into())),
        ];
        page.decisions("rss", &interfaces);
        page.workers(&[worker], 1000.0);
        page.control(&crate::turns::Turns {
            longest: Duration::from_millis(250),
            long: 3,
            ..Default::default()
        });
        for line in [
            "# TYPE sluice_port_received_packets_total counter",
            "sluice_port_received_packets_total{port=\"a\\\"b\"} 5",
            "sluice_port_dropped_packets_total{port=\"a\\\"b\",reason=\"tx_full\"} 2",
            "sluice_worker_seconds_total{worker=\"pmd-c01/id:3\",cpu=\"1\",state=\"idle\"} 6",
            "sluice_worker_busy_share{worker=\"pmd-c01/id:3\",cpu=\"1\"} 0.25",
            "sluice_worker_cycles_per_packet{worker=\"pmd-c01/id:3\",cpu=\"1\"} 100",
            "sluice_steering_handed_packets_total{worker=\"pmd-c01/id:3\",cpu=\"1\"} 4",
            "sluice_steering_moves_total{worker=\"pmd-c01/id:3\",cpu=\"1\",outcome=\"late\"} 1",
            "sluice_steering_buckets_away{worker=\"pmd-c01/id:3\",cpu=\"1\"} 7",
            "sluice_steering_keeps{worker=\"pmd-c01/id:3\",cpu=\"1\",reason=\"pausing\"} 1",
            "sluice_steering_keeps{worker=\"pmd-c01/id:3\",cpu=\"1\",reason=\"off\"} 0",
            "sluice_steering_mode{mode=\"rss\"} 1",
            "sluice_steered_interface{interface=\"eth0\"} 1",
            "sluice_steered_interface{interface=\"eth1\"} 0",
            "sluice_worker_longest_turn_seconds{worker=\"pmd-c01/id:3\",cpu=\"1\"} 1.5",
            "sluice_worker_long_turns_total{worker=\"pmd-c01/id:3\",cpu=\"1\"} 2",
            "sluice_control_longest_turn_seconds{} 0.25",
            "sluice_control_long_turns_total{} 3",
        ] {
            assert!(
                page.0.lines().any(|one| one == line),
                "{line} in {}",
                page.0
            );
        }
    }

    /// Eight silent connections do not keep a ninth out; the oldest is closed.
    #[tokio::test(flavor = "current_thread")]
    async fn the_oldest_silent_visitor_makes_room() {
        tokio::task::LocalSet::new()
            .run_until(async {
                let mut visitors = Visitors::default();
                let come = |visitors: &mut Visitors, silent| {
                    let task = crate::turns::spawn("visitor", std::future::pending());
                    visitors.0.push_back((task, Rc::new(Cell::new(silent))));
                };
                come(&mut visitors, false);
                for _ in 1..CONNECTIONS {
                    come(&mut visitors, true);
                }
                for left in (1..CONNECTIONS).rev() {
                    assert!(visitors.room());
                    come(&mut visitors, false);
                    let silent = visitors.0.iter().filter(|one| one.1.get()).count();
                    assert_eq!(silent, left - 1);
                }
                assert!(!visitors.room(), "all are being answered");
                visitors.0[3].0.abort();
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert!(visitors.room());
            })
            .await;
    }
}
