//! A token bucket that threads share.
//!
//! The obvious bucket has two numbers, its level and when it was filled last, and takes a lock to
//! change both. This one has a single number. Tokens arrive at fixed moments: by time `t`,
//! `arrived(t) = floor(t * rate)` have, counted from the clock's zero. The bucket remembers only
//! how many of them are `gone`, spent or spilled, so its level is `arrived(now) - gone`, at most
//! `depth`. Taking tokens is one compare-and-swap. As `arrived` is computed anew each time, no
//! rounding adds up: at any rate the tokens handed out over any time are exact to one.
//!
//! Counts wrap around. They are compared by their difference, which is right while the bucket is
//! looked at every 2^62 tokens' time (12 days at 4 Tbit/s); after a longer rest `touched` tells
//! that it must be full.

use std::sync::atomic::{AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;

/// How many tokens come in a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Tokens, in units of `scale`.
    count: u32,
    /// 1 or 1000.
    scale: u32,
}

impl Rate {
    /// So many tokens a second.
    pub const fn per_second(count: u32) -> Rate {
        Rate { count, scale: 1 }
    }

    /// So many thousands of tokens a second: kbit/s, where a token is a bit.
    pub const fn thousands_per_second(count: u32) -> Rate {
        Rate { count, scale: 1000 }
    }

    /// Tokens in a second.
    pub const fn tokens(self) -> u64 {
        self.count as u64 * self.scale as u64
    }

    /// Tokens that have arrived by a time, since the clock's zero, modulo 2^64.
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
pub struct Bucket {
    rate: Rate,
    depth: u64,
    /// A time without a look after which it is full for certain, before differences of counts
    /// become ambiguous.
    rest_ns: u64,
    /// Tokens spent or spilled.
    gone: AtomicU64,
    /// When it was looked at last, to a second or so.
    touched: AtomicU64,
}

impl Bucket {
    /// A full bucket that holds `depth` tokens, 2^61 at most.
    pub fn new(rate: Rate, depth: u64, now_ns: u64) -> Bucket {
        let depth = depth.min(1 << 61);
        let seconds = (1_u64 << 62) / rate.tokens().max(1);
        Bucket {
            rate,
            depth,
            rest_ns: seconds.saturating_mul(SECOND),
            gone: AtomicU64::new(rate.arrived(now_ns).wrapping_sub(depth)),
            touched: AtomicU64::new(now_ns),
        }
    }

    /// How many tokens it holds at most.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// How many tokens come in a second.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Tokens in it now.
    pub fn level(&self, now_ns: u64) -> u64 {
        self.level_of(self.gone.load(Ordering::Relaxed), now_ns)
    }

    #[inline(always)]
    fn level_of(&self, gone: u64, now_ns: u64) -> u64 {
        let rested = now_ns.saturating_sub(self.touched.load(Ordering::Relaxed));
        if rested > self.rest_ns {
            return self.depth;
        }
        // Negative where another thread's clock was read a moment later than this one's: nothing
        // has come since.
        let level = self.rate.arrived(now_ns).wrapping_sub(gone) as i64;
        u64::try_from(level).unwrap_or(0).min(self.depth)
    }

    /// Takes tokens, all of them or none; whether it had so many.
    #[inline]
    pub fn take(&self, tokens: u64, now_ns: u64) -> bool {
        let arrived = self.rate.arrived(now_ns);
        let mut gone = self.gone.load(Ordering::Relaxed);
        loop {
            let level = self.level_of(gone, now_ns);
            if level < tokens {
                return false;
            }
            // What is above the brim spills here.
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
