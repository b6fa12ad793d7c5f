"""Rule sets with the traffic that meets them, for bench/forwarding.py and whoever else wants them.

A rule is a line for ovs-ofctl in which {in}, {out} and {out2} stand for ports. Where it is known
which rule each frame must meet, the rule's number is its cookie, and the case says so for each
frame.
"""

import dataclasses
import random

import cases_connections
import cases_long
import cases_tunnels
from frames import FRAMES, TCP, UDP, address_text, frame, mac_text, prefix_mask, uniform, zipf


@dataclasses.dataclass
class Case:
    """A rule set and its traffic."""

    rules: list
    frames: list
    # For each frame the cookie of its rule.
    hits: list = None
    # For a learning bridge: the port ("in", "out", "out2") behind which each MAC address is.
    stations: dict = None
    # Where packets go by tunnels: what sets all up.
    tunnels: cases_tunnels.Tunnels = None


def sink(number):
    """One of the two ports out."""
    return "{out}" if number % 2 else "{out2}"


def one_service(frames):
    """A rule for UDP to port 80 and any flows."""
    return Case(["priority=10,udp,tp_dst=80,actions=output:{out}"], frames)


def access_list(count, shapes_count, seed):
    """Rules over so many different masks of addresses and ports, each with a priority of its own,
    and packets that meet them."""
    draw = random.Random(seed)
    shapes = []
    while len(shapes) < shapes_count:
        shape = (
            prefix_mask(draw.choice([8, 12, 16, 20, 24, 28, 32])),
            prefix_mask(draw.choice([8, 16, 20, 24, 28, 32])),
            draw.choice([0, 0xF000, 0xFF00, 0xFFFF]),
            draw.choice([0, 0xFF00, 0xFFFF]),
            draw.choice([TCP, UDP]),
        )
        if shape not in shapes:
            shapes.append(shape)
    rules, values, tables = [], [], [{} for _ in shapes]
    for number in range(count):
        shape, table = shapes[number % shapes_count], tables[number % shapes_count]
        value = (
            draw.getrandbits(32) & shape[0],
            draw.getrandbits(32) & shape[1],
            draw.randrange(65536) & shape[2],
            draw.randrange(65536) & shape[3],
        )
        if value in table:
            continue
        cookie = len(rules) + 1
        table[value] = cookie
        values.append((value, shape))
        match = (
            f"{'udp' if shape[4] == UDP else 'tcp'},"
            f"nw_src={address_text(value[0])}/{address_text(shape[0])},"
            f"nw_dst={address_text(value[1])}/{address_text(shape[1])}"
        )
        match += f",tp_src={value[2]:#x}/{shape[2]:#x}" if shape[2] else ""
        match += f",tp_dst={value[3]:#x}/{shape[3]:#x}" if shape[3] else ""
        rules.append(f"cookie={cookie},priority={9 + cookie},{match},actions=output:{sink(number)}")
    frames, hits = [], []
    for _ in range(FRAMES):
        value, shape = values[draw.randrange(len(values))]
        packet = tuple(
            part | draw.getrandbits(bits) & ~mask
            for part, mask, bits in zip(value, shape, (32, 32, 16, 16))
        )
        frames.append(frame(*packet, shape[4]))
        # The latest rule has the highest priority.
        hits.append(
            max(
                table.get(tuple(part & mask for part, mask in zip(packet, other)), 0)
                for table, other in zip(tables, shapes)
                if other[4] == shape[4]
            )
        )
    return Case(rules + ["cookie=0,priority=1,actions=output:{out}"], frames, hits)


def tuple_space_explosion(seed):
    """Four rules, and packets that differ from them at every bit in turn, so that a reactive cache
    needs a mask for each prefix length (Csikor, Divakaran, Kang, Korosi, Sonkoly, Haja, Pezaros,
    Schmid, Retvari: Tuple Space Explosion, CoNEXT 2019)."""
    draw = random.Random(seed)
    rules = [
        "priority=40,tcp,tp_dst=80,actions=output:{out}",
        "priority=30,ip,nw_src=10.0.0.1,actions=output:{out}",
        "priority=20,tcp,tp_src=12345,actions=output:{out}",
        "priority=1,actions=output:{out}",
    ]
    frames = []
    for _ in range(FRAMES):
        source = (
            0x0A000001 ^ (1 << (31 - draw.randrange(32))) ^ draw.getrandbits(draw.randrange(1, 32))
        )
        source_port = 12345 ^ (1 << draw.randrange(16))
        destination_port = 80 ^ (1 << draw.randrange(16))
        source_port ^= draw.getrandbits(max(1, (source_port ^ 12345).bit_length() - 1))
        destination_port ^= draw.getrandbits(max(1, (destination_port ^ 80).bit_length() - 1))
        frames.append(frame(source, draw.getrandbits(32), source_port, destination_port, TCP))
    return Case(rules, frames)


