//! Messages and actions of Sluice's own extension, as anybody may send them: decoded without a
//! panic, and what is understood survives encoding and decoding. The target `openflow` would have
//! to find the experimenter id first.
//!
//! Input: one byte, whose lowest bits choose the version and whose highest bit an action, then what
//! follows the experimenter id.
#![no_main]

use libfuzzer_sys::fuzz_target;
use openflow::steering::EXPERIMENTER;
use openflow::{DecodeOptions, Error, Message, Version, decode, encode, encode_error};

fuzz_target!(|data: &[u8]| {
    let Some((flags, body)) = data.split_first() else {
        return;
    };
    let version = Version::ALL[usize::from(*flags) % Version::ALL.len()];
    let bytes = match flags >> 7 {
        0 => message(version, body),
        _ => packet_out(version, body),
    };
    match decode(&bytes, &DecodeOptions::default()) {
        Ok((header, message)) => {
            let again = encode(version, header.xid, &message);
            let (_, told) = decode(&again, &DecodeOptions::default()).expect("it was encoded here");
            assert_eq!(told, message);
        }
        Err(failure) => {
            // The id is known, so it is never the error; and every refusal can be reported.
            assert_ne!(failure.error, Error::BadExperimenter);
            let answer = encode_error(version, &bytes, failure.error);
            let told = decode(&answer, &DecodeOptions::default());
            assert!(matches!(told, Ok((_, Message::Error(_)))), "{told:?}");
        }
    }
});

/// Returns an experimenter message with this body.
fn message(version: Version, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![version as u8, 4, 0, 0, 0, 0, 0, 7];
    bytes.extend_from_slice(&EXPERIMENTER.to_be_bytes());
    bytes.extend_from_slice(body);
    finished(bytes)
}

/// Returns a packet-out whose only action is an experimenter action with this body.
fn packet_out(version: Version, body: &[u8]) -> Vec<u8> {
    let mut action = vec![0xff, 0xff, 0, 0];
    action.extend_from_slice(&EXPERIMENTER.to_be_bytes());
    action.extend_from_slice(body);
    action.resize(action.len().next_multiple_of(8), 0);
    let length = (action.len() as u16).to_be_bytes();
    action[2..4].copy_from_slice(&length);
    let mut bytes = vec![version as u8, 13, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff];
    match version {
        Version::V1_0 => bytes.extend_from_slice(&[0, 1]),
        Version::V1_5 => {}
        _ => bytes.extend_from_slice(&[0, 0, 0, 1]),
    }
    bytes.extend_from_slice(&length);
    match version {
        Version::V1_0 => {}
        Version::V1_5 => {
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&[0, 1, 0, 12, 0x80, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0]);
        }
        _ => bytes.extend_from_slice(&[0; 6]),
    }
    bytes.extend_from_slice(&action);
    finished(bytes)
}

/// Sets the length in the message's header.
fn finished(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(usize::from(u16::MAX));
    let length = (bytes.len() as u16).to_be_bytes();
    bytes[2..4].copy_from_slice(&length);
    bytes
}
