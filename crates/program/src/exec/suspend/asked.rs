//! Rules that packets have asked for and that are not there yet, indexed by what they match.
//!
//! Any packet of a worker that has asked for rules may have to wait for one of them, so every
//! packet pays for this check. Rules of one table, precedence and set of bits are found by a hash
//! of these bits, as in a tuple.

use crate::actions::learn::{Answer, Learn, Values};
use crate::rule::Rule;
use packet::keyed::Keyed;
use packet::mini_key::MiniKey;
use packet::{FlowKey, Match, WordSet};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// A rule that has been asked for.
pub(crate) struct Asked {
    pub ticket: u64,
    pub bridge: u32,
    pub learn: Arc<Learn>,
    pub values: Values,
    pub matching: Match,
    pub fingerprint: u64,
    pub deadline_ms: u64,
    pub answer: Option<Answer>,
}

/// Rules that look at the same bits.
struct Group {
    bridge: u32,
    table: u8,
    priority: u32,
    shape: Vec<(u8, u64)>,
    words: WordSet,
    /// Their tickets, ascending, by the hash of these bits.
    tickets: HashMap<u64, SmallVec<[u64; 2]>, Keyed>,
}

/// All rules asked for, in the order of the requests.
#[derive(Default)]
pub(crate) struct AskedRules {
    list: Vec<Asked>,
    groups: Vec<Group>,
    keyed: Keyed,
}

impl AskedRules {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Asked> {
        self.list.iter()
    }

    pub fn clear(&mut self) {
        self.list.clear();
        self.groups.clear();
    }

    /// Returns the rule with this ticket.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut Asked> {
        let at = self.place(ticket)?;
        Some(&mut self.list[at])
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.list
            .binary_search_by_key(&ticket, |asked| asked.ticket)
            .ok()
    }

    fn hash(&self, words: impl Iterator<Item = u64>) -> u64 {
        let mut hasher = self.keyed.build_hasher();
        words.for_each(|word| hasher.write_u64(word));
        hasher.finish()
    }

    /// Returns the hash of the bits that a rule matches.
    pub fn hash_of(&self, matching: &Match) -> u64 {
        self.hash(matching.words().iter().map(|word| word.value))
    }

    fn group(&self, bridge: u32, learn: &Learn) -> Option<usize> {
        let (table, priority) = (learn.table, u32::from(learn.priority));
        self.groups.iter().position(|group| {
            (group.bridge, group.table, group.priority) == (bridge, table, priority)
                && group.shape == learn.shape
        })
    }

    /// Adds a rule that was asked for later than all others.
    pub fn push(&mut self, asked: Asked) {
        let at = self.group(asked.bridge, &asked.learn);
        let at = at.unwrap_or_else(|| self.add_group(&asked));
        let hash = self.hash_of(&asked.matching);
        let tickets = &mut self.groups[at].tickets;
        tickets.entry(hash).or_default().push(asked.ticket);
        self.list.push(asked);
    }

    /// Adds a group, reusing an empty one, so there are never more groups than rules.
    fn add_group(&mut self, asked: &Asked) -> usize {
        let group = Group {
            bridge: asked.bridge,
            table: asked.learn.table,
            priority: asked.learn.priority.into(),
            words: (asked.learn.shape.iter()).fold(WordSet::EMPTY, |words, (word, _)| {
                words.union(WordSet::of_bytes(usize::from(*word) * 8, 8))
            }),
            shape: asked.learn.shape.clone(),
            tickets: HashMap::with_hasher(self.keyed.clone()),
        };
        match self.groups.iter().position(|old| old.tickets.is_empty()) {
            Some(at) => {
                self.groups[at] = group;
                at
            }
            None => {
                self.groups.push(group);
                self.groups.len() - 1
            }
        }
    }

    /// Removes and returns the rules for which `ends` returns true, in order.
    pub fn take_ended(&mut self, mut ends: impl FnMut(&Asked) -> bool) -> Vec<Asked> {
        let ended: Vec<Asked> = self.list.extract_if(.., |asked| ends(asked)).collect();
        for asked in &ended {
            let hash = self.hash_of(&asked.matching);
            let Some(at) = self.group(asked.bridge, &asked.learn) else {
                continue;
            };
            let all = &mut self.groups[at].tickets;
            if let Some(tickets) = all.get_mut(&hash) {
                tickets.retain(|ticket| *ticket != asked.ticket);
                if tickets.is_empty() {
                    all.remove(&hash);
                }
            }
        }
        ended
    }

    /// Returns whether there are any of a bridge.
    pub fn concern(&self, bridge: u32) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| group.bridge == bridge && !group.tickets.is_empty())
    }

    /// Returns whether any of them may decide a lookup of one of these packets, judged by the words
    /// `kept`, which no rule writes.
    pub fn may_decide(&self, bridge: u32, kept: WordSet, packets: &[MiniKey]) -> bool {
        let told = kept.intersect(WordSet::MINI_KEY);
        let groups = (self.groups.iter())
            .filter(|group| group.bridge == bridge && !group.tickets.is_empty());
        for group in groups {
            // Words that are not known may have any value.
            if !group.words.minus(told).is_empty() {
                return true;
            }
            let mut last = None;
            for packet in packets {
                let words = group.shape.iter();
                let hash =
                    self.hash(words.map(|(word, mask)| packet.words[usize::from(*word)] & mask));
                // Many packets have the same bits as the one before them.
                if last.replace(hash) != Some(hash) && group.tickets.contains_key(&hash) {
                    return true;
                }
            }
        }
        false
    }

    /// Returns the last one, asked for by a packet before the ticket `before`, that would decide a
    /// lookup.
    pub fn in_the_way(
        &self,
        before: u64,
        bridge: u32,
        table: u8,
        key: &FlowKey,
        found: Option<&Rule>,
    ) -> Option<u64> {
        let groups = self.groups.iter().filter(|group| {
            (group.bridge, group.table) == (bridge, table)
                && !group.tickets.is_empty()
                && found.is_none_or(|rule| rule.spec.priority <= group.priority)
        });
        let last = |group: &Group| {
            let words = group.shape.iter();
            let hash = self.hash(words.map(|(word, mask)| key.words[usize::from(*word)] & mask));
            let tickets = group.tickets.get(&hash)?;
            let earlier = (tickets.iter().rev()).filter(|ticket| **ticket <= before);
            let mut earlier = earlier.copied();
            earlier.find(|ticket| {
                let asked = self.place(*ticket).map(|at| &self.list[at]);
                asked.is_some_and(|asked| asked.matching.matches(key))
            })
        };
        groups.filter_map(last).max()
    }

    /// Returns the last one for the rule of the same table, match and precedence.
    pub fn like(&self, bridge: u32, learn: &Learn, matching: &Match) -> Option<&Asked> {
        let group = &self.groups[self.group(bridge, learn)?];
        let tickets = group.tickets.get(&self.hash_of(matching))?;
        let asked = |ticket: &u64| Some(&self.list[self.place(*ticket)?]);
        (tickets.iter().rev().filter_map(asked)).find(|asked| asked.matching == *matching)
    }
}
