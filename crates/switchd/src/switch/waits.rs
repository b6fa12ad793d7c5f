//! How long packets wait in the queues of shaped ports: what shapers noted, forecasts from that,
//! and how often these held.
//!
//! A shaper notes nothing until somebody asks about a queue. Forecasts take milliseconds, so they
//! are made on a thread of their own; the control thread only collects. Each is for as many packets
//! as it was made from: once these have come it is judged by what they waited, and a new one is
//! made.

use super::Switch;
use super::bridge::Bridge;
use forecast::Span;
use forecast::choose::{Forecast, Question, elsewhere, forecast};
use forecast::model::Model;
use forecast::queue::Server;
use forecast::record::Record;
use forecast::seen::{Past, between, endless, quantile, server};
use qos::shaper::spec::QueueSpec;
use qos::shaper::watch::{MAX_WATCHED, Seen};
use qos::shaper::{DROP_REASONS, QueueTotals};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Waits that cannot be told apart, in seconds: a tick of the shaper's wheel.
const RESOLUTION: f64 = qos::shaper::TICK_NS as f64 * 1e-9;
/// Packets after which a forecast is worth the trouble.
const FEWEST: u64 = 500;
/// Queues of a port that are told about at most, where no one is named.
pub const MOST: usize = 4096;
/// Ports with no more queues than this are watched whole when metrics are asked for.
const FEW: usize = 64;

/// Queues that only metrics have asked about are let go when they have not been asked for so long.
const METRICS_PAUSE: Duration = Duration::from_secs(60);

/// For how long those who ask want to have a queue watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// As long as it has this shape.
    ForGood,
    /// As long as metrics are asked for.
    ForMetrics,
}

/// A queue as it is now.
pub struct Queue {
    /// The port.
    pub port: String,
    /// Its specification.
    pub spec: QueueSpec,
    /// What it has done.
    pub totals: QueueTotals,
    /// What was noted; none where nobody has asked before.
    pub seen: Option<Seen>,
    /// It should have been watched from now on, but so many are watched already.
    pub refused: bool,
    server: Server,
}

/// A forecast and what became of those before.
#[derive(Clone)]
struct Track {
    spec: QueueSpec,
    /// What had been seen when it was made: only packets sent and their wait.
    since: Seen,
    past: Past,
    server: Server,
    forecast: Forecast,
    record: Record,
}

/// Forecasts by port and queue.
#[derive(Default)]
pub struct Book {
    tracks: RefCell<BTreeMap<(String, u32), Track>>,
    /// When metrics were asked for, while queues are watched for them.
    metrics: Cell<Option<Instant>>,
}

/// Lets queues go that nobody but metrics has asked about, where these have not been asked for
/// lately.
pub fn let_go(switch: &Switch, now: Instant) {
    let asked = switch.waits.metrics.get();
    if asked.is_none_or(|asked| now.saturating_duration_since(asked) < METRICS_PAUSE) {
        return;
    }
    switch.waits.metrics.set(None);
    let bridges: Vec<std::rc::Rc<Bridge>> = switch.bridges.borrow().values().cloned().collect();
    for bridge in bridges {
        for port in bridge.ports.borrow().values() {
            let watched = switch.with_datapath(|datapath| datapath.watch(port.id));
            if let Ok(Ok(Some(watched))) = watched {
                watched.watch.let_go();
            }
        }
    }
}

