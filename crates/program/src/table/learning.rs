//! Determines the ports whose packets may come to a step that asks for a rule (`learn`), and those
//! whose packets may meet such a rule.
//!
//! Packets that ask are walked one after the other, so that each meets the rules learned from those
//! before it (`exec::suspend::hold`). So are packets that may meet a rule that was asked for and is
//! not there yet. All others go in bursts; and so do packets that ask where that makes no
//! difference (`exec::lanes::learn`): all steps on their way can be done by lanes, no two rules
//! teach the same rule, of which the last in a burst would have to win, and either their port's
//! packets cannot meet what is asked for, or there is a *barrier*: a table before which packets
//! meet nothing that is asked for, and from which on they come to no step any more. Lanes come to
//! tables in ascending order, and do not pass the barrier before those in front of them have asked.
//!
//! The ports follow from the rules: packets of an ingress port come to the rules of the first table
//! that match the port, and from there to the tables that these look up in. Steps whose targets are
//! not known count as asking, and for any table. Groups count as one place, from which packets come
//! wherever the buckets of any group lead ([`GroupPlaces`]).
//!
//! The writer keeps the edges of that graph and traverses it when an edge comes or goes, which is
//! rare: an edge stands for all rules of a table (in the first table, of a port) that lead the same
//! way. Readers see a set of ports that is never too small: a port is added before the rule is
//! published, and removed after no packet can meet it.

use crate::actions::{Op, PortNo, learns};
use crate::exec::Order;
use crate::rule::RuleSpec;
use crate::table::TABLES;
use packet::key::at;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Ports with a bit of their own in the set; higher numbers share these bits.
const PORTS: usize = 1 << 16;

/// The tables of a set, a bit each.
type Bits = [AtomicU64; TABLES.div_ceil(64)];

/// The state that readers see.
#[derive(Default)]
pub(crate) struct Learning {
    /// Number of linked rules that ask for rules.
    rules: AtomicUsize,
    /// Ports whose packets may come to one.
    asking: PortSet,
    /// Ports whose packets may look up in a table that rules have been asked for.
    meeting: PortSet,
    /// Tables that rules have ever been asked for, or may be, a bit each. The rules that were asked
    /// for last may come after the step that asked is gone.
    taught: Bits,
    /// Whether packets of ports that are not in `meeting` can ask as lanes.
    by_lanes: AtomicBool,
    /// The barrier; 0: there is none.
    barrier: AtomicU8,
    /// Tables from which packets may come to a rule that asks, a bit each.
    leading: Bits,
    /// Where the bridge's groups lead.
    groups: Arc<GroupPlaces>,
}

/// Where the buckets of a bridge's groups lead: for each place the number of versions of groups
/// that lead there, including those that are not in force yet and those that bursts may still meet.
#[derive(Debug)]
pub(crate) struct GroupPlaces {
    tables: Box<[AtomicU32]>,
    /// Versions of which it is not known where they lead.
    anywhere: AtomicU32,
    /// A place has come or gone since it was told whose packets may come to steps.
    stale: AtomicBool,
}

impl Default for GroupPlaces {
    fn default() -> Self {
        GroupPlaces {
            tables: (0..TABLES).map(|_| AtomicU32::new(0)).collect(),
            anywhere: AtomicU32::new(0),
            stale: AtomicBool::new(false),
        }
    }
}

/// What one version of a group adds to [`GroupPlaces`], until it is dropped.
#[derive(Debug)]
pub(crate) struct GroupEdges {
    places: Arc<GroupPlaces>,
    to: BTreeSet<Option<u8>>,
}

impl GroupPlaces {
    fn count(&self, to: Option<u8>) -> &AtomicU32 {
        match to {
            Some(table) => &self.tables[usize::from(table)],
            None => &self.anywhere,
        }
    }

    /// Returns whether groups lead to one of these tables, or it is not known where.
    fn lead(&self, tables: &[bool]) -> bool {
        let is_there = |count: &AtomicU32| count.load(Ordering::Acquire) > 0;
        is_there(&self.anywhere)
            || (self.tables.iter().zip(tables)).any(|(count, table)| *table && is_there(count))
    }
}

impl Drop for GroupEdges {
    fn drop(&mut self) {
        for to in &self.to {
            if self.places.count(*to).fetch_sub(1, Ordering::AcqRel) == 1 {
                self.places.stale.store(true, Ordering::Release);
            }
        }
    }
}

/// A set of ingress ports, as readers see it.
#[derive(Default)]
struct PortSet {
    /// Whether all ports are in it, or its ports are not known yet.
    everyone: AtomicBool,
    /// The ports in it, one bit each; all ports until it is set for the first time.
    ports: OnceLock<Box<[AtomicU64]>>,
}

impl PortSet {
    fn contains(&self, port: PortNo) -> bool {
        let place = place(port);
        self.everyone.load(Ordering::Acquire)
            || (self.ports.get()).is_none_or(|ports| {
                ports[place / 64].load(Ordering::Acquire) >> (place % 64) & 1 != 0
            })
    }

