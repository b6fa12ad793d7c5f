//! How a select group chooses its bucket.
//!
//! A hash of the packet indexes a table of slots that is filled when the group is made, with each
//! bucket in as many slots as its weight demands. The table is filled as in Maglev (Eisenbud et
//! al., NSDI 2016): each bucket has an order of preference among the slots that follows from its id
//! alone, and buckets take turns; so when a bucket comes or goes, few packets move between the
//! others. When the bucket found is dead, others are tried in an order that follows from the hash:
//! only the dead bucket's packets move, and they spread over all others by weight.

use crate::actions::multipath::{mix, pair, weight};
use packet::key::at;
use packet::{Field, FlowKey, Value, WordSet};

/// Slots of the smallest table; a power of two.
const SLOTS_MIN: usize = 256;
/// Slots of the largest table; a power of two.
const SLOTS_MAX: usize = 8192;
/// Slots tried before the live buckets are weighed one by one.
const PROBES: usize = 8;

/// Which fields choose the bucket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum GroupHash {
    /// Ethernet addresses, IP addresses and protocol, ports of TCP, UDP and SCTP, ARP's addresses;
    /// symmetric: the same hash for both directions of a connection.
    Usual {
        /// Whether Open vSwitch's datapath computes a hash in its place: not where a group asks for
        /// `hash` without fields.
        by_datapath: bool,
    },
    /// IP addresses and protocol, ports of TCP, UDP and SCTP; ARP's addresses (`dp_hash`).
    FiveTuple {
        /// Whether both directions of a connection have the same hash.
        symmetric: bool,
        /// Parameter of the hash.
        basis: u32,
    },
    /// These bits of the key, by word (`hash`).
    Fields {
        /// Words and their masks, ascending.
        masks: Box<[(u8, u64)]>,
        /// Parameter of the hash.
        basis: u64,
    },
}

const ETH_IPV4: u16 = 0x0800;
const ETH_ARP: u16 = 0x0806;
const ETH_IPV6: u16 = 0x86dd;

impl GroupHash {
    /// Returns the hash of these bits of these fields, as they lie in the key.
    pub fn fields(fields: &[(Field, Value)], basis: u64) -> GroupHash {
        let mut mask = FlowKey::ZERO;
        for (field, bits) in fields {
            let offset = field.def().offset;
            for (byte, bits) in mask.bytes_mut()[offset..].iter_mut().zip(bits.iter()) {
                *byte |= bits;
            }
        }
        let masks = mask.words.iter().enumerate();
        GroupHash::Fields {
            masks: masks
                .filter(|(_, mask)| **mask != 0)
                .map(|(word, mask)| (word as u8, *mask))
                .collect(),
            basis,
        }
    }

    /// Returns whether Open vSwitch's datapath computes this hash, and so recirculates the packet.
    pub fn is_datapaths(&self) -> bool {
        !matches!(
            self,
            GroupHash::Fields { .. } | GroupHash::Usual { by_datapath: false }
        )
    }

    /// Returns the words of the key that it reads.
    pub fn words(&self) -> WordSet {
        let five_tuple = WordSet::of_bytes(at::ETH_TYPE, 2)
            .union(WordSet::of_bytes(at::IP_PROTO, 1))
            .union(WordSet::of_bytes(at::IP_FRAG, 1))
            .union(WordSet::of_bytes(at::TP_SRC, 4))
            .union(WordSet::of_bytes(at::IPV4_SRC, 4))
            .union(WordSet::of_bytes(at::IPV4_DST, 4))
            .union(WordSet::of_bytes(at::IPV6_SRC, 32));
        match self {
            GroupHash::Usual { .. } => five_tuple
                .union(WordSet::of_bytes(at::ETH_SRC, 6))
                .union(WordSet::of_bytes(at::ETH_DST, 6)),
            GroupHash::FiveTuple { .. } => five_tuple,
            GroupHash::Fields { masks, .. } => {
                masks.iter().fold(WordSet::EMPTY, |set, (word, _)| {
                    set.union(WordSet::of_word(usize::from(*word)))
                })
            }
        }
    }

    /// Hashes a packet. `level`: number of select groups that the packet has passed on its way
    /// here, so that a nested group spreads its packets instead of choosing as the outer one did.
    pub fn hash(&self, key: &FlowKey, level: u32) -> u32 {
        let hash = match self {
            GroupHash::Usual { .. } => {
                let macs = pair(key.u64(at::ETH_SRC) >> 16, key.u64(at::ETH_DST) >> 16);
                five_tuple(key, mix(macs, key.u16(at::ETH_TYPE).into()), pair)
            }
            GroupHash::FiveTuple { symmetric, basis } => {
                let both = if *symmetric { pair } else { in_turn };
                five_tuple(key, mix(0, (*basis).into()), both)
            }
            GroupHash::Fields { masks, basis } => {
                masks.iter().fold(mix(0, *basis), |hash, (word, mask)| {
                    mix(hash, u64::from_be(key.words[usize::from(*word)] & mask))
                })
            }
        };
        weight((hash >> 32) as u32 ^ hash as u32, level)
    }
}

fn in_turn(one: u64, other: u64) -> u64 {
    mix(mix(0x52, one), other)
}

