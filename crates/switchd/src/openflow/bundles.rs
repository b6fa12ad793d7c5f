//! Bundles: messages that are collected first and then applied all or none (OpenFlow 1.4 section
//! 6.9, ONF's extension 230 of 1.3).
//!
//! A bundle that is idle for too long is discarded and its owner told. Numbers and sizes are
//! bounded.

use super::hub::Hub;
use super::session::{Next, Session, Slow};
use super::switch::{BundleFailure, LocalFuture};
use crate::clock;
use openflow::message::{BundleCommand, BundleControl, Message};
use openflow::{Added, Error, encode_error};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most open bundles of one connection.
const MAX_BUNDLES: usize = 64;
/// Most messages in the bundles of one connection.
const MAX_BUNDLED: usize = 1 << 20;
/// Most bytes of these messages, so that long ones cannot take more memory than a million short
/// ones.
const MAX_BUNDLED_BYTES: usize = 256 << 20;
/// Factor by which the limits for all connections of a bridge exceed those for one.
const BRIDGE: usize = 2;
/// Interval in ms, as in Open vSwitch, between checks for bundles that have been idle for too long;
/// the time limit may change meanwhile.
const LOOK_INTERVAL: i64 = 1000;
/// Messages in one piece of memory, which is freed once they have been applied. At 48 KB it comes
/// from the heap and not from the kernel.
const PIECE: usize = 256;
/// Bytes of a message that are kept for errors to quote.
const QUOTED: usize = 64;

/// Totals over the bundles of all connections of a bridge.
#[derive(Default)]
pub(super) struct Bundled {
    messages: Cell<usize>,
    bytes: Cell<usize>,
}

impl Bundled {
    /// Counts one more message, if there is room.
    fn add(&self, bytes: usize) -> bool {
        let (messages, bytes) = (self.messages.get() + 1, self.bytes.get() + bytes);
        let fits = messages <= BRIDGE * MAX_BUNDLED && bytes <= BRIDGE * MAX_BUNDLED_BYTES;
        if fits {
            self.messages.set(messages);
            self.bytes.set(bytes);
        }
        fits
    }

    fn remove(&self, messages: usize, bytes: usize) {
        self.messages.set(self.messages.get() - messages);
        self.bytes.set(self.bytes.get() - bytes);
    }
}

/// The first bytes of a message.
type Quote = [u8; QUOTED];

/// A bundle that is being filled.
struct Bundle {
    flags: u16,
    closed: bool,
    /// The messages, in pieces: a single growing list would be copied again and again, and its
    /// memory could not be reused for the rules that the messages become.
    pieces: Vec<Vec<Message>>,
    /// The first bytes of the messages, in the same pieces, for errors to quote.
    quotes: Vec<Vec<Quote>>,
    messages: usize,
    /// Whether it contains group mods.
    groups: bool,
    /// The messages' size on the wire.
    bytes: usize,
    /// The first bytes of the message that opened it, for errors to quote.
    opening: Vec<u8>,
    /// When it was last touched.
    used_at: i64,
    /// The totals that it counts towards.
    all: Rc<Bundled>,
}

impl Drop for Bundle {
    fn drop(&mut self) {
        self.all.remove(self.messages, self.bytes);
    }
}

impl Bundle {
    fn new(flags: u16, opening: &[u8], all: &Rc<Bundled>) -> Bundle {
        Bundle {
            all: Rc::clone(all),
            flags,
            closed: false,
            pieces: Vec::new(),
            quotes: Vec::new(),
            messages: 0,
            groups: false,
            bytes: 0,
            opening: opening[..opening.len().min(QUOTED)].to_vec(),
            used_at: clock::now(),
        }
    }

    /// Appends a message; `now` in milliseconds.
    fn push(&mut self, bytes: &[u8], message: Message, now: i64) {
        let mut quote = [0; QUOTED];
        let quoted = bytes.len().min(QUOTED);
        quote[..quoted].copy_from_slice(&bytes[..quoted]);
        if self.messages.is_multiple_of(PIECE) {
            // Most bundles are short, so the first piece grows as needed.
            let room = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
            self.quotes.push(Vec::with_capacity(room));
        }
        self.groups |= matches!(message, Message::GroupMod(_));
        if let (Some(piece), Some(quotes)) = (self.pieces.last_mut(), self.quotes.last_mut()) {
            piece.push(message);
            quotes.push(quote);
        }
        self.messages += 1;
        self.bytes += bytes.len();
        self.used_at = now;
    }

