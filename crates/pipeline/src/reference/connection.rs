//! Connection tracking. A packet under test asks the tracker that its surroundings have. Tracing
//! must not touch connections: its story ends where the packet is tracked, and says with what it is
//! to go on.

use super::story::{Fork, TrackedCopy, What};
use super::{At, Machine, ones};
use crate::compile::connection::{helper, nat};
use conntrack::{Earlier, Masked, Request, Tracked, state};
use openflow::action::{Action, Subfield};
use openflow::conntrack::{Ct, CtZone, Nat, NatDirection};
use packet::key::at;
use packet::{Field, Value};
use program::exec::MAX_RESUBMITS;
use std::net::IpAddr;
use std::rc::Rc;

/// Most times that a packet continues behind the tracker, as Open vSwitch's `MAX_RECIRC_DEPTH`.
const MAX_RECIRCULATIONS: u8 = 6;

/// The connection tracker as a packet under test finds it, given the packet, what its
/// last lookup said, and the request.
pub type TrackBy<'t> = &'t dyn Fn(&[u8], Earlier, &Request<'_>) -> Tracked;

impl Machine<'_> {
    /// Sends the packet through the tracker, and a copy on to the table.
    pub(super) fn track(&mut self, ct: &Ct, at: At) {
        let zone = match &ct.zone {
            CtZone::Number(zone) => *zone,
            CtZone::Field(part) => self.read(part) as u16,
        };
        if self.teller.is_some() {
            return self.tell_tracking(ct, zone);
        }
        let (mark, label) = self.connection_writes(ct);
        let nat = nat(ct);
        let request = Request {
            zone,
            commit: ct.commit,
            force: ct.force,
            mark: Masked {
                value: mark.value as u32,
                mask: mark.mask as u32,
            },
            label,
            nat: nat.as_ref(),
            helper: helper(ct),
        };
        let tracked = match self.tracker {
            Some(track) => track(self.packet.bytes(), self.tracked, &request),
            None => Tracked {
                state: state::TRACKED | state::NEW,
                zone,
                ..Tracked::default()
            },
        };
        let earlier = tracked.earlier(request.nat.is_some());
        self.translate(&tracked);
        self.tracked = earlier;
        self.clear_connection();
        let Some(table) = ct.table else {
            return;
        };
        if self.recirculated == MAX_RECIRCULATIONS {
            return;
        }
        self.resubmits += 1;
        if self.resubmits > MAX_RESUBMITS {
            self.outcome.failed_copies += 1;
            return;
        }
        let before = (self.packet.clone(), self.key, self.queue);
        let (counted, packet_out) = (self.counted, self.packet_out);
        let (set, stack) = (self.set.clone(), self.stack.clone());
        self.copied += self.packet.bytes().len();
        self.recirculated += 1;
        let effects = self.outcome.effects.len();
        self.counted = self.packet.bytes().len();
        self.show_connection(&tracked);
        self.look_up(table, self.key.u32(at::IN_PORT), true, 0);
        if !self.is_over() {
            self.run_set(at);
        }
        self.recirculated -= 1;
        // An `exit` or a failure ends the copy only.
        self.stopped = false;
        if std::mem::take(&mut self.outcome.cut_short) {
            self.outcome.effects.truncate(effects);
            self.outcome.failed_copies += 1;
        }
        (self.packet, self.key, self.queue) = before;
        (self.counted, self.packet_out) = (counted, packet_out);
        (self.set, self.stack) = (set, stack);
        self.tracked = earlier;
        self.dead = false;
    }

    /// Returns whether the packet has a connection, by whose first packet it can be looked up.
    pub(super) fn has_first_packet(&self) -> bool {
        let is_ip = [0x0800, 0x86dd].contains(&self.key.u16(at::ETH_TYPE));
        is_ip && self.key.u8(at::CT_NW_PROTO) != 0
    }

    /// Puts the first packet's addresses, protocol and ports into the key.
    pub(super) fn show_first_packet(&mut self) {
        let ipv4 = self.key.u16(at::ETH_TYPE) == 0x0800;
        let (from, to, len) = match ipv4 {
            true => (at::CT_NW_SRC, at::IPV4_SRC, 8),
            false => (at::CT_IPV6_SRC, at::IPV6_SRC, 32),
        };
        let bytes = self.key.bytes_mut();
        bytes.copy_within(from..from + len, to);
        bytes.copy_within(at::CT_TP_SRC..at::CT_TP_SRC + 4, at::TP_SRC);
        bytes[at::IP_PROTO] = bytes[at::CT_NW_PROTO];
    }

    /// Makes the packet untracked. Where rules see no connection, the tracker forgets nothing.
    pub(super) fn forget_connection(&mut self) {
        if self.key.u32(at::CT_STATE) != 0 {
            self.tracked = Earlier::default();
            self.say(|| What::Untracked);
        }
        self.clear_connection();
    }

    fn clear_connection(&mut self) {
        let bytes = self.key.bytes_mut();
        bytes[at::CT_STATE..at::CT_IPV6_DST + 16].fill(0);
    }

    /// Returns what is written to the connection's mark and label.
    fn connection_writes(&mut self, ct: &Ct) -> (Masked<u128>, Masked<u128>) {
        let before = self.key;
        let mut masks = [0; 2];
        let part = |part: &Subfield| (part.field, ones(part.bits) << part.start);
        for action in &ct.actions {
            let (field, mask) = match action {
                Action::SetField { field, value, mask } => {
                    self.set_field(*field, value, mask);
                    (*field, mask.to_u128())
                }
                Action::Load { dst, value } => {
                    self.write(dst, (*value).into());
                    part(dst)
                }
                Action::Move { src, dst } => {
                    let value = self.read(src);
                    self.write(dst, value);
                    part(dst)
                }
                _ => continue,
            };
            masks[usize::from(field == Field::CtLabel)] |= mask;
        }
        let label = &self.key.bytes()[at::CT_LABEL..at::CT_LABEL + 16];
        let label = Masked {
            value: Value::from_bytes(label).to_u128() & masks[1],
            mask: masks[1],
        };
        let mark = Masked {
            value: u128::from(self.key.u32(at::CT_MARK)) & masks[0],
            mask: masks[0],
        };
        self.key = before;
        (mark, label)
    }

    /// Tells of a `ct` that a traced packet meets.
    fn tell_tracking(&mut self, ct: &Ct, zone: u16) {
        let before = self.key;
        let (bytes, now) = (self.packet.bytes().to_vec(), self.key);
        if ct.actions.is_empty() {
            self.say(|| What::Nothing);
        }
        for action in &ct.actions {
            self.say(|| What::Action(action.clone()));
            match action {
                Action::SetField { field, value, mask } => self.set_field(*field, value, mask),
                Action::Load { dst, value } => self.write(dst, (*value).into()),
                Action::Move { src, dst } => {
                    let value = self.read(src);
                    self.write(dst, value);
                    self.explain_written(dst);
                }
                _ => {}
            }
        }
        let written = self.key;
        self.key = before;
        let (mark, label) = self.connection_writes(ct);
        let nat = ct.actions.iter().find_map(|action| match action {
            Action::Nat(nat) => Some(**nat),
            _ => None,
        });
        let fork = ct.table.map(|table| {
            let mut key = written;
            key.set_u16(at::CT_ZONE, zone);
            self.copied += bytes.len() + size_of_val(&self.set[..]);
            self.copied += size_of_val(&self.stack[..]);
            Rc::new(Fork {
                table,
                key,
                bytes: bytes.clone(),
                nat,
                set: self.set.clone(),
                stack: self.stack.clone(),
                queue: self.queue,
            })
        });
        let copy = TrackedCopy {
            bytes,
            key: now,
            commit: ct.commit,
            force: ct.force,
            zone,
            mark: (mark.value as u32, mark.mask as u32),
            label: (label.value, label.mask),
            alg: ct.alg,
            nat,
            fork,
        };
        self.say(|| What::Tracked(Box::new(copy)));
        if let Some(table) = ct.table {
            self.say(|| {
                What::Detail(format!(
                    "A clone of the packet is forked to recirculate. The forked pipeline will be \
                     resumed at table {table}."
                ))
            });
        }
        self.say(|| {
            What::Detail(
                "Sets the packet to an untracked state, and clears all the conntrack fields."
                    .into(),
            )
        });
        self.clear_connection();
    }

    /// Writes the lowest addresses and ports of a translation, as Open vSwitch's traces do.
    pub(super) fn translate_as_told(&mut self, nat: Option<&Nat>) {
        let Some(Nat {
            direction: Some(direction),
            range: Some(range),
            ..
        }) = nat
        else {
            return;
        };
        let end = Some((range.min, range.min_port));
        let translation = match direction {
            NatDirection::Source => conntrack::Translation {
                source: end,
                ..Default::default()
            },
            NatDirection::Destination => conntrack::Translation {
                destination: end,
                ..Default::default()
            },
        };
        self.translate_ends(&translation, range.min_port != 0);
    }

    /// Writes translated addresses and ports.
    fn translate(&mut self, tracked: &Tracked) {
        self.translate_ends(&tracked.translation, true);
    }

    fn translate_ends(&mut self, translation: &conntrack::Translation, with_ports: bool) {
        let protocol = self.key.u8(at::IP_PROTO);
        let ports = match protocol {
            6 => [Some(Field::TcpSrc), Some(Field::TcpDst)],
            17 => [Some(Field::UdpSrc), Some(Field::UdpDst)],
            132 => [Some(Field::SctpSrc), Some(Field::SctpDst)],
            _ => [None, None],
        };
        let ends = [
            (translation.source, Field::Ipv4Src, Field::Ipv6Src, ports[0]),
            (
                translation.destination,
                Field::Ipv4Dst,
                Field::Ipv6Dst,
                ports[1],
            ),
        ];
        for (end, ipv4, ipv6, port_field) in ends {
            let Some((address, port)) = end else {
                continue;
            };
            match address {
                IpAddr::V4(address) => self.whole(ipv4, u32::from(address).into()),
                IpAddr::V6(address) => self.whole(ipv6, address.into()),
            }
            if let Some(field) = port_field.filter(|_| with_ports) {
                self.whole(field, port.into());
            }
        }
    }

    /// Fills in what the key tells of the packet's connection.
    fn show_connection(&mut self, tracked: &Tracked) {
        let mut put = |field: Field, number: u128| {
            let def = field.def();
            let value = Value::from_u128(number, def.bytes);
            self.key.bytes_mut()[def.offset..def.offset + def.bytes].copy_from_slice(&value);
        };
        put(Field::CtState, tracked.state.into());
        put(Field::CtZone, tracked.zone.into());
        put(Field::CtMark, tracked.mark.into());
        put(Field::CtLabel, tracked.label);
        let Some(tuple) = &tracked.original else {
            return;
        };
        put(Field::CtNwProto, tuple.protocol.into());
        put(Field::CtTpSrc, tuple.source_port.into());
        put(Field::CtTpDst, tuple.destination_port.into());
        match (tuple.source, tuple.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                put(Field::CtNwSrc, u32::from(source).into());
                put(Field::CtNwDst, u32::from(destination).into());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                put(Field::CtIpv6Src, source.into());
                put(Field::CtIpv6Dst, destination.into());
            }
            _ => {}
        }
    }
}
