//! A place of the lab's own: a run directory, network namespaces, processes, huge pages. Everything
//! in it has a name that begins with the place's prefix, and the prefix contains the lab's process
//! ID, so that several labs run side by side.
//!
//! A place goes with its [`OwnPlace`]: when that is dropped, and when the process is ended by a
//! signal ([`heed_signals`]). A lab that was killed leaves its place behind, and [`clean`] removes
//! it. Whether a lab lives is told by a lock on a file of its directory, which the kernel takes
//! back however a lab ends; so what a living lab has is never touched, not even by a lab that sees
//! other process IDs.
//!
//! What is recorded in the directory, so that it can be taken back:
//!
//! | file | what it says |
//! | --- | --- |
//! | `lock` | locked while the lab lives |
//! | `process.*` | a process: its ID, when it was started, and the namespace of its ID |
//! | `pages.*` | huge pages that were added to the kernel's |
//! | `device.*` | a device that was moved into a namespace |
//!
//! Processes are found also by [`MARK`] in their environment, which those have that were started by
//! what the lab started.
//!
//! Labs that measure on the same cores take turns ([`Cores`]).

mod command;
mod cores;
mod namespace;
mod pages;
mod process;
mod signals;

pub use crate::subject::Place;
pub use command::{run, run_with, wait_for};
pub use cores::Cores;
pub use namespace::{Namespace, Statistics};
pub use pages::Pages;
pub use process::{Launch, Program};
pub use signals::{heed_signals, interrupted};

use crate::subject::Error;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Where labs have their directories.
pub const HOME: &str = "/run/sluice-lab";
/// What all prefixes begin with; the process ID follows.
pub const STEM: &str = "sluicelab";
/// The environment variable by which processes of a place are recognized; its value is the prefix.
pub const MARK: &str = "SLUICE_LAB";
/// How long labs wait for each other while one of them begins or is cleaned up after.
const TURN: Duration = Duration::from_secs(60);
/// How long processes have to end by themselves before they are killed: a program of the lab's
/// removes what it made.
const GRACE: Duration = Duration::from_secs(15);

/// Places of this process, which a signal removes. Who makes something in a place holds the lock
/// meanwhile.
static PLACES: Mutex<Places> = Mutex::new(Places {
    made: Vec::new(),
    closed: false,
});

struct Places {
    made: Vec<Place>,
    /// Whether the process is being ended: nothing is made any more.
    closed: bool,
}

/// A place, removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct OwnPlace {
    place: Place,
    /// Locked as long as it is open.
    _lock: File,
}

impl OwnPlace {
    /// Makes a place.
    pub fn make() -> Result<OwnPlace, Error> {
        if !is_root() {
            return Err(Error::Missing(
                "the lab makes network namespaces, which only root can do".into(),
            ));
        }
        OwnPlace::make_in(Path::new(HOME))
    }

    fn make_in(home: &Path) -> Result<OwnPlace, Error> {
        fs::create_dir_all(home).map_err(|error| failed(home, &error))?;
        let mut places = making()?;
        let _turn = turn(home)?;
        for number in 0..1000 {
            let prefix = match number {
                0 => format!("{STEM}{}-", std::process::id()),
                _ => format!("{STEM}{}.{number}-", std::process::id()),
            };
            let directory = home.join(prefix.trim_end_matches('-'));
            match fs::create_dir(&directory) {
                Ok(()) => {}
                // This process has one already, or somebody with the same ID has or left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(failed(&directory, &error)),
            }
            let path = directory.join("lock");
            let lock = File::create(&path).map_err(|error| failed(&path, &error))?;
            if !try_lock(&lock) {
                return Err(Error::Failed(format!(
                    "{path:?} is locked although it is new"
                )));
            }
            let place = Place { directory, prefix };
            places.made.push(place.clone());
            return Ok(OwnPlace { place, _lock: lock });
        }
        Err(Error::Failed(format!(
            "{} has a thousand directories of labs with this process ID; `sluice lab clean` \
             removes those of dead labs",
            home.display()
        )))
    }

    /// Removes the place and all that is in it; the error says what could not be removed.
    pub fn remove(self) -> Result<(), Error> {
        let cleaned = self.take_away();
        // Dropping it finds nothing more.
        match cleaned.failed.is_empty() {
            true => Ok(()),
            false => Err(Error::Failed(cleaned.failed.join("; "))),
        }
    }

