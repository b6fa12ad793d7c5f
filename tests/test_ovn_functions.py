"""Functions of OVN over two hosts, each as OVN asks the switch for it, unchanged."""

import os
import re
import socket
import struct
import time

from harness import becomes, check, equal, ethernet, inside, mac, test, wait_for
from ovn import Cloud, mac_of, port, router_port
from test_conntrack import Echo, ask
from tunnels import both_ways, mark_of, marked, transfer, udp

GATEWAY = "02:00:00:00:01:00"  # of ls0's router port


def cloud_of(lab, count=2, router=True, ip6=False):
    """Machines 1 and up in `ls0` (10.0.0.0/24, fd00::/64), at two hosts in turn; with the router
    lr0."""
    cloud = Cloud(lab, 2)
    numbers = range(1, count + 1)
    hosts = [
        cloud.host(
            (number - 1) % 2,
            number,
            f"10.0.0.{number}",
            "10.0.0.254" if router else None,
            ip6=f"fd00::{number}" if ip6 else None,
        )
        for number in numbers
    ]
    ips = {n: [f"10.0.0.{n}"] + ([f"fd00::{n}"] if ip6 else []) for n in numbers}
    words = ["ls-add", "ls0"]
    for number in numbers:
        words += port("ls0", number, *ips[number])
    if router:
        words += ["--", "lr-add", "lr0"]
        networks = ["10.0.0.254/24"] + (["fd00::254/64"] if ip6 else [])
        words += router_port("lr0", "ls0", 0, *networks)
    cloud.nb(*words)
    hosts[0].reaches("10.0.0.2", 20)
    return cloud, hosts


def dhcp(kind, options=b"", xid=7):
    """A DHCP message of host 1 as a frame: 1 discovers, 3 requests."""
    mine = mac_of(1)
    body = struct.pack("!BBBBIHH16s", 1, 1, 6, 0, xid, 0, 0x8000, b"") + mac(mine).ljust(16, b"\0")
    body += bytes(192) + bytes.fromhex("63825363") + bytes([53, 1, kind]) + options + b"\xff"
    packet = udp("0.0.0.0", "255.255.255.255", 67, body, sport=68, sum_value=None)
    return ethernet("ff:ff:ff:ff:ff:ff", mine, 0x0800, packet)


def dhcp_options(frame):
    """The options of a DHCP message."""
    data, found = frame[14 + 20 + 8 + 240 :], {}
    while data and data[0] != 255:
        found[data[0]], data = data[2 : 2 + data[1]], data[2 + data[1] :]
    return found


@test(timeout=120)
def dhcp_and_dns(lab):
    """Addresses by DHCP and names by DNS, which the host's own ovn-controller answers."""
    cloud, (one, two) = cloud_of(lab)
    nb = cloud.nb
    options = nb("create", "DHCP_Options", "cidr=10.0.0.0/24", wait="sb").strip()
    nb(
        *("dhcp-options-set-options", options, "lease_time=3600", "router=10.0.0.254"),
        *("server_id=10.0.0.254", f"server_mac={GATEWAY}", "dns_server=10.0.0.253"),
        *("--", "lsp-set-dhcpv4-options", "lp1", options),
    )
    raw = one.raw()

    def answer(request):
        def wanted(frame):
            return frame[12:14] == b"\x08\x00" and frame[34:38] == struct.pack("!HH", 67, 68)

        def attempt():
            raw.send(request)
            return raw.receive(1, wanted, until=1)

        return wait_for("DHCP answers", attempt, 20)[0]

    offer = answer(dhcp(1))
    equal(socket.inet_ntoa(offer[14 + 20 + 8 + 16 :][:4]), "10.0.0.1", "the address offered")
    acknowledged = dhcp_options(answer(dhcp(3, bytes([50, 4, 10, 0, 0, 1]), xid=8)))
    equal(acknowledged[53], b"\x05", "DHCPACK")
    equal(acknowledged[3], bytes([10, 0, 0, 254]), "the router")
    equal(acknowledged[51], struct.pack("!I", 3600), "the lease")
    names = nb("create", "DNS", "records:two.lab=10.0.0.2", wait="sb").strip()
    nb("set", "Logical_Switch", "ls0", f"dns_records={names}")
    query = struct.pack("!6H", 9, 0x0100, 1, 0, 0, 0) + b"\3two\3lab\0" + struct.pack("!HH", 1, 1)

    def resolve():
        with inside(one), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(1)
            client.sendto(query, ("10.0.0.2", 53))
            try:
                return client.recv(512)[-4:]
            except OSError:
                return None

    becomes(resolve, bytes([10, 0, 0, 2]), "the name's address", 20)


