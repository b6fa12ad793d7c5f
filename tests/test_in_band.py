"""In-band control: the hidden rules that let a bridge reach its controllers through itself, where
they are shown, and the local port's addresses that a controller's row names."""

import json
import re
import socket
import struct
import time

from harness import becomes, check, equal, ethernet, inside, test, wait_for

HELLO = 0
NEXT_HOP = "02:00:00:00:00:77"


def hidden(switch, bridge="br0"):
    """The hidden rules of table 0, sorted, without their counters and ages."""
    lines = switch.appctl("bridge/dump-flows", bridge).splitlines()
    rules = [
        re.sub(r"^duration=\d+s, n_packets=\d+, n_bytes=\d+, ", "", line)
        for line in lines
        if not line.startswith("table_id=")
    ]
    return sorted(rules)


def local_rules(mac):
    """What any remote takes."""
    return [
        f"priority=180000,udp,in_port=LOCAL,dl_src={mac},tp_src=68,tp_dst=67",
        f"priority=180001,arp,dl_dst={mac},arp_op=2",
        f"priority=180002,arp,dl_src={mac},arp_op=1",
    ]


def hop_rules(mac):
    """What a first hop takes whose address is known."""
    return [
        f"priority=180003,arp,dl_dst={mac},arp_op=2",
        f"priority=180004,arp,dl_src={mac},arp_op=1",
    ]


def remote_rules(ip, port):
    """What a remote itself takes."""
    return [
        f"priority=180005,arp,arp_tpa={ip},arp_op=2",
        f"priority=180006,arp,arp_spa={ip},arp_op=1",
        f"priority=180007,tcp,nw_dst={ip},tp_dst={port}",
        f"priority=180008,tcp,nw_src={ip},tp_src={port}",
    ]


def doing(actions, *lists):
    """Rules with these actions, as hidden() gives them."""
    return sorted(f"{rule},actions={actions}" for rules in lists for rule in rules)


