//! A gate in front of something that workers use, burst after burst, and that another thread may
//! take away.
//!
//! A queue of a device must not be touched while the device is being reconfigured, and not at all
//! once it is gone. Workers enter the gate around every burst, each by its own [`Key`]; the other
//! side closes it, which waits until nobody is inside. A queue object that outlives its device is
//! then merely useless: its gate stays closed.
//!
//! # Two ways in
//!
//! While a gate has one key, the key's user enters alone, by two plain loads and a store. Users
//! enter by a locked instruction, one at a time, where there are more keys (workers that share a
//! transmit queue), where the kernel lacks `membarrier`, and where others decide how often the gate
//! is closed ([`Gate::closed_by_lock`]) or have caused that too often ([`Gate::lock_all`]). Keys
//! may be added and dropped at any time.
//!
//! Why nobody is inside after [`Gate::close_all`]:
//!
//! - A user who enters by the lock stores `locked` before loading `state`, and the closer stores
//!   `state` before loading `locked`. All four are sequentially consistent, so in their single
//!   total order either the user sees that the gate is closed, or the closer sees the user.
//! - A user who enters alone does the same with `alone`, but only the compiler is kept from
//!   reordering: the processor may load `state` while the store still waits in its store buffer.
//!   The closer enforces the order, by `membarrier` between its store and its load: by the time
//!   that returns, every thread of the process has passed a full memory barrier that lies after the
//!   closer's store and before its load. If the user's load lies behind that barrier, the user sees
//!   that the gate is closed; if it lies before, so does the user's store, and the closer sees
//!   that. This holds on all processors. (It is the asymmetric fence of P1202 for C++, as in
//!   liburcu and folly.)
//!
//! The closer then waits until it reads `false`, with acquire, which the user wrote with release
//! after everything done inside: all of that happened before what the closer does next. A user who
//! enters reads `state` with acquire, as [`Gate::reopen`] wrote it, with release: what was done
//! before the reopening happened before anything inside.
//!
//! Why only one user is inside at a time: a second key is given out only after `SHARED` is set and
//! a `membarrier`. As above, a user inside alone is visible then, in `alone`, to anybody who enters
//! by the lock, and nobody enters alone later while there are two keys: the most that can happen is
//! that the first user writes `alone`, sees that the gate is shared, and takes that back. When keys
//! are dropped and one is left, `SHARED` is cleared with release, after everything done by those
//! keys; the last user reads that with acquire. So there is only ever one key whose user writes
//! `alone`.
//!
//! [`Gate::lock_all`] makes users enter by the lock in two steps: it sets `WARY`, after which
//! nobody enters alone, as with `SHARED`; then, after a `membarrier`, it sets `LOCKED`, after which
//! nobody makes a barrier for this gate. Whoever reads `LOCKED` does so with acquire, so everything
//! before that barrier happened before what the reader does next: it sees in `alone` whether
//! somebody is still inside alone, and nobody enters alone later. Whoever does not read `LOCKED`
//! makes a barrier as usual.
//!
//! Clearing both bits again ([`Gate::unlock_all`]) needs no barrier. Until then nobody is inside
//! alone except a user who was before that barrier, and is visible in `alone`. Whoever has read
//! `LOCKED`, and made no barrier, has set `CLOSED` or `SHARED` in the same step: these are still
//! set when `LOCKED` is cleared, so nobody enters alone before they are cleared, too, as usual.
//! Whoever comes later does not read `LOCKED`, and makes a barrier. A user who then enters alone
//! has read the last value of `state` with acquire, and all writes to `state` since
//! [`Gate::reopen`] were atomic read-modify-write operations, which continue its release sequence.

