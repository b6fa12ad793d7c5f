//! Gates: whoever is inside is alone there, and nobody is after it has been closed.

use crate::gate::{Gate, Key};
use crate::sync::explore;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// What is behind the gate. loom says when two are at it without an order between them.
struct Device(UnsafeCell<u32>);

// SAFETY: loom checks just that.
unsafe impl Sync for Device {}

impl Device {
    fn new() -> Arc<Device> {
        Arc::new(Device(UnsafeCell::new(0)))
    }

    fn touch(&self) {
        // SAFETY: loom fails where another does so at the same time.
        self.0.with_mut(|number| unsafe { *number += 1 });
    }
}

/// A user's bursts.
fn bursts(key: &mut Key, device: &Device, count: usize) {
    for _ in 0..count {
        if let Some(_inside) = key.try_enter() {
            device.touch();
        }
    }
}

/// Takes away what is behind the gate, and gives it back.
fn take_away(gate: &Gate, device: &Device) {
    Gate::close_all([gate].into_iter());
    device.touch();
    gate.reopen();
}

fn one_user(gate: fn() -> Gate, closings: usize) {
    explore(3, move || {
        let (gate, device) = (gate(), Device::new());
        let mut key = gate.key();
        let user = {
            let device = Arc::clone(&device);
            thread::spawn(move || bursts(&mut key, &device, 2))
        };
        (0..closings).for_each(|_| take_away(&gate, &device));
        user.join().expect("a user");
    });
}

/// By plain stores, against `membarrier`.
pub fn nobody_is_inside_after_a_gate_is_closed() {
    one_user(Gate::open, 2);
}

/// By the lock.
pub fn nobody_is_inside_after_a_gate_with_a_lock_is_closed() {
    let gate = || {
        let gate = Gate::closed_by_lock();
        gate.reopen();
        gate
    };
    one_user(gate, 2);
}

/// Another key comes, is used, and goes, while the first is used.
pub fn users_of_two_keys_are_never_inside_together() {
    explore(3, || {
        let (gate, device) = (Arc::new(Gate::open()), Device::new());
        let mut first = gate.key();
        let user = {
            let device = Arc::clone(&device);
            thread::spawn(move || bursts(&mut first, &device, 2))
        };
        let mut second = gate.key();
        bursts(&mut second, &device, 1);
        drop(second);
        user.join().expect("a user");
    });
}

/// How the gate is entered changes to the lock and back, while it is used and closed.
pub fn how_a_gate_is_entered_may_change() {
    explore(2, || {
        let (gate, device) = (Arc::new(Gate::open()), Device::new());
        let mut key = gate.key();
        let user = {
            let device = Arc::clone(&device);
            thread::spawn(move || bursts(&mut key, &device, 2))
        };
        let other = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                Gate::lock_all([&*gate].into_iter());
                Gate::unlock_all([&*gate].into_iter());
            })
        };
        take_away(&gate, &device);
        user.join().expect("a user");
        other.join().expect("the other");
    });
}
