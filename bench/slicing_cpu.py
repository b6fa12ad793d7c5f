#!/usr/bin/python3
"""Processor time of shaping: 1 Gbit/s of 1514-byte frames in 200 queues under 500 rules, through
Sluice and through the kernel's bridge with HTB, in turns in one run.

    bench/slicing_cpu.py [--rounds 3] [--seconds 6] [--rate MBIT] [--queues N] [--bound US]
                         [--idle-time] [--peer NAME]... [--daemon COMMAND] [--json FILE]

    wire          both hosts on one veth pair: what the frames cost without a switch
    htb           the kernel's bridge and HTB with 200 classes, one filter that takes the class from
                  the destination port by a line of BPF
    htb-u32       the same with 500 filters of u32, in a hash table by the destination port
    sluice        kernel interfaces, linux-htb with 200 queues, 500 OpenFlow rules
    sluice-vhost  (only where asked for) the same by vhost-user ports: testpmd takes the hosts'
                  frames to its devices and back

Every queue is offered 5% more than its rate. The sender (which sleeps, and does not spin) and the
receiver are on core 0, who switches on core 1 (the kernel's bridge by receive packet steering). For
everybody the same is counted: the time that both cores were not free, system calls, interrupts and
changes of task included, and "more than the wire" is what that is above the same without a switch.
A task of the lowest priority on each core looks at the clock all the time and adds up when it could
not run. The kernel's own count of busy time would not do: it looks every 4 ms, and not at all at a
core that is idle but for interrupts, in which HTB works. --idle-time takes the kernel's count of
idle time instead, which is exact, but everybody's.

Threads' own times are the kernel's to the nanosecond, with what interrupts did meanwhile. By
vhost-user ports the daemon's own time is all there is to compare: testpmd polls.

What runs beside counts too, unless all of this goes before it (chrt -f 1 bench/slicing_cpu.py ...;
DPDK's library does not start under that, so not for sluice-vhost).

Needs root, gcc, iproute2, ethtool and two cores with nothing else to do.
"""

import contextlib
import json
import os
import sys
import time

from contender import (
    OTHER_CORE,
    WORKER_CORE,
    Results,
    machine,
    parser,
    run,
    stderr,
    switchd,
    table,
)
from slicing_peers import BASE, Linux, Sluice, alone, compiled, harness, peer, queue, result, stream
from testpmd import Testpmd

CORES = (OTHER_CORE, WORKER_CORE)

HUGE_PAGES = 300
FRAME = 1514
RULES = 500
PEERS = ["wire", "htb", "htb-u32", "sluice"]
DAEMONS = ["sluice", "sluice-vhost"]


class Wire:
    """No switch."""

    def __init__(self):
        self.first = None

    def attach(self, host, side, address):
        """The second host gets a veth pair to the first."""
        if side == 1:
            self.first = host
            host.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "far"])
        else:
            self.first.run(["ip", "link", "set", "far", "netns", host.name])
            host.run(["ip", "link", "set", "far", "name", "eth0"])
        host.run(["ip", "addr", "add", f"{address}/24", "dev", "eth0"])
        host.run(["ip", "link", "set", "eth0", "up"])

    def rules(self, _count):
        """None."""

    def shape(self, _rate, _queues):
        """Does not."""

    def close(self):
        """Nothing of its own."""


class HashedHtb(Linux):
    """HTB with a filter for each destination port."""

    def shape(self, port_rate, queues):
        super().shape(port_rate, queues)
        device = self.egress
        lines = [
            f"filter del dev {device} parent 1:",
            f"filter add dev {device} parent 1: prio 1 handle 2: protocol ip u32 divisor 256",
            (
                f"filter add dev {device} parent 1: protocol ip prio 1 u32 ht 800:: match ip "
                "protocol 17 0xff hashkey mask 0x000000ff at 20 link 2:"
            ),
        ]
        lines += [
            f"filter add dev {device} parent 1: protocol ip prio 1 u32 ht "
            f"2:{(BASE + at) % 256:x}: match ip dport {BASE + at} 0xffff flowid "
            f"1:{at % len(queues) + 1:x}"
            for at in range(RULES)
        ]
        self.namespace.run("tc -batch -", stdin="\n".join(lines) + "\n", seconds=60)


