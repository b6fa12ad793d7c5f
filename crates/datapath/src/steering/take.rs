//! The receiving end of a ring between two workers.

use super::Handed;
use crate::port::PortId;
use crossbeam_utils::CachePadded;
use packet::Frame;
use packet::io::BURST;
use rtrb::Consumer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a worker finds frames of one other.
pub(crate) struct Inbox<F> {
    frames: Consumer<Handed<F>>,
    /// What the sender reads.
    finished: Arc<CachePadded<AtomicU64>>,
    taken: u64,
    told: u64,
}

impl<F: Frame> Inbox<F> {
    pub(super) fn new(
        frames: Consumer<Handed<F>>,
        finished: Arc<CachePadded<AtomicU64>>,
    ) -> Inbox<F> {
        Inbox {
            frames,
            finished,
            taken: 0,
            told: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether frames have been taken of which nothing has been told.
    pub fn is_untold(&self) -> bool {
        self.told != self.taken
    }

    /// Takes the next frames of one port, a burst at most, and says which port that is and whether
    /// nothing was left to be done to them.
    #[inline]
    pub fn take(&mut self, out: &mut Vec<F>) -> Option<(PortId, bool)> {
        let waiting = self.frames.slots().min(BURST);
        let first = self.frames.peek().ok()?;
        let (port, finished) = (first.port, first.finished);
        let alike = |handed: &&Handed<F>| handed.port == port && handed.finished == finished;
        let run = {
            let chunk = self.frames.read_chunk(waiting).ok()?;
            let (start, end) = chunk.as_slices();
            start.iter().chain(end).take_while(alike).count()
        };
        let chunk = self.frames.read_chunk(run).ok()?;
        out.extend(chunk.into_iter().map(|handed| handed.frame));
        self.taken += run as u64;
        Some((port, finished))
    }

    /// All that has been taken is finished.
    #[inline]
    pub fn tell(&mut self) {
        self.told = self.taken;
        self.finished.store(self.taken, Ordering::Release);
    }

    /// Throws away what is waiting; how many frames that were.
    pub fn discard(&mut self) -> usize {
        let count = self.frames.slots();
        if let Ok(chunk) = self.frames.read_chunk(count) {
            chunk.commit_all();
        }
        self.taken += count as u64;
        self.tell();
        count
    }
}
