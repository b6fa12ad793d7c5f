//! What packets want of control: rules that they ask for (`learn`), and word of connections that
//! have ended (`fin_timeout`), and what tunnels want of it: Ethernet addresses of next hops.
//!
//! Like packet-ins: each worker has a bounded ring, and the same descriptor wakes the control
//! thread. Answers go back through the worker's mailbox ([`crate::Datapath::answer`]).

use crate::clock::cycles;
use crate::packet_in::Teller;
use crate::port::BridgeId;
use crossbeam_queue::ArrayQueue;
use program::actions::learn::{Ended, Request};
use std::net::IpAddr;
use std::sync::Arc;

/// Requests that wait at most, for each worker.
pub const REQUESTS_MAX: usize = 1024;
/// Answers that wait at most: a worker asks for fewer rules at a time.
pub(crate) const ANSWERS: usize = 4 * program::exec::ASKED_MAX;

/// What a worker asks for.
#[derive(Debug)]
pub enum RequestKind {
    /// A rule.
    Rule(Request),
    /// A rule's timeouts are to be shortened.
    ConnectionEnded(Ended),
    /// The Ethernet address of a tunnel's next hop, which is to be asked for in this bridge.
    AskNeighbour {
        /// Whose.
        address: IpAddr,
        /// Who asks: an address of the bridge's local port.
        source: IpAddr,
    },
    /// A neighbour in this bridge, an underlay, has said its Ethernet address.
    NeighbourSeen {
        /// Whose.
        address: IpAddr,
        /// What it is.
        mac: [u8; 6],
        /// Whether it has been asked for.
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
    /// What for.
    pub kind: RequestKind,
}

/// One worker's ring.
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

    /// False when the ring is full.
    pub fn push(&self, request: WorkerRequest) -> bool {
        let done = self.ring.push(request).is_ok();
        // Also when it is full: control has something to do.
        self.teller.tell(cycles());
        done
    }

    pub fn pop(&self) -> Option<WorkerRequest> {
        self.ring.pop()
    }
}
