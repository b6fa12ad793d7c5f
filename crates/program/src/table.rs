//! Flow tables: lookup by template, one writer, readers that are never blocked.
//!
//! A table's *shape* is the lookup that fits its rules:
//!
//! * [`Shape::Linear`]: up to [`LINEAR_MAX`] rules, compared one after the other by precedence. Cost grows with the number of rules and with nothing
//!   else, so a table of four rules over four masks (the tuple space explosion of Csikor et al.) costs four compares for any traffic.
//! * [`Shape::Tuples`]: one hash table for each set of masked bits, tried in the order of the highest precedence in each, until what was found
//!   beats all that is left. A packet that differs from what all rules of a tuple have in common, their protocol for instance, passes it over
//!   without a look into memory. Hash tables grow in place; the list of tuples is replaced as a whole.
//! * [`Shape::Trees`]: decision trees made in the background, and tuples for what they do not hold ([`shaping`]).
//! * [`Shape::Prefixes`]: a trie over one field that is changed in place, and tuples for rules that are no prefixes of it ([`prefixes`]).
//! * [`Shape::Conjunctive`]: one of the above, and beside it the rules that are parts of conditions ([`crate::conjunction`]).
//!
//! The writer changes hash tables in place by single stores that readers see or do not see; either is right, because a rule is visible
//! only in the epochs it carries ([`Rule::holds_in`]). A rule that goes is first only marked; once no worker can be in an epoch in which it held, it
//! is unlinked ([`BridgeWriter::housekeep`]), and once no worker can be looking at it, it is freed (`Domain::retire`).

mod deeds;
pub(crate) mod dependence;
mod describe;
pub(crate) mod effort;
mod exact;
mod fusing;
mod hot;
mod lanes;
mod learning;
mod pace;
mod places;
mod prefixes;
mod shaping;
mod trees;

use crate::Program;
use crate::conjunction::{self, SoftWriter};
use crate::counters::{CounterId, Totals};
use crate::epoch::{Epoch, Guard, NEVER};
use crate::group::{Group, GroupRef, GroupTable};
use crate::learn::Learn;
use crate::meters::MeterRef;
use crate::ops::PortNo;
use crate::rule::{Housed, Rule, RuleSpec};
use crate::tuple::{MaskedWord, Tuple, Words};
pub(crate) use deeds::{Deeds, STEP};
use dependence::Dependence;
pub use describe::{Description, Template, Work};
pub use effort::Effort;
use exact::Exact;
pub use fusing::FusedReport;
pub use hot::Reads;
pub(crate) use hot::{HotWords, Patterned, Verdicts, VerdictsBy};
pub(crate) use lanes::{Found, Meeting, Members, One, SetOfLanes};
use learning::Learning;
use packet::key::at;
use packet::keyed::Keyed;
use packet::matching::MatchWord;
use packet::{FlowKey, Match, WordSet};
#[cfg(test)]
pub(crate) use places::Ends;
pub(crate) use places::{Brief, Told, Verdict};
use prefixes::{NextHops, Trie};
use shaping::Shaping;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trees::Trees;

/// Number of tables of a bridge. 254 is for internal use, 255 does not exist on the wire.
pub const TABLES: usize = 255;
/// Most rules of a linear table.
pub const LINEAR_MAX: usize = 12;
/// A table of tuples turns linear again when it has no more rules than this; the gap to [`LINEAR_MAX`] keeps it from turning to and fro.
pub const LINEAR_AGAIN: usize = 6;
/// Most rules that are unlinked while tables get their lookups.
const UNLINKED_AT_ONCE: usize = 4096;
/// How long unlinking may take at once, about.
const UNLINKING_TIME: Duration = Duration::from_millis(2);
/// Rules that each commit unlinks beside twice as many as were removed since the last one.
const UNLINKED_BY_COMMIT: usize = 16;
/// How long a commit may take for that, about.
const COMMIT_TIME: Duration = Duration::from_millis(1);
/// Walks looked up at a time.
pub const LOOKUP_MAX: usize = 64;

const NO_COUNTER: u32 = u32::MAX;
/// Number of the meter for packet-ins (`OFPM_CONTROLLER`, OpenFlow 1.3.5 section 7.3.4.4).
const CONTROLLER_METER: u32 = 0xffff_fffe;

/// What becomes of a packet that matches no rule of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Miss {
    /// It is dropped (OpenFlow 1.3).
    Drop = 0,
    /// It goes to the controllers (OpenFlow 1.0 to 1.2).
    Controller = 1,
    /// It goes on in the next table (`OFPTC11_TABLE_MISS_CONTINUE`).
    Next = 2,
}

/// A rule in a table, as its writer knows it. Dead after [`BridgeWriter::remove`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleRef(pub(crate) NonNull<Rule>);

// SAFETY: a `RuleRef` is only a name; it is dereferenced by the one writer, before it hands the rule to `Domain::retire`.
unsafe impl Send for RuleRef {}

impl RuleRef {
    /// Whether it is part of a condition.
    fn is_soft(&self) -> bool {
        self.rule().spec.ops.clauses().is_some()
    }

    pub(crate) fn rule(&self) -> &Rule {
        // SAFETY: the writer unlinks and retires a rule only in `unlink`, which consumes the last `RuleRef` that it keeps.
        unsafe { self.0.as_ref() }
    }

    /// What the rule matches.
    pub fn matching(&self) -> &Match {
        &self.rule().spec.matching
    }

    /// Says what the rule was learned to do ([`Learn::fingerprint`]), so that workers know it again.
    pub fn set_fingerprint(&self, fingerprint: u64) {
        self.rule()
            .fingerprint
            .store(fingerprint, Ordering::Relaxed);
    }

    /// When a packet last learned the rule that was there already, in milliseconds of the datapath's clock; 0 for never.
    pub fn learned_ms(&self) -> u64 {
        self.rule().learned_ms.load(Ordering::Relaxed)
    }
}

/// One rule of a linear table, with its match beside it.
struct LinearEntry {
    words: SmallVec<[MaskedWord; 4]>,
    rule: NonNull<Rule>,
}

impl LinearEntry {
    /// The rule itself.
    #[inline(always)]
    fn rule(&self) -> &Rule {
        // SAFETY: a rule outlives every shape that names it, and this entry is part of one.
        unsafe { self.rule.as_ref() }
    }

    /// Returns whether both match the same at the same priority.
    fn is_version_of(&self, other: &LinearEntry) -> bool {
        self.words == other.words && self.rule().spec.priority == other.rule().spec.priority
    }
}

