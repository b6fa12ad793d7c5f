//! What a class may send: its two token buckets.
//!
//! Tokens are counted in billionths of a bit, of which a rate of R bit/s adds exactly R in each
//! nanosecond: no rounding, hence no drift, and no division when tokens are spent. A class may send
//! while its bucket is not in debt, and a packet may put it into debt; so the rate is exact for
//! packets of any size.
//!
//! A bucket holds its burst. While a class has packets waiting, it may hold more: the tokens of
//! some milliseconds. A sender is woken late, and loses the processor for whole milliseconds when
//! others want it; what the class could not send meanwhile is sent afterwards. With the tokens of
//! only 60 us, a class of 1 Gbit/s got 3% less than its rate.

/// Billionths of a bit in a bit.
pub(crate) const NANOBITS: i64 = 1_000_000_000;

/// What a class may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Send by its guaranteed rate.
    Own,
    /// Send what its parent lends.
    Borrow,
    /// Nothing: it is at its maximum.
    Wait,
}

/// A class's configuration: rates, and depths of its buckets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rates {
    /// Guaranteed, in bit/s.
    pub rate: u64,
    /// Maximum, in bit/s.
    pub max_rate: u64,
    /// Depth of each bucket while packets wait.
    own_depth: i64,
    limit_depth: i64,
}

/// A class's buckets, without their configuration, which many classes share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    /// Level of the guaranteed rate's bucket.
    pub own: i64,
    /// Level of the maximum rate's bucket.
    pub limit: i64,
    /// When the buckets were last filled.
    at: u64,
}

#[inline(always)]
fn filled(level: i64, depth: i64, rate: u64, nanoseconds: u64) -> i64 {
    // The depth is never below the level, so even a wrapped difference is right.
    let gap = depth.wrapping_sub(level) as u64;
    match nanoseconds.checked_mul(rate) {
        Some(came) if came < gap => level + came as i64,
        _ => depth,
    }
}

/// Returns the nanoseconds until a debt is paid.
#[inline(always)]
fn until_paid(level: i64, rate: u64) -> u64 {
    level.min(0).unsigned_abs().div_ceil(rate.max(1))
}

impl Rates {
    /// `burst` is in bits; a class with a guaranteed rate of 0 never has guaranteed tokens.
    pub fn new(rate: u64, max_rate: u64, burst: u64, catch_up_ns: u64) -> Rates {
        let burst = burst as i64 * NANOBITS;
        let depth = |rate: u64| burst + (rate * catch_up_ns) as i64;
        Rates {
            rate,
            max_rate,
            own_depth: if rate == 0 { -1 } else { depth(rate) },
            limit_depth: depth(max_rate),
        }
    }

    /// Returns whether it may send more than its guaranteed rate.
    #[inline(always)]
    pub fn borrows(&self) -> bool {
        self.max_rate > self.rate
    }

    /// Returns the depth of the buckets while nothing waits.
    #[inline(always)]
    fn bursts(&self, catch_up_ns: u64) -> (i64, i64) {
        let own = match self.rate {
            0 => -1,
            rate => self.own_depth - (rate * catch_up_ns) as i64,
        };
        let limit = self.limit_depth - (self.max_rate * catch_up_ns) as i64;
        (own, limit)
    }
}

impl Credit {
    /// Makes full buckets.
    pub fn new(rates: &Rates, catch_up_ns: u64, now_ns: u64) -> Credit {
        let (own, limit) = rates.bursts(catch_up_ns);
        Credit {
            own,
            limit,
            at: now_ns,
        }
    }

    /// Adds the tokens that have arrived since the last fill.
    #[inline(always)]
    pub fn fill(&mut self, rates: &Rates, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.at);
        if passed == 0 {
            return;
        }
        self.at = now_ns;
        self.own = filled(self.own, rates.own_depth, rates.rate, passed);
        self.limit = filled(self.limit, rates.limit_depth, rates.max_rate, passed);
    }

    /// Returns the time from `ns` to the last fill, in nanoseconds; 0 if `ns` is later.
    #[inline(always)]
    pub fn passed_since(&self, ns: u64) -> u64 {
        self.at.saturating_sub(ns)
    }

    /// Fills the buckets when packets arrive after none were waiting: tokens above the burst are
    /// lost.
    #[inline(always)]
    pub fn wake(&mut self, rates: &Rates, catch_up_ns: u64, now_ns: u64) {
        self.fill(rates, now_ns);
        let (own, limit) = rates.bursts(catch_up_ns);
        self.own = self.own.min(own);
        self.limit = self.limit.min(limit);
    }

    /// Takes over from a predecessor: its debts, and its tokens up to the new depth.
    pub fn inherit(&mut self, rates: &Rates, mut old: Credit, old_rates: &Rates, now_ns: u64) {
        old.fill(old_rates, now_ns);
        self.at = old.at.max(now_ns);
        if rates.rate != 0 && old_rates.rate != 0 {
            self.own = old.own.min(rates.own_depth);
        }
        self.limit = old.limit.min(rates.limit_depth);
    }

    /// Returns what the class may do.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        if self.limit < 0 {
            Mode::Wait
        } else if self.own >= 0 {
            Mode::Own
        } else {
            Mode::Borrow
        }
    }

    /// Returns whether spending these bits leaves no debt at the maximum rate.
    #[inline(always)]
    pub fn holds(&self, bits: u64) -> bool {
        self.limit >= bits as i64 * NANOBITS
    }

    /// Returns whether spending these bits leaves no debt at either rate.
    #[inline(always)]
    pub fn holds_own(&self, bits: u64) -> bool {
        self.holds(bits) && self.own >= bits as i64 * NANOBITS
    }

    /// Returns when the mode improves with time; None if it never does.
    #[inline(always)]
    pub fn better_at(&self, rates: &Rates) -> Option<u64> {
        let wait = if self.limit < 0 {
            until_paid(self.limit, rates.max_rate)
        } else if self.own < 0 && rates.rate != 0 {
            until_paid(self.own, rates.rate)
        } else {
            return None;
        };
        Some(self.at.saturating_add(wait))
    }

    /// Spends these bits; of the guaranteed tokens only if the class sends by its own rate.
    #[inline(always)]
    pub fn spend(&mut self, rates: &Rates, bits: u64, own: bool) {
        let tokens = bits as i64 * NANOBITS;
        if own && rates.rate != 0 {
            self.own = self.own.saturating_sub(tokens);
        }
        self.limit = self.limit.saturating_sub(tokens);
    }

    /// Returns whether what is behind this many bits leaves within a time, by one of the rates.
    #[inline(always)]
    pub fn within(level: i64, rate: u64, bits_ahead: u64, bound_ns: u64) -> bool {
        // With 2^32 bytes ahead and any debt, this is far below 128 bits.
        let missing = i128::from(bits_ahead) * i128::from(NANOBITS) - i128::from(level);
        missing <= i128::from(bound_ns) * i128::from(rate)
    }
}
