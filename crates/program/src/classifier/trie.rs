//! Longest prefix: a multibit trie over one field, for rules that match a prefix of it and agree in
//! everything else.
//!
//! The first 16 bits of the field index the root, each further byte a node of 256 slots. A slot
//! holds a node, or the best rule for all packets that come there (leaf pushing, Srinivasan and
//! Varghese 1999), so a lookup compares nothing. Most nodes have few different slots: they are held
//! as runs, the slots where another value begins and then the values, in one, two or four cache
//! lines; where that is not enough a node is an array of 16 lines. (Runs found by counting bits:
//! Lulea, Degermark et al. 1997; poptrie, Asai and Ohara 2015.) An IPv4 address takes the root and
//! two nodes at most, and of each node one or two lines. With AVX-512 sixteen such packets take
//! each step together (`avx512`).
//!
//! The writer ([`writer`]) changes the trie in place as rules come and go, without publishing
//! another classifier: a slot by one store, the runs of a node by a copy that replaces it. A slot
//! may hold a rule that is not yet, or no longer, in force: its summary (`rule::summary`) then says
//! that the rule must be asked, and a packet for which it does not hold is looked up in the table's
//! tuples, which always hold all rules.
//!
//! Leaf pushing gives a slot the longest of its prefixes. A shorter one with a higher precedence is
//! left to tuples beside the trie.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod nodes;
mod writer;

use super::effort::Count;
use super::mini_key::Reads;
use super::tuple_space::{
    QUICK_TUPLES, TupleEntry, find_exact, lookup_one, lookup_pending, of_tuples, words_of,
};
use super::verdicts::{FoundRules, Verdicts, VerdictsBy};
use super::{Classify, Keys};
use crate::actions::batch::ActionBatch;
use crate::actions::block::ActionBlock;
use crate::actions::learn::Learn;
use crate::burst::LOOKUP_MAX;
use crate::burst::Words;
use crate::counters::WorkerCounters;
use crate::epoch::Epoch;
use crate::growing::Growing;
use crate::prefetch::prefetch;
use crate::rule::Rule;
use crate::rule::summary::{
    ASK, CountedVerdict, Edits, KeptEdits, RuleSummary, Summaries, kept, resolve_from,
};
use nodes::{Entry, Lines, Slot};
use packet::FlowKey;
use packet::matching::MatchWord;
use packet::mini_key::MiniKey;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
pub(crate) use writer::{Candidate, Prefixes};

/// No rule.
const NONE: u32 = 0;
/// The place of slots whose packets are looked up in tuples.
const ELSEWHERE: u32 = 1;
/// On the AVX-512 path, places are prefetched only where there is room for more than this (room
/// grows by half, so not all of it need be used); the portable path always prefetches. Fewer stay
/// in a second-level cache, and out-of-order execution overlaps those misses. The same threshold
/// decides whether lines of the root are prefetched there.
const FEW: usize = 1 << 14;
/// Result for a packet that does not have the values that all rules share.
const STRANGER: u32 = u32::MAX;

/// A field's position in the key: its first byte, which is even, and its length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Run {
    pub offset: u16,
    pub bytes: u8,
}

impl Run {
    /// Returns the first two bytes.
    #[inline(always)]
    fn first(self, key: &impl Words) -> u32 {
        let offset = u32::from(self.offset);
        let word = u64::from_be(key.word((offset / 8) as u8));
        (word >> (48 - offset % 8 * 8) & 0xffff) as u32
    }

    /// Returns byte `index` of the field.
    #[inline(always)]
    fn byte(self, key: &impl Words, index: u32) -> u32 {
        let offset = u32::from(self.offset) + index;
        let word = u64::from_be(key.word((offset / 8) as u8));
        (word >> (56 - offset % 8 * 8) & 0xff) as u32
    }

    /// Locates a field of four bytes that lie in one word: returns the word, and how many of its
    /// bits come after the field.
    #[inline(always)]
    fn in_word(self) -> Option<(u8, u32)> {
        let behind = 32_u32.checked_sub(u32::from(self.offset) % 8 * 8)?;
        (self.bytes == 4).then_some(((self.offset / 8) as u8, behind))
    }

    /// Returns how many nodes lie on a path at most.
    fn levels(self) -> usize {
        usize::from(self.bytes) - 2
    }
}

