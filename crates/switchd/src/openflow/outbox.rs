//! The queue of messages to send on one connection.
//!
//! Each kind of message is bounded in its own way. Replies: while more than [`REPLY_LIMIT`] bytes
//! wait, no further request is read, so a peer that does not read is no longer served. Packet-ins:
//! as many as the controller's row allows; more are dropped and counted. Updates of flow monitors:
//! they pause when many wait (see [`super::monitors`]). Messages that must not be lost
//! (flow-removed, port status, role status): when more than [`CLOSE_LIMIT`] bytes wait the
//! connection is closed, as the peer can no longer know what the switch holds.

use crate::coverage::Counter;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Bytes in the queue above which no further requests are read.
pub(super) const REPLY_LIMIT: usize = 1 << 20;
/// Bytes in the queue above which a message that must not be lost closes the connection.
pub(super) const CLOSE_LIMIT: usize = 16 << 20;
/// Most bytes written at a time; smaller messages are combined.
const WRITE_SIZE: usize = 64 << 10;

static PACKET_IN_DROPPED: Counter = Counter::new("openflow_packet_in_queue_full");
static OVERFLOWED: Counter = Counter::new("openflow_queue_overflow");
static SENT: Counter = Counter::new("vconn_sent");

/// Counts a connection that is closed because its peer does not read.
pub(super) fn count_overflow() {
    OVERFLOWED.increment();
}

/// The bound that a message counts towards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quota {
    Other,
    PacketIn,
    Update,
}

/// A message in the queue.
struct Waiting {
    bytes: Vec<u8>,
    kind: Quota,
}

/// The queue.
#[derive(Default)]
pub(super) struct Outbox {
    queue: RefCell<VecDeque<Waiting>>,
    bytes: Cell<usize>,
    packet_ins: Cell<usize>,
    update_bytes: Cell<usize>,
    /// Bytes of queued packet-ins. They have their own bound, and do not stop requests from being
    /// read.
    packet_in_bytes: Cell<usize>,
    dropped: Cell<u64>,
    overflowed: Cell<bool>,
    filled: Notify,
    drained: Notify,
    wrote: Notify,
}

impl Outbox {
    /// Queues a reply.
    pub(super) fn send(&self, bytes: Vec<u8>) {
        self.push(bytes, Quota::Other);
    }

    /// Queues several messages that lie one behind the other.
    pub(super) fn send_all(&self, bytes: Vec<u8>, messages: u64) {
        SENT.add(messages.saturating_sub(1));
        self.push(bytes, Quota::Other);
    }

    /// Queues a message that must not be lost. If the queue is too long, the connection will be
    /// closed.
    pub(super) fn send_unasked(&self, bytes: Vec<u8>) {
        if self.is_overflowing() {
            return;
        }
        self.push(bytes, Quota::Other);
    }

    /// Queues a packet-in, unless `limit` of them wait or the queue is full. Empty `bytes` stand
    /// for one that is too long for any message; it is lost.
    pub(super) fn send_packet_in(&self, bytes: Vec<u8>, limit: usize) {
        let full = self.packet_ins.get() >= limit || self.bytes.get() > CLOSE_LIMIT;
        if full || bytes.is_empty() {
            self.count_drop();
            return;
        }
        self.packet_ins.set(self.packet_ins.get() + 1);
        self.packet_in_bytes
            .set(self.packet_in_bytes.get() + bytes.len());
        self.push(bytes, Quota::PacketIn);
    }

    /// Counts a packet-in that was dropped before it was queued.
    pub(super) fn count_drop(&self) {
        PACKET_IN_DROPPED.increment();
        self.dropped.set(self.dropped.get() + 1);
    }

    /// Queues updates of flow monitors. Their sender checks [`Outbox::update_bytes`] and pauses;
    /// updates in a pause (removals) must not be lost.
    pub(super) fn send_update(&self, bytes: Vec<u8>) {
        if self.is_overflowing() {
            return;
        }
        self.update_bytes.set(self.update_bytes.get() + bytes.len());
        self.push(bytes, Quota::Update);
    }

    /// Returns the bytes of queued updates.
    pub(super) fn update_bytes(&self) -> usize {
        self.update_bytes.get()
    }

    /// Returns whether the queue is so long that the connection must be closed, and notes it.
    fn is_overflowing(&self) -> bool {
        if self.bytes_due() <= CLOSE_LIMIT {
            return false;
        }
        self.overflow();
        true
    }

