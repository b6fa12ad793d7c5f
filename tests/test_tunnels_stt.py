"""Tunnels of type stt, between two of the switches under test: nothing else here speaks it (the
kernel does not, and Open vSwitch's userspace datapath has none)."""

import struct

from harness import PATIENCE, Skip, check, equal, ethernet, test, wait_for
from tunnels import (
    Watched,
    both_ways,
    carries,
    checksum,
    host,
    ip,
    mark_of,
    marked,
    packed,
    raw_host,
    site,
    sites,
    transfer,
    tunnel,
    wired,
)

STT, TCP = 7471, 6
PARTIAL, IPV4, IS_TCP = 2, 4, 8


def ours(lab, ip6=False, *options):
    """Two joined sites with a tunnel `stt` to each other."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's userspace datapath has no tunnels of type stt")
    first, second = sites(lab, ip6, reference=False)
    for switch, peer in ((first, 2), (second, 1)):
        tunnel(switch, "stt", "stt", peer, *options)
    return first, second


def count(switch, name):
    """One of the switch's counters."""
    return int(switch.appctl("coverage/read-counter", name))


def dropped(switch):
    """Tunnels' drops that are not zero, by name."""
    lines = (line.split() for line in switch.appctl("coverage/show").splitlines())
    names = {line[0] for line in lines if line and line[0].startswith("drop_tunnel")}
    return {name: number for name in names if (number := count(switch, name))}


def cuts(switch):
    """Has the kernel cut what leaves by the wire to its MTU, as a network card would."""
    switch.namespace.run(["ethtool", "-K", "wire", "tso", "off", "gso", "off", "gro", "off"])


class Segments:
    """STT's segments on the way to a port, taken from the wire's end in a switch's namespace."""

    def __init__(self, switch):
        self.raw = switch.namespace.raw("wire")

    def seen(self, seconds):
        """(identifier, length of the STT frame, offset, bytes of the packet) of each."""

        def wanted(frame):
            at = 14 if frame[12:14] == b"\x08\x00" else 34
            return len(frame) > at + 40 and frame[at + 22 : at + 24] == struct.pack("!H", STT)

        found = []
        for frame in self.raw.receive(seconds, wanted):
            l4 = 34 if frame[12:14] == b"\x08\x00" else 54
            length, offset, number = struct.unpack("!HHI", frame[l4 + 4 : l4 + 12])
            found.append((number, length, offset, len(frame) - 14))
        return found


def meet(lab, ip6):
    """Pings and TCP; large segments of the hosts arrive whole and are on the wire in pieces."""
    first, second = ours(lab, ip6, "key=0x123456789abcdef0")
    near, far = host(first, "h1", 1, offloads=True), host(second, "h2", 2, offloads=True)
    for switch in (first, second):
        cuts(switch)
    both_ways(near, far, "10.1.0.1", "10.1.0.2")
    near.ping("fd01::2", 3)
    transfer(far, near, "fd01::1")
    for switch in (first, second):
        check(count(switch, "tunnel_joined") > 0, f"{switch.name} has put nothing together")
    segments = Segments(second)
    transfer(near, far, "10.1.0.2", size=1 << 20)
    seen = segments.seen(0.5)
    frames = {}
    for number, length, offset, size in seen:
        check(size <= 1500, f"a packet of {size} bytes on the wire")
        frames.setdefault((number, length), set()).add(offset)
    largest = max((length for _, length in frames), default=0)
    check(largest > 20000, f"the largest STT frame has {largest} bytes")
    most = max(len(offsets) for offsets in frames.values())
    check(most >= 10, f"the STT frame of the most packets is in {most}")
    for each in (near, far):
        equal(each.checksum_errors(), {}, f"bad checksums counted in {each.name}")


@test()
def stt_joins_hosts(lab):
    """Over IPv4: pings, and TCP whose 64 KiB segments go into the tunnel whole, cross the wire in
    several packets of its MTU and come out whole."""
    meet(lab, ip6=False)


@test()
def stt_joins_hosts_over_ipv6(lab):
    """The same over IPv6."""
    meet(lab, ip6=True)


@test()
def large_segments_go_by_uncut_where_nothing_cuts_them(lab):
    """On a wire that takes 64 KiB, as between containers, nothing is cut or put together."""
    first, second = ours(lab, False, "key=5")
    near, far = host(first, "h1", 1, offloads=True), host(second, "h2", 2, offloads=True)
    both_ways(near, far, "10.1.0.1", "10.1.0.2")
    equal(
        [count(switch, "tunnel_joined") for switch in (first, second)],
        [0, 0],
        "frames put together",
    )


