//! Decides which worker serves which receive queue, as `pmd-rxq-assign` and `pmd-auto-lb` of Open
//! vSwitch's ovs-vswitchd.conf.db(5) say. Pure: loads come in, places go out.

/// How receive queues are assigned to workers: `other_config:pmd-rxq-assign`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Assignment {
    /// In the order of ports and queues, one worker after the other.
    RoundRobin,
    /// The heaviest queue first, to one worker after the other and back again.
    #[default]
    Cycles,
    /// The heaviest queue first, each to the worker with the least load.
    Group,
}

impl Assignment {
    /// All of them, with their names in the database.
    pub const ALL: [(&'static str, Assignment); 3] = [
        ("cycles", Assignment::Cycles),
        ("group", Assignment::Group),
        ("roundrobin", Assignment::RoundRobin),
    ];

    /// Returns its name in the database.
    pub fn name(self) -> &'static str {
        let found = Assignment::ALL.into_iter().find(|(_, how)| *how == self);
        found.map_or("", |(name, _)| name)
    }
}

/// When queues are assigned anew by themselves: `other_config:pmd-auto-lb` and its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AutoBalance {
    /// Whether that is done at all.
    pub is_enabled: bool,
    /// Minutes between two checks, at least 1.
    pub interval_minutes: u64,
    /// Percent of its time that a worker has to spend on frames, in every interval of a minute,
    /// before anything is moved; 0 to 100.
    pub load_threshold: u64,
    /// Percent by which the variance of the workers' loads has to fall; 0 to 100.
    pub improvement_threshold: u64,
}

impl Default for AutoBalance {
    /// Open vSwitch's defaults.
    fn default() -> AutoBalance {
        AutoBalance {
            is_enabled: false,
            interval_minutes: 1,
            load_threshold: 95,
            improvement_threshold: 25,
        }
    }
}

/// A receive queue to be assigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queue {
    /// Cycles that its frames took in the last minute, whichever workers spent them.
    pub load: u64,
    /// The worker that it is pinned to.
    pub pin: Option<usize>,
}

/// Assigns queues, given in the order of ports, to workers, given by whether each serves pinned
/// queues only; at least one does not. Returns a worker for each queue. The result depends on
/// nothing else: not on where queues are now.
pub(crate) fn assign(how: Assignment, queues: &[Queue], isolated: &[bool]) -> Vec<usize> {
    let free: Vec<usize> = (0..isolated.len()).filter(|at| !isolated[*at]).collect();
    let mut totals = vec![(0_u128, 0_usize); isolated.len()];
    let mut chosen = vec![0; queues.len()];
    let mut order = Vec::with_capacity(queues.len());
    for (index, queue) in queues.iter().enumerate() {
        match queue.pin {
            Some(at) => {
                chosen[index] = at;
                totals[at] = (totals[at].0 + u128::from(queue.load), totals[at].1 + 1);
            }
            None => order.push(index),
        }
    }
    if how != Assignment::RoundRobin {
        order.sort_by_key(|index| std::cmp::Reverse(queues[*index].load));
    }
    for (turn, index) in order.into_iter().enumerate() {
        let (round, step) = (turn / free.len(), turn % free.len());
        let at = match how {
            Assignment::RoundRobin => free[step],
            Assignment::Cycles if round % 2 == 0 => free[step],
            Assignment::Cycles => free[free.len() - 1 - step],
            // Queues without a load are spread by number: none of them changes any worker's load.
            Assignment::Group if queues[index].load == 0 => least(&free, |at| totals[at].1),
            Assignment::Group => least(&free, |at| totals[at]),
        };
        totals[at] = (
            totals[at].0 + u128::from(queues[index].load),
            totals[at].1 + 1,
        );
        chosen[index] = at;
    }
    chosen
}

/// Returns the first of `places` whose value is least.
fn least<V: Ord>(places: &[usize], value: impl Fn(usize) -> V) -> usize {
    let found = places.iter().copied().min_by_key(|at| value(*at));
    found.unwrap_or_default()
}

