#!/usr/bin/env python3
"""Tracked connections, side by side: Sluice and Open vSwitch (userspace, DPDK). Exits with 1 where
a goal is missed.

    bench/conntrack.py [--row NAME]... [--long] [--rounds 3] [--seconds 3]
                       [--daemon LABEL=COMMAND]...

Rows (the rules and frames are those of bench/cases_connections.py, bench/forwarding.py measures
them one by one):

    established  packets of established connections: at least 4 times Open vSwitch, and at least
                 half of the same rules without `ct`
    new          packets each of which ends its connection and begins the next, and TCP handshakes,
                 translated or not, of which each begins a new connection: 5 times
    flood        1,000 established connections beside a flood of SYNs that begin connections, in a
                 table with room for 20,000: none of their packets is taken for another than one of
                 its connection

Rows that take minutes, only where they are named or with --long:

    workers      the cases of `new`, by two workers with half of the connections each: 1.7 times one
    million      the row `established` with 1,000,000 connections, which is more than frames can be
                 kept in memory for: testpmd makes them on core 0. Since testpmd may be what limits
                 the rate, what counts are the cycles for each packet that daemons themselves tell
                 of (dpif-netdev/pmd-stats-show); and the memory that a connection takes, at most
                 300 bytes
    expiry       200,000 packets/s that are not tracked, before and while 1,000,000 connections
                 end: the worst 99th percentile of their delay in a window of 2 s is at most 100 us
                 above the median of those before

Each figure is the median of the rounds (one round in `million` and `expiry`), of one worker on core
1, with frames of 64 bytes; daemons take turns.

Needs root, two cores with nothing else to do, and 2.8 GiB that can become huge pages (3.4 GiB for
`million` and `expiry`, which need dpdk-testpmd, too).
"""

import os
import re
import statistics
import sys
import time

import cases_connections
import latency
from contender import (
    HUGE_PAGES,
    contender,
    contenders,
    figure,
    harness,
    machine,
    parser,
    run,
    stderr,
    table,
)
from frames import write_pcap
from testpmd import Testpmd
from vhost import CORES, peers, up

WARM = 2
# Cases, and the same without `ct`, which may be twice as fast at most.
ESTABLISHED = {
    "ct-1": "ct-none-1",
    "ct-10k": "ct-none-10k",
    "ct-50k": None,
    "ct-tcp-10k": None,
    "ct-nat-1k": None,
}
NEW = ["ct-new-1k", "ct-new-50k", "ct-hand-1k", "ct-hand-nat-1k"]
TIMES = {"established": 4, "new": 5}
HALF = 0.5
GAIN = 1.7
# The least share of packets that begin a connection, where one in four does.
BEGINNING = 0.9 / cases_connections.HAND

MILLION = 1_000_000
# Bytes for each connection.
MEMORY = 300
# Port numbers of testpmd's devices, where others have the first ones.
FLOWS_PORT, REFLECTOR_PORT = 4, 5
# Seconds until all connections are there, and the share of packets that may then begin one.
PATIENCE, STRAGGLERS = 240, 0.001
# How a million connections end: seconds that they live, packets/s beside them, seconds of a window,
# windows at the most, and microseconds by which the 99th percentile may move.
LIFE, RATE, WINDOW, WINDOWS, MOVE = 20, 200_000, 2, 60, 100

CONNECTIONS, ROOM, SYNS = 1000, 20000, 90000
FLOOD = [
    "table=0,priority=10,ip,actions=ct(table=1)",
    "table=1,priority=10,ct_state=+trk+new,in_port={flood},ip,actions=ct(commit),output:{out}",
    "table=1,priority=10,cookie=1,ct_state=+trk+est,in_port={in},ip,actions=output:{out}",
    "table=1,priority=5,cookie=2,in_port={in},ip,actions=ct(commit),output:{out2}",
]
FLOOD_PORT = 9


def rate(lab, name, label, command, seconds, workers=1):
    """One figure of one daemon, Mpps. Several workers have a queue each, with a share of the
    connections."""
    rules, frames = cases_connections.CASES[name]()
    files = []
    for worker in range(workers):
        files.append(os.path.join(lab.directory, f"in{worker}.pcap"))
        write_pcap(files[-1], frames[worker::workers])
    options = {"bridge": ["fail_mode=secure"], "cores": 2 if workers == 1 else 3}
    with contender(lab, label, command, **options) as switch:
        switch.sinks()
        switch.rules_from(rules)
        replayed = ",".join(f"rx_pcap={file}" for file in files)
        switch.port(
            "in",
            "type=dpdk",
            f'options:dpdk-devargs="net_pcap0,{replayed},infinite_rx=1"',
            f"options:n_rxq={workers}",
            "ofport_request=1",
        )
        time.sleep(WARM)
        result = switch.rate(seconds)
        if name.startswith("ct-hand"):
            begins(switch, name, label)
        return result