    fn set(&self, members: &[Option<PortNo>]) {
        let mut wanted = vec![0u64; PORTS / 64];
        for port in members.iter().flatten() {
            wanted[place(*port) / 64] |= 1 << (place(*port) % 64);
        }
        let shown = self
            .ports
            .get_or_init(|| (0..PORTS / 64).map(|_| AtomicU64::new(0)).collect());
        for (shown, wanted) in shown.iter().zip(wanted) {
            shown.store(wanted, Ordering::Release);
        }
        let everyone = members.contains(&None);
        self.everyone.store(everyone, Ordering::SeqCst);
    }
}

impl Learning {
    /// Returns whether any rule asks for rules.
    #[inline(always)]
    pub fn is_there(&self) -> bool {
        self.rules.load(Ordering::Relaxed) > 0
    }

    /// Returns whether packets that came in by this port may come to such a rule.
    #[inline(always)]
    pub fn concerns(&self, port: PortNo) -> bool {
        self.is_there() && self.may_ask(port)
    }

    #[cold]
    fn may_ask(&self, port: PortNo) -> bool {
        self.asking.contains(port)
    }

    /// Returns whether packets that look up in this table may come to a rule that asks.
    pub fn leads(&self, table: u8) -> bool {
        let word = &self.leading[usize::from(table) / 64];
        word.load(Ordering::Acquire) >> (table % 64) & 1 != 0
    }

    /// Returns whether packets of ports that do not meet what is asked for can ask as lanes.
    #[inline(always)]
    pub fn is_by_lanes(&self) -> bool {
        self.by_lanes.load(Ordering::Acquire)
    }

    /// Returns whether packets that came in by this port may look up in a table that rules are
    /// asked for. Also true for rules that were asked for before the last asking step was deleted.
    pub fn may_meet(&self, port: PortNo) -> bool {
        self.meeting.contains(port)
    }

    /// Returns the order in which packets go that may ask for rules, as lanes, and may meet what
    /// others of their burst ask for.
    #[inline(always)]
    pub fn order(&self) -> Order {
        match self.barrier.load(Ordering::Acquire) {
            0 => Order::Walks,
            table => Order::Steps(table),
        }
    }

    /// Records that a packet has asked for a rule of this table. A packet-out may ask by actions of
    /// its own, of which no rule tells.
    pub fn requested(&self, table: u8) {
        if self.teach(table) {
            self.barrier.store(0, Ordering::SeqCst);
            self.meeting.everyone.store(true, Ordering::SeqCst);
        }
    }

    /// Adds a table to those that rules are asked for; returns whether it is a new one.
    fn teach(&self, table: u8) -> bool {
        let (word, bit) = (&self.taught[usize::from(table) / 64], 1 << (table % 64));
        let new = word.load(Ordering::Relaxed) & bit == 0;
        if new {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        new
    }

    fn taught(&self) -> TableSet {
        let words: [u64; TABLES.div_ceil(64)] =
            std::array::from_fn(|at| self.taught[at].load(Ordering::SeqCst));
        std::array::from_fn(|table| words[table / 64] >> (table % 64) & 1 != 0)
    }

    /// Records that misses continue in the next table from now on; whether this ends later does not
    /// matter.
    pub fn miss_changes(&self, goes_on: bool) {
        if goes_on {
            self.suspect_everyone();
        }
    }

    /// Records where a group's buckets, which have these steps, lead; must be called before the
    /// group is published. The group keeps what is returned.
    pub fn group_comes<'o>(&self, buckets: impl Iterator<Item = &'o [Op]>) -> GroupEdges {
        let mut to = BTreeSet::new();
        for ops in buckets {
            // Which table's rule runs the group is not known, so a resubmit without a table may
            // look up in any.
            leads(None, ops, &mut |place| match place {
                To::Table(table) => _ = to.insert(Some(table)),
                To::Learn(_) | To::Anywhere => _ = to.insert(None),
                To::Groups => {}
            });
        }
        let places = Arc::clone(&self.groups);
        let mut stale = false;
        for place in &to {
            stale |= places.count(*place).fetch_add(1, Ordering::AcqRel) == 0;
        }
        if to.contains(&None) {
            (0..=u8::MAX).for_each(|table| _ = self.teach(table));
        }
        if stale {
            places.stale.store(true, Ordering::Release);
            self.suspect_everyone();
        }
        GroupEdges { places, to }
    }

    /// Makes packets of all ports go one after the other until [`Reach::tell`].
    fn suspect_everyone(&self) {
        self.barrier.store(0, Ordering::Release);
        self.asking.everyone.store(true, Ordering::Release);
        self.meeting.everyone.store(true, Ordering::Release);
    }
}

fn place(port: PortNo) -> usize {
    port as usize % PORTS
}

/// Where packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    /// From a port, to the first table; None for any port.
    Port(Option<PortNo>),
    /// From a rule of another table.
    Table(u8),
}

/// Where rules lead packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Table(u8),
    /// To a step that asks for a rule of this table.
    Learn(u8),
    /// To a bucket of a group.
    Groups,
    /// To a step of which it is not known where it leads.
    Anywhere,
}

