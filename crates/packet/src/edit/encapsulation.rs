//! Pushes and pops MPLS labels and PBB headers, and copies TTLs between labels and IP (OpenFlow
//! 1.3.5 sections 5.12 and 7.2.5).
//!
//! Labels are pushed behind VLAN tags, as in Open vSwitch; a PBB header in front of everything.
//! What follows either is not parsed, just as for a packet that was received like that; what a pop
//! exposes is parsed at once.

use super::{IPV4, IPV6, TtlExpired, set_ipv4_byte};
use crate::frame::Frame;
use crate::key::{FlowKey, at};
use crate::parse::{self, ETH_TYPE_MIN, Layers};

#[cfg(test)]
mod tests;

const LABEL_LEN: usize = 4;
/// Bottom-of-stack bit of a label stack entry's third byte.
const BOTTOM: u8 = 1;
/// Backbone addresses, Ethertype and service tag.
const PBB_LEN: usize = 18;
/// The service tag's Ethertype.
const PBB: u16 = 0x88e7;
/// TTL of a label pushed in front of a packet without a TTL.
const LABEL_TTL: u8 = 64;

/// Parses what an edit has exposed. Tags that were parsed before are parsed again.
pub(super) fn reread<F: Frame>(frame: &mut F, layers: &mut Layers, key: &mut FlowKey) {
    let limit = layers.vlans.max(parse::vlan_limit());
    *layers = parse::again(frame, key, limit);
}

/// Returns the offset of the Ethertype of what follows the tags, and whether it is in a SNAP
/// header.
pub(super) fn type_place(head: &[u8], layers: &Layers) -> Option<(usize, bool)> {
    let place = 12 + 4 * usize::from(layers.vlans);
    let number = u16::from_be_bytes(head.get(place..place + 2)?.try_into().ok()?);
    let snap = number < ETH_TYPE_MIN
        && head
            .get(place + 2..place + 10)
            .is_some_and(|header| header[..6] == [0xaa, 0xaa, 3, 0, 0, 0]);
    Some((if snap { place + 8 } else { place }, snap))
}

/// Returns the offset of the outermost label, if there is one.
pub(super) fn label_place(head: &[u8], layers: &Layers, key: &FlowKey) -> Option<usize> {
    let (place, _) = type_place(head, layers)?;
    let whole = place + 2 + LABEL_LEN <= usize::from(layers.l3);
    (is_mpls(key) && whole).then_some(place + 2)
}

/// Returns the offset of the service tag, if the packet contains it and the addresses behind it.
pub(super) fn service_place(head: &[u8], layers: &Layers, key: &FlowKey) -> Option<usize> {
    let from = usize::from(layers.l3);
    let whole = head.get(from..from + 16).is_some();
    (key.u16(at::ETH_TYPE) == PBB && whole).then_some(from)
}

fn is_mpls(key: &FlowKey) -> bool {
    matches!(key.u16(at::ETH_TYPE), 0x8847 | 0x8848)
}

/// Moves the offset where a device is to compute a checksum.
fn shift_offload<F: Frame>(frame: &mut F, by: i32) {
    let mut offload = frame.offload();
    if offload.partial_checksum {
        offload.csum_start = (i32::from(offload.csum_start) + by).max(0) as u16;
        frame.set_offload(offload);
    }
}

/// Adjusts the length field in front of a SNAP header, which counts the labels, too.
fn adjust_length(head: &mut [u8], layers: &Layers, by: i32) {
    let place = 12 + 4 * usize::from(layers.vlans);
    if let Some(bytes) = head.get_mut(place..place + 2) {
        let length = i32::from(u16::from_be_bytes([bytes[0], bytes[1]])) + by;
        bytes.copy_from_slice(&(length.max(0) as u16).to_be_bytes());
    }
}

