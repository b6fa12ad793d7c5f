//! `sluice predict place`: places tasks on ports and computes the queues that serve them.

use super::units::{bits, rate, share, show, show_rate, size, time};
use crate::output::outln;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use forecast::place::{Port, Task, place};
use serde::Deserialize;
use std::path::PathBuf;

/// Demands and ports.
#[derive(Args)]
#[allow(rustdoc::broken_intra_doc_links)] // brackets enclose what may be left out
pub struct PlaceOptions {
    /// A task: NAME:rate=20M,latency=5ms[,burst=200k][,size=1500][,ports=p1/p2]; may be repeated
    #[arg(long = "task", value_name = "TASK")]
    tasks: Vec<String>,
    /// A port: NAME:rate=1G[,reserve=10%]; may be repeated
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<String>,
    /// A JSON file instead of --task and --port: {"tasks": [{"name", "rate", "latency", "size",
    /// "burst", "ports"}], "ports": [{"name", "rate", "reserve"}]}, with rates in bit/s, latencies
    /// in seconds, sizes and bursts in bits, and reserves from 0 to 1
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tasks", "ports"])]
    file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Demands {
    tasks: Vec<Task>,
    ports: Vec<Port>,
}

/// Maximum size of the file in bytes.
const LONGEST: u64 = 16 << 20;

/// Splits a text into the name and the key-value pairs behind it.
fn pairs(text: &str) -> Result<(&str, Vec<(&str, &str)>)> {
    let (name, rest) = text.split_once(':').context("must be NAME:KEY=VALUE,...")?;
    let pair = |pair: &'_ str| -> Result<(usize, usize)> {
        let at = pair
            .find('=')
            .with_context(|| format!("\"{pair}\": must be KEY=VALUE"))?;
        Ok((at, at + 1))
    };
    let mut found: Vec<(&str, &str)> = Vec::new();
    for word in rest.split(',') {
        let (end, begin) = pair(word)?;
        let key = &word[..end];
        ensure!(
            found.iter().all(|(other, _)| *other != key),
            "{key} is there twice"
        );
        found.push((key, &word[begin..]));
    }
    Ok((name, found))
}

fn task(text: &str) -> Result<Task> {
    let (name, pairs) = pairs(text)?;
    let mut task = Task {
        name: name.to_owned(),
        rate: 0.0,
        latency: 0.0,
        size: 1514.0 * 8.0,
        burst: None,
        ports: Vec::new(),
    };
    for (key, value) in pairs {
        let wrong = |error: String| anyhow::anyhow!("{key}: {error}");
        match key {
            "rate" => task.rate = rate(value).map_err(wrong)?,
            "latency" => task.latency = time(value).map_err(wrong)?,
            "size" => task.size = size(value).map_err(wrong)?,
            "burst" => task.burst = Some(bits(value).map_err(wrong)?),
            "ports" => task.ports = value.split('/').map(str::to_owned).collect(),
            _ => bail!("{key} is not known here"),
        }
    }
    Ok(task)
}

fn port(text: &str) -> Result<Port> {
    let (name, pairs) = pairs(text)?;
    let mut port = Port {
        name: name.to_owned(),
        rate: 0.0,
        reserve: 0.0,
    };
    for (key, value) in pairs {
        let wrong = |error: String| anyhow::anyhow!("{key}: {error}");
        match key {
            "rate" => port.rate = rate(value).map_err(wrong)?,
            "reserve" => port.reserve = share(value).map_err(wrong)?,
            _ => bail!("{key} is not known here"),
        }
    }
    Ok(port)
}

fn demands(options: &PlaceOptions) -> Result<Demands> {
    if let Some(file) = &options.file {
        let text = super::text(file, LONGEST)?;
        return serde_json::from_str(&text).with_context(|| file.display().to_string());
    }
    let tasks: Result<Vec<Task>> = options
        .tasks
        .iter()
        .map(|text| task(text).with_context(|| format!("--task {text}")))
        .collect();
    let ports: Result<Vec<Port>> = options
        .ports
        .iter()
        .map(|text| port(text).with_context(|| format!("--port {text}")))
        .collect();
    Ok(Demands {
        tasks: tasks?,
        ports: ports?,
    })
}

/// Places the tasks and prints the result; an error if not all fit.
pub fn run(options: &PlaceOptions) -> Result<()> {
    let demands = demands(options)?;
    let placement = place(&demands.tasks, &demands.ports)?;
    if options.json {
        outln!("{}", serde_json::to_string(&placement)?);
    } else {
        for one in &placement.placed {
            let kind = if one.bound {
                "none longer than"
            } else {
                "99 of 100 at most"
            };
            outln!(
                "{}: queue {} of {}, {}; waits {} on average, {kind} {} of {} allowed",
                one.task,
                one.queue,
                one.port,
                show_rate(one.rate as f64),
                show(one.wait.value),
                show(one.wait.high),
                show(one.latency)
            );
            if let Some(why) = &one.why {
                outln!("  more than it sends, since {why}");
            }
        }
        for (port, left) in &placement.left {
            outln!("{port}: {} left", show_rate(*left));
        }
        for command in &placement.commands {
            outln!("\n{command}");
        }
    }
    if !placement.fits {
        let reasons: Vec<String> = placement
            .unplaced
            .iter()
            .map(|one| format!("{}: {}", one.task, one.reason))
            .collect();
        let search = if placement.complete {
            ""
        } else {
            " (not every way was tried)"
        };
        bail!("does not fit{search}: {}", reasons.join("; "));
    }
    Ok(())
}
