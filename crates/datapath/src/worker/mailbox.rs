//! Messages between control and a worker: commands and packet-outs one way, queues back the other.

use super::RxPort;
use super::sleeper::Sleeper;
use crate::clock::Clock;
use crate::control::Allocate;
use crate::counters::{Cells, PortCounters, WorkerCounters};
use crate::learn_requests::{ANSWERS, RequestRing};
use crate::packet_in::PacketInRing;
use crate::port::PortId;
use crate::shape::ShapedSender;
use crate::snapshot::Published;
use crate::steering::{Buckets, Inbox, Lane};
use crate::tunnel::Asked;
use crate::wake::Wake;
use conntrack::Tracker;
use crossbeam_queue::ArrayQueue;
use packet::io::TxQueue;
use packet::{FlowKey, Frame};
use program::Program;
use program::actions::learn::Answer;
use program::actions::{OpList, PortNo};
use program::epoch::{Epoch, Pinned};
use program::exec::Frozen;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// A command from control.
pub(crate) enum Command<F: Frame> {
    /// Serve this queue.
    AddRx(Box<RxPort<F>>),
    /// Send by this queue.
    SetTx {
        slot: u32,
        tx: Box<dyn TxQueue<F>>,
        counters: Arc<PortCounters>,
    },
    /// Send to this port by its shaper, or not any more.
    Shape {
        slot: u32,
        sender: Option<Box<ShapedSender<F>>>,
    },
    /// Give all queues of a port back.
    Remove { slot: u32, ticket: u64 },
    /// Give one receive queue back.
    TakeRx {
        id: PortId,
        index: usize,
        ticket: u64,
    },
    /// Give frames to another worker by this ring where buckets require it.
    AddLane(Box<Lane<F>>),
    /// Process what another worker leaves in this ring.
    AddInbox(Box<Inbox<F>>),
    /// From now on give no frames to other workers, and take none.
    Part,
    /// Call this between two turns; for tests of what a worker that panics or stalls does to
    /// others.
    Run(Box<dyn FnOnce() + Send>),
    /// Give everything back and end.
    Stop { ticket: u64 },
}

/// Queues on their way back to control.
pub(crate) struct Returned<F: Frame> {
    pub ticket: u64,
    pub rx: Vec<RxPort<F>>,
    /// Kept until control drops them: a device's queue must be closed on the thread that opened it.
    #[allow(dead_code)]
    pub tx: Vec<Box<dyn TxQueue<F>>>,
}

/// Where workers put them.
pub(crate) struct Returns<F: Frame> {
    items: Mutex<Vec<Returned<F>>>,
    more: Condvar,
}

impl<F: Frame> Returns<F> {
    pub fn new() -> Returns<F> {
        Returns {
            items: Mutex::new(Vec::new()),
            more: Condvar::new(),
        }
    }

    pub(super) fn push(&self, returned: Returned<F>) {
        self.items
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push(returned);
        self.more.notify_all();
    }

    /// Takes all there is, after waiting until `deadline` for something.
    pub fn take(&self, deadline: Instant) -> Vec<Returned<F>> {
        let mut items = self
            .items
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        while items.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            items = match self.more.wait_timeout(items, left) {
                Ok((items, _)) => items,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        std::mem::take(&mut *items)
    }
}

/// A packet to be sent by its own list of steps.
pub(crate) struct PacketOut {
    pub bridge: crate::port::BridgeId,
    pub in_port: PortNo,
    /// Its initial metadata, if that is more than `in_port`.
    pub metadata: Option<Box<FlowKey>>,
    pub data: Vec<u8>,
    pub ops: Arc<OpList>,
    /// Instead of `ops`: the rest of a frozen walk, and the packet's metadata.
    pub rest: Option<Box<(Frozen, FlowKey)>>,
    /// By which rules, if not by those at execution.
    pub moment: Option<Moment>,
}

/// The rules that a packet-out meets, as of its place in a bundle.
#[derive(Clone)]
pub struct Moment {
    /// Keeps the epoch.
    pub pinned: Arc<Pinned>,
    /// The pinned epoch, or one behind it.
    pub epoch: Epoch,
    /// Whether the rules that the packet asks for have been made already.
    pub taught: bool,
}

/// State shared by all workers and control.
pub(crate) struct Shared<F: Frame> {
    pub program: Arc<Program>,
    pub published: Published,
    pub cells: Cells,
    pub clock: Arc<Clock>,
    pub returns: Returns<F>,
    /// Makes frames for packet-outs.
    pub allocate: Allocate<F>,
    pub packet_outs_done: AtomicU64,
    /// Next hops of tunnels that have been asked for.
    pub asked: Asked,
    /// Packets that monitors want sent.
    pub waiting_probes: crate::monitor::Waiting<F>,
    /// Connections, of all bridges.
    pub tracker: Arc<Tracker>,
    /// Fragments that wait at `ct`, of all bridges.
    pub fragments: crate::fragments::Table<F>,
    /// Whether workers account what their cycles go to.
    pub stages: stages::Switch,
}

/// State shared by one worker and control.
pub(crate) struct Mailbox<F: Frame> {
    pub name: String,
    pub commands: ArrayQueue<Command<F>>,
    pub packet_outs: ArrayQueue<PacketOut>,
    pub(super) sleeper: Sleeper,
    pub counters: Arc<WorkerCounters>,
    /// What its cycles have gone to.
    pub stages: stages::Counters,
    pub packet_ins: Arc<PacketInRing>,
    pub requests: Arc<RequestRing>,
    pub answers: ArrayQueue<Answer>,
    /// Its buckets of flows, for steering.
    pub buckets: Arc<Buckets>,
    /// Whether the thread has ended.
    pub ended: AtomicBool,
}

/// Most waiting commands.
const COMMANDS: usize = 1024;
/// Most waiting packet-outs.
pub(crate) const PACKET_OUT_QUEUE: usize = 1024;

impl<F: Frame> Mailbox<F> {
    pub fn new(name: String, wake: Wake, packet_ins: Arc<PacketInRing>) -> Mailbox<F> {
        Mailbox {
            name,
            commands: ArrayQueue::new(COMMANDS),
            packet_outs: ArrayQueue::new(PACKET_OUT_QUEUE),
            sleeper: Sleeper::new(wake),
            counters: Arc::default(),
            stages: stages::Counters::default(),
            requests: Arc::new(RequestRing::new(Arc::clone(packet_ins.teller()))),
            packet_ins,
            answers: ArrayQueue::new(ANSWERS),
            buckets: Arc::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Returns whether control has left something for the worker.
    pub(super) fn has_something(&self) -> bool {
        !self.commands.is_empty() || !self.packet_outs.is_empty() || !self.answers.is_empty()
    }

    /// Wakes the worker if it sleeps; to be called after putting something into a queue.
    pub fn nudge(&self) {
        self.sleeper.nudge();
    }
}
