"""Slices beside each other, by counts: floods leave others room, many queues at once, TCP's large
frames in a narrow slice and in a wide one."""

import re

from harness import OPEN_VSWITCH, Skip, check, equal, ethernet, switchd_command, test, wait_for


def port_with_queues(switch, port, rate, queues):
    """Gives a port a QoS with these queues: {number: {key: value}}."""
    words = [
        "--",
        "set",
        "Port",
        port,
        "qos=@qos",
        "--",
        "--id=@qos",
        "create",
        "QoS",
        "type=linux-htb",
        f"other-config:max-rate={rate}",
        "queues=" + ",".join(f"{number}=@q{number}" for number in queues),
    ]
    for number, queue in queues.items():
        words += [
            "--",
            f"--id=@q{number}",
            "create",
            "Queue",
            *[f"other-config:{key.replace('_', '-')}={value}" for key, value in queue.items()],
        ]
    switch.vsctl(*words)
    wait_for("the queues are there", lambda: len(stats(switch)) >= len(queues))


def stats(switch, port="2"):
    """{queue: (packets, bytes, errors)} of a port."""
    text = switch.ofctl("queue-stats", "br0", port)
    return {
        int(queue): (int(packets), int(octets), int(errors))
        for queue, octets, packets, errors in re.findall(
            r"queue (\d+): bytes=(\d+), pkts=(\d+), errors=(\d+)", text
        )
    }


def no_other_daemon():
    """Open vSwitch has no such ports."""
    if switchd_command()[0] == OPEN_VSWITCH:
        raise Skip("Open vSwitch's userspace datapath does not shape kernel interfaces")


def raw_hosts(lab, queues):
    """A switch with two hosts; a frame to 02:00:00:01:hh:ll goes to queue 0xhhll of the second."""
    no_other_daemon()
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    sockets = switch.raw_hosts()
    switch.flows(
        *[
            f"in_port=1,dl_dst={station(queue)},actions=set_queue:{queue},output:2"
            for queue in queues
        ],
        "priority=0,actions=drop",
    )
    return switch, *sockets


def station(queue):
    return f"02:00:00:01:{queue >> 8:02x}:{queue & 255:02x}"


def frame(queue, size=1000):
    return ethernet(station(queue), "02:00:00:00:00:01", 0x88B5, bytes(size - 14))


@test(timeout=90)
def a_flood_leaves_other_queues_room(lab):
    """Queues that are flooded fill what a port can hold, and another one still finds room for its
    own."""
    flooded = range(1, 7)
    switch, one, _ = raw_hosts(lab, [*flooded, 7])
    port_with_queues(
        switch,
        "p2",
        1000000000,
        {
            **{
                queue: {"min_rate": 10000, "max_rate": 10000, "limit_packets": 1000}
                for queue in flooded
            },
            7: {"min_rate": 100000, "max_rate": 100000},
        },
    )

    def full():
        # Again and again, as a worker that had to wait for a processor has lost what its interface
        # could not hold for it.
        for _ in range(200):
            one.send(*(frame(queue) for queue in flooded))
        return sum(stats(switch)[queue][2] for queue in flooded) > 1000

    wait_for("the port is full", full, 30)
    one.send(*(frame(7) for _ in range(20)))
    wait_for("the quiet queue sends all", lambda: stats(switch)[7][0] == 20, 20)
    equal(stats(switch)[7][2], 0, "what the quiet queue has lost")


