//! What a worker does for monitors of ports ([`crate::monitor`]).

use super::turn::Turn;
use crate::counters::DropReason;
use crate::monitor::{Monitor, Probe};
use crate::snapshot::PortState;
use crate::tunnel::Arrivals;
use packet::key::at;
use packet::tunnel::{TunnelFlags, TunnelInfo};
use packet::{FlowKey, Frame};
use program::actions::{Op, OpList, PortNo};
use std::sync::Arc;

/// What a packet that comes from no port has as its ingress port (`OFPP_NONE`).
const NO_PORT: PortNo = 0xffff_ffff;
/// Most packets of monitors sent in a turn.
const PROBES: usize = packet::io::BURST;

impl<F: Frame> Turn<'_, F> {
    /// Takes the packets of a port's monitor out of what has come by the port. Returns their bytes.
    #[cold]
    pub(super) fn take_probes(
        &mut self,
        port: &PortState,
        monitor: &Monitor,
        frames: &mut Vec<F>,
    ) -> u64 {
        if port.flags.down {
            return 0;
        }
        let mut bytes = 0;
        let cell = self.cell;
        frames.retain(|frame| match monitor.take(frame) {
            None => true,
            Some(outcome) => {
                bytes += frame.len() as u64;
                if let Err(reason) = outcome {
                    cell.drop(reason, 1);
                }
                false
            }
        });
        bytes
    }

    /// Does the same for what has come out of tunnels, with the tunnels' metadata.
    #[cold]
    pub(super) fn take_tunnel_probes(&mut self, frames: &mut Vec<F>, arrivals: &mut Arrivals) {
        let (snapshot, cell, guard) = (self.snapshot, self.cell, self.guard);
        // Filled with the first message: mostly there is none.
        let mut taken = Vec::new();
        for (index, (frame, slot)) in frames.iter().zip(arrivals.slots()).enumerate() {
            let Some(port) = snapshot.port(*slot) else {
                continue;
            };
            let Some(monitor) = port.monitor.as_deref().filter(|_| !port.flags.down) else {
                continue;
            };
            let in_key = port.tunnel.as_ref().map(|tunnel| tunnel.spec.in_key);
            if !monitor.takes_key(arrivals.info(index).id, in_key.unwrap_or_default()) {
                continue;
            }
            let Some(outcome) = monitor.take(frame) else {
                continue;
            };
            let counters = port.counters.of(guard.index());
            counters.rx_packets.add(1);
            counters.rx_bytes.add(frame.len() as u64);
            if let Err(reason) = outcome {
                cell.drop(reason, 1);
            }
            taken.resize(frames.len(), false);
            taken[index] = true;
        }
        if taken.is_empty() {
            return;
        }
        let mut of_frames = taken.iter();
        frames.retain(|_| !of_frames.next().is_some_and(|taken| *taken));
        arrivals.remove(&taken);
    }

    /// Sends what monitors want sent.
    #[cold]
    pub(super) fn send_probes(&mut self) {
        self.begin(0);
        for _ in 0..PROBES {
            let Some(probe) = self.shared.waiting_probes.probes.pop() else {
                break;
            };
            self.patches.join(1);
            self.send_probe(&probe);
            self.follow_packet_out();
        }
        self.finish();
    }

    fn send_probe(&mut self, probe: &Probe) {
        let snapshot = self.snapshot;
        let bridge = snapshot.bridge(probe.bridge.slot());
        let Some(bridge) = bridge.filter(|bridge| bridge.id == probe.bridge) else {
            return self.cell.drop(DropReason::BridgeGone, 1);
        };
        let Some(frame) = (self.shared.allocate)(&probe.data) else {
            return self.cell.drop(DropReason::NoBuffer, 1);
        };
        let mut metadata = FlowKey::ZERO;
        metadata.set_u32(at::IN_PORT, NO_PORT);
        if probe.oam {
            let info = TunnelInfo {
                flags: TunnelFlags::OAM,
                ..TunnelInfo::default()
            };
            info.to_key(&mut metadata);
        }
        let ops = Arc::new(OpList::new(vec![Op::Output(probe.port)]));
        let (engine, mut host) = self.host(bridge, 0);
        let (guard, now_ms) = (host.guard, host.now_ms);
        let forward = &mut host.forward;
        engine.run_ops_with(
            &bridge.program,
            guard,
            &metadata,
            frame,
            &ops,
            now_ms,
            forward,
        );
    }
}
