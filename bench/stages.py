#!/usr/bin/python3
"""Cycles per packet by stage in a live Sluice, and what the account itself costs.

    bench/stages.py [--case NAME]... [--rounds 3] [--seconds 2] [--json FILE]

For each case of bench/forwarding.py (64-byte frames from memory, one worker, which never has to
wait for any) the daemon is started once and then, in each round, forwards with `sluice/stages` off
and on by turns. A figure is the median of the rounds, in cycles of the time stamp counter by
packets that came in. "idle" is empty polls and rest. "x clock" is the check: all stages' cycles per
packet, times the packets per second that OpenFlow's counters showed meanwhile, by the counter's
frequency; 1 is right. "on/off" is the rate with the account on by that with it off.

Needs root, two cores with nothing else to do, and 2.8 GiB that can become huge pages.
"""

import json
import os
import sys
import time

from cases import CASES
from contender import (
    Results,
    contender,
    contenders,
    figure,
    harness,
    machine,
    parser,
    rate_of,
    run,
    stderr,
    table,
)
from frames import write_pcap

WARM = 2
DEFAULT = ["inport-1", "udp-1", "normal-10k", "acl-1k-10masks", "vxlan-in-1", "ct-1"]
STAGES = [
    "receive",
    "memory",
    "parse",
    "lookup",
    "actions",
    "normal",
    "track",
    "queue",
    "tunnel",
    "send",
    "handover",
    "control",
]
IDLE = ["empty_polls", "rest"]


def build(switch, case, pcap):
    """Puts a case's rules and ports into a daemon."""
    if case.tunnels:
        case.tunnels.build(switch, pcap)
        return
    switch.sinks()
    switch.rules_from(case.rules)
    switch.source(pcap)
    if case.stations:
        switch.learn(case.stations)


def round_of(results, name, switch, seconds):
    """One round: off, on, and what was counted meanwhile."""
    off = rate_of(switch.count(seconds))
    switch.appctl("sluice/stages", "on")
    time.sleep(0.1)
    switch.appctl("sluice/stages", "clear")
    counts = switch.count(seconds)
    told = json.loads(switch.appctl("sluice/stages", "show", "--json"))
    switch.appctl("sluice/stages", "off")
    time.sleep(0.1)
    total = told["total"]
    cycles = {stage["name"]: stage["cycles"] for stage in total["stages"]}
    each = {stage: count / total["packets"] for stage, count in cycles.items()}
    for stage in STAGES:
        results.add(name, stage, each[stage])
    results.add(name, "idle", sum(each[stage] for stage in IDLE))
    results.add(name, "sum", sum(each.values()))
    results.add(name, "clock", sum(each.values()) * counts["in"] / counts["time"] / told["tsc_hz"])
    results.add(name, "difference", total["difference_percent"])
    results.add(name, "account", total["changes"] * told["change_cycles"] / total["packets"])
    results.add(name, "change", told["change_cycles"])
    results.add(name, "off", off)
    results.add(name, "on", rate_of(counts))
    results.add(name, "ratio", rate_of(counts) / off)


def report(results, names):
    """The table."""
    some = [
        stage
        for stage in STAGES
        if any((results.median(name, stage) or 0) >= 0.05 for name in names)
    ]
    head = ["case", *some, "idle", "sum", "x clock", "account", "Mpps off", "on/off"]
    rows = [
        [
            name,
            *[f"{results.median(name, stage) or 0:.1f}" for stage in [*some, "idle", "sum"]],
            f"{results.median(name, 'clock') or 0:.3f}",
            f"{results.median(name, 'account') or 0:.1f}",
            figure(results.median(name, "off")),
            results.spread(name, "ratio"),
        ]
        for name in names
    ]
    table(head, rows)


def work(options, daemons):
    """All cases."""

    def measured(lab):
        results = Results(options.json)
        (label, command) = next(iter(daemons.items()))
        failed = False
        names = options.case or DEFAULT
        for name in names:
            case = CASES[name]()
            pcap = os.path.join(lab.directory, "in.pcap")
            write_pcap(pcap, case.frames)
            bridge = ["fail_mode=secure"]
            if case.stations:
                bridge += [
                    f"other_config:mac-table-size={2 * len(case.stations)}",
                    "other_config:mac-aging-time=3600",
                ]
            try:
                with contender(lab, label, command, bridge=bridge) as switch:
                    build(switch, case, pcap)
                    time.sleep(WARM)
                    for _ in range(options.rounds):
                        round_of(results, name, switch, options.seconds)
            except (harness.Failure, OSError) as failure:
                stderr(f"{name}: {failure}")
                failed = True
            stderr(f"{name}: {results.spread(name, 'sum')} cycles/packet")
        change = figure(results.median(names[0], "change"))
        print(
            f"cycles per packet, 64-byte frames, one worker; a change of stage takes {change} "
            f"cycles; {machine()}"
        )
        report(results, names)
        return int(failed)

    return measured


def main():
    options = parser(__doc__, daemons=False)
    options.add_argument(
        "--case",
        action="append",
        choices=CASES,
        metavar="NAME",
        help=f"of {', '.join(CASES)} (default: {', '.join(DEFAULT)})",
    )
    options = options.parse_args()
    options.daemon = []
    daemons = contenders(options)
    run(work(options, {"sluice": daemons["sluice"]}), daemons)


if __name__ == "__main__":
    sys.exit(main())
