//! A switch whose packets learn rules: the engine with a control side that answers at once, and
//! generated learn actions.

use super::generate::Random;
use super::outside::{Outside, To};
use super::{Switch, effects};
use openflow::action::{Action, Learn, LearnSource, LearnSpec, LearnTarget, Subfield};
use packet::{Field, FlowKey, Frame, HeapFrame, WordSet};
use pipeline::reference::Effect;
use program::actions::learn::{Answer, Ended, Request};
use program::actions::{PacketInReason, ToController};
use program::epoch::Reader;
use program::exec::{Engine, Frozen, Thaw};
use program::host::{Context, ResumePoint};

/// A paused packet with its state.
struct Paused {
    bytes: Vec<u8>,
    metadata: FlowKey,
    rest: Frozen,
}

/// Records what a walk does, as the reference's effects, and its learn requests.
#[derive(Default)]
struct Notes {
    effects: Vec<Effect>,
    requests: Vec<Request>,
    ended: Vec<Ended>,
    paused: Vec<Paused>,
    /// The port of the burst.
    received: u32,
}

impl Outside for Notes {
    fn place(&self) -> ResumePoint {
        ResumePoint {
            received: self.received,
            ..ResumePoint::default()
        }
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
        self.effects.push(effects::controller(&context, to, frame));
    }
    fn pause(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame, rest: Frozen) {
        let mut metadata = *context.key;
        metadata.clear(WordSet(u64::MAX).minus(context.valid));
        self.paused.push(Paused {
            bytes: frame.to_vec(),
            metadata,
            rest,
        });
        self.controller(context, to, frame);
    }
    fn learn(&mut self, request: Request) -> bool {
        self.requests.push(request);
        true
    }
    fn connection_ended(&mut self, ended: Ended) -> bool {
        self.ended.push(ended);
        true
    }
}

/// Returns effects without what is undefined: keys, and the position of an action in a clone or an
/// action set.
pub fn comparable(effects: &[Effect]) -> Vec<Effect> {
    let mut effects = effects.to_vec();
    for effect in &mut effects {
        if let Effect::Controller {
            reason,
            table,
            cookie,
            key,
            max_len,
            ..
        } = effect
        {
            **key = FlowKey::ZERO;
            if !matches!(
                reason,
                PacketInReason::Action
                    | PacketInReason::NoMatch
                    | PacketInReason::TableMiss
                    | PacketInReason::NoRule
            ) {
                (*table, *cookie) = (0, 0);
            }
            *max_len = 0;
        }
    }
    effects
}

/// Returns a packet's last two bytes, which distinguish the packets of a burst.
pub fn tail(effect: &Effect) -> Vec<u8> {
    let bytes = match effect {
        Effect::Output { sent, .. } | Effect::All { sent, .. } | Effect::Normal(sent) => {
            &sent.bytes
        }
        Effect::Controller { bytes, .. } => bytes,
    };
    bytes[bytes.len() - 2..].to_vec()
}

/// A switch that walks packets, with a control side.
pub struct Walker {
    pub switch: Switch,
    /// Whether learn requests are answered.
    pub answers: bool,
    /// Whether epochs come more often than rules change.
    pub eager: bool,
    /// The last request.
    pub last: Option<Request>,
    engine: Engine<HeapFrame>,
    reader: Reader,
    asked: usize,
    paused: usize,
}

impl Walker {
    pub fn new() -> Walker {
        let switch = Switch::new();
        let reader = switch.program.domain.reader().unwrap();
        switch.program.counters.add_worker(reader.index());
        Walker {
            switch,
            answers: true,
            eager: true,
            last: None,
            engine: Engine::new(),
            reader,
            asked: 0,
            paused: 0,
        }
    }

    /// Returns the number of requests since the last call.
    pub fn asked(&mut self) -> usize {
        std::mem::take(&mut self.asked)
    }

    /// Returns the number of packets paused for controllers since the last call.
    pub fn paused(&mut self) -> usize {
        std::mem::take(&mut self.paused)
    }

