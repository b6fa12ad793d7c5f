"""IP fragments at `ct`: whole datagrams are tracked, and their fragments go on; on Open vSwitch and
here."""

import re
import socket
import struct
import threading
import time

from harness import becomes, check, equal, ethernet, inside, test

ONE, TWO = "02:00:00:00:00:01", "02:00:00:00:00:02"

# Connections from port 1 are let out and their answers in, by IPv4 and IPv6.
FIREWALL = [
    "table=0,priority=10,arp,actions=NORMAL",
    *(
        f"table=0,priority=10,icmp6,icmp_type={kind},actions=NORMAL"
        for kind in (133, 134, 135, 136)
    ),
    *(
        rule.format(kind)
        for kind in ("ip", "ipv6")
        for rule in (
            "table=0,priority=5,{},actions=ct(table=1,zone=3)",
            "table=1,in_port=1,{},ct_state=+trk+new,actions=ct(commit,zone=3),output:2",
            "table=1,in_port=1,{},ct_state=+trk+est,actions=output:2",
            "table=1,in_port=2,{},ct_state=+trk+est,actions=output:1",
            "table=1,priority=1,{},actions=drop",
        )
    ),
]

# What comes by port 1 leaves by port 2, with an address that says what the tracker said: new or
# established (01), invalid (aa), invalid and not tracked (bb).
MARKING = [
    *(
        rule.format(kind)
        for kind in ("ip", "ipv6")
        for rule in (
            "table=0,priority=5,in_port=1,{},actions=ct(table=1,zone=3)",
            "table=1,priority=9,{},ct_state=+trk+new,actions=ct(commit,zone=3,table=2)",
            "table=1,priority=9,{},ct_state=+trk+est,actions=output:2",
            "table=1,priority=9,{},ct_state=+trk+inv,actions=mod_dl_src:02:00:00:00:00:aa,output:2",
            "table=1,priority=9,{},ct_state=-trk+inv,actions=mod_dl_src:02:00:00:00:00:bb,output:2",
            "table=2,{},actions=output:2",
        )
    ),
]
GOOD, INVALID, EXPIRED = 0x01, 0xAA, 0xBB


def folded(data):
    """The Internet checksum's sum of some bytes."""
    data += b"\0" * (len(data) % 2)
    sum_ = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while sum_ >> 16:
        sum_ = (sum_ & 0xFFFF) + (sum_ >> 16)
    return sum_


def packed(address):
    """An address as bytes."""
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def pseudo(source, destination, length):
    """What the checksum of UDP also covers."""
    return packed(source) + packed(destination) + struct.pack("!HBBH", 0, 0, 17, length)


def udp(source, destination, size, source_port=5, destination_port=6):
    """A UDP datagram with its checksum, without IP header."""
    payload = bytes(at * 7 % 251 for at in range(size))
    ports = struct.pack("!HHH", source_port, destination_port, 8 + size)
    sum_ = 0xFFFF ^ folded(pseudo(source, destination, 8 + size) + ports + b"\0\0" + payload)
    return ports + struct.pack("!H", sum_ or 0xFFFF) + payload


def fragment(source, destination, ident, offset, more, data):
    """A frame with a fragment."""
    if ":" in source:
        header = struct.pack("!IHBB", 6 << 28, 8 + len(data), 44, 64)
        header += packed(source) + packed(destination)
        header += struct.pack("!BBHI", 17, 0, offset | more, ident)
        return ethernet(TWO, ONE, 0x86DD, header + data)
    place = offset // 8 | (0x2000 if more else 0)
    header = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(data), ident, place, 64, 17)
    addresses = packed(source) + packed(destination)
    sum_ = 0xFFFF ^ folded(header + addresses)
    return ethernet(TWO, ONE, 0x800, header + struct.pack("!H", sum_) + addresses + data)


def cut(source, destination, ident, data, size=1400):
    """All fragments of a datagram."""
    return [
        fragment(source, destination, ident, at, at + size < len(data), data[at : at + size])
        for at in range(0, len(data), size)
    ]


V4, V6 = ("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")


