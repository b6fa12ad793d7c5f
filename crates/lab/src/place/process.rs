//! Processes of a place.

use super::command::last_of;
use super::{Cleaned, MARK, Namespace, Place, failed, making, record, records};
use crate::subject::Error;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A program to be started in a place.
#[derive(Debug, Default)]
pub struct Launch<'a> {
    /// Name of its log.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables of its environment.
    pub environment: Vec<(String, String)>,
    /// Its network namespace; the lab's if absent.
    pub namespace: Option<&'a Namespace>,
    /// The cores that it may use; all if empty.
    pub cores: Vec<usize>,
    /// Whether its input and output are the lab's to write and read; else its output is logged.
    pub piped: bool,
}

/// A process of a place. It is ended when this is dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    name: String,
    log: PathBuf,
    path: PathBuf,
}

impl Place {
    /// Starts a program. Its output goes to a log in the place's directory.
    pub fn start(&self, launch: Launch) -> Result<Program, Error> {
        let _making = making()?;
        let log = self.directory.join(format!("{}.log", launch.name));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|error| failed(&log, &error))?;
        let error_output = file.try_clone().map_err(|error| failed(&log, &error))?;
        let (program, arguments) = launch
            .command
            .split_first()
            .ok_or_else(|| Error::Failed(format!("{}: an empty command", launch.name)))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(launch.environment)
            .env(MARK, &self.prefix)
            .stderr(error_output)
            // What is typed at the terminal (^C) is for the lab.
            .process_group(0);
        match launch.piped {
            true => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
            false => command.stdin(Stdio::null()).stdout(file),
        };
        let cores = set_of(&launch.cores);
        let pinned = !launch.cores.is_empty();
        let namespace = launch.namespace.map(Namespace::descriptor);
        // SAFETY: between fork and exec the closure makes two system calls and nothing else; the
        // namespace's descriptor is open until this function returns.
        unsafe {
            command.pre_exec(move || {
                if let Some(namespace) = namespace
                    && libc::setns(namespace, libc::CLONE_NEWNET) != 0
                {
                    return Err(io::Error::last_os_error());
                }
                if pinned {
                    sched_setaffinity(None, &cores)?;
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing(format!("{program} is not installed")),
            _ => Error::Failed(format!("{}: {program}: {error}", launch.name)),
        })?;
        let text = Known::of(child.id())
            .map(|known| known.text())
            .unwrap_or_default();
        let path = match record(self, "process", &text) {
            Ok(path) => path,
            Err(error) => {
                let mut child = child;
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        Ok(Program {
            child,
            name: launch.name,
            log,
            path,
        })
    }
}

fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(*core);
    }
    set
}

impl Program {
    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its input, once, where it is piped.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its output, once, where it is piped.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// An error with the end of its log where it has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::Failed(format!(
                "{} ended with {status}: {}",
                self.name,
                self.tail()
            ))),
            Err(error) => Err(Error::Failed(format!("{}: {error}", self.name))),
        }
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        last_of(&String::from_utf8_lossy(
            &fs::read(&self.log).unwrap_or_default(),
        ))
    }

    /// Threads of it whose names `chosen` picks, by kernel ID.
    pub fn threads(&self, chosen: impl Fn(&str) -> bool) -> Vec<u32> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.id()));
        let mut found: Vec<u32> = super::names_in(&tasks)
            .into_iter()
            .filter(|task| {
                let name = fs::read_to_string(tasks.join(task).join("comm"));
                name.is_ok_and(|name| chosen(name.trim()))
            })
            .filter_map(|task| task.parse().ok())
            .collect();
        found.sort_unstable();
        found
    }

    /// Ends it: asks it first, and kills it where it has not ended when the time is over, which is
    /// an error.
    pub fn stop(mut self, limit: Duration) -> Result<(), Error> {
        self.end(limit)
    }

    /// Waits for it to end by itself; then as [`Program::stop`].
    pub fn finish(mut self, limit: Duration) -> Result<(), Error> {
        let end = Instant::now() + limit;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > end {
                let stopped = self.end(super::GRACE);
                return stopped.and(Err(Error::Failed(format!(
                    "{} did not end by itself within {} s",
                    self.name,
                    limit.as_secs()
                ))));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end(limit)
    }

    fn end(&mut self, limit: Duration) -> Result<(), Error> {
        if let Ok(None) = self.child.try_wait() {
            // The process has not been waited for, so the ID is its.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let end = Instant::now() + limit;
        let result = loop {
            match self.child.try_wait() {
                Ok(Some(_)) => break Ok(()),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    break Err(Error::Failed(format!(
                        "{} did not end within {} s after SIGTERM and was killed",
                        self.name,
                        limit.as_secs()
                    )));
                }
            }
        };
        let _ = fs::remove_file(&self.path);
        result
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Where `stop` has been called it has ended.
        let _ = self.end(super::GRACE);
    }
}

