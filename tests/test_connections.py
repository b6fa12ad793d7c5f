"""What the log and dumps say of connections: messages that are tried again, errors beside many
others, rules too long for a dump; rules of one version as others are told of them."""

import re
import struct

from harness import check, equal, test, wait_for
from test_openflow import opened
from test_sessions import ECHO_REQUEST, FLOW_MOD, Client, flow_mod


@test(timeout=120)
def a_message_is_logged_once(lab):
    """A message that has to wait for a long change is logged once as received."""
    switch = opened(lab)
    switch.appctl("vlog/disable-rate-limit", "vconn")
    one, two = Client(switch, 4), Client(switch, 4)
    metadata = bytes.fromhex("80000408")
    for attempt in range(3):
        # The rules that make the change long are not logged: a log that is given more lines than
        # it can write drops some.
        switch.appctl("vlog/set", "vconn:file:info")
        one.socket.sendall(
            b"".join(
                one.message(FLOW_MOD, flow_mod(metadata + struct.pack("!Q", number)), 5)
                for number in range(20000)
            )
        )
        equal(one.barrier(), [], "errors")
        switch.appctl("vlog/set", "vconn:file:dbg")
        one.send(FLOW_MOD, flow_mod(command=3))
        for number in range(20):
            two.send(FLOW_MOD, flow_mod(priority=number), 0xABC000 + 32 * attempt + number)
        equal(two.barrier(), [], "errors")
        equal(one.barrier(), [], "errors")
    wanted = [
        f"{0xABC000 + 32 * attempt + number:#x}" for attempt in range(3) for number in range(20)
    ]

    def received():
        return re.findall(
            r"received: OFPT_FLOW_MOD \(OF1.3\) \(xid=(0xabc[0-9a-f]+)\)", switch.log()
        )

    wait_for("the last is in the log", lambda: wanted[-1] in received())
    equal(received(), wanted, "messages that were received, by the log")


@test(timeout=60)
def many_messages_of_another_version_hide_no_errors(lab):
    """Who sends many messages of another version has lines of their own, and other errors are
    logged all the same."""
    switch = opened(lab)
    client, other = Client(switch, 4), Client(switch, 4)
    for number in range(600):
        client.socket.sendall(struct.pack("!BBHI", 1, 5, 8, number))
    answers = len(client.barrier())
    equal(len(other.ask(FLOW_MOD, flow_mod(table=254))), 1, "answers to a mistake")
    if switch.is_ovs:
        # It answers fewer, and logs fewer.
        return
    equal(answers, 600, "answers to messages of another version")
    switch.logged("sending OFPBRC_EPERM error reply")
    lines = len(re.findall("received OpenFlow version 0x01 != expected 04", switch.log()))
    check(200 <= lines <= 220, f"{lines} lines of 600 messages")


@test(timeout=60)
def rules_left_out_of_dumps_are_told_once(lab):
    """A peer that keeps asking for rules that its version cannot be told does not fill the log."""
    switch = opened(lab)
    bits = "0x" + "5" * 32
    actions = ",".join([f"set_field:{bits}/{bits}->xxreg0"] * 50)
    rules = [f"priority={number},in_port=2,actions={actions}" for number in range(5, 35)]
    switch.ofctl("-O", "OpenFlow15", "add-flows", "br0", "-", stdin="\n".join(rules) + "\n")
    switch.ofctl("add-flow", "br0", "priority=3,actions=drop")
    client = Client(switch, 1)
    everything = struct.pack("!HH", 1, 0) + struct.pack("!I36xBxH", 0x3FFFFF, 255, 0xFFFF)
    for _ in range(10):
        answers = [bytes.fromhex(answer.split()[1]) for answer in client.ask(16, everything)]
        equal(sum(len(answer) > 8 for answer in answers), 1, "messages that tell of a rule")
    equal(client.ask(ECHO_REQUEST, b"alive"), ["3 " + b"alive".hex()], "an echo at last")
    if switch.is_ovs:
        return
    switch.logged("30 rules are not in the dump")
    equal(len(re.findall("rules? (?:is|are) not in the dump", switch.log())), 1, "lines in the log")
    found = re.search(r"openflow_rule_too_long.*total: (\d+)", switch.appctl("coverage/show"))
    equal(found and found[1], "300", "rules that were left out")


@test(timeout=60)
def loads_and_tags_in_other_versions(lab):
    """What 1.0 loads into a part of a field is told to 1.5 with the same bits; a part of `vlan_tci`
    that is written leaves the tag."""
    switch = opened(lab)

    def told(rule, version):
        switch.ofctl("del-flows", "br0")
        switch.ofctl("add-flow", "br0", rule)
        found = re.findall(r"actions=(.*)", switch.ofctl("-O", version, "dump-flows", "br0"))
        equal(len(found), 1, f"rules in {version}")
        return found[0]

    def whole(text):
        """Without masks of all of a field, which Open vSwitch shows."""
        return re.sub("/0xfc(?=->nw_tos)|/0x3(?=->nw_ecn)", "", text)

    for load, wanted in (
        ("10->NXM_OF_IP_TOS[2..7]", "40->nw_tos"),
        ("3->NXM_OF_IP_TOS[4..6]", "48/0x70->nw_tos"),
        ("40->NXM_OF_IP_TOS[]", "40->nw_tos"),
        ("1->NXM_NX_IP_ECN[]", "1->nw_ecn"),
        ("3->NXM_OF_ETH_DST[3..9]", "00:00:00:00:00:18/00:00:00:00:03:f8->eth_dst"),
    ):
        equal(whole(told(f"ip,actions=load:{load}", "OpenFlow15")), "set_field:" + wanted, load)
    # Open vSwitch takes the tag for gone, because the bits that are written do not say that there
    # is one.
    push = "push_vlan:0x8100," if switch.is_ovs else ""
    equal(
        told("dl_vlan=5,actions=load:3->NXM_OF_VLAN_TCI[0..11],mod_vlan_vid:7", "OpenFlow11"),
        f"load:0x3->NXM_OF_VLAN_TCI[0..11],{push}set_vlan_vid:7",
        "a part of a tag",
    )
    equal(
        told(
            "vlan_tci=0/0x1fff,actions=load:0x1003->NXM_OF_VLAN_TCI[],mod_vlan_vid:7", "OpenFlow11"
        ),
        "load:0x1003->NXM_OF_VLAN_TCI[],set_vlan_vid:7",
        "a tag that comes with all of the field",
    )
