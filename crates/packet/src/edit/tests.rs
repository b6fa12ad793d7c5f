//! Compares edits with reparsing: after any edit, the frame must parse to the key, with right
//! checksums, and setting the old value again must restore the old bytes.

use super::*;
use crate::build::Builder;
use crate::checksum::{ChecksumStatus, Sum, finish_partial, verify, write_at};
use crate::fields::FIELDS;
use crate::frame::{HeapFrame, Offload};
use crate::matching::Match;
use crate::parse::tests::{broken_packets, packets};
use crate::parse::{self, PACKET_WORDS};
use proptest::prelude::*;

/// Parses the frame again, as many tags deep as `layers` says.
pub(super) fn read_again(frame: &HeapFrame, key: &FlowKey, layers: &Layers) -> (FlowKey, Layers) {
    let bytes = frame.to_vec();
    let mut again = *key;
    let limit = layers.vlans.max(1);
    let words = PACKET_WORDS.minus(WordSet::MINI_KEY);
    let in_port = key.u32(at::IN_PORT);
    let found = parse::with_limit(&bytes, in_port, words, &mut again, limit);
    (again, found)
}

/// Returns whether all checksums are right, those of a first fragment by themselves.
pub(super) fn sound(frame: &HeapFrame, key: &FlowKey, layers: &Layers) -> bool {
    let mut frame = frame.clone();
    assert!(finish_partial(&mut frame));
    let mut key = *key;
    if layers.transport {
        key.set_u8(at::IP_FRAG, 0);
    }
    matches!(
        verify(&frame, layers, &key),
        ChecksumStatus::Good | ChecksumStatus::Unknown
    )
}

/// Leaves the transport checksum to be finished, as a local sender would.
pub(super) fn make_partial(frame: &mut HeapFrame, key: &FlowKey, layers: &Layers) {
    let ipv4 = key.u16(at::ETH_TYPE) == IPV4;
    let protocol = key.u8(at::IP_PROTO);
    let csum_offset = match protocol {
        6 => 16,
        17 => 6,
        58 if !ipv4 => 2,
        _ => return,
    };
    if !layers.transport {
        return;
    }
    let l4 = usize::from(layers.l4);
    let mut sum = Sum::new();
    let length = layers.end - u32::from(layers.l4);
    if ipv4 {
        let bytes = key.bytes();
        sum.add_pseudo_header(
            &bytes[at::IPV4_SRC..][..4],
            &bytes[at::IPV4_DST..][..4],
            protocol,
            length,
        );
    } else {
        let bytes = key.bytes();
        sum.add_pseudo_header(
            &bytes[at::IPV6_SRC..][..16],
            &bytes[at::IPV6_DST..][..16],
            protocol,
            length,
        );
    }
    assert!(write_at(frame, l4 + csum_offset, &sum.fold().to_be_bytes()));
    // Bytes behind the packet would be included in the sum.
    frame.truncate(layers.end as usize);
    frame.set_offload(Offload {
        partial_checksum: true,
        csum_start: layers.l4,
        csum_offset: csum_offset as u16,
        ..Offload::default()
    });
}

pub(super) fn parsed(bytes: &[u8]) -> (HeapFrame, FlowKey, Layers) {
    let frame = HeapFrame::new(bytes);
    let mut key = FlowKey::ZERO;
    let layers = parse::parse(bytes, bytes.len(), 3, PACKET_WORDS, &mut key);
    (frame, key, layers)
}

/// Returns whether the packet has the field, by the prerequisites of the table.
fn has(field: Field, key: &FlowKey, layers: &Layers) -> bool {
    use crate::fields::Prerequisite::*;
    let mut exact = Match::any();
    for word in [0, 2] {
        exact.set_word(word, key.words[word], u64::MAX);
    }
    let prerequisite = field.def().prerequisite;
    let deep_enough = match prerequisite {
        Tcp | Udp | Sctp | Icmpv4 | Icmpv6 | Nd | NdSolicit | NdAdvert => layers.transport,
        Ipv4 | Ipv6 | IpAny => layers.l4 != 0,
        // The generator uses this hardware address.
        Arp => layers.malformed.is_none() && key.u32(at::ARP_SHA) == 0x0303_0303,
        Mpls => key.u8(at::MPLS_DEPTH) > 0,
        Pbb => layers.malformed.is_none(),
        _ => true,
    };
    let tagged = layers.vlans > 0
        || !matches!(
            field,
            Field::DlVlan | Field::DlVlanPcp | Field::VlanVid | Field::VlanPcp
        );
    deep_enough && tagged && prerequisite.met_by(&exact)
}

