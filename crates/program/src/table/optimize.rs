//! Ways that are made of a bridge's rules ([`crate::exec`]'s `fused`), their writer's side.
//!
//! They are made from the rules of all tables as they stand in one epoch, which is held meanwhile,
//! in the background and when it is time to ([`super::pace`]). What hangs at a rule and still holds
//! is kept; what does not hold any more is taken down at the next look, and costs packets a
//! comparison until then.

use crate::Program;
use crate::classifier::tuple::Tuple;
use crate::counters::CounterId;
use crate::epoch::{Epoch, Reader};
use crate::optimizer::compile::{ALL_WAYS_MAX, Compiler, Made, Tables};
use crate::pace::Pace;
use crate::table::RuleRef;
use crate::table::writer::{BridgeWriter, TableWriter};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// A table with more rules is looked up always, and its rules have no ways.
const RULES_MAX: usize = 65_536;
/// Most rules of all tables that are looked at.
const ALL_RULES_MAX: usize = 262_144;

/// The writer's side.
#[derive(Default)]
pub(crate) struct Fusing {
    making: Option<Receiver<Ready>>,
    /// Rules at which ways hang.
    fused: HashSet<RuleRef>,
    /// Changes since the last making began.
    changed: usize,
    /// Changes since ways that do not hold were last taken down.
    unswept: usize,
    left_out: usize,
    pace: Pace,
}

/// Ways of a bridge's rules, as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FusedReport {
    /// Rules that have ways.
    pub rules: usize,
    /// Ways of all of them.
    pub ways: usize,
    /// Most ways that there may be.
    pub ways_max: usize,
    /// Memory of them, in bytes, without counters.
    pub bytes: usize,
    /// Packets that have taken them; those of ways that are gone are not counted any more.
    pub packets: u64,
    /// Rules that have none for want of room or time.
    pub left_out: usize,
}

/// The rules of one table.
enum Listed {
    Opaque,
    List(Vec<RuleRef>),
    Tuples(Vec<Arc<Tuple>>),
}

/// What ways are made from.
struct Snapshot {
    program: Arc<Program>,
    tables: Vec<(u8, Listed)>,
    counters: BTreeMap<u8, CounterId>,
    reader: Reader,
    from: Epoch,
    room: usize,
    /// Rules that have ways which hold.
    kept: HashSet<RuleRef>,
}

/// What has been made.
struct Ready {
    made: Vec<(RuleRef, Made)>,
    left_out: usize,
    took: Duration,
    /// Keeps the rules until their ways hang.
    _reader: Reader,
}

impl Snapshot {
    fn make(self) -> Ready {
        let begun = Instant::now();
        let mut made = Vec::new();
        let (mut left_out, mut all) = (0, 0);
        let mut tables = Tables::default();
        for (table, listed) in &self.tables {
            let rules = listed.rules(self.from, RULES_MAX.min(ALL_RULES_MAX - all));
            match rules {
                Some(rules) => {
                    all += rules.len();
                    // SAFETY: the reader holds the epoch in which these rules were seen, and they
                    // are not followed after it has gone.
                    let rules = rules.iter().map(|rule| unsafe { rule.0.as_ref() });
                    tables.list(*table, rules);
                }
                None => tables.opaque(*table),
            }
        }
        let lookups = |table: u8| self.counters.get(&table).copied();
        let mut compiler = Compiler::new(tables, &self.program, &lookups, self.from, self.room);
        compiler.make(
            |rule| self.kept.contains(&RuleRef(rule.into())),
            |rule, ways| made.push((RuleRef(rule.into()), ways)),
        );
        left_out += compiler.left_out;
        Ready {
            made,
            left_out,
            took: begun.elapsed(),
            _reader: self.reader,
        }
    }
}

impl Listed {
    /// Those in force in `epoch`; None where they are other than ordinary ones, or more than
    /// `limit`.
    fn rules(&self, epoch: Epoch, limit: usize) -> Option<Vec<RuleRef>> {
        let mut rules = Vec::new();
        match self {
            Listed::Opaque => return None,
            Listed::List(list) => rules.extend(list),
            Listed::Tuples(tuples) => {
                for tuple in tuples {
                    tuple.each_chain(|chain| {
                        if rules.len() <= limit {
                            rules.extend(chain.map(|rule| RuleRef(rule.into())));
                        }
                    });
                }
            }
        }
        // Also those that have ended: what was gathered may not be all otherwise.
        if rules.len() > limit {
            return None;
        }
        rules.retain(|rule| rule.rule().holds_in(epoch));
        Some(rules)
    }
}

impl Fusing {
    /// Notes that a rule comes or goes.
    pub fn changes(&mut self) {
        self.changed += 1;
        self.unswept += 1;
    }

    /// A rule is unlinked; its ways go with it.
    pub fn unlink(&mut self, rule: RuleRef) {
        if rule.rule().fused().is_some() {
            self.fused.remove(&rule);
        }
    }

    pub fn is_busy(&self) -> bool {
        self.making.is_some() || self.changed > 0
    }
}

