"""What a bridge's state says of packets, and when it goes, beside Open vSwitch: the action set's
output, misses behind the last table, what new controllers leave."""

import re
import struct

from harness import becomes, check, equal, ethernet, test, wait_for
from test_sessions import Client

PACKET = "ffffffffffff00000000000188b5" + "00" * 46
SET_CONFIG, PACKET_IN = 9, 10


def packets(switch, table):
    """Packets of each rule of a table, by its actions."""
    text = switch.ofctl("-OOpenFlow15", "dump-flows", "br0", f"table={table}")
    return {
        actions: int(count)
        for count, actions in re.findall(r"n_packets=(\d+),.* actions=(\S+)", text)
    }


@test(timeout=60)
def an_action_set_with_a_group_sends_to_no_port(lab):
    """The group runs instead of the output, whichever is written first, so `actset_output` is
    unset; without it the output counts again."""
    switch = lab.switch()
    switch.bridge(
        "br0", "protocols=OpenFlow10,OpenFlow11,OpenFlow13,OpenFlow15", "fail_mode=secure"
    )
    switch.ofctl("-OOpenFlow15", "add-group", "br0", "group_id=1,type=indirect,bucket=actions=drop")
    for first, second, wanted in (
        ("output:2", "group:1", "unset"),
        ("group:1", "output:2", "unset"),
        ("output:2", "set_field:00:00:00:00:00:01->eth_dst", "port"),
    ):
        switch.ofctl("-OOpenFlow15", "del-flows", "br0")
        switch.ofctl(
            "-OOpenFlow15",
            "add-flows",
            "br0",
            "-",
            stdin="\n".join(
                (
                    f"table=0,actions=write_actions({first}),goto_table:1",
                    f"table=1,actions=write_actions({second}),goto_table:2",
                    "table=2,priority=2,actset_output=2,actions=set_field:1->reg0",
                    "table=2,priority=1,actset_output=unset,actions=set_field:2->reg0",
                )
            )
            + "\n",
        )
        switch.ofctl(
            "-OOpenFlow15", "packet-out", "br0", f"in_port=LOCAL,packet={PACKET},actions=TABLE"
        )
        met = {"port": "set_field:0x1->reg0", "unset": "set_field:0x2->reg0"}
        expected = {actions: int(name == wanted) for name, actions in met.items()}
        wait_for(f"{expected} after {first}, {second}", lambda: packets(switch, 2) == expected)


@test(timeout=60)
def continue_behind_the_last_table_asks_the_controller(lab):
    """A table miss of "continue" (1.1) in table 253 sends a packet-in of that table, for no match;
    "drop" sends none."""
    switch = lab.switch()
    switch.bridge("br0", "protocols=OpenFlow10,OpenFlow11,OpenFlow13", "fail_mode=secure")
    client = Client(switch, 2)
    client.send(SET_CONFIG, struct.pack("!HH", 0, 0xFFFF))
    equal(client.barrier(), [], "answers to a switch configuration")
    switch.ofctl("-OOpenFlow11", "add-flow", "br0", "actions=goto_table:252")
    switch.ofctl("-OOpenFlow11", "mod-table", "br0", "252", "continue")
    heard = []

    def ask(miss, marks):
        switch.ofctl("-OOpenFlow11", "mod-table", "br0", "253", miss)
        switch.ofctl("-OOpenFlow11", "packet-out", "br0", "LOCAL", "TABLE", PACKET[:-2] + marks)

    def packet_ins():
        heard.extend(body for kind, body in client.barrier() if kind == PACKET_IN)
        return len(heard)

    ask("drop", "01")
    ask("continue", "02")
    wait_for("a packet-in", packet_ins)
    equal(packet_ins(), 1, "packet-ins")
    # buffer, in_port, in_phy_port, total length, reason, table; 1.1
    _, _, _, length, reason, table = struct.unpack("!IIIHBB", heard[0][:16])
    equal((length, reason, table, heard[0][-1]), (60, 0, 253, 2), "the packet-in")