fn merged(key: &FlowKey, field: Field, value: &Value, mask: &Value) -> FlowKey {
    let def = field.def();
    let mut key = *key;
    for (index, place) in def.place().iter().enumerate() {
        let byte = &mut key.bytes_mut()[def.offset + index];
        let mask = mask[index] & place;
        *byte = *byte & !mask | value[index] & mask;
    }
    key
}

/// Fields that decide what follows.
const SHAPES: [Field; 3] = [Field::EthType, Field::IpProto, Field::MplsBos];

/// Fields of the packet that are written by a plain merge; tags, neighbour discovery and [`SHAPES`]
/// have tests of their own.
fn plain_fields() -> Vec<Field> {
    let special = |field: Field| {
        SHAPES.contains(&field)
            || matches!(
                field,
                Field::VlanTci | Field::NdTarget | Field::NdSll | Field::NdTll
            )
    };
    FIELDS
        .iter()
        .filter(|def| def.writable && !special(def.field))
        .map(|def| def.field)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(6000)))]

    #[test]
    fn sets_are_seen_by_a_parser_and_can_be_undone(
        bytes in packets(),
        field in proptest::sample::select(plain_fields()),
        value: u128,
        mask in prop_oneof![Just(u128::MAX), any::<u128>()],
        partial: bool,
    ) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        prop_assume!(sound(&frame, &key, &layers));
        if partial {
            make_partial(&mut frame, &key, &layers);
        }
        let (before, key_before, layers_before) = (frame.clone(), key, layers);
        let def = field.def();
        let (value, mask) = (Value::from_u128(value, def.bytes), Value::from_u128(mask, def.bytes));
        prop_assert!(set_field(&mut frame, &mut layers, &mut key, field, &value, &mask));

        let expected = if has(field, &key_before, &layers_before) {
            let mut expected = merged(&key_before, field, &value, &mask);
            if layers.vlans > 0 && def.offset == at::VLAN_TCI {
                expected.set_u16(at::VLAN_TCI, expected.u16(at::VLAN_TCI) | 0x1000);
            }
            expected
        } else {
            key_before
        };
        prop_assert_eq!(key, expected);
        let (again, layers_again) = read_again(&frame, &key, &layers);
        if matches!(field, Field::Icmpv6Type | Field::Icmpv6Code) {
            // Another type makes other bytes fields of neighbour discovery, which writing it does
            // not update.
            prop_assert_eq!(again.words[..5].to_vec(), key.words[..5].to_vec());
        } else {
            prop_assert_eq!(again, key);
        }
        prop_assert_eq!(layers_again, layers);
        prop_assert_eq!(layers, layers_before);
        prop_assert!(sound(&frame, &key, &layers));

        let old = Value::from_bytes(&key_before.bytes()[def.offset..def.offset + def.bytes]);
        prop_assert!(set_field(&mut frame, &mut layers, &mut key, field, &old, &def.place()));
        let opcode_above_255 = field == Field::ArpOp && key_before.u8(at::IP_PROTO) == 0;
        if !opcode_above_255 {
            prop_assert_eq!(frame, before);
        }
    }

    #[test]
    fn broken_packets_stay_of_one_mind_with_their_keys(
        bytes in broken_packets(),
        sets in proptest::collection::vec(
            (
                proptest::sample::select([plain_fields(), SHAPES.to_vec()].concat()),
                any::<u128>(),
                any::<u128>(),
            ),
            1..4,
        ),
        partial in proptest::option::of(any::<(u16, u16)>()),
    ) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        if let Some((csum_start, csum_offset)) = partial {
            frame.set_offload(Offload {
                partial_checksum: true,
                csum_start: csum_start % 64,
                csum_offset,
                ..Offload::default()
            });
        }
        for (field, value, mask) in sets {
            let bytes = field.def().bytes;
            let (value, mask) = (Value::from_u128(value, bytes), Value::from_u128(mask, bytes));
            prop_assert!(set_field(&mut frame, &mut layers, &mut key, field, &value, &mask));
        }
        let (again, layers_again) = read_again(&frame, &key, &layers);
        prop_assert_eq!(again.words[..5].to_vec(), key.words[..5].to_vec());
        prop_assert_eq!(layers_again, layers);
        prop_assert_eq!(frame.len(), bytes.len());
    }

    #[test]
    fn compiled_sets_do_the_same(
        bytes in packets(),
        field in proptest::sample::select(FIELDS.iter().map(|def| def.field).collect::<Vec<_>>()),
        value: u128,
        mask in prop_oneof![Just(u128::MAX), any::<u128>()],
        partial: bool,
    ) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        if partial {
            make_partial(&mut frame, &key, &layers);
        }
        let (mut other_frame, mut other_key, mut other_layers) = (frame.clone(), key, layers);
        let def = field.def();
        let value = Value::from_u128(value, def.bytes);
        let mut mask = Value::from_u128(mask, def.bytes);
        for (mask, place) in mask.iter_mut().zip(def.place().iter()) {
            *mask &= place;
        }
        set_field(&mut frame, &mut layers, &mut key, field, &value, &mask);
        CompiledSet::new(field, &value, &mask).run(&mut other_frame, &mut other_layers, &mut other_key);
        prop_assert_eq!(frame, other_frame);
        prop_assert_eq!(key, other_key);
        prop_assert_eq!(layers, other_layers);
    }

    #[test]
    fn sets_made_one_do_the_same(
        bytes in packets(),
        sets in proptest::collection::vec(
            (
                prop_oneof![
                    proptest::sample::select(vec![
                        Field::EthDst, Field::EthSrc, Field::Ipv4Src, Field::Ipv4Dst, Field::IpEcn,
                        Field::IpDscp, Field::VlanVid, Field::VlanPcp, Field::Reg0, Field::Reg1,
                        Field::Xreg0, Field::IpTtl,
                    ]),
                    proptest::sample::select(FIELDS.iter().map(|def| def.field).collect::<Vec<_>>()),
                ],
                any::<u128>(),
                prop_oneof![Just(u128::MAX), any::<u128>()],
            ),
            2..5,
        ),
        partial: bool,
    ) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        if partial {
            make_partial(&mut frame, &key, &layers);
        }
        let (mut other_frame, mut other_key, mut other_layers) = (frame.clone(), key, layers);
        let mut folded: Vec<CompiledSet> = Vec::new();
        for (field, value, mask) in sets {
            let def = field.def();
            let set = CompiledSet::new(
                field,
                &Value::from_u128(value, def.bytes),
                &Value::from_u128(mask, def.bytes),
            );
            set.run(&mut frame, &mut layers, &mut key);
            match folded.last().and_then(|last| last.and_then(&set)) {
                Some(both) => *folded.last_mut().unwrap() = both,
                None => folded.push(set),
            }
        }
        for set in folded {
            set.run(&mut other_frame, &mut other_layers, &mut other_key);
        }
        prop_assert_eq!(frame, other_frame);
        prop_assert_eq!(key, other_key);
        prop_assert_eq!(layers, other_layers);
    }

    #[test]
    fn tags_come_and_go(
        bytes in packets(),
        steps in proptest::collection::vec((0..6u8, any::<u16>(), any::<bool>()), 1..6),
        partial: bool,
    ) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        prop_assume!(layers.malformed != Some(parse::Malformed::Vlan) && sound(&frame, &key, &layers));
        if partial {
            make_partial(&mut frame, &key, &layers);
        }
        for (step, number, push) in steps {
            match step {
                0 | 1 if layers.vlans < 2 => {
                    let tpid = if push { 0x8100 } else { 0x88a8 };
                    prop_assert!(push_vlan(&mut frame, &mut layers, &mut key, tpid));
                    prop_assert_eq!(&frame.head()[12..16], [&tpid.to_be_bytes()[..], &[0, 0]].concat());
                }
                2 => pop_vlan(&mut frame, &mut layers, &mut key),
                3 if push && layers.vlans == 0 || layers.vlans > 0 => {
                    prop_assert!(set_vlan_vid(&mut frame, &mut layers, &mut key, number, push));
                    prop_assert_eq!(key.u16(at::VLAN_TCI) & 0x1fff, number & 0xfff | 0x1000);
                }
                4 => {
                    let tagged = layers.vlans > 0;
                    prop_assert!(set_vlan_pcp(&mut frame, &mut layers, &mut key, number as u8, push));
                    if push || tagged {
                        prop_assert_eq!(key.u16(at::VLAN_TCI) >> 12, (number & 7) << 1 | 1);
                    } else {
                        prop_assert_eq!(key.u16(at::VLAN_TCI), 0);
                    }
                }
                5 => {
                    let value = Value::from_u128(number.into(), 2);
                    let mask = Value::from_u128(0xffff, 2);
                    prop_assert!(set_field(&mut frame, &mut layers, &mut key, Field::VlanTci, &value, &mask));
                    if number & 0x1000 != 0 {
                        prop_assert_eq!(key.u16(at::VLAN_TCI), number);
                    }
                }
                _ => {}
            }
            let (again, layers_again) = read_again(&frame, &key, &layers);
            prop_assert_eq!(again, key);
            prop_assert_eq!(layers_again, layers);
            prop_assert!(sound(&frame, &key, &layers));
        }
    }

    #[test]
    fn ttl_goes_down_to_one(bytes in packets(), ttl: u8) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        prop_assume!(sound(&frame, &key, &layers));
        let value = Value::from_u128(ttl.into(), 1);
        set_field(&mut frame, &mut layers, &mut key, Field::IpTtl, &value, &Value::ones(8, 1));
        let before = frame.clone();
        let is_ip = matches!(key.u16(at::ETH_TYPE), IPV4 | IPV6) && layers.l4 != 0;
        let result = dec_ttl(&mut frame, &layers, &mut key);
        prop_assert_eq!(result.is_err(), is_ip && ttl <= 1);
        if result.is_ok() && is_ip {
            prop_assert_eq!(key.u8(at::IP_TTL), ttl - 1);
        } else {
            prop_assert_eq!(&frame, &before);
        }
        let (again, _) = read_again(&frame, &key, &layers);
        prop_assert_eq!(again, key);
        prop_assert!(sound(&frame, &key, &layers));
    }
}