/// Pushes a label behind the tags and in front of other labels, and sets the Ethertype in front of
/// it to `eth_type` (0x8847 or 0x8848).
///
/// The new label is a copy of the outermost one. A packet's first label gets the TTL and the low
/// three bits of the DSCP of the IP header, or 64 and 0, and the explicit null label: 2 for IPv6,
/// else 0 (ovs-actions(7)).
///
/// Returns false, and changes nothing, if there is no room or no Ethernet header: then the packet
/// must be dropped.
pub fn push_mpls<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    eth_type: u16,
) -> bool {
    let Some((place, snap)) = type_place(frame.head(), layers) else {
        return false;
    };
    let entry = match label_place(frame.head(), layers, key) {
        Some(from) => {
            let head = frame.head();
            [
                head[from],
                head[from + 1],
                head[from + 2] & !BOTTOM,
                head[from + 3],
            ]
        }
        None => first_label(key),
    };
    if !frame.push_front(LABEL_LEN) {
        return false;
    }
    let head = frame.head_mut();
    head.copy_within(LABEL_LEN..LABEL_LEN + place, 0);
    if snap {
        adjust_length(head, layers, LABEL_LEN as i32);
    }
    head[place..place + 2].copy_from_slice(&eth_type.to_be_bytes());
    head[place + 2..place + 2 + LABEL_LEN].copy_from_slice(&entry);
    shift_offload(frame, LABEL_LEN as i32);
    reread(frame, layers, key);
    true
}

fn first_label(key: &FlowKey) -> [u8; LABEL_LEN] {
    let eth_type = key.u16(at::ETH_TYPE);
    let label = if eth_type == IPV6 { 2 << 4 } else { 0 };
    let (class, ttl) = match (eth_type, key.u8(at::IP_TTL)) {
        (IPV4 | IPV6, ttl) => (
            key.u8(at::IP_TOS) >> 2 & 7,
            if ttl == 0 { LABEL_TTL } else { ttl },
        ),
        _ => (0, LABEL_TTL),
    };
    [0, 0, label | class << 1 | BOTTOM, ttl]
}

/// Pops the outermost label and sets the Ethertype to `eth_type`; leaves packets without a label
/// alone.
///
/// Parses what follows as that Ethertype and fills all of [`crate::parse::PACKET_WORDS`] of the
/// key.
pub fn pop_mpls<F: Frame>(frame: &mut F, layers: &mut Layers, key: &mut FlowKey, eth_type: u16) {
    let Some(label) = label_place(frame.head(), layers, key) else {
        return;
    };
    let Some((place, snap)) = type_place(frame.head(), layers) else {
        return;
    };
    let head = frame.head_mut();
    head[place..place + 2].copy_from_slice(&eth_type.to_be_bytes());
    if snap {
        adjust_length(head, layers, -(LABEL_LEN as i32));
    }
    head.copy_within(0..label, LABEL_LEN);
    if frame.pull_front(LABEL_LEN) {
        shift_offload(frame, -(LABEL_LEN as i32));
    }
    reread(frame, layers, key);
}

/// Result of decrementing an MPLS TTL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MplsTtl {
    /// Decremented by one.
    Decremented,
    /// It was 0 or 1, and stays.
    Expired(TtlExpired),
    /// The packet has no label.
    Absent,
}

/// Decrements the outermost label's TTL.
pub fn dec_mpls_ttl<F: Frame>(frame: &mut F, layers: &Layers, key: &mut FlowKey) -> MplsTtl {
    let Some(from) = label_place(frame.head(), layers, key) else {
        return MplsTtl::Absent;
    };
    let ttl = &mut frame.head_mut()[from + 3];
    if *ttl <= 1 {
        return MplsTtl::Expired(TtlExpired);
    }
    *ttl -= 1;
    key.set_u8(at::MPLS_LSE + 3, *ttl);
    MplsTtl::Decremented
}

/// Offset of the next TTL behind the outermost label's.
enum Inner {
    /// In the second label, at this offset.
    Label(usize),
    /// In the IPv4 header at this offset.
    Ipv4(usize),
    /// In the IPv6 header at this offset.
    Ipv6(usize),
}

impl Inner {
    fn behind(head: &[u8], label: usize) -> Option<Inner> {
        let next = label + LABEL_LEN;
        if head[label + 2] & BOTTOM == 0 {
            return head.get(next..next + LABEL_LEN).map(|_| Inner::Label(next));
        }
        // Labels do not say what they carry; the version field of an IP header does.
        match head.get(next)? >> 4 {
            4 => {
                let header = head.get(next..next + 20)?;
                let length = usize::from(header[0] & 15) * 4;
                (length >= 20).then_some(Inner::Ipv4(next))
            }
            6 => head.get(next..next + 8).map(|_| Inner::Ipv6(next)),
            _ => None,
        }
    }

