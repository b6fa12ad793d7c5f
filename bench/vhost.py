#!/usr/bin/python3
"""vhost-user: packets between two virtio-user devices, and flows that nobody has seen before.

    bench/vhost.py [--rounds 3] [--seconds 3] [--daemon LABEL=COMMAND]... [--json FILE]

testpmd has both devices and works on core 0, the switch on core 1.

    circulating  testpmd sends 64-byte packets once and then forwards what it gets; the switch takes
                 them from one port to the other, both ways. Mpps of both ways together, as counted
                 by testpmd, and cycles per packet, as the daemon counts them itself
                 (dpif-netdev/pmd-stats-show)
    10k flows    testpmd sends to one port the packets of 10,000 flows in turn; each flow is spread
                 by its five-tuple (multipath) to one of two null devices, so that Open vSwitch
                 needs a megaflow for each; cycles per packet, too, since testpmd's own rate may be
                 what limits
    new flows    the same with so many flows (50,000,000) that none comes again within seconds

Needs root, two cores with nothing else to do, and 3.4 GiB that can become huge pages.
"""

import sys
import time

from contender import (
    HUGE_PAGES,
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
from testpmd import Testpmd

NEW = 50_000_000
SPREAD = [
    (
        "table=0,in_port=1,udp,actions=multipath(symmetric_l4,1024,modulo_n,2,0,NXM_NX_REG0[]),"
        "resubmit(,1)"
    ),
    "table=1,reg0=0,actions=output:{out}",
    "table=1,reg0=1,actions=output:{out2}",
]
# The thread that takes commands and the one that forwards, both on core 0.
CORES = ("--lcores", "0@0,1@0")
BURSTS = 64


def peers(lab, paths, *options):
    """testpmd with a device for each socket."""
    return Testpmd(lab, paths, f"peer{len(lab.programs)}", ["--nb-cores=1", *options], cores=CORES)


def up(switch, *names):
    """Waits until the peers' devices are connected."""
    for name in names:
        harness.wait_for(
            f"{name} is up",
            lambda name=name: switch.get("Interface", name, "link_state") == "up",
            30,
        )


def add_cycles(results, switch, name, label):
    """Notes the cycles that the daemon counted for a packet since its counts were cleared."""
    cycles = switch.cycles()
    if not cycles:
        raise harness.Failure(f"{label} counts no cycles")
    results.add(f"{name}, cycles per packet", label, max(cycles))


def circulate(lab, results, label, command, seconds):
    """One round of packets that go to and fro."""
    with contender(lab, label, command) as switch:
        tester = peers(lab, [f"{switch.directory}/v{number}.sock" for number in (1, 2)])
        for number in (1, 2):
            switch.vhost(f"v{number}", number)
        tester.wait_ready()
        up(switch, "v1", "v2")
        switch.rules_from(["in_port=1,actions=output:2", "in_port=2,actions=output:1"])
        tester.forward("io", BURSTS)
        time.sleep(1)
        switch.appctl("dpif-netdev/pmd-stats-clear")
        before, begin = tester.counters(), time.monotonic()
        time.sleep(seconds)
        after, end = tester.counters(), time.monotonic()
        received = sum(then[0] - now[0] for now, then in zip(before, after))
        results.add("circulating", label, received / (end - begin) / 1e6)
        add_cycles(results, switch, "circulating", label)
        tester.quit()


def flood(lab, results, label, command, seconds, name, flows):
    """One round of packets from so many flows."""
    with contender(lab, label, command) as switch:
        switch.sinks()
        tester = peers(lab, [f"{switch.directory}/v1.sock"], f"--flowgen-flows={flows}")
        switch.vhost("v1", 1)
        tester.wait_ready()
        up(switch, "v1")
        switch.rules_from(SPREAD)
        tester.forward("flowgen")
        time.sleep(2)
        switch.appctl("dpif-netdev/pmd-stats-clear")
        results.add(name, label, rate_of(switch.count(seconds)))
        add_cycles(results, switch, name, label)
        tester.stop()
        tester.quit()


def report(results, labels):
    """The table."""
    rows = []
    for name in results.rows:
        middle = [results.median(name, label) for label in labels]
        rows.append(
            [
                name,
                *[results.spread(name, label) for label in labels],
                *[figure(middle[0] / other, 2) if other else "-" for other in middle[1:]],
            ]
        )
    table(["", *labels, *[f"x {label}" for label in labels[1:]]], rows)
    for label in labels:
        known, new = results.median("10k flows", label), results.median("new flows", label)
        if known and new:
            print(f"{label}: new flows at {new / known:.0%} of the rate of 10,000 flows")


def work(options, daemons):
    """All rounds."""

    def measured(lab):
        results = Results(options.json)
        for number in range(options.rounds):
            for label, command in daemons.items():
                if options.case in (None, "circulating"):
                    circulate(lab, results, label, command, options.seconds)
                if options.case in (None, "flows"):
                    flood(lab, results, label, command, options.seconds, "10k flows", 10_000)
                    flood(lab, results, label, command, options.seconds, "new flows", NEW)
            stderr(f"round {number + 1} of {options.rounds} is done")
        print(
            "Mpps (and cycles), 64-byte frames, switch on one core, testpmd on the other; "
            f"{machine()}"
        )
        report(results, list(daemons))

    return measured


def main():
    options = parser(__doc__)
    options.add_argument("--case", choices=["circulating", "flows"])
    options = options.parse_args()
    daemons = contenders(options)
    run(work(options, daemons), daemons, HUGE_PAGES + 300)


if __name__ == "__main__":
    sys.exit(main())
