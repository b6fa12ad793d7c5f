//! Encoding of actions.
//!
//! An action is sent in the version's own form if there is one, otherwise in Nicira's; so, as with
//! Open vSwitch, a rule added by one version can be listed by another. Actions that have no form at
//! all in a version are left out.

use crate::codec::conntrack;
use crate::codec::nicira_encode;
use crate::codec::oxm;
use crate::codec::steering;
use crate::codec::wire::Put;
use crate::model::action::{Action, Subfield};
use crate::model::error::NICIRA;
use crate::model::port;
use crate::model::word_field;
use packet::{Field, Match, Value};

/// What is known of the packets that the actions meet: a few actions of old versions are encoded
/// for later versions depending on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Context {
    vlan_present: bool,
    ip_proto: u8,
}

impl Context {
    /// Returns what is known of packets that a rule matches.
    pub(crate) fn of(matching: &Match) -> Context {
        let number = |field| word_field::of(field).map_or(0, |place| place.get(matching).0);
        Context {
            vlan_present: number(Field::VlanTci) & 0x1000 != 0,
            ip_proto: number(Field::IpProto) as u8,
        }
    }
}

/// Bit of `vlan_tci` that says there is a tag.
const TAG_PRESENT: u64 = 0x1000;

/// The length at which encoding stops: a full message followed by more than another can hold. A
/// masked set-field of 40 bytes may become 1536 in 1.0.
const TOO_LONG: usize = 2 * u16::MAX as usize;

/// Encodes actions for a version. Stops early when they are too long for any message.
pub(crate) fn put_actions(out: &mut Vec<u8>, actions: &[Action], version: u8, context: Context) {
    let mut context = context;
    for action in actions {
        if out.len() > TOO_LONG {
            return;
        }
        if let Action::SetVlanVid { push: true, .. }
        | Action::SetVlanPcp { push: true, .. }
        | Action::PushVlan(_) = action
        {
            if version > 1 && !context.vlan_present && !matches!(action, Action::PushVlan(_)) {
                standard(out, 17, |out| put_padded16(out, 0x8100));
            }
            context.vlan_present = true;
        }
        put_action(out, action, version, context);
        if let Some(present) = tag_after(action) {
            context.vlan_present = present;
        }
    }
}

/// Returns whether there is a tag after the action; None if the action does not write that bit.
fn tag_after(action: &Action) -> Option<bool> {
    let (value, mask) = match action {
        Action::SetField {
            field: Field::VlanTci,
            value,
            mask,
        } => (value.to_u64(), mask.to_u64()),
        Action::Load { dst, value } if dst.field == Field::VlanTci => {
            let ones = u64::MAX >> (64 - dst.bits.clamp(1, 64));
            (value << dst.start, ones << dst.start)
        }
        _ => return None,
    };
    (mask & TAG_PRESENT != 0).then_some(value & TAG_PRESENT != 0)
}

/// Writes a standard action: header, body, and zeroes up to a multiple of 8.
fn standard(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_u16(kind);
    out.put_u16(0);
    body(out);
    out.align(start);
    out.set_length(start + 2, start);
}

/// Writes one of Nicira's actions.
pub(crate) fn nicira(out: &mut Vec<u8>, subtype: u16, body: impl FnOnce(&mut Vec<u8>)) {
    standard(out, 0xffff, |out| {
        out.put_u32(NICIRA);
        out.put_u16(subtype);
        body(out);
        // An action without arguments has six bytes of padding, added by align().
    });
}

fn put_padded16(out: &mut Vec<u8>, value: u16) {
    out.put_u16(value);
    out.pad(2);
}

fn put_padded8(out: &mut Vec<u8>, value: u8) {
    out.put_u8(value);
    out.pad(3);
}

/// Writes an action that all versions have, by its number in 1.0 and its number from 1.1 on.
fn numbered(
    out: &mut Vec<u8>,
    version: u8,
    in_10: u16,
    in_11: u16,
    body: impl FnOnce(&mut Vec<u8>),
) {
    standard(out, if version == 1 { in_10 } else { in_11 }, body);
}

