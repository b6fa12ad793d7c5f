//! Learned rules: the walk with its learn requests compared with the reference and its flow mods,
//! on generated rules and packets, while rules change.
//!
//! Two switches get the same rules. One walks packets and adds the rules that they ask for; the
//! other evaluates the packets with the reference and carries out the flow mods that this returns.
//! What leaves, and afterwards all rules, must be the same. `SLUICE_CASES` sets the number of
//! cases, `SLUICE_SEED` the first seed.

mod script;

use crate::common;
use crate::common::generate::ways::SHARED;
use crate::common::generate::{Random, change, frame};
use crate::common::learning::{Walker, learn_actions};
use crate::common::{Switch, apply};
use openflow::Version;
use openflow::action::{Action, LearnSource, LearnTarget, Subfield};
use openflow::flow::{FlowMod, FlowStats};
use openflow::group::{Bucket, GroupCommand, GroupKind, GroupMod};
use openflow::message::{NO_BUFFER, PacketOut};
use openflow::port;
use packet::{Field, Match};
use pipeline::reference::Surroundings;
use pipeline::{FlowModOutcome, reference};
use script::Step;
use std::collections::HashMap;

/// Draws the steps of a case.
struct Author {
    random: Random,
    known: HashMap<(u8, u16), Match>,
    actions: Vec<Action>,
    /// The only port whose packets learn; None for any.
    teacher: Option<u32>,
    /// Whether half of the packets go to addresses of which the first table knows the ports.
    is_known_to: bool,
    steps: Vec<Step>,
}

/// A switch that walks, and a switch for the reference.
struct Pair {
    walker: Walker,
    other: Switch,
    tally: Tally,
}

/// What a case has tried.
#[derive(Clone, Copy, Default)]
struct Tally {
    packets: usize,
    /// Rules taught.
    taught: usize,
    /// Lookups that met a rule which an earlier packet of the same step had taught.
    obeyed: usize,
    /// How many of those were by packets of other ports than the first.
    elsewhere: usize,
    /// Packets paused for controllers.
    paused: usize,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Returns the rules on which the two switches must agree, without times and counts.
fn rules(switch: &Switch) -> Vec<FlowStats> {
    let mut rules: Vec<FlowStats> = switch
        .flows()
        .into_iter()
        .map(|stats| FlowStats {
            packets: 0,
            bytes: 0,
            duration_ns: 0,
            idle_age: 0,
            hard_age: 0,
            ..stats
        })
        .collect();
    rules.sort_by_key(|rule| format!("{} {} {:?}", rule.table, rule.priority, rule.matching));
    rules
}

impl Author {
    fn new(seed: u64) -> Author {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = random.next());
        let actions = learn_actions(&mut random);
        Author {
            random,
            known: HashMap::new(),
            actions,
            teacher: None,
            is_known_to: false,
            steps: Vec::new(),
        }
    }

    /// Changes rules. `first_only`: only rules of table 0 get learn actions.
    fn change(&mut self, count: u64, first_only: bool) {
        for _ in 0..count {
            let mut change = change(&mut self.random, &mut self.known);
            // Parts of conjunctions share a priority, which no other rules may have.
            let ordinary = change.priority < SHARED;
            let chosen =
                change.table == 0 && self.random.one_in(2) || !first_only && self.random.one_in(6);
            if ordinary && chosen {
                if let Some(port) = self.teacher {
                    change.matching.set_exact(Field::InPort, port.into());
                    // As with other rules, those of one priority must have one match.
                    change.priority += 2 * SHARED;
                }
                let mut list: Vec<Action> = (0..1 + self.random.below(2))
                    .map(|_| self.pick_action())
                    .collect();
                if !first_only && self.random.one_in(3) {
                    list.insert(0, common::output(2));
                }
                list.push(Action::Resubmit {
                    in_port: None,
                    table: Some(1 + self.random.below(3) as u8),
                    with_ct_orig: false,
                });
                list.push(common::output(1 + self.random.below(4) as u32));
                change.instructions = apply(&list).into();
            }
            self.steps.push(Step::Change(change));
        }
    }

    /// Has packets of a few flows come in bursts, most of them by port 1, and one of `others` by
    /// another; and rules change. `answers`: whether answers to them come by port 1, too.
    fn bursts(&mut self, others: u64, answers: bool, change: &mut impl FnMut(&mut Author)) {
        // Packets of the common kinds are lanes, but for those behind another one in their burst.
        let common = !self.random.one_in(4);
        let pool: Vec<_> = (0..6)
            .map(|_| match common {
                true => common_frame(&mut self.random),
                false => frame(&mut self.random, [0xa5, 0]),
            })
            .collect();
        // Not as many packets as there may be changes of a rule at once.
        for _ in 0..4 {
            let size = match self.is_known_to {
                true => self.random.pick(&[15, 30]),
                false => self.random.pick(&[3, 10, 15]),
            };
            let new = self.random.pick(&[2, 4, 6]);
            let mut packets = Vec::new();
            for index in 0..size {
                let mut bytes = pool[self.random.below(new) as usize].clone();
                let end = bytes.len();
                bytes[end - 1] = index;
                if self.is_known_to && self.random.one_in(2) {
                    bytes[4] = 1;
                }
                let port = match self.random.one_in(others) {
                    true => 2 + self.random.below(2) as u32,
                    false => 1,
                };
                // An answer.
                if (port != 1 || answers) && self.random.one_in(2) {
                    bytes[..12].rotate_left(6);
                }
                packets.push((port, bytes));
            }
            self.steps.push(Step::Packets(packets));
            self.steps.push(Step::Wait);
            if self.random.one_in(4) {
                change(self);
            }
        }
    }

    /// Adds a rule that teaches and then does what is drawn, in one of the tables that packets go
    /// through first.
    fn teach(&mut self, behind: impl FnOnce(&mut Random) -> Vec<Action>) {
        let (table, priority) = (
            self.random.pick(&[10, 10, 10, 11, 12]),
            self.random.pick(&[1, 1, 2, 3]),
        );
        let mut matching = Match::any();
        match priority {
            1 => {}
            2 => matching.set_exact(Field::EthType, 0x0800),
            _ => matching.set_exact(Field::EthType, 0x86dd),
        }
        let mut list = vec![self.pick_action()];
        if self.random.one_in(4) {
            list.push(self.pick_action());
        }
        if self.random.one_in(4) {
            // Packets part and return one after the other.
            list.insert(0, resubmit(20));
        }
        list.extend(behind(&mut self.random));
        self.steps.push(rule(table, priority, matching, &list));
    }

    fn pick_action(&mut self) -> Action {
        let index = self.random.below(self.actions.len() as u64) as usize;
        self.actions[index].clone()
    }
}

impl Pair {
    /// `eager`: whether epochs come more often than rules change.
    fn new(eager: bool) -> Pair {
        let mut walker = Walker::new();
        walker.eager = eager;
        Pair {
            walker,
            other: Switch::new(),
            tally: Tally::default(),
        }
    }

