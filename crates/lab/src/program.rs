//! Experiments that a program measures: it prints a [`Line`] for each run of each cell, as JSON.
//!
//! The programs of the papers' experiments are Python (`bench/lab_forwarding.py`,
//! `bench/lab_slicing.py`, `bench/lab_steering.py`), for what they set up is set up by the
//! developers' benchmarks already.

mod error;

pub use self::error::{Error, Misdeed};

use crate::lines::Line;
use crate::subjects::beside;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Longest line of a program that is read, bytes.
const LINE_MAX: u64 = 1 << 20;

/// What a program is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The program's file name.
    pub program: &'a str,
    /// The experiment.
    pub experiment: &'a str,
    /// `quick`, `normal` or `full`.
    pub mode: &'a str,
    /// Only these subjects; all if empty.
    pub subjects: &'a [String],
    /// Sluice's daemon; absent: that beside the command.
    pub daemon: Option<&'a Path>,
    /// The core of who is measured, and that of all else.
    pub cores: (usize, usize),
    /// Rounds.
    pub rounds: u32,
    /// Seconds of a measurement.
    pub seconds: f64,
    /// After this long it is ended.
    pub limit: Duration,
    /// A variable of its environment, and of that of all that it starts, by which `sluice lab
    /// clean` finds them.
    pub mark: (&'a str, &'a str),
}

/// The program whose cores are always the same, since it tells flows apart by them.
const STEERING: (&str, (usize, usize)) = ("lab_steering.py", (1, 0));

/// The core of who is measured by a program, and that of all else, in a run with these cores
/// (workers' first).
pub fn cores(program: &str, cores: &[usize]) -> Result<(usize, usize), Error> {
    match (program == STEERING.0, cores) {
        (true, _) => Ok(STEERING.1),
        (false, &[worker, other, ..]) => Ok((worker, other)),
        _ => Err(Error::TooFewCores),
    }
}

/// Finds a program of the lab: in the build tree's `bench`, in `share/sluice/lab/bench` below the
/// prefix of the installed command, or in `SLUICE_LAB_PROGRAMS`.
pub fn find(program: &str) -> Result<PathBuf, Error> {
    if program.contains('/') || !program.ends_with(".py") {
        return Err(Error::Name(program.to_owned()));
    }
    let mut places: Vec<PathBuf> = std::env::var_os("SLUICE_LAB_PROGRAMS")
        .into_iter()
        .map(PathBuf::from)
        .collect();
    let own = std::env::current_exe().map_err(Error::OwnPath)?;
    // bin/sluice; target/release/sluice.
    places.extend(
        own.ancestors()
            .skip(1)
            .take(4)
            .flat_map(|at| [at.join("bench"), at.join("share/sluice/lab/bench")]),
    );
    let mut found = places.iter().map(|place| place.join(program));
    found
        .find(|path| path.is_file())
        .ok_or_else(|| Error::NotFound {
            program: program.to_owned(),
            places: places.clone(),
        })
}

/// Most lines that are taken of a program.
const LINES_MAX: usize = 1_000_000;
/// The end of its log in which the last line is looked for, bytes.
const TAIL: u64 = 4096;
/// How often it is checked whether a program has ended.
const LOOK: Duration = Duration::from_millis(100);
/// How long a program that is to end may take to remove what it made.
const GRACE: Duration = Duration::from_secs(15);

/// Runs a program, and gives `on_line` each line as it comes. Ends it when its limit is over, when
/// it has printed more than a million lines, or when `stop` is set; it removes what it made, and is
/// killed only if it has not done so within 15 s. What it leaves of its process group is killed in
/// any case. `log` gets what it prints on its error output.
pub fn run(
    path: &Path,
    request: &Request<'_>,
    log: &Path,
    stop: &AtomicBool,
    mut on_line: impl FnMut(Line),
) -> Result<(), Error> {
    let wrong = |what| {
        move |error| Error::Process {
            path: path.display().to_string(),
            what,
            error,
        }
    };
    let errors = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|error| Error::Log {
            path: log.display().to_string(),
            error,
        })?;
    // A run that goes on has what the program said before.
    let said_before = errors.metadata().map_or(0, |metadata| metadata.len());
    let mut command = Command::new(path);
    command
        .arg(request.experiment)
        .args(["--mode", request.mode])
        .args(["--rounds", &request.rounds.to_string()])
        .args(["--seconds", &request.seconds.to_string()]);
    for subject in request.subjects {
        command.args(["--subject", subject]);
    }
    if let Some(daemon) = request.daemon.map(Path::to_owned).or_else(beside) {
        command.arg("--daemon").arg(daemon);
    }
    let (worker, other) = request.cores;
    command.env("SLUICE_BENCH_CORES", format!("{worker},{other}"));
    // Where it is installed, nothing else is to appear.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    // A group of its own: what is typed at the terminal reaches the lab alone, which then ends it.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(errors))
        .env(request.mark.0, request.mark.1)
        .process_group(0);
    let mut child = command.spawn().map_err(wrong("start"))?;
    let pid = Pid::from_child(&child);
    let Some(output) = child.stdout.take() else {
        return Err(Error::NoOutput(path.display().to_string()));
    };
    let (sender, lines) = std::sync::mpsc::sync_channel::<Result<Line, Misdeed>>(1024);
    let reader = std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut text = Vec::new();
            match std::io::Read::take(&mut output, LINE_MAX).read_until(b'\n', &mut text) {
                Ok(0) | Err(_) => return,
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let line = serde_json::from_slice(&text).map_err(|error| {
                        let line = String::from_utf8_lossy(&text).chars().take(80).collect();
                        Misdeed::Line { line, error }
                    });
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            }
        }
    });
    let (began, mut asked, mut problem) = (Instant::now(), None::<Instant>, None);
    let mut count = 0;
    let status = loop {
        match lines.recv_timeout(LOOK) {
            Ok(Ok(line)) => {
                count += 1;
                if count <= LINES_MAX {
                    on_line(line);
                }
            }
            Ok(Err(misdeed)) => problem = problem.or(Some(misdeed)),
            Err(RecvTimeoutError::Timeout) => {}
            // It has closed its output and goes on.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
        }
        if let Some(status) = child.try_wait().map_err(wrong("wait"))? {
            break status;
        }
        let over = began.elapsed() > request.limit;
        let flooded = count > LINES_MAX;
        if flooded {
            problem = problem.or(Some(Misdeed::TooManyLines));
        }
        if asked.is_none() && (over || flooded || stop.load(Ordering::Relaxed)) {
            if over {
                problem = problem.or(Some(Misdeed::Late(request.limit.as_secs())));
            }
            asked = Some(Instant::now());
            // It has not been waited for.
            let _ = kill_process(pid, Signal::TERM);
        }
        if asked.is_some_and(|at| at.elapsed() > GRACE) {
            // The group is the child's own.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    };
    // The child was the first of the group, whose number is nobody else's while one of it lives,
    // and has just become free where none does.
    let _ = kill_process_group(pid, Signal::KILL);
    // What it had printed before it ended. Who has left the group and holds the pipe is not waited
    // for.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end
        && let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        match line {
            Ok(line) => on_line(line),
            Err(misdeed) => problem = problem.or(Some(misdeed)),
        }
    }
    if reader.is_finished() {
        let _ = reader.join();
    }
    match problem {
        Some(misdeed) => Err(Error::Misdeed {
            program: request.program.to_owned(),
            misdeed,
        }),
        None if stop.load(Ordering::Relaxed) || status.success() => Ok(()),
        None => Err(Error::ended(request.program, status, log, said_before)),
    }
}

