#!/usr/bin/python3
"""How fast rules change, and what packets notice of it, side by side in one run.

    bench/rule_changes.py [--daemon LABEL=COMMAND]... [--rounds 3] [--rules 100000] [--json FILE]

COMMAND is called like ovs-vswitchd (it stays in the foreground; {db} and {dir} are filled in); "ovs" is Debian's Open
vSwitch with DPDK. Without --daemon: sluice=target/release/sluiced and ovs=ovs. Needs root, two cores, and 1.5 GiB that
can become huge pages.

Each round starts a fresh daemon with one worker on core 1 that forwards 10,000 UDP flows, replayed from memory by
net_pcap into net_null, then measures, with the worker busy all the time:

    add-flows     `ovs-ofctl add-flows` of the rules, into the table that the packets are looked up in       rules/s
    bundle        `ovs-ofctl --bundle add-flows` of as many                                                  rules/s
    pipelined     flow mods written to one connection as fast as it takes them, then one barrier             rules/s
    delete        one flow mod that deletes them all                                                         ms
    barrier       one flow mod and a barrier at a time, with the rules in place: from sending to the reply   ms, median and p99
    lookups       Mpps before, and during each of the three as a share of that

What it prints are medians over the rounds, and each one's ratio to the last daemon's.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import hugepages  # noqa: E402
from openflow_client import BARRIER_REPLY, BARRIER_REQUEST, Connection, header  # noqa: E402

DAEMONS = {"ovs": "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"}
ARGUMENTS = "unix:{db} --pidfile={dir}/vs.pid --unixctl={dir}/vs.ctl --log-file={dir}/vs.log --no-chdir -vconsole:off"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
FLOWS = 10000
BARRIERS = 3000
FLOW_MOD = 14
HUGE_PAGES = 700


def address(number):
    return socket.inet_ntoa(struct.pack("!I", number))


def frame(flow):
    """One of the UDP packets that the worker forwards, 64 bytes with the check sequence."""
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 46, 0, 0, 64, 17, 0, socket.inet_aton(address(0x0a000000 + flow)), socket.inet_aton("11.0.0.1"))
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xffff) + (total >> 16)
    header = header[:10] + struct.pack("!H", 0xffff ^ (total & 0xffff) + (total >> 16)) + header[12:]
    return bytes.fromhex("020000000002020000000001") + b"\x08\0" + header + struct.pack("!HHHH", 1024 + flow, 80, 26, 0) + bytes(18)


def write_pcap(path):
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for flow in range(FLOWS):
            data = frame(flow)
            file.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


def rule_text(number):
    return f"cookie=1,priority=100,tcp,nw_src={address(0x14000000 + number)},nw_dst={address(0x1e000000 + number * 7919 % 65536)},tp_dst={number % 1000 + 1},actions=output:2"


def flow_mod(number, xid):
    """An OpenFlow 1.0 flow mod that adds a rule of the same kind, with cookie 2 (OpenFlow 1.0 section 5.2.3 and 5.3.3)."""
    wildcards = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 20 | 1 << 21  # port, VLAN, addresses, tp_src, PCP, ToS
    match = struct.pack("!IH6s6sHBxHBBxxIIHH", wildcards, 0, bytes(6), bytes(6), 0, 0, 0x0800, 0, 6,
                        0x28000000 + number, 0x32000000 + number * 7919 % 65536, 0, number % 1000 + 1)
    actions = struct.pack("!HHHH", 0, 8, 2, 0)
    body = match + struct.pack("!QHHHHIHH", 2, 0, 0, 0, 200, 0xffffffff, 0xffff, 0) + actions
    return header(FLOW_MOD, len(body), xid) + body


class Switch:
    """A daemon with a database and a worker on core 1 that forwards."""

    def __init__(self, label, command, pcap):
        self.label, self.directory = label, tempfile.mkdtemp(prefix="rules.")
        self.env = dict(os.environ, OVS_RUNDIR=self.directory, OVS_LOGDIR=self.directory, OVS_DBDIR=self.directory)
        self.processes = []
        database = f"{self.directory}/db.sock"
        self.run("ovsdb-tool", "create", f"{self.directory}/conf.db", SCHEMA)
        self.start(["ovsdb-server", f"{self.directory}/conf.db", f"--remote=punix:{database}", f"--unixctl={self.directory}/db.ctl", "--no-chdir", "-vconsole:off"])
        self.database = f"--db=unix:{database}"
        deadline = time.monotonic() + 10
        while not os.path.exists(database) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.vsctl("--no-wait", "init")
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true", "other_config:pmd-cpu-mask=0x2", "other_config:dpdk-lcore-mask=0x1",
                   "other_config:dpdk-socket-mem=1024", f'other_config:dpdk-extra="--file-prefix=rules{os.getpid()} --no-pci"')
        self.start(command.format(db=database, dir=self.directory).split())
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure")
        self.vsctl("add-port", "br0", "out", "--", "set", "Interface", "out", "type=dpdk", "options:dpdk-devargs=net_null0,no-rx=1", "ofport_request=2")
        self.bridge = f"{self.directory}/br0.mgmt"
        self.ofctl("add-flow", self.bridge, "priority=10,udp,tp_dst=80,actions=output:2")
        self.vsctl("add-port", "br0", "in", "--", "set", "Interface", "in", "type=dpdk", f"options:dpdk-devargs=net_pcap0,rx_pcap={pcap},infinite_rx=1", "ofport_request=1")
        time.sleep(2)

    def start(self, command):
        with open(f"{self.directory}/out.log", "a", encoding="utf-8") as log:
            self.processes.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def run(self, *command, stdin=None):
        done = subprocess.run(command, env=self.env, input=stdin, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{self.label}: {' '.join(command[:4])}: {done.stderr.strip()[:400]}")
        return done.stdout

    def vsctl(self, *arguments):
        return self.run("ovs-vsctl", self.database, "--timeout=60", *arguments)

    def ofctl(self, *arguments, stdin=None):
        return self.run("ovs-ofctl", *arguments, stdin=stdin)

    def sent(self):
        """Packets that the worker has sent, and when that was asked."""
        text = self.ofctl("dump-ports", self.bridge, "2")
        return int(re.search(r"tx pkts=(\d+)", text).group(1)), time.monotonic()

    def rules(self):
        return int(re.search(r"flow_count=(\d+)", self.ofctl("dump-aggregate", self.bridge)).group(1))

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def watching(switch, results, name):
    """Mpps while something goes on, by two looks at the port's counters."""
    packets, begin = switch.sent()
    yield
    packets_then, end = switch.sent()
    results[name] = (packets_then - packets) / (end - begin) / 1e6


