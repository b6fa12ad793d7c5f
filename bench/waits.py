#!/usr/bin/python3
"""What `ovs-appctl qos/predict` says of a running queue beside what then happens to its packets, on
veth pairs (bench/traffic.c sends and receives).

    bench/waits.py forecast|paper [--seconds S] [--rounds N] [--daemon COMMAND] [--json FILE]

    forecast   UDP at several loads (regular, Poisson, bursts) and TCP (cubic) in a slice of 50
               Mbit/s, and a queue that borrows beside another
    paper      paper d's model at rates of which nothing is fitted, with the utilization and the
               group that the switch measured, beside the paper's own figures

The first half of each run is what the switch sees: at its end it is asked. The second half is what
it is judged by: the mean wait inside (the difference of the metrics `sluice_queue_wait_seconds_sum`
and `_count`), and delays from the sender's stamp to the receiver, less the median of those with an
idle switch (of TCP: the median round trip, less two of those). Frames of 1514 bytes. Needs what
bench/slicing.py needs.
"""

import json
import os
import re
import sys
import time

from contender import parser, run, stderr, switchd
from slicing_peers import harness, peer, queue, result, stream, work

MEGABIT = 1_000_000
FRAME = 1514
HUGE_PAGES = 300
PORT = 10_000 * MEGABIT


def totals(switch, number=0):
    """What packets of a queue have waited in all, in seconds, and how many they were."""
    text = switch.appctl("sluice/metrics")
    sums = [
        re.search(
            rf'^sluice_queue_wait_seconds_{what}{{port="{switch.egress}",queue="{number}"}} (\S+)$',
            text,
            re.M,
        )
        for what in ("sum", "count")
    ]
    return [float(found[1]) if found else 0.0 for found in sums]


def asked(switch, number=0):
    """What the switch says of a queue now."""
    return json.loads(switch.appctl("qos/predict", "--json", switch.egress, str(number)))[0]["told"]


def between(before, after):
    """The mean wait of packets that left meanwhile, in us."""
    return (after[0] - before[0]) / max(after[1] - before[1], 1) * 1e6


class Case:
    """A run: who sends what to queue 0, and perhaps to another."""

    def __init__(self, name, rate, streams, queues=None, tcp=None, port=PORT):
        self.name, self.streams, self.tcp, self.port = name, streams, tcp, port
        self.queues = queues or [queue(rate, limit=1000)]


def packets(rate, load):
    """Packets a second for a part of a rate."""
    return load * rate / (FRAME * 8)


def one(lab, options, case):
    """The forecast, what came of it inside and outside, all in us."""
    half = options.seconds
    with peer(lab, "sluice", options, 2) as (switch, hosts):
        switch.shape(case.port, case.queues)
        # What the way itself takes.
        receiver = hosts.receive(1, 0.5, 0.1)
        result(hosts.send(0.8, stream(200, FRAME)))
        idle = result(receiver)["p50"]
        asked(switch)
        receiver = hosts.receive(1, half - 0.2, half + 0.1)
        programs = [hosts.send(2 * half + 0.3, *case.streams)]
        if case.tcp:
            sink = hosts.sink()
            programs += [hosts.tcp(case.tcp, 0.5, 2 * half), sink]
        time.sleep(half)
        told, before = asked(switch), totals(switch)
        time.sleep(half - 0.1)
        inside = between(before, totals(switch))
        got = result(receiver)
        found = [result(program) for program in programs]
    outside, p99 = got["mean"] - idle, got["p99"] - idle
    if case.tcp:
        # A stream beside it has a flow queue of its own and does not wait behind it: here the
        # connection's round trips count, less two ways.
        outside, p99 = (max(0.0, found[1][key] - 2 * idle) for key in ("rtt50", "rtt99"))
    if told is None:
        raise harness.Failure(f"{case.name}: nothing was forecast")
    forecast = told["forecast"]
    chosen = [
        one["wait"]["value"] for one in forecast["candidates"] if one["model"] == forecast["model"]
    ]
    paper = next((one["wait"] for one in forecast["candidates"] if one["model"] == "paper"), None)
    return {
        "model": forecast["model"],
        "own": 1e6 * (chosen[0] if chosen else told["waited"]["mean"]),
        "said": {key: 1e6 * value for key, value in forecast["wait"].items()},
        "cannot": forecast["cannot_tell"],
        "inside": inside,
        "outside": outside,
        "p99": p99,
        "group": told["group"],
        "rho": forecast["utilization"]["value"],
        "paper": paper,
        "idle": idle,
    }


def show(case, found):
    """One line for people."""
    said = found["said"]
    stderr(
        f"{case.name}: rho {found['rho']:.4f}, {found['model']} {found['own']:.0f} us; said "
        f"{said['value']:.0f} us ({said['low']:.0f} to {said['high']:.0f}); "
        f"inside {found['inside']:.0f}, outside {found['outside']:.0f}, p99 {found['p99']:.0f}; "
        f"{found['cannot'] or ''}"
    )


def within(said, measured, grace):
    """Whether an interval holds."""
    return said["low"] - grace <= measured <= said["high"] + grace


