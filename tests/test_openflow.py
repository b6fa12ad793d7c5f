"""What connections of different versions are told, in raw messages: messages of another version,
generations, packets of no bytes, asynchronous configuration, role status and forwarded requests,
set-fields in versions that have none, rules too long for a dump, rules that leave a monitor's
filter."""

import os
import re
import struct
import subprocess

from harness import check, equal, test, wait_for
from test_sessions import (
    ALL,
    BARRIER_XID,
    ECHO_REPLY,
    ECHO_REQUEST,
    ERROR,
    EXPERIMENTER,
    Client,
    clean,
)

NICIRA, ONF = 0x2320, 0x4F4E4600
FEATURES, GET_CONFIG, SET_CONFIG, PACKET_IN, PACKET_OUT, ROLE, SET_ASYNC = 5, 7, 9, 10, 13, 24, 28
NO_GENERATION = (1 << 64) - 1


def opened(lab):
    """A switch with a bridge of two ports."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", ALL)
    for number in (1, 2):
        switch.vsctl(
            "add-port",
            "br0",
            f"p{number}",
            "--",
            "set",
            "Interface",
            f"p{number}",
            "type=internal",
            f"ofport_request={number}",
        )
    return switch


def nicira(subtype, body=b""):
    return struct.pack("!II", NICIRA, subtype) + body


def listening(switch, version):
    """A connection that is told what happens: it has set a miss send length."""
    client = Client(switch, version)
    equal(
        client.ask(SET_CONFIG, struct.pack("!HH", 0, 128)),
        [],
        f"answers to SET_CONFIG in 1.{version - 1}",
    )
    return client


@test()
def messages_of_another_version(lab):
    """A message of another version than was agreed on is answered by an error, an echo request in
    its own version; the connection goes on."""
    switch = opened(lab)

    def heard(client, version, kind):
        """All that comes back before a barrier's answer: version, type, transaction, body."""
        client.socket.sendall(
            struct.pack("!BBHI", version, kind, 16, 77)
            + b"abcdefgh"
            + client.message(18 if client.version == 1 else 20, b"", BARRIER_XID)
        )
        answers = []
        while True:
            got, kind, length, xid = struct.unpack("!BBHI", client.file.read(8))
            body = client.file.read(length - 8)
            if xid == BARRIER_XID:
                return answers
            answers.append((got, kind, xid, body))

    for version in (1, 4, 6):
        client = Client(switch, version)
        for other in {0, 1, 3, 5, 9} - {version}:
            for kind in (ECHO_REQUEST, ECHO_REPLY, FEATURES, 200):
                wanted = []
                if kind == ECHO_REQUEST and other:
                    wanted = [(other, ECHO_REPLY, 77, b"abcdefgh")]
                elif kind != ECHO_REPLY or not other:
                    quoted = struct.pack("!BBHI", other, kind, 16, 77) + b"abcdefgh"
                    wanted = [
                        (
                            other if other in range(1, 7) else 1,
                            ERROR,
                            77,
                            bytes((0, 1, 0, 0)) + quoted,
                        )
                    ]
                equal(
                    heard(client, other, kind),
                    wanted,
                    f"1.{version - 1} says type {kind} of version {other}",
                )
        equal(client.ask(ECHO_REQUEST, b"alive"), ["3 " + b"alive".hex()], "an echo at last")


@test()
def generations_of_all_ones(lab):
    """2^64-1 is a generation like any other for a connection that becomes primary or secondary."""
    for version in (3, 4, 5):
        switch = lab.switch(f"s{version}")
        switch.bridge("br0", "fail_mode=secure", ALL)
        client = Client(switch, version)
        none = "f" * 16
        for number, generation, role, now in (
            (0, NO_GENERATION, 1, none),
            (0, 3, 1, none),
            (3, NO_GENERATION, 3, none),
            (2, 5, 2, f"{5:016x}"),
            (1, NO_GENERATION, 1, f"{5:016x}"),
            (2, NO_GENERATION, None, None),
            (3, NO_GENERATION, None, None),
            (0, NO_GENERATION, 1, f"{5:016x}"),
        ):
            wanted = "error 000b0000" if role is None else f"25 {role:08x}00000000{now}"
            got = client.ask(ROLE, struct.pack("!I4xQ", number, generation))
            equal(
                got,
                [wanted],
                f"1.{version - 1} asks for role {number} with generation {generation:#x}",
            )
        switch.stop()


