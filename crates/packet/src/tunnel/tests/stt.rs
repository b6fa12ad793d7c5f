//! STT: offload work and tags in its header, segments by [`crate::segment`], and their reassembly
//! beside a reference that looks at every byte.

use super::super::stt::{Displaced, Limits, Outcome, Reassembly, Segment};
use super::*;
use crate::build::Builder;
use crate::checksum::finish_partial;
use crate::fragment::Refusal;
use crate::frame::{Gso, Offload};
use crate::segment::{self, Cut};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const STT: TunnelKind = TunnelKind::Stt;
/// Nothing gave way.
const NONE: Displaced = Displaced { own: 0, oldest: 0 };

fn own(own: u64) -> Displaced {
    Displaced { own, ..NONE }
}

fn oldest(oldest: u64) -> Displaced {
    Displaced { oldest, ..NONE }
}

fn spec(addresses: Addresses, mtu: u16) -> HeaderSpec {
    HeaderSpec {
        mtu,
        ..HeaderSpec::new(STT, addresses)
    }
}

fn packet(id: u64, number: u32) -> PerPacket<'static> {
    PerPacket {
        id,
        ttl: 64,
        hash: 0x1234_5678,
        sequence: number,
        ..PerPacket::default()
    }
}

/// Returns a large TCP frame as a container sends it: to be segmented, with a partial checksum.
fn large(ipv6: bool, tag: Option<u16>, payload: usize, mss: u16) -> HeapFrame {
    let mut builder = Builder::ethernet([2; 6], [4; 6]);
    if let Some(tci) = tag {
        builder = builder.tag(0x8100, tci);
    }
    builder = match ipv6 {
        true => builder.ipv6([0x20; 16], [0x21; 16]),
        false => builder.ipv4(0x0a00_0001, 0x0a00_0002),
    };
    let payload: Vec<u8> = (0..payload).map(|at| (at * 7 + at / 256) as u8).collect();
    let builder = builder.tcp(1000, 2000, 0x18).payload(&payload);
    let mut frame = frame(&builder.partial_checksum().bytes(), &[]);
    frame.set_offload(Offload {
        partial_checksum: true,
        csum_start: 14 + if tag.is_some() { 4 } else { 0 } + if ipv6 { 40 } else { 20 },
        csum_offset: 16,
        gso: if ipv6 { Gso::Tcp6 } else { Gso::Tcp4 },
        gso_size: mss,
        ..Offload::default()
    });
    frame
}

fn push(frame: &HeapFrame, spec: &HeaderSpec, packet: &PerPacket<'_>) -> HeapFrame {
    let mut sent = frame.clone();
    Header::new(spec).unwrap().push(&mut sent, packet).unwrap();
    sent
}

/// Returns what a link with an outer MTU carries.
fn on_the_wire(sent: HeapFrame) -> Vec<HeapFrame> {
    let mut wire = Vec::new();
    segment::segment(sent, &mut |frame: HeapFrame| {
        wire.push(HeapFrame::new(&frame.to_vec()));
    })
    .unwrap();
    wire
}

/// Puts segments together, in this order; returns what came out, with its information.
fn join(wire: &[HeapFrame], waiting: &mut Reassembly) -> Option<(HeapFrame, TunnelInfo)> {
    for frame in wire {
        let mut frame = frame.clone();
        let segment = Segment::read(&mut frame).unwrap();
        let (segment, mut whole) = match segment.is_whole() {
            true => (segment, frame),
            false => match waiting.add(&segment, &frame, 0, |_| true) {
                (Outcome::Waits, NONE) => continue,
                (Outcome::Whole(segment, whole, _), NONE) => (segment, whole),
                other => panic!("{other:?}"),
            },
        };
        let found = segment.open(&mut whole).unwrap();
        decapsulate(&mut whole, &found).unwrap();
        return Some((whole, found.info));
    }
    None
}