    /// Carries out steps; returns what differs. If a limit ends a packet, what it has learned by
    /// then is undefined, so what comes behind it is not compared.
    fn play(steps: &[Step], eager: bool) -> Result<Tally, String> {
        let mut pair = Pair::new(eager);
        for step in steps {
            if !pair.step(step)? {
                return Ok(pair.tally);
            }
        }
        pair.publish()?;
        Ok(pair.tally)
    }

    /// Carries out a step. False: what comes behind it is undefined.
    fn step(&mut self, step: &Step) -> Result<bool, String> {
        match step {
            Step::Change(change) => {
                let done = self.walker.switch.mod10(change.clone());
                let told = |done: FlowModOutcome| (done.changed, done.removed.len());
                let (done, other) = (done.map(told), self.other.mod10(change.clone()).map(told));
                same(&done, &other, || "outcome of a change".into())?;
            }
            Step::Group(change) => {
                let now = self.walker.switch.clock();
                let done = [&mut self.walker.switch, &mut self.other].map(|switch| {
                    let done = (switch.pipeline).group_mod(change, Version::V1_5, now);
                    done.map(|done| done.changed)
                });
                same(&done, &[Ok(1), Ok(1)], || {
                    "outcome of a group's change".into()
                })?;
            }
            Step::Packets(packets) => {
                self.publish()?;
                return self.receive(packets);
            }
            Step::Wait => {
                self.walker.switch.now += 10;
                self.other.now += 10;
            }
        }
        Ok(true)
    }

    /// Publishes the changes, which must be the same.
    fn publish(&mut self) -> Result<(), String> {
        self.walker.switch.publish();
        // Builds the lookups that fit the rules.
        self.walker.switch.pipeline.shape_now();
        self.walker.switch.pipeline.housekeep(usize::MAX);
        self.walker.switch.program.domain.collect();
        self.compare_rules()
    }

    /// Sends packets in a row, those of one port in a burst: each must do what it would do after
    /// all earlier ones were finished.
    fn receive(&mut self, packets: &[(u32, Vec<u8>)]) -> Result<bool, String> {
        let mut expected = Vec::new();
        let mut learned: Vec<FlowMod> = Vec::new();
        let mut defined = true;
        for (port, bytes) in packets {
            let outcome = self.evaluate(*port, bytes);
            let taught = |hit: &&reference::Hit| {
                let mut learned = learned.iter();
                learned.any(|rule| rule.table == hit.table && rule.matching == hit.matching)
            };
            let met = outcome.hits.iter().filter(taught).count();
            self.tally.obeyed += met;
            self.tally.elsewhere += if *port == 1 { 0 } else { met };
            self.tally.packets += 1;
            defined &= !outcome.cut_short;
            learned.extend(outcome.learned);
            expected.extend(common::learning::comparable(&outcome.effects));
        }
        if !defined {
            return Ok(false);
        }
        let bursts = packets.chunk_by(|one, other| one.0 == other.0);
        let bursts: Vec<(u32, Vec<Vec<u8>>)> = bursts
            .map(|burst| (burst[0].0, burst.iter().map(|(_, it)| it.clone()).collect()))
            .collect();
        let bursts: Vec<(u32, &[Vec<u8>])> = (bursts.iter())
            .map(|(port, list)| (*port, &list[..]))
            .collect();
        let got = self.walker.walk_bursts(&bursts);
        self.tally.paused += self.walker.paused();
        if let [(_, bytes)] = packets {
            let tail = &bytes[bytes.len() - 2..];
            same(&script::left(&got), &script::left(&expected), || {
                format!("what left of {tail:02x?}")
            })?;
        }
        // Packets may leave in another order than they came in.
        for (_, bytes) in packets {
            let of = |effects: &[reference::Effect]| {
                let own = effects
                    .iter()
                    .filter(|effect| common::learning::tail(effect) == bytes[bytes.len() - 2..]);
                own.cloned().collect::<Vec<_>>()
            };
            let tail = &bytes[bytes.len() - 2..];
            same(
                &script::left(&of(&got)),
                &script::left(&of(&expected)),
                || format!("what left of {tail:02x?}"),
            )?;
        }
        self.compare_rules()?;
        Ok(true)
    }

    fn compare_rules(&self) -> Result<(), String> {
        let (ours, others) = (rules(&self.walker.switch), rules(&self.other));
        for (our, other) in ours.iter().zip(&others) {
            same(our, other, || "a rule".into())?;
        }
        same(&ours.len(), &others.len(), || "number of rules".into())
    }

    /// Evaluates a packet and carries out what it has learned.
    fn evaluate(&mut self, in_port: u32, bytes: &[u8]) -> reference::Outcome {
        let outcome = reference::evaluate(&self.other.pipeline, in_port, bytes);
        for change in &outcome.learned {
            self.tally.taught += 1;
            let _ = self.other.send(change, Version::V1_0);
        }
        for ended in &outcome.ended {
            let hit = &outcome.hits[ended.hit];
            self.other
                .pipeline
                .connection_ended(&program::actions::learn::Ended {
                    table: hit.table,
                    priority: hit.priority,
                    matching: hit.matching.clone(),
                    idle: ended.idle,
                    hard: ended.hard,
                });
        }
        self.other.publish();
        outcome
    }
}

/// Returns an error that says what differs, if two things do.
fn same<T: PartialEq + std::fmt::Debug>(
    ours: &T,
    reference: &T,
    what: impl Fn() -> String,
) -> Result<(), String> {
    match ours == reference {
        true => Ok(()),
        false => Err(format!(
            "{}:\n  switch    {ours:?}\n  reference {reference:?}",
            what()
        )),
    }
}

/// Carries out a case. If it fails, it is made shorter before the test ends.
fn play(seed: u64, steps: Vec<Step>) -> Tally {
    let attempt = |steps: &[Step]| {
        let played = std::panic::catch_unwind(|| Pair::play(steps, seed.is_multiple_of(2)));
        played.unwrap_or_else(|_| Err("panicked".into()))
    };
    let fails = |steps: &[Step]| attempt(steps).is_err();
    match attempt(&steps) {
        Ok(tally) => tally,
        Err(_) => {
            let steps = script::shortened(steps, fails);
            let told = attempt(&steps).err().unwrap_or_default();
            panic!("seed {seed}\n{}{told}", script::describe(&steps));
        }
    }
}

/// Packets that come alone, with learn actions anywhere, also in clones and behind outputs.
fn one_by_one(seed: u64) -> Vec<Step> {
    let mut author = Author::new(seed);
    let size = author.random.pick(&[4, 12, 40]);
    author.change(size, false);
    for _ in 0..4 {
        for index in 0..8 {
            let in_port = 1 + author.random.below(3) as u32;
            let bytes = frame(&mut author.random, [0xa5, index]);
            author.steps.push(Step::Packets(vec![(in_port, bytes)]));
            author.steps.push(Step::Wait);
        }
        let count = author.random.below(12);
        author.change(count, false);
    }
    author.steps
}