/// The queues of ports, or of one, or one of them, which are watched from now on. The number of
/// those left out comes with them.
pub fn collect(
    switch: &Switch,
    port: Option<&str>,
    queue: Option<u32>,
    ask: Ask,
) -> Result<(Vec<Queue>, usize), String> {
    if ask == Ask::ForMetrics {
        switch.waits.metrics.set(Some(Instant::now()));
    }
    let (mut found, mut left_out, mut known) = (Vec::new(), 0, false);
    let bridges: Vec<std::rc::Rc<Bridge>> = switch.bridges.borrow().values().cloned().collect();
    for bridge in bridges {
        for one in bridge.ports.borrow().values() {
            // By the Port's name or, as for qos/show, the Interface's.
            let names = [&one.config.name, &one.config.interface_name];
            if port.is_some_and(|port| names.iter().all(|name| *name != port)) {
                continue;
            }
            known = true;
            let watched =
                switch.with_datapath(|datapath| (datapath.watch(one.id), datapath.shaping(one.id)));
            let (Ok(Some(watched)), Ok(totals)) = watched.map_err(|error| error.to_string())?
            else {
                continue;
            };
            let specs: BTreeMap<u32, &QueueSpec> = watched
                .spec
                .queues
                .iter()
                .map(|spec| (spec.number, spec))
                .collect();
            let wants = port.is_some() || totals.len() <= FEW;
            let wanted = watched.queues.iter().zip(totals).enumerate();
            let wanted =
                wanted.filter(|(_, (number, _))| queue.is_none_or(|wanted| wanted == **number));
            for (told, (place, (number, (_, totals)))) in wanted.enumerate() {
                let Some(spec) = specs.get(number) else {
                    continue;
                };
                if told >= MOST {
                    left_out += 1;
                    continue;
                }
                let seen = watched.watch.seen(place);
                let watching = match ask {
                    Ask::ForGood => watched.watch.ask(place),
                    Ask::ForMetrics => !wants || watched.watch.ask_for_a_while(place),
                };
                let refused = seen.is_none() && !watching;
                found.push(Queue {
                    port: one.config.name.clone(),
                    spec: (*spec).clone(),
                    totals,
                    seen,
                    refused,
                    server: server(
                        &watched.spec,
                        spec,
                        spec.max_rate.min(watched.spec.max_rate),
                    ),
                });
            }
        }
    }
    match (port, queue) {
        (Some(name), _) if !known => Err(format!("{name}: no such interface")),
        (Some(name), None) if found.is_empty() => Err(format!(
            "{name}: not shaped (its QoS is neither linux-htb nor linux-hfsc)"
        )),
        (Some(name), Some(number)) if found.is_empty() => {
            Err(format!("{name}: no queue {number} that is shaped"))
        }
        _ => Ok((found, left_out)),
    }
}

impl Queue {
    fn key(&self) -> (String, u32) {
        (self.port.clone(), self.spec.number)
    }

    /// A new forecast; none while too little was seen.
    fn forecast(&self, record: Record) -> Option<Track> {
        let seen = self.seen.as_ref().filter(|seen| seen.sent >= FEWEST)?;
        let past = Past::of(seen)?;
        let mut server = self.server;
        // What lends and what others take shows in how fast it was when packets waited.
        if let Some(rate) = past
            .service_rate
            .filter(|_| self.spec.min_rate < self.spec.max_rate)
        {
            server.rate = rate.clamp(self.spec.min_rate.max(1) as f64, server.rate);
        }
        server.group = past.group.unwrap_or(1.0);
        let server = endless(&server, seen, &past);
        let forecast = forecast(&question(&server, &past)).ok()?;
        Some(Track {
            spec: self.spec.clone(),
            since: Seen {
                sent: seen.sent,
                waited_ns: seen.waited_ns,
                ..Seen::default()
            },
            past,
            server,
            forecast,
            record,
        })
    }

    /// Whether a forecast is due, and the record after the last was judged.
    fn due(&self, track: Option<&Track>) -> Option<Record> {
        let seen = self.seen.as_ref()?;
        let Some(track) =
            track.filter(|track| track.spec == self.spec && seen.sent >= track.since.sent)
        else {
            return Some(Record::default());
        };
        let (measured, packets) = between(&track.since, seen)?;
        let mut record = track.record;
        (packets >= track.since.sent).then(|| {
            if track.forecast.cannot_tell.is_none() {
                record.judge(&track.forecast.wait, measured, RESOLUTION);
            }
            record
        })
    }
}

/// Brings forecasts up to date; `most` are made at most, and those that were never made come first.
pub async fn refresh(switch: &Switch, queues: Vec<Queue>, most: usize) -> Vec<Queue> {
    let due: Vec<Option<Record>> = {
        let tracks = switch.waits.tracks.borrow();
        queues
            .iter()
            .map(|queue| queue.due(tracks.get(&queue.key())))
            .collect()
    };
    let work = move || {
        let mut made = Vec::new();
        for (queue, record) in queues.iter().zip(due) {
            if made.len() >= most {
                break;
            }
            if let Some(track) = record.and_then(|record| queue.forecast(record)) {
                made.push((queue.key(), track));
            }
        }
        (queues, made)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok((queues, made)) => {
            let mut tracks = switch.waits.tracks.borrow_mut();
            tracks.extend(made);
            if tracks.len() > 2 * MOST {
                // Queues that are gone.
                let keys: std::collections::BTreeSet<_> = queues.iter().map(Queue::key).collect();
                tracks.retain(|key, _| keys.contains(key));
            }
            queues
        }
        Err(error) => {
            tracing::error!(target: "bridge", "forecasts failed: {error}");
            Vec::new()
        }
    }
}

