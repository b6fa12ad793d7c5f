//! A table of many rules, its writer's side: tuples always, and trees beside them where trees are faster.
//!
//! Tuples hold every rule, and are changed in place as rules come and go. Trees ([`super::trees`]) are made in the background from what the tuples
//! hold at one moment, and not changed afterwards. What happens meanwhile is made good so:
//!
//! * A rule that comes is in its tuple. The tuple is looked up beside the trees (`beside`) until the next trees hold the rule; other tuples are not.
//! * A rule that comes in the place of another, same match and precedence, is found by way of the other, whose chain it joins.
//! * A packet that the trees lead to a rule that has gone is looked up in all tuples.
//!
//! New trees are begun when something has changed and it is time to ([`super::pace`]). Trees that promise too little are not used, and tried again when the table has changed by an eighth.

use super::pace::Pace;
use super::trees::{Built, Snapshot, Trees};
use super::{Description, RuleRef, Shape, Template, TreesShape, TupleEntry, TupleWriters, Work};
use crate::Program;
use crate::tuple::Tuple;
use packet::Match;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

/// A table with fewer masks is looked up in tuples.
const MASKS_MIN: usize = 3;
/// By how much trees must be better than tuples to be taken, and how much worse they may become before they are given up.
const TAKE: f64 = 0.9;
const KEEP: f64 = 1.1;

/// Trees in use, and what they promise.
struct InUse {
    trees: Arc<Trees>,
    rules: usize,
    typical: Work,
    worst: Work,
}

/// The writer's side of such a table.
#[derive(Default)]
pub(super) struct Shaping {
    tuples: TupleWriters,
    in_use: Option<InUse>,
    building: Option<Receiver<Built>>,
    /// Rules that have been ended since the last building began, while it goes on; none of them is freed meanwhile, for the snapshot's epoch is held.
    ended: Vec<RuleRef>,
    /// Rules that came or went since the last building began, except those in the place of another.
    changed: usize,
    /// Rules that came in the place of others since then.
    replaced: usize,
    /// How many must have changed before the next one: more where trees were of no use.
    wait_for: usize,
    /// Why there are no trees.
    refused: Option<String>,
    pace: Pace,
    /// Which of a rule's two places names its rank in the trees in use.
    lane: usize,
}

impl Shaping {
    pub fn len(&self) -> usize {
        self.tuples.len()
    }

    pub fn rules(&self) -> Vec<RuleRef> {
        self.tuples.rules()
    }

    /// All tuples.
    pub fn shared(&self) -> Vec<Arc<Tuple>> {
        let tuples = self.tuples.writers();
        tuples.map(|writer| Arc::clone(&writer.shared)).collect()
    }

    /// Links a rule; true when the published shape must be made anew.
    pub fn link(&mut self, program: &Program, rule: RuleRef) -> bool {
        let priority = Some(rule.rule().spec.priority);
        let linked = self.tuples.link(program, rule);
        let mut renewed = linked.raised;
        if self.building.is_some() {
            linked.tuple.since = linked.tuple.since.max(priority);
        }
        self.changed += 1;
        if let Some(in_use) = &self.in_use {
            if linked.before.is_some_and(|other| in_use.trees.has(other)) {
                // The one that it replaces has been counted when it went.
                self.changed = self.changed.saturating_sub(2);
                self.replaced += 1;
            } else if linked.tuple.beside < priority {
                linked.tuple.beside = priority;
                renewed = true;
            }
        }
        renewed
    }

    /// Fetches what linking a rule with this match will look at.
    pub fn expect(&self, matching: &Match) {
        self.tuples.expect(matching);
    }

    /// Whether trees are being made, or are to be made as soon as it is time to.
    pub fn is_busy(&self) -> bool {
        self.building.is_some() || self.is_wanted()
    }

    fn is_wanted(&self) -> bool {
        // Trees lead to rules in others' places as well, but tell nothing of them.
        let changed = self.changed > self.wait_for || self.replaced > self.tuples.len() / 8;
        changed && self.tuples.masks() >= MASKS_MIN
    }

    /// Says that a rule ends with the next epoch, and will be unlinked.
    pub fn removed(&mut self, rule: RuleRef) {
        self.changed += 1;
        if let Some(in_use) = &self.in_use {
            in_use.trees.ends(rule.0);
        }
        if self.building.is_some() {
            self.ended.push(rule);
        }
    }

    /// Unlinks a rule; true when the published shape must be made anew.
    pub fn unlink(&mut self, rule: RuleRef) -> bool {
        if let Some(in_use) = &self.in_use {
            in_use.trees.unlink(rule.0);
        }
        self.tuples.unlink(rule)
    }

    pub fn shape(&self) -> Shape {
        let all = self.tuples.entries();
        match &self.in_use {
            None => Shape::Tuples(all),
            Some(in_use) => Shape::Trees(TreesShape {
                trees: Arc::clone(&in_use.trees),
                beside: self.beside(),
                all,
            }),
        }
    }

    /// The tuples that are looked up beside trees, the highest precedence first.
    fn beside(&self) -> Box<[TupleEntry]> {
        let entry = |writer: &super::TupleWriter| {
            Some(TupleEntry {
                max_priority: writer.beside?,
                ..writer.entry()?
            })
        };
        let mut beside: Vec<_> = self.tuples.writers().filter_map(entry).collect();
        beside.sort_by_key(|entry| std::cmp::Reverse(entry.max_priority));
        beside.into()
    }

