//! How a table's rules are looked up.
//!
//! Each kind of lookup is a type in a file of its own that implements [`Classify`]; [`Classifier`]
//! lists them.
//!
//! * [`Linear`]: up to [`LINEAR_MAX`](linear::LINEAR_MAX) rules, compared one after the other by
//!   precedence. Cost depends on the number of rules only, so a table of four rules over four masks
//!   (the tuple space explosion of Csikor et al.) costs four compares for any traffic.
//! * [`TupleSpace`]: one hash table for each set of masked bits, tried in the order of the highest
//!   precedence in each, until the rule found beats all that are left. A tuple whose rules all
//!   agree in some bits, their protocol for instance, is skipped without a memory access for
//!   packets that differ there. Hash tables grow in place; the list of tuples is replaced as a
//!   whole.
//! * [`Trees`](tree::TreeClassifier): decision trees built in the background, and tuples for rules
//!   that are not in them.
//! * [`Trie`](trie::TrieClassifier): a trie over one field that is changed in place, and tuples for
//!   rules that are not prefixes of it.
//! * [`Conjunctive`]: one of the above, and beside it the rules that are parts of conjunctive
//!   matches.

pub(crate) mod conjunction;
pub(crate) mod describe;
pub(crate) mod effort;
pub(crate) mod exact;
pub(crate) mod lanes;
pub(crate) mod linear;
pub(crate) mod mini_key;
pub(crate) mod prefilter;
pub(crate) mod tree;
pub(crate) mod trie;
pub(crate) mod tuple;
pub(crate) mod tuple_space;
pub(crate) mod verdicts;

use crate::actions::learn::Learn;
use crate::burst::{LOOKUP_MAX, LaneSet, Words};
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::Summaries;
use conjunction::Conjunctive;
use effort::Count;
use lanes::Found;
use linear::Linear;
use mini_key::Reads;
use packet::FlowKey;
use packet::mini_key::{Pattern, RawPrefilter};
use prefilter::Behind;
use tree::TreeClassifier;
use trie::TrieClassifier;
use tuple_space::TupleSpace;
use verdicts::VerdictsBy;

/// One kind of lookup. Monomorphised: a lookup branches on the kind once for each burst.
pub(crate) trait Classify {
    /// Returns how much of a packet lookups read.
    fn reads(&self) -> Reads;

    /// Finds each key's rule: the one of the highest precedence that matches and holds in `epoch`.
    /// `out` has an element for each key, None on entry. `summaries` gets the summaries of rules
    /// that were found without reading them.
    fn look_up<'k, 'g, K: Words + 'k>(
        &'g self,
        keys: impl Keys<'k, K>,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
    );

    /// Looks up a set of lanes, adds their rules to `found` (contiguous lanes that met the same
    /// rule as one entry), and returns the lanes that met none.
    #[inline(always)]
    fn look_up_lanes<'g, K: Words>(
        &'g self,
        set: LaneSet,
        lanes: &[K; LOOKUP_MAX],
        epoch: Epoch,
        found: &mut Found<'g>,
    ) -> LaneSet {
        lanes::look_up_each(self, set, lanes, epoch, found)
    }

    /// Returns the verdicts of keys where the classifier knows them without reading rules.
    /// Positions by which they are found later are written to `numbers`.
    #[inline(always)]
    fn verdicts<'g, 'n, K: Words>(
        &'g self,
        _keys: &[K],
        _epoch: Epoch,
        _numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> Option<VerdictsBy<'g, 'n>> {
        None
    }

    /// Returns the rule that `learn` would make from the values of `key`.
    fn find_exact<'g>(&'g self, learn: &Learn, key: &FlowKey, epoch: Epoch) -> Option<&'g Rule>;

    /// Counts the work of looking a key up.
    fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count);

    /// Returns whether a lookup costs no more than one in the flow cache, which hashes five words
    /// and reads a set's tags, one cache line and a path.
    fn is_quick(&self) -> bool {
        false
    }

    /// Returns patterns with which packets can be compared while they are read.
    fn patterns(&self) -> Option<Box<[Pattern]>> {
        None
    }

    /// Returns what the patterns of [`Classify::patterns`] stand for in this epoch; None where they
    /// do not apply in it.
    #[inline(always)]
    fn behind_patterns(&self, _epoch: Epoch) -> Option<Behind<'_>> {
        None
    }

    /// Returns the patterns compiled for comparison with packets in their buffers, where all rules
    /// only send or drop.
    fn prefilter(&self, _patterns: &[Pattern]) -> Option<Box<RawPrefilter>> {
        None
    }

    /// Returns the rule for one key, where looking up several together would not be faster.
    #[inline(always)]
    fn look_up_at_once(&self, _key: &FlowKey, _epoch: Epoch) -> Option<&Rule> {
        None
    }
}

/// The keys of a burst's packets, by index.
pub(crate) trait Keys<'k, K: 'k>: Copy {
    /// Returns the key with this index.
    fn key(&self, index: usize) -> &'k K;

    /// Returns all keys where they are contiguous in memory.
    #[inline(always)]
    fn slice(&self) -> Option<&'k [K]> {
        None
    }
}

impl<'k, K> Keys<'k, K> for &'k [K] {
    #[inline(always)]
    fn key(&self, index: usize) -> &'k K {
        &self[index]
    }

    #[inline(always)]
    fn slice(&self) -> Option<&'k [K]> {
        Some(self)
    }
}

/// Keys that a function returns.
#[derive(Clone, Copy)]
pub(crate) struct KeysBy<F>(pub(crate) F);