/// One tuple of a table, in order of precedence.
pub(crate) struct TupleEntry {
    pub tuple: Arc<Tuple>,
    /// The highest precedence of its rules when the list was made.
    pub max_priority: u32,
    /// Bits in which all of its rules agree, the most telling first: a packet that differs in one of them has no rule here, and a hash table that is large
    /// need not be looked at. To look at a small one costs less than to ask.
    pub agreed: Box<[MatchWord]>,
    /// Whether these are all that its rules look at: then all packets that have them meet the same rule.
    pub single: bool,
    /// What is known of its rules, where they are many and most of them only send.
    pub exact: Option<Arc<Exact>>,
}

impl TupleEntry {
    /// Whether the hash table is looked at for a key.
    pub fn admits(&self, key: &impl Words) -> bool {
        !self.single && !self.tuple.view().is_large() || key.has(&self.agreed)
    }

    /// The best rule in force of a tuple in which all rules match the same.
    pub fn only(&self, epoch: Epoch) -> Option<&Rule> {
        debug_assert!(self.single);
        let (tuple, example) = (self.tuple.view(), Example(&self.agreed));
        tuple.find(tuple.hash(&example), &example, epoch)
    }
}

/// A key of which only these bits are known.
struct Example<'a>(&'a [MatchWord]);

impl Words for Example<'_> {
    const AT_HAND: u8 = 0;

    fn word(&self, index: u8) -> u64 {
        let known = self.0.iter().find(|word| word.word == index);
        known.map_or(0, |word| word.value)
    }
}

/// The words that say best what kind of packet it is: protocol and ports, then ingress port, Ethernet type and VLAN.
const TELLING: [u8; 2] = [(at::IP_PROTO / 8) as u8, (at::ETH_TYPE / 8) as u8];

/// A table's lookup.
enum Shape {
    /// Compare all, in order.
    Linear(Box<[LinearEntry]>),
    /// Hash, tuple by tuple.
    Tuples(Box<[TupleEntry]>),
    /// Descend, then hash what has come since.
    Trees(TreesShape),
    /// Follow the bits of an address, then hash for what is no prefix.
    Prefixes(PrefixesShape),
    /// Ordinary rules, if there are any, and soft ones.
    Conjunctive {
        ordinary: Option<Box<Shape>>,
        soft: Box<[TupleEntry]>,
    },
}

/// Trees, and what they do not hold.
struct TreesShape {
    trees: Arc<Trees>,
    /// Tuples with rules that are not in the trees, with the highest precedence of those.
    beside: Box<[TupleEntry]>,
    /// All tuples.
    all: Box<[TupleEntry]>,
}

/// A trie, and what it does not hold.
struct PrefixesShape {
    trie: Arc<Trie>,
    /// As of [`TreesShape`].
    beside: Box<[TupleEntry]>,
    all: Box<[TupleEntry]>,
}

// SAFETY: rules are reached only under a guard of the domain, and outlive it (see `Domain::retire`); `Rule` itself is Sync.
unsafe impl Send for Shape {}
// SAFETY: as above; a published shape is not changed except through atomics inside `Tuple`.
unsafe impl Sync for Shape {}

/// A shape as readers find it.
struct Published {
    shape: Shape,
    /// What of a packet it looks at.
    reads: Reads,
    /// The matches of a short list, or the agreed bits of a few tuples, that look at hot words only.
    patterns: Option<Box<[packet::hot::Pattern]>>,
    /// The same of the first table's list, made ready for packets as they lie, where its rules only send or drop.
    sorting: Option<Box<packet::hot::Sorting>>,
    /// Whether no cache is expected to find sooner what a packet meets.
    quick: bool,
}

/// Most tuples of which a lookup costs no more than one in a cache of walks, which is one of the same kind.
const QUICK_TUPLES: usize = 2;

impl Shape {
    /// Whether a lookup costs no more than one in a cache of walks: that hashes five words, and reads a set's tags, a line and its way.
    fn is_quick(&self) -> bool {
        match self {
            Shape::Linear(_) => true,
            Shape::Tuples(tuples) => tuples.len() <= QUICK_TUPLES,
            Shape::Prefixes(shape) => shape.beside.len() < QUICK_TUPLES,
            Shape::Trees(_) | Shape::Conjunctive { .. } => false,
        }
    }
}

struct Slot {
    shape: AtomicPtr<Published>,
    miss: AtomicU8,
    /// Lookups (as packets) and matches (as bytes).
    counter: AtomicU32,
}

/// A bridge's tables, as workers see them.
pub struct Bridge {
    program: Arc<Program>,
    slots: Box<[Slot]>,
    needed: AtomicU64,
    groups: GroupTable,
    /// Whether some rule has written to an action set.
    writes_sets: AtomicBool,
    /// Whether some rule has done more with a packet than end its way.
    goes_on: AtomicBool,
    /// Whether a first fragment's ports are matched as they are.
    fragment_ports: AtomicBool,
    /// Whether fragments are dropped before the first lookup.
    fragments_dropped: AtomicBool,
    controller_meter: MeterRef,
    /// Whose packets may come to rules that ask for rules.
    learning: Learning,
    /// Whether packets that a table has no rule for have ever gone on in the next one.
    misses_go_on: AtomicBool,
    /// Words of the key that some rule has written.
    written: AtomicU64,
    /// What a walk may depend on.
    pub(crate) dependence: Dependence,
}

impl Bridge {
    /// A bridge whose tables are empty and drop what they have no rule for.
    pub fn new(program: Arc<Program>) -> Arc<Bridge> {
        let slots = (0..TABLES)
            .map(|_| Slot {
                shape: AtomicPtr::default(),
                miss: AtomicU8::new(Miss::Drop as u8),
                counter: AtomicU32::new(NO_COUNTER),
            })
            .collect();
        Arc::new(Bridge {
            program,
            slots,
            needed: AtomicU64::new(WordSet::HOT.0),
            groups: GroupTable::default(),
            writes_sets: AtomicBool::new(false),
            goes_on: AtomicBool::new(false),
            fragment_ports: AtomicBool::new(true),
            fragments_dropped: AtomicBool::new(false),
            controller_meter: MeterRef::new(CONTROLLER_METER),
            learning: Learning::default(),
            misses_go_on: AtomicBool::new(false),
            written: AtomicU64::new(0),
            dependence: Dependence::default(),
        })
    }

    /// The program it belongs to.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The place of the meter for packet-ins (`OFPM_CONTROLLER`), which stands before each that no meter of its own limits.
    #[inline]
    pub fn controller_meter(&self) -> &MeterRef {
        &self.controller_meter
    }