@test(timeout=120)
def port_security_groups_and_address_sets(lab):
    """What a machine may send as, and access lists by groups of ports and sets of addresses, which
    follow their members."""
    cloud, (one, two, three) = cloud_of(lab, 3)
    nb = cloud.nb
    sender, receiver = one.raw(), two.raw()

    def passes(source):
        receiver.drain()
        sender.send(marked(5, source, mac_of(2)))
        return bool(receiver.receive(0.4, lambda frame: mark_of(frame) == 5, until=1))

    forged = "02:00:00:00:00:77"
    equal([passes(mac_of(1)), passes(forged)], [True, True], "without port security")
    nb("lsp-set-port-security", "lp1", mac_of(1))
    becomes(lambda: [passes(mac_of(1)), passes(forged)], [True, False], "with port security")
    nb("lsp-set-port-security", "lp1", f"{mac_of(1)} 10.0.0.1")
    one.ping("10.0.0.2")
    one.run("ip address add 10.0.0.99/24 dev eth0")
    equal(ask_from(one, "10.0.0.99"), None, "a ping from an address that is not its")
    servers = [Echo(host, 80) for host in (one, two, three)]
    nb(
        *("pg-add", "servers", "lp2", "--", "create", "Address_Set", "name=friends"),
        *("addresses=10.0.0.1",),
    )
    nb(
        *("acl-add", "servers", "to-lport", "1000"),
        *("outport == @servers && ip4.src == $friends && tcp", "allow-related"),
        *("--", "acl-add", "servers", "to-lport", "900", "outport == @servers && ip4", "drop"),
    )
    reach = {
        (a, b): (lambda a=a, b=b: ask((one, two, three)[a - 1], f"10.0.0.{b}", 80, seconds=1))
        for a, b in ((1, 2), (3, 2), (1, 3), (2, 3))
    }

    def open_ways():
        return sorted(way for way, get in reach.items() if get())

    becomes(open_ways, [(1, 2), (1, 3), (2, 3)], "who reaches whom", 20)
    nb("add", "Address_Set", "friends", "addresses", "10.0.0.3")
    becomes(open_ways, [(1, 2), (1, 3), (2, 3), (3, 2)], "with one more friend", 20)
    nb(
        "remove",
        "Address_Set",
        "friends",
        "addresses",
        "10.0.0.1",
        "--",
        "pg-set-ports",
        "servers",
        "lp2",
        "lp3",
    )
    becomes(open_ways, [(3, 2)], "with one more server and one friend less", 20)
    for server in servers:
        server.close()


def ask_from(host, address):
    """What 10.0.0.2's kernel answers to a ping from an address; None if nothing."""
    done = host.run(["ping", "-n", "-c", "1", "-W", "1", "-I", address, "10.0.0.2"], ok=False)
    return True if done.returncode == 0 else None


@test(timeout=120)
def qos_rules_and_logs(lab):
    """QoS rules: a rate (meters) and a DSCP; access lists that log, at a limited rate."""
    cloud, (one, two) = cloud_of(lab)
    nb, raw = cloud.nb, two.raw()

    def sent(count=200, size=1000, port=9):
        """How many of so many datagrams arrive, and their TOS."""
        raw.drain()
        with inside(one), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(count):
                client.sendto(bytes(size), ("10.0.0.2", port))
                time.sleep(0.001)
        frames = raw.receive(
            0.7, lambda f: f[12:14] == b"\x08\x00" and f[23] == 17 and f[36:38] == bytes([0, port])
        )
        return len(frames), {frame[15] for frame in frames}

    equal(sent(), (200, {0}), "without rules")
    nb("qos-add", "ls0", "from-lport", "100", 'inport == "lp1" && udp', "dscp=46")
    becomes(lambda: sent()[1], {46 << 2}, "the DSCP")
    nb(
        "qos-del",
        "ls0",
        "--",
        *("qos-add", "ls0", "from-lport", "100", 'inport == "lp1" && udp', "rate=400", "burst=400"),
    )

    def limited():
        count, _ = sent()
        return 20 <= count <= 120

    wait_for("a rate of 400 kbit/s drops most of 1.6 Mbit", limited, 20)
    nb("qos-del", "ls0")
    becomes(lambda: sent(), (200, {0}), "without rules again")
    nb(
        *("meter-add", "slowly", "drop", "2", "pktps", "--", "--log", "--severity=alert"),
        *("--name=no-nine", "--meter=slowly", "acl-add", "ls0", "from-lport", "1000"),
        *('inport == "lp1" && udp.dst == 9', "drop"),
    )
    log = os.path.join(cloud.chassis[0].directory, "ovn-controller.log")

    def logged():
        with open(log, encoding="utf-8") as file:
            return len(
                re.findall(r'acl_log.*name="no-nine", verdict=drop, severity=alert', file.read())
            )

    becomes(lambda: sent()[0], 0, "what passes")
    sent(400, 10)
    wait_for("the drops are in the log", logged)
    check(logged() < 100, f"{logged()} lines of the log, which a meter limits")