/// The next hops of a burst's packets: for each the number of the place that its prefix leads to.
pub(crate) struct NextHops<'g, 'n> {
    /// The numbers, in the caller's memory.
    numbers: &'n [u32; LOOKUP_MAX],
    default: u32,
    places: &'g [RuleSummary],
    edits: &'g [AtomicPtr<ActionBlock>],
}

impl<'g> NextHops<'g, '_> {
    #[inline(always)]
    fn place(&self, index: usize) -> Option<&'g RuleSummary> {
        place(self.places, self.default, self.numbers[index % LOOKUP_MAX])
    }

    /// Returns whether two packets have different next hops.
    #[inline(always)]
    pub fn differ(&self, one: usize, other: usize) -> bool {
        self.numbers[one % LOOKUP_MAX] != self.numbers[other % LOOKUP_MAX]
    }

    /// Returns the verdict of packet `index`, where its place has one. It has none where the rule
    /// may not hold in the guard's epoch.
    #[inline(always)]
    pub fn verdict(&self, index: usize) -> Option<CountedVerdict<'g>> {
        self.place(index)?
            .verdict(|number| kept(self.edits, number))
    }

    /// Fills in the verdicts of these packets, up to the first without one, at most
    /// `STEP`. Returns how many were filled in.
    #[inline(never)] // so that what its loops need stays in registers
    pub fn batch<'d>(
        &self,
        those: Range<usize>,
        counters: WorkerCounters<'d>,
        batch: &mut ActionBatch<'d>,
    ) -> usize
    where
        'g: 'd,
    {
        #[cfg(target_arch = "x86_64")]
        if packet::mini_key::Variant::used() == packet::mini_key::Variant::Avx512 {
            // SAFETY: `Variant::used` only returns variants that the processor has.
            return unsafe { avx512::batch(self, those, counters, batch) };
        }
        // Copies, so that they are not read again for each packet.
        let numbers = &self.numbers[..those.end][those.start..];
        let (places, default, edits) = (self.places, self.default, self.edits);
        batch.fill(counters, numbers.len(), |at| {
            place(places, default, numbers[at])?.verdict(|number| kept(edits, number))
        })
    }

    /// Finds the rules of packets, from number `from` on. Calls `missed` for those that must be
    /// looked up in tuples. With `summaries`, rules that have one are not prefetched.
    #[inline(always)]
    pub fn resolve(
        &self,
        from: usize,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        mut summaries: Option<&mut Summaries<'g>>,
        missed: impl FnMut(usize, &mut Option<&'g Rule>),
    ) {
        if let Some(summaries) = &mut summaries {
            summaries.edits = Edits::Kept(self.edits);
        }
        resolve_from(
            from,
            |index| self.place(index),
            epoch,
            out,
            summaries,
            missed,
        );
    }
}

/// Returns the place of this number; for [`NONE`] the default's.
#[inline(always)]
fn place(all: &[RuleSummary], default: u32, number: u32) -> Option<&RuleSummary> {
    let number = if number == NONE { default } else { number };
    // Place 0 is unused.
    all.get(number as usize).filter(|_| number != NONE)
}

/// The trie of a table.
pub(crate) struct Trie {
    run: Run,
    /// Values that all rules share beside the prefix: compared once.
    shared: Box<[MatchWord]>,
    /// The root, and nodes.
    lines: Lines,
    places: Growing<RuleSummary>,
    edits: KeptEdits,
    /// The place of the rule with prefix length 0.
    default: AtomicU32,
    /// No rule has a lower precedence.
    floor: AtomicU32,
}

impl Trie {
    /// Returns the words of packets that a lookup reads, including words that only removed rules
    /// look at.
    pub fn reads(&self) -> impl Iterator<Item = u8> {
        let Run { offset, bytes } = self.run;
        let field = offset / 8..=(offset + u16::from(bytes) - 1) / 8;
        let shared = self.shared.iter().map(|word| word.word);
        field.map(|word| word as u8).chain(shared)
    }

    /// Returns a precedence that no rule here is below.
    #[inline(always)]
    pub fn floor(&self) -> u32 {
        self.floor.load(Ordering::Acquire)
    }