@test(timeout=90)
def the_default_queue_does_not_starve(lab):
    """Where guarantees use up the port's rate, and the queues that have them are flooded, queue 0
    sends all the same what Open vSwitch's HTB guarantees it; qos/show says who gave it up."""
    switch, one, _ = raw_hosts(lab, [0, 1, 2])
    rate = 8000000
    port_with_queues(
        switch, "p2", rate, {1: {"min_rate": rate * 8 // 10}, 2: {"min_rate": rate * 2 // 10}}
    )

    def flood():
        for _ in range(100):
            one.send(frame(1), frame(2))
        return stats(switch)

    wait_for("both queues are full", lambda: all(flood()[queue][2] > 500 for queue in (1, 2)), 30)
    before = stats(switch)
    for number in range(1, 11):
        one.send(frame(0, 64))
        # The flood goes on meanwhile: some four times the port's rate.
        wait_for(
            f"frame {number} of queue 0 leaves", lambda wanted=number: flood()[0][0] == wanted, 2
        )
    after = stats(switch)
    equal(after[0], (10, 640, 0), "queue 0")
    check(
        all(after[queue][2] > before[queue][2] for queue in (1, 2)),
        "the other queues were not flooded meanwhile:",
        before,
        after,
    )
    shown = dict(
        re.findall(r"^(Default|Queue \d):\n((?:  .*\n)*)", switch.appctl("qos/show", "p2"), re.M)
    )
    told = {
        name: re.findall(r"(?:configured-)?min-rate: \d+", text) for name, text in shown.items()
    }
    equal(
        told,
        {
            "Default": ["min-rate: 12000"],
            "Queue 1": ["min-rate: 6390400", "configured-min-rate: 6400000"],
            "Queue 2": ["min-rate: 1597600", "configured-min-rate: 1600000"],
        },
        "guarantees in qos/show",
    )
    text = switch.ofctl("-O", "OpenFlow13", "queue-get-config", "br0", "2")
    equal(
        re.findall(r"queue (\d):(?: min_rate:([\d.]+)%)?", text),
        [("0", "0.2"), ("1", "79.9"), ("2", "20.0")],
        "queue descriptions",
    )


@test(timeout=90)
def a_thousand_queues_send_what_each_got(lab):
    """Each frame is counted in its own queue, of as many as there are."""
    queues = range(1, 1001)
    switch, one, two = raw_hosts(lab, queues)
    port_with_queues(
        switch,
        "p2",
        1000000000,
        {queue: {"min_rate": 500000, "max_rate": 1000000} for queue in queues},
    )
    one.send(*(frame(queue, 200) for queue in queues))
    equal(
        sorted(data[:6].hex(":") for data in two.receive(10, until=len(queues))),
        sorted(station(queue) for queue in queues),
        "what arrived",
    )
    wait_for(
        "each is counted", lambda: all(stats(switch)[queue] == (1, 200, 0) for queue in queues)
    )


def transfer(lab, switch, rate, **queue):
    """TCP through a slice, hosts with large frames and open checksums; (packets, bytes) of its
    queue."""
    port_with_queues(
        switch,
        "p2",
        40000000000,
        {0: {"priority": 0}, 1: {"min_rate": rate, "max_rate": rate, **queue}},
    )
    before = stats(switch)[1]
    source, target = lab.hosts
    source.reaches("10.0.0.2")
    source.iperf("10.0.0.2", seconds=1)
    equal(target.checksum_errors(), {}, "checksum errors")
    after = stats(switch)[1]
    return after[0] - before[0], after[1] - before[1]


@test(timeout=90)
def large_frames_are_cut_where_they_would_be_in_the_way(lab):
    """In a narrow slice a frame of 64 KiB goes segment by segment, in a wide one whole; the stream
    is the same."""
    no_other_daemon()
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    lab.hosts = []
    for number in (1, 2):
        host = lab.namespace(f"h{number}").quiet()
        switch.link(
            host, f"p{number}", "eth0", f"ofport_request={number}", ip=f"10.0.0.{number}/24"
        )
        lab.hosts.append(host)
    lab.hosts[1].start(["iperf3", "-s"], "iperf3.out")
    switch.flows("in_port=1,actions=set_queue:1,output:2", "in_port=2,actions=output:1")
    packets, octets = transfer(lab, switch, 20000000, max_latency_us=20000)
    check(
        packets > 100 and octets / packets <= 1514,
        f"{octets} bytes in {packets} packets of a narrow slice",
    )
    packets, octets = transfer(lab, switch, 20000000000)
    check(octets / packets > 1514, f"{octets} bytes in {packets} packets of a wide slice")


def packet(source_mac, tos, queue):
    """An IPv4 packet to the station of a queue, with a right checksum."""
    head = (
        bytes([0x45, tos])
        + bytes([0, 46, 0x12, 0x34, 0, 0, 64, 17])
        + b"\0\0"
        + bytes([10, 0, 0, 1, 10, 0, 0, 2])
    )
    total = sum(int.from_bytes(head[at : at + 2], "big") for at in range(0, 20, 2))
    total = (total & 0xFFFF) + (total >> 16)
    return ethernet(
        station(queue),
        source_mac,
        0x0800,
        head[:10]
        + (0xFFFF - (total & 0xFFFF) - (total >> 16)).to_bytes(2, "big")
        + head[12:]
        + bytes(26),
    )


@test(timeout=60)
def queues_give_packets_their_dscp(lab):
    """What leaves by a queue with a DSCP has it, with a right checksum and its ECN bits as they
    were; what names no such queue stays as it is. Of each type of QoS."""
    queues = (0, 1, 2, 99)
    switch, one, two = raw_hosts(lab, queues)
    source = "02:00:00:00:00:01"
    switch.ofctl(
        "add-flow",
        "br0",
        f"priority=40000,in_port=1,dl_dst={station(1)},dl_vlan=5,actions=set_queue:1,output:2",
    )
    for kind, rates in (
        ("linux-htb", ["other-config:max-rate=1000000000"]),
        ("trtcm-policer", ["other-config:cir=10000000", "other-config:cbs=100000"]),
        ("linux-noop", []),
    ):
        switch.vsctl(
            "--",
            "set",
            "Port",
            "p2",
            "qos=@qos",
            "--",
            "--id=@qos",
            "create",
            "QoS",
            f"type={kind}",
            *rates,
            "queues=1=@a,2=@b",
            "--",
            "--id=@a",
            "create",
            "Queue",
            "dscp=46",
            *rates,
            "--",
            "--id=@b",
            "create",
            "Queue",
            "external-ids:dscp=none",
            *rates,
        )
        one.send(*(packet(source, 0x29, queue) for queue in queues))
        plain = packet(source, 0x29, 1)
        one.send(plain[:12] + bytes([0x81, 0, 0, 5]) + plain[12:])
        arrived = sorted(two.receive(5, until=5))
        marked = packet(source, 46 << 2 | 1, 1)
        equal(
            arrived,
            sorted(
                [
                    packet(source, 0x29, 0),
                    marked,
                    packet(source, 0x29, 2),
                    packet(source, 0x29, 99),
                    marked[:12] + bytes([0x81, 0, 0, 5]) + marked[12:],
                ]
            ),
            f"what arrived with {kind}",
        )
    # Rows that no port names any more stay in the database.
    for queue in switch.vsctl("--bare", "--columns=_uuid", "find", "Queue", "dscp=46").split():
        switch.vsctl("clear", "Queue", queue, "dscp")
    one.send(packet(source, 0x29, 1))
    equal(
        two.receive(5, until=1),
        [packet(source, 0x29, 1)],
        "what arrived when the queue has no DSCP any more",
    )
