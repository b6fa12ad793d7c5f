//! Checks whether the instructions of a rule, or the actions of a packet-out, can be carried out.
//!
//! The codec has checked what depends on the message alone (lengths, encodings). Here actions are
//! compared with the rule's match, as OpenFlow 1.3.5 section 6.4 requires
//! (`OFPBAC_MATCH_INCONSISTENT`), following the tags that earlier actions of the list push and pop.
//! What this switch cannot do is refused, never ignored. Errors are those of Open vSwitch 3.1
//! unless a comment says otherwise.

mod encapsulation;

use openflow::Version;
use openflow::action::{Action, Bundle, Instruction, Multipath, READ_ONLY_IN_TOOLS, Subfield};
use openflow::conntrack::{Ct, CtZone};
use openflow::error::Error;
use openflow::port::{self, PortNo};
use packet::fields::Prerequisite;
use packet::key::at;
use packet::{Field, Match, Value};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::net::IpAddr;

/// Ports of the helpers that `ct(alg=...)` names.
const FTP: u16 = 21;
const TFTP: u16 = 69;

/// The highest table to which a rule may send packets.
const LAST_TABLE: u8 = 253;
/// How deep `clone` may nest.
const NESTING: usize = 16;
/// Smallest `max_len` of a truncating output: an Ethernet header.
const TRUNCATED_MIN: u32 = 14;
/// Bit of a TCI in the key that says there is a tag.
const PRESENT: u16 = 0x1000;

/// Checks the instructions of a rule with this match in `table`.
pub(crate) fn instructions(
    instructions: &[Instruction],
    matching: &Match,
    version: Version,
    table: u8,
) -> Result<(), Error> {
    let mut situation = Situation::new(matching, version);
    let mut seen = 0_u8;
    // Apply-actions run first, whatever the order on the wire: the action set is checked against
    // the tags that they leave.
    let mut ordered: SmallVec<[&Instruction; 4]> = instructions.iter().collect();
    ordered.sort_by_key(|instruction| crate::compile::rank(instruction));
    for instruction in ordered {
        let bit = 1 << crate::compile::rank(instruction);
        if seen & bit != 0 {
            return Err(Error::DuplicateInstruction);
        }
        seen |= bit;
        match instruction {
            Instruction::ApplyActions(actions) => {
                conjunctions(actions, instructions.len())?;
                situation.actions(actions, 0)?;
            }
            // Whether the meter exists is checked last, by the pipeline.
            Instruction::Meter(_) => {}
            Instruction::WriteActions(actions) => situation.set(actions)?,
            Instruction::ClearActions | Instruction::WriteMetadata { .. } => {}
            // Open vSwitch accepts 254 and 255; such tables do not exist (1.3.5 section 5.9.5).
            Instruction::GotoTable(next) if *next <= table || *next > LAST_TABLE => {
                situation.note(Error::BadInstructionTableId);
            }
            Instruction::GotoTable(_) => {}
            Instruction::StatTrigger(_) => return Err(Error::UnsupportedInstruction),
        }
    }
    situation.verdict()
}

/// Checks the actions of a packet-out whose packet is described by `matching`.
pub(crate) fn packet_out(
    actions: &[Action],
    matching: &Match,
    version: Version,
) -> Result<(), Error> {
    let mut situation = Situation::new(matching, version);
    conjunctions(actions, 1)?;
    situation.actions(actions, 0)?;
    situation.verdict()
}

/// Checks the actions of a group bucket: those of an action set, for packets about which nothing is
/// known.
pub(crate) fn bucket(actions: &[Action], version: Version) -> Result<(), Error> {
    let any = Match::any();
    let mut situation = Situation::new(&any, version);
    situation.unknown = true;
    situation.set(actions)?;
    situation.verdict()
}

/// Checks that only notes stand beside `conjunction` actions, since a rule with these does nothing
/// itself (ovs-actions(7)).
fn conjunctions(actions: &[Action], instructions: usize) -> Result<(), Error> {
    let part = |action: &Action| matches!(action, Action::Conjunction { .. });
    let alone = |action: &Action| part(action) || matches!(action, Action::Note(_));
    if actions.iter().any(part) && !(instructions == 1 && actions.iter().all(alone)) {
        return Err(Error::BadConjunction);
    }
    Ok(())
}