def packet_out(version, action, data):
    if version == 1:
        return struct.pack("!IHH", 0xFFFFFFFF, 0xFFFF, len(action)) + action + data
    if version < 6:
        return struct.pack("!IIH6x", 0xFFFFFFFF, 0xFFFFFFFD, len(action)) + action + data
    return (
        struct.pack("!IH2x", 0xFFFFFFFF, len(action))
        + struct.pack("!HHII4x", 1, 12, 0x80000004, 0xFFFFFFFD)
        + action
        + data
    )


def output(version, port):
    """1.0's form, or the later ones'; `port` is 16 bits."""
    if version == 1:
        return struct.pack("!HHHH", 0, 8, port, 0xFFFF)
    return struct.pack("!HHIH6x", 0, 16, port if port < 0xFF00 else 0xFFFF0000 + port, 0xFFFF)


@test()
def packets_of_few_bytes(lab):
    """A packet-out with fewer bytes than an Ethernet header is taken, and goes nowhere."""
    switch = opened(lab)
    sent = 0
    for version in (1, 4, 6):
        client = listening(switch, version)
        for length in (0, 1, 13):
            for port in (1, 0xFFFD, 0xFFF9):
                equal(
                    client.ask(
                        PACKET_OUT, packet_out(version, output(version, port), bytes(length))
                    ),
                    [],
                    f"1.{version - 1}: {length} bytes to {port:#x}",
                )
                sent += 1
        # What comes next is told, so the packets before it were not.
        client.send(PACKET_OUT, packet_out(version, output(version, 0xFFFD), bytes(14)))
        kind, _, body = client.read()
        equal((kind, body[-14:]), (PACKET_IN, bytes(14)), "a packet of 14 bytes")
        equal(client.barrier(), [], "more packets")
        # An action still needs what it needs.
        set_ttl = struct.pack("!HHB3x", 23, 8, 9)
        if version == 4:
            equal(
                client.ask(PACKET_OUT, packet_out(4, set_ttl, b"")),
                ["error 0002000a"],
                "a TTL in nothing",
            )
    if not switch.is_ovs:
        equal(switch.drops("runt"), sent, "packets that were dropped")


@test()
def the_last_word_on_expired_ttls_holds(lab):
    """SET_CONFIG and NXT_SET_ASYNC_CONFIG set one flag: whether packets with an expired TTL are
    told."""
    switch = opened(lab)
    expired = bytes.fromhex(
        "ffffffffffff02020202020108004500001c00010000011100000a0000010a00000204d2162e00080000"
    )
    for version in (1, 3):
        client = listening(switch, version)

        def told():
            """What the configuration says, checked against what comes."""
            dec_ttl = (
                struct.pack("!HHIH6x", 0xFFFF, 16, NICIRA, 18)
                if version == 1
                else struct.pack("!HH4x", 24, 8)
            )
            hello = output(version, 0xFFFD)
            client.send(PACKET_OUT, packet_out(version, dec_ttl + output(version, 1), expired))
            client.send(PACKET_OUT, packet_out(version, hello, bytes(60)))
            seen = []
            while not seen or seen[-1][-60:] != bytes(60):
                kind, _, body = client.read()
                equal(kind, PACKET_IN, "what comes")
                seen.append(body)
            flag = struct.unpack("!HH", bytes.fromhex(client.ask(GET_CONFIG)[0][2:]))[0] & 4
            equal(len(seen) - 1, 1 if flag else 0, f"expired packets where the flag is {flag}")
            return bool(flag)

        steps = (
            (SET_CONFIG, struct.pack("!HH", 4, 128), True),
            (EXPERIMENTER, nicira(19, struct.pack("!6I", 3, 3, 7, 7, 7, 7)), False),
            (EXPERIMENTER, nicira(19, struct.pack("!6I", 7, 3, 7, 7, 7, 7)), True),
            (SET_CONFIG, struct.pack("!HH", 0, 128), False),
            (EXPERIMENTER, nicira(27, struct.pack("!HHI", 1, 8, 7)), True),
        )
        check(not told(), "expired packets are told unasked")
        for kind, body, wanted in steps:
            equal(client.ask(kind, body), [], "answers")
            equal(told(), wanted, f"1.{version - 1}: expired packets are told after {body.hex()}")
    # Later versions have no flag in SET_CONFIG, which changes nothing then.
    client = listening(switch, 4)
    equal(client.ask(SET_ASYNC, struct.pack("!6I", 7, 0, 0, 0, 0, 0)), [], "answers")
    equal(client.ask(SET_CONFIG, struct.pack("!HH", 0, 128)), [], "answers")
    equal(
        client.ask(26),
        ["27 " + struct.pack("!6I", 7, 0, 0, 0, 0, 0).hex()],
        "asynchronous configuration",
    )