/// Packets in one burst, or in bursts of several ports. Rules with learn actions are in table 0;
/// with several ports they match one port's packets.
fn back_to_back(seed: u64, several: bool) -> Vec<Step> {
    let mut author = Author::new(seed ^ 0x5555);
    author.teacher = several.then_some(1);
    let size = author.random.pick(&[6, 20, 60]);
    author.change(size, true);
    for _ in 0..4 {
        let mut packets: Vec<(u32, Vec<u8>)> = Vec::new();
        for index in 0..12 {
            let mut bytes = frame(&mut author.random, [0xa5, index]);
            let port = match several {
                // Half of them come in by the port whose packets learn.
                true if index % 4 >= 2 => 2 + author.random.below(2) as u32,
                _ => 1,
            };
            if port != 1 && author.random.one_in(2) {
                // Like an earlier packet that may have learned something, or an answer to it.
                let like = author.random.below(packets.len() as u64) as usize;
                bytes = packets[like].1.clone();
                let end = bytes.len();
                bytes[end - 1] = index;
                if author.random.one_in(2) {
                    bytes[..12].rotate_left(6);
                }
            }
            packets.push((port, bytes));
        }
        author.steps.push(Step::Packets(packets));
        author.steps.push(Step::Wait);
        let count = author.random.below(8);
        author.change(count, true);
    }
    author.steps
}

/// Generates a packet of a common kind.
fn common_frame(random: &mut Random) -> Vec<u8> {
    let mut mac = || [2, 0, 0, 0, 0, random.below(4) as u8];
    let builder = packet::build::Builder::ethernet(mac(), mac());
    let mut builder = match random.one_in(3) {
        true => builder.tag(0x8100, random.pick(&[5, 7, 0x2005])),
        false => builder,
    };
    builder = match random.one_in(3) {
        true => builder.ipv6([0xfd; 16], [0xfc; 16]),
        false => builder.ipv4(0x0a00_0001, 0x0a00_0002),
    };
    let (from, to) = (random.pick(&[80, 7000]), random.pick(&[80, 53]));
    let builder = match random.one_in(2) {
        true => builder.udp(from, to),
        false => builder.tcp(from, to, 0x10),
    };
    let mut payload = [7; 30];
    payload[28] = 0xa5;
    builder.payload(&payload).bytes()
}

/// Bursts of a port whose packets teach and cannot meet what they teach, as those of tunnels in
/// OpenStack's bridges; packets of other ports meet it. Most packets teach what is known already.
fn by_one_port(seed: u64) -> Vec<Step> {
    let mut author = Author::new(seed ^ 0x3333);
    if author.random.one_in(3) {
        // One rule for all packets, which each of several hosts teaches something else.
        let ends = |field, bits| Subfield {
            field,
            start: 0,
            bits,
        };
        let source = LearnSource::Immediate {
            value: 0x0800,
            bits: 16,
        };
        let specs = vec![
            common::learning::spec(source, LearnTarget::Match(ends(Field::EthType, 16))),
            common::learning::spec(
                LearnSource::Field(ends(Field::EthSrc, 2)),
                LearnTarget::Output,
            ),
        ];
        let learn = common::learning::plain(2, 60, specs);
        author.actions = vec![Action::Learn(Box::new(learn))];
    }
    // Those of other ports may come there by a group, which leads nowhere at times.
    let taught = [1, 2, 3];
    let groups = author.random.one_in(2);
    if groups {
        (author.steps).push(group(
            GroupCommand::Add,
            0,
            &taught[..3 * (seed % 2) as usize],
        ));
    }
    for other in [2, 3] {
        let mut list = taught.map(resubmit).to_vec();
        if groups {
            list = vec![Action::Group(0)];
        }
        list.push(common::output(4));
        author.steps.push(rule(0, 5, from_port(other), &list));
    }
    let teach = |author: &mut Author| {
        author.teach(|random| {
            let also = random.one_in(4).then(|| common::output(3));
            also.into_iter().chain([common::output(2)]).collect()
        });
    };
    for (priority, eth_type) in [(1, 0x0800), (2, 0x86dd)] {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, eth_type);
        author.steps.push(rule(20, priority, matching, &[]));
    }
    let mut ways = 0;
    for table in 10..13 {
        // Several ways may lead to one table.
        let table = match author.random.one_in(2) {
            true => 10,
            false => table,
        };
        if ways == 0 || author.random.one_in(2) {
            let mut matching = from_port(1);
            if ways > 0 {
                matching.set_exact(Field::EthType, [0x86dd, 0x0800][ways % 2]);
            }
            let mut list = vec![resubmit(table)];
            if author.random.one_in(2) {
                // They return to their rule.
                list.push(common::output(5));
            }
            (author.steps).push(rule(0, 5 + ways as u16, matching, &list));
            ways += 1;
        }
    }
    (0..2 + author.random.below(3)).for_each(|_| teach(&mut author));
    author.bursts(8, false, &mut |author: &mut Author| {
        if groups && author.random.one_in(2) {
            let tables = author.random.pick(&[&taught[..], &taught[..1], &[]]);
            (author.steps).push(group(GroupCommand::Modify, 0, tables));
        } else {
            teach(author);
        }
    });
    author.steps
}

fn resubmit(table: u8) -> Action {
    Action::Resubmit {
        in_port: None,
        table: Some(table),
        with_ct_orig: false,
    }
}

/// Adds a rule.
fn rule(table: u8, priority: u16, matching: Match, list: &[Action]) -> Step {
    Step::Change(common::with(
        common::add(matching, priority),
        |change: &mut FlowMod| {
            change.table = table;
            change.instructions = apply(list).into();
        },
    ))
}

/// Learns by which port packets to a packet's source leave.
fn learn_addresses(table: u8) -> Action {
    let whole = common::learning::whole;
    let specs = [
        (Field::EthSrc, LearnTarget::Match(whole(Field::EthDst))),
        (Field::InPort, LearnTarget::Output),
    ];
    let specs = specs.map(|(from, to)| common::learning::spec(LearnSource::Field(whole(from)), to));
    Action::Learn(Box::new(common::learning::plain(table, 1, specs.into())))
}

/// Matches packets that came in by a port.
fn from_port(port: u32) -> Match {
    common::fields(&[(Field::InPort, port.into())])
}

/// Adds or changes a group: its first bucket sends, each further one looks up in a table.
fn group(command: GroupCommand, number: u32, tables: &[u8]) -> Step {
    let lists = tables.iter().map(|table| resubmit(*table));
    let buckets = std::iter::once(common::output(11)).chain(lists);
    let buckets = buckets.enumerate().map(|(id, action)| Bucket {
        id: id as u32,
        weight: 0,
        watch_port: port::ANY,
        watch_group: openflow::group::ANY,
        actions: vec![action],
    });
    Step::Group(GroupMod {
        command,
        kind: GroupKind::All,
        group: number,
        command_bucket: openflow::group::BUCKET_ALL,
        buckets: buckets.collect(),
        selection: None,
    })
}

