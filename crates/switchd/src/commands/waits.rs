//! `qos/predict`: how long packets will wait. Statistics of queues: `sluice/queues` for `sluice
//! top`, `sluice/metrics` for Prometheus.

pub(crate) mod text;

use super::{Commands, slices};
use crate::metrics;
use crate::switch::waits::{Ask, at_rate, collect, refresh};
use serde_json::Value;

/// Most queues for which one command makes forecasts: each takes some 30 ms on a thread of its own
/// while the caller waits.
const FORECASTS: usize = 64;

pub(super) fn register(commands: &Commands) {
    commands.later(
        "qos/predict",
        "[--json] [--rate=bit/s] interface [queue]",
        (1, 4),
        |switch, mut words, reply| {
            let json = words.iter().position(|word| word == "--json");
            json.map(|at| words.remove(at));
            let rate = words.iter().position(|word| word.starts_with("--rate="));
            let rate = rate.map(|at| words.remove(at));
            let rate = match rate.as_deref().map(read_rate).transpose() {
                Ok(rate) => rate,
                Err(error) => return reply.error(error),
            };
            let number = words.get(1).map(|word| word.parse::<u32>());
            let queue = match number.transpose() {
                Ok(queue) if (1..=2).contains(&words.len()) => queue,
                Ok(_) => {
                    return reply.error(
                        "an interface is missing, or there are too many arguments".to_owned(),
                    );
                }
                Err(_) => return reply.error(format!("{}: not a queue's number", words[1])),
            };
            let found = match collect(&switch, Some(&words[0]), queue, Ask::ForGood) {
                Ok((found, _)) => found,
                Err(error) => return reply.error(error),
            };
            crate::turns::spawn("queues", async move {
                let queues = refresh(&switch, found, FORECASTS).await;
                let book = &switch.waits;
                let (mut texts, mut told) = (String::new(), Vec::new());
                for (number, queue) in queues.iter().enumerate() {
                    let at = match rate.filter(|_| number < FORECASTS) {
                        Some(rate) => at_rate(&switch, queue, rate)
                            .await
                            .map(|told| text::at(rate, &told)),
                        None => None,
                    };
                    if json.is_some() {
                        let mut all = text::json(book, queue);
                        if let Some((_, at)) = at {
                            all["at"] = at;
                        }
                        told.push(all);
                    } else {
                        texts += &text::text(book, queue);
                        texts += &at.map_or_else(String::new, |(text, _)| text);
                    }
                }
                reply.ok(match json {
                    Some(_) => format!("{}\n", Value::from(told)),
                    None => texts,
                });
            });
        },
    );
    commands.later("sluice/queues", "", (0, 0), |switch, _, reply| {
        let (found, left_out) = match collect(&switch, None, None, Ask::ForMetrics) {
            Ok(found) => found,
            Err(error) => return reply.error(error),
        };
        crate::turns::spawn("queues", async move {
            let queues = refresh(&switch, found, FORECASTS).await;
            let told = queues
                .iter()
                .map(|one| Some(text::json(&switch.waits, one)));
            let told = slices::list(told, usize::MAX).await;
            reply.ok(format!(r#"{{"left_out":{left_out},"queues":{told}}}"#));
        });
    });
    commands.later("sluice/metrics", "", (0, 0), |switch, _, reply| {
        crate::turns::spawn("queues", async move {
            match metrics::text(&switch).await {
                Ok(all) => reply.ok(all),
                Err(error) => reply.error(error),
            }
        });
    });
}

/// Reads a rate in the form `--rate=...`, in bit/s.
fn read_rate(word: &str) -> Result<f64, String> {
    let number = word.trim_start_matches("--rate=");
    let rate: Option<f64> = number.parse().ok();
    rate.filter(|rate| (1.0..=1e13).contains(rate))
        .ok_or_else(|| format!("{number}: not a rate in bit/s"))
}
