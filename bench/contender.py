"""What benchmarks of the running daemon share: contenders, DPDK's own forwarding as the limit, and
a place to run that leaves nothing behind.

A contender is any daemon that takes its configuration from ovsdb-server as ovs-vswitchd does. Each
has a database of its own and works on core 1, all else on core 0, or on the two that
SLUICE_BENCH_CORES names (1,0); frames come from memory (net_pcap with infinite_rx) and go to null
devices, and what went through is read from OpenFlow's port counters, so every
contender is asked the same question.
"""

import argparse
import contextlib
import json
import os
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import harness  # noqa: E402
import hugepages  # noqa: E402
import isolated  # noqa: E402
from openflow_client import Connection, header  # noqa: E402

# The limit: DPDK's own forwarding.
LIMIT = "limit"
PORTS = {"in": 1, "out": 2, "out2": 3}
MEMORY_MB = 2048
HUGE_PAGES = 1400
PACKET_OUT = 13
NORMAL = 0xFFFA
STATIONS_AT_A_TIME = 1000
# Says, with a directory, that a benchmark runs in its namespaces already.
INSIDE = "SLUICE_BENCH_INSIDE"
# Seconds of testpmd's that do not count.
WARM_UP = 2


def two_cores(text):
    """The cores that a text names: of who is measured, and of all else."""
    words = text.split(",")
    if len(words) != 2 or not all(word.isdecimal() for word in words) or words[0] == words[1]:
        sys.exit(f"SLUICE_BENCH_CORES is two different cores, such as 1,0, and not {text!r}")
    return int(words[0]), int(words[1])


WORKER_CORE, OTHER_CORE = two_cores(os.environ.get("SLUICE_BENCH_CORES", "1,0"))
BOTH_CORES = 1 << WORKER_CORE | 1 << OTHER_CORE


def switchd():
    """The daemon that `make` has built."""
    return os.path.join(
        os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release", "sluiced"
    )