/// Writes an action for which 1.0 uses Nicira's, with two bytes of padding in front of 32-bit
/// arguments.
fn nicira_or_standard(
    out: &mut Vec<u8>,
    version: u8,
    in_nicira: u16,
    in_11: u16,
    argument: Argument,
) {
    if version == 1 {
        nicira(out, in_nicira, |out| {
            if let Argument::Word(_) = argument {
                out.pad(2);
            }
            argument.put(out);
        });
    } else {
        standard(out, in_11, |out| argument.put(out));
    }
}

enum Argument {
    None,
    Byte(u8),
    Half(u16),
    Word(u32),
}

impl Argument {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Argument::None => {}
            Argument::Byte(value) => out.put_u8(*value),
            Argument::Half(value) => out.put_u16(*value),
            Argument::Word(value) => out.put_u32(*value),
        }
    }
}

fn put_action(out: &mut Vec<u8>, action: &Action, version: u8, context: Context) {
    match action {
        Action::Output { port, max_len } => output(out, version, *port, *max_len),
        Action::Enqueue { port, queue } => enqueue(out, version, *port, *queue),
        Action::SetQueue(queue) => {
            nicira_or_standard(out, version, 4, 21, Argument::Word(*queue));
        }
        Action::Group(group) => nicira_or_standard(out, version, 40, 22, Argument::Word(*group)),
        Action::Meter(meter) if version >= 6 => standard(out, 29, |out| out.put_u32(*meter)),
        Action::Meter(_) => {}
        Action::SetField { field, value, mask }
            if version < 3 || version < 6 && *mask != field.def().place() =>
        {
            old_set_field(out, version, *field, value, mask, context);
        }
        Action::SetField { field, value, mask } => set_field(out, version, *field, value, mask),
        Action::Load { dst, value } => load(out, version, *dst, *value),
        Action::Move { src, dst } => copy(out, version, *src, *dst),
        Action::SetVlanVid { .. }
        | Action::SetVlanPcp { .. }
        | Action::SetEthSrc(_)
        | Action::SetEthDst(_)
        | Action::SetIpv4Src(_)
        | Action::SetIpv4Dst(_)
        | Action::SetIpTos(_)
        | Action::SetIpEcn(_)
        | Action::SetIpTtl(_)
        | Action::SetL4Src(_)
        | Action::SetL4Dst(_)
        | Action::SetMplsLabel(_)
        | Action::SetMplsTc(_) => set(out, action, version, context),
        Action::PopVlan => numbered(out, version, 3, 18, |out| out.pad(4)),
        Action::PushVlan(_) if version == 1 => {} // in 1.0 the set actions push
        Action::PushVlan(tpid) => standard(out, 17, |out| put_padded16(out, *tpid)),
        Action::DecTtl(ids) if ids[..] == [0] => {
            nicira_or_standard(out, version, 18, 24, Argument::None);
        }
        Action::DecTtl(ids) => nicira(out, 21, |out| {
            out.put_u16(ids.len() as u16);
            out.pad(4);
            ids.iter().for_each(|id| out.put_u16(*id));
        }),
        Action::CopyTtlIn if version > 1 => standard(out, 12, |_| {}),
        Action::CopyTtlOut if version > 1 => standard(out, 11, |_| {}),
        Action::CopyTtlIn | Action::CopyTtlOut => {}
        Action::PushMpls(kind) => {
            nicira_or_standard(out, version, 23, 19, Argument::Half(*kind));
        }
        Action::PopMpls(kind) => nicira_or_standard(out, version, 24, 20, Argument::Half(*kind)),
        Action::SetMplsTtl(ttl) => nicira_or_standard(out, version, 25, 15, Argument::Byte(*ttl)),
        Action::DecMplsTtl => nicira_or_standard(out, version, 26, 16, Argument::None),
        Action::PushPbb(kind) if version >= 4 => {
            standard(out, 26, |out| put_padded16(out, *kind));
        }
        Action::PopPbb if version >= 4 => standard(out, 27, |_| {}),
        Action::PushPbb(_) | Action::PopPbb => {}
        _ => extension(out, action, version, context),
    }
}

