#!/usr/bin/python3
"""How well `sluice predict` predicts: predicted and measured packets per second of one core, side
by side.

    bench/predict.py [--case NAME]... [--seeds FIRST-LAST] [--rounds 3] [--seconds 1] [--discards 4]
                     [--stages] [--daemon LABEL=COMMAND] [--json FILE]

For each of ten cases of bench/cases.py (or those that --case names) and each rule set made at
random from a seed the daemon gets the rules and the packets, and its ports' counters say what it
does: windows of --seconds, whose least and most are the interval of the measurement. `sluice
predict` gets the same rules and packets and nothing else.

Both take turns, since a virtual machine's speed moves by up to a factor of two within minutes: a
prediction, a window, a prediction, and so on, the daemon standing still (SIGSTOP) while it is
predicted what it does, so that both have the same processor. Right before and right after each
window `sluice predict machine` looks how fast the machine is; a window between whose ends that
moved by more than 5% (additions or loads of what the processor's own caches do not hold) is
discarded and taken again, up to --discards times a case. Where there are too few of the others
then, those that moved least are taken, and said to be. How many windows count and how many were
discarded, and how far the machine moved from the first to the last look at it, stands in the table.

A prediction is right when the middle of all predictions of its case is within 15% of the interval
of the windows (least to most), as shares of their median; and when the same holds of each window
divided by the mean of the predictions before and after it, which leaves out what moved both. The
error that is shown is the median of predicted over measured, of such pairs, less 1.

Needs what bench/forwarding.py needs. What it measures is the machine: run it on a quiet one.
"""

import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

from cases import CASES, Case
from contender import (
    HUGE_PAGES,
    WORKER_CORE,
    Results,
    contender,
    contenders,
    figure,
    machine,
    parser,
    run,
    stderr,
    switchd,
    table,
)
from frames import FRAMES, TCP, UDP, address_text, frame, mac_text, prefix_mask, write_pcap

# Seconds that a daemon has to settle (trees are made, flows remembered), in looks that must come to
# the same within a share of it.
SETTLING, LOOK, LEVEL = 10, 0.5, 0.02
# Seconds that do not count after it has stood still.
WARM = 0.2
# Huge pages that a prediction takes while the daemon has its own.
PREDICTION_PAGES = 500
# Readings of a look at the machine, of about a millisecond each.
READINGS = 100
# By how much the machine may move from one end of a window to the other.
STILL = 0.05
# The cases without --case; what a learning bridge has learned is no part of a rule set.
PROMISED = [
    "inport-1",
    "udp-1",
    "udp-1k",
    "udp-10k",
    "udp-100k",
    "zipf-100k",
    "acl-1k-10masks",
    "acl-1k-50masks",
    "l2l3-10k",
    "tse",
]
TOLERANCE = 0.15
SEEDS = "1-20"


def sluice():
    """The command that `make` has built."""
    return os.path.join(os.path.dirname(switchd()), "sluice")