/// Returns the worker for one more queue, whose load is not known yet: that with the least to do,
/// which for [`Assignment::RoundRobin`] means the fewest queues. `totals` has each worker's load
/// and number of queues.
pub(crate) fn place(how: Assignment, totals: &[(u128, usize)], isolated: &[bool]) -> usize {
    let free: Vec<usize> = (0..isolated.len()).filter(|at| !isolated[*at]).collect();
    match how {
        Assignment::RoundRobin => least(&free, |at| totals[at].1),
        _ => least(&free, |at| totals[at]),
    }
}

/// A worker, as automatic balancing sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Working {
    /// Cycles that passed in the last minute.
    pub passed: u64,
    /// Cycles of these that it spent on frames: its own queues' and those that it took from others.
    pub busy: u64,
    /// Whether each of the last minute's intervals was at the threshold or above.
    pub is_overloaded: bool,
    /// Whether it serves pinned queues only.
    pub is_isolated: bool,
    /// Number of its queues.
    pub queues: usize,
}

/// What automatic balancing decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// No worker is overloaded.
    NotOverloaded,
    /// The assignment does not look at loads.
    RoundRobin,
    /// No two workers may exchange queues, or no such worker has two.
    TooFew,
    /// The variance of loads now and as estimated, in percent squared, and by how many percent it
    /// would fall: too few.
    TooLittle(u64, u64, u64),
    /// The same, and enough: a worker for each queue.
    Move(u64, u64, u64, Vec<usize>),
}

/// Decides whether queues are assigned anew, as Open vSwitch's dry run does: if a worker is
/// overloaded, and the variance of the workers' loads would fall by the threshold.
///
/// What workers do for each other counts where it is done now, and with its queue in the estimate,
/// since all flows come back before queues move. So what steering has levelled is left alone.
pub(crate) fn rebalance(
    how: Assignment,
    settings: &AutoBalance,
    queues: &[Queue],
    workers: &[Working],
) -> Decision {
    let free = || workers.iter().filter(|worker| !worker.is_isolated);
    if !workers.iter().any(|worker| worker.is_overloaded) {
        return Decision::NotOverloaded;
    }
    if how == Assignment::RoundRobin {
        return Decision::RoundRobin;
    }
    if free().count() < 2 || !free().any(|worker| worker.queues > 1) {
        return Decision::TooFew;
    }
    let isolated: Vec<bool> = workers.iter().map(|worker| worker.is_isolated).collect();
    let chosen = assign(how, queues, &isolated);
    let mut busy = vec![0_u64; workers.len()];
    for (queue, at) in queues.iter().zip(&chosen) {
        busy[*at] = busy[*at].saturating_add(queue.load);
    }
    let percent = |busy: u64, worker: &Working| {
        let share = u128::from(busy) * 100 / u128::from(worker.passed.max(1));
        share.min(u128::from(u32::MAX)) as u64
    };
    let now = variance(free().map(|worker| percent(worker.busy, worker)));
    let estimated = workers.iter().zip(&busy).filter(|(at, _)| !at.is_isolated);
    let then = variance(estimated.map(|(worker, busy)| percent(*busy, worker)));
    let improvement = match then < now {
        true => (u128::from(now - then) * 100 / u128::from(now)) as u64,
        false => 0,
    };
    match improvement >= settings.improvement_threshold {
        true => Decision::Move(now, then, improvement, chosen),
        false => Decision::TooLittle(now, then, improvement),
    }
}

