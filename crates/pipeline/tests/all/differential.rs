//! Compares the program's walk with the reference, on generated rules and packets, while rules
//! change.
//!
//! `SLUICE_CASES` sets the number of cases, `SLUICE_SEED` the first seed; a failure names its seed.

use crate::common;
use crate::common::generate::{self, Random, TABLES, action, change, frame};
use crate::common::outside::{Outside, To};
use crate::common::{Switch, apply, effects};
use openflow::Version;
use openflow::action::{Action, Instruction, Subfield};
use openflow::flow::FlowModCommand;
use openflow::group::{self, GroupDescription, GroupStats};
use openflow::meter::{MeterCommand, MeterConfig, MeterMod};
use openflow::port;
use packet::{Field, FlowKey, HeapFrame, Match, Value, WordSet};
use pipeline::Clock;
use pipeline::reference::{self, Effect, Levels};
use program::actions::{PacketInReason, ToController};
use program::epoch::Guard;
use program::exec::{CacheMode, Engine};
use program::host::{Context, DropReason};
use program::table::Miss;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Every third port is down.
fn is_live(port: u32) -> bool {
    !port.is_multiple_of(3)
}

/// Records what a walk does, as the reference's effects.
#[derive(Default)]
struct Notes {
    effects: Vec<Effect>,
    /// The valid words of each controller's key.
    valid: Vec<WordSet>,
    /// A frame had no room for what an action would add.
    failed: bool,
}

impl Outside for Notes {
    fn port_is_live(&self, port: u32) -> bool {
        is_live(port)
    }
    fn output(&mut self, context: Context<'_>, port: u32, frame: HeapFrame, to_in_port: bool) {
        let effect = effects::output(context, port, &frame, to_in_port);
        self.effects.push(effect);
    }
    fn output_all(&mut self, context: Context<'_>, frame: HeapFrame, flood: bool) {
        self.effects
            .push(effects::output_all(context, &frame, flood));
    }
    fn normal(&mut self, context: Context<'_>, frame: HeapFrame) {
        self.effects.push(effects::normal(context, &frame));
    }
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame) {
        let mut key = *context.key;
        key.clear(WordSet(u64::MAX).minus(context.valid));
        self.valid.push(context.valid);
        let mut effect = effects::controller(&context, to, frame);
        if let Effect::Controller { key: noted, .. } = &mut effect {
            **noted = key;
        }
        self.effects.push(effect);
    }
    fn now_ns(&mut self) -> u64 {
        NOW_NS
    }
    fn dropped(&mut self, reason: DropReason) {
        self.failed |= reason == DropReason::ActionFailed;
    }
}

/// Time at which meters are added, in milliseconds; the meters' clock stays at this time.
const METERS_MS: u64 = 1_000_000;
const NOW_NS: u64 = METERS_MS * 1_000_000;

