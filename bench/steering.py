#!/usr/bin/python3
"""What steering of a kernel interface must show (`sluice steer`), in namespaces, on a veth pair and
two cores. Ends with 1 where a row does not hold.

    bench/steering.py [--rounds 3] [--seconds 3] [--sluice COMMAND] [--row NAME]... [--json FILE]

    collision     two VXLAN flows whose payload the receiver decrypts (AES-256-CBC by bpf_crypto, in
                  tc at the VXLAN devices), each nearly a core's work. The sender is open-loop on
                  core 0, and its part of that core is said. `default` receives everything on core
                  1, `rss` (receive packet steering) by a hash by which both flows fall on core 1;
                  `steering` chooses. It must deliver at least 1.6 times what each of the others
                  does, and lose less. `apart` is a hash by which each flow has a core: what the
                  machine has to give, which is less than two cores where these are threads of one
    avoidance     one flow; a busy process ("VM") starts on its core. The flow must leave within 100
                  ms, and the process keep 90% of the speed that it has alone. A core whose load is
                  softirq alone must be seen as loaded: within 10% of what a core-filling probe of
                  the lowest priority misses
    cost          of the XDP program for a packet: one entry, 32 masks, one flow and many, by the
                  kernel's test runs

The second flow starts half a second after the first: two that start within one sample are placed by
what is expected of them, and a core that is full at once cannot be drained (docs/steering.md).
Before each measurement it waits up to 90 s for the machine to be idle. Needs root, gcc, clang,
iproute2, libbpf-dev.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import time

from contender import Results, harness, machine, parser, run, stderr, switchd, table
from slicing_peers import alone

HERE = os.path.dirname(os.path.abspath(__file__))
A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
LENGTH = 1344
FACTOR = 1.6
ROWS = ["collision", "avoidance", "cost"]
# Namespaces stay until the lab ends, so each measurement of capacity has names of its own.
CAPACITIES = itertools.count(1)


class Hosts:
    """A that sends, B that receives on VXLAN devices and decrypts."""

    def __init__(self, lab, name, options):
        self.lab, self.options = lab, options
        self.a, self.b = lab.namespace(f"{name}a").quiet(), lab.namespace(f"{name}b").quiet()
        self.a.run(
            f"ip link add eth0 address {A} numtxqueues 1 numrxqueues 1 type veth peer name eth0 "
            f"address {B} numtxqueues 1 numrxqueues 1 netns {name}b"
        )
        for namespace, address in ((self.a, "10.0.0.1"), (self.b, "10.0.0.2")):
            namespace.run("ip link set eth0 up")
            namespace.run(f"ip addr add {address}/24 dev eth0")
        for vni in (1, 2):
            self.b.run(
                f"ip link add vx{vni} type vxlan id {vni} dstport 4789 local 10.0.0.2 dev eth0"
            )
            self.b.run(f"ip link set vx{vni} up")
        self.receiver = lab.start(
            self.b.command([options.peer, "receive", options.object, "vx1", "vx2"]),
            f"{name}.receiver",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        harness.check(
            self.receiver.stdout.readline() == b"ready\n",
            f"the receiver did not start: see {name}.receiver",
        )
        self.rundir, self.resident = os.path.join(lab.directory, f"{name}.run"), None

    def counts(self):
        """What the receiver has counted: time and flows."""
        self.receiver.stdin.write(b"\n")
        self.receiver.stdin.flush()
        return json.loads(self.receiver.stdout.readline())

    def spread(self, mask):
        """Receive packet steering over a set of cores."""
        path = "/sys/class/net/eth0/queues/rx-0/rps_cpus"
        self.b.run(
            ["unshare", "-m", "sh", "-c", f"mount -t sysfs none /sys && echo {mask:x} >{path}"]
        )

    def steer(self, *options):
        """Steers the receiver's interface."""
        self.resident = self.lab.start(
            self.b.command(
                [*self.options.sluice, "steer", "run", "eth0", "--rundir", self.rundir, *options]
            ),
            "steer.out",
        )
        harness.wait_for(
            "the interface is steered",
            lambda: (
                os.path.exists(f"{self.rundir}/steer-eth0.sock")
                and self.sluice("show", ok=False).returncode == 0
            ),
        )

    def sluice(self, *words, ok=True):
        """sluice steer WORDS."""
        return harness.run(
            [
                *self.options.sluice,
                "steer",
                *(str(word) for word in words),
                "--rundir",
                self.rundir,
            ],
            ok=ok,
        )

    def show(self):
        """The session's status."""
        return json.loads(self.sluice("show", "--json").stdout)

    def send(self, seconds, *streams):
        """Starts the sender on core 0: (flow, port, rate, delay) each."""
        words = [
            f"{flow}:{flow + 1}:{port}:{rate:.0f}:{LENGTH}:{delay}"
            for flow, port, rate, delay in streams
        ]
        return self.lab.start(
            self.a.command([self.options.peer, "send", "eth0", "0", str(seconds), *words]),
            "sender",
            stdout=subprocess.PIPE,
        )

    def end(self):
        """Ends what runs."""
        for process in (self.resident, self.receiver):
            if process:
                process.terminate()
                process.wait(10)


