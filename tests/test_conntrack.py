"""Connection tracking: states, address translation, marks, zones and limits, with real hosts, on
Open vSwitch and here."""

import json
import re
import socket
import threading
import time

from harness import becomes, check, equal, inside, test, wait_for

# A firewall: connections from inside (port 1) are let out and their answers in.
FIREWALL = [
    "table=0,priority=10,arp,actions=NORMAL",
    "table=0,priority=5,ip,actions=ct(table=1)",
    "table=1,in_port=1,ip,ct_state=+trk+new,actions=ct(commit),output:2",
    "table=1,in_port=1,ip,ct_state=+trk+est,actions=output:2",
    "table=1,in_port=2,ip,ct_state=+trk+est,actions=output:1",
    "table=1,in_port=2,ip,ct_state=+trk+rel,actions=output:1",
    "table=1,priority=1,ip,actions=drop",
]


def hosts(lab, switch, count=2):
    """Hosts at the ports 1 and up, with addresses 10.1.0.1 and up."""
    found = []
    for number in range(1, count + 1):
        host = lab.namespace(f"h{number}").quiet()
        switch.pair(host, f"p{number}", ip=f"10.1.0.{number}/24")
        switch.port(f"p{number}", f"ofport_request={number}")
        found.append(host)
    return found


class Echo:
    """A TCP and a UDP server on one port of a host that answer with the peer's address as they
    see it."""

    def __init__(self, host, port):
        with inside(host):
            self.tcp = socket.create_server(("0.0.0.0", port))
            self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.udp.bind(("0.0.0.0", port))
        for serve in (self.serve_tcp, self.serve_udp):
            threading.Thread(target=serve, daemon=True).start()

    def serve_tcp(self):
        """Answers one line to each connection."""
        while True:
            try:
                peer, address = self.tcp.accept()
            except OSError:
                return
            with peer:
                peer.sendall(f"{address[0]} {address[1]}\n".encode())

    def serve_udp(self):
        """Answers each datagram."""
        while True:
            try:
                _, address = self.udp.recvfrom(2048)
                self.udp.sendto(f"{address[0]} {address[1]}\n".encode(), address)
            except OSError:
                return

    def close(self):
        """Stops serving."""
        self.tcp.close()
        self.udp.close()


def ask(host, address, port, kind=socket.SOCK_STREAM, source=0, seconds=3):
    """What a server at an address answers; None if nothing, "refused" where the host is told so."""
    with inside(host):
        client = socket.socket(socket.AF_INET, kind)
    with client:
        client.settimeout(seconds)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if source:
                client.bind(("0.0.0.0", source))
            client.connect((address, port))
            if kind == socket.SOCK_DGRAM:
                client.send(b"?")
            return client.recv(100).decode().strip() or None
        except ConnectionRefusedError:
            return "refused"
        except (TimeoutError, OSError):
            return None


def connections(switch, *words):
    """The lines of dpctl/dump-conntrack, sorted."""
    return sorted(switch.appctl("dpctl/dump-conntrack", *words).splitlines())


@test(timeout=120)
def answers_come_in_and_nothing_else(lab):
    """A stateful firewall, with ICMP, TCP, UDP, and errors that belong to a connection."""
    switch = lab.switch()
    switch.bridge()
    inner, outer = hosts(lab, switch)
    switch.flows(*FIREWALL)
    server, other = Echo(outer, 80), Echo(inner, 80)
    inner.ping("10.1.0.2")
    equal(outer.ping("10.1.0.1", 2, ok=False), 0, "answers to pings from outside")
    equal(ask(inner, "10.1.0.2", 80, source=4000), "10.1.0.1 4000", "TCP from inside")
    equal(ask(outer, "10.1.0.1", 80, seconds=1), None, "TCP from outside")
    equal(ask(inner, "10.1.0.2", 80, socket.SOCK_DGRAM, 4001), "10.1.0.1 4001", "UDP")
    equal(ask(outer, "10.1.0.1", 80, socket.SOCK_DGRAM, seconds=1), None, "UDP from outside")
    # The error quotes the datagram that it answers.
    equal(ask(inner, "10.1.0.2", 81, socket.SOCK_DGRAM), "refused", "an error comes in")
    lines = connections(switch)
    tcp = (
        "tcp,orig=(src=10.1.0.1,dst=10.1.0.2,sport=4000,dport=80),"
        "reply=(src=10.1.0.2,dst=10.1.0.1,sport=80,dport=4000),protoinfo=(state="
    )
    check(any(line.startswith(tcp) for line in lines), tcp, "is not in", lines)
    udp = (
        "udp,orig=(src=10.1.0.1,dst=10.1.0.2,sport=4001,dport=80),"
        "reply=(src=10.1.0.2,dst=10.1.0.1,sport=80,dport=4001)"
    )
    check(udp in lines, udp, "is not in", lines)
    check(
        any(re.match(r"icmp,orig=.*type=8,code=0\),reply=.*type=0", line) for line in lines), lines
    )
    server.close()
    other.close()


