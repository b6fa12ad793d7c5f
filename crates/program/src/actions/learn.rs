//! Rules that packets ask for: the contents of a `learn` step, and a worker's request to control.
//!
//! A [`Learn`] is a template; the bits that a packet gives it make a rule of it. The worker first
//! checks whether that rule is in force already ([`crate::table::Bridge::find`] and the
//! [`Learn::fingerprint`] that control has left in it). If so it only notes the time, which keeps
//! the hard timeout from expiring. Otherwise it sends a [`Request`] and holds the packet (see
//! [`crate::exec`]) until control has answered and every worker works in the answer's epoch.

use crate::actions::Bits;
use crate::actions::bits;
use crate::epoch::Epoch;
use packet::key::at;
use packet::{FlowKey, Match, WordSet};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

/// Cookie that means none: a new rule gets 0, a changed rule keeps its own.
pub const NO_COOKIE: u64 = u64::MAX;

/// Where bits of a learned rule come from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// Bits of the packet's key.
    Field(Bits),
    /// A number given in the action, right-aligned.
    Number(u128),
}

/// Use of some bits of a learned rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// The rule matches them.
    Match(Bits),
    /// The rule loads them.
    Load(Bits),
    /// The rule outputs to the port of this number; the argument is the number's width in bits.
    Output(u16),
}

/// One element of a learned rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// Source of the bits.
    pub source: Source,
    /// Use of the bits.
    pub target: Target,
}

/// A template for learned rules: everything but the values taken from packets.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Learn {
    /// Table of the rule, 0 to 253.
    pub table: u8,
    /// Priority of the rule.
    pub priority: u16,
    /// Cookie of the rule, [`NO_COOKIE`] to keep the one it has.
    pub cookie: u64,
    /// Idle timeout in seconds, 0 for none.
    pub idle_timeout: u16,
    /// Hard timeout in seconds since it was last learned, 0 for none.
    pub hard_timeout: u16,
    /// Idle timeout after FIN or RST, 0 for no change.
    pub fin_idle_timeout: u16,
    /// Hard timeout after FIN or RST, 0 for no change.
    pub fin_hard_timeout: u16,
    /// Whether controllers are told when the rule is removed.
    pub send_flow_rem: bool,
    /// Most rules with this table and cookie, 0 for no limit.
    pub limit: u32,
    /// A bit of the packet's metadata that is set to whether the rule is there.
    pub result: Option<Bits>,
    /// Tunnel options that the rule's packets have, as a bit set.
    pub options: u64,
    /// Match and actions, in order.
    pub parts: Vec<Part>,
    /// The words that the rule matches and their masks, ascending; filled in by [`Learn::shaped`].
    pub shape: Vec<(u8, u64)>,
}

/// Values that a packet gives to the parts of a [`Learn`], in order.
pub type Values = SmallVec<[u128; 8]>;

impl Learn {
    /// Prepares the template for lookups; call it once, when the parts are complete.
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

    /// Returns the words of the key that the step reads or writes.
    pub fn words(&self) -> WordSet {
        let result = self.result.map(|result| result.field.def().words());
        self.reads().union(result.unwrap_or_default())
    }

    /// Returns the words of the key from which the rule is made.
    pub(crate) fn reads(&self) -> WordSet {
        let sources = self.parts.iter().filter_map(|part| match part.source {
            Source::Field(from) => Some(from),
            Source::Number(_) => None,
        });
        sources.fold(WordSet::EMPTY, |set, bits| {
            set.union(bits.field.def().words())
        })
    }

    /// Returns the values that a packet gives.
    pub fn values(&self, key: &FlowKey) -> Values {
        self.parts
            .iter()
            .map(|part| match part.source {
                Source::Field(from) => bits::read(key, from),
                Source::Number(number) => number,
            })
            .collect()
    }

    /// Returns the rule's match for these values.
    pub fn matching(&self, values: &[u128]) -> Match {
        let mut matching = Match::any();
        for (part, value) in self.parts.iter().zip(values) {
            if let Target::Match(to) = part.target {
                let (value, mask) = bits::write(to, *value);
                matching.set_bytes(to.field.def().offset, &value, &mask);
            }
        }
        let options = self.options.to_be_bytes();
        matching.set_bytes(at::TUN_METADATA_PRESENT, &options, &options);
        matching
    }

    /// Returns a key that the rule matches and that is zero elsewhere.
    pub(crate) fn example(&self, values: &[u128]) -> FlowKey {
        let mut key = FlowKey::ZERO;
        key.set_u64(at::TUN_METADATA_PRESENT, self.options);
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

    /// Returns a hash of what the rule does, never 0, which rules with other actions do not share:
    /// control leaves it in the rule ([`crate::rule::RuleRef::set_learned`]).
    pub fn fingerprint(&self, values: &[u128]) -> u64 {
        let all = self.parts.iter().zip(values);
        self.fingerprint_of(
            all.filter(|(part, _)| !matches!(part.target, Target::Match(_)))
                .map(|(_, value)| *value),
        )
    }

    /// [`Learn::fingerprint`] by the values that the rule does not match, in order.
    pub(crate) fn fingerprint_of(&self, values: impl Iterator<Item = u128>) -> u64 {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let mut hasher = SEED.get_or_init(RandomState::new).build_hasher();
        (self.cookie, self.fin_idle_timeout, self.fin_hard_timeout).hash(&mut hasher);
        let targets = self.parts.iter().map(|part| &part.target);
        let targets = targets.filter(|target| !matches!(target, Target::Match(_)));
        for part in targets.zip(values) {
            part.hash(&mut hasher);
        }
        hasher.finish().max(1)
    }
}

/// A worker's request for a rule.
#[derive(Clone, Debug)]
pub struct Request {
    /// Repeated in the answer; unique within the worker.
    pub ticket: u64,
    /// The template.
    pub learn: Arc<Learn>,
    /// Values from the packet.
    pub values: Values,
    /// When the packet came to the step, in milliseconds of the datapath's clock.
    pub seen_ms: u64,
    /// Whether the packet has gone on long since, so that its rule may have been deleted meanwhile.
    pub is_late: bool,
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LearnOutcome {
    /// The rule has been added or changed.
    Learned,
    /// The rule was there already, or does what a later packet or a controller has decided.
    Known,
    /// There are already as many rules of its table and cookie as its limit allows.
    LimitReached,
    /// It could not be added, for example because the table is full, or no rule asks for it any
    /// more.
    Refused,
}

/// Control's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The request's ticket.
    pub ticket: u64,
    /// The outcome.
    pub verdict: LearnOutcome,
    /// First epoch in which the rule holds.
    pub epoch: Epoch,
}

/// A report that packets of a rule have ended their TCP connection, with the timeouts to which the
/// rule's are to be reduced (`fin_timeout`).
#[derive(Clone, Debug)]
pub struct Ended {
    /// The rule's table.
    pub table: u8,
    /// Its precedence.
    pub priority: u32,
    /// Its match.
    pub matching: Match,
    /// Idle timeout in seconds, 0 for no change.
    pub idle: u16,
    /// Hard timeout in seconds since it was added, 0 for no change.
    pub hard: u16,
}