class FewRules(Sluice):
    """Sluice with so many rules in all."""

    def rules(self, count):
        lines = ["priority=1,in_port=1,actions=output:2", "priority=1,in_port=2,actions=output:1"]
        lines += [
            f"priority=2,in_port=1,udp,tp_dst={BASE + at},actions=set_queue:{at % count},output:2"
            for at in range(RULES - len(lines))
        ]
        self.ofctl("add-flows", "br0", "-", stdin="\n".join(lines) + "\n", seconds=60)


class ByVhost(FewRules):
    """The same by vhost-user ports: testpmd, whose devices they are, passes the hosts' frames
    on."""

    def __init__(self, lab, number, command):
        super().__init__(
            lab,
            number,
            command,
            [
                "other_config:dpdk-init=true",
                "other_config:dpdk-socket-mem=256",
                f'other_config:dpdk-extra="--file-prefix=cpu{number} --no-pci"',
            ],
        )
        self.egress, self.paths, self.devices, self.tester = "v2", [], [], None

    def attach(self, host, side, address, *_settings):
        self.pair(host, host.port, "eth0", ip=f"{address}/24")
        self.paths.append(self.vhost(f"v{side}", side))
        self.devices.append(f"net_af_packet{side},iface={host.port},qdisc_bypass=1")
        if side == 2:
            # testpmd polls: whatever else wants its core goes before it.
            policy = "-o" if os.sched_getscheduler(0) == os.SCHED_FIFO else "-i"
            self.tester = Testpmd(
                self.lab,
                self.paths,
                f"peer{self.number}",
                ["--nb-cores=1", "--portlist=0,2,1,3"],
                self.devices,
                cores=("--lcores", f"0@{OTHER_CORE},1@{OTHER_CORE}"),
                before=self.namespace.command(["chrt", policy, "0"]),
            )
            self.tester.wait_ready()
            self.tester.forward("io")

    def close(self):
        if self.tester:
            self.tester.stop()
            self.tester.quit()
        super().close()


def by_name(lab, number, name, command):
    """Who switches."""
    made = {
        "wire": Wire,
        "htb": lambda: Linux(lab, number),
        "htb-u32": lambda: HashedHtb(lab, number),
        "sluice": lambda: FewRules(lab, number, command),
        "sluice-vhost": lambda: ByVhost(lab, number, command),
    }
    return made[name]()


def used(process):
    """Seconds that a process's threads have used, to the nanosecond; what interrupts did meanwhile
    is theirs."""
    total = 0
    for thread in os.listdir(f"/proc/{process.pid}/task"):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{process.pid}/task/{thread}/schedstat", encoding="ascii") as file,
        ):
            total += int(file.read().split()[0])
    return total / 1e9


def idle():
    """Seconds that each of the two cores has been idle, by the kernel, which notes when idleness
    begins and ends."""
    with open("/proc/stat", encoding="ascii") as file:
        lines = {words[0]: words for words in map(str.split, file) if words}
    mine = [lines[f"cpu{core}"] for core in CORES]
    return [(int(words[4]) + int(words[5])) / os.sysconf("SC_CLK_TCK") for words in mine]


def turns(switch):
    """What the daemon's worker counts of its own: frames, batches of them, sleeps, naps."""
    figures = json.loads(switch.appctl("sluice/stats"))
    return {
        name: sum(worker[name] for worker in figures["workers"])
        for name in ("packets", "batches", "sleeps", "naps")
    }


