//! A table's rules by tuple: one hash table for each set of masked bits, looked up in the order of
//! the highest precedence in each.

use super::effort::Count;
use super::exact::{ByWords, ExactMatches};
use super::lanes::{Found, look_up_each};
use super::mini_key::Reads;
use super::prefilter::{Behind, GATES_MAX};
use super::tuple::View;
use super::verdicts::VerdictsBy;
use super::{Classify, Keys};
use crate::Program;
use crate::actions::learn::Learn;
use crate::burst::{LOOKUP_MAX, Words};
use crate::burst::{LaneSet, Members};
use crate::classifier::exact::Exact;
use crate::classifier::trie::Prefixes;
use crate::classifier::tuple::Tuple;
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::RuleRef;
use crate::rule::summary::Summaries;
use packet::FlowKey;
use packet::Match;
use packet::key::at;
use packet::keyed::Keyed;
use packet::matching::MatchWord;
use packet::mini_key::Pattern;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::Arc;

/// Packets that are compared with the first of a set, to see whether any agrees with it in a
/// tuple's bits.
const SAMPLE: usize = 8;

/// One tuple in the published list, which is ordered by precedence.
pub(crate) struct TupleEntry {
    pub tuple: Arc<Tuple>,
    /// The highest precedence of its rules when the list was made.
    pub max_priority: u32,
    /// Bits in which all of its rules agree, the most selective first: a packet that differs in one
    /// of them has no rule here, so a large hash table need not be read. Reading a small one is
    /// cheaper than this check.
    pub agreed: Box<[MatchWord]>,
    /// Whether its rules look at no other bits: then all packets with these bits meet the same
    /// rule.
    pub single: bool,
    /// The exact table of its rules, if it has one.
    pub exact: Option<Arc<Exact>>,
}

impl TupleEntry {
    /// Returns whether a key may have a rule here.
    pub fn admits(&self, key: &impl Words) -> bool {
        !self.single && !self.tuple.view().is_large() || key.has(&self.agreed)
    }

    /// Returns the best rule in force of a tuple in which all rules have the same match.
    pub fn only(&self, epoch: Epoch) -> Option<&Rule> {
        debug_assert!(self.single);
        let (tuple, example) = (self.tuple.view(), Example(&self.agreed));
        tuple.find(tuple.hash(&example), &example, epoch)
    }
}

/// A key of which only these bits are known.
pub(crate) struct Example<'a>(pub(crate) &'a [MatchWord]);

impl Words for Example<'_> {
    const AT_HAND: u8 = 0;

    fn word(&self, index: u8) -> u64 {
        let known = self.0.iter().find(|word| word.word == index);
        known.map_or(0, |word| word.value)
    }
}

/// The words that best tell kinds of packets apart: protocol and ports, then ingress port, Ethernet
/// type and VLAN.
pub(crate) const TELLING: [u8; 2] = [(at::IP_PROTO / 8) as u8, (at::ETH_TYPE / 8) as u8];

#[inline(always)]
pub(crate) fn lookup_tuples<'k, 'g, K: Words + 'k>(
    tuples: &'g [TupleEntry],
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    let mut all = (0..out.len() as u8).collect();
    lookup_pending(tuples, &mut all, key, epoch, out);
}

/// Returns the exact table of the first tuple, where a packet with a rule in it needs no other
/// tuple.
#[inline(always)]
pub(crate) fn exact_of(tuples: &[TupleEntry], epoch: Epoch) -> Option<&Exact> {
    let (first, others) = tuples.split_first()?;
    let next = others.first().map(|entry| entry.max_priority);
    let exact = first.exact.as_deref();
    exact.filter(|exact| exact.decides(epoch, next))
}

/// [`lookup_pending`] with summaries, from the exact table if there is one.
#[inline(always)]
pub(crate) fn lookup_exact<'g, K: Words>(
    tuples: &'g [TupleEntry],
    pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
    keys: &[K],
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    summaries: Option<&mut Summaries<'g>>,
) {
    if let Some(summaries) = summaries
        && let Some(exact) = exact_of(tuples, epoch)
    {
        exact.look_up(pending, keys, out, summaries);
    }
    lookup_pending(tuples, pending, &|index| &keys[index], epoch, out);
}