def lone(ident, offset=0, size=1400, ends=V4):
    """A fragment whose datagram never comes."""
    return fragment(*ends, ident, offset, True, bytes(size))


def arrive(port, wanted, what, in_order=True):
    """Expects frames, in this order: what the rules say of each, and the frame that was sent."""
    got = port.receive(5, until=len(wanted)) + port.receive(0.3)
    told = [(frame[11], frame[12:]) for frame in got]
    if not in_order:
        told = sorted(told, key=lambda frame: frame[1][6:])
        wanted = sorted(wanted, key=lambda frame: frame[1][18:])
    equal(
        [(mark, len(frame), frame[:30].hex()) for mark, frame in told],
        [(mark, len(frame[12:]), frame[12:42].hex()) for mark, frame in wanted],
        what,
    )
    equal([frame for _, frame in told], [frame[12:] for _, frame in wanted], f"bytes, {what}")


def status(switch):
    """dpctl/ipf-get-status as a dictionary."""
    return dict(
        re.fullmatch(r" {8}(\S.*): (\d+)", line).groups()
        for line in switch.appctl("dpctl/ipf-get-status").splitlines()[2:]
        if line
    )


def lists(switch):
    """What fragments wait for, by dpctl/ipf-get-status -m."""
    text = switch.appctl("dpctl/ipf-get-status", "-m").split("Fragment Lists:\n\n")[1]
    return sorted(line for line in text.splitlines() if line)


class BigEcho:
    """A UDP server of big datagrams, which answers with the peer's address and the datagram."""

    def __init__(self, host, port, family=socket.AF_INET):
        with inside(host):
            self.udp = socket.socket(family, socket.SOCK_DGRAM)
            self.udp.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        """Answers each datagram."""
        while True:
            try:
                data, address = self.udp.recvfrom(65536)
                self.udp.sendto(f"{address[0]} {address[1]}\n".encode() + data, address)
            except OSError:
                return

    def close(self):
        """Stops serving."""
        self.udp.close()


