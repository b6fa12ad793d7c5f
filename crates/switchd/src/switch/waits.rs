//! Waiting times of packets in the queues of shaped ports: what shapers recorded, forecasts from
//! that, and how often forecasts were right.
//!
//! A shaper records nothing until somebody asks about a queue. Forecasts take milliseconds, so they
//! are made on a separate thread; the control thread only collects data. A forecast covers as many
//! packets as it was made from: once these have come it is compared with their waits, and a new one
//! is made.

use super::Switch;
use super::bridge::Bridge;
use forecast::Span;
use forecast::choose::{Forecast, Question, elsewhere, forecast};
use forecast::queue::Server;
use forecast::record::Record;
use forecast::seen::{Past, between, endless, server};
use qos::shaper::QueueTotals;
use qos::shaper::spec::QueueSpec;
use qos::shaper::watch::{MAX_WATCHED, Seen};
use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Waits that cannot be told apart, in seconds: a tick of the shaper's wheel.
const RESOLUTION: f64 = qos::shaper::TICK_NS as f64 * 1e-9;
/// Fewest packets for a forecast.
pub const FEWEST: u64 = 500;
/// Most queues in a reply, unless one is named.
pub const MOST: usize = 4096;
/// Most queues of a port that are all watched when metrics are requested.
const FEW: usize = 64;

/// Time without requests for metrics after which queues watched only for them are released.
const METRICS_PAUSE: Duration = Duration::from_secs(60);

/// How long a queue is to be watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// As long as the queue keeps its settings.
    ForGood,
    /// As long as metrics are requested.
    ForMetrics,
}

/// A queue's present state.
pub struct Queue {
    /// The port.
    pub port: String,
    /// Its specification.
    pub spec: QueueSpec,
    /// Its counters.
    pub totals: QueueTotals,
    /// What was recorded; none if nobody has asked before.
    pub seen: Option<Seen>,
    /// Whether it could not be watched, because too many queues are watched already.
    pub refused: bool,
    /// How it is served.
    pub server: Server,
}

/// A forecast, and how earlier ones turned out.
#[derive(Clone)]
pub struct Track {
    spec: QueueSpec,
    /// The record when it was made: only packets sent and their wait.
    since: Seen,
    /// The record up to then.
    pub past: Past,
    /// How the queue was served then.
    pub server: Server,
    /// The forecast.
    pub forecast: Forecast,
    /// How earlier forecasts turned out.
    pub record: Record,
}

/// Forecasts by port and queue.
#[derive(Default)]
pub struct Book {
    tracks: RefCell<BTreeMap<(String, u32), Track>>,
    /// When metrics were last requested, while queues are watched for them.
    metrics: Cell<Option<Instant>>,
}

/// Releases queues that are watched only for metrics, if these have not been requested lately.
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

/// Returns the queues of all ports, or of one, or one queue, which are watched from now on, and the
/// number of those left out.
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
            // Match the Port's name or, as in qos/show, the Interface's.
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

    /// Makes a new forecast; none while there is too little data.
    fn forecast(&self, record: Record) -> Option<Track> {
        let seen = self.seen.as_ref().filter(|seen| seen.sent >= FEWEST)?;
        let past = Past::of(seen)?;
        let mut server = self.server;
        // Borrowed and lost rate shows in the observed service rate while packets waited.
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

    /// Returns whether a forecast is due: the record with the last one judged.
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

/// Updates forecasts, at most `most` of them; queues without one come first.
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
                // Remove queues that no longer exist.
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

/// Predicts the effect of another rate, in bit/s, on a queue; None without a forecast. It takes
/// milliseconds, on a separate thread.
pub async fn at_rate(
    switch: &Switch,
    queue: &Queue,
    rate: f64,
) -> Option<Result<Forecast, String>> {
    let track = switch.waits.track(queue)?.clone();
    let server = queue.server;
    let work = tokio::task::spawn_blocking(move || track.at(rate, &server));
    Some(work.await.map_err(|error| error.to_string()).flatten())
}

/// Returns why a queue is not watched.
pub fn too_many() -> String {
    format!("not watched: {MAX_WATCHED} queues of this port are watched already")
}

impl Book {
    /// Returns the forecast for the queue in its present state, if there is one.
    pub fn track(&self, queue: &Queue) -> Option<Ref<'_, Track>> {
        Ref::filter_map(self.tracks.borrow(), |tracks| {
            let track = tracks.get(&queue.key());
            track.filter(|track| track.spec == queue.spec)
        })
        .ok()
    }
}

/// Makes the question about a queue with this past.
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
    /// Predicts the effect of another rate, with the queue's whole length.
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
        // Models without a bounded queue are asked again without a bound.
        asked(&server)
            .or_else(|_| asked(&self.server))
            .map_err(|error| error.to_string())
    }

    /// Returns the predicted wait, if there is one.
    pub fn told(&self) -> Option<&Span> {
        self.forecast
            .cannot_tell
            .is_none()
            .then_some(&self.forecast.wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::waits::text::{json, text};

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

    /// Packets of 1000 bytes; every other one follows right behind another and waits 0.8 ms.
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
        assert!(text(&book, &asked).contains("watched from now on"));
        let refused = Queue {
            refused: true,
            ..asked
        };
        let why = "not watched: 1024 queues of this port are watched already";
        let told = text(&book, &refused);
        assert!(
            told.contains(why) && !told.contains("from now on"),
            "{told}"
        );
        assert_eq!(json(&book, &refused)["refused"], why);
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
        let told = text(&book, &now);
        assert!(
            told.contains("packets will wait") && told.contains("no interval could be judged"),
            "{told}"
        );
        let metrics = crate::metrics::queues::text(&book, &[now], 7);
        for line in [
            "sluice_queue_dropped_packets_total{port=\"a\\\"b\",queue=\"3\",reason=\"queue_full\"} 4",
            "sluice_queue_wait_seconds_count{port=\"a\\\"b\",queue=\"3\"} 2000",
            "sluice_queues_left_out 7",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
        // As many packets again, which waited much longer: the forecast was wrong.
        seen_now.sent *= 2;
        seen_now.waited_ns *= 5.0;
        let later = queue(Some(seen_now));
        let record = later.due(Some(&track)).unwrap();
        assert_eq!((record.held, record.judged), (0, 1));
        assert!(json(&book, &later)["told"]["forecast"]["wait"]["value"].is_number());
    }
}