def quiet(seconds=90):
    """Waits until nothing else runs: a core that others fill is highly loaded, and nothing is
    steered to it. Says so where that does not come."""

    def idle():
        with open("/proc/stat", encoding="ascii") as file:
            words = file.readline().split()
        return int(words[4]) + int(words[5])

    for _ in range(2 * seconds):
        before = idle()
        time.sleep(0.5)
        if (idle() - before) / os.sysconf("SC_CLK_TCK") > 0.46 * os.cpu_count():
            return
    stderr(f"others have kept this machine busy for {seconds} s; figures are theirs, too")


def packets(before, after, flow):
    """Packets of a flow by core between two counts."""
    pairs = zip(before["flows"][flow]["packets"], after["flows"][flow]["packets"])
    return [late - early for early, late in pairs][:2]


def capacity(lab, options):
    """Packets a second that one core decrypts, from the kernel's receive path on."""
    hosts = Hosts(lab, f"c{next(CAPACITIES)}", options)
    quiet()
    hosts.spread(2)
    sender = hosts.send(1.5, (0, 1000, 200_000, 0))
    time.sleep(0.4)
    before = hosts.counts()
    time.sleep(0.8)
    after = hosts.counts()
    sender.wait(20)
    hosts.end()
    return sum(packets(before, after, 0)) / (after["time"] - before["time"])


def falling(hosts, *cores):
    """Source ports whose packets fall on these cores, one after the other."""
    found, port = [], 1000
    while len(found) < len(cores) and port < 1064:
        before = hosts.counts()
        hosts.send(0.05, (0, port, 400, 0)).wait(10)
        time.sleep(0.02)
        on = packets(before, hosts.counts(), 0)
        if (on[1] > on[0]) == (cores[len(found)] == 1):
            found.append(port)
        port += 1
    harness.check(len(found) == len(cores), f"no ports fall on cores {cores}")
    return found


def collision(lab, number, mode, rate, options, results):
    """One mode of the first row, once."""
    hosts = Hosts(lab, f"{mode[0]}{number}", options)
    quiet()
    if mode != "steering":
        hosts.spread(2 if mode == "default" else 3)
    ports = {"rss": lambda: falling(hosts, 1, 1), "apart": lambda: falling(hosts, 0, 1)}.get(
        mode, lambda: (1000, 1001)
    )()
    if mode == "steering":
        hosts.steer()
        for vni in (1, 2):
            hosts.sluice("set", "add", f"vni={vni}", "--choose", "entry", "--vm", vni)
    base = hosts.counts()
    sender = hosts.send(options.seconds + 2, (0, ports[0], rate, 0), (1, ports[1], rate, 0.5))
    time.sleep(1.5)
    before = hosts.counts()
    time.sleep(options.seconds)
    after = hosts.counts()
    sent = json.loads(sender.communicate(timeout=30)[0])
    time.sleep(0.3)
    last = hosts.counts()
    seconds = after["time"] - before["time"]
    cores = [
        sum(column) / seconds
        for column in zip(packets(before, after, 0), packets(before, after, 1))
    ]
    total = sum(stream["sent"] + stream["skipped"] for stream in sent["streams"])
    got = sum(sum(packets(base, last, flow)) for flow in (0, 1))
    harness.check(not any(flow["wrong"] for flow in last["flows"]), "packets were not decrypted")
    late = sum(flow["late"] for flow in last["flows"][:2])
    figures = {
        "delivered, packets/s": sum(cores),
        "on core 0": cores[0],
        "on core 1": cores[1],
        "not delivered, %": max(0, 100 * (1 - got / total)),
        "sender's part of core 0, %": 100 * sent["cpu"] / sent["seconds"],
        "late": late if mode not in ("rss", "apart") else None,
    }
    stderr(
        f"{mode}: "
        + ", ".join(f"{what} {value:.1f}" for what, value in figures.items() if value is not None)
    )
    if mode == "steering":
        status = hosts.show()
        stderr(
            "steering: "
            + ", ".join(
                f"core {core['core']}: {core['packet_ns'] / 1e3:.1f} us a packet, "
                f"{core['dropped_queue_full']} dropped at its queue"
                for core in status["cores"]
            ),
            f"; moves {status['moves']}",
        )
    for what, value in figures.items():
        results.add(f"collision: {what}", mode, value)
    hosts.end()


