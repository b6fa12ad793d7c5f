#!/usr/bin/python3
"""One receive queue and two workers: how much more goes through when the worker that receives hands
flows to the other.

    bench/steering_workers.py [--case NAME]... [--rounds 3] [--seconds 3]
                              [--daemon LABEL=COMMAND]... [--json FILE]

The cases of bench/forwarding.py by one worker on core 1 (`off`), then by two workers that share one
queue, once by a hash (`rss`: half of the flows each) and once by load (`adaptive`). Frames are
replayed from memory by net_pcap and leave by null devices, so no generator takes a core. "gain" is
two adaptive workers against one, "least" what it must be: 1.5 where receiving takes under half of a
worker, else 0.97 (as fast as without steering, but for noise). "imbalance" is by how much the
busier worker is above the mean of both, a second after the flows have settled. "refused" is the
share of frames that found the other worker's ring full. Ends with 1 where a gain is too small or an
imbalance above 10%.

Needs root, two cores with nothing else to do, and 4.8 GiB that can become huge pages.
"""

import os
import re
import sys
import time

from cases import CASES
from contender import (
    Results,
    contender,
    contenders,
    figure,
    machine,
    parser,
    rate_of,
    run,
    stderr,
    table,
)
from frames import write_pcap

# The least gain of each case.
DEFAULT = {
    "l2l3-10k": 1.5,
    "vxlan-in-10k": 1.5,
    "ovn-new": 1.5,
    "udp-1": 0.97,
    "udp-10k": 0.97,
    "zipf-100k": 0.97,
}
PAGES = 2400
SETTLE = 3
IMBALANCE = 0.10


def workers(switch):
    """What `sluice/steering` says of each worker: load, buckets away, frames given, taken and
    refused, moves, cycles to receive, process and take."""
    found = re.findall(
        r"^\d+ +\S+ +(\d+)% +(\d+) +(\d+) +(\d+) +(\d+) +\d+ +(\d+) +\d+"
        r" +(\d+) +(\d+) +(\d+) +\d+  ",
        switch.appctl("sluice/steering"),
        re.M,
    )
    return [
        dict(
            zip(
                (
                    "load",
                    "away",
                    "given",
                    "taken",
                    "refused",
                    "moves",
                    "receive",
                    "process",
                    "take",
                ),
                map(int, values),
            )
        )
        for values in found
    ]


def measure(lab, results, name, case, pcap, label, command, options, mode):
    """One round in one mode."""
    settings = [f"other_config:sluice-steering={mode}"]
    with contender(
        lab, label, command, cores=2 if mode == "off" else 3, settings=settings
    ) as switch:
        if case.tunnels:
            case.tunnels.build(switch, pcap)
        else:
            switch.sinks()
            switch.rules_from(case.rules)
            switch.source(pcap)
        if case.stations:
            switch.learn(case.stations)
        time.sleep(SETTLE)
        before = workers(switch)
        results.add(name, f"{label} {mode}", rate_of(switch.count(options.seconds)))
        after = workers(switch)
        if mode == "adaptive":
            loads = [worker["load"] for worker in after]
            mean = sum(loads) / len(loads)
            received = sum(worker["given"] for worker in after) - sum(
                worker["given"] for worker in before
            )
            refused = sum(worker["refused"] for worker in after) - sum(
                worker["refused"] for worker in before
            )
            results.add(name, f"{label} imbalance", max(loads) / mean - 1 if mean else 0)
            results.add(name, f"{label} refused", refused / max(1, received + refused))
            results.add(name, f"{label} away", max(worker["away"] for worker in after))
            for what in ("receive", "process", "take"):
                results.add(name, f"{label} {what}", max(worker[what] for worker in after))
            stderr(f"{name}: {after}")


def report(results, names, labels):
    """The table; whether all is as it must be."""
    rows, good = [], True
    for name in names:
        for label in labels:
            off, rss, adaptive = (
                results.median(name, f"{label} {mode}") for mode in ("off", "rss", "adaptive")
            )
            gain = adaptive / off if adaptive and off else None
            least, imbalance = DEFAULT.get(name), results.median(name, f"{label} imbalance")
            gives = results.median(name, f"{label} away")
            if (
                least
                and (gain is None or gain < least)
                or gives
                and (imbalance is None or imbalance > IMBALANCE)
            ):
                good = False
            rows.append(
                [
                    name,
                    label,
                    *[
                        results.spread(name, f"{label} {mode}")
                        for mode in ("off", "rss", "adaptive")
                    ],
                    figure(gain, 2),
                    figure(least, 2),
                    figure(rss / off if rss and off else None, 2),
                    "-" if imbalance is None else f"{imbalance:.0%}",
                    f"{results.median(name, f'{label} refused') or 0:.2%}",
                    figure(gives, 0),
                    *[
                        figure(results.median(name, f"{label} {what}"), 0)
                        for what in ("receive", "process", "take")
                    ],
                ]
            )
    table(
        [
            "case",
            "",
            "off, 1 worker",
            "rss, 2",
            "adaptive, 2",
            "gain",
            "least",
            "gain of rss",
            "imbalance",
            "refused",
            "buckets away",
            "receive",
            "process",
            "taken's",
        ],
        rows,
    )
    return good


def work(options, daemons):
    """All cases."""

    def measured(lab):
        results, names = Results(options.json), options.case or list(DEFAULT)
        for name in names:
            case = CASES[name]()
            pcap = os.path.join(lab.directory, "in.pcap")
            write_pcap(pcap, case.frames)
            for _ in range(options.rounds):
                for mode in ("off", "rss", "adaptive"):
                    for label, command in daemons.items():
                        measure(lab, results, name, case, pcap, label, command, options, mode)
        print(f"Mpps, 64-byte frames; cycles a packet; {machine()}")
        return 0 if report(results, names, list(daemons)) else 1

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
    daemons = {
        label: command
        for label, command in contenders(options).items()
        if "ovs-vswitchd" not in command[0]
    }
    run(work(options, daemons), daemons, PAGES)


if __name__ == "__main__":
    sys.exit(main())
