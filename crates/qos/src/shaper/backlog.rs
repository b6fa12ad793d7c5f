//! Packets that wait: a slab of handles, threaded into flows.
//!
//! A queue tells up to 64 flows apart by a hash. Its flows take turns by deficit round robin, so that a flow that floods makes its own packets wait, and not its neighbours'.
//! When a queue is full, the flow that has most in it loses its oldest packet, if the new one is not that flow's itself.

use super::prefetch::{fetch, with_capacity};

pub(crate) const NONE: u32 = u32::MAX;

/// Bytes that a flow may send in a turn.
pub(crate) const FLOW_QUANTUM: i32 = 1514;

/// A packet, half a cache line where a handle is a pointer.
#[repr(align(32))]
pub(crate) struct Node<H> {
    handle: Option<H>,
    /// When it came.
    pub arrival_ns: u64,
    len: u32,
    /// Bytes that were to leave before it.
    ahead: u32,
    /// Hash of its flow.
    flow: u32,
    next: u32,
}

/// A packet taken out.
pub(crate) struct Taken<H> {
    pub handle: H,
    pub arrival_ns: u64,
    pub len: u32,
    pub ahead: u32,
    pub flow: u32,
}

/// All packets of a port.
pub(crate) struct Nodes<H> {
    nodes: Vec<Node<H>>,
    free: u32,
    /// Bytes to count for each beside its own.
    overhead: i32,
}

impl<H> Nodes<H> {
    pub fn new(limit: u32, overhead: i32) -> Nodes<H> {
        Nodes {
            nodes: with_capacity(limit as usize),
            free: NONE,
            overhead,
        }
    }

    /// Bytes that a packet counts.
    #[inline]
    pub fn cost(&self, len: u32) -> u32 {
        len.saturating_add_signed(self.overhead).max(1)
    }

    #[inline]
    fn put(&mut self, taken: Taken<H>) -> u32 {
        let node = Node {
            handle: Some(taken.handle),
            arrival_ns: taken.arrival_ns,
            len: taken.len,
            ahead: taken.ahead,
            flow: taken.flow,
            next: NONE,
        };
        if self.free == NONE {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        let at = self.free;
        let place = &mut self.nodes[at as usize];
        self.free = std::mem::replace(place, node).next;
        at
    }

    #[inline]
    fn take(&mut self, at: u32) -> (Taken<H>, u32) {
        let node = &mut self.nodes[at as usize];
        let next = std::mem::replace(&mut node.next, self.free);
        self.free = at;
        let handle = node.handle.take().expect("a node in a flow has a handle");
        let taken = Taken {
            handle,
            arrival_ns: node.arrival_ns,
            len: node.len,
            ahead: node.ahead,
            flow: node.flow,
        };
        (taken, next)
    }

    #[inline]
    pub fn fetch(&self, at: u32) {
        if let Some(node) = self.nodes.get(at as usize) {
            fetch(node);
        }
    }

    #[inline]
    pub fn get(&self, at: u32) -> &Node<H> {
        &self.nodes[at as usize]
    }
}

/// The flow, of 2^`bits`, that a hash means.
#[inline]
pub(crate) fn bucket(flow: u32, bits: u32) -> usize {
    (u64::from(flow.wrapping_mul(0x9e37_79b1)) << bits >> 32) as usize
}

/// One flow of a queue.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    pub head: u32,
    pub tail: u32,
    pub bytes: u32,
    deficit: i32,
}

impl Flow {
    pub const EMPTY: Flow = Flow {
        head: NONE,
        tail: NONE,
        bytes: 0,
        deficit: 0,
    };
}

/// What waits in a queue; its flows lie beside it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Backlog {
    /// Flows that have packets, a bit each.
    pub active: u64,
    pub packets: u32,
    pub bytes: u32,
    /// What the queue itself may send in its turn among those that borrow.
    pub deficit: i32,
    /// Whose turn it is.
    pub turn: u8,
}

impl Backlog {
    #[inline]
    pub fn flows_active(&self) -> u32 {
        self.active.count_ones()
    }

