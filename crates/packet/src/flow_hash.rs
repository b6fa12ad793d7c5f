//! A hash of a frame's flow, from the raw bytes of its headers: chooses which processor or worker
//! processes a packet before it is parsed.
//!
//! All packets of one connection and direction have the same hash. What is hashed:
//!
//! | packet | hashed |
//! | --- | --- |
//! | TCP, UDP, SCTP over IPv4 or IPv6 | addresses, protocol, ports |
//! | GTP-U (UDP to port 2152) | the same and the tunnel endpoint identifier |
//! | ESP, AH | addresses, protocol, the security parameters index |
//! | GRE with a key (NVGRE) | addresses, protocol, key |
//! | other IP packets, and all fragments | addresses and protocol |
//! | others | Ethernet addresses and type |
//!
//! All fragments of a datagram have the same hash, which differs from that of whole packets of its
//! flow: only the first fragment has ports. VLAN tags are skipped. VXLAN and Geneve put a hash of
//! the inner flow into the outer source port (RFC 7348 section 5, RFC 8926 section 3.3), so inner
//! flows have different hashes.
//!
//! The hash is keyed: without the secret, nobody can construct packets with equal hashes.

use std::hash::{BuildHasher, RandomState};

/// The key of the hash, drawn at random and never disclosed.
#[derive(Clone, Copy, Debug)]
pub struct Secret(pub [u64; 2]);

impl Secret {
    /// Draws a secret from the system's random numbers.
    pub fn random() -> Secret {
        // The standard library draws the keys of its hash maps there.
        let keys = RandomState::new();
        Secret([keys.hash_one(0), keys.hash_one(1)])
    }
}

const ETHERNET: usize = 14;
const TYPE: usize = 12;
const IPV4: usize = 20;
const IPV6: usize = 40;
const GTPU_PORT: u16 = 2152;

mod protocol {
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const GRE: u8 = 47;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const FRAGMENT: u8 = 44;
    pub const SCTP: u8 = 132;
}

/// Returns the hash of a frame that begins with these bytes; reads the first hundred or so. Checks
/// nothing: missing or invalid bytes give just another hash.
#[inline]
pub fn flow_hash(head: &[u8], secret: Secret) -> u32 {
    let Some((ethertype, at)) = behind_tags(head) else {
        return 0;
    };
    let hashed = match ethertype {
        0x0800 => ipv4(head, at, secret),
        0x86dd => ipv6(head, at, secret),
        _ => None,
    };
    hashed.unwrap_or_else(|| {
        let addresses = word(head, 0).unwrap_or(0);
        let rest = u64::from(le32(head, 8).unwrap_or(0)) | u64::from(ethertype) << 32;
        fold(addresses ^ secret.0[0], rest ^ secret.0[1])
    })
}

/// Returns the type behind a frame's VLAN tags, and where what it is of begins.
#[inline(always)]
pub(crate) fn behind_tags(head: &[u8]) -> Option<(u16, usize)> {
    let (mut ethertype, mut at) = (be16(head, TYPE)?, ETHERNET);
    // 802.1Q and 802.1ad tags, two at most.
    for _ in 0..2 {
        if ethertype != 0x8100 && ethertype != 0x88a8 {
            break;
        }
        ethertype = be16(head, at + 2).unwrap_or(0);
        at += 4;
    }
    Some((ethertype, at))
}

#[inline]
fn ipv4(head: &[u8], at: usize, secret: Secret) -> Option<u32> {
    let header = head.get(at..at + IPV4)?;
    let addresses = word(header, 12)?;
    let protocol = header[9];
    // "More fragments" is set, or the offset is not 0.
    let is_fragment = be16(header, 6)? & 0x3fff != 0;
    let rest = match is_fragment {
        false => tell_apart(head, at + usize::from(header[0] & 15) * 4, protocol),
        true => 0,
    };
    let rest = u64::from(rest) | u64::from(protocol) << 32;
    Some(fold(addresses ^ secret.0[0], rest ^ secret.0[1]))
}

