"""Every field of ovs-fields(7) and every action of ovs-actions(7), rule by rule with ovs-ofctl in
every version of OpenFlow, on Open vSwitch and on the daemon under test: which rules are taken, with
which error others are refused, and how dump-flows prints them. Differences are explained in
test_every_field_differences.txt beside this file."""

import os
import re

from harness import OPEN_VSWITCH, Failure, Skip, check, switchd_command, test

EXPLAINED = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "test_every_field_differences.txt"
)
ALL = ("OpenFlow10", "OpenFlow13", "OpenFlow15")
# The rest speak what these speak, so every fourth rule is enough.
SAMPLED = ("OpenFlow11", "OpenFlow12", "OpenFlow14")

# Matches, each a rule that outputs to port 1.
FIELDS = r"""
in_port=1
in_port=LOCAL
in_port=65279
in_port_oxm=2
in_port=ANY
pkt_mark=7
pkt_mark=7/0xf
packet_type=(0,0)
packet_type=(1,0x800)
packet_type=(1,0x894f)
conj_id=0
conj_id=4294967295
recirc_id=0
recirc_id=1
dp_hash=1
dp_hash=1/3
skb_priority=1
actset_output=2
actset_output=CONTROLLER
metadata=5
metadata=0x1234567890abcdef/0xff000000000000ff
reg0=1
reg0=1/1
reg15=0xffffffff
xreg0=0x100000002
xreg7=0x100000002/0xf0000000f
xxreg0=0x1000000020000000300000004
xxreg3=1/1
xreg0=1,reg0=0
reg0=1,reg1=2,reg2=3,reg3=4
tun_id=5
tun_id=5/0xf
tun_id=0xffffffffffffffff
tun_src=10.0.0.1
tun_dst=10.0.0.0/8
tun_src=10.0.0.1/255.0.0.255
tun_ipv6_src=fd00::1
tun_ipv6_dst=fd00::/16
tun_flags=oam
tun_flags=+oam
tun_flags=-oam
tun_flags=0
tun_gbp_id=7
tun_gbp_id=7/0xf
tun_gbp_flags=8
tun_erspan_idx=5
tun_erspan_ver=1
tun_erspan_dir=1
tun_erspan_hwid=3
tun_gtpu_flags=0x30
tun_gtpu_msgtype=255
tun_metadata0=1
tun_metadata0
tun_metadata63=0x10/0xf0
ct_state=+trk
ct_state=+trk+est-inv
ct_state=0/1
ct_state=-trk
ct_state=+new+est+rel+rpl+inv+trk+snat+dnat
ct_state=0x1ff/0x1ff
ct_zone=7
ct_mark=7
ct_mark=7/0xf
ct_label=7
ct_label=7/0xf
ct_nw_src=10.0.0.1,ip
ct_nw_src=10.0.0.1,ip,ct_state=+trk+est
ct_nw_dst=10.0.0.0/8,ip,ct_state=+trk+est
ct_nw_proto=6,ip,ct_state=+trk+est
ct_tp_src=5,ip,ct_nw_proto=6,ct_state=+trk+est
ct_tp_dst=5/7,ip,ct_nw_proto=6,ct_state=+trk+est
ct_ipv6_src=fd00::1,ipv6,ct_state=+trk+est
ct_ipv6_dst=fd00::/16,ipv6,ct_state=+trk+rpl
dl_src=02:00:00:00:00:01
dl_src=02:00:00:00:00:00/ff:00:00:00:00:00
dl_dst=ff:ff:ff:ff:ff:ff
dl_dst=01:00:00:00:00:00/01:00:00:00:00:00
dl_dst=02:03:04:05:06:07/fe:ff:ff:ff:ff:0f
dl_type=0x1234
dl_type=0x05ff
eth_type=0x800
vlan_tci=0
vlan_tci=0x1005
vlan_tci=0x1005/0x1fff
vlan_tci=0xb005/0xf00f
vlan_tci=0/0x1000
dl_vlan=5
dl_vlan=0xffff
dl_vlan=5,dl_vlan_pcp=3
dl_vlan_pcp=3
vlan_vid=0x1005
vlan_vid=0x1000/0x1000
vlan_vid=0
vlan_pcp=3,vlan_vid=0x1005
vlan_tci1=0
mpls,mpls_label=5
mpls,mpls_tc=3
mpls,mpls_bos=1
mpls,mpls_ttl=64
mplsm
mpls_label=5
ip
ip,nw_src=10.0.0.1
ip,nw_src=10.0.0.0/24
ip,nw_dst=10.0.0.1/255.0.255.0
nw_src=10.0.0.1
ip_src=10.0.0.1,ip
ipv6
ipv6,ipv6_src=fd00::1
ipv6,ipv6_dst=fd00::/16
ipv6,ipv6_dst=fd00::1/ffff::ffff
ipv6,ipv6_label=5
ipv6,ipv6_label=5/0xf
ip,nw_proto=6
ip,nw_proto=47
ipv6,nw_proto=6
nw_proto=6
arp,nw_proto=2
ip,nw_tos=0x20
ip,nw_tos=0x21
ip,ip_dscp=8
ip,nw_ecn=3
ip,ip_ecn=1
ip,nw_ttl=64
ipv6,nw_ttl=64
ip,nw_frag=no
ip,nw_frag=yes
ip,nw_frag=first
ip,nw_frag=later
ip,nw_frag=not_later
ip,ip_frag=first
nw_frag=first
arp
rarp
arp,arp_op=1
arp,arp_op=256
arp,arp_spa=10.0.0.1
arp,arp_tpa=10.0.0.0/8
arp,arp_sha=02:00:00:00:00:01
arp,arp_tha=02:00:00:00:00:01/ff:ff:ff:00:00:00
rarp,arp_op=3
tcp
tcp,tp_src=80
tcp,tp_dst=80/0xfff0
tcp6,tp_dst=80
tcp,tcp_src=80
tcp,tcp_dst=80
tcp,tcp_flags=+syn-ack
tcp,tcp_flags=syn
tcp,tcp_flags=0xfff
tcp,tcp_flags=0x3/0xff
tcp6,tcp_flags=fin
udp
udp,tp_src=53
udp,udp_dst=53/0xff
udp6,udp_src=5
sctp
sctp,tp_src=80
sctp,sctp_dst=80
sctp6,sctp_dst=80/0xff00
icmp
icmp,icmp_type=8
icmp,icmp_type=8,icmp_code=0
icmp6
icmp6,icmp_type=128
icmp6,icmpv6_type=128,icmpv6_code=0
icmp6,icmpv6_type=135,nd_target=fd00::1
icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fd00::1
icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fd00::/16
icmp6,icmpv6_type=135,icmpv6_code=0,nd_sll=02:00:00:00:00:01
icmp6,icmpv6_type=136,icmpv6_code=0,nd_tll=02:00:00:00:00:01/ff:ff:ff:ff:ff:00
icmp6,icmpv6_type=135,icmpv6_code=0,nd_tll=02:00:00:00:00:01
icmp6,icmpv6_type=136,icmpv6_code=0,nd_options_type=1
icmp6,icmpv6_type=136,icmpv6_code=0,nd_reserved=1
igmp
tp_src=80
tcp,udp_src=80
dl_type=0x894f,nsh_spi=5
dl_type=0x894f,nsh_si=5
"""