/// [`lookup_tuples`] for some packets of a burst.
#[inline(always)]
pub(crate) fn lookup_pending<'k, 'g, K: Words + 'k>(
    tuples: &'g [TupleEntry],
    pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    let mut hashes = [0_u64; LOOKUP_MAX];
    for entry in tuples {
        // Packets whose rule beats all of this tuple and of those after it are done.
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

/// Looks packets up in a tuple for which each must be admitted first.
#[inline(never)]
pub(crate) fn lookup_admitted<'k, 'g, K: Words + 'k>(
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

/// Replaces a rule by one of higher precedence.
#[inline(always)]
pub(crate) fn take_better<'g>(best: &mut Option<&'g Rule>, other: Option<&'g Rule>) {
    if let Some(rule) = other
        && best.is_none_or(|best| best.spec.priority < rule.spec.priority)
    {
        *best = other;
    }
}

#[cold]
pub(crate) fn lookup_one<'g>(
    tuples: &'g [TupleEntry],
    key: &impl Words,
    epoch: Epoch,
) -> Option<&'g Rule> {
    let mut out = [None];
    lookup_tuples(tuples, &|_| key, epoch, &mut out);
    out[0]
}

/// The writer's state of one tuple.
pub(crate) struct TupleWriter {
    pub(crate) shared: Arc<Tuple>,
    /// Number of linked rules of each precedence.
    pub(crate) priorities: BTreeMap<u32, usize>,
    /// The bits in which all of its rules have agreed since it was made, in the order of its words;
    /// a word may have none left.
    pub(crate) agreed: SmallVec<[MatchWord; 4]>,
    /// The highest precedence of its rules that are not in the table's trees or trie.
    pub(crate) beside: Option<u32>,
    /// Number of rules that are not in the table's trie.
    pub(crate) outside: usize,
    /// The highest precedence of its rules that came since the current build of trees began.
    pub(crate) since: Option<u32>,
}

/// The result of linking a rule.
pub(crate) struct Linked<'a> {
    /// Whether the published list of tuples must be replaced.
    pub raised: bool,
    /// The previous rule of the same match and precedence.
    pub(crate) before: Option<NonNull<Rule>>,
    pub(crate) tuple: &'a mut TupleWriter,
}

impl TupleWriter {
    pub(crate) fn new(first: &Match) -> TupleWriter {
        TupleWriter {
            shared: Arc::new(Tuple::new(&mask_of(first))),
            priorities: BTreeMap::new(),
            agreed: first.words().into(),
            beside: None,
            outside: 0,
            since: None,
        }
    }

