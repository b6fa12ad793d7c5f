//! `sluice/stages`: what workers' cycles go to, by stage of their work, counted by the time stamp
//! counter.

use super::Commands;
use crate::switch::Switch;
use datapath::clock::cycles_per_second;
use datapath::stages::{Report, Stage};
use datapath::{WorkerStages, change_cycles};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// How often workers are asked, and how long apart, whether they have ended a turn since the
/// command came: what a worker sleeps is counted when it wakes.
const LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_micros(400);

pub(super) fn register(commands: &Commands) {
    commands.later(
        "sluice/stages",
        "on|off|clear|show [--json]",
        (1, 2),
        |switch, words, reply| {
            let act = match Act::read(&words) {
                Ok(act) => act,
                Err(error) => return reply.error(error),
            };
            let done = switch.with_datapath(|datapath| match act {
                Act::Set(on) => datapath.account_stages(on),
                Act::Clear => datapath.clear_stages(),
                Act::Show { .. } => {}
            });
            if let Err(error) = done {
                return reply.error(error.to_string());
            }
            let Act::Show { as_json } = act else {
                return reply.ok(String::new());
            };
            crate::turns::spawn("stages", async move {
                settle(&switch).await;
                let shown = Shown::read(&switch);
                reply.ok(match as_json {
                    true => format!("{}\n", shown.json()),
                    false => shown.text(),
                });
            });
        },
    );
}

/// What the command is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Set(bool),
    Clear,
    Show { as_json: bool },
}

impl Act {
    fn read(words: &[String]) -> Result<Act, String> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let json = words.iter().position(|word| *word == "--json");
        json.map(|at| words.remove(at));
        let as_json = json.is_some();
        match words[..] {
            ["show"] => Ok(Act::Show { as_json }),
            ["on" | "off" | "clear"] if as_json => Err(format!(
                "{}: has nothing to say in JSON; only \"show\" has",
                words[0]
            )),
            ["on"] => Ok(Act::Set(true)),
            ["off"] => Ok(Act::Set(false)),
            ["clear"] => Ok(Act::Clear),
            [] => Err("on, off, clear or show is missing".into()),
            [word] => Err(format!("{word}: not on, off, clear or show")),
            [_, word, ..] => Err(format!("{word}: one argument too many")),
        }
    }
}