struct Case {
    random: Random,
    switch: Switch,
    known: HashMap<(u8, u16), Match>,
    accepted: usize,
    truncates: bool,
    groups_met: usize,
    /// Since counters were last compared, walk and reference have ended at different limits.
    ended_apart: Cell<bool>,
    levels: RefCell<Levels>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = random.next());
        let mut switch = Switch::new();
        let map = common::generate::ways::options();
        switch.pipeline.tlv_table_mod(&map).unwrap();
        for table in 0..=TABLES as u8 {
            let miss = random.pick(&[Miss::Drop, Miss::Drop, Miss::Controller, Miss::Next]);
            switch.pipeline.set_miss(table, miss);
        }
        let mut case = Case {
            random,
            switch,
            known: HashMap::new(),
            accepted: 0,
            truncates: false,
            groups_met: 0,
            ended_apart: Cell::new(false),
            levels: RefCell::default(),
        };
        case.levels.borrow_mut().set_time(NOW_NS);
        generate::meters()
            .into_iter()
            .for_each(|config| case.add_meter(config));
        (0..20).for_each(|_| case.change_group());
        if case.random.one_in(8) {
            let mut config = generate::meters().remove(1);
            config.meter = openflow::meter::CONTROLLER;
            case.add_meter(config);
        }
        case
    }

    /// Adds a meter and sends packets through it until its low rates are used up, so that its
    /// verdicts from then on are certain.
    fn add_meter(&mut self, config: MeterConfig) {
        let number = config.meter;
        let change = MeterMod {
            command: MeterCommand::Add,
            config,
        };
        let pipeline = &mut self.switch.pipeline;
        pipeline
            .meter_mod(&change, Clock::from_ms(METERS_MS))
            .unwrap();
        let mut actions = vec![Action::Meter(number); 3];
        if number == openflow::meter::CONTROLLER {
            actions.fill(common::output(port::CONTROLLER));
        }
        for action in actions {
            let ops = pipeline
                .compile_actions(std::slice::from_ref(&action), &Match::any(), Version::V1_5)
                .unwrap();
            let frame = HeapFrame::new(&[0; 60]);
            let mut reader = self.switch.program.domain.reader().unwrap();
            self.switch.program.counters.add_worker(reader.index());
            let guard = reader.begin();
            Engine::new().run_ops(
                &self.switch.bridge,
                &guard,
                1,
                frame,
                &ops,
                1,
                &mut To(&mut Notes::default()),
            );
            let mut levels = self.levels.borrow_mut();
            levels.police(pipeline, number, 60);
        }
    }

    /// Sometimes deletes a meter, with its rules, and adds it again.
    fn change_meters(&mut self) {
        if !self.random.one_in(8) {
            return;
        }
        let config = generate::meters().remove(self.random.below(4) as usize);
        let delete = MeterMod {
            command: MeterCommand::Delete,
            config: config.clone(),
        };
        let now = self.switch.clock();
        self.switch.pipeline.meter_mod(&delete, now).unwrap();
        let left = self.switch.pipeline.dump_all(now).filter(|rule| {
            let uses = format!("{:?}", rule.stats.instructions);
            uses.contains(&format!("Meter({})", config.meter))
        });
        assert_eq!(left.count(), 0);
        if self.random.one_in(2) {
            self.switch.publish();
        }
        self.add_meter(config);
    }

    /// Sometimes adds, changes or deletes a group.
    fn change_groups(&mut self) {
        if self.random.one_in(8) {
            self.change_group();
        }
    }

    fn change_group(&mut self) {
        let change = generate::groups::group_change(&mut self.random);
        let now = self.switch.clock();
        let _ = self.switch.pipeline.group_mod(&change, Version::V1_0, now);
    }

    /// Returns the descriptions and counters of all groups.
    fn groups(&self) -> (Vec<GroupDescription>, Vec<GroupStats>) {
        let pipeline = &self.switch.pipeline;
        (
            pipeline.group_descriptions(group::ALL),
            pipeline.group_stats(group::ALL, self.switch.clock()),
        )
    }

    fn mutate(&mut self, count: u64) {
        self.change_meters();
        // Some changes are tried and rolled back, which must leave no trace.
        if self.random.one_in(4) {
            let before: Vec<_> = self.switch.pipeline.dump_all(self.switch.clock()).collect();
            self.switch.pipeline.begin_batch();
            let mut known = self.known.clone();
            let groups = self.groups();
            for _ in 0..self.random.below(10) {
                self.change_groups();
                let change = change(&mut self.random, &mut known);
                let _ = self.switch.mod10(change);
            }
            self.switch.pipeline.roll_back();
            let after: Vec<_> = self.switch.pipeline.dump_all(self.switch.clock()).collect();
            assert_eq!(before, after, "a batch that was rolled back left something");
            assert_eq!(groups, self.groups());
        }
        for _ in 0..count {
            self.change_groups();
            let change = change(&mut self.random, &mut self.known);
            let adds = change.command == FlowModCommand::Add;
            self.truncates |= format!("{:?}", change.instructions).contains("OutputTrunc");
            // 1.0 accepts actions without prerequisites, and so more of the generated rules.
            if self.switch.mod10(change).is_ok() && adds {
                self.accepted += 1;
            }
        }
        self.switch.publish();
        // Sometimes builds the lookups that fit the rules.
        if self.random.one_in(3) {
            self.switch.pipeline.shape_now();
        }
        self.switch.pipeline.housekeep(usize::MAX);
        self.switch.program.domain.collect();
    }
}

/// Returns effects with only those words of a controller's key that the program fills.
fn comparable(effects: &[Effect], valid: &[WordSet]) -> Vec<Effect> {
    let mut effects = effects.to_vec();
    let mut valid = valid.iter();
    for effect in &mut effects {
        if let Effect::Controller { key, .. } = effect
            && let Some(valid) = valid.next()
        {
            key.clear(WordSet(u64::MAX).minus(*valid));
        }
    }
    effects
}

/// Describes the rules that a packet met.
fn describe(case: &Case, outcome: &reference::Outcome) -> String {
    let rules = case.switch.pipeline.dump_all(case.switch.clock());
    let met = |stats: &openflow::flow::FlowStats| {
        outcome
            .hits
            .iter()
            .any(|hit| (hit.table, hit.priority) == (stats.table, stats.priority.into()))
    };
    let lines: Vec<String> = rules
        .filter(|rule| met(&rule.stats))
        .map(|rule| {
            let stats = rule.stats;
            let fields: Vec<String> = packet::fields::FIELDS
                .iter()
                .map(|def| (def.name, stats.matching.get(def.field)))
                .filter(|(_, (_, mask))| !mask.is_zero())
                .map(|(name, (value, mask))| format!("{name}={value:?}/{mask:?}"))
                .collect();
            format!(
                "table {} prio {} {} => {:?}",
                stats.table,
                rule.priority,
                fields.join(","),
                stats.instructions
            )
        })
        .collect();
    lines.join("\n")
}

