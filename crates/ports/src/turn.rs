//! What a receive queue may take of a worker in one turn: not only so many frames, but so many
//! bytes and segments, since a frame of 64 KiB costs thirty times what a short one does, and one
//! that is to be cut into a thousand far more.

use crate::mbuf::Mbuf;
use packet::frame::{Frame, Gso};

/// Bytes after which a queue takes no more in this turn: four of the longest frames.
pub(crate) const BYTES: usize = 256 << 10;

/// Segments that frames ask to be cut into after which it takes no more. Five frames of 64 KiB in
/// packets of 1500 bytes are 225.
pub(crate) const SEGMENTS: usize = 1024;

/// What a queue has taken in a turn.
#[derive(Default, Debug)]
pub(crate) struct Turn {
    bytes: usize,
    segments: usize,
}

impl Turn {
    /// Notes a frame that was taken.
    pub(crate) fn spend(&mut self, frame: &Mbuf) {
        self.bytes += frame.len();
        let offload = frame.offload();
        if offload.gso != Gso::None {
            self.segments += frame.len().div_ceil(usize::from(offload.gso_size).max(1));
        }
    }

    /// Whether what comes next has to wait for the next turn.
    pub(crate) fn is_over(&self) -> bool {
        self.bytes >= BYTES || self.segments >= SEGMENTS
    }
}
