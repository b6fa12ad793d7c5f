"""Bidirectional Forwarding Detection: with Open vSwitch at the other end, over a plain link and
through tunnels; how it ends, and who goes by it."""

import re
import struct
import time
from functools import partial

from harness import becomes, check, equal, ethernet, test, wait_for
from tunnels import (
    GENEVE,
    WIRE,
    Watched,
    geneve,
    host,
    ipv4,
    join,
    mark_of,
    marked,
    outers,
    raw_host,
    site,
    sites,
    tunnel,
)

PORT = 3784
# A message each 100 ms, and a session lives a second without any: on a busy machine neither end
# need run for longer than the usual 300 ms.
FAST = ("bfd:enable=true", "bfd:min_rx=100", "bfd:min_tx=100", "bfd:mult=10")
STATES = {"admin_down": 0, "down": 1, "init": 2, "up": 3}


def bfd(switch, interface, *settings):
    """Sets keys of an interface's `bfd` column."""
    switch.vsctl("set", "Interface", interface, *settings)


def status(switch, interface):
    """An interface's `bfd_status`."""
    return switch.get("Interface", interface, "bfd_status")


def comes_up(*ends, seconds=20):
    """Waits until these interfaces' sessions are up, as the database says."""
    for switch, interface in ends:
        becomes(
            lambda switch=switch, interface=interface: status(switch, interface).get("state"),
            "up",
            f"{switch.name}'s {interface} is up",
            seconds,
        )


def shown(switch, interface):
    """`bfd/show` of an interface as a dictionary."""
    lines = switch.appctl("bfd/show", interface).splitlines()
    return dict(line.strip().split(": ", 1) for line in lines if line)


def is_live(switch, port, bridge):
    """Whether the switch shows OpenFlow controllers a port as live."""
    text = switch.ofctl("-O", "OpenFlow13", "dump-ports-desc", bridge)
    found = re.search(rf"\({port}\).*?state: +(.*?)\n", text, re.DOTALL)
    return "LIVE" in found[1]


def message(state, mine, yours, flags=0, mult=3, diagnostic=0):
    """A control message, RFC 5880 section 4.1. Its sender is heard seldom, and so lives long."""
    return struct.pack(
        "!BBBBIIIII",
        1 << 5 | diagnostic,
        STATES[state] << 6 | flags,
        mult,
        24,
        mine,
        yours,
        5_000_000,
        100_000,
        0,
    )


def packet(payload, ttl=255):
    """A datagram as BFD's are, in IPv4."""
    datagram = struct.pack("!HHHH", 49152, PORT, 8 + len(payload), 0) + payload
    return ipv4("169.254.1.1", "169.254.1.0", 17, datagram, ttl=ttl, fragment=0)


def frame(payload, ttl=255, destination="00:23:20:00:00:01"):
    """The frame around it."""
    return ethernet(destination, "02:00:00:00:00:77", 0x0800, packet(payload, ttl))


def is_bfd(data):
    """Whether a frame is BFD's."""
    return data[12:14] == b"\x08\x00" and data[23] == 17 and data[36:38] == struct.pack("!H", PORT)


def falls_and_returns(here, there, interface, cut, mend):
    """Both ends come up; a cut is noticed; both come up again. The changes are counted."""
    for switch in (here, there):
        bfd(switch, interface, *FAST)
    comes_up((here, interface), (there, interface))
    flaps = int(status(here, interface)["flap_count"])
    cut()
    becomes(lambda: status(here, interface)["state"], "down", "the cut is noticed", 10)
    fallen = status(here, interface)
    equal(fallen["forwarding"], "false", "whether it forwards")
    check(
        fallen["diagnostic"]
        in ("Control Detection Time Expired", "Neighbor Signaled Session Down"),
        fallen,
    )
    equal(int(fallen["flap_count"]), flaps + 1, "the flaps")
    mend()
    comes_up((here, interface), (there, interface))
    equal(int(status(here, interface)["flap_count"]), flaps + 2, "the flaps")


