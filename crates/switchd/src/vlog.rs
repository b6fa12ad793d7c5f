//! The log, in Open vSwitch's format and with its controls. Code logs through `tracing`, whose
//! target names the module (`info!(target: "bridge", "...")`; of a Rust path the last part counts).
//! This module decides where each line goes. There are three destinations, the console, the system
//! log and a file, each with a pattern and with one level per module, all changeable at run time
//! (`ovs-appctl vlog/set`).
//!
//! A call site first checks whether its module is logged anywhere (`tracing` caches the answer
//! until levels change), then its rate limit ([`limit`]). The line is formatted once per
//! destination ([`pattern`]) and passed to the sinks ([`sinks`]), which from [`start_writer`] on
//! means a bounded queue. So logging never waits for a disk; lines that do not fit are counted
//! under `vlog_queue_full`.

mod commands;
mod levels;
mod limit;
mod pattern;
mod sinks;

pub use commands::register;
pub use levels::{Destination, Level};
pub use sinks::is_syslog_method;

use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use levels::Table;
use pattern::{Facts, Pattern};
use sinks::{Line, Output};

use crate::coverage::Counter;

/// Name of the thread that writes the log, once it is started.
pub const WRITER: &str = "log";

/// The longest message, in bytes; a longer one is cut and marked, because a peer's bytes may be
/// part of a message.
const MAXIMUM_MESSAGE: usize = 4096;

static QUEUE_FULL: Counter = Counter::new("vlog_queue_full");
static WRITE_FAILED: Counter = Counter::new("vlog_write_failed");
static RATE_LIMITED: Counter = Counter::new("vlog_rate_limited");

/// What `vlog/set` and related commands can change.
struct Settings {
    table: Table,
    patterns: [Pattern; 3],
    facility: u8,
}

struct Log {
    program: String,
    host: String,
    start: Instant,
    /// Which process this is, if not the daemon itself (`monitor`); empty for the daemon.
    subprogram: RwLock<String>,
    serial: AtomicU64,
    settings: RwLock<Settings>,
    limits: limit::Limits,
    output: Output,
    file: Option<PathBuf>,
}

static LOG: OnceLock<Log> = OnceLock::new();

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Initial settings of the log.
#[derive(Debug, Clone, Default)]
pub struct Configuration {
    /// The name in system log lines and for `%A`.
    pub program: String,
    /// Specifications as for `-v`, applied in order. An empty one sets everything to `dbg`.
    pub specifications: Vec<String>,
    /// The log file.
    pub file: Option<PathBuf>,
    /// A method that [`is_syslog_method`] accepts; empty means `libc`.
    pub syslog_method: String,
    /// `HOST:PORT` to which system log lines are also sent over UDP.
    pub syslog_target: Option<String>,
}

/// Starts to log, synchronously until [`start_writer`]. May be called once. Logs that the log file
/// was opened or could not be, as Open vSwitch does. Fails on a bad specification, with its text.
pub fn start(configuration: Configuration) -> Result<(), String> {
    for counter in [&QUEUE_FULL, &WRITE_FAILED, &RATE_LIMITED] {
        crate::coverage::register(counter);
    }
    let mut settings = Settings {
        table: Table::new(),
        patterns: pattern::defaults(),
        facility: pattern::FACILITY_DAEMON,
    };
    for text in &configuration.specifications {
        apply(&mut settings, text).map_err(|error| format!("processing \"{text}\": {error}"))?;
    }
    let (sinks, complaint) = sinks::Sinks::new(
        &configuration.syslog_method,
        configuration.syslog_target.as_deref(),
    );
    let log = Log {
        program: configuration.program,
        host: host_name(),
        start: Instant::now(),
        subprogram: RwLock::default(),
        serial: AtomicU64::new(0),
        settings: RwLock::new(settings),
        limits: limit::Limits::default(),
        output: Output::direct(sinks),
        file: configuration.file,
    };
    LOG.set(log)
        .map_err(|_| "the log has been started already".to_string())?;
    tracing::subscriber::set_global_default(Gate).map_err(|error| error.to_string())?;
    if let Some(complaint) = complaint {
        tracing::error!(target: "socket_util", "{complaint}");
    }
    if let Some((log, file)) = LOG.get().and_then(|log| Some((log, log.file.as_ref()?))) {
        report_opening(file, &log.output.open(file.clone()));
    }
    Ok(())
}

