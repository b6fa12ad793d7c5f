"""Wrong configuration, lying packets, malformed messages and hostile peers: named, counted, and
nothing else suffers."""

import contextlib
import mmap
import os
import random
import re
import socket
import struct
import time

from harness import check, equal, ethernet, test, wait_for

SEED = int(os.environ.get("SLUICE_TEST_SEED", "2611"))


@test(timeout=90, dpdk=True)
def wrong_configuration(lab):
    """Each mistake is in Interface.error or the log, with its place; everything else goes on
    working."""
    switch = lab.switch()
    switch.enable_dpdk()
    switch.bridge()
    a = lab.host("h1", switch, ip="10.9.0.1/24")
    lab.host("h2", switch, ip="10.9.0.2/24")
    a.ping("10.9.0.2")
    mistakes = {
        "unknown": ["type=nonsense"],
        "missing": [],
        "nodevargs": ["type=dpdk"],
        "baddevargs": ["type=dpdk", "options:dpdk-devargs=net_nonsense0"],
        "nofile": [
            "type=dpdk",
            f"options:dpdk-devargs=net_pcap7,rx_pcap={lab.directory}/none.pcap",
        ],
        "nopath": ["type=dpdkvhostuserclient"],
        "nopeer": ["type=patch"],
        "toolongname0123456789": ["type=internal"],
    }
    for name, settings in mistakes.items():
        words = ["--", "set", "Interface", name, *settings] if settings else []
        done = switch.vsctl("add-port", "br0", name, *words, ok=False)
        equal(done.returncode, 0, f"how ovs-vsctl ended for {name}: {done.stderr}")
        error, number = (
            switch.get("Interface", name, "error"),
            switch.get("Interface", name, "ofport"),
        )
        if switch.is_ovs and name in ("nopath", "toolongname0123456789"):
            # It takes the one for a port that never gets a peer, and cuts the other's name.
            continue
        check(number == -1 and error, f"{name}: ofport {number}, error {error!r}")
        a.ping("10.9.0.2", 2)
    if not switch.is_ovs:
        switch.vsctl("add-bond", "br0", "bond0", "x1", "x2", ok=False)
        switch.logged("bond0")
        switch.vsctl("del-port", "bond0")
    switch.vsctl("set", "Interface", "h1-p", "mtu_request=65536", ok=False)
    switch.vsctl("set", "Interface", "h1-p", "mtu_request=40", ok=False)
    a.ping("10.9.0.2", 2)
    switch.vsctl("clear", "Interface", "h1-p", "mtu_request")
    switch.vsctl("set", "Bridge", "br0", "other_config:datapath-id=xyz")
    switch.vsctl(
        "set",
        "Bridge",
        "br0",
        "other_config:hwaddr=nonsense",
        "other_config:mac-aging-time=-5",
        "other_config:mac-table-size=banana",
    )
    switch.vsctl(
        "set",
        "Open_vSwitch",
        ".",
        "other_config:pmd-cpu-mask=zz",
        "other_config:flow-limit=-1",
        "other_config:max-idle=x",
    )
    switch.vsctl("set-controller", "br0", "tcp:", "nonsense:1:2", "tcp:127.0.0.1:99999")
    switch.vsctl("del-controller", "br0")
    a.reaches("10.9.0.2")
    a.ping("10.9.0.2", 3)
    check(switch.get("Bridge", "br0", "datapath_id"), "the bridge has no datapath id")
    # The correction of a mistake takes effect by itself.
    spare = lab.namespace("spare").quiet()
    switch.pair(spare, "missing")
    switch.vsctl("set", "Interface", "missing", "external_ids:again=1")
    wait_for(
        "the interface that now exists has a number",
        lambda: switch.get("Interface", "missing", "ofport") != -1,
    )
    equal(switch.get("Interface", "missing", "error"), [], "its error")


