#!/usr/bin/python3
"""How fast rules change, and what packets notice of it, side by side in one run.

    bench/rule_changes.py [--daemon LABEL=COMMAND]... [--rounds 3] [--rules 100000] [--churn 60000]
                          [--json FILE]

COMMAND is called like ovs-vswitchd; "ovs" is Debian's Open vSwitch with DPDK. Without --daemon:
sluice=target/release/sluiced and ovs=ovs. Needs root, two cores, and 2.8 GiB that can become huge
pages.

Each round starts a fresh daemon with one worker on core 1 that forwards 10,000 UDP flows, replayed
from memory by net_pcap into net_null, then measures, with the worker busy all the time. Clients run
on core 0, beside control, so that what they take from the worker is not counted as the switch's:

    add-flows     rules/s: `ovs-ofctl add-flows` of the rules, into the table that the packets are
                  looked up in
    bundle        rules/s: `ovs-ofctl --bundle add-flows` of as many
    pipelined     rules/s: flow mods written to one connection as fast as it takes them, then one
                  barrier
    delete        ms: one flow mod that deletes them all
    barrier       ms, median and p99: one flow mod and a barrier at a time, with the rules in place,
                  from sending to the reply
    churn         rules/s: `ovs-ofctl add-flows` of one rule, the one that all packets meet, again
                  and again
    lookups       Mpps before, and during each of these, and with the rules in place and nothing
                  going on, as a share of that
    napping       rules/s: `ovs-ofctl add-flows` of the rules beside a worker without packets, which
                  sleeps between looks at its queues

What it prints are medians over the rounds, and each one's ratio to the last daemon's.
"""

import contextlib
import os
import re
import statistics
import struct
import sys
import threading
import time

from contender import (
    Connection,
    Results,
    contender,
    contenders,
    harness,
    header,
    parser,
    run,
    stderr,
)
from frames import address_text, uniform, write_pcap
from openflow_client import BARRIER_REPLY, BARRIER_REQUEST

FLOWS = 10000
BARRIERS = 3000
FLOW_MOD = 14
# The rule that the packets meet.
MET = "priority=10,udp,tp_dst=80,actions=output:{out}"


def rule_text(number):
    return (
        f"cookie=1,priority=100,tcp,nw_src={address_text(0x14000000 + number)},"
        f"nw_dst={address_text(0x1E000000 + number * 7919 % 65536)},tp_dst={number % 1000 + 1},"
        "actions=output:2"
    )


def flow_mod(number, xid):
    """An OpenFlow 1.0 flow mod that adds a rule of the same kind, with cookie 2 (OpenFlow 1.0
    section 5.2.3 and 5.3.3)."""
    wildcards = (
        1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 20 | 1 << 21
    )  # port, VLAN, addresses, tp_src, PCP, ToS
    match = struct.pack(
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
        0x28000000 + number,
        0x32000000 + number * 7919 % 65536,
        0,
        number % 1000 + 1,
    )
    actions = struct.pack("!HHHH", 0, 8, 2, 0)
    body = match + struct.pack("!QHHHHIHH", 2, 0, 0, 0, 200, 0xFFFFFFFF, 0xFFFF, 0) + actions
    return header(FLOW_MOD, len(body), xid) + body


@contextlib.contextmanager
def watching(switch, results, name):
    """Mpps while something goes on, by two looks at the port's counters."""
    before = switch.sent()
    yield
    after = switch.sent()
    results[name] = (after["out"] - before["out"]) / (after["time"] - before["time"]) / 1e6


def churn_text(number):
    """The rule that all packets meet, with another cookie each time."""
    return f"cookie={number + 10},{MET.replace('{out}', '2')}"


