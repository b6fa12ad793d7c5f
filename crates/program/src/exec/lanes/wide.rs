//! Wide lanes: packets with further words beside those of a lane, because they are of IPv6 or ARP,
//! have been tracked, or have tunnel metadata.

use crate::actions::block::{LANE_WORDS, MultipathHash};
use crate::burst::Words;
use crate::burst::beyond;
use crate::burst::{LOOKUP_MAX, LaneSet};
use crate::classifier::lanes::Found;
use crate::exec::interpreter::Burst;
use crate::exec::interpreter::connection::FIRST_WORD;
use crate::exec::lanes::{Connections, Lane, Lanes};
use packet::Frame;
use packet::parse::{Extent, MoreWords};
use packet::tunnel::TunnelWords;

/// Returns a word that is not in the mini key of a packet of the common kinds; `more` is not read
/// for IPv4.
#[inline(always)]
pub(crate) fn word_beyond(index: u8, extent: Extent, more: &MoreWords) -> u64 {
    if extent.is_ipv4() {
        beyond(index)
    } else {
        beyond(index) | more.word(index.into())
    }
}

/// A lane with the further words of its packet.
#[derive(Clone, Copy)]
struct Wide<'a> {
    lane: &'a Lane,
    more: &'a MoreWords,
}

/// What is known of all lanes.
pub(super) struct All<'a> {
    lanes: &'a [Lane; LOOKUP_MAX],
    more: &'a [MoreWords; LOOKUP_MAX],
    tracked: LaneSet,
    connections: &'a Connections,
}

/// A lane with its further words and what is known of its packet's connection.
#[derive(Clone, Copy)]
struct Tracked<'a> {
    all: &'a All<'a>,
    lane: usize,
}

/// The same, with the packet's tunnel metadata.
#[derive(Clone, Copy)]
pub(super) struct Sided<'a> {
    tracked: Tracked<'a>,
    tunnel: &'a TunnelWords,
}

impl Words for Wide<'_> {
    const AT_HAND: u8 = 0;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        match self.lane.words.get(usize::from(index)) {
            Some(word) => *word,
            None => word_beyond(index, self.lane.extent, self.more),
        }
    }
}

// So the words of lanes need not be compared with those of connections.
const _: () = assert!(LANE_WORDS <= FIRST_WORD);

impl Tracked<'_> {
    /// Returns a word that is not in a lane.
    #[inline(always)]
    fn further(&self, index: u8) -> u64 {
        let (all, lane) = (self.all, self.lane % LOOKUP_MAX);
        match all.connections.column(index) {
            Some(column) if all.tracked.contains(lane) => column[lane],
            Some(_) => 0,
            None => word_beyond(index, all.lanes[lane].extent, &all.more[lane]),
        }
    }
}

impl Words for Tracked<'_> {
    const AT_HAND: u8 = 0;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        let lane = &self.all.lanes[self.lane % LOOKUP_MAX];
        match lane.words.get(usize::from(index)) {
            Some(word) => *word,
            None => self.further(index),
        }
    }

    /// As the trait's default, but locates the word once for all lanes.
    #[inline(always)]
    fn differing(packets: &[Self; LOOKUP_MAX], set: LaneSet, index: u8, wanted: u64) -> u64 {
        let all = packets[0].all;
        if usize::from(index) < LANE_WORDS {
            return Lane::differing(all.lanes, set, index, wanted);
        }
        match all.connections.column(index) {
            Some(column) => {
                let tracked = set.also_in(all.tracked);
                let differ = tracked.fold(column, 0, |differ, word| differ | word ^ wanted);
                // Of packets that have not been tracked, such words are 0.
                match tracked == set {
                    true => differ,
                    false => differ | wanted,
                }
            }
            None => set.fold(packets, 0, |differ, packet| {
                differ | packet.further(index) ^ wanted
            }),
        }
    }

    /// As the trait's default, but goes word by word: what the tracker has said is often the same
    /// for all, and compared for many lanes at once.
    #[inline(always)]
    fn having(
        packets: &[Self; LOOKUP_MAX],
        set: LaneSet,
        mut words: impl Iterator<Item = (u8, u64, u64)> + Clone,
    ) -> LaneSet {
        let all = packets[0].all;
        let mut rest = set;
        while !rest.is_empty()
            && let Some((index, mask, value)) = words.next()
        {
            if let Some(column) = all.connections.column(index) {
                let tracked = rest.also_in(all.tracked);
                let others = match value {
                    0 => rest.minus(tracked),
                    _ => LaneSet::EMPTY,
                };
                rest = tracked.those_having(column, mask, value).union(others);
            } else if Self::differing(packets, rest, index, value) & mask != 0 {
                rest = rest.those(|lane| {
                    let packet = &packets[lane % LOOKUP_MAX];
                    packet.word(index) & mask == value
                });
            }
        }
        rest
    }
}

