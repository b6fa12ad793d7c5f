#!/usr/bin/python3
"""How long controllers wait for an answer while one of them changes very many rules.

    bench/control_turns.py [--daemon LABEL=COMMAND]... [--rules 1000000] [--only NAME]...
                           [--goal MS] [--json FILE]

COMMAND is called like ovs-vswitchd; "ovs" is Debian's Open vSwitch with DPDK. Without --daemon:
sluice=target/release/sluiced and ovs=ovs. Needs root. No worker is busy and no huge pages are used:
what is measured is the control side alone.

A fresh daemon has two bridges. For each case the first gets the rules (of one mask, in table 0),
through one connection; then three processes send an echo request every 2 ms, each on a connection
of its own, and the longest time that a reply took is noted:

    other      a connection of the same bridge, that has nothing to do with the change
    bridge     a connection of the other bridge
    own        the connection that sends the change, one request behind it (where the case has such
               a connection)

The cases:

    delete     one flow mod that deletes them all
    removals   the same, with `send_flow_rem`, and two connections that are told and read
    unread     the same, and another connection that is told and does not read
    modify     one flow mod that changes what they all do
    bundle     a bundle that deletes them all and adds as many others
    flush      `ovs-vsctl set-controller` on the bridge, which empties it
    dump       `ovs-ofctl dump-flows`
    monitor    `delete` with a flow monitor that reads
    expiry     rules with idle_timeout=1: until they are all gone
    del-br     the bridge is deleted

It prints, for each daemon and case, how long the case took until the last of it was answered (s),
and the longest waits (ms); with --goal it ends with 1 when a wait was longer in a daemon that is
not Open vSwitch.
"""

import json
import os
import re
import struct
import subprocess
import sys
import threading
import time

from contender import contenders, harness, parser, run
from openflow_client import (
    BARRIER_REPLY,
    BARRIER_REQUEST,
    ECHO_REPLY,
    ECHO_REQUEST,
    Connection,
    header,
)

FLOW_MOD, SET_CONFIG, FLOW_REMOVED = 14, 9, 11
ADD, MODIFY, DELETE = 0, 1, 3
SEND_FLOW_REM = 1
CASES = [
    "delete",
    "removals",
    "unread",
    "modify",
    "bundle",
    "flush",
    "dump",
    "monitor",
    "expiry",
    "del-br",
]
EVERY = 0.002
ALL = "protocols=OpenFlow10,OpenFlow14"


def match10(number):
    """An OpenFlow 1.0 match: TCP from an address; None for any packet."""
    if number is None:
        return struct.pack(
            "!IH6s6sHBxHBBxxIIHH", 0x3FFFFF, 0, bytes(6), bytes(6), 0, 0, 0, 0, 0, 0, 0, 0, 0
        )
    wildcards = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 7 | 32 << 14 | 1 << 20 | 1 << 21
    return struct.pack(
        "!IH6s6sHBxHBBxxIIHH",
        wildcards,
        0,
        bytes(6),
        bytes(6),
        0,
        0,
        0x0800,
        0,
        6,
        0x0A000000 + number,
        0,
        0,
        0,
    )


def flow_mod(command, number, xid, flags=0, idle=0, port=2):
    actions = struct.pack("!HHHH", 0, 8, port, 0) if command in (ADD, MODIFY) else b""
    body = (
        match10(number)
        + struct.pack("!QHHHHIHH", number or 0, command, idle, 0, 100, 0xFFFFFFFF, 0xFFFF, flags)
        + actions
    )
    return header(FLOW_MOD, len(body), xid) + body