    /// Returns the number of walks that wait, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        self.engine.held()
    }

    /// Has a turn without frames.
    pub fn rest(&mut self) {
        self.engine.rested(self.switch.now);
    }

    /// Walks packets as one burst until all are done; returns what left.
    pub fn walk(&mut self, in_port: u32, packets: &[Vec<u8>]) -> Vec<Effect> {
        self.walk_bursts(&[(in_port, packets)])
    }

    /// Walks bursts of several ports, one after the other, before control answers any of them;
    /// returns what left.
    pub fn walk_bursts(&mut self, bursts: &[(u32, &[Vec<u8>])]) -> Vec<Effect> {
        let mut notes = Notes::default();
        for (in_port, packets) in bursts {
            let mut frames = packets.iter().map(|bytes| HeapFrame::new(bytes)).collect();
            let guard = self.reader.begin();
            notes.received = *in_port;
            self.engine.burst(
                &self.switch.bridge,
                &guard,
                *in_port,
                &mut frames,
                0,
                self.switch.now,
                &mut To(&mut notes),
            );
            let _ = guard;
        }
        self.attend(&mut notes);
        let settled = self.settle_into(&mut notes);
        debug_assert!(settled || !self.answers);
        comparable(&notes.effects)
    }

    /// Continues the walks that can continue; returns what left.
    pub fn settle(&mut self) -> Vec<Effect> {
        let mut notes = Notes::default();
        self.settle_into(&mut notes);
        comparable(&notes.effects)
    }

    /// The control side: answers requests and resumes packets.
    fn attend(&mut self, notes: &mut Notes) {
        let now = self.switch.clock();
        let mut answers = Vec::new();
        for request in std::mem::take(&mut notes.requests) {
            self.asked += 1;
            if self.answers {
                let learned = self.switch.pipeline.learn(&request, now);
                if learned.1.changed > 0 {
                    self.switch.publish();
                }
                answers.push(Answer {
                    ticket: request.ticket,
                    verdict: learned.0,
                    epoch: self.switch.program.domain.current(),
                });
            }
            self.last = Some(request);
        }
        for ended in std::mem::take(&mut notes.ended) {
            self.switch.pipeline.connection_ended(&ended);
        }
        if self.eager {
            self.switch.publish();
        }
        for answer in answers {
            self.engine.answer(answer);
        }
    }

    /// Continues the walks that can continue; returns true when no walk waits any more.
    fn settle_into(&mut self, notes: &mut Notes) -> bool {
        for _ in 0..1000 {
            // Frees as early as possible what is no longer needed.
            self.switch.pipeline.housekeep(usize::MAX);
            if self.eager {
                self.switch.program.domain.publish();
            }
            self.switch.program.domain.collect();
            let guard = self.reader.begin();
            self.engine.settle(&guard, self.switch.now, &mut |_| {});
            self.engine.ask_deferred(self.switch.now, |_, request| {
                notes.requests.push(request);
                true
            });
            while let Some(held) = self.engine.release() {
                let (bridge, now) = (&self.switch.bridge, self.switch.now);
                self.engine
                    .resume(held, bridge, &guard, now, &mut To(notes));
            }
            for paused in std::mem::take(&mut notes.paused) {
                self.paused += 1;
                let thaw = Thaw {
                    frame: HeapFrame::new(&paused.bytes),
                    metadata: &paused.metadata,
                    rest: paused.rest,
                };
                let (bridge, now) = (&self.switch.bridge, self.switch.now);
                self.engine.thaw(bridge, &guard, thaw, now, &mut To(notes));
            }
            let _ = guard;
            let done = notes.requests.is_empty() && notes.paused.is_empty();
            self.attend(notes);
            if done && (self.engine.held().0 == 0 || !self.answers) {
                let guard = self.reader.begin();
                self.engine.settle(&guard, self.switch.now, &mut |_| {});
                return self.engine.held().0 == 0;
            }
        }
        panic!("walks that never end");
    }
}

fn part(field: Field, start: u16, bits: u16) -> Subfield {
    Subfield { field, start, bits }
}

pub fn whole(field: Field) -> Subfield {
    part(field, 0, field.def().action_bits as u16)
}

pub fn spec(source: LearnSource, target: LearnTarget) -> LearnSpec {
    LearnSpec { source, target }
}

pub fn plain(table: u8, priority: u16, specs: Vec<LearnSpec>) -> Learn {
    Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        priority,
        cookie: 0,
        send_flow_rem: false,
        delete_learned: false,
        table,
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        limit: 0,
        result: None,
        specs,
    }
}