fn show(effects: &[Effect]) -> String {
    effects
        .iter()
        .map(|effect| format!("  {effect:02x?}\n"))
        .collect()
}

fn compare_one(
    case: &Case,
    engine: &mut Engine<HeapFrame>,
    guard: &Guard<'_>,
    in_port: u32,
    bytes: &[u8],
    seed: u64,
) -> reference::Outcome {
    let mut levels = case.levels.borrow_mut();
    let outcome =
        reference::evaluate_metered(&case.switch.pipeline, in_port, bytes, &is_live, &mut levels);
    let mut notes = Notes::default();
    let mut frames = vec![HeapFrame::new(bytes)];
    engine.burst(
        &case.switch.bridge,
        guard,
        in_port,
        &mut frames,
        0,
        case.switch.now,
        &mut To(&mut notes),
    );
    // A packet that loops and grows ends in the walk when the frame is full, in the reference only
    // at the limit on resubmits.
    case.ended_apart
        .set(case.ended_apart.get() || outcome.cut_short && notes.failed);
    if !outcome.cut_short {
        let (expected, got) = (
            comparable(&outcome.effects, &notes.valid),
            comparable(&notes.effects, &[]),
        );
        assert!(
            expected == got,
            "seed {seed}, in_port {in_port}, packet {bytes:02x?}\ntwin:\n{}walk:\n{}rules:\n{}groups: {:?}",
            show(&expected),
            show(&got),
            describe(case, &outcome),
            case.switch
                .pipeline
                .group_descriptions(openflow::group::ALL)
        );
    }
    outcome
}

/// Sends the same packets as one burst: each must do what it did alone. Packets are distinguished
/// by their last bytes.
fn compare_burst(
    case: &Case,
    engine: &mut Engine<HeapFrame>,
    guard: &Guard<'_>,
    packets: &[(Vec<u8>, Vec<Effect>)],
    seed: u64,
) {
    let mut notes = Notes::default();
    let mut frames: Vec<_> = packets
        .iter()
        .map(|(bytes, _)| HeapFrame::new(bytes))
        .collect();
    engine.burst(
        &case.switch.bridge,
        guard,
        1,
        &mut frames,
        0,
        case.switch.now,
        &mut To(&mut notes),
    );
    let tail = |effect: &Effect| match effect {
        Effect::Output { sent, .. } | Effect::All { sent, .. } | Effect::Normal(sent) => {
            sent.bytes[sent.bytes.len() - 2..].to_vec()
        }
        Effect::Controller { bytes, .. } => bytes[bytes.len() - 2..].to_vec(),
    };
    let got = comparable(&notes.effects, &[]);
    let valid = notes.valid.first().copied().unwrap_or_default();
    for (bytes, expected) in packets {
        let own: Vec<Effect> = got
            .iter()
            .filter(|effect| tail(effect) == bytes[bytes.len() - 2..])
            .cloned()
            .collect();
        let expected = comparable(expected, &vec![valid; expected.len()]);
        assert!(
            own == expected,
            "seed {seed}: a packet did otherwise in a burst:\n{}\n{}",
            show(&expected),
            show(&own)
        );
    }
}

