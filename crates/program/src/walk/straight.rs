//! Packets on straight ways: each rule they meet changes the packet and then sends it, or sends it on to a later table, and nothing else.
//!
//! Most rules of most pipelines are so ([`Straight`], told when the rule is made). Such a packet needs no stack, no outputs that wait and no action set. It
//! goes from table to table with its key, in groups that wait for the same table; what met the same rule is counted together, and what goes to the same port is
//! sent together. Where a packet meets another rule, or an edit cannot be done, it goes on the general way: its walk holds at each table what the general way wants
//! to find there.

use super::{Burst, Engine, Next, Position, READ_BY_OUTPUTS, Steps, Walk};
use crate::counters::{CounterId, prefetch};
use crate::host::{Drop as DropReason, Host};
use crate::ops::{Op, PortNo};
use crate::rule::Rule;
use crate::table::LOOKUP_MAX;
use packet::Frame;
use packet::edit::{self, CompiledSet};

/// What a rule does that packets pass on a straight way: steps that are edits, and an end.
///
/// It lies beside what a lookup reads of a rule, and points to the rule's steps, which live as long as the rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Straight {
    edits: Steps,
    end: End,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Output(PortNo),
    Table { table: u8, resubmit: bool },
    Nothing,
}

impl Straight {
    /// What these steps do, if that is all they do.
    pub fn of(ops: &[Op]) -> Option<Straight> {
        let (edits, end) = match ops {
            [edits @ .., Op::Output(port)] => (edits, End::Output(*port)),
            [edits @ .., Op::Goto(table)] => {
                let (table, resubmit) = (*table, false);
                (edits, End::Table { table, resubmit })
            }
            [
                edits @ ..,
                Op::Resubmit {
                    in_port: None,
                    table: Some(table),
                },
            ] => {
                let (table, resubmit) = (*table, true);
                (edits, End::Table { table, resubmit })
            }
            edits => (edits, End::Nothing),
        };
        edits.iter().all(is_edit).then_some(Straight {
            edits: Steps::of(edits),
            end,
        })
    }
}

impl Straight {
    /// The edits and the port of a rule that sends; None for another.
    #[inline(always)]
    pub(super) fn edits_and_output(&self) -> Option<(&[Op], PortNo)> {
        match self.end {
            End::Output(port) => Some((self.edits.get(), port)),
            _ => None,
        }
    }
}

/// Whether a step only changes the packet or its metadata, and none that says how it is sent.
fn is_edit(op: &Op) -> bool {
    match op {
        Op::DecTtl(_) => true,
        Op::Set(CompiledSet::Metadata { word, .. }) => {
            !READ_BY_OUTPUTS.contains(usize::from(*word))
        }
        // Reads the packet anew.
        Op::Set(CompiledSet::Other { .. }) => false,
        Op::Set(_) => true,
        _ => false,
    }
}

/// Where a packet goes from a rule.
enum Hop {
    Output(PortNo),
    Table(u8),
    Nothing,
    General(Next),
}

impl<F: Frame> Walk<F> {
    /// Does what a rule says that the packet has met in `table`.
    #[inline(always)]
    fn hop<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
        rule: &Rule,
    ) -> Hop {
        let straight = match &rule.straight {
            // Only forward: such ways end by themselves.
            Some(Straight {
                end: End::Table { table: next, .. },
                ..
            }) if *next <= table => None,
            straight => straight.as_ref(),
        };
        let Some(straight) = straight else {
            return Hop::General(Engine::hit(self, burst, host, table, rule));
        };
        for (done, op) in straight.edits.get().iter().enumerate() {
            let Some(frame) = &mut self.frame else {
                break;
            };
            let carried_out = match op {
                Op::Set(CompiledSet::Metadata { word, value, mask }) => {
                    let word = &mut self.key.words[usize::from(*word) % packet::key::WORDS];
                    *word = *word & !mask | value;
                    true
                }
                Op::Set(set) => set.run(frame, &mut self.layers, &mut self.key),
                Op::DecTtl(_) => edit::dec_ttl(frame, &self.layers, &mut self.key).is_ok(),
                _ => false,
            };
            if !carried_out {
                return Hop::General(self.leave_straight(burst, host, table, rule, done));
            }
        }
        match straight.end {
            End::Output(port) => Hop::Output(port),
            End::Nothing => Hop::Nothing,
            End::Table {
                table: next,
                resubmit,
            } => {
                self.at.table = table;
                self.at.cookie = rule.spec.cookie;
                self.resubmits += 1;
                self.resubmitted = resubmit;
                Hop::Table(next)
            }
        }
    }

    /// Goes on the general way from step `next` of a rule, which tries that step again and says what becomes of the packet.
    #[cold]
    fn leave_straight<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        table: u8,
        rule: &Rule,
        next: usize,
    ) -> Next {
        self.at = Position {
            steps: Steps::of(&rule.spec.ops.ops),
            next,
            table,
            cookie: rule.spec.cookie,
            depth: 0,
            level: 0,
            saved: None,
        };
        self.run(burst, host)
    }
}

/// What has been counted on one counter and not been added to it yet.
#[derive(Default)]
pub(super) struct Tally {
    on: Option<CounterId>,
    packets: u64,
    bytes: u64,
}

