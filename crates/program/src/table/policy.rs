//! The writer's side of a table of many rules: tuples always, and a trie or trees beside them where
//! these are faster.
//!
//! A table most of whose rules are prefixes of one field has a trie ([`crate::classifier::trie`]),
//! which is changed as rules come and go: from its first [`PREFIXES_MIN`] rules on, or when it has
//! twice as many as when that was last tried. Rules that do not fit are looked up beside it; where
//! these are too many, it is given up.
//!
//! Tuples hold every rule, and are changed in place as rules come and go. Trees
//! ([`crate::classifier::tree`]) are built in the background from what the tuples hold at one
//! moment, and not changed afterwards. Changes since then are handled so:
//!
//! * A rule that comes is in its tuple. The tuple is looked up beside the trees (`beside`) until
//!   the next trees hold the rule; other tuples are not.
//! * A rule that replaces another of the same match and precedence is found by way of the other,
//!   whose chain it joins.
//! * A packet that the trees lead to a rule that has gone is looked up in all tuples.
//!
//! A build of new trees begins when something has changed and its pace permits ([`crate::pace`]).
//! Trees that promise too little are not used, and tried again when the table has changed by an
//! eighth.

use crate::Program;
use crate::classifier::Classifier;
use crate::classifier::describe::{Description, Template, Work};
use crate::classifier::exact::{ExactWriter, Largest};
use crate::classifier::tree::TreeClassifier;
use crate::classifier::tree::{Built, Snapshot, Trees};
use crate::classifier::trie::TrieClassifier;
use crate::classifier::trie::{Candidate, Prefixes};
use crate::classifier::tuple::{Tuple, versions_from};
use crate::classifier::tuple_space::TupleSpace;
use crate::classifier::tuple_space::{TupleEntry, TupleWriters};
use crate::pace::Pace;
use crate::table::RuleRef;
use packet::Match;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

/// A table with fewer masks is looked up in tuples.
pub(crate) const MASKS_MIN: usize = 3;
/// Fewest rules for which a table gets a trie, which takes at least half a megabyte; a table keeps
/// it down to half as many.
pub(crate) const PREFIXES_MIN: usize = 256;
/// Most rules for which a trie is built at once, at about half a microsecond a rule; it may grow to
/// any size.
pub(crate) const PREFIXES_AT_ONCE: usize = 1 << 17;
/// Most tuples beside a trie when it is built, and later: each may cost as much as the trie,
/// whereas trees would hold its rules, too.
pub(crate) const BESIDE_AT_FIRST: usize = 2;
pub(crate) const BESIDE_MAX: usize = 3;
/// Most tuples beside a trie in tables of more than [`PREFIXES_AT_ONCE`] rules: trees have no room
/// for most of those, and a trie that was given up would not come back.
pub(crate) const BESIDE_MAX_LARGE: usize = 16;
/// Versions of a rule that are searched for one that trees know, when another comes.
pub(crate) const VERSIONS: usize = 16;
/// Number of new rules after which memory that readers cannot see any more is reused.
pub(crate) const SETTLE_EVERY: usize = 64;
/// Cost of trees relative to tuples below which they are taken, and above which they are given up.
pub(crate) const TAKE: f64 = 0.9;
pub(crate) const KEEP: f64 = 1.1;

/// Trees in use, and their estimated work.
pub(crate) struct InUse {
    pub(crate) trees: Arc<Trees>,
    pub(crate) rules: usize,
    pub(crate) typical: Work,
    pub(crate) worst: Work,
}

/// The writer's state of such a table.
#[derive(Default)]
pub(crate) struct TablePolicy {
    pub(crate) tuples: TupleWriters,
    /// A trie, if there is one; then there are no trees.
    pub(crate) prefixes: Option<Prefixes>,
    /// The exact table of the table's only tuple, or of its one large one.
    pub(crate) exact: ExactWriter,
    /// Number of rules when a trie was last tried.
    pub(crate) tried: usize,
    /// Why there is no trie.
    pub(crate) no_prefixes: Option<String>,
    pub(crate) in_use: Option<InUse>,
    pub(crate) building: Option<Receiver<Built>>,
    /// While a build runs: rules that have ended since it began; none of them is freed meanwhile,
    /// because the snapshot keeps what is retired.
    pub(crate) ended: Vec<RuleRef>,
    /// Those of them that have been unlinked since.
    pub(crate) unlinked: Vec<RuleRef>,
    /// Rules that came or went since the last build began, other than replacements.
    pub(crate) changed: usize,
    /// Replacements since then.
    pub(crate) replaced: usize,
    /// Changes to exceed before the next build: more where trees were of no use.
    pub(crate) wait_for: usize,
    /// Why there are no trees.
    pub(crate) refused: Option<String>,
    pub(crate) pace: Pace,
    /// Which of a rule's two [`Rule::places`](crate::rule::Rule::places) is its rank in the trees
    /// in use, or its place in the trie.
    pub(crate) lane: usize,
}