    /// Removes the bits in which a rule differs from those before it; returns true when there were
    /// some.
    pub(crate) fn narrow(&mut self, matching: &Match) -> bool {
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
    pub(crate) fn link(&mut self, program: &Program, rule: RuleRef) -> Linked<'_> {
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

    /// Returns its entry for readers; None when it has no rules.
    pub(crate) fn entry(&self) -> Option<TupleEntry> {
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

    /// Returns whether all rules have the same match.
    pub(crate) fn is_single(&self) -> bool {
        let whole = |(agreed, (_, mask)): (&MatchWord, &(u8, u64))| agreed.mask == *mask;
        self.agreed.iter().zip(self.shared.words()).all(whole)
    }

    /// Returns the number of its rules.
    pub(crate) fn rules(&self) -> usize {
        self.priorities.values().sum()
    }

    /// Returns the prefix length of its rules in a trie's field; None where they are of another
    /// kind.
    pub(crate) fn length(&self, prefixes: &Prefixes) -> Option<u8> {
        let mut example = Match::any();
        for ((word, mask), agreed) in self.shared.words().iter().zip(&self.agreed) {
            example.set_word(usize::from(*word), agreed.value, *mask);
        }
        prefixes.length(&example)
    }

    pub(crate) fn highest(&self) -> Option<u32> {
        self.priorities
            .last_key_value()
            .map(|(priority, _)| *priority)
    }
}

/// The writer's state of all tuples of a table.
#[derive(Default)]
pub(crate) struct TupleWriters {
    pub(crate) tuples: Vec<TupleWriter>,
    /// Index of each set of masks among the tuples.
    pub(crate) places: HashMap<Box<[(u8, u64)]>, usize, Keyed>,
    /// Index of the tuple that the last rule went to; most likely the next one goes there too.
    pub(crate) last: usize,
    pub(crate) rules: usize,
}

impl TupleWriters {
    pub fn len(&self) -> usize {
        self.rules
    }

    /// Returns the number of tuples.
    pub(crate) fn masks(&self) -> usize {
        self.tuples.len()
    }

    pub(crate) fn writers(&self) -> impl Iterator<Item = &TupleWriter> {
        self.tuples.iter()
    }

    pub(crate) fn writers_mut(&mut self) -> impl Iterator<Item = &mut TupleWriter> {
        self.tuples.iter_mut()
    }

    /// Returns the index of the tuple of rules with this match's masks.
    pub(crate) fn place(&self, matching: &Match) -> Option<usize> {
        let last = self.tuples.get(self.last);
        if last.is_some_and(|writer| writer.shared.takes(matching)) {
            return Some(self.last);
        }
        self.places.get(&*mask_of(matching)).copied()
    }

    /// Prefetches what linking a rule with this match will read.
    pub fn expect(&self, matching: &Match) {
        if let Some(place) = self.place(matching) {
            self.tuples[place].shared.expect(matching);
        }
    }

    /// Returns the writer of the tuple that a rule with this match is in.
    pub(crate) fn writer_for(&mut self, matching: &Match) -> Option<&mut TupleWriter> {
        let place = self.place(matching)?;
        self.tuples.get_mut(place)
    }

    /// Returns the writer of this tuple, unless it has gone.
    pub(crate) fn writer_of(&mut self, tuple: &Arc<Tuple>) -> Option<&mut TupleWriter> {
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

    /// Unlinks a rule; returns true when the published list of tuples must be replaced.
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
            // The last tuple has moved here.
            if let Some(moved) = self.tuples.get(place)
                && let Some(its) = self.places.get_mut(moved.shared.words())
            {
                *its = place;
            }
        }
        lowered
    }

    /// Returns the tuples, in order of precedence.
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

pub(crate) fn mask_of(matching: &Match) -> SmallVec<[(u8, u64); 4]> {
    let words = matching.words().iter();
    words.map(|word| (word.word, word.mask)).collect()
}

/// Tuples, in order of precedence.
pub(crate) struct TupleSpace(pub(crate) Box<[TupleEntry]>);

/// Most tuples for which a lookup costs no more than one in the flow cache, itself a hash table.
pub(crate) const QUICK_TUPLES: usize = 2;

impl Classify for TupleSpace {
    fn reads(&self) -> Reads {
        Reads::of(words_of(&self.0))
    }

    #[inline(always)]
    fn look_up<'k, 'g, K: Words + 'k>(
        &'g self,
        keys: impl Keys<'k, K>,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
    ) {
        match keys.slice() {
            Some(keys) => self.look_up_slice(keys, epoch, out, summaries),
            None => lookup_tuples(&self.0, &move |index| keys.key(index), epoch, out),
        }
    }

    #[inline(always)]
    fn look_up_lanes<'g, K: Words>(
        &'g self,
        set: LaneSet,
        lanes: &[K; LOOKUP_MAX],
        epoch: Epoch,
        found: &mut Found<'g>,
    ) -> LaneSet {
        self.by_tuples(set, lanes, epoch, found)
    }

    #[inline(always)]
    fn verdicts<'g, 'n, K: Words>(
        &'g self,
        keys: &[K],
        epoch: Epoch,
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> Option<VerdictsBy<'g, 'n>> {
        let tuples = &self.0;
        let exact = exact_of(tuples, epoch)?;
        Some(match exact.search(keys, 0..keys.len(), numbers) {
            ByWords::One(search) => VerdictsBy::OneWord(ExactMatches { tuples, search }),
            ByWords::Two(search) => VerdictsBy::TwoWords(ExactMatches { tuples, search }),
        })
    }

    fn find_exact<'g>(&'g self, learn: &Learn, key: &FlowKey, epoch: Epoch) -> Option<&'g Rule> {
        find_exact(&self.0, learn, key, epoch)
    }

    fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count) {
        let summaries = exact_of(&self.0, epoch).is_some_and(|exact| {
            // Reads the entry itself, and the precedence of the next one.
            self.0.iter().take(2).for_each(|entry| count.reads(entry));
            exact.read_by(key, count)
        });
        if !summaries {
            of_tuples(&self.0, key, None, epoch, count);
        }
    }

    fn is_quick(&self) -> bool {
        self.0.len() <= QUICK_TUPLES
    }

    fn patterns(&self) -> Option<Box<[Pattern]>> {
        gates(&self.0)
    }

    #[inline(always)]
    fn behind_patterns(&self, epoch: Epoch) -> Option<Behind<'_>> {
        Some(Behind::Tuples(&self.0, epoch))
    }
}

