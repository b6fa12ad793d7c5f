//! Waiting packets: a slab of handles, linked into flows.
//!
//! A queue distinguishes up to 64 flows by a hash. They take turns by deficit round robin, so a
//! flow that floods delays its own packets and not its neighbours'. When a queue is full, the flow
//! with the most bytes loses its oldest packet, unless the new packet belongs to that flow.

use super::prefetch::{fetch, with_capacity};

pub(crate) const NONE: u32 = u32::MAX;

/// Bytes that a flow may send in a turn.
pub(crate) const FLOW_QUANTUM: i32 = 1514;

/// A waiting packet; half a cache line if a handle is a pointer.
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

/// A packet that was removed.
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
    /// Bytes counted for each packet in addition to its own.
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

    /// Returns the bytes that a packet counts.
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

/// Returns the flow, of 2^`bits`, that a hash belongs to.
#[inline]
pub(crate) fn bucket(flow: u32, bits: u32) -> usize {
    (u64::from(flow.wrapping_mul(0x9e37_79b1)) << bits >> 32) as usize
}

/// One flow of a queue; used if several have packets.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    head: u32,
    tail: u32,
    bytes: u32,
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

/// A queue's waiting packets. Its flows are stored elsewhere, except a single active one: that is
/// in here, so that packets of most queues touch nothing else.
#[derive(Clone, Copy, Default)]
pub(crate) struct Backlog {
    pub packets: u32,
    pub bytes: u32,
    /// What the queue may still send in its turn as a borrower.
    pub deficit: i32,
    /// The oldest packet of the single active flow; with several, the low half of the bit set of
    /// active flows.
    head: u32,
    /// The newest packet of the single active flow; with several, the high half of the bit set.
    tail: u32,
    /// What the single active flow may still send in its turn.
    flow_deficit: i32,
    /// The flow whose turn it is; the single one.
    turn: u8,
    /// Several flows have packets, or had when the queue was last used.
    several: bool,
    /// Rings and alarm of the queue; stored here because there is room.
    pub placed: u8,
}

impl Backlog {
    /// Makes an empty backlog with this deficit.
    pub fn new(deficit: i32) -> Backlog {
        Backlog {
            deficit,
            ..Backlog::default()
        }
    }

    /// Returns the flows that have packets, as a bit set.
    #[inline]
    pub fn active(&self) -> u64 {
        if self.several {
            u64::from(self.head) | u64::from(self.tail) << 32
        } else {
            u64::from(self.packets != 0) << self.turn
        }
    }

    #[inline]
    fn set_active(&mut self, active: u64) {
        (self.head, self.tail) = (active as u32, (active >> 32) as u32);
    }

    /// Returns the newest packet, if there is one and it is known without looking at flows.
    #[inline(always)]
    pub fn known_tail(&self) -> Option<u32> {
        (!self.several && self.packets != 0).then_some(self.tail)
    }

    /// Returns the packet that is likely to leave next, if one waits.
    #[inline(always)]
    pub fn likely_head(&self, flows: &[Flow]) -> u32 {
        if !self.several {
            return self.head;
        }
        let active = self.active();
        let from = active >> self.turn << self.turn;
        let likely = if from == 0 { active } else { from };
        let flow = flows.get(likely.trailing_zeros() as usize);
        flow.map_or(NONE, |flow| flow.head)
    }

    /// Returns the packet behind which one of this flow will be queued, if flows must be looked at
    /// to tell.
    #[inline]
    pub fn tail_of(&self, flows: &[Flow], bucket: usize) -> u32 {
        if self.active() >> bucket & 1 == 1 {
            flows[bucket].tail
        } else {
            NONE
        }
    }

    /// Returns the waiting bytes of a flow.
    #[inline]
    pub fn bytes_of(&self, flows: &[Flow], bucket: usize) -> u32 {
        if self.active() >> bucket & 1 == 0 {
            0
        } else if self.several {
            flows[bucket].bytes
        } else {
            self.bytes
        }
    }

    #[inline]
    pub fn push<H>(&mut self, flows: &mut [Flow], nodes: &mut Nodes<H>, taken: Taken<H>) {
        let bucket = bucket(taken.flow, flows.len().trailing_zeros());
        let cost = nodes.cost(taken.len);
        let at = nodes.put(taken);
        if self.packets == 0 {
            self.turn = bucket as u8;
            self.several = false;
            (self.head, self.tail) = (at, at);
            self.flow_deficit = FLOW_QUANTUM;
        } else if !self.several && bucket == usize::from(self.turn) {
            nodes.nodes[self.tail as usize].next = at;
            self.tail = at;
        } else {
            self.push_to_one_of_several(flows, nodes, bucket, at, cost);
        }
        self.packets += 1;
        self.bytes += cost;
    }

