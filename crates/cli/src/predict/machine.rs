//! `sluice predict machine`: measures how fast this machine is now.

use super::processor;
use crate::output::{out, outln};
use ::predict::machine::{Machine, Watch};
use ::predict::report::machine_text;
use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;

/// Where to look, and how often.
#[derive(Args)]
pub struct MachineOptions {
    /// Number of the processor to measure [default: the last one that this command may use]
    #[arg(long)]
    cpu: Option<usize>,
    /// Number of measurements, 1 to 10000, of about a millisecond each
    #[arg(long, default_value_t = 25)]
    readings: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures and prints the result.
pub fn run(options: &MachineOptions) -> Result<()> {
    ensure!(
        (1..=10_000).contains(&options.readings),
        "--readings {}: must be a number from 1 to 10000",
        options.readings
    );
    let cpu = processor(options.cpu)?;
    let mut watch = Watch::new(Some(cpu));
    (0..options.readings).try_for_each(|_| watch.look())?;
    let machine = Machine::of(&watch.into_readings());
    match options.json {
        true => outln!("{}", json!({ "cpu": cpu, "machine": machine })),
        false => out!("processor {cpu} of {}", machine_text(&machine)),
    }
    Ok(())
}