/// Returns the masked words of tuples.
pub(crate) fn words_of(tuples: &[TupleEntry]) -> impl Iterator<Item = (u8, u64)> {
    let words = tuples.iter().map(|entry| entry.tuple.words());
    words.flat_map(|words| words.iter().copied())
}

/// Returns the rule in one of these tuples that `learn` would make from the values of `key`.
pub(crate) fn find_exact<'g>(
    tuples: &'g [TupleEntry],
    learn: &Learn,
    key: &FlowKey,
    epoch: Epoch,
) -> Option<&'g Rule> {
    let priority = learn.priority.into();
    let mut tuples = tuples.iter().map(|entry| &entry.tuple);
    tuples.find_map(|tuple| tuple.find_exact(&learn.shape, key, priority, epoch))
}

impl TupleSpace {
    /// Looks up a slice of keys. Not inlined, so that what its loops need stays in registers.
    #[inline(never)]
    fn look_up_slice<'g, K: Words>(
        &'g self,
        keys: &[K],
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
    ) {
        let mut all = (0..out.len() as u8).collect();
        lookup_exact(&self.0, &mut all, keys, epoch, out, summaries);
    }

    /// Looks up packets that tuples cannot tell apart once. When that turns out to be rare, looks
    /// up the rest packet by packet.
    #[inline(always)]
    fn by_tuples<'g, K: Words>(
        &'g self,
        set: LaneSet,
        lanes: &[K; LOOKUP_MAX],
        epoch: Epoch,
        found: &mut Found<'g>,
    ) -> LaneSet {
        let tuples = &*self.0;
        let mut missed = LaneSet::EMPTY;
        let mut rest = set;
        while let Some(first) = rest.first() {
            let Some((rule, alike)) = look_up_alike(tuples, rest, first, lanes, epoch) else {
                let others = match tuples {
                    [only] if !only.single => self.look_up_in(only, rest, lanes, epoch, found),
                    _ => look_up_each(self, rest, lanes, epoch, found),
                };
                return missed.union(others);
            };
            match rule {
                Some(rule) => found.push(Some(rule), alike),
                None => missed = missed.union(alike),
            }
            rest = rest.minus(alike);
        }
        missed
    }

    /// Looks up packet by packet, in the only tuple of a table.
    #[inline(always)]
    fn look_up_in<'g, K: Words>(
        &'g self,
        only: &'g TupleEntry,
        set: LaneSet,
        lanes: &[K; LOOKUP_MAX],
        epoch: Epoch,
        found: &mut Found<'g>,
    ) -> LaneSet {
        let tuple = only.tuple.view();
        let words = only.tuple.words();
        // For a large tuple, each packet is first checked for whether it can have a rule there.
        let other = tuple.is_large() || words.iter().any(|(word, _)| *word >= K::AT_HAND);
        match words {
            _ if other => look_up_each(self, set, lanes, epoch, found),
            [a] => look_up_by(&tuple, [*a], set, lanes, epoch, found),
            [a, b] => look_up_by(&tuple, [*a, *b], set, lanes, epoch, found),
            [a, b, c] => look_up_by(&tuple, [*a, *b, *c], set, lanes, epoch, found),
            _ => look_up_each(self, set, lanes, epoch, found),
        }
    }
}