@test()
def capabilities(lab):
    """What features replies claim: bundles since 1.4, and not what no version of Open vSwitch
    claims."""
    switch = opened(lab)
    for version, wanted in ((1, 0xC7), (2, 0xCF), (3, 0x4F), (4, 0x4F), (5, 0x24F), (6, 0x24F)):
        reply = Client(switch, version).ask(FEATURES)[0]
        equal(reply[2:][32:40], f"{wanted:08x}", f"capabilities in 1.{version - 1}")


# A group mod's body in each version: add group 9, type all, a bucket with output to port 1.
GROUPS = {
    1: "000023200000001f000000000000000900100000ffffffff00100008000000000000000800010000",
    6: "000000000000000900180000ffffffff001800100000000000000010000000010000000000000000",
    **dict.fromkeys(
        (2, 3, 4, 5),
        "000000000000000900200000ffffffffffffffff0000000000000010000000010000000000000000",
    ),
}


@test()
def what_others_do_is_told_before_1_4(lab):
    """Role status in ONF's form of 1.3; changes of groups and meters, forwarded in Nicira's form
    before 1.3 and in ONF's in 1.3, to those who ask for them."""
    switch = opened(lab)
    # Who loses its role is told, also where nobody has named a generation.
    one, two = listening(switch, 4), listening(switch, 4)
    for client in (one, two):
        equal(
            client.ask(EXPERIMENTER, nicira(10, struct.pack("!I", 1))),
            [f"4 {nicira(11, struct.pack('!I', 1)).hex()}"],
            "Nicira's role",
        )
    status = struct.pack("!II", ONF, 1911)
    equal(
        one.ask(ECHO_REQUEST),
        [f"4 {status.hex()}{3:08x}{0:08x}{NO_GENERATION:016x}", "3 "],
        "role status without a generation",
    )
    equal(one.ask(ROLE, struct.pack("!I4xQ", 2, 8)), [f"25 {2:08x}{0:08x}{8:016x}"], "role")
    equal(two.ask(ECHO_REQUEST), [f"4 {status.hex()}{3:08x}{0:08x}{8:016x}", "3 "], "role status")
    equal(one.ask(ROLE, struct.pack("!I4xQ", 1, 8)), [f"25 {1:08x}{0:08x}{8:016x}"], "role")
    equal(two.ask(ECHO_REQUEST), ["3 "], "what a secondary is told of a role that is given up")
    # Before 1.3 there is no such message.
    three, four = listening(switch, 3), listening(switch, 3)
    for client in (three, four):
        client.ask(EXPERIMENTER, nicira(10, struct.pack("!I", 1)))
    equal(three.ask(ECHO_REQUEST), ["3 "], "role status in 1.2")
    four.ask(EXPERIMENTER, nicira(10, struct.pack("!I", 0)))
    # Requests are forwarded to all who want to know but their sender.
    wish = struct.pack("!HHIHHI", 11, 8, 3, 10, 8, 3)
    for version in (1, 2, 3, 4, 5, 6):
        deaf, asks = listening(switch, version), listening(switch, version)
        equal(
            asks.ask(*(EXPERIMENTER, nicira(27, wish)) if version < 5 else (SET_ASYNC, wish)),
            [],
            "answers",
        )
        switch.ofctl("-O", "OpenFlow13", "add-group", "br0", "group_id=9,type=all,bucket=output:1")
        head = {
            1: nicira(132),
            2: nicira(132),
            3: nicira(132),
            4: struct.pack("!II", ONF, 2350),
        }.get(version, b"")
        told = asks.barrier()
        equal(
            [kind for kind, _ in told],
            [4 if version < 5 else 32],
            f"messages that are forwarded in 1.{version - 1}",
        )
        body = told[0][1]
        equal(body[: len(head)], head, f"whose message it is in 1.{version - 1}")
        inner = body[len(head) :]
        # The group as the version has it, with the transaction id of the message that made it.
        equal(
            (inner[:4], inner[8:].hex()),
            (struct.pack("!BBH", version, 4 if version == 1 else 15, len(inner)), GROUPS[version]),
            f"the message inside in 1.{version - 1}",
        )
        switch.ofctl(
            "-O", "OpenFlow13", "add-meter", "br0", "meter=3,kbps,band=type=drop,rate=1000"
        )
        told = asks.barrier()
        if version >= 4:
            equal(
                [(kind, body[: len(head)]) for kind, body in told],
                [(4 if version < 5 else 32, head)],
                f"meters in 1.{version - 1}",
            )
            inner = told[0][1][len(head) :]
            equal(
                (inner[0], inner[1], struct.unpack("!I", inner[12:16])[0]),
                (version, 29, 3),
                "the meter inside",
            )
        else:
            equal(told, [], "meters, which the version does not have")
        equal(deaf.barrier(), [], "what one who has not asked is told")
        # The sender itself is not told.
        mine = struct.pack("!HBxI", 2, 0, 9)
        if version > 1:
            equal(
                asks.ask(15, mine if version < 6 else mine + struct.pack("!HxxI", 0, 0xFFFFFFFF)),
                [],
                "one's own change",
            )
        switch.ofctl("-O", "OpenFlow13", "del-groups", "br0")
        switch.ofctl("-O", "OpenFlow13", "del-meters", "br0")
        asks.socket.close()
        deaf.socket.close()