    /// Whether lookups see the transport ports of first fragments (`OFPC_FRAG_NX_MATCH`), as they do at first, or zero, as for later ones
    /// (`OFPC_FRAG_NORMAL`: all fragments of a packet meet the same rules). Holds from the next burst on.
    pub fn match_fragment_ports(&self, visible: bool) {
        self.fragment_ports.store(visible, Ordering::Relaxed);
    }

    /// What [`Bridge::match_fragment_ports`] has set.
    #[inline(always)]
    pub(crate) fn matches_fragment_ports(&self) -> bool {
        self.fragment_ports.load(Ordering::Relaxed)
    }

    /// Whether IP fragments that come in are dropped (`OFPC_FRAG_DROP`). Holds from the next burst on.
    pub fn drop_fragments(&self, dropped: bool) {
        self.fragments_dropped.store(dropped, Ordering::Relaxed);
    }

    /// What [`Bridge::drop_fragments`] has set.
    #[inline(always)]
    pub(crate) fn drops_fragments(&self) -> bool {
        self.fragments_dropped.load(Ordering::Relaxed)
    }

    /// Whether any rule asks for others.
    pub fn has_learning_rules(&self) -> bool {
        self.learning.is_there()
    }

    /// Whether packets that came in by this port may come to rules that ask for rules, so that they must
    /// be walked one after the other.
    #[inline(always)]
    pub fn learns_from(&self, in_port: PortNo) -> bool {
        self.learning.concerns(in_port)
    }

    /// Words of the key that no rule writes: what a packet came with is what all its lookups see.
    pub(crate) fn kept(&self) -> WordSet {
        WordSet(!self.written.load(Ordering::Acquire))
    }

    /// The rule that `learn` and these values mean, if one of its table, match and precedence holds in the guard's epoch, whatever it does.
    pub fn find<'g>(
        &self,
        learn: &Learn,
        values: &[u128],
        guard: &'g Guard<'_>,
    ) -> Option<&'g Rule> {
        let key = learn.example(values);
        find_exact(self.shape(learn.table, guard)?, learn, &key, guard.epoch())
    }

    /// The words of the key that rules match or actions read.
    #[inline(always)]
    pub fn needed(&self) -> WordSet {
        WordSet(self.needed.load(Ordering::Acquire))
    }

    /// Adds words of the key that are read. Publication comes later, so every burst that sees the reader fills them. Workers read this line for every
    /// burst, so it is written only where that changes something; likewise below.
    pub(crate) fn need(&self, words: WordSet) {
        if !words.minus(self.needed()).is_empty() {
            self.needed.fetch_or(words.0, Ordering::Release);
        }
    }

    /// Whether a rule has ever written to an action set: else what follows a rule's last step is known.
    #[inline]
    pub(crate) fn writes_sets(&self) -> bool {
        self.writes_sets.load(Ordering::Relaxed)
    }

    /// Whether walks are so short that no cache could make them shorter: one lookup, which costs no more than one there.
    pub(crate) fn is_quick(&self, guard: &Guard<'_>) -> bool {
        !self.goes_on.load(Ordering::Relaxed)
            && self.miss(0) != Miss::Next
            && self.published(0, guard).is_none_or(|table| table.quick)
    }

    /// The groups.
    #[inline(always)]
    pub(crate) fn groups(&self) -> &GroupTable {
        &self.groups
    }

    /// A group as it is in the guard's epoch; None when there is none.
    #[inline]
    pub fn group<'g>(&self, to: GroupRef, guard: &'g Guard<'_>) -> Option<&'g Group> {
        assert!(
            std::ptr::eq(guard.domain(), &*self.program.domain),
            "a guard of another program"
        );
        self.groups.get(to, guard)
    }

    /// What becomes of a packet that `table` has no rule for.
    #[inline]
    pub fn miss(&self, table: u8) -> Miss {
        match self
            .slots
            .get(usize::from(table))
            .map(|slot| slot.miss.load(Ordering::Relaxed))
        {
            Some(1) => Miss::Controller,
            Some(2) => Miss::Next,
            _ => Miss::Drop,
        }
    }

    #[inline(always)]
    fn shape<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<&'g Shape> {
        Some(&self.published(table, guard)?.shape)
    }

    #[inline(always)]
    fn published<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<&'g Published> {
        assert!(
            std::ptr::eq(guard.domain(), &*self.program.domain),
            "a guard of another program"
        );
        let shape = self
            .slots
            .get(usize::from(table))?
            .shape
            .load(Ordering::Acquire);
        // SAFETY: shapes are made by `Box::into_raw` and, when replaced, retired to this domain, whose guard lives for 'g.
        unsafe { shape.as_ref() }
    }

    /// The rule of `table` with the highest precedence that matches and holds in the guard's epoch.
    pub fn lookup<'g>(&self, table: u8, key: &FlowKey, guard: &'g Guard<'_>) -> Option<&'g Rule> {
        let mut out = [None];
        self.lookup_burst(table, 1, |_| key, guard, &mut out);
        out[0]
    }

    /// Looks up `count` keys, up to [`LOOKUP_MAX`], and puts what was found into `out`. Counts lookups and matches.
    #[inline]
    pub fn lookup_burst<'k, 'g>(
        &self,
        table: u8,
        count: usize,
        key: impl Fn(usize) -> &'k FlowKey,
        guard: &'g Guard<'_>,
        out: &mut [Option<&'g Rule>],
    ) {
        let out = &mut out[..count];
        out.fill(None);
        let epoch = guard.epoch();
        match self.shape(table, guard) {
            None => return self.count_lookups(table, count, 0, guard),
            Some(Shape::Linear(entries)) => {
                for (index, found) in out.iter_mut().enumerate() {
                    *found = linear(entries, key(index), epoch);
                }
            }
            Some(Shape::Tuples(tuples)) => lookup_tuples(tuples, &key, epoch, out),
            Some(Shape::Trees(shape)) => lookup_trees(shape, &key, epoch, out, None),
            Some(Shape::Prefixes(shape)) => lookup_prefixes(shape, &key, epoch, out, None),
            Some(Shape::Conjunctive { ordinary, soft }) => {
                lookup_conjunctive(ordinary.as_deref(), soft, &key, epoch, out);
            }
        }
        let matched = out.iter().filter(|found| found.is_some()).count();
        self.count_lookups(table, count, matched, guard);
    }

    #[inline(always)]
    fn count_lookups(&self, table: u8, lookups: usize, matched: usize, guard: &Guard<'_>) {
        if let Some(slot) = self.slots.get(usize::from(table)) {
            let counter = slot.counter.load(Ordering::Relaxed);
            if counter != NO_COUNTER {
                self.program.counters.add(
                    guard.index(),
                    CounterId(counter),
                    lookups as u64,
                    matched as u64,
                    0,
                );
            }
        }
    }

    /// Packets looked up in `table`, and those that found a rule.
    pub fn table_counters(&self, table: u8) -> (u64, u64) {
        let counter = self
            .slots
            .get(usize::from(table))
            .map_or(NO_COUNTER, |slot| slot.counter.load(Ordering::Relaxed));
        if counter == NO_COUNTER {
            return (0, 0);
        }
        let Totals { packets, bytes, .. } = self.program.counters.read(CounterId(counter));
        (packets, bytes)
    }

    /// Where `table` counts lookups and matches.
    pub(crate) fn lookup_counter(&self, table: u8) -> Option<CounterId> {
        let slot = self.slots.get(usize::from(table))?;
        let counter = slot.counter.load(Ordering::Relaxed);
        (counter != NO_COUNTER).then_some(CounterId(counter))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        for slot in &self.slots {
            let shape = slot.shape.load(Ordering::Acquire);
            if !shape.is_null() {
                // SAFETY: made by `Box::into_raw`; the last `Arc<Bridge>` is gone, so no reader can come to it any more.
                drop(unsafe { Box::from_raw(shape) });
            }
            let counter = slot.counter.load(Ordering::Relaxed);
            if counter != NO_COUNTER {
                self.program.counters.free(CounterId(counter));
            }
        }
    }
}