@test(timeout=90)
def with_open_vswitch_over_a_link(lab):
    """Sessions come up, are shown alike, notice a cut, and end when they are switched off."""
    here, there = site(lab, "s", 1), site(lab, "o", 2, reference=True)
    between = lab.namespace("between").quiet()
    between.run("ip link add name mid type bridge mcast_snooping 0")
    between.run("ip link set mid up")
    for switch in (here, there):
        switch.pair(between, WIRE, f"to-{switch.name}")
        between.run(f"ip link set to-{switch.name} master mid")
        switch.port(WIRE, bridge="br-phy")
    falls_and_returns(
        here,
        there,
        WIRE,
        # Silence, and not the end of a link.
        lambda: between.run("ip link set to-o nomaster"),
        lambda: between.run("ip link set to-o master mid"),
    )
    # An end that has just come up still goes by the other's slow interval until its next message.
    becomes(
        lambda: [shown(here, WIRE)[name] for name in ("TX Interval", "RX Interval", "Forwarding")],
        ["Approx 100ms", "Approx 100ms", "true"],
        "what is shown",
    )
    one, other = (shown(switch, WIRE) for switch in (here, there))
    equal(list(one), list(other), "the lines of bfd/show")
    equal(one["Local Discriminator"], other["Remote Discriminator"], "the session's name")
    check("---- wire ----" in here.appctl("bfd/show"), here.appctl("bfd/show"))
    # Other intervals are agreed on by a poll, without a flap.
    flaps = status(here, WIRE)["flap_count"]
    bfd(here, WIRE, "bfd:min_rx=400", "bfd:min_tx=300", "bfd:mult=5")
    becomes(lambda: shown(there, WIRE)["TX Interval"], "Approx 400ms", "the other's interval")
    becomes(lambda: shown(there, WIRE)["RX Interval"], "Approx 300ms", "the other's interval")
    becomes(lambda: shown(there, WIRE)["Remote Detect Multiplier"], "5", "the multiplier")
    becomes(lambda: shown(here, WIRE)["Local Flags"], "none", "the poll ends")
    bfd(there, WIRE, "bfd:min_rx=200", "bfd:min_tx=500")
    becomes(lambda: shown(here, WIRE)["RX Interval"], "Approx 500ms", "this one's interval")
    equal(status(here, WIRE)["flap_count"], flaps, "the flaps")
    # A path that is down behind an end.
    for away, near in ((here, there), (there, here)):
        bfd(away, WIRE, "bfd:cpath_down=true")
        becomes(
            lambda near=near: [
                status(near, WIRE)[key] for key in ("state", "forwarding", "remote_diagnostic")
            ],
            ["up", "false", "Concatenated Path Down"],
            f"{near.name} knows",
        )
        bfd(away, WIRE, "bfd:cpath_down=false")
        becomes(lambda near=near: status(near, WIRE)["forwarding"], "true", "it forwards again")
    # An override.
    equal(here.appctl("bfd/set-forwarding", WIRE, "false"), "OK\n", "the answer")
    becomes(lambda: status(here, WIRE)["forwarding"], "false", "the override")
    equal(status(here, WIRE)["state"], "up", "the state")
    here.appctl("bfd/set-forwarding", "normal")
    becomes(lambda: status(here, WIRE)["forwarding"], "true", "without the override")
    for words in (("bfd/show", "no"), ("bfd/set-forwarding", "no", "true")):
        check("no such" in here.appctl(*words, ok=False).stderr, words)
    # Switched off at one end.
    bfd(there, WIRE, "bfd:enable=false")
    becomes(
        lambda: [status(here, WIRE)[key] for key in ("state", "diagnostic")],
        ["down", "Control Detection Time Expired"],
        "the other end's end",
        10,
    )
    bfd(here, WIRE, "bfd:enable=false")
    becomes(lambda: status(here, WIRE), {}, "no session, no status")
    equal(here.appctl("bfd/show"), "", "what is shown without sessions")


def through_a_tunnel(lab, kind, *options):
    """The same through a tunnel; traffic goes on beside it."""
    here, there = sites(lab)
    for switch, peer in ((here, 2), (there, 1)):
        tunnel(switch, "tun", kind, peer, *options)

    def cut(how):
        there.vsctl("set", "Interface", "tun", f"options:remote_ip={how}")

    falls_and_returns(here, there, "tun", lambda: cut("10.9.0.77"), lambda: cut("10.9.0.1"))
    first = host(here, "h1", 1)
    host(there, "h2", 2)
    first.reaches("10.1.0.2")
    flaps = status(here, "tun")["flap_count"]
    first.ping("10.1.0.2", 20)
    equal(status(here, "tun")["flap_count"], flaps, "the flaps")


@test(timeout=90)
def with_open_vswitch_through_geneve(lab):
    """Geneve with keys of flows, as OVN has it, and with the OAM bit."""
    through_a_tunnel(lab, "geneve", "key=flow", "csum=true")


@test(timeout=90)
def with_open_vswitch_through_vxlan(lab):
    """VXLAN with a fixed key."""
    through_a_tunnel(lab, "vxlan", "key=42")


