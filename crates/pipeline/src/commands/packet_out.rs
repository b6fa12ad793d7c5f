//! Packet-outs: a packet with actions of its own.

use crate::reference::story::NO_ETHERTYPE;
use crate::reference::{self, Surroundings};
use crate::state::criteria::INTERNAL;
use crate::{Clock, FlowModOutcome, Pipeline, check, compile};
use openflow::action::{Action, Instruction};
use openflow::error::Error;
use openflow::flow::FlowModCommand;
use openflow::message::{NO_BUFFER, PacketOut};
use openflow::port::{self, PortNo};
use openflow::{Message, Version};
use packet::key::at;
use packet::{Field, FlowKey, Match, WordSet, parse};
use program::actions::OpList;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most passes behind `ct` in which a packet-out is looked at for what it learns.
const MAX_PASSES: u32 = 64;

/// A packet-out, checked and compiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOutProgram {
    /// The packet's ingress port, or a reserved number that no port has.
    pub in_port: PortNo,
    /// The packet's other metadata fields: metadata, registers and tunnel, and `in_port` with them.
    /// None if it has none.
    pub metadata: Option<Box<FlowKey>>,
    /// The compiled actions.
    pub ops: Arc<OpList>,
}

impl Pipeline {
    /// Checks and compiles a packet-out (OpenFlow 1.3.5 section 7.3.7). There are no packet
    /// buffers: a message that names one is refused.
    pub fn packet_out(
        &self,
        message: &PacketOut,
        version: Version,
    ) -> Result<PacketOutProgram, Error> {
        let in_port = ingress(message)?;
        let ops = self.compile_actions(&message.actions, &description(&message.data), version)?;
        Ok(PacketOutProgram {
            in_port,
            metadata: self.metadata(&message.matching, in_port)?,
            ops,
        })
    }

    /// Returns the pipeline fields of a packet-out's match; bits that it masks out are zero.
    fn metadata(&self, matching: &Match, in_port: PortNo) -> Result<Option<Box<FlowKey>>, Error> {
        // Every packet has an Ethernet header here.
        if !matching.get(Field::PacketType).0.is_zero() {
            return Err(Error::BadMatchValue);
        }
        let matching = self.options.matching(matching)?;
        let mut key = FlowKey::ZERO;
        for word in matching.words() {
            key.words[usize::from(word.word)] = word.value;
        }
        key.clear(parse::PACKET_WORDS);
        if key.nonzero().is_empty() {
            return Ok(None);
        }
        key.set_u32(at::IN_PORT, in_port);
        Ok(Some(Box::new(key)))
    }

    /// Returns whether the packet may meet `learn` actions.
    pub fn may_teach(&self, program: &PacketOutProgram) -> bool {
        program.ops.learns() || self.tables().has_learning_rules()
    }

    /// Adds the rules that a packet-out learns, when the packet itself is walked later. Rules that
    /// are refused are left out, as in a walk. `program` is the result of checking `message`.
    pub fn teach(
        &mut self,
        message: &PacketOut,
        program: &PacketOutProgram,
        surroundings: Surroundings<'_>,
        now: Clock,
    ) -> FlowModOutcome {
        let mut key = match &program.metadata {
            Some(metadata) => **metadata,
            None => reference::key_of(program.in_port),
        };
        // Workers give this Ethertype to frames without one; with zero, `trace` would give them
        // zero.
        key.set_u16(at::ETH_TYPE, NO_ETHERTYPE);
        let actions = Some(message.actions.as_slice());
        let (told, story) = reference::trace(self, &key, &message.data, actions, surroundings);
        let mut learned = told.learned;
        // Tracked packets go on as those of new connections.
        let mut waiting = VecDeque::from(story.forks());
        for pass in 1..=MAX_PASSES {
            let Some(fork) = waiting.pop_front() else {
                break;
            };
            let state = conntrack::state::TRACKED | conntrack::state::NEW;
            let (told, story) = reference::resume(self, &fork, state, pass, surroundings);
            learned.extend(told.learned);
            waiting.extend(story.forks());
        }
        let mut outcome = FlowModOutcome::default();
        for change in &learned {
            if let Ok(learned) = self.flow_mod(change, Version::V1_0, now) {
                outcome.extend(learned);
            }
        }
        outcome
    }

    /// Checks actions against packets that a match describes, and compiles them as a packet-out's.
    pub fn compile_actions(
        &self,
        actions: &[Action],
        matching: &Match,
        version: Version,
    ) -> Result<Arc<OpList>, Error> {
        let actions = &*self.options.actions(actions)?;
        check::packet_out(actions, matching, version)?;
        self.check_fcf(actions)?;
        self.check_groups(&[Instruction::ApplyActions(actions.to_vec())])?;
        self.check_meters(&[Instruction::ApplyActions(actions.to_vec())])?;
        Ok(Arc::new(compile::packet_out(actions, self.context())))
    }
}

/// Returns the ingress port of a packet-out's packet, or an error if it cannot be one.
fn ingress(message: &PacketOut) -> Result<PortNo, Error> {
    if message.buffer_id != NO_BUFFER {
        return Err(Error::BufferUnknown);
    }
    let (named, mask) = message.matching.get(Field::InPortOxm);
    let in_port = if mask.is_zero() {
        message.in_port
    } else {
        named.to_u64() as PortNo
    };
    if in_port >= port::MAX && ![port::LOCAL, port::CONTROLLER, port::ANY].contains(&in_port) {
        return Err(Error::BadRequestPort);
    }
    Ok(in_port)
}

/// Checks of a message that is added to a bundle those properties that do not depend on rules,
/// groups and ports. Open vSwitch finds the same errors at this time, and all others at the commit.
pub fn check_bundled(message: &Message, version: Version) -> Result<(), Error> {
    match message {
        Message::FlowMod { change, .. } => {
            let deletes = matches!(
                change.command,
                FlowModCommand::Delete | FlowModCommand::DeleteStrict
            );
            if change.table == INTERNAL && !deletes {
                return Err(Error::Permission);
            }
        }
        Message::PacketOut(packet) => {
            ingress(packet)?;
            check::packet_out(&packet.actions, &description(&packet.data), version)?;
        }
        _ => {}
    }
    Ok(())
}

/// Describes a packet by a match, against which prerequisites are checked. A packet too short to be
/// a frame has no Ethertype.
fn description(packet: &[u8]) -> Match {
    let mut key = FlowKey::ZERO;
    parse::parse(
        packet,
        packet.len(),
        0,
        WordSet(parse::PACKET_WORDS.0),
        &mut key,
    );
    let mut matching = Match::any();
    let parts = [
        (at::ETH_TYPE, 2),
        (at::VLAN_TCI, 2),
        (at::VLAN_TCI2, 2),
        (at::IP_PROTO, 1),
        (at::IP_FRAG, 1),
        (at::TP_SRC, 4),
    ];
    for (offset, bytes) in parts {
        matching.set_bytes(
            offset,
            &key.bytes()[offset..offset + bytes],
            &[0xff; 4][..bytes],
        );
    }
    matching
}
