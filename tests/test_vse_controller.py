"""`examples/vse_controller.py` runs two switches joined by VXLAN: who sends to a virtual machine
names it in the outer header, and its host's steering table has an entry for it; and what ports make
of the field by themselves."""

import json
import os
import re
import struct
import time

from harness import ROOT, Failure, Skip, check, equal, ethernet, run, test, wait_for
from openflow_client import Connection, header
from test_controller import Controller, connected
from tunnels import UDP, VXLAN, WIRE, host, ipv4, join, outers, raw_host, site, tunnel, vxlan, wired
from vhost_frontend import FrontEnd

EXAMPLE = os.path.join(ROOT, "examples/vse_controller.py")
VM = 5
EXPERIMENTER = 0x0002534C
(
    CAPABILITIES_REQUEST,
    CAPABILITIES_REPLY,
    MODE_REQUEST,
    MODE_REPLY,
    VM_STATUS,
    STEERING_MOD,
    STATS_REQUEST,
    STATS_REPLY,
) = range(1, 9)
VENDOR, PACKET_OUT, FLOW_MOD, STATS, STATS_ANSWER, BARRIER, BARRIER_ANSWER = (
    4,
    13,
    14,
    16,
    17,
    18,
    19,
)
OFF, RSS, ADAPTIVE, AUTO, NO_MODE = 0, 1, 2, 3, 255
NO_CORE = 0xFFFFFFFF


def ours(lab):
    """Skips the test where Sluice is not what is under test."""
    if lab.is_ovs:
        raise Skip("an extension of Sluice's")


def noted(vm, priority):
    """SET_FCF as `ovs-ofctl` prints it."""
    word = vm | (0x8000 if priority else 0)
    return f"note:02.53.4c.01.{word >> 8:02x}.{word & 0xFF:02x}"


def dscp6(vm, priority):
    """The ToS byte with this field, without ECN."""
    return (vm | (32 if priority else 0)) << 2


def senders_rule(switch):
    """The rule that sends to the virtual machine, or None."""
    found = [rule for rule in switch.rules("br-int", "-O", "OpenFlow13") if "priority=100," in rule]
    check(len(found) < 2, "several rules:", found)
    return found[0] if found else None


class Site:
    """A host of the network: its switch, its virtual machine's namespace, and its link to the
    controller."""

    def __init__(self, lab, name, number, control):
        self.number = number
        self.switch = site(lab, name, number)
        self.switch.vsctl(
            "set",
            "Bridge",
            "br-int",
            "protocols=OpenFlow10,OpenFlow13",
            f"other_config:datapath-id={number:016x}",
            "other_config:disable-in-band=true",
            "other_config:sluice-fcf-layout=dscp6",
        )
        self.switch.namespace.run(
            [
                "ip",
                "link",
                "add",
                "control",
                "type",
                "veth",
                "peer",
                "name",
                f"to{number}",
                "netns",
                control.name,
            ]
        )
        self.switch.namespace.run("ip link set control up")
        self.switch.namespace.run(f"ip addr add 10.20.{number}.2/24 dev control")
        control.run(f"ip link set to{number} up")
        control.run(f"ip addr add 10.20.{number}.1/24 dev to{number}")

    def connect(self):
        """Makes the controller the bridge's."""
        self.switch.vsctl(
            "set-controller",
            "br-int",
            f"tcp:10.20.{self.number}.1:6653",
            "--",
            "set",
            "Controller",
            "br-int",
            "max_backoff=1000",
            "connection_mode=out-of-band",
        )
        wait_for(f"site {self.number} is connected", lambda: connected(self.switch, "br-int"), 20)

    def vm(self, interface, **ids):
        """Says what is behind an interface; nothing for no virtual machine."""
        remove = [
            "--if-exists",
            "remove",
            "Interface",
            interface,
            "external_ids",
            "vm-id",
            "vm-core",
            "tenant-id",
            "priority",
        ]
        words = [f"external_ids:{key.replace('_', '-')}={value}" for key, value in ids.items()]
        self.switch.vsctl(
            *remove, *(["--", "set", "Interface", interface, *words] if words else [])
        )