/// A process of which is known that it is the same as before: process IDs are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    id: u32,
    /// When it was started, in clock ticks since the machine was.
    started: u64,
    /// The namespace of its ID.
    namespace: u64,
}

impl Known {
    fn of(id: u32) -> Option<Known> {
        let (started, _) =
            started_and_state(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?;
        Some(Known {
            id,
            started,
            namespace: own_namespace()?,
        })
    }

    fn text(&self) -> String {
        format!("{} {} {}\n", self.id, self.started, self.namespace)
    }

    fn read(text: &str) -> Option<Known> {
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        Some(Known {
            id: next()?.try_into().ok()?,
            started: next()?,
            namespace: next()?,
        })
    }

    /// Whether this very process runs.
    fn lives(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        Some(self.namespace) == own_namespace()
            && started_and_state(&stat)
                .is_some_and(|(started, state)| started == self.started && !"ZX".contains(state))
    }

    /// Sends it a signal, and nobody else: the descriptor stands for one process, which is looked
    /// at after the descriptor was got.
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id as i32);
        let descriptor = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(descriptor) = descriptor
            && self.lives()
        {
            let _ = pidfd_send_signal(descriptor, signal);
        }
    }

    /// What it is called.
    fn name(&self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.id)).unwrap_or_default();
        format!("process {} ({})", self.id, name.trim())
    }
}

/// The namespace of this process's ID, as a number.
fn own_namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let digits: String = link
        .to_str()?
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// Start time and state from /proc/PID/stat, where the name may contain anything.
fn started_and_state(stat: &str) -> Option<(u64, char)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some((
        fields.get(19)?.parse().ok()?,
        fields.first()?.chars().next()?,
    ))
}

