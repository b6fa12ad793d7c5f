//! A burst's fast paths lead to the same result as the general one: rules over the words of mini
//! keys, bursts with frames of all kinds, compared with each frame's best rule.

use crate::support::{BACK, Met};
use packet::key::at;
use packet::parse;
use packet::{Field, FlowKey, HeapFrame, Match, Value, WordSet};
use program::Program;
use program::actions::{Op, OpList};
use program::counters::{CounterId, Totals};
use program::epoch::Reader;
use program::exec::Engine;
use program::host::DropReason;
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, Miss, RuleRef, Template};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Returns how many packets were dropped by a rule, by a miss, and by an expired TTL.
fn losses(met: &Met) -> [u64; 3] {
    let reasons = [
        DropReason::Action,
        DropReason::TableMiss,
        DropReason::TtlExpired,
    ];
    reasons.map(|reason| met.dropped_for(reason))
}

/// The kind of an IPv4 broadcast frame.
const BROADCAST: u8 = 15;

/// Returns a frame made from a few numbers, so that neighbours often meet the same rule: UDP and
/// TCP, tagged or not, fragments, ARP, IPv6 of a common kind and not, and truncated frames.
fn frame(kind: u8, a: u8, b: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, a, 2, 0, 0, 0, 1, b];
    if kind % 4 == 1 {
        bytes.extend([0x81, 0, 0, a]);
    }
    match kind {
        0..=9 | BROADCAST => {
            let (protocol, transport) = if kind.is_multiple_of(2) {
                (17, 8)
            } else {
                (6, 20)
            };
            let fragment = if kind == 9 { 0x20 } else { 0 };
            bytes.extend([
                8,
                0,
                0x45,
                0,
                0,
                20 + transport,
                0,
                0,
                fragment,
                0,
                64,
                protocol,
                0,
                0,
            ]);
            bytes.extend([10, 0, 0, a, 10, 0, 1, b, 0, a, 0, b]);
            bytes.extend([0; 8]);
            bytes.extend([0x50, 2, 0, 0, 0, 0, 0, 0]);
        }
        10 => {
            bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, a]);
            bytes.extend([10, 0, 0, a, 0, 0, 0, 0, 0, 0, 10, 0, 1, b]);
        }
        11 => bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 59, 64]),
        12 | 13 => {
            let protocol = if kind == 12 { 17 } else { 6 };
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, b, 0, 20, protocol, 64]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b]);
            bytes.extend([
                0, a, 0, b, 0, 20, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0,
            ]);
        }
        _ => bytes.truncate(usize::from(a)),
    }
    if kind == BROADCAST {
        bytes[..6].fill(0xff);
    }
    if kind != 14 {
        bytes.resize(bytes.len().max(60), 0);
    }
    bytes
}

/// One condition of a rule's match: a field's offset in the key, and its bytes.
fn condition() -> impl Strategy<Value = (usize, Vec<u8>)> {
    prop_oneof![
        (1..4_u32).prop_map(|port| (at::IN_PORT, port.to_be_bytes().to_vec())),
        Just((at::ETH_TYPE, vec![8, 0])),
        (0..4_u8).prop_map(|a| (at::IPV4_SRC + 3, vec![a])),
        (0..4_u8).prop_map(|b| (at::TP_DST, vec![0, b])),
        (0..4_u8).prop_map(|a| (at::ETH_DST + 5, vec![a])),
        prop_oneof![Just(6_u8), Just(17)].prop_map(|protocol| (at::IP_PROTO, vec![protocol])),
        (0..4_u8).prop_map(|label| (at::IPV6_LABEL + 3, vec![label])),
        (0..4_u8).prop_map(|a| (at::IPV6_SRC + 15, vec![a])),
        (0..4_u8).prop_map(|a| (at::ARP_SHA + 5, vec![a])),
        prop_oneof![Just(vec![8, 6]), Just(vec![0x86, 0xdd])].prop_map(|kind| (at::ETH_TYPE, kind)),
    ]
}

/// Returns whether a condition is on a word of the mini key.
fn is_shallow((offset, _): &(usize, Vec<u8>)) -> bool {
    WordSet::MINI_KEY.contains(offset / 8)
}

/// Keeps the conditions on words of the mini key.
fn shallow(mut conditions: Vec<(usize, Vec<u8>)>) -> Vec<(usize, Vec<u8>)> {
    conditions.retain(is_shallow);
    conditions
}

