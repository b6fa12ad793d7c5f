"""`sluice steer`: an XDP program sends packets of a kernel interface to the core that suits
them."""

import json
import os
import re
import select
import socket
import struct
import subprocess
import threading
import time

from harness import Failure, Skip, check, equal, ethernet, inside, mac, run, test, wait_for

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"


def checksum(data):
    """The Internet checksum."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data + b"\0" * (len(data) % 2)))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def ipv4(source, destination, protocol, payload, tos=0, fragment=0, ident=1):
    """An IPv4 packet."""
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        tos,
        20 + len(payload),
        ident,
        fragment,
        64,
        protocol,
        0,
        socket.inet_aton(source),
        socket.inet_aton(destination),
    )
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(source, destination, payload=b""):
    """A UDP datagram without a checksum."""
    return struct.pack("!HHHH", source, destination, 8 + len(payload), 0) + payload


def frame(port=1, source=1000, payload=b"x" * 30, **options):
    """A frame from A to B."""
    return ethernet(
        B, A, 0x800, ipv4("10.0.0.1", "10.0.0.2", 17, udp(source, port, payload), **options)
    )


def vxlan(vni, inner, tos=0, source=50000):
    """An inner frame in VXLAN."""
    header = struct.pack("!BBHI", 8, 0, 0, vni << 8)
    return ethernet(
        B, A, 0x800, ipv4("10.0.0.1", "10.0.0.2", 17, udp(source, 4789, header + inner), tos=tos)
    )


class Steered:
    """Two namespaces, A that sends and B that receives and is steered."""

    def __init__(self, lab, *options, start=True):
        if lab.is_ovs:
            raise Skip("a command of Sluice's")
        if os.cpu_count() < 2:
            raise Skip("one core: nothing to steer to")
        self.lab = lab
        self.sluice = os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")
        self.rundir = os.path.join(lab.directory, "run")
        self.a, self.b = lab.namespace("a").quiet(), lab.namespace("b").quiet()
        self.a.run(f"ip link add eth0 address {A} type veth peer name eth0 address {B} netns b")
        for namespace, address in ((self.a, "10.0.0.1"), (self.b, "10.0.0.2")):
            namespace.run("ip link set eth0 up")
            namespace.run(f"ip addr add {address}/24 dev eth0")
        self.a.run(f"ip neigh add 10.0.0.2 lladdr {B} dev eth0")
        self.b.run(f"ip neigh add 10.0.0.1 lladdr {A} dev eth0")
        self.process = None
        if start:
            self.start(*options)

    def start(self, *options, wait=True):
        """Starts the resident."""
        self.process = self.b.start(
            [self.sluice, "steer", "run", "eth0", "--rundir", self.rundir, *options], "steer.out"
        )
        if wait:
            wait_for("the interface is steered", self.up)

    def up(self):
        """Whether the resident answers."""
        if self.process.poll() is not None:
            raise Failure(f"sluice steer run ended with {self.process.returncode}: {self.output()}")
        return (
            os.path.exists(f"{self.rundir}/steer-eth0.sock")
            and self.command("show", ok=False).returncode == 0
        )

    def output(self):
        """What the resident has printed."""
        with open(os.path.join(self.lab.directory, "steer.out"), encoding="utf-8") as file:
            return file.read()

    def command(self, *words, ok=True):
        """sluice steer WORDS."""
        return run(
            [self.sluice, "steer", *(str(word) for word in words), "--rundir", self.rundir], ok=ok
        )

    def set(self, *words):
        """sluice steer set WORDS."""
        return self.command("set", *words).stdout

    def ask(self, **request):
        """A request, without a process for it."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(f"{self.rundir}/steer-eth0.sock")
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                more = connection.recv(65536)
                check(more, "the resident hung up")
                answer += more
        return json.loads(answer)

    def show(self):
        """The session's status."""
        return json.loads(self.command("show", "--json").stdout)

    def flows(self):
        """Entries and choices."""
        return json.loads(self.command("flows", "--json").stdout)

    def choice(self, entry=0):
        """The only choice of an entry, or None."""
        found = [choice for choice in self.flows()["choices"] if choice["entry"] == entry]
        check(len(found) < 2, "several choices:", found)
        return found[0] if found else None

    def programs(self):
        """XDP programs of B's interface, as `ip` shows them."""
        link = json.loads(self.b.run("ip -j -d link show eth0").stdout)[0]
        return link.get("xdp", {}).get("attached", [])

    def refused(self, pattern, *words):
        """A command that ends with a message."""
        done = self.command(*words, ok=False)
        check(
            done.returncode and re.search(pattern, done.stderr),
            f"{words}: ended with {done.returncode}: {done.stderr!r}, wanted /{pattern}/",
        )