@test(timeout=120)
def bulk_data_passes_the_tracker(lab):
    """A stream of large segments, whose checksums are left to the device, in both directions."""
    switch = lab.switch()
    switch.bridge()
    inner, outer = hosts(lab, switch)
    switch.flows(*FIREWALL)
    outer.start("iperf3 -s", "iperf3.out")
    wait_for("iperf3 listens", lambda: "5201" in outer.run("ss -ltn").stdout)
    for options in ((), ("-R",)):
        report = inner.iperf("10.1.0.2", *options, seconds=1)
        moved = report["end"]["sum_received"]["bytes"]
        check(moved > 10_000_000, f"{moved} bytes {options}")
    equal(inner.checksum_errors(), outer.checksum_errors(), "checksum errors")


@test(timeout=120)
def addresses_are_translated_and_back(lab):
    """Source and destination NAT, of TCP, UDP, pings and errors; ports by a range; a port that is
    taken."""
    switch = lab.switch()
    switch.bridge()
    one, two, three = hosts(lab, switch, 3)
    # 10.1.0.100 stands for hosts 1 and 3, as seen by host 2; 10.1.0.200 for host 2.
    switch.flows(
        "table=0,priority=20,arp,arp_tpa=10.1.0.100,arp_op=1,actions="
        "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],set_field:02:00:00:00:00:64->eth_src,"
        "load:2->NXM_OF_ARP_OP[],move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],"
        "load:0x020000000064->NXM_NX_ARP_SHA[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],"
        "load:0x0a010064->NXM_OF_ARP_SPA[],in_port",
        "table=0,priority=20,arp,arp_tpa=10.1.0.200,arp_op=1,actions="
        "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],set_field:02:00:00:00:00:c8->eth_src,"
        "load:2->NXM_OF_ARP_OP[],move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],"
        "load:0x0200000000c8->NXM_NX_ARP_SHA[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],"
        "load:0x0a0100c8->NXM_OF_ARP_SPA[],in_port",
        "table=0,priority=10,arp,actions=NORMAL",
        "table=0,priority=5,ip,actions=ct(table=1,zone=7,nat)",
        "table=1,priority=9,ip,ct_state=+trk+new,nw_dst=10.1.0.200,"
        "actions=ct(commit,zone=7,nat(dst=10.1.0.2),table=2)",
        "table=1,priority=8,in_port=1,ip,ct_state=+trk+new,nw_dst=10.1.0.2,"
        "actions=ct(commit,zone=7,nat(src=10.1.0.100:5000-5010),table=2)",
        "table=1,priority=8,in_port=3,ip,ct_state=+trk+new,nw_dst=10.1.0.2,"
        "actions=ct(commit,zone=7,nat(src=10.1.0.100),table=2)",
        "table=1,priority=1,ip,ct_state=+trk-new-inv,actions=resubmit(,2)",
        f"table=2,ip,nw_dst=10.1.0.2,actions=set_field:{address(two)}->eth_dst,output:2",
        f"table=2,ip,nw_dst=10.1.0.1,actions=set_field:{address(one)}->eth_dst,output:1",
        f"table=2,ip,nw_dst=10.1.0.3,actions=set_field:{address(three)}->eth_dst,output:3",
    )
    server = Echo(two, 80)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        seen = ask(one, "10.1.0.2", 80, kind)
        found = re.fullmatch(r"10\.1\.0\.100 (50[01]\d)", seen or "")
        check(found and 5000 <= int(found[1]) <= 5010, "the server saw", seen)
        equal(ask(three, "10.1.0.2", 80, kind, 6000), "10.1.0.100 6000", "an own port is kept")
        equal(ask(three, "10.1.0.200", 80, kind, 6001), "10.1.0.3 6001", "another destination")
    # The port that host 3 would keep is in use for host 1.
    seen = ask(three, "10.1.0.2", 80, socket.SOCK_DGRAM, int(found[1]))
    check(seen and seen.startswith("10.1.0.100 ") and seen.split()[1] != found[1], seen)
    one.ping("10.1.0.2")
    three.ping("10.1.0.200")
    equal(ask(one, "10.1.0.2", 81, socket.SOCK_DGRAM), "refused", "an error with NAT")
    equal(ask(three, "10.1.0.200", 81, socket.SOCK_DGRAM), "refused", "an error with DNAT")
    equal(ask(one, "10.1.0.2", 81), "refused", "a reset with NAT")
    lines = connections(switch, "zone=7")
    wanted = (
        "udp,orig=(src=10.1.0.3,dst=10.1.0.200,sport=6001,dport=80),"
        "reply=(src=10.1.0.2,dst=10.1.0.3,sport=80,dport=6001),zone=7"
    )
    check(wanted in lines, wanted, "is not in", lines)
    equal(connections(switch, "zone=8"), [], "connections of another zone")
    for host in (one, two, three):
        equal(host.checksum_errors(), {}, "checksum errors")
    server.close()


