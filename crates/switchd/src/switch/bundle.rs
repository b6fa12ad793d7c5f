//! A bundle's messages carried out: all of them or none, in their order.
//!
//! Changes of rules and groups are a batch of the pipeline, which is rolled back at the first message that fails; ports are only looked at until all
//! messages are known to succeed. Then the rules are published, all at once, and ports are configured and packets sent in the messages' order.
//!
//! Many messages are carried out in slices ([`super::slices`]), under the reserved epoch, and
//! undone in slices where one fails.

use super::bridge::Bridge;
use super::slices::{AT_ONCE, Pace, STEP};
use crate::openflow::{BundleFailure, LocalFuture, Switch};
use openflow::flow::{FlowModCommand, FlowRemoved};
use openflow::port::PortMod;
use openflow::{Error, Message, Version};
use pipeline::{Begun, FlowModOutcome, Sweep};

/// What is done once all messages are known to succeed.
enum Effect {
    Port(PortMod),
    Packet(pipeline::PacketOutProgram, Vec<u8>),
}

/// How many messages ahead memory is fetched for.
const AHEAD: usize = 8;
/// After how many messages it is looked whether a slice is over.
const LOOK: usize = 16;

/// Fetches a message from memory.
fn fetch(message: &Message) {
    let at = std::ptr::from_ref(message).cast::<u8>();
    (0..size_of::<Message>())
        .step_by(64)
        .for_each(|line| program::prefetch(at.wrapping_add(line)));
}

/// What a bundle's messages have done so far.
#[derive(Default)]
struct Done {
    effects: Vec<Effect>,
    removed: Vec<FlowRemoved>,
}

/// Fetches what the messages behind one will look at.
fn fetch_ahead(bridge: &Bridge, piece: &[Message], index: usize) {
    if let Some(message) = piece.get(index + 2 * AHEAD) {
        fetch(message);
    }
    if let Some(Message::FlowMod { change, .. }) = piece.get(index + AHEAD) {
        bridge.pipeline.borrow().expect(change, AHEAD);
    }
}

/// Whether a message may mean many rules.
fn is_wide(message: &Message) -> bool {
    matches!(message, Message::FlowMod { change, .. } if matches!(
        change.command,
        FlowModCommand::Modify | FlowModCommand::Delete
    ))
}

impl Bridge {
    /// Does all of the messages or none: then it says which failed first, and why. Many of them, or
    /// some that may mean many rules, in slices.
    pub(super) fn carry_out(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), BundleFailure>>>, BundleFailure> {
        let messages: usize = pieces.iter().map(Vec::len).sum();
        let many_rules = self.pipeline.borrow().rule_count() > AT_ONCE;
        if messages > AT_ONCE || many_rules && pieces.iter().flatten().any(is_wide) {
            return Ok(Some(self.change_slowly(|bridge| async move {
                bridge.carry_out_slowly(pieces, version).await
            })));
        }
        let now = self.switch().now();
        self.pipeline.borrow_mut().begin_batch();
        let mut done = Done::default();
        let mut before = 0;
        for mut piece in pieces {
            for index in 0..piece.len() {
                fetch_ahead(self, &piece, index);
                let carried = match &mut piece[index] {
                    Message::FlowMod { change, .. } => {
                        let outcome = self.pipeline.borrow_mut().flow_mod(change, version, now);
                        outcome.map(|outcome| done.removed.extend(outcome.removed))
                    }
                    other => self.carry_out_other(other, version, now, &mut done),
                };
                if let Err(error) = carried {
                    self.pipeline.borrow_mut().roll_back();
                    return Err(BundleFailure {
                        message: before + index,
                        error,
                    });
                }
            }
            before += piece.len();
        }
        self.pipeline.borrow_mut().end_batch();
        self.publish();
        self.tell_removed(done.removed);
        self.take_effect(done.effects);
        Ok(None)
    }

    /// Likewise, in slices.
    async fn carry_out_slowly(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<(), BundleFailure> {
        let now = self.switch().now();
        let mut pace = Pace::new();
        let turn = self.reserve().await;
        self.pipeline.borrow_mut().begin_batch();
        let mut done = Done::default();
        let mut before = 0;
        let mut failure = None;
        'messages: for mut piece in pieces {
            for index in 0..piece.len() {
                fetch_ahead(self, &piece, index);
                let carried = match &mut piece[index] {
                    Message::FlowMod { change, .. } => {
                        let begun = self
                            .pipeline
                            .borrow_mut()
                            .begin_flow_mod(change, version, now, STEP);
                        match begun {
                            Ok(Begun::Done(outcome)) => {
                                done.removed.extend(outcome.removed);
                                Ok(())
                            }
                            Ok(Begun::Long(sweep)) => {
                                self.sweep_in_batch(*sweep, now, &mut done, &mut pace).await
                            }
                            Err(error) => Err(error),
                        }
                    }
                    other => self.carry_out_other(other, version, now, &mut done),
                };
                if let Err(error) = carried {
                    failure = Some(BundleFailure {
                        message: before + index,
                        error,
                    });
                    break 'messages;
                }
                if index % LOOK == 0 {
                    pace.step().await;
                }
            }
            before += piece.len();
        }
        if failure.is_some() {
            while !self.pipeline.borrow_mut().roll_back_some(STEP) {
                pace.step().await;
            }
        } else {
            self.pipeline.borrow_mut().keep_batch();
        }
        self.publish_reserved();
        drop(turn);
        if failure.is_none() {
            self.send_removed_slowly(done.removed, &mut pace).await;
            self.take_effect(done.effects);
        }
        while !self.pipeline.borrow_mut().tidy(STEP) {
            pace.step().await;
        }
        failure.map_or(Ok(()), Err)
    }

    /// A modify or delete of many rules as part of a bundle.
    async fn sweep_in_batch(
        &self,
        mut sweep: Sweep<'static>,
        now: pipeline::Clock,
        done: &mut Done,
        pace: &mut Pace,
    ) -> Result<(), Error> {
        while !self.pipeline.borrow_mut().seek(&mut sweep, STEP)? {
            pace.step().await;
        }
        let mut outcome = FlowModOutcome::default();
        while !self
            .pipeline
            .borrow_mut()
            .apply(&mut sweep, STEP, &mut outcome, now)?
        {
            pace.step().await;
        }
        done.removed.append(&mut outcome.removed);
        Ok(())
    }

    /// Carries out a message that is no flow mod, or notes what it is to do in the end.
    fn carry_out_other(
        &self,
        message: &mut Message,
        version: Version,
        now: pipeline::Clock,
        done: &mut Done,
    ) -> Result<(), Error> {
        match message {
            Message::GroupMod(change) => {
                let outcome = self.pipeline.borrow_mut().group_mod(change, version, now)?;
                done.removed.extend(outcome.removed);
            }
            Message::PortMod(change) => {
                self.check_port_mod(change)?;
                done.effects.push(Effect::Port(change.clone()));
            }
            Message::PacketOut(packet) => {
                let program = self.check_packet_out(packet, version)?;
                let data = std::mem::take(&mut packet.data);
                done.effects.push(Effect::Packet(program, data));
            }
            _ => return Err(Error::BundleMessageUnsupported),
        }
        Ok(())
    }

    fn take_effect(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Port(change) => {
                    // Whether it can be done was seen before; a port that has gone since is told
                    // of.
                    if let Err(error) = self.port_mod(&change) {
                        tracing::warn!(target: "ofproto", "{}: port {}: {error}", self.name, change.port);
                    }
                }
                Effect::Packet(program, data) => self.send_packet_out(program, &data),
            }
        }
    }
}