/// The rule that `learn` means where `key` has its values.
fn find_exact<'g>(
    shape: &'g Shape,
    learn: &Learn,
    key: &FlowKey,
    epoch: Epoch,
) -> Option<&'g Rule> {
    let priority = learn.priority.into();
    match shape {
        Shape::Linear(entries) => entries.iter().find_map(|entry| {
            let same = |(word, (at, mask)): (&MaskedWord, &(u8, u64))| {
                (word.word, word.mask) == (*at, *mask)
                    && key.words[usize::from(*at)] & mask == word.value
            };
            let same = entry.words.len() == learn.shape.len()
                && entry.words.iter().zip(&learn.shape).all(same);
            let rule = entry.rule();
            (same && rule.spec.priority == priority && rule.holds_in(epoch)).then_some(rule)
        }),
        Shape::Tuples(tuples)
        | Shape::Trees(TreesShape { all: tuples, .. })
        | Shape::Prefixes(PrefixesShape { all: tuples, .. }) => tuples
            .iter()
            .find_map(|entry| entry.tuple.find_exact(&learn.shape, key, priority, epoch)),
        // Learned rules are ordinary ones.
        Shape::Conjunctive { ordinary, .. } => find_exact(ordinary.as_deref()?, learn, key, epoch),
    }
}

#[inline(always)]
fn linear<'g>(entries: &'g [LinearEntry], key: &impl Words, epoch: Epoch) -> Option<&'g Rule> {
    entries.iter().find_map(|entry| {
        let matches = entry
            .words
            .iter()
            .all(|word| key.word(word.word) & word.mask == word.value);
        if !matches {
            return None;
        }
        let rule = entry.rule();
        rule.holds_in(epoch).then_some(rule)
    })
}

#[inline(always)]
fn lookup_tuples<'k, 'g, K: Words + 'k>(
    tuples: &'g [TupleEntry],
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    let mut all = (0..out.len() as u8).collect();
    lookup_pending(tuples, &mut all, key, epoch, out);
}

/// What is known of the rules of the first tuple, where a packet that finds one there needs no other.
#[inline(always)]
fn exact_of(tuples: &[TupleEntry], epoch: Epoch) -> Option<&Exact> {
    let (first, others) = tuples.split_first()?;
    let next = others.first().map(|entry| entry.max_priority);
    let exact = first.exact.as_deref();
    exact.filter(|exact| exact.decides(epoch, next))
}

/// [`lookup_pending`] for somebody who is told what is known of rules.
#[inline(always)]
fn lookup_exact<'g, K: Words>(
    tuples: &'g [TupleEntry],
    pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
    keys: &[K],
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    told: Option<&mut Told<'g>>,
) {
    if let Some(told) = told
        && let Some(exact) = exact_of(tuples, epoch)
    {
        exact.look_up(pending, keys, out, told);
    }
    lookup_pending(tuples, pending, &|index| &keys[index], epoch, out);
}

/// [`lookup_tuples`] for some packets of a burst.
#[inline(always)]
fn lookup_pending<'k, 'g, K: Words + 'k>(
    tuples: &'g [TupleEntry],
    pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    let mut hashes = [0_u64; LOOKUP_MAX];
    for entry in tuples {
        // What was found may already beat every rule of this tuple and of those after it.
        pending.retain(|index| {
            out[usize::from(*index)].is_none_or(|rule| rule.spec.priority < entry.max_priority)
        });
        if pending.is_empty() {
            return;
        }
        let tuple = entry.tuple.view();
        if entry.single || tuple.is_large() {
            lookup_admitted(entry, pending, key, epoch, out);
            continue;
        }
        for index in &*pending {
            let hash = tuple.hash(key(usize::from(*index)));
            hashes[usize::from(*index)] = hash;
            tuple.prefetch(hash);
        }
        for index in &*pending {
            tuple.prefetch_rule(hashes[usize::from(*index)]);
        }
        for index in &*pending {
            let at = usize::from(*index);
            if let Some(rule) = tuple.find(hashes[at], key(at), epoch)
                && out[at].is_none_or(|best| best.spec.priority < rule.spec.priority)
            {
                out[at] = Some(rule);
            }
        }
    }
}

/// Looks some packets up in a tuple to which not all packets come.
#[inline(never)]
fn lookup_admitted<'k, 'g, K: Words + 'k>(
    entry: &'g TupleEntry,
    pending: &[u8],
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    let mut hashes = [0_u64; LOOKUP_MAX];
    let mut admitted = [0_u8; LOOKUP_MAX];
    let mut count = 0;
    let tuple = entry.tuple.view();
    if entry.single {
        let mut rule = None;
        for index in pending {
            if key(usize::from(*index)).has(&entry.agreed) {
                if count == 0 {
                    (count, rule) = (1, entry.only(epoch));
                }
                take_better(&mut out[usize::from(*index)], rule);
            }
        }
        return;
    }
    for index in pending {
        let key = key(usize::from(*index));
        if key.has(&entry.agreed) {
            let hash = tuple.hash(key);
            tuple.prefetch(hash);
            (admitted[count], hashes[count]) = (*index, hash);
            count += 1;
        }
    }
    for hash in &hashes[..count] {
        tuple.prefetch_rule(*hash);
    }
    for (index, hash) in admitted[..count].iter().zip(hashes) {
        let at = usize::from(*index);
        take_better(&mut out[at], tuple.find(hash, key(at), epoch));
    }
}

