"""What the tests of tunnels stand on: sites (a daemon with a bridge `br-phy`, whose local port has
the underlay's address, and a bridge `br-int` for tunnels and hosts), the wire between two of them,
frames as tunnels carry them (made and taken apart by hand), and a TCP transfer whose every byte is
compared."""

import hashlib
import ipaddress
import socket
import struct
import threading

from harness import (
    PATIENCE,
    Failure,
    becomes,
    check,
    equal,
    ethernet,
    inside,
    mac,
    switchd_command,
    wait_for,
)

WIRE = "wire"  # the underlay's port on either side
MTU = 1400  # of hosts: leaves room for every header that is pushed
VXLAN, GENEVE, GTPU = 4789, 6081, 2152
UDP, GRE = 17, 47
MARK = 0x88B5  # an Ethernet type for experiments: what the tests' own frames have


def underlay(number, ip6=False):
    """The underlay's address of the site or namespace of this number."""
    return f"fd09::{number}" if ip6 else f"10.9.0.{number}"


def site(lab, name="s", number=1, reference=False, ip6=False, **options):
    """A daemon with br-phy (the underlay's address number `number` at its local port) and br-int.
    With `reference` it is Open vSwitch, whatever is under test."""
    if reference:
        options["command"] = switchd_command("ovs")
    switch = lab.switch(name, **options)
    switch.number, switch.ip6 = number, ip6
    switch.bridge("br-phy")
    switch.bridge("br-int")
    switch.namespace.run("ip link set br-phy up")
    if ip6:
        switch.namespace.run("sysctl -qw net/ipv6/conf/br-phy/disable_ipv6=0")
    give_address(switch)
    return switch


def give_address(switch, address=None, change="add"):
    """Gives br-phy's local port its underlay address, or another (with its prefix length)."""
    usual = underlay(switch.number, switch.ip6) + ("/64" if switch.ip6 else "/24")
    options = ["nodad"] if switch.ip6 and change == "add" else []
    switch.namespace.run(["ip", "address", change, address or usual, "dev", "br-phy", *options])


def join(first, second):
    """The wire between two sites."""
    first.namespace.run(
        [
            "ip",
            "link",
            "add",
            WIRE,
            "type",
            "veth",
            "peer",
            "name",
            WIRE,
            "netns",
            second.namespace.name,
        ]
    )
    for switch in (first, second):
        switch.namespace.run(["ip", "link", "set", WIRE, "up"])
        switch.port(WIRE, bridge="br-phy")


def wired(switch, name="far", number=2):
    """A namespace without a daemon at the other end of the site's wire, with the underlay's address
    of that number at its eth0. What it sends has no checksum left to do."""
    far = switch.lab.namespace(name)
    if not switch.ip6:
        far.quiet()
    address = underlay(number, switch.ip6) + ("/64" if switch.ip6 else "/24")
    switch.link(far, WIRE, bridge="br-phy", **{"ip6" if switch.ip6 else "ip": address})
    no_offloads(far)
    return far


def host(switch, name, number, offloads=False):
    """A host at br-int with the address 10.1.0.NUMBER (and fd01::NUMBER), in front of which nothing
    is left to the device unless `offloads`: Open vSwitch 3.1 drops such frames before tunnels
    (`Tunneling packets with HW offload flags is not supported`)."""
    found = switch.lab.host(
        name, switch, ip=f"10.1.0.{number}/24", ip6=f"fd01::{number}/64", bridge="br-int", mtu=MTU
    )
    if not offloads:
        no_offloads(found)
    return found


def no_offloads(namespace, device="eth0"):
    """The device gets every checksum done and no large segment."""
    namespace.run(["ethtool", "-K", device, "tx", "off", "tso", "off", "gso", "off"])


def raw_host(switch, name="h", device="in"):
    """A raw socket at a port of br-int, where only the test's own frames are."""
    there = switch.lab.namespace(name).quiet()
    switch.pair(there, device)
    switch.port(device, bridge="br-int")
    return there.raw()


