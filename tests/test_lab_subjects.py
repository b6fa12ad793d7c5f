"""What the lab measures: each switch is set up by `examples/subject.rs` of the lab's crate, traffic
goes through it and is counted at the right port, and nothing is left of it, however it ends."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import types

import harness
from guest import IMAGES
from harness import PATIENCE, ROOT, Failure, Raw, Skip, check, equal, ethernet, test, wait_for

HOME = "/run/sluice-lab"
MEMORY_SWITCHES = ("sluice", "ovs-dpdk", "testpmd")
KERNEL_SWITCHES = ("linux-bridge", "linux-ip", "ovs-netdev", "sluice", "ovs-dpdk", "testpmd")
CAPTURED = 64
# To whom frames are addressed that are to be routed.
ROUTER, SENDER = "02:00:00:00:00:02", "02:00:00:00:00:01"
# Seconds that a subject runs that is ended before.
LONG = "600"


def built(lab):
    """The release binaries' directory: Open vSwitch may be under test."""
    beside = os.path.dirname(lab.switchd[0])
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    for directory in (beside, os.path.join(target, "release")):
        if os.path.exists(os.path.join(directory, "examples", "subject")):
            return directory
    raise Skip("cargo build --release -p sluice-lab --example subject has not been run")


class Subject:
    """The program that sets a switch up, with what it prints."""

    def __init__(self, lab, *words):
        directory = built(lab)
        self.env = dict(os.environ, SLUICED=os.path.join(directory, "sluiced"))
        self.command = [os.path.join(directory, "examples", "subject"), *words]
        self.text, self.lines, self.prefix = b"", [], None
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.env,
        )
        lab.programs.append(self.process)

    def next(self, seconds=120):
        """The next line that it prints; None at the end."""
        while b"\n" not in self.text:
            if not select.select([self.process.stdout], [], [], seconds * PATIENCE)[0]:
                raise Failure(f"{self.command[1:]} has said nothing for {seconds} s: {self.lines}")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return None
            self.text += data
        line, _, self.text = self.text.partition(b"\n")
        with contextlib.suppress(ValueError):
            line = json.loads(line)
        self.lines.append(line)
        check("error" not in line, f"{self.command[1:]}: {line}")
        return line

    def ready(self):
        """Waits until it is set up; returns what it says then."""
        while True:
            line = self.next()
            check(line is not None, f"{self.command[1:]} ended: {self.lines}")
            if "prefix" in line:
                self.prefix = line["prefix"]
                return line

    def counters(self):
        """The next counters."""
        while True:
            line = self.next()
            check(line is not None, f"{self.command[1:]} ended: {self.lines}")
            if "counters" in line:
                return line

    def until(self, what, condition, lines=60):
        """Reads counters until they are as wanted."""
        for _ in range(lines):
            line = self.counters()
            if condition(line):
                return line
        raise Failure(f"{self.command[1:]}: waited in vain until {what}; last: {line}")

    def end(self, number=signal.SIGTERM):
        """Sends a signal and waits for the end; returns the last line."""
        self.process.send_signal(number)
        while self.next() is not None:
            pass
        self.process.wait(30 * PATIENCE)
        return self.lines[-1] if self.lines else {}


def say(lab, *words):
    """Runs the program to its end; returns its lines and its code."""
    program = Subject(lab, *words)
    output, _ = program.process.communicate(timeout=120 * PATIENCE)
    return [json.loads(line) for line in output.splitlines()], program.process.returncode


def left(prefix):
    """What is there of a place."""
    found = [
        os.path.join(directory, name)
        for directory in ("/run/netns", "/run/dpdk", HOME)
        if os.path.isdir(directory)
        for name in os.listdir(directory)
        if f"{name}-".startswith(prefix)
    ]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if f"SLUICE_LAB={prefix}".encode() in file.read().split(b"\0"):
                found.append(f"process {pid}")
    return found