fn output(out: &mut Vec<u8>, version: u8, port: u32, max_len: u16) {
    if version == 1 {
        standard(out, 0, |out| {
            out.put_u16(port as u16);
            out.put_u16(max_len);
        });
    } else {
        standard(out, 0, |out| {
            out.put_u32(port);
            out.put_u16(max_len);
            out.pad(6);
        });
    }
}

fn enqueue(out: &mut Vec<u8>, version: u8, port: u32, queue: u32) {
    if version == 1 {
        standard(out, 11, |out| {
            out.put_u16(port as u16);
            out.pad(6);
            out.put_u32(queue);
        });
    } else {
        standard(out, 21, |out| out.put_u32(queue));
        output(out, version, port, 0);
        nicira(out, 5, |_| {});
    }
}

/// Writes the set actions of 1.0 and 1.1; from 1.2 on they are set-fields.
fn set(out: &mut Vec<u8>, action: &Action, version: u8, context: Context) {
    if version >= 3
        && let Some((field, number)) = as_set_field(action, context)
    {
        let def = field.def();
        let value = Value::from_u128(number << def.shift, def.bytes);
        set_field(out, version, field, &value, &def.place());
        return;
    }
    match action {
        Action::SetVlanVid { vid, .. } => numbered(out, version, 1, 1, |o| put_padded16(o, *vid)),
        Action::SetVlanPcp { pcp, .. } => numbered(out, version, 2, 2, |o| put_padded8(o, *pcp)),
        Action::SetEthSrc(mac) => numbered(out, version, 4, 3, |o| put_mac(o, mac)),
        Action::SetEthDst(mac) => numbered(out, version, 5, 4, |o| put_mac(o, mac)),
        Action::SetIpv4Src(address) => numbered(out, version, 6, 5, |o| o.put_u32(*address)),
        Action::SetIpv4Dst(address) => numbered(out, version, 7, 6, |o| o.put_u32(*address)),
        Action::SetIpTos(tos) => numbered(out, version, 8, 7, |o| put_padded8(o, *tos)),
        Action::SetL4Src(port) => numbered(out, version, 9, 9, |o| put_padded16(o, *port)),
        Action::SetL4Dst(port) => numbered(out, version, 10, 10, |o| put_padded16(o, *port)),
        Action::SetIpEcn(ecn) if version > 1 => standard(out, 8, |o| put_padded8(o, *ecn)),
        Action::SetIpTtl(ttl) if version > 1 => standard(out, 23, |o| put_padded8(o, *ttl)),
        Action::SetIpEcn(ecn) => load(out, version, whole(Field::IpEcn), (*ecn).into()),
        Action::SetIpTtl(ttl) => load(out, version, whole(Field::IpTtl), (*ttl).into()),
        Action::SetMplsLabel(label) => {
            nicira_or_standard(out, version, 30, 13, Argument::Word(*label));
        }
        Action::SetMplsTc(tc) => nicira_or_standard(out, version, 31, 14, Argument::Byte(*tc)),
        _ => {}
    }
}

fn put_mac(out: &mut Vec<u8>, mac: &[u8; 6]) {
    out.put(mac);
    out.pad(6);
}

fn whole(field: Field) -> Subfield {
    let bits = field.def().action_bits as u16;
    Subfield {
        field,
        start: 0,
        bits,
    }
}

