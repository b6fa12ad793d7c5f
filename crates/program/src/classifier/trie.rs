//! Longest prefix: a multibit trie over one field, for rules that look at a prefix of it and
//! otherwise want all the same.
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
//! another shape: a slot by one store, the runs of a node by a copy that takes its place. A slot
//! may hold a rule that is not yet, or no longer, in force: its place says that it must be asked
//! ([`super::places`]), and a packet that it does not hold for is looked up in the table's tuples,
//! which hold all rules always.
//!
//! Leaf pushing gives a slot the longest of its prefixes. Where a shorter one has the higher
//! precedence, it is left to tuples beside the trie.

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
/// Where there is room for more places than this (it grows by half, so not all of it need be used),
/// they are fetched before they are read; on the AVX-512 way only, the portable one fetches always.
/// Fewer stay in a second-level cache, and a processor that runs ahead waits for several of them at
/// once. So do a root's lines of as many rules, which are fetched by the same measure there.
const FEW: usize = 1 << 14;
/// A packet that has not what all rules want.
const STRANGER: u32 = u32::MAX;

/// Where a field lies in the key: its first byte, an even one, and how many it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Run {
    pub offset: u16,
    pub bytes: u8,
}

impl Run {
    /// The first two bytes.
    #[inline(always)]
    fn first(self, key: &impl Words) -> u32 {
        let offset = u32::from(self.offset);
        let word = u64::from_be(key.word((offset / 8) as u8));
        (word >> (48 - offset % 8 * 8) & 0xffff) as u32
    }

    /// Byte `index` of the field.
    #[inline(always)]
    fn byte(self, key: &impl Words, index: u32) -> u32 {
        let offset = u32::from(self.offset) + index;
        let word = u64::from_be(key.word((offset / 8) as u8));
        (word >> (56 - offset % 8 * 8) & 0xff) as u32
    }

    /// Where a field of four bytes that lie in one word is: the word, and how many bits stand
    /// behind.
    #[inline(always)]
    fn in_word(self) -> Option<(u8, u32)> {
        let behind = 32_u32.checked_sub(u32::from(self.offset) % 8 * 8)?;
        (self.bytes == 4).then_some(((self.offset / 8) as u8, behind))
    }

    /// How many nodes lie behind each other at most.
    fn levels(self) -> usize {
        usize::from(self.bytes) - 2
    }
}

/// The next hops of a burst's packets: of each the number of a place, which is what a prefix leads
/// to.
pub(crate) struct NextHops<'g, 'n> {
    /// Where whoever asks keeps them.
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

    /// Whether two packets have different ones.
    #[inline(always)]
    pub fn differ(&self, one: usize, other: usize) -> bool {
        self.numbers[one % LOOKUP_MAX] != self.numbers[other % LOOKUP_MAX]
    }

    /// The verdict of the rule that packet `index` has met, where its place tells. This cannot be
    /// so where the rule does not hold in the guard's epoch.
    #[inline(always)]
    pub fn verdict(&self, index: usize) -> Option<CountedVerdict<'g>> {
        self.place(index)?
            .verdict(|number| kept(self.edits, number))
    }

    /// Says what is to be done to packets of these numbers by their verdicts, up to the first
    /// without one, or to [`STEP`](super::STEP) of them. Returns how many these are.
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
            // SAFETY: only a variant that the processor has is ever used.
            return unsafe { avx512::batch(self, those, counters, batch) };
        }
        // By themselves, so that they are not read for each packet anew.
        let numbers = &self.numbers[..those.end][those.start..];
        let (places, default, edits) = (self.places, self.default, self.edits);
        batch.fill(counters, numbers.len(), |at| {
            place(places, default, numbers[at])?.verdict(|number| kept(edits, number))
        })
    }

    /// Finds the rules of packets, from number `from` on. Those for which their places do not tell
    /// are given to `missed`. Where somebody is to be summaries what is known of rules, these are
    /// not fetched.
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

/// The place of this number; of [`NONE`] the default's.
#[inline(always)]
fn place(all: &[RuleSummary], default: u32, number: u32) -> Option<&RuleSummary> {
    let number = if number == NONE { default } else { number };
    // The first one belongs to nobody.
    all.get(number as usize).filter(|_| number != NONE)
}