def ask(host, address, port, size, source=0, seconds=3):
    """Sends a big datagram to the server; returns whom it saw, or None without an answer."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with inside(host):
        client = socket.socket(family, socket.SOCK_DGRAM)
    data = bytes(at * 11 % 253 for at in range(size))
    with client:
        client.settimeout(seconds)
        try:
            if source:
                client.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", source))
            client.connect((address, port))
            client.send(data)
            seen, echoed = client.recv(65536).split(b"\n", 1)
            check(echoed == data, "the datagram has changed on its way")
            return seen.decode()
        except (TimeoutError, OSError):
            return None


def hosts(lab, switch, count=2):
    """Hosts at the ports 1 and up, with addresses 10.1.0.1 and up and fd01::1 and up."""
    found = []
    for number in range(1, count + 1):
        host = lab.namespace(f"h{number}").quiet()
        switch.pair(host, f"p{number}", ip=f"10.1.0.{number}/24")
        host.run("sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=0 net.ipv6.conf.eth0.accept_dad=0")
        host.run(f"ip addr add fd01::{number}/64 dev eth0 nodad")
        switch.port(f"p{number}", f"ofport_request={number}")
        found.append(host)
    return found


@test(timeout=120)
def big_datagrams_pass_a_firewall(lab):
    """Pings and UDP of several fragments, by IPv4 and IPv6; those from outside stay outside."""
    switch = lab.switch()
    switch.bridge()
    inner, outer = hosts(lab, switch)
    switch.flows(*FIREWALL)
    for target, home, port in (("10.1.0.2", "10.1.0.1", 80), ("fd01::2", "fd01::1", 81)):
        inner.ping(target, 3, size=5000)
        equal(outer.ping(home, 2, size=5000, ok=False), 0, "answers to pings from outside")
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        server, other = BigEcho(outer, port, family), BigEcho(inner, port, family)
        # More than 32 fragments leave Open vSwitch only with the packets behind them.
        for source, size in enumerate((1600, 9000, 60_000)[: 2 if switch.is_ovs else 3], 4000):
            equal(ask(inner, target, port, size, source), f"{home} {source}", f"{size} bytes")
        equal(ask(outer, home, port, 3000, seconds=1), None, "UDP from outside")
        server.close()
        other.close()
    seen = status(switch)
    for family in ("v4", "v6"):
        equal(seen[f"{family} frags accepted"], seen[f"{family} frags completed"], family)
        check(int(seen[f"{family} frags completed"]) > 30, seen)
        equal(seen[f"{family} frags overlapped"], "0", family)
    equal(seen["num frag"], "0", "fragments that wait")
    for host in (inner, outer):
        equal(host.checksum_errors(), {}, "checksum errors")


def translating(one, two, addresses, kind, prefix):
    """Rules with source NAT to an address that stands for host 1."""
    mine, yours, other = addresses
    source, destination = (f"{prefix}_src", f"{prefix}_dst")
    return (
        f"table=0,priority=5,{kind},actions=ct(table=1,zone=7,nat)",
        f"table=1,priority=8,in_port=1,{kind},ct_state=+trk+new,{destination}={yours},"
        f"actions=ct(commit,zone=7,nat(src={other}),table=2)",
        f"table=1,priority=1,{kind},ct_state=+trk-new-inv,actions=resubmit(,2)",
        f"table=2,{kind},{destination}={yours},{source}={other},"
        f"actions=set_field:{two}->eth_dst,output:2",
        f"table=2,{kind},{destination}={mine},actions=set_field:{one}->eth_dst,output:1",
    )


@test(timeout=120)
def big_datagrams_are_translated(lab):
    """Every fragment has the new address, and the checksum covers it. Open vSwitch 3.1 translates
    the first fragment only, so it is not asked."""
    switch = lab.switch()
    switch.bridge()
    one, two = hosts(lab, switch)
    first, second = (
        re.search(r"link/ether (\S+)", host.run("ip link show eth0").stdout)[1]
        for host in (one, two)
    )
    switch.flows(
        "table=0,priority=10,arp,actions=NORMAL",
        "table=0,priority=10,icmp6,icmp_type=135,actions=NORMAL",
        "table=0,priority=10,icmp6,icmp_type=136,actions=NORMAL",
        *translating(first, second, ("10.1.0.1", "10.1.0.2", "10.1.0.100"), "ip", "nw"),
        *translating(first, second, ("fd01::1", "fd01::2", "fd01::100"), "ipv6", "ipv6"),
    )
    two.run(f"ip neigh add 10.1.0.100 lladdr {first} dev eth0")
    two.run(f"ip neigh add fd01::100 lladdr {first} dev eth0")
    for target, seen, port in (("10.1.0.2", "10.1.0.100", 80), ("fd01::2", "fd01::100", 81)):
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        server = BigEcho(two, port, family)
        equal(ask(one, target, port, 100, 4000), f"{seen} 4000", "a small datagram")
        if not switch.is_ovs:
            for size in (3000, 9000):
                equal(ask(one, target, port, size, 4000), f"{seen} 4000", "a big datagram")
            one.ping(target, 3, size=5000)
        server.close()
    for host in (one, two):
        equal(host.checksum_errors(), {}, "checksum errors")


@test(timeout=60)
def fragments_come_in_any_order(lab):
    """They wait, and leave in order once all are there, as new or established; the connection is
    that of the whole datagram."""
    switch = lab.switch()
    switch.bridge()
    one, two = switch.raw_hosts()
    switch.flows(*MARKING)
    for ends in (V4, V6):
        for ident, order in enumerate(((0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1))):
            frames = cut(*ends, 100 + ident, udp(*ends, 4000))
            for index in order[:-1]:
                one.send(frames[index])
            becomes(lambda: status(switch)["num frag"], "2", "fragments that wait")
            equal(two.receive(0.2), [], "frames that leave before the last has come")
            one.send(frames[order[-1]])
            arrive(two, [(GOOD, frame) for frame in frames], f"order {order}")
    equal(
        sorted(switch.appctl("dpctl/dump-conntrack").splitlines()),
        [
            f"udp,orig=(src={source},dst={destination},sport=5,dport=6),"
            f"reply=(src={destination},dst={source},sport=6,dport=5),zone=3"
            for source, destination in (V4, V6)
        ],
        "connections",
    )
    # Two datagrams of one connection at once, and one that is nothing but fragments.
    first, second = (cut(*V4, ident, udp(*V4, 2000)) for ident in (200, 201))
    one.send(first[1], second[1])
    becomes(lambda: status(switch)["num frag"], "2", "fragments that wait")
    for frames in (second, first):
        one.send(frames[0])
        arrive(two, [(GOOD, frame) for frame in frames], "two at once")
    # What the datagram says as a whole counts: a wrong checksum is no fragment's own.
    bad = bytearray(udp(*V4, 2000))
    bad[-1] ^= 1
    frames = cut(*V4, 202, bytes(bad))
    one.send(*frames)
    arrive(two, [(INVALID, frame) for frame in frames], "a wrong checksum")


@test(timeout=60)
def fragments_that_cannot_be_are_invalid(lab):
    """Overlaps, duplicates, too small ones; their datagrams are completed all the same."""
    switch = lab.switch()
    switch.bridge()
    one, two = switch.raw_hosts()
    switch.flows(*MARKING)
    for ends, family in ((V4, "v4"), (V6, "v6")):
        frames = cut(*ends, 7, udp(*ends, 4000))
        one.send(frames[2], frames[0])
        becomes(lambda: status(switch)["num frag"], "2", "fragments that wait")
        kind, number = ("0x800", 17) if family == "v4" else ("0x86dd", 0)
        equal(
            lists(switch),
            [
                f"(src={ends[0]},dst={ends[1]},recirc_id=0,ip_id=7,dl_type={kind},zone=3,"
                f"nw_proto={number},num_fragments=2,state=first/last frag)"
            ],
            "lists",
        )
        for frame in (
            frames[2],
            frames[0],
            lone(7, 1392, 1400, ends),
            lone(7, 1408, 1400, ends),
        ):
            one.send(frame)
            arrive(two, [(INVALID, frame)], "an overlap")
        small = lone(8, 0, 800, ends)
        one.send(small)
        arrive(two, [(INVALID, small)], "a small one")
        one.send(frames[1])
        arrive(two, [(GOOD, frame) for frame in frames], "the datagram")
        seen = status(switch)
        equal(seen[f"{family} frags overlapped"], "4", "overlapped")
        equal(seen[f"{family} frags too small"], "1", "too small")
        # Once for each of two steps.
        equal(seen[f"{family} frags accepted"], "6", "accepted")
        equal(seen[f"{family} frags completed"], "6", "completed")
        switch.appctl("dpctl/ipf-set-min-frag", family, "400")
        frames = cut(*ends, 9, udp(*ends, 1500), 600)
        one.send(*frames)
        arrive(two, [(GOOD, frame) for frame in frames], "smaller ones are admitted")
    equal(lists(switch), [], "lists")


@test(timeout=60)
def fragments_wait_within_limits(lab):
    """No more than so many; those that nobody completes go on as invalid; families are switched
    off."""
    switch = lab.switch()
    switch.bridge()
    one, two = switch.raw_hosts()
    switch.flows(*MARKING)
    switch.appctl("dpctl/ipf-set-max-nfrags", "3")
    held = [lone(ident) for ident in (1, 2, 3)]
    one.send(*held)
    becomes(lambda: status(switch)["num frag"], "3", "fragments that wait")
    one.send(lone(4))
    if switch.is_ovs:
        arrive(two, [(INVALID, lone(4))], "one too many")
    else:
        # The oldest gives way.
        arrive(two, [(EXPIRED, held[0])], "one too many")
        held = [*held[1:], lone(4)]
    equal(status(switch)["max num frags (v4/v6)"], "3", "the limit")
    switch.appctl("dpctl/ipf-set-max-nfrags", "1000")
    for family, ends in (("v4", V4), ("v6", V6)):
        switch.appctl("dpctl/ipf-set-disabled", family)
        frames = cut(*ends, 70, udp(*ends, 2000))
        for frame in frames:
            one.send(frame)
            arrive(two, [(INVALID, frame)], f"{family} is disabled")
        equal(status(switch)[f"{family} enabled"], "0", "enabled")
        switch.appctl("dpctl/ipf-set-enabled", family)
        one.send(*frames)
        arrive(two, [(GOOD, frame) for frame in frames], f"{family} is enabled")
    # Open vSwitch lets expired fragments go on when others come, one datagram at a time, and from
    # where those are: here behind either of two steps.
    time.sleep(15.5)
    expired = two.receive(1)
    for ident in range(90, 100 if switch.is_ovs else 90):
        one.send(*cut(*V4, ident, udp(*V4, 2000)))
        expired += two.receive(0.3)
    bodies = [frame[12:] for frame in held]
    expired = [frame for frame in expired if frame[12:] in bodies]
    check(EXPIRED in [frame[11] for frame in expired], "what rules say of expired ones")
    check(switch.is_ovs or [frame[11] for frame in expired] == [EXPIRED] * 3, "of all")
    in_order = [frame[12:] for frame in expired]
    equal(sorted(in_order) if switch.is_ovs else in_order, bodies, "expired ones")
    seen = status(switch)
    expired = "3" if switch.is_ovs else "4"
    equal((seen["v4 frags expired"], seen["num frag"]), (expired, "0"), "expired")


@test(timeout=60)
def held_fragments_go_with_their_port(lab):
    """What waits when a port or a bridge is removed is freed, and counted as dropped."""
    switch = lab.switch()
    switch.bridge()
    one, _ = switch.raw_hosts()
    switch.flows(*MARKING)
    if switch.is_ovs:
        return
    for ident in (1, 2):
        one.send(lone(ident))
    becomes(lambda: status(switch)["num frag"], "2", "fragments that wait")
    switch.vsctl("del-port", "p2")
    becomes(lambda: status(switch)["num frag"], "0", "fragments that wait")
    equal(switch.drops("fragments_purged"), 2, "dropped")
    equal(status(switch)["v4 frags purged"], "2", "purged")
    one.send(lone(3))
    becomes(lambda: status(switch)["num frag"], "1", "fragments that wait")
    switch.vsctl("del-br", "br0")
    becomes(lambda: switch.drops("fragments_purged"), 3, "dropped")


@test(timeout=60)
def clones_and_lists_wait_for_themselves(lab):
    """Of a clone only the clone waits; steps behind `ct` are done when the datagram is whole."""
    switch = lab.switch()
    switch.bridge()
    one, two, three = switch.raw_hosts(3)
    frames = cut(*V4, 1, udp(*V4, 3000))
    switch.flows(
        "in_port=1,ip,actions=clone(ct(commit,zone=4),output:3),output:2",
    )
    one.send(frames[0])
    arrive(two, [(GOOD, frames[0])], "the original")
    equal(three.receive(0.3), [], "the clone waits")
    one.send(*frames[1:])
    arrive(three, [(GOOD, frame) for frame in frames], "clones")
    arrive(two, [(GOOD, frame) for frame in frames[1:]], "originals")
    switch.flows(
        "table=0,in_port=1,ip,actions=ct(table=1,zone=5),output:2",
        "table=1,ip,ct_state=+new,actions=ct(commit,zone=5),output:3",
    )
    one.send(*frames[:2])
    equal(two.receive(0.3) + three.receive(0.1), [], "all waits")
    one.send(frames[2])
    arrive(two, [(GOOD, frame) for frame in frames], "behind the step")
    arrive(three, [(GOOD, frame) for frame in frames], "in the table")


@test(timeout=60)
def fragments_of_several_workers_meet(lab):
    """Those of one datagram may come by several ports, which different workers serve."""
    switch = lab.switch(config=["other_config:pmd-cpu-mask=0x3"])
    switch.bridge()
    one, two, three = switch.raw_hosts(3)
    switch.flows(*(rule.replace("in_port=1,", "") for rule in MARKING))
    if not switch.is_ovs:
        shown = switch.appctl("dpif-netdev/pmd-rxq-show")
        equal(len(re.findall(r"pmd thread", shown)), 2, f"workers in {shown}")
    for ident in range(8):
        frames = cut(*V4, ident, udp(*V4, 6000), 1256)
        one.send(frames[3], frames[0])
        three.send(frames[2])
        becomes(lambda: status(switch)["num frag"], "3", "fragments that wait")
        three.send(frames[1])
        becomes(lambda: status(switch)["num frag"], "4", "fragments that wait")
        (one, three)[ident % 2].send(frames[4])
        wanted = [(GOOD, frame) for frame in frames]
        arrive(two, wanted, "a datagram by two ports", in_order=not switch.is_ovs)


@test(timeout=60)
def a_flood_by_one_port_keeps_nobody_out(lab):
    """First fragments without end take all room, but give way to other ports' fragments. (With
    Open vSwitch all others' are invalid then.)"""
    switch = lab.switch()
    switch.bridge()
    one, two, three = switch.raw_hosts(3)
    switch.flows(*(rule.replace("in_port=1,", "") for rule in MARKING))
    if switch.is_ovs:
        return
    one.send(*(lone(ident) for ident in range(1200)))
    becomes(lambda: status(switch)["num frag"], "1000", "fragments that wait")
    check(two.receive(5, until=200), "those for which there is no room go on")
    two.drain()
    frames = cut(*V4, 2000, udp(*V4, 6000))
    # One by one: each must find room.
    for number, frame in enumerate(frames[:-1], 1):
        three.send(frame)
        line = f"ip_id=2000,dl_type=0x800,zone=3,nw_proto=17,num_fragments={number},"
        becomes(lambda line=line: any(line in each for each in lists(switch)), True, line)
    three.send(frames[-1])
    got = two.receive(5, wanted=lambda frame: frame[11] != EXPIRED, until=len(frames))
    equal([frame[11] for frame in got], [GOOD] * len(frames), "what rules say")
    equal([frame[12:] for frame in got], [frame[12:] for frame in frames], "what leaves")
    evicted = switch.appctl("coverage/read-counter", "conntrack_fragments_evicted")
    check(int(evicted) >= len(frames) - 1, evicted, "made room")


