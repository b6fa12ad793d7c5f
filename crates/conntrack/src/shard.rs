//! A part of the table: connections by hash, what is due when, and which are half-open.
//!
//! The hash is the same for both directions of an untranslated connection, which therefore has one
//! entry in one shard. The replies of a translated connection have another hash: in the shard of
//! that hash lies a [`Stub`], which says where the connection is.

use crate::connection::{Conn, Links, Protocol};
use crate::established::{Established, Hashes, NO_LINE, zeroed};
use crate::key::Key;
use crate::slab::{NONE, Slab};
use crate::timeouts::Policies;
use crate::tracker::{SHARDS, ZONES};
use hashbrown::HashTable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a connection is. The serial number tells it from others that had the same index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    pub shard: u16,
    pub index: u32,
    pub serial: u32,
}

/// Says where the connection is that has these replies.
#[derive(Clone, Copy, Debug)]
struct Stub {
    reply: Key,
    home: Home,
}

/// Marks indices of stubs.
const STUB: u32 = 1 << 31;

/// An entry of the hash table. The hash is kept, so that growing reads nothing else.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    index: u32,
}

/// What a key belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// A connection of this shard, and whether the key is that of replies.
    Here(u32, bool),
    /// Replies of a connection that may be in another shard.
    Elsewhere(Home),
}

/// Milliseconds in a tick of the wheel, as a power of two.
const TICK_SHIFT: u32 = 10;
/// Ticks of the wheel. Connections that end later are examined now and then until they do.
const TICKS: u32 = 128;

fn tick_of(ms: u64) -> u32 {
    (ms >> TICK_SHIFT).min(u64::from(u32::MAX - TICKS)) as u32
}

fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// First and last of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

impl Ends {
    const NONE: Ends = Ends {
        first: NONE,
        last: NONE,
    };

    /// Adds a connection at the end.
    fn append(&mut self, conns: &mut Slab<Conn>, index: u32, links: fn(&mut Conn) -> &mut Links) {
        let before = self.last;
        if let Some(conn) = conns.get_mut(index) {
            let after = NONE;
            *links(conn) = Links { before, after };
        }
        match conns.get_mut(before) {
            Some(last) => links(last).after = index,
            None => self.first = index,
        }
        self.last = index;
    }

    /// Takes a connection out, wherever it is.
    fn unlink(&mut self, conns: &mut Slab<Conn>, index: u32, links: fn(&mut Conn) -> &mut Links) {
        let Some(&mut Links { before, after }) = conns.get_mut(index).map(links) else {
            return;
        };
        match conns.get_mut(before) {
            Some(conn) => links(conn).after = after,
            None => self.first = after,
        }
        match conns.get_mut(after) {
            Some(conn) => links(conn).before = before,
            None => self.last = before,
        }
    }
}

/// The half-open connections of a zone, in the order in which they began.
#[derive(Debug)]
struct OfZone {
    zone: u16,
    ends: Ends,
}

impl OfZone {
    fn hash(zone: u16) -> u64 {
        spread(zone.into())
    }
}

/// A bit for each shard.
type ShardSet = [AtomicU64; SHARDS / 64];

/// Which shards have half-open connections, or have had some: any, and of each zone. Written under
/// the shard's lock.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    all: ShardSet,
    /// Zeroed memory, of which only what is used takes room.
    zones: Box<[ShardSet]>,
}

impl HalfOpen {
    pub fn new() -> HalfOpen {
        HalfOpen {
            all: ShardSet::default(),
            zones: zeroed(ZONES),
        }
    }

    fn set_of(&self, zone: Option<u16>) -> Option<&ShardSet> {
        match zone {
            Some(zone) => self.zones.get(usize::from(zone)),
            None => Some(&self.all),
        }
    }

