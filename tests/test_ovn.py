"""OVN itself (ovn-northd, ovn-controller) on top of the switch."""

import itertools
import os
import re
import socket
import time
from functools import partial

from harness import ROOT, Skip, becomes, check, equal, run, test, wait_for
from ovn import Central, Cloud, attach, port, router_port
from test_conntrack import Echo, ask
from tunnels import both_ways, mark_of, marked, no_offloads, transfer


@test(timeout=180)
def ovn_switches_routes_and_filters(lab):
    """A logical switch with stateful access lists, a router to a second one, source NAT and a load
    balancer, on one host."""
    central = Central(lab)
    switch = lab.switch()
    central.join(switch, "127.0.0.1")
    hosts = [lab.namespace(f"h{number}").quiet() for number in (1, 2, 3)]
    for number, (host, ip) in enumerate(zip(hosts, ("10.0.0.1", "10.0.0.2", "10.0.1.3")), 1):
        attach(switch, host, number, ip)
        gateway = ip.rsplit(".", 1)[0] + ".254"
        host.run(["ip", "route", "add", "default", "via", gateway])
    nb = central.nbctl
    nb("ls-add", "ls0", "--", "ls-add", "ls1", "--", "lr-add", "lr0")
    for number, (ls, ip) in enumerate(
        (("ls0", "10.0.0.1"), ("ls0", "10.0.0.2"), ("ls1", "10.0.1.3")), 1
    ):
        port, address = f"lp{number}", f"02:00:00:00:00:0{number} {ip}"
        nb("lsp-add", ls, port, "--", "lsp-set-addresses", port, address)
    for index in (0, 1):
        nb(
            *("lrp-add", "lr0", f"r{index}", f"02:00:00:00:01:0{index}", f"10.0.{index}.254/24"),
            *("--", "lsp-add", f"ls{index}", f"ls{index}-r"),
            *("--", "lsp-set-type", f"ls{index}-r", "router"),
            *("--", "lsp-set-addresses", f"ls{index}-r", "router"),
            *("--", "lsp-set-options", f"ls{index}-r", f"router-port=r{index}"),
        )
    one, two, three = hosts
    one.reaches("10.0.0.2", 20)
    one.reaches("10.0.1.3", 20)
    servers = [Echo(host, 80) for host in hosts]
    equal(ask(one, "10.0.0.2", 80, source=4000), "10.0.0.1 4000", "switched")
    equal(ask(one, "10.0.1.3", 80, source=4001), "10.0.0.1 4001", "routed")
    # Only host 1 may begin connections with host 2.
    nb(
        *(
            "acl-add",
            "ls0",
            "to-lport",
            "1000",
            'outport == "lp2" && ip4.src == 10.0.0.1',
            "allow-related",
        ),
        *("--", "acl-add", "ls0", "to-lport", "900", 'outport == "lp2" && ip', "drop"),
        *("--", "acl-add", "ls0", "to-lport", "900", 'outport == "lp1" && ip', "drop"),
        *("--", "acl-add", "ls0", "from-lport", "1000", 'inport == "lp1" && ip', "allow-related"),
    )
    becomes(
        lambda: ask(one, "10.0.0.2", 80, source=4002, seconds=2), "10.0.0.1 4002", "allowed", 20
    )
    equal(ask(two, "10.0.0.1", 80, seconds=1), None, "the other way")
    equal(ask(three, "10.0.0.2", 80, seconds=1), None, "from elsewhere")
    # A load balancer in front of host 3.
    nb(
        *("lb-add", "lb0", "172.16.0.1:8080", "10.0.1.3:80", "tcp"),
        *("--", "ls-lb-add", "ls0", "lb0"),
    )
    becomes(
        lambda: ask(one, "172.16.0.1", 8080, source=4003, seconds=2),
        "10.0.0.1 4003",
        "balanced",
        20,
    )
    lines = switch.appctl("dpctl/dump-conntrack").splitlines()
    check(any("dst=172.16.0.1" in line and "src=10.0.1.3" in line for line in lines), lines)
    for server in servers:
        server.close()


