//! The command line of `sluice`.

use anyhow::Result;
use clap::{Parser, Subcommand};
use cli::{r#gen, keep, lab, output, predict, steer, top, up};
use std::io::IsTerminal;

/// Runs and watches the Sluice virtual switch.
#[derive(Parser)]
#[command(name = "sluice", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a database and a switch in a directory of their own, and print the line that makes
    /// ovs-* tools talk to them: eval "$(sluice up DIRECTORY)".
    Up(up::UpOptions),
    /// Stop what `up` started. Bridges and ports stay for the next `up`; rules, groups and meters
    /// do not (see save and restart).
    Down(up::DownOptions),
    /// Stop the switch that `up` started and start it again, with the rules, groups and meters that
    /// it had.
    Restart(keep::RestartOptions),
    /// Write the rules, groups and meters of all bridges of a running switch to files.
    Save(keep::KeepOptions),
    /// Put what was saved in the place of the rules, groups and meters that a running switch has.
    Restore(keep::KeepOptions),
    /// Show ports, queues, workers, tables, drops and the busiest rules of a running switch, live.
    Top(top::TopOptions),
    /// Say what a file of rules will cost on this machine, without a switch; or how long packets
    /// will wait (see the commands below).
    Predict(Box<predict::PredictOptions>),
    /// Send traffic into ports and measure what comes out of others: losses, duplicates,
    /// reordering, latency.
    Gen(Box<r#gen::GenOptions>),
    /// Steer packets of a kernel interface to the core that suits them.
    Steer(steer::SteerOptions),
    /// Measure switches on this machine: the papers' experiments, and experiments of one's own.
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