impl TablePolicy {
    pub fn len(&self) -> usize {
        self.tuples.len()
    }

    pub fn rules(&self) -> Vec<RuleRef> {
        self.tuples.rules()
    }

    /// Returns all tuples.
    pub fn shared(&self) -> Vec<Arc<Tuple>> {
        let tuples = self.tuples.writers();
        tuples.map(|writer| Arc::clone(&writer.shared)).collect()
    }

    /// Links a rule; returns true when the published classifier must be replaced.
    pub fn link(&mut self, program: &Program, rule: RuleRef) -> bool {
        let priority = Some(rule.rule().spec.priority);
        let linked = self.tuples.link(program, rule);
        let mut renewed = linked.raised;
        if self.building.is_some() {
            linked.tuple.since = linked.tuple.since.max(priority);
        }
        self.changed += 1;
        self.exact.changes(rule);
        if let Some(prefixes) = &mut self.prefixes {
            let tuple = &mut *linked.tuple;
            if !prefixes.link(&program.domain, rule, &tuple.shared) {
                tuple.outside += 1;
                renewed |= tuple.beside < priority;
                tuple.beside = tuple.beside.max(priority);
                renewed |= self.keep_prefixes();
            } else if prefixes.members().is_multiple_of(SETTLE_EVERY) {
                prefixes.settle(&program.domain);
                renewed |= self.keep_prefixes();
            }
        } else if let Some(in_use) = &self.in_use {
            // SAFETY: the writer's own, and linked.
            let before = linked.before.map(|before| unsafe { before.as_ref() });
            let mut versions = before.into_iter().flat_map(versions_from).take(VERSIONS);
            if versions.any(|version| in_use.trees.has(version.into())) {
                // The rule that it replaces was counted when it went.
                self.changed = self.changed.saturating_sub(2);
                self.replaced += 1;
            } else if linked.tuple.beside < priority {
                linked.tuple.beside = priority;
                renewed = true;
            }
        }
        let due = self.tuples.len() >= PREFIXES_MIN.max(2 * self.tried);
        if due && self.prefixes.is_none() && self.tuples.len() <= PREFIXES_AT_ONCE {
            renewed |= self.try_prefixes(program);
        }
        renewed
    }

    /// Builds a trie, if the table's rules are suitable; returns true when the published classifier
    /// must be replaced.
    pub(crate) fn try_prefixes(&mut self, program: &Program) -> bool {
        // A build of trees writes into the rules.
        if self.building.is_some() || self.prefixes.is_some() {
            return false;
        }
        let rules = self.tuples.len();
        self.tried = rules;
        self.no_prefixes = None;
        let candidate = Candidate::of(&self.tuples);
        let candidate = candidate
            .filter(|candidate| candidate.masks >= MASKS_MIN && candidate.rules * 4 >= rules * 3);
        let Some(candidate) = candidate.filter(|_| rules >= PREFIXES_MIN) else {
            return false;
        };
        let mut prefixes = Prefixes::new(&candidate, &program.domain, 1 - self.lane);
        let mut outside = vec![(0, None); self.tuples.masks()];
        let writers = self.tuples.writers().enumerate();
        let mut order: Vec<_> = writers
            .map(|(index, writer)| (index, &writer.shared, writer.length(&prefixes)))
            .collect();
        // Long prefixes first, so that of two rules that contradict each other the shorter is left
        // out.
        order.sort_by_key(|(.., length)| std::cmp::Reverse(*length));
        for (index, tuple, _) in order {
            for rule in tuple.rules().into_iter().map(RuleRef) {
                if !prefixes.link(&program.domain, rule, tuple) {
                    let (count, highest) = &mut outside[index];
                    *count += 1;
                    *highest = (*highest).max(Some(rule.rule().spec.priority));
                }
            }
        }
        let beside = outside.iter().filter(|(count, _)| *count > 0).count();
        let few = beside <= BESIDE_AT_FIRST && prefixes.members() * 4 >= rules * 3;
        if !few || !prefixes.is_small() {
            self.no_prefixes = Some(format!(
                "a trie would hold {} rules in {} MB and leave {beside} tuples",
                prefixes.members(),
                prefixes.bytes() >> 20
            ));
            return false;
        }
        prefixes.settle(&program.domain);
        for (writer, (count, highest)) in self.tuples.writers_mut().zip(outside) {
            (writer.outside, writer.beside) = (count, highest);
        }
        self.in_use = None;
        self.lane = 1 - self.lane;
        self.prefixes = Some(prefixes);
        true
    }