def two_networks(lab, count=3, **options):
    """Three hosts: 1 and 2 in `ls0` (10.0.0.0/24), at different chassis, 3 in `ls1` (10.0.1.0/24)
    at a third, with the distributed router lr0 between the two."""
    cloud = Cloud(lab, count, **options)
    ips = ("10.0.0.1", "10.0.0.2", "10.0.1.3")
    hosts = [
        cloud.host(index % count, index + 1, ip, ip.rsplit(".", 1)[0] + ".254")
        for index, ip in enumerate(ips)
    ]
    cloud.nb(
        *("ls-add", "ls0", "--", "ls-add", "ls1", "--", "lr-add", "lr0"),
        *port("ls0", 1, ips[0]),
        *port("ls0", 2, ips[1]),
        *port("ls1", 3, ips[2]),
        *router_port("lr0", "ls0", 0, "10.0.0.254/24"),
        *router_port("lr0", "ls1", 1, "10.0.1.254/24"),
    )
    return cloud, hosts


@test(timeout=180)
def ovn_over_hosts(lab):
    """A logical switch over two hosts and a distributed router to a third, by Geneve: pings, TCP
    whose every byte is compared, broadcasts, stateful access lists and a load balancer whose two
    ends are on different hosts."""
    cloud, hosts = two_networks(lab)
    one, two, three = hosts
    one.reaches("10.0.0.2", 20)
    one.reaches("10.0.1.3", 20)
    both_ways(one, two, "10.0.0.1", "10.0.0.2")
    both_ways(one, three, "10.0.0.1", "10.0.1.3")
    # A broadcast from host 1 reaches host 2 once and not host 3; an unknown unicast nobody.
    raws = [host.raw() for host in hosts]
    unknown = "02:00:00:00:00:99"
    for target, arrives in (("ff:ff:ff:ff:ff:ff", [1, 0]), (unknown, [0, 0])):
        number = 1 if target == unknown else 2
        for raw in raws:
            raw.drain()
        raws[0].send(marked(number, "02:00:00:00:00:01", target))
        wanted = partial(lambda number, frame: mark_of(frame) == number, number)
        equal([len(raw.receive(0.5, wanted)) for raw in raws[1:]], arrives, f"frames to {target}")
    # Only host 1 may begin connections with host 2.
    servers = [Echo(host, 80) for host in hosts]
    acl = ("--", "acl-add", "ls0")
    cloud.nb(
        *(*acl, "to-lport", "1000", 'outport == "lp2" && ip4.src == 10.0.0.1', "allow-related"),
        *(*acl, "to-lport", "900", 'outport == "lp2" && ip', "drop"),
        *(*acl, "to-lport", "900", 'outport == "lp1" && ip', "drop"),
        *(*acl, "from-lport", "1000", 'inport == "lp1" && ip', "allow-related"),
    )
    becomes(
        lambda: ask(one, "10.0.0.2", 80, source=4002, seconds=2), "10.0.0.1 4002", "allowed", 20
    )
    equal(ask(one, "10.0.0.2", 80, socket.SOCK_DGRAM, 4002), "10.0.0.1 4002", "allowed by UDP")
    equal(ask(two, "10.0.0.1", 80, seconds=1), None, "the other way")
    equal(ask(three, "10.0.0.2", 80, seconds=1), None, "from elsewhere")
    equal(ask(one, "10.0.1.3", 80, source=4003), "10.0.0.1 4003", "routed")
    # A datagram to a closed port is answered by an ICMP error of the connection (related).
    equal(ask(one, "10.0.0.2", 81, socket.SOCK_DGRAM, 4004), "refused", "a closed port")
    transfer(one, two, "10.0.0.2")
    # A load balancer in front of hosts 2 and 3, which takes both.
    cloud.nb(
        *("lb-add", "lb0", "172.16.0.1:8080", "10.0.0.2:80,10.0.1.3:80", "tcp"),
        *("--", "ls-lb-add", "ls0", "lb0"),
    )
    becomes(
        lambda: ask(one, "172.16.0.1", 8080, source=4005, seconds=2),
        "10.0.0.1 4005",
        "balanced",
        20,
    )
    for source in range(4100, 4130):
        equal(ask(one, "172.16.0.1", 8080, source=source), f"10.0.0.1 {source}", "balanced")
    used = cloud.chassis[0].appctl("dpctl/dump-conntrack")
    for server in ("10.0.0.2", "10.0.1.3"):
        check(
            any("dst=172.16.0.1" in line and f"src={server}" in line for line in used.split("\n")),
            f"nothing was balanced to {server}: {used}",
        )
    for server in servers:
        server.close()


