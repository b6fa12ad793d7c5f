//! Layout of a trace, as Open vSwitch prints it.

use openflow::format;
use packet::key::at;
use packet::tunnel::Mapping;
use packet::{Field, FlowKey, Match};

/// Kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineType {
    /// A bridge's heading.
    Bridge,
    /// A table and the rule found there, or another heading of actions.
    Table,
    /// An action.
    Action,
    /// A bucket, above its actions.
    Bucket,
    /// An explanation of the line above.
    Detail,
    /// An oddity of the line above.
    Warning,
    /// The error that ended the trace.
    Error,
}

/// A line and the lines below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub kind: LineType,
    pub text: String,
    pub below: Vec<Node>,
}

impl Node {
    pub fn new(kind: LineType, text: impl Into<String>) -> Node {
        Node {
            kind,
            text: text.into(),
            below: Vec::new(),
        }
    }
}

/// A trace to be printed.
pub(super) struct Told {
    pub before: FlowKey,
    pub after: FlowKey,
    /// Whether the action set was written to, which counts as a change though it is not printed.
    pub wrote_set: bool,
    pub looked_at: FlowKey,
    /// The bridge's map of tunnel options.
    pub options: Vec<Mapping>,
    pub nodes: Vec<Node>,
    pub actions: Vec<String>,
    /// Why nothing is sent at all.
    pub failure: Option<&'static str>,
}

/// Returns the whole output.
pub(super) fn all(told: &Told) -> String {
    let mut text = format!("Flow: {}\n", flow(&told.before));
    nodes(&mut text, &told.nodes, 0);
    let mut after = told.after;
    after.set_u32(at::ACTSET_OUTPUT, told.before.u32(at::ACTSET_OUTPUT));
    let unchanged = told.before == after && !told.wrote_set;
    let last = match unchanged {
        true => "unchanged".to_owned(),
        false => flow(&told.after),
    };
    let actions = match &told.actions[..] {
        _ if told.failure.is_some() => "drop".to_owned(),
        [] => "drop".to_owned(),
        actions => actions.join(","),
    };
    text += &format!(
        "\nFinal flow: {last}\nMegaflow: {}\nDatapath actions: {actions}",
        megaflow(&told.before, &told.looked_at, &told.options)
    );
    if let Some(why) = told.failure {
        text += &format!("\nTranslation failed ({why}), packet is dropped.");
    }
    text.push('\n');
    text
}

/// Writes lines at a level of indentation. A table that is the last among its siblings takes their
/// level instead of standing further in, so that long chains do not wander to the right.
fn nodes(text: &mut String, list: &[Node], level: usize) {
    for (index, node) in list.iter().enumerate() {
        if node.kind == LineType::Bridge {
            text.push('\n');
        }
        let heading = matches!(node.kind, LineType::Bridge | LineType::Table);
        let more = usize::from(index + 1 < list.len() || !heading);
        let indent = " ".repeat((level + more) * 4);
        let line = &node.text;
        *text += &indent;
        *text += &match node.kind {
            LineType::Detail => format!(" -> {line}\n"),
            LineType::Warning => format!(" >> {line}\n"),
            LineType::Error => format!(" >>>> {line} <<<<\n"),
            LineType::Bridge => format!("{line}\n{indent}{}\n", "-".repeat(line.chars().count())),
            LineType::Table | LineType::Action | LineType::Bucket => format!("{line}\n"),
        };
        nodes(text, &node.below, level + more + more);
    }
}

