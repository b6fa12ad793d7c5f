//! Compiles OpenFlow instructions and actions into the ops that workers run.
//!
//! Only lists that [`crate::check`] has accepted come here, so nothing fails: there is an op for
//! every supported action. Instructions are executed in the specification's order, whatever order
//! they came in (OpenFlow 1.3.5 section 5.9).

pub(crate) mod connection;
pub(crate) mod learn;
mod ways;

pub(crate) use ways::fields;

use crate::state::groups::Groups;
use crate::state::meters::Meters;
use crate::state::options::{self, Options};
use openflow::action::{Action, Instruction, Subfield};
use openflow::port;
use packet::{Field, Value};
use program::actions::{Bits, Op, OpList, PacketInReason, ToController, in_set_order};
use std::sync::Arc;

/// The parts of the bridge that actions refer to.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub meters: &'a Meters,
    pub groups: &'a Groups,
    pub options: &'a Options,
}

/// Where a list of actions stands; packet-ins report it as their reason.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListContext {
    /// Applied by a rule, or in a packet-out's list.
    Apply,
    /// Applied by a table-miss rule: any match, priority 0 (1.3.5 section 5.4).
    Miss,
    /// In the action set.
    Set,
    /// In a group bucket.
    Bucket,
}

impl ListContext {
    fn reason(self) -> PacketInReason {
        match self {
            ListContext::Apply => PacketInReason::Action,
            ListContext::Miss => PacketInReason::TableMiss,
            ListContext::Set => PacketInReason::ActionSet,
            ListContext::Bucket => PacketInReason::Group,
        }
    }
}

/// Compiles a rule's instructions. `miss`: the rule is a table-miss rule.
pub(crate) fn instructions(
    instructions: &[Instruction],
    miss: bool,
    context: Context<'_>,
) -> OpList {
    if let Some(part) = ways::conjunctions(instructions) {
        return OpList::new(vec![part]);
    }
    let mut ops = Vec::new();
    let apply = if miss {
        ListContext::Miss
    } else {
        ListContext::Apply
    };
    let mut ordered: Vec<&Instruction> = instructions.iter().collect();
    ordered.sort_by_key(|instruction| rank(instruction));
    for instruction in ordered {
        match instruction {
            Instruction::ApplyActions(actions) => append(&mut ops, actions, apply, context),
            Instruction::ClearActions => ops.push(Op::ClearActions),
            Instruction::WriteActions(actions) => {
                let mut set = Vec::new();
                append(&mut set, actions, ListContext::Set, context);
                ops.push(Op::WriteActions(set.into()));
            }
            Instruction::WriteMetadata { value, mask } => ops.push(Op::SetField {
                field: Field::Metadata,
                value: Value::from_u128((value & mask).into(), 8),
                mask: Value::from_u128((*mask).into(), 8),
            }),
            Instruction::GotoTable(table) => ops.push(Op::Goto(*table)),
            Instruction::StatTrigger(_) => {} // refused by the check
            Instruction::Meter(number) => ops.push(Op::Meter(context.meters.place(*number))),
        }
    }
    OpList::new(ops)
}

/// Returns an instruction's position in the order of execution.
pub(crate) fn rank(instruction: &Instruction) -> u8 {
    match instruction {
        Instruction::Meter(_) => 0,
        Instruction::ApplyActions(_) => 1,
        Instruction::ClearActions => 2,
        Instruction::WriteActions(_) => 3,
        Instruction::WriteMetadata { .. } => 4,
        Instruction::GotoTable(_) => 5,
        Instruction::StatTrigger(_) => 6,
    }
}

/// Compiles a bucket's actions, which form an action set; None when there are too many.
pub(crate) fn bucket(actions: &[Action], context: Context<'_>) -> Option<Box<[Op]>> {
    let mut ops = Vec::new();
    append(&mut ops, actions, ListContext::Bucket, context);
    Some(OpList::new(in_set_order(&ops)?).ops)
}

/// Compiles a packet-out's actions.
///
/// As the last action, `OFPP_TABLE` is a lookup like that of a received packet, table miss
/// included; before other actions it is a resubmit, after which the list continues.
pub(crate) fn packet_out(actions: &[Action], context: Context<'_>) -> OpList {
    let mut ops = Vec::new();
    if let Some((
        Action::Output {
            port: port::TABLE, ..
        },
        before,
    )) = actions.split_last()
    {
        append(&mut ops, before, ListContext::Apply, context);
        ops.push(Op::Goto(0));
    } else {
        append(&mut ops, actions, ListContext::Apply, context);
    }
    OpList::new(ops)
}

