//! Formats the right side of a rule.

use super::{add, extensions, hexadecimal, ipv4, nxm_name, port, value};
use crate::model::action::{Action, Instruction, StatTrigger, Subfield};
use crate::model::port as number;

/// `OFPR_ACTION`, the default reason, which is not printed.
const REASON_ACTION: u8 = 1;
/// The default `max_len` of a controller, which is not printed: whole packets.
const ALL_BYTES: u16 = u16::MAX;

/// Writes instructions as `ovs-ofctl` does; `drop` if there are none.
pub fn instructions(out: &mut String, instructions: &[Instruction]) {
    let mut list = List::new(out);
    for instruction in instructions {
        match instruction {
            Instruction::ApplyActions(actions) => {
                actions.iter().for_each(|action| one(list.next(), action))
            }
            Instruction::Meter(meter) => add(list.next(), format_args!("meter:{meter}")),
            Instruction::ClearActions => list.next().push_str("clear_actions"),
            Instruction::WriteActions(actions) => bracketed(list.next(), "write_actions", actions),
            Instruction::WriteMetadata { value, mask } => {
                let out = list.next();
                out.push_str("write_metadata:");
                hexadecimal(out, (*value).into());
                if *mask != u64::MAX {
                    out.push('/');
                    hexadecimal(out, (*mask).into());
                }
            }
            Instruction::GotoTable(table) => add(list.next(), format_args!("goto_table:{table}")),
            // No client prints it; the notation follows the specification.
            Instruction::StatTrigger(trigger) => stat_trigger(list.next(), trigger),
        }
    }
    list.finish();
}

fn stat_trigger(out: &mut String, trigger: &StatTrigger) {
    out.push_str("stat_trigger(");
    for (on, name) in [
        (trigger.periodic, "periodic,"),
        (trigger.only_first, "only_first,"),
    ] {
        out.push_str(if on { name } else { "" });
    }
    for (threshold, name) in [
        (trigger.duration_ns, "duration_ns"),
        (trigger.idle_ns, "idle_ns"),
        (trigger.packets, "packets"),
        (trigger.bytes, "bytes"),
    ] {
        if let Some(threshold) = threshold {
            add(out, format_args!("{name}={threshold},"));
        }
    }
    if out.ends_with(',') {
        out.pop();
    }
    out.push(')');
}

/// Writes actions as `ovs-ofctl` does; `drop` if there are none.
pub fn actions(out: &mut String, actions: &[Action]) {
    let mut list = List::new(out);
    for action in actions {
        one(list.next(), action);
    }
    list.finish();
}

/// Writes commas between items.
struct List<'a> {
    out: &'a mut String,
    empty: bool,
}

impl<'a> List<'a> {
    fn new(out: &'a mut String) -> Self {
        List { out, empty: true }
    }

    fn next(&mut self) -> &mut String {
        if !std::mem::replace(&mut self.empty, false) {
            self.out.push(',');
        }
        self.out
    }

    fn finish(self) {
        if self.empty {
            self.out.push_str("drop");
        }
    }
}

fn bracketed(out: &mut String, name: &str, inside: &[Action]) {
    out.push_str(name);
    out.push('(');
    actions(out, inside);
    out.push(')');
}

/// Writes a subfield: `NXM_NX_REG0[]` for a whole field, `[3]` for a bit, `[0..7]` for a range.
pub fn subfield(out: &mut String, part: &Subfield) {
    let def = part.field.def();
    let name = nxm_name(part.field);
    out.push_str(if name.is_empty() { def.name } else { name });
    let (start, bits) = (part.start, part.bits);
    if start == 0 && usize::from(bits) == def.action_bits {
        out.push_str("[]");
    } else if bits == 1 {
        add(out, format_args!("[{start}]"));
    } else {
        add(
            out,
            format_args!(
                "[{start}..{}]",
                u32::from(start) + u32::from(bits).saturating_sub(1)
            ),
        );
    }
}

