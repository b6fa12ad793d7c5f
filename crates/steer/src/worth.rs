//! Whether handing flows to other workers gains anything.
//!
//! The worker that receives a flow has to receive it in any case, and handing a packet on costs
//! both sides something. Where packets are cheap to process, that is more than it saves.

/// What it costs the worker that receives a packet to hash it, to put it into another worker's ring
/// and to have its buffer back, cycles; and that what stays is processed in smaller bursts.
///
/// Measured with 64-byte frames (`bench/steering_workers.py`, `perf`): 70 to 130 between two cores
/// that need 400 cycles to hand one cache line over.
pub const HAND_OVER: f64 = 130.0;

/// What it costs more to process a packet that another worker has received, cycles: its bytes come
/// from the caches of another core. Measured likewise: 60 to 170.
pub const TAKE: f64 = 150.0;

/// What must be gained at least for flows to leave the worker that receives them: below that, what
/// workers share (counters, tables that change, caches of the processor) eats it up.
pub const LEAST_GAIN: f64 = 1.25;

/// What packets cost the worker that receives and processes them, cycles a packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// To receive one.
    pub receive: f64,
    /// To process one and send it.
    pub work: f64,
}

/// How many times as many packets can be processed if `others` workers that have nothing else to do
/// help, and the receiving worker keeps the best part of them; in steps of a sixteenth.
pub fn gain(cost: Cost, others: usize) -> f64 {
    let Cost { receive, work } = cost;
    let alone = receive + work;
    if others == 0 || alone <= 0.0 {
        return 1.0;
    }
    let time = |kept: f64| {
        let here = receive + HAND_OVER * (1.0 - kept) + work * kept;
        let there = (work + TAKE) * (1.0 - kept) / others as f64;
        here.max(there)
    };
    let parts = (0..16).map(|sixteenths| time(f64::from(sixteenths) / 16.0));
    alone / parts.fold(alone, f64::min)
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
        assert!(!is_worth(cost(45.0, 200.0), 1));
        assert!(is_worth(cost(45.0, 400.0), 1));
        assert!(gain(cost(35.0, 2000.0), 1) > 1.8);
        // A worker that only receives can do no more than that.
        let most = gain(cost(100.0, 2000.0), 30);
        assert!(most > 9.0 && most < 2100.0 / 230.0 + 1e-9, "{most}");
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
