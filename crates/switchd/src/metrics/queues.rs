//! Metrics of shaped ports' queues.

use crate::switch::waits::{Book, MOST, Queue, Track};
use forecast::seen::quantile;
use qos::shaper::DROP_REASONS;
use std::fmt::Write;

/// Returns the metrics of queues in Prometheus' text format 0.0.4.
pub fn text(book: &Book, queues: &[Queue], left_out: usize) -> String {
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
        "sluice_queue_bound_seconds",
        "gauge",
        "Longest time that a packet may wait (max-latency-us), where there is one.",
        &|queue, lines| {
            if let Some(bound) = queue.spec.max_latency_ns {
                lines.add("", bound as f64 * 1e-9);
            }
        },
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
    let of = |told: fn(&Track) -> Option<f64>| {
        move |queue: &Queue, lines: &mut Lines| {
            if let Some(value) = book.track(queue).and_then(|track| told(&track)) {
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

/// Sample lines of a metric family.
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

/// Formats a value as Prometheus does.
fn number(value: f64) -> String {
    match value.is_infinite() {
        true if value > 0.0 => "+Inf".into(),
        true => "-Inf".into(),
        false => value.to_string(),
    }
}

/// Writes the lines in front of a metric's samples.
pub fn begin_family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

/// Escapes a label's value for use between quotation marks.
pub fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
