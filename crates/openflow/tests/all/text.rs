//! From text to text and from bytes to bytes: flow mods that `ovs-ofctl parse-flows` writes are
//! decoded, print as it prints them, and are encoded to the same bytes. Skipped with a message if
//! `ovs-ofctl` is not installed.

use crate::common::{Parsed, parse_flows};
use openflow::flow::FlowMod;
use openflow::message::{FlowFormat, Message};
use openflow::{DecodeOptions, Version, decode, encode, format};

/// Returns the flow mods that `ovs-ofctl` makes of lines; None if it is not installed.
fn parse(version: &str, lines: &[&str]) -> Option<Vec<Parsed>> {
    let parsed = parse_flows(version, &(lines.join("\n") + "\n"))?;
    assert_eq!(parsed.len(), lines.len(), "{version}: {lines:?}");
    Some(parsed)
}

/// Returns the text that we print for a flow mod, from its match on.
fn ours(change: &FlowMod) -> String {
    let mut text = String::new();
    format::matching(&mut text, &change.matching, change.priority.into());
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str("actions=");
    format::instructions(&mut text, &change.instructions);
    text
}

/// Compares lines with `ovs-ofctl` in one version. `exact`: the encoded bytes must be the same too.
fn same(version: &str, lines: &[&str], exact: bool) {
    let Some(parsed) = parse(version, lines) else {
        return;
    };
    let options = DecodeOptions {
        table_in_command: true,
        ..DecodeOptions::default()
    };
    let mut wrong = Vec::new();
    for Parsed { text, bytes } in parsed {
        let (header, message) = match decode(&bytes, &options) {
            Ok(decoded) => decoded,
            Err(error) => panic!("{version}: {text}: {error:?}"),
        };
        let Message::FlowMod { change, form } = &message else {
            panic!("{text}: {message:?}");
        };
        let wire = Version::from_wire(header.version).unwrap();
        let theirs = text.split_once(": ADD ").unwrap().1;
        let theirs = match theirs.strip_prefix("table:") {
            Some(rest) => rest.split_once(' ').unwrap().1,
            None => theirs,
        };
        // At this verbosity it prints matches of OpenFlow 1.0 in another notation.
        let (mut ours, mut theirs) = (ours(change), theirs.to_owned());
        if wire == Version::V1_0 {
            for text in [&mut ours, &mut theirs] {
                text.replace_range(..text.find("actions=").unwrap(), "");
            }
        }
        if ours != theirs {
            wrong.push(format!("{version}: {ours} for {theirs}"));
        }
        let again = encode(wire, header.xid, &message);
        if exact && again != bytes {
            wrong.push(format!("{version}: {theirs}\n{again:x?}\n{bytes:x?}"));
        }
        assert!(form.format == FlowFormat::Standard || wire == Version::V1_0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Actions that every version has, as `ovs-ofctl` prints them.
const EVERYWHERE: &[&str] = &[
    "learn(table=2)",
    "learn(table=0,idle_timeout=10,hard_timeout=20,fin_idle_timeout=1,fin_hard_timeout=2,priority=7,send_flow_rem,delete_learned,cookie=0xfe,limit=3,result_dst=NXM_NX_REG0[3],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:NXM_NX_REG2[0..7]->NXM_NX_REG3[8..15],output:NXM_OF_IN_PORT[])",
    "learn(table=1,eth_type=0x800,nw_proto=6,NXM_OF_VLAN_TCI[0..11],NXM_OF_VLAN_TCI[12]=0x1,load:0->NXM_NX_REG1[],load:0x3->NXM_NX_REG1[0..3],output:NXM_NX_REG0[0..15])",
    "learn(table=1,in_port=3,vlan_tci=0x1005,eth_src=00:11:22:33:44:55,load:0x102030405060708->NXM_NX_XXREG0[0..63])",
    "learn(table=1,eth_type=0x86dd,ipv6_src=fe80::1,ipv6_dst=::,load:0xffffffffffffffffffffffffffffffff->NXM_NX_XXREG0[])",
    "learn(table=1,eth_type=0x800,nw_proto=17,nw_src=10.1.2.3,nw_tos=252,ip_dscp=63,nw_ecn=3,udp_dst=53)",
    "learn(table=1,metadata=0xfffffffffffffffe,tun_id=0x1,tun_src=1.2.3.4,pkt_mark=0x1,reg7=0x1,xreg3=0x2,xxreg1=0x3,load:0x1->NXM_OF_IN_PORT[])",
    "multipath(eth_src,50,modulo_n,1,0,NXM_NX_REG0[])",
    "multipath(symmetric_l4,1024,hash_threshold,16,7,NXM_NX_REG1[0..3])",
    "multipath(symmetric_l3l4,0,hrw,65536,0,NXM_NX_REG1[16..31])",
    "multipath(symmetric_l3l4+udp,0,iter_hash,100,4294967295,NXM_NX_REG1[0..7])",
    "multipath(nw_src,0,hrw,12,0,NXM_NX_REG1[])",
    "multipath(nw_dst,0,hrw,12,0,OXM_OF_METADATA[0..15])",
    "multipath(symmetric_l3,0,hrw,12,0,NXM_NX_REG1[])",
    "bundle(eth_src,0,hrw,ofport,members:4,8)",
    "bundle(symmetric_l4,60,active_backup,ofport,members:)",
    "bundle(nw_src,0,hrw,ofport,members:LOCAL,1,2,3,4,5,ANY)",
    "bundle_load(eth_src,0,hrw,ofport,NXM_NX_REG0[],members:4,8)",
    "bundle_load(symmetric_l3,1,active_backup,ofport,NXM_NX_REG2[16..31],members:1)",
    "check_pkt_larger(1500)->NXM_NX_REG0[0]",
    "check_pkt_larger(0)->NXM_NX_XXREG2[127]",
    "sample(probability=12345,collector_set_id=23456,obs_domain_id=34567,obs_point_id=45678)",
    "sample(probability=1,collector_set_id=0,obs_domain_id=0,obs_point_id=4294967295,sampling_port=56789)",
    "sample(probability=65535,collector_set_id=1,obs_domain_id=2,obs_point_id=3,sampling_port=LOCAL,egress)",
    "sample(probability=65535,collector_set_id=1,obs_domain_id=2,obs_point_id=3,ingress)",
    "controller(reason=no_match,max_len=123,id=456)",
    "controller(userdata=01.02.03.04.05,pause)",
    "controller(reason=invalid_ttl,userdata=00,meter_id=7)",
    "CONTROLLER:65535",
    "CONTROLLER:0",
    "output:NXM_NX_REG1[5..10]",
    "output:OXM_OF_METADATA[0..15]",
    "output(port=1,max_len=100)",
    "output(port=LOCAL,max_len=14)",
    "resubmit:1",
    "resubmit(,5)",
    "resubmit(3,5)",
    "resubmit(LOCAL,5)",
    "note:00.01.02.03.04.05",
    "note:00.01.02.03.04.05.06.07.00.00.00.00.00.00",
    "clone(output:1,clone(load:0x1->NXM_NX_REG0[]),exit)",
    "clone(drop)",
    "push:NXM_NX_REG2[1..5]",
    "push:OXM_OF_METADATA[]",
    "pop:NXM_NX_XXREG0[]",
    "load:0x6->NXM_NX_REG0[3..5]",
    "load:0xffffffffffffffff->OXM_OF_METADATA[]",
    "load:0->NXM_OF_ETH_SRC[]",
    "move:NXM_NX_REG0[0..5]->NXM_NX_REG1[26..31]",
    "move:NXM_NX_XXREG0[]->NXM_NX_XXREG1[]",
    "set_tunnel:0x7",
    "set_tunnel64:0x100000000",
    "set_queue:5",
    "pop_queue",
    "conjunction(100,1/2)",
    "conjunction(4294967295,64/64)",
    "exit",
    "ct_clear",
    "output:1",
    "NORMAL",
    "FLOOD",
    "ALL",
    "LOCAL",
    "IN_PORT",
    "group:5",
    "mod_dl_src:00:01:02:03:04:05",
    "mod_dl_dst:00:01:02:03:04:05",
    "write_metadata:0x5",
    "write_metadata:0x5/0xff",
];

/// Actions that need IPv4 and TCP.
const OF_TCP: &[&str] = &[
    "dec_ttl",
    "dec_ttl(1,2,3)",
    "dec_ttl(65535)",
    "fin_timeout(idle_timeout=5)",
    "fin_timeout(hard_timeout=6)",
    "fin_timeout(idle_timeout=7,hard_timeout=8)",
    "ct()",
    "ct(commit)",
    "ct(commit,force,table=3,zone=10)",
    "ct(table=0,zone=NXM_NX_REG0[0..15])",
    "ct(nat)",
    "ct(table=1,zone=65535,nat)",
    "ct(commit,nat(src))",
    "ct(commit,nat(dst=10.0.0.1))",
    "ct(commit,nat(src=10.0.0.1-10.0.0.9,persistent,hash))",
    "ct(commit,nat(src=10.0.0.1-10.0.0.9:10-20,random))",
    "ct(commit,nat(src=10.0.0.1:10))",
    "ct(commit,zone=1,exec(load:0->NXM_NX_CT_MARK[]))",
    "ct(commit,nat(src),exec(load:0xf009->NXM_NX_CT_MARK[],move:NXM_NX_REG0[]->NXM_NX_CT_LABEL[0..31]),alg=ftp)",
    "ct(commit,exec(load:0x1->NXM_NX_CT_LABEL[64..127]))",
    "load:0x50->NXM_OF_TCP_DST[]",
    "move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[]",
];

/// Actions that need IPv6 and TCP.
const OF_TCP6: &[&str] = &[
    "ct(commit,nat(dst=fe80::20c:29ff:fe88:a18b,random))",
    "ct(commit,nat(src=fe80::1-fe80::2))",
    "ct(commit,nat(dst=[fe80::1]-[fe80::2]:255-4096,random))",
];

/// Actions from 1.3 on, which need packet types or masks.
const FROM_13: &[&str] = &[
    "encap(ethernet)",
    "encap(nsh)",
    "encap(nsh(md_type=1))",
    "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678),tlv(0x2000,20,0xfedcba9876543210)))",
    "decap()",
    "decap(packet_type(ns=1,type=0x894f))",
    "decap(packet_type(ns=0,type=0))",
    "set_field:0x5->reg0",
    "set_field:00:01:02:03:04:05->eth_src",
    "set_field:0x1/0xf0f->metadata",
    "set_field:0x10000/0xff0000->xreg1",
    "set_field:0x1/0x1->xxreg3",
    "push_vlan:0x8100,set_field:4101->vlan_vid,set_field:3->vlan_pcp",
    "push_vlan:0x88a8",
    "push_mpls:0x8847,set_field:10->mpls_label,set_field:3->mpls_tc,dec_mpls_ttl,set_mpls_ttl(9),pop_mpls:0x0800",
    "meter:5,output:1",
    "clear_actions,write_actions(output:1,group:3),write_metadata:0x1,goto_table:7",
];

fn lines(match_text: &str, actions: &[&str]) -> Vec<String> {
    actions
        .iter()
        .map(|actions| format!("table=1,{match_text}actions={actions}"))
        .collect()
}

fn all(version: &str, match_text: &str, actions: &[&str], exact: bool) {
    let lines = lines(match_text, actions);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    same(version, &lines, exact);
}

#[test]
fn actions_of_every_version() {
    for version in [
        "OpenFlow10",
        "OpenFlow11",
        "OpenFlow12",
        "OpenFlow13",
        "OpenFlow14",
    ] {
        all(version, "", EVERYWHERE, true);
        all(version, "tcp,", OF_TCP, true);
        // The match of 1.1 has no IPv6.
        if version != "OpenFlow11" {
            all(version, "tcp6,", OF_TCP6, true);
        }
    }
}

#[test]
fn actions_of_13() {
    all("OpenFlow13", "", FROM_13, true);
    all("OpenFlow14", "", FROM_13, true);
}

/// 1.5 has set-field instead of load, and copy-field instead of move, and `ovs-ofctl` prints them
/// as such.
#[test]
fn actions_of_15() {
    let changed = |text: &&&str| !text.contains("load:");
    let some = |list: &[&'static str]| list.iter().filter(changed).copied().collect::<Vec<_>>();
    all("OpenFlow15", "", &some(EVERYWHERE), true);
    all("OpenFlow15", "tcp,", &some(OF_TCP), true);
    all("OpenFlow15", "", FROM_13, true);
}