type TableSet = [bool; TABLES];

/// What of a packet's way leads to a goal: tables, and the buckets of groups.
#[derive(Clone, Copy)]
struct Leading {
    tables: TableSet,
    groups: bool,
}

/// Rules that a step may teach: their table, priority, and the words and masks of their match.
type Taught = (u8, u16, Vec<(u8, u64)>);

/// A step that teaches: the table, precedence and match of its rule, and which it is of this rule's
/// steps that teach the same. Versions of a rule are never in force at the same time.
type Step = (u8, u32, Vec<(u8, u64, u64)>, usize);

/// What the writer knows.
#[derive(Default)]
pub(crate) struct Reach {
    /// Number of rules that lead this way.
    edges: BTreeMap<(From, To), usize>,
    /// Number of those that lanes cannot follow.
    walked: BTreeMap<(From, To), usize>,
    /// Number of rules that lead to the second place after packets have come back from the first.
    returns: BTreeMap<(To, To), usize>,
    /// The steps that teach the same rules, with the number of versions.
    steps: BTreeMap<Taught, BTreeMap<Step, usize>>,
    /// Edges have come or gone since it was told whose packets may.
    stale: bool,
}

impl Reach {
    /// Adds a rule's edges; must be called before the rule is published.
    pub fn rule_comes(&mut self, learning: &Learning, table: u8, spec: &RuleSpec) {
        if !spec.ops.goes_on() {
            return;
        }
        let from = from(table, spec);
        let is_walked = spec.ops.blocks().is_none();
        leads(Some(table), &spec.ops.ops, &mut |to| {
            self.stale |= more(&mut self.edges, (from, to));
            if is_walked {
                self.stale |= more(&mut self.walked, (from, to));
            }
            match to {
                To::Learn(table) => _ = learning.teach(table),
                To::Anywhere => (0..=u8::MAX).for_each(|table| _ = learning.teach(table)),
                To::Table(_) | To::Groups => {}
            }
        });
        for pair in returns(table, &spec.ops.ops) {
            self.stale |= more(&mut self.returns, pair);
        }
        if learns(&spec.ops.ops) {
            learning.rules.fetch_add(1, Ordering::Release);
            for (taught, step) in steps(table, spec) {
                let steps = self.steps.entry(taught).or_default();
                self.stale |= more(steps, step) && steps.len() > 1;
            }
        }
        if self.stale {
            learning.suspect_everyone();
        }
    }

    /// Removes a rule's edges; must be called after it has been unlinked and no reader can reach
    /// it.
    pub fn rule_goes(&mut self, learning: &Learning, table: u8, spec: &RuleSpec) {
        if !spec.ops.goes_on() {
            return;
        }
        let from = from(table, spec);
        let is_walked = spec.ops.blocks().is_none();
        leads(Some(table), &spec.ops.ops, &mut |to| {
            self.stale |= less(&mut self.edges, &(from, to));
            if is_walked {
                self.stale |= less(&mut self.walked, &(from, to));
            }
        });
        for pair in returns(table, &spec.ops.ops) {
            self.stale |= less(&mut self.returns, &pair);
        }
        if learns(&spec.ops.ops) {
            learning.rules.fetch_sub(1, Ordering::Release);
            for (taught, step) in steps(table, spec) {
                if let Some(steps) = self.steps.get_mut(&taught) {
                    self.stale |= less(steps, &step);
                    if steps.is_empty() {
                        self.steps.remove(&taught);
                    }
                }
            }
        }
    }

    /// Determines the ports whose packets may come to a rule that asks, for readers, before the
    /// next epoch is published. `goes_on`: whether misses continue in the next table.
    pub fn tell(&mut self, learning: &Learning, goes_on: bool) {
        let groups = &*learning.groups;
        if !learning.is_there() || !(self.stale || goes_on || groups.stale.load(Ordering::Acquire))
        {
            return;
        }
        self.stale = false;
        // Before what they lead to is looked at: a version may go meanwhile.
        groups.stale.store(false, Ordering::SeqCst);
        if goes_on {
            return learning.suspect_everyone();
        }
        // Before ports leave the sets: a port that meets nothing may ask as this says.
        let leading = self.what_leads(Goal::Steps, groups);
        for (word, tables) in learning.leading.iter().zip(leading.tables.chunks(64)) {
            let bits = tables
                .iter()
                .rev()
                .fold(0, |bits, leads| bits << 1 | u64::from(*leads));
            word.store(bits, Ordering::Release);
        }
        learning
            .by_lanes
            .store(self.are_by_lanes(&leading), Ordering::Release);
        learning
            .asking
            .set(&self.ports_that_come(Goal::Steps, groups));
        // A worker may add a table meanwhile, and then has everyone in the set.
        let mut taught = learning.taught();
        loop {
            let barrier = self.barrier(&leading, &taught, groups);
            learning.barrier.store(barrier, Ordering::SeqCst);
            // Every packet looks up in the first table.
            learning.meeting.set(&match taught[0] {
                true => vec![None],
                false => self.ports_that_come(Goal::Tables(&taught), groups),
            });
            let now = learning.taught();
            if std::mem::replace(&mut taught, now) == now {
                break;
            }
        }
    }