/// Returns the rule of the first packet of a set, and the packets that agree with it in all bits
/// read to find it. None where the set has others and none of the first few agrees.
#[inline(always)]
fn look_up_alike<'g, K: Words>(
    tuples: &'g [TupleEntry],
    set: LaneSet,
    first: usize,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
) -> Option<(Option<&'g Rule>, LaneSet)> {
    let key = &lanes[first % LOOKUP_MAX];
    let mut alike = set;
    let mut best: Option<&Rule> = None;
    for entry in tuples {
        if best.is_some_and(|best| best.spec.priority >= entry.max_priority) {
            break;
        }
        let words = entry.tuple.words();
        if alike.len() > 1 {
            let mut others = alike.front(SAMPLE).minus(LaneSet::one(first)).iter();
            let same = |lane: usize| {
                let other = &lanes[lane % LOOKUP_MAX];
                let mut words = words.iter();
                words.all(|(word, mask)| (other.word(*word) ^ key.word(*word)) & mask == 0)
            };
            if !others.any(same) {
                return None;
            }
            alike = same_bits(words, alike, key, lanes);
        }
        if entry.single {
            if key.has(&entry.agreed) {
                take_better(&mut best, entry.only(epoch));
            }
        } else if entry.admits(key) {
            let tuple = entry.tuple.view();
            take_better(&mut best, tuple.find(tuple.hash(key), key, epoch));
        }
    }
    Some((best, alike))
}

/// Returns the packets of a set that have the same bits as `key` in these words.
#[inline(always)]
fn same_bits<K: Words>(
    words: &[(u8, u64)],
    set: LaneSet,
    key: &K,
    lanes: &[K; LOOKUP_MAX],
) -> LaneSet {
    words.iter().fold(set, |same, (word, mask)| {
        let wanted = key.word(*word);
        // In most cases all of them are the same, or few.
        if K::differing(lanes, same, *word, wanted) & mask == 0 {
            return same;
        }
        same.those(|lane| (lanes[lane % LOOKUP_MAX].word(*word) ^ wanted) & mask == 0)
    })
}

/// Looks up packet by packet, in a tuple of N words.
#[inline(never)] // so that what its loops need stays in registers
fn look_up_by<'g, K: Words, const N: usize>(
    tuple: &View<'g>,
    words: [(u8, u64); N],
    set: LaneSet,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> LaneSet {
    // Copies for the loops.
    let places: [usize; N] = std::array::from_fn(|at| words[at].0.into());
    let masks: [u64; N] = std::array::from_fn(|at| words[at].1);
    let bits = |lane: usize| -> [u64; N] {
        let lane = &lanes[lane % LOOKUP_MAX];
        std::array::from_fn(|at| lane.at_hand(places[at]) & masks[at])
    };
    // Known here; the assertion removes bounds checks from the loops.
    assert!(places.iter().all(|place| *place < usize::from(K::AT_HAND)));
    // There are few enough slots to be in a cache, so they are not prefetched.
    let mut likely = [None; LOOKUP_MAX];
    for lane in set.iter() {
        likely[lane % LOOKUP_MAX] = tuple.likely(tuple.hash_bits(bits(lane)));
    }
    found.push_each(set.iter().map(|lane| {
        let likely = likely[lane % LOOKUP_MAX];
        let key = &lanes[lane % LOOKUP_MAX];
        (lane, tuple.find_likely(likely, bits(lane), key, epoch))
    }))
}

/// Counts the work of looking a key up in tuples. `best`: the precedence of the rule found before.
pub(crate) fn of_tuples(
    tuples: &[TupleEntry],
    key: &FlowKey,
    mut best: Option<u32>,
    epoch: Epoch,
    count: &mut Count,
) {
    for entry in tuples {
        count.reads(entry);
        if best.is_some_and(|best| best >= entry.max_priority) {
            return;
        }
        if !entry.admits(key) {
            continue;
        }
        count.probes += 1;
        let view = entry.tuple.view();
        view.read_by(key, count);
        if let Some(rule) = view.find(view.hash(key), key, epoch) {
            count.reads_rule(rule);
            best = best.max(Some(rule.spec.priority));
        }
    }
}

/// Returns, as patterns over mini keys, the bits in which the rules of each of a few tuples agree.
/// None for a single tuple, because most of the time all packets are looked up in it anyway.
pub(crate) fn gates(tuples: &[TupleEntry]) -> Option<Box<[Pattern]>> {
    let one = matches!(tuples, [only] if !only.single);
    if one || tuples.len() > GATES_MAX {
        return None;
    }
    let gate = |entry: &TupleEntry| {
        let words = entry.agreed.iter();
        Pattern::of(words.map(|word| (word.word, word.mask, word.value)))
    };
    tuples.iter().map(gate).collect()
}
