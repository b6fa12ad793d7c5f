"""An evaluator of OpenFlow rules, written for clarity and shared with nothing else in this
repository: a table is a list that is searched from the highest priority down, a packet is its
bytes, and every action edits those bytes and parses them again. What a switch puts out has to be,
byte for byte, what this says.

Rules are made here as data and turned into ovs-ofctl's text, so that both sides read the same
rules.
"""

import random
import struct

# ---------------------------------------------------------------- checksums


def ones_sum(data):
    """The 16-bit one's complement sum of RFC 1071, not inverted."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def checksum(data):
    """The Internet checksum of some bytes."""
    return ones_sum(data) ^ 0xFFFF


def adjust(old, removed, added):
    """RFC 1624, equation 3: the checksum after some bytes were replaced."""
    total = (old ^ 0xFFFF) + (ones_sum(removed) ^ 0xFFFF) + ones_sum(added)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


CRC32C = []
for _byte in range(256):
    for _ in range(8):
        _byte = (_byte >> 1) ^ 0x82F63B78 if _byte & 1 else _byte >> 1
    CRC32C.append(_byte)


def crc32c(data):
    """SCTP's checksum (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


# ---------------------------------------------------------------- fields

# Field: (ovs-ofctl's name, NXM name for move and load, bits)
WIDTH = {
    "in_port": 16,
    "dl_dst": 48,
    "dl_src": 48,
    "dl_type": 16,
    "vlan_tci": 16,
    "nw_src": 32,
    "nw_dst": 32,
    "nw_proto": 8,
    "nw_tos": 8,
    "nw_ecn": 2,
    "nw_ttl": 8,
    "ip_frag": 8,
    "ipv6_src": 128,
    "ipv6_dst": 128,
    "ipv6_label": 20,
    "tp_src": 16,
    "tp_dst": 16,
    "tcp_flags": 12,
    "icmp_type": 8,
    "icmp_code": 8,
    "arp_op": 16,
    "arp_spa": 32,
    "arp_tpa": 32,
    "arp_sha": 48,
    "arp_tha": 48,
    "metadata": 64,
    **{f"reg{n}": 32 for n in range(16)},
}
NXM = {
    "dl_dst": "NXM_OF_ETH_DST",
    "dl_src": "NXM_OF_ETH_SRC",
    "nw_src": "NXM_OF_IP_SRC",
    "nw_dst": "NXM_OF_IP_DST",
    "arp_spa": "NXM_OF_ARP_SPA",
    "arp_tpa": "NXM_OF_ARP_TPA",
    "metadata": "OXM_OF_METADATA",
    "in_port": "NXM_OF_IN_PORT",
    "nw_ttl": "NXM_NX_IP_TTL",
    **{f"reg{n}": f"NXM_NX_REG{n}" for n in range(16)},
}
IPV4, IPV6, ARP = 0x0800, 0x86DD, 0x0806
TCP, UDP, ICMP, ICMP6, SCTP = 6, 17, 1, 58, 132


