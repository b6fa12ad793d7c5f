//! Predicts what would become of a packet, without sending or learning anything: for tracing.
//!
//! The answers come from the current snapshot of the workers and from the same decisions
//! ([`crate::normal`]) that they make.

use super::Datapath;
use crate::counters::DropReason;
use crate::error::Error;
use crate::mirror::MirrorOutput;
use crate::normal::{self, Decision};
use crate::port::{BridgeId, PortId};
use crate::snapshot::{Behind, BridgeState, PortState};
use crate::vlan::{Ethernet, Inner, Tag};
use packet::Frame;
use program::actions::PortNo;

/// A frame on its way out of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The port.
    pub port: PortId,
    /// The tag that replaces the outermost one.
    pub tag: Option<Tag>,
}

/// What the learning switch would do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Normal {
    /// The VLAN of the frame.
    pub vlan: u16,
    /// Whether the source address would be learned there: it is unknown, or known on another port.
    pub learns: bool,
    /// The decision.
    pub decision: NormalDecision,
    /// Where the frame would leave.
    pub copies: Vec<Copy>,
}

/// The learning switch's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NormalDecision {
    /// The destination is known.
    Learned,
    /// The destination is unknown, or is a group address.
    Flood,
    /// The frame is dropped.
    Drop(DropReason),
}

/// Where an output to a port leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WayOut {
    /// No port has the number.
    Unknown,
    /// Nothing leaves, for this reason.
    Closed(DropReason),
    /// A device.
    Device(PortId),
    /// A tunnel.
    Tunnel(PortId),
    /// Another bridge, where the packet comes in by this port.
    Patch(BridgeId, PortNo),
}

/// A mirror's copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorCopy {
    /// Its destinations: a port, or all ports of a VLAN.
    pub copies: Vec<Copy>,
    /// Bytes that are kept, None for all.
    pub snaplen: Option<u32>,
}