    fn take_away(&self) -> Cleaned {
        let mut places = PLACES
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut cleaned = Cleaned::default();
        if places
            .made
            .iter()
            .any(|made| made.prefix == self.place.prefix)
        {
            places.made.retain(|made| made.prefix != self.place.prefix);
            take_away(&self.place, &mut cleaned);
        }
        cleaned
    }
}

impl Deref for OwnPlace {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Drop for OwnPlace {
    fn drop(&mut self) {
        for problem in self.take_away().failed {
            eprintln!("lab: {problem}");
        }
    }
}

/// What [`clean`] did, a phrase for each thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// What it removed.
    pub removed: Vec<String>,
    /// What it could not remove, and why.
    pub failed: Vec<String>,
    /// Labs that live, whose things it left alone.
    pub living: Vec<String>,
}

/// Removes what labs left behind that no longer live.
pub fn clean() -> Result<Cleaned, Error> {
    let mut cleaned = clean_in(Path::new(HOME))?;
    clean_strays(Path::new(HOME), &mut cleaned);
    Ok(cleaned)
}

fn clean_in(home: &Path) -> Result<Cleaned, Error> {
    let mut cleaned = Cleaned::default();
    if !home.exists() {
        return Ok(cleaned);
    }
    let _turn = turn(home)?;
    for name in names_in(home) {
        let directory = home.join(&name);
        if !is_prefix_of_a_lab(&name) || !directory.is_dir() {
            continue;
        }
        // A lab that was killed between making its directory and the file has none.
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join("lock"));
        match lock {
            Ok(lock) if try_lock(&lock) => {
                let prefix = format!("{name}-");
                // One that cannot be cleaned keeps nobody from cleaning the others.
                let mut own = Cleaned::default();
                take_away(&Place { directory, prefix }, &mut own);
                cleaned.removed.append(&mut own.removed);
                cleaned.failed.append(&mut own.failed);
            }
            Ok(_) => cleaned.living.push(name),
            Err(error) => cleaned.failed.push(failed(&directory, &error).to_string()),
        }
    }
    Ok(cleaned)
}

/// Namespaces and DPDK's directories whose lab has no directory any more and no process of the ID.
fn clean_strays(home: &Path, cleaned: &mut Cleaned) {
    let mut prefixes = BTreeSet::new();
    for name in names_in(Path::new(namespace::DIRECTORY)) {
        prefixes.insert(name);
    }
    for name in names_in(Path::new("/run/dpdk")) {
        prefixes.insert(name);
    }
    let prefixes: BTreeSet<&str> = prefixes
        .iter()
        .filter_map(|name| name.split_once('-'))
        .map(|(lab, _)| lab)
        .collect();
    for lab in prefixes {
        let number = lab.strip_prefix(STEM).unwrap_or_default();
        let id = number.split('.').next().unwrap_or_default();
        if !is_prefix_of_a_lab(lab)
            || home.join(lab).exists()
            || Path::new("/proc").join(id).exists()
        {
            continue;
        }
        let place = Place {
            directory: home.join(lab),
            prefix: format!("{lab}-"),
        };
        take_away(&place, cleaned);
    }
}

