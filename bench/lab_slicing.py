#!/usr/bin/python3
"""Paper d's experiments (D1 to D13) for the lab: each prints its cells as lines of JSON.

    bench/lab_slicing.py D1|...|D13 [--mode quick|normal|full] [--subject NAME]... [--rounds N]
                         [--seconds S] [--daemon COMMAND]

A line is {"subject": NAME, "at": {PARAMETER: VALUE}, "figures": {MEASURE: NUMBER}}, or has
"missing" with the reason why there are no figures; each round prints a line for each cell. `sluice
lab run D3` runs this and makes medians and intervals of the rounds. Subjects are `sluice`,
`sluice-bound` (the same with max-latency-us), `linux-htb` (the kernel's bridge), `ovs-trtcm` and
`ovs-policer` (Open vSwitch with DPDK). All run between two hosts on veth pairs: source and receiver
share core 0, who switches has core 1, or what SLUICE_BENCH_CORES names (1,0). Frames have 1514
bytes where nothing else is said.

Needs what bench/slicing.py needs: root, gcc, iproute2, ethtool, Open vSwitch with DPDK, two cores.
"""

import json
import os
import statistics
import struct
import sys
import time
from types import SimpleNamespace

import slicing_cpu
from contender import Results, parser, run, stderr, switchd
from slicing_peers import alone, compiled, harness, peer, queue, result, stream

MEGABIT = 1_000_000
FRAME = 1514
BITS = FRAME * 8
# A port that does not bind.
PORT = 10_000 * MEGABIT
HUGE_PAGES = 300
# Who shapes by what name of bench/slicing_peers.py.
PEERS = {
    "sluice": "sluice",
    "sluice-bound": "sluice",
    "linux-htb": "htb",
    "ovs-trtcm": "trtcm-policer",
    "ovs-policer": "egress-policer",
}
BOUND_US = 2000
# Bytes that the policers' buckets hold.
BUCKET = 96_000
# Packets that a dequeue takes, as the paper says.
GROUPS = {"linux-htb": 16, "ovs-trtcm": 8}


def emit(subject, at, figures=None, missing=None, of=()):
    """Prints a cell of this round, for the experiment that was asked for or for those of `of`: each
    takes what it asks for."""
    rounded = {what: float(f"{value:.6g}") for what, value in (figures or {}).items()}
    line = {"subject": subject, "at": at, "figures": rounded}
    if missing:
        line["missing"] = str(missing)
    if of:
        line["of"] = of
    print(json.dumps(line), flush=True)


def by_mode(options, quick, normal, full=None):
    """What is swept in this mode."""
    return {"quick": quick, "normal": normal, "full": full or normal}[options.mode]


def own(subject, **more):
    """Settings of a queue that only this subject has."""
    return {"bound_us": BOUND_US, **more} if subject == "sluice-bound" else more


def long_enough(options, seconds):
    """Seconds of a measurement: those asked for, or what it needs at the least."""
    return max(options.seconds, seconds)


def each(lab, options, subjects, classes=1):
    """The subjects asked for, each set up between two hosts; one that fails is said to be missing
    by the experiment's next line."""
    for subject in subjects:
        if options.subject and subject not in options.subject:
            continue
        try:
            with peer(lab, PEERS[subject], options, classes) as (switch, hosts):
                yield subject, switch, hosts
        except (harness.Failure, OSError) as failure:
            stderr(f"{subject}: {failure}")
            emit(subject, {}, missing=failure)


def idle_delay(hosts):
    """The delay through an idle switch, us."""
    receiver = hosts.receive(1, 0.4, 0.1)
    result(hosts.send(0.7, stream(200, FRAME)))
    return result(receiver)["p50"]


