//! The table of connections that workers share, and what a packet does to it.
//!
//! Locks: a shard's mutex is held for one packet's look-up and update. Only the creation of a
//! translated connection holds two, the lower number first. Stubs are removed after the connection
//! that they lead to, without its lock; one that leads nowhere is removed by who finds it.

use crate::alg::{self, Expectations, Expected, Rewrite};
use crate::connection::{Conn, Update};
use crate::counters::{Counter, Counters};
use crate::established::{
    Asking, Established, HashBucket, Hashes, NO_LINE, Reached, Settled, Short,
};
use crate::extract::{self, Packet, PacketProtocol, Read};
use crate::key::{Key, Secret, TCP};
use crate::nat::{self, Translation};
use crate::request::{Answers, Coming, Earlier, Request, Tracked};
use crate::shard::{Found, HalfOpen, Removed, Shard};
use crate::state;
use crate::stripes::{Bounded, Zones};
use crate::tcp::Segment;
use crate::timeouts::Policies;
use crossbeam_utils::CachePadded;
use packet::Frame;
use packet::parse::Layers;
use packet::tuple::{self, ShortTuple};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections that are kept at most, unless set otherwise.
pub const DEFAULT_LIMIT: usize = 3_000_000;

/// Shards, as a power of two.
const SHARD_BITS: u32 = 8;
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;
/// Zones.
pub(crate) const ZONES: usize = 1 << 16;
/// How often a packet whose connection other workers begin and end meanwhile is looked up.
const ROUNDS: u32 = 4;

/// The connection tracker. Workers share one; no method needs exclusive access.
#[derive(Debug)]
pub struct Tracker {
    pub(crate) secret: Secret,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    pub(crate) established: Arc<Established>,
    pub(crate) count: Bounded,
    pub(crate) limit: AtomicUsize,
    pub(crate) half_open: Arc<HalfOpen>,
    /// Connections by zone.
    pub(crate) zone_counts: Zones,
    /// Limits by zone; none where the default applies.
    pub(crate) zone_limits: Box<[ZoneLimit]>,
    /// The limit of other zones; none until one is set.
    pub(crate) zone_limit: ZoneLimit,
    pub(crate) policies: Mutex<Arc<Policies>>,
    pub(crate) check_sequence: AtomicBool,
    pub(crate) counters: Counters,
    pub(crate) expectations: Expectations,
    /// Where random numbers come from.
    random: CachePadded<AtomicU64>,
    /// The shard at which the next slice of expiry begins.
    pub(crate) expiring: AtomicUsize,
    /// All that was due by this many milliseconds has been removed.
    pub(crate) expired: AtomicU64,
}

/// A limit of connections, or none: 0, or one more than the limit, which may be any of 32 bits.
#[derive(Debug, Default)]
pub(crate) struct ZoneLimit(AtomicU64);

impl ZoneLimit {
    pub fn get(&self) -> Option<u32> {
        let above = self.0.load(Ordering::Relaxed);
        above.checked_sub(1).map(|limit| limit as u32)
    }

    /// Sets the limit, or none, and returns what it was.
    pub fn set(&self, limit: Option<u32>) -> Option<u32> {
        let above = limit.map_or(0, |limit| u64::from(limit) + 1);
        let before = self.0.swap(above, Ordering::Relaxed);
        before.checked_sub(1).map(|limit| limit as u32)
    }
}

/// What became of a packet's connection.
enum Followed {
    Answer(Tracked),
    /// It has ended, to be replaced by one that the packet begins.
    Ended(Removed),
}

/// Packets that are looked up together.
const BURST: usize = 64;

/// Where the line of a packet's connection may be found.
#[derive(Clone, Copy)]
enum Known<'t> {
    Nothing,
    /// In this bucket, by this hash.
    Hash(&'t HashBucket, u64),
    /// It is that of the packet so many before, which has the same tuple.
    Same(usize),
}

