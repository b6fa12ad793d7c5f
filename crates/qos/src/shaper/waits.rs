//! Recent waiting times: from one look at a watched queue to the next.

use super::watch::{Atom, Seen, Watch, interval};

/// Waiting times of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// How many packets left.
    pub packets: u64,
    /// Median, in nanoseconds, to within a quarter of a doubling.
    pub median_ns: u64,
    /// 99th percentile, likewise.
    pub p99_ns: u64,
    /// Longest wait, in nanoseconds.
    pub longest_ns: u64,
}

/// What the previous look has seen.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Look {
    waits: Vec<Atom>,
}

impl Look {
    /// Returns the waiting times of packets that have left the queue at this place since the last
    /// look; None if none left, or the queue is not watched.
    pub fn again(&mut self, watch: &Watch, place: usize) -> Option<Waits> {
        let longest_ns = watch.take_longest(place)?;
        let seen = watch.seen(place)?;
        self.after(&seen, longest_ns)
    }

    fn after(&mut self, seen: &Seen, longest_ns: u64) -> Option<Waits> {
        let before = std::mem::replace(&mut self.waits, seen.waits.clone());
        let begun_anew = packets(&before) > packets(&seen.waits);
        let lately = difference(if begun_anew { &[] } else { &before }, &seen.waits);
        let packets = packets(&lately);
        let quantile = |share: u64| {
            let wanted = (packets * share).div_ceil(100).max(1);
            let mut below = 0;
            let atom = lately.iter().find(|atom| {
                below += atom.count;
                below >= wanted
            });
            atom.map_or(0, |atom| atom.mean.round() as u64)
        };
        (packets > 0).then(|| Waits {
            packets,
            median_ns: quantile(50).min(longest_ns),
            p99_ns: quantile(99).min(longest_ns),
            longest_ns,
        })
    }
}

fn packets(atoms: &[Atom]) -> u64 {
    atoms.iter().map(|atom| atom.count).sum()
}

/// Returns what was added between two readings.
fn difference(before: &[Atom], after: &[Atom]) -> Vec<Atom> {
    let place = |atom: &Atom| interval(atom.mean as u64);
    let mut more = Vec::new();
    let mut earlier = before.iter().peekable();
    for atom in after {
        while earlier.next_if(|old| place(old) < place(atom)).is_some() {}
        let old = earlier.next_if(|old| place(old) == place(atom));
        let (count, sum) = old.map_or((0, 0.0), |old| (old.count, old.count as f64 * old.mean));
        if atom.count > count {
            let rest = atom.count - count;
            let mean = (atom.count as f64 * atom.mean - sum) / rest as f64;
            more.push(Atom { count: rest, mean });
        }
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_queue_that_is_not_watched_or_sent_nothing_has_no_figures() {
        let watch = Watch::new(2);
        let mut look = Look::default();
        assert_eq!(look.again(&watch, 0), None);
        assert!(watch.ask(0));
        assert_eq!(look.again(&watch, 0), None);
        let cell = watch.of(0).unwrap();
        cell.leave(100, 5000, false, 9000);
        cell.leave(100, 0, false, 9000);
        let waits = look.again(&watch, 0).unwrap();
        assert_eq!(
            (waits.packets, waits.median_ns, waits.longest_ns),
            (2, 0, 5000)
        );
        assert_eq!(look.again(&watch, 0), None, "none since");
        // Another configuration, whose record begins anew.
        let other = Watch::new(2);
        assert!(other.ask(0));
        other.of(0).unwrap().leave(100, 7000, false, 9000);
        let waits = look.again(&other, 0).unwrap();
        assert_eq!(
            (waits.packets, waits.median_ns, waits.longest_ns),
            (1, 7000, 7000)
        );
    }

    proptest! {
        /// Each look reports its own packets: quantiles to within an interval, the longest wait
        /// exactly.
        #[test]
        fn looks_tell_of_what_came_between(windows in prop::collection::vec(prop::collection::vec(0..5_000_000_u64, 0..40), 1..6)) {
            let watch = Watch::new(1);
            watch.ask(0);
            let cell = watch.of(0).unwrap();
            let mut look = Look::default();
            for mut window in windows {
                window.iter().for_each(|waited| cell.leave(60, *waited, false, 1));
                window.sort_unstable();
                let Some(waits) = look.again(&watch, 0) else {
                    prop_assert!(window.is_empty());
                    continue;
                };
                prop_assert_eq!(waits.packets, window.len() as u64);
                prop_assert_eq!(waits.longest_ns, window[window.len() - 1]);
                for (share, told) in [(50, waits.median_ns), (99, waits.p99_ns)] {
                    let rank = (window.len() * share).div_ceil(100).max(1);
                    // Means of an interval lie within it, except for rounding.
                    let (true_place, place) = (interval(window[rank - 1]), interval(told));
                    prop_assert!(place.abs_diff(true_place) <= 1, "{} for {}", told, window[rank - 1]);
                }
            }
        }
    }
}