@test(timeout=60)
def packets_are_those_of_the_settings(lab):
    """What is sent has the addresses that are set, and the tunnel's OAM bit."""
    site = Watched(lab)
    tunnel(site.switch, "tun", "geneve", 2, "key=flow")
    bfd(
        site.switch,
        "tun",
        *FAST,
        'bfd:bfd_local_src_mac="02:00:00:00:00:01"',
        'bfd:bfd_local_dst_mac="02:00:00:00:00:02"',
        "bfd:bfd_src_ip=10.7.0.1",
        "bfd:bfd_dst_ip=10.7.0.2",
        "bfd:oam=true",
    )
    outer = wait_for("a message leaves", lambda: outers(site.wire, 1, 2, port=GENEVE))[0]
    header, inner = outer.tunnel[:8], outer.tunnel[8:]
    equal(header[1] & 0x80, 0x80, "the OAM bit")
    equal(int.from_bytes(header[4:7], "big"), 0, "the tunnel's key")
    equal(inner[:12].hex(), "020000000002020000000001", "the Ethernet addresses")
    equal(inner[26:34], bytes([10, 7, 0, 1, 10, 7, 0, 2]), "the IP addresses")
    equal((inner[15], inner[22]), (0xC0, 255), "TOS and TTL")
    equal(inner[36:38], struct.pack("!H", PORT), "the UDP port")


@test(timeout=60)
def messages_are_taken_before_the_rules(lab):
    """Messages of a monitored port reach no rule, others' do; what is malformed, has passed a
    router or has another address or key is no sign of life."""
    site = Watched(lab)
    switch = site.switch
    tunnel(switch, "tun", "geneve", 2, "key=flow")
    switch.flows("priority=1,in_port=tun,actions=output:in", bridge="br-int")

    def put(payload, key=0, **fields):
        site.inject(site.udp(GENEVE, geneve(key, frame(payload, **fields))))

    def passes():
        return site.host.receive(0.3, is_bfd, until=1) != []

    hello = message("down", 0x77, 0)
    wait_for("without a session they are like others", lambda: put(hello) or passes())
    bfd(
        switch,
        "tun",
        *FAST,
        "bfd:check_tnl_key=true",
        'bfd:bfd_remote_dst_mac="00:23:20:00:00:01"',
    )
    site.host.drain()

    def state():
        return status(switch, "tun").get("state")

    # None of these is heard.
    for what, payload, fields in (
        ("short", hello[:20], {}),
        ("of another version", b"\x40" + hello[1:], {}),
        ("with multiplier 0", message("down", 0x77, 0, mult=0), {}),
        ("of another session", message("init", 0x77, 0x12345), {}),
        ("nameless", message("down", 0, 0), {}),
        ("that has passed a router", hello, {"ttl": 254}),
    ):
        put(payload, **fields)
        check(not passes(), f"a message {what} reached a rule")
        equal(state(), "down", f"the state after a message {what}")
    for fields in ({"key": 5}, {"destination": "02:00:00:00:00:55"}):
        wait_for("the rules have it", lambda fields=fields: put(hello, **fields) or passes())
        equal(state(), "down", "the state")
    # And these are: the session comes up by hand.
    put(hello)
    becomes(state, "init", "the state")
    check(not passes(), "a message reached a rule")
    mine = int(shown(switch, "tun")["Local Discriminator"], 16)
    put(message("init", 0x77, mine))
    becomes(state, "up", "the state")
    equal(is_live(switch, "tun", "br-int"), True, "whether controllers see it live")
    # A poll is answered by a message with the bit F.
    site.wire.drain()
    put(message("up", 0x77, mine, flags=0x20))
    answers = [outer.tunnel[8 + 42 + 1] & 0x30 for outer in outers(site.wire, 4, 1, port=GENEVE)]
    check(0x10 in answers, f"the flags of what is sent: {answers}")
    # The other end's owner holds it down.
    put(message("admin_down", 0x77, mine, diagnostic=7))
    becomes(state, "down", "the state", 2)
    equal(status(switch, "tun")["diagnostic"], "Neighbor Signaled Session Down", "why")
    becomes(lambda: is_live(switch, "tun", "br-int"), False, "whether controllers see it live")
    put(message("admin_down", 0x77, 0, diagnostic=7))
    time.sleep(0.3)
    equal(state(), "down", "the state while the other end is held down")