def tunnel(switch, name, kind, remote=None, *options, bridge="br-int", settings=(), ok=True):
    """Adds a tunnel to an address (or the site's peer of that number) and returns its OpenFlow
    number."""
    if isinstance(remote, int):
        remote = underlay(remote, switch.ip6)
    words = [f"type={kind}", *settings]
    for option in ([f"remote_ip={remote}"] if remote else []) + list(options):
        key, _, value = option.partition("=")
        words.append(f'options:{key}="{value}"')
    if ok:
        return switch.port(name, *words, bridge=bridge)
    return switch.vsctl("add-port", bridge, name, "--", "set", "Interface", name, *words, ok=False)


def transfer(client, server, target, size=4 << 20, seconds=20):
    """Sends so many bytes by TCP and fails the test unless all arrive as they were sent."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    data = hashlib.shake_128(b"sluice").digest(1 << 16) * (size >> 16)
    got = hashlib.sha256()
    with inside(server):
        listener = socket.create_server((target, 0), family=family)
    with inside(client):
        connection = socket.socket(family)
    for each in (listener, connection):
        each.settimeout(seconds * PATIENCE)
    failures = []

    def serve():
        try:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(seconds * PATIENCE)
                while piece := peer.recv(1 << 18):
                    got.update(piece)
        except OSError as problem:
            failures.append(f"receiving: {problem}")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with connection:
            connection.connect((target, listener.getsockname()[1]))
            connection.sendall(data)
    except OSError as problem:
        failures.append(f"sending: {problem}")
    thread.join(seconds * PATIENCE)
    listener.close()
    check(
        not failures and not thread.is_alive(),
        f"TCP from {client.name} to {target}:",
        "; ".join(failures) or "the receiver hangs",
    )
    equal(got.hexdigest(), hashlib.sha256(data).hexdigest(), f"bytes from {client.name}")


def both_ways(first, second, *addresses):
    """Pings and sends some megabytes by TCP in both directions; no checksum is wrong. `addresses`
    are those of first and second."""
    first.reaches(addresses[1])
    first.ping(addresses[1], 5)
    second.ping(addresses[0], 5)
    first.ping(addresses[1], 3, size=1200)
    transfer(first, second, addresses[1])
    transfer(second, first, addresses[0])
    for each in (first, second):
        equal(each.checksum_errors(), {}, f"bad checksums counted in {each.name}")


# Frames as they are on the wire.


def checksum(data):
    """The internet checksum of some bytes."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packed(address):
    """The bytes of an address."""
    return ipaddress.ip_address(address).packed


def ipv4(source, destination, protocol, payload, tos=0, ttl=64, fragment=0x4000):
    """An IPv4 packet."""

    def head(check_value):
        return struct.pack(
            "!BBHHHBBH4s4s",
            0x45,
            tos,
            20 + len(payload),
            0,
            fragment,
            ttl,
            protocol,
            check_value,
            packed(source),
            packed(destination),
        )

    return head(checksum(head(0))) + payload


def ipv6(source, destination, protocol, payload, tos=0, ttl=64):
    """An IPv6 packet."""
    return (
        struct.pack(
            "!IHBB16s16s",
            6 << 28 | tos << 20,
            len(payload),
            protocol,
            ttl,
            packed(source),
            packed(destination),
        )
        + payload
    )


def ip(source, destination, protocol, payload, **fields):
    """A packet of the addresses' version."""
    return (ipv6 if ":" in source else ipv4)(source, destination, protocol, payload, **fields)


def udp_sum(source, destination, datagram):
    """The checksum of a UDP datagram whose own field is as it is: 0 when that is right."""
    pseudo = packed(source) + packed(destination) + struct.pack("!II", len(datagram), UDP)
    return checksum(pseudo + datagram)


def udp(source, destination, port, payload, sport=40000, sum_value=0):
    """A UDP datagram in an IP packet; with sum_value None its checksum is right."""

    def datagram(value):
        return struct.pack("!HHHH", sport, port, 8 + len(payload), value) + payload

    if sum_value is None:
        sum_value = udp_sum(source, destination, datagram(0)) or 0xFFFF
    return ip(source, destination, UDP, datagram(sum_value))


def vxlan(vni, inner, flags=0x08000000, rest=0):
    """A VXLAN header and what it carries."""
    return struct.pack("!II", flags, vni << 8 | rest) + inner


