//! Rules are inserted into tables and removed, and frames walked through them. Besides not
//! panicking:
//!
//! * every frame is accounted for: it is sent, goes to the controllers, or is counted as dropped;
//! * what happens to a frame does not depend on the others of its burst;
//! * a lookup finds a rule of the highest precedence among those that match and hold, according to
//!   the list of a slow reference;
//! * a frame that waits for rules it has asked for continues, whatever the answer, and one that
//!   stops for a controller continues when it is sent back;
//! * rules count as many packets as there were lookups that found one.
//!
//! Input: commands one after the other (see [`Session::command`]); missing bytes read as zero.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::fields::FIELDS;
use packet::parse::{Malformed, parse_frame, set_vlan_limit};
use packet::{Field, FlowKey, Frame, HeapFrame, Match, Value, WordSet};
use program::Program;
use program::actions::learn::{Answer, Learn, Part, Request, Source, Target, LearnOutcome};
use program::actions::multipath::{Choice, HashFields};
use program::actions::{
    Bits, Bundle, Clause, Multipath, Op, OpList, PacketInReason, PortNo, ToController,
};
use program::counters::CounterId;
use program::epoch::{Epoch, NEVER, Reader};
use program::exec::{Engine, Frozen, Thaw};
use program::host::{Context, DropReason, Host};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, Miss, RuleRef};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

mod input;
use input::Input;

/// Tables that contain rules.
const TABLES: u8 = 5;
const MAX_COMMANDS: usize = 96;
const MAX_FRAMES: usize = 24;

/// Fields that matches use: of each layer, metadata, and several in one word.
const MATCHED: [Field; 18] = [
    Field::InPortOxm,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::IpProto,
    Field::IpDscp,
    Field::IpFrag,
    Field::TcpDst,
    Field::TcpFlags,
    Field::Ipv6Dst,
    Field::ArpTha,
    Field::NdTarget,
    Field::Reg0,
    Field::Metadata,
    Field::ConjId,
    Field::ActsetOutput,
];

/// What a host is told about a frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// Port, whether back out of the ingress port, queue, and a hash of the bytes.
    Output(PortNo, bool, Option<u32>, u64),
    All(bool, u64),
    Normal(u64),
    Controller(u8, u16, u64),
    Malformed(u8),
    Dropped(&'static str),
}

#[derive(Default)]
struct Events(Vec<Event>);

fn bytes_digest(in_port: PortNo, frame: &HeapFrame) -> u64 {
    let mut hasher = DefaultHasher::new();
    (in_port, frame.to_vec()).hash(&mut hasher);
    hasher.finish()
}

fn digest(context: &Context<'_>, frame: &HeapFrame) -> u64 {
    let mut hasher = DefaultHasher::new();
    frame.to_vec().hash(&mut hasher);
    for word in context.valid.iter() {
        context.key.words[word].hash(&mut hasher);
    }
    (context.in_port, context.cookie).hash(&mut hasher);
    hasher.finish()
}

impl Host<HeapFrame> for Events {
    fn port_is_live(&self, port: PortNo) -> bool {
        port % 3 != 0
    }
    fn output(&mut self, context: Context<'_>, port: PortNo, frame: HeapFrame, to_in_port: bool) {
        *context.sent = true;
        // The fast paths of a burst keep no key, cookie and table for rules that only send.
        let digest = bytes_digest(context.in_port, &frame);
        self.0
            .push(Event::Output(port, to_in_port, context.queue, digest));
    }
    fn output_all(&mut self, context: Context<'_>, frame: HeapFrame, flood: bool) {
        *context.sent = true;
        self.0.push(Event::All(flood, digest(&context, &frame)));
    }
    fn normal(&mut self, context: Context<'_>, frame: HeapFrame) {
        *context.sent = true;
        self.0.push(Event::Normal(digest(&context, &frame)));
    }
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame) {
        self.0.push(Event::Controller(
            to.reason as u8,
            to.controller_id,
            digest(&context, frame),
        ));
    }
    fn malformed(&mut self, reason: Malformed) {
        // For other reasons, it depends on the burst whether the invalid part was parsed.
        if matches!(reason, Malformed::Ethernet | Malformed::Split) {
            self.0.push(Event::Malformed(reason as u8));
        }
    }
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn dropped(&mut self, reason: DropReason) {
        self.0
            .push(Event::Dropped(DropReason::NAMES[reason as usize]));
    }
}