/// A packet with what is asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub packet: &'a Packet,
    pub frame: &'a dyn alg::Source,
    pub request: &'a Request<'a>,
    /// `ct_state` as the packet brings it from an earlier action of this zone; else 0.
    pub earlier: u32,
    /// That action found or made the packet's connection.
    pub seen: bool,
    /// What is known of the connection that the packet may begin, if another has announced it.
    pub expected: Option<&'a Expected>,
    pub now_ms: u64,
}

impl Job<'_> {
    /// Returns an answer without a connection.
    pub fn answer(&self, state: u32) -> Tracked {
        let none = without_packet(self.request.zone, state);
        let Some(expected) = self.expected else {
            return Tracked {
                original: Some(self.packet.key.tuple()),
                ..none
            };
        };
        Tracked {
            state: none.state | state::RELATED,
            mark: expected.mark,
            label: expected.label,
            original: Some(expected.parent.tuple()),
            ..none
        }
    }
}

/// Whether a packet may go by a line: nothing is to be changed, and no earlier action of the zone
/// has found its connection.
#[inline(always)]
fn may_read(request: &Request<'_>, earlier: Earlier, zone: u16) -> bool {
    request.only_asks() && is_new_to(earlier, zone)
}

/// Whether no earlier action of the zone has tracked a packet.
#[inline(always)]
fn is_new_to(earlier: Earlier, zone: u16) -> bool {
    earlier.state == 0 || earlier.zone != zone
}

fn without_packet(zone: u16, state: u32) -> Tracked {
    Tracked {
        state: state | state::TRACKED,
        zone,
        mark: 0,
        label: 0,
        original: None,
        translation: Translation::default(),
        rewrite: None,
        has_connection: false,
    }
}

/// Returns an answer with a connection's mark, label and tuple.
pub(crate) fn with_connection(conn: &Conn, state: u32, translation: Translation) -> Tracked {
    Tracked {
        state: state | state::TRACKED,
        zone: conn.original.zone,
        mark: conn.mark,
        label: conn.label(),
        original: Some(conn.parent().unwrap_or(&conn.original).tuple()),
        translation,
        rewrite: None,
        has_connection: true,
    }
}

/// The part of a hash that chooses a shard.
pub(crate) fn shard_of(hash: u64) -> usize {
    (hash >> (64 - SHARD_BITS)) as usize
}

impl Tracker {
    /// Makes an empty tracker that keeps [`DEFAULT_LIMIT`] connections. The secret must be random:
    /// who knows it can choose connections that all have the same hash.
    pub fn new(secret: [u64; 2]) -> Tracker {
        let policies = Arc::new(Policies::default());
        let half_open = Arc::new(HalfOpen::new());
        let established = Arc::new(Established::new());
        let shard = |number| {
            let (policies, half_open) = (policies.clone(), half_open.clone());
            let shard = Shard::new(number as u16, policies, half_open, established.clone());
            CachePadded::new(Mutex::new(shard))
        };
        Tracker {
            secret: Secret(secret),
            shards: (0..SHARDS).map(shard).collect(),
            established,
            count: Bounded::default(),
            limit: AtomicUsize::new(DEFAULT_LIMIT),
            half_open,
            zone_counts: Zones::new(),
            zone_limits: (0..ZONES).map(|_| ZoneLimit::default()).collect(),
            zone_limit: ZoneLimit::default(),
            policies: Mutex::new(policies),
            check_sequence: AtomicBool::new(true),
            counters: Counters::default(),
            expectations: Expectations::new(),
            random: CachePadded::new(AtomicU64::new(secret[0] ^ secret[1].rotate_left(32))),
            expiring: AtomicUsize::new(0),
            expired: AtomicU64::new(0),
        }
    }

    /// Tracks a packet that has not been tracked in this zone before. `layers` are those of the
    /// frame; `now_ms` is in milliseconds.
    ///
    /// Later packets of the connection see what this one did. Packets that cannot be read are
    /// answered [`state::INVALID`] and counted by reason.
    pub fn track<F: Frame>(
        &self,
        frame: &F,
        layers: &Layers,
        request: &Request<'_>,
        now_ms: u64,
    ) -> Tracked {
        self.track_again(frame, layers, Earlier::default(), request, now_ms)
    }

