//! Interactions of workers, the hub and the control thread.

use super::receive::*;
use super::send::*;
use super::shared::*;
use super::*;
use crate::gate::Gate;
use crate::mbuf;
use crate::mbuf::kept::{self, Kept};
use crate::pool::Pool;
use packet::io::{RxQueue, TxOutcome, TxQueue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn served(port: &Shared) -> Option<i32> {
    let vid = port.vid.load(Ordering::SeqCst);
    let enabled = port.rings[1].enabled.load(Ordering::SeqCst);
    (enabled && port.rings[1].gate.key().enter().is_some()).then_some(vid)
}

fn guest(port: &Shared, vid: i32) {
    port.ring_changed(vid, 1, true);
    port.arrive(vid, 0);
}

#[test]
fn a_connection_that_says_nothing_disturbs_nobody() {
    let port = Shared::new(Box::new([]), 1518);
    guest(&port, 0);
    assert_eq!(served(&port), Some(0));
    port.disconnect(1); // comes
    port.ring_changed(1, 1, false);
    port.leave(1);
    port.disconnect(1); // goes
    assert_eq!(served(&port), Some(0));
    port.disconnect(0);
    assert_eq!(served(&port), None);
}

#[test]
fn the_device_that_spoke_last_is_served_and_the_other_left_alone() {
    let port = Shared::new(Box::new([]), 1518);
    guest(&port, 0);
    std::thread::scope(|scope| {
        let mut key = port.rings[1].gate.key();
        let inside = key.try_enter().expect("open");
        let other = scope.spawn(|| guest(&port, 1));
        while port.vid.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // A worker is inside device 0, so the port cannot have switched to device 1.
        assert_eq!(port.vid.load(Ordering::SeqCst), -1);
        drop(inside);
        assert!(other.join().is_ok());
    });
    assert_eq!(served(&port), Some(1));
    port.leave(0);
    port.disconnect(0);
    assert_eq!(served(&port), Some(1));
    port.leave(1);
    assert_eq!(served(&port), None);
}

fn sender(port: &Arc<Shared>) -> VhostTx {
    VhostTx {
        sizes: port.sent_by(0),
        shared: Arc::clone(port),
        worker: 0,
        scratch: Vec::new(),
        access: None,
    }
}

/// Without a device behind the port its ring cannot be used.
#[test]
fn a_ring_that_cannot_be_looked_at_is_not_slept_over() {
    let wake = Box::new([event().expect("a descriptor")]);
    let port = Arc::new(Shared::new(wake, 1518));
    let mut rx = VhostRx::new(Arc::clone(&port), 0, Pool::none()).expect("a queue");
    let mut none = Vec::new();
    let mut sleeps = |change: fn(&Shared)| {
        change(&port);
        let first = !rx.arm();
        rx.disarm();
        assert_eq!(rx.receive(&mut none), 0);
        let again = !rx.arm();
        rx.disarm();
        assert_eq!(first, again);
        again
    };
    assert!(sleeps(|_| {}), "there is no guest");
    assert!(sleeps(|port| guest(port, 0)));
    // While a message is handled the ring cannot be read.
    assert!(!sleeps(Shared::message_begins));
    // Nobody waits for a ring that is not in use.
    assert!(sleeps(|port| port.ring_changed(0, 1, false)));
    assert!(!sleeps(|port| port.ring_changed(0, 1, true)));
    assert!(sleeps(Shared::message_done));
    // Nor for a guest that is gone.
    assert!(sleeps(|port| port.leave(0)));
}

#[test]
fn an_announcement_is_a_reverse_arp_request_of_the_guest() {
    let frame = announcement(u64::from_le_bytes([2, 3, 4, 5, 6, 7, 0, 0x80]));
    let mac = [2, 3, 4, 5, 6, 7];
    assert_eq!(frame[..6], [0xff; 6]);
    for at in [6, 22, 32] {
        assert_eq!(frame[at..at + 6], mac);
    }
    assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
}

/// A sender waits at the gate while another guest connects, which does not accept partial checksums
/// and takes shorter frames.
#[test]
fn features_of_the_guest_are_read_inside_the_gate() {
    let port = Arc::new(Shared::new(Box::new([]), 1518));
    port.ring_changed(0, 0, true);
    port.arrive(0, feature::GUEST_CSUM);
    let (mut holder, mut sender) = (port.rings[0].gate.key(), sender(&port));
    let (mut unfinished, mut long) = (Kept::new(), Kept::new());
    for _ in 0..10 {
        port.features.store(feature::GUEST_CSUM, Ordering::Relaxed);
        port.longest.store(1518, Ordering::Relaxed);
        let inside = holder.enter().expect("open");
        let waits = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let sent = scope.spawn(|| {
                loop {
                    let mut frames =
                        vec![kept::unfinished(&mut unfinished), long.frame(&[0; 1000])];
                    waits.store(true, Ordering::SeqCst);
                    let outcome = sender.send(&mut frames);
                    // The wait is bounded, so repeat it.
                    if outcome.failed == 0 {
                        return outcome;
                    }
                }
            });
            while !waits.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            (0..100).for_each(|_| std::thread::yield_now());
            port.features.store(0, Ordering::Relaxed);
            port.longest.store(999, Ordering::Relaxed);
            drop(inside);
            sent.join().expect("a sender")
        });
        // There is no device behind the port: the rest of the burst finds no room.
        let wanted = TxOutcome {
            full: 1,
            too_long: 1,
            ..TxOutcome::default()
        };
        assert_eq!(outcome, wanted);
        let left = unfinished.flags() & mbuf::WORK;
        assert_eq!(left, 0, "nothing is left to the guest");
        assert!(kept::is_finished(&mut unfinished));
    }
    // For a guest that accepts partial checksums they are left as they are.
    port.features.store(feature::GUEST_CSUM, Ordering::Relaxed);
    drop(holder);
    let mut frames = vec![kept::unfinished(&mut unfinished)];
    assert_eq!(sender.send(&mut frames).full, 1);
    assert_eq!(unfinished.flags() & mbuf::WORK, mbuf::WORK);
    assert!(!kept::is_finished(&mut unfinished));
}

