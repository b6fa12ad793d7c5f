//! The one writer of a bridge's tables.

use super::policy::TablePolicy;
use super::{Bridge, Miss, NO_COUNTER, RuleRef, TABLES};
use super::{learning, optimize};
use crate::Program;
use crate::classifier::conjunction::Conjunctive;
use crate::classifier::conjunction::SoftWriter;
use crate::classifier::linear::{LINEAR_MAX, Linear, LinearEntry};
use crate::classifier::tuple::MaskedWord;
use crate::classifier::{Classifier, Published};
use crate::counters::CounterId;
use crate::epoch::{Epoch, NEVER};
use crate::rule::{Rule, RuleSlab, RuleSpec};
use packet::Match;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The writer's state of a table: all linked rules, including those that are marked as gone.
pub(crate) enum TableWriter {
    /// By precedence, highest first. `since`: the first epoch in which no reader reaches the tuples
    /// in which these rules were chained before, once that is known; until all have passed it, the
    /// chains must stay as they are.
    Linear {
        rules: Vec<RuleRef>,
        since: Option<Epoch>,
    },
    /// By mask; with trees, a trie or an exact table where they are faster.
    Many(Box<TablePolicy>),
}

/// Returns whether a table's lookups use an exact table: only the first table's, and only without
/// soft rules.
pub(crate) fn asks_exact(table: u8, soft: &BTreeMap<u8, SoftWriter>) -> bool {
    table == 0 && !soft.contains_key(&table)
}

impl Default for TableWriter {
    fn default() -> Self {
        TableWriter::Linear {
            rules: Vec::new(),
            since: Some(0),
        }
    }
}

/// Returns whether a reader may still follow the chains of rules that have been a list since the
/// epoch `since`.
pub(crate) fn chains_in_use(program: &Program, since: Option<Epoch>) -> bool {
    since.is_none_or(|epoch| epoch > program.domain.current() || !program.domain.unread(epoch))
}

impl TableWriter {
    pub(crate) fn len(&self) -> usize {
        match self {
            TableWriter::Linear { rules, .. } => rules.len(),
            TableWriter::Many(policy) => policy.len(),
        }
    }

    /// Links a rule; returns true when the published classifier must be replaced.
    pub(crate) fn link(&mut self, program: &Program, rule: RuleRef) -> bool {
        match self {
            TableWriter::Linear { rules, since }
                if rules.len() < LINEAR_MAX || chains_in_use(program, *since) =>
            {
                let spec = &rule.rule().spec;
                let from =
                    rules.partition_point(|other| other.rule().spec.priority > spec.priority);
                let same = |other: &&RuleRef| other.rule().spec.priority == spec.priority;
                let peers = rules[from..].iter().take_while(same).count();
                // Behind its last version, so that packets find a rule in one place while it is
                // replaced (`linear::versions`).
                let version = |other: &RuleRef| other.rule().spec.matching == spec.matching;
                let version = rules[from..from + peers].iter().rposition(version);
                rules.insert(from + version.map_or(peers, |at| at + 1), rule);
                true
            }
            TableWriter::Linear { rules, .. } => {
                rules.push(rule);
                self.turn_into_tuples(program);
                true
            }
            TableWriter::Many(policy) => policy.link(program, rule),
        }
    }

    pub(crate) fn turn_into_tuples(&mut self, program: &Program) {
        let all = self.rules();
        *self = TableWriter::Many(Box::default());
        for rule in all {
            self.link(program, rule);
        }
    }

    /// Converts a list that grew too long while its rules' chains were in use to tuples, once they
    /// are not; returns true when it did.
    pub(crate) fn grow(&mut self, program: &Program) -> bool {
        let due = matches!(self, TableWriter::Linear { rules, since }
            if rules.len() > LINEAR_MAX && !chains_in_use(program, *since));
        if due {
            self.turn_into_tuples(program);
        }
        due
    }

    /// Unlinks a rule; returns true when the published classifier must be replaced.
    pub(crate) fn unlink(&mut self, program: &Program, rule: RuleRef) -> bool {
        match self {
            TableWriter::Linear { rules, .. } => {
                rules.retain(|other| *other != rule);
                true
            }
            TableWriter::Many(policy) => {
                let lowered = policy.unlink(program, rule);
                if policy.len() <= LINEAR_AGAIN {
                    let mut all = policy.rules();
                    all.sort_by_key(|rule| std::cmp::Reverse(rule.rule().spec.priority));
                    *self = TableWriter::Linear {
                        rules: all,
                        since: None,
                    };
                    return true;
                }
                lowered
            }
        }
    }