/// Processes that have the place's mark in their environment.
fn marked(place: &Place) -> Vec<Known> {
    let mark = format!("{MARK}={}", place.prefix);
    super::names_in(Path::new("/proc"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter(|id| *id != std::process::id())
        .filter(|id| {
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == mark.as_bytes())
        })
        .filter_map(Known::of)
        .collect()
}

/// Ends all processes of a place: those on record, and those with its mark.
pub(super) fn end_all(place: &Place, grace: Duration, cleaned: &mut Cleaned) {
    let recorded = || records(place, "process").into_iter();
    // What is started meanwhile is found when one looks again.
    let mut found: BTreeMap<u32, Known> = BTreeMap::new();
    let begin = Instant::now();
    let mut asked = Vec::new();
    loop {
        let living: Vec<Known> = recorded()
            .filter_map(|(_, text)| Known::read(&text))
            .filter(Known::lives)
            .chain(marked(place).into_iter().filter(Known::lives))
            .collect();
        if living.is_empty() {
            break;
        }
        let late = begin.elapsed() > grace;
        for process in &living {
            found.insert(process.id, *process);
            if late {
                process.signal(Signal::KILL);
            } else if !asked.contains(&process.id) {
                cleaned.removed.push(process.name());
                process.signal(Signal::TERM);
                asked.push(process.id);
            }
        }
        if begin.elapsed() > 2 * grace {
            for process in living {
                cleaned
                    .failed
                    .push(format!("{} does not end", process.name()));
            }
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for (path, _) in recorded() {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(directory: &Path) -> Place {
        Place {
            directory: directory.to_owned(),
            prefix: format!("sluicelabtest{}-", directory.display()),
        }
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    fn is_over(child: &mut Child) -> bool {
        let over = child.try_wait().unwrap().is_some();
        let _ = child.kill();
        let _ = child.wait();
        over
    }

    #[test]
    fn a_process_is_told_by_its_start() {
        let known = Known::of(std::process::id()).unwrap();
        assert!(known.lives());
        assert_eq!(Known::read(&known.text()), Some(known));
        let other = Known {
            started: known.started + 1,
            ..known
        };
        assert!(!other.lives());
        let elsewhere = Known {
            namespace: 1,
            ..known
        };
        assert!(!elsewhere.lives());
        assert_eq!(Known::read("12 x 5"), None);
    }

    #[test]
    fn names_of_programs_may_contain_anything() {
        let fields = (4..30)
            .map(|number| number.to_string())
            .collect::<Vec<_>>()
            .join(" ");
        let stat = format!("77 (a) b (c)) R {fields}");
        assert_eq!(started_and_state(&stat), Some((22, 'R')));
        assert_eq!(started_and_state("77 (sh) R 1 2"), None);
        assert_eq!(started_and_state(""), None);
    }

    #[test]
    fn only_the_process_on_record_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        let (mut ours, mut stranger) = (sleeper(), sleeper());
        record(&place, "process", &Known::of(ours.id()).unwrap().text()).unwrap();
        // The stranger has got the ID of a process that ended.
        let known = Known::of(stranger.id()).unwrap();
        let before = Known {
            started: known.started - 1,
            ..known
        };
        record(&place, "process", &before.text()).unwrap();
        record(&place, "process", "not a record").unwrap();
        let mut cleaned = Cleaned::default();
        // Children of this process stay as zombies, which count as ended.
        end_all(&place, Duration::from_secs(5), &mut cleaned);
        assert_eq!(cleaned.removed, [format!("process {} (sleep)", ours.id())]);
        assert!(is_over(&mut ours) && !is_over(&mut stranger));
        assert!(records(&place, "process").is_empty());
    }

    #[test]
    fn what_a_program_started_is_found_by_its_mark() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        let launch = Launch {
            name: "shell".into(),
            command: ["setsid", "-f", "sleep", "1000"].map(String::from).to_vec(),
            ..Launch::default()
        };
        place
            .start(launch)
            .unwrap()
            .finish(Duration::from_secs(10))
            .unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while marked(&place).iter().filter(|known| known.lives()).count() != 1 {
            assert!(Instant::now() < end, "it was started");
        }
        let mut cleaned = Cleaned::default();
        end_all(&place, Duration::from_secs(5), &mut cleaned);
        assert_eq!((cleaned.removed.len(), cleaned.failed.len()), (1, 0));
        assert!(!marked(&place).iter().any(Known::lives));
    }

    #[test]
    fn who_does_not_end_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        let launch = Launch {
            name: "stubborn".into(),
            command: [
                "sh",
                "-c",
                "trap '' TERM; echo on; while :; do sleep 0.1; done",
            ]
            .map(String::from)
            .to_vec(),
            ..Launch::default()
        };
        let mut program = place.start(launch).unwrap();
        while program.tail().is_empty() {
            program.check().unwrap();
        }
        assert!(program.stop(Duration::from_millis(100)).is_err());
        let mut cleaned = Cleaned::default();
        end_all(&place, Duration::from_millis(200), &mut cleaned);
        assert!(cleaned.failed.is_empty(), "{:?}", cleaned.failed);
    }

    #[test]
    fn a_program_that_ended_says_what_it_said() {
        let directory = tempfile::tempdir().unwrap();
        let launch = Launch {
            name: "short".into(),
            command: ["sh", "-c", "echo the reason; exit 7"]
                .map(String::from)
                .to_vec(),
            ..Launch::default()
        };
        let mut program = place(directory.path()).start(launch).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        let error = loop {
            if let Err(error) = program.check() {
                break error.to_string();
            }
            assert!(Instant::now() < end);
        };
        assert!(
            error.contains("the reason") && error.contains('7'),
            "{error}"
        );
    }
}