    /// [`Tracker::track`] for a packet that comes from an earlier `ct` action, whose answer was
    /// `earlier`.
    ///
    /// In the same zone, the packet does not count twice for the state machine of a connection that
    /// the earlier action found or made, unless one of the two has `nat` or the later one `force`
    /// (as in Open vSwitch). A packet that has been translated is recognised by its new addresses
    /// and not translated again.
    pub fn track_again<F: Frame>(
        &self,
        frame: &F,
        layers: &Layers,
        earlier: Earlier,
        request: &Request<'_>,
        now_ms: u64,
    ) -> Tracked {
        let asking = self.asking(request, now_ms);
        let mut read = Read::Nothing;
        if may_read(request, earlier, request.zone) {
            let short = extract::common(frame, layers, request.zone);
            read = Read::Common(short);
            if let Some(short) = short
                && let Some(line) = self
                    .established
                    .find(short.hash(self.secret), short.is_tcp())
                && let Some(settled) = self.read(frame, layers, short, line, asking)
            {
                return settled.tracked();
            }
            if short.is_none()
                && let Some(key) = extract::common_key(frame, layers, request.zone)
            {
                let segment = || extract::segment(frame, layers);
                if let Some(tracked) = self.read_by_key(&key, segment, asking) {
                    return tracked;
                }
                read = Read::Key(key);
            }
        }
        self.answer(frame, layers, read, earlier, request, asking)
    }

    /// Returns what packets that ask now have in common.
    #[inline(always)]
    fn asking(&self, request: &Request<'_>, now_ms: u64) -> Asking {
        Asking {
            nat: request.nat.is_some(),
            check_sequence: self.check_sequence.load(Ordering::Relaxed),
            policies: self.established.policies(),
            now_ms,
        }
    }

    /// Answers for a packet of an established connection without a lock, if that is possible;
    /// `line` is what the index has for it.
    #[inline(always)]
    fn read<F: Frame>(
        &self,
        frame: &F,
        layers: &Layers,
        short: Short,
        line: Reached<'_>,
        asking: Asking,
    ) -> Option<Settled> {
        let segment = || extract::segment(frame, layers);
        self.established.follow(line, short, segment, asking)
    }

    /// [`Tracker::read`] for a packet with this key, other than of UDP and TCP over IPv4.
    #[inline]
    fn read_by_key(
        &self,
        key: &Key,
        segment: impl FnOnce() -> Option<Segment>,
        asking: Asking,
    ) -> Option<Tracked> {
        let index = &self.established;
        let line = index.find(self.secret.hash(key), key.protocol == TCP)?;
        index.follow_key(line, key, segment, asking)
    }

    /// Answers for a packet that no line is known for: `read` is what has been read of it, if
    /// anything, and has been looked for.
    fn answer<F: Frame>(
        &self,
        frame: &F,
        layers: &Layers,
        read: Read,
        earlier: Earlier,
        request: &Request<'_>,
        asking: Asking,
    ) -> Tracked {
        let packet = &match extract::extract(frame, layers, request.zone, read) {
            Ok(packet) => packet,
            Err(reason) => {
                self.counters.add(reason);
                return without_packet(request.zone, state::INVALID);
            }
        };
        let is_sought = matches!(read, Read::Common(Some(_)) | Read::Key(_));
        if !is_sought && !packet.related && may_read(request, earlier, request.zone) {
            let segment = || match packet.kind {
                PacketProtocol::Tcp(segment) => Some(segment),
                _ => None,
            };
            if let Some(tracked) = self.read_by_key(&packet.key, segment, asking) {
                return tracked;
            }
        }
        let same = earlier.zone == request.zone;
        let job = Job {
            packet,
            frame: &alg::View { frame, layers },
            request,
            earlier: if same { earlier.state } else { 0 },
            seen: same && earlier.has_connection && !request.force,
            expected: None,
            now_ms: asking.now_ms,
        };
        for _ in 0..ROUNDS {
            if let Some(tracked) = self.follow(&job) {
                return tracked;
            }
            if let Some(tracked) = self.begin(&job) {
                return tracked;
            }
        }
        // Other workers begin and end this very connection all the time.
        self.counters.add(Counter::RefusedClash);
        job.answer(state::NEW)
    }

