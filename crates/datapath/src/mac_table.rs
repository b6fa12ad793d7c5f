//! The learning table of one bridge: which port an address was last seen on, in each VLAN.
//!
//! Workers look up without a lock: the table is an arena of nodes in hash chains made of atomics, and a version number around every structural change
//! (a sequence lock) tells a reader that it must look again. Learning a new address, moving one, and refreshing one (at most once a second) take
//! a short lock.
//!
//! Rules are those of Open vSwitch's `mac-learning.c`: multicast sources are not learned; a full table evicts the address that has been
//! silent longest on the port that has most; static entries neither age nor move nor go. Open vSwitch's lock after a gratuitous ARP guards members of
//! bonds against their own reflection; there are no bonds here, so nothing needs it.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Fewest entries a table can be told to hold.
pub const SIZE_MIN: usize = 10;
/// Entries a table holds unless told otherwise.
pub const SIZE_DEFAULT: usize = 8192;
/// Most entries a table can be told to hold.
pub const SIZE_MAX: usize = 1 << 20;

const NONE: u32 = u32::MAX;
/// How often a reader looks again before it takes the lock.
const RETRIES: usize = 8;
/// Entries removed under one lock.
const AT_A_TIME: usize = 64;
/// A bit that every key has, so that no key is zero.
const VALID: u64 = 1 << 60;

#[inline(always)]
fn key_of(mac: Mac, vlan: u16) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | u64::from(vlan & 0xfff) << 48 | VALID
}

fn parts_of(key: u64) -> (Mac, u16) {
    let [_, _, a, b, c, d, e, f] = key.to_be_bytes();
    ([a, b, c, d, e, f], (key >> 48) as u16 & 0xfff)
}

/// What a table knows about an address, packed into one word: port, whether static, second of last use.
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

struct Node {
    key: AtomicU64,
    seen: AtomicU64,
    next: AtomicU32,
}

/// A node's place in its port's list, oldest first.
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

struct Inner {
    free: Vec<u32>,
    links: Vec<Link>,
    /// Addresses that were learned, by port; static ones are in no list.
    ports: HashMap<u32, PortList>,
    /// (count, port), to find the port with most.
    usage: BTreeSet<(u32, u32)>,
    count: usize,
    fixed: usize,
}

/// Counts since the table was made or cleared, as `fdb/stats-show` prints them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MacStats {
    /// Entries now, static ones among them.
    pub current: usize,
    /// Entries at most.
    pub maximum: usize,
    /// Static entries now.
    pub fixed: usize,
    /// Addresses learned.
    pub learned: u64,
    /// Addresses that aged out.
    pub expired: u64,
    /// Addresses thrown out to make room.
    pub evicted: u64,
    /// Times that an address moved to another port.
    pub moved: u64,
    /// Addresses that could not be learned, as the table was full of static ones.
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
    heads: Box<[AtomicU32]>,
    nodes: Box<[Node]>,
    /// Odd while chains or nodes change.
    version: AtomicU64,
    inner: Mutex<Inner>,
    counts: Counts,
}

