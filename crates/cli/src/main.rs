//! The command line of `sluice`.

use anyhow::Result;
use clap::{Parser, Subcommand};
use cli::{r#gen, keep, lab, output, predict, steer, top, up};
use std::io::IsTerminal;

/// Starts, stops, watches and measures the Sluice virtual switch.
#[derive(Parser)]
#[command(name = "sluice", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a database and a switch in a directory of their own, and print the shell commands that
    /// make ovs-* tools use them: eval "$(sluice up DIRECTORY)".
    Up(up::UpOptions),
    /// Stop what `up` started. The next `up` brings back bridges and ports, but not rules, groups
    /// and meters (see save and restart).
    Down(up::DownOptions),
    /// Restart the switch that `up` started, and restore its rules, groups and meters.
    Restart(keep::RestartOptions),
    /// Save the rules, groups and meters of all bridges of a running switch to files.
    Save(keep::KeepOptions),
    /// Replace the rules, groups and meters of a running switch with those that `save` wrote.
    Restore(keep::KeepOptions),
    /// Show ports, queues, workers, tables, drops and the busiest rules of a running switch,
    /// continuously.
    Top(top::TopOptions),
    /// Predict what a file of rules will cost on this machine, without running a switch. The
    /// subcommands predict how long packets wait in queues.
    Predict(Box<predict::PredictOptions>),
    /// Generate traffic: send packets to some ports, receive them from others, and measure loss,
    /// duplicates, reordering and latency.
    Gen(Box<r#gen::GenOptions>),
    /// Steer the packets that a kernel interface receives to processor cores, by flow and load.
    Steer(steer::SteerOptions),
    /// Benchmark switches on this machine, with the built-in experiments or your own.
    Lab(lab::LabOptions),
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| {
        // The first word behind the options that `sluice` itself has.
        let mut words = std::env::args_os().skip(1);
        let command = words.find(|word| !word.to_string_lossy().starts_with('-'));
        let _ = error.print();
        if error.exit_code() != 0 && command.is_some_and(|word| word == "up") {
            fail_in_shell();
        }
        std::process::exit(error.exit_code());
    });
    let prints_shell = matches!(arguments.command, Command::Up(_));
    let result: Result<()> = match arguments.command {
        Command::Up(options) => up::up(&options),
        Command::Down(options) => up::down(&options),
        Command::Restart(options) => keep::restart(&options),
        Command::Save(options) => keep::save(&options),
        Command::Restore(options) => keep::restore(&options),
        Command::Top(options) => top::run(&options),
        Command::Predict(options) => predict::run(&options),
        Command::Gen(options) => r#gen::run(&options),
        Command::Steer(options) => steer::run(&options),
        Command::Lab(options) => lab::run(&options),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            output::complain(format_args!("sluice: {error:#}\n"));
            if prints_shell {
                fail_in_shell();
            }
            std::process::ExitCode::FAILURE
        }
    }
}

/// Prints what makes `eval "$(sluice up)"` fail, whose exit status is that of the printed text.
/// Nothing would be success, and later commands would talk to the system's switch.
fn fail_in_shell() {
    if !std::io::stdout().is_terminal() {
        output::print(format_args!("false\n"));
    }
}