class RandomRules:
    """A rule set from a seed: one to four tables of random kinds, one behind the other, and packets
    for them."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.rules = []
        depth = self.draw.choice([1, 1, 2, 3, 4])
        self.tables = [self.table(number, number == depth - 1) for number in range(depth)]

    def table(self, number, last):
        """Adds a table's rules; returns what changes a packet so that it meets one of them."""
        kind = self.draw.choice(
            [self.hosts, self.prefixes, self.services, self.stations, self.access_list]
        )
        count = self.draw.choice([3, 10, 50, 300, 2000, 10000])
        values = []
        for priority, (match, change) in enumerate(kind(count), 10):
            self.rules.append(
                f"table={number},priority={min(priority, 60000)},{match},"
                f"actions={self.actions(number, last)}"
            )
            values.append(change)
        self.rules.append(
            f"table={number},priority=1,actions={self.actions(number, last, plain=True)}"
        )
        return values

    def actions(self, number, last, plain=False):
        """What a rule does: some edits, then the next table or a port; some rules of the last table
        drop."""
        end = (
            f"resubmit(,{number + 1})"
            if not last
            else self.draw.choice(["output:{out}"] * 4 + ["output:{out2}"] * 3 + ["drop"])
        )
        if plain or end == "drop":
            return end
        edits = [
            f"load:{self.draw.randrange(1 << 16)}->NXM_NX_REG{number}[]",
            "mod_dl_dst:02:00:00:00:0a:01",
            "dec_ttl",
            "mod_nw_tos:32",
        ]
        return ",".join(self.draw.sample(edits, self.draw.choice([0, 0, 1, 2])) + [end])

    def hosts(self, count):
        """Exact addresses."""
        for host in self.draw.sample(range(1 << 20), count):
            yield f"ip,nw_dst={address_text(0x0A000000 + host)}", {"destination": 0x0A000000 + host}

    def prefixes(self, count):
        """Routes of several lengths."""
        lengths = self.draw.sample(range(10, 30), self.draw.choice([1, 3, 8]))
        for _ in range(count):
            length = self.draw.choice(lengths)
            network = self.draw.getrandbits(32) & prefix_mask(length)
            yield (
                f"ip,nw_dst={address_text(network)}/{length}",
                {
                    "destination": network
                    | self.draw.getrandbits(32) & ~prefix_mask(length) & 0xFFFFFFFF
                },
            )

    def services(self, count):
        """Destination ports."""
        for port in self.draw.sample(range(1, 65536), min(count, 5000)):
            yield f"udp,tp_dst={port}", {"destination_port": port, "protocol": UDP}

    def stations(self, count):
        """MAC addresses."""
        for station in self.draw.sample(range(1 << 24), count):
            yield (
                f"dl_src={mac_text(0x020000000000 + station)}",
                {"source_mac": 0x020000000000 + station},
            )

    def access_list(self, count):
        """Masked addresses and ports."""
        count = min(count, 2000)
        shapes = [
            (
                self.draw.choice([8, 16, 24, 32]),
                self.draw.choice([8, 16, 24, 28]),
                self.draw.choice([0, 0xF000, 0xFFFF]),
            )
            for _ in range(self.draw.choice([2, 10, 40]))
        ]
        for _ in range(count):
            bits, other_bits, port_mask = self.draw.choice(shapes)
            source, destination = (
                self.draw.getrandbits(32) & prefix_mask(bits),
                self.draw.getrandbits(32) & prefix_mask(other_bits),
            )
            port = self.draw.randrange(65536) & port_mask
            match = (
                f"tcp,nw_src={address_text(source)}/{bits},"
                f"nw_dst={address_text(destination)}/{other_bits}"
                + (f",tp_dst={port:#x}/{port_mask:#x}" if port_mask else "")
            )
            yield (
                match,
                {
                    "source": source | self.draw.getrandbits(32 - bits) if bits < 32 else source,
                    "destination": destination | self.draw.getrandbits(32 - other_bits),
                    "destination_port": port | self.draw.getrandbits(16) & ~port_mask,
                    "protocol": TCP,
                },
            )

    def case(self):
        """The rules and their packets: most meet a rule in every table, as far as tables agree."""
        flows = self.draw.choice([100, 1000, 10000, FRAMES])
        made = []
        for _ in range(flows):
            packet = {
                "source": self.draw.getrandbits(32),
                "destination": self.draw.getrandbits(32),
                "source_port": self.draw.randrange(1024, 65536),
                "destination_port": self.draw.randrange(65536),
                "protocol": UDP,
            }
            for values in self.tables:
                if self.draw.random() < 0.95:
                    packet.update(self.draw.choice(values))
            made.append(frame(**packet))
        frames = [made[number % flows] for number in range(max(flows, 4096))]
        self.draw.shuffle(frames)
        return Case(self.rules, frames)