def nothing_left(prefix):
    """Fails the test where something remains of a place."""
    equal(left(prefix), [], f"what is left of {prefix}")


def udp(destination="10.0.0.2", address=ROUTER, number=0):
    """A UDP packet of 60 bytes."""
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        46,
        number,
        0,
        64,
        17,
        0,
        socket.inet_aton("10.0.0.1"),
        socket.inet_aton(destination),
    )
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", 0xFFFF ^ total) + head[12:]
    payload = struct.pack("!HHHH", 1024, 2048, 26, 0) + bytes(18)
    return ethernet(address, SENDER, 0x0800, head + payload)


def capture(lab, frames=None):
    """A capture file of frames."""
    path = os.path.join(lab.directory, "frames.pcap")
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames or [udp(number=number) for number in range(CAPTURED)]:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    return path


def plan(lab, ports, job, name="plan.json"):
    """A plan's file, with the worker on the last core."""
    path = os.path.join(lab.directory, name)
    with open(path, "w", encoding="ascii") as file:
        json.dump({"ports": ports, "cores": [max(os.sched_getaffinity(0))], "job": job}, file)
    return path


def memory(lab, job="cross", frames=None, outputs=1):
    """A plan with a port that makes frames of memory and others that take them."""
    ports = [{"memory": {"frames": capture(lab, frames)}}]
    return plan(lab, ports + outputs * [{"memory": {"frames": ""}}], job)


def sockets(line):
    """Raw sockets at the ends of veths."""
    return [
        Raw(
            types.SimpleNamespace(
                name=end["interface"]["namespace"],
                path=f"/run/netns/{end['interface']['namespace']}",
            ),
            end["interface"]["name"],
        )
        for end in line["ends"]
        if isinstance(end, dict) and "interface" in end
    ]


@test(timeout=120)
def versions(lab):
    """What is installed has a version, and what is not says why."""
    lines, code = say(lab, "versions")
    equal(code, 0, "the program's code")
    known = {line["id"]: line for line in lines}
    for name in (*MEMORY_SWITCHES, *KERNEL_SWITCHES):
        check(known[name]["version"] not in (None, "unknown"), known[name])
    lines, code = say(lab, "run", "mine=/no/such/daemon", memory(lab), "1")
    equal(code, 1, "the program's code")
    check(lines[-1]["missing"] and "/no/such/daemon" in lines[-1]["error"], lines)


@test(timeout=60)
def what_a_switch_lacks(lab):
    """A plan that a switch cannot carry out is refused with the reason, and leaves nothing."""
    for name, job, reason in (
        ("linux-bridge", "cross", "no port in memory"),
        ("testpmd", {"stations": 5}, "looks at no packet"),
        ("ovs-netdev", "cross", "without DPDK"),
        ("sluice", {"to": [[1, [3]]]}, "no port 3"),
    ):
        lines, code = say(lab, "run", name, memory(lab, job), "1")
        equal(code, 1, f"{name}'s code")
        check(lines[-1]["missing"] and reason in lines[-1]["error"], name, lines)


def goes_through(line):
    """Whether frames come in at port 1 and go out at port 2 only."""
    first, second = line["counters"][:2]
    return first["received"] > 1000 and second["sent"] > 1000


def through_memory(lab, name):
    """Frames from memory go through a switch and to a null device."""
    subject = Subject(lab, "run", name, memory(lab), LONG)
    line = subject.ready()
    equal(line["ends"], ["itself", "itself"], "ends of ports in memory")
    check(line["process"] and len(line["workers"]) == 1, f"{name}: {line}")
    with open(f"/proc/{line['workers'][0]}/status", encoding="ascii") as file:
        cores = next(words for words in file if words.startswith("Cpus_allowed_list"))
    equal(int(cores.split()[1]), max(os.sched_getaffinity(0)), f"the core of {name}'s worker")
    begin = subject.until("frames go through", goes_through)
    after = subject.counters()
    for counters in (begin, after):
        first, second = counters["counters"]
        equal((first["sent"], second["received"]), (0, 0), f"{name}: the other way")
    check(
        after["counters"][1]["sent"] > begin["counters"][1]["sent"],
        f"{name}: counters stand: {begin} {after}",
    )
    if name != "testpmd":
        stages = {stage: (cycles, packets) for stage, cycles, packets in after["stages"]}
        received = stages["processing" if name == "ovs-dpdk" else "receive"]
        check(min(received) > 0, f"{name}'s cycles: {stages}")
    equal(subject.end()["signal"], signal.SIGTERM, f"{name}: why it ended")
    nothing_left(subject.prefix)


