//! Limit on what a receive queue may take in one turn of a worker: not only a number of frames, but
//! also of bytes and segments, since a frame of 64 KiB costs thirty times as much as a short one,
//! and one to be cut into a thousand segments far more.

use crate::mbuf::Mbuf;
use packet::frame::{Frame, Gso};

/// Bytes after which a queue takes no more in this turn: four of the longest frames.
pub(crate) const BYTES: usize = 256 << 10;

/// Requested segments after which a queue takes no more in this turn. Five frames of 64 KiB in
/// packets of 1500 bytes are 225.
pub(crate) const SEGMENTS: usize = 1024;

/// What a queue has taken in this turn.
#[derive(Default, Debug)]
pub(crate) struct Turn {
    bytes: usize,
    segments: usize,
}

impl Turn {
    /// Counts a frame that was taken.
    pub(crate) fn spend(&mut self, frame: &Mbuf) {
        self.bytes += frame.len();
        let offload = frame.offload();
        if offload.gso != Gso::None {
            self.segments += frame.len().div_ceil(usize::from(offload.gso_size).max(1));
        }
    }

    /// Returns whether further frames must wait for the next turn.
    pub(crate) fn is_over(&self) -> bool {
        self.bytes >= BYTES || self.segments >= SEGMENTS
    }
}
