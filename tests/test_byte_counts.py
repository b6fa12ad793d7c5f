"""Bytes of rules, groups and buckets behind tags, labels and headers that have been pushed or
popped: those that the packet came with."""

import re
import struct

from harness import becomes, equal, ethernet, mac, test, wait_for
from test_predictions import ipv4

FRAMES = 3
SOURCE, DESTINATION = "02:00:00:00:00:01", "02:00:00:00:00:02"


def udp(length):
    """An IPv4 packet of this length, of UDP."""
    return ipv4(
        bytes((10, 0, 0, 2)), struct.pack("!HHHH", 1000, 2000, length - 20, 0) + bytes(length - 28)
    )


PLAIN = ethernet(DESTINATION, SOURCE, 0x0800, udp(86))  # 100 bytes
TAGGED = ethernet(DESTINATION, SOURCE, 0x0800, udp(86), [(0x8100, 5)])  # 104 bytes
LABELLED = (
    mac(DESTINATION) + mac(SOURCE) + struct.pack("!HI", 0x8847, 9 << 12 | 0x100 | 64) + udp(86)
)  # 104 bytes

# A name, a frame, rules with cookies, and the bytes of each frame that these count.
CASES = [
    (
        "push_vlan",
        PLAIN,
        [
            "cookie=1,actions=push_vlan:0x8100,set_field:4101->vlan_vid,goto_table:1",
            "cookie=2,table=1,actions=output:2",
        ],
        {1: 100, 2: 100},
    ),
    (
        "mod_vlan_vid",
        PLAIN,
        [
            "cookie=1,actions=mod_vlan_vid:5,resubmit(,1)",
            "cookie=2,table=1,vlan_tci=0x1000/0x1000,actions=output:2",
        ],
        {1: 100, 2: 100},
    ),
    (
        "mod_vlan_pcp",
        PLAIN,
        [
            "cookie=1,actions=mod_vlan_pcp:3,resubmit(,1)",
            "cookie=2,table=1,vlan_tci=0x1000/0x1000,actions=output:2",
        ],
        {1: 100, 2: 100},
    ),
    (
        "load_tci",
        PLAIN,
        [
            "cookie=1,actions=load:0x1005->NXM_OF_VLAN_TCI[],resubmit(,1)",
            "cookie=2,table=1,dl_vlan=5,actions=output:2",
        ],
        {1: 100, 2: 100},
    ),
    (
        "pop_vlan",
        TAGGED,
        [
            "cookie=1,actions=strip_vlan,resubmit(,1)",
            "cookie=2,table=1,vlan_tci=0,actions=output:2",
        ],
        {1: 104, 2: 104},
    ),
    (
        "pop_and_push",
        TAGGED,
        [
            "cookie=1,actions=strip_vlan,resubmit(,1)",
            "cookie=2,table=1,actions=push_vlan:0x88a8,resubmit(,2)",
            "cookie=3,table=2,actions=output:2",
        ],
        {1: 104, 2: 104, 3: 104},
    ),
    (
        "clear_tci",
        TAGGED,
        [
            "cookie=1,actions=load:0->NXM_OF_VLAN_TCI[],resubmit(,1)",
            "cookie=2,table=1,actions=output:2",
        ],
        {1: 104, 2: 104},
    ),
    (
        "push_mpls",
        PLAIN,
        [
            "cookie=1,ip,actions=push_mpls:0x8847,goto_table:1",
            "cookie=2,table=1,mpls,actions=output:2",
        ],
        {1: 100, 2: 100},
    ),
    (
        "pop_mpls",
        LABELLED,
        [
            "cookie=1,mpls,actions=pop_mpls:0x0800,goto_table:1",
            "cookie=2,table=1,ip,actions=output:2",
        ],
        {1: 104, 2: 100},
    ),
    (
        "pop_mpls_push",
        LABELLED,
        [
            "cookie=1,mpls,actions=pop_mpls:0x0800,push_vlan:0x8100,goto_table:1",
            "cookie=2,table=1,actions=output:2",
        ],
        {1: 104, 2: 100},
    ),
    (
        "pop_mpls_push_later",
        LABELLED,
        [
            "cookie=1,mpls,actions=pop_mpls:0x0800,goto_table:1",
            "cookie=2,table=1,ip,actions=push_vlan:0x8100,goto_table:2",
            "cookie=3,table=2,actions=output:2",
        ],
        {1: 104, 2: 100, 3: 100},
    ),
    (
        "pop_mpls_to_mpls",
        LABELLED,
        [
            "cookie=1,mpls,actions=push_mpls:0x8847,pop_mpls:0x8847,goto_table:1",
            "cookie=2,table=1,mpls,actions=output:2",
        ],
        {1: 104, 2: 104},
    ),
    (
        "pop_mpls_of_none",
        TAGGED,
        [
            "cookie=1,actions=strip_vlan,pop_mpls:0x0800,resubmit(,1)",
            "cookie=2,table=1,actions=output:2",
        ],
        {1: 104, 2: 104},
    ),
    (
        "clone",
        PLAIN,
        [
            "cookie=1,actions=clone(push_vlan:0x8100,resubmit(,1)),resubmit(,2)",
            "cookie=2,table=1,actions=output:2",
            "cookie=3,table=2,actions=output:2",
        ],
        {1: 100, 2: 100, 3: 100},
    ),
    (
        "clone_pop_mpls",
        LABELLED,
        [
            "cookie=1,mpls,actions=clone(pop_mpls:0x0800,resubmit(,1)),resubmit(,2)",
            "cookie=2,table=1,actions=output:2",
            "cookie=3,table=2,actions=output:2",
        ],
        {1: 104, 2: 100, 3: 104},
    ),
    (
        "through_tables",
        PLAIN,
        [
            "cookie=1,actions=push_vlan:0x8100,set_field:4101->vlan_vid,goto_table:1",
            "cookie=2,table=1,dl_vlan=5,actions=goto_table:2",
            "cookie=3,table=2,dl_vlan=5,actions=pop_vlan,goto_table:3",
            "cookie=4,table=3,actions=goto_table:4",
            "cookie=5,table=4,actions=output:2",
        ],
        {1: 100, 2: 100, 3: 100, 4: 100, 5: 100},
    ),
]

