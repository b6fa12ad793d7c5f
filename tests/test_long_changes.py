"""Changes of very many rules: all is told that was asked for, nothing is left half done, and others
are answered meanwhile."""

import re
import struct
import threading

from harness import check, equal, test, wait_for
from openflow_client import (
    BARRIER_REPLY,
    BARRIER_REQUEST,
    ECHO_REPLY,
    ECHO_REQUEST,
    Connection,
    header,
)

RULES = 60_000
# Whose removals take more than an outbox holds at once.
TOLD = 250_000
SET_CONFIG, FLOW_REMOVED, FLOW_MOD = 9, 11, 14
ADD, MODIFY, DELETE = 0, 1, 3
SEND_FLOW_REM = 1


def flow_mod(command, number, xid, flags=0, idle=0, port=2):
    """An OpenFlow 1.0 flow mod: a rule for TCP from one address, or all rules when `number` is
    None."""
    if number is None:
        match = struct.pack(
            "!IH6s6sHBxHBBxxIIHH", 0x3FFFFF, 0, bytes(6), bytes(6), 0, 0, 0, 0, 0, 0, 0, 0, 0
        )
    else:
        wildcards = (
            1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 7 | 32 << 14 | 1 << 20 | 1 << 21
        )
        match = struct.pack(
            "!IH6s6sHBxHBBxxIIHH",
            wildcards,
            0,
            bytes(6),
            bytes(6),
            0,
            0,
            0x0800,
            0,
            6,
            0x0A000000 + number,
            0,
            0,
            0,
        )
    actions = struct.pack("!HHHH", 0, 8, port, 0) if command in (ADD, MODIFY) else b""
    body = (
        match
        + struct.pack("!QHHHHIHH", number or 0, command, idle, 0, 100, 0xFFFFFFFF, 0xFFFF, flags)
        + actions
    )
    return header(FLOW_MOD, len(body), xid) + body


def load(switch, flags=0, idle=0, rules=RULES):
    """A connection that has added the rules."""
    connection = Connection(f"{switch.directory}/br0.mgmt", 120)
    blob = b"".join(flow_mod(ADD, number, number + 1, flags, idle) for number in range(rules))
    sender = threading.Thread(target=connection.socket.sendall, args=(blob,))
    sender.start()
    sender.join()
    connection.barrier(rules + 10)
    equal(connection.errors, [], "refused")
    equal(count(switch), rules, "rules")
    return connection


def count(switch):
    """How many rules there are."""
    return int(re.search(r"flow_count=(\d+)", switch.ofctl("dump-aggregate", "br0")).group(1))


def told(switch):
    """A connection that is told of rules that go."""
    connection = Connection(f"{switch.directory}/br0.mgmt", 120)
    body = struct.pack("!HH", 0, 128)
    connection.socket.sendall(header(SET_CONFIG, len(body), 1) + body)
    connection.barrier(2)
    return connection


def heard(connection):
    """The cookies of as many rules as there were, as a connection hears of their end."""
    return [struct.unpack("!Q", connection.wait_for(FLOW_REMOVED)[48:56])[0] for _ in range(TOLD)]


def a_bridge(lab):
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow14")
    return switch


@test(timeout=300)
def everybody_hears_of_every_rule_that_a_delete_takes(lab):
    """Two connections that are told, one of which reads late, the other with the delete itself and
    a barrier behind it."""
    switch = a_bridge(lab)
    load(switch, SEND_FLOW_REM, rules=TOLD).close()
    first, late = told(switch), told(switch)
    first.socket.sendall(flow_mod(DELETE, None, 3) + header(BARRIER_REQUEST, 0, 4))
    other = Connection(f"{switch.directory}/br0.mgmt")
    for number in range(20):
        other.socket.sendall(header(ECHO_REQUEST, 0, number))
        other.wait_for(ECHO_REPLY, number)
    equal(heard(first), list(range(TOLD)), "told")
    # Behind all of them.
    first.wait_for(BARRIER_REPLY, 4)
    equal(heard(late), list(range(TOLD)), "told late")
    late.barrier(9)
    equal(count(switch), 0, "rules")
    shown = switch.appctl("coverage/show")
    check("ofproto_long_change" in shown, shown)
    check("openflow_queue_overflow" not in shown, shown)


@test(timeout=300)
def a_bundle_of_many_messages_is_done_or_not(lab):
    """One that replaces all rules, and one whose last message is wrong."""
    switch = a_bridge(lab)
    load(switch).close()
    others = [
        f"add tcp,nw_dst=10.{n >> 16}.{n >> 8 & 255}.{n & 255},priority=100,actions=2"
        for n in range(RULES)
    ]
    wrong = "\n".join(["delete", *others, "add priority=1,actions=group:77"]) + "\n"
    refused = switch.ofctl(
        "-OOpenFlow14", "--bundle", "add-flows", "br0", "-", stdin=wrong, ok=False, seconds=300
    )
    check("BAD_OUT_GROUP" in str(refused), str(refused))
    flows = switch.ofctl("dump-flows", "br0", "cookie=0x3/-1")
    check("nw_src=10.0.0.3" in flows, flows)
    equal(count(switch), RULES, "rules")
    right = "\n".join(["delete", *others]) + "\n"
    switch.ofctl("-OOpenFlow14", "--bundle", "add-flows", "br0", "-", stdin=right, seconds=300)
    equal(count(switch), RULES, "rules")
    check(
        "nw_src" not in switch.ofctl("dump-flows", "br0", "tcp,nw_dst=10.0.0.3"),
        "an old rule is left",
    )


@test(timeout=300)
def a_modify_a_flush_and_expiry_of_many_rules(lab):
    """Each changes all of them, and what comes behind it sees that."""
    switch = a_bridge(lab)
    connection = load(switch)
    connection.socket.sendall(flow_mod(MODIFY, None, 3, port=7))
    connection.barrier(4)
    equal(
        switch.ofctl("dump-flows", "br0", "out_port=2").count("actions="), 0, "rules as they were"
    )
    equal(count(switch), RULES, "rules")
    switch.vsctl("set-controller", "br0", "tcp:127.0.0.1:6653")
    wait_for("the bridge is empty", lambda: count(switch) == 0, 60)
    connection.close()
    switch.vsctl("del-controller", "br0")
    connection = load(switch, idle=5)
    wait_for("all have timed out", lambda: count(switch) == 0, 120)
    connection.barrier(5)
    switch.vsctl("del-br", "br0")
