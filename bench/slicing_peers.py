"""Who shapes in bench/slicing.py, each between two hosts on veth pairs: Sluice, Linux's qdiscs
behind its bridge, and Open vSwitch's policers.

A peer is asked for queues by `shape(port_rate, queues)`; what goes to UDP or TCP port BASE + n goes
to queue n. Sources are on core 0, and so is who receives; the switch has core 1 (Linux's by receive
packet steering)."""

import contextlib
import json
import os
import re
import subprocess

from contender import (
    OTHER_CORE,
    WORKER_CORE,
    Contender,
    Results,
    harness,
    machine,
    stderr,
    switchd,
    table,
)
from kernel import LinuxBridge

BASE = 10000
SOURCE, TARGET = "10.9.0.1", "10.9.0.2"
# Nobody's: the host's stack drops such frames once the receiver's packet socket has seen them.
NOBODY = "02:00:00:00:0b:ff"
HERE = os.path.dirname(os.path.abspath(__file__))


def queue(min_rate, max_rate=None, **options):
    """A queue: rates in bit/s; `bound_us`, `limit` (packets), `burst` (bytes), `priority`."""
    return {"min": int(min_rate), "max": int(max_rate or min_rate), **options}


def compiled(directory):
    """The program that makes traffic."""
    path = os.path.join(directory, "traffic")
    harness.run(
        ["gcc", "-O2", "-o", path, os.path.join(HERE, "traffic.c"), "-lm", "-lpthread"], seconds=60
    )
    return path


def stream(rate, length, first=0, classes=1, process="cbr", burst=1):
    """Packets a second of so many bytes to some classes, in turn."""
    return f"{first}:{classes}:{length}:{rate}:{process}:{burst}"


def alone():
    """What is measured goes before whatever else runs on the machine: others' whole time slices
    would be in its delays."""
    with contextlib.suppress(OSError):
        os.nice(-20)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write("-20")


class Hosts:
    """A source and a target, and what runs in them."""

    def __init__(self, lab, switch, number, program, settings=None):
        self.lab, self.program = lab, program
        self.source, self.target = (lab.namespace(f"h{number}-{side}").quiet() for side in (1, 2))
        for side, (host, address) in enumerate(((self.source, SOURCE), (self.target, TARGET)), 1):
            host.port = f"p{number}-{side}"
            switch.attach(host, side, address, *(settings(side, host.port) if settings else ()))
        self.mac = self.source.address()
        self.large_frames(False)

    def large_frames(self, on):
        """Whether the hosts send frames larger than the link's and leave checksums open, as the
        kernel does between namespaces."""
        for host in (self.source, self.target):
            word = "on" if on else "off"
            host.run(
                ["ethtool", "-K", "eth0", "tx", word, "tso", word, "gso", word, "gro", word],
                ok=False,
            )

    def start(self, host, *words):
        """Starts the program in a host."""
        return self.lab.start(
            host.command([self.program, *map(str, words)]),
            f"traffic{len(self.lab.programs)}.err",
            stdout=subprocess.PIPE,
        )

    def send(self, seconds, *streams):
        """Sends some streams."""
        return self.start(
            self.source, "send", OTHER_CORE, "eth0", self.mac, NOBODY, seconds, *streams
        )

    def receive(self, classes, seconds, warm, limit_us=0, dump=None):
        """Counts what arrives for so many classes once `warm` seconds have passed since the
        first."""
        process = self.start(
            self.target,
            "receive",
            OTHER_CORE,
            "eth0",
            classes,
            seconds,
            warm,
            limit_us,
            *([dump] if dump else []),
        )
        process.stdout.readline()
        return process

    def probe(self, core, seconds):
        """Notes when a core was somebody else's than this machine's."""
        return self.start(self.source, "probe", core, seconds)

    def preempted(self, core, process, seconds):
        """Notes when a switch's worker would have run and others did."""
        threads = f"/proc/{process.pid}/task"
        for thread in os.listdir(threads):
            with open(f"{threads}/{thread}/comm", encoding="ascii") as file:
                if file.read().startswith("pmd"):
                    return self.start(self.source, "preempted", core, thread, seconds)
        raise harness.Failure("the switch has no worker")

    def sink(self, number=0):
        """Reads a TCP connection to a class."""
        process = self.start(self.target, "sink", OTHER_CORE, BASE + number)
        process.stdout.readline()
        return process

    def tcp(self, algorithm, warm, seconds, number=0):
        """Writes to it."""
        where = TARGET, BASE + number
        return self.start(self.source, "tcp", OTHER_CORE, *where, algorithm, warm, seconds)


