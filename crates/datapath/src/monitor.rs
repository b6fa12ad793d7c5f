//! Ports whose way to the other end is monitored (BFD): workers take the monitor's packets out of
//! what such a port receives, before any rule, and send what the monitor wants sent.
//!
//! The monitor has a thread of its own, which the control thread does not delay: packets go from
//! workers to it by an [`Inbox`], and back by [`Probes`]. What it finds out is a flag that workers
//! read where a group or a `bundle` asks whether the port is live.

use crate::counters::{DropReason, PortCounters};
use crate::error::Error;
use crate::port::BridgeId;
use crate::tunnel::TunnelKey;
use crate::worker::{Mailbox, Shared};
use crossbeam_queue::ArrayQueue;
use packet::Frame;
use program::actions::PortNo;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// Most packets that wait for the monitors' thread: eight of each of 512 monitors, so that floods
/// by fewer ports than that take no room from the others.
pub const INBOX: usize = 4096;
/// Most packets of one monitor that wait for its thread: more than come in a detection time with
/// common multipliers, and few enough that a flood by one port is nothing to the others.
const OF_ONE: u32 = 8;
/// Most packets of monitors that wait for a worker.
pub(crate) const PROBES: usize = 1024;

/// A packet that a monitored port has received.
#[derive(Clone, Debug)]
pub struct Received {
    /// The port's monitor ([`Monitor::new`]).
    pub monitor: u64,
    bytes: [u8; bfd::wire::LENGTH],
    length: u8,
    /// How many packets of its monitor wait.
    waiting: Arc<AtomicU32>,
}

impl Received {
    /// Returns UDP's payload, of a longer one as much as a message has.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Packets on their way to the thread of all monitors.
#[derive(Debug)]
pub struct Inbox {
    packets: ArrayQueue<Received>,
    reader: OnceLock<Thread>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox {
            packets: ArrayQueue::new(INBOX),
            reader: OnceLock::new(),
        }
    }
}

impl Inbox {
    /// Says which thread takes the packets; it is unparked for each. The first call counts.
    pub fn read_by(&self, thread: Thread) {
        let _ = self.reader.set(thread);
    }

    /// Takes the next packet.
    pub fn take(&self) -> Option<Received> {
        let received = self.packets.pop()?;
        received.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(received)
    }

    /// Unparks the thread that takes packets.
    pub fn call(&self) {
        if let Some(thread) = self.reader.get() {
            thread.unpark();
        }
    }
}

/// By which tunnel keys a monitor of a tunnel takes messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keys {
    /// By all that the tunnel takes.
    Any,
    /// By 0, if the tunnel takes each packet's own key ([`TunnelKey::Flow`]): the other keys are
    /// then those of tenants, whose packets these are. By any, if the tunnel has one key.
    #[default]
    ZeroOfMany,
    /// By 0.
    Zero,
}

/// The monitor of a port, as workers and the monitor's thread share it.
pub struct Monitor {
    key: u64,
    eth_dst: Option<[u8; 6]>,
    keys: Keys,
    live: AtomicBool,
    inbox: Arc<Inbox>,
    /// How many of its packets wait there.
    waiting: Arc<AtomicU32>,
    counters: OnceLock<Arc<PortCounters>>,
}

impl Monitor {
    /// Creates a port's monitor, which says that it is not live. `key` comes back with each packet
    /// that it receives. Packets to another Ethernet address than `eth_dst`, and those of a tunnel
    /// with another key than one of `keys`, are none of its.
    pub fn new(key: u64, eth_dst: Option<[u8; 6]>, keys: Keys, inbox: Arc<Inbox>) -> Monitor {
        Monitor {
            key,
            eth_dst,
            keys,
            live: AtomicBool::new(false),
            inbox,
            waiting: Arc::default(),
            counters: OnceLock::new(),
        }
    }

    /// Says whether the port is live.
    pub fn set_live(&self, live: bool) {
        self.live.store(live, Ordering::Relaxed);
    }

    /// Returns whether the port is live.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns how many packets the port has received, those of monitors among them; 0 while it
    /// monitors no port.
    pub fn rx_packets(&self) -> u64 {
        let counters = self.counters.get();
        counters.map_or(0, |counters| counters.sum().rx_packets)
    }

    pub(crate) fn watch(&self, counters: &Arc<PortCounters>) {
        let _ = self.counters.set(Arc::clone(counters));
    }

