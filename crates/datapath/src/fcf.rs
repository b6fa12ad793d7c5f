//! The flow control field: VM id and priority bit in the header that a frame has on the underlay.
//!
//! Rules only set the field's value (`set_fcf` writes it into the packet's key). Ports do the rest,
//! when they send, in a bridge that has a layout:
//!
//! - A tunnel writes the field into the outer header. Where no rule has set one, the outer header
//!   has none, whatever the inner packet has.
//! - A port of the underlay writes it into the frame itself. Where no rule has set one, it is
//!   cleared in frames that came from guests and stays in those that came by the underlay.
//! - Other ports remove it from frames that came by the underlay.
//!
//! Bridges without a layout do none of this, and pay nothing for it.

use crate::counters::DropReason;
use crate::forward::Forward;
use crate::port::LOCAL;
use crate::shape::inspect::change_tos;
use crate::snapshot::PortState;
use crate::vlan::{self, TPID_8021AD, TPID_8021Q, Tag};
use packet::key::at;
use packet::{Frame, WordSet};
use program::actions::PortNo;

/// The word of the key that holds the field.
pub(crate) const WORD: WordSet = WordSet::of_bytes(at::FCF, 2);

/// Parts of the field in the key: whether there is one, its priority bit, its VM id.
const PRESENT: u16 = 0x8000;
const PRIORITY: u16 = 0x4000;
const VM: u16 = 0x0fff;
/// The top bit of a tag's PCP.
const PCP_TOP: u16 = 0x8000;
/// The ECN bits of the ToS byte.
const ECN: u8 = 3;

/// Where the field is in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// The DSCP: bit 5 is the priority bit, bits 4-0 are the VM id.
    Dscp6,
    /// The ToS byte: bit 7 is the priority bit, bits 6-0 are the VM id.
    Tos8,
    /// An 802.1Q tag: the top bit of its PCP is the priority bit, its VLAN id is the VM id.
    Vlan,
}

/// The field's value in the key; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Field(pub u16);

impl Field {
    /// Returns the priority bit and `width` bits of VM id below it; 0 where there is no field, or
    /// the VM id does not fit.
    fn bits(self, width: u32) -> u16 {
        let vm = self.0 & VM;
        if self.0 & PRESENT == 0 || vm >> width != 0 {
            return 0;
        }
        vm | if self.0 & PRIORITY != 0 {
            1 << width
        } else {
            0
        }
    }

    /// Returns a ToS byte with the field in it.
    pub fn in_tos(self, layout: Layout, tos: u8) -> u8 {
        match layout {
            Layout::Dscp6 => (self.bits(5) << 2) as u8 | tos & ECN,
            Layout::Tos8 => self.bits(7) as u8,
            Layout::Vlan => tos,
        }
    }

    /// Returns the tag with the field; None where there is no field.
    pub fn tag(self) -> Option<Tag> {
        let bits = self.bits(12);
        (bits != 0).then_some(Tag {
            tpid: TPID_8021Q,
            tci: bits & VM | if bits & 1 << 12 != 0 { PCP_TOP } else { 0 },
        })
    }
}

/// What is known of the current frame's field: the value set by a rule, and where the frame came
/// from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Said {
    /// The value that a rule has set.
    pub field: Field,
    /// Whether it came by a port of the underlay, so that it may carry a field to be removed.
    pub from_underlay: bool,
    /// Whether it comes from the underlay or the host and not from a guest, so that a field in it
    /// is to be believed.
    pub is_trusted: bool,
}

impl Said {
    /// For a mirror's copy, which stays as it is.
    pub const COPY: Said = Said {
        field: Field(0),
        from_underlay: false,
        is_trusted: true,
    };
}

/// Which frames that a port receives have priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Urgency {
    /// None of them.
    #[default]
    None,
    /// Those with the top bit of the ToS byte or traffic class.
    Tos,
    /// Those with a field in their first tag that has the priority bit.
    Tag,
}

impl Urgency {
    /// Returns which frames of a port have priority: those whose field says so, where it is
    /// believed.
    pub fn of(is_underlay: bool, layout: Option<Layout>) -> Urgency {
        match layout {
            Some(Layout::Dscp6 | Layout::Tos8) if is_underlay => Urgency::Tos,
            Some(Layout::Vlan) if is_underlay => Urgency::Tag,
            _ => Urgency::None,
        }
    }

    /// Returns whether a frame that begins with these bytes has priority.
    #[inline]
    pub fn has(self, head: &[u8]) -> bool {
        let word = |at: usize| Some(u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?]));
        match self {
            Urgency::None => false,
            Urgency::Tag => {
                // Tags of VLANs 0 and 4095 are no fields.
                word(12) == Some(TPID_8021Q)
                    && word(14).is_some_and(|tci| tci & PCP_TOP != 0 && !matches!(tci & VM, 0 | VM))
            }
            Urgency::Tos => {
                let mut at = 12;
                for _ in 0..2 {
                    if !matches!(word(at), Some(TPID_8021Q | TPID_8021AD)) {
                        break;
                    }
                    at += 4;
                }
                match word(at) {
                    Some(0x0800) => head.get(at + 3).is_some_and(|tos| tos & 0x80 != 0),
                    // Its traffic class begins with the lower half of the first byte.
                    Some(0x86dd) => head.get(at + 2).is_some_and(|byte| byte & 0x08 != 0),
                    _ => false,
                }
            }
        }
    }
}