# A set-field, what its rule matches, and what 1.0 and 1.1 are told of it (where they differ, both).
SET_FIELDS = (
    ("00:00:00:00:00:01->eth_src", "", "mod_dl_src:00:00:00:00:00:01"),
    ("3->vlan_pcp", "vlan_tci=0x1000/0x1000", "mod_vlan_pcp:3", "set_vlan_pcp:3"),
    (
        "0x1005->vlan_tci",
        "",
        "mod_vlan_vid:5,mod_vlan_pcp:0",
        "push_vlan:0x8100,set_vlan_vid:5,set_vlan_pcp:0",
    ),
    ("0->vlan_tci", "", "strip_vlan", "pop_vlan"),
    ("10.0.0.1->ip_src", "ip", "mod_nw_src:10.0.0.1"),
    ("32->nw_tos", "ip", "mod_nw_tos:32"),
    ("7->ip_dscp", "ip", "mod_nw_tos:28"),
    ("2->nw_ecn", "ip", "load:0x2->NXM_NX_IP_ECN[]", "mod_nw_ecn:2"),
    ("9->nw_ttl", "ip", "load:0x9->NXM_NX_IP_TTL[]"),
    ("80->tcp_src", "tcp", "mod_tp_src:80"),
    ("81->udp_dst", "udp", "mod_tp_dst:81"),
    ("5->metadata", "", "load:0x5->OXM_OF_METADATA[]"),
    ("5->reg3", "", "load:0x5->NXM_NX_REG3[]"),
    ("0x50/0xf0->reg3", "", "load:0x5->NXM_NX_REG3[4..7]"),
    ("0xa0b/0xf0f->reg4", "", "load:0xb->NXM_NX_REG4[0..3],load:0xa->NXM_NX_REG4[8..11]"),
    ("0x1122334455667788->xreg1", "", "load:0x1122334455667788->OXM_OF_PKT_REG1[]"),
    (
        "0x11223344556677889900aabbccddeeff->xxreg0",
        "",
        (
            "load:0x9900aabbccddeeff->NXM_NX_XXREG0[0..63],"
            "load:0x1122334455667788->NXM_NX_XXREG0[64..127]"
        ),
    ),
    ("7->tun_id", "", "load:0x7->NXM_NX_TUN_ID[]"),
    ("10.1.1.1->tun_src", "", "load:0xa010101->NXM_NX_TUN_IPV4_SRC[]"),
    ("6->pkt_mark", "", "load:0x6->NXM_NX_PKT_MARK[]"),
    ("::5->ipv6_src", "ipv6", "load:0x5->NXM_NX_IPV6_SRC[0..63],load:0->NXM_NX_IPV6_SRC[64..127]"),
    ("5/7->ipv6_label", "ipv6", "load:0x5->NXM_NX_IPV6_LABEL[0..2]"),
)


