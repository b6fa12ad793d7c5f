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


def patched(switch, links):
    """Patch ports between these pairs of bridges, named after both."""
    for one, other in links:
        for bridge, peer in ((one, other), (other, one)):
            switch.port(
                f"{bridge}-{peer}",
                "type=patch",
                f"options:peer={peer}-{bridge}",
                f"ofport_request={10 + int(peer[2:])}",
                bridge=bridge,
            )


# A name, a frame, rules by bridge (br0, to which hosts are connected, br1, br2; ports 11 and 12 of
# each lead to br1 and br2), the bytes of each frame that these count, by cookie, and those that
# br0's port counts where br1's count others.
PATCHED = [
    ("as_it_is", PLAIN, {0: ["cookie=1,actions=11"], 1: ["cookie=2,actions=drop"]}, [100, 100]),
    (
        "pushed",
        PLAIN,
        {
            0: ["cookie=1,actions=mod_vlan_vid:5,11"],
            1: ["cookie=2,actions=resubmit(,1)", "cookie=3,table=1,dl_vlan=5,actions=drop"],
        },
        [100, 100, 100],
    ),
    (
        "popped",
        TAGGED,
        {
            0: ["cookie=1,actions=strip_vlan,resubmit(,1)", "cookie=2,table=1,actions=11"],
            1: ["cookie=3,actions=resubmit(,1)", "cookie=4,table=1,udp,actions=mod_nw_tos:4,12"],
            2: ["cookie=5,vlan_tci=0,actions=drop"],
        },
        [104, 104, 104, 104, 104],
    ),
    (
        "pushed_and_popped",
        PLAIN,
        {
            0: ["cookie=1,actions=mod_vlan_vid:5,11"],
            1: ["cookie=2,actions=strip_vlan,12"],
            2: ["cookie=3,vlan_tci=0,actions=drop"],
        },
        [100, 100, 100],
    ),
    (
        "pushed_twice",
        PLAIN,
        {
            0: ["cookie=1,actions=mod_vlan_vid:5,11"],
            1: ["cookie=2,actions=push_vlan:0x8100,set_field:4102->vlan_vid,12"],
            2: ["cookie=3,actions=drop"],
        },
        [100, 100, 100],
    ),
    (
        "both_ways",
        PLAIN,
        {
            0: ["cookie=1,actions=11,mod_vlan_vid:5,12"],
            1: ["cookie=2,actions=drop"],
            2: ["cookie=3,actions=drop"],
        },
        [100, 100, 100],
    ),
    (
        "labelled",
        PLAIN,
        {
            0: ["cookie=1,ip,actions=push_mpls:0x8847,11"],
            1: ["cookie=2,mpls,actions=drop"],
        },
        [100, 100],
    ),
    (
        "label_popped",
        LABELLED,
        {
            0: [
                "cookie=1,mpls,actions=pop_mpls:0x0800,resubmit(,1)",
                "cookie=2,table=1,actions=11",
            ],
            1: ["cookie=3,ip,actions=drop"],
        },
        [104, 100, 100],
    ),
    (
        "label_popped_behind",
        LABELLED,
        {
            0: ["cookie=1,actions=mod_vlan_vid:5,11"],
            1: [
                "cookie=2,mpls,actions=strip_vlan,pop_mpls:0x0800,resubmit(,1)",
                "cookie=3,table=1,actions=mod_vlan_vid:5,12",
            ],
            2: ["cookie=4,ip,actions=drop"],
        },
        [104, 104, 100, 100],
        104,
    ),
    (
        "learning",
        PLAIN,
        {
            0: ["cookie=1,actions=mod_vlan_vid:5,11"],
            1: [
                "cookie=2,actions=learn(table=9,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]),resubmit(,1)",
                "cookie=3,table=1,actions=12",
            ],
            2: ["cookie=4,dl_vlan=5,actions=drop"],
        },
        [100, 100, 100, 100],
    ),
    (
        "normal",
        TAGGED,
        {
            0: ["cookie=1,actions=strip_vlan,NORMAL"],
            1: ["cookie=2,actions=drop"],
            2: ["cookie=3,actions=drop"],
        },
        [104, 104, 104],
    ),
]


