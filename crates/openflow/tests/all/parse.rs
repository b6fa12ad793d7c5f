//! Parses rules: compared with `ovs-ofctl parse-flows`, which parses and prints the same, and with
//! expected errors. `format.rs` tests that printed rules can be parsed.

use crate::common;
use openflow::flow::FlowMod;
use openflow::{parse, port};
use packet::key::at;
use packet::{Field, Match};
use proptest::prelude::*;
use std::process::Command;

fn print(rule: &FlowMod) -> String {
    common::rule_text(&rule.matching, rule.priority, &rule.instructions)
}

/// Rules as people write them, in notation that is printed like that of `ovs-ofctl`.
const RULES: &[&str] = &[
    "actions=drop",
    "priority=5 actions=normal",
    "in_port=3,actions=LOCAL,in_port,flood,all",
    "in_port=LOCAL actions=output:2",
    "table=0, ip, nw_src=10.0.0.0/8, actions=mod_nw_dst:1.2.3.4, 2",
    "ip,nw_src=10.0.0.0/255.0.255.0,actions=3",
    "ip4,ip_dst=1.2.3.4,actions=1",
    "tcp,tp_dst=80,tcp_flags=+syn-ack,actions=1",
    "tcp,tp_src=0x50/0xfff0,actions=1",
    "tcp,tcp_flags=syn|ack,actions=1",
    "udp6,udp_dst=53,ipv6_src=fe80::1/64,actions=1",
    "sctp,tp_src=5,actions=1",
    "icmp,icmp_type=8,icmp_code=0,actions=1",
    "icmp6,icmp_type=135,icmp_code=0,nd_target=fe80::2,nd_sll=00:11:22:33:44:55,actions=1",
    "arp,arp_op=1,arp_spa=1.2.3.4,arp_tpa=1.2.3.5/24,actions=1",
    "arp,nw_src=1.2.3.4,nw_proto=2,actions=1",
    "arp,arp_sha=00:11:22:33:44:55,arp_tha=00:11:22:33:44:00,actions=1",
    "rarp,actions=1",
    "mpls,mpls_label=5,mpls_tc=2,mpls_bos=1,actions=1",
    "dl_type=0x88cc,actions=CONTROLLER:65535",
    "eth_type=0x0800,ip_proto=6,tcp_dst=9,actions=1",
    "dl_src=00:11:22:33:44:55,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00,actions=1",
    "dl_vlan=5,dl_vlan_pcp=3,actions=strip_vlan,1",
    "dl_vlan=0xffff,actions=mod_vlan_vid:5,1",
    "vlan_tci=0x1005/0x1fff,actions=1",
    "vlan_tci=0,actions=1",
    "vlan_vid=0x1005,actions=1",
    "ip,nw_tos=32,nw_ecn=1,nw_ttl=64,actions=1",
    "ip,ip_dscp=8,actions=1",
    "ip,nw_frag=later,actions=1",
    "ip,ip_frag=not_later,actions=1",
    "ipv6,ipv6_label=0x5/0xf,actions=1",
    "reg0=5,reg15=0x10/0x10,metadata=0x5/0xff,tun_id=7,pkt_mark=1/1,actions=1",
    "xreg0=0x500000006,actions=1",
    "tun_src=1.2.3.4,tun_dst=1.2.0.0/16,tun_gbp_id=3,actions=1",
    "conj_id=7,actions=1",
    "ct_state=+trk-new,ip,actions=1",
    "ct_mark=5/7,ct_zone=3,actions=1",
    "actions=load:0x5->NXM_NX_REG0[],load:1->OXM_OF_METADATA[3..6],load:1->reg1[7]",
    "actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],move:reg0[0..15]->NXM_NX_REG1[16..31]",
    "ip,actions=set_field:1.2.3.4->ip_dst,set_field:5/0xf->reg0,set_field:00:11:22:33:44:55->eth_src,1",
    "actions=push:reg0,pop:NXM_NX_REG1[],push:NXM_NX_REG0[0..7]",
    "actions=resubmit:3,resubmit(,4),resubmit(5,6),resubmit(LOCAL,1)",
    "actions=output:reg0,output:NXM_NX_REG1[0..15],output(port=2,max_len=64)",
    "actions=enqueue:3:4,enqueue(5,6),set_queue:7,pop_queue",
    "actions=clone(set_field:1->reg0,output:3),clone(drop),exit",
    "actions=controller,controller(max_len=5),controller(reason=no_match,id=4),controller(userdata=01.02.03,pause)",
    "actions=note:01.02.03.04.05.06",
    "ip,actions=dec_ttl,dec_ttl(1,2),mod_nw_tos:32,mod_nw_src:9.8.7.6",
    "ip,actions=mod_nw_ttl:5",
    "tcp,actions=mod_tp_src:5,mod_tp_dst:0x50,1",
    "actions=set_tunnel:5,set_tunnel64:6,set_tunnel:0x100000000",
    "actions=mod_dl_src:00:11:22:33:44:55,mod_dl_dst:00:11:22:33:44:56,mod_vlan_pcp:3",
    "priority=7,conj_id=5,ip actions=conjunction(3,1/2),conjunction(4,3/3)",
    "actions=group:5",
    "actions=push_vlan:0x8100,set_field:0x1005->vlan_vid,push_mpls:0x8847,set_mpls_ttl(5),dec_mpls_ttl,pop_mpls:0x0800",
    "ip,actions=meter:3,2,clear_actions,write_actions(output:4,group:6),write_metadata:0x5/0xf,goto_table:7",
    "priority=0,actions=goto_table:3",
];