    /// [`Tracker::track_again`] for packets of a burst, in their order, of which the same is asked
    /// but for the zone. Fastest for up to 64. Tells `answers` what is said of each packet.
    pub fn track_burst<'f, F: Frame + 'f>(
        &self,
        packets: impl Iterator<Item = Coming<'f, F>> + Clone,
        request: &Request<'_>,
        now_ms: u64,
        answers: &mut impl Answers,
    ) {
        // Each stage has the memory fetched that the next one reads. What a stage finds out lies in
        // lists of whole words: parts of words would be read by wider words than they have been
        // written by, for which the processor waits.
        let mut tuples = [ShortTuple::NONE; BURST];
        let of_packet = |coming: Coming<'f, F>| (coming.frame, coming.layers);
        let read = tuple::read_burst(packets.clone().map(of_packet), &mut tuples);
        let mut shorts = [Short::NONE; BURST];
        let mut known = [Known::Nothing; BURST];
        let tuples = &tuples[..read];
        self.hash_burst(tuples, packets.clone(), request, &mut shorts, &mut known);
        let mut lines = [None; BURST];
        self.find_burst(&shorts[..read], &known[..read], &mut lines);
        let asking = self.asking(request, now_ms);
        for (at, coming) in packets.enumerate() {
            let number = coming.number;
            let short = shorts[at % BURST];
            if let Some(line) = lines.get(at).copied().flatten()
                && let Some(settled) = self.read(coming.frame, &coming.layers, short, line, asking)
            {
                answers.settled(number, &settled);
                continue;
            }
            let short = (at < BURST).then_some(short);
            answers.other(number, &self.answer_coming(coming, short, request, asking));
        }
    }

    /// Answers for a packet of a burst that no line is known for; `short` is what has been read of
    /// it, if anything has. Takes it by value, so that it need not lie in memory before.
    #[inline(never)]
    fn answer_coming<F: Frame>(
        &self,
        coming: Coming<'_, F>,
        short: Option<Short>,
        request: &Request<'_>,
        asking: Asking,
    ) -> Tracked {
        let (frame, layers) = (coming.frame, &coming.layers);
        let request = Request {
            zone: coming.zone,
            ..*request
        };
        let read = match short {
            None => Read::Nothing,
            Some(Short::NONE) if may_read(&request, coming.earlier, coming.zone) => {
                match extract::common_key(frame, layers, coming.zone) {
                    Some(key) => {
                        let segment = || extract::segment(frame, layers);
                        match self.read_by_key(&key, segment, asking) {
                            Some(tracked) => return tracked,
                            None => Read::Key(key),
                        }
                    }
                    None => Read::Common(None),
                }
            }
            Some(Short::NONE) => Read::Common(None),
            Some(short) => Read::Common(Some(short)),
        };
        self.answer(frame, layers, read, coming.earlier, &request, asking)
    }