#[inline]
fn ipv6(head: &[u8], at: usize, secret: Secret) -> Option<u32> {
    let header = head.get(at..at + IPV6)?;
    let (mut protocol, mut payload) = (header[6], at + IPV6);
    let mut rest = 0;
    if protocol == protocol::FRAGMENT {
        protocol = *head.get(payload)?;
    } else {
        // Skips up to two of the common extension headers: hop-by-hop options, routing and
        // destination options (RFC 8200 section 4).
        for _ in 0..2 {
            if !matches!(protocol, 0 | 43 | 60) {
                break;
            }
            let next = *head.get(payload)?;
            payload += 8 + usize::from(*head.get(payload + 1)?) * 8;
            protocol = next;
        }
        if protocol == protocol::FRAGMENT {
            protocol = *head.get(payload)?;
        } else {
            rest = tell_apart(head, payload, protocol);
        }
    }
    let source = multiply(
        word(header, 8)? ^ secret.0[0],
        word(header, 16)? ^ secret.0[1],
    );
    let both = multiply(source ^ word(header, 24)?, word(header, 32)? ^ secret.0[0]);
    let rest = u64::from(rest) | u64::from(protocol) << 32;
    Some(fold(both, rest ^ secret.0[1]))
}

/// Returns the bits that distinguish flows between two addresses, of a packet whose transport
/// header begins at `at`.
#[inline]
fn tell_apart(head: &[u8], at: usize, protocol: u8) -> u32 {
    let found = match protocol {
        protocol::UDP if be16(head, at + 2) == Some(GTPU_PORT) => {
            le32(head, at + 12).map(|tunnel| tunnel ^ u32::from(GTPU_PORT))
        }
        protocol::TCP | protocol::UDP | protocol::SCTP => le32(head, at),
        protocol::ESP => le32(head, at),
        protocol::AH => le32(head, at + 4),
        // RFC 2890: the key follows the checksum, if there is one.
        protocol::GRE => match head.get(at) {
            Some(flags) if flags & 0x20 != 0 => le32(head, at + 4 + usize::from(flags >> 7) * 4),
            _ => None,
        },
        _ => None,
    };
    found.unwrap_or(0)
}

#[inline(always)]
fn multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Multiplies a second time, since one product leaves the low bits of similar inputs alike.
#[inline(always)]
fn fold(a: u64, b: u64) -> u32 {
    let mixed = multiply(a, b);
    let mixed = multiply(mixed ^ 0x9e37_79b9_7f4a_7c15, 0xe703_7ed1_a0b4_28db);
    (mixed ^ mixed >> 32) as u32
}

#[inline(always)]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([two[0], two[1]]))
}