fn matching(conditions: &[(usize, Vec<u8>)]) -> Match {
    let mut matching = Match::any();
    for (offset, bytes) in conditions {
        matching.set_bytes(*offset, bytes, &vec![0xff; bytes.len()]);
    }
    matching
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_burst_goes_where_each_frame_would_go_by_itself(
        rules in prop::collection::vec((prop::collection::vec(condition(), 0..3), 1..4_u32, 0..3_u8), 1..30),
        deep in prop::bool::weighted(0.4),
        port_only in prop::bool::weighted(0.2),
        // Whether rules only send or drop.
        ends: bool,
        // Whether misses go to controllers.
        asks in prop::bool::weighted(0.2),
        frames in prop::collection::vec((0..15_u8, 0..4_u8, 0..4_u8, 1..12_usize), 1..12),
        in_port in 1..4_u32,
    ) {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        let mut list = Vec::new();
        for (index, (conditions, port, kind)) in rules.iter().enumerate() {
            let kept: Vec<_> = conditions
                .iter()
                .filter(|condition| deep || is_shallow(condition))
                .filter(|(offset, _)| !port_only || *offset == at::IN_PORT)
                .cloned()
                .collect();
            let ops = match kind {
                0 => vec![Op::Output(*port)],
                1 if !ends => vec![Op::Output(*port), Op::Output(port + 10)],
                _ => vec![],
            };
            let priority = index as u32 * 7 % 30;
            let matching = matching(&kept);
            if list.iter().any(|(other, at, ..): &(Match, u32, Vec<Op>, CounterId)| *at == priority && other == &matching) {
                continue;
            }
            let counter = program.counters.allocate().unwrap();
            writer.insert(0, RuleSpec {
                matching: matching.clone(),
                priority,
                ops: Arc::new(OpList::new(ops.clone())),
                counter,
                cookie: 0,
            });
            list.push((matching, priority, ops, counter));
        }
        writer.set_miss(0, if asks { Miss::Controller } else { Miss::Drop });
        writer.commit();
        program.domain.publish();
        let mut reader = program.domain.reader().unwrap();
        program.counters.add_worker(reader.index());

        let burst: Vec<Vec<u8>> = frames
            .iter()
            .flat_map(|(kind, a, b, times)| std::iter::repeat_n(frame(*kind, *a, *b), *times))
            .collect();
        let mut expected = Vec::new();
        let mut counts = vec![(0, 0); list.len()];
        let mut dropped = [0; 2];
        for bytes in burst.iter().filter(|bytes| bytes.len() >= 14) {
            let mut key = FlowKey::ZERO;
            parse::parse(bytes, bytes.len(), in_port, WordSet(u64::MAX), &mut key);
            let best = (0..list.len()).filter(|at| list[*at].0.matches(&key)).max_by_key(|at| list[*at].1);
            let ops = best.map_or(&[][..], |at| &list[at].2);
            if let Some(at) = best {
                counts[at] = (counts[at].0 + 1, counts[at].1 + bytes.len() as u64);
            }
            if ops.is_empty() {
                dropped[usize::from(best.is_none())] += 1;
            }
            for op in ops {
                if let Op::Output(port) = op {
                    expected.push((*port, bytes.clone()));
                }
            }
        }
        // Two rules of one precedence may both match; which one is found is then undefined, so skip
        // such cases.
        let ties = list.iter().enumerate().any(|(index, (one, priority, ..))| {
            list[..index].iter().any(|(other, at, ..)| at == priority && one.overlaps(other))
        });
        prop_assume!(!ties);

        let mut sink = Met::default();
        let guard = reader.begin();
        let mut frames: Vec<HeapFrame> = burst.iter().map(|bytes| HeapFrame::new(bytes)).collect();
        Engine::new().burst(&bridge, &guard, in_port, &mut frames, 0, 1, &mut sink);
        prop_assert!(frames.is_empty());
        // Within each port's queue the order is the burst's.
        for port in (1..4).chain(11..14) {
            let of_port = |all: &[(u32, Vec<u8>)]| all.iter().filter(|(to, _)| *to == port).map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>();
            prop_assert_eq!(of_port(&sink.sent), of_port(&expected));
        }
        let [ended, without] = dropped;
        prop_assert_eq!((losses(&sink), sink.told), if asks { ([ended, 0, 0], without) } else { ([ended, without, 0], 0) });
        let whole = burst.iter().filter(|bytes| bytes.len() >= 14).count() as u64;
        prop_assert_eq!(bridge.table_counters(0), (whole, whole - without));
        for ((.., counter), (packets, bytes)) in list.iter().zip(counts) {
            let counted = program.counters.read(*counter);
            prop_assert_eq!((counted.packets, counted.bytes), (packets, bytes));
        }
    }
}

/// A rule of [`Changing`].
#[derive(Clone)]
struct Ruled {
    matching: Match,
    priority: u32,
    ops: Vec<Op>,
    counter: CounterId,
    rule: RuleRef,
}

/// A table whose rules change while its decision trees exist, and the expected counts of each rule.
struct Changing {
    program: Arc<Program>,
    writer: BridgeWriter,
    reader: Reader,
    /// By number; None for one that has been removed.
    rules: Vec<Option<Ruled>>,
    /// Rules in force.
    published: Vec<Option<Ruled>>,
    counted: Vec<(CounterId, Totals)>,
    /// Expected counts of the table: lookups, and matches.
    looked_up: (u64, u64),
    /// The time of the last burst; each comes a millisecond later than the one before.
    now_ms: u64,
    /// Whether all packets of a burst must leave in order, whatever rules they have met.
    in_order: bool,
    /// The field of [`Step::Prefix`] and [`Step::Route`].
    addresses: Field,
}

/// How packets of a burst leave: some unchanged, some after edits followed by one output, some in
/// other ways.
#[derive(Default)]
struct Leave {
    only_sent: bool,
    edited: bool,
    otherwise: bool,
}

impl Leave {
    fn note(&mut self, ops: &[Op]) {
        let edits = |op: &Op| matches!(op, Op::SetField { .. } | Op::DecTtl(_));
        match ops {
            [Op::Output(_)] => self.only_sent = true,
            [first @ .., Op::Output(_)] if first.iter().all(edits) => self.edited = true,
            _ => self.otherwise = true,
        }
    }

    /// Returns whether no packet may overtake another of its port, wherever the rules' lookups have
    /// led. Where some are edited and others not, lookups without summaries let the latter go
    /// first.
    fn in_order(&self) -> bool {
        !(self.otherwise || self.only_sent && self.edited)
    }
}

impl Changing {
    fn new() -> Changing {
        let program = Arc::new(Program::new());
        let writer = BridgeWriter::new(Bridge::new(Arc::clone(&program)));
        let reader = program.domain.reader().unwrap();
        program.counters.add_worker(reader.index());
        Changing {
            program,
            writer,
            reader,
            rules: Vec::new(),
            published: Vec::new(),
            counted: Vec::new(),
            looked_up: (0, 0),
            now_ms: 0,
            in_order: false,
            addresses: Field::Ipv4Src,
        }
    }

