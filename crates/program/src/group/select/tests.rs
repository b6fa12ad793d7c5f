//! Shares, movement and symmetry of choices.

use super::*;
use crate::actions::multipath::tests::reversed;

const USUAL: GroupHash = GroupHash::Usual { by_datapath: true };

const HASHES: u32 = 40_000;

/// Returns hashes distributed like those of packets.
fn hashes() -> impl Iterator<Item = u32> {
    (0..HASHES).map(|number| weight(number, 77))
}

fn selector(buckets: &[(u32, u16)]) -> Selector {
    Selector::new(USUAL, buckets)
}

fn shares(selector: &Selector, is_live: impl Fn(usize) -> bool + Copy) -> Vec<u32> {
    let mut shares = vec![0; selector.buckets.len()];
    for hash in hashes() {
        if let Some(place) = selector.choose(hash, is_live) {
            shares[place] += 1;
        }
    }
    shares
}

#[test]
fn shares_follow_weights() {
    let cases: [&[(u32, u16)]; 6] = [
        &[(0, 1), (1, 1)],
        &[(0, 1), (1, 2)],
        &[(7, 10), (3, 0), (5, 30)],
        &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)],
        &[(0, 65535), (1, 65535)],
        &[(9, 100)],
    ];
    for buckets in cases {
        let total: u32 = buckets.iter().map(|(_, share)| u32::from(*share)).sum();
        let got = shares(&selector(buckets), |_| true);
        for ((_, share), got) in buckets.iter().zip(&got) {
            let fair = f64::from(HASHES) * f64::from(*share) / f64::from(total);
            // Half a slot of 256, and six standard deviations.
            let slack = f64::from(HASHES) / 512.0 + 6.0 * fair.sqrt();
            assert!(
                (f64::from(*got) - fair).abs() <= slack,
                "{buckets:?}: {got:?}"
            );
            assert_eq!(*share == 0, *got == 0);
        }
    }
}

#[test]
fn without_a_weight_or_a_live_bucket_there_is_no_choice() {
    assert_eq!(selector(&[]).choose(5, |_| true), None);
    assert_eq!(selector(&[(1, 0), (2, 0)]).choose(5, |_| true), None);
    assert_eq!(selector(&[(1, 5), (2, 6)]).choose(5, |_| false), None);
    for hash in hashes().take(1000) {
        let only = selector(&[(1, 5), (2, 0), (3, 1), (4, 9)]).choose(hash, |place| place < 2);
        assert_eq!(only, Some(0), "the one that is live has all");
    }
}

#[test]
fn every_weight_has_a_share_however_many_there_are() {
    for count in [1_u32, 15, 16, 17, 300, 4000] {
        let buckets: Vec<(u32, u16)> = (0..count)
            .map(|id| (id, if id == 0 { u16::MAX } else { 1 }))
            .collect();
        let table = fill(&buckets);
        assert!(table.len().is_power_of_two());
        let mut seen = vec![false; buckets.len()];
        table
            .iter()
            .for_each(|place| seen[usize::from(*place)] = true);
        assert!(seen.iter().all(|seen| *seen), "{count}");
    }
}

/// A dead bucket's packets go to the others by weight; no others move, and all come back.
#[test]
fn death_moves_only_the_dead_ones() {
    let all = selector(&[(0, 1), (1, 1), (2, 2), (3, 4)]);
    for hash in hashes() {
        let (before, after) = (
            all.choose(hash, |_| true).unwrap(),
            all.choose(hash, |place| place != 1).unwrap(),
        );
        assert!(after != 1 && (before == 1 || after == before));
    }
    let got = shares(&all, |place| place != 1);
    let spread: Vec<f64> = [1.0, 0.0, 2.0, 4.0]
        .iter()
        .map(|share| f64::from(HASHES) * share / 7.0)
        .collect();
    for (got, fair) in got.iter().zip(&spread) {
        assert!(
            (f64::from(*got) - fair).abs() <= f64::from(HASHES) * 0.01,
            "{got:?}"
        );
    }
}

/// When a bucket comes or goes, its own share moves, and few packets move between the others.
#[test]
fn changes_move_few() {
    for count in [2_u32, 3, 5, 10, 31] {
        let before: Vec<(u32, u16)> = (0..count).map(|id| (id, 10)).collect();
        let mut after = before.clone();
        after.push((count, 10));
        let (one, other) = (selector(&before), selector(&after));
        let (mut moved, mut between) = (0, 0);
        for hash in hashes() {
            let (was, is) = (one.choose(hash, |_| true), other.choose(hash, |_| true));
            moved += u32::from(was != is);
            between += u32::from(was != is && is != Some(count as usize));
        }
        let own = f64::from(HASHES) / f64::from(count + 1);
        assert!(f64::from(moved) >= own * 0.8, "{count}: {moved}");
        assert!(
            f64::from(between) <= f64::from(HASHES) * 0.15,
            "{count}: {between} of {HASHES} between the others"
        );
    }
}

