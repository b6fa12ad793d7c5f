//! What packets want of control: rules that they ask for (`learn`), and word of connections that
//! have ended (`fin_timeout`).
//!
//! Like packet-ins: each worker has a bounded ring, and the same descriptor wakes the control
//! thread. Answers go back through the worker's mailbox ([`crate::Datapath::answer`]).

use crate::clock::cycles;
use crate::packet_in::Teller;
use crate::port::BridgeId;
use crossbeam_queue::ArrayQueue;
use program::actions::learn::{Ended, Request};
use std::sync::Arc;

/// Wishes that wait at most, for each worker.
pub const WISHES: usize = 1024;
/// Answers that wait at most: a worker asks for fewer rules at a time.
pub(crate) const ANSWERS: usize = 4 * program::exec::ASKED_MAX;

/// What is wanted.
#[derive(Debug)]
pub enum Wanted {
    /// A rule.
    Rule(Request),
    /// A rule's timeouts are to be shortened.
    Ended(Ended),
}

/// A wish.
#[derive(Debug)]
pub struct Wish {
    /// The bridge whose rules are meant.
    pub bridge: BridgeId,
    /// The worker that asks, for [`crate::Datapath::answer`].
    pub worker: usize,
    /// What for.
    pub wanted: Wanted,
}

/// One worker's ring.
pub(crate) struct WishRing {
    ring: ArrayQueue<Wish>,
    teller: Arc<Teller>,
}

impl WishRing {
    pub fn new(teller: Arc<Teller>) -> WishRing {
        WishRing {
            ring: ArrayQueue::new(WISHES),
            teller,
        }
    }

    /// False when the ring is full.
    pub fn push(&self, wish: Wish) -> bool {
        let done = self.ring.push(wish).is_ok();
        // Also when it is full: control has something to do.
        self.teller.tell(cycles());
        done
    }

    pub fn pop(&self) -> Option<Wish> {
        self.ring.pop()
    }
}