impl<'k, K: 'k, F: Fn(usize) -> &'k K + Copy> Keys<'k, K> for KeysBy<F> {
    #[inline(always)]
    fn key(&self, index: usize) -> &'k K {
        (self.0)(index)
    }
}

/// Defines [`Classifier`] with its kinds, and forwards each method of [`Classify`] to the kind it
/// is.
macro_rules! classifiers {
    ($($(#[$doc:meta])* $kind:ident($type:ty),)*) => {
        /// The lookup of a table.
        pub(crate) enum Classifier {
            $($(#[$doc])* $kind($type),)*
        }

        $(impl From<$type> for Classifier {
            fn from(kind: $type) -> Classifier {
                Classifier::$kind(kind)
            }
        })*

        impl Classify for Classifier {
            fn reads(&self) -> Reads {
                match self { $(Classifier::$kind(kind) => kind.reads(),)* }
            }

            #[inline(always)]
            fn look_up<'k, 'g, K: Words + 'k>(
                &'g self,
                keys: impl Keys<'k, K>,
                epoch: Epoch,
                out: &mut [Option<&'g Rule>],
                summaries: Option<&mut Summaries<'g>>,
            ) {
                match self { $(Classifier::$kind(kind) => kind.look_up(keys, epoch, out, summaries),)* }
            }

            #[inline(always)]
            fn look_up_lanes<'g, K: Words>(
                &'g self,
                set: LaneSet,
                lanes: &[K; LOOKUP_MAX],
                epoch: Epoch,
                found: &mut Found<'g>,
            ) -> LaneSet {
                match self {
                    $(Classifier::$kind(kind) => kind.look_up_lanes(set, lanes, epoch, found),)*
                }
            }

            #[inline(always)]
            fn verdicts<'g, 'n, K: Words>(
                &'g self,
                keys: &[K],
                epoch: Epoch,
                numbers: &'n mut [u32; LOOKUP_MAX],
            ) -> Option<VerdictsBy<'g, 'n>> {
                match self { $(Classifier::$kind(kind) => kind.verdicts(keys, epoch, numbers),)* }
            }

            fn find_exact<'g>(
                &'g self,
                learn: &Learn,
                key: &FlowKey,
                epoch: Epoch,
            ) -> Option<&'g Rule> {
                match self { $(Classifier::$kind(kind) => kind.find_exact(learn, key, epoch),)* }
            }

            fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count) {
                match self { $(Classifier::$kind(kind) => kind.count_effort(key, epoch, count),)* }
            }

            fn is_quick(&self) -> bool {
                match self { $(Classifier::$kind(kind) => kind.is_quick(),)* }
            }

            fn patterns(&self) -> Option<Box<[Pattern]>> {
                match self { $(Classifier::$kind(kind) => kind.patterns(),)* }
            }

            #[inline(always)]
            fn behind_patterns(&self, epoch: Epoch) -> Option<Behind<'_>> {
                match self { $(Classifier::$kind(kind) => kind.behind_patterns(epoch),)* }
            }

            fn prefilter(&self, patterns: &[Pattern]) -> Option<Box<RawPrefilter>> {
                match self { $(Classifier::$kind(kind) => kind.prefilter(patterns),)* }
            }

            #[inline(always)]
            fn look_up_at_once(&self, key: &FlowKey, epoch: Epoch) -> Option<&Rule> {
                match self { $(Classifier::$kind(kind) => kind.look_up_at_once(key, epoch),)* }
            }
        }
    };
}

classifiers! {
    /// Compares all rules in order.
    Linear(Linear),
    /// Hashes tuple by tuple.
    Tuples(TupleSpace),
    /// Descends trees, then looks up newer rules in tuples.
    Trees(TreeClassifier),
    /// Follows the bits of an address, then looks up rules that are not prefixes in tuples.
    Trie(TrieClassifier),
    /// Looks up ordinary rules, if there are any, and soft ones.
    Conjunctive(Conjunctive),
}

// SAFETY: rules are reached only under a guard of the domain, and outlive it (see
// `Domain::retire`); `Rule` itself is Sync.
unsafe impl Send for Classifier {}
// SAFETY: as above; a published classifier is not changed except through atomics.
unsafe impl Sync for Classifier {}

/// A classifier as published to readers.
pub(crate) struct Published {
    pub(crate) classifier: Classifier,
    /// How much of a packet it reads.
    pub(crate) reads: Reads,
    /// Patterns of a short list's rules, or of bits that a few tuples agree in, where these read
    /// mini keys only.
    pub(crate) patterns: Option<Box<[Pattern]>>,
    /// The patterns of the first table's list, compiled for comparison with packets in their
    /// buffers, where its rules only send or drop.
    pub(crate) prefilter: Option<Box<RawPrefilter>>,
    /// Whether the flow cache is not expected to be faster.
    pub(crate) quick: bool,
}

impl Published {
    /// Prepares the classifier of table number `table` for readers.
    pub(crate) fn new(table: u8, classifier: Classifier) -> Published {
        let reads = classifier.reads();
        let patterns = match reads {
            Reads::Port | Reads::MiniKey => classifier.patterns(),
            Reads::Lane | Reads::Deep | Reads::Whole => None,
        };
        let prefilter = match &patterns {
            Some(patterns) if table == 0 => classifier.prefilter(patterns),
            _ => None,
        };
        Published {
            quick: reads <= Reads::MiniKey && classifier.is_quick(),
            classifier,
            reads,
            patterns,
            prefilter,
        }
    }
}