fn mac(out: &mut String, name: &str, address: &[u8; 6]) {
    let [a, b, c, d, e, f] = address;
    add(
        out,
        format_args!("{name}:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
    );
}

fn address(out: &mut String, name: &str, address: u32) {
    add(out, format_args!("{name}:"));
    ipv4(out, address.into());
}

/// Writes bytes as `01.02.03`.
fn dotted(out: &mut String, bytes: &[u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        add(
            out,
            format_args!("{}{byte:02x}", if index == 0 { "" } else { "." }),
        );
    }
}

fn output(out: &mut String, to: number::PortNo, max_len: u16) {
    if to < number::MAX {
        out.push_str("output:");
    }
    port(out, to);
    if to == number::CONTROLLER {
        add(out, format_args!(":{max_len}"));
    }
}

/// Returns the name of an `OFPR_*` reason.
fn reason(reason: u8) -> Option<&'static str> {
    const NAMES: [&str; 7] = [
        "no_match",
        "action",
        "invalid_ttl",
        "action_set",
        "group",
        "packet_out",
        "",
    ];
    NAMES
        .get(usize::from(reason))
        .copied()
        .filter(|name| !name.is_empty())
}

fn controller(out: &mut String, action: &Action) {
    let Action::Controller {
        max_len,
        controller_id,
        reason: why,
        userdata,
        pause,
        meter_id,
    } = action
    else {
        return;
    };
    let plain = *why == REASON_ACTION
        && *controller_id == 0
        && userdata.is_empty()
        && !pause
        && meter_id.is_none();
    if plain {
        return add(out, format_args!("CONTROLLER:{max_len}"));
    }
    out.push_str("controller(");
    if *why != REASON_ACTION {
        match reason(*why) {
            Some(name) => add(out, format_args!("reason={name},")),
            None => add(out, format_args!("reason={why},")),
        }
    }
    if *max_len != ALL_BYTES {
        add(out, format_args!("max_len={max_len},"));
    }
    if *controller_id != 0 {
        add(out, format_args!("id={controller_id},"));
    }
    if !userdata.is_empty() {
        out.push_str("userdata=");
        dotted(out, userdata);
        out.push(',');
    }
    if *pause {
        out.push_str("pause,");
    }
    if let Some(meter) = meter_id {
        add(out, format_args!("meter_id={meter},"));
    }
    if out.ends_with(',') {
        out.pop();
    }
    out.push(')');
}

fn resubmit(
    out: &mut String,
    in_port: Option<number::PortNo>,
    table: Option<u8>,
    with_ct_orig: bool,
) {
    match (in_port, table) {
        (Some(number), None) if !with_ct_orig => {
            out.push_str("resubmit:");
            port(out, number);
        }
        _ => {
            out.push_str("resubmit(");
            if let Some(number) = in_port {
                port(out, number);
            }
            out.push(',');
            if let Some(table) = table {
                add(out, format_args!("{table}"));
            }
            out.push_str(if with_ct_orig { ",ct)" } else { ")" });
        }
    }
}

fn one(out: &mut String, action: &Action) {
    match action {
        Action::Output { port, max_len } => output(out, *port, *max_len),
        Action::OutputReg { source, .. } => {
            out.push_str("output:");
            subfield(out, source);
        }
        Action::OutputTrunc { port: to, max_len } => {
            out.push_str("output(port=");
            port(out, *to);
            add(out, format_args!(",max_len={max_len})"));
        }
        Action::Controller { .. } => controller(out, action),
        Action::Enqueue { port: to, queue } => {
            out.push_str("enqueue:");
            port(out, *to);
            add(out, format_args!(":{queue}"));
        }
        Action::SetQueue(queue) => add(out, format_args!("set_queue:{queue}")),
        Action::PopQueue => out.push_str("pop_queue"),
        Action::SetField {
            field,
            value: bits,
            mask,
        } => {
            out.push_str("set_field:");
            value(out, *field, bits, mask);
            add(out, format_args!("->{}", field.def().name));
        }
        Action::Load { dst, value } => {
            out.push_str("load:");
            hexadecimal(out, (*value).into());
            out.push_str("->");
            subfield(out, dst);
        }
        Action::Move { src, dst } => {
            out.push_str("move:");
            subfield(out, src);
            out.push_str("->");
            subfield(out, dst);
        }
        Action::StackPush(part) => {
            out.push_str("push:");
            subfield(out, part);
        }
        Action::StackPop(part) => {
            out.push_str("pop:");
            subfield(out, part);
        }
        Action::Resubmit {
            in_port,
            table,
            with_ct_orig,
        } => resubmit(out, *in_port, *table, *with_ct_orig),
        Action::DecTtl(ids) => {
            out.push_str("dec_ttl");
            if ids[..] != [0] {
                let ids: Vec<String> = ids.iter().map(u16::to_string).collect();
                add(out, format_args!("({})", ids.join(",")));
            }
        }
        Action::Note(bytes) => {
            out.push_str("note:");
            dotted(out, bytes);
        }
        Action::Clone(inside) => bracketed(out, "clone", inside),
        Action::Conjunction {
            id,
            clause,
            clauses,
        } => {
            add(
                out,
                format_args!("conjunction({id},{}/{clauses})", u16::from(*clause) + 1),
            );
        }
        Action::Exit => out.push_str("exit"),
        Action::Group(group) => add(out, format_args!("group:{group}")),
        Action::Meter(meter) => add(out, format_args!("meter:{meter}")),
        other => header(out, other),
    }
}