impl Tally {
    #[inline(always)]
    pub fn count(&mut self, burst: &Burst<'_, '_>, counter: CounterId, bytes: usize) {
        if self.on != Some(counter) {
            self.settle(burst);
            self.on = Some(counter);
        }
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    #[inline(always)]
    fn settle(&mut self, burst: &Burst<'_, '_>) {
        if let Some(counter) = self.on {
            (burst.counters).add(counter, self.packets, self.bytes, burst.now_ms);
        }
        *self = Tally::default();
    }
}

/// Packets on straight ways, between tables.
pub(super) struct Ahead<F> {
    /// Walks that wait for a table, by its number; each list is not empty.
    waiting: Vec<(u8, Vec<u16>)>,
    spare: Vec<Vec<u16>>,
    pub tally: Tally,
    /// Packets for one port that have not been sent yet.
    port: PortNo,
    frames: Vec<F>,
}

impl<F: Frame> Ahead<F> {
    pub fn new() -> Ahead<F> {
        Ahead {
            waiting: Vec::new(),
            spare: Vec::new(),
            tally: Tally::default(),
            port: 0,
            frames: Vec::new(),
        }
    }

    #[inline(always)]
    fn wait(&mut self, table: u8, index: u16) {
        // Most go where the one before went.
        let list = self.waiting.iter_mut().rev();
        if let Some((_, list)) = list.into_iter().find(|(wanted, _)| *wanted == table) {
            return list.push(index);
        }
        let mut list = self.spare.pop().unwrap_or_default();
        list.push(index);
        self.waiting.push((table, list));
    }

    /// The walks that wait for the lowest table.
    fn next(&mut self) -> Option<(u8, Vec<u16>)> {
        let tables = self.waiting.iter().enumerate();
        let (at, _) = tables.min_by_key(|(_, (table, _))| *table)?;
        Some(self.waiting.swap_remove(at))
    }

    /// Sends a packet, together with those for the same port that follow.
    #[inline(always)]
    pub fn send<H: Host<F>>(&mut self, way: Way, host: &mut H, port: PortNo, frame: F) {
        if self.port != port {
            self.flush(way, host);
            self.port = port;
        }
        self.frames.push(frame);
    }

    #[inline(always)]
    fn flush<H: Host<F>>(&mut self, way: Way, host: &mut H) {
        if !self.frames.is_empty() {
            host.output_burst(way.in_port, self.port, way.mirrored, &mut self.frames);
        }
    }
}

/// Asks for what carrying out rules reads beside what their lookup has read: first what their addresses tell, then their counters.
#[inline(always)]
fn prefetch_rules(burst: &Burst<'_, '_>, found: &[Option<&Rule>]) {
    for rule in found.iter().flatten() {
        prefetch(&rule.spec.counter);
        if let Some(straight) = &rule.straight {
            prefetch(straight.edits.0.as_ptr().cast::<Op>());
        }
    }
    for rule in found.iter().flatten() {
        burst.counters.prefetch(rule.spec.counter);
    }
}

/// How a burst's packets came in.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub in_port: PortNo,
    /// Mirrors that have had them.
    pub mirrored: u32,
}

impl<F: Frame> Engine<F> {
    /// A packet whose walk is ready has been looked up in `table`: does what can be done before its next lookup.
    #[inline(always)]
    pub(super) fn advance<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
        table: u8,
        index: usize,
        rule: Option<&Rule>,
    ) {
        let walk = &mut self.walks[index];
        host.looked_up(table, Some(&walk.key), rule);
        let next = match rule {
            None => Self::missed(walk, burst, host, table),
            Some(rule) => {
                let bytes = walk.frame.as_ref().map_or(0, Frame::len);
                (self.ahead.tally).count(burst, rule.spec.counter, bytes);
                match walk.hop(burst, host, table, rule) {
                    Hop::Table(next) => return self.ahead.wait(next, index as u16),
                    Hop::Output(port) => {
                        if let Some(frame) = walk.frame.take() {
                            self.ahead.send(way, host, port, frame);
                        }
                        return;
                    }
                    Hop::Nothing => {
                        walk.frame = None;
                        return host.dropped(DropReason::Action);
                    }
                    Hop::General(next) => next,
                }
            }
        };
        match next {
            Next::Done => {}
            Next::Lookup(table) => self.waiting.push((table, index as u16)),
            other => self.run_to_end(burst, host, index, other),
        }
    }

    /// Takes packets on straight ways to their ends, and sends and counts what has not been yet.
    #[inline]
    pub(super) fn drive_ahead<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        way: Way,
        host: &mut H,
    ) {
        while let Some((table, mut group)) = self.ahead.next() {
            let mut found = [None; LOOKUP_MAX];
            let walks = &self.walks;
            burst.bridge.lookup_burst(
                table,
                group.len(),
                |index| &walks[usize::from(group[index])].key,
                burst.guard,
                &mut found,
            );
            prefetch_rules(burst, &found[..group.len()]);
            for (index, rule) in group.iter().zip(found) {
                self.advance(burst, way, host, table, usize::from(*index), rule);
            }
            group.clear();
            self.ahead.spare.push(group);
        }
        self.ahead.tally.settle(burst);
        self.ahead.flush(way, host);
    }
}