/// Returns the tables that a group leads to: none, or one that is taught, before such, or whose
/// rules teach.
fn led_to(random: &mut Random) -> Vec<u8> {
    let table = random.pick(&[41, 42, 42, 50, 30, 20, 10]);
    (random.one_in(2)).then_some(table).into_iter().collect()
}

/// Bursts of ports whose packets all teach, and then meet what is taught, as where a switch learns
/// addresses by rules. Most packets teach what is known already.
fn by_every_port(seed: u64) -> Vec<Step> {
    let mut author = Author::new(seed ^ 0x6666);
    // Taught tables are behind the others.
    for action in &mut author.actions {
        if let Action::Learn(learn) = action {
            learn.table += 40;
        }
    }
    // As switches learn addresses.
    let addresses = author.random.one_in(2);
    if addresses {
        author.actions = vec![learn_addresses(41)];
    }
    // In some cases the first table has many rules, each of which only sends.
    author.is_known_to = author.random.one_in(3);
    for number in 0..if author.is_known_to { 80 } else { 0 } {
        let address = 0x0200_0000_0100 + number;
        let matching = common::fields(&[(Field::EthDst, address)]);
        let list = [common::output(7)];
        author.steps.push(rule(0, 10, matching, &list));
    }
    // Rules with groups, which change between bursts.
    let groups = author.random.one_in(2);
    for number in 0..if groups { 2 } else { 0 } {
        let tables = led_to(&mut author.random);
        (author.steps).push(group(GroupCommand::Add, number, &tables));
    }
    let group_of = |random: &mut Random| {
        (groups && random.one_in(3)).then(|| Action::Group(random.below(2) as u32))
    };
    // A packet's way through table 0: what teaches, other tables, what is taught, the rest.
    let ways = |author: &mut Author| {
        let mut matching = Match::any();
        let priority = match author.is_known_to {
            true => 5,
            false => author.random.pick(&[5, 5, 6, 7]),
        };
        match priority {
            5 => {}
            6 => matching.set_exact(Field::EthType, 0x86dd),
            _ => matching.set_exact(Field::InPort, 2),
        }
        let mut list = Vec::new();
        if author.random.one_in(3) {
            list.push(resubmit(20));
        }
        if !author.random.one_in(6) {
            list.push(resubmit(author.random.pick(&[10, 10, 11, 12])));
        }
        list.extend(group_of(&mut author.random));
        for table in [41, 42, 43, 50] {
            if table == 41 && addresses || author.random.one_in(3) {
                list.push(resubmit(table));
            }
        }
        list.push(common::output(2));
        author.steps.push(rule(0, priority, matching, &list));
    };
    let teach = |author: &mut Author| {
        author.teach(|random| {
            let also = (random.one_in(2)).then(|| resubmit(random.pick(&[30, 41, 42, 50])));
            let also = also.into_iter().chain(group_of(random));
            also.chain([common::output(6)]).collect()
        });
    };
    for _ in 0..1 + author.random.below(3) {
        ways(&mut author);
    }
    for _ in 0..1 + author.random.below(3) {
        teach(&mut author);
    }
    let ttl = Action::DecTtl(vec![0]);
    for (table, eth_type, list) in [
        (20, 0x0800, vec![]),
        (20, 0x86dd, vec![ttl.clone()]),
        (30, 0x0800, vec![ttl, resubmit(42)]),
        (30, 0x86dd, vec![resubmit(41), common::output(7)]),
        (50, 0x0800, vec![common::output(8)]),
        // Not as lanes.
        (50, 0x86dd, vec![common::output(port::FLOOD)]),
    ] {
        let matching = common::fields(&[(Field::EthType, eth_type)]);
        author.steps.push(rule(table, 9, matching, &list));
    }
    for table in [41, 42, 43] {
        if author.random.one_in(2) {
            let list = [common::output(9), resubmit(50)];
            let skip = author.random.below(2) as usize;
            (author.steps).push(rule(table, 0, Match::any(), &list[skip..]));
        }
    }
    let others = if author.is_known_to { 40 } else { 8 };
    author.bursts(
        others,
        true,
        &mut |author: &mut Author| match author.random.below(if groups { 3 } else { 2 }) {
            0 => ways(author),
            1 => teach(author),
            _ => {
                let number = author.random.below(2) as u32;
                let tables = led_to(&mut author.random);
                (author.steps).push(group(GroupCommand::Modify, number, &tables));
            }
        },
    );
    author.steps
}

