//! A queue's access to its ring, inside the gates.

use super::call::Call;
use super::device::Position;
use super::ring::{RingPosition, View};
use super::shared::{NEVER, Shared};
use crate::gate::Key;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A queue's access to its ring.
pub(super) struct Quick {
    /// The key to the ring's quick gate.
    pub(super) key: Key,
    pub(super) reading: Reading,
    /// Whether no other queue uses the ring.
    pub(super) sole: bool,
}

/// A queue's copy of the ring's state.
#[derive(Default)]
pub(super) struct Reading {
    /// The ring, if it can be used.
    pub(super) view: Option<View>,
    /// The ring's number, and the message count when it was read.
    pub(super) of: Option<(u16, u32)>,
    /// The ring's position, shared with the device.
    pub(super) position: Option<Arc<Position>>,
    /// The ring's position, if no other queue can have advanced it.
    pub(super) at: Option<RingPosition>,
    /// The event that notifies the guest. A front end may make it block, so it is not written to
    /// inside a gate.
    pub(super) call: Option<Arc<Call>>,
}

/// Result of an attempt to use a ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look<T> {
    Done(T),
    /// A front end's message is being handled, or the device is about to go.
    Busy,
    /// The ring cannot be used. The next message may change that.
    NoRing,
}

impl Quick {
    /// Creates the access to a ring, with a key to its quick gate; `sole` if no other queue uses
    /// the ring.
    pub(super) fn new(key: Key, sole: bool) -> Quick {
        Quick {
            key,
            reading: Reading::default(),
            sole,
        }
    }

    /// Runs `act` on a ring, if it can be used now. The caller must ensure that nobody else uses
    /// the ring; the view passed to `act` is valid while it runs.
    #[inline(always)]
    pub(super) fn with<T>(
        &mut self,
        shared: &Shared,
        index: u16,
        act: impl FnOnce(&View, &mut RingPosition) -> T,
    ) -> Look<T> {
        let Some(_inside) = self.key.try_enter() else {
            return Look::Busy;
        };
        if !shared.connected() {
            // The device is about to be released.
            return Look::Busy;
        }
        let ring = &shared.rings[usize::from(index)];
        let of = Some((index, shared.messages.load(Ordering::SeqCst)));
        let fresh = self.reading.of != of;
        if fresh {
            self.reading = Reading::new(shared, index);
            self.reading.of = of;
            ring.known.store(0, Ordering::Relaxed);
            ring.told.store(NEVER, Ordering::Relaxed);
        }
        let (Some(view), Some(position)) = (&self.reading.view, &self.reading.position) else {
            return Look::NoRing;
        };
        let mut at = self.reading.at.unwrap_or_else(|| RingPosition {
            known: ring.known.load(Ordering::Relaxed),
            told: u16::try_from(ring.told.load(Ordering::Relaxed)).ok(),
            next: position.next.load(Ordering::Relaxed),
            used: position.used.load(Ordering::Relaxed),
        });
        {
            if fresh {
                // Kicks cost the guest a VM exit each; a worker that goes to sleep asks for them.
                // SAFETY: the memory that the view was read of stays mapped while the gate is open.
                unsafe { view.ask_for_kicks(&at, false) };
            }
            let next = at.next;
            let done = act(view, &mut at);
            if self.sole {
                self.reading.at = Some(at);
            } else {
                ring.known.store(at.known, Ordering::Relaxed);
                ring.told
                    .store(at.told.map_or(NEVER, u32::from), Ordering::Relaxed);
            }
            if at.next != next {
                position.next.store(at.next, Ordering::Relaxed);
                position.used.store(at.used, Ordering::Relaxed);
            }
            Look::Done(done)
        }
    }

    /// Notifies the guest that the ring has changed.
    pub(super) fn tell(&self) {
        if let Some(call) = &self.reading.call {
            call.tell();
        }
    }
}

impl Reading {
    /// Reads a ring of the device, inside its quick gate.
    #[cold]
    pub(super) fn new(shared: &Shared, index: u16) -> Reading {
        let table = shared.table();
        let entry = table.as_ref().and_then(|table| table.ring(index));
        Reading {
            view: table.as_ref().and_then(|table| table.view(index)),
            position: entry.map(|entry| Arc::clone(&entry.position)),
            call: entry.and_then(|entry| entry.call.clone()),
            ..Reading::default()
        }
    }
}
