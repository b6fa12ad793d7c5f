//! Carries out a bundle's messages: all of them or none, in their order.
//!
//! Changes of rules and groups are a batch of the pipeline, which is rolled back at the first
//! message that fails; port mods are only checked until all messages are known to succeed. Then the
//! rules are published, all at once, and ports are configured and packets sent in the messages'
//! order.
//!
//! Many messages are carried out in slices ([`super::slices`]), under the reserved epoch, and
//! undone in slices if one fails.
//!
//! A packet-out sees the rules and groups of the messages before it, but not those of the messages
//! behind it. So changes behind it carry the next epoch. The last of these epochs is published, and
//! with it the whole bundle: other packets never see a part of it. Only the packet-out's walk uses
//! its own epoch, which is pinned until then ([`program::epoch::Domain::pin`]). Rules that it asks
//! for (`learn`) are added at its place, too, since messages behind it may affect them: the
//! pipeline's reference says which rules these are.

use super::bridge::Bridge;
use super::continuation::ETHERNET;
use super::slices::{AT_ONCE, Pace, STEP};
use crate::openflow::{BundleFailure, LocalFuture, Switch};
use datapath::Moment;
use openflow::flow::{FlowModCommand, FlowRemoved};
use openflow::group::GroupCommand;
use openflow::message::{Fragments, PacketOut};
use openflow::port::PortMod;
use openflow::{Error, Message, Version};
use pipeline::reference::Surroundings;
use pipeline::{Begun, FlowModOutcome};
use program::epoch::{Epoch, Pinned};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long packet-outs wait for room in the datapath's queue before they are refused.
const ROOM_LIMIT: Duration = Duration::from_secs(1);

/// An effect that is delayed until all messages are known to succeed.
enum Effect {
    Port(PortMod),
    Packet(pipeline::PacketOutProgram, Vec<u8>, Option<Moment>),
}

/// The epochs of a bundle's changes.
struct Stages {
    /// The epoch of the current changes.
    epoch: Epoch,
    /// Whether a packet-out uses it, so that further changes need another one.
    used: bool,
    /// Pin on the first epoch that a packet-out uses.
    pinned: Option<Arc<Pinned>>,
}

/// How many messages ahead memory is prefetched.
const AHEAD: usize = 8;
/// Messages between two checks whether a slice is over.
const LOOK: usize = 16;

/// Prefetches a message.
fn fetch(message: &Message) {
    let at = std::ptr::from_ref(message).cast::<u8>();
    (0..size_of::<Message>())
        .step_by(64)
        .for_each(|line| program::prefetch(at.wrapping_add(line)));
}

/// Results of a bundle's messages so far.
#[derive(Default)]
struct Done {
    effects: Vec<Effect>,
    removed: Vec<FlowRemoved>,
}

/// Prefetches the messages behind one, and the rules that they will look at.
fn fetch_ahead(bridge: &Bridge, piece: &[Message], index: usize) {
    if let Some(message) = piece.get(index + 2 * AHEAD) {
        fetch(message);
    }
    if let Some(Message::FlowMod { change, .. }) = piece.get(index + AHEAD) {
        bridge.pipeline.borrow().expect(change, AHEAD);
    }
}

/// Returns whether a packet-out comes before a change that it must not see.
fn has_packet_outs_within(pieces: &[Vec<Message>]) -> bool {
    let mut behind = pieces
        .iter()
        .flatten()
        .skip_while(|message| !matches!(message, Message::PacketOut(_)));
    behind.any(|message| !matches!(message, Message::PacketOut(_)))
}

/// A change of a port that goes on.
type Going = LocalFuture<Result<(), Error>>;

/// Waits for all of them. They have been checked, so none fails.
async fn all_done(going: Vec<Going>) {
    for done in going {
        let _ = done.await;
    }
}

/// Returns whether a message may affect many rules.
fn is_wide(message: &Message) -> bool {
    match message {
        Message::FlowMod { change, .. } => {
            matches!(
                change.command,
                FlowModCommand::Modify | FlowModCommand::Delete
            ) || pipeline::deletes_learned(&change.instructions)
        }
        Message::GroupMod(change) => change.command == GroupCommand::Delete,
        _ => false,
    }
}