/// Byte for byte, as the draft draws it: a partial checksum and a tag.
#[test]
fn the_header_says_what_is_left_to_do() {
    let inner = large(false, Some(0x6005), 300, 100);
    let sent = push(&inner, &spec(V4, 1500), &packet(0x0102_0304_0506_0708, 9));
    assert_eq!(sent.offload().csum_start, 34);
    let bytes = sent.to_vec();
    // 340 bytes without the tag, and 18.
    assert_eq!(
        bytes[34..72],
        hex("c48d 1d2f 01740000 00000009 50 18 ffff")
            .into_iter()
            .chain(bytes[50..52].iter().copied())
            .chain(hex("0000 00 0e 22 00 0064 7005 0102030405060708 0000"))
            .collect::<Vec<u8>>()
    );
    // The inner frame without its tag.
    let whole = inner.to_vec();
    assert_eq!(bytes[72..84], whole[..12]);
    assert_eq!(bytes[84..], whole[16..]);
    let mut received = sent.clone();
    let found = parse(&mut received, STT).unwrap();
    assert_eq!(found.info.id, 0x0102_0304_0506_0708);
    decapsulate(&mut received, &found).unwrap();
    assert_eq!(received.to_vec(), whole);
    assert_eq!(received.offload(), inner.offload());
}

#[test]
fn source_ports_are_the_dynamic_ones() {
    assert_eq!(super::super::stt::source_port(0), 49152);
    assert_eq!(super::super::stt::source_port(u32::MAX), 65535);
    assert_eq!(super::super::stt::source_port(1 << 18), 49153);
}

/// 64 KiB go as segments of the MTU and come out whole, with the offload work that they had.
#[test]
fn a_large_segment_comes_out_whole() {
    for (ipv6, addresses) in [(false, V4), (true, V6), (true, V4), (false, V6)] {
        for tag in [None, Some(7)] {
            let inner = large(ipv6, tag, 64_000, 1_448);
            let sent = push(&inner, &spec(addresses, 1500), &packet(u64::MAX, 77));
            assert_ne!(sent.offload().gso, Gso::None);
            let mut wire = on_the_wire(sent.clone());
            assert_eq!(wire.len(), 45 - usize::from(!addresses.is_ipv6()));
            assert!(wire.iter().all(|frame| frame.len() <= 14 + 1500));
            wire.reverse();
            let mut waiting = Reassembly::new(Limits::default());
            let (whole, info) = join(&wire, &mut waiting).unwrap();
            assert!(!waiting.is_waiting());
            assert_eq!(info.id, u64::MAX);
            assert_eq!(whole.to_vec(), inner.to_vec());
            assert_eq!(whole.offload(), inner.offload());
            // A device that joins segments, or a link within this host, passes all of it on.
            let (whole, _) = join(&[sent], &mut waiting).unwrap();
            assert_eq!(whole.to_vec(), inner.to_vec());
            assert_eq!(whole.offload(), inner.offload());
        }
    }
}

#[test]
fn congestion_of_any_segment_counts() {
    let inner = Builder::ethernet([2; 6], [4; 6])
        .ipv4(1, 2)
        .with_ipv4(|ip| ip.set_tos(2))
        .udp(3, 4)
        .payload(&[5; 3000]);
    let sent = push(&inner.frame(), &spec(V4, 1000), &packet(1, 1));
    let mut wire = on_the_wire(sent);
    let mut marked = wire[1].to_vec();
    marked[15] |= 3;
    let sum = reference::checksum(&[&marked[14..24], &[0, 0], &marked[26..34]].concat());
    marked[24..26].copy_from_slice(&sum.to_be_bytes());
    wire[1] = HeapFrame::new(&marked);
    let (whole, info) = join(&wire, &mut Reassembly::new(Limits::default())).unwrap();
    assert_eq!(info.tos & 3, 3);
    assert_eq!(whole.to_vec()[15] & 3, 3);
}