/// Returns the field and number that a set action writes. None for the TTL, which keeps its own
/// action, and for ports if the transport protocol is unknown.
fn as_set_field(action: &Action, context: Context) -> Option<(Field, u128)> {
    let ports = match context.ip_proto {
        6 => Some((Field::TcpSrc, Field::TcpDst)),
        17 => Some((Field::UdpSrc, Field::UdpDst)),
        132 => Some((Field::SctpSrc, Field::SctpDst)),
        _ => None,
    };
    let mac = |address: &[u8; 6]| Value::from_bytes(address).to_u128();
    Some(match action {
        Action::SetVlanVid { vid, .. } => (Field::VlanVid, (*vid | 0x1000).into()),
        Action::SetVlanPcp { pcp, .. } => (Field::VlanPcp, (*pcp).into()),
        Action::SetEthSrc(address) => (Field::EthSrc, mac(address)),
        Action::SetEthDst(address) => (Field::EthDst, mac(address)),
        Action::SetIpv4Src(address) => (Field::Ipv4Src, (*address).into()),
        Action::SetIpv4Dst(address) => (Field::Ipv4Dst, (*address).into()),
        Action::SetIpTos(tos) => (Field::IpDscpShifted, (*tos >> 2).into()),
        Action::SetIpEcn(ecn) => (Field::IpEcn, (*ecn).into()),
        Action::SetL4Src(port) => (ports?.0, (*port).into()),
        Action::SetL4Dst(port) => (ports?.1, (*port).into()),
        Action::SetMplsLabel(label) => (Field::MplsLabel, (*label).into()),
        Action::SetMplsTc(tc) => (Field::MplsTc, (*tc).into()),
        _ => return None,
    })
}

fn set_field(out: &mut Vec<u8>, version: u8, field: Field, value: &Value, mask: &Value) {
    let def = field.def();
    let mask = (*mask != def.place()).then_some(mask);
    if version >= 6 || version >= 3 && mask.is_none() {
        standard(out, 25, |out| {
            oxm::put_entry(out, def, value, mask, version)
        });
    } else {
        nicira(out, 33, |out| {
            oxm::put_entry(out, def, value, mask, version);
        });
    }
}

/// Writes a set-field for 1.0 and 1.1, which have none, and a masked one for 1.2 to 1.4: as the
/// version's own action if one sets the whole field, otherwise as Nicira's loads of up to 64
/// adjacent bits each. A field that has only an experimenter's number, or no fixed length, cannot
/// be loaded and stays one action (`NXAST_REG_LOAD2`).
fn old_set_field(
    out: &mut Vec<u8>,
    version: u8,
    field: Field,
    value: &Value,
    mask: &Value,
    context: Context,
) {
    let def = field.def();
    if *mask == def.place() && old_set(out, version, field, value, context) {
        return;
    }
    let experimenter = def
        .header(1)
        .is_none_or(|(_, experimenter)| experimenter != 0);
    if experimenter || field.tunnel_option().is_some() {
        return set_field(out, version, field, value, mask);
    }
    // A load counts bits from the field's lowest on the wire, as far as actions can reach.
    let number = |value: &Value| value.to_u128() >> def.shift << def.wire_shift;
    let reached = u128::MAX >> (128 - def.action_bits.clamp(1, 128));
    let (value, mut left) = (number(value), number(mask) & reached);
    while left != 0 {
        let start = left.trailing_zeros();
        let bits = (left >> start).trailing_ones().min(64);
        let ones = u128::MAX >> (128 - bits);
        let dst = Subfield {
            field,
            start: start as u16,
            bits: bits as u16,
        };
        load(out, version, dst, (value >> start & ones) as u64);
        left &= !(ones << start);
    }
}

/// Writes 1.0's or 1.1's action that sets a whole field; false if there is none.
fn old_set(out: &mut Vec<u8>, version: u8, field: Field, value: &Value, context: Context) -> bool {
    let number = value.to_u128() >> field.def().shift;
    let mut mac = [0; 6];
    if value.len() == mac.len() {
        mac.copy_from_slice(value);
    }
    let vid = (number & 0xfff) as u16;
    let action = match field {
        Field::VlanTci if number as u64 & TAG_PRESENT == 0 => Action::PopVlan,
        Field::VlanTci => {
            if version > 1 && !context.vlan_present {
                put_action(out, &Action::PushVlan(0x8100), version, context);
            }
            set(
                out,
                &Action::SetVlanVid { vid, push: true },
                version,
                context,
            );
            let pcp = (number >> 13) as u8;
            Action::SetVlanPcp { pcp, push: true }
        }
        Field::VlanVid => Action::SetVlanVid { vid, push: false },
        Field::VlanPcp => Action::SetVlanPcp {
            pcp: number as u8,
            push: false,
        },
        Field::EthSrc => Action::SetEthSrc(mac),
        Field::EthDst => Action::SetEthDst(mac),
        Field::Ipv4Src => Action::SetIpv4Src(number as u32),
        Field::Ipv4Dst => Action::SetIpv4Dst(number as u32),
        Field::IpDscp | Field::IpDscpShifted => Action::SetIpTos((number as u8) << 2),
        Field::IpEcn => Action::SetIpEcn(number as u8),
        Field::TcpSrc | Field::UdpSrc => Action::SetL4Src(number as u16),
        Field::TcpDst | Field::UdpDst => Action::SetL4Dst(number as u16),
        _ => return false,
    };
    put_action(out, &action, version, context);
    true
}