def result(process, seconds=90):
    """What a program found out."""
    try:
        text = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise harness.Failure(f"{process.args[3:6]} does not end") from None
    if process.returncode:
        raise harness.Failure(f"{process.args[3:]} ended with {process.returncode}")
    return json.loads(text)


class Sluice(Contender):
    """Sluice with kernel interfaces."""

    def __init__(self, lab, number, command, settings=()):
        super().__init__(
            lab,
            "sluice",
            command,
            dpdk=False,
            settings=[f"other_config:pmd-cpu-mask={1 << WORKER_CORE:#x}", *settings],
        )
        self.number, self.egress = number, f"p{number}-2"

    def attach(self, host, side, address, *settings):
        self.link(host, host.port, "eth0", f"ofport_request={side}", *settings, ip=f"{address}/24")

    def rules(self, count):
        """A queue for each class."""
        lines = ["priority=1,in_port=1,actions=output:2", "priority=1,in_port=2,actions=output:1"]
        lines += [
            f"priority=2,in_port=1,{kind},tp_dst={BASE + at},actions=set_queue:{at},output:2"
            for at in range(count)
            for kind in ("udp", "tcp")
        ]
        self.ofctl("add-flows", "br0", "-", stdin="\n".join(lines) + "\n", seconds=60)

    def destroy(self):
        self.vsctl(
            "--",
            "--all",
            "destroy",
            "QoS",
            "--",
            "--all",
            "destroy",
            "Queue",
            "--",
            "clear",
            "Port",
            self.egress,
            "qos",
            seconds=60,
        )

    def make(self, kind, options, queues, timeout=60):
        """A QoS row of this type with queues."""
        words = [f"--id=@q{at} create queue {' '.join(each)}" for at, each in enumerate(queues)]
        names = ",".join(f"{at}=@q{at}" for at in range(len(queues)))
        command = (
            f"set port {self.egress} qos=@qos -- --id=@qos create qos type={kind} "
            f"{' '.join(options)}" + (f" queues={names}" if queues else "")
        )
        self.vsctl(*" -- ".join([command, *words]).split(), seconds=timeout)

    def shape(self, port_rate, queues):
        self.destroy()
        if not queues:
            return
        rows = []
        for each in queues:
            row = [f"other-config:min-rate={each['min']}", f"other-config:max-rate={each['max']}"]
            for name, key, factor in (
                ("burst", "burst", 8),
                ("bound_us", "max-latency-us", 1),
                ("limit", "limit-packets", 1),
                ("priority", "priority", 1),
            ):
                if name in each:
                    row.append(f"other-config:{key}={each[name] * factor}")
            if each.get("ecn"):
                row.append("other-config:ecn=true")
            rows.append(row)
        self.make("linux-htb", [f"other-config:max-rate={int(port_rate)}"], rows)

    def details(self):
        """What it says itself about its queues."""
        return self.appctl("qos/show", self.egress, ok=False).stdout


class OpenVSwitch(Sluice):
    """Open vSwitch's userspace datapath, which polices ports of DPDK: here DPDK's packet sockets on
    the same veth pairs."""

    def __init__(self, lab, number, kind):
        self.kind = kind
        Contender.__init__(
            self,
            lab,
            "ovs",
            harness.switchd_command("ovs"),
            settings=["other_config:dpdk-socket-mem=384"],
        )
        self.number, self.egress = number, "dpdk2"

    def attach(self, host, side, address, *_settings):
        self.pair(host, host.port, "eth0", ip=f"{address}/24")
        self.port(
            f"dpdk{side}",
            "type=dpdk",
            f"options:dpdk-devargs=net_af_packet{self.number}{side},iface={host.port},"
            "framecnt=2048,qdisc_bypass=1",
            f"ofport_request={side}",
        )

    def shape(self, port_rate, queues):
        self.destroy()
        if not queues:
            return

        def bucket(each):
            return each.get("burst", 64 * 1500)

        if self.kind == "egress-policer":
            self.make(
                self.kind,
                [
                    f"other-config:cir={queues[0]['max'] // 8}",
                    f"other-config:cbs={bucket(queues[0])}",
                ],
                [],
            )
            return
        rows = [
            [
                f"other-config:cir={each['max'] // 8}",
                f"other-config:cbs={bucket(each)}",
                "other-config:eir=0",
                "other-config:ebs=0",
            ]
            for each in queues
        ]
        self.make(
            self.kind,
            [
                f"other-config:cir={int(port_rate) // 8}",
                "other-config:cbs=1048576",
                "other-config:eir=0",
                "other-config:ebs=0",
            ],
            rows,
        )

    def details(self):
        return ""


