//! The underlay and the tunnels, control's side.

use super::{Datapath, PortBackend};
use crate::error::Error;
use crate::port::{BridgeId, LOCAL, PortId};
use crate::tunnel::{Outer, Receivers, Tunnels};
use packet::Frame;
use packet::keyed::Keyed;
use packet::tunnel::{Mapping, TunnelKind};
use std::sync::Arc;
use underlay::{Device, View};

/// What workers are to know of the underlay.
#[derive(Default)]
pub(super) struct Underlay {
    /// The latest routes and neighbours from control.
    view: Option<Arc<View>>,
    receivers: Arc<Receivers>,
    secret: Keyed,
}

impl<F: Frame + 'static> Datapath<F> {
    /// Returns the local port of a bridge as a device, if tunnels' packets may come by it.
    pub(super) fn underlay_device(&self, bridge: BridgeId) -> Option<Device> {
        let tunnels = self.picture.tunnels.as_deref();
        let tunnels = tunnels.filter(|tunnels| !tunnels.receivers.is_empty())?;
        tunnels.view.device(bridge.underlay_id()).cloned()
    }

    /// Replaces the underlay's view. The ids of its devices are those of the bridges whose local
    /// ports they are ([`BridgeId::underlay_id`]), and its generation differs from the one before.
    /// Returns once it is published; workers use it from their next turn on.
    pub fn set_underlay(&mut self, view: Arc<View>) {
        self.underlay.view = Some(view);
        self.draw_tunnels();
        self.publish();
    }

    /// Returns the underlay's view.
    pub fn underlay(&self) -> Option<&Arc<View>> {
        self.underlay.view.as_ref()
    }

    /// Returns the protocol and port of the tunnels that would take this frame, were it sent to
    /// the local port of a bridge; its tunnel header is not checked.
    pub fn tunnels_for(&self, bridge: BridgeId, frame: &[u8]) -> Option<(TunnelKind, u16)> {
        let device = self.underlay_device(bridge)?;
        let outer = Outer::of(frame).filter(|outer| outer.is_for(&device))?;
        let receivers = &self.picture.tunnels.as_deref()?.receivers;
        let protocol = receivers.by(outer.over).next()?;
        Some((protocol.kind, outer.over.port()))
    }

    /// Replaces a bridge's map between Geneve options and `tun_metadata` fields.
    pub fn set_tunnel_options(&mut self, id: BridgeId, map: &[Mapping]) -> Result<(), Error> {
        let bridge = self.bridge_mut(id)?;
        bridge.options = (!map.is_empty()).then(|| map.into());
        self.redraw(id);
        self.apply("changing a map of tunnels' options")
    }

    /// Redraws all tunnel ports.
    pub(super) fn redraw_tunnels(&mut self) {
        let ports = self.ports.iter().flatten();
        let tunnels = ports.filter_map(|port| match &port.kind {
            PortBackend::Tunnel(tunnel) => Some((port.id.slot(), &tunnel.spec)),
            PortBackend::Device { .. } | PortBackend::Patch { .. } => None,
        });
        self.underlay.receivers = Arc::new(Receivers::new(tunnels));
        self.draw_tunnels();
    }

    /// Redraws tunnels with the current view and receivers, and local ports at which tunnels now
    /// end or no longer do.
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