@test()
def stt_carries_tags(lab):
    """Frames with VLAN tags come out as they went in: a tag that STT's header can say, one that is
    drop eligible, one of 802.1ad, and two."""
    first, second = ours(lab)
    for switch in (first, second):
        switch.raw = raw_host(switch, f"{switch.name}h")
        # NORMAL would take a tag without a VLAN away.
        switch.flows("in_port=in,actions=stt", "in_port=stt,actions=in", bridge="br-int")
    carries(first, second, 1)
    for number, tags in enumerate(
        (
            [(0x8100, 7)],
            [(0x8100, 0xE007)],
            [(0x8100, 0x1007)],
            [(0x88A8, 9)],
            [(0x8100, 7), (0x8100, 8)],
            [(0x8100, 0)],
        ),
        100,
    ):
        payload = struct.pack("!I", number) + bytes(60)
        frame = ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, payload, vlans=tags)
        first.raw.send(frame)
        found = second.raw.receive(5, lambda got: got[-64:] == payload, until=1)
        equal([got.hex() for got in found], [frame.hex()], f"a frame with the tags {tags}")
    # Hosts at access ports: their large segments have a tag inside.
    ends = []
    for switch, number in ((first, 1), (second, 2)):
        ends.append(host(switch, f"h{number}", number, offloads=True))
        switch.vsctl("set", "Port", f"h{number}-p", "tag=30")
        cuts(switch)
        switch.flows("actions=NORMAL", bridge="br-int")
    both_ways(*ends, "10.1.0.1", "10.1.0.2")


@test()
def stt_keys_have_64_bits(lab):
    """With key=flow rules set keys of 64 bits, and match them at the other end."""
    first, second = ours(lab, False, "key=flow")
    keys = (1, 0x123456789ABCDEF0, 0xFFFFFFFFFFFFFFFF)
    for switch in (first, second):
        switch.raw = raw_host(switch, f"{switch.name}h")
        switch.flows(
            *(
                f"priority=5,in_port=in,dl_src=02:00:00:00:00:0{number},"
                f"actions=set_tunnel64:{key:#x},stt"
                for number, key in enumerate(keys)
            ),
            *(
                f"priority=5,in_port=stt,tun_id={key:#x},"
                f"actions=mod_dl_dst:02:00:00:00:01:0{number},in"
                for number, key in enumerate(keys)
            ),
            "priority=0,actions=drop",
            bridge="br-int",
        )
    for number in range(len(keys)):
        frame = carries(first, second, 200 + number, source=f"02:00:00:00:00:0{number}")
        equal(frame[:6].hex(":"), f"02:00:00:00:01:0{number}", "what the key's rule has written")


@test()
def stt_is_shown(lab):
    """The displays of tunnels, a trace into one, and what is refused."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's userspace datapath has no tunnels of type stt")
    switch = site(lab)
    wired(switch)
    switch.appctl("tnl/neigh/set", "br-phy", "10.9.0.2", "02:00:00:00:00:02")
    tunnel(switch, "t1", "stt", 2, "key=0x100000001", "ttl=9", "tos=32", "csum=true", "exts=gbp")
    line = switch.appctl("ofproto/list-tunnels").strip()
    check(
        line.startswith("port ")
        and "t1 (stt: ::->10.9.0.2, key=0x100000001, legacy_l2, dp port=" in line,
        line,
    )
    check("stt_sys_7471 (" in switch.appctl("tnl/ports/show"), "the port is not shown")
    listening = "proto=6,frag=no),tcp(dst=7471)"
    wait_for("the TCP port is shown", lambda: listening in switch.appctl("tnl/ports/show", "-v"))
    status = switch.get("Interface", "t1", "status")
    for key in ("csum", "exts"):
        check(f"unknown stt argument '{key}', ignoring it" in str(status), status)
    switch.flows("in_port=LOCAL,actions=t1", bridge="br-int")
    trace = switch.appctl("ofproto/trace", "br-int", "in_port=LOCAL,dl_src=02:00:00:00:00:01")
    check("tunneling to 10.9.0.2 via br-phy" in trace, trace)
    check("tcp(src=0,dst=7471),stt(id=0x100000001)" in trace, trace)
    error = tunnel(switch, "t2", "stt", 2, "key=0x100000001", ok=False).stderr
    check("same config as port 't1'" in error, error)
    # Another protocol's tunnel may have the same port, since that is one of UDP.
    tunnel(switch, "t3", "vxlan", 2, "dst_port=7471")
    tunnel(switch, "t4", "stt", 2, "dst_port=7472", "packet_type=legacy_l2")
    error = tunnel(switch, "t5", "stt", 2, "key=3", "packet_type=legacy_l3", ok=False).stderr
    check("legacy_l3 configured on stt tunnel that cannot carry L3 traffic" in error, error)


@test()
def other_tcp_is_the_hosts(lab):
    """Of TCP to the underlay's address only the tunnel's port is taken."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's userspace datapath has no tunnels of type stt")
    at = Watched(lab)
    tunnel(at.switch, "stt", "stt", 2)
    at.far.reaches(at.here)
    transfer(at.far, at.switch.namespace, at.here, size=1 << 20)
    transfer(at.switch.namespace, at.far, at.there, size=1 << 20)
    equal(dropped(at.switch), {}, "what tunnels have dropped")


