//! `sluice/steering`: which flows are processed by other workers than those that receive them.
//! `sluice/steered`: kernel interfaces that the daemon steers.

use super::{Answer, Commands};
use crate::switch::Switch;
use crate::switch::steered::State;
use std::fmt::Write;

pub(super) fn register(commands: &Commands) {
    commands.answer("sluice/steered", "", (0, 0), steered);
    commands.answer("sluice/steering", "", (0, 0), show);
    commands.answer(
        "sluice/steering-move",
        "FROM BUCKET TO",
        (3, 3),
        move_bucket,
    );
    commands.answer(
        "sluice/steering-move-entries",
        "PORT ENTRY[-LAST] QUEUE",
        (3, 3),
        move_entries,
    );
    commands.answer("sluice/steering-entries", "PORT", (1, 1), entries);
}

/// Reports for each interface of `other_config:sluice-steer` whether it is steered: a line each.
fn steered(switch: &Switch, _: &[String]) -> Answer {
    let mut text = String::new();
    for (device, state) in switch.steered.states() {
        let _ = match state {
            State::Beginning => writeln!(text, "{device}: beginning"),
            State::Steered(how) => writeln!(text, "{device}: steered {how}"),
            State::Waits(why) => writeln!(text, "{device}: not steered: {why}"),
        };
    }
    Ok(text)
}

/// Reports what workers steer and what it costs: one line for each worker, then one for each card
/// whose indirection table spreads flows over its receive queues.
fn show(switch: &Switch, _: &[String]) -> Answer {
    let info = switch
        .with_datapath(|datapath| datapath.steering())
        .map_err(|error| error.to_string())?;
    let mut text = format!(
        "steering: {} ({} asked for)\n{:<6} {:<16} {:>5} {:>5} {:>13} {:>13} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>13}  {}\n",
        info.effective.name(),
        info.mode.name(),
        "worker",
        "thread",
        "load",
        "away",
        "given",
        "taken",
        "refused",
        "parked",
        "moves",
        "given up",
        "receive",
        "process",
        "taken's",
        "priority",
        "keeps the rest because"
    );
    for (place, worker) in info.workers.iter().enumerate() {
        let _ = writeln!(
            text,
            "{place:<6} {:<16} {:>4.0}% {:>5} {:>13} {:>13} {:>8} {:>7} {:>7} {:>8} {:>8.0} {:>8.0} {:>8.0} {:>13}  {}",
            worker.name,
            worker.load * 100.0,
            worker.away,
            worker.handed,
            worker.taken,
            worker.refused,
            worker.parked,
            worker.moved,
            worker.gave_up_full + worker.gave_up_late,
            worker.cost.0,
            worker.cost.1,
            worker.take_cost,
            worker.urgent,
            match worker.keeps {
                _ if worker.is_reserved => "- (reserved for priority)",
                Some(keeps) => keeps.name(),
                None => "-",
            },
        );
    }
    for card in &info.cards {
        let queues = card.queues.iter().map(|(worker, entries)| match worker {
            Some(worker) => format!("{entries} to worker {worker}"),
            None => format!("{entries} to none"),
        });
        let queues: Vec<String> = queues.collect();
        let counts = card.counts;
        let _ = writeln!(
            text,
            "card {}: entries by queue: {}; moved {}, of these hurried {}, refused {}; parked {}",
            card.port,
            queues.join(", "),
            counts.moved,
            counts.hurried,
            counts.failed,
            counts.parked,
        );
    }
    Ok(text)
}

/// Moves entries of a card's indirection table to another receive queue.
fn move_entries(switch: &Switch, arguments: &[String]) -> Answer {
    let [port, entries, queue] = arguments else {
        return Err("PORT ENTRY[-LAST] QUEUE are needed".to_owned());
    };
    let (first, last) = entries.split_once('-').unwrap_or((entries, entries));
    let (first, last) = (number("ENTRY", first)?, number("LAST", last)?);
    if first > last {
        return Err(format!("{entries}: the last is before the first"));
    }
    let queue = number("QUEUE", queue)?;
    switch
        .with_datapath(|datapath| datapath.move_entries(port, first..=last, queue))
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("{port}: {error}"))?;
    Ok(String::new())
}

/// Reports the receive queue of each entry of a card's indirection table, and how many packets it
/// has had while adaptive steering counted them: a line each.
fn entries(switch: &Switch, arguments: &[String]) -> Answer {
    let [port] = arguments else {
        return Err("PORT is needed".to_owned());
    };
    let entries = switch
        .with_datapath(|datapath| datapath.entries(port))
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("{port}: {error}"))?;
    let mut text = format!("{:>5} {:>5} {:>15}\n", "entry", "queue", "packets");
    for (entry, (queue, packets)) in entries.iter().enumerate() {
        let _ = writeln!(text, "{entry:>5} {queue:>5} {packets:>15}");
    }
    Ok(text)
}

/// Reads the number that an argument gives.
fn number(name: &str, text: &str) -> Result<usize, String> {
    (text.parse()).map_err(|_| format!("{name}: \"{text}\" is not a number"))
}

/// Moves a bucket of a worker's flows to another worker.
fn move_bucket(switch: &Switch, arguments: &[String]) -> Answer {
    let [from, bucket, to] = arguments else {
        return Err("FROM BUCKET TO are needed".to_owned());
    };
    let from = number("FROM", from)?;
    let bucket = number("BUCKET", bucket)?;
    let to = number("TO", to)?;
    switch
        .with_datapath(|datapath| datapath.move_bucket(from, bucket, to))
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    Ok(String::new())
}