@test(timeout=180)
def balancers(lab):
    """A load balancer's own servers reach it (hairpin), clients stay with a server (affinity), and
    a server that does not answer is left out (health checks)."""
    cloud, (one, two, three) = cloud_of(lab, 3)
    nb = cloud.nb
    servers = [Named(host, 80, name) for host, name in ((two, "two"), (three, "three"))]
    nb(
        *("lb-add", "lb0", "172.16.0.1:80", "10.0.0.2:80,10.0.0.3:80", "tcp"),
        *("--", "ls-lb-add", "ls0", "lb0"),
    )

    def answers(host, count=20):
        return {ask(host, "172.16.0.1", 80, seconds=2) for _ in range(count)}

    becomes(lambda: answers(one), {"two", "three"}, "who serves", 20)
    becomes(lambda: answers(two), {"two", "three"}, "who serves one of the servers", 20)
    nb("set", "Load_Balancer", "lb0", "options:affinity_timeout=20")

    def sticks():
        first = answers(one, 1)
        return first != {None} and answers(one) == first

    wait_for("a client stays with its server", sticks, 20)
    nb("remove", "Load_Balancer", "lb0", "options", "affinity_timeout")
    nb("lb-del", "lb0")
    nb(
        *("lb-add", "lb1", "172.16.0.1:80", "10.0.0.2:80,10.0.0.3:80", "tcp"),
        *("--", "ls-lb-add", "ls0", "lb1"),
        *("--", "set", "Load_Balancer", "lb1"),
        *('ip_port_mappings:10.0.0.2="lp2:10.0.0.253"',),
        *('ip_port_mappings:10.0.0.3="lp3:10.0.0.253"',),
        *("--", "--id=@check", "create", "Load_Balancer_Health_Check", 'vip="172.16.0.1:80"'),
        *("options:interval=1", "options:timeout=2", "options:success_count=1"),
        *("options:failure_count=1", "--", "add", "Load_Balancer", "lb1", "health_check", "@check"),
    )

    def states():
        text = cloud.central.sbctl("--bare", "--columns=status", "list", "Service_Monitor")
        return sorted(text.split())

    becomes(states, ["online", "online"], "the servers' health", 30)
    becomes(lambda: answers(one), {"two", "three"}, "who serves", 20)
    servers[1].close()
    becomes(states, ["offline", "online"], "the servers' health", 30)
    becomes(lambda: answers(one), {"two"}, "who serves", 20)
    servers[0].close()


class Named(Echo):
    """A server that answers with its name."""

    def __init__(self, host, port, name):
        self.name = name
        super().__init__(host, port)

    def serve_tcp(self):
        while True:
            try:
                peer, _ = self.tcp.accept()
            except OSError:
                return
            with peer:
                peer.sendall(f"{self.name}\n".encode())

    def close(self):
        # A thread that waits in accept() keeps the socket.
        self.tcp.shutdown(socket.SHUT_RDWR)
        super().close()


@test(timeout=120)
def ipv6_and_router_advertisements(lab):
    """IPv6 over hosts, by neighbour discovery that OVN answers, and addresses by router
    advertisements."""
    cloud, (one, two) = cloud_of(lab, ip6=True)
    wait_for("IPv6 between the hosts", lambda: one.ping("fd00::2", 1, ok=False), 20)
    one.ping("fd00::2")
    one.ping("fd00::254")
    cloud.nb(
        *("set", "Logical_Router_Port", "rls0", "ipv6_ra_configs:address_mode=slaac"),
        *("ipv6_ra_configs:send_periodic=true", "ipv6_ra_configs:max_interval=4"),
        *("ipv6_ra_configs:min_interval=3", "ipv6_ra_configs:mtu=1280"),
    )

    def slaac():
        return "fd00::ff:fe00:1/64" in addresses6(one)

    wait_for("an address by SLAAC", slaac, 30)


def addresses6(host):
    """All IPv6 addresses of a host's device."""
    return host.run("ip -6 address show dev eth0").stdout


@test(timeout=120)
def too_long_for_the_gateway(lab):
    """`gateway_mtu`: a router tells who sends too long packets, by IPv4."""
    cloud, (one, two) = cloud_of(lab)
    three = cloud.host(1, 3, "10.0.1.3", "10.0.1.254")
    cloud.nb(
        "ls-add", "ls1", *port("ls1", 3, "10.0.1.3"), *router_port("lr0", "ls1", 1, "10.0.1.254/24")
    )
    one.reaches("10.0.1.3", 20)
    equal(one.ping("10.0.1.3", 2, size=1200), 2, "answers without a limit")
    cloud.nb(
        *("set", "Logical_Router_Port", "rls1", "options:gateway_mtu=1000"),
        *("--", "lrp-set-gateway-chassis", "rls1", "c2", "10"),
    )

    def told():
        done = one.run(
            ["ping", "-n", "-M", "do", "-c", "1", "-W", "1", "-s", "1200", "10.0.1.3"], ok=False
        )
        return "mtu = 1000" in done.stdout or "mtu=1000" in done.stdout + done.stderr

    wait_for("the router says how long packets may be", told, 20)
    del three


