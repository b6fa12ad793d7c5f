//! One tuple: the rules that look at the same bits, in a hash table that one writer changes while
//! readers read.
//!
//! A slot is one word: the address of the first rule of a chain and 16 bits of its hash, so that a
//! probe rarely touches a rule that does not match. A chain holds the rules with one value, the
//! highest precedence first ([`Rule::next`]). Of each precedence it leads to the newest version
//! only; versions that it has replaced and that are still linked hang behind that, newest first
//! ([`Rule::older`]). A version holds until the one after it begins, so a lookup passes over the
//! versions that were published after its burst began, and looks at one more: how many dead ones
//! there are does not matter to it.
//!
//! A version that is replaced stays readable for those who stand on it: its `next` then leads to
//! the version that replaced it, from where the chain goes on. So whoever came by an older version
//! (a decision tree, say) finds the newer ones.
//!
//! A chain stands in one of the first [`REACH`] slots from that of its hash on, so a lookup looks
//! at no more than these, 16 cache lines in a row, whatever rules and packets somebody chooses; and
//! because the hash is a secret ([`crate::secret`]), nobody can choose them so that it looks at
//! more than the two or three that it does on average. What would stand further away has the slots
//! made anew, with another secret, and with twice as many slots; after [`ATTEMPTS`] in vain, which
//! no choice of rules explains, the limit goes and no rule is lost.
//!
//! Half of the slots stay empty. Where there are many, others are filled while these are in use,
//! some with each rule that comes ([`Growing`]): to fill a million at once takes a quarter of a
//! second, for which a controller would wait.

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

/// How many rules ahead memory is fetched for where slots are made anew.
const AHEAD: usize = 8;
/// Slots of 32 KB.
const LARGE: usize = 4096;
/// How many slots in a row a chain may stand in, from that of its hash on: among a million rules by
/// chance, half of the slots being empty, one in 50,000 times that the slots fill up does one not
/// find room in these.
const REACH: usize = 128;
/// How often slots are made anew for one rule that finds no room in its reach, before the reach is
/// given up.
const ATTEMPTS: u32 = 4;
/// Slots up to which all are made anew at once, in a fraction of a millisecond.
const AT_ONCE: usize = 4096;
/// Slots looked at with each rule that comes while others are filled. Filling begins when three
/// eighths are used, and half of this would do to end before one half is.
const SLICE: usize = 16;
const EMPTY: u64 = 0;
const DELETED: u64 = 1;
const ADDRESS: u64 = (1 << 48) - 1;

struct Slots {
    slots: Box<[AtomicU64]>,
    secret: Secret,
    /// [`REACH`], or more where nothing else has helped, which takes equal hashes of all of 64
    /// bits.
    reach: usize,
    /// The writer's, on a line of its own, for readers look at the other one in every burst.
    counts: CachePadded<Counts>,
}

/// What the writer knows of slots.
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

    /// A chain has come into a slot that was empty, or whose chain had gone.
    fn came(&self, was: u64) {
        let used = self.used() + usize::from(was == EMPTY);
        self.used.store(used, Ordering::Relaxed);
        self.chains.store(self.chains() + 1, Ordering::Relaxed);
    }

    fn went(&self) {
        self.chains.store(self.chains() - 1, Ordering::Relaxed);
    }
}

/// Slots that are filled while others are in use.
struct Growing {
    to: Slots,
    /// Chains of the slots in use below this one are in these as well.
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

    /// Puts chains into slots that are all empty; false where one finds no room in its reach.
    /// Readers know nothing of them yet.
    fn fill(&self, chains: &[u64]) -> bool {
        chains.iter().enumerate().all(|(index, chain)| {
            if let Some(later) = chains.get(index + AHEAD) {
                expect_match(*later);
            }
            self.put(*chain)
        })
    }

    /// Puts in a chain that is not there; false where it finds no room in its reach. Readers know
    /// nothing of these slots yet.
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

    /// The slots in which a chain of this hash may stand.
    fn run(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        let mask = self.slots.len() - 1;
        (0..self.reach).map(move |step| &self.slots[(hash as usize + step) & mask])
    }