def parser(description, daemons=True):
    """The options that all benchmarks have."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if daemons:
        result.add_argument(
            "--daemon",
            action="append",
            default=[],
            metavar="LABEL=COMMAND",
            help='a daemon called like ovs-vswitchd; "ovs" is Debian\'s Open vSwitch '
            "with DPDK (default: sluice=target/release/sluiced and ovs=ovs)",
        )
    result.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="rounds, of which medians are shown (default %(default)s)",
    )
    result.add_argument(
        "--seconds", type=float, default=3, help="of one measurement (default %(default)s)"
    )
    result.add_argument(
        "--json",
        metavar="FILE",
        help="adds the figures to those in this file; what is printed are then medians of all",
    )
    result.add_argument(
        "--markdown", action=Markdown, help="prints tables as docs/performance.md has them"
    )
    return result


class Markdown(argparse.Action):
    """Has tables printed with bars."""

    asked_for = False

    def __init__(self, *words, **options):
        super().__init__(*words, nargs=0, **options)

    def __call__(self, *_):
        Markdown.asked_for = True


def contenders(options):
    """The daemons asked for: {label: command}."""
    result = {}
    for text in options.daemon or [f"sluice={switchd()}", "ovs=ovs"]:
        label, equals, command = text.partition("=")
        if not equals or not command or label in result or label == LIMIT:
            sys.exit(f"--daemon takes LABEL=COMMAND, each label once, and not {text!r}")
        result[label] = harness.switchd_command(command)
        if not os.access(result[label][0], os.X_OK):
            sys.exit(
                f"there is no daemon at {result[label][0]}: `make` builds it, scripts/setup "
                "installs Open vSwitch"
            )
    return result


def run(work, daemons, pages=HUGE_PAGES):
    """Calls `work(lab)` in namespaces of its own, with huge pages that are given back, and ends
    this process with its result. Nothing is left behind, whatever happens."""
    directory = os.environ.get(INSIDE)
    if directory:
        sys.exit(
            isolated.as_first(
                lambda: work(harness.Lab(directory, next(iter(daemons.values())))) or 0
            )
        )
    if os.geteuid() != 0:
        sys.exit("namespaces and huge pages need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with hugepages.reserved(pages), tempfile.TemporaryDirectory(prefix="bench.") as directory:
            process = isolated.start(
                [sys.executable, *sys.argv], env=dict(os.environ) | {INSIDE: directory}
            )
            try:
                code = process.wait()
            finally:
                process.kill()
                process.wait()
    except hugepages.Shortage as shortage:
        sys.exit(str(shortage))
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


class Contender(harness.Switch):
    """A daemon whose worker is on core 1, with a bridge br0."""

    def __init__(
        self,
        lab,
        label,
        command,
        cores=1 << WORKER_CORE,
        bridge=("fail_mode=secure",),
        settings=(),
        dpdk=True,
    ):
        self.label = label
        config = []
        if dpdk:
            config = [
                "other_config:dpdk-init=true",
                f"other_config:pmd-cpu-mask={cores:#x}",
                f"other_config:dpdk-lcore-mask={1 << OTHER_CORE:#x}",
                f"other_config:dpdk-socket-mem={MEMORY_MB}",
                f'other_config:dpdk-extra="--file-prefix={label}{len(lab.switches)} --no-pci"',
            ]
            if harness.is_open_vswitch(command):
                config.append("other_config:userspace-tso-enable=false")
        super().__init__(
            lab,
            f"{label}{len(lab.switches)}",
            command=command,
            config=[*config, *settings],
            start=False,
        )
        self.start()
        self.bridge("br0", *bridge)
        self.management = f"{self.directory}/br0.mgmt"
        # Of all bridges, among which no port number comes twice.
        self.managements = [self.management]

    def sinks(self, bridge="br0"):
        """The two null devices out."""
        for number, name in enumerate(("out", "out2")):
            self.port(
                name,
                "type=dpdk",
                f"options:dpdk-devargs=net_null{number},no-rx=1",
                f"ofport_request={PORTS[name]}",
                bridge=bridge,
            )

    def source(self, pcap, *more, queues=1, bridge="br0"):
        """The port in, which replays a file for ever."""
        files = ",".join([f"rx_pcap={pcap}"] * queues)
        self.port(
            "in",
            "type=dpdk",
            f'options:dpdk-devargs="net_pcap0,{files},infinite_rx=1"',
            f"ofport_request={PORTS['in']}",
            *more,
            bridge=bridge,
        )

    def rules_from(self, rules, timeout=600):
        """Replaces all rules; returns the seconds that adding them took."""
        self.ofctl("del-flows", self.management)
        text = (
            "\n".join(
                rule.replace("{in}", "1").replace("{out2}", "3").replace("{out}", "2")
                for rule in rules
            )
            + "\n"
        )
        begin = time.monotonic()
        self.ofctl("add-flows", self.management, "-", stdin=text, seconds=timeout)
        return time.monotonic() - begin

    def learn(self, stations):
        """Teaches NORMAL behind which port each MAC address is: a packet-out for each, as if a
        frame had come in there."""
        connection = Connection(self.management)
        for number, (mac, port) in enumerate(stations.items(), 1):
            # To itself, so that it is dropped and not flooded.
            data = 2 * mac.to_bytes(6, "big") + b"\x88\xb5" + bytes(46)
            actions = struct.pack("!HHHH", 0, 8, NORMAL, 0)
            body = struct.pack("!IHH", 0xFFFFFFFF, PORTS[port], len(actions)) + actions + data
            connection.socket.sendall(header(PACKET_OUT, len(body), number) + body)
            if number % STATIONS_AT_A_TIME == 0:
                connection.barrier(1 << 24 | number)
        connection.barrier(1 << 25)
        connection.close()

    def sent(self):
        """Packets sent to each sink and received, and when that was asked."""
        text = "".join(self.ofctl("dump-ports", management) for management in self.managements)
        now = time.monotonic()
        found = {
            port: (int(received), int(sent))
            for port, received, sent in re.findall(
                r"port +\"?(\w+)\"?: rx pkts=(\d+).*?tx pkts=(\d+)", text, re.S
            )
        }
        counts = {
            name: found.get(name) or found.get(str(number), (0, 0))
            for name, number in PORTS.items()
        }
        return {
            "out": counts["out"][1],
            "out2": counts["out2"][1],
            "in": counts["in"][0],
            "time": now,
        }

    def count(self, seconds):
        """Packets that go out by each sink and come in meanwhile, and the seconds that it really
        took."""
        before = self.sent()
        time.sleep(seconds)
        after = self.sent()
        return {name: after[name] - before[name] for name in after}

    def rate(self, seconds):
        """Mpps that go out."""
        return rate_of(self.count(seconds))

    def silence(self):
        """Ends the traffic, and waits until the counters stand: while a long list of rules is read,
        the last ones would count on."""
        self.vsctl("del-port", "in")
        # Open vSwitch brings rules' counters up to date about once a second.
        time.sleep(2)

    def wrong(self, hits):
        """The share of packets that were counted on a rule they do not belong to; None where too
        few went through to tell."""
        got = self.rule_packets(self.management)
        total = sum(got.values())
        if total < 20 * len(hits):
            return None
        wanted = {}
        for cookie in hits:
            wanted[cookie] = wanted.get(cookie, 0) + 1
        return (
            sum(
                abs(got.get(cookie, 0) / total - wanted.get(cookie, 0) / len(hits))
                for cookie in set(got) | set(wanted)
            )
            / 2
        )

    def memory_mb(self):
        """Resident memory of the daemon."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024

    def vhost(self, name, number):
        """A vhost-user port; returns the socket on which the peer is to listen."""
        path = f"{self.directory}/{name}.sock"
        self.port(
            name,
            "type=dpdkvhostuserclient",
            f"options:vhost-server-path={path}",
            f"ofport_request={number}",
        )
        return path

    def cycles(self):
        """Average processing cycles per packet of each worker that has any, as it counts them
        itself."""
        text = self.appctl("dpif-netdev/pmd-stats-show")
        return [
            float(found)
            for found in re.findall(r"avg processing cycles per packet: ([0-9.]+)", text)
        ]

    def close(self):
        """Ends daemon and database."""
        for process in (self.process, self.ovsdb):
            if process is None:
                continue
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.process = self.ovsdb = None


