"""Hundreds of kernel ports: what one port's coming, going and silence costs the others is
bounded."""

import re
import socket
import struct
import threading

from harness import becomes, check, equal, ethernet, inside, test, wait_for
from openflow_client import ECHO_REPLY, ECHO_REQUEST, Connection, header

SET_CONFIG, PORT_STATUS = 9, 12
ETHERTYPE = 0x88B5
# Ports that have a ring of 2 MiB although they are quiet, at most.
FEW_RINGS = 16
RING_KB = 2048


def pairs(switch, count, hosts, others):
    """Veth pairs: p1 and so on are to be ports, their peers e1 and so on are with the hosts, one
    each, and the rest with the others."""
    lines = []
    for number in range(1, count + 1):
        peer = hosts[number - 1] if number <= len(hosts) else others
        lines += [
            f"link add p{number} type veth peer name e{number} netns {peer.name}",
            f"link set p{number} up",
        ]
    switch.namespace.run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n", seconds=120)
    for index, host in enumerate(hosts, 1):
        host.run(
            ["ip", "-batch", "-"],
            stdin=f"link set e{index} up\naddr add 10.8.0.{index}/24 dev e{index}\n",
        )
    ups = [f"link set e{number} up" for number in range(len(hosts) + 1, count + 1)]
    others.run(["ip", "-batch", "-"], stdin="\n".join(ups) + "\n", seconds=120)


def add(switch, numbers, ok=True):
    """All ports in one transaction."""
    words = [word for number in numbers for word in ("--", "add-port", "br0", f"p{number}")]
    return switch.vsctl(*words[1:], seconds=60, ok=ok)


def ring_kb(switch):
    """Memory of receive rings that the daemon has mapped."""
    total, ring = 0, False
    with open(f"/proc/{switch.process.pid}/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                ring = "socket:" in line
            elif ring and line.startswith("Size:"):
                total += int(line.split()[1])
    return total


class Watcher:
    """Reads an OpenFlow connection, asks for an echo as often as one is answered, and notes what
    comes in which order."""

    def __init__(self, path):
        self.connection, self.kinds, self.stopped = Connection(path), [], threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.connection.socket.settimeout(1)
        # Who says how much of a packet it wants is told of ports, too.
        self.connection.socket.sendall(header(SET_CONFIG, 4, 0) + struct.pack("!HH", 0, 128))
        self.ask()
        self.thread.start()

    def ask(self):
        """One more echo."""
        self.connection.socket.sendall(header(ECHO_REQUEST, 0, 1))

    def work(self):
        """Until stopped, and nothing has come for a second."""
        data = b""
        while True:
            try:
                data += self.connection.socket.recv(1 << 16)
            except TimeoutError:
                if self.stopped.is_set():
                    return
            while len(data) >= 4 and len(data) >= (length := struct.unpack("!H", data[2:4])[0]):
                kind, data = data[1], data[length:]
                self.kinds.append(kind)
                if kind == ECHO_REPLY and not self.stopped.is_set():
                    self.ask()

    def stop(self):
        """What has come: the kinds of messages."""
        self.stopped.set()
        self.thread.join(60)
        self.connection.close()
        return self.kinds


@test(timeout=240)
def hundreds_of_ports_come_at_once_and_a_flood_reaches_each_of_them_once(lab):
    """500 ports in one transaction, between whose openings echoes are answered; a flood, a ping,
    memory for quiet ports; and all go at once."""
    count = 500
    switch = lab.switch()
    hosts = [lab.namespace(name).quiet() for name in ("h1", "h2")]
    others = lab.namespace("others").quiet()
    pairs(switch, count, hosts, others)
    switch.bridge()
    watcher = Watcher(f"{switch.directory}/br0.mgmt")
    add(switch, range(1, count + 1))
    kinds = watcher.stop()
    added = [place for place, kind in enumerate(kinds) if kind == PORT_STATUS]
    check(len(added) >= count, f"{len(added)} ports were announced")
    echoes = kinds[added[0] : added[-1]].count(ECHO_REPLY)
    if not switch.is_ovs:
        check(echoes > 0, "no echo was answered while ports came")
    lab.note(f"{echoes} echoes while ports came")
    with inside(others):
        sink = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        sink.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        sink.settimeout(0.5)
    sender = hosts[0].raw("e1")
    for number in range(5):
        sender.send(
            ethernet(
                "ff:ff:ff:ff:ff:ff", "02:00:00:00:00:77", ETHERTYPE, bytes([number]) + bytes(45)
            )
        )
    came = {}

    def receive():
        try:
            while True:
                frame, address = sink.recvfrom(2048)
                came.setdefault(frame[14], []).append(address[0])
        except TimeoutError:
            return sum(map(len, came.values()))

    wait_for("the floods arrive", lambda: receive() >= 5 * (count - 2), 30)
    equal(receive(), 5 * (count - 2), "frames that came of five floods")
    for number in range(5):
        equal(len(set(came[number])), count - 2, f"ends that flood {number} reached")
    hosts[0].reaches("10.8.0.2")
    check(
        switch.is_ovs or ring_kb(switch) <= (FEW_RINGS + 4) * RING_KB,
        f"{ring_kb(switch)} KB of rings",
    )
    # All go, come again, and the daemon ends with them.
    words = [
        word for number in range(1, count + 1) for word in ("--", "del-port", "br0", f"p{number}")
    ]
    switch.vsctl(*words[1:], seconds=60)
    add(switch, range(1, count + 1))
    hosts[0].reaches("10.8.0.2")
    switch.stop()
    switch.start()
    hosts[0].reaches("10.8.0.2", 30)


@test(timeout=120)
def a_port_for_which_there_is_no_descriptor_says_so(lab):
    """Where descriptors run out the ports that cannot be opened are named with the reason, the
    others work, and so do those that come when there is room again."""
    count = 100
    switch = lab.switch(start=False)
    hosts = [lab.namespace(name).quiet() for name in ("h1", "h2")]
    others = lab.namespace("others").quiet()
    pairs(switch, count, hosts, others)
    command = switch.command
    switch.command = ["prlimit", "--nofile=200:200", "--", *command]
    switch.start()
    switch.command = command
    switch.bridge()
    add(switch, range(1, count + 1), ok=False)
    if switch.is_ovs:
        return
    switch.expected.append("Too many open files")

    def failed():
        rows = switch.vsctl(
            "--format=csv", "--no-headings", "--columns=name,error", "list", "Interface"
        ).splitlines()
        return {
            name: error
            for name, error in (row.split(",", 1) for row in rows)
            if "could not open network device" in error
        }

    wait_for("ports have failed", failed)
    for name, error in failed().items():
        check(
            f"could not open network device {name} (Too many open files)" in error,
            f"{name}: {error}",
        )
    lab.note(f"{len(failed())} of {count} could not be opened")
    hosts[0].reaches("10.8.0.2")
    # All that were opened after the hosts' make room.
    words = [word for number in range(3, count) for word in ("--", "del-port", "br0", f"p{number}")]
    switch.vsctl(*words[1:], seconds=60)
    becomes(failed, {}, "ports that have failed")
    hosts[0].reaches("10.8.0.2")
