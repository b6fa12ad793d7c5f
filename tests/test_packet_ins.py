"""What packet-ins say of where they come from: the table and cookie that stand for an action set,
and the pipeline fields with which a packet-out of 1.5 begins."""

import os
import re
import struct

from harness import equal, test, wait_for
from test_openflow import PACKET_OUT
from test_sessions import Client, oxm
from test_tools import SECURE, dummies

PACKET = (
    "ffffffffffff020202020202080045000020000000004011f96d0a0000010a0000020001000200080000"
    + "00" * 20
)
NO_RULE = (0, None)


class Told:
    """Packet-ins of a bridge with two dummy ports, as a controller of 1.5 hears them."""

    def __init__(self, lab):
        self.switch = dummies(lab)
        self.switch.vsctl("add", "Bridge", "br0", "protocols", "OpenFlow11")
        self.file = os.path.join(lab.directory, "told.out")
        self.reasons = []
        lab.start(
            [
                "stdbuf",
                "-oL",
                "ovs-ofctl",
                "-O",
                "OpenFlow15",
                "monitor",
                "br0",
                "65535",
                "-P",
                "nxt_packet_in2",
            ],
            "told.out",
            env=self.switch.env,
        )

        def listens():
            self.packet_out("controller")
            return self.all()

        wait_for("the controller hears packet-ins", listens)
        self.heard = 0
        self.settled()

    def ofctl(self, *words, version="OpenFlow15"):
        self.switch.ofctl("-O", version, *words)

    def all(self):
        """[(table, cookie, fields)] of all that have come; `reasons` are those of the same."""
        with open(self.file, encoding="utf-8", errors="replace") as file:
            found = re.findall(
                r"NXT_PACKET_IN2 .*?: (?:table_id=(\d+) )?(?:cookie=(0x[0-9a-f]+) )?total_len=\d+ "
                r"(\S+) \(via (\w+)\)",
                file.read(),
            )
        self.reasons = [reason for *_, reason in found]
        return [
            (int(table or 0), int(cookie, 16) if cookie else None, frozenset(fields.split(",")))
            for table, cookie, fields, _ in found
        ]

    def packet_out(self, actions, fields=""):
        self.ofctl("packet-out", "br0", f"in_port=1,{fields}packet={PACKET},actions={actions}")

    def settled(self):
        """What has come since the last call.

        All of it is there when a packet-in that was asked for behind it is."""
        mark = f"reg9={self.heard + 0x100:#x}"
        self.packet_out(f"set_field:{self.heard + 0x100:#x}->reg9,controller")

        def marked():
            told = self.all()[self.heard :]
            return told if any(mark in fields for _, _, fields in told) else None

        told = wait_for("packet-ins", marked)
        self.heard += len(told)
        return [entry for entry in told if mark not in entry[2]]