def geneve_option(cls, kind, data):
    """An option of Geneve."""
    return struct.pack("!HBB", cls, kind, len(data) // 4) + data


def geneve(vni, inner, options=b"", critical=False, length=None, protocol=0x6558, version=0):
    """A Geneve header and what it carries; `length` is what it says of its options, in words."""
    words = len(options) // 4 if length is None else length
    return (
        struct.pack("!BBHI", version << 6 | words, 0x40 if critical else 0, protocol, vni << 8)
        + options
        + inner
    )


def gre(inner, key=None, flags=0, protocol=0x6558, extra=b""):
    """A GRE header and what it carries; `extra` stands between both."""
    if key is not None:
        flags |= 0x2000
        extra += struct.pack("!I", key)
    return struct.pack("!HH", flags, protocol) + extra + inner


def marked(number, source="02:00:00:00:00:01", destination="02:00:00:00:00:02", size=60):
    """A frame that is known again by its number."""
    return ethernet(destination, source, MARK, struct.pack("!I", number) + bytes(size))


def mark_of(frame):
    """The number of a marked frame, or None."""
    found = frame[12:14] == struct.pack("!H", MARK) and len(frame) >= 18
    return struct.unpack("!I", frame[14:18])[0] if found else None


def arp(
    operation,
    sender_mac,
    sender,
    target,
    target_mac="00:00:00:00:00:00",
    destination="ff:ff:ff:ff:ff:ff",
):
    """An ARP frame: operation 1 asks, 2 answers."""
    return ethernet(
        destination,
        sender_mac,
        0x0806,
        struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        + mac(sender_mac)
        + packed(sender)
        + mac(target_mac)
        + packed(target),
    )


def icmp6(source, destination, payload):
    """An ICMPv6 message of neighbour discovery, whose checksum is right."""
    pseudo = packed(source) + packed(destination) + struct.pack("!II", len(payload), 58)
    payload = payload[:2] + struct.pack("!H", checksum(pseudo + payload)) + payload[4:]
    return ipv6(source, destination, 58, payload, ttl=255)


class Outer:
    """What is on the wire around a tunnel's frame: addresses, IP's fields and UDP's or GRE's, and
    the tunnel header with what it carries (`tunnel`)."""

    def __init__(self, frame):
        self.frame = frame
        self.destination_mac, self.source_mac = frame[:6].hex(":"), frame[6:12].hex(":")
        kind = struct.unpack("!H", frame[12:14])[0]
        packet = frame[14:]
        if kind == 0x0800:
            (length, self.id, fragment, self.ttl, self.protocol, _, source, destination) = (
                struct.unpack("!HHHBBH4s4s", packet[2:20])
            )
            self.tos, self.df = packet[1], bool(fragment & 0x4000)
            equal(checksum(packet[:20]), 0, "what the outer IPv4 header adds up to")
            body = packet[20:length]
        elif kind == 0x86DD:
            first, length, self.protocol, self.ttl, source, destination = struct.unpack(
                "!IHBB16s16s", packet[:40]
            )
            self.tos, self.df, self.label = first >> 20 & 0xFF, None, first & 0xFFFFF
            body = packet[40 : 40 + length]
        else:
            raise Failure(f"no IP packet: {frame.hex()}")
        self.source = str(ipaddress.ip_address(source))
        self.destination = str(ipaddress.ip_address(destination))
        if self.protocol == UDP:
            self.sport, self.port, length, self.sum = struct.unpack("!HHHH", body[:8])
            equal(length, len(body), "the outer UDP length")
            self.sum_is_right = udp_sum(self.source, self.destination, body) == 0
            self.tunnel = body[8:]
        else:
            self.tunnel = body


def outers(raw, count=1, seconds=5, protocol=UDP, port=None):
    """So many tunnel packets that arrive at a raw socket on the wire."""

    def wanted(frame):
        kind, at = frame[12:14], 23 if frame[12:14] == b"\x08\x00" else 20
        if kind not in (b"\x08\x00", b"\x86\xdd") or frame[at] != protocol:
            return False
        return port is None or Outer(frame).port == port

    return [Outer(frame) for frame in raw.receive(seconds, wanted, until=count)]


def absorb(namespace, *ports, ip6=False):
    """UDP sockets in a namespace that take what comes to these ports, lest its kernel answers that
    nobody does."""
    found = []
    with inside(namespace):
        for port in ports:
            taker = socket.socket(socket.AF_INET6 if ip6 else socket.AF_INET, socket.SOCK_DGRAM)
            taker.bind(("", port))
            found.append(taker)
    return found


class Watched:
    """A site under test whose wire is watched by a raw socket, and a raw host at its br-int. What
    the host sends leaves by the tunnel `tun`, what comes out of that goes to the host, if the test
    sets no other rules."""

    def __init__(self, lab, ip6=False, ports=(VXLAN, GENEVE, GTPU)):
        self.switch = site(lab, ip6=ip6)
        self.far = wired(self.switch)
        self.takers = absorb(self.far, *ports, ip6=ip6)
        self.wire = self.far.raw()
        self.host = raw_host(self.switch)
        self.here, self.there = underlay(1, ip6), underlay(2, ip6)
        self.mac, self.far_mac = self.switch.namespace.address("br-phy"), self.far.address()
        self.number = 0

    def pushed(self, frame=None, protocol=UDP, port=None, seconds=10, host=None):
        """What leaves for a frame of the host (a marked one by default): sent until it comes, as
        the first is lost while the neighbour is asked for."""
        self.number += 1
        frame = frame or marked(self.number)

        def attempt():
            # What loops have made of others may be more than is looked at below.
            self.wire.drain()
            (host or self.host).send(frame)
            found = [
                outer
                for outer in outers(self.wire, 1, 0.3, protocol, port)
                if outer.tunnel.endswith(frame[14:])
            ]
            return found[-1] if found else None

        return wait_for("a frame leaves through the tunnel", attempt, seconds)

    def push_none(self, protocol=UDP, seconds=0.5):
        """Fails the test if a frame of the host leaves by a tunnel."""
        self.number += 1
        self.wire.drain()
        self.host.send(marked(self.number))
        equal(
            [outer.frame.hex() for outer in outers(self.wire, 1, seconds, protocol)],
            [],
            "what leaves",
        )

    def inject(self, *packets, source=None, destination=None):
        """Puts packets on the wire for the site."""
        for packet in packets:
            kind = 0x86DD if packet[0] >> 4 == 6 else 0x0800
            self.wire.send(ethernet(destination or self.mac, source or self.far_mac, kind, packet))

    def udp(self, port, payload, **fields):
        """A datagram from the far end."""
        return udp(
            fields.pop("source", self.there),
            fields.pop("destination", self.here),
            port,
            payload,
            **fields,
        )

    def arrives(self, number, seconds=5):
        """The marked frame of this number as it arrives at the host, or None."""
        frames = self.host.receive(seconds, lambda frame: mark_of(frame) == number, until=1)
        return frames[0] if frames else None

    def comes_in(self, packet, number, what="a packet"):
        """A packet from the wire gets the frame it carries, of this number, to the host; returns
        that. It is sent until that comes: Open vSwitch may lose some while what it has cached of
        former settings is revalidated."""

        def attempt():
            self.inject(packet)
            return self.arrives(number, 0.4)

        return wait_for(f"what {what} carries arrives", attempt)

    def leaves(self, what, get, wanted, frame=None, **options):
        """Waits until what leaves for a frame of the host is as wanted, after a change that caches
        may not know yet."""
        becomes(lambda: get(self.pushed(frame, **options)), wanted, what)

    def stays_out(self, what, number, *packets):
        """Packets from the wire do not get the frame of this number to the host."""
        self.inject(*packets)
        frame = self.arrives(number, 0.3)
        check(frame is None, f"{what}: what it carries arrives: {frame and frame.hex()}")


# Two sites.


def sites(lab, ip6=False, reference=True):
    """The daemon under test (`s`, number 1) and Open vSwitch (`o`, number 2; without `reference`
    one more of those under test), joined."""
    here, there = site(lab, "s", 1, ip6=ip6), site(lab, "o", 2, reference=reference, ip6=ip6)
    join(here, there)
    return here, there


def carries(sender, receiver, number, seconds=10, **fields):
    """The frame that comes out at the raw host of `receiver` for a marked one put in at that of
    `sender`. The first may be lost while the underlay's neighbour is asked for, so that it is sent
    until it comes."""

    def attempt():
        sender.raw.send(marked(number, **fields))
        return receiver.raw.receive(0.3, lambda frame: mark_of(frame) == number, until=1)

    return wait_for(f"a frame from {sender.name} reaches {receiver.name}", attempt, seconds)[0]