/// A host that collects learn requests, and packets that stop.
#[derive(Default)]
struct Wishes {
    events: Events,
    requests: Vec<Request>,
    paused: Vec<(HeapFrame, FlowKey, Frozen)>,
    stopped: usize,
}

impl Host<HeapFrame> for Wishes {
    fn port_is_live(&self, port: PortNo) -> bool {
        self.events.port_is_live(port)
    }
    fn output(&mut self, context: Context<'_>, port: PortNo, frame: HeapFrame, to_in_port: bool) {
        self.events.output(context, port, frame, to_in_port);
    }
    fn output_all(&mut self, context: Context<'_>, frame: HeapFrame, flood: bool) {
        self.events.output_all(context, frame, flood);
    }
    fn normal(&mut self, context: Context<'_>, frame: HeapFrame) {
        self.events.normal(context, frame);
    }
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame) {
        self.events.controller(context, to, frame);
    }
    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame, rest: Frozen) {
        self.stopped += 1;
        if self.stopped < 100 {
            let mut key = *context.key;
            key.clear(WordSet(u64::MAX).minus(context.valid));
            self.paused.push((frame.clone(), key, rest));
        }
        self.events.controller(context, to, frame);
    }
    fn learn(&mut self, request: Request) -> bool {
        self.requests.push(request);
        self.requests.len() < 20
    }
    fn malformed(&mut self, reason: Malformed) {
        self.events.malformed(reason);
    }
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn dropped(&mut self, reason: DropReason) {
        self.events.dropped(reason);
    }
}

/// A rule as the reference knows it.
struct Known {
    rule: RuleRef,
    table: u8,
    matching: Match,
    priority: u32,
    /// The conjunctions it is part of; empty for rules with actions.
    clauses: Vec<Clause>,
    counter: CounterId,
    added: Epoch,
    removed: Epoch,
}

/// State shared by all inputs: building it costs more than most inputs do.
struct Ground {
    program: Arc<Program>,
    reader: Reader,
}

thread_local! {
    static GROUND: RefCell<Ground> = RefCell::new({
        let program = Arc::new(Program::new());
        let reader = program.domain.reader().expect("the first reader");
        program.counters.add_worker(reader.index());
        Ground { program, reader }
    });
}

struct Session<'g> {
    program: Arc<Program>,
    reader: &'g mut Reader,
    writer: BridgeWriter,
    bridge: Arc<Bridge>,
    engine: Engine<HeapFrame>,
    rules: Vec<Known>,
    frames: usize,
}

