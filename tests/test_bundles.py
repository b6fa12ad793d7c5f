"""Packet-outs inside bundles: each goes by what the messages before it have changed, and not by
what those behind it change; nothing of a bundle that fails is sent. And what is refused of a bundle
when it is put together."""

import re
import struct

from harness import check, equal, test, wait_for
from test_openflow import PACKET_IN, PACKET_OUT, listening, output, packet_out
from test_sessions import ALL, FLOW_MOD, Client, flow_mod

PORT_STATUS, PORT_MOD, BUNDLE_CONTROL, BUNDLE_ADD = 12, 16, 33, 34
NO_FORWARD = 1 << 5


def frame(mark, source=1, destination=15):
    """A TCP segment in hexadecimal, whose last six bytes say which it is."""
    return (
        f"0200000000{destination:02x}0200000000{source:02x}0800"
        + "4500002e000000004006000001010101020202020001000200000000000000005002000000000000"
        + f"{mark:012x}"
    )


def said(mark, actions, port="controller", **addresses):
    """A packet-out as `ovs-ofctl bundle` reads it."""
    return f"packet-out in_port={port},packet={frame(mark, **addresses)},actions={actions}"


class Scene:
    """A switch with three hosts' raw sockets, and a connection of 1.4 that hears what is told."""

    def __init__(self, lab):
        # Open vSwitch without its cache, which answers with stale rules for some milliseconds after
        # a change.
        self.switch = lab.switch(config=["other_config:flow-limit=0"])
        self.switch.bridge("br0", "fail_mode=secure", ALL)
        self.hosts = self.switch.raw_hosts(3)
        self.listener = listening(self.switch, 5)

    def begin(self, *rules):
        self.switch.ofctl("-O", "OpenFlow14", "del-groups", "br0")
        self.switch.flows(*rules, version="OpenFlow14")
        self.listener.barrier()
        for host in self.hosts:
            host.drain()

    def bundle(self, *lines, ok=True):
        done = self.switch.ofctl(
            "-O", "OpenFlow14", "bundle", "br0", "-", stdin="\n".join(lines) + "\n", ok=ok
        )
        return done if ok else done.stdout + done.stderr

    def sends(self, wanted, what):
        """Sees that just these frames come, as (port, mark).

        What comes last, by its port, shows that no others do."""
        wanted = [*wanted, *((number, 0xFFFF) for number in range(1, 4))]
        for number in range(1, 4):
            self.switch.ofctl(
                "packet-out",
                "br0",
                f"in_port=controller,packet={frame(0xFFFF)},actions=output:{number}",
            )
        got = []
        for number, host in enumerate(self.hosts, 1):
            last = False

            def marks(frame, number=number):
                nonlocal last
                mark = int.from_bytes(frame[54:60], "big")
                if frame[:5] == bytes.fromhex("0200000000"):
                    got.append((number, mark))
                    last |= mark == 0xFFFF
                return last

            host.receive(10, wanted=marks, until=1)
        equal(got, sorted(wanted, key=lambda pair: pair[0]), what)

    def rules(self):
        """The rules with their packets."""
        text = self.switch.ofctl("-O", "OpenFlow14", "--no-names", "dump-flows", "br0")
        return [
            re.sub(r"duration=\S+ |n_bytes=\d+, |idle_age=\d+, ", "", line).strip()
            for line in text.splitlines()
            if "actions=" in line
        ]


