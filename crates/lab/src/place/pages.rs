//! Huge pages that are added to the kernel's pool while they are needed.
//!
//! The pool is the machine's: several labs and tests may ask at the same time. So each adds its
//! number to the kernel's and takes the same number away afterwards, under one lock.

use super::{Cleaned, Place, failed, lock_within, making, record, records};
use crate::subject::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// The end-to-end tests' lock as well.
const LOCK: &str = "/run/lock/sluice-hugepages";
const TURN: Duration = Duration::from_secs(60);

/// Huge pages of 2 MiB, given back when this is dropped.
#[derive(Debug)]
pub struct Pages {
    path: PathBuf,
}

impl Place {
    /// Adds so many huge pages of 2 MiB to the kernel's pool.
    pub fn reserve(&self, count: u32) -> Result<Pages, Error> {
        let _making = making()?;
        let _turn = turn()?;
        let before = pool().map_err(|error| {
            Error::Missing(format!("no huge pages of 2 MiB here ({POOL}: {error})"))
        })?;
        // On record before it happens: a lab that is killed in between took no more than that.
        let path = record(self, "pages", &Record::Wanted { count, before }.text())?;
        let pages = Pages { path };
        let got = change(i64::from(count), before)?;
        if got < i64::from(count) {
            change(-got, pool().unwrap_or(before))?;
            let _ = fs::remove_file(&pages.path);
            std::mem::forget(pages);
            return Err(Error::Missing(format!(
                "the kernel has no memory for {count} huge pages of 2 MiB in one piece each, not \
                 even after it was asked to make room; it found {got}"
            )));
        }
        // In one step: a record that is cut short would say that nothing was added.
        let beside = pages.path.with_file_name(".pages.new");
        fs::write(&beside, Record::Got(count).text())
            .and_then(|()| fs::rename(&beside, &pages.path))
            .map_err(|error| failed(&pages.path, &error))?;
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Err(error) = give_back(&self.path) {
            eprintln!("lab: {error}");
        }
    }
}

/// What is on record of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    /// So many were to be added when there were so many.
    Wanted { count: u32, before: i64 },
    /// So many have been added.
    Got(u32),
}

impl Record {
    fn text(self) -> String {
        match self {
            Record::Wanted { count, before } => format!("wanted {count} before {before}\n"),
            Record::Got(count) => format!("got {count}\n"),
        }
    }

    fn read(text: &str) -> Option<Record> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["wanted", count, "before", before] => Some(Record::Wanted {
                count: count.parse().ok()?,
                before: before.parse().ok()?,
            }),
            ["got", count] => Some(Record::Got(count.parse().ok()?)),
            _ => None,
        }
    }

    /// How many are to be taken away when the pool has so many.
    fn to_give(self, now: i64) -> i64 {
        match self {
            Record::Wanted { count, before } => (now - before).clamp(0, i64::from(count)),
            Record::Got(count) => i64::from(count).min(now),
        }
    }
}

/// Gives back what a record says; returns how many pages that were.
fn give_back(path: &Path) -> Result<i64, Error> {
    let _turn = turn()?;
    // Read under the lock: where two give back the same, the second finds no record.
    let Some(record) = Record::read(&fs::read_to_string(path).unwrap_or_default()) else {
        // Nothing was added before it was written.
        let _ = fs::remove_file(path);
        return Ok(0);
    };
    let now = pool().map_err(|error| failed(Path::new(POOL), &error))?;
    let count = record.to_give(now);
    change(-count, now)?;
    let _ = fs::remove_file(path);
    Ok(count)
}

/// Gives back what a place has on record.
pub(super) fn give_back_all(place: &Place, cleaned: &mut Cleaned) {
    for (path, _) in records(place, "pages") {
        match give_back(&path) {
            Ok(0) => {}
            Ok(count) => cleaned.removed.push(format!("{count} huge pages of 2 MiB")),
            Err(error) => cleaned.failed.push(error.to_string()),
        }
    }
}

fn turn() -> Result<fs::File, Error> {
    lock_within(Path::new(LOCK), TURN)
}

fn pool() -> std::io::Result<i64> {
    let text = fs::read_to_string(POOL)?;
    text.trim().parse().map_err(std::io::Error::other)
}

/// Adds pages to the pool, which has so many, and returns by how many it really grew.
///
/// Where memory is in too many pieces, as after a build that has filled it with files, the kernel
/// puts it together, and if that is not enough forgets what it remembers of files.
fn change(difference: i64, before: i64) -> Result<i64, Error> {
    let wanted = (before + difference).max(0);
    for attempt in 0..4 {
        // What has just ended gives its memory back within moments.
        std::thread::sleep(Duration::from_secs(attempt));
        if attempt > 1 {
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        }
        if attempt > 0 {
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
        }
        fs::write(POOL, wanted.to_string()).map_err(|error| failed(Path::new(POOL), &error))?;
        if pool().map_err(|error| failed(Path::new(POOL), &error))? >= wanted {
            break;
        }
    }
    Ok(pool().map_err(|error| failed(Path::new(POOL), &error))? - before)
}

/// Where huge pages are mounted: DPDK's files may be there.
pub(super) fn mounts() -> Vec<PathBuf> {
    mounts_in(&fs::read_to_string("/proc/self/mounts").unwrap_or_default())
}

fn mounts_in(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (_, path, kind) = (words.next()?, words.next()?, words.next()?);
            (kind == "hugetlbfs").then(|| PathBuf::from(path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        for record in [
            Record::Wanted {
                count: 5,
                before: 39,
            },
            Record::Got(1400),
        ] {
            assert_eq!(Record::read(&record.text()), Some(record));
        }
        for text in ["", "got", "got x", "wanted 5", "got 1 2"] {
            assert_eq!(Record::read(text), None, "{text}");
        }
    }

    #[test]
    fn no_more_is_given_back_than_was_taken() {
        assert_eq!(Record::Got(100).to_give(139), 100);
        assert_eq!(Record::Got(100).to_give(60), 60);
        let wanted = Record::Wanted {
            count: 100,
            before: 39,
        };
        // Killed before anything was added, in the middle, and after.
        assert_eq!(wanted.to_give(39), 0);
        assert_eq!(wanted.to_give(89), 50);
        assert_eq!(wanted.to_give(139), 100);
        // Somebody else has added more, or taken its own away.
        assert_eq!(wanted.to_give(500), 100);
        assert_eq!(wanted.to_give(10), 0);
    }

    #[test]
    fn mounts_of_huge_pages_are_found() {
        let text = "proc /proc proc rw 0 0\nnone /dev/hugepages hugetlbfs rw 0 0\n";
        assert_eq!(mounts_in(text), [PathBuf::from("/dev/hugepages")]);
    }
}