@test(timeout=60, dpdk=True)
def a_driver_in_a_file(lab):
    """A daemon that has DPDK inside passes over drivers in files, which would bring another DPDK,
    and says so; all else goes on."""
    switch = lab.switch()
    if switch.is_ovs:
        return
    switch.enable_dpdk()
    switch.bridge()
    if not re.search(r"DPDK \d\S* \(its own\)", switch.log()):
        return
    extra = switch.get("Open_vSwitch", ".", "other_config")["dpdk-extra"]
    switch.vsctl(
        "set", "Open_vSwitch", ".", f'other_config:dpdk-extra="{extra} -d {lab.directory}/none.so"'
    )
    switch.restart()
    switch.logged(r"dpdk-extra: '-d \S+/none\.so' is passed over")
    equal(switch.get("Open_vSwitch", ".", "dpdk_initialized"), True, "dpdk_initialized")
    a, _ = lab.host("h1", switch, ip="10.9.0.1/24"), lab.host("h2", switch, ip="10.9.0.2/24")
    a.reaches("10.9.0.2")


@test(timeout=60)
def one_device_in_two_bridges(lab):
    """The second bridge that wants a device is told so; the first keeps it."""
    switch = lab.switch()
    switch.bridge("br0")
    switch.bridge("br1")
    a, b = lab.host("h1", switch, ip="10.9.1.1/24"), lab.host("h2", switch, ip="10.9.1.2/24")
    done = switch.vsctl("add-port", "br1", "h1-p", ok=False)
    check("already" in done.stderr, "a port that is in another bridge:", done.stderr)
    # Behind the back of ovs-vsctl's own check: two Bridge rows, two interfaces of the same device.
    switch.vsctl(
        "--",
        "--id=@i",
        "create",
        "Interface",
        "name=br0",
        "--",
        "--id=@p",
        "create",
        "Port",
        "name=stolen",
        "interfaces=@i",
        "--",
        "add",
        "Bridge",
        "br1",
        "ports",
        "@p",
        ok=False,
    )
    a.ping("10.9.1.2", 5)
    b.ping("10.9.1.1", 5)


@test(timeout=60)
def lying_frames_on_a_kernel_port(lab):
    """Frames from no byte to jumbo, with every kind of lie, through NORMAL and through rules that
    edit: the switch goes on."""
    switch = lab.switch()
    switch.bridge()
    a = lab.host("h1", switch, ip="10.9.2.1/24", mtu=9000)
    lab.host("h2", switch, ip="10.9.2.2/24", mtu=9000)
    switch.flows(
        "priority=9,ip,nw_dst=10.77.0.0/16,actions=dec_ttl,mod_nw_src:1.2.3.4,mod_nw_tos:32,NORMAL",
        "priority=9,tcp,actions=mod_tp_dst:99,NORMAL",
        "priority=9,ipv6,actions=set_field:fd00::9->ipv6_src,mod_dl_src:02:00:00:00:00:99,NORMAL",
        "priority=9,arp,arp_op=2,actions=load:7->NXM_OF_ARP_SPA[],NORMAL",
        "priority=9,dl_vlan=5,actions=strip_vlan,NORMAL",
        "priority=1,actions=NORMAL",
    )
    draw, sender = random.Random(SEED), a.raw()
    sent = 0
    for kind in (0x0800, 0x86DD, 0x0806, 0x8100, 0x88A8, 0x8847, 0x894F, 0x0000, 0x05DC, 0xFFFF):
        for size in list(range(0, 70)) + [200, 1500, 4000, 8900]:
            frame = ethernet("02:00:00:00:00:02", "02:00:00:00:00:77", kind, draw.randbytes(size))
            if draw.random() < 0.5 and kind == 0x0800 and size > 20:
                frame = (
                    frame[:14]
                    + bytes([draw.choice([0x45, 0x4F, 0x41, 0x65])])
                    + frame[15:16]
                    + struct.pack("!H", draw.choice([0, 19, size, size + 1, 65535]))
                    + frame[18:]
                )
            with contextlib.suppress(OSError):  # the kernel refuses frames shorter than a header
                sender.send(frame)
                sent += 1
    check(sent > 600, "the kernel took only", sent, "frames")
    switch.flows("priority=1,actions=NORMAL")
    a.ping("10.9.2.2", 5)
    a.ping("10.9.2.2", 3, size=8900)