    /// Returns the steps of a rule of this kind: sends, sends with another source address, sends
    /// twice, routes, sends back, or drops.
    fn ops(kind: u8, port: u32) -> Vec<Op> {
        let set = |field: Field| {
            let value = Value::from_u128(0x0600_0000_0000 + u128::from(port), 6);
            let mask = field.def().place();
            Op::SetField { field, value, mask }
        };
        match kind {
            0 => vec![Op::Output(port)],
            1 | 2 => vec![set(Field::EthSrc), Op::Output(port)],
            3 => vec![Op::Output(port), Op::Output(port + 10)],
            ROUTES => vec![
                set(Field::EthSrc),
                set(Field::EthDst),
                Op::DecTtl([].into()),
                Op::Output(port),
            ],
            BACK_IN => vec![set(Field::EthSrc), Op::InPort],
            _ => vec![],
        }
    }

    fn link(
        &mut self,
        number: usize,
        (matching, priority): (Match, u32),
        ops: Vec<Op>,
        counter: CounterId,
    ) {
        let spec = RuleSpec {
            matching: matching.clone(),
            priority,
            ops: Arc::new(OpList::new(ops.clone())),
            counter,
            cookie: 0,
        };
        let rule = self.writer.insert(0, spec);
        self.rules[number] = Some(Ruled {
            matching,
            priority,
            ops,
            counter,
            rule,
        });
    }

    /// Adds a rule above all others.
    fn add(&mut self, matching: Match, kind: u8, port: u32) {
        self.add_at(matching, self.rules.len() as u32 + 1, kind, port);
    }

    /// Adds a rule, replacing one with this match and precedence if there is one, as pipelines do.
    fn add_at(&mut self, matching: Match, priority: u32, kind: u8, port: u32) {
        let same = |rule: &Ruled| rule.priority == priority && rule.matching == matching;
        let known = self
            .rules
            .iter()
            .position(|rule| rule.as_ref().is_some_and(same));
        if let Some(known) = known {
            self.remove(known);
        }
        let counter = self.program.counters.allocate().unwrap();
        self.counted.push((counter, Totals::default()));
        self.rules.push(None);
        let number = self.rules.len() - 1;
        self.link(number, (matching, priority), Self::ops(kind, port), counter);
    }

    fn remove(&mut self, number: usize) -> Option<Ruled> {
        let gone = self.rules.get_mut(number)?.take()?;
        self.writer.remove(0, gone.rule);
        Some(gone)
    }

    fn replace(&mut self, number: usize, kind: u8, port: u32) {
        if let Some(gone) = self.remove(number) {
            let what = (gone.matching, gone.priority);
            self.link(number, what, Self::ops(kind, port), gone.counter);
        }
    }

    fn publish(&mut self) {
        self.writer.commit();
        self.program.domain.publish();
        self.published.clone_from(&self.rules);
    }

    /// Sends a burst and compares the results with the rules.
    fn meet(&mut self, burst: &[Vec<u8>]) {
        let (sent, expected) = self.send(burst, 1);
        assert_eq!(sent, expected);
        self.writer.housekeep(100);
        self.program.domain.publish();
    }

    /// Checks that each packet was counted with the rule that it met, with its length on arrival
    /// and its time, and with the table.
    fn assert_counted(&self) {
        for (counter, totals) in &self.counted {
            assert_eq!(self.program.counters.read(*counter), *totals);
        }
        assert_eq!(
            self.writer.bridge().table_counters(0),
            self.looked_up,
            "lookups and matches"
        );
    }

    /// Returns what was sent and what is expected, in the same order where packets of every flow
    /// kept theirs.
    fn send(&mut self, burst: &[Vec<u8>], in_port: u32) -> (Vec<Sent>, Vec<Sent>) {
        let (mut expected, mut missed, mut ended, mut expired) = (Vec::new(), 0, 0, 0);
        let mut leave = Leave::default();
        self.now_ms += 1;
        for bytes in burst {
            self.looked_up.0 += 1;
            let mut key = FlowKey::ZERO;
            parse::parse(bytes, bytes.len(), in_port, WordSet(u64::MAX), &mut key);
            let rules = self.published.iter().flatten();
            let met = rules.filter(|rule| rule.matching.matches(&key));
            let Some(best) = met.max_by_key(|rule| rule.priority) else {
                missed += 1;
                continue;
            };
            self.looked_up.1 += 1;
            let mut counted = self.counted.iter_mut();
            if let Some((_, totals)) = counted.find(|(counter, _)| *counter == best.counter) {
                totals.packets += 1;
                totals.bytes += bytes.len() as u64;
                totals.used_ms = self.now_ms;
            }
            leave.note(&best.ops);
            ended += u64::from(best.ops.is_empty());
            let mut bytes = bytes.clone();
            let ip = ipv4_at(&bytes);
            for op in &best.ops {
                match op {
                    Op::SetField { field, value, .. } => {
                        let at = if *field == Field::EthDst { 0 } else { 6 };
                        bytes[at..at + 6].copy_from_slice(value);
                    }
                    Op::DecTtl(_) => {
                        // ARP has none.
                        if let version @ (4 | 6) = bytes[ip] >> 4 {
                            let ttl = ip + if version == 4 { TTL } else { HOP_LIMIT };
                            if bytes[ttl] <= 1 {
                                expired += 1;
                                break;
                            }
                            bytes[ttl] -= 1;
                            if version == 4 {
                                fill_checksum(&mut bytes);
                            }
                        } else {
                            // Fast paths leave such packets to the walk.
                            leave.otherwise = true;
                        }
                    }
                    Op::Output(port) => expected.push((*port, bytes.clone())),
                    Op::InPort => expected.push((BACK, bytes.clone())),
                    _ => {}
                }
            }
        }
        let mut sink = Met::default();
        let guard = self.reader.begin();
        let mut frames: Vec<HeapFrame> = burst.iter().map(|bytes| HeapFrame::new(bytes)).collect();
        let bridge = self.writer.bridge();
        Engine::new().burst(
            bridge,
            &guard,
            in_port,
            &mut frames,
            0,
            self.now_ms,
            &mut sink,
        );
        let _ = guard;
        self.reader.offline();
        let lost = [ended, missed, expired];
        assert_eq!(
            losses(&sink),
            lost,
            "dropped by a rule, for want of one, and of a TTL"
        );
        if leave.in_order() || self.in_order {
            // By port; within each in order of arrival.
            expected.sort_by_key(|(port, _)| *port);
            sink.sent.sort_by_key(|(port, _)| *port);
            return (sink.sent, expected);
        }
        // Packets of different rules may overtake each other.
        expected.sort_by_cached_key(flow);
        sink.sent.sort_by_cached_key(flow);
        (sink.sent, expected)
    }
}

