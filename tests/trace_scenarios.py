"""Rules and packets for `ofproto/trace`: bridges br0 (ports p1 to p3, patch port 11 to br1) and br1
(ports q1, patch port 12)."""

METERS = ("meter=1,kbps,band=type=drop,rate=100",)

# Each packet is one of ip,nw_src=1.1.1.N, which finds the rule of that number.
NUMBERED = {
    1: "output:11,output:2",
    2: "resubmit(,5),resubmit(,6),output:3",
    3: "write_actions(output:2),goto_table:4",
    8: "write_actions(set_field:1.2.3.4->ip_dst,output:2)",
    9: "resubmit(,0)",
    11: "in_port,output:1,output:2,output:99",
    12: "output:NXM_NX_REG0[],push:NXM_NX_REG0[],pop:NXM_NX_REG1[],note:01.02.03.04.05.06,exit",
    14: "resubmit(,20),clone(push_vlan:0x8100,set_field:4101->vlan_vid,output:2),output:3",
    17: "output(port=2,max_len=64),local,controller(userdata=01.02,reason=no_match)",
    18: (
        "set_field:aa:aa:aa:aa:aa:aa->eth_dst,set_field:8->ip_dscp,set_field:7->nw_ttl,output:2,"
        "set_field:1->nw_ecn,output:3"
    ),
    19: "meter:1,output:2",
    20: (
        "set_field:0x5->reg0,move:NXM_NX_REG0[0..15]->NXM_NX_REG1[16..31],set_field:0x7->metadata,"
        "resubmit(,30)"
    ),
    21: "dec_ttl,output:2",
    22: "set_queue:5,output:2,pop_queue,output:3",
    23: "set_field:9.9.9.9->ip_dst,output:2,set_field:0.0.0.0->ip_dst,output:3",
    24: "load:0x2->NXM_NX_REG3[],output:NXM_NX_REG3[]",
    25: "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],set_field:00:11:22:33:44:55->eth_src,in_port",
    26: "write_metadata:0x12/0xff,goto_table:40",
    27: "set_field:5->tun_id,set_field:0x9->pkt_mark,output:3",
    28: "controller(max_len=100,id=7)",
    29: "resubmit(2,50)",
    30: "normal",
    33: "clear_actions,write_actions(output:3)",
    34: (
        "push_vlan:0x8100,set_field:4103->vlan_vid,set_field:3->vlan_pcp,output:2,pop_vlan,output:3"
    ),
    35: "resubmit(,60),resubmit(,61),output:2",
    36: "clone(set_field:1->reg0,resubmit(,62)),resubmit(,62)",
    37: "output:11",
    39: "bundle(eth_src,0,active_backup,ofport,members:9,3)",
    41: "push_mpls:0x8847,set_field:5->mpls_label,output:2",
    42: "dec_ttl(1,2),output:3",
    43: "set_field:8.8.8.8->ip_src,clone(set_field:7.7.7.7->ip_src,output:2),output:3",
    44: "resubmit(,64)",
    45: "load:0x1->NXM_NX_REG0[],resubmit(,62),load:0->NXM_NX_REG0[],resubmit(,62)",
    46: "clone(output(port=2,max_len=64),set_field:1.1.1.1->ip_dst,output:2),output:3",
    47: "clone(output(port=2,max_len=64),set_field:1.1.1.1->ip_dst,output:2)",
    48: (
        "set_field:2.2.2.2->ip_dst,clone(set_field:3.3.3.3->ip_dst,clone(output(port=2,"
        "max_len=64),set_field:1.1.1.1->ip_dst,output:2)),output:3"
    ),
    49: "learn(table=65,limit=1,cookie=5,idle_timeout=40,hard_timeout=60,send_flow_rem,"
    "fin_idle_timeout=3,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],"
    "load:0x7->NXM_NX_REG0[],output:NXM_OF_IN_PORT[]),resubmit(,65)",
    51: "push_mpls:0x8847,set_field:9->mpls_label,output:11",
    52: "clone(resubmit(,66)),output:3",
    53: "learn(table=67,idle_timeout=900,hard_timeout=1000,fin_idle_timeout=300,"
    "fin_hard_timeout=500,eth_type=0x800,nw_proto=6,NXM_OF_ETH_SRC[],"
    "output:NXM_OF_IN_PORT[]),output:2",
    54: "resubmit(,67)",
    38: "set_field:10.9.9.9->ip_src,resubmit(,63),output:2",
}

