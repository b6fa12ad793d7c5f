//! Fragments that wait at `ct` until their datagram is whole, as in Open vSwitch 3.1's `lib/ipf.c`.
//!
//! A [`Fragments`] holds opaque things, each for a fragment, and gives all of a datagram back, in
//! order, when the last of them comes. Nothing is lost: what was held comes out as a whole
//! datagram, or because its time was over or its room was needed ([`Offer::ended`],
//! [`Fragments::expire`]), or by [`Fragments::purge`].
//!
//! Fragments are accepted once: one that overlaps another, or contradicts the end of its datagram,
//! is refused, while the others wait on. (Open vSwitch accepts some of these, and then never
//! finds their datagram whole.)
//!
//! What may be held is bounded in fragments and in buffers. Where either is used up, whoever has
//! most of it makes room for the others (who holds a fragment, [`Request`] says), so a
//! flood of first fragments by one port costs others nothing but a search in a tree. If nobody has
//! more than the holder of a fragment, one of that holder's own datagrams gives way, because many
//! senders may be behind one port. Of a holder's datagrams, the oldest of the source address with
//! most datagrams gives way: a sender that floods displaces its own. Sources with no more than
//! [`EQUAL`] datagrams count as equal; among equals the oldest datagram gives way. So a flood by
//! many addresses only shortens the time for which datagrams may wait: to that in which as many
//! fragments come as there is room for. The last fragment of a datagram needs no room.

use packet::fragment::{Datagram, Fragment};
use packet::keyed::Keyed;
use packet::tunnel::Addresses;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How long fragments wait for others, in milliseconds from the first of their datagram.
pub const TIMEOUT_MS: u64 = 15_000;
/// How long behind that nobody has to have asked for them until they are purged.
pub const OVERDUE_MS: u64 = 10_000;
/// Least size to which [`Fragments::set_minimum`] can set, in bytes.
pub const LEAST_MINIMUM: u32 = 400;
/// Most fragments that [`Fragments::set_most`] admits.
pub const MOST: u32 = 5000;
/// How many are held at most unless something else is set.
pub const DEFAULT_MOST: u32 = 1000;
/// Most unfinished datagrams of a source with which it counts as equal to sources that have fewer:
/// an honest sender has some at once, and must not give way because of that to those of a flood
/// that have an address each.
pub const EQUAL: usize = 8;
/// Most datagrams that give way to one fragment: each frees a buffer at least, and fragments in
/// jumbo frames need up to 6, with the steps that are held beside them.
const GIVE_WAY: usize = 8;
/// The longest IPv4 header, in bytes.
const IPV4_HEADER_MAX: u32 = 60;
/// Bytes of headers that fragments of IPv6 may have if their datagram is to find room: IPv6's own
/// and the fragment header (48), and 80 for options and a routing header before that.
const IPV6_HEADERS_MAX: u32 = 128;
/// The longest IPv4 packet, and the longest payload of an IPv6 packet, in bytes.
const PACKET_MAX: u32 = 65_535;

/// Where a fragment waits. Only those that wait in the same place are put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReassemblyContext {
    /// The bridge, by any number.
    pub bridge: u32,
    /// How often the fragment has been looked up behind the tracker, as Open vSwitch's
    /// recirculation identifier is 0 the first time.
    pub pass: u32,
    /// The connection's zone.
    pub zone: u16,
}

/// How a fragment is to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Where.
    pub place: ReassemblyContext,
    /// For whom: a port, say.
    pub holder: u64,
    /// In how many buffers.
    pub buffers: u32,
    /// Whether others may have to give way to it. One whose own waiting has ended without success
    /// must not make others end theirs: where rules have such fragments wait again, one would end
    /// the next until each has.
    pub makes_room: bool,
}

/// Why a fragment is not held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// Fragments of its family are not to be put together.
    Disabled,
    /// It is not the last one, and smaller than the least size.
    TooSmall,
    /// Its bytes have come already, or contradict its datagram's end.
    Overlaps,
    /// There is no room, or its datagram has as many fragments as there can be.
    Full,
}

