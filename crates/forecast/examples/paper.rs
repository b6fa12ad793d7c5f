//! The paper's model at queue rates it was not fitted to: `cargo run --release -p sluice-forecast
//! --example paper`. Waits are simulated (the shaper in virtual time).
//!
//! Utilization and group are what the shaper recorded in the first quarter of each run; the mean
//! wait is that of the rest. Senders that fill the queue are the paper's experiment (figure 4: one
//! TCP flow, 1500-byte packets); Poisson arrivals are what its model assumes.

use forecast::choose::{Question, forecast};
use forecast::model::Model;
use forecast::seen::Past;
use forecast::sweep::simulate::{Effort, HORIZON, measure};
use forecast::sweep::source::Source;
use forecast::sweep::{RESOLUTION, Scenario};

fn main() {
    println!(
        "paper d, figure 4: 19.22 ms at 500 Mbit/s (kernel HTB, groups of 16), which needs rho 0.980: at 0.975 and 0.985 its model says 15.4 and 25.6 ms\n"
    );
    println!(
        "{:<34} {:>8} {:>9} {:>6} {:>34} {:>22} {:>10} {:>10}",
        "what comes",
        "Mbit/s",
        "rho",
        "group",
        "paper mode (95% by rho's error)",
        "chosen",
        "says",
        "simulated"
    );
    let tcp = |round_trip_ns| Source::Windows {
        senders: 1,
        round_trip_ns,
        adaptive: true,
    };
    for (name, source, load, limit) in [
        (
            "one adaptive window, 1000 packets",
            tcp(1_000_000),
            1.0,
            Some(1000),
        ),
        (
            "one adaptive window, 100 packets",
            tcp(1_000_000),
            1.0,
            Some(100),
        ),
        ("Poisson at 98%", Source::Poisson, 0.98, None),
        ("Poisson at 80%", Source::Poisson, 0.80, None),
    ] {
        for rate in [100, 250, 500, 750, 1000] {
            let scenario = Scenario {
                number: rate,
                rate: rate * 1_000_000,
                load,
                source,
                mix: 0,
                burst: 0,
                limit,
            };
            if let Err(error) = show(name, &scenario) {
                eprintln!("{name}, {rate} Mbit/s: {error}");
            }
        }
    }
}

fn show(name: &str, scenario: &Scenario) -> Result<(), String> {
    let run = measure(scenario, Effort::FULL)?;
    let past = Past::of(&run.seen).ok_or("nothing came")?;
    let mut server = scenario.server();
    server.group = past.group.unwrap_or(1.0);
    let answer = forecast(&Question {
        server: &server,
        load: &past.load,
        waited: Some(&past.waited),
        horizon: HORIZON,
        resolution: RESOLUTION,
    })
    .map_err(|error| error.to_string())?;
    let paper = answer
        .candidates
        .iter()
        .find(|one| one.model == Model::Paper)
        .ok_or("no paper mode")?;
    let ms = |seconds: f64| match seconds.is_finite() {
        true => format!("{:.3}", seconds * 1e3),
        false => "without end".into(),
    };
    println!(
        "{name:<34} {:>8} {:>9.4} {:>6.1} {:>34} {:>22} {:>7} ms {:>7} ms",
        scenario.rate / 1_000_000,
        answer.utilization.value,
        server.group,
        format!(
            "{} ms ({} to {})",
            ms(paper.wait.value),
            ms(paper.wait.low),
            ms(paper.wait.high)
        ),
        answer.model.name(),
        ms(answer.wait.value),
        ms(run.measured.value)
    );
    Ok(())
}