@test(timeout=120, hugepages=1)
def sluice_from_memory(lab):
    """Sluice forwards from memory."""
    through_memory(lab, "sluice")


@test(timeout=120, hugepages=1)
def open_vswitch_from_memory(lab):
    """Open vSwitch with DPDK does."""
    through_memory(lab, "ovs-dpdk")


@test(timeout=120, hugepages=1)
def testpmd_from_memory(lab):
    """testpmd does."""
    through_memory(lab, "testpmd")


@test(timeout=120, hugepages=1)
def any_daemon_by_its_command(lab):
    """A daemon of one's own is set up as Sluice is."""
    command = os.path.join(built(lab), "sluiced")
    subject = Subject(lab, "run", f"mine={command}", memory(lab), LONG)
    subject.ready()
    subject.until("frames go through", goes_through)
    subject.end()
    nothing_left(subject.prefix)


@test(timeout=300, hugepages=1)
def copies_stations_and_routes(lab):
    """Jobs other than from one port to the next."""
    stations = [
        ethernet(f"02:00:00:{port:02x}:00:63", SENDER, 0x0800, bytes(46)) for port in (2, 3)
    ]
    routed = [udp("11.0.0.1"), udp("11.0.99.1"), udp("11.0.100.1"), udp("12.0.0.1")]
    for name in ("sluice", "ovs-dpdk"):
        for job, frames, shares in (
            ({"to": [[1, [2, 3]]]}, None, (1, 1)),
            ({"stations": 100}, stations, (0.5, 0.5)),
            # Of 100 prefixes: the third and the fourth are none of them.
            ({"routes": 100}, routed, (0.5, 0)),
            ({"rules": {"rules": ["in_port=1,actions=output:3"]}}, None, (0, 1)),
        ):
            subject = Subject(lab, "run", name, memory(lab, job, frames, 2), LONG)
            subject.ready()

            def sent(line):
                return [port["sent"] for port in line["counters"][1:]]

            begin = subject.until(
                f"{job}: frames come in", lambda line: line["counters"][0]["received"] > 50000
            )
            after = subject.until(
                f"{job}: more do",
                lambda line: (
                    line["counters"][0]["received"] - begin["counters"][0]["received"] > 50000
                ),
            )
            received = after["counters"][0]["received"] - begin["counters"][0]["received"]
            for out, share in zip(range(2), shares):
                got = (sent(after)[out] - sent(begin)[out]) / received
                check(
                    abs(got - share) < 0.1,
                    f"{name}: {job}: of {received} frames port {out + 2} sent {got:.2f}: "
                    f"{begin['counters']} {after['counters']}",
                )
            subject.end()
            nothing_left(subject.prefix)


def through_veths(lab, name):
    """Frames that go into a veth come out of the other and are counted."""
    subject = Subject(lab, "run", name, plan(lab, ["veth", "veth"], "cross"), LONG)
    line = subject.ready()
    first, second = sockets(line)
    before = subject.counters()["counters"]
    frames = [udp(number=number) for number in range(200)]
    for begin in range(0, len(frames), 20):
        first.send(*frames[begin : begin + 20])
        got = second.receive(20, lambda data: data[12:14] == b"\x08\0", 20)
        equal(len(got), 20, f"{name}: frames that came through")
    second.send(*frames[:10])
    equal(len(first.receive(20, until=10)), 10, f"{name}: frames that came back")
    after = subject.until(
        "they are counted",
        lambda line: line["counters"][0]["received"] - before[0]["received"] >= 200,
    )["counters"]
    for port, (received, sent) in enumerate(((200, 10), (10, 200))):
        equal(
            (
                after[port]["received"] - before[port]["received"],
                after[port]["sent"] - before[port]["sent"],
            ),
            (received, sent),
            f"{name}: counters of port {port + 1}",
        )
    subject.end()
    nothing_left(subject.prefix)