    /// Returns the first bytes of a message, by its number from 0.
    fn quote(&self, message: usize) -> &[u8] {
        let quote = self
            .quotes
            .get(message / PIECE)
            .and_then(|piece| piece.get(message % PIECE));
        quote.map_or(&[], |quote| {
            let length = usize::from(u16::from_be_bytes([quote[2], quote[3]]));
            &quote[..length.min(QUOTED)]
        })
    }
}

/// A bundle that is being applied in slices.
pub(super) struct Committing {
    bundle: Bundle,
    groups: Vec<Message>,
    xid: u32,
    reply: BundleControl,
    done: LocalFuture<Result<(), BundleFailure>>,
}

/// The bundles of one connection.
#[derive(Default)]
pub(super) struct Bundles(RefCell<BTreeMap<u32, Bundle>>);

fn answer_to(bundle: u32, command: BundleCommand) -> BundleControl {
    BundleControl {
        bundle,
        command,
        // Open vSwitch answers with zero.
        flags: 0,
    }
}

impl Session {
    /// Opens, closes, commits or discards a bundle.
    pub(super) fn bundle_control(
        self: &Rc<Self>,
        hub: &Hub,
        bytes: &[u8],
        xid: u32,
        control: BundleControl,
    ) -> Result<Next, Error> {
        self.may_write()?;
        let mut bundles = self.bundles.0.borrow_mut();
        let (next, answer) = match control.command {
            BundleCommand::OpenRequest => {
                // An attempt to open an existing bundle is refused and discards it (OpenFlow 1.4.1
                // section 7.3.9.2).
                if bundles.remove(&control.bundle).is_some() {
                    return Err(Error::BundleBadId);
                }
                if bundles.len() >= MAX_BUNDLES {
                    return Err(Error::OutOfBundles);
                }
                bundles.insert(
                    control.bundle,
                    Bundle::new(control.flags, bytes, &hub.bundled),
                );
                self.bundles_changed.notify_one();
                (Next::Continue, BundleCommand::OpenReply)
            }
            BundleCommand::CloseRequest => {
                let bundle = bundles.get_mut(&control.bundle).ok_or(Error::BundleBadId)?;
                if bundle.closed || bundle.flags != control.flags {
                    let error = if bundle.closed {
                        Error::BundleClosed
                    } else {
                        Error::BundleBadFlags
                    };
                    bundles.remove(&control.bundle);
                    return Err(error);
                }
                bundle.closed = true;
                bundle.used_at = clock::now();
                (Next::Continue, BundleCommand::CloseReply)
            }
            BundleCommand::CommitRequest => {
                let bundle = bundles.remove(&control.bundle).ok_or(Error::BundleBadId)?;
                drop(bundles);
                let reply = answer_to(control.bundle, BundleCommand::CommitReply);
                let next = match self.commit(hub, bundle, control.flags, xid, reply)? {
                    Some(committing) => Next::Slow(Slow::Commit(Box::new(committing))),
                    None => Next::Changed,
                };
                return Ok(next);
            }
            BundleCommand::DiscardRequest => {
                bundles.remove(&control.bundle).ok_or(Error::BundleBadId)?;
                (Next::Continue, BundleCommand::DiscardReply)
            }
            _ => return Err(Error::BundleBadType),
        };
        let reply = answer_to(control.bundle, answer);
        self.reply(xid, &Message::BundleControl(reply));
        Ok(next)
    }

    /// Applies a bundle and replies; a long one continues in slices, and [`Session::finish_commit`]
    /// replies.
    fn commit(
        self: &Rc<Self>,
        hub: &Hub,
        mut bundle: Bundle,
        flags: u16,
        xid: u32,
        reply: BundleControl,
    ) -> Result<Option<Committing>, Error> {
        if bundle.flags != flags {
            return Err(Error::BundleBadFlags);
        }
        self.may_write()?;
        let mut groups = Vec::new();
        if bundle.groups {
            let all = bundle.pieces.iter().flatten();
            groups.extend(
                all.filter(|message| matches!(message, Message::GroupMod(_)))
                    .cloned(),
            );
        }
        let pieces = std::mem::take(&mut bundle.pieces);
        match hub.switch().bundle(pieces, self.version) {
            Ok(Some(done)) => {
                // It may be only ports that are still to be changed.
                if hub.switch().busy().is_some() {
                    hub.goes_on_slowly(self, xid);
                }
                Ok(Some(Committing {
                    bundle,
                    groups,
                    xid,
                    reply,
                    done,
                }))
            }
            Ok(None) => {
                self.answer_commit(hub, &bundle, &groups, xid, reply, Ok(()))?;
                Ok(None)
            }
            Err(failure) => {
                self.answer_commit(hub, &bundle, &groups, xid, reply, Err(failure))?;
                Ok(None)
            }
        }
    }

