"""Generated rules and frames for the comparison with tests/oracle.py.

The values come from small pools, so that rules and frames meet; everything follows from the
seed."""

import struct

from oracle import ARP, ICMP, ICMP6, IPV4, IPV6, SCTP, TCP, UDP, WIDTH, Rule, checksum, crc32c

MACS = [
    0x020000000001,
    0x020000000002,
    0x0200000000FF,
    0x0A1B2C3D4E5F,
    0xFFFFFFFFFFFF,
    0x01005E000001,
]
IPS = [0x0A000001, 0x0A000002, 0x0A0000FE, 0x0A010203, 0xC0A80101, 0xC0A801FF, 0xE0000005]
IP6S = [
    0xFD000000000000000000000000000001,
    0xFD000000000000000000000000000002,
    0x20010DB8000000000000000000001234,
    0xFF020000000000000000000000000001,
]
PORTS = [0, 22, 53, 80, 443, 1024, 4789, 8080, 50000, 65535]
TTLS = [1, 2, 63, 64, 255]
TOS = [0, 0x20, 0xB8, 0xFC]
VLANS = [0, 1, 10, 20, 4094]
METADATA = [0, 1, 0xDEADBEEF00000001]
REGISTERS = [0, 1, 2, 0xFFFF0000]
POOL = {
    "dl_dst": MACS,
    "dl_src": MACS,
    "nw_src": IPS,
    "nw_dst": IPS,
    "arp_spa": IPS,
    "arp_tpa": IPS,
    "arp_sha": MACS,
    "arp_tha": MACS,
    "ipv6_src": IP6S,
    "ipv6_dst": IP6S,
    "tp_src": PORTS,
    "tp_dst": PORTS,
    "nw_ttl": TTLS,
    "nw_tos": TOS,
    "nw_ecn": [0, 1, 2, 3],
    "arp_op": [1, 2],
    "ipv6_label": [0, 1, 0xFFFFF],
    "icmp_type": [0, 8, 128, 135],
    "icmp_code": [0, 3],
    "tcp_flags": [2, 0x10, 0x12, 0x11],
    "metadata": METADATA,
    **{f"reg{n}": REGISTERS for n in range(16)},
}
# What a rule is about decides what it may match and change: (fixed matches, further match fields,
# fields to set)
L2 = ["dl_dst", "dl_src"]
IP_FIELDS, IP_SET = ["nw_tos", "nw_ecn", "nw_ttl"], ["nw_tos", "nw_ecn", "nw_ttl"]
V4, V6 = ["nw_src", "nw_dst"], ["ipv6_src", "ipv6_dst"]
SUBJECTS = {
    "any": ({}, [], []),
    "ip4": ({"dl_type": IPV4}, V4 + IP_FIELDS + ["ip_frag"], V4 + IP_SET),
    "tcp4": (
        {"dl_type": IPV4, "nw_proto": TCP},
        V4 + IP_FIELDS + ["tp_src", "tp_dst", "tcp_flags", "ip_frag"],
        V4 + IP_SET + ["tp_src", "tp_dst"],
    ),
    "udp4": (
        {"dl_type": IPV4, "nw_proto": UDP},
        V4 + ["tp_src", "tp_dst"],
        V4 + IP_SET + ["tp_src", "tp_dst"],
    ),
    "sctp4": (
        {"dl_type": IPV4, "nw_proto": SCTP},
        V4 + ["tp_src", "tp_dst"],
        V4 + ["tp_src", "tp_dst"],
    ),
    "icmp4": ({"dl_type": IPV4, "nw_proto": ICMP}, V4 + ["icmp_type", "icmp_code"], V4 + IP_SET),
    "ip6": ({"dl_type": IPV6}, V6 + IP_FIELDS + ["ipv6_label"], V6 + IP_SET),
    "tcp6": (
        {"dl_type": IPV6, "nw_proto": TCP},
        V6 + ["tp_src", "tp_dst", "tcp_flags"],
        V6 + ["tp_src", "tp_dst"],
    ),
    "udp6": (
        {"dl_type": IPV6, "nw_proto": UDP},
        V6 + ["tp_src", "tp_dst"],
        V6 + IP_SET + ["tp_src", "tp_dst"],
    ),
    "icmp6": ({"dl_type": IPV6, "nw_proto": ICMP6}, V6 + ["icmp_type", "icmp_code"], V6 + IP_SET),
    "arp": (
        {"dl_type": ARP},
        ["arp_op", "arp_spa", "arp_tpa", "arp_sha", "arp_tha"],
        ["arp_op", "arp_spa", "arp_tpa", "arp_sha", "arp_tha"],
    ),
}
WRITTEN = {"dl_dst": "eth_dst", "dl_src": "eth_src", "nw_src": "ip_src", "nw_dst": "ip_dst"}
OUTPUTS = [1, 3, 4, 5]
TABLES = 5


