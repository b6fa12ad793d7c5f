#!/usr/bin/python3
"""From one worker to two: how much more goes through, next to DPDK's own forwarding.

    bench/cores.py [--case NAME]... [--rounds 3] [--seconds 3] [--daemon LABEL=COMMAND]...
                   [--json FILE]

The cases of bench/forwarding.py, once with one worker on core 1 and one receive queue, once with
two workers and two queues of the same net_pcap device. "gain" is the rate of two over that of one;
the last columns compare it with testpmd's own. "miscounted" is by how many packets the rules'
counters and those of the ports out differ once the traffic has ended (every case has one table).

Needs root, two cores with nothing else to do, and 4.8 GiB that can become huge pages.
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
    limit,
    machine,
    parser,
    rate_of,
    run,
    stderr,
    table,
)
from frames import write_pcap

DEFAULT = ["inport-1", "udp-10k", "acl-1k-10masks"]
PAGES = 2400


def miscounted(switch):
    """By how many packets the rules' counters and the ports' differ once the traffic has ended."""
    switch.silence()
    counts = switch.sent()
    by_rules = int(
        re.search(r"packet_count=(\d+)", switch.ofctl("dump-aggregate", switch.management)).group(1)
    )
    return abs(by_rules - counts["out"] - counts["out2"])


def measure(lab, results, name, case, pcap, label, command, options, workers):
    """One round with so many workers."""
    with contender(lab, label, command, cores=3 if workers == 2 else 2) as switch:
        switch.sinks()
        switch.rules_from(case.rules)
        switch.source(pcap, f"options:n_rxq={workers}", queues=workers)
        time.sleep(2)
        results.add(name, f"{label} {workers}", rate_of(switch.count(options.seconds)))
        if workers == 2:
            results.add(name, f"{label} miscounted", miscounted(switch))


def report(results, names, labels):
    """The table."""
    rows = []
    for name in names:
        gains = {}
        for label in labels:
            one, two = results.median(name, f"{label} 1"), results.median(name, f"{label} 2")
            gains[label] = two / one if one and two else None
        for label in labels:
            share = gains[label] / gains[LIMIT] if gains[label] and gains[LIMIT] else None
            rows.append(
                [
                    name,
                    label,
                    results.spread(name, f"{label} 1"),
                    results.spread(name, f"{label} 2"),
                    figure(gains[label], 3),
                    figure(share, 3),
                    figure(results.median(name, f"{label} miscounted"), 0),
                ]
            )
    table(["case", "", "1 worker", "2 workers", "gain", "of testpmd's gain", "miscounted"], rows)


def work(options, daemons):
    """All cases."""

    def measured(lab):
        results, names = Results(options.json), options.case or DEFAULT
        for name in names:
            case = CASES[name]()
            pcap = os.path.join(lab.directory, "in.pcap")
            write_pcap(pcap, case.frames)
            for _ in range(options.rounds):
                for workers in (1, 2):
                    results.add(
                        name, f"{LIMIT} {workers}", limit(lab, pcap, options.seconds, workers)
                    )
                    for label, command in daemons.items():
                        measure(lab, results, name, case, pcap, label, command, options, workers)
            stderr(f"{name} is done")
        print(f"Mpps, 64-byte frames; {machine()}")
        report(results, names, [LIMIT, *daemons])

    return measured


def main():
    options = parser(__doc__)
    options.add_argument(
        "--case",
        action="append",
        choices=CASES,
        metavar="NAME",
        help=f"of {', '.join(CASES)} (default: {' '.join(DEFAULT)})",
    )
    options = options.parse_args()
    daemons = contenders(options)
    run(work(options, daemons), daemons, PAGES)


if __name__ == "__main__":
    sys.exit(main())
