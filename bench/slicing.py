#!/usr/bin/python3
"""Bandwidth slicing: Sluice's shaped ports beside the kernel's HTB and Open vSwitch's policers,
measured in one run by one tool (bench/traffic.c).

    bench/slicing.py rate|borrow|bound|tcp|isolation|bursts [--peer NAME]... [--seconds S]
                     [--rounds N] [--daemon COMMAND] [--svg FILE] [--bounds US,...] [--long]
                     [--json FILE]

    rate       queues that get more than their rate: how far what is delivered lies from it, in all
               and in any one second
    borrow     guaranteed rates while others are overloaded 10 times, and how much of the port's
               rate is used when all that is left is lent
    bound      Sluice's max-latency-us under regular, random and bursty arrivals and TCP: delays,
               drops, and packets later than promised
    tcp        TCP in a slice of 500 Mbit/s: frame bytes, retransmissions, delays; cubic unpaced and
               paced by the kernel, and bbr
    isolation  the delay of one slice while its neighbour is flooded
    bursts     bursts of 64 frames at 100 Mbit/s: how many leave together; --svg writes a plot

Peers are sluice, htb, tbf, fq_codel, pfifo, egress-policer, trtcm-policer (default: what the test
compares). Each runs between two hosts on veth pairs. Rates count frames without FCS. --long adds
cases and time. Needs root, gcc, iproute2, ethtool, Open vSwitch with DPDK for the policers, and two
cores with nothing else to do.
"""

import bisect
import itertools
import os
import statistics
import struct
import sys
import time

from contender import OTHER_CORE, WORKER_CORE, parser, run, stderr, switchd
from slicing_peers import harness, late_sent, peer, queue, result, stream, work

HUGE_PAGES = 300
MEGABIT = 1_000_000
FRAME = 1514
# What one core generates here without falling behind.
MOST_PACKETS = 150_000
FRAMES_PER_BATCH = 32


def offered(rate, length, share):
    """Packets a second for a share of a rate, as far as the generator can; None where it cannot
    exceed the rate."""
    wanted = share * rate / (length * 8)
    rate_of_packets = min(wanted, MOST_PACKETS)
    return rate_of_packets if rate_of_packets * length * 8 > 1.1 * rate else None


