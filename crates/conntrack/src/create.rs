//! Beginning of connections: limits, free tuples, insertion.

use crate::connection::Conn;
use crate::counters::Counter;
use crate::extract::{PacketProtocol, is_icmp_request};
use crate::key::Key;
use crate::nat::{self, Translation};
use crate::request::Tracked;
use crate::state;
use crate::tcp;
use crate::tracker::{Job, Tracker, shard_of, with_connection};
use std::sync::atomic::Ordering;

/// How many connections that hold a tuple that is sought are looked at, whether they have expired;
/// of the others, their stub is enough. Expiry removes them within seconds anyway.
const LOOKS: u32 = 32;

/// By how many connections threads may have passed the limit of all together.
const OVERSHOOT: usize = 64;

/// Which limits have room for a connection that is being added: it is counted there.
struct Room {
    of_zone: bool,
    of_all: bool,
}

impl Room {
    fn is_complete(&self) -> bool {
        self.of_zone && self.of_all
    }
}

/// What came of adding a connection.
enum Added {
    Done(Tracked),
    /// Another worker has begun one with its first tuple.
    Begun,
    /// Another connection has its reply's tuple.
    Taken,
}

impl Tracker {
    /// Answers for a packet that belongs to no connection, and begins one if that is asked for.
    /// None if another worker has meanwhile begun it.
    pub(crate) fn begin(&self, job: &Job<'_>) -> Option<Tracked> {
        let packet = job.packet;
        let refusal = if packet.related {
            Some(Counter::InvalidUnrelated)
        } else {
            match &packet.kind {
                PacketProtocol::Tcp(segment) => {
                    (!tcp::may_begin(segment)).then_some(Counter::InvalidTcpFlags)
                }
                PacketProtocol::Icmp => (!is_icmp_request(packet.key.v6, packet.key.kinds[0]))
                    .then_some(Counter::InvalidBeginning),
                PacketProtocol::Other => None,
            }
        };
        if let Some(reason) = refusal {
            self.counters.add(reason);
            return Some(job.answer(state::INVALID));
        }
        let Some(expected) = self.find_expected(job) else {
            return self.begin_valid(job);
        };
        let nat = expected.nat();
        let request = expected.request(job.request, &nat);
        self.begin_valid(&Job {
            request: &request,
            expected: Some(&expected),
            ..*job
        })
    }

    /// [`Tracker::begin`] for packets that may begin a connection.
    fn begin_valid(&self, job: &Job<'_>) -> Option<Tracked> {
        let packet = job.packet;
        if !job.request.commit {
            return Some(job.answer(state::NEW));
        }
        let zone = packet.key.zone;
        // Another one may be evicted for it, but only once it is certain that it is added.
        let mut room = Room {
            of_zone: self.reserve_in_zone(zone),
            of_all: self.reserve(),
        };
        let tracked = self.create(job, &mut room);
        let created = tracked.as_ref().is_some_and(|tracked| tracked.1);
        if created {
            self.counters.add(Counter::Created);
        } else {
            if room.of_zone {
                self.zone_counts.release(zone);
            }
            if room.of_all {
                self.count.release();
            }
        }
        tracked.map(|(tracked, _)| tracked)
    }

    /// Returns the limit of a zone, if it has one.
    fn limit_of(&self, zone: u16) -> Option<u32> {
        let limit = self.zone_limits[usize::from(zone)].get();
        limit.or_else(|| self.zone_limit.get())
    }

    /// Counts a connection of a zone, if its limit allows it.
    fn reserve_in_zone(&self, zone: u16) -> bool {
        if let Some(limit) = self.limit_of(zone) {
            return self.zone_counts.reserve(zone, limit);
        }
        self.zone_counts.add(zone);
        true
    }

    /// Counts a connection, if the limit of all allows it.
    fn reserve(&self) -> bool {
        self.count.reserve(self.limit.load(Ordering::Relaxed))
    }

    /// Counts a connection where it is not counted yet, in the place of half-open ones. In a full
    /// zone only one of that zone gives way, else one zone could shrink another.
    fn make_room(&self, zone: u16, room: &mut Room) -> bool {
        room.of_zone = room.of_zone
            || self.reserve_in_zone(zone)
            || self.would_fit(zone) && self.evict_of(Some(zone)) && self.reserve_in_zone(zone);
        if room.of_zone && !room.of_all {
            room.of_all =
                self.reserve() || self.all_would_fit() && self.evict(zone) && self.reserve();
        }
        room.is_complete()
    }

    /// Returns whether a zone has room for another connection once one of its own has ended. It has
    /// not where the limit has been lowered; those beyond it stay until they end.
    fn would_fit(&self, zone: u16) -> bool {
        let count = self.zone_counts.get(zone);
        (self.limit_of(zone)).is_none_or(|limit| limit > 0 && count <= limit)
    }

    /// Returns whether the table has room for another connection once one has ended, as
    /// [`Tracker::would_fit`] does of a zone.
    fn all_would_fit(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit > 0 && self.count.get() <= limit + OVERSHOOT
    }

    /// Takes a connection off the counts.
    pub(crate) fn release(&self, zone: u16) {
        self.count.release();
        self.zone_counts.release(zone);
    }

    /// Ends a half-open connection, so that a flood of packets that nobody answers does not keep
    /// others out; rather one of the same zone. Returns false if it finds none.
    fn evict(&self, zone: u16) -> bool {
        self.evict_of(Some(zone)) || self.evict_of(None)
    }