# Groups: a name, a frame, the rules' beginning, the group, and the bytes that group and bucket
# count.
GROUPS = [
    ("all", PLAIN, "actions=push_vlan:0x8100,group:1", "type=all,bucket=resubmit(,1)", 100, 100),
    (
        "all_popped",
        TAGGED,
        "dl_vlan=5,actions=pop_vlan,group:1",
        "type=all,bucket=resubmit(,1)",
        104,
        104,
    ),
    (
        "bucket_pushes",
        PLAIN,
        "actions=group:1",
        "type=all,bucket=push_vlan:0x8100,resubmit(,1)",
        100,
        100,
    ),
    (
        "select_hash",
        PLAIN,
        "actions=push_vlan:0x8100,group:1",
        "type=select,selection_method=hash,fields(eth_src),bucket=resubmit(,1)",
        100,
        100,
    ),
    (
        "select_hash_without_fields",
        PLAIN,
        "actions=push_vlan:0x8100,group:1",
        "type=select,selection_method=hash,bucket=resubmit(,1)",
        100,
        100,
    ),
    (
        "select_dp_hash",
        PLAIN,
        "actions=push_vlan:0x8100,group:1",
        "type=select,selection_method=dp_hash,bucket=resubmit(,1)",
        104,
        104,
    ),
    (
        "select",
        PLAIN,
        "actions=push_vlan:0x8100,group:1",
        "type=select,bucket=resubmit(,1)",
        104,
        104,
    ),
    (
        "fast_failover",
        PLAIN,
        "actions=push_vlan:0x8100,group:1",
        "type=ff,bucket=watch_port:2,resubmit(,1)",
        100,
        100,
    ),
]


def counted(switch):
    """Packets and bytes of each rule, by cookie."""
    text = switch.ofctl("-O", "OpenFlow15", "dump-flows", "br0")
    return {
        int(cookie, 16): (int(packets), int(length))
        for cookie, packets, length in re.findall(
            r"cookie=(0x\w+),.*?n_packets=(\d+), n_bytes=(\d+)", text
        )
    }


@test(timeout=120)
def rules_count_what_came(lab):
    """Rules count the length that a packet came with, behind tags and labels too; a popped label
    that shows IP begins anew."""
    switch = lab.switch()
    switch.bridge(
        "br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15"
    )
    hosts = switch.raw_hosts(2)
    wrong = []
    for name, frame, rules, wanted in CASES:
        if lab.is_ovs and name == "clone_pop_mpls":
            continue  # its packets are lost behind the clone
        switch.ofctl("-O", "OpenFlow15", "del-flows", "br0")
        # In one version each, so that every action has its own form.
        for rule in rules:
            version = (
                "OpenFlow13" if re.search("set_field|push_vlan|pop_vlan", rule) else "OpenFlow10"
            )
            switch.ofctl("-O", version, "add-flow", "br0", rule)
        hosts[0].send(*[frame] * FRAMES)
        last = max(wanted)
        becomes(lambda: counted(switch)[last][0], FRAMES, f"{name}: packets that come through", 10)
        got = {cookie: length / FRAMES for cookie, (_, length) in counted(switch).items()}
        if got != wanted:
            wrong.append((name, got, wanted))
    equal(wrong, [], "bytes that rules have counted of each packet")


@test(timeout=120)
def groups_count_what_came(lab):
    """So do groups and buckets; a select group whose hash the datapath computes begins anew."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow15")
    hosts = switch.raw_hosts(2)
    wrong = []
    for name, frame, rule, group, of_group, of_bucket in GROUPS:
        switch.ofctl("-O", "OpenFlow15", "del-groups", "br0")
        switch.ofctl("-O", "OpenFlow15", "del-flows", "br0")
        switch.ofctl("-O", "OpenFlow15", "add-group", "br0", f"group_id=1,{group}")
        switch.flows(f"cookie=1,{rule}", "cookie=2,table=1,actions=output:2", version="OpenFlow13")
        hosts[0].send(*[frame] * FRAMES)
        becomes(lambda: counted(switch)[2][0], FRAMES, f"{name}: packets that come through", 10)

        def stats():
            text = switch.ofctl("-O", "OpenFlow15", "dump-group-stats", "br0")
            return [
                (int(packets), int(length))
                for packets, length in re.findall(r"packet_count=(\d+),byte_count=(\d+)", text)
            ]

        wait_for(
            f"{name}: the group has counted",
            lambda: [packets for packets, _ in stats()] == [FRAMES] * 2,
            10,
        )
        got = [length / FRAMES for _, length in stats()] + [counted(switch)[2][1] / FRAMES]
        if got != [of_group, of_bucket, of_bucket]:
            wrong.append((name, got, [of_group, of_bucket, of_bucket]))
    equal(
        wrong,
        [],
        "bytes that groups, buckets and the rules behind them have counted of each packet",
    )
