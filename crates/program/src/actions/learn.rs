//! Rules that packets ask for: what a `learn` step says, and how a worker asks control for it.
//!
//! A [`Learn`] is a pattern; the bits that a packet gives it make a rule of it. The worker looks
//! first whether that rule is in force already ([`crate::table::Bridge::find`] and the
//! [`Learn::fingerprint`] that control has left in it): then it only notes the time, which keeps
//! the hard timeout from running out. Otherwise it sends a [`Request`] and holds the packet (see
//! [`crate::exec`]) until control has answered and every worker works by the answer.

use crate::actions::Bits;
use crate::actions::bits;
use crate::epoch::Epoch;
use packet::{FlowKey, Match, WordSet};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

/// A cookie that means none: 0 for a new rule, the old one for a changed rule.
pub const NO_COOKIE: u64 = u64::MAX;

/// Where bits of a learned rule come from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The packet.
    Field(Bits),
    /// The action: a number, right-aligned.
    Number(u128),
}

/// What bits of a learned rule are for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// It matches them.
    Match(Bits),
    /// It loads them.
    Load(Bits),
    /// It outputs to the port of this number; the width of the number in bits.
    Output(u16),
}

/// One element of a learned rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// Where the bits come from.
    pub source: Source,
    /// What they are for.
    pub target: Target,
}

/// What a learned rule is like, its values aside.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Learn {
    /// Its table, 0 to 253.
    pub table: u8,
    /// Its precedence.
    pub priority: u16,
    /// Its cookie, [`NO_COOKIE`] to keep the one it has.
    pub cookie: u64,
    /// Seconds without a packet, 0 for never.
    pub idle_timeout: u16,
    /// Seconds since it was last learned, 0 for never.
    pub hard_timeout: u16,
    /// Idle timeout after FIN or RST, 0 for no change.
    pub fin_idle_timeout: u16,
    /// Hard timeout after FIN or RST, 0 for no change.
    pub fin_hard_timeout: u16,
    /// Whether controllers are told when it goes.
    pub send_flow_rem: bool,
    /// Most rules with its table and cookie, 0 for no limit.
    pub limit: u32,
    /// A bit of the packet's metadata that tells whether the rule is there.
    pub result: Option<Bits>,
    /// Its match and actions, in order.
    pub parts: Vec<Part>,
    /// The words that it matches and their masks, ascending: [`Learn::shaped`] fills it.
    pub shape: Vec<(u8, u64)>,
}

/// What a packet gives to the parts of a [`Learn`], in order.
pub type Values = SmallVec<[u128; 8]>;

impl Learn {
    /// The same, made ready for lookups; call it once, when the parts are complete.
    pub fn shaped(mut self) -> Learn {
        let zeroes = Values::from_elem(0, self.parts.len());
        let matching = self.matching(&zeroes);
        self.shape = matching
            .words()
            .iter()
            .map(|word| (word.word, word.mask))
            .collect();
        self
    }

    /// The words of the key that it reads or writes.
    pub fn words(&self) -> WordSet {
        let result = self.result.map(|result| result.field.def().words());
        self.reads().union(result.unwrap_or_default())
    }

    /// The words of the key that the rule is made of.
    pub(crate) fn reads(&self) -> WordSet {
        let sources = self.parts.iter().filter_map(|part| match part.source {
            Source::Field(from) => Some(from),
            Source::Number(_) => None,
        });
        sources.fold(WordSet::EMPTY, |set, bits| {
            set.union(bits.field.def().words())
        })
    }

    /// What a packet gives.
    pub fn values(&self, key: &FlowKey) -> Values {
        self.parts
            .iter()
            .map(|part| match part.source {
                Source::Field(from) => bits::read(key, from),
                Source::Number(number) => number,
            })
            .collect()
    }

    /// What the rule matches.
    pub fn matching(&self, values: &[u128]) -> Match {
        let mut matching = Match::any();
        for (part, value) in self.parts.iter().zip(values) {
            if let Target::Match(to) = part.target {
                let (value, mask) = bits::write(to, *value);
                matching.set_bytes(to.field.def().offset, &value, &mask);
            }
        }
        matching
    }

    /// A key that the rule matches, and that has only zeroes elsewhere.
    pub(crate) fn example(&self, values: &[u128]) -> FlowKey {
        let mut key = FlowKey::ZERO;
        for (part, value) in self.parts.iter().zip(values) {
            if let Target::Match(to) = part.target {
                let (value, mask) = bits::write(to, *value);
                let offset = to.field.def().offset;
                let bytes = &mut key.bytes_mut()[offset..offset + value.len()];
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte = *byte & !mask[index] | value[index] & mask[index];
                }
            }
        }
        key
    }

    /// What the rule does, as a number that two rules which do otherwise do not share: control
    /// leaves it in the rule ([`crate::rule::RuleRef::set_fingerprint`]), never 0.
    pub fn fingerprint(&self, values: &[u128]) -> u64 {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let mut hasher = SEED.get_or_init(RandomState::new).build_hasher();
        (self.cookie, self.fin_idle_timeout, self.fin_hard_timeout).hash(&mut hasher);
        for (part, value) in self.parts.iter().zip(values) {
            if !matches!(part.target, Target::Match(_)) {
                (&part.target, value).hash(&mut hasher);
            }
        }
        hasher.finish().max(1)
    }
}

/// A worker asks for a rule.
#[derive(Clone, Debug)]
pub struct Request {
    /// To be given back in the answer; unique for the worker.
    pub ticket: u64,
    /// What it is like.
    pub learn: Arc<Learn>,
    /// What the packet gave.
    pub values: Values,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The rule has been added or changed.
    Learned,
    /// The rule was there already.
    Known,
    /// There are as many rules of its table and cookie as its limit allows.
    LimitReached,
    /// It could not be added: the table is full, say.
    Refused,
}

/// Control's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The request's ticket.
    pub ticket: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// The epoch from which it holds.
    pub epoch: Epoch,
}

/// A rule whose packets have ended their TCP connection, and the timeouts that it is to have now at
/// most (`fin_timeout`).
#[derive(Clone, Debug)]
pub struct Ended {
    /// The rule's table.
    pub table: u8,
    /// Its precedence.
    pub priority: u32,
    /// What it matches.
    pub matching: Match,
    /// Seconds without a packet, 0 for no change.
    pub idle: u16,
    /// Seconds since it was added, 0 for no change.
    pub hard: u16,
}
