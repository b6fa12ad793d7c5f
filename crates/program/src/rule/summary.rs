//! What is known of rules before they are read: for lookups that lead to a small number instead of
//! a rule.
//!
//! A place says of a rule that only sends, perhaps after edits, all that its packets need to know:
//! its counter, its port or its edits. So the rule itself, a cache line anywhere in memory, is not
//! read while it is in force.

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

/// Edits that places name by number.
pub(crate) type KeptEdits = Growing<AtomicPtr<ActionBlock>>;

/// What stands at a number. All but `rule` changes only while nobody can be led here.
#[derive(Default)]
#[repr(C)] // vector code reads it as two words (`prefixes::avx512`)
pub(crate) struct RuleSummary {
    /// The rule, null where it has been freed, with what is to be known of it in the lowest bits.
    rule: AtomicPtr<Rule>,
    counter: AtomicU32,
    /// The port, or the number of the edits.
    action: AtomicU32,
}

/// Of a rule at a place: it must be read itself, because it may not hold in all epochs in which
/// packets are led here, does more than send, or stands here for another one.
pub(crate) const ASK: usize = 1;
/// It edits before it sends.
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

/// What a place can tell of what a rule does.
pub(crate) enum Effect {
    /// It only sends, to this port.
    Sends(PortNo),
    /// It edits and sends, and no more.
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

/// What a rule does that does no more than send, perhaps after edits.
#[derive(Clone, Copy)]
pub(crate) enum Verdict<'g> {
    /// It sends to this port.
    Sends(PortNo),
    /// It does these edits, and sends where they say.
    Edits(&'g ActionBlock),
}

/// What becomes of a packet that has met such a rule: where it is counted, and what is done to it.
pub(crate) type CountedVerdict<'g> = (CounterId, Verdict<'g>);

impl RuleSummary {
    pub fn new(rule: NonNull<Rule>, marks: usize, counter: CounterId, action: u32) -> RuleSummary {
        let place = RuleSummary::default();
        place.set(rule, marks, counter, action);
        place
    }

    /// Says all anew. Nobody may be led here meanwhile.
    pub fn set(&self, rule: NonNull<Rule>, marks: usize, counter: CounterId, action: u32) {
        self.counter.store(counter.0, Ordering::Relaxed);
        self.action.store(action, Ordering::Relaxed);
        let marked = rule.as_ptr().map_addr(|address| address | marks);
        self.rule.store(marked, Ordering::Release);
    }

    /// The rule, if there is one, and the marks.
    #[inline(always)]
    pub fn get(&self, order: Ordering) -> (*mut Rule, usize) {
        let marked = self.rule.load(order);
        let rule = marked.map_addr(|address| address & !MARKS);
        (rule, marked.addr() & MARKS)
    }

    /// Puts a rule here, or none, that must be read itself.
    pub fn put(&self, rule: *mut Rule) {
        let marked = rule.map_addr(|address| address | ASK);
        self.rule.store(marked, Ordering::Release);
    }

    /// Says that the rule must be read, or that it need not be any more.
    pub fn ask(&self, ask: bool) {
        let marked = self.rule.load(Ordering::Relaxed);
        let asked = |address: usize| address & !ASK | if ask { ASK } else { 0 };
        self.rule.store(marked.map_addr(asked), Ordering::Release);
    }

    /// What this tells of its rule, if there is one, and it need not be read itself.
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

    /// If what stands here is of this rule: whether it edits.
    #[inline(always)]
    fn known_of(&self, rule: &Rule) -> Option<bool> {
        let (own, marks) = self.get(Ordering::Relaxed);
        (std::ptr::eq(own, rule) && marks & ASK == 0).then_some(marks & EDITS != 0)
    }
}

