#!/usr/bin/python3
"""What a packet costs as rules grow from 1 to 1,000,000.

    bench/curve.py [--kind NAME]... [--points 1,10,...] [--rounds 1] [--seconds 2]
                   [--daemon LABEL=COMMAND]... [--json FILE]

    exact     a rule for each flow of addresses and ports
    prefixes  a routing table with prefixes as long as the Internet's
    mixed     an access list over 50 masks
    mac       a rule for each destination MAC address
    normal    NORMAL, which has learned as many MAC addresses

Up to 100,000 frames that meet different rules are replayed from memory through one worker; so from
100,000 rules on, a packet's rule and its frame are in no cache. Printed are Mpps, ns per packet,
the ns per packet that the daemon counts as its own work, memory in MB, the seconds that adding the
rules took, and those from then until Sluice said that it was making nothing of them any more (at
least 1). Needs root, two cores with nothing else to do, 2.8 GiB that can become huge pages and 3
GiB more for a million rules. Without --daemon only Sluice is measured.
"""

import os
import re
import sys
import time

import cases
from contender import (
    LIMIT,
    Results,
    contender,
    contenders,
    figure,
    limit,
    machine,
    parser,
    rate_of,
    run,
    stderr,
    switchd,
    table,
    wrong_ports,
)
from frames import write_pcap

KINDS = {
    "exact": cases.exact,
    "prefixes": cases.routing,
    "mixed": cases.mixed,
    "mac": lambda count: cases.bridging(count, False),
    "normal": lambda count: cases.bridging(max(2, count), True),
}
POINTS = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]


# Seconds of traffic before the first look, and at most until tables are what they will be.
FIRST_LOOK, PATIENCE = 2, 60


def cycles_per_ns():
    """TSC cycles in a nanosecond, as the kernel counts them at its start."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return float(re.search(r"cpu MHz\s*: ([0-9.]+)", file.read()).group(1)) / 1000


def settled(switch):
    """Waits until a daemon that tells has made of its rules what it makes of them, and returns the
    seconds that it took."""
    begin = time.monotonic()
    time.sleep(1)
    while (
        re.search("being made|to be made", switch.appctl("sluice/tables", ok=False).stdout)
        and time.monotonic() - begin < PATIENCE
    ):
        time.sleep(0.5)
    took = time.monotonic() - begin
    time.sleep(max(0, FIRST_LOOK - took))
    return took


def measure(lab, results, row, case, pcap, label, command, seconds):
    """One round of one point."""
    bridge = ["fail_mode=secure"]
    if case.stations:
        bridge += [
            f"other_config:mac-table-size={min(2 * len(case.stations), 1 << 20)}",
            "other_config:mac-aging-time=3600",
        ]
    with contender(lab, label, command, bridge=bridge) as switch:
        switch.sinks()
        begin = time.monotonic()
        switch.rules_from(case.rules)
        switch.source(pcap)
        if case.stations:
            switch.learn(case.stations)
        results.add(row, f"{label} load_s", time.monotonic() - begin)
        results.add(row, f"{label} settle_s", settled(switch))
        switch.appctl("dpif-netdev/pmd-stats-clear")
        counts = switch.count(seconds)
        results.add(row, label, rate_of(counts))
        results.add(row, f"{label} ns", max(switch.cycles(), default=0) / cycles_per_ns())
        results.add(row, f"{label} MB", switch.memory_mb())
        switch.silence()
        wrong = (
            switch.wrong(case.hits)
            if case.hits
            else wrong_ports(counts, case.frames, case.stations)
            if case.stations
            else None
        )
        results.add(row, f"{label} wrong", wrong)


def report(results, rows, labels):
    """The table."""
    head = [
        "",
        LIMIT,
        *[
            f"{label}{what}"
            for label in labels
            for what in (
                "",
                " ns each",
                " ns of work",
                " MB",
                " s to load",
                " s to settle",
                " wrong",
            )
        ],
    ]
    lines = []
    for row in rows:
        line = [row, results.spread(row, LIMIT)]
        for label in labels:
            rate = results.median(row, label)
            line += [
                results.spread(row, label),
                figure(1000 / rate, 3) if rate else "-",
                *[
                    figure(results.median(row, f"{label} {what}"), digits)
                    for what, digits in (("ns", 3), ("MB", 0), ("load_s", 2), ("settle_s", 2))
                ],
            ]
            wrong = results.median(row, f"{label} wrong")
            line.append("-" if wrong is None else f"{wrong:.4f}")
        lines.append(line)
    table(head, lines)


def work(options, daemons):
    """All points."""

    def measured(lab):
        results, rows = Results(options.json), []
        for kind in options.kind or KINDS:
            for count in options.points:
                row = f"{kind} {count}"
                rows.append(row)
                case = KINDS[kind](count)
                pcap = os.path.join(lab.directory, "in.pcap")
                write_pcap(pcap, case.frames)
                for _ in range(options.rounds):
                    results.add(row, LIMIT, limit(lab, pcap, options.seconds))
                    for label, command in daemons.items():
                        measure(lab, results, row, case, pcap, label, command, options.seconds)
                stderr(
                    f"{row}: "
                    + ", ".join(
                        f"{label} {results.spread(row, label)}" for label in [LIMIT, *daemons]
                    )
                )
        print(f"Mpps, 64-byte frames, one core; {machine()}")
        report(results, rows, list(daemons))

    return measured


def main():
    options = parser(__doc__)
    options.set_defaults(rounds=1, seconds=2)
    options.add_argument("--kind", action="append", choices=KINDS, help="of rules (default: all)")
    options.add_argument(
        "--points",
        type=lambda text: [int(word) for word in text.split(",")],
        default=POINTS,
        help="numbers of rules (default: 1,10,...,1000000)",
    )
    options = options.parse_args()
    options.daemon = options.daemon or [f"sluice={switchd()}"]
    daemons = contenders(options)
    run(work(options, daemons), daemons)


if __name__ == "__main__":
    sys.exit(main())
