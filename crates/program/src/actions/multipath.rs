//! Spreads packets over ways: which fields are hashed, and how a hash chooses a way
//! (ovs-actions(7), `multipath` and `bundle`).
//!
//! The hash function differs from Open vSwitch's, so a packet may go another way than there. What
//! the actions promise holds: packets with the same fields go the same way, symmetric hashes give
//! both directions of a connection the same value, and ways are taken evenly.

use crate::burst::Words;
use packet::key::at;
use packet::{FlowKey, WordSet};

const ETH_IPV4: u16 = 0x0800;
const ETH_IPV6: u16 = 0x86dd;
const PROTO_TCP: u8 = 6;
const PROTO_UDP: u8 = 17;
const PROTO_SCTP: u8 = 132;

/// Fields that are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HashFields {
    /// Ethernet source.
    EthSrc,
    /// Symmetric: Ethernet addresses and type, VLAN ids, IP addresses and protocol, ports of TCP
    /// and SCTP.
    SymmetricL4,
    /// Symmetric: IP addresses and protocol, ports of TCP and SCTP.
    SymmetricL3L4,
    /// Symmetric: as [`HashFields::SymmetricL3L4`], and ports of UDP.
    SymmetricL3L4Udp,
    /// IP source.
    NwSrc,
    /// IP destination.
    NwDst,
    /// Symmetric: IP addresses.
    SymmetricL3,
}

/// How a hash chooses one of several ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    /// The hash modulo the number of ways (RFC 2992).
    Modulo,
    /// Equal parts of the hash's range, one for each way (RFC 2992).
    Threshold,
    /// Each way hashes to a weight, and the highest wins (RFC 2992); modulo for more than 64 ways.
    HighestWeight,
    /// The hash modulo this number, hashed again until the result names a way.
    Iterate(u32),
}

/// Most ways that [`Choice::HighestWeight`] compares.
const WEIGHED_MAX: u32 = 64;
/// Most hashes that [`Choice::Iterate`] tries: each names a way with probability 1/2 or more.
const ITERATIONS: u32 = 64;

