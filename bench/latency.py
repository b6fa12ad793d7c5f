#!/usr/bin/python3
"""How long packets take through the switch, and what stops a worker.

    bench/latency.py [--case load|pauses] [--rounds 1] [--seconds 5] [--daemon LABEL=COMMAND]...
                     [--json FILE]

A generator (crates/ports/examples/latency.rs) on core 0 sends 64-byte packets of 1000 flows with
their time in them into one vhost-user port, and takes them from another; the switch's worker has
core 1.

    load    median, 99th and 99.9th percentile of the time from port to port (us) at 10%, 50% and
            90% of the most that comes through, each daemon's own
    pauses  times of more than 50 us in which nothing comes through, a second, at 200,000 packets/s,
            undisturbed and while 10,000 flow mods/s arrive, ports are added and removed and
            statistics read, all on core 0; beside them the pauses of a bare loop that reads the
            clock on core 1, without a worker, meanwhile

The generator knows when it was itself stopped and leaves those times out. Needs root, two cores
with nothing else to do, and 3.4 GiB that can become huge pages.
"""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import time

from contender import (
    HUGE_PAGES,
    ROOT,
    Connection,
    Results,
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
from rule_changes import flow_mod

SHARES = [10, 50, 90]
PAUSE_RATE = 200_000
MODS_PER_SECOND = 10_000
# Rules that the flow mods add, again and again.
CHANGING = 5_000
BUILD = [
    "cargo",
    "build",
    "--release",
    "--locked",
    "-p",
    "sluice-ports",
    "--example",
    "latency",
    "--message-format=json",
]


def build():
    """Builds the generator; returns its path."""
    if os.environ.get("SLUICE_BENCH_GENERATOR"):
        return os.environ["SLUICE_BENCH_GENERATOR"]
    done = subprocess.run(BUILD, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if (
            message.get("reason") == "compiler-artifact"
            and message["target"]["name"] == "latency"
            and message.get("executable")
        ):
            return message["executable"]
    sys.exit("the generator does not build")


class Generator:
    """The generator between two vhost-user ports of a switch."""

    def __init__(self, lab, switch, program, seconds, *words):
        devices = [
            f"net_virtio_user{number},path={switch.directory}/v{number + 1}.sock,queues=1,server=1"
            for number in (0, 1)
        ]
        self.process = lab.start(
            [
                "taskset",
                "-c",
                "0",
                program,
                *devices,
                str(seconds),
                "--extra",
                "--no-pci --single-file-segments",
                *map(str, words),
            ],
            f"generator{len(lab.programs)}.err",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in (1, 2):
            switch.vhost(f"v{number}", number)
        self.expect("connected")
        for number in (1, 2):
            harness.wait_for(
                f"v{number} is up",
                lambda number=number: switch.get("Interface", f"v{number}", "link_state") == "up",
                30,
            )
        switch.rules_from(["in_port=1,udp,tp_dst=80,actions=output:2"])
        time.sleep(0.5)

    def expect(self, word):
        """The next line that begins with a word."""
        for line in self.process.stdout:
            if line.decode().startswith(word):
                return line.decode().strip()
        raise harness.Failure(
            f"the generator ended with {self.process.wait(10)} and without a line of {word!r}"
        )

    def go(self):
        """Lets it begin."""
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def found(self):
        """What it found out about the next share."""
        words = self.expect("share").split()
        return {name: float(value) for name, value in zip(words[::2], words[1::2])}

    def end(self):
        """Waits for its end."""
        self.process.stdin.close()
        self.process.wait(30)


def load(lab, results, label, command, program, seconds):
    """One round of three loads."""
    with contender(lab, label, command) as switch:
        generator = Generator(lab, switch, program, seconds, *SHARES)
        generator.go()
        results.add("most, Mpps", label, float(generator.expect("most").split()[1]) / 1e6)
        for share in SHARES:
            found = generator.found()
            for key, name in (("p50", "median"), ("p99", "p99"), ("p999", "p99.9")):
                results.add(f"{name} at {share}%, us", label, found[key])
            results.add(
                f"lost at {share}%, %", label, max(0, 100 * (1 - found["received"] / found["sent"]))
            )
        generator.end()


def change_rules(path, seconds, counted):
    """Sends flow mods at an even rate, from core 0; says how many were done."""
    os.sched_setaffinity(0, {0})
    connection = Connection(path)
    blobs = [
        b"".join(flow_mod(first + number, number + 1) for number in range(100))
        for first in range(0, CHANGING, 100)
    ]
    begin, sent = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        due = int((time.monotonic() - begin) * MODS_PER_SECOND / 100)
        for _ in range(min(due - sent, 50)):
            connection.socket.sendall(blobs[sent % len(blobs)])
            sent += 1
        connection.barrier(1 << 24)
        time.sleep(0.005)
    counted.value = int(sent * 100 / (time.monotonic() - begin))


def disturb(switch, seconds):
    """Has rules changed, ports added and removed, and statistics read, for a while; returns flow
    mods a second."""
    counted = multiprocessing.Value("i", 0)
    changer = multiprocessing.Process(
        target=change_rules, args=(switch.management, seconds, counted)
    )
    changer.start()
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        name = f"t{number}"
        switch.vsctl("add-port", "br0", name, "--", "set", "Interface", name, "type=internal")
        switch.ofctl("dump-flows", switch.management, "table=0")
        switch.ofctl("dump-ports", switch.management)
        switch.vsctl("del-port", "br0", name)
        number += 1
        time.sleep(0.2)
    changer.join()
    return counted.value


def pauses(lab, results, label, command, program, seconds):
    """One round: the worker's pauses, at rest and disturbed, then those of a bare loop."""
    os.sched_setaffinity(0, {0})
    with contender(lab, label, command) as switch:
        generator = Generator(lab, switch, program, seconds, "--rate", PAUSE_RATE, 100, 100)
        generator.go()
        for name in ("at rest", "disturbed"):
            if name == "disturbed":
                results.add("flow mods/s", label, disturb(switch, seconds + 1))
            found = generator.found()
            results.add(f"pauses/s {name}", label, found["pauses"] / found["observed"])
            results.add(f"longest {name}, us", label, found["longest"])
            results.add(f"observed {name}, s", label, found["observed"])
        generator.end()
    with contender(lab, label, command, cores=1) as switch:
        spinner = lab.start(
            ["taskset", "-c", "1", program, "--spin", str(seconds)],
            "spin.err",
            stdout=subprocess.PIPE,
        )
        disturb(switch, seconds)
        found = re.match(
            r"spin pauses (\d+) longest ([0-9.]+) observed ([0-9.]+)",
            spinner.communicate(timeout=30)[0].decode(),
        )
        results.add("pauses/s of a bare loop", label, int(found.group(1)) / float(found.group(3)))
        results.add("longest of a bare loop, us", label, float(found.group(2)))


def report(results, labels):
    """The table."""
    rows = []
    for name in results.rows:
        middle = [results.median(name, label) for label in labels]
        rows.append(
            [
                name,
                *[results.spread(name, label) for label in labels],
                *[
                    figure(middle[0] / other, 2) if middle[0] is not None and other else "-"
                    for other in middle[1:]
                ],
            ]
        )
    table(["", *labels, *[f"x {label}" for label in labels[1:]]], rows)


def work(options, daemons, program):
    """All rounds."""

    def measured(lab):
        results = Results(options.json)
        for number in range(options.rounds):
            for label, command in daemons.items():
                if options.case in (None, "load"):
                    load(lab, results, label, command, program, options.seconds)
                if options.case in (None, "pauses"):
                    pauses(lab, results, label, command, program, options.seconds)
            stderr(f"round {number + 1} of {options.rounds} is done")
        print(machine())
        report(results, list(daemons))

    return measured


def main():
    options = parser(__doc__)
    options.set_defaults(rounds=1, seconds=5)
    options.add_argument("--case", choices=["load", "pauses"])
    options = options.parse_args()
    daemons = contenders(options)
    program = build()
    os.environ["SLUICE_BENCH_GENERATOR"] = program
    run(work(options, daemons, program), daemons, HUGE_PAGES + 300)


if __name__ == "__main__":
    sys.exit(main())