    pub(crate) fn classifier(&self) -> Classifier {
        match self {
            TableWriter::Linear { rules, .. } => Linear(
                rules
                    .iter()
                    .map(|rule| LinearEntry {
                        words: rule
                            .rule()
                            .spec
                            .matching
                            .words()
                            .iter()
                            .map(MaskedWord::from)
                            .collect(),
                        rule: rule.0,
                    })
                    .collect(),
            )
            .into(),
            TableWriter::Many(policy) => policy.classifier(),
        }
    }

    pub(crate) fn rules(&self) -> Vec<RuleRef> {
        match self {
            TableWriter::Linear { rules, .. } => rules.clone(),
            TableWriter::Many(policy) => policy.rules(),
        }
    }
}

/// The one writer of a bridge's tables.
///
/// Order of use: any number of `insert`, `remove`, `set_miss`; then [`BridgeWriter::commit`]; then
/// one `domain.publish()` for all bridges. Changes hold from `domain.next()` as it was when they
/// were made.
pub struct BridgeWriter {
    pub(crate) bridge: Arc<Bridge>,
    pub(crate) tables: BTreeMap<u8, TableWriter>,
    /// Soft rules of the tables that have any.
    pub(crate) soft: BTreeMap<u8, SoftWriter>,
    pub(crate) dirty: WordSetOf256,
    /// Rules marked as gone, in the order in which they were let go; one that waits for its epoch
    /// also delays those behind it.
    pub(crate) gone: VecDeque<(Epoch, u8, RuleRef)>,
    /// Number of rules added to `gone` since the last commit.
    pub(crate) removed: usize,
    /// Fused paths of rules.
    pub(crate) fusing: optimize::Fusing,
    /// The reserved epoch that changes carry.
    pub(crate) reserved: Option<Epoch>,
    /// Graph of where rules lead.
    pub(crate) reach: learning::Reach,
}

/// A set of table numbers.
#[derive(Default)]
pub(crate) struct WordSetOf256(pub(crate) [u64; 4]);

impl WordSetOf256 {
    pub(crate) fn insert(&mut self, table: u8) {
        self.0[usize::from(table) / 64] |= 1 << (table % 64);
    }
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = u8> + use<> {
        let taken = std::mem::take(&mut self.0);
        (0..=255_u8).filter(move |table| taken[usize::from(*table) / 64] >> (table % 64) & 1 == 1)
    }
}

impl BridgeWriter {
    /// Creates the writer of `bridge`; create one only.
    pub fn new(bridge: Arc<Bridge>) -> BridgeWriter {
        BridgeWriter {
            bridge,
            tables: BTreeMap::new(),
            soft: BTreeMap::new(),
            dirty: WordSetOf256::default(),
            gone: VecDeque::new(),
            removed: 0,
            fusing: optimize::Fusing::default(),
            reserved: None,
            reach: learning::Reach::default(),
        }
    }

    /// Makes later changes carry this epoch, which is reserved ([`crate::epoch::Domain::reserve`]);
    /// None for the domain's next one, the default.
    pub fn change_in(&mut self, reserved: Option<Epoch>) {
        self.reserved = reserved;
    }

    /// Returns the epoch that changes carry.
    pub(crate) fn epoch(&self) -> Epoch {
        self.reserved
            .unwrap_or_else(|| self.bridge.program.domain.next())
    }

    /// Returns the bridge whose tables it writes.
    pub fn bridge(&self) -> &Arc<Bridge> {
        &self.bridge
    }

    /// Adds a rule that holds from the domain's next epoch on, or the reserved one. `table` is
    /// below [`TABLES`].
    pub fn insert(&mut self, table: u8, spec: RuleSpec) -> RuleRef {
        assert!(usize::from(table) < TABLES);
        let words = spec.matching.word_set().union(spec.ops.words());
        self.bridge.need(words);
        let epoch = self.epoch();
        self.bridge.unwildcarded.rule_comes(table, &spec, epoch);
        if spec.ops.writes_set() && !self.bridge.writes_sets() {
            self.bridge.writes_sets.store(true, Ordering::Relaxed);
        }
        if spec.ops.goes_on() && !self.bridge.goes_on.load(Ordering::Relaxed) {
            self.bridge.goes_on.store(true, Ordering::Relaxed);
        }
        if spec.ops.may_tell() {
            self.bridge.begin_to_tell();
        }
        self.ensure_counter(table);
        self.reach.rule_comes(&self.bridge.learning, table, &spec);
        if spec.ops.changes() {
            let written = spec.ops.written();
            self.bridge.written.fetch_or(written.0, Ordering::Release);
        }
        let program = &*self.bridge.program;
        let rule = RuleRef(RuleSlab::alloc(Rule::new(spec, epoch)));
        program.rules.linked.fetch_add(1, Ordering::Relaxed);
        self.fusing
            .rule_changes(&self.bridge.unwildcarded, table, rule, epoch);
        let renewed = if rule.is_soft() {
            self.soft.entry(table).or_default().link(program, rule)
        } else {
            self.tables.entry(table).or_default().link(program, rule)
        };
        if renewed {
            self.dirty.insert(table);
        }
        rule
    }

