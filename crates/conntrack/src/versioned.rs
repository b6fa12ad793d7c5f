//! Words that many threads read without a lock while one writes them.
//!
//! The version's low bits say what state the words are in. They are written by the thread that has
//! the lock of their connection's shard, while they are withdrawn. A reader that has seen the
//! version change in between takes nothing of what it has read.
//!
//! Beside the words a line may have state that its readers change, one at a time: a reader claims
//! the line for that, and if it cannot at once, goes another way. Only who has the lock waits until
//! a line is free. A claim is held for some dozens of instructions, without a call to the system.

use crate::sync::{AtomicU64, Ordering, fence, spin_loop, yield_now};

/// State of a line, in its version's low bits: it is nobody's, or being written.
const WITHDRAWN: u64 = 0;
/// It may be read.
const VALID: u64 = 1;
/// It may be read, and a reader has claimed it.
const CLAIMED: u64 = 2;
const STATE: u64 = 3;
/// From one version to the next.
const NEXT: u64 = 4;
/// How often a thread looks again before it lets others run: who holds the claim may have been
/// interrupted.
const SPINS: u32 = 64;

/// The version of words that have been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(u64);

/// A line's version and words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versioned<'a, const N: usize> {
    pub version: &'a AtomicU64,
    pub words: &'a [AtomicU64; N],
}

impl<const N: usize> Versioned<'_, N> {
    /// Reads the words. None while they are withdrawn, claimed or change.
    #[inline(always)]
    pub fn read(&self) -> Option<([u64; N], Version)> {
        let version = self.version.load(Ordering::Acquire);
        let words = std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == version;
        (same && version & STATE == VALID).then_some((words, Version(version)))
    }

    /// Whether the words, and what was read beside them since, are still those of this version.
    #[inline(always)]
    pub fn is_still(&self, read: Version) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == read.0
    }

    /// Claims a line that has been read. False if it has changed since, or somebody else has
    /// claimed it.
    #[inline(always)]
    pub fn claim(&self, read: Version) -> bool {
        let claimed = read.0 - VALID + CLAIMED;
        self.version
            .compare_exchange(read.0, claimed, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends a claim.
    #[inline(always)]
    pub fn give_back(&self, read: Version) {
        self.version
            .store(read.0.wrapping_add(NEXT), Ordering::Release);
    }

    /// Withdraws the words, so that nobody reads or claims them. Only with the lock.
    pub fn withdraw(&self) {
        let mut spins = 0;
        loop {
            let version = self.version.load(Ordering::Relaxed);
            match version & STATE {
                WITHDRAWN => break,
                VALID => {
                    let withdrawn = (version - VALID + WITHDRAWN).wrapping_add(NEXT);
                    let swapped = self.version.compare_exchange(
                        version,
                        withdrawn,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    );
                    if swapped.is_ok() {
                        break;
                    }
                }
                _ if spins < SPINS => {
                    spins += 1;
                    spin_loop();
                }
                _ => yield_now(),
            }
        }
        // What is written from here on is not seen together with an earlier version.
        fence(Ordering::Release);
    }

    /// Whether nobody reads the words. Only with the lock.
    pub fn is_withdrawn(&self) -> bool {
        self.version.load(Ordering::Relaxed) & STATE == WITHDRAWN
    }

    /// Returns the words. Only with the lock, or a claim.
    pub fn words(&self) -> [u64; N] {
        std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed))
    }

    /// Writes words that have been withdrawn, and has them read. Only with the lock.
    pub fn publish(&self, words: [u64; N]) {
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + VALID, Ordering::Release);
    }
}