    /// Waits for a bundle that is applied in slices, and replies.
    pub(super) async fn finish_commit(
        &self,
        hub: &Hub,
        committing: Committing,
    ) -> Result<(), Error> {
        let Committing {
            bundle,
            groups,
            xid,
            reply,
            done,
        } = committing;
        let done = done.await;
        self.answer_commit(hub, &bundle, &groups, xid, reply, done)
    }

    fn answer_commit(
        &self,
        hub: &Hub,
        bundle: &Bundle,
        groups: &[Message],
        xid: u32,
        reply: BundleControl,
        done: Result<(), BundleFailure>,
    ) -> Result<(), Error> {
        if let Err(failed) = done {
            // The message that failed gets its own error in addition.
            self.send_error(bundle.quote(failed.message), failed.error);
            return Err(Error::BundleMessageFailed);
        }
        for message in groups {
            hub.forward_request(self, 0, message);
        }
        self.reply(xid, &Message::BundleControl(reply));
        Ok(())
    }

    /// Adds a message to a bundle, which is opened if it does not exist. A refused message discards
    /// the bundle where it does so in Open vSwitch.
    pub(super) fn bundle_add(&self, hub: &Hub, bytes: &[u8], add: Added) -> Result<(), Error> {
        self.may_write()?;
        let mut bundles = self.bundles.0.borrow_mut();
        if add.xid != add.outer_xid {
            return Err(Error::BundleMessageBadXid);
        }
        hub.switch().check_bundled(&add.message, self.version)?;
        let bundled: usize = bundles.values().map(|bundle| bundle.messages).sum();
        let bundled_bytes: usize = bundles.values().map(|bundle| bundle.bytes).sum();
        if bundled >= MAX_BUNDLED || bundled_bytes + bytes.len() > MAX_BUNDLED_BYTES {
            bundles.remove(&add.bundle);
            return Err(Error::BundleTooManyMessages);
        }
        if bundles.len() >= MAX_BUNDLES && !bundles.contains_key(&add.bundle) {
            return Err(Error::OutOfBundles);
        }
        let bundle = bundles.entry(add.bundle).or_insert_with(|| {
            self.bundles_changed.notify_one();
            Bundle::new(add.flags, bytes, &hub.bundled)
        });
        let refusal = if bundle.closed {
            Some(Error::BundleClosed)
        } else if bundle.flags != add.flags {
            Some(Error::BundleBadFlags)
        } else {
            None
        };
        if let Some(error) = refusal {
            bundles.remove(&add.bundle);
            return Err(error);
        }
        if !hub.bundled.add(bytes.len()) {
            bundles.remove(&add.bundle);
            return Err(Error::BundleTooManyMessages);
        }
        bundle.push(bytes, add.message, self.last_heard.get());
        Ok(())
    }

    /// Discards bundles that have been idle for too long, while the connection lives.
    pub(super) async fn expire_bundles(&self, hub: &Hub) -> std::convert::Infallible {
        loop {
            let first = self.bundles.0.borrow().values().map(|b| b.used_at).min();
            let Some(first) = first else {
                self.bundles_changed.notified().await;
                continue;
            };
            let limit = hub.switch().bundle_idle_ms();
            let due = first.saturating_add(limit);
            let now = clock::now();
            if now < due {
                clock::sleep_until(due.min(now.saturating_add(LOOK_INTERVAL))).await;
                continue;
            }
            let expired = |bundle: &Bundle| bundle.used_at.saturating_add(limit) <= now;
            let mut bundles = self.bundles.0.borrow_mut();
            bundles.retain(|_, bundle| {
                let keep = !expired(bundle);
                if !keep {
                    let error = Error::BundleTimeout;
                    self.outbox
                        .send(encode_error(self.version, &bundle.opening, error));
                }
                keep
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_of_a_bridge_have_one_bound_and_give_back_what_they_took() {
        let all = Rc::new(Bundled::default());
        let mut bundle = Bundle::new(0, &[], &all);
        assert!(all.add(1000));
        bundle.push(&[0; 1000], Message::BarrierRequest, 0);
        let others = (1..).take_while(|_| all.add(1000)).count();
        assert_eq!(others, BRIDGE * MAX_BUNDLED_BYTES / 1000 - 1);
        drop(bundle);
        assert!(all.add(1000));
        assert!(!all.add(1000));
        all.remove(all.messages.get(), all.bytes.get());
        let short = (0..).take_while(|_| all.add(8)).count();
        assert_eq!(short, BRIDGE * MAX_BUNDLED);
    }
}
