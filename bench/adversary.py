#!/usr/bin/python3
"""What others notice of a guest, a controller or a peer that means harm.

    bench/adversary.py [--adversary NAME]... [--rounds 3] [--seconds 3] [--daemon LABEL=COMMAND]...
                       [--rules N] [--json FILE] [--markdown] [--list]

A victim uses the switch in every way at once, with one worker on core 1:

    memory   64-byte packets of 10,000 flows from memory (net_pcap) into a null device, as many as
             the worker takes; Mpps
    kernel   a steady stream from veth to veth; share that arrives, and the 99th percentile of its
             delays
    guest    a steady stream from one vhost-user device to another; the same; and how long a message
             of the hypervisor waits for its answer
    control  how long an echo request waits, and one rule and a barrier, each on a connection of its
             own

In each round and for each adversary a fresh daemon is measured alone, beside the adversary, and
alone again ("after"). Beside it the memory's rate is compared with that of quarters of a second in
which the adversary is stopped, since the machine's speed changes within seconds ("delete" cannot be
stopped). The adversary works on core 0 behind everybody else (nice 19); so does "nobody", who only
spends processor time: what is lost beside it is the machine's fault, and taken off where nobody is
among those asked for. Beside those who learn, what is lost beside "senders" is taken off: guests
have a right to the time that sending their frames takes. Daemon and victim go before all else on
the machine. Where a thread of the daemon had to wait for a processor nonetheless, that time is
taken off (/proc/PID/task/TID/schedstat): rates are those of the time in which the worker could run,
and waits for control are without those of its thread.

The goal: beside each adversary the victim keeps 90% of its rates, nothing is lost that no counter
names (sent = received + dropped by name), echoes are answered within 50 ms, messages of hypervisors
within a second, a controller that reads promptly is told of all, and the daemon is there
afterwards. The memory's rate need not be kept beside guests that send without end ("shared"): they
have a right to their turns, though not to more. Ends with 1 where the median of a daemon's rounds
misses it (but for Open vSwitch, which is there to be compared with), and says what was missed.

Needs root, gcc, and some huge pages that can be reserved.
"""

import contextlib
import json
import multiprocessing
import os
import re
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

from contender import (
    Connection,
    Contender,
    Results,
    contender,
    contenders,
    figure,
    harness,
    header,
    machine,
    parser,
    run,
    stderr,
    table,
)
from frames import uniform, write_pcap
from openflow_client import BARRIER_REPLY, BARRIER_REQUEST, ECHO_REPLY, ECHO_REQUEST
from rule_changes import flow_mod
from slicing_peers import NOBODY, alone, compiled, stream
from vhost_frontend import (
    CSUM,
    GET_FEATURES,
    HOST_TSO4,
    RING_BYTES,
    FrontEnd,
    Refused,
    die_with_parent,
    tcp_frame,
    tcp_header,
)

HERE = os.path.dirname(os.path.abspath(__file__))
# What buffers need: large reserves take minutes to be had where others use the machine's memory.
MEMORY_MB, HUGE_PAGES = 640, 520
FLOWS = 10_000
# Packets a second of the steady streams: little enough that two cores have time for all of it.
KERNEL_RATE, GUEST_RATE, LENGTH, SLOTS = 10_000, 50_000, 64, 1024
KEPT, ECHO_MS, MESSAGE_MS = 0.9, 50.0, 1000.0
# Nobody waits for longer.
GIVEN_UP_S = 15.0
# How long an adversary acts or rests at a time, and how much of a rest is not looked at.
TURN_S, SETTLING_S = 0.25, 0.15
SET_CONFIG, FLOW_REMOVED, FLOW_MOD, STATS_REQUEST, STATS_REPLY = 9, 11, 14, 16, 17
# Of OpenFlow 1.0's port statistics: their number, and where packets sent are in a reply.
PORT_STATS, TX_PACKETS = 4, 12 + 16
SEND_FLOW_REM = 1
PORTS = {
    "in": 1,
    "out": 2,
    "out2": 3,
    "v1": 4,
    "v2": 5,
    "k1": 6,
    "k2": 7,
    "bad": 8,
    "a1": 9,
    "a2": 10,
}
COUNTED = ("drop", "errs", "frame", "over", "crc", "coll")

fork = multiprocessing.get_context("fork")


# What is computed.


def of_its_time(amount, wall_ns, waited_ns):
    """An amount a second of the time in which a thread did not wait for a processor; None where it
    always did."""
    return amount / (wall_ns - waited_ns) * 1e9 if wall_ns > waited_ns else None


def percentile(values, share):
    """The least value that so large a share of all does not exceed; None without any."""
    ordered = sorted(values)
    return (
        ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * share // 100) - 1))]
        if ordered
        else None
    )


def excused(seconds, *waits_ns):
    """A wait without what threads waited for a processor meanwhile, in ms."""
    return max(0.0, seconds * 1e3 - sum(waits_ns) / 1e6)


def uncounted(sent, received, left, dropped):
    """Packets that are neither received, nor still with who sent them, nor in a counter; negative
    where counters say too much."""
    return sent - received - left - dropped


def dropped(before, after, *places):
    """By how much the counters of what was lost have grown: `places` are (port, "rx" or "tx")."""
    total = 0
    for port, way in places:
        for name in COUNTED:
            total += (after[port][way].get(name) or 0) - (before[port][way].get(name) or 0)
    return total