    /// Gives the trie up where it does not pay any more; returns true when the published classifier
    /// must be replaced.
    pub(crate) fn keep_prefixes(&mut self) -> bool {
        let Some(prefixes) = &self.prefixes else {
            return false;
        };
        let rules = self.tuples.len();
        let beside = self
            .tuples
            .writers()
            .filter(|writer| writer.outside > 0)
            .count();
        let beside_max = match rules > PREFIXES_AT_ONCE {
            true => BESIDE_MAX_LARGE,
            false => BESIDE_MAX,
        };
        let why = if !prefixes.is_small() {
            format!("a trie takes {} MB", prefixes.bytes() >> 20)
        } else if beside > beside_max || prefixes.members() * 2 < rules {
            format!("a trie holds only {} rules", prefixes.members())
        } else if rules < PREFIXES_MIN / 2 {
            "too few rules for a trie".to_owned()
        } else {
            return false;
        };
        self.no_prefixes = Some(why);
        self.prefixes = None;
        self.tried = rules;
        self.changed += 1;
        for writer in self.tuples.writers_mut() {
            (writer.outside, writer.beside) = (0, None);
        }
        true
    }

    /// Prefetches what linking a rule with this match will read.
    pub fn expect(&self, matching: &Match) {
        self.tuples.expect(matching);
    }

    /// Returns whether packets that meet an ended rule are looked up again one by one until it is
    /// unlinked.
    pub fn wants_unlinking(&self) -> bool {
        self.prefixes.is_some()
    }

    /// Returns whether trees are being built, or will be as soon as their pace permits.
    pub fn is_busy(&self) -> bool {
        let settling = self.prefixes.as_ref().is_some_and(Prefixes::is_settling);
        self.building.is_some() || settling || self.is_wanted()
    }

    /// Describes when there will be trees of the current rules, where those are not in use.
    pub(crate) fn making(&self) -> Option<&'static str> {
        if self.building.is_some() {
            Some("being made")
        } else {
            self.is_wanted().then_some("to be made")
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        // Trees lead to replacements as well, but have no summaries of them.
        let changed = self.changed > self.wait_for || self.replaced > self.tuples.len() / 8;
        changed && self.prefixes.is_none() && self.tuples.masks() >= MASKS_MIN
    }