fn set(frame: &mut HeapFrame, field: Field, value: u128) -> FlowKey {
    let mut key = FlowKey::ZERO;
    let mut layers = parse::parse_frame(frame, 1, PACKET_WORDS, &mut key);
    let def = field.def();
    let value = Value::from_u128(value, def.bytes);
    assert!(set_field(
        frame,
        &mut layers,
        &mut key,
        field,
        &value,
        &def.place()
    ));
    key
}

#[test]
fn a_udp_packet_without_checksum_stays_without() {
    let mut bytes = Builder::ethernet([1; 6], [2; 6])
        .ipv4(1, 2)
        .udp(3, 4)
        .payload(b"abc")
        .bytes();
    bytes[40..42].fill(0);
    let mut frame = HeapFrame::new(&bytes);
    set(&mut frame, Field::Ipv4Dst, 77);
    set(&mut frame, Field::UdpSrc, 78);
    let expected = Builder::ethernet([1; 6], [2; 6])
        .ipv4(1, 77)
        .udp(78, 4)
        .payload(b"abc")
        .bytes();
    assert_eq!(frame.head()[..40], expected[..40]);
    assert_eq!(frame.head()[40..42], [0, 0]);
}

#[test]
fn an_icmp_message_of_zeroes_gets_the_other_zero() {
    let mut frame = HeapFrame::new(
        &Builder::ethernet([2; 6], [4; 6])
            .ipv4(1, 2)
            .icmp(8, 0, 0)
            .payload(&[0; 5])
            .bytes(),
    );
    set(&mut frame, Field::Icmpv4Type, 0);
    let mut key = FlowKey::ZERO;
    let layers = parse::parse_frame(&mut frame, 1, PACKET_WORDS, &mut key);
    assert_eq!(verify(&frame, &layers, &key), ChecksumStatus::Good);
    assert_eq!(frame.head()[36..38], [0xff, 0xff]);
}