/// What the header cannot say is done first, or by the caller.
#[test]
fn what_does_not_fit_is_finished_or_refused() {
    let header = Header::new(&spec(V4, 1500)).unwrap();
    let fails = |frame: &HeapFrame| {
        let mut after = frame.clone();
        let error = header.push(&mut after, &packet(1, 1)).unwrap_err();
        assert_eq!(after, *frame);
        error
    };
    let with = |change: fn(&mut Offload)| {
        let mut frame = large(false, None, 2000, 1000);
        let mut offload = frame.offload();
        change(&mut offload);
        frame.set_offload(offload);
        frame
    };
    for change in [
        (|offload| offload.gso = Gso::Tcp6) as fn(&mut Offload),
        |offload| offload.gso = Gso::UdpL4,
        |offload| offload.partial_checksum = false,
        |offload| offload.csum_start = 30,
        |offload| offload.csum_offset = 6,
        |offload| offload.gso_size = 47,
    ] {
        assert_eq!(fails(&with(change)), PushError::Segment);
    }
    assert_eq!(
        fails(&large(false, None, 65_495 - 20, 1000)),
        PushError::TooLong
    );
    let mut cramped = HeapFrame::new(&plain());
    assert!(cramped.push_front(64));
    assert_eq!(fails(&cramped), PushError::NoRoom);
    // No link that segments of STT could go by.
    let small = Header::new(&spec(V4, 40 + 47)).unwrap();
    let mut frame = large(false, None, 2000, 1000);
    assert_eq!(
        small.push(&mut frame, &packet(1, 1)),
        Err(PushError::TooLong)
    );
    // A checksum at another place.
    let odd = with(|offload| {
        (offload.gso, offload.gso_size) = (Gso::None, 0);
        (offload.csum_start, offload.csum_offset) = (35, 9);
    });
    let mut done = odd.clone();
    assert!(finish_partial(&mut done));
    let (whole, _) = join(
        &[push(&odd, &spec(V4, 9000), &packet(1, 1))],
        &mut Reassembly::new(Limits::default()),
    )
    .unwrap();
    assert_eq!(whole.to_vec(), done.to_vec());
    assert!(whole.offload().checksum_valid && !whole.offload().partial_checksum);
}

/// Returns a frame with its TCP checksum made right, as if a liar had sent it.
fn forged(sent: &HeapFrame, lie: impl FnOnce(&mut Vec<u8>)) -> HeapFrame {
    let mut bytes = sent.to_vec();
    lie(&mut bytes);
    let mut frame = HeapFrame::new(&bytes);
    frame.set_offload(Offload {
        checksum_valid: true,
        ..Offload::default()
    });
    frame
}

/// Offload work that the inner packet does not have is refused, never passed on.
#[test]
fn lies_about_the_inner_packet_are_refused() {
    let sent = push(
        &large(false, None, 300, 100),
        &spec(V4, 1500),
        &packet(1, 1),
    );
    let result = |lie: fn(&mut Vec<u8>)| {
        let mut frame = forged(&sent, lie);
        let bytes = frame.to_vec();
        let found = parse(&mut frame, STT)?;
        let result = decapsulate(&mut frame, &found);
        if result.is_err() {
            assert_eq!(frame.to_vec(), bytes);
        }
        result.map(|()| frame.offload())
    };
    assert!(result(|_| ()).unwrap().partial_checksum);
    let offload: [fn(&mut Vec<u8>); 10] = [
        |bytes| bytes[55] &= !0x04,              // IPv6
        |bytes| bytes[55] &= !0x08,              // UDP
        |bytes| bytes[56] += 1,                  // L4 offset
        |bytes| bytes[56] = 255,                 // beyond the headers
        |bytes| bytes[59] = 47,                  // MSS too small
        |bytes| bytes[72 + 12] = 0x86,           // another Ethertype
        |bytes| bytes[72 + 14 + 3] += 1,         // inner packet longer than the frame
        |bytes| bytes[72 + 14 + 6] = 0x20,       // a fragment
        |bytes| bytes[72 + 14 + 9] = 17,         // UDP, with an MSS
        |bytes| bytes[72 + 14 + 20 + 12] = 0x40, // TCP header too short
    ];
    for (index, lie) in offload.into_iter().enumerate() {
        assert_eq!(result(lie), Err(Reason::Offload), "{index}");
    }
    let lengths: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[39] -= 1,   // the STT frame ends before the segment
        |bytes| bytes[41] = 1,    // so does this one
        |bytes| bytes[46] = 0xf0, // all is TCP header
        |bytes| bytes[46] = 0x40, // TCP header too short
    ];
    // 0xf0 makes the header 60 bytes long, and what is left shorter than the STT frame.
    let expected = [
        Reason::Length,
        Reason::Length,
        Reason::Fragment,
        Reason::Length,
    ];
    for (index, (lie, reason)) in lengths.into_iter().zip(expected).enumerate() {
        assert_eq!(result(lie), Err(reason), "{index}");
    }
    assert_eq!(result(|bytes| bytes[54] = 1), Err(Reason::Flags));
    // What is not said to be partial is not looked at.
    assert_eq!(result(|bytes| bytes[55] = 0), Ok(Offload::default()));
    let short = push(&HeapFrame::new(&[0; 13]), &spec(V4, 1500), &packet(1, 1));
    assert_eq!(parse(&mut short.clone(), STT), Err(Reason::InnerShort));
    // A partial checksum elsewhere than in the outer TCP header.
    let mut elsewhere = sent.clone();
    let offload = Offload {
        csum_start: 35,
        ..sent.offload()
    };
    elsewhere.set_offload(offload);
    assert_eq!(parse(&mut elsewhere, STT), Err(Reason::PartialChecksum));
}

