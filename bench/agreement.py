#!/usr/bin/python3
"""Whether `sluice predict`, bench/forwarding.py and `sluice lab` say the same of the same rules and
packets.

    bench/agreement.py [--case NAME]... [--rounds 5] [--seconds 1] [--discards 3]
                       [--sluiced COMMAND] [--keep DIR]

For each case of bench/cases.py (six without --case) the rules and packets are written into files,
and the three take turns: a prediction, a measurement of bench/forwarding.py, and one of `sluice lab
run` of an experiment with these files (`job: given`), each as a user would start it. Before,
between and after them `sluice predict machine` looks how fast the machine is; a round during which
that moved by more than 5%, or others had work for the machine, is discarded and taken again, up to
--discards times a case; where there are too few, those that moved least are taken.

A figure is the median of the rounds in Mpps with the interval in which the next median of as many
rounds lies with 95% (as the lab has it, crates/lab/src/statistics.rs); a prediction's is as wide as
its own. Two agree where their intervals overlap. A half-width above 15% of the median tells
nothing, and does not count as agreement. Ends with 1 where any two disagree, with 2 where that
cannot be told.

Needs what bench/forwarding.py needs. What it measures is the machine: run it on a quiet one.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

from cases import CASES
from contender import OTHER_CORE, WORKER_CORE, figure, hugepages, machine, stderr, switchd, table
from frames import write_pcap
from predict import PREDICTION_PAGES, STILL, look, sluice, spread_of

NAMES = ("predict", "bench", "lab")
DEFAULT = ["inport-1", "udp-1", "udp-10k", "acl-1k-10masks", "l2l3-10k", "tse"]
# Student's t at 97.5% by degrees of freedom from 1, and the variance of a median of so many
# standard normal values from 2: as in crates/lab/src/statistics.rs.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)
MEDIAN_VARIANCE = (0.5, 0.4487, 0.2982, 0.2868, 0.2147, 0.2104, 0.1682)
MOST_ROUNDS = len(T) + 1
# The half-width of an interval that tells something, at most, as a share of the median.
NARROW = 0.15
# How often it is looked whether others have work for the machine.
LOOKS = 15
EXPERIMENT = """\
id: agreement
title: A case of bench/cases.py
purpose: To measure what others measure.
topology: Frames in memory go to two null devices by rules, one worker.
method: throughput
subjects: [sluice]
settings: {{job: given, path: p-p, ports: memory, outputs: 2, openflow: {flows}, capture: {pcap}}}
measures:
  - {{name: rate, title: Throughput, unit: Mpps, better: higher}}
"""


@dataclasses.dataclass
class Figure:
    """What rounds of one of the three say."""

    middle: float
    low: float
    high: float

    @property
    def tells(self):
        """Whether the interval is narrow enough to disagree with anything."""
        return self.high - self.low <= 2 * NARROW * self.middle

    def __str__(self):
        return f"{figure(self.middle)} [{figure(self.low)}-{figure(self.high)}]"


def figure_of(values, own=()):
    """The figure of rounds; `own` are ends of intervals that are said of each."""
    count, middle = len(values), statistics.median(values)
    half = 0
    if count > 1:
        half = T[count - 2] * statistics.stdev(values) * (2 * MEDIAN_VARIANCE[count - 2]) ** 0.5
    return Figure(
        middle,
        max(0, min(middle - half, *values, *own)),
        max(middle + half, *values, *own),
    )


def disagreements(figures):
    """Pairs of names whose figures have nothing in common."""
    return [
        (one, other)
        for one, other in itertools.combinations(figures, 2)
        if figures[one].low > figures[other].high or figures[other].low > figures[one].high
    ]


def verdict(figures):
    """What figures by name say together, in words, and the code to end with."""
    apart = disagreements(figures)
    if apart:
        return ", ".join(f"{one} and {other} DISAGREE" for one, other in apart), 1
    wide = [name for name, found in figures.items() if not found.tells]
    if wide:
        return f"too wide to tell: {', '.join(wide)}", 2
    return "agree", 0


def said(command, seconds):
    """What a command prints; what it says besides is shown only if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: ended with {done.returncode}: "
            f"{(done.stderr or done.stdout).strip()[-1000:]}"
        )
    return done.stdout