/// What another rate would do to a queue: for people, and for programs. None without a forecast. It
/// takes milliseconds, on a thread of its own.
pub async fn at_rate(switch: &Switch, queue: &Queue, rate: f64) -> Option<(String, Value)> {
    let track = {
        let tracks = switch.waits.tracks.borrow();
        let track = tracks.get(&queue.key());
        track.filter(|track| track.spec == queue.spec).cloned()?
    };
    let server = queue.server;
    let work = tokio::task::spawn_blocking(move || track.at(rate, &server));
    Some(
        match work.await.map_err(|error| error.to_string()).flatten() {
            Ok(answer) => {
                let (wait, model) = (interval(&answer.wait), answer.model.name());
                let text = match &answer.cannot_tell {
                    Some(why) => format!("cannot tell ({why}); {model} says {wait}"),
                    None => format!("packets would wait {wait} on average, by {model}"),
                };
                (
                    format!("  at {}: {text}\n", mbit(rate)),
                    json!({"rate": rate, "forecast": answer}),
                )
            }
            Err(error) => (
                format!("  at {}: cannot tell ({error})\n", mbit(rate)),
                json!({"rate": rate, "cannot_tell": error}),
            ),
        },
    )
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s.is_infinite() => "without end".into(),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Why a queue is not watched.
pub fn too_many() -> String {
    format!("not watched: {MAX_WATCHED} queues of this port are watched already")
}

fn interval(span: &Span) -> String {
    format!(
        "{} ({} to {})",
        time(span.value),
        time(span.low),
        time(span.high)
    )
}

fn mbit(rate: f64) -> String {
    format!("{:.3} Mbit/s", rate / 1e6)
}

impl Book {
    /// About one queue, for people.
    pub fn text(&self, queue: &Queue) -> String {
        let mut text = String::new();
        let spec = &queue.spec;
        let bound = spec.max_latency_ns.map_or(String::new(), |ns| {
            format!(", waits {} at most", time(ns as f64 * 1e-9))
        });
        let _ = writeln!(
            text,
            "{} queue {}: {} guaranteed, {} at most{bound}, {} packets may wait",
            queue.port,
            spec.number,
            mbit(spec.min_rate as f64),
            mbit(queue.server.rate),
            spec.limit_packets
        );
        if queue.refused {
            let _ = writeln!(text, "  {}", too_many());
            return text;
        }
        let Some(seen) = &queue.seen else {
            text.push_str("  watched from now on: ask again when packets have come\n");
            return text;
        };
        let tracks = self.tracks.borrow();
        let Some(track) = tracks.get(&queue.key()).filter(|track| track.spec == *spec) else {
            let _ = match seen.sent < FEWEST {
                true => writeln!(
                    text,
                    "  {} packets have left, {FEWEST} are needed",
                    seen.sent
                ),
                false => writeln!(
                    text,
                    "  its forecast comes after those of others: ask again"
                ),
            };
            return text;
        };
        let (past, forecast) = (&track.past, &track.forecast);
        let _ = writeln!(
            text,
            "  came: {} packets in {}, {}, {:.0} bytes on average; squared variation of gaps {:.2}, of sizes {:.2}",
            seen.arrivals,
            time(seen.ns as f64 * 1e-9),
            mbit(past.load.rate()),
            past.load.size() / 8.0,
            past.load.gap_scv(),
            past.load.size_scv()
        );
        let of = |share| quantile(&seen.waits, share).map_or_else(|| "?".into(), time);
        let _ = writeln!(
            text,
            "  waited: {} on average; half of them {} at most, 99 of 100 {}",
            time(past.waited.mean),
            of(0.5),
            of(0.99)
        );
        if let (Some(group), Some(rate)) = (past.group, past.service_rate) {
            let _ = writeln!(
                text,
                "  left: {group:.1} packets at a time, {} while packets waited",
                mbit(rate)
            );
        }
        let rho = &forecast.utilization;
        let _ = writeln!(
            text,
            "  utilization: {:.2}% ({:.2}% to {:.2}%)",
            rho.value * 100.0,
            rho.low * 100.0,
            rho.high * 100.0
        );
        match &forecast.cannot_tell {
            Some(why) => {
                let _ = writeln!(text, "  cannot tell how long packets will wait: {why}");
            }
            None => {
                let _ = writeln!(
                    text,
                    "  packets will wait {} on average, by {}: {}",
                    interval(&forecast.wait),
                    forecast.model.name(),
                    forecast.reason
                );
            }
        }
        if let Some(paper) = forecast
            .candidates
            .iter()
            .find(|one| one.model == Model::Paper)
        {
            let _ = writeln!(
                text,
                "  the paper's model would say {}",
                interval(&paper.wait)
            );
        }
        let record = track.record;
        let _ = match record.coverage() {
            Some(_) => writeln!(
                text,
                "  {} of {} intervals have held so far",
                record.held, record.judged
            ),
            None => writeln!(text, "  no interval could be judged yet"),
        };
        text
    }

    /// About one queue, for programs. Times in seconds, rates in bit/s.
    pub fn json(&self, queue: &Queue) -> Value {
        let tracks = self.tracks.borrow();
        let track = tracks
            .get(&queue.key())
            .filter(|track| track.spec == queue.spec);
        let told = track.map(|track| {
            json!({
                "server": track.server,
                "load": track.past.load,
                "waited": track.past.waited,
                "group": track.past.group,
                "service_rate": track.past.service_rate,
                "forecast": track.forecast,
                "record": track.record,
            })
        });
        json!({
            "port": queue.port,
            "queue": queue.spec.number,
            "min_rate": queue.spec.min_rate,
            "max_rate": queue.spec.max_rate,
            "watched": queue.seen.is_some(),
            "refused": queue.refused.then(too_many),
            "packets": queue.seen.as_ref().map(|seen| seen.sent),
            "waited_ns": queue.seen.as_ref().map(|seen| seen.waited_ns),
            "sent_packets": queue.totals.packets,
            "sent_bytes": queue.totals.bytes,
            "waiting": queue.totals.waiting,
            "dropped": DROP_REASONS.iter().zip(queue.totals.dropped)
                .map(|((_, name), packets)| ((*name).to_owned(), packets.into()))
                .collect::<serde_json::Map<String, Value>>(),
            "told": told,
        })
    }

    /// About queues, for Prometheus (text format 0.0.4).
    pub fn metrics(&self, queues: &[Queue], left_out: usize) -> String {
        let tracks = self.tracks.borrow();
        let mut families: Vec<(&str, &str, &str, String)> = Vec::new();
        let mut family = |name: &'static str,
                          kind: &'static str,
                          help: &'static str,
                          lines: &dyn Fn(&Queue, &mut Lines)| {
            let mut all = Lines {
                name,
                labels: String::new(),
                text: String::new(),
            };
            for queue in queues {
                all.labels = format!(
                    "port=\"{}\",queue=\"{}\"",
                    escaped(&queue.port),
                    queue.spec.number
                );
                lines(queue, &mut all);
            }
            families.push((name, kind, help, all.text));
        };
        family(
            "sluice_queue_sent_packets_total",
            "counter",
            "Packets sent.",
            &|queue, lines| lines.add("", queue.totals.packets as f64),
        );
        family(
            "sluice_queue_sent_bytes_total",
            "counter",
            "Bytes sent, without FCS.",
            &|queue, lines| lines.add("", queue.totals.bytes as f64),
        );
        family(
            "sluice_queue_marked_packets_total",
            "counter",
            "Packets that were to be marked (ECN).",
            &|queue, lines| lines.add("", queue.totals.marked as f64),
        );
        family(
            "sluice_queue_dropped_packets_total",
            "counter",
            "Packets dropped, by reason.",
            &|queue, lines| {
                for ((_, name), count) in DROP_REASONS.iter().zip(queue.totals.dropped) {
                    lines.add(&format!("reason=\"{name}\""), count as f64);
                }
            },
        );
        family(
            "sluice_queue_waiting_packets",
            "gauge",
            "Packets that wait.",
            &|queue, lines| lines.add("", queue.totals.waiting as f64),
        );
        family(
            "sluice_queue_min_rate_bits",
            "gauge",
            "Guaranteed rate in bit/s.",
            &|queue, lines| lines.add("", queue.spec.min_rate as f64),
        );
        family(
            "sluice_queue_max_rate_bits",
            "gauge",
            "Maximum rate in bit/s.",
            &|queue, lines| lines.add("", queue.server.rate),
        );
        family(
            "sluice_queue_wait_seconds",
            "summary",
            "Time that packets waited, since the queue is watched.",
            &|queue, lines| {
                let Some(seen) = &queue.seen else { return };
                for share in [0.5, 0.9, 0.99, 0.999] {
                    if let Some(wait) = quantile(&seen.waits, share) {
                        lines.add(&format!("quantile=\"{share}\""), wait);
                    }
                }
                lines.add_to("_sum", seen.waited_ns * 1e-9);
                lines.add_to("_count", seen.sent as f64);
            },
        );
        let track = |queue: &Queue| {
            tracks
                .get(&queue.key())
                .filter(|track| track.spec == queue.spec)
        };
        let of = |told: fn(&Track) -> Option<f64>| {
            move |queue: &Queue, lines: &mut Lines| {
                if let Some(value) = track(queue).and_then(told) {
                    lines.add("", value);
                }
            }
        };
        family(
            "sluice_queue_offered_bits",
            "gauge",
            "Rate of what came while the queue was watched, in bit/s.",
            &of(|track| Some(track.past.load.rate())),
        );
        family(
            "sluice_queue_utilization",
            "gauge",
            "That rate over the queue's.",
            &of(|track| Some(track.forecast.utilization.value)),
        );
        family(
            "sluice_queue_predicted_wait_seconds",
            "gauge",
            "Predicted mean wait.",
            &of(|track| track.told().map(|wait| wait.value)),
        );
        family(
            "sluice_queue_predicted_wait_low_seconds",
            "gauge",
            "Lower end of its 95% interval.",
            &of(|track| track.told().map(|wait| wait.low)),
        );
        family(
            "sluice_queue_predicted_wait_high_seconds",
            "gauge",
            "Upper end of its 95% interval.",
            &of(|track| track.told().map(|wait| wait.high)),
        );
        family(
            "sluice_queue_prediction_cannot_tell",
            "gauge",
            "1 where the wait cannot be predicted.",
            &of(|track| Some(f64::from(u8::from(track.told().is_none())))),
        );
        family(
            "sluice_queue_predictions_judged_total",
            "counter",
            "Intervals held against what came.",
            &of(|track| Some(track.record.judged as f64)),
        );
        family(
            "sluice_queue_predictions_held_total",
            "counter",
            "Of them those that held.",
            &of(|track| Some(track.record.held as f64)),
        );
        let mut text = String::new();
        for (name, kind, help, lines) in families {
            begin_family(&mut text, name, kind, help);
            text.push_str(&lines);
        }
        let name = "sluice_queues_left_out";
        let help = format!("Queues beyond the first {MOST} of a port, which are not shown.");
        begin_family(&mut text, name, "gauge", &help);
        let _ = writeln!(text, "{name} {left_out}");
        text
    }
}

/// What is asked about a queue with this past.
fn question<'a>(server: &'a Server, past: &'a Past) -> Question<'a> {
    Question {
        server,
        load: &past.load,
        waited: Some(&past.waited),
        horizon: 1.0,
        resolution: RESOLUTION,
    }
}

impl Track {
    /// What another rate would do. The queue has its whole end there.
    fn at(&self, rate: f64, queue: &Server) -> Result<Forecast, String> {
        let server = match rate < self.server.rate {
            true => Server {
                limit: queue.limit,
                bound: queue.bound,
                ..self.server
            },
            false => self.server,
        };
        let asked =
            |server: &Server| elsewhere(&question(server, &self.past), &self.forecast, rate);
        // Models that know of no end are asked about the queue without one.
        asked(&server)
            .or_else(|_| asked(&self.server))
            .map_err(|error| error.to_string())
    }

    fn told(&self) -> Option<&Span> {
        self.forecast
            .cannot_tell
            .is_none()
            .then_some(&self.forecast.wait)
    }
}

/// Lines of a family of metrics.
struct Lines {
    name: &'static str,
    labels: String,
    text: String,
}

impl Lines {
    fn add(&mut self, label: &str, value: f64) {
        let comma = if label.is_empty() { "" } else { "," };
        let _ = writeln!(
            self.text,
            "{}{{{}{comma}{label}}} {}",
            self.name,
            self.labels,
            number(value)
        );
    }

    fn add_to(&mut self, suffix: &str, value: f64) {
        let _ = writeln!(
            self.text,
            "{}{suffix}{{{}}} {}",
            self.name,
            self.labels,
            number(value)
        );
    }
}

/// A value as Prometheus writes it.
fn number(value: f64) -> String {
    match value.is_infinite() {
        true if value > 0.0 => "+Inf".into(),
        true => "-Inf".into(),
        false => value.to_string(),
    }
}

/// What stands in front of a metric's samples.
pub fn begin_family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

/// A label's value as it stands between quotation marks.
pub fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(seen: Option<Seen>) -> Queue {
        let spec = QueueSpec::new(3, 5_000_000, 10_000_000);
        let mut port = qos::shaper::PortSpec::new(100_000_000);
        port.queues.push(spec.clone());
        Queue {
            port: "a\"b".into(),
            server: server(&port, &spec, spec.max_rate),
            spec,
            totals: QueueTotals {
                dropped: [0, 4, 0, 1],
                ..QueueTotals::default()
            },
            seen,
            refused: false,
        }
    }

    /// Packets of 1000 bytes, of which every other comes on the heels of one and waits 0.8 ms.
    fn seen() -> Seen {
        let mut shaper = qos::shaper::Shaper::new(
            &{
                let mut port = qos::shaper::PortSpec::new(100_000_000);
                let spec = QueueSpec {
                    burst: 0,
                    ..QueueSpec::new(0, 10_000_000, 10_000_000)
                };
                port.queues.push(spec);
                port
            },
            0,
        )
        .unwrap();
        assert!(shaper.watch().ask(0));
        for pair in 0..1000_u64 {
            let now = pair * 2_000_000;
            shaper.enqueue(0, 0, 1000, 0, now).unwrap();
            shaper.enqueue(0, 0, 1000, 0, now).unwrap();
            assert!(shaper.dequeue(now).is_some());
            assert!(shaper.dequeue(now + 801_000).is_some());
        }
        shaper.watch().seen(0).unwrap()
    }

    #[test]
    fn forecasts_are_made_judged_and_shown() {
        let book = Book::default();
        let asked = queue(None);
        assert!(book.text(&asked).contains("watched from now on"));
        let refused = Queue {
            refused: true,
            ..asked
        };
        let why = "not watched: 1024 queues of this port are watched already";
        let text = book.text(&refused);
        assert!(
            text.contains(why) && !text.contains("from now on"),
            "{text}"
        );
        assert_eq!(book.json(&refused)["refused"], why);
        let mut seen_now = seen();
        let now = queue(Some(seen_now.clone()));
        let record = now.due(None).unwrap();
        let track = now.forecast(record).unwrap();
        assert!(
            (track.forecast.wait.value - 0.0004).abs() < 0.00005,
            "{:?}",
            track.forecast
        );
        book.tracks.borrow_mut().insert(now.key(), track.clone());
        assert!(now.due(Some(&track)).is_none(), "nothing has come since");
        let text = book.text(&now);
        assert!(
            text.contains("packets will wait") && text.contains("no interval could be judged"),
            "{text}"
        );
        let metrics = book.metrics(&[now], 7);
        for line in [
            "sluice_queue_dropped_packets_total{port=\"a\\\"b\",queue=\"3\",reason=\"queue_full\"} 4",
            "sluice_queue_wait_seconds_count{port=\"a\\\"b\",queue=\"3\"} 2000",
            "sluice_queues_left_out 7",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
        // As many again, which waited much longer: the interval did not hold.
        seen_now.sent *= 2;
        seen_now.waited_ns *= 5.0;
        let later = queue(Some(seen_now));
        let record = later.due(Some(&track)).unwrap();
        assert_eq!((record.held, record.judged), (0, 1));
        assert!(book.json(&later)["told"]["forecast"]["wait"]["value"].is_number());
    }
}