    /// Finds it in a frame, which is linearized if the header is beyond its first segment.
    fn find<F: Frame>(frame: &mut F, label: usize) -> Option<Inner> {
        let reach = label + LABEL_LEN + 20;
        if frame.head().len() < reach && frame.len() > frame.head().len() {
            frame.linearize(reach);
        }
        Inner::behind(frame.head(), label)
    }

    /// Returns the offset of the TTL byte.
    fn place(&self) -> usize {
        match self {
            Inner::Label(from) => from + 3,
            Inner::Ipv4(from) => from + 8,
            Inner::Ipv6(from) => from + 7,
        }
    }
}

/// Copies the next TTL behind the outermost label's into it: the second label's, or that of the IP
/// header behind the last label. Does nothing without a label, or if nothing with a TTL follows it.
pub fn copy_ttl_out<F: Frame>(frame: &mut F, layers: &Layers, key: &mut FlowKey) {
    let Some(label) = label_place(frame.head(), layers, key) else {
        return;
    };
    if let Some(inner) = Inner::find(frame, label) {
        let head = frame.head_mut();
        head[label + 3] = head[inner.place()];
        key.set_u8(at::MPLS_LSE + 3, head[label + 3]);
    }
}

/// Copies the outermost label's TTL to the next one behind it; see [`copy_ttl_out`].
pub fn copy_ttl_in<F: Frame>(frame: &mut F, layers: &Layers, key: &mut FlowKey) {
    let Some(label) = label_place(frame.head(), layers, key) else {
        return;
    };
    let Some(inner) = Inner::find(frame, label) else {
        return;
    };
    let head = frame.head_mut();
    let ttl = head[label + 3];
    match inner {
        Inner::Label(from) => {
            head[from + 3] = ttl;
            key.set_u8(at::MPLS_LSE1 + 3, ttl);
        }
        Inner::Ipv4(from) => set_ipv4_byte(&mut head[from..from + 20], 8, ttl),
        Inner::Ipv6(from) => head[from + 7] = ttl,
    }
}

/// Pushes a PBB header: a copy of the packet's Ethernet addresses, and a service tag. Its service
/// is that of an existing service tag, else 0; its priority that of the outermost VLAN tag, else 0.
///
/// Returns false, and changes nothing, if there is no room or no Ethernet header: then the packet
/// must be dropped.
pub fn push_pbb<F: Frame>(frame: &mut F, layers: &mut Layers, key: &mut FlowKey) -> bool {
    let head = frame.head();
    if head.len() < 14 {
        return false;
    }
    let mut tag = [0; 4];
    if let Some(from) = service_place(head, layers, key) {
        tag[1..].copy_from_slice(&head[from + 1..from + 4]);
    }
    if layers.vlans > 0 {
        tag[0] = head[14] & 0xe0;
    }
    if !frame.push_front(PBB_LEN) {
        return false;
    }
    let head = frame.head_mut();
    head.copy_within(PBB_LEN..PBB_LEN + 12, 0);
    head[12..14].copy_from_slice(&PBB.to_be_bytes());
    head[14..18].copy_from_slice(&tag);
    shift_offload(frame, PBB_LEN as i32);
    layers.vlans = 0;
    reread(frame, layers, key);
    true
}

/// Pops the PBB header: the customer's addresses become the packet's. Tags in front of the service
/// tag stay. Leaves packets without one alone.
///
/// Parses the customer's frame and fills all of [`crate::parse::PACKET_WORDS`] of the key.
pub fn pop_pbb<F: Frame>(frame: &mut F, layers: &mut Layers, key: &mut FlowKey) {
    let Some(service) = service_place(frame.head(), layers, key) else {
        return;
    };
    // Bytes to remove: what follows the tags, with LLC and SNAP headers if there are any.
    let tags_end = 12 + 4 * usize::from(layers.vlans);
    let length = service + 16 - tags_end;
    let head = frame.head_mut();
    let mut addresses = [0; 12];
    addresses.copy_from_slice(&head[service + 4..service + 16]);
    head.copy_within(12..tags_end, 12 + length);
    head[length..length + 12].copy_from_slice(&addresses);
    if frame.pull_front(length) {
        shift_offload(frame, -(length as i32));
    }
    reread(frame, layers, key);
}