# Actions, each in a rule of a table of its own.
ACTIONS = r"""
drop
output:1
output:65279
output:65280
1
normal
flood
all
in_port
local
table
controller
controller:128
controller(max_len=100,reason=invalid_ttl,id=5)
controller(userdata=01.02.03.04.05)
controller(pause)
controller(userdata=01,pause,id=7)
controller(meter_id=5)
enqueue(1,5)
enqueue:LOCAL:5
output:NXM_NX_REG0[]
output:NXM_NX_REG0[0..15]
output:xreg0[]
output:metadata[0..15]
output(port=1,max_len=100)
output(port=1,max_len=13)
output(port=controller,max_len=100)
group:1
bundle(eth_src,0,active_backup,ofport,members:1,2)
bundle(symmetric_l4,5,hrw,ofport,members:1,2,3)
bundle(symmetric_l3l4,5,hrw,ofport,members:LOCAL)
bundle(symmetric_l3l4+udp,5,hrw,ofport,members:1)
bundle(symmetric_l3,5,hrw,ofport,members:1)
bundle(nw_src,5,hrw,ofport,members:1)
bundle(nw_dst,5,hrw,ofport,members:)
bundle_load(eth_src,0,hrw,ofport,NXM_NX_REG0[],members:1,2)
bundle_load(eth_src,0,hrw,ofport,reg0[0..14],members:1,2)
bundle_load(eth_src,0,hrw,ofport,conj_id,members:1,2)
multipath(eth_src,50,modulo_n,1,0,NXM_NX_REG0[])
multipath(symmetric_l4,50,hash_threshold,4,0,NXM_NX_REG0[0..1])
multipath(symmetric_l4,50,hash_threshold,5,0,NXM_NX_REG0[0..1])
multipath(nw_src,50,hrw,4,0,xreg0[0..15])
multipath(symmetric_l3l4,0,iter_hash,4,7,NXM_NX_TUN_ID[0..31])
multipath(symmetric_l3,0,iter_hash,4,7,conj_id)
set_queue:5
pop_queue
strip_vlan
push_vlan:0x8100
push_vlan:0x88a8
push_vlan:0x1234
push_vlan:0x8100,push_vlan:0x88a8,push_vlan:0x8100
pop_vlan
mod_vlan_vid:5
mod_vlan_pcp:5
mod_vlan_vid:5000
push_mpls:0x8847
push_mpls:0x1234
push_mpls:0x8847,set_field:5->mpls_label,set_field:3->mpls_tc,set_mpls_ttl:9
mpls:pop_mpls:0x0800
mpls:set_mpls_label:5
mpls:set_mpls_tc:3
mpls:set_mpls_ttl:64
mpls:dec_mpls_ttl
mpls:set_field:5->mpls_label
mpls:copy_ttl_in
pop_mpls:0x0800
mod_dl_src:02:00:00:00:00:01
mod_dl_dst:02:00:00:00:00:01
mod_nw_src:10.0.0.1
ip:mod_nw_src:10.0.0.1
ip:mod_nw_dst:10.0.0.1
ip:mod_nw_tos:32
ip:mod_nw_tos:33
ip:mod_nw_ecn:3
ip:mod_nw_ttl:9
ipv6:mod_nw_tos:32
tcp:mod_tp_src:80
udp:mod_tp_dst:80
sctp:mod_tp_dst:80
arp:mod_tp_dst:80
dec_ttl
ip:dec_ttl
ip:dec_ttl(1,2,3)
ipv6:dec_ttl
set_tunnel:5
set_tunnel64:5
set_tunnel:0x100000000
set_field:5->tun_id
set_field:5->reg0
set_field:5/0xf->reg0
set_field:5->xreg0
set_field:5->xxreg0
set_field:5/7->xxreg1
set_field:5->metadata
set_field:5/0xff->metadata
set_field:5->pkt_mark
set_field:5/7->pkt_mark
set_field:1->in_port
set_field:1->in_port_oxm
set_field:02:00:00:00:00:01->eth_src
set_field:02:00:00:00:00:01/ff:00:00:00:00:0f->eth_dst
set_field:0x800->eth_type
set_field:5->vlan_vid
set_field:0x1005->vlan_vid
vlan_tci=0x1000/0x1000:set_field:0x1005->vlan_vid
vlan_tci=0x1000/0x1000:set_field:3->vlan_pcp
set_field:5->vlan_tci
ip:set_field:10.0.0.1->ip_src
ip:set_field:10.0.0.1/255.0.0.0->ip_dst
ip:set_field:10.0.0.1->nw_dst
ipv6:set_field:fd00::1->ipv6_src
ipv6:set_field:fd00::1/ffff::->ipv6_dst
ipv6:set_field:5->ipv6_label
ip:set_field:8->ip_dscp
ip:set_field:32->nw_tos
ip:set_field:1->nw_ecn
ip:set_field:9->nw_ttl
ip:set_field:6->nw_proto
ip:set_field:no->ip_frag
arp:set_field:2->arp_op
arp:set_field:10.0.0.1->arp_spa
arp:set_field:10.0.0.1->arp_tpa
arp:set_field:02:00:00:00:00:01->arp_sha
arp:set_field:02:00:00:00:00:01->arp_tha
tcp:set_field:80->tcp_src
tcp:set_field:80->tcp_dst
tcp:set_field:1->tcp_flags
udp:set_field:80->udp_src
udp:set_field:80/0xff->udp_dst
sctp:set_field:80->sctp_src
sctp:set_field:80->sctp_dst
icmp:set_field:8->icmp_type
icmp:set_field:8->icmp_code
icmp6:set_field:8->icmpv6_type
icmp6:set_field:8->icmpv6_code
icmp6,icmpv6_type=135,icmpv6_code=0:set_field:fd00::1->nd_target
icmp6,icmpv6_type=135,icmpv6_code=0:set_field:02:00:00:00:00:01->nd_sll
icmp6,icmpv6_type=136,icmpv6_code=0:set_field:02:00:00:00:00:01->nd_tll
icmp6,icmpv6_type=136,icmpv6_code=0:set_field:1->nd_options_type
set_field:10.0.0.1->tun_src
set_field:10.0.0.1->tun_dst
set_field:fd00::1->tun_ipv6_src
set_field:oam->tun_flags
set_field:5->tun_gbp_id
set_field:5->tun_gbp_flags
set_field:5->tun_metadata0
set_field:5->ct_mark
set_field:5->ct_label
set_field:5->ct_zone
set_field:5->conj_id
set_field:5->recirc_id
set_field:5->dp_hash
set_field:1->actset_output
set_field:1->packet_type
load:5->NXM_NX_REG0[]
load:5->NXM_NX_REG0[0..2]
load:9->NXM_NX_REG0[0..2]
load:5->NXM_NX_XXREG0[0..63]
load:5->NXM_NX_XXREG0[]
load:5->NXM_NX_TUN_ID[]
load:5->OXM_OF_METADATA[]
load:5->NXM_OF_IN_PORT[]
load:5->NXM_OF_ETH_SRC[]
load:0x800->NXM_OF_ETH_TYPE[]
load:5->NXM_OF_VLAN_TCI[0..11]
load:5->NXM_OF_VLAN_TCI[]
ip:load:0x0a000001->NXM_OF_IP_SRC[]
ip:load:32->NXM_OF_IP_TOS[]
ip:load:9->NXM_NX_IP_TTL[]
ip:load:1->NXM_NX_IP_ECN[]
arp:load:2->NXM_OF_ARP_OP[]
load:2->NXM_OF_ARP_OP[]
tcp:load:80->NXM_OF_TCP_DST[]
load:5->NXM_NX_PKT_MARK[]
load:5->NXM_NX_CT_MARK[]
move:NXM_NX_REG0[]->NXM_NX_REG1[]
move:NXM_NX_REG0[0..5]->NXM_NX_REG1[20..25]
move:NXM_NX_REG0[]->NXM_NX_XXREG1[0..31]
move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]
move:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]
move:NXM_OF_ETH_TYPE[]->NXM_NX_REG0[0..15]
move:NXM_OF_VLAN_TCI[]->NXM_NX_REG0[0..15]
ip:move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[]
move:NXM_OF_IP_SRC[]->NXM_NX_REG0[]
ipv6:move:NXM_NX_IPV6_SRC[]->NXM_NX_XXREG0[]
arp:move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[]
tcp:move:NXM_OF_TCP_SRC[]->NXM_OF_TCP_DST[]
icmp:move:NXM_OF_ICMP_TYPE[]->NXM_NX_REG0[0..7]
move:NXM_NX_CONJ_ID[]->NXM_NX_REG0[]
move:NXM_NX_CT_STATE[]->NXM_NX_REG0[]
move:NXM_NX_TUN_IPV4_SRC[]->NXM_NX_TUN_IPV4_DST[]
move:OXM_OF_PACKET_TYPE[]->NXM_NX_REG0[]
move:ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE[]->NXM_NX_REG0[0..7]
push:NXM_NX_REG0[]
push:NXM_OF_ETH_TYPE[]
push:xxreg0[],pop:xxreg1[]
pop:NXM_NX_REG0[0..5]
pop:NXM_OF_ETH_TYPE[]
check_pkt_larger(1500)->NXM_NX_REG0[0]
check_pkt_larger(1500)->NXM_OF_ETH_TYPE[0]
delete_field:tun_metadata0
delete_field:reg0
resubmit:1
resubmit(,1)
resubmit(1,2)
resubmit(in_port,2)
resubmit(,255)
resubmit(,254)
resubmit(,1,ct)
ip,ct_state=+trk+est:resubmit(,1,ct)
clone(output:1)
clone(push_vlan:0x8100,set_field:5->reg0,output:1),output:2
clone(clone(clone(clone(output:1))))
clone()
conjunction(1,1/2)
conjunction(1,2/2),conjunction(2,1/64)
conjunction(1,1/2),note:11
conjunction(0,1/2)
note:11.22.33
note:
exit
sample(probability=12345,collector_set_id=23456,obs_domain_id=34567,obs_point_id=45678)
sample(probability=1,sampling_port=1)
sample(probability=1,sampling_port=1,egress)
sample(probability=65535,ingress)
learn(table=1)
learn(table=1,idle_timeout=5,hard_timeout=6,priority=7,cookie=8,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15],output:NXM_OF_IN_PORT[])
learn(table=1,send_flow_rem,delete_learned,limit=5,fin_idle_timeout=1,fin_hard_timeout=2,in_port=5,result_dst=reg0[0])
learn(table=255)
learn(table=1,NXM_OF_TCP_DST[]=NXM_OF_TCP_SRC[])
tcp:fin_timeout(idle_timeout=5,hard_timeout=6)
fin_timeout(idle_timeout=5)
ct
ct(commit)
ct(commit,zone=5,table=6)
ct(commit,exec(set_field:5->ct_mark))
ct(nat)
ct_clear
write_metadata:5
write_metadata:5/0xff
goto_table:200
goto_table:0
clear_actions
write_actions(output:1)
write_actions(set_field:5->reg0,output:1),goto_table:200
write_actions(resubmit(,3))
write_actions(note:11)
write_actions(multipath(eth_src,0,modulo_n,1,0,NXM_NX_REG0[]))
write_actions(bundle(eth_src,0,hrw,ofport,members:1))
write_actions(dec_ttl,output:1)
write_actions(push_vlan:0x8100,output:1)
write_actions(enqueue(1,2))
write_actions(group:1)
write_actions()
meter:1
meter:1,output:1
clear_actions,write_actions(output:1),write_metadata:1,goto_table:200
output:1,goto_table:200
dec_nsh_ttl
encap(mpls)
encap(ethernet)
encap(nsh(md_type=1))
decap()
decap(packet_type(ns=1,type=0x894f))
"""


