//! A bundle's messages carried out: all of them or none, in their order.
//!
//! Changes of rules and groups are a batch of the pipeline, which is rolled back at the first message that fails; ports are only looked at until all
//! messages are known to succeed. Then the rules are published, all at once, and ports are configured and packets sent in the messages' order.

use super::bridge::Bridge;
use crate::openflow::{BundleFailure, Switch};
use openflow::port::PortMod;
use openflow::{Error, Message, Version};

/// What is done once all messages are known to succeed.
enum Effect {
    Port(PortMod),
    Packet(pipeline::PacketOutProgram, Vec<u8>),
}

/// How many messages ahead memory is fetched for.
const AHEAD: usize = 8;

/// Fetches a message from memory.
fn fetch(message: &Message) {
    let at = std::ptr::from_ref(message).cast::<u8>();
    (0..size_of::<Message>())
        .step_by(64)
        .for_each(|line| program::prefetch(at.wrapping_add(line)));
}

impl Bridge {
    /// Does all of the messages or none: then it says which failed first, and why.
    pub(super) fn carry_out(
        &self,
        pieces: &mut dyn Iterator<Item = Vec<Message>>,
        version: Version,
    ) -> Result<(), BundleFailure> {
        let now = self.switch().now();
        self.pipeline.borrow_mut().begin_batch();
        let mut effects = Vec::new();
        let mut removed = Vec::new();
        let mut done = 0;
        for mut piece in pieces {
            for index in 0..piece.len() {
                if let Some(message) = piece.get(index + 2 * AHEAD) {
                    fetch(message);
                }
                if let Some(Message::FlowMod { change, .. }) = piece.get(index + AHEAD) {
                    self.pipeline.borrow().expect(change, AHEAD);
                }
                let carried = match &mut piece[index] {
                    Message::FlowMod { change, .. } => {
                        let outcome = self.pipeline.borrow_mut().flow_mod(change, version, now);
                        outcome.map(|outcome| removed.extend(outcome.removed))
                    }
                    Message::GroupMod(change) => {
                        let outcome = self.pipeline.borrow_mut().group_mod(change, version, now);
                        outcome.map(|outcome| removed.extend(outcome.removed))
                    }
                    Message::PortMod(change) => self
                        .check_port_mod(change)
                        .map(|_| effects.push(Effect::Port(change.clone()))),
                    Message::PacketOut(packet) => {
                        self.check_packet_out(packet, version).map(|program| {
                            let data = std::mem::take(&mut packet.data);
                            effects.push(Effect::Packet(program, data));
                        })
                    }
                    _ => Err(Error::BundleMessageUnsupported),
                };
                if let Err(error) = carried {
                    self.pipeline.borrow_mut().roll_back();
                    return Err(BundleFailure {
                        message: done + index,
                        error,
                    });
                }
            }
            done += piece.len();
        }
        self.pipeline.borrow_mut().end_batch();
        self.publish();
        self.tell_removed(removed);
        for effect in effects {
            match effect {
                Effect::Port(change) => {
                    // Whether it can be done was seen above, and nothing came in between.
                    if let Err(error) = self.port_mod(&change) {
                        tracing::warn!(target: "ofproto", "{}: port {}: {error}", self.name, change.port);
                    }
                }
                Effect::Packet(program, data) => self.send_packet_out(program, &data),
            }
        }
        Ok(())
    }
}