    /// Ends a half-open connection of a zone, or of any, the oldest of some shard that has one.
    /// Returns false if it finds none.
    fn evict_of(&self, zone: Option<u16>) -> bool {
        for number in self.half_open.from(self.random() as usize, zone) {
            let mut shard = self.lock(number);
            let Some(index) = shard.oldest_half_open(zone) else {
                self.half_open.clear(number, zone);
                continue;
            };
            let removed = self.remove(&mut shard, index);
            drop(shard);
            let evicted = removed.is_some();
            self.finish(removed, Counter::Evicted);
            return evicted;
        }
        false
    }

    /// Answers that the zone or the table is full.
    fn full(&self, job: &Job<'_>, room: &Room) -> (Tracked, bool) {
        self.counters.add(match room.of_zone {
            false => Counter::RefusedZoneLimit,
            true => Counter::RefusedFull,
        });
        (job.answer(state::NEW), false)
    }

    /// Adds the connection; true if it was added. None if another worker was faster. Where there is
    /// no room for it yet, others have to give way.
    fn create(&self, job: &Job<'_>, room: &mut Room) -> Option<(Tracked, bool)> {
        let key = &job.packet.key;
        let nat = job.request.nat.filter(|nat| nat.direction.is_some());
        let Some((nat, direction)) = nat.and_then(|nat| Some((nat, nat.direction?))) else {
            let reply = key.reversed();
            if !room.is_complete()
                && (self.find(&reply, job.now_ms).is_some() || !self.make_room(key.zone, room))
            {
                return Some(self.full(job, room));
            }
            let mut added = self.add(job, reply);
            if matches!(added, Added::Taken) && self.find(&reply, job.now_ms).is_none() {
                // The other one had expired, and is removed now.
                added = self.add(job, reply);
            }
            return match added {
                Added::Done(tracked) => Some((tracked, true)),
                Added::Begun => None,
                Added::Taken => {
                    self.counters.add(Counter::RefusedClash);
                    Some((job.answer(state::NEW), false))
                }
            };
        };
        let random = if nat.random { self.random() } else { 0 };
        let start = nat::start(key, nat, self.secret.hash(key), self.secret.0[0], random);
        let mut looks = LOOKS;
        let result = nat::search(key, direction, nat.range.as_ref(), start, |reply| {
            let taken = if looks > 0 {
                // Removes what has expired, too.
                self.find(&reply, job.now_ms).is_some()
            } else {
                let hash = self.secret.hash(&reply);
                let shard = self.lock(shard_of(hash));
                shard.find(hash as u32, &reply).is_some()
            };
            if taken {
                looks = looks.saturating_sub(1);
                return None;
            }
            if !self.make_room(key.zone, room) {
                return Some(Some(self.full(job, room)));
            }
            match self.add(job, reply) {
                Added::Taken => None,
                Added::Begun => Some(None),
                Added::Done(tracked) => Some(Some((tracked, true))),
            }
        });
        result.unwrap_or_else(|| {
            self.counters.add(Counter::NatExhausted);
            // Nor is it related to another: rules for `+rel` would send it with its own addresses.
            let alone = Job {
                expected: None,
                ..*job
            };
            Some((alone.answer(state::INVALID), false))
        })
    }

    /// Adds a connection if both its tuples are free.
    fn add(&self, job: &Job<'_>, reply: Key) -> Added {
        let mut conn = Conn::new(job.packet, reply, job.request);
        conn.write(job.request);
        let mut bits = state::NEW;
        if let Some(expected) = job.expected {
            conn.set_parent(expected.parent);
            bits |= state::RELATED;
        }
        let translates = conn.translation(false, false);
        let (translation, nat_bits) = translates.unwrap_or((Translation::default(), 0));
        let mut tracked = with_connection(&conn, bits | nat_bits, translation);
        let hash = self.secret.hash(&conn.original);
        let number = shard_of(hash);
        let (reply_hash, reply_number) = if conn.translated() {
            let hash = self.secret.hash(&reply);
            (hash, shard_of(hash))
        } else {
            (hash, number)
        };
        // The lower number first, so that no two workers wait for each other.
        let low = self.lock(number.min(reply_number));
        let high = (number != reply_number).then(|| self.lock(number.max(reply_number)));
        let (mut home, mut other) = match high {
            Some(high) if number > reply_number => (high, Some(low)),
            high => (low, high),
        };
        if home.find(hash as u32, &conn.original).is_some() {
            return Added::Begun;
        }
        let holder = other.as_ref().unwrap_or(&home);
        if holder.find(reply_hash as u32, &reply).is_some() {
            return Added::Taken;
        }
        if conn.helper.is_some() {
            conn.set_control(self.expectations.number());
            let helped = self.help(&mut conn, false, job, true, translates.is_some());
            helped.apply_to(&mut tracked);
        }
        conn.expires = home
            .policies
            .expiry(conn.original.zone, conn.first_timeout(), job.now_ms);
        let translated = conn.translated();
        let place = home.insert(hash as u32, conn, job.now_ms);
        if translated {
            let holder = other.as_mut().unwrap_or(&mut home);
            holder.insert_stub(reply_hash as u32, reply, place);
        }
        Added::Done(tracked)
    }
}
