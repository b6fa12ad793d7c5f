#!/usr/bin/python3
"""What shaping costs: packets per second through one core to a port without queues and to the same
port shaped, above any rate that comes.

    bench/shaped.py [--rounds 3] [--seconds 2] [--daemon LABEL=COMMAND]... [--json FILE]

64-byte frames, replayed from memory by net_pcap, leave by a null device; its QoS of type linux-htb
has a max-rate of 100 Gbit/s and grants each queue its share. In "one" a rule sends everything to
the default queue, in "eight" rules choose one of eight queues by the source port. The port is
shaped and unshaped in turns within a round, under the same rules; "of unshaped" is the quotient of
the medians.

Needs root, two cores with nothing else to do, and 2.8 GiB that can become huge pages.
"""

import os
import sys
import time

from contender import Results, contender, contenders, machine, parser, run, stderr, switchd, table
from frames import uniform, write_pcap

RATE = 100_000_000_000
QUEUES = 8
WARM = 1
CASES = {
    "one": (["actions=output:{out}"], 1, 1),
    "eight": (
        [
            f"udp,tp_src={number}/7,actions=set_queue:{number},output:{{out}}"
            for number in range(QUEUES)
        ],
        QUEUES,
        1000,
    ),
}


def shape(switch, queues):
    """Gives the port out a QoS with so many queues, none for no QoS."""
    if not queues:
        return switch.vsctl(
            "clear",
            "Port",
            "out",
            "qos",
            "--",
            "--all",
            "destroy",
            "QoS",
            "--",
            "--all",
            "destroy",
            "Queue",
        )
    share = RATE // queues
    rows = [
        word
        for number in range(queues)
        for word in (
            "--",
            f"--id=@q{number}",
            "create",
            "Queue",
            f"other-config:min-rate={share}",
            f"other-config:max-rate={RATE}",
        )
    ]
    places = [f"queues:{number}=@q{number}" for number in range(queues)]
    return switch.vsctl(
        "set",
        "Port",
        "out",
        "qos=@qos",
        "--",
        "--id=@qos",
        "create",
        "QoS",
        "type=linux-htb",
        f"other-config:max-rate={RATE}",
        *places,
        *rows,
    )


def measure(lab, results, label, command, options):
    """One round: every case, shaped and not."""
    for name, (rules, queues, flows) in CASES.items():
        pcap = os.path.join(lab.directory, f"{name}.pcap")
        write_pcap(pcap, uniform(flows))
        with contender(lab, label, command) as switch:
            switch.sinks()
            switch.rules_from(rules)
            switch.source(pcap)
            for what, count in (("unshaped", 0), ("shaped", queues)):
                shape(switch, count)
                time.sleep(WARM)
                results.add(name, f"{label}.{what}", switch.rate(options.seconds))


def work(options, daemons):
    """All rounds."""

    def measured(lab):
        results = Results(options.json)
        for _ in range(options.rounds):
            for label, command in daemons.items():
                measure(lab, results, label, command, options)
                stderr(label, {name: results.rows[name] for name in CASES})
        rows = []
        for name in CASES:
            for label in daemons:
                plain, shaped = (
                    results.median(name, f"{label}.{what}") for what in ("unshaped", "shaped")
                )
                rows.append(
                    [
                        name,
                        label,
                        results.spread(name, f"{label}.unshaped"),
                        results.spread(name, f"{label}.shaped"),
                        f"{shaped / plain:.0%}" if plain else "-",
                    ]
                )
        print(f"Mpps, 64-byte frames, one core; {machine()}")
        table(["queues", "daemon", "unshaped", "shaped", "of unshaped"], rows)
        return 0

    return measured


def main():
    options = parser(__doc__).parse_args()
    # Open vSwitch's userspace datapath has no such queues.
    options.daemon = options.daemon or [f"sluice={switchd()}"]
    daemons = contenders(options)
    run(work(options, daemons), daemons)


if __name__ == "__main__":
    sys.exit(main())