class Case:
    """A case's files, and how each of the three looks at it."""

    def __init__(self, name, directory, options):
        self.name, self.directory, self.options, self.number = name, directory, options, 0
        case = CASES[name]()
        if case.stations or case.tunnels:
            raise RuntimeError(f"{name}: is more than rules and packets")
        write_pcap(self.path("in.pcap"), case.frames)
        rules = "\n".join(case.rules)
        for port, number in (("{in}", "1"), ("{out2}", "3"), ("{out}", "2")):
            rules = rules.replace(port, number)
        self.write("flows.txt", f"{rules}\n")
        self.write(
            "agreement.yaml",
            EXPERIMENT.format(
                flows=json.dumps(self.path("flows.txt")), pcap=json.dumps(self.path("in.pcap"))
            ),
        )

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def predict(self):
        """Mpps, and the prediction's own interval."""
        files = ["--flows", self.path("flows.txt"), "--traffic", self.path("in.pcap")]
        words = ["--sluiced", self.options.sluiced, "--json", "--cpu", str(WORKER_CORE)]
        with hugepages.reserved(PREDICTION_PAGES):
            answer = json.loads(said([sluice(), "predict", *files, *words], 120))
        told = answer["prediction"]["mpps"]
        return told["median"], (told["low"], told["high"])

    def bench(self):
        """Mpps."""
        file = f"bench-{self.number}.json"
        said(
            [
                sys.executable,
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "forwarding.py"),
                *["--case", self.name, "--rounds", "1", "--seconds", str(self.options.seconds)],
                *["--no-limit", "--daemon", f"sluice={self.options.sluiced}"],
                *["--json", self.path(file)],
            ],
            300,
        )
        (rate,) = self.read(file)[self.name]["sluice"]
        return rate, ()

    def lab(self):
        """Mpps."""
        output = f"lab-{self.number}"
        said(
            [
                *[sluice(), "lab", "run", self.path("agreement.yaml"), "--subject", "sluice"],
                *["--rounds", "1", "--seconds", str(self.options.seconds)],
                *["--core", str(WORKER_CORE), str(OTHER_CORE)],
                *["--sluiced", self.options.sluiced, "--output", self.path(output)],
            ],
            300,
        )
        found = self.read(f"{output}/results.json")["experiments"]
        (cell,) = next(one for one in found if one["id"] == "agreement")["cells"]
        if "rate" not in cell["figures"]:
            raise RuntimeError(f"{self.name}: the lab: {cell['missing']}")
        (rate,) = cell["figures"]["rate"]["runs"]
        return rate, ()

    def round(self):
        """What each says, and by how much the machine moved meanwhile; infinite if others had work
        for it, of which predictions and measurements notice different parts."""
        self.number += 1
        others, looks, found = at_work(), [look()], {}
        for name in NAMES:
            found[name] = getattr(self, name)()
            looks.append(look())
            others = max(others, at_work())
        return found, math.inf if others else spread_of(looks)


def at_work():
    """How many threads are running, or would if there were more cores, while this one waits: the
    median of a few looks."""
    seen = []
    for _ in range(LOOKS):
        with open("/proc/loadavg", encoding="ascii") as file:
            # Running and all threads. The one that reads this is running.
            seen.append(int(file.read().split()[3].partition("/")[0]) - 1)
        time.sleep(0.02)
    return statistics.median_low(seen)


def chosen(rounds, wanted):
    """So many rounds: those during which the machine stood still, and where these are too few,
    those during which it moved least."""
    return sorted(rounds, key=lambda found: max(found[1], STILL))[:wanted]


def compared(case, options):
    """The figures of all three by name, and how many rounds do not count."""
    rounds = []
    while sum(moved <= STILL for _, moved in rounds) < options.rounds and len(rounds) < (
        options.rounds + options.discards
    ):
        found, moved = case.round()
        rounds.append((found, moved))
        rates = ", ".join(f"{name} {figure(found[name][0])}" for name in NAMES)
        how = f"moved by {moved:.0%}" if math.isfinite(moved) else "was busy with other things"
        stderr(f"{case.name}: {rates}; the machine {how}")
    taken = chosen(rounds, options.rounds)
    figures = {
        name: figure_of(
            [found[name][0] for found, _ in taken],
            # What a prediction says of itself, in the middle of the rounds.
            [
                statistics.median(found[name][1][end] for found, _ in taken)
                for end in (0, 1)
                if taken[0][0][name][1]
            ],
        )
        for name in NAMES
    }
    return figures, len(rounds) - len(taken)


def main():
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--case", action="append", choices=CASES, metavar="NAME")
    words.add_argument("--rounds", type=int, default=5, choices=range(2, MOST_ROUNDS + 1))
    words.add_argument("--seconds", type=float, default=1)
    words.add_argument("--discards", type=int, default=3)
    words.add_argument("--sluiced", metavar="COMMAND", default=switchd())
    words.add_argument("--keep", metavar="DIR", help="leaves files and results there")
    options = words.parse_args()
    if os.geteuid() != 0:
        sys.exit("namespaces and huge pages need root")
    rows, codes = [], []
    for name in options.case or DEFAULT:
        with tempfile.TemporaryDirectory(prefix="agreement.") as directory:
            if options.keep:
                directory = os.path.join(os.path.abspath(options.keep), name)
                os.makedirs(directory)
            try:
                figures, discarded = compared(Case(name, directory, options), options)
            except (RuntimeError, OSError, subprocess.TimeoutExpired, hugepages.Shortage) as error:
                # The other cases can be told all the same.
                rows.append([name, *["-" for _ in NAMES], "-", str(error)])
                codes.append(1)
                continue
        text, code = verdict(figures)
        codes.append(code)
        rows.append([name, *[str(figures[one]) for one in NAMES], discarded, text])
    print(f"Mpps, 64-byte frames, one core; {machine()}")
    table(["case", *NAMES, "discarded", "verdict"], rows)
    # Disagreement weighs more than what cannot be told.
    return min((code for code in codes if code), default=0)


if __name__ == "__main__":
    sys.exit(main())
