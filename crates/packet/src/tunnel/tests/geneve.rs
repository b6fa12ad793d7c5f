//! Options, and their conversion by a bridge's map.

use super::*;
use crate::Field;
use crate::key::{FlowKey, WordSet, at};
use crate::options::KeyRange;
use proptest::prelude::*;

const MAP: [Mapping; 3] = [
    Mapping {
        class: 0xffff,
        kind: 1,
        field: 0,
        place: place(0, 4),
    },
    Mapping {
        class: 0xffff,
        kind: 0x80,
        field: 2,
        place: place(2, 8),
    },
    Mapping {
        class: 1,
        kind: 1,
        field: 9,
        place: place(9, 0),
    },
];

const fn place(number: usize, length: usize) -> KeyRange {
    let end = crate::options::end(number);
    KeyRange {
        start: end - length,
        end,
    }
}

/// Returns the bytes of an option's field in the key, if present.
fn field(key: &FlowKey, field: usize, length: usize) -> Option<Vec<u8>> {
    let is_present = key.u64(at::TUN_METADATA_PRESENT) >> field & 1 == 1;
    let def = Field::of_tunnel_option(field).def();
    let end = def.offset + def.bytes;
    is_present.then(|| key.bytes()[end - length..end].to_vec())
}

#[test]
fn options_are_where_matches_look_for_them() {
    // No map has the option of class 2.
    let bytes = hex("ffff8002 0102030405060708 00020101 aaaaaaaa ffff0101 0a0b0c0d 00010100");
    let options = GeneveOptions::new(&bytes).unwrap();
    assert!(options.has_critical());
    assert_eq!(options.iter().count(), 4);
    let mut key = FlowKey::ZERO;
    key.words.fill(u64::MAX);
    options.to_key(&MAP[..], &mut key).unwrap();
    assert_eq!(key.u64(at::TUN_METADATA_PRESENT), 1 | 1 << 2 | 1 << 9);
    assert_eq!(field(&key, 0, 4), Some(hex("0a0b0c0d")));
    assert_eq!(field(&key, 2, 8), Some(hex("0102030405060708")));
    assert_eq!(field(&key, 9, 0), Some(vec![]));
    assert_eq!(
        key.words[TunnelInfo::WORDS.iter().next().unwrap()],
        u64::MAX
    );
    // They are written in the order of the fields, without the unknown one.
    let buffer = OptionBuffer::from_key(&MAP[..], &key).unwrap();
    let expected = hex("ffff0101 0a0b0c0d ffff8002 0102030405060708 00010100");
    assert_eq!(buffer.options().bytes(), expected);
    // The packet has an option that its bridge's map no longer has.
    assert!(OptionBuffer::from_key(&MAP[1..], &key).is_none());
}

#[test]
fn odd_options_are_refused() {
    let to_key = |text: &str| {
        let bytes = hex(text);
        let options = GeneveOptions::new(&bytes).unwrap();
        options.to_key(&MAP[..], &mut FlowKey::ZERO.clone())
    };
    assert_eq!(to_key(""), Ok(()));
    assert_eq!(to_key("00020101 aaaaaaaa"), Ok(()));
    assert_eq!(to_key("00028100"), Err(Reason::CriticalOption));
    assert_eq!(to_key("ffff0100"), Err(Reason::Options));
    assert_eq!(to_key("ffff0102 0102030405060708"), Err(Reason::Options));
    for short in ["ff", "ffff01", "ffff0101", "ffff0101 010203", "00010100 00"] {
        assert_eq!(GeneveOptions::new(&hex(short)), None, "{short}");
    }
    assert!(GeneveOptions::new(&[0; 252]).is_some());
    assert_eq!(GeneveOptions::new(&[0; 256]), None);
}

