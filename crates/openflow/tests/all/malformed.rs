//! Malformed messages and the errors that the specification requires for them, with its sections
//! (OpenFlow 1.3.5 unless another version is named; `OVS` where the specification leaves it open
//! and Open vSwitch decides).

use openflow::error::{Error, WireError};
use openflow::{DecodeOptions, Version, decode, encode_error};

/// Returns a message of a version, a type and a body in hexadecimal (blanks are ignored), with a
/// valid header.
fn message(version: u8, kind: u8, body: &str) -> Vec<u8> {
    let digits: Vec<u8> = body
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let body: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let length = u16::try_from(body.len() + 8).unwrap();
    let mut bytes = vec![version, kind, (length >> 8) as u8, length as u8, 0, 0, 0, 1];
    bytes.extend(body);
    bytes
}

fn refused(bytes: &[u8]) -> Option<Error> {
    decode(bytes, &DecodeOptions::default())
        .err()
        .map(|failure| failure.error)
}

/// Returns a flow mod of 1.3 for table 0 with OXM fields and instructions.
fn flow_mod(fields: &str, instructions: &str) -> Vec<u8> {
    with_head(
        "00000000 00000000 00000000 00000000 00 00 0000 0000 8000 ffffffff ffffffff ffffffff 0000 0000",
        fields,
        instructions,
    )
}

fn with_head(head: &str, fields: &str, instructions: &str) -> Vec<u8> {
    let bytes = fields.chars().filter(|c| !c.is_whitespace()).count() / 2;
    let length = bytes + 4;
    let padding = "00".repeat(length.next_multiple_of(8) - length);
    message(
        4,
        14,
        &format!("{head} 0001 {length:04x} {fields} {padding} {instructions}"),
    )
}

/// Returns a flow mod of 1.3 for IPv4 TCP with one apply-actions instruction.
fn apply(actions: &str) -> Vec<u8> {
    let bytes = actions.chars().filter(|c| !c.is_whitespace()).count() / 2;
    flow_mod(
        "80000a02 0800 80001401 06",
        &format!("0004 {:04x} 00000000 {actions}", bytes + 8),
    )
}

/// Returns a flow mod of 1.0 that matches everything, with actions.
fn old(actions: &str) -> Vec<u8> {
    let match_all = format!("003fffff {}", "00".repeat(36));
    message(
        1,
        14,
        &format!("{match_all} 0000000000000000 0000 0000 0000 8000 ffffffff ffff 0000 {actions}"),
    )
}

#[test]
fn right_ones_are_understood() {
    for bytes in [
        flow_mod("", ""),
        flow_mod("80000a02 0800 80001401 06 80001c02 0050", ""),
        apply("0000 0010 00000001 0000 000000000000"),
        old("0000 0008 0001 0000"),
        flow_mod("", "0001 0008 05 000000"),
    ] {
        assert_eq!(refused(&bytes), None, "{bytes:02x?}");
    }
}

#[test]
fn headers() {
    // 7.5.4.2: bad request.
    assert_eq!(refused(&message(4, 99, "")), Some(Error::BadType));
    assert_eq!(refused(&message(9, 5, "")), Some(Error::BadVersion));
    assert_eq!(refused(&message(4, 5, "00")), Some(Error::BadLength));
    assert_eq!(refused(&message(4, 14, "0011")), Some(Error::BadLength));
    assert_eq!(
        refused(&message(4, 4, "00112233 00000000")),
        Some(Error::BadExperimenter)
    );
    assert_eq!(
        refused(&message(4, 4, "00002320 0000ffff")),
        Some(Error::BadExperimenterType)
    );
    assert_eq!(
        refused(&message(4, 18, "7777 0000 00000000")),
        Some(Error::BadMultipart)
    );
    assert_eq!(
        refused(&message(4, 18, "ffff 0000 00000000 11223344 00000000")),
        Some(Error::BadExperimenter)
    );
    // Types that a version does not have yet, or no longer has.
    assert_eq!(refused(&message(1, 24, "")), Some(Error::BadType));
    assert_eq!(refused(&message(3, 26, "")), Some(Error::BadType));
    assert_eq!(
        refused(&message(5, 22, "00000001 00000000")),
        Some(Error::BadType)
    );
    // The header's length differs from the number of bytes.
    let mut short = message(4, 5, "");
    short[3] = 12;
    assert_eq!(refused(&short), Some(Error::BadLength));
    // A message of another version than the negotiated one.
    let options = DecodeOptions {
        version: Some(Version::V1_3),
        ..DecodeOptions::default()
    };
    assert_eq!(
        decode(&message(1, 5, ""), &options).unwrap_err().error,
        Error::BadVersion
    );
}