def tenant(flows):
    """Three tables: port security, routing by 256 prefixes with the edits of a router, an access
    list."""
    rules = [
        (
            "table=0,priority=10,in_port={in},dl_src=02:00:00:00:00:01,"
            "actions=load:7->NXM_NX_REG0[],resubmit(,1)"
        ),
        "table=0,priority=0,actions=drop",
    ]
    rules += [
        f"cookie={network + 1},table=1,priority=10,ip,nw_dst=11.0.{network}.0/24,"
        f"actions=load:{network}->NXM_NX_REG1[],dec_ttl,"
        f"mod_dl_dst:02:00:00:00:01:{network:02x},resubmit(,2)"
        for network in range(256)
    ]
    rules += [
        f"table=2,priority=10,reg0=7,udp,tp_dst={port},actions=output:{{out}}"
        for port in range(70, 90)
    ]
    rules.append("table=2,priority=1,actions=drop")
    frames = uniform(flows)
    return Case(rules, frames, [data[32] + 1 for data in frames])


def routing(count):
    """A router: prefixes as long as those of the Internet's table, each with a next hop of 256; TTL
    and MAC addresses change."""
    draw = random.Random(17)
    tables = {length: {} for length in range(12, 33)}
    lengths = [24] * 60 + [23, 22] * 10 + [21, 20, 19] * 4 + [18, 16] * 2 + [32, 28, 14, 12]
    rules, routes = [], []
    while len(rules) < count:
        length = draw.choice(lengths)
        network = (draw.randrange(1, 224) << 24 | draw.getrandbits(24)) & prefix_mask(length)
        if network in tables[length]:
            continue
        cookie = len(rules) + 1
        tables[length][network] = cookie
        routes.append((network, length))
        hop = draw.randrange(256)
        rules.append(
            f"cookie={cookie},priority={100 + length},ip,nw_dst={address_text(network)}/{length},"
            "actions=dec_ttl,mod_dl_src:02:00:00:00:02:00,"
            f"mod_dl_dst:02:00:00:00:01:{hop:02x},output:{sink(hop)}"
        )
    frames, hits = [], []
    longest_first = sorted(tables, reverse=True)
    for _ in range(FRAMES):
        network, length = routes[draw.randrange(count)]
        destination = network | draw.getrandbits(32) & ~prefix_mask(length) & 0xFFFFFFFF
        frames.append(
            frame(0x0A000000 + draw.randrange(65536), destination, 1024 + draw.randrange(50000), 80)
        )
        hits.append(
            next(
                tables[bits][destination & prefix_mask(bits)]
                for bits in longest_first
                if destination & prefix_mask(bits) in tables[bits]
            )
        )
    return Case(rules, frames, hits)


def bridging(count, learned):
    """A bridge with so many MAC addresses: half of them behind the port in, which send to the
    others behind the ports out. `learned` says whether NORMAL has learned them, or rules for each
    destination stand in its place (then all are destinations)."""
    station = 0x020000100000
    if not learned:
        rules = [
            f"cookie={number + 1},priority=10,dl_dst={mac_text(station + number)},"
            f"actions=output:{sink(number)}"
            for number in range(count)
        ]
        order = random.Random(19).sample(range(count), min(count, FRAMES))
        return Case(
            rules,
            [to_station(number, station + number) for number in order],
            [number + 1 for number in order],
        )
    half = count // 2
    stations = {station + number: sink(number).strip("{}") for number in range(half)} | {
        2 * station + number: "in" for number in range(half)
    }
    order = random.Random(19).sample(range(half), min(half, FRAMES))
    return Case(
        ["actions=NORMAL"],
        [to_station(number, station + number, 2 * station + number) for number in order],
        stations=stations,
    )