/// What became of a fragment.
#[derive(PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// It waits, or is among those that ended ([`Offer::ended`]).
    Held,
    /// It completed its datagram: all of it, in order.
    Whole(Vec<(Fragment, T)>),
    /// It is not held; nothing was made of it.
    Refused(Refused),
}

/// The answer to a fragment that was offered.
#[derive(Debug)]
pub struct Offer<T> {
    /// What became of it.
    pub outcome: Outcome<T>,
    /// Fragments whose waiting ended because of it, without success: they made room, or their
    /// datagram would be too long for an IP packet.
    pub ended: Vec<T>,
}

/// Counts of the fragments of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Held.
    pub accepted: u64,
    /// Given back with their whole datagram.
    pub completed: u64,
    /// Given back because their time was over, or to make room, or in a datagram that is too long.
    pub expired: u64,
    /// Of these, those that made room for fragments of other holders.
    pub evicted: u64,
    /// Of the expired ones, those that made room for later fragments of their own holder.
    pub displaced: u64,
    /// Refused because they were too small.
    pub too_small: u64,
    /// Refused because they overlap others or contradict their datagram's end.
    pub overlapped: u64,
    /// Refused because there was no room.
    pub full: u64,
    /// Purged.
    pub purged: u64,
}

/// Settings of a family, and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Whether its fragments are put together.
    pub is_enabled: bool,
    /// Fewest bytes of a packet that is a fragment but not the last one, headers included.
    pub minimum: u32,
    /// What has happened.
    pub counts: Counts,
}

/// Settings and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Most fragments held.
    pub most: u32,
    /// Fragments held now.
    pub held: u32,
    /// Of IPv4.
    pub v4: Family,
    /// Of IPv6.
    pub v6: Family,
}

/// Says of two datagrams that wait which has begun first: the lesser one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Serial(u64);

/// A datagram of which fragments wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// When it began.
    pub serial: Serial,
    /// Whose fragments.
    pub datagram: Datagram,
    /// Where they wait.
    pub place: ReassemblyContext,
    /// How many.
    pub fragments: usize,
    /// Whether the first fragment is among them.
    pub has_first: bool,
    /// Whether the last fragment is.
    pub has_last: bool,
}

/// A value that a setting cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfRange;

type Key = (Datagram, ReassemblyContext);

struct Piece<T> {
    fragment: Fragment,
    buffers: u32,
    held: T,
}

/// A datagram of which fragments are missing.
struct Partial<T> {
    /// In order, without overlaps.
    pieces: Vec<Piece<T>>,
    /// Bytes of payload that have come.
    came: usize,
    /// Bytes of payload of the datagram, once the last fragment has come.
    whole: Option<usize>,
    serial: u64,
    holder: u64,
}

/// Fragments and buffers, by their number as a [`Scarce`].
type Amounts = [u64; 2];

/// What there is no more room for.
#[derive(Clone, Copy)]
enum Scarce {
    Fragments,
    Buffers,
}

/// How soon a source gives way: by how many datagrams of it wait ([`EQUAL`] if they are fewer),
/// then by the serial of the oldest. The greatest is the first to.
type Rank = (usize, Reverse<u64>);

/// What one holder has waiting.
#[derive(Default)]
struct Holder {
    has: Amounts,
    /// Its sources.
    sources: BTreeSet<Rank>,
}

/// Fragments that wait. `T` is what is held for each.
pub struct Fragments<T> {
    enabled: [bool; 2],
    minimum: [u32; 2],
    most: u32,
    most_buffers: u64,
    held: u32,
    buffers: u64,
    counts: [Counts; 2],
    partials: HashMap<Key, Partial<T>, Keyed>,
    /// Datagrams in the order in which they expire: serial to key, and the time.
    order: BTreeMap<u64, (Key, u64)>,
    holders: HashMap<u64, Holder, Keyed>,
    /// Serials of the datagrams of each holder's sources.
    sources: HashMap<(u64, IpAddr), BTreeSet<u64>, Keyed>,
    /// The holders by what they have waiting, in fragments and in buffers.
    weights: [BTreeSet<(u64, u64)>; 2],
    serial: u64,
}