/// Puts a rule in the place of one of lower precedence.
#[inline(always)]
fn take_better<'g>(best: &mut Option<&'g Rule>, other: Option<&'g Rule>) {
    if let Some(rule) = other
        && best.is_none_or(|best| best.spec.priority < rule.spec.priority)
    {
        *best = other;
    }
}

/// Apart, so that other tables' lookups keep their registers.
#[inline(never)]
fn lookup_trees<'k, 'g, K: Words + 'k>(
    shape: &'g TreesShape,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    told: Option<&mut Told<'g>>,
) {
    if !shape.trees.hold_in(epoch) {
        return lookup_tuples(&shape.all, key, epoch, out);
    }
    // Where others are looked up beside, rules' precedences are compared.
    let told = told.filter(|_| shape.beside.is_empty());
    shape.trees.find(key, epoch, out, told, |index, out| {
        *out = lookup_one(&shape.all, key(index), epoch);
    });
    if !shape.beside.is_empty() {
        lookup_tuples(&shape.beside, key, epoch, out);
    }
}

/// Apart, so that other tables' lookups keep their registers.
#[inline(never)]
fn lookup_prefixes<'k, 'g, K: Words + 'k>(
    shape: &'g PrefixesShape,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    told: Option<&mut Told<'g>>,
) {
    let mut numbers = [0; LOOKUP_MAX];
    let next_hops = shape.trie.next_hops(key, out.len(), &mut numbers);
    shape.resolve(&next_hops, 0, key, epoch, out, told);
}

impl PrefixesShape {
    /// Whether what stands beside is not of higher precedence than any prefix, most often a table's last rule: only packets without a prefix ask for it.
    #[inline(always)]
    fn decides(&self) -> bool {
        let highest = self.beside.first().map(|entry| entry.max_priority);
        highest <= Some(self.trie.floor())
    }

    /// The rules of packets whose next hops these are, from number `from` on.
    #[inline(always)]
    fn resolve<'k, 'g, K: Words + 'k>(
        &'g self,
        next_hops: &NextHops<'g, '_>,
        from: usize,
        key: &impl Fn(usize) -> &'k K,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        told: Option<&mut Told<'g>>,
    ) {
        let decides = self.decides();
        let told = told.filter(|_| decides);
        next_hops.resolve(from, epoch, out, told, |index, out| {
            *out = lookup_one(&self.all, key(index), epoch);
        });
        if !self.beside.is_empty() {
            let mut pending = (from as u8..out.len() as u8)
                .filter(|index| !decides || out[usize::from(*index)].is_none())
                .collect();
            lookup_pending(&self.beside, &mut pending, key, epoch, out);
        }
    }
}

#[cold]
fn lookup_one<'g>(tuples: &'g [TupleEntry], key: &impl Words, epoch: Epoch) -> Option<&'g Rule> {
    let mut out = [None];
    lookup_tuples(tuples, &|_| key, epoch, &mut out);
    out[0]
}

#[inline(never)]
fn lookup_conjunctive<'k, 'g>(
    ordinary: Option<&'g Shape>,
    soft: &'g [TupleEntry],
    key: &impl Fn(usize) -> &'k FlowKey,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    let look_up = |key: &FlowKey| {
        let mut out = [None];
        lookup_ordinary(ordinary, &|_| key, epoch, &mut out);
        out[0]
    };
    lookup_ordinary(ordinary, key, epoch, out);
    for (index, found) in out.iter_mut().enumerate() {
        *found = conjunction::look_up(soft, key(index), epoch, *found, look_up);
    }
}

fn lookup_ordinary<'k, 'g, K: Words + 'k>(
    shape: Option<&'g Shape>,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    match shape {
        Some(Shape::Linear(entries)) => {
            for (index, found) in out.iter_mut().enumerate() {
                *found = linear(entries, key(index), epoch);
            }
        }
        Some(Shape::Tuples(tuples)) => lookup_tuples(tuples, key, epoch, out),
        Some(Shape::Trees(shape)) => lookup_trees(shape, key, epoch, out, None),
        Some(Shape::Prefixes(shape)) => lookup_prefixes(shape, key, epoch, out, None),
        Some(Shape::Conjunctive { .. }) | None => {}
    }
}

/// The writer's side of one tuple.
struct TupleWriter {
    shared: Arc<Tuple>,
    /// How many linked rules have each precedence.
    priorities: BTreeMap<u32, usize>,
    /// The bits in which all of its rules have agreed since it was made, in the order of its words; a word may have none left.
    agreed: SmallVec<[MatchWord; 4]>,
    /// The highest precedence of its rules that are not in the table's trees or trie.
    beside: Option<u32>,
    /// How many rules are not in the table's trie.
    outside: usize,
    /// The highest precedence of its rules that came since trees began to be made.
    since: Option<u32>,
}

/// What linking a rule has come to.
pub(crate) struct Linked<'a> {
    /// Whether the published list of tuples must be made anew.
    pub raised: bool,
    /// The first rule of the same match and precedence.
    before: Option<NonNull<Rule>>,
    tuple: &'a mut TupleWriter,
}

impl TupleWriter {
    fn new(first: &Match) -> TupleWriter {
        TupleWriter {
            shared: Arc::new(Tuple::new(&mask_of(first))),
            priorities: BTreeMap::new(),
            agreed: first.words().into(),
            beside: None,
            outside: 0,
            since: None,
        }
    }

    /// Leaves out the bits in which a rule differs from those before it; true when there were some.
    fn narrow(&mut self, matching: &Match) -> bool {
        let mut narrowed = false;
        for (agreed, word) in self.agreed.iter_mut().zip(matching.words()) {
            let differing = (agreed.value ^ word.value) & agreed.mask;
            agreed.mask &= !differing;
            agreed.value &= !differing;
            narrowed |= differing != 0;
        }
        narrowed
    }

