//! Meters in a walk: a packet above the rate is dropped, or its DSCP is lowered.

use crate::actions::{Op, ToController};
use crate::exec::interpreter::{Burst, Next, Steps, Walk};
use crate::host::{DropReason, Host};
use crate::meters::MeterRef;
use packet::key::at;
use packet::{Field, Frame, Value};
use qos::meter::{MeterOutcome, raise_drop_precedence};

impl<F: Frame> Walk<F> {
    fn police<H: Host<F>>(
        &self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        meter: &MeterRef,
    ) -> MeterOutcome {
        match meter.get(burst.guard) {
            Some(meter) => {
                let bytes = self.frame.as_ref().map_or(0, Frame::len) as u64;
                meter.police(bytes, host.now_ns())
            }
            None => MeterOutcome::Pass,
        }
    }

    /// Runs a meter step. Earlier outputs stand.
    #[cold]
    pub(crate) fn meter<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        meter: &MeterRef,
    ) -> Option<Next> {
        match self.police(burst, host, meter) {
            MeterOutcome::Pass => None,
            MeterOutcome::Remark(steps) => {
                let old = self.key.u8(at::IP_TOS);
                let new = raise_drop_precedence(old >> 2, steps) << 2;
                if new == old & 0xfc {
                    return None;
                }
                let (value, mask) = (Value::from_bytes(&[new]), Value::from_bytes(&[0xfc]));
                if self.set(burst, host, Field::IpDscpShifted, &value, &mask) {
                    None
                } else {
                    self.fail(host, DropReason::ActionFailed)
                }
            }
            MeterOutcome::Drop => self.metered_out(burst, host),
        }
    }

    /// Drops the packet: in a clone, ends the clone; else the walk.
    fn metered_out<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) -> Option<Next> {
        self.flush(burst, host);
        host.dropped(DropReason::Meter);
        loop {
            if let Some(saved) = &mut self.at.saved {
                // The rest of the clone does not run, nor does its action set.
                saved.running_set.get_or_insert_default();
                self.at.steps = Steps::of(&[]);
                self.at.next = 0;
                return None;
            }
            match self.stack.pop() {
                Some(position) => self.at = position,
                None => break,
            }
        }
        self.clear();
        Some(Next::Done)
    }

    /// Applies a meter to the packet-in that the next step sends: above the rate that step is
    /// skipped, and the packet goes on.
    #[cold]
    pub(crate) fn meter_controller<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        meter: &MeterRef,
    ) {
        let Some(Op::Controller(to)) = self.at.steps.get().get(self.at.next) else {
            return;
        };
        self.at.next += 1;
        if meter.get(burst.guard).is_none() {
            // A meter that does not exist limits nothing, and the bridge's own remains in force (as
            // in Open vSwitch).
            return self.send_to_controller(burst, host, to);
        }
        match self.police(burst, host, meter) {
            MeterOutcome::Drop => self.packet_in_dropped(host),
            _ => self.hand_to_controller(burst, host, to),
        }
    }

    /// Returns whether the bridge's meter for packet-ins (`OFPM_CONTROLLER`) lets one pass.
    pub(crate) fn controller_meter_passes<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
    ) -> bool {
        let passes =
            self.police(burst, host, burst.bridge.controller_meter()) != MeterOutcome::Drop;
        if !passes {
            self.packet_in_dropped(host);
        }
        passes
    }

    fn packet_in_dropped<H: Host<F>>(&mut self, host: &mut H) {
        host.dropped(DropReason::MeterController);
        self.sent = true; // already counted
    }

    pub(crate) fn hand_to_controller<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        to: &ToController,
    ) {
        self.flush(burst, host);
        let reason = if self.packet_out {
            to.reason_in_packet_out()
        } else {
            to.reason
        };
        let (context, frame) = self.context(burst);
        *context.sent = true;
        let Some(frame) = frame else { return };
        match reason {
            reason if reason == to.reason => host.controller(context, to, frame),
            reason => {
                let to = ToController {
                    reason,
                    ..to.clone()
                };
                host.controller(context, &to, frame);
            }
        }
    }
}