/// The trie of a table.
pub(crate) struct Trie {
    run: Run,
    /// What all rules want beside the prefix: asked for once.
    shared: Box<[MatchWord]>,
    /// The root, and nodes.
    lines: Lines,
    places: Growing<RuleSummary>,
    edits: KeptEdits,
    /// The place of the rule for all addresses that no longer prefix holds.
    default: AtomicU32,
    /// No rule has a lower precedence.
    floor: AtomicU32,
}

impl Trie {
    /// The words of packets that a lookup reads: also those that only rules look at which have gone
    /// since.
    pub fn reads(&self) -> impl Iterator<Item = u8> {
        let Run { offset, bytes } = self.run;
        let field = offset / 8..=(offset + u16::from(bytes) - 1) / 8;
        let shared = self.shared.iter().map(|word| word.word);
        field.map(|word| word as u8).chain(shared)
    }

    /// A precedence that no rule here is below.
    #[inline(always)]
    pub fn floor(&self) -> u32 {
        self.floor.load(Ordering::Acquire)
    }

    /// The next hops of packets, [`LOOKUP_MAX`] at most: the places of their best rules.
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

    /// [`Trie::next_hops`] for mini keys that lie behind each other. Where vector code does it,
    /// addresses are taken out of them sixteen at a time.
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
            // SAFETY: only a variant that the processor has is ever used.
            let known = unsafe { avx512::addresses(keys, sought, &mut addresses) };
            if self.places.view().len() > FEW {
                // Lines of the root wait for memory too then: a prefetch is done with sooner than a
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

    /// What vector code looks for in mini keys, where the field is four of their bytes and rules
    /// want bits of another four alike, as most do.
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

    /// With what else these numbers of places need.
    #[inline(always)]
    fn placed<'g, 'n>(&'g self, numbers: &'n [u32; LOOKUP_MAX]) -> NextHops<'g, 'n> {
        NextHops {
            numbers,
            default: self.default.load(Ordering::Acquire),
            // Only now: it has all places that have been read of, also where it has grown
            // meanwhile.
            places: self.places.view(),
            edits: self.edits.view(),
        }
    }

    /// Those of the first `count` packets that have what all rules want, a bit for each.
    #[inline(always)]
    fn known<'k, K: Words + 'k>(&self, key: &impl Fn(usize) -> &'k K, count: usize) -> u64 {
        let those =
            (0..count.min(LOOKUP_MAX)).map(|index| u64::from(self.admits(key(index))) << index);
        those.fold(0, |known, one| known | one)
    }

    /// Whether a packet has what all rules want.
    #[inline(always)]
    fn admits(&self, key: &impl Words) -> bool {
        match *self.shared {
            // Nearly always: the kind of packet.
            [MatchWord { word, mask, value }] => key.word(word) & mask == value,
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
            // SAFETY: only a variant that the processor has is ever used.
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

    /// Leads packets that are `known` to their places, and fetches these. Level by level: what each
    /// packet reads next is fetched while others take their step.
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
        // The slot that a packet is at, or the node.
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
                    // The slot has been fetched.
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

    /// Notes what looking one key up reads; returns the precedence of what it finds.
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

/// A trie, and what it does not hold.
pub(crate) struct TrieClassifier {
    pub(crate) trie: Arc<Trie>,
    /// Tuples with rules that are not in the trie, with the highest precedence of those.
    pub(crate) beside: Box<[TupleEntry]>,
    /// All tuples.
    pub(crate) all: Box<[TupleEntry]>,
}

impl TrieClassifier {
    /// Whether what stands beside is not of higher precedence than any prefix, most often a table's
    /// last rule: only packets without a prefix ask for it.
    #[inline(always)]
    pub(crate) fn decides(&self) -> bool {
        let highest = self.beside.first().map(|entry| entry.max_priority);
        highest <= Some(self.trie.floor())
    }

    /// The rules of packets whose next hops these are, from number `from` on.
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

    /// Apart, so that what its loops need stays in registers.
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

    /// Apart, so that other tables' lookups keep their registers.
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

/// Packets' next hops in a table of prefixes.
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
