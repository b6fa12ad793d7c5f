//! Shaped ports: who lets frames go while owners change, and when shaping ends. The ring, what is
//! said beside the shaper, and how workers sleep are the datapath's; the shaper is a list, of which
//! everything may leave at the owner's next look.

use crate::due::Due;
use crate::ring::{Arrival, Ring};
use crate::sleeper::Sleeper;
use crate::sync::{Mutex, explore};
use crate::wake::Wake;
use loom::thread;
use std::sync::Arc;

/// A shaped port (`datapath::shape::Shaped`).
struct Port {
    ring: Ring<u32>,
    core: Mutex<Vec<u32>>,
    due: Due,
}

impl Port {
    fn new() -> Arc<Port> {
        Arc::new(Port {
            ring: Ring::new(),
            core: Mutex::new(Vec::new()),
            due: Due::new(),
        })
    }

    /// With the shaper in hand (`Shaped::core`), unless another has it.
    fn with_core<T>(&self, what: impl FnOnce(&mut Vec<u32>) -> T) -> Option<T> {
        let mut core = self.core.try_lock().ok()?;
        let done = what(&mut core);
        self.due.set((!core.is_empty()).then_some(1));
        Some(done)
    }

    fn take_ring(&self, into: &mut Vec<u32>) {
        into.extend(std::iter::from_fn(|| self.ring.pop()).map(|arrival| arrival.frame));
    }

    /// `ShapedSender::hand_over`.
    fn hand_over(&self, frame: u32, owner: &Sleeper) {
        let arrival = Arrival {
            frame,
            at_ns: 0,
            queue: None,
            flow: 0,
            long: 0,
        };
        assert!(self.ring.push(arrival), "there is room");
        owner.nudge();
    }

    /// A frame of one who takes himself for the owner (`Egress::admit_staged`), and must wait.
    fn admit(&self, frame: u32, owner: &Sleeper) {
        let admitted = self.with_core(|core| {
            self.take_ring(core);
            core.push(frame);
        });
        if admitted.is_none() {
            self.hand_over(frame, owner);
        }
    }

    /// `ShapedSender::due_ns`.
    fn is_due(&self) -> bool {
        !self.ring.is_empty() || self.due.get().is_some()
    }

    /// The owner's part of a turn (`Egress::serve_port`): how many frames left.
    fn serve(&self) -> usize {
        let all = self.with_core(|core| {
            self.take_ring(core);
            core.drain(..).count()
        });
        all.unwrap_or(0)
    }

    /// `Egress::unshape`: how many frames left; none where it is to be tried again.
    fn unshape(&self, mine: bool) -> Option<usize> {
        if !mine && !self.due.has_ended() {
            return Some(0);
        }
        self.with_core(|core| {
            self.due.end();
            self.take_ring(core);
            core.drain(..).count()
        })
    }
}

/// The owner of a port, until so many frames have left; `is_due` says whether there is something to
/// do.
fn owner(port: &Port, sleeper: &Sleeper, mut frames: usize, is_due: fn(&Port) -> bool) {
    while frames > 0 {
        if is_due(port) {
            match port.serve() {
                // Another is at it.
                0 => thread::yield_now(),
                count => frames -= count,
            }
            continue;
        }
        sleeper.lie_down();
        let found = is_due(port);
        if !found {
            sleeper.wake().wait();
        }
        sleeper.get_up(!found);
    }
}

fn sleepers() -> [Arc<Sleeper>; 2] {
    std::array::from_fn(|_| Arc::new(Sleeper::new(Wake::new())))
}

/// Others hand frames over to a port's owner, who sleeps whenever there is nothing.
pub fn the_owner_lets_go_what_others_hand_over() {
    explore(2, || {
        let (port, [sleeper, _]) = (Port::new(), sleepers());
        let worker = {
            let (port, sleeper) = (Arc::clone(&port), Arc::clone(&sleeper));
            thread::spawn(move || owner(&port, &sleeper, 2, Port::is_due))
        };
        let other = {
            let (port, sleeper) = (Arc::clone(&port), Arc::clone(&sleeper));
            thread::spawn(move || port.hand_over(1, &sleeper))
        };
        port.hand_over(2, &sleeper);
        worker.join().expect("the owner");
        other.join().expect("another");
    });
}

/// A port gets another owner, who is told at once. The former owner puts a frame into the shaper
/// before he is told, and a third worker hands one over and wakes the former owner: the new one
/// lets both go.
pub fn the_new_owner_lets_go_what_the_former_one_has_left() {
    a_port_gets_another_owner(Port::is_due);
}

/// The same where each owner knows only what he has left in the shaper himself, as it once was:
/// what the former one has put there stays for good.
pub fn an_owner_who_knows_only_of_his_own() {
    a_port_gets_another_owner(|port| !port.ring.is_empty());
}

fn a_port_gets_another_owner(is_due: fn(&Port) -> bool) {
    explore(2, move || {
        let (port, [former, new]) = (Port::new(), sleepers());
        let owner = {
            let (port, new) = (Arc::clone(&port), Arc::clone(&new));
            thread::spawn(move || owner(&port, &new, 2, is_due))
        };
        let third = {
            let (port, former, new) = (Arc::clone(&port), Arc::clone(&former), Arc::clone(&new));
            thread::spawn(move || {
                port.hand_over(1, &former);
                new.nudge(); // it is told (`ShapedSender::hand_on`)
            })
        };
        port.admit(2, &former);
        new.nudge(); // it is told
        third.join().expect("a third");
        owner.join().expect("the owner");
    });
}

/// Shaping ends; the owner is told, and another only later, after it has handed one more over.
pub fn nothing_stays_behind_when_shaping_ends() {
    explore(3, || {
        let (port, [sleeper, _]) = (Port::new(), sleepers());
        port.with_core(|core| core.push(1));
        let other = {
            let (port, sleeper) = (Arc::clone(&port), Arc::clone(&sleeper));
            thread::spawn(move || {
                port.hand_over(2, &sleeper);
                loop {
                    match port.unshape(false) {
                        Some(count) => return count,
                        None => thread::yield_now(),
                    }
                }
            })
        };
        let mut left = loop {
            match port.unshape(true) {
                Some(count) => break count,
                None => thread::yield_now(),
            }
        };
        left += other.join().expect("another");
        assert_eq!(left, 2, "all leave");
    });
}
