"""Hosts in network namespaces on veth pairs, with their offloads left on: what containers use."""

import struct
import time

from harness import check, equal, ethernet, test, wait_for


def two_hosts(lab, switch):
    """Two hosts on br0."""
    switch.bridge()
    a = lab.host("h1", switch, ip="10.1.0.1/24", ip6="fd01::1/64")
    b = lab.host("h2", switch, ip="10.1.0.2/24", ip6="fd01::2/64")
    return a, b


def bulk(client, server, target, *options, seconds=2):
    """iperf3 from client to server; returns its report."""
    port = bulk.port = getattr(bulk, "port", 5200) + 1
    process = server.start(["iperf3", "-s", "-1", "-p", str(port)], f"iperf3.{port}")
    wait_for("iperf3 listens", lambda: f":{port}" in server.run("ss -Hltn").stdout)
    report = client.iperf(target, *options, seconds=seconds, port=port)
    process.wait(10)
    return report


def gigabits(report):
    """What the receiver of a TCP stream counted."""
    return report["end"]["sum_received"]["bits_per_second"] / 1e9


@test(timeout=90)
def ping_and_tcp(lab):
    """IPv4 and IPv6 ping, TCP with GSO and with plain 1500-byte frames, UDP; no bad checksum
    anywhere."""
    switch = lab.switch()
    a, b = two_hosts(lab, switch)
    a.ping("10.1.0.2", 10)
    b.ping("10.1.0.1", 10)
    a.ping("fd01::2", 10)
    b.ping("fd01::1", 10)
    a.ping("10.1.0.2", 3, size=1472)
    with_gso = bulk(a, b, "10.1.0.2")
    bulk(b, a, "fd01::1")
    check(with_gso["end"]["sum_received"]["bytes"] > 1_000_000, "TCP with GSO moved almost nothing")
    for host in (a, b):
        host.run("ethtool -K eth0 tso off gso off gro off")
    plain = bulk(a, b, "10.1.0.2")
    check(
        plain["end"]["sum_received"]["bytes"] > 1_000_000,
        "TCP with 1500-byte frames moved almost nothing",
    )
    udp = bulk(a, b, "10.1.0.2", "-u", "-b", "50M", "-l", "1400")
    check(
        udp["end"]["sum"]["packets"] > 100 and udp["end"]["sum"]["lost_percent"] < 50,
        "UDP at 50 Mbit/s lost",
        udp["end"]["sum"]["lost_percent"],
        "%",
    )
    for host in (a, b):
        equal(host.checksum_errors(), {}, f"bad checksums counted in {host.name}")
    lab.note(
        f"TCP {gigabits(with_gso):.2f} Gbit/s with GSO, {gigabits(plain):.2f} with 1500-byte frames"
    )


@test(timeout=90)
def checksums_left_to_the_device(lab):
    """Sender offloads on, receiver offloads off: every packet must have a checksum that is right on
    the wire."""
    switch = lab.switch()
    a, b = two_hosts(lab, switch)
    # Nothing may vouch for a checksum: the receiver recomputes each.
    b.run("ethtool -K eth0 rx off gro off", ok=False)
    report = bulk(a, b, "10.1.0.2", "-M", "1000")
    check(report["end"]["sum_received"]["bytes"] > 1_000_000, "TCP moved almost nothing")
    bulk(a, b, "fd01::2", "-u", "-b", "10M", "-l", "1200", seconds=1)
    bulk(a, b, "10.1.0.2", "-u", "-b", "10M", "-l", "1200", seconds=1)
    equal(b.checksum_errors(), {}, "bad checksums counted by the receiver")