class Resident:
    """`sluice steer run` at a site's wire."""

    def __init__(self, lab, switch):
        self.sluice = os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")
        self.rundir, self.log = switch.directory, os.path.join(lab.directory, "steer.out")
        self.process = switch.namespace.start(
            [
                self.sluice,
                "steer",
                "run",
                WIRE,
                "--mode",
                "generic",
                "--layout",
                "dscp6",
                "--fcf-trusted",
                "--rundir",
                self.rundir,
            ],
            "steer.out",
        )
        wait_for("the wire is steered", self.up)

    def up(self):
        """Whether it answers."""
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8") as file:
                raise Failure(
                    f"sluice steer run ended with {self.process.returncode}: {file.read()}"
                )
        return (
            os.path.exists(f"{self.rundir}/steer-{WIRE}.sock")
            and self.ask("show", ok=False) is not None
        )

    def ask(self, what, ok=True):
        """`sluice steer WHAT --json`."""
        done = run([self.sluice, "steer", what, "--json", "--rundir", self.rundir], ok=ok)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def entries(self):
        """Entries: match, virtual machine, priority bit."""
        return [
            (entry["match"], entry["vm"], entry["priority"])
            for entry in self.ask("flows")["entries"]
        ]

    def vms(self):
        """Where virtual machines are said to be."""
        return {vm["vm"]: vm["place"] for vm in self.ask("show")["vms"]}


@test(timeout=180)
def a_controller_steers_two_hosts(lab):
    """A virtual machine starts at B, gets another core, moves to A, comes back and stops: rules at
    the sender, the field on the wire and the entry at the receiver follow."""
    ours(lab)
    if os.cpu_count() < 2:
        raise Skip("one core: nothing to steer to")
    control = lab.namespace("control")
    a, b = Site(lab, "a", 1, control), Site(lab, "b", 2, control)
    join(a.switch, b.switch)
    for here, there in ((a, b), (b, a)):
        tunnel(here.switch, "vx0", "vxlan", there.number, "key=5")
    client, machine = host(a.switch, "client", 1), host(b.switch, "vm", 2)
    resident = Resident(lab, b.switch)
    network = {
        "hosts": {"1": {"tunnels": {"2": "vx0"}}, "2": {"tunnels": {"1": "vx0"}}},
        "vms": {str(VM): {"mac": machine.address()}},
    }
    with open(os.path.join(lab.directory, "network.json"), "w", encoding="utf-8") as file:
        json.dump(network, file)
    Controller(
        lab,
        control,
        application=EXAMPLE,
        address="0.0.0.0",
        env=dict(os.environ, VSE_NETWORK=file.name),
    )
    log = os.path.join(lab.directory, "controller.out")

    def said(pattern):
        with open(log, encoding="utf-8") as file:
            return re.search(pattern, file.read())

    a.connect()
    b.connect()
    # One worker each: there is nothing to share. The device is read as the bridge writes it.
    wait_for(
        "host 2 says what it can do",
        lambda: said(
            r"host 2: \d+ cores, 1 workers, layout 1, devices \[\(b'wire', 1, True\)\]: off"
        ),
        20,
    )
    wait_for("the mode is a controller's", lambda: said(r"host 2: mode off by a controller"))
    client.reaches("10.1.0.2", 20)
    wire = b.switch.namespace.raw(WIRE)

    def tos_on_the_wire():
        wire.drain()
        client.ping("10.1.0.2", 1)
        [outer] = outers(wire, port=VXLAN)
        return outer.tos

    equal(tos_on_the_wire(), 0, "the outer ToS without a virtual machine")
    b.vm("vm-p", vm_id=VM, vm_core=0, tenant_id=7, priority="true")
    wait_for("the sender marks", lambda: noted(VM, True) in (senders_rule(a.switch) or ""))
    wait_for(
        "the receiver has an entry", lambda: resident.entries() == [(f"fcf_vm={VM}", VM, True)]
    )
    wait_for("it is known where it runs", lambda: resident.vms() == {VM: {"core": 0}})
    equal(senders_rule(b.switch), None, "the rule where the virtual machine is")
    equal(tos_on_the_wire(), dscp6(VM, True), "the outer ToS")
    wait_for(
        "packets meet the entry",
        lambda: client.ping("10.1.0.2", 1) and resident.ask("flows")["entries"][0]["packets"] > 0,
    )
    # Who steers the wire from now on is told anew where the virtual machine runs, and gets the
    # controller's entry.
    resident.process.kill()
    resident.process.wait()
    resident = Resident(lab, b.switch)
    wait_for("the next one knows where it runs", lambda: resident.vms() == {VM: {"core": 0}})
    wait_for(
        "the next one has the entry", lambda: resident.entries() == [(f"fcf_vm={VM}", VM, True)]
    )
    # Another core, and no priority any more.
    b.vm("vm-p", vm_id=VM, vm_core=1, tenant_id=7)
    wait_for(
        "the sender's rule changes", lambda: noted(VM, False) in (senders_rule(a.switch) or "")
    )
    wait_for("the entry changes", lambda: resident.entries() == [(f"fcf_vm={VM}", VM, False)])
    wait_for("its core is another", lambda: resident.vms() == {VM: {"core": 1}})
    equal(tos_on_the_wire(), dscp6(VM, False), "the outer ToS after the change")
    # It starts at A before it stops at B, as in a live migration.
    a.vm("client-p", vm_id=VM, vm_core=0)
    wait_for("the other host marks", lambda: noted(VM, False) in (senders_rule(b.switch) or ""))
    wait_for("its own host does not", lambda: senders_rule(a.switch) is None)
    wait_for("its entry has gone", lambda: resident.entries() == [])
    b.vm("vm-p")
    wait_for("it is gone from B", lambda: said(r"host 2: VM 5 stopped"))
    check(
        noted(VM, False) in senders_rule(b.switch),
        "what stopped elsewhere changed the rule:",
        senders_rule(b.switch),
    )
    a.vm("client-p")
    wait_for(
        "no rule is left", lambda: senders_rule(b.switch) is None and senders_rule(a.switch) is None
    )
    # And back at B.
    b.vm("vm-p", vm_id=VM, vm_core=1)
    wait_for("the sender marks again", lambda: noted(VM, False) in (senders_rule(a.switch) or ""))
    b.vm("vm-p")
    wait_for(
        "all has gone",
        lambda: (
            senders_rule(a.switch) is None and resident.entries() == [] and resident.vms() == {}
        ),
    )
    equal(tos_on_the_wire(), 0, "the outer ToS in the end")
    check(not said("refuses"), "the switches refused something")
    # Ids beyond the layout are steered by what is inside.
    b.vm("vm-p", vm_id=40)
    wait_for("it is heard of", lambda: said("host 2: VM 40 started"))
    equal(resident.entries(), [], "entries for a virtual machine whose address nobody knows")


