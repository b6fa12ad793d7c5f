//! `qos/predict`: how long packets will wait; `sluice/metrics`: what queues do, for Prometheus.

use super::Commands;
use crate::metrics;
use crate::switch::waits::{collect, refresh};
use serde_json::Value;

/// Queues for which one command makes forecasts at most: some 30 ms each on a thread of its own, while somebody waits.
const FORECASTS: usize = 64;

pub(super) fn register(commands: &Commands) {
    commands.later(
        "qos/predict",
        "[--json] interface [queue]",
        (1, 3),
        |switch, mut words, reply| {
            let json = words.iter().position(|word| word == "--json");
            json.map(|at| words.remove(at));
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
            let found = match collect(&switch, Some(&words[0]), queue, true) {
                Ok((found, _)) => found,
                Err(error) => return reply.error(error),
            };
            tokio::task::spawn_local(async move {
                let queues = refresh(&switch, found, FORECASTS).await;
                let book = &switch.waits;
                reply.ok(match json {
                    Some(_) => {
                        let all: Vec<Value> = queues.iter().map(|queue| book.json(queue)).collect();
                        format!("{}\n", Value::from(all))
                    }
                    None => queues.iter().map(|queue| book.text(queue)).collect(),
                });
            });
        },
    );
    commands.later("sluice/metrics", "", (0, 0), |switch, _, reply| {
        tokio::task::spawn_local(async move {
            match metrics::text(&switch).await {
                Ok(text) => reply.ok(text),
                Err(error) => reply.error(error),
            }
        });
    });
}