#[test]
fn matches() {
    let cases = [
        // 7.5.4.5: bad match.
        ("unknown class", "12340a02 0800", Error::BadMatchField),
        ("unknown field", "8000fe02 0800", Error::BadMatchField),
        ("wrong length", "80000a04 00000800", Error::BadMatchLength),
        ("cut short", "80000a02 08", Error::BadMatchLength),
        ("header cut short", "80000a", Error::BadMatchLength),
        (
            "odd length with a mask",
            "80000b03 0800ff",
            Error::BadMatchLength,
        ),
        ("value out of range", "80000c02 ffff", Error::BadMatchValue),
        (
            "port out of range",
            "80000004 00400010",
            Error::BadMatchValue,
        ),
        (
            "physical port out of range",
            "80000204 00400010",
            Error::BadMatchValue,
        ),
        (
            "mask on a field without",
            "80000b04 0800 0ff0",
            Error::BadMatchMask,
        ),
        (
            "value bits outside the mask",
            "8000070c 020000000001 ff0000000000",
            Error::BadWildcards,
        ),
        // 7.2.3.6: prerequisites.
        (
            "IP without an Ethertype",
            "80001604 0a000001",
            Error::BadPrerequisite,
        ),
        (
            "TCP port without a protocol",
            "80000a02 0800 80001a02 0050",
            Error::BadPrerequisite,
        ),
        (
            "UDP port for TCP",
            "80000a02 0800 80001401 06 80001e02 0050",
            Error::BadPrerequisite,
        ),
        (
            "priority without a tag",
            "80000e01 05",
            Error::BadPrerequisite,
        ),
        (
            "prerequisite after its field",
            "80001604 0a000001 80000a02 0800",
            Error::BadPrerequisite,
        ),
        (
            "neighbour target for an echo",
            "80000a02 86dd 80001401 3a 80003a01 80 80003e10 00000000000000000000000000000001",
            Error::BadPrerequisite,
        ),
        (
            "the same field twice",
            "80000a02 0800 80000a02 0800",
            Error::DuplicateField,
        ),
    ];
    for (what, fields, error) in cases {
        let found = refused(&flow_mod(fields, ""));
        assert_eq!(found, Some(error), "{what}");
    }
    assert_eq!(
        refused(&flow_mod("80001709 0a000001 ffffff00 00", "")),
        Some(Error::BadMatchLength)
    );
    assert_eq!(
        refused(&flow_mod("80000a02 0800 80001708 0a0000ff ffffff00", "")),
        Some(Error::BadWildcards)
    );
    // An OXM match that is longer than the message, shorter than its header, or of an unknown type.
    let head = "00".repeat(40);
    assert_eq!(
        refused(&message(4, 14, &format!("{head} 0001 0040 00000000"))),
        Some(Error::BadMatchLength)
    );
    assert_eq!(
        refused(&message(4, 14, &format!("{head} 0001 0003 00000000"))),
        Some(Error::BadMatchLength)
    );
    assert_eq!(
        refused(&message(4, 14, &format!("{head} 0007 0004 00000000"))),
        Some(Error::BadMatchType)
    );
}

