//! Damaged messages: the decoder gives the same error as `ovs-ofctl`, or none if that gives none,
//! except for listed differences with their reasons. Real messages are damaged byte by byte.
//! Skipped with a message if `ovs-ofctl` is not installed.

use crate::common;
use openflow::error::Error;
use openflow::{DecodeOptions, decode};
use std::collections::BTreeMap;
use std::process::Command;

/// Returns the messages to damage, made from rules by `ovs-ofctl parse-flows`, for one version.
fn rules(version: &str) -> Option<Vec<Vec<u8>>> {
    let mut text = String::new();
    for actions in [
        "output:1,output:NXM_NX_REG1[5..10],output(port=1,max_len=100),resubmit(3,5)",
        "learn(table=4,idle_timeout=10,limit=3,result_dst=NXM_NX_REG0[3],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0x3->NXM_NX_REG1[0..3],output:NXM_OF_IN_PORT[])",
        "multipath(symmetric_l4,1024,hash_threshold,16,7,NXM_NX_REG1[0..3])",
        "bundle_load(eth_src,0,hrw,ofport,NXM_NX_REG0[],members:4,8)",
        "bundle(eth_src,0,hrw,ofport,members:4,8)",
        "check_pkt_larger(1500)->NXM_NX_REG0[0],sample(probability=1,collector_set_id=1,obs_domain_id=2,obs_point_id=3,sampling_port=7,egress)",
        "controller(userdata=01.02.03.04.05,pause,meter_id=7),controller(reason=no_match,max_len=123,id=456)",
        "note:00.01.02.03.04.05,push:NXM_NX_REG2[1..5],pop:NXM_NX_REG0[],load:0x6->NXM_NX_REG0[3..5],move:NXM_NX_REG0[0..5]->NXM_NX_REG1[26..31]",
        "clone(output:1,set_queue:5,pop_queue),exit",
        "dec_ttl,dec_ttl(1,2),fin_timeout(idle_timeout=5,hard_timeout=6)",
        "ct(commit,force,table=3,zone=NXM_NX_REG0[0..15],nat(src=10.0.0.1-10.0.0.9:10-20,random),exec(move:NXM_NX_REG0[]->NXM_NX_CT_MARK[]),alg=ftp),ct_clear",
        "conjunction(5,2/3)",
        "set_tunnel:7,set_tunnel64:0x100000000,group:5,mod_nw_src:1.2.3.4,mod_tp_dst:7,mod_dl_src:00:00:00:00:00:01",
    ] {
        text += &format!(
            "table=1,tcp,in_port=3,nw_src=10.0.0.0/8,tp_dst=80,dl_vlan=7,actions={actions}\n"
        );
    }
    if version != "OpenFlow10" {
        text += "table=1,tcp,actions=push_vlan:0x8100,set_field:4101->vlan_vid,push_mpls:0x8847,set_mpls_ttl:4,dec_mpls_ttl,pop_mpls:0x8847\n";
        text += "table=1,tcp,actions=clear_actions,write_actions(output:1,group:3),write_metadata:0x1/0xff,goto_table:7\n";
    }
    if version >= "OpenFlow12" {
        text += "table=2,udp6,reg0=1/3,xreg1=7,metadata=5/0xf,ct_state=+trk,tun_id=7,pkt_mark=1,ipv6_src=fe80::/64,ipv6_label=5,tp_src=7/0xf,actions=set_field:7->udp_dst,set_field:fe80::1->ipv6_dst\n";
        text += "table=2,arp,arp_op=1,arp_sha=00:11:22:33:44:55,arp_spa=10.0.0.1,actions=set_field:10.0.0.2->arp_tpa\n";
        text += "table=2,icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::1,nd_sll=00:11:22:33:44:55,actions=drop\n";
        text += "table=2,mpls,mpls_label=5,mpls_tc=3,actions=set_field:9->mpls_label\n";
    }
    if version >= "OpenFlow13" {
        text += "table=2,actions=meter:5,encap(nsh(md_type=2,tlv(0x1000,10,0x12345678))),decap()\n";
        text += "table=2,actions=set_field:0x5->reg0,set_field:0x1/0xf0f->metadata,set_field:0x10000/0xff0000->xreg1\n";
    }
    let parsed = common::parse_flows(version, &text)?;
    let messages: Vec<Vec<u8>> = parsed.into_iter().map(|parsed| parsed.bytes).collect();
    assert!(messages.len() >= 13);
    Some(messages)
}

