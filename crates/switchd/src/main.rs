//! `sluiced`: the switch daemon that replaces `ovs-vswitchd`. All code is in the library, where
//! tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = Vec::new();
    for (number, argument) in std::env::args_os().enumerate() {
        match argument.into_string() {
            Ok(argument) => arguments.push(argument),
            Err(argument) => {
                eprintln!(
                    "sluiced: argument {number} is not valid UTF-8: {}",
                    argument.display()
                );
                return ExitCode::FAILURE;
            }
        }
    }
    switchd::shell::main(arguments)
}
