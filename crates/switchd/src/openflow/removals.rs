//! Flow-removed messages, sent as fast as connections read them.
//!
//! A controller may delete a million rules with `OFPFF_SEND_FLOW_REM`, and every connection is told
//! of each. The messages are encoded once for all connections with the same version and settings,
//! some hundred rules at a time; a connection's share waits in a list and moves to its outbox as
//! there is room. While some wait, no further request of the connection is read, since they count
//! as replies (as in Open vSwitch, where nothing bounds them).
//!
//! None is lost while the connection lasts. It is closed, and the messages counted as lost, when
//! [`MOST_BYTES`] wait, or when more than the outbox's own bound wait and the peer reads nothing
//! for [`PATIENCE`].

use super::hub::Hub;
use super::outbox::CLOSE_LIMIT;
use super::session::Session;
use crate::coverage::Counter;
use openflow::flow::{FlowRemoved, FlowRemovedReason};
use openflow::message::{AsyncKind, FlowFormat, Message};
use openflow::{Version, encode};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Most bytes that wait for one connection: the messages for two million rules. Connections of the
/// same version share them.
const MOST_BYTES: usize = 256 << 20;
/// How long a peer with a long queue may read nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Number of reasons for a removal.
const REASONS: u8 = 6;

static WAITED: Counter = Counter::new("openflow_flow_removed_waited");
static LOST: Counter = Counter::new("openflow_flow_removed_lost");

/// Messages about several rules, one behind the other.
struct Messages {
    bytes: Vec<u8>,
    count: u64,
}

/// Messages that wait for one connection.
#[derive(Default)]
pub(super) struct Removals {
    waiting: RefCell<VecDeque<Rc<Messages>>>,
    bytes: Cell<usize>,
}

impl Removals {
    /// Returns whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.get() == 0
    }
}

impl Drop for Removals {
    fn drop(&mut self) {
        let lost: u64 = self.waiting.get_mut().iter().map(|some| some.count).sum();
        if lost > 0 {
            LOST.add(lost);
        }
    }
}

/// What determines the messages for a connection: version, format, and the reasons that it wants.
type Form = (Version, FlowFormat, u8);

/// Returns the reason as a version has it. Before 1.4 rules removed by a meter's deletion or an
/// eviction count as deleted.
fn reason_in(version: Version, reason: FlowRemovedReason) -> FlowRemovedReason {
    let known = version >= Version::V1_4 || (reason as u8) < FlowRemovedReason::MeterDelete as u8;
    if known {
        reason
    } else {
        FlowRemovedReason::Delete
    }
}

impl Session {
    fn removal_form(&self) -> Form {
        let wanted = (0..REASONS).filter(|reason| self.wants(AsyncKind::FlowRemoved, *reason));
        let wanted = wanted.fold(0, |bits, reason| bits | 1 << reason);
        (self.version, self.flow_format(), wanted)
    }

    fn tell_removals(&self, messages: &Rc<Messages>) {
        let removals = &self.removals;
        if removals.is_empty() && self.outbox.has_room() {
            self.outbox.send_all(messages.bytes.clone(), messages.count);
            return;
        }
        WAITED.add(messages.count);
        removals
            .bytes
            .set(removals.bytes.get() + messages.bytes.len());
        removals.waiting.borrow_mut().push_back(Rc::clone(messages));
        if removals.bytes.get() > MOST_BYTES {
            self.outbox.overflow();
        }
    }

    /// Moves waiting messages to the outbox, as far as there is room.
    pub(super) fn send_removals(&self) {
        let removals = &self.removals;
        while self.outbox.has_room()
            && let Some(messages) = removals.waiting.borrow_mut().pop_front()
        {
            removals
                .bytes
                .set(removals.bytes.get() - messages.bytes.len());
            self.outbox.send_all(messages.bytes.clone(), messages.count);
        }
    }

    /// Returns whether so much waits that a peer which reads nothing is disconnected.
    pub(super) fn is_clogged(&self) -> bool {
        self.removals.bytes.get() > CLOSE_LIMIT
    }

    /// Returns whether requests may be served.
    pub(super) fn has_room(&self) -> bool {
        self.removals.is_empty() && self.outbox.has_room()
    }

    /// Waits until requests may be served: all removals are in the outbox, and the outbox has room.
    pub(super) async fn room(&self) {
        while !self.has_room() {
            self.outbox.drain().await;
        }
    }
}

impl Hub {
    /// Reports removed rules.
    pub(super) fn flows_removed(&self, removed: &[FlowRemoved]) {
        if removed.is_empty() {
            return;
        }
        let mut made: Vec<(Form, Rc<Messages>)> = Vec::new();
        for session in self.sessions() {
            let form = session.removal_form();
            if form.2 == 0 {
                continue;
            }
            let known = made.iter().find(|(other, _)| *other == form);
            let messages = match known {
                Some((_, messages)) => Rc::clone(messages),
                None => {
                    let messages = Rc::new(messages_of(form, removed));
                    made.push((form, Rc::clone(&messages)));
                    messages
                }
            };
            if messages.count > 0 {
                session.tell_removals(&messages);
            }
        }
    }
}

fn messages_of((version, format, wanted): Form, removed: &[FlowRemoved]) -> Messages {
    let mut messages = Messages {
        bytes: Vec::new(),
        count: 0,
    };
    for removed in removed {
        if wanted >> reason_in(version, removed.reason) as u8 & 1 == 0 {
            continue;
        }
        let message = Message::FlowRemoved {
            removed: removed.clone(),
            format,
        };
        let bytes = encode(version, 0, &message);
        messages.count += u64::from(!bytes.is_empty());
        messages.bytes.extend(bytes);
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::super::session::{ConnectionType, Live};
    use super::*;

    fn session() -> Session {
        let live = Rc::new(Live::new(Duration::ZERO, 1));
        Session::new(ConnectionType::Primary, Version::V1_3, "peer", true, live)
    }

    fn messages(byte: u8, bytes: usize) -> Rc<Messages> {
        Rc::new(Messages {
            bytes: vec![byte; bytes],
            count: 1,
        })
    }

    #[tokio::test]
    async fn waiting_flow_removed_messages_are_sent_in_order() {
        let session = session();
        for byte in 0..40 {
            session.tell_removals(&messages(byte, 100_000));
        }
        assert!(!session.has_room() && !session.removals.is_empty());
        let mut got = Vec::new();
        while !session.outbox.is_empty() {
            let bytes = session.outbox.take().await.unwrap();
            got.push(bytes[0]);
            session.outbox.written(bytes.len());
            session.send_removals();
        }
        assert_eq!(got, (0..40).collect::<Vec<u8>>());
        assert!(session.has_room());
    }

    #[tokio::test]
    async fn waiting_flow_removed_messages_are_bounded_and_losses_counted() {
        let session = session();
        let some = messages(1, 1 << 20);
        let (waited, lost) = (WAITED.total(), LOST.total());
        let most = MOST_BYTES >> 20;
        for _ in 0..most {
            session.tell_removals(&some);
        }
        assert!(session.outbox.take().await.is_some(), "not yet closed");
        assert!(session.is_clogged());
        for _ in 0..3 {
            session.tell_removals(&some);
        }
        assert!(session.outbox.take().await.is_none());
        drop(session);
        let waited = WAITED.total() - waited;
        assert!(waited > most as u64);
        assert!(LOST.total() - lost >= waited);
    }
}