impl<T> Default for Fragments<T> {
    fn default() -> Self {
        Fragments {
            enabled: [true; 2],
            minimum: [1200, 1280],
            most: DEFAULT_MOST,
            most_buffers: u64::MAX,
            held: 0,
            buffers: 0,
            counts: [Counts::default(); 2],
            partials: HashMap::default(),
            order: BTreeMap::new(),
            holders: HashMap::default(),
            sources: HashMap::default(),
            weights: Default::default(),
            serial: 0,
        }
    }
}

impl<T> Fragments<T> {
    /// Offers a fragment. `hold` makes what is held, only if it is. Time is in milliseconds and
    /// does not go back.
    pub fn offer(
        &mut self,
        fragment: &Fragment,
        request: &Request,
        now_ms: u64,
        hold: impl FnOnce() -> T,
    ) -> Offer<T> {
        let mut ended = Vec::new();
        let outcome = match self.admit(fragment, request, now_ms, &mut ended) {
            Ok(()) => self.add(fragment, request, hold(), &mut ended),
            Err(refused) => Outcome::Refused(refused),
        };
        Offer { outcome, ended }
    }

    /// Finds out whether a fragment can be held, and makes room for it and a list.
    fn admit(
        &mut self,
        fragment: &Fragment,
        request: &Request,
        now_ms: u64,
        ended: &mut Vec<T>,
    ) -> Result<(), Refused> {
        let family = usize::from(fragment.is_v6());
        if self.enabled == [false; 2] {
            return Err(Refused::Disabled);
        }
        // As in Open vSwitch, also where only the other family is enabled.
        if fragment.more && fragment.packet_length() < self.minimum[family] as usize {
            self.counts[family].too_small += 1;
            return Err(Refused::TooSmall);
        }
        if !self.enabled[family] {
            return Err(Refused::Disabled);
        }
        let key = (fragment.datagram, request.place);
        let most = self.most_of_one(family);
        let (mut request, mut completes, mut own) = (*request, false, None);
        if let Some(partial) = self.partials.get(&key) {
            if partial.pieces.len() >= most {
                self.counts[family].full += 1;
                return Err(Refused::Full);
            }
            if !partial.has_room_for(fragment) {
                self.counts[family].overlapped += 1;
                return Err(Refused::Overlaps);
            }
            // It counts for whom its datagram counts.
            request.holder = partial.holder;
            own = Some(partial.serial);
            completes = partial.is_completed_by(fragment);
        }
        // The last one to come does not stay.
        if !completes && !self.make_room(&request, own, ended) {
            self.counts[family].full += 1;
            return Err(Refused::Full);
        }
        if !self.partials.contains_key(&key) {
            self.serial += 1;
            let (serial, holder) = (self.serial, request.holder);
            self.order.insert(serial, (key, now_ms + TIMEOUT_MS));
            let waits = Some((source(&fragment.datagram), serial, true));
            self.weigh(holder, |_| {}, waits);
            let partial = Partial {
                pieces: Vec::new(),
                came: 0,
                whole: None,
                serial,
                holder,
            };
            self.partials.insert(key, partial);
        }
        Ok(())
    }

    /// Returns how many fragments a datagram may have: as many as the longest has if all are as
    /// small as they may be, with the longest headers. Those of IPv6 may be longer, and leave 8
    /// bytes for payload; one datagram of such could take all room. (Open vSwitch has no limit for
    /// IPv6.)
    fn most_of_one(&self, family: usize) -> usize {
        let (headers, payload) = match family {
            0 => (IPV4_HEADER_MAX, PACKET_MAX - IPV4_HEADER_MAX),
            _ => (IPV6_HEADERS_MAX, PACKET_MAX),
        };
        let least = self.minimum[family].saturating_sub(headers).max(1);
        payload.div_ceil(least) as usize
    }

