//! What tunnels run over, and which there are.

use super::{Datapath, Kind};
use crate::error::Error;
use crate::port::{BridgeId, LOCAL, PortId};
use crate::tunnel::{Outer, Receivers, Tunnels};
use packet::Frame;
use packet::keyed::Keyed;
use packet::tunnel::{Mapping, TunnelKind};
use std::sync::Arc;
use underlay::{Device, View};

/// What workers are told of tunnels.
#[derive(Default)]
pub(super) struct Underlay {
    /// Routes and neighbours as control has told of them last.
    view: Option<Arc<View>>,
    receivers: Arc<Receivers>,
    secret: Keyed,
}

impl<F: Frame + 'static> Datapath<F> {
    /// The local port of a bridge, where packets of tunnels may come by it.
    pub(super) fn underlay_device(&self, bridge: BridgeId) -> Option<Device> {
        let tunnels = self.picture.tunnels.as_deref();
        let tunnels = tunnels.filter(|tunnels| !tunnels.receivers.is_empty())?;
        tunnels.view.device(bridge.underlay_id()).cloned()
    }

    /// Replaces what tunnels know of the network that they run over. The numbers of its devices are
    /// those of the bridges whose local ports they are ([`BridgeId::underlay_id`]), its generation
    /// is another than that of the one before. Returns once it is published; workers go by it from
    /// their next turn on.
    pub fn set_underlay(&mut self, view: Arc<View>) {
        self.underlay.view = Some(view);
        self.draw_tunnels();
        self.publish();
    }

    /// What tunnels know of the network that they run over.
    pub fn underlay(&self) -> Option<&Arc<View>> {
        self.underlay.view.as_ref()
    }

    /// The protocol and UDP port of the tunnels that would take this frame, were it sent to the
    /// local port of a bridge; its header is not judged.
    pub fn tunnels_for(&self, bridge: BridgeId, frame: &[u8]) -> Option<(TunnelKind, u16)> {
        let device = self.underlay_device(bridge)?;
        let outer = Outer::of(frame).filter(|outer| outer.is_for(&device))?;
        let receivers = &self.picture.tunnels.as_deref()?.receivers;
        let kind = match outer.udp {
            Some(port) => receivers.by_udp(port).next(),
            None => receivers.by_gre().next(),
        };
        Some((kind?, outer.udp.unwrap_or(0)))
    }

    /// Replaces a bridge's map between options of Geneve headers and `tun_metadata` fields.
    pub fn set_tunnel_options(&mut self, id: BridgeId, map: &[Mapping]) -> Result<(), Error> {
        let bridge = self.bridge_mut(id)?;
        bridge.options = (!map.is_empty()).then(|| map.into());
        self.redraw(id);
        self.apply("changing a map of tunnels' options")
    }

    /// Draws what tunnel ports there are anew.
    pub(super) fn redraw_tunnels(&mut self) {
        let ports = self.ports.iter().flatten();
        let tunnels = ports.filter_map(|port| match &port.kind {
            Kind::Tunnel(tunnel) => Some((port.id.slot(), &tunnel.spec)),
            Kind::Device { .. } | Kind::Patch { .. } => None,
        });
        self.underlay.receivers = Arc::new(Receivers::new(tunnels));
        self.draw_tunnels();
    }

    /// Draws tunnels with the view and the receivers that there are, and local ports that tunnels
    /// end at now or no longer.
    fn draw_tunnels(&mut self) {
        let Underlay {
            view,
            receivers,
            secret,
        } = &self.underlay;
        self.picture.tunnels = view.as_ref().map(|view| {
            Arc::new(Tunnels {
                view: Arc::clone(view),
                receivers: Arc::clone(receivers),
                secret: secret.clone(),
            })
        });
        let differs = |id: &PortId| {
            let bridge = self.port(*id).map(|port| port.bridge);
            let now = bridge.ok().and_then(|bridge| self.underlay_device(bridge));
            let drawn = self.picture.port(id.slot());
            drawn.is_none_or(|drawn| drawn.terminates.as_deref() != now.as_ref())
        };
        let locals: Vec<PortId> = self
            .ports
            .iter()
            .flatten()
            .filter(|port| port.number == LOCAL)
            .map(|port| port.id)
            .filter(differs)
            .collect();
        for id in locals {
            self.redraw_port(id);
        }
    }
}