#[test]
fn instructions() {
    let cases = [
        // 7.5.4.3: bad instruction.
        ("unknown", "0055 0008 00000000", Error::UnknownInstruction),
        (
            "experimenter",
            "ffff 0008 00112233",
            Error::BadInstructionExperimenter,
        ),
        (
            "too short",
            "0001 0004 00000000",
            Error::BadInstructionLength,
        ),
        (
            "longer than the message",
            "0001 0010 00000000",
            Error::BadInstructionLength,
        ),
        (
            "not a multiple of eight",
            "0001 000c 00000000 00000000 00000000",
            Error::BadInstructionLength,
        ),
        (
            "goto-table with a body too long",
            "0001 0010 01000000 00000000 00000000",
            Error::BadInstructionLength,
        ),
        (
            "twice the same (1.4, 7.5.4.3)",
            "0001 0008 05000000 0001 0008 06000000",
            Error::DuplicateInstruction,
        ),
        (
            "back to the same table (5.1)",
            "0001 0008 00000000",
            Error::BadInstructionTableId,
        ),
        (
            "meter zero (7.3.4.5)",
            "0006 0008 00000000",
            Error::InvalidMeter,
        ),
        (
            "an exit in an action set (OVS)",
            "0003 0018 00000000 ffff 0010 00002320 0011 000000000000",
            Error::BadActionType,
        ),
    ];
    for (what, instructions, error) in cases {
        assert_eq!(refused(&flow_mod("", instructions)), Some(error), "{what}");
    }
}