    /// Returns what a fragment in so many buffers finds no room for, if anything.
    fn scarce(&self, buffers: u32) -> Option<Scarce> {
        if self.held >= self.most {
            return Some(Scarce::Fragments);
        }
        let is_full = self.buffers + u64::from(buffers) > self.most_buffers;
        is_full.then_some(Scarce::Buffers)
    }

    /// Ends the waiting of datagrams, as far as necessary: of those that have more waiting than the
    /// holder, or of its own, other than the one with the serial `own`. Returns false if that does
    /// not give room for a fragment.
    fn make_room(&mut self, request: &Request, own: Option<u64>, ended: &mut Vec<T>) -> bool {
        let Request {
            holder, buffers, ..
        } = *request;
        let is_possible = self.most > 0 && u64::from(buffers) <= self.most_buffers;
        if !(is_possible && request.makes_room) {
            return self.scarce(buffers).is_none();
        }
        for _ in 0..GIVE_WAY {
            let Some(scarce) = self.scarce(buffers) else {
                return true;
            };
            let needed = match scarce {
                Scarce::Fragments => 1,
                Scarce::Buffers => u64::from(buffers),
            };
            let scarce = scarce as usize;
            let weight = self.holders.get(&holder).map_or(0, |own| own.has[scarce]);
            let heaviest = self.weights[scarce].last().copied();
            let other = heaviest.filter(|&(most, _)| most > weight + needed);
            let gives_way = match other {
                Some((_, other)) => self.first_to_go(other, None),
                None => self.first_to_go(holder, own),
            };
            let Some(serial) = gives_way else {
                return false;
            };
            let before = ended.len();
            let family = self.end(serial, ended);
            let count = (ended.len() - before) as u64;
            let counts = &mut self.counts[family];
            counts.expired += count;
            match other {
                Some(_) => counts.evicted += count,
                None => counts.displaced += count,
            }
        }
        self.scarce(buffers).is_none()
    }

    /// Returns the datagram of a holder that is the first to give way, `besides` this one.
    fn first_to_go(&self, holder: u64, besides: Option<u64>) -> Option<u64> {
        let sources = &self.holders.get(&holder)?.sources;
        let mut ranks = sources.iter().rev().copied();
        let (most, Reverse(first)) = ranks.next()?;
        if Some(first) != besides {
            return Some(first);
        }
        // Without it, its source is as soon to give way as its second oldest says.
        let (key, _) = self.order.get(&first)?;
        let same = self.sources.get(&(holder, source(&key.0)))?;
        let second = same.iter().nth(1).map(|serial| (most, Reverse(*serial)));
        let (_, Reverse(serial)) = second.max(ranks.next())?;
        Some(serial)
    }

    /// Adds a fragment that was admitted.
    fn add(
        &mut self,
        fragment: &Fragment,
        request: &Request,
        held: T,
        ended: &mut Vec<T>,
    ) -> Outcome<T> {
        let key = (fragment.datagram, request.place);
        let buffers = request.buffers;
        let family = usize::from(fragment.is_v6());
        let Some(partial) = self.partials.get_mut(&key) else {
            // Not reached: it was admitted.
            ended.push(held);
            return Outcome::Held;
        };
        partial.came += fragment.length;
        if !fragment.more {
            partial.whole = Some(fragment.end());
        }
        let pieces = &mut partial.pieces;
        let at = pieces.partition_point(|other| other.fragment.offset < fragment.offset);
        let piece = Piece {
            fragment: *fragment,
            buffers,
            held,
        };
        pieces.insert(at, piece);
        let (serial, holder) = (partial.serial, partial.holder);
        // Without overlaps, nothing is missing once all bytes have come.
        let is_whole = partial.whole == Some(partial.came);
        let too_long = pieces[0].fragment.is_too_long_with(partial.came);
        self.held += 1;
        self.buffers += u64::from(buffers);
        self.counts[family].accepted += 1;
        let more = [1, u64::from(buffers)];
        self.weigh(
            holder,
            |has| *has = [has[0] + more[0], has[1] + more[1]],
            None,
        );
        if !is_whole {
            return Outcome::Held;
        }
        if too_long {
            let before = ended.len();
            self.end(serial, ended);
            self.counts[family].expired += (ended.len() - before) as u64;
            return Outcome::Held;
        }
        let pieces = self.take(serial);
        self.counts[family].completed += pieces.len() as u64;
        let whole = (pieces.into_iter()).map(|piece| (piece.fragment, piece.held));
        Outcome::Whole(whole.collect())
    }

