//! A gate in front of something that two sides use: workers, burst after burst, and whoever may
//! take it away.
//!
//! A queue of a device must not be touched while the device is being reconfigured, and not at all
//! once it is gone. Workers enter the gate around every burst, by a [`Key`] of their own; the other
//! side closes it, which waits until nobody is inside. A queue object that outlives its device is
//! then merely useless: its gate stays closed.
//!
//! # Two ways in
//!
//! While a gate has one key, whoever has that enters alone, by two plain loads and a store. Where
//! there are more keys (workers that share a transmit queue), where the kernel lacks `membarrier`,
//! and where others decide how often the gate is closed ([`Gate::closed_by_lock`]) or have had that
//! done too often ([`Gate::lock_all`]), users enter by a locked instruction, one at a time. Keys
//! may come and go at any time.
//!
//! Why nobody is inside after [`Gate::close_all`]:
//!
//! - Who enters by the lock says so in `locked` before he looks at `state`, and who closes says so
//!   in `state` before he looks at `locked`. All four are sequentially consistent, so in the one
//!   order of these either the user sees that the gate is closed, or the closer sees the user.
//! - Who enters alone does the same with `alone`, but only the compiler is kept from changing the
//!   order: the processor may look at `state` while the store still waits in its store buffer. It
//!   is the closer who sees to the order, by `membarrier` between his store and his look: by the
//!   time it returns, every thread of the process has passed a full memory barrier that lies after
//!   the closer's store and before his look. If the user's look lies behind his barrier, he sees
//!   that the gate is closed; if it lies before, so does his store, and the closer sees that. This
//!   is the same on all processors. (It is the asymmetric fence of P1202 for C++, as in liburcu and
//!   folly.)
//!
//! The closer then waits to read `false`, with acquire, which the user wrote with release after all
//! that he did inside: so that happened before what the closer does next. Who enters reads `state`
//! with acquire, as [`Gate::reopen`] wrote it, with release: so what was done before that happened
//! before anything inside.
//!
//! Why there is one inside at a time: a second key is given out only after `SHARED` is set and a
//! `membarrier`. As above, who is inside alone is seen then, in `alone`, by whoever enters by the
//! lock, and nobody comes in alone later, as long as there are two keys: all that can happen is
//! that the first user writes `alone`, sees that the gate is shared, and takes that back. When keys
//! are given back and one is left, `SHARED` is taken away with release, after all that was done by
//! those keys; the last user reads that with acquire. So there is only ever one key whose user
//! writes `alone`.
//!
//! A gate that is to be entered by the lock from now on says so twice: by `WARY`, after which
//! nobody enters alone, as with `SHARED`; and after a `membarrier` by `LOCKED`, after which
//! nobody makes one for this gate. Whoever reads `LOCKED` does so with acquire, so all that lay
//! before that barrier happened before what he does next: he sees in `alone` who is inside alone
//! still, if anybody is, and nobody comes in alone later. Whoever does not read it makes a barrier
//! of his own, as ever.
//!
//! To take both away again ([`Gate::unlock_all`]) needs no barrier. Until then nobody is inside
//! alone but who was before that barrier, and is in `alone` to be seen. Whoever has read `LOCKED`,
//! and made no barrier, has left `CLOSED` or `SHARED` behind in the same step: they are there still
//! when `LOCKED` goes, so nobody enters alone before they go too, as ever. Whoever comes later does
//! not read it, and makes one. Who enters alone then has read what was written last with acquire,
//! and all that was written to `state` since [`Gate::reopen`] was so by steps that read and write
//! at once, which carry its release on.

use crate::membarrier;
use crate::sync::{
    AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, compiler_fence, spin_loop, yield_now,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a sender looks again before it gives up on a queue that another worker holds. Each
/// look after the first few yields the core, so this is some tens of milliseconds even when that
/// worker was preempted.
const PATIENCE: u32 = 100_000;
const SPINS: u32 = 200;

/// Of [`Posts::state`]: who has the only key may enter alone.
const OPEN: u8 = 0;
/// Nobody may enter.
const CLOSED: u8 = 1;
/// There are several keys.
const SHARED: u8 = 2;
/// Users always enter by the lock: there is no `membarrier`, or the gate is closed too often for
/// it.
const LOCKED: u8 = 4;
/// The same is true for a while, or will be in a moment, and nobody enters alone already.
const WARY: u8 = 8;

/// What both sides see. It has a cache line to itself, as each gate is used by another worker.
#[derive(Debug)]
#[repr(align(64))]
struct Posts {
    /// The user of the only key is inside, or looks whether he may be.
    alone: AtomicBool,
    /// Somebody is inside by the lock, or looks whether he may be.
    locked: AtomicBool,
    state: AtomicU8,
    /// Keys that are out. Locked while that changes, together with `SHARED`.
    keys: Mutex<usize>,
}

/// The side of whoever takes away. See the module.
#[derive(Debug)]
pub(crate) struct Gate(Arc<Posts>);

/// The side of one user.
#[derive(Debug)]
pub(crate) struct Key(Arc<Posts>);

/// Inside the gate until dropped.
pub(crate) struct Inside<'a>(&'a AtomicBool);