# Rules, and the table and cookie of each packet-in: of a packet that a port receives, and of a
# packet-out that does resubmit(,0).
SETS = {
    "after a goto": (
        (
            "table=0,cookie=1,actions=goto_table:3",
            "table=3,cookie=2,actions=write_actions(output:controller)",
        ),
        [(0, 1)],
        [NO_RULE],
    ),
    "after edits and a goto": (
        (
            "table=0,cookie=1,ip,actions=set_field:1->reg0,goto_table:3",
            "table=3,cookie=3,ip,actions=set_field:9.9.9.9->ip_dst,goto_table:4",
            "table=4,cookie=2,actions=write_actions(output:controller)",
        ),
        [(0, 1)],
        [NO_RULE],
    ),
    "after a resubmit at the end of a list": (
        (
            "table=0,cookie=1,actions=resubmit(,3)",
            "table=3,cookie=2,actions=write_actions(output:controller)",
        ),
        [(0, 1)],
        [NO_RULE],
    ),
    "after a resubmit in the middle": (
        (
            "table=0,cookie=1,actions=resubmit(,3),set_field:1->reg0",
            "table=3,cookie=2,actions=write_actions(output:controller)",
        ),
        [(0, 1)],
        [NO_RULE],
    ),
    "after a resubmit and a goto": (
        (
            "table=0,cookie=1,actions=resubmit(,3),goto_table:5",
            "table=3,cookie=2,actions=write_actions(output:controller)",
            "table=5,cookie=3,actions=resubmit(,6)",
        ),
        [(0, 1)],
        [NO_RULE],
    ),
    "of a clone": (
        (
            "table=0,cookie=1,actions=goto_table:2",
            "table=2,cookie=4,actions=clone(resubmit(,3)),resubmit(,5)",
            "table=3,cookie=2,actions=write_actions(output:controller)",
            "table=5,cookie=5,actions=write_actions(output:controller)",
        ),
        [(2, 4), (0, 1)],
        [(2, 4), NO_RULE],
    ),
    "by a group": (
        (
            "table=0,cookie=1,actions=goto_table:3",
            "table=3,cookie=2,actions=write_actions(group:7)",
        ),
        [(0, 1), (0, 1)],
        [NO_RULE, NO_RULE],
    ),
    "by a resubmit to the same table, which is the first rule's": (
        (
            "table=0,cookie=1,actions=goto_table:3",
            "table=3,cookie=2,reg1=0,actions=set_field:1->reg1,write_actions(resubmit:9)",
            "table=0,cookie=8,priority=40000,in_port=9,actions=output:controller",
            "table=3,cookie=9,priority=40000,in_port=9,actions=output:controller",
        ),
        [(0, 8)],
        [(0, 8)],
    ),
    "where the first rule is not in the first table": (
        (
            "table=2,cookie=1,actions=goto_table:3",
            "table=3,cookie=2,actions=write_actions(output:controller)",
        ),
        [(2, 1)],
        [],
    ),
    "of actions that are applied, as they stand": (
        (
            "table=0,cookie=1,actions=resubmit(,3),controller",
            "table=3,cookie=2,actions=controller,resubmit(,4)",
            "table=4,cookie=3,actions=controller",
        ),
        [(3, 2), (4, 3), (0, 1)],
        [(3, 2), (4, 3), (0, 1)],
    ),
}


@test(timeout=120)
def packet_ins_of_action_sets_name_the_first_rule(lab):
    """The action set stands where the first rule stands, or nowhere in a packet-out."""
    told = Told(lab)
    told.ofctl(
        "add-group",
        "br0",
        "group_id=7,type=all,bucket=output:controller,bucket=actions=set_field:1->reg3,"
        "output:controller",
    )
    for what, (rules, received, packet_out) in SETS.items():
        told.ofctl("del-flows", "br0")
        misses = "continue" if "not in the first table" in what else "drop"
        for table in (0, 1):
            told.ofctl("mod-table", "br0", str(table), misses, version="OpenFlow11")
        for rule in rules:
            told.ofctl("add-flow", "br0", rule)
        told.switch.appctl("netdev-dummy/receive", "p1", PACKET)
        if received:
            wait_for(f"packet-ins {what}", lambda: len(told.all()) - told.heard >= len(received))
        equal([entry[:2] for entry in told.settled()], received, f"packet-ins {what}")
        told.packet_out("resubmit(,0)")
        equal(
            [entry[:2] for entry in told.settled()],
            packet_out,
            f"packet-ins {what}, of a packet-out",
        )


# What a packet-out says, the cookie of the rule that it meets, and what a packet-in says of it
# beside the port.
FIELDS = (
    ("", 1, ()),
    ("metadata=5", 2, ("metadata=0x5",)),
    ("metadata=0x15/0xf", 2, ("metadata=0x5",)),
    ("metadata=6", 1, ("metadata=0x6",)),
    ("tun_id=7", 3, ("tun_id=0x7",)),
    ("tun_src=1.2.3.4,tun_dst=4.3.2.1", 4, ("tun_src=1.2.3.4", "tun_dst=4.3.2.1")),
    ("tun_ipv6_src=fd00::1", 1, ("tun_ipv6_src=fd00::1",)),
    ("tun_gbp_id=4", 1, ("tun_gbp_id=4",)),
    ("reg0=3,reg15=9", 5, ("reg0=0x3", "reg15=0x9")),
    ("reg0=0x33/0xf", 5, ("reg0=0x3",)),
    ("xreg3=0x1234567890", 6, ("reg6=0x12", "reg7=0x34567890")),
    ("xxreg2=0x1234", 1, ("reg11=0x1234",)),
    ("packet_type=(0,0),reg0=3", 5, ("reg0=0x3",)),
    ("tun_metadata0=0x1234", 7, ("tun_metadata0=0x1234",)),
)