/// Returns all damaged forms of a message: bytes changed one by one, bytes missing, bytes added.
/// The header's length is correct.
fn damaged(message: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for at in 8..message.len() {
        for change in [
            |byte: u8| byte ^ 1,
            |byte: u8| byte.wrapping_add(8),
            |byte: u8| byte ^ 0x80,
            |_| 0,
            |_| 0xff,
        ] {
            let mut bytes = message.to_vec();
            bytes[at] = change(bytes[at]);
            if bytes != message {
                all.push(bytes);
            }
        }
    }
    for length in [1, 2, 4, 7, 8, 16] {
        all.push(message[..message.len() - length].to_vec());
        all.push([message, &[0; 16][..length]].concat());
    }
    for bytes in &mut all {
        let length = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
    }
    all
}

/// Returns the error of `ovs-ofctl` for each message, by the transaction id; None for no error.
fn theirs(messages: &[Vec<u8>], version: &str) -> Vec<Option<String>> {
    let path =
        std::env::temp_dir().join(format!("sluice-damaged-{}-{version}", std::process::id()));
    std::fs::write(&path, messages.concat()).unwrap();
    let output = Command::new("ovs-ofctl")
        .arg("ofp-parse")
        .arg(&path)
        .output()
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut found: Vec<Option<Option<String>>> = vec![None; messages.len()];
    let output = String::from_utf8_lossy(&output.stdout);
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        // For a message of unknown type it prints only the bytes.
        if let Some(rest) = line.strip_prefix("***decode error: ") {
            let digits = lines.next().unwrap()[22..33]
                .replace('-', " ")
                .replace(' ', "");
            let xid = usize::from_str_radix(&digits, 16).unwrap();
            found[xid] = Some(Some(rest.trim_end_matches('*').to_owned()));
            continue;
        }
        let Some((_, rest)) = line.split_once("(xid=0x") else {
            continue;
        };
        let (xid, rest) = rest.split_once(')').unwrap();
        let xid = usize::from_str_radix(xid, 16).unwrap();
        let error = rest
            .split_once("***decode error: ")
            .map(|(_, rest)| rest.split("***").next().unwrap().to_owned());
        found[xid] = Some(error);
    }
    found
        .into_iter()
        .enumerate()
        .map(|(xid, found)| {
            found.unwrap_or_else(|| panic!("{version}: nothing said of {:02x?}", messages[xid]))
        })
        .collect()
}