fn append(ops: &mut Vec<Op>, actions: &[Action], place: ListContext, context: Context<'_>) {
    for action in actions {
        for placed in context.options.placed(action).iter() {
            append_one(ops, placed, place, context);
        }
        if let Some(option) = options::written(action) {
            ops.push(ways::option_presence(option, true));
        }
    }
}

fn append_one(ops: &mut Vec<Op>, action: &Action, place: ListContext, context: Context<'_>) {
    match action {
        Action::Output { port, max_len } => ops.push(output(*port, *max_len, place)),
        Action::OutputReg { source, .. } => ops.push(Op::OutputReg {
            source: bits(source),
            reason: place.reason(),
        }),
        Action::OutputTrunc { port, max_len } => ops.push(Op::OutputTruncated {
            port: *port,
            max_len: *max_len,
        }),
        Action::Controller {
            max_len,
            controller_id,
            reason,
            userdata,
            meter_id,
            pause,
        } => {
            ops.extend(meter_id.map(|number| Op::MeterController(context.meters.place(number))));
            let to = Box::new(ToController {
                // A controller that resumes a paused packet needs the whole packet.
                max_len: if *pause { u16::MAX } else { *max_len },
                reason: reason_of(*reason, place),
                controller_id: *controller_id,
                userdata: userdata.clone(),
                by_output: false,
            });
            ops.push(if *pause {
                Op::Pause(to)
            } else {
                Op::Controller(to)
            });
        }
        Action::Learn(action) => {
            ops.push(Op::Learn(Arc::new(learn::compile(action, context.options))));
        }
        Action::FinTimeout { idle, hard } => ops.push(Op::FinTimeout {
            idle: *idle,
            hard: *hard,
        }),
        Action::Enqueue { port, queue } => ops.push(Op::Enqueue {
            port: *port,
            queue: *queue,
        }),
        Action::SetQueue(id) => ops.push(Op::SetQueue(Some(*id))),
        Action::PopQueue => ops.push(Op::SetQueue(None)),
        Action::Load { dst, value } => ops.push(load(dst, *value)),
        Action::Move { src, dst } => ops.push(Op::Move {
            src: bits(src),
            dst: bits(dst),
        }),
        Action::PopVlan => ops.push(Op::PopVlan),
        Action::PushVlan(ethertype) => ops.push(Op::PushVlan(*ethertype)),
        Action::PushMpls(ethertype) => ops.push(Op::PushMpls(*ethertype)),
        Action::PopMpls(ethertype) => ops.push(Op::PopMpls(*ethertype)),
        Action::DecMplsTtl => ops.push(Op::DecMplsTtl),
        Action::CopyTtlOut => ops.push(Op::CopyTtlOut),
        Action::CopyTtlIn => ops.push(Op::CopyTtlIn),
        Action::PushPbb(_) => ops.push(Op::PushPbb),
        Action::PopPbb => ops.push(Op::PopPbb),
        Action::SetVlanVid { vid, push } => ops.push(Op::SetVlanVid {
            vid: *vid,
            push: *push,
        }),
        Action::SetVlanPcp { pcp, push } => ops.push(Op::SetVlanPcp {
            pcp: *pcp,
            push: *push,
        }),
        Action::DecTtl(ids) => ops.push(Op::DecTtl(ids.clone().into())),
        Action::Resubmit {
            in_port,
            table,
            with_ct_orig: true,
        } => ops.push(Op::ResubmitTracked {
            in_port: *in_port,
            table: *table,
        }),
        Action::Resubmit { in_port, table, .. } => ops.push(Op::Resubmit {
            in_port: *in_port,
            table: *table,
        }),
        Action::Exit => ops.push(Op::Exit),
        Action::Group(number) => ops.push(Op::Group(context.groups.find(*number))),
        Action::Meter(number) => ops.push(Op::Meter(context.meters.place(*number))),
        Action::StackPush(from) => ops.push(Op::StackPush(bits(from))),
        Action::StackPop(to) => ops.push(Op::StackPop(bits(to))),
        Action::Clone(actions) => {
            let mut inner = Vec::new();
            append(&mut inner, actions, place, context);
            ops.push(Op::Clone(Arc::new(OpList::new(inner))));
        }
        Action::Multipath(multipath) => ops.push(ways::multipath(multipath)),
        Action::Bundle(bundle) => ops.push(ways::bundle(bundle)),
        Action::CheckPktLarger { max_len, dst } => ops.push(Op::CheckLength {
            max_len: *max_len,
            dst: bits(dst),
        }),
        Action::DeleteField(field) => ops.extend(
            field
                .tunnel_option()
                .map(|option| ways::option_presence(option, false)),
        ),
        Action::Ct(ct) => ops.push(connection::track(ct)),
        Action::CtClear => ops.push(Op::Untrack),
        other => ops.extend(sets(other)),
    }
}

