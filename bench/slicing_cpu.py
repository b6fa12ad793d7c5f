#!/usr/bin/python3
"""Processor time of shaping: 1 Gbit/s of 1514-byte frames in 200 queues under 500 rules, through Sluice and through the kernel's bridge with HTB, in turns in one run.

    bench/slicing_cpu.py [--rounds 3] [--seconds 6] [--rate MBIT] [--queues N] [--peer NAME]... [--daemon COMMAND] [--json FILE]

    wire      both hosts on one veth pair: what the frames cost without a switch
    htb       HTB with 200 classes, one filter that takes the class from the destination port by a line of BPF
    htb-u32   the same with 500 filters of u32, in a hash table by the destination port
    sluice    kernel interfaces, linux-htb with 200 queues, 500 OpenFlow rules

Every queue is offered 5% more than its rate. The sender (which sleeps, and does not spin) and the receiver are on core 0, who switches on core 1. For everybody the same is counted: the
time that both cores were busy by /proc/stat, interrupts and the kernel's part included; "switch" is that without what sender and receiver used themselves, and "more than the wire" what it
is above the same without a switch. The kernel's clock for this is its tick of 4 ms, and work of interrupts is put down to whom it met, so nothing else may run: where the sum of both
cores is near 2, something did.

Needs root, gcc, iproute2, ethtool and two cores with nothing else to do.
"""
import os
import sys
import time

from contender import Results, machine, parser, run, stderr, switchd, table
from slicing_peers import BASE, Linux, Sluice, alone, compiled, harness, peer, queue, result, stream

HUGE_PAGES = 300
FRAME = 1514
RULES = 500
PEERS = ["wire", "htb", "htb-u32", "sluice"]
TICK = os.sysconf("SC_CLK_TCK")


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
        lines = [f"filter del dev {device} parent 1:", f"filter add dev {device} parent 1: prio 1 handle 2: protocol ip u32 divisor 256",
                 f"filter add dev {device} parent 1: protocol ip prio 1 u32 ht 800:: match ip protocol 17 0xff hashkey mask 0x000000ff at 20 link 2:"]
        lines += [f"filter add dev {device} parent 1: protocol ip prio 1 u32 ht 2:{(BASE + at) % 256:x}: match ip dport {BASE + at} 0xffff flowid 1:{at % len(queues) + 1:x}" for at in range(RULES)]
        self.namespace.run("tc -batch -", stdin="\n".join(lines) + "\n", seconds=60)


class FewRules(Sluice):
    """Sluice with so many rules in all."""

    def rules(self, count):
        lines = ["priority=1,in_port=1,actions=output:2", "priority=1,in_port=2,actions=output:1"]
        lines += [f"priority=2,in_port=1,udp,tp_dst={BASE + at},actions=set_queue:{at % count},output:2" for at in range(RULES - len(lines))]
        self.ofctl("add-flows", "br0", "-", stdin="\n".join(lines) + "\n", seconds=60)


def by_name(lab, number, name, command):
    """Who switches."""
    made = {"wire": Wire, "htb": lambda: Linux(lab, number), "htb-u32": lambda: HashedHtb(lab, number), "sluice": lambda: FewRules(lab, number, command)}
    return made[name]()


def busy():
    """Seconds that processors were busy, by the kernel's tick, each of them; what the hypervisor took is not theirs."""
    with open("/proc/stat", encoding="ascii") as file:
        lines = [line.split() for line in file if line.startswith("cpu") and line[3].isdigit()]
    return [sum(int(words[at]) for at in (1, 2, 3, 6, 7)) / TICK for words in lines]


def used(process):
    """Seconds that a process has used."""
    with open(f"/proc/{process.pid}/stat", encoding="ascii", errors="replace") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / TICK


def measure(lab, name, options, results):
    """One contender once."""
    each = options.rate * 1_000_000 / options.queues
    with peer(lab, name, options, options.queues, by_name) as (switch, hosts):
        switch.shape(options.rate * 1_000_000, [queue(each, limit=20) for _ in range(options.queues)])
        receiver = hosts.receive(options.queues, options.seconds + 1, 0.5)
        sender = hosts.send(options.seconds + 2, stream(1.05 * options.rate * 1e6 / (FRAME * 8), FRAME, classes=options.queues, process="calm"))
        time.sleep(1)
        processes = [sender, receiver, *([switch.process] if name == "sluice" else [])]
        begin, busy_before, used_before = time.monotonic(), busy(), [used(process) for process in processes]
        time.sleep(options.seconds)
        busy_after, used_after, seconds = busy(), [used(process) for process in processes], time.monotonic() - begin
        sent, got = result(sender), result(receiver)
    cores = [(after - before) / seconds for before, after in zip(busy_before, busy_after)]
    own = [(after - before) / seconds for before, after in zip(used_before, used_after)]
    hosts_own, daemon_own = sum(own[:2]), sum(own[2:])
    figures = {"delivered, Mbit/s": sum(octets for _, octets, *_ in got["classes"]) * 8 / got["seconds"] / 1e6, "core 0 busy": cores[0], "core 1 busy": cores[1],
               "sender and receiver": hosts_own, "the daemon's own": daemon_own, "switch": sum(cores) - hosts_own}
    stderr(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in figures.items()) + f"; not sent {sent['skipped']}, lost by the receiver {got['lost']}")
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
        print(f"Seconds of processors in a second, {options.rate:g} Mbit/s of {FRAME}-byte frames in {options.queues} queues; {machine()}")
        table(["", *names], [[what, *[results.spread(what, name) for name in names]] for what in results.rows])
        if "wire" in names:
            wire = results.median("switch", "wire")
            table(["more than the wire", *names], [["", *[f"{results.median('switch', name) - wire:.3f}" for name in names]]])
        return 0
    return measured


def main():
    options = parser(__doc__, daemons=False)
    options.add_argument("--daemon", help="called like ovs-vswitchd (default: target/release/sluiced)")
    options.add_argument("--peer", action="append", choices=PEERS)
    options.add_argument("--rate", type=float, default=1000, help="of the port, in Mbit/s (default %(default)s)")
    options.add_argument("--queues", type=int, default=200)
    options.set_defaults(seconds=6)
    options = options.parse_args()
    run(work(options), {"sluice": harness.switchd_command(options.daemon or switchd())}, HUGE_PAGES)


if __name__ == "__main__":
    sys.exit(main())