    /// Changes what a holder has waiting, and whether the datagram with this source and serial
    /// waits.
    fn weigh(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut Amounts),
        waits: Option<(IpAddr, u64, bool)>,
    ) {
        let holder = self.holders.entry(number).or_default();
        for (weights, has) in self.weights.iter_mut().zip(holder.has) {
            weights.remove(&(has, number));
        }
        change(&mut holder.has);
        if let Some((source, serial, waits)) = waits {
            let datagrams = self.sources.entry((number, source)).or_default();
            if let Some(rank) = rank(datagrams) {
                holder.sources.remove(&rank);
            }
            match waits {
                true => datagrams.insert(serial),
                false => datagrams.remove(&serial),
            };
            match rank(datagrams) {
                Some(rank) => drop(holder.sources.insert(rank)),
                None => drop(self.sources.remove(&(number, source))),
            }
        }
        if holder.sources.is_empty() {
            self.holders.remove(&number);
        } else {
            for (weights, has) in self.weights.iter_mut().zip(holder.has) {
                weights.insert((has, number));
            }
        }
    }

    /// Removes a datagram and returns what has come of it.
    fn take(&mut self, serial: u64) -> Vec<Piece<T>> {
        let Some((key, _)) = self.order.remove(&serial) else {
            return Vec::new();
        };
        let Some(partial) = self.partials.remove(&key) else {
            return Vec::new();
        };
        let buffers = partial.pieces.iter().map(|piece| u64::from(piece.buffers));
        let less = [partial.pieces.len() as u64, buffers.sum()];
        self.held -= less[0] as u32;
        self.buffers -= less[1];
        let waits = Some((source(&key.0), serial, false));
        let take = |has: &mut Amounts| *has = [has[0] - less[0], has[1] - less[1]];
        self.weigh(partial.holder, take, waits);
        partial.pieces
    }

    /// Ends the waiting of a datagram's fragments, and returns its family.
    fn end(&mut self, serial: u64, ended: &mut Vec<T>) -> usize {
        let pieces = self.take(serial);
        let family = pieces.first().is_some_and(|piece| piece.fragment.is_v6());
        ended.extend(pieces.into_iter().map(|piece| piece.held));
        family.into()
    }

    /// Returns fragments whose time is over: of whole datagrams, and not many more than `most`.
    pub fn expire(&mut self, now_ms: u64, most: usize) -> Vec<T> {
        let mut ended = Vec::new();
        while let Some((&serial, &(_, until_ms))) = self.order.first_key_value()
            && until_ms < now_ms
            && ended.len() < most
        {
            let before = ended.len();
            let family = self.end(serial, &mut ended);
            self.counts[family].expired += (ended.len() - before) as u64;
        }
        ended
    }

    /// Returns fragments for whom [`Fragments::expire`] has not been called in time.
    pub fn purge_overdue(&mut self, now_ms: u64) -> Vec<T> {
        let overdue = |(_, until_ms): &(Key, u64)| until_ms + OVERDUE_MS <= now_ms;
        let serials = self.order.iter().take_while(|(_, entry)| overdue(entry));
        let serials = serials.map(|(serial, _)| *serial).collect();
        self.purge_these(serials)
    }

    /// Returns all fragments, to be thrown away.
    pub fn purge(&mut self) -> Vec<T> {
        let serials = self.order.keys().copied().collect();
        self.purge_these(serials)
    }

    fn purge_these(&mut self, serials: Vec<u64>) -> Vec<T> {
        let mut purged = Vec::new();
        for serial in serials {
            let before = purged.len();
            let family = self.end(serial, &mut purged);
            self.counts[family].purged += (purged.len() - before) as u64;
        }
        purged
    }

    /// Returns the time from which [`Fragments::expire`] has something to return, if any waits.
    pub fn due_ms(&self) -> Option<u64> {
        let (_, (_, until_ms)) = self.order.first_key_value()?;
        Some(until_ms + 1)
    }

    /// Sets whether fragments of a family are put together. Those that wait go on waiting.
    pub fn set_enabled(&mut self, v6: bool, is_enabled: bool) {
        self.enabled[usize::from(v6)] = is_enabled;
    }

    /// Sets the least size of a family's fragments other than last ones, in bytes of the IP packet;
    /// at least [`LEAST_MINIMUM`].
    pub fn set_minimum(&mut self, v6: bool, bytes: u32) -> Result<(), OutOfRange> {
        if bytes < LEAST_MINIMUM {
            return Err(OutOfRange);
        }
        self.minimum[usize::from(v6)] = bytes;
        Ok(())
    }

    /// Sets how many fragments are held at most, up to [`MOST`]. Those that wait go on waiting, as
    /// long as no others need their room.
    pub fn set_most(&mut self, most: u32) -> Result<(), OutOfRange> {
        if most > MOST {
            return Err(OutOfRange);
        }
        self.most = most;
        Ok(())
    }

    /// Sets how many buffers are held at most.
    pub fn set_most_buffers(&mut self, most: u64) {
        self.most_buffers = most;
    }

    /// Returns settings and counts.
    pub fn status(&self) -> Status {
        let family = |number: usize| Family {
            is_enabled: self.enabled[number],
            minimum: self.minimum[number],
            counts: self.counts[number],
        };
        Status {
            most: self.most,
            held: self.held,
            v4: family(0),
            v6: family(1),
        }
    }

    /// Returns the datagrams of which fragments wait, the oldest first: the first `most` ones that
    /// began after this one, or of all. A list in such parts holds up those that offer fragments no
    /// longer than a part takes, and ends if it leaves out those that have begun meanwhile
    /// ([`Fragments::latest`]).
    pub fn waiting(&self, after: Option<Serial>, most: usize) -> Vec<Waiting> {
        let from = after.map_or(0, |Serial(serial)| serial + 1);
        let waiting = self.order.range(from..).take(most);
        let waiting = waiting.filter_map(|(serial, (key, _))| {
            let partial = self.partials.get(key)?;
            Some(partial.describe(key, Serial(*serial)))
        });
        waiting.collect()
    }

    /// Returns the datagram that began last, if one ever did, whether or not it still waits.
    pub fn latest(&self) -> Serial {
        Serial(self.serial)
    }
}