impl<'g> Session<'g> {
    fn new(ground: &'g mut Ground) -> Session<'g> {
        let bridge = Bridge::new(Arc::clone(&ground.program));
        Session {
            program: Arc::clone(&ground.program),
            reader: &mut ground.reader,
            writer: BridgeWriter::new(Arc::clone(&bridge)),
            bridge,
            engine: Engine::new(),
            rules: Vec::new(),
            frames: 0,
        }
    }

    fn command(&mut self, input: &mut Input<'_>) {
        match input.u8() % 17 {
            0..=6 => self.insert(input),
            7 => self.remove(input),
            8 | 9 => {
                self.writer.commit();
                self.program.domain.publish();
            }
            10 => {
                self.writer.housekeep(input.u8().into());
                self.program.domain.collect();
            }
            11 => self.writer.set_miss(
                input.u8() % TABLES,
                [Miss::Drop, Miss::Controller, Miss::Next][usize::from(input.u8() % 3)],
            ),
            12 => self.packet_out(input),
            16 => self.wish(input),
            _ => self.burst(input),
        }
    }

    fn insert(&mut self, input: &mut Input<'_>) {
        let (table, priority) = (input.u8() % TABLES, u32::from(input.u8() & 15));
        let matching = matching(input);
        let ops = Arc::new(OpList::new(rule_ops(input, table)));
        self.put(table, priority, matching, ops);
    }

    /// Inserts a rule, replacing one of the same match and precedence.
    fn put(&mut self, table: u8, priority: u32, matching: Match, ops: Arc<OpList>) {
        let clauses = ops.clauses().unwrap_or_default().to_vec();
        let Some(counter) = self.program.counters.allocate() else {
            return;
        };
        // One rule per match and precedence: a switch replaces rules, it does not stack them.
        let same = |known: &Known| {
            known.removed == NEVER
                && (known.table, known.priority, &known.matching) == (table, priority, &matching)
        };
        if let Some(old) = self.rules.iter().position(same) {
            self.end(old);
        }
        let added = self.program.domain.next();
        let spec = RuleSpec {
            matching: matching.clone(),
            priority,
            ops,
            counter,
            cookie: self.rules.len() as u64,
        };
        let rule = self.writer.insert(table, spec);
        self.rules.push(Known {
            rule,
            table,
            matching,
            priority,
            clauses,
            counter,
            added,
            removed: NEVER,
        });
    }

    fn remove(&mut self, input: &mut Input<'_>) {
        let live: Vec<usize> = (0..self.rules.len())
            .filter(|index| self.rules[*index].removed == NEVER)
            .collect();
        if !live.is_empty() {
            self.end(live[usize::from(input.u8()) % live.len()]);
        }
    }

    fn end(&mut self, index: usize) {
        let known = &mut self.rules[index];
        known.removed = self.program.domain.next();
        self.writer.remove(known.table, known.rule);
    }

    fn frame(&mut self, input: &mut Input<'_>) -> HeapFrame {
        self.frames += 1;
        let (len, split) = (usize::from(input.u8()), usize::from(input.u8()));
        let (first, second) = input
            .take(len)
            .split_at_checked(split)
            .unwrap_or((&[], &[]));
        HeapFrame::with_segments(&[first, second])
    }

    fn packet_out(&mut self, input: &mut Input<'_>) {
        let in_port = [1, 0xffff_fffd, 0xffff_ffff][usize::from(input.u8() % 3)];
        let list = Arc::new(OpList::new(ops(input, 0, true)));
        let frame = self.frame(input);
        let mut events = Events::default();
        let guard = self.reader.begin();
        self.engine
            .run_ops(&self.bridge, &guard, in_port, frame, &list, 0, &mut events);
        assert!(
            events.0.iter().next().is_some(),
            "a packet-out is lost: {list:?}"
        );
    }

    /// Walks frames one by one and together.
    fn burst(&mut self, input: &mut Input<'_>) {
        let in_port = PortNo::from(input.u8() % 4);
        let mut frames: Vec<HeapFrame> = Vec::new();
        for _ in 0..1 + input.u8() % 8 {
            frames.push(self.frame(input));
        }
        frames
            .iter()
            .for_each(|frame| self.look_up(frame.clone(), in_port));
        let guard = self.reader.begin();
        let counted = |table| {
            (
                self.bridge.table_counters(table).1,
                counted(&self.program, &self.rules, table),
            )
        };
        let before: Vec<(u64, u64)> = (0..TABLES).map(counted).collect();
        let mut alone = Vec::new();
        for frame in &frames {
            let mut events = Events::default();
            self.engine.burst(
                &self.bridge,
                &guard,
                in_port,
                &mut vec![frame.clone()],
                0,
                0,
                &mut events,
            );
            assert!(
                events.0.iter().next().is_some(),
                "a frame is lost: {:02x?}, told {:?}",
                frame.to_vec(),
                events.0
            );
            alone.append(&mut events.0);
        }
        for (table, before) in (0..TABLES).zip(before) {
            let after = counted(table);
            assert_eq!(
                after.0 - before.0,
                after.1 - before.1,
                "rules of table {table} count other packets than the table"
            );
        }
        let mut together = Events::default();
        let mut other = Engine::new();
        other.burst(
            &self.bridge,
            &guard,
            in_port,
            &mut frames,
            0,
            0,
            &mut together,
        );
        assert!(frames.is_empty());
        alone.sort();
        together.0.sort();
        assert_eq!(
            alone, together.0,
            "what becomes of a frame depends on the others"
        );
    }

    /// Walks a frame whose learn requests are granted or not.
    fn wish(&mut self, input: &mut Input<'_>) {
        let in_port = PortNo::from(input.u8() % 4);
        let mut frames: Vec<HeapFrame> =
            (0..1 + input.u8() % 3).map(|_| self.frame(input)).collect();
        let count = frames.len();
        let (answers, mut host) = (input.u8(), Wishes::default());
        let mut engine = Engine::new();
        let guard = self.reader.begin();
        engine.burst(&self.bridge, &guard, in_port, &mut frames, 0, 0, &mut host);
        let _ = guard;
        let mut turns = 0;
        loop {
            for request in std::mem::take(&mut host.requests) {
                self.grant(&mut engine, request, answers);
            }
            let guard = self.reader.begin();
            turns += 1;
            engine.settle(&guard, turns * 5, &mut |_| {});
            while let Some(held) = engine.release() {
                engine.resume(held, &self.bridge, &guard, turns * 5, &mut host);
            }
            for (frame, metadata, rest) in std::mem::take(&mut host.paused) {
                let thaw = Thaw {
                    frame,
                    metadata: &metadata,
                    rest,
                };
                engine.thaw(&self.bridge, &guard, thaw, turns * 5, &mut host);
            }
            if !engine.is_waiting() && host.requests.is_empty() && host.paused.is_empty() {
                break;
            }
            assert!(turns < 1000, "frames wait for ever");
        }
        assert_eq!(engine.held(), (0, 0));
        let accounts = host.events.0.iter().count();
        assert!(
            accounts >= count,
            "a frame is lost: told {:?}",
            host.events.0
        );
    }

    fn grant(&mut self, engine: &mut Engine<HeapFrame>, request: Request, answers: u8) {
        let Request {
            ticket,
            learn,
            values,
            seen_ms,
            ..
        } = request;
        let choice = answers >> (ticket % 4 * 2) & 3;
        let verdict = match choice {
            0 | 1 => LearnOutcome::Learned,
            2 => LearnOutcome::LimitReached,
            _ => return,
        };
        if choice == 0 && self.rules.len() < MAX_COMMANDS {
            let matching = learn.matching(&values);
            let ops = Arc::new(OpList::new(vec![Op::Output(1)]));
            self.put(learn.table, learn.priority.into(), matching, ops);
            if let Some(known) = self.rules.last() {
                known
                    .rule
                    .set_learned(learn.fingerprint(&values), seen_ms);
            }
            self.writer.commit();
            self.program.domain.publish();
        }
        let epoch = self.program.domain.current();
        engine.answer(Answer {
            ticket,
            verdict,
            epoch,
        });
    }

    fn look_up(&mut self, mut frame: HeapFrame, in_port: PortNo) {
        let mut key = FlowKey::ZERO;
        parse_frame(&mut frame, in_port, self.bridge.needed(), &mut key);
        let guard = self.reader.begin();
        let epoch = guard.epoch();
        for table in 0..TABLES {
            let holding = |known: &&Known| {
                known.table == table && known.added <= epoch && epoch < known.removed
            };
            let rules: Vec<&Known> = self.rules.iter().filter(holding).collect();
            let (best, id) = best(&rules, &key);
            let found = self.bridge.lookup(table, &key, &guard);
            assert_eq!(found.map(|rule| rule.spec.priority), best, "table {table}");
            if let Some(rule) = found {
                let known = &self.rules[rule.spec.cookie as usize];
                let mut key = key;
                key.set_u32(packet::key::at::CONJ_ID, id);
                assert!(
                    holding(&known) && known.clauses.is_empty() && known.matching.matches(&key),
                    "a rule that does not match, or does not hold"
                );
            }
        }
    }

    /// Restores the shared state, with everything that the input made freed.
    fn finish(self) {
        for known in &self.rules {
            self.writer.release_counter(known.counter);
        }
        let Session {
            program,
            reader,
            writer,
            bridge,
            engine,
            ..
        } = self;
        drop((writer, bridge, engine));
        reader.offline();
        // Freeing may retire more.
        for _ in 0..4 {
            program.domain.publish();
            program.domain.collect();
        }
        assert_eq!(program.domain.collect(), 0, "something stays for ever");
    }
}

/// Returns the precedence of the rule that a lookup finds, and the conjunction id that led to it or
/// 0 (ovs-fields(7), "Conjunctive Match Fields").
fn best(rules: &[&Known], key: &FlowKey) -> (Option<u32>, u32) {
    let ordinary = |key: &FlowKey| {
        let matching = rules.iter().filter(|known| known.matching.matches(key));
        matching
            .filter(|known| known.clauses.is_empty())
            .map(|known| known.priority)
            .max()
    };
    let floor = ordinary(key);
    let mut seen: BTreeMap<(Reverse<u32>, u32, u8), u64> = BTreeMap::new();
    for known in rules.iter().filter(|known| known.matching.matches(key)) {
        for clause in &known.clauses {
            let condition = (Reverse(known.priority), clause.id, clause.of);
            *seen.entry(condition).or_default() |= 1 << clause.index;
        }
    }
    for ((priority, id, of), fulfilled) in seen {
        let above = floor.is_none_or(|floor| priority.0 > floor);
        if above && fulfilled.count_ones() == of.into() {
            let mut key = *key;
            key.set_u32(packet::key::at::CONJ_ID, id);
            if let Some(found) = ordinary(&key) {
                return (Some(found), id);
            }
        }
    }
    (floor, 0)
}

/// Returns the packets counted by the rules of a table.
fn counted(program: &Program, rules: &[Known], table: u8) -> u64 {
    let rules = rules.iter().filter(|known| known.table == table);
    rules
        .map(|known| program.counters.read(known.counter).packets)
        .sum()
}

/// Reads up to three fields, each as a whole, by prefix, or by any bits.
fn matching(input: &mut Input<'_>) -> Match {
    let mut matching = Match::any();
    let shape = input.u8();
    for _ in 0..shape & 3 {
        let which = input.u8();
        let field = MATCHED[usize::from(which) % MATCHED.len()];
        let def = field.def();
        let mask = match which >> 4 & 3 {
            0 | 1 => def.place(),
            2 => Value::ones_at(
                usize::from(input.u8()) % (def.bytes * 8),
                def.bytes * 8,
                def.bytes,
            ),
            _ => Value::from_bytes(&input.bytes(def.bytes)),
        };
        matching.set(field, &input.bytes(def.bytes), &mask);
    }
    matching
}

/// Reads a rule's ops: applied actions, then the action set, then a jump, in the compiler's order.
fn rule_ops(input: &mut Input<'_>, table: u8) -> Vec<Op> {
    let kind = input.u8();
    if kind >= 0xe0 {
        let clauses = (0..1 + (kind & 3)).map(|_| {
            let byte = input.u8();
            let of = [2, 2, 3, 64][usize::from(byte & 3)];
            Clause {
                id: u32::from(byte >> 2 & 1) + 1,
                index: (byte >> 3) % of,
                of,
            }
        });
        return vec![Op::Conjunction(clauses.collect())];
    }
    let mut list = ops(input, 0, true);
    let tail = input.u8();
    if tail & 1 != 0 {
        list.push(Op::ClearActions);
    }
    if tail & 2 != 0 {
        list.push(Op::WriteActions(ops(input, 2, false).into()));
    }
    if tail & 4 != 0 && table + 1 < TABLES {
        list.push(Op::Goto(table + 1 + (tail >> 4) % (TABLES - table - 1)));
    }
    list
}

/// Reads up to five ops. `resubmits`: whether they may look up.
fn ops(input: &mut Input<'_>, depth: u8, resubmits: bool) -> Vec<Op> {
    (0..input.u8() % 6)
        .filter_map(|_| op(input, depth, resubmits))
        .collect()
}

fn op(input: &mut Input<'_>, depth: u8, resubmits: bool) -> Option<Op> {
    Some(match input.u8() % 33 {
        0 | 1 => Op::Output(PortNo::from(input.u8() & 7)),
        2 => Op::InPort,
        3 => Op::All {
            flood: input.u8() & 1 == 1,
        },
        4 => Op::Normal,
        5 => Op::OutputReg {
            source: bits(input, 128),
            reason: PacketInReason::Action,
        },
        6 => Op::OutputTruncated {
            port: port(input),
            max_len: input.u8().into(),
        },
        7 => Op::Enqueue {
            port: port(input),
            queue: input.u8().into(),
        },
        8 => Op::Controller(Box::new(ToController {
            max_len: input.u16(),
            reason: PacketInReason::Action,
            controller_id: input.u8().into(),
            userdata: Vec::new(),
            by_output: input.u8() & 1 != 0,
        })),
        9 | 10 => {
            let def = writable(input);
            let mask = if input.u8() & 1 == 0 {
                def.place()
            } else {
                Value::from_bytes(&input.bytes(def.bytes))
            };
            Op::SetField {
                field: def.field,
                value: Value::from_bytes(&input.bytes(def.bytes)),
                mask,
            }
        }
        11 => {
            let (src, mut dst) = (bits(input, 128), bits(input, 128));
            dst.bits = dst.bits.min(src.bits);
            Op::Move {
                src: Bits {
                    bits: dst.bits,
                    ..src
                },
                dst,
            }
        }
        12 => Op::PushVlan(0x8100),
        13 => Op::PushVlan(0x88a8),
        14 => Op::PopVlan,
        15 => Op::SetVlanVid {
            vid: input.u16() & 0xfff,
            push: input.u8() & 1 == 1,
        },
        16 => Op::SetVlanPcp {
            pcp: input.u8() & 7,
            push: input.u8() & 1 == 1,
        },
        17 => Op::DecTtl((0..input.u8() % 3).map(u16::from).collect()),
        18 => Op::SetQueue(Some(u32::from(input.u8())).filter(|queue| *queue < 200)),
        19 | 20 if resubmits => {
            let flags = input.u8();
            let table = (flags & 1 == 1).then(|| input.u8() % TABLES);
            Op::Resubmit {
                in_port: (flags & 6 == 6).then(|| u32::from(flags >> 3)),
                table,
            }
        }
        21 => Op::StackPush(bits(input, 128)),
        22 => Op::StackPop(bits(input, 128)),
        23 if depth < 2 => Op::Clone(Arc::new(OpList::new(ops(input, depth + 1, resubmits)))),
        24 if resubmits => Op::Exit,
        26 => Op::Multipath(Box::new(Multipath {
            fields: hash_fields(input),
            basis: input.u16(),
            choice: match input.u8() & 3 {
                0 => Choice::Modulo,
                1 => Choice::Threshold,
                2 => Choice::HighestWeight,
                _ => Choice::Iterate(input.u16().into()),
            },
            ways: u32::from(input.u16()) + 1,
            dst: bits(input, 128),
        })),
        27 => Op::Bundle(Box::new(Bundle {
            fields: hash_fields(input),
            basis: (input.u8() & 1 == 0).then(|| input.u16()),
            members: (0..input.u8() % 5).map(|_| port(input)).collect(),
            dst: (input.u8() & 1 == 0).then(|| bits(input, 128)),
        })),
        28 => Op::CheckLength {
            max_len: input.u8().into(),
            dst: bits(input, 128),
        },
        25 | 29 if resubmits => Op::Learn(Arc::new(learn(input))),
        30 if resubmits => Op::Pause(Box::new(ToController::whole(PacketInReason::Action))),
        31 if resubmits => Op::FinTimeout {
            idle: input.u8().into(),
            hard: input.u8().into(),
        },
        _ => return None,
    })
}

fn hash_fields(input: &mut Input<'_>) -> HashFields {
    let all = [
        HashFields::EthSrc,
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::NwSrc,
        HashFields::NwDst,
        HashFields::SymmetricL3,
    ];
    all[usize::from(input.u8()) % all.len()]
}

/// Reads a learn request.
fn learn(input: &mut Input<'_>) -> Learn {
    let (table, priority, flags) = (input.u8() % TABLES, u16::from(input.u8() & 15), input.u8());
    let parts = (0..flags & 3).map(|_| {
        let to = Bits {
            field: MATCHED[usize::from(input.u8()) % MATCHED.len()],
            start: 0,
            bits: 1,
        };
        let bits = (to.field.def().action_bits as u16).min(128);
        Part {
            source: Source::Field(Bits { bits, ..to }),
            target: Target::Match(Bits { bits, ..to }),
        }
    });
    Learn {
        table,
        priority,
        parts: parts.collect(),
        result: (flags & 4 != 0).then_some(Bits {
            field: Field::Reg0,
            start: 1,
            bits: 1,
        }),
        ..Learn::default()
    }
    .shaped()
}

/// Reads a port number, including reserved ones.
fn port(input: &mut Input<'_>) -> PortNo {
    let byte = input.u8();
    if byte & 0x80 == 0 {
        PortNo::from(byte & 7)
    } else {
        0xffff_ff00 | PortNo::from(byte)
    }
}

fn writable(input: &mut Input<'_>) -> &'static packet::fields::FieldDef {
    let def = &FIELDS[usize::from(input.u8()) % FIELDS.len()];
    if def.writable { def } else { Field::Reg1.def() }
}

/// Reads a part of a writable field.
fn bits(input: &mut Input<'_>, most: usize) -> Bits {
    let def = writable(input);
    let start = usize::from(input.u8()) % def.action_bits;
    let bits = 1 + usize::from(input.u8()) % (def.action_bits - start).min(most);
    Bits {
        field: def.field,
        start: start as u16,
        bits: bits as u16,
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    set_vlan_limit(1 + (input.u8() & 1));
    GROUND.with_borrow_mut(|ground| {
        let mut session = Session::new(ground);
        for _ in 0..MAX_COMMANDS {
            if input.is_empty() || session.frames >= MAX_FRAMES {
                break;
            }
            session.command(&mut input);
        }
        session.finish();
    });
});