/// The last line of a log that is not empty, from so many bytes on; at most a sentence of it.
fn last_line(log: &Path, from: u64) -> Option<String> {
    let mut file = std::fs::File::open(log).ok()?;
    let end = file.metadata().ok()?.len();
    let start = from.max(end.saturating_sub(TAIL));
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(start)).ok()?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, TAIL), &mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(directory: &Path, body: &str) -> PathBuf {
        let path = directory.join("program.py");
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn request(limit: Duration) -> Request<'static> {
        Request {
            program: "program.py",
            experiment: "D1",
            mode: "quick",
            subjects: &[],
            daemon: None,
            cores: (3, 2),
            rounds: 2,
            seconds: 0.5,
            limit,
            mark: ("SLUICE_LAB", "sluicelab0-"),
        }
    }

    #[test]
    fn a_programs_lines_are_cells_and_its_words_those_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(
            directory.path(),
            r#"echo "{\"subject\":\"$1 $3 $5 $7 $SLUICE_LAB $SLUICE_BENCH_CORES\",\"figures\":{\"rate\":5}}"; echo talk >&2"#,
        );
        let log = directory.path().join("log");
        let mut got = Vec::new();
        let stop = AtomicBool::new(false);
        let limit = Duration::from_secs(60);
        run(&path, &request(limit), &log, &stop, |line| got.push(line)).unwrap();
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].subject, "D1 quick 2 0.5 sluicelab0- 3,2");
        assert_eq!(std::fs::read_to_string(log).unwrap(), "talk\n");
    }

    #[test]
    fn garbage_failures_and_endless_programs_are_said() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let stop = AtomicBool::new(false);
        let failure = |body: &str, limit| {
            let path = script(directory.path(), body);
            let ran = run(&path, &request(limit), &log, &stop, |_| {});
            ran.unwrap_err().to_string()
        };
        let long = Duration::from_secs(60);
        let text = failure("echo no JSON", long);
        assert!(text.contains("\"no JSON\\n\" is not a cell"), "{text}");
        let text = failure(
            "printf '{\"subject\":\"a\\377\"}\\n'; echo '{\"subject\":\"b\"}'",
            long,
        );
        assert!(text.contains("is not a cell"), "{text}");
        let text = failure("exit 3", long);
        assert!(text.contains("exit status: 3: see "), "{text}");
        // Why, in the program's own words: the last of them, and not those of a run before.
        let text = failure(
            "echo first >&2; echo no such port >&2; echo >&2; exit 3",
            long,
        );
        assert!(
            text.contains("exit status: 3: no such port; see "),
            "{text}"
        );
        let text = failure("exit 4", long);
        assert!(text.contains("exit status: 4: see "), "{text}");
        let text = failure("sleep 100", Duration::from_millis(200));
        assert!(text.contains("was not done within"), "{text}");
        // Also behind one that has ended and left something that prints on and on.
        let text = failure(
            "(while :; do echo '{\"subject\":\"a\"}'; done) & exit 3",
            long,
        );
        assert!(text.contains("exit status: 3"), "{text}");
    }

    #[test]
    fn programs_have_the_runs_cores() {
        assert_eq!(cores("lab_slicing.py", &[5, 4, 1]).unwrap(), (5, 4));
        assert_eq!(cores("lab_steering.py", &[5]).unwrap(), (1, 0));
        let few = cores("lab_slicing.py", &[5]).unwrap_err().to_string();
        assert!(few.contains("--core"), "{few}");
    }

    #[test]
    fn programs_are_found_by_name_only() {
        let error = |program| find(program).unwrap_err().to_string();
        assert!(error("../evil.py").contains("not the name"));
        assert!(error("no_such.py").contains("SLUICE_LAB_PROGRAMS"));
    }
}