fn load(out: &mut Vec<u8>, version: u8, dst: Subfield, value: u64) {
    let def = dst.field.def();
    if version >= 6 {
        // A load counts from the lowest bit on the wire, which may be below the field's lowest bit.
        let below = def.wire_shift.saturating_sub(dst.start.into());
        let shift = def.shift + usize::from(dst.start) + below - def.wire_shift;
        let bits = usize::from(dst.bits).saturating_sub(below);
        if bits == 0 {
            return;
        }
        let mask = Value::ones_at(shift, bits, def.bytes);
        let value = Value::from_u128_at(u128::from(value) >> below, shift, def.bytes);
        set_field(out, version, dst.field, &value, &mask);
        return;
    }
    nicira(out, 7, |out| {
        out.put_u16(dst.start << 6 | (dst.bits - 1));
        oxm::put_header(out, dst.field, 1);
        out.put_u64(value);
    });
}

fn copy(out: &mut Vec<u8>, version: u8, src: Subfield, dst: Subfield) {
    let put = |out: &mut Vec<u8>, padding, version| {
        out.put_u16(src.bits);
        out.put_u16(src.start);
        out.put_u16(dst.start);
        out.pad(padding);
        oxm::put_header(out, src.field, version);
        oxm::put_header(out, dst.field, version);
    };
    if version >= 6 {
        standard(out, 28, |out| put(out, 2, version));
    } else {
        nicira(out, 6, |out| put(out, 0, 1));
    }
}

/// Writes actions that only Nicira has.
fn extension(out: &mut Vec<u8>, action: &Action, version: u8, context: Context) {
    match action {
        Action::OutputReg { source, max_len } => nicira(out, 15, |out| {
            out.put_u16(source.start << 6 | (source.bits - 1));
            oxm::put_header(out, source.field, 1);
            out.put_u16(*max_len);
            out.pad(6);
        }),
        Action::OutputTrunc { port, max_len } => nicira(out, 39, |out| {
            out.put_u16(*port as u16);
            out.put_u32(*max_len);
        }),
        Action::Controller { .. } => controller(out, action),
        Action::PopQueue => nicira(out, 5, |_| {}),
        Action::Resubmit {
            in_port,
            table,
            with_ct_orig,
        } => resubmit(out, *in_port, *table, *with_ct_orig),
        Action::SetTunnel { id, .. } if version >= 3 => {
            let def = Field::TunId.def();
            let value = Value::from_u128((*id).into(), def.bytes);
            set_field(out, version, Field::TunId, &value, &def.place());
        }
        Action::SetTunnel { id, wide: false } => nicira(out, 2, |out| {
            out.pad(2);
            out.put_u32(*id as u32);
        }),
        Action::SetTunnel { id, wide: true } => nicira(out, 9, |out| {
            out.pad(6);
            out.put_u64(*id);
        }),
        Action::Note(bytes) => nicira(out, 8, |out| out.put(bytes)),
        Action::Exit => nicira(out, 17, |_| {}),
        Action::StackPush(subfield) => nicira(out, 27, |out| stack(out, *subfield)),
        Action::StackPop(subfield) => nicira(out, 28, |out| stack(out, *subfield)),
        Action::Clone(actions) => nicira(out, 42, |out| {
            out.pad(6);
            put_actions(out, actions, version, context);
        }),
        Action::Conjunction {
            id,
            clause,
            clauses,
        } => nicira(out, 34, |out| {
            out.put_u8(*clause);
            out.put_u8(*clauses);
            out.put_u32(*id);
        }),
        _ => structured(out, action, version, context),
    }
}