def address(host):
    """The MAC address of a host."""
    return re.search(r"link/ether (\S+)", host.run("ip link show eth0").stdout)[1]


@test(timeout=120)
def marks_labels_and_zones(lab):
    """What rules write to a connection is matched later, also by answers; zones know nothing of
    each other; ct_clear forgets."""
    switch = lab.switch()
    switch.bridge()
    one, two = hosts(lab, switch)
    switch.flows(
        "table=0,priority=10,arp,actions=NORMAL",
        "table=0,priority=5,ip,actions=load:9->NXM_NX_REG1[0..15],load:0x77->NXM_NX_REG2[],"
        "ct(table=1,zone=NXM_NX_REG1[0..15])",
        "table=1,in_port=1,ip,ct_state=+trk+new,ct_zone=9,actions="
        "ct(commit,zone=9,exec(set_field:0x5/0xf->ct_mark,"
        "move:NXM_NX_REG2[0..31]->NXM_NX_CT_LABEL[64..95])),output:2",
        "cookie=1,table=1,in_port=2,ip,ct_state=+trk+est+rpl,ct_mark=5,"
        "ct_label=0x770000000000000000/0xffffffff0000000000000000,"
        "ct_nw_src=10.1.0.1,ct_nw_proto=1,actions=ct(table=2,zone=10)",
        "table=1,in_port=1,ip,ct_state=+trk+est-rpl,ct_mark=5,actions=output:2",
        "cookie=2,table=2,ip,ct_state=+trk+inv,ct_mark=0,ct_zone=10,actions=ct_clear,resubmit(,3)",
        "cookie=3,table=3,ip,ct_state=-trk,ct_zone=0,ct_mark=0,actions=output:1",
    )
    one.ping("10.1.0.2", 3)
    becomes(switch.rule_packets, {1: 3, 2: 3, 3: 3}, "packets of rules")
    lines = connections(switch)
    equal(len(lines), 1, f"connections {lines}")
    check("zone=9,mark=5,labels=0x770000000000000000" in lines[0], lines)