    /// Returns whether it takes messages with this key of a tunnel that takes packets by `in_key`.
    pub(crate) fn takes_key(&self, key: u64, in_key: TunnelKey) -> bool {
        let only_zero = match self.keys {
            Keys::Any => false,
            Keys::ZeroOfMany => in_key == TunnelKey::Flow,
            Keys::Zero => true,
        };
        key == 0 || !only_zero
    }

    /// Takes a frame that the port has received, if it is the monitor's. None: it is not. An
    /// error: it is, and is dropped for this reason.
    #[inline]
    pub fn take<F: Frame>(&self, frame: &F) -> Option<Result<(), DropReason>> {
        const MOST: usize = bfd::wire::MOST_HEADERS + bfd::wire::LENGTH;
        let (head, length) = (frame.head(), frame.len().min(MOST));
        let mut bytes = [0; MOST];
        let begin = if head.len() >= length {
            head
        } else {
            // It lies in pieces.
            frame.read_at(0, &mut bytes[..length]).then_some(())?;
            &bytes[..length]
        };
        let carried = bfd::wire::carried(begin)?;
        if self.eth_dst.is_some_and(|wanted| wanted != carried.eth_dst) {
            return None;
        }
        // Open vSwitch, too, takes it out of the port's packets and ignores it. Here it does not
        // even take room that others' messages need.
        if carried.ttl != bfd::wire::TTL {
            return Some(Err(DropReason::MonitorTtl));
        }
        let one_more = |waiting| (waiting < OF_ONE).then_some(waiting + 1);
        let relaxed = Ordering::Relaxed;
        let may = self.waiting.fetch_update(relaxed, relaxed, one_more);
        if may.is_err() {
            return Some(Err(DropReason::MonitorPortFull));
        }
        let mut received = Received {
            monitor: self.key,
            bytes: [0; bfd::wire::LENGTH],
            length: carried.payload.len().min(bfd::wire::LENGTH) as u8,
            waiting: Arc::clone(&self.waiting),
        };
        let payload = &carried.payload[..usize::from(received.length)];
        received.bytes[..payload.len()].copy_from_slice(payload);
        if self.inbox.packets.push(received).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Some(Err(DropReason::MonitorQueueFull));
        }
        self.inbox.call();
        Some(Ok(()))
    }
}

/// A packet to be sent out of a port, by no rule.
#[derive(Debug)]
pub struct Probe {
    /// The port's bridge.
    pub bridge: BridgeId,
    /// The port.
    pub port: PortNo,
    /// Whether a tunnel marks it as OAM.
    pub oam: bool,
    /// The frame.
    pub data: Vec<u8>,
}

/// The packets that wait to be sent, and who is to send them.
pub(crate) struct Waiting<F: Frame> {
    pub probes: ArrayQueue<Probe>,
    /// The worker that is woken; any may send them.
    sender: Mutex<Option<Arc<Mailbox<F>>>>,
    refused: AtomicU64,
}

impl<F: Frame> Default for Waiting<F> {
    fn default() -> Self {
        Waiting {
            probes: ArrayQueue::new(PROBES),
            sender: Mutex::new(None),
            refused: AtomicU64::new(0),
        }
    }
}

impl<F: Frame> Waiting<F> {
    /// Says which worker is woken for them.
    pub fn sent_by(&self, mailbox: Option<Arc<Mailbox<F>>>) {
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = mailbox;
    }

    /// Returns how many packets were not taken.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Sends packets out of ports, from any thread.
pub struct Probes<F: Frame>(pub(crate) Arc<Shared<F>>);

impl<F: Frame> Probes<F> {
    /// Has a worker send a packet. Does not wait for it.
    ///
    /// # Errors
    ///
    /// There is no worker, or too many packets wait already; it is counted.
    pub fn send(&self, probe: Probe) -> Result<(), Error> {
        let waiting = &self.0.waiting_probes;
        let sender = waiting.sender.lock();
        let sender = sender.unwrap_or_else(PoisonError::into_inner).clone();
        let outcome = match sender {
            None => Err(Error::NoWorker),
            Some(mailbox) => match waiting.probes.push(probe) {
                Ok(()) => {
                    mailbox.nudge();
                    return Ok(());
                }
                Err(_) => Err(Error::QueueFull("probe")),
            },
        };
        waiting.refused.fetch_add(1, Ordering::Relaxed);
        outcome
    }
}
