//! Rule summaries: what lookups know of a rule without reading it, for classifiers that lead to a
//! small number instead of a rule.
//!
//! The summary of a rule that only sends, perhaps after edits, has all that its packets need: its
//! counter, and its port or edits. So the rule itself, a cache line anywhere in memory, is not read
//! while it is in force.

use crate::actions::PortNo;
use crate::actions::block::{ActionBlock, ActionBlocks};
use crate::burst::LOOKUP_MAX;
use crate::counters::CounterId;
use crate::epoch::Epoch;
use crate::growing::{Cell, Growing};
use crate::rule::Rule;
use crate::rule::prefetch_rule;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Edits that summaries refer to by number.
pub(crate) type KeptEdits = Growing<AtomicPtr<ActionBlock>>;

/// The summary at a place. All of it except `rule` changes only while no packet can be led here.
#[derive(Default)]
#[repr(C)] // vector code reads it as two words (`trie::avx512`)
pub(crate) struct RuleSummary {
    /// The rule, null where it has been freed, with marks in the lowest bits.
    rule: AtomicPtr<Rule>,
    counter: AtomicU32,
    /// The port, or the number of the edits.
    action: AtomicU32,
}

/// Mark: the rule itself must be read, because it may not hold in all epochs in which packets are
/// led here, does more than send, or has taken the place of another rule.
pub(crate) const ASK: usize = 1;
/// Mark: the rule edits before it sends.
pub(crate) const EDITS: usize = 2;
pub(crate) const MARKS: usize = ASK | EDITS;
const _: () = assert!(align_of::<Rule>() > MARKS);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<RuleSummary>() == 16);

// SAFETY: all zeros is a place without a rule.
unsafe impl Cell for RuleSummary {
    fn copy(&self, from: &Self) {
        let numbers = [(&self.counter, &from.counter), (&self.action, &from.action)];
        for (to, from) in numbers {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.rule.copy(&from.rule);
    }
}

/// What a rule does, as far as summaries can tell.
pub(crate) enum Effect {
    /// It only sends, to this port.
    Sends(PortNo),
    /// It only edits and then sends.
    Edits(ActionBlocks),
    /// Something else.
    More,
}

impl Effect {
    pub fn of(rule: &Rule) -> Effect {
        if let Some(port) = rule.only_output() {
            return Effect::Sends(port);
        }
        let sends = |blocks: &ActionBlocks| blocks.only_send().is_some();
        rule.blocks()
            .filter(sends)
            .map_or(Effect::More, Effect::Edits)
    }
}

/// What becomes of the packets of a rule that only sends, perhaps after edits.
#[derive(Clone, Copy)]
pub(crate) enum Verdict<'g> {
    /// Sent to this port.
    Sends(PortNo),
    /// Edited, and sent where the edits say.
    Edits(&'g ActionBlock),
}

/// A verdict, and the counter of its packets.
pub(crate) type CountedVerdict<'g> = (CounterId, Verdict<'g>);

impl RuleSummary {
    pub fn new(rule: NonNull<Rule>, marks: usize, counter: CounterId, action: u32) -> RuleSummary {
        let place = RuleSummary::default();
        place.set(rule, marks, counter, action);
        place
    }

    /// Sets all fields. No packet may be led here meanwhile.
    pub fn set(&self, rule: NonNull<Rule>, marks: usize, counter: CounterId, action: u32) {
        self.counter.store(counter.0, Ordering::Relaxed);
        self.action.store(action, Ordering::Relaxed);
        let marked = rule.as_ptr().map_addr(|address| address | marks);
        self.rule.store(marked, Ordering::Release);
    }

    /// Returns the rule, if there is one, and the marks.
    #[inline(always)]
    pub fn get(&self, order: Ordering) -> (*mut Rule, usize) {
        let marked = self.rule.load(order);
        let rule = marked.map_addr(|address| address & !MARKS);
        (rule, marked.addr() & MARKS)
    }

    /// Sets the rule, or none, with [`ASK`].
    pub fn put(&self, rule: *mut Rule) {
        let marked = rule.map_addr(|address| address | ASK);
        self.rule.store(marked, Ordering::Release);
    }

    /// Sets or clears [`ASK`].
    pub fn ask(&self, ask: bool) {
        let marked = self.rule.load(Ordering::Relaxed);
        let asked = |address: usize| address & !ASK | if ask { ASK } else { 0 };
        self.rule.store(marked.map_addr(asked), Ordering::Release);
    }