impl MacTable {
    /// An empty table of `size` entries, within [`SIZE_MIN`] and [`SIZE_MAX`].
    pub fn new(size: usize) -> MacTable {
        let size = size.clamp(SIZE_MIN, SIZE_MAX);
        let node = || Node {
            key: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            next: AtomicU32::new(NONE),
        };
        MacTable {
            seed: RandomState::new().hash_one(0_u8) | 1,
            heads: (0..size.next_power_of_two())
                .map(|_| AtomicU32::new(NONE))
                .collect(),
            nodes: (0..size).map(|_| node()).collect(),
            version: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                free: (0..size as u32).rev().collect(),
                links: vec![
                    Link {
                        older: NONE,
                        newer: NONE
                    };
                    size
                ],
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

    /// Where a key's chain begins. The seed is secret, so nobody outside can choose addresses that share a chain.
    #[inline(always)]
    fn head(&self, key: u64) -> &AtomicU32 {
        let mixed = u128::from(key ^ self.seed) * u128::from(self.seed ^ 0x9e37_79b9_7f4a_7c15);
        let hash = (mixed >> 64) as u64 ^ mixed as u64;
        &self.heads[hash as usize & (self.heads.len() - 1)]
    }

    #[inline(always)]
    fn search(&self, key: u64) -> Option<u32> {
        let mut at = self.head(key).load(Ordering::Relaxed);
        // A chain that changes under a reader may lead it astray, but no further than this.
        for _ in 0..self.nodes.len() {
            let node = self.nodes.get(at as usize)?;
            if node.key.load(Ordering::Relaxed) == key {
                return Some(at);
            }
            at = node.next.load(Ordering::Relaxed);
        }
        None
    }

    #[inline(always)]
    fn find(&self, key: u64) -> Option<Seen> {
        let seen = |at: u32| Seen::unpack(self.nodes[at as usize].seen.load(Ordering::Relaxed));
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

    /// The port that an address was last seen on.
    #[inline]
    pub fn lookup(&self, mac: Mac, vlan: u16) -> Option<u32> {
        self.find(key_of(mac, vlan)).map(|seen| seen.port)
    }

    /// Notes that `mac` was seen on `port` (a slot below 2^31) in second `second`.
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
        let mut inner = self.lock();
        if let Some(at) = self.search(key) {
            let seen = Seen::unpack(self.nodes[at as usize].seen.load(Ordering::Relaxed));
            if seen.fixed {
                return;
            }
            if seen.port != port {
                self.counts.moved.fetch_add(1, Ordering::Relaxed);
            }
            inner.unlink(seen.port, at);
            let second = second.max(seen.second);
            let seen = Seen {
                port,
                fixed: false,
                second,
            };
            self.nodes[at as usize]
                .seen
                .store(seen.pack(), Ordering::Relaxed);
            inner.link(port, at);
        } else if self.insert(
            &mut inner,
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

    /// Adds a node for a key that has none; false when there is no room.
    fn insert(&self, inner: &mut Inner, key: u64, seen: Seen) -> bool {
        if inner.free.is_empty() {
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
        let Some(at) = inner.free.pop() else {
            return false;
        };
        let node = &self.nodes[at as usize];
        let head = self.head(key);
        self.change(|| {
            node.key.store(key, Ordering::Relaxed);
            node.seen.store(seen.pack(), Ordering::Relaxed);
            node.next
                .store(head.load(Ordering::Relaxed), Ordering::Relaxed);
            head.store(at, Ordering::Relaxed);
        });
        inner.count += 1;
        if seen.fixed {
            inner.fixed += 1;
        } else {
            inner.link(seen.port, at);
        }
        true
    }

    /// Takes a node out. The caller holds the lock.
    fn remove(&self, inner: &mut Inner, at: u32) {
        let node = &self.nodes[at as usize];
        let key = node.key.load(Ordering::Relaxed);
        let seen = Seen::unpack(node.seen.load(Ordering::Relaxed));
        if seen.fixed {
            inner.fixed -= 1;
        } else {
            inner.unlink(seen.port, at);
        }
        self.change(|| {
            let mut place = self.head(key);
            while place.load(Ordering::Relaxed) != at {
                place = &self.nodes[place.load(Ordering::Relaxed) as usize].next;
            }
            place.store(node.next.load(Ordering::Relaxed), Ordering::Relaxed);
            node.key.store(0, Ordering::Relaxed);
        });
        inner.free.push(at);
        inner.count -= 1;
    }

    /// Runs a structural change, so that readers notice. The caller holds the lock.
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

    /// As many of one port's as are removed under one lock, so that workers do not wait long for it.
    fn expire_some(&self, port: u32, second: u32, aging: u32) -> usize {
        let mut inner = self.lock();
        for removed in 0..AT_A_TIME {
            let Some(oldest) = inner.ports.get(&port).map(|list| list.oldest) else {
                return removed;
            };
            let seen = Seen::unpack(self.nodes[oldest as usize].seen.load(Ordering::Relaxed));
            if second.saturating_sub(seen.second) < aging {
                return removed;
            }
            self.remove(&mut inner, oldest);
        }
        AT_A_TIME
    }

    /// Removes all learned addresses, of one port or of all; static ones stay unless `fixed`.
    pub fn flush(&self, port: Option<u32>, fixed: bool) {
        for (chunk, nodes) in self.nodes.chunks(AT_A_TIME).enumerate() {
            let mut inner = self.lock();
            for (index, node) in nodes.iter().enumerate() {
                let seen = Seen::unpack(node.seen.load(Ordering::Relaxed));
                let used = node.key.load(Ordering::Relaxed) != 0;
                if used && port.is_none_or(|port| port == seen.port) && (fixed || !seen.fixed) {
                    self.remove(&mut inner, (chunk * AT_A_TIME + index) as u32);
                }
            }
        }
    }

    /// Adds a static entry in place of whatever was known. False when the table is full of static entries.
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

    /// Removes one entry, static or learned; false when there is none.
    pub fn delete(&self, mac: Mac, vlan: u16) -> bool {
        let mut inner = self.lock();
        let Some(at) = self.search(key_of(mac, vlan)) else {
            return false;
        };
        self.remove(&mut inner, at);
        true
    }

    /// All entries, the longest silent first, static ones before them. Takes no lock: what changes meanwhile is there or not.
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

    /// Every node that is in use, read without a lock: a node that changed hands while it was read is left out.
    fn known(&self) -> impl Iterator<Item = (u64, Seen)> {
        self.nodes.iter().filter_map(|node| {
            let key = node.key.load(Ordering::Acquire);
            let seen = Seen::unpack(node.seen.load(Ordering::Acquire));
            (key != 0 && node.key.load(Ordering::Relaxed) == key).then_some((key, seen))
        })
    }

    /// Counts.
    pub fn stats(&self) -> MacStats {
        let (current, fixed) = {
            let inner = self.lock();
            (inner.count, inner.fixed)
        };
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        MacStats {
            current,
            maximum: self.nodes.len(),
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

    /// A table of another size with the same counts and as many of the entries as fit, the latest first.
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
        // Static ones first, so that they stay; then from the longest silent to the latest, so that lists are in order.
        all.sort_by_key(|(_, seen)| (!seen.fixed, seen.second));
        let room = new.nodes.len();
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
    /// Puts a node at the young end of its port's list.
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

    /// Takes a node out of its port's list.
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
