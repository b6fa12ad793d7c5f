//! Wide lanes: packets with further words beside those of a lane, because they are of IPv6 or ARP,
//! have been tracked, or have tunnel metadata.

use crate::actions::block::MultipathHash;
use crate::burst::Words;
use crate::burst::beyond;
use crate::burst::{LOOKUP_MAX, LaneSet};
use crate::classifier::lanes::Found;
use crate::exec::interpreter::Burst;
use crate::exec::lanes::{Connection, Lane, Lanes};
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

/// The same, with what is known of the packet's connection.
#[derive(Clone, Copy)]
struct Tracked<'a> {
    wide: Wide<'a>,
    connection: &'a Connection,
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

impl Words for Tracked<'_> {
    const AT_HAND: u8 = 0;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        self.wide.word(index) | self.connection.word(index)
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

    /// Returns a lane with its further words and what is known of its packet's connection.
    #[inline(always)]
    fn tracked(&self, lane: usize) -> Tracked<'_> {
        const NONE: Connection = Connection::NONE;
        Tracked {
            wide: self.wide(lane),
            connection: match self.tracked.contains(lane) {
                true => &self.connections[lane],
                false => &NONE,
            },
        }
    }

    /// Returns a lane with all that is known of its packet.
    #[inline(always)]
    pub(super) fn sided(&self, lane: usize) -> Sided<'_> {
        const NONE: &TunnelWords = &TunnelWords::ZERO;
        Sided {
            tracked: self.tracked(lane),
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
        let write = multipath.write(&self.tracked(lane));
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
        let lanes: [Tracked<'_>; LOOKUP_MAX] = std::array::from_fn(|lane| self.tracked(lane));
        (burst.bridge).lookup_lanes(table, set, &lanes, burst.guard, found)
    }
}
