//! The journal of a run: what it has measured so far, a JSON object a line, each on disk before the
//! next window begins. A run that was killed is resumed from it and loses one window at most.

mod error;

pub use self::error::Mismatch;

use crate::Error;
use crate::lines::Line;
use crate::results::Value;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

/// Its name in the output directory.
pub const NAME: &str = "journal.jsonl";

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// The first line: what is run.
    Run(Header),
    /// A window of a cell.
    Window(Box<Window>),
    /// What a program printed, or a simulation said.
    Line {
        /// The experiment.
        experiment: String,
        /// What it said.
        line: Line,
    },
    /// An experiment whose program begins, from its first cell: what it printed before is void.
    Begun {
        /// The experiment.
        experiment: String,
    },
    /// An experiment whose program has ended.
    Done {
        /// The experiment.
        experiment: String,
        /// Seconds that it took.
        seconds: f64,
        /// Why it failed.
        failed: Option<String>,
        /// Experiments that measured its cells with their own, so that it was not run.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        with: Vec<String>,
    },
}

/// What is run. A run is resumed only as the same run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// `quick`, `normal` or `full`.
    pub mode: String,
    /// When it began, RFC 3339 in UTC.
    pub began: String,
    /// Experiments and their definitions.
    pub experiments: BTreeMap<String, String>,
    /// Only these subjects; all if empty.
    pub subjects: Vec<String>,
    /// Windows of each cell, where other than the experiments say.
    pub rounds: Option<u32>,
    /// Seconds of a window, likewise.
    pub seconds: Option<f64>,
    /// Cores.
    pub cores: Vec<usize>,
    /// Sluice's daemon, where other than that beside the command.
    #[serde(default)]
    pub daemon: Option<PathBuf>,
}

/// A window of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The experiment.
    pub experiment: String,
    /// Which switch.
    pub subject: String,
    /// Where in the sweep.
    pub at: BTreeMap<String, Value>,
    /// Which of its windows, from 0.
    pub round: u32,
    /// What was measured.
    pub figures: BTreeMap<String, f64>,
    /// What limited it if not the switch.
    pub limited: Option<String>,
    /// Why it has no figures.
    pub missing: Option<String>,
    /// Seconds that it took.
    pub seconds: f64,
    /// How often it was repeated since the machine's speed moved.
    pub repeated: u32,
    /// Whether the speed moved also in the last, which was taken.
    #[serde(default)]
    pub moved: bool,
    /// The machine's speed, additions per nanosecond.
    pub speed: f64,
    /// A cache line's way between the first two cores that the window used and back, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_ns: Option<f64>,
    /// The core whose speed that is, and the second one if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<(usize, Option<usize>)>,
}

/// How often a journal that another run seems to write is tried again, and how long after.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// A journal that is written.
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins one in a directory, or goes on with the one that is there. Returns what is in it; the
    /// first entry is its header, the new one or that of before. An error where there is one and it
    /// is not to be resumed, where another run writes it, and where it is one of a different run.
    pub fn open(
        directory: &Path,
        header: Header,
        resume: bool,
    ) -> Result<(Journal, Vec<Entry>), Error> {
        let path = directory.join(NAME);
        let problem = |error| Error::file("write", &path, error);
        let refuse = |mismatch| Error::Resume {
            directory: directory.display().to_string(),
            mismatch,
        };
        std::fs::create_dir_all(directory)
            .map_err(|error| Error::file("make", directory, error))?;
        if path.exists() && !resume {
            return Err(Error::HasRun(directory.display().to_string()));
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(problem)?;
        // A process that is just being started has all files for a moment, and so the lock of one
        // that was closed meanwhile.
        let mut locked = file.try_lock();
        for _ in 0..LOCK_TRIES {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(LOCK_PAUSE);
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Busy(path.display().to_string()));
            }
            Err(TryLockError::Error(error)) => return Err(problem(error)),
        }
        let text = std::fs::read(&path).map_err(|error| Error::file("read", &path, error))?;
        let (entries, whole) = entries(&text).map_err(refuse)?;
        // Half a line is what a run that was killed wrote last.
        file.set_len(whole as u64).map_err(problem)?;
        file.seek(std::io::SeekFrom::End(0)).map_err(problem)?;
        let mut journal = Journal {
            file,
            path: path.clone(),
        };
        match entries.first() {
            None => {
                let entry = Entry::Run(header);
                journal.write(&entry)?;
                Ok((journal, vec![entry]))
            }
            Some(Entry::Run(before)) => {
                differs(before, &header).map_or(Ok(()), |mismatch| Err(refuse(mismatch)))?;
                Ok((journal, entries))
            }
            Some(_) => Err(refuse(Mismatch::Beginning)),
        }
    }

    /// Writes an entry and waits until it is on disk.
    pub fn write(&mut self, entry: &Entry) -> Result<(), Error> {
        let mut line = serde_json::to_vec(entry).expect("it has text as keys only");
        line.push(b'\n');
        let written = self
            .file
            .write_all(&line)
            .and_then(|()| self.file.sync_data());
        written.map_err(|error| Error::file("write", &self.path, error))
    }
}

