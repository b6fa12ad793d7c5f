//! Named counters of events inside the daemon. A counter is a static next to the code that counts,
//! costs one relaxed addition, and appears in `coverage/show` with its rates over the last five
//! seconds, minute and hour. Drops outside the datapath are counted here, too, by name.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often [`tick`] must be called: the length of the shortest average.
pub const INTERVAL: Duration = Duration::from_secs(5);

const PER_MINUTE: usize = 12;
const MINUTES: usize = 60;

/// A counter with a name. Declare it as a `static` and [`register`] it, or let the first event
/// register it.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    total: AtomicU64,
    registered: AtomicBool,
}

impl Counter {
    /// Creates a counter called `name`: lower case words joined by underscores.
    pub const fn new(name: &'static str) -> Self {
        Counter {
            name,
            total: AtomicU64::new(0),
            registered: AtomicBool::new(false),
        }
    }

    /// Counts one event.
    pub fn increment(&'static self) {
        self.add(1);
    }

    /// Counts `events` events.
    pub fn add(&'static self, events: u64) {
        self.total.fetch_add(events, Ordering::Relaxed);
        if !self.registered.load(Ordering::Relaxed) {
            register(self);
        }
    }

    /// Returns the number of events so far.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

struct History {
    last: u64,
    seconds: [u64; PER_MINUTE],
    minutes: [u64; MINUTES],
}

/// Where a total comes from.
enum Total {
    Counter(&'static Counter),
    /// Counted elsewhere; the value last reported by a source.
    Told(u64),
}

struct Entry {
    total: Total,
    history: History,
}

impl Entry {
    fn new(total: Total) -> Entry {
        let history = History {
            last: 0,
            seconds: [0; PER_MINUTE],
            minutes: [0; MINUTES],
        };
        Entry { total, history }
    }

    fn total(&self) -> u64 {
        match self.total {
            Total::Counter(counter) => counter.total(),
            Total::Told(total) => total,
        }
    }
}

#[derive(Default)]
struct Registry {
    entries: BTreeMap<Cow<'static, str>, Entry>,
    ticks: usize,
}

/// Reports counters by calling back with names and totals.
type Source = Box<dyn Fn(&mut dyn FnMut(&str, u64))>;

thread_local! {
    static SOURCES: RefCell<Vec<Source>> = const { RefCell::new(Vec::new()) };
}

/// Adds a source that keeps its own counters and is asked whenever counters are read. Must be
/// called on the control thread, where they are read.
pub fn add_source(source: impl Fn(&mut dyn FnMut(&str, u64)) + 'static) {
    SOURCES.with_borrow_mut(|sources| sources.push(Box::new(source)));
}

/// Asks all sources.
fn refresh() {
    let mut told = Vec::new();
    SOURCES.with_borrow(|sources| {
        for source in sources {
            source(&mut |name, total| told.push((name.to_owned(), total)));
        }
    });
    with(|registry| {
        for (name, total) in told {
            match registry.entries.get_mut(name.as_str()) {
                Some(entry) => {
                    if let Total::Told(last) = &mut entry.total {
                        *last = total;
                    }
                }
                None => drop(
                    registry
                        .entries
                        .insert(Cow::Owned(name), Entry::new(Total::Told(total))),
                ),
            }
        }
    });
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut Registry) -> T) -> T {
    let mut guard = REGISTRY
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    work(guard.get_or_insert_default())
}

/// Makes a counter known before its first event, so that it can be read by name. Of two counters
/// with one name the first is kept.
pub fn register(counter: &'static Counter) {
    counter.registered.store(true, Ordering::Relaxed);
    with(|registry| {
        registry
            .entries
            .entry(Cow::Borrowed(counter.name))
            .or_insert_with(|| Entry::new(Total::Counter(counter)));
    });
}

/// Advances the rates by one [`INTERVAL`].
pub fn tick() {
    refresh();
    with(|registry| {
        let slot = registry.ticks % PER_MINUTE;
        let minute = (registry.ticks / PER_MINUTE) % MINUTES;
        for entry in registry.entries.values_mut() {
            let total = entry.total();
            let events = total.saturating_sub(entry.history.last);
            entry.history.last = total;
            entry.history.seconds[slot] = events;
            if slot == 0 {
                entry.history.minutes[minute] = 0;
            }
            entry.history.minutes[minute] += events;
        }
        registry.ticks += 1;
    });
}

/// Returns the total of the counter called `name`.
pub fn read(name: &str) -> Option<u64> {
    refresh();
    with(|registry| registry.entries.get(name).map(|entry| entry.total()))
}

/// Returns the text of `coverage/show`.
pub fn show() -> String {
    refresh();
    with(|registry| {
        let newest = (registry.ticks + PER_MINUTE - 1) % PER_MINUTE;
        let mut lines = String::new();
        let mut silent = 0;
        for (name, entry) in &registry.entries {
            let total = entry.total();
            if total == 0 {
                silent += 1;
                continue;
            }
            let seconds = entry.history.seconds[newest] as f64 / INTERVAL.as_secs_f64();
            let minute = entry.history.seconds.iter().sum::<u64>() as f64 / 60.0;
            let hour = entry.history.minutes.iter().sum::<u64>() as f64 / 3600.0;
            let _ = writeln!(
                lines,
                "{name:<24} {seconds:5.1}/sec {minute:9.3}/sec {hour:13.4}/sec   total: {total}"
            );
        }
        let heading =
            "Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash=";
        format!(
            "{heading}{:08x}:\n{lines}{silent} events never hit\n",
            hash(registry)
        )
    })
}

/// Returns a hash over the names of counters that are not zero, which tells runs with different
/// events apart.
fn hash(registry: &Registry) -> u32 {
    let hit = registry
        .entries
        .iter()
        .filter(|(_, entry)| entry.total() > 0);
    hit.flat_map(|(name, _)| name.bytes())
        .fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_asked_when_somebody_looks() {
        let total = std::rc::Rc::new(std::cell::Cell::new(3));
        let shared = total.clone();
        add_source(move |take| take("test_told", shared.get()));
        assert_eq!(read("test_told"), Some(3));
        total.set(7);
        assert!(
            show()
                .lines()
                .any(|line| line.starts_with("test_told ") && line.ends_with("total: 7"))
        );
    }

    #[test]
    fn rates_follow_the_ticks() {
        static HIT: Counter = Counter::new("test_hit");
        static MISS: Counter = Counter::new("test_never");
        register(&MISS);
        HIT.add(10);
        assert_eq!(read("test_hit"), Some(10));
        assert_eq!(read("test_never"), Some(0));
        assert_eq!(read("no_such"), None);
        tick();
        let line = |text: &str| {
            text.lines()
                .find(|line| line.starts_with("test_hit "))
                .unwrap()
                .to_string()
        };
        let shown = show();
        assert_eq!(
            line(&shown),
            "test_hit                   2.0/sec     0.167/sec        0.0028/sec   total: 10"
        );
        assert!(shown.ends_with(" events never hit\n"), "{shown}");
        assert!(!shown.contains("test_never"));
        tick();
        assert_eq!(
            line(&show()),
            "test_hit                   0.0/sec     0.167/sec        0.0028/sec   total: 10"
        );
        for _ in 0..12 {
            tick();
        }
        assert_eq!(
            line(&show()),
            "test_hit                   0.0/sec     0.000/sec        0.0028/sec   total: 10"
        );
        for _ in 0..PER_MINUTE * MINUTES {
            tick();
        }
        assert_eq!(
            line(&show()),
            "test_hit                   0.0/sec     0.000/sec        0.0000/sec   total: 10"
        );
    }
}
