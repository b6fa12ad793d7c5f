//! Longest prefix: a multibit trie over one field, for rules that look at a prefix of it and otherwise want all the same.
//!
//! The first 16 bits of the field index the root, each further byte a node of 256 slots. A slot holds a node, or the best rule for all packets that come there (leaf pushing,
//! Srinivasan and Varghese 1999), so a lookup compares nothing. Most nodes have few different slots: they are held as runs, the slots where another value begins and
//! then the values, in one, two or four cache lines; where that is not enough a node is an array of 16 lines. (Runs found by counting bits: Lulea, Degermark et al. 1997; poptrie, Asai and Ohara 2015.)
//! An IPv4 address takes the root and two nodes at most, and of each node one or two lines.
//!
//! The writer ([`writer`]) changes the trie in place as rules come and go, without publishing another shape: a slot by one store, the runs of a node by a copy that
//! takes its place. A slot may hold a rule that is not yet, or no longer, in force: its place says that it must be asked ([`super::places`]), and a packet that it does not hold for is
//! looked up in the table's tuples, which hold all rules always.
//!
//! Leaf pushing gives a slot the longest of its prefixes. Where a shorter one has the higher precedence, it is left to tuples beside the trie.

mod nodes;
mod writer;

use super::LOOKUP_MAX;
use super::effort::Count;
use super::places::{ASK, EditsOf, KeptEdits, Place, Told, resolve};
use crate::epoch::Epoch;
use crate::growing::Growing;
use crate::rule::Rule;
use crate::tuple::{Words, prefetch};
use nodes::{Entry, Lines, Slot};
use packet::FlowKey;
use packet::matching::MatchWord;
use std::sync::atomic::{AtomicU32, Ordering};
pub(super) use writer::{Candidate, Prefixes};

/// No rule.
const NONE: u32 = 0;
/// The place of slots whose packets are looked up in tuples.
const ELSEWHERE: u32 = 1;
/// A packet that has not what all rules want.
const STRANGER: u32 = u32::MAX;

/// Where a field lies in the key: its first byte, an even one, and how many it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Run {
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

    /// How many nodes lie behind each other at most.
    fn levels(self) -> usize {
        usize::from(self.bytes) - 2
    }
}

/// The place of this number; of [`NONE`] the default's.
#[inline(always)]
fn place(all: &[Place], default: u32, number: u32) -> Option<&Place> {
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
    places: Growing<Place>,
    edits: KeptEdits,
    /// The place of the rule for all addresses that no longer prefix holds.
    default: AtomicU32,
    /// No rule has a lower precedence.
    floor: AtomicU32,
}

impl Trie {
    /// The words of packets that a lookup reads: also those that only rules look at which have gone since.
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

    /// Finds the best rule for each packet. Packets for which it cannot tell are given to `missed`. Where somebody is to be told what is known of rules, those are not fetched.
    #[inline(always)]
    pub fn find<'k, 'g, K: Words + 'k>(
        &'g self,
        key: &impl Fn(usize) -> &'k K,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        mut told: Option<&mut Told<'g>>,
        missed: impl FnMut(usize, &mut Option<&'g Rule>),
    ) {
        let mut places = [STRANGER; LOOKUP_MAX];
        let mut waiting = [0_u8; LOOKUP_MAX];
        let mut count = 0;
        for index in 0..out.len().min(LOOKUP_MAX) {
            waiting[count] = index as u8;
            count += usize::from(key(index).has(&self.shared));
        }
        self.descend(key, &mut waiting, count, &mut places);
        if let Some(told) = &mut told {
            told.edits = EditsOf::Kept(self.edits.view());
        }
        let default = self.default.load(Ordering::Acquire);
        // Only now: it has all places that have been read of, also where it has grown meanwhile.
        let all = self.places.view();
        let place_of = |index: usize| place(all, default, places[index % LOOKUP_MAX]);
        resolve(place_of, epoch, out, told, missed);
    }

    /// Leads the `count` first of `waiting` to their places, and fetches these. Level by level: what each packet reads next is fetched while others take their step.
    #[inline(always)]
    fn descend<'k, K: Words + 'k>(
        &self,
        key: &impl Fn(usize) -> &'k K,
        waiting: &mut [u8; LOOKUP_MAX],
        mut count: usize,
        places: &mut [u32; LOOKUP_MAX],
    ) {
        let lines = self.lines.view();
        let all = self.places.view();
        let fetch_place = |number: u32| prefetch(all.as_ptr().wrapping_add(number as usize));
        // The slot that a packet is at, or the node.
        let mut at = [0_u32; LOOKUP_MAX];
        for index in &waiting[..count] {
            let index = usize::from(*index) % LOOKUP_MAX;
            at[index] = self.run.first(key(index));
            prefetch(lines.address(Slot(at[index])));
        }
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
                    let byte = self.run.byte(key(index), level);
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
                let byte = self.run.byte(key(index), level);
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