def learning(count):
    """What OpenStack's agents and many others have instead of NORMAL: a rule that learns where each
    of so many hosts is, from packets that it then sends on."""
    learn = (
        "learn(table=20,hard_timeout=300,priority=1,cookie=0x1,NXM_OF_VLAN_TCI[0..11],"
        "NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0->NXM_OF_VLAN_TCI[],output:NXM_OF_IN_PORT[])"
    )
    order = random.Random(31).sample(range(count), min(count, FRAMES))
    order *= max(1, 4096 // len(order))
    station = 0x020000100000
    return Case(
        [
            "priority=1,in_port={in},actions=resubmit(,10)",
            f"table=10,priority=1,actions={learn},output:{{out}}",
        ],
        [to_station(number, 0x020000000001, station + number) for number in order],
    )


def switching(count):
    """A switch made of rules: each packet teaches where its source is, and goes to where its
    destination has been learned to be; so many hosts on either side."""
    learn = (
        "learn(table=20,hard_timeout=300,priority=1,cookie=0x1,"
        "NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])"
    )
    near, far = 0x020000100000, 0x020000200000
    far_hosts = [
        f"table=20,priority=1,cookie=0x1,dl_dst={mac_text(far + number)},actions=output:{{out}}"
        for number in range(count)
    ]
    order = random.Random(31).sample(range(count), min(count, FRAMES))
    order *= max(1, 4096 // len(order))
    return Case(
        [f"priority=1,actions={learn},resubmit(,20)", *far_hosts],
        [to_station(number, far + number * 7919 % count, near + number) for number in order],
    )


def exact(count):
    """A rule for each flow, by addresses and ports."""
    draw = random.Random(23)
    flows = [
        (0x0A000000 + number, 0x0B000000 + number * 7919 % 65536, 1024 + number % 50000, 80)
        for number in range(count)
    ]
    rules = [
        f"cookie={number + 1},priority=10,udp,nw_src={address_text(flow[0])},"
        f"nw_dst={address_text(flow[1])},tp_src={flow[2]},tp_dst=80,actions=output:{sink(number)}"
        for number, flow in enumerate(flows)
    ]
    order = draw.sample(range(count), min(count, FRAMES))
    order = order * max(1, 4096 // len(order))
    return Case(
        rules, [frame(*flows[number]) for number in order], [number + 1 for number in order]
    )


def mixed(count):
    """Rules over 50 masks of addresses and ports (as many as there are rules when those are fewer),
    one priority for each mask, and packets that meet them or a rule before them."""
    draw = random.Random(29)
    # Long enough that a million rules of fifty masks find room.
    shapes = [
        (
            prefix_mask(draw.randrange(18, 33)),
            prefix_mask(draw.randrange(12, 33)),
            draw.choice([0, 0xFFFF]),
            draw.choice([0, 0xFF00, 0xFFFF]),
        )
        for _ in range(50)
    ]
    rules, values = [], []
    for number in range(count):
        shape = shapes[number % 50]
        value = tuple(draw.getrandbits(bits) & mask for bits, mask in zip((32, 32, 16, 16), shape))
        match = (
            f"udp,nw_src={address_text(value[0])}/{address_text(shape[0])},"
            f"nw_dst={address_text(value[1])}/{address_text(shape[1])}"
        )
        match += ",tp_src={:#x}/{:#x}".format(value[2], shape[2]) if shape[2] else ""
        match += ",tp_dst={:#x}/{:#x}".format(value[3], shape[3]) if shape[3] else ""
        rules.append(f"priority={10 + number % 50},{match},actions=output:{sink(number)}")
        values.append((value, shape))
    chosen = draw.sample(values, min(count, FRAMES))
    chosen *= max(1, 4096 // len(chosen))
    return Case(
        rules,
        [
            frame(
                *(
                    part | draw.getrandbits(bits) & ~mask
                    for part, mask, bits in zip(value, shape, (32, 32, 16, 16))
                )
            )
            for value, shape in chosen
        ],
    )


def to_station(number, destination_mac, source_mac=0x020000000001):
    """A packet of flow `number` between two MAC addresses."""
    return frame(
        0x0A000000 + number,
        0x0B000000 + number * 7919 % 65536,
        1024 + number % 50000,
        80,
        UDP,
        source_mac,
        destination_mac,
    )


CASES = {
    "inport-1": lambda: Case(["in_port={in},actions=output:{out}"], uniform(1)),
    "udp-1": lambda: one_service(uniform(1)),
    "udp-1k": lambda: one_service(uniform(1000)),
    "udp-10k": lambda: one_service(uniform(10000)),
    "udp-100k": lambda: one_service(uniform(100000)),
    "zipf-100k": lambda: one_service(zipf(100000)),
    "acl-1k-10masks": lambda: access_list(1000, 10, 11),
    "acl-1k-50masks": lambda: access_list(1000, 50, 12),
    "l2l3-10k": lambda: tenant(10000),
    "tse": lambda: tuple_space_explosion(13),
    "route-10k": lambda: routing(10000),
    "route-100k": lambda: routing(100000),
    "mac-10k": lambda: bridging(10000, False),
    "mac-100k": lambda: bridging(100000, False),
    "normal-10k": lambda: bridging(10000, True),
    "normal-100k": lambda: bridging(100000, True),
    "learn-1": lambda: learning(1),
    "learn-1k": lambda: learning(1000),
    "learn-10k": lambda: learning(10000),
    "switch-1": lambda: switching(1),
    "switch-1k": lambda: switching(1000),
    "switch-10k": lambda: switching(10000),
}
CASES |= cases_tunnels.cases(lambda frames, tunnels: Case([], frames, tunnels=tunnels))
CASES |= {
    name: lambda make=make: Case(*make())
    for name, make in (cases_long.CASES | cases_connections.CASES).items()
}
