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

/// Reports what workers steer and what it costs: one line for each worker.
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
    Ok(text)
}

/// Moves a bucket of a worker's flows to another worker.
fn move_bucket(switch: &Switch, arguments: &[String]) -> Answer {
    let mut numbers = [0; 3];
    for (number, (name, text)) in numbers
        .iter_mut()
        .zip(["FROM", "BUCKET", "TO"].iter().zip(arguments))
    {
        *number = text
            .parse::<usize>()
            .map_err(|_| format!("{name}: \"{text}\" is not a number"))?;
    }
    let [from, bucket, to] = numbers;
    switch
        .with_datapath(|datapath| datapath.move_bucket(from, bucket, to))
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    Ok(String::new())
}
