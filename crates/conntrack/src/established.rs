//! What packets of established connections read without the lock of a shard.
//!
//! A connection whose packets change little has a line, one cache line with all that is to be
//! known of it ([`Content`]): TCP between the handshake and the first FIN or RST, and any other
//! protocol once there were packets in both directions, unless it is watched by a helper. Packets
//! find it by an index of hashes. TCP's sequence numbers lie beside the lines; while a line is in
//! use, they are kept up to date there and nowhere else. The tuple of the replies of a translated
//! connection lies beside its line, too, which is entered by both hashes; and so do the addresses
//! of IPv6, of which the line has a digest only, of both directions where they are translated.
//!
//! Packets of UDP and TCP over IPv4 are told from others by two words ([`Established::follow`]),
//! all others by their key ([`Established::follow_key`]).
//!
//! The index is lossy. An entry that finds no room in its bucket goes into the neighbour, so that
//! two buckets are as one of twice the size, of which the second half is read only where the first
//! is full. An entry may lack, because two full buckets have given it up, or because the index has
//! grown: its connection may now belong in another bucket, and the old entry is dead. Then the
//! packet goes by the shard, which enters the connection again. An entry may also lead to
//! a line that by now is another connection's; so the whole tuple is compared.
//!
//! Lines are written, taken and given back under the lock of the connection's shard only. Their
//! memory is never freed, so that those who still read one read a line.

use crate::key::{Address, Key, Secret, TCP};
use crate::nat::{Direction, Translation};
use crate::request::{Earlier, Tracked, Tuple};
use crate::state;
use crate::stripes::Striped;
use crate::sync::{AtomicU64, Ordering};
use crate::tcp::{self, Segment, Side};
use crate::versioned::{Version, Versioned};
use packet::parse::prefetch_at;
use packet::tuple::ShortTuple;
use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use zerocopy::{FromZeros, KnownLayout};

/// Stands for no line.
pub(crate) const NO_LINE: u32 = u32::MAX;
/// Lines that a shard takes at a time.
const BATCH: u32 = 8;
/// Lines in a block: making one takes some 20 us.
const BLOCK: usize = 1 << 12;
/// Blocks; connections beyond these have no lines.
const BLOCKS: usize = 1 << 12;
/// Entries in a bucket, a cache line.
const WAYS: usize = 8;
/// Buckets in a part of the index, as a power of two. Parts are made when they are needed.
const PART: u32 = 10;
/// Entries that a thread begins between looks at whether the index is to grow.
const LOOK: u64 = 64;
/// Buckets of the largest index, as a power of two.
const LARGEST: u32 = 21;
/// How much earlier than before a packet may have its connection end, in milliseconds: workers'
/// clocks differ by so much at most.
const EARLIER_MS: u64 = 100;
/// Words of a line's content.
const CONTENT: usize = 6;

/// A line. Zeroed memory is that of no connection.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
struct Line {
    version: AtomicU64,
    content: [AtomicU64; CONTENT],
    /// When the connection ends, in milliseconds.
    expires: AtomicU64,
}

const _: () = assert!(size_of::<Line>() == 64);

/// Both sides of a TCP connection, as [`Side::to_words`] has them; the last word is not used.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(32))]
struct Sides([AtomicU64; 4]);

/// The tuple of a translated connection's replies, as they come in.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(16))]
struct Replies([AtomicU64; 2]);

/// The addresses of a connection over IPv6: source, destination.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(32))]
struct Addresses([[AtomicU64; 2]; 2]);

/// Those of a translated connection: of the first packet, and of replies as they come in.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
struct BothAddresses([Addresses; 2]);

/// What a line says, but for the time of the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    pub tuple: Short,
    /// The tuple of replies, where the connection is translated.
    pub replies: Option<Short>,
    /// The whole addresses, where tuples have their digests.
    pub addresses: Whole,
    /// The direction of translation that was asked for.
    pub nat: Option<Direction>,
    /// How often timeouts have been changed; with another number, `timeout_ms` is out of date.
    pub policies: u32,
    pub timeout_ms: u32,
    pub mark: u32,
    pub label: u128,
}

/// What lies beside a line of the addresses that its tuples do not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whole {
    /// Nothing: it is of IPv4.
    Nothing,
    /// Those of the first packet. Replies have the same, the other way round.
    One([Address; 2]),
    /// Those of the first packet, and those of replies as they come in.
    Both([[Address; 2]; 2]),
}

/// Bits of a line's fourth word, above the mark: the directions of translation, and whether replies
/// have a tuple of their own.
const SOURCE: u64 = 1 << 32;
const DESTINATION: u64 = 1 << 33;
const TRANSLATED: u64 = 1 << 34;

impl Content {
    /// Returns the line's words; the tuple of replies is not among them.
    fn words(&self) -> [u64; CONTENT] {
        let nat = match self.nat {
            None => 0,
            Some(Direction::Source) => SOURCE,
            Some(Direction::Destination) => DESTINATION,
        };
        let translated = if self.replies.is_some() {
            TRANSLATED
        } else {
            0
        };
        [
            self.tuple.addresses,
            self.tuple.rest,
            u64::from(self.policies) << 32 | u64::from(self.timeout_ms),
            u64::from(self.mark) | nat | translated,
            (self.label >> 64) as u64,
            self.label as u64,
        ]
    }
}