impl Gate {
    /// A gate that lets in.
    pub(crate) fn open() -> Gate {
        Gate::new(OPEN, membarrier::is_there())
    }

    /// A gate that does not let in yet.
    pub(crate) fn closed() -> Gate {
        Gate::new(CLOSED, membarrier::is_there())
    }

    /// A gate that does not let in yet, and is entered by the lock always: to close it interrupts
    /// no processor, so somebody else may decide how often that is done.
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

    /// A key for one more user. Never waits for those inside, but may take a system call.
    pub(crate) fn key(&self) -> Key {
        let mut keys = self.0.keys();
        *keys += 1;
        if *keys == 2 && self.0.state.fetch_or(SHARED, Ordering::SeqCst) & LOCKED == 0 {
            membarrier::order_all_threads();
        }
        Key(Arc::clone(&self.0))
    }

    /// Closes these gates and waits until nobody is inside any of them. There is no limit to this
    /// wait because going on would free memory in use; what is done inside is one burst or one
    /// question to the device, which never block. It takes one system call where some are entered
    /// without a lock.
    pub(crate) fn close_all<'a>(gates: impl Iterator<Item = &'a Gate> + Clone) {
        Gate::shut(gates.clone());
        for gate in gates {
            gate.0.wait(None);
        }
    }

    /// The same, but gives up after `limit`: false where somebody is inside still. The gates are
    /// closed all the same, and nobody else comes in. What is behind them stays in use until
    /// [`Gate::all_left`] says otherwise.
    pub(crate) fn close_all_within<'a>(
        mut gates: impl Iterator<Item = &'a Gate> + Clone,
        limit: Duration,
    ) -> bool {
        Gate::shut(gates.clone());
        let until = Instant::now() + limit;
        gates.all(|gate| gate.0.wait(Some(until)))
    }

    /// Whether nobody is inside any of these gates, which have been closed and not opened since:
    /// then nobody will be.
    pub(crate) fn all_left<'a>(mut gates: impl Iterator<Item = &'a Gate>) -> bool {
        gates.all(|gate| !gate.0.is_used())
    }

    /// Lets nobody in any more, in such a way that whoever is inside can be seen.
    fn shut<'a>(gates: impl Iterator<Item = &'a Gate>) {
        let mut alone = false;
        for gate in gates {
            alone |= gate.0.state.fetch_or(CLOSED, Ordering::SeqCst) & LOCKED == 0;
        }
        if alone {
            membarrier::order_all_threads();
        }
    }

    /// Has these gates entered by the lock from now on, so that neither closing them nor another
    /// key interrupts a processor any more. Takes one system call. Not for two threads at a time,
    /// nor beside [`Gate::unlock_all`].
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

    /// Undoes [`Gate::lock_all`]: who has a gate's only key may enter alone again. Waits for nobody
    /// and interrupts nobody.
    pub(crate) fn unlock_all<'a>(gates: impl Iterator<Item = &'a Gate>) {
        for gate in gates {
            // Others are entered by the lock always.
            if gate.0.state.load(Ordering::SeqCst) & WARY != 0 {
                (gate.0.state).fetch_and(!(WARY | LOCKED), Ordering::SeqCst);
            }
        }
    }

    /// Lets in again.
    pub(crate) fn reopen(&self) {
        self.0.state.fetch_and(!CLOSED, Ordering::Release);
    }
}