class Prober:
    """A process that asks whether the switch is there, all the time, and says how long it took at
    most."""

    def __init__(self, path, asynchronous=False):
        self.read, write = os.pipe()
        self.stop, stopped = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            code = 1
            try:
                os.close(stopped)
                self.work(path, write)
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        os.close(self.stop)
        self.stopper = stopped

    def work(self, path, write):
        connection = Connection(path)
        connection.socket.setblocking(True)
        longest, count = 0.0, 0
        os.set_blocking(self.stop, False)
        while True:
            try:
                os.read(self.stop, 1)
                break
            except BlockingIOError:
                pass
            begin = time.perf_counter()
            count += 1
            connection.socket.sendall(header(ECHO_REQUEST, 0, count))
            connection.wait_for(ECHO_REPLY, count)
            longest = max(longest, time.perf_counter() - begin)
            time.sleep(EVERY)
        os.write(write, json.dumps([longest * 1000, count]).encode())

    def result(self):
        """The longest wait, ms."""
        os.write(self.stopper, b"x")
        os.close(self.stopper)
        text = b""
        while chunk := os.read(self.read, 4096):
            text += chunk
        os.waitpid(self.child, 0)
        os.close(self.read)
        return json.loads(text)[0] if text else float("nan")


class Reader:
    """A process that is told of rules that go: reads them, or does not."""

    def __init__(self, path, reads, wanted):
        self.read, write = os.pipe()
        ready, tell = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            try:
                connection = Connection(path, 300)
                body = struct.pack("!HH", 0, 128)
                connection.socket.sendall(header(SET_CONFIG, len(body), 1) + body)
                connection.barrier(2)
                os.write(tell, b"x")
                told = 0
                if not reads:
                    time.sleep(600)
                try:
                    while told < wanted:
                        connection.wait_for(FLOW_REMOVED)
                        told += 1
                except (ConnectionError, OSError):
                    pass
                os.write(write, str(told).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.read(ready, 1)
        os.close(ready)
        os.close(tell)

    def told(self):
        text = os.read(self.read, 64)
        os.waitpid(self.child, 0)
        return int(text or 0)

    def end(self):
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)


def load(connection, rules, flags=0, idle=0):
    blob = b"".join(flow_mod(ADD, number, number + 1, flags, idle) for number in range(rules))
    sender = threading.Thread(target=connection.socket.sendall, args=(blob,))
    sender.start()
    sender.join()
    connection.barrier(rules + 10)
    if connection.errors:
        raise harness.Failure(f"{len(connection.errors)} flow mods were refused")


def settle(switch):
    """Lets what the rules' coming has left to do be done."""
    time.sleep(6)


def own_echo(connection, message, result):
    """Sends a change and an echo request behind it; how long the reply to that and the one to a
    barrier took."""
    begin = time.perf_counter()
    connection.socket.sendall(message)
    time.sleep(0.005)
    sent = time.perf_counter()
    connection.socket.sendall(header(ECHO_REQUEST, 0, 5) + header(BARRIER_REQUEST, 0, 6))
    waiting = {5, 6}
    while waiting:
        got = connection.wait_for_any((ECHO_REPLY, BARRIER_REPLY))
        if got == ECHO_REPLY:
            result["own"] = (time.perf_counter() - sent) * 1000
            waiting.discard(5)
        else:
            waiting.discard(6)
    result["seconds"] = time.perf_counter() - begin


class Client(Connection):
    def wait_for_any(self, kinds):
        while True:
            got, _, _ = self.next_message()
            if got in kinds:
                return got


def flows(switch):
    """How many rules there are, without a look at each."""
    return int(
        re.search(
            r"flow_count=(\d+)", switch.ofctl("dump-aggregate", switch.management, seconds=300)
        ).group(1)
    )


