//! Commands that are run to their end, and waits, all with limits.

use super::interrupted;
use crate::subject::Error;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a command may take that only asks or sets something.
const USUAL: Duration = Duration::from_secs(60);
/// How long is waited for the end of what a command printed once it has ended itself.
const HELD: Duration = Duration::from_secs(2);

/// Runs a command to its end and returns what it printed. An error where it fails, with what it
/// said, or takes more than a minute.
pub fn run<S: AsRef<str>>(words: &[S]) -> Result<String, Error> {
    run_with(words, |_| {}, "", USUAL)
}

/// As [`run`], with more settings of the command, input, and a limit.
pub fn run_with<S: AsRef<str>>(
    words: &[S],
    settings: impl FnOnce(&mut Command),
    input: &str,
    limit: Duration,
) -> Result<String, Error> {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let shown = shown(&words);
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| Error::Failed("an empty command".into()))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.stdin(if input.is_empty() {
        Stdio::null()
    } else {
        Stdio::piped()
    });
    settings(&mut command);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::Missing(format!("{program} is not installed")),
        _ => Error::Failed(format!("{shown}: {error}")),
    })?;
    if let Some(mut pipe) = child.stdin.take() {
        let input = input.as_bytes().to_vec();
        // Of its own, since a command may print before it has read everything.
        std::thread::spawn(move || {
            // A command that ends early says why itself.
            let _ = pipe.write_all(&input);
        });
    }
    let (out, error) = (Text::of(child.stdout.take()), Text::of(child.stderr.take()));
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    // Its pipes may be held by what it started and left behind, which nobody waits for.
    let last = Instant::now() + HELD;
    let (out, error) = (out.until(last), error.until(last));
    match status {
        Some(status) if status.success() => Ok(out),
        Some(status) => {
            let said = last_of(&format!("{}\n{}", out.trim(), error.trim()));
            Err(Error::Failed(format!(
                "{shown} ended with {status}: {said}"
            )))
        }
        None => Err(Error::Failed(format!(
            "{shown} took more than {} s and was killed",
            limit.as_secs()
        ))),
    }
}

/// What comes out of a pipe, read by a thread of its own.
struct Text {
    came: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Text {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Text {
        let came = Arc::new(Mutex::new(Vec::new()));
        let into = came.clone();
        let reader = std::thread::spawn(move || {
            let Some(mut pipe) = pipe else { return };
            let mut part = [0; 16384];
            while let Ok(count @ 1..) = pipe.read(&mut part) {
                let mut bytes = into.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend_from_slice(&part[..count]);
            }
        });
        Text { came, reader }
    }

    /// All of it; or what has come until then, if the pipe is still open.
    fn until(self, end: Instant) -> String {
        while !self.reader.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A command as people type it, not too long.
fn shown(words: &[&str]) -> String {
    let text = words.join(" ");
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text,
    }
}

/// The last 1,000 characters of what a program said.
pub(super) fn last_of(text: &str) -> String {
    let text = text.trim();
    let count = text.chars().count();
    text.chars().skip(count.saturating_sub(1000)).collect()
}

/// Waits until `ready` returns something. An error where it returns one, where it takes too long
/// (with `what` should have come), and where a signal has come.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if let Some(signal) = interrupted() {
            return Err(Error::Failed(format!("signal {signal} came before {what}")));
        }
        if Instant::now() > end {
            return Err(Error::Failed(format!(
                "waited {} s in vain until {what}",
                limit.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gets_input_and_gives_output() {
        let text = "line\n".repeat(100_000);
        let got = run_with(&["cat"], |_| {}, &text, USUAL).unwrap();
        assert_eq!(got.len(), text.len());
    }

    #[test]
    fn errors_say_what_a_command_said() {
        let error = run(&["sh", "-c", "echo the reason >&2; exit 3"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the reason") && text.contains('3'), "{text}");
        let error = run(&["no-such-program-anywhere"]).unwrap_err();
        assert!(
            matches!(&error, Error::Missing(text) if text.contains("no-such")),
            "{error}"
        );
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let error = run_with(&["sleep", "1000"], |_| {}, "", Duration::from_millis(100));
        assert!(error.unwrap_err().to_string().contains("was killed"));
    }

    /// A daemon that a command starts has its pipes.
    #[test]
    fn who_holds_a_commands_pipe_is_not_waited_for() {
        let began = Instant::now();
        let said = run(&["sh", "-c", "echo done; sleep 30 & echo $!"]).unwrap();
        assert!(began.elapsed() < Duration::from_secs(20));
        let (done, sleeper) = said.trim().split_once('\n').unwrap();
        assert_eq!(done, "done");
        run(&["kill", sleeper]).unwrap();
    }

    #[test]
    fn waits_end() {
        let mut calls = 0;
        let got = wait_for("it is there", Duration::from_secs(10), || {
            calls += 1;
            Ok((calls == 3).then_some(calls))
        });
        assert_eq!(got.unwrap(), 3);
        let never = wait_for::<()>("it comes", Duration::from_millis(50), || Ok(None));
        assert!(never.unwrap_err().to_string().contains("until it comes"));
    }
}