/// Carries out as many cases as are asked for; returns how many, and what they have tried. The
/// thread has as much stack as that of control, which uses the reference too: lookups of the
/// reference nest hundreds deep.
fn play_cases(case: impl Fn(u64) -> Vec<Step> + Send) -> (usize, Tally) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(8 << 20);
        let played = thread.spawn_scoped(scope, || play_all(case)).unwrap();
        (played.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn play_all(case: impl Fn(u64) -> Vec<Step>) -> (usize, Tally) {
    let first = number("SLUICE_SEED", 1);
    let cases = number("SLUICE_CASES", 500);
    let mut all = Tally::default();
    for seed in first..first + cases {
        let some = play(seed, case(seed));
        all.packets += some.packets;
        all.taught += some.taught;
        all.obeyed += some.obeyed;
        all.elsewhere += some.elsewhere;
        all.paused += some.paused;
    }
    println!(
        "{} packets, {} rules taught, {} lookups met one of the same burst, {} of other ports",
        all.packets, all.taught, all.obeyed, all.elsewhere
    );
    (cases as usize, all)
}

#[test]
fn learned_rules_equal_those_of_the_reference() {
    let (cases, all) = play_cases(one_by_one);
    if cases >= 100 {
        assert!(all.taught > all.packets / 20, "{} rules", all.taught);
    }
}

#[test]
fn the_packet_behind_obeys() {
    let (cases, all) = play_cases(|seed| back_to_back(seed, false));
    if cases >= 100 {
        assert!(all.packets > 10 * cases, "{} packets", all.packets);
        assert!(all.obeyed > cases / 4, "{} lookups", all.obeyed);
    }
}

/// Packets of other ports, in bursts of their own, meet the rules that the first port's packets
/// learn.
#[test]
fn packets_of_other_ports_obey() {
    let (cases, all) = play_cases(|seed| back_to_back(seed, true));
    if cases >= 100 {
        assert!(all.packets > 10 * cases, "{} packets", all.packets);
        assert!(all.elsewhere > cases / 100, "{} lookups", all.elsewhere);
    }
}

/// Packets of one port teach in lanes what packets of others meet.
#[test]
fn bursts_of_a_port_that_only_teaches_do_so_in_order() {
    let (cases, all) = play_cases(by_one_port);
    if cases >= 100 {
        assert!(all.taught > 2 * cases, "{} rules", all.taught);
        assert!(all.elsewhere > cases / 10, "{} lookups", all.elsewhere);
    }
}

/// Packets of all ports teach in lanes what those behind them meet.
#[test]
fn bursts_that_meet_what_they_teach_do_so_in_order() {
    let (cases, all) = play_cases(by_every_port);
    if cases >= 100 {
        assert!(all.taught > 2 * cases, "{} rules", all.taught);
        assert!(all.obeyed > cases / 2, "{} lookups", all.obeyed);
    }
}

/// Packets that meet what others of their burst teach wait for these, also where the first table
/// has so many rules that packets between them are done at once.
#[test]
fn packets_obey_behind_others_that_only_leave() {
    let mut steps = vec![
        rule(0, 1, Match::any(), &[learn_addresses(20), resubmit(20)]),
        rule(20, 0, Match::any(), &[common::output(9)]),
    ];
    for number in 100..200 {
        let matching = common::fields(&[(Field::EthDst, 0x0200_0000_0000 + number)]);
        steps.push(rule(0, 10, matching, &[common::output(7)]));
    }
    let packets = |list: &[(u8, u8)]| {
        let all = list.iter().enumerate();
        let all = all.map(|(at, (to, from))| (1, packet(*to, *from, at as u8)));
        Step::Packets(all.collect())
    };
    steps.push(packets(&[(1, 2)]));
    // Packets from 3 to 4, and from 2 to 3, among others.
    let mut burst = vec![(4, 3), (100, 2), (3, 2)];
    burst.extend((101..120).map(|to| (to, 2)));
    steps.push(packets(&burst));
    for seed in [0, 1] {
        play(seed, steps.clone());
    }
}

/// Packets that come to what others teach by a group only, which leads there at times.
#[test]
fn packets_of_groups_obey() {
    let mut steps = vec![
        group(GroupCommand::Add, 0, &[]),
        rule(0, 1, from_port(1), &[learn_addresses(20)]),
        rule(0, 1, from_port(2), &[Action::Group(0), common::output(9)]),
    ];
    for (round, tables) in [&[][..], &[20], &[], &[20], &[30, 20]].iter().enumerate() {
        let host = 2 * round as u8;
        steps.push(group(GroupCommand::Modify, 0, tables));
        let packets = [(1, packet(1, host, 1)), (2, packet(host, 1, 2))];
        steps.push(Step::Packets(packets.into()));
    }
    for seed in [0, 1] {
        play(seed, steps.clone());
    }
}

/// Packets of one port, some of which controllers stop and let go on.
fn with_pauses(seed: u64) -> Vec<Step> {
    let mut author = Author::new(seed ^ 0xaaaa);
    let pause = Action::Controller {
        max_len: 64,
        controller_id: 0,
        reason: 1,
        userdata: vec![7],
        pause: true,
        meter_id: None,
    };
    author.actions = vec![pause];
    author.change(30, false);
    for index in 0..8 {
        let bytes = frame(&mut author.random, [0xa5, index]);
        author.steps.push(Step::Packets(vec![(1, bytes)]));
    }
    author.steps
}

/// A packet that is paused for a controller continues as if it had not been, if the controller
/// changes nothing.
#[test]
fn a_packet_that_is_resumed_goes_on() {
    let (cases, all) = play_cases(with_pauses);
    assert!(all.paused > cases, "{} packets stopped", all.paused);
}

/// A rule is added once, however many packets ask for it, and its hard timeout counts from the last
/// that did.
#[test]
fn learning_again_only_restarts_the_hard_timeout() {
    let mut walker = Walker::new();
    let learn = common::learning::learn_source(3, 10);
    let rule = common::with(common::add(Match::any(), 1), |change| {
        change.instructions = apply(&[Action::Learn(Box::new(learn))]).into();
    });
    walker.switch.mod10(rule).unwrap();
    walker.switch.publish();
    let packet = frame(&mut Random(5), [1, 2]);
    walker.walk(1, std::slice::from_ref(&packet));
    assert_eq!(walker.asked(), 1);
    for _ in 0..30 {
        walker.switch.now += 900;
        walker.walk(1, std::slice::from_ref(&packet));
        let now = walker.switch.clock();
        assert_eq!(walker.switch.pipeline.expire(now).changed, 0);
    }
    assert_eq!(walker.asked(), 0, "requests for a rule that is there");
    let rules = walker.switch.flows();
    let learned = rules.iter().find(|rule| rule.table == 3).unwrap();
    assert_eq!(
        (learned.hard_age, learned.duration_ns / 1_000_000_000),
        (0, 27)
    );
    assert_eq!(learned.packets, 0);
    walker.switch.now += 10_001;
    let now = walker.switch.clock();
    assert_eq!(walker.switch.pipeline.expire(now).changed, 1);
    // When it is gone, it is asked for again.
    walker.switch.publish();
    walker.walk(1, &[packet]);
    assert_eq!(walker.asked(), 1);
}

/// A rule that packets change back and forth is changed at a bounded rate, and what the last packet
/// taught is in force in the end; packets do not wait for that.
#[test]
fn a_flapping_rule_is_changed_at_a_bounded_rate() {
    let mut walker = Walker::new();
    let learn = Action::Learn(Box::new(common::learning::learn_source(3, 10)));
    let rule = common::with(common::add(Match::any(), 1), |change| {
        change.instructions = apply(&[learn, common::output(7)]).into();
    });
    walker.switch.mod10(rule).unwrap();
    walker.switch.publish();
    let packet = frame(&mut Random(1), [9, 9]);
    let ports_learned = |walker: &Walker| -> Vec<u32> {
        let rules = walker.switch.flows();
        let learned = rules.iter().filter(|rule| rule.table == 3);
        let learned = learned.map(|rule| format!("{:?}", rule.instructions));
        let is_to = |text: &String, port: u32| text.contains(&format!("port: {port},"));
        learned
            .map(|text| (1..=2).find(|port| is_to(&text, *port)).unwrap())
            .collect()
    };
    let walk = |walker: &mut Walker, port: u32| {
        let left = walker.walk(port, std::slice::from_ref(&packet));
        assert_eq!(left.len(), 1, "each packet is sent on at once");
    };
    // One change as always.
    walk(&mut walker, 1);
    walk(&mut walker, 2);
    assert_eq!((walker.asked(), ports_learned(&walker)), (2, vec![2]));
    for round in 0..200 {
        walk(&mut walker, 1 + round % 2);
    }
    // The first packet of port 2 was the first change; the last one taught port 1.
    assert_eq!(walker.asked(), 63);
    assert_eq!((walker.asked(), ports_learned(&walker)), (0, vec![1]));
    walker.settle();
    assert_eq!((walker.asked(), ports_learned(&walker)), (0, vec![1]));
    walker.switch.now += 20;
    walker.settle();
    assert_eq!((walker.asked(), ports_learned(&walker)), (1, vec![2]));
    // What is wanted last is there already.
    walk(&mut walker, 1);
    walk(&mut walker, 2);
    walker.switch.now += 100;
    walker.settle();
    assert_eq!((walker.asked(), ports_learned(&walker)), (0, vec![2]));
    // And a change is one again.
    walk(&mut walker, 1);
    assert_eq!((walker.asked(), ports_learned(&walker)), (1, vec![1]));
    // What is to be asked for later does not count any more when the rule has been deleted, and
    // another packet has taught it anew.
    for round in 0..200 {
        walk(&mut walker, 2 - round % 2);
    }
    walk(&mut walker, 2);
    let asked = walker.asked();
    assert!(asked < 70 && ports_learned(&walker).len() == 1, "{asked}");
    let delete = common::flow(openflow::flow::FlowModCommand::Delete, Match::any(), 0);
    let delete = common::with(delete, |change| change.table = 3);
    walker.switch.mod13(delete).unwrap();
    walker.switch.publish();
    assert_eq!(ports_learned(&walker), vec![]);
    walk(&mut walker, 1);
    assert_eq!((walker.asked(), ports_learned(&walker)), (1, vec![1]));
    walker.switch.now += 100;
    walker.settle();
    assert_eq!((walker.asked(), ports_learned(&walker)), (0, vec![1]));
    assert_eq!(walker.held(), (0, 0));
}

/// Packets of a port may ask for so many rules and no more while the worker is pressed; those
/// beyond go on at once, and other ports have rates of their own.
#[test]
fn packets_beyond_the_rate_of_learn_requests_are_not_held() {
    use program::exec::{ASKED_AT_ONCE, ASKED_PER_MS};
    let mut walker = Walker::new();
    let learn = Action::Learn(Box::new(common::learning::learn_source(3, 0)));
    let rule = common::with(common::add(Match::any(), 1), |change| {
        change.instructions = apply(&[learn, common::output(7)]).into();
    });
    walker.switch.mod10(rule).unwrap();
    walker.switch.publish();
    let from = |address: u32| {
        let mut packet = frame(&mut Random(1), [9, 9]);
        packet[6..8].copy_from_slice(&[2, 1]);
        packet[8..12].copy_from_slice(&address.to_be_bytes());
        packet
    };
    let mut next = 0_u32;
    // Sends packets from new addresses, returns how many rules these have asked for.
    let mut ask = |walker: &mut Walker, port: u32, count: u64| -> u64 {
        for _ in 0..count {
            next += 1;
            let left = walker.walk(port, &[from(next)]);
            assert_eq!(left.len(), 1, "packet {next} is sent on at once");
        }
        walker.asked() as u64
    };
    assert_eq!(ask(&mut walker, 1, ASKED_AT_ONCE + 100), ASKED_AT_ONCE);
    assert_eq!(walker.switch.flows().len() as u64, 1 + ASKED_AT_ONCE);
    assert_eq!(ask(&mut walker, 2, 100), 100);
    walker.switch.now += 3;
    assert_eq!(ask(&mut walker, 1, 100), 3 * ASKED_PER_MS);
    // What is there already needs no rule.
    walker.switch.now += 1;
    let known = from(u32::MAX);
    let meet = |walker: &mut Walker, port: u32| {
        walker.walk(port, std::slice::from_ref(&known));
        walker.asked()
    };
    assert_eq!(meet(&mut walker, 1), 1);
    let rules = walker.switch.flows().len();
    assert_eq!(ask(&mut walker, 1, 100), ASKED_PER_MS - 1);
    let rules = rules + ASKED_PER_MS as usize - 1;
    assert_eq!(meet(&mut walker, 1), 0);
    assert_eq!(walker.switch.flows().len(), rules);
    // A rule that flaps has a bound of its own.
    assert_eq!(meet(&mut walker, 2), 1);
    assert_eq!(meet(&mut walker, 1), 1);
    // While a worker rests now and then, there is no limit.
    walker.rest();
    assert_eq!(ask(&mut walker, 1, 2 * ASKED_AT_ONCE), 2 * ASKED_AT_ONCE);
    assert_eq!(walker.held(), (0, 0));
}

/// What a packet wanted of a rule that flaps comes late, and does not count if the rule has been
/// taught by a later packet of another worker, changed by a controller, or if no rule teaches it
/// any more.
#[test]
fn a_late_lesson_counts_only_if_it_is_the_last() {
    let learn = Action::Learn(Box::new(common::learning::learn_source(3, 0)));
    let teacher = common::with(common::add(Match::any(), 1), |change| {
        change.instructions = apply(&[learn, common::output(7)]).into();
    });
    let delete = |table: u8| {
        let delete = common::flow(openflow::flow::FlowModCommand::Delete, Match::any(), 0);
        common::with(delete, |change| change.table = table)
    };
    let port_learned = |walker: &Walker| -> Option<u32> {
        let rules = walker.switch.flows();
        let rule = rules.iter().find(|rule| rule.table == 3)?;
        let text = format!("{:?}", rule.instructions);
        (1..=9).find(|port| text.contains(&format!("port: {port},")))
    };
    // A rule that port 1's packet has taught, of which port 2's wants something else later.
    let flapping = || {
        let mut walker = Walker::new();
        walker.switch.mod13(teacher.clone()).unwrap();
        walker.switch.publish();
        let packet = frame(&mut Random(1), [9, 9]);
        for round in 0..200 {
            walker.walk(1 + round % 2, std::slice::from_ref(&packet));
        }
        assert_eq!((walker.asked(), port_learned(&walker)), (65, Some(1)));
        let last = walker.last.clone().unwrap();
        (walker, last)
    };
    let later = |walker: &mut Walker| {
        walker.switch.now += 50;
        walker.settle();
        assert_eq!(walker.asked(), 1);
        port_learned(walker)
    };
    let (mut walker, last) = flapping();
    assert_eq!(later(&mut walker), Some(2), "nothing is newer");
    // A packet of another worker comes after that of port 2, or before it.
    for (came, wanted) in [(6, Some(1)), (4, Some(2))] {
        let (mut walker, last) = flapping();
        let packet = frame(&mut Random(1), [9, 9]);
        let began = walker.switch.now;
        walker.switch.now = began + 5;
        walker.walk(2, std::slice::from_ref(&packet));
        let other = program::actions::learn::Request {
            seen_ms: began + came,
            ..last
        };
        walker.switch.now = began + 7;
        let now = walker.switch.clock();
        walker.switch.pipeline.learn(&other, now);
        walker.switch.publish();
        assert_eq!(later(&mut walker), wanted, "came after {came} ms");
    }
    // A controller's change is later, too.
    let (mut walker, _) = flapping();
    walker.switch.now += 5;
    let change = common::flow(openflow::flow::FlowModCommand::Modify, Match::any(), 0);
    let change = common::with(change, |change| {
        change.table = 3;
        change.instructions = apply(&[common::output(9)]).into();
    });
    walker.switch.mod13(change).unwrap();
    walker.switch.publish();
    assert_eq!(later(&mut walker), Some(9));
    // Nobody teaches it any more; or another rule that does the same.
    for (again, wanted) in [(false, None), (true, Some(2))] {
        let (mut walker, _) = flapping();
        walker.switch.mod13(delete(0)).unwrap();
        walker.switch.mod13(delete(3)).unwrap();
        if again {
            walker.switch.mod13(teacher.clone()).unwrap();
        }
        walker.switch.publish();
        assert_eq!(later(&mut walker), wanted, "taught again: {again}");
    }
    // A packet that has met the rule before it was deleted is in time.
    walker.switch.mod13(delete(0)).unwrap();
    walker.switch.mod13(delete(3)).unwrap();
    walker.switch.publish();
    let now = walker.switch.clock();
    walker.switch.pipeline.learn(&last, now);
    assert_eq!(port_learned(&walker), Some(1));
}

/// Without answers, packets continue after a while, in order, and nothing is left behind.
#[test]
fn packets_go_on_without_an_answer() {
    let mut walker = Walker::new();
    let learn = Action::Learn(Box::new(common::learning::learn_source(3, 10)));
    let rule = common::with(common::add(Match::any(), 1), |change| {
        change.instructions = apply(&[learn, common::output(2)]).into();
    });
    walker.switch.mod10(rule).unwrap();
    walker.switch.publish();
    walker.answers = false;
    let packets: Vec<Vec<u8>> = (0..40)
        .map(|n| frame(&mut Random(n + 1), [9, n as u8]))
        .collect();
    assert_eq!(
        walker.walk(1, &packets),
        [],
        "packets that left before the rule"
    );
    let held = walker.held();
    assert!(held.0 == 40 && held.1 > 40 * 60, "{held:?}");
    walker.switch.now += 49;
    assert_eq!(walker.settle(), []);
    walker.switch.now += 1;
    let left = walker.settle();
    let tails: Vec<Vec<u8>> = left.iter().map(common::learning::tail).collect();
    assert_eq!(tails, (0..40).map(|n| vec![9, n as u8]).collect::<Vec<_>>());
    assert_eq!(walker.held(), (0, 0));
    assert_eq!(walker.switch.program.domain.collect(), 0);
}

/// `delete_learned` counts the rules with the learn action, also when a batch is rolled back.
#[test]
fn learned_rules_are_deleted_with_the_last_rule_that_learns_them() {
    let mut walker = Walker::new();
    let mut learn = common::learning::learn_source(3, 0);
    (learn.delete_learned, learn.cookie) = (true, 0x77);
    let teacher = |port: u128, learn: &openflow::action::Learn| {
        common::with(
            common::add(common::fields(&[(Field::InPort, port)]), 1),
            |change| {
                change.instructions = apply(&[Action::Learn(Box::new(learn.clone()))]).into();
            },
        )
    };
    let delete = |port: u128| {
        let matching = common::fields(&[(Field::InPort, port)]);
        common::flow(openflow::flow::FlowModCommand::Delete, matching, 0)
    };
    walker.switch.mod10(teacher(1, &learn)).unwrap();
    walker.switch.mod10(teacher(2, &learn)).unwrap();
    walker.switch.publish();
    walker.walk(1, &[frame(&mut Random(1), [0, 0])]);
    walker.walk(2, &[frame(&mut Random(77), [0, 0])]);
    let learned = |walker: &Walker| {
        walker
            .switch
            .flows()
            .iter()
            .filter(|rule| rule.table == 3)
            .count()
    };
    let all = learned(&walker);
    assert!(all > 0);
    walker.switch.mod10(delete(1)).unwrap();
    assert_eq!(learned(&walker), all);
    walker.switch.pipeline.begin_batch();
    walker.switch.mod10(delete(2)).unwrap();
    assert_eq!(learned(&walker), 0);
    walker.switch.pipeline.roll_back();
    assert_eq!(learned(&walker), all);
    // A rule with a different learn action replaces it.
    let mut other = learn.clone();
    other.cookie = 0x78;
    walker.switch.mod10(teacher(2, &other)).unwrap();
    assert_eq!(learned(&walker), 0);
}

/// A step that gives an existing rule the cookie that the next step's `limit` counts makes room for
/// one rule less.
#[test]
fn a_limit_counts_what_the_step_before_has_changed() {
    for (limit, learns) in [(1, false), (2, true)] {
        let mut walker = Walker::new();
        let mut other = Switch::new();
        let in_port = common::learning::whole(Field::InPort);
        let mac = common::learning::whole(Field::EthSrc);
        let teach = |part: Subfield| {
            let spec = common::learning::spec(LearnSource::Field(part), LearnTarget::Match(part));
            common::learning::plain(3, 0x77, vec![spec])
        };
        let mut second = teach(mac);
        let told = common::learning::whole(Field::Reg0);
        second.limit = limit;
        second.result = Some(Subfield { bits: 1, ..told });
        let actions = [
            Action::Learn(Box::new(teach(in_port))),
            Action::Learn(Box::new(second.clone())),
            Action::OutputReg {
                source: told,
                max_len: 0,
            },
        ];
        let old = common::with(
            common::add(common::fields(&[(Field::InPort, 1)]), second.priority),
            |change| (change.table, change.cookie) = (3, 4),
        );
        let teacher = common::with(common::add(Match::any(), 1), |change| {
            change.instructions = apply(&actions).into();
        });
        for change in [old, teacher] {
            walker.switch.mod10(change.clone()).unwrap();
            other.mod10(change).unwrap();
        }
        walker.switch.publish();
        other.publish();
        let packet = frame(&mut Random(5), [1, 2]);
        let outcome = reference::evaluate(&other.pipeline, 1, &packet);
        for change in &outcome.learned {
            other.send(change, Version::V1_0).unwrap();
        }
        let got = walker.walk(1, std::slice::from_ref(&packet));
        assert_eq!(got, common::learning::comparable(&outcome.effects));
        assert!(
            matches!(got[..], [reference::Effect::Output { port, .. }] if port == u32::from(learns)),
            "limit {limit}: {got:?}"
        );
        assert_eq!(rules(&walker.switch), rules(&other), "limit {limit}");
    }
}

/// Returns a case of these changes, with packets that all come alone by port 1.
fn story(changes: Vec<FlowMod>, packets: &[Vec<u8>]) -> Vec<Step> {
    let changes = changes.into_iter().map(Step::Change);
    let packets = packets
        .iter()
        .map(|bytes| Step::Packets(vec![(1, bytes.clone())]));
    changes.chain(packets).collect()
}

/// Carries out a case with few epochs, and with many.
fn play_both(changes: Vec<FlowMod>, packets: &[Vec<u8>]) {
    let steps = story(changes, packets);
    for seed in [0, 1] {
        play(seed, steps.clone());
    }
}

/// Returns a rule of table 0 for packets to an Ethernet address that ends with this byte.
fn teacher(to: u8, actions: &[Action]) -> FlowMod {
    let matching = common::fields(&[(Field::EthDst, 0x0200_0000_0000 | u128::from(to))]);
    common::with(common::add(matching, 1), |change| {
        change.instructions = apply(actions).into();
    })
}

/// Returns a packet between Ethernet addresses that end with these bytes.
fn packet(to: u8, from: u8, tail: u8) -> Vec<u8> {
    let address = |last| [2, 0, 0, 0, 0, last];
    let builder = packet::build::Builder::ethernet(address(to), address(from));
    let builder = builder.ipv4(0x0a00_0001, 0x0a00_0002).udp(1, 2);
    builder
        .payload(&[&[0; 40][..], &[1, tail]].concat())
        .bytes()
}

/// The bit that tells what came of a `learn`, and an output to the port of that number.
fn told() -> (Subfield, Action) {
    let whole = common::learning::whole(Field::Reg0);
    let sends = Action::OutputReg {
        source: whole,
        max_len: 0,
    };
    (Subfield { bits: 1, ..whole }, sends)
}

/// Returns an action that learns a rule which matches one field, and tells what came of it.
fn teach(table: u8, priority: u16, cookie: u64, field: Field, limit: u32) -> Action {
    let part = common::learning::whole(field);
    let spec = common::learning::spec(LearnSource::Field(part), LearnTarget::Match(part));
    let mut learn = common::learning::plain(table, priority, vec![spec]);
    (learn.cookie, learn.limit, learn.result) = (cookie, limit, Some(told().0));
    Action::Learn(Box::new(learn))
}

/// Of two steps in a row that write the same bit, the second counts, also where what came of the
/// first is known later: the first is refused for its limit, the rule of the second is there.
#[test]
fn the_last_result_counts_not_the_latest() {
    let limited = teach(2, 50, 0, Field::EthSrc, 1);
    let free = teach(3, 50, 0, Field::InPort, 0);
    for (list, port) in [([limited.clone(), free.clone()], 1), ([free, limited], 0)] {
        let rule = teacher(1, &[&list[..], &[told().1]].concat());
        let packets = [packet(1, 5, 0), packet(1, 6, 1)];
        play_both(vec![rule.clone()], &packets);
        // The second packet's source cannot be learned any more.
        let mut walker = Walker::new();
        walker.switch.mod10(rule).unwrap();
        walker.switch.publish();
        walker.walk(1, &packets[..1]);
        let left = walker.walk(1, &packets[1..]);
        let sent = |effect: &reference::Effect| matches!(effect, reference::Effect::Output { port: to, .. } if *to == port);
        assert!(left.len() == 1 && sent(&left[0]), "{left:?}");
    }
}

/// A packet may ask for one rule several times, for something else each time. The last counts, also
/// where the rule did just that before the packet came, whose epoch the packet still walks in.
#[test]
fn a_packet_may_change_its_mind() {
    let (whole, part) = (common::learning::whole, common::learning::spec);
    let specs = vec![
        part(
            LearnSource::Field(whole(Field::EthSrc)),
            LearnTarget::Match(whole(Field::EthDst)),
        ),
        part(
            LearnSource::Field(whole(Field::Reg1)),
            LearnTarget::Load(whole(Field::Reg0)),
        ),
    ];
    let learn = Action::Learn(Box::new(common::learning::plain(3, 50, specs)));
    let say = |value| {
        [
            Action::Load {
                dst: whole(Field::Reg1),
                value,
            },
            learn.clone(),
        ]
    };
    let rule = teacher(1, &[say(1), say(2), say(1)].concat());
    play_both(vec![rule], &[packet(1, 5, 0), packet(1, 5, 1)]);
}

/// A rule for which there was no room is asked for again when a rule that counted has got another
/// cookie: by the packet itself, right before or earlier on its way, or by another packet, while
/// what came of its request is not known yet.
#[test]
fn a_limit_is_asked_about_again_when_a_request_makes_room() {
    let sends = told().1;
    // Of the cookie 7 there may be one rule, and there is.
    let counted = common::with(
        common::add(common::fields(&[(Field::InPort, 1)]), 50),
        |change| {
            (change.table, change.cookie) = (3, 7);
        },
    );
    let limited = teach(3, 51, 7, Field::EthSrc, 1);
    let makes_room = teach(3, 50, 9, Field::InPort, 0);
    let wants = teacher(1, &[limited.clone(), sends.clone()]);
    let gives = teacher(2, &[makes_room.clone(), sends.clone()]);
    let at_once = [makes_room.clone(), limited.clone(), sends.clone()];
    let later = [makes_room, common::output(4), limited, sends];
    for both in [&at_once[..], &later] {
        let rules = vec![counted.clone(), wants.clone(), teacher(3, both)];
        play_both(rules, &[packet(1, 5, 0), packet(3, 6, 1)]);
    }
    let rules = [counted, wants, gives].map(Step::Change);
    let burst = [packet(1, 5, 0), packet(2, 6, 1), packet(1, 5, 2)];
    let burst = Step::Packets(burst.map(|bytes| (1, bytes)).to_vec());
    for seed in [0, 1] {
        play(seed, [&rules[..], std::slice::from_ref(&burst)].concat());
    }
}

/// Rules learned from a packet-out can use its pipeline fields, and a frame without an Ethertype
/// has the one that rules match.
#[test]
fn packet_outs_teach_by_all_that_is_known_of_them() {
    let known = [
        (Field::Metadata, 0x77),
        (Field::Reg1, 9),
        (Field::InPort, 2),
    ];
    for (typed, ethertype) in [([0x12, 0x34], 0x1234), ([0x00, 0x40], 0x05ff)] {
        let mut switch = Switch::new();
        let fields = known.iter().map(|(field, _)| *field);
        let copied = fields.chain([Field::EthType]).map(common::learning::whole);
        let specs = copied
            .map(|part| common::learning::spec(LearnSource::Field(part), LearnTarget::Match(part)));
        let learn = common::learning::plain(3, 99, specs.collect());
        // The rule with the learn action matches all of it, too.
        let mut asked = common::fields(&known);
        asked.set_exact(Field::EthType, ethertype);
        let rule = common::with(common::add(asked.clone(), 1), |change| {
            change.instructions = apply(&[Action::Learn(Box::new(learn))]).into();
        });
        switch.mod10(rule).unwrap();
        let mut matching = common::fields(&known[..2]);
        matching.set_exact(Field::InPortOxm, 2);
        let mut data = frame(&mut Random(5), [1, 2]);
        data[12..14].copy_from_slice(&typed);
        let message = PacketOut {
            buffer_id: NO_BUFFER,
            in_port: 2,
            matching,
            actions: vec![common::output(port::TABLE)],
            data,
        };
        let program = switch.pipeline.packet_out(&message, Version::V1_5).unwrap();
        assert!(switch.pipeline.may_teach(&program));
        let surroundings = Surroundings {
            learns: true,
            ..Surroundings::default()
        };
        let now = switch.clock();
        let outcome = switch.pipeline.teach(&message, &program, surroundings, now);
        assert_eq!(outcome.changed, 1, "Ethertype {ethertype:#x}");
        let learned = switch.flows().into_iter().find(|rule| rule.table == 3);
        assert_eq!(learned.unwrap().matching, asked);
    }
}
