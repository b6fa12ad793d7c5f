//! Chooses where to cut: the run of bits, or two of them together, with the lowest estimated work.
//!
//! Candidates are the runs whose bits, each by itself, separate rules best. Each candidate is then
//! judged by counting which rules come together, and how many copies it takes.

use crate::classifier::tree::Run;
use crate::classifier::tree::build::{BITS_MAX, Builder, LEAF_MAX};
use smallvec::SmallVec;

/// Most rules by which a cut is judged.
const SAMPLE: usize = 1024;
/// Estimated cycles of one step down.
const STEP: f64 = 9.0;
/// Estimated cycles to compare one rule.
const COMPARE: f64 = 5.0;
/// Estimated cycles that each doubling of copies costs by crowding the caches; in large tables
/// `COPIES_LARGE`.
const COPIES: f64 = 0.5;
const COPIES_LARGE: f64 = 4.0;
/// Rules of a large table: they fit no cache private to a core.
const LARGE: f64 = 20_000.0;
/// Number of the best runs that are tried in pairs.
const TOGETHER: usize = 3;
/// Most places in children for each rule, where children with the same rules share a branch.
const PLACES: f64 = 64.0;
/// Most such places, for each rule of a table, that a build looks at, so that odd masks do not make
/// it take minutes.
const LOOKS: f64 = 2000.0;

/// A cut: which bits form the index. Rules that leave more than `open` of them open go to another
/// tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// The runs; the second may be empty.
    pub runs: [Run; 2],
    pub open: u32,
}

impl Cut {
    fn new(runs: [Run; 2]) -> Cut {
        let mut cut = Cut { runs, open: 0 };
        cut.open = cut.bits();
        cut
    }

    /// Returns the number of bits of the index.
    pub fn bits(&self) -> u32 {
        self.runs.iter().map(|run| run.bits).sum()
    }
}

/// Estimates the cycles to find one of `rules` after this node's step.
fn resolve(rules: f64) -> f64 {
    if rules <= 4.0 {
        COMPARE * rules
    } else {
        4.0 * COMPARE + 0.75 * STEP * (rules / 4.0).log2()
    }
}

/// Estimates the cycles of another tree for `rules`.
fn another_tree(rules: f64) -> f64 {
    if rules < 0.5 {
        0.0
    } else if rules <= 4.0 {
        4.0 + COMPARE * rules
    } else {
        STEP + 4.0 + resolve(rules)
    }
}

impl Builder {
    /// Returns the cut with the lowest estimated work; None where none beats a leaf.
    pub(crate) fn best_cut(&mut self, rules: &[u32], known: &[u64], root: bool) -> Option<Cut> {
        // An odd step, so that both of two kinds of rules in turns are sampled.
        let step = rules.len().div_ceil(SAMPLE) | 1;
        let sample: Vec<u32> = rules.iter().step_by(step).copied().collect();
        let whole = rules.len() as f64;
        let most = (usize::BITS - rules.len().leading_zeros()).clamp(2, 12);
        let most = if root {
            (most + 4).clamp(8, BITS_MAX)
        } else {
            most + 1
        };
        let thorough = rules.len() > 64;
        let mut widths = if thorough {
            [most, most.saturating_sub(3), most / 2, 3]
        } else {
            [most, most / 2, 0, 0]
        };
        widths.sort_unstable();
        let gains: Vec<[f64; 64]> = known
            .iter()
            .enumerate()
            .map(|(slot, known)| self.gains(&sample, slot, *known))
            .collect();
        let mut cuts: SmallVec<[Cut; 32]> = SmallVec::new();
        for (slot, gains) in gains.iter().enumerate() {
            let mut before = 0;
            for bits in widths {
                if bits <= before || bits == 0 {
                    continue;
                }
                before = bits;
                let shifts = windows(gains, bits, thorough);
                let runs = shifts.map(|(shift, _)| Run { slot, shift, bits });
                cuts.extend(runs.map(|run| Cut::new([run, Run::EMPTY])));
            }
        }
        let half = most / 2;
        let halves = if thorough {
            half.saturating_sub(2).max(1)..=half
        } else {
            half..=half
        };
        halves.for_each(|bits| pairs(&gains, bits, &mut cuts));
        let mut best: Option<(f64, Cut)> = None;
        let mut scratch = std::mem::take(&mut self.scratch);
        for cut in cuts {
            if let Some((cost, cut)) = self.judge(&sample, whole, cut, root, &mut scratch)
                && best.is_none_or(|(least, _)| cost < least)
                && let Some(cut) = self.bounded(rules, cut, root)
            {
                best = Some((cost, cut));
            }
        }
        self.scratch = scratch;
        let (cost, cut) = best?;
        let leaf = if rules.len() <= LEAF_MAX {
            COMPARE * whole
        } else {
            f64::MAX
        };
        (cost + 2.0 < leaf).then_some(cut)
    }