/// Returns the stage at which an error is found. Of several errors, the peer is sent the one of the
/// earliest stage. Open vSwitch does the same: it decodes a whole message, then compares it with
/// the match, and looks for groups and meters last.
fn stage(error: Error) -> u8 {
    match error {
        Error::ActionMatchInconsistent
        | Error::BadOutPort
        | Error::BadTag
        | Error::BadInstructionTableId => 1,
        Error::BadOutGroup | Error::UnknownMeter => 2,
        _ => 0,
    }
}

/// What is known about the packets that reach an action.
pub(crate) struct Situation<'m> {
    pub(crate) matching: Cow<'m, Match>,
    /// Whether actions are allowed that have no effect on packets of another protocol.
    lenient: bool,
    /// Whether set-field may write fields that are [`settable`] but not [`writable`].
    writes_all: bool,
    /// Whether nothing is known about the packets; actions may then name any field.
    unknown: bool,
    /// The error of the earliest stage found so far.
    found: Option<Error>,
    /// Whether an action does not fit the match, though version 1.0 would allow it. Reported after
    /// errors of stage 1 and before those of stage 2.
    inconsistent: bool,
}

impl<'m> Situation<'m> {
    pub(crate) fn new(matching: &'m Match, version: Version) -> Situation<'m> {
        Situation {
            matching: Cow::Borrowed(matching),
            lenient: version == Version::V1_0,
            writes_all: version < Version::V1_5,
            unknown: false,
            found: None,
            inconsistent: false,
        }
    }

    fn note(&mut self, error: Error) {
        if self.found.is_none_or(|found| stage(error) < stage(found)) {
            self.found = Some(error);
        }
    }

    fn verdict(self) -> Result<(), Error> {
        match self.found {
            Some(error) if stage(error) == 1 => Err(error),
            _ if self.inconsistent => Err(Error::ActionMatchInconsistent),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Checks a list. Returns at once only errors of stage 0; later ones are noted.
    fn actions(&mut self, actions: &[Action], depth: usize) -> Result<(), Error> {
        for action in actions {
            match self.action(action, depth) {
                Err(error) if stage(error) == 0 => return Err(error),
                Err(error) => self.note(error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Checks actions for the action set, which allows only some actions (1.3.5 section 5.10).
    fn set(&mut self, actions: &[Action]) -> Result<(), Error> {
        // What later tables do to the packet before the set runs is not known here.
        self.lenient = true;
        for action in actions {
            // In 1.0 the only form is Nicira's write_actions. Open vSwitch checks nothing there and
            // ignores such actions later; here they are refused.
            if !action.is_allowed_in_set() {
                return Err(Error::BadActionType);
            }
        }
        self.actions(actions, 0)
    }

    fn action(&mut self, action: &Action, depth: usize) -> Result<(), Error> {
        match action {
            Action::Output { port, .. } => output_port(*port),
            Action::OutputReg { source, .. } => self.source(source),
            Action::OutputTrunc { port, max_len } => truncated(*port, *max_len),
            Action::Controller { reason, .. } => controller(*reason),
            Action::Enqueue { port, .. } => device_port(*port),
            Action::SetField { field, value, mask } => self.set_field(*field, value, mask),
            Action::Load { dst, value } => self.load(dst, *value),
            Action::Move { src, dst } => self.copy(src, dst),
            Action::StackPush(from) => self.source(from),
            Action::StackPop(to) => self.destination(to),
            Action::SetVlanVid { vid, push } if *vid < 4096 => self.set_vlan(*push),
            Action::SetVlanPcp { pcp, push } if *pcp < 8 => self.set_vlan(*push),
            Action::SetVlanVid { .. } | Action::SetVlanPcp { .. } => Err(Error::BadActionArgument),
            Action::PushVlan(ethertype) => self.push_vlan(*ethertype),
            Action::PopVlan => self.pop_vlan(),
            Action::SetIpv4Src(_) | Action::SetIpv4Dst(_) => self.wants(Prerequisite::Ipv4),
            Action::SetIpTos(_) | Action::SetIpEcn(_) | Action::SetIpTtl(_) | Action::DecTtl(_) => {
                self.wants(Prerequisite::IpAny)
            }
            Action::SetL4Src(_) | Action::SetL4Dst(_) => self.wants_ports(),
            Action::SetMplsLabel(_) | Action::SetMplsTc(_) | Action::SetMplsTtl(_) => {
                self.wants(Prerequisite::Mpls)
            }
            Action::Resubmit {
                with_ct_orig: true, ..
            } if !Prerequisite::Tracked.met_by(&self.matching) => {
                Err(Error::ActionMatchInconsistent)
            }
            Action::Clone(_) if depth == NESTING => Err(Error::TooManyActions),
            Action::Clone(actions) => {
                let before = self.matching.clone();
                let result = self.actions(actions, depth + 1);
                self.matching = before;
                result
            }
            Action::Learn(learn) => self.learn(learn),
            Action::FinTimeout { .. } => self.wants(Prerequisite::Tcp),
            Action::Conjunction {
                clause, clauses, ..
            } if !(2..=64).contains(clauses) || clause >= clauses => Err(Error::BadConjunction),
            Action::Multipath(multipath) => self.multipath(multipath),
            Action::Bundle(bundle) => self.bundle(bundle),
            // Open vSwitch checks no prerequisite here; packets without the field are left
            // unchanged.
            Action::CheckPktLarger { dst, .. } => written(dst),
            Action::Sample(sample) if sample.probability == 0 => Err(Error::BadActionArgument),
            // Allowed only as the sole action of a packet-out, which never comes here.
            Action::Steer(_) => Err(Error::BadActionArgument),
            Action::Ct(ct) => self.connection(ct),
            Action::Nat(_) | Action::Encap(_) | Action::Decap(_) | Action::DecNshTtl => {
                Err(Error::BadActionExperimenterType)
            }
            Action::CopyTtlIn | Action::CopyTtlOut | Action::DecMplsTtl => {
                self.wants(Prerequisite::Mpls)
            }
            Action::PushMpls(ethertype) => self.push_mpls(*ethertype),
            Action::PopMpls(ethertype) => self.pop_mpls(*ethertype),
            Action::PushPbb(ethertype) => self.push_pbb(*ethertype),
            Action::PopPbb => self.pop_pbb(),
            Action::SetQueue(_)
            | Action::PopQueue
            | Action::SetEthSrc(_)
            | Action::SetEthDst(_)
            | Action::SetTunnel { .. }
            | Action::Note(_)
            | Action::SetFcf(_)
            | Action::Exit
            | Action::CtClear
            | Action::Conjunction { .. }
            | Action::Sample(_)
            | Action::DeleteField(_)
            | Action::Group(_)
            | Action::Meter(_)
            | Action::Resubmit { .. } => Ok(()),
        }
    }

    /// Checks connection tracking, as Open vSwitch does in every version: the match must say that
    /// packets are IP, and which protocol a helper is for.
    fn connection(&mut self, ct: &Ct) -> Result<(), Error> {
        let met = |prerequisite: Prerequisite| match self.unknown
            || prerequisite.met_by(&self.matching)
        {
            true => Ok(()),
            false => Err(Error::ActionMatchInconsistent),
        };
        met(Prerequisite::IpAny)?;
        match ct.alg {
            FTP => met(Prerequisite::Tcp)?,
            TFTP => met(Prerequisite::Udp)?,
            _ => {}
        }
        if let CtZone::Field(part) = &ct.zone {
            self.source(part)?;
        }
        let of_connection = |field: Field| match field {
            Field::CtMark | Field::CtLabel => Ok(()),
            _ => Err(Error::BadSetArgument),
        };
        for action in &ct.actions {
            match action {
                Action::Nat(nat) => match nat.range.map(|range| range.min) {
                    None => {}
                    Some(IpAddr::V4(_)) => met(Prerequisite::Ipv4)?,
                    Some(IpAddr::V6(_)) => met(Prerequisite::Ipv6)?,
                },
                Action::SetField { field, value, mask } => {
                    of_connection(*field)?;
                    let bytes = field.def().bytes;
                    if value.len() != bytes || mask.len() != bytes {
                        return Err(Error::BadSetArgument);
                    }
                }
                Action::Load { dst, .. } => {
                    of_connection(dst.field)?;
                    within(dst)?;
                }
                Action::Move { src, dst } => {
                    of_connection(dst.field)?;
                    within(dst)?;
                    self.source(src)?;
                }
                _ => return Err(Error::BadActionArgument),
            }
        }
        Ok(())
    }

    /// Checks the prerequisite of an action that 1.0 allows in any rule, where it has no effect on
    /// other packets; later versions require a match that meets it.
    fn wants(&mut self, prerequisite: Prerequisite) -> Result<(), Error> {
        self.inconsistent |= !self.lenient && !prerequisite.met_by(&self.matching);
        Ok(())
    }

    fn wants_ports(&mut self) -> Result<(), Error> {
        let fits = [Prerequisite::Tcp, Prerequisite::Udp, Prerequisite::Sctp];
        let met = fits.iter().any(|fit| fit.met_by(&self.matching));
        self.inconsistent |= !self.lenient && !met;
        Ok(())
    }

    /// Checks that the match meets the field's prerequisite, in every version: set-field, load and
    /// move come from versions and extensions that have prerequisites.
    fn has(&self, field: Field) -> Result<(), Error> {
        if self.unknown || field.def().prerequisite.met_by(&self.matching) {
            Ok(())
        } else {
            Err(Error::ActionMatchInconsistent)
        }
    }

    pub(crate) fn source(&self, part: &Subfield) -> Result<(), Error> {
        short(part)?;
        within(part)?;
        self.has(part.field)
    }

    pub(crate) fn destination(&mut self, part: &Subfield) -> Result<(), Error> {
        short(part)?;
        written(part)?;
        self.has(part.field)?;
        self.write_shape(part.field, 0)
    }

    fn set_field(&mut self, field: Field, value: &[u8], mask: &[u8]) -> Result<(), Error> {
        let def = field.def();
        if !settable(field) || !self.writes_all && !writable(field) {
            return Err(Error::BadSetArgument);
        }
        let place = def.place();
        let fits = value.len() == def.bytes
            && mask.len() == def.bytes
            && mask
                .iter()
                .zip(place.iter())
                .all(|(mask, place)| mask & !place == 0)
            && value
                .iter()
                .zip(place.iter())
                .all(|(value, place)| value & !place == 0);
        // OFPVID_PRESENT must be set in the value (1.3.5 section 7.2.3.7).
        let absent =
            || field == Field::VlanVid && *mask == *place && value[0] & (PRESENT >> 8) as u8 == 0;
        if !fits || absent() {
            return Err(Error::BadSetArgument);
        }
        self.tagged_for(field)?;
        self.has(field)?;
        if field == Field::VlanTci {
            self.write_tag(at::VLAN_TCI, u16::from_be_bytes([value[0], value[1]]));
        }
        let whole = *mask == *place;
        let number = Value::from_bytes(value).to_u64() >> def.shift;
        self.write_shape(field, if whole { number } else { 0 })
    }

    /// Checks that there is a tag when the VLAN id is written. A match on the VLAN id implies a
    /// tag; an action requires one that is there already (1.3.5 section 7.2.5).
    fn tagged_for(&self, field: Field) -> Result<(), Error> {
        match field {
            Field::VlanVid if self.unknown => Ok(()),
            Field::VlanVid if !Prerequisite::VlanPresent.met_by(&self.matching) => {
                Err(Error::ActionMatchInconsistent)
            }
            _ => Ok(()),
        }
    }

    fn load(&mut self, dst: &Subfield, value: u64) -> Result<(), Error> {
        within(dst)?;
        if !writable(dst.field) {
            return Err(Error::BadSetArgument);
        }
        if dst.bits > 64 || dst.bits < 64 && value >> dst.bits != 0 {
            return Err(Error::BadActionArgument);
        }
        self.tagged_for(dst.field)?;
        self.has(dst.field)?;
        if dst.field == Field::VlanTci {
            // As in Open vSwitch, the loaded bits alone decide whether there is a tag afterwards,
            // even if the load leaves other bits unchanged.
            self.write_tag(at::VLAN_TCI, (value << dst.start) as u16);
        }
        let whole = usize::from(dst.bits) == dst.field.def().action_bits;
        self.write_shape(dst.field, if whole { value } else { 0 })
    }

    fn copy(&mut self, src: &Subfield, dst: &Subfield) -> Result<(), Error> {
        if src.bits != dst.bits {
            return Err(Error::BadActionArgument);
        }
        within(src)?;
        written(dst)?;
        self.has(src.field)?;
        self.has(dst.field)?;
        self.write_shape(dst.field, 0)
    }

    fn multipath(&mut self, multipath: &Multipath) -> Result<(), Error> {
        self.destination(&multipath.dst)?;
        // The number of every link must fit into the destination.
        let bits = multipath.dst.bits;
        if bits < 16 && multipath.max_link >> bits != 0 {
            return Err(Error::BadActionArgument);
        }
        Ok(())
    }

    fn bundle(&mut self, bundle: &Bundle) -> Result<(), Error> {
        for member in &bundle.members {
            // A bundle has no `max_len` for the controller.
            if *member == port::CONTROLLER {
                return Err(Error::BadOutPort);
            }
            if *member != port::ANY {
                output_port(*member)?;
            }
        }
        match &bundle.dst {
            None => Ok(()),
            Some(dst) if dst.bits < 16 => Err(Error::BadActionArgument),
            Some(dst) => self.destination(dst),
        }
    }

    fn tag(&self, offset: usize) -> u16 {
        self.matching.bytes(offset, 2).0.to_u64() as u16
    }

    fn write_tag(&mut self, offset: usize, tci: u16) {
        self.matching
            .to_mut()
            .set_bytes(offset, &tci.to_be_bytes(), &[0xff; 2]);
    }

    fn set_vlan(&mut self, push: bool) -> Result<(), Error> {
        if self.tag(at::VLAN_TCI) & PRESENT != 0 {
            return Ok(());
        }
        if !push {
            self.wants(Prerequisite::VlanPresent)?;
        }
        self.write_tag(at::VLAN_TCI, PRESENT);
        Ok(())
    }

    fn push_vlan(&mut self, ethertype: u16) -> Result<(), Error> {
        if ![0x8100, 0x88a8].contains(&ethertype) {
            return Err(Error::BadActionArgument);
        }
        // The key has room for two tags; a third would hide one.
        if self.tag(at::VLAN_TCI2) & PRESENT != 0 {
            return Err(Error::BadTag);
        }
        let outer = self.tag(at::VLAN_TCI);
        self.write_tag(at::VLAN_TCI2, outer);
        self.write_tag(at::VLAN_TCI, PRESENT);
        Ok(())
    }

    fn pop_vlan(&mut self) -> Result<(), Error> {
        self.wants(Prerequisite::VlanPresent)?;
        let inner = self.tag(at::VLAN_TCI2);
        self.write_tag(at::VLAN_TCI, inner);
        self.write_tag(at::VLAN_TCI2, 0);
        Ok(())
    }
}

/// Returns whether Nicira's actions may write a field. The ingress port is writable in both forms;
/// fields of connection tracking only inside `ct`; fields that Open vSwitch only reads are not.
pub(crate) fn writable(field: Field) -> bool {
    (settable(field) || field == Field::InPortOxm) && !READ_ONLY_IN_TOOLS.contains(&field)
}

/// Returns whether set-field may write a field: every header field (1.3.5 section 7.2.5); in 1.5
/// only [`writable`] ones.
pub(crate) fn settable(field: Field) -> bool {
    let refused = matches!(field, Field::InPortOxm | Field::CtMark | Field::CtLabel);
    field.def().writable && !refused
}

fn within(part: &Subfield) -> Result<(), Error> {
    let end = u32::from(part.start) + u32::from(part.bits);
    if part.bits == 0 || end > part.field.def().action_bits as u32 {
        return Err(Error::BadActionArgument);
    }
    Ok(())
}

/// Checks that a subfield is no longer than what a step holds; moves may be longer.
fn short(part: &Subfield) -> Result<(), Error> {
    match part.bits {
        0..=128 => Ok(()),
        _ => Err(Error::BadActionArgument),
    }
}

/// Checks the destination of a move or a pop.
fn written(part: &Subfield) -> Result<(), Error> {
    within(part)?;
    if writable(part.field) {
        Ok(())
    } else {
        Err(Error::BadSetArgument)
    }
}

/// Checks that a number is that of a port with a device, present or future.
fn device_port(port: PortNo) -> Result<(), Error> {
    if port < port::MAX || port == port::LOCAL || port == port::IN_PORT {
        Ok(())
    } else {
        Err(Error::BadOutPort)
    }
}

/// Checks an output port. Rules may name ports that appear later, so every valid number is
/// accepted.
fn output_port(port: PortNo) -> Result<(), Error> {
    match port {
        port::TABLE | port::NORMAL | port::FLOOD | port::ALL | port::CONTROLLER => Ok(()),
        other => device_port(other),
    }
}

fn truncated(port: PortNo, max_len: u32) -> Result<(), Error> {
    if max_len < TRUNCATED_MIN {
        return Err(Error::BadActionArgument);
    }
    device_port(port)
}

fn controller(reason: u8) -> Result<(), Error> {
    if reason > 5 {
        Err(Error::BadActionArgument)
    } else {
        Ok(())
    }
}