/// Mixes a number into a hash.
#[inline(always)]
pub(crate) fn mix(hash: u64, value: u64) -> u64 {
    let product = u128::from(hash ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    product as u64 ^ (product >> 64) as u64
}

/// Hashes two values so that swapping them gives the same result.
pub(crate) fn pair(one: u64, other: u64) -> u64 {
    mix(0x51, one).wrapping_add(mix(0x51, other))
}

/// Returns the word of a key that begins at this byte.
#[inline(always)]
fn whole(key: &impl Words, at: usize) -> u64 {
    debug_assert!(at.is_multiple_of(8));
    u64::from_be(key.word((at / 8) as u8))
}

/// Returns this many bytes of a key, within one word.
#[inline(always)]
fn part(key: &impl Words, at: usize, bytes: usize) -> u64 {
    debug_assert!(bytes < 8 && at % 8 + bytes <= 8);
    whole(key, at & !7) >> (64 - 8 * (at % 8 + bytes)) & ((1 << (8 * bytes)) - 1)
}

#[inline(always)]
fn eth_type(key: &impl Words) -> u16 {
    part(key, at::ETH_TYPE, 2) as u16
}

#[inline(always)]
fn addresses(key: &impl Words, at: usize) -> u64 {
    mix(mix(0x6, whole(key, at)), whole(key, at + 8))
}

impl HashFields {
    /// Returns the words of the key that the hash reads.
    pub fn words(self) -> WordSet {
        let network = WordSet::of_bytes(at::ETH_TYPE, 2)
            .union(WordSet::of_bytes(at::IPV4_SRC, 16))
            .union(WordSet::of_bytes(at::IPV6_SRC, 32));
        match self {
            HashFields::EthSrc => WordSet::of_bytes(at::ETH_SRC, 6),
            HashFields::SymmetricL4 => network
                .union(WordSet::of_bytes(at::ETH_SRC, 8))
                .union(WordSet::of_bytes(at::ETH_DST, 6)),
            _ => network,
        }
    }

    /// Hashes a packet's key with the parameter `basis`.
    pub fn hash(self, key: &FlowKey, basis: u16) -> u32 {
        self.hash_words(key, basis)
    }

    /// Like [`HashFields::hash`], for any form of key.
    #[inline(always)]
    pub(crate) fn hash_words(self, key: &impl Words, basis: u16) -> u32 {
        let basis = mix(0, basis.into());
        let hash = match self {
            HashFields::EthSrc => mix(basis, part(key, at::ETH_SRC, 6)),
            HashFields::NwSrc => mix(basis, network(key, true)),
            HashFields::NwDst => mix(basis, network(key, false)),
            HashFields::SymmetricL3 => mix(basis, both(key)),
            HashFields::SymmetricL3L4 => transport(key, mix(basis, both(key)), false),
            HashFields::SymmetricL3L4Udp => transport(key, mix(basis, both(key)), true),
            HashFields::SymmetricL4 => {
                let macs = pair(part(key, at::ETH_SRC, 6), part(key, at::ETH_DST, 6));
                let vlans = (part(key, at::VLAN_TCI, 2) & 0xfff) << 16
                    | part(key, at::VLAN_TCI2, 2) & 0xfff;
                let kind = u64::from(eth_type(key)) << 32 | vlans;
                transport(key, mix(mix(mix(basis, macs), kind), both(key)), false)
            }
        };
        (hash >> 32) as u32
    }
}

/// Hashes the source or destination IP address; 0 for packets that are not IP.
#[inline(always)]
fn network(key: &impl Words, source: bool) -> u64 {
    match (eth_type(key), source) {
        (ETH_IPV4, true) => mix(4, part(key, at::IPV4_SRC, 4)),
        (ETH_IPV4, false) => mix(4, part(key, at::IPV4_DST, 4)),
        (ETH_IPV6, true) => addresses(key, at::IPV6_SRC),
        (ETH_IPV6, false) => addresses(key, at::IPV6_DST),
        _ => 0,
    }
}

/// Hashes both IP addresses, symmetrically.
#[inline(always)]
fn both(key: &impl Words) -> u64 {
    match eth_type(key) {
        ETH_IPV4 | ETH_IPV6 => pair(network(key, true), network(key, false)),
        _ => 0,
    }
}

/// Adds IP protocol and ports to a hash. Only first fragments have ports, so fragments are hashed
/// without.
#[inline(always)]
fn transport(key: &impl Words, hash: u64, with_udp: bool) -> u64 {
    if ![ETH_IPV4, ETH_IPV6].contains(&eth_type(key)) {
        return hash;
    }
    let protocol = part(key, at::IP_PROTO, 1) as u8;
    let hash = mix(hash, protocol.into());
    let counts = matches!(protocol, PROTO_TCP | PROTO_SCTP) || with_udp && protocol == PROTO_UDP;
    if counts && part(key, at::IP_FRAG, 1) == 0 {
        mix(
            hash,
            pair(part(key, at::TP_SRC, 2), part(key, at::TP_DST, 2)),
        )
    } else {
        hash
    }
}

/// Returns the weight of a way for a hash.
pub fn weight(hash: u32, way: u32) -> u32 {
    // Ways are small numbers, so mix until every bit affects all of the weight: the finalizer of
    // MurmurHash3.
    let mut bits = u64::from(way) << 32 | u64::from(hash);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        bits = (bits ^ bits >> 33).wrapping_mul(factor);
    }
    (bits >> 32) as u32
}