    /// Links a rule.
    fn link(&mut self, program: &Program, rule: RuleRef) -> Linked<'_> {
        let priority = rule.rule().spec.priority;
        let highest = self.highest();
        let narrowed = self.narrow(rule.matching());
        *self.priorities.entry(priority).or_default() += 1;
        Linked {
            raised: narrowed || highest.is_none_or(|highest| highest < priority),
            before: self.shared.insert(&program.domain, rule.0),
            tuple: self,
        }
    }

    /// What readers are told of it; None when it has no rules.
    fn entry(&self) -> Option<TupleEntry> {
        let mut agreed: SmallVec<[MatchWord; 4]> = self.agreed.clone();
        agreed.retain(|word| word.mask != 0);
        agreed.sort_by_key(|word| {
            let telling = TELLING.iter().position(|telling| *telling == word.word);
            (telling.unwrap_or(TELLING.len()), word.word)
        });
        Some(TupleEntry {
            tuple: Arc::clone(&self.shared),
            max_priority: self.highest()?,
            agreed: agreed.as_slice().into(),
            single: self.is_single(),
            exact: None,
        })
    }

    /// Whether all rules match the same.
    fn is_single(&self) -> bool {
        let whole = |(agreed, (_, mask)): (&MatchWord, &(u8, u64))| agreed.mask == *mask;
        self.agreed.iter().zip(self.shared.words()).all(whole)
    }

    /// The number of its rules.
    fn rules(&self) -> usize {
        self.priorities.values().sum()
    }

    /// How many bits of a trie's field its rules look at; None where they are of another kind.
    fn length(&self, prefixes: &prefixes::Prefixes) -> Option<u8> {
        let mut example = Match::any();
        for ((word, mask), agreed) in self.shared.words().iter().zip(&self.agreed) {
            example.set_word(usize::from(*word), agreed.value, *mask);
        }
        prefixes.length(&example)
    }

    fn highest(&self) -> Option<u32> {
        self.priorities
            .last_key_value()
            .map(|(priority, _)| *priority)
    }
}

/// The writer's side of a table: all linked rules, also those that are marked as gone.
enum TableWriter {
    /// By precedence, highest first. `since`: the first epoch in which no reader comes to the tuples that these rules were chained in before, once
    /// that is known; until all have passed it, the chains must stay as they are.
    Linear {
        rules: Vec<RuleRef>,
        since: Option<Epoch>,
    },
    /// By mask, and trees where they are faster.
    Many(Box<Shaping>),
}

/// Whether a table's lookups ask what is known of rules by value: only the first one's, and only without conditions.
fn asks_exact(table: u8, soft: &BTreeMap<u8, SoftWriter>) -> bool {
    table == 0 && !soft.contains_key(&table)
}

/// The writer's side of a list of tuples: all linked rules by mask.
#[derive(Default)]
pub(crate) struct TupleWriters {
    tuples: Vec<TupleWriter>,
    /// Where each set of masks stands among them.
    places: HashMap<Box<[(u8, u64)]>, usize, Keyed>,
    /// Where the rule that came last went: most likely the next one goes there too.
    last: usize,
    rules: usize,
}

impl TupleWriters {
    pub fn len(&self) -> usize {
        self.rules
    }

    /// Number of tuples.
    fn masks(&self) -> usize {
        self.tuples.len()
    }

    fn writers(&self) -> impl Iterator<Item = &TupleWriter> {
        self.tuples.iter()
    }

    fn writers_mut(&mut self) -> impl Iterator<Item = &mut TupleWriter> {
        self.tuples.iter_mut()
    }

    /// Where the tuple of rules with this match's masks stands.
    fn place(&self, matching: &Match) -> Option<usize> {
        let last = self.tuples.get(self.last);
        if last.is_some_and(|writer| writer.shared.takes(matching)) {
            return Some(self.last);
        }
        self.places.get(&*mask_of(matching)).copied()
    }

    /// Fetches what linking a rule with this match will look at.
    pub fn expect(&self, matching: &Match) {
        if let Some(place) = self.place(matching) {
            self.tuples[place].shared.expect(matching);
        }
    }

    /// The writer of the tuple that a rule with this match is in.
    fn writer_for(&mut self, matching: &Match) -> Option<&mut TupleWriter> {
        let place = self.place(matching)?;
        self.tuples.get_mut(place)
    }

    /// The writer of this tuple, unless it has gone.
    fn writer_of(&mut self, tuple: &Arc<Tuple>) -> Option<&mut TupleWriter> {
        let place = *self.places.get(tuple.words())?;
        let writer = &mut self.tuples[place];
        Arc::ptr_eq(&writer.shared, tuple).then_some(writer)
    }

    /// Links a rule.
    pub fn link(&mut self, program: &Program, rule: RuleRef) -> Linked<'_> {
        self.rules += 1;
        self.last = self.place(rule.matching()).unwrap_or_else(|| {
            let mask = mask_of(rule.matching()).to_vec();
            self.places.insert(mask.into(), self.tuples.len());
            self.tuples.push(TupleWriter::new(rule.matching()));
            self.tuples.len() - 1
        });
        self.tuples[self.last].link(program, rule)
    }

    /// Unlinks a rule; true when the published list of tuples must be made anew.
    pub fn unlink(&mut self, rule: RuleRef) -> bool {
        self.rules -= 1;
        let Some(place) = self.place(rule.matching()) else {
            return false;
        };
        let writer = &mut self.tuples[place];
        let priority = rule.rule().spec.priority;
        let highest = writer.highest();
        if let Some(count) = writer.priorities.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                writer.priorities.remove(&priority);
            }
        }
        writer.shared.remove(rule.0);
        let lowered = highest != writer.highest();
        if writer.priorities.is_empty() {
            self.places.remove(writer.shared.words());
            self.tuples.swap_remove(place);
            // The one that was the last stands here now.
            if let Some(moved) = self.tuples.get(place)
                && let Some(its) = self.places.get_mut(moved.shared.words())
            {
                *its = place;
            }
        }
        lowered
    }

    /// The tuples, in order of precedence.
    pub fn entries(&self) -> Box<[TupleEntry]> {
        let mut entries: Vec<TupleEntry> =
            self.tuples.iter().filter_map(TupleWriter::entry).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.max_priority));
        entries.into()
    }

    pub fn rules(&self) -> Vec<RuleRef> {
        self.tuples
            .iter()
            .flat_map(|writer| writer.shared.rules())
            .map(RuleRef)
            .collect()
    }
}

impl Default for TableWriter {
    fn default() -> Self {
        TableWriter::Linear {
            rules: Vec::new(),
            since: Some(0),
        }
    }
}

/// Whether a reader may still follow the chains of rules that have been a list since the epoch `since`.
fn chains_in_use(program: &Program, since: Option<Epoch>) -> bool {
    since.is_none_or(|epoch| epoch > program.domain.current() || !program.domain.unread(epoch))
}

fn mask_of(matching: &Match) -> SmallVec<[(u8, u64); 4]> {
    let words = matching.words().iter();
    words.map(|word| (word.word, word.mask)).collect()
}

impl TableWriter {
    fn len(&self) -> usize {
        match self {
            TableWriter::Linear { rules, .. } => rules.len(),
            TableWriter::Many(shaping) => shaping.len(),
        }
    }

