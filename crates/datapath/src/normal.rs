//! The learning switch: what `NORMAL` decides about one frame.
//!
//! Decisions are those of Open vSwitch's `xlate_normal`: check the VLAN, refuse reserved addresses,
//! learn the source, look the destination up, send to the port it was learned on or flood.

use crate::counters::DropReason;
use crate::snapshot::{BridgeState, PortState};
use crate::vlan::{Ethernet, Inner, VlanConfig};
use program::actions::PortNo;

/// Ingress ports of controllers' own packets (OpenFlow's `OFPP_CONTROLLER` and `OFPP_ANY`).
const CONTROLLERS: [PortNo; 2] = [0xffff_fffd, 0xffff_ffff];

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// Send it to the port of this slot.
    Port(u32),
    /// Send it to all other ports of its VLAN.
    Flood,
}

/// Returns whether bridges do not forward to an address: IEEE 802.1D's, and those that Extreme and
/// Cisco use for similar protocols.
pub(crate) fn is_reserved(mac: [u8; 6]) -> bool {
    match mac {
        [0x01, 0x80, 0xc2, 0, 0, last] => last <= 0x0f,
        [0x00, 0xe0, 0x2b, 0, 0, last] => matches!(last, 0 | 4 | 6),
        [0x01, 0x00, 0x0c, a, b, c] => {
            matches!(
                [a, b, c],
                [0, 0, 0]
                    | [0xcc, 0xcc, 0xcc | 0xcd]
                    | [0xcd, 0xcd, 0xcd]
                    | [0xcc, 0xcc, 0xc0..=0xc7]
            )
        }
        _ => false,
    }
}

/// Decides about a frame that came in by `ingress`, or from no port (a packet-out), and learns its
/// source.
#[inline]
pub(crate) fn decide(
    bridge: &BridgeState,
    in_port: PortNo,
    ingress: Option<&PortState>,
    front: &Ethernet,
    second: u32,
) -> Result<(Decision, Inner), DropReason> {
    decide_and(bridge, in_port, ingress, front, |port, vlan| {
        bridge.macs.learn(front.src, vlan, port.id.slot(), second);
    })
}

/// Decides about a frame that came in by `ingress`, the port with that number, if there is one;
/// calls `learn` with the port and the VLAN where its source is to be learned.
#[inline]
pub(crate) fn decide_and(
    bridge: &BridgeState,
    in_port: PortNo,
    ingress: Option<&PortState>,
    front: &Ethernet,
    learn: impl FnOnce(&PortState, u16),
) -> Result<(Decision, Inner), DropReason> {
    let inner = match ingress {
        Some(port) if port.reserved => return Err(DropReason::MirrorPort),
        Some(port) => port.vlan.input(front.tag),
        None if CONTROLLERS.contains(&in_port) => VlanConfig::default().input(front.tag),
        None => return Err(DropReason::UnknownPort),
    }
    .ok_or(DropReason::VlanNotCarried)?;
    if !bridge.forward_bpdu && is_reserved(front.dst) {
        return Err(DropReason::ReservedAddress);
    }
    let learning = bridge
        .flood_vlans
        .as_ref()
        .is_none_or(|vlans| !vlans.contains(inner.vid));
    if !learning {
        return Ok((Decision::Flood, inner));
    }
    if let Some(port) = ingress {
        learn(port, inner.vid);
    }
    if front.dst[0] & 1 == 1 {
        return Ok((Decision::Flood, inner));
    }
    match bridge.macs.lookup(front.dst, inner.vid) {
        None => Ok((Decision::Flood, inner)),
        Some(slot) if ingress.is_some_and(|port| port.id.slot() == slot) => {
            Err(DropReason::LearnedOnIngress)
        }
        Some(slot) => Ok((Decision::Port(slot), inner)),
    }
}

/// Returns whether a frame of `inner`'s VLAN that came in by `ingress` is flooded to `port`.
#[inline]
pub(crate) fn floods_to(port: &PortState, ingress: Option<&PortState>, inner: Inner) -> bool {
    ingress.is_none_or(|ingress| ingress.id != port.id)
        && !port.flags.no_flood
        && !port.flags.down
        && !port.flags.no_fwd
        && !port.reserved
        && port.vlan.includes(inner.vid)
        && !port.carries_packets()
}

/// Returns whether `FLOOD` or `ALL` sends what came in by `in_port` to `port`.
#[inline]
pub(crate) fn all_reaches(port: &PortState, in_port: PortNo, flood: bool) -> bool {
    port.number != in_port
        && !(flood && port.flags.no_flood)
        && !(port.flags.down || port.flags.no_fwd || port.reserved)
}

#[cfg(test)]
mod tests {
    use super::is_reserved;

    #[test]
    fn reserved_addresses() {
        assert!(is_reserved([0x01, 0x80, 0xc2, 0, 0, 0x00]));
        assert!(is_reserved([0x01, 0x80, 0xc2, 0, 0, 0x0f]));
        assert!(!is_reserved([0x01, 0x80, 0xc2, 0, 0, 0x10]));
        assert!(is_reserved([0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcd]));
        assert!(is_reserved([0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc3]));
        assert!(!is_reserved([0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcb]));
        assert!(!is_reserved([0xff; 6]));
    }
}