FLOWS = tuple(
    f"table=0,ip,nw_src=1.1.1.{number},actions={actions}" for number, actions in NUMBERED.items()
) + (
    "table=5,priority=1,reg0=0,actions=resubmit(,6),resubmit(,7)",
    "table=20,actions=drop",
    "table=30,priority=7,cookie=0x99,reg1=0x50000/0xf0000,metadata=0x7,actions=output:2",
    "table=40,metadata=0x2/0xf,actions=output:3",
    "table=50,in_port=2,actions=output:1",
    "table=60,priority=3,udp,actions=resubmit(,61)",
    "table=61,cookie=0x61,actions=output:3",
    "table=62,reg0=1,actions=output:2",
    "table=62,reg0=0,actions=output:3",
    "table=63,ip,nw_src=10.0.0.0/8,actions=output:3",
    "table=64,conj_id=5,ip,actions=output:2",
    "table=64,priority=9,ip,nw_src=1.1.1.44,actions=conjunction(5,1/2)",
    "table=64,priority=9,udp,udp_dst=0,actions=conjunction(5,2/2)",
    "table=0,mpls,mpls_bos=1,actions=pop_mpls:0x0800,output:2",
    "table=0,arp,actions=normal",
    (
        "table=0,ipv6,actions=move:NXM_NX_IPV6_SRC[0..15]->NXM_NX_REG3[0..15],"
        "set_field:fe80::9->ipv6_dst,output:2"
    ),
    "table=0,tcp,actions=set_field:90->tcp_dst,output:2",
    "table=0,dl_vlan=5,actions=pop_vlan,output:2",
    "table=0,dl_vlan=6,actions=set_field:4103->vlan_vid,output:2",
    "table=0,dl_type=0x88cc,actions=controller",
    "table=66,ip,actions=meter:1,dec_ttl,output:2",
    "table=0,priority=40000,mpls,mpls_label=9,actions=dec_mpls_ttl,output:11",
    (
        "table=0,priority=40000,icmp6,icmpv6_type=135,actions=set_field:fe80::9->nd_target,"
        "set_field:00:00:00:00:00:07->nd_sll,output:2"
    ),
    (
        "table=0,priority=40000,icmp6,icmpv6_type=136,actions=set_field:fe80::9->nd_target,"
        "set_field:00:00:00:00:00:07->nd_tll,output:2"
    ),
    "table=0,priority=40000,udp,in_port=2,udp_src=0,udp_dst=0,nw_dst=2.2.2.3,actions=output:1",
    "table=0,priority=40000,udp,in_port=2,udp_dst=5,nw_dst=2.2.2.3,actions=output:3",
)
# Rules that only OpenFlow 1.0 has.
OLD_FLOWS = ("ip,nw_src=1.1.1.50,actions=enqueue:2:7,output:3,enqueue:2:0",)
PEER_FLOWS = (
    "ip,nw_src=1.1.1.1,actions=set_field:9.9.9.9->ip_dst,output:1",
    "ip,nw_src=1.1.1.37,actions=mod_nw_dst:9.9.9.9,output:1",
    "priority=1,actions=normal",
    "mpls,mpls_ttl=0,actions=drop",
    "mpls,actions=dec_mpls_ttl,output:1",
)

