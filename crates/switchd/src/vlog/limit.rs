//! A limit on how often one call site may log. A peer can make any message repeat; the log must
//! stay readable and small. Each call site has a token bucket: a burst passes, then one message a
//! second. The number of dropped messages is logged with the site's next one.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;

/// Most messages at once. Larger than Open vSwitch's, because here every site is limited except
/// those that report changes by the configuration.
const BURST: u32 = 200;
/// Time after which one more message is allowed.
const REFILL: Duration = Duration::from_secs(1);

/// What to do with a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Pass,
    /// Log this text first.
    PassAfterDrops(String),
    Drop,
}

struct TokenBucket {
    tokens: u32,
    filled: Instant,
    dropped: u64,
    first_drop: Instant,
    last_drop: Instant,
}

impl TokenBucket {
    fn new(now: Instant) -> Self {
        TokenBucket {
            tokens: BURST,
            filled: now,
            dropped: 0,
            first_drop: now,
            last_drop: now,
        }
    }

    fn ask(&mut self, now: Instant) -> Admission {
        let spans = now.saturating_duration_since(self.filled).as_secs() / REFILL.as_secs();
        if spans > 0 {
            self.tokens = BURST.min(
                self.tokens
                    .saturating_add(u32::try_from(spans).unwrap_or(u32::MAX)),
            );
            self.filled = if self.tokens == BURST {
                now
            } else {
                self.filled + REFILL * spans as u32
            };
        }
        if self.tokens == 0 {
            if self.dropped == 0 {
                self.first_drop = now;
            }
            self.last_drop = now;
            self.dropped += 1;
            return Admission::Drop;
        }
        self.tokens -= 1;
        match std::mem::take(&mut self.dropped) {
            0 => Admission::Pass,
            dropped => {
                let since = |then: Instant| now.saturating_duration_since(then).as_secs();
                Admission::PassAfterDrops(format!(
                    "Dropped {dropped} log messages in last {} seconds (most recently, {} seconds ago) due to excessive rate",
                    since(self.first_drop),
                    since(self.last_drop)
                ))
            }
        }
    }
}

/// The buckets of all call sites; bounded, since the program has only so many sites.
#[derive(Default)]
pub(super) struct Limits {
    buckets: Mutex<HashMap<Identifier, TokenBucket, BuildHasherDefault<std::hash::DefaultHasher>>>,
}

impl Limits {
    pub(super) fn ask(&self, site: Identifier) -> Admission {
        let now = Instant::now();
        let mut buckets = self
            .buckets
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        buckets
            .entry(site)
            .or_insert_with(|| TokenBucket::new(now))
            .ask(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_a_second() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(start);
        for _ in 0..BURST {
            assert_eq!(bucket.ask(start), Admission::Pass);
        }
        for _ in 0..7 {
            assert_eq!(
                bucket.ask(start + Duration::from_millis(500)),
                Admission::Drop
            );
        }
        let later = start + Duration::from_millis(3100);
        let text = "Dropped 7 log messages in last 2 seconds (most recently, 2 seconds ago) due to excessive rate";
        assert_eq!(bucket.ask(later), Admission::PassAfterDrops(text.into()));
        assert_eq!(bucket.ask(later), Admission::Pass);
        assert_eq!(bucket.ask(later), Admission::Pass);
        assert_eq!(bucket.ask(later), Admission::Drop);
        let much_later = later + Duration::from_secs(1 << 40);
        assert!(matches!(
            bucket.ask(much_later),
            Admission::PassAfterDrops(_)
        ));
        assert_eq!(
            (1..BURST)
                .filter(|_| bucket.ask(much_later) == Admission::Pass)
                .count() as u32,
            BURST - 1
        );
        assert_eq!(bucket.ask(much_later), Admission::Drop);
    }
}
