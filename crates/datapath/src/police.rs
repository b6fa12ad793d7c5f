//! Policed ports: frames that exceed a rate are dropped on arrival, or before they are sent.
//! Nothing waits, so no worker owns such a port: all workers draw from the same buckets.

use crate::counters::DropReason;
use crate::forward::Forward;
use crate::port::{PortSettings, Shape};
use crate::snapshot::PortState;
use crate::worker::Turn;
use packet::Frame;
use program::host::Host;
use qos::policer::{IngressPolicer, IngressSpec, PolicerSpec, PortPolicer};
use stages::Stage;
use std::sync::Arc;

/// A port's policers.
#[derive(Clone, Default)]
pub(crate) struct Policing {
    /// Policer of what is sent.
    pub egress: Option<Arc<PortPolicer>>,
    /// Policer of what comes in.
    pub ingress: Option<Arc<IngressPolicer>>,
    sent_by: Option<Arc<PolicerSpec>>,
    came_by: IngressSpec,
}

impl Policing {
    /// Returns policers for new settings. Policers whose settings have not changed keep their
    /// tokens.
    pub fn changed(&self, settings: &PortSettings, now_ns: u64) -> Policing {
        let mut next = self.clone();
        match &settings.shape {
            Shape::None | Shape::Queues(_) => (next.egress, next.sent_by) = (None, None),
            Shape::Policer(spec) if self.sent_by.as_ref() == Some(spec) => {}
            Shape::Policer(spec) => {
                next.egress = Some(Arc::new(match &self.egress {
                    Some(policer) => policer.changed(spec, now_ns),
                    None => PortPolicer::new(spec, now_ns),
                }));
                next.sent_by = Some(Arc::clone(spec));
            }
        }
        if settings.ingress != self.came_by {
            next.came_by = settings.ingress;
            next.ingress = IngressPolicer::new(&settings.ingress, now_ns).map(Arc::new);
        }
        next
    }
}

impl<F: Frame> Forward<'_, F> {
    /// Returns whether a port's policer lets a frame pass; counts it if not.
    #[cold]
    pub(crate) fn passes(&mut self, port: &PortState, policer: &PortPolicer, frame: &F) -> bool {
        let _stage = stages::enter(Stage::Queue, 1);
        let now_ns = self.now_ns();
        let passes = policer.pass(self.queue, frame.len(), now_ns);
        if !passes {
            port.counters.of(self.worker).tx_policed.add(1);
            self.cell.drop(DropReason::EgressPolicer, 1);
        }
        passes
    }
}

impl<F: Frame> Turn<'_, F> {
    /// Drops frames that come in faster than the port may receive.
    #[cold]
    pub(crate) fn police(&self, port: &PortState, policer: &IngressPolicer, frames: &mut Vec<F>) {
        let _stage = stages::enter(Stage::Queue, frames.len());
        let now_ns = self.shared.clock.now_ns();
        let before = frames.len();
        frames.retain(|frame| policer.pass(frame.len(), now_ns));
        let dropped = (before - frames.len()) as u64;
        port.counters.of(self.guard.index()).rx_policed.add(dropped);
        self.cell.drop(DropReason::IngressPolicer, dropped);
    }
}