/// Fields printed if they are not zero, in front of and behind the protocol's name.
const METADATA: &[Field] = &[
    Field::PktMark,
    Field::RecircId,
    Field::DpHash,
    Field::SkbPriority,
    Field::CtState,
    Field::CtZone,
    Field::CtMark,
    Field::CtLabel,
    Field::CtNwSrc,
    Field::CtIpv6Src,
    Field::CtNwDst,
    Field::CtIpv6Dst,
    Field::CtNwProto,
    Field::CtTpSrc,
    Field::CtTpDst,
];
const REGISTERS: &[Field] = &[
    Field::Xxreg0,
    Field::Xxreg1,
    Field::Xxreg2,
    Field::Xxreg3,
    Field::TunId,
    Field::TunSrc,
    Field::TunDst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunGbpId,
    Field::TunGbpFlags,
    Field::TunTos,
    Field::TunTtl,
    Field::TunFlags,
    Field::Metadata,
];
const LINK: &[Field] = &[
    Field::InPort,
    Field::VlanTci,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
];
const IP: &[Field] = &[
    Field::IpProto,
    Field::IpDscp,
    Field::IpEcn,
    Field::IpTtl,
    Field::IpFrag,
];
const ARP: &[Field] = &[
    Field::ArpSpa,
    Field::ArpTpa,
    Field::ArpOp,
    Field::ArpSha,
    Field::ArpTha,
];

/// Returns the fields above Ethernet that a flow shows.
fn headers(key: &FlowKey) -> Vec<Field> {
    use Field::*;
    let (eth_type, protocol) = (key.u16(at::ETH_TYPE), key.u8(at::IP_PROTO));
    let mut fields = Vec::new();
    match eth_type {
        0x0800 => fields.extend([Ipv4Src, Ipv4Dst]),
        0x86dd => fields.extend([Ipv6Src, Ipv6Dst, Ipv6Label]),
        0x0806 | 0x8035 => fields.extend(ARP),
        0x8847 | 0x8848 => fields.extend([MplsLabel, MplsTc, MplsTtl, MplsBos]),
        _ => {}
    }
    if !matches!(eth_type, 0x0800 | 0x86dd) {
        return fields;
    }
    fields.extend(IP);
    if key.u8(at::IP_FRAG) & 2 != 0 {
        return fields;
    }
    match (eth_type, protocol) {
        (_, 6) => fields.extend([TcpSrc, TcpDst, TcpFlags]),
        (_, 17) => fields.extend([UdpSrc, UdpDst]),
        (_, 132) => fields.extend([SctpSrc, SctpDst]),
        (0x0800, 1) => fields.extend([Icmpv4Type, Icmpv4Code]),
        (0x0800, 2) => fields.extend([UdpSrc, UdpDst]),
        (0x86dd, 58) => {
            fields.extend([Icmpv6Type, Icmpv6Code]);
            match key.u16(at::TP_SRC) {
                135 if key.u16(at::TP_DST) == 0 => fields.extend([NdTarget, NdSll, NdTll]),
                136 if key.u16(at::TP_DST) == 0 => fields.extend([NdTarget, NdSll, NdTll]),
                _ => {}
            }
        }
        _ => {}
    }
    fields
}

fn exact(matching: &mut Match, key: &FlowKey, field: Field) {
    let def = field.def();
    matching.set(
        field,
        &key.bytes()[def.offset..def.offset + def.bytes],
        &def.place(),
    );
}

fn print(matching: &Match) -> String {
    let mut text = String::new();
    format::matching(&mut text, matching, format::DEFAULT_PRIORITY);
    text
}