@test(timeout=240, hugepages=1)
def all_by_veths(lab):
    """Every switch forwards between veths."""
    for name in KERNEL_SWITCHES:
        through_veths(lab, name)


@test(timeout=120)
def routes_and_stations_of_the_kernel(lab):
    """IP forwarding by prefix, and the bridge by static entries."""
    for name, job, frames, wanted in (
        ("linux-ip", {"routes": 1000}, [udp("11.0.9.1"), udp("12.0.0.1")], 1),
        (
            "linux-bridge",
            {"stations": 1000},
            [
                # No valid IP, which a bridge need not care about (netfilter would).
                ethernet(f"02:00:00:{port:02x}:03:e7", SENDER, 0x0800, bytes(46))
                for port in (2, 3, 2)
            ],
            2,
        ),
    ):
        subject = Subject(lab, "run", name, plan(lab, ["veth", "veth", "veth"], job), LONG)
        ends = sockets(subject.ready())
        ends[0].send(*frames)
        got = ends[1].receive(5, lambda data: data[12:14] == b"\x08\0", wanted + 1)
        equal(len(got), wanted, f"{name}: frames that went to port 2")
        subject.end()
        nothing_left(subject.prefix)


@test(timeout=120)
def samples_by_module(lab):
    """What the kernel spends its time on while it bridges, by module."""
    os.environ["SAMPLES"] = "yes"
    subject = Subject(lab, "run", "linux-bridge", plan(lab, ["veth", "veth"], "cross"), "1")
    first, _ = sockets(subject.ready())
    frame, samples = udp(), None
    while samples is None:
        # Until the veths are gone.
        with contextlib.suppress(OSError):
            first.send(*100 * [frame])
        if select.select([subject.process.stdout], [], [], 0)[0]:
            line = subject.next()
            check(line is not None, subject.lines)
            samples = line.get("samples")
    shares = dict(samples)
    check(abs(sum(shares.values()) - 1) < 0.01, shares)
    check(any(name.startswith("kernel: ") for name in shares), shares)
    lab.note(f"{samples[:5]}")
    subject.end()
    nothing_left(subject.prefix)


def of_settings(lab, name, **settings):
    """A switch set up as an experiment's settings say, with guests; and its first line."""
    subject = Subject(lab, "cell", json.dumps(settings), name, LONG)
    line = subject.next()
    check("core" in line["cores"], line)
    return subject, line


@test(timeout=400, hugepages=1)
def through_guests(lab):
    """Guests behind vhost-user sockets: one that takes frames, one that sends them on, and chains
    of those, through each of which all frames go."""
    for name in ("sluice", "ovs-dpdk"):
        for settings, ports, through in (
            ({"path": "p-v"}, 2, 0),
            ({"path": "p-v-p"}, 4, 1),
            ({"path": "p-v-v"}, 4, 1),
            ({"path": "p-p", "chain": 3}, 8, 3),
        ):
            subject, line = of_settings(lab, name, **settings)
            equal((line["sinks"], line["physical"]), ([ports - 1], "memory"), settings)
            equal(len(subject.ready()["ends"]), ports, f"{name}: ports of {settings}")
            line = subject.until(
                f"{name}: frames leave in {settings}",
                lambda line: (
                    line["counters"][-1]["sent"] > 1000
                    and all(guest[1] > 1000 for guest in line["guests"][::2])
                ),
            )
            numbers = [guest[0] for guest in line["guests"]]
            wanted = list(range(2, 2 + 2 * through))
            equal(numbers[: 2 * through], wanted, f"{name}: ports of guests in {settings}")
            equal(subject.end()["signal"], signal.SIGTERM, f"{name}: why it ended")
            nothing_left(subject.prefix)