/// Returns the numbers of packets, effects, rules and conjunctive matches of a case, of groups met,
/// and of packets whose walk was cached.
fn run(seed: u64) -> [usize; 6] {
    let mut case = Case::new(seed);
    // With the flow cache all results must be the same.
    let cached = !seed.is_multiple_of(3);
    let caches = &case.switch.program.walk_caches;
    caches.set_mode(if cached {
        CacheMode::Always
    } else {
        CacheMode::Never
    });
    caches.set_entries(512);
    let mut seen: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut reader = case.switch.program.domain.reader().unwrap();
    case.switch.program.counters.add_worker(reader.index());
    let mut engine = Engine::new();
    let size = case.random.pick(&[4, 12, 40, 120]);
    case.mutate(size);
    let (mut packets, mut effects, mut conjunctions) = (0, 0, 0);
    for round in 0..4 {
        let mut expected = counters(&case);
        let mut groups = case.groups().1;
        let guard = reader.begin();
        let mut burst = Vec::new();
        for index in 0..8 {
            let mut in_port = if round == 0 {
                1
            } else {
                1 + case.random.below(3) as u32
            };
            let mut bytes = frame(&mut case.random, [0xa5, index]);
            if cached && !seen.is_empty() && !case.random.one_in(3) {
                let again = case.random.below(seen.len() as u64) as usize;
                (in_port, bytes) = seen[again].clone();
                if let Some(last) = bytes.last_mut() {
                    *last = index;
                }
            } else if cached {
                seen.push((in_port, bytes.clone()));
            }
            let outcome = compare_one(&case, &mut engine, &guard, in_port, &bytes, seed);
            packets += 1;
            effects += outcome.effects.len();
            for hit in &outcome.hits {
                let (_, mask) = hit.matching.get(packet::Field::ConjId);
                conjunctions += usize::from(!mask.is_zero());
                let matching = case.switch.pipeline.with_names(&hit.matching);
                let count = expected
                    .get_mut(&(hit.table, hit.priority, matching))
                    .unwrap();
                *count = (count.0 + 1, count.1 + hit.bytes as u64);
            }
            for hit in &outcome.groups {
                case.groups_met += 1;
                let group = groups
                    .iter_mut()
                    .find(|stats| stats.group == hit.group)
                    .unwrap();
                let (packets, bytes) = match hit.bucket {
                    Some(place) => {
                        let (packets, bytes) = &mut group.buckets[place];
                        (packets, bytes)
                    }
                    None => (&mut group.packets, &mut group.bytes),
                };
                *packets += 1;
                *bytes += hit.bytes as u64;
            }
            if !outcome.cut_short && in_port == 1 {
                burst.push((bytes, outcome.effects));
            }
        }
        let counted = counters(&case);
        let wrong: Vec<_> = counted
            .iter()
            .filter(|(rule, count)| expected[rule] != **count)
            .map(|(rule, count)| (rule.0, rule.1, count, expected[rule]))
            .collect();
        if !case.ended_apart.take() {
            assert!(wrong.is_empty(), "seed {seed}: counters {wrong:?}");
            assert_eq!(case.groups().1, groups, "seed {seed}: counters of groups");
        }
        if !case.truncates {
            compare_burst(&case, &mut engine, &guard, &burst, seed);
        }
        let _ = guard;
        case.switch.now += 10;
        let count = case.random.below(12);
        case.mutate(count);
    }
    [
        packets,
        effects,
        case.accepted,
        conjunctions,
        case.groups_met,
        hits(&case),
    ]
}

/// Returns the number of packets whose walk was cached.
fn hits(case: &Case) -> usize {
    let reports = case.switch.program.walk_caches.reports();
    reports.iter().map(|report| report.hits as usize).sum()
}