def measure(switch, count, file):
    """One round: a dictionary of figures."""
    results = {}
    with watching(switch, results, "lookups"):
        time.sleep(2)
    for name, options in (("add-flows", []), ("bundle", ["--bundle"])):
        begin = time.monotonic()
        with watching(switch, results, f"lookups during {name}"):
            begin = time.monotonic()
            switch.ofctl(*options, "add-flows", switch.bridge, file)
            results[name] = count / (time.monotonic() - begin)
        check_rules(switch, count + 1)
        switch.ofctl("del-flows", switch.bridge, "cookie=1/-1")
    connection = Connection(switch.bridge)
    blob = b"".join(flow_mod(number, number + 1) for number in range(count))
    with watching(switch, results, "lookups during pipelined"):
        begin = time.monotonic()
        sender = threading.Thread(target=connection.socket.sendall, args=(blob,))
        sender.start()
        sender.join()
        connection.barrier(count + 10)
        results["pipelined"] = count / (time.monotonic() - begin)
    check_rules(switch, count + 1)
    waits = []
    for number in range(BARRIERS):
        message = flow_mod(number * 31 % count, 2 * number + 1) + header(BARRIER_REQUEST, 0, 2 * number + 2)
        begin = time.perf_counter()
        connection.socket.sendall(message)
        connection.wait_for(BARRIER_REPLY, 2 * number + 2)
        waits.append((time.perf_counter() - begin) * 1000)
    waits.sort()
    results["barrier median ms"], results["barrier p99 ms"] = statistics.median(waits), waits[len(waits) * 99 // 100]
    begin = time.monotonic()
    switch.ofctl("del-flows", switch.bridge, "cookie=2/-1")
    connection.barrier(7)
    results["delete ms"] = (time.monotonic() - begin) * 1000
    check_rules(switch, 1)
    if connection.errors:
        raise RuntimeError(f"{switch.label}: {connection.errors} flow mods were refused")
    return results


def check_rules(switch, wanted):
    """A figure counts only when the rules are really there."""
    found = switch.rules()
    if found != wanted:
        raise RuntimeError(f"{switch.label}: {found} rules are there, not {wanted}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rules", type=int, default=100000)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    chosen = arguments.daemon or [f"sluice={ROOT}/target/release/sluiced", "ovs=ovs"]
    daemons = []
    for text in chosen:
        label, _, command = text.partition("=")
        command = DAEMONS.get(command, command)
        daemons.append((label, command if "{" in command else f"{command} {ARGUMENTS}"))
    figures = {label: [] for label, _ in daemons}
    with tempfile.TemporaryDirectory(prefix="rules.") as directory, hugepages.reserved(HUGE_PAGES):
        pcap, file = f"{directory}/in.pcap", f"{directory}/rules"
        write_pcap(pcap)
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(rule_text(number) + "\n" for number in range(arguments.rules))
        for _ in range(arguments.rounds):
            for label, command in daemons:
                switch = Switch(label, command, pcap)
                try:
                    figures[label].append(measure(switch, arguments.rules, file))
                finally:
                    switch.close()
    report(daemons, figures)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)


def report(daemons, figures):
    """A line for each figure: medians, and ratios to the last daemon."""
    labels = [label for label, _ in daemons]
    print(f"{'':28}" + "".join(f"{label:>14}" for label in labels) + (f"{'ratio':>10}" if len(labels) > 1 else ""))
    for name in figures[labels[0]][0]:
        medians = [statistics.median(round_[name] for round_ in figures[label]) for label in labels]
        if name.startswith("lookups during"):
            medians = [median / statistics.median(round_["lookups"] for round_ in figures[label]) for median, label in zip(medians, labels)]
            print(f"{name:28}" + "".join(f"{median:>13.0%} " for median in medians))
            continue
        digits = 0 if medians[0] > 1000 else 2
        line = f"{name:28}" + "".join(f"{median:>14,.{digits}f}" for median in medians)
        print(line + (f"{medians[0] / medians[-1]:>10.2f}" if len(labels) > 1 else ""))


if __name__ == "__main__":
    main()
