//! One tuple: the rules that look at the same bits, in a hash table that one writer changes while
//! readers read.
//!
//! A slot is one word: the address of the first rule of a chain and 16 bits of its hash, so a probe
//! rarely touches a rule that does not match. A chain holds the rules with one value, the highest
//! precedence first ([`Rule::next`]). It has only the newest version of each precedence; older
//! versions that are still linked hang behind that, newest first ([`Rule::older`]). A version holds
//! until the one after it begins, so a lookup skips the versions that were published after its
//! burst began, and looks at one more, however many dead ones there are.
//!
//! A version that is replaced stays readable for lookups that are at it: its `next` then leads to
//! the version that replaced it, from where the chain goes on. So a lookup that reaches an older
//! version (by a decision tree, for example) finds the newer ones.
//!
//! A chain is in one of the first [`REACH`] slots from that of its hash on, so a lookup reads no
//! more than these, 16 contiguous cache lines, whatever rules and packets an attacker chooses.
//! Because the hash has a secret key ([`crate::secret`]), nobody can make it read more than the
//! average of two or three. Where a chain does not fit its reach the slots are rebuilt, with
//! another secret, and with twice as many slots; after [`ATTEMPTS`] failures, which no choice of
//! rules explains, the limit is dropped so that no rule is lost.
//!
//! At least half of the slots stay empty. Large tables grow incrementally: a few of the new slots
//! are filled with each rule that comes, while the old ones are in use ([`Growing`]). To fill a
//! million at once would take a quarter of a second, during which a controller would wait.

use crate::burst::Words;
use crate::classifier::effort::Count;
use crate::epoch::{Domain, Epoch};
use crate::prefetch::prefetch;
use crate::rule::Rule;
use crate::secret::Secret;
use crossbeam_utils::CachePadded;
use packet::matching::MatchWord;
use packet::{FlowKey, Match};
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// One masked word of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaskedWord {
    pub word: u8,
    pub mask: u64,
    pub value: u64,
}

impl From<&MatchWord> for MaskedWord {
    fn from(word: &MatchWord) -> Self {
        MaskedWord {
            word: word.word,
            mask: word.mask,
            value: word.value,
        }
    }
}

/// How many rules ahead to prefetch when slots are rebuilt.
const AHEAD: usize = 8;
/// Slots that take 32 KB.
const LARGE: usize = 4096;
/// Number of consecutive slots in which a chain may be, from that of its hash on. With a million
/// rules and half of the slots empty, a rule finds no room by chance once in 50,000 times that the
/// slots fill up.
const REACH: usize = 128;
/// How often slots are rebuilt for one rule that finds no room in its reach, before the reach is
/// given up.
const ATTEMPTS: u32 = 4;
/// Tables of at most this many slots are rebuilt at once, in a fraction of a millisecond.
const AT_ONCE: usize = 4096;
/// Slots copied with each rule that comes while a table grows. Growth begins when three eighths are
/// used, and half of this would suffice to finish before one half is.
const SLICE: usize = 16;
const EMPTY: u64 = 0;
const DELETED: u64 = 1;
const ADDRESS: u64 = (1 << 48) - 1;

struct Slots {
    slots: Box<[AtomicU64]>,
    secret: Secret,
    /// [`REACH`], or more if nothing else has helped, which takes equal hashes in all 64 bits.
    reach: usize,
    /// The writer's, on a cache line of its own, because readers read the other one in every burst.
    counts: CachePadded<Counts>,
}

/// The writer's counts of slots.
#[derive(Default)]
struct Counts {
    /// Slots that are not [`EMPTY`].
    used: AtomicUsize,
    /// Of these, those with a chain.
    chains: AtomicUsize,
}

impl Counts {
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn chains(&self) -> usize {
        self.chains.load(Ordering::Relaxed)
    }

    /// Counts a chain that has been put into a slot that held `was`: [`EMPTY`] or [`DELETED`].
    fn came(&self, was: u64) {
        let used = self.used() + usize::from(was == EMPTY);
        self.used.store(used, Ordering::Relaxed);
        self.chains.store(self.chains() + 1, Ordering::Relaxed);
    }