    /// Ensures that a table counts its lookups; returns whether it has not until now.
    pub(crate) fn ensure_counter(&self, table: u8) -> bool {
        let slot = &self.bridge.slots[usize::from(table)];
        if slot.counter.load(Ordering::Relaxed) == NO_COUNTER
            && let Some(counter) = self.bridge.program.counters.allocate()
        {
            slot.counter.store(counter.0, Ordering::Release);
            return true;
        }
        false
    }

    /// Prefetches what inserting a rule with this match will read.
    pub fn expect(&self, table: u8, matching: &Match) {
        if let Some(TableWriter::Many(policy)) = self.tables.get(&table) {
            policy.expect(matching);
        }
    }

    /// Ends a rule with the domain's next epoch, or the reserved one. The caller keeps its counter,
    /// to pass to [`BridgeWriter::release_counter`], or to another rule.
    pub fn remove(&mut self, table: u8, rule: RuleRef) {
        self.end(table, rule);
        self.let_go(table, rule);
    }

    /// Does the first part of [`BridgeWriter::remove`]: the rule ends, but stays in memory for as
    /// long as its owner looks at it, until [`BridgeWriter::let_go`].
    pub fn end(&mut self, table: u8, rule: RuleRef) {
        let epoch = self.epoch();
        debug_assert_eq!(rule.rule().removed(), NEVER, "removed twice");
        rule.rule().remove_in(epoch);
        if let Some(TableWriter::Many(policy)) = self.tables.get_mut(&table) {
            policy.removed(rule);
        }
        self.bridge.unwildcarded.rules.record(table, epoch);
        self.fusing
            .rule_changes(&self.bridge.unwildcarded, table, rule, epoch);
    }

    /// Does the second part of [`BridgeWriter::remove`]: the rule may be unlinked and freed once no
    /// worker can see it. To be called once for each rule that has ended.
    pub fn let_go(&mut self, table: u8, rule: RuleRef) {
        let epoch = rule.rule().removed();
        debug_assert_ne!(epoch, NEVER, "has not ended");
        if rule.rule().added < epoch {
            self.removed += 1;
            self.gone.push_back((epoch, table, rule));
        } else {
            // It has never been published, so no reader needs to find it.
            self.take_out(table, rule);
        }
    }

    /// Unlinks a rule that no reader needs, and retires it.
    pub(crate) fn take_out(&mut self, table: u8, rule: RuleRef) {
        self.unlink(table, rule);
        let linked = &self.bridge.program.rules.linked;
        linked.fetch_sub(1, Ordering::Relaxed);
        let spec = &rule.rule().spec;
        self.reach.rule_goes(&self.bridge.learning, table, spec);
        // SAFETY: allocated in `insert`, unlinked just now; the classifier that may still name it
        // was made before, and is retired by `commit` no earlier than this rule, so both go after
        // the same grace period.
        let garbage = Box::new(unsafe { RuleSlab::take_back(rule.0) });
        self.bridge.program.domain.retire(garbage);
    }

    /// Unlinks up to `limit` rules that no reader needs any more, and stops after about `time`;
    /// returns how many.
    pub(crate) fn unlink_gone(&mut self, limit: usize, time: Duration) -> usize {
        let program = Arc::clone(&self.bridge.program);
        let mut unlinked = 0;
        let mut passed = 0;
        let begun = Instant::now();
        while unlinked < limit {
            // A short prefix takes long to leave a large trie.
            if unlinked > 0 && unlinked.is_multiple_of(16) && begun.elapsed() > time {
                break;
            }
            let Some((epoch, _, _)) = self.gone.front() else {
                break;
            };
            if *epoch > passed {
                if *epoch > program.domain.current() || !program.domain.quiet(*epoch) {
                    break;
                }
                passed = *epoch;
            }
            let Some((_, table, rule)) = self.gone.pop_front() else {
                break;
            };
            self.take_out(table, rule);
            unlinked += 1;
        }
        unlinked
    }