def gateways(lab):
    """Host 1 and 2 in `ls0` (10.0.0.0/24) at the first of three chassis; lr0's port to the outside
    (172.16.1.0/24, where `out` is 172.16.1.100) is at the second, or else at the third. Host 1 has
    the floating address 172.16.1.10 there, host 2 has 172.16.1.20 at its own chassis, host 3, at
    the third chassis, none."""
    cloud = Cloud(lab, 3, mappings=True)
    ips = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    hosts = [
        cloud.host(chassis, index + 1, ip, "10.0.0.254")
        for index, (chassis, ip) in enumerate(zip((0, 0, 2), ips))
    ]
    out = lab.namespace("out").quiet()
    cloud.lan.run("ip link add name out type veth peer name eth0 netns out")
    cloud.lan.run("ip link set out master ext up")
    out.run("ip link set eth0 up")
    out.run("ip address add 172.16.1.100/24 dev eth0")
    if lab.is_ovs:
        no_offloads(out)
    cloud.nb(
        *("ls-add", "ls0", "--", "ls-add", "public", "--", "lr-add", "lr0"),
        *(word for number, ip in enumerate(ips, 1) for word in port("ls0", number, ip)),
        *router_port("lr0", "ls0", 0, "10.0.0.254/24"),
        *router_port("lr0", "public", 1, "172.16.1.1/24"),
        *("--", "lsp-add", "public", "way-out", "--", "lsp-set-type", "way-out", "localnet"),
        *("--", "lsp-set-addresses", "way-out", "unknown"),
        *("--", "lsp-set-options", "way-out", "network_name=outside"),
        *("--", "lrp-set-gateway-chassis", "rpublic", "c2", "20"),
        *("--", "lrp-set-gateway-chassis", "rpublic", "c3", "10"),
        *("--", "lr-nat-add", "lr0", "snat", "172.16.1.1", "10.0.0.0/24"),
        *("--", "lr-nat-add", "lr0", "dnat_and_snat", "172.16.1.10", "10.0.0.1"),
        *("--", "lr-nat-add", "lr0", "dnat_and_snat", "172.16.1.20", "10.0.0.2"),
        *("lp2", "02:00:00:00:02:20"),
    )
    return cloud, hosts, out


INTERVAL_S = 0.05  # of the pings that measure a fail-over


def resident(cloud):
    """The chassis that has lr0's port to the outside."""
    found = cloud.central.sbctl(
        *("--bare", "--columns=chassis", "find", "Port_Binding", "logical_port=cr-rpublic")
    ).strip()
    return cloud.central.sbctl("get", "Chassis", found, "name").strip().strip('"') if found else ""


@test(timeout=180)
def ovn_beside_open_vswitch(lab):
    """One of three hosts runs Open vSwitch: a cloud whose hosts change over one after the other."""
    cloud, (one, two, three) = two_networks(lab, reference=(2,))
    one.reaches("10.0.0.2", 20)
    two.reaches("10.0.1.3", 20)
    both_ways(one, two, "10.0.0.1", "10.0.0.2")
    both_ways(two, three, "10.0.0.2", "10.0.1.3")
    servers = [Echo(host, 80) for host in (two, three)]
    acl = ("--", "acl-add", "ls0", "to-lport")
    cloud.nb(
        *(*acl, "1000", 'outport == "lp2" && ip4.src == 10.0.0.1', "allow-related"),
        *(*acl, "900", 'outport == "lp2" && ip', "drop"),
    )
    becomes(lambda: ask(one, "10.0.0.2", 80, source=4000), "10.0.0.1 4000", "allowed", 20)
    equal(ask(three, "10.0.0.2", 80, seconds=1), None, "from elsewhere")
    for server in servers:
        server.close()


