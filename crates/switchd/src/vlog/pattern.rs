//! Patterns: the format of a log line. A pattern is literal text with escapes (`%m` the message,
//! `%c` the module, ...), each with an optional width, as `ovs-appctl(8)` describes them under
//! `vlog/set PATTERN`. It is compiled once, when it is set.

use std::ffi::{CStr, CString};
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Destination, Level};

/// The facility that Open vSwitch's daemons log under.
pub(super) const FACILITY_DAEMON: u8 = 3;

/// The names of RFC 5424's facilities that Open vSwitch accepts.
const FACILITIES: &[(&str, u8)] = &[
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("clock", 9),
    ("ftp", 11),
    ("ntp", 12),
    ("audit", 13),
    ("alert", 14),
    ("clock2", 15),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// Returns the number of the facility called `name`.
pub(super) fn facility(name: &str) -> Option<u8> {
    FACILITIES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, number)| *number)
}

/// The widest field: a limit on memory, although only operators set patterns.
const MAXIMUM_WIDTH: usize = 4096;

/// The parts of a line.
pub(super) struct Facts<'a> {
    pub program: &'a str,
    pub host: &'a str,
    pub module: &'a str,
    pub level: Level,
    pub message: &'a str,
    pub serial: u64,
    pub subprogram: &'a str,
    pub elapsed: Duration,
    pub facility: u8,
    pub now: Duration,
}

/// Returns the time since 1970.
pub(super) fn wall_clock() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

enum What {
    Literal(String),
    Time { format: CString, utc: bool },
    Escape(char),
}

struct Item {
    what: What,
    width: usize,
    left: bool,
    zeros: bool,
}

/// A compiled pattern.
pub(super) struct Pattern {
    text: String,
    items: Vec<Item>,
}

/// Returns the patterns that Open vSwitch starts with, in the order of [`Destination::ALL`].
pub(super) fn defaults() -> [Pattern; 3] {
    Destination::ALL.map(|destination| {
        Pattern::new(match destination {
            Destination::Syslog => "ovs|%05N|%c%T|%p|%m",
            Destination::Console => "%D{%Y-%m-%dT%H:%M:%SZ}|%05N|%c%T|%p|%m",
            Destination::File => "%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m",
        })
    })
}

/// The pattern's prefix on system log lines that this program sends itself.
pub(super) const SYSLOG_PREFIX: &str = "<%B> %D{%h %e %T} %E %A: ";

impl Pattern {
    /// Compiles `text`. Anything is a pattern: an unknown escape stands for its own letter.
    pub(super) fn new(text: &str) -> Self {
        let mut items = Vec::new();
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            if character != '%' {
                push_literal(&mut items, character);
                continue;
            }
            let left = characters.next_if_eq(&'-').is_some();
            let zeros = characters.next_if_eq(&'0').is_some();
            let mut width = 0usize;
            while let Some(digit) = characters.peek().and_then(|digit| digit.to_digit(10)) {
                width = (width * 10 + digit as usize).min(MAXIMUM_WIDTH);
                characters.next();
            }
            let what = match characters.next() {
                None => break,
                Some(kind @ ('d' | 'D')) => {
                    let format =
                        braces(&mut characters).unwrap_or_else(|| "%Y-%m-%d %H:%M:%S".into());
                    What::Time {
                        format: CString::new(format.replace('\0', "")).unwrap_or_default(),
                        utc: kind == 'D',
                    }
                }
                Some(kind) => What::Escape(kind),
            };
            items.push(Item {
                what,
                width,
                left,
                zeros,
            });
        }
        Pattern {
            text: text.to_string(),
            items,
        }
    }

    /// Returns the pattern as given.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Formats the line for `facts`.
    pub(super) fn format(&self, facts: &Facts<'_>) -> String {
        let mut line = String::with_capacity(64 + facts.message.len());
        for item in &self.items {
            let start = line.len();
            match &item.what {
                What::Literal(text) => line.push_str(text),
                What::Time { format, utc } => line.push_str(&time_text(format, facts.now, *utc)),
                What::Escape(kind) => escape(&mut line, *kind, facts),
            }
            pad(&mut line, start, item);
        }
        line
    }
}

fn push_literal(items: &mut Vec<Item>, character: char) {
    if let Some(Item {
        what: What::Literal(text),
        ..
    }) = items.last_mut()
    {
        text.push(character);
    } else {
        items.push(Item {
            what: What::Literal(character.to_string()),
            width: 0,
            left: false,
            zeros: false,
        });
    }
}

/// Returns the text in braces that follows, if any. Without a closing brace there is none.
fn braces(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    if characters.peek() != Some(&'{') {
        return None;
    }
    let mut ahead = characters.clone();
    ahead.next();
    let mut inside = String::new();
    loop {
        match ahead.next()? {
            '}' => break,
            character => inside.push(character),
        }
    }
    *characters = ahead;
    Some(inside)
}