impl Posts {
    /// For the user of a key: goes in without a lock, if there is no other key.
    #[inline(always)]
    fn enter_alone(&self) -> Option<Inside<'_>> {
        // Where there are other keys `alone` may be another user's word.
        if self.state.load(Ordering::Relaxed) != OPEN {
            return None;
        }
        self.say_and_look()
    }

    #[inline(always)]
    fn say_and_look(&self) -> Option<Inside<'_>> {
        self.alone.store(true, Ordering::Relaxed);
        // What the processor makes of this order is for the other side to see to.
        compiler_fence(Ordering::SeqCst);
        let inside = Inside(&self.alone);
        (self.state.load(Ordering::Acquire) == OPEN).then_some(inside)
    }

    /// For the user of a key.
    #[inline(never)]
    fn enter_by_lock(&self) -> Option<Inside<'_>> {
        if self.locked.swap(true, Ordering::SeqCst) {
            return None;
        }
        let inside = Inside(&self.locked);
        let lets_in = self.state.load(Ordering::SeqCst) & CLOSED == 0
            // Somebody who went in when his was the only key.
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

    /// Whether somebody is inside, or looks whether he may be.
    fn is_used(&self) -> bool {
        self.alone.load(Ordering::Acquire) || self.locked.load(Ordering::SeqCst)
    }

    /// Waits until nobody is inside; false where somebody is at the end of that time.
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
    /// Goes in, unless the gate is closed or somebody is inside.
    #[inline]
    pub(crate) fn try_enter(&mut self) -> Option<Inside<'_>> {
        self.0.enter_alone().or_else(|| self.0.enter_by_lock())
    }

    /// Goes in, waiting a bounded time for whoever is inside. None when the gate is closed, or
    /// stays busy.
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

/// How often this thread has interrupted others for a gate.
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

    /// A gate of the kind that this machine has, one of the kind that all machines have, one that
    /// has become such, and one that was.
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
    fn none_when_closed() {
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
            // Whoever comes later sees who is inside, however he went in.
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
    fn who_has_the_only_key_takes_no_lock() {
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
    fn who_looked_before_it_was_closed_is_not_let_in() {
        if !membarrier::is_there() {
            return;
        }
        let gate = Gate::open();
        let mut first = gate.key();
        gate.close();
        assert!(gate.0.say_and_look().is_none());
        gate.reopen();
        // Nor before there was another key.
        let _second = gate.key();
        assert!(gate.0.say_and_look().is_none());
        // And nobody seems to be inside.
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
        // Who is inside stays so, alone.
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
        // Another key is given before and taken back after.
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
        // Whoever may be inside alone is made to be seen again.
        let inside = keys[1].enter();
        let mut other = gates[1].key();
        assert_eq!(interruptions(), before + 1);
        assert!(other.try_enter().is_none());
        drop(inside);
        Gate::close_all(gates.iter());
        assert_eq!(interruptions(), before + 2);
        assert!(keys.iter_mut().all(|key| key.enter().is_none()));
        // And it may be so again.
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

    /// A number that only one may count up at a time, or counts are lost.
    #[derive(Default)]
    struct Fragile {
        number: AtomicU64,
        lines: [Line; 8],
    }

    #[derive(Default)]
    #[repr(align(64))]
    struct Line(AtomicU64);

    impl Fragile {
        /// Counts, taking so long for it.
        fn count(&self, long: u32) {
            let before = self.number.load(Ordering::Relaxed);
            for _ in 0..long {
                std::hint::spin_loop();
            }
            self.number.store(before + 1, Ordering::Relaxed);
        }

        /// Fills the store buffer: what is stored next is seen late by others, who write here, too.
        fn linger(&self) {
            for line in &self.lines {
                line.0.store(1, Ordering::Relaxed);
            }
        }
    }

    /// How often each side does its part at most, and for how long. Nothing here waits for a number
    /// of successes of the other side: beside other work, where each yield may cost a slice of
    /// every other thread's, these may not come for minutes.
    const ATTEMPTS: u32 = 3_000_000;
    const CLOSINGS: u32 = 10_000;
    const LONGEST: Duration = Duration::from_secs(1);

    /// Users go in and out, while `disturb` is done over and over, and says how often it has
    /// counted; nobody counts while another does.
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
                // Users get various times to come in.
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
    fn nobody_is_inside_after_close() {
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

    /// Of each round's gate, whichever way its users come in when it changes.
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

    /// Of one gate, whose users come in this way and that while it is closed, and while other keys
    /// come and go.
    #[test]
    fn how_a_gate_is_entered_may_change_all_the_time() {
        let stop = AtomicBool::new(false);
        let gate = Gate::open();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rounds = 0u32;
                // Also where the rest has failed.
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