@test(timeout=120)
def packet_outs_go_by_the_messages_before_them(lab):
    """A packet-out inside a bundle meets the rules and groups of its place, with packet-ins and
    counters."""
    scene = Scene(lab)
    scene.begin("cookie=9,priority=1,actions=output:3")
    scene.bundle(
        said(1, "table"),
        "flow modify actions=output:1",
        said(2, "table"),
        said(3, "table,output:2"),
        "flow delete",
        said(4, "table"),
        "flow add cookie=3,priority=1,actions=output:3",
        said(5, "table"),
    )
    scene.sends([(3, 1), (1, 2), (1, 3), (2, 3), (3, 5)], "between rules")
    equal(
        scene.rules(),
        ["cookie=0x3, table=0, n_packets=1, priority=1 actions=output:3"],
        "rules at last",
    )
    # A rule that takes the place of another one goes on with its counters, and so with these
    # packets.
    scene.begin()
    scene.bundle(
        "flow add cookie=5,actions=output:1",
        said(1, "table"),
        "flow add cookie=6,actions=output:2",
        said(2, "table"),
    )
    scene.sends([(1, 1), (2, 2)], "before and after a rule is replaced")
    wait_for(
        "both packets are counted",
        lambda: scene.rules() == ["cookie=0x6, table=0, n_packets=2, actions=output:2"],
    )
    # Groups: another version of one, one that goes, one with its number that comes.
    scene.begin()
    scene.bundle(
        "group add group_id=1,type=all,bucket=output:1",
        said(1, "group:1"),
        "group modify group_id=1,type=all,bucket=output:2",
        said(2, "group:1"),
        "flow add actions=group:1",
        said(3, "table"),
        "group delete group_id=1",
        said(4, "table"),
        "group add group_id=1,type=indirect,bucket=output:3",
        said(5, "group:1"),
    )
    scene.sends([(1, 1), (2, 2), (2, 3), (3, 5)], "between groups")
    equal(scene.rules(), [], "rules of the group that has gone")
    # Resubmits, later tables and packet-ins: which table and cookie sent them.
    scene.begin()
    scene.bundle(
        "flow add cookie=0x11,table=0,actions=resubmit(,5)",
        "flow add cookie=0x12,table=5,actions=controller",
        said(1, "table"),
        "flow add cookie=0x13,table=5,actions=output:2,goto_table:7",
        "flow add cookie=0x14,table=7,actions=controller",
        said(2, "table"),
        "flow delete",
        said(3, "table"),
        said(4, "controller"),
    )
    scene.sends([(2, 2)], "between tables")

    def heard():
        told.extend(
            (body[7], int.from_bytes(body[8:16], "big"), int.from_bytes(body[-6:], "big"))
            for kind, body in scene.listener.barrier()
            if kind == PACKET_IN
        )
        return len(told) >= 3

    told = []
    wait_for("packet-ins", heard)
    equal(
        told,
        [(5, 0x12, 1), (7, 0x14, 2), (0, (1 << 64) - 1, 4)],
        "packet-ins: table, cookie, packet",
    )
    # NORMAL and FLOOD.
    scene.begin()
    scene.bundle(
        "flow add actions=normal",
        said(1, "table", port=1, source=0x21, destination=0x22),
        "flow modify actions=flood",
        said(2, "table", port=2),
        "flow delete",
        said(3, "table", port=2),
    )
    scene.sends([(2, 1), (3, 1), (1, 2), (3, 2)], "NORMAL and FLOOD")
    scene.bundle(said(4, "normal", port=3, source=0x22, destination=0x21), "flow delete")
    scene.sends([(1, 4)], "to an address that a packet of the bundle before came from")


@test(timeout=120)
def bundles_that_fail_send_nothing(lab):
    """The packet-outs of a bundle that fails are not sent or told of, count nowhere and teach
    nothing, whatever is wrong."""
    scene = Scene(lab)
    teaches = "learn(table=7,cookie=0x77,NXM_OF_ETH_SRC[],load:0x3->NXM_NX_REG0[0..15])"
    before = ["cookie=0x9, table=0, n_packets=0, priority=1 actions=output:2"]
    for wrong in (
        "flow add in_port=1,actions=group:99",
        said(9, "group:99"),
        "group modify group_id=7,type=all,bucket=output:1",
        "flow add in_port=1,actions=goto_table:3,meter:77",
    ):
        scene.begin("cookie=9,priority=1,actions=output:2")
        text = scene.bundle(
            said(1, "table"),
            f"flow add cookie=1,priority=1,actions={teaches},output:1",
            said(2, "table,output:3,controller"),
            "group add group_id=1,type=all,bucket=output:1",
            said(3, "group:1"),
            "flow delete",
            said(4, "controller"),
            wrong,
            ok=False,
        )
        check(
            "OFPBFC_MSG_FAILED" in text or wrong.endswith("meter:77") and "OFPT_ERROR" not in text,
            f"{wrong} is not refused",
            text,
        )
        scene.sends([], f"nothing but what comes behind, because of {wrong}")
        # Open vSwitch keeps what has been taught.
        rules = [
            rule for rule in scene.rules() if not (scene.switch.is_ovs and "cookie=0x77," in rule)
        ]
        equal(rules, before, f"rules after {wrong}")
        equal([kind for kind, _ in scene.listener.barrier()], [], "what a listener is told")