@test(timeout=120)
def connections_are_flushed_and_limited(lab):
    """By dpctl and by OpenFlow; limits of zones and of all; the tools' words as in Open vSwitch."""
    switch = lab.switch()
    switch.bridge()
    one, two = hosts(lab, switch)
    switch.flows(*(rule.replace("ct(", "ct(zone=3,") for rule in FIREWALL))
    server = Echo(two, 80)

    def begin(port):
        equal(ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, port), f"10.1.0.1 {port}", "UDP")

    def ports():
        return [int(re.search(r"sport=(\d+)", line)[1]) for line in connections(switch)]

    for port in (7001, 7002, 7003):
        begin(port)
    equal(ports(), [7001, 7002, 7003], "connections")
    equal(switch.appctl("dpctl/ct-get-nconns"), "3\n", "their number")
    check("UDP: 3" in switch.appctl("dpctl/ct-stats-show"), "statistics")
    check("UDP: 3" in switch.appctl("dpctl/ct-stats-show", "verbose"), "statistics, verbose")
    tuple_of = "ct_nw_src=10.1.0.1,ct_nw_dst=10.1.0.2,ct_nw_proto=17,ct_tp_src={},ct_tp_dst=80"
    switch.appctl("dpctl/flush-conntrack", "zone=3", tuple_of.format(7002))
    equal(ports(), [7001, 7003], "one was flushed")
    done = switch.appctl("dpctl/flush-conntrack", "zone=3", tuple_of.format(7002), ok=False)
    check("No such file or directory" in done.stderr, done.stderr)
    switch.appctl("dpctl/flush-conntrack", "zone=4")
    equal(ports(), [7001, 7003], "another zone was flushed")
    switch.ofctl("ct-flush", "br0", "zone=3", "ct_nw_proto=17,ct_tp_src=7003")
    becomes(ports, [7001], "connections after OpenFlow's flush")
    switch.appctl("dpctl/flush-conntrack")
    equal(ports(), [], "all were flushed")
    switch.appctl("dpctl/ct-set-limits", "zone=3,limit=2")
    begin(7004)
    begin(7005)
    equal(ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, 7006, 1), None, "above the zone's limit")
    equal(
        switch.appctl("dpctl/ct-get-limits", "zone=3,9"),
        "default limit=0\nzone=3,limit=2,count=2\nzone=9,limit=0,count=0\n",
        "limits",
    )
    switch.appctl("dpctl/ct-del-limits", "zone=3")
    begin(7006)
    server.close()
    wanted = {
        ("ct-get-maxconns",): "3000000\n",
        ("ct-set-maxconns", "100"): "setting maxconns successful\n",
        ("ct-set-maxconns", "x"): "maxconns missing or malformed (Invalid argument)",
        ("ct-disable-tcp-seq-chk",): "disabling TCP sequence checking successful\n",
        ("ct-get-tcp-seq-chk",): "TCP sequence checking: disabled\n",
        ("ct-set-limits", "default=10", "zone=5,limit=7", "zone=9,limit=0"): "",
        ("ct-get-limits",): "default limit=10\nzone=5,limit=7,count=0\nzone=9,limit=0,count=0\n",
        ("ct-get-limits", "zone=x"): "invalid zone (Invalid argument)",
        ("ct-set-limits", "zone=70000,limit=3"): "failed to parse field zone (Invalid argument)",
        ("ct-set-limits", "zone=5"): "failed to parse zone limit (Invalid argument)",
        ("dump-conntrack", "zone=x"): "datapath not found (Invalid argument)",
        ("dump-conntrack", "-x"): "Unrecognized option -x",
        ("flush-conntrack", "ct_nonsense=1"): "invalid conntrack tuple field: ct_nonsense",
        ("flush-conntrack", "zone=a"): "failed to parse zone (Invalid argument)",
    }
    for (name, *words), text in wanted.items():
        done = switch.appctl(f"dpctl/{name}", *words, ok=False)
        if text.endswith("\n") or not text:
            equal(done.stdout, text, f"{name} {words}")
        else:
            check(text in done.stderr, f"{name} {words}:", done.stderr)


@test(timeout=120)
def a_limit_of_zero_lets_no_connection_begin(lab):
    """Of a zone, and of all zones without one; what has begun goes on."""
    switch = lab.switch()
    switch.bridge()
    one, two = hosts(lab, switch)
    switch.flows(*(rule.replace("ct(", "ct(zone=3,") for rule in FIREWALL))
    server = Echo(two, 80)

    def answered(port, wanted):
        got = ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, port, 3 if wanted else 1)
        equal(got, f"10.1.0.1 {port}" if wanted else None, f"port {port}")

    answered(7001, True)
    switch.appctl("dpctl/ct-set-limits", "zone=3,limit=0")
    answered(7002, False)
    answered(7001, True)
    equal(len(connections(switch)), 1, "connections")
    switch.appctl("dpctl/ct-del-limits", "zone=3")
    answered(7003, True)
    switch.appctl("dpctl/ct-set-limits", "default=0")
    answered(7004, False)
    switch.appctl("dpctl/ct-set-limits", "zone=3,limit=9")
    answered(7005, True)
    server.close()


