//! A port that writes frames to a pcap file.

use crate::capture::Writer;
use crate::clock::Clock;
use crate::engine::{NotWhole, Tap};
use packet::Frame;
use packet::io::{TxOutcome, TxQueue};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A pcap file that is being written.
#[derive(Debug)]
pub struct FilePort {
    writer: Writer,
    path: PathBuf,
    clock: Clock,
    /// Time of day when the clock was 0, nanoseconds.
    epoch: u64,
    /// The first error; nothing is written after it.
    failed: Option<std::io::Error>,
}

impl FilePort {
    /// Makes the file, in place of one of this name.
    pub fn create(path: &Path, clock: &Clock) -> std::io::Result<FilePort> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_nanos() as u64);
        Ok(FilePort {
            writer: Writer::create(path)?,
            path: path.into(),
            clock: clock.clone(),
            epoch: now.saturating_sub(clock.now()),
            failed: None,
        })
    }

    /// Writes a frame; returns false after an error.
    fn write<F: Frame>(&mut self, frame: &F, now: u64) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let parts = (0..frame.segment_count()).filter_map(|at| frame.segment(at));
        let done = self.writer.add(self.epoch + now, frame.len(), parts);
        self.note(done);
        self.failed.is_none()
    }

    fn note(&mut self, done: std::io::Result<()>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }
}

impl<F: Frame> TxQueue<F> for FilePort {
    fn send(&mut self, frames: &mut Vec<F>) -> TxOutcome {
        let now = self.clock.now();
        let mut outcome = TxOutcome::default();
        for frame in frames.drain(..) {
            match self.write(&frame, now) {
                true => {
                    outcome.packets += 1;
                    outcome.bytes += frame.len() as u64;
                }
                false => outcome.failed += 1,
            }
        }
        outcome
    }
}

impl<F: Frame> Tap<F> for FilePort {
    fn note(&mut self, frame: &F, now: u64) {
        self.write(frame, now);
    }

    fn end(&mut self) -> Result<(), NotWhole> {
        let done = self.writer.flush();
        FilePort::note(self, done);
        match self.failed.take() {
            None => Ok(()),
            Some(error) => Err(NotWhole {
                path: self.path.clone(),
                error,
            }),
        }
    }
}