    /// Returns the next hops of at most [`LOOKUP_MAX`] packets: the places of their best rules.
    #[inline(always)]
    pub fn next_hops<'k, 'g, 'n, K: Words + 'k>(
        &'g self,
        key: &impl Fn(usize) -> &'k K,
        count: usize,
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> NextHops<'g, 'n> {
        numbers.fill(STRANGER);
        match self.run.in_word() {
            Some((word, behind)) => {
                let mut addresses = [0; LOOKUP_MAX];
                let lines = self.lines.view();
                let mut known = 0;
                for (index, address) in addresses.iter_mut().take(count).enumerate() {
                    let key = key(index);
                    *address = (u64::from_be(key.word(word)) >> behind) as u32;
                    prefetch(lines.address(Slot(*address >> 16)));
                    known |= u64::from(self.admits(key)) << index;
                }
                self.descend_by_addresses(&addresses, known, count, numbers);
            }
            None => {
                let known = self.known(key, count);
                let byte = |index: usize, level| self.run.byte(key(index), level);
                let lines = self.lines.view();
                let first = |index: usize| {
                    let root = self.run.first(key(index));
                    prefetch(lines.address(Slot(root)));
                    root
                };
                self.descend(first, byte, known, count, numbers);
            }
        }
        self.placed(numbers)
    }

    /// [`Trie::next_hops`] for contiguous mini keys. Vector code extracts their addresses sixteen
    /// at a time.
    #[inline(always)]
    pub fn next_hops_of_mini_keys<'g, 'n>(
        &'g self,
        keys: &[MiniKey],
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> NextHops<'g, 'n> {
        #[cfg(target_arch = "x86_64")]
        if let Some(sought) = self.sought()
            && packet::mini_key::Variant::used() == packet::mini_key::Variant::Avx512
        {
            numbers.fill(STRANGER);
            let mut addresses = [0; LOOKUP_MAX];
            let keys = &keys[..keys.len().min(LOOKUP_MAX)];
            // SAFETY: `Variant::used` only returns variants that the processor has.
            let known = unsafe { avx512::addresses(keys, sought, &mut addresses) };
            if self.places.view().len() > FEW {
                // Then lines of the root miss the cache too, and a prefetch takes less time than a
                // gather.
                let lines = self.lines.view();
                for address in &addresses[..keys.len()] {
                    prefetch(lines.address(Slot(*address >> 16)));
                }
            }
            self.descend_by_addresses(&addresses, known, keys.len(), numbers);
            return self.placed(numbers);
        }
        self.next_hops(&|index| &keys[index], keys.len(), numbers)
    }

    /// Returns what vector code extracts from mini keys, where the field is four of their bytes and
    /// the rules share values of another four only, as most do.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn sought(&self) -> Option<avx512::Sought> {
        let Run { offset, bytes: 4 } = self.run else {
            return None;
        };
        let [kind] = *self.shared else {
            return None;
        };
        avx512::Sought::of(offset, kind)
    }

    /// Combines the numbers of places with what else reading them needs.
    #[inline(always)]
    fn placed<'g, 'n>(&'g self, numbers: &'n [u32; LOOKUP_MAX]) -> NextHops<'g, 'n> {
        NextHops {
            numbers,
            default: self.default.load(Ordering::Acquire),
            // Loaded only now, so that it has all places whose numbers were read, also if it has
            // grown meanwhile.
            places: self.places.view(),
            edits: self.edits.view(),
        }
    }

    /// Returns a bit for each of the first `count` packets that has the values that all rules
    /// share.
    #[inline(always)]
    fn known<'k, K: Words + 'k>(&self, key: &impl Fn(usize) -> &'k K, count: usize) -> u64 {
        let those =
            (0..count.min(LOOKUP_MAX)).map(|index| u64::from(self.admits(key(index))) << index);
        those.fold(0, |known, one| known | one)
    }

    /// Returns whether a packet has the values that all rules share.
    #[inline(always)]
    fn admits(&self, key: &impl Words) -> bool {
        match *self.shared {
            // The usual case: one word, the kind of packet.
            [
                MatchWord {
                    word, mask, value, ..
                },
            ] => key.word(word) & mask == value,
            _ => key.has(&self.shared),
        }
    }

    /// [`Trie::descend`] for fields of four bytes.
    #[inline(always)]
    fn descend_by_addresses(
        &self,
        addresses: &[u32; LOOKUP_MAX],
        known: u64,
        count: usize,
        places: &mut [u32; LOOKUP_MAX],
    ) {
        #[cfg(target_arch = "x86_64")]
        if packet::mini_key::Variant::used() == packet::mini_key::Variant::Avx512 {
            // SAFETY: `Variant::used` only returns variants that the processor has.
            unsafe {
                avx512::descend(self.lines.view(), addresses, known, STRANGER, count, places)
            };
            let all = self.places.view();
            if all.len() > FEW {
                for number in places.iter().take(count) {
                    prefetch(all.as_ptr().wrapping_add(*number as usize));
                }
            }
            return;
        }
        let byte = |index: usize, level| {
            debug_assert!(level < 4, "what the last byte leads to is a place");
            addresses[index] >> (24 - 8 * level) & 0xff
        };
        self.descend(|index| addresses[index] >> 16, byte, known, count, places);
    }

    /// Leads packets that are `known` to their places, and prefetches these. Goes level by level:
    /// each packet's next slot is prefetched while others take their step.
    #[inline(always)]
    fn descend(
        &self,
        first: impl Fn(usize) -> u32,
        byte_of: impl Fn(usize, u32) -> u32,
        known: u64,
        count: usize,
        places: &mut [u32; LOOKUP_MAX],
    ) {
        let lines = self.lines.view();
        let all = self.places.view();
        let fetch_place = |number: u32| prefetch(all.as_ptr().wrapping_add(number as usize));
        // The slot that a packet is at, or its node.
        let mut at = [0_u32; LOOKUP_MAX];
        let mut waiting = [0_u8; LOOKUP_MAX];
        let mut all_known = 0;
        for (index, at) in at.iter_mut().enumerate().take(count) {
            *at = first(index);
            waiting[all_known] = index as u8;
            all_known += (known >> index & 1) as usize;
        }
        let mut count = all_known;
        for level in 2..=u32::from(self.run.bytes) {
            let mut deeper = 0;
            for turn in 0..count {
                let index = usize::from(waiting[turn]) % LOOKUP_MAX;
                let entry = lines.load(Slot(at[index]));
                at[index] = entry.0;
                places[index] = entry.0;
                waiting[deeper] = index as u8;
                if entry.is_node() {
                    deeper += 1;
                    let byte = byte_of(index, level);
                    prefetch(lines.address(lines.way_to(entry, byte)));
                } else {
                    fetch_place(entry.0);
                }
            }
            if deeper == 0 {
                return;
            }
            count = 0;
            for turn in 0..deeper {
                let index = usize::from(waiting[turn]) % LOOKUP_MAX;
                let node = Entry(at[index]);
                let byte = byte_of(index, level);
                let slot = lines.slot_of(node, byte);
                waiting[count] = index as u8;
                at[index] = slot.0;
                if node.is_small() || node.is_wide() {
                    // The slot has been prefetched.
                    let entry = lines.load(slot);
                    places[index] = entry.0;
                    count += usize::from(entry.is_node());
                    fetch_place(entry.0);
                } else {
                    prefetch(lines.address(slot));
                    count += 1;
                }
            }
            if count == 0 {
                return;
            }
        }
    }

    /// Counts what looking one key up reads; returns the precedence of the rule found.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) -> Option<u32> {
        count.reads(&*self.shared);
        if !key.has(&self.shared) {
            return None;
        }
        let lines = self.lines.view();
        let mut slot = Slot(self.run.first(key));
        let mut level = 2;
        let entry = loop {
            count.reads(lines.word(slot)?);
            let entry = lines.load(slot);
            if !entry.is_node() {
                break entry;
            }
            count.probes += 1;
            if !entry.is_wide() {
                count.reads(lines.word(entry.first())?);
            }
            slot = lines.slot_of(entry, self.run.byte(key, level));
            level += 1;
        };
        let default = self.default.load(Ordering::Acquire);
        let place = place(self.places.view(), default, entry.0)?;
        count.reads(place);
        let (rule, marks) = place.get(Ordering::Acquire);
        // SAFETY: as in `resolve`: whoever counts does so under a guard.
        let rule = unsafe { rule.as_ref() }?;
        if marks & ASK != 0 {
            count.reads_rule(rule);
        }
        Some(rule.spec.priority)
    }
}