    /// Returns for each bit of a word how well it separates rules: at most 1; below 0 where it is
    /// better not looked at.
    fn gains(&self, sample: &[u32], slot: usize, known: u64) -> [f64; 64] {
        let (mut fixed, mut ones) = ([0_u32; 64], [0_u32; 64]);
        for rank in sample {
            let mut mask = self.mask(*rank)[slot] & !known;
            let value = self.value(*rank)[slot];
            while mask != 0 {
                let bit = mask.trailing_zeros();
                mask &= mask - 1;
                fixed[bit as usize] += 1;
                ones[bit as usize] += (value >> bit & 1) as u32;
            }
        }
        let count = sample.len() as f64;
        std::array::from_fn(|bit| {
            let fewer = ones[bit].min(fixed[bit] - ones[bit]);
            let open = f64::from(sample.len() as u32 - fixed[bit]);
            (2.0 * f64::from(fewer) - 0.5 * open) / count
        })
    }

    /// Returns the estimated cost of a cut, and the cut with its `open` limit; None for one that
    /// separates next to nothing, or costs too many copies.
    fn judge(
        &self,
        sample: &[u32],
        whole: f64,
        cut: Cut,
        root: bool,
        scratch: &mut Scratch,
    ) -> Option<(f64, Cut)> {
        if !root {
            return self.cost(sample, whole, cut, root, scratch);
        }
        let limit = self.limit(sample, whole, &cut, root)?;
        let mut best: Option<(f64, Cut)> = None;
        let mut tried = None;
        for open in [limit, limit.min(3), 0] {
            if tried.replace(open) == Some(open) {
                continue;
            }
            if let Some((cost, cut)) = self.cost(sample, whole, Cut { open, ..cut }, root, scratch)
                && best.is_none_or(|(least, _)| cost < least)
            {
                best = Some((cost, cut));
            }
        }
        best
    }

    /// Returns how many rules there may be in children for these of `whole` rules, counting copies.
    fn room(&self, rules: f64, whole: f64, root: bool) -> f64 {
        // The more rules there are, the fewer copies are allowed.
        let factor = match (root, whole < LARGE) {
            (true, true) => 3.0,
            (true, false) => 1.5,
            (false, _) if self.copied() < 0.5 => 2.0,
            (false, _) => 1.2,
        };
        factor * rules + if root { 1024.0 * rules / whole } else { 8.0 }
    }

    /// Returns the number of rules in children, counting copies, by how many bits of the cut rules
    /// leave open.
    fn copies(&self, rules: &[u32], cut: &Cut) -> [f64; 33] {
        let mut copies = [0.0; 33];
        for rank in rules {
            let open = self.open_bits(*rank, cut);
            copies[open as usize] += f64::from(1_u32 << open);
        }
        copies
    }

    /// Returns how many bits a rule may leave open at most, so that the copies of these of `whole`
    /// rules fit the budget; None where rules that leave none open are already too many.
    fn limit(&self, rules: &[u32], whole: f64, cut: &Cut, root: bool) -> Option<u32> {
        let room = self.room(rules.len() as f64, whole, root);
        let copies = self.copies(rules, cut);
        let (mut sum, mut limit) = (0.0, None);
        for open in 0..=cut.bits() {
            sum += copies[open as usize];
            if sum > room {
                break;
            }
            limit = Some(open);
        }
        limit
    }