    fn went(&self) {
        self.chains.store(self.chains() - 1, Ordering::Relaxed);
    }
}

/// A larger table that is being filled while the old one is in use.
struct Growing {
    to: Slots,
    /// Chains of the old table below this slot have been copied.
    next: usize,
    attempt: u32,
}

impl Slots {
    fn new(count: usize, secret: Secret, attempt: u32) -> Slots {
        let count = count.next_power_of_two().max(8);
        Slots {
            slots: empty(count),
            secret,
            reach: if attempt < ATTEMPTS {
                REACH.min(count)
            } else {
                count
            },
            counts: CachePadded::default(),
        }
    }

    /// Puts chains into slots that are all empty; returns false where one finds no room in its
    /// reach. These slots are not published yet.
    fn fill(&self, chains: &[u64]) -> bool {
        chains.iter().enumerate().all(|(index, chain)| {
            if let Some(later) = chains.get(index + AHEAD) {
                expect_match(*later);
            }
            self.put(*chain)
        })
    }

    /// Adds a chain that is not there; returns false where it finds no room in its reach. These
    /// slots are not published yet.
    fn put(&self, chain: u64) -> bool {
        let head = address(chain);
        // SAFETY: a linked head is alive.
        let hash = self.secret.hash_of(unsafe { &head.as_ref().spec.matching });
        for slot in self.run(hash) {
            let was = slot.load(Ordering::Relaxed);
            if was <= DELETED {
                slot.store(entry(head, hash), Ordering::Relaxed);
                self.counts.came(was);
                return true;
            }
        }
        false
    }

    /// Returns the slots in which a chain of this hash may be.
    fn run(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        let mask = self.slots.len() - 1;
        (0..self.reach).map(move |step| &self.slots[(hash as usize + step) & mask])
    }

    /// Repeats a change of the table in use, whose slot held `before` and now holds `after`.
    /// Returns false where a chain finds no room.
    fn follow(&self, before: u64, after: u64) -> bool {
        if before <= DELETED {
            return after <= DELETED || self.put(after);
        }
        // All rules of a chain have the same value.
        let head = address(if after > DELETED { after } else { before });
        // SAFETY: a linked head is alive, and one that is being unlinked is the writer's still.
        let hash = self.secret.hash_of(unsafe { &head.as_ref().spec.matching });
        let old = entry(address(before), hash);
        let mut run = self.run(hash);
        let Some(slot) = run.find(|slot| slot.load(Ordering::Relaxed) == old) else {
            return false;
        };
        if after > DELETED {
            slot.store(entry(head, hash), Ordering::Relaxed);
        } else {
            slot.store(DELETED, Ordering::Relaxed);
            self.counts.went();
        }
        true
    }
}

/// Allocates empty slots. The kernel provides zeroed pages on first use, so many slots cost no more
/// than few until they are used.
fn empty(count: usize) -> Box<[AtomicU64]> {
    let words = vec![EMPTY; count].into_boxed_slice();
    // SAFETY: an atomic word has the layout of a word, and the words are not shared.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) }
}

/// Prefetches the match of a chain's first rule.
fn expect_match(chain: u64) {
    let rule = address(chain).as_ptr().cast::<u8>();
    prefetch(rule.wrapping_add(64));
    prefetch(rule.wrapping_add(128));
}

/// The rules that look at one set of bits.
pub(crate) struct Tuple {
    words: SmallVec<[(u8, u64); 4]>,
    slots: AtomicPtr<Slots>,
    /// Returns the secret for each attempt.
    secrets: fn(u32) -> Secret,
    /// The writer's state while the table grows.
    growing: CachePadded<Mutex<Option<Growing>>>,
}

/// A tuple's table as it is now, for a burst of lookups.
pub(crate) struct View<'a> {
    words: &'a [(u8, u64)],
    slots: &'a [AtomicU64],
    secret: Secret,
    reach: usize,
}

#[inline(always)]
fn tag(hash: u64) -> u64 {
    hash & !ADDRESS
}

fn entry(rule: NonNull<Rule>, hash: u64) -> u64 {
    rule.as_ptr() as u64 | tag(hash)
}