@dataclasses.dataclass
class Window:
    """A measurement, and what was known of the machine right before and right after it."""

    mpps: float
    # How fast the machine was: {"additions": per ns, "memory_ns": of a load}.
    before: dict
    after: dict
    # The share of the processor that the host gave to others.
    stolen: float = 0.0
    # Mpps of the predictions before and after it.
    told: tuple = ()

    @property
    def moved(self):
        """By how much the machine moved from one to the other."""
        return spread_of([self.before, self.after])

    @property
    def ratio(self):
        """Predicted over measured."""
        return statistics.mean(self.told) / self.mpps


def spread_of(looks):
    """How far looks at the machine lie apart: most over least of additions or of loads, whichever
    moved more, less 1."""
    if min(look[what] for look in looks for what in ("additions", "memory_ns")) <= 0:
        raise RuntimeError("how fast the machine is cannot be told: sluice predict machine says 0")
    return (
        max(
            max(look[what] for look in looks) / min(look[what] for look in looks)
            for what in ("additions", "memory_ns")
        )
        - 1
    )


def error_beyond(prediction, windows):
    """By how much a prediction misses the measured interval, as a share of its median."""
    low, high = min(windows), max(windows)
    return max(0, prediction - high, low - prediction) / statistics.median(windows)


@dataclasses.dataclass
class Verdict:
    """What predictions and windows say together."""

    predictions: list
    # Those that count, and how many do not.
    windows: list
    discarded: int
    # How many that count moved by more than they should have.
    moving: int
    looks: list

    @property
    def predicted(self):
        return statistics.median(self.predictions)

    @property
    def measured(self):
        return statistics.median(self.rates)

    @property
    def rates(self):
        return [window.mpps for window in self.windows]

    @property
    def error(self):
        """The median of predicted over measured, less 1: no interval is taken off."""
        return statistics.median(window.ratio for window in self.windows) - 1

    @property
    def beyond(self):
        """How far the prediction is outside the interval of what was measured, the further of two:
        as figures stand, and in pairs, each window in units of the predictions beside it."""
        return max(
            error_beyond(self.predicted, self.rates),
            error_beyond(1, [1 / window.ratio for window in self.windows]),
        )

    @property
    def right(self):
        return self.beyond <= TOLERANCE


def judge(predictions, windows, looks, wanted):
    """Takes so many windows: those during which the machine stood still, and where these are too
    few, those during which it moved least. More than are wanted there are not."""
    chosen = sorted(windows, key=lambda window: max(window.moved, STILL))[:wanted]
    return Verdict(
        predictions,
        chosen,
        len(windows) - len(chosen),
        sum(window.moved > STILL for window in chosen),
        looks,
    )


def take_turns(predict, measure, look, rounds, discards):
    """Predictions and windows in turns: `predict` returns what is told, `measure` a rate and the
    share that was stolen meanwhile, `look` how fast the machine is. Ends when there are enough
    windows during which the machine stood still, or so many more as may be discarded have been
    taken: then there are enough of all."""
    predictions, windows, looks = [predict()], [], []
    still = 0
    while still < rounds and len(windows) < rounds + discards:
        before = look()
        mpps, stolen = measure()
        after = look()
        predictions.append(predict())
        told = tuple(prediction["mpps"]["median"] for prediction in predictions[-2:])
        window = Window(mpps, before, after, stolen, told)
        windows.append(window)
        looks += [before, after]
        still += window.moved <= STILL
    return predictions, judge(
        [prediction["mpps"]["median"] for prediction in predictions], windows, looks, rounds
    )