@test(timeout=120)
def set_fields_in_old_versions(lab):
    """Controllers of 1.0 and 1.1 are told of set-fields by the actions that their versions have,
    also in groups and write-actions."""
    switch = opened(lab)
    for field, match, *wanted in SET_FIELDS:
        switch.ofctl("del-flows", "br0")
        switch.ofctl(
            "-O", "OpenFlow15", "add-flow", "br0", f"{match},actions=set_field:{field},output:1"
        )
        for version, text in (("OpenFlow10", wanted[0]), ("OpenFlow11", wanted[-1])):
            got = (
                switch.ofctl("-O", version, "--no-stats", "dump-flows", "br0")
                .split("actions=")[1]
                .strip()
            )
            # Which name a popped tag has is an older difference.
            equal(
                got.replace("strip_vlan", "pop_vlan"),
                f"{text},output:1".replace("strip_vlan", "pop_vlan"),
                f"{field} in {version}",
            )
    # A mask that a version's own action has not: Open vSwitch tells of the field as if it were set
    # whole.
    switch.ofctl("del-flows", "br0")
    switch.ofctl(
        "-O",
        "OpenFlow15",
        "add-flow",
        "br0",
        "ip,actions=set_field:10.0.0.0/255.0.255.0->ip_dst,output:1",
    )
    wanted = (
        "mod_nw_dst:10.0.0.0"
        if switch.is_ovs
        else "load:0->NXM_OF_IP_DST[8..15],load:0xa->NXM_OF_IP_DST[24..31]"
    )
    check(
        wanted in switch.ofctl("-O", "OpenFlow10", "dump-flows", "br0"),
        switch.ofctl("-O", "OpenFlow10", "dump-flows", "br0"),
    )
    switch.ofctl(
        "-O",
        "OpenFlow13",
        "add-group",
        "br0",
        "group_id=1,type=all,bucket=actions=set_field:00:00:00:00:00:01->eth_src,"
        "set_field:4->tun_id,output:1",
    )
    for version in ("OpenFlow10", "OpenFlow11"):
        text = switch.ofctl("-O", version, "dump-groups", "br0")
        check(
            "mod_dl_src:00:00:00:00:00:01,load:0x4->NXM_NX_TUN_ID[],output:" in text,
            f"groups in {version}: {text}",
        )
    switch.ofctl(
        "-O",
        "OpenFlow13",
        "add-flow",
        "br0",
        "table=3,ip,actions=write_actions(set_field:10.0.0.1->ip_src,output:1)",
    )
    text = switch.ofctl("-O", "OpenFlow11", "dump-flows", "br0", "table=3")
    check("write_actions(mod_nw_src:10.0.0.1,output:1)" in text, text)