/// Limits: number, bytes, runs and time; a sender displaces its own first.
#[test]
fn what_waits_is_bounded() {
    let limits = Limits {
        frames: 4,
        frames_of_one: 3,
        bytes: 12_000,
        bytes_of_one: 12_000,
        runs_of_one: 3,
        wait_ms: 10,
    };
    let first = |from: u32, number: u32, length: usize| {
        let addresses = Addresses::V4 { src: from, dst: 1 };
        let inner = HeapFrame::new(&vec![7; length]);
        let mut wire = on_the_wire(push(&inner, &spec(addresses, 300), &packet(1, number)));
        let mut frame = wire.remove(0);
        (Segment::read(&mut frame).unwrap(), frame)
    };
    let mut waiting = Reassembly::new(limits);
    let mut add =
        |(segment, frame): (Segment, HeapFrame), now| waiting.add(&segment, &frame, now, |_| true);
    for number in 0..3 {
        assert_eq!(add(first(1, number, 1000), 0), (Outcome::Waits, NONE));
    }
    // One too many of this sender: its oldest goes, so that the first segment is none seen before.
    assert_eq!(add(first(1, 3, 1000), 0), (Outcome::Waits, own(1)));
    assert_eq!(add(first(1, 0, 1000), 0), (Outcome::Waits, own(1)));
    assert_eq!(add(first(2, 0, 1000), 0), (Outcome::Waits, NONE));
    // One too many of all.
    assert_eq!(add(first(3, 0, 1000), 5), (Outcome::Waits, oldest(1)));
    assert_eq!((waiting.expire(9), waiting.expire(10)), (0, 3));
    assert_eq!((waiting.expire(14), waiting.expire(15)), (0, 1));
    assert!(!waiting.is_waiting());

    let inner = HeapFrame::new(&[7; 3000]);
    let wire = on_the_wire(push(&inner, &spec(V4, 300), &packet(1, 1)));
    for at in [0, 2, 4] {
        let mut frame = wire[at].clone();
        let segment = Segment::read(&mut frame).unwrap();
        assert_eq!(
            waiting.add(&segment, &frame, 20, |_| true),
            (Outcome::Waits, NONE)
        );
    }
    let mut frame = wire[6].clone();
    let segment = Segment::read(&mut frame).unwrap();
    let full = (Outcome::Refused(Refusal::Full, 4), NONE);
    assert_eq!(waiting.add(&segment, &frame, 20, |_| true), full);
    assert!(!waiting.is_waiting());
    waiting.add(&segment, &frame, 20, |_| true);
    assert_eq!(waiting.clear(), 1);
}