def rate_of(counts):
    """Mpps of what `count` saw."""
    return (counts["out"] + counts["out2"]) / counts["time"] / 1e6


def wrong_ports(counts, frames, stations):
    """As `wrong`, for a learning bridge: by the ports that frames leave through.

    What is flooded counts twice, and so as wrong. None where too few went through to tell."""
    received = counts["in"]
    if received < 20 * len(frames):
        return None
    wanted = {"out": 0, "out2": 0}
    for data in frames:
        wanted[stations[int.from_bytes(data[:6], "big")]] += 1
    return sum(abs(counts[port] / received - wanted[port] / len(frames)) for port in wanted)


@contextlib.contextmanager
def contender(lab, label, command, kind=Contender, **options):
    """A contender that ends with the block."""
    known = len(lab.switches)
    try:
        yield kind(lab, label, command, **options)
    finally:
        for switch in lab.switches[known:]:
            switch.close()


def limit(lab, pcap, seconds, queues=1):
    """Mpps of testpmd, which forwards without looking from the same source to a null device, with a
    core for each queue."""
    files = ",".join([f"rx_pcap={pcap}"] * queues)
    places = f"0@{OTHER_CORE},{queues}@{WORKER_CORE}"
    if queues > 1:
        places += f",1@{OTHER_CORE}"
    command = [
        "dpdk-testpmd",
        f"--lcores={places}",
        "-n",
        "1",
        "--no-pci",
        "--in-memory",
        f"--file-prefix=limit{len(lab.programs)}",
        "--socket-mem",
        str(MEMORY_MB // 2 * queues),
        f"--vdev=net_pcap0,{files},infinite_rx=1",
        "--vdev=net_null0,no-rx=1",
        "--",
        f"--nb-cores={queues}",
        f"--rxq={queues}",
        f"--txq={queues}",
        "--forward-mode=io",
        "--stats-period",
        "1",
        "--total-num-mbufs=262144",
    ]
    process = lab.start(command, "limit.err", stdout=subprocess.PIPE)
    text, rates, wanted = "", [], WARM_UP + max(1, round(seconds))
    deadline = time.monotonic() + 60 + seconds
    while len(rates) < wanted and time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 1)[0]:
            text += os.read(process.stdout.fileno(), 65536).decode(errors="replace")
        rates = [
            int(rate)
            for rate in re.findall(r"NIC statistics for port 1 .*?Tx-pps:\s+(\d+)\s", text, re.S)
        ]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    rates = rates[WARM_UP:]
    if not rates:
        raise harness.Failure(f"testpmd forwarded nothing:\n{text[-2000:]}")
    return statistics.mean(rates) / 1e6


class Results:
    """Figures by row and column, each measured several times; kept in a file where one is named."""

    def __init__(self, path):
        self.path, self.rows = path, {}
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.rows = json.load(file)

    def add(self, row, column, value):
        """One more figure; None is none."""
        if value is not None:
            self.rows.setdefault(row, {}).setdefault(column, []).append(value)
        if self.path:
            with open(f"{self.path}.new", "w", encoding="utf-8") as file:
                json.dump(self.rows, file, indent=1)
            os.replace(f"{self.path}.new", self.path)

    def median(self, row, column):
        """The median of a row's figures, None without any."""
        values = self.rows.get(row, {}).get(column)
        return statistics.median(values) if values else None

    def spread(self, row, column, digits=3):
        """Median, least and most as text."""
        values = self.rows.get(row, {}).get(column)
        if not values:
            return "-"
        middle = figure(statistics.median(values), digits)
        return (
            middle
            if len(values) == 1
            else f"{middle} [{figure(min(values), digits)}-{figure(max(values), digits)}]"
        )


def figure(value, digits=3):
    """A number with so many digits that mean something."""
    if value is None:
        return "-"
    if value and abs(value) < 10**-digits:
        return f"{value:.1e}"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}"


def table(head, rows):
    """Prints rows under a head, the first column to the left and the others to the right."""
    lines = [head, *rows]
    if Markdown.asked_for:
        for line in [head, ["---"] * len(head), *rows]:
            print(
                "| " + " | ".join(str(cell) for cell in line).replace("|  |", "| |") + " |",
                flush=True,
            )
        return
    widths = [max(len(str(line[column])) for line in lines) for column in range(len(head))]
    for line in lines:
        print(
            "  ".join(
                f"{str(cell):<{width}}" if column == 0 else f"{str(cell):>{width}}"
                for column, (cell, width) in enumerate(zip(line, widths))
            ),
            flush=True,
        )


def stderr(*words):
    """Says what is going on, on the error output, so that the table stays clean."""
    print(*words, file=sys.stderr, flush=True)


def machine():
    """A line that says where this was measured."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"model name\s*: (.*)", file.read())
    return (
        f"{os.cpu_count()} cores, {model.group(1) if model else os.uname().machine}, Linux "
        f"{os.uname().release}"
    )