impl Changing {
    /// Does what [`frame`] does, but where addresses are IPv6, kinds of IPv4 and IPv6 change roles;
    /// `a` is in the address that is matched.
    fn frame_of_family(&self, kind: u8, a: u8, b: u8) -> Vec<u8> {
        let other = match kind {
            0..=9 => 12 + kind % 2,
            12 | 13 => kind - 12,
            _ => kind,
        };
        match self.addresses {
            Field::Ipv6Src => frame(other, a, b),
            Field::Ipv6Dst => frame(other, b, a),
            _ => frame(kind, a, b),
        }
    }

    /// Executes these steps, and checks that packets go where rules say and are counted there.
    fn take(&mut self, steps: Vec<Step>) -> Result<(), TestCaseError> {
        for step in steps {
            match step {
                Step::Shape => self.writer.shape_now(),
                Step::Begin => drop(self.writer.shape_tables()),
                Step::Add(conditions, kind, port) => {
                    self.add(matching(&conditions), kind, port);
                }
                Step::Remove(number) => drop(self.remove(number)),
                Step::Replace(number, kind, port) => self.replace(number, kind, port),
                Step::Publish => self.publish(),
                Step::Housekeep => drop(self.writer.housekeep(100)),
                Step::Send(frames, in_port) => {
                    let frames = frames.iter();
                    let burst: Vec<Vec<u8>> = frames
                        .flat_map(|(kind, a, b, times)| {
                            // With a correct checksum, on which rules that route rely.
                            let bytes = numbered(frame(*kind, *a, *b), 64, 0);
                            std::iter::repeat_n(bytes, *times)
                        })
                        .collect();
                    let (sent, expected) = self.send(&burst, in_port);
                    prop_assert_eq!(sent, expected);
                }
                Step::Prefix(number, length, kind, port) => {
                    self.add_prefix(number, length, kind, port);
                }
                Step::Beside(conditions, above, kind, port) => {
                    // No two of them have the same precedence.
                    let number = self.rules.len() as u32;
                    let priority = if above { ABOVE + number } else { 1 + number };
                    self.add_at(matching(&shallow(conditions)), priority, kind, port);
                }
                Step::Route(frames, in_port) => {
                    let frames = frames.iter().zip(0..);
                    let burst: Vec<Vec<u8>> = frames
                        .map(|((kind, a, b, ttl), number)| {
                            let mut bytes = self.frame_of_family(*kind, *a, *b);
                            bytes.resize(bytes.len() + usize::from(*b), 0);
                            numbered(bytes, *ttl, number)
                        })
                        .collect();
                    let (sent, expected) = self.send(&burst, in_port);
                    prop_assert_eq!(sent, expected);
                }
            }
        }
        self.assert_counted();
        Ok(())
    }
}

/// The port that a frame left by, and the frame.
type Sent = (u32, Vec<u8>);

/// Returns what packets of one flow have in common: all but IPv4's identification, TTL and
/// checksum, or IPv6's hop limit and a byte of the flow label.
fn flow((port, bytes): &Sent) -> Sent {
    let (mut flow, ip) = (bytes.clone(), ipv4_at(bytes));
    for at in IDENTIFICATION.chain([TTL]).chain(CHECKSUM) {
        flow[ip + at] = 0;
    }
    if flow[ip] >> 4 == 6 {
        flow[ip + LABEL] = 0;
        flow[ip + HOP_LIMIT] = 0;
    }
    (*port, flow)
}

/// Returns the offset of the IPv4 header in a frame that has one, perhaps behind a tag.
fn ipv4_at(bytes: &[u8]) -> usize {
    if bytes[12..14] == [0x81, 0] { 18 } else { 14 }
}

/// Offsets in an IPv4 header.
const IDENTIFICATION: Range<usize> = 4..6;
const TTL: usize = 8;
/// Offset in an IPv6 header.
const HOP_LIMIT: usize = 7;
/// A byte of IPv6's flow label that no rule matches.
const LABEL: usize = 2;
const CHECKSUM: Range<usize> = 10..12;

/// The kind of a rule of [`Changing`] that does what a router does: rewrites both Ethernet
/// addresses and decrements the TTL.
const ROUTES: u8 = 5;

/// The kind of a rule that sends packets back, with another source address.
const BACK_IN: u8 = 6;