/// Intended differences: our error, its error ("" for none), and the reason.
const MEANT: &[(&str, &str, &str)] = &[
    // Reserved bits in elements of `learn` and flags of `ct`, and numbers wider than their bits.
    ("OFPBAC_BAD_ARGUMENT", "", "reserved bits"),
    (
        "OFPBAC_BAD_ARGUMENT",
        "OFPBAC_MATCH_INCONSISTENT",
        "reserved bits",
    ),
    (
        "OFPBAC_BAD_SET_LEN",
        "",
        "a bit beyond the field for the result of `learn`",
    ),
    ("NXBAC_BAD_ED_PROP", "", "a property without its value"),
    (
        "OFPBIC_BAD_TABLE_ID",
        "",
        "goto_table:255, see docs/differences.md",
    ),
    // A wrong length of a known field is reported as such; Open vSwitch reports an unknown field
    // or, for some actions, a bad match.
    ("OFPBAC_BAD_SET_LEN", "OFPBAC_BAD_SET_TYPE", "length"),
    ("OFPBAC_BAD_SET_LEN", "OFPBMC_BAD_FIELD", "length"),
    (
        "OFPBAC_BAD_SET_TYPE",
        "OFPBMC_BAD_FIELD",
        "an action, not the match",
    ),
    ("OFPBAC_BAD_SET_TYPE", "OFPBAC_BAD_SET_LEN", "unknown"),
    ("OFPBMC_BAD_LEN", "OFPBMC_BAD_FIELD", "length"),
    ("OFPBMC_BAD_LEN", "OFPBMC_BAD_WILDCARDS", "length"),
    ("OFPBMC_BAD_LEN", "OFPBMC_BAD_VALUE", "length"),
    (
        "OFPBAC_BAD_SET_LEN",
        "OFPBMC_BAD_LEN",
        "an action, not the match",
    ),
    (
        "OFPBAC_BAD_SET_ARGUMENT",
        "OFPBMC_BAD_WILDCARDS",
        "an action, not the match",
    ),
    // Open vSwitch has actions for its own tests, but neither PBB nor copying of TTLs.
    (
        "OFPBAC_BAD_VENDOR_TYPE",
        "OFPBAC_BAD_LEN",
        "debug_slow, debug_recirc",
    ),
    ("OFPBAC_MATCH_INCONSISTENT", "OFPBAC_BAD_TYPE", "PBB"),
    ("", "OFPBAC_BAD_TYPE", "TTLs"),
    // With two errors in one message, the other one is reported.
    ("OFPBAC_BAD_ARGUMENT", "OFPBAC_BAD_LEN", "two faults"),
    ("OFPBAC_BAD_LEN", "NXBRC_MUST_BE_ZERO", "two faults"),
    ("OFPBAC_BAD_LEN", "OFPBAC_BAD_TYPE", "two faults"),
    ("OFPBAC_BAD_LEN", "OFPBAC_BAD_VENDOR_TYPE", "two faults"),
    ("OFPBAC_BAD_LEN", "OFPBMC_BAD_FIELD", "two faults"),
    (
        "OFPBAC_BAD_SET_ARGUMENT",
        "OFPBAC_BAD_ARGUMENT",
        "two faults",
    ),
];

fn compare(version: &str) {
    let Some(rules) = rules(version) else { return };
    let mut messages: Vec<Vec<u8>> = rules.iter().flat_map(|rule| damaged(rule)).collect();
    for (xid, message) in messages.iter_mut().enumerate() {
        message[4..8].copy_from_slice(&(xid as u32).to_be_bytes());
    }
    let options = DecodeOptions {
        table_in_command: true,
        ..DecodeOptions::default()
    };
    let mut differences: BTreeMap<(String, String), (usize, Vec<u8>)> = BTreeMap::new();
    let mut errors = 0;
    for (message, theirs) in messages.iter().zip(theirs(&messages, version)) {
        let ours = decode(message, &options).err().map(|failure| failure.error);
        let ours = ours.map_or("", Error::name).to_owned();
        let theirs = theirs.unwrap_or_default();
        errors += usize::from(!theirs.is_empty());
        if ours != theirs && !MEANT.iter().any(|(a, b, _)| *a == ours && *b == theirs) {
            differences
                .entry((ours, theirs))
                .or_insert((0, message.clone()))
                .0 += 1;
        }
    }
    assert!(
        errors > messages.len() / 10,
        "{version}: {errors} errors in {}",
        messages.len()
    );
    let mut text = String::new();
    for ((ours, theirs), (count, example)) in &differences {
        let hex: String = example.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("{count} times {ours:?} instead of {theirs:?}: {hex}\n");
    }
    assert!(
        differences.is_empty(),
        "{version}: of {} messages\n{text}",
        messages.len()
    );
}

#[test]
fn version_1_0() {
    compare("OpenFlow10");
}

#[test]
fn version_1_1() {
    compare("OpenFlow11");
}

#[test]
fn version_1_2() {
    compare("OpenFlow12");
}

#[test]
fn version_1_3() {
    compare("OpenFlow13");
}

#[test]
fn version_1_4() {
    compare("OpenFlow14");
}

#[test]
fn version_1_5() {
    compare("OpenFlow15");
}