/// Whether a name is that of a lab's directory: the stem, a process ID, perhaps a number.
fn is_prefix_of_a_lab(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(STEM) else {
        return false;
    };
    let (id, number) = rest.split_once('.').unwrap_or((rest, "0"));
    [id, number]
        .iter()
        .all(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Removes all that is in a place: processes first, since they use the rest, the directory last,
/// since it tells of the rest.
fn take_away(place: &Place, cleaned: &mut Cleaned) {
    process::end_all(place, GRACE, cleaned);
    namespace::remove_all(place, cleaned);
    pages::give_back_all(place, cleaned);
    let mut leftovers = vec![PathBuf::from("/run/dpdk")];
    leftovers.extend(pages::mounts());
    for directory in leftovers {
        for name in names_in(&directory) {
            if name.starts_with(&place.prefix) {
                remove_path(&directory.join(name), cleaned);
            }
        }
    }
    if cleaned.failed.is_empty() && place.directory.exists() {
        remove_path(&place.directory, cleaned);
    }
}

fn remove_path(path: &Path, cleaned: &mut Cleaned) {
    let done = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match done {
        Ok(()) => cleaned.removed.push(path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => cleaned.failed.push(failed(path, &error).to_string()),
    }
}

/// Where things are made: nobody removes the place meanwhile. An error where it is being removed.
fn making() -> Result<std::sync::MutexGuard<'static, Places>, Error> {
    let places = PLACES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if places.closed || interrupted().is_some() {
        return Err(Error::Failed("the lab is being ended by a signal".into()));
    }
    Ok(places)
}

/// Waits until no other lab is being made or cleaned up after; others wait until this is dropped.
fn turn(home: &Path) -> Result<File, Error> {
    lock_within(&home.join("turn"), TURN)
}

/// Opens and locks a file, which is made if need be.
fn lock_within(path: &Path, limit: Duration) -> Result<File, Error> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|error| failed(path, &error))?;
    let end = Instant::now() + limit;
    while !try_lock(&file) {
        if Instant::now() > end {
            return Err(Error::Failed(format!(
                "{}: somebody has held the lock for {} s",
                path.display(),
                limit.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(file)
}

fn try_lock(file: &File) -> bool {
    file.try_lock().is_ok()
}

/// Has this thread run on a core only. Where that is not allowed it runs anywhere.
pub(crate) fn pin(core: usize) {
    if core < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(core);
        let _ = sched_setaffinity(None, &set);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Names in a directory, in order; none if it cannot be read.
fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Failed(format!("{}: {error}", path.display()))
}

/// A new file of a place whose name begins so.
pub(crate) fn record(place: &Place, kind: &str, text: &str) -> Result<PathBuf, Error> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = place.directory.join(format!("{kind}.{number}"));
    fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    Ok(path)
}

/// The texts of a place's records whose names begin so, with their paths.
fn records(place: &Place, kind: &str) -> Vec<(PathBuf, String)> {
    let start = format!("{kind}.");
    names_in(&place.directory)
        .into_iter()
        .filter(|name| name.starts_with(&start))
        .filter_map(|name| {
            let path = place.directory.join(name);
            fs::read_to_string(&path).ok().map(|text| (path, text))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_labs() {
        for name in ["sluicelab1", "sluicelab4194304", "sluicelab77.3"] {
            assert!(is_prefix_of_a_lab(name), "{name}");
        }
        for name in [
            "sluicelab",
            "sluicelab1x",
            "sluicelab1.",
            "sluicelab.1",
            "lab1",
            "turn",
        ] {
            assert!(!is_prefix_of_a_lab(name), "{name}");
        }
    }

    #[test]
    fn a_place_goes_when_it_is_dropped() {
        let home = tempfile::tempdir().unwrap();
        let place = OwnPlace::make_in(home.path()).unwrap();
        let directory = place.directory.clone();
        assert!(directory.join("lock").exists());
        assert!(
            place.prefix.contains(&std::process::id().to_string()),
            "{}",
            place.prefix
        );
        drop(place);
        assert!(!directory.exists());
    }

    #[test]
    fn places_side_by_side_have_different_names() {
        let home = tempfile::tempdir().unwrap();
        let one = OwnPlace::make_in(home.path()).unwrap();
        let two = OwnPlace::make_in(home.path()).unwrap();
        assert_ne!(one.prefix, two.prefix);
        assert!(!two.prefix.starts_with(&one.prefix) && !one.prefix.starts_with(&two.prefix));
        drop(one);
        assert!(two.directory.exists());
    }

    #[test]
    fn living_labs_are_left_alone_and_dead_ones_removed() {
        let home = tempfile::tempdir().unwrap();
        let living = OwnPlace::make_in(home.path()).unwrap();
        let dead = home.path().join("sluicelab999999999");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("some.log"), "text").unwrap();
        let other = home.path().join("not-a-lab");
        fs::create_dir(&other).unwrap();
        let cleaned = clean_in(home.path()).unwrap();
        assert_eq!(cleaned.removed, [dead.display().to_string()]);
        assert_eq!(cleaned.living, [living.prefix.trim_end_matches('-')]);
        assert_eq!(cleaned.failed, Vec::<String>::new());
        assert!(!dead.exists() && other.exists() && living.directory.exists());
    }

    #[test]
    fn nothing_is_cleaned_where_no_lab_ever_was() {
        let home = tempfile::tempdir().unwrap();
        let cleaned = clean_in(&home.path().join("none")).unwrap();
        assert_eq!(cleaned, Cleaned::default());
    }
}
