#!/usr/bin/python3
"""What many quiet kernel ports cost: veth pairs of which one end is a port of the switch, without
traffic but the test's own.

    bench/ports.py [--ports 500] [--single 100] [--rounds 3] [--daemon LABEL=COMMAND]...
                   [--json FILE]

    add, one transaction      from the start of an ovs-vsctl with all add-port until the daemon has
                              done it, s
    longest echo meanwhile    an OpenFlow echo request every 5 ms on a connection of its own, until
                              it is answered, ms
    add, one by one           the same for an ovs-vsctl each, of the last --single ports, ms for
                              each
    memory for each port      resident memory of the daemon, and receive rings that it has mapped
                              from the kernel, less those without ports, KB
    descriptors for each port that the daemon has open
    flood                     one broadcast frame, from its arrival at the switch to the last of the
                              other ends, ms
    ping, 2 ports and all     ICMP echo between two namespaces after a second of silence, us, median
    CPU while quiet           percent of a processor
    from SIGTERM to the end   s

The daemon's worker may run on every core. Needs root and cores with nothing else to do; no huge
pages.
"""

import os
import re
import select
import socket
import statistics
import struct
import sys
import threading
import time

from contender import (
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
from openflow_client import ECHO_REPLY, ECHO_REQUEST, Connection, header

ETHERTYPE = 0x88B5
QUIET_SECONDS = 3
PINGS = 10
SO_TIMESTAMPNS = 35


class Daemon(Contender):
    """A daemon without DPDK devices."""

    def process_file(self, name):
        """What /proc says of the daemon."""
        with open(f"/proc/{self.process.pid}/{name}", encoding="ascii", errors="replace") as file:
            return file.read()

    def cpu_seconds(self):
        """Seconds that it has used of processors."""
        fields = self.process_file("stat").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_kb(self):
        """Resident memory but for what is shared with the kernel's sockets, and the latter, in
        KB."""
        resident = rings = 0
        in_ring = False
        for line in self.process_file("smaps").splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                in_ring = "socket:" in line
            found = re.match(r"(Size|Rss): +(\d+) kB", line)
            if found and in_ring:
                rings += int(found[2]) if found[1] == "Size" else 0
            elif found and found[1] == "Rss":
                resident += int(found[2])
        return resident, rings

    def descriptors(self):
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class Echoes:
    """Asks a bridge for echoes from a thread of its own and notes the longest wait."""

    def __init__(self, path):
        self.connection, self.worst, self.stopped = Connection(path), 0.0, threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        """Until stopped, or until an answer is a minute late."""
        number = 1 << 20
        while not self.stopped.wait(0.005):
            number += 1
            begin = time.monotonic()
            self.connection.socket.sendall(header(ECHO_REQUEST, 0, number))
            self.connection.wait_for(ECHO_REPLY, number)
            self.worst = max(self.worst, time.monotonic() - begin)

    def stop(self):
        """The longest wait in ms."""
        self.stopped.set()
        self.thread.join(70)
        self.connection.close()
        return self.worst * 1e3


def pairs(switch, count, hosts, others):
    """Veth pairs named p1 and so on: two of them towards the hosts, the others towards one
    namespace."""
    script = []
    for number in range(1, count + 1):
        peer = hosts[number - 1] if number <= len(hosts) else others
        script.append(f"link add p{number} type veth peer name e{number} netns {peer.name}")
        script.append(f"link set p{number} up")
    switch.namespace.run(["ip", "-batch", "-"], stdin="\n".join(script) + "\n", seconds=300)
    for index, host in enumerate(hosts, 1):
        host.run(
            ["ip", "-batch", "-"],
            stdin=f"link set e{index} up\naddr add 10.8.0.{index}/24 dev e{index}\n",
        )
    ups = [f"link set e{number} up" for number in range(len(hosts) + 1, count + 1)]
    others.run(["ip", "-batch", "-"], stdin="\n".join(ups) + "\n", seconds=300)


def ping(source, target):
    """Median round trip in us of single pings, a second of silence before each."""
    times = []
    for _ in range(PINGS):
        time.sleep(1)
        done = source.run(["ping", "-n", "-c", "1", "-W", "5", target], ok=False, seconds=30)
        found = re.search(r"time=([\d.]+) ms", done.stdout)
        if found:
            times.append(float(found[1]) * 1e3)
    return statistics.median(times) if times else None


def flood(source, others, count):
    """ms from a frame's sending to its arrival at the last of `count` ends; None where not all get
    it just once."""
    with harness.inside(others):
        sink = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        sink.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        sink.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sender = source.raw("e1")
    frame = harness.ethernet("ff:ff:ff:ff:ff:ff", "02:00:00:00:00:77", ETHERTYPE, bytes(46))
    times = []
    for _ in range(PINGS):
        time.sleep(0.3)
        begin = time.time()
        sender.send(frame)
        came, devices = [], []
        while select.select([sink], [], [], 0.5)[0]:
            _, ancillary, _, address = sink.recvmsg(2048, 256)
            devices.append(address[0])
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    seconds, nanoseconds = struct.unpack("qq", data[:16])
                    came.append(seconds + nanoseconds / 1e9)
        if len(devices) != count or len(set(devices)) != count:
            stderr(
                f"a flood reached {len(set(devices))} of {count} ends with {len(devices)} frames"
            )
            return None
        times.append((max(came) - begin) * 1e3)
    sink.close()
    return statistics.median(times)


def one(lab, results, label, switch, options):
    """One contender."""
    number = len(lab.programs)
    hosts = [lab.namespace(f"h{number}-{side}").quiet() for side in (1, 2)]
    others = lab.namespace(f"o{number}").quiet()
    pairs(switch, options.ports, hosts, others)
    switch.vsctl("add-port", "br0", "p1", "--", "add-port", "br0", "p2")
    hosts[0].reaches("10.8.0.2")
    results.add("ping, 2 ports, us", label, ping(hosts[0], "10.8.0.2"))
    before, open_before = switch.memory_kb(), switch.descriptors()

    def add(first, last):
        words = []
        for index in range(first, last + 1):
            words += ["--", "add-port", "br0", f"p{index}"]
        begin = time.monotonic()
        switch.vsctl(*words[1:], seconds=120)
        return time.monotonic() - begin

    many = options.ports - options.single
    echoes = Echoes(switch.management)
    results.add(f"add {many - 2} in one transaction, s", label, add(3, many))
    results.add("longest echo meanwhile, ms", label, echoes.stop())
    spent = [add(index, index) for index in range(many + 1, options.ports + 1)]
    if spent:
        results.add(
            f"add {options.single} one by one, ms each", label, statistics.mean(spent) * 1e3
        )
    time.sleep(2)
    after = switch.memory_kb()
    ports = options.ports - 2
    for name, old, new in zip(
        ("memory for each port, KB", "receive rings for each port, KB"), before, after
    ):
        results.add(name, label, (new - old) / ports)
    results.add("descriptors for each port", label, (switch.descriptors() - open_before) / ports)
    results.add(f"flood to {options.ports - 1}, ms", label, flood(hosts[0], others, ports))
    results.add(f"ping, {options.ports} ports, us", label, ping(hosts[0], "10.8.0.2"))
    time.sleep(1)
    used = switch.cpu_seconds()
    time.sleep(QUIET_SECONDS)
    results.add("CPU while quiet, %", label, (switch.cpu_seconds() - used) / QUIET_SECONDS * 100)
    begin = time.monotonic()
    switch.process.terminate()
    switch.process.wait(120)
    results.add("from SIGTERM to the end, s", label, time.monotonic() - begin)
    # Pairs go with their namespaces, at the end of the benchmark; those of many rounds would be in
    # each other's way.
    switch.process = None
    switch.namespace.run(
        ["ip", "-batch", "-"],
        stdin="".join(f"link del p{index}\n" for index in range(1, options.ports + 1)),
        seconds=300,
    )


def report(results, labels):
    """The table."""
    rows = []
    for name in results.rows:
        middle = [results.median(name, label) for label in labels]
        ratios = [
            figure(middle[0] / other, 2) if middle[0] and other else "-" for other in middle[1:]
        ]
        rows.append([name, *[results.spread(name, label) for label in labels], *ratios])
    table(["", *labels, *[f"x {label}" for label in labels[1:]]], rows)


def work(options, daemons):
    """All rounds."""

    def measured(lab):
        results = Results(options.json)
        for number in range(options.rounds):
            for label, command in daemons.items():
                with contender(lab, label, command, kind=Daemon, dpdk=False, bridge=()) as switch:
                    one(lab, results, label, switch, options)
            stderr(f"round {number + 1} of {options.rounds} is done")
        print(machine())
        report(results, list(daemons))

    return measured


def main():
    options = parser(__doc__)
    options.add_argument("--ports", type=int, default=500, help="how many (default %(default)s)")
    options.add_argument(
        "--single",
        type=int,
        default=100,
        help="of these, by a transaction each (default %(default)s)",
    )
    options = options.parse_args()
    if options.single < 0 or options.ports < options.single + 4:
        sys.exit("--ports must be more than --single and 3 together")
    daemons = contenders(options)
    run(work(options, daemons), daemons, 0)


if __name__ == "__main__":
    sys.exit(main())
