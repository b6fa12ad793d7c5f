"""DPDK virtio-user peers on vhost-user ports, at full speed."""

import os
import time

from harness import check, equal, test, wait_for
from testpmd import Testpmd


def two_peers(lab):
    """A switch with two vhost-user client ports and one testpmd with both peers."""
    switch = lab.switch()
    switch.enable_dpdk(cores=1)  # the peers poll on the other one
    switch.bridge("br0", "fail_mode=secure")
    paths = [f"{switch.directory}/v{n}.sock" for n in (1, 2)]
    peers = Testpmd(lab, paths)
    for number, path in enumerate(paths, 1):
        switch.port(
            f"v{number}",
            "type=dpdkvhostuserclient",
            f"options:vhost-server-path={path}",
            f"ofport_request={number}",
        )
    peers.wait_ready()
    for number in (1, 2):
        wait_for(
            f"v{number} is up", lambda: switch.get("Interface", f"v{number}", "link_state") == "up"
        )
    switch.flows("cookie=1,in_port=1,actions=output:2", "cookie=2,in_port=2,actions=output:1")
    return switch, peers


def settled(switch):
    """The switch's port counters, once they no longer change."""

    def steady():
        before = switch.counters()
        time.sleep(0.3)
        return switch.counters() == before and before

    return wait_for("the counters stand still", steady, 15)


@test(timeout=90, hugepages=256, dpdk=True)
def every_packet_is_accounted_for(lab):
    """Both peers send as fast as they can; each packet sent arrives or is in a counter of the port
    that lost it."""
    switch, peers = two_peers(lab)
    start = time.monotonic()
    peers.forward("flowgen")
    time.sleep(3)
    peers.stop()
    seconds = time.monotonic() - start
    arrived = peers.settle()
    ports = settled(switch)
    rules = switch.rule_packets()
    total = 0
    for here, there in ((0, 1), (1, 0)):
        source, target = ports[f"v{here + 1}"], ports[f"v{there + 1}"]
        sent, received = arrived[here][1], arrived[there][0]
        name = f"v{here + 1} to v{there + 1}"
        check(sent > 10_000, f"{name}: the peer sent only {sent} packets")
        equal(
            source["rx"]["pkts"] + (source["rx"]["drop"] or 0),
            sent,
            f"{name}: received and dropped at the port, against sent by the peer",
        )
        equal(
            rules[here + 1], source["rx"]["pkts"], f"{name}: the rule's counter against the port's"
        )
        equal(
            target["tx"]["pkts"],
            received,
            f"{name}: sent at the port, against received by the peer",
        )
        equal(
            target["tx"]["pkts"] + target["tx"]["drop"],
            source["rx"]["pkts"],
            f"{name}: sent and dropped at the port, against received",
        )
        total += received
    lab.note(
        f"{total / seconds / 1e6:.2f} Mpps received of "
        f"{sum(sent for _, sent in arrived) / seconds / 1e6:.2f} sent"
    )
    peers.quit()


@test(timeout=90, hugepages=256, dpdk=True)
def peer_vanishes_under_traffic(lab):
    """A peer that is killed at full speed loses its own port only; the next peers are served."""
    switch, peers = two_peers(lab)
    a = lab.host("h1", switch, ip="10.3.0.1/24", quiet=True)
    b = lab.host("h2", switch, ip="10.3.0.2/24", quiet=True)
    switch.flows(
        f"in_port={a.port},actions=output:{b.port}",
        f"in_port={b.port},actions=output:{a.port}",
        "in_port=1,actions=output:2",
        "in_port=2,actions=output:1",
    )
    peers.forward("flowgen")
    a.ping("10.3.0.2", 10)
    peers.process.kill()
    peers.process.wait()
    a.ping("10.3.0.2", 20)
    for number in (1, 2):
        wait_for(
            f"v{number} is down",
            lambda: switch.get("Interface", f"v{number}", "link_state") == "down",
        )
    for number in (1, 2):
        os.unlink(f"{switch.directory}/v{number}.sock")
    again = Testpmd(lab, [f"{switch.directory}/v{n}.sock" for n in (1, 2)], "testpmd2").wait_ready()
    for number in (1, 2):
        wait_for(
            f"v{number} is up again",
            lambda: switch.get("Interface", f"v{number}", "link_state") == "up",
        )
    again.forward("flowgen")
    wait_for(
        "packets arrive at the new peers",
        lambda: min(received for received, _ in again.counters()) > 1000,
    )
    again.stop()
    a.ping("10.3.0.2", 5)
    again.quit()


@test(timeout=90, hugepages=256, dpdk=True)
def packets_are_counted_by_size(lab):
    """Packets of guests are counted by size, both ways, in the classes that Open vSwitch has."""
    switch, peers = two_peers(lab)
    peers.forward("io", 4)
    time.sleep(0.5)
    peers.command("stop")
    # In several segments, and so longer.
    peers.command("set txpkts 150,150")
    peers.forward("io", 4)
    time.sleep(0.5)
    peers.command("stop")
    ways = [f"{way}_{{}}_packets" for way in ("rx", "tx")]
    classes = ("1_to_64", "65_to_127", "128_to_255", "256_to_511", "512_to_1023", "1024_to_1522")

    def counts():
        return switch.get("Interface", "v1", "statistics")

    def steady():
        before = counts()
        time.sleep(1)
        return counts() == before and "rx_packets" in before and before["rx_packets"] > 0 and before

    # Open vSwitch writes them every five seconds.
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=5000")
    time.sleep(6)
    told = wait_for("the counters stand still", steady, 20)
    for way in ways:
        by_size = {name: told[way.format(name)] for name in (*classes, "1523_to_max")}
        equal(sum(by_size.values()), told[way[:2] + "_packets"], f"{by_size} together")
        check(by_size["1_to_64"] > 0 and by_size["256_to_511"] > 0, by_size)
    equal(told["ovs_tx_retries"] >= 0, True, "retries")