def opened(lab):
    """A switch whose bridge has no rules, and an address at its local port."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    switch.namespace.run("ip address add 10.1.1.2/24 dev br0")
    switch.namespace.run("ip link set br0 up")
    return switch, switch.namespace.address("br0")


@test()
def rules_are_hidden(lab):
    """Hidden rules follow controllers, managers, the queue and the kernel's neighbours; OpenFlow
    does not see them and cannot delete them."""
    switch, mac = opened(lab)
    switch.namespace.run(f"ip neigh add 10.1.1.1 lladdr {NEXT_HOP} dev br0")

    def holds(wanted, when):
        becomes(lambda: hidden(switch), wanted, f"hidden rules {when}")

    holds([], "without controllers")
    switch.vsctl("set-controller", "br0", "tcp:10.1.1.1")
    first = local_rules(mac), hop_rules(NEXT_HOP), remote_rules("10.1.1.1", 6653)
    holds(doing("NORMAL", *first), "for a controller")
    # A new first hop of the same controller.
    switch.namespace.run("ip neigh replace 10.1.1.1 lladdr 02:00:00:00:00:78 dev br0")
    becomes(
        lambda: hidden(switch),
        doing(
            "NORMAL",
            local_rules(mac),
            hop_rules("02:00:00:00:00:78"),
            remote_rules("10.1.1.1", 6653),
        ),
        "hidden rules for another first hop",
        20,
    )
    switch.ofctl("del-flows", "br0")
    equal(switch.rules(), [], "rules that OpenFlow sees")
    check("flow_count=0" in switch.ofctl("dump-aggregate", "br0"), "OpenFlow counts hidden rules")
    first = local_rules(mac), hop_rules("02:00:00:00:00:78"), remote_rules("10.1.1.1", 6653)
    holds(doing("NORMAL", *first), "after all rules have been deleted")
    # A second port of the same host, one host more without a first hop; others are not reached by
    # IPv4.
    switch.vsctl(
        "set-controller",
        "br0",
        "tcp:10.1.1.1",
        "ssl:10.1.1.1:12",
        "tcp:10.99.1.9:1234",
        "ptcp:7777",
        "unix:x",
        "tcp:[fe80::1]:5",
    )
    several = *first, remote_rules("10.1.1.1", 12)[2:], remote_rules("10.99.1.9", 1234)
    holds(doing("NORMAL", *several), "for several controllers")
    switch.logged(r"in_band\|WARN\|br0: cannot find route for controller \(10\.99\.1\.9\)")
    switch.vsctl("set", "Bridge", "br0", "other_config:in-band-queue=3")
    holds(doing("set_queue:3,NORMAL", *several), "with a queue")
    switch.vsctl("set", "Bridge", "br0", "other_config:disable-in-band=true")
    holds([], "switched off")
    switch.vsctl(
        "set",
        "Bridge",
        "br0",
        "other_config:disable-in-band=false",
        "--",
        "remove",
        "Bridge",
        "br0",
        "other_config",
        "in-band-queue",
    )
    holds(doing("NORMAL", *several), "switched on again")
    for controller in switch.vsctl(
        "--bare", "--columns=_uuid", "find", "Controller", 'target="tcp:10.1.1.1"'
    ).split():
        switch.vsctl("set", "Controller", controller, "connection_mode=out-of-band")
    holds(
        doing(
            "NORMAL",
            local_rules(mac),
            hop_rules("02:00:00:00:00:78"),
            remote_rules("10.1.1.1", 12),
            remote_rules("10.99.1.9", 1234),
        ),
        "where a controller is out of band",
    )
    switch.vsctl("del-controller", "br0")
    holds([], "when the controllers have gone")
    switch.vsctl("set-manager", "tcp:10.1.1.7", "ptcp:6640")
    holds(doing("NORMAL", local_rules(mac), remote_rules("10.1.1.7", 6640)), "for a manager")
    switch.vsctl("del-manager")
    holds([], "when the manager has gone")
    if not lab.is_ovs:
        switch.vsctl("set-controller", "br0", "tcp:127.0.0.1:6653")
        holds([], "for a controller at this host, which no bridge leads to")


@test()
def controllers_are_reached_through_the_bridge(lab):
    """A bridge without rules connects to a controller behind one of its ports; nothing else
    passes."""
    switch, _ = opened(lab)
    host = lab.host("h1", switch, ip="10.1.1.1/24", quiet=True)
    with inside(host):
        controller = socket.create_server(("10.1.1.1", 6653))
        other = socket.create_server(("10.1.1.1", 6654))
    controller.settimeout(20)
    switch.vsctl(
        "set-controller",
        "br0",
        "tcp:10.1.1.1",
        "--",
        "set",
        "Controller",
        "br0",
        "max_backoff=1000",
    )
    connection, peer = controller.accept()
    equal(peer[0], "10.1.1.2", "the switch's address")
    connection.settimeout(20)
    hello = connection.recv(8, socket.MSG_WAITALL)
    equal(hello[1], HELLO, "the first message's type")
    equal(host.ping("10.1.1.2", 2, ok=False), 0, "answers to pings")
    equal(switch.namespace.ping("10.1.1.1", 2, ok=False), 0, "answers to the switch's pings")
    switch.namespace.run(["timeout", "2", "bash", "-c", "exec 3<>/dev/tcp/10.1.1.1/6654"], ok=False)
    other.settimeout(0.2)
    try:
        other.accept()
    except TimeoutError:
        pass
    else:
        check(False, "another port of the controller is reached")
    first = (
        local_rules(switch.namespace.address("br0")),
        hop_rules(host.address()),
        remote_rules("10.1.1.1", 6653),
    )
    becomes(
        lambda: hidden(switch),
        doing("NORMAL", *first),
        "hidden rules once the first hop is known",
        20,
    )

    def packets(rule):
        found = re.search(
            rf"n_packets=(\d+), n_bytes=(\d+), {re.escape(rule)}",
            switch.appctl("bridge/dump-flows", "br0"),
        )
        return found and int(found[1]) > 0 and int(found[2]) > 0

    for rule in remote_rules("10.1.1.1", 6653)[2:]:
        wait_for(f"packets are counted by {rule}", lambda: packets(rule))
    trace = switch.appctl("ofproto/trace", "br0", "tcp,nw_src=10.1.1.1,tp_src=6653")
    check("priority 180008" in trace, "ofproto/trace does not show the hidden rule:\n", trace)
    connection.close()


@test()
def the_local_port_is_given_addresses(lab):
    """`local_ip`, `local_netmask` and `local_gateway` of a controller set the local port up."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")

    def addresses():
        found = json.loads(switch.namespace.run("ip -4 -j address show dev br0").stdout)
        return [
            f"{each['local']}/{each['prefixlen']}"
            for device in found
            if device
            for each in device["addr_info"]
        ]

    def gateways():
        return [
            route["gateway"]
            for route in json.loads(switch.namespace.run("ip -4 -j route show default").stdout)
        ]

    row = ["--id=@c", "create", "Controller", 'target="tcp:10.1.1.3:6653"', "local_ip=10.1.1.5"]
    switch.vsctl(
        "--",
        *row,
        "local_netmask=255.255.255.0",
        "local_gateway=10.1.1.254",
        "--",
        "set",
        "Bridge",
        "br0",
        "controller=@c",
    )
    becomes(addresses, ["10.1.1.5/24"], "addresses of the local port")
    becomes(gateways, ["10.1.1.254"], "gateways")
    switch.logged(r"bridge br0: configured IP address 10\.1\.1\.5, netmask 255\.255\.255\.0")
    switch.logged(r"bridge br0: configured gateway 10\.1\.1\.254")
    # Another address takes its place; without a netmask it has its class's.
    controller = switch.vsctl("get", "Bridge", "br0", "controller").strip("[]")
    switch.vsctl(
        "set",
        "Controller",
        controller,
        "local_ip=172.16.1.5",
        "local_netmask=[]",
        "local_gateway=[]",
    )
    becomes(addresses, ["172.16.1.5/16"], "addresses of the local port afterwards")
    switch.vsctl("set", "Controller", controller, "local_ip=nonsense")
    equal(addresses(), ["172.16.1.5/16"], "addresses after a row that names none")


