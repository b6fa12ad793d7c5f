//! What a class may send: its two buckets.
//!
//! Tokens are counted in billionths of a bit, of which a rate of R bit/s brings exactly R in each
//! nanosecond: no rounding, hence no drift, and no division where tokens are spent. A class may
//! send while its bucket is not in debt, and a packet may lead it into debt; so the rate is exact
//! whatever the packets' sizes.
//!
//! A bucket holds its burst. While a class has packets waiting it may hold more, what comes within
//! some milliseconds: who sends is woken late, and stopped for whole milliseconds where others want
//! the processor. That is not the class's fault, and what it could not send meanwhile is sent
//! after. With what comes within 60 us a class of 1 Gbit/s had 3% less.

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

/// What a class was given: rates, and depths of its buckets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rates {
    /// Guaranteed, in bit/s.
    pub rate: u64,
    /// Maximum, in bit/s.
    pub max_rate: u64,
    /// What each holds while packets wait.
    own_depth: i64,
    limit_depth: i64,
}

/// The buckets of a class, apart from what they were given, which many classes share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    /// Of the guaranteed rate.
    pub own: i64,
    /// Of the maximum.
    pub limit: i64,
    /// When they were filled last.
    at: u64,
}

#[inline(always)]
fn filled(level: i64, depth: i64, rate: u64, nanoseconds: u64) -> i64 {
    // The depth is never below the level, so the gap is right even as a wrapped difference.
    let gap = depth.wrapping_sub(level) as u64;
    match nanoseconds.checked_mul(rate) {
        Some(came) if came < gap => level + came as i64,
        _ => depth,
    }
}

/// Nanoseconds until a debt is paid.
#[inline(always)]
fn until_paid(level: i64, rate: u64) -> u64 {
    level.min(0).unsigned_abs().div_ceil(rate.max(1))
}

impl Rates {
    /// `burst` in bits; a guaranteed rate of 0 is one that has never anything.
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

    /// Whether it may send more than it is guaranteed.
    #[inline(always)]
    pub fn borrows(&self) -> bool {
        self.max_rate > self.rate
    }

    /// What the buckets hold while nothing waits.
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
    /// Full buckets.
    pub fn new(rates: &Rates, catch_up_ns: u64, now_ns: u64) -> Credit {
        let (own, limit) = rates.bursts(catch_up_ns);
        Credit {
            own,
            limit,
            at: now_ns,
        }
    }

    /// Tokens that have come since the last look.
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

    /// How long ago a time was when the buckets were filled last, in nanoseconds; 0 where it is
    /// later.
    #[inline(always)]
    pub fn passed_since(&self, ns: u64) -> u64 {
        self.at.saturating_sub(ns)
    }

    /// Packets come after none had waited: no more than the burst is left.
    #[inline(always)]
    pub fn wake(&mut self, rates: &Rates, catch_up_ns: u64, now_ns: u64) {
        self.fill(rates, now_ns);
        let (own, limit) = rates.bursts(catch_up_ns);
        self.own = self.own.min(own);
        self.limit = self.limit.min(limit);
    }

    /// Takes over what another had: its debts, and tokens as far as they fit.
    pub fn inherit(&mut self, rates: &Rates, mut old: Credit, old_rates: &Rates, now_ns: u64) {
        old.fill(old_rates, now_ns);
        self.at = old.at.max(now_ns);
        if rates.rate != 0 && old_rates.rate != 0 {
            self.own = old.own.min(rates.own_depth);
        }
        self.limit = old.limit.min(rates.limit_depth);
    }

    /// What it may do.
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

    /// Whether so many bits leave no debt at the maximum rate.
    #[inline(always)]
    pub fn holds(&self, bits: u64) -> bool {
        self.limit >= bits as i64 * NANOBITS
    }

    /// Nor at the guaranteed one.
    #[inline(always)]
    pub fn holds_own(&self, bits: u64) -> bool {
        self.holds(bits) && self.own >= bits as i64 * NANOBITS
    }

    /// When the mode becomes better by itself; none when it never does.
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

    /// Pays for so many bits; of the guaranteed tokens only where it sends by these.
    #[inline(always)]
    pub fn spend(&mut self, rates: &Rates, bits: u64, own: bool) {
        let tokens = bits as i64 * NANOBITS;
        if own && rates.rate != 0 {
            self.own = self.own.saturating_sub(tokens);
        }
        self.limit = self.limit.saturating_sub(tokens);
    }

    /// Whether what stands behind so many bits leaves within a time, by one of the rates.
    #[inline(always)]
    pub fn within(level: i64, rate: u64, bits_ahead: u64, bound_ns: u64) -> bool {
        // At 2^32 bytes ahead and any debt, this stays within 128 bits by far.
        let missing = i128::from(bits_ahead) * i128::from(NANOBITS) - i128::from(level);
        missing <= i128::from(bound_ns) * i128::from(rate)
    }
}
