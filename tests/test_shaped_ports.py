"""Shaped ports of kinds other than the kernel's veth: a guest's, and a tap."""

import time

from harness import check, equal, ethernet, test, wait_for
from test_slices import no_other_daemon, raw_hosts, stats
from test_vhost import two_peers

# A burst of testpmd's transmit engine, and a frame of its own without FCS.
TESTPMD_BURST, TESTPMD_FRAME = 32, 64


def shape(switch, port, rate, **queue):
    """One queue, number 1, beside the default one; the port itself is wide."""
    words = [f"other-config:{key.replace('_', '-')}={value}" for key, value in queue.items()]
    switch.vsctl(
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
        "other-config:max-rate=10000000000",
        "queues:1=@one",
        "--",
        "--id=@one",
        "create",
        "Queue",
        f"other-config:min-rate={rate}",
        f"other-config:max-rate={rate}",
        *words,
    )


def rule_packets(switch, number):
    """Packets that came in by a port, as its rule has counted."""
    return switch.rule_packets()[number]


@test(timeout=90, hugepages=256, dpdk=True)
def a_guests_port_keeps_what_exceeds_its_rate(lab):
    """What a peer is sent beyond its queue's rate waits and is delivered; with a bound, what would
    be late is dropped and counted. Each packet has its end, at full speed too."""
    no_other_daemon()
    switch, peers = two_peers(lab)
    switch.flows(
        "cookie=1,in_port=1,actions=set_queue:1,output:2", "cookie=2,in_port=2,actions=drop"
    )
    # As many as the peer's ring takes at once: what it has no room for testpmd throws away itself.
    bursts = 6
    count = bursts * TESTPMD_BURST
    bits = count * TESTPMD_FRAME * 8
    # All of them take two seconds.
    shape(switch, "v2", bits // 2, limit_packets=4000)
    wait_for("the queue is there", lambda: 1 in stats(switch))
    begin = time.monotonic()
    peers.forward("rxonly", first=bursts)
    wait_for("the queue has let all go", lambda: stats(switch)[1][0] == count, 20)
    check(
        time.monotonic() - begin > 1,
        f"{count} packets took {time.monotonic() - begin:.2f} s, at a rate that lets them go in 2 "
        "s",
    )
    wait_for("the peer has all", lambda: peers.counters()[1][0] == count)
    peers.stop()
    equal(
        stats(switch)[1],
        (count, count * TESTPMD_FRAME, 0),
        "packets, bytes and errors of the queue",
    )
    # At full speed, a hundred times what the queue may send and more.
    rate = 100_000_000
    queue = switch.vsctl("--bare", "--columns=_uuid", "list", "Queue").strip()
    switch.vsctl(
        "set",
        "Queue",
        queue,
        f"other-config:min-rate={rate}",
        f"other-config:max-rate={rate}",
        "other-config:max-latency-us=2000",
    )
    before, begin = stats(switch)[1], time.monotonic()
    peers.forward("flowgen")
    time.sleep(2)
    peers.stop()
    arrived = peers.settle()
    wait_for(
        "each packet has its end",
        lambda: stats(switch)[1][0] + stats(switch)[1][2] == rule_packets(switch, 1),
    )
    sent, octets, errors = stats(switch)[1]
    took = time.monotonic() - begin
    counted = switch.counters()["v2"]["tx"]
    equal(counted["pkts"], arrived[1][0], "sent at the port, against received by the peer")
    equal(
        counted["pkts"] + counted["drop"],
        sent + errors,
        "sent and dropped at the port, against what went through the queue",
    )
    check(errors > sent - before[0] > 1000, f"{sent - before[0]} packets sent, {errors} dropped")
    check(
        (octets - before[1]) * 8 < rate * took + 200_000,
        f"{(octets - before[1]) * 8 / took:.0f} bit/s of {rate}",
    )
    lab.note(
        f"{(octets - before[1]) * 8 / 2e6:.0f} Mbit/s of {rate / 1e6:.0f} sent while flooded for "
        "two seconds"
    )
    peers.quit()


@test(timeout=60)
def a_tap_port_keeps_what_exceeds_its_rate(lab):
    """What a tap is sent beyond its queue's rate waits and arrives, in order; what has no room is
    counted."""
    no_other_daemon()
    switch, one, _ = raw_hosts(lab, [])
    switch.port("ta0", "type=tap", "ofport_request=7")
    switch.namespace.run("ip link set ta0 up")
    tap = switch.namespace.raw("ta0")
    switch.flows("dl_type=0x88b5,in_port=1,actions=set_queue:1,output:7", "priority=0,actions=drop")
    count, size = 200, 1000
    shape(switch, "ta0", 2_000_000, limit_packets=count)
    wait_for("the queue is there", lambda: 1 in stats(switch, "7"))
    frames = [
        ethernet(
            "02:00:00:00:00:02",
            "02:00:00:00:00:01",
            0x88B5,
            number.to_bytes(4, "big") + bytes(size - 18),
        )
        for number in range(count)
    ]

    def numbers(received):
        return [
            int.from_bytes(data[14:18], "big") for data in received if data[12:14] == b"\x88\xb5"
        ]

    begin = time.monotonic()
    one.send(*frames)
    equal(
        numbers(tap.receive(10, wanted=lambda data: data[12:14] == b"\x88\xb5", until=count)),
        list(range(count)),
        "what arrived",
    )
    check(time.monotonic() - begin > 0.5, "200 frames of 1000 bytes take 0.8 s at 2 Mbit/s")
    wait_for("all are counted", lambda: stats(switch, "7")[1] == (count, count * size, 0))
    one.send(*frames, *frames, *frames)
    wait_for("each has its end", lambda: sum(stats(switch, "7")[1][::2]) == 4 * count)
    check(stats(switch, "7")[1][2] > count, f"{stats(switch, '7')[1]} with room for {count}")
