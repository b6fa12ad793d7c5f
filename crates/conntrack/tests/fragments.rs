//! [`Fragments`] against a list that is searched: fragments in any order, with overlaps, lies and
//! limits. Nothing is lost.

use conntrack::fragments::{
    Counts, Fragments, LEAST_MINIMUM, MOST, OVERDUE_MS, Outcome, ReassemblyContext, Refused,
    Status, TIMEOUT_MS,
};
use packet::HeapFrame;
use packet::checksum::ipv4_header;
use packet::fragment::Fragment;
use proptest::prelude::*;

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
    /// Bytes of IPv4 options.
    options: u8,
}

impl Said {
    fn end(&self) -> u32 {
        u32::from(self.offset) + u32::from(self.length)
    }

    /// Bytes of headers, without the fragment header.
    fn headers(&self) -> u32 {
        match self.v6 {
            true => 40,
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
            bytes.extend([44, 64]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.source]);
            bytes.extend([0xfd; 16]);
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

    fn of_holder(&self, holder: u64) -> usize {
        (self.list.iter())
            .filter(|waits| waits.holder == holder)
            .count()
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
        place: ReassemblyContext,
        holder: u64,
        buffers: u32,
        number: u32,
        now_ms: u64,
    ) -> (Answer, Vec<u32>) {
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
        if !said.v6 && others.len() >= (65_475_usize).div_ceil(self.minimum[0] as usize - 60) {
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
        for _ in 0..4 {
            if completes || !self.is_full(buffers) {
                break;
            }
            let holders = self.list.iter().map(|waits| waits.holder);
            let heaviest = holders.max_by_key(|holder| (self.of_holder(*holder), *holder));
            let Some(heaviest) = heaviest else { break };
            if self.of_holder(heaviest) <= self.of_holder(holder) + 1 {
                break;
            }
            let mine = |waits: &&Waits| waits.holder == heaviest;
            let first = self.list.iter().filter(mine).map(|waits| waits.first).min();
            for waits in self.take(first.unwrap()) {
                let counts = &mut self.counts[usize::from(waits.said.v6)];
                counts.evicted += 1;
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
        let counted = if said.v6 { 0 } else { all[0].said.headers() };
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
    Offer(Said, ReassemblyContext, u64, u32),
    /// The fragments of a datagram, in the order of the second list as far as it goes.
    Datagram(Said, Vec<u16>, Vec<prop::sample::Index>, u64),
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
            options: if v6 { 0 } else { options },
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

fn step() -> impl Strategy<Value = Step> {
    let order = prop::collection::vec(any::<prop::sample::Index>(), 8);
    let lengths = prop::collection::vec(prop::sample::select(vec![480_u16, 968, 1400]), 2..8);
    prop_oneof![
        30 => (said(), place(), 0..3_u64, 1..3_u32)
            .prop_map(|(said, place, holder, buffers)| Step::Offer(said, place, holder, buffers)),
        6 => (said(), lengths, order, 0..3_u64)
            .prop_map(|(said, lengths, order, holder)| Step::Datagram(said, lengths, order, holder)),
        4 => (0..20_000_u64).prop_map(Step::Wait),
        3 => (0..4_usize).prop_map(Step::Expire),
        1 => Just(Step::PurgeOverdue),
        1 => Just(Step::Purge),
        1 => (any::<bool>(), prop::bool::weighted(0.7)).prop_map(|(v6, on)| Step::Enable(v6, on)),
        1 => (any::<bool>(), 390..600_u32).prop_map(|(v6, bytes)| Step::Minimum(v6, bytes)),
        1 => prop_oneof![0..12_u32, 4990..5010_u32].prop_map(Step::Most),
        1 => (0..16_u64).prop_map(Step::Buffers),
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

    fn offer(&mut self, said: Said, place: ReassemblyContext, holder: u64, buffers: u32) {
        self.numbers += 1;
        let number = self.numbers;
        let (fragment, _) = said.read();
        let mut made = 0;
        let offer = self
            .real
            .offer(&fragment, place, holder, buffers, self.now_ms, || {
                made += 1;
                number
            });
        let (answer, ended) =
            self.reference
                .offer(said, place, holder, buffers, number, self.now_ms);
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
            Step::Offer(said, place, holder, buffers) => self.offer(said, place, holder, buffers),
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
                        self.offer(piece, ReassemblyContext::default(), holder, 1);
                    }
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
        let lines = self.real.lines();
        let mut firsts: Vec<u32> = self
            .reference
            .list
            .iter()
            .map(|waits| waits.first)
            .collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(lines.lines().count(), firsts.len());
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

/// A port that floods takes all there is, and no more of it than what others leave.
#[test]
fn whoever_has_most_gives_way() {
    let mut table = Fragments::default();
    table.set_most(10).unwrap();
    let mut offer = |said: Said, holder: u64| {
        let (fragment, _) = said.read();
        table.offer(
            &fragment,
            ReassemblyContext::default(),
            holder,
            1,
            0,
            || (holder, said.source),
        )
    };
    for source in 0..10 {
        assert_eq!(offer(piece(source, 0, true), 1).outcome, Outcome::Held);
    }
    // It has its own fragments refused, as in Open vSwitch.
    let offered = offer(piece(10, 0, true), 1);
    assert_eq!(offered.outcome, Outcome::Refused(Refused::Full));
    assert!(offered.ended.is_empty());
    // The others' come in, in place of its oldest.
    for source in 0..5 {
        let offered = offer(piece(100 + source, 0, true), 2);
        assert_eq!(offered.outcome, Outcome::Held);
        assert_eq!(offered.ended, [(1, source)]);
    }
    // Not beyond an equal share.
    let offered = offer(piece(105, 0, true), 2);
    assert_eq!(offered.outcome, Outcome::Refused(Refused::Full));
    // The last fragment of a datagram needs no room.
    let offered = offer(piece(100, 1200, false), 3);
    assert!(matches!(offered.outcome, Outcome::Whole(all) if all.len() == 2));
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
            let offer = table.offer(&fragment, ReassemblyContext::default(), 0, 1, 0, || frame);
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
        table.offer(&said.read().0, place, 0, 1, 0, || ());
    }
    let lines = "(src=10.0.0.1,dst=10.0.0.9,recirc_id=0,ip_id=1,dl_type=0x800,zone=3,nw_proto=17,\
                 num_fragments=2,state=first/last frag)\n(src=fd00::2,dst=fdfd:fdfd:fdfd:fdfd:fdfd:\
                 fdfd:fdfd:fdfd,recirc_id=0,ip_id=1,dl_type=0x86dd,zone=3,nw_proto=0,\
                 num_fragments=1,state=other frag)\n";
    assert_eq!(table.lines(), lines);
    let text = table.status().text();
    assert!(text.contains("        num frag: 3\n"), "{text}");
    assert!(text.contains("        v6 frags accepted: 1\n"), "{text}");
}
