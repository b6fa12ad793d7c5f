//! Shaping of ports: which worker owns which port, and changes.

use super::workers::send;
use super::{Datapath, PortBackend};
use crate::counters::DropReason;
use crate::error::Error;
use crate::port::{PortId, Shape};
use crate::queues::QueueTotals;
use crate::shape::{Shaped, ShapedSender};
use crate::worker::Command;
use packet::Frame;
use qos::policer::PortPolicer;
use std::sync::Arc;

/// Access to what a shaped port's shaper notes of waits.
pub struct Watched {
    /// The shaper's configuration.
    pub spec: Arc<qos::shaper::PortSpec>,
    /// The queues' numbers, by index.
    pub queues: Vec<u32>,
    /// The shaper's notes.
    pub watch: Arc<qos::shaper::watch::Watch>,
}

impl<F: Frame + 'static> Datapath<F> {
    /// Shapes or unshapes a port according to its settings; an invalid shape leaves it unchanged.
    pub(super) fn reshape(&mut self, id: PortId) -> Result<(), Error> {
        let waiting = Arc::clone(&self.waiting);
        let port = self.port_mut(id)?;
        let name = port.name.clone();
        let refused = |error| tracing::warn!(target: "dpif_netdev", "port {name} keeps the shape it has: {error}");
        match (&port.shaped, &port.settings.shape) {
            (None, Shape::None | Shape::Policer(_)) => Ok(()),
            (None, Shape::Queues(spec)) => match Shaped::new(spec, &waiting) {
                Ok(shaped) => {
                    port.shaped = Some(Arc::new(shaped));
                    self.show_shape(id.slot())
                }
                Err(error) => {
                    refused(error);
                    Ok(())
                }
            },
            (Some(shaped), Shape::Queues(spec)) => {
                if let Err(error) = shaped.change(spec) {
                    refused(error);
                }
                if let Some(owner) = self.owner(id.slot()) {
                    self.workers[owner].mailbox.nudge();
                }
                Ok(())
            }
            (Some(_), Shape::None | Shape::Policer(_)) => {
                let shaped = port.shaped.take();
                // Tell the owner last, so that what others have sent is in the ring before the
                // owner empties it.
                let owner = self.owner(id.slot());
                let slot = id.slot();
                let mut outcome = Ok(());
                for others in [true, false] {
                    for at in 0..self.workers.len() {
                        if (Some(at) != owner) == others {
                            let told =
                                send(&self.workers[at], Command::Shape { slot, sender: None });
                            outcome = outcome.and(told);
                        }
                    }
                    // A worker that has not begun a turn in all this time lets go of the port
                    // later.
                    outcome = outcome.and(self.apply("ending a port's shaping"));
                }
                if self.workers.is_empty() {
                    self.let_go(shaped.as_deref());
                }
                outcome
            }
        }
    }

    /// Replaces a port's policers according to its settings. Workers see them with the next
    /// snapshot.
    pub(super) fn police(&mut self, id: PortId) -> Result<(), Error> {
        let now_ns = self.shared.clock.now_ns();
        let port = self.port_mut(id)?;
        port.policing = port.policing.changed(&port.settings, now_ns);
        Ok(())
    }

    /// Drops and counts what still waits at a port that is gone, or not shaped any more, after
    /// workers have let go of it. Needed where there are no workers to do so.
    pub(super) fn let_go(&self, shaped: Option<&Shaped<F>>) {
        let cell = self.shared.cells.control();
        let lost = shaped.map_or(0, |shaped| shaped.close(cell));
        cell.drop(DropReason::PortGone, lost);
    }

    fn owner(&self, slot: u32) -> Option<usize> {
        (slot as usize).checked_rem(self.workers.len())
    }

    /// Tells workers how a port is shaped and which worker owns it.
    fn show_shape(&self, slot: u32) -> Result<(), Error> {
        let (Some(Some(port)), Some(owner)) = (self.ports.get(slot as usize), self.owner(slot))
        else {
            return Ok(());
        };
        let Some(shaped) = &port.shaped else {
            return Ok(());
        };
        let owner = &self.workers[owner].mailbox;
        let patch = matches!(port.kind, PortBackend::Patch { .. });
        self.workers.iter().try_for_each(|worker| {
            let mine = Arc::ptr_eq(&worker.mailbox, owner);
            let (shaped, counters) = (Arc::clone(shaped), Arc::clone(&port.counters));
            let sender = ShapedSender::new(shaped, counters, Arc::clone(owner), mine, patch);
            let sender = Some(Box::new(sender));
            send(worker, Command::Shape { slot, sender })
        })
    }

    /// Assigns shaped ports again, after workers have come or gone.
    pub(super) fn share_shaped(&self) -> Result<(), Error> {
        (0..self.ports.len() as u32).try_for_each(|slot| self.show_shape(slot))
    }

    /// Returns what the queues of a port have sent.
    pub fn queue_stats(&self, id: PortId) -> Result<Vec<QueueTotals>, Error> {
        let port = self.port(id)?;
        let sent = port.counters.sum();
        let mut totals = port.queues.totals(sent.tx_packets, sent.tx_bytes);
        let policer = port.policing.egress.as_deref();
        for (number, counts) in policer.map(PortPolicer::totals).into_iter().flatten() {
            if let Some(queue) = queue_of(&mut totals, number) {
                (queue.packets, queue.bytes) = (counts.packets, counts.bytes);
                queue.errors = counts.dropped;
            }
        }
        let shaped = port.shaped.as_ref().map(|shaped| shaped.totals());
        for (number, counts) in shaped.into_iter().flatten() {
            if let Some(queue) = queue_of(&mut totals, number) {
                (queue.packets, queue.bytes) = (counts.packets, counts.bytes);
                queue.errors = counts.dropped_packets();
            }
        }
        Ok(totals)
    }

    /// Returns the number of frames that a shaped port has sent later than its queues' bounds
    /// promise.
    pub fn late_sent(&self, id: PortId) -> Result<u64, Error> {
        let port = self.port(id)?;
        Ok(port.shaped.as_ref().map_or(0, |shaped| shaped.late_sent()))
    }

    /// Returns the counts of a shaped port's queues, by number; empty where it is not shaped.
    pub fn shaping(&self, id: PortId) -> Result<Vec<(u32, qos::shaper::QueueTotals)>, Error> {
        let port = self.port(id)?;
        Ok(port
            .shaped
            .as_ref()
            .map_or_else(Vec::new, |shaped| shaped.totals()))
    }

    /// Returns access to the notes of a port's shaper; None where the port is not shaped.
    pub fn watch(&self, id: PortId) -> Result<Option<Watched>, Error> {
        let port = self.port(id)?;
        let (Some(shaped), Shape::Queues(spec)) = (&port.shaped, &port.settings.shape) else {
            return Ok(None);
        };
        let (queues, watch) = shaped.watch();
        Ok(Some(Watched {
            spec: Arc::clone(spec),
            queues,
            watch,
        }))
    }
}

/// Finds the totals of the queue with this number; totals are sorted by number.
fn queue_of(totals: &mut [QueueTotals], number: u32) -> Option<&mut QueueTotals> {
    let at = totals.binary_search_by_key(&number, |queue| queue.queue);
    at.ok().map(|at| &mut totals[at])
}
