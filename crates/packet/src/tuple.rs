//! Reads addresses, ports and protocol of a burst's packets that are sound: IPv4 with UDP or TCP,
//! in one piece, with right lengths and checksums.
//!
//! With AVX-512, what is behind the ports is added up in vectors (`avx512`): of a short packet in
//! one. Elsewhere that goes word by word. Both give the same results.

#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::checksum;
use crate::frame::Frame;
use crate::mini_key::Variant;
use crate::parse::Layers;

const UDP: u8 = 17;
const TCP: u8 = 6;
const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;
const TCP_LEN: usize = 20;
/// Where the first byte behind addresses and ports is.
const BEHIND: usize = IPV4_LEN + 4;
/// Bytes that every packet of these kinds has at least.
const LEAST: usize = IPV4_LEN + UDP_LEN;

/// Addresses, ports and protocol of a packet of IPv4, as two words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct ShortTuple {
    /// Source in the upper half, destination in the lower.
    pub addresses: u64,
    /// Source port in the upper quarter, destination port in the next, then 16 bits that are 0, the
    /// protocol, and 8 bits that are 0.
    pub rest: u64,
}

impl ShortTuple {
    /// That of no packet: ports are not 0.
    pub const NONE: ShortTuple = ShortTuple {
        addresses: 0,
        rest: 0,
    };
}

/// What a header of IPv4 begins with that has no options and is of no fragment, as words lie in
/// memory: bits that count, and their values.
const WHOLE: [u64; 2] = [
    u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]),
    u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]),
];

/// Reads the packets' tuples, as many as there is room for, and returns how many packets these
/// are. Each comes with its frame's layers. [`ShortTuple::NONE`] stands for packets of any other
/// kind, and for those that are not sound. A transport checksum that others have verified, or that
/// has not been computed yet, counts as right.
#[inline(always)]
pub fn read_burst<'f, F: Frame + 'f>(
    packets: impl Iterator<Item = (&'f F, Layers)>,
    tuples: &mut [ShortTuple],
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if Variant::used() == Variant::Avx512 && avx512::is_there() {
        // SAFETY: only a variant that the processor has is ever used, and it has the rest.
        return unsafe { avx512::read_burst(packets, tuples) };
    }
    portable(packets, tuples)
}

#[inline(never)]
fn portable<'f, F: Frame + 'f>(
    packets: impl Iterator<Item = (&'f F, Layers)>,
    tuples: &mut [ShortTuple],
) -> usize {
    let read = tuples.iter_mut().zip(packets);
    read.map(|(tuple, (frame, layers))| *tuple = self::read(frame, &layers))
        .count()
}

/// Returns the bytes of a packet from its IP header on, if they are as many as these kinds have at
/// least and the header has no options.
#[inline(always)]
fn bytes<'f, F: Frame>(frame: &'f F, layers: &Layers) -> Option<&'f [u8]> {
    let (start, end) = (usize::from(layers.l3), layers.end as usize);
    let packet = frame.head().get(start..end)?;
    let has_all = packet.len() >= LEAST && layers.l4 == layers.l3 + IPV4_LEN as u16;
    has_all.then_some(packet)
}

/// Whether a packet's checksum is known to be right, or has not been made yet.
#[inline(always)]
fn is_summed<F: Frame>(frame: &F) -> bool {
    let offload = frame.offload();
    offload.checksum_valid || offload.partial_checksum
}

/// Returns bytes of a header, read at once where the place is known when this is compiled: as an
/// array filled byte by byte they would be put together in memory.
#[inline(always)]
fn part<const N: usize>(header: &[u8; LEAST], at: usize) -> [u8; N] {
    *header[at..].first_chunk().expect("within the header")
}

/// Reads one packet's tuple; see [`read_burst`].
#[inline(always)]
pub fn read<F: Frame>(frame: &F, layers: &Layers) -> ShortTuple {
    let sum = |packet: &[u8]| checksum::native_sum_from(packet, BEHIND);
    read_by(frame, layers, sum).unwrap_or(ShortTuple::NONE)
}