@test(timeout=60)
def a_flood_keeps_nobody_behind_the_same_port_out(lab):
    """First fragments without end give way to those that other senders have behind their port,
    while these complete quickly. (With Open vSwitch all others' are invalid then.)"""
    switch = lab.switch()
    switch.bridge()
    one, two = switch.raw_hosts()
    switch.flows(*MARKING)
    if switch.is_ovs:
        return
    switch.appctl("dpctl/ipf-set-max-nfrags", "100")

    def by_one_address(number):
        return lone(number, ends=("10.9.0.1", V4[1]))

    def by_many_addresses(number):
        return lone(number, ends=(f"10.8.{number // 250}.{number % 250}", V4[1]))

    for sender, flood in (("10.0.0.7", by_one_address), ("10.0.0.8", by_many_addresses)):
        one.send(*(flood(number) for number in range(150)))
        becomes(lambda: status(switch)["num frag"], "100", "fragments that wait")
        two.drain()
        # Between its fragments, fewer others than there is room for.
        frames = cut(sender, V4[1], 2000, udp(sender, V4[1], 6000))
        for number, frame in enumerate(frames[:-1]):
            one.send(frame)
            one.send(*(flood(200 + number * 15 + at) for at in range(15)))
        one.send(frames[-1])
        got = two.receive(5, wanted=lambda frame: frame[11] != EXPIRED, until=len(frames))
        equal([frame[11] for frame in got], [GOOD] * len(frames), f"what rules say of {sender}")
        equal([frame[12:] for frame in got], [frame[12:] for frame in frames], f"from {sender}")
    displaced = switch.appctl("coverage/read-counter", "conntrack_fragments_displaced")
    check(int(displaced) > 100, displaced, "made room")