    /// Links a rule; true when the published shape must be made anew.
    fn link(&mut self, program: &Program, rule: RuleRef) -> bool {
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
                // replaced (`hot::versions`).
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
            TableWriter::Many(shaping) => shaping.link(program, rule),
        }
    }

    fn turn_into_tuples(&mut self, program: &Program) {
        let all = self.rules();
        *self = TableWriter::Many(Box::default());
        for rule in all {
            self.link(program, rule);
        }
    }

    /// Turns a list that grew too long while its rules' chains were in use into tuples, once they are not; true when it did.
    fn grow(&mut self, program: &Program) -> bool {
        let due = matches!(self, TableWriter::Linear { rules, since }
            if rules.len() > LINEAR_MAX && !chains_in_use(program, *since));
        if due {
            self.turn_into_tuples(program);
        }
        due
    }

    /// Unlinks a rule; true when the published shape must be made anew.
    fn unlink(&mut self, program: &Program, rule: RuleRef) -> bool {
        match self {
            TableWriter::Linear { rules, .. } => {
                rules.retain(|other| *other != rule);
                true
            }
            TableWriter::Many(shaping) => {
                let lowered = shaping.unlink(program, rule);
                if shaping.len() <= LINEAR_AGAIN {
                    let mut all = shaping.rules();
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

    fn shape(&self) -> Shape {
        match self {
            TableWriter::Linear { rules, .. } => Shape::Linear(
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
            ),
            TableWriter::Many(shaping) => shaping.shape(),
        }
    }

    fn rules(&self) -> Vec<RuleRef> {
        match self {
            TableWriter::Linear { rules, .. } => rules.clone(),
            TableWriter::Many(shaping) => shaping.rules(),
        }
    }
}

/// The one writer of a bridge's tables.
///
/// Order of use: any number of `insert`, `remove`, `set_miss`; then [`BridgeWriter::commit`]; then one `domain.publish()` for all bridges.
/// Changes hold from `domain.next()` as it was when they were made.
pub struct BridgeWriter {
    bridge: Arc<Bridge>,
    tables: BTreeMap<u8, TableWriter>,
    /// Soft rules of the tables that have any.
    soft: BTreeMap<u8, SoftWriter>,
    dirty: WordSetOf256,
    /// Rules marked as gone, in the order in which they were let go; one that waits for its epoch
    /// keeps those behind it waiting.
    gone: VecDeque<(Epoch, u8, RuleRef)>,
    /// How many of them have come since the last commit.
    removed: usize,
    /// What is made of rules and those behind them.
    fusing: fusing::Fusing,
    /// The reserved epoch that changes carry.
    reserved: Option<Epoch>,
    /// Where rules lead.
    reach: learning::Reach,
}

/// A set of table numbers.
#[derive(Default)]
struct WordSetOf256([u64; 4]);

impl WordSetOf256 {
    fn insert(&mut self, table: u8) {
        self.0[usize::from(table) / 64] |= 1 << (table % 64);
    }
    fn drain(&mut self) -> impl Iterator<Item = u8> + use<> {
        let taken = std::mem::take(&mut self.0);
        (0..=255_u8).filter(move |table| taken[usize::from(*table) / 64] >> (table % 64) & 1 == 1)
    }
}

impl BridgeWriter {
    /// The writer of `bridge`; make one only.
    pub fn new(bridge: Arc<Bridge>) -> BridgeWriter {
        BridgeWriter {
            bridge,
            tables: BTreeMap::new(),
            soft: BTreeMap::new(),
            dirty: WordSetOf256::default(),
            gone: VecDeque::new(),
            removed: 0,
            fusing: fusing::Fusing::default(),
            reserved: None,
            reach: learning::Reach::default(),
        }
    }

    /// Says that changes from now on carry this epoch, which is reserved
    /// ([`crate::epoch::Domain::reserve`]); None for the domain's next one, as at first.
    pub fn change_in(&mut self, reserved: Option<Epoch>) {
        self.reserved = reserved;
    }

    /// The epoch that changes carry.
    fn epoch(&self) -> Epoch {
        self.reserved
            .unwrap_or_else(|| self.bridge.program.domain.next())
    }

    /// The tables it writes.
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
        self.bridge.dependence.rule_comes(table, &spec, epoch);
        self.fusing.changes();
        if spec.ops.writes_set() && !self.bridge.writes_sets() {
            self.bridge.writes_sets.store(true, Ordering::Relaxed);
        }
        if spec.ops.goes_on() && !self.bridge.goes_on.load(Ordering::Relaxed) {
            self.bridge.goes_on.store(true, Ordering::Relaxed);
        }
        self.ensure_counter(table);
        self.reach.rule_comes(&self.bridge.learning, table, &spec);
        if spec.ops.changes() {
            let written = spec.ops.written();
            self.bridge.written.fetch_or(written.0, Ordering::Release);
        }
        let program = &*self.bridge.program;
        let rule = RuleRef(Housed::lodge(Rule::new(spec, epoch)));
        program.rules.linked.fetch_add(1, Ordering::Relaxed);
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

    /// Sees to it that a table counts its lookups; whether it has not until now.
    fn ensure_counter(&self, table: u8) -> bool {
        let slot = &self.bridge.slots[usize::from(table)];
        if slot.counter.load(Ordering::Relaxed) == NO_COUNTER
            && let Some(counter) = self.bridge.program.counters.allocate()
        {
            slot.counter.store(counter.0, Ordering::Release);
            return true;
        }
        false
    }

    /// Says that a rule with this match will be inserted soon, so that what that looks at is fetched from memory meanwhile.
    pub fn expect(&self, table: u8, matching: &Match) {
        if let Some(TableWriter::Many(shaping)) = self.tables.get(&table) {
            shaping.expect(matching);
        }
    }

    /// Ends a rule with the domain's next epoch, or the reserved one. Its counter stays the
    /// caller's: hand it to [`BridgeWriter::release_counter`], or to another rule.
    pub fn remove(&mut self, table: u8, rule: RuleRef) {
        self.end(table, rule);
        self.let_go(table, rule);
    }

    /// The first part of [`BridgeWriter::remove`]: the rule ends, but stays in memory for as long
    /// as its owner looks at it, until [`BridgeWriter::let_go`].
    pub fn end(&mut self, table: u8, rule: RuleRef) {
        let epoch = self.epoch();
        debug_assert_eq!(rule.rule().removed(), NEVER, "removed twice");
        rule.rule().remove_in(epoch);
        if let Some(TableWriter::Many(shaping)) = self.tables.get_mut(&table) {
            shaping.removed(rule);
        }
        self.bridge.dependence.table_changes(table, epoch);
        self.fusing.changes();
    }

    /// The second part: it may be unlinked and freed once no worker can see it. Once for each rule
    /// that has ended.
    pub fn let_go(&mut self, table: u8, rule: RuleRef) {
        let epoch = rule.rule().removed();
        debug_assert_ne!(epoch, NEVER, "has not ended");
        if rule.rule().added < epoch {
            self.removed += 1;
            self.gone.push_back((epoch, table, rule));
        } else {
            // It has never been published, so nobody needs it to be found.
            self.take_out(table, rule);
        }
    }

    /// Unlinks a rule that no reader needs, and has it freed when none can be looking at it.
    fn take_out(&mut self, table: u8, rule: RuleRef) {
        self.unlink(table, rule);
        let linked = &self.bridge.program.rules.linked;
        linked.fetch_sub(1, Ordering::Relaxed);
        let spec = &rule.rule().spec;
        self.reach.rule_goes(&self.bridge.learning, table, spec);
        // SAFETY: lodged in `insert`, unlinked just now; the shape that may still name it was made
        // before, and is retired by `commit` no earlier than this rule, so both go after the same
        // grace period.
        let garbage = Box::new(unsafe { Housed::take_back(rule.0) });
        self.bridge.program.domain.retire(garbage);
    }

    /// Unlinks up to `limit` rules that no reader needs any more, but begins none after `time`, about;
    /// returns how many.
    fn unlink_gone(&mut self, limit: usize, time: Duration) -> usize {
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

    /// Gives a counter back once no worker can count on it.
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

    /// Says what becomes of packets that `table` has no rule for; at once, not by epoch.
    pub fn set_miss(&mut self, table: u8, miss: Miss) {
        self.bridge.slots[usize::from(table)]
            .miss
            .store(miss as u8, Ordering::Relaxed);
        self.bridge.dependence.all_changes();
        if miss == Miss::Next {
            self.bridge.misses_go_on.store(true, Ordering::Relaxed);
        }
        self.bridge.learning.miss_changes(miss == Miss::Next);
        if self.ensure_counter(table) {
            // Ways through it do not count it.
            let next = self.bridge.program.domain.next();
            self.bridge.dependence.table_changes(table, next);
            self.fusing.changes();
        }
    }

    /// Makes lookups ready for what was inserted. Call it before publishing.
    pub fn commit(&mut self) {
        // A lookup passes over what was replaced and is still linked: so that goes as fast as it
        // comes, where readers let it.
        let limit = 2 * std::mem::take(&mut self.removed) + UNLINKED_BY_COMMIT;
        self.unlink_gone(limit, COMMIT_TIME);
        self.renew();
        let goes_on = self.bridge.misses_go_on.load(Ordering::Relaxed);
        self.reach.tell(&self.bridge.learning, goes_on);
    }

    /// Publishes the lookups of tables that need another one.
    fn renew(&mut self) {
        for table in self.dirty.drain() {
            if let Some(TableWriter::Linear {
                since: since @ None,
                ..
            }) = self.tables.get_mut(&table)
            {
                *since = Some(self.bridge.program.domain.next());
            }
            let shape = self.shape(table).map_or(std::ptr::null_mut(), |shape| {
                Box::into_raw(Box::new(Published::new(table, shape)))
            });
            let old = self.bridge.slots[usize::from(table)]
                .shape
                .swap(shape, Ordering::AcqRel);
            if !old.is_null() {
                // SAFETY: made by `Box::into_raw` here, and unlinked by the swap; readers are waited for by `retire`.
                self.bridge
                    .program
                    .domain
                    .retire(unsafe { Box::from_raw(old) });
            }
        }
    }

    /// A table's lookup as it is now; None for an empty table.
    fn shape(&self, table: u8) -> Option<Shape> {
        let ordinary = self.tables.get(&table).filter(|writer| writer.len() != 0);
        let ordinary = ordinary.map(TableWriter::shape);
        match self.soft.get(&table) {
            None => ordinary,
            Some(soft) => Some(Shape::Conjunctive {
                ordinary: ordinary.map(Box::new),
                soft: soft.entries(),
            }),
        }
    }

    /// Unlinks a rule from its table.
    fn unlink(&mut self, table: u8, rule: RuleRef) {
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

    /// Unlinks and frees what no worker can see any more, up to `limit` rules and, where there is a limit, for two milliseconds; returns how many it unlinked. Gives tables the shape that they had
    /// to wait for. Commits.
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

    /// Gives tables the lookups that have been made for them in the background, and begins to make those that are due; true while some are being made or
    /// wanted. Call it ten times a second or so, while that is so and after rules have changed. Commits.
    pub fn shape_tables(&mut self) -> bool {
        let wants_unlinking = |writer: &TableWriter| matches!(writer, TableWriter::Many(shaping) if shaping.wants_unlinking());
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
            if let TableWriter::Many(shaping) = writer {
                shaping.begin(&program, now);
                let asks_exact = asks_exact(*table, &self.soft);
                busy |= shaping.is_busy() || shaping.wants_exact(asks_exact);
            }
        }
        self.begin_fused(now) | busy
    }

    /// Gives every table the lookup that fits it best, at once: for those who want to know it, and for tests. Commits.
    pub fn shape_now(&mut self) {
        let program = Arc::clone(&self.bridge.program);
        let now = Instant::now();
        for (table, writer) in &mut self.tables {
            let asks_exact = asks_exact(*table, &self.soft);
            if let TableWriter::Many(shaping) = writer
                && shaping.shape_now(&program) | shaping.settle_exact(asks_exact, &program, now)
            {
                self.dirty.insert(*table);
            }
        }
        self.commit();
        self.fuse_now();
    }

    fn settle(&mut self) {
        let program = &self.bridge.program;
        let now = Instant::now();
        for (table, writer) in &mut self.tables {
            let asks_exact = asks_exact(*table, &self.soft);
            if let TableWriter::Many(shaping) = writer
                && shaping.settle(program) | shaping.settle_exact(asks_exact, program, now)
            {
                self.dirty.insert(*table);
            }
        }
        self.settle_fused();
        self.renew();
    }

    /// Rules that are marked as gone and not yet unlinked.
    pub fn waiting(&self) -> usize {
        self.gone.len()
    }
}

impl Drop for BridgeWriter {
    fn drop(&mut self) {
        // The datapath has let go of the bridge before its writer goes, or does so within this grace period.
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
            // SAFETY: lodged in `insert`; linked rules include those in `gone`, each once, and all are unlinked by the loop above.
            self.bridge
                .program
                .domain
                .retire(Box::new(unsafe { Housed::take_back(rule.0) }));
        }
    }
}