/// Returns who has sent a datagram.
fn source(datagram: &Datagram) -> IpAddr {
    match datagram.addresses {
        Addresses::V4 { src, .. } => Ipv4Addr::from(src).into(),
        Addresses::V6 { src, .. } => Ipv6Addr::from(src).into(),
    }
}

/// Returns how soon a source with these datagrams gives way.
fn rank(datagrams: &BTreeSet<u64>) -> Option<Rank> {
    let oldest = datagrams.first()?;
    Some((datagrams.len().max(EQUAL), Reverse(*oldest)))
}

impl<T> Partial<T> {
    /// Returns whether a fragment neither overlaps those that have come nor contradicts them.
    fn has_room_for(&self, fragment: &Fragment) -> bool {
        let at = (self.pieces).partition_point(|other| other.fragment.offset < fragment.offset);
        let before = at.checked_sub(1).map(|at| &self.pieces[at].fragment);
        let after = self.pieces.get(at).map(|piece| &piece.fragment);
        let overlaps = before.is_some_and(|other| other.end() > fragment.offset)
            || after.is_some_and(|other| fragment.end() > other.offset);
        let contradicts = match (self.whole, fragment.more) {
            (Some(whole), true) => fragment.end() >= whole,
            (Some(_), false) => true,
            (None, true) => false,
            (None, false) => after.is_some(),
        };
        !overlaps && !contradicts
    }

