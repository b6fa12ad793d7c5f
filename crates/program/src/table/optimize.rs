//! The writer's side of fused paths (`rule::fused`).
//!
//! They are compiled from the rules of all tables as of one epoch, which is held meanwhile, in the
//! background and at the pace of [`crate::pace`]. Paths at a rule that still hold are kept; those
//! that do not are removed at the next check, and cost packets a comparison until then.
//!
//! Each rule that comes or goes is compared with what packets meet on the paths through its table,
//! as long as there is time for that ([`Looks`]): so a table in which addresses are learned does
//! not cost the paths of all others' packets.

use crate::Program;
use crate::classifier::tuple::Tuple;
use crate::counters::CounterId;
use crate::epoch::{Epoch, Reader};
use crate::optimizer::compile::{ALL_WAYS_MAX, Compiler, Made, Tables};
use crate::optimizer::unwildcarded::{TableSet, Unwildcarded, has_table};
use crate::pace::Pace;
use crate::rule::fused::{Change, FusedPaths};
use crate::table::RuleRef;
use crate::table::writer::{BridgeWriter, TableWriter};
use packet::Match;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// A table with more rules is always looked up, and its rules get no paths.
const RULES_MAX: usize = 65_536;
/// Most rules of all tables that are considered.
const ALL_RULES_MAX: usize = 262_144;

/// Longest time for which changes are compared with paths at a stretch, and which share of
/// control's time it may be: one in so much.
const LOOKS_MAX: Duration = Duration::from_millis(2);
const LOOKS_SHARE: u32 = 20;
/// Most comparisons of changes with what a compilation has made.
const HUNG_LOOKS: usize = 100_000;
/// Most changes while a compilation runs that are kept.
const MEANWHILE_MAX: usize = 256;

/// A [`Change`] that is kept.
type Kept = (u8, Option<(u32, Match)>);

/// The writer's state of fused paths.
#[derive(Default)]
pub(crate) struct Fusing {
    making: Option<Receiver<Ready>>,
    /// Rules with fused paths.
    fused: HashSet<RuleRef>,
    /// Changes since the last compilation began.
    changed: usize,
    /// Changes while a compilation runs, each with its table, with which what it makes is compared;
    /// None where they were too many, so that every change of a table counts.
    meanwhile: Option<Vec<Kept>>,
    looks: Looks,
    /// The tables that some path passes, and perhaps more.
    passed: TableSet,
    /// Changes since paths that do not hold were last removed.
    unswept: usize,
    left_out: usize,
    pace: Pace,
}

/// For how long changes may still be compared with paths.
struct Looks {
    left: Duration,
    since: Instant,
}

impl Default for Looks {
    fn default() -> Self {
        Looks {
            left: LOOKS_MAX,
            since: Instant::now(),
        }
    }
}

impl Looks {
    /// Begins one if there is time for it; its end is to be told by [`Looks::end`]. One may take
    /// longer than what is left, which the next ones wait for.
    fn begin(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let more = now.saturating_duration_since(self.since) / LOOKS_SHARE;
        self.left = (self.left + more).min(LOOKS_MAX);
        self.since = now;
        (!self.left.is_zero()).then_some(now)
    }

    fn end(&mut self, begun: Instant) {
        let now = Instant::now();
        self.left = self
            .left
            .saturating_sub(now.saturating_duration_since(begun));
        self.since = now;
    }
}

/// Figures of a bridge's fused paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FusedReport {
    /// Number of rules that have paths.
    pub rules: usize,
    /// Number of paths.
    pub ways: usize,
    /// Most paths that there may be.
    pub ways_max: usize,
    /// Their memory in bytes, without counters.
    pub bytes: usize,
    /// Packets that have taken them; those of removed paths no longer count.
    pub packets: u64,
    /// Number of rules that have none for lack of room or time.
    pub left_out: usize,
}

/// The rules of one table.
enum Listed {
    Opaque,
    List(Vec<RuleRef>),
    Tuples(Vec<Arc<Tuple>>),
}

/// The rules from which paths are compiled.
struct Snapshot {
    program: Arc<Program>,
    tables: Vec<(u8, Listed)>,
    counters: BTreeMap<u8, CounterId>,
    reader: Reader,
    from: Epoch,
    room: usize,
    /// Rules whose paths still hold.
    kept: HashSet<RuleRef>,
}

/// The result of a compilation.
struct Ready {
    made: Vec<(RuleRef, Made)>,
    left_out: usize,
    took: Duration,
    /// Keeps the rules from being freed until the paths are attached.
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
    /// Returns the rules in force in `epoch`; None where some are soft, or more than `limit`.
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
        // Includes those that have ended, because the collection may be incomplete otherwise.
        if rules.len() > limit {
            return None;
        }
        rules.retain(|rule| rule.rule().holds_in(epoch));
        Some(rules)
    }
}

impl Fusing {
    /// Records that a rule comes or goes with `epoch`.
    pub fn rule_changes(
        &mut self,
        unwildcarded: &Unwildcarded,
        table: u8,
        rule: RuleRef,
        epoch: Epoch,
    ) {
        let spec = &rule.rule().spec;
        // What soft rules do depends on others.
        let rule = (!rule.is_soft()).then_some((spec.priority, &spec.matching));
        self.change(unwildcarded, Change { table, rule }, epoch);
    }

    /// Records that a table is another one from `epoch` on, so that no path through it holds.
    pub fn table_changes(&mut self, unwildcarded: &Unwildcarded, table: u8, epoch: Epoch) {
        self.change(unwildcarded, Change { table, rule: None }, epoch);
    }

