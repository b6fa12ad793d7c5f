"""Queues that wait for their rates: what is sent, what is dropped and by which name, and that
changes lose nothing."""

import re
import time

from harness import OPEN_VSWITCH, Skip, check, equal, ethernet, switchd_command, test, wait_for

COUNT = 300


def some_hosts(lab):
    """A switch with two hosts whose traffic is only the test's; everything from the first goes to
    queue 1 of the second."""
    if switchd_command()[0] == OPEN_VSWITCH:
        raise Skip("Open vSwitch's userspace datapath has no such queues")
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow15")
    sockets = switch.raw_hosts()
    switch.flows("dl_type=0x88b5,in_port=1,actions=enqueue:2:1", "priority=0,actions=drop")
    return switch, *sockets


def shape(switch, rate, **queue):
    """Gives p2 a QoS of this kind with one queue."""
    options = [f"other-config:{key.replace('_', '-')}={value}" for key, value in queue.items()]
    switch.vsctl(
        "--",
        "set",
        "Port",
        "p2",
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        "type=linux-htb",
        f"other-config:max-rate={rate}",
        "queues:1=@a",
        "--",
        "--id=@a",
        "create",
        "Queue",
        *options,
    )
    wait_for("the queues are there", lambda: "2 queues" in switch.ofctl("queue-stats", "br0", "2"))


def counts(switch):
    """Packets and errors of queue 1."""
    found = re.search(
        r"queue 1: bytes=\d+, pkts=(\d+), errors=(\d+)", switch.ofctl("queue-stats", "br0", "2")
    )
    return int(found[1]), int(found[2])


def frame(number):
    return ethernet(
        "02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, number.to_bytes(4, "big") + bytes(982)
    )


def numbers(frames):
    return [int.from_bytes(data[14:18], "big") for data in frames]


@test(timeout=60)
def a_queue_keeps_what_exceeds_its_rate(lab):
    """Packets above the rate wait and arrive in order; the rate may change meanwhile, or the
    shaping end, and none is lost."""
    switch, one, two = some_hosts(lab)
    shape(switch, 1000000000, min_rate=4000000, max_rate=4000000)
    one.send(*(frame(number) for number in range(COUNT)))
    equal(numbers(two.receive(10, until=COUNT)), list(range(COUNT)), "what arrived")
    wait_for("all are counted", lambda: counts(switch) == (COUNT, 0))
    one.send(*(frame(number) for number in range(COUNT)))
    queue = switch.vsctl("--bare", "--columns=_uuid", "list", "Queue").strip()
    switch.vsctl(
        "set", "Queue", queue, "other-config:max-rate=8000000", "other-config:min-rate=8000000"
    )
    equal(
        numbers(two.receive(10, until=COUNT)),
        list(range(COUNT)),
        "what arrived across a change of the rate",
    )
    wait_for("counters went on", lambda: counts(switch) == (2 * COUNT, 0))
    one.send(*(frame(number) for number in range(COUNT)))
    switch.vsctl("clear", "Port", "p2", "qos")
    equal(
        sorted(numbers(two.receive(10, until=COUNT))),
        list(range(COUNT)),
        "what arrived when the shaping ended",
    )


@test(timeout=60)
def a_bound_drops_what_would_be_late(lab):
    """With a bound part of a burst arrives, the first ones, and the rest is counted as the queue's
    errors.

    At 10 kbit/s a frame takes 0.8 s. Two leave by the bucket, and five more can within 4 s, of
    which the third has 1.6 s to spare: a machine with other things to do makes none of those
    late."""
    switch, one, two = some_hosts(lab)
    shape(switch, 1000000000, min_rate=10000, max_rate=10000, max_latency_us=4000000)
    one.send(*(frame(number) for number in range(COUNT)))
    wait_for("every packet has its end", lambda: sum(counts(switch)) == COUNT)
    sent, dropped = counts(switch)
    check(5 <= sent <= 20, f"{sent} sent and {dropped} dropped")
    equal(numbers(two.receive(3, until=sent))[:5], list(range(5)), "the first that arrived")


@test(timeout=60)
def a_bad_value_leaves_the_shape(lab):
    """What cannot be is said, and the port goes on as it was."""
    switch, one, two = some_hosts(lab)
    shape(switch, 1000000000, min_rate=1000000, max_rate=1000000, limit_packets=10)
    queue = switch.vsctl("--bare", "--columns=_uuid", "list", "Queue").strip()
    switch.vsctl(
        "set", "Queue", queue, "other-config:limit-packets=100", "other-config:min-rate=2000000000"
    )
    switch.logged("guaranteed rates add up to|guaranteed rate 2000000000")
    one.send(*(frame(number) for number in range(COUNT)))
    wait_for("every packet has its end", lambda: sum(counts(switch)) == COUNT)
    check(counts(switch)[1] > COUNT // 3, f"{counts(switch)} with room for 10")
    check(two.receive(1), "something arrives")


@test(timeout=60)
def a_patch_port_keeps_frames(lab):
    """What waits at a shaped patch port comes in at its peer, in order and all of it."""
    switch, one, two = some_hosts(lab)
    switch.bridge("br1", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow15")
    switch.vsctl("del-port", "p2")
    switch.vsctl("add-port", "br1", "p2", "--", "set", "Interface", "p2", "ofport_request=2")
    for bridge, name, peer in (("br0", "there", "back"), ("br1", "back", "there")):
        switch.port(name, "type=patch", f"options:peer={peer}", "ofport_request=9", bridge=bridge)
    switch.vsctl(
        "set",
        "Port",
        "there",
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        "type=linux-htb",
        "other-config:max-rate=4000000",
    )
    switch.ofctl("add-flow", "br0", "priority=40000,dl_type=0x88b5,in_port=1,actions=output:9")
    switch.ofctl("add-flow", "br1", "dl_type=0x88b5,in_port=9,actions=output:2")
    wait_for("the queue is there", lambda: "1 queues" in switch.ofctl("queue-stats", "br0", "9"))
    begin = time.monotonic()
    one.send(*(frame(number) for number in range(COUNT)))
    equal(numbers(two.receive(10, until=COUNT)), list(range(COUNT)), "what arrived")
    check(time.monotonic() - begin > 0.5, "300 frames of 996 bytes take 0.6 s at 4 Mbit/s")


@test(timeout=60)
def an_internal_port_and_two_workers(lab):
    """The bridge's own port is shaped as any other, and by whichever worker frames come."""
    switch, one, _ = some_hosts(lab)
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x3")
    switch.vsctl(
        "set",
        "Port",
        "br0",
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        "type=linux-htb",
        "other-config:max-rate=4000000",
    )
    switch.ofctl("add-flow", "br0", "priority=40000,dl_type=0x88b5,in_port=1,actions=output:LOCAL")
    wait_for(
        "the queue is there", lambda: "1 queues" in switch.ofctl("queue-stats", "br0", "LOCAL")
    )
    one.send(*(frame(number) for number in range(COUNT)))
    wait_for(
        "all are sent",
        lambda: f"pkts={COUNT}, errors=0" in switch.ofctl("queue-stats", "br0", "LOCAL"),
    )