fn key(number: u32) -> FlowKey {
    let mut key = FlowKey::ZERO;
    let one = |turn: u32| weight(number, turn);
    key.set_u64(at::ETH_SRC, u64::from(one(1)) << 20);
    key.set_u64(at::ETH_DST, u64::from(one(2)) << 20);
    key.set_u16(
        at::ETH_TYPE,
        if number.is_multiple_of(3) {
            ETH_IPV6
        } else {
            ETH_IPV4
        },
    );
    key.set_u32(at::IPV4_SRC, one(3));
    key.set_u32(at::IPV4_DST, one(4));
    key.set_u32(at::IPV6_SRC + 12, one(3));
    key.set_u32(at::IPV6_DST + 12, one(4));
    key.set_u8(at::IP_PROTO, [6, 17, 132][number as usize % 3]);
    key.set_u16(at::TP_SRC, one(5) as u16);
    key.set_u16(at::TP_DST, one(6) as u16);
    key
}

#[test]
fn both_directions_have_one_hash_where_they_should() {
    let symmetric = |symmetric| GroupHash::FiveTuple {
        symmetric,
        basis: 9,
    };
    for number in 0..1000 {
        let (key, back) = (key(number), reversed(&key(number)));
        for hash in [USUAL, symmetric(true)] {
            assert_eq!(hash.hash(&key, 0), hash.hash(&back, 0));
        }
        assert_ne!(
            symmetric(false).hash(&key, 0),
            symmetric(false).hash(&back, 0)
        );
    }
}

/// ARP requests and replies stay together, and different addresses spread.
#[test]
fn arp_is_spread_by_its_addresses() {
    let arp = |from: u32, to: u32, operation| {
        let mut key = FlowKey::ZERO;
        key.set_u16(at::ETH_TYPE, ETH_ARP);
        key.set_u32(at::IPV4_SRC, from);
        key.set_u32(at::IPV4_DST, to);
        key.set_u8(at::IP_PROTO, operation);
        USUAL.hash(&key, 0)
    };
    assert_eq!(arp(1, 2, 1), arp(2, 1, 2));
    let group = selector(&[(0, 1), (1, 1)]);
    let first = (0..1000).filter(|to| group.choose(arp(7, *to, 1), |_| true) == Some(0));
    assert!((400..600).contains(&first.count()));
}

/// Packets that differ in what is hashed are spread evenly.
#[test]
fn packets_are_spread_evenly() {
    const PACKETS: u32 = 30_000;
    let group = selector(&[(0, 1), (1, 1), (2, 2)]);
    let hashes = [
        USUAL,
        GroupHash::FiveTuple {
            symmetric: true,
            basis: 0,
        },
        GroupHash::fields(&[(Field::EthSrc, Field::EthSrc.def().place())], 0),
    ];
    for hash in hashes {
        for level in [0, 1] {
            let mut shares = [0_u32; 3];
            for number in 0..PACKETS {
                let place = group.choose(hash.hash(&key(number), level), |_| true);
                shares[place.unwrap()] += 1;
            }
            for (share, part) in shares.iter().zip([0.25, 0.25, 0.5]) {
                let fair = f64::from(PACKETS) * part;
                let off = (f64::from(*share) - fair).abs();
                assert!(
                    off <= 5.0 * (fair * (1.0 - part)).sqrt(),
                    "{hash:?}: {shares:?}"
                );
            }
        }
    }
}

/// The hash depends on the words that `words` returns, on each of them, and on no others.
#[test]
fn the_words_that_are_read_are_told() {
    let fields = GroupHash::fields(
        &[
            (Field::Ipv4Dst, Value::from_bytes(&[255, 255, 0, 0])),
            (Field::Reg3, Field::Reg3.def().place()),
        ],
        4,
    );
    let five_tuple = GroupHash::FiveTuple {
        symmetric: false,
        basis: 0,
    };
    for hash in [USUAL, five_tuple, fields.clone()] {
        for number in 0..100 {
            let key = key(number);
            let mut dirty = key;
            for word in 0..packet::key::WORDS {
                if !hash.words().contains(word) {
                    dirty.words[word] = !dirty.words[word];
                }
            }
            assert_eq!(hash.hash(&key, 0), hash.hash(&dirty, 0));
        }
    }
    let base = key(1);
    let mut masked = base;
    masked.set_u32(at::IPV4_DST, base.u32(at::IPV4_DST) ^ 0xffff);
    let mut counted = base;
    counted.set_u32(at::IPV4_DST, base.u32(at::IPV4_DST) ^ 0x10000);
    assert_eq!(fields.hash(&base, 0), fields.hash(&masked, 0));
    assert_ne!(fields.hash(&base, 0), fields.hash(&counted, 0));
}

/// A select group behind another one spreads the packets that the other sent there.
#[test]
fn levels_choose_apart() {
    let group = selector(&[(0, 1), (1, 1)]);
    let mut second = [0_u32; 2];
    for number in 0..4000 {
        let key = key(number);
        let hash = USUAL;
        if group.choose(hash.hash(&key, 0), |_| true) == Some(0) {
            let place = group.choose(hash.hash(&key, 1), |_| true).unwrap();
            second[place] += 1;
        }
    }
    assert!(second.iter().all(|share| *share > 800), "{second:?}");
}