#[test]
fn later_fragments_keep_their_bytes() {
    let later = Builder::ethernet([1; 6], [2; 6])
        .ipv4(1, 2)
        .with_ipv4(|ip| ip.set_fragment(9))
        .udp(3, 4);
    let mut frame = later.frame();
    set(&mut frame, Field::Ipv4Src, 1000);
    set(&mut frame, Field::UdpSrc, 1000);
    assert_eq!(frame.head()[34..], later.bytes()[34..]);
}

#[test]
fn the_destination_on_the_way_is_not_in_the_checksum() {
    for (segments_left, fixed) in [(0, true), (1, false)] {
        let body = [0, 4, segments_left, 0, 0, 0, 0];
        let packet = Builder::ethernet([1; 6], [2; 6])
            .ipv6([1; 16], [2; 16])
            .extension(43, &body)
            .udp(3, 4);
        let mut frame = packet.frame();
        let checksum = |frame: &HeapFrame| frame.head()[68..70].to_vec();
        let before = checksum(&frame);
        set(&mut frame, Field::Ipv6Dst, 99);
        assert_eq!(checksum(&frame) != before, fixed);
    }
}

#[test]
fn neighbour_discovery_fields() {
    let builder = |target, sll| {
        Builder::ethernet([1; 6], [2; 6])
            .ipv6([1; 16], [2; 16])
            .neighbour(135, target, &[(2, [8; 6]), (1, sll)])
    };
    let mut frame = builder([5; 16], [6; 6]).frame();
    set(&mut frame, Field::NdTarget, u128::from_be_bytes([7; 16]));
    let key = set(&mut frame, Field::NdSll, 0x0909_0909_0909);
    assert_eq!(frame, builder([7; 16], [9; 6]).frame());
    assert_eq!(key.bytes()[at::ARP_SHA..at::ARP_SHA + 6], [9; 6]);
    // A solicitation has no target address to set.
    let before = frame.clone();
    set(&mut frame, Field::NdTll, 1);
    assert_eq!(frame, before);
}