@test(timeout=180)
def through_the_kernels_guests(lab):
    """p-v-p and p-v-v-p of the kernel: veths, with guests behind two TAPs each."""
    for name in ("linux-bridge", "linux-ip"):
        for chain in (1, 2):
            subject, line = of_settings(lab, name, path="p-p", chain=chain)
            sink = 2 * chain + 1
            wanted = ([0], [sink], "veth")
            equal((line["sources"], line["sinks"], line["physical"]), wanted, name)
            ends = sockets(subject.ready())
            first, last = ends[0], ends[-1]
            for _ in range(10):
                first.send(*(udp(number=number) for number in range(10)))
                got = last.receive(20, lambda data: data[12:14] == b"\x08\0", 10)
                equal(len(got), 10, f"{name}: frames that came through {chain} guests")
            line = subject.until(
                "the last guest has sent them", lambda line: line["guests"][-1][2] >= 100
            )
            ports = [port[0] for port in line["guests"]]
            equal(ports, list(range(2, 2 + 2 * chain)), f"{name}: the guests' ports")
            subject.end()
            nothing_left(subject.prefix)


@test(timeout=120, hugepages=1)
def ended_while_it_starts(lab):
    """A signal that comes while a switch is being set up leaves nothing either."""
    subject = Subject(lab, "run", "sluice", memory(lab), LONG)
    directories = set(os.listdir(HOME)) if os.path.isdir(HOME) else set()
    wait_for(
        "it has begun",
        lambda: any(name.startswith("sluicelab") for name in os.listdir("/run/netns")),
    )
    subject.process.send_signal(signal.SIGTERM)
    output, _ = subject.process.communicate(timeout=60 * PATIENCE)
    check(b"signal" in output, output)
    equal(os.listdir("/run/netns"), [], "namespaces")
    check(set(os.listdir(HOME)) <= directories | {"turn"}, os.listdir(HOME), directories)


@test(timeout=240, hugepages=1)
def killed_and_cleaned_up_after(lab):
    """Two run side by side; one is killed, and only its things are removed."""
    names = ("sluice", "ovs-dpdk")
    path = memory(lab)
    dead, living = (Subject(lab, "run", name, path, LONG) for name in names)
    for subject in (dead, living):
        subject.ready()
        subject.until("frames go through", goes_through)
    check(dead.prefix != living.prefix, dead.prefix)
    lines, _ = say(lab, "clean")
    for subject in (dead, living):
        check(subject.prefix.rstrip("-") in lines[-1]["living"], f"before it was killed: {lines}")
    dead.process.kill()
    dead.process.wait(10)
    check(len(left(dead.prefix)) >= 5, f"what a killed lab leaves: {left(dead.prefix)}")
    lines, code = say(lab, "clean")
    equal((code, lines[-1]["failed"]), (0, []), "what could not be removed")
    removed = "\n".join(lines[-1]["removed"])
    for what in ("(sluiced)", "(ovsdb-server)", f"namespace {dead.prefix}", "huge pages", HOME):
        check(what in removed, f"{what} is not among what was removed: {removed}")
    check(living.prefix not in removed, removed)
    nothing_left(dead.prefix)
    living.until("the living one still forwards", goes_through)
    begin = living.counters()["counters"][1]["sent"]
    living.until(
        "the living one forwards more", lambda line: line["counters"][1]["sent"] > begin + 1000
    )
    living.end()
    nothing_left(living.prefix)