def measure(switch, count, file, churn, churn_file):
    """One round: a dictionary of figures."""
    results = {}
    with watching(switch, results, "lookups"):
        time.sleep(2)
    for name, options in (("add-flows", []), ("bundle", ["--bundle"])):
        begin = time.monotonic()
        with watching(switch, results, f"lookups during {name}"):
            begin = time.monotonic()
            switch.ofctl(*options, "add-flows", switch.management, file, seconds=600)
            results[name] = count / (time.monotonic() - begin)
        check_rules(switch, count + 1)
        switch.ofctl("del-flows", switch.management, "cookie=1/-1")
    with watching(switch, results, "lookups during churn"):
        begin = time.monotonic()
        switch.ofctl("add-flows", switch.management, churn_file, seconds=600)
        results["churn"] = churn / (time.monotonic() - begin)
    check_rules(switch, 1)
    connection = Connection(switch.management)
    blob = b"".join(flow_mod(number, number + 1) for number in range(count))
    with watching(switch, results, "lookups during pipelined"):
        begin = time.monotonic()
        sender = threading.Thread(target=connection.socket.sendall, args=(blob,))
        sender.start()
        sender.join()
        connection.barrier(count + 10)
        results["pipelined"] = count / (time.monotonic() - begin)
    check_rules(switch, count + 1)
    with watching(switch, results, "lookups after pipelined"):
        time.sleep(1)
    waits = []
    for number in range(BARRIERS):
        message = flow_mod(number * 31 % count, 2 * number + 1) + header(
            BARRIER_REQUEST, 0, 2 * number + 2
        )
        begin = time.perf_counter()
        connection.socket.sendall(message)
        connection.wait_for(BARRIER_REPLY, 2 * number + 2)
        waits.append((time.perf_counter() - begin) * 1000)
    waits.sort()
    results["barrier median ms"], results["barrier p99 ms"] = (
        statistics.median(waits),
        waits[len(waits) * 99 // 100],
    )
    begin = time.monotonic()
    switch.ofctl("del-flows", switch.management, "cookie=2/-1")
    connection.barrier(7)
    results["delete ms"] = (time.monotonic() - begin) * 1000
    check_rules(switch, 1)
    if connection.errors:
        raise harness.Failure(f"{switch.label}: {connection.errors} flow mods were refused")
    switch.silence()
    begin = time.monotonic()
    switch.ofctl("add-flows", switch.management, file, seconds=600)
    results["napping"] = count / (time.monotonic() - begin)
    check_rules(switch, count + 1)
    return results


def check_rules(switch, wanted):
    """A figure counts only when the rules are really there."""
    found = int(
        re.search(r"flow_count=(\d+)", switch.ofctl("dump-aggregate", switch.management)).group(1)
    )
    if found != wanted:
        raise harness.Failure(f"{switch.label}: {found} rules are there, not {wanted}")


def work(options, daemons):
    """All rounds."""

    def measured(lab):
        results = Results(options.json)
        pcap, file = f"{lab.directory}/in.pcap", f"{lab.directory}/rules"
        write_pcap(pcap, uniform(FLOWS))
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(rule_text(number) + "\n" for number in range(options.rules))
        churn_file = f"{lab.directory}/churn"
        with open(churn_file, "w", encoding="utf-8") as out:
            out.writelines(churn_text(number) + "\n" for number in range(options.churn))
        for _ in range(options.rounds):
            for label, command in daemons.items():
                with contender(lab, label, command) as switch:
                    switch.sinks()
                    switch.rules_from([MET])
                    switch.source(pcap)
                    time.sleep(2)
                    everywhere = os.sched_getaffinity(0)
                    os.sched_setaffinity(0, {0})
                    try:
                        figures = measure(switch, options.rules, file, options.churn, churn_file)
                    finally:
                        os.sched_setaffinity(0, everywhere)
                    for name, value in figures.items():
                        results.add(name, label, value)
                stderr(f"{label}: a round is done")
        report(results, list(daemons))

    return measured


def report(results, labels):
    """A line for each figure: medians, and ratios to the last daemon."""
    print(
        f"{'':28}"
        + "".join(f"{label:>14}" for label in labels)
        + (f"{'ratio':>10}" if len(labels) > 1 else "")
    )
    for name in results.rows:
        medians = [results.median(name, label) for label in labels]
        if name.startswith("lookups "):
            shares = [
                median / results.median("lookups", label) for median, label in zip(medians, labels)
            ]
            print(f"{name:28}" + "".join(f"{share:>13.0%} " for share in shares))
            continue
        digits = 0 if medians[0] > 1000 else 2
        line = f"{name:28}" + "".join(f"{median:>14,.{digits}f}" for median in medians)
        print(line + (f"{medians[0] / medians[-1]:>10.2f}" if len(labels) > 1 else ""))


def main():
    options = parser(__doc__)
    options.add_argument("--rules", type=int, default=100000)
    options.add_argument(
        "--churn",
        type=int,
        default=60000,
        help="how often one rule is replaced (default %(default)s)",
    )
    options = options.parse_args()
    daemons = contenders(options)
    run(work(options, daemons), daemons)


if __name__ == "__main__":
    sys.exit(main())
