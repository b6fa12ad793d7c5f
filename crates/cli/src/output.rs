//! Printing to a reader that may be gone: `print!` panics if a pipe is closed.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints to standard output. Ends the process: with success if the reader has closed the pipe,
/// with failure if writing fails otherwise.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = std::io::stdout().lock().write_fmt(text) {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        complain(format_args!("sluice: cannot print: {error}\n"));
        std::process::exit(1);
    }
}

/// Prints to standard error, ignoring errors.
pub fn complain(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Prints to standard output, like `print!`.
macro_rules! out {
    ($($words:tt)*) => { $crate::output::print(format_args!($($words)*)) };
}

/// Prints a line to standard output.
macro_rules! outln {
    ($($words:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints a line to standard error.
macro_rules! errln {
    ($($words:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($words)*))) };
}

pub(crate) use {errln, out, outln};