/// Returns what `ovs-ofctl parse-flow` prints for a rule, from the priority on, for each version
/// that has it; None if it is not installed.
fn theirs(rule: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for version in ["OpenFlow10", "OpenFlow13", "OpenFlow15"] {
        let arguments = ["-O", version, "parse-flow", rule];
        let output = common::installed(Command::new("ovs-ofctl").args(arguments).output())?;
        let text = String::from_utf8(output.stdout).unwrap();
        let Some(line) = text.lines().find(|line| line.contains("ADD")) else {
            continue;
        };
        let tail = line.split_once("ADD").unwrap().1.trim();
        all.push(match tail.strip_prefix("table:") {
            Some(rest) => rest.split_once(' ').unwrap().1.to_owned(),
            None => tail.to_owned(),
        });
    }
    Some(all)
}

#[test]
fn rules_are_read_as_ovs_ofctl_reads_them() {
    let mut differ = Vec::new();
    for text in RULES {
        let ours = match parse::flow(text, &parse::no_names) {
            Ok(rule) => print(&rule).replace("pop_vlan", "strip_vlan"),
            Err(error) => panic!("{text}: {error}"),
        };
        let Some(theirs) = theirs(text) else { return };
        let same = |theirs: &String| theirs.replace("pop_vlan", "strip_vlan") == ours;
        if !theirs.iter().any(same) {
            differ.push(format!("{text}\n  {ours}\n  {theirs:?}"));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn lines_of_dump_flows_are_parsed_as_rules() {
    let line = " cookie=0x5, duration=3.123s, table=4, n_packets=3, n_bytes=9, idle_timeout=7, hard_timeout=9, send_flow_rem priority=77,tcp,in_port=\"eth0\" actions=output:\"veth-1,2\"";
    let names = |name: &str| match name {
        "eth0" => Some(3),
        "veth-1,2" => Some(9),
        _ => None,
    };
    let rule = parse::flow(line, &names).unwrap();
    assert_eq!(
        (
            rule.cookie,
            rule.table,
            rule.idle_timeout,
            rule.hard_timeout
        ),
        (5, 4, 7, 9)
    );
    assert!(rule.flags.send_flow_rem);
    assert_eq!(print(&rule), "priority=77,tcp,in_port=3 actions=output:9");
}

/// Error texts are Open vSwitch's if it has any (`ofproto/trace`, `ovs-ofctl`).
#[test]
fn errors_name_what_is_wrong() {
    let packet = |text: &str| match parse::packet(text, &parse::no_names) {
        Err(error) => error.to_string(),
        Ok(_) => "none".into(),
    };
    for (text, error) in [
        ("foo=1", "unknown field foo"),
        ("in_port=1,foo", "unknown field foo"),
        (
            "in_port=xx",
            "bad value for in_port (xx: invalid or unknown port for in_port)",
        ),
        (
            "in_port=1,nw_src=1.2.3",
            "prerequisites not met for setting nw_src",
        ),
        (
            "in_port=1,tcp,tp_dst=x",
            "bad value for tp_dst (x: bad syntax for tcp_dst value)",
        ),
        (
            "tcp,tp_dst=99999",
            "bad value for tp_dst (99999: value too large for 2-byte field tcp_dst)",
        ),
        (
            "tcp,tp_dst=1/2",
            "bad value for tp_dst (1/2: wildcards not allowed here)",
        ),
        (
            "dl_src=1:2",
            "bad value for dl_src (1:2: invalid Ethernet address)",
        ),
        ("in_port=1,in_port=2", "field in_port set multiple times"),
        ("actions=drop", "unknown field actions"),
        (
            "tcp,tcp_flags=foo",
            "bad value for tcp_flags (foo: unknown TCP flag(s))",
        ),
        (
            "reg1=1/1",
            "bad value for reg1 (1/1: wildcards not allowed here)",
        ),
        (
            "ct_state=+trk+new",
            "bad value for ct_state (+trk+new: wildcards not allowed here)",
        ),
        ("nw_proto=6", "prerequisites not met for setting nw_proto"),
    ] {
        assert_eq!(packet(text), format!("{text}: {error}"));
    }
    let actions = |text: &str| match parse::instructions(text, &parse::no_names) {
        Err(error) => error.to_string(),
        Ok(_) => "none".into(),
    };
    for (text, error) in [
        ("foo", "unknown action foo"),
        ("foo(1)", "unknown action foo"),
        ("output:xx", "xx: output to unknown port"),
        ("load:5", "5: missing `->' in load action"),
        ("load:5->foo[]", "foo[]: unknown field `foo'"),
        (
            "load:0x10->reg0[0..3]",
            "value 0x10 is too large for load, which has 4 bits",
        ),
        (
            "move:reg0[0..3]->reg1[]",
            "reg0[0..3]->reg1[]: source field is 4 bits wide but destination is 32 bits wide",
        ),
        (
            "drop,1",
            "\"drop\" must not be accompanied by any other action or instruction",
        ),
        (
            "mod_vlan_vid:5000",
            "value 5000 is too large for mod_vlan_vid, which has 12 bits",
        ),
        ("resubmit(,300)", "300: resubmit to unknown table"),
        ("set_field:5->ct_state", "ct_state is read-only"),
        (
            "clone(goto_table:3)",
            "goto_table: an instruction is not an action",
        ),
    ] {
        assert_eq!(actions(text), error, "{text}");
    }
    let deep = "clone(".repeat(5000) + &")".repeat(5000);
    assert_eq!(actions(&deep), "clone: actions are nested too deeply");
    assert!(actions("goto_table:3,output:1").contains("out of order"));
    assert_eq!(
        parse::matching("tcp_dst=5", &parse::no_names)
            .unwrap_err()
            .to_string(),
        "tcp_dst: prerequisites not met (OFPBMC_BAD_PREREQ)"
    );
}

#[test]
fn ports_have_numbers_and_names() {
    let read = |text| parse::port(text, &|name: &str| (name == "eth0").then_some(7));
    assert_eq!(read("5"), Some(5));
    assert_eq!(read("65534"), Some(port::LOCAL));
    assert_eq!(read("0xfffffffe"), Some(port::LOCAL));
    assert_eq!(read("local"), Some(port::LOCAL));
    assert_eq!(read("eth0"), Some(7));
    assert_eq!(read("\"eth0\""), Some(7));
    assert_eq!(read("70000"), None);
    assert_eq!(read("eth1"), None);
}

#[test]
fn an_option_of_a_tunnel_is_there() {
    let whole = parse::packet("tun_metadata0=1234,tun_metadata1=0", &parse::no_names).unwrap();
    assert_eq!(whole.options(), 0b11);
    let (value, mask) = whole.option(0).unwrap();
    assert_eq!(value.to_u128(), 1234);
    assert_eq!(mask[..], [0xff; packet::options::LONGEST]);
    let longest = "12".repeat(packet::options::LONGEST);
    let long = parse::packet(&format!("tun_metadata0=0x{longest}"), &parse::no_names).unwrap();
    let (value, _) = long.option(0).unwrap();
    assert_eq!(value[..], [0x12; packet::options::LONGEST]);
    for bad in [
        format!("0x1{longest}"),
        "0x".into(),
        "0xg".into(),
        "".into(),
        "0x+1".into(),
    ] {
        let read = parse::packet(&format!("tun_metadata0={bad}"), &parse::no_names);
        assert!(read.is_err(), "{bad}");
    }
    let some = parse::matching("tun_metadata0=0x1200/0xff00", &parse::no_names).unwrap();
    let (value, mask) = some.option(0).unwrap();
    assert_eq!((&value[..], &mask[..]), (&[0x12, 0][..], &[0xff, 0][..]));
}

#[test]
fn no_tag_is_a_value() {
    let mut untagged = Match::any();
    untagged.set_bytes(at::VLAN_TCI, &[0; 2], &[0xff; 2]);
    assert_eq!(
        parse::matching("dl_vlan=0xffff", &parse::no_names),
        Ok(untagged)
    );
    let tagged = parse::packet("vlan_vid=5", &parse::no_names).unwrap();
    assert_eq!(tagged.get(Field::VlanTci).0.to_u64(), 5);
}

proptest! {
    /// Any text gives a result or an error.
    #[test]
    fn any_text_has_an_answer(text in "[a-zA-Z0-9_=:,()\\[\\]>./|+\"* -]{0,80}") {
        let _ = parse::flow(&format!("{text},actions={text}"), &parse::no_names);
        let _ = parse::packet(&text, &parse::no_names);
        let _ = parse::instructions(&text, &parse::no_names);
    }

    /// So does text that is nearly valid.
    #[test]
    fn a_broken_rule_has_an_answer(index in 0..RULES.len(), at in 0_usize..200, with in "[=:,()\\[\\]>/0-9é-]{0,2}") {
        let mut text: Vec<char> = RULES[index].chars().collect();
        let at = at.min(text.len());
        text.splice(at..(at + 1).min(text.len()), with.chars());
        let _ = parse::flow(&text.into_iter().collect::<String>(), &parse::no_names);
    }
}