@test(timeout=120)
def patch_ports_count_what_came(lab):
    """Rules behind patch ports, and these themselves, count the length that a packet was received
    with."""
    switch = lab.switch()
    for number in range(3):
        switch.bridge(f"br{number}", "fail_mode=secure")
    hosts = switch.raw_hosts(1)
    patched(switch, [("br0", "br1"), ("br0", "br2"), ("br1", "br2")])
    bridges = [f"br{number}" for number in range(3)]

    def rules():
        found = {}
        for bridge in bridges:
            text = switch.ofctl("dump-flows", bridge)
            for cookie, packets, length in re.findall(
                r"cookie=(0x\w+),.*?n_packets=(\d+), n_bytes=(\d+)", text
            ):
                if int(cookie, 16):
                    found[int(cookie, 16)] = (int(packets), int(length))
        return [found[cookie] for cookie in sorted(found)]

    def ports():
        """Packets and bytes of each patch port, by name and direction."""
        found = {}
        for bridge in bridges:
            text = switch.ofctl("--names", "dump-ports", bridge)
            for name, rx, tx in re.findall(
                r'port +"?(br\d-br\d)"?: rx (.*?), drop.*?\n +tx (.*?), drop', text
            ):
                for way, counts in (("rx", rx), ("tx", tx)):
                    found[name, way] = [int(count) for count in re.findall(r"=(\d+)", counts)]
        return found

    wrong = []
    for name, frame, lists, wanted, *at_br0 in PATCHED:
        version = "OpenFlow13" if "set_field" in str(lists) else "OpenFlow10"
        for number, bridge in enumerate(bridges):
            switch.flows(*lists.get(number, []), bridge=bridge, version=version)
        before = ports()
        hosts[0].send(*[frame] * FRAMES)
        becomes(
            lambda: [packets for packets, _ in rules()],
            [FRAMES] * len(wanted),
            f"{name}: packets by rule",
            10,
        )
        got = [length / FRAMES for _, length in rules()]
        if got != wanted:
            wrong.append((name, got, wanted))

        def passed():
            now = ports()
            return {
                key: [after - at for after, at in zip(now[key], before[key], strict=True)]
                for key in now
            }

        wait_for(f"{name}: ports have counted", lambda: sum(p for p, _ in passed().values()), 10)
        for (port, way), (packets, length) in passed().items():
            first = at_br0[0] if at_br0 and "br0" in port else wanted[-1]
            if packets and (packets, length) != (FRAMES, FRAMES * first):
                wrong.append((name, port, way, packets, length / FRAMES, first))
    equal(wrong, [], "bytes that rules and ports have counted of each packet")


@test(timeout=120)
def trunks_count_what_came(lab):
    """The learning switch gives packets tags, or takes them, on their way to a patch port."""
    switch = lab.switch()
    for bridge in ("br0", "br1"):
        switch.bridge(bridge)
    hosts = switch.raw_hosts(2)
    patched(switch, [("br0", "br1")])
    switch.vsctl("set", "Port", "p1", "tag=5")
    switch.flows("cookie=1,actions=NORMAL", bridge="br1")
    known, behind, unknown = (f"02:00:00:00:00:0{number}" for number in (1, 8, 9))

    def counted_behind():
        text = switch.ofctl("dump-flows", "br1", "cookie=1/-1")
        packets, length = re.findall(r"n_packets=(\d+), n_bytes=(\d+)", text)[0]
        return int(packets), int(length)

    def frame(destination, source, *tags):
        return ethernet(destination, source, 0x0800, udp(86), [(0x8100, tag) for tag in tags])

    # Untagged at p1, tagged behind the patch port.
    hosts[0].send(*[frame(unknown, known)] * FRAMES)
    becomes(counted_behind, (FRAMES, FRAMES * 100), "flooded into a trunk", 10)
    # p2 takes tagged frames, too.
    hosts[1].send(*[frame(unknown, "02:00:00:00:00:02", 6)] * FRAMES)
    becomes(counted_behind, (2 * FRAMES, FRAMES * 204), "tagged at both ends", 10)
    # To a station behind the patch port, which the bridge has learned.
    reply = frame(known, behind, 5).hex()
    switch.ofctl("packet-out", "br1", f"in_port=LOCAL,packet={reply},actions=10")
    wait_for("br0 has learned the station", lambda: behind in switch.appctl("fdb/show", "br0"), 10)
    hosts[0].send(*[frame(behind, known)] * FRAMES)
    becomes(counted_behind, (3 * FRAMES, FRAMES * 304), "switched into a trunk", 10)
