//! Cores that a lab measures on, which no other lab of the machine uses meanwhile.
//!
//! A file for each core is locked; the kernel takes the lock back however its holder ends. What is
//! written in the file says who that is.

use super::{HOME, failed, interrupted, try_lock};
use crate::subject::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often held cores are tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Cores that are this process's as long as this lives.
#[derive(Debug)]
pub struct Cores {
    _locks: Vec<File>,
}

impl Cores {
    /// Takes cores. Where another lab has some of them, says so to `tell` and waits for at most
    /// `limit`; the error then says who has which.
    pub fn take(
        cores: &[usize],
        limit: Duration,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Cores, Error> {
        Cores::take_in(Path::new(HOME), cores, limit, tell)
    }

    fn take_in(
        home: &Path,
        cores: &[usize],
        limit: Duration,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Cores, Error> {
        fs::create_dir_all(home).map_err(|error| failed(home, &error))?;
        // All labs take them in the same order, so that none holds what another waits for while it
        // waits for that one.
        let mut wanted = cores.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let end = Instant::now() + limit;
        let (mut locks, mut told) = (Vec::new(), false);
        for core in &wanted {
            let path = home.join(format!("core-{core}"));
            let mut file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|error| failed(&path, &error))?;
            while !try_lock(&file) {
                let who = holder(&path);
                if let Some(signal) = interrupted() {
                    return Err(Error::Failed(format!(
                        "signal {signal} came while core {core} was waited for"
                    )));
                }
                if Instant::now() >= end {
                    return Err(Error::Failed(format!(
                        "core {core} is measured on by {who}, and was for {} s: wait longer \
                         (--wait), or take other cores (--core)",
                        limit.as_secs()
                    )));
                }
                if !told {
                    tell(&format!(
                        "core {core} is measured on by {who}: waiting for up to {} s (--wait)",
                        limit.as_secs()
                    ));
                    told = true;
                }
                std::thread::sleep(PAUSE.min(end.saturating_duration_since(Instant::now())));
            }
            let words: Vec<String> = std::env::args().skip(1).take(8).collect();
            let text = format!("process {} ({})\n", std::process::id(), words.join(" "));
            file.set_len(0)
                .and_then(|()| file.write_all(text.as_bytes()))
                .map_err(|error| failed(&path, &error))?;
            locks.push(file);
        }
        Ok(Cores { _locks: locks })
    }
}

/// Who has a core, as its file says.
fn holder(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text: String = text.trim().chars().take(200).collect();
    match text.is_empty() {
        true => "another lab".into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_one_labs_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let mut told = Vec::new();
        let mut take = |cores: &[usize], milliseconds| {
            let limit = Duration::from_millis(milliseconds);
            Cores::take_in(home.path(), cores, limit, &mut |text| {
                told.push(text.to_string())
            })
        };
        let first = take(&[1, 0, 1], 0).unwrap();
        let error = take(&[3, 1], 50).unwrap_err().to_string();
        let own = format!("process {}", std::process::id());
        assert!(
            error.contains("core 1 is measured on by") && error.contains(&own),
            "{error}"
        );
        // What it could have had is free again.
        let other = take(&[3], 0).unwrap();
        drop(first);
        let second = take(&[0, 1], 0).unwrap();
        drop((other, second));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("waiting for up to 0 s"), "{told:?}");
    }

    #[test]
    fn who_waits_gets_it_when_it_is_free() {
        let home = tempfile::tempdir().unwrap();
        let first = Cores::take_in(home.path(), &[0], Duration::ZERO, &mut |_| {}).unwrap();
        let path = home.path();
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let waiter = scope.spawn(move || {
                let limit = Duration::from_secs(60);
                let mut tell = |text: &str| sender.send(text.to_string()).unwrap();
                Cores::take_in(path, &[0], limit, &mut tell)
            });
            receiver.recv_timeout(Duration::from_secs(60)).unwrap();
            drop(first);
            waiter.join().unwrap().unwrap();
        });
    }
}