/// Pushes a tag in front of all tags of a frame.
pub(crate) fn push<F: Frame>(frame: &mut F, tag: Tag) -> bool {
    vlan::set_tag(frame, None, Some(tag))
}

/// Writes the field into a frame that leaves by a port of the underlay. Returns false where there
/// is no room.
fn write<F: Frame>(frame: &mut F, layout: Layout, said: Said) -> bool {
    if said.field == Field::default() && said.is_trusted {
        return true;
    }
    match layout {
        Layout::Dscp6 | Layout::Tos8 => {
            change_tos(frame, |tos| said.field.in_tos(layout, tos));
            true
        }
        Layout::Vlan => {
            let has_tag = vlan::ethernet(frame).is_ok_and(|front| front.tag.is_some());
            // A guest's tag must not be mistaken for a field: a tag of zeros in front, which means
            // no field, hides it.
            let hiding = (has_tag && !said.is_trusted).then_some(Tag {
                tpid: TPID_8021Q,
                tci: 0,
            });
            let tag = said.field.tag().or(hiding);
            // A field that the frame has already is replaced.
            let old = match said.from_underlay {
                true => vlan::ethernet(frame).ok().and_then(|front| front.tag),
                false => None,
            };
            vlan::set_tag(frame, old.filter(|_| tag.is_some()), tag)
        }
    }
}

/// Removes the field from a frame.
fn strip<F: Frame>(frame: &mut F, layout: Layout) -> bool {
    match layout {
        Layout::Dscp6 | Layout::Tos8 => {
            change_tos(frame, |tos| Field::default().in_tos(layout, tos));
            true
        }
        Layout::Vlan => {
            let tag = vlan::ethernet(frame).ok().and_then(|front| front.tag);
            vlan::set_tag(frame, tag, None)
        }
    }
}