use crate::membarrier;
use crate::sync::{
    AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, compiler_fence, spin_loop, yield_now,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many times a sender tries before it gives up on a queue that another worker holds. Each try
/// after the first few yields the core, so this takes some tens of milliseconds even if that worker
/// was preempted.
const PATIENCE: u32 = 100_000;
const SPINS: u32 = 200;

/// Value of [`Posts::state`]: the user of the only key may enter alone.
const OPEN: u8 = 0;
/// Bit of [`Posts::state`]: nobody may enter.
const CLOSED: u8 = 1;
/// Bit of [`Posts::state`]: there are several keys.
const SHARED: u8 = 2;
/// Bit of [`Posts::state`]: users always enter by the lock, because there is no `membarrier`, or
/// the gate is closed too often for it.
const LOCKED: u8 = 4;
/// Bit of [`Posts::state`]: [`Gate::lock_all`] has begun, and nobody enters alone any more.
const WARY: u8 = 8;

/// State that both sides share. It has a cache line to itself, because each gate is used by another
/// worker.
#[derive(Debug)]
#[repr(align(64))]
struct Posts {
    /// The user of the only key is inside, or is checking whether it may be.
    alone: AtomicBool,
    /// A user is inside by the lock, or is checking whether it may be.
    locked: AtomicBool,
    state: AtomicU8,
    /// Number of existing keys. Locked while that changes, together with `SHARED`.
    keys: Mutex<usize>,
}

/// The closer's side of a gate; see the module.
#[derive(Debug)]
pub(crate) struct Gate(Arc<Posts>);

/// A user's side of a gate.
#[derive(Debug)]
pub(crate) struct Key(Arc<Posts>);

/// A user's stay inside the gate, until dropped.
pub(crate) struct Inside<'a>(&'a AtomicBool);

impl Gate {
    /// Creates an open gate.
    pub(crate) fn open() -> Gate {
        Gate::new(OPEN, membarrier::is_there())
    }

    /// Creates a closed gate.
    pub(crate) fn closed() -> Gate {
        Gate::new(CLOSED, membarrier::is_there())
    }

    /// Creates a closed gate that is always entered by the lock: closing it interrupts no
    /// processor, so others may decide how often that is done.
    pub(crate) fn closed_by_lock() -> Gate {
        Gate::new(CLOSED, false)
    }

    fn new(state: u8, membarrier: bool) -> Gate {
        let kind = if membarrier { 0 } else { LOCKED };
        Gate(Arc::new(Posts {
            alone: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            state: AtomicU8::new(state | kind),
            keys: Mutex::new(0),
        }))
    }

    /// Returns a key for one more user. Never waits for users inside, but may make a system call.
    pub(crate) fn key(&self) -> Key {
        let mut keys = self.0.keys();
        *keys += 1;
        if *keys == 2 && self.0.state.fetch_or(SHARED, Ordering::SeqCst) & LOCKED == 0 {
            membarrier::order_all_threads();
        }
        Key(Arc::clone(&self.0))
    }

    /// Closes these gates and waits until nobody is inside any of them. The wait has no time limit,
    /// because going on would free memory in use; what is done inside is one burst or one request
    /// to the device, which never block. Makes one system call if any of the gates is entered
    /// without a lock.
    pub(crate) fn close_all<'a>(gates: impl Iterator<Item = &'a Gate> + Clone) {
        Gate::shut(gates.clone());
        for gate in gates {
            gate.0.wait(None);
        }
    }

    /// Closes these gates as [`Gate::close_all`] does, but gives up after `limit`: false if
    /// somebody is still inside. The gates are closed all the same, and nobody else enters. What is
    /// behind them stays in use until [`Gate::all_left`] returns true.
    pub(crate) fn close_all_within<'a>(
        mut gates: impl Iterator<Item = &'a Gate> + Clone,
        limit: Duration,
    ) -> bool {
        Gate::shut(gates.clone());
        let until = Instant::now() + limit;
        gates.all(|gate| gate.0.wait(Some(until)))
    }

    /// Returns whether nobody is inside any of these gates, which must be closed and stay so: then
    /// nobody will be.
    pub(crate) fn all_left<'a>(mut gates: impl Iterator<Item = &'a Gate>) -> bool {
        gates.all(|gate| !gate.0.is_used())
    }

    /// Closes gates, in such a way that any user inside is visible.
    fn shut<'a>(gates: impl Iterator<Item = &'a Gate>) {
        let mut alone = false;
        for gate in gates {
            alone |= gate.0.state.fetch_or(CLOSED, Ordering::SeqCst) & LOCKED == 0;
        }
        if alone {
            membarrier::order_all_threads();
        }
    }

    /// Makes users enter these gates by the lock from now on, so that neither closing them nor
    /// another key interrupts a processor any more. Makes one system call. Must not run in two
    /// threads at a time, nor at the same time as [`Gate::unlock_all`].
    pub(crate) fn lock_all<'a>(gates: impl Iterator<Item = &'a Gate> + Clone) {
        let mut alone = false;
        for gate in gates.clone() {
            if gate.0.state.load(Ordering::SeqCst) & LOCKED == 0 {
                gate.0.state.fetch_or(WARY, Ordering::SeqCst);
                alone = true;
            }
        }
        if alone {
            membarrier::order_all_threads();
        }
        for gate in gates {
            gate.0.state.fetch_or(LOCKED, Ordering::SeqCst);
        }
    }

    /// Undoes [`Gate::lock_all`]: the user of a gate's only key may enter alone again. Waits for
    /// nobody and interrupts nobody.
    pub(crate) fn unlock_all<'a>(gates: impl Iterator<Item = &'a Gate>) {
        for gate in gates {
            // Other gates are always entered by the lock.
            if gate.0.state.load(Ordering::SeqCst) & WARY != 0 {
                (gate.0.state).fetch_and(!(WARY | LOCKED), Ordering::SeqCst);
            }
        }
    }

    /// Opens the gate again.
    pub(crate) fn reopen(&self) {
        self.0.state.fetch_and(!CLOSED, Ordering::Release);
    }
}