    /// Returns the rule's verdict; None where there is no rule, or it must be read itself.
    #[inline(always)]
    pub(crate) fn verdict<'g>(
        &self,
        edits: impl Fn(u32) -> Option<&'g ActionBlock>,
    ) -> Option<CountedVerdict<'g>> {
        let (rule, marks) = self.get(Ordering::Acquire);
        if rule.is_null() || marks & ASK != 0 {
            return None;
        }
        let counter = CounterId(self.counter.load(Ordering::Relaxed));
        let action = self.action.load(Ordering::Relaxed);
        let ends = match marks & EDITS {
            0 => Verdict::Sends(action),
            _ => Verdict::Edits(edits(action)?),
        };
        Some((counter, ends))
    }

    /// Returns whether the rule edits, if this is its summary and may be used.
    #[inline(always)]
    fn known_of(&self, rule: &Rule) -> Option<bool> {
        let (own, marks) = self.get(Ordering::Relaxed);
        (std::ptr::eq(own, rule) && marks & ASK == 0).then_some(marks & EDITS != 0)
    }
}

/// How to find the edits that summaries refer to by number.
#[derive(Clone, Copy)]
pub(crate) enum Edits<'g> {
    None,
    /// In a list that never changes.
    Listed(&'g [ActionBlocks]),
    /// In a table's own copies, which live as long as the guard under which they are read.
    Own(&'g [ActionBlock]),
    /// In a list in which edits come and go.
    Kept(&'g [AtomicPtr<ActionBlock>]),
}

/// Returns the edits of this number. A summary without [`ASK`] ([`RuleSummary::verdict`],
/// [`RuleSummary::known_of`]) must have given the number under the same guard under which `all` is
/// read.
#[inline(always)]
pub(crate) fn kept(all: &[AtomicPtr<ActionBlock>], number: u32) -> Option<&ActionBlock> {
    let block = all.get(number as usize)?.load(Ordering::Acquire);
    // SAFETY: null, or the first block of the list of steps of the place's rule. That is not
    // changed, and lives as long as the guard:
    // - The place was read by Acquire without `ASK`, which is cleared only when all guards are gone
    //   that began before the rule was in force (`Prefixes::settle`). So this one began later, and
    //   `all`, which was read since, has the edits at their number: they had been put there, and an
    //   array that replaces another is a copy.
    // - The number is given to other edits only when all guards are gone that began before the last
    //   rule with this list was unlinked (`settle`, `Left::Edits`).
    // - The list lives as long as a linked rule names it, and a rule that has been unlinked is
    //   freed, and releases it, only when those guards are gone.
    unsafe { block.as_ref() }
}

impl<'g> Edits<'g> {
    #[inline(always)]
    fn get(self, number: u32) -> Option<ActionBlocks> {
        match self {
            Edits::None => None,
            Edits::Listed(all) => all.get(number as usize).copied(),
            Edits::Own(all) => {
                let block = all.get(number as usize)?;
                Some(ActionBlocks::of(std::slice::from_ref(block)))
            }
            Edits::Kept(all) => {
                kept(all, number).map(|block| ActionBlocks::of(std::slice::from_ref(block)))
            }
        }
    }

    /// Returns the first block of the edits of this number.
    #[inline(always)]
    fn first(self, number: u32) -> Option<&'g ActionBlock> {
        match self {
            Edits::None => None,
            Edits::Listed(all) => all.get(number as usize)?.first(),
            Edits::Own(all) => all.get(number as usize),
            Edits::Kept(all) => kept(all, number),
        }
    }
}

/// Summaries of the rules that a burst's packets have met.
pub(crate) struct Summaries<'g> {
    pub(crate) edits: Edits<'g>,
    places: [Option<&'g RuleSummary>; LOOKUP_MAX],
}

impl<'g> Summaries<'g> {
    pub const NOTHING: Summaries<'g> = Summaries {
        edits: Edits::None,
        places: [None; LOOKUP_MAX],
    };

    /// Stores the summary of the rule that packet `index` has met.
    #[inline(always)]
    pub(crate) fn tell(&mut self, index: usize, place: &'g RuleSummary) {
        self.places[index % LOOKUP_MAX] = Some(place);
    }

    /// Returns the rule that packet `index` has met, with its summary.
    #[inline(always)]
    pub fn of(&self, index: usize, rule: &'g Rule) -> MatchedRule<'g> {
        let summaries = |place: &'g RuleSummary| {
            Some(Known {
                all: self.edits,
                place,
                edits: place.known_of(rule)?,
            })
        };
        MatchedRule {
            rule,
            summaries: self.places[index % LOOKUP_MAX].and_then(summaries),
        }
    }

    /// Returns the verdict of the rule that packet `index` has met, where its summary has one.
    #[inline(always)]
    pub fn verdict(&self, index: usize, rule: &'g Rule) -> Option<CountedVerdict<'g>> {
        let place = self.places[index % LOOKUP_MAX]?;
        place.known_of(rule)?;
        place.verdict(|number| self.edits.first(number))
    }
}

/// A rule that a packet has met, with its summary if it has one.
#[derive(Clone, Copy)]
pub(crate) struct MatchedRule<'g> {
    pub rule: &'g Rule,
    summaries: Option<Known<'g>>,
}