    fn push(&self, bytes: Vec<u8>, kind: Quota) {
        if bytes.is_empty() {
            return;
        }
        SENT.increment();
        self.bytes.set(self.bytes.get() + bytes.len());
        self.queue.borrow_mut().push_back(Waiting { bytes, kind });
        self.filled.notify_one();
    }

    /// Returns whether everything has been written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.get() == 0
    }

    /// Returns the packet-ins dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Waits until there is something to write and takes it; None when the connection must be
    /// closed because the queue is too long.
    pub(super) async fn take(&self) -> Option<Vec<u8>> {
        loop {
            if self.overflowed.get() {
                return None;
            }
            if let Some(bytes) = self.take_ready() {
                return Some(bytes);
            }
            self.filled.notified().await;
        }
    }

    fn take_ready(&self) -> Option<Vec<u8>> {
        let mut queue = self.queue.borrow_mut();
        let mut out = self.pop(&mut queue)?;
        while queue
            .front()
            .is_some_and(|next| out.len() + next.bytes.len() <= WRITE_SIZE)
            && let Some(more) = self.pop(&mut queue)
        {
            out.extend_from_slice(&more);
        }
        Some(out)
    }

    fn pop(&self, queue: &mut VecDeque<Waiting>) -> Option<Vec<u8>> {
        let waiting = queue.pop_front()?;
        match waiting.kind {
            Quota::Other => {}
            Quota::PacketIn => {
                self.packet_ins.set(self.packet_ins.get() - 1);
                self.packet_in_bytes
                    .set(self.packet_in_bytes.get() - waiting.bytes.len());
            }
            Quota::Update => self
                .update_bytes
                .set(self.update_bytes.get() - waiting.bytes.len()),
        }
        Some(waiting.bytes)
    }

    /// Notes that `n` bytes have been written: only then they no longer count as queued.
    pub(super) fn written(&self, n: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(n));
        if self.has_room() {
            // Waiters check the condition before other tasks run, so no notification is lost.
            self.drained.notify_waiters();
        }
        self.wrote.notify_one();
    }

    /// Returns the queued bytes without packet-ins.
    fn bytes_due(&self) -> usize {
        self.bytes.get() - self.packet_in_bytes.get()
    }

    /// Returns whether requests may be served.
    pub(super) fn has_room(&self) -> bool {
        self.bytes_due() <= REPLY_LIMIT
    }

    /// Waits until requests may be served again.
    pub(super) async fn room(&self) {
        while !self.has_room() {
            self.drained.notified().await;
        }
    }

    /// Waits until bytes have been written and there is room.
    pub(super) async fn drain(&self) {
        self.drained.notified().await;
    }

    /// Waits until bytes have been written since the last call; for a single waiter.
    pub(super) async fn progress(&self) {
        self.wrote.notified().await;
    }

    /// Marks the connection to be closed, because the peer does not read messages that must not be
    /// lost.
    pub(super) fn overflow(&self) {
        if !self.overflowed.replace(true) {
            OVERFLOWED.increment();
        }
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn packet_ins_have_a_bound_and_replies_go_on() {
        let outbox = Outbox::default();
        for _ in 0..5 {
            outbox.send_packet_in(vec![1; 10], 3);
        }
        outbox.send(vec![2; 4]);
        assert_eq!(outbox.dropped(), 2);
        let bytes = outbox.take().await.unwrap();
        assert_eq!(bytes, [vec![1; 30], vec![2; 4]].concat());
        outbox.written(bytes.len());
        outbox.send_packet_in(vec![3; 10], 3);
        assert_eq!(outbox.take().await.unwrap(), vec![3; 10]);
    }

    #[tokio::test]
    async fn too_much_unread_closes() {
        let outbox = Outbox::default();
        for _ in 0..=CLOSE_LIMIT / 1000 + 1 {
            outbox.send_unasked(vec![0; 1000]);
        }
        assert_eq!(outbox.take().await, None);
    }

    #[tokio::test]
    async fn requests_wait_until_replies_are_written() {
        let outbox = Outbox::default();
        outbox.send(vec![0; REPLY_LIMIT + 1]);
        let waits = tokio::time::timeout(std::time::Duration::from_millis(10), outbox.room()).await;
        assert!(waits.is_err());
        let bytes = outbox.take().await.unwrap();
        outbox.written(bytes.len());
        outbox.room().await;
    }
}