    /// Records that a rule ends with the next epoch, and will be unlinked.
    pub fn removed(&mut self, rule: RuleRef) {
        self.changed += 1;
        self.exact.changes(rule);
        if let Some(in_use) = &self.in_use {
            in_use.trees.ends(rule.0);
        }
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.ends(rule);
        }
        if self.building.is_some() {
            self.ended.push(rule);
        }
    }

    /// Unlinks a rule; returns true when the published classifier must be replaced.
    pub fn unlink(&mut self, program: &Program, rule: RuleRef) -> bool {
        let mut renewed = false;
        if let Some(in_use) = &self.in_use {
            in_use.trees.unlink(rule.0);
        }
        if self.building.is_some() {
            self.unlinked.push(rule);
        }
        if let Some(prefixes) = &mut self.prefixes
            && !prefixes.unlink(&program.domain, rule)
            && let Some(tuple) = self.tuples.writer_for(rule.matching())
        {
            tuple.outside -= 1;
            if tuple.outside == 0 {
                tuple.beside = None;
                renewed = true;
            }
        }
        let emptied = self.tuples.unlink(rule);
        // Lets a table that has shrunk try a trie again when it grows.
        self.tried = self.tried.min(self.tuples.len());
        emptied | renewed | self.keep_prefixes()
    }

    pub fn classifier(&self) -> Classifier {
        let all = self.tuples.entries();
        if let Some(prefixes) = &self.prefixes {
            let trie = TrieClassifier {
                trie: Arc::clone(prefixes.trie()),
                beside: self.beside(),
                all,
            };
            return trie.into();
        }
        match &self.in_use {
            None => TupleSpace(self.with_exact(all)).into(),
            Some(in_use) => TreeClassifier {
                trees: Arc::clone(&in_use.trees),
                beside: self.beside(),
                all,
            }
            .into(),
        }
    }

    /// Adds the exact table to the entry of its tuple. Among tuples of the same precedence that one
    /// comes first.
    pub(crate) fn with_exact(&self, mut tuples: Box<[TupleEntry]>) -> Box<[TupleEntry]> {
        for entry in &mut tuples {
            entry.exact = self.exact.of(&entry.tuple);
        }
        let order =
            |entry: &TupleEntry| (std::cmp::Reverse(entry.max_priority), entry.exact.is_none());
        tuples.sort_by_key(order);
        tuples
    }

    /// Returns whether the exact table should be rebuilt. `is_asked`: whether the table's lookups
    /// use it.
    pub fn wants_exact(&self, is_asked: bool) -> bool {
        is_asked && self.exact.is_wanted(|| self.for_exact())
    }

    pub(crate) fn for_exact(&self) -> Option<Largest<'_>> {
        self.has_tuples_only()
            .then(|| ExactWriter::candidate(&self.tuples))
            .flatten()
    }

    pub(crate) fn has_tuples_only(&self) -> bool {
        self.prefixes.is_none() && self.in_use.is_none()
    }

    /// Rebuilds the exact table, where it is time to, or gives it up; returns true when the
    /// published classifier must be replaced. `is_asked`: as for [`TablePolicy::wants_exact`].
    pub fn settle_exact(&mut self, is_asked: bool, program: &Program, now: Instant) -> bool {
        if !is_asked {
            return self.exact.give_up();
        }
        let fits = self.has_tuples_only();
        let tuples = &self.tuples;
        let candidate = || fits.then(|| ExactWriter::candidate(tuples)).flatten();
        self.exact.renew(candidate, &program.domain, now)
    }

    /// Returns the tuples that are looked up beside trees or a trie, the highest precedence first.
    pub(crate) fn beside(&self) -> Box<[TupleEntry]> {
        let entry = |writer: &crate::classifier::tuple_space::TupleWriter| {
            Some(TupleEntry {
                max_priority: writer.beside?,
                ..writer.entry()?
            })
        };
        let mut beside: Vec<_> = self.tuples.writers().filter_map(entry).collect();
        beside.sort_by_key(|entry| std::cmp::Reverse(entry.max_priority));
        beside.into()
    }

    /// Puts finished trees in use, and lets a trie catch up with readers; returns true when the
    /// published classifier must be replaced.
    pub fn settle(&mut self, program: &Program) -> bool {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.settle(&program.domain);
        }
        let built = match self.building.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => return false,
            Some(Ok(built)) => Some(built),
            Some(Err(TryRecvError::Disconnected)) => None,
        };
        self.building = None;
        let taken = built.is_some_and(|built| self.take(built));
        (self.ended, self.unlinked) = Default::default();
        taken
    }

    /// Begins building trees in the background, where it is time to.
    pub fn begin(&mut self, program: &Program, now: Instant) {
        let is_time = self.pace.is_time(self.changed + self.replaced, now);
        if self.building.is_some() || !self.is_wanted() || !is_time {
            return;
        }
        let Some(snapshot) = self.snapshot(program) else {
            return;
        };
        let (sender, receiver) = channel();
        // If nobody waits any more, the result is dropped with the message.
        let job = Box::new(move || drop(sender.send(snapshot.build())));
        if program.background.run(job) {
            self.building = Some(receiver);
            self.pace.begun(now);
        } else {
            self.changed = 1;
            self.pace.refused(now);
        }
    }

    /// Builds a trie or trees at once, on this thread; returns true when the published classifier
    /// must be replaced.
    pub fn shape_now(&mut self, program: &Program) -> bool {
        // A running build writes into the rules, as the next one will.
        drop(self.building.take().map(|building| building.recv()));
        (self.ended, self.unlinked) = Default::default();
        self.pace.forget();
        self.exact.forget();
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.settle(&program.domain);
            return false;
        }
        if self.tuples.masks() < MASKS_MIN {
            return false;
        }
        if self.try_prefixes(program) {
            return true;
        }
        let snapshot = self.snapshot(program);
        snapshot.is_some_and(|snapshot| self.take(snapshot.build()))
    }

    /// Returns the rules for a build of trees; None when all reader slots are taken.
    pub(crate) fn snapshot(&mut self, program: &Program) -> Option<Snapshot> {
        let mut reader = program.domain.reader()?;
        let guard = reader.begin();
        let from = guard.epoch();
        // Trees are told of rules that are unlinked meanwhile when they are taken.
        guard.keep(from);
        reader.offline();
        (self.changed, self.replaced) = (0, 0);
        self.tuples
            .writers_mut()
            .for_each(|writer| writer.since = None);
        Some(Snapshot {
            tuples: self.shared(),
            reader,
            from,
            until: program.domain.horizon(),
            lane: 1 - self.lane,
        })
    }

    /// Takes new trees, or none, whichever is cheaper; returns true when the published classifier
    /// must be replaced.
    pub(crate) fn take(&mut self, built: Built) -> bool {
        self.pace.done(built.took);
        let bytes = built.trees.as_ref().map_or(0, |trees| trees.bytes());
        let tuples = self.tuples.describe();
        let rules = tuples.rules * crate::classifier::describe::RULE_BYTES;
        let with = built.typical.and(Work::in_tuples(built.rest.len()));
        let limit = if self.in_use.is_some() { KEEP } else { TAKE };
        let better =
            with.cycles(bytes + rules) < limit * tuples.typical.cycles(tuples.bytes + rules);
        self.wait_for = 0;
        self.refused = None;
        let had = self.in_use.take().is_some();
        let Some(trees) = built.trees.filter(|_| better) else {
            self.tuples
                .writers_mut()
                .for_each(|writer| writer.beside = None);
            self.wait_for = tuples.rules / 8;
            self.refused = Some(format!(
                "trees would cost {:.0} cycles and leave {} tuples",
                with.cycles(bytes + rules),
                built.rest.len()
            ));
            return had;
        };
        self.ended.iter().for_each(|rule| trees.ends(rule.0));
        // In their order, so that each hands its rank to the version after it.
        let unlinked = self.unlinked.drain(..);
        unlinked.for_each(|rule| trees.unlink(rule.0));
        self.lane = 1 - self.lane;
        self.tuples
            .writers_mut()
            .for_each(|writer| writer.beside = writer.since.take());
        for (tuple, highest) in &built.rest {
            if let Some(writer) = self.tuples.writer_of(tuple) {
                writer.beside = writer.beside.max(Some(*highest));
            }
        }
        self.in_use = Some(InUse {
            trees,
            rules: built.rules,
            typical: built.typical,
            worst: built.worst,
        });
        // From now on ranks are emptied when rules are unlinked.
        drop(built.reader);
        true
    }

    pub fn describe(&self) -> Description {
        let mut description = self.tuples.describe();
        if let Some((rules, bytes)) = self.exact.summaries() {
            // At least half of the rules are in the exact table, so the rule itself is not read.
            let by_value = Work {
                accesses: 1.0,
                compares: 0.0,
                hashes: 1.0,
            };
            description.typical = by_value;
            description.worst = description.worst.and(by_value);
            description.bytes += bytes;
            let _ = write!(description.why, "; {rules} rules told by value");
        }
        if let Some(why) = &self.no_prefixes {
            let _ = write!(description.why, "; {why}");
        }
        if let Some(prefixes) = &self.prefixes {
            return self.describe_prefixes(prefixes, description);
        }
        let Some(in_use) = &self.in_use else {
            if let Some(when) = self.making() {
                let _ = write!(description.why, "; trees are {when}");
            } else if let Some(refused) = &self.refused {
                let _ = write!(description.why, "; {refused}");
            }
            return description;
        };
        let beside = self.beside().len();
        let tuples = Work::in_tuples(beside);
        description.template = Template::Trees;
        description.typical = in_use.typical.and(tuples);
        description.worst = in_use.worst.and(tuples);
        description.bytes += in_use.trees.bytes();
        let _ = write!(
            description.why,
            "; {} rules in {} trees, {beside} tuples beside them",
            in_use.rules,
            in_use.trees.count()
        );
        if let Some(when) = self.making() {
            let _ = write!(description.why, "; new ones are {when}");
        }
        description
    }

    pub(crate) fn describe_prefixes(
        &self,
        prefixes: &Prefixes,
        tuples: Description,
    ) -> Description {
        let lengths: Vec<(u8, usize)> = (self.tuples.writers())
            .filter_map(|writer| {
                let members = writer.rules() - writer.outside;
                Some((writer.length(prefixes).filter(|_| members > 0)?, members))
            })
            .collect();
        let (typical, worst) = prefixes.work(&lengths);
        let beside = self.beside();
        let floor = prefixes.trie().floor();
        let above = beside
            .iter()
            .filter(|entry| entry.max_priority > floor)
            .count();
        // Where tuples beside the trie may be better, rules must be read to compare precedences.
        let asked = Work {
            accesses: f64::from(u8::from(above > 0)),
            ..Work::default()
        };
        let mut why = format!(
            "most rules are prefixes of one field; {}; {} rules in a trie of {} nodes, {} tuples beside it",
            crate::classifier::describe::fields(
                self.tuples.writers().map(|writer| writer.shared.words())
            ),
            prefixes.members(),
            prefixes.nodes(),
            beside.len()
        );
        if prefixes.leads_elsewhere() {
            why.push_str(", some packets looked up in all tuples");
        }
        let mut worst = worst.and(asked).and(Work::in_tuples(beside.len()));
        if prefixes.leads_elsewhere() {
            worst = worst.and(tuples.worst);
        }
        Description {
            template: Template::LongestPrefix,
            typical: typical.and(asked).and(Work::in_tuples(above)),
            worst,
            bytes: tuples.bytes + prefixes.bytes(),
            why,
            ..tuples
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::{Op, OpList};
    use crate::counters::CounterId;
    use crate::pace::CALM;
    use crate::rule::RuleSpec;
    use crate::table::Bridge;
    use crate::table::writer::{BridgeWriter, TableWriter};
    use std::time::Duration;

    fn add(writer: &mut BridgeWriter, number: u32) {
        let mut matching = Match::any();
        let length = 20 + number % 12;
        // Not a prefix: such a table would have a trie.
        let mask = (u32::MAX << (32 - length) >> 1).to_be_bytes();
        let address = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        matching.set_bytes(packet::key::at::IPV4_DST, &address, &mask);
        writer.insert(
            0,
            RuleSpec {
                priority: length,
                counter: CounterId(0),
                ops: Arc::new(OpList::new(vec![Op::Output(2)])),
                cookie: 0,
                matching,
            },
        );
    }

    fn policy(writer: &mut BridgeWriter) -> &mut TablePolicy {
        match writer.tables.get_mut(&0) {
            Some(TableWriter::Many(policy)) => policy,
            _ => panic!("a table of many masks"),
        }
    }

    /// Starts a build of trees at a time, waits for it, and returns whether there was one.
    fn begun(writer: &mut BridgeWriter, program: &Program, now: Instant) -> bool {
        let policy = policy(writer);
        policy.begin(program, now);
        let begun = policy.building.is_some();
        while policy.building.is_some() {
            policy.settle(program);
            std::thread::yield_now();
        }
        begun
    }

    #[test]
    fn the_last_changes_do_not_wait_and_the_rest_is_made_good() {
        let program = Arc::new(Program::new());
        let mut writer = BridgeWriter::new(Bridge::new(Arc::clone(&program)));
        (0..2000).for_each(|number| add(&mut writer, number));
        let mut now = Instant::now();
        assert!(begun(&mut writer, &program, now));
        // As after a build that took very long.
        let rest = Duration::from_secs(3600);
        policy(&mut writer).pace.not_before = Some(now + rest);
        let calm = CALM.max(policy(&mut writer).pace.took);
        for number in 2000..2010 {
            add(&mut writer, number);
            assert!(!begun(&mut writer, &program, now), "rules come");
            now += calm / 2;
        }
        now += calm;
        assert!(begun(&mut writer, &program, now), "no more rules come");
        assert!(
            policy(&mut writer).pace.not_before > Some(now + rest / 2),
            "the time that was left has been kept"
        );
        let calm = CALM.max(policy(&mut writer).pace.took);
        add(&mut writer, 2010);
        assert!(!begun(&mut writer, &program, now));
        assert!(!begun(&mut writer, &program, now + calm), "early once only");
        assert!(begun(&mut writer, &program, now + 2 * rest));
    }
}