@test(timeout=120)
def packet_outs_begin_with_their_pipeline_fields(lab):
    """Rules match them and packet-ins tell them, also those that no rule looks at; any other field
    is refused."""
    told = Told(lab)
    told.ofctl("add-tlv-map", "br0", "{class=0xffff,type=0,len=4}->tun_metadata0")
    for rule in (
        "cookie=1,priority=1",
        "cookie=2,metadata=5",
        "cookie=3,tun_id=7",
        "cookie=4,tun_src=1.2.3.4",
        "cookie=5,reg0=3",
        "cookie=6,xreg3=0x1234567890",
        "cookie=7,tun_metadata0=0x1234",
    ):
        told.ofctl("add-flow", "br0", f"{rule},actions=controller")
    for fields, cookie, said in FIELDS:
        said = frozenset((*said, "in_port=1"))
        for actions, wanted in (
            ("controller", NO_RULE),
            ("TABLE", (0, cookie)),
            ("resubmit(,0)", (0, cookie)),
        ):
            told.packet_out(actions, fields and fields + ",")
            equal(
                told.settled(),
                [(*wanted, said)],
                f"a packet-out of {fields or 'nothing'} with {actions}",
            )
    # Registers are written and read on.
    told.packet_out("move:NXM_NX_REG1[]->NXM_NX_REG0[],set_field:0->reg1,resubmit(,0)", "reg1=3,")
    equal(
        told.settled(),
        [(0, 5, frozenset(("reg0=0x3", "in_port=1")))],
        "a packet-out whose list moves what it says",
    )

    client = Client(told.switch, 6)

    def packet_out(*fields):
        """What comes back to a packet-out of 1.5 without actions."""
        return client.ask(
            PACKET_OUT, struct.pack("!IHH", 0xFFFFFFFF, 0, 0) + oxm(*fields) + bytes.fromhex(PACKET)
        )

    in_port = bytes.fromhex("8000000400000001")
    metadata, eth_type, mark = (
        bytes.fromhex(field)
        for field in ("800004080000000000000005", "80000a020800", "0001420400000005")
    )
    equal(packet_out(in_port, metadata), [], "answers to metadata")
    pipeline_fields_only = ["error 00010011"]
    equal(packet_out(in_port, eth_type), pipeline_fields_only, "answers to an Ethertype")
    equal(
        packet_out(in_port, metadata, eth_type),
        pipeline_fields_only,
        "answers to metadata and an Ethertype",
    )
    equal(packet_out(metadata), ["error 0001000b"], "answers to a packet-out without a port")
    equal(packet_out(in_port, mark), pipeline_fields_only, "answers to a mark")


