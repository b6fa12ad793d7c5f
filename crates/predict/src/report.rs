//! Formats a prediction as text.

use crate::Prediction;
use crate::machine::{Machine, STILL};
use crate::spread::Spread;
use std::fmt::Write;

/// Most paths printed; JSON output has all.
const PATHS: usize = 20;

/// Returns the result with advice, and then its derivation: tables, paths and stages. If the
/// machine was not constant, figures are included only with `anyway`.
pub fn text(prediction: &Prediction, anyway: bool) -> String {
    let told = anyway || prediction.machine.stood_still();
    let mut text = answer(prediction, told);
    for line in advice(prediction) {
        let _ = writeln!(text, "- {line}");
    }
    text + &details(prediction, told)
}

/// Returns the packets per second of a core, or why they are left out.
fn answer(prediction: &Prediction, told: bool) -> String {
    if told {
        return format!(
            "{}\n{}\n",
            figure(prediction.mpps, "Mpps on one core"),
            figure(prediction.cycles, "cycles per packet")
        );
    }
    let machine = &prediction.machine;
    format!(
        "unreliable, run again: the machine's speed moved by {:.0}% while this was measured\n",
        machine.moved.max(machine.memory_moved) * 100.0
    )
}

/// A stage with this share of all cycles is worth looking at.
const LARGE: f64 = 0.4;
/// A table is slow if a packet compares more rules one by one, or tries more hash tables.
const MANY: f64 = 12.0;

/// Returns advice for better performance, and remarks on unusual packets.
pub fn advice(prediction: &Prediction) -> Vec<String> {
    let trace = &prediction.trace;
    let mut lines = Vec::new();
    if trace.out_ports.is_empty() {
        lines.push(
            "warning: all packets are dropped, so this is the cost of dropping them. Rules that \
             look at in_port meet packets of --in-port only (1 where nothing is said), and names \
             of ports have numbers by --ports NAME=NUMBER"
                .to_owned(),
        );
    }
    if !prediction.machine.stood_still() {
        lines.push(
            "others use this machine, or its clock changes: predict when it is quiet, on a \
             processor of its own (--cpu), with more --rounds; sluice predict machine shows when \
             it stands still"
                .to_owned(),
        );
    }
    let slow = trace
        .paths
        .iter()
        .take(PATHS)
        .find(|path| path.probes > MANY);
    if let Some(path) = slow {
        lines.push(format!(
            "packets of path {} try {:.0} hash tables: rules that look at the same fields with \
             the same masks share one",
            way(&path.tables, &path.end),
            path.probes
        ));
    }
    let all: f64 = prediction.stages.iter().map(|stage| stage.cycles).sum();
    let largest = prediction
        .stages
        .iter()
        .max_by(|a, b| a.cycles.total_cmp(&b.cycles));
    if let Some(stage) = largest.filter(|stage| all > 0.0 && stage.cycles / all >= LARGE) {
        let what = match stage.name.as_str() {
            "receive" | "send" => {
                "ports cost most, and rules cannot change that: more cores \
                                   (pmd-cpu-mask) and queues (n_rxq) carry more"
            }
            name if name.starts_with("lookup") => {
                "lookups cost most: fewer masks in that table, or fewer tables on the way"
            }
            _ => {
                "actions and counting cost most: fewer edits and tables on the way, or more cores \
                  (pmd-cpu-mask)"
            }
        };
        let share = stage.cycles / all * 100.0;
        lines.push(format!(
            "{share:.0}% of the cycles are \"{}\"; {what}",
            stage.name
        ));
    }
    lines
}

/// Returns the derivation of the result.
fn details(prediction: &Prediction, told: bool) -> String {
    let mut text = String::new();
    let trace = &prediction.trace;
    let _ = writeln!(
        text,
        "\nA packet is looked up {:.2} times and reads {:.1} cache lines of rules\n",
        trace.lookups, trace.lines
    );
    if trace.fused > 0 {
        let _ = writeln!(
            text,
            "Behind {} rules stages are made one, so that a worker makes fewer of these lookups; the sum of cycles is measured so\n",
            trace.fused
        );
    }
    let share = |packets: u64| packets as f64 / trace.packets.max(1) as f64;
    let tables = trace.tables.iter().map(|table| {
        vec![
            table.table.to_string(),
            table.template.clone(),
            table.rules.to_string(),
            format!("{:.3}", share(table.lookups)),
            format!(
                "{:.1}%",
                table.matches as f64 / table.lookups.max(1) as f64 * 100.0
            ),
            format!("{:.1}", table.lines),
            table.lines_max.to_string(),
        ]
    });
    let head = [
        "table",
        "lookup by",
        "rules",
        "per packet",
        "found",
        "lines",
        "at most",
    ];
    lay_out(&mut text, &head, tables.collect());
    text.push('\n');
    let paths = trace.paths.iter().take(PATHS).map(|path| {
        vec![
            format!("{:.1}%", share(path.packets) * 100.0),
            path.tables.len().to_string(),
            format!("{:.1}", path.compares),
            format!("{:.1}", path.probes),
            format!("{:.1}", path.lines),
            path.lines_max.to_string(),
            way(&path.tables, &path.end),
        ]
    });
    let head = [
        "packets", "lookups", "compares", "probes", "lines", "at most", "path",
    ];
    lay_out(&mut text, &head, paths.collect());
    if trace.paths.len() > PATHS {
        let _ = writeln!(text, "and {} more paths", trace.paths.len() - PATHS);
    }
    text.push('\n');
    if told {
        let stages = prediction
            .stages
            .iter()
            .map(|stage| vec![stage.name.clone(), format!("{:.1}", stage.cycles)]);
        lay_out(&mut text, &["stage", "cycles per packet"], stages.collect());
        text.push('\n');
    }
    if let Some(remembers) = &prediction.remembers {
        let _ = writeln!(text, "cache of walks: {remembers}");
    }
    text + &machine_text(&prediction.machine)
}