/// A tuple with its zone: of IPv4, or of IPv6 with digests of its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Short {
    /// Source, destination.
    addresses: u64,
    /// Ports, zone, protocol, whether the addresses are digests. To each port the square of the
    /// type of its end's ICMP messages is added: by the difference of the two, the types of each
    /// direction are told from those of the other and from other types.
    rest: u64,
}

/// The bit of [`Short::rest`] that says that addresses are digests.
const DIGESTS: u64 = 1;

/// Returns what is added to the port of an end with this type of ICMP messages.
fn square(kind: u8) -> u16 {
    u16::from(kind).wrapping_mul(kind.into())
}

impl Short {
    /// No packet's tuple.
    pub const NONE: Short = Short {
        addresses: 0,
        rest: 0,
    };

    /// Makes one of the source and destination addresses and ports as they lie in headers.
    #[inline(always)]
    pub fn new(addresses: u64, ports: u32, zone: u16, protocol: u8) -> Short {
        Short {
            addresses,
            rest: u64::from(ports) << 32 | u64::from(zone) << 16 | u64::from(protocol) << 8,
        }
    }

    /// Makes one of what has been read of a packet; of nothing, [`Short::NONE`].
    #[inline(always)]
    pub fn read(ShortTuple { addresses, rest }: ShortTuple, zone: u16) -> Short {
        let zone = match rest {
            0 => 0,
            _ => u64::from(zone) << 16,
        };
        Short {
            addresses,
            rest: rest | zone,
        }
    }

    /// Makes one of a key. If it is of IPv6, others may have the same one, even that of the other
    /// direction.
    pub fn of(key: &Key) -> Short {
        let [source, destination] = key.addresses.map(|[high, low]| match key.v6 {
            false => low,
            true => {
                let both = high.rotate_left(17) ^ low;
                both >> 32 ^ both & 0xffff_ffff
            }
        });
        let port = |end: usize| u32::from(key.ports[end].wrapping_add(square(key.kinds[end])));
        let ports = port(0) << 16 | port(1);
        let addresses = source << 32 | destination;
        let Short { addresses, rest } = Short::new(addresses, ports, key.zone, key.protocol);
        let digests = if key.v6 { DIGESTS } else { 0 };
        Short {
            addresses,
            rest: rest | digests,
        }
    }

    /// Returns the same as a key. Only for IPv4, and not for ICMP.
    pub fn key(self) -> Key {
        self.key_with(self.addresses(), [0; 2])
    }

    /// Returns the key that has these addresses and types of ICMP messages.
    fn key_with(self, addresses: [Address; 2], kinds: [u8; 2]) -> Key {
        let part = |shift: u32| (self.rest >> shift) as u16;
        Key {
            addresses,
            ports: [
                part(48).wrapping_sub(square(kinds[0])),
                part(32).wrapping_sub(square(kinds[1])),
            ],
            kinds,
            zone: part(16),
            protocol: self.protocol(),
            v6: self.has_digests(),
        }
    }

    /// Returns the addresses. Only for IPv4.
    fn addresses(self) -> [Address; 2] {
        [32, 0].map(|shift: u32| [0, u64::from((self.addresses >> shift) as u32)])
    }

    fn has_digests(self) -> bool {
        self.rest & DIGESTS != 0
    }

    /// Returns the hash, that of [`Secret::hash`]. Only for IPv4, and not for ICMP.
    #[inline(always)]
    pub fn hash(self, secret: Secret) -> u64 {
        let end = |address: u64, port: u64| secret.end(address & 0xffff_ffff, port << 8);
        let ports = self.rest >> 32;
        let ends = end(self.addresses >> 32, ports >> 16)
            .wrapping_add(end(self.addresses, ports & 0xffff));
        // Zone and protocol lie in the lower half as they do there.
        secret.whole(ends, self.rest & 0xffff_ffff)
    }

    /// Returns the tuple of the other direction.
    #[inline(always)]
    pub fn reversed(self) -> Short {
        let ports = (self.rest >> 32) as u32;
        Short {
            addresses: self.addresses.rotate_left(32),
            rest: u64::from(ports.rotate_left(16)) << 32 | self.rest & 0xffff_ffff,
        }
    }

    #[inline(always)]
    fn ends(self) -> Ends {
        let end = |address: u64, port: u64| (Ipv4Addr::from_bits(address as u32), port as u16);
        [
            end(self.addresses >> 32, self.rest >> 48),
            end(self.addresses, self.rest >> 32),
        ]
    }

    #[inline(always)]
    pub fn is_tcp(self) -> bool {
        self.protocol() == TCP
    }

    #[inline(always)]
    pub fn protocol(self) -> u8 {
        (self.rest >> 8) as u8
    }
}

/// What a packet of an established connection is told whose request changes nothing about that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    original: Short,
    /// The packet's tuple as it comes in, and as it is to go out.
    from: Short,
    to: Short,
    label: u128,
    /// State and mark. One word, because it is read as one: a processor waits for what it has
    /// written in parts.
    about: u64,
}

impl Settled {
    /// Returns bits of [`crate::state`].
    #[inline(always)]
    pub fn state(&self) -> u32 {
        (self.about >> 32) as u32
    }

    /// Returns the addresses (source, destination) and ports that the packet is to have; None if it
    /// stays as it is.
    #[inline(always)]
    pub fn translation(&self) -> Option<Ends> {
        (self.from != self.to).then(|| self.to.ends())
    }

    /// Returns the connection's mark.
    #[inline(always)]
    pub fn mark(&self) -> u32 {
        self.about as u32
    }

    /// Returns the connection's label.
    #[inline(always)]
    pub fn label(&self) -> u128 {
        self.label
    }

