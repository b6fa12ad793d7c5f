//! What an outer header needs to know of a packet, read from packets of the common kinds without
//! parsing all of them.

use packet::Frame;
use packet::frame::Gso;
use packet::keyed::Keyed;
use packet::tunnel::{flow_hash_ipv4, flow_hash_ipv6};

/// Length of Ethernet and IPv6 headers.
const IPV6: usize = 14 + 40;
const ICMPV6: u8 = 58;

/// What a header needs to know of an inner packet, for the common kinds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InnerFlow {
    pub tos: u8,
    pub ttl: u8,
    pub hash: u32,
}

/// Whether headers of a protocol begin with two ports.
#[inline(always)]
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 132)
}

impl InnerFlow {
    /// Returns it for a whole IP frame with nothing left to do: of IPv4 without options, or of IPv6
    /// without extension headers. None for others.
    #[inline(always)]
    pub fn of(frame: &impl Frame, secret: &Keyed) -> Option<InnerFlow> {
        let head: &[u8; 38] = frame.head().first_chunk()?;
        if frame.offload().partial_checksum || frame.offload().gso != Gso::None {
            return None;
        }
        let whole = (head[20] & 0x3f) | head[21] == 0;
        if head[12..15] != [0x08, 0x00, 0x45] || !whole {
            return InnerFlow::of_ipv6(frame, secret);
        }
        let (tos, ttl, protocol) = (head[15], head[22], head[23]);
        let length = u16::from_be_bytes([head[16], head[17]]);
        let has_ports = has_ports(protocol);
        // The slow path handles wrong lengths.
        if length < if has_ports { 24 } else { 20 } || usize::from(length) + 14 > frame.len() {
            return None;
        }
        let ports = match has_ports {
            true => u32::from_be_bytes([head[34], head[35], head[36], head[37]]),
            false => 0,
        };
        let addresses = u64::from_be_bytes(*head[26..].first_chunk()?);
        let hash = flow_hash_ipv4(secret, addresses, ports, protocol);
        Some(InnerFlow { tos, ttl, hash })
    }

    fn of_ipv6(frame: &impl Frame, secret: &Keyed) -> Option<InnerFlow> {
        let head: &[u8; IPV6 + 4] = frame.head().first_chunk()?;
        let (protocol, ttl) = (head[20], head[21]);
        let length = u16::from_be_bytes([head[18], head[19]]);
        // Others may be extension headers.
        let known = has_ports(protocol) || protocol == ICMPV6;
        if head[12..14] != [0x86, 0xdd]
            || head[14] >> 4 != 6
            || !known
            || length < 4
            || usize::from(length) + IPV6 > frame.len()
        {
            return None;
        }
        let ports = match has_ports(protocol) {
            true => u32::from_be_bytes(*head.last_chunk()?),
            false => 0,
        };
        let hash = flow_hash_ipv6(secret, head[22..].first_chunk()?, ports, protocol);
        let tos = head[14] << 4 | head[15] >> 4;
        Some(InnerFlow { tos, ttl, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::key::at;
    use packet::tunnel::flow_hash;
    use packet::{FlowKey, HeapFrame, Layers, WordSet};
    use proptest::prelude::*;

    /// What is said of a packet by its whole key, and whether its transport header is sound.
    fn by_key(frame: &HeapFrame, secret: &Keyed) -> (InnerFlow, bool) {
        let words = WordSet::MINI_KEY.union(WordSet::of_bytes(at::IPV6_SRC, 32));
        let (mut key, mut layers) = (FlowKey::ZERO, Layers::default());
        packet::parse::parse_frame_into(&mut frame.clone(), 0, words, &mut key, &mut layers);
        let flow = InnerFlow {
            tos: key.u8(at::IP_TOS),
            ttl: key.u8(at::IP_TTL),
            hash: flow_hash(secret, &key),
        };
        (flow, layers.transport)
    }

    /// The beginning of a packet that is mostly one of the common kinds, and noise behind it.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let noise = proptest::collection::vec(any::<u8>(), 70..90);
        let protocol = prop_oneof![Just(6), Just(17), Just(132), Just(1), Just(58), any::<u8>()];
        let length = prop_oneof![0..40_u16, any::<u16>()];
        (noise, any::<bool>(), protocol, length, 0..8_usize).prop_map(
            |(mut bytes, v6, protocol, length, odd)| {
                let (front, at): (&[u8], _) = match v6 {
                    true => (&[0x86, 0xdd, 0x60 | bytes[14] & 0xf], (18, 20)),
                    false => (&[0x08, 0x00, 0x45], (16, 23)),
                };
                bytes[12..15].copy_from_slice(front);
                bytes[at.0..at.0 + 2].copy_from_slice(&length.to_be_bytes());
                bytes[at.1] = protocol;
                if !v6 {
                    bytes[20..22].fill(0);
                }
                if odd < 2 {
                    // Another version, type or fragment.
                    bytes[[14, 20][odd]] ^= 0x21;
                }
                bytes
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        /// What is read of a packet of the common kinds is what its key says.
        #[test]
        fn the_quick_way_says_what_keys_say(bytes in bytes()) {
            let (frame, secret) = (HeapFrame::new(&bytes), Keyed::default());
            if let Some(quick) = InnerFlow::of(&frame, &secret) {
                let (by_key, is_sound) = by_key(&frame, &secret);
                prop_assert_eq!((quick.tos, quick.ttl), (by_key.tos, by_key.ttl));
                // A key has no ports of what is too short to have more.
                let protocol = bytes[if bytes[12] == 8 { 23 } else { 20 }];
                if is_sound || !has_ports(protocol) {
                    prop_assert_eq!(quick, by_key);
                }
            }
        }
    }

    /// Packets of the common kinds are read the quick way.
    #[test]
    fn common_packets_go_the_quick_way() {
        let builder = packet::build::Builder::ethernet([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]);
        let secret = Keyed::default();
        for builder in [
            builder.clone().ipv4(0x0a01_0101, 0x0a01_0102),
            builder.ipv6([7; 16], [8; 16]),
        ] {
            for builder in [builder.clone().udp(1, 2), builder.clone().tcp(3, 4, 16)] {
                let frame = builder.payload(&[7; 20]).frame();
                assert_eq!(
                    InnerFlow::of(&frame, &secret),
                    Some(by_key(&frame, &secret).0)
                );
            }
        }
    }
}
