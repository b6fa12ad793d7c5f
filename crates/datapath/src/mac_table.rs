//! The learning table of one bridge: the port on which an address was last seen, for each VLAN.
//!
//! Workers look up without a lock. The table is an array of buckets of one cache line each, made of
//! atomics, and a version number around every structural change (a sequence lock) tells a reader to
//! retry. An address whose bucket is full goes to the next one with room, and each bucket counts
//! the addresses that have passed it this way, which tells where a search ends. An entry does not
//! move while it lives. Learning a new address, moving one to another port, and refreshing one (at
//! most once a second) take a short lock; a burst looks up and refreshes all of its addresses
//! together (`run`).
//!
//! The rules are those of Open vSwitch's `mac-learning.c`: multicast sources are not learned; a
//! full table evicts the address that has been silent longest on the port that has most; static
//! entries neither age nor move nor are evicted. Open vSwitch's lock after a gratuitous ARP guards
//! members of bonds against their own reflection; there are no bonds here, so it is not needed.

mod large;
mod run;

pub(crate) use run::{NOBODY, NOWHERE, RUN_MAX, Station, Stations};

use large::many;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Smallest size of a table, in entries.
pub const SIZE_MIN: usize = 10;
/// Default size of a table, in entries.
pub const SIZE_DEFAULT: usize = 8192;
/// Largest size of a table, in entries.
pub const SIZE_MAX: usize = 1 << 20;

const NONE: u32 = u32::MAX;
/// How often a reader retries before it takes the lock.
const RETRIES: usize = 8;
/// Entries removed under one lock.
const AT_A_TIME: usize = 64;
/// A bit that every key has, so that no key is zero.
const VALID: u64 = 1 << 60;

/// Returns the key of an address (its first byte is the lowest) in a VLAN.
#[inline(always)]
fn key_of_word(mac: u64, vlan: u16) -> u64 {
    mac & 0xffff_ffff_ffff | u64::from(vlan & 0xfff) << 48 | VALID
}

#[inline(always)]
fn key_of(mac: Mac, vlan: u16) -> u64 {
    let [a, b, c, d, e, f] = mac;
    key_of_word(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), vlan)
}

fn parts_of(key: u64) -> (Mac, u16) {
    let [a, b, c, d, e, f, _, _] = key.to_le_bytes();
    ([a, b, c, d, e, f], (key >> 48) as u16 & 0xfff)
}

/// What a table knows about an address, packed into one word: port, whether static, second of last
/// use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    port: u32,
    fixed: bool,
    second: u32,
}

impl Seen {
    fn pack(self) -> u64 {
        u64::from(self.port) << 33 | u64::from(self.fixed) << 32 | u64::from(self.second)
    }
    #[inline(always)]
    fn unpack(word: u64) -> Seen {
        Seen {
            port: (word >> 33) as u32,
            fixed: word >> 32 & 1 == 1,
            second: word as u32,
        }
    }
}

/// Entries of a bucket.
const WAYS: usize = 3;
/// Entries of a bucket in the numbering of entries, a power of two; the last one does not exist.
const PLACES: usize = 4;

/// One address, or none where the key is zero.
struct Entry {
    key: AtomicU64,
    seen: AtomicU64,
}

/// Entries of addresses with the same hash, or that found earlier buckets full.
#[repr(C, align(64))]
struct HashBucket {
    entries: [Entry; WAYS],
    /// Number of addresses whose search starts here or earlier and ends further on.
    passed: AtomicU32,
}

const _: () = assert!(size_of::<HashBucket>() == 64);

impl HashBucket {
    fn new() -> HashBucket {
        let entry = || Entry {
            key: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        };
        HashBucket {
            entries: [entry(), entry(), entry()],
            passed: AtomicU32::new(0),
        }
    }

    /// Returns the entry of a key. Avoids branches up to the last, because which entry it is cannot
    /// be predicted.
    #[inline(always)]
    fn way_of(&self, key: u64) -> Option<usize> {
        let is = |way: usize| self.entries[way].key.load(Ordering::Relaxed) == key;
        let found = usize::from(is(0)) | usize::from(is(1)) << 1 | usize::from(is(2)) << 2;
        (found != 0).then(|| found.trailing_zeros() as usize)
    }
}