impl<F: Frame> Forward<'_, F> {
    /// Notes the source of frames that came in by this port; no rule has set their field yet.
    #[inline(never)]
    pub(crate) fn note_source(&mut self, in_port: PortNo) {
        let underlay = (self.bridge.port(in_port)).is_some_and(|port| port.underlay);
        self.sending.fcf = Said {
            field: Field::default(),
            from_underlay: underlay,
            is_trusted: underlay || in_port == LOCAL,
        };
    }

    /// Gives a frame the field that it must have behind a port (other than a tunnel) of a bridge
    /// with this layout; None, and counted, where that is not possible.
    #[inline(never)]
    pub(crate) fn settle(&mut self, port: &PortState, layout: Layout, mut frame: F) -> Option<F> {
        let said = self.sending.fcf;
        let done = match (port.underlay, said.from_underlay) {
            (true, _) => write(&mut frame, layout, said),
            (false, true) => strip(&mut frame, layout),
            (false, false) => true,
        };
        if !done {
            self.cell.drop(DropReason::NoBuffer, 1);
        }
        done.then_some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::HeapFrame;

    fn field(vm: u16, priority: bool) -> Field {
        Field(PRESENT | vm | if priority { PRIORITY } else { 0 })
    }

    fn frame(tos: u8) -> HeapFrame {
        let mut bytes = vec![2; 12];
        bytes.extend_from_slice(&[8, 0, 0x45, tos, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        bytes.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0]);
        let sum = packet::checksum::ipv4_header(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        HeapFrame::new(&bytes)
    }

    /// Returns the ToS byte of a frame, after checking its header checksum.
    fn tos(frame: &HeapFrame) -> u8 {
        let mut header = frame.head()[14..34].to_vec();
        let sum = [header[10], header[11]];
        header[10..12].fill(0);
        let right = packet::checksum::ipv4_header(&header).to_be_bytes();
        assert_eq!(sum, right, "the header's checksum");
        header[1]
    }

    #[test]
    fn priority_is_read_where_the_layout_has_it() {
        let ethernet = |types: &[u16], rest: &[u8]| {
            let mut bytes = vec![2; 12];
            types
                .iter()
                .for_each(|word| bytes.extend(word.to_be_bytes()));
            bytes.extend(rest);
            bytes
        };
        let (v4, v6) = ([0x45, 0x84], [0x68, 0x40]);
        for (types, rest) in [
            (vec![0x0800], v4),
            (vec![0x86dd], v6),
            (vec![0x8100, 7, 0x0800], v4),
            (vec![0x88a8, 7, 0x8100, 7, 0x86dd], v6),
        ] {
            let urgent = ethernet(&types, &rest);
            assert!(Urgency::Tos.has(&urgent), "{types:x?}");
            assert!(!Urgency::None.has(&urgent) && !Urgency::Tag.has(&urgent));
            let without = ethernet(&types, &[rest[0] & 0xf0 | 0x05, 0x04]);
            assert!(types.ends_with(&[0x86dd]) || !Urgency::Tos.has(&without));
            assert!(!Urgency::Tos.has(&ethernet(&types, &[0x60, 0x7f])));
            for length in 0..urgent.len() - 2 {
                assert!(!Urgency::Tos.has(&urgent[..length]), "{types:x?} {length}");
            }
        }
        assert!(!Urgency::Tos.has(&ethernet(&[0x0806], &[0xff; 28])));
        for (tci, expected) in [
            (0x8005, true),
            (0x0005, false),
            (0x8000, false),
            (0x8fff, false),
        ] {
            let tagged = ethernet(&[0x8100, tci, 0x0800], &[0x45, 0xff]);
            assert_eq!(Urgency::Tag.has(&tagged), expected, "{tci:x}");
        }
        assert_eq!(Urgency::of(true, Some(Layout::Tos8)), Urgency::Tos);
        assert_eq!(Urgency::of(true, Some(Layout::Vlan)), Urgency::Tag);
        assert_eq!(Urgency::of(false, Some(Layout::Tos8)), Urgency::None);
        assert_eq!(Urgency::of(true, None), Urgency::None);
    }

    const GUEST: Said = Said {
        field: Field(0),
        from_underlay: false,
        is_trusted: false,
    };
    const UNDERLAY: Said = Said {
        field: Field(0),
        from_underlay: true,
        is_trusted: true,
    };

    #[test]
    fn a_field_has_its_place_in_each_layout() {
        assert_eq!(
            field(5, true).in_tos(Layout::Dscp6, 0b11),
            (32 + 5) << 2 | 3
        );
        assert_eq!(field(5, false).in_tos(Layout::Tos8, 0b11), 5);
        assert_eq!(field(127, true).in_tos(Layout::Tos8, 0), 0xff);
        assert_eq!(field(5, true).in_tos(Layout::Vlan, 7), 7);
        assert_eq!(field(4094, true).tag().map(|tag| tag.tci), Some(0x8ffe));
        assert_eq!(Field(0).tag(), None);
        // A VM id that does not fit is not written in part.
        assert_eq!(field(32, true).in_tos(Layout::Dscp6, 2), 2);
        assert_eq!(field(128, true).in_tos(Layout::Tos8, 0), 0);
    }

    #[test]
    fn guests_fields_are_cleared_and_the_underlays_kept() {
        let sent = |layout, said, was| {
            let mut frame = frame(was);
            assert!(write(&mut frame, layout, said));
            tos(&frame)
        };
        assert_eq!(sent(Layout::Dscp6, GUEST, 0xfd), 1, "ECN stays");
        assert_eq!(sent(Layout::Tos8, GUEST, 0xfd), 0);
        assert_eq!(sent(Layout::Dscp6, UNDERLAY, 0x14), 0x14);
        let marked = Said {
            field: field(3, true),
            ..GUEST
        };
        assert_eq!(sent(Layout::Dscp6, marked, 0xfd), (32 + 3) << 2 | 1);
        let marked = Said {
            field: field(3, true),
            ..UNDERLAY
        };
        assert_eq!(sent(Layout::Tos8, marked, 0x14), 0x83);
    }

    #[test]
    fn tags_are_pushed_hidden_replaced_and_popped() {
        let outer = |frame: &mut HeapFrame| {
            let front = vlan::ethernet(frame).unwrap();
            front.tag.map(|tag| tag.tci)
        };
        let marked = |said| Said {
            field: field(9, true),
            ..said
        };
        let mut plain = frame(0);
        assert!(write(&mut plain, Layout::Vlan, GUEST));
        assert_eq!(outer(&mut plain), None);
        assert!(write(&mut plain, Layout::Vlan, marked(GUEST)));
        assert_eq!(outer(&mut plain), Some(0x8009));
        // To the underlay it goes unchanged, or with another field.
        assert!(write(&mut plain, Layout::Vlan, UNDERLAY));
        assert_eq!(outer(&mut plain), Some(0x8009));
        let other = Said {
            field: field(7, false),
            ..UNDERLAY
        };
        assert!(write(&mut plain, Layout::Vlan, other));
        assert_eq!(outer(&mut plain), Some(7));
        // A guest's own tag is hidden, and uncovered on the way out.
        assert!(write(&mut plain, Layout::Vlan, GUEST));
        assert_eq!(outer(&mut plain), Some(0));
        assert!(strip(&mut plain, Layout::Vlan));
        assert_eq!(outer(&mut plain), Some(7));
        assert!(strip(&mut plain, Layout::Vlan));
        assert_eq!(outer(&mut plain), None);
        assert_eq!(tos(&plain), 0);
        let mut marked = frame(0x97);
        assert!(strip(&mut marked, Layout::Dscp6));
        assert_eq!(tos(&marked), 3);
    }
}
