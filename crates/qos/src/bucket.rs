//! A token bucket shared by threads without a lock.
//!
//! A straightforward bucket has two numbers, its level and the time it was last filled, and takes a
//! lock to change both. This one has a single number. Tokens arrive at fixed moments: by time `t`,
//! `arrived(t) = floor(t * rate)` have, counted from the clock's zero. The bucket remembers only
//! how many of them are `gone` (spent or overflowed), so its level is `arrived(now) - gone`, at
//! most `depth`. Taking tokens is one compare-and-swap. As `arrived` is computed anew each time,
//! rounding errors do not accumulate: at any rate, the tokens handed out over any time are exact to
//! one.
//!
//! Counters wrap around. They are compared by their difference, which is right if the bucket is
//! used at least once in the time of 2^62 tokens (12 days at 4 Tbit/s); after a longer pause,
//! `touched` shows that it must be full.

use std::sync::atomic::{AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;

/// Tokens per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Tokens, in units of `scale`.
    count: u32,
    /// 1 or 1000.
    scale: u32,
}

impl Rate {
    /// Returns a rate of `count` tokens per second.
    pub const fn per_second(count: u32) -> Rate {
        Rate { count, scale: 1 }
    }

    /// Returns a rate of `count` thousand tokens per second: kbit/s, if a token is a bit.
    pub const fn thousands_per_second(count: u32) -> Rate {
        Rate { count, scale: 1000 }
    }

    /// Returns the tokens per second.
    pub const fn tokens(self) -> u64 {
        self.count as u64 * self.scale as u64
    }

    /// Returns how many tokens have arrived from the clock's zero to a time, modulo 2^64.
    #[inline(always)]
    fn arrived(self, now_ns: u64) -> u64 {
        let (seconds, rest) = (now_ns / SECOND, now_ns % SECOND);
        // `rest` has 30 bits and `count` 32. Two divisions by constants are cheaper than one by a
        // variable.
        let part = rest * u64::from(self.count);
        let part = if self.scale == 1 {
            part / SECOND
        } else {
            part / (SECOND / 1000)
        };
        seconds.wrapping_mul(self.tokens()).wrapping_add(part)
    }
}

/// A token bucket.
#[derive(Debug)]
pub struct TokenBucket {
    rate: Rate,
    depth: u64,
    /// Time without use after which the bucket is certainly full, and before which differences of
    /// counters are unambiguous.
    rest_ns: u64,
    /// Tokens spent or overflowed.
    gone: AtomicU64,
    /// Time of the last use, to a second or so.
    touched: AtomicU64,
}

impl TokenBucket {
    /// Makes a full bucket that holds `depth` tokens, 2^61 at most.
    pub fn new(rate: Rate, depth: u64, now_ns: u64) -> TokenBucket {
        let depth = depth.min(1 << 61);
        let seconds = (1_u64 << 62) / rate.tokens().max(1);
        TokenBucket {
            rate,
            depth,
            rest_ns: seconds.saturating_mul(SECOND),
            gone: AtomicU64::new(rate.arrived(now_ns).wrapping_sub(depth)),
            touched: AtomicU64::new(now_ns),
        }
    }

    /// Returns how many tokens it can hold.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// Returns the rate at which tokens arrive.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns how many tokens it holds now.
    pub fn level(&self, now_ns: u64) -> u64 {
        self.level_of(self.gone.load(Ordering::Relaxed), now_ns)
    }

    #[inline(always)]
    fn level_of(&self, gone: u64, now_ns: u64) -> u64 {
        let rested = now_ns.saturating_sub(self.touched.load(Ordering::Relaxed));
        if rested > self.rest_ns {
            return self.depth;
        }
        // Negative if another thread read the clock a moment later than this one: no tokens have
        // arrived since.
        let level = self.rate.arrived(now_ns).wrapping_sub(gone) as i64;
        u64::try_from(level).unwrap_or(0).min(self.depth)
    }

    /// Takes all the tokens or none; returns whether there were enough.
    #[inline]
    pub fn take(&self, tokens: u64, now_ns: u64) -> bool {
        let arrived = self.rate.arrived(now_ns);
        let mut gone = self.gone.load(Ordering::Relaxed);
        loop {
            let level = self.level_of(gone, now_ns);
            if level < tokens {
                return false;
            }
            // Tokens above `depth` overflow here.
            let then = arrived.wrapping_sub(level - tokens);
            match self
                .gone
                .compare_exchange_weak(gone, then, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => gone = now,
            }
        }
        if now_ns.saturating_sub(self.touched.load(Ordering::Relaxed)) > SECOND {
            self.touched.store(now_ns, Ordering::Relaxed);
        }
        true
    }
}
