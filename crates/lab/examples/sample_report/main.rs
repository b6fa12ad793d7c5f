//! Writes sample reports, to look at and to test in a browser:
//!
//!     cargo run -p sluice-lab --example sample_report -- DIRECTORY
//!
//! `sample.html` is what a run might give, `compared.html` the same beside an earlier run,
//! `adversarial.html` what no run should, `empty.html` nothing. Prints a line for each: its name
//! and how many plots its experiments ask for.

mod samples;

use lab::report;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("which directory?")?;
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory)?;
    let plausible = samples::plausible(1.0);
    let earlier = samples::plausible(0.93);
    let adversarial = samples::adversarial();
    let empty = samples::empty();
    for (name, results, earlier) in [
        ("sample", &plausible, None),
        ("compared", &plausible, Some(&earlier)),
        ("adversarial", &adversarial, Some(&earlier)),
        ("empty", &empty, None),
    ] {
        std::fs::write(
            directory.join(format!("{name}.html")),
            report::html(results, earlier),
        )?;
        std::fs::write(directory.join(format!("{name}.txt")), report::text(results))?;
        let plots: usize = results.experiments.iter().map(|e| e.plots.len()).sum();
        println!("{name} {plots}");
    }
    for (number, (experiment, _, svg)) in report::plots(&plausible).iter().enumerate() {
        std::fs::write(
            directory.join(format!("{number}-{}.svg", experiment.id)),
            svg,
        )?;
    }
    Ok(())
}