impl Posts {
    /// For a key's user: enters without a lock, if there is no other key.
    #[inline(always)]
    fn enter_alone(&self) -> Option<Inside<'_>> {
        // If there are other keys, `alone` may belong to another user.
        if self.state.load(Ordering::Relaxed) != OPEN {
            return None;
        }
        self.say_and_look()
    }

    #[inline(always)]
    fn say_and_look(&self) -> Option<Inside<'_>> {
        self.alone.store(true, Ordering::Relaxed);
        // The other side enforces the order on the processor.
        compiler_fence(Ordering::SeqCst);
        let inside = Inside(&self.alone);
        (self.state.load(Ordering::Acquire) == OPEN).then_some(inside)
    }

    /// For a key's user: enters by the lock.
    #[inline(never)]
    fn enter_by_lock(&self) -> Option<Inside<'_>> {
        if self.locked.swap(true, Ordering::SeqCst) {
            return None;
        }
        let inside = Inside(&self.locked);
        let lets_in = self.state.load(Ordering::SeqCst) & CLOSED == 0
            // A user may still be inside who entered with the only key.
            && !self.alone.load(Ordering::Acquire);
        lets_in.then_some(inside)
    }

    #[cold]
    fn enter_patiently(&self) -> Option<Inside<'_>> {
        for look in 0..PATIENCE {
            if self.state.load(Ordering::Relaxed) & CLOSED != 0 {
                return None;
            }
            if let Some(inside) = self.enter_by_lock() {
                return Some(inside);
            }
            if look < SPINS {
                spin_loop();
            } else {
                yield_now();
            }
        }
        None
    }

    /// Returns whether somebody is inside, or is checking whether it may enter.
    fn is_used(&self) -> bool {
        self.alone.load(Ordering::Acquire) || self.locked.load(Ordering::SeqCst)
    }

    /// Waits until nobody is inside; false if somebody still is at `until`.
    fn wait(&self, until: Option<Instant>) -> bool {
        let mut looks = 0u32;
        while self.is_used() {
            looks = looks.saturating_add(1);
            if looks < SPINS {
                spin_loop();
            } else if until.is_some_and(|until| Instant::now() >= until) {
                return false;
            } else {
                yield_now();
            }
        }
        true
    }

    fn keys(&self) -> MutexGuard<'_, usize> {
        self.keys
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Key {
    /// Enters, unless the gate is closed or somebody is inside.
    #[inline]
    pub(crate) fn try_enter(&mut self) -> Option<Inside<'_>> {
        self.0.enter_alone().or_else(|| self.0.enter_by_lock())
    }

    /// Enters, and waits a bounded time for a user inside. None when the gate is closed, or stays
    /// busy.
    #[inline]
    pub(crate) fn enter(&mut self) -> Option<Inside<'_>> {
        self.0.enter_alone().or_else(|| self.0.enter_patiently())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let mut keys = self.0.keys();
        *keys -= 1;
        if *keys == 1 {
            self.0.state.fetch_and(!SHARED, Ordering::Release);
        }
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Returns how many times this thread has interrupted others for a gate.
#[cfg(test)]
pub(crate) fn interruptions() -> u32 {
    membarrier::ORDERED.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    impl Gate {
        fn close(&self) {
            Gate::close_all([self].into_iter());
        }
    }

    /// Returns an open gate of this machine's kind, one that is always entered by the lock, one
    /// that was changed to that, and one that was changed back.
    fn all() -> [Gate; 4] {
        let (turned, back) = (Gate::open(), Gate::open());
        Gate::lock_all([&turned, &back].into_iter());
        Gate::unlock_all([&back].into_iter());
        [Gate::open(), Gate::new(OPEN, false), turned, back]
    }

    fn is_alone(inside: &Option<Inside<'_>>, gate: &Gate) -> bool {
        std::ptr::eq(inside.as_ref().expect("inside").0, &gate.0.alone)
    }

    #[test]
    fn a_closed_gate_cannot_be_entered() {
        for gate in all() {
            let mut key = gate.key();
            assert!(key.try_enter().is_some());
            gate.close();
            assert!(key.try_enter().is_none());
            assert!(key.enter().is_none());
            let mut other = gate.key();
            assert!(key.enter().is_none());
            assert!(other.enter().is_none());
            gate.reopen();
            assert!(key.enter().is_some());
            assert!(other.enter().is_some());
        }
        let gate = Gate::closed();
        let mut key = gate.key();
        assert!(key.enter().is_none());
        gate.reopen();
        assert!(key.enter().is_some());
    }

    #[test]
    fn one_at_a_time() {
        for gate in all() {
            let mut first = gate.key();
            let inside = first.try_enter();
            assert!(inside.is_some());
            // A later user sees one inside, whichever way that one entered.
            let mut second = gate.key();
            assert!(second.try_enter().is_none());
            drop(inside);
            let inside = second.try_enter();
            assert!(inside.is_some());
            assert!(first.try_enter().is_none());
            drop(inside);
            assert!(first.try_enter().is_some());
        }
    }

    #[test]
    fn the_only_key_enters_without_the_lock() {
        if !membarrier::is_there() {
            return;
        }
        let gate = Gate::open();
        let mut first = gate.key();
        assert!(is_alone(&first.enter(), &gate));
        gate.close();
        gate.reopen();
        assert!(is_alone(&first.enter(), &gate));
        let mut second = gate.key();
        assert!(!is_alone(&first.enter(), &gate));
        assert!(!is_alone(&second.enter(), &gate));
        drop(gate.key());
        assert!(!is_alone(&second.enter(), &gate));
        drop(first);
        assert!(is_alone(&second.enter(), &gate));
        drop(second);
        assert!(is_alone(&gate.key().enter(), &gate));
    }

    #[test]
    fn a_key_that_looked_before_the_gate_closed_does_not_enter() {
        if !membarrier::is_there() {
            return;
        }
        let gate = Gate::open();
        let mut first = gate.key();
        gate.close();
        assert!(gate.0.say_and_look().is_none());
        gate.reopen();
        // The same for a user who checked before there was another key.
        let _second = gate.key();
        assert!(gate.0.say_and_look().is_none());
        // Afterwards nobody seems to be inside.
        assert!(first.try_enter().is_some());
        gate.close();
    }

    #[test]
    fn without_membarrier_everybody_takes_the_lock() {
        let gate = Gate::new(CLOSED, false);
        gate.reopen();
        let mut first = gate.key();
        assert!(!is_alone(&first.enter(), &gate));
        drop(gate.key());
        gate.close();
        gate.reopen();
        assert!(!is_alone(&first.enter(), &gate));
    }

    #[test]
    fn a_gate_that_is_entered_by_the_lock_from_now_on_interrupts_nobody() {
        if !membarrier::is_there() {
            return;
        }
        let gates = [Gate::open(), Gate::closed()];
        let mut first = gates[0].key();
        let inside = first.enter();
        assert!(is_alone(&inside, &gates[0]));
        Gate::lock_all(gates.iter());
        // A user inside alone stays inside, alone.
        assert!(gates[0].key().try_enter().is_none());
        drop(inside);
        assert!(gates[0].0.say_and_look().is_none());
        let before = interruptions();
        assert!(!is_alone(&first.enter(), &gates[0]));
        drop(gates[0].key());
        Gate::close_all(gates.iter());
        assert!(first.enter().is_none());
        gates.iter().for_each(Gate::reopen);
        assert!(!is_alone(&first.enter(), &gates[0]));
        assert!(!is_alone(&gates[1].key().enter(), &gates[1]));
        Gate::lock_all(gates.iter());
        assert_eq!(interruptions(), before);
    }

    #[test]
    fn a_gate_that_was_entered_by_the_lock_for_a_while_is_as_before() {
        if !membarrier::is_there() {
            return;
        }
        let gates = [Gate::open(), Gate::closed(), Gate::closed_by_lock()];
        gates[2].reopen();
        let mut keys = gates.each_ref().map(Gate::key);
        Gate::lock_all(gates.iter());
        assert!(!is_alone(&keys[0].enter(), &gates[0]));
        // A second key is made before the change and dropped after it.
        let other = gates[0].key();
        let before = interruptions();
        Gate::unlock_all(gates.iter());
        assert_eq!(interruptions(), before);
        assert!(!is_alone(&keys[0].enter(), &gates[0]));
        drop(other);
        assert!(is_alone(&keys[0].enter(), &gates[0]));
        assert!(keys[1].enter().is_none(), "closed as it was");
        gates[1].reopen();
        assert!(is_alone(&keys[1].enter(), &gates[1]));
        assert!(!is_alone(&keys[2].enter(), &gates[2]), "by nature");
        // A barrier again makes users inside alone visible.
        let inside = keys[1].enter();
        let mut other = gates[1].key();
        assert_eq!(interruptions(), before + 1);
        assert!(other.try_enter().is_none());
        drop(inside);
        Gate::close_all(gates.iter());
        assert_eq!(interruptions(), before + 2);
        assert!(keys.iter_mut().all(|key| key.enter().is_none()));
        // The change can be made again.
        Gate::lock_all(gates.iter());
        gates.iter().for_each(Gate::reopen);
        assert!(!is_alone(&keys[0].enter(), &gates[0]));
    }

    #[test]
    fn all_gates_of_a_device_close_at_once() {
        let gates = [Gate::open(), Gate::new(OPEN, false), Gate::closed()];
        let mut keys = gates.each_ref().map(Gate::key);
        Gate::close_all(gates.iter());
        assert!(keys.iter_mut().all(|key| key.enter().is_none()));
        gates.iter().for_each(Gate::reopen);
        assert!(keys.iter_mut().all(|key| key.enter().is_some()));
    }

    #[test]
    fn to_close_a_gate_may_be_given_up() {
        for gate in all() {
            let mut key = gate.key();
            let inside = key.enter();
            assert!(inside.is_some());
            let gates = || [&gate].into_iter();
            assert!(!Gate::close_all_within(gates(), Duration::from_millis(1)));
            assert!(!Gate::all_left(gates()));
            drop(inside);
            assert!(key.try_enter().is_none(), "it is closed");
            assert!(Gate::all_left(gates()));
            assert!(Gate::close_all_within(gates(), Duration::ZERO));
            gate.reopen();
            assert!(key.try_enter().is_some());
        }
    }

    /// A number that must be incremented by one thread at a time, or counts are lost.
    #[derive(Default)]
    struct Fragile {
        number: AtomicU64,
        lines: [Line; 8],
    }

    #[derive(Default)]
    #[repr(align(64))]
    struct Line(AtomicU64);

    impl Fragile {
        /// Counts, with a delay of `long` between load and store.
        fn count(&self, long: u32) {
            let before = self.number.load(Ordering::Relaxed);
            for _ in 0..long {
                std::hint::spin_loop();
            }
            self.number.store(before + 1, Ordering::Relaxed);
        }

        /// Fills the store buffer, so that others, who write here, too, see the next store late.
        fn linger(&self) {
            for line in &self.lines {
                line.0.store(1, Ordering::Relaxed);
            }
        }
    }

    /// Most repetitions on each side, and the longest duration. No test waits for a number of
    /// successes of the other side: on a busy machine, where each yield may cost a slice of every
    /// other thread's time, these may take minutes.
    const ATTEMPTS: u32 = 3_000_000;
    const CLOSINGS: u32 = 10_000;
    const LONGEST: Duration = Duration::from_secs(1);

    /// Lets users enter and leave while `disturb` runs over and over and returns how many times it
    /// has counted; checks that nobody counts while another does.
    fn stress(gate: &Gate, users: usize, disturb: impl Fn(&Fragile) -> u64) {
        let fragile = Fragile::default();
        let begin = Barrier::new(users + 1);
        let stop = AtomicBool::new(false);
        let counted = std::thread::scope(|scope| {
            let user = || {
                let mut key = gate.key();
                let mut counted = 0;
                begin.wait();
                for _ in 0..ATTEMPTS {
                    fragile.linger();
                    if let Some(_inside) = key.try_enter() {
                        fragile.count(0);
                        counted += 1;
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                counted
            };
            let users: Vec<_> = (0..users).map(|_| scope.spawn(user)).collect();
            begin.wait();
            let end = Instant::now() + LONGEST;
            let mut counted = 0;
            for closing in 0..CLOSINGS {
                // Users get various times to enter.
                for _ in 0..closing % 32 {
                    std::hint::spin_loop();
                }
                fragile.linger();
                counted += disturb(&fragile);
                if users.iter().all(|user| user.is_finished()) || Instant::now() > end {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            users
                .into_iter()
                .map(|user| user.join().expect("a user"))
                .sum::<u64>()
                + counted
        });
        assert_eq!(fragile.number.load(Ordering::Relaxed), counted);
    }

    #[test]
    fn no_user_is_inside_after_close() {
        for gate in all() {
            for users in [1, 3] {
                stress(&gate, users, |fragile| {
                    gate.close();
                    fragile.count(20);
                    gate.reopen();
                    1
                });
            }
        }
    }

    /// A new gate each round, which changes while its users enter in either way.
    #[test]
    fn a_gate_may_come_to_be_entered_by_the_lock_at_any_time() {
        let end = Instant::now() + LONGEST;
        for round in 0..200 {
            let gate = Gate::open();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..round * 10).for_each(|_| std::hint::spin_loop());
                    Gate::lock_all([&gate].into_iter());
                });
                stress(&gate, 1, |fragile| {
                    gate.close();
                    fragile.count(20);
                    gate.reopen();
                    1
                });
            });
            if Instant::now() > end {
                break;
            }
        }
    }

    /// One gate whose way in changes all the time, while it is closed, and while other keys are
    /// made and dropped.
    #[test]
    fn how_a_gate_is_entered_may_change_all_the_time() {
        let stop = AtomicBool::new(false);
        let gate = Gate::open();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rounds = 0u32;
                // The time limit counts even if the rest has failed.
                let end = Instant::now() + 10 * LONGEST;
                while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                    Gate::lock_all([&gate].into_iter());
                    (0..rounds % 64).for_each(|_| std::hint::spin_loop());
                    Gate::unlock_all([&gate].into_iter());
                    (0..rounds % 48).for_each(|_| std::hint::spin_loop());
                    rounds = rounds.wrapping_add(1);
                }
            });
            stress(&gate, 1, |fragile| {
                gate.close();
                fragile.count(20);
                gate.reopen();
                1
            });
            stress(&gate, 1, |fragile| {
                let mut key = gate.key();
                let inside = key.try_enter().map(|_inside| fragile.count(20));
                u64::from(inside.is_some())
            });
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn keys_may_come_and_go_while_others_are_used() {
        for gate in all() {
            stress(&gate, 1, |fragile| {
                let mut key = gate.key();
                let inside = key.try_enter().map(|_inside| fragile.count(20));
                u64::from(inside.is_some())
            });
        }
    }
}
