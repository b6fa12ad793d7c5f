//! Compares headers with bytes written by hand ([`examples`]), with slow, obvious code
//! ([`mod@reference`]), and what comes out with what went in ([`round_trips`]); tests refusals and
//! congestion one by one ([`refusals`]).

mod examples;
mod geneve;
mod inner;
mod reference;
mod refusals;
mod round_trips;
mod stt;

use super::*;
use crate::frame::{Frame, HeapFrame};

/// Headroom of frames in tests: more than the longest header takes.
const ROOM: usize = 400;

/// Makes a frame of these bytes, cut into segments at these places, with headroom.
fn frame(bytes: &[u8], cuts: &[usize]) -> HeapFrame {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let mut segments: Vec<Vec<u8>> = cuts
        .windows(2)
        .map(|cut| bytes[cut[0]..cut[1]].to_vec())
        .collect();
    segments[0].splice(..0, [0; ROOM]);
    let segments: Vec<&[u8]> = segments.iter().map(|segment| &segment[..]).collect();
    let mut frame = HeapFrame::with_segments(&segments);
    assert!(frame.pull_front(ROOM));
    frame
}

/// Parses hexadecimal text with blanks.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

/// Returns a small frame of an experimental Ethertype.
fn plain() -> Vec<u8> {
    hex("020000000002 020000000001 88b5 64617461")
}

const V4: Addresses = Addresses::V4 {
    src: 0xc633_6401,
    dst: 0xc633_6402,
};

const V6: Addresses = Addresses::V6 {
    src: [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    dst: [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
};

/// Returns the encapsulated frame.
fn encapsulated(spec: &HeaderSpec, packet: &PerPacket<'_>, inner: &[u8]) -> Vec<u8> {
    let mut frame = frame(inner, &[]);
    Header::new(spec).unwrap().push(&mut frame, packet).unwrap();
    frame.to_vec()
}

#[test]
fn reasons_and_kinds_are_named_apart() {
    let reasons = Reason::ALL.iter().map(|reason| reason.name());
    let errors = PushError::ALL.iter().map(|error| error.name());
    let names: std::collections::HashSet<&str> = reasons.chain(errors).collect();
    assert_eq!(names.len(), Reason::ALL.len() + PushError::ALL.len());
    for (index, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
        assert_eq!(reason.to_string(), reason.name());
    }
    let kinds: std::collections::HashSet<&str> =
        TunnelKind::ALL.iter().map(|kind| kind.name()).collect();
    // VXLAN is listed with and without its extension.
    assert_eq!(kinds.len(), TunnelKind::ALL.len() - 1);
}