def rules():
    """(what is tried, the rule).

    Every rule has a place of its own, so that one cannot replace another."""
    for number, match in enumerate(lines(FIELDS)):
        yield match, f"table=0,priority={1000 + number},{match},actions=output:1"
    for number, text in enumerate(lines(ACTIONS)):
        # "MATCH:ACTIONS" where the actions need a match; no action's own name begins like one of
        # these.
        needs = re.match(
            r"((?:ip|ipv6|arp|tcp|udp|sctp|icmp6?|mpls|vlan_tci)[^:(]*?):(?=[a-z])", text
        )
        match, actions = (needs[1] + ",", text[needs.end() :]) if needs else ("", text)
        yield text, f"table=100,priority={1000 + number},{match}actions={actions}"


def lines(text):
    return [line for line in text.splitlines() if line]


def attempt(lab, name, command=None):
    """{(version, what): answer and, if it was taken, the rule as it is shown}."""
    switch = lab.switch(name, command=command)
    switch.bridge(
        "br0",
        "fail_mode=secure",
        "protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15",
    )
    found = {}
    cookies = {what: number for number, (what, _) in enumerate(rules(), 1)}
    for version in ALL + SAMPLED:
        chosen = list(rules())[:: 1 if version in ALL else 4]
        for what, rule in chosen:
            done = switch.tool(
                "ovs-ofctl",
                "-O",
                version,
                "add-flow",
                "br0",
                f"cookie={cookies[what]},{rule}",
                ok=False,
            )
            text = done.stdout + done.stderr
            error = re.search(r"OFPT_ERROR.*: (\w+)|ovs-ofctl: (.*)", text)
            found[version, what] = (
                "taken"
                if done.returncode == 0 and not error
                else (error[1] or error[2])
                if error
                else text.strip()
            )
        shown = {}
        dump = ["ovs-ofctl", "-O", version, "--no-stats", "--no-names", "dump-flows", "br0"]
        done = switch.tool(*dump, ok=False)
        text = done.stdout
        if done.returncode:
            # A rule that cannot be read spoils the dump: one by one, so that the others can be.
            text = ""
            for number, (what, _) in enumerate(rules(), 1):
                one = switch.tool(*dump, f"cookie={number}/-1", ok=False)
                text += one.stdout if one.returncode == 0 else ""
                if one.returncode:
                    found[version, what] += " and cannot be shown"
        for line in text.splitlines():
            place = re.search(r"(table=100, |)priority=(\d+)", line)
            if place:
                shown[bool(place[1]), int(place[2])] = re.sub(
                    r"cookie=0x[0-9a-f]+, ", "", line.strip()
                )
        counts = [0, 0]
        places = {}
        for what, rule in rules():
            action = rule.startswith("table=100")
            places[what] = (action, 1000 + counts[action])
            counts[action] += 1
        for what, _ in chosen:
            line = shown.get(places[what])
            if line:
                found[version, what] += " as " + line
        switch.ofctl("-O", version, "del-flows", "br0")
    switch.stop()
    return found


