//! Limits, timeouts, expiry, flushing and dumps. What concerns many connections is done in slices,
//! each of which holds a lock for a few connections only.

use crate::connection::{Conn, Protocol};
use crate::counters::{Counter, Counters};
use crate::extract::answer;
use crate::key::{Key, from_ip};
use crate::request::{Helper, Tuple};
use crate::shard::{Found, Shard};
use crate::tcp::TcpInfo;
use crate::timeouts::{Policies, Policy};
use crate::tracker::{SHARDS, Tracker, ZoneLimit, shard_of};
use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Connections that are looked at under one lock.
const STRIDE: u32 = 32;

/// Expected connections that are removed under one lock.
const EXPECTED: usize = 256;

/// Where a dump or flush continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    shard: usize,
    index: u32,
}

/// One direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Addresses and ports; ICMP: type and code.
    pub tuple: Tuple,
    /// The identifier of ICMP messages.
    pub icmp_id: Option<u16>,
}

/// What a dump shows of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The first packet's direction.
    pub original: Flow,
    /// Replies, as they come in.
    pub reply: Flow,
    /// Its zone.
    pub zone: u16,
    /// Its mark.
    pub mark: u32,
    /// Its label.
    pub label: u128,
    /// State of a TCP connection.
    pub tcp: Option<TcpInfo>,
    /// The application's protocol.
    pub helper: Option<Helper>,
    /// When it ends if nothing happens, in milliseconds.
    pub expires_ms: u64,
    /// The part of the table that holds it, below [`Tracker::BUCKETS`].
    pub bucket: usize,
}

/// Conditions on one direction; those that are None hold for every connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// Source address.
    pub source: Option<IpAddr>,
    /// Destination address.
    pub destination: Option<IpAddr>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source port (not of ICMP).
    pub source_port: Option<u16>,
    /// Destination port (not of ICMP).
    pub destination_port: Option<u16>,
    /// Identifier of ICMP messages.
    pub icmp_id: Option<u16>,
    /// Type of ICMP messages.
    pub icmp_type: Option<u8>,
    /// Code of ICMP messages.
    pub icmp_code: Option<u8>,
}

impl Part {
    /// Whether a direction meets all conditions.
    pub fn admits(&self, flow: &Flow) -> bool {
        fn meets<T: PartialEq>(wanted: Option<T>, value: T) -> bool {
            wanted.is_none_or(|wanted| wanted == value)
        }
        let tuple = &flow.tuple;
        let addresses = meets(self.source, tuple.source)
            && meets(self.destination, tuple.destination)
            && meets(self.protocol, tuple.protocol);
        let (source, destination) = (tuple.source_port, tuple.destination_port);
        addresses
            && match flow.icmp_id {
                Some(id) => {
                    meets(self.icmp_id, id)
                        && meets(self.icmp_type.map(u16::from), source)
                        && meets(self.icmp_code.map(u16::from), destination)
                        && self.source_port.is_none()
                        && self.destination_port.is_none()
                }
                None => {
                    meets(self.source_port, source)
                        && meets(self.destination_port, destination)
                        && self.icmp_id.is_none()
                        && self.icmp_type.is_none()
                        && self.icmp_code.is_none()
                }
            }
    }
}

/// Which connections are flushed: those that meet all conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// The zone; None is all.
    pub zone: Option<u16>,
    /// Conditions on the first packet's direction.
    pub original: Part,
    /// Conditions on the direction of replies, as they come in.
    pub reply: Part,
}

impl Filter {
    /// Whether a connection is meant.
    pub fn admits(&self, connection: &Connection) -> bool {
        self.zone.is_none_or(|zone| zone == connection.zone)
            && self.original.admits(&connection.original)
            && self.reply.admits(&connection.reply)
    }

    /// Returns the key of the only connection that may be admitted, if the zone and the whole tuple
    /// of its first packet are given. The other conditions are still to be checked.
    fn key(&self) -> Option<Key> {
        let part = &self.original;
        let (source, destination) = (part.source?, part.destination?);
        let v6 = source.is_ipv6();
        let mut key = Key {
            addresses: [from_ip(source), from_ip(destination)],
            zone: self.zone?,
            protocol: part.protocol?,
            v6,
            ..Key::default()
        };
        if destination.is_ipv6() != v6 {
            return None;
        }
        if key.is_icmp() {
            let kind = part.icmp_type?;
            key.ports = [part.icmp_id?; 2];
            key.kinds = [kind, answer(v6, kind)?];
        } else if key.has_ports() {
            key.ports = [part.source_port?, part.destination_port?];
        }
        Some(key)
    }
}

/// What a slice of a flush has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flushed {
    /// How many connections it has removed.
    pub removed: usize,
    /// Where to continue; None at the end.
    pub next: Option<Cursor>,
}

fn flow(key: &Key) -> Flow {
    Flow {
        tuple: key.tuple(),
        icmp_id: key.is_icmp().then_some(key.ports[0]),
    }
}