@test(timeout=120)
def a_range_that_is_used_up_translates_no_more(lab):
    """A new connection finds no free port. Here its packets are invalid; Open vSwitch sends them as
    they are, as new, and logs that it could not translate them. What has begun goes on."""
    switch = lab.switch()
    switch.bridge()
    one, two = hosts(lab, switch)
    switch.flows(
        "table=0,priority=10,arp,actions=NORMAL",
        "table=0,priority=5,in_port=1,ip,actions=ct(commit,zone=3,nat(src=10.1.0.1:5000-5001),"
        "table=1)",
        "table=0,priority=5,in_port=2,ip,actions=ct(zone=3,nat,table=1)",
        "cookie=1,table=1,priority=2,in_port=1,ip,ct_state=+trk+new-snat-inv,actions=drop",
        "cookie=2,table=1,priority=2,ip,ct_state=+inv,actions=drop",
        "table=1,priority=1,in_port=1,ip,actions=output:2",
        "table=1,priority=1,in_port=2,ip,actions=output:1",
    )
    server = Echo(two, 80)
    seen = [ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, port) for port in (7001, 7002)]
    equal(sorted(seen), ["10.1.0.1 5000", "10.1.0.1 5001"], "what the server saw")
    equal(ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, 7003, 1), None, "a third connection")
    wanted = {1: 1, 2: 0} if switch.is_ovs else {1: 0, 2: 1}
    becomes(
        lambda: {rule: switch.rule_packets().get(rule, 0) for rule in wanted}, wanted, "packets"
    )
    equal(ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, 7001), seen[0], "the first connection")
    if switch.is_ovs:
        switch.expected.append("tuple space exhaustion")
    server.close()


@test(timeout=60)
def rules_that_cannot_be_are_refused(lab):
    """Errors by type and code, as Open vSwitch has them, and the rules stay as they were."""
    switch = lab.switch()
    switch.bridge()
    switch.flows("ip,actions=ct(commit)")
    for rule in (
        "actions=ct(commit)",
        "arp,actions=ct(table=1)",
        "udp,actions=ct(commit,alg=ftp)",
        "ipv6,actions=ct(commit,nat(src=10.0.0.1))",
        "ip,actions=ct(commit,exec(set_field:1->nw_tos))",
        "ip,actions=ct(commit,exec(output:1))",
        "ip,actions=nat",
    ):
        done = switch.ofctl("add-flow", "br0", rule, ok=False)
        check(done.returncode != 0, rule, "is accepted")
    equal(switch.rules(), ["ip actions=ct(commit)"], "rules")


@test(timeout=60)
def zones_have_timeouts_of_their_own(lab):
    """A policy of the database shortens the timeouts of one zone."""
    switch = lab.switch()
    switch.bridge()
    one, two = hosts(lab, switch)
    switch.flows(
        "priority=10,arp,actions=NORMAL",
        "priority=5,ip,nw_tos=0,actions=ct(commit,zone=5),ct(commit,zone=6),NORMAL",
    )
    switch.vsctl(
        *("--", "--id=@d", "create", "Datapath", "datapath_version=0"),
        *("--", "set", "Open_vSwitch", ".", "datapaths:netdev=@d"),
    )
    timeouts = ("udp_first=1", "udp_single=1", "udp_multiple=1")
    switch.vsctl("add-zone-tp", "netdev", "zone=5", *timeouts)
    server = Echo(two, 80)
    equal(ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, 5000), "10.1.0.1 5000", "UDP")
    becomes(lambda: len(connections(switch, "zone=5")), 0, "connections of the short zone")
    equal(len(connections(switch, "zone=6")), 1, "connections of the other zone")
    switch.vsctl("del-zone-tp", "netdev", "zone=5")
    equal(ask(one, "10.1.0.2", 80, socket.SOCK_DGRAM, 5001), "10.1.0.1 5001", "UDP")
    equal(len(connections(switch, "zone=5")), 1, "connections of the zone without a policy")
    server.close()


