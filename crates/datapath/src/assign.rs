//! Decides which worker serves which receive queue.

/// Spreads queues of the given loads over workers so that the busiest has as little to do as
/// possible: heaviest first, each to the worker with the least. Queues without a measured load are
/// spread by number of queues. `totals` has the load and the number of queues that each worker has
/// already; there must be at least one worker. Returns a worker for each queue.
pub(crate) fn spread(loads: &[u64], mut totals: Vec<(u128, usize)>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by_key(|queue| std::cmp::Reverse(loads[*queue]));
    let mut chosen = vec![0; loads.len()];
    for queue in order {
        let worker = lightest(&totals);
        totals[worker].0 += u128::from(loads[queue]);
        totals[worker].1 += 1;
        chosen[queue] = worker;
    }
    chosen
}

/// Returns the index of the smallest (load, number of queues).
pub(crate) fn lightest(totals: &[(u128, usize)]) -> usize {
    totals
        .iter()
        .enumerate()
        .min_by_key(|(_, total)| **total)
        .map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queues_without_load_go_round() {
        let idle = || vec![(0, 0); 2];
        assert_eq!(spread(&[0, 0, 0, 0], idle()), [0, 1, 0, 1]);
        assert_eq!(spread(&[10, 0, 0, 9], idle()), [0, 1, 1, 1]);
        assert_eq!(spread(&[5, 4], vec![(10, 1), (0, 0)]), [1, 1]);
    }

    proptest! {
        /// Graham's bound for this rule: never more than 4/3 of the optimum, which is at least the
        /// mean and at least the heaviest load.
        #[test]
        fn no_worker_gets_much_more_than_its_share(loads in prop::collection::vec(0_u64..1000, 1..40), workers in 1_usize..8) {
            let chosen = spread(&loads, vec![(0, 0); workers]);
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
    }
}