def asked(*words):
    """What `sluice predict` answers."""
    done = subprocess.run(
        [sluice(), "predict", *words, "--json", "--cpu", str(WORKER_CORE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


def prediction_of(flows, pcap):
    """A prediction with what is said of its ports beside it."""
    answer = asked("--flows", flows, "--traffic", pcap, "--sluiced", switchd())
    return answer["prediction"] | {"notes": answer["notes"]}


def look():
    """How fast the machine is now: {"additions": per ns, "memory_ns": of a load}."""
    return asked("machine", "--readings", str(READINGS))["machine"]["mean"]


def stolen_ticks():
    """What the worker's processor has not had, and all there was, in ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = next(
            (line.split()[1:9] for line in file if line.startswith(f"cpu{WORKER_CORE} ")), None
        )
    if ticks is None:
        raise RuntimeError(
            f"/proc/stat says nothing of processor {WORKER_CORE}, on which the worker is to run"
        )
    return int(ticks[7]), sum(map(int, ticks))


class Turns:
    """A daemon that stands still but for its windows."""

    def __init__(self, switch, seconds):
        self.switch, self.seconds = switch, seconds

    def settle(self):
        """Lets it run until packets come no faster than half a second before."""
        end, rate = time.monotonic() + SETTLING, 0
        while time.monotonic() < end:
            last, rate = rate, self.rate(LOOK)
            if last and rate <= last * (1 + LEVEL):
                break
        self.stand()

    def cache(self):
        """Whether the worker remembers walks, and why; empty where it has no use for that."""
        self.go()
        lines = self.switch.appctl("sluice/cache").splitlines()
        self.stand()
        return lines[-1][lines[0].rindex("cache") :].strip() if len(lines) > 1 else ""

    def stand(self):
        self.switch.process.send_signal(signal.SIGSTOP)

    def go(self):
        self.switch.process.send_signal(signal.SIGCONT)

    def rate(self, seconds):
        """Mpps that come in: what is dropped has cost its cycles too."""
        counts = self.switch.count(seconds)
        return counts["in"] / counts["time"] / 1e6

    def measure(self):
        """A window, and the share of the processor that was stolen meanwhile."""
        self.go()
        try:
            time.sleep(WARM)
            before = stolen_ticks()
            rate = self.rate(self.seconds)
            if rate <= 0:
                raise RuntimeError("nothing comes in")
            after = stolen_ticks()
        finally:
            self.stand()
        return rate, (after[0] - before[0]) / max(1, after[1] - before[1])


def compared(lab, case, command, options):
    """Predictions and what they come to, of one case; and whether the daemon remembers walks."""
    pcap, flows = (os.path.join(lab.directory, name) for name in ("in.pcap", "flows.txt"))
    write_pcap(pcap, case.frames)
    with open(flows, "w", encoding="ascii") as file:
        file.write(
            "\n".join(
                rule.replace("{in}", "1").replace("{out2}", "3").replace("{out}", "2")
                for rule in case.rules
            )
            + "\n"
        )
    with contender(lab, "sluice", command) as switch:
        switch.sinks()
        switch.rules_from(case.rules)
        switch.source(pcap)
        turns = Turns(switch, options.seconds)
        try:
            turns.settle()
            predictions, verdict = take_turns(
                lambda: prediction_of(flows, pcap),
                turns.measure,
                look,
                options.rounds,
                options.discards,
            )
            return predictions, verdict, turns.cache()
        finally:
            # One that stands does not end.
            turns.go()


def interval(values):
    """Least and most, in text."""
    return f"{figure(min(values))}-{figure(max(values))}"


HEAD = [
    "rules",
    "number",
    "predicted",
    "interval",
    "measured",
    "interval",
    "error",
    "beyond",
    "within 15%",
    "windows",
    "discarded",
    "machine moved",
    "stolen",
]


def row_of(name, case, verdict):
    """A case's line of the table."""
    answer = ("yes" if verdict.right else "NO") + (
        f" ({verdict.moving} moved)" if verdict.moving else ""
    )
    return [
        name,
        len(case.rules),
        figure(verdict.predicted),
        interval(verdict.predictions),
        figure(verdict.measured),
        interval(verdict.rates),
        f"{verdict.error:+.1%}",
        f"{verdict.beyond:.1%}",
        answer,
        len(verdict.windows),
        verdict.discarded,
        f"{spread_of(verdict.looks):.0%}",
        f"{max(window.stolen for window in verdict.windows):.1%}",
    ]


def keep(results, name, predictions, verdict):
    """Puts all figures of a case into the file."""
    for prediction in predictions:
        for column in ("median", "low", "high"):
            results.add(name, f"predicted {column}", prediction["mpps"][column])
    for window in verdict.windows:
        for column, number in (
            ("measured", window.mpps),
            ("ratio", window.ratio),
            ("moved", window.moved),
            ("stolen", window.stolen),
        ):
            results.add(name, column, number)
    for seen in verdict.looks:
        for column, number in seen.items():
            results.add(name, column, number)
    for column, number in (
        ("predicted", verdict.predicted),
        ("error", verdict.error),
        ("beyond", verdict.beyond),
        ("discarded", verdict.discarded),
        ("moving", verdict.moving),
    ):
        results.add(name, column, number)


def work(options, daemons):
    """All cases and rule sets."""
    first, _, last = options.seeds.partition("-")
    cases = {name: CASES[name] for name in options.case or PROMISED}
    cases |= (
        {
            f"random-{seed}": lambda seed=seed: RandomRules(seed).case()
            for seed in range(int(first), int(last or first) + 1)
        }
        if options.seeds != "none"
        else {}
    )

    def all_of_them(lab):
        results, command = Results(options.json), next(iter(daemons.values()))
        rows, verdicts = [], []
        for name, make in cases.items():
            case = make()
            predictions, verdict, cache = compared(lab, case, command, options)
            keep(results, name, predictions, verdict)
            verdicts.append(verdict)
            rows.append(row_of(name, case, verdict))
            stderr(
                f"{name}: "
                + ", ".join(
                    f"{window.told[0]:.1f} [{window.mpps:.1f}] {window.told[1]:.1f}"
                    + (" moved" if window.moved > STILL else "")
                    for window in verdict.windows
                )
                + f": error {verdict.error:+.1%}, {verdict.discarded} windows discarded"
            )
            told = sorted({prediction["remembers"] or "" for prediction in predictions})
            if told != [cache]:
                stderr(
                    f"   walks: predicted {' / '.join(told) or 'no use'}, in the daemon "
                    f"{cache or 'no use'}"
                )
            for note in sorted(
                {note for prediction in predictions for note in prediction["notes"]}
            ):
                stderr(f"   predicted: {note}")
            if options.stages:
                cycles = predictions[-1]["hz"] / verdict.measured / 1e6
                stderr(
                    "   "
                    + ", ".join(
                        f"{stage['name']} {stage['cycles']:.1f}"
                        for stage in predictions[-1]["stages"]
                    )
                    + f"; measured {cycles:.1f}"
                )
        print(f"Mpps received by one core; {machine()}")
        table(HEAD, rows)
        right = sum(verdict.right for verdict in verdicts)
        print(
            f"{right} of {len(rows)} within 15% beyond the interval of what was measured; "
            f"{sum(abs(verdict.error) <= TOLERANCE for verdict in verdicts)} within 15% without it"
        )
        print(
            f"{sum(len(verdict.windows) for verdict in verdicts)} windows count, "
            f"{sum(verdict.moving for verdict in verdicts)} of them although the machine moved by "
            f"more than {STILL:.0%}; "
            f"{sum(verdict.discarded for verdict in verdicts)} were discarded for that"
        )
        return int(right < len(rows))

    return all_of_them


def main():
    options = parser(__doc__)
    options.set_defaults(seconds=1)
    options.add_argument(
        "--case",
        action="append",
        choices=CASES,
        metavar="NAME",
        help="of bench/cases.py (default: " + ", ".join(PROMISED) + ")",
    )
    options.add_argument(
        "--seeds",
        default=SEEDS,
        metavar="FIRST-LAST",
        help="rule sets made at random, or none (default %(default)s)",
    )
    options.add_argument(
        "--discards",
        type=int,
        default=4,
        help="windows of a case that are taken again, because the machine moved meanwhile, at most "
        "(default %(default)s)",
    )
    options.add_argument("--stages", action="store_true", help="shows stages too")
    options = options.parse_args()
    daemons = contenders(options)
    run(work(options, daemons), daemons, pages=HUGE_PAGES + PREDICTION_PAGES)


if __name__ == "__main__":
    sys.exit(main())