@test(timeout=60)
def three_hosts_learn(lab):
    """NORMAL floods the unknown, learns, ages nothing too early, and a moved address is found at
    its new port."""
    switch = lab.switch()
    switch.bridge()
    hosts = [lab.host(f"h{n}", switch, quiet=True) for n in (1, 2, 3)]
    raw = [host.raw() for host in hosts]
    address = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"]

    def frame(source, destination, mark):
        return ethernet(
            address[destination], address[source], 0x88B5, struct.pack("!I", mark) + bytes(60)
        )

    def arrived(mark, seconds=0.5):
        return [
            bool(
                port.receive(seconds, wanted=lambda f: f[14:18] == struct.pack("!I", mark), until=1)
            )
            for port in raw
        ]

    def arrives(mark, wanted, what):
        """Where a frame comes out: time for those that are to get it, and a moment after them for
        the others."""

        def gets(at):
            return bool(
                raw[at].receive(
                    5 if wanted[at] else 0.3,
                    wanted=lambda f: f[14:18] == struct.pack("!I", mark),
                    until=1,
                )
            )

        got = {at: gets(at) for at in sorted(range(3), key=lambda at: not wanted[at])}
        equal([got[at] for at in range(3)], wanted, what)

    raw[0].send(frame(0, 1, 1))
    arrives(1, [False, True, True], "an unknown destination is flooded, not sent back")
    raw[1].send(frame(1, 0, 2))
    arrives(2, [True, False, False], "a learned destination gets its frames alone")
    raw[2].send(frame(1, 0, 3))
    arrives(3, [True, False, False], "the same from the address's new port")
    raw[0].send(frame(0, 1, 4))
    arrives(4, [False, False, True], "an address that moved is reached at its new port")
    table = switch.appctl("fdb/show", "br0")
    for number, host in ((0, hosts[0]), (1, hosts[2])):
        check(
            any(
                line.split()[0] == str(host.port) and line.split()[2] == address[number]
                for line in table.splitlines()[1:]
            ),
            f"fdb/show lacks {address[number]} on port {host.port}:\n{table}",
        )
    switch.appctl("fdb/flush", "br0")

    def flooded():
        flooded.mark += 1
        raw[0].send(frame(0, 1, flooded.mark))
        return arrived(flooded.mark, 0.1) == [False, True, True]

    flooded.mark = 5
    wait_for("frames are flooded again after fdb/flush", flooded)


@test(timeout=60)
def vlan_access_and_trunk(lab):
    """Access ports, trunks, native-tagged and native-untagged ports, with tagged frames from raw
    sockets."""
    switch = lab.switch()
    switch.bridge()
    kinds = {
        "a10": ["tag=10"],
        "b10": ["tag=10"],
        "c20": ["tag=20"],
        "all": [],
        "t10": ["trunks=10"],
        "nt": ["vlan_mode=native-tagged", "tag=10"],
        "nu": ["vlan_mode=native-untagged", "tag=10", "trunks=10,20"],
    }
    ports = {
        name: lab.host(name, switch, quiet=True, port_settings=settings).raw()
        for name, settings in kinds.items()
    }
    mark = 0

    def comes_out(wanted, what, source, vlan=None, priority=0):
        """Sends a broadcast frame and compares where it comes out and how: None for untagged, else
        (VLAN, priority)."""
        nonlocal mark
        mark += 1
        number = struct.pack("!I", mark)
        vlans = [] if vlan is None else [(0x8100, priority << 13 | vlan)]
        ports[source].send(
            ethernet(
                "ff:ff:ff:ff:ff:ff", f"02:00:00:00:01:{mark:02x}", 0x88B5, number + bytes(60), vlans
            )
        )
        seen = {}
        # Those that are to get it first, in the time that they need; then none comes late at the
        # others.
        for name in sorted(ports, key=lambda name: name not in wanted):
            frames = (
                ports[name].receive(5, wanted=lambda f: number in f[14:22], until=1)
                if name in wanted
                else []
            )
            for frame in frames + ports[name].receive(
                0.12, wanted=lambda f: number in f[14:22], until=2
            ):
                check(name not in seen, f"{name} got the frame twice")
                if frame[12:14] == b"\x81\x00":
                    control = struct.unpack("!H", frame[14:16])[0]
                    seen[name] = (control & 0xFFF, control >> 13)
                else:
                    seen[name] = None
        equal(seen, wanted, what)

    comes_out(
        {"b10": None, "all": (10, 0), "t10": (10, 0), "nt": (10, 0), "nu": None},
        "from an access port of VLAN 10",
        "a10",
    )
    comes_out(
        {"all": (20, 0), "nt": (20, 0), "nu": (20, 0)}, "from an access port of VLAN 20", "c20"
    )
    comes_out(
        {"a10": None, "b10": None, "t10": (10, 5), "nt": (10, 5), "nu": None},
        "VLAN 10 with priority 5 from a trunk",
        "all",
        10,
        priority=5,
    )
    comes_out({"nt": (30, 0)}, "VLAN 30 from a trunk", "all", 30)
    comes_out({}, "a VLAN that the trunk does not carry", "t10", 20)
    comes_out({}, "a tagged frame on an access port", "a10", 10)
    comes_out(
        {"a10": None, "b10": None, "all": (10, 0), "t10": (10, 0), "nu": None},
        "untagged from a native-tagged port",
        "nt",
    )
    comes_out(
        {"a10": None, "b10": None, "all": (10, 0), "t10": (10, 0), "nt": (10, 0)},
        "untagged from a native-untagged port",
        "nu",
    )
    comes_out(
        {"c20": None, "all": (20, 0), "nt": (20, 0)},
        "VLAN 20 from a native-untagged port",
        "nu",
        20,
    )