def begins(switch, name, label):
    """Fails unless handshakes have begun connections; else the figure is of something else."""
    switch.silence()
    packets = switch.rule_packets(switch.management)
    share = packets.get(1, 0) / max(1, packets.get(1, 0) + packets.get(2, 0))
    harness.check(share >= BEGINNING, f"{name}: {label} has begun connections by {share:.1%}")


def medians(lab, options, daemons, names, workers=1):
    """Figures by case and daemon, each the median of the rounds."""
    found = {}
    for name in names:
        for _ in range(options.rounds):
            for label, command in daemons.items():
                figures = found.setdefault((name, label), [])
                figures.append(rate(lab, name, label, command, options.seconds, workers))
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


def two_workers(lab, options, daemons):
    """What a second worker gains for new connections; the goal is the first daemon's."""
    one, two = (medians(lab, options, daemons, NEW, workers) for workers in (1, 2))
    first = next(iter(daemons))
    lines, reached = [], True
    for name in NEW:
        gains = {label: two[name, label] / one[name, label] for label in daemons}
        good = gains[first] >= GAIN
        reached &= good
        lines.append(
            [
                "workers",
                name,
                *[f"{figure(one[name, at])} to {figure(two[name, at])}" for at in daemons],
                *[figure(gains[label], 2) for label in daemons],
                "yes" if good else "no",
            ]
        )
    return lines, reached


def connections(switch):
    """How many connections there are."""
    return int(switch.appctl("dpctl/ct-get-nconns"))


