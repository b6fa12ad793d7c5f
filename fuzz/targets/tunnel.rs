//! Any bytes received by a tunnel of any kind, in any segments. Must hold:
//!
//! * nothing panics, and the inner packet is part of the frame;
//! * neither parsing nor a refusal for congestion changes a byte;
//! * what comes out can be sent again with the same metadata, and has the same metadata when it
//!   comes back, also over the wire, where its checksums are verified;
//! * an STT frame that is cut anywhere comes out of its segments as it was.
//!
//! Input: `PLAN` bytes (see [`Plan`]), then the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::checksum::{finish_partial, ipv4_header};
use packet::frame::Gso;
use packet::options::{KeyRange, end};
use packet::segment::Cut;
use packet::tunnel::{
    Addresses, Decapsulated, GeneveOptions, Header, HeaderSpec, Mapping, OptionBuffer, PerPacket,
    PushError, Reason, TunnelFlags, TunnelInfo, TunnelKind, decapsulate, parse, parse_quick, stt,
};
use packet::{FlowKey, Frame, HeapFrame, Offload};

const PLAN: usize = 6;

const fn place(number: usize, length: usize) -> KeyRange {
    KeyRange {
        start: end(number) - length,
        end: end(number),
    }
}

/// A bridge's map of options.
const MAP: [Mapping; 2] = [
    Mapping {
        class: 0xffff,
        kind: 0x80,
        field: 0,
        place: place(0, 4),
    },
    Mapping {
        class: 0x0102,
        kind: 1,
        field: 2,
        place: place(2, 8),
    },
];

/// The first bytes of an input, decoded.
struct Plan {
    kind: TunnelKind,
    /// Where the frame is cut into two segments.
    split: usize,
    /// Whether the IPv4 header's checksum is corrected.
    right: bool,
    offload: Offload,
}

impl Plan {
    fn new(bytes: &[u8; PLAN]) -> Plan {
        let [kind, split, options, start, offset, _] = *bytes;
        Plan {
            kind: TunnelKind::ALL[usize::from(kind) % TunnelKind::ALL.len()],
            split: split.into(),
            right: options & 1 != 0,
            offload: Offload {
                checksum_valid: options & 2 != 0,
                partial_checksum: options & 4 != 0,
                csum_start: start.into(),
                csum_offset: offset.into(),
                gso: if options & 8 == 0 {
                    Gso::None
                } else {
                    Gso::UdpL4
                },
                gso_size: u16::from(options >> 3 & 1),
            },
        }
    }
}

