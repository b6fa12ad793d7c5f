//! Settings and state of fragments that wait at `ct`.

use super::Datapath;
use conntrack::fragments::{OutOfRange, Status};
use packet::Frame;

impl<F: Frame + 'static> Datapath<F> {
    /// Has at most so many buffers of frames wait at `ct` for the rest of their datagrams.
    pub fn bound_fragments(&self, buffers: u64) {
        self.shared.fragments.bound(buffers);
    }

    /// Returns settings and counts of fragments.
    pub fn fragments(&self) -> Status {
        self.shared.fragments.status()
    }

    /// Returns a line for each datagram of which fragments wait.
    pub fn waiting_fragments(&self) -> String {
        self.shared.fragments.lines()
    }

    /// Sets whether fragments of a family wait for the rest of their datagrams.
    pub fn set_fragments_enabled(&self, v6: bool, is_enabled: bool) {
        self.shared.fragments.set_enabled(v6, is_enabled);
    }

    /// Sets the least size in bytes of a family's fragments that are not last ones.
    pub fn set_fragments_minimum(&self, v6: bool, bytes: u32) -> Result<(), OutOfRange> {
        self.shared.fragments.set_minimum(v6, bytes)
    }

    /// Sets how many fragments may wait.
    pub fn set_most_fragments(&self, most: u32) -> Result<(), OutOfRange> {
        self.shared.fragments.set_most(most)
    }

    /// Frees fragments that no worker has let go on in time, because there is none or it is stuck.
    /// To be called once in a while.
    pub fn purge_overdue_fragments(&self) {
        let now_ms = self.shared.clock.now_ms();
        self.shared.fragments.purge(Some(now_ms));
    }
}