impl Bridge {
    /// Carries out all of the messages, or none and returns the first failure. Many of them, or
    /// some that may affect many rules, are carried out in slices.
    pub(super) fn carry_out(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), BundleFailure>>>, BundleFailure> {
        let messages: usize = pieces.iter().map(Vec::len).sum();
        let (many_rules, deletes_learned) = {
            let pipeline = self.pipeline.borrow();
            (pipeline.rule_count() > AT_ONCE, pipeline.deletes_learned())
        };
        let slowly = messages > AT_ONCE
            || many_rules && (deletes_learned || pieces.iter().flatten().any(is_wide))
            || has_packet_outs_within(&pieces);
        if slowly {
            let done = self.change_slowly(|bridge| async move {
                bridge.carry_out_slowly(pieces, version).await
            });
            return Ok(Some(Box::pin(async move {
                all_done(done.await?).await;
                Ok(())
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
        let mut going = Vec::new();
        for effect in done.effects {
            going.extend(self.take_effect(effect));
        }
        if going.is_empty() {
            return Ok(None);
        }
        Ok(Some(Box::pin(async move {
            all_done(going).await;
            Ok(())
        })))
    }

    /// Carries out all of the messages or none, in slices. Returns what still goes on: devices that
    /// are to be set up or down, for which nobody else need wait.
    async fn carry_out_slowly(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<Vec<Going>, BundleFailure> {
        let now = self.switch().now();
        let mut pace = Pace::new();
        let turn = self.reserve().await;
        self.pipeline.borrow_mut().begin_batch();
        let mut stages = Stages {
            epoch: self.switch().program.domain.horizon(),
            used: false,
            pinned: None,
        };
        let mut done = Done::default();
        let mut before = 0;
        let mut failure = None;
        'messages: for mut piece in pieces {
            for index in 0..piece.len() {
                fetch_ahead(self, &piece, index);
                if matches!(piece[index], Message::FlowMod { .. } | Message::GroupMod(_)) {
                    self.begin_stage(&mut stages);
                }
                let carried = match &mut piece[index] {
                    Message::FlowMod { change, .. } => {
                        let begun =
                            (self.pipeline.borrow_mut()).begin_flow_mod(change, version, now, STEP);
                        self.go_on_in_batch(begun, now, &mut done, &mut pace).await
                    }
                    Message::GroupMod(change) => {
                        let begun = (self.pipeline.borrow_mut())
                            .begin_group_mod(change, version, now, STEP);
                        self.go_on_in_batch(begun, now, &mut done, &mut pace).await
                    }
                    Message::PacketOut(packet) => {
                        self.note_packet_out(packet, version, now, &mut stages, &mut done)
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
        let mut going = Vec::new();
        if failure.is_none() {
            self.send_removed_slowly(done.removed, &mut pace).await;
            going = self.take_effect_slowly(done.effects, &mut pace).await;
        }
        while !self.pipeline.borrow_mut().tidy(STEP) {
            pace.step().await;
        }
        failure.map_or(Ok(going), Err)
    }

    /// Ends a change that has begun, as part of a bundle.
    async fn go_on_in_batch(
        &self,
        begun: Result<Begun<'static>, Error>,
        now: pipeline::Clock,
        done: &mut Done,
        pace: &mut Pace,
    ) -> Result<(), Error> {
        let mut sweep = match begun? {
            Begun::Done(outcome) => {
                done.removed.extend(outcome.removed);
                return Ok(());
            }
            Begun::Long(sweep) => sweep,
        };
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

    /// Carries out a message other than a flow mod, or notes its delayed effect.
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
                done.effects.push(Effect::Packet(program, data, None));
            }
            _ => return Err(Error::BundleMessageUnsupported),
        }
        Ok(())
    }

    /// Ensures that further changes are not seen by the packet-outs before them.
    fn begin_stage(&self, stages: &mut Stages) {
        if !stages.used {
            return;
        }
        if let Some(epoch) = self.switch().program.domain.reserve_next() {
            self.pipeline.borrow_mut().change_in(Some(epoch));
            (stages.epoch, stages.used) = (epoch, false);
        }
    }

    /// Checks a packet-out, notes the epoch of its rules, and adds the rules that it asks for.
    fn note_packet_out(
        &self,
        packet: &mut PacketOut,
        version: Version,
        now: pipeline::Clock,
        stages: &mut Stages,
        done: &mut Done,
    ) -> Result<(), Error> {
        let program = self.check_packet_out(packet, version)?;
        let epoch = stages.epoch;
        let domain = &self.switch().program.domain;
        let pinned = stages
            .pinned
            .get_or_insert_with(|| Arc::new(domain.pin(epoch)));
        let mut moment = Moment {
            pinned: Arc::clone(pinned),
            epoch,
            taught: false,
        };
        stages.used = true;
        // A packet without an Ethernet header is not looked up.
        let has_header = packet.data.len() >= ETHERNET;
        if has_header && self.pipeline.borrow().may_teach(&program) {
            self.begin_stage(stages);
            let live = |port| self.is_live(port);
            let surroundings = Surroundings {
                live: &live,
                hides_fragment_ports: self.fragments.get() == Fragments::Normal,
                learns: true,
            };
            let mut pipeline = self.pipeline.borrow_mut();
            let outcome = pipeline.teach(packet, &program, surroundings, now);
            done.removed.extend(outcome.removed);
            moment.taught = true;
        }
        let data = std::mem::take(&mut packet.data);
        done.effects
            .push(Effect::Packet(program, data, Some(moment)));
        Ok(())
    }

    /// Carries out the delayed effects, in the messages' order, after all messages have succeeded.
    /// Returns what still goes on.
    async fn take_effect_slowly(&self, effects: Vec<Effect>, pace: &mut Pace) -> Vec<Going> {
        let mut going = Vec::new();
        // Wait only once for a worker that does not respond.
        let (mut sent, mut stuck) = (false, false);
        for effect in effects {
            let begun = Instant::now();
            match &effect {
                // A port changes at once, but workers have yet to send the packet-outs before it.
                Effect::Port(_) if sent && !stuck => {
                    self.barrier().await;
                    sent = false;
                }
                Effect::Packet(..) if !stuck => {
                    self.wait_for_room().await;
                    sent = true;
                }
                _ => {}
            }
            stuck |= begun.elapsed() >= ROOM_LIMIT;
            going.extend(self.take_effect(effect));
            pace.step().await;
        }
        going
    }

    /// Waits until a packet-out would be accepted, [`ROOM_LIMIT`] at most.
    async fn wait_for_room(&self) {
        let switch = self.switch();
        let begun = Instant::now();
        let has_room = || switch.with_datapath(|datapath| datapath.packet_out_room() > 0);
        while !has_room().unwrap_or(true) && begun.elapsed() < ROOM_LIMIT {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Carries out a delayed effect; returns a future for its end if it takes long.
    fn take_effect(&self, effect: Effect) -> Option<Going> {
        match effect {
            // Checked before; the port may have been removed since.
            Effect::Port(change) => self.port_mod(&change).unwrap_or_else(|error| {
                tracing::warn!(target: "ofproto", "{}: port {}: {error}", self.name, change.port);
                None
            }),
            Effect::Packet(program, data, moment) => {
                self.send_packet_out(program, data, moment);
                None
            }
        }
    }
}
