//! A connection's messages about steering (docs/protocol-extensions.md).

use super::hub::Hub;
use super::session::{Next, Session, Slow};
use super::switch::LocalFuture;
use openflow::message::{Message, NO_BUFFER, PacketOut};
use openflow::steering::{
    HostCapabilities, Steering, SteeringMod, SteeringStats, Target, VmStatus,
};
use openflow::{Error, decode};

/// Most bytes of entries in one part of a reply.
const PART: usize = 48 << 10;
/// Bytes of an entry apart from its match, padding included.
const ENTRY: usize = 50;

/// A pending request about steering.
pub(super) struct Steered {
    xid: u32,
    waits: Waits,
}

/// What the reply waits for.
enum Waits {
    Capabilities(LocalFuture<HostCapabilities>),
    Entries {
        done: LocalFuture<Result<Vec<SteeringStats>, Error>>,
        request: Vec<u8>,
    },
    Change {
        done: LocalFuture<Result<(), Error>>,
        /// The message inside the packet-out.
        inner: Vec<u8>,
    },
}

impl Session {
    /// Carries out a message about steering.
    pub(super) fn steering(&self, hub: &Hub, xid: u32, message: Steering) -> Result<Next, Error> {
        let switch = hub.switch();
        let waits = match message {
            Steering::CapabilitiesRequest => Waits::Capabilities(switch.capabilities()?),
            Steering::ModeRequest(mode) => {
                if mode.is_some() {
                    self.may_write()?;
                }
                let reply = switch.steering_mode(mode)?;
                self.reply(xid, &Message::Steering(Steering::ModeReply(reply)));
                return Ok(Next::Continue);
            }
            Steering::StatsRequest(target) => Waits::Entries {
                done: switch.steering_entries(&target)?,
                request: openflow::encode(
                    self.version,
                    xid,
                    &Message::Steering(Steering::StatsRequest(target)),
                ),
            },
            // Only a packet-out names the steering table; the others are sent by switches.
            Steering::Mod(_)
            | Steering::CapabilitiesReply(_)
            | Steering::ModeReply(_)
            | Steering::VmStatus(_)
            | Steering::StatsReply { .. } => return Err(Error::BadExperimenterType),
        };
        Ok(Next::Slow(Slow::Steering(Box::new(Steered { xid, waits }))))
    }

    /// Carries out a packet-out for a steering table. An error about the message inside quotes that
    /// message.
    pub(super) fn steer(
        &self,
        hub: &Hub,
        xid: u32,
        target: &Target,
        packet: &PacketOut,
    ) -> Result<Next, Error> {
        if packet.buffer_id != NO_BUFFER {
            return Err(Error::BufferUnknown);
        }
        let inner = packet.data.clone();
        let begun = self
            .inner_change(&inner)
            .and_then(|change| hub.switch().change_steering(target, &change));
        match begun {
            Ok(done) => {
                let waits = Waits::Change { done, inner };
                Ok(Next::Slow(Slow::Steering(Box::new(Steered { xid, waits }))))
            }
            Err(error) => {
                self.refuse_inner(xid, &inner, error);
                Ok(Next::Continue)
            }
        }
    }

    fn inner_change(&self, inner: &[u8]) -> Result<SteeringMod, Error> {
        match decode(inner, &self.decode_options()).map_err(|failure| failure.error)? {
            (_, Message::Steering(Steering::Mod(change))) => Ok(change),
            _ => Err(Error::BadType),
        }
    }

    fn refuse_inner(&self, xid: u32, inner: &[u8], error: Error) {
        tracing::info!(target: "connmgr", "{}: sending {error} error reply", self.peer);
        self.reply(xid, &Message::Error(error.about(inner)));
    }

    /// Waits for the result of a request about steering, and replies.
    pub(super) async fn finish_steering(&self, hub: &Hub, steered: Steered) {
        let Steered { xid, waits } = steered;
        match waits {
            Waits::Capabilities(done) => {
                let capabilities = done.await;
                let reply = Steering::CapabilitiesReply(capabilities);
                self.reply(xid, &Message::Steering(reply));
                // From now on the connection is told of changes; tell it the present state.
                self.knows_steering.set(true);
                for status in hub.switch().vms() {
                    self.tell_vm(status);
                }
            }
            Waits::Entries { done, request } => match done.await {
                Ok(entries) => {
                    for reply in parts(entries) {
                        self.reply(xid, &Message::Steering(reply));
                    }
                }
                Err(error) => self.refuse_inner(xid, &request, error),
            },
            Waits::Change { done, inner } => {
                if let Err(error) = done.await {
                    self.refuse_inner(xid, &inner, error);
                }
            }
        }
    }

    fn tell_vm(&self, status: VmStatus) {
        self.reply(0, &Message::Steering(Steering::VmStatus(status)));
    }
}

/// Splits entries into as many messages as they need, at least one.
fn parts(entries: Vec<SteeringStats>) -> Vec<Steering> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for entry in entries {
        let length = ENTRY + entry.matching.len();
        if bytes + length > PART {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        if let Some(part) = parts.last_mut() {
            part.push(entry);
        }
    }
    let last = parts.len() - 1;
    let numbered = parts.into_iter().enumerate();
    let replies = numbered.map(|(place, entries)| Steering::StatsReply {
        entries,
        more: place < last,
    });
    replies.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::steering::{IrqCore, MATCH_MAX, NO_CORE};
    use openflow::{Version, encode};

    fn entry(length: usize) -> SteeringStats {
        SteeringStats {
            cookie: 1,
            packets: 2,
            bytes: 3,
            precedence: 4,
            core: IrqCore::Choose,
            chosen: NO_CORE,
            vm: None,
            priority: false,
            matching: "x".repeat(length),
        }
    }

    #[test]
    fn many_entries_have_parts_that_fit_into_messages() {
        for (count, length) in [(0, 0), (1, MATCH_MAX), (4096, 20), (500, MATCH_MAX)] {
            let parts = parts(vec![entry(length); count]);
            let mut told = 0;
            for (place, part) in parts.iter().enumerate() {
                let Steering::StatsReply { entries, more } = part else {
                    panic!("{part:?}");
                };
                assert_eq!(*more, place + 1 < parts.len());
                told += entries.len();
                let bytes = encode(Version::V1_3, 1, &Message::Steering(part.clone()));
                assert!(
                    !bytes.is_empty(),
                    "{count} of {length} bytes fit into no message"
                );
            }
            assert_eq!(told, count);
        }
    }
}