def missed(figures, shared=False, nobody=None, least=0.0):
    """What of the goal the medians of a daemon's figures miss, in words. Where the memory's worker
    is shared, the memory is to keep `least` of its rate alone: what is sent to the worker goes on
    while its sender rests.

    Of what is lost beside nobody (`nobody` are its figures), too, the adversary is not accused."""
    found = []
    for name in ("kernel", "guest") if shared else ("memory", "kernel", "guest"):
        kept, machine_kept = figures.get(f"{name} kept"), (nobody or {}).get(f"{name} kept")
        if kept is not None and kept < KEPT * min(1, 1 if machine_kept is None else machine_kept):
            found.append(f"{name}: {kept:.0%} of its rate")
    if least and (alone_rate := figures.get("alone: memory")):
        share = figures["memory kept"] * figures["memory resting"] / alone_rate
        if share < least:
            found.append(f"memory: {share:.0%} of its rate alone")
    for name in ("kernel", "guest"):
        lost = figures.get(f"{name} uncounted")
        if lost:
            found.append(f"{name}: {lost:g} packets that no counter names")
    for name, limit in (("echo", ECHO_MS), ("message", MESSAGE_MS)):
        waited = figures.get(f"{name} ms")
        if waited is not None and waited > limit:
            found.append(f"{name}: {waited:.0f} ms")
    if figures.get("did: disconnected"):
        found.append("a controller that reads promptly was disconnected")
    if figures.get("ended"):
        found.append("the daemon ended, or no longer answers")
    return found


def waited_ns(schedstat):
    """How long a thread has waited for a processor, from /proc/PID/task/TID/schedstat."""
    return int(schedstat.split()[1])


# What is measured.


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def waits_of(pid, thread):
    """As waited_ns(), 0 for a thread that has gone."""
    try:
        return waited_ns(read(f"/proc/{pid}/task/{thread}/schedstat"))
    except OSError:
        return 0