/// Returns the variance of some loads in percent, in whole numbers as in Open vSwitch.
fn variance(loads: impl Iterator<Item = u64> + Clone) -> u64 {
    let count = loads.clone().count().max(1) as u128;
    let mean = loads.clone().map(u128::from).sum::<u128>() / count;
    let squares = loads.map(|load| u128::from(load).abs_diff(mean).pow(2));
    (squares.sum::<u128>() / count).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(loads: &[u64]) -> Vec<Queue> {
        let queue = |load: &u64| Queue {
            load: *load,
            pin: None,
        };
        loads.iter().map(queue).collect()
    }

    #[test]
    fn each_way_is_open_vswitchs() {
        let loads = [10, 40, 20, 60, 30, 50];
        let by = |how| assign(how, &queues(&loads), &[false; 3]);
        assert_eq!(by(Assignment::RoundRobin), [0, 1, 2, 0, 1, 2]);
        // 60 50 40, then back: 30 20 10.
        assert_eq!(by(Assignment::Cycles), [0, 2, 1, 0, 2, 1]);
        // 60 to the first, 50, 40, then 30 to the third (40), 20 to the second, 10 to the first.
        assert_eq!(by(Assignment::Group), [0, 2, 1, 0, 2, 1]);
        // The ways differ where one queue outweighs others.
        let loads = [90, 10, 9, 8];
        let by = |how| assign(how, &queues(&loads), &[false; 2]);
        assert_eq!(by(Assignment::Cycles), [0, 1, 1, 0]);
        assert_eq!(by(Assignment::Group), [0, 1, 1, 1]);
    }

    #[test]
    fn queues_without_load_go_round() {
        let group = |loads: &[u64]| assign(Assignment::Group, &queues(loads), &[false; 2]);
        assert_eq!(group(&[0, 0, 0, 0]), [0, 1, 0, 1]);
        assert_eq!(group(&[10, 0, 0, 9]), [0, 0, 1, 1]);
        let cycles = |loads: &[u64]| assign(Assignment::Cycles, &queues(loads), &[false; 2]);
        assert_eq!(cycles(&[0, 0, 0, 0]), [0, 1, 1, 0]);
    }

    #[test]
    fn a_new_queue_comes_to_the_worker_with_the_least_to_do() {
        // The second worker has no queue, but takes most of the first one's work.
        let totals = [(10, 1), (90, 0)];
        assert_eq!(place(Assignment::Cycles, &totals, &[false; 2]), 0);
        assert_eq!(place(Assignment::Group, &totals, &[false; 2]), 0);
        assert_eq!(place(Assignment::RoundRobin, &totals, &[false; 2]), 1);
        assert_eq!(place(Assignment::Group, &totals, &[true, false]), 1);
        assert_eq!(place(Assignment::Cycles, &[(0, 2), (0, 1)], &[false; 2]), 1);
    }

    fn working(busy: u64, queues: usize) -> Working {
        Working {
            passed: 100,
            busy,
            is_overloaded: busy >= 95,
            is_isolated: false,
            queues,
        }
    }

    #[test]
    fn queues_move_only_for_enough() {
        let decide = |how, threshold, loads: &[u64], workers: &[Working]| {
            let settings = AutoBalance {
                improvement_threshold: threshold,
                ..AutoBalance::default()
            };
            rebalance(how, &settings, &queues(loads), workers)
        };
        let (cycles, group) = (Assignment::Cycles, Assignment::Group);
        let pair = [working(98, 2), working(2, 1)];
        let loads = [50, 48, 2];
        let moved = Decision::Move(48 * 48, 0, 100, vec![0, 1, 1]);
        assert_eq!(decide(cycles, 25, &loads, &pair), moved);
        assert_eq!(
            decide(Assignment::RoundRobin, 25, &loads, &pair),
            Decision::RoundRobin
        );
        let idle = [working(94, 2), working(2, 1)];
        assert_eq!(decide(cycles, 25, &loads, &idle), Decision::NotOverloaded);
        let single = [working(98, 1), working(2, 1)];
        assert_eq!(decide(cycles, 25, &loads, &single), Decision::TooFew);
        assert_eq!(decide(cycles, 25, &loads, &pair[..1]), Decision::TooFew);
        let mut isolated = pair;
        isolated[1].is_isolated = true;
        assert_eq!(decide(group, 25, &loads, &isolated), Decision::TooFew);
        // One queue makes all of the load: nothing to gain, unless that does not matter.
        let loads = [97, 1, 2];
        let verdict = decide(group, 25, &loads, &pair);
        assert_eq!(verdict, Decision::TooLittle(48 * 48, 47 * 47, 4));
        assert!(matches!(
            decide(group, 4, &loads, &pair),
            Decision::Move(..)
        ));
        assert!(matches!(
            decide(group, 0, &[98, 0, 2], &pair),
            Decision::Move(..)
        ));
        // Steering has levelled the load already.
        let level = [
            Working {
                is_overloaded: true,
                ..working(50, 2)
            },
            working(50, 0),
        ];
        assert_eq!(
            decide(cycles, 25, &[50, 50], &level),
            Decision::TooLittle(0, 0, 0)
        );
    }

    fn how() -> impl Strategy<Value = Assignment> {
        prop::sample::select(Assignment::ALL.map(|(_, how)| how).to_vec())
    }

    proptest! {
        /// Graham's bound for this rule: never more than 4/3 of the optimum, which is at least the
        /// mean and at least the heaviest load.
        #[test]
        fn no_worker_gets_much_more_than_its_share(
            loads in prop::collection::vec(0_u64..1000, 1..40),
            workers in 1_usize..8,
        ) {
            let chosen = assign(Assignment::Group, &queues(&loads), &vec![false; workers]);
            let mut totals = vec![0; workers];
            for (queue, worker) in chosen.iter().enumerate() {
                totals[*worker] += loads[queue];
            }
            let busiest = *totals.iter().max().unwrap();
            let sum: u64 = loads.iter().sum();
            let heaviest = *loads.iter().max().unwrap();
            // A worker gets its last queue only when it has the least load, which is at most the
            // mean of the rest.
            prop_assert!(busiest <= sum / workers as u64 + heaviest);
        }

        /// Pinned queues stay where they are pinned, isolated workers get no others, and the others
        /// have the same number of queues, give or take one, but for `group`.
        #[test]
        fn pins_and_isolation_are_kept(
            how in how(),
            loads in prop::collection::vec((0_u64..100, prop::option::of(0_usize..5)), 0..30),
            mut isolated in prop::collection::vec(any::<bool>(), 5),
        ) {
            isolated[4] = false;
            let queues: Vec<Queue> =
                loads.iter().map(|(load, pin)| Queue { load: *load, pin: *pin }).collect();
            let chosen = assign(how, &queues, &isolated);
            let mut counts = [0_usize; 5];
            for (queue, at) in queues.iter().zip(&chosen) {
                match queue.pin {
                    Some(pin) => prop_assert_eq!(*at, pin),
                    None => {
                        prop_assert!(!isolated[*at]);
                        counts[*at] += 1;
                    }
                }
            }
            let free = || (0..5).filter(|at| !isolated[*at]).map(|at| counts[at]);
            if how != Assignment::Group {
                prop_assert!(free().max() <= free().min().map(|least| least + 1));
            }
        }

        /// Whatever automatic balancing moves makes the variance smaller by the threshold, and
        /// after that it moves nothing more while loads stay as they are.
        #[test]
        fn a_steady_load_settles(
            how in how(),
            threshold in 1_u64..=100,
            loads in prop::collection::vec((0_u64..60, 0_usize..4), 2..12),
        ) {
            let settings = AutoBalance {
                improvement_threshold: threshold,
                load_threshold: 0,
                ..AutoBalance::default()
            };
            let all: Vec<u64> = loads.iter().map(|(load, _)| *load).collect();
            let queues = queues(&all);
            let at = |places: &[usize]| -> Vec<Working> {
                let one = |worker: usize| {
                    let own = places.iter().enumerate().filter(|(_, at)| **at == worker);
                    let busy = own.clone().map(|(queue, _)| all[queue]).sum::<u64>();
                    Working { is_overloaded: true, ..working(busy, own.count()) }
                };
                (0..4).map(one).collect()
            };
            let places: Vec<usize> = loads.iter().map(|(_, at)| *at).collect();
            if let Decision::Move(now, then, by, chosen) =
                rebalance(how, &settings, &queues, &at(&places))
            {
                prop_assert!(then * 100 <= now * (100 - threshold) + 99 && by >= threshold);
                let spread = |places: &[usize]| {
                    variance(at(places).into_iter().map(|worker| worker.busy))
                };
                prop_assert_eq!((spread(&places), spread(&chosen)), (now, then));
                let again = rebalance(how, &settings, &queues, &at(&chosen));
                prop_assert!(
                    matches!(again, Decision::TooLittle(..) | Decision::TooFew),
                    "{:?}", again
                );
            }
        }
    }
}