#[test]
fn patience_comes_back() {
    let (mut patience, start) = (Patience::default(), Instant::now());
    assert!((0..512).all(|_| !patience.tried(start)));
    // What is refilled in a second can be spent in it.
    let second = |seconds| start + Duration::from_secs(seconds);
    for seconds in 1..100 {
        assert!((0..8).all(|_| !patience.tried(second(seconds))));
    }
    assert!(patience.tried(second(99)));
    assert!(!patience.tried(second(99)), "known already");
    let mut patience = Patience::default();
    assert!((0..512).all(|_| !patience.tried(start)));
    assert!((0..512).all(|_| !patience.tried(second(64))));
    assert!(patience.tried(second(64)));
}

#[test]
fn patience_is_restored_when_all_of_it_has_come_back() {
    let (mut patience, start) = (Patience::default(), Instant::now());
    let second = |seconds| start + Duration::from_secs(seconds);
    assert!(!patience.restored(start), "nothing was spent");
    assert!((0..512).all(|_| !patience.tried(start)));
    assert!(!patience.restored(second(64)), "it was not all spent");
    assert!((0..512).all(|_| !patience.tried(second(64))));
    assert!(patience.tried(second(64)));
    // However many more changes are tried.
    assert!((0..100_000).all(|_| !patience.tried(second(65))));
    assert!(!patience.restored(second(65)));
    assert!(!patience.restored(second(128)));
    assert!(patience.restored(second(129)));
    assert!(!patience.restored(second(129)), "known already");
    assert!((0..512).all(|_| !patience.tried(second(129))));
    assert!(patience.tried(second(129)));
}