/// What edits the numbers in places mean.
#[derive(Clone, Copy)]
pub(crate) enum Edits<'g> {
    None,
    /// Of places that are made once.
    Listed(&'g [ActionBlocks]),
    /// Of a table that has its own copies, and lives as long as the guard that it is looked at
    /// under.
    Own(&'g [ActionBlock]),
    /// Of places that come and go.
    Kept(&'g [AtomicPtr<ActionBlock>]),
}

/// The edits of this number, which is one that a place has summaries under the guard that `all` is
/// looked at under, and that did not say that its rule must be asked ([`RuleSummary::verdict`],
/// [`RuleSummary::known_of`]).
#[inline(always)]
pub(crate) fn kept(all: &[AtomicPtr<ActionBlock>], number: u32) -> Option<&ActionBlock> {
    let block = all.get(number as usize)?.load(Ordering::Acquire);
    // SAFETY: null, or the first block of the list of steps of the place's rule. That is not
    // changed, and lives as long as the guard:
    // - The place was read by Acquire without `ASK`, which goes only when all guards are gone that
    //   began before the rule was in force (`Prefixes::settle`). So this one began later, and
    //   `all`, which was looked at since, has the edits at their number: they had been put there,
    //   and an array that takes another's place is a copy.
    // - The number is given to other edits only when all guards are gone that began before the last
    //   rule with this list was unlinked (`settle`, `Left::Edits`).
    // - The list lives as long as a linked rule names it, and a rule that has been unlinked is
    //   freed, and lets go of it, only when those guards are gone.
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

    /// The first block of the edits of this number.
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

/// What is known of the rules that packets have met before they are read.
pub(crate) struct Summaries<'g> {
    pub(crate) edits: Edits<'g>,
    places: [Option<&'g RuleSummary>; LOOKUP_MAX],
}

impl<'g> Summaries<'g> {
    pub const NOTHING: Summaries<'g> = Summaries {
        edits: Edits::None,
        places: [None; LOOKUP_MAX],
    };

    /// Says what is known of the rule that packet `index` has met.
    #[inline(always)]
    pub(crate) fn tell(&mut self, index: usize, place: &'g RuleSummary) {
        self.places[index % LOOKUP_MAX] = Some(place);
    }

    /// What is known of the rule that packet `index` has met.
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

    /// The verdict of the rule that packet `index` has met, where it is known without reading that.
    #[inline(always)]
    pub fn verdict(&self, index: usize, rule: &'g Rule) -> Option<CountedVerdict<'g>> {
        let place = self.places[index % LOOKUP_MAX]?;
        place.known_of(rule)?;
        place.verdict(|number| self.edits.first(number))
    }
}

/// A rule that a packet has met, and what is known of it without reading it.
#[derive(Clone, Copy)]
pub(crate) struct MatchedRule<'g> {
    pub rule: &'g Rule,
    summaries: Option<Known<'g>>,
}

/// A place that tells of its rule.
#[derive(Clone, Copy)]
struct Known<'g> {
    all: Edits<'g>,
    place: &'g RuleSummary,
    edits: bool,
}

impl<'g> MatchedRule<'g> {
    /// Nothing is known but the rule.
    #[inline(always)]
    pub fn of(rule: &'g Rule) -> MatchedRule<'g> {
        MatchedRule {
            rule,
            summaries: None,
        }
    }

    /// Where its packets are counted.
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

    /// See [`Rule::blocks`]; none of a rule that only outputs, where it has not been read.
    #[inline(always)]
    pub fn blocks(&self) -> Option<ActionBlocks> {
        match self.summaries {
            Some(tells) if !tells.edits => None,
            Some(tells) => tells.all.get(tells.place.action.load(Ordering::Relaxed)),
            None => self.rule.blocks(),
        }
    }

    /// The edits of a rule that has not been read, to be fetched.
    #[inline(always)]
    pub fn edits(&self) -> Option<ActionBlocks> {
        self.summaries?;
        self.blocks()
    }
}

/// Gives each packet the rule at the place that it has been led to. Packets for which that does not
/// tell, because the rule does not hold in the epoch, are given to `missed`. Where somebody is to
/// be summaries what is known of rules, those are not fetched.
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

/// The same for packets from number `from` on.
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

/// The rule that says the same with the same precedence and holds in `epoch`, when `rule` does not
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

/// Versions after the one that a place names which a packet looks at before it is looked up in the
/// tuples, where it needs to look at fewer.
const REPLACEMENTS_MAX: usize = 16;