impl Choice {
    /// Chooses one of `ways` ways (at least one), counted from 0.
    pub fn choose(self, hash: u32, ways: u32) -> u32 {
        match self {
            Choice::Modulo => hash % ways,
            Choice::Threshold => ((u64::from(hash) * u64::from(ways)) >> 32) as u32,
            Choice::HighestWeight if ways <= WEIGHED_MAX => (0..ways)
                .max_by_key(|way| (weight(hash, *way), std::cmp::Reverse(*way)))
                .unwrap_or(0),
            Choice::HighestWeight => hash % ways,
            Choice::Iterate(modulus) => {
                let fits = modulus >= ways && modulus / 2 <= ways;
                let modulus = if fits {
                    modulus
                } else {
                    ways.next_power_of_two()
                };
                (0..ITERATIONS)
                    .map(|turn| weight(hash, turn) % modulus)
                    .find(|way| *way < ways)
                    .unwrap_or(hash % ways)
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const ALL: [HashFields; 7] = [
        HashFields::EthSrc,
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::NwSrc,
        HashFields::NwDst,
        HashFields::SymmetricL3,
    ];
    const SYMMETRIC: [HashFields; 4] = [
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::SymmetricL3,
    ];

    fn key(seed: u64) -> FlowKey {
        let (one, two) = (mix(1, seed), mix(2, seed));
        let mut key = FlowKey::ZERO;
        key.set_u64(at::ETH_SRC, one << 16);
        key.set_u64(at::ETH_DST, two << 16);
        key.set_u16(
            at::ETH_TYPE,
            if seed.is_multiple_of(3) {
                ETH_IPV6
            } else {
                ETH_IPV4
            },
        );
        key.set_u32(at::IPV4_SRC, one as u32);
        key.set_u32(at::IPV4_DST, two as u32);
        key.set_u64(at::IPV6_SRC + 8, one);
        key.set_u64(at::IPV6_DST + 8, two);
        key.set_u8(at::IP_PROTO, [6, 17, 132][seed as usize % 3]);
        key.set_u16(at::TP_SRC, (one >> 40) as u16);
        key.set_u16(at::TP_DST, (two >> 40) as u16);
        key
    }

    /// Returns the key of a packet in the opposite direction.
    pub(crate) fn reversed(key: &FlowKey) -> FlowKey {
        let mut back = *key;
        for (one, other, bytes) in [
            (at::ETH_SRC, at::ETH_DST, 6),
            (at::IPV4_SRC, at::IPV4_DST, 4),
            (at::IPV6_SRC, at::IPV6_DST, 16),
            (at::TP_SRC, at::TP_DST, 2),
        ] {
            back.bytes_mut()[one..one + bytes].copy_from_slice(&key.bytes()[other..other + bytes]);
            back.bytes_mut()[other..other + bytes].copy_from_slice(&key.bytes()[one..one + bytes]);
        }
        back
    }

    #[test]
    fn symmetric_hashes_are_symmetric_and_others_are_not() {
        for seed in 0..2000 {
            let key = key(seed);
            for fields in SYMMETRIC {
                assert_eq!(fields.hash(&key, 7), fields.hash(&reversed(&key), 7));
            }
            assert_ne!(
                HashFields::NwSrc.hash(&key, 7),
                HashFields::NwSrc.hash(&reversed(&key), 7)
            );
        }
    }

    #[test]
    fn only_the_fields_that_are_named_count() {
        let one = key(1);
        assert_eq!(one.u8(at::IP_PROTO), PROTO_UDP);
        let mut port = one;
        port.set_u16(at::TP_SRC, !one.u16(at::TP_SRC));
        let mut mac = one;
        mac.set_u64(at::ETH_SRC, !one.u64(at::ETH_SRC));
        for fields in ALL {
            let counts = |other: &FlowKey| fields.hash(&one, 0) != fields.hash(other, 0);
            assert_eq!(counts(&port), fields == HashFields::SymmetricL3L4Udp);
            let with_mac = [HashFields::EthSrc, HashFields::SymmetricL4];
            assert_eq!(counts(&mac), with_mac.contains(&fields), "{fields:?}");
            assert_ne!(fields.hash(&one, 0), fields.hash(&one, 1), "basis");
        }
        let mut tcp = one;
        tcp.set_u8(at::IP_PROTO, PROTO_TCP);
        let mut other = tcp;
        other.set_u16(at::TP_DST, 1);
        for fields in [HashFields::SymmetricL4, HashFields::SymmetricL3L4] {
            assert_ne!(fields.hash(&tcp, 0), fields.hash(&other, 0));
        }
    }

    /// Words outside those that `words` returns do not affect the hash.
    #[test]
    fn the_words_that_are_read_are_told() {
        for fields in ALL {
            for seed in 0..300 {
                let key = key(seed);
                let mut dirty = key;
                for word in (0..packet::key::WORDS).filter(|word| !fields.words().contains(*word)) {
                    dirty.words[word] = !dirty.words[word];
                }
                assert_eq!(fields.hash(&key, 3), fields.hash(&dirty, 3));
            }
        }
    }

    #[test]
    fn ways_are_taken_evenly() {
        const PACKETS: u32 = 20_000;
        for choice in [
            Choice::Modulo,
            Choice::Threshold,
            Choice::HighestWeight,
            Choice::Iterate(0),
            Choice::Iterate(12),
        ] {
            for ways in [1_u32, 2, 3, 7, 8, 60, 100] {
                let mut taken = vec![0_u32; ways as usize];
                for seed in 0..PACKETS {
                    let hash = HashFields::SymmetricL3L4Udp.hash(&key(seed.into()), 5);
                    taken[choice.choose(hash, ways) as usize] += 1;
                }
                let fair = f64::from(PACKETS / ways);
                // Six standard deviations of a binomial distribution. The keys are fixed, so this
                // never fails by chance.
                let slack = 6.0 * fair.sqrt();
                for count in &taken {
                    let off = (f64::from(*count) - fair).abs();
                    assert!(off <= slack, "{choice:?} of {ways}: {taken:?}");
                }
            }
        }
    }

    /// RFC 2992: adding a way moves packets only to it, none between the others.
    #[test]
    fn the_highest_weight_moves_few_packets() {
        for hash in (0..3000_u32).map(|number| number.wrapping_mul(0x9e37_79b9)) {
            let (before, after) = (
                Choice::HighestWeight.choose(hash, 7),
                Choice::HighestWeight.choose(hash, 8),
            );
            assert!(after == before || after == 7);
        }
    }
}