@test()
def rules_too_long_for_a_dump(lab):
    """A rule whose actions no message of 1.0 can hold is left out of a dump there; the others are
    told."""
    switch = opened(lab)
    # Every other bit of 128: one action of 1.5, 64 loads in 1.0.
    bits = "0x" + "5" * 32
    actions = ",".join([f"set_field:{bits}/{bits}->xxreg0"] * 50)
    switch.ofctl("-O", "OpenFlow15", "add-flow", "br0", f"priority=8,in_port=2,actions={actions}")
    switch.ofctl("add-flow", "br0", "priority=9,in_port=1,actions=drop")
    switch.ofctl("add-flow", "br0", "priority=7,in_port=3,actions=drop")

    def priorities(version):
        return sorted(
            int(number)
            for number in re.findall(
                r"priority=(\d+)", switch.ofctl("-O", version, "dump-flows", "br0")
            )
        )

    equal(priorities("OpenFlow15"), [7, 8, 9], "rules in 1.5")
    equal(priorities("OpenFlow10"), [7, 9], "rules in 1.0")
    check(
        "flow_count=3" in switch.ofctl("-O", "OpenFlow10", "dump-aggregate", "br0"),
        "a rule is not counted",
    )
    if not switch.is_ovs:
        switch.logged("1 rules? (is|are) not in the dump")
        found = re.search(r"openflow_rule_too_long.*total: (\d+)", switch.appctl("coverage/show"))
        equal(found and found[1], "1", "rules that were left out")


@test(timeout=90)
def rules_that_leave_a_monitors_filter(lab):
    """A monitor of a port is told when a rule ceases to send there; one of a group when the rule
    still uses it after the change."""
    switch = opened(lab)
    switch.ofctl("-O", "OpenFlow13", "add-group", "br0", "group_id=1,type=all,bucket=output:1")
    # What is done, and who is told of it: monitors of port 2, of group 1, of both.
    steps = (
        (("mod-flows", "br0", "in_port=1,actions=output:1"), "MODIFIED output:1", "port"),
        (
            ("mod-flows", "br0", "in_port=1,actions=output:2,group:1"),
            "MODIFIED output:2,group:1",
            "port group both",
        ),
        (
            ("mod-flows", "br0", "in_port=1,actions=output:1,group:1"),
            "MODIFIED output:1,group:1",
            "port group both",
        ),
        (("mod-flows", "br0", "in_port=1,actions=output:2"), "MODIFIED output:2", "port"),
        (
            ("mod-flows", "br0", "in_port=1,actions=output:3,group:1"),
            "MODIFIED output:3,group:1",
            "port group both",
        ),
        (("mod-flows", "br0", "in_port=1,actions=output:4"), "MODIFIED output:4", ""),
        (
            ("mod-flows", "br0", "in_port=1,actions=output:2,group:1"),
            "MODIFIED output:2,group:1",
            "port group both",
        ),
        (("add-flow", "br0", "priority=5,in_port=1,actions=output:6"), "ADDED output:6", "port"),
        (
            ("add-flow", "br0", "priority=5,in_port=1,actions=output:2,group:1"),
            "ADDED output:2,group:1",
            "port group both",
        ),
        (("del-flows", "br0", "in_port=1"), "DELETED output:2,group:1", "port group both"),
    )
    for who, filters in (
        ("port", "out_port=2"),
        ("group", "out_group=1"),
        ("both", "out_port=2,out_group=1"),
    ):
        switch.ofctl(
            "-O", "OpenFlow13", "add-flow", "br0", "priority=5,in_port=1,actions=output:2,group:1"
        )
        path = os.path.join(switch.directory, f"watch.{who}")
        with open(path, "w", encoding="utf-8") as log:
            command = switch.namespace.command(
                ["ovs-ofctl", "-O", "OpenFlow14", "monitor", "br0", f"watch:{filters}"]
            )
            watcher = subprocess.Popen(
                command, env=switch.env, stdout=log, stderr=subprocess.STDOUT
            )

        def told():
            with open(path, encoding="utf-8") as file:
                found = re.findall(
                    r"event=(\w+) .*in_port=(\w+)(?: actions=(\S+))?", clean(file.read())
                )
            return [(port, f"{event} {actions}") for event, port, actions in found]

        wait_for("the monitor has begun", lambda: ("1", "INITIAL output:2,group:1") in told())
        for words, _, _ in steps:
            switch.ofctl("-O", "OpenFlow13", *words)
        switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", "in_port=77,actions=output:2,group:1")
        wait_for("the monitor has told of all", lambda: any(port == "77" for port, _ in told()))
        watcher.terminate()
        watcher.wait()
        equal(
            [text for port, text in told() if port == "1"][1:],
            [text for _, text, whom in steps if who in whom.split()],
            f"what the monitor of {filters} is told",
        )
        switch.ofctl("del-flows", "br0")