def case(switch, name, rules):
    """Runs one case: a dictionary of figures."""
    connection = Client(switch.management, 600)
    flags = SEND_FLOW_REM if name in ("removals", "unread") else 0
    if name == "expiry":
        # They are not to go before all are there.
        load(connection, rules, idle=20)
    else:
        load(connection, rules, flags)
        settle(switch)
    readers = [Reader(switch.management, True, rules) for _ in range(2)] if flags else []
    idle = [Reader(switch.management, False, rules)] if name == "unread" else []
    monitor = None
    if name == "monitor":
        monitor = subprocess.Popen(
            ["ovs-ofctl", "monitor", switch.management, "watch:!initial"],
            env=switch.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1)
    probers = {"other": Prober(switch.management), "bridge": Prober(f"{switch.directory}/br1.mgmt")}
    time.sleep(0.2)
    result = {}
    begin = time.perf_counter()
    if name in ("delete", "removals", "unread", "monitor"):
        own_echo(connection, flow_mod(DELETE, None, 4), result)
    elif name == "modify":
        own_echo(connection, flow_mod(MODIFY, None, 4, port=3), result)
    elif name == "bundle":
        text = "delete\n" + "".join(
            f"add tcp,nw_dst=10.{n >> 16}.{n >> 8 & 255}.{n & 255},priority=100,actions=2\n"
            for n in range(rules)
        )
        switch.ofctl(
            "-OOpenFlow14", "--bundle", "add-flows", switch.management, "-", stdin=text, seconds=600
        )
    elif name == "flush":
        switch.vsctl("set-controller", "br0", "tcp:127.0.0.1:6653")
        while flows(switch):
            time.sleep(0.05)
    elif name == "dump":
        switch.ofctl("dump-flows", switch.management, seconds=600)
    elif name == "expiry":
        due = time.perf_counter()
        while flows(switch) == rules:
            time.sleep(0.2)
            due = time.perf_counter()
        while flows(switch):
            time.sleep(0.2)
        result["seconds"] = time.perf_counter() - due
    elif name == "del-br":
        probers["other"].result()
        probers = {"bridge": probers["bridge"]}
        connection.close()
        switch.vsctl("del-br", "br0")
        time.sleep(3)
    result.setdefault("seconds", time.perf_counter() - begin)
    time.sleep(1)
    for reader in readers:
        result.setdefault("told", []).append(reader.told())
    for label, prober in probers.items():
        result[label] = prober.result()
    for reader in idle:
        reader.end()
    if monitor:
        monitor.kill()
        monitor.wait()
    with open(f"/proc/{switch.process.pid}/status", encoding="ascii") as status:
        result["peak MB"] = int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1)) // 1024
    return result


def main():
    options_parser = parser(__doc__)
    options_parser.add_argument("--rules", type=int, default=1_000_000)
    options_parser.add_argument("--only", action="append", choices=CASES)
    options_parser.add_argument("--goal", type=float, help="longest wait allowed, ms")
    options = options_parser.parse_args()
    daemons = contenders(options)
    missed = []

    def work(lab):
        rows = []
        for label, command in daemons.items():
            for name in options.only or CASES:
                switch = harness.Switch(lab, f"{label}-{name}", command=command)
                switch.label = label
                for bridge in ("br0", "br1"):
                    switch.bridge(bridge, "fail_mode=secure", "protocols=OpenFlow10,OpenFlow14")
                switch.management = f"{switch.directory}/br0.mgmt"
                try:
                    result = case(switch, name, options.rules)
                except (
                    harness.Failure,
                    ConnectionError,
                    OSError,
                    AssertionError,
                    ValueError,
                ) as error:
                    result = {"failed": str(error)[:200]}
                row = {"daemon": label, "case": name, "rules": options.rules, **result}
                rows.append(row)
                print(
                    " ".join(
                        f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}"
                        for key, value in row.items()
                    ),
                    flush=True,
                )
                waits = [
                    value for key, value in result.items() if key in ("other", "bridge", "own")
                ]
                is_ovs = harness.is_open_vswitch(command)
                if (
                    options.goal
                    and not is_ovs
                    and ("failed" in result or any(not wait <= options.goal for wait in waits))
                ):
                    missed.append(f"{label} {name}")
                switch.kill()
                switch.stop_database()
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
        if missed:
            print(f"longer than {options.goal} ms: {', '.join(missed)}", file=sys.stderr)
            return 1
        return 0

    run(work, daemons, pages=0)


if __name__ == "__main__":
    main()
