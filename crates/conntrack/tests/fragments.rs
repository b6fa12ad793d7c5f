//! [`Fragments`] against a list that is searched: fragments in any order, with overlaps, lies and
//! limits. Nothing is lost.

use conntrack::fragments::{
    Counts, EQUAL, Fragments, LEAST_MINIMUM, MOST, OVERDUE_MS, Outcome, ReassemblyContext, Refused,
    Request, Status, TIMEOUT_MS,
};
use packet::HeapFrame;
use packet::checksum::ipv4_header;
use packet::fragment::Fragment;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What a fragment says.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Said {
    v6: bool,
    source: u8,
    id: u8,
    /// In bytes, a multiple of 8.
    offset: u16,
    length: u16,
    more: bool,
    /// Bytes of IPv4 options, or eights of bytes of hop-by-hop options.
    options: u8,
}

impl Said {
    fn end(&self) -> u32 {
        u32::from(self.offset) + u32::from(self.length)
    }

    /// Bytes of headers, without the fragment header.
    fn headers(&self) -> u32 {
        match self.v6 {
            true => 40 + 8 * u32::from(self.options),
            false => 20 + u32::from(self.options),
        }
    }

    fn packet_length(&self) -> u32 {
        self.headers() + u32::from(self.length) + if self.v6 { 8 } else { 0 }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        let length = self.packet_length() as u16;
        if self.v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((length - 40).to_be_bytes());
            bytes.extend([if self.options > 0 { 0 } else { 44 }, 64]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.source]);
            bytes.extend([0xfd; 16]);
            if self.options > 0 {
                // One option, of padding.
                let length = usize::from(self.options) * 8;
                bytes.extend([44, self.options - 1]);
                bytes.extend(vec![0; length - 2]);
            }
            bytes.extend([17, 0]);
            bytes.extend((self.offset | u16::from(self.more)).to_be_bytes());
            bytes.extend([0, 0, 0, self.id]);
        } else {
            bytes.extend([0x08, 0x00, 0x45 + self.options / 4, 0]);
            bytes.extend(length.to_be_bytes());
            bytes.extend([0, self.id]);
            let more = if self.more { 0x2000 } else { 0 };
            let place = (self.offset / 8) | more;
            bytes.extend(place.to_be_bytes());
            bytes.extend([64, 17, 0, 0, 10, 0, 0, self.source, 10, 0, 0, 9]);
            bytes.extend(vec![1; self.options.into()]);
            let checksum = ipv4_header(&bytes[14..]);
            bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        }
        let start = bytes.len() as u32;
        // Each byte of the datagram has a value of its own, nearly.
        let value = |at: u32| ((u32::from(self.offset) + at) * 7 % 251) as u8;
        bytes.extend((0..u32::from(self.length)).map(value));
        assert_eq!(bytes.len() as u32, start + u32::from(self.length));
        bytes
    }

    fn read(&self) -> (Fragment, HeapFrame) {
        let mut frame = HeapFrame::new(&self.bytes());
        let fragment = Fragment::read(&mut frame).expect("well formed");
        (fragment.expect("a fragment"), frame)
    }
}

/// A held fragment in the reference.
#[derive(Clone, Copy, Debug)]
struct Waits {
    said: Said,
    place: ReassemblyContext,
    buffers: u32,
    number: u32,
    /// Of the first of its datagram: who holds it, its number and when it expires.
    holder: u64,
    first: u32,
    until_ms: u64,
}

/// A list of fragments, and the rules.
struct Reference {
    enabled: [bool; 2],
    minimum: [u32; 2],
    most: u32,
    most_buffers: u64,
    list: Vec<Waits>,
    counts: [Counts; 2],
}

#[derive(PartialEq, Debug)]
enum Answer {
    Held,
    Whole(Vec<u32>),
    Refused(Refused),
}

impl Reference {
    fn is_full(&self, buffers: u32) -> bool {
        let all: u64 = self.list.iter().map(|waits| u64::from(waits.buffers)).sum();
        self.list.len() >= self.most as usize || all + u64::from(buffers) > self.most_buffers
    }

