//! Tries every order of the steps of a handover, up to a bound: no packet is reordered or lost.
//!
//! The state is a flow's sender, the rings of the workers, what each worker is processing, and the
//! markers on their way back. From each state every possible step is taken; known states are not
//! entered again.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use steer::cores::CoreId;
use steer::handover::{BeginError, Handover, Limits};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Item {
    Packet(u8),
    /// A packet of another flow: it only occupies a slot.
    Other,
    Marker(u32),
}

/// A sender that the model can drive.
trait Sender: Clone + Eq + Hash {
    fn begin(&mut self, to: CoreId, put: impl FnOnce(CoreId, u32) -> bool) -> bool;
    fn packet(&mut self, packet: u8, put: impl FnMut(CoreId, u8) -> Result<(), u8>) -> bool;
    fn marker_done(&mut self, marker: u32, put: impl FnMut(CoreId, u8) -> Result<(), u8>);
    fn turn(&mut self, is_late: bool, put: impl FnMut(CoreId, u8) -> Result<(), u8>);
    fn parked(&self) -> usize;
}

impl Sender for Handover<u8> {
    fn begin(&mut self, to: CoreId, put: impl FnOnce(CoreId, u32) -> bool) -> bool {
        match Handover::begin(self, to, 0, put) {
            Ok(()) => true,
            Err(BeginError::Busy | BeginError::SameCore | BeginError::NoRoom) => false,
        }
    }
    fn packet(&mut self, packet: u8, put: impl FnMut(CoreId, u8) -> Result<(), u8>) -> bool {
        Handover::packet(self, packet, put).is_ok()
    }
    fn marker_done(&mut self, marker: u32, put: impl FnMut(CoreId, u8) -> Result<(), u8>) {
        Handover::marker_done(self, marker, put);
    }
    fn turn(&mut self, is_late: bool, put: impl FnMut(CoreId, u8) -> Result<(), u8>) {
        Handover::turn(self, if is_late { u64::MAX } else { 0 }, put);
    }
    fn parked(&self) -> usize {
        Handover::parked(self)
    }
}

/// A sender that does not wait for the old worker: it must fail.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Hasty(CoreId);