class Client(Connection):
    """A connection of OpenFlow 1.0 that speaks the extension."""

    def say(self, kind, body=b"", xid=1):
        """A message of the extension."""
        self.socket.sendall(
            header(VENDOR, 8 + len(body), xid) + struct.pack("!II", EXPERIMENTER, kind) + body
        )

    def hears(self, wanted):
        """The body of the next message of this kind."""
        while True:
            message = self.wait_for(VENDOR)
            experimenter, kind = struct.unpack_from("!II", message, 8)
            equal(experimenter, EXPERIMENTER, "whose message")
            if kind == wanted:
                return message[16:]

    def capabilities(self):
        """What the host can do."""
        self.say(CAPABILITIES_REQUEST)
        return struct.unpack_from("!HHBBBBI", self.hears(CAPABILITIES_REPLY))

    def wants_port_status(self):
        """Port status, and what comes beside it, is for who has set a miss send length."""
        self.socket.sendall(header(9, 4, 2) + struct.pack("!HH", 0, 128))

    def mode(self, mode):
        """Chooses a mode; the reply's mode, source and controllers' choice."""
        self.say(MODE_REQUEST, struct.pack("!B7x", mode))
        return struct.unpack_from("!BBB", self.hears(MODE_REPLY))

    def proxied(self, kind, name, inner, xid):
        """A packet-out for a steering table."""
        action = struct.pack("!HHIHBx16s4x", 0xFFFF, 32, EXPERIMENTER, 2, kind, name.encode())
        body = struct.pack("!IHH", 0xFFFFFFFF, 0xFFFF, len(action)) + action + inner
        self.socket.sendall(header(PACKET_OUT, len(body), xid) + body)

    def add_marking(self, vm, flags=0, xid=3):
        """A rule that sets a field and sends to port 2."""
        actions = struct.pack("!HHIHHB3x", 0xFFFF, 16, EXPERIMENTER, 1, vm, flags) + struct.pack(
            "!HHHH", 0, 8, 2, 0
        )
        match = struct.pack(
            "!IH6s6sHBxHBBxxIIHH", 0x3FFFFF, 0, bytes(6), bytes(6), 0, 0, 0, 0, 0, 0, 0, 0, 0
        )
        body = match + struct.pack("!QHHHHIHH", 0, 0, 0, 0, 100, 0xFFFFFFFF, 0xFFFF, 0) + actions
        self.socket.sendall(header(FLOW_MOD, len(body), xid) + body)

    def told(self, xid):
        """The errors up to a barrier: transaction, type, code, data."""
        self.errors.clear()
        self.barrier(xid)
        return [
            (
                struct.unpack_from("!I", error, 4)[0],
                *struct.unpack_from("!HH", error, 8),
                error[12:],
            )
            for error in self.errors
        ]


