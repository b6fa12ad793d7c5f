//! `sluice predict queue`: the mean wait in one queue.

use super::units::{bits, rate, share, show, show_rate, show_span, size, time};
use crate::appctl::{Appctl, run_directory, socket_in};
use crate::output::{out, outln};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use forecast::choose::{Forecast, Question, forecast};
use forecast::model::{MODELS, Model};
use forecast::queue::{Arrivals, Doubt, Load, Server};
use serde_json::json;
use std::path::PathBuf;

/// A queue and what comes to it.
#[derive(Args)]
pub struct QueueOptions {
    /// Rate of the queue, in bit/s, such as 500M. With --from: another rate to predict for
    #[arg(long, value_parser = rate, required_unless_present = "from")]
    rate: Option<f64>,
    /// Offered load, in bit/s, counting frames without FCS
    #[arg(long, value_parser = rate, conflicts_with = "load")]
    offered: Option<f64>,
    /// Offered load as a share of the queue's rate, such as 0.98 or 98%
    #[arg(long, value_parser = share)]
    load: Option<f64>,
    /// Relative error of the offered load, such as 0.01 or 1%
    #[arg(long, value_parser = share, default_value = "0")]
    error: f64,
    /// Size of every packet, in bytes
    #[arg(long, value_parser = size, default_value = "1500", conflicts_with = "sizes")]
    size: f64,
    /// Sizes of packets in bytes, and their weights, such as 64:7,594:4,1514:1
    #[arg(long, value_name = "BYTES:WEIGHT,...")]
    sizes: Option<String>,
    /// How packets arrive: poisson, periodic, batches:N (N at once on average) or scv:X (squared
    /// coefficient of variation of the gaps)
    #[arg(long, default_value = "poisson")]
    arrivals: String,
    /// Size of the queue's token bucket, in bits, or in bytes with the suffix B
    #[arg(long, value_parser = bits, default_value = "0")]
    burst: f64,
    /// Most packets that may wait in the queue [default: no limit]
    #[arg(long, value_name = "PACKETS")]
    limit: Option<u32>,
    /// Longest wait that the queue allows (max-latency-us), such as 2ms [default: no limit]
    #[arg(long, value_parser = time)]
    bound: Option<f64>,
    /// Packets that leave at once, for the model "paper" (which found 16 for the kernel's HTB, 8
    /// for Open vSwitch's policers)
    #[arg(long, default_value_t = 1)]
    group: u32,
    /// Model to use: paper, batches, replay, cap, sawtooth, dispersion, d/d/1, m/m/1, m/g/1, g/g/1,
    /// m/m/1/k or m/g/1/k [default: chosen by --arrivals]
    #[arg(long)]
    model: Option<String>,
    /// Read a queue of a running switch: INTERFACE or INTERFACE:QUEUE
    #[arg(long, value_name = "INTERFACE[:QUEUE]", conflicts_with_all = ["offered", "load", "model"])]
    from: Option<String>,
    /// Directory of the switch's sockets, for --from [default: $OVS_RUNDIR]
    #[arg(long, requires = "from")]
    directory: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses sizes into bits and weights.
pub(super) fn sizes(text: &str) -> Result<Vec<(f64, f64)>> {
    let one = |pair: &str| -> Result<(f64, f64)> {
        let (len, weight) = pair.split_once(':').unwrap_or((pair, "1"));
        let weight: f64 = weight
            .trim()
            .parse()
            .ok()
            .filter(|weight| *weight > 0.0 && f64::is_finite(*weight))
            .with_context(|| format!("\"{pair}\": the weight must be a number above 0"))?;
        Ok((size(len).map_err(anyhow::Error::msg)?, weight))
    };
    text.split(',').map(one).collect()
}

/// Parses a kind of arrivals.
pub(super) fn arrivals(text: &str) -> Result<Arrivals> {
    let number = |word: &str| {
        word.parse::<f64>()
            .with_context(|| format!("--arrivals {text}: a number must follow the colon"))
    };
    Ok(match text.split_once(':') {
        None if text == "poisson" => Arrivals::Poisson,
        None if text == "periodic" => Arrivals::Periodic,
        Some(("batches", mean)) => Arrivals::Batches(number(mean)?),
        Some(("scv", scv)) => Arrivals::Varying(number(scv)?),
        _ => bail!("--arrivals {text}: must be poisson, periodic, batches:N or scv:X"),
    })
}

/// Predicts and prints the result.
pub fn run(options: &QueueOptions) -> Result<()> {
    if let Some(from) = &options.from {
        return ask(options, from);
    }
    let rate = options.rate.context("--rate is missing")?;
    let offered = match (options.offered, options.load) {
        (Some(offered), _) => offered,
        (None, Some(load)) => load * rate,
        (None, None) => bail!("--offered or --load is missing: what comes to the queue"),
    };
    ensure!(
        options.error < 1.0,
        "--error {}: must be less than 100%",
        options.error
    );
    let sizes = match &options.sizes {
        Some(text) => sizes(text)?,
        None => vec![(options.size, 1.0)],
    };
    let server = Server {
        rate,
        burst: options.burst,
        limit: options.limit.map(f64::from),
        bound: options.bound,
        group: options.group.into(),
        tick: 0.0,
    };
    let mut load = Load {
        sizes,
        doubt: Doubt {
            // Users give the error as a bound that two standard deviations do not exceed.
            rate: options.error / forecast::Z95,
            unevenness: 0.0,
        },
        ..Load::new(offered, 1.0, arrivals(&options.arrivals)?)
    };
    load.packets = offered / load.size();
    let question = Question {
        server: &server,
        load: &load,
        waited: None,
        horizon: f64::INFINITY,
        resolution: 0.0,
    };
    let mut answer = forecast(&question)?;
    if let Some(name) = &options.model {
        believe(&mut answer, name, &server, &load)?;
    }
    if options.json {
        outln!(
            "{}",
            json!({"server": server, "load": load, "forecast": answer})
        );
    } else {
        out!("{}", text(&server, &load, &answer));
    }
    Ok(())
}

/// Replaces the answer by that of another model.
fn believe(answer: &mut Forecast, name: &str, server: &Server, load: &Load) -> Result<()> {
    let names = || MODELS.map(Model::name).join(", ");
    let model = Model::named(name)
        .with_context(|| format!("--model {name}: must be one of {}", names()))?;
    // Gives the reason if the model does not apply.
    model.evaluate(server, load)?;
    let candidate = answer.candidates.iter().find(|one| one.model == model);
    let candidate = candidate.with_context(|| format!("{name} cannot be computed"))?;
    (answer.model, answer.wait, answer.loss) = (model, candidate.wait, candidate.loss);
    answer.reason = "as asked".into();
    if answer.cannot_tell.is_none() && answer.wait.value.is_infinite() {
        answer.cannot_tell = Some("more comes than leaves: the wait grows without end".into());
    }
    Ok(())
}

fn ask(options: &QueueOptions, from: &str) -> Result<()> {
    let directory = options.directory.clone().unwrap_or_else(run_directory);
    let mut daemon = Appctl::connect(&socket_in(&directory)?)?;
    let mut words = Vec::new();
    if options.json {
        words.push("--json");
    }
    let another = options.rate.map(|rate| format!("--rate={rate}"));
    words.extend(another.as_deref());
    match from.rsplit_once(':') {
        Some((interface, queue)) if queue.parse::<u32>().is_ok() => {
            words.extend([interface, queue])
        }
        _ => words.push(from),
    }
    out!("{}", daemon.call("qos/predict", &words)?);
    Ok(())
}

fn text(server: &Server, load: &Load, answer: &Forecast) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let rho = &answer.utilization;
    let doubt = match rho.high > rho.low {
        true => format!(" ({:.2}% to {:.2}%)", rho.low * 100.0, rho.high * 100.0),
        false => String::new(),
    };
    let _ = writeln!(
        text,
        "A queue of {} to which {} come, {:.2}% of it{doubt}, in packets of {:.0} bytes:",
        show_rate(server.rate),
        show_rate(load.rate()),
        rho.value * 100.0,
        load.size() / 8.0
    );
    match &answer.cannot_tell {
        Some(why) => {
            let _ = writeln!(
                text,
                "cannot tell: {why}. {} would say {}.",
                answer.model.name(),
                show_span(&answer.wait)
            );
        }
        None => {
            let _ = writeln!(
                text,
                "packets wait {} on average, by {} ({})",
                show_span(&answer.wait),
                answer.model.name(),
                answer.reason
            );
        }
    }
    if answer.loss > 0.0 {
        let _ = writeln!(text, "of packets {:.3}% are dropped", answer.loss * 100.0);
    }
    if rho.value < 1.0 {
        let _ = writeln!(
            text,
            "an error of 0.1% in what comes changes the wait by {:.1}%",
            0.1 * rho.value / (1.0 - rho.value)
        );
    }
    let _ = writeln!(
        text,
        "{:<12} {:>12} {:>28} {:>9}",
        "model", "mean wait", "interval of 95%", "dropped"
    );
    for one in &answer.candidates {
        let interval = format!("{} to {}", show(one.wait.low), show(one.wait.high));
        let _ = writeln!(
            text,
            "{:<12} {:>12} {interval:>28} {:>8.3}%",
            one.model.name(),
            show(one.wait.value),
            one.loss * 100.0
        );
    }
    let _ = writeln!(
        text,
        "The paper's model counts the packet's own transmission in; the others do not."
    );
    text
}