#[test]
fn actions() {
    let cases = [
        // 7.5.4.4: bad action.
        ("unknown", "0063 0008 00000000", Error::BadActionType),
        (
            "unknown experimenter",
            "ffff 0010 00112233 00000000 00000000",
            Error::BadActionExperimenter,
        ),
        (
            "unknown number of Nicira's",
            "ffff 0010 00002320 7777 000000000000",
            Error::BadActionExperimenterType,
        ),
        ("too short", "0000 0004 00000001", Error::BadActionLength),
        (
            "not a multiple of eight",
            "0000 000c 00000001 00000000 00000000",
            Error::BadActionLength,
        ),
        (
            "longer than the list",
            "0000 0020 00000001 0000 000000000000",
            Error::BadActionLength,
        ),
        (
            "output of the wrong length",
            "0000 0018 00000001 0000 000000000000 0000000000000000",
            Error::BadActionLength,
        ),
        (
            "output to no port",
            "0000 0010 ffffffff 0000 000000000000",
            Error::BadOutPort,
        ),
        (
            "output to a port beyond all",
            "0000 0010 0001ffff 0000 000000000000",
            Error::BadOutPort,
        ),
        ("group beyond all", "0016 0008 ffffff01", Error::BadOutGroup),
        (
            "push of no VLAN Ethertype",
            "0011 0008 0800 0000",
            Error::BadActionArgument,
        ),
        (
            "push of no MPLS Ethertype",
            "0013 0008 0800 0000",
            Error::BadActionArgument,
        ),
        (
            "set-field of an unknown field",
            "0019 0010 8000fe02 0001 000000000000",
            Error::BadSetType,
        ),
        (
            "set-field of the wrong length",
            "0019 0010 80000604 00000001 00000000",
            Error::BadSetLength,
        ),
        (
            "set-field with a mask (1.3)",
            "0019 0018 8000070c 020000000001 ffffffffffff 00000000",
            Error::BadSetMask,
        ),
        (
            "set-field of a masked address",
            "0019 0018 80001708 0a000001 ffffffff 00000000 00000000",
            Error::BadSetMask,
        ),
        (
            "set-field of a value out of range",
            "0019 0010 80001001 ff 00000000000000",
            Error::BadSetArgument,
        ),
        (
            "set-field of the VLAN without its presence",
            "0019 0010 80000c02 0064 000000000000",
            Error::BadSetArgument,
        ),
        (
            "set-field of a conjunction's number",
            "0019 0010 00014a04 00000001 00000000",
            Error::BadSetArgument,
        ),
        (
            "set-field with garbage behind",
            "0019 0010 80001604 0a000001 00000001",
            Error::BadSetArgument,
        ),
        (
            "load beyond the field",
            "ffff 0018 00002320 0007 07df 00010004 0000000000000000",
            Error::BadSetLength,
        ),
        (
            "load of too large a value",
            "ffff 0018 00002320 0007 0003 00010004 00000000000000ff",
            Error::BadActionArgument,
        ),
        (
            "resubmit with garbage",
            "ffff 0010 00002320 000e fff8 01 000001",
            Error::BadActionArgument,
        ),
        (
            "a learned rule for no table",
            "ffff 0020 00002320 0010 0000 0000 8000 0000000000000000 0000 ff 00 0000 0000",
            Error::BadActionArgument,
        ),
        (
            "a learned rule with a flag that there is not",
            "ffff 0020 00002320 0010 0000 0000 8000 0000000000000000 0004 01 00 0000 0000",
            Error::BadActionArgument,
        ),
        (
            "learning an output to a number",
            "ffff 0028 00002320 0010 0000 0000 8000 0000000000000000 0000 01 00 0000 0000 3010 0001 00000000",
            Error::BadActionArgument,
        ),
        (
            "learning that is cut short",
            "ffff 0028 00002320 0010 0000 0000 8000 0000000000000000 0000 01 00 0000 0000 0010 00010004 0000",
            Error::BadActionLength,
        ),
        (
            "learning the match of a port without its protocol",
            "ffff 0030 00002320 0010 0000 0000 8000 0000000000000000 0000 01 00 0000 0000 2010 0050 00001202 0000 000000000000",
            Error::ActionMatchInconsistent,
        ),
        (
            "more ways than fit",
            "ffff 0020 00002320 000a 0000 0000 0000 0000 0010 00000000 0000 0003 00010004",
            Error::BadActionArgument,
        ),
        (
            "a way by an unknown hash",
            "ffff 0020 00002320 000a 0007 0000 0000 0000 0003 00000000 0000 0003 00010004",
            Error::BadActionArgument,
        ),
        (
            "bundle of another kind of members",
            "ffff 0020 00002320 000c 0000 0000 0000 00000004 0000 0000 00000000 00000000",
            Error::BadActionArgument,
        ),
        (
            "bundle with a member missing",
            "ffff 0020 00002320 000c 0000 0000 0000 00000002 0001 0000 00000000 00000000",
            Error::BadActionLength,
        ),
        (
            "bundle with a controller",
            "ffff 0028 00002320 000c 0000 0000 0000 00000002 0001 0000 00000000 00000000 fffd 000000000000",
            Error::BadOutPort,
        ),
        (
            "number of a port in eight bits",
            "ffff 0020 00002320 000d 0000 0000 0000 00000002 0000 0007 00010004 00000000",
            Error::BadActionArgument,
        ),
        (
            "sample of nothing",
            "ffff 0018 00002320 001d 0000 00000001 00000001 00000001",
            Error::BadActionArgument,
        ),
        (
            "sample in a third direction",
            "ffff 0020 00002320 0029 0001 00000001 00000001 00000001 ffff 03 0000000000",
            Error::BadActionArgument,
        ),
        (
            "sample with garbage",
            "ffff 0020 00002320 0029 0001 00000001 00000001 00000001 ffff 01 0000000001",
            Error::MustBeZero,
        ),
        (
            "length test into a port number's bits beyond",
            "ffff 0018 00002320 0031 05dc 0020 00010004 000000000000",
            Error::BadSetLength,
        ),
        (
            "connection forced without being remembered",
            "ffff 0018 00002320 0023 0002 00000000 0000 ff 000000 0000",
            Error::BadActionArgument,
        ),
        (
            "connection in a zone of eight bits",
            "ffff 0018 00002320 0023 0000 00010004 0007 ff 000000 0000",
            Error::BadSetLength,
        ),
        (
            "an output inside of a connection",
            "ffff 0028 00002320 0023 0001 00000000 0000 ff 000000 0000 0000 0010 00000001 0000 000000000000",
            Error::BadActionArgument,
        ),
        (
            "a translation outside of a connection",
            "ffff 0010 00002320 0024 0000 0000 0000",
            Error::BadSetArgument,
        ),
        (
            "a translation of both addresses",
            "ffff 0028 00002320 0023 0001 00000000 0000 ff 000000 0000 ffff 0010 00002320 0024 0000 0003 0000",
            Error::BadActionArgument,
        ),
        (
            "a translation to ports of no address",
            "ffff 0030 00002320 0023 0001 00000000 0000 ff 000000 0000 ffff 0018 00002320 0024 0000 0001 0010 0001 000000000000",
            Error::BadActionArgument,
        ),
        (
            "a header of an unknown kind",
            "ffff 0010 00002320 002e 0000 00010800",
            Error::BadHeaderType,
        ),
        (
            "a header with an unknown property",
            "ffff 0018 00002320 002e 0000 0001894f 0004 09 05 00000000",
            Error::UnknownEncapProperty,
        ),
        (
            "a header's removal with properties",
            "ffff 0018 00002320 002f 0000 0000fffe 0000000000000000",
            Error::UnknownEncapProperty,
        ),
        (
            "conjunction of one",
            "ffff 0010 00002320 0022 00 01 00000005",
            Error::BadConjunction,
        ),
        (
            "truncation to nothing",
            "ffff 0010 00002320 0027 0001 00000004",
            Error::BadActionArgument,
        ),
        // 5.12, 7.5.4.4: inconsistent with the match.
        (
            "pop of a tag that is not there",
            "0012 0008 00000000",
            Error::ActionMatchInconsistent,
        ),
        (
            "MPLS TTL of an IP packet",
            "000f 0008 05000000",
            Error::ActionMatchInconsistent,
        ),
        (
            "UDP port of a TCP packet",
            "0019 0010 80001e02 0001 000000000000",
            Error::ActionMatchInconsistent,
        ),
        (
            "IPv6 address of an IPv4 packet",
            "0019 0018 80003410 00000000000000000000000000000001",
            Error::ActionMatchInconsistent,
        ),
    ];
    for (what, actions, error) in cases {
        assert_eq!(refused(&apply(actions)), Some(error), "{what}");
    }
    // What earlier actions of the list make true is consistent.
    let pushed = "0011 0008 8100 0000 0019 0010 80000c02 1064 000000000000 0012 0008 00000000";
    assert_eq!(refused(&apply(pushed)), None);
}

