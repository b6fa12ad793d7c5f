//! Workers' requests to control: rules that packets ask for (`learn`), ends of connections
//! (`fin_timeout`), and MAC addresses of tunnels' next hops.
//!
//! As for packet-ins, each worker has a bounded ring, and the same descriptor wakes the control
//! thread. Answers go back through the worker's mailbox ([`crate::Datapath::answer`]).

use crate::clock::cycles;
use crate::packet_in::Teller;
use crate::port::BridgeId;
use crossbeam_queue::ArrayQueue;
use program::actions::learn::{Ended, Request};
use std::net::IpAddr;
use std::sync::Arc;

/// Most waiting requests of each worker.
pub const REQUESTS_MAX: usize = 1024;
/// Most waiting answers: more than the rules that a worker asks for at a time.
pub(crate) const ANSWERS: usize = 4 * program::exec::ASKED_MAX;

/// What a worker requests.
#[derive(Debug)]
pub enum RequestKind {
    /// A rule.
    Rule(Request),
    /// To shorten a rule's timeouts.
    ConnectionEnded(Ended),
    /// To ask for the MAC address of a tunnel's next hop, in this bridge.
    AskNeighbour {
        /// The next hop's address.
        address: IpAddr,
        /// Source of the ARP request or neighbour solicitation: an address of the bridge's local
        /// port.
        source: IpAddr,
    },
    /// A neighbour in this bridge, an underlay, has announced its MAC address.
    NeighbourSeen {
        /// The neighbour's address.
        address: IpAddr,
        /// The MAC address.
        mac: [u8; 6],
        /// Whether it is the answer to a request.
        asked: bool,
    },
}

/// A request.
#[derive(Debug)]
pub struct WorkerRequest {
    /// The bridge whose rules are meant.
    pub bridge: BridgeId,
    /// The worker that asks, for [`crate::Datapath::answer`].
    pub worker: usize,
    /// The request.
    pub kind: RequestKind,
}

/// One worker's ring of requests.
pub(crate) struct RequestRing {
    ring: ArrayQueue<WorkerRequest>,
    teller: Arc<Teller>,
}

impl RequestRing {
    pub fn new(teller: Arc<Teller>) -> RequestRing {
        RequestRing {
            ring: ArrayQueue::new(REQUESTS_MAX),
            teller,
        }
    }

    /// Queues a request; returns false when the ring is full.
    pub fn push(&self, request: WorkerRequest) -> bool {
        let done = self.ring.push(request).is_ok();
        // Wake control even when the ring is full, because it has work then.
        self.teller.request(cycles());
        done
    }

    pub fn pop(&self) -> Option<WorkerRequest> {
        self.ring.pop()
    }
}
