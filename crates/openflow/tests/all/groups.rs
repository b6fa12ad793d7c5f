//! Groups survive encoding and decoding in every version, and each kind of invalid group gives its
//! own error.

use openflow::action::Action;
use openflow::error::Error;
use openflow::group::{
    self, Bucket, GroupCommand, GroupDescription, GroupKind, GroupMod, GroupStats, Selection,
    SelectionMethod,
};
use openflow::message::{Message, MultipartReply};
use openflow::stats::GroupFeatures;
use openflow::{DecodeOptions, Version, decode, encode};
use packet::{Field, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Returns whether a version's messages contain bucket ids and selection methods.
fn is_rich(version: Version) -> bool {
    matches!(version, Version::V1_0 | Version::V1_5)
}

fn comes_back(version: Version, message: &Message) {
    let bytes = encode(version, 7, message);
    let (_, back) = decode(&bytes, &DecodeOptions::default()).expect("it is understood");
    assert_eq!(&back, message, "{version:?}");
}

fn bucket(kind: GroupKind, rich: bool) -> impl Strategy<Value = Bucket> {
    let watched = kind == GroupKind::FastFailover;
    let may_watch = watched || kind == GroupKind::Select;
    (
        any::<u16>(),
        (any::<bool>(), 1_u32..0xff00),
        0_u32..1000,
        vec(
            (1_u32..0xff00).prop_map(|port| Action::Output { port, max_len: 0 }),
            0..3,
        ),
        any::<u32>(),
    )
        .prop_map(
            move |(weight, (by_port, port), watch_group, actions, id)| Bucket {
                id: if rich { id % group::BUCKET_MAX } else { 0 },
                weight: if kind == GroupKind::Select { weight } else { 0 },
                watch_port: if may_watch && by_port {
                    port
                } else {
                    openflow::port::ANY
                },
                watch_group: if watched && !by_port || may_watch && port % 2 == 0 {
                    watch_group
                } else {
                    group::ANY
                },
                actions,
            },
        )
}

fn buckets(kind: GroupKind, rich: bool) -> impl Strategy<Value = Vec<Bucket>> {
    let count = if kind == GroupKind::Indirect {
        1..2
    } else {
        0..5
    };
    vec(bucket(kind, rich), count).prop_map(move |mut buckets| {
        // In older versions ids are positions; in all versions they must differ.
        for (place, bucket) in buckets.iter_mut().enumerate() {
            bucket.id = if rich {
                bucket.id / 8 * 8 + place as u32
            } else {
                place as u32
            };
        }
        buckets
    })
}

fn selection() -> impl Strategy<Value = Option<Selection>> {
    let field = select(vec![
        (Field::EthDst, Field::EthDst.def().place()),
        (Field::Ipv4Dst, Value::from_bytes(&[255, 255, 255, 0])),
        (Field::TcpSrc, Field::TcpSrc.def().place()),
    ]);
    let hash = (any::<u64>(), vec(field, 0..3)).prop_map(|(parameter, mut fields)| {
        fields.sort_by_key(|(field, _)| *field);
        fields.dedup_by_key(|(field, _)| *field);
        Selection {
            method: SelectionMethod::Hash,
            parameter,
            fields,
        }
    });
    let dp_hash = any::<u64>().prop_map(|parameter| Selection {
        method: SelectionMethod::DpHash,
        parameter,
        fields: vec![],
    });
    prop_oneof![Just(None), hash.prop_map(Some), dp_hash.prop_map(Some)]
}

fn description(version: Version) -> impl Strategy<Value = GroupDescription> {
    let kinds = vec![
        GroupKind::All,
        GroupKind::Select,
        GroupKind::Indirect,
        GroupKind::FastFailover,
    ];
    let rich = is_rich(version);
    select(kinds).prop_flat_map(move |kind| {
        (0..=group::MAX, buckets(kind, rich), selection()).prop_map(
            move |(group, buckets, selection)| GroupDescription {
                kind,
                group,
                buckets,
                selection: selection.filter(|_| rich && kind == GroupKind::Select),
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn groups_come_back((version, description, command, at) in select(Version::ALL.to_vec()).prop_flat_map(|version| {
        let commands = select(vec![GroupCommand::Add, GroupCommand::Modify, GroupCommand::AddOrModify, GroupCommand::InsertBucket]);
        let places = select(vec![group::BUCKET_FIRST, group::BUCKET_LAST, 0, 77, group::BUCKET_MAX]);
        (Just(version), description(version), commands, places)
    })) {
        let inserts = command == GroupCommand::InsertBucket;
        prop_assume!(!inserts || is_rich(version));
        let reply = MultipartReply::GroupDescription(vec![description.clone()]);
        comes_back(version, &Message::MultipartReply { reply, more: false });
        let mut change = GroupMod {
            command,
            kind: description.kind,
            group: description.group,
            command_bucket: if inserts { at } else { group::BUCKET_ALL },
            buckets: description.buckets,
            selection: description.selection,
        };
        if inserts {
            change.selection = None;
            // A weight that is not sent is 1.
            change.buckets.iter_mut().filter(|_| change.kind != GroupKind::Select).for_each(|bucket| bucket.weight = 1);
        }
        comes_back(version, &Message::GroupMod(change));
    }

    #[test]
    fn counters_come_back(version in select(Version::ALL.to_vec()), group in any::<u32>(), references in any::<u32>(), counts in any::<(u64, u64)>(),
                          seconds in 0_u64..1_000_000, buckets in vec(any::<(u64, u64)>(), 0..20)) {
        let has_duration = !matches!(version, Version::V1_1 | Version::V1_2);
        let stats = GroupStats {
            group,
            references,
            packets: counts.0,
            bytes: counts.1,
            duration_ns: if has_duration { seconds * 1_000_000_001 } else { u64::MAX },
            buckets,
        };
        let reply = MultipartReply::Group(vec![stats]);
        comes_back(version, &Message::MultipartReply { reply, more: false });
    }
}

#[test]
fn features_come_back() {
    for version in Version::ALL {
        // Those of 1.0's actions that 1.3 has too.
        let actions = if version == Version::V1_0 {
            1 | 1 << 18 | 1 << 21 | 1 << 25
        } else {
            1 | 1 << 15 | 1 << 18 | 1 << 21 | 1 << 22 | 1 << 25
        };
        let features = GroupFeatures {
            types: 0xf,
            capabilities: 7,
            max_groups: [group::MAX; 4],
            actions: [actions; 4],
        };
        let reply = MultipartReply::GroupFeatures(features);
        comes_back(version, &Message::MultipartReply { reply, more: false });
    }
}

/// Returns the decoder's error for a group mod of OpenFlow 1.5 with this body.
fn refused(body: &str) -> Option<Error> {
    let digits: Vec<u8> = body.bytes().filter(u8::is_ascii_hexdigit).collect();
    let body: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let length = (8 + body.len()) as u16;
    let mut bytes = vec![6, 15];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0, 1]);
    bytes.extend(body);
    decode(&bytes, &DecodeOptions::default())
        .err()
        .map(|failure| failure.error)
}

/// The errors of 1.5.1 section 7.3.4.3, as Open vSwitch gives them.
#[test]
fn invalid_group_mods_have_the_specified_errors() {
    let method = |name: &str, rest: &str| {
        let mut text: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&"00".repeat(16 - name.len()));
        let length = 40 + rest.len() / 2;
        format!("ffff {length:04x} 0000154d 00000001 00000000 {text} 0000000000000005 {rest}")
    };
    let select = "0000 01 00 00000001 0000 0000 ffffffff ";
    let all = "0000 00 00 00000001 0000 0000 ffffffff ";
    let cases = [
        (format!("{select}{}", method("hash", "")), None),
        (format!("{select}{}", method("dp_hash", "")), None),
        (
            format!("{select}{}", method("hash", "80001804ffffff00")),
            None,
        ),
        (
            format!("{all}{}", method("hash", "")),
            Some(Error::BadPropertyValue),
        ),
        (
            format!("{select}{}", method("foo", "")),
            Some(Error::BadPropertyValue),
        ),
        (
            format!("{select}{}", method("dp_hash", "80001804ffffff00")),
            Some(Error::BadPropertyValue),
        ),
        (
            format!("{select}ffff 0010 0000154d 00000009 00000000"),
            Some(Error::BadPropertyExperimenterType),
        ),
        (
            format!("{select}ffff 0010 00000123 00000001 00000000"),
            Some(Error::BadPropertyExperimenter),
        ),
        (
            format!("{select}0001 0008 00000001"),
            Some(Error::BadPropertyType),
        ),
        // A command's bucket.
        (
            "0000 01 00 00000001 0000 0000 00000003".into(),
            Some(Error::BadBucket),
        ),
        (
            "0003 01 00 00000001 0000 0000 ffffffff".into(),
            Some(Error::BadBucket),
        ),
        ("0005 01 00 00000001 0000 0000 ffffffff".into(), None),
        // Lengths of bucket lists, buckets and actions; ids.
        (
            "0000 01 00 00000001 0010 0000 ffffffff".into(),
            Some(Error::BadLength),
        ),
        (
            "0000 01 00 00000001 0008 0000 ffffffff 0010 0000 00000001".into(),
            Some(Error::BadBucket),
        ),
        (
            "0000 01 00 00000001 0008 0000 ffffffff 0008 0008 00000001".into(),
            Some(Error::BadBucket),
        ),
        (
            "0000 01 00 00000001 0010 0000 ffffffff 0008 0000 00000001 0008 0000 00000001".into(),
            Some(Error::BadBucket),
        ),
        (
            "0000 01 00 00000001 0008 0000 ffffffff 0008 0000 ffffff01".into(),
            Some(Error::BadBucket),
        ),
    ];
    for (body, error) in cases {
        assert_eq!(refused(&body), error, "{body}");
    }
}
