//! Connections that are expected because another one has announced them.

use crate::key::{Address, Key, Secret, to_ip};
use crate::nat::{Direction, Nat, Range};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most connections that are expected at a time, over all zones.
pub(crate) const LIMIT: usize = 65_536;
/// Most that are expected at a time in one zone, so that no zone keeps others out.
pub(crate) const ZONE_LIMIT: u32 = LIMIT as u32 / 8;
/// Expired ones that are removed for a new one where there are too many.
const REMOVED: usize = 16;
/// How long one is expected, in milliseconds, as in Linux. Begins anew with each connection.
pub(crate) const TIMEOUT_MS: u64 = 300_000;

/// Entries of the filter, which spares new connections the lock.
const SLOTS: usize = 4096;

/// What is known of an expected connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    /// Which end of its packets is translated, if it is committed with `nat`, and to what. The port
    /// of the source stays.
    pub direction: Direction,
    pub address: Address,
    pub port: u16,
    pub mark: u32,
    pub label: u128,
    /// The connection that has announced it.
    pub parent: Key,
}

impl Expected {
    /// Returns the translation, as a `ct` action would ask for it.
    pub fn nat(&self) -> Nat {
        let address = to_ip(self.address, self.parent.v6);
        Nat {
            direction: Some(self.direction),
            range: Some(Range {
                min: address,
                max: address,
                ports: match self.direction {
                    Direction::Source => None,
                    Direction::Destination => Some((self.port, self.port)),
                },
            }),
            ..Nat::default()
        }
    }

    /// Whether it is led to the same place.
    pub fn leads_like(&self, other: &Expected) -> bool {
        (self.direction, self.address, self.port) == (other.direction, other.address, other.port)
    }
}

#[derive(Debug)]
struct Entry {
    expected: Expected,
    /// Number of the connection that has announced it.
    by: u64,
    expires: u64,
    serial: u64,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// Keys by the time of their end.
    ends: BTreeMap<(u64, u64), Key>,
    /// How many there are by zone, where there are any.
    zones: HashMap<u16, u32>,
    serial: u64,
}

impl Table {
    fn remove(&mut self, key: &Key) -> bool {
        let Some(entry) = self.entries.remove(key) else {
            return false;
        };
        self.ends.remove(&(entry.expires, entry.serial));
        let count = self.in_zone(key.zone).saturating_sub(1);
        match count {
            0 => self.zones.remove(&key.zone),
            _ => self.zones.insert(key.zone, count),
        };
        true
    }

    fn in_zone(&self, zone: u16) -> u32 {
        self.zones.get(&zone).copied().unwrap_or(0)
    }

    /// Whether no more are expected in a zone.
    fn is_full(&self, zone: u16) -> bool {
        self.entries.len() >= LIMIT || self.in_zone(zone) >= ZONE_LIMIT
    }

    fn renew(&mut self, key: &Key, now_ms: u64) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        self.ends.remove(&(entry.expires, entry.serial));
        entry.expires = now_ms.saturating_add(TIMEOUT_MS);
        self.ends.insert((entry.expires, entry.serial), *key);
    }
}

/// Why a connection is not expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// There are too many, in all or in the zone.
    Full,
    /// Another connection has announced the same, and leads it elsewhere.
    Taken,
}

/// The connections that are expected. Its lock is taken last: who holds it takes no other.
#[derive(Debug)]
pub(crate) struct Expectations {
    table: Mutex<Table>,
    /// How many there are whose hash is so, and in all.
    slots: Box<[AtomicU32; SLOTS]>,
    all: AtomicU32,
    /// The number of the next connection that announces others.
    number: AtomicU64,
}

/// The key of whatever connection goes to one place from one address.
pub(crate) fn from_any_port(key: &Key) -> Key {
    Key {
        ports: [0, key.ports[1]],
        ..*key
    }
}

impl Expectations {
    pub fn new() -> Expectations {
        Expectations {
            table: Mutex::default(),
            slots: Box::new([const { AtomicU32::new(0) }; SLOTS]),
            all: AtomicU32::new(0),
            number: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No step of a change leaves a table such that using it panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more.
    fn add(&self, secret: Secret, key: &Key) {
        self.slot(secret, key).fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less.
    fn subtract(&self, secret: Secret, key: &Key) {
        self.slot(secret, key).fetch_sub(1, Ordering::Relaxed);
        self.all.fetch_sub(1, Ordering::Relaxed);
    }

    fn slot(&self, secret: Secret, key: &Key) -> &AtomicU32 {
        &self.slots[secret.hash(key) as usize % SLOTS]
    }

    /// Returns a number for a connection that may announce others.
    pub fn number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Finds what is known of a connection with this tuple. If it is to `begin`, others of the kind
    /// are expected for the whole time again.
    pub fn find(&self, secret: Secret, key: &Key, now_ms: u64, begin: bool) -> Option<Expected> {
        if self.all.load(Ordering::Relaxed) == 0 || !key.has_ports() {
            return None;
        }
        let key = from_any_port(key);
        if self.slot(secret, &key).load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut table = self.lock();
        let entry = table.entries.get(&key)?;
        if entry.expires <= now_ms {
            return None;
        }
        let expected = entry.expected;
        if begin {
            table.renew(&key, now_ms);
        }
        Some(expected)
    }

    /// Expects connections with a tuple, whose source port is 0, on behalf of the connection with
    /// the number `by`. One that leads to the same place is replaced.
    pub fn insert(
        &self,
        secret: Secret,
        key: Key,
        expected: Expected,
        by: u64,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let mut table = self.lock();
        match table.entries.get(&key) {
            Some(entry)
                if entry.by != by
                    && entry.expires > now_ms
                    && !entry.expected.leads_like(&expected) =>
            {
                return Err(Refusal::Taken);
            }
            Some(_) => {
                table.remove(&key);
            }
            None => {
                if table.is_full(key.zone) {
                    self.remove_expired(secret, &mut table, now_ms, REMOVED);
                }
                if table.is_full(key.zone) {
                    return Err(Refusal::Full);
                }
                self.add(secret, &key);
            }
        }
        table.serial += 1;
        let entry = Entry {
            expected,
            by,
            expires: now_ms.saturating_add(TIMEOUT_MS),
            serial: table.serial,
        };
        table.ends.insert((entry.expires, entry.serial), key);
        table.entries.insert(key, entry);
        *table.zones.entry(key.zone).or_default() += 1;
        Ok(())
    }

    /// Whether the connection with the number `by` still has this one expected.
    pub fn has(&self, key: &Key, by: u64, now_ms: u64) -> bool {
        let table = self.lock();
        let entry = table.entries.get(key);
        entry.is_some_and(|entry| entry.by == by && entry.expires > now_ms)
    }

    /// No longer expects what the connection with the number `by` has announced.
    pub fn remove(&self, secret: Secret, key: &Key, by: u64) {
        let mut table = self.lock();
        if table.entries.get(key).is_some_and(|entry| entry.by == by) && table.remove(key) {
            self.subtract(secret, key);
        }
    }

    fn remove_expired(&self, secret: Secret, table: &mut Table, now_ms: u64, most: usize) {
        for _ in 0..most {
            let Some((&(expires, _), key)) = table.ends.first_key_value() else {
                return;
            };
            if expires > now_ms {
                return;
            }
            let key = *key;
            table.remove(&key);
            self.subtract(secret, &key);
        }
    }

    /// Removes what is no longer expected, `most` at most.
    pub fn expire(&self, secret: Secret, now_ms: u64, most: usize) {
        self.remove_expired(secret, &mut self.lock(), now_ms, most);
    }
}