/// A summary, and the edits that it refers to.
#[derive(Clone, Copy)]
struct Known<'g> {
    all: Edits<'g>,
    place: &'g RuleSummary,
    edits: bool,
}

impl<'g> MatchedRule<'g> {
    /// Wraps a rule without a summary.
    #[inline(always)]
    pub fn of(rule: &'g Rule) -> MatchedRule<'g> {
        MatchedRule {
            rule,
            summaries: None,
        }
    }

    /// Returns the counter of its packets.
    #[inline(always)]
    pub fn counter(&self) -> CounterId {
        match self.summaries {
            Some(tells) => CounterId(tells.place.counter.load(Ordering::Relaxed)),
            None => self.rule.spec.counter,
        }
    }

    /// See [`Rule::only_output`].
    #[inline(always)]
    pub fn only_output(&self) -> Option<PortNo> {
        match self.summaries {
            Some(tells) => (!tells.edits).then_some(tells.place.action.load(Ordering::Relaxed)),
            None => self.rule.only_output(),
        }
    }

    /// See [`Rule::only_normal`].
    #[inline(always)]
    pub fn only_normal(&self) -> bool {
        self.summaries.is_none() && self.rule.only_normal()
    }

    /// See [`Rule::blocks`]. None for a rule that only outputs, where it has not been read.
    #[inline(always)]
    pub fn blocks(&self) -> Option<ActionBlocks> {
        match self.summaries {
            Some(tells) if !tells.edits => None,
            Some(tells) => tells.all.get(tells.place.action.load(Ordering::Relaxed)),
            None => self.rule.blocks(),
        }
    }

    /// Returns the edits of a rule that has not been read, to be prefetched.
    #[inline(always)]
    pub fn edits(&self) -> Option<ActionBlocks> {
        self.summaries?;
        self.blocks()
    }
}

/// Gives each packet the rule at the place that it has been led to. Calls `missed` for packets for
/// which the rule there does not hold in the epoch. With `summaries`, rules that have one are not
/// prefetched.
#[inline(always)]
pub(crate) fn resolve<'g>(
    place_of: impl Fn(usize) -> Option<&'g RuleSummary>,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    summaries: Option<&mut Summaries<'g>>,
    missed: impl FnMut(usize, &mut Option<&'g Rule>),
) {
    resolve_from(0, place_of, epoch, out, summaries, missed);
}

/// [`resolve`] for packets from number `from` on.
#[inline(always)]
pub(crate) fn resolve_from<'g>(
    from: usize,
    place_of: impl Fn(usize) -> Option<&'g RuleSummary>,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    mut summaries: Option<&mut Summaries<'g>>,
    mut missed: impl FnMut(usize, &mut Option<&'g Rule>),
) {
    let mut asked = [0_u8; LOOKUP_MAX];
    let mut count = 0;
    for (index, out) in out.iter_mut().enumerate().skip(from) {
        *out = None;
        let Some(place) = place_of(index) else {
            continue;
        };
        let (rule, marks) = place.get(Ordering::Acquire);
        if marks & ASK == 0 {
            // SAFETY: a rule found at its place is freed only after every guard that was alive when
            // its place was emptied is gone.
            *out = unsafe { rule.as_ref() };
            if let Some(summaries) = &mut summaries {
                summaries.places[index] = Some(place);
                continue;
            }
        } else {
            asked[count] = index as u8;
            count += 1;
        }
        prefetch_rule(rule);
    }
    for index in &asked[..count] {
        let index = usize::from(*index);
        let rule =
            place_of(index).map_or(std::ptr::null_mut(), |place| place.get(Ordering::Acquire).0);
        // SAFETY: as above.
        let rule: Option<&'g Rule> = unsafe { rule.as_ref() };
        let out = &mut out[index];
        *out = rule.filter(|rule| rule.holds_in(epoch));
        if out.is_none() {
            *out = rule.and_then(|rule| replacement(rule, epoch));
            if out.is_none() {
                missed(index, out);
            }
        }
    }
}

/// Returns the rule with the same match and precedence that holds in `epoch`, when `rule` does not
/// any more, or not yet.
#[cold]
fn replacement(rule: &Rule, epoch: Epoch) -> Option<&Rule> {
    if rule.added > epoch {
        return rule.version_in(epoch);
    }
    // A version that is not the newest leads to the one after it ([`Rule::next`]).
    let newer = |version: &Rule| {
        // SAFETY: chains are followed under a guard and by the writer; a rule is unlinked before it
        // is retired.
        let next = unsafe { version.next.load(Ordering::Acquire).as_ref() };
        next.filter(|next| next.spec.priority == rule.spec.priority)
    };
    std::iter::successors(newer(rule), |version| newer(version))
        .take(REPLACEMENTS_MAX)
        .find(|other| other.holds_in(epoch))
}

/// Most versions after the one at a place that a packet looks at before it is looked up in the
/// tuples, where it need not look at as many.
const REPLACEMENTS_MAX: usize = 16;