fn counters(case: &Case) -> HashMap<(u8, u32, Match), (u64, u64)> {
    case.switch
        .pipeline
        .dump_all(case.switch.clock())
        .map(|rule| {
            (
                (rule.stats.table, rule.priority, rule.stats.matching),
                (rule.stats.packets, rule.stats.bytes),
            )
        })
        .collect()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn the_walk_does_what_the_rules_say() {
    let first = number("SLUICE_SEED", 1);
    let mut total = [0; 6];
    let cases = number("SLUICE_CASES", 600);
    for seed in first..first + cases {
        for (sum, some) in total.iter_mut().zip(run(seed)) {
            *sum += some;
        }
    }
    let [packets, effects, rules, conjunctions, groups, hits] = total;
    println!(
        "{packets} packets, {effects} effects, {rules} rules, {conjunctions} conjunctions, {groups} groups and buckets met, {hits} walks remembered"
    );
    // The generator must produce enough cases in which something happens.
    if cases >= 100 {
        assert!(
            effects > packets / 3,
            "{effects} effects of {packets} packets"
        );
        assert!(rules as u64 > 5 * cases, "{rules} rules accepted");
        assert!(
            conjunctions as u64 > cases / 10,
            "{conjunctions} conjunctive matches"
        );
        assert!(groups > packets / 20, "{groups} groups and buckets met");
        assert!(hits > packets / 40, "{hits} walks remembered");
    }
}

/// Sets a pipeline field that a packet-out of 1.5 may name, to a value that rules match.
fn set_pipeline_field(random: &mut Random, all: &mut Match) {
    let (field, bytes) = random.pick(&[
        (Field::Reg0, 4),
        (Field::Reg1, 4),
        (Field::Xreg1, 8),
        (Field::Metadata, 8),
        (Field::TunId, 8),
        (Field::TunSrc, 4),
    ]);
    let value = Value::from_u128((1 + random.below(3)).into(), bytes);
    let mut mask = vec![0; bytes];
    mask[bytes - 1] = random.pick(&[0xff, 0xff, 1]);
    all.set(field, &value, &mask);
}

/// Adds rules that match a pipeline field and nothing else.
fn add_pipeline_rules(case: &mut Case) {
    for priority in 0..4 {
        let mut matching = Match::any();
        set_pipeline_field(&mut case.random, &mut matching);
        let mut rule = common::add(matching, 60_000 + priority);
        rule.instructions = apply(&[common::output(4)]).into();
        case.switch.mod10(rule).unwrap();
    }
    case.switch.publish();
}

/// Packet-outs run the same ops without a rule, and begin with the pipeline fields of their match.
#[test]
fn packet_outs_do_what_their_actions_say() {
    let (mut met, mut told) = (0, 0);
    for seed in 1..=300 {
        let mut case = Case::new(seed);
        let size = case.random.pick(&[2, 20]);
        case.mutate(size);
        add_pipeline_rules(&mut case);
        let mut reader = case.switch.program.domain.reader().unwrap();
        case.switch.program.counters.add_worker(reader.index());
        let mut engine = Engine::new();
        for index in 0..4 {
            let guard = reader.begin();
            let bytes = frame(&mut case.random, [0xa5, index]);
            let mut actions: Vec<Action> = (0..1 + case.random.below(4))
                .map(|_| action(&mut case.random, 0, false))
                .collect();
            if case.random.one_in(2) {
                actions.push(common::output(port::TABLE));
            }
            let mut matching = Match::any();
            matching.set_exact(Field::InPortOxm, 2);
            for _ in 0..case.random.pick(&[0, 0, 1, 2, 3]) {
                set_pipeline_field(&mut case.random, &mut matching);
            }
            let mut key = FlowKey::ZERO;
            for word in matching.words() {
                key.words[usize::from(word.word)] = word.value;
            }
            key.set_u32(packet::key::at::IN_PORT, 2);
            let named = key.nonzero().len() > 1;
            let message = openflow::message::PacketOut {
                buffer_id: openflow::message::NO_BUFFER,
                in_port: 2,
                matching,
                actions: actions.clone(),
                data: bytes.clone(),
            };
            let Ok(program) = case.switch.pipeline.packet_out(&message, Version::V1_0) else {
                continue;
            };
            assert_eq!(program.in_port, 2);
            assert_eq!(program.metadata.is_some(), named);
            assert_eq!(program.metadata.as_deref().copied().unwrap_or(key), key);
            let mut levels = case.levels.borrow_mut();
            let expected = reference::evaluate_actions_metered(
                &case.switch.pipeline,
                &key,
                &bytes,
                &actions,
                &is_live,
                Some(&mut levels),
            );
            let mut notes = Notes::default();
            let frame = HeapFrame::new(&bytes);
            let (bridge, now) = (&case.switch.bridge, case.switch.now);
            let ops = &program.ops;
            match &program.metadata {
                Some(metadata) => engine.run_ops_with(
                    bridge,
                    &guard,
                    metadata,
                    frame,
                    ops,
                    now,
                    &mut To(&mut notes),
                ),
                None => engine.run_ops(bridge, &guard, 2, frame, ops, now, &mut To(&mut notes)),
            }
            let looks = |hit: &reference::Hit| {
                let words = hit.matching.word_set().minus(packet::parse::PACKET_WORDS);
                !words.intersect(key.nonzero()).is_empty()
            };
            met += usize::from(named && expected.hits.iter().any(looks));
            // A controller gets all the fields given, and perhaps others.
            let given = key.nonzero();
            for valid in &notes.valid {
                assert!(given.minus(*valid).minus(WordSet::MINI_KEY).is_empty());
                told += usize::from(named);
            }
            if !expected.cut_short {
                let outcome = &expected;
                let (expected, got) = (
                    comparable(&outcome.effects, &notes.valid),
                    comparable(&notes.effects, &[]),
                );
                assert!(
                    expected == got,
                    "seed {seed} {actions:?} {bytes:02x?}\ntwin:\n{}walk:\n{}{}",
                    show(&expected),
                    show(&got),
                    describe(&case, outcome)
                );
            }
        }
    }
    println!("{met} rules met that look at what packet-outs say, {told} packet-ins that tell it");
    assert!(met > 30 && told > 30, "{met} {told}");
}

/// Generates a rule for solicitations or advertisements of neighbour discovery that writes their
/// fields.
fn neighbour_rule(random: &mut Random, priority: u16) -> openflow::flow::FlowMod {
    let (kind, address) = random.pick(&[(135_u8, Field::NdSll), (136, Field::NdTll)]);
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, 0x86dd);
    matching.set_exact(Field::IpProto, 58);
    matching.set_exact(Field::Icmpv6Type, kind.into());
    matching.set_exact(Field::Icmpv6Code, 0);
    if random.one_in(3) {
        let mut mask = vec![0; 16];
        mask[15] = 1;
        matching.set(Field::NdTarget, &[1; 16], &mask);
    }
    let mut actions = Vec::new();
    for _ in 0..1 + random.below(3) {
        let field = random.pick(&[Field::NdTarget, address]);
        let width = field.def().action_bits as u16;
        let part = |random: &mut Random, most: u16| {
            let bits = 1 + random.below(width.min(most).into()) as u16;
            let start = random.below(u64::from(width - bits) + 1) as u16;
            Subfield { field, start, bits }
        };
        actions.push(match random.below(5) {
            0 => {
                let dst = part(random, 64);
                let value = random.next() & (u64::MAX >> (64 - dst.bits));
                Action::Load { dst, value }
            }
            1 => {
                let src = part(random, 128);
                let bits = src.bits;
                let to = random.pick(&[Field::Ipv6Dst, Field::Xxreg0, Field::NdTarget]);
                let dst = Subfield {
                    field: to,
                    start: 128 - bits,
                    bits,
                };
                Action::Move { src, dst }
            }
            2 => {
                let dst = part(random, 128);
                let src = Subfield {
                    field: Field::Ipv6Src,
                    start: 0,
                    bits: dst.bits,
                };
                Action::Move { src, dst }
            }
            kind => {
                let bytes = field.def().bytes;
                let mut mask = field.def().place();
                let mut value = mask.clone();
                for index in 0..bytes {
                    if kind == 3 {
                        mask[index] &= random.next() as u8;
                    }
                    value[index] = random.next() as u8 & mask[index];
                }
                Action::SetField { field, value, mask }
            }
        });
        if random.one_in(3) {
            actions.push(common::output(1 + random.below(3) as u32));
        }
    }
    actions.push(Action::Output {
        port: port::CONTROLLER,
        max_len: 128,
    });
    actions.push(common::output(1));
    let mut rule = common::add(matching, priority);
    rule.instructions = apply(&actions).into();
    rule
}

