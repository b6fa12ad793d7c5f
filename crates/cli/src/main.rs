//! The command line of `sluice`.

use anyhow::Result;
use clap::{Parser, Subcommand};
use cli::{predict, top, up};

/// Runs and watches the Sluice virtual switch.
#[derive(Parser)]
#[command(name = "sluice", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a database and a switch in a directory of their own, and print the line that makes ovs-* tools talk to them.
    Up(up::UpOptions),
    /// Stop what `up` started.
    Down(up::DownOptions),
    /// Show ports, workers, tables and drops of a running switch, live.
    Top(top::TopOptions),
    /// Say what a file of rules will cost on this machine, without a switch; or how long packets will wait (see the commands below).
    Predict(Box<predict::PredictOptions>),
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let result: Result<()> = match arguments.command {
        Command::Up(options) => up::up(&options),
        Command::Down(options) => up::down(&options),
        Command::Top(options) => top::run(&options),
        Command::Predict(options) => predict::run(&options),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