def rate(lab, options, results):
    """Rows: how many queues, each one's rate, frame size.

    Figures: the worst queue's error over the whole time, and the worst over any second."""
    cases = [
        (1, 1, FRAME),
        (1, 10, 64),
        (1, 100, FRAME),
        (1, 500, FRAME),
        (1, 1000, FRAME),
        (8, 50, FRAME),
        (100, 5, FRAME),
        (1000, 0.5, FRAME),
    ]
    if options.long:
        cases += [
            (1, 1, 64),
            (1, 10, FRAME),
            (1, 50, 64),
            (1, 100, 300),
            (8, 5, 64),
            (8, 100, 700),
            (100, 1, 200),
            (1000, 0.25, 300),
            (10000, 0.05, FRAME),
        ]
    for name in options.peer or ["sluice", "htb", "trtcm-policer"]:
        for count, megabits, length in cases:
            each, limit = megabits * MEGABIT, max(4, min(1000, 2000 // count))
            packets = offered(each * count, length, 1.5)
            if (
                packets is None
                or (name.endswith("policer") and count > 100)
                or (name == "htb" and count > 1000 and not options.long)
            ):
                continue
            row = f"{count} x {megabits:g} Mbit/s, {length} B"
            with peer(lab, name, options, count) as (switch, hosts):
                begin = time.monotonic()
                switch.shape(
                    max(each * count, 10_000 * MEGABIT),
                    [queue(each, limit=limit) for _ in range(count)],
                )
                results.add(f"{row}: seconds to set up", name, time.monotonic() - begin)
                receiver = hosts.receive(count, options.seconds, 0.7)
                sender = hosts.send(options.seconds + 1.2, stream(packets, length, classes=count))
                sent, got = result(sender), result(receiver)
            in_all, second = errors(got, each, length)
            stderr(
                f"{name}: {row}: {in_all:+.3f}% in all, {second:+.3f}% in any second; lost by the "
                f"receiver {got['lost']}, not sent {sent['skipped']}"
            )
            results.add(f"{row}: error in all, %", name, in_all)
            results.add(f"{row}: error in any second, %", name, second)


def errors(got, each, length):
    """The worst queue's error over the whole time, and the worst in any second, in percent of the
    rate; two frames are granted."""
    grace = 2 * length * 8
    in_all, in_a_second = [0.0], [0.0]
    for _, octets, least, most, *_ in got["classes"]:
        in_all.append(beyond(octets * 8 / got["seconds"], each, grace / got["seconds"]))
        if most:
            in_a_second += [beyond(least, each, grace), beyond(most, each, grace)]
    return max(in_all, key=abs), max(in_a_second, key=abs)


def beyond(measured, wanted, grace):
    """How far a rate lies beyond what is granted, in percent."""
    missing = measured - wanted
    return 100 * max(0.0, abs(missing) - grace) / wanted * (1 if missing > 0 else -1)


def borrow(lab, options, results):
    """A port of 400 Mbit/s: one queue keeps to its guarantee, three want ten times theirs."""
    port, guaranteed = 400 * MEGABIT, [100 * MEGABIT, 20 * MEGABIT, 10 * MEGABIT, 5 * MEGABIT]
    for name in options.peer or ["sluice", "htb"]:
        with peer(lab, name, options, 4) as (switch, hosts):
            switch.shape(port, [queue(each, port, limit=100) for each in guaranteed])
            rates, _ = together(
                hosts,
                options,
                [
                    (0, guaranteed[0]),
                    (1, 10 * guaranteed[1]),
                    (2, 10 * guaranteed[2]),
                    (3, 10 * guaranteed[3]),
                ],
                MOST_PACKETS,
            )
            results.add(
                "guaranteed 100 Mbit/s, offered as much: got, %",
                name,
                100 * rates[0] / guaranteed[0],
            )
            for at in (1, 2, 3):
                results.add(
                    f"guaranteed {guaranteed[at] // MEGABIT} Mbit/s, offered ten times: got, %",
                    name,
                    100 * rates[at] / guaranteed[at],
                )
            results.add(
                "all four: share of the port's rate, % (450 of 400 Mbit/s offered)",
                name,
                100 * sum(rates) / port,
            )
            rates, _ = together(hosts, options, [(3, 600 * MEGABIT)], MOST_PACKETS)
            results.add(
                "only the smallest, offered 600 Mbit/s: share of the port's rate, %",
                name,
                100 * rates[3] / port,
            )


def together(hosts, options, loads, most):
    """Sends several loads (class, bit/s) at once; the classes' rates in bit/s, and all that the
    receiver knows."""
    receiver = hosts.receive(4, options.seconds, 0.7)
    result(
        hosts.send(
            options.seconds + 1.2,
            *[stream(min(bits / (FRAME * 8), most), FRAME, first=number) for number, bits in loads],
        )
    )
    got = result(receiver)
    return [octets * 8 / got["seconds"] for _, octets, *_ in got["classes"]], got


def together_in_time(*lists):
    """Intervals [begin, length] of some lists, in the order of time; what overlaps is one."""
    united = []
    for at, length in sorted(itertools.chain(*lists)):
        if united and at <= sum(united[-1]):
            united[-1][1] = max(united[-1][1], at + length - united[-1][0])
        else:
            united.append([at, length])
    return united


def stalls_within(stalls, begin, end):
    """Nanoseconds of an interval in which the probes could not run; stalls in the order of time."""
    first = max(0, bisect.bisect(stalls, [begin]) - 1)
    within = 0
    for at, length in itertools.islice(stalls, first, None):
        if at >= end:
            break
        within += max(0, min(end, at + length) - max(begin, at))
    return within


def worst(stalls):
    """The longest, in microseconds."""
    return max((length for _, length in stalls), default=0) / 1e3


def bound(lab, options, results):
    """Rows: the bound and how packets arrive at 1.3 times the rate of a slice of 200 Mbit/s."""
    for limit_us in (200, 1000, 5000, 20000):
        with peer(lab, "sluice", options, 2) as (switch, hosts):
            switch.shape(
                10_000 * MEGABIT,
                [queue(200 * MEGABIT, bound_us=limit_us, limit=3000), queue(MEGABIT)],
            )
            for process, burst in (("cbr", 1), ("poisson", 1), ("burst", 64), ("tcp", 1)):
                row = f"{limit_us} us, {process}"
                # What the switch promises, and what a frame takes from the sender's stamp through
                # an idle switch.
                promise_us = limit_us + 60 + 200 + 60
                dump = f"{switch.directory}/late"
                receiver = hosts.receive(1, options.seconds, 0.5, promise_us, dump)
                if process == "tcp":
                    sink = hosts.sink()
                    writer = hosts.tcp("cubic", 0.5, options.seconds)
                sender = hosts.send(
                    options.seconds + 1,
                    stream(10_000, 300)
                    if process == "tcp"
                    else stream(108_000, 300, process=process, burst=burst),
                )
                probe, switches = (
                    hosts.probe(WORKER_CORE, options.seconds + 1),
                    hosts.preempted(OTHER_CORE, switch.process, options.seconds + 1),
                )
                got, core, others = result(receiver), result(probe), result(switches)
                own = result(sender)["stops"]
                stalls = together_in_time(core, own, others)
                if process == "tcp":
                    result(writer)
                    result(sink)
                with open(dump, "rb") as file:
                    late = list(struct.iter_unpack("3Q", file.read()))
                excused = sum(
                    1
                    for left, came, _ in late
                    if came - left - stalls_within(stalls, left, came) <= promise_us * 1000
                )
                inside = late_sent(switch.details())
                stderr(
                    f"{row}: {got['packets']} packets, p50 {got['p50']} us, p99 {got['p99']}, "
                    f"p99.9 {got['p999']}, worst {got['worst']}; {len(late)} later than "
                    f"{promise_us} us outside, "
                    f"{excused} of them for stops of core 1 ({len(core)}, worst {worst(core):.0f} "
                    f"us), of the worker for others ({len(others)}, {worst(others):.0f} us) and "
                    "of the sender "
                    f"({len(own)}, {worst(own):.0f} us); late-sent inside so far: {inside}"
                )
                for what, value in (
                    ("packets", got["packets"]),
                    ("p50, us", got["p50"]),
                    ("p99, us", got["p99"]),
                    ("worst, us", got["worst"]),
                    ("later than promised", len(late)),
                    ("of them for stops", excused),
                    ("of them with no proven cause", len(late) - excused),
                ):
                    results.add(f"{row}: {what}", "sluice", value)
                if inside is not None:
                    results.add(f"{row}: late-sent so far", "sluice", inside)


def tcp(lab, options, results):
    """Rows: algorithm, large frames or not, and the queue's bound or limit.

    Figures: frame bytes in percent of the slice, retransmissions a second, delays."""
    slice_rate = 500 * MEGABIT
    bounds = options.bounds or ([500, 1000, 2000, 5000, 20000] if options.long else [2000])
    cases = {
        "sluice": [(f"bound {each} us", {"bound_us": each}) for each in bounds],
        "htb": [
            ("limit 50", {"limit": 50}),
            *(
                [("limit 100", {"limit": 100}), ("limit 1000", {"limit": 1000})]
                if options.long
                else []
            ),
        ],
        "trtcm-policer": [("burst 96 KB", {})],
        "egress-policer": [("burst 96 KB", {})],
        "fq_codel": [("below tbf", {})],
        "pfifo": [("below tbf", {})],
        "tbf": [("limit 100", {"limit": 100})],
    }
    for name in options.peer or [
        "sluice",
        "htb",
        "trtcm-policer",
        *(["fq_codel", "pfifo"] if options.long else []),
    ]:
        with peer(lab, name, options) as (switch, hosts):
            for label, more in cases[name]:
                switch.shape(10_000 * MEGABIT, [queue(slice_rate, **more)])
                # DPDK's packet sockets lose large frames, and open checksums break behind them.
                for large in (
                    (False, True) if name not in ("trtcm-policer", "egress-policer") else (False,)
                ):
                    hosts.large_frames(large)
                    for algorithm in ("cubic", "cubic+p", "bbr"):
                        one_tcp(
                            hosts,
                            options,
                            results,
                            f"{name}, {label}",
                            f"{algorithm}, {'large frames' if large else 'frames of 1514'}",
                            algorithm,
                            slice_rate,
                        )
                text = switch.details()
                if late_sent(text) is not None:
                    results.add("late-sent", f"{name}, {label}", late_sent(text))


def one_tcp(hosts, options, results, column, row, algorithm, slice_rate):
    """One connection, with a probe's packets in the same queue."""
    hosts.source.run("ip tcp_metrics flush")
    sink = hosts.sink()
    receiver = hosts.receive(1, options.seconds - 0.5, 0)
    writer = hosts.tcp(algorithm, 1.0, options.seconds)
    time.sleep(1.2)
    sender = hosts.send(options.seconds - 0.3, stream(1000, 100))
    found, got = result(writer), result(receiver)
    result(sender)
    result(sink)
    share = 100 * found["goodput"] * (found["mss"] + 66) / found["mss"] / slice_rate
    stderr(
        f"{column}: {row}: {share:.2f}% of the slice, {found['retransmissions']:.0f} "
        f"retransmissions/s, rtt p50 {found['rtt50']:.0f} us, p99 {found['rtt99']:.0f} us, probe "
        f"p99 {got['p99']} us, "
        f"window {found['window50']:.0f}"
    )
    for what, value in (
        ("frame bytes, % of the slice", share),
        ("retransmissions/s", found["retransmissions"]),
        ("rtt p50, us", found["rtt50"]),
        ("rtt p99, us", found["rtt99"]),
        ("probe's delay p99, us", got["p99"]),
    ):
        results.add(f"{row}: {what}", column, value)


def isolation(lab, options, results):
    """A port of 500 Mbit/s: a slice that uses 10 of its 50 Mbit/s, alone and beside one that is
    offered ten times its 45."""
    port = 500 * MEGABIT
    for name in options.peer or ["sluice", "htb", "trtcm-policer"]:
        with peer(lab, name, options, 2) as (switch, hosts):
            switch.shape(
                port, [queue(50 * MEGABIT, port, limit=1000), queue(45 * MEGABIT, port, limit=1000)]
            )
            delays = {}
            for case in ("alone", "flooded"):
                receiver = hosts.receive(2, options.seconds, 0.7)
                streams = [stream(10 * MEGABIT / (FRAME * 8), FRAME, process="poisson")]
                if case == "flooded":
                    streams.append(stream(900 * MEGABIT / (FRAME * 8), FRAME, first=1))
                result(hosts.send(options.seconds + 1.2, *streams))
                got = result(receiver)["classes"][0]
                delays[case] = got[4:7]
                results.add(f"{case}: p50, us", name, got[4])
                results.add(f"{case}: p99, us", name, got[5])
                results.add(f"{case}: worst, us", name, got[6])
            moved = delays["flooded"][1] - delays["alone"][1]
            results.add("p99 moves by, us", name, moved)
            stderr(
                f"{name}: p99 moves by {moved:.1f} us; {FRAMES_PER_BATCH} frames take "
                f"{FRAMES_PER_BATCH * FRAME * 8e6 / port:.0f} us at the port's rate"
            )


def bursts(lab, options, results):
    """Bursts of 64 frames into 100 Mbit/s: how many leave together, and the delay of each."""
    slice_rate, length, burst = 100 * MEGABIT, FRAME, 64
    apart = 0.25 * length * 8e9 / slice_rate
    lines = {}
    peers = options.peer or ["sluice", "htb", "htb, burst 24 KB", "egress-policer"]
    for name in peers:
        kind, _, more = name.partition(", ")
        with peer(lab, kind, options) as (switch, hosts):
            switch.shape(
                10_000 * MEGABIT,
                [queue(slice_rate, limit=1000, **({"burst": 24224} if more else {}))],
            )
            dump = f"{switch.directory if hasattr(switch, 'directory') else lab.directory}/burst"
            receiver = hosts.receive(1, options.seconds, 0, 0, dump)
            sender = hosts.send(
                options.seconds, stream(burst * 50, length, process="burst", burst=burst)
            )
            result(sender)
            result(receiver)
            with open(dump, "rb") as file:
                frames = sorted(
                    (number, left, came)
                    for left, came, number in struct.iter_unpack("3Q", file.read())
                )
        groups, delays, last = [], {}, None
        for number, left, came in frames:
            delays.setdefault(number % burst, []).append((came - left) / 1e3)
            if last is not None and number // burst == last[0] and came - last[1] < apart:
                groups[-1] += 1
            else:
                groups.append(1)
            last = (number // burst, came)
        lines[name] = [(at, statistics.median(delays[at])) for at in sorted(delays)]
        results.add("frames that leave together, median", name, statistics.median(groups))
        results.add("frames that leave together, mean", name, statistics.mean(groups))
        results.add("frames that leave together, most", name, max(groups))
        for at in (0, 7, 15, 16, 31, 63):
            if at in delays:
                results.add(f"delay of frame {at + 1}, us", name, statistics.median(delays[at]))
    if options.svg:
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(
                plot(
                    lines,
                    "Frames of a burst into 100 Mbit/s (1514 bytes)",
                    "frame of the burst",
                    "delay, us",
                )
            )


COLOURS = ("#0b6e4f", "#c1440e", "#7a5195", "#33658a", "#b8860b")


def plot(lines, title, across, up):
    """An SVG of lines {name: [(x, y)]} with axes."""
    width, height, left, bottom = 760, 420, 70, 50
    most_x = max(x for points in lines.values() for x, _ in points) or 1
    most_y = max(y for points in lines.values() for _, y in points) or 1

    def place(x, y):
        return left + x / most_x * (width - left - 20), height - bottom - y / most_y * (
            height - bottom - 40
        )

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="20" text-anchor="middle" font-size="14">{title}</text>',
        f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">{across}</text>',
        (
            f'<text x="14" y="{height / 2}" text-anchor="middle" transform="rotate(-90 14 '
            f'{height / 2})">{up}</text>'
        ),
    ]
    for step in range(5):
        x, y = place(most_x * step / 4, most_y * step / 4)
        parts.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}" stroke="#ddd"/><text '
            f'x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{most_y * step / 4:.0f}</text>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{height - bottom + 16}" '
            f'text-anchor="middle">{most_x * step / 4 + 1:.0f}</text>'
        )
    for at, (name, points) in enumerate(lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/><text '
            f'x="{left + 12}" y="{46 + 16 * at}" fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


TESTS = {
    "rate": (rate, 2.5),
    "borrow": (borrow, 3),
    "bound": (bound, 3),
    "tcp": (tcp, 2.5),
    "isolation": (isolation, 4),
    "bursts": (bursts, 2),
}


def main():
    options = parser(__doc__, daemons=False)
    options.add_argument("test", choices=TESTS)
    options.add_argument("--peer", action="append")
    options.add_argument(
        "--daemon", metavar="COMMAND", help="Sluice's daemon (default: target/release/sluiced)"
    )
    options.add_argument("--long", action="store_true")
    options.add_argument("--svg", metavar="FILE")
    options.add_argument(
        "--bounds",
        metavar="US,...",
        type=lambda text: [int(word) for word in text.split(",")],
        help="bounds of the test tcp",
    )
    options.set_defaults(rounds=1, seconds=None)
    options = options.parse_args()
    options.seconds = options.seconds or TESTS[options.test][1] * (4 if options.long else 1)
    command = harness.switchd_command(options.daemon or switchd())
    if not os.access(command[0], os.X_OK):
        sys.exit(f"there is no daemon at {command[0]}: `make` builds it")
    run(work(options, TESTS[options.test][0]), {"sluice": command}, HUGE_PAGES)


if __name__ == "__main__":
    sys.exit(main())