/// Generates a message of neighbour discovery with no option, one, both or two equal ones, or
/// something similar.
fn neighbour_frame(random: &mut Random) -> Vec<u8> {
    let (source, target) = ((1, [2, 0, 0, 0, 0, 1]), (2, [2, 0, 0, 0, 0, 2]));
    let other = (random.pick(&[1, 3, 14]), [6; 6]);
    let options: &[_] = match random.below(6) {
        0 => &[],
        1 => &[source],
        2 => &[target],
        3 => &[source, target],
        4 => &[other, target],
        _ => &[source, other],
    };
    let address = |random: &mut Random| {
        let mut address = [0; 16];
        (address[0], address[15]) = (0xfd, random.below(4) as u8);
        address
    };
    let macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut builder = packet::build::Builder::ethernet(macs.0, macs.1);
    if random.one_in(4) {
        builder = builder.tag(0x8100, 5);
    }
    builder = builder.ipv6(address(random), address(random));
    let kind = random.pick(&[135, 135, 136, 136, 133]);
    let builder = builder.neighbour(kind, address(random), options);
    // Sometimes an option of more than one unit, or one of zero length, follows.
    let behind: &[u8] = random.pick(&[
        &[][..],
        &[5, 1, 0, 0, 0, 0, 5, 0xdc],
        &[3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 1, 2, 3, 4, 5, 6],
    ]);
    builder.payload(behind).bytes()
}

#[test]
fn neighbour_discovery_is_written_as_the_reference_says() {
    let (mut written, mut accepted) = (HashMap::new(), 0);
    for seed in 1..=300 {
        let mut case = Case::new(seed);
        for priority in 0..1 + case.random.below(8) as u16 {
            let rule = neighbour_rule(&mut case.random, priority);
            accepted += usize::from(case.switch.mod10(rule).is_ok());
        }
        case.switch.publish();
        let mut reader = case.switch.program.domain.reader().unwrap();
        case.switch.program.counters.add_worker(reader.index());
        let mut engine = Engine::new();
        let guard = reader.begin();
        for _ in 0..8 {
            let bytes = neighbour_frame(&mut case.random);
            let outcome = compare_one(&case, &mut engine, &guard, 1, &bytes, seed);
            let key = |bytes: &[u8]| {
                let mut key = FlowKey::ZERO;
                packet::parse::parse(bytes, bytes.len(), 1, WordSet(u64::MAX), &mut key);
                key
            };
            let before = key(&bytes);
            for effect in &outcome.effects {
                let Effect::Controller { bytes: after, .. } = effect else {
                    continue;
                };
                let after = key(after);
                for field in [Field::NdTarget, Field::NdSll, Field::NdTll] {
                    let place = field.def().offset..field.def().offset + field.def().bytes;
                    if before.bytes()[place.clone()] != after.bytes()[place] {
                        *written.entry(field.def().name).or_insert(0) += 1;
                    }
                }
            }
        }
    }
    println!("{accepted} rules, {written:?}");
    assert!(accepted > 600, "{accepted} rules accepted");
    for field in [Field::NdTarget, Field::NdSll, Field::NdTll] {
        let name = field.def().name;
        assert!(written.get(name).is_some_and(|count| *count > 50), "{name}");
    }
}