def full(name):
    """A mask of all of a field's bits."""
    return (1 << WIDTH[name]) - 1


def some_mask(random, name):
    """A mask for a field that may have one: mostly all, sometimes a prefix, sometimes any bits."""
    bits, kind = WIDTH[name], random.random()
    if kind < 0.55 or name in (
        "nw_tos",
        "nw_ecn",
        "nw_ttl",
        "icmp_type",
        "icmp_code",
        "arp_op",
        "nw_proto",
    ):
        return full(name)
    if kind < 0.85:
        length = random.randint(4 if bits == 128 else 1, bits)
        return full(name) >> (bits - length) << (bits - length)
    mask = random.getrandbits(bits) or 1
    # ovs-ofctl takes an IPv6 mask that begins with a decimal digit for a prefix length.
    return mask | 0xA << 124 if bits == 128 else mask


def rule(random, table, priority, edits):
    """One rule. `edits` allows changing packets beyond their MAC addresses."""
    subject = random.choice(list(SUBJECTS))
    fixed, fields, settable = SUBJECTS[subject]
    match = {name: (value, full(name)) for name, value in fixed.items()}
    for name in random.sample(L2 + fields, min(random.choice([0, 0, 1, 1, 2, 3]), len(fields) + 2)):
        if name == "ip_frag":
            match[name] = random.choice([(0, 3), (1, 3), (3, 3), (1, 1), (0, 2)])
            continue
        mask = full(name) if name == "nw_tos" else some_mask(random, name)
        match[name] = (random.choice(POOL[name]) & mask, 0xFC if name == "nw_tos" else mask)
    if random.random() < 0.3:
        match["in_port"] = (random.choice([1, 2]), full("in_port"))
    if table and random.random() < 0.4:
        name = random.choice(["reg0", "reg1", "reg7", "reg15", "metadata"])
        mask = some_mask(random, name)
        match[name] = (random.choice(POOL[name]) & mask, mask)
    tagged = random.choice([None, None, True, True, False])
    if tagged is True:
        match["vlan_tci"] = random.choice(
            [
                (0x1000, 0x1000),
                (0x1000 | random.choice(VLANS), 0x1FFF),
                (0x1000 | random.choice([0, 3, 7]) << 13, 0xF000),
            ]
        )
    elif tagged is False:
        match["vlan_tci"] = (0, 0xFFFF)
    return Rule(table, priority, match, actions(random, table, subject, settable, tagged, edits))