    /// A flow that is likely to send next; right where there is only one. At least one must have packets.
    #[inline]
    pub fn likely_turn(&self) -> usize {
        let from = self.active >> self.turn;
        if from == 0 {
            self.active.trailing_zeros() as usize
        } else {
            usize::from(self.turn) + from.trailing_zeros() as usize
        }
    }

    #[inline]
    pub fn push<H>(&mut self, flows: &mut [Flow], nodes: &mut Nodes<H>, taken: Taken<H>) {
        let bucket = bucket(taken.flow, flows.len().trailing_zeros());
        let cost = nodes.cost(taken.len);
        let at = nodes.put(taken);
        let flow = &mut flows[bucket];
        if self.active == 0 {
            self.turn = bucket as u8;
        }
        if self.active >> bucket & 1 == 0 {
            self.active |= 1 << bucket;
            *flow = Flow {
                head: at,
                tail: at,
                bytes: cost,
                deficit: FLOW_QUANTUM,
            };
        } else {
            nodes.nodes[flow.tail as usize].next = at;
            flow.tail = at;
            flow.bytes += cost;
        }
        self.packets += 1;
        self.bytes += cost;
    }

    /// The flow that sends next, and its oldest packet.
    #[inline]
    pub fn first(&mut self, flows: &mut [Flow]) -> Option<(usize, u32)> {
        if self.active == 0 {
            return None;
        }
        if self.active & (self.active - 1) == 0 {
            let bucket = self.active.trailing_zeros() as usize;
            self.turn = bucket as u8;
            let flow = &mut flows[bucket];
            if flow.deficit <= 0 {
                flow.deficit = FLOW_QUANTUM;
            }
            return Some((bucket, flow.head));
        }
        loop {
            let bucket = usize::from(self.turn);
            if self.active >> bucket & 1 == 1 {
                let flow = &mut flows[bucket];
                if flow.deficit > 0 {
                    return Some((bucket, flow.head));
                }
                flow.deficit += FLOW_QUANTUM;
            }
            let later = self.active & (!0_u64).checked_shl(bucket as u32 + 1).unwrap_or(0);
            let from = if later == 0 { self.active } else { later };
            self.turn = from.trailing_zeros() as u8;
        }
    }

    /// Takes the oldest packet of a flow out.
    #[inline]
    pub fn pop<H>(
        &mut self,
        flows: &mut [Flow],
        nodes: &mut Nodes<H>,
        bucket: usize,
        sent: bool,
    ) -> Taken<H> {
        let flow = &mut flows[bucket];
        let (taken, next) = nodes.take(flow.head);
        let cost = nodes.cost(taken.len);
        flow.head = next;
        flow.bytes -= cost;
        if sent {
            flow.deficit -= cost as i32;
        }
        if next == NONE {
            self.active &= !(1 << bucket);
        }
        self.packets -= 1;
        self.bytes -= cost;
        taken
    }

    /// The flow that has most waiting; of equals the first.
    #[cold]
    pub fn fattest(&self, flows: &[Flow]) -> usize {
        let mut left = self.active;
        let mut fattest = left.trailing_zeros() as usize & 63;
        while left != 0 {
            let bucket = left.trailing_zeros() as usize;
            left &= left - 1;
            if flows[bucket].bytes > flows[fattest].bytes {
                fattest = bucket;
            }
        }
        fattest
    }

    /// Bytes that leave before a packet that comes to this flow now: with flows that take turns, what each sends until this one has sent what it has.
    #[inline]
    pub fn ahead_of(&self, flows: &[Flow], bucket: usize) -> u32 {
        let newcomer = self.active >> bucket & 1 == 0;
        let others = u64::from(self.flows_active()) - u64::from(!newcomer);
        if others == 0 {
            return self.bytes;
        }
        let own = if newcomer { 0 } else { flows[bucket].bytes };
        let each = u64::from(own) + FLOW_QUANTUM as u64;
        (u64::from(own) + others * each).min(self.bytes.into()) as u32
    }
}