impl Sender for Hasty {
    fn begin(&mut self, to: CoreId, _: impl FnOnce(CoreId, u32) -> bool) -> bool {
        self.0 = to;
        true
    }
    fn packet(&mut self, packet: u8, mut put: impl FnMut(CoreId, u8) -> Result<(), u8>) -> bool {
        put(self.0, packet).is_ok()
    }
    fn marker_done(&mut self, _: u32, _: impl FnMut(CoreId, u8) -> Result<(), u8>) {}
    fn turn(&mut self, _: bool, _: impl FnMut(CoreId, u8) -> Result<(), u8>) {}
    fn parked(&self) -> usize {
        0
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State<S> {
    sender: S,
    rings: Vec<VecDeque<Item>>,
    in_hand: Vec<Option<Item>>,
    markers: Vec<u32>,
    next: u8,
    /// Packets that the sender took and that have not come out yet, in order.
    expected: VecDeque<u8>,
    moves_left: u8,
    others_left: u8,
}

const PACKETS: u8 = 5;
/// Packets that a ring holds, and its slots for markers.
const RING: usize = 2;
const MARKERS: usize = 1;

impl<S: Sender> State<S> {
    fn new(sender: S, workers: usize, moves: u8, others: u8) -> State<S> {
        State {
            sender,
            rings: vec![VecDeque::new(); workers],
            in_hand: vec![None; workers],
            markers: Vec::new(),
            next: 0,
            expected: VecDeque::new(),
            moves_left: moves,
            others_left: others,
        }
    }

    /// Returns every state that one step leads to, or what is wrong with a step.
    fn steps(&self) -> Result<Vec<State<S>>, String> {
        let mut steps = Vec::new();
        let step = |change: &mut dyn FnMut(&mut State<S>)| {
            let mut next = self.clone();
            change(&mut next);
            next
        };
        // A worker may take something out of a ring while the sender looks at it: then the first
        // attempt to put a packet fails, and a later one succeeds.
        let attempts_that_fail = if self.next < PACKETS { 0..2 } else { 0..0 };
        for fails in attempts_that_fail {
            let mut wrong = false;
            steps.push(step(&mut |s| {
                let (mut attempts, mut was_full) = (0, false);
                let rings = &mut s.rings;
                let taken = s.sender.packet(s.next, |core, packet| {
                    attempts += 1;
                    let failed = attempts <= fails;
                    let result = if failed {
                        Err(packet)
                    } else {
                        put(rings, core, packet)
                    };
                    was_full |= result.is_err();
                    result
                });
                // A packet is refused only by a full ring.
                wrong = !taken && !was_full;
                if taken {
                    s.expected.push_back(s.next);
                }
                s.next += 1;
            }));
            if wrong {
                return Err(format!("packet {} is dropped by the move", self.next));
            }
        }
        if self.moves_left > 0 {
            for core in 0..self.rings.len() {
                steps.push(step(&mut |s| {
                    let rings = &mut s.rings;
                    let put_marker = |core: CoreId, marker| {
                        let ring = &mut rings[core.index()];
                        let is_marker = |item: &&Item| matches!(item, Item::Marker(_));
                        let room = ring.iter().filter(is_marker).count() < MARKERS;
                        if room {
                            ring.push_back(Item::Marker(marker));
                        }
                        room
                    };
                    s.moves_left -= 1;
                    s.sender.begin(CoreId(core as u16), put_marker);
                }));
            }
        }
        for core in 0..self.rings.len() {
            if self.others_left > 0 && has_room(&self.rings[core]) {
                steps.push(step(&mut |s| {
                    s.rings[core].push_back(Item::Other);
                    s.others_left -= 1;
                }));
            }
            match self.in_hand[core] {
                None if !self.rings[core].is_empty() => steps.push(step(&mut |s| {
                    s.in_hand[core] = s.rings[core].pop_front();
                })),
                None => {}
                Some(item) => {
                    if let Item::Packet(packet) = item
                        && self.expected.front() != Some(&packet)
                    {
                        return Err(format!("packet {packet} before {:?}", self.expected));
                    }
                    steps.push(step(&mut |s| {
                        s.in_hand[core] = None;
                        match item {
                            Item::Packet(_) => drop(s.expected.pop_front()),
                            Item::Marker(marker) => s.markers.push(marker),
                            Item::Other => {}
                        }
                    }));
                }
            }
        }
        for at in 0..self.markers.len() {
            steps.push(step(&mut |s| {
                let marker = s.markers.remove(at);
                let rings = &mut s.rings;
                s.sender
                    .marker_done(marker, |core, packet| put(rings, core, packet));
            }));
        }
        for is_late in [false, true] {
            steps.push(step(&mut |s| {
                let rings = &mut s.rings;
                s.sender
                    .turn(is_late, |core, packet| put(rings, core, packet));
            }));
        }
        Ok(steps)
    }
}

fn has_room(ring: &VecDeque<Item>) -> bool {
    let is_packet = |item: &&Item| !matches!(item, Item::Marker(_));
    ring.iter().filter(is_packet).count() < RING
}

fn put(rings: &mut [VecDeque<Item>], core: CoreId, packet: u8) -> Result<(), u8> {
    let ring = &mut rings[core.index()];
    if !has_room(ring) {
        return Err(packet);
    }
    ring.push_back(Item::Packet(packet));
    Ok(())
}

/// Explores every reachable state; returns their number, or what goes wrong in one.
fn explore<S: Sender>(first: State<S>) -> Result<usize, String> {
    let mut met = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        let steps = state.steps()?;
        let is_over = steps.iter().all(|next| *next == state);
        if is_over && !(state.expected.is_empty() && state.sender.parked() == 0) {
            return Err(format!("{:?} never come out", state.expected));
        }
        for next in steps {
            if met.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(met.len())
}

fn handover(parked: usize) -> Handover<u8> {
    let wait_ns = u64::MAX;
    Handover::new(CoreId(0), Limits { parked, wait_ns })
}

#[test]
fn no_order_of_steps_reorders_or_loses_packets() {
    let mut states = 0;
    for (parked, workers, moves, others) in [(1, 2, 2, 1), (2, 2, 2, 0), (2, 3, 2, 0)] {
        states += explore(State::new(handover(parked), workers, moves, others)).unwrap();
    }
    // The bound covers enough states to be meaningful.
    assert!(states > 30_000, "{states} states");
}

#[test]
fn without_a_marker_packets_are_reordered() {
    let wrong = explore(State::new(Hasty(CoreId(0)), 2, 1, 0)).unwrap_err();
    assert!(wrong.contains("before"), "{wrong}");
}