def parse(frame):
    """The fields of a frame and where its headers begin.

    A header that is cut off or contradicts itself ends the parse: its fields stay 0, as the fields
    of protocols that are not there."""
    fields = dict.fromkeys(WIDTH, 0)
    at = {}
    fields["dl_dst"], fields["dl_src"] = (
        int.from_bytes(frame[:6], "big"),
        int.from_bytes(frame[6:12], "big"),
    )
    (kind,) = struct.unpack("!H", frame[12:14])
    position = 14
    if kind == 0x8100 and len(frame) >= 18:
        control, kind = struct.unpack("!HH", frame[14:18])
        fields["vlan_tci"] = control | 0x1000
        position = 18
    if kind < 0x600:
        kind = 0x05FF  # OFP_DL_TYPE_NOT_ETH_TYPE: an IEEE 802.3 length
    fields["dl_type"] = kind
    data = frame[position:]
    if kind == IPV4:
        length = (data[0] & 15) * 4 if data else 0
        if len(data) < 20 or length < 20 or length > len(data):
            return fields, at
        (total,) = struct.unpack("!H", data[2:4])
        if total < length or total > len(data):
            return fields, at
        at["l3"] = position
        fields["nw_src"], fields["nw_dst"] = struct.unpack("!II", data[12:20])
        fields["nw_tos"], fields["nw_ecn"], fields["nw_ttl"], fields["nw_proto"] = (
            data[1] & 0xFC,
            data[1] & 3,
            data[8],
            data[9],
        )
        (fragment,) = struct.unpack("!H", data[6:8])
        if fragment & 0x1FFF:
            fields["ip_frag"] = 3
            return fields, at
        fields["ip_frag"] = 1 if fragment & 0x2000 else 0
        transport(frame, fields, at, position + length, position + total)
    elif kind == IPV6:
        if len(data) < 40 or struct.unpack("!H", data[4:6])[0] > len(data) - 40:
            return fields, at
        at["l3"] = position
        word, payload, proto, ttl = struct.unpack("!IHBB", data[:8])
        fields["ipv6_label"], fields["nw_tos"], fields["nw_ecn"] = (
            word & 0xFFFFF,
            word >> 20 & 0xFC,
            word >> 20 & 3,
        )
        fields["nw_proto"], fields["nw_ttl"] = proto, ttl
        fields["ipv6_src"], fields["ipv6_dst"] = (
            int.from_bytes(data[8:24], "big"),
            int.from_bytes(data[24:40], "big"),
        )
        transport(frame, fields, at, position + 40, position + 40 + payload)
    elif kind == ARP and len(data) >= 28 and data[:6] == bytes.fromhex("000108000604"):
        at["l3"] = position
        fields["arp_op"] = data[7] if data[6] == 0 else 0
        fields["arp_sha"], fields["arp_spa"] = (
            int.from_bytes(data[8:14], "big"),
            int.from_bytes(data[14:18], "big"),
        )
        fields["arp_tha"], fields["arp_tpa"] = (
            int.from_bytes(data[18:24], "big"),
            int.from_bytes(data[24:28], "big"),
        )
    return fields, at


def transport(frame, fields, at, begin, end):
    """Ports, flags, ICMP type and code."""
    proto, size = fields["nw_proto"], end - begin
    if proto == TCP and size >= 20 and 20 <= (frame[begin + 12] >> 4) * 4 <= size:
        fields["tp_src"], fields["tp_dst"], flags = struct.unpack(
            "!HH8xH", frame[begin : begin + 14]
        )
        fields["tcp_flags"] = flags & 0xFFF
    elif proto == UDP and size >= 8 or proto == SCTP and size >= 12:
        fields["tp_src"], fields["tp_dst"] = struct.unpack("!HH", frame[begin : begin + 4])
    elif (
        proto == ICMP
        and fields["dl_type"] == IPV4
        and size >= 8
        or proto == ICMP6
        and fields["dl_type"] == IPV6
        and size >= 4
    ):
        fields["icmp_type"], fields["icmp_code"] = frame[begin], frame[begin + 1]
    else:
        return
    at["l4"], at["end"] = begin, end


