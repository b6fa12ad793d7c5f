//! Compares segments with the frame they were cut from.

use super::*;
use crate::build::Builder;
use crate::checksum::{ChecksumStatus, verify};
use crate::frame::HeapFrame;
use crate::parse::PACKET_WORDS;
use crate::wire::{Ipv4, Tcp};
use proptest::prelude::*;

/// A frame as a local sender passes it: lengths of the whole, the pseudo header's sum in the
/// checksum field, in several segments.
#[derive(Debug, Clone)]
struct Large {
    tags: usize,
    ipv6: bool,
    tcp: bool,
    options: usize,
    payload: Vec<u8>,
    size: u16,
    padding: usize,
    cuts: Vec<usize>,
    partial: bool,
}

impl Large {
    fn frame(&self) -> HeapFrame {
        let mut builder = Builder::ethernet([1; 6], [2; 6]);
        for vid in 0..self.tags {
            builder = builder.vlan(vid as u16);
        }
        builder = if self.ipv6 {
            builder.ipv6([3; 16], [4; 16])
        } else {
            builder
                .ipv4(5, 6)
                .ipv4_options(&vec![1; self.options * 4])
                .with_ipv4(|ip| ip.set_id(0xfffe))
        };
        builder = if self.tcp {
            builder.tcp_with_options(7, 8, 0x199, &vec![1; self.options * 4])
        } else {
            builder.udp(7, 8)
        };
        builder = builder.payload(&self.payload).padding(self.padding);
        if self.partial {
            builder = builder.partial_checksum();
        }
        let bytes = builder.bytes();
        let mut cuts: Vec<usize> = self
            .cuts
            .iter()
            .map(|cut| cut % (bytes.len() + 1))
            .collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let segments: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        let mut frame = HeapFrame::with_segments(&segments);
        let gso = match (self.tcp, self.ipv6) {
            (true, false) => Gso::Tcp4,
            (true, true) => Gso::Tcp6,
            (false, _) => Gso::UdpL4,
        };
        let l4 = 14 + 4 * self.tags + if self.ipv6 { 40 } else { 20 + self.options * 4 };
        frame.set_offload(Offload {
            partial_checksum: self.partial,
            csum_start: l4 as u16,
            csum_offset: if self.tcp { 16 } else { 6 },
            gso,
            gso_size: self.size,
            checksum_valid: false,
        });
        frame
    }
}

fn large() -> impl Strategy<Value = Large> {
    (
        0..3usize,
        any::<[bool; 4]>(),
        0..4usize,
        proptest::collection::vec(any::<u8>(), 0..4000),
        prop_oneof![1..100u16, 100..2000u16],
        0..20usize,
        proptest::collection::vec(0..4100usize, 0..4),
    )
        .prop_map(
            |(tags, [ipv6, tcp, partial, _], options, payload, size, padding, cuts)| Large {
                tags,
                ipv6,
                tcp,
                options,
                payload,
                size,
                padding,
                cuts,
                partial,
            },
        )
}