/// Ops for actions that write one field, in the forms of all versions. Other actions, such as
/// `note`, give none.
fn sets(action: &Action) -> impl Iterator<Item = Op> + use<> {
    let (fields, value): (&[Field], u128) = match action {
        Action::SetField { field, value, mask } => {
            let op = Op::SetField {
                field: *field,
                value: value.clone(),
                mask: mask.clone(),
            };
            return Vec::from([op]).into_iter();
        }
        Action::SetEthSrc(address) => (&[Field::EthSrc], number(address)),
        Action::SetEthDst(address) => (&[Field::EthDst], number(address)),
        Action::SetIpv4Src(address) => (&[Field::Ipv4Src], (*address).into()),
        Action::SetIpv4Dst(address) => (&[Field::Ipv4Dst], (*address).into()),
        Action::SetIpTos(tos) => (&[Field::IpDscpShifted], (tos >> 2).into()),
        Action::SetIpEcn(ecn) => (&[Field::IpEcn], (*ecn).into()),
        Action::SetIpTtl(ttl) => (&[Field::IpTtl], (*ttl).into()),
        // One action for three protocols: each op skips packets of the other two.
        Action::SetL4Src(port) => (
            &[Field::TcpSrc, Field::UdpSrc, Field::SctpSrc],
            (*port).into(),
        ),
        Action::SetL4Dst(port) => (
            &[Field::TcpDst, Field::UdpDst, Field::SctpDst],
            (*port).into(),
        ),
        Action::SetMplsLabel(label) => (&[Field::MplsLabel], (*label).into()),
        Action::SetMplsTc(tc) => (&[Field::MplsTc], (*tc).into()),
        Action::SetMplsTtl(ttl) => (&[Field::MplsTtl], (*ttl).into()),
        Action::SetTunnel { id, .. } => (&[Field::TunId], (*id).into()),
        Action::SetFcf(fcf) => (&[Field::Fcf], fcf.word().into()),
        _ => (&[], 0),
    };
    let whole = |field: &Field| {
        let def = field.def();
        let value = Value::from_u128(value << def.shift, def.bytes);
        Op::SetField {
            field: *field,
            value,
            mask: def.place(),
        }
    };
    fields.iter().map(whole).collect::<Vec<_>>().into_iter()
}