#[test]
fn old_actions() {
    let cases = [
        // 1.0, 5.4.4: bad action.
        ("unknown", "0063 0008 00000000", Error::BadActionType),
        (
            "VLAN out of range",
            "0001 0008 1000 0000",
            Error::BadActionArgument,
        ),
        (
            "priority out of range",
            "0002 0008 08 000000",
            Error::BadActionArgument,
        ),
        (
            "type of service with low bits",
            "0008 0008 01 000000",
            Error::BadActionArgument,
        ),
        (
            "output to no port",
            "0000 0008 ffff 0000",
            Error::BadOutPort,
        ),
        (
            "enqueue to every port",
            "000b 0010 fffc 000000000000 00000001",
            Error::BadOutPort,
        ),
        (
            "write_metadata twice",
            &"ffff 0020 00002320 0016 000000000000 0000000000000001 0000000000000001".repeat(2),
            Error::BadActionArgument,
        ),
    ];
    for (what, actions, error) in cases {
        assert_eq!(refused(&old(actions)), Some(error), "{what}");
    }
    // 1.0 does not check actions against the match.
    assert_eq!(refused(&old("0006 0008 0a000001")), None);
}

#[test]
fn flow_mod_heads() {
    let head = |cookie_mask: &str, table: &str, command: &str, flags: &str| {
        with_head(
            &format!(
                "0000000000000000 {cookie_mask} {table} {command} 0000 0000 8000 ffffffff ffffffff ffffffff {flags} 0000"
            ),
            "",
            "",
        )
    };
    let none = "0000000000000000";
    // 7.5.4.6: flow mod failed.
    assert_eq!(
        refused(&head(none, "00", "05", "0000")),
        Some(Error::BadCommand)
    );
    assert_eq!(
        refused(&head(none, "ff", "00", "0000")),
        Some(Error::BadTableId)
    );
    assert_eq!(refused(&head(none, "ff", "03", "0000")), None);
    assert_eq!(
        refused(&head(none, "00", "00", "0020")),
        Some(Error::BadFlags)
    );
    // 1.0, 5.4.4: emergency rules.
    let mut emergency = old("");
    emergency[8 + 62..8 + 64].copy_from_slice(&[0, 4]);
    assert_eq!(refused(&emergency), Some(Error::TableFull));
    emergency[8 + 51] = 1;
    assert_eq!(refused(&emergency), Some(Error::BadEmergencyTimeout));
}