def forecast(lab, options, results):
    """Rows: what comes to a slice of 50 Mbit/s."""
    rate = 50 * MEGABIT
    cases = [
        Case(
            f"{process}, {load:.0%}",
            rate,
            [stream(packets(rate, load), FRAME, process=process, burst=burst)],
        )
        for process, burst, loads in (
            ("cbr", 1, (0.5, 0.9)),
            ("poisson", 1, (0.3, 0.6, 0.8, 0.9)),
            ("burst", 8, (0.3, 0.6)),
        )
        for load in loads
    ]
    # Queue 0 borrows what queue 1 leaves of the port.
    shared = [queue(rate / 5, rate, limit=1000), queue(rate * 4 / 5, rate, limit=1000)]
    cases += [
        Case(
            f"poisson, 40%, borrows beside {other:.0%}",
            rate,
            [
                stream(packets(rate, 0.4), FRAME, process="poisson"),
                stream(packets(rate, other), FRAME, first=1, process="poisson"),
            ],
            shared,
            port=rate,
        )
        for other in (0.2, 0.5)
    ]
    cases.append(
        Case("tcp cubic, 100 may wait", rate, [stream(100, 100)], [queue(rate, limit=100)], "cubic")
    )
    cases.append(
        Case(
            "tcp cubic, 1000 may wait", rate, [stream(100, 100)], [queue(rate, limit=1000)], "cubic"
        )
    )
    cases.append(
        Case(
            "tcp cubic, bound 2 ms",
            rate,
            [stream(100, 100)],
            [queue(rate, bound_us=2000, limit=1000)],
            "cubic",
        )
    )
    for case in cases:
        found = one(lab, options, case)
        show(case, found)
        results.add(case.name, "rho, %", 100 * found["rho"])
        results.add(case.name, "model, us", found["own"])
        results.add(case.name, "said, us", found["said"]["value"])
        results.add(case.name, "from", found["said"]["low"])
        results.add(case.name, "to", found["said"]["high"])
        results.add(case.name, "inside, us", found["inside"])
        results.add(case.name, "outside, us", found["outside"])
        results.add(case.name, "p99 outside, us", found["p99"])
        results.add(
            case.name,
            "holds",
            float(found["cannot"] is None and within(found["said"], found["inside"], 1)),
        )


def paper(lab, options, results):
    """Rows: rates and loads."""
    print(
        "paper d, figure 4: 19.22 ms at 500 Mbit/s behind kernel HTB, said by groups of 16 "
        "packets of 1500 bytes at rho 0.980 (0.975: 15.4 ms; 0.985: 25.6 ms)"
    )
    for megabits in (20, 80, 150):
        rate = megabits * MEGABIT
        transmission = FRAME * 8e6 / rate
        cases = [
            Case(
                f"{megabits} Mbit/s, poisson, {load:.0%}",
                rate,
                [stream(packets(rate, load), FRAME, process="poisson")],
            )
            for load in (0.5, 0.8, 0.9)
        ]
        cases.append(
            Case(
                f"{megabits} Mbit/s, bursts of 16, 50%",
                rate,
                [stream(packets(rate, 0.5), FRAME, process="burst", burst=16)],
            )
        )
        cases.append(
            Case(
                f"{megabits} Mbit/s, tcp cubic, 100 may wait",
                rate,
                [stream(100, 100)],
                [queue(rate, limit=100)],
                "cubic",
            )
        )
        for case in cases:
            found = one(lab, options, case)
            show(case, found)
            says = found["paper"]
            ends = [
                1e6 * says[end] if says and says[end] is not None else float("inf")
                for end in ("value", "low", "high")
            ]
            stderr(
                f"  paper mode, by group {found['group'] or 1:.2f}: {ends[0]:.0f} us "
                f"({ends[1]:.0f} to {ends[2]:.0f}) with the packet's own {transmission:.0f} us; "
                f"measured {found['inside'] + transmission:.0f} us"
            )
            results.add(case.name, "rho, %", 100 * found["rho"])
            results.add(case.name, "group", found["group"] or 1)
            for what, value in zip(("paper, us", "from", "to"), ends):
                results.add(case.name, what, min(value, 1e9))
            results.add(case.name, "measured, us", found["inside"] + transmission)
            results.add(
                case.name,
                "off, %",
                min(1e6, 100 * (ends[0] / (found["inside"] + transmission) - 1)),
            )
            results.add(
                case.name,
                "forecast off, %",
                100
                * ((found["said"]["value"] + transmission) / (found["inside"] + transmission) - 1),
            )


TESTS = {"forecast": forecast, "paper": paper}


def main():
    options = parser(__doc__, daemons=False)
    options.add_argument("test", choices=TESTS)
    options.add_argument(
        "--daemon", metavar="COMMAND", help="Sluice's daemon (default: target/release/sluiced)"
    )
    options.set_defaults(rounds=1, seconds=3)
    options = options.parse_args()
    command = harness.switchd_command(options.daemon or switchd())
    if not os.access(command[0], os.X_OK):
        sys.exit(f"there is no daemon at {command[0]}: `make` builds it")
    run(work(options, TESTS[options.test]), {"sluice": command}, HUGE_PAGES)


if __name__ == "__main__":
    sys.exit(main())