#[inline(always)]
fn address(slot: u64) -> NonNull<Rule> {
    // SAFETY: only called for slots that hold an address, which came from a `NonNull<Rule>` below
    // 2^48 (user space on x86-64 and arm64).
    unsafe { NonNull::new_unchecked((slot & ADDRESS) as *mut Rule) }
}

impl View<'_> {
    #[inline(always)]
    pub fn hash(&self, key: &impl Words) -> u64 {
        let words = self.words.iter();
        self.secret
            .hash(words.map(|(word, mask)| key.word(*word) & mask))
    }

    /// Hashes a packet's bits in the tuple's words.
    #[inline(always)]
    pub fn hash_bits<const N: usize>(&self, bits: [u64; N]) -> u64 {
        self.secret.hash(bits)
    }

    /// Returns whether its slots exceed their share of a first-level cache.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.slots.len() > LARGE
    }

    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        let at = hash as usize & (self.slots.len() - 1);
        prefetch(&raw const self.slots[at]);
    }

    /// Prefetches the rule that the first slot of this hash leads to; the slot must have been
    /// prefetched.
    #[inline(always)]
    pub fn prefetch_rule(&self, hash: u64) {
        let slot = self.slots[hash as usize & (self.slots.len() - 1)].load(Ordering::Relaxed);
        if slot > DELETED && tag(slot) == tag(hash) {
            self.prefetch_match(address(slot).as_ptr());
        }
    }

    /// Prefetches the parts of a rule that are compared.
    #[inline(always)]
    fn prefetch_match(&self, rule: *const Rule) {
        prefetch(rule);
        if self.words.len() > 1 {
            // The match; a match of one word is in the rule's first line.
            prefetch(rule.cast::<u8>().wrapping_add(64));
        }
    }
}

impl<'a> View<'a> {
    /// Returns the first rule of the matching chain that holds in `epoch`.
    #[inline(always)]
    pub fn find(&self, hash: u64, key: &impl Words, epoch: Epoch) -> Option<&'a Rule> {
        first_held(self.head(hash, key)?, epoch)
    }

    /// Returns the head of the chain that the first slot of this hash leads to, if its tag is the
    /// hash's, as in most cases. Prefetches the parts of it that are compared.
    #[inline(always)]
    pub fn likely(&self, hash: u64) -> Option<&'a Rule> {
        let slot = self.slots[hash as usize & (self.slots.len() - 1)].load(Ordering::Acquire);
        // If the tags are equal, XOR leaves the address; otherwise a tag, or no address.
        let rest = slot ^ tag(hash);
        let likely = if rest <= ADDRESS && rest > DELETED {
            rest
        } else {
            0
        };
        let rule = likely as *const Rule;
        self.prefetch_match(rule);
        // SAFETY: null, or a rule found in a slot, which is freed only after every guard that was
        // alive when it was unlinked is gone.
        unsafe { rule.as_ref() }
    }

    /// [`View::find`] for a packet that has these bits in all N words of the tuple, and this likely
    /// head of its chain.
    #[inline(always)]
    pub fn find_likely<const N: usize>(
        &self,
        likely: Option<&'a Rule>,
        bits: [u64; N],
        key: &impl Words,
        epoch: Epoch,
    ) -> Option<&'a Rule> {
        match likely {
            Some(head) if has_bits(head, bits) => first_held(head, epoch),
            _ => self.find_unlikely(key, epoch),
        }
    }

    /// [`View::find`] for a packet whose likely head did not match.
    #[inline(never)] // keeps registers for the likely case
    fn find_unlikely(&self, key: &impl Words, epoch: Epoch) -> Option<&'a Rule> {
        self.find(self.hash(key), key, epoch)
    }

    /// Iterates over all rules of the matching chain, the highest precedence first, and of each
    /// precedence the newest version first.
    pub fn chain<K: Words>(
        &self,
        hash: u64,
        key: &K,
    ) -> impl Iterator<Item = &'a Rule> + use<'a, K> {
        chain_from(self.head(hash, key))
    }

    /// Iterates over the rules of the matching chain that hold in `epoch`, the highest precedence
    /// first.
    pub fn held<K: Words>(
        &self,
        hash: u64,
        key: &K,
        epoch: Epoch,
    ) -> impl Iterator<Item = &'a Rule> + use<'a, K> {
        let mut before: Option<&Rule> = None;
        newest_from(self.head(hash, key))
            .filter_map(move |rule| rule.version_in(epoch))
            // If a version is added while the iterator is at the one before it, both lead to the
            // one that holds.
            .filter(move |rule| {
                !before
                    .replace(rule)
                    .is_some_and(|before| std::ptr::eq(before, *rule))
            })
    }

    /// Counts what [`View::find`] reads of the slots and of the rules' matches.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) {
        count.reads(self.words);
        let hash = self.hash(key);
        let mask = self.slots.len() - 1;
        for step in 0..self.reach {
            let slot = &self.slots[(hash as usize + step) & mask];
            count.reads(slot);
            let slot = slot.load(Ordering::Acquire);
            if slot == EMPTY {
                return;
            }
            if slot != DELETED && tag(slot) == tag(hash) {
                // SAFETY: as in `head`.
                let rule = unsafe { address(slot).as_ref() };
                let words = rule.spec.matching.words();
                if self.words.len() == 1 {
                    count.reads(&rule.first);
                } else {
                    count.reads(words);
                }
                if key.has(words) {
                    return;
                }
            }
        }
    }

    /// Returns the first rule of the matching chain.
    #[inline(always)]
    fn head(&self, hash: u64, key: &impl Words) -> Option<&'a Rule> {
        let has = |rule: &Rule| match self.words {
            [(word, mask)] => rule.first == key.word(*word) & mask,
            _ => key.has(rule.spec.matching.words()),
        };
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        for _ in 0..self.reach {
            let slot = self.slots[at].load(Ordering::Acquire);
            if slot == EMPTY {
                return None;
            }
            if slot != DELETED && tag(slot) == tag(hash) {
                // SAFETY: a rule found in a slot is freed only after every guard that was alive
                // when it was unlinked is gone.
                let head: &'a Rule = unsafe { address(slot).as_ref() };
                if has(head) {
                    return Some(head);
                }
            }
            at = (at + 1) & mask;
        }
        None
    }
}