    /// Frees a counter once no worker can count on it.
    pub fn release_counter(&self, counter: CounterId) {
        struct Release(Arc<Program>, CounterId);
        impl Drop for Release {
            fn drop(&mut self) {
                self.0.counters.free(self.1);
            }
        }
        // Two grace periods: the rule that counts here is itself unlinked one period after it ends.
        struct Later(Option<Release>);
        impl Drop for Later {
            fn drop(&mut self) {
                if let Some(release) = self.0.take() {
                    let domain = Arc::clone(&release.0.domain);
                    domain.retire(Box::new(release));
                }
            }
        }
        let release = Release(Arc::clone(&self.bridge.program), counter);
        self.bridge
            .program
            .domain
            .retire(Box::new(Later(Some(release))));
    }

    /// Sets what becomes of packets that match no rule of `table`; takes effect at once, not by
    /// epoch.
    pub fn set_miss(&mut self, table: u8, miss: Miss) {
        // Before packets can go on, or to a controller.
        self.bridge.learning.miss_changes(miss == Miss::Next);
        if miss != Miss::Drop {
            self.bridge.begin_to_tell();
        }
        self.bridge.slots[usize::from(table)]
            .miss
            .store(miss as u8, Ordering::Relaxed);
        self.bridge.unwildcarded.all_changes();
        if miss == Miss::Next {
            self.bridge.misses_go_on.store(true, Ordering::Relaxed);
        }
        if self.ensure_counter(table) {
            // Fused paths through this table do not count its lookups.
            let next = self.bridge.program.domain.next();
            self.bridge.unwildcarded.rules.record(table, next);
            self.fusing
                .table_changes(&self.bridge.unwildcarded, table, next);
        }
    }

    /// Prepares lookups for the rules that were inserted. Must be called before publishing.
    pub fn commit(&mut self) {
        // Lookups must skip replaced rules that are still linked, so unlink these as fast as they
        // come, where readers permit.
        let limit = 2 * std::mem::take(&mut self.removed) + UNLINKED_BY_COMMIT;
        self.unlink_gone(limit, COMMIT_TIME);
        self.renew();
        let goes_on = self.bridge.misses_go_on.load(Ordering::Relaxed);
        self.reach.tell(&self.bridge.learning, goes_on);
    }

    /// Publishes the classifiers of tables that need another one.
    pub(crate) fn renew(&mut self) {
        for table in self.dirty.drain() {
            if let Some(TableWriter::Linear {
                since: since @ None,
                ..
            }) = self.tables.get_mut(&table)
            {
                *since = Some(self.bridge.program.domain.next());
            }
            let shape = self
                .classifier(table)
                .map_or(std::ptr::null_mut(), |classifier| {
                    Box::into_raw(Box::new(Published::new(table, classifier)))
                });
            let old = self.bridge.slots[usize::from(table)]
                .shape
                .swap(shape, Ordering::AcqRel);
            if !old.is_null() {
                // SAFETY: made by `Box::into_raw` here, and unlinked by the swap; `retire` waits
                // for readers.
                self.bridge
                    .program
                    .domain
                    .retire(unsafe { Box::from_raw(old) });
            }
        }
    }

    /// Returns a table's classifier for its current rules; None for an empty table.
    pub(crate) fn classifier(&self, table: u8) -> Option<Classifier> {
        let ordinary = self.tables.get(&table).filter(|writer| writer.len() != 0);
        let ordinary = ordinary.map(TableWriter::classifier);
        match self.soft.get(&table) {
            None => ordinary,
            Some(soft) => Some(
                Conjunctive {
                    ordinary: ordinary.map(Box::new),
                    soft: soft.entries(),
                }
                .into(),
            ),
        }
    }

    /// Unlinks a rule from its table.
    pub(crate) fn unlink(&mut self, table: u8, rule: RuleRef) {
        self.fusing.unlink(rule);
        let renewed = if !rule.is_soft() {
            self.tables
                .get_mut(&table)
                .is_some_and(|writer| writer.unlink(&self.bridge.program, rule))
        } else if let Some(soft) = self.soft.get_mut(&table) {
            let renewed = soft.unlink(rule);
            if soft.is_empty() {
                self.soft.remove(&table);
            }
            renewed
        } else {
            false
        };
        if renewed {
            self.dirty.insert(table);
        }
    }