def probe(core, seconds, path):
    """Work done by a task of the lowest priority on a core, in a second."""

    def lowest():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, 19)

    return subprocess.Popen(
        [path, "work", str(core), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lowest,
    )


def worker(options, core, seconds):
    """A busy process on a core."""
    return subprocess.Popen(
        [options.peer, "work", str(core), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def speed(process):
    """What a worker says when it is done."""
    lines = process.communicate(timeout=60)[0].split()
    return float(lines[0]), float(lines[1])


def avoidance(lab, number, rate, options, results):
    """The second row, once."""
    hosts = Hosts(lab, f"v{number}", options)
    quiet()
    hosts.steer()
    hosts.sluice("set", "add", "vni=1", "--choose", "flow", "--vm", "9")
    sender = hosts.send(9, (0, 1000, rate, 0))
    harness.wait_for("packets come", lambda: sum(hosts.counts()["flows"][0]["packets"]) > 100)
    # Until then it is settled.
    time.sleep(1)
    first = hosts.counts()
    time.sleep(0.2)
    core = max((0, 1), key=lambda core: packets(first, hosts.counts(), 0)[core])
    process = worker(options, core, 1.5)
    started = float(process.stdout.readline())
    # What looks does not take the virtual machine's time.
    aside = os.sched_getaffinity(0)
    for looking in (0, hosts.receiver.pid):
        os.sched_setaffinity(looking, {1 - core})
    hosts.sluice("set", "vm", "1", "--pid", process.pid)
    known = time.monotonic()
    left = None
    before = hosts.counts()
    while time.monotonic() - started < 1.3:
        after = hosts.counts()
        here = packets(before, after, 0)
        if here[core] == 0 and here[1 - core] > 0:
            left = left or before["time"]
        elif here[core] > 0:
            left = None
        before = after
        time.sleep(0.004)
    os.sched_setaffinity(0, aside)
    done = float(process.communicate(timeout=30)[0].split()[-1])
    figures = {
        "left after, ms": (left - started) * 1e3 if left else None,
        "of which the command, ms": (known - started) * 1e3,
        "VM's speed, % of alone": 100 * done / options.alone[core],
    }
    late = hosts.counts()["flows"][0]["late"]
    sent = json.loads(sender.communicate(timeout=30)[0])["streams"][0]
    time.sleep(0.2)
    got = sum(hosts.counts()["flows"][0]["packets"])
    figures |= {"late packets": late, "lost packets": sent["sent"] - got}
    stderr(
        "avoidance: "
        + ", ".join(f"{what} {value:.1f}" for what, value in figures.items() if value is not None)
    )
    for what, value in figures.items():
        results.add(f"avoidance: {what}", "steering", value if value is not None else 1e9)
    hosts.end()


def softirq_alone(lab, number, rate, options, results):
    """Whether a core's softirq load is seen, once."""
    hosts = Hosts(lab, f"q{number}", options)
    quiet()
    hosts.spread(2)
    hosts.steer()
    hosts.sluice("set", "add", "vni=1", "--core", "1")
    before = speed(probe(1, 0.6, options.peer))[1]
    sender = hosts.send(4, (0, 1000, rate, 0))
    time.sleep(0.5)
    low = probe(1, 2, options.peer)
    time.sleep(0.1)
    shares = []
    while low.poll() is None:
        core = next(core for core in hosts.show()["cores"] if core["core"] == 1)["shares"]
        shares.append(core["softirq"] + core["irq"] + core["cpumap"])
        time.sleep(0.05)
    missed = 1 - speed(low)[1] / before
    seen = sum(shares) / len(shares)
    sender.communicate(timeout=30)
    stderr(f"softirq alone: seen {seen:.1%}, missed by the probe {missed:.1%}")
    results.add("avoidance: softirq load seen, %", "steering", 100 * seen)
    results.add("avoidance: missed by a probe, %", "steering", 100 * missed)
    results.add("avoidance: difference, %", "steering", 100 * abs(seen - missed))
    hosts.end()


def held(results, options):
    """Rows that do not hold."""
    bad = []

    def need(row, holds, text):
        (bad if not holds else []).append(text)
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {row}: {text}")

    if "collision" in options.row:
        rate, loss = "collision: delivered, packets/s", "collision: not delivered, %"
        for other in ("default", "rss"):
            factor = results.median(rate, "steering") / results.median(rate, other)
            need("collision", factor >= FACTOR, f"{factor:.2f} times {other}, wanted {FACTOR}")
            need(
                "collision",
                results.median(loss, "steering") < results.median(loss, other),
                f"{results.median(loss, 'steering'):.1f}% not delivered, {other} "
                f"{results.median(loss, other):.1f}%",
            )
        part = results.median(rate, "steering") / results.median(rate, "apart")
        print(
            f"collision: {part:.0%} of what the machine delivers where each flow has a core "
            f"(apart: {results.median(rate, 'apart') / results.median(rate, 'default'):.2f} times "
            "default)"
        )
    if "avoidance" in options.row:
        left = results.median("avoidance: left after, ms", "steering")
        need("avoidance", left <= 100, f"left after {left:.0f} ms, wanted 100 at most")
        kept = results.median("avoidance: VM's speed, % of alone", "steering")
        need("avoidance", kept >= 90, f"the VM keeps {kept:.0f}%, wanted 90")
        difference = results.median("avoidance: difference, %", "steering")
        need(
            "avoidance",
            difference <= 10,
            f"softirq load seen within {difference:.1f}% of what a probe misses, wanted 10",
        )
    return bad


def cost(options, results):
    """What the program costs, by the crate's own example."""
    done = harness.run([*options.cost], seconds=300)
    for name, value in re.findall(r"^(.*): ([0-9.]+) ns$", done.stdout, re.M):
        results.add(f"cost: {name}, ns", "steering", float(value))


def prepare(lab, options):
    """Builds sender, receiver and the decrypting program."""
    options.peer, options.object = (
        os.path.join(lab.directory, "peer"),
        os.path.join(lab.directory, "crypt.o"),
    )
    headers = f"/usr/include/{os.uname().machine}-linux-gnu"
    harness.run(
        ["gcc", "-O2", "-o", options.peer, os.path.join(HERE, "steering_peer.c"), "-lbpf"],
        seconds=60,
    )
    harness.run(
        [
            "clang",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-g",
            "-O2",
            "-idirafter",
            headers,
            "-c",
            os.path.join(HERE, "steering_crypt.bpf.c"),
            "-o",
            options.object,
        ],
        seconds=60,
    )


def work(options):
    """All rounds."""

    def measured(lab):
        alone()
        prepare(lab, options)
        results = Results(options.json)
        most = capacity(lab, options)
        options.alone = [
            max(speed(worker(options, core, 0.5))[1] for _ in range(3)) for core in (0, 1)
        ]
        stderr(f"one core decrypts {most:.0f} packets/s of {LENGTH} encrypted bytes")
        for number in range(options.rounds):
            if "collision" in options.row:
                for mode in ("default", "rss", "apart", "steering"):
                    collision(lab, number, mode, options.share * most, options, results)
            if "avoidance" in options.row:
                avoidance(lab, number, 0.2 * most, options, results)
                softirq_alone(lab, number, 0.4 * most, options, results)
        if "cost" in options.row and options.cost:
            cost(options, results)
        print(
            f"Medians of {options.rounds} rounds; two flows of {options.share:.0%} of a core "
            f"each, {LENGTH} bytes AES-256-CBC by bpf_crypto; {machine()}"
        )
        columns = ["default", "rss", "apart", "steering"]
        table(
            ["", *columns],
            [[what, *[results.spread(what, name) for name in columns]] for what in results.rows],
        )
        return 1 if held(results, options) else 0

    return measured


def main():
    options = parser(__doc__, daemons=False)
    options.add_argument("--sluice", help="the command (default: sluice beside sluiced)")
    options.add_argument("--row", action="append", choices=ROWS, help="only these rows")
    options.add_argument(
        "--share",
        type=float,
        default=0.9,
        help="of a core's capacity that each flow of the first row offers (default %(default)s)",
    )
    options.add_argument(
        "--cost",
        help="the program that measures the XDP program's cost: cargo build --release -p "
        "sluice-softirq --example cost",
    )
    options = options.parse_args()
    options.row = options.row or ROWS
    options.sluice = [options.sluice or os.path.join(os.path.dirname(switchd()), "sluice")]
    options.cost = [options.cost] if options.cost else None
    run(work(options), {"sluice": harness.switchd_command(switchd())}, 0)


if __name__ == "__main__":
    sys.exit(main())
