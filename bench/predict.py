#!/usr/bin/python3
"""How well `sluice predict` predicts: predicted and measured packets per second of one core, side by side.

    bench/predict.py [--case NAME]... [--seeds FIRST-LAST] [--rounds 3] [--seconds 1] [--json FILE]

For each case of bench/cases.py and each rule set made at random from a seed, `sluice predict` is asked first, with the rules and the packets and nothing else. Then
the daemon gets the same rules and packets, and its ports' counters say what it does: windows of a few seconds, whose least and most are the interval of the measurement.
A prediction is right when it is within 15% of that interval. The error that is shown is against the median.

Needs what bench/forwarding.py needs. What it measures is the machine: run it on a quiet one.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import time

from cases import CASES, Case
from contender import Results, contender, contenders, figure, machine, parser, rate_of, run, stderr, switchd, table
from frames import FRAMES, TCP, UDP, address_text, frame, mac_text, prefix_mask, write_pcap

WARM = 1
# The cases of the contract; what a learning bridge has learned is no part of a rule set.
PROMISED = ["inport-1", "udp-1", "udp-1k", "udp-10k", "udp-100k", "zipf-100k", "acl-1k-10masks", "acl-1k-50masks", "l2l3-10k", "tse"]
TOLERANCE = 0.15
SEEDS = "1-20"


def sluice():
    """The command that `make` has built."""
    return os.path.join(os.path.dirname(switchd()), "sluice")


class RandomRules:
    """A rule set from a seed: one to four tables of random kinds, one behind the other, and packets for them."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.rules = []
        depth = self.draw.choice([1, 1, 2, 3, 4])
        self.tables = [self.table(number, number == depth - 1) for number in range(depth)]

    def table(self, number, last):
        """Adds a table's rules; returns what changes a packet so that it meets one of them."""
        kind = self.draw.choice([self.hosts, self.prefixes, self.services, self.stations, self.access_list])
        count = self.draw.choice([3, 10, 50, 300, 2000, 10000])
        values = []
        for priority, (match, change) in enumerate(kind(count), 10):
            self.rules.append(f"table={number},priority={min(priority, 60000)},{match},actions={self.actions(number, last)}")
            values.append(change)
        self.rules.append(f"table={number},priority=1,actions={self.actions(number, last, plain=True)}")
        return values

    def actions(self, number, last, plain=False):
        """What a rule does: some edits, then the next table or a port; some rules of the last table drop."""
        end = f"resubmit(,{number + 1})" if not last else self.draw.choice(["output:{out}"] * 4 + ["output:{out2}"] * 3 + ["drop"])
        if plain or end == "drop":
            return end
        edits = [f"load:{self.draw.randrange(1 << 16)}->NXM_NX_REG{number}[]", "mod_dl_dst:02:00:00:00:0a:01", "dec_ttl", "mod_nw_tos:32"]
        return ",".join(self.draw.sample(edits, self.draw.choice([0, 0, 1, 2])) + [end])

    def hosts(self, count):
        """Exact addresses."""
        for host in self.draw.sample(range(1 << 20), count):
            yield f"ip,nw_dst={address_text(0x0a000000 + host)}", {"destination": 0x0a000000 + host}

    def prefixes(self, count):
        """Routes of several lengths."""
        lengths = self.draw.sample(range(10, 30), self.draw.choice([1, 3, 8]))
        for _ in range(count):
            length = self.draw.choice(lengths)
            network = self.draw.getrandbits(32) & prefix_mask(length)
            yield f"ip,nw_dst={address_text(network)}/{length}", {"destination": network | self.draw.getrandbits(32) & ~prefix_mask(length) & 0xffffffff}

    def services(self, count):
        """Destination ports."""
        for port in self.draw.sample(range(1, 65536), min(count, 5000)):
            yield f"udp,tp_dst={port}", {"destination_port": port, "protocol": UDP}

    def stations(self, count):
        """MAC addresses."""
        for station in self.draw.sample(range(1 << 24), count):
            yield f"dl_src={mac_text(0x020000000000 + station)}", {"source_mac": 0x020000000000 + station}

    def access_list(self, count):
        """Masked addresses and ports."""
        count = min(count, 2000)
        shapes = [(self.draw.choice([8, 16, 24, 32]), self.draw.choice([8, 16, 24, 28]), self.draw.choice([0, 0xf000, 0xffff])) for _ in range(self.draw.choice([2, 10, 40]))]
        for _ in range(count):
            bits, other_bits, port_mask = self.draw.choice(shapes)
            source, destination = self.draw.getrandbits(32) & prefix_mask(bits), self.draw.getrandbits(32) & prefix_mask(other_bits)
            port = self.draw.randrange(65536) & port_mask
            match = f"tcp,nw_src={address_text(source)}/{bits},nw_dst={address_text(destination)}/{other_bits}" + (f",tp_dst={port:#x}/{port_mask:#x}" if port_mask else "")
            yield match, {"source": source | self.draw.getrandbits(32 - bits) if bits < 32 else source, "destination": destination | self.draw.getrandbits(32 - other_bits),
                          "destination_port": port | self.draw.getrandbits(16) & ~port_mask, "protocol": TCP}

    def case(self):
        """The rules and their packets: most meet a rule in every table, as far as tables agree."""
        flows = self.draw.choice([100, 1000, 10000, FRAMES])
        made = []
        for _ in range(flows):
            packet = {"source": self.draw.getrandbits(32), "destination": self.draw.getrandbits(32), "source_port": self.draw.randrange(1024, 65536),
                      "destination_port": self.draw.randrange(65536), "protocol": UDP}
            for values in self.tables:
                if self.draw.random() < 0.95:
                    packet.update(self.draw.choice(values))
            made.append(frame(**packet))
        frames = [made[number % flows] for number in range(max(flows, 4096))]
        self.draw.shuffle(frames)
        return Case(self.rules, frames)


