#!/usr/bin/python3
"""Ports, guests, rules and controllers come and go under traffic for hours; what grows, what is
late, and what is lost.

    bench/soak.py --hours N [--seed N] [--every SECONDS] [--daemon LABEL=COMMAND] [--json FILE]
                  [--markdown]

One daemon with a worker on core 1 carries two steady streams, from veth to veth and from one
vhost-user device to another. Meanwhile, drawn from the seed:

    ports        kernel ports are added, carry frames, and are removed with their device or without
    guests       vhost-user devices (tests/vhost_frontend.py) are added in pairs, carry frames, hang
                 up, come back, or go without a word; testpmd's virtio-user devices circulate frames
    rules        up to 20,000 are added, also in bundles and with timeouts, replaced, and deleted
    controllers  connections ask, stay silent, or stop in the middle of a message; a bridge comes
                 and goes with one of its own

Every turn of these takes some seconds. At its end all that came has gone again, so that what is
then left can be compared: resident memory, mappings, descriptors and threads, and how much the
steady streams have lost. Each is a line of the table, as often as --every says (a minute, and ten
times in all at the least). Longest turns are the daemon's own, where it tells of them
(sluice/stats, coverage/show: names with "longest"); "echo" is the longest wait for an echo, without
the time in which the thread that answers waited for a processor.

It ends with 0 where, from the end of the first fifth to the last turn, by the median of the slopes
between samples, memory has not grown by more than 5% and 16 MB, mappings by more than 32,
descriptors by more than 8, threads by more than 2; no packet was lost that no counter names; no
echo waited for more than 1 s; and the daemon never ended. It can be ended at any time (^C,
SIGTERM): nothing stays behind. Needs root, gcc, and some huge pages that can be reserved.
"""

import contextlib
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import time

from adversary import (
    ECHO_REPLY,
    ECHO_REQUEST,
    FLOW_MOD,
    GIVEN_UP_S,
    GUEST_RATE,
    HERE,
    HUGE_PAGES,
    KERNEL_RATE,
    LENGTH,
    PORTS,
    SLOTS,
    Aside,
    Probes,
    Site,
    dropped,
    outcome,
    uncounted,
)
from contender import (
    Connection,
    contender,
    figure,
    harness,
    header,
    machine,
    parser,
    run,
    stderr,
    switchd,
    table,
)
from frames import uniform, write_pcap
from rule_changes import flow_mod
from slicing_peers import NOBODY, alone, compiled, stream
from testpmd import Testpmd
from vhost_frontend import FrontEnd, Refused

# What may grow from the end of the first fifth on: a share of the median, and so much beside.
BOUNDS = {"memory MB": (0.05, 16), "mappings": (0, 32), "descriptors": (0, 8), "threads": (0, 2)}
LATEST_ECHO_MS = 1000.0
TURN_S = 8
FRAME = bytes.fromhex("020000000042020000000041") + b"\x88\xb5" + bytes(46)


