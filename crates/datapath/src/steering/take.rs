//! The receiving end of a ring between two workers.

use super::{Entry, Origin, Progress};
use crossbeam_utils::CachePadded;
use packet::Frame;
use packet::io::BURST;
use rtrb::Consumer;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A worker's end of the ring from another worker.
pub(crate) struct Inbox<F> {
    frames: Consumer<Entry<F>>,
    progress: Arc<CachePadded<Progress>>,
    /// Number of times that its frames made the worker panic, and until when it is left alone for
    /// that, in cycles.
    pub failures: u32,
    pub left_until: u64,
    /// Most frames taken at a time.
    pub most: usize,
    /// Number of waiting frames that have been prefetched.
    asked: usize,
    taken: u64,
    told: u64,
}

impl<F: Frame> Inbox<F> {
    pub(super) fn new(
        frames: Consumer<Entry<F>>,
        progress: Arc<CachePadded<Progress>>,
    ) -> Inbox<F> {
        Inbox {
            frames,
            progress,
            failures: 0,
            left_until: 0,
            most: BURST,
            asked: 0,
            taken: 0,
            told: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns whether frames have been taken that are not reported as finished.
    pub fn is_untold(&self) -> bool {
        self.told != self.taken
    }

    /// Takes the next frames of one queue, at most [`Inbox::most`], and returns how they came in,
    /// and how many were lost because `allocate` gave no memory for their bytes.
    #[inline]
    pub fn take(
        &mut self,
        out: &mut Vec<F>,
        allocate: impl Fn(&[u8]) -> Option<F>,
    ) -> Option<(Origin, u64)> {
        // Two bursts: one to take, and one to prefetch while the first is processed.
        let waiting = self.frames.slots().min(2 * BURST);
        let chunk = self.frames.read_chunk(waiting).ok()?;
        let (start, end) = chunk.as_slices();
        let origin = start.first()?.origin;
        let mut run = 0;
        for (index, entry) in start.iter().chain(end).enumerate() {
            if index >= self.asked {
                entry.prefetch();
            }
            if index == run && run < self.most && entry.origin == origin {
                run += 1;
            }
        }
        self.asked = waiting - run;
        let chunk = self.frames.read_chunk(run).ok()?;
        let mut lost = 0;
        for entry in chunk {
            // Counted first: if what follows panics, the entry is gone nevertheless.
            self.taken += 1;
            let frame = entry.frame.or_else(|| {
                // SAFETY: the bytes are those of a frame that the sender keeps, and does not
                // change, until `Progress::taken` counts this entry, which is done below.
                allocate(unsafe { slice::from_raw_parts(entry.bytes, entry.length as usize) })
            });
            match frame {
                Some(frame) => out.push(frame),
                None => lost += 1,
            }
        }
        self.progress.taken.store(self.taken, Ordering::Release);
        Some((origin, lost))
    }

    /// Reports all that has been taken as finished.
    #[inline]
    pub fn tell(&mut self) {
        self.told = self.taken;
        self.progress.taken.store(self.taken, Ordering::Release);
        self.progress.finished.store(self.taken, Ordering::Release);
    }

    /// Drops what is waiting; returns the number of frames.
    pub fn discard(&mut self) -> usize {
        let count = self.frames.slots();
        if let Ok(chunk) = self.frames.read_chunk(count) {
            chunk.commit_all();
        }
        self.taken += count as u64;
        self.asked = 0;
        self.tell();
        count
    }
}