class Aside:
    """A function in a process of its own, `act(stop)`, that is asked to end, and killed where it
    does not."""

    def __init__(self, act, before=None):
        self.stop, (self.end, other) = fork.Event(), fork.Pipe(False)

        def body():
            die_with_parent()
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            if before:
                before()
            try:
                other.send(act(self.stop))
            except Exception as problem:  # told to whoever asks for the result
                other.send({"problem": f"{type(problem).__name__}: {problem}"})

        self.process = fork.Process(target=body, daemon=True)
        self.process.start()
        other.close()

    def rest(self, resting):
        """Stops the process and what it has started, or lets them go on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGSTOP if resting else signal.SIGCONT)

    def result(self, seconds=GIVEN_UP_S):
        """What it found, or an empty dictionary where it did not end in time."""
        self.stop.set()
        found = {}
        if self.end.poll(seconds):
            with contextlib.suppress(EOFError):
                found = self.end.recv()
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return found or {}


def behind_all():
    """What the calling process does, it does when nobody else wants core 0."""
    os.sched_setaffinity(0, {0})
    os.nice(39)


class Probes:
    """Asks the switch for echoes, barriers, and as a hypervisor, each in a thread, until told to
    stop."""

    def __init__(self, switch, message):
        self.switch, self.message = switch, message

    def __call__(self, stop):
        found = {"echo": [], "barrier": [], "message": [], "unanswered": []}
        threads = [
            threading.Thread(target=self.asked, args=(stop, found, *each), daemon=True)
            for each in (
                ("echo", self.echo, 0.01),
                ("barrier", self.barrier, 0.02),
                ("message", self.hypervisor, 0.1),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if not stop.is_set() else GIVEN_UP_S)
        return {name: list(values) for name, values in found.items()}

    def asked(self, stop, found, name, ask, pause):
        """Asks one kind of question again and again, and notes how long answers took, in ms."""
        number, state = 1, [None]
        pid = self.switch.process.pid
        while not stop.is_set():
            control, own, begin = (
                waits_of(pid, pid),
                waited_ns(read("/proc/thread-self/schedstat")),
                time.monotonic(),
            )
            number += 1
            try:
                ask(state, number)
                took = time.monotonic() - begin
                found[name].append(
                    excused(
                        took,
                        waits_of(pid, pid) - control,
                        waited_ns(read("/proc/thread-self/schedstat")) - own,
                    )
                )
            except (OSError, ConnectionError, TimeoutError) as problem:
                found[name].append((time.monotonic() - begin) * 1e3)
                found["unanswered"].append(f"{name}: {problem}")
                state[0] = None
                if stop.wait(1):
                    break
            stop.wait(pause)

    def connection(self, state):
        state[0] = state[0] or Connection(self.switch.management, GIVEN_UP_S)
        return state[0]

    def echo(self, state, number):
        client = self.connection(state)
        client.socket.sendall(header(ECHO_REQUEST, 8, number) + bytes(8))
        client.wait_for(ECHO_REPLY, number)

    def barrier(self, state, number):
        client = self.connection(state)
        # The same few rules again and again: what packets cost depends on how many there are.
        client.socket.sendall(
            flow_mod((1 << 20) + number % 16, 2 * number)
            + header(BARRIER_REQUEST, 0, 2 * number + 1)
        )
        client.wait_for(BARRIER_REPLY, 2 * number + 1)

    def hypervisor(self, _state, _number):
        self.message.peer.settimeout(GIVEN_UP_S)
        self.message.ask(GET_FEATURES)


class Memory:
    """Counts packets of the memory's that have gone out, in the time in which the worker could
    run."""

    def __init__(self, switch):
        self.client, self.number = Connection(switch.management, GIVEN_UP_S), 1
        self.pid, self.worker = switch.process.pid, switch.worker()
        self.restart()

    def count(self):
        self.number += 1
        asked = struct.pack("!HHHxxxxxx", PORT_STATS, 0, PORTS["out"])
        self.client.socket.sendall(header(STATS_REQUEST, len(asked), self.number) + asked)
        reply = self.client.wait_for(STATS_REPLY, self.number)
        return struct.unpack_from("!Q", reply, TX_PACKETS)[0]

    def restart(self):
        """Begins a stretch."""
        self.begin = self.count(), time.monotonic_ns(), waits_of(self.pid, self.worker)

    def stretch(self):
        """Packets since the stretch began, nanoseconds since then, and those of them in which the
        worker waited for a processor."""
        before = self.begin
        self.restart()
        return [now - then for now, then in zip(self.begin, before, strict=True)]

    def alternately(self, seconds, aside):
        """The rate while the adversary acts, and while it rests, in turns: the machine's speed
        changes within seconds. What it leaves to be done when it comes to rest is its fault."""
        totals = {False: [0, 0, 0], True: [0, 0, 0]}
        end, resting = time.monotonic() + seconds, False
        while time.monotonic() < end:
            time.sleep(SETTLING_S if resting else 0)
            self.restart()
            time.sleep(TURN_S)
            totals[resting] = [
                total + more for total, more in zip(totals[resting], self.stretch(), strict=True)
            ]
            resting = not resting
            aside.rest(resting)
        aside.rest(False)
        return [of_its_time(*total) for total in totals.values()]


class Proxy:
    """Between daemon and database: passes everything on (0), a little at a time (1), or nothing
    (2)."""

    PASS, SLOW, STOP = 0, 1, 2

    def __init__(self, path, database):
        self.path, self.database = path, database
        self.mode = fork.Value("i", self.PASS)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        self.aside = Aside(self.run)

    def run(self, stop):
        pairs = {}
        while not stop.is_set():
            mode = self.mode.value
            ready = (
                select.select([self.listener, *pairs], [], [], 0.02)[0]
                if mode != self.STOP
                else [time.sleep(0.02)] and []
            )
            for source in ready:
                if source is self.listener:
                    one, other = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
                    other.connect(self.database)
                    pairs[one], pairs[other] = other, one
                    continue
                target = pairs.get(source)
                if target is None:
                    continue
                try:
                    data = source.recv(65536 if mode == self.PASS else 512)
                    if data:
                        target.settimeout(GIVEN_UP_S)
                        target.sendall(data)
                        continue
                except OSError:
                    pass
                for end in (source, target):
                    pairs.pop(end, None)
                    end.close()
            if mode == self.SLOW:
                time.sleep(0.05)
        for end in pairs:
            end.close()
        self.listener.close()
        return {}


class Site(Contender):
    """A daemon with its victim; `by_proxy` puts one in front of the database, `log_bytes` the log
    on a file system of that size."""

    def __init__(self, lab, label, command, programs=None, by_proxy=False, log_bytes=0):
        self.programs, self.by_proxy, self.log_bytes, self.proxy = (
            programs,
            by_proxy,
            log_bytes,
            None,
        )
        self.guests = []
        super().__init__(
            lab, label, command, settings=(f"other_config:dpdk-socket-mem={MEMORY_MB}",)
        )

    def arguments(self):
        words = super().arguments()
        if self.by_proxy:
            if self.proxy is None:
                self.proxy = Proxy(f"{self.directory}/slow.sock", self.db.removeprefix("unix:"))
            words[words.index(self.db)] = f"unix:{self.proxy.path}"
        if self.log_bytes:
            place = f"{self.directory}/full"
            if not os.path.isdir(place):
                os.makedirs(place)
                harness.run(
                    ["mount", "-t", "tmpfs", "-o", f"size={self.log_bytes}", "tmpfs", place]
                )
            words = [
                f"--log-file={place}/log" if word.startswith("--log-file") else word
                for word in words
            ]
        return words

    def before_all(self):
        """Has the daemon's threads go before all else on the machine, so that others' work is not
        in its figures."""
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self.process.pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), -10)
            with open(f"/proc/{self.process.pid}/autogroup", "w", encoding="ascii") as file:
                file.write("-10")

    def victims(self, pcap):
        """Ports, guests and rules of the victim."""
        self.sinks()
        self.hosts = {}
        for name in ("k1", "k2"):
            self.hosts[name] = self.host(name)
        for name in ("v1", "v2"):
            self.guests.append(self.front_end(name, slots=SLOTS))
        for guest in self.guests:
            guest.accept().start()
        self.up("v1", "v2")
        self.rules_from(
            [
                "priority=10,udp,tp_dst=80,actions=resubmit(,5)",
                "table=5,priority=10,dl_dst=02:00:00:00:00:02,actions=output:{out}",
                *(
                    f"priority=50,in_port={PORTS[one]},actions=output:{PORTS[other]}"
                    for one, other in (("k1", "k2"), ("v1", "v2"))
                ),
            ]
        )
        self.source(pcap)
        self.before_all()
        time.sleep(1)

    def host(self, name):
        """A namespace behind a veth pair whose port has the name's number."""
        host = self.lab.namespace(f"{self.name}-{name}").quiet()
        self.link(host, f"{name}-{len(self.lab.switches)}", "eth0", f"ofport_request={PORTS[name]}")
        return host

    def front_end(self, name, **options):
        """A port for a front end that listens."""
        guest = FrontEnd(f"{self.directory}/{name}.sock", **options)
        guest.listen()
        self.vhost(name, PORTS[name])
        return guest

    def up(self, *names):
        """Waits until guests' ports are up."""
        for name in names:
            harness.wait_for(
                f"{name} is up",
                lambda name=name: self.get("Interface", name, "link_state") == "up",
                30,
            )

    def numbered(self):
        """Port counters by the names of PORTS."""
        ports, current = {}, None
        for line in self.ofctl("--no-names", "dump-ports", self.management).splitlines():
            found = re.match(r"\s+port\s+(\w+)\s*:\s*rx (.*)", line)
            if found:
                current = ports.setdefault(found[1], {})
                current["rx"] = harness.counts(found[2])
            elif current is not None and line.strip().startswith("tx "):
                current["tx"] = harness.counts(line.strip()[3:])
        return {name: ports[str(number)] for name, number in PORTS.items() if str(number) in ports}

    def worker(self):
        """The number of the worker's thread."""
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            if read(f"/proc/{self.process.pid}/task/{thread}/comm").startswith("pmd"):
                return int(thread)
        raise harness.Failure("the daemon has no worker")

    def settled(self):
        """Port counters, once those of the steady streams stand still, or after a while."""
        now, end = self.numbered(), time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.3)
            before, now = now, self.numbered()
            if all(now[name] == before[name] for name in ("k1", "k2", "v1", "v2")):
                break
        return now

    def close(self):
        """Lets go of guests and proxy, too."""
        for guest in self.guests:
            guest.close()
        if self.proxy is not None:
            self.proxy.mode.value = Proxy.PASS
        super().close()
        if self.proxy is not None:
            self.proxy.aside.result(1)
            self.proxy.listener.close()
        if self.log_bytes:
            harness.run(["umount", "-l", f"{self.directory}/full"], ok=False)