    fn set(&self, shard: u16, zone: Option<u16>) {
        let Some(set) = self.set_of(zone) else {
            return;
        };
        let (word, bit) = (&set[usize::from(shard) / 64], 1 << (shard % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Notes that a shard has none any more, of a zone or at all. Only who looks for one does:
    /// handshakes come and go, and workers would wait for each other here.
    pub fn clear(&self, shard: usize, zone: Option<u16>) {
        if let Some(set) = self.set_of(zone) {
            set[shard / 64].fetch_and(!(1 << (shard % 64)), Ordering::Relaxed);
        }
    }

    /// Returns the shards that have some, or have had, of a zone or at all, from one on.
    pub fn from(&self, start: usize, zone: Option<u16>) -> impl Iterator<Item = usize> {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let set = self.set_of(zone);
        // Most often a zone that is full of established connections has none.
        let set = set.filter(|set| set.iter().any(|word| load(word) != 0));
        let numbers = (0..SHARDS).map(move |step| (start % SHARDS + step) % SHARDS);
        set.into_iter().flat_map(move |set| {
            let numbers = numbers.clone();
            numbers.filter(move |number| load(&set[number / 64]) >> (number % 64) & 1 == 1)
        })
    }
}

#[derive(Debug)]
pub(crate) struct Shard {
    number: u16,
    table: HashTable<Entry>,
    pub conns: Slab<Conn>,
    stubs: Slab<Stub>,
    serial: u32,
    /// By tick modulo [`TICKS`], the first connection that is to be examined then.
    wheel: Box<[u32; TICKS as usize]>,
    /// The last tick whose connections were all examined.
    done: u32,
    /// In the order in which they began.
    half_open: Ends,
    /// The same ones by zone; only of zones that have some.
    half_open_of_zones: HashTable<OfZone>,
    /// The shards that have half-open connections, or have had some.
    half_open_shards: Arc<HalfOpen>,
    pub policies: Arc<Policies>,
    established: Arc<Established>,
    /// Lines that are no connection's.
    lines: Vec<u32>,
}

/// A connection that was removed, and what is left to do.
#[derive(Debug)]
pub(crate) struct Removed {
    pub conn: Conn,
    /// Where it was, if its stub is still to be removed.
    pub stub: Option<Home>,
}

impl Shard {
    pub fn new(
        number: u16,
        policies: Arc<Policies>,
        half_open: Arc<HalfOpen>,
        established: Arc<Established>,
    ) -> Shard {
        Shard {
            number,
            table: HashTable::new(),
            conns: Slab::new(),
            stubs: Slab::new(),
            serial: 0,
            wheel: Box::new([NONE; TICKS as usize]),
            done: 0,
            half_open: Ends::NONE,
            half_open_of_zones: HashTable::new(),
            half_open_shards: half_open,
            policies,
            established,
            lines: Vec::new(),
        }
    }

    /// Finds what a key belongs to, whether or not it has expired.
    pub fn find(&self, hash: u32, key: &Key) -> Option<Found> {
        let mut found = None;
        self.table.find(spread(hash), |entry| {
            if entry.hash != hash {
                return false;
            }
            found = if entry.index & STUB != 0 {
                let stub = self.stubs.get(entry.index & !STUB);
                stub.filter(|stub| stub.reply == *key)
                    .map(|stub| Found::Elsewhere(stub.home))
            } else {
                self.conns.get(entry.index).and_then(|conn| {
                    if conn.original == *key {
                        Some(Found::Here(entry.index, false))
                    } else if conn.reply == *key && !conn.translated() {
                        Some(Found::Here(entry.index, true))
                    } else {
                        None
                    }
                })
            };
            found.is_some()
        });
        found
    }

    /// Returns the connection at `home`, which is in this shard, if it is still there.
    pub fn at(&self, home: Home) -> Option<&Conn> {
        let conn = self.conns.get(home.index);
        conn.filter(|conn| conn.serial == home.serial)
    }

    fn insert_entry(&mut self, hash: u32, index: u32) {
        let entry = Entry { hash, index };
        self.table
            .insert_unique(spread(hash), entry, |entry| spread(entry.hash));
    }

    fn remove_entry(&mut self, hash: u32, index: u32) {
        if let Ok(entry) = self
            .table
            .find_entry(spread(hash), |entry| entry.index == index)
        {
            entry.remove();
        }
    }

    /// Adds a connection, whose tuples must be free.
    pub fn insert(&mut self, hash: u32, mut conn: Conn, now_ms: u64) -> Home {
        if self.conns.len() == 0 {
            self.done = tick_of(now_ms);
        }
        self.serial = self.serial.wrapping_add(1);
        conn.serial = self.serial;
        let serial = conn.serial;
        conn.half_open = false;
        let half_open = conn.is_half_open();
        let index = self.conns.insert(conn);
        self.insert_entry(hash, index);
        self.schedule(index);
        if half_open {
            self.push_half_open(index);
        }
        Home {
            shard: self.number,
            index,
            serial,
        }
    }

    /// Adds the stub of a connection.
    pub fn insert_stub(&mut self, hash: u32, reply: Key, home: Home) {
        let index = self.stubs.insert(Stub { reply, home });
        self.insert_entry(hash, index | STUB);
    }

    /// Removes the stub of a connection, if it is still there.
    pub fn remove_stub(&mut self, hash: u32, home: Home) {
        let stubs = &self.stubs;
        let entry = self.table.find_entry(spread(hash), |entry| {
            entry.index & STUB != 0
                && stubs
                    .get(entry.index & !STUB)
                    .is_some_and(|stub| stub.home == home)
        });
        if let Ok(entry) = entry {
            let (entry, _) = entry.remove();
            self.stubs.remove(entry.index & !STUB);
        }
    }

    /// Removes a connection.
    pub fn remove(&mut self, hashes: Hashes, index: u32) -> Option<Removed> {
        self.unschedule(index);
        self.drop_half_open(index);
        let conn = self.conns.remove(index)?;
        self.remove_entry(hashes.original as u32, index);
        self.retire(hashes, conn.line);
        let stub = conn.translated().then_some(Home {
            shard: self.number,
            index,
            serial: conn.serial,
        });
        Some(Removed { conn, stub })
    }

    /// Returns when a connection ends.
    pub fn expires(&self, conn: &Conn) -> u64 {
        match conn.line {
            NO_LINE => conn.expires,
            line => self.established.expires(line).unwrap_or(conn.expires),
        }
    }

    /// Takes a TCP connection's numbers back from its line, to be moved on under the lock.
    pub fn take_back(&mut self, index: u32) {
        if let Some(conn) = self.conns.get_mut(index)
            && conn.line != NO_LINE
            && let Protocol::Tcp(sides) = &mut conn.protocol
            && let Some(taken) = self.established.withdraw(conn.line)
        {
            *sides = taken;
        }
    }

    /// Gives a connection a line if packets may go by it, or takes the one it has if they may not.
    pub fn publish(&mut self, hashes: Hashes, index: u32) {
        let changes = self.established.policies();
        let expires = self.conns.get(index).map(|conn| self.expires(conn));
        let (Some(conn), Some(expires)) = (self.conns.get_mut(index), expires) else {
            return;
        };
        conn.expires = expires;
        let Some(content) = conn.content(&self.policies, changes) else {
            let line = std::mem::replace(&mut conn.line, NO_LINE);
            return self.retire(hashes, line);
        };
        if conn.line == NO_LINE {
            if self.lines.is_empty() {
                self.lines
                    .extend(self.established.take().into_iter().flatten());
            }
            match self.lines.pop() {
                Some(line) => conn.line = line,
                None => return,
            }
            self.established.begin(hashes);
        }
        let sides = match &conn.protocol {
            Protocol::Tcp(sides) => Some(sides),
            _ => None,
        };
        let line = conn.line;
        if !(self.established).publish(hashes, line, &content, expires, sides) {
            conn.line = NO_LINE;
            self.retire(hashes, line);
        }
    }

    fn retire(&mut self, hashes: Hashes, line: u32) {
        if line != NO_LINE {
            self.established.retire(hashes, line);
            self.lines.push(line);
        }
    }

    /// Sets when a connection ends.
    pub fn set_expiry(&mut self, index: u32, expires: u64) {
        let Some(conn) = self.conns.get_mut(index) else {
            return;
        };
        conn.expires = expires;
        if conn.line != NO_LINE {
            self.established.set_expires(conn.line, expires);
        }
        // A later end is found out when the tick comes; this spares most packets the lists.
        if tick_of(expires) + 1 < conn.tick {
            self.unschedule(index);
            self.schedule(index);
        }
    }

    /// Takes note of a connection's state after a packet.
    pub fn settle(&mut self, index: u32) {
        let still = match self.conns.get(index) {
            Some(conn) if conn.half_open => conn.is_half_open(),
            _ => return,
        };
        if !still {
            self.drop_half_open(index);
        }
    }

    fn schedule(&mut self, index: u32) {
        let done = self.done;
        let expires = self.conns.get(index).map(|conn| self.expires(conn));
        let (Some(conn), Some(expires)) = (self.conns.get_mut(index), expires) else {
            return;
        };
        conn.expires = expires;
        // One tick later than the end: then it has passed for certain.
        conn.tick = (tick_of(conn.expires) + 1).clamp(done + 1, done + TICKS - 1);
        let place = (conn.tick % TICKS) as usize;
        let after = self.wheel[place];
        conn.due = Links {
            before: NONE,
            after,
        };
        if let Some(next) = self.conns.get_mut(after) {
            next.due.before = index;
        }
        self.wheel[place] = index;
    }

    fn unschedule(&mut self, index: u32) {
        let Some(conn) = self.conns.get(index) else {
            return;
        };
        let (links, place) = (conn.due, (conn.tick % TICKS) as usize);
        match self.conns.get_mut(links.before) {
            Some(before) => before.due.after = links.after,
            None => self.wheel[place] = links.after,
        }
        if let Some(after) = self.conns.get_mut(links.after) {
            after.due.before = links.before;
        }
    }

    fn push_half_open(&mut self, index: u32) {
        let Some(conn) = self.conns.get_mut(index) else {
            return;
        };
        conn.half_open = true;
        let zone = conn.original.zone;
        if self.half_open.first == NONE {
            self.half_open_shards.set(self.number, None);
        }
        (self.half_open).append(&mut self.conns, index, |conn| &mut conn.half);
        let is_zone = |list: &OfZone| list.zone == zone;
        let hash = |list: &OfZone| OfZone::hash(list.zone);
        let lists = &mut self.half_open_of_zones;
        let list = lists.entry(OfZone::hash(zone), is_zone, hash);
        let ends = Ends::NONE;
        let list = list.or_insert(OfZone { zone, ends }).into_mut();
        if list.ends.first == NONE {
            self.half_open_shards.set(self.number, Some(zone));
        }
        (list.ends).append(&mut self.conns, index, |conn| &mut conn.half_of_zone);
    }

    fn drop_half_open(&mut self, index: u32) {
        let Some(conn) = self.conns.get_mut(index) else {
            return;
        };
        if !conn.half_open {
            return;
        }
        conn.half_open = false;
        let zone = conn.original.zone;
        (self.half_open).unlink(&mut self.conns, index, |conn| &mut conn.half);
        let is_zone = |list: &OfZone| list.zone == zone;
        let lists = &mut self.half_open_of_zones;
        let Ok(mut list) = lists.find_entry(OfZone::hash(zone), is_zone) else {
            return;
        };
        let ends = &mut list.get_mut().ends;
        ends.unlink(&mut self.conns, index, |conn| &mut conn.half_of_zone);
        if ends.first == NONE {
            list.remove();
        }
    }

    /// Returns the half-open connection that began first, of a zone or of all.
    pub fn oldest_half_open(&self, zone: Option<u16>) -> Option<u32> {
        let ends = match zone {
            None => self.half_open,
            Some(zone) => {
                let lists = &self.half_open_of_zones;
                lists
                    .find(OfZone::hash(zone), |list| list.zone == zone)?
                    .ends
            }
        };
        (ends.first != NONE).then_some(ends.first)
    }

    /// Returns a connection that has expired, or None if there is none that is due. Each
    /// connection or tick that is examined takes one from `budget`; None also if it is spent.
    pub fn next_expired(&mut self, now_ms: u64, budget: &mut usize) -> Option<u32> {
        let now = tick_of(now_ms);
        if self.conns.len() == 0 {
            self.done = self.done.max(now);
        }
        while self.done < now && *budget > 0 {
            *budget -= 1;
            let index = self.wheel[((self.done + 1) % TICKS) as usize];
            let Some(conn) = self.conns.get(index) else {
                self.done += 1;
                continue;
            };
            if self.expires(conn) <= now_ms {
                return Some(index);
            }
            self.unschedule(index);
            self.schedule_later(index);
        }
        None
    }

    /// Schedules a connection of the tick that is being examined, for a later one.
    fn schedule_later(&mut self, index: u32) {
        self.done += 1;
        self.schedule(index);
        self.done -= 1;
    }

    /// Whether all ticks up to now were examined.
    pub fn is_caught_up(&self, now_ms: u64) -> bool {
        self.done >= tick_of(now_ms)
    }
}