@test(timeout=120)
def bundled_packet_outs_teach_at_their_place(lab):
    """A rule that a bundled packet-out asks for is there for the messages behind it, which may
    delete it, and not for the packet itself."""
    scene = Scene(lab)
    teaches = "learn(table=7,cookie=0x77,NXM_OF_ETH_SRC[],load:0x3->NXM_NX_REG0[0..15])"
    asks = "resubmit(,7),output:NXM_NX_REG0[0..15]"
    scene.begin()
    scene.bundle(
        f"flow add cookie=1,actions={teaches},output:1",
        f"flow add table=8,cookie=2,actions={asks}",
        said(1, "table,resubmit(,8)"),
        said(2, "resubmit(,8)"),
        "flow delete table=7",
        said(3, "resubmit(,8)"),
        said(4, f"{teaches},output:2"),
        said(5, "resubmit(,8)"),
    )
    scene.sends([(1, 1), (3, 2), (2, 4), (3, 5)], "what was taught, forgotten and taught again")
    wait_for(
        "rules and their packets",
        lambda: (
            scene.rules()
            == [
                f"cookie=0x1, table=0, n_packets=1, actions={teaches},output:1",
                (
                    "cookie=0x77, table=7, n_packets=1, dl_src=02:00:00:00:00:01 "
                    "actions=load:0x3->NXM_NX_REG0[0..15]"
                ),
                f"cookie=0x2, table=8, n_packets=4, actions={asks}",
            ]
        ),
    )
    # What the last message deletes stays away.
    scene.begin(f"cookie=1,actions={teaches},output:1", f"table=8,actions={asks}")
    scene.bundle(said(1, "table"), said(2, "resubmit(,8)"), "flow delete table=7")
    scene.sends([(1, 1), (3, 2)], "what was taught and forgotten")
    equal([rule for rule in scene.rules() if " table=7," in rule], [], "what was taught")


@test(timeout=180)
def thousands_of_packet_outs_by_as_many_states(lab):
    """A bundle of more packet-outs than the datapath has room for: each by rules of its own, also
    where rules are many and their chains long."""
    scene = Scene(lab)
    scene.begin(
        *(f"table=1,priority=5,tcp,tp_dst={number},actions=output:2" for number in range(3, 300))
    )
    count, lines, wanted = 1500, [], []
    for mark in range(1, count + 1):
        port = mark % 3 + 1
        lines += [
            f"flow add table=1,priority=5,tcp,tp_dst=2,actions=output:{port}",
            said(mark, "resubmit(,1)"),
        ]
        wanted.append((port, mark))
    scene.bundle(*lines)
    scene.sends(wanted, "each packet by its rule")
    rules = [rule for rule in scene.rules() if "tp_dst=2 " in rule]
    equal(
        rules,
        [
            (
                f"cookie=0x0, table=1, n_packets={count}, priority=5,tcp,tp_dst=2 "
                f"actions=output:{count % 3 + 1}"
            )
        ],
        "the rule at last",
    )


def added(client, number, flags, kind, body):
    """What is answered to a message that is put into a bundle: pairs of the error's type and
    code."""
    client.xid += 1
    message = struct.pack("!BBHI", client.version, kind, 8 + len(body), client.xid) + body
    client.send(BUNDLE_ADD, struct.pack("!IHH", number, 0, flags) + message, client.xid)
    return client.barrier()


def committed(client, number, flags):
    client.send(BUNDLE_CONTROL, struct.pack("!IHH", number, 4, flags))
    return [(kind, body[:6].hex()) for kind, body in client.barrier() if kind != PORT_STATUS]