    /// Returns whether a fragment for which there is room is the only one that is missing.
    fn is_completed_by(&self, fragment: &Fragment) -> bool {
        let whole = match fragment.more {
            true => self.whole,
            false => Some(fragment.end()),
        };
        whole == Some(self.came + fragment.length)
    }

    fn describe(&self, (datagram, place): &Key, serial: Serial) -> Waiting {
        Waiting {
            serial,
            datagram: *datagram,
            place: *place,
            fragments: self.pieces.len(),
            has_first: (self.pieces.first()).is_some_and(|piece| piece.fragment.is_first()),
            has_last: self.whole.is_some(),
        }
    }
}

impl Waiting {
    /// Adds its line to a text, as `dpctl/ipf-get-status -m` prints it.
    pub fn print(&self, text: &mut String) {
        let kind = match self.datagram.addresses {
            Addresses::V4 { src, dst } => {
                let (src, dst) = (Ipv4Addr::from(src), Ipv4Addr::from(dst));
                let _ = write!(text, "(src={src},dst={dst},");
                0x800
            }
            Addresses::V6 { src, dst } => {
                let (src, dst) = (Ipv6Addr::from(src), Ipv6Addr::from(dst));
                let _ = write!(text, "(src={src},dst={dst},");
                0x86dd
            }
        };
        let state = match (self.has_first, self.has_last) {
            (true, true) => "first/last frag",
            (true, false) => "first frag",
            (false, true) => "last frag",
            (false, false) => "other frag",
        };
        let _ = writeln!(
            text,
            "recirc_id={},ip_id={},dl_type={kind:#x},zone={},nw_proto={},num_fragments={},\
             state={state})",
            self.place.pass,
            self.datagram.id,
            self.place.zone,
            self.datagram.protocol,
            self.fragments,
        );
    }
}

impl Status {
    /// Returns it as `dpctl/ipf-get-status` prints it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "        Fragmentation Module Status\n        ---------------------------\n        \
             v4 enabled: {}\n        v6 enabled: {}\n        max num frags (v4/v6): {}\n        \
             num frag: {}\n",
            u8::from(self.v4.is_enabled),
            u8::from(self.v6.is_enabled),
            self.most,
            self.held,
        );
        for (name, family) in [("v4", &self.v4), ("v6", &self.v6)] {
            let counts = &family.counts;
            let _ = writeln!(text, "        min {name} frag size: {}", family.minimum);
            for (what, count) in [
                ("accepted", counts.accepted),
                ("completed", counts.completed),
                ("expired", counts.expired),
                ("too small", counts.too_small),
                ("overlapped", counts.overlapped),
                ("purged", counts.purged),
            ] {
                let _ = writeln!(text, "        {name} frags {what}: {count}");
            }
        }
        text
    }

    /// Returns the counts by the names that `coverage/show` gives them.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        let both = |of: fn(&Counts) -> u64| of(&self.v4.counts) + of(&self.v6.counts);
        [
            (
                "conntrack_fragments_accepted",
                both(|counts| counts.accepted),
            ),
            (
                "conntrack_fragments_completed",
                both(|counts| counts.completed),
            ),
            ("conntrack_fragments_expired", both(|counts| counts.expired)),
            ("conntrack_fragments_evicted", both(|counts| counts.evicted)),
            (
                "conntrack_fragments_displaced",
                both(|counts| counts.displaced),
            ),
            (
                "conntrack_fragments_too_small",
                both(|counts| counts.too_small),
            ),
            (
                "conntrack_fragments_overlapped",
                both(|counts| counts.overlapped),
            ),
            ("conntrack_fragments_full", both(|counts| counts.full)),
            // The name that Open vSwitch has.
            ("ipf_stuck_frag_list_purged", both(|counts| counts.purged)),
        ]
    }
}