def dhcp(number, ports=(67, 68), vlans=(), destination="ff:ff:ff:ff:ff:ff", options=b""):
    """A DHCP server's message, whose payload is a number."""
    payload = struct.pack("!I", number) * 8
    datagram = struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload
    length = 20 + len(options) + len(datagram)
    words = 0x45 + len(options) // 4
    header = struct.pack("!BBHHHBBH", words, 0, length, 0, 0, 64, 17, 0)
    header += bytes((10, 1, 1, 1)) + b"\xff" * 4 + options
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = ~((total >> 16) + (total & 0xFFFF)) & 0xFFFF
    header = header[:10] + struct.pack("!H", total) + header[12:]
    return ethernet(destination, "02:00:00:00:00:67", 0x0800, header + datagram, vlans)


def is_dhcp(frame):
    """Whether it is a message as dhcp() makes it, to any ports."""
    return b"\x0a\x01\x01\x01\xff" in frame


@test()
def dhcp_replies_reach_the_local_port(lab):
    """Under in-band control the local port gets each DHCP reply once, as rules leave it, whatever
    they do with it; nothing else, and not behind a patch port."""
    switch, mac = opened(lab)
    first, second = switch.raw_hosts()
    local = switch.namespace.raw("br0")
    switch.vsctl("set-controller", "br0", "tcp:10.1.1.1")
    # Tells when what was sent before has been forwarded.
    mark = ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(46))

    def sent(*frames, rules=(), by=first):
        """What h2 and the local port get of these."""
        marking = "priority=65535,dl_type=0x88b5"
        switch.flows(f"{marking},actions=2,in_port,local", *rules)
        if by is local:
            switch.flows(f"{marking},actions=2,in_port", *rules)
        switch.appctl("revalidator/wait")
        switch.appctl("revalidator/purge")
        for end in (first, second, local):
            end.drain()
        for frame in frames:
            by.send(frame)
            if lab.is_ovs:
                # In a burst, those that must wait for a flow of Open vSwitch's cache may overtake.
                time.sleep(0.02)
        by.send(mark)
        got = []
        for end in (second, local):
            arrived = []
            while (frame := end.receive_one(10)) != mark:
                check(frame is not None, "waited in vain")
                arrived += [frame] if is_dhcp(frame) else []
            got.append(arrived)
        return got

    becomes(lambda: len(hidden(switch)) >= 7, True, "hidden rules")
    offer, tagged = dhcp(1), dhcp(2, vlans=[(0x8100, 5)])
    equal(sent(offer), [[], [offer]], "without rules")
    equal(
        sent(tagged, dhcp(3, options=b"\x01" * 4)),
        [[], [tagged, dhcp(3, options=b"\x01" * 4)]],
        "with a VLAN tag, and with IP's options",
    )
    # Neither requests nor others' messages.
    others = [dhcp(1, ports=(68, 67)), dhcp(1, ports=(67, 67)), dhcp(1, ports=(66, 68))]
    equal(sent(*others), [[], []], "other messages")
    equal(sent(offer, rules=["actions=2"]), [[offer], [offer]], "with a rule")
    # Entries of Open vSwitch's cache that are made for other messages do not tell them apart.
    if not lab.is_ovs:
        equal(
            sent(*others[1:], offer, rules=["actions=2"]),
            [[*others[1:], offer], [offer]],
            "beside other messages",
        )
        # Many beside others, as one burst.
        many = [dhcp(number, ports=(67, 68 + number % 2)) for number in range(40)]
        equal(sent(*many, rules=["actions=2"]), [many, many[::2]], "among others")
    equal(sent(offer, rules=["udp,actions=2"]), [[offer], [offer]], "with a rule for UDP")
    equal(sent(offer, rules=["actions=drop"]), [[], [offer]], "where a rule drops them")
    equal(sent(offer, rules=["actions=normal"]), [[offer], [offer]], "by NORMAL")
    equal(sent(offer, rules=["actions=flood"]), [[offer], [offer]], "by FLOOD")
    alone = dhcp(4, destination=mac)
    equal(sent(alone, rules=["actions=normal"]), [[], [alone]], "by NORMAL to its address")
    equal(sent(offer, rules=["actions=local,2"]), [[offer], [offer]], "by a rule")
    later = ["table=0,actions=resubmit(,1)", "table=1,actions=2,local"]
    equal(sent(offer, rules=later), [[offer], [offer]], "by a rule of another table")
    written = offer[:6] + bytes.fromhex("020000000005") + offer[12:]
    rules = ["actions=2,mod_dl_src:02:00:00:00:00:05"]
    equal(sent(offer, rules=rules), [[offer], [written]], "as rules leave it")
    equal(sent(offer, by=local), [[], [offer]], "from the local port itself")
    trace = switch.appctl("ofproto/trace", "br0", "in_port=1,udp,udp_src=67,udp_dst=68")
    number = re.search(r"br0 (\d+)/(\d+)", switch.appctl("dpif/show"))
    check(f"Datapath actions: {number[2]}" in trace, trace, number[0])

    # Behind a patch port, in another bridge under in-band control.
    switch.bridge("br1", "fail_mode=secure")
    switch.namespace.run("ip link set br1 up")
    switch.vsctl("set-controller", "br1", "tcp:10.1.1.1")
    for bridge, name, peer in (("br0", "a", "b"), ("br1", "b", "a")):
        switch.port(name, "type=patch", f"options:peer={peer}", "ofport_request=9", bridge=bridge)
    becomes(lambda: len(hidden(switch, "br1")) >= 4, True, "hidden rules of br1")
    beyond = switch.namespace.raw("br1")

    switch.flows("actions=in_port", bridge="br1")
    switch.flows("in_port=1,actions=9", "in_port=9,actions=2")
    switch.appctl("revalidator/purge")
    for end in (second, local, beyond):
        end.drain()
    first.send(offer)
    equal(second.receive(10, wanted=is_dhcp, until=1), [offer], "behind both bridges")
    equal(local.receive(2, wanted=is_dhcp), [offer], "at the local port")
    equal(beyond.receive(0, wanted=is_dhcp), [], "at the other bridge's local port")

    switch.flows()
    switch.vsctl("set", "Bridge", "br0", "other_config:disable-in-band=true")
    becomes(lambda: hidden(switch), [], "hidden rules, switched off")
    equal(sent(offer), [[], []], "without in-band control")