@test(timeout=60)
def controllers_that_come_and_go_leave_no_rules_groups_or_meters(lab):
    """Setting the first controller and deleting the last one empty the bridge; another controller
    beside the first does not."""
    switch = lab.switch()
    switch.bridge("br0", "protocols=OpenFlow10,OpenFlow13", "fail_mode=secure")

    def fill():
        switch.ofctl(
            "-OOpenFlow13", "add-group", "br0", "group_id=7,type=all,bucket=actions=output:1"
        )
        switch.ofctl("-OOpenFlow13", "add-meter", "br0", "meter=7,kbps,bands=type=drop,rate=1000")
        switch.ofctl("-OOpenFlow13", "add-flow", "br0", "actions=meter:7,group:7")

    def kept():
        dumps = (
            ("dump-groups", "group_id="),
            ("dump-meters", "meter="),
            ("dump-flows", "actions="),
        )
        return [switch.ofctl("-OOpenFlow13", dump, "br0").count(word) for dump, word in dumps]

    fill()
    equal(kept(), [1, 1, 1], "groups, meters and rules")
    switch.vsctl("set-controller", "br0", "tcp:127.0.0.1:6653")
    wait_for("the bridge is empty with its first controller", lambda: kept() == [0, 0, 0])
    fill()
    switch.vsctl("set-controller", "br0", "tcp:127.0.0.1:6653", "tcp:127.0.0.1:6654")
    equal(kept(), [1, 1, 1], "groups, meters and rules beside a second controller")
    switch.vsctl("del-controller", "br0")
    wait_for("the bridge is empty without controllers", lambda: kept() == [0, 0, 0])


@test()
def another_fail_mode_leaves_no_rules_groups_or_meters(lab):
    """A bridge without controllers is emptied when it becomes secure or standalone; a standalone
    one gets its rule for NORMAL. Beside a controller everything stays."""
    switch = lab.switch()
    switch.bridge("br0", "protocols=OpenFlow10,OpenFlow13")

    def fill():
        for command, what in (
            ("add-group", "group_id=7,type=all,bucket=actions=output:1"),
            ("add-meter", "meter=7,kbps,bands=type=drop,rate=1000"),
            ("add-flow", "priority=5,actions=meter:7,group:7"),
        ):
            switch.ofctl("-OOpenFlow13", command, "br0", what)

    def holds(what, groups, meters, *rules):
        dumps = (("dump-groups", "group_id="), ("dump-meters", "meter="))
        becomes(
            lambda: (
                [switch.ofctl("-OOpenFlow13", dump, "br0").count(word) for dump, word in dumps],
                sorted(switch.rules("br0", "-OOpenFlow13")),
            ),
            ([groups, meters], sorted(rules)),
            f"groups, meters and rules {what}",
        )

    everything, ours = "priority=0 actions=NORMAL", "priority=5 actions=meter:7,group:7"
    holds("in the beginning", 0, 0, everything)
    fill()
    holds("that were added", 1, 1, ours, everything)
    switch.vsctl("set-fail-mode", "br0", "standalone")  # which it was
    holds("of a bridge that is told what it is", 1, 1, ours, everything)
    switch.vsctl("set-fail-mode", "br0", "secure")
    holds("of a bridge that has become secure", 0, 0)
    fill()
    switch.vsctl("del-fail-mode", "br0")
    holds("of a bridge that has become standalone", 0, 0, everything)
    switch.vsctl("set-controller", "br0", "tcp:127.0.0.1:1")
    holds("of a bridge with a controller", 0, 0)
    fill()
    switch.vsctl("set-fail-mode", "br0", "secure")
    holds("beside a controller", 1, 1, ours)


@test()
def normal_drops_what_came_by_a_port_that_is_not_there(lab):
    """NORMAL forwards a packet-out's packet by its ingress port, or by none of a controller's; one
    of a port that is not there it drops, and a trace says so."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    first, second = switch.raw_hosts()
    switch.flows(
        "table=0,priority=0,actions=normal", "table=1,actions=load:99->NXM_OF_IN_PORT[],normal"
    )

    def send(number, in_port, actions):
        packet = ethernet("ff:ff:ff:ff:ff:ff", f"02:00:00:00:01:{number:02x}", 0x88B5, bytes(46))
        switch.ofctl(
            "packet-out", "br0", f"in_port={in_port},packet={packet.hex()},actions={actions}"
        )
        return packet

    for number, (in_port, actions) in enumerate(
        ((99, "normal"), (99, "table"), (65279, "normal"), (0, "normal"), (1, "resubmit(,1)"))
    ):
        send(number, in_port, actions)
    wanted = [
        send(0x10, "controller", "normal"),
        send(0x11, "none", "normal"),
        send(0x12, 99, "flood"),
        send(0x13, "local", "normal"),
    ]
    for end in (first, second):
        equal(
            end.receive(5, wanted=lambda got: got[:1] == b"\xff", until=len(wanted)),
            wanted,
            "what leaves",
        )
    if not lab.is_ovs:
        equal(switch.drops("unknown_port"), 5, "drops for want of the ingress port")
    trace = switch.appctl("ofproto/trace", "br0", "in_port=99")
    for line in (
        "NORMAL\n     >>>> received packet on unknown port 99 <<<<",
        "     >> no input bundle, dropping",
        "Datapath actions: drop",
    ):
        check(line in trace, "the trace lacks", repr(line), trace)