@test(timeout=60)
def taps_and_devices_are_cleaned_up(lab):
    """TAPs go with a dead lab, and a device that was given comes back."""
    harness.run("ip link add given0 type veth peer name given1")
    path = plan(lab, [{"device": "given0"}, "virtual"], "cross")
    for number in (signal.SIGTERM, signal.SIGKILL):
        subject = Subject(lab, "run", "linux-bridge", path, LONG)
        subject.ready()
        done = harness.run("ip link show given0", ok=False)
        check(done.returncode, "the device is where it was")
        if number == signal.SIGKILL:
            subject.process.kill()
            subject.process.wait(10)
            lines, _ = say(lab, "clean")
            equal(lines[-1]["failed"], [], "what could not be removed")
            removed = "\n".join(lines[-1]["removed"])
            check("given0" in removed and "p2" in removed, removed)
        else:
            subject.end()
        nothing_left(subject.prefix)
        harness.run("ip link show given0")


@test(timeout=300, hugepages=1)
def through_machines(lab):
    """Guests that are machines of QEMU's: one that forwards and one that takes frames; all goes,
    also after a kill."""
    if not os.environ.get("SLUICE_LAB_GUEST") and not os.path.exists(f"{IMAGES}/modules/bridge.ko"):
        raise Skip("scripts/setup has not made a guest with a bridge")

    def machines():
        return harness.run("pgrep -f guest-at-", ok=False).stdout.split()

    for number in (signal.SIGTERM, signal.SIGKILL):
        subject, _ = of_settings(lab, "sluice", path="p-v-v", guest="qemu")
        ready = subject.ready()
        check(str(ready["guests"]) in machines(), ready)
        line = subject.until(
            "frames come out of the first machine and into the second",
            lambda line: (
                [guest[0] for guest in line["guests"]] == [2, 3, 4]
                and line["guests"][1][2] > 1000
                and line["guests"][2][1] > 1000
            ),
        )
        lab.note(f"{line['guests']}")
        if number == signal.SIGKILL:
            subject.process.kill()
            subject.process.wait(10)
            check(len(machines()) == 2, "no machine is left by a killed lab")
            lines, _ = say(lab, "clean")
            equal(lines[-1]["failed"], [], "what could not be removed")
            check("qemu" in "\n".join(lines[-1]["removed"]), lines)
        else:
            equal(subject.end()["signal"], signal.SIGTERM, "why it ended")
        nothing_left(subject.prefix)
        equal(machines(), [], "machines that are left")


@test(timeout=120, hugepages=1)
def through_given_devices(lab):
    """Devices that are given are a switch's ports; they come back, and those that are not there are
    named."""
    for number in (0, 1):
        harness.run(f"ip link add given{number} type veth peer name wire{number}")
        harness.run(f"ip link set wire{number} up")
    devices = {"ports": "devices", "devices": "given0 given1", "peers": "wire0 wire1"}
    for name in ("sluice", "linux-bridge"):
        subject, line = of_settings(lab, name, path="p-p", **devices)
        equal(line["physical"], "given devices", f"{name}: ports")
        subject.ready()
        check(harness.run("ip link show given0", ok=False).returncode, "it is where it was")
        first = Raw(types.SimpleNamespace(name="", path="/proc/self/ns/net"), "wire0")
        last = Raw(types.SimpleNamespace(name="", path="/proc/self/ns/net"), "wire1")
        first.send(*(udp(number=number) for number in range(10)))
        got = last.receive(20, lambda data: data[12:14] == b"\x08\0", 10)
        equal(len(got), 10, f"{name}: frames from device to device")
        subject.end()
        nothing_left(subject.prefix)
        harness.run("ip link show given0")
    for settings, wanted in (
        (devices | {"devices": "given0 nosuch0"}, "devices: there is no nosuch0"),
        (devices | {"peers": "wire0 nosuch1"}, "peers: there is no nosuch1"),
        (devices | {"devices": "given0"}, "has 2 physical ports, and 1 devices are named"),
    ):
        done = harness.run(
            [*subject.command[:1], "cell", json.dumps(settings), "sluice", "1"], ok=False
        )
        check(done.returncode and wanted in done.stdout, done.stdout)