/// [`read`]; `sum` returns the sum of a packet's words from [`BEHIND`] on, as
/// [`checksum::native_sum`] does. None for no tuple.
#[inline(always)]
fn read_by<F: Frame>(frame: &F, layers: &Layers, sum: impl Fn(&[u8]) -> u64) -> Option<ShortTuple> {
    let packet = bytes(frame, layers)?;
    let headers: &[u8; LEAST] = packet.first_chunk()?;
    let word = |at: usize| u64::from_ne_bytes(part(headers, at));
    let half = |at: usize| u32::from_ne_bytes(part(headers, at));
    // The header's words; the last of them is the destination address.
    let (first, second, last) = (word(0), word(8), half(16));
    if first & WHOLE[0] != WHOLE[1] {
        return None;
    }
    let header = checksum::halves(first) + checksum::halves(second) + u64::from(last);
    if !checksum::is_sound(header) {
        return None;
    }
    let (protocol, length) = (headers[9], packet.len() - IPV4_LEN);
    if sums(headers, packet, protocol, length)? && !is_summed(frame) {
        // Addresses and transport header lie one behind the other, as in the pseudo header.
        let ends = u64::from(half(12)) + u64::from(last) + u64::from(half(20));
        if !checksum::is_sound(ends + sum(packet) + pseudo(protocol, length)) {
            return None;
        }
    }
    let ports = u32::from_be(half(20));
    let both = ports >> 16 != 0 && ports & 0xffff != 0;
    both.then(|| ShortTuple {
        addresses: u64::from_be(word(12)),
        rest: u64::from(ports) << 32 | u64::from(protocol) << 8,
    })
}

/// Returns whether the transport header of a packet has a checksum; None if it is not of UDP or
/// TCP, or its lengths are wrong. `length` is that of the header and what is behind it.
#[inline(always)]
fn sums(headers: &[u8; LEAST], packet: &[u8], protocol: u8, length: usize) -> Option<bool> {
    match protocol {
        UDP => {
            let told = usize::from(u16::from_be_bytes(part(headers, 24)));
            (told >= UDP_LEN && told <= length).then(|| u16::from_ne_bytes(part(headers, 26)) != 0)
        }
        TCP => {
            let told = usize::from(packet.get(IPV4_LEN + 12)? >> 4) * 4;
            (told >= TCP_LEN && told <= length).then_some(true)
        }
        _ => None,
    }
}

