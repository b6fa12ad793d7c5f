//! Pushes, pops and writes VLAN tags.

use crate::frame::Frame;
use crate::key::{FlowKey, WordSet, at};
use crate::parse::{self, Layers, PACKET_WORDS};

const TAG_LEN: usize = 4;
/// Bit 0x1000 of a TCI in the key says that there is a tag. In the frame it is the DEI.
const PRESENT: u16 = parse::VLAN_PRESENT;
const TPID: u16 = 0x8100;

/// Pushes a tag with this TPID (0x8100 or 0x88a8) and a TCI of zero in front of other tags.
///
/// Returns false, and changes nothing, if there is no room or no Ethernet header: then the packet
/// must be dropped.
pub fn push_vlan<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    tpid: u16,
) -> bool {
    if frame.head().len() < 14 || !frame.push_front(TAG_LEN) {
        return false;
    }
    let head = frame.head_mut();
    head.copy_within(TAG_LEN..TAG_LEN + 12, 0);
    head[12..14].copy_from_slice(&tpid.to_be_bytes());
    head[14..16].fill(0);
    shift(frame, layers, TAG_LEN as i32);
    layers.vlans = layers.vlans.saturating_add(1);
    key.set_u16(at::VLAN_TCI2, key.u16(at::VLAN_TCI));
    key.set_u16(at::VLAN_TCI, PRESENT);
    true
}

/// Pops the outermost tag; leaves untagged packets alone.
///
/// If a tag behind it had not been parsed, it is parsed now, with the headers behind it, and all of
/// [`PACKET_WORDS`] of the key are filled.
pub fn pop_vlan<F: Frame>(frame: &mut F, layers: &mut Layers, key: &mut FlowKey) {
    if layers.vlans == 0 || frame.head().len() < 14 + TAG_LEN {
        return;
    }
    frame.head_mut().copy_within(0..12, TAG_LEN);
    if !frame.pull_front(TAG_LEN) {
        return;
    }
    shift(frame, layers, -(TAG_LEN as i32));
    layers.vlans -= 1;
    let tag = |index: usize| {
        let head = frame.head();
        let at = 14 + TAG_LEN * index;
        let known = index < usize::from(layers.vlans) && at + 2 <= head.len();
        if known {
            u16::from_be_bytes([head[at], head[at + 1]]) | PRESENT
        } else {
            0
        }
    };
    let tags = [tag(0), tag(1)];
    key.set_u16(at::VLAN_TCI, tags[0]);
    key.set_u16(at::VLAN_TCI2, tags[1]);
    let hidden = matches!(frame.head().get(12..14), Some([0x81, 0] | [0x88, 0xa8]));
    if layers.vlans == 0 && hidden {
        let needed = PACKET_WORDS.minus(WordSet::MINI_KEY);
        let in_port = key.u32(at::IN_PORT);
        *layers = parse::parse_frame(frame, in_port, needed, key);
    }
}

/// Writes the VLAN id (low 12 bits of `vid`). With `push`, untagged packets get a tag with priority
/// 0 (OpenFlow 1.0); without, they stay untagged. Returns false as [`push_vlan`] does.
pub fn set_vlan_vid<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    vid: u16,
    push: bool,
) -> bool {
    set_tci(
        frame,
        layers,
        key,
        vid & 0x0fff | PRESENT,
        0x0fff | PRESENT,
        push,
    )
}

/// Writes the priority (low 3 bits of `pcp`). With `push`, untagged packets get a tag with VLAN id
/// 0 (OpenFlow 1.0); without, they stay untagged. Returns false as [`push_vlan`] does.
pub fn set_vlan_pcp<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    pcp: u8,
    push: bool,
) -> bool {
    let value = u16::from(pcp & 7) << 13 | PRESENT;
    set_tci(frame, layers, key, value, 0xe000 | PRESENT, push)
}

/// Writes bits of the outermost TCI. With `whole`, the resulting [`PRESENT`] bit decides whether
/// the packet has a tag; without, untagged packets stay untagged and tagged ones tagged.
pub fn set_tci<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    value: u16,
    mask: u16,
    whole: bool,
) -> bool {
    let tagged = layers.vlans > 0;
    if !tagged && !whole {
        return true;
    }
    let mut tci = key.u16(at::VLAN_TCI) & !mask | value & mask;
    if !whole {
        tci |= PRESENT;
    }
    if tci & PRESENT == 0 {
        pop_vlan(frame, layers, key);
        return true;
    }
    if !tagged && !push_vlan(frame, layers, key, TPID) {
        return false;
    }
    if let Some(bytes) = frame.head_mut().get_mut(14..16) {
        // Keep the DEI that the tag came with.
        let dei = u16::from_be_bytes([bytes[0], bytes[1]]) & PRESENT;
        bytes.copy_from_slice(&(tci & !PRESENT | dei).to_be_bytes());
        key.set_u16(at::VLAN_TCI, tci);
    }
    true
}

/// Moves the offsets of everything behind the Ethernet header by `by` bytes.
fn shift<F: Frame>(frame: &mut F, layers: &mut Layers, by: i32) {
    let moved = |offset: u16| (i32::from(offset) + by).max(0) as u16;
    layers.l3 = moved(layers.l3);
    if layers.l4 != 0 {
        layers.l4 = moved(layers.l4);
    }
    layers.end = layers.end.saturating_add_signed(by);
    let mut offload = frame.offload();
    if offload.partial_checksum {
        offload.csum_start = moved(offload.csum_start);
        frame.set_offload(offload);
    }
}