#[test]
fn two_addresses_of_one_kind_leave_no_discovery_fields() {
    let mut frame = Builder::ethernet([1; 6], [2; 6])
        .ipv6([1; 16], [2; 16])
        .neighbour(136, [5; 16], &[(2, [8; 6]), (2, [9; 6])])
        .frame();
    let before = frame.clone();
    for field in [Field::NdTarget, Field::NdTll] {
        let key = set(&mut frame, field, 1);
        assert_eq!(frame, before);
        assert_eq!(key.bytes()[at::ND_TARGET..at::ND_TARGET + 16], [0; 16]);
        assert_eq!(key.bytes()[at::ARP_THA..at::ARP_THA + 6], [0; 6]);
    }
}

#[test]
fn no_room_for_a_tag_changes_nothing() {
    let mut frame = Builder::ethernet([1; 6], [2; 6])
        .ipv4(1, 2)
        .udp(3, 4)
        .frame();
    let room = frame.headroom();
    assert!(frame.push_front(room) && frame.pull_front(0));
    let (bytes, mut key) = (frame.to_vec(), FlowKey::ZERO);
    let mut layers = Layers::default();
    assert!(!push_vlan(&mut frame, &mut layers, &mut key, 0x8100));
    assert!(!set_vlan_vid(&mut frame, &mut layers, &mut key, 5, true));
    assert_eq!(
        (frame.to_vec(), key, layers),
        (bytes, FlowKey::ZERO, Layers::default())
    );
}

#[test]
fn a_hidden_tag_is_read_when_it_comes_out() {
    let mut frame = Builder::ethernet([1; 6], [2; 6])
        .tag(0x88a8, 5)
        .vlan(6)
        .ipv4(1, 2)
        .udp(3, 4)
        .frame();
    let mut key = FlowKey::ZERO;
    let mut layers = parse::parse_frame(&mut frame, 1, WordSet::EMPTY, &mut key);
    assert_eq!((key.u16(at::ETH_TYPE), layers.vlans), (0x8100, 1));
    pop_vlan(&mut frame, &mut layers, &mut key);
    assert_eq!(
        (key.u16(at::ETH_TYPE), key.u16(at::VLAN_TCI), layers.vlans),
        (0x0800, 0x1006, 1)
    );
    assert_eq!((key.u16(at::TP_DST), layers.l4), (4, 38));
}

#[test]
fn values_of_a_wrong_length_change_nothing() {
    let packet = Builder::ethernet([1; 6], [2; 6]).ipv4(1, 2).udp(3, 4);
    for def in FIELDS {
        // The options are all edited in one way.
        if cfg!(miri)
            && def
                .field
                .tunnel_option()
                .is_some_and(|option| option % 16 != 0)
        {
            continue;
        }
        for length in [0, def.bytes - 1, def.bytes + 1] {
            let (mut frame, mut key, mut layers) = parsed(&packet.bytes());
            let (before, key_before) = (frame.clone(), key);
            let (right, wrong) = (Value::ones(128, def.bytes), Value::ones(128, length));
            for (value, mask) in [(&wrong, &wrong), (&wrong, &right), (&right, &wrong)] {
                assert!(set_field(
                    &mut frame,
                    &mut layers,
                    &mut key,
                    def.field,
                    value,
                    mask
                ));
                CompiledSet::new(def.field, value, mask).run(&mut frame, &mut layers, &mut key);
            }
            assert_eq!((&frame, &key), (&before, &key_before), "{}", def.name);
        }
    }
}