# Actions, and how often the local port gets a DHCP reply: here, and from Open vSwitch, which sends
# it there at the end of each pass that has not.
HELD = {
    "controller(pause),2": (1, 2),
    "controller(pause),local,2": (1, 2),
    "controller(pause),2,local": (1, 2),
    "controller(pause),controller(pause),2": (1, 3),
    # Nobody keeps that it was sent there before the pause.
    "local,controller(pause),2": (2, 2),
    "local,controller(pause),2,local": (2, 2),
}


@test()
def dhcp_replies_that_a_controller_holds(lab):
    """A reply that waits for a controller (`controller(pause)`) reaches the local port when it goes
    on, even if it was sent there before."""
    switch, _ = opened(lab)
    first, second = switch.raw_hosts()
    local = switch.namespace.raw("br0")
    switch.vsctl("set-controller", "br0", "tcp:10.1.1.1")
    becomes(lambda: len(hidden(switch)) >= 7, True, "hidden rules")
    # It sends each continuation back.
    lab.start(
        ["ovs-ofctl", "monitor", "br0", "resume", "-P", "nxt_packet_in2"],
        "resumes.out",
        env=switch.env,
    )

    def reach(actions):
        """How many of one reply reach the second host, and how many the local port."""
        switch.flows(f"in_port=1,actions={actions}")
        switch.appctl("revalidator/purge")
        for end in (second, local):
            end.drain()
        first.send(dhcp(1))
        arrived = second.receive(2, wanted=is_dhcp, until=1)
        return len(arrived), len(local.receive(1, wanted=is_dhcp))

    wait_for("continuations come back", lambda: reach("controller(pause),2")[0], 20)
    for actions, counts in HELD.items():
        equal(reach(actions), (1, counts[lab.is_ovs]), f"what the hosts get by {actions}")