    /// Does what was done to a slot of others: there its word was `before`, and is `after`. False
    /// where a chain finds no room.
    fn follow(&self, before: u64, after: u64) -> bool {
        if before <= DELETED {
            return after <= DELETED || self.put(after);
        }
        // A chain's rules have all one value.
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

/// Slots without chains. Memory that the kernel gives is empty, so many cost no more than few until
/// they are used.
fn empty(count: usize) -> Box<[AtomicU64]> {
    let words = vec![EMPTY; count].into_boxed_slice();
    // SAFETY: an atomic word lies in memory as a word does, and the words are nobody else's.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) }
}

/// Fetches the match of a chain's first rule.
fn expect_match(chain: u64) {
    let rule = address(chain).as_ptr().cast::<u8>();
    prefetch(rule.wrapping_add(64));
    prefetch(rule.wrapping_add(128));
}

/// The rules that look at one set of bits.
pub(crate) struct Tuple {
    words: SmallVec<[(u8, u64); 4]>,
    slots: AtomicPtr<Slots>,
    /// Where secrets come from, by attempt.
    secrets: fn(u32) -> Secret,
    /// The writer's, where it grows.
    growing: CachePadded<Mutex<Option<Growing>>>,
}

/// A tuple's table as it stands, for a burst of lookups.
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

    /// The same of a packet that has these bits in the tuple's words.
    #[inline(always)]
    pub fn hash_bits<const N: usize>(&self, bits: [u64; N]) -> u64 {
        self.secret.hash(bits)
    }

    /// Whether its slots are more than stay in a first-level cache beside others.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.slots.len() > LARGE
    }

    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        let at = hash as usize & (self.slots.len() - 1);
        prefetch(&raw const self.slots[at]);
    }

    /// Fetches the rule that the first slot of this hash leads to, when the slot has been fetched.
    #[inline(always)]
    pub fn prefetch_rule(&self, hash: u64) {
        let slot = self.slots[hash as usize & (self.slots.len() - 1)].load(Ordering::Relaxed);
        if slot > DELETED && tag(slot) == tag(hash) {
            self.prefetch_match(address(slot).as_ptr());
        }
    }

    /// Fetches what is compared of a rule.
    #[inline(always)]
    fn prefetch_match(&self, rule: *const Rule) {
        prefetch(rule);
        if self.words.len() > 1 {
            // Its match; of one word the first line has what is to be known.
            prefetch(rule.cast::<u8>().wrapping_add(64));
        }
    }
}

impl<'a> View<'a> {
    /// The first rule of the matching chain that holds in `epoch`.
    #[inline(always)]
    pub fn find(&self, hash: u64, key: &impl Words, epoch: Epoch) -> Option<&'a Rule> {
        first_held(self.head(hash, key)?, epoch)
    }

    /// The head of the chain that the first slot of this hash leads to, if its tag is the hash's:
    /// most often the one. Fetches what is compared of it.
    #[inline(always)]
    pub fn likely(&self, hash: u64) -> Option<&'a Rule> {
        let slot = self.slots[hash as usize & (self.slots.len() - 1)].load(Ordering::Acquire);
        // No tag is left of one that is the same, and a tag or no address of another.
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

    /// [`View::find`] for a packet that has these bits in all of the tuple's words, N of them, and
    /// this likely head of its chain.
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

    /// The same without one.
    #[inline(never)] // so that it does not take registers from what is likely
    fn find_unlikely(&self, key: &impl Words, epoch: Epoch) -> Option<&'a Rule> {
        self.find(self.hash(key), key, epoch)
    }

    /// All rules of the matching chain, the highest precedence first, and of each precedence the
    /// newest version first.
    pub fn chain<K: Words>(
        &self,
        hash: u64,
        key: &K,
    ) -> impl Iterator<Item = &'a Rule> + use<'a, K> {
        chain_from(self.head(hash, key))
    }

    /// The rules of the matching chain that hold in `epoch`, the highest precedence first.
    pub fn held<K: Words>(
        &self,
        hash: u64,
        key: &K,
        epoch: Epoch,
    ) -> impl Iterator<Item = &'a Rule> + use<'a, K> {
        let mut before: Option<&Rule> = None;
        newest_from(self.head(hash, key))
            .filter_map(move |rule| rule.version_in(epoch))
            // Where a version comes while somebody stands on the one before it, both lead to the
            // one that holds.
            .filter(move |rule| {
                !before
                    .replace(rule)
                    .is_some_and(|before| std::ptr::eq(before, *rule))
            })
    }

    /// Notes what [`View::find`] reads of the slots and of the rules' matches.
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

    /// The first rule of the matching chain.
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