# The actions of table 0, the match beside them, and the reasons of the packet-ins of a packet that
# a port receives, and of a packet-out that is looked up there.
REASONS = (
    ("output:CONTROLLER", "ip", ["action"], ["packet_out"]),
    ("output:CONTROLLER", "priority=0", ["no_match"], ["packet_out"]),
    ("set_field:0xfffd->reg0,output:NXM_NX_REG0[0..15]", "ip", ["action"], ["packet_out"]),
    (
        "set_field:0xfffd->reg0,output:NXM_NX_REG0[0..15]",
        "priority=0",
        ["no_match"],
        ["packet_out"],
    ),
    # Actions of their own keep their reasons.
    ("controller(userdata=01)", "ip", ["action"], ["action"]),
    ("controller(userdata=01)", "priority=0", ["no_match"], ["no_match"]),
    ("controller(reason=no_match,userdata=01)", "ip", ["no_match"], ["no_match"]),
    ("write_actions(output:CONTROLLER)", "ip", ["action_set"], ["packet_out"]),
    ("resubmit(,1),goto_table:2", "ip", ["action", "action_set"], ["packet_out"] * 2),
    (
        "clone(output:CONTROLLER,resubmit(,2)),resubmit(,1)",
        "ip",
        ["action", "action_set", "action"],
        ["packet_out"] * 3,
    ),
    ("learn(table=9,eth_type=0x800),output:CONTROLLER", "ip", ["action"], ["packet_out"]),
    ("group:1", "ip", ["group"], ["packet_out"]),
    ("write_actions(group:1)", "ip", ["group"], ["packet_out"]),
    ("group:2", "ip", ["action", "action_set"], ["packet_out"] * 2),
    ("group:3", "ip", ["group"], ["packet_out"]),
    # A datapath's hash is known when the packet has been received once more.
    (
        "output:CONTROLLER,group:4,output:CONTROLLER",
        "ip",
        ["action", "group", "action"],
        ["packet_out", "group", "action"],
    ),
    # Through a patch port, by another bridge, and back.
    ("output:11", "ip", ["action"], ["packet_out"]),
)


@test(timeout=120)
def packet_outs_are_the_reason(lab):
    """Every output to the controllers that a packet-out meets says so in its packet-in."""
    told = Told(lab)
    told.switch.vsctl("add-br", "br1", "--", "set", "Bridge", "br1", *SECURE)
    for bridge, name, peer, number in (("br0", "q0", "q1", 11), ("br1", "q1", "q0", 12)):
        told.switch.port(
            name, "type=patch", f"options:peer={peer}", f"ofport_request={number}", bridge=bridge
        )
    told.switch.ofctl("add-flow", "br1", "actions=in_port")
    for group in (
        "group_id=1,type=all,bucket=output:CONTROLLER",
        "group_id=2,type=all,bucket=resubmit(,1),bucket=resubmit(,2)",
        "group_id=3,type=select,selection_method=hash,fields(ip_dst),bucket=output:CONTROLLER",
        "group_id=4,type=select,selection_method=dp_hash,bucket=output:CONTROLLER",
    ):
        told.ofctl("add-group", "br0", group)
    told.ofctl("add-flow", "br0", "in_port=11,priority=40000,actions=output:CONTROLLER")
    told.ofctl("add-flow", "br0", "table=1,ip,actions=output:CONTROLLER")
    told.ofctl("add-flow", "br0", "table=2,ip,actions=write_actions(output:CONTROLLER)")

    def reasons():
        """Those of the packet-ins since the last call."""
        first = told.heard
        count = len(told.settled())
        return told.reasons[first : first + count]

    for actions, match, received, packet_out in REASONS:
        told.ofctl("add-flow", "br0", f"{match},actions={actions}")
        what = f"reasons of {actions} for {match}"
        told.switch.appctl("netdev-dummy/receive", "p1", PACKET)
        wait_for(f"the {what}", lambda: len(told.all()) - told.heard >= len(received))
        equal(reasons(), received, what)
        told.packet_out("resubmit(,0)")
        equal(reasons(), packet_out, f"{what}, of a packet-out")
        told.packet_out("TABLE")
        equal(reasons(), packet_out, f"{what}, of a packet-out to TABLE")
        told.ofctl("--strict", "del-flows", "br0", f"table=0,{match}")
    for actions, wanted in (
        ("output:CONTROLLER", ["packet_out"]),
        ("controller(userdata=01)", ["action"]),
        ("clone(output:CONTROLLER)", ["packet_out"]),
        ("group:1", ["packet_out"]),
        ("group:4,output:CONTROLLER", ["group", "action"]),
        ("output:11", ["packet_out"]),
    ):
        told.packet_out(actions)
        equal(reasons(), wanted, f"reasons of a packet-out's own {actions}")