/// A trie, and tuples for rules that are not in it.
pub(crate) struct TrieClassifier {
    pub(crate) trie: Arc<Trie>,
    /// Tuples with rules that are not in the trie, and the highest precedence of those.
    pub(crate) beside: Box<[TupleEntry]>,
    /// All tuples.
    pub(crate) all: Box<[TupleEntry]>,
}

impl TrieClassifier {
    /// Returns whether no rule beside the trie beats a prefix, so that only packets without a
    /// prefix look there. Most often it is a table's last rule.
    #[inline(always)]
    pub(crate) fn decides(&self) -> bool {
        let highest = self.beside.first().map(|entry| entry.max_priority);
        highest <= Some(self.trie.floor())
    }

    /// Finds the rules of packets that have these next hops, from number `from` on.
    #[inline(always)]
    pub(crate) fn resolve<'k, 'g, K: Words + 'k>(
        &'g self,
        next_hops: &NextHops<'g, '_>,
        from: usize,
        key: &impl Fn(usize) -> &'k K,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
    ) {
        let decides = self.decides();
        let summaries = summaries.filter(|_| decides);
        next_hops.resolve(from, epoch, out, summaries, |index, out| {
            *out = lookup_one(&self.all, key(index), epoch);
        });
        if !self.beside.is_empty() {
            let mut pending = (from as u8..out.len() as u8)
                .filter(|index| !decides || out[usize::from(*index)].is_none())
                .collect();
            lookup_pending(&self.beside, &mut pending, key, epoch, out);
        }
    }

    /// Returns packets' next hops. Not inlined, so that what its loops need stays in registers.
    #[inline(never)]
    pub(crate) fn next_hops<'g, 'n, K: Words>(
        &'g self,
        keys: &[K],
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> NextHops<'g, 'n> {
        match K::hot(keys) {
            Some(hot) => self.trie.next_hops_of_mini_keys(hot, numbers),
            None => (self.trie).next_hops(&|index| &keys[index], keys.len(), numbers),
        }
    }
}