def burst_times(lab, hosts, length, seconds, apart_s=0.02):
    """Arrival times of the frames of bursts, us after the burst was due: a list for each burst that
    arrived whole, and the share of frames that did not arrive, %."""
    dump = f"{lab.directory}/burst"
    receiver = hosts.receive(1, seconds, 0, 0, dump)
    sent = result(
        hosts.send(seconds, stream(length / apart_s, FRAME, process="burst", burst=length))
    )
    result(receiver)
    bursts = {}
    with open(dump, "rb") as file:
        for left, came, number in struct.iter_unpack("3Q", file.read()):
            bursts.setdefault(number // length, []).append((number % length, left, came))
    whole = []
    for frames in bursts.values():
        if len(frames) == length:
            frames.sort()
            first = min(left for _, left, _ in frames)
            whole.append([(came - first) / 1e3 for _, _, came in frames])
    got = sum(map(len, bursts.values()))
    lost = 100 * (1 - got / max(sent["sent"], 1))
    return whole, max(lost, 0.0)


def middle(bursts, of):
    """The median over bursts of a figure of each."""
    return statistics.median(of(times) for times in bursts) if bursts else None


def apart(rate):
    """Seconds between bursts so that each finds an empty queue and full buckets."""
    return lambda length: max(0.02, 3 * length * BITS / rate)


def d1(lab, options):
    """Bursts of 1 to N packets into a slice of 100 Mbit/s: the delay of a packet, of the whole
    burst, and how many leave together."""
    rate = 100 * MEGABIT
    lengths = by_mode(options, [16, 32], [1, 2, 4, 8, 12, 15, 16, 17, 24, 32, 48, 64],
                      list(range(1, 65)))  # fmt: skip
    distance = apart(rate)
    for subject, switch, hosts in each(
        lab, options, ["sluice", "sluice-bound", "linux-htb", "ovs-trtcm"]
    ):
        # What the kernel's class may send at once is a choice: by itself it is a frame or two, and
        # 16 frames make the steps that the paper saw.
        buckets = {"own": {}} | ({"16 frames": {"burst": 16 * FRAME}} if "htb" in subject else {})
        for bucket, more in buckets.items():
            switch.shape(PORT, [queue(rate, limit=1000, **own(subject), **more)])
            for length in lengths:
                bursts, lost = burst_times(lab, hosts, length, options.seconds, distance(length))
                figures = {"lost": lost}
                if bursts:
                    together = [groups(times, 0.25 * BITS * 1e6 / rate) for times in bursts]
                    figures |= {
                        "mean": middle(bursts, statistics.mean),
                        "whole": middle(bursts, max),
                        "group": statistics.median(sorted(sum(together, []))),
                    }
                emit(subject, {"burst": length, "bucket": bucket}, figures)


def groups(times, gap_us):
    """Sizes of the groups of a burst whose packets came with less than this between them."""
    sizes = [1]
    for before, after in zip(times, times[1:]):
        if after - before < gap_us:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


def d2(lab, options):
    """Data of 15 packets and a command of 5 as one message, as three that are sent in turns, and
    data first: when each is whole at the receiver, by the times of a burst of 20 packets."""
    rate = 100 * MEGABIT
    ways = {
        # The places of the command's packets in what is sent.
        "one message of 20": range(20),
        "7, 8 and 5 in turns": [at for at in range(15) if at % 3 == 2],
        "15, then 5": range(15, 20),
    }
    for subject, switch, hosts in each(lab, options, ["sluice", "linux-htb", "ovs-trtcm"]):
        switch.shape(PORT, [queue(rate, limit=1000)])
        bursts, lost = burst_times(lab, hosts, 20, options.seconds, 0.02)
        for way, command in ways.items():
            if not bursts:
                emit(subject, {"message": way}, {"lost": lost})
                continue
            # Seven of data stand before the eighth of the second message, and so on: what is not
            # the command's is data's. One message is of use only when all of it is there.
            data = [at for at in range(20) if at not in command] or range(20)
            known = middle(bursts, lambda times, data=data: max(times[at] for at in data))
            told = middle(bursts, lambda times, command=command: max(times[at] for at in command))
            emit(
                subject,
                {"message": way},
                {"data": known, "command": told, "both": max(known, told), "lost": lost},
            )


def a_connection(hosts, options, algorithm="cubic"):
    """A TCP connection that fills its queue, and a probe beside it in the same queue."""
    hosts.source.run("ip tcp_metrics flush")
    seconds = long_enough(options, 2)
    sink = hosts.sink()
    receiver = hosts.receive(1, seconds - 0.5, 0)
    writer = hosts.tcp(algorithm, 1.0, seconds)
    time.sleep(1.2)
    sender = hosts.send(seconds - 0.3, stream(1000, 100))
    found, got = result(writer), result(receiver)
    result(sender)
    result(sink)
    return found, got


def frame_bits(found):
    """A connection's bits at layer 2 a second, without FCS."""
    return found["goodput"] * (found["mss"] + 66) / found["mss"]


def paper_wait(subject, rate, rho):
    """The paper's M/M/1, us: 1 / (mu (1 - rho)), mu in dequeue groups a second."""
    mu = rate / (GROUPS.get(subject, 1) * BITS)
    return 1e6 / (mu * max(1 - rho, 1e-6))


def tcp_by_rate(lab, options, subjects, limits):
    """TCP's round trip by the rate of its queue, and by how many packets the queue holds."""
    rates = by_mode(options, [100, 500], [50, 100, 200, 300, 400, 500])
    for subject, switch, hosts in each(lab, options, subjects):
        for rate in rates:
            for limit in limits:
                settings = own(subject, **({"burst": BUCKET} if "ovs" in subject else {}))
                if limit:
                    settings["limit"] = limit
                switch.shape(PORT, [queue(rate * MEGABIT, **settings)])
                hosts.large_frames(False)
                found, got = a_connection(hosts, options)
                rho = min(frame_bits(found) / (rate * MEGABIT), 1.0)
                figures = {
                    "rtt": found["rtt50"] / 1e3,
                    "rtt99": found["rtt99"] / 1e3,
                    "probe": got["p50"] / 1e3,
                    "rho": 100 * rho,
                    "paper": paper_wait(subject, rate * MEGABIT, rho) / 1e3,
                    "retransmissions": found["retransmissions"],
                }
                if limit:
                    figures["cap"] = limit * BITS / (rate * MEGABIT) * 1e3
                emit(subject, {"rate": rate, "limit": limit or "bucket"}, figures)
                if rate == 500 and options.mode == "quick":
                    # The same connections as those of D5 and D6.
                    emit_retransmissions(subject, found, "cubic", of=["D5"])
                    emit_windows(subject, found, of=["D6"])


def d3(lab, options):
    """Queue rate against TCP's latency, behind queues."""
    limits = by_mode(options, [1000], [50, 1000], [50, 100, 300, 1000])
    tcp_by_rate(lab, options, ["linux-htb", "sluice"], limits)


def d4(lab, options):
    """The same behind policers and behind a bound."""
    tcp_by_rate(lab, options, ["ovs-trtcm", "sluice-bound"], [None])


def d5(lab, options):
    """Retransmissions at 500 Mbit/s."""
    rate = 500 * MEGABIT
    algorithms = by_mode(options, ["cubic"], ["cubic", "bbr"])
    for subject, switch, hosts in each(
        lab, options, ["sluice", "sluice-bound", "linux-htb", "ovs-trtcm"]
    ):
        settings = own(subject, **({"burst": BUCKET} if "ovs" in subject else {"limit": 1000}))
        switch.shape(PORT, [queue(rate, **settings)])
        hosts.large_frames(False)
        for algorithm in algorithms:
            found, _ = a_connection(hosts, options, algorithm)
            emit_retransmissions(subject, found, algorithm)


def emit_retransmissions(subject, found, algorithm, of=()):
    """D5's cell of a connection at 500 Mbit/s."""
    emit(
        subject,
        {"algorithm": algorithm},
        {
            "retransmissions": found["retransmissions"],
            "resent": found["retransmissions"] * (found["mss"] + 66) * 8 / 1e6,
            "goodput": found["goodput"] / 1e6,
        },
        of=of,
    )


def d6(lab, options):
    """The congestion window over time."""
    rate = 500 * MEGABIT
    for subject, switch, hosts in each(
        lab, options, ["sluice", "sluice-bound", "linux-htb", "ovs-trtcm"]
    ):
        settings = own(subject, **({"burst": BUCKET} if "ovs" in subject else {"limit": 1000}))
        switch.shape(PORT, [queue(rate, **settings)])
        hosts.large_frames(False)
        found, _ = a_connection(hosts, options)
        emit_windows(subject, found)


def emit_windows(subject, found, of=()):
    """D6's cells of a connection at 500 Mbit/s."""
    for step, window in enumerate(found["windows"][::2]):
        emit(subject, {"time": round(0.2 * step, 1)}, {"window": window}, of=of)


def d7(lab, options):
    """What shaping costs in processors' time: 1 Gbit/s in 200 queues."""
    names = {"wire": "no switch", "htb": "linux-htb", "sluice": "sluice"}
    results = Results(None)
    rate, queues = by_mode(options, (500, 50), (1000, 200))
    own_options = SimpleNamespace(
        **vars(options) | {"rate": rate, "queues": queues, "bound": None, "idle_time": False}
    )
    for name, subject in names.items():
        if options.subject and subject not in options.subject:
            continue
        slicing_cpu.measure(lab, name, own_options, results)
        figures = {"cores": 100 * results.rows["both cores"][name][-1]}
        if name == "sluice":
            figures["own"] = 100 * results.rows["the daemon's threads"][name][-1]
        figures["delivered"] = results.rows["delivered, Mbit/s"][name][-1]
        emit(subject, {"rate": rate, "queues": queues}, figures)


def d8(lab, options):
    """The wait of Poisson packets by how much of the queue's rate is used."""
    rate = 50 * MEGABIT
    loads = by_mode(options, [50, 90], [30, 50, 70, 80, 90, 95, 97, 98, 99])
    for subject, switch, hosts in each(lab, options, ["sluice", "linux-htb"]):
        switch.shape(PORT, [queue(rate, limit=1000)])
        idle = idle_delay(hosts)
        for load in loads:
            seconds = long_enough(options, 1.5)
            receiver = hosts.receive(1, seconds, 0.5)
            sender = hosts.send(
                seconds + 0.7, stream(load / 100 * rate / BITS, FRAME, process="poisson")
            )
            got = result(receiver)
            result(sender)
            rho = 8 * got["classes"][0][1] / got["seconds"] / rate
            service = BITS / rate * 1e6
            emit(
                subject,
                {"load": load},
                {
                    "wait": max(got["mean"] - idle, 0),
                    "p99": max(got["p99"] - idle, 0),
                    "rho": 100 * rho,
                    # Both without the packet's own service: what it waits for others.
                    "mm1": service * rho / max(1 - rho, 1e-6),
                    "md1": service * rho / (2 * max(1 - rho, 1e-6)),
                    "paper": paper_wait("linux-htb", rate, min(rho, 1.0)),
                },
            )


def d9(lab, options):
    """Many slices on one port, each offered 30% more than its rate."""
    # The policers' queues take a rule and a row each, as Sluice's do.
    counts = by_mode(options, [8, 256], [8, 64, 256, 1024], [8, 64, 256, 1024, 4096])
    for count in counts:
        rate = min(50 * MEGABIT, 800 * MEGABIT / count)
        for subject, switch, hosts in each(lab, options, ["sluice", "linux-htb"], count):
            switch.shape(PORT, [queue(rate, limit=100) for _ in range(count)])
            seconds = max(options.seconds, min(20, 60 * BITS / rate))
            receiver = hosts.receive(count, seconds, 1)
            sender = hosts.send(
                seconds + 1.5, stream(1.3 * rate * count / BITS, FRAME, classes=count)
            )
            got = result(receiver)
            result(sender)
            errors = [
                abs(100 * (8 * octets / got["seconds"] / rate - 1))
                for _, octets, *_ in got["classes"]
            ]
            # One frame more or less is no error of the rate.
            grain = 100 * BITS / (rate * got["seconds"])
            emit(
                subject,
                {"slices": count},
                {
                    "error": statistics.median(errors),
                    "worst": max(errors),
                    "grain": grain,
                    "p99": got["p99"] / 1e3,
                },
            )


def d10(lab, options):
    """The bound from a policer's to HTB's: TCP's goodput and what packets wait."""
    rate = 200 * MEGABIT
    bounds = by_mode(options, [500, 5000], [200, 500, 1000, 2000, 5000, 10000, 20000, 50000])
    cases = [("sluice-bound", f"{bound} us", {"bound_us": bound}) for bound in bounds]
    cases += [
        ("linux-htb", "1000 packets", {"limit": 1000}),
        ("linux-htb", "50 packets", {"limit": 50}),
        ("ovs-trtcm", "96 KB", {"burst": BUCKET}),
    ]
    for subject, switch, hosts in each(lab, options, ["sluice-bound", "linux-htb", "ovs-trtcm"]):
        for who, label, settings in cases:
            if who != subject:
                continue
            switch.shape(PORT, [queue(rate, **settings)])
            hosts.large_frames(False)
            found, got = a_connection(hosts, options)
            at = {"queue": label}
            if "bound_us" in settings:
                at["bound"] = settings["bound_us"]
            emit(
                subject,
                at,
                {
                    "used": 100 * frame_bits(found) / rate,
                    "rtt": found["rtt50"] / 1e3,
                    "probe99": got["p99"] / 1e3,
                    "retransmissions": found["retransmissions"],
                },
            )


def d11(lab, options):
    """Messages of 1 to 1,000 packets through a slice of 200 Mbit/s: until the last packet is there,
    and what is lost."""
    rate = 200 * MEGABIT
    lengths = by_mode(options, [1, 300], [1, 3, 10, 30, 100, 300, 1000])
    distance = apart(rate)
    for subject, switch, hosts in each(
        lab, options, ["sluice", "sluice-bound", "linux-htb", "ovs-trtcm"]
    ):
        settings = own(subject, **({"burst": BUCKET} if "ovs" in subject else {"limit": 2000}))
        switch.shape(PORT, [queue(rate, **settings)])
        for length in lengths:
            seconds = max(options.seconds, 20 * distance(length))
            bursts, lost = burst_times(lab, hosts, length, seconds, distance(length))
            figures = {"lost": lost}
            if bursts:
                figures |= {
                    "whole": middle(bursts, max) / 1e3,
                    "least": (length - 1) * BITS / rate * 1e3,
                }
            emit(subject, {"packets": length}, figures)


def d12(lab, options):
    """How uneven the rate of a slice is that is offered more than it has."""
    rate = 100 * MEGABIT
    for subject, switch, hosts in each(
        lab, options, ["sluice", "sluice-bound", "linux-htb", "ovs-trtcm"]
    ):
        settings = own(subject, **({"burst": BUCKET} if "ovs" in subject else {"limit": 1000}))
        switch.shape(PORT, [queue(rate, **settings)])
        for process, burst in (("cbr", 1), ("burst", 64)):
            seconds = long_enough(options, by_mode(options, 1, 1.5))
            receiver = hosts.receive(1, seconds, 0.5)
            sender = hosts.send(
                seconds + 0.7,
                stream(1.3 * rate / BITS, FRAME, process=process, burst=burst),
            )
            got = result(receiver)
            result(sender)
            _, octets, least, most, *_, variation = got["classes"][0]
            emit(
                subject,
                {"arrivals": process},
                {
                    "variation": 100 * variation,
                    "rate": 8 * octets / got["seconds"] / 1e6,
                    "least": least / 1e6,
                    "most": most / 1e6,
                },
            )


def d13(lab, options):
    """How fast packets leave that need not wait: within a bucket, and out of a queue."""
    for subject, switch, hosts in each(lab, options, ["ovs-trtcm", "sluice", "linux-htb"]):
        for rate in by_mode(options, [100], [50, 100, 500]):
            settings = {"burst": BUCKET} if "ovs" in subject else {"limit": 1000}
            switch.shape(PORT, [queue(rate * MEGABIT, **settings)])
            length = 32
            bursts, lost = burst_times(
                lab, hosts, length, options.seconds, apart(rate * MEGABIT)(length)
            )
            figures = {"lost": lost}
            if bursts:
                span = middle(bursts, lambda times: max(times) - min(times))
                figures["dequeue"] = (length - 1) * BITS / max(span, 1e-3) / 1e3
            emit(subject, {"rate": rate}, figures)


EXPERIMENTS = {
    name.upper(): function
    for name, function in dict(globals()).items()
    if name[0] == "d" and name[1:].isdigit()
}


def words_of(text, experiments):
    """The options that the lab's programs have."""
    words = parser(text, daemons=False)
    words.set_defaults(rounds=1, seconds=2)
    words.add_argument("experiment", choices=experiments)
    words.add_argument("--mode", choices=["quick", "normal", "full"], default="normal")
    words.add_argument("--subject", action="append", default=[])
    words.add_argument("--daemon", metavar="COMMAND", help="a sluiced")
    return words


def command_of(daemon):
    """`sluice` beside a daemon; where both are installed, it is in bin and the daemon in sbin."""
    beside = os.path.dirname(daemon)
    places = [os.path.join(beside, "sluice"), os.path.join(beside, "..", "bin", "sluice")]
    return next((place for place in places if os.path.exists(place)), places[0])


def measure(options, experiments, pages, before=lambda lab: None, least=1):
    """Runs one experiment, in rounds of at least `least` seconds a measurement; `before` once."""
    options.seconds = long_enough(options, least)

    def work(lab):
        alone()
        before(lab)
        for number in range(options.rounds):
            experiments[options.experiment](lab, options)
            stderr(f"round {number + 1} of {options.rounds} is done")
        return 0

    run(work, {"sluice": harness.switchd_command(options.daemon or switchd())}, pages)


def with_traffic(options, experiments, pages, least=1):
    """The same for experiments between the hosts of bench/slicing_peers.py."""
    options.peer = []

    def before(lab):
        options.program = compiled(lab.directory)

    measure(options, experiments, pages, before, least)


def main():
    """Runs one experiment."""
    with_traffic(words_of(__doc__, EXPERIMENTS).parse_args(), EXPERIMENTS, HUGE_PAGES)


if __name__ == "__main__":
    sys.exit(main())