    fn push_to_one_of_several<H>(
        &mut self,
        flows: &mut [Flow],
        nodes: &mut Nodes<H>,
        bucket: usize,
        at: u32,
        cost: u32,
    ) {
        if !self.several {
            flows[usize::from(self.turn)] = Flow {
                head: self.head,
                tail: self.tail,
                bytes: self.bytes,
                deficit: self.flow_deficit,
            };
            self.several = true;
            self.set_active(1 << self.turn);
        }
        let active = self.active();
        let flow = &mut flows[bucket];
        if active >> bucket & 1 == 0 {
            self.set_active(active | 1 << bucket);
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
    }

    /// Returns the flow that sends next, and its oldest packet.
    #[inline]
    pub fn first(&mut self, flows: &mut [Flow]) -> Option<(usize, u32)> {
        if self.packets == 0 {
            return None;
        }
        if self.several {
            let active = self.active();
            if active & (active - 1) != 0 {
                return Some(self.first_of_several(flows, active));
            }
            // Only one flow is left.
            self.turn = active.trailing_zeros() as u8;
            self.several = false;
            let flow = &flows[usize::from(self.turn)];
            (self.head, self.tail, self.flow_deficit) = (flow.head, flow.tail, flow.deficit);
        }
        if self.flow_deficit <= 0 {
            self.flow_deficit = FLOW_QUANTUM;
        }
        Some((usize::from(self.turn), self.head))
    }

    fn first_of_several(&mut self, flows: &mut [Flow], active: u64) -> (usize, u32) {
        loop {
            let bucket = usize::from(self.turn);
            if active >> bucket & 1 == 1 {
                let flow = &mut flows[bucket];
                if flow.deficit > 0 {
                    return (bucket, flow.head);
                }
                flow.deficit += FLOW_QUANTUM;
            }
            let later = active & (!0_u64).checked_shl(bucket as u32 + 1).unwrap_or(0);
            let from = if later == 0 { active } else { later };
            self.turn = from.trailing_zeros() as u8;
        }
    }

    /// Removes the oldest packet of a flow that has one.
    #[inline]
    pub fn pop<H>(
        &mut self,
        flows: &mut [Flow],
        nodes: &mut Nodes<H>,
        bucket: usize,
        sent: bool,
    ) -> Taken<H> {
        let head = if self.several {
            flows[bucket].head
        } else {
            self.head
        };
        let (taken, next) = nodes.take(head);
        let cost = nodes.cost(taken.len);
        let spent = if sent { cost as i32 } else { 0 };
        if self.several {
            let flow = &mut flows[bucket];
            flow.head = next;
            flow.bytes -= cost;
            flow.deficit -= spent;
            if next == NONE {
                self.set_active(self.active() & !(1 << bucket));
            }
        } else {
            self.head = next;
            self.flow_deficit -= spent;
        }
        self.packets -= 1;
        self.bytes -= cost;
        taken
    }

    /// Returns the flow with the most waiting bytes; of equal ones, the first.
    #[cold]
    pub fn fattest(&self, flows: &[Flow]) -> usize {
        let mut left = self.active();
        let mut fattest = left.trailing_zeros() as usize & 63;
        while left != 0 {
            let bucket = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.bytes_of(flows, bucket) > self.bytes_of(flows, fattest) {
                fattest = bucket;
            }
        }
        fattest
    }

    /// Returns the bytes that leave before a packet that arrives for this flow now: as flows take
    /// turns, what each sends until this flow has sent its own.
    #[inline]
    pub fn ahead_of(&self, flows: &[Flow], bucket: usize) -> u32 {
        if self.packets == 0 || !self.several && bucket == usize::from(self.turn) {
            return self.bytes;
        }
        let active = self.active();
        let newcomer = active >> bucket & 1 == 0;
        let others = u64::from(active.count_ones()) - u64::from(!newcomer);
        if others == 0 {
            return self.bytes;
        }
        let own = self.bytes_of(flows, bucket);
        let each = u64::from(own) + FLOW_QUANTUM as u64;
        (u64::from(own) + others * each).min(self.bytes.into()) as u32
    }
}