    /// Finds out where to look for the lines of a burst's first packets, if they may go by these;
    /// what has been read of them becomes `shorts`. Not inlined, so that what its loop needs stays
    /// in registers.
    #[inline(never)]
    fn hash_burst<'t, 'f, F: Frame + 'f>(
        &'t self,
        tuples: &[ShortTuple],
        packets: impl Iterator<Item = Coming<'f, F>>,
        request: &Request<'_>,
        shorts: &mut [Short; BURST],
        known: &mut [Known<'t>; BURST],
    ) {
        let (only_asks, secret, index) = (request.only_asks(), self.secret, &*self.established);
        // Those of the last two packets; none of a packet that may not go by lines.
        let mut before = [Short::NONE; 2];
        let all = shorts.iter_mut().zip(known).zip(tuples).zip(packets);
        for (((short, known), tuple), coming) in all {
            *short = Short::read(*tuple, coming.zone);
            let may_read = only_asks && is_new_to(coming.earlier, coming.zone);
            if *short == Short::NONE || !may_read {
                before = [Short::NONE, before[0]];
                continue;
            }
            *known = if *short == before[0] {
                Known::Same(1)
            } else if *short == before[1] {
                Known::Same(2)
            } else {
                let hash = short.hash(secret);
                match index.fetch_bucket(hash) {
                    Some(bucket) => Known::Hash(bucket, hash),
                    None => Known::Nothing,
                }
            };
            before = [*short, before[0]];
        }
    }