/// Generates a rule that lanes can execute (edits, registers, later tables), which may write a
/// packet-in or a group to the action set.
fn straight_rule(random: &mut Random, table: u8) -> openflow::flow::FlowMod {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, 0x0800);
    match random.below(4) {
        0 => {}
        1 => matching.set_exact(Field::Reg0, random.below(3).into()),
        _ => {
            matching.set_exact(Field::IpProto, 17);
            matching.set_exact(Field::UdpDst, (1 + random.below(4)).into());
        }
    }
    let later = |random: &mut Random| table + 1 + random.below(TABLES - u64::from(table)) as u8;
    let has_later = u64::from(table) < TABLES;
    let mut actions = Vec::new();
    for _ in 0..random.below(4) {
        let set = |field: Field, value: u64| Action::SetField {
            field,
            value: Value::from_u128(value.into(), field.def().bytes),
            mask: field.def().place(),
        };
        actions.push(match random.below(8) {
            0..=1 => set(Field::Reg0, random.below(3)),
            2 => set(Field::Ipv4Dst, random.below(3)),
            3 => set(Field::EthSrc, 5),
            4 => Action::DecTtl(vec![0]),
            _ if has_later => Action::Resubmit {
                in_port: None,
                table: Some(later(random)),
                with_ct_orig: false,
            },
            _ => set(Field::Reg1, 7),
        });
    }
    let mut instructions = apply(&actions);
    if random.one_in(3) {
        let to_controller = Action::Output {
            port: port::CONTROLLER,
            max_len: 128,
        };
        let sets: [&[Action]; 4] = [
            std::slice::from_ref(&to_controller),
            &[Action::DecTtl(vec![0]), to_controller.clone()],
            &[Action::Group(1)],
            &[common::output(2)],
        ];
        let set = sets[random.below(4) as usize].to_vec();
        instructions.push(Instruction::WriteActions(set));
    }
    if has_later && random.one_in(2) {
        instructions.push(Instruction::GotoTable(later(random)));
    }
    let mut rule = common::add(matching, random.below(60_000) as u16);
    (rule.table, rule.cookie) = (table, random.next());
    rule.instructions = instructions.into();
    rule
}

/// However a packet reaches the end of its tables, alone or in a burst, its action set reports the
/// rule that it met first.
#[test]
fn action_sets_stand_where_the_first_rule_does() {
    let (mut sets, mut later, mut resubmitted) = (0, 0, 0);
    for seed in 1..=300 {
        let mut case = Case::new(seed);
        let caches = &case.switch.program.walk_caches;
        caches.set_mode(case.random.pick(&[CacheMode::Always, CacheMode::Never]));
        for _ in 0..20 + case.random.below(40) {
            let table = case.random.below(TABLES + 1) as u8;
            let rule = straight_rule(&mut case.random, table);
            // Not every case has the group.
            let _ = case.switch.mod10(rule);
        }
        case.switch.publish();
        if seed % 3 == 0 {
            case.switch.pipeline.shape_now();
        }
        let mut reader = case.switch.program.domain.reader().unwrap();
        case.switch.program.counters.add_worker(reader.index());
        let mut engine = Engine::new();
        let guard = reader.begin();
        for _ in 0..3 {
            let mut burst = Vec::new();
            for index in 0..16 {
                let ttl = case.random.pick(&[1, 2, 64]);
                let to = 1 + case.random.below(5) as u16;
                let bytes =
                    packet::build::Builder::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
                        .ipv4(0x0a00_0001, 0x0a00_0002)
                        .with_ipv4(|header| header.set_ttl(ttl))
                        .udp(1, to)
                        .payload(&[[7; 40].as_slice(), &[0xa5, index]].concat())
                        .bytes();
                let outcome = compare_one(&case, &mut engine, &guard, 1, &bytes, seed);
                for effect in &outcome.effects {
                    let Effect::Controller {
                        reason: PacketInReason::ActionSet,
                        table,
                        ..
                    } = effect
                    else {
                        continue;
                    };
                    let [first, .., last] = &outcome.hits[..] else {
                        continue;
                    };
                    assert_eq!(*table, first.table);
                    sets += 1;
                    later += usize::from(last.table != first.table);
                    resubmitted += usize::from(outcome.hits.len() > 3);
                }
                if !outcome.cut_short {
                    burst.push((bytes, outcome.effects));
                }
            }
            compare_burst(&case, &mut engine, &guard, &burst, seed);
        }
    }
    println!("{sets} action sets, {later} of later tables, {resubmitted} of long ways");
    assert!(
        later > 300 && resubmitted > 100,
        "{sets} {later} {resubmitted}"
    );
}