    /// Returns whether lanes can follow packets to all steps that ask, and no two of these teach
    /// the same rule.
    fn are_by_lanes(&self, leading: &Leading) -> bool {
        self.steps.values().all(|steps| steps.len() == 1)
            && !(self.walked.keys()).any(|(_, to)| Goal::Steps.is_there(leading, *to))
    }

    /// Returns the barrier: the first table that rules are asked for, if packets come to no step
    /// from there on; 0 otherwise.
    fn barrier(&self, leading: &Leading, taught: &TableSet, groups: &GroupPlaces) -> u8 {
        let first = taught.iter().position(|taught| *taught).unwrap_or_default();
        if first == 0 || leading.tables[first..].contains(&true) {
            return 0;
        }
        // Nor when they come back from there to a rule.
        let behind: TableSet = std::array::from_fn(|table| table >= first);
        let goal = Goal::Tables(&behind);
        let may = self.what_leads(goal, groups);
        let returns = (self.returns.keys()).any(|(before, after)| {
            goal.is_there(&may, *before) && Goal::Steps.is_there(leading, *after)
        });
        match returns {
            true => 0,
            false => u8::try_from(first).unwrap_or_default(),
        }
    }

    /// Ports whose packets may come there; None among them: those of any port.
    fn ports_that_come(&self, goal: Goal<'_>, groups: &GroupPlaces) -> Vec<Option<PortNo>> {
        let may = self.what_leads(goal, groups);
        (self.edges.keys())
            .filter(|(_, to)| goal.is_there(&may, *to))
            .filter_map(|(from, _)| match from {
                From::Port(port) => Some(*port),
                From::Table(_) => None,
            })
            .collect()
    }

    /// Tables and groups from which packets may come there, from the goal backwards.
    fn what_leads(&self, goal: Goal<'_>, groups: &GroupPlaces) -> Leading {
        let mut may = Leading {
            tables: match goal {
                Goal::Steps => [false; TABLES],
                Goal::Tables(tables) => *tables,
            },
            groups: false,
        };
        loop {
            let mut changed = false;
            if !may.groups && groups.lead(&may.tables) {
                (may.groups, changed) = (true, true);
            }
            for (from, to) in self.edges.keys() {
                // Packets resubmitted to the first table meet the rules of any port.
                let table = match from {
                    From::Port(_) => 0,
                    From::Table(table) => usize::from(*table),
                };
                if !may.tables[table] && goal.is_there(&may, *to) {
                    (may.tables[table], changed) = (true, true);
                }
            }
            if !changed {
                return may;
            }
        }
    }
}

/// Where packets may come.
#[derive(Clone, Copy)]
enum Goal<'t> {
    /// To a step that asks for a rule.
    Steps,
    /// To one of these tables.
    Tables(&'t TableSet),
}

impl Goal<'_> {
    /// Returns whether a way leads there, or to a table that does.
    fn is_there(self, may: &Leading, to: To) -> bool {
        match to {
            To::Learn(_) => matches!(self, Goal::Steps),
            To::Anywhere => true,
            To::Groups => may.groups,
            To::Table(table) => may.tables[usize::from(table)],
        }
    }
}

/// Counts one more; returns whether it is the first.
fn more<K: Ord>(counts: &mut BTreeMap<K, usize>, of: K) -> bool {
    let count = counts.entry(of).or_default();
    *count += 1;
    *count == 1
}

/// Counts one less; returns whether it was the last.
fn less<K: Ord>(counts: &mut BTreeMap<K, usize>, of: &K) -> bool {
    let Some(count) = counts.get_mut(of) else {
        return false;
    };
    *count -= 1;
    let was_last = *count == 0;
    if was_last {
        counts.remove(of);
    }
    was_last
}

/// Most tables that packets of a rule are said to come back from; where they are more, it is from
/// anywhere.
const RETURNS: usize = 8;

/// Returns the pairs of places to the second of which steps of a rule of this table lead packets
/// after these have come back from the first.
fn returns(table: u8, ops: &[Op]) -> BTreeSet<(To, To)> {
    let mut before: SmallVec<[To; RETURNS]> = SmallVec::new();
    let mut pairs = BTreeSet::new();
    for op in ops {
        let ends = matches!(op, Op::WriteActions(_));
        leads(Some(table), std::slice::from_ref(op), &mut |to| {
            // An action set is executed behind all tables.
            if ends {
                pairs.insert((To::Anywhere, to));
            }
            pairs.extend(before.iter().map(|before| (*before, to)));
            if matches!(to, To::Learn(_)) || before.contains(&to) || before[..] == [To::Anywhere] {
                return;
            }
            if before.len() == RETURNS {
                before.clear();
                before.push(To::Anywhere);
            } else {
                before.push(to);
            }
        });
    }
    pairs
}

