//! Judges forecasts by scenarios from a seed: `cargo run --release -p sluice-forecast --example sweep [SCENARIOS [FIRST]]` (200 from 0). Waits are simulated.

use forecast::sweep::simulate::Effort;
use forecast::sweep::{Scenario, Summary, judge};

fn main() -> std::process::ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (count, first) = match (numbers.next().transpose(), numbers.next().transpose()) {
        (Ok(count), Ok(first)) => (count.unwrap_or(200), first.unwrap_or(0)),
        _ => {
            eprintln!("usage: sweep [SCENARIOS [FIRST]]");
            return std::process::ExitCode::FAILURE;
        }
    };
    let mut rows = Vec::new();
    for number in first..first + count {
        let scenario = Scenario::new(number);
        match judge(&scenario, Effort::FULL) {
            Err(error) => {
                eprintln!("{error}");
                return std::process::ExitCode::FAILURE;
            }
            Ok(row) => {
                println!(
                    "{:>3} {:<82} {:>10.1} us +-{:>4.1}% | {:<10} {:>10.1} us ({:.1} to {:.1}) {}{}{}",
                    number,
                    row.text,
                    row.measured.value * 1e6,
                    row.measured.half_width() * 100.0,
                    row.forecast.model.name(),
                    row.forecast.wait.value * 1e6,
                    row.forecast.wait.low * 1e6,
                    row.forecast.wait.high * 1e6,
                    if row.within { "" } else { "OFF " },
                    if row.held { "" } else { "MISSED " },
                    row.forecast.cannot_tell.as_deref().unwrap_or("")
                );
                rows.push(row);
            }
        }
    }
    let summary = Summary::of(&rows);
    println!(
        "\n{} scenarios (simulated): {} within 10%; {} of {} intervals hold; median half-width {:.1}%; cannot tell {}; measured mean not known to 3%: {}; hardly any wait: {}",
        summary.scenarios,
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
