//! Cores with bounded queues, the virtual machines on them, and the future events.

use crate::cores::{CoreId, VmId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Slots of a core's queue reserved for markers.
const MARKER_SLOTS: usize = 64;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// Warm-up ends: from here on, everything is counted.
    WarmedUp,
    /// A change of the scenario, by its index.
    Change(usize),
    /// A datagram of a flow arrives.
    Arrival(usize),
    /// A core has finished its current work.
    Done(CoreId),
    /// Background flows advance.
    Slice,
    /// Loads are measured.
    Sample,
    /// A random flow is moved, for [`Scenario::forced_moves`](super::Scenario::forced_moves).
    ForcedMove,
}

/// A datagram or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Fragment {
    pub(super) flow: usize,
    pub(super) datagram: u64,
    pub(super) sent_ns: u64,
}

/// An element of a core's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Fragment(Fragment),
    /// A marker of a flow's handover.
    Marker {
        flow: usize,
        number: u32,
    },
}

/// What a core is working on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Work {
    /// A packet, and whether it completes its datagram.
    Packet {
        item: Item,
        completes: bool,
        cost_ns: f64,
    },
    /// A datagram in a virtual machine.
    Guest { flow: usize, cost_ns: f64 },
}

/// Time that a core has spent, ns.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Spent {
    /// On packets of exact flows.
    pub(super) packets: f64,
    /// Of that, on flows without priority.
    pub(super) yielding: f64,
    /// On background flows.
    pub(super) background: f64,
    /// In virtual machines, to receive.
    pub(super) guests: f64,
    /// In virtual machines, to compute. Updated at samples.
    pub(super) compute: f64,
}

impl Spent {
    /// Returns the sum, ns.
    pub(super) fn all(&self) -> f64 {
        self.packets + self.background + self.guests + self.compute
    }

    pub(super) fn since(&self, before: &Spent) -> Spent {
        Spent {
            packets: self.packets - before.packets,
            yielding: self.yielding - before.yielding,
            background: self.background - before.background,
            guests: self.guests - before.guests,
            compute: self.compute - before.compute,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) queue: VecDeque<Item>,
    pub(super) work: Option<Work>,
    pub(super) spent: Spent,
    /// Fragments of exact flows processed.
    pub(super) packets: u64,
    /// Cost of what exact flows have offered since the last slice, ns.
    pub(super) offered_ns: f64,
    /// What exact flows offer, as a share of the core, smoothed.
    pub(super) exact: f64,
    /// Share of the core that background flows take.
    pub(super) background: f64,
    /// Time that packets owe to waiting virtual machines, ns.
    owed_ns: f64,
    /// Index of the core's virtual machine that is served next.
    turn: usize,
}

/// A virtual machine.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    pub(super) id: VmId,
    pub(super) core: Option<CoreId>,
    pub(super) compute: f64,
    /// Waiting datagrams: flow and cost in ns.
    pub(super) queue: VecDeque<(usize, f64)>,
}

/// All cores and virtual machines.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) servers: Vec<Server>,
    pub(super) guests: Vec<Guest>,
    /// Share of a core that virtual machines get even if packets always wait.
    pub(super) task_share: f64,
    pub(super) queue_limit: usize,
    pub(super) now_ns: u64,
    pub(super) events: u64,
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
}

impl Machine {
    pub(super) fn new(cores: u16, task_share: f64, queue_limit: usize) -> Machine {
        Machine {
            servers: vec![Server::default(); usize::from(cores)],
            guests: Vec::new(),
            task_share,
            queue_limit,
            now_ns: 0,
            events: 0,
            heap: BinaryHeap::new(),
            scheduled: 0,
        }
    }