    /// Returns addresses and ports of the connection's first packet.
    #[inline(always)]
    pub fn original(&self) -> Ends {
        self.original.ends()
    }

    /// Returns the zone.
    #[inline(always)]
    pub fn zone(&self) -> u16 {
        (self.original.rest >> 16) as u16
    }

    /// Returns the IP protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.original.protocol()
    }

    /// Returns what the packet's next `ct` action is to know of this one
    /// ([`Tracked::earlier`]).
    #[inline(always)]
    pub fn earlier(&self, with_nat: bool) -> Earlier {
        Earlier {
            state: self.state(),
            zone: self.zone(),
            has_connection: !with_nat,
        }
    }

    /// Returns the same as it is said of any packet.
    pub fn tracked(&self) -> Tracked {
        let [(source, source_port), (destination, destination_port)] = self.original();
        let (from, to) = (self.from.ends(), self.to.ends());
        let changed = |end: usize| (from[end] != to[end]).then(|| (to[end].0.into(), to[end].1));
        Tracked {
            state: self.state(),
            zone: self.zone(),
            mark: self.mark(),
            label: self.label,
            original: Some(Tuple {
                source: source.into(),
                destination: destination.into(),
                protocol: self.protocol(),
                source_port,
                destination_port,
            }),
            translation: Translation {
                source: changed(0),
                destination: changed(1),
                inner: None,
            },
            rewrite: None,
            has_connection: true,
        }
    }
}

/// Source and destination: address and port of each.
pub type Ends = [(Ipv4Addr, u16); 2];

/// What packets that ask at the same time have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// Whether sequence numbers are checked.
    pub check_sequence: bool,
    /// How often timeouts have been changed.
    pub policies: u32,
    /// Whether packets are to be translated.
    pub nat: bool,
    pub now_ms: u64,
}

impl Line {
    fn versioned(&self) -> Versioned<'_, CONTENT> {
        Versioned {
            version: &self.version,
            words: &self.content,
        }
    }
}

impl Sides {
    #[inline(always)]
    fn load(&self) -> [Side; 2] {
        let words = [0, 1, 2].map(|word: usize| self.0[word].load(Ordering::Relaxed));
        Side::from_words(words)
    }

    #[inline(always)]
    fn store(&self, sides: &[Side; 2]) {
        for (word, value) in self.0.iter().zip(Side::to_words(sides)) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Addresses {
    #[inline(always)]
    fn load(&self) -> [Address; 2] {
        [load(&self.0[0]), load(&self.0[1])]
    }

    fn store(&self, addresses: &[Address; 2]) {
        for (beside, address) in self.0.iter().zip(addresses) {
            store(beside, address);
        }
    }
}

/// Hashes and lines: the upper half of an entry is the lower half of the hash, the lower half the
/// line's number plus one; 0 is no entry.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
pub(crate) struct HashBucket([AtomicU64; WAYS]);

/// A line that may be that of a packet's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached<'a> {
    line: &'a Line,
    number: u32,
}

/// A block of lines. Only TCP has sides, only translated connections have a tuple of replies, and
/// only those over IPv6 have addresses beside the line, in one of two forms.
#[derive(Debug)]
struct Block {
    lines: Box<[Line]>,
    sides: OnceLock<Box<[Sides]>>,
    replies: OnceLock<Box<[Replies]>>,
    addresses: OnceLock<Box<[Addresses]>>,
    both: OnceLock<Box<[BothAddresses]>>,
}

/// The hash of a connection, and that of its replies if these have a tuple of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashes {
    pub original: u64,
    pub replies: Option<u64>,
}

impl Hashes {
    fn each(self, mut with: impl FnMut(u64)) {
        with(self.original);
        self.replies.into_iter().for_each(with);
    }

    fn count(self) -> usize {
        1 + usize::from(self.replies.is_some())
    }
}

/// The lines of all connections, and the index by which packets find them.
#[derive(Debug)]
pub(crate) struct Established {
    blocks: Box<[OnceLock<Block>]>,
    /// Lines that shards have taken.
    taken: AtomicU32,
    index: Box<[OnceLock<Box<[HashBucket]>>]>,
    /// Buckets in use, as a power of two.
    size: AtomicU32,
    /// Entries of connections that have a line.
    count: Striped<1>,
    /// Counts changes of timeouts.
    policies: AtomicU32,
}

/// The place in a bucket that an entry takes if it is free.
#[inline(always)]
fn preferred(hash: u64) -> usize {
    (hash >> 29) as usize % WAYS
}