/// Returns whether a rule of the tuple, which looks at all N words, matches these bits.
#[inline(always)]
fn has_bits<const N: usize>(rule: &Rule, bits: [u64; N]) -> bool {
    if N == 1 {
        return rule.first == bits[0];
    }
    let wanted = rule.spec.matching.words().first_chunk::<N>();
    wanted.is_some_and(|wanted| {
        let differ = wanted.iter().zip(bits);
        let differ = differ.fold(0, |differ, (word, bits)| differ | word.value ^ bits);
        differ == 0
    })
}

#[inline(always)]
fn first_held(head: &Rule, epoch: Epoch) -> Option<&Rule> {
    let mut rule = head;
    loop {
        if let Some(version) = rule.version_in(epoch) {
            return Some(version);
        }
        // SAFETY: as for the head; a rule's `next` is followed only by readers under a guard and by
        // the writer.
        rule = unsafe { rule.next.load(Ordering::Acquire).as_ref() }?;
    }
}

/// Iterates over the newest rules of each precedence, from the head of a chain on. A version that
/// is added meanwhile may follow the one it replaces.
fn newest_from(head: Option<&Rule>) -> impl Iterator<Item = &Rule> {
    std::iter::successors(head, |rule| {
        // SAFETY: as in `first_held`.
        unsafe { rule.next.load(Ordering::Acquire).as_ref() }
    })
}

/// Iterates over the versions of a rule, from this one to the oldest that is linked.
pub(crate) fn versions_from(rule: &Rule) -> impl Iterator<Item = &Rule> {
    std::iter::successors(Some(rule), |rule| {
        // SAFETY: as in `first_held`.
        unsafe { rule.older.load(Ordering::Acquire).as_ref() }
    })
}

/// Iterates over all rules of a chain, from its head on.
fn chain_from(head: Option<&Rule>) -> impl Iterator<Item = &Rule> {
    newest_from(head).flat_map(versions_from)
}

impl Tuple {
    /// Returns the words that its rules look at, and which bits of them.
    pub fn words(&self) -> &[(u8, u64)] {
        &self.words
    }

