//! A burst's addresses, learned and looked up together.
//!
//! In a large table a burst's entries lie in as many cache lines as it has addresses. All are
//! prefetched before the first is read; then all are read between two reads of the table's version,
//! so that no address pays for these by itself. Addresses last seen a second ago or more are
//! refreshed under one lock.

use super::{HashBucket, Link, MacTable, NONE, Seen, key_of_word};
use program::prefetch;
use std::sync::atomic::{Ordering, fence};

/// Most frames of a run.
pub(crate) const RUN_MAX: usize = 64;

/// An address in a VLAN, prepared for lookup.
#[derive(Clone, Copy)]
pub(crate) struct Station {
    key: u64,
    /// The bucket at which its search begins.
    home: u32,
}

/// No station: nothing is to be learned, or looked up.
pub(crate) const NOBODY: Station = Station {
    key: u64::MAX, // not a valid key
    home: 0,
};

/// Result for a station that the table does not know; not a port's slot.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Sources and destinations of frames that came in by one port.
pub(crate) struct Stations {
    sources: [Station; RUN_MAX],
    destinations: [Station; RUN_MAX],
    count: usize,
    /// Number of frames that are done.
    done: usize,
}

impl Stations {
    /// Creates an empty list.
    #[inline(always)]
    pub fn new() -> Stations {
        Stations {
            sources: [NOBODY; RUN_MAX],
            destinations: [NOBODY; RUN_MAX],
            count: 0,
            done: 0,
        }
    }

    /// Marks the next frames as done.
    #[inline(always)]
    pub fn advance(&mut self, frames: usize) {
        self.done = (self.done + frames).min(self.count);
    }

    /// Returns how many frames are left.
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.count - self.done
    }

    /// Adds a frame with its stations, [`MacTable::station`] or [`NOBODY`]. There is room for
    /// [`RUN_MAX`].
    #[inline(always)]
    pub fn push(&mut self, source: Station, destination: Station) {
        self.sources[self.count] = source;
        self.destinations[self.count] = destination;
        self.count += 1;
    }
}

impl MacTable {
    /// Prepares a station: an address in a VLAN. The address's first byte is the lowest of `mac`;
    /// bytes above its sixth are ignored. Prefetches what the lookup reads.
    #[inline(always)]
    pub(crate) fn station(&self, mac: u64, vlan: u16) -> Station {
        let key = key_of_word(mac, vlan);
        let home = self.home(key);
        prefetch::<HashBucket>(&raw const self.buckets[home]);
        let home = home as u32;
        Station { key, home }
    }

    /// Learns the sources of the remaining frames, which came in by `port` in second `second`, and
    /// looks up their destinations. Returns how many frames it has done: it ends before the first
    /// whose source is new or has moved, since that changes what the next ones find. The result is
    /// as if each had been [`MacTable::learn`]ed and [`MacTable::lookup`]ed in turn.
    #[inline]
    pub(crate) fn meet(
        &self,
        stations: &Stations,
        port: u32,
        second: u32,
        found: &mut [u32; RUN_MAX],
    ) -> usize {
        let version = self.version.load(Ordering::Acquire);
        if version & 1 == 1 {
            return 0;
        }
        let left = stations.done..stations.count.min(RUN_MAX);
        let mut count = left.len();
        for (found, to) in found.iter_mut().zip(&stations.destinations[left.clone()]) {
            if to.key == NOBODY.key {
                *found = NOWHERE;
                continue;
            }
            let at = self.search_from(to.home as usize, to.key);
            *found = at.map_or(NOWHERE, |at| {
                Seen::unpack(self.entry(at).seen.load(Ordering::Relaxed)).port
            });
        }
        let fresh = Seen {
            port,
            fixed: false,
            second,
        };
        let fresh = fresh.pack();
        let mut silent = Silent::new();
        for (index, from) in stations.sources[left].iter().enumerate() {
            if from.key == NOBODY.key {
                continue;
            }
            let Some(at) = self.search_from(from.home as usize, from.key) else {
                count = index;
                break;
            };
            let word = self.entry(at).seen.load(Ordering::Relaxed);
            let seen = Seen::unpack(word);
            if word == fresh || seen.fixed || seen.port == port && seen.second >= second {
                continue;
            }
            if seen.port != port {
                count = index;
                break;
            }
            silent.push(at, from.key);
        }
        fence(Ordering::Acquire);
        if self.version.load(Ordering::Relaxed) != version {
            return 0;
        }
        if silent.count > 0 {
            self.refresh_all(&silent, port, second);
        }
        count
    }

    /// Refreshes stations that were seen again on their ports, in turn.
    #[inline(never)]
    fn refresh_all(&self, silent: &Silent, port: u32, second: u32) {
        let all = || silent.all[..silent.count].iter();
        let mut inner = self.lock();
        for (at, _) in all() {
            prefetch(&raw const inner.links[*at as usize]);
        }
        for (at, _) in all() {
            let Link { older, newer } = inner.links[*at as usize];
            for beside in [older, newer] {
                if beside != NONE {
                    prefetch(&raw const inner.links[beside as usize]);
                }
            }
        }
        for (at, key) in all() {
            let entry = self.entry(*at);
            let seen = Seen::unpack(entry.seen.load(Ordering::Relaxed));
            if entry.key.load(Ordering::Relaxed) != *key || seen.port != port || seen.fixed {
                // Another worker or control has changed it meanwhile.
                self.learn_in(&mut inner, *key, port, second);
            } else if seen.second < second {
                self.refresh(&mut inner, *at, seen, second);
            }
        }
    }
}

/// Stations that were last seen a second ago or more: entry numbers and keys.
struct Silent {
    all: [(u32, u64); RUN_MAX],
    count: usize,
}

impl Silent {
    #[inline(always)]
    fn new() -> Silent {
        Silent {
            all: [(NONE, NOBODY.key); RUN_MAX],
            count: 0,
        }
    }

    #[inline(always)]
    fn push(&mut self, at: u32, key: u64) {
        self.all[self.count] = (at, key);
        self.count += 1;
    }
}
