//! A prediction for people.

use crate::Prediction;
use crate::machine::{Machine, STILL};
use crate::spread::Spread;
use std::fmt::Write;

/// What ports are, and what they are not.
pub const PORTS: &str = "ports are measured as DPDK's net_pcap in and net_null out; kernel interfaces and vhost-user are not calibrated";
/// Paths that are told; programs get all.
const PATHS: usize = 20;

/// Tables, paths and stages, and the sum.
pub fn text(prediction: &Prediction) -> String {
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
    let stages = prediction
        .stages
        .iter()
        .map(|stage| vec![stage.name.clone(), format!("{:.1}", stage.cycles)]);
    lay_out(&mut text, &["stage", "cycles per packet"], stages.collect());
    let _ = writeln!(text, "\n{}", figure(prediction.cycles, "cycles per packet"));
    let _ = writeln!(text, "{}", figure(prediction.mpps, "Mpps on one core"));
    text.push('\n');
    if let Some(remembers) = &prediction.remembers {
        let _ = writeln!(text, "cache of walks: {remembers}");
    }
    text + &machine_text(&prediction.machine)
}

/// How fast the machine was, and whether it was the same all the while.
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

/// `0 > 1 > 2: port 3`, with runs of one table shortened.
fn way(tables: &[u8], end: &str) -> String {
    let mut names: Vec<String> = tables.iter().take(40).map(u8::to_string).collect();
    if tables.len() > names.len() {
        names.push("...".to_owned());
    }
    format!("{}: {end}", names.join(" > "))
}

/// Lines of cells, all but the last of which stand at the right of their column.
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