/// Returns what a pseudo header has beside the addresses, as its words lie in memory.
#[inline(always)]
fn pseudo(protocol: u8, length: usize) -> u64 {
    u64::from(u16::from(protocol).to_be()) + u64::from((length as u16).to_be())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::checksum::frame_sum;
    use crate::parse::parse_frame;
    use crate::{FlowKey, HeapFrame, Offload, WordSet};
    use proptest::prelude::*;

    /// The same, field by field.
    fn obvious(frame: &HeapFrame, layers: &Layers) -> ShortTuple {
        let (l3, end) = (usize::from(layers.l3), layers.end as usize);
        let Some(packet) = frame.head().get(l3..end) else {
            return ShortTuple::NONE;
        };
        let number = |at: usize, bytes: usize| {
            let bytes = &packet[at..at + bytes];
            bytes
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        let none = ShortTuple::NONE;
        if packet.len() < 28 || usize::from(layers.l4) != l3 + 20 || packet[0] != 0x45 {
            return none;
        }
        if number(6, 2) & 0x3fff != 0 || frame_sum(frame, l3, l3 + 20) != 0xffff {
            return none;
        }
        let length = packet.len() - 20;
        let sums = match packet[9] {
            17 if number(24, 2) < 8 || number(24, 2) > length as u64 => return none,
            17 => number(26, 2) != 0,
            6 if packet.len() < 33 => return none,
            6 => {
                let header = usize::from(packet[32] >> 4) * 4;
                if header < 20 || header > length {
                    return none;
                }
                true
            }
            _ => return none,
        };
        let offload = frame.offload();
        if sums && !offload.checksum_valid && !offload.partial_checksum {
            let mut sum = checksum::Sum::new();
            sum.add_bytes(&packet[12..]);
            sum.add_u32(packet[9].into());
            sum.add_u32(length as u32);
            if sum.fold() != 0xffff {
                return none;
            }
        }
        if number(20, 2) == 0 || number(22, 2) == 0 {
            return none;
        }
        ShortTuple {
            addresses: number(12, 8),
            rest: number(20, 4) << 32 | u64::from(packet[9]) << 8,
        }
    }

    /// Lengths of payloads: mostly short, some over several vectors.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![4 => 0..60_usize, 1 => 60..300_usize, 1 => 1400..1500_usize]
    }

    /// How a frame is made: TCP, tagged, IPv6; its payload, of one byte or several; what is
    /// overwritten, and whether the checksums are made right behind that; padding; the offload
    /// state; what layers say too little or too much.
    type Made = (
        (bool, bool, bool),
        (usize, Option<u8>),
        Vec<(usize, u8)>,
        bool,
        usize,
        u8,
        (i8, i8),
    );

    fn made() -> impl Strategy<Value = Made> {
        (
            (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1)),
            (lengths(), prop_oneof![Just(Some(0xff)), Just(None)]),
            prop_oneof![
                3 => Just(Vec::new()),
                2 => prop::collection::vec((14..60_usize, any::<u8>()), 1..3),
            ],
            any::<bool>(),
            0..20_usize,
            prop_oneof![6 => Just(0), 1 => 1..4_u8],
            prop_oneof![6 => Just((0, 0)), 1 => (-3..3_i8, -3..3_i8)],
        )
    }

    fn frame(made: &Made) -> (HeapFrame, Layers) {
        let ((tcp, tagged, six), (length, byte), changes, right, padding, offload, off) = made;
        let payload: Vec<u8> = (0..*length)
            .map(|at| byte.unwrap_or((at * 37) as u8))
            .collect();
        let mut builder = Builder::ethernet([2; 6], [4; 6]);
        if *tagged {
            builder = builder.vlan(5);
        }
        let ip = match six {
            true => builder.ipv6([1; 16], [2; 16]),
            false => builder.ipv4(0x0a00_0001, 0xff00_0002),
        };
        let packet = match tcp {
            true => ip.tcp(1025, 80, 16),
            false => ip.udp(1025, 53),
        };
        let mut bytes = packet.payload(&payload).bytes();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(*at) {
                *byte = *value;
            }
        }
        let l3 = if *tagged { 18 } else { 14 };
        if *right && !*six {
            // The header's sum is right again, and the transport's, whatever has been overwritten.
            bytes[l3 + 10..l3 + 12].fill(0);
            let mut sum = checksum::Sum::new();
            sum.add_bytes(&bytes[l3..l3 + 20]);
            bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.finish().to_be_bytes());
            let end = (l3 + usize::from(u16::from_be_bytes([bytes[l3 + 2], bytes[l3 + 3]])))
                .clamp(l3 + 40, bytes.len().max(l3 + 40));
            let at = l3 + if bytes[l3 + 9] == 6 { 36 } else { 26 };
            if bytes.len() >= end {
                bytes[at..at + 2].fill(0);
                let mut sum = checksum::Sum::new();
                sum.add_bytes(&bytes[l3 + 12..end]);
                sum.add_u32(bytes[l3 + 9].into());
                sum.add_u32((end - l3 - 20) as u32);
                bytes[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
            }
        }
        bytes.resize(bytes.len() + padding, 0xee);
        let mut frame = HeapFrame::new(&bytes);
        frame.set_offload(Offload {
            checksum_valid: offload & 1 != 0,
            partial_checksum: offload & 2 != 0,
            ..Offload::default()
        });
        let mut key = FlowKey::ZERO;
        let mut layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
        layers.l4 = layers.l4.saturating_add_signed(off.0.into());
        layers.end = layers.end.saturating_add_signed(off.1.into());
        (frame, layers)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(crate::cases(
            std::env::var("SLUICE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(512),
        )))]

        /// All variants read bursts as they are read field by field.
        #[test]
        fn bursts_are_read_as_the_obvious(
            all in prop::collection::vec(made(), 1..20),
            room in 0..24_usize,
        ) {
            let frames: Vec<(HeapFrame, Layers)> = all.iter().map(frame).collect();
            let packets = frames.iter().map(|(frame, layers)| (frame, *layers));
            let wanted = packets.clone().take(room).map(|(frame, layers)| obvious(frame, &layers));
            let wanted = wanted.collect::<Vec<_>>();
            let filled = ShortTuple { addresses: 7, rest: 7 };
            let mut found = vec![filled; room];
            let read = portable(packets.clone(), &mut found);
            prop_assert_eq!(&found[..read], &wanted[..]);
            #[cfg(target_arch = "x86_64")]
            if Variant::Avx512.is_there() && avx512::is_there() {
                let mut found = vec![filled; room];
                // SAFETY: the processor has what it is compiled for.
                let read = unsafe { avx512::read_burst(packets, &mut found) };
                prop_assert_eq!(&found[..read], &wanted[..]);
            }
        }
    }

    /// The generated packets are sound often enough to tell.
    #[test]
    fn many_generated_packets_are_sound() {
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        let (mut sound, all) = (0, 400);
        for _ in 0..all {
            let made = made().new_tree(&mut runner).unwrap().current();
            let (frame, layers) = frame(&made);
            sound += usize::from(read(&frame, &layers) != ShortTuple::NONE);
        }
        assert!((all / 4..all * 9 / 10).contains(&sound), "{sound} of {all}");
    }
}