/// Memory is that of the bytes that came, whatever length they say the STT frame is to have.
#[test]
fn memory_grows_with_what_has_come() {
    let mut waiting = Reassembly::new(Limits {
        bytes: 1000,
        ..Limits::default()
    });
    let mut add = |number: u32, offset: usize, length: usize| {
        let mut frame = segment_of(number, 65_535, offset, &vec![7; length]);
        let segment = Segment::read(&mut frame).unwrap();
        let (outcome, lost) = waiting.add(&segment, &frame, 0, |_| true);
        (outcome, lost, waiting.memory())
    };
    assert_eq!(add(1, 0, 20), (Outcome::Waits, NONE, (20, 20)));
    // The last bytes of one, then some before them.
    assert_eq!(add(2, 65_515, 20), (Outcome::Waits, NONE, (40, 40)));
    assert_eq!(add(2, 65_510, 5), (Outcome::Waits, NONE, (45, 60)));
    assert_eq!(add(2, 100, 30), (Outcome::Waits, NONE, (75, 100)));
    assert_eq!(add(3, 0, 200), (Outcome::Waits, NONE, (275, 300)));
    assert_eq!(add(3, 200, 200), (Outcome::Waits, NONE, (475, 500)));
    assert_eq!(add(3, 400, 200), (Outcome::Waits, NONE, (675, 900)));
    // No room: the two oldest give way, then the third.
    assert_eq!(add(4, 0, 130), (Outcome::Waits, oldest(4), (730, 930)));
    assert_eq!(add(4, 130, 100), (Outcome::Waits, oldest(3), (230, 260)));
    // More than all may have: others stay.
    assert_eq!(add(5, 0, 20), (Outcome::Waits, NONE, (250, 280)));
    let full = Outcome::Refused(Refusal::Full, 3);
    assert_eq!(add(4, 300, 900), (full, NONE, (20, 20)));
}

/// A source has half of the room: its own oldest give way to it, older ones of others do not.
#[test]
fn a_source_takes_no_room_from_others() {
    let mut waiting = Reassembly::new(Limits {
        bytes: 1000,
        bytes_of_one: 500,
        ..Limits::default()
    });
    let mut add = |source: u8, number: u32, length: usize| {
        let mut frame = segment_from(source, number, 65_535, 0, &vec![7; length]);
        let segment = Segment::read(&mut frame).unwrap();
        let (outcome, lost) = waiting.add(&segment, &frame, 0, |_| true);
        (outcome, lost, waiting.memory().1)
    };
    assert_eq!(add(1, 0, 300), (Outcome::Waits, NONE, 300));
    for number in 0..5 {
        assert_eq!(add(2, number, 100).1, NONE);
    }
    for number in 5..100 {
        assert_eq!(add(2, number, 100), (Outcome::Waits, own(1), 800));
    }
    assert_eq!(add(2, 100, 101), (Outcome::Waits, own(2), 701));
    assert_eq!(add(2, 101, 399), (Outcome::Waits, own(3), 800));
    let full = Outcome::Refused(Refusal::Full, 1);
    assert_eq!(add(2, 102, 501), (full, NONE, 800));
    // Of all sources the oldest give way: the first one's.
    assert_eq!(add(3, 0, 201), (Outcome::Waits, oldest(1), 701));
    assert_eq!(add(1, 0, 200), (Outcome::Waits, NONE, 901));
}