    /// Returns the rule of this precedence that holds in `epoch` and matches exactly the words and
    /// masks of `shape`, with the values that `key` has there.
    pub fn find_exact<'a>(
        &'a self,
        shape: &[(u8, u64)],
        key: &FlowKey,
        priority: u32,
        epoch: Epoch,
    ) -> Option<&'a Rule> {
        if *self.words != *shape {
            return None;
        }
        let view = self.view();
        newest_from(view.head(view.hash(key), key))
            .take_while(|rule| rule.spec.priority >= priority)
            .filter(|rule| rule.spec.priority == priority)
            .find_map(|rule| rule.version_in(epoch))
    }

    /// Returns the memory of its slots in bytes.
    pub fn bytes(&self) -> usize {
        self.slots().slots.len() * size_of::<AtomicU64>()
    }

    pub fn new(words: &[(u8, u64)]) -> Tuple {
        Tuple::with(words, Secret::draw)
    }

    /// Creates a tuple with secrets from this function.
    fn with(words: &[(u8, u64)], secrets: fn(u32) -> Secret) -> Tuple {
        let slots = Slots::new(8, secrets(0), 0);
        Tuple {
            words: words.into(),
            slots: AtomicPtr::new(Box::into_raw(Box::new(slots))),
            secrets,
            growing: CachePadded::default(),
        }
    }

    fn slots(&self) -> &Slots {
        // SAFETY: never null; replaced tables are retired, and readers hold a guard.
        unsafe { &*self.slots.load(Ordering::Acquire) }
    }

    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        let slots = self.slots();
        View {
            words: &self.words,
            slots: &slots.slots,
            secret: slots.secret,
            reach: slots.reach,
        }
    }

    /// Returns whether a match looks at the words and bits of this tuple's rules.
    pub fn takes(&self, matching: &Match) -> bool {
        let same = |((word, mask), other): (&(u8, u64), &MatchWord)| {
            (*word, *mask) == (other.word, other.mask)
        };
        let words = matching.words();
        self.words.len() == words.len() && self.words.iter().zip(words).all(same)
    }

    /// Prefetches the slot that a rule with this match will be put into.
    pub fn expect(&self, matching: &Match) {
        let view = self.view();
        view.prefetch(view.secret.hash_of(matching));
    }

    /// Returns the slot of the chain with `rule`'s value (Ok), or where a new one goes (Err); None
    /// where that finds no room in its reach.
    fn place(&self, hash: u64, rule: &Rule) -> Option<Result<usize, usize>> {
        let Slots { slots, reach, .. } = self.slots();
        let mask = slots.len() - 1;
        let mut at = hash as usize & mask;
        let mut free = None;
        for _ in 0..*reach {
            match slots[at].load(Ordering::Relaxed) {
                EMPTY => return Some(Err(free.unwrap_or(at))),
                DELETED => free = free.or(Some(at)),
                slot if tag(slot) == tag(hash) => {
                    // SAFETY: linked rules are alive as long as the writer has not retired them.
                    let head = unsafe { address(slot).as_ref() };
                    if head.spec.matching == rule.spec.matching {
                        return Some(Ok(at));
                    }
                }
                _ => {}
            }
            at = (at + 1) & mask;
        }
        free.map(Err)
    }

    /// [`Tuple::place`] after making room if needed; also returns the rule's hash.
    fn make_place(&self, domain: &Domain, rule: &Rule) -> (Result<usize, usize>, u64) {
        let mut attempt = 0;
        loop {
            let hash = self.slots().secret.hash_of(&rule.spec.matching);
            if let Some(place) = self.place(hash, rule) {
                return (place, hash);
            }
            // The last attempt drops the reach and leaves most slots empty.
            attempt = self.make_anew(domain, attempt + 1);
        }
    }

    /// Links a rule. Only the table's writer calls this. Returns the newest rule of the same match
    /// and precedence before it, if there is one.
    pub fn insert(&self, domain: &Domain, rule: NonNull<Rule>) -> Option<NonNull<Rule>> {
        self.reserve(domain);
        // SAFETY: just made by the writer.
        let new = unsafe { rule.as_ref() };
        let (place, hash) = self.make_place(domain, new);
        match place {
            Err(at) => {
                let slot = &self.slots().slots[at];
                self.slots().counts.came(slot.load(Ordering::Relaxed));
                new.next.store(std::ptr::null_mut(), Ordering::Relaxed);
                new.older.store(std::ptr::null_mut(), Ordering::Relaxed);
                self.set(at, entry(rule, hash));
                None
            }
            Ok(at) => {
                let slot = &self.slots().slots[at];
                let (before, next) = above(slot, new.spec.priority);
                // SAFETY: chain members are linked, hence alive.
                let same = unsafe { next.as_ref() }
                    .filter(|other| other.spec.priority == new.spec.priority);
                let after = same.map_or(next, |same| same.next.load(Ordering::Relaxed));
                let older = same.map_or(std::ptr::null_mut(), |_| next);
                new.next.store(after, Ordering::Relaxed);
                new.older.store(older, Ordering::Relaxed);
                match before {
                    None => self.set(at, entry(rule, hash)),
                    Some(before) => before.next.store(rule.as_ptr(), Ordering::Release),
                }
                if let Some(same) = same {
                    same.next.store(rule.as_ptr(), Ordering::Release);
                }
                NonNull::new(older)
            }
        }
    }

    /// Keeps at least half of the slots empty.
    fn reserve(&self, domain: &Domain) {
        let slots = self.slots();
        let (used, count) = (slots.counts.used() + 1, slots.slots.len());
        if used * 2 > count {
            self.make_anew(domain, 0);
            return;
        }
        let mut growing = self.growing();
        let is_time = growing.is_some() || used * 8 > count * 3;
        if count <= AT_ONCE || !is_time {
            return;
        }
        let there = growing.get_or_insert_with(|| self.grow(0));
        let end = (there.next + SLICE).min(count);
        let chains = |range: std::ops::Range<usize>| {
            let slots = slots.slots[range].iter();
            slots
                .map(|slot| slot.load(Ordering::Relaxed))
                .filter(|slot| *slot > DELETED)
        };
        if !chains(there.next..end).all(|chain| there.to.put(chain)) {
            *there = self.grow(there.attempt + 1);
            return;
        }
        there.next = end;
        // Prefetch for the next rule that comes.
        chains(end..(end + SLICE).min(count)).for_each(expect_match);
        if end == count
            && let Some(done) = growing.take()
        {
            self.replace(domain, done.to);
        }
    }

    fn growing(&self) -> MutexGuard<'_, Option<Growing>> {
        self.growing
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Allocates slots to grow into, for all chains that there will be by then.
    fn grow(&self, attempt: u32) -> Growing {
        let slots = self.slots();
        let count = slots.counts.chains() + slots.slots.len() / SLICE + 1;
        Growing {
            to: Slots::new(
                (count * 4) << (attempt / 2),
                (self.secrets)(attempt),
                attempt,
            ),
            next: 0,
            attempt,
        }
    }

    fn replace(&self, domain: &Domain, new: Slots) {
        let new = Box::into_raw(Box::new(new));
        let old = self.slots.swap(new, Ordering::AcqRel);
        // SAFETY: made by `Box::into_raw`, unlinked by the swap.
        domain.retire(unsafe { Box::from_raw(old) });
    }

    /// Moves all chains to other slots, four times their number or more, with another secret.
    /// Returns the first attempt, from this one on, that succeeded.
    fn make_anew(&self, domain: &Domain, from: u32) -> u32 {
        *self.growing() = None;
        let slots = self.slots().slots.iter();
        let chains: Vec<u64> = slots
            .map(|slot| slot.load(Ordering::Relaxed))
            .filter(|slot| *slot > DELETED)
            .collect();
        let (attempt, new) = (from..=ATTEMPTS)
            .find_map(|attempt| {
                // Two attempts have the same number of slots; the second has at least a multiplier
                // of its own.
                let count = ((chains.len() + 1) * 4) << (attempt / 2);
                let new = Slots::new(count, (self.secrets)(attempt), attempt);
                new.fill(&chains).then_some((attempt, new))
            })
            .expect("all find room in all slots");
        self.replace(domain, new);
        attempt
    }

    /// Unlinks a rule. Only the table's writer calls this, and retires the rule afterwards.
    pub fn remove(&self, rule: NonNull<Rule>) {
        // SAFETY: still linked.
        let gone = unsafe { rule.as_ref() };
        let hash = self.slots().secret.hash_of(&gone.spec.matching);
        let Some(Ok(at)) = self.place(hash, gone) else {
            return;
        };
        let slot = &self.slots().slots[at];
        let next = gone.next.load(Ordering::Relaxed);
        let older = gone.older.load(Ordering::Relaxed);
        // SAFETY: chain members are linked, hence alive.
        let newer =
            unsafe { next.as_ref() }.filter(|newer| newer.spec.priority == gone.spec.priority);
        if let Some(newer) = newer {
            // Not the newest version: the one after it leads to the one before it.
            newer.older.store(older, Ordering::Release);
            // SAFETY: as above.
            if let Some(older) = unsafe { older.as_ref() } {
                older.next.store(next, Ordering::Release);
            }
            return;
        }
        let (before, first) = above(slot, gone.spec.priority);
        if first != rule.as_ptr() {
            return;
        }
        let mut then = next;
        // SAFETY: as above.
        if let Some(newest) = unsafe { older.as_ref() } {
            newest.next.store(next, Ordering::Release);
            then = older;
        }
        match before {
            Some(before) => before.next.store(then, Ordering::Release),
            None => {
                let value = NonNull::new(then).map_or(DELETED, |then| entry(then, hash));
                if value == DELETED {
                    self.slots().counts.went();
                }
                self.set(at, value);
            }
        }
    }

    /// Changes a slot, and its copy if the table grows and has it already.
    fn set(&self, at: usize, value: u64) {
        let slot = &self.slots().slots[at];
        let before = slot.load(Ordering::Relaxed);
        slot.store(value, Ordering::Release);
        let mut growing = self.growing();
        if let Some(there) = growing.as_mut().filter(|there| at < there.next)
            && !there.to.follow(before, value)
        {
            let attempt = there.attempt + 1;
            *growing = Some(self.grow(attempt));
        }
    }

    /// Calls `with` for each chain's rules, the highest precedence first and of each the newest
    /// version first. The caller holds an epoch; rules that come meanwhile may be missed.
    pub fn each_chain(&self, mut with: impl FnMut(&mut dyn Iterator<Item = &Rule>)) {
        for slot in &self.slots().slots {
            let slot = slot.load(Ordering::Acquire);
            if slot > DELETED {
                // SAFETY: as for readers: a rule found in a slot is freed only after every epoch
                // that was held when it was unlinked.
                let head = unsafe { address(slot).as_ref() };
                with(&mut chain_from(Some(head)));
            }
        }
    }

    /// Returns all linked rules, chain by chain.
    pub fn rules(&self) -> Vec<NonNull<Rule>> {
        let mut all = Vec::new();
        for slot in self
            .slots()
            .slots
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .filter(|slot| *slot > DELETED)
        {
            // SAFETY: linked rules are alive.
            let head = unsafe { address(slot).as_ref() };
            all.extend(chain_from(Some(head)).map(NonNull::from));
        }
        all
    }
}

/// For the writer: returns the last of the newest versions in a slot's chain that are above a
/// precedence, None if there is none, and the rule behind it, null for none.
fn above<'a>(slot: &'a AtomicU64, priority: u32) -> (Option<&'a Rule>, *mut Rule) {
    let mut before: Option<&'a Rule> = None;
    let mut next = address(slot.load(Ordering::Relaxed)).as_ptr();
    // SAFETY: chain members are linked, hence alive.
    while let Some(other) = unsafe { next.as_ref() }
        && other.spec.priority > priority
    {
        before = Some(other);
        next = other.next.load(Ordering::Relaxed);
    }
    (before, next)
}

impl Drop for Tuple {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`; the last classifier naming this tuple is gone, so no
        // reader is left. Rules are the writer's to free.
        drop(unsafe { Box::from_raw(self.slots.load(Ordering::Acquire)) });
    }
}

#[cfg(test)]
mod tests;
