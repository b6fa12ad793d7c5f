//! `sluice top`: ports, workers, tables and drops of a running daemon, live.

use crate::appctl::{Appctl, run_directory, socket_in};
use crate::stats::{Stats, per_second, worker_rates};
use anyhow::Result;
use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Row, Table};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to watch, and how.
#[derive(Args)]
pub struct TopOptions {
    /// The daemon's unixctl socket [default: found in OVS_RUNDIR]
    #[arg(long, short)]
    pub target: Option<PathBuf>,
    /// Seconds between readings, 0.1 to 3600
    #[arg(long, short, default_value_t = 1.0)]
    pub interval: f64,
    /// Print this many readings as text and end; without a terminal, 1
    #[arg(long, short = 'n')]
    pub count: Option<u32>,
}

/// A table as lines of cells, drawn by the terminal and by the text mode alike.
struct Section {
    title: &'static str,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// Rates in three digits and a unit: 27.5M.
fn short(value: f64) -> String {
    for (limit, unit) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= limit {
            let scaled = value / limit;
            return if scaled < 10.0 {
                format!("{scaled:.2}{unit}")
            } else if scaled < 100.0 {
                format!("{scaled:.1}{unit}")
            } else {
                format!("{scaled:.0}{unit}")
            };
        }
    }
    format!("{value:.0}")
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn sections(before: &Stats, after: &Stats) -> Vec<Section> {
    let interval_us = after.time_us.saturating_sub(before.time_us);
    vec![
        ports(before, after, interval_us),
        workers(before, after, interval_us),
        tables(before, after, interval_us),
        drops(before, after, interval_us),
    ]
}

fn ports(before: &Stats, after: &Stats, interval_us: u64) -> Section {
    let rows = after.ports.iter().map(|port| {
        let old = before
            .ports
            .iter()
            .find(|old| old.bridge == port.bridge && old.name == port.name)
            .unwrap_or(port);
        let rate = |old: u64, new: u64| short(per_second(old, new, interval_us));
        vec![
            port.bridge.clone(),
            port.name.clone(),
            port.ofport.to_string(),
            if port.kind.is_empty() {
                "system".to_owned()
            } else {
                port.kind.clone()
            },
            rate(old.rx_packets, port.rx_packets),
            rate(old.rx_bytes * 8, port.rx_bytes * 8),
            rate(old.tx_packets, port.tx_packets),
            rate(old.tx_bytes * 8, port.tx_bytes * 8),
            port.rx_dropped.to_string(),
            port.tx_dropped.to_string(),
        ]
    });
    Section {
        title: "Ports",
        head: vec![
            "bridge", "port", "no", "type", "rx/s", "rx bit/s", "tx/s", "tx bit/s", "rx drop",
            "tx drop",
        ],
        rows: rows.collect(),
    }
}

fn workers(before: &Stats, after: &Stats, interval_us: u64) -> Section {
    let rows = after.workers.iter().map(|worker| {
        let old = before
            .workers
            .iter()
            .find(|old| old.name == worker.name)
            .unwrap_or(worker);
        let rates = worker_rates(old, worker, interval_us, after.tsc_hz);
        vec![
            worker.name.clone(),
            worker
                .cpu
                .map_or_else(|| "any".to_owned(), |cpu| cpu.to_string()),
            format!("{:.1}", rates.busy_percent),
            short(rates.packets_per_s),
            optional(rates.cycles_per_packet),
            optional(rates.batch),
            short(per_second(old.sleeps, worker.sleeps, interval_us)),
        ]
    });
    Section {
        title: "Workers",
        head: vec![
            "worker",
            "core",
            "busy %",
            "packets/s",
            "cycles/packet",
            "batch",
            "sleeps/s",
        ],
        rows: rows.collect(),
    }
}

fn tables(before: &Stats, after: &Stats, interval_us: u64) -> Section {
    let rows = after.tables.iter().map(|table| {
        let old = before
            .tables
            .iter()
            .find(|old| old.bridge == table.bridge && old.id == table.id)
            .unwrap_or(table);
        vec![
            table.bridge.clone(),
            table.id.to_string(),
            table.rules.to_string(),
            table.template.clone(),
            short(per_second(old.lookups, table.lookups, interval_us)),
            short(per_second(old.matches, table.matches, interval_us)),
        ]
    });
    Section {
        title: "Tables",
        head: vec![
            "bridge",
            "table",
            "rules",
            "template",
            "lookups/s",
            "matches/s",
        ],
        rows: rows.collect(),
    }
}

fn drops(before: &Stats, after: &Stats, interval_us: u64) -> Section {
    let rows = after
        .drops
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| {
            let old = before.drops.get(reason).copied().unwrap_or(*count);
            vec![
                reason.clone(),
                count.to_string(),
                short(per_second(old, *count, interval_us)),
            ]
        });
    Section {
        title: "Drops",
        head: vec!["reason", "packets", "per s"],
        rows: rows.collect(),
    }
}