/// Whether a packet with these bits in all of a tuple's words, N of them, has what a rule of the
/// tuple wants: it looks at the same bits of each.
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

/// The newest rules of each precedence, from the head of a chain on. Where a newer version comes
/// meanwhile, it may follow the one that it replaces.
fn newest_from(head: Option<&Rule>) -> impl Iterator<Item = &Rule> {
    std::iter::successors(head, |rule| {
        // SAFETY: as in `first_held`.
        unsafe { rule.next.load(Ordering::Acquire).as_ref() }
    })
}

/// The versions of a rule, from this one to the oldest that is linked.
pub(crate) fn versions_from(rule: &Rule) -> impl Iterator<Item = &Rule> {
    std::iter::successors(Some(rule), |rule| {
        // SAFETY: as in `first_held`.
        unsafe { rule.older.load(Ordering::Acquire).as_ref() }
    })
}

/// All rules of a chain, from its head on.
fn chain_from(head: Option<&Rule>) -> impl Iterator<Item = &Rule> {
    newest_from(head).flat_map(versions_from)
}

impl Tuple {
    /// The words that its rules look at, and which bits of them.
    pub fn words(&self) -> &[(u8, u64)] {
        &self.words
    }

    /// The rule of this precedence that holds in `epoch` and matches exactly the words and masks of
    /// `shape`, with the values that `key` has there.
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

    /// Memory of its slots.
    pub fn bytes(&self) -> usize {
        self.slots().slots.len() * size_of::<AtomicU64>()
    }

    pub fn new(words: &[(u8, u64)]) -> Tuple {
        Tuple::with(words, Secret::draw)
    }

    /// With secrets from elsewhere.
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

    /// Whether a match looks at the words and bits of this tuple's rules.
    pub fn takes(&self, matching: &Match) -> bool {
        let same = |((word, mask), other): (&(u8, u64), &MatchWord)| {
            (*word, *mask) == (other.word, other.mask)
        };
        let words = matching.words();
        self.words.len() == words.len() && self.words.iter().zip(words).all(same)
    }

    /// Fetches the slot that a rule with this match will be put into.
    pub fn expect(&self, matching: &Match) {
        let view = self.view();
        view.prefetch(view.secret.hash_of(matching));
    }

    /// Where the chain with `rule`'s value is, or else where a new one goes; None where that finds
    /// no room in its reach.
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

    /// The same, when room has been made, and the rule's hash.
    fn make_place(&self, domain: &Domain, rule: &Rule) -> (Result<usize, usize>, u64) {
        let mut attempt = 0;
        loop {
            let hash = self.slots().secret.hash_of(&rule.spec.matching);
            if let Some(place) = self.place(hash, rule) {
                return (place, hash);
            }
            // The last one gives the reach up, and leaves most slots empty.
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
        // For the next rule that comes.
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

    /// Slots to grow into, for all chains that there will be by then.
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

    /// Puts all chains into other slots, four times as many as they are or more, with another
    /// secret. Returns the first attempt, from this one on, that was a success.
    fn make_anew(&self, domain: &Domain, from: u32) -> u32 {
        *self.growing() = None;
        let slots = self.slots().slots.iter();
        let chains: Vec<u64> = slots
            .map(|slot| slot.load(Ordering::Relaxed))
            .filter(|slot| *slot > DELETED)
            .collect();
        let (attempt, new) = (from..=ATTEMPTS)
            .find_map(|attempt| {
                // Of two attempts with as many slots, the second one has a factor of its own at
                // least.
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

    /// Changes a slot, and the chain where it has been put already.
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

    /// Shows each chain's rules to somebody who holds an epoch, the highest precedence first and of
    /// each the newest version first; rules that come meanwhile may be missed.
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

    /// All linked rules, chain by chain.
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

/// In the chain of a slot: the last of the newest versions that are above a precedence, none where
/// the slot leads past them, and what comes behind it, null for nothing. For the writer.
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
        // SAFETY: made by `Box::into_raw`; the last shape naming this tuple is gone, so no reader
        // is left. Rules are the writer's to free.
        drop(unsafe { Box::from_raw(self.slots.load(Ordering::Acquire)) });
    }
}

#[cfg(test)]
mod tests;
