//! `sluice predict message`: how to divide messages into packets.

use super::units::{rate, show, size, time};
use crate::output::outln;
use anyhow::{Result, bail};
use clap::Args;
use forecast::message::{Groups, Plan, advise, deliver};

/// A queue that sends in groups, and messages.
#[derive(Args)]
pub struct MessageOptions {
    /// Rate of the queue, in bit/s, such as 100M
    #[arg(long, value_parser = rate)]
    rate: f64,
    /// Packets that the queue sends at once (`ovs-appctl qos/predict` measures it)
    #[arg(long)]
    group: u32,
    /// Size of every packet, in bytes
    #[arg(long, value_parser = size, default_value = "1500")]
    size: f64,
    /// Number of packets of data
    #[arg(long, requires = "command")]
    data: Option<u32>,
    /// Number of packets of the command that says what to do with the data
    #[arg(long, requires = "data")]
    command: Option<u32>,
    /// A plan to compare: 15+5 (one message after the other, the last is the command), 7|8|5
    /// (packets of the messages alternate) or 20 (one message); may be repeated
    #[arg(long)]
    plan: Vec<String>,
    /// How long the receiver processes the data before it can carry out the command
    #[arg(long, value_parser = time, default_value = "0ms")]
    work: f64,
    /// The queue's token bucket is full, so that the first group leaves immediately
    #[arg(long)]
    ready: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Computes and prints the advice.
pub fn run(options: &MessageOptions) -> Result<()> {
    let groups = Groups {
        rate: options.rate,
        size: options.size,
        group: options.group,
        ready: options.ready,
    };
    let plans: Vec<Plan> = options
        .plan
        .iter()
        .map(|text| Plan::parse(text))
        .collect::<Result<_, _>>()?;
    let (deliveries, advice) = match (options.data, options.command) {
        (Some(data), Some(command)) => {
            let advice = advise(&groups, data, command, options.work, &plans)?;
            (advice.plans.clone(), Some(advice))
        }
        _ if plans.is_empty() => bail!("--data and --command, or a --plan, are missing"),
        _ => {
            let all: Result<Vec<_>, _> = plans
                .iter()
                .map(|plan| deliver(&groups, plan, options.work))
                .collect();
            (all?, None)
        }
    };
    if options.json {
        outln!(
            "{}",
            serde_json::json!({"groups": groups, "period": groups.period(), "plans": deliveries, "advice": advice})
        );
        return Ok(());
    }
    outln!(
        "{} packets leave together, every {}.",
        groups.group,
        show(groups.period())
    );
    outln!(
        "{:<12} {:>12} {:>12} {:>12}",
        "plan",
        "data there",
        "command",
        "done"
    );
    for one in &deliveries {
        let free = if one.rides_free {
            "  the command rides for free"
        } else {
            ""
        };
        outln!(
            "{:<12} {:>12} {:>12} {:>12}{free}",
            one.plan,
            show(one.data),
            show(one.command),
            show(one.done)
        );
    }
    if let (Some(advice), Some(best)) = (advice, deliveries.first()) {
        outln!(
            "Send {}: {}. Against one message it gains {}.",
            best.plan,
            advice.words,
            show(advice.gain)
        );
    }
    Ok(())
}