/// An entry's neighbours in its port's list, which is ordered oldest first.
#[derive(Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

struct PortList {
    oldest: u32,
    newest: u32,
    count: u32,
}

// The state behind the lock, on cache lines of its own, so that holders of the lock do not slow
// readers of the table.
#[repr(align(64))]
struct Inner {
    /// By entry number.
    links: Vec<Link>,
    /// Lists of learned addresses, by port; static ones are in no list.
    ports: HashMap<u32, PortList>,
    /// (count, port), to find the port with most.
    usage: BTreeSet<(u32, u32)>,
    count: usize,
    fixed: usize,
}

/// Counts since the table was created or they were cleared, as `fdb/stats-show` prints them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MacStats {
    /// Entries now, including static ones.
    pub current: usize,
    /// Most entries.
    pub maximum: usize,
    /// Static entries now.
    pub fixed: usize,
    /// Addresses learned.
    pub learned: u64,
    /// Addresses that aged out.
    pub expired: u64,
    /// Addresses evicted to make room.
    pub evicted: u64,
    /// Number of times that an address moved to another port.
    pub moved: u64,
    /// Addresses that could not be learned, because the table was full of static ones.
    pub refused: u64,
}

/// One entry, as `fdb/show` prints it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MacEntry {
    /// The port's slot.
    pub port: u32,
    /// VLAN, 0 for none.
    pub vlan: u16,
    /// Address.
    pub mac: Mac,
    /// Seconds since it was last seen; None for a static entry.
    pub age: Option<u32>,
}

#[derive(Default)]
struct Counts {
    learned: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    moved: AtomicU64,
    refused: AtomicU64,
}

/// A bounded table of learned addresses.
pub struct MacTable {
    seed: u64,
    /// A power of two of them, with at least half as many places again as entries.
    buckets: Box<[HashBucket]>,
    /// Most entries.
    size: usize,
    /// Odd while buckets change.
    version: AtomicU64,
    inner: Mutex<Inner>,
    counts: Counts,
}