/// Writes an action that changes one header.
fn header(out: &mut String, action: &Action) {
    match action {
        Action::SetVlanVid { vid, push } => {
            add(
                out,
                format_args!("{}_vlan_vid:{vid}", if *push { "mod" } else { "set" }),
            );
        }
        Action::SetVlanPcp { pcp, push } => {
            add(
                out,
                format_args!("{}_vlan_pcp:{pcp}", if *push { "mod" } else { "set" }),
            );
        }
        // OpenFlow 1.0's name; later versions call it `pop_vlan`. A rule does not remember its
        // version.
        Action::PopVlan => out.push_str("strip_vlan"),
        Action::PushVlan(eth_type) => add(out, format_args!("push_vlan:0x{eth_type:04x}")),
        Action::SetEthSrc(address) => mac(out, "mod_dl_src", address),
        Action::SetEthDst(address) => mac(out, "mod_dl_dst", address),
        Action::SetIpv4Src(value) => address(out, "mod_nw_src", *value),
        Action::SetIpv4Dst(value) => address(out, "mod_nw_dst", *value),
        Action::SetIpTos(tos) => add(out, format_args!("mod_nw_tos:{tos}")),
        Action::SetIpEcn(ecn) => add(out, format_args!("mod_nw_ecn:{ecn}")),
        Action::SetIpTtl(ttl) => add(out, format_args!("mod_nw_ttl:{ttl}")),
        Action::SetL4Src(port) => add(out, format_args!("mod_tp_src:{port}")),
        Action::SetL4Dst(port) => add(out, format_args!("mod_tp_dst:{port}")),
        Action::CopyTtlIn => out.push_str("copy_ttl_in"),
        Action::CopyTtlOut => out.push_str("copy_ttl_out"),
        Action::PushMpls(eth_type) => add(out, format_args!("push_mpls:0x{eth_type:04x}")),
        Action::PopMpls(eth_type) => add(out, format_args!("pop_mpls:0x{eth_type:04x}")),
        Action::SetMplsTtl(ttl) => add(out, format_args!("set_mpls_ttl({ttl})")),
        Action::DecMplsTtl => out.push_str("dec_mpls_ttl"),
        Action::SetMplsLabel(label) => add(out, format_args!("set_mpls_label({label})")),
        Action::SetMplsTc(class) => add(out, format_args!("set_mpls_tc({class})")),
        Action::PushPbb(eth_type) => add(out, format_args!("push_pbb:0x{eth_type:04x}")),
        Action::PopPbb => out.push_str("pop_pbb"),
        Action::SetTunnel { id, wide } => {
            let wide = if *wide || *id > u32::MAX.into() {
                "64"
            } else {
                ""
            };
            add(out, format_args!("set_tunnel{wide}:"));
            hexadecimal(out, (*id).into());
        }
        // `one` writes all other actions.
        other => extensions::one(out, other),
    }
}