@test(timeout=60)
def malformed_openflow(lab):
    """Garbage, truncated and lying messages: an error or a closed connection, and other connections
    do not notice."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13")
    switch.flows("cookie=0x1,priority=3,actions=drop")
    draw = random.Random(SEED)
    hello = {1: bytes.fromhex("0100000800000001"), 4: bytes.fromhex("0400000800000001")}
    # A flow mod, a packet out, a multipart request and a set-config of each version, well formed,
    # to be spoilt.
    good = {
        1: [
            struct.pack("!BBHIIHHHHH", 1, 14, 72, 7, 0x3FFFFF, 0, 0, 0, 0, 0)[:20] + bytes(52),
            bytes.fromhex("0110000c00000009") + struct.pack("!HH", 3, 0),
            bytes.fromhex("010900080000000a") + bytes(4),
            struct.pack("!BBHIIHH", 1, 13, 16, 8, 0xFFFFFFFF, 0xFFFF, 0),
            bytes.fromhex("010400100000000b00002320") + struct.pack("!I", 12),
        ],
        4: [
            struct.pack("!BBHI", 4, 14, 56, 7) + bytes(40) + bytes.fromhex("0001000400000000"),
            struct.pack("!BBHIHH", 4, 18, 16, 9, 13, 0) + bytes(4),
            struct.pack("!BBHIIIH", 4, 13, 24, 8, 0xFFFFFFFF, 0xFFFFFFFD, 0) + bytes(6),
            struct.pack("!BBHI", 4, 29, 16, 8) + bytes(8),
            struct.pack("!BBHI", 4, 33, 48, 9) + bytes(40),
        ],
    }
    answered = closed = 0
    for attempt in range(150):
        version = draw.choice([1, 4])
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(2)
        client.connect(f"{switch.directory}/br0.mgmt")
        with contextlib.suppress(OSError):
            client.sendall(hello[version] if attempt % 10 else draw.randbytes(64))
            for _ in range(20):
                message = bytearray(draw.choice(good[version]))
                for _ in range(draw.randint(1, 8)):
                    message[
                        draw.randrange(4 if draw.random() < 0.3 else 8, len(message))
                        if len(message) > 8
                        else 1
                    ] = draw.choice([0, 1, 0xFF, 0x7F, draw.getrandbits(8)])
                if draw.random() < 0.3:
                    message = message[: draw.randint(8, len(message))] + draw.randbytes(
                        draw.randint(0, 40)
                    )
                    message[2:4] = struct.pack("!H", len(message))
                if draw.random() < 0.05:
                    message[2:4] = struct.pack("!H", draw.choice([0, 7, 9, 65535]))
                client.sendall(message)
            client.sendall(bytes([version, 2, 0, 8, 0, 0, 0, 77]))  # an echo request
            client.settimeout(0.3)
            data = b""
            while True:
                part = client.recv(65536)
                if not part:
                    closed += 1
                    break
                data += part
                if bytes([version, 1]) in data or bytes([version, 3, 0, 8, 0, 0, 0, 77]) in data:
                    answered += 1
                    break
        client.close()
    lab.note(f"150 connections: {answered} answered, {closed} closed")
    check(answered + closed > 75, "most connections were neither answered nor closed")
    check(
        "cookie=0x1" in switch.ofctl("-O", "OpenFlow13", "show", "br0")
        or switch.ofctl("-O", "OpenFlow13", "dump-flows", "br0"),
        "the bridge no longer answers",
    )
    switch.flows("cookie=0x2,priority=3,actions=drop")
    equal(len(switch.rules()), 1, "rules after a fresh start")


@test(timeout=60)
def malformed_control_messages(lab):
    """Garbage on the control socket: the connection closes at worst."""
    switch = lab.switch()
    switch.bridge()
    path = f"{switch.directory}/ovs-vswitchd.{switch.process.pid}.ctl"
    draw = random.Random(SEED)
    for text in (
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}" * 50,
        b'{"method":1,"params":2,"id":3}',
        b'{"method":"version","params":{},"id":0}',
        b'{"method":"version","params":[1],"id":0}',
        b'{"id":0,"method":"list-commands","params":["x","y","z"]}',
        b"[" * 100_000,
        b'"' + b"a" * 3_000_000,
        b"\xff\xfe\x00" * 100,
        draw.randbytes(5000),
        b'{"method":"\\ud800","params":[],"id":1e999}',
        b'{"id":1,"method":"' + b"x" * 100_000 + b'","params":[]}',
    ):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(1)
        client.connect(path)
        with contextlib.suppress(OSError):
            client.sendall(text)
            client.recv(65536)
        client.close()
    idle = []
    for _ in range(200):  # clients that say nothing
        with contextlib.suppress(OSError):
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(1)
            client.connect(path)
            idle.append(client)
    for client in idle:
        client.close()
    wait_for(
        "the control socket answers again",
        lambda: "Open vSwitch" in switch.appctl("version", ok=False).stdout,
        15,
    )


class Rogue:
    """The guest's side of vhost-user, by hand: it sets up two rings in shared memory and then
    writes what it likes into them."""

    SIZE, RING = 1 << 20, 64

    def __init__(self, path):
        self.path = path
        with contextlib.suppress(OSError):
            os.unlink(path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(15)
        self.fds = []

    def say(self, request, payload=b"", fds=(), answer=False):
        """One message; with `answer`, returns what comes back."""
        socket.send_fds(
            self.peer, [struct.pack("<III", request, 1, len(payload)) + payload], list(fds)
        )
        if not answer:
            return None
        head = self.peer.recv(12, socket.MSG_WAITALL)
        return self.peer.recv(struct.unpack("<III", head)[2], socket.MSG_WAITALL)

    def set_up(self, regions=None, ring=None):
        """Accepts the switch and brings two rings up; `regions` and `ring` may lie."""
        self.peer, _ = self.listener.accept()
        self.peer.settimeout(5)
        (features,) = struct.unpack("<Q", self.say(1, answer=True))
        self.say(3)
        self.say(
            2, struct.pack("<Q", features & ((1 << 32) | (1 << 28)))
        )  # VERSION_1, INDIRECT_DESC
        memory = os.memfd_create("rogue")
        os.ftruncate(memory, self.SIZE)
        self.memory = mmap.mmap(memory, self.SIZE)
        self.say(
            5,
            struct.pack("<II", 1, 0)
            + (regions or struct.pack("<QQQQ", 0, self.SIZE, 0x7F0000000000, 0)),
            [memory],
        )
        self.kicks = []
        for index in (0, 1):
            base = 0x7F0000000000 + index * 0x10000
            self.say(8, struct.pack("<II", index, ring or self.RING))
            self.say(10, struct.pack("<II", index, 0))
            self.say(
                9, struct.pack("<IIQQQQ", index, 0, base, base + 0x4000, base + 0x2000, 0)
            )  # descriptors, used, available
            kick, call = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
            self.kicks.append(kick)
            self.say(13, struct.pack("<Q", index), [call])
            self.say(12, struct.pack("<Q", index), [kick])
            self.fds += [kick, call]
        self.fds.append(memory)
        for index in (0, 1):
            with contextlib.suppress(OSError):
                self.say(18, struct.pack("<II", index, 1))

    def garble(self, draw, kind):
        """Writes one kind of nonsense into both rings and kicks."""
        for index in (0, 1):
            base = index * 0x10000
            for slot in range(self.RING):
                address = draw.choice(
                    [
                        0,
                        0x80000,
                        self.SIZE - 8,
                        self.SIZE,
                        1 << 40,
                        (1 << 64) - 64,
                        draw.getrandbits(64),
                    ]
                )
                length = draw.choice([0, 1, 12, 64, 0x10000, 0xFFFFFFFF])
                flags = draw.choice([0, 1, 2, 3, 4, 5, 7, 0xFFFF])
                following = draw.choice([slot, 0, (slot + 1) % self.RING, self.RING, 0xFFFF])
                if kind == "loop":
                    address, length, flags, following = (
                        0x80000,
                        64,
                        index * 0 | 1,
                        (slot + 1) % self.RING,
                    )
                elif kind == "indirect":
                    address, length, flags = (
                        0x80000,
                        draw.choice([16, 17, 0, 1 << 20, 0xFFFFFFF0]),
                        4,
                    )
                self.memory[base + slot * 16 : base + slot * 16 + 16] = struct.pack(
                    "<QIHH", address, length, flags, following
                )
            if kind == "random":
                self.memory[base : base + 0x2000] = draw.randbytes(0x2000)
            if kind == "indirect":
                self.memory[0x80000:0x84000] = b"".join(
                    struct.pack("<QIHH", 0x80000, 64, 1, draw.choice([0, 1, 5, 0xFFFF]))
                    for _ in range(1024)
                )
            entries = b"".join(
                struct.pack("<H", draw.choice([number % self.RING, 0xFFFF, draw.getrandbits(16)]))
                for number in range(self.RING)
            )
            self.memory[base + 0x2004 : base + 0x2004 + len(entries)] = entries
            count = draw.choice([1, self.RING, self.RING + 1, 0x7FFF, 0xFFFF, draw.getrandbits(16)])
            self.memory[base + 0x2000 : base + 0x2004] = struct.pack("<HH", 0, count)
            with contextlib.suppress(OSError):
                os.eventfd_write(self.kicks[index], 1)

    def vanish(self):
        """Goes away without a word."""
        self.peer.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.memory.close()


@test(timeout=120, dpdk=True)
def hostile_vhost_peer(lab):
    """A vhost-user peer writes garbage into its rings, lies about its memory and vanishes: only its
    own port suffers."""
    switch = lab.switch()
    switch.enable_dpdk(cores=1)
    switch.bridge()
    a, b = lab.host("h1", switch, ip="10.9.3.1/24"), lab.host("h2", switch, ip="10.9.3.2/24")
    a.ping("10.9.3.2")
    rogue = Rogue(f"{switch.directory}/rogue.sock")
    switch.port("rogue", "type=dpdkvhostuserclient", f"options:vhost-server-path={rogue.path}")
    draw = random.Random(SEED)
    for kind in ("random", "loop", "indirect", "descriptors"):
        rogue.set_up()
        for _ in range(5):
            rogue.garble(draw, kind)
            a.run(
                "ping -n -f -c 20 -W 1 10.9.3.2", ok=False
            )  # floods and unknowns reach the rogue's receive ring too
            time.sleep(0.05)
        # What it sends may be copies of others' frames, so that their addresses are learned at its
        # port until their owners send again.
        wait_for("others are served", lambda: a.ping("10.9.3.2", 3, ok=False) == 3)
        rogue.vanish()
        wait_for("others are served", lambda: a.ping("10.9.3.2", 3, ok=False) == 3)
    # Memory that is not there, and rings of impossible size: refused, not believed.
    for lie in (
        {"regions": struct.pack("<QQQQ", 0, 1 << 50, 0x7F0000000000, 0)},
        {"regions": struct.pack("<QQQQ", 0, Rogue.SIZE, 0x7F0000000000, (1 << 64) - 4096)},
        {"ring": 65535},
        {"ring": 3},
    ):
        with contextlib.suppress(OSError, struct.error):
            rogue.set_up(**lie)
            rogue.garble(draw, "random")
            time.sleep(0.1)
        with contextlib.suppress(OSError, AttributeError):
            rogue.vanish()
        a.ping("10.9.3.2", 3)
    b.ping("10.9.3.1", 3)
