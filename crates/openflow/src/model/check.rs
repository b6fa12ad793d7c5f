//! Checks whether actions make sense for the packets that meet them.
//!
//! From 1.1 on, a rule whose actions need a header that its match does not require is refused
//! (`OFPBAC_MATCH_INCONSISTENT`, OpenFlow 1.3.5 section 7.5.4.4); 1.0 accepts it and the action has
//! no effect. Both refuse outputs to ports that no switch can have. The check needs no state of the
//! switch: it follows what is known of the packet through the list, since pushing and popping
//! headers changes it.

use crate::model::action::{Action, Instruction, Learn, LearnSource, LearnTarget, Subfield};
use crate::model::conntrack::{Ct, CtZone};
use crate::model::error::Error;
use crate::model::port;
use crate::model::word_field;
use packet::fields::Prerequisite;
use packet::{Field, Match, Value};
use std::net::IpAddr;

/// What is known of the packets when they meet an action.
#[derive(Clone, Debug)]
struct Packets<'a> {
    eth_type: u16,
    ip_proto: u8,
    vlan_present: bool,
    matching: &'a Match,
    /// Whether missing headers are errors (1.1 and later).
    strict: bool,
}

/// Checks a rule's instructions against its match. `table` is the rule's, or
/// [`crate::flow::TABLE_ALL`] if it has no single table; `version` is the wire number of the
/// message's version.
pub fn check_instructions(
    instructions: &[Instruction],
    matching: &Match,
    table: u8,
    version: u8,
) -> Result<(), Error> {
    let mut packets = Packets::new(matching, version > 1);
    for instruction in instructions {
        match instruction {
            Instruction::ApplyActions(actions) => packets.check(actions)?,
            // An action set is executed later and in its own order: only what holds in any order is
            // checked.
            Instruction::WriteActions(actions) => {
                let mut set = packets.clone();
                set.strict = false;
                set.check(actions)?;
            }
            Instruction::GotoTable(next)
                if table != crate::model::flow::TABLE_ALL && *next <= table || *next == 0xff =>
            {
                return Err(Error::BadInstructionTableId);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks the actions of a packet-out against the packet, given as an exact match.
pub fn check_actions(actions: &[Action], packet: &Match) -> Result<(), Error> {
    Packets::new(packet, false).check(actions)
}

impl<'a> Packets<'a> {
    fn new(matching: &'a Match, strict: bool) -> Packets<'a> {
        let number = |field| word_field::of(field).map_or(0, |place| place.get(matching).0);
        Packets {
            eth_type: number(Field::EthType) as u16,
            ip_proto: number(Field::IpProto) as u8,
            vlan_present: number(Field::VlanTci) & 0x1000 != 0,
            matching,
            strict,
        }
    }

    fn check(&mut self, actions: &[Action]) -> Result<(), Error> {
        // A list with a conjunction may contain only conjunctions and notes.
        let conjunctions = actions
            .iter()
            .filter(|action| matches!(action, Action::Conjunction { .. }))
            .count();
        let notes = actions
            .iter()
            .filter(|action| matches!(action, Action::Note(_)))
            .count();
        if conjunctions > 0 && conjunctions + notes != actions.len() {
            return Err(Error::BadConjunction);
        }
        actions
            .iter()
            .try_for_each(|action| self.check_action(action))
    }

    fn check_action(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Output { port, .. } | Action::OutputTrunc { port, .. } => output(*port),
            Action::Enqueue { port, .. } => {
                let usable = *port < port::MAX || [port::IN_PORT, port::LOCAL].contains(port);
                usable.then_some(()).ok_or(Error::BadOutPort)
            }
            Action::SetVlanVid { push, .. } | Action::SetVlanPcp { push, .. } => {
                self.demand(self.vlan_present || *push)?;
                self.vlan_present = true;
                Ok(())
            }
            Action::PopVlan => {
                self.demand(self.vlan_present)?;
                self.vlan_present = false;
                Ok(())
            }
            Action::PushVlan(_) => {
                self.vlan_present = true;
                Ok(())
            }
            Action::SetIpv4Src(_) | Action::SetIpv4Dst(_) => self.demand(self.eth_type == 0x0800),
            Action::SetIpTos(_) | Action::SetIpEcn(_) | Action::SetIpTtl(_) | Action::DecTtl(_) => {
                self.demand(self.is_ip())
            }
            Action::SetL4Src(_) | Action::SetL4Dst(_) => {
                self.demand(self.is_ip() && matches!(self.ip_proto, 6 | 17 | 132))
            }
            Action::SetMplsLabel(_)
            | Action::SetMplsTc(_)
            | Action::SetMplsTtl(_)
            | Action::DecMplsTtl => self.demand(self.is_mpls()),
            Action::PopMpls(below) => {
                self.demand(self.is_mpls())?;
                self.eth_type = *below;
                Ok(())
            }
            Action::PushMpls(kind) | Action::PushPbb(kind) => {
                (self.eth_type, self.ip_proto) = (*kind, 0);
                Ok(())
            }
            Action::SetField { field, .. } => self.demand_field(*field),
            Action::Load { dst, .. } | Action::StackPop(dst) => self.demand_subfield(dst),
            Action::Move { src, dst } => {
                self.demand_subfield(src)?;
                self.demand_subfield(dst)
            }
            Action::StackPush(src) | Action::OutputReg { source: src, .. } => {
                self.demand_subfield(src)
            }
            Action::Clone(actions) => self.clone().check(actions),
            Action::FinTimeout { .. } => self.demand(self.ip_proto == 6),
            Action::Multipath(multipath) => self.demand_subfield(&multipath.dst),
            Action::Bundle(bundle) => bundle
                .dst
                .iter()
                .try_for_each(|dst| self.demand_subfield(dst)),
            Action::CheckPktLarger { dst, .. } => self.demand_subfield(dst),
            Action::Learn(learn) => self.learn(learn),
            Action::Ct(ct) => self.connection(ct),
            Action::Nat(nat) => {
                let family = match nat.range.map(|range| range.min) {
                    None => return Ok(()),
                    Some(IpAddr::V4(_)) => 0x0800,
                    Some(IpAddr::V6(_)) => 0x86dd,
                };
                (self.eth_type == family)
                    .then_some(())
                    .ok_or(Error::ActionMatchInconsistent)
            }
            Action::Encap(encap) => {
                let ethertype = encap.packet_type >> 16 == 1;
                if ethertype {
                    self.eth_type = encap.packet_type as u16;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks that the packet has the fields from which the rule is learned, and that the fields
    /// that the rule names follow from its earlier match fields. As in Open vSwitch, only the
    /// immediate values of match fields count for the latter.
    fn learn(&self, learn: &Learn) -> Result<(), Error> {
        let mut learned = Match::any();
        for spec in &learn.specs {
            if let LearnSource::Field(source) = &spec.source {
                self.demand_subfield(source)?;
            }
            let there = Packets::new(&learned, false);
            match (&spec.target, &spec.source) {
                (LearnTarget::Match(target), LearnSource::Immediate { value, .. }) => {
                    there.demand_subfield(target)?;
                    let def = target.field.def();
                    let place = usize::from(target.start) + def.shift - def.wire_shift;
                    let whole = target.start == 0 && usize::from(target.bits) == def.action_bits;
                    if target.bits <= 64 && (def.wire_shift == 0 || whole) {
                        let bits = Value::from_u128_at(*value, place, def.bytes);
                        let mask = Value::ones_at(place, target.bits.into(), def.bytes);
                        learned.set(target.field, &bits, &mask);
                    }
                }
                (LearnTarget::Match(target) | LearnTarget::Load(target), _) => {
                    there.demand_subfield(target)?;
                }
                (LearnTarget::Output, _) => {}
            }
        }
        Ok(())
    }

    /// Requires, in every version, that the packet is IP, that it has the transport protocol of the
    /// helper (`alg`), and that its fields exist.
    fn connection(&self, ct: &Ct) -> Result<(), Error> {
        let transport = match ct.alg {
            21 => self.ip_proto == 6,
            69 => self.ip_proto == 17,
            _ => true,
        };
        if !self.is_ip() || !transport {
            return Err(Error::ActionMatchInconsistent);
        }
        if let CtZone::Field(zone) = &ct.zone {
            self.demand_subfield(zone)?;
        }
        self.clone().check(&ct.actions)
    }

    fn is_ip(&self) -> bool {
        matches!(self.eth_type, 0x0800 | 0x86dd)
    }

    fn is_mpls(&self) -> bool {
        matches!(self.eth_type, 0x8847 | 0x8848)
    }

    fn demand(&self, holds: bool) -> Result<(), Error> {
        if holds || !self.strict {
            return Ok(());
        }
        Err(Error::ActionMatchInconsistent)
    }

    fn demand_subfield(&self, subfield: &Subfield) -> Result<(), Error> {
        self.demand_field(subfield.field)
    }

    /// Checks fields in every version: 1.0 cannot name them, and Nicira's actions require it.
    fn demand_field(&self, field: Field) -> Result<(), Error> {
        let holds = match field.def().prerequisite {
            Prerequisite::None => true,
            Prerequisite::VlanPresent => self.vlan_present,
            Prerequisite::Mpls => self.is_mpls(),
            Prerequisite::Ipv4 => self.eth_type == 0x0800,
            Prerequisite::Ipv6 => self.eth_type == 0x86dd,
            Prerequisite::Arp => matches!(self.eth_type, 0x0806 | 0x8035),
            Prerequisite::Rarp => self.eth_type == 0x8035,
            Prerequisite::IpAny => self.is_ip(),
            Prerequisite::Tcp => self.is_ip() && self.ip_proto == 6,
            Prerequisite::Udp => self.is_ip() && self.ip_proto == 17,
            Prerequisite::Sctp => self.is_ip() && self.ip_proto == 132,
            Prerequisite::Icmpv4 => self.eth_type == 0x0800 && self.ip_proto == 1,
            Prerequisite::Icmpv6 => self.eth_type == 0x86dd && self.ip_proto == 58,
            Prerequisite::Pbb => self.eth_type == 0x88e7,
            other => other.met_by(self.matching),
        };
        holds.then_some(()).ok_or(Error::ActionMatchInconsistent)
    }
}

fn output(number: u32) -> Result<(), Error> {
    if port::is_valid_output(number) {
        return Ok(());
    }
    Err(Error::BadOutPort)
}
