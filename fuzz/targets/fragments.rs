//! Fragments of IP packets, in any order and with any contents. Must hold:
//!
//! * nothing panics, and what is read of a fragment lies within its frame;
//! * what waits stays within its limits, and what is reported as lost was there;
//! * a reassembled packet has the lengths that its header says, and can be cut into fragments that
//!   are reassembled to the same packet.
//!
//! Input: records of a length (1 byte, at most 127; bit 7: IPv6), a byte of flags, 6 bytes that are
//! written into the header, and a payload of that length. Some bits of the header are fixed, so
//! that fragments of one packet are common.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::checksum::ipv4_header;
use packet::fragment::{Fragment, Fragments, Limits, Outcome, Reassembly};
use packet::{Frame, HeapFrame};

const LIMITS: Limits = Limits {
    packets: 8,
    packets_of_one: 6,
    fragments: 16,
    fragments_of_one: 10,
    wait_ms: 10,
};

/// Returns a frame with a fragment's header, with the values of the record.
fn frame(is_v6: bool, said: &[u8; 6], payload: &[u8], is_right: bool) -> HeapFrame {
    let [place_high, place_low, id, source, tos, next] = *said;
    let mut bytes = vec![2; 12];
    if is_v6 {
        let length = payload.len() as u16 + 8;
        bytes.extend([0x86, 0xdd, 0x60, tos << 4, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([44, 64]);
        bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, source & 3]);
        bytes.extend([0xfd; 16]);
        bytes.extend([next, 0, place_high & 1, place_low, 0, 0, 0, id & 3]);
    } else {
        let length = payload.len() as u16 + 20;
        bytes.extend([0x08, 0x00, 0x45, tos]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, id & 3, place_high & 0x20, place_low & 0x3f, 64, 17]);
        bytes.extend([0, 0, 10, 0, 0, source & 3, 10, 0, 0, 9]);
        if is_right {
            let checksum = ipv4_header(&bytes[14..34]);
            bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        }
    }
    bytes.extend(payload);
    HeapFrame::new(&bytes)
}

/// Cuts a packet and reassembles it.
fn again(packet: &HeapFrame) {
    let Ok(cut) = Fragments::new(packet.clone(), 100, 7) else {
        return; // IPv6 extension headers
    };
    let left = cut.left();
    let fragments: Vec<HeapFrame> = cut.map(|fragment| fragment.expect("memory")).collect();
    assert_eq!(fragments.len(), left);
    let mut waiting = Reassembly::new(Limits::default());
    for (at, mut fragment) in fragments.into_iter().enumerate() {
        let Some(read) = Fragment::read(&mut fragment).expect("has just been made") else {
            assert_eq!(left, 1);
            return;
        };
        let (outcome, lost) = waiting.add(read, fragment, Some(true), 0);
        assert_eq!(lost, 0);
        match outcome {
            Outcome::Waits => assert!(at + 1 < left),
            Outcome::Whole(joined) => assert_eq!(joined.to_vec(), packet.to_vec()),
            other => panic!("{other:?}"),
        }
    }
    assert!(waiting.is_empty());
}

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let mut waiting: Reassembly<HeapFrame> = Reassembly::new(LIMITS);
    let (mut now_ms, mut inside) = (0, 0_u64);
    while let Some((&[length, flags], behind)) = rest.split_first_chunk()
        && let Some((said, behind)) = behind.split_first_chunk()
    {
        let (payload, behind) = behind.split_at(usize::from(length & 0x7f).min(behind.len()));
        rest = behind;
        let is_v6 = length & 0x80 != 0;
        let mut frame = frame(is_v6, said, payload, flags & 1 == 0);
        now_ms += u64::from(flags >> 4);
        inside -= waiting.expire(now_ms);
        let Ok(Some(fragment)) = Fragment::read(&mut frame) else {
            continue;
        };
        assert!(fragment.start + fragment.length <= frame.len());
        let wanted = match flags >> 1 & 3 {
            0 => None,
            1 => Some(false),
            _ => Some(true),
        };
        let (outcome, lost) = waiting.add(fragment, frame, wanted, now_ms);
        inside = inside + 1 - lost;
        match outcome {
            Outcome::Waits => {}
            Outcome::Refused(_, lost) => inside -= lost,
            Outcome::Passes(frames) => inside -= frames.len() as u64,
            Outcome::Whole(packet) => {
                inside = waiting.len() as u64;
                let bytes = packet.to_vec();
                let said = match is_v6 {
                    true => u16::from_be_bytes([bytes[18], bytes[19]]) + 40,
                    false => u16::from_be_bytes([bytes[16], bytes[17]]),
                };
                assert_eq!(usize::from(said) + 14, bytes.len());
                again(&packet);
            }
        }
        assert_eq!(waiting.len() as u64, inside);
        assert!(waiting.len() <= LIMITS.fragments);
    }
    assert_eq!(waiting.clear(), inside);
    assert!(!waiting.is_waiting());
});