def steering_mod(match, precedence=1, command=0, how=0, core=NO_CORE, vm=0xFFFF):
    """A whole STEERING_MOD of 1.0."""
    text = match.encode()
    body = (
        struct.pack("!QBBHIHHHHH", 7, command, how, precedence, core, 0, 0, vm, 0, len(text)) + text
    )
    body += bytes(-len(body) % 8)
    return header(VENDOR, 8 + len(body), 99) + struct.pack("!II", EXPERIMENTER, STEERING_MOD) + body


def talks(switch, bridge="br0"):
    """A connection to a bridge."""
    return Client(f"{switch.directory}/{bridge}.mgmt", 20)


@test(timeout=60)
def messages_of_1_0(lab):
    """Capabilities; modes, which the database goes before; packet-outs for steering tables, whose
    errors name the message inside and come before barriers."""
    ours(lab)
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "other_config:sluice-fcf-layout=tos8")
    switch.bridge("br1", "fail_mode=secure")
    client = talks(switch)
    cores, workers, mode, source, layouts, layout, abilities = client.capabilities()
    equal(
        (cores, workers, mode, source, layouts, layout),
        (os.cpu_count(), 1, AUTO, 0, 7, 2),
        "capabilities",
    )
    check(abilities & 16 and not abilities & 1, f"abilities {abilities:#x}")
    equal(client.mode(NO_MODE), (AUTO, 0, NO_MODE), "the mode at first")
    equal(client.mode(RSS), (RSS, 1, RSS), "a controller's mode")
    check("(rss asked for)" in switch.appctl("sluice/steering"), switch.appctl("sluice/steering"))
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:sluice-steering=off")
    wait_for("the database's mode", lambda: "(off asked for)" in switch.appctl("sluice/steering"))
    equal(
        client.mode(ADAPTIVE), (OFF, 2, ADAPTIVE), "a controller's mode where the database has one"
    )
    switch.vsctl("remove", "Open_vSwitch", ".", "other_config", "sluice-steering")
    wait_for(
        "the controller's mode", lambda: "(adaptive asked for)" in switch.appctl("sluice/steering")
    )
    # Nobody but the datapath, which has no table, and a device that nobody steers.
    good, strange = steering_mod("vni=5"), steering_mod("colour=3")
    client.proxied(0, "", good, 1001)
    client.proxied(1, "nobody0", good, 1002)
    client.proxied(1, "nobody0", strange, 1003)
    client.proxied(1, "nobody0", good[:-8], 1004)
    client.proxied(1, "nobody0", header(0, 0, 5), 1005)
    errors = [
        (1001, 3, 2, good),
        (1002, 2, 4, good),
        (1003, 0xB0C2, 0, strange),
        (1004, 1, 6, good[:-8]),
        (1005, 1, 1, header(0, 0, 5)),
    ]
    found = client.told(50)
    equal(
        [(xid, kind) for xid, kind, _, _ in found],
        [(xid, kind) for xid, kind, _, _ in errors],
        "errors",
    )
    for got, wanted in zip(found, errors):
        # Nicira's envelope of 1.0 has type and code of its own in front.
        data = got[3][8:] if wanted[1] == 0xB0C2 else got[3]
        equal(data, wanted[3], f"the data of the error of {wanted[0]}")
    # The same as a rule's action: nothing is steered by that.
    equal(
        switch.ofctl(
            "add-flow", "br0", "actions=note:02.53.4c.01.00.80,output:1", ok=False
        ).returncode,
        1,
        "a VM id above what the layout has room for",
    )
    client.add_marking(127, 1)
    client.add_marking(128)
    equal(
        [error[:3] for error in client.told(51)],
        [(3, 2, 5)],
        "a VM id above what the layout has room for",
    )
    other = talks(switch, "br1")
    other.add_marking(1)
    equal(
        [error[:3] for error in other.told(52)], [(3, 2, 6)], "a field in a bridge without a layout"
    )
    # Who knows the extension sees the action, others a note.
    check(noted(127, True) in switch.rules("br0")[0], switch.rules("br0"))
    client.socket.sendall(
        header(STATS, 48, 60)
        + struct.pack(
            "!HHIH6s6sHBxHBBxxIIHHBxH",
            1,
            0,
            0x3FFFFF,
            0,
            bytes(6),
            bytes(6),
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            255,
            0xFFFF,
        )
    )
    check(
        struct.pack("!IHHB", EXPERIMENTER, 1, 127, 1) in client.wait_for(STATS_ANSWER, 60),
        "the action in the dump of who knows it",
    )
    switch.ofctl("--strict", "del-flows", "br0", "priority=100")
    switch.ofctl("add-flow", "br0", f"actions={noted(3, False)},output:1")
    check(noted(3, False) in switch.rules("br0")[0], "a note that was added:", switch.rules("br0"))