impl<F: Frame + 'static> Datapath<F> {
    fn drawn(&self, id: BridgeId) -> Result<&BridgeState, Error> {
        self.picture
            .bridge(id.slot())
            .filter(|bridge| bridge.id == id)
            .ok_or(Error::NoSuchBridge)
    }

    /// Predicts what `NORMAL` would do with a frame that came in by a port.
    pub fn explain_normal(
        &self,
        bridge: BridgeId,
        in_port: PortNo,
        front: &Ethernet,
    ) -> Result<Normal, Error> {
        let bridge = self.drawn(bridge)?;
        let ingress = bridge.port(in_port);
        let mut learns = false;
        let decision = normal::decide_and(bridge, in_port, ingress, front, |port, vlan| {
            learns = front.src[0] & 1 == 0
                && bridge.macs.lookup(front.src, vlan) != Some(port.id.slot());
        });
        let copy = |port: &PortState, inner: Inner| Copy {
            port: port.id,
            tag: port.vlan.output(inner, front.tag.map_or(0, Tag::pcp)),
        };
        let (vlan, decision, copies) = match decision {
            Err(reason) => (0, NormalDecision::Drop(reason), Vec::new()),
            Ok((Decision::Port(slot), inner)) => match self.picture.port(slot) {
                Some(port) if port.bridge == bridge.id.slot() => {
                    (inner.vid, NormalDecision::Learned, vec![copy(port, inner)])
                }
                _ => (
                    inner.vid,
                    NormalDecision::Drop(DropReason::LearnedPortGone),
                    Vec::new(),
                ),
            },
            Ok((Decision::Flood, inner)) => {
                let flooded = bridge
                    .ports
                    .iter()
                    .filter(|port| normal::floods_to(port, ingress, inner));
                let copies = flooded.map(|port| copy(port, inner)).collect();
                (inner.vid, NormalDecision::Flood, copies)
            }
        };
        // A dropped frame may have been learned from before: its VLAN.
        let vlan = match decision {
            NormalDecision::Drop(_) => ingress
                .and_then(|port| port.vlan.input(front.tag))
                .map_or(vlan, |inner| inner.vid),
            _ => vlan,
        };
        Ok(Normal {
            vlan,
            learns,
            decision,
            copies,
        })
    }

    /// Returns the ports that `FLOOD` or `ALL` would send to.
    pub fn explain_all(
        &self,
        bridge: BridgeId,
        in_port: PortNo,
        flood: bool,
    ) -> Result<Vec<PortNo>, Error> {
        let ports = self.drawn(bridge)?.ports.iter();
        Ok(ports
            .filter(|port| normal::all_reaches(port, in_port, flood))
            .map(|port| port.number)
            .collect())
    }

    /// Returns where an output to a port leads.
    pub fn way_out(&self, bridge: BridgeId, number: PortNo) -> Result<WayOut, Error> {
        let Some(port) = self.drawn(bridge)?.port(number) else {
            return Ok(WayOut::Unknown);
        };
        Ok(self.behind(port))
    }

    /// Returns whether a port is a mirror's output: what comes in by it is dropped before any rule.
    pub fn only_mirrors(&self, bridge: BridgeId, number: PortNo) -> bool {
        self.drawn(bridge)
            .ok()
            .and_then(|bridge| bridge.port(number))
            .is_some_and(|port| port.reserved)
    }

    /// Returns whether a port exists, is up and not switched off.
    pub fn is_live(&self, bridge: BridgeId, number: PortNo) -> bool {
        self.drawn(bridge)
            .ok()
            .and_then(|bridge| bridge.port(number))
            .is_some_and(|port| port.is_live())
    }

    fn behind(&self, port: &PortState) -> WayOut {
        let peer = |slot: u32| {
            let peer = self.picture.port(slot)?;
            Some((self.picture.bridge(peer.bridge)?.id, peer.number))
        };
        match port.behind {
            _ if port.flags.down => WayOut::Closed(DropReason::PortDown),
            _ if port.flags.no_fwd => WayOut::Closed(DropReason::NoForward),
            Behind::Device => WayOut::Device(port.id),
            Behind::Tunnel => WayOut::Tunnel(port.id),
            Behind::Patch(slot) => match slot.and_then(peer) {
                Some((bridge, number)) => WayOut::Patch(bridge, number),
                None => WayOut::Closed(DropReason::NoPatchPeer),
            },
        }
    }

    /// Returns the copies that mirrors would make of a frame that came in by a port or, unless
    /// `incoming`, is about to leave by it. `mirrored` has a bit for each mirror that has had the
    /// packet.
    pub fn explain_mirrors(
        &self,
        bridge: BridgeId,
        number: PortNo,
        incoming: bool,
        front: &Ethernet,
        mirrored: &mut u32,
    ) -> Result<Vec<MirrorCopy>, Error> {
        let bridge = self.drawn(bridge)?;
        let Some(port) = bridge.port(number) else {
            return Ok(Vec::new());
        };
        let Some(inner) = port.vlan.input(front.tag) else {
            return Ok(Vec::new());
        };
        let selected = if incoming {
            port.mirror_in
        } else {
            port.mirror_out
        };
        let mut all = Vec::new();
        for (index, mirror) in bridge.mirrors.iter().enumerate() {
            let bit = 1_u32 << index;
            let in_vlan = mirror
                .vlans
                .as_ref()
                .is_none_or(|vlans| vlans.contains(inner.vid));
            if selected & bit == 0 || *mirrored & bit != 0 || !in_vlan {
                continue;
            }
            *mirrored |= mirror.same_output;
            let (ports, inner): (Vec<&PortState>, Inner) = match mirror.output {
                MirrorOutput::Port(output) => (
                    self.picture
                        .port(output.slot())
                        .filter(|port| port.id == output)
                        .into_iter()
                        .collect(),
                    inner,
                ),
                MirrorOutput::Vlan(vid) if vid != inner.vid && !normal::is_reserved(front.dst) => (
                    bridge
                        .ports
                        .iter()
                        .map(|port| &**port)
                        .filter(|port| port.vlan.includes(vid) && !port.reserved)
                        .collect(),
                    Inner { vid, ..inner },
                ),
                MirrorOutput::Vlan(_) => continue,
            };
            let pcp = front.tag.map_or(0, Tag::pcp);
            let copies = ports.iter().map(|port| Copy {
                port: port.id,
                tag: port.vlan.output(inner, pcp),
            });
            all.push(MirrorCopy {
                copies: copies.collect(),
                snaplen: mirror.snaplen,
            });
        }
        Ok(all)
    }
}