#[test]
fn a_buffer_holds_as_much_as_a_header() {
    let mut buffer = OptionBuffer::new();
    assert!(!buffer.push(1, 1, &[0; 3]));
    assert!(!buffer.push(1, 1, &[0; 128]));
    assert!(buffer.push(1, 1, &[1; 124]));
    assert!(!buffer.push(1, 2, &[2; 124]));
    assert!(buffer.push(1, 2, &[2; 120]));
    assert!(!buffer.push(1, 3, &[]));
    assert_eq!(buffer.options().bytes().len(), GeneveOptions::MAX);
    let bodies: Vec<usize> = buffer.options().iter().map(|one| one.body.len()).collect();
    assert_eq!(bodies, [124, 120]);
}

/// Any maps that a bridge accepts: fields far enough apart for their lengths.
fn maps() -> impl Strategy<Value = Vec<Mapping>> {
    let entry = (any::<u16>(), any::<u8>(), 0..5u8);
    proptest::collection::vec(entry, 0..7).prop_map(|entries| {
        let mut map: Vec<Mapping> = Vec::new();
        for (index, (class, kind, words)) in entries.into_iter().enumerate() {
            let field = index as u8 * 5;
            let length = usize::from(words) * 4;
            if map[..].of_option(class, kind).is_none() {
                map.push(Mapping {
                    class,
                    kind,
                    field,
                    place: place(field.into(), length),
                });
            }
        }
        map
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(500)))]

    #[test]
    fn options_that_are_sent_are_received_unchanged(
        map in maps(),
        (present, garbage) in any::<(u64, u64)>(),
        bodies in proptest::collection::vec(any::<u8>(), 144),
    ) {
        let mut key = FlowKey::ZERO;
        let has = map.iter().filter(|entry| present >> entry.field & 1 == 1);
        let mask = has.clone().fold(0, |mask, entry| mask | 1 << entry.field);
        key.set_u64(at::TUN_METADATA_PRESENT, mask);
        for entry in has {
            let body = &bodies[..entry.place.length()];
            key.bytes_mut()[entry.place.start..entry.place.end].copy_from_slice(body);
        }
        let buffer = OptionBuffer::from_key(&map[..], &key).unwrap();
        let read = GeneveOptions::new(buffer.options().bytes());
        prop_assert_eq!(read, Some(buffer.options()));
        let mut again = FlowKey::ZERO;
        prop_assert_eq!(buffer.options().to_key(&map[..], &mut again), Ok(()));
        prop_assert_eq!(again, key);
        // The same without a whole key, where options have places among the words held.
        let mut words = TunnelWords::of_key(&again);
        let fits = map.iter().all(|entry| entry.place.length() == 0 || entry.place.start >= 560);
        prop_assert_eq!(TunnelWords::fit(&map), fits);
        if fits {
            let mut filled = FlowKey::ZERO;
            words.fill(&mut filled, WordSet(u64::MAX));
            prop_assert_eq!(filled, key);
            words.clear_options();
            prop_assert_eq!(words, TunnelWords::ZERO);
            words.write((crate::key::WORDS - 1) as u8, garbage, u64::MAX);
            prop_assert_eq!(words.set_options(buffer.options(), &map), Ok(()));
            prop_assert_eq!(words, TunnelWords::of_key(&key));
            prop_assert_eq!(words.has_options(), mask != 0);
            let mut copy = OptionBuffer::new();
            prop_assert!(words.options_into(&map, &mut copy));
            prop_assert_eq!(copy.options(), buffer.options());
        }
    }

    #[test]
    fn any_bytes_are_borne(map in maps(), bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Some(options) = GeneveOptions::new(&bytes) {
            let lengths = options.iter().map(|option| 4 + option.body.len());
            prop_assert_eq!(lengths.sum::<usize>(), bytes.len());
            let mut key = FlowKey::ZERO;
            let told = options.to_key(&map[..], &mut key);
            if TunnelWords::fit(&map) {
                let mut words = TunnelWords::ZERO;
                prop_assert_eq!(words.set_options(options, &map), told);
                prop_assert!(told.is_err() || words == TunnelWords::of_key(&key));
            }
        }
    }
}