    /// Limits a cut that was judged by a sample to what all rules allow: a few that are not in the
    /// sample may leave so much open that their copies fill the memory. None where such rules would
    /// have to go to another tree, which only a root can do.
    fn bounded(&self, rules: &[u32], cut: Cut, root: bool) -> Option<Cut> {
        if rules.len() <= SAMPLE {
            return Some(cut); // judged by all of them
        }
        let limit = self.limit(rules, rules.len() as f64, &cut, root)?;
        let open = cut.open.min(limit);
        (root || open == cut.bits()).then_some(Cut { open, ..cut })
    }

    /// See [`Builder::judge`].
    fn cost(
        &self,
        sample: &[u32],
        whole: f64,
        cut: Cut,
        root: bool,
        scratch: &mut Scratch,
    ) -> Option<(f64, Cut)> {
        let size = sample.len() as f64;
        let room = self.room(size, whole, root);
        let mut copies: f64 = self.copies(sample, &cut)[..=cut.open as usize].iter().sum();
        // Children whose indexes differ only in bits that all their rules leave open have the same
        // rules, and share a branch. That is seen only where all rules are looked at.
        let shares = copies > room;
        if shares {
            let too_many = copies > PLACES * size || scratch.looks > self.looks_max();
            if root || size != whole || too_many {
                return None;
            }
            scratch.looks += copies;
        }
        let open = |rank: &u32| self.open_bits(*rank, &cut);
        let kept = || sample.iter().filter(|rank| open(rank) <= cut.open);
        let Scratch { counts, lists, .. } = scratch;
        kept().for_each(|rank| self.each_index(*rank, &cut, |index| counts[index] += 1));
        let clear = |counts: &mut [u32]| {
            kept().for_each(|rank| self.each_index(*rank, &cut, |index| counts[index] = 0));
        };
        if shares {
            copies = self.distinct(sample, &cut, counts, lists);
            if copies > room {
                clear(counts);
                return None;
            }
        }
        // Other rules that are met at the same index as a rule.
        let (mut others, mut count) = (0.0, 0.0);
        for rank in kept() {
            let mut sum = 0_u64;
            self.each_index(*rank, &cut, |index| sum += u64::from(counts[index] - 1));
            others += sum as f64 / f64::from(1_u32 << open(rank));
            count += 1.0;
        }
        clear(counts);
        if count < 0.1 * size {
            return None;
        }
        let met = 1.0 + others / count * (whole - 1.0) / (size - 1.0).max(1.0);
        if met > 0.75 * whole * count / size {
            return None;
        }
        let share = count / size;
        let deferred = (1.0 - share) * whole;
        let visits = match sample.iter().find(|rank| open(rank) > cut.open) {
            None => 0.0,
            Some(first) => {
                let behind = kept().filter(|rank| *rank > first).count() as f64;
                behind / size + 1.0 - share
            }
        };
        // A bigger index occupies more of the caches.
        let index = 0.7 * f64::from(cut.bits().saturating_sub(10));
        let weight = if whole < LARGE { COPIES } else { COPIES_LARGE };
        let index = index + weight * (copies / count).log2().max(0.0);
        let cost = STEP + index + share * resolve(met) + visits * another_tree(deferred);
        Some((cost, cut))
    }

    /// Returns how many places in children a build may look at where children share branches.
    fn looks_max(&self) -> f64 {
        LOOKS * self.mask_of.len() as f64
    }

