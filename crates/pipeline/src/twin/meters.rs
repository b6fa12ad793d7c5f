//! Meters in the twin: buckets of its own, filled by the clock that the caller gives.

use super::Machine;
use crate::Pipeline;
use crate::state::meters::specs;
use openflow::meter;
use packet::Field;
use packet::key::at;
use qos::meter::{Verdict, raise_drop_precedence};
use qos::twin::Meter;
use std::collections::HashMap;
use std::sync::Arc;

/// The levels of meters between packets. A meter that is new, or has been changed, begins with full
/// buckets.
#[derive(Default)]
pub struct Levels {
    meters: HashMap<u32, (Arc<qos::meter::Meter>, Meter)>,
    now_ns: u64,
}

impl Levels {
    /// Says what time it is.
    pub fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Holds a packet against the meter of a number; None without such a meter.
    pub fn police(&mut self, pipeline: &Pipeline, number: u32, bytes: usize) -> Option<Verdict> {
        self.know(pipeline, number)?;
        let (_, level) = self.meters.get_mut(&number)?;
        Some(level.police(bytes as u64, self.now_ns).0)
    }

    /// Begins to keep the buckets of a meter, full; None without such a meter.
    pub fn know(&mut self, pipeline: &Pipeline, number: u32) -> Option<()> {
        let (config, real) = pipeline.meters.get(number)?;
        let known = self
            .meters
            .get(&number)
            .is_some_and(|(other, _)| Arc::ptr_eq(other, real));
        if !known {
            let (unit, specs) = specs(config);
            let fresh = Meter::new(unit, &specs, self.now_ns);
            self.meters.insert(number, (Arc::clone(real), fresh));
        }
        Some(())
    }
}

impl Machine<'_> {
    /// A meter that the packet meets; it may end here.
    pub(super) fn meter(&mut self, number: u32) {
        match self.police(number) {
            Some(Verdict::Drop) => self.dead = true,
            Some(Verdict::Remark(steps)) => {
                let dscp = self.key.u8(at::IP_TOS) >> 2;
                let raised = raise_drop_precedence(dscp, steps);
                if raised != dscp {
                    self.packet.write(Field::IpDscp, raised.into());
                    self.parse_again();
                }
            }
            Some(Verdict::Pass) | None => {}
        }
    }

    /// Whether a packet-in may be sent: by the action's own meter if there is such a one, else by
    /// the bridge's.
    pub(super) fn may_tell_controller(&mut self, own: Option<u32>) -> bool {
        let verdict = match own.and_then(|number| self.police(number)) {
            Some(verdict) => Some(verdict),
            None => self.police(meter::CONTROLLER),
        };
        verdict != Some(Verdict::Drop)
    }

    fn police(&mut self, number: u32) -> Option<Verdict> {
        let bytes = self.packet.bytes().len();
        let pipeline = self.pipeline;
        self.levels.as_mut()?.police(pipeline, number, bytes)
    }
}