@test(timeout=60)
def commands_answer_as_open_vswitch(lab):
    """What the commands print, and what they refuse."""
    switch = lab.switch()
    switch.bridge()
    usage = "command requires at least {} arguments"
    family = "parameter missing: 'v4' for IPv4 or 'v6' for IPv6 (Invalid argument)"
    small = "requested minimum fragment size too small; see documentation (Operation not permitted)"
    many = "setting maximum fragments failed (Operation not permitted)"
    missing = "datapath not found (Invalid argument)"
    done = "fragmentation reassembly successful\n"
    least, most = (
        f"setting {what} successful\n" for what in ("minimum fragment size", "maximum fragments")
    )
    answers = (
        ("set-enabled", usage.format(1)),
        ("set-enabled v5", family),
        ("set-enabled v4", f"enabling {done}"),
        ("set-disabled v6", f"disabling {done}"),
        ("set-disabled x v6", f"disabling {done}"),
        ("set-enabled v4 x", family),
        ("set-enabled netdev@ovs-netdev v4", f"enabling {done}"),
        ("set-enabled a b c", "command takes at most 2 arguments"),
        ("set-min-frag v4", usage.format(2)),
        ("set-min-frag v4 399", small),
        ("set-min-frag v4 400", least),
        ("set-min-frag v6 x", "parameter missing for minimum fragment size (Invalid argument)"),
        ("set-min-frag v5 500", "parameter missing: v4 for IPv4 or v6 for IPv6 (Invalid argument)"),
        ("set-min-frag v6 0x200", small),
        ("set-min-frag v6 70000", least),
        ("set-min-frag q v4 500", missing),
        ("set-min-frag netdev@ovs-netdev v4 500", least),
        ("set-max-nfrags", usage.format(1)),
        ("set-max-nfrags x", "parameter missing for maximum fragments (Invalid argument)"),
        ("set-max-nfrags 5001", many),
        ("set-max-nfrags 99999999999", many),
        ("set-max-nfrags -1", "Unrecognized option -1"),
        ("set-max-nfrags q 7", missing),
        ("set-max-nfrags 5000", most),
        ("set-max-nfrags 0", most),
        ("set-max-nfrags netdev@ovs-netdev 7", most),
        ("get-status x", missing),
        ("get-status -x", "Unrecognized option -x"),
        ("get-status -m netdev@ovs-netdev", "command takes at most 1 arguments"),
    )
    for words, wanted in answers:
        answer = switch.appctl(*f"dpctl/ipf-{words}".split(), ok=False)
        if wanted.endswith("\n"):
            equal(answer.stdout, wanted, words)
        else:
            check(wanted in answer.stderr, words, answer.stderr)
    none = "".join(
        f"        {{0}} frags {what}: 0\n"
        for what in ("accepted", "completed", "expired", "too small", "overlapped", "purged")
    )
    text = (
        "        Fragmentation Module Status\n        ---------------------------\n"
        "        v4 enabled: 1\n        v6 enabled: 0\n        max num frags (v4/v6): 7\n"
        "        num frag: 0\n        min v4 frag size: 500\n"
        + none.format("v4")
        + "        min v6 frag size: 70000\n"
        + none.format("v6")
    )
    equal(switch.appctl("dpctl/ipf-get-status"), text, "status")
    equal(switch.appctl("dpctl/ipf-get-status", "netdev@ovs-netdev"), text, "status by name")
    more = f"{text}\n        Fragment Lists:\n\n"
    equal(switch.appctl("dpctl/ipf-get-status", "--more"), more, "status with lists")
    listed = switch.appctl("list-commands")
    for name, usage in (
        ("ipf-get-status", "[dp]"),
        ("ipf-set-enabled", "[dp] v4|v6"),
        ("ipf-set-disabled", "[dp] v4|v6"),
        ("ipf-set-min-frag", "[dp] v4|v6 minfragment"),
        ("ipf-set-max-nfrags", "[dp] maxfrags"),
    ):
        check(re.search(rf"dpctl/{name} +{re.escape(usage)}\n", listed), name, "in list-commands")