impl BridgeWriter {
    /// Hangs ways that have been made at their rules, and takes down those that do not hold any
    /// more.
    pub(crate) fn settle_fused(&mut self) {
        match self.fusing.making.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(ready)) => self.hang(ready),
            Some(Err(TryRecvError::Disconnected)) => self.fusing.making = None,
        }
        if std::mem::take(&mut self.fusing.unswept) > 0 {
            self.sweep();
        }
    }

    /// Begins to make ways in the background, where it is time to; true while some are being made
    /// or wanted.
    pub(crate) fn begin_fused(&mut self, now: Instant) -> bool {
        let fusing = &mut self.fusing;
        if self.tables.len() < 2 {
            // There is nothing behind a rule.
            fusing.changed = 0;
        }
        if fusing.making.is_none() && fusing.changed > 0 && fusing.pace.is_time(fusing.changed, now)
        {
            let program = Arc::clone(&self.bridge.program);
            if let Some(snapshot) = self.snapshot() {
                let (sender, receiver) = channel();
                let job = Box::new(move || drop(sender.send(snapshot.make())));
                if program.background.run(job) {
                    self.fusing.making = Some(receiver);
                    self.fusing.pace.begun(now);
                    self.fusing.changed = 0;
                } else {
                    self.fusing.pace.refused(now);
                }
            }
        }
        self.fusing.is_busy()
    }

    /// Makes ways at once, on this thread.
    pub(crate) fn fuse_now(&mut self) {
        if let Some(making) = self.fusing.making.take()
            && let Ok(ready) = making.recv()
        {
            self.hang(ready);
        }
        self.sweep();
        self.fusing.changed = 0;
        if let Some(snapshot) = self.snapshot() {
            self.hang(snapshot.make());
        }
    }

    /// What ways are to be made from; None when all readers' slots are taken.
    fn snapshot(&mut self) -> Option<Snapshot> {
        let program = Arc::clone(&self.bridge.program);
        let mut reader = program.domain.reader()?;
        let guard = reader.begin();
        let from = guard.epoch();
        guard.keep(from);
        reader.offline();
        let listed = |table: &u8, writer: &TableWriter| match writer {
            _ if self.soft.contains_key(table) || writer.len() > RULES_MAX => Listed::Opaque,
            TableWriter::Linear { rules, .. } => Listed::List(rules.clone()),
            TableWriter::Many(policy) => Listed::Tuples(policy.shared()),
        };
        let tables = self.tables.iter();
        let tables = tables.map(|(table, writer)| (*table, listed(table, writer)));
        let soft = self.soft.keys().map(|table| (*table, Listed::Opaque));
        let tables: Vec<_> = soft.chain(tables).collect();
        // Tables without rules may count as well.
        let counters = (0..=u8::MAX).filter_map(|table| {
            let counter = self.bridge.lookup_counter(table)?;
            Some((table, counter))
        });
        let fused = self.fusing.fused.iter();
        let fused = fused.filter_map(|rule| Some((*rule, rule.rule().fused()?)));
        let ways: usize = fused.clone().map(|(_, fused)| fused.len()).sum();
        let next = program.domain.next();
        let kept = fused.filter(|(_, fused)| !fused.may_grow(&self.bridge.unwildcarded, next));
        Some(Snapshot {
            counters: counters.collect(),
            tables,
            program: Arc::clone(&program),
            reader,
            from,
            room: ALL_WAYS_MAX.saturating_sub(ways),
            kept: kept.map(|(rule, _)| rule).collect(),
        })
    }

    fn hang(&mut self, ready: Ready) {
        self.fusing.making = None;
        self.fusing.pace.done(ready.took);
        self.fusing.left_out = ready.left_out;
        let program = Arc::clone(&self.bridge.program);
        for (rule, made) in ready.made {
            let next = program.domain.next();
            if rule.rule().removed() <= next
                || !made.fused.is_made_from(&self.bridge.unwildcarded, next)
            {
                continue;
            }
            let before = rule.rule().fused();
            if before.is_some_and(|before| {
                before.is_made_from(&self.bridge.unwildcarded, next) && before.is_like(&made.fused)
            }) {
                continue;
            }
            made.share(&program.counters);
            if let Some(before) = rule.rule().hang(Some(made.fused)) {
                program.domain.retire(before);
            }
            self.fusing.fused.insert(rule);
        }
    }

    /// Takes ways down that do not hold any more.
    fn sweep(&mut self) {
        let (program, bridge) = (&self.bridge.program, &self.bridge);
        let next = program.domain.next();
        self.fusing.fused.retain(|rule| {
            let fused = rule.rule().fused();
            let holds = fused.is_some_and(|fused| fused.is_made_from(&bridge.unwildcarded, next));
            if !holds && let Some(before) = rule.rule().hang(None) {
                program.domain.retire(before);
            }
            holds
        });
    }

    /// What has been made of rules and those behind them.
    pub fn fused_report(&self) -> FusedReport {
        let mut report = FusedReport {
            rules: self.fusing.fused.len(),
            ways_max: ALL_WAYS_MAX,
            left_out: self.fusing.left_out,
            ..FusedReport::default()
        };
        let fused = self.fusing.fused.iter();
        for fused in fused.filter_map(|rule| rule.rule().fused()) {
            report.ways += fused.len();
            report.bytes += fused.bytes();
            report.packets += fused.packets(&self.bridge.program.counters);
        }
        report
    }
}