#[inline(always)]
fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    four.try_into().ok().map(u32::from_le_bytes)
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..at + 8)?;
    eight.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: Secret = Secret([0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321]);

    fn ethernet(ethertype: u16, tags: usize, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in 0..tags {
            bytes.extend([0x81, 0, 0, tag as u8]);
        }
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().max(60), 0);
        bytes
    }

    fn ipv4(addresses: [u32; 2], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x45, 0];
        bytes.extend((20 + payload.len() as u16).to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([64, protocol, 0, 0]);
        bytes.extend(addresses[0].to_be_bytes());
        bytes.extend(addresses[1].to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn udp(source: u16, destination: u16, more: &[u8]) -> Vec<u8> {
        let mut bytes = source.to_be_bytes().to_vec();
        bytes.extend(destination.to_be_bytes());
        bytes.extend((8 + more.len() as u16).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(more);
        bytes
    }

    fn hash(bytes: &[u8]) -> u32 {
        flow_hash(bytes, SECRET)
    }

    #[test]
    fn the_hash_depends_on_addresses_protocol_and_ports() {
        let base = ethernet(0x0800, 0, &ipv4([1, 2], 17, 0, &udp(3, 4, b"x")));
        let same = [
            ethernet(0x0800, 0, &ipv4([1, 2], 17, 0, &udp(3, 4, b"other"))),
            ethernet(0x0800, 1, &ipv4([1, 2], 17, 0, &udp(3, 4, b"x"))),
            ethernet(0x0800, 2, &ipv4([1, 2], 17, 0x4000, &udp(3, 4, b"x"))),
        ];
        for bytes in &same {
            assert_eq!(hash(bytes), hash(&base));
        }
        let other = [
            ethernet(0x0800, 0, &ipv4([1, 2], 17, 0, &udp(4, 3, b"x"))),
            ethernet(0x0800, 0, &ipv4([2, 1], 17, 0, &udp(3, 4, b"x"))),
            ethernet(0x0800, 0, &ipv4([1, 2], 6, 0, &udp(3, 4, b"x"))),
            ethernet(0x0800, 0, &ipv4([1, 2], 17, 0x2000, &udp(3, 4, b"x"))),
            ethernet(0x86dd, 0, &ipv4([1, 2], 17, 0, &udp(3, 4, b"x"))),
        ];
        for bytes in &other {
            assert_ne!(hash(bytes), hash(&base));
        }
    }

    #[test]
    fn fragments_of_a_datagram_have_one_hash() {
        let first = ethernet(0x0800, 0, &ipv4([1, 2], 17, 0x2000, &udp(3, 4, b"x")));
        let later = ethernet(0x0800, 0, &ipv4([1, 2], 17, 0x0007, &[9; 16]));
        assert_eq!(hash(&first), hash(&later));
        let fragment = |offset: u16, payload: &[u8]| {
            let mut bytes = vec![0x60, 0, 0, 0, 0, 24, 44, 64];
            bytes.extend([7; 32]);
            bytes.extend([17, 0]);
            bytes.extend(offset.to_be_bytes());
            bytes.extend([0, 0, 0, 1]);
            bytes.extend(payload);
            ethernet(0x86dd, 0, &bytes)
        };
        assert_eq!(hash(&fragment(1, &[1; 16])), hash(&fragment(16, &[2; 16])));
    }

    #[test]
    fn tunnels_tell_their_flows_apart() {
        let of = |protocol, payload: &[u8]| {
            hash(&ethernet(0x0800, 0, &ipv4([1, 2], protocol, 0, payload)))
        };
        let gtpu = |tunnel: u8| udp(2152, 2152, &[0x30, 0xff, 0, 8, 0, 0, 0, tunnel]);
        assert_ne!(of(17, &gtpu(1)), of(17, &gtpu(2)));
        let nvgre = |flow: u8| [0x20, 0, 0x65, 0x58, 0, 0, 7, flow];
        assert_ne!(of(47, &nvgre(1)), of(47, &nvgre(2)));
        let with_checksum = |key: u8| [0xa0, 0, 0x65, 0x58, 1, 2, 0, 0, 0, 0, 7, key];
        assert_ne!(of(47, &with_checksum(1)), of(47, &with_checksum(2)));
        assert_ne!(of(50, &[0, 0, 0, 1]), of(50, &[0, 0, 0, 2]));
        assert_ne!(
            of(51, &[17, 4, 0, 0, 0, 0, 0, 1]),
            of(51, &[17, 4, 0, 0, 0, 0, 0, 2])
        );
    }

    /// Similar flows spread over buckets like random ones: of 10,000 flows in 512 buckets (20 on
    /// average), the fullest has at most 40. Random flows exceed that once in 30 such tests.
    #[test]
    #[cfg_attr(
        miri,
        ignore = "30,000 hashes for a statistic; the tests beside it run the same code"
    )]
    fn similar_flows_spread() {
        for vary in 0..3 {
            let mut buckets = [0; 512];
            for flow in 0..10_000_u32 {
                let (source, destination, port) = match vary {
                    0 => (flow, 2, 3),
                    1 => (1, flow << 8, 3),
                    _ => (1, 2, flow as u16),
                };
                let packet = ipv4([source, destination], 17, 0, &udp(port, 4, b""));
                buckets[hash(&ethernet(0x0800, 0, &packet)) as usize % 512] += 1;
            }
            let fullest = buckets.into_iter().max();
            assert!(fullest <= Some(45), "{vary}: {fullest:?}");
        }
    }

    #[test]
    fn the_secret_counts() {
        let base = ethernet(0x0800, 0, &ipv4([1, 2], 17, 0, &udp(3, 4, b"x")));
        assert_ne!(hash(&base), flow_hash(&base, Secret([1, 2])));
    }

    proptest! {
        /// All packets of a flow have the same hash, whatever else they contain.
        #[test]
        fn packets_of_one_flow_have_one_hash(
            start in prop::collection::vec(any::<u8>(), 60..130),
            end in prop::collection::vec(any::<u8>(), 60..130),
            addresses in any::<[u32; 2]>(),
            ports in any::<[u16; 2]>(),
            tcp in any::<bool>(),
        ) {
            let protocol = if tcp { 6 } else { 17 };
            let mut packets = [start, end].map(|rest| {
                let mut transport = udp(ports[0], ports[1], &rest);
                // A TCP header of twenty bytes.
                transport[12] = 0x50;
                ethernet(0x0800, 0, &ipv4(addresses, protocol, 0, &transport))
            });
            prop_assume!(ports[1] != GTPU_PORT || tcp);
            // Ethernet addresses and ToS do not matter.
            packets[1][..12].copy_from_slice(&[7; 12]);
            packets[1][15] ^= 0xfc;
            prop_assert_eq!(hash(&packets[0]), hash(&packets[1]));
        }

        #[test]
        fn any_bytes_are_hashed(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            hash(&bytes);
        }
    }
}