    /// Puts trees in use that are ready; true when the published shape must be made anew.
    pub fn settle(&mut self) -> bool {
        let built = match self.building.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => return false,
            Some(Ok(built)) => Some(built),
            Some(Err(TryRecvError::Disconnected)) => None,
        };
        self.building = None;
        let taken = built.is_some_and(|built| self.take(built));
        self.ended = Vec::new();
        taken
    }

    /// Begins to make trees in the background, where it is time to.
    pub fn begin(&mut self, program: &Program, now: Instant) {
        let is_time = self.pace.is_time(self.changed + self.replaced, now);
        if self.building.is_some() || !self.is_wanted() || !is_time {
            return;
        }
        let Some(snapshot) = self.snapshot(program) else {
            return;
        };
        let (sender, receiver) = channel();
        // Where nobody waits any more, what was made goes with the message.
        let job = Box::new(move || drop(sender.send(snapshot.build())));
        if program.background.run(job) {
            self.building = Some(receiver);
            self.pace.begun(now);
        } else {
            self.changed = 1;
            self.pace.refused(now);
        }
    }

    /// Makes trees at once, on this thread; true when the published shape must be made anew.
    pub fn shape_now(&mut self, program: &Program) -> bool {
        // What is being made writes into the rules, as what is to be made will.
        drop(self.building.take().map(|building| building.recv()));
        self.ended = Vec::new();
        self.pace.forget();
        if self.tuples.masks() < MASKS_MIN {
            return false;
        }
        let snapshot = self.snapshot(program);
        snapshot.is_some_and(|snapshot| self.take(snapshot.build()))
    }

    /// What trees are made from; None when all readers' slots are taken.
    fn snapshot(&mut self, program: &Program) -> Option<Snapshot> {
        let mut reader = program.domain.reader()?;
        let guard = reader.begin();
        let from = guard.epoch();
        guard.hold(from);
        reader.offline();
        (self.changed, self.replaced) = (0, 0);
        self.tuples
            .writers_mut()
            .for_each(|writer| writer.since = None);
        Some(Snapshot {
            tuples: self.shared(),
            reader,
            from,
            until: program.domain.next(),
            lane: 1 - self.lane,
        })
    }

    /// Takes new trees, or goes without, as is cheaper; true when the published shape must be made anew.
    fn take(&mut self, built: Built) -> bool {
        self.pace.done(built.took);
        let bytes = built.trees.as_ref().map_or(0, |trees| trees.bytes());
        let tuples = self.tuples.describe();
        let rules = tuples.rules * super::describe::RULE_BYTES;
        let beside = built.rest.len() as f64;
        let with = built.typical.and(Work {
            accesses: beside,
            compares: 0.0,
            hashes: beside,
        });
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
        // From now on the ranks of rules that are unlinked are emptied.
        drop(built.reader);
        true
    }

    pub fn describe(&self) -> Description {
        let mut description = self.tuples.describe();
        let Some(in_use) = &self.in_use else {
            if self.building.is_some() {
                description.why.push_str("; trees are being made");
            } else if let Some(refused) = &self.refused {
                let _ = write!(description.why, "; {refused}");
            }
            return description;
        };
        let beside = self.beside().len();
        let tuples = Work {
            accesses: beside as f64,
            compares: 0.0,
            hashes: beside as f64,
        };
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
        description
    }
}

#[cfg(test)]
mod tests {
    use super::super::pace::CALM;
    use super::super::{Bridge, BridgeWriter, TableWriter};
    use super::*;
    use crate::counters::CounterId;
    use crate::ops::{Op, OpList};
    use crate::rule::RuleSpec;
    use std::time::Duration;

    fn add(writer: &mut BridgeWriter, number: u32) {
        let mut matching = Match::any();
        let length = 20 + number % 12;
        let mask = (u32::MAX << (32 - length)).to_be_bytes();
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

    fn shaping(writer: &mut BridgeWriter) -> &mut Shaping {
        match writer.tables.get_mut(&0) {
            Some(TableWriter::Many(shaping)) => shaping,
            _ => panic!("a table of many masks"),
        }
    }

    /// Asks for trees at a time, waits for those that are made, and says whether there were any.
    fn begun(writer: &mut BridgeWriter, program: &Program, now: Instant) -> bool {
        let shaping = shaping(writer);
        shaping.begin(program, now);
        let begun = shaping.building.is_some();
        while shaping.building.is_some() {
            shaping.settle();
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
        // As after trees that took very long.
        let rest = Duration::from_secs(3600);
        shaping(&mut writer).pace.not_before = Some(now + rest);
        let calm = CALM.max(shaping(&mut writer).pace.took);
        for number in 2000..2010 {
            add(&mut writer, number);
            assert!(!begun(&mut writer, &program, now), "rules come");
            now += calm / 2;
        }
        now += calm;
        assert!(begun(&mut writer, &program, now), "no more rules come");
        assert!(
            shaping(&mut writer).pace.not_before > Some(now + rest / 2),
            "the time that was left has been kept"
        );
        let calm = CALM.max(shaping(&mut writer).pace.took);
        add(&mut writer, 2010);
        assert!(!begun(&mut writer, &program, now));
        assert!(!begun(&mut writer, &program, now + calm), "early once only");
        assert!(begun(&mut writer, &program, now + 2 * rest));
    }
}
