//! Sending to a guest.

use super::MAX_PAIRS;
use super::access::{Look, Quick};
use super::receive::REFUSALS;
use super::ring::{Put, RingPosition, View};
use super::shared::{Shared, Takes};
use super::sizes::{MOST, Sizes, Tally};
use crate::egress;
use crate::gate::Key;
use crate::mbuf;
use crate::mbuf::Mbuf;
use packet::frame::Frame;
use packet::io::{BURST, TxOutcome, TxQueue};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Transmit queue of one worker to the guest.
pub(super) struct VhostTx {
    pub(super) shared: Arc<Shared>,
    pub(super) worker: usize,
    /// Counts of the worker's packets.
    pub(super) sizes: Arc<Sizes>,
    pub(super) scratch: Vec<Mbuf>,
    /// Access to the ring used last.
    pub(super) access: Option<RingAccess>,
}

/// A sender's access to a ring, which it may share with other workers' queues.
pub(super) struct RingAccess {
    pub(super) ring: u16,
    /// The key to the ring's gate.
    pub(super) key: Key,
    pub(super) quick: Quick,
}

impl RingAccess {
    /// Returns the access to the ring that this worker must use; creates it if the last one was for
    /// another ring.
    #[inline]
    pub(super) fn find<'a>(
        last: &'a mut Option<RingAccess>,
        shared: &Shared,
        worker: usize,
    ) -> Option<&'a mut RingAccess> {
        let ring = (0..MAX_PAIRS)
            .map(|step| (worker + step) % MAX_PAIRS * 2)
            .find(|ring| shared.rings[*ring].enabled.load(Ordering::Relaxed))?
            as u16;
        if last.as_ref().is_none_or(|access| access.ring != ring) {
            // Drop the old keys first: the last user of that ring may then enter alone.
            *last = None;
            *last = Some(RingAccess::new(shared, ring));
        }
        last.as_mut()
    }

    #[cold]
    pub(super) fn new(shared: &Shared, ring: u16) -> RingAccess {
        let doors = &shared.rings[usize::from(ring)];
        RingAccess {
            ring,
            key: doors.gate.key(),
            quick: Quick::new(doors.quick.key(), false),
        }
    }
}

/// How many times frames are prepared again if the guest changes meanwhile, each time with a new
/// device.
pub(super) const TRIES: usize = 3;

impl TxQueue<Mbuf> for VhostTx {
    fn send(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        let seen = self.shared.takes();
        if egress::scan(frames, seen.longest).special {
            self.send_special(frames, seen, TRIES)
        } else {
            self.send_ready(frames, seen, TRIES)
        }
    }
}

/// Drops and counts frames for a guest that is not connected.
#[cold]
pub(super) fn refused(frames: &mut Vec<Mbuf>) -> TxOutcome {
    let outcome = TxOutcome {
        failed: frames.len() as u64,
        ..TxOutcome::default()
    };
    mbuf::free_all(frames);
    outcome
}

impl VhostTx {
    /// Sends frames of which some must be prepared for a guest with the settings `takes`. Slow work
    /// is done before the gate is entered, since others may wait there.
    #[cold]
    pub(super) fn send_special(
        &mut self,
        frames: &mut Vec<Mbuf>,
        takes: Takes,
        tries: usize,
    ) -> TxOutcome {
        if tries == 0 || RingAccess::find(&mut self.access, &self.shared, self.worker).is_none() {
            return refused(frames);
        }
        let mut slice = std::mem::take(&mut self.scratch);
        let send = |slice: &mut Vec<Mbuf>| self.send_ready(slice, takes, tries - 1);
        let outcome = egress::send_in_slices(frames, &mut slice, &takes.abilities(), send);
        self.scratch = slice;
        outcome
    }

    /// Sends frames that were prepared for the settings `seen`.
    pub(super) fn send_ready(
        &mut self,
        frames: &mut Vec<Mbuf>,
        seen: Takes,
        tries: usize,
    ) -> TxOutcome {
        let shared = &*self.shared;
        let takes = 'another: {
            let Some(access) = RingAccess::find(&mut self.access, shared, self.worker) else {
                return refused(frames);
            };
            let Some(inside) = access.key.enter() else {
                return refused(frames);
            };
            let takes = shared.takes();
            if takes != seen {
                // Another guest has connected meanwhile.
                break 'another takes;
            }
            let (quick, sizes) = (&mut access.quick, &self.sizes);
            let (outcome, tells) = put_all(quick, shared, access.ring, frames, sizes);
            drop(inside);
            if tells {
                access.quick.tell();
            }
            mbuf::free_all(frames);
            return outcome;
        };
        self.send_special(frames, takes, tries)
    }
}

/// Puts frames into a ring, in order, as far as there is room. The caller keeps them. Also returns
/// whether the guest wants a notification.
#[inline(always)]
pub(super) fn put_all(
    around: &mut Quick,
    shared: &Shared,
    ring: u16,
    frames: &[Mbuf],
    counts: &Sizes,
) -> (TxOutcome, bool) {
    let mut outcome = TxOutcome::default();
    let mut next = 0;
    let put = |view: &View, at: &mut RingPosition| {
        let (mut refused, mut common) = (0, true);
        while next < frames.len() && refused < REFUSALS {
            if common {
                // SAFETY: inside the gates the view is valid, and nobody else uses the ring.
                let done = unsafe { view.put(at, &frames[next..]) };
                next += done.frames;
                outcome.packets += done.frames as u64;
                if done.exhausted {
                    break;
                }
                common = done.frames > 0;
                if done.frames == BURST {
                    continue;
                }
            }
            let Some(frame) = frames.get(next) else {
                break;
            };
            // SAFETY: as above.
            match unsafe { view.put_one(at, frame) } {
                Put::Done => outcome.packets += 1,
                Put::TooSmall => {
                    outcome.too_long += 1;
                    outcome.bytes = outcome.bytes.wrapping_sub(frame.len() as u64);
                    counts.take_back(frame.len());
                }
                Put::Refused => {
                    refused += 1;
                    continue;
                }
                Put::Full => break,
            }
            next += 1;
        }
        // SAFETY: as above.
        (outcome.packets > 0 || refused > 0) && unsafe { view.wants_call(at) }
    };
    let tells = around.with(shared, ring, put) == Look::Done(true);
    let mut bytes = 0;
    for frames in frames[..next].chunks(MOST) {
        let mut tally = Tally::NONE;
        for frame in frames {
            let length = frame.raw().packet_len;
            bytes += u64::from(length);
            tally.add(length as usize);
        }
        counts.add(tally);
    }
    // Bytes of skipped frames have been subtracted already.
    outcome.bytes = outcome.bytes.wrapping_add(bytes);
    outcome.full += (frames.len() - next) as u64;
    (outcome, tells)
}