class Patient:
    """A condition that only holds where cores are not all highly loaded.

    Skips the test where they always are."""

    def __init__(self, steered, condition):
        self.steered, self.condition, self.fit, self.begin = steered, condition, 0, time.monotonic()

    def __call__(self):
        self.fit += not all(core["high"] for core in self.steered.show()["cores"])
        if time.monotonic() - self.begin > 20 and self.fit < 40:
            raise Skip("the machine is too busy: every core is highly loaded")
        return self.condition()


def pinned(core):
    """Keeps this thread on a core, so that what it sends is received there."""
    os.sched_setaffinity(0, {core})


@test()
def entries_send_packets_to_their_cores(lab):
    """Packets go where the entry says, and all arrive."""
    pinned(0)
    steered = Steered(lab)
    check("generic mode: whether the veth pair's far end" in steered.output(), steered.output())
    for port, core in ((1, 0), (2, 1)):
        equal(
            steered.set("add", f"udp,tp_dst={port}", "--core", core).strip(),
            f"entry {port - 1}",
            "what is printed",
        )
    sender, receiver = steered.a.raw(), steered.b.raw()
    sent = [frame(1 + number % 3, source=2000 + number) for number in range(300)]
    for one in sent:
        sender.send(one)
    got = receiver.receive(2, wanted=lambda data: data[6:12] == mac(A), until=300)
    equal(sorted(got), sorted(sent), "frames that arrived")
    cores = {core["core"]: core for core in steered.show()["cores"]}
    equal((cores[0]["direct"], cores[0]["redirected"]), (100, 0), "packets of core 0")
    equal((cores[1]["direct"], cores[1]["redirected"]), (0, 100), "packets of core 1")
    equal(
        [(e["packets"], e["target"]) for e in steered.flows()["entries"]],
        [(100, "core 0"), (100, "core 1")],
        "entries",
    )
    steered.set("modify", "udp,tp_dst=2", "--core", 0)
    for one in sent[:30]:
        sender.send(one)
    receiver.receive(1, until=30)
    wait_for("the entry's packets are on the other core", lambda: steered.choice(1)["core"] == 0)
    equal(steered.set("delete", "udp").strip(), "2 entries deleted", "what is printed")
    equal(steered.flows(), {"entries": [], "choices": [], "left_out": 0}, "what is left")
    # Text for people says the same.
    text = steered.command("show").stdout
    check("generic mode" in text and re.search(r"^ +0 .*\n +1 ", text, re.M), text)
    check("core 1" in steered.command("watch", "-n", "1").stdout, "watch shows cores")
    steered.command("stop")
    equal(steered.process.wait(10), 0, "status of run")
    equal(steered.programs(), [], "programs that are left")
    steered.refused("nothing is steered there", "show")


@test()
def vxlan_is_told_apart_by_vni_and_inner_header(lab):
    """Entries match the VNI and the inner frame; the kernel's VXLAN device gets what it was
    sent."""
    pinned(0)
    steered = Steered(lab)
    for vni in (5, 6):
        steered.b.run(
            f"ip link add vx{vni} type vxlan id {vni} dstport 4789 local 10.0.0.2 dev eth0"
        )
        steered.b.run(f"ip link set vx{vni} up")
    steered.set("add", "vni=5", "--core", "1")
    steered.set("add", "vni=6,inner_ip,inner_nw_dst=192.168.0.0/16", "--core", "1")
    steered.set("add", "udp,tp_dst=4789", "--core", "0", "--precedence", "1")
    sockets = [steered.b.raw("vx5"), steered.b.raw("vx6")]
    sender = steered.a.raw()

    def inner(address):
        return ethernet(
            "02:00:00:00:00:22",
            "02:00:00:00:00:21",
            0x800,
            ipv4("192.168.7.7", address, 17, udp(1, 2, b"y" * 40)),
        )

    for _ in range(10):
        sender.send(
            vxlan(5, inner("172.16.0.1")),
            vxlan(6, inner("192.168.1.1")),
            vxlan(6, inner("172.16.0.1")),
            vxlan(7, inner("192.168.1.1")),
        )
    for receiver, count in zip(sockets, (10, 20)):
        got = receiver.receive(
            2, wanted=lambda data: data[6:12] == mac("02:00:00:00:00:21"), until=count
        )
        equal(len(got), count, "inner frames")
    equal(
        [entry["packets"] for entry in steered.flows()["entries"]],
        [10, 10, 20],
        "packets of entries",
    )