@test(timeout=60)
def a_datapath_row_says_what_the_datapath_can_do(lab):
    """ovn-controller reads the capabilities of the row, which somebody else adds at any time."""
    switch = lab.switch()
    switch.bridge()

    def add(kind):
        return switch.vsctl(
            *("--", "--id=@d", "create", "Datapath", "datapath_version=0"),
            *("--", "set", "Open_vSwitch", ".", f"datapaths:{kind}=@d"),
        ).strip()

    def told(row, key="ct_zero_snat"):
        return switch.vsctl("--if-exists", "get", "Datapath", row, f"capabilities:{key}").strip()

    first = add("netdev")
    becomes(lambda: told(first), '"true"', "capabilities:ct_zero_snat")
    features = switch.appctl("dpif/show-dp-features", "br0")
    for title, key in (("Max VLAN headers", "max_vlan_headers"), ("Max MPLS", "max_mpls_depth")):
        number = re.search(rf"^{title}.*: (\d+)$", features, re.M)[1]
        equal(told(first, key), f'"{number}"', key)
    # The row goes, and another comes.
    switch.vsctl("clear", "Open_vSwitch", ".", "datapaths")
    second = add("netdev")
    check(first != second, "the row is the same")
    becomes(lambda: told(second), '"true"', "capabilities:ct_zero_snat of the next row")


def memory(switch, what):
    """A figure of the daemon's memory, in KiB."""
    with open(f"/proc/{switch.process.pid}/status", encoding="ascii") as file:
        return int(re.search(rf"{what}:\s+(\d+) kB", file.read())[1])


@test(timeout=120)
def a_long_dump_is_not_put_together_in_memory(lab):
    """Many connections and a reader that pauses: others are answered meanwhile, the memory does not
    grow by the answer, and the answer is whole. A reader that goes leaves nothing behind."""
    switch = lab.switch()
    switch.bridge()
    host = lab.namespace("h1").quiet()
    switch.pair(host, "p1", ip="10.1.0.1/24")
    switch.port("p1", "ofport_request=1")
    host.run("ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev eth0")
    switch.flows("udp,actions=ct(commit)")
    count = 40_000
    with inside(host), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
        sender.bind(("10.1.0.1", 4000))
        for port in range(1, count + 1):
            sender.sendto(b"?", ("10.1.0.2", port))
            if port % 100 == 0:
                time.sleep(0.002)
    found = tracked(switch)
    check(found > count / 2, found)

    def ask():
        client = socket.socket(socket.AF_UNIX)
        client.connect(f"{switch.directory}/ovs-vswitchd.{switch.process.pid}.ctl")
        client.settimeout(60)
        request = {"id": 1, "method": "dpctl/dump-conntrack", "params": []}
        client.sendall(json.dumps(request).encode())
        return client

    before = memory(switch, "VmHWM")
    for _ in range(3):
        with ask() as client:
            client.recv(100)
    with ask() as client:
        answer = bytearray(client.recv(1000))
        for _ in range(10):
            equal(tracked(switch), found, "answered meanwhile")
        while not is_whole(answer):
            part = client.recv(65536)
            check(part, "the answer ends early")
            answer += part
    lines = json.loads(answer)["result"].splitlines()
    equal(len(set(lines)), found, "lines")
    check(all(line.startswith("udp,orig=(src=10.1.0.1,") for line in lines), lines[0])
    if not switch.is_ovs:
        grown = memory(switch, "VmHWM") - before
        check(grown * 1024 < len(answer) / 2, f"{grown} KiB for {len(answer)} bytes")


def is_whole(answer):
    """Whether it is all of a JSON text."""
    if not answer.endswith(b"}"):
        return False
    try:
        return bool(json.loads(answer))
    except ValueError:
        return False


def tracked(switch):
    """How many connections there are."""
    return int(switch.appctl("dpctl/ct-get-nconns"))
