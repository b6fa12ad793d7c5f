#!/usr/bin/env python3
"""Tracked connections, side by side: Sluice and Open vSwitch (userspace, DPDK). Exits with 1 where
a goal is missed.

    bench/conntrack.py [--row NAME]... [--rounds 3] [--seconds 3] [--daemon LABEL=COMMAND]...

Rows (the rules and frames are those of bench/cases_connections.py, bench/forwarding.py measures
them one by one):

    established  packets of established connections: at least 4 times Open vSwitch, and at least
                 half of the same rules without `ct`
    new          packets each of which ends its connection and begins the next: 5 times
    flood        1,000 established connections beside a flood of SYNs that begin connections, in a
                 table with room for 20,000: none of their packets is taken for another than one of
                 its connection

Each figure is the median of the rounds, of one worker on core 1, with frames of 64 bytes; daemons
take turns. Memory is measured by `cargo test --release -p sluice-conntrack --test memory --
--ignored`.

Needs root, two cores with nothing else to do, and 2.8 GiB that can become huge pages.
"""

import os
import statistics
import sys
import time

import cases_connections
from contender import contender, contenders, figure, machine, parser, run, stderr, table
from frames import write_pcap

WARM = 2
# Cases, and the same without `ct`, which may be twice as fast at most.
ESTABLISHED = {
    "ct-1": "ct-none-1",
    "ct-10k": "ct-none-10k",
    "ct-50k": None,
    "ct-tcp-10k": None,
    "ct-nat-1k": None,
}
NEW = ["ct-new-1k", "ct-new-50k"]
TIMES = {"established": 4, "new": 5}
HALF = 0.5

CONNECTIONS, ROOM, SYNS = 1000, 20000, 90000
FLOOD = [
    "table=0,priority=10,ip,actions=ct(table=1)",
    "table=1,priority=10,ct_state=+trk+new,in_port={flood},ip,actions=ct(commit),output:{out}",
    "table=1,priority=10,cookie=1,ct_state=+trk+est,in_port={in},ip,actions=output:{out}",
    "table=1,priority=5,cookie=2,in_port={in},ip,actions=ct(commit),output:{out2}",
]
FLOOD_PORT = 9


def rate(lab, name, label, command, seconds):
    """One figure of one daemon, Mpps."""
    rules, frames = cases_connections.CASES[name]()
    pcap = os.path.join(lab.directory, "in.pcap")
    write_pcap(pcap, frames)
    with contender(lab, label, command, bridge=["fail_mode=secure"]) as switch:
        switch.sinks()
        switch.rules_from(rules)
        switch.source(pcap)
        time.sleep(WARM)
        return switch.rate(seconds)


def medians(lab, options, daemons, names):
    """Figures by case and daemon, each the median of the rounds."""
    found = {}
    for name in names:
        for _ in range(options.rounds):
            for label, command in daemons.items():
                figures = found.setdefault((name, label), [])
                figures.append(rate(lab, name, label, command, options.seconds))
        stderr(name, {label: figure(statistics.median(found[name, label])) for label in daemons})
    return {key: statistics.median(figures) for key, figures in found.items()}


def compare(lab, options, daemons, row):
    """The rows of figures; returns lines of the table and whether all goals are reached."""
    halves = ESTABLISHED if row == "established" else dict.fromkeys(NEW)
    names = list(halves) + [half for half in halves.values() if half]
    found = medians(lab, options, daemons, names)
    first, *others = daemons
    lines, reached = [], True
    for name, half in halves.items():
        own = found[name, first]
        ratios = [own / found[name, label] for label in others]
        share = own / found[half, first] if half else None
        good = all(ratio >= TIMES[row] for ratio in ratios) and (half is None or share >= HALF)
        reached &= good
        lines.append(
            [
                row,
                name,
                *[figure(found[name, label]) for label in daemons],
                *[figure(ratio, 2) for ratio in ratios],
                "-" if share is None else f"{share:.0%}",
                "yes" if good else "no",
            ]
        )
    return lines, reached


def flood(lab, options, daemons):
    """Whether established connections keep their packets beside a flood of SYNs."""
    connections = [
        make(number)
        for make in (cases_connections.flow, cases_connections.reply)
        for number in range(CONNECTIONS)
    ]
    syns = [
        cases_connections.segment(
            (0x0C000000 + number, 1024 + number % 60000),
            (0x0D000001, 80),
            cases_connections.SYN,
            number,
            0,
        )
        for number in range(SYNS)
    ]
    files = {}
    for name, frames in (("in", connections), ("flood", syns)):
        files[name] = os.path.join(lab.directory, f"{name}.pcap")
        write_pcap(files[name], frames)
    lines, reached = [], True
    for label, command in daemons.items():
        with contender(lab, label, command, bridge=["fail_mode=secure"]) as switch:
            switch.sinks()
            switch.appctl("dpctl/ct-set-maxconns", str(ROOM))
            switch.rules_from([rule.replace("{flood}", str(FLOOD_PORT)) for rule in FLOOD])
            switch.source(files["in"])
            time.sleep(WARM)
            switch.port(
                "flood",
                "type=dpdk",
                f'options:dpdk-devargs="net_pcap1,rx_pcap={files["flood"]},infinite_rx=1"',
                f"ofport_request={FLOOD_PORT}",
            )
            time.sleep(WARM)
            before = switch.rule_packets(switch.management)
            time.sleep(options.seconds)
            after = switch.rule_packets(switch.management)
            own, lost = (after.get(cookie, 0) - before.get(cookie, 0) for cookie in (1, 2))
            good = own > 0 and lost == 0
            if label == next(iter(daemons)):
                reached = good
            lines.append(["flood", label, f"{own} established", f"{lost} not"])
            lines[-1] += ["yes" if good else "no"]
    return lines, reached


def work(options, daemons):
    """All rows."""

    def measured(lab):
        first, *others = daemons
        reached = True
        print(f"Mpps, 64-byte frames, one core; {machine()}")
        lines = []
        for row in TIMES:
            if row in options.row:
                more, good = compare(lab, options, daemons, row)
                lines += more
                reached &= good
        if lines:
            head = ["row", "case", first, *others, *[f"x {label}" for label in others]]
            table([*head, "without ct", "reached"], lines)
        if "flood" in options.row:
            lines, good = flood(lab, options, daemons)
            reached &= good
            table(["row", "daemon", "packets", "of others", "reached"], lines)
        return int(not reached)

    return measured


def main():
    options = parser(__doc__)
    rows = [*TIMES, "flood"]
    options.add_argument("--row", action="append", choices=rows, help="default: all")
    options = options.parse_args()
    options.row = options.row or rows
    daemons = contenders(options)
    return run(work(options, daemons), daemons)


if __name__ == "__main__":
    sys.exit(main())
