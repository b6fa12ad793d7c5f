//! Waiting times as text and as JSON.

use crate::switch::waits::{Book, FEWEST, Queue, too_many};
use forecast::Span;
use forecast::choose::Forecast;
use forecast::model::Model;
use forecast::seen::quantile;
use qos::shaper::DROP_REASONS;
use serde_json::{Value, json};
use std::fmt::Write;

/// Describes one queue for people.
pub fn text(book: &Book, queue: &Queue) -> String {
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
    let Some(track) = book.track(queue) else {
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

/// Describes one queue for programs. Times in seconds, rates in bit/s.
pub fn json(book: &Book, queue: &Queue) -> Value {
    let track = book.track(queue);
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
        "waited_p99": queue.seen.as_ref().and_then(|seen| quantile(&seen.waits, 0.99)),
        "sent_packets": queue.totals.packets,
        "sent_bytes": queue.totals.bytes,
        "waiting": queue.totals.waiting,
        "dropped": DROP_REASONS.iter().zip(queue.totals.dropped)
            .map(|((_, name), packets)| ((*name).to_owned(), packets.into()))
            .collect::<serde_json::Map<String, Value>>(),
        "told": told,
    })
}

/// Describes the effect of another rate on a queue ([`crate::switch::waits::at_rate`]) for people,
/// and for programs.
pub fn at(rate: f64, answer: &Result<Forecast, String>) -> (String, Value) {
    match answer {
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
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s.is_infinite() => "without end".into(),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
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