def datagram(tos):
    """An IP packet with this ToS."""
    return ipv4(
        "10.1.0.1", "10.1.0.2", UDP, struct.pack("!HHHH", 1000, 9, 38, 0) + b"x" * 30, tos=tos
    )


def tagged(frame):
    """The tags of a frame, the outermost first."""
    tags, at = [], 12
    while frame[at : at + 2] == b"\x81\x00":
        tags.append(struct.unpack_from("!H", frame, at + 2)[0])
        at += 4
    return tags


@test(timeout=90)
def ports_write_clear_and_take_off_the_field(lab):
    """In each layout: what rules mark has the field on the underlay, what guests forge has not, and
    what is delivered has none. Without a layout all stays."""
    ours(lab)
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    guest, underlay, other = switch.raw_hosts(3)
    second = switch.get("Interface", "p2", "name")
    switch.vsctl("set", "Interface", second, "other_config:sluice-fcf-underlay=true")

    def packet(tos, tags=()):
        return ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x800, datagram(tos), vlans=tags)

    def carried(sender, receiver, frame):
        """What arrives of a frame: its tags and its ToS, with a right checksum."""
        receiver.drain()
        sender.send(frame)
        arrived = receiver.receive(5, lambda got: got[:6] == frame[:6], until=1)
        equal(len(arrived), 1, "frames that arrive")
        tags = tagged(arrived[0])
        header_at = 14 + 4 * len(tags)
        total = sum(struct.unpack("!10H", arrived[0][header_at : header_at + 20]))
        equal((total & 0xFFFF) + (total >> 16), 0xFFFF, "what the IPv4 header adds up to")
        return tags, arrived[0][header_at + 1]

    def rules(mark=None):
        marking = f"{mark}," if mark else ""
        switch.flows(
            f"in_port=1,actions={marking}output:2",
            "in_port=2,actions=output:1",
            "in_port=3,actions=output:1",
        )

    rules()
    equal(carried(guest, underlay, packet(0xFD)), ([], 0xFD), "a guest's ToS without a layout")
    equal(carried(underlay, guest, packet(0xFD)), ([], 0xFD), "the underlay's ToS without a layout")
    for layout, forged, cleared, marked in (
        ("dscp6", 0xFD, 1, 1 | dscp6(VM, True)),
        ("tos8", 0xFD, 0, 0x80 | VM),
    ):
        switch.vsctl("set", "Bridge", "br0", f"other_config:sluice-fcf-layout={layout}")
        rules()
        wait_for(
            f"{layout} holds",
            lambda wanted=cleared, was=forged: (
                carried(guest, underlay, packet(was)) == ([], wanted)
            ),
        )
        equal(
            carried(underlay, guest, packet(forged)), ([], cleared), f"{layout}: what is delivered"
        )
        equal(carried(other, guest, packet(forged)), ([], forged), f"{layout}: between guests")
        rules(noted(VM, True))
        equal(carried(guest, underlay, packet(forged)), ([], marked), f"{layout}: a marked frame")
        switch.flows("in_port=2,actions=in_port")
        equal(
            carried(underlay, underlay, packet(forged)),
            ([], forged),
            f"{layout}: by the underlay and back",
        )
    switch.vsctl("set", "Bridge", "br0", "other_config:sluice-fcf-layout=vlan")
    rules()
    wait_for(
        "vlan holds",
        lambda: carried(guest, underlay, packet(0xFD, [(0x8100, 7)])) == ([0, 7], 0xFD),
    )
    equal(carried(guest, underlay, packet(0xFD)), ([], 0xFD), "vlan: a guest's frame without a tag")
    equal(
        carried(underlay, guest, packet(1, [(0x8100, 0x8005), (0x8100, 7)])),
        ([7], 1),
        "vlan: what is delivered",
    )
    rules(noted(300, True))
    equal(
        carried(guest, underlay, packet(2, [(0x8100, 7)])),
        ([0x8000 | 300, 7], 2),
        "vlan: a marked frame",
    )
    switch.vsctl("remove", "Bridge", "br0", "other_config", "sluice-fcf-layout")
    wait_for("no layout holds", lambda: carried(guest, underlay, packet(0xFD)) == ([], 0xFD))


