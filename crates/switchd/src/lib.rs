//! sluiced: the switch daemon that replaces ovs-vswitchd.
//!
//! It has two halves. The shell does what any daemon does: [`options`], [`dirs`], [`daemonize`],
//! [`vlog`], [`unixctl`] with [`coverage`], [`memory`] and [`clock`] behind its commands, and
//! [`streams`] for connections; [`shell`] ties them together. The switch proper begins in
//! [`daemon`], which gets a [`Shell`] and runs until it is asked to end.

mod calibrate;
pub mod clock;
pub mod commands;
pub mod config;
pub mod coverage;
pub mod daemon;
pub mod daemonize;
pub mod dirs;
mod features;
pub mod memory;
pub mod metrics;
pub mod openflow;
pub mod options;
pub mod panics;
pub mod service;
pub mod shell;
pub mod streams;
pub mod switch;
pub mod turns;
pub mod unixctl;
pub mod user;
pub mod vlog;

pub use shell::{ExitRequest, Shell};

/// Returns the text of an operating system error as `strerror` has it, without Rust's `(os error
/// N)`, because tools compare messages.
pub fn plain_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    match (error.raw_os_error(), text.rfind(" (os error ")) {
        (Some(_), Some(end)) => text[..end].to_string(),
        _ => text,
    }
}

/// Sets the process's name to `program`, truncated as the kernel does.
pub(crate) fn name_process(program: &str) {
    if let Ok(name) = std::ffi::CString::new(program) {
        daemonize::set_process_name(&name);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn errors_read_like_strerror() {
        assert_eq!(
            super::plain_error(&std::io::Error::from_raw_os_error(2)),
            "No such file or directory"
        );
        assert_eq!(
            super::plain_error(&std::io::Error::other("x (os error y")),
            "x (os error y"
        );
    }
}