/// Waits until workers have ended a turn, which takes those that sleep until they have been woken;
/// not longer than [`LOOKS`] times [`LOOK`].
async fn settle(switch: &Switch) {
    let ends = || {
        let read = switch.with_datapath(|datapath| {
            datapath.nudge_workers();
            let ends = |worker: &WorkerStages| worker.report.map(|report| report.elapsed);
            let on = datapath.accounts_stages();
            on.then(|| datapath.stages().iter().map(ends).collect::<Vec<_>>())
        });
        read.unwrap_or_default()
    };
    let Some(before) = ends() else { return };
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        match ends() {
            Some(now) if now.len() == before.len() => {
                let mut pairs = now.iter().zip(&before);
                if pairs.all(|(now, before)| now.is_some() && now != before) {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// What is shown, of all workers.
pub(crate) struct Shown {
    on: bool,
    workers: Vec<WorkerStages>,
}

/// Returns the packets that a thread has had in hand: received, and taken from others.
pub(crate) fn packets_of(report: &Report) -> u64 {
    report.of(Stage::Receive).packets + report.of(Stage::Handover).packets
}

impl Shown {
    /// Reads what workers have counted so far.
    pub fn read(switch: &Switch) -> Shown {
        let read = switch.with_datapath(|datapath| (datapath.accounts_stages(), datapath.stages()));
        let (on, workers) = read.unwrap_or_default();
        Shown { on, workers }
    }

    /// Returns whether there is anything to show: the account is on, or was.
    pub fn is_something(&self) -> bool {
        self.on || self.reports().next().is_some()
    }

    /// Returns what was counted, with the workers' names and processors.
    pub fn reports(&self) -> impl Iterator<Item = (&WorkerStages, &Report)> {
        let workers = self.workers.iter();
        workers.filter_map(|worker| Some((worker, worker.report.as_ref()?)))
    }

    /// Returns the sum over workers, and the packets that came into the switch.
    fn total(&self) -> (Report, u64) {
        let sum = self.reports().map(|(_, report)| report);
        let sum = sum.fold(Report::default(), |sum, report| sum.plus(report));
        (sum, sum.of(Stage::Receive).packets)
    }

    /// Returns it as JSON.
    pub fn json(&self) -> Value {
        let worker = |(worker, report): (&WorkerStages, &Report)| {
            let mut told = json!({"name": worker.name, "cpu": worker.cpu});
            extend(&mut told, report, packets_of(report));
            told
        };
        let mut total = json!({});
        let (sum, packets) = self.total();
        extend(&mut total, &sum, packets);
        json!({
            "on": self.on,
            "tsc_hz": cycles_per_second(),
            "change_cycles": rounded(change_cycles()),
            "workers": self.reports().map(worker).collect::<Vec<_>>(),
            "total": total,
        })
    }

    /// Returns it as text: a table for each worker, and one for all where there are several.
    fn text(&self) -> String {
        let mut text = format!(
            "stages: {}; time stamp counter: {} cycles/s; a change of stage takes {:.1} cycles\n",
            if self.on { "on" } else { "off" },
            cycles_per_second(),
            change_cycles(),
        );
        let mut count = 0;
        for (worker, report) in self.reports() {
            let cpu = worker.cpu.map(|cpu| format!(" on CPU {cpu}"));
            let name = format!("{}{}", worker.name, cpu.unwrap_or_default());
            table(&mut text, &name, report, packets_of(report));
            count += 1;
        }
        if count > 1 {
            let (sum, packets) = self.total();
            table(&mut text, &format!("all {count} workers"), &sum, packets);
        }
        text
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Returns by how many percent the stages' cycles differ from those that have passed.
fn difference(report: &Report) -> f64 {
    match report.elapsed {
        0 => 0.0,
        elapsed => (report.sum() as f64 - elapsed as f64) / elapsed as f64 * 100.0,
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Adds a report's figures to an object.
fn extend(told: &mut Value, report: &Report, packets: u64) {
    let stage = |stage: &Stage| {
        let tally = report.of(*stage);
        json!({
            "name": stage.name(),
            "cycles": tally.cycles,
            "calls": tally.calls,
            "packets": tally.packets,
            "cycles_per_packet": ratio(tally.cycles, packets).map(rounded),
        })
    };
    told["packets"] = packets.into();
    told["elapsed_cycles"] = report.elapsed.into();
    told["stage_cycles"] = report.sum().into();
    told["difference_percent"] = rounded(difference(report)).into();
    told["idle_cycles"] = idle(report).into();
    told["empty_polls"] = report.of(Stage::EmptyPolls).calls.into();
    told["changes"] = report.changes.into();
    told["stages"] = Stage::ALL.iter().map(stage).collect::<Vec<_>>().into();
}

fn idle(report: &Report) -> u64 {
    let idle = Stage::ALL.iter().filter(|stage| stage.is_idle());
    idle.map(|stage| report.of(*stage).cycles).sum()
}

/// Writes a report: its stages, their sum, and the time that has passed.
fn table(text: &mut String, name: &str, report: &Report, packets: u64) {
    let seconds = report.elapsed as f64 / cycles_per_second() as f64;
    let rate = packets as f64 / seconds.max(1e-9);
    let _ = writeln!(
        text,
        "{name}: {packets} packets in {seconds:.3} s, {rate:.0} a second\n\
         {:<12} {:>13} {:>7} {:>16} {:>14} {:>12} {:>13}",
        "stage", "cycles/packet", "share", "cycles", "packets", "calls", "cycles/its"
    );
    let share = |cycles| ratio(cycles, report.elapsed).unwrap_or(0.0) * 100.0;
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
    for stage in Stage::ALL {
        let tally = report.of(stage);
        if tally.cycles == 0 && tally.calls == 0 {
            continue;
        }
        let _ = writeln!(
            text,
            "{:<12} {:>13} {:>6.2}% {:>16} {:>14} {:>12} {:>13}",
            stage.name(),
            number(ratio(tally.cycles, packets)),
            share(tally.cycles),
            tally.cycles,
            tally.packets,
            tally.calls,
            number(ratio(tally.cycles, tally.packets)),
        );
    }
    let sum = report.sum();
    let cost = (report.changes as f64 * change_cycles()) as u64;
    let mut line = |name: &str, cycles: u64, note: String| {
        let _ = writeln!(
            text,
            "{name:<12} {:>13} {:>6.2}% {cycles:>16}  {note}",
            number(ratio(cycles, packets)),
            share(cycles),
        );
    };
    line("sum", sum, format!("of which idle: {}", idle(report)));
    let note = format!(
        "the sum differs from it by {:.3}%; empty polls: {}",
        difference(report),
        report.of(Stage::EmptyPolls).calls
    );
    line("elapsed", report.elapsed, note);
    let note = format!("within the above: {} changes of stage", report.changes);
    line("account", cost, note);
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::stages::Tally;

    fn read(words: &[&str]) -> Result<Act, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Act::read(&words)
    }

    #[test]
    fn words_that_are_none_of_its_own_are_named() {
        assert_eq!(read(&["on"]), Ok(Act::Set(true)));
        assert_eq!(read(&["off"]), Ok(Act::Set(false)));
        assert_eq!(read(&["clear"]), Ok(Act::Clear));
        assert_eq!(read(&["show"]), Ok(Act::Show { as_json: false }));
        for words in [["--json", "show"], ["show", "--json"]] {
            assert_eq!(read(&words), Ok(Act::Show { as_json: true }));
        }
        for (words, named) in [
            (&["of"][..], "of: not on, off, clear or show"),
            (&["show", "all"], "all: one argument too many"),
            (&["--json"], "on, off, clear or show is missing"),
            (&["--jsn"], "--jsn: not on, off, clear or show"),
            (
                &["on", "--json"],
                "on: has nothing to say in JSON; only \"show\" has",
            ),
        ] {
            assert_eq!(read(words), Err(named.to_owned()));
        }
    }

    fn worker(name: &str, report: Option<Report>) -> WorkerStages {
        WorkerStages {
            name: name.into(),
            cpu: None,
            report,
        }
    }

    fn report(packets: u64) -> Report {
        let mut report = Report {
            changes: 4,
            elapsed: 1000,
            ..Report::default()
        };
        let mut set = |stage: Stage, cycles, calls, packets| {
            report.tallies[stage as usize] = Tally {
                cycles,
                calls,
                packets,
            };
        };
        set(Stage::Receive, 400, 1, packets);
        set(Stage::Send, 350, 1, packets);
        set(Stage::EmptyPolls, 240, 7, 0);
        report
    }

    #[test]
    fn figures_add_up() {
        let shown = Shown {
            on: true,
            workers: vec![
                worker("one", Some(report(10))),
                worker("two", Some(report(0))),
                worker("new", None),
            ],
        };
        let told = shown.json();
        let (one, total) = (&told["workers"][0], &told["total"]);
        assert_eq!(told["workers"].as_array().map(Vec::len), Some(2));
        assert_eq!(one["stages"][0]["name"], "receive");
        assert_eq!(one["stages"][0]["cycles_per_packet"], 40.0);
        assert_eq!(one["stage_cycles"], 990);
        assert_eq!(one["difference_percent"], -1.0);
        assert_eq!(one["idle_cycles"], 240);
        assert_eq!(one["empty_polls"], 7);
        assert_eq!(
            told["workers"][1]["stages"][0]["cycles_per_packet"],
            Value::Null
        );
        assert_eq!(total["packets"], 10);
        assert_eq!(total["elapsed_cycles"], 2000);
        let text = shown.text();
        assert!(text.contains("all 2 workers"), "{text}");
        assert!(text.contains("the sum differs from it by -1.000%; empty polls: 14"));
        assert!(!text.contains("tunnel"), "nothing had a tunnel:\n{text}");
    }

    #[test]
    fn there_is_nothing_to_show_before_it_was_on() {
        let shown = |on, report| Shown {
            on,
            workers: vec![worker("one", report)],
        };
        assert!(!shown(false, None).is_something());
        assert!(shown(true, None).is_something());
        assert!(shown(false, Some(report(1))).is_something());
        assert!(shown(true, None).text().starts_with("stages: on;"));
    }
}