PACKETS = tuple(f"in_port=1,udp,nw_ttl=64,nw_src=1.1.1.{number}" for number in NUMBERED) + (
    "in_port=1",
    "in_port=2,dl_dst=ff:ff:ff:ff:ff:ff",
    "in_port=p2,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,dl_type=0x1234",
    (
        "in_port=LOCAL,arp,arp_op=1,dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,"
        "arp_spa=1.1.1.1,arp_tpa=1.1.1.2"
    ),
    "in_port=1,arp,dl_dst=01:80:c2:00:00:01",
    "in_port=1,udp6,ipv6_src=fe80::1,nw_ttl=9,udp_dst=53",
    "in_port=3,tcp,nw_ttl=5,tcp_dst=80,tcp_flags=syn|ack",
    "in_port=1,dl_vlan=5,dl_vlan_pcp=3",
    "in_port=1,dl_vlan=6",
    "in_port=1,dl_type=0x88cc",
    "in_port=1,udp,nw_ttl=1,nw_src=1.1.1.21",
    "in_port=1,udp,nw_frag=later,nw_src=1.1.1.1",
    "in_port=1,icmp,icmp_type=8,nw_ttl=7",
    "in_port=1,sctp,nw_ttl=7,sctp_dst=9,nw_tos=32,nw_ecn=2",
    "in_port=7",
    "in_port=1,reg0=5,metadata=9,tun_id=3,pkt_mark=7",
    "in_port=1,mpls,mpls_label=5,mpls_bos=1,mpls_ttl=3",
    "in_port=1,vlan_tci=0x7005",
    "udp,nw_src=1.1.1.2,nw_ttl=3",
    "in_port=1,rarp,arp_op=3",
    "in_port=1,udp,nw_ttl=64,nw_src=1.1.1.50",
    "in_port=1,mpls,mpls_label=9,mpls_ttl=5",
    "in_port=1,mpls,mpls_label=9,mpls_ttl=2",
    "in_port=1,mpls,mpls_label=9,mpls_ttl=1",
    "in_port=1,icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::1",
    "in_port=1,icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::9,nd_sll=00:00:00:00:00:01",
    "in_port=1,icmp6,icmpv6_type=136,icmpv6_code=0,nd_target=fe80::1",
    "in_port=1,icmp6,icmpv6_type=136,icmpv6_code=0,nd_target=fe80::1,nd_tll=00:00:00:00:00:01",
)