def own_memory(switch):
    """Bytes of memory that the daemon shares with nobody."""
    with open(f"/proc/{switch.process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"RssAnon:\s+(\d+)", file.read()).group(1)) * 1024


def flows(lab, switch, port, number):
    """testpmd, which sends packets of a million flows in turn to a port that this makes."""
    path = f"{switch.directory}/{port}.sock"
    tester = peers(lab, [path], f"--flowgen-flows={MILLION}")
    switch.vhost(port, number)
    tester.wait_ready()
    up(switch, port)
    return tester


def establish(lab, switch, tester):
    """Has a second testpmd answer the packets of all connections, until all are established."""
    path = f"{switch.directory}/reflector.sock"
    reflector = Testpmd(lab, [path], f"peer{len(lab.programs)}", ["--nb-cores=1"], cores=CORES)
    switch.vhost("reflector", REFLECTOR_PORT)
    reflector.wait_ready()
    up(switch, "reflector")
    reflector.forward("5tswap")
    tester.forward("flowgen")
    # Of the packets of a second, none begins a connection but for a few, whatever Open vSwitch's
    # counters are late by.
    end, before = time.monotonic() + PATIENCE, switch.rule_packets(switch.management)
    while True:
        time.sleep(2)
        after = switch.rule_packets(switch.management)
        begun, known = (after.get(cookie, 0) - before.get(cookie, 0) for cookie in (1, 2))
        before = after
        if connections(switch) >= MILLION and known > MILLION and begun <= STRAGGLERS * known:
            break
        harness.check(
            time.monotonic() < end,
            f"{switch.label}: {connections(switch)} connections after {PATIENCE} s, of whose "
            f"packets {begun} of {begun + known} were no answers'",
        )
    reflector.stop()
    switch.vsctl("del-port", "reflector")
    reflector.quit()


def cycles(switch, seconds):
    """Cycles for each packet, and Mpps."""
    time.sleep(WARM)
    switch.appctl("dpif-netdev/pmd-stats-clear")
    mpps = switch.rate(seconds)
    return max(switch.cycles()), mpps


def million(lab, options, daemons):
    """Packets of a million established connections."""
    found, lines = {}, []
    for label, command in daemons.items():
        with contender(lab, label, command, bridge=["fail_mode=secure"]) as switch:
            switch.sinks()
            tester = flows(lab, switch, "flows", FLOWS_PORT)
            known = cases_connections.marked(cases_connections.ESTABLISHED)
            known[1] = known[1].replace("{out}", str(REFLECTOR_PORT))
            answers = f"table=0,priority=20,in_port={REFLECTOR_PORT},ip,actions=ct(table=2)"
            before = own_memory(switch)
            switch.rules_from([*known, answers])
            establish(lab, switch, tester)
            with_ct = cycles(switch, options.seconds)
            memory = (own_memory(switch) - before) / connections(switch)
            plain = [cases_connections.NONE[0], "table=1,priority=10,udp,actions=output:{out}"]
            switch.rules_from(plain)
            without = cycles(switch, options.seconds)
            tester.stop()
            tester.quit()
        found[label] = with_ct, without, memory
        stderr("million", label, found[label])
    first, *others = daemons
    (own, _), (plain, _), memory = found[first]
    good = all(found[label][0][0] / own >= TIMES["established"] for label in others)
    good &= plain / own >= HALF and memory <= MEMORY
    for label, (with_ct, without, memory) in found.items():
        lines.append(["million", label, *map(figure, with_ct), *map(figure, without)])
        lines[-1] += [
            figure(with_ct[0] / own, 2),
            f"{without[0] / with_ct[0]:.0%}",
            f"{memory:.0f}",
            "-" if label != first else "yes" if good else "no",
        ]
    return lines, good


def expiry(lab, options, daemons):
    """What others' packets notice of a million connections that end."""
    lines, reached = [], True
    for label, command in daemons.items():
        with contender(lab, label, command, bridge=["fail_mode=secure"]) as switch:
            switch.vsctl(
                *("--", "--id=@d", "create", "Datapath", "datapath_version=0"),
                *("--", "set", "Open_vSwitch", ".", "datapaths:netdev=@d"),
            )
            life = [f"udp_{state}={LIFE}" for state in ("first", "single", "multiple")]
            switch.vsctl("add-zone-tp", "netdev", "zone=0", *life)
            words = ["--rate", RATE, *[100] * WINDOWS]
            generator = latency.Generator(lab, switch, options.generator, WINDOW, *words)
            tester = flows(lab, switch, "flows", FLOWS_PORT)
            switch.rules_from(
                [
                    f"priority=20,in_port={FLOWS_PORT},ip,actions=ct(commit)",
                    "in_port=1,udp,tp_dst=80,actions=output:2",
                ]
            )
            tester.forward("flowgen")
            full = f"{label} has {MILLION} connections"
            harness.wait_for(full, lambda at=switch: connections(at) >= MILLION, PATIENCE)
            tester.stop()
            switch.vsctl("del-port", "flows")
            tester.quit()
            all_there = connections(switch)
            generator.go()
            quiet, ending, left = [], [], all_there
            for _ in range(WINDOWS):
                found, now = generator.found()["p99"], connections(switch)
                (quiet if now == left else ending).append(found)
                if now == left == 0:
                    break
                left = now
            generator.process.kill()
            generator.process.wait(30)
        harness.check(left == 0, f"{label}: {left} connections have not ended")
        harness.check(
            quiet and ending, f"{label}: {len(quiet)} quiet windows, {len(ending)} others"
        )
        moved = max(ending) - statistics.median(quiet)
        good = moved <= MOVE
        if label == next(iter(daemons)):
            reached = good
        lines.append(["expiry", label, f"{all_there}", figure(statistics.median(quiet))])
        lines[-1] += [figure(max(quiet))]
        lines[-1] += [f"{len(ending)}", figure(max(ending)), figure(moved), "yes" if good else "no"]
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
        if "workers" in options.row:
            lines, good = two_workers(lab, options, daemons)
            reached &= good
            gains = [f"gain of {label}" for label in daemons]
            table(["row", "case", *daemons, *gains, "reached"], lines)
        if "million" in options.row:
            lines, good = million(lab, options, daemons)
            reached &= good
            head = ["row", "daemon", "cycles", "Mpps", "cycles without ct", "Mpps"]
            table([*head, "times", "without ct", "bytes each", "reached"], lines)
        if "expiry" in options.row:
            lines, good = expiry(lab, options, daemons)
            reached &= good
            head = ["row", "daemon", "connections", "p99 before, us", "worst before"]
            head += ["windows", "worst p99, us", "moved by, us", "reached"]
            table(head, lines)
        return int(not reached)

    return measured


def main():
    options = parser(__doc__)
    short, long = [*TIMES, "flood"], ["workers", "million", "expiry"]
    options.add_argument(
        "--row", action="append", choices=[*short, *long], help="default: all that take no minutes"
    )
    options.add_argument("--long", action="store_true", help="all rows")
    options = options.parse_args()
    options.row = options.row or (short + long if options.long else short)
    daemons = contenders(options)
    if "expiry" in options.row:
        options.generator = latency.build()
        os.environ["SLUICE_BENCH_GENERATOR"] = options.generator
    more = 300 if {"million", "expiry"} & set(options.row) else 0
    return run(work(options, daemons), daemons, HUGE_PAGES + more)


if __name__ == "__main__":
    sys.exit(main())