/// Removes an entry from a bucket. Somebody else's that has come meanwhile stays. Only places that
/// hold it are written, so that a bucket without it stays in other workers' caches.
fn clear(ways: &[AtomicU64; WAYS], entry: u64) {
    for way in ways {
        if way.load(Ordering::Relaxed) == entry {
            let _ = way.compare_exchange(entry, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Returns the number of the bucket that takes what finds no room in this one.
#[inline(always)]
fn neighbour(place: u32) -> u32 {
    place ^ 1
}

/// Returns a bucket's places in the order in which an entry takes them. Most entries are in the
/// first, so that a processor foresees how far a search goes.
#[inline(always)]
fn in_order(ways: &[AtomicU64; WAYS], hash: u64) -> impl Iterator<Item = &AtomicU64> {
    let first = preferred(hash);
    (0..WAYS).map(move |next| &ways[(first + next) % WAYS])
}

/// Returns the line that a bucket has for a hash, or [`NO_LINE`].
#[inline(always)]
fn find_in(HashBucket(ways): &HashBucket, hash: u64) -> u32 {
    for way in in_order(ways, hash) {
        let found = way.load(Ordering::Relaxed);
        if found >> 32 == hash & 0xffff_ffff && found != 0 {
            return (found as u32).wrapping_sub(1);
        }
    }
    NO_LINE
}

fn entry(hash: u64, line: u32) -> u64 {
    hash << 32 | (u64::from(line) + 1)
}

/// Writes words that lie beside a line.
fn store(beside: &[AtomicU64], words: &[u64]) {
    for (word, value) in beside.iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// Reads words that lie beside a line.
#[inline(always)]
fn load<const N: usize>(beside: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|word| beside[word].load(Ordering::Relaxed))
}

/// Returns zeroed memory. Empty where there is none.
pub(crate) fn zeroed<T>(count: usize) -> Box<[T]>
where
    [T]: FromZeros + KnownLayout<PointerMetadata = usize>,
{
    <[T]>::new_box_zeroed_with_elems(count).unwrap_or_default()
}

impl Established {
    pub fn new() -> Established {
        Established {
            blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
            taken: AtomicU32::new(0),
            index: (0..1 << (LARGEST - PART))
                .map(|_| OnceLock::new())
                .collect(),
            size: AtomicU32::new(PART),
            count: Striped::default(),
            policies: AtomicU32::new(0),
        }
    }

    /// Returns how often timeouts have been changed.
    #[inline(always)]
    pub fn policies(&self) -> u32 {
        self.policies.load(Ordering::Acquire)
    }

    /// Has each connection look at its timeouts anew. To be called when all shards have the new
    /// ones.
    pub fn policies_changed(&self) {
        self.policies.fetch_add(1, Ordering::Release);
    }

    #[inline(always)]
    fn block(&self, number: u32) -> Option<&Block> {
        self.blocks.get(number as usize / BLOCK)?.get()
    }

    #[inline(always)]
    fn line(&self, number: u32) -> Option<&Line> {
        self.block(number)?.lines.get(number as usize % BLOCK)
    }

    /// Returns the sides of a TCP connection.
    #[inline(always)]
    fn sides(&self, number: u32) -> Option<&Sides> {
        let sides = self.block(number)?.sides.get()?;
        sides.get(number as usize % BLOCK)
    }

    /// Returns where the tuple of a translated connection's replies is.
    #[inline(always)]
    fn replies(&self, number: u32) -> Option<&Replies> {
        let replies = self.block(number)?.replies.get()?;
        replies.get(number as usize % BLOCK)
    }

    /// Returns where the addresses of a connection over IPv6 are.
    #[inline(always)]
    fn addresses(&self, number: u32) -> Option<&Addresses> {
        let addresses = self.block(number)?.addresses.get()?;
        addresses.get(number as usize % BLOCK)
    }

    /// Returns where those of both directions are, if it is translated.
    #[inline(always)]
    fn both(&self, number: u32) -> Option<&BothAddresses> {
        let both = self.block(number)?.both.get()?;
        both.get(number as usize % BLOCK)
    }

    /// Takes some lines. None where there are no more.
    pub fn take(&self) -> Option<std::ops::Range<u32>> {
        const LINES: u32 = (BLOCK * BLOCKS) as u32;
        let more = |taken: u32| (taken < LINES).then_some(taken + BATCH);
        let first = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        let block = self.blocks.get(first as usize / BLOCK)?;
        let block = block.get_or_init(|| Block {
            lines: zeroed(BLOCK),
            sides: OnceLock::new(),
            replies: OnceLock::new(),
            addresses: OnceLock::new(),
            both: OnceLock::new(),
        });
        (!block.lines.is_empty()).then_some(first..first + BATCH)
    }

    /// Returns the number of a hash's bucket.
    #[inline(always)]
    fn place(&self, hash: u64) -> u32 {
        let size = self.size.load(Ordering::Relaxed);
        hash as u32 & ((1 << size) - 1)
    }

    #[inline(always)]
    fn bucket(&self, place: u32) -> Option<&HashBucket> {
        let part = self.index.get((place >> PART) as usize)?.get()?;
        part.get(place as usize & ((1 << PART) - 1))
    }

    /// Has packets find a connection by its line. `expires` is when it ends, `sides` those of TCP.
    /// Returns false, with the line withdrawn, where there is no memory. Only with the lock of its
    /// shard.
    pub fn publish(
        &self,
        hashes: Hashes,
        number: u32,
        content: &Content,
        expires: u64,
        sides: Option<&[Side; 2]>,
    ) -> bool {
        let (Some(block), Some(line)) = (self.block(number), self.line(number)) else {
            return false;
        };
        let (versioned, words) = (line.versioned(), content.words());
        if versioned.is_withdrawn() || versioned.words() != words {
            versioned.withdraw();
            if let Some(sides) = sides {
                let all = block.sides.get_or_init(|| zeroed(BLOCK));
                let Some(beside) = all.get(number as usize % BLOCK) else {
                    return false;
                };
                beside.store(sides);
            }
            if let Some(Short { addresses, rest }) = content.replies {
                let all = block.replies.get_or_init(|| zeroed(BLOCK));
                let Some(Replies(beside)) = all.get(number as usize % BLOCK) else {
                    return false;
                };
                store(beside, &[addresses, rest]);
            }
            match &content.addresses {
                Whole::Nothing => {}
                Whole::One(addresses) => {
                    let all = block.addresses.get_or_init(|| zeroed(BLOCK));
                    let Some(beside) = all.get(number as usize % BLOCK) else {
                        return false;
                    };
                    beside.store(addresses);
                }
                Whole::Both(addresses) => {
                    let all = block.both.get_or_init(|| zeroed(BLOCK));
                    let Some(BothAddresses(beside)) = all.get(number as usize % BLOCK) else {
                        return false;
                    };
                    beside[0].store(&addresses[0]);
                    beside[1].store(&addresses[1]);
                }
            }
            line.expires.store(expires, Ordering::Relaxed);
            versioned.publish(words);
        }
        hashes.each(|hash| self.enter(hash, number));
        true
    }

    /// Counts one more connection that has a line.
    pub fn begin(&self, hashes: Hashes) {
        let own = self.count.add(0, hashes.count() as u64);
        // Other threads' parts are looked at now and then only.
        if own % LOOK < hashes.count() as u64 {
            self.grow();
        }
    }

    #[cold]
    fn grow(&self) {
        let size = self.size.load(Ordering::Relaxed);
        // The index is at most half full, but for what has begun since: of a thousand connections,
        // less than one then finds two buckets full. Parts are not read at the same moment: their
        // sum may be below zero.
        if (self.count.get(0) as i64).max(0) as usize > (1 << size) * WAYS / 2 && size < LARGEST {
            let _ =
                self.size
                    .compare_exchange(size, size + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Enters a line in the index.
    fn enter(&self, hash: u64, line: u32) {
        let place = self.place(hash);
        let Some(part) = self.index.get((place >> PART) as usize) else {
            return;
        };
        let part = part.get_or_init(|| zeroed(1 << PART));
        let bucket = |place: u32| part.get(place as usize & ((1 << PART) - 1));
        let (Some(HashBucket(own)), Some(HashBucket(other))) =
            (bucket(place), bucket(neighbour(place)))
        else {
            return;
        };
        let new = entry(hash, line);
        let is_free = |way: &AtomicU64| {
            let found = way.load(Ordering::Relaxed);
            found == 0 || self.is_dead(found, place)
        };
        if own.iter().any(|way| way.load(Ordering::Relaxed) == new) {
            return;
        }
        if let Some(way) = in_order(own, hash).find(|way| is_free(way)) {
            way.store(new, Ordering::Relaxed);
            // Where it may have been while this bucket was full nobody looks now.
            return clear(other, new);
        }
        if other.iter().any(|way| way.load(Ordering::Relaxed) == new) {
            return;
        }
        // Where both are full another one gives way; its next packet goes by the shard.
        let way = in_order(other, hash).find(|way| is_free(way));
        let way = way.unwrap_or(&own[preferred(hash)]);
        way.store(new, Ordering::Relaxed);
    }

    /// Whether nobody finds an entry in the bucket of this number or its neighbour.
    fn is_dead(&self, entry: u64, place: u32) -> bool {
        let own = self.place(entry >> 32);
        own != place && own != neighbour(place)
    }

    /// Has no packet read a line, and returns the sides of its TCP connection as they are now. Only
    /// with the lock of its shard.
    pub fn withdraw(&self, number: u32) -> Option<[Side; 2]> {
        self.line(number)?.versioned().withdraw();
        Some(self.sides(number)?.load())
    }

    /// Takes the line of a connection that ends, or that has to go by the shard from now on. Only
    /// with the lock of its shard.
    pub fn retire(&self, hashes: Hashes, number: u32) {
        self.withdraw(number);
        self.count.add(0, (hashes.count() as u64).wrapping_neg());
        hashes.each(|hash| {
            let (place, old) = (self.place(hash), entry(hash, number));
            for place in [place, neighbour(place)] {
                if let Some(HashBucket(ways)) = self.bucket(place) {
                    clear(ways, old);
                }
            }
        });
    }

    /// Returns when a line's connection ends.
    pub fn expires(&self, number: u32) -> Option<u64> {
        Some(self.line(number)?.expires.load(Ordering::Relaxed))
    }

    /// Sets when a line's connection ends. Only with the lock of its shard.
    pub fn set_expires(&self, number: u32, expires: u64) {
        if let Some(line) = self.line(number) {
            line.expires.store(expires, Ordering::Relaxed);
        }
    }

    /// Returns the bucket in which a connection would be entered, and has it fetched. None where it
    /// has not been made yet.
    #[inline(always)]
    pub fn fetch_bucket(&self, hash: u64) -> Option<&HashBucket> {
        let bucket = self.bucket(self.place(hash))?;
        prefetch_at(bucket);
        Some(bucket)
    }

    /// Returns a line that may be the connection's of this hash, and has it fetched. None if there
    /// is none.
    #[inline(always)]
    pub fn find(&self, hash: u64, tcp: bool) -> Option<Reached<'_>> {
        self.find_in_bucket(self.bucket(self.place(hash))?, hash, tcp)
    }

    /// [`Established::find`] for a hash whose bucket is known.
    #[inline(always)]
    pub fn find_in_bucket(&self, bucket: &HashBucket, hash: u64, tcp: bool) -> Option<Reached<'_>> {
        let mut number = find_in(bucket, hash);
        if number == NO_LINE {
            number = self.find_in_neighbour(bucket, hash);
        }
        let block = self.block(number)?;
        let at = number as usize % BLOCK;
        let line = block.lines.get(at)?;
        prefetch_at(line);
        if tcp && let Some(sides) = block.sides.get() {
            prefetch_at(sides.get(at)?);
        }
        if let Some(replies) = block.replies.get() {
            prefetch_at(replies.get(at)?);
        }
        Some(Reached { line, number })
    }

    /// Returns what [`find_in`] finds in the neighbour of a bucket that is full.
    #[cold]
    #[inline(never)]
    fn find_in_neighbour(&self, HashBucket(own): &HashBucket, hash: u64) -> u32 {
        if own.iter().any(|way| way.load(Ordering::Relaxed) == 0) {
            return NO_LINE;
        }
        match self.bucket(neighbour(self.place(hash))) {
            Some(bucket) => find_in(bucket, hash),
            None => NO_LINE,
        }
    }

    /// Answers for a packet by a line, if it is that of its connection, and prolongs this. None if
    /// the packet has to go by the shard; then nothing has changed. Only for UDP and TCP over IPv4.
    #[inline(always)]
    pub fn follow(
        &self,
        reached: Reached<'_>,
        tuple: Short,
        segment: impl FnOnce() -> Option<Segment>,
        asking: Asking,
    ) -> Option<Settled> {
        let seen = reached.read()?;
        let (original, replies) = self.tuples(reached, &seen)?;
        let reply = original != tuple;
        if reply && replies != tuple {
            return None;
        }
        self.prolong(reached, &seen, reply, segment, asking)?;
        let (bits, translates) = seen.state(reply, asking);
        let to = match (translates, reply) {
            (false, _) => tuple,
            (true, true) => original.reversed(),
            (true, false) => replies.reversed(),
        };
        Some(Settled {
            original,
            from: tuple,
            to,
            label: seen.label(),
            about: u64::from(bits) << 32 | u64::from(seen.mark()),
        })
    }

    /// [`Established::follow`] for a packet of any protocol with this key, which is no error.
    #[inline(never)]
    pub fn follow_key(
        &self,
        reached: Reached<'_>,
        key: &Key,
        segment: impl FnOnce() -> Option<Segment>,
        asking: Asking,
    ) -> Option<Tracked> {
        let seen = reached.read()?;
        let (original, replies) = self.tuples(reached, &seen)?;
        let addresses = if !original.has_digests() {
            [original.addresses(), replies.addresses()]
        } else if seen.is_translated() {
            let BothAddresses(beside) = self.both(reached.number)?;
            [beside[0].load(), beside[1].load()]
        } else {
            let [source, destination] = self.addresses(reached.number)?.load();
            [[source, destination], [destination, source]]
        };
        if !reached.line.versioned().is_still(seen.version) {
            return None;
        }
        // Digests may be the same in both directions.
        let tuple = Short::of(key);
        let is_of = |direction: usize| {
            [original, replies][direction] == tuple && addresses[direction] == key.addresses
        };
        let reply = !is_of(0);
        if reply && !is_of(1) {
            return None;
        }
        self.prolong(reached, &seen, reply, segment, asking)?;
        let (bits, translates) = seen.state(reply, asking);
        let [this, other] = key.kinds;
        let first = match reply {
            false => *key,
            true => original.key_with(addresses[0], [other, this]),
        };
        let mut translation = Translation::default();
        if translates {
            let to = match reply {
                true => first.reversed(),
                false => replies.key_with(addresses[1], [other, this]).reversed(),
            };
            translation.source = key.changed(&to, 0);
            translation.destination = key.changed(&to, 1);
        }
        Some(Tracked {
            state: bits,
            zone: key.zone,
            mark: seen.mark(),
            label: seen.label(),
            original: Some(first.tuple()),
            translation,
            rewrite: None,
            has_connection: true,
        })
    }

    /// Returns the tuples of both directions that go with what has been read of a line, or None if
    /// it has changed since.
    #[inline(always)]
    fn tuples(&self, reached: Reached<'_>, seen: &Seen) -> Option<(Short, Short)> {
        let [addresses, rest, ..] = seen.words;
        let original = Short { addresses, rest };
        let mut replies = original.reversed();
        if seen.is_translated() {
            let Replies(beside) = self.replies(reached.number)?;
            let [addresses, rest] = load(beside);
            replies = Short { addresses, rest };
            if !reached.line.versioned().is_still(seen.version) {
                return None;
            }
        }
        Some((original, replies))
    }

    /// Has a packet move TCP's numbers on, and the time of the end. None if it has to go by the
    /// shard; then nothing has changed.
    #[inline(always)]
    fn prolong(
        &self,
        Reached { line, number }: Reached<'_>,
        seen: &Seen,
        reply: bool,
        segment: impl FnOnce() -> Option<Segment>,
        asking: Asking,
    ) -> Option<()> {
        let [_, rest, timeout, ..] = seen.words;
        let (version, expires) = (seen.version, seen.expires);
        if (timeout >> 32) as u32 != asking.policies || expires <= asking.now_ms {
            return None;
        }
        let end = asking.now_ms.saturating_add(timeout & 0xffff_ffff);
        if expires > end.saturating_add(EARLIER_MS) {
            // The timeout has become shorter: the connection has to be examined earlier.
            return None;
        }
        if (Short { addresses: 0, rest }).is_tcp() {
            let sides = self.sides(number)?;
            let segment = segment().filter(|segment| segment.may_be_usual())?;
            if !line.versioned().claim(version) {
                return None;
            }
            let mut moved = sides.load();
            let usual = tcp::step_usual(&mut moved, reply.into(), &segment, asking.check_sequence);
            if usual {
                sides.store(&moved);
                line.expires.store(end, Ordering::Relaxed);
            }
            line.versioned().give_back(version);
            return usual.then_some(());
        }
        if end != expires {
            // The line may have become another connection's just now, which ends at another time;
            // or at the same, and then its next packet sets its end right.
            let _ =
                line.expires
                    .compare_exchange(expires, end, Ordering::Relaxed, Ordering::Relaxed);
        }
        Some(())
    }
}

/// What has been read of a line at once.
struct Seen {
    words: [u64; CONTENT],
    version: Version,
    expires: u64,
}

impl Reached<'_> {
    /// Reads the line. None while it is another reader's, or nobody's.
    #[inline(always)]
    fn read(&self) -> Option<Seen> {
        let expires = self.line.expires.load(Ordering::Relaxed);
        let (words, version) = self.line.versioned().read()?;
        Some(Seen {
            words,
            version,
            expires,
        })
    }
}

impl Seen {
    #[inline(always)]
    fn is_translated(&self) -> bool {
        self.words[3] & TRANSLATED != 0
    }

    #[inline(always)]
    fn mark(&self) -> u32 {
        self.words[3] as u32
    }

    #[inline(always)]
    fn label(&self) -> u128 {
        u128::from(self.words[4]) << 64 | u128::from(self.words[5])
    }

    /// Returns the bits of [`crate::state`] for a packet of this direction, and whether it is
    /// translated.
    #[inline(always)]
    fn state(&self, reply: bool, asking: Asking) -> (u32, bool) {
        let mark = self.words[3];
        let bits = state::TRACKED | state::ESTABLISHED | if reply { state::REPLY } else { 0 };
        if !asking.nat || mark & (SOURCE | DESTINATION) == 0 {
            return (bits, false);
        }
        let nat = match (mark & SOURCE != 0) != reply {
            true => state::SOURCE_NAT,
            false => state::DESTINATION_NAT,
        };
        (bits | nat, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::UDP;

    fn content(number: u32) -> Content {
        Content {
            tuple: Short::new(number.into(), 5 << 16 | 6, 7, 17),
            replies: None,
            addresses: Whole::Nothing,
            nat: None,
            policies: 0,
            timeout_ms: 1000,
            mark: number,
            label: u128::from(number) << 100,
        }
    }

    fn asking(now_ms: u64) -> Asking {
        Asking {
            check_sequence: true,
            policies: 0,
            nat: true,
            now_ms,
        }
    }

    /// Through all sizes of the index, connections are found, but for a few that share a bucket
    /// with many; and those that have gone are not.
    #[test]
    fn lines_are_found_while_the_index_grows() {
        const COUNT: u32 = 100_000;
        let (all, secret) = (Established::new(), Secret([3, 4]));
        let hash = |number: u32| content(number).tuple.hash(secret);
        let hashes = |number: u32| Hashes {
            original: hash(number),
            replies: None,
        };
        let found = |number: u32| {
            let follow = |line| all.follow(line, content(number).tuple, || None, asking(10));
            let settled = all.find(hash(number), false).and_then(follow);
            settled.is_some_and(|settled| {
                assert_eq!(
                    (settled.mark(), settled.label()),
                    (number, u128::from(number) << 100)
                );
                true
            })
        };
        let mut lines = Vec::new();
        for number in 0..COUNT {
            if lines.is_empty() {
                lines.extend(all.take().expect("enough of them"));
            }
            let line = lines.remove(0);
            assert_eq!(line, number);
            all.begin(hashes(number));
            all.publish(hashes(number), line, &content(number), 500, None);
            assert!(found(number), "{number}");
        }
        assert!(1 << all.size.load(Ordering::Relaxed) >= COUNT / 6);
        let lost = (0..COUNT)
            .filter(|number| !found(*number))
            .collect::<Vec<_>>();
        for number in &lost {
            all.enter(hash(*number), *number);
        }
        let lost = (0..COUNT).filter(|number| !found(*number)).count();
        assert!(lost < COUNT as usize / 1000, "{lost}");
        for number in 0..COUNT {
            all.retire(hashes(number), number);
            assert!(!found(number), "{number}");
        }
        let parts = all.index.iter().filter_map(OnceLock::get);
        let mut ways = parts.flatten().flat_map(|bucket| &bucket.0);
        // Entries of buckets that were in use before the index grew are dead.
        let dead = |way: &AtomicU64| {
            let entry = way.load(Ordering::Relaxed);
            entry == 0 || all.find(entry >> 32, false).is_none()
        };
        assert!(ways.all(dead));
        assert_eq!(all.count.get(0), 0);
    }

    /// Two full buckets hold twice what one does; what has been in the neighbour is found where
    /// there is room again, and nothing of it stays behind.
    #[test]
    fn a_full_bucket_has_a_neighbour() {
        let all = Established::new();
        let hash = |number: u64| number << 8 | 6;
        all.take();
        let line = |number: u64| {
            let found = all.find(hash(number), false);
            found.map_or(NO_LINE, |reached| reached.number)
        };
        let all_of = |place: u32| {
            let HashBucket(ways) = all.bucket(place).unwrap();
            let entries = ways.iter().map(|way| way.load(Ordering::Relaxed));
            entries.filter(|entry| *entry != 0).count()
        };
        // All of bucket 6 while there are 1,024, by bits above the bucket's number.
        let number = |at: u64| at << 2;
        for at in 1..=2 * WAYS as u64 {
            all.enter(hash(number(at)), at as u32);
        }
        assert_eq!((all_of(6), all_of(7)), (WAYS, WAYS));
        for at in 1..=2 * WAYS as u64 {
            assert_eq!(line(number(at)), at as u32);
        }
        // What is in the neighbour is not looked for where the own bucket has room.
        let retire = |at: u64| {
            let original = hash(number(at));
            let hashes = Hashes {
                original,
                replies: None,
            };
            all.retire(hashes, at as u32);
        };
        retire(1);
        let last = 2 * WAYS as u64;
        assert_eq!((line(number(1)), line(number(last))), (NO_LINE, NO_LINE));
        all.enter(hash(number(last)), last as u32);
        assert_eq!(line(number(last)), last as u32);
        assert_eq!((all_of(6), all_of(7)), (WAYS, WAYS - 1));
        // One more than there is room for takes the place of one.
        for at in [1, last + 1] {
            all.enter(hash(number(at)), at as u32);
            assert_eq!(line(number(at)), at as u32);
        }
        let found = (1..=last + 1).filter(|at| line(number(*at)) == *at as u32);
        assert_eq!(found.count(), 2 * WAYS);
        (1..=last + 1).for_each(retire);
        assert_eq!((all_of(6), all_of(7)), (0, 0));
    }

    /// Tuples of IPv6 whose digests are the same are told apart by their addresses, also where
    /// these are translated.
    #[test]
    fn digests_are_not_addresses() {
        let key = |low: u64, swapped: bool| {
            let mut key = Key {
                // Digests are 0 and 6, whatever the number.
                addresses: [[0, low << 32 | low], [5, 6 ^ 5 << 17]],
                ports: [7, 7],
                protocol: UDP,
                v6: true,
                ..Key::default()
            };
            if swapped {
                key.addresses.swap(0, 1);
            }
            key
        };
        let all = Established::new();
        let ours = key(9, false);
        let tuple = Short::of(&ours);
        assert_eq!(Short::of(&key(10, false)), tuple);
        let line = all.take().expect("enough of them").start;
        let hashes = Hashes {
            original: 77,
            replies: None,
        };
        let told = |key: &Key| {
            let reached = all.find(77, false)?;
            assert_eq!(reached.number, line);
            let tracked = all.follow_key(reached, key, || None, asking(10))?;
            assert_eq!(tracked.original, Some(ours.tuple()));
            let translation = tracked.translation;
            let ends = [translation.source, translation.destination];
            Some((tracked.state & state::REPLY != 0, ends))
        };
        let content = Content {
            tuple,
            addresses: Whole::One(ours.addresses),
            ..content(1)
        };
        all.publish(hashes, line, &content, 500, None);
        assert_eq!(told(&ours), Some((false, [None; 2])));
        assert_eq!(told(&key(9, true)), Some((true, [None; 2])));
        assert_eq!(told(&key(10, false)), None);
        assert_eq!(told(&key(10, true)), None);
        let other = Key {
            protocol: crate::key::ICMPV6,
            ..ours
        };
        assert_eq!(told(&other), None);
        all.retire(hashes, line);
        // The source becomes another one with the same digest.
        let replies = key(10, true);
        let content = Content {
            replies: Some(Short::of(&replies)),
            addresses: Whole::Both([ours.addresses, replies.addresses]),
            nat: Some(Direction::Source),
            ..content
        };
        all.publish(hashes, line, &content, 500, None);
        let from = key(10, false).end(0);
        assert_eq!(told(&ours), Some((false, [Some(from), None])));
        assert_eq!(told(&replies), Some((true, [None, Some(ours.end(0))])));
        assert_eq!(told(&key(9, true)), None);
        assert_eq!(told(&key(10, false)), None);
        assert_eq!(told(&key(11, true)), None);
    }

    /// Tuples of ICMP over IPv4 say all that keys do, and those of replies are the reverse.
    #[test]
    fn tuples_of_icmp_are_keys() {
        let mut seen = std::collections::HashSet::new();
        for kinds in [[8, 0], [0, 8], [13, 14], [14, 13], [15, 16], [16, 15]] {
            for identifier in 0..=u16::MAX {
                let key = Key {
                    addresses: [[0, 0x0a00_0001]; 2],
                    ports: [identifier; 2],
                    kinds,
                    zone: 5,
                    protocol: crate::key::ICMP,
                    v6: false,
                };
                let short = Short::of(&key);
                assert_eq!(short.key_with(short.addresses(), kinds), key);
                assert_eq!(Short::of(&key.reversed()), short.reversed());
                assert!(seen.insert(short.rest), "{key:?}");
            }
        }
        let echo = |kinds: [u8; 2]| Key {
            addresses: [[1, 2]; 2],
            ports: [9; 2],
            kinds,
            protocol: crate::key::ICMPV6,
            v6: true,
            ..Key::default()
        };
        let (request, reply) = (Short::of(&echo([128, 129])), Short::of(&echo([129, 128])));
        assert_ne!(request, reply);
        assert_eq!(request.reversed(), reply);
    }

    /// The hash of a short tuple is that of the key; so is the other direction's.
    #[test]
    fn short_tuples_are_keys() {
        let secret = Secret([0x1234_5678_9abc_def0, 77]);
        let short = Short::new(0x0a00_0001_c0a8_0909, 0x1234_0050, 513, 6);
        let key = short.key();
        assert_eq!(Short::of(&key), short);
        assert_eq!(secret.hash(&key), short.hash(secret));
        assert_eq!(Short::of(&key.reversed()), short.reversed());
        assert_eq!(secret.hash(&key.reversed()), short.hash(secret));
    }
}