/// What nobody wants takes no place, and is asked for only before anything of it is there.
#[test]
fn what_is_not_wanted_is_not_kept() {
    let mut waiting = Reassembly::new(Limits::default());
    let mut first = segment_of(1, 60, 0, &[1; 20]);
    let segment = Segment::read(&mut first).unwrap();
    let of = Addresses::V4 { src: 1, dst: 2 };
    let refused = waiting.add(&segment, &first, 0, |addresses| *addresses != of);
    assert_eq!(refused, (Outcome::Unwanted, NONE));
    assert!(!waiting.is_waiting());
    let taken = waiting.add(&segment, &first, 0, |addresses| *addresses == of);
    assert_eq!(taken, (Outcome::Waits, NONE));
    let mut second = segment_of(1, 60, 20, &[2; 40]);
    let segment = Segment::read(&mut second).unwrap();
    let (outcome, _) = waiting.add(&segment, &second, 0, |_| panic!("asked again"));
    assert!(matches!(outcome, Outcome::Whole(..)));
}

/// Segments far out of order, of which more come than are remembered one by one.
#[test]
fn many_pieces_are_put_in_order() {
    let total = 40_000;
    let bytes: Vec<u8> = (0..total).map(|at| (at * 7 + at / 256) as u8).collect();
    let mut waiting = Reassembly::new(Limits {
        runs_of_one: 4,
        ..Limits::default()
    });
    // Backwards by threes: each time the last, the first and the middle one.
    let mut offsets: Vec<usize> = (0..total).step_by(100).collect();
    offsets.reverse();
    for three in offsets.chunks_mut(3) {
        three[1..].reverse();
    }
    let mut came = None;
    for offset in offsets {
        let mut frame = segment_of(1, total, offset, &bytes[offset..offset + 100]);
        let segment = Segment::read(&mut frame).unwrap();
        match waiting.add(&segment, &frame, 0, |_| true) {
            (Outcome::Waits, NONE) => {}
            (Outcome::Whole(_, whole, _), NONE) => came = Some(whole.to_vec()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(came, Some(bytes));
    assert_eq!(waiting.memory(), (0, 0));
}

/// The reference for one STT frame: which of its bytes have come, one by one.
#[derive(Default)]
struct Reference {
    total: Option<usize>,
    bytes: BTreeMap<usize, u8>,
    count: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Waits,
    Whole(Vec<u8>, u64),
    Refused(Refusal, u64),
}

impl Reference {
    fn add(&mut self, total: usize, offset: usize, bytes: &[u8]) -> Told {
        let known = *self.total.get_or_insert(total);
        let places: BTreeSet<usize> = (offset..offset + bytes.len()).collect();
        let there = places.iter().filter(|at| self.bytes.contains_key(at));
        match there.count() {
            count if known == total && count == bytes.len() => {
                return Told::Refused(Refusal::Twice, 1);
            }
            0 if known == total => {}
            _ => {
                let lost = std::mem::take(self).count + 1;
                return Told::Refused(Refusal::Contradiction, lost);
            }
        }
        self.bytes.extend((offset..).zip(bytes.iter().copied()));
        self.count += 1;
        if self.bytes.len() < total {
            return Told::Waits;
        }
        let whole = std::mem::take(self);
        Told::Whole(whole.bytes.into_values().collect(), whole.count)
    }
}

/// Returns a segment of an STT frame of `total` bytes, with these bytes of it.
fn segment_of(number: u32, total: usize, offset: usize, bytes: &[u8]) -> HeapFrame {
    segment_from(1, number, total, offset, bytes)
}

/// The same from another source.
fn segment_from(source: u8, number: u32, total: usize, offset: usize, bytes: &[u8]) -> HeapFrame {
    let mut tcp = hex("c48d 1d2f");
    tcp.extend(((total as u32) << 16 | offset as u32).to_be_bytes());
    tcp.extend(number.to_be_bytes());
    tcp.extend(hex("5018 ffff 0000 0000"));
    tcp.extend(bytes);
    let mut ip = hex("4500 0000 0000 4000 4006 0000 00000001 00000002");
    ip[15] = source;
    ip[2..4].copy_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
    let sum = reference::checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let ethernet = hex("020000000002 020000000001 0800");
    let mut frame = HeapFrame::new(&[ethernet, ip, tcp].concat());
    frame.set_offload(Offload {
        checksum_valid: true,
        ..Offload::default()
    });
    frame
}

/// The reference for what gives way: a list, the oldest first, of STT frames that are never whole.
struct List {
    limits: Limits,
    held: Vec<Listed>,
}

#[derive(Clone, Copy)]
struct Listed {
    source: u8,
    number: u32,
    came: usize,
    room: usize,
    count: u64,
}

impl List {
    fn sum(&self, source: Option<u8>) -> (usize, usize) {
        let wanted = |one: &&Listed| source.is_none_or(|source| one.source == source);
        let rooms = self.held.iter().filter(wanted).map(|one| one.room);
        (rooms.clone().count(), rooms.sum())
    }

    /// Drops the oldest but one.
    fn drop_oldest(&mut self, source: Option<u8>, but: Option<u32>) -> u64 {
        let at = self.held.iter().position(|one| {
            source.is_none_or(|source| one.source == source) && Some(one.number) != but
        });
        self.held.remove(at.unwrap()).count
    }

    /// Adds the next bytes of an STT frame; returns what is lost of it, and what gave way.
    fn add(&mut self, source: u8, number: u32, length: usize) -> (u64, Displaced) {
        let mut lost = NONE;
        let limits = self.limits;
        if !self.held.iter().any(|one| one.number == number) {
            if self.sum(Some(source)).0 == limits.frames_of_one {
                lost.own += self.drop_oldest(Some(source), None);
            }
            if self.sum(None).0 == limits.frames {
                lost.oldest += self.drop_oldest(None, None);
            }
            self.held.push(Listed {
                source,
                number,
                came: 0,
                room: 0,
                count: 0,
            });
        }
        let find = |held: &[Listed]| held.iter().position(|one| one.number == number).unwrap();
        let mut one = self.held[find(&self.held)];
        one.came += length;
        let before = one.room;
        if one.came > one.room {
            one.room = one.came.max(2 * one.room);
        }
        one.count += 1;
        if one.room > limits.bytes_of_one {
            self.held.remove(find(&self.held));
            return (one.count, lost);
        }
        let more = one.room - before;
        while self.sum(Some(source)).1 + more > limits.bytes_of_one {
            lost.own += self.drop_oldest(Some(source), Some(number));
        }
        while self.sum(None).1 + more > limits.bytes {
            lost.oldest += self.drop_oldest(None, Some(number));
        }
        let at = find(&self.held);
        self.held[at] = one;
        (0, lost)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(2000)))]

    /// What gives way is what a search through a list finds.
    #[test]
    fn what_gives_way_is_what_a_list_says(
        came in proptest::collection::vec((0..4_u8, 0..5_u32, 1..80_usize), 1..80),
    ) {
        let limits = Limits {
            frames: 7,
            frames_of_one: 4,
            bytes: 700,
            bytes_of_one: 300,
            ..Limits::default()
        };
        let mut waiting = Reassembly::new(limits);
        let mut list = List { limits, held: Vec::new() };
        for (source, number, length) in came {
            let number = number + 5 * u32::from(source);
            let held = list.held.iter().find(|one| one.number == number);
            let offset = held.map_or(0, |one| one.came);
            let mut frame = segment_from(source, number, 65_535, offset, &vec![1; length]);
            let segment = Segment::read(&mut frame).unwrap();
            let (outcome, lost) = waiting.add(&segment, &frame, 0, |_| true);
            let expected = list.add(source, number, length);
            prop_assert_eq!(lost, expected.1);
            match outcome {
                Outcome::Waits => prop_assert_eq!(expected.0, 0),
                Outcome::Refused(Refusal::Full, lost) => prop_assert_eq!(lost, expected.0),
                other => panic!("{other:?}"),
            }
            prop_assert_eq!(waiting.memory().1, list.sum(None).1);
        }
        let left: u64 = list.held.iter().map(|one| one.count).sum();
        prop_assert_eq!(waiting.clear(), left);
    }

    /// Segments in any order, twice, overlapping, of other lengths: as the reference says.
    #[test]
    fn segments_are_put_together_as_the_reference_does(
        pieces in proptest::collection::vec((0..2_u32, 0..3_usize, 0..6_usize, 1..5_usize, any::<u8>()), 1..40),
    ) {
        let mut waiting = Reassembly::new(Limits::default());
        let mut references = [Reference::default(), Reference::default()];
        for (number, lie, at, length, byte) in pieces {
            // Mostly whole pieces of ten bytes of an STT frame of sixty; some longer, some of a
            // frame that has another length.
            let total = if lie == 2 && byte < 32 { 70 } else { 60 };
            let offset = at * 10;
            let length = if byte < 200 { 10 } else { length * 7 }.min(total - offset);
            let bytes = vec![byte; length];
            let mut frame = segment_of(number, total, offset, &bytes);
            let segment = Segment::read(&mut frame).unwrap();
            let (outcome, lost) = waiting.add(&segment, &frame, 0, |_| true);
            prop_assert_eq!(lost, NONE);
            let told = match outcome {
                Outcome::Waits => Told::Waits,
                Outcome::Unwanted => panic!("all are wanted"),
                Outcome::Refused(refusal, lost) => Told::Refused(refusal, lost),
                Outcome::Whole(segment, frame, count) => {
                    prop_assert!(segment.is_whole());
                    Told::Whole(frame.to_vec(), count)
                }
            };
            prop_assert_eq!(told, references[number as usize].add(total, offset, &bytes));
            let (came, taken) = waiting.memory();
            let held: usize = references.iter().map(|one| one.bytes.len()).sum();
            prop_assert_eq!(came, held);
            prop_assert!(taken <= 2 * came, "{} bytes for {}", taken, came);
        }
        let left: u64 = references.iter().map(|one| one.count).sum();
        prop_assert_eq!(waiting.clear(), left);
    }

    /// What goes in comes out, by any MTU, in any order, with every segment twice.
    #[test]
    fn what_goes_in_comes_out_in_segments(
        ipv6: bool,
        outer_ipv6: bool,
        tag in proptest::option::of(any::<u16>()),
        payload in 0..6000_usize,
        mss in 48..3000_u16,
        mtu in 108..3000_u16,
        key: u64,
        shuffle in proptest::collection::vec(any::<u32>(), 128),
    ) {
        let mut inner = large(ipv6, tag, payload, mss);
        if payload == 0 {
            let offload = Offload { gso: Gso::None, gso_size: 0, ..inner.offload() };
            inner.set_offload(offload);
        }
        let addresses = if outer_ipv6 { V6 } else { V4 };
        let sent = push(&inner, &spec(addresses, mtu), &packet(key, 5));
        let mut wire = on_the_wire(sent);
        wire.extend(wire.clone());
        let mut keys = shuffle.iter().cycle();
        wire.sort_by_cached_key(|_| keys.next());
        let mut waiting = Reassembly::new(Limits { runs_of_one: 128, ..Limits::default() });
        let mut came = None;
        for frame in wire {
            let mut frame = frame.clone();
            let segment = Segment::read(&mut frame).unwrap();
            let (segment, mut whole) = match segment.is_whole() {
                true => (segment, frame),
                false => match waiting.add(&segment, &frame, 0, |_| true).0 {
                    Outcome::Whole(segment, whole, _) => (segment, whole),
                    Outcome::Waits | Outcome::Refused(Refusal::Twice, 1) => continue,
                    other => panic!("{other:?}"),
                },
            };
            let found = segment.open(&mut whole).unwrap();
            prop_assert_eq!(found.info.id, key);
            decapsulate(&mut whole, &found).unwrap();
            came = Some(whole);
        }
        let came = came.unwrap();
        prop_assert_eq!(came.to_vec(), inner.to_vec());
        prop_assert_eq!(came.offload(), inner.offload());
        // And its segments are those of the frame that was sent.
        if payload > 0 {
            let of = |frame: HeapFrame| -> Vec<Vec<u8>> {
                Cut::new(frame).unwrap().map(|one| one.unwrap().to_vec()).collect()
            };
            prop_assert_eq!(of(came), of(inner));
        }
    }
}