/// Adds the five-tuple of an IP packet to a hash. A fragment's ports do not count, because only the
/// first fragment has them.
fn five_tuple(key: &FlowKey, hash: u64, both: fn(u64, u64) -> u64) -> u64 {
    let address = |at: usize| mix(mix(6, key.u64(at)), key.u64(at + 8));
    let addresses = match key.u16(at::ETH_TYPE) {
        ETH_IPV4 => both(key.u32(at::IPV4_SRC).into(), key.u32(at::IPV4_DST).into()),
        ETH_IPV6 => both(address(at::IPV6_SRC), address(at::IPV6_DST)),
        // ARP's addresses are in the same words as IPv4's, and its operation (request or reply) is
        // in that of the protocol, so this hashes addresses only.
        ETH_ARP => {
            let pair = both(key.u32(at::IPV4_SRC).into(), key.u32(at::IPV4_DST).into());
            return mix(hash, pair);
        }
        _ => return hash,
    };
    let protocol = key.u8(at::IP_PROTO);
    let hash = mix(mix(hash, addresses), protocol.into());
    if matches!(protocol, 6 | 17 | 132) && key.u8(at::IP_FRAG) == 0 {
        let ports = both(key.u16(at::TP_SRC).into(), key.u16(at::TP_DST).into());
        mix(hash, ports)
    } else {
        hash
    }
}

/// Chooses a bucket by a hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selector {
    /// Fields that are hashed.
    pub hash: GroupHash,
    /// Ids and weights of the buckets.
    buckets: Box<[(u32, u16)]>,
    /// Indices into `buckets`; a power of two of them, or none where no bucket has a weight.
    slots: Box<[u16]>,
}

impl Selector {
    /// Creates a selector for buckets of these ids and weights, at most 65,535. A bucket of weight
    /// 0 is never chosen.
    pub fn new(hash: GroupHash, buckets: &[(u32, u16)]) -> Selector {
        Selector {
            hash,
            slots: fill(buckets),
            buckets: buckets.into(),
        }
    }

    /// Returns the indices of buckets that may be chosen.
    pub fn weighted(&self) -> impl Iterator<Item = usize> {
        let all = self.buckets.iter().enumerate();
        all.filter(|(_, (_, share))| *share != 0)
            .map(|(place, _)| place)
    }

    /// Returns the index of a live bucket for a hash; None when no bucket with a weight is live.
    #[inline]
    pub fn choose(&self, hash: u32, mut is_live: impl FnMut(usize) -> bool) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut slot = hash as usize & mask;
        let first = usize::from(self.slots[slot]);
        if is_live(first) {
            return Some(first);
        }
        let stride = weight(hash, u32::MAX) as usize | 1;
        for _ in 1..PROBES {
            slot = slot.wrapping_add(stride) & mask;
            let bucket = usize::from(self.slots[slot]);
            if bucket != first && is_live(bucket) {
                return Some(bucket);
            }
        }
        // Most are dead: hash with each bucket's id, multiply by its weight, and take the highest;
        // ties go to the lowest id.
        let all = self.buckets.iter().enumerate();
        all.filter(|(place, (_, share))| *share != 0 && is_live(*place))
            .max_by_key(|(_, (id, share))| {
                let score = u64::from(weight(hash, *id)) * u64::from(*share);
                (score, std::cmp::Reverse(*id))
            })
            .map(|(place, _)| place)
    }
}

/// Returns how many slots each bucket gets: by weight, rounded so that the sum is right, and at
/// least one for each bucket with a weight.
fn quotas(buckets: &[(u32, u16)], slots: usize) -> Vec<usize> {
    let total: u64 = buckets.iter().map(|(_, share)| u64::from(*share)).sum();
    let exact = |share: u16| u64::from(share) * slots as u64;
    let mut quotas: Vec<usize> = buckets
        .iter()
        .map(|(_, share)| ((exact(*share) / total) as usize).max(usize::from(*share != 0)))
        .collect();
    let given: usize = quotas.iter().sum();
    let mut order: Vec<usize> = (0..buckets.len())
        .filter(|place| buckets[*place].1 != 0)
        .collect();
    if given < slots {
        // Remaining slots go to the largest remainders.
        order.sort_by_key(|place| (std::cmp::Reverse(exact(buckets[*place].1) % total), *place));
        for place in order.into_iter().cycle().take(slots - given) {
            quotas[place] += 1;
        }
    } else {
        // Excess slots are taken from the largest shares.
        for _ in slots..given {
            if let Some(place) = order.iter().copied().max_by_key(|place| quotas[*place]) {
                quotas[place] -= 1;
            }
        }
    }
    quotas
}

fn fill(buckets: &[(u32, u16)]) -> Box<[u16]> {
    const EMPTY: u16 = u16::MAX;
    let chosen = buckets.iter().filter(|(_, share)| *share != 0).count();
    if chosen == 0 {
        return Box::default();
    }
    let slots = (chosen * 16)
        .next_power_of_two()
        .clamp(SLOTS_MIN, SLOTS_MAX.max(chosen.next_power_of_two()));
    let quotas = quotas(buckets, slots);
    let most = quotas.iter().copied().max().unwrap_or(0);
    let mut table = vec![EMPTY; slots].into_boxed_slice();
    // For each bucket: its next slot, its odd stride, and the number of slots taken.
    let mut turns: Vec<(usize, usize, usize)> = buckets
        .iter()
        .map(|(id, _)| (weight(1, *id) as usize, weight(2, *id) as usize | 1, 0))
        .collect();
    for round in 1..=most {
        for (place, (next, stride, taken)) in turns.iter_mut().enumerate() {
            // All buckets fill up at the same pace, so that none is left with the slots that others
            // avoid.
            let due = (quotas[place] * round).div_ceil(most);
            while *taken < due {
                let slot = *next % slots;
                *next = next.wrapping_add(*stride);
                if table[slot] == EMPTY {
                    table[slot] = place as u16;
                    *taken += 1;
                }
            }
        }
    }
    table
}

#[cfg(test)]
mod tests;