fn number(address: &[u8; 6]) -> u128 {
    address
        .iter()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn output(to: port::PortNo, max_len: u16, place: ListContext) -> Op {
    match to {
        port::IN_PORT => Op::InPort,
        port::TABLE => Op::Resubmit {
            in_port: None,
            table: Some(0),
        },
        port::NORMAL => Op::Normal,
        port::FLOOD => Op::All { flood: true },
        port::ALL => Op::All { flood: false },
        port::CONTROLLER => Op::Controller(Box::new(ToController {
            max_len,
            reason: place.reason(),
            controller_id: 0,
            userdata: Vec::new(),
            by_output: true,
        })),
        other => Op::Output(other),
    }
}

/// Returns the reason that a `controller` action names; `OFPR_ACTION` stands for that of its place.
fn reason_of(reason: u8, place: ListContext) -> PacketInReason {
    match reason {
        0 => PacketInReason::NoMatch,
        2 => PacketInReason::InvalidTtl,
        3 => PacketInReason::ActionSet,
        4 => PacketInReason::Group,
        5 => PacketInReason::PacketOut,
        _ => place.reason(),
    }
}

fn bits(from: &Subfield) -> Bits {
    Bits {
        field: from.field,
        start: from.start,
        bits: from.bits,
    }
}

fn load(dst: &Subfield, value: u64) -> Op {
    let def = dst.field.def();
    let below = def.wire_shift;
    let mut value = u128::from(value);
    // A whole port number of 16 bits: reserved ports are 0xff00 and up, extended to 32 bits.
    if dst.field == Field::InPort && usize::from(dst.bits) == def.action_bits {
        value |= if value >= 0xff00 { 0xffff_0000 } else { 0 };
        return Op::SetField {
            field: dst.field,
            value: Value::from_u128(value, def.bytes),
            mask: def.place(),
        };
    }
    let place = def.place();
    let wire = |number: u128| {
        let mut placed = match dst.field.tunnel_option() {
            Some(_) => Value::from_u128_at(number, dst.start.into(), def.bytes),
            None => Value::from_u128(number << dst.start >> below << def.shift, def.bytes),
        };
        placed
            .iter_mut()
            .zip(place.iter())
            .for_each(|(byte, place)| *byte &= place);
        placed
    };
    let ones = (1_u128 << dst.bits) - 1;
    Op::SetField {
        field: dst.field,
        value: wire(value & ones),
        mask: wire(ones),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(instructions: &[Instruction], miss: bool) -> OpList {
        let (meters, groups) = (Meters::default(), Groups::default());
        let context = Context {
            meters: &meters,
            groups: &groups,
            options: &Options::default(),
        };
        super::instructions(instructions, miss, context)
    }

    fn packet_out(actions: &[Action]) -> OpList {
        let (meters, groups) = (Meters::default(), Groups::default());
        let context = Context {
            meters: &meters,
            groups: &groups,
            options: &Options::default(),
        };
        super::packet_out(actions, context)
    }

    fn apply(actions: Vec<Action>) -> Vec<Op> {
        compiled(&[Instruction::ApplyActions(actions)], false)
            .ops
            .into()
    }

    #[test]
    fn instructions_run_in_the_order_of_the_specification() {
        let list = compiled(
            &[
                Instruction::GotoTable(3),
                Instruction::WriteActions(vec![Action::Output {
                    port: 1,
                    max_len: 0,
                }]),
                Instruction::ClearActions,
                Instruction::WriteMetadata {
                    value: 0xff,
                    mask: 0x0f,
                },
                Instruction::ApplyActions(vec![Action::PopVlan]),
            ],
            false,
        );
        let metadata = Op::SetField {
            field: Field::Metadata,
            value: Value::from_u128(0x0f, 8),
            mask: Value::from_u128(0x0f, 8),
        };
        let set = Op::WriteActions(vec![Op::Output(1)].into());
        assert_eq!(
            &*list.ops,
            &*OpList::new(vec![
                Op::PopVlan,
                Op::ClearActions,
                set,
                metadata,
                Op::Goto(3)
            ])
            .ops
        );
    }

    #[test]
    fn a_load_writes_where_the_subfield_says() {
        let to = |field, start, bits| Subfield { field, start, bits };
        let set = |field, value, mask, bytes| Op::SetField {
            field,
            value: Value::from_u128(value, bytes),
            mask: Value::from_u128(mask, bytes),
        };
        let loads = [
            (
                to(Field::Reg1, 4, 8),
                0x5a,
                set(Field::Reg1, 0x5a0, 0xff0, 4),
            ),
            (
                to(Field::VlanPcp, 0, 3),
                5,
                set(Field::VlanPcp, 0xa000, 0xe000, 2),
            ),
            (
                to(Field::VlanTci, 0, 16),
                0x1005,
                set(Field::VlanTci, 0x1005, 0xffff, 2),
            ),
            (
                to(Field::IpDscp, 0, 8),
                0x20,
                set(Field::IpDscp, 0x20, 0xfc, 1),
            ),
            (
                to(Field::InPort, 0, 16),
                0xfffe,
                set(Field::InPort, 0xffff_fffe, 0xffff_ffff, 4),
            ),
            (
                to(Field::InPort, 0, 16),
                7,
                set(Field::InPort, 7, 0xffff_ffff, 4),
            ),
        ];
        for (dst, value, expected) in loads {
            let expected = OpList::new(vec![expected]).ops;
            assert_eq!(apply(vec![Action::Load { dst, value }]), &*expected);
        }
    }

    #[test]
    fn packet_ins_say_where_they_come_from() {
        let to_controller = Action::Output {
            port: port::CONTROLLER,
            max_len: 64,
        };
        let told = |ops: &[Op]| match &ops[0] {
            Op::Controller(to) => (to.reason, to.reason_in_packet_out()),
            other => panic!("{other:?}"),
        };
        let by_output = |reason| (reason, PacketInReason::PacketOut);
        let apply = [Instruction::ApplyActions(vec![to_controller.clone()])];
        assert_eq!(
            told(&compiled(&apply, false).ops),
            by_output(PacketInReason::Action)
        );
        assert_eq!(
            told(&compiled(&apply, true).ops),
            by_output(PacketInReason::TableMiss)
        );
        let own = Action::Controller {
            max_len: 64,
            controller_id: 0,
            reason: 1,
            userdata: vec![1],
            meter_id: None,
            pause: false,
        };
        let list = packet_out(&[to_controller, own]).ops;
        assert_eq!(told(&list), by_output(PacketInReason::Action));
        assert_eq!(
            told(&list[1..]),
            (PacketInReason::Action, PacketInReason::Action)
        );
    }

    #[test]
    fn table_is_a_lookup_at_the_end_of_a_packet_out() {
        let table = Action::Output {
            port: port::TABLE,
            max_len: 0,
        };
        let back = Op::Resubmit {
            in_port: None,
            table: Some(0),
        };
        assert_eq!(
            &*packet_out(std::slice::from_ref(&table)).ops,
            &[Op::Goto(0)]
        );
        assert_eq!(
            &*packet_out(&[table, Action::PopVlan]).ops,
            &[back, Op::PopVlan]
        );
    }
}
