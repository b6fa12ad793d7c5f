//! Parts rules by what they look at, before trees are built.
//!
//! Where some rules leave a field open in which others differ, no cut suits both: one by that field
//! copies the former to all children, one by another field leaves the latter together. An access
//! list has rules by both addresses, by one of them and by ports alone, so each such group gets a
//! tree of its own (as in EffiCuts, Vamanan et al. 2010, section 3.1). Fields are not known here:
//! halves of words, which addresses and pairs of ports are, stand for them.

use crate::classifier::tree::build::Builder;
use std::cmp::Reverse;

/// Bits of a half.
const HALF: u32 = 32;
/// A rule looks at a half if it has at least this many of its bits: a prefix of fewer leaves most
/// children of a cut to it.
const SOME: u32 = 8;
/// Most halves by which rules are parted: each doubles the number of groups.
const HALVES: usize = 2;
/// Groups of less than this part of the rules are put together: a tree costs each packet more.
const SMALL: usize = 64;
/// Different values of a half that make it worth parting rules by.
const VALUES: usize = 64;

impl Builder {
    /// Returns rules, which are sorted, by groups; each is sorted.
    pub(crate) fn groups(&self, rules: &[u32]) -> Vec<Vec<u32>> {
        let halves = self.parting_halves(rules);
        let mut groups = vec![Vec::new(); 1 << halves.len()];
        let least = rules.len() / SMALL;
        for rank in rules {
            let lacks = halves.iter().enumerate();
            let lacks = lacks.map(|(at, half)| usize::from(!self.looks_at(*rank, *half)) << at);
            groups[lacks.sum::<usize>()].push(*rank);
        }
        let (mut groups, small): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.len() > least);
        let mut together: Vec<u32> = small.into_iter().flatten().collect();
        together.sort_unstable();
        groups.push(together);
        groups.retain(|group| !group.is_empty());
        groups
    }

    /// Returns the halves of words in which rules differ: the two that the largest numbers of rules
    /// look at.
    fn parting_halves(&self, rules: &[u32]) -> Vec<usize> {
        let most = VALUES.min(rules.len() / 8);
        let mut halves: Vec<(usize, usize)> = (0..2 * self.words)
            .filter_map(|half| {
                let looking = || rules.iter().filter(|rank| self.looks_at(**rank, half));
                let count = looking().count();
                let mut values: Vec<u64> = looking().map(|rank| self.half(*rank, half)).collect();
                values.sort_unstable();
                values.dedup();
                (values.len() > most).then_some((count, half))
            })
            .collect();
        halves.sort_unstable_by_key(|(count, half)| (Reverse(*count), *half));
        halves.truncate(HALVES);
        halves.into_iter().map(|(_, half)| half).collect()
    }

    fn looks_at(&self, rank: u32, half: usize) -> bool {
        let mask = self.mask(rank)[half / 2] >> (HALF * (half as u32 % 2));
        (mask as u32).count_ones() >= SOME
    }

    fn half(&self, rank: u32, half: usize) -> u64 {
        self.value(rank)[half / 2] >> (HALF * (half as u32 % 2)) & 0xffff_ffff
    }
}
