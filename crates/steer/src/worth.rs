//! Whether handing flows to other workers gains anything.
//!
//! The worker that receives a flow has to receive it in any case, and handing a packet on costs
//! both sides something. Where packets are cheap to process, that is more than it saves.

/// What hashing a packet and putting it into another worker's ring costs, cycles. Measured
/// (`bench/steering.py --case workers`); the packet's first bytes have to be read for it, which
/// otherwise its processing would do.
pub const HAND_OVER: f64 = 45.0;

/// What taking a packet out of a ring costs, and reading it on another core than the one that
/// received it, cycles. Measured likewise.
pub const TAKE: f64 = 40.0;

/// What must be gained at least for flows to leave the worker that receives them: below that, what
/// workers share (counters, tables that change, caches of the processor) eats it up.
pub const LEAST_GAIN: f64 = 1.1;

/// What packets cost the worker that receives and processes them, cycles a packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// To receive one.
    pub receive: f64,
    /// To process one and send it.
    pub work: f64,
}

/// How many times as many packets can be processed if `others` workers that have nothing else to do
/// help: the receiving worker keeps the part with which all are equally loaded.
pub fn gain(cost: Cost, others: usize) -> f64 {
    let Cost { receive, work } = cost;
    let alone = receive + work;
    if others == 0 || alone <= 0.0 {
        return 1.0;
    }
    let help = (work + TAKE) / others as f64;
    // Part `kept` of the packets is processed where it is received:
    // receive + HAND_OVER * (1 - kept) + work * kept = help * (1 - kept)
    let slope = work - HAND_OVER + help;
    let kept = if slope > 0.0 {
        ((help - receive - HAND_OVER) / slope).clamp(0.0, 1.0)
    } else {
        1.0
    };
    let here = receive + HAND_OVER * (1.0 - kept) + work * kept;
    let there = help * (1.0 - kept);
    alone / here.max(there)
}

/// Whether that is worth it.
pub fn is_worth(cost: Cost, others: usize) -> bool {
    gain(cost, others) >= LEAST_GAIN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(receive: f64, work: f64) -> Cost {
        Cost { receive, work }
    }

    #[test]
    fn dear_packets_are_worth_it_and_cheap_ones_are_not() {
        assert!(!is_worth(cost(35.0, 35.0), 1));
        assert!(is_worth(cost(35.0, 200.0), 1));
        assert!(gain(cost(35.0, 1000.0), 1) > 1.8);
        // A worker that only receives can do no more than that.
        let most = gain(cost(100.0, 1000.0), 15);
        assert!(most > 7.0 && most < 1100.0 / 145.0 + 1e-9, "{most}");
    }

    #[test]
    fn nothing_is_gained_without_help_or_packets() {
        assert_eq!(gain(cost(35.0, 1000.0), 0), 1.0);
        assert_eq!(gain(Cost::default(), 3), 1.0);
        assert!(!is_worth(cost(500.0, 0.0), 1));
    }

    #[test]
    fn more_help_never_harms() {
        for work in [10.0, 50.0, 100.0, 500.0, 5000.0] {
            let gains = (0..20).map(|others| gain(cost(40.0, work), others));
            let gains: Vec<f64> = gains.collect();
            assert!(gains[1..].is_sorted(), "{work}: {gains:?}");
        }
    }
}