/// Describes how fast the machine was, and whether it was constant.
pub fn machine_text(machine: &Machine) -> String {
    let mut text = format!(
        "this machine: {}, {}\n",
        figure(machine.additions, "additions a ns"),
        figure(machine.memory_ns, "ns to load a line past its own caches"),
    );
    let moved = [
        ("the processor", machine.moved),
        ("shared cache and memory", machine.memory_moved),
    ];
    for (what, moved) in moved.into_iter().filter(|(_, moved)| *moved > STILL) {
        let _ = writeln!(
            text,
            "note: the speed of {what} moved by {:.0}% while this was measured",
            moved * 100.0
        );
    }
    text
}

fn figure(spread: Spread, unit: &str) -> String {
    format!(
        "{:.1} {unit} ({:.1} to {:.1})",
        spread.median, spread.low, spread.high
    )
}

/// Formats `0 > 1 > 2: port 3`, abbreviating consecutive visits of one table.
fn way(tables: &[u8], end: &str) -> String {
    let mut names: Vec<String> = tables.iter().take(40).map(u8::to_string).collect();
    if tables.len() > names.len() {
        names.push("...".to_owned());
    }
    format!("{}: {end}", names.join(" > "))
}

/// Lays out rows in columns, right-aligned except for the last one.
fn lay_out(text: &mut String, head: &[&str], rows: Vec<Vec<String>>) {
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]);
        cells
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let last = row.len() - 1;
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| match column {
                0 => format!("{cell:<width$}", width = widths[0]),
                column if column == last => cell.clone(),
                column => format!("{cell:>width$}", width = widths[column]),
            })
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stage;
    use crate::trace::Trace;
    use std::collections::BTreeMap;

    fn prediction(moved: f64, sent: u64) -> Prediction {
        let stage = |name: &str, cycles: f64| Stage {
            name: name.into(),
            cycles,
        };
        Prediction {
            trace: Trace {
                packets: 10,
                paths: Vec::new(),
                tables: Vec::new(),
                out_ports: BTreeMap::from_iter((sent > 0).then_some((2, sent))),
                lookups: 1.0,
                lines: 2.0,
                fused: 0,
                keys: BTreeMap::new(),
            },
            stages: vec![stage("receive", 10.0), stage("lookup in table 3", 90.0)],
            cycles: Spread::exact(100.0),
            mpps: Spread::exact(25.0),
            remembers: None,
            machine: Machine {
                moved,
                ..Machine::default()
            },
            hz: 2_500_000_000,
        }
    }

    #[test]
    fn the_answer_comes_first() {
        let told = text(&prediction(0.01, 10), false);
        assert!(
            told.starts_with("25.0 Mpps on one core (25.0 to 25.0)\n100.0 cycles"),
            "{told}"
        );
        assert!(
            told.contains("- 90% of the cycles are \"lookup in table 3\""),
            "{told}"
        );
        assert!(
            !told.contains("dropped") && told.contains("stage"),
            "{told}"
        );
    }

    #[test]
    fn a_machine_that_moved_gives_no_figure() {
        let told = text(&prediction(0.25, 10), false);
        assert!(told.starts_with("unreliable, run again: the machine's speed moved by 25%"));
        assert!(
            !told.contains("Mpps") && !told.contains("cycles per packet"),
            "{told}"
        );
        // Counts are valid all the same, and the figure is available on request.
        assert!(told.contains("looked up 1.00 times"));
        assert!(text(&prediction(0.25, 10), true).starts_with("25.0 Mpps"));
    }

    #[test]
    fn packets_that_all_drop_are_warned_about() {
        let told = text(&prediction(0.0, 0), false);
        assert!(
            told.contains("- warning: all packets are dropped"),
            "{told}"
        );
        assert!(
            told.contains("--in-port") && told.contains("--ports NAME=NUMBER"),
            "{told}"
        );
    }
}
