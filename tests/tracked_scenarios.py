"""Rules and packets of connections, to be sent through two switches (`test_tracked.py`): bridges
br0 (ports 1 to 3, patch port 11 to br1) and br1 (ports 4 to 6, patch port 12)."""

import re
import socket
import struct

from oracle import checksum

ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58
SYN, ACK, FIN, RST = 0x02, 0x10, 0x01, 0x04
OUTSIDE = ("10.0.0.1", "10.0.0.2")
OUTSIDE6 = ("fd00::1", "fd00::2")


def pseudo(source, destination, protocol, data):
    """The checksum of a segment with its addresses."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    addresses = b"".join(socket.inet_pton(family, each) for each in (source, destination))
    return checksum(addresses + struct.pack("!IHBB", len(data), 0, 0, protocol) + data)


def packet(protocol, source, destination, transport):
    """A frame with these addresses; `transport` has its checksum."""
    if ":" in source:
        header = struct.pack("!IHBB", 0x60000000, len(transport), protocol, 64)
        header += b"".join(
            socket.inet_pton(socket.AF_INET6, each) for each in (source, destination)
        )
        kind = 0x86DD
    else:
        addresses = socket.inet_aton(source) + socket.inet_aton(destination)
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(transport), 7, 0, 64, protocol, 0)
        sum_ = checksum(header + addresses)
        header = header[:10] + struct.pack("!H", sum_) + addresses
        kind = 0x0800
    ends = bytes.fromhex("020000000002020000000001")
    return ends + struct.pack("!H", kind) + header + transport


def udp(source, destination, ports=(1000, 53), payload=b"datagram"):
    """A datagram."""
    data = struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload
    sum_ = pseudo(source, destination, UDP, data) or 0xFFFF
    return packet(UDP, source, destination, data[:6] + struct.pack("!H", sum_) + data[8:])


def tcp(source, destination, flags, ports=(1000, 80), seq=100, ack=0):
    """A segment without data."""
    data = struct.pack("!HHIIBBHHH", *ports, seq, ack, 0x50, flags, 8192, 0, 0)
    sum_ = pseudo(source, destination, TCP, data)
    return packet(TCP, source, destination, data[:16] + struct.pack("!H", sum_) + data[18:])


def echo(source, destination, reply=False, number=9):
    """An echo request or reply, of ICMP or ICMPv6."""
    ipv6 = ":" in source
    kind = (129 if reply else 128) if ipv6 else (0 if reply else 8)
    data = struct.pack("!BBHHH", kind, 0, 0, number, 1) + b"ping"
    sum_ = pseudo(source, destination, ICMPV6, data) if ipv6 else checksum(data)
    data = data[:2] + struct.pack("!H", sum_) + data[4:]
    return packet(ICMPV6 if ipv6 else ICMP, source, destination, data)


def unreachable(source, destination, quoted):
    """An ICMP error that quotes a packet of IPv4."""
    data = struct.pack("!BBHI", 3, 3, 0, 0) + quoted[14:42]
    data = data[:2] + struct.pack("!H", checksum(data)) + data[4:]
    return packet(ICMP, source, destination, data)


def both(make, ends, *others):
    """A packet and its answer, by ports 1 and 2."""
    source, destination = ends
    return [(1, make(source, destination, *others)), (2, make(destination, source, *others))]


def states(table, bridge="br0", family="ip"):
    """Rules of a table that tell states apart by the VLAN with which packets leave."""
    port = 3 if bridge == "br0" else 6
    told = (
        "+trk+new-snat-dnat",
        "+trk+new+snat",
        "+trk+new+dnat",
        "+trk+est-rpl-snat-dnat",
        "+trk+est-rpl+snat",
        "+trk+est-rpl+dnat",
        "+trk+est+rpl-snat-dnat",
        "+trk+est+rpl+snat",
        "+trk+est+rpl+dnat",
        "+trk+rel",
        "+trk+inv",
        "-trk",
    )
    rules = [
        (
            bridge,
            f"table={table},priority={50 - vid},{family},ct_state={state},"
            f"actions=mod_vlan_vid:{vid},output:{port}",
        )
        for vid, state in enumerate(told, 1)
    ]
    return [*rules, (bridge, f"table={table},priority=1,actions=mod_vlan_vid:99,output:{port}")]


UDP_PAIR = [*both(udp, OUTSIDE), (1, udp(*OUTSIDE)), (1, udp("10.0.0.2", "10.0.0.1", (53, 1000)))]
ECHOES = [
    (1, echo(*OUTSIDE)),
    (1, echo(*OUTSIDE)),
    (2, echo("10.0.0.2", "10.0.0.1", True)),
    (1, echo(*OUTSIDE)),
]
ECHOES6 = [
    (1, echo(*OUTSIDE6)),
    (1, echo(*OUTSIDE6)),
    (2, echo("fd00::2", "fd00::1", True)),
    (1, echo(*OUTSIDE6)),
]
HANDSHAKE = [
    (1, tcp(*OUTSIDE, SYN)),
    (2, tcp("10.0.0.2", "10.0.0.1", SYN | ACK, (80, 1000), 300, 101)),
    (1, tcp(*OUTSIDE, ACK, seq=101, ack=301)),
    (1, tcp(*OUTSIDE, FIN | ACK, seq=101, ack=301)),
    (2, tcp("10.0.0.2", "10.0.0.1", FIN | ACK, (80, 1000), 301, 102)),
    (1, tcp(*OUTSIDE, SYN, seq=9000)),
    (2, tcp("10.0.0.2", "10.0.0.1", ACK, (80, 1000), 77777777, 1)),
]
HANDSHAKE6 = [
    (1, tcp(*OUTSIDE6, SYN)),
    (2, tcp("fd00::2", "fd00::1", SYN | ACK, (80, 1000), 300, 101)),
    (1, tcp(*OUTSIDE6, ACK, seq=101, ack=301)),
]
PLAIN6 = [*both(udp, OUTSIDE6), *ECHOES6, *HANDSHAKE6]
# With addresses translated. Packets of port 2 begin no connection in these scenarios: which of
# several free ports a connection gets is random.
NATTED = [
    (1, udp(*OUTSIDE)),
    (1, udp(*OUTSIDE)),
    (2, udp("10.0.0.2", "10.0.0.9", (53, 1000))),
    (2, udp("10.0.0.8", "10.0.0.1", (53, 1000))),
    (1, udp(*OUTSIDE)),
    (2, unreachable("10.0.0.2", "10.0.0.9", udp("10.0.0.9", "10.0.0.2"))),
    (2, unreachable("10.0.0.8", "10.0.0.1", udp("10.0.0.1", "10.0.0.8"))),
    (1, echo(*OUTSIDE)),
    (2, echo("10.0.0.2", "10.0.0.9", True)),
    (2, echo("10.0.0.8", "10.0.0.1", True)),
    (1, echo(*OUTSIDE)),
    (1, tcp(*OUTSIDE, SYN)),
    (2, tcp("10.0.0.2", "10.0.0.9", SYN | ACK, (80, 1000), 300, 101)),
    (2, tcp("10.0.0.8", "10.0.0.1", SYN | ACK, (80, 1000), 300, 101)),
    (1, tcp(*OUTSIDE, ACK, seq=101, ack=301)),
    (1, tcp(*OUTSIDE, RST, seq=101)),
]
PLAIN = [*UDP_PAIR, *ECHOES, *HANDSHAKE]


def begins(steps):
    """Packets for these steps, and the steps for packets of port 2."""
    if "10.0." not in steps:
        return PLAIN, steps
    return NATTED, re.sub(r"commit,(force,)?", "", re.sub(r"nat\([^)]*\)", "nat", steps))


# What packets go through before their state is told in table 9: steps in table 0.
WALKS = {
    "plain": "ct(table=9,zone=1)",
    "commit": "ct(commit,zone=1,table=9)",
    "commit, again": "ct(commit,zone=1),ct(table=9,zone=1)",
    "again, commit": "ct(zone=1),ct(commit,zone=1),ct(table=9,zone=1)",
    "other zone": "ct(commit,zone=1),ct(commit,zone=2),ct(table=9,zone=1)",
    "only other zone": "ct(commit,zone=1),ct(table=9,zone=2)",
    "clear": "ct(commit,zone=1),ct_clear,ct(table=9,zone=1)",
    "force": "ct(commit,force,zone=1,table=9)",
    "force after commit": "ct(commit,zone=1),ct(commit,force,zone=1,table=9)",
    "commit after force": "ct(commit,force,zone=1),ct(commit,zone=1,table=9)",
    "force twice": "ct(commit,force,zone=1),ct(commit,force,zone=1),ct(table=9,zone=1)",
    "nat": "ct(commit,zone=1),ct(zone=1,nat,table=9)",
    "nat, then plain": "ct(commit,zone=1),ct(zone=1,nat),ct(table=9,zone=1)",
    "plain, then nat": "ct(zone=1),ct(commit,zone=1),ct(zone=1,nat,table=9)",
    "source": "ct(commit,zone=1,nat(src=10.0.0.9),table=9)",
    "source, then plain": "ct(commit,zone=1,nat(src=10.0.0.9)),ct(table=9,zone=1)",
    "source, then nat": "ct(commit,zone=1,nat(src=10.0.0.9)),ct(table=9,zone=1,nat)",
    "source twice": (
        "ct(commit,zone=1,nat(src=10.0.0.9)),ct(commit,zone=1,nat(src=10.0.0.9),table=9)"
    ),
    "commit, then source": "ct(commit,zone=1),ct(commit,zone=1,nat(src=10.0.0.9),table=9)",
    "source, other zone, back": (
        "ct(commit,zone=1,nat(src=10.0.0.9)),ct(commit,zone=2),ct(table=9,zone=1,nat)"
    ),
    "source in two zones": (
        "ct(commit,zone=1,nat(src=10.0.0.9)),ct(commit,zone=2,nat(src=10.0.0.7),table=9)"
    ),
    "source, clear": "ct(commit,zone=1,nat(src=10.0.0.9)),ct_clear,ct(table=9,zone=1)",
    "destination": "ct(commit,zone=1,nat(dst=10.0.0.8),table=9)",
    "destination, then plain": "ct(commit,zone=1,nat(dst=10.0.0.8)),ct(table=9,zone=1)",
    "destination, clear": "ct(commit,zone=1,nat(dst=10.0.0.8)),ct_clear,ct(table=9,zone=1)",
    "destination, then source": (
        "ct(commit,zone=1,nat(dst=10.0.0.8)),ct(commit,zone=1,nat(src=10.0.0.9),table=9)"
    ),
    "force and source": "ct(commit,zone=1),ct(commit,force,zone=1,nat(src=10.0.0.9),table=9)",
}
# The same in passes: the second step in table 1, behind the first one's table.
PASSES = {
    "clear between": ("ct(commit,zone=1,table=1)", "ct_clear,ct(table=9,zone=1)"),
    "nat, clear between": (
        "ct(commit,zone=1,nat(dst=10.0.0.8),table=1)",
        "ct_clear,ct(table=9,zone=1)",
    ),
    "nat, pass, plain": ("ct(commit,zone=1,nat(src=10.0.0.9),table=1)", "ct(table=9,zone=1)"),
    "plain, pass, force": ("ct(zone=1,table=1)", "ct(commit,force,table=9,zone=1)"),
    "pass and clear without effect": (
        "ct(commit,zone=1,nat(src=10.0.0.9),table=1)",
        "ct(zone=1),ct_clear,ct(table=9,zone=1)",
    ),
}
# Behind a patch port: steps in br0, and in br1.
PATCHES = {
    "tracked before, not after": ("ct(commit,zone=1),output:11", "resubmit(,9)"),
    "same zone": ("ct(commit,zone=1),output:11", "ct(table=9,zone=1)"),
    "same zone, source": (
        "ct(commit,zone=1,nat(src=10.0.0.9)),output:11",
        "ct(table=9,zone=1)",
    ),
    "same zone, destination": (
        "ct(commit,zone=1,nat(dst=10.0.0.8)),output:11",
        "ct(table=9,zone=1)",
    ),
    "same zone, destination, clear": (
        "ct(commit,zone=1,nat(dst=10.0.0.8)),output:11",
        "ct_clear,ct(table=9,zone=1)",
    ),
    "same zone, destination, nat": (
        "ct(commit,zone=1,nat(dst=10.0.0.8)),output:11",
        "ct(table=9,zone=1,nat)",
    ),
    "other zone": (
        "ct(commit,zone=1,nat(dst=10.0.0.8)),output:11",
        "ct(commit,table=9,zone=2)",
    ),
    "clear before": (
        "ct(commit,zone=1,nat(dst=10.0.0.8),table=1)",
        "ct(table=9,zone=1)",
        "ct_clear,output:11",
    ),
    "from behind a pass": (
        "ct(commit,zone=1,nat(dst=10.0.0.8),table=1)",
        "ct(table=9,zone=1)",
        "output:11,resubmit(,9)",
    ),
    "several outputs": (
        "ct(commit,zone=1,nat(dst=10.0.0.8)),output:3,output:11,dec_ttl,output:11",
        "ct(table=9,zone=1)",
    ),
    "in a clone": (
        "clone(ct(commit,zone=1,nat(dst=10.0.0.8)),output:11),output:11",
        "ct(table=9,zone=1)",
    ),
    "straight on": ("ct(commit,zone=1,nat(dst=10.0.0.8)),output:11", "output:6"),
    "there and back": (
        "ct(commit,zone=1,nat(dst=10.0.0.8)),output:11",
        "in_port",
        None,
        "ct(table=9,zone=1)",
    ),
}


def rules_of_patches(steps):
    """Packets and rules of a scenario of PATCHES."""
    first, second, behind, back = (*steps, None, None)[:4]
    packets, answer = begins(first)
    rules = [
        ("br0", f"table=0,priority=5,ip,actions={first}"),
        ("br0", f"table=0,priority=6,in_port=2,ip,actions={answer}"),
        ("br1", f"table=0,priority=1,ip,actions={second}"),
    ]
    if behind:
        rules.append(("br0", f"table=1,ip,actions={behind}"))
    if back:
        rules.append(("br0", f"table=0,priority=7,in_port=11,ip,actions={back}"))
    return rules + states(9) + states(9, "br1"), packets


def scenarios():
    """{name: (rules, packets)}."""
    made = {}
    for name, steps in WALKS.items():
        packets, answer = begins(steps)
        rules = [
            ("br0", f"table=0,priority=1,ip,actions={steps}"),
            ("br0", f"table=0,priority=2,in_port=2,ip,actions={answer}"),
        ]
        made[f"walk: {name}"] = (rules + states(9), packets)
        if packets is PLAIN:
            rules = [("br0", f"table=0,ipv6,actions={steps}")]
            made[f"IPv6: {name}"] = (rules + states(9, family="ipv6"), PLAIN6)
    for name, (first, second) in PASSES.items():
        packets, answer = begins(first)
        rules = [
            ("br0", f"table=0,priority=1,ip,actions={first}"),
            ("br0", f"table=0,priority=2,in_port=2,ip,actions={answer}"),
            ("br0", f"table=1,ip,actions={second}"),
        ]
        made[f"passes: {name}"] = (rules + states(9), packets)
    for name, steps in PATCHES.items():
        made[f"patch: {name}"] = rules_of_patches(steps)
    source6 = "ct(commit,zone=1,nat(src=fd00::9)),ct(table=9,zone=1)"
    rules = [
        ("br0", f"table=0,priority=1,ipv6,actions={source6}"),
        ("br0", "table=0,priority=2,in_port=2,ipv6,actions=ct(zone=1,nat),ct(table=9,zone=1)"),
    ]
    packets = [
        (1, udp(*OUTSIDE6)),
        (2, udp("fd00::2", "fd00::9", (53, 1000))),
        (1, echo(*OUTSIDE6)),
        (2, echo("fd00::2", "fd00::9", True)),
        (1, tcp(*OUTSIDE6, SYN)),
        (2, tcp("fd00::2", "fd00::9", SYN | ACK, (80, 1000), 300, 101)),
    ]
    made["IPv6: source, then plain"] = (rules + states(9, family="ipv6"), packets)
    return made