fn describe(conn: &Conn, expires_ms: u64, bucket: usize) -> Connection {
    Connection {
        original: flow(&conn.original),
        reply: flow(&conn.reply),
        zone: conn.original.zone,
        mark: conn.mark,
        label: conn.label(),
        tcp: match &conn.protocol {
            Protocol::Tcp([original, reply]) => Some(TcpInfo {
                original: original.info(),
                reply: reply.info(),
            }),
            _ => None,
        },
        helper: conn.helper,
        expires_ms,
        bucket,
    }
}

/// Returns the described connections with numbers from `index` on, at most [`STRIDE`] of them, and
/// the number to continue at; None at the end.
fn stride(shard: &Shard, bucket: usize, index: u32) -> (Vec<(u32, Connection)>, Option<u32>) {
    let conns = &shard.conns;
    let end = conns.end().min(index.saturating_add(STRIDE));
    let found = (index..end)
        .filter_map(|index| {
            let conn = conns.get(index)?;
            Some((index, describe(conn, shard.expires(conn), bucket)))
        })
        .collect();
    (found, (end < conns.end()).then_some(end))
}

impl Cursor {
    /// Returns the next place, given that of the next stride in the same shard.
    fn next(self, index: Option<u32>) -> Option<Cursor> {
        match index {
            Some(index) => Some(Cursor { index, ..self }),
            None if self.shard + 1 < SHARDS => Some(Cursor {
                shard: self.shard + 1,
                index: 0,
            }),
            None => None,
        }
    }
}

impl Tracker {
    /// Parts of the table, each with a lock of its own.
    pub const BUCKETS: usize = SHARDS;

    /// Removes connections that have expired, looking at `budget` of them at most; returns true if
    /// nothing more is due. Connections may stay up to two seconds longer, but no packet finds them
    /// any more.
    pub fn expire(&self, now_ms: u64, mut budget: usize) -> bool {
        // Shards go by ticks of about a second.
        if self.expired.load(Ordering::Relaxed) >> 10 >= now_ms >> 10 {
            return true;
        }
        (self.expectations).expire(self.secret, now_ms, EXPECTED);
        let start = self.expiring.load(Ordering::Relaxed);
        for step in 0..SHARDS {
            let number = (start + step) % SHARDS;
            loop {
                let mut shard = self.lock(number);
                // A packet may wait for the lock: it is let go after a few connections.
                let stride = budget.min(STRIDE as usize);
                let mut left = stride;
                let due = shard.next_expired(now_ms, &mut left);
                budget -= stride - left;
                let Some(index) = due else {
                    if shard.is_caught_up(now_ms) {
                        break;
                    }
                    if budget > 0 {
                        continue;
                    }
                    self.expiring.store(number, Ordering::Relaxed);
                    return false;
                };
                let removed = self.remove(&mut shard, index);
                drop(shard);
                self.finish(removed, Counter::Expired);
            }
        }
        self.expired.fetch_max(now_ms, Ordering::Relaxed);
        true
    }

    /// Removes the connections that a filter admits, from `cursor` on, looking at about `budget`
    /// of them. A filter that gives the zone and the whole tuple of a first packet is about one
    /// connection, which is looked up: then the first slice is the last.
    pub fn flush(&self, filter: &Filter, cursor: Cursor, budget: usize) -> Flushed {
        if let Some(key) = filter.key() {
            return Flushed {
                removed: usize::from(self.flush_one(filter, &key)),
                next: None,
            };
        }
        let (mut cursor, mut seen, mut count) = (cursor, 0, 0);
        while seen < budget.max(1) {
            let mut removed = Vec::new();
            let mut shard = self.lock(cursor.shard.min(SHARDS - 1));
            let (connections, next) = stride(&shard, cursor.shard, cursor.index);
            for (index, connection) in &connections {
                if filter.admits(connection) {
                    removed.push(self.remove(&mut shard, *index));
                }
            }
            drop(shard);
            for one in removed {
                count += usize::from(one.is_some());
                self.finish(one, Counter::Flushed);
            }
            seen += 1 + connections.len();
            match cursor.next(next) {
                Some(next) => cursor = next,
                None => {
                    return Flushed {
                        removed: count,
                        next: None,
                    };
                }
            }
        }
        Flushed {
            removed: count,
            next: Some(cursor),
        }
    }

    /// Removes the connection whose first packet had this key, if a filter admits it; returns
    /// whether it did.
    fn flush_one(&self, filter: &Filter, key: &Key) -> bool {
        let hash = self.secret.hash(key);
        let number = shard_of(hash);
        let mut shard = self.lock(number);
        let Some(Found::Here(index, false)) = shard.find(hash as u32, key) else {
            return false;
        };
        let conn = shard.conns.get(index);
        let connection = conn.map(|conn| describe(conn, shard.expires(conn), number));
        let admitted = connection.is_some_and(|connection| filter.admits(&connection));
        let removed = match admitted {
            true => self.remove(&mut shard, index),
            false => None,
        };
        drop(shard);
        let is_removed = removed.is_some();
        self.finish(removed, Counter::Flushed);
        is_removed
    }