def measure(lab, name, options, results):
    """One contender once."""
    each = options.rate * 1_000_000 / options.queues
    daemon, polled = name in DAEMONS, name == "sluice-vhost"
    with peer(lab, name, options, options.queues, by_name) as (switch, hosts):
        switch.shape(
            options.rate * 1_000_000,
            [
                queue(each, limit=20, **({"bound_us": options.bound} if options.bound else {}))
                for _ in range(options.queues)
            ],
        )
        receiver = hosts.receive(options.queues, options.seconds + 1, 0.5)
        sender = hosts.send(
            options.seconds + 2,
            stream(
                1.05 * options.rate * 1e6 / (FRAME * 8),
                FRAME,
                classes=options.queues,
                process="calm",
            ),
        )
        time.sleep(1)
        processes = {"sender": sender, "receiver": receiver} | (
            {"the daemon's threads": switch.process} if daemon else {}
        )
        spare = (
            []
            if polled or options.idle_time
            else [hosts.start(hosts.source, "idle", core, options.seconds) for core in CORES]
        )
        counts = turns(switch) if daemon else {}
        begin, idle_before, before = (
            time.monotonic(),
            idle(),
            {who: used(process) for who, process in processes.items()},
        )
        time.sleep(options.seconds)
        after, seconds = (
            {who: used(process) for who, process in processes.items()},
            time.monotonic() - begin,
        )
        cores = [1 - (now - then) / seconds for then, now in zip(idle_before, idle())]
        counts = (
            {what: (count - counts[what]) / seconds for what, count in turns(switch).items()}
            if daemon
            else {}
        )
        if spare:
            cores = [figure["lost"] / figure["seconds"] for figure in map(result, spare)]
        sent, got = result(sender), result(receiver)
    figures = {
        "delivered, Mbit/s": sum(octets for _, octets, *_ in got["classes"])
        * 8
        / got["seconds"]
        / 1e6
    }
    if not polled:
        figures |= {f"core {core}": busy for core, busy in zip(CORES, cores)} | {
            "both cores": sum(cores)
        }
    figures |= {who: (after[who] - before[who]) / seconds for who in processes}
    figures |= {"delay, p50, us": got["p50"], "delay, p99, us": got["p99"]}
    counted = "".join(f", {what}/s {count:.0f}" for what, count in counts.items())
    stderr(
        f"{name}: "
        + ", ".join(f"{what} {value:.3f}" for what, value in figures.items())
        + f"; not sent {sent['skipped']}, lost by the receiver {got['lost']}{counted}"
    )
    for what, value in figures.items():
        results.add(what, name, value)


def work(options):
    """All rounds."""

    def measured(lab):
        alone()
        options.program = compiled(lab.directory)
        results = Results(options.json)
        names = options.peer or PEERS
        for _ in range(options.rounds):
            for name in names:
                measure(lab, name, options, results)
        print(
            f"Seconds of processors in a second, {options.rate:g} Mbit/s of {FRAME}-byte frames "
            f"in {options.queues} queues; {machine()}"
        )
        table(
            ["", *names],
            [[what, *[results.spread(what, name) for name in names]] for what in results.rows],
        )
        switched = [name for name in names if name not in ("wire", "sluice-vhost")]
        if "wire" in names:
            wire = results.median("both cores", "wire")
            table(
                ["more than the wire", *switched],
                [["", *[f"{results.median('both cores', name) - wire:.3f}" for name in switched]]],
            )
        return 0

    return measured


def main():
    options = parser(__doc__, daemons=False)
    options.add_argument(
        "--daemon", help="called like ovs-vswitchd (default: target/release/sluiced)"
    )
    options.add_argument("--peer", action="append", choices=[*PEERS, "sluice-vhost"])
    options.add_argument(
        "--rate", type=float, default=1000, help="of the port, in Mbit/s (default %(default)s)"
    )
    options.add_argument("--queues", type=int, default=200)
    options.add_argument(
        "--idle-time",
        action="store_true",
        help="count by the kernel's idle time; needs a machine on which nothing else runs",
    )
    options.add_argument("--bound", type=int, help="of each queue, in microseconds (default: none)")
    options.set_defaults(seconds=6)
    options = options.parse_args()
    run(work(options), {"sluice": harness.switchd_command(options.daemon or switchd())}, HUGE_PAGES)


if __name__ == "__main__":
    sys.exit(main())