/// Whatever a guest does, it makes no more changes without the lock than its budget allows: 512,
/// and 8 a second.
#[test]
fn no_habit_gets_more_of_patience() {
    const TICKS: u32 = 100_000;
    // Changes in a tick of 50 ms, for how many ticks, and the number of idle ticks after them.
    for (changes, busy, rest) in [
        (1, 1, 0),
        (600, 1, 1279),
        (600, 1, 1280),
        (513, 1, 1400),
        (7, 5000, 3000),
        (2, 300, 300),
    ] {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let (mut let_through, mut spent) = (0u32, 0u32);
        for tick in 0..TICKS {
            let now = start + Duration::from_millis(50) * tick;
            patience.restored(now);
            if tick % (busy + rest) < busy {
                for _ in 0..changes {
                    spent += u32::from(patience.tried(now));
                    let_through += u32::from(!patience.spent);
                }
            }
        }
        assert!(spent > 0, "{changes} {busy} {rest}");
        let most = 512 + TICKS / 20 * 8;
        assert!(let_through <= most, "{let_through} of {most}");
    }
}

/// However often a guest changes rings or reconnects, workers are not interrupted more often than
/// its budget allows.
#[test]
fn a_guest_that_switches_all_the_time_interrupts_no_worker() {
    let port = Shared::new(Box::new([]), 1518);
    port.ring_changed(0, 0, true);
    guest(&port, 0);
    let (mut first, mut second) = (None, None);
    let before = crate::gate::interruptions();
    let inside = |worker, access: &mut Option<RingAccess>| {
        let access = RingAccess::find(access, &port, worker).expect("a ring");
        assert!(access.key.try_enter().is_some());
        access.ring
    };
    for round in 0..3000 {
        // Whether workers share a ring or have one each.
        port.ring_changed(0, 2, round % 2 == 0);
        assert_eq!(inside(0, &mut first), 0);
        assert_eq!(inside(1, &mut second), if round % 2 == 0 { 2 } else { 0 });
        if round % 100 == 0 {
            port.leave(0);
            assert_eq!(served(&port), None);
            port.arrive(0, 0);
            assert_eq!(served(&port), Some(0));
        }
    }
    let interruptions = crate::gate::interruptions() - before;
    assert!(interruptions < 1500, "{interruptions}");
    // Repeated because this machine may be slow.
    while !port.patience.lock().expect("nobody panicked").spent {
        port.disturbed(Instant::now());
    }
    let before = crate::gate::interruptions();
    for _ in 0..100 {
        port.ring_changed(0, 2, true);
        inside(1, &mut second);
        port.ring_changed(0, 2, false);
        inside(1, &mut second);
        port.leave(0);
        port.arrive(0, 0);
    }
    assert_eq!(crate::gate::interruptions(), before);
    // Another guest is at first served in the same way.
    let alone = |port: &Shared| {
        let before = crate::gate::interruptions();
        Gate::close_all(port.gates());
        port.gates().for_each(Gate::reopen);
        crate::gate::interruptions() != before
    };
    port.disconnect(0);
    port.arrive(1, 0);
    port.relent(Instant::now());
    assert!(!alone(&port));
    // If it is quiet, it is served like guests of other ports, on this kernel.
    port.relent(Instant::now() + PATIENCE);
    assert_eq!(alone(&port), alone(&Shared::new(Box::new([]), 1518)));
}

#[test]
fn senders_share_a_ring_or_have_one_each() {
    let port = Shared::new(Box::new([]), 1518);
    port.ring_changed(0, 0, true);
    port.arrive(0, 0);
    let (mut first, mut second) = (None, None);
    let mut both_inside = || {
        let first = RingAccess::find(&mut first, &port, 0).expect("a ring");
        let second = RingAccess::find(&mut second, &port, 1).expect("a ring");
        let inside = first.key.try_enter();
        let both = inside.is_some() && second.key.try_enter().is_some();
        (first.ring, second.ring, both)
    };
    assert_eq!(both_inside(), (0, 0, false));
    port.ring_changed(0, 2, true);
    assert_eq!(both_inside(), (0, 2, true));
    port.ring_changed(0, 2, false);
    assert_eq!(both_inside(), (0, 0, false));
    port.ring_changed(0, 2, true);
    port.leave(0);
    assert_eq!(both_inside(), (0, 2, false));
    assert!(first.is_some_and(|mut access| access.key.enter().is_none()));
}