@test(timeout=60)
def tunnels_have_the_field_outside(lab):
    """Outer headers: the field that a rule sets beside the ECN bits, none where a guest's ToS would
    be inherited, and a tag in the layout `vlan`."""
    ours(lab)
    switch = site(lab, "s")
    far = wired(switch)
    tunnel(switch, "vx0", "vxlan", 2, "key=5", "tos=inherit")
    number = switch.get("Interface", "vx0", "ofport")
    guest, wire = raw_host(switch), far.raw()
    frame = ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x800, datagram(0xB9))

    def outer():
        wire.drain()
        guest.send(frame)
        arrived = wire.receive(2, lambda got: vxlan(5, frame) in got, until=1)
        if not arrived:
            return None
        packet = arrived[0]
        tags = tagged(packet)
        return tags, packet[15 + 4 * len(tags)]

    def rule(mark=""):
        switch.flows(f"in_port=in,actions={mark}output:{number}", bridge="br-int")

    rule()
    # The underlay's routes and neighbours may be news yet.
    wait_for("a frame arrives", outer)
    equal(outer(), ([], 0xB9), "the inherited ToS without a layout")
    switch.vsctl("set", "Bridge", "br-int", "other_config:sluice-fcf-layout=dscp6")
    wait_for("no field is inherited", lambda: outer() == ([], 1))
    rule(noted(VM, True) + ",")
    equal(outer(), ([], dscp6(VM, True) | 1), "the field")
    switch.vsctl("set", "Bridge", "br-int", "other_config:sluice-fcf-layout=tos8")
    wait_for("another layout", lambda: outer() == ([], 0x80 | VM))
    switch.vsctl("set", "Bridge", "br-int", "other_config:sluice-fcf-layout=vlan")
    wait_for("a tag", lambda: outer() == ([0x8000 | VM], 0xB9))
    rule()
    equal(outer(), ([], 0xB9), "without a field")