    /// Adds a future event. Events of the same time happen in the order in which they were added.
    pub(super) fn at(&mut self, time_ns: u64, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((time_ns, self.scheduled, event)));
    }

    /// Takes the next event before `end_ns`, and sets the clock to its time.
    pub(super) fn next(&mut self, end_ns: u64) -> Option<Event> {
        let Reverse((time_ns, _, event)) = self.heap.pop()?;
        if time_ns >= end_ns {
            return None;
        }
        self.now_ns = time_ns;
        self.events += 1;
        Some(event)
    }

    /// Puts an item into a core's queue; returns it if the queue is full. Markers have reserved
    /// slots.
    pub(super) fn put(&mut self, core: CoreId, item: Item) -> Result<(), Item> {
        let server = &mut self.servers[core.index()];
        let limit = match item {
            Item::Fragment(_) => self.queue_limit,
            Item::Marker { .. } => self.queue_limit + MARKER_SLOTS,
        };
        if server.queue.len() >= limit {
            return Err(item);
        }
        server.queue.push_back(item);
        Ok(())
    }

    /// Returns what an idle core does next: a packet, or, if none waits or virtual machines are
    /// owed time, a datagram of a virtual machine.
    pub(super) fn take(&mut self, core: CoreId) -> Option<Next> {
        let server = &mut self.servers[core.index()];
        if server.work.is_some() {
            return None;
        }
        let here = |guest: &&mut Guest| guest.core == Some(core) && !guest.queue.is_empty();
        let waiting = self.guests.iter_mut().filter(here);
        let mut waiting: Vec<&mut Guest> = waiting.collect();
        if waiting.is_empty() {
            server.owed_ns = 0.0;
            return server.queue.pop_front().map(Next::Packet);
        }
        server.turn = (server.turn + 1) % waiting.len();
        let guest = &mut waiting[server.turn].queue;
        let cost_ns = guest.front().map_or(0.0, |(_, cost_ns)| *cost_ns);
        if !server.queue.is_empty() && server.owed_ns < cost_ns {
            return server.queue.pop_front().map(Next::Packet);
        }
        server.owed_ns = (server.owed_ns - cost_ns).max(0.0);
        let (flow, cost_ns) = guest.pop_front()?;
        Some(Next::Guest { flow, cost_ns })
    }

    /// Starts work on a core. Background flows lengthen it.
    pub(super) fn begin(&mut self, core: CoreId, work: Work) {
        let server = &mut self.servers[core.index()];
        let (Work::Packet { cost_ns, .. } | Work::Guest { cost_ns, .. }) = work;
        let cost_ns = if cost_ns.is_finite() { cost_ns } else { 0.0 };
        if matches!(work, Work::Packet { .. }) {
            server.owed_ns += cost_ns * self.task_share / (1.0 - self.task_share);
        }
        server.work = Some(work);
        // A thousandth of the core is left even if the background exceeds its capacity by far.
        let takes_ns = cost_ns / (1.0 - server.background).max(0.001);
        self.at(self.now_ns + takes_ns.round() as u64, Event::Done(core));
    }
}

/// What a core takes next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Next {
    Packet(Item),
    Guest { flow: usize, cost_ns: f64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: CoreId = CoreId(0);

    #[test]
    fn packets_go_first_and_virtual_machines_get_their_share() {
        let mut machine = Machine::new(1, 0.25, 1000);
        machine.guests.push(Guest {
            id: VmId(1),
            core: Some(CORE),
            compute: 0.0,
            queue: VecDeque::new(),
        });
        for flow in 0..100 {
            machine.guests[0].queue.push_back((flow, 10.0));
            machine.put(CORE, Item::Marker { flow, number: 0 }).unwrap();
        }
        let (mut packets, mut guests) = (0, 0);
        for _ in 0..80 {
            match machine.take(CORE).unwrap() {
                Next::Packet(item) => {
                    packets += 1;
                    let cost_ns = 10.0;
                    let completes = false;
                    machine.begin(
                        CORE,
                        Work::Packet {
                            item,
                            completes,
                            cost_ns,
                        },
                    );
                }
                Next::Guest { flow, cost_ns } => {
                    guests += 1;
                    machine.begin(CORE, Work::Guest { flow, cost_ns });
                }
            }
            assert_eq!(machine.next(u64::MAX), Some(Event::Done(CORE)));
            machine.servers[0].work = None;
        }
        assert_eq!((packets, guests), (60, 20));
    }

    #[test]
    fn a_full_queue_returns_what_does_not_fit() {
        let mut machine = Machine::new(1, 0.0, 1);
        let item = Item::Fragment(Fragment {
            flow: 0,
            datagram: 0,
            sent_ns: 0,
        });
        assert_eq!(machine.put(CORE, item), Ok(()));
        assert_eq!(machine.put(CORE, item), Err(item));
        let marker = Item::Marker { flow: 0, number: 0 };
        assert_eq!(machine.put(CORE, marker), Ok(()));
    }
}
