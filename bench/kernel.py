#!/usr/bin/python3
"""Kernel interfaces: packets from veth to veth, and TCP from namespace to namespace.

    bench/kernel.py [--case packets|tcp|guest] [--rounds 3] [--seconds 3]
                    [--daemon LABEL=COMMAND]... [--json FILE]

Each daemon (and the Linux bridge) has two veth pairs whose other ends are in namespaces of their
own, with the kernel's defaults: offloads on.

    packets  64-byte UDP packets are sent at one end from core 0, by bench/live_frames.py, which
             makes more than any switch here takes; Mpps that arrive at the other end, and processor
             time (us) that the daemon used for each, the kernel's work on its threads included.
             "af_xdp" is a daemon with ports of type afxdp in place of ordinary ones ("-" where it
             has no such type)
    tcp      iperf3, one connection and then four, Gbit/s; and the share of a core that the daemon
             used. Large frames and unfinished checksums pass through where a switch can carry them
    guest    iperf3 between a QEMU guest (emulated, so it is what limits) on a vhost-user port and a
             namespace, both ways, Gbit/s, with the namespace's offloads (checksums, large frames)
             on and off; 0 where nothing comes through in 40 s; only where asked for, as it needs
             3.2 GiB that can become huge pages and the images that scripts/setup makes

Needs root and two cores with nothing else to do.
"""

import json
import os
import signal
import sys
import time

from contender import (
    HUGE_PAGES as DPDK_PAGES,
    OTHER_CORE,
    Contender,
    Results,
    contender,
    contenders,
    figure,
    harness,
    machine,
    parser,
    run,
    stderr,
    table,
)
from guest import Guest

BRIDGE = "Linux bridge"
HUGE_PAGES = 128
# Where packets go to: no host's own address, so that the kernel drops them early.
PEER = "02:00:00:00:00:09"
SENDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "live_frames.py")


class LinuxBridge:
    """The kernel's own bridge between two veth pairs."""

    def __init__(self, lab, number):
        self.namespace = lab.namespace(f"bridge{number}").quiet()
        self.namespace.run("ip link add br0 type bridge")
        self.namespace.run("ip link set br0 up")

    def link(self, host, name, device, ip):
        """A pair as harness.Switch.link makes it."""
        self.namespace.run(
            ["ip", "link", "add", name, "type", "veth", "peer", "name", device, "netns", host.name]
        )
        self.namespace.run(["ip", "link", "set", name, "master", "br0", "up"])
        host.run(["ip", "link", "set", device, "up"])
        host.run(["ip", "addr", "add", ip, "dev", device])

    def cpu_seconds(self):
        """The kernel's work is nobody's."""
        return None

    def towards(self, mac, _source, target):
        """Has the address behind the target's port."""
        self.namespace.run(["bridge", "fdb", "add", mac, "dev", target.port, "master", "static"])


class Daemon(Contender):
    """A daemon without DPDK devices."""

    def cpu_seconds(self):
        """Seconds that it has used of processors."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def towards(self, mac, source, target):
        """Has the address behind the target's port."""
        self.flows(f"in_port={source.port},dl_dst={mac},actions=output:{target.port}")


def hosts(lab, switch, number, *settings):
    """Two namespaces with a link to the switch each."""
    result = []
    for side in (1, 2):
        host = lab.namespace(f"h{number}-{side}").quiet()
        host.port = f"p{number}-{side}"
        switch.link(host, host.port, "eth0", *settings, ip=f"10.9.0.{side}/24")
        result.append(host)
    return result


def packets(results, label, switch, source, target, seconds, name="packets"):
    """Mpps that arrive at the target while the source sends, and what each costs the daemon."""

    def arrived():
        return json.loads(target.run("ip -j -s link show eth0").stdout)[0]["stats64"]["rx"][
            "packets"
        ]

    switch.towards(PEER, source, target)
    # Redirected frames are taken by interfaces that have a queue for GRO; single UDP packets stay
    # single.
    switch.namespace.run(["ethtool", "-K", source.port, "gro", "on"])
    already = arrived()
    # Packets that are not for the host end in the first step of the kernel's way up.
    process = source.start(
        ["taskset", "-c", str(OTHER_CORE), sys.executable, SENDER, "eth0", PEER], "sender.out"
    )
    harness.wait_for("packets arrive", lambda: arrived() > already + 1000, 30)
    time.sleep(0.5)
    used, before, begin = switch.cpu_seconds(), arrived(), time.monotonic()
    time.sleep(seconds)
    after, end = arrived(), time.monotonic()
    results.add(f"{name}, Mpps", label, (after - before) / (end - begin) / 1e6)
    if used is not None:
        results.add(
            f"{name}, us of the daemon's threads for each",
            label,
            (switch.cpu_seconds() - used) / (after - before) * 1e6,
        )
    process.send_signal(signal.SIGINT)
    process.wait(20)