# What must not do harm.


def segment(
    at, payload, length=None, offset=0, number=1, flags=0x18, words=5, right=True, **fields
):
    """A TCP segment of an STT frame in an IP packet; `length` is what it says of all segments."""
    total = len(payload) if length is None else length
    source, target = fields.pop("source", at.there), at.here

    def tcp(value):
        head = struct.pack(
            "!HHHHIBBHHH", 50000, STT, total, offset, number, words << 4, flags, 0xFFFF, value, 0
        )
        return head + payload

    pseudo = packed(source) + packed(target) + struct.pack("!II", len(tcp(0)), TCP)
    value = checksum(pseudo + tcp(0)) if right else 0x1234
    return ip(source, target, TCP, tcp(value), **fields)


def stt(key, frame, flags=0, l4=0, mss=0, tag=0, version=0):
    """An STT header and what it carries."""
    return struct.pack("!BBBBHHQH", version, flags, l4, 0, mss, tag, key, 0) + frame


def bad(at):
    """What a tunnel with key 7 must not take, {what: function from a frame to packets}."""

    def whole(frame, **fields):
        return [segment(at, stt(7, frame, **fields))]

    def pieces(frame, number, *ranges, length=None):
        data = stt(7, frame)
        return [
            segment(at, data[a:b], length or len(data), a, number, **fields)
            for a, b, fields in ranges
        ]

    udp_inside = ip("10.1.0.1", "10.1.0.2", 17, struct.pack("!HHHH", 1, 2, 8 + 4, 0) + b"none")
    return {
        "no bytes": lambda frame: [segment(at, b"", 60)],
        "a SYN": lambda frame: [segment(at, b"", 0, flags=2)],
        "half a header": lambda frame: [segment(at, stt(7, frame)[:9])],
        "no frame": lambda frame: whole(b""),
        "13 bytes of a frame": lambda frame: whole(frame[:13]),
        "another version": lambda frame: whole(frame, version=1),
        "an unknown key": lambda frame: [segment(at, stt(8, frame))],
        "an unknown remote": lambda frame: [segment(at, stt(7, frame), source="10.9.0.200")],
        "a wrong TCP checksum": lambda frame: [segment(at, stt(7, frame), right=False)],
        "a length below the segment's": lambda frame: [segment(at, stt(7, frame), 40)],
        "an offset beyond the length": lambda frame: [segment(at, stt(7, frame), None, 1)],
        "a TCP header of 16 bytes": lambda frame: [segment(at, stt(7, frame), words=4)],
        "a TCP header beyond the packet": lambda frame: [segment(at, stt(7, b""), words=15)],
        "the first segment only": lambda frame: pieces(frame, 2, (0, 50, {})),
        "the last segment only": lambda frame: pieces(frame, 3, (50, 999, {})),
        "overlapping segments": lambda frame: pieces(frame, 4, (0, 50, {}), (40, 999, {})),
        "a wrong checksum of one segment": lambda frame: pieces(
            frame, 5, (0, 50, {}), (50, 999, {"right": False})
        ),
        "a partial checksum of no IP packet": lambda frame: whole(
            frame, flags=PARTIAL | IPV4 | IS_TCP, l4=34
        ),
        "an L4 offset beyond the frame": lambda frame: whole(
            frame[:12] + b"\x08\x00" + udp_inside + frame[12:], flags=PARTIAL | IPV4, l4=255
        ),
        "UDP that is said to be TCP": lambda frame: whole(
            frame[:12] + b"\x08\x00" + udp_inside + frame[12:],
            flags=PARTIAL | IPV4 | IS_TCP,
            l4=34,
            mss=100,
        ),
        "an MSS of UDP": lambda frame: whole(
            frame[:12] + b"\x08\x00" + udp_inside + frame[12:], flags=PARTIAL | IPV4, l4=34, mss=1
        ),
        "IPv4 that is said to be IPv6": lambda frame: whole(
            frame[:12] + b"\x08\x00" + udp_inside + frame[12:], flags=PARTIAL, l4=34
        ),
    }


