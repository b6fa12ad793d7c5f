//! Estimates the cost of lookups in trees: at most, by the deepest path in each tree, and on
//! average, by trial lookups.

use crate::classifier::describe::Work;
use crate::classifier::tree::build::{Builder, LINE};
use crate::classifier::tree::{Branch, Tree};

/// Keys tried to estimate the average work.
const TRIALS: usize = 1024;
/// Reading the summary of the rank that was found. Rules that do more than send are read
/// themselves, but that costs the same in tuples.
const FOUND: Work = Work {
    accesses: 1.0,
    compares: 0.0,
    hashes: 0.0,
};
/// One step down.
const INNER: Work = Work {
    accesses: 1.0,
    compares: 0.0,
    hashes: 0.0,
};

impl Builder {
    /// Returns the most work that a packet can take.
    pub(crate) fn worst(&self, trees: &[Tree]) -> Work {
        let worst = trees.iter().fold(Work::default(), |sum, tree| {
            sum.and(self.worst_below(tree.root))
        });
        worst.and(FOUND)
    }

    fn worst_below(&self, branch: Branch) -> Work {
        if branch.is_leaf() {
            return self.work_in(branch, branch.rules());
        }
        let mut worst = Work::default();
        let mut before = Branch::EMPTY;
        for child in &self.nodes[branch.base()..branch.base() + branch.children()] {
            if *child == before {
                continue;
            }
            before = *child;
            let below = self.worst_below(*child);
            if below.cycles(1 << 20) > worst.cycles(1 << 20) {
                worst = below;
            }
        }
        worst.and(INNER)
    }

    /// Returns the work of comparing the first `rules` of a leaf.
    fn work_in(&self, leaf: Branch, rules: usize) -> Work {
        let first = leaf.base() / LINE;
        let last = (leaf.base() + rules * (self.words + 1)).div_ceil(LINE);
        Work {
            accesses: if rules == 0 {
                0.0
            } else {
                (last - first) as f64
            },
            compares: rules as f64,
            ..Work::default()
        }
    }

    /// Returns the average work of packets that meet the rules evenly: looks up keys made from
    /// rules, with random values in the bits that these leave open.
    pub(crate) fn typical(&self, trees: &[Tree]) -> Work {
        let ranks = self.mask_of.len();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let (mut sum, mut tried) = (Work::default(), 0.0);
        let mut key = vec![0; self.words];
        for trial in 0..TRIALS.min(ranks * 4) {
            let rank = (trial * ranks / TRIALS.min(ranks * 4)) as u32;
            for (slot, word) in key.iter_mut().enumerate() {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                *word = self.value(rank)[slot] | random & !self.mask(rank)[slot];
            }
            sum = sum.and(self.work_of(trees, &key));
            tried += 1.0;
        }
        let tried: f64 = if tried == 0.0 { 1.0 } else { tried };
        Work {
            accesses: sum.accesses / tried,
            compares: sum.compares / tried,
            hashes: 0.0,
        }
    }

    fn work_of(&self, trees: &[Tree], key: &[u64]) -> Work {
        let mut work = FOUND;
        let mut best = self.otherwise;
        for tree in trees {
            if best < tree.first {
                break;
            }
            let mut branch = tree.root;
            while !branch.is_leaf() {
                work = work.and(INNER);
                branch = self.nodes[branch.child(|slot| key[slot])];
            }
            let stride = self.words + 1;
            let rules = &self.leaves[branch.base()..][..branch.rules() * stride];
            let rules = rules.chunks_exact(stride);
            let mut compared = 0;
            for rule in rules {
                compared += 1;
                let rank = rule[self.words] as u32;
                let mut words = key.iter().zip(self.mask(rank)).zip(self.value(rank));
                if words.all(|((key, mask), value)| key & mask == *value) {
                    best = best.min(rank);
                    break;
                }
            }
            work = work.and(self.work_in(branch, compared));
        }
        work
    }
}