@test(timeout=90, dpdk=True)
def a_guests_core_is_that_of_its_process(lab):
    """A vhost-user interface with `vm-id`: its core is where the process behind its socket runs,
    and the controller hears when that is another."""
    ours(lab)
    if os.cpu_count() < 2:
        raise Skip("one core: it can be nowhere else")
    switch = lab.switch()
    switch.enable_dpdk(cores=1)
    switch.bridge("br0", "fail_mode=secure")
    client = talks(switch)
    client.capabilities()
    client.wants_port_status()
    allowed = os.sched_getaffinity(0)

    def status():
        return struct.unpack_from("!BBHIII", client.hears(VM_STATUS))

    def runs_on(core):
        os.sched_setaffinity(0, {core})
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline:
            pass

    guest = FrontEnd(f"{switch.directory}/v1.sock").listen()
    try:
        runs_on(1)
        number = switch.port(
            "v1",
            "type=dpdkvhostuserclient",
            f"options:vhost-server-path={guest.path}",
            "external_ids:vm-id=9",
            "external_ids:tenant-id=3",
            "external_ids:priority=true",
        )
        equal(status(), (0, 1, 9, number, 3, NO_CORE), "before anybody is there")
        guest.accept().start()
        equal(status(), (1, 1, 9, number, 3, 1), "where its process runs")
        runs_on(0)
        equal(status(), (1, 1, 9, number, 3, 0), "where it has moved to")
        switch.vsctl("set", "Interface", "v1", "external_ids:vm-core=1")
        equal(status(), (1, 1, 9, number, 3, 1), "what the database says goes first")
        switch.vsctl("set", "Interface", "v1", "external_ids:vm-id=10")
        equal([status()[:3], status()[:3]], [(2, 1, 9), (0, 1, 10)], "another virtual machine")
        late = talks(switch)
        late.capabilities()
        equal(
            struct.unpack_from("!BBHIII", late.hears(VM_STATUS)),
            (0, 1, 10, number, 3, 1),
            "what who comes later hears",
        )
        switch.vsctl("del-port", "v1")
        equal(status()[:3], (2, 1, 10), "its port goes")
    finally:
        os.sched_setaffinity(0, allowed)
        guest.close()


@test(timeout=60)
def machines_that_change_ports_stop_before_they_start(lab):
    """Of two ports with one number the one that has had it keeps it; a machine that goes to another
    port in one transaction stops at the one before it starts at the other, whatever their names."""
    ours(lab)
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    client = talks(switch)
    client.capabilities()
    client.wants_port_status()
    switch.raw_hosts(2)
    ports = {name: switch.get("Interface", name, "ofport") for name in ("p1", "p2")}

    def status():
        reason, _, vm, port, _, core = struct.unpack_from("!BBHIII", client.hears(VM_STATUS))
        return reason, vm, port, core

    def moves(there, back):
        switch.vsctl(
            "set",
            "Interface",
            there,
            "external_ids:vm-id=5",
            "external_ids:vm-core=0",
            "--",
            "remove",
            "Interface",
            back,
            "external_ids",
            "vm-id",
        )
        equal(
            [status(), status()],
            [(2, 5, ports[back], 0), (0, 5, ports[there], 0)],
            f"from {back} to {there}",
        )

    switch.vsctl("set", "Interface", "p2", "external_ids:vm-id=5", "external_ids:vm-core=0")
    equal(status(), (0, 5, ports["p2"], 0), "it starts")
    switch.vsctl("set", "Interface", "p1", "external_ids:vm-id=5")
    wait_for("the second one is refused", lambda: "5 is the virtual machine of p2" in switch.log())
    check(
        "external_ids:vm-id" in str(switch.get("Interface", "p1", "status")),
        switch.get("Interface", "p1", "status"),
    )
    switch.vsctl("remove", "Interface", "p1", "external_ids", "vm-id")
    moves("p1", "p2")
    moves("p2", "p1")
    # Cores that there are not are said, and not taken.
    switch.vsctl("set", "Interface", "p2", "external_ids:vm-core=4000")
    equal(status(), (1, 5, ports["p2"], NO_CORE), "without its core")
    wait_for("it is said", lambda: "there is no core 4000" in switch.log())