    /// Returns what a holder has of what is scarce: of fragments if these are, else of buffers.
    fn of_holder(&self, holder: u64) -> u64 {
        let of_one = |waits: &Waits| match self.list.len() >= self.most as usize {
            true => 1,
            false => u64::from(waits.buffers),
        };
        let own = self.list.iter().filter(|waits| waits.holder == holder);
        own.map(of_one).sum()
    }

    /// Returns which of a holder's datagrams, but not this one, is the first to give way: the
    /// oldest of the source that has most of them.
    fn first_to_go(&self, holder: u64, besides: Option<u32>) -> Option<u32> {
        let mut sources: BTreeMap<(bool, u8), BTreeSet<u32>> = BTreeMap::new();
        for waits in self.list.iter().filter(|waits| waits.holder == holder) {
            let source = (waits.said.v6, waits.said.source);
            sources.entry(source).or_default().insert(waits.first);
        }
        let ranks = sources.values().filter_map(|firsts| {
            let oldest = firsts.iter().find(|first| Some(**first) != besides)?;
            Some((firsts.len().max(EQUAL), Reverse(*oldest)))
        });
        ranks.max().map(|(_, Reverse(first))| first)
    }

    /// Takes a datagram off the list, in order.
    fn take(&mut self, first: u32) -> Vec<Waits> {
        let (mut taken, left): (Vec<_>, Vec<_>) =
            (self.list.iter()).partition(|waits| waits.first == first);
        self.list = left;
        taken.sort_by_key(|waits| waits.said.offset);
        taken
    }

    fn offer(
        &mut self,
        said: Said,
        request: &Request,
        number: u32,
        now_ms: u64,
    ) -> (Answer, Vec<u32>) {
        let Request {
            place,
            holder,
            buffers,
            makes_room,
        } = *request;
        let family = usize::from(said.v6);
        let mut ended = Vec::new();
        if self.enabled == [false, false] {
            return (Answer::Refused(Refused::Disabled), ended);
        }
        if said.more && said.packet_length() < self.minimum[family] {
            self.counts[family].too_small += 1;
            return (Answer::Refused(Refused::TooSmall), ended);
        }
        if !self.enabled[family] {
            return (Answer::Refused(Refused::Disabled), ended);
        }
        let same = |waits: &&Waits| {
            (waits.said.v6, waits.said.source, waits.said.id, waits.place)
                == (said.v6, said.source, said.id, place)
        };
        let others: Vec<Waits> = self.list.iter().filter(same).copied().collect();
        let most = match said.v6 {
            false => 65_475_usize.div_ceil(self.minimum[0] as usize - 60),
            true => 65_535_usize.div_ceil(self.minimum[1] as usize - 128),
        };
        if others.len() >= most {
            self.counts[family].full += 1;
            return (Answer::Refused(Refused::Full), ended);
        }
        let conflicts = others.iter().any(|other| {
            let other = other.said;
            let apart = other.end() <= said.offset.into() || said.end() <= other.offset.into();
            let behind = !other.more && said.offset >= other.offset;
            let before = !said.more && other.offset >= said.offset;
            let two_ends = !said.more && !other.more;
            !apart || behind || before || two_ends
        });
        if conflicts {
            self.counts[family].overlapped += 1;
            return (Answer::Refused(Refused::Overlaps), ended);
        }
        let holder = others.first().map_or(holder, |begun| begun.holder);
        let mut all: Vec<Said> = others.iter().map(|other| other.said).collect();
        all.push(said);
        all.sort_by_key(|said| said.offset);
        let joined = all
            .windows(2)
            .all(|two| two[0].end() == two[1].offset.into());
        let completes = joined && all[0].offset == 0 && !all[all.len() - 1].more;
        let can_be = makes_room && self.most > 0 && u64::from(buffers) <= self.most_buffers;
        for _ in 0..8 {
            if completes || !can_be || !self.is_full(buffers) {
                break;
            }
            let holders = self.list.iter().map(|waits| waits.holder);
            let heaviest = holders.max_by_key(|holder| (self.of_holder(*holder), *holder));
            let needed = match self.list.len() >= self.most as usize {
                true => 1,
                false => u64::from(buffers),
            };
            let own = self.of_holder(holder) + needed;
            let is_heavier = |other: &u64| self.of_holder(*other) > own;
            let other = heaviest.filter(is_heavier);
            let first = match other {
                Some(other) => self.first_to_go(other, None),
                None => self.first_to_go(holder, others.first().map(|begun| begun.first)),
            };
            let Some(first) = first else { break };
            for waits in self.take(first) {
                let counts = &mut self.counts[usize::from(waits.said.v6)];
                match other {
                    Some(_) => counts.evicted += 1,
                    None => counts.displaced += 1,
                }
                counts.expired += 1;
                ended.push(waits.number);
            }
        }
        if !completes && self.is_full(buffers) {
            self.counts[family].full += 1;
            return (Answer::Refused(Refused::Full), ended);
        }
        self.counts[family].accepted += 1;
        let begun = self.list.iter().find(same).copied();
        let waits = Waits {
            said,
            place,
            buffers,
            number,
            holder: begun.map_or(holder, |begun| begun.holder),
            first: begun.map_or(number, |begun| begun.first),
            until_ms: begun.map_or(now_ms + TIMEOUT_MS, |begun| begun.until_ms),
        };
        self.list.push(waits);
        let mut all: Vec<Waits> = self.list.iter().filter(same).copied().collect();
        all.sort_by_key(|waits| waits.said.offset);
        let joined = all
            .windows(2)
            .all(|two| two[0].said.end() == two[1].said.offset.into());
        let last = all[all.len() - 1].said;
        if !joined || all[0].said.offset != 0 || last.more {
            return (Answer::Held, ended);
        }
        self.take(waits.first);
        let numbers = all.iter().map(|waits| waits.number);
        let counted = all[0].said.headers() - if said.v6 { 40 } else { 0 };
        if counted + last.end() > 65_535 {
            ended.extend(numbers);
            self.counts[family].expired += all.len() as u64;
            return (Answer::Held, ended);
        }
        self.counts[family].completed += all.len() as u64;
        (Answer::Whole(numbers.collect()), ended)
    }

