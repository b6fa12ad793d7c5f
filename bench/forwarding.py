#!/usr/bin/python3
"""Packets per second through one core, side by side: Sluice, Open vSwitch, and DPDK's own
forwarding as the limit (`make bench`).

    bench/forwarding.py [--case NAME]... [--rounds 3] [--seconds 3] [--daemon LABEL=COMMAND]...
                        [--json FILE]

Each measurement starts a contender afresh with one worker on core 1, gives it the rules of the case
(bench/cases.py), lets it forward 64-byte frames, replayed from memory by net_pcap, into two null
devices, and reads the ports' counters. The limit is testpmd that forwards the same frames without
looking at them. A figure is the median of the rounds in Mpps, with the least and the most; "x" is
the first daemon's against the others', "of limit" its share of the limit. "wrong" is the share of
packets that were counted on another rule than the right one (or left by another port): a figure
with more than 0.01 does not count. The limit and each daemon take turns within a round.

Needs root, two cores with nothing else to do, and 2.8 GiB that can become huge pages.
"""

import os
import re
import sys
import time

from cases import CASES
from contender import (
    LIMIT,
    Results,
    contender,
    contenders,
    figure,
    harness,
    limit,
    machine,
    parser,
    rate_of,
    run,
    stderr,
    table,
    wrong_ports,
)
from frames import write_pcap

WARM = 2
# Rules whose counters are read only when the traffic has ended.
MANY = 2000


def measure(lab, results, name, case, pcap, label, command, options):
    """One round of one daemon."""
    bridge = ["fail_mode=secure"]
    if case.stations:
        bridge += [
            f"other_config:mac-table-size={2 * len(case.stations)}",
            "other_config:mac-aging-time=3600",
        ]
    with contender(lab, label, command, bridge=bridge) as switch:
        if case.tunnels:
            case.tunnels.build(switch, pcap)
        else:
            switch.sinks()
            results.add(name, f"{label}.load_s", switch.rules_from(case.rules))
            switch.source(pcap)
        if case.stations:
            switch.learn(case.stations)
        time.sleep(WARM)
        counts = switch.count(options.seconds)
        results.add(name, label, rate_of(counts))
        results.add(name, f"{label}.rss_mb", switch.memory_mb())
        if options.profile:
            profile(lab, switch, name)
        if len(case.rules) > MANY:
            switch.silence()
        if case.hits:
            results.add(name, f"{label}.wrong", switch.wrong(case.hits))
        if case.stations:
            results.add(name, f"{label}.wrong", wrong_ports(counts, case.frames, case.stations))


def profile(lab, switch, name):
    """Prints where the daemon's workers spend their time, by perf's software clock: the daemon and
    each library, then the daemon's functions."""
    data = os.path.join(lab.directory, "perf.data")
    harness.run(
        [
            "perf",
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            "1999",
            "-o",
            data,
            "-p",
            str(switch.process.pid),
            "--",
            "sleep",
            "2",
        ]
    )
    report = [
        "perf",
        "report",
        "-i",
        data,
        "--stdio",
        "--no-children",
        "-q",
        "--percent-limit",
        "1",
    ]
    program = os.path.basename(switch.command[0])
    print(f"{name}: {switch.label}")
    for options in (["--sort", "dso"], ["--sort", "symbol", "--dsos", program]):
        for line in harness.run([*report, *options], seconds=120).stdout.splitlines():
            if line.strip():
                print("  " + re.sub(r"( +-)+ *$", "", line.rstrip())[:150], flush=True)


def report(results, names, labels):
    """The table."""
    first, others = labels[0], labels[1:]
    head = [
        "case",
        LIMIT,
        *labels[::-1],
        *[f"x {label}" for label in others],
        "of limit",
        *[f"{label} wrong" for label in labels],
    ]
    rows = []
    for name in names:
        rate, top = results.median(name, first), results.median(name, LIMIT)
        ratios = [
            rate / results.median(name, label) if rate and results.median(name, label) else None
            for label in others
        ]
        wrong = [results.median(name, f"{label}.wrong") for label in labels]
        rows.append(
            [
                name,
                results.spread(name, LIMIT),
                *[results.spread(name, label) for label in labels[::-1]],
                *[figure(ratio, 2) for ratio in ratios],
                f"{rate / top:.0%}" if rate and top else "-",
                *["-" if share is None else f"{share:.4f}" for share in wrong],
            ]
        )
    table(head, rows)


def work(options, daemons):
    """All cases."""

    def measured(lab):
        results, labels = Results(options.json), list(daemons)
        failed = False
        for name in options.case or CASES:
            case = CASES[name]()
            pcap = os.path.join(lab.directory, "in.pcap")
            write_pcap(pcap, case.frames)
            for _ in range(options.rounds):
                if not options.no_limit:
                    results.add(name, LIMIT, limit(lab, pcap, options.seconds))
                for label, command in daemons.items():
                    ours = case.tunnels and case.tunnels.is_ours_alone
                    if ours and harness.is_open_vswitch(command):
                        continue
                    try:
                        measure(lab, results, name, case, pcap, label, command, options)
                    except (harness.Failure, OSError) as failure:
                        stderr(f"{name}: {label}: {failure}")
                        failed = True
            stderr(
                f"{name}: "
                + ", ".join(f"{label} {results.spread(name, label)}" for label in [LIMIT, *labels])
            )
        print(f"Mpps, 64-byte frames, one core; {machine()}")
        report(results, options.case or CASES, labels)
        return int(failed)

    return measured


def main():
    options = parser(__doc__)
    options.add_argument(
        "--case",
        action="append",
        choices=CASES,
        metavar="NAME",
        help=f"of {', '.join(CASES)} (default: all)",
    )
    options.add_argument("--no-limit", action="store_true", help="does not measure the limit")
    options.add_argument(
        "--profile",
        action="store_true",
        help="also prints where the workers' time goes (perf, software clock; needs Debian's "
        "linux-perf)",
    )
    options = options.parse_args()
    daemons = contenders(options)
    run(work(options, daemons), daemons)


if __name__ == "__main__":
    sys.exit(main())