/// Writes Nicira's actions whose arguments are structured.
fn structured(out: &mut Vec<u8>, action: &Action, version: u8, context: Context) {
    match action {
        Action::Learn(learn) => nicira_encode::learn(out, learn),
        Action::Multipath(multipath) => nicira_encode::multipath(out, multipath),
        Action::Bundle(bundle) => nicira_encode::bundle(out, bundle),
        Action::CheckPktLarger { max_len, dst } => {
            nicira_encode::check_pkt_larger(out, *max_len, *dst);
        }
        Action::Sample(sample) => nicira_encode::sample(out, sample),
        Action::FinTimeout { idle, hard } => nicira_encode::fin_timeout(out, *idle, *hard),
        Action::DeleteField(field) => nicira_encode::delete_field(out, *field),
        Action::Ct(ct) => conntrack::put_ct(out, ct, |out| {
            put_actions(out, &ct.actions, version, context);
        }),
        Action::CtClear => nicira(out, 43, |_| {}),
        Action::Nat(nat) => conntrack::put_nat(out, nat),
        // Packet types came with 1.3; older versions have no number for these actions.
        Action::Encap(encap) if version >= 4 => conntrack::put_encap(out, encap),
        Action::Decap(packet_type) if version >= 4 => conntrack::put_decap(out, *packet_type),
        Action::DecNshTtl if version >= 4 => nicira(out, 48, |_| {}),
        Action::SetFcf(_) | Action::Steer(_) => {
            standard(out, 0xffff, |out| steering::put_action(out, action));
        }
        _ => {}
    }
}

fn stack(out: &mut Vec<u8>, subfield: Subfield) {
    let start = out.len();
    out.put_u16(subfield.start);
    oxm::put_header(out, subfield.field, 1);
    out.put_u16(subfield.bits);
    // The action has 24 bytes, whatever the header's length.
    out.pad(14 - (out.len() - start));
}

fn resubmit(out: &mut Vec<u8>, in_port: Option<u32>, table: Option<u8>, with_ct_orig: bool) {
    nicira(out, if with_ct_orig { 44 } else { 14 }, |out| {
        out.put_u16(in_port.unwrap_or(port::IN_PORT) as u16);
        out.put_u8(table.unwrap_or(0xff));
    });
}

fn controller(out: &mut Vec<u8>, action: &Action) {
    let Action::Controller {
        max_len,
        controller_id,
        reason,
        userdata,
        pause,
        meter_id,
    } = action
    else {
        return;
    };
    if userdata.is_empty() && !pause && meter_id.is_none() {
        nicira(out, 20, |out| {
            out.put_u16(*max_len);
            out.put_u16(*controller_id);
            out.put_u8(*reason);
        });
        return;
    }
    nicira(out, 37, |out| {
        out.pad(6);
        if *max_len != u16::MAX {
            property(out, 0, |out| out.put_u16(*max_len));
        }
        if *controller_id != 0 {
            property(out, 1, |out| out.put_u16(*controller_id));
        }
        if *reason != 1 {
            property(out, 2, |out| out.put_u8(*reason));
        }
        if !userdata.is_empty() {
            property(out, 3, |out| out.put(userdata));
        }
        if *pause {
            property(out, 4, |_| {});
        }
        if let Some(meter) = meter_id {
            property(out, 5, |out| out.put_u32(*meter));
        }
    });
}

/// Writes a type-length-value item, padded to 8 bytes.
pub(crate) fn property(out: &mut Vec<u8>, kind: u16, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_u16(kind);
    out.put_u16(0);
    content(out);
    out.set_length(start + 2, start);
    out.align(start);
}