impl Classify for TrieClassifier {
    fn reads(&self) -> Reads {
        let trie = self.trie.reads().map(|word| (word, u64::MAX));
        Reads::of(words_of(&self.all).chain(trie))
    }

    /// Looks packets up. Not inlined, so that other tables' lookups keep their registers.
    #[inline(never)]
    fn look_up<'k, 'g, K: Words + 'k>(
        &'g self,
        keys: impl Keys<'k, K>,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
    ) {
        let mut numbers = [0; LOOKUP_MAX];
        let key = &move |index| keys.key(index);
        let next_hops = self.trie.next_hops(key, out.len(), &mut numbers);
        self.resolve(&next_hops, 0, key, epoch, out, summaries);
    }

    #[inline(always)]
    fn verdicts<'g, 'n, K: Words>(
        &'g self,
        keys: &[K],
        _: Epoch,
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> Option<VerdictsBy<'g, 'n>> {
        self.decides().then(|| {
            let next_hops = self.next_hops(keys, numbers);
            VerdictsBy::Routes(Routes {
                classifier: self,
                next_hops,
            })
        })
    }

    fn find_exact<'g>(&'g self, learn: &Learn, key: &FlowKey, epoch: Epoch) -> Option<&'g Rule> {
        find_exact(&self.all, learn, key, epoch)
    }

    fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count) {
        let best = self.trie.read_by(key, count);
        of_tuples(&self.beside, key, best, epoch, count);
    }

    fn is_quick(&self) -> bool {
        self.beside.len() < QUICK_TUPLES
    }
}

/// Packets' next hops in a table with a trie.
pub(crate) struct Routes<'g, 'n> {
    pub(crate) classifier: &'g TrieClassifier,
    pub(crate) next_hops: NextHops<'g, 'n>,
}

impl<'g> Verdicts<'g> for Routes<'g, '_> {
    #[inline(always)]
    fn differ<K: Words>(&self, (one, _): (usize, &K), (other, _): (usize, &K)) -> bool {
        self.next_hops.differ(one, other)
    }

    #[inline(always)]
    fn verdict<K: Words>(&self, index: usize, _: &K) -> Option<CountedVerdict<'g>> {
        self.next_hops.verdict(index)
    }

    #[inline(always)]
    fn batch<'d>(
        &self,
        those: Range<usize>,
        _: impl Fn(usize) -> Option<CountedVerdict<'g>>,
        counters: WorkerCounters<'d>,
        batch: &mut ActionBatch<'d>,
    ) -> usize
    where
        'g: 'd,
    {
        self.next_hops.batch(those, counters, batch)
    }

    #[inline(never)] // most bursts' packets need only their verdicts
    fn rules<'a, K: Words>(
        &'a self,
        from: usize,
        keys: &[K],
        epoch: Epoch,
        room: &'a mut FoundRules<'g>,
    ) -> &'a FoundRules<'g> {
        let FoundRules { found, summaries } = &mut *room;
        let out = &mut found[..keys.len()];
        let key = |index: usize| &keys[index];
        (self.classifier).resolve(&self.next_hops, from, &key, epoch, out, Some(summaries));
        room
    }
}