@test()
def fragments_name_their_machine_by_the_flow_control_field(lab):
    """With the flow control field all fragments of a virtual machine's packets share a core;
    without trust it says nothing."""
    pinned(0)
    steered = Steered(lab, "--layout", "dscp6", "--fcf-trusted")
    steered.set("add", "fcf_vm=3", "--vm", "3")
    steered.set("add", "fcf_vm=4,fcf_priority=1", "--vm", "4", "--priority")
    equal(
        [entry["target"] for entry in steered.flows()["entries"]],
        ["choose per entry"] * 2,
        "targets",
    )
    sender = steered.a.raw()
    for number in range(20):
        for offset, more in ((0, 0x2000), (100, 0x2000), (200, 0)):
            payload = os.urandom(800)
            sender.send(
                ethernet(
                    B,
                    A,
                    0x800,
                    ipv4(
                        "10.0.0.1",
                        "10.0.0.2",
                        50,
                        payload,
                        tos=3 << 2,
                        fragment=more | offset,
                        ident=number,
                    ),
                )
            )
        sender.send(
            ethernet(B, A, 0x800, ipv4("10.0.0.1", "10.0.0.2", 50, b"e" * 100, tos=4 << 2 | 0x80))
        )
        sender.send(ethernet(B, A, 0x800, ipv4("10.0.0.1", "10.0.0.2", 50, b"e" * 100, tos=5 << 2)))
    wait_for("all are counted", lambda: steered.show()["counters"]["received"] >= 100)
    flows = steered.flows()
    equal([entry["packets"] for entry in flows["entries"]], [60, 20], "packets of entries")
    equal(
        [(choice["entry"], choice["flow"], choice["packets"]) for choice in flows["choices"]],
        [(0, None, 60), (1, None, 20)],
        "choices",
    )
    equal(
        steered.show()["counters"]["fcf_miss"],
        20,
        "packets for a virtual machine that no entry knows",
    )
    steered.command("stop")
    steered.process.wait(10)
    steered.start("--layout", "dscp6")
    check("not believed on this interface" in steered.output(), steered.output())
    steered.set("add", "fcf_vm=3", "--core", "1")
    sender.send(
        *[ethernet(B, A, 0x800, ipv4("10.0.0.1", "10.0.0.2", 50, b"e" * 100, tos=3 << 2))] * 5
    )
    wait_for("forged fields are counted", lambda: steered.show()["counters"]["fcf_ignored"] == 5)
    equal(steered.flows()["entries"][0]["packets"], 0, "packets that were believed")


class Stream:
    """A UDP flow from A to B with sequence numbers, some thousand packets a second."""

    def __init__(self, steered, port, rate=2000):
        self.steered, self.port, self.rate = steered, port, rate
        with inside(steered.a):
            self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with inside(steered.b):
            self.into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.into.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            self.into.bind(("10.0.0.2", port))
        self.ended, self.sent, self.got = threading.Event(), 0, []
        self.threads = [threading.Thread(target=self.send), threading.Thread(target=self.receive)]
        for thread in self.threads:
            thread.start()

    def send(self):
        """Until it ends. Bursts of up to ten, so that queues form."""
        pinned(0)
        begin = time.monotonic()
        while not self.ended.is_set():
            due = int((time.monotonic() - begin) * self.rate) - self.sent
            for _ in range(min(due, 200)):
                self.out.sendto(struct.pack("!Q", self.sent) + b"z" * 100, ("10.0.0.2", self.port))
                self.sent += 1
            time.sleep(0.002)

    def receive(self):
        """Until all have come, or nothing comes any more."""
        while True:
            ready = select.select([self.into], [], [], 1)[0]
            if ready:
                self.got.append(struct.unpack("!Q", self.into.recv(2000)[:8])[0])
            elif self.ended.is_set():
                return

    def end(self):
        """Stops it, and returns how many packets were lost and how many came too late."""
        self.ended.set()
        for thread in self.threads:
            thread.join()
        late = sum(1 for before, after in zip(self.got, self.got[1:]) if after < before)
        return self.sent - len(self.got), late