def predicted(lab, case, pcap):
    """What `sluice predict` says, and the seconds it took."""
    flows = os.path.join(lab.directory, "flows.txt")
    with open(flows, "w", encoding="ascii") as file:
        file.write("\n".join(rule.replace("{in}", "1").replace("{out2}", "3").replace("{out}", "2") for rule in case.rules) + "\n")
    begin = time.monotonic()
    done = subprocess.run([sluice(), "predict", "--json", "--cpu", "1", "--flows", flows, "--traffic", pcap, "--sluiced", switchd()], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)["prediction"], time.monotonic() - begin


def measured(lab, case, pcap, command, options):
    """Mpps that come in, in several windows: what is dropped has cost its cycles too."""
    with contender(lab, "sluice", command) as switch:
        switch.sinks()
        switch.rules_from(case.rules)
        switch.source(pcap)
        time.sleep(WARM)
        windows = [switch.count(options.seconds) for _ in range(options.rounds)]
        return [counts["in"] / counts["time"] / 1e6 for counts in windows], [rate_of(counts) for counts in windows]


def error_beyond(prediction, windows):
    """By how much a prediction misses the measured interval, as a share of its median."""
    low, high = min(windows), max(windows)
    return max(0, prediction - high, low - prediction) / statistics.median(windows)


def work(options, daemons):
    """All cases and rule sets."""
    first, _, last = options.seeds.partition("-")
    cases = {name: CASES[name] for name in options.case or PROMISED}
    cases |= {f"random-{seed}": lambda seed=seed: RandomRules(seed).case() for seed in range(int(first), int(last or first) + 1)} if options.seeds != "none" else {}

    def all_of_them(lab):
        results, command = Results(options.json), next(iter(daemons.values()))
        rows, right = [], 0
        for name, make in cases.items():
            case = make()
            pcap = os.path.join(lab.directory, "in.pcap")
            write_pcap(pcap, case.frames)
            prediction, seconds = predicted(lab, case, pcap)
            windows, _ = measured(lab, case, pcap, command, options)
            value, middle = prediction["mpps"]["median"], statistics.median(windows)
            miss = error_beyond(value, windows)
            right += miss <= TOLERANCE
            for column, number in (("predicted", value), ("measured", middle), ("error", value / middle - 1)):
                results.add(name, column, number)
            rows.append([name, len(case.rules), figure(value), f"{figure(prediction['mpps']['low'])}-{figure(prediction['mpps']['high'])}", figure(middle),
                         f"{figure(min(windows))}-{figure(max(windows))}", f"{value / middle - 1:+.1%}", f"{miss:.1%}", "yes" if miss <= TOLERANCE else "NO", f"{seconds:.1f}"])
            stderr(f"{name}: predicted {figure(value)}, measured {figure(middle)}, error {value / middle - 1:+.1%}")
            if options.stages:
                stderr("   " + ", ".join(f"{stage['name']} {stage['cycles']:.1f}" for stage in prediction["stages"]) + f"; measured {prediction['hz'] / middle / 1e6:.1f}")
        print(f"Mpps received by one core; {machine()}")
        table(["rules", "number", "predicted", "interval", "measured", "interval", "error", "beyond", "within 15%", "seconds"], rows)
        print(f"{right} of {len(rows)} within 15%")
        return int(right < len(rows))
    return all_of_them


def main():
    options = parser(__doc__)
    options.set_defaults(seconds=1)
    options.add_argument("--case", action="append", choices=CASES, metavar="NAME", help="of bench/cases.py (default: those of the contract)")
    options.add_argument("--seeds", default=SEEDS, metavar="FIRST-LAST", help="rule sets made at random, or none (default %(default)s)")
    options.add_argument("--stages", action="store_true", help="shows stages too")
    options = options.parse_args()
    daemons = contenders(options)
    run(work(options, daemons), daemons)


if __name__ == "__main__":
    sys.exit(main())