    /// Unlinks and frees what no worker can see any more, up to `limit` rules and, where there is a
    /// limit, for two milliseconds; returns how many it unlinked. Gives tables the classifiers for
    /// which they had to wait. Commits.
    pub fn housekeep(&mut self, limit: usize) -> usize {
        let time = match limit {
            usize::MAX => Duration::MAX,
            _ => UNLINKING_TIME,
        };
        let unlinked = self.unlink_gone(limit, time);
        let program = Arc::clone(&self.bridge.program);
        for (table, writer) in &mut self.tables {
            if writer.grow(&program) {
                self.dirty.insert(*table);
            }
        }
        self.settle();
        unlinked
    }

    /// Gives tables the classifiers that have been built for them in the background, and begins
    /// builds that are due; returns true while some run or are wanted. To be called about ten times
    /// a second while that is so and after rules have changed. Commits.
    pub fn shape_tables(&mut self) -> bool {
        let wants_unlinking = |writer: &TableWriter| matches!(writer, TableWriter::Many(policy) if policy.wants_unlinking());
        let mut busy = false;
        if self.waiting() > 0 && self.tables.values().any(wants_unlinking) {
            self.housekeep(UNLINKED_AT_ONCE);
            busy = self.waiting() > 0;
        } else {
            self.settle();
        }
        let program = Arc::clone(&self.bridge.program);
        let now = Instant::now();
        for (table, writer) in &mut self.tables {
            if let TableWriter::Many(policy) = writer {
                policy.begin(&program, now);
                let asks_exact = asks_exact(*table, &self.soft);
                busy |= policy.is_busy() || policy.wants_exact(asks_exact);
            }
        }
        self.begin_fused(now) | busy
    }

    /// Gives every table the classifier that fits it best, at once, for callers who want to know
    /// it, and for tests. Commits.
    pub fn shape_now(&mut self) {
        let program = Arc::clone(&self.bridge.program);
        let now = Instant::now();
        for (table, writer) in &mut self.tables {
            let asks_exact = asks_exact(*table, &self.soft);
            if let TableWriter::Many(policy) = writer
                && policy.shape_now(&program) | policy.settle_exact(asks_exact, &program, now)
            {
                self.dirty.insert(*table);
            }
        }
        self.commit();
        self.fuse_now();
    }

    pub(crate) fn settle(&mut self) {
        let program = &self.bridge.program;
        let now = Instant::now();
        for (table, writer) in &mut self.tables {
            let asks_exact = asks_exact(*table, &self.soft);
            if let TableWriter::Many(policy) = writer
                && policy.settle(program) | policy.settle_exact(asks_exact, program, now)
            {
                self.dirty.insert(*table);
            }
        }
        self.settle_fused();
        self.renew();
    }

    /// Returns the number of rules that are marked as gone and not yet unlinked.
    pub fn waiting(&self) -> usize {
        self.gone.len()
    }
}

impl Drop for BridgeWriter {
    fn drop(&mut self) {
        // The datapath has released the bridge before its writer is dropped, or does so within this
        // grace period.
        for slot in &self.bridge.slots {
            let old = slot.shape.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !old.is_null() {
                // SAFETY: as in `commit`.
                self.bridge
                    .program
                    .domain
                    .retire(unsafe { Box::from_raw(old) });
            }
        }
        let soft = self.soft.values().flat_map(SoftWriter::rules);
        for rule in self
            .tables
            .values()
            .flat_map(TableWriter::rules)
            .chain(soft)
        {
            let linked = &self.bridge.program.rules.linked;
            linked.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: allocated in `insert`; linked rules include those in `gone`, each once, and
            // all are unlinked by the loop above.
            self.bridge
                .program
                .domain
                .retire(Box::new(unsafe { RuleSlab::take_back(rule.0) }));
        }
    }
}

/// A table of tuples becomes linear again when it has no more rules than this; the gap to
/// [`LINEAR_MAX`] prevents oscillation.
pub const LINEAR_AGAIN: usize = 6;

/// Most rules that are unlinked while tables get their classifiers.
pub(crate) const UNLINKED_AT_ONCE: usize = 4096;

/// Approximate limit of the time spent unlinking in one call.
pub(crate) const UNLINKING_TIME: Duration = Duration::from_millis(2);

/// Rules that each commit unlinks in addition to twice as many as were removed since the last one.
pub(crate) const UNLINKED_BY_COMMIT: usize = 16;

/// Approximate limit of the time that a commit spends unlinking.
pub(crate) const COMMIT_TIME: Duration = Duration::from_millis(1);