fn escape(line: &mut String, kind: char, facts: &Facts<'_>) {
    // Writing to a string cannot fail.
    let _ = match kind {
        'A' => line.write_str(facts.program),
        'B' => write!(
            line,
            "{}",
            facts.facility * 8 + facts.level.syslog_severity()
        ),
        'c' => line.write_str(facts.module),
        'E' => line.write_str(facts.host),
        'm' => line.write_str(facts.message),
        'N' => write!(line, "{}", facts.serial),
        'n' => line.write_char('\n'),
        'p' => line.write_str(facts.level.name()),
        'P' => write!(line, "{}", std::process::id()),
        'r' => write!(line, "{}", facts.elapsed.as_millis()),
        't' => line.write_str(if facts.subprogram.is_empty() {
            "main"
        } else {
            facts.subprogram
        }),
        'T' if facts.subprogram.is_empty() => Ok(()),
        'T' => write!(line, "({})", facts.subprogram),
        other => line.write_char(other),
    };
}

fn pad(line: &mut String, start: usize, item: &Item) {
    let length = line[start..].chars().count();
    if length >= item.width {
        return;
    }
    let fill = if item.zeros { "0" } else { " " }.repeat(item.width - length);
    if item.left {
        line.push_str(&fill);
    } else {
        line.insert_str(start, &fill);
    }
}

/// Formats a time like `strftime`; each `#` becomes a digit of the fraction of the second.
pub(super) fn time_text(format: &CStr, now: Duration, utc: bool) -> String {
    let seconds = now.as_secs() as libc::time_t;
    // SAFETY: `tm` is plain data, and all zeros is one of its values.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both arguments point to live variables of the right types; the reentrant functions
    // keep no reference.
    let known = unsafe {
        if utc {
            libc::gmtime_r(&seconds, &mut parts)
        } else {
            libc::localtime_r(&seconds, &mut parts)
        }
    };
    if known.is_null() {
        return String::new();
    }
    let mut buffer = [0u8; 1024];
    // SAFETY: the buffer is as long as its length says, the format is NUL-terminated, and `parts`
    // was filled above. strftime writes at most that many bytes and returns how many, without
    // the NUL; 0 if it did not fit.
    let length = unsafe {
        libc::strftime(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            format.as_ptr(),
            &parts,
        )
    };
    let text = String::from_utf8_lossy(&buffer[..length.min(buffer.len())]);
    let fraction = format!("{:03}", now.subsec_millis());
    let mut digits = fraction.chars().chain(std::iter::repeat('0'));
    text.chars()
        .map(|character| {
            if character == '#' {
                digits.next().unwrap_or('0')
            } else {
                character
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts() -> Facts<'static> {
        Facts {
            program: "ovs-vswitchd",
            host: "host",
            module: "bridge",
            level: Level::Information,
            message: "message",
            serial: 1,
            subprogram: "",
            elapsed: Duration::from_millis(1500),
            facility: FACILITY_DAEMON,
            now: Duration::from_millis(1_795_255_200_123),
        }
    }

    #[test]
    fn default_lines() {
        let [syslog, console, file] = defaults();
        assert_eq!(
            file.format(&facts()),
            "2026-11-21T10:00:00.123Z|00001|bridge|INFO|message"
        );
        assert_eq!(
            console.format(&facts()),
            "2026-11-21T10:00:00Z|00001|bridge|INFO|message"
        );
        let worker = Facts {
            subprogram: "monitor",
            ..facts()
        };
        assert_eq!(
            syslog.format(&worker),
            "ovs|00001|bridge(monitor)|INFO|message"
        );
        let prefix = Pattern::new(SYSLOG_PREFIX).format(&facts());
        assert_eq!(prefix, "<30> Nov 21 10:00:00 host ovs-vswitchd: ");
    }

    #[test]
    fn escapes_and_widths() {
        let line = |text: &str| Pattern::new(text).format(&facts());
        assert_eq!(
            line("%-8p|%8p|%3m|%q|%%|%r|%n"),
            "INFO    |    INFO|message|q|%|1500|\n"
        );
        assert_eq!(line("%D"), "2026-11-21 10:00:00");
        assert_eq!(line("%D{%S.#####}"), "00.12300");
        assert_eq!(line("%D{%S"), "2026-11-21 10:00:00{S");
        assert_eq!(line("x%"), "x");
        assert_eq!(line("%t"), "main");
        assert_eq!(line("%A %E %B"), "ovs-vswitchd host 30");
    }

    proptest! {
        #[test]
        fn no_pattern_panics(text in "(%|-|0|[0-9]{1,6}|D\\{|d|\\}|#|\\PC){0,12}") {
            let _ = Pattern::new(&text).format(&facts());
        }

        #[test]
        fn text_without_escapes_is_itself(text in "[^%]{0,40}") {
            prop_assert_eq!(Pattern::new(&text).format(&facts()), text);
        }
    }
}