def slope(samples):
    """The median of the slopes between any two of (time, value), as Theil and Sen have it: single
    values that stand out do not matter. 0 for less than two times."""
    slopes = [
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for number, sooner in enumerate(samples)
        for later in samples[number + 1 :]
        if later[0] > sooner[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def grown(samples):
    """By how much the values of (time, value) have grown from the end of the first fifth to the
    end; and their median."""
    samples = samples[len(samples) // 5 :]
    if not samples:
        return 0.0, 0.0
    # Hours of samples are thinned: all pairs of 300 are enough.
    samples = samples[:: max(1, len(samples) // 300)]
    return slope(samples) * (samples[-1][0] - samples[0][0]), statistics.median(
        value for _, value in samples
    )


def verdict(rows):
    """What is wrong with a run, in words; `rows` are the turns' figures, each with its
    "seconds"."""
    found = []
    for name, (share, more) in BOUNDS.items():
        growth, middle = grown([(row["seconds"], row[name]) for row in rows])
        if growth > share * middle + more:
            found.append(f"{name} grew by {growth:.1f}, from about {middle - growth / 2:.1f}")
    for name in ("kernel uncounted", "guest uncounted", "others uncounted"):
        lost = [row[name] for row in rows if row[name]]
        if lost:
            found.append(
                f"{name}: {sum(map(abs, lost))} packets in {len(lost)} of {len(rows)} turns"
            )
    late = max((row["echo ms"] for row in rows), default=0)
    if late > LATEST_ECHO_MS:
        found.append(f"an echo waited for {late:.0f} ms")
    if not rows:
        found.append("no turn was completed")
    return found


def longest_turns(stats, coverage):
    """Longest turns that a daemon tells of, in us by name: of workers, of control, and counters."""
    found = {}

    def look(value, place):
        if isinstance(value, dict):
            for name, inner in value.items():
                look(inner, f"{place} {name}".strip())
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                named = isinstance(inner, dict) and isinstance(inner.get("name"), str)
                look(inner, f"{place} {inner['name'] if named else number}".strip())
        elif isinstance(value, (int, float)) and "longest" in place:
            found[place] = value

    look(stats, "")
    for name, value in re.findall(r"^(\S*longest\S*) .*total: (\d+)", coverage, re.M):
        found[name] = int(value)
    return found


class Soak:
    """A daemon, its steady streams, and what comes and goes."""

    def __init__(self, switch, seed, only=()):
        self.switch, self.draw, self.only = switch, random.Random(seed), only
        self.number, self.done, self.lost = 0, {}, 0

    def next(self):
        """A number that no port has had lately."""
        self.number = self.number % 2000 + 1
        return self.number

    def turn(self, seconds):
        """Streams for some seconds while things come and go; figures of the turn."""
        switch, self.lost = self.switch, 0
        before = switch.settled()
        probes = Aside(Probes(switch, switch.guests[0]), alone)
        streams = self.streams(seconds)
        actions = [getattr(self, name) for name in self.only or ACTIONS if name != "virtio_user"]
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and actions:
                act = self.draw.choice(actions)
                act()
                self.done[act.__name__] = self.done.get(act.__name__, 0) + 1
            if "virtio_user" in (self.only or ACTIONS) and self.draw.random() < 0.2:
                self.virtio_user()
                self.done["virtio_user"] = self.done.get("virtio_user", 0) + 1
            sender, receiver, guests = streams
            sent, frames, got = (
                outcome(sender, seconds),
                outcome(guests, seconds),
                outcome(receiver, seconds),
            )
        finally:
            answers = probes.result()
            for process in streams:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        after = switch.settled()
        if not (sent and frames and got):
            raise harness.Failure("a stream did not end: its frames are no longer taken")
        figures = self.figures()
        return figures | {
            "sent": sent["sent"] + frames["sent"],
            "received": got["packets"] + frames["received"],
            "dropped": dropped(
                before, after, ("k1", "rx"), ("k2", "tx"), ("v1", "rx"), ("v2", "tx")
            )
            + got["lost"],
            "kernel uncounted": uncounted(
                sent["sent"],
                got["packets"],
                0,
                got["lost"] + dropped(before, after, ("k1", "rx"), ("k2", "tx")),
            ),
            "guest uncounted": uncounted(
                frames["sent"],
                frames["received"],
                frames["left"],
                dropped(before, after, ("v1", "rx"), ("v2", "tx")),
            ),
            "others uncounted": self.lost,
            "p99 us": max(got["p99"], frames["p99"]),
            "echo ms": max(answers.get("echo") or [GIVEN_UP_S * 1e3]),
        }

    def streams(self, seconds):
        """Starts sender, receiver and both devices of the steady streams."""
        switch = self.switch
        first, second = switch.guests
        receiver = switch.lab.start(
            switch.hosts["k2"].command(
                [
                    switch.programs["traffic"],
                    "receive",
                    "0",
                    "eth0",
                    "1",
                    str(seconds + 5),
                    "0",
                    "0",
                ]
            ),
            "receive.err",
            stdout=subprocess.PIPE,
        )
        receiver.stdout.readline()
        sender = switch.lab.start(
            switch.hosts["k1"].command(
                [
                    switch.programs["traffic"],
                    "send",
                    "0",
                    "eth0",
                    switch.hosts["k1"].address(),
                    NOBODY,
                    str(seconds),
                    stream(KERNEL_RATE, LENGTH, process="calm"),
                ]
            ),
            "send.err",
            stdout=subprocess.PIPE,
        )
        rings = (first.memory.fd, first.rings[1].kick, second.memory.fd, second.rings[0].kick)
        guests = switch.lab.start(
            [
                switch.programs["vhost_peer"],
                "0",
                *map(str, rings),
                str(SLOTS),
                str(LENGTH),
                str(GUEST_RATE),
                str(seconds),
            ],
            "vhost_peer.err",
            stdout=subprocess.PIPE,
            pass_fds=rings,
        )
        for process in (receiver, sender, guests):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, -10)
        # They have ended when the turn has; the list of a long run would be long.
        switch.lab.programs[:] = [
            process for process in switch.lab.programs if process.poll() is None
        ]
        return sender, receiver, guests

    def figures(self):
        """What the daemon uses now."""
        pid = self.switch.process.pid
        with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as file:
            mappings = sum(1 for _ in file)
        stats = {}
        if not self.switch.is_ovs:
            stats = json.loads(self.switch.appctl("sluice/stats"))
        turns = longest_turns(stats, self.switch.appctl("coverage/show"))
        return {
            "memory MB": self.switch.memory_mb(),
            "mappings": mappings,
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "longest": max(turns.values(), default=None),
            "rules": len(self.switch.rules(self.switch.management)),
        }

    # What comes and goes.

    def port(self):
        """A kernel port that carries frames to another and goes, its device before it or after."""
        number, switch = self.next(), self.switch
        names = [f"s{number}a", f"s{number}b"]
        hosts = [switch.lab.namespace(f"n{name}").quiet() for name in names]
        try:
            ofports = [
                switch.link(host, name, "eth0", mtu=self.draw.choice([None, 9000]))
                for host, name in zip(hosts, names)
            ]
            switch.ofctl(
                "add-flow",
                switch.management,
                f"priority=60,in_port={ofports[0]},actions=output:{ofports[1]}",
            )
            count, ends = self.draw.randint(1, 200), [host.raw() for host in hosts]
            for _ in range(count):
                ends[0].send(FRAME)
            got = len(
                ends[1].receive(2, wanted=lambda frame: frame[:14] == FRAME[:14], until=count)
            )
            self.account(ofports, count, got)
            for end in ends:
                end.socket.close()
            switch.ofctl(
                "--strict", "del-flows", switch.management, f"priority=60,in_port={ofports[0]}"
            )
            if self.draw.random() < 0.3:
                switch.namespace.run(["ip", "link", "del", names[0]])
        finally:
            for name in names:
                switch.vsctl("--if-exists", "del-port", "br0", name)
                switch.namespace.run(["ip", "link", "del", name], ok=False)
            for host in hosts:
                harness.run(["ip", "netns", "del", host.name], ok=False)

    def account(self, ofports, sent, got):
        """Frames between two ports that are neither there nor counted."""
        source, target = map(str, ofports)
        end = time.monotonic() + 2
        while True:
            ports = self.all_ports()
            lost = uncounted(
                sent,
                got,
                0,
                dropped({source: NONE, target: NONE}, ports, (source, "rx"), (target, "tx")),
            )
            if not lost or time.monotonic() > end:
                break
            time.sleep(0.1)
        if lost:
            stderr(
                f"of {sent} frames from port {source} to {target} {got} came: "
                f"{ports.get(source)}, {ports.get(target)}"
            )
        self.lost += lost

    def all_ports(self):
        """Counters by OpenFlow number."""
        ports, current = {}, None
        for line in self.switch.ofctl(
            "--no-names", "dump-ports", self.switch.management
        ).splitlines():
            found = re.match(r"\s+port\s+(\w+)\s*:\s*rx (.*)", line)
            if found:
                current = ports.setdefault(found[1], {})
                current["rx"] = harness.counts(found[2])
            elif current is not None and line.strip().startswith("tx "):
                current["tx"] = harness.counts(line.strip()[3:])
        return ports

    def guests(self):
        """Two devices that come, carry frames, come back perhaps, and go: with a word or without,
        before their ports or after."""
        number, switch = self.next(), self.switch
        names, devices, ofports = [f"g{number}a", f"g{number}b"], [], []
        try:
            for name in names:
                device = FrontEnd(
                    f"{switch.directory}/{name}.sock", slots=self.draw.choice([64, 256, 1024])
                ).listen()
                devices.append(device)
                ofports.append(
                    switch.port(
                        name, "type=dpdkvhostuserclient", f"options:vhost-server-path={device.path}"
                    )
                )
            switch.ofctl(
                "add-flow",
                switch.management,
                f"priority=60,in_port={ofports[0]},actions=output:{ofports[1]}",
            )
            sent = got = 0
            for _ in range(self.draw.randint(1, 3)):
                for device in devices:
                    device.accept(20).start()
                switch.up(*names)
                count = self.draw.randint(1, 64)
                devices[0].send(*[FRAME] * count)
                sent, got = sent + count, got + len(devices[1].receive(2, until=count))
                if self.draw.random() < 0.5:
                    devices[0].enable(0, False)
                    devices[0].enable(0, True)
                self.account(ofports, sent, got)
                for device in devices:
                    device.forget()
                for name in names:
                    harness.wait_for(
                        f"{name} is down",
                        lambda name=name: switch.get("Interface", name, "link_state") != "up",
                        20,
                    )
            self.account(ofports, sent, got)
            switch.ofctl(
                "--strict", "del-flows", switch.management, f"priority=60,in_port={ofports[0]}"
            )
            if self.draw.random() < 0.3:
                with contextlib.suppress(OSError, Refused, ConnectionError, TimeoutError):
                    devices[0].accept(5).start()
        finally:
            if self.draw.random() < 0.5:
                for device in devices:
                    device.close()
            for name in names:
                switch.vsctl("--if-exists", "del-port", "br0", name)
            for device in devices:
                device.close()

    def virtio_user(self):
        """testpmd with two devices, at full speed for a while; it is killed or asked to end."""
        number, switch = self.next(), self.switch
        names = [f"u{number}a", f"u{number}b"]
        paths = [f"{switch.directory}/{name}.sock" for name in names]
        peers = Testpmd(
            switch.lab,
            paths,
            f"peer{number}",
            ["--nb-cores=1"],
            cores=("--lcores", "0@0,1@0"),
            before=("nice", "-n", "10"),
        )
        try:
            ofports = [
                switch.port(name, "type=dpdkvhostuserclient", f"options:vhost-server-path={path}")
                for name, path in zip(names, paths)
            ]
            switch.ofctl(
                "add-flow",
                switch.management,
                f"priority=60,in_port={ofports[0]},actions=output:{ofports[1]}",
            )
            switch.ofctl(
                "add-flow",
                switch.management,
                f"priority=60,in_port={ofports[1]},actions=output:{ofports[0]}",
            )
            peers.wait_ready()
            switch.up(*names)
            peers.forward("io", 4)
            time.sleep(1)
            if self.draw.random() < 0.5:
                peers.stop()
                peers.quit()
            for ofport in ofports:
                switch.ofctl(
                    "--strict", "del-flows", switch.management, f"priority=60,in_port={ofport}"
                )
        finally:
            peers.process.kill()
            peers.process.wait()
            for end in (peers.process.stdin, peers.process.stdout):
                end.close()
            for name, path in zip(names, paths):
                switch.vsctl("--if-exists", "del-port", "br0", name)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def rules(self):
        """Rules that are added, one by one or in a bundle, some with timeouts, replaced, and
        deleted."""
        switch, count = self.switch, self.draw.choice([10, 1000, 20_000])
        timeout = self.draw.choice(["", "idle_timeout=1,", "hard_timeout=1,", "send_flow_rem,"])
        first = self.draw.randrange(1 << 16)
        kind = self.draw.choice(
            [
                "tcp,nw_dst=20.{}.{}.{}",
                "tcp,nw_src=30.{}.{}.{},tp_dst=80",
                "dl_dst=02:99:00:{:02x}:{:02x}:{:02x}",
                "table=5,dl_dst=02:98:00:{:02x}:{:02x}:{:02x}",
            ]
        )
        text = "".join(
            f"cookie=0x50a,priority=30,{timeout}"
            f"{kind.format(number >> 16 & 255, number >> 8 & 255, number & 255)}"
            f",actions=output:{PORTS['out2']}\n"
            for number in range(first, first + count)
        )
        options = self.draw.choice([[], ["--bundle"]])
        for _ in range(self.draw.randint(1, 2)):
            switch.ofctl(*options, "add-flows", switch.management, "-", stdin=text, seconds=120)
        switch.ofctl("del-flows", switch.management, "cookie=0x50a/-1", seconds=60)

    def controllers(self):
        """Connections that ask, say nothing, or stop within a message."""
        clients = []
        try:
            for _ in range(self.draw.randint(1, 30)):
                client = Connection(self.switch.management, GIVEN_UP_S)
                clients.append(client)
                what = self.draw.choice(["ask", "silent", "half", "rules"])
                if what == "ask":
                    client.socket.sendall(header(ECHO_REQUEST, 0, 5))
                    client.wait_for(ECHO_REPLY, 5)
                elif what == "half":
                    client.socket.sendall(
                        header(FLOW_MOD, 60_000, 6) + bytes(self.draw.randrange(60_000))
                    )
                elif what == "rules":
                    number = self.draw.randrange(1000)
                    client.socket.sendall(
                        b"".join(flow_mod((1 << 20) + number, each) for each in range(1, 100))
                    )
                    client.barrier(200)
        finally:
            for client in clients:
                client.close()

    def configured(self):
        """A bridge with a controller that listens, or that nobody is, and both go again.

        One of its own: a controller that comes first takes all rules away."""
        listener = harness.socket.socket(harness.socket.AF_UNIX)
        path = f"{self.switch.directory}/controller{self.next()}"
        try:
            if self.draw.random() < 0.7:
                listener.bind(path)
                listener.listen(4)
                listener.settimeout(10)
            self.switch.bridge("brc")
            self.switch.vsctl("set-controller", "brc", f"unix:{path}")
            if self.draw.random() < 0.7:
                with contextlib.suppress(OSError):
                    peer, _ = listener.accept()
                    peer.settimeout(2)
                    peer.sendall(struct.pack("!BBHI", 1, 0, 8, 1))
                    peer.recv(100)
                    peer.close()
        finally:
            self.switch.vsctl("--if-exists", "del-br", "brc")
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


NONE = {"rx": {}, "tx": {}}
ACTIONS = ("port", "guests", "rules", "controllers", "configured", "virtio_user")
HEAD = (
    "minutes",
    "memory MB",
    "mappings",
    "descriptors",
    "threads",
    "longest, us",
    "rules",
    "sent",
    "received",
    "dropped",
    "uncounted",
    "p99 us",
    "echo ms",
)


def line(rows):
    """A line of the table: the state after the last of some turns, and what happened in all of
    them."""
    last = rows[-1]
    lost = sum(
        row[name]
        for row in rows
        for name in ("kernel uncounted", "guest uncounted", "others uncounted")
    )
    return [
        f"{last['seconds'] / 60:.1f}",
        f"{last['memory MB']:.0f}",
        *(last[name] for name in ("mappings", "descriptors", "threads")),
        "-" if last["longest"] is None else figure(last["longest"]),
        last["rules"],
        *(sum(row[name] for row in rows) for name in ("sent", "received", "dropped")),
        lost,
        figure(max(row["p99 us"] for row in rows)),
        figure(max(row["echo ms"] for row in rows)),
    ]


def soak(lab, options, label, command):
    """All of it; 0 where nothing is wrong."""
    files = {
        "traffic": compiled(lab.directory),
        "vhost_peer": f"{lab.directory}/vhost_peer",
        "pcap": f"{lab.directory}/in.pcap",
    }
    harness.run(
        ["gcc", "-O2", "-o", files["vhost_peer"], os.path.join(HERE, "vhost_peer.c")], seconds=60
    )
    write_pcap(files["pcap"], uniform(1000))
    seconds = options.hours * 3600
    every = options.every or min(60, seconds / 10)
    rows, problem = [], None
    print(f"{label}: {options.hours:g} hours, seed {options.seed}; {machine()}", flush=True)
    with contender(lab, label, command, kind=Site, programs=files) as switch:
        switch.victims(files["pcap"])
        # The steady streams alone are to be carried, by a worker that has time for what comes and
        # goes.
        switch.silence()
        soaked = Soak(switch, options.seed, options.only)
        begin, told = time.monotonic(), 0
        try:
            while time.monotonic() < begin + seconds:
                row = soaked.turn(min(TURN_S, max(1, seconds / 10)))
                rows.append(row | {"seconds": time.monotonic() - begin})
                if options.json:
                    with open(options.json, "a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
                if (
                    rows[-1]["seconds"] >= (rows[told - 1]["seconds"] if told else 0) + every
                    or told == 0
                ):
                    shown(line(rows[told:]), told == 0)
                    told = len(rows)
        except (
            harness.Failure,
            OSError,
            ConnectionError,
            ValueError,
            KeyError,
            Refused,
        ) as failure:
            problem = f"{type(failure).__name__}: {failure}"
        ended = switch.process.poll()
        if problem or ended is not None:
            stderr(
                f"the daemon {'still runs' if ended is None else f'ended with {ended}'}; it wrote "
                f"last: {switch.tail(10)}"
            )
    found = verdict(rows)
    if problem:
        found.append(f"after {len(rows)} turns: {problem[:1000]}")
    if ended is not None:
        found.append(f"the daemon ended with {ended}")
    print()
    growth = {name: grown([(row["seconds"], row[name]) for row in rows]) for name in BOUNDS}
    table(
        ["", "grown", "median", "may grow"],
        [
            [
                name,
                f"{by:+.1f}",
                f"{middle:.1f}",
                f"{BOUNDS[name][0] * middle + BOUNDS[name][1]:.1f}",
            ]
            for name, (by, middle) in growth.items()
        ],
    )
    print(
        f"{len(rows)} turns, {sum(row['sent'] for row in rows)} packets of the steady streams; "
        "came and went: "
        f"{', '.join(f'{name} {count}' for name, count in sorted(soaked.done.items()))}"
    )
    for what in found:
        print(f"FAIL: {what}")
    if not found:
        print("PASS")
    return 1 if found else 0


def shown(cells, first):
    """Prints a line of the table at once, under its head where it is the first."""
    widths = [max(len(name), 9) for name in HEAD]
    for values in ([HEAD] if first else []) + [cells]:
        print(
            "  ".join(f"{str(value):>{width}}" for value, width in zip(values, widths)), flush=True
        )


def main():
    options = parser(__doc__, daemons=False)
    options.add_argument("--hours", type=float, required=True)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--only",
        action="append",
        choices=ACTIONS,
        default=[],
        help="nothing else comes and goes; may be given again",
    )
    options.add_argument(
        "--every",
        type=float,
        default=0,
        metavar="SECONDS",
        help="a line of the table so often (default: 60, and ten times in all at the least)",
    )
    options.add_argument(
        "--daemon",
        metavar="LABEL=COMMAND",
        help='"ovs=ovs" is Debian\'s Open vSwitch with DPDK (default: '
        "sluice=target/release/sluiced)",
    )
    options = options.parse_args()
    if not 0 < options.hours <= 10_000 or options.every < 0:
        sys.exit("--hours takes more than 0 and at most 10,000, --every 0 or more")
    label, _, command = (options.daemon or f"sluice={switchd()}").partition("=")
    command = harness.switchd_command(command or label)
    if not os.access(command[0], os.X_OK):
        sys.exit(
            f"there is no daemon at {command[0]}: `make` builds it, scripts/setup installs Open "
            "vSwitch"
        )
    run(lambda lab: soak(lab, options, label, command), {label: command}, HUGE_PAGES + 300)


if __name__ == "__main__":
    sys.exit(main())