/// Corrects the checksum of an IPv4 header behind at most two tags.
fn make_right(bytes: &mut [u8]) {
    let mut l3 = 14;
    while l3 < 22 && matches!(bytes.get(l3 - 2..l3), Some([0x81, 0] | [0x88, 0xa8])) {
        l3 += 4;
    }
    let Some(first) = bytes.get(l3) else {
        return;
    };
    let end = l3 + usize::from(first & 15) * 4;
    let Some(header) = bytes.get_mut(l3..end).filter(|header| header.len() >= 20) else {
        return;
    };
    header[10..12].fill(0);
    let checksum = ipv4_header(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Writes options to a key and reads them back; those that the map lacks are left out.
fn keep_options(options: GeneveOptions<'_>) {
    let mut key = FlowKey::ZERO;
    if options.to_key(&MAP[..], &mut key).is_err() {
        return;
    }
    let buffer = OptionBuffer::from_key(&MAP[..], &key).expect("two options fit");
    let mut again = FlowKey::ZERO;
    assert_eq!(buffer.options().to_key(&MAP[..], &mut again), Ok(()));
    assert_eq!(key, again);
}

/// Returns what survives another trip: the sender chooses checksums and GTP-U's flags.
fn lasting(found: &Decapsulated) -> (TunnelInfo, packet::tunnel::Payload) {
    let mut info = found.info;
    info.flags.remove(TunnelFlags::CSUM);
    info.gtpu_flags = 0;
    (info, found.payload)
}

/// Returns whether frames are equal, also where their bytes lie in other segments.
fn are_equal(one: &HeapFrame, other: &HeapFrame) -> bool {
    (one.to_vec(), one.offload()) == (other.to_vec(), other.offload())
}

/// Sends the decapsulated frame into the tunnel again.
fn send_back(frame: &HeapFrame, kind: TunnelKind, found: &Decapsulated, options: &[u8]) {
    let info = &found.info;
    let spec = HeaderSpec {
        payload: found.payload,
        df: info.flags.contains(TunnelFlags::DF),
        checksum: info.flags.contains(TunnelFlags::CSUM) && kind != TunnelKind::Stt,
        key: info.flags.contains(TunnelFlags::KEY),
        ..HeaderSpec::new(kind, info.addresses.expect("known once parsed"))
    };
    let packet = PerPacket {
        options: GeneveOptions::new(options).expect("were options before"),
        hash: 0x1234_5678,
        ..PerPacket::of(info)
    };
    let header = Header::new(&spec).expect("such a header has come");
    let mut sent = frame.clone();
    match header.push(&mut sent, &packet) {
        Ok(()) => {}
        Err(PushError::Segment) => {
            assert_ne!(frame.offload().gso, Gso::None);
            assert!(are_equal(&sent, frame));
            return;
        }
        Err(error) => {
            // An offset behind the end, of a checksum inside the frame.
            assert_eq!(error, PushError::Checksum);
            assert!(are_equal(&sent, frame));
            return;
        }
    }
    if frame.offload().gso != Gso::None {
        // STT carries it whole.
        return send_in_segments(frame, &sent, found);
    }
    let mut inner = frame.clone();
    assert!(finish_partial(&mut inner));
    let mut wire = sent.clone();
    assert!(finish_partial(&mut wire));
    wire.set_offload(Offload::default());
    // A checksum that is written into the inner headers makes another packet of it; one at an odd
    // offset is written before the header is pushed, as is one that STT's header cannot say.
    let is_stt = kind == TunnelKind::Stt;
    let keeps = |sent: &HeapFrame| {
        sent.to_vec()
            .ends_with(frame.to_vec().get(16..).unwrap_or(&[]))
    };
    if is_stt && keeps(&sent) && keeps(&wire) {
        send_in_segments(frame, &sent, found);
    }
    let is_put_off = !is_stt && sent.offload().partial_checksum == frame.offload().partial_checksum;
    let headers = |frame: &HeapFrame| frame.to_vec().into_iter().take(62).collect::<Vec<u8>>();
    let is_same = headers(&inner) == headers(frame);
    let sent = (is_same || is_put_off).then_some(sent);
    for mut sent in [sent, is_same.then_some(wire)].into_iter().flatten() {
        let again = parse(&mut sent, kind).expect("what is sent is sound");
        assert_eq!(lasting(&again), lasting(found));
        assert_eq!(again.options(&sent).bytes(), options);
        decapsulate(&mut sent, &again).expect("congestion has been carried over");
        assert!(finish_partial(&mut sent));
        assert_eq!(sent.to_vec(), inner.to_vec());
    }
}

/// No other STT frame gave way.
const NONE: stt::Displaced = stt::Displaced { own: 0, oldest: 0 };

/// Cuts a sent STT frame as a link with a small MTU does, and puts the segments together, the last
/// one first.
fn send_in_segments(frame: &HeapFrame, sent: &HeapFrame, found: &Decapsulated) {
    let mut sent = sent.clone();
    let offload = sent.offload();
    let gso = match found.info.addresses {
        Some(Addresses::V4 { .. }) => Gso::Tcp4,
        _ => Gso::Tcp6,
    };
    sent.set_offload(Offload {
        gso,
        gso_size: 48,
        ..offload
    });
    let cut = Cut::new(sent).expect("what is sent is TCP");
    let segments: Vec<HeapFrame> = cut.map(|one| one.expect("memory")).collect();
    let mut waiting = stt::Reassembly::new(stt::Limits::default());
    for mut one in segments.into_iter().rev() {
        one.set_offload(Offload::default());
        let mut segment = stt::Segment::read(&mut one).expect("right lengths and checksums");
        if !segment.is_whole() {
            match waiting.add(&segment, &one, 0, |_| true) {
                (stt::Outcome::Waits, NONE) => continue,
                (stt::Outcome::Whole(all, whole, _), NONE) => (segment, one) = (all, whole),
                other => panic!("{other:?}"),
            }
        }
        let again = segment.open(&mut one).expect("what is sent is sound");
        assert_eq!(lasting(&again), lasting(found));
        decapsulate(&mut one, &again).expect("offload work is as it was");
        assert_eq!(one.to_vec(), frame.to_vec());
        let (now, then) = (one.offload(), frame.offload());
        assert_eq!(now.partial_checksum, then.partial_checksum);
        assert_eq!((now.gso, now.gso_size), (then.gso, then.gso_size));
        return;
    }
    panic!("no last segment");
}

/// Gives the bytes to a reassembly as segments that lie: each of its first bytes is one's offset in
/// an STT frame. Whatever comes out has all its bytes.
fn join_lies(bytes: &[u8]) {
    let limits = stt::Limits {
        frames: 3,
        frames_of_one: 2,
        bytes: 64,
        bytes_of_one: 48,
        runs_of_one: 4,
        wait_ms: 5,
    };
    let mut waiting = stt::Reassembly::new(limits);
    for (now, piece) in (0..).zip(bytes.chunks(9)) {
        let [first, offset, payload @ ..] = piece else {
            continue;
        };
        let mut one = HeapFrame::new(&lying(*first, *offset, payload));
        one.set_offload(Offload {
            checksum_valid: true,
            ..Offload::default()
        });
        let Ok(segment) = stt::Segment::read(&mut one) else {
            continue;
        };
        let (outcome, _) = waiting.add(&segment, &one, now / 4, |_| true);
        if let stt::Outcome::Whole(all, mut whole, _) = outcome {
            assert!(all.is_whole());
            let _ = all
                .open(&mut whole)
                .map(|found| decapsulate(&mut whole, &found));
        }
        waiting.expire(now / 4);
    }
    waiting.clear();
}

/// Returns a segment of one of four STT frames of one of four lengths.
fn lying(first: u8, offset: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 54];
    bytes[12] = 8;
    bytes[14] = 0x45;
    bytes[17] = (40 + payload.len()) as u8;
    bytes[23] = 6;
    bytes[29] = first & 1;
    bytes[39] = 32 + (first >> 4 & 3);
    bytes[41] = offset % 36;
    bytes[45] = first >> 2 & 3;
    bytes[46] = 5 << 4;
    bytes.extend(payload);
    make_right(&mut bytes);
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((plan, bytes)) = data.split_first_chunk() else {
        return;
    };
    let plan = Plan::new(plan);
    let mut bytes = bytes.to_vec();
    if plan.right {
        make_right(&mut bytes);
    }
    let (first, second) = bytes.split_at(plan.split.min(bytes.len()));
    let mut frame = HeapFrame::with_segments(&[first, second]);
    frame.set_offload(plan.offload);
    let quick = parse_quick(&frame, plan.kind);
    let found = parse(&mut frame, plan.kind);
    if plan.kind == TunnelKind::Stt {
        join_lies(&bytes);
    }
    if let Some(quick) = quick {
        let all = quick.decapsulated(&frame, plan.kind);
        assert_eq!(found, Ok(all));
        assert_eq!(quick.options(&frame), all.options(&frame));
        let (mut by_quick, mut by_all) = (frame.clone(), frame.clone());
        let carried = match quick.is_congested() {
            true => quick.carry_congestion(&mut by_quick),
            false => Ok(()),
        };
        assert_eq!(carried, decapsulate(&mut by_all, &all));
        if carried.is_ok() {
            quick.remove(&mut by_quick);
            assert_eq!(by_quick.to_vec(), by_all.to_vec());
        }
    }
    assert_eq!(frame.to_vec(), bytes, "parsing changed the bytes");
    // The same frame may be a neighbour's answer instead.
    if let Some(told) = underlay::told_by(&bytes) {
        assert_ne!(told.mac, [0; 6]);
    }
    let Ok(found) = found else {
        return;
    };
    assert!(found.start <= found.end && found.end <= bytes.len());
    let options = found.options(&frame).bytes().to_vec();
    keep_options(found.options(&frame));
    if let Err(reason) = decapsulate(&mut frame, &found) {
        let is_stt = plan.kind == TunnelKind::Stt;
        assert!(reason == Reason::Congestion || is_stt && reason == Reason::Offload);
        assert_eq!(frame.to_vec(), bytes);
        return;
    }
    // STT's header may have had its tag.
    let tag = frame.len() - (found.end - found.start);
    assert!(tag == 0 || tag == 4 && plan.kind == TunnelKind::Stt);
    if found.start > 0 {
        send_back(&frame, plan.kind, &found, &options);
    }
});