class Walk:
    """A packet on its way through the tables: its bytes, and the fields that are not in them."""

    def __init__(self, frame, port):
        self.frame, self.port = bytearray(frame), port
        self.own = {"in_port": port, "metadata": 0, **{f"reg{n}": 0 for n in range(16)}}
        self.outputs, self.trail = [], []

    def get(self, name):
        """A field's value."""
        return self.own[name] if name in self.own else parse(bytes(self.frame))[0][name]

    def all(self):
        """All fields."""
        return {**parse(bytes(self.frame))[0], **self.own}

    def put(self, name, value):
        """Sets a field, with every checksum that covers it."""
        if name in self.own:
            self.own[name] = value
            return
        fields, at = parse(bytes(self.frame))
        if name in ("dl_dst", "dl_src"):
            begin = 0 if name == "dl_dst" else 6
            self.frame[begin : begin + 6] = value.to_bytes(6, "big")
        elif name == "vlan_vid":
            control = fields["vlan_tci"] & 0xE000 | value & 0xFFF
            self.frame[14:16] = struct.pack("!H", control)
        elif name == "vlan_pcp":
            control = fields["vlan_tci"] & 0x0FFF | value << 13
            self.frame[14:16] = struct.pack("!H", control)
        elif name in ("arp_op", "arp_sha", "arp_spa", "arp_tha", "arp_tpa"):
            begin, size = {
                "arp_op": (6, 2),
                "arp_sha": (8, 6),
                "arp_spa": (14, 4),
                "arp_tha": (18, 6),
                "arp_tpa": (24, 4),
            }[name]
            self.frame[at["l3"] + begin : at["l3"] + begin + size] = value.to_bytes(size, "big")
        elif name in ("nw_src", "nw_dst", "ipv6_src", "ipv6_dst"):
            begin, size = {
                "nw_src": (12, 4),
                "nw_dst": (16, 4),
                "ipv6_src": (8, 16),
                "ipv6_dst": (24, 16),
            }[name]
            self.replace(at, at["l3"] + begin, value.to_bytes(size, "big"), fields, pseudo=True)
        elif name in ("nw_tos", "nw_ecn"):
            tos = fields["nw_tos"] | value if name == "nw_ecn" else fields["nw_ecn"] | value
            if fields["dl_type"] == IPV4:
                self.replace(at, at["l3"], bytes([self.frame[at["l3"]], tos]), fields)
            else:
                (word,) = struct.unpack("!I", self.frame[at["l3"] : at["l3"] + 4])
                self.frame[at["l3"] : at["l3"] + 4] = struct.pack(
                    "!I", word & 0xF00FFFFF | tos << 20
                )
        elif name == "nw_ttl":
            if fields["dl_type"] == IPV4:
                self.replace(at, at["l3"] + 8, bytes([value, self.frame[at["l3"] + 9]]), fields)
            else:
                self.frame[at["l3"] + 7] = value
        elif name in ("tp_src", "tp_dst"):
            if "l4" in at:
                begin = at["l4"] + (0 if name == "tp_src" else 2)
                self.replace_port(at, begin, struct.pack("!H", value), fields)
        else:
            raise ValueError(name)

    def replace(self, at, begin, new, fields, pseudo=False):
        """Replaces bytes of an IP header; its checksum follows, and the transport's where it covers
        addresses."""
        old = bytes(self.frame[begin : begin + len(new)])
        self.frame[begin : begin + len(new)] = new
        if fields["dl_type"] == IPV4:
            self.refresh(at["l3"] + 10, old, new)
        if pseudo and "l4" in at:
            place = {TCP: 16, UDP: 6, ICMP6: 2}.get(fields["nw_proto"])
            if place is not None:
                self.refresh(at["l4"] + place, old, new, fields["nw_proto"] == UDP)

    def replace_port(self, at, begin, new, fields):
        """Replaces a port; the transport's checksum follows."""
        old = bytes(self.frame[begin : begin + 2])
        self.frame[begin : begin + 2] = new
        if fields["nw_proto"] == SCTP:
            begin, end = at["l4"], at["end"]
            self.frame[begin + 8 : begin + 12] = bytes(4)
            self.frame[begin + 8 : begin + 12] = crc32c(bytes(self.frame[begin:end]))
        else:
            self.refresh(
                at["l4"] + {TCP: 16, UDP: 6}[fields["nw_proto"]],
                old,
                new,
                fields["nw_proto"] == UDP,
            )

    def refresh(self, place, old, new, udp=False):
        """Updates a checksum; in UDP 0 means that there is none."""
        (before,) = struct.unpack("!H", self.frame[place : place + 2])
        if udp and not before:
            return
        after = adjust(before, old, new)
        if udp and not after:
            after = 0xFFFF
        self.frame[place : place + 2] = struct.pack("!H", after)