/// Packet-outs between the changes of a batch are walked when all of the batch and more has been
/// published; they must do what the reference says for the rules and groups at their position.
#[test]
fn packet_outs_of_a_batch_go_by_the_changes_before_them() {
    let (mut compared, mut waiting) = (0, 0);
    for seed in 1..=300 {
        let mut case = Case::new(seed);
        let size = case.random.pick(&[2, 20, 120]);
        case.mutate(size);
        let domain = std::sync::Arc::clone(&case.switch.program.domain);
        let mut reader = domain.reader().unwrap();
        case.switch.program.counters.add_worker(reader.index());
        let mut epoch = domain.reserve().unwrap();
        let pinned = domain.pin(epoch);
        case.switch.pipeline.change_in(Some(epoch));
        case.switch.pipeline.begin_batch();
        let mut outs = Vec::new();
        for index in 0..6 {
            for _ in 0..case.random.below(8) {
                case.change_groups();
                let change = change(&mut case.random, &mut case.known);
                let _ = case.switch.mod10(change);
            }
            let bytes = frame(&mut case.random, [0xa5, index]);
            let mut actions: Vec<Action> = (0..case.random.below(3))
                .map(|_| action(&mut case.random, 0, false))
                .collect();
            actions.push(common::output(port::TABLE));
            let message = openflow::message::PacketOut {
                buffer_id: openflow::message::NO_BUFFER,
                in_port: 2,
                matching: Match::any(),
                actions: actions.clone(),
                data: bytes.clone(),
            };
            let Ok(program) = case.switch.pipeline.packet_out(&message, Version::V1_0) else {
                continue;
            };
            let mut levels = case.levels.borrow_mut();
            let pipeline = &case.switch.pipeline;
            let levels = Some(&mut *levels);
            let mut from = FlowKey::ZERO;
            from.set_u32(packet::key::at::IN_PORT, 2);
            let told = reference::evaluate_actions_metered(
                pipeline, &from, &bytes, &actions, &is_live, levels,
            );
            outs.push((program.ops, bytes, told, epoch));
            epoch = domain.reserve_next().unwrap();
            case.switch.pipeline.change_in(Some(epoch));
        }
        case.switch.pipeline.end_batch();
        case.switch.pipeline.change_in(None);
        case.switch.pipeline.commit();
        assert_eq!(domain.publish_reserved(), epoch);
        // Other changes are made before the packets are walked.
        for _ in 0..case.random.below(3) {
            for _ in 0..4 {
                let change = change(&mut case.random, &mut case.known);
                let _ = case.switch.mod10(change);
            }
            case.switch.publish();
            if case.random.one_in(2) {
                case.switch.pipeline.shape_now();
            }
            reader.begin();
            case.switch.pipeline.housekeep(usize::MAX);
            domain.collect();
        }
        waiting += case.switch.pipeline.waiting();
        let mut engine = Engine::new();
        for (ops, bytes, told, epoch) in outs {
            let guard = reader.begin();
            let then = guard.in_pinned(&pinned, epoch);
            let mut notes = Notes::default();
            let frame = HeapFrame::new(&bytes);
            let (bridge, now) = (&case.switch.bridge, case.switch.now);
            engine.run_ops(bridge, &then, 2, frame, &ops, now, &mut To(&mut notes));
            if !told.cut_short {
                let (expected, got) = (
                    comparable(&told.effects, &notes.valid),
                    comparable(&notes.effects, &[]),
                );
                assert!(
                    expected == got,
                    "seed {seed} {bytes:02x?}\ntwin:\n{}walk:\n{}",
                    show(&expected),
                    show(&got),
                );
                compared += told.hits.len().min(1);
            }
        }
        // No epoch is pinned any more.
        drop(pinned);
        reader.offline();
        case.switch.publish();
        case.switch.pipeline.housekeep(usize::MAX);
        assert_eq!(case.switch.pipeline.waiting(), 0);
    }
    assert!(compared > 300, "{compared} packets met rules");
    assert!(waiting > 300, "{waiting} rules were kept for them");
}

#[test]
fn the_reference_finds_a_difference_when_there_is_one() {
    let mut switch = Switch::new();
    switch.mod13(common::add(Match::any(), 1)).unwrap();
    switch.publish();
    // Not published: the reference sees it, workers do not.
    let mut other = common::add(Match::any(), 2);
    other.instructions = apply(&[common::output(2)]).into();
    switch.mod13(other).unwrap();
    let mut reader = switch.program.domain.reader().unwrap();
    let guard = reader.begin();
    let found = switch.bridge.lookup(0, &FlowKey::ZERO, &guard).unwrap();
    assert_eq!(found.spec.priority, 1);
    let outcome = reference::evaluate(&switch.pipeline, 3, &[0; 60]);
    assert!(matches!(
        outcome.effects[..],
        [Effect::Output { port: 2, .. }]
    ));
}