/// Entries of whole lines, and how many bytes those are.
fn entries(text: &[u8]) -> Result<(Vec<Entry>, usize), Mismatch> {
    let whole = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let lines = text[..whole]
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let parse = |(number, line)| {
        serde_json::from_slice(line).map_err(|error| Mismatch::Line {
            number: number + 1,
            error,
        })
    };
    let entries = lines.enumerate().map(parse);
    Ok((entries.collect::<Result<_, Mismatch>>()?, whole))
}

/// Says how a run is not the same as before.
fn differs(before: &Header, now: &Header) -> Option<Mismatch> {
    let words = |what, before: String, now: String| {
        (before != now).then_some(Mismatch::Differs { what, before, now })
    };
    let some = |value: Option<String>| value.unwrap_or_else(|| "as the experiments say".into());
    words("mode", before.mode.clone(), now.mode.clone())
        .or_else(|| {
            let names = |h: &Header| h.experiments.keys().cloned().collect::<Vec<_>>().join(" ");
            words("experiments", names(before), names(now))
        })
        .or_else(|| {
            let other = now
                .experiments
                .iter()
                .find(|(id, text)| before.experiments[*id] != **text);
            other.map(|(id, _)| Mismatch::Experiment(id.clone()))
        })
        .or_else(|| {
            words(
                "subjects",
                before.subjects.join(" "),
                now.subjects.join(" "),
            )
        })
        .or_else(|| {
            let rounds = |h: &Header| some(h.rounds.map(|r| r.to_string()));
            words("rounds", rounds(before), rounds(now))
        })
        .or_else(|| {
            let seconds = |h: &Header| some(h.seconds.map(|s| s.to_string()));
            words("seconds", seconds(before), seconds(now))
        })
        .or_else(|| {
            let daemon = |h: &Header| match &h.daemon {
                Some(daemon) => daemon.display().to_string(),
                None => "beside the command".into(),
            };
            words("the daemon", daemon(before), daemon(now))
        })
        .or_else(|| {
            words(
                "cores",
                format!("{:?}", before.cores),
                format!("{:?}", now.cores),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            mode: "quick".into(),
            began: "2026-01-01T00:00:00Z".into(),
            experiments: BTreeMap::from([("A4".to_string(), "text".to_string())]),
            subjects: Vec::new(),
            rounds: None,
            seconds: None,
            cores: vec![1, 0],
            daemon: None,
        }
    }

    fn window(round: u32) -> Entry {
        Entry::Window(Box::new(Window {
            round,
            experiment: "A4".into(),
            ..Window::default()
        }))
    }

    #[test]
    fn what_was_written_is_there_again_without_half_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, before) = Journal::open(directory.path(), header(), false).unwrap();
        assert_eq!(before.len(), 1);
        journal.write(&window(0)).unwrap();
        // Nobody else writes it meanwhile.
        let busy = Journal::open(directory.path(), header(), true)
            .err()
            .unwrap()
            .to_string();
        assert!(busy.contains("is written by a run"), "{busy}");
        drop(journal);
        let path = directory.path().join(NAME);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"window\":{\"exper").unwrap();
        let later = Header {
            began: "2026-01-02T00:00:00Z".into(),
            ..header()
        };
        let (mut journal, before) = Journal::open(directory.path(), later, true).unwrap();
        assert_eq!(before, [Entry::Run(header()), window(0)]);
        journal.write(&window(1)).unwrap();
        drop(journal);
        let (_, before) = Journal::open(directory.path(), header(), true).unwrap();
        assert_eq!(before, [Entry::Run(header()), window(0), window(1)]);
    }

    #[test]
    fn a_different_run_is_not_resumed() {
        let directory = tempfile::tempdir().unwrap();
        drop(Journal::open(directory.path(), header(), false).unwrap());
        let error = |header, resume| {
            Journal::open(directory.path(), header, resume)
                .err()
                .unwrap()
                .to_string()
        };
        assert!(error(header(), false).contains("has a run already"));
        let changed = BTreeMap::from([("A4".to_string(), "other".to_string())]);
        for (other, what) in [
            (
                Header {
                    mode: "full".into(),
                    ..header()
                },
                "mode quick, and this is full",
            ),
            (
                Header {
                    experiments: BTreeMap::new(),
                    ..header()
                },
                "experiments A4",
            ),
            (
                Header {
                    experiments: changed,
                    ..header()
                },
                "experiment A4 has been changed",
            ),
            (
                Header {
                    rounds: Some(3),
                    ..header()
                },
                "rounds as the experiments say, and this is 3",
            ),
            (
                Header {
                    seconds: Some(0.5),
                    ..header()
                },
                "this is 0.5",
            ),
            (
                Header {
                    cores: vec![0],
                    ..header()
                },
                "cores [1, 0], and this is [0]",
            ),
            (
                Header {
                    subjects: vec!["ovs".into()],
                    ..header()
                },
                "this is ovs",
            ),
        ] {
            let text = error(other, true);
            assert!(
                text.starts_with("cannot resume") && text.contains(what),
                "{text}"
            );
        }
        std::fs::write(directory.path().join(NAME), "nonsense\n").unwrap();
        assert!(error(header(), true).contains("line 1"));
    }
}