@test(timeout=60)
def vlan_carries_tcp(lab):
    """TCP between access ports through a trunk between two bridges: tags come and go, offloads stay
    on."""
    switch = lab.switch()
    switch.bridge("br0")
    switch.bridge("br1")
    switch.vsctl(
        "add-port",
        "br0",
        "p0",
        "--",
        "set",
        "Interface",
        "p0",
        "type=patch",
        "options:peer=p1",
        "--",
        "add-port",
        "br1",
        "p1",
        "--",
        "set",
        "Interface",
        "p1",
        "type=patch",
        "options:peer=p0",
    )
    a = lab.host("h1", switch, ip="10.1.0.1/24", port_settings=["tag=10"])
    b = lab.host("h2", switch, ip="10.1.0.2/24", bridge="br1", port_settings=["tag=10"])
    c = lab.host("h3", switch, ip="10.1.0.3/24", bridge="br1", port_settings=["tag=20"])
    a.ping("10.1.0.2", 5)
    equal(a.ping("10.1.0.3", 1, ok=False), 0, "pings answered from another VLAN")
    check(
        bulk(a, b, "10.1.0.2", seconds=1)["end"]["sum_received"]["bytes"] > 1_000_000,
        "TCP moved almost nothing",
    )
    for host in (a, b, c):
        equal(host.checksum_errors(), {}, f"bad checksums counted in {host.name}")


@test(timeout=90)
def ports_that_go_and_come_again(lab):
    """Many ports removed at once, and added again by their names while their sockets are still
    being closed; packets pass, and interfaces can be deleted."""
    switch = lab.switch()
    a, b = two_hosts(lab, switch)
    others = [f"x{number}" for number in range(30)]
    for name in others:
        switch.namespace.run(f"ip link add {name} type veth peer name {name}-")
        switch.namespace.run(f"ip link set {name} up")
    hosts = ["h1-p", "h2-p"]

    def change(command, ports):
        begin = time.monotonic()
        switch.vsctl(*[word for port in ports for word in ("--", command, "br0", port)])
        return time.monotonic() - begin

    added = change("add-port", others)
    removed = []
    for _ in range(3):
        removed.append(change("del-port", hosts + others))
        # The bridge answers: control is not somewhere in the kernel.
        switch.appctl("fdb/show", "br0")
        change("add-port", hosts + others)
        a.ping("10.1.0.2", 5)
    change("del-port", hosts + others)
    for name in others:
        switch.namespace.run(f"ip link del {name}")
    change("add-port", hosts)
    b.ping("10.1.0.1", 5)
    lab.note(
        f"{len(others)} ports added in {added * 1000:.0f} ms, {len(others) + 2} removed in "
        f"{min(removed) * 1000:.0f} ms"
    )
