use super::*;
use crate::HeapFrame;
use crate::build::Builder;
use proptest::prelude::*;

/// Builds an IP packet with this payload, behind `tags` VLAN tags.
fn packet(ipv6: bool, tags: usize, tos: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        bytes.extend([0x81, 0, 0, tag as u8 + 1]);
    }
    if ipv6 {
        bytes.extend([0x86, 0xdd, 0x60 | tos >> 4, tos << 4, 0, 0]);
        bytes.extend((payload.len() as u16).to_be_bytes());
        bytes.extend([17, 64]);
        bytes.extend([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    } else {
        bytes.extend([0x08, 0x00]);
        let l3 = bytes.len();
        bytes.extend([0x45, tos]);
        bytes.extend((payload.len() as u16 + 20).to_be_bytes());
        bytes.extend(id.to_be_bytes());
        bytes.extend([0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let checksum = checksum::ipv4_header(&bytes[l3..]);
        set_u16(&mut bytes, l3 + 10, checksum);
    }
    bytes.extend(payload);
    bytes
}

fn cut(bytes: &[u8], mtu: usize) -> Vec<HeapFrame> {
    let fragments = Fragments::new(HeapFrame::new(bytes), mtu, 7).unwrap();
    let left = fragments.left();
    let all: Vec<HeapFrame> = fragments.map(|fragment| fragment.unwrap()).collect();
    assert_eq!(all.len(), left);
    all
}

fn read(frame: &HeapFrame) -> Fragment {
    Fragment::read(&mut frame.clone()).unwrap().unwrap()
}

fn add(
    waiting: &mut Reassembly<HeapFrame>,
    frame: &HeapFrame,
    wanted: Option<bool>,
) -> Outcome<HeapFrame> {
    let (outcome, lost) = waiting.add(read(frame), frame.clone(), wanted, 0);
    assert_eq!(lost, 0);
    outcome
}

fn new() -> Reassembly<HeapFrame> {
    Reassembly::new(Limits::default())
}

/// Builds a fragment by hand.
fn fragment(id: u16, offset: usize, more: bool, payload: &[u8]) -> HeapFrame {
    let mut bytes = packet(false, 0, 0, id, payload);
    let place = (offset / 8) as u16 | if more { MORE_V4 } else { 0 };
    set_u16(&mut bytes, 20, place);
    set_u16(&mut bytes, 24, 0);
    let checksum = checksum::ipv4_header(&bytes[14..34]);
    set_u16(&mut bytes, 24, checksum);
    HeapFrame::new(&bytes)
}

proptest! {
    /// Fragments in any order, some of them duplicated, reassemble to the packet that they were cut
    /// from; each fits the link and has the headers that Linux expects (`Fragment`).
    #[test]
    fn a_packet_comes_together_again(
        ipv6: bool,
        tags in 0..3_usize,
        tos: u8,
        payload in prop::collection::vec(any::<u8>(), 1..3000),
        mtu in 68..1600_usize,
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
    ) {
        let whole = packet(ipv6, tags, tos, 99, &payload);
        let fragments = cut(&whole, mtu);
        let l3 = 14 + 4 * tags;
        for frame in &fragments {
            prop_assert!(frame.len() - l3 <= mtu.max(whole.len() - l3));
        }
        if fragments.len() == 1 && !ipv6 {
            prop_assert_eq!(fragments[0].to_vec(), whole);
            return Ok(());
        }
        if fragments.len() == 1 {
            // A whole packet with a fragment header.
            prop_assert_eq!(Fragment::read(&mut fragments[0].clone()), Ok(None));
            return Ok(());
        }
        let mut left: Vec<_> = (0..fragments.len()).collect();
        // The smallest fragments of IPv6 have 16 bytes each: more than the default limit for one
        // packet.
        let mut waiting = Reassembly::new(Limits { fragments_of_one: 200, ..Limits::default() });
        let mut order = order.into_iter();
        loop {
            let pick = order.next().map_or(0, |index| index.index(left.len()));
            let at = left.remove(pick);
            let outcome = add(&mut waiting, &fragments[at], Some(true));
            if left.is_empty() {
                let Outcome::Whole(joined) = outcome else {
                    return Err(TestCaseError::fail("nothing came together"));
                };
                prop_assert_eq!(joined.to_vec(), whole);
                prop_assert!(!waiting.is_waiting() && waiting.is_empty());
                break;
            }
            prop_assert_eq!(outcome, Outcome::Waits);
            let again = add(&mut waiting, &fragments[at], None);
            prop_assert_eq!(again, Outcome::Refused(Refusal::Twice, 1));
        }
    }

    /// Compares any fragments of one packet with a reference that tracks every byte.
    #[test]
    fn fragments_that_contradict_each_other_are_found(
        all in prop::collection::vec((0..6_usize, 1..4_usize, any::<bool>()), 1..12),
    ) {
        let mut waiting = new();
        let mut came: Vec<(usize, usize, bool)> = Vec::new();
        for (at, blocks, more) in all {
            let (from, to) = (at * 8, (at + blocks) * 8);
            if from == 0 && !more {
                continue; // whole
            }
            let payload: Vec<u8> = (from..to).map(|byte| byte as u8).collect();
            let outcome = add(&mut waiting, &fragment(1, from, more, &payload), Some(true));
            if came.contains(&(from, to, more)) {
                prop_assert_eq!(outcome, Outcome::Refused(Refusal::Twice, 1));
                continue;
            }
            came.push((from, to, more));
            let bytes = came.iter().flat_map(|(from, to, _)| *from..*to);
            let mut sorted: Vec<usize> = bytes.collect();
            sorted.sort_unstable();
            let overlaps = sorted.windows(2).any(|pair| pair[0] == pair[1]);
            let mut ends = came.iter().filter(|(_, _, more)| !more).map(|(_, to, _)| *to);
            let end = ends.next();
            let contradicts = ends.any(|other| Some(other) != end)
                || end.is_some_and(|end| {
                    came.iter().any(|(_, to, more)| if *more { *to >= end } else { *to != end })
                });
            match outcome {
                Outcome::Refused(Refusal::Contradiction, lost) => {
                    prop_assert!(overlaps || contradicts);
                    prop_assert_eq!(lost, came.len() as u64);
                    came.clear();
                }
                Outcome::Whole(joined) => {
                    prop_assert!(!overlaps && !contradicts);
                    prop_assert_eq!(Some(sorted.len()), end);
                    let wanted: Vec<u8> = (0..sorted.len()).map(|byte| byte as u8).collect();
                    prop_assert_eq!(&joined.to_vec()[34..], &wanted[..]);
                    came.clear();
                }
                Outcome::Waits => {
                    prop_assert!(!overlaps && !contradicts);
                    prop_assert!(end != Some(sorted.len()));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    /// Any bytes are read without a panic, and what is read lies within the frame.
    #[test]
    fn any_bytes_are_read(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        kind in 0..3_usize,
        split in 0..120_usize,
    ) {
        let mut bytes = bytes;
        if bytes.len() > 24 {
            let eth_type: [u8; 2] = [[0x08, 0], [0x86, 0xdd], [0x81, 0]][kind];
            bytes[12..14].copy_from_slice(&eth_type);
            bytes[14] = if kind == 0 { 0x45 } else { 0x60 };
            if kind == 0 && bytes.len() >= 34 {
                let checksum = {
                    set_u16(&mut bytes, 24, 0);
                    checksum::ipv4_header(&bytes[14..34])
                };
                set_u16(&mut bytes, 24, checksum);
            }
        }
        let split = split.min(bytes.len());
        let mut frame = HeapFrame::with_segments(&[&bytes[..split], &bytes[split..]]);
        if let Ok(Some(fragment)) = Fragment::read(&mut frame) {
            prop_assert!(fragment.start + fragment.length <= frame.len());
            prop_assert!(fragment.end() <= LONGEST);
            let _ = new().add(fragment, frame, Some(true), 0);
        }
    }
}

#[test]
fn fragments_of_unwanted_datagrams_pass_in_order() {
    let fragments = cut(&packet(false, 0, 0, 5, &[1; 100]), 60);
    let [first, second, third] = &fragments[..] else {
        panic!("{fragments:?}");
    };
    let mut waiting = new();
    assert_eq!(add(&mut waiting, second, None), Outcome::Waits);
    let Outcome::Passes(passing) = add(&mut waiting, first, Some(false)) else {
        panic!("the first one tells");
    };
    assert_eq!(passing[..], [first.clone(), second.clone()]);
    let Outcome::Passes(passing) = add(&mut waiting, third, None) else {
        panic!("the packet is known");
    };
    assert_eq!(passing.as_slice(), std::slice::from_ref(third));
    assert!(!waiting.is_waiting(), "all of it came");
}

#[test]
fn waiting_fragments_are_bounded_and_expire() {
    let limits = Limits {
        packets: 4,
        packets_of_one: 3,
        fragments: 6,
        fragments_of_one: 5,
        wait_ms: 100,
    };
    let mut waiting = Reassembly::new(limits);
    let piece = |id: u16, at: usize| fragment(id, at * 8, true, &[0; 8]);
    let from = |source: u8, id: u16, at: usize| {
        let mut bytes = piece(id, at).to_vec();
        bytes[29] = source;
        set_u16(&mut bytes, 24, 0);
        let checksum = checksum::ipv4_header(&bytes[14..34]);
        set_u16(&mut bytes, 24, checksum);
        HeapFrame::new(&bytes)
    };
    let mut add = |frame: HeapFrame, wanted, now_ms| {
        let (outcome, lost) = waiting.add(read(&frame), frame, wanted, now_ms);
        (outcome, lost, waiting.len())
    };
    for id in 0..3 {
        assert_eq!(
            add(piece(id, 0), Some(true), 0),
            (Outcome::Waits, 0, id as usize + 1)
        );
    }
    // Another packet of that source is refused; if it may be one that is not reassembled, it
    // passes.
    assert_eq!(
        add(piece(3, 0), Some(true), 0),
        (Outcome::Refused(Refusal::Full, 1), 0, 3)
    );
    assert!(matches!(
        add(piece(3, 1), None, 0),
        (Outcome::Passes(_), 0, 3)
    ));
    // Other sources have room; if there are too many packets, the oldest is dropped.
    assert_eq!(add(from(9, 0, 0), Some(true), 50), (Outcome::Waits, 0, 4));
    assert_eq!(add(from(8, 0, 0), Some(true), 50), (Outcome::Waits, 1, 4));
    // More fragments of one packet than allowed.
    for at in 1..3 {
        assert_eq!(add(from(8, 0, at), None, 60), (Outcome::Waits, 0, 4 + at));
    }
    // More fragments in total than allowed: the oldest packet is dropped, that of source 1 with
    // number 1.
    assert_eq!(add(from(8, 0, 3), None, 60), (Outcome::Waits, 1, 6));
    assert_eq!(add(from(8, 0, 4), None, 60), (Outcome::Waits, 1, 6));
    assert_eq!(
        add(from(8, 0, 5), None, 60).0,
        Outcome::Refused(Refusal::Full, 6)
    );
    assert_eq!(waiting.expire(149), 0);
    assert_eq!(waiting.expire(150), 0, "the last has been given up");
    assert!(waiting.is_empty());
}

#[test]
fn congestion_is_joined_as_linux_does() {
    let joined = |all: &[u8]| joined_ecn(all.iter().copied());
    assert_eq!(joined(&[0, 0]), Ok(0));
    assert_eq!(joined(&[2, 2]), Ok(2));
    assert_eq!(joined(&[2, 3, 1]), Ok(3));
    assert_eq!(joined(&[3, 0]), Err(Refusal::Contradiction));
    assert_eq!(joined(&[0, 2]), Err(Refusal::Contradiction));
    let (one, two) = (
        packet(false, 0, 2, 5, &[1; 16]),
        packet(false, 0, 3, 5, &[1; 16]),
    );
    let mut waiting = new();
    assert_eq!(
        add(&mut waiting, &cut(&one, 28)[0], Some(true)),
        Outcome::Waits
    );
    let Outcome::Whole(joined) = add(&mut waiting, &cut(&two, 28)[1], None) else {
        panic!("two halves");
    };
    assert_eq!(joined.to_vec(), two);
}

#[test]
fn malformed_fragments_are_refused() {
    let refused = |frame: &HeapFrame| Fragment::read(&mut frame.clone());
    let good = fragment(1, 8, true, &[0; 8]);
    assert!(matches!(refused(&good), Ok(Some(_))));
    assert_eq!(
        refused(&fragment(1, 8, true, &[0; 9])),
        Err(Refusal::Bad),
        "an odd length"
    );
    assert_eq!(
        refused(&fragment(1, 8, true, &[])),
        Err(Refusal::Bad),
        "no payload"
    );
    assert_eq!(
        refused(&fragment(1, 65_528, false, &[0; 8])),
        Err(Refusal::Bad),
        "beyond what a packet may have"
    );
    assert!(refused(&fragment(1, 65_520, false, &[0; 8])).is_ok());
    let mut bytes = good.to_vec();
    bytes[24] ^= 1;
    assert_eq!(
        refused(&HeapFrame::new(&bytes)),
        Err(Refusal::Bad),
        "a wrong checksum"
    );
    bytes = good.to_vec();
    bytes.truncate(40);
    assert_eq!(
        refused(&HeapFrame::new(&bytes)),
        Err(Refusal::Bad),
        "cut off"
    );
    let mut frame = good.clone();
    frame.set_offload(Offload {
        partial_checksum: true,
        ..Offload::default()
    });
    assert_eq!(
        refused(&frame),
        Err(Refusal::Bad),
        "something is left to be done"
    );
    // A packet of 64 KiB that with its headers is too long for IP.
    let mut waiting = new();
    let last = fragment(1, 65_512, false, &[0; 16]);
    assert_eq!(add(&mut waiting, &last, Some(true)), Outcome::Waits);
    let first = fragment(1, 0, true, &vec![0; 65_512]);
    assert_eq!(
        add(&mut waiting, &first, Some(true)),
        Outcome::Refused(Refusal::Bad, 2)
    );
}

#[test]
fn packets_that_must_not_be_fragmented_are_refused() {
    let error = |bytes: &[u8], mtu| Fragments::new(HeapFrame::new(bytes), mtu, 0).err();
    let whole = packet(false, 0, 0, 1, &[0; 100]);
    assert_eq!(error(&whole, 27), Some(CutError::Mtu));
    assert_eq!(error(&whole, 28), None);
    let mut kept = whole.clone();
    kept[20] = 0x40;
    assert_eq!(error(&kept, 60), Some(CutError::Headers), "do not fragment");
    assert_eq!(
        error(&fragment(1, 0, true, &[0; 64]).to_vec(), 60),
        Some(CutError::Headers),
        "a fragment"
    );
    let mut long = whole.clone();
    set_u16(&mut long, 16, 2000);
    assert_eq!(
        error(&long, 60),
        Some(CutError::Headers),
        "longer than its frame"
    );
    assert_eq!(error(&whole[..20], 60), Some(CutError::Headers), "cut off");
    let mut other = whole;
    other[12] = 9;
    assert_eq!(error(&other, 60), Some(CutError::Headers), "no IP");
    let mut v6 = packet(true, 0, 0, 0, &[0; 100]);
    assert_eq!(error(&v6, 55), Some(CutError::Mtu));
    assert_eq!(error(&v6, 56), None);
    v6[20] = FRAGMENT;
    assert_eq!(error(&v6, 80), Some(CutError::Headers), "extension headers");
}

/// A partial checksum, which covers bytes of several fragments, is finished first.
#[test]
fn a_partial_checksum_is_finished() {
    let builder = || {
        Builder::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ipv4(0x0a00_0001, 0x0a00_0002)
            .udp(1, 2)
            .payload(&[7; 100])
    };
    let (whole, frame) = (builder().bytes(), builder().partial_checksum().frame());
    assert!(frame.offload().partial_checksum);
    let fragments = Fragments::new(frame, 60, 0).unwrap();
    let mut waiting = new();
    let last = fragments
        .map(|frame| add(&mut waiting, &frame.unwrap(), Some(true)))
        .last();
    let Some(Outcome::Whole(joined)) = last else {
        panic!("{last:?}");
    };
    assert_eq!(joined.to_vec()[34..], whole[34..]);
}