    /// Calls `visit` for connections from `cursor` on, about `budget` of them. Returns where to
    /// continue; None at the end. Connections that begin or end meanwhile may be missed.
    pub fn dump(
        &self,
        cursor: Cursor,
        budget: usize,
        mut visit: impl FnMut(&Connection),
    ) -> Option<Cursor> {
        let (mut cursor, mut seen) = (cursor, 0);
        while seen < budget.max(1) {
            let number = cursor.shard.min(SHARDS - 1);
            let (connections, next) = stride(&self.lock(number), number, cursor.index);
            connections
                .iter()
                .for_each(|(_, connection)| visit(connection));
            seen += 1 + connections.len();
            cursor = cursor.next(next)?;
        }
        Some(cursor)
    }

    /// Returns how many connections there are, including those that have expired but were not yet
    /// removed.
    pub fn count(&self) -> usize {
        self.count.get()
    }

    /// Returns how many connections each part of the table has.
    pub fn bucket_counts(&self) -> Vec<usize> {
        (0..SHARDS)
            .map(|shard| self.lock(shard).conns.len())
            .collect()
    }

    /// Sets how many connections are kept at most. Those beyond a lowered limit stay until they
    /// end.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns how many connections are kept at most.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets how many connections a zone may have; 0 refuses all. `zone` None sets it for all zones
    /// without a limit of their own; until that is set, they are not limited.
    pub fn set_zone_limit(&self, zone: Option<u16>, limit: u32) {
        self.zone_limit_of(zone).set(Some(limit));
    }

    /// Returns a zone's own limit; None if it has none. `zone` None returns that of other zones.
    pub fn zone_limit(&self, zone: Option<u16>) -> Option<u32> {
        self.zone_limit_of(zone).get()
    }

    fn zone_limit_of(&self, zone: Option<u16>) -> &ZoneLimit {
        match zone {
            Some(zone) => &self.zone_limits[usize::from(zone)],
            None => &self.zone_limit,
        }
    }

    /// Takes a zone's own limit away; returns false if it has none.
    pub fn delete_zone_limit(&self, zone: u16) -> bool {
        self.zone_limit_of(Some(zone)).set(None).is_some()
    }

    /// Returns the zones that have a limit of their own, with it, in order.
    pub fn zone_limits(&self) -> Vec<(u16, u32)> {
        (0..=u16::MAX)
            .filter_map(|zone| Some((zone, self.zone_limit(Some(zone))?)))
            .collect()
    }

    /// Returns how many connections a zone has.
    pub fn zone_count(&self, zone: u16) -> u32 {
        self.zone_counts.get(zone)
    }

    /// Returns the zones with the most connections, `most` at most, the largest first, with their
    /// numbers of connections.
    pub fn largest_zones(&self, most: usize) -> Vec<(u16, u32)> {
        let mut zones: Vec<(u16, u32)> = (0..=u16::MAX)
            .map(|zone| (zone, self.zone_count(zone)))
            .filter(|(_, count)| *count > 0)
            .collect();
        zones.sort_unstable_by_key(|(zone, count)| (Reverse(*count), *zone));
        zones.truncate(most);
        zones
    }

    /// Sets the timeouts of a zone's connections, None for the default ones. Holds from each
    /// connection's next packet on.
    pub fn set_policy(&self, zone: u16, policy: Option<Policy>) {
        self.set_policies([(zone, policy)]);
    }

    /// Sets the timeouts of several zones' connections. Locks each part of the table once.
    pub fn set_policies(&self, changes: impl IntoIterator<Item = (u16, Option<Policy>)>) {
        self.change_policies(|policies| {
            for (zone, policy) in changes {
                match policy {
                    Some(policy) => policies.zones.insert(zone, policy),
                    None => policies.zones.remove(&zone),
                };
            }
        });
    }

    /// Sets the timeouts of connections in zones without a policy.
    pub fn set_default_policy(&self, policy: Policy) {
        self.change_policies(|policies| policies.usual = policy);
    }

    /// Returns the timeouts of a zone's connections.
    pub fn policy(&self, zone: u16) -> Policy {
        let policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        *policies.zones.get(&zone).unwrap_or(&policies.usual)
    }

    fn change_policies(&self, change: impl FnOnce(&mut Policies)) {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Policies::clone(&policies);
        change(&mut changed);
        *policies = Arc::new(changed);
        for shard in 0..SHARDS {
            self.lock(shard).policies = Arc::clone(&policies);
        }
        self.established.policies_changed();
    }

    /// Sets whether TCP segments outside their windows are invalid. True at first.
    pub fn set_sequence_checking(&self, check: bool) {
        self.check_sequence.store(check, Ordering::Relaxed);
    }

    /// Returns whether TCP segments outside their windows are invalid.
    pub fn sequence_checking(&self) -> bool {
        self.check_sequence.load(Ordering::Relaxed)
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
