//! Messages that a controller, or a switch (real or pretended), may send, in every version: they
//! are decoded without a panic; what is understood survives encoding and decoding; and a stream is
//! cut where its messages end.
//!
//! Input: one byte of options, then the message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use openflow::check::check_instructions;
use openflow::message::MultipartRequest;
use openflow::{
    DecodeOptions, Error, Message, Repeats, Version, decode, decode_added, encode, encode_error,
    frame_length,
};
use packet::Match;

fuzz_target!(|data: &[u8]| {
    let Some((flags, bytes)) = data.split_first() else {
        return;
    };
    let version = bytes
        .first()
        .and_then(|version| Version::from_wire(*version));
    let options = DecodeOptions {
        version: if flags & 1 == 1 { version } else { None },
        table_in_command: flags & 2 == 2,
    };
    let _ = frame_length(bytes);
    let decoded = decode(bytes, &options);
    let is_added = matches!(decoded, Ok((_, Message::BundleAdd(_))));
    let mut repeats = Repeats::default();
    for _ in 0..2 {
        let added = decode_added(bytes, &options, &mut repeats);
        assert_eq!(added.is_some(), is_added);
    }
    let (header, message) = match decoded {
        Ok(decoded) => decoded,
        Err(error) => return refuse(error.error, bytes),
    };
    let Some(version) = Version::from_wire(header.version) else {
        return;
    };
    if let Message::FlowMod { change, .. } = &message {
        let _ = check_instructions(
            &change.instructions,
            &change.matching,
            change.table,
            header.version,
        );
    }
    let Some(again) = again(version, header.xid, &message, &options) else {
        return;
    };
    // 1.1 reads extended matches, and writes its own, which can express less.
    let told_otherwise = version == Version::V1_1
        || has_no_text(&message)
        || has_replaced_action(version, &message)
        || matches_of(&message)
            .into_iter()
            .any(|matching| has_impossible_tag(matching) || has_whole_option(matching));
    if again != message && from_controller(&message) && !told_otherwise {
        assert_eq!(again, message);
    } else {
        // What a version cannot express is written in another form, which must be stable.
        assert_eq!(
            self::again(version, header.xid, &again, &options),
            Some(again)
        );
    }
});

/// Encodes and decodes the message; None if the version has no form for it.
fn again(
    version: Version,
    xid: u32,
    message: &Message,
    options: &DecodeOptions,
) -> Option<Message> {
    let bytes = encode(version, xid, message);
    if bytes.is_empty() || bytes.len() > usize::from(u16::MAX) {
        return None;
    }
    match decode(&bytes, options) {
        Ok((header, message)) => {
            assert_eq!(header.xid, xid);
            Some(message)
        }
        // A set-field may need a prerequisite that the action it replaces does not.
        Err(error)
            if error.error == Error::ActionMatchInconsistent
                && has_replaced_action(version, message) =>
        {
            None
        }
        Err(error) => panic!("{message:?} was encoded as {bytes:02x?}, which is refused: {error}"),
    }
}

/// Returns whether controllers send such messages; the others are decoded only by clients.
fn from_controller(message: &Message) -> bool {
    !matches!(
        message,
        Message::Error(_)
            | Message::FeaturesReply(_)
            | Message::GetConfigReply(_)
            | Message::PacketIn(_)
            | Message::FlowRemoved { .. }
            | Message::PortStatus(_)
            | Message::BarrierReply
            | Message::RoleReply(_)
            | Message::RoleStatus(_)
            | Message::GetAsyncReply(_)
            | Message::QueueGetConfigReply { .. }
            | Message::MultipartReply { .. }
            // A packet-in that comes back.
            | Message::Resume(_)
    )
}

/// Returns whether the message has an action that set-field has replaced, which is understood in
/// all versions and written as set-field from 1.2 on, or a set-field in an older version.
fn has_replaced_action(version: Version, message: &Message) -> bool {
    const REPLACED: [&str; 10] = [
        "Load {",
        "SetTunnel",
        "SetEthSrc(",
        "SetEthDst(",
        "SetIpv4",
        "SetIpTos(",
        "SetIpEcn(",
        "SetL4",
        "SetVlan",
        "SetMpls",
    ];
    let text = format!("{message:?}");
    match version >= Version::V1_2 {
        true => REPLACED.iter().any(|name| text.contains(name)),
        // Older versions have no set-field: it is written as loads.
        false => text.contains("SetField {"),
    }
}

/// Returns whether a name in it is not UTF-8: the replacement characters are longer, so names may
/// be truncated.
fn has_no_text(message: &Message) -> bool {
    matches!(message, Message::MultipartRequest { request: MultipartRequest::TableFeatures(tables), .. } if tables.iter().any(|table| table.name.contains('\u{fffd}')))
}

/// Returns the matches in a message.
fn matches_of(message: &Message) -> Vec<&Match> {
    match message {
        Message::FlowMod { change, .. } => vec![&change.matching],
        Message::PacketOut(out) => vec![&out.matching],
        Message::MultipartRequest { request, .. } => match request {
            MultipartRequest::Flow { request, .. }
            | MultipartRequest::Aggregate { request, .. } => vec![&request.matching],
            MultipartRequest::FlowMonitor(monitors) => {
                monitors.iter().map(|monitor| &monitor.matching).collect()
            }
            _ => Vec::new(),
        },
        Message::BundleAdd(add) => matches_of(&add.message),
        _ => Vec::new(),
    }
}

/// Returns whether it matches bits of a tag on packets without one: the older field accepts any
/// bits, its replacement does not.
fn has_impossible_tag(matching: &Match) -> bool {
    let (value, mask) = matching.bytes(packet::key::at::VLAN_TCI, 2);
    value[0] & 0x10 == 0 && mask[0] & 0x10 != 0
}

/// Returns whether it matches all bits of some words of a tunnel option: that is written without a
/// mask, which means all of its words, however many there are.
fn has_whole_option(matching: &Match) -> bool {
    (0..packet::options::OPTIONS)
        .filter_map(|option| matching.option(option))
        .any(|(_, mask)| mask.ends_with(&[0xff; 4]))
}

/// Every refusal can be reported to the peer.
fn refuse(error: Error, bytes: &[u8]) {
    let answer = encode_error(Version::V1_3, bytes, error);
    assert_eq!(frame_length(&answer), Ok(answer.len()));
    assert!(
        matches!(
            decode(&answer, &DecodeOptions::default()),
            Ok((_, Message::Error(_)))
        ),
        "{error:?} was told as {answer:02x?}"
    );
}