@test(timeout=240)
def ovn_gateways(lab):
    """A router's port to the outside on two gateways: source translation, floating addresses (at
    the gateway, and at the host's own chassis); when the gateway's daemon dies the other takes
    over, and gives it back when it has returned."""
    cloud, (one, two, three), out = gateways(lab)
    first, second, third = cloud.chassis
    for host in (one, two, three):
        host.reaches("172.16.1.100", 30)
    outside = Echo(out, 80)
    servers = [Echo(host, 80) for host in (one, two)]
    equal(ask(one, "172.16.1.100", 80).split()[0], "172.16.1.10", "host 1, seen from outside")
    equal(ask(two, "172.16.1.100", 80).split()[0], "172.16.1.20", "host 2")
    equal(ask(three, "172.16.1.100", 80).split()[0], "172.16.1.1", "host 3")
    equal(ask(out, "172.16.1.10", 80, source=4000), "172.16.1.100 4000", "into host 1")
    equal(ask(out, "172.16.1.20", 80, source=4001), "172.16.1.100 4001", "into host 2")
    transfer(one, out, "172.16.1.100")
    # Another one has it until the first is seen to be there.
    becomes(lambda: resident(cloud), "c2", "where the gateway is", 30)

    def tunnels(chassis):
        text = chassis.vsctl("--bare", "--columns=bfd_status", "find", "Interface", "type=geneve")
        return sorted(re.findall(r"\bstate=(\w+)", text))

    becomes(lambda: tunnels(third), ["up", "up"], "the third's sessions", 20)

    def fails_over(act, wanted):
        """The longest time without answers to host 1's pings, s, while what `act` does brings the
        gateway to another host."""
        log = f"ping-{wanted}"
        words = ["stdbuf", "-oL", "ping", "-n", "-i", f"{INTERVAL_S}", "172.16.1.100"]
        pings = one.start(words, log)
        time.sleep(1)
        act()
        wait_for(f"the gateway is at {wanted}", lambda: resident(cloud) == wanted, 60)
        one.reaches("172.16.1.100", 30)
        time.sleep(3)
        pings.terminate()
        pings.wait(10)
        with open(os.path.join(lab.directory, log), encoding="utf-8") as file:
            answered = [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", file.read())]
        gaps = [after - before for before, after in itertools.pairwise(answered)]
        return max(gaps) * INTERVAL_S

    lab.note(f"fail-over in {fails_over(second.kill, 'c3'):.1f} s")
    equal(tunnels(first), ["down", "up"], "the first's sessions")
    one.reaches("172.16.1.100")
    equal(ask(one, "172.16.1.100", 80).split()[0], "172.16.1.10", "host 1, seen from outside")
    equal(ask(three, "172.16.1.100", 80).split()[0], "172.16.1.1", "host 3")
    equal(ask(out, "172.16.1.10", 80, source=4002), "172.16.1.100 4002", "into host 1")
    equal(ask(out, "172.16.1.20", 80, source=4003), "172.16.1.100 4003", "into host 2")
    lab.note(f"back in {fails_over(second.start, 'c2'):.1f} s")
    equal(ask(out, "172.16.1.10", 80, source=4004), "172.16.1.100 4004", "into host 1")
    for server in (outside, *servers):
        server.close()


@test(timeout=180)
def the_example_with_three_hosts(lab):
    """`examples/ovn/lab` sets up, shows and removes three hosts."""
    if lab.is_ovs:
        raise Skip("the example is Sluice's")
    if not os.path.exists("/usr/share/ovn/ovn-nb.ovsschema"):
        raise Skip("OVN is not installed")
    directory = os.path.join(lab.directory, "lab")
    path = f"{os.path.dirname(lab.switchd[0])}:{os.environ['PATH']}"
    env = dict(os.environ, SLUICE_OVN_LAB=directory, PATH=path)
    script = os.path.join(ROOT, "examples/ovn/lab")

    def call(*words, ok=True, seconds=90):
        return run([script, *words], env=env, ok=ok, seconds=seconds)

    check("no lab" in call("show", ok=False).stderr, "without a lab there is nothing to show")
    try:
        call("up")
        shown = call("show").stdout
        for text in ("switch", "router", "Chassis c1", "Chassis c3", "3 received"):
            check(text in shown, f"{text} in what is shown: {shown}")
        check("lab: " in call("up", ok=False).stderr, "a second one is refused")
        # The firewall: pings pass, connections do not.
        call("in", "vm1", "ping", "-c", "1", "-W", "2", "10.0.1.2")
        call("in", "vm2", "ping", "-c", "1", "-W", "2", "10.0.2.3")
        equal(call("in", "vm1", "ping", "-c", "1", "10.0.1.9", ok=False).returncode, 1, "nobody")
    finally:
        call("down", ok=False)
    check(not os.path.exists(directory), "it leaves its directory")
    check("ovnlab" not in run("ip netns list").stdout, "it leaves namespaces")
