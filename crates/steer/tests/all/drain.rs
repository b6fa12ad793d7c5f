//! Tries every order of the steps of moves without parking, up to a bound: no packet is reordered.
//!
//! Two receiving processors send to two cores, in batches to each core; the flow arrives at the
//! first processor. A core takes up to two packets at once; its finished counts advance when a
//! batch begins.

use std::collections::{HashSet, VecDeque};
use steer::cores::CoreId;
use steer::drain::{Lane, Ticket};

/// A packet of the flow by its number, or one of another flow, with its receiving processor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Packet {
    number: Option<u8>,
    receiver: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Core {
    /// Sent, and not yet in the queue: a receiver passes several packets on at once.
    held_back: [VecDeque<Packet>; 2],
    queue: VecDeque<Packet>,
    batch: VecDeque<Packet>,
    /// For each receiver: packets of batches that are over, or have begun.
    done: [u32; 2],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    cores: [Core; 2],
    /// Indexed by receiver and core.
    lanes: [[Lane; 2]; 2],
    ticket: Ticket,
    next: u8,
    next_out: u8,
    others_left: [u8; 2],
}

const PACKETS: u8 = 4;

/// What is counted as finished when a batch begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The batches before it, for each lane.
    BatchesBefore,
    /// Wrong: the batch that begins as well.
    BatchThatBegins,
    /// Wrong: one count for everything that is sent to a core, by any sender.
    OneLanePerCore,
}

impl Rule {
    fn lane(self, receiver: usize) -> usize {
        if self == Rule::OneLanePerCore {
            0
        } else {
            receiver
        }
    }
}

impl State {
    fn send(&mut self, receiver: usize, core: usize, number: Option<u8>, rule: Rule) {
        let lane = rule.lane(receiver);
        let ticket = self.lanes[lane][core].send(CoreId(core as u16), 0);
        if number.is_some() {
            self.ticket = ticket;
        }
        self.cores[core].held_back[receiver].push_back(Packet { number, receiver });
    }

    fn may_move(&self) -> bool {
        // Time stands still: only counts decide.
        self.lanes[0][self.ticket.core.index()].may_move(&self.ticket, u64::MAX, 0)
    }

    fn steps(&self, rule: Rule) -> Result<Vec<State>, String> {
        let mut steps = Vec::new();
        if self.next < PACKETS {
            for core in 0..2 {
                if self.next == 0 || self.ticket.core.index() == core || self.may_move() {
                    let mut s = self.clone();
                    s.send(0, core, Some(self.next), rule);
                    s.next += 1;
                    steps.push(s);
                }
            }
        }
        for core in 0..2 {
            for receiver in 0..2 {
                if self.others_left[receiver] > 0 {
                    let mut s = self.clone();
                    s.others_left[receiver] -= 1;
                    s.send(receiver, core, None, rule);
                    steps.push(s);
                }
                if !self.cores[core].held_back[receiver].is_empty() {
                    let mut s = self.clone();
                    let Core {
                        queue, held_back, ..
                    } = &mut s.cores[core];
                    queue.extend(held_back[receiver].drain(..));
                    steps.push(s);
                }
            }
            if let Some(packet) = self.cores[core].batch.front() {
                if packet.number.is_some_and(|number| number != self.next_out) {
                    return Err(format!("{packet:?} before {}", self.next_out));
                }
                let mut s = self.clone();
                s.next_out += u8::from(packet.number.is_some());
                s.cores[core].batch.pop_front();
                steps.push(s);
            } else {
                for size in 1..=self.cores[core].queue.len().min(2) {
                    let mut s = self.clone();
                    s.begin_batch(core, size, rule);
                    steps.push(s);
                }
            }
        }
        Ok(steps)
    }

    fn begin_batch(&mut self, at: usize, size: usize, rule: Rule) {
        let core = &mut self.cores[at];
        let before = core.done;
        core.batch = core.queue.drain(..size).collect();
        for packet in &core.batch {
            core.done[rule.lane(packet.receiver)] += 1;
        }
        let wrong = rule == Rule::BatchThatBegins;
        let finished = if wrong { core.done } else { before };
        for (lanes, finished) in self.lanes.iter_mut().zip(finished) {
            lanes[at].finished = finished;
        }
    }
}

fn explore(rule: Rule) -> Result<usize, String> {
    let first = State {
        cores: Default::default(),
        lanes: Default::default(),
        ticket: Ticket {
            core: CoreId(0),
            number: 0,
            sent_ns: 0,
        },
        next: 0,
        next_out: 0,
        others_left: [1, 2],
    };
    let mut met = HashSet::from([first.clone()]);
    let mut open = vec![first];
    let mut moved = false;
    while let Some(state) = open.pop() {
        moved |= state.next > 1 && state.may_move();
        for next in state.steps(rule)? {
            if met.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert!(moved, "the flow never moves");
    Ok(met.len())
}

#[test]
fn no_order_of_steps_reorders_packets() {
    let states = explore(Rule::BatchesBefore).unwrap();
    assert!(states > 10_000, "{states} states");
}

#[test]
fn counting_a_batch_that_begins_reorders_packets() {
    assert!(explore(Rule::BatchThatBegins).is_err());
}

#[test]
fn one_count_for_several_receivers_reorders_packets() {
    assert!(explore(Rule::OneLanePerCore).is_err());
}