@test()
def malformed_stt_does_no_harm(lab):
    """STT packets that are too short, wrong, incomplete or nobody's, and offload work that the
    frame inside does not have, do not come in, are counted, and do not stop good ones."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's userspace datapath has no tunnels of type stt")
    at = Watched(lab)
    tunnel(at.switch, "tun", "stt", 2, "key=7")
    at.comes_in(segment(at, stt(7, marked(1))), 1, "a good packet")
    came = []

    def is_good(frame, number):
        if mark_of(frame) != number:
            came.append(frame.hex())
        return mark_of(frame) == number

    at.host.drain()
    for number, (what, make) in enumerate(bad(at).items(), 100):
        for _ in range(2):
            at.inject(*make(marked(number)))
        data = stt(7, marked(1000 + number))
        at.inject(
            segment(at, data[60:], len(data), 60, 1000 + number),
            segment(at, data[:60], len(data), 0, 1000 + number),
        )
        wanted = 1000 + number
        frames = at.host.receive(5, lambda frame, wanted=wanted: is_good(frame, wanted), until=1)
        check(frames, f"a good packet is lost after one with {what}")
        equal(frames[0], marked(1000 + number), f"the good frame after one with {what}")
    at.inject(segment(at, stt(7, marked(2))))
    seen = at.host.receive(5, lambda frame: is_good(frame, 2), until=1)
    check(seen, "the last good packet is lost")
    came += [frame.hex() for frame in at.host.receive(0.5 * PATIENCE)]
    equal(came, [], "STT packets that came in with something wrong")
    wait_for(
        "the incomplete ones are given up",
        lambda: count(at.switch, "drop_tunnel_segment_late") >= 3,
    )
    drops = dropped(at.switch)
    for name in (
        "length",
        "inner_short",
        "flags",
        "no_port",
        "checksum",
        "offload",
        "segment_contradiction",
        "segment_twice",
        "segment_late",
    ):
        check(drops.get(f"drop_tunnel_{name}"), f"tunnel_{name} counts nothing: {drops}")
    at.switch.appctl("version")


@test()
def one_source_leaves_room_to_others(lab):
    """Of first segments from one source at most half of what there is room for waits, so that a
    frame of another is put together meanwhile; each segment is counted once."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's userspace datapath has no tunnels of type stt")
    at = Watched(lab)
    tunnel(at.switch, "tun", "stt", "flow", "key=7")
    at.comes_in(segment(at, stt(7, marked(1))), 1, "a good packet")
    # All announce as long a frame as can be.
    flood = [
        segment(at, stt(7, marked(2)), 65535, 0, number, source="10.9.0.200")
        for number in range(1000, 1200)
    ]
    attempts = []

    def attempt():
        number = 100 + len(attempts)
        attempts.append(number)
        data = stt(7, marked(number))
        at.inject(segment(at, data[:50], len(data), 0, number))
        at.inject(*flood)
        at.inject(segment(at, data[50:], len(data), 50, number))
        return at.arrives(number, 0.4)

    wait_for("the other source's frame comes in", attempt)
    check(count(at.switch, "drop_tunnel_segment_share") > 0, "nothing gave way")
    # The same numbers may still wait from the attempt before: those come twice.
    sent = (len(flood) + 2) * len(attempts)

    def accounted():
        names = ("joined_segments", "segment_share", "segment_late", "segment_twice")
        known = dropped(at.switch)
        joined = count(at.switch, "tunnel_joined_segments")
        return joined + sum(known.get(f"drop_tunnel_{name}", 0) for name in names[1:]) == sent

    wait_for("every segment is counted once", accounted)
    equal(count(at.switch, "drop_tunnel_segment_full"), 0, "frames that gave way to all")


@test()
def segments_of_a_dropped_frame_are_counted(lab):
    """A frame that is put together and then has a key that no tunnel has counts as the segments
    that it came in, and one that comes in as one frame of the tunnel's port."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's userspace datapath has no tunnels of type stt")
    at = Watched(lab)
    tunnel(at.switch, "tun", "stt", 2, "key=7")
    at.comes_in(segment(at, stt(7, marked(1))), 1, "a good packet")
    before = at.switch.counters("br-int")["tun"]["rx"]["pkts"]
    for key, number in ((8, 10), (7, 11)):
        data = stt(key, marked(number))
        at.inject(
            *(segment(at, data[a : a + 20], len(data), a, number) for a in range(0, len(data), 20))
        )
    check(at.arrives(11), "the good frame is lost")
    pieces = -(-len(data) // 20)
    equal(dropped(at.switch), {"drop_tunnel_no_port": pieces}, "drops")
    equal(count(at.switch, "tunnel_joined_segments"), pieces, "segments that came in")
    equal(count(at.switch, "tunnel_joined"), 1, "frames put together")
    wait_for(
        "the port has counted one frame more",
        lambda: at.switch.counters("br-int")["tun"]["rx"]["pkts"] == before + 1,
    )