/// Returns the steps of a rule that teach others, and what.
fn steps(table: u8, spec: &RuleSpec) -> Vec<(Taught, Step)> {
    let mut all: Vec<(Taught, Step)> = Vec::new();
    let words = spec.matching.words().iter();
    let matching: Vec<_> = words.map(|it| (it.word, it.mask, it.value)).collect();
    spec.ops.for_lessons(&mut |learn| {
        let taught = (learn.table, learn.priority, learn.shape.clone());
        let before = all.iter().filter(|(other, _)| *other == taught).count();
        let step = (table, spec.priority, matching.clone(), before);
        all.push((taught, step));
    });
    all
}

/// Returns where packets that meet a rule of this table come from.
fn from(table: u8, spec: &RuleSpec) -> From {
    if table != 0 {
        return From::Table(table);
    }
    let words = spec.matching.words();
    let port = words
        .iter()
        .find(|word| usize::from(word.word) == at::IN_PORT / 8);
    From::Port(port.and_then(|word| {
        let part = |word: u64| {
            let bytes = word.to_ne_bytes();
            let first = at::IN_PORT % 8;
            u32::from_be_bytes([
                bytes[first],
                bytes[first + 1],
                bytes[first + 2],
                bytes[first + 3],
            ])
        };
        (part(word.mask) == u32::MAX).then(|| part(word.value))
    }))
}