impl MacTable {
    /// Creates an empty table of `size` entries, within [`SIZE_MIN`] and [`SIZE_MAX`].
    pub fn new(size: usize) -> MacTable {
        let size = size.clamp(SIZE_MIN, SIZE_MAX);
        let buckets = size.div_ceil(2).next_power_of_two();
        let nothing = Link {
            older: NONE,
            newer: NONE,
        };
        MacTable {
            seed: RandomState::new().hash_one(0_u8) | 1,
            buckets: many(buckets, HashBucket::new).into(),
            size,
            version: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                links: many(buckets * PLACES, || nothing),
                ports: HashMap::new(),
                usage: BTreeSet::new(),
                count: 0,
                fixed: 0,
            }),
            counts: Counts::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the bucket at which a key's search begins. The hash's seed is secret, so nobody
    /// outside can choose addresses that collide.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        let mixed = u128::from(key ^ self.seed) * u128::from(self.seed ^ 0x9e37_79b9_7f4a_7c15);
        let hash = (mixed >> 64) as u64 ^ mixed as u64;
        hash as usize & (self.buckets.len() - 1)
    }

    /// Returns the bucket that is searched after another.
    #[inline(always)]
    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    /// Returns a key's entry number.
    #[inline(always)]
    fn search(&self, key: u64) -> Option<u32> {
        self.search_from(self.home(key), key)
    }

    /// Returns the entry number of a key whose search begins at this bucket.
    #[inline(always)]
    fn search_from(&self, home: usize, key: u64) -> Option<u32> {
        let mut at = home & (self.buckets.len() - 1);
        // Bounded, because concurrent changes may mislead a reader.
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            if let Some(way) = bucket.way_of(key) {
                return Some((at * PLACES + way) as u32);
            }
            if bucket.passed.load(Ordering::Relaxed) == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Returns the entry that a search has found.
    #[inline(always)]
    fn entry(&self, at: u32) -> &Entry {
        &self.buckets[at as usize / PLACES].entries[at as usize % PLACES]
    }

    #[inline(always)]
    fn find(&self, key: u64) -> Option<Seen> {
        let seen = |at: u32| Seen::unpack(self.entry(at).seen.load(Ordering::Relaxed));
        for _ in 0..RETRIES {
            let version = self.version.load(Ordering::Acquire);
            if version & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let found = self.search(key).map(seen);
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return found;
            }
        }
        let _inner = self.lock();
        self.search(key).map(seen)
    }

    /// Returns the port on which an address was last seen.
    #[inline]
    pub fn lookup(&self, mac: Mac, vlan: u16) -> Option<u32> {
        self.find(key_of(mac, vlan)).map(|seen| seen.port)
    }

    /// Records that `mac` was seen on `port` (a slot below 2^31) in second `second`.
    #[inline]
    pub fn learn(&self, mac: Mac, vlan: u16, port: u32, second: u32) {
        if mac[0] & 1 == 1 {
            return;
        }
        let key = key_of(mac, vlan);
        match self.find(key) {
            Some(seen) if seen.fixed || seen.port == port && seen.second >= second => {}
            _ => self.learn_locked(key, port, second),
        }
    }

    #[cold]
    fn learn_locked(&self, key: u64, port: u32, second: u32) {
        self.learn_in(&mut self.lock(), key, port, second);
    }

    fn learn_in(&self, inner: &mut Inner, key: u64, port: u32, second: u32) {
        if let Some(at) = self.search(key) {
            let seen = Seen::unpack(self.entry(at).seen.load(Ordering::Relaxed));
            if seen.fixed {
                return;
            }
            if seen.port == port {
                return self.refresh(inner, at, seen, second);
            }
            self.counts.moved.fetch_add(1, Ordering::Relaxed);
            inner.unlink(seen.port, at);
            let second = second.max(seen.second);
            let seen = Seen {
                port,
                fixed: false,
                second,
            };
            // Release publishes all earlier changes to readers that check the version.
            self.entry(at).seen.store(seen.pack(), Ordering::Release);
            inner.link(port, at);
        } else if self.insert(
            inner,
            key,
            Seen {
                port,
                fixed: false,
                second,
            },
        ) {
            self.counts.learned.fetch_add(1, Ordering::Relaxed);
        } else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that a learned address was seen again on its port. The caller holds the lock.
    fn refresh(&self, inner: &mut Inner, at: u32, seen: Seen, second: u32) {
        let second = second.max(seen.second);
        let seen = Seen { second, ..seen };
        // Release, as in `learn_in`.
        self.entry(at).seen.store(seen.pack(), Ordering::Release);
        inner.renew(seen.port, at);
    }

    /// Adds an entry for a key that has none; returns false when there is no room.
    fn insert(&self, inner: &mut Inner, key: u64, seen: Seen) -> bool {
        if inner.count >= self.size {
            let Some(victim) = inner
                .usage
                .last()
                .and_then(|(_, port)| Some(inner.ports.get(port)?.oldest))
            else {
                return false;
            };
            self.remove(inner, victim);
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        }
        let home = self.home(key);
        let mut to = home;
        // Ends, because there are more places than entries.
        let way = loop {
            match self.buckets[to].way_of(0) {
                Some(way) => break way,
                None => to = self.after(to),
            }
        };
        let at = (to * PLACES + way) as u32;
        self.change(|| {
            self.pass(home, to, |passed| passed + 1);
            let entry = self.entry(at);
            // The key is stored last: a value read between two reads of the key (`known`) belongs
            // to this address.
            entry.seen.store(seen.pack(), Ordering::Release);
            entry.key.store(key, Ordering::Release);
        });
        inner.count += 1;
        if seen.fixed {
            inner.fixed += 1;
        } else {
            inner.link(seen.port, at);
        }
        true
    }

    /// Changes the counts of the buckets that a search passes.
    fn pass(&self, home: usize, to: usize, change: impl Fn(u32) -> u32) {
        let mut at = home;
        while at != to {
            let passed = &self.buckets[at].passed;
            passed.store(change(passed.load(Ordering::Relaxed)), Ordering::Relaxed);
            at = self.after(at);
        }
    }

    /// Removes an entry. The caller holds the lock.
    fn remove(&self, inner: &mut Inner, at: u32) {
        let entry = self.entry(at);
        let key = entry.key.load(Ordering::Relaxed);
        let seen = Seen::unpack(entry.seen.load(Ordering::Relaxed));
        if seen.fixed {
            inner.fixed -= 1;
        } else {
            inner.unlink(seen.port, at);
        }
        self.change(|| {
            entry.key.store(0, Ordering::Relaxed);
            let to = at as usize / PLACES;
            self.pass(self.home(key), to, |passed| passed - 1);
        });
        inner.count -= 1;
    }

    /// Makes a structural change in a way that readers notice. The caller holds the lock.
    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
    }

    /// Removes addresses not seen for `aging` seconds; returns how many.
    pub fn expire(&self, second: u32, aging: u32) -> usize {
        let ports: Vec<u32> = self.lock().ports.keys().copied().collect();
        let mut gone = 0;
        for port in ports {
            loop {
                let removed = self.expire_some(port, second, aging);
                gone += removed;
                if removed < AT_A_TIME {
                    break;
                }
            }
        }
        self.counts
            .expired
            .fetch_add(gone as u64, Ordering::Relaxed);
        gone
    }

    /// Removes some of one port's expired addresses: no more than one lock's worth, so that workers
    /// do not wait long for it.
    fn expire_some(&self, port: u32, second: u32, aging: u32) -> usize {
        let mut inner = self.lock();
        for removed in 0..AT_A_TIME {
            let Some(oldest) = inner.ports.get(&port).map(|list| list.oldest) else {
                return removed;
            };
            let seen = Seen::unpack(self.entry(oldest).seen.load(Ordering::Relaxed));
            if second.saturating_sub(seen.second) < aging {
                return removed;
            }
            self.remove(&mut inner, oldest);
        }
        AT_A_TIME
    }

    /// Removes all learned addresses, of one port or of all; static ones too if `fixed`.
    pub fn flush(&self, port: Option<u32>, fixed: bool) {
        for (chunk, buckets) in self.buckets.chunks(AT_A_TIME / WAYS).enumerate() {
            let mut inner = self.lock();
            for (index, bucket) in buckets.iter().enumerate() {
                for (way, entry) in bucket.entries.iter().enumerate() {
                    let seen = Seen::unpack(entry.seen.load(Ordering::Relaxed));
                    let used = entry.key.load(Ordering::Relaxed) != 0;
                    if used && port.is_none_or(|port| port == seen.port) && (fixed || !seen.fixed) {
                        let bucket = chunk * (AT_A_TIME / WAYS) + index;
                        self.remove(&mut inner, (bucket * PLACES + way) as u32);
                    }
                }
            }
        }
    }

    /// Adds a static entry, replacing any other for the address. Returns false when the table is
    /// full of static entries.
    pub fn add_static(&self, mac: Mac, vlan: u16, port: u32) -> bool {
        let mut inner = self.lock();
        let key = key_of(mac, vlan);
        if let Some(at) = self.search(key) {
            self.remove(&mut inner, at);
        }
        self.insert(
            &mut inner,
            key,
            Seen {
                port,
                fixed: true,
                second: 0,
            },
        )
    }

    /// Removes one entry, static or learned; returns false when there is none.
    pub fn delete(&self, mac: Mac, vlan: u16) -> bool {
        let mut inner = self.lock();
        let Some(at) = self.search(key_of(mac, vlan)) else {
            return false;
        };
        self.remove(&mut inner, at);
        true
    }

    /// Returns all entries, the longest silent first, static ones before them. Takes no lock, so
    /// concurrent changes may or may not be included.
    pub fn entries(&self, second: u32) -> Vec<MacEntry> {
        let mut all: Vec<MacEntry> = self
            .known()
            .map(|(key, seen)| {
                let (mac, vlan) = parts_of(key);
                let age = (!seen.fixed).then(|| second.saturating_sub(seen.second));
                MacEntry {
                    port: seen.port,
                    vlan,
                    mac,
                    age,
                }
            })
            .collect();
        all.sort_by_key(|entry| {
            let age = entry.age.unwrap_or(u32::MAX);
            (std::cmp::Reverse(age), entry.vlan, entry.mac)
        });
        all
    }

    /// Iterates over all entries without a lock: an entry that is reused while it is read is left
    /// out.
    fn known(&self) -> impl Iterator<Item = (u64, Seen)> {
        let entries = self.buckets.iter().flat_map(|bucket| &bucket.entries);
        entries.filter_map(|entry| {
            let key = entry.key.load(Ordering::Acquire);
            let seen = Seen::unpack(entry.seen.load(Ordering::Acquire));
            (key != 0 && entry.key.load(Ordering::Relaxed) == key).then_some((key, seen))
        })
    }

    /// Returns the counts.
    pub fn stats(&self) -> MacStats {
        let (current, fixed) = {
            let inner = self.lock();
            (inner.count, inner.fixed)
        };
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        MacStats {
            current,
            maximum: self.size,
            fixed,
            learned: get(&self.counts.learned),
            expired: get(&self.counts.expired),
            evicted: get(&self.counts.evicted),
            moved: get(&self.counts.moved),
            refused: get(&self.counts.refused),
        }
    }

    /// Sets the counts (not the entries) to zero.
    pub fn clear_stats(&self) {
        let counts = &self.counts;
        for count in [
            &counts.learned,
            &counts.expired,
            &counts.evicted,
            &counts.moved,
            &counts.refused,
        ] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Returns a table of another size with the same counts and as many of the entries as fit, the
    /// latest first.
    pub fn resized(&self, size: usize) -> MacTable {
        let new = MacTable::new(size);
        for (from, to) in [
            (&self.counts.learned, &new.counts.learned),
            (&self.counts.expired, &new.counts.expired),
            (&self.counts.evicted, &new.counts.evicted),
            (&self.counts.moved, &new.counts.moved),
            (&self.counts.refused, &new.counts.refused),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let mut all: Vec<(u64, Seen)> = self.known().collect();
        // Static entries first, so that they stay; then from the longest silent to the latest, so
        // that lists are in order.
        all.sort_by_key(|(_, seen)| (!seen.fixed, seen.second));
        let room = new.size;
        let fixed = all.iter().filter(|(_, seen)| seen.fixed).count().min(room);
        let skipped = all.len().saturating_sub(room);
        let mut inner = new.lock();
        for (index, (key, seen)) in all.into_iter().enumerate() {
            let kept = if seen.fixed {
                index < room
            } else {
                index >= fixed + skipped
            };
            if kept {
                new.insert(&mut inner, key, seen);
            }
        }
        drop(inner);
        new
    }
}

impl Inner {
    /// Appends an entry to its port's list, as the newest.
    fn link(&mut self, port: u32, at: u32) {
        let list = self.ports.entry(port).or_insert(PortList {
            oldest: NONE,
            newest: NONE,
            count: 0,
        });
        self.links[at as usize] = Link {
            older: list.newest,
            newer: NONE,
        };
        match list.newest {
            NONE => list.oldest = at,
            newest => self.links[newest as usize].newer = at,
        }
        list.newest = at;
        self.usage.remove(&(list.count, port));
        list.count += 1;
        self.usage.insert((list.count, port));
    }

    /// Moves an entry to the newest end of its list.
    fn renew(&mut self, port: u32, at: u32) {
        let Some(list) = self.ports.get_mut(&port) else {
            return;
        };
        let Link { older, newer } = self.links[at as usize];
        if newer == NONE {
            return; // already there
        }
        match older {
            NONE => list.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        self.links[newer as usize].older = older;
        self.links[list.newest as usize].newer = at;
        self.links[at as usize] = Link {
            older: list.newest,
            newer: NONE,
        };
        list.newest = at;
    }

    /// Removes an entry from its port's list.
    fn unlink(&mut self, port: u32, at: u32) {
        let Some(list) = self.ports.get_mut(&port) else {
            return;
        };
        let Link { older, newer } = self.links[at as usize];
        match older {
            NONE => list.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => list.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.usage.remove(&(list.count, port));
        list.count -= 1;
        if list.count == 0 {
            self.ports.remove(&port);
        } else {
            self.usage.insert((list.count, port));
        }
    }
}

#[cfg(test)]
mod tests;