# ---------------------------------------------------------------- rules


class Rule:
    """table, priority, match: {field: (value, mask)}, actions: [(name, ...)]."""

    def __init__(self, table, priority, match, actions, cookie=0):
        self.table, self.priority, self.match, self.actions, self.cookie = (
            table,
            priority,
            match,
            actions,
            cookie,
        )

    def matches(self, fields):
        """Whether all fields agree under their masks."""
        return all(fields[name] & mask == value for name, (value, mask) in self.match.items())

    def __str__(self):
        match = []
        for name, (value, mask) in self.match.items():
            full = (1 << WIDTH[name]) - 1
            name_out = name
            if name == "ip_frag":
                match.append(
                    {
                        (0, 3): "nw_frag=no",
                        (1, 3): "nw_frag=first",
                        (3, 3): "nw_frag=later",
                        (1, 1): "nw_frag=yes",
                        (0, 2): "nw_frag=not_later",
                    }[value, mask]
                )
                continue
            if name == "nw_tos":
                match.append(f"nw_tos={value}")
                continue
            text = show(name, value)
            match.append(
                f"{name_out}={text}" if mask == full else f"{name_out}={text}/{show(name, mask)}"
            )
        words = [
            f"table={self.table}",
            f"priority={self.priority}",
            f"cookie={self.cookie:#x}",
            *match,
        ]
        return (
            ",".join(words)
            + ",actions="
            + (",".join(say(action) for action in self.actions) or "drop")
        )


def show(name, value):
    """A field's value as ovs-ofctl writes it."""
    if name in ("dl_dst", "dl_src", "arp_sha", "arp_tha"):
        return ":".join(f"{byte:02x}" for byte in value.to_bytes(6, "big"))
    if name in ("nw_src", "nw_dst", "arp_spa", "arp_tpa"):
        return ".".join(str(byte) for byte in value.to_bytes(4, "big"))
    if name in ("ipv6_src", "ipv6_dst"):
        return ":".join(f"{word:x}" for word in struct.unpack("!8H", value.to_bytes(16, "big")))
    if name in (
        "in_port",
        "nw_proto",
        "nw_ttl",
        "nw_ecn",
        "icmp_type",
        "icmp_code",
        "arp_op",
        "vlan_pcp",
    ):
        return str(value)
    return f"{value:#x}"


def say(action):
    """An action as ovs-ofctl writes it."""
    kind, *rest = action
    if kind == "output":
        return f"output:{rest[0]}"
    if kind in ("in_port", "pop_vlan", "dec_ttl", "drop"):
        return kind
    if kind == "set":
        name, value, mask, written = rest
        text = show(name, value)
        if name == "vlan_vid":
            text = str(value | 0x1000)
        elif name == "nw_tos":
            return f"mod_nw_tos:{value}"
        return f"set_field:{text}{'' if mask is None else '/' + show(name, mask)}->{written}"
    if kind == "load":
        name, first, bits, value = rest
        return f"load:{value:#x}->{NXM[name]}[{first}..{first + bits - 1}]"
    if kind == "move":
        source, first, target, begin, bits = rest
        return (
            f"move:{NXM[source]}[{first}..{first + bits - 1}]"
            f"->{NXM[target]}[{begin}..{begin + bits - 1}]"
        )
    if kind == "push_vlan":
        return "push_vlan:0x8100"
    if kind == "resubmit":
        port, table = rest
        return f"resubmit({'' if port is None else port},{table})"
    if kind == "metadata":
        value, mask = rest
        return f"write_metadata:{value:#x}/{mask:#x}"
    if kind == "goto":
        return f"goto_table:{rest[0]}"
    raise ValueError(kind)