fn segments(frame: HeapFrame) -> Result<Vec<HeapFrame>, SegmentError> {
    let mut out = Vec::new();
    let count = segment(frame, &mut |segment| out.push(segment))?;
    assert_eq!(count, out.len());
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(500)))]

    #[test]
    fn segments_are_sound_and_hold_the_payload(large in large()) {
        let frame = large.frame();
        let whole = frame.to_vec();
        let out = segments(frame);
        let count = large.payload.len().div_ceil(large.size.into());
        let refused = if large.tcp {
            large.size < 48
        } else {
            count > 128
        };
        // A device is asked the same, except that it counts padding, too.
        let judged = asks_too_much(&large.frame());
        prop_assert!(judged == refused || judged && large.padding > 0);
        if refused {
            prop_assert_eq!(out.err(), Some(SegmentError::Size));
            return Ok(());
        }
        let out = out.unwrap();
        let mut payload = Vec::new();
        for (index, mut part) in out.iter().cloned().enumerate() {
            let last = index + 1 == out.len();
            let mut key = FlowKey::ZERO;
            let layers = parse::innermost(&mut part, &mut key);
            prop_assert_eq!(layers.malformed, None);
            prop_assert_eq!(layers.end as usize, part.len());
            prop_assert_eq!(verify(&part, &layers, &key), ChecksumStatus::Good);
            prop_assert_eq!(part.offload(), Offload { checksum_valid: true, ..Offload::default() });
            let bytes = part.to_vec();
            let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
            prop_assert_eq!(&bytes[..l3], &whole[..l3]);
            let mut header_len = 8;
            if large.tcp {
                let tcp = Tcp::new_checked(&bytes[l4..]).unwrap();
                header_len = tcp.header_len();
                let from = index as u32 * u32::from(large.size);
                prop_assert_eq!(tcp.sequence(), 0xffff_fff0u32.wrapping_add(from));
                // ECE, ACK and NS everywhere, CWR in the first, PSH and FIN in the last.
                let mut flags = 0x110;
                if index == 0 { flags |= 0x80; }
                if last { flags |= 0x09; }
                prop_assert_eq!(tcp.flags(), flags);
            }
            if !large.ipv6 {
                let ip = Ipv4::new_checked(&bytes[l3..]).unwrap();
                prop_assert_eq!(ip.id(), 0xfffeu16.wrapping_add(index as u16));
            }
            let part = &bytes[l4 + header_len..];
            prop_assert!(part.len() <= large.size.into());
            prop_assert!(last || part.len() == usize::from(large.size));
            payload.extend_from_slice(part);
        }
        prop_assert_eq!(payload, large.payload);
    }

    #[test]
    fn nonsense_is_refused(
        large in large(),
        changes in proptest::collection::vec((0..80usize, any::<u8>()), 1..6),
        start: u16,
        gso in 0..4usize,
    ) {
        let mut frame = large.frame();
        for (at, value) in changes {
            if let Some(byte) = frame.head_mut().get_mut(at) {
                *byte = value;
            }
        }
        let mut offload = frame.offload();
        offload.csum_start = start;
        offload.gso = [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::UdpL4][gso];
        frame.set_offload(offload);
        let longest = frame.len();
        if let Ok(out) = segments(frame) {
            prop_assert!(out.iter().all(|part| part.len() <= longest));
        }
    }
}

fn example() -> Large {
    Large {
        tags: 0,
        ipv6: false,
        tcp: true,
        options: 0,
        payload: vec![1; 100],
        size: 50,
        padding: 0,
        cuts: Vec::new(),
        partial: true,
    }
}

#[test]
fn sizes_are_bounded() {
    let none = Large {
        size: 0,
        ..example()
    };
    assert_eq!(segments(none.frame()), Err(SegmentError::Size));
    let small = Large {
        size: 47,
        ..example()
    };
    assert_eq!(segments(small.frame()), Err(SegmentError::Size));
    let most = Large {
        payload: vec![0; 65_535 - 40],
        size: 48,
        ..example()
    };
    assert_eq!(segments(most.frame()).map(|out| out.len()), Ok(1365));
    let datagrams = |count: usize| Large {
        tcp: false,
        payload: vec![0; count],
        size: 1,
        ..example()
    };
    assert_eq!(
        segments(datagrams(128).frame()).map(|out| out.len()),
        Ok(128)
    );
    assert_eq!(segments(datagrams(129).frame()), Err(SegmentError::Size));
    let largest = Large {
        payload: vec![7; 65_535 - 40],
        size: 1460,
        ..example()
    };
    assert_eq!(segments(largest.frame()).map(|out| out.len()), Ok(45));
}

#[test]
fn flags_must_fit_the_headers() {
    let mut frame = example().frame();
    let mut offload = frame.offload();
    for gso in [Gso::Tcp6, Gso::UdpL4] {
        offload.gso = gso;
        frame.set_offload(offload);
        assert_eq!(segments(frame.clone()), Err(SegmentError::Headers));
    }
    // A TCP header that says it is longer than the packet.
    let mut frame = Large {
        payload: Vec::new(),
        ..example()
    }
    .frame();
    frame.head_mut()[46] = 0xf0;
    assert_eq!(segments(frame), Err(SegmentError::Headers));
}

#[test]
fn a_frame_that_needs_nothing_passes_and_a_partial_checksum_is_finished() {
    let large = Large {
        partial: false,
        ..example()
    };
    let mut frame = large.frame();
    frame.set_offload(Offload::default());
    assert_eq!(segments(frame.clone()).unwrap(), [frame.clone()]);
    let mut partial = example().frame();
    let offload = Offload {
        gso: Gso::None,
        gso_size: 0,
        ..partial.offload()
    };
    partial.set_offload(offload);
    let out = segments(partial).unwrap();
    assert_eq!(out[0].to_vec(), frame.to_vec());
    let mut key = FlowKey::ZERO;
    let layers = parse::parse_frame(&mut frame, 1, PACKET_WORDS, &mut key);
    assert_eq!(verify(&frame, &layers, &key), ChecksumStatus::Good);
}