/// Returns an action that learns Ethernet sources as destinations.
pub fn learn_source(table: u8, hard_timeout: u16) -> Learn {
    let specs = vec![
        spec(
            LearnSource::Field(whole(Field::EthSrc)),
            LearnTarget::Match(whole(Field::EthDst)),
        ),
        spec(
            LearnSource::Field(whole(Field::InPort)),
            LearnTarget::Output,
        ),
    ];
    Learn {
        hard_timeout,
        ..plain(table, 99, specs)
    }
}

/// Generates match elements that are valid together.
fn matches(random: &mut Random) -> Vec<LearnSpec> {
    let from = |source: Subfield, target: Subfield| {
        spec(LearnSource::Field(source), LearnTarget::Match(target))
    };
    let fixed = |value: u128, target: Subfield| {
        let bits = target.bits;
        spec(
            LearnSource::Immediate { value, bits },
            LearnTarget::Match(target),
        )
    };
    match random.below(8) {
        0 => vec![from(whole(Field::EthSrc), whole(Field::EthDst))],
        1 => vec![from(whole(Field::EthSrc), whole(Field::EthSrc))],
        2 => vec![
            from(whole(Field::EthDst), whole(Field::EthSrc)),
            from(part(Field::VlanTci, 0, 12), part(Field::VlanTci, 0, 12)),
        ],
        3 => vec![from(whole(Field::InPort), whole(Field::InPort))],
        4 => vec![from(part(Field::EthSrc, 0, 8), part(Field::Reg2, 4, 8))],
        5 => vec![fixed(0x0800, whole(Field::EthType))],
        6 => vec![
            fixed(0x0800, whole(Field::EthType)),
            fixed(6, whole(Field::IpProto)),
            from(part(Field::EthDst, 0, 16), whole(Field::TcpDst)),
        ],
        _ => vec![from(
            part(Field::EthDst, 3, 40),
            part(Field::Metadata, 2, 40),
        )],
    }
}

fn does(random: &mut Random) -> LearnSpec {
    let number = |value: u128, target: Subfield| {
        let bits = target.bits;
        spec(
            LearnSource::Immediate { value, bits },
            LearnTarget::Load(target),
        )
    };
    match random.below(6) {
        0 | 1 => spec(
            LearnSource::Field(whole(Field::InPort)),
            LearnTarget::Output,
        ),
        2 => number(random.below(4).into(), whole(Field::Reg0)),
        3 => number(u128::from(random.next()) << 40 | 5, whole(Field::Xxreg1)),
        4 => spec(
            LearnSource::Field(whole(Field::EthSrc)),
            LearnTarget::Load(whole(Field::EthDst)),
        ),
        _ => spec(
            LearnSource::Field(part(Field::EthSrc, 0, 2)),
            LearnTarget::Output,
        ),
    }
}

/// Generates learn actions. The rules of each have a priority and match fields of their own, so
/// that rules of different actions do not overlap, and are in the same tables as other rules.
pub fn learn_actions(random: &mut Random) -> Vec<Action> {
    let some = 1 + random.below(5);
    let one = |random: &mut Random, index: u64| {
        let mut specs = matches(random);
        (0..random.below(3)).for_each(|_| specs.push(does(random)));
        let mut learn = plain(1 + random.below(4) as u8, 50 + index as u16, specs);
        learn.cookie = random.pick(&[0, 7, u64::MAX]);
        learn.idle_timeout = random.pick(&[0, 60]);
        learn.hard_timeout = random.pick(&[0, 600]);
        learn.delete_learned = random.one_in(4) && learn.cookie == 7;
        learn.send_flow_rem = random.one_in(4);
        learn.limit = random.pick(&[0, 0, 0, 1, 3]);
        if random.one_in(3) {
            learn.result = Some(part(Field::Reg0, random.below(2) as u16, 1));
        }
        if random.one_in(4) {
            (learn.fin_idle_timeout, learn.fin_hard_timeout) = (5, random.pick(&[0, 9]));
        }
        Action::Learn(Box::new(learn))
    };
    (0..some).map(|index| one(random, index)).collect()
}
