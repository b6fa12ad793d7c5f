//! Meters in the reference: it has buckets of its own, filled by the time that the caller sets.

use super::Machine;
use crate::Pipeline;
use crate::state::meters::specs;
use openflow::meter;
use packet::Field;
use packet::key::at;
use qos::meter::{MeterOutcome, raise_drop_precedence};
use qos::reference::Meter;
use std::collections::HashMap;
use std::sync::Arc;

/// The levels of meters' buckets between packets. A new or changed meter begins with full buckets.
#[derive(Default)]
pub struct Levels {
    meters: HashMap<u32, (Arc<qos::meter::Meter>, Meter)>,
    now_ns: u64,
}

impl Levels {
    /// Sets the current time.
    pub fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Applies a meter to a packet; None if there is no meter with this number.
    pub fn police(
        &mut self,
        pipeline: &Pipeline,
        number: u32,
        bytes: usize,
    ) -> Option<MeterOutcome> {
        self.know(pipeline, number)?;
        let (_, level) = self.meters.get_mut(&number)?;
        Some(level.police(bytes as u64, self.now_ns).0)
    }

    /// Creates the buckets of a meter, full, if they are not there; None if there is no such meter.
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
    /// Applies a meter to the packet, which may be dropped.
    pub(super) fn meter(&mut self, number: u32) {
        match self.police(number) {
            Some(MeterOutcome::Drop) => self.dead = true,
            Some(MeterOutcome::Remark(steps)) => {
                let dscp = self.key.u8(at::IP_TOS) >> 2;
                let raised = raise_drop_precedence(dscp, steps);
                if raised != dscp {
                    self.packet.write(Field::IpDscp, raised.into());
                    self.parse_again();
                }
            }
            Some(MeterOutcome::Pass) | None => {}
        }
    }

    /// Returns whether a packet-in may be sent, according to the action's own meter if it exists,
    /// otherwise to the bridge's.
    pub(super) fn may_tell_controller(&mut self, own: Option<u32>) -> bool {
        let verdict = match own.and_then(|number| self.police(number)) {
            Some(verdict) => Some(verdict),
            None => self.police(meter::CONTROLLER),
        };
        verdict != Some(MeterOutcome::Drop)
    }

    fn police(&mut self, number: u32) -> Option<MeterOutcome> {
        let bytes = self.packet.bytes().len();
        let pipeline = self.pipeline;
        self.levels.as_mut()?.police(pipeline, number, bytes)
    }
}