/// Returns all that is known about a packet, as a flow.
pub(super) fn flow(key: &FlowKey) -> String {
    let (mut first, mut matching) = (Match::any(), Match::any());
    // A flow of the datapath, which recirculates, says that it has an Ethernet header.
    let recirculated = key.u32(at::RECIRC_ID) != 0;
    for field in METADATA {
        let def = field.def();
        if key.bytes()[def.offset..def.offset + def.bytes] != vec![0; def.bytes][..] {
            let target = match recirculated {
                true => &mut first,
                false => &mut matching,
            };
            exact(target, key, *field);
        }
    }
    // Registers are printed one by one, 32 bits each.
    for register in 0..16 {
        let offset = at::REG0 + 4 * register;
        if key.u32(offset) != 0 {
            matching.set_bytes(offset, &key.bytes()[offset..offset + 4], &[0xff; 4]);
        }
    }
    // Without an outer destination there was no tunnel; then only the id and the metadata are
    // printed.
    let tunnelled = key.u32(at::TUN_DST) != 0
        || key.bytes()[at::TUN_IPV6_DST..at::TUN_IPV6_DST + 16] != [0; 16];
    for field in &REGISTERS[4..] {
        let def = field.def();
        if !tunnelled && !matches!(field, Field::TunId | Field::Metadata) {
            continue;
        }
        if key.bytes()[def.offset..def.offset + def.bytes] != vec![0; def.bytes][..] {
            exact(&mut matching, key, *field);
        }
    }
    for field in LINK.iter().copied().chain(headers(key)) {
        // No port has the number 0; actions write it to clear the ingress port.
        if field == Field::InPort && key.u32(at::IN_PORT) == 0 {
            continue;
        }
        exact(&mut matching, key, field);
    }
    let mut text = print(&matching);
    if key.u16(at::VLAN_TCI) != 0 {
        let second = match key.u16(at::VLAN_TCI2) {
            tci if tci & 0x1000 != 0 => {
                format!("dl_vlan1={},dl_vlan_pcp1={}", tci & 0xfff, tci >> 13)
            }
            tci => format!("vlan_tci1=0x{tci:04x}"),
        };
        text = text.replacen(",dl_src=", &format!(",{second},dl_src="), 1);
    }
    if matches!(key.u16(at::ETH_TYPE), 0x8847 | 0x8848) {
        // Print the label stack entries behind the outermost, up to the bottom of the stack.
        let entries = [at::MPLS_LSE, at::MPLS_LSE1, at::MPLS_LSE2].map(|offset| key.u32(offset));
        for (index, pair) in entries.windows(2).enumerate() {
            if pair[0] & 0x100 != 0 {
                break;
            }
            text += &format!(",mpls_lse{}={}", index + 1, pair[1]);
        }
    }
    match recirculated {
        true => format!("{},eth,{text}", print(&first)),
        false => text,
    }
}