@test(timeout=60)
def ports_change_between_packet_outs(lab):
    """A port mod inside a bundle holds for the packet-outs behind it.

    (Open vSwitch has decided by then where they go.)"""
    scene = Scene(lab)
    address = bytes.fromhex(scene.switch.get("Interface", "p2", "mac_in_use").replace(":", ""))
    client = Client(scene.switch, 5)
    scene.begin()

    def out(mark):
        return PACKET_OUT, packet_out(5, output(5, 2), bytes.fromhex(frame(mark)))

    def forwards(may):
        return PORT_MOD, struct.pack("!I4x6s2xII", 2, address, 0 if may else NO_FORWARD, NO_FORWARD)

    for kind, body in (
        out(1),
        forwards(False),
        out(2),
        forwards(True),
        out(3),
        (FLOW_MOD, flow_mod()),
    ):
        equal(added(client, 5, 2, kind, body), [], "answers to what is added")
    equal(committed(client, 5, 2), [(BUNDLE_CONTROL, "000000050005")], "the answer to the commit")
    scene.sends(
        [(2, 1), (2, 2), (2, 3)] if scene.switch.is_ovs else [(2, 1), (2, 3)], "between port mods"
    )


@test(timeout=60)
def mistakes_found_when_they_are_added(lab):
    """What is wrong with a message whatever rules there are is refused when it is added to a
    bundle; the rest waits for the commit."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", ALL)
    client = Client(switch, 5)

    def apply(actions):
        return struct.pack("!HH4x", 4, 8 + len(actions)) + actions

    def out(actions=b"", port=0xFFFFFFFD, buffer=0xFFFFFFFF):
        return struct.pack("!IIH6x", buffer, port, len(actions)) + actions + bytes.fromhex(frame(1))

    group, bad_port = struct.pack("!HHI", 22, 8, 99), output(5, 0xFF80)
    at_once, later = (
        (lambda error: ([error], ["00110002"])),
        (lambda error: ([], [error, "0011000d"])),
    )
    fine = ([], [])
    permission, bad_table, no_group, no_port, no_buffer = (
        "00010005",
        "00050002",
        "00020009",
        "00020004",
        "00010008",
    )
    cases = [
        (f"{name} in table 254", FLOW_MOD, flow_mod(table=254, command=command), answers)
        for command, (name, answers) in enumerate(
            (
                ("add", at_once(permission)),
                ("modify", at_once(permission)),
                ("modify strictly", at_once(permission)),
                ("delete", later(permission)),
                ("delete strictly", fine),
            )
        )
    ]
    cases += [
        ("add to all tables", FLOW_MOD, flow_mod(table=255), at_once(bad_table)),
        ("add with a group", FLOW_MOD, flow_mod(instructions=apply(group)), later(no_group)),
        (
            "add with no such port",
            FLOW_MOD,
            flow_mod(instructions=apply(bad_port)),
            at_once(no_port),
        ),
        ("packet-out", PACKET_OUT, out(), fine),
        ("packet-out to a group", PACKET_OUT, out(group), later(no_group)),
        ("packet-out to no such port", PACKET_OUT, out(bad_port), at_once(no_port)),
        ("packet-out from no such port", PACKET_OUT, out(port=0xFFFFFF80), at_once("0001000b")),
        ("packet-out of a buffer", PACKET_OUT, out(buffer=7), at_once(no_buffer)),
        ("port mod", PORT_MOD, struct.pack("!I4x6s2xII", 4711, bytes(6), 0, 0), later("00070000")),
    ]
    for number, (what, kind, body, wanted) in enumerate(cases, 10):
        adding = [answer[:4].hex() for _, answer in added(client, number, 2, kind, body)]
        done = [answer[:8] for kind, answer in committed(client, number, 2) if kind == 1]
        equal((adding, done), wanted, what)
    # The rest of a bundle goes on without what was refused.
    equal(added(client, 99, 2, FLOW_MOD, flow_mod(priority=77)), [], "what is right")
    equal(len(added(client, 99, 2, FLOW_MOD, flow_mod(table=254))), 1, "what is wrong")
    equal(committed(client, 99, 2), [(BUNDLE_CONTROL, "000000630005")], "the commit")
    check("priority=77" in switch.ofctl("dump-flows", "br0"), "the rest of the bundle is lost")