/// Fills in the header checksum of an IPv4 frame.
fn fill_checksum(bytes: &mut [u8]) {
    let ip = ipv4_at(bytes);
    let header = &mut bytes[ip..ip + 20];
    header[CHECKSUM].fill(0);
    let words = header.chunks_exact(2);
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[CHECKSUM].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// Returns a UDP frame to be routed, with this number among those of its burst.
fn to_route(a: u8, b: u8, ttl: u8, number: u16) -> Vec<u8> {
    numbered(frame(0, a, b), ttl, number)
}

/// Returns a frame with this TTL and number in its IPv4 or IPv6 header, if it has one.
fn numbered(mut bytes: Vec<u8>, ttl: u8, number: u16) -> Vec<u8> {
    let ip = ipv4_at(&bytes);
    if bytes[ip - 2..ip] == [8, 0] {
        bytes[ip..][IDENTIFICATION].copy_from_slice(&number.to_be_bytes());
        bytes[ip + TTL] = ttl;
        fill_checksum(&mut bytes);
    } else if bytes[ip - 2..ip] == [0x86, 0xdd] {
        bytes[ip + LABEL] = number as u8;
        bytes[ip + HOP_LIMIT] = ttl;
    }
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    /// Build trees at once, start a background build, or put finished ones in use.
    Shape,
    Begin,
    Add(Vec<(usize, Vec<u8>)>, u8, u32),
    Remove(usize),
    Replace(usize, u8, u32),
    Publish,
    Housekeep,
    Send(Vec<(u8, u8, u8, usize)>, u32),
    /// Add a prefix by number and length, with what its rule does.
    Prefix(u8, u32, u8, u32),
    /// Add a rule beside prefixes, above or below them.
    Beside(Vec<(usize, Vec<u8>)>, bool, u8, u32),
    /// Like [`Step::Send`], with a TTL and a length for each.
    Route(Vec<(u8, u8, u8, u8)>, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let conditions = || prop::collection::vec(condition(), 1..4);
    let frames = || prop::collection::vec((0..14_u8, 0..4_u8, 0..4_u8, 1..4_usize), 8..24);
    prop_oneof![
        1 => Just(Step::Shape),
        1 => Just(Step::Begin),
        1 => (conditions(), 0..5_u8, 1..4_u32).prop_map(|(conditions, kind, port)| Step::Add(shallow(conditions), kind, port)),
        2 => (0..60_usize).prop_map(Step::Remove),
        2 => (0..60_usize, 0..5_u8, 1..4_u32).prop_map(|(number, kind, port)| Step::Replace(number, kind, port)),
        2 => Just(Step::Publish),
        1 => Just(Step::Housekeep),
        4 => (frames(), 1..4_u32).prop_map(|(frames, in_port)| Step::Send(frames, in_port)),
    ]
}

/// What rules for stations match.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stations {
    /// The destination of packets of any kind.
    Any,
    /// The destination of IPv4 packets.
    One,
    /// Destination and source of IPv4 packets.
    Two,
    /// The source of IPv6 packets, which is not in mini keys.
    Ipv6,
    /// Destination and source of IPv6 packets.
    Ipv6Two,
}

impl Stations {
    const ALL: [Stations; 5] = [
        Stations::Any,
        Stations::One,
        Stations::Two,
        Stations::Ipv6,
        Stations::Ipv6Two,
    ];

    /// Returns the match of a rule for a station.
    fn conditions(self, number: u8) -> Vec<(usize, Vec<u8>)> {
        let ipv4 = (at::ETH_TYPE, vec![8, 0]);
        let ipv6 = (at::ETH_TYPE, vec![0x86, 0xdd]);
        let (one, other) = (vec![number % 8], vec![number / 8]);
        match self {
            Stations::Any => vec![(at::ETH_DST + 5, vec![number])],
            Stations::One => vec![ipv4, (at::ETH_DST + 5, vec![number])],
            Stations::Two => vec![ipv4, (at::ETH_DST + 5, one), (at::ETH_SRC + 5, other)],
            Stations::Ipv6 => vec![ipv6, (at::IPV6_SRC + 15, vec![number])],
            Stations::Ipv6Two => {
                vec![ipv6, (at::IPV6_SRC + 15, one), (at::IPV6_DST + 15, other)]
            }
        }
    }

    /// Returns a packet that meets it, with this TTL and number among those of its burst.
    fn packet(self, number: u8, ttl: u8, of_burst: u16) -> Vec<u8> {
        let (kind, a, b) = match self {
            Stations::Any => (number % 3 * 6, number, 0),
            Stations::One => (0, number, 0),
            Stations::Two => (0, number % 8, number / 8),
            Stations::Ipv6 => (12, number, 0),
            Stations::Ipv6Two => (12, number % 8, number / 8),
        };
        numbered(frame(kind, a, b), ttl, of_burst)
    }
}

/// Stations of a table.
const STATIONS: u8 = 64;

/// Creates a table of rules for stations, two rules for some, and perhaps one for the rest. Kinds
/// are by station.
fn with_stations(stations: Stations, rest: Option<(u8, u32)>, kind: impl Fn(u8) -> u8) -> Changing {
    let mut table = Changing::new();
    if let Some((kind, port)) = rest {
        table.add(Match::any(), kind, port);
    }
    for number in 0..STATIONS + STATIONS / 2 {
        let conditions = stations.conditions(number % STATIONS);
        table.add(
            matching(&conditions),
            kind(number),
            u32::from(number % 3) + 1,
        );
    }
    table.publish();
    table.writer.shape_now();
    let description = table.writer.describe(0);
    assert!(description.why.contains("told by value"), "{description:?}");
    table
}

/// Returns the kind of a station's rule: nine in ten only send, the others are of kinds 1 to 4.
fn mostly_sends(number: u8) -> u8 {
    if number % 10 == 9 { number % 4 + 1 } else { 0 }
}

/// Like [`step`], with more packets for stations, and more rules of the same kind.
fn step_of_stations() -> impl Strategy<Value = Step> {
    let kind = || prop_oneof![10 => 0..10_u8, 2 => Just(10), 1 => Just(11), 10 => 12..14_u8, 1 => Just(BROADCAST)];
    let frames = prop::collection::vec((kind(), 0..STATIONS, 0..8_u8, 1..3_usize), 8..24);
    let ttl = prop_oneof![1 => 0..3_u8, 10 => Just(64)];
    let routed = prop::collection::vec((kind(), 0..STATIONS, 0..8_u8, ttl), 8..70);
    let stations = prop::sample::select(Stations::ALL.to_vec());
    let station = (0..STATIONS, stations).prop_map(|(number, of)| of.conditions(number));
    prop_oneof![
        10 => step().prop_filter("rules of other kinds", |step| !matches!(step, Step::Add(..))),
        1 => step(),
        2 => (station, deed(), 1..4_u32).prop_map(|(station, kind, port)| Step::Add(station, kind, port)),
        2 => (0..60_usize, deed(), 1..4_u32).prop_map(|(number, kind, port)| Step::Replace(number, kind, port)),
        4 => (frames, 1..4_u32).prop_map(|(frames, in_port)| Step::Send(frames, in_port)),
        6 => (routed, 1..4_u32).prop_map(|(frames, in_port)| Step::Route(frames, in_port)),
    ]
}

/// Precedences of prefixes begin here, and above them those of rules above prefixes.
const PREFIXES: u32 = 1000;
const ABOVE: u32 = 2000;

impl Changing {
    /// Adds a rule for IPv4 packets from a part of 10.0.0.0/24, or with a shorter length from more;
    /// longer ones are above shorter ones. For IPv6 `length` is that of the last 32 bits.
    fn add_prefix(&mut self, number: u8, length: u32, kind: u8, port: u32) {
        let mut matching = Match::any();
        if self.addresses == Field::Ipv4Src {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            let address = (0x0a00_0000 | u32::from(number)) & mask;
            matching.set_exact(Field::EthType, 0x0800);
            matching.set(Field::Ipv4Src, &address.to_be_bytes(), &mask.to_be_bytes());
        } else {
            let mask = u128::MAX << (32 - length);
            let address = (0xfd << 120 | u128::from(number)) & mask;
            matching.set_exact(Field::EthType, 0x86dd);
            matching.set(self.addresses, &address.to_be_bytes(), &mask.to_be_bytes());
        }
        self.add_at(matching, PREFIXES + length, kind, port);
    }
}

/// Returns kinds of rules of a router's table: mostly send, unchanged, with another address, or
/// routed.
fn deed() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => Just(0),
        2 => Just(1),
        6 => Just(ROUTES),
        1 => prop_oneof![Just(3), Just(4), Just(BACK_IN)],
    ]
}