# A fragment of UDP from 1.1.1.1, port 1, to 2.2.2.3, port 5: which part it is in the two bytes left
# out.
FRAGMENT = (
    "5054000000025054000000010800450000240000"
    "{}40110000010101010202020300010005001000000000000000000000"
)
# Further arguments: (bridge, flow, ...).
CALLS = tuple(("br0", packet) for packet in PACKETS) + (
    ("br0", "in_port=1,udp,nw_src=1.1.1.1,nw_ttl=64", "--names"),
    ("br0", "in_port=1,udp,nw_src=1.1.1.20,nw_ttl=64", "-generate"),
    ("br1", "in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02"),
    # No port.
    ("br0", "udp,nw_src=1.1.1.1,nw_ttl=64"),
    ("br0", "in_port=0,udp,nw_src=1.1.1.1,nw_ttl=64"),
    ("br0", "in_port=ANY,udp,nw_src=1.1.1.20,nw_ttl=64"),
    ("br1", "in_port=0,dl_src=02:00:00:00:00:03,dl_dst=02:00:00:00:00:02"),
    ("br0", "in_port=1", "0200000000020200000000010800450000140000000040110000010101130a000001"),
    (
        (
            "in_port(2),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),"
            "ipv4(src=1.1.1.18,dst=2.2.2.2,proto=17,ttl=9),udp(src=1,dst=2)"
        ),
    ),
    ("ovs-dummy", "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x88cc)"),
    ("br0", "in_port=2", FRAGMENT.format("2000")),
    ("br0", "in_port=2", FRAGMENT.format("0064")),
    ("br0", "in_port=2", FRAGMENT.format("0000")),
    # What is learned stays: with -generate it is there for the next packet.
    *(
        (
            "br0",
            (
                f"in_port=1,udp,nw_ttl=64,nw_src=1.1.1.49,dl_src=02:00:00:00:00:0{source},"
                "dl_dst=02:00:00:00:00:01"
            ),
            "-generate",
        )
        for source in (1, 1, 2)
    ),
    # A rule with fin_timeout is learned, and the end of a connection shortens its timeouts: with
    # -generate, and not by another packet.
    *(
        (
            "br0",
            f"in_port=1,tcp,nw_ttl=64,nw_src=1.1.1.53,dl_src=02:00:00:00:00:5{source}",
            "-generate",
        )
        for source in (1, 2, 3, 4)
    ),
    *(
        (
            "br0",
            (
                f"in_port=1,tcp,nw_ttl=64,nw_src=1.1.1.54,dl_src=02:00:00:00:00:5{source},"
                f"tcp_flags={flags:#x}"
            ),
            *how,
        )
        for source, flags, how in (
            (1, 0x11, ("-generate",)),
            (2, 0x11, ()),
            (3, 0x10, ("-generate",)),
            (4, 4, ("-generate",)),
        )
    ),
    ("br0", "in_port=1,udp,nw_ttl=64,nw_src=1.1.1.49,dl_dst=02:00:00:00:00:01"),
    (
        "br0",
        "in_port=3,udp,nw_src=1.1.1.30,dl_src=02:00:00:00:00:31,dl_dst=02:00:00:00:00:32",
        "-generate",
    ),
    (
        "br0",
        "in_port=3,udp,nw_src=1.1.1.30,dl_src=02:00:00:00:00:31,dl_dst=02:00:00:00:00:32",
        "-generate",
    ),
    ("br0", "in_port=2,udp,nw_src=1.1.1.30,dl_src=02:00:00:00:00:32,dl_dst=02:00:00:00:00:31"),
    # Errors.
    ("br0", "foo=1"),
    ("br0", "in_port=1,foo"),
    ("br0", "in_port=xx"),
    ("br0", "in_port=1,nw_src=1.2.3"),
    ("br0", "in_port=1,tcp,tp_dst=x"),
    ("br0", "tcp,tp_dst=1/2"),
    ("br9", "in_port=1"),
    ("in_port=1",),
    ("in_port(9),eth()",),
    ("br0", "in_port(1),eth()"),
    ("br0", "in_port=1", "zz", "yy"),
    ("br0", "in_port=1", "0011"),
    ("br0", "in_port=1", "--foo"),
    ("br0", "in_port=1", "--ct-next"),
    ("br0", "in_port=1", "--ct-next", "foo"),
    ("br0", "in_port=1", "--ct-next", "new"),
    ("br0",),
    ("br0", "in_port=1,in_port=2"),
    ("br0", "actions=drop"),
    ("br0", "in_port=1", "a", "b", "c"),
)
PACKET_OUTS = (
    ("br0", "in_port=1,udp,nw_src=1.1.1.2,nw_ttl=3", "output:2,resubmit(,0)"),
    ("br0", "in_port=controller,udp,nw_ttl=3,nw_src=1.1.1.1", "table"),
    ("br0", "in_port=1,udp,nw_ttl=9", "mod_dl_dst:02:00:00:00:00:07,2,controller"),
    ("br0", "in_port=1,udp,nw_ttl=9", "all"),
    ("br0", "in_port=1,udp", "foo"),
    ("br0", "in_port=1", "output:xx"),
)

UDP = (
    "in_port=1,udp,nw_src=1.1.1.1,nw_dst=2.2.2.2,nw_ttl=64,udp_src=1,udp_dst=2,"
    "dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02"
)
TCP = UDP.replace("udp", "tcp")
ICMP = "in_port=1,icmp,nw_src=1.1.1.1,nw_dst=2.2.2.2,nw_ttl=64,icmp_type=8"
TCP6 = "in_port=1,tcp6,ipv6_src=fd00::5,ipv6_dst=fd00::6,tcp_dst=8080,nw_ttl=9"


def following(*states):
    """The options that give a traced packet's connections these states."""
    return tuple(word for state in states for word in ("--ct-next", state))