#[test]
fn other_messages() {
    // 7.3.9: roles.
    assert_eq!(
        refused(&message(4, 24, "00000009 00000000 0000000000000000")),
        Some(Error::RoleBad)
    );
    // 7.3.2: switch configuration.
    assert_eq!(
        refused(&message(4, 9, "0010 0080")),
        Some(Error::SwitchConfigBadFlags)
    );
    // 7.3.4.2: groups.
    assert_eq!(
        refused(&message(4, 15, "0009 00 00 00000001")),
        Some(Error::BadGroupCommand)
    );
    assert_eq!(
        refused(&message(4, 15, "0000 09 00 00000001")),
        Some(Error::BadGroupType)
    );
    assert_eq!(
        refused(&message(4, 15, "0000 00 00 ffffff01")),
        Some(Error::InvalidGroup)
    );
    assert_eq!(
        refused(&message(4, 15, "0000 00 00 00000001 0008 0000 00000000")),
        Some(Error::BadBucket)
    );
    // 7.3.4.5: meters.
    assert_eq!(
        refused(&message(4, 29, "0009 0001 00000001")),
        Some(Error::BadMeterCommand)
    );
    assert_eq!(
        refused(&message(4, 29, "0000 0100 00000001")),
        Some(Error::BadMeterFlags)
    );
    assert_eq!(
        refused(&message(4, 29, "0000 0003 00000001")),
        Some(Error::BadMeterFlags)
    );
    // 7.3.4.3: a port mod with a bit that the version does not have; 1.0 has no error for it.
    assert_eq!(
        refused(&message(
            4,
            16,
            "00000001 00000000 020000000001 0000 00000000 00000002 00000000 00000000"
        )),
        Some(Error::PortModBadConfig)
    );
    assert_eq!(
        refused(&message(
            1,
            15,
            "0001 020000000001 00000000 00000100 00000000 00000000"
        )),
        None
    );
    assert_eq!(
        refused(&message(
            4,
            29,
            "0000 0001 00000001 0009 0010 00000000 00000000 00000000"
        )),
        Some(Error::BadBand)
    );
    // 7.3.7: packet-outs.
    assert_eq!(
        refused(&message(4, 13, "ffffffff fffffffc 0000 000000000000")),
        Some(Error::BadRequestPort)
    );
    assert_eq!(
        refused(&message(4, 13, "ffffffff 00000001 0010 000000000000")),
        Some(Error::BadLength)
    );
    // OVS: tunnel options, connections, IPFIX.
    for (body, error) in [
        ("00000018 0003 000000000000", Error::TlvBadCommand),
        (
            "00000018 0000 000000000000 ffff 00 05 0000 0000",
            Error::TlvBadLength,
        ),
        (
            "00000018 0000 000000000000 ffff 00 04 0040 0000",
            Error::TlvBadField,
        ),
        ("00000018 0000 000000000000 ffff", Error::BadLength),
        ("0000001d 000000000001 0005", Error::MustBeZero),
        ("00000020 06 00000000000001", Error::MustBeZero),
        (
            "00000020 06 00000000000000 0009 0008 00000000",
            Error::BadPropertyType,
        ),
        (
            "00000020 06 00000000000000 0002 0006 0005 0000",
            Error::BadPropertyLength,
        ),
    ] {
        let body = format!("00002320 {body}");
        assert_eq!(refused(&message(4, 4, &body)), Some(error), "{body}");
    }
    // 1.4, 7.3.10: masks with bits for unknown reasons; 7.3.9.2: bundles.
    assert_eq!(
        refused(&message(5, 28, "0001 0008 00010000")),
        Some(Error::AsyncInvalid)
    );
    assert_eq!(
        refused(&message(5, 33, "00000001 0009 0001")),
        Some(Error::BundleBadType)
    );
    assert_eq!(
        refused(&message(5, 34, "00000001 0000 0001 05140007 00000001")),
        Some(Error::BundleMessageBadLength)
    );
    assert_eq!(
        refused(&message(5, 34, "00000001 0000 0001 05050008 00000001")),
        Some(Error::BundleMessageUnsupported)
    );
    assert_eq!(
        refused(&message(5, 34, "00000001 0000 0001 040e0008 00000001")),
        Some(Error::BundleBadVersion)
    );
}