@test(timeout=60)
def sampling_is_understood(lab):
    """Rows of collectors for samples are no error, and access lists work beside them."""
    cloud, (one, two) = cloud_of(lab)
    first = cloud.chassis[0]
    first.vsctl(
        *("--", "--id=@br", "get", "Bridge", "br-int", "--"),
        *("create", "Flow_Sample_Collector_Set", "id=7", "bridge=@br"),
    )
    cloud.nb("acl-add", "ls0", "to-lport", "1000", 'outport == "lp2" && ip4', "allow-related")
    one.ping("10.0.0.2")
    time.sleep(0.2)
    one.ping("10.0.0.2")


@test(timeout=120)
def provider_networks(lab):
    """A logical switch that is a VLAN of the network outside (`localnet`): machines of two hosts
    meet there, without a tunnel."""
    cloud = Cloud(lab, 2, mappings=True)
    hosts = [cloud.host(index, index + 1, f"10.0.0.{index + 1}") for index in range(2)]
    out = lab.namespace("out").quiet()
    cloud.lan.run("ip link add name out type veth peer name eth0 netns out")
    cloud.lan.run("ip link set out master ext up")
    out.run("ip link set eth0 up")
    raw = out.raw()
    cloud.nb(
        *("ls-add", "ls0", "--", "lsp-add", "ls0", "out", "", "42", "--", "lsp-set-type", "out"),
        *("localnet", "--", "lsp-set-addresses", "out", "unknown"),
        *("--", "lsp-set-options", "out", "network_name=outside"),
        *port("ls0", 1, "10.0.0.1"),
        *port("ls0", 2, "10.0.0.2"),
    )
    one, two = hosts
    one.reaches("10.0.0.2", 20)
    # The question for host 2's address goes everywhere, with the tag.
    frames = raw.receive(0.5, lambda frame: frame[6:12] == mac(mac_of(1)))
    equal({frame[12:16] for frame in frames}, {bytes([0x81, 0, 0, 42])}, "tags outside")
    tunnelled = cloud.chassis[0].counters("br-phy")["wire"]["tx"]["pkts"]
    one.ping("10.0.0.2", 20)
    transfer(one, two, "10.0.0.2")
    now = cloud.chassis[0].counters("br-phy")["wire"]["tx"]["pkts"]
    check(now - tunnelled < 20, f"{now - tunnelled} packets have left for tunnels")


@test(timeout=120)
def multicast_goes_to_its_members(lab):
    """With snooping, which OVN's controller does, a group's packets go to who has joined."""
    cloud, (one, two, three) = cloud_of(lab, 3, router=False)
    cloud.nb(
        *("set", "Logical_Switch", "ls0", "other_config:mcast_snoop=true"),
        *("other_config:mcast_querier=true", "other_config:mcast_query_interval=1"),
        *("other_config:mcast_eth_src=02:00:00:00:02:00", "other_config:mcast_ip4_src=10.0.0.200"),
    )
    group = "239.1.1.1"
    for host in (one, two, three):
        host.run(f"ip route add {group} dev eth0")
    with inside(two):
        member = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        member.bind(("", 5000))
        join = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton("10.0.0.2"))
        member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
    raws = [host.raw() for host in (two, three)]

    def reached():
        for raw in raws:
            raw.drain()
        with inside(one), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(3):
                sender.sendto(b"all", (group, 5000))
        packed = socket.inet_aton(group)
        return [
            len(raw.receive(0.5, lambda frame: frame[30:34] == packed and frame[23] == 17))
            for raw in raws
        ]

    becomes(reached, [3, 0], "who gets the group's packets", 30)
    member.close()


@test(timeout=120)
def hosts_by_vxlan(lab):
    """The tunnels between hosts are VXLAN instead of Geneve."""
    cloud = Cloud(lab, 2, settings=("external_ids:ovn-encap-type=vxlan",))
    one, two = (cloud.host(index, index + 1, f"10.0.0.{index + 1}") for index in range(2))
    cloud.nb("ls-add", "ls0", *port("ls0", 1, "10.0.0.1"), *port("ls0", 2, "10.0.0.2"))
    one.reaches("10.0.0.2", 20)
    both_ways(one, two, "10.0.0.1", "10.0.0.2")
    check("vxlan" in cloud.chassis[0].vsctl("--columns=type", "list", "Interface"), "no VXLAN")