# Packets that are tracked: rules of br0, rules of br1, packets with options. No rule sends a packet
# back to a table that tracks it: Open vSwitch would follow it for ever.
TRACKED = (
    (
        (
            "table=0,ip,actions=ct(table=1,zone=5)",
            "table=1,ct_state=+trk+new,ip,actions=ct(commit,zone=5),output:11",
            "table=1,ct_state=+trk+est,ip,actions=output:11",
        ),
        (
            "table=0,ct_state=+trk,ip,actions=output:1",
            "table=0,ct_state=-trk,ip,actions=ct(table=1,zone=5)",
            "table=1,ct_state=+est,ip,actions=output:1",
            "table=1,ct_state=+new,ip,actions=drop",
        ),
        (
            (UDP,),
            (UDP, *following("trk,est")),
            (UDP, *following("trk,est", "trk,est,rpl")),
            (UDP, *following("trk,inv")),
            (TCP, *following("trk,new", "trk,new", "trk,new")),
            (TCP, "-generate"),
            (TCP, "--names"),
        ),
    ),
    (
        (
            "table=0,ip,actions=ct(commit,zone=5,nat(src=10.0.0.1-10.0.0.9:100-200,random),"
            "exec(set_field:5->ct_mark,set_field:0x77/0xff->ct_label)),"
            "ct(commit,nat(dst=10.0.0.1:80,persistent,hash),table=3),output:11,ct_clear,output:2",
            "table=3,ip,actions=output:3",
        ),
        ("ip,actions=ct(table=1)", "table=1,ip,ct_state=+new,actions=output:1"),
        ((UDP,), (TCP, *following("trk,est,dnat")), (UDP, "--names")),
    ),
    (
        (
            "table=0,ip,actions=ct(force,commit,zone=NXM_NX_REG0[0..15],exec("
            "move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47]))",
            "table=0,ipv6,actions=ct(commit,nat(dst=[fd00::1]:80),table=9)",
            "table=9,ipv6,actions=output:3",
        ),
        (),
        ((UDP,), (TCP6,), (TCP6, *following("trk,est,rpl"))),
    ),
    (
        (
            "table=0,ip,actions=load:5->NXM_NX_REG0[],load:7->OXM_OF_METADATA[],"
            "load:9->NXM_NX_TUN_ID[],push:NXM_NX_REG0[],dec_ttl,"
            "ct(table=1,zone=NXM_NX_REG0[0..15],commit),output:3,write_actions(output:2)",
            "table=1,ip,reg0=5,metadata=7,actions=pop:NXM_NX_REG1[],output:NXM_NX_REG1[],"
            "output:1,output:3",
        ),
        (),
        ((UDP,), (UDP, *following("trk,est"))),
    ),
    (
        (
            "table=0,ip,actions=ct(commit,force,nat(src=1.1.1.9),exec(set_field:0x1/0xf->ct_mark,"
            "set_field:0x123456789abcdef0123456789abcdef0->ct_label),table=1)",
            "table=1,ip,ct_state=+trk+snat,actions=output:2",
            "table=1,priority=1,ip,actions=ct(nat,table=2)",
            "table=2,ip,ct_state=+est,actions=ct_clear,output:2",
            "table=2,ip,ct_state=+new,actions=clone(ct(table=3),output:3),output:2",
        ),
        (),
        (
            (UDP,),
            (TCP, *following("trk,new,snat")),
            (TCP, *following("trk,est", "trk,est,rpl", "trk,inv")),
            (ICMP, *following("trk,rel")),
        ),
    ),
    (
        (
            "table=0,ip,actions=ct(table=1,zone=1),ct(table=2,zone=2),ct_clear,output:3",
            "table=1,ip,ct_zone=1,ct_state=+new,actions=ct_clear,ct(commit,zone=1),ct_clear,"
            "output:2",
            "table=1,ct_state=+est,ip,actions=ct(table=2,zone=3)",
            "table=2,ct_state=+est,ip,actions=mod_nw_src:9.9.9.9,output:2",
        ),
        (),
        (
            (UDP,),
            (UDP, *following("trk,est", "trk,new", "trk,est")),
            (UDP, *following("trk,est", "trk,est", "trk,est")),
        ),
    ),
    (
        (
            "table=0,ip,actions=resubmit(,5),output:3",
            "table=5,ip,actions=ct(table=6),output:2",
            "table=6,ip,actions=resubmit(,7),output:11",
            "table=7,ip,actions=set_field:8.8.8.8->ip_dst,output:2",
        ),
        ("priority=1,actions=output:1",),
        ((UDP,), (UDP, "--names"), (UDP, "-generate")),
    ),
    (
        (
            "table=0,ip,actions=ct(table=2),output:3",
            "table=2,ip,actions=output:2,resubmit(,2)",
        ),
        (),
        ((UDP,),),
    ),
    (
        (
            "table=0,ip,actions=output:11,output:2",
            "table=1,ip,actions=output:3",
        ),
        ("ip,actions=ct(commit,zone=9),dec_ttl,output:1",),
        ((UDP,), (TCP,)),
    ),
)