impl Words for Sided<'_> {
    const AT_HAND: u8 = 0;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        self.tracked.word(index) | self.tunnel.word(index)
    }
}

impl<F: Frame> Lanes<F> {
    /// Returns a lane with its further words.
    #[inline(always)]
    fn wide(&self, lane: usize) -> Wide<'_> {
        Wide {
            lane: &self.lanes[lane],
            more: &self.more[lane],
        }
    }

    /// Returns all that is known of lanes.
    #[inline(always)]
    pub(super) fn all(&self) -> All<'_> {
        All {
            lanes: &self.lanes,
            more: &self.more,
            tracked: self.tracked,
            connections: &self.connections,
        }
    }

    /// Returns a lane with all that is known of its packet.
    #[inline(always)]
    pub(super) fn sided<'a>(&'a self, all: &'a All<'a>, lane: usize) -> Sided<'a> {
        const NONE: &TunnelWords = &TunnelWords::ZERO;
        Sided {
            tracked: Tracked { all, lane },
            tunnel: match self.tunnelled.contains(lane) {
                true => &self.tunnels[lane],
                false => NONE,
            },
        }
    }

    /// Reads the further words of those of these lanes that are not IPv4; their packets and mini
    /// keys must be in them already.
    #[inline(never)]
    pub(crate) fn begin_wide(&mut self, run: std::ops::Range<usize>) {
        for index in run {
            let extent = self.lanes[index].extent;
            if !extent.is_ipv4()
                && let Some(frame) = &self.frames[index]
            {
                self.more[index] = MoreWords::of(frame.head(), extent);
                self.wide = self.wide.union(LaneSet::one(index));
                self.others = self.others.union(LaneSet::one(index));
            }
        }
    }

    /// Executes a choice for a wide lane.
    pub(crate) fn multipath_wide(&mut self, lane: usize, multipath: &MultipathHash) {
        let write = multipath.write(&Tracked {
            all: &self.all(),
            lane,
        });
        self.lanes[lane].write(&write);
    }

    #[inline(never)]
    pub(crate) fn look_up_wide<'g>(
        &self,
        burst: &Burst<'_, 'g>,
        table: u8,
        set: LaneSet,
        found: &mut Found<'g>,
    ) -> bool {
        if !set.also_in(self.tunnelled).is_empty() {
            return self.look_up_tunnelled(burst, table, set, found);
        }
        if !set.also_in(self.tracked).is_empty() {
            return self.look_up_tracked(burst, table, set, found);
        }
        let lanes: [Wide<'_>; LOOKUP_MAX] = std::array::from_fn(|lane| self.wide(lane));
        (burst.bridge).lookup_lanes(table, set, &lanes, burst.guard, found)
    }

    #[inline(never)]
    fn look_up_tracked<'g>(
        &self,
        burst: &Burst<'_, 'g>,
        table: u8,
        set: LaneSet,
        found: &mut Found<'g>,
    ) -> bool {
        let all = &self.all();
        let lanes: [Tracked<'_>; LOOKUP_MAX] = std::array::from_fn(|lane| Tracked { all, lane });
        (burst.bridge).lookup_lanes(table, set, &lanes, burst.guard, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::interpreter::connection::{CONNECTION_WORDS, FIRST_WORD, SETTLED_WORDS};
    use crate::exec::lanes::begin_key;
    use packet::build::Builder;
    use packet::key::at;
    use packet::mini_key::{MiniKey, NO_PATTERN, read_burst};
    use packet::{FlowKey, HeapFrame, WordSet};
    use proptest::prelude::*;

    /// All words of a key.
    const ALL: WordSet = WordSet(u64::MAX);

    /// What the tracker has said of a packet: its words, and whether it is the short form.
    fn said() -> impl Strategy<Value = Option<(u64, bool)>> {
        prop::option::weighted(0.8, (0_u64..4, any::<bool>()))
    }

    /// A word of a key: of lanes, connections, IPv6, or of none of these.
    fn indexes() -> impl Strategy<Value = u8> {
        let connection = FIRST_WORD..FIRST_WORD + CONNECTION_WORDS;
        const OTHERS: &[usize] = &[
            at::IPV6_SRC / 8,
            at::IPV6_DST / 8 + 1,
            at::ACTSET_OUTPUT / 8,
        ];
        prop_oneof![0..LANE_WORDS, connection, prop::sample::select(OTHERS)]
            .prop_map(|index| index as u8)
    }

    proptest! {
        /// Sets of tracked lanes are compared as the whole keys of their packets, also where lanes
        /// have been used for other packets before.
        #[test]
        fn tracked_lanes_are_compared_as_whole_keys(
            packets in prop::collection::vec((any::<bool>(), 0_u8..3, said(), said()), LOOKUP_MAX),
            bits in prop_oneof![any::<u64>(), (0_u32..64).prop_map(|first| u64::MAX << first)],
            words in prop::collection::vec(
                (indexes(), prop_oneof![Just(u64::MAX), any::<u64>()], 0..LOOKUP_MAX, any::<bool>()),
                0..4,
            ),
        ) {
            let frames = packets.iter().map(|(v6, last, ..)| {
                let builder = Builder::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, *last]);
                match v6 {
                    false => builder.ipv4(7, u32::from(*last)).udp(5, 80).frame(),
                    true => builder.ipv6([0xfd; 16], [*last; 16]).udp(5, 80).frame(),
                }
            });
            let frames: Vec<HeapFrame> = frames.collect();
            let (mut hot, mut first) = ([MiniKey::ZERO; LOOKUP_MAX], [NO_PATTERN; LOOKUP_MAX]);
            read_burst(&frames, 1, &[], &mut hot, &mut first);
            let mut lanes = [Lane::ZERO; LOOKUP_MAX];
            let mut more = [MoreWords::ZERO; LOOKUP_MAX];
            let mut connections = Connections::NONE;
            let mut tracked = LaneSet::EMPTY;
            for (lane, (v6, _, before, now)) in packets.iter().enumerate() {
                lanes[lane].begin(&hot[lane]);
                if *v6 {
                    more[lane] = MoreWords::of(frames[lane].head(), hot[lane].extent);
                }
                for (value, short) in before.iter().chain(now) {
                    match short {
                        true => connections.show_settled(lane, [*value; SETTLED_WORDS]),
                        false => connections.show(lane, [*value; CONNECTION_WORDS]),
                    }
                }
                if now.is_some() {
                    tracked = tracked.union(LaneSet::one(lane));
                }
            }
            let keys: Vec<FlowKey> = (0..LOOKUP_MAX).map(|lane| {
                let mut key = FlowKey::ZERO;
                begin_key(&mut key, &lanes[lane].words, ALL);
                if !lanes[lane].extent.is_ipv4() {
                    more[lane].fill(&mut key);
                }
                if tracked.contains(lane) {
                    connections.fill(lane, &mut key, ALL);
                }
                key
            }).collect();
            let all = &All { lanes: &lanes, more: &more, tracked, connections: &connections };
            let views: [Tracked<'_>; LOOKUP_MAX] = std::array::from_fn(|lane| Tracked { all, lane });
            let set = LaneSet(bits);
            // Values that a packet has, or none.
            let asked = words.iter().map(|(index, mask, like, other)| {
                let value = keys[*like].words[usize::from(*index)] & mask;
                (*index, *mask, value ^ (u64::from(*other) & mask))
            });
            let asked = asked.collect::<Vec<_>>();
            let has = |lane: usize, (index, mask, value): &(u8, u64, u64)| {
                keys[lane].words[usize::from(*index)] & mask == *value
            };
            let wanted = set.those(|lane| asked.iter().all(|word| has(lane, word)));
            prop_assert_eq!(Tracked::having(&views, set, asked.iter().copied()), wanted);
            for (index, _, value) in asked {
                let word = |lane: usize| keys[lane].words[usize::from(index)];
                prop_assert!((0..LOOKUP_MAX).all(|lane| views[lane].word(index) == word(lane)));
                let differ = set.iter().fold(0, |differ, lane| differ | word(lane) ^ value);
                prop_assert_eq!(Tracked::differing(&views, set, index, value), differ);
            }
        }
    }
}