def tcp(results, label, switch, source, target, seconds):
    """iperf3 with one connection and with four."""
    server = target.start(["iperf3", "-s"], "iperf3.out")
    source.reaches("10.9.0.2")
    for connections in (1, 4):
        used = switch.cpu_seconds()
        report = source.iperf("10.9.0.2", "-P", str(connections), seconds=max(1, int(seconds)))
        name = f"tcp, {connections} connection{'s' if connections > 1 else ''}, Gbit/s"
        results.add(name, label, report["end"]["sum_received"]["bits_per_second"] / 1e9)
        if used is not None:
            results.add(
                f"{name.rsplit(',', 1)[0]}, cores used",
                label,
                (switch.cpu_seconds() - used) / report["end"]["sum_received"]["seconds"],
            )
    server.terminate()
    server.wait(10)


def guest(lab, results, label, command, seconds):
    """iperf3 from a namespace to a guest and back."""
    with contender(lab, label, command, kind=Daemon, bridge=()) as switch:
        path = f"{switch.directory}/guest.sock"
        peer = Guest(lab, f"guest{len(lab.programs)}", path, ip="10.9.0.1/24")
        switch.port("vm1", "type=dpdkvhostuserclient", f"options:vhost-server-path={path}")
        host = lab.namespace(f"g{len(lab.programs)}").quiet()
        switch.link(host, f"p{len(lab.programs)}", "eth0", ip="10.9.0.2/24")
        peer.wait_ready()
        host.reaches("10.9.0.1")
        for offloads in ("on", "off"):
            host.run(["ethtool", "-K", "eth0", "tx", offloads, "tso", offloads, "gso", offloads])
            for name, direction in (("namespace to guest", []), ("guest to namespace", ["-R"])):
                try:
                    report = host.iperf("10.9.0.1", *direction, seconds=max(1, int(seconds)))
                    rate = report["end"]["sum_received"]["bits_per_second"] / 1e9
                except harness.Failure as failure:
                    stderr(
                        f"{label}: {name} with the namespace's offloads {offloads}: "
                        f"{str(failure).splitlines()[0]}"
                    )
                    rate = 0.0
                results.add(f"{name}, offloads {offloads}, Gbit/s", label, rate)
        peer.process.kill()
        peer.process.wait()


def one(lab, results, label, switch, options):
    """One contender with ordinary ports."""
    source, target = hosts(lab, switch, len(lab.programs))
    if options.case in (None, "tcp"):
        tcp(results, label, switch, source, target, options.seconds)
    if options.case in (None, "packets"):
        packets(results, label, switch, source, target, options.seconds)


def af_xdp(lab, results, label, switch, options):
    """One daemon with AF_XDP ports, where it has them."""
    try:
        source, target = hosts(lab, switch, len(lab.programs), "type=afxdp")
    except harness.Failure as failure:
        stderr(f"{label} has no AF_XDP ports: {str(failure).splitlines()[-1][:150]}")
        return
    packets(results, label, switch, source, target, options.seconds, "packets by af_xdp")


def report(results, labels):
    """The table."""
    rows = []
    for name in results.rows:
        middle = [results.median(name, label) for label in labels]
        rows.append(
            [
                name,
                *[results.spread(name, label) for label in labels],
                *[
                    figure(middle[0] / other, 2) if middle[0] and other else "-"
                    for other in middle[1:]
                ],
            ]
        )
    table(["", *labels, *[f"x {label}" for label in labels[1:]]], rows)


def work(options, daemons):
    """All rounds."""

    def measured(lab):
        results = Results(options.json)
        for number in range(options.rounds):
            if options.case != "guest":
                one(lab, results, BRIDGE, LinuxBridge(lab, number), options)
            for label, command in daemons.items():
                if options.case == "guest":
                    guest(lab, results, label, command, options.seconds)
                    continue
                with contender(lab, label, command, kind=Daemon, dpdk=False, bridge=()) as switch:
                    one(lab, results, label, switch, options)
                if options.case in (None, "packets"):
                    with contender(
                        lab, label, command, kind=Daemon, dpdk=False, bridge=()
                    ) as switch:
                        af_xdp(lab, results, label, switch, options)
            stderr(f"round {number + 1} of {options.rounds} is done")
        print(machine())
        report(results, [*daemons, BRIDGE])

    return measured


def main():
    options = parser(__doc__)
    options.add_argument("--case", choices=["packets", "tcp", "guest"])
    options = options.parse_args()
    daemons = contenders(options)
    run(
        work(options, daemons), daemons, DPDK_PAGES + 200 if options.case == "guest" else HUGE_PAGES
    )


if __name__ == "__main__":
    sys.exit(main())