@test(timeout=90)
def groups_and_bundles_go_by_it(lab):
    """A fast-failover group and a `bundle` leave a port whose session is down, and return."""
    here, there = sites(lab)
    for name, key in (("one", 1), ("two", 2)):
        for switch, peer in ((here, 2), (there, 1)):
            tunnel(switch, name, "vxlan", peer, f"key={key}")
            bfd(switch, name, *FAST)
    here.raw = raw_host(here, "sh")
    there.raw = raw_host(there, "oh")
    comes_up(*((switch, name) for switch in (here, there) for name in ("one", "two")))
    ports = {name: here.get("Interface", name, "ofport") for name in ("one", "two")}
    here.ofctl(
        "-O",
        "OpenFlow13",
        "add-group",
        "br-int",
        "group_id=1,type=ff,"
        + ",".join(f"bucket=watch_port:{p},output:{p}" for p in ports.values()),
    )
    members = ",".join(str(number) for number in ports.values())
    actions = {
        "a group": "group:1",
        "a bundle": f"bundle(eth_src,0,active_backup,ofport,members:{members})",
    }

    def used(what):
        """The tunnel by which a frame arrives."""
        here.flows(f"in_port=in,actions={actions[what]}", bridge="br-int", version="OpenFlow13")
        rules = [
            f"cookie={number},in_port={name},actions=output:in"
            for number, name in enumerate(("one", "two"), 1)
        ]
        there.flows(*rules, bridge="br-int")

        def attempt():
            here.raw.send(marked(7))
            return there.raw.receive(0.3, lambda frame: mark_of(frame) == 7, until=1)

        wait_for("a frame arrives", attempt)
        counts = there.rule_packets("br-int")
        return [name for number, name in enumerate(("one", "two"), 1) if counts.get(number)]

    for what in actions:
        becomes(partial(used, what), ["one"], what)
    bfd(there, "one", "bfd:enable=false")
    becomes(lambda: status(here, "one")["forwarding"], "false", "the first falls")
    equal(is_live(here, "one", "br-int"), False, "whether controllers see it live")
    for what in actions:
        becomes(partial(used, what), ["two"], f"{what}, with the first down")
    here.appctl("bfd/set-forwarding", "one", "true")
    for what in actions:
        becomes(partial(used, what), ["one"], f"{what}, with the first forced")
    here.appctl("bfd/set-forwarding", "one", "normal")
    bfd(there, "one", "bfd:enable=true")
    comes_up((here, "one"))
    for what in actions:
        becomes(partial(used, what), ["one"], f"{what}, with the first back")


@test(timeout=90)
def a_busy_control_thread_does_not_matter(lab):
    """Sessions with intervals of 100 ms stay up while the control thread, that of devices and that
    of the log stand still for three times as long as it takes to be declared down; and while rules
    are changed by the ten thousand."""
    dummy = [] if lab.is_ovs else ["--enable-dummy"]
    here, there = site(lab, "s", 1, options=dummy), site(lab, "o", 2, reference=True)
    join(here, there)
    for switch in (here, there):
        bfd(switch, WIRE, *FAST)
    comes_up((here, WIRE), (there, WIRE))
    flaps = [status(switch, WIRE)["flap_count"] for switch in (here, there)]
    if not lab.is_ovs:
        for place in ("devices", "log", "command"):
            # The command's own answer waits for its stall.
            here.appctl("sluice/stall", place, "3000")
        equal([status(switch, WIRE)["flap_count"] for switch in (here, there)], flaps, "the flaps")
    rules = [
        f"priority={number % 7},ip,nw_src=10.{number >> 16}.{number >> 8 & 255}.{number & 255},"
        f"nw_dst=10.1.{number & 127}.0/{17 + number % 8},actions=output:1"
        for number in range(50_000)
    ]
    end = time.monotonic() + 8
    while time.monotonic() < end:
        here.ofctl("add-flows", "br-int", "-", stdin="\n".join(rules), seconds=120)
        here.ofctl("dump-aggregate", "br-int")
        here.ofctl("del-flows", "br-int")
    equal([status(switch, WIRE)["flap_count"] for switch in (here, there)], flaps, "the flaps")


@test(timeout=60)
def controllers_are_told(lab):
    """A controller hears of a port that is no longer live because it is monitored, because its
    session has come up or fallen, and that is live again without a monitor."""
    here, there = sites(lab)
    monitor = ["stdbuf", "-oL", "ovs-ofctl", "-O", "OpenFlow13", "monitor", "br-phy", "65535"]
    lab.start(monitor, "monitor.out", env=here.env)

    def heard():
        with open(f"{lab.directory}/monitor.out", encoding="utf-8") as file:
            return file.read()

    def told():
        """What it has heard of the port: whether it is live."""
        return [
            "LIVE" in message
            for message in heard().split("OFPT_")
            if message.startswith("PORT_STATUS") and f"({WIRE})" in message
        ]

    def hears(*wanted):
        becomes(lambda: told()[-len(wanted) :], list(wanted), "what it hears", 15)

    def hears_of_others():
        here.vsctl("--if-exists", "del-port", "other")
        here.port("other", "type=internal", bridge="br-phy")
        return "(other)" in heard()

    wait_for("the controller is there", hears_of_others)
    bfd(here, WIRE, *FAST)
    hears(False)
    bfd(there, WIRE, *FAST)
    hears(False, True)
    bfd(there, WIRE, "bfd:enable=false")
    hears(False, True, False)
    bfd(here, WIRE, "bfd:enable=false")
    hears(False, True, False, True)