class Linux(LinuxBridge):
    """The kernel's bridge, and a qdisc on the port."""

    def __init__(self, lab, number, kind="htb"):
        super().__init__(lab, number)
        self.kind, self.egress = kind, f"p{number}-2"

    def attach(self, host, side, address, *_settings):
        self.link(host, host.port, "eth0", f"{address}/24")
        # The worker of a switch would be there, too.
        self.namespace.run(
            [
                "ip",
                "netns",
                "exec",
                self.namespace.name,
                "sh",
                "-c",
                f"echo {1 << WORKER_CORE:x} > /sys/class/net/{host.port}/queues/rx-0/rps_cpus",
            ]
        )
        if side == 2:
            self.namespace.run(
                ["bridge", "fdb", "add", NOBODY, "dev", host.port, "master", "static"]
            )

    def rules(self, _count):
        """Its filter finds the class by itself."""

    def shape(self, port_rate, queues):
        device = self.egress
        self.namespace.run(f"tc qdisc del dev {device} root", ok=False)
        if not queues:
            return
        if self.kind != "htb":
            first = queues[0]
            self.namespace.run(
                f"tc qdisc add dev {device} root handle 1: tbf rate {first['max']}bit burst "
                f"{first.get('burst', 8000)} limit {first.get('limit', 1000) * 1514}"
            )
            if self.kind != "tbf":
                self.namespace.run(f"tc qdisc add dev {device} parent 1: {self.kind}")
            return
        self.namespace.run(f"ip link set {device} txqueuelen {queues[0].get('limit', 1000)}")
        lines = [
            f"qdisc add dev {device} root handle 1: htb default 1 r2q 1000",
            (
                f"class add dev {device} parent 1: classid 1:fffe htb rate {int(port_rate)}bit "
                f"ceil {int(port_rate)}bit quantum 1514"
            ),
        ]
        for at, each in enumerate(queues):
            burst = f" burst {each['burst']} cburst {each['burst']}" if "burst" in each else ""
            lines.append(
                f"class add dev {device} parent 1:fffe classid 1:{at + 1:x} htb rate "
                f"{max(each['min'], 8)}bit ceil {each['max']}bit prio {each.get('priority', 0)} "
                f"quantum 1514{burst}"
            )
        # The class is the destination port: one filter in the kernel's packet language for any
        # number of classes.
        lines.append(
            f"filter add dev {device} parent 1: protocol all prio 1 bpf bytecode '4,40 0 0 36,20 "
            f"0 0 {BASE - 1},68 0 0 65536,22 0 0 0'"
        )
        self.namespace.run("tc -batch -", stdin="\n".join(lines) + "\n", seconds=60)

    def details(self):
        return ""

    def close(self):
        self.namespace.run(f"tc qdisc del dev {self.egress} root", ok=False)


def by_name(lab, number, name, command):
    """sluice, htb, tbf, fq_codel, pfifo, egress-policer or trtcm-policer."""
    if name == "sluice":
        return Sluice(lab, number, command)
    if name.endswith("-policer"):
        return OpenVSwitch(lab, number, name)
    return Linux(lab, number, name)


@contextlib.contextmanager
def peer(lab, name, options, classes=1, make=by_name):
    """A peer by its name, made by `make`, with hosts."""
    number = peer.count = getattr(peer, "count", 0) + 1
    known = len(lab.switches)
    switch = make(lab, number, name, harness.switchd_command(options.daemon or switchd()))
    try:
        hosts = Hosts(lab, switch, number, options.program)
        switch.rules(classes)
        hosts.source.run(
            ["ip", "neigh", "add", TARGET, "lladdr", hosts.target.address(), "dev", "eth0"]
        )
        hosts.target.run(["ip", "neigh", "add", SOURCE, "lladdr", hosts.mac, "dev", "eth0"])
        yield switch, hosts
    finally:
        for used in lab.switches[known:]:
            used.close()
        if switch not in lab.switches:
            switch.close()


def work(options, test):
    """All rounds of a test."""

    def measured(lab):
        alone()
        results = Results(options.json)
        options.program = compiled(lab.directory)
        for number in range(options.rounds):
            test(lab, options, results)
            stderr(f"round {number + 1} of {options.rounds} is done")
        columns = list(dict.fromkeys(column for row in results.rows.values() for column in row))
        print(machine())
        table(
            ["", *columns],
            [[row, *[results.spread(row, column) for column in columns]] for row in results.rows],
        )

    return measured


def late_sent(text):
    """Frames sent too late, as `qos/show` says."""
    found = re.search(r"late_sent: (\d+)", text)
    return int(found[1]) if found else None