    /// Returns the number of rules in all children, where children with the same rules count once;
    /// `counts` has each child's number.
    fn distinct(&self, rules: &[u32], cut: &Cut, counts: &[u32], lists: &mut Vec<u64>) -> f64 {
        lists.clear();
        lists.resize(1 << cut.bits(), 0);
        for rank in rules {
            let name = u64::from(*rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let name = name ^ name >> 29;
            let add = |index: usize| lists[index] = lists[index].wrapping_add(name);
            self.each_index(*rank, cut, add);
        }
        // Each list's name with its number of rules; equal names lie side by side when sorted.
        let pairs = lists.iter().zip(counts);
        let mut pairs: Vec<(u64, u32)> = pairs.map(|(name, count)| (*name, *count)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs.iter().map(|(_, count)| f64::from(*count)).sum()
    }
}

/// What is counted of a cut's children.
#[derive(Clone, Default)]
pub(crate) struct Scratch {
    /// Number of rules at each index. All zero between judgements.
    counts: Vec<u32>,
    /// The sum of names of the rules at each index.
    lists: Vec<u64>,
    /// Places in children that have been looked at where children share branches.
    pub looks: f64,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch {
            counts: vec![0; 1 << BITS_MAX],
            lists: Vec::new(),
            looks: 0.0,
        }
    }
}

/// Returns the best runs of `bits` bits and how well they separate: the best one, and the best of
/// those that overlap it by less than half.
fn windows(
    gains: &[f64; 64],
    bits: u32,
    thorough: bool,
) -> impl Iterator<Item = (u32, f64)> + use<> {
    let bits = bits as usize;
    let gain = |shift: usize| gains[shift..shift + bits].iter().sum::<f64>();
    let best = |allowed: &dyn Fn(usize) -> bool| {
        (0..=64 - bits)
            .filter(|shift| allowed(*shift))
            .map(|shift| (shift, gain(shift)))
            .max_by(|(_, one), (_, other)| one.total_cmp(other))
            .filter(|(_, gain)| *gain > 0.0)
    };
    let first = best(&|_| true);
    let second = first.filter(|_| thorough);
    let second = second.and_then(|(first, _)| best(&|shift| shift.abs_diff(first) * 2 > bits));
    first
        .into_iter()
        .chain(second)
        .map(|(shift, gain)| (shift as u32, gain))
}

/// Adds the best runs of `bits` bits in pairs.
fn pairs(gains: &[[f64; 64]], bits: u32, cuts: &mut SmallVec<[Cut; 32]>) {
    if bits == 0 {
        return;
    }
    let mut runs: SmallVec<[(f64, Run); 8]> = SmallVec::new();
    for (slot, gains) in gains.iter().enumerate() {
        let shifts = windows(gains, bits, true);
        runs.extend(shifts.map(|(shift, gain)| (gain, Run { slot, shift, bits })));
    }
    runs.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    runs.truncate(TOGETHER);
    for (at, (_, low)) in runs.iter().enumerate() {
        for (_, high) in &runs[..at] {
            if low.slot != high.slot || low.place() & high.place() == 0 {
                cuts.push(Cut::new([*low, *high]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules of one word: a few, none of which is sampled, match its lowest byte, the others all of
    /// it.
    fn mixed(rules: u32, step: u32) -> Builder {
        let rare = |rank: u32| rank % step == 1;
        let values = (0..rules).map(|rank| match rare(rank) {
            true => u64::from(rank % 256),
            false => u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        });
        Builder {
            words: 1,
            masks: vec![u64::MAX, 0xff],
            mask_of: (0..rules).map(|rank| rare(rank).into()).collect(),
            values: values.collect(),
            nodes: Vec::new(),
            leaves: Vec::new(),
            entries: 0,
            budget: 5 * rules as usize + 4096,
            singles: vec![super::super::Branch::EMPTY; rules as usize],
            otherwise: super::super::NONE,
            left: vec![false; rules as usize],
            scratch: Scratch::new(),
        }
    }

    #[test]
    fn rules_that_a_sample_misses_are_not_copied_without_bound() {
        let rules = 4 * SAMPLE as u32 + 1;
        let step = rules.div_ceil(SAMPLE as u32);
        assert_eq!(step | 1, step, "every fifth rule is in the sample");
        let mut builder = mixed(rules, step);
        let all: Vec<u32> = (0..rules).collect();
        for root in [true, false] {
            let Some(cut) = builder.best_cut(&all, &[0], root) else {
                assert!(!root, "most rules differ in all bits");
                continue;
            };
            let open = all.iter().map(|rank| builder.open_bits(*rank, &cut));
            let copies: u64 = open
                .filter(|open| *open <= cut.open)
                .map(|open| 1 << open)
                .sum();
            assert!(copies <= 3 * u64::from(rules) + 1024, "{copies} of {cut:?}");
        }
    }
}