    fn end_where(&mut self, ends: impl Fn(&Waits) -> bool, most: usize) -> Vec<Waits> {
        let mut ended = Vec::new();
        loop {
            let over = self.list.iter().filter(|waits| ends(waits));
            match over.map(|waits| waits.first).min() {
                Some(first) if ended.len() < most => ended.extend(self.take(first)),
                _ => return ended,
            }
        }
    }

    fn status(&self) -> Status {
        let family = |number: usize| conntrack::fragments::Family {
            is_enabled: self.enabled[number],
            minimum: self.minimum[number],
            counts: self.counts[number],
        };
        Status {
            most: self.most,
            held: self.list.len() as u32,
            v4: family(0),
            v6: family(1),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Offer(Said, Request),
    /// The fragments of a datagram, in the order of the second list as far as it goes.
    Datagram(Said, Vec<u16>, Vec<prop::sample::Index>, u64),
    /// So many first fragments of a source, each of a datagram of its own.
    Flood(Said, u64, u8),
    Wait(u64),
    Expire(usize),
    PurgeOverdue,
    Purge,
    Enable(bool, bool),
    Minimum(bool, u32),
    Most(u32),
    Buffers(u64),
}

fn said() -> impl Strategy<Value = Said> {
    let length = prop_oneof![8 => Just(480_u16), 2 => Just(960), 1 => Just(8), 1 => Just(60_000)];
    let offset = prop_oneof![12 => 0..5_u16, 1 => Just(125)];
    (
        any::<bool>(),
        0..2_u8,
        0..2_u8,
        offset,
        length,
        any::<bool>(),
        prop::sample::select(vec![0_u8, 0, 0, 40]),
    )
        .prop_map(|(v6, source, id, offset, length, more, options)| Said {
            v6,
            source,
            id,
            offset: offset * 480,
            length,
            // A fragment at offset 0 without others behind it is none, and none reaches beyond the
            // longest packet.
            more: more || offset == 0,
            options,
        })
        .prop_filter("too long", |said| said.end() <= 65_535)
}

fn place() -> impl Strategy<Value = ReassemblyContext> {
    (0..2_u32, 0..2_u32, 0..2_u16).prop_map(|(bridge, pass, zone)| ReassemblyContext {
        bridge,
        pass,
        zone,
    })
}

fn request() -> impl Strategy<Value = Request> {
    let makes_room = prop::bool::weighted(0.8);
    (place(), 0..3_u64, 1..5_u32, makes_room).prop_map(|(place, holder, buffers, makes_room)| {
        Request {
            place,
            holder,
            buffers,
            makes_room,
        }
    })
}

/// A request for one buffer, in one place.
fn of(holder: u64) -> Request {
    Request {
        place: ReassemblyContext::default(),
        holder,
        buffers: 1,
        makes_room: true,
    }
}

fn step() -> impl Strategy<Value = Step> {
    let order = prop::collection::vec(any::<prop::sample::Index>(), 8);
    let lengths = prop::collection::vec(prop::sample::select(vec![480_u16, 968, 1400]), 2..8);
    prop_oneof![
        30 => (said(), request()).prop_map(|(said, request)| Step::Offer(said, request)),
        6 => (said(), lengths, order, 0..3_u64)
            .prop_map(|(said, lengths, order, holder)| Step::Datagram(said, lengths, order, holder)),
        2 => (said(), 0..3_u64, 1..20_u8)
            .prop_map(|(said, holder, count)| Step::Flood(said, holder, count)),
        4 => (0..20_000_u64).prop_map(Step::Wait),
        3 => (0..4_usize).prop_map(Step::Expire),
        1 => Just(Step::PurgeOverdue),
        1 => Just(Step::Purge),
        1 => (any::<bool>(), prop::bool::weighted(0.7)).prop_map(|(v6, on)| Step::Enable(v6, on)),
        1 => (any::<bool>(), 390..600_u32).prop_map(|(v6, bytes)| Step::Minimum(v6, bytes)),
        1 => prop_oneof![3 => 0..12_u32, 3 => 12..30_u32, 1 => 4990..5010_u32].prop_map(Step::Most),
        1 => (0..40_u64).prop_map(Step::Buffers),
    ]
}

/// Both, and what has not come out again.
struct Both {
    real: Fragments<u32>,
    reference: Reference,
    inside: Vec<u32>,
    numbers: u32,
    now_ms: u64,
}

impl Both {
    fn new() -> Both {
        let mut real = Fragments::default();
        for v6 in [false, true] {
            real.set_minimum(v6, LEAST_MINIMUM).unwrap();
        }
        let status = real.status();
        Both {
            reference: Reference {
                enabled: [true; 2],
                minimum: [LEAST_MINIMUM; 2],
                most: status.most,
                most_buffers: u64::MAX,
                list: Vec::new(),
                counts: [Counts::default(); 2],
            },
            real,
            inside: Vec::new(),
            numbers: 0,
            now_ms: 1000,
        }
    }

    fn gone(&mut self, numbers: &[u32]) {
        for number in numbers {
            let at = self.inside.iter().position(|inside| inside == number);
            self.inside.swap_remove(at.expect("comes out once"));
        }
    }

    fn offer(&mut self, said: Said, request: &Request) {
        self.numbers += 1;
        let number = self.numbers;
        let (fragment, _) = said.read();
        let mut made = 0;
        let offer = self.real.offer(&fragment, request, self.now_ms, || {
            made += 1;
            number
        });
        let (answer, ended) = self.reference.offer(said, request, number, self.now_ms);
        assert_eq!(offer.ended, ended);
        let is_refused = matches!(answer, Answer::Refused(_));
        assert_eq!(made, u32::from(!is_refused));
        if !is_refused {
            self.inside.push(number);
        }
        self.gone(&ended);
        let got = match offer.outcome {
            Outcome::Held => Answer::Held,
            Outcome::Refused(refused) => Answer::Refused(refused),
            Outcome::Whole(all) => Answer::Whole(all.iter().map(|(_, number)| *number).collect()),
        };
        assert_eq!(got, answer);
        if let Answer::Whole(numbers) = got {
            self.gone(&numbers);
        }
    }

    fn come_out(
        &mut self,
        real: Vec<u32>,
        reference: Vec<Waits>,
        count: fn(&mut Counts) -> &mut u64,
    ) {
        for waits in &reference {
            *count(&mut self.reference.counts[usize::from(waits.said.v6)]) += 1;
        }
        let reference: Vec<u32> = reference.iter().map(|waits| waits.number).collect();
        assert_eq!(real, reference);
        self.gone(&real);
    }

    fn step(&mut self, step: Step) {
        let now_ms = self.now_ms;
        match step {
            Step::Offer(said, request) => self.offer(said, &request),
            Step::Datagram(said, lengths, order, holder) => {
                let mut pieces = Vec::new();
                let mut offset = 0;
                for (at, length) in lengths.iter().enumerate() {
                    let more = at + 1 < lengths.len();
                    let length = *length;
                    pieces.push(Said {
                        offset,
                        length,
                        more,
                        ..said
                    });
                    offset += length;
                }
                for index in order {
                    if !pieces.is_empty() {
                        let piece = pieces.swap_remove(index.index(pieces.len()));
                        self.offer(piece, &of(holder));
                    }
                }
            }
            Step::Flood(said, holder, count) => {
                for id in 0..count {
                    let id = 100 + id;
                    self.offer(Said { id, ..said }, &of(holder));
                }
            }
            Step::Wait(ms) => self.now_ms += ms,
            Step::Expire(most) => {
                let real = self.real.expire(now_ms, most);
                let reference = self
                    .reference
                    .end_where(|waits| waits.until_ms < now_ms, most);
                self.come_out(real, reference, |counts| &mut counts.expired);
            }
            Step::PurgeOverdue => {
                let real = self.real.purge_overdue(now_ms);
                let overdue = |waits: &Waits| waits.until_ms + OVERDUE_MS <= now_ms;
                let reference = self.reference.end_where(overdue, usize::MAX);
                self.come_out(real, reference, |counts| &mut counts.purged);
            }
            Step::Purge => {
                let real = self.real.purge();
                let reference = self.reference.end_where(|_| true, usize::MAX);
                self.come_out(real, reference, |counts| &mut counts.purged);
            }
            Step::Enable(v6, on) => {
                self.real.set_enabled(v6, on);
                self.reference.enabled[usize::from(v6)] = on;
            }
            Step::Minimum(v6, bytes) => {
                let is_set = self.real.set_minimum(v6, bytes).is_ok();
                assert_eq!(is_set, bytes >= LEAST_MINIMUM);
                if is_set {
                    self.reference.minimum[usize::from(v6)] = bytes;
                }
            }
            Step::Most(most) => {
                let is_set = self.real.set_most(most).is_ok();
                assert_eq!(is_set, most <= MOST);
                if is_set {
                    self.reference.most = most;
                }
            }
            Step::Buffers(most) => {
                self.real.set_most_buffers(most);
                self.reference.most_buffers = most;
            }
        }
        assert_eq!(self.real.status(), self.reference.status());
        let due = self
            .reference
            .list
            .iter()
            .map(|waits| waits.until_ms + 1)
            .min();
        assert_eq!(self.real.due_ms(), due);
        let all = self.real.waiting(None, usize::MAX);
        let mut firsts: Vec<u32> = self
            .reference
            .list
            .iter()
            .map(|waits| waits.first)
            .collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(all.len(), firsts.len());
        // The same in parts.
        let (mut parts, mut after) = (Vec::new(), None);
        loop {
            let part = self.real.waiting(after, 3);
            assert!(part.len() <= 3);
            let Some(last) = part.last() else { break };
            after = Some(last.serial);
            parts.extend(part);
        }
        assert_eq!(parts, all);
        assert!(after <= Some(self.real.latest()));
        assert_eq!(self.inside.len(), self.reference.list.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn is_as_a_list_that_is_searched(steps in prop::collection::vec(step(), 0..120)) {
        let mut both = Both::new();
        for step in steps {
            both.step(step);
        }
        both.step(Step::Purge);
        prop_assert!(both.inside.is_empty());
    }
}

fn piece(source: u8, offset: u16, more: bool) -> Said {
    Said {
        v6: false,
        source,
        id: 1,
        offset,
        length: 1200,
        more,
        options: 0,
    }
}

/// A fragment's source and identification.
type Known = (u8, u8);

/// A table of so many fragments, in which each is known by these.
struct Small(Fragments<Known>);

impl Small {
    fn new(most: u32) -> Small {
        let mut table = Fragments::default();
        table.set_most(most).unwrap();
        Small(table)
    }

    fn offer(&mut self, said: Said, holder: u64) -> (Outcome<Known>, Vec<Known>) {
        let (fragment, _) = said.read();
        let known = (said.source, said.id);
        let offered = self.0.offer(&fragment, &of(holder), 0, || known);
        (offered.outcome, offered.ended)
    }

    /// Offers the first fragment of a datagram, which is held; returns what gave way.
    fn begin(&mut self, source: u8, id: u8, holder: u64) -> Vec<Known> {
        let first = Said {
            id,
            ..piece(source, 0, true)
        };
        let (outcome, ended) = self.offer(first, holder);
        assert_eq!(outcome, Outcome::Held);
        ended
    }

    /// Offers the second and last fragment, and returns whether the datagram is whole.
    fn end(&mut self, source: u8, id: u8, holder: u64) -> bool {
        let last = Said {
            id,
            ..piece(source, 1200, false)
        };
        let (outcome, _) = self.offer(last, holder);
        matches!(outcome, Outcome::Whole(all) if all.len() == 2)
    }
}

/// A port that floods takes all there is, and no more of it than what others leave.
#[test]
fn whoever_has_most_gives_way() {
    let mut table = Small::new(10);
    for source in 0..10 {
        assert_eq!(table.begin(source, 1, 1), []);
    }
    // Its later ones come in, in place of its oldest.
    assert_eq!(table.begin(10, 1, 1), [(0, 1)]);
    // And so do the others'.
    for source in 0..5 {
        assert_eq!(table.begin(100 + source, 1, 2), [(source + 1, 1)]);
    }
    // Beyond an equal share, their own give way.
    assert_eq!(table.begin(105, 1, 2), [(100, 1)]);
    let counts = table.0.status().v4.counts;
    assert_eq!(
        (counts.evicted, counts.displaced, counts.expired),
        (5, 2, 7)
    );
    // Nobody gives way to one who has nothing, where nobody has more than one.
    let mut table = Small::new(3);
    for holder in 1..4 {
        assert_eq!(table.begin(1, holder as u8, holder), []);
    }
    let (outcome, ended) = table.offer(piece(2, 0, true), 4);
    assert_eq!(outcome, Outcome::Refused(Refused::Full));
    assert!(ended.is_empty());
    // The last fragment of a datagram needs no room.
    assert!(table.end(1, 1, 4));
}

/// Where buffers are scarce, who has most of them gives way, and not who has most fragments.
#[test]
fn holders_weigh_by_what_is_scarce() {
    let mut table = Fragments::default();
    table.set_most_buffers(16);
    let mut numbers = 0;
    let mut offer = |table: &mut Fragments<u8>, holder: u64, buffers: u32| {
        numbers += 1;
        let (fragment, _) = piece(numbers, 0, true).read();
        let request = Request {
            buffers,
            ..of(holder)
        };
        let offered = table.offer(&fragment, &request, 0, || numbers);
        assert_eq!(offered.outcome, Outcome::Held);
        offered.ended
    };
    for _ in 0..2 {
        assert_eq!(offer(&mut table, 1, 6), []);
    }
    for _ in 0..4 {
        assert_eq!(offer(&mut table, 2, 1), []);
    }
    assert_eq!(offer(&mut table, 2, 1), [1]);
    // Of fragments, it has most itself.
    table.set_most(6).unwrap();
    assert_eq!(offer(&mut table, 2, 1), [3]);
    table.set_most(MOST).unwrap();
    // As many give way as one needs.
    table.purge();
    for _ in 0..16 {
        assert_eq!(offer(&mut table, 1, 1), []);
    }
    assert_eq!(offer(&mut table, 2, 6), [9, 10, 11, 12, 13, 14]);
}

/// Behind one port, a sender of first fragments without end displaces its own only: even datagrams
/// that take long are completed.
#[test]
fn a_flood_by_one_address_keeps_nobody_behind_its_port_out() {
    let mut table = Small::new(40);
    for id in 0..60 {
        table.begin(1, id, 1);
    }
    for source in 10..15 {
        let ended = table.begin(source, 7, 1);
        assert!(matches!(ended[..], [(1, _)]));
    }
    for id in 60..255 {
        assert_eq!(table.begin(1, id, 1), [(1, id - 35)]);
    }
    // Nor where another port's fragments need the room.
    for source in 20..24 {
        let ended = table.begin(source, 7, 2);
        assert!(matches!(ended[..], [(1, _)]));
    }
    for (sources, holder) in [(10..15, 1), (20..24, 2)] {
        for source in sources {
            assert!(table.end(source, 7, holder));
        }
    }
}

/// Nor does a flood by ever other addresses, if datagrams are complete before all room has been
/// filled anew: also those of a source that has some at once.
#[test]
fn datagrams_that_complete_quickly_pass_a_flood_by_all_addresses() {
    let mut table = Small::new(20);
    let mut flood = (0..12).cycle();
    let mut id = 0;
    let mut begin = |table: &mut Small, count: usize| {
        for source in flood.by_ref().take(count) {
            id = if source == 0 { id + 1 } else { id };
            table.begin(source, id, 1);
        }
    };
    begin(&mut table, 30);
    for round in 0..10 {
        for datagram in 0..5 {
            assert_eq!(table.begin(100, round * 5 + datagram, 1).len(), 1);
        }
        begin(&mut table, 14);
        for datagram in 0..5 {
            assert!(table.end(100, round * 5 + datagram, 1), "round {round}");
        }
        begin(&mut table, 5);
    }
    assert_eq!(table.0.status().v4.counts.full, 0);
}

/// A fragment that may not make room waits where there is some, and only there.
#[test]
fn fragments_that_have_ended_make_nobody_give_way() {
    let mut table = Small::new(2);
    let again = Request {
        makes_room: false,
        ..of(1)
    };
    let mut offer = |source: u8| {
        let (fragment, _) = piece(source, 0, true).read();
        table.0.offer(&fragment, &again, 0, || (source, 1))
    };
    for source in 0..2 {
        assert_eq!(offer(source).outcome, Outcome::Held);
    }
    let offered = offer(2);
    assert_eq!(offered.outcome, Outcome::Refused(Refused::Full));
    assert!(offered.ended.is_empty());
}

/// One datagram takes no more room than the longest needs, however long its headers are.
#[test]
fn a_datagram_has_no_more_fragments_than_the_longest() {
    let said = |number: u16, length: u16, more: bool, options: u8| Said {
        v6: true,
        length,
        more,
        options,
        offset: number * length,
        ..piece(1, 0, true)
    };
    let mut table = Small::new(MOST);
    for number in 0..57 {
        let (outcome, _) = table.offer(said(number, 288, true, 118), 1);
        assert_eq!(outcome, Outcome::Held, "{number}");
    }
    let (outcome, ended) = table.offer(said(57, 288, true, 118), 1);
    assert_eq!(outcome, Outcome::Refused(Refused::Full));
    assert!(ended.is_empty());
    // The longest, in fragments that are as short as they may be.
    let mut table = Small::new(MOST);
    for number in 0..53 {
        let (outcome, _) = table.offer(said(number, 1232, true, 0), 1);
        assert_eq!(outcome, Outcome::Held, "{number}");
    }
    let last = Said {
        offset: 53 * 1232,
        ..said(0, 239, false, 0)
    };
    let (outcome, _) = table.offer(last, 1);
    assert!(matches!(outcome, Outcome::Whole(all) if all.len() == 54));
}

/// A datagram does not give way to its own fragments.
#[test]
fn a_datagram_that_takes_all_room_stays() {
    let mut table = Small::new(3);
    table.begin(1, 1, 1);
    table.begin(1, 2, 1);
    for (offset, ended) in [(1200, None), (2400, Some((1, 2)))] {
        let (outcome, gone) = table.offer(piece(1, offset, true), 1);
        assert_eq!(outcome, Outcome::Held);
        assert_eq!(gone, Vec::from_iter(ended));
    }
    let (outcome, gone) = table.offer(piece(1, 3600, true), 1);
    assert_eq!(outcome, Outcome::Refused(Refused::Full));
    assert!(gone.is_empty());
    let (outcome, _) = table.offer(piece(1, 3600, false), 1);
    assert!(matches!(outcome, Outcome::Whole(all) if all.len() == 4));
}

/// The bytes of a datagram are those that were cut.
#[test]
fn what_is_joined_is_what_was_cut() {
    for v6 in [false, true] {
        let said = |offset, more| Said {
            v6,
            ..piece(1, offset, more)
        };
        let pieces = [said(0, true), said(1200, true), said(2400, false)];
        let mut table = Fragments::default();
        table.set_minimum(v6, 1000).unwrap();
        let mut whole = None;
        for at in [2, 0, 1] {
            let (fragment, frame) = pieces[at].read();
            let offer = table.offer(&fragment, &of(0), 0, || frame);
            if let Outcome::Whole(all) = offer.outcome {
                whole = Some(all);
            }
        }
        let whole = whole.expect("all have come");
        let all = whole.iter().map(|(fragment, frame)| (fragment, frame));
        let bytes = packet::fragment::join_bytes(all).unwrap();
        let expected = (0..3600_u32).map(|at| (at * 7 % 251) as u8);
        let headers = 14 + if v6 { 40 } else { 20 };
        assert!(bytes[headers..].iter().copied().eq(expected));
        let mut frame = HeapFrame::new(&bytes);
        assert_eq!(Fragment::read(&mut frame), Ok(None));
        let length = u16::from_be_bytes(match v6 {
            true => [bytes[18], bytes[19]],
            false => [bytes[16], bytes[17]],
        });
        assert_eq!(
            usize::from(length) + if v6 { headers } else { 14 },
            bytes.len()
        );
        assert_eq!(bytes[if v6 { 20 } else { 23 }], 17);
        assert!(v6 || ipv4_header(&bytes[14..34]) == 0);
    }
}

/// As `dpctl/ipf-get-status -m` prints them in Open vSwitch.
#[test]
fn lines_are_those_of_open_vswitch() {
    let mut table = Fragments::default();
    let v6 = Said {
        v6: true,
        length: 1400,
        ..piece(2, 1400, true)
    };
    for said in [piece(1, 0, true), piece(1, 2400, false), v6] {
        let place = ReassemblyContext {
            bridge: 5,
            pass: 0,
            zone: 3,
        };
        table.offer(&said.read().0, &Request { place, ..of(0) }, 0, || ());
    }
    let lines = "(src=10.0.0.1,dst=10.0.0.9,recirc_id=0,ip_id=1,dl_type=0x800,zone=3,nw_proto=17,\
                 num_fragments=2,state=first/last frag)\n(src=fd00::2,dst=fdfd:fdfd:fdfd:fdfd:fdfd:\
                 fdfd:fdfd:fdfd,recirc_id=0,ip_id=1,dl_type=0x86dd,zone=3,nw_proto=0,\
                 num_fragments=1,state=other frag)\n";
    let mut text = String::new();
    let waiting = table.waiting(None, usize::MAX);
    waiting.iter().for_each(|waiting| waiting.print(&mut text));
    assert_eq!(text, lines);
    let text = table.status().text();
    assert!(text.contains("        num frag: 3\n"), "{text}");
    assert!(text.contains("        v6 frags accepted: 1\n"), "{text}");
}