class Reference:
    """The rules of a bridge, and what they do with a packet."""

    def __init__(self, rules):
        self.tables = {}
        for rule in sorted(rules, key=lambda rule: -rule.priority):
            self.tables.setdefault(rule.table, []).append(rule)
        self.hits = {}

    def process(self, frame, port):
        """[(output port, bytes)] for one frame."""
        if len(frame) < 14:
            return []
        walk = Walk(frame, port)
        self.table(walk, 0, port)
        return walk.outputs

    def trail(self, frame, port):
        """The rules that a frame meets, in order."""
        walk, before = Walk(frame, port), dict(self.hits)
        self.table(walk, 0, port)
        self.hits = before
        return walk.trail

    def table(self, walk, number, port):
        """Looks a table up as if the packet came from `port`, and does what the rule says."""
        while number is not None:
            fields = walk.all()
            fields["in_port"] = port
            if fields["ip_frag"]:
                # The default of OFPT_SET_CONFIG, OFPC_FRAG_NORMAL, as ovs-ofctl(8) has it: in every
                # fragment, also the first, ports and ICMP type and code count as 0.
                fields.update(tp_src=0, tp_dst=0, icmp_type=0, icmp_code=0)
            rule = next(
                (rule for rule in self.tables.get(number, ()) if rule.matches(fields)), None
            )
            number = None
            if rule is not None:
                self.hits[rule.cookie] = self.hits.get(rule.cookie, 0) + 1
                walk.trail.append(str(rule))
                number = self.act(walk, rule)
                port = walk.port

    def act(self, walk, rule):
        """Runs a rule's actions; returns the table to go on with."""
        for kind, *rest in rule.actions:
            if kind == "output":
                if rest[0] != walk.port:
                    walk.outputs.append((rest[0], bytes(walk.frame)))
            elif kind == "in_port":
                walk.outputs.append((walk.port, bytes(walk.frame)))
            elif kind == "set":
                name, value, mask, _ = rest
                if mask is not None:
                    value = walk.get(name) & ~mask | value & mask
                walk.put(name, value)
            elif kind == "load":
                name, first, bits, value = rest
                hole = ((1 << bits) - 1) << first
                walk.put(name, walk.get(name) & ~hole | value << first)
            elif kind == "move":
                source, first, target, begin, bits = rest
                value = walk.get(source) >> first & ((1 << bits) - 1)
                hole = ((1 << bits) - 1) << begin
                walk.put(target, walk.get(target) & ~hole | value << begin)
            elif kind == "push_vlan":
                walk.frame[12:12] = struct.pack("!HH", 0x8100, 0)
            elif kind == "pop_vlan":
                if walk.get("vlan_tci"):
                    del walk.frame[12:16]
            elif kind == "dec_ttl":
                ttl = walk.get("nw_ttl")
                if ttl <= 1:
                    return None  # the rest of this rule is not done
                walk.put("nw_ttl", ttl - 1)
            elif kind == "resubmit":
                port, table = rest
                self.table(walk, table, walk.port if port is None else port)
            elif kind == "metadata":
                value, mask = rest
                walk.own["metadata"] = walk.own["metadata"] & ~mask | value & mask
            elif kind == "goto":
                return rest[0]
        return None


# ---------------------------------------------------------------- pcap files


def write_pcap(path, frames):
    """Frames as a pcap file."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(frames):
            file.write(
                struct.pack("<IIII", number // 1000, number % 1000, len(frame), len(frame)) + frame
            )


def read_pcap(path):
    """The frames of a pcap file."""
    with open(path, "rb") as file:
        data = file.read()
    if not data:
        return []
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    frames, position = [], 24
    while position < len(data):
        (captured,) = struct.unpack(order + "I", data[position + 8 : position + 12])
        frames.append(data[position + 16 : position + 16 + captured])
        position += 16 + captured
    return frames


def chooser(seed):
    """A random generator that gives the same sequence everywhere."""
    return random.Random(seed)