def outcome(process, seconds):
    """What a program says that measures for some seconds; nothing where it does not end."""
    try:
        text = process.communicate(timeout=seconds + GIVEN_UP_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {}
    if process.returncode:
        raise harness.Failure(f"{process.args} ended with {process.returncode}")
    return json.loads(text)


def window(switch, seconds, adversary=None):
    """Figures of the victim over some seconds, beside an adversary or alone."""
    before = switch.settled()
    aside = Aside(adversary.act, behind_all) if adversary else None
    if aside:
        time.sleep(0.2)
    probes = Aside(Probes(switch, switch.guests[0]), alone)
    first, second = switch.guests
    receiver = switch.lab.start(
        switch.hosts["k2"].command(
            [switch.programs["traffic"], "receive", "0", "eth0", "1", str(seconds + 5), "0", "0"]
        ),
        "receive.err",
        stdout=subprocess.PIPE,
    )
    os.setpriority(os.PRIO_PROCESS, receiver.pid, -20)
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
    for process in (sender, guests):
        os.setpriority(os.PRIO_PROCESS, process.pid, -20)
    figures = {}
    try:
        memory, resting = Memory(switch), None
        if aside and adversary.rests:
            rate, resting = memory.alternately(seconds, aside)
        else:
            time.sleep(seconds)
            rate = of_its_time(*memory.stretch())
        memory.client.close()
        # A sender whose frames nobody takes waits for room: for so long, and then nobody knows how
        # many it has sent.
        sent, frames = outcome(sender, seconds), outcome(guests, seconds)
        did = aside.result(adversary.patience) if aside else {}
        if adversary:
            adversary.end(switch)
        got = outcome(receiver, seconds)
        after = switch.settled()
    finally:
        answers = probes.result()
        if aside and aside.process.is_alive():
            aside.result(0)
    figures |= {
        "memory": rate,
        "memory resting": resting,
        "kernel": got.get("packets", 0) / (KERNEL_RATE * seconds),
        "kernel p99 us": got.get("p99"),
        "guest": frames.get("received", 0) / (GUEST_RATE * seconds),
        "guest p99 us": frames.get("p99"),
    }
    if sent and got:
        figures["kernel uncounted"] = uncounted(
            sent["sent"],
            got["packets"],
            0,
            got["lost"] + dropped(before, after, ("k1", "rx"), ("k2", "tx")),
        )
    if frames:
        figures["guest uncounted"] = uncounted(
            frames["sent"],
            frames["received"],
            frames["left"],
            dropped(before, after, ("v1", "rx"), ("v2", "tx")),
        )
        figures["guest left"] = frames["left"]
    for name in ("echo", "barrier", "message"):
        figures[f"{name} ms"] = max(answers.get(name) or [GIVEN_UP_S * 1e3])
        figures[f"{name} p99 ms"] = percentile(answers.get(name) or [GIVEN_UP_S * 1e3], 99)
    if answers.get("unanswered"):
        stderr(f"  unanswered: {answers['unanswered'][:3]}")
    return figures, did


class Cannot(Exception):
    """Why an adversary has no way to harm this daemon."""


class Adversary:
    """Somebody who means harm.

    `prepare` sets it up, `act` harms in a process of its own until it is to stop, `end` takes it
    away again."""

    # Whether the memory's rate need not be kept, and which share of it nonetheless; where it acts
    # behind all others, whether it can be told to rest, how long it may take to end, and what the
    # daemon is to be like.
    shared, least = False, 0.0
    behind, rests, patience, site = True, True, GIVEN_UP_S, {}
    # Beside whom the same is lost by right.
    beside = "nobody"

    def __init__(self, options):
        self.options = options

    def prepare(self, switch):
        """Before anything is measured."""

    def act(self, stop):
        """Until `stop` is set; what it did, as figures by name."""
        return {}

    def end(self, switch):
        """Takes what it set up away; what takes too long is the daemon's fault."""


class Nobody(Adversary):
    """nobody: only spends processor time, as the others do"""

    def act(self, stop):
        rounds = 0
        while not stop.is_set():
            rounds += 1
        return {"rounds": rounds}


class Guest(Adversary):
    """A guest on a port of its own; what it sends follows `rule`."""

    rule, features, options_of_guest = "actions=drop", 0, {}

    def prepare(self, switch):
        switch.ofctl(
            "add-flow", switch.management, f"priority=60,in_port={PORTS['bad']},{self.rule}"
        )
        self.guest = switch.front_end("bad", slots=SLOTS, **self.options_of_guest)
        self.guest.features |= self.features
        self.guest.accept().start()
        switch.up("bad")

    def end(self, switch):
        switch.vsctl("del-port", "br0", "bad")
        self.guest.close()


class Chains(Guest):
    """chains: a guest whose chains of descriptors are 64 MiB long"""

    shared, least = True, 0.15

    def prepare(self, switch):
        super().prepare(switch)
        self.guest.chain(64 << 20)

    def act(self, stop):
        offered = 0
        while not stop.wait(0.0005):
            offered += self.guest.offer_endless()
        return {"chains": offered - self.guest.rings[1].left()}


class Segments(Chains):
    """segments: a guest whose frames of 64 KiB are to be cut into segments of 32 bytes"""

    rule, features = "actions=output:3", CSUM | HOST_TSO4

    def prepare(self, switch):
        Guest.prepare(self, switch)
        if not self.guest.agreed & HOST_TSO4:
            raise Cannot("takes no large frames from guests")
        data = tcp_header(32, 65535) + tcp_frame(65535)
        self.guest.memory.map[2 * RING_BYTES : 2 * RING_BYTES + len(data)] = data
        self.guest.chain(len(data), part=len(data))


class Unread(Guest):
    """unread: a hypervisor that asks and reads no answer"""

    def act(self, stop):
        asked = 0
        while not stop.wait(0.01):
            asked += self.guest.unread()
        return {"questions": asked}


class Half(Guest):
    """half: a hypervisor that sends the head of a message and not the rest"""

    def act(self, stop):
        self.guest.half(given=0)
        stop.wait()
        return {"messages": 1}


class Returning(Guest):
    """A hypervisor that comes back after each harm."""

    pause = 0.05

    def act(self, stop):
        times = 0
        while not stop.is_set():
            with contextlib.suppress(OSError, Refused, ConnectionError, TimeoutError):
                if self.guest.peer is None:
                    self.guest.accept(1).start()
                times += 1
                self.harm()
            stop.wait(self.pause)
            self.guest.forget()
        return {"times": times}


class BadMemory(Returning):
    """bad-memory: a hypervisor whose memory cannot be mapped, while rings are in use"""

    def harm(self):
        self.guest.bad_memory()


class GoneMemory(Returning):
    """gone-memory: a hypervisor that truncates its memory while the switch has it mapped"""

    def harm(self):
        kicks = [os.dup(ring.kick) for ring in self.guest.rings]
        self.guest.truncate()
        for kick in kicks:
            os.eventfd_write(kick, 1)
            os.close(kick)


class Flapping(Guest):
    """flapping: a guest that switches its rings on and off as fast as it can"""

    def act(self, stop):
        times = 0
        while not stop.is_set():
            for index in (0, 1):
                self.guest.enable(index, False)
                self.guest.enable(index, True)
            times += 4
        return {"times": times}


class Churn(Adversary):
    """churn: a controller that replaces the rule that all packets of the memory meet, 60,000
    times"""

    patience = 90
    times = 60_000

    def prepare(self, switch):
        self.path, self.switch = f"{switch.directory}/churn", switch
        with open(self.path, "w", encoding="ascii") as file:
            file.write("priority=10,udp,tp_dst=80,actions=resubmit(,5)\n" * self.times)

    def act(self, stop):
        begin, runs = time.monotonic(), 0
        while not stop.is_set():
            self.switch.ofctl(
                "add-flows", self.switch.management, self.path, seconds=self.patience - 5
            )
            runs += 1
        return {"seconds for 60,000": (time.monotonic() - begin) / runs}


class Senders(Adversary):
    """senders: two guests whose frames are only sent on, as many as those who learn send"""

    # Frames a second: what they send is theirs to send, so it must be as much each time.
    RATE = 40_000
    rule = "actions=output:3"

    def prepare(self, switch):
        self.hosts = [switch.host(name) for name in ("a1", "a2")]
        self.switch = switch
        self.mac = 0
        for name in ("a1", "a2"):
            switch.ofctl(
                "add-flow", switch.management, f"priority=20,in_port={PORTS[name]},{self.rule}"
            )

    def source(self):
        return "02:00:00:00:00:77"

    def act(self, stop):
        sockets, sent, resting = [host.raw() for host in self.hosts], 0, 0
        began = time.monotonic()
        while not stop.is_set():
            now = time.monotonic()
            # What it could not send while it was stopped, it does not send later.
            if now - began - sent / self.RATE - resting > 0.01:
                resting = now - began - sent / self.RATE
            if sent / self.RATE + resting > now - began:
                stop.wait(0.0005)
                continue
            for _ in range(10):
                for end in sockets:
                    with contextlib.suppress(OSError):
                        end.send(
                            harness.ethernet("02:00:00:00:00:99", self.source(), 0x88B5, bytes(46))
                        )
                        sent += 1
        return {"frames": sent}

    def end(self, switch):
        for name in ("a1", "a2"):
            switch.ofctl(
                "del-flows", "--strict", switch.management, f"priority=20,in_port={PORTS[name]}"
            )


class Broadcast(Senders):
    """broadcast: the same guests, each of whose frames goes to 200 ports"""

    # It may take its turns, but no more: three queues always have frames, and short ones of many
    # between turns cost more than alone.
    shared, least, PORTS = True, 0.15, 200

    def prepare(self, switch):
        lines = []
        for number in range(self.PORTS):
            lines += [
                f"link add e{number} type veth peer name f{number}",
                f"link set e{number} up",
                f"link set f{number} up",
            ]
        switch.namespace.quiet()
        switch.namespace.run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n", seconds=60)
        words = []
        for number in range(self.PORTS):
            name = f"e{number}"
            words += ["--", "add-port", "br0", name]
            words += ["--", "set", "Interface", name, f"ofport_request={100 + number}"]
        switch.vsctl(*words, seconds=60)
        self.rule = "actions=" + ",".join(f"output:{100 + number}" for number in range(self.PORTS))
        super().prepare(switch)

    def end(self, switch):
        super().end(switch)
        words = []
        for number in range(self.PORTS):
            words += ["--", "del-port", "br0", f"e{number}"]
        switch.vsctl(*words, seconds=60)
        lines = [f"link del e{number}" for number in range(self.PORTS)]
        switch.namespace.run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n", seconds=60)


class Learning(Senders):
    """Frames that a `learn` rule makes rules of, in the table in which the memory's packets are
    looked up."""

    beside = "senders"
    rule = (
        "actions=learn(table=5,priority=9,idle_timeout=60,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],"
        "output:NXM_OF_IN_PORT[]),output:3"
    )

    def end(self, switch):
        found = switch.ofctl("dump-aggregate", switch.management, "table=5")
        self.rules = int(re.search(r"flow_count=(\d+)", found)[1])
        stderr(f"  rules learned: {self.rules}; {switch.memory_mb():.0f} MB")
        switch.ofctl("del-flows", switch.management, "table=5,cookie=0/-1,priority=9", ok=False)
        super().end(switch)
        switch.ofctl("del-flows", switch.management, "table=5")
        switch.ofctl(
            "add-flow",
            switch.management,
            "table=5,priority=10,dl_dst=02:00:00:00:00:02,actions=output:2",
        )


class MacFlapping(Learning):
    """mac-flapping: two guests with one MAC address, before a rule that learns"""


class Spoofing(Learning):
    """spoofing: guests that send from a new MAC address each time, before a rule that learns"""

    def source(self):
        self.mac += 1
        return b"\x02\x01" + self.mac.to_bytes(4, "big")


class Delete(Adversary):
    """delete: a controller that deletes all of a million rules and wants to be told of each, and
    reads promptly"""

    behind, rests, patience = False, False, 120

    def prepare(self, switch):
        self.switch = switch
        client = Connection(switch.management, 120)
        for first in range(0, self.options.rules, 10_000):
            mods = (
                flow_mod(number, number + 1)
                for number in range(first, min(first + 10_000, self.options.rules))
            )
            # The flags are the last field before the actions.
            client.socket.sendall(
                b"".join(mod[:70] + struct.pack("!H", SEND_FLOW_REM) + mod[72:] for mod in mods)
            )
            client.barrier(1 << 28)
        if client.errors:
            raise Cannot(f"took not all of {self.options.rules} rules: {client.errors[0].hex()}")
        client.close()

    def act(self, stop):
        client = Connection(self.switch.management, 30)
        # Connections to this socket are told of what happens once they have said how much of a
        # packet they want.
        client.socket.sendall(header(SET_CONFIG, 4, 7) + struct.pack("!HH", 0, 128))
        client.barrier(8)
        begin, told, buffer, closed = time.monotonic(), 0, b"", 0
        deleting = subprocess.Popen(
            ["ovs-ofctl", "del-flows", self.switch.management, "tcp"],
            env=self.switch.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        done = None
        while told < self.options.rules and time.monotonic() < begin + self.patience - 10:
            if done is None and deleting.poll() is not None:
                done = time.monotonic() - begin
            if not select.select([client.socket], [], [], 0.5)[0]:
                if done is not None and stop.is_set():
                    break
                continue
            try:
                data = client.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                closed = 1
                break
            buffer += data
            at = 0
            while len(buffer) - at >= 8:
                length = buffer[at + 2] << 8 | buffer[at + 3]
                if len(buffer) - at < length:
                    break
                told += buffer[at + 1] == FLOW_REMOVED
                if buffer[at + 1] == ECHO_REQUEST:
                    client.socket.sendall(bytes([1, ECHO_REPLY]) + buffer[at + 2 : at + length])
                at += length
            buffer = buffer[at:]
        took = time.monotonic() - begin
        with contextlib.suppress(subprocess.TimeoutExpired):
            deleting.wait(20)
        deleting.kill()
        deleting.wait()
        return {"told of": told, "seconds": took, "disconnected": closed}


class PortEvents(Adversary):
    """port-events: interfaces that go up and down, come and go, 10,000 times"""

    patience = 60
    PORTS, EVENTS = 20, 10_000

    def prepare(self, switch):
        self.switch = switch
        for number in range(self.PORTS):
            switch.namespace.run(
                ["ip", "link", "add", f"e{number}", "type", "veth", "peer", "name", f"f{number}"]
            )
            switch.namespace.run(["ip", "link", "set", f"e{number}", "up"])
        switch.vsctl(
            *[
                word
                for number in range(self.PORTS)
                for word in ("--", "add-port", "br0", f"e{number}")
            ],
            seconds=60,
        )

    def act(self, stop):
        events = 0
        while not stop.is_set() and events < self.EVENTS:
            lines = []
            for number in range(self.PORTS):
                lines += [f"link set e{number} down", f"link set e{number} up"]
            # One that comes and goes takes the kernel as long as all these.
            lines += ["link add x0 type veth peer name x1", "link del x0"]
            self.switch.namespace.run(
                ["ip", "-batch", "-"], stdin="\n".join(lines) + "\n", seconds=30
            )
            events += len(lines)
        stop.wait()
        return {"events": events}

    def end(self, switch):
        switch.vsctl(
            *[
                word
                for number in range(self.PORTS)
                for word in ("--", "del-port", "br0", f"e{number}")
            ],
            seconds=60,
        )
        for number in range(self.PORTS):
            switch.namespace.run(["ip", "link", "del", f"e{number}"])


class Namespaces(Adversary):
    """namespaces: network namespaces of 100 veth pairs that come and go, as containers do"""

    PAIRS = 100

    def act(self, stop):
        # A namespace goes with its last process; the kernel deletes its devices under the lock that
        # every question about a device waits for.
        lines = "".join(
            f"link add e{number} type veth peer name f{number}\n" for number in range(self.PAIRS)
        )
        namespaces = 0
        while not stop.is_set():
            command = ["unshare", "--net", "ip", "-batch", "-"]
            subprocess.run(command, input=lines, text=True, check=True, timeout=30)
            namespaces += 1
        return {"namespaces": namespaces}


class Database(Adversary):
    """database: a database that is slow, with much to say, and then silent"""

    site = {"by_proxy": True}

    def prepare(self, switch):
        self.switch = switch

    def act(self, stop):
        begin, changes = time.monotonic(), 0
        while not stop.wait(0.05):
            silent = time.monotonic() - begin > self.options.seconds / 2
            self.switch.proxy.mode.value = Proxy.STOP if silent else Proxy.SLOW
            self.switch.vsctl(
                "--no-wait",
                "set",
                "Interface",
                "out2",
                f"external_ids:adversary={changes}{'x' * 1000}",
            )
            changes += 1
        self.switch.proxy.mode.value = Proxy.PASS
        return {"changes": changes}

    def end(self, switch):
        switch.proxy.mode.value = Proxy.PASS
        switch.vsctl("--", "set", "Interface", "out2", "external_ids={}", seconds=30)


class FullDisk(Adversary):
    """full-disk: a log on a full disk, and much to log"""

    site = {"log_bytes": 8192}

    def prepare(self, switch):
        self.switch = switch

    def act(self, stop):
        self.switch.appctl("vlog/set", "file:dbg")
        client, asked = Connection(self.switch.management, GIVEN_UP_S), 0
        while not stop.is_set():
            for _ in range(20):
                asked += 1
                client.socket.sendall(header(ECHO_REQUEST, 0, asked))
                client.wait_for(ECHO_REPLY, asked)
            self.switch.ofctl("add-flow", self.switch.management, "priority=1,tcp,actions=drop")
        client.close()
        return {"messages": asked}

    def end(self, switch):
        switch.appctl("vlog/set", "file:info")
        free = os.statvfs(f"{switch.directory}/full").f_bavail
        if free:
            stderr(f"  the log's disk has still {free} free blocks")


class Controllers(Adversary):
    """Controllers that take what there is of connections."""

    connections = 20

    def prepare(self, switch):
        self.switch = switch

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.switch.management)
        client.setblocking(False)
        client.send(header(0, 0, 1))
        return client

    def act(self, stop):
        clients, opened, taken = [], 0, 0
        while not stop.wait(0.01):
            while len(clients) < self.connections:
                clients.append(self.connect())
                opened += 1
            for client in list(clients):
                try:
                    taken += self.harm(client)
                except BlockingIOError:
                    continue
                except OSError:
                    clients.remove(client)
                    client.close()
        return {"connections": opened, "bytes": taken}


class UnreadReplies(Controllers):
    """unread-replies: 20 controllers that ask for all rules and for echoes, and read no answer"""

    def prepare(self, switch):
        super().prepare(switch)
        client = Connection(switch.management, 60)
        client.socket.sendall(b"".join(flow_mod(number, number + 1) for number in range(10_000)))
        client.barrier(1 << 28)
        client.close()

    def harm(self, client):
        every = struct.pack("!HHI", 1, 0, 0x3FFFFF) + bytes(36) + struct.pack("!BxH", 0xFF, 0xFFFF)
        return client.send(
            (header(STATS_REQUEST, len(every), 2) + every) * 4
            + header(ECHO_REQUEST, 60_000, 3)
            + bytes(60_000)
        )


class HalfMessages(Controllers):
    """half-messages: 100 controllers that send a long message but for its end"""

    connections = 100

    def connect(self):
        client = super().connect()
        with contextlib.suppress(BlockingIOError):
            client.send(header(FLOW_MOD, 65527, 7) + bytes(60_000))
        return client

    def harm(self, client):
        return 0 if client.recv(65536) else self.gone()

    @staticmethod
    def gone():
        raise ConnectionResetError("the switch closed the connection")


ADVERSARIES = {
    each.__doc__.partition(":")[0]: each
    for each in (
        Nobody,
        Chains,
        Segments,
        Unread,
        Half,
        BadMemory,
        GoneMemory,
        Flapping,
        Churn,
        Senders,
        Broadcast,
        MacFlapping,
        Spoofing,
        Delete,
        PortEvents,
        Namespaces,
        Database,
        FullDisk,
        UnreadReplies,
        HalfMessages,
    )
}
FIGURES = (
    "memory kept",
    "memory after",
    "kernel kept",
    "kernel p99 us",
    "guest kept",
    "guest p99 us",
    "echo ms",
    "barrier p99 ms",
    "message ms",
    "kernel uncounted",
    "guest uncounted",
)


def one(lab, options, results, label, command, kind, shared_files):
    """One round of one adversary and one daemon."""
    name = kind.__doc__.partition(":")[0]
    adversary = kind(options)
    with contender(
        lab, label, command, kind=Site, programs=shared_files, **adversary.site
    ) as switch:
        stage = "before"
        figures, did, alone_first, after = {}, {}, None, None
        try:
            switch.victims(shared_files["pcap"])
            # The first is for caches and tables to settle.
            window(switch, 1)
            alone_first, _ = window(switch, options.seconds)
            adversary.prepare(switch)
            stage = "beside"
            beside, did = window(switch, options.seconds, adversary)
            stage = "after"
            after, _ = window(switch, options.seconds)
        except Cannot as reason:
            stderr(f"{label}: {name}: {reason}")
            results.add("cannot", label, name)
            return
        except (
            harness.Failure,
            OSError,
            ConnectionError,
            struct.error,
            ValueError,
            KeyError,
        ) as problem:
            if stage == "before":
                raise
            ended = switch.process.poll()
            stderr(
                f"{label}: {name}: {stage}: {type(problem).__name__}: {str(problem)[:1500]}\n"
                f"  the daemon {'still runs' if ended is None else f'ended with {ended}'}; "
                f"it wrote last: {switch.tail(3).strip()[-600:]}"
            )
            results.add(name, f"{label}: ended", 1)
            beside = None if stage == "beside" else beside
        ended = switch.process.poll() is not None or "panicked at" in switch.tail(2000)
        figures = compared(alone_first, beside, after)
        for what, value in figures.items():
            results.add(name, f"{label}: {what}", value)
        if ended or after is not None:
            results.add(name, f"{label}: ended", int(ended))
        for what, value in (did or {}).items():
            if isinstance(value, (int, float)):
                results.add(name, f"{label}: did: {what}", value)
        rounded = {what: round(value, 3) for what, value in figures.items() if value is not None}
        stderr(f"{label}: {name}: {json.dumps({**rounded, 'did': did})}")


def compared(first, beside, after):
    """Figures of one round: rates as shares of those alone, everything else as it is beside the
    adversary, and alone under names of its own."""
    figures = {}
    for what, value in (first or {}).items():
        figures[f"alone: {what}"] = value
    if beside:
        for what in ("memory", "kernel", "guest"):
            without = beside.get(f"{what} resting") or first[what]
            figures[f"{what} kept"] = (
                beside[what] / without if without and beside[what] is not None else None
            )
        figures |= {
            what: value
            for what, value in beside.items()
            if what not in ("memory", "kernel", "guest")
        }
    if after:
        figures["memory after"] = (
            after["memory"] / first["memory"]
            if first["memory"] and after["memory"] is not None
            else None
        )
    return figures


def medians(results, name, label):
    """The medians of what was found beside an adversary."""
    row = results.rows.get(name, {})
    found = {
        column.removeprefix(f"{label}: "): statistics.median(
            value for value in values if value is not None
        )
        for column, values in row.items()
        if column.startswith(f"{label}: ") and any(value is not None for value in values)
    }
    if any(row.get(f"{label}: ended", [])):
        found["ended"] = 1
    return found


def report(results, daemons, wanted):
    """Tables, and what was missed by daemons other than Open vSwitch."""
    bad = []
    for label, command in daemons.items():
        rows = []
        for name in wanted:
            found = medians(results, name, label)
            if not found:
                if name not in results.rows.get("cannot", {}).get(
                    label, []
                ) and not harness.is_open_vswitch(command):
                    bad.append(f"{label}: {name}: not measured")
                continue
            cells = []
            for what in FIGURES:
                value = found.get(what)
                alone_too = found.get(f"alone: {what}")
                text = (
                    "-"
                    if value is None
                    else f"{value:.0%}"
                    if what.endswith(("kept", "after"))
                    else figure(value)
                )
                cells.append(
                    text
                    if alone_too is None or "uncounted" in what
                    else f"{text} ({figure(alone_too)})"
                )
            faults = (
                missed(
                    found,
                    ADVERSARIES[name].shared,
                    medians(results, ADVERSARIES[name].beside, label),
                    ADVERSARIES[name].least,
                )
                if name != "nobody"
                else []
            )
            rows.append(
                [
                    name,
                    *cells,
                    "no: " + "; ".join(faults) if faults else "-" if name == "nobody" else "yes",
                ]
            )
            if faults and not harness.is_open_vswitch(command):
                bad.append(f"{label}: {name}: {'; '.join(faults)}")
        print(f"\n{label} (in brackets: alone)\n")
        table(["beside", *FIGURES, "holds"], rows)
        for name in wanted:
            did = {
                what.removeprefix("did: "): value
                for what, value in medians(results, name, label).items()
                if what.startswith("did: ")
            }
            if did and name != "nobody":
                words = (
                    f"{what} {value:,.3g}" if value < 1000 else f"{what} {value:,.0f}"
                    for what, value in did.items()
                )
                print(f"{name}: {', '.join(words)}")
    for line in bad:
        print(line)
    return 1 if bad else 0


def work(options, daemons):
    """All rounds."""

    def measured(lab):
        results = Results(options.json)
        files = {
            "traffic": compiled(lab.directory),
            "vhost_peer": f"{lab.directory}/vhost_peer",
            "pcap": f"{lab.directory}/in.pcap",
        }
        harness.run(
            ["gcc", "-O2", "-o", files["vhost_peer"], os.path.join(HERE, "vhost_peer.c")],
            seconds=60,
        )
        write_pcap(files["pcap"], uniform(FLOWS))
        wanted = options.adversary or list(ADVERSARIES)
        for number in range(options.rounds):
            for name in wanted:
                for label, command in daemons.items():
                    try:
                        one(lab, options, results, label, command, ADVERSARIES[name], files)
                    except (harness.Failure, OSError, ConnectionError) as problem:
                        # A machine that is too busy to begin says nothing of the adversary.
                        stderr(f"{label}: {name}: not measured: {str(problem)[:500]}")
            stderr(f"round {number + 1} of {options.rounds} is done")
        print(
            f"{options.rounds} rounds of {options.seconds:g} s, Mpps and shares of what is "
            f"measured alone; {machine()}"
        )
        return report(results, daemons, wanted)

    return measured


def main():
    options = parser(__doc__)
    options.add_argument(
        "--adversary",
        action="append",
        choices=list(ADVERSARIES),
        metavar="NAME",
        help="only this one; may be given again (--list tells of all)",
    )
    options.add_argument("--list", action="store_true", help="says who they are, and ends")
    options.add_argument(
        "--rules",
        type=int,
        default=1_000_000,
        help="that are deleted at once (default %(default)s)",
    )
    options = options.parse_args()
    if options.list:
        for kind in ADVERSARIES.values():
            print(kind.__doc__)
        return 0
    if options.seconds < 1 or options.rounds < 1 or options.rules < 1:
        sys.exit("--seconds, --rounds and --rules take 1 or more")
    daemons = contenders(options)
    run(work(options, daemons), daemons, HUGE_PAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