@test()
def dhcp_replies_behind_tags(lab):
    """A DHCP reply behind tags of either type reaches the local port where as many are read."""
    # Open vSwitch asks once, at its start, how many tags there may be.
    switch = lab.switch(config=["other_config:vlan-limit=2"])
    switch.bridge("br0", "fail_mode=secure")
    switch.namespace.run("ip address add 10.1.1.2/24 dev br0")
    switch.namespace.run("ip link set br0 up")
    first, _ = switch.raw_hosts()
    local = switch.namespace.raw("br0")
    switch.vsctl("set-controller", "br0", "tcp:10.1.1.1")
    becomes(lambda: len(hidden(switch)) >= 7, True, "hidden rules")

    def reach(frames, wanted, what):
        """Sends these one by one and compares what reaches the local port."""
        switch.appctl("revalidator/purge")
        local.drain()
        for frame in frames:
            first.send(frame)
            # Each is a burst of its own, of which it must be noticed that it has a reply; and in
            # one, those that must wait for a flow of Open vSwitch's cache may overtake.
            time.sleep(0.05)
        got = local.receive(5, wanted=is_dhcp, until=len(wanted))
        equal(got, wanted, what)

    single = [dhcp(kind, vlans=[(kind, 5)]) for kind in (0x8100, 0x88A8)]
    kinds = ((0x88A8, 0x8100), (0x8100, 0x8100), (0x8100, 0x88A8))
    double = [dhcp(inner, vlans=[(outer, 5), (inner, 6)]) for outer, inner in kinds]
    triple = dhcp(3, vlans=[(0x88A8, 5), (0x8100, 6), (0x8100, 7)])
    last = dhcp(9)
    reach([*single, *double, triple, last], [*single, *double, last], "with vlan-limit=2")
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:vlan-limit=1")
    reach([*double, *single, last], [*single, last], "with vlan-limit=1")

    # A way of the packet's through the tracker is one more for Open vSwitch.
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:vlan-limit=2")
    switch.flows("ct_state=-trk,ip,actions=local,ct(table=1)", "table=1,actions=drop")
    wanted = [last, last] if lab.is_ovs else [last]
    reach([last], wanted, "through the tracker")