/// Steps for tables of prefixes.
fn step_of_prefixes() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![20 => 0..10_u8, 1 => 10..14_u8];
    let ttl = prop_oneof![1 => 0..3_u8, 20 => Just(64)];
    let frames = prop::collection::vec((kind, any::<u8>(), 0..8_u8, ttl), 1..70);
    let length = prop_oneof![8 => 26..33_u32, 1 => 0..26_u32];
    // None of them edits what not all packets have.
    let beside = prop::collection::vec(condition(), 1..3);
    prop_oneof![
        1 => Just(Step::Shape),
        1 => Just(Step::Begin),
        6 => (any::<u8>(), length, deed(), 1..4_u32).prop_map(|(number, length, kind, port)| Step::Prefix(number, length, kind, port)),
        1 => (beside, prop::bool::weighted(0.3), 0..5_u8, 1..4_u32).prop_map(|(conditions, above, kind, port)| Step::Beside(conditions, above, kind, port)),
        6 => (0..400_usize).prop_map(Step::Remove),
        4 => (0..400_usize, deed(), 1..4_u32).prop_map(|(number, kind, port)| Step::Replace(number, kind, port)),
        4 => Just(Step::Publish),
        4 => Just(Step::Housekeep),
        8 => (frames, 1..4_u32).prop_map(|(frames, in_port)| Step::Route(frames, in_port)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn packets_of_a_table_with_trees_do_what_its_rules_say_while_they_change(
        rules in prop::collection::vec((prop::collection::vec(condition(), 1..4), 0..5_u8, 1..4_u32), 20..60),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut table = Changing::new();
        for (conditions, kind, port) in rules {
            table.add(matching(&shallow(conditions)), kind, port);
        }
        table.publish();
        table.writer.shape_now();
        table.take(steps)?;
    }

    #[test]
    fn packets_of_a_table_of_exact_matches_do_what_its_rules_say_while_they_change(
        stations in prop::sample::select(Stations::ALL.to_vec()),
        rest in prop::option::of((deed(), 1..4_u32)),
        // Kinds of most rules; summaries can express them.
        told in prop::collection::vec(prop::sample::select(vec![0, 1, ROUTES]), 1..4),
        batch in prop::collection::vec(deed(), 1..4),
        steps in prop::collection::vec(step_of_stations(), 1..40),
    ) {
        let kind = |number: u8| {
            let kinds = if number % 8 == 7 { &batch } else { &told };
            kinds[usize::from(number) % kinds.len()]
        };
        with_stations(stations, rest, kind).take(steps)?;
    }

    #[test]
    fn packets_of_a_router_s_table_do_what_its_rules_say_while_they_change(
        addresses in prop::sample::select(vec![Field::Ipv4Src, Field::Ipv6Src, Field::Ipv6Dst]),
        default in prop::option::of((deed(), 1..4_u32)),
        // Rules of a table often have the same kind, and so do the rules that a burst meets.
        batch in prop::collection::vec(deed(), 1..4),
        steps in prop::collection::vec(step_of_prefixes(), 1..60),
    ) {
        let mut table = Changing::new();
        table.addresses = addresses;
        if let Some((kind, port)) = default {
            table.add_prefix(0, 0, kind, port);
        }
        // The last 64 addresses have no rule.
        for length in [28, 30, 31, 32_u32] {
            for number in (0..192_u8).step_by(1 << (32 - length)) {
                // Some others have none either.
                if number % 11 != 3 {
                    let kind = batch[usize::from(number) % batch.len()];
                    table.add_prefix(number, length, kind, u32::from(number) % 3 + 1);
                }
            }
        }
        table.publish();
        table.writer.shape_now();
        let described = table.writer.describe(0);
        prop_assert_eq!(described.template, Template::LongestPrefix, "{}", described.why);
        table.take(steps)?;
    }
}

/// Creates a table with trees.
fn with_trees() -> Changing {
    let mut table = Changing::new();
    for number in 0..200_u8 {
        let mut conditions = vec![(at::IPV4_SRC, vec![10, 0, 0, number])];
        if number % 2 == 0 {
            conditions.push((at::TP_DST, vec![0, number % 4]));
        }
        if number % 3 == 0 {
            conditions.push((at::IPV4_DST, vec![10, 0, 1, number]));
        }
        table.add(matching(&conditions), number % 3, u32::from(number) % 3 + 1);
    }
    table.publish();
    table.writer.shape_now();
    assert_eq!(table.writer.describe(0).template, Template::Trees);
    table.publish();
    table
}

/// Trees have no summaries of replacements, so they are rebuilt where these are many.
#[test]
fn many_rules_in_the_place_of_others_mean_new_trees() {
    let mut table = with_trees();
    assert!(!table.writer.shape_tables(), "nothing has changed");
    for number in 0..40 {
        table.replace(number, 0, 2);
    }
    table.publish();
    assert!(table.writer.shape_tables());
}

/// Creates a table with a trie: every /30, /31 and /32 of a /24, the longer ones above; their rules
/// are of these kinds, in turn.
fn with_prefixes(kinds: &[u8]) -> Changing {
    let mut table = Changing::new();
    for length in 30..=32_u32 {
        for number in 0..1_u32 << (length - 24) {
            let address = 0x0a00_0000_u32 | number << (32 - length);
            let mask = u32::MAX << (32 - length);
            let mut matching = Match::any();
            matching.set(Field::Ipv4Src, &address.to_be_bytes(), &mask.to_be_bytes());
            let kind = kinds[number as usize % kinds.len()];
            table.add(matching, kind, number % 3 + 1);
        }
    }
    table.publish();
    table.writer.shape_now();
    assert_eq!(table.writer.describe(0).template, Template::LongestPrefix);
    table
}

#[test]
fn such_tables_have_trees() {
    edits_told_by_places_change(with_trees(), &[1, 1, 2]);
}

#[test]
fn such_tables_tell_rules_by_value() {
    // The second rules of the first stations, which have the higher precedence.
    let one = with_stations(Stations::One, None, mostly_sends);
    edits_told_by_places_change(one, &[65, 65, 66]);
    let two = with_stations(Stations::Two, Some((0, 3)), mostly_sends);
    edits_told_by_places_change(two, &[66, 66, 67]);
}

#[test]
fn such_tables_have_tries() {
    // Rules for single addresses are the last.
    let table = with_prefixes(&[0, 1, 2]);
    let first = table.rules.len() - 256;
    edits_told_by_places_change(table, &[first + 1, first + 1, first + 2]);
}

/// Returns a reproducible pseudorandom generator of numbers below its argument.
fn numbers() -> impl FnMut(u64) -> u64 {
    let mut random = 1_u64;
    move |bound| {
        random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (random >> 40) % bound
    }
}

/// Packets that meet rules of their own, most of which edit and send, take a shorter way than runs
/// and packets of other rules between them.
#[test]
fn bursts_meet_rules_of_a_trie_one_by_one_and_in_runs() {
    let mut table = with_prefixes(&[0, 1, 2]);
    let (mut a, mut below) = (0, numbers());
    for _ in 0..200 {
        let runs = 1 + below(8);
        let others = below(3) == 0;
        let count = 1 + below(64);
        let burst = (0..count).map(|_| {
            if below(runs) == 0 {
                a = below(256) as u8;
                // One rule in three only sends.
                a -= u8::from(a % 3 == 0 && a > 0 && !others);
            }
            let kind = if others && below(16) == 0 { 10 } else { 0 };
            frame(kind, a, below(256) as u8)
        });
        let burst: Vec<Vec<u8>> = burst.collect();
        table.meet(&burst);
    }
    table.assert_counted();
}

/// Packets whose TTL expires among others that are routed, each by a rule of its own or a few by
/// one: fast paths leave them to the walk, and continue behind them.
#[test]
fn packets_that_expire_do_so_among_others_that_are_routed() {
    // One rule in eight only sends, so that there is another kind to stop at.
    let mut table = with_prefixes(&[ROUTES, ROUTES, ROUTES, ROUTES, ROUTES, ROUTES, ROUTES, 0]);
    let (mut a, mut b, mut below) = (0, 0, numbers());
    for _ in 0..300 {
        let count = 1 + below(64);
        let (runs, old, sends) = (1 + below(8), 1 + below(24), below(2) == 0);
        let burst = (0..count).map(|number| {
            if below(runs) == 0 {
                a = below(256) as u8;
                a -= u8::from(a % 8 == 7 && !sends);
                b = below(2) as u8;
            }
            let ttl = if below(old) == 0 { below(3) as u8 } else { 64 };
            to_route(a, b, ttl, number as u16)
        });
        let burst: Vec<Vec<u8>> = burst.collect();
        table.meet(&burst);
    }
    table.assert_counted();
}

/// Where lookups give verdicts for all packets, edited ones and others leave a port in the order of
/// arrival.
#[test]
fn packets_that_are_routed_or_only_sent_leave_each_port_in_order_of_arrival() {
    let mut table = with_prefixes(&[0, 1, ROUTES, 0, 2]);
    table.in_order = true;
    let mut below = numbers();
    for _ in 0..300 {
        let (count, first) = (1 + below(64), below(256) as u8);
        let burst = (0..count as u16).map(|number| {
            let a = match number {
                0 => first,
                // Bursts that begin with a run take another way.
                1 => first ^ 1,
                _ => below(256) as u8,
            };
            to_route(a, 0, 64, number)
        });
        let burst: Vec<Vec<u8>> = burst.collect();
        table.meet(&burst);
    }
    table.assert_counted();
}

/// The same with stations in an exact table, of one word or two, in mini keys or not; among them
/// are packets that meet the rule for all others.
#[test]
fn packets_that_expire_do_so_among_others_to_stations() {
    for stations in Stations::ALL {
        for rest in [None, Some((0, 3)), Some((ROUTES, 2))] {
            let kind = |number: u8| if number % 8 == 7 { 0 } else { ROUTES };
            let mut table = with_stations(stations, rest, kind);
            let (mut station, mut below) = (0, numbers());
            for _ in 0..100 {
                let count = 1 + below(64);
                let (runs, old, others) = (1 + below(8), 1 + below(24), 2 + below(40));
                let burst = (0..count as u16).map(|number| {
                    if below(runs) == 0 {
                        station = below(STATIONS.into()) as u8;
                    }
                    let ttl = if below(old) == 0 { below(3) as u8 } else { 64 };
                    match below(others) {
                        0 => numbered(frame(BROADCAST, station, 0), ttl, number),
                        1 => numbered(frame(10 + below(4) as u8, station, 9), ttl, number),
                        _ => stations.packet(station, ttl, number),
                    }
                });
                let burst: Vec<Vec<u8>> = burst.collect();
                table.meet(&burst);
            }
            table.assert_counted();
        }
    }
}

/// The same with stations in an exact table of one word. (With two words some rules may find no
/// room in their buckets, and have no verdict.)
#[test]
fn packets_to_stations_leave_each_port_in_order_of_arrival() {
    for stations in [Stations::Any, Stations::One, Stations::Ipv6] {
        let kinds = [0, 1, ROUTES, 0, 2];
        let kind = |number: u8| kinds[usize::from(number % STATIONS) % kinds.len()];
        let mut table = with_stations(stations, None, kind);
        table.in_order = true;
        let mut below = numbers();
        for _ in 0..300 {
            let count = 1 + below(64);
            let first = below(STATIONS.into()) as u8;
            let burst = (0..count as u16).map(|number| {
                let station = match number {
                    0 => first,
                    // Bursts that begin with a run take another way.
                    1 => first ^ 1,
                    _ => below(STATIONS.into()) as u8,
                };
                stations.packet(station, 64, number)
            });
            let burst: Vec<Vec<u8>> = burst.collect();
            table.meet(&burst);
        }
        table.assert_counted();
    }
}

/// Rules that edit and send, with summaries: one of them gets other edits, twice, and one goes,
/// each at once and when it has been unlinked.
fn edits_told_by_places_change(mut table: Changing, numbers: &[usize; 3]) {
    for change in 0..4 {
        match change {
            1 => table.replace(numbers[0], 2, 3),
            2 => table.replace(numbers[1], 1, 1),
            3 => drop(table.remove(numbers[2])),
            _ => {}
        }
        table.publish();
        for _ in 0..2 {
            let burst: Vec<Vec<u8>> = (0..32)
                .map(|number| frame(0, number % 4, number / 8))
                .collect();
            let (sent, expected) = table.send(&burst, 1);
            assert_eq!(sent, expected);
            assert!(sent.len() > 8);
            table.writer.housekeep(100);
            table.program.domain.publish();
        }
    }
    table.assert_counted();
}

/// Returns the standing of a bridge's flow cache after some bursts of packets to two stations.
fn standing_with(more: Vec<Op>) -> &'static str {
    let mut case = Changing::new();
    for station in 0..40 {
        let condition = (at::ETH_DST + 5, vec![station]);
        case.add(matching(&[condition]), 0, 1);
    }
    let counter = case.program.counters.allocate().unwrap();
    case.rules.push(None);
    let all = matching(&[(at::ETH_DST, vec![9])]);
    case.link(40, (all, 41), more, counter);
    case.publish();
    let mut engine = Engine::new();
    for turn in 0..200_u8 {
        let frame = |index: u8| HeapFrame::new(&frame(0, index % 2, turn));
        let mut frames: Vec<HeapFrame> = (0..32).map(frame).collect();
        let guard = case.reader.begin();
        let bridge = Arc::clone(case.writer.bridge());
        engine.burst(&bridge, &guard, 1, &mut frames, 0, 1, &mut Met::default());
    }
    case.program.walk_caches.reports()[0].standing
}

#[test]
fn a_cache_is_not_tried_where_walks_are_one_short_lookup() {
    assert_eq!(standing_with(vec![Op::Output(3)]), "off: walks are short");
    assert_ne!(
        standing_with(vec![Op::Goto(1), Op::Output(3)]),
        "off: walks are short",
        "some walks may be long"
    );
}
