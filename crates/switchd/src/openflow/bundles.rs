//! Bundles: messages that are put together first and then carried out all or none (OpenFlow 1.4
//! section 6.9, ONF's extension 230 of 1.3).
//!
//! A bundle that nobody touches for a while is thrown away and its owner told so. Numbers and sizes
//! are bounded.

use super::hub::Hub;
use super::session::{Next, Session, Slow};
use super::switch::{BundleFailure, LocalFuture};
use crate::clock;
use openflow::message::{BundleCommand, BundleControl, Message};
use openflow::{Added, Error, encode_error};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bundles that one connection may have open.
const MAX_BUNDLES: usize = 64;
/// Messages that wait in the bundles of one connection.
const MAX_BUNDLED: usize = 1 << 20;
/// Their bytes altogether, so that long ones do not take the memory that short ones leave.
const MAX_BUNDLED_BYTES: usize = 256 << 20;
/// How many times as much may wait in the bundles of all connections of a bridge.
const BRIDGE: usize = 2;
/// Milliseconds between looks for bundles that have been idle for too long; how long that is may
/// change meanwhile. Open vSwitch looks as often.
const LOOK_INTERVAL: i64 = 1000;
/// Messages that are kept in one piece of memory, which goes when they have been carried out. 48
/// KB: the heap gives it, not the kernel.
const PIECE: usize = 256;
/// Bytes of a message that are kept for an error to quote.
const QUOTED: usize = 64;

/// What waits in the bundles of all connections of a bridge.
#[derive(Default)]
pub(super) struct Bundled {
    messages: Cell<usize>,
    bytes: Cell<usize>,
}

impl Bundled {
    /// Takes up one more message, if there is room.
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

/// The beginning of a message.
type Quote = [u8; QUOTED];

/// A bundle that is being put together.
struct Bundle {
    flags: u16,
    closed: bool,
    /// In pieces: a list that grows as a whole would be moved again and again, and its memory
    /// could not be used for the rules that it becomes.
    pieces: Vec<Vec<Message>>,
    /// The beginnings of the messages, in pieces alike, which errors quote.
    quotes: Vec<Vec<Quote>>,
    messages: usize,
    /// Whether there are group mods among them.
    groups: bool,
    /// The messages' size on the wire.
    bytes: usize,
    /// The beginning of the message that opened it, which errors quote.
    opening: Vec<u8>,
    /// When it was last touched.
    used_at: i64,
    /// Where it counts.
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

    /// Puts a message behind the others; `now` in milliseconds.
    fn push(&mut self, bytes: &[u8], message: Message, now: i64) {
        let mut quote = [0; QUOTED];
        let quoted = bytes.len().min(QUOTED);
        quote[..quoted].copy_from_slice(&bytes[..quoted]);
        if self.messages.is_multiple_of(PIECE) {
            // Most bundles are short.
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

    /// The beginning of a message, by its number from 0.
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

/// A bundle that is being carried out in slices.
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
        // Zero, as Open vSwitch answers.
        flags: 0,
    }
}

impl Session {
    /// Opens, closes, commits or discards.
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
                // Opening one that is there already is refused and ends it (OpenFlow 1.4.1 section
                // 7.3.9.2).
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

    /// Carries a bundle out and answers; what takes long goes on in slices, and is answered by
    /// [`Session::finish_commit`].
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
                hub.goes_on_slowly(self, xid);
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

    /// Waits for a bundle that is carried out in slices, and answers.
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
            // The message that failed is told of by an error of its own.
            self.send_error(bundle.quote(failed.message), failed.error);
            return Err(Error::BundleMessageFailed);
        }
        for message in groups {
            hub.forward_request(self, 0, message);
        }
        self.reply(xid, &Message::BundleControl(reply));
        Ok(())
    }

    /// Puts a message into a bundle, which is opened if it is not there. A refused one ends the
    /// bundle where Open vSwitch ends it.
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

    /// Throws bundles away that have not been touched for too long, as long as the connection
    /// lives.
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