/// Starts the thread that writes lines from a bounded queue. Call after the last fork.
pub fn start_writer() -> io::Result<()> {
    LOG.get().map_or(Ok(()), |log| log.output.start_writer())
}

/// Waits, for `limit` at most, until everything logged so far has been written.
pub fn flush(limit: Duration) {
    if let Some(log) = LOG.get() {
        log.output.flush(limit);
    }
}

/// Sets which process this is, for `%T`, if not the daemon itself: `monitor`.
pub fn set_subprogram(name: &str) {
    if let Some(log) = LOG.get() {
        *write(&log.subprogram) = name.to_string();
    }
}

/// Stops logging to the console, for a process without a terminal or one that prints the same text
/// itself.
pub fn silence_console() {
    if let Some(log) = LOG.get() {
        write(&log.settings)
            .table
            .set(None, Some(Destination::Console), Level::Off);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Closes the log file of a process that will log nothing for long, so that it does not keep a
/// rotated file open; [`resume_file`] opens it again. For use before [`start_writer`] only.
pub fn release_file() {
    if let Some(log) = LOG.get() {
        log.output.close();
    }
}

/// Opens the log file again after [`release_file`].
pub fn resume_file() {
    if let Some((log, file)) = LOG.get().and_then(|log| Some((log, log.file.clone()?)))
        && log.output.open(file).is_err()
    {
        WRITE_FAILED.increment();
    }
}

/// Closes the log file and opens it again under its name, for log rotation. Calls `done`
/// afterwards.
pub fn reopen(done: impl FnOnce(io::Result<()>) + Send + 'static) {
    let Some((log, file)) = LOG.get().and_then(|log| Some((log, log.file.as_ref()?))) else {
        return done(Ok(()));
    };
    tracing::info!(target: "vlog", "closing log file");
    log.output.reopen(Box::new(move |result| {
        report_opening(file, &result);
        done(result);
    }));
}

fn report_opening(file: &Path, result: &io::Result<()>) {
    match result {
        Ok(()) => tracing::info!(target: "vlog", "opened log file {}", file.display()),
        Err(error) => {
            let error = crate::plain_error(error);
            tracing::warn!(target: "vlog", "failed to open {} for logging: {error}", file.display());
        }
    }
}

/// Logs at the level above `err`, because the daemon is about to end.
pub fn emergency(module: &str, message: &str) {
    emit(module, Level::Emergency, message);
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "localhost".into()
    } else {
        name.into()
    }
}

/// Applies one specification of `-v` or `vlog/set`.
fn apply(settings: &mut Settings, text: &str) -> Result<(), String> {
    match levels::parse(text)? {
        levels::Change::Level {
            module,
            destination,
            level,
        } => match module {
            Some(name) if !settings.table.knows(&name) => {
                Err(format!("no destination, level, or module \"{name}\""))
            }
            module => {
                settings.table.set(module.as_deref(), destination, level);
                Ok(())
            }
        },
        levels::Change::Pattern(destination, text) => {
            settings.patterns[destination as usize] = Pattern::new(&text);
            Ok(())
        }
        levels::Change::Facility(facility) => {
            settings.facility = facility;
            Ok(())
        }
    }
}

/// Formats a line for every destination that logs it, and passes it on.
fn emit(module: &str, level: Level, message: &str) {
    let Some(log) = LOG.get() else { return };
    let settings = read(&log.settings);
    let heard = settings.table.heard(module, level);
    if heard.iter().all(|heard| !heard) {
        return;
    }
    let thread = std::thread::current();
    let subprogram = match thread.name() {
        Some(name) if name != "main" => name.to_string(),
        _ => read(&log.subprogram).clone(),
    };
    let facts = Facts {
        program: &log.program,
        host: &log.host,
        module,
        level,
        message,
        serial: log.serial.fetch_add(1, Ordering::Relaxed) + 1,
        subprogram: &subprogram,
        elapsed: log.start.elapsed(),
        facility: settings.facility,
        now: pattern::wall_clock(),
    };
    let text = |destination: Destination| {
        let index = destination as usize;
        heard[index].then(|| settings.patterns[index].format(&facts))
    };
    let line = Line {
        console: text(Destination::Console),
        file: text(Destination::File),
        syslog: text(Destination::Syslog),
        priority: settings.facility * 8 + level.syslog_severity(),
        program: log.program.clone(),
        host: log.host.clone(),
        now: facts.now,
    };
    drop(settings);
    log.output.give(line);
}

/// Returns the module that a `tracing` target names: the target itself, or the last part of a Rust
/// path.
fn module_of(target: &str) -> &str {
    target.rsplit("::").next().unwrap_or(target)
}

/// The `tracing` subscriber, which passes events to [`emit`]. The daemon does not use spans; they
/// cost nothing.
struct Gate;

impl Gate {
    fn hears(metadata: &Metadata<'_>) -> bool {
        LOG.get().is_some_and(|log| {
            let level = Level::from_tracing(metadata.level());
            read(&log.settings)
                .table
                .heard(module_of(metadata.target()), level)
                .contains(&true)
        })
    }
}

/// Returns whether a line reports a change by the configuration: these have no rate limit, because
/// no peer can repeat them, and audits need all of them.
fn is_audit(module: &str, level: Level) -> bool {
    module == "bridge" && level == Level::Information
}

impl Subscriber for Gate {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && Self::hears(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && Self::hears(metadata)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(log) = LOG.get() else { return };
        let metadata = event.metadata();
        let module = module_of(metadata.target());
        let level = Level::from_tracing(metadata.level());
        if !is_audit(module, level) && read(&log.settings).table.is_rate_limited(module) {
            match log.limits.ask(metadata.callsite()) {
                limit::Admission::Pass => {}
                limit::Admission::PassAfterDrops(text) => emit(module, level, &text),
                limit::Admission::Drop => {
                    RATE_LIMITED.increment();
                    return;
                }
            }
        }
        let mut message = Message::default();
        event.record(&mut message);
        emit(module, level, &message.finish());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Collects an event's fields into one bounded line without control characters, so that no peer can
/// forge a line.
#[derive(Default)]
struct Message {
    text: Bounded,
    fields: Bounded,
}

#[derive(Default)]
struct Bounded {
    text: String,
    cut: bool,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.text.len() >= MAXIMUM_MESSAGE {
                self.cut = true;
                return Err(fmt::Error);
            }
            if character.is_control() && character != '\t' {
                self.text.extend(character.escape_default());
            } else {
                self.text.push(character);
            }
        }
        Ok(())
    }
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // An error here only means that the limit was reached.
        let _ = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl Message {
    fn finish(self) -> String {
        let cut = self.text.cut || self.fields.cut;
        let mut text = self.text.text;
        text.push_str(&self.fields.text);
        if cut {
            text.push_str("...");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_and_have_one_line() {
        let mut message = Message::default();
        let _ = write!(
            message.text,
            "a\nb\u{1b}[0m{}",
            "x".repeat(3 * MAXIMUM_MESSAGE)
        );
        let text = message.finish();
        assert!(text.starts_with("a\\nb\\u{1b}[0mx"));
        assert!(text.ends_with("x..."));
        assert!(text.len() <= MAXIMUM_MESSAGE + 16);
    }

    #[test]
    fn targets_are_modules() {
        assert_eq!(module_of("bridge"), "bridge");
        assert_eq!(module_of("switchd::streams::tls"), "tls");
    }
}