/// Types and codes by version: the specification's, or those that Open vSwitch uses where it has
/// none.
#[test]
fn numbers() {
    let standard = |kind, code| WireError::Standard { kind, code };
    let nicira = |kind, code| WireError::Nicira { kind, code };
    let cases = [
        (Error::TableFull, Version::V1_0, standard(3, 0)),
        (Error::TableFull, Version::V1_3, standard(5, 1)),
        (Error::Overlap, Version::V1_0, standard(3, 1)),
        (Error::Overlap, Version::V1_5, standard(5, 3)),
        (Error::PortModBadPort, Version::V1_0, standard(4, 0)),
        (Error::PortModBadPort, Version::V1_1, standard(7, 0)),
        (Error::IsSlave, Version::V1_0, standard(1, 5)),
        (Error::IsSlave, Version::V1_2, standard(1, 10)),
        (Error::BadPrerequisite, Version::V1_0, nicira(1, 260)),
        (Error::BadPrerequisite, Version::V1_3, standard(4, 9)),
        (
            Error::DuplicateInstruction,
            Version::V1_3,
            WireError::Experimenter {
                experimenter: 0x4f4e_4600,
                code: 2600,
            },
        ),
        (Error::DuplicateInstruction, Version::V1_4, standard(3, 9)),
        (Error::BadPropertyType, Version::V1_3, standard(13, 2)),
        (Error::BadPropertyType, Version::V1_4, standard(14, 0)),
        // The groups of 1.0, and their errors, are Open vSwitch's; an error without any number is
        // unencodable.
        (Error::UnknownGroup, Version::V1_0, nicira(6, 8)),
        (Error::UnknownMeter, Version::V1_0, nicira(1, 521)),
    ];
    for (error, version, wire) in cases {
        assert_eq!(error.wire(version), wire, "{error} in {version:?}");
    }
}

/// 7.5.4: an error quotes at least 64 bytes of the message, here all of it, in its version and with
/// its transaction id.
#[test]
fn errors_quote_the_message() {
    let request = message(4, 14, &"00".repeat(200));
    let answer = encode_error(Version::V1_0, &request, Error::BadLength);
    assert_eq!(answer[..12], [4, 1, 0, 220, 0, 0, 0, 1, 0, 1, 0, 6]);
    assert_eq!(answer[12..], request[..]);
    let request = message(4, 14, &"00".repeat(65_527));
    let answer = encode_error(Version::V1_0, &request, Error::BadPrerequisite);
    assert!(answer[12..] == request[..65_515]);
    assert_eq!(answer[2..4], (answer.len() as u16).to_be_bytes());
    let request = message(1, 99, "");
    let answer = encode_error(Version::V1_3, &request, Error::BadType);
    assert_eq!(answer[..12], [1, 1, 0, 20, 0, 0, 0, 1, 0, 1, 0, 1]);
    assert_eq!(answer[12..], request[..]);
}