/// Returns the bits that the outcome depended on. Ingress port, Ethertype and whether the packet is
/// a fragment decide how it is parsed, so they are always included.
fn megaflow(before: &FlowKey, looked_at: &FlowKey, options: &[Mapping]) -> String {
    let mut bits = *looked_at;
    for field in REGISTERS[..4]
        .iter()
        .chain([&Field::Metadata, &Field::ConjId])
    {
        let def = field.def();
        // Registers and metadata that the packet did not arrive with do not distinguish packets.
        for index in def.offset..def.offset + def.bytes {
            if before.bytes()[index] == 0 {
                bits.bytes_mut()[index] = 0;
            }
        }
    }
    let mut always = vec![Field::InPort, Field::EthType, Field::RecircId];
    if matches!(before.u16(at::ETH_TYPE), 0x0800 | 0x86dd) {
        always.push(Field::IpFrag);
    }
    for field in always {
        let def = field.def();
        for (index, place) in def.place().iter().enumerate() {
            bits.bytes_mut()[def.offset + index] |= place;
        }
    }
    // Transport ports cannot be matched without the IP protocol.
    if bits.u32(at::TP_SRC) != 0 || bits.u16(at::TCP_FLAGS) != 0 {
        bits.set_u8(at::IP_PROTO, 0xff);
    }
    let (mut metadata, mut rest) = (Match::any(), Match::any());
    for (word, mask) in bits.words.iter().enumerate() {
        let is_metadata = METADATA
            .iter()
            .any(|field| field.def().words().contains(word));
        let target = if is_metadata {
            &mut metadata
        } else {
            &mut rest
        };
        target.set_word(word, before.words[word], *mask);
    }
    for option in options {
        rest.name_option(option.field.into(), option.place);
    }
    let metadata = print(&metadata);
    format!("{metadata},eth,{}", print(&rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: LineType, text: &str, below: Vec<Node>) -> Node {
        Node {
            below,
            ..Node::new(kind, text)
        }
    }

    fn action(text: &str) -> Node {
        Node::new(LineType::Action, text)
    }

    /// Compares with what Open vSwitch 3.1.0 printed for the same walk.
    #[test]
    fn tables_stand_where_open_vswitch_puts_them() {
        let missed = |table| {
            node(
                LineType::Table,
                &format!("{table:2}. No match."),
                vec![action("drop")],
            )
        };
        let five = vec![
            action("resubmit(,6)"),
            missed(6),
            action("resubmit(,7)"),
            missed(7),
        ];
        let zero = vec![
            action("resubmit(,5)"),
            node(LineType::Table, " 5. reg0=0, priority 1", five),
            action("output:NXM_NX_REG0[]"),
            Node::new(LineType::Detail, "output port is 0"),
            Node::new(LineType::Warning, "Nonexistent output port"),
            Node::new(LineType::Error, "over max translation depth 64"),
            action("output:11"),
            node(
                LineType::Bridge,
                "bridge(\"br1\")",
                vec![node(
                    LineType::Table,
                    " 0. priority 32768",
                    vec![action("output:1")],
                )],
            ),
            action("output:2"),
        ];
        let first = node(LineType::Table, " 0. ip, priority 32768", zero);
        let mut text = String::new();
        nodes(
            &mut text,
            &[node(LineType::Bridge, "bridge(\"br0\")", vec![first])],
            0,
        );
        let expected = r#"
bridge("br0")
-------------
 0. ip, priority 32768
    resubmit(,5)
     5. reg0=0, priority 1
            resubmit(,6)
             6. No match.
                    drop
            resubmit(,7)
         7. No match.
            drop
    output:NXM_NX_REG0[]
     -> output port is 0
     >> Nonexistent output port
     >>>> over max translation depth 64 <<<<
    output:11

    bridge("br1")
    -------------
         0. priority 32768
            output:1
    output:2
"#;
        assert_eq!(text, expected);
    }

    fn tcp() -> FlowKey {
        let mut key = FlowKey::ZERO;
        key.set_u32(at::IN_PORT, 1);
        key.set_u16(at::ETH_TYPE, 0x0800);
        key.set_u8(at::IP_PROTO, 6);
        key.set_u32(at::IPV4_SRC, 0x0a00_0001);
        key
    }

    #[test]
    fn a_flow_shows_every_field_of_its_headers() {
        let mut key = tcp();
        assert_eq!(
            flow(&key),
            "tcp,in_port=1,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=10.0.0.1,nw_dst=0.0.0.0,\
             nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no,tp_src=0,tp_dst=0,tcp_flags=0"
        );
        key.set_u16(at::VLAN_TCI, 0x7005);
        key.set_u16(at::ETH_TYPE, 0x1234);
        key.set_u32(at::REG0 + 8, 7);
        key.set_u32(at::PKT_MARK, 9);
        assert_eq!(
            flow(&key),
            "pkt_mark=0x9,reg2=0x7,in_port=1,dl_vlan=5,dl_vlan_pcp=3,vlan_tci1=0x0000,dl_src=00:00:00:00:00:00,\
             dl_dst=00:00:00:00:00:00,dl_type=0x1234"
        );
    }

    #[test]
    fn fields_that_a_flow_lacks_are_left_out() {
        let mut key = FlowKey::ZERO;
        key.set_u16(at::VLAN_TCI, 5);
        key.set_u16(at::TUN_FLAGS, 1);
        let rest = "vlan_tci=0x0005,vlan_tci1=0x0000,dl_src=00:00:00:00:00:00,\
                    dl_dst=00:00:00:00:00:00,dl_type=0x0000";
        assert_eq!(flow(&key), rest);
        key.set_u32(at::TUN_DST, 0x0a00_0001);
        assert_eq!(
            flow(&key),
            format!("tun_dst=10.0.0.1,tun_flags=+oam,{rest}")
        );
    }

    #[test]
    fn a_megaflow_shows_what_was_looked_at() {
        let mut looked_at = FlowKey::ZERO;
        assert_eq!(
            megaflow(&tcp(), &looked_at, &[]),
            "recirc_id=0,eth,ip,in_port=1,nw_frag=no"
        );
        looked_at.set_u16(at::TP_DST, 0xffff);
        looked_at.set_u32(at::IPV4_SRC, 0xffff_0000);
        looked_at.set_u32(at::REG0, u32::MAX);
        assert_eq!(
            megaflow(&tcp(), &looked_at, &[]),
            "recirc_id=0,eth,tcp,in_port=1,nw_src=10.0.0.0/16,nw_frag=no,tp_dst=0"
        );
    }
}