    fn change(&mut self, unwildcarded: &Unwildcarded, change: Change<'_>, epoch: Epoch) {
        self.changed += 1;
        self.unswept += 1;
        if self.making.is_some()
            && let Some(meanwhile) = &mut self.meanwhile
        {
            if meanwhile.len() < MEANWHILE_MAX {
                let rule = change.rule.map(|(priority, rule)| (priority, rule.clone()));
                meanwhile.push((change.table, rule));
            } else {
                self.meanwhile = None;
            }
        }
        if !has_table(&self.passed, change.table) {
            return;
        }
        let Some(begun) = self.looks.begin() else {
            unwildcarded.paths.record(change.table, epoch);
            return;
        };
        let paths = self.fused.iter().filter_map(|rule| rule.rule().fused());
        for paths in paths.filter(|paths| !paths.outlasts(change)) {
            paths.end_in(epoch);
        }
        self.looks.end(begun);
    }

    /// Removes the paths of a rule that is unlinked.
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
    /// Attaches finished paths to their rules, and removes those that do not hold any more.
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

    /// Starts compiling in the background, if it is time to; returns true while a compilation runs
    /// or is wanted.
    pub(crate) fn begin_fused(&mut self, now: Instant) -> bool {
        let fusing = &mut self.fusing;
        if self.tables.len() < 2 {
            // There is nothing behind a rule of a single table.
            fusing.changed = 0;
        }
        let program = Arc::clone(&self.bridge.program);
        // What has been changed for a later epoch would not be in the snapshot, and nothing would
        // ask for another one when it is published.
        let is_published = self.bridge.unwildcarded.rules.last() <= program.domain.current();
        if fusing.making.is_none()
            && fusing.changed > 0
            && is_published
            && fusing.pace.is_time(fusing.changed, now)
            && let Some(snapshot) = self.snapshot()
        {
            let last = self.bridge.unwildcarded.rules.last();
            let (from, (sender, receiver)) = (snapshot.from, channel());
            let job = Box::new(move || drop(sender.send(snapshot.make())));
            if program.background.run(job) {
                self.fusing.making = Some(receiver);
                // What has been changed for a later epoch is not in the snapshot.
                self.fusing.meanwhile = (last <= from).then(Vec::new);
                self.fusing.pace.begun(now);
                self.fusing.changed = 0;
            } else {
                self.fusing.pace.refused(now);
            }
        }
        self.fusing.is_busy()
    }

    /// Compiles at once, on this thread.
    pub(crate) fn fuse_now(&mut self) {
        if let Some(making) = self.fusing.making.take()
            && let Ok(ready) = making.recv()
        {
            self.hang(ready);
        }
        self.sweep();
        self.fusing.changed = 0;
        if let Some(snapshot) = self.snapshot() {
            self.fusing.meanwhile = None;
            self.hang(snapshot.make());
        }
    }

    /// Collects the rules; None when all reader slots are taken.
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
        let unwildcarded = &self.bridge.unwildcarded;
        let kept = fused.filter(|(_, fused)| {
            fused.holds_in(unwildcarded, next.max(fused.from))
                && !fused.may_grow(unwildcarded, next)
        });
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
        let meanwhile = self.fusing.meanwhile.take();
        let unwildcarded = &self.bridge.unwildcarded;
        let few = |changes: &&Vec<Kept>| changes.len() * ready.made.len() <= HUNG_LOOKS;
        let changes = meanwhile.as_ref().filter(few);
        let is_made_of_present_rules = |paths: &FusedPaths, next: Epoch| match changes {
            Some(changes) => changes.iter().all(|(table, rule)| {
                let rule = rule.as_ref().map(|(priority, rule)| (*priority, rule));
                paths.outlasts(Change {
                    table: *table,
                    rule,
                })
            }),
            None => unwildcarded
                .rules
                .unchanged(&paths.tables, paths.from, next),
        };
        for (rule, made) in ready.made {
            let next = program.domain.next().max(made.fused.from);
            if rule.rule().removed() <= next
                || !made.fused.holds_in(unwildcarded, next)
                || !is_made_of_present_rules(&made.fused, next)
            {
                continue;
            }
            let before = rule.rule().fused();
            if before.is_some_and(|before| {
                before.holds_in(unwildcarded, next) && before.is_like(&made.fused)
            }) {
                continue;
            }
            made.share(&program.counters);
            for (passed, tables) in self.fusing.passed.iter_mut().zip(made.fused.tables) {
                *passed |= tables;
            }
            if let Some(before) = rule.rule().hang(Some(made.fused)) {
                program.domain.retire(before);
            }
            self.fusing.fused.insert(rule);
        }
    }

    /// Removes paths that do not hold any more.
    fn sweep(&mut self) {
        let (program, bridge) = (&self.bridge.program, &self.bridge);
        let next = program.domain.next();
        let mut passed = TableSet::default();
        self.fusing.fused.retain(|rule| {
            let fused = rule.rule().fused();
            let holds = fused.is_some_and(|fused| fused.holds_in(&bridge.unwildcarded, next));
            match fused {
                Some(fused) if holds => {
                    for (passed, tables) in passed.iter_mut().zip(fused.tables) {
                        *passed |= tables;
                    }
                }
                _ => {
                    if let Some(before) = rule.rule().hang(None) {
                        program.domain.retire(before);
                    }
                }
            }
            holds
        });
        self.fusing.passed = passed;
    }

    /// Returns figures of the fused paths.
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