@test(timeout=120)
def forced_moves_keep_the_order(lab):
    """A flow that is moved again and again between two cores loses nothing, and nothing comes
    late."""
    steered = Steered(lab)
    steered.set("add", "udp,tp_dst=77", "--core", "1")
    steered.set("add", "udp,tp_dst=78", "--choose", "flow")
    stream, other = Stream(steered, 77), Stream(steered, 78)
    wait_for("packets come", lambda: steered.choice(0) and steered.choice(1))
    flow = steered.choice(1)["flow"]
    for number in range(400):
        answer = steered.ask(do="move", entry=0, flow=None, core=number % 2)
        check("error" not in answer, answer)
        # A sender that stands still for a second has its flow forgotten.
        answer = steered.ask(do="move", entry=1, flow=flow, core=number // 2 % 2)
        check("error" not in answer or "no such choice" in answer["error"], answer)
        time.sleep(0.02)
    results = stream.end(), other.end()
    flows, counters = steered.flows(), steered.show()["counters"]
    moves = [choice["moves"] for choice in flows["choices"]]
    lab.note(
        f"{sum(moves)} moves, {counters['kept']} packets kept, {stream.sent + other.sent} packets"
    )
    equal(results, ((0, 0), (0, 0)), "lost and late packets of both flows")
    check(all(count > 20 for count in moves), "hardly anything moved:", flows)


@test(timeout=120)
def a_machine_that_starts_drives_a_flow_away(lab):
    """A flow leaves the core on which a virtual machine starts, in order; with the machine's
    process given, too."""
    steered = Steered(lab, "--set", "high=100")
    steered.set("add", "udp,tp_dst=77", "--choose", "flow", "--vm", "9")
    stream = Stream(steered, 77)
    try:
        wait_for("a core is chosen", lambda: steered.choice())
        core = steered.choice()["core"]
        steered.set("vm", "1", "--core", core)

        def is_on(wanted):
            return Patient(steered, lambda: steered.choice() and steered.choice()["core"] == wanted)

        wait_for("the flow leaves the core", is_on(1 - core), 30)
        equal(
            [c["vms"] for c in steered.show()["cores"]],
            [[1], []] if core == 0 else [[], [1]],
            "virtual machines",
        )
        steered.set("vm", "1", "--stopped")
        busy = lab.start(
            ["taskset", "-c", str(1 - core), "sh", "-c", "while :; do :; done"], "busy"
        )
        steered.set("vm", "2", "--pid", busy.pid)
        wait_for("it leaves the process's core", is_on(core), 30)
        busy.kill()
        busy.wait()
        wait_for("the machine is gone with its process", lambda: not steered.show()["vms"])
    finally:
        lost, late = stream.end()
    equal((lost, late), (0, 0), "lost and late packets")
    # A choice that ages while the sender stands still is made anew instead of moved.
    check(steered.show()["moves"]["wanted"] >= 2, "moves:", steered.show()["moves"])


@test()
def the_program_goes_with_its_process(lab):
    """After kill -9 the interface has no program, and packets go as before."""
    steered = Steered(lab)
    steered.set("add", "", "--core", "1")
    equal(len(steered.programs()), 1, "programs")
    steered.a.ping("10.0.0.2")
    steered.process.kill()
    steered.process.wait(10)
    wait_for("the program is gone", lambda: not steered.programs())
    steered.a.ping("10.0.0.2")
    # The file of its socket is left, and does not matter.
    steered.refused("nothing is steered there", "show")
    steered.start()
    steered.a.ping("10.0.0.2")
    # So it is with an interface that goes.
    steered.a.run("ip link del eth0")
    equal(steered.process.wait(10), 1, "status of run")
    check("has gone" in steered.output(), steered.output())


@test()
def another_program_is_left_alone(lab):
    """An interface that carries an XDP program is not touched."""
    steered = Steered(lab)
    before = steered.programs()
    done = steered.b.run(
        [steered.sluice, "steer", "run", "eth0", "--rundir", f"{steered.rundir}2"], ok=False
    )
    check(
        done.returncode
        and re.search(
            r"carries another XDP program \(number \d+, generic mode\); it is left alone",
            done.stderr,
        ),
        done.stderr,
    )
    equal(steered.programs(), before, "programs")
    done = steered.b.run(
        [steered.sluice, "steer", "run", "eth0", "--rundir", steered.rundir], ok=False
    )
    check(done.returncode and "is steered already" in done.stderr, done.stderr)
    steered.a.ping("10.0.0.2")


@test()
def the_mode_suits_the_interface(lab):
    """On a veth pair driver mode is taken where the far end fills checksums in; TCP and UDP work in
    both modes, on either core."""
    steered = Steered(lab, start=False)
    steered.b.run("ip link add v0 type veth peer name v1")
    for words, options, wanted in (
        ("on", (), "generic mode: the veth pair's far end leaves checksums partial"),
        ("off", (), "generic mode: driver mode loses VLAN tags"),
        ("off txvlan off", (), "driver mode: the driver can"),
        ("off", ("--mode", "driver"), "driver mode: as asked for"),
        ("off", ("--mode", "generic"), "generic mode: as asked for"),
    ):
        steered.b.run(["ethtool", "-K", "v1", "tx", *words.split()])
        process = steered.b.start(
            [steered.sluice, "steer", "run", "v0", "--rundir", f"{steered.rundir}3", *options],
            f"v0.{words.replace(' ', '')}{len(options)}",
        )
        wait_for(
            "it answers",
            lambda: (
                run(
                    [steered.sluice, "steer", "show", "--rundir", f"{steered.rundir}3"], ok=False
                ).returncode
                == 0
            ),
        )
        shown = run([steered.sluice, "steer", "show", "--rundir", f"{steered.rundir}3"]).stdout
        check(wanted in shown, shown)
        process.terminate()
        equal(process.wait(10), 0, "status of run")
    for mode in ("generic", "driver"):
        if mode == "driver":
            steered.a.run("ethtool -K eth0 tx off")
        steered.start("--mode", mode)
        for core in (0, 1):
            steered.set("add", "", "--core", core)
            steered.a.ping("10.0.0.2")
            with inside(steered.b):
                listener = socket.create_server(("10.0.0.2", 4000 + core))
            with inside(steered.a):
                client = socket.create_connection(("10.0.0.2", 4000 + core), 10)
            server, _ = listener.accept()
            sent, got = os.urandom(1 << 20), b""
            thread = threading.Thread(target=client.sendall, args=(sent,))
            thread.start()
            server.settimeout(10)
            while len(got) < len(sent):
                got += server.recv(1 << 20)
            thread.join()
            check(got == sent, f"{mode}, core {core}: what was sent by TCP came otherwise")
            for one in (client, server, listener):
                one.close()
        equal(steered.b.checksum_errors(), {}, f"{mode}: checksum errors")
        steered.command("stop")
        steered.process.wait(10)


@test(timeout=120)
def priority_flows_have_a_core_to_themselves(lab):
    """A flow without the priority bit leaves the core that a priority flow takes, and comes back
    when the bit is switched off."""
    steered = Steered(lab, "--set", "high=100")
    steered.set("vm", "1", "--core", "0")
    for number in (1, 2):
        steered.set("add", f"udp,tp_dst={number}", "--choose", "entry", "--vm", "1")
    streams = [Stream(steered, number, rate=500) for number in (1, 2)]

    def cores(*wanted):
        return Patient(
            steered,
            lambda: [choice["core"] for choice in steered.flows()["choices"]] == list(wanted),
        )

    try:
        # Core 1 is the only one without a virtual machine; the other flow's own is on core 0.
        wait_for("both have the free core", cores(1, 1), 30)
        steered.ask(
            do="modify",
            matching="udp,tp_dst=1",
            precedence=32768,
            core=None,
            per_flow=False,
            vm=1,
            priority=True,
            cookie=0,
            idle_timeout_ms=None,
            hard_timeout_ms=None,
        )
        wait_for("the flow without priority leaves it", cores(1, 0), 30)
        equal([core["held"] for core in steered.show()["cores"]], [False, True], "held cores")
        steered.set("priority", "1", "off")
        wait_for("it comes back", cores(1, 1), 30)
    finally:
        results = [stream.end() for stream in streams]
    equal(results, [(0, 0), (0, 0)], "lost and late packets")


@test()
def bad_input_is_answered(lab):
    """Every bad value gets a message that names it, and nothing gets stuck."""
    steered = Steered(lab, start=False)

    def fails(pattern, *words):
        done = steered.b.run(
            [steered.sluice, "steer", "run", *words, "--rundir", steered.rundir],
            ok=False,
            seconds=20,
        )
        check(
            done.returncode and re.search(pattern, done.stderr),
            f"{words}: ended with {done.returncode}: {done.stderr!r}, wanted /{pattern}/",
        )

    fails("nosuch: there is no such interface", "nosuch")
    fails("a/b: this is no interface's name", "a/b")
    fails(r"core 4095: this machine has cores \d", "eth0", "--cores", "0,4095")
    fails("--cores 1-: must be numbers and ranges", "eth0", "--cores", "1-")
    fails("lo: its driver has no driver-mode XDP", "lo", "--mode", "driver")
    fails("high: 0.0% is not above 0%", "eth0", "--set", "high=0")
    fails("low: there is no such constant", "eth0", "--set", "low=0")
    fails("entries: 0 is not between 1 and", "eth0", "--entries", "0")
    equal(steered.programs(), [], "programs after failures")
    steered.start("--entries", "3", "--cores", "0", "--layout", "vlan")
    check(
        "cannot see tags that the device keeps beside frames" in steered.output(), steered.output()
    )
    steered.refused("nothing is steered there", "show", "eth7")
    for pattern, words in (
        ("colour: no such field", ("add", "colour=3")),
        ("tp_dst=70000: must be a number from 0 to 65535", ("add", "udp,tp_dst=70000")),
        (r"core 9999: this machine has cores", ("add", "udp", "--core", "9999")),
        (r"core 1: packets are steered to cores 0 only", ("add", "udp", "--core", "1")),
        ("no entry is so", ("modify", "udp", "--core", "0")),
        ("no entry is so", ("delete", "udp", "--precedence", "3")),
        ("virtual machine 7: it is not known here; those that are: none", ("vm", "7", "--stopped")),
        ("virtual machine 7: it is not known here", ("priority", "7", "on")),
        ("process 4000000: there is none", ("vm", "7", "--pid", "4000000")),
        ("one of --core, --pid and --stopped", ("vm", "7")),
        ("high: 101.0% is not above", ("constant", "high=101")),
        ("must be NAME=VALUE", ("constant", "high")),
        ("hold: 1000000 ns is not between", ("constant", "hold=1")),
        ("entry 5 has no such choice", ("move", "5", "--core", "0")),
        ("16 hexadecimal digits", ("move", "5", "--flow", "xyz", "--core", "0")),
    ):
        steered.refused(pattern, "set", *words)
    for number in range(3):
        steered.set("add", f"udp,tp_dst={number}")
    steered.refused("the steering table is full: it holds 3 entries", "set", "add", "udp,tp_dst=3")
    steered.set("delete")
    # Clients that mean harm.
    path = f"{steered.rundir}/steer-eth0.sock"
    silent = [socket.socket(socket.AF_UNIX) for _ in range(30)]
    for number, client in enumerate(silent):
        client.settimeout(5)
        client.connect(path)
        client.sendall(b"{" if number % 2 else b"x" * 5000)
    wait_for("others are served", lambda: steered.command("show", ok=False).returncode == 0)
    for line in (
        b"\n",
        b"[]\n",
        b'{"do":"nothing"}\n',
        b"\xff\xfe\n",
        b'{"do":"flows","limit":-1}\n',
    ):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(path)
            client.sendall(line)
            check(b'"error"' in client.recv(65536), line)
    # Thirty-two masks, and not one more.
    steered.command("stop")
    equal(steered.process.wait(10), 0, "status of run")
    steered.start()
    for bits in range(32):
        steered.set("add", f"nw_dst=10.0.0.0/{bits + 1}" if bits else "tcp")
    steered.refused("it holds entries of 32 different masks", "set", "add", "udp,tp_dst=3")


@test(timeout=120)
def no_congestion_marks_come_of_fields(lab):
    """Every VM id with every ECN codepoint goes through the kernel's VXLAN: none is dropped, none
    newly marked."""
    pinned(0)
    steered = Steered(lab, start=False)
    steered.b.run("ip link add vx5 type vxlan id 5 dstport 4789 local 10.0.0.2 dev eth0")
    steered.b.run("ip link set vx5 up")
    sender, receiver = steered.a.raw(), steered.b.raw("vx5")
    for layout, fields in (
        ("dscp6", [field << 2 for field in range(64)]),
        ("tos8", list(range(256))),
    ):
        steered.start("--layout", layout, "--fcf-trusted")
        steered.set("add", "fcf=1", "--core", "1", "--precedence", "1")
        wanted = []
        for field in fields:
            for ecn in range(4):
                number = len(wanted)
                inner = ethernet(
                    "02:00:00:00:00:22",
                    "02:00:00:00:00:21",
                    0x800,
                    ipv4(
                        "192.168.7.7",
                        "192.168.7.8",
                        17,
                        udp(1, 2, struct.pack("!I", number) * 8),
                        tos=ecn,
                    ),
                )
                wanted.append(inner)
                # The sender's tunnel copies the inner codepoint; in tos8 there is no room for it.
                sender.send(vxlan(5, inner, tos=field | ecn if layout == "dscp6" else field))
                if number % 128 == 127:
                    time.sleep(0.02)
        got = receiver.receive(
            3, wanted=lambda data: data[6:12] == mac("02:00:00:00:00:21"), until=len(wanted)
        )
        equal(len(got), len(wanted), f"{layout}: frames that arrived")
        check(sorted(got) == sorted(wanted), f"{layout}: inner frames were changed")
        steered.command("stop")
        steered.process.wait(10)


@test(timeout=150)
def softirq_load_is_seen(lab):
    """A core with softirq load alone: what is measured, and what a probe of the lowest priority
    gets of the core, add up."""
    steered = Steered(lab)
    # Receive packet steering has core 1 receive what A sends from core 0: softirqs, and no thread
    # of a cpumap.
    steered.b.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            (
                "mount -t sysfs none /sys && echo 2 >/sys/class/net/eth0/queues/rx-0/rps_cpus && "
                "cat /sys/class/net/eth0/queues/rx-0/rps_cpus"
            ),
        ]
    )
    steered.set("add", "udp", "--core", "1")
    probe = os.path.join(lab.directory, "probe.py")
    with open(probe, "w", encoding="utf-8") as file:
        file.write(
            "import os, sys, time\nos.sched_setaffinity(0, {1})\n"
            "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nos.nice(19)\n"
            "while True:\n    end, count = time.monotonic() + 0.2, 0\n"
            "    while time.monotonic() < end:\n        count += 1\n    print(count, flush=True)\n"
        )
    process = subprocess.Popen(["/usr/bin/python3", probe], stdout=subprocess.PIPE, text=True)
    try:

        def others():
            """Time of core 1 that tasks without niceness have spent, in ticks: not the probe, which
            is nice."""
            with open("/proc/stat", encoding="ascii") as file:
                words = next(line for line in file if line.startswith("cpu1 ")).split()
            return int(words[1]) + int(words[3])

        def counts(number):
            return [int(process.stdout.readline()) for _ in range(number)]

        counts(2)
        alone = max(counts(8))
        ended = threading.Event()

        def flood():
            pinned(0)
            sender, burst = steered.a.raw(), frame(9, payload=b"q" * 1000)
            while not ended.is_set():
                for _ in range(200):
                    sender.send(burst)
                time.sleep(0.002)

        flooder = threading.Thread(target=flood)
        flooder.start()
        try:
            seen = []
            for _ in range(12):
                counts(1)
                shares, probed, before = [], 0, others()
                for _ in range(5):
                    probed += counts(1)[0]
                    core = [c for c in steered.ask(do="show")["done"]["cores"] if c["core"] == 1][
                        0
                    ]["shares"]
                    shares.append(core["softirq"] + core["irq"] + core["cpumap"])
                # A window of a second in which others ran there says nothing.
                if others() - before <= 0.03 * os.sysconf("SC_CLK_TCK"):
                    seen.append((sum(shares) / len(shares), 1 - probed / 5 / alone))
        finally:
            ended.set()
            flooder.join()
    finally:
        process.kill()
        process.wait()
    if len(seen) < 3:
        raise Skip("the machine is too busy: others run on the core that is probed")
    measured, probed = min(seen, key=lambda pair: abs(pair[0] - pair[1]))
    lab.note(f"softirqs measured {measured:.0%}, missed by the probe {probed:.0%}")
    equal(steered.show()["source"], "tracepoints", "source of loads")
    check(measured > 0.02, "no load was measured:", seen)
    # Hosts of virtual machines take time, too; of several windows the one with the least of that
    # counts.
    check(abs(measured - probed) < 0.1, "measured and probed:", seen)