/// Calls `tell` with each place to which steps of a rule of this table lead. `table`: the one whose
/// rules a resubmit without a table looks up; None if it is not known.
fn leads(table: Option<u8>, ops: &[Op], tell: &mut impl FnMut(To)) {
    for op in ops {
        match op {
            Op::Learn(learn) => tell(To::Learn(learn.table)),
            Op::Goto(table) => tell(To::Table(*table)),
            Op::Track(track) => track.table.iter().for_each(|to| tell(To::Table(*to))),
            Op::Resubmit { table: to, .. } | Op::ResubmitTracked { table: to, .. } => {
                tell(to.or(table).map_or(To::Anywhere, To::Table))
            }
            Op::Clone(list) => leads(table, &list.ops, tell),
            // An action set is executed where the packet began.
            Op::WriteActions(ops) => leads(None, ops, tell),
            // Buckets come and go without their rules.
            Op::Group(_) | Op::Bucket(_) => tell(To::Groups),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::OpList;
    use crate::actions::learn::Learn;
    use crate::counters::CounterId;
    use packet::{Field, Match};
    use std::sync::Arc;

    fn spec(port: Option<PortNo>, ops: Vec<Op>) -> RuleSpec {
        let mut matching = Match::any();
        if let Some(port) = port {
            matching.set_exact(Field::InPort, port.into());
        }
        RuleSpec {
            priority: 1,
            counter: CounterId(0),
            ops: Arc::new(OpList::new(ops)),
            cookie: 0,
            matching,
        }
    }

    fn learn() -> Op {
        Op::Learn(Arc::new(Learn {
            table: 9,
            priority: 1,
            cookie: 0,
            idle_timeout: 0,
            hard_timeout: 0,
            fin_idle_timeout: 0,
            fin_hard_timeout: 0,
            send_flow_rem: false,
            limit: 0,
            options: 0,
            result: None,
            parts: Vec::new(),
            shape: Vec::new(),
        }))
    }

    fn resubmit(table: u8) -> Op {
        Op::Resubmit {
            in_port: None,
            table: Some(table),
        }
    }

    /// A bridge's rules as its writer adds and removes them.
    #[derive(Default)]
    struct Rules {
        learning: Learning,
        reach: Reach,
    }

    impl Rules {
        fn add(&mut self, table: u8, port: Option<PortNo>, ops: Vec<Op>) {
            let spec = spec(port, ops);
            self.reach.rule_comes(&self.learning, table, &spec);
        }

        fn remove(&mut self, table: u8, port: Option<PortNo>, ops: Vec<Op>) {
            let spec = spec(port, ops);
            self.reach.rule_goes(&self.learning, table, &spec);
        }

        /// Returns which of the first ports are in the set.
        fn told(&mut self) -> Vec<PortNo> {
            self.reach.tell(&self.learning, false);
            (1..=4)
                .filter(|port| self.learning.concerns(*port))
                .collect()
        }
    }

    impl Rules {
        /// Which of the first ports are told to meet requested rules.
        fn meeting(&mut self) -> Vec<PortNo> {
            self.reach.tell(&self.learning, false);
            (1..=4)
                .filter(|port| self.learning.may_meet(*port))
                .collect()
        }
    }

    #[test]
    fn ports_are_concerned_whose_packets_come_to_a_rule_that_asks() {
        let mut rules = Rules::default();
        assert_eq!(rules.told(), []);
        rules.add(0, Some(1), vec![Op::Goto(3)]);
        rules.add(0, Some(2), vec![resubmit(5), Op::Output(4)]);
        rules.add(0, Some(3), vec![Op::Output(4)]);
        rules.add(3, None, vec![Op::Output(4), resubmit(4)]);
        assert_eq!(rules.told(), []);
        rules.add(4, None, vec![learn()]);
        assert!(
            rules.learning.concerns(3),
            "before it is told, everybody is"
        );
        assert_eq!(rules.told(), [1]);
        // Circles, and a list within a list.
        rules.add(
            5,
            None,
            vec![
                resubmit(5),
                Op::Clone(Arc::new(OpList::new(vec![resubmit(6)]))),
            ],
        );
        assert_eq!(rules.told(), [1]);
        rules.add(6, Some(9), vec![Op::WriteActions(vec![learn()].into())]);
        rules.add(6, None, vec![resubmit(4)]);
        assert_eq!(rules.told(), [1, 2]);
        // Removes one of two rules that lead the same way; then the other.
        rules.add(0, Some(1), vec![Op::Goto(3), Op::Output(1)]);
        rules.remove(0, Some(1), vec![Op::Goto(3)]);
        assert_eq!(rules.told(), [1, 2]);
        rules.remove(0, Some(1), vec![Op::Goto(3), Op::Output(1)]);
        assert_eq!(rules.told(), [2]);
        rules.remove(4, None, vec![learn()]);
        assert_eq!(rules.told(), []);
    }

    #[test]
    fn what_cannot_be_told_concerns_all() {
        let mut rules = Rules::default();
        rules.add(0, Some(1), vec![learn()]);
        assert_eq!(rules.told(), [1]);
        rules.add(0, None, vec![resubmit(2)]);
        assert_eq!(rules.told(), [1]);
        // Back to the first table, where any port's rules may be met.
        rules.add(2, None, vec![resubmit(0)]);
        assert_eq!(rules.told(), [1, 2, 3, 4]);
        rules.remove(2, None, vec![resubmit(0)]);
        assert_eq!(rules.told(), [1]);
        let again = Op::Resubmit {
            in_port: Some(1),
            table: None,
        };
        rules.add(0, Some(3), vec![Op::WriteActions(vec![again].into())]);
        assert_eq!(rules.told(), [1, 3]);
        rules.reach.tell(&rules.learning, true);
        assert!(rules.learning.concerns(4), "a miss may lead anywhere");
        // Numbers of ports that share a bit.
        assert!(rules.learning.concerns(0xffff_fffe));
    }

    #[test]
    fn ports_meet_requested_rules_that_look_up_in_their_table() {
        let mut rules = Rules::default();
        assert_eq!(rules.meeting(), [1, 2, 3, 4], "before it is told, all do");
        // A step of table 2 asks for rules of table 9.
        rules.add(0, Some(1), vec![Op::Goto(2)]);
        rules.add(2, None, vec![learn()]);
        rules.add(0, Some(2), vec![resubmit(3), Op::Output(4)]);
        rules.add(0, Some(3), vec![Op::Output(4)]);
        assert_eq!(rules.meeting(), []);
        rules.add(3, None, vec![resubmit(9)]);
        assert!(rules.learning.may_meet(3), "before it is told, all do");
        assert_eq!(rules.meeting(), [2]);
        // What was asked for may come after the step that asked is gone.
        rules.remove(2, None, vec![learn()]);
        assert_eq!(rules.meeting(), [2]);
        rules.add(0, Some(4), vec![resubmit(3)]);
        rules.add(2, None, vec![learn()]);
        assert_eq!(rules.meeting(), [2, 4]);
    }

    #[test]
    fn requests_that_no_rule_tells_of_concern_all_until_ports_are_told_again() {
        let mut rules = Rules::default();
        rules.add(0, Some(1), vec![learn()]);
        rules.add(0, Some(3), vec![resubmit(7)]);
        assert_eq!(rules.meeting(), []);
        rules.learning.requested(9);
        assert_eq!(rules.meeting(), [], "rules ask for that table anyway");
        // A packet-out has asked.
        rules.learning.requested(7);
        assert_eq!(rules.meeting(), [1, 2, 3, 4]);
        rules.add(0, Some(2), vec![resubmit(8)]);
        assert_eq!(rules.meeting(), [3]);
    }

    #[test]
    fn all_ports_meet_rules_of_the_first_table_and_of_tables_that_cannot_be_told() {
        let mut rules = Rules::default();
        let mut learn = learn();
        if let Op::Learn(learn) = &mut learn {
            Arc::get_mut(learn).expect("nobody else has it").table = 0;
        }
        rules.add(0, Some(1), vec![learn]);
        assert_eq!(rules.meeting(), [1, 2, 3, 4]);
        let mut rules = Rules::default();
        rules.add(0, Some(2), vec![self::learn()]);
        let again = Op::Resubmit {
            in_port: Some(1),
            table: None,
        };
        rules.add(0, Some(1), vec![Op::WriteActions(vec![again].into())]);
        assert_eq!(rules.meeting(), [1, 2, 3, 4]);
    }

    #[test]
    fn packets_of_groups_come_where_any_group_leads_until_it_is_gone() {
        let group = || Op::Group(crate::group::GroupRef::unbound(7));
        let mut rules = Rules::default();
        rules.add(0, Some(1), vec![Op::Goto(3)]);
        rules.add(0, Some(2), vec![group(), Op::Output(1)]);
        rules.add(3, None, vec![learn_of(9, 1), resubmit(9)]);
        let of = |rules: &mut Rules, buckets: &[&[Op]]| {
            let edges = rules.learning.group_comes(buckets.iter().copied());
            rules.reach.tell(&rules.learning, false);
            edges
        };
        let state = |rules: &mut Rules| {
            let learning = |rules: &Rules| (rules.learning.is_by_lanes(), rules.learning.order());
            let (asking, meeting) = (rules.told(), rules.meeting());
            (asking, meeting, learning(rules))
        };
        let lanes = (true, Order::Steps(9));
        assert_eq!(state(&mut rules), (vec![1], vec![1], lanes));
        // A group that only sends leads nowhere.
        let sends = of(&mut rules, &[&[Op::Output(1)], &[Op::Output(2)]]);
        assert_eq!(state(&mut rules), (vec![1], vec![1], lanes));
        // Two versions of one that leads to what is taught, until both are gone.
        let places = [&[resubmit(12)][..], &[resubmit(9), Op::Output(2)]];
        let (one, other) = (of(&mut rules, &places), of(&mut rules, &places[1..]));
        assert_eq!(state(&mut rules), (vec![1], vec![1, 2], lanes));
        drop(one);
        assert_eq!(state(&mut rules), (vec![1], vec![1, 2], lanes));
        drop(other);
        assert_eq!(state(&mut rules), (vec![1], vec![1], lanes));
        // To a step, by another group's table.
        rules.add(4, None, vec![group()]);
        let edges = [
            of(&mut rules, &[&[resubmit(4)]]),
            of(&mut rules, &[&[resubmit(3)]]),
        ];
        let walks = (false, Order::Steps(9));
        assert_eq!(state(&mut rules), (vec![1, 2], vec![1, 2], walks));
        drop(edges);
        assert_eq!(state(&mut rules), (vec![1], vec![1], lanes));
        // From behind the barrier to a step.
        rules.add(9, None, vec![group()]);
        assert_eq!(state(&mut rules), (vec![1], vec![1], lanes));
        let edges = of(&mut rules, &[&[resubmit(3)]]);
        assert_eq!(state(&mut rules).2, (false, Order::Walks));
        drop(edges);
        assert_eq!(state(&mut rules), (vec![1], vec![1], lanes));
        // Before it is told, everybody may come to a step.
        let edges = rules.learning.group_comes([&[resubmit(3)][..]].into_iter());
        assert!(rules.learning.concerns(4) && rules.learning.may_meet(4));
        assert_eq!(rules.learning.order(), Order::Walks);
        drop(edges);
        // Where a bucket leads is not known: any table may be taught from now on.
        let unknown = Op::Resubmit {
            in_port: Some(1),
            table: None,
        };
        let edges = of(&mut rules, &[&[unknown]]);
        assert_eq!(state(&mut rules).2, (false, Order::Walks));
        drop((edges, sends));
        assert_eq!(state(&mut rules).2, (true, Order::Walks));
    }

    #[test]
    fn a_port_that_is_only_part_of_a_match_is_any_port() {
        let mut rules = Rules::default();
        let mut masked = spec(None, vec![learn()]);
        masked
            .matching
            .set(Field::InPort, &[0, 0, 0, 2], &[0, 0, 0, 6]);
        rules.reach.rule_comes(&rules.learning, 0, &masked);
        assert_eq!(rules.told(), [1, 2, 3, 4]);
    }

    /// A step that lanes can make, of a table and priority.
    fn learn_of(table: u8, priority: u16) -> Op {
        let learn = Learn {
            table,
            priority,
            ..Learn::default()
        };
        Op::Learn(Arc::new(learn.shaped()))
    }

    #[test]
    fn lanes_ask_where_they_can_come_to_all_steps_and_no_two_teach_the_same() {
        let lanes = |rules: &mut Rules| {
            rules.told();
            rules.learning.is_by_lanes()
        };
        let mut rules = Rules::default();
        rules.add(0, Some(1), vec![resubmit(3)]);
        rules.add(3, None, vec![learn_of(9, 1), Op::Output(2)]);
        assert!(lanes(&mut rules));
        assert_eq!(rules.meeting(), []);
        // Another rule's step for the same rules, until it is gone.
        rules.add(4, None, vec![learn_of(9, 1)]);
        assert!(!lanes(&mut rules));
        rules.remove(4, None, vec![learn_of(9, 1)]);
        assert!(lanes(&mut rules));
        rules.add(4, None, vec![learn_of(9, 2)]);
        assert!(lanes(&mut rules));
        // A new version of a rule is not another one.
        rules.add(3, None, vec![learn_of(9, 1), Op::Output(3)]);
        assert!(lanes(&mut rules));
        rules.remove(3, None, vec![learn_of(9, 1), Op::Output(2)]);
        assert!(lanes(&mut rules));
        // A rule whose packets are walked, and one of those that come to no step.
        let walked = |table| vec![Op::StackPop(bits()), resubmit(table)];
        rules.add(0, Some(2), walked(7));
        assert!(lanes(&mut rules));
        rules.add(0, Some(2), walked(3));
        assert!(!lanes(&mut rules));
        rules.remove(0, Some(2), walked(3));
        assert!(lanes(&mut rules));
        // Twice the same in one rule, and one that lanes cannot make.
        let twice = vec![learn_of(8, 1), learn_of(8, 1)];
        rules.add(5, None, twice.clone());
        assert!(!lanes(&mut rules));
        rules.remove(5, None, twice);
        let result = Op::Learn(Arc::new(Learn {
            table: 8,
            result: Some(bits()),
            ..Learn::default()
        }));
        assert!(lanes(&mut rules));
        rules.add(5, None, vec![result]);
        assert!(!lanes(&mut rules));
    }

    #[test]
    fn there_is_a_barrier_where_packets_come_to_no_step_behind_it() {
        let barrier = |rules: &mut Rules| {
            rules.told();
            match rules.learning.order() {
                Order::Steps(table) => Some(table),
                _ => None,
            }
        };
        let mut rules = Rules::default();
        // Packets teach table 9 in table 3, and then meet it.
        let teaches = vec![learn_of(9, 1), resubmit(9)];
        rules.add(0, Some(1), vec![resubmit(3), Op::Output(1)]);
        rules.add(3, None, teaches.clone());
        assert!(
            matches!(rules.learning.order(), Order::Walks),
            "before it is told"
        );
        assert_eq!(barrier(&mut rules), Some(9));
        assert_eq!(rules.meeting(), [1]);
        // A rule that leads from behind it to a step, also by other tables; until it is gone.
        for (table, ops) in [
            (9, vec![Op::Goto(3)]),
            (12, vec![resubmit(3)]),
            (12, vec![learn_of(20, 5)]),
        ] {
            rules.add(table, None, ops.clone());
            assert_eq!(barrier(&mut rules), None, "{ops:?}");
            rules.remove(table, None, ops);
            assert_eq!(barrier(&mut rules), Some(9));
        }
        // A rule whose packets come back from behind it, and then go to a step.
        rules.add(4, None, vec![Op::Goto(11)]);
        let to_3 = resubmit(3);
        let (clone, set) = (
            Op::Clone(Arc::new(OpList::new(vec![resubmit(9)]))),
            Op::WriteActions(vec![learn_of(9, 3)].into()),
        );
        for ops in [
            vec![resubmit(9), to_3.clone()],
            vec![resubmit(4), learn_of(9, 2)],
            vec![clone, to_3.clone()],
            vec![set],
        ] {
            rules.add(0, Some(2), ops.clone());
            assert_eq!(barrier(&mut rules), None, "{ops:?}");
            rules.remove(0, Some(2), ops);
            assert_eq!(barrier(&mut rules), Some(9));
        }
        // They may come back from tables before it, and go on behind it.
        let ways = [
            vec![resubmit(5), to_3.clone(), resubmit(9), resubmit(11)],
            (20..20 + RETURNS as u8 + 1).map(resubmit).collect(),
        ];
        for ops in ways {
            rules.add(0, Some(2), ops.clone());
            assert_eq!(barrier(&mut rules), Some(9), "{ops:?}");
            rules.remove(0, Some(2), ops);
        }
        // From too many to be told apart.
        let many: Vec<Op> = (4..4 + RETURNS as u8 + 1).map(resubmit).collect();
        let many = [&many[1..], &[resubmit(1), to_3]].concat();
        rules.add(0, Some(2), many.clone());
        assert_eq!(barrier(&mut rules), None);
        rules.remove(0, Some(2), many);
        // A packet-out asks for an earlier table, which packets may meet before they teach.
        assert_eq!(barrier(&mut rules), Some(9));
        rules.learning.requested(2);
        assert!(matches!(rules.learning.order(), Order::Walks));
        rules.add(7, None, vec![Op::Goto(8)]);
        assert_eq!(barrier(&mut rules), None);
        // Nor is there one where an action set looks up where the packet began.
        let mut others = Rules::default();
        others.add(0, Some(1), vec![resubmit(3)]);
        others.add(3, None, teaches.clone());
        let again = Op::Resubmit {
            in_port: Some(3),
            table: None,
        };
        others.add(4, None, vec![Op::WriteActions(vec![again].into())]);
        assert_eq!(barrier(&mut others), None);
        // What misses lead to is not known.
        let mut rules = Rules::default();
        rules.add(0, Some(1), vec![resubmit(3)]);
        rules.add(3, None, teaches);
        assert_eq!(barrier(&mut rules), Some(9));
        rules.learning.miss_changes(true);
        assert!(matches!(rules.learning.order(), Order::Walks));
    }

    fn bits() -> crate::actions::Bits {
        crate::actions::Bits {
            field: Field::Reg0,
            start: 0,
            bits: 1,
        }
    }
}