def actions(random, table, subject, settable, tagged, edits):
    """The actions of one rule. `tagged` follows the packet while tags are pushed and popped."""
    chosen = []
    for _ in range(random.choice([0, 1, 1, 2, 2, 3, 4])):
        kind = random.choice(
            [
                "output",
                "output",
                "set",
                "set",
                "register",
                "load",
                "move",
                "vlan",
                "resubmit",
                "ttl",
                "in_port",
            ]
        )
        if kind == "output":
            chosen.append(("output", random.choice(OUTPUTS)))
        elif kind == "in_port":
            chosen.append(("in_port",))
        elif kind == "set":
            name = random.choice(L2 + (settable if edits else []))
            value, mask = random.choice(POOL[name]), None
            if name in L2 + V4 and random.random() < 0.3:
                mask = random.getrandbits(WIDTH[name]) or 1
                value &= mask
            written = WRITTEN.get(name, name)
            if name in ("tp_src", "tp_dst"):
                written = {
                    "tcp4": "tcp",
                    "tcp6": "tcp",
                    "udp4": "udp",
                    "udp6": "udp",
                    "sctp4": "sctp",
                }[subject] + name[2:]
            chosen.append(("set", name, value, mask, written))
        elif kind == "register":
            name = random.choice(["reg0", "reg1", "reg7", "reg15"])
            chosen.append(("set", name, random.choice(REGISTERS), None, name))
        elif kind == "load":
            name = random.choice(["reg0", "reg1", "metadata", "dl_src"])
            bits = random.randint(1, 16)
            chosen.append(
                (
                    "load",
                    name,
                    random.randint(0, WIDTH[name] - bits),
                    bits,
                    random.getrandbits(bits),
                )
            )
        elif kind == "move":
            source = random.choice(
                ["dl_src", "dl_dst", "reg0", "reg1"]
                + (V4 if subject in ("ip4", "tcp4", "udp4") else [])
                + (["arp_spa", "arp_tpa"] if subject == "arp" else [])
            )
            target = random.choice(
                ["reg0", "reg1", "reg7", "dl_dst"]
                + (V4 if edits and subject in ("ip4", "tcp4", "udp4") else [])
            )
            bits = random.randint(1, min(WIDTH[source], WIDTH[target]))
            chosen.append(
                (
                    "move",
                    source,
                    random.randint(0, WIDTH[source] - bits),
                    target,
                    random.randint(0, WIDTH[target] - bits),
                    bits,
                )
            )
        elif kind == "vlan" and edits and tagged is not None:
            if not tagged:
                chosen += [
                    ("push_vlan",),
                    ("set", "vlan_vid", random.choice(VLANS[1:]), None, "vlan_vid"),
                    ("set", "vlan_pcp", random.randint(0, 7), None, "vlan_pcp"),
                ]
                tagged = True
            elif random.random() < 0.5:
                chosen.append(("pop_vlan",))
                tagged = False
            else:
                chosen.append(("set", "vlan_vid", random.choice(VLANS[1:]), None, "vlan_vid"))
        elif (
            kind == "resubmit"
            and table + 1 < TABLES
            and sum(action[0] == "resubmit" for action in chosen) < 2
        ):
            chosen.append(
                (
                    "resubmit",
                    random.choice([None, None, None, 1, 2]),
                    random.randint(table + 1, TABLES - 1),
                )
            )
            tagged = None  # the other table may have pushed or popped a tag
        elif (
            kind == "ttl"
            and edits
            and subject in ("ip4", "tcp4", "udp4", "icmp4", "ip6", "udp6", "icmp6")
        ):
            chosen.append(("dec_ttl",))
    if table + 1 < TABLES and random.random() < 0.6:
        if random.random() < 0.4:
            chosen.append(
                ("metadata", random.choice(METADATA), random.choice([full("metadata"), 0xFF]))
            )
            value, mask = chosen[-1][1:]
            chosen[-1] = ("metadata", value & mask, mask)
        chosen.append(("goto", random.randint(table + 1, TABLES - 1)))
    elif not any(action[0] in ("output", "in_port", "resubmit") for action in chosen):
        chosen.append(("output", random.choice(OUTPUTS)))
    return chosen