fn widths(section: &Section) -> Vec<usize> {
    (0..section.head.len())
        .map(|column| {
            section
                .rows
                .iter()
                .map(|row| row[column].len())
                .chain([section.head[column].len()])
                .max()
                .unwrap_or(0)
        })
        .collect()
}

fn print(sections: &[Section]) {
    for section in sections {
        let widths = widths(section);
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<String> = cells
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            println!("  {}", cells.join("  ").trim_end());
        };
        println!("{}", section.title);
        line(&mut section.head.iter().copied());
        for row in &section.rows {
            line(&mut row.iter().map(String::as_str));
        }
    }
}

fn draw(frame: &mut Frame<'_>, sections: &[Section], note: &str) {
    let mut heights: Vec<Constraint> = sections
        .iter()
        .map(|section| Constraint::Max(section.rows.len() as u16 + 3))
        .collect();
    heights.push(Constraint::Min(1));
    let areas = Layout::vertical(heights).split(frame.area());
    for (section, area) in sections.iter().zip(areas.iter()) {
        let columns: Vec<Constraint> = widths(section)
            .iter()
            .map(|width| Constraint::Length(*width as u16))
            .collect();
        let bold = Style::default().add_modifier(Modifier::BOLD);
        let table = Table::new(
            section
                .rows
                .iter()
                .map(|row| Row::new(row.iter().map(|cell| Cell::from(cell.as_str())))),
            columns,
        )
        .header(Row::new(section.head.iter().copied()).style(bold))
        .column_spacing(2)
        .block(Block::bordered().title(section.title));
        frame.render_widget(table, *area);
    }
    if let Some(area) = areas.last() {
        frame.render_widget(Line::from(note), *area);
    }
}

/// Shows the daemon's figures until the user or the count ends it.
pub fn run(options: &TopOptions) -> Result<()> {
    anyhow::ensure!(
        (0.1..=3600.0).contains(&options.interval),
        "--interval {}: seconds between 0.1 and 3600 are meant",
        options.interval
    );
    let socket = match &options.target {
        Some(socket) => socket.clone(),
        None => socket_in(&run_directory())?,
    };
    let mut daemon = Appctl::connect(&socket)?;
    let mut read = || Stats::parse(&daemon.call("sluice/stats", &[])?);
    let interval = Duration::from_secs_f64(options.interval);
    let count = options
        .count
        .or((!std::io::stdout().is_terminal()).then_some(1));
    match count {
        Some(count) => {
            let mut before = read()?;
            for _ in 0..count {
                std::thread::sleep(interval);
                let after = read()?;
                print(&sections(&before, &after));
                before = after;
            }
            Ok(())
        }
        None => live(&mut read, interval),
    }
}

fn live(read: &mut dyn FnMut() -> Result<Stats>, interval: Duration) -> Result<()> {
    let mut before = read()?;
    let mut shown = sections(&before, &before);
    let mut terminal = ratatui::try_init()?;
    let mut due = Instant::now() + interval;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &shown, "q to quit")) {
            break Err(error.into());
        }
        match event::poll(due.saturating_duration_since(Instant::now())) {
            Ok(true) => match event::read() {
                Ok(Event::Key(key))
                    if matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                        || key.code == KeyCode::Char('c')
                            && key.modifiers.contains(KeyModifiers::CONTROL) =>
                {
                    break Ok(());
                }
                Ok(_) => continue,
                Err(error) => break Err(error.into()),
            },
            Ok(false) => {}
            Err(error) => break Err(error.into()),
        }
        due = Instant::now() + interval;
        match read() {
            Ok(after) => {
                shown = sections(&before, &after);
                before = after;
            }
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Port;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(short(0.4), "0");
        assert_eq!(short(999.0), "999");
        assert_eq!(short(27_512_345.0), "27.5M");
        assert_eq!(short(1_000.0), "1.00k");
        assert_eq!(short(123.4e9), "123G");
    }

    #[test]
    fn a_port_that_has_just_come_shows_no_rate() {
        let port = Port {
            name: "p".into(),
            rx_packets: 1_000_000,
            ..Port::default()
        };
        let after = Stats {
            time_us: 1_000_000,
            ports: vec![port],
            ..Stats::default()
        };
        let section = ports(&Stats::default(), &after, 1_000_000);
        assert_eq!(section.rows[0][4], "0");
    }

    #[test]
    fn only_reasons_that_dropped_something_are_shown() {
        let mut after = Stats {
            time_us: 2_000_000,
            ..Stats::default()
        };
        after.drops.insert("table_miss".into(), 10);
        after.drops.insert("stack_full".into(), 0);
        let before = Stats {
            drops: [("table_miss".into(), 4)].into(),
            ..Stats::default()
        };
        let section = drops(&before, &after, 2_000_000);
        assert_eq!(section.rows, [["table_miss", "10", "3"]]);
    }
}