    /// Finds the lines that may be those of packets.
    #[inline(never)]
    fn find_burst<'t>(
        &'t self,
        shorts: &[Short],
        known: &[Known<'t>],
        lines: &mut [Option<Reached<'t>>; BURST],
    ) {
        let index = &*self.established;
        for (at, (short, known)) in shorts.iter().zip(known).enumerate() {
            lines[at % BURST] = match *known {
                Known::Hash(bucket, hash) => index.find_in_bucket(bucket, hash, short.is_tcp()),
                Known::Same(before) => lines[at.wrapping_sub(before) % BURST],
                Known::Nothing => None,
            };
        }
    }

    /// Writes what a translation says of the packet that an ICMP error quotes, and corrects the
    /// checksums: of the quoted headers, as far as they are quoted, and of the ICMP message.
    /// `layers` are those of the frame. Does nothing to other packets. Returns false, with the
    /// frame unchanged, if it is not the packet that the translation was made for.
    pub fn translate_inner<F: Frame>(
        frame: &mut F,
        layers: &Layers,
        translation: &Translation,
    ) -> bool {
        nat::translate_inner(frame, layers, translation)
    }

    /// Writes what a helper has written into a packet: a translated address and port in a command,
    /// and sequence numbers. Corrects lengths and checksums; a checksum that is left to a device
    /// stays so. `layers` are those of the frame, and are corrected. Returns false, with the
    /// frame's length unchanged, if there is no room for a longer text or the frame is not the one
    /// that was tracked.
    pub fn rewrite<F: Frame>(frame: &mut F, layers: &mut Layers, rewrite: &Rewrite) -> bool {
        alg::rewrite(frame, layers, rewrite)
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // No step of an update leaves a shard such that using it panics.
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a random number.
    pub(crate) fn random(&self) -> u64 {
        let step = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        crate::key::fold(step, self.secret.0[1] | 1)
    }

    /// Finds the live connection with this tuple, and whether it is that of replies. The shard
    /// that is returned locked is that of the connection. What is found to have expired is removed.
    pub(crate) fn find(
        &self,
        key: &Key,
        now_ms: u64,
    ) -> Option<(MutexGuard<'_, Shard>, u32, bool)> {
        let hash = self.secret.hash(key);
        let number = shard_of(hash);
        let mut shard = self.lock(number);
        let (index, reply) = match shard.find(hash as u32, key)? {
            Found::Here(index, reply) => (index, reply),
            Found::Elsewhere(home) => {
                if usize::from(home.shard) != number {
                    drop(shard);
                    shard = self.lock(home.shard.into());
                }
                if shard.at(home).is_none() {
                    drop(shard);
                    self.lock(number).remove_stub(hash as u32, home);
                    return None;
                }
                (home.index, true)
            }
        };
        if shard.expires(shard.conns.get(index)?) > now_ms {
            return Some((shard, index, reply));
        }
        let removed = self.remove(&mut shard, index);
        drop(shard);
        self.finish(removed, Counter::Expired);
        None
    }

    /// Removes a connection from its shard. To be followed by [`Tracker::finish`], without a lock.
    pub(crate) fn remove(&self, shard: &mut Shard, index: u32) -> Option<Removed> {
        let hashes = self.hashes(shard.conns.get(index)?);
        shard.remove(hashes, index)
    }

    fn hashes(&self, conn: &Conn) -> Hashes {
        Hashes {
            original: self.secret.hash(&conn.original),
            replies: conn.translated().then(|| self.secret.hash(&conn.reply)),
        }
    }

    /// Does what is left to do for a connection that was removed.
    pub(crate) fn finish(&self, removed: Option<Removed>, reason: Counter) {
        let Some(mut removed) = removed else {
            return;
        };
        self.forget_expected(&mut removed.conn);
        if let Some(home) = removed.stub {
            let hash = self.secret.hash(&removed.conn.reply);
            self.lock(shard_of(hash)).remove_stub(hash as u32, home);
        }
        self.release(removed.conn.original.zone);
        self.counters.add(reason);
    }

    /// Answers for a packet of a known connection. None if there is none (any more).
    fn follow(&self, job: &Job<'_>) -> Option<Tracked> {
        let translated = job.earlier & (state::SOURCE_NAT | state::DESTINATION_NAT) != 0;
        let mut found = None;
        if translated {
            // The packet has the addresses that its replies will have, the other way round.
            found = self.find(&job.packet.key.reversed(), job.now_ms);
            if let Some((_, _, reply)) = &mut found {
                *reply = !*reply;
            }
        }
        let (mut shard, index, reply) = match found {
            Some(found) => found,
            None => self.find(&job.packet.key, job.now_ms)?,
        };
        match self.step(&mut shard, index, reply, job)? {
            Followed::Answer(tracked) => Some(tracked),
            Followed::Ended(removed) => {
                drop(shard);
                self.finish(Some(removed), Counter::Replaced);
                None
            }
        }
    }

    /// Moves a connection on by a packet.
    fn step(&self, shard: &mut Shard, index: u32, reply: bool, job: &Job<'_>) -> Option<Followed> {
        let request = job.request;
        if request.commit && request.force && reply {
            return Some(Followed::Ended(self.remove(shard, index)?));
        }
        let (related, nat_bits) = (
            job.packet.related,
            state::SOURCE_NAT | state::DESTINATION_NAT,
        );
        shard.take_back(index);
        let conn = shard.conns.get_mut(index)?;
        let direction = if reply { state::REPLY } else { 0 };
        let mut answer = job.earlier;
        let mut expires = None;
        let mut fresh = false;
        if related {
            answer |= state::RELATED | direction;
        } else if !job.seen || job.earlier & nat_bits != 0 {
            let check = self.check_sequence.load(Ordering::Relaxed);
            let sent = conn.as_sent(job.packet, reply, job.earlier & nat_bits != 0);
            let packet = sent.as_ref().unwrap_or(job.packet);
            fresh = conn.helper.is_some() && conn.is_fresh(packet, reply);
            if conn.parent().is_some() {
                answer |= state::RELATED;
            }
            let (update, end) = conn.update(packet, reply, check, &shard.policies, job.now_ms);
            expires = end;
            match update {
                Update::Established => {
                    answer = answer & !state::NEW | state::ESTABLISHED | direction;
                }
                Update::New => answer |= state::NEW,
                Update::Replace => return Some(Followed::Ended(self.remove(shard, index)?)),
                Update::BadFlags => {
                    self.counters.add(Counter::InvalidTcpFlags);
                    answer = state::INVALID;
                }
                Update::BadWindow => {
                    self.counters.add(Counter::InvalidTcpWindow);
                    answer = state::INVALID;
                }
            }
        }
        conn.write(request);
        let mut translation = Translation::default();
        if request.nat.is_some()
            && job.earlier & nat_bits == 0
            && let Some((found, bits)) = conn.translation(reply, related)
        {
            translation = found;
            answer |= bits;
        }
        let mut tracked = with_connection(conn, answer, translation);
        let untouched = !related && job.earlier & nat_bits == 0;
        let fits = answer & (state::NEW | state::ESTABLISHED) != 0;
        if conn.helper.is_some() && untouched && fits {
            let translates = request.nat.is_some() && conn.nat.is_some();
            let helped = self.help(conn, reply, job, fresh, translates);
            helped.apply_to(&mut tracked);
        }
        let line = (conn.is_settled() || conn.line != NO_LINE).then(|| self.hashes(conn));
        if let Some(expires) = expires {
            shard.set_expiry(index, expires);
        }
        // Also TCP's segments that are admitted without an effect on the time may end a handshake.
        shard.settle(index);
        if let Some(hashes) = line {
            shard.publish(hashes, index);
        }
        Some(Followed::Answer(tracked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{ICMP, ICMPV6, SCTP, UDP};
    use packet::build::Builder;
    use packet::parse::parse_frame;
    use packet::{FlowKey, HeapFrame, WordSet};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::sync::mpsc;
    use std::time::Duration;

    const SYN: u16 = 2;
    const ACK: u16 = 16;
    const CLIENT: u8 = 1;
    const SERVER: u8 = 2;
    /// Whom servers see in the place of translated clients.
    const OUTSIDE: u8 = 3;

    /// What connections are of.
    #[derive(Clone, Copy, Debug)]
    struct Sort {
        protocol: u8,
        v6: bool,
        translated: bool,
        /// Where the frame's second segment begins, if it has one.
        cut: Option<usize>,
    }

    impl Sort {
        fn address(self, host: u8) -> IpAddr {
            match self.v6 {
                false => Ipv4Addr::new(10, 0, 0, host).into(),
                true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into(),
            }
        }

        fn frame(self, reply: bool, flags: u16) -> (HeapFrame, Layers) {
            let client = if self.translated { OUTSIDE } else { CLIENT };
            let (hosts, ports) = match reply {
                false => ([CLIENT, SERVER], [1025, 80]),
                true => ([SERVER, client], [80, 1025]),
            };
            let ethernet = Builder::ethernet([2; 6], [4; 6]);
            let ip = match hosts.map(|host| self.address(host)) {
                [IpAddr::V4(from), IpAddr::V4(to)] => ethernet.ipv4(from.to_bits(), to.to_bits()),
                [IpAddr::V6(from), IpAddr::V6(to)] => ethernet.ipv6(from.octets(), to.octets()),
                _ => unreachable!("one family"),
            };
            let (identifier, answer) = (77 << 16, u8::from(reply));
            let packet = match self.protocol {
                TCP => ip.tcp(ports[0], ports[1], flags),
                UDP => ip.udp(ports[0], ports[1]).payload(b"some"),
                SCTP => ip.sctp(ports[0], ports[1]).payload(b"some"),
                ICMP => ip.icmp(8 - 8 * answer, 0, identifier),
                ICMPV6 => ip.icmpv6(128 + answer, 0, identifier),
                // No next header.
                _ => ip.payload(b"some"),
            };
            let mut bytes = packet.bytes();
            let l4 = if self.v6 { 54 } else { 34 };
            if self.protocol == TCP {
                // Of the sender and of the other side.
                let mut numbers = [100_u32, 500];
                if reply {
                    numbers.reverse();
                }
                numbers[0] += u32::from(flags & SYN == 0);
                numbers[1] += 1;
                for (at, number) in [l4 + 4, l4 + 8].into_iter().zip(numbers) {
                    bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
                }
            }
            let mut whole = HeapFrame::new(&bytes);
            let mut key = FlowKey::ZERO;
            let layers = parse_frame(&mut whole, 1, WordSet::MINI_KEY, &mut key);
            let (head, tail) = bytes.split_at(self.cut.unwrap_or(bytes.len()));
            let mut frame = HeapFrame::with_segments(&[head, tail]);
            // The numbers were written after the checksum.
            frame.set_offload(packet::frame::Offload {
                checksum_valid: true,
                ..Default::default()
            });
            (frame, layers)
        }

        fn send(self, tracker: &Tracker, reply: bool, flags: u16, commit: bool) -> Tracked {
            let (frame, layers) = self.frame(reply, flags);
            let outside = self.address(OUTSIDE);
            let translates = commit && self.translated;
            let nat = nat::Nat {
                direction: translates.then_some(nat::Direction::Source),
                range: translates.then_some(nat::Range {
                    min: outside,
                    max: outside,
                    ports: None,
                }),
                ..nat::Nat::default()
            };
            let request = Request {
                commit,
                nat: Some(&nat),
                ..Request::default()
            };
            tracker.track(&frame, &layers, &request, 5)
        }
    }

    /// Packets of established connections are answered while somebody else has the locks of all
    /// shards: of any protocol and both families, translated or not. (`tests/lines.rs` has the same
    /// for bursts of UDP and TCP over IPv4.)
    #[test]
    fn established_packets_take_no_lock() {
        let tracker = Arc::new(Tracker::new([7, 8]));
        let protocols = [
            (TCP, false, Some(50)),
            (TCP, true, None),
            (TCP, true, Some(60)),
            (UDP, true, None),
            (UDP, true, Some(40)),
            (ICMP, false, None),
            (ICMPV6, true, None),
            (SCTP, false, None),
            (SCTP, true, None),
            (59, false, None),
            (59, true, None),
        ];
        for (protocol, v6, cut) in protocols {
            for translated in [false, true] {
                let sort = Sort {
                    protocol,
                    v6,
                    translated,
                    cut,
                };
                check_without_lock(&tracker, sort);
                let mut cursor = Some(crate::Cursor::default());
                while let Some(at) = cursor {
                    cursor = tracker.flush(&crate::Filter::default(), at, 100).next;
                }
            }
        }
    }

    fn check_without_lock(tracker: &Arc<Tracker>, sort: Sort) {
        sort.send(tracker, false, SYN, true);
        sort.send(tracker, true, SYN | ACK, false);
        sort.send(tracker, false, ACK, false);
        // The first that goes on after the handshake may still take it.
        sort.send(tracker, true, ACK, false);
        let held = (0..SHARDS).map(|shard| tracker.lock(shard));
        let held = held.collect::<Vec<_>>();
        let (answers, told) = mpsc::channel();
        let other = tracker.clone();
        std::thread::spawn(move || {
            for reply in [false, true, true, false] {
                let _ = answers.send(sort.send(&other, reply, ACK, false));
            }
        });
        let ports = match sort.protocol {
            TCP | UDP | SCTP => (1025, 80),
            ICMP => (8, 0),
            ICMPV6 => (128, 0),
            _ => (0, 0),
        };
        let port = if ports.0 == 1025 { 1025 } else { 0 };
        for reply in [false, true, true, false] {
            let tracked = told.recv_timeout(Duration::from_secs(20));
            let tracked = tracked.unwrap_or_else(|_| panic!("{sort:?} waits for a lock"));
            let (bits, source, destination) = match (sort.translated, reply) {
                (false, _) => (0, None, None),
                (true, false) => (state::SOURCE_NAT, Some(OUTSIDE), None),
                (true, true) => (state::DESTINATION_NAT, None, Some(CLIENT)),
            };
            let direction = if reply { state::REPLY } else { 0 };
            let wanted = state::TRACKED | state::ESTABLISHED | direction | bits;
            assert_eq!(tracked.state, wanted, "{sort:?}: {tracked:?}");
            let original = tracked.original.expect("a connection has a tuple");
            assert_eq!(
                (original.source_port, original.destination_port),
                ports,
                "{sort:?}"
            );
            assert_eq!(
                (original.source, original.destination),
                (sort.address(CLIENT), sort.address(SERVER))
            );
            let end = |host: Option<u8>| host.map(|host| (sort.address(host), port));
            let translation = tracked.translation;
            assert_eq!(
                (translation.source, translation.destination),
                (end(source), end(destination)),
                "{sort:?}"
            );
        }
        drop(held);
    }
}