def rules(random, count, edits=True):
    """Rules for all tables, each with a priority of its own, and for each table one that takes what
    is left."""
    made = []
    for table in range(TABLES):
        # Narrow rules mostly go before wide ones, or a few wide ones would take every frame.
        drawn = [rule(random, table, 0, edits) for _ in range(count // TABLES)]
        drawn.sort(
            key=lambda each: (
                sum(mask.bit_count() for _, mask in each.match.values()) + random.randint(0, 40)
            )
        )
        for each, each.priority in zip(drawn, sorted(random.sample(range(1, 10_000), len(drawn)))):
            made.append(each)
        rest = [("goto", table + 1)] if table + 1 < TABLES else [("output", 5)]
        made.append(Rule(table, 0, {}, rest))
    for number, each in enumerate(made, 1):
        each.cookie = number
    return made


class Template:
    """The headers of one flow; frame() makes packets of it that differ in their payload."""

    def __init__(self, random):
        pick = random.choice
        self.kind = pick(
            [
                "tcp4",
                "tcp4",
                "udp4",
                "udp4",
                "icmp4",
                "sctp4",
                "fragment4",
                "first4",
                "tcp6",
                "udp6",
                "icmp6",
                "arp",
                "other",
                "length",
            ]
        )
        self.head = pick(MACS).to_bytes(6, "big") + pick(MACS[:4]).to_bytes(6, "big")
        if random.random() < 0.5:
            self.head += struct.pack("!HH", 0x8100, random.randint(0, 7) << 13 | pick(VLANS))
        self.source, self.destination, self.source6, self.destination6 = (
            pick(IPS),
            pick(IPS),
            pick(IP6S),
            pick(IP6S),
        )
        self.ports, self.tos, self.ttl = (
            (pick(PORTS), pick(PORTS)),
            pick(TOS) | random.randint(0, 3),
            pick(TTLS),
        )
        self.flags, self.icmp, self.label = (
            pick(POOL["tcp_flags"]),
            (pick([0, 8, 128, 135]), pick([0, 3])),
            pick(POOL["ipv6_label"]),
        )
        self.arp = (
            struct.pack("!HHBBH", 1, 0x800, 6, 4, pick([1, 2]))
            + pick(MACS).to_bytes(6, "big")
            + struct.pack("!I", pick(IPS))
            + pick(MACS).to_bytes(6, "big")
            + struct.pack("!I", pick(IPS))
        )
        self.plain = random.random() < 0.2  # UDP without a checksum
        self.options = bytes(random.choice([0, 0, 0, 4, 40])).replace(
            b"\0", b"\1"
        )  # IPv4 options: NOPs
        self.size = random.choice([4, 5, 18, 100, 999, 1300])

    def frame(self, number):
        """A packet with a number in its payload."""
        payload = struct.pack("!I", number) + bytes(
            (number + at) & 0xFF for at in range(self.size - 4)
        )
        kind = self.kind
        if kind == "arp":
            return self.head + struct.pack("!H", ARP) + self.arp + payload
        if kind == "other":
            return self.head + struct.pack("!H", 0x88B5) + payload
        if kind == "length":
            return self.head + struct.pack("!H", 3 + len(payload)) + b"\x42\x42\x03" + payload
        six = kind.endswith("6")
        proto = {
            "tcp": TCP,
            "udp": UDP,
            "sctp": SCTP,
            "icmp": ICMP6 if six else ICMP,
            "fragment": 47,
            "first": TCP,
        }[kind.rstrip("46")]
        if six:
            pseudo_head = self.source6.to_bytes(16, "big") + self.destination6.to_bytes(16, "big")
        else:
            pseudo_head = struct.pack("!II", self.source, self.destination)
        body = self.body(proto, payload, pseudo_head)
        if six:
            head = (
                struct.pack(
                    "!IHBB", 6 << 28 | self.tos << 20 | self.label, len(body), proto, self.ttl
                )
                + pseudo_head
            )
            return self.head + struct.pack("!H", IPV6) + head + body
        fragment = {"fragment4": 0x2010, "first4": 0x2000}.get(kind, 0x4000)
        head = (
            struct.pack(
                "!BBHHHBBH",
                0x45 + len(self.options) // 4,
                self.tos,
                20 + len(self.options) + len(body),
                number & 0xFFFF,
                fragment,
                self.ttl,
                proto,
                0,
            )
            + pseudo_head
            + self.options
        )
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        packet = self.head + struct.pack("!H", IPV4) + head + body
        return packet + bytes(max(0, 60 - len(packet)))

    def body(self, proto, payload, pseudo_head):
        """The transport header and the payload, with their checksum."""

        def sealed(header, place):
            data = header + payload
            pseudo = pseudo_head + struct.pack("!IHBB", len(data), 0, 0, proto)
            value = checksum(pseudo + data) or 0xFFFF
            return data[:place] + struct.pack("!H", value) + data[place + 2 :]

        if proto == TCP:
            return sealed(
                struct.pack("!HHIIHHHH", *self.ports, 1, 2, 0x5000 | self.flags, 1000, 0, 0), 16
            )
        if proto == UDP:
            header = struct.pack("!HHHH", *self.ports, 8 + len(payload), 0)
            return header + payload if self.plain and len(pseudo_head) == 8 else sealed(header, 6)
        if proto == SCTP:
            data = struct.pack("!HHII", *self.ports, 7, 0) + payload
            return data[:8] + crc32c(data) + data[12:]
        if proto == ICMP6:
            return sealed(struct.pack("!BBHI", *self.icmp, 0, 0), 2)
        if proto == ICMP:
            data = struct.pack("!BBHI", *self.icmp, 0, 1) + payload
            return data[:2] + struct.pack("!H", checksum(data)) + data[4:]
        return payload


def damaged(random, frame):
    """A frame that is cut off, padded, or lies about itself."""
    data, kind = bytearray(frame), random.random()
    if kind < 0.4:
        return bytes(data[: random.randint(0, len(data))])
    if kind < 0.5:
        return bytes(data) + bytes(random.randint(1, 40))
    begin = 14 if data[12:14] != b"\x81\x00" else 18
    for _ in range(random.randint(1, 3)):
        # The bytes that say how long something is, or what follows: version and IHL, lengths,
        # fragments, protocol.
        offset = random.choice([0, 2, 3, 4, 5, 6, 7, 9, 20, 22, 32])
        place = begin + offset
        if offset == 6 and data[begin - 2 : begin] == b"\x86\xdd":
            continue  # it would be a chain of extension headers
        if place < len(data):
            data[place] = random.choice(
                [0, 1, 0x40, 0x44, 0x4F, 0x46, 0x60, 0xFF, random.getrandbits(8)]
            )
    return bytes(data)
