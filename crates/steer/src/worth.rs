//! Decides whether handing flows to other workers pays off.
//!
//! The worker that receives a flow has to receive it in any case, and handing a packet over has a
//! cost on both sides. If packets are cheap to process, that is more than it saves.

/// Cost for the receiving worker of handing a packet over, in cycles: hashing it, putting it into
/// another worker's ring, getting its buffer back, and processing the rest in smaller bursts.
///
/// Measured with 64-byte frames (`bench/steering_workers.py`, `perf`): 70 to 130 cycles between two
/// cores that need 400 cycles to transfer one cache line.
pub const HAND_OVER: f64 = 130.0;

/// Extra cost of processing a packet that another worker has received, in cycles: its bytes come
/// from the caches of another core. Measured likewise: 60 to 170.
pub const TAKE: f64 = 150.0;

/// Lowest gain for which flows leave the worker that receives them: smaller gains are lost to what
/// workers share (counters, tables that change, caches of the processor).
pub const LEAST_GAIN: f64 = 1.25;

/// Cost of packets for a worker that receives and processes them, in cycles per packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Receiving a packet.
    pub receive: f64,
    /// Processing a packet and sending it.
    pub work: f64,
}

/// Returns by which factor throughput grows if `others` idle workers help, and the receiving worker
/// keeps the best share of the packets, in steps of a sixteenth.
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

/// Returns whether that pays off.
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
        // The receiving worker alone limits it.
        let most = gain(cost(100.0, 2000.0), 30);
        assert!(most > 9.0 && most < 2100.0 / 230.0 + 1e-9, "{most}");
    }

    #[test]
    fn no_gain_without_helpers_or_packets() {
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
