//! Judges forecasts by generated scenarios: `cargo run --release -p sluice-forecast --example sweep
//! [SCENARIOS [FIRST]]` (default: 200 from 1000; models were developed with those below 400). Waits
//! are simulated.

use forecast::sweep::simulate::Effort;
use forecast::sweep::{Row, Scenario, Summary, judge};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first of the scenarios that no model or constant was fitted to.
const HELD_OUT: u64 = 1000;

fn main() -> std::process::ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (count, first) = match (numbers.next().transpose(), numbers.next().transpose()) {
        (Ok(count), Ok(first)) => (count.unwrap_or(200), first.unwrap_or(HELD_OUT)),
        _ => {
            eprintln!("usage: sweep [SCENARIOS [FIRST]]");
            return std::process::ExitCode::FAILURE;
        }
    };
    let next = AtomicU64::new(first);
    let rows: Mutex<Vec<Row>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed = std::thread::scope(|scope| {
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= first + count {
                    return Ok(());
                }
                let row = judge(&Scenario::new(number), Effort::FULL)?;
                show(&row);
                if let Ok(mut rows) = rows.lock() {
                    rows.push(row);
                }
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.filter_map(|end| {
            end.unwrap_or_else(|_| Err("a thread ended".to_owned()))
                .err()
        })
        .collect::<Vec<String>>()
    });
    if !failed.is_empty() {
        eprintln!("{}", failed.join("\n"));
        return std::process::ExitCode::FAILURE;
    }
    let summary = Summary::of(&rows.into_inner().unwrap_or_default());
    println!(
        "\n{} scenarios (simulated, from {first}): the chosen model's own mean is within 10% in {} ({} without those where what was seen goes on), what is said (weighed with what was seen) in {}; {} of {} intervals hold; median half-width {:.1}%; cannot tell {}; measured mean not known to 3%: {}; hardly any wait: {}",
        summary.scenarios,
        summary.own_within,
        summary.modelled_within,
        summary.within,
        summary.intervals.held,
        summary.intervals.judged,
        summary.median_half_width * 100.0,
        summary.cannot_tell,
        summary.imprecise,
        summary.trivial
    );
    println!("model: chosen, alone within 10%");
    for (model, chosen, alone) in &summary.models {
        println!("  {:<10} {chosen:>4} {alone:>4}", model.name());
    }
    std::process::ExitCode::SUCCESS
}

fn show(row: &Row) {
    println!(
        "{:>4} {:<82} {:>10.1} us +-{:>4.1}% | {:<10} {:>10.1} us, said {:>10.1} us ({:.1} to {:.1}) {}{}{}{}",
        row.scenario.number,
        row.text,
        row.measured.value * 1e6,
        row.measured.half_width() * 100.0,
        row.forecast.model.name(),
        row.own * 1e6,
        row.forecast.wait.value * 1e6,
        row.forecast.wait.low * 1e6,
        row.forecast.wait.high * 1e6,
        if row.own_within { "" } else { "MODEL OFF " },
        if row.within { "" } else { "OFF " },
        if row.held { "" } else { "MISSED " },
        row.forecast.cannot_tell.as_deref().unwrap_or("")
    );
}