def explanations():
    """[(line number, whether it may be stale, versions, what, reference, got)] of regular
    expressions; see the head of the list for the format."""
    entries = []
    with open(EXPLAINED, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if line and not line.startswith("#"):
                parts = line.split(" | ")
                if len(parts) != 4:
                    raise Failure(
                        f"{EXPLAINED}:{number}: not 'VERSIONS | RULE | OPEN VSWITCH | THIS DAEMON'"
                    )
                passing = parts[0].startswith("? ")
                entries.append(
                    (number, passing, *map(re.compile, [parts[0].removeprefix("? "), *parts[1:]]))
                )
    return entries


@test(timeout=600)
def every_field_and_action_is_taken_as_open_vswitch_takes_it(lab):
    """Each field and action in each version, on both daemons."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = attempt(lab, "r", switchd_command("ovs")), attempt(lab, "t")
    entries, used, unexplained, differing = explanations(), set(), [], 0
    with open(os.path.join(lab.directory, "all.txt"), "w", encoding="utf-8") as file:
        for (version, what), reference in wanted.items():
            mine = got[version, what]
            mark = " " if mine == reference else "*"
            file.write(
                f"{mark} {version} {what}\n    {reference}\n"
                + (f"    {mine}\n" if mine != reference else "")
            )
            if mine == reference:
                continue
            differing += 1
            known = [
                number
                for number, _, *parts in entries
                if all(
                    part.fullmatch(text)
                    for part, text in zip(parts, (version, what, reference, mine))
                )
            ]
            used.update(known)
            if not known:
                unexplained.append(f"{version} | {what} | {reference} | {mine}")
    taken = sum(text.startswith("taken") for text in wanted.values())
    lab.note(
        f"{len(wanted)} rules, of which Open vSwitch takes {taken}; {differing} differ, "
        f"{len(entries)} explanations"
    )
    check(taken * 2 > len(wanted), "Open vSwitch refuses most of the rules: the list is wrong")
    check(
        not unexplained,
        f"{len(unexplained)} differ without an explanation (version, rule, Open vSwitch, this "
        "daemon):\n" + "\n".join(unexplained[:60]),
    )
    stale = [
        f"line {number}" for number, passing, *_ in entries if number not in used and not passing
    ]
    check(
        lab.is_ovs or not stale, f"{EXPLAINED} explains what no longer differs: {', '.join(stale)}"
    )


OPTIONS = r"""
add-tlv-map br0 {class=0xffff,type=0,len=4}->tun_metadata0
add-tlv-map br0 {class=0xffff,type=1,len=8}->tun_metadata3,{class=0x102,type=0x80,len=4}->tun_metadata8
add-tlv-map br0 {class=0xffff,type=7,len=4}->tun_metadata0
add-tlv-map br0 {class=0xffff,type=0,len=4}->tun_metadata9
add-tlv-map br0 {class=0xffff,type=9,len=5}->tun_metadata9
add-tlv-map br0 {class=0xffff,type=9,len=128}->tun_metadata9
add-tlv-map br0 {class=0xffff,type=9,len=4}->tun_metadata64
dump-tlv-map br0
add-flow br0 priority=1,tun_metadata0=5,actions=set_field:5->tun_metadata0,output:1
add-flow br0 priority=2,tun_metadata0=5/0xff,actions=load:5->tun_metadata0[0..3]
add-flow br0 priority=3,tun_metadata0,actions=move:tun_metadata0[0..15]->reg0[0..15],move:reg0[0..15]->tun_metadata3[16..31]
add-flow br0 priority=4,tun_metadata3=0x1122334455667788,tun_metadata8=7,actions=delete_field:tun_metadata3
add-flow br0 priority=5,actions=set_field:5/0xff->tun_metadata8,push:tun_metadata0[0..3],pop:tun_metadata0[4..7]
add-flow br0 priority=6,tun_metadata1=1,actions=drop
add-flow br0 priority=6,actions=set_field:1->tun_metadata1
add-flow br0 priority=6,actions=delete_field:tun_metadata1
add-flow br0 priority=6,actions=move:reg0->tun_metadata0[16..47]
dump-flows br0
dump-flows br0 tun_metadata0=5
dump-flows br0 tun_metadata1=5
del-tlv-map br0 {class=0xffff,type=0,len=4}->tun_metadata0
del-tlv-map br0
del-flows br0 tun_metadata0=5
dump-flows br0
del-flows br0
del-tlv-map br0 {class=0xffff,type=0,len=4}->tun_metadata0
dump-tlv-map br0
del-tlv-map br0
dump-tlv-map br0
add-tlv-map br0 {class=0x102,type=1,len=124}->tun_metadata0,{class=0x102,type=2,len=4}->tun_metadata1,{class=0x102,type=3,len=40}->tun_metadata36
add-tlv-map br0 {class=0x102,type=4,len=84}->tun_metadata63
add-tlv-map br0 {class=0x102,type=5,len=8}->tun_metadata5
add-tlv-map br0 {class=0x102,type=5,len=4}->tun_metadata5
add-tlv-map br0 {class=0x102,type=6,len=4}->tun_metadata6
dump-tlv-map br0
add-flow br0 priority=1,tun_metadata0=0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c,tun_metadata1=7,actions=set_field:0xc8c7c6c5c4c3c2c1c0bfbebdbcbbbab9b8b7b6b5b4b3b2b1b0afaeadacabaaa9a8a7a6a5a4a3a2a1a09f9e9d9c9b9a999897969594939291908f8e8d8c8b8a898887868584838281807f7e7d7c7b7a7978777675->tun_metadata63,output:1
add-flow br0 priority=2,tun_metadata0=0x5/0xffffffff,tun_metadata63=5,actions=load:5->tun_metadata0[984..991],load:0xffff->tun_metadata63[600..620]
add-flow br0 priority=3,tun_metadata36,tun_metadata63=0xc8c7c6c5c4c3c2c1c0bfbebdbcbbbab9b8b7b6b5b4b3b2b1b0afaeadacabaaa9a8a7a6a5a4a3a2a1a09f9e9d9c9b9a999897969594939291908f8e8d8c8b8a898887868584838281807f7e7d7c7b7a7978777675,actions=move:tun_metadata0[0..319]->tun_metadata36[0..319],move:tun_metadata63[160..671]->tun_metadata0[480..991]
add-flow br0 priority=4,tun_metadata36=0x1000000000000000000000000000000/0xff00000000000000000000000000000f,tun_metadata5,actions=push:tun_metadata63[600..671],pop:tun_metadata36[248..319]
add-flow br0 priority=5,actions=learn(table=1,tun_metadata63[96..127]=tun_metadata0[900..931],load:tun_metadata36[256..319]->tun_metadata0[800..863])
add-flow br0 priority=6,actions=move:tun_metadata0[0..319]->tun_metadata36[1..320]
dump-flows br0
dump-flows br0 tun_metadata0=0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c
dump-flows br0 tun_metadata63=0xc8c7c6c5c4c3c2c1c0bfbebdbcbbbab9b8b7b6b5b4b3b2b1b0afaeadacabaaa9a8a7a6a5a4a3a2a1a09f9e9d9c9b9a999897969594939291908f8e8d8c8b8a898887868584838281807f7e7d7c7b7a7978777675
dump-flows br0 tun_metadata63=5
del-tlv-map br0
del-flows br0 tun_metadata36
dump-flows br0
del-flows br0
add-group br0 group_id=1,type=all,bucket=actions=set_field:5->tun_metadata36,output:1
add-group br0 group_id=2,type=all,bucket=actions=set_field:5->tun_metadata37,output:1
del-tlv-map br0 {class=0x102,type=3,len=40}->tun_metadata36
del-groups br0
del-tlv-map br0 {class=0x102,type=2,len=4}->tun_metadata1
add-tlv-map br0 {class=0x102,type=7,len=4}->tun_metadata7
del-tlv-map br0
dump-tlv-map br0
"""  # noqa: E501


def map_options(lab, name, command=None):
    """What ovs-ofctl says about each command, without what differs between runs."""
    switch = lab.switch(name, command=command)
    switch.bridge("br0", "fail_mode=secure")
    said = []
    for line in lines(OPTIONS):
        done = switch.tool(
            "ovs-ofctl",
            "-O",
            "OpenFlow13",
            *(["--no-stats"] if "dump-flows" in line else []),
            *line.split(" "),
            ok=False,
        )
        errors = re.findall(r"OFPT_ERROR.*: (\w+)|ovs-ofctl: (.*)", done.stdout + done.stderr)
        shown = sorted(re.sub(r"xid=\w+", "", text).strip() for text in done.stdout.splitlines())
        said.append((line, errors or shown))
    switch.stop()
    return said


@test(timeout=60)
def tunnel_options_are_mapped_as_in_open_vswitch(lab):
    """add-tlv-map, del-tlv-map, dump-tlv-map, and rules with tun_metadata, on both daemons."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = map_options(lab, "r", switchd_command("ovs")), map_options(lab, "t")
    differ = [
        f"{line}\n  Open vSwitch: {reference}\n  this daemon:  {mine}"
        for (line, reference), (_, mine) in zip(wanted, got)
        if reference != mine
    ]
    check(not differ, "\n".join(differ))
