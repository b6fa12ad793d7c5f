"""What the tools say of tunnels, routes and neighbours is what Open vSwitch says: the answers on
record in tunnels_ovs.txt (written anew by SLUICE_TEST_RECORD=1 SWITCHD=ovs), but for what is
explained in test_tunnel_answers_*_differences.txt, all beside this file."""

import os
import re

from differences import hold
from harness import check, equal, ethernet, test
from tunnels import GRE, VXLAN, Watched, marked, site, tunnel, vxlan

HERE = os.path.dirname(os.path.abspath(__file__))
RECORD = os.path.join(HERE, "tunnels_ovs.txt")


def recorded(part):
    """{command: answer} of one part of the record."""
    answers, wanted, command = {}, False, None
    if os.path.exists(RECORD):
        with open(RECORD, encoding="utf-8") as file:
            for line in file:
                if line.startswith("= "):
                    wanted, command = line[2:].strip() == part, None
                elif wanted and line.startswith("$ "):
                    command = line[2:].rstrip("\n")
                    answers[command] = ""
                elif wanted and command:
                    answers[command] += line
    return answers


def write(part, answers):
    """Puts one part of the record in the place of what it was."""
    parts = {}
    if os.path.exists(RECORD):
        with open(RECORD, encoding="utf-8") as file:
            for block in re.split(r"^= ", file.read(), flags=re.M)[1:]:
                name, _, text = block.partition("\n")
                parts[name] = text
    parts[part] = "".join(f"$ {command}\n{answer}" for command, answer in answers.items())
    with open(RECORD, "w", encoding="utf-8") as file:
        file.write("".join(f"= {name}\n{text}" for name, text in parts.items()))


def compare(lab, part, answers):
    """Holds the answers of the daemon under test against the record."""
    if os.environ.get("SLUICE_TEST_RECORD"):
        check(lab.is_ovs, "only Open vSwitch's answers go on record")
        write(part, answers)
    wanted = recorded(part)
    equal(sorted(answers), sorted(wanted), "commands on record")
    hold(
        lab,
        os.path.join(HERE, f"test_tunnel_answers_{part}_differences.txt"),
        [(command, wanted[command], answer) for command, answer in answers.items()],
    )


class Story:
    """Commands and their answers, without what differs from run to run: MAC addresses, the
    datapath's port numbers, and the order of lists that have none."""

    def __init__(self, switch, names=()):
        self.switch, self.names, self.answers = switch, dict(names), {}

    def clean(self, text):
        for address, name in self.names.items():
            text = text.replace(address, name)
        text = re.sub(r"^ovs-appctl: .*: server returned an error\n", "", text, flags=re.M)
        text = re.sub(r"^Megaflow: .*$", "Megaflow: ...", text, flags=re.M)
        text = re.sub(
            r"(\bdp port=|^port |\btnl_port\(|\bout_port\(|\btnl_pop\(|_sys(?:_\d+)? \()\d+",
            r"\1N",
            text,
            flags=re.M,
        )
        text = re.sub(r"^(Datapath actions: .*\)),\d+$", r"\1,N", text, flags=re.M)
        return re.sub(r"^Datapath actions: \d+$", "Datapath actions: N", text, flags=re.M)

    def say(self, *words, arguments=None, ordered=True):
        """One command; `arguments` is how it is on record where MAC addresses are in it."""
        done = self.switch.appctl(*words, ok=False)
        lines = self.clean(done.stdout + done.stderr).splitlines()
        if not ordered:
            lines = sorted(lines)
        command = self.clean(" ".join(arguments or words))
        while command in self.answers:
            command += " again" if " again" not in command else "!"
        self.answers[command] = "".join(f"{line}\n" for line in [*lines, f"({done.returncode})"])

    def lists(self):
        """What lists all."""
        for words in (
            ["ovs/route/show"],
            ["tnl/neigh/show"],
            ["tnl/ports/show"],
            ["tnl/ports/show", "-v"],
            ["ofproto/list-tunnels"],
        ):
            self.say(*words, ordered=False)


def several(switch):
    """Tunnels of every kind with every option."""
    for number, (name, kind, remote, *options) in enumerate(
        (
            ("v1", "vxlan", 2, "key=7"),
            (
                "v2",
                "vxlan",
                2,
                "key=8",
                "csum=true",
                "df_default=false",
                "tos=inherit",
                "ttl=inherit",
            ),
            ("v3", "vxlan", "10.9.0.3", "key=flow", "dst_port=4790", "exts=gbp"),
            ("v4", "vxlan", "fd09::2", "in_key=flow", "out_key=5"),
            ("g1", "geneve", "flow", "key=flow", "tos=0x20", "ttl=3"),
            ("g2", "geneve", "10.9.0.9", "local_ip=10.9.0.1", "out_key=5"),
            ("g3", "geneve", "flow", "local_ip=flow", "in_key=5", "dst_port=7777"),
            ("r1", "gre", 2),
            ("r2", "gre", "10.9.0.77", "packet_type=legacy_l3", "seq=true"),
            ("r3", "ip6gre", "fd09::2", "key=1"),
            ("r4", "gre", "10.77.0.2", "key=7"),
            ("u1", "gtpu", 2, "key=7"),
        ),
        11,
    ):
        tunnel(switch, name, kind, remote, *options, settings=[f"ofport_request={number}"])


@test()
def routes_neighbours_and_ports_are_listed(lab):
    """`ovs/route/*`, `tnl/*` and `ofproto/list-tunnels`: what they list, take and refuse."""
    at = Watched(lab)
    story = Story(at.switch, {at.mac: "LOCAL", at.far_mac: "FAR"})
    story.lists()
    several(at.switch)
    at.switch.flows("in_port=in,actions=v1", bridge="br-int")
    at.pushed()
    story.lists()
    # Another address of another local port, and ports that are not there any more.
    at.switch.namespace.run("ip link set br-int up")
    at.switch.namespace.run("ip address add 10.30.0.1/24 dev br-int")
    story.names[at.switch.namespace.address("br-int")] = "INT"
    at.switch.vsctl("del-port", "v3", "--", "del-port", "g3", "--", "del-port", "v2")
    at.pushed()
    for words in (
        "ovs/route/lookup 10.9.0.2",
        "ovs/route/lookup 10.9.0.1",
        "ovs/route/lookup 10.30.0.7",
        "ovs/route/lookup 11.9.0.1",
        "ovs/route/lookup 127.0.0.1",
        "ovs/route/lookup 10.9.0.255",
        "ovs/route/lookup ::1",
        "ovs/route/lookup x",
        "ovs/route/lookup",
        "ovs/route/lookup 10.9.0.2 3",
        "ovs/route/lookup 10.9.0.2 pkt_mark=3",
        "ovs/route/add",
        "ovs/route/add 10.8.0.0/24 br-phy",
        "ovs/route/add 10.7.0.0/24 br-phy 10.9.0.254",
        "ovs/route/add 10.6.0.0/24 br-phy 10.9.0.254 pkt_mark=5",
        "ovs/route/add 10.5.0.0/24 br-phy pkt_mark=5",
        "ovs/route/add 10.9.0.128/25 br-phy",
        "ovs/route/add 10.4.0.0/24 nodev 10.9.0.254",
        "ovs/route/add 10.4.0.0/24 br-int 10.9.0.254",
        "ovs/route/add 10.4.0.0/33 br-phy",
        "ovs/route/add x br-phy",
        "ovs/route/add 10.3.0.0/24 br-phy y",
        "ovs/route/add 10.3.0.0/24 br-phy 10.9.0.254 y",
        "ovs/route/add fd08::/64 br-phy fd09::3",
        "ovs/route/add 0.0.0.0/0 br-phy 10.9.0.253",
        "ovs/route/add 10.9.0.64 br-phy",
        "ovs/route/add 10.7.0.0/24 br-phy 10.9.0.252",
        "ovs/route/lookup 10.7.0.5",
        "ovs/route/lookup 10.6.0.5",
        "ovs/route/lookup 10.6.0.5 pkt_mark=5",
        "ovs/route/lookup 10.9.0.200",
        "ovs/route/lookup 9.9.9.9",
        "tnl/neigh/set",
        "tnl/neigh/set br-phy 10.9.0.5 02:00:00:00:00:05",
        "tnl/neigh/set br-phy fd09::5 02:00:00:00:00:05",
        "tnl/neigh/set nobr 10.9.0.6 02:00:00:00:00:06",
        "tnl/neigh/set br-phy x 02:00:00:00:00:06",
        "tnl/neigh/set br-phy 10.9.0.6 x",
        "tnl/arp/set br-phy 10.9.0.7 02:00:00:00:00:07",
        "tnl/neigh/set br-phy 10.9.0.5 02:00:00:00:00:15",
        "tnl/neigh/show br-phy",
        "tnl/neigh/aging",
        "tnl/neigh/aging 60",
        "tnl/arp/aging",
        "tnl/neigh/aging 0",
        "tnl/neigh/aging 3601",
        "tnl/neigh/aging x",
        "tnl/neigh/flush br-phy",
        "ofproto/list-tunnels x",
        "tnl/egress_port_range",
        "tnl/egress_port_range 5",
        "tnl/egress_port_range x 5",
        "tnl/egress_port_range 5 70000",
        "tnl/egress_port_range 40000 40001",
    ):
        story.say(*words.split())
    story.lists()
    story.say("tnl/arp/show", ordered=False)
    for words in (
        "ovs/route/del",
        "ovs/route/del 10.8.0.0/24",
        "ovs/route/del x",
        "ovs/route/del 10.9.0.0/24",
        "ovs/route/del 10.6.0.0/24",
        "ovs/route/del 10.6.0.0/24 pkt_mark=5",
        "ovs/route/del 10.7.0.0/24",
        "ovs/route/del 0.0.0.0/0",
    ):
        story.say(*words.split())
    story.say("ovs/route/show", arguments=["ovs/route/show", "at last"], ordered=False)
    compare(lab, "lists", story.answers)


@test()
def traces_go_through_tunnels(lab):
    """`ofproto/trace` into tunnels and out of them."""
    at = Watched(lab)
    story = Story(at.switch, {at.mac: "LOCAL", at.far_mac: "FAR"})
    several(at.switch)
    at.switch.ofctl("add-tlv-map", "br-int", "{class=0x102,type=0x80,len=4}->tun_metadata0")
    ends = "dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.1.0.1,nw_dst=10.1.0.2"
    at.switch.flows(
        "priority=9,in_port=in,tcp,tcp_dst=1,actions=v1",
        "priority=9,in_port=in,tcp,tcp_dst=2,actions=v2",
        "priority=9,in_port=in,tcp,tcp_dst=3,actions=set_field:0x77->tun_id,v3",
        "priority=9,in_port=in,tcp,tcp_dst=4,actions=v4",
        "priority=9,in_port=in,tcp,tcp_dst=5,actions=set_field:10.9.0.2->tun_dst,"
        "set_field:9->tun_id,set_field:0xa->tun_metadata0,g1",
        "priority=9,in_port=in,tcp,tcp_dst=6,actions=g1",
        "priority=9,in_port=in,tcp,tcp_dst=7,actions=g2",
        "priority=9,in_port=in,tcp,tcp_dst=8,actions=set_field:10.9.0.2->tun_dst,g3",
        "priority=9,in_port=in,tcp,tcp_dst=9,actions=r1",
        "priority=9,in_port=in,tcp,tcp_dst=10,actions=r4",
        "priority=9,in_port=in,tcp,tcp_dst=11,actions=u1",
        "priority=9,in_port=in,tcp,tcp_dst=12,actions=v1,mod_nw_ttl:3,r1,in_port",
        "priority=9,in_port=in,tcp,tcp_dst=13,actions=set_field:1.2.3.4->tun_src,v1",
        "priority=9,in_port=v1,tun_id=7,actions=in",
        "priority=9,in_port=g1,tun_metadata0=5,actions=in",
        "priority=8,in_port=g1,actions=r1",
        "priority=1,in_port=in,actions=r1",
        bridge="br-int",
    )
    story.say("ofproto/trace", "br-int", f"in_port=in,tcp,{ends},tcp_dst=1")
    at.pushed(protocol=GRE)
    for port in range(1, 14):
        story.say(
            "ofproto/trace",
            "br-int",
            f"in_port=in,tcp,{ends},nw_tos=0x20,nw_ecn=1,nw_ttl=9,tcp_dst={port}",
        )
    story.say("ofproto/trace", "br-int", "in_port=in,dl_src=02:00:00:00:00:01")
    outer = f"dl_src={at.far_mac},dl_dst={at.mac},nw_src=10.9.0.2,nw_dst=10.9.0.1"
    for rest in (
        "udp,udp_dst=4789",
        "udp,udp_dst=6081",
        "udp,udp_dst=9999",
        "ip,nw_proto=47",
        "udp,udp_dst=2152",
    ):
        kind, _, field = rest.partition(",")
        story.say("ofproto/trace", "br-phy", f"in_port=wire,{kind},{outer},{field}")
    story.say(
        "ofproto/trace",
        "br-phy",
        f"in_port=wire,udp,{outer.replace('nw_dst=10.9.0.1', 'nw_dst=10.9.0.99')},udp_dst=4789",
    )
    story.say(
        "ofproto/trace",
        "br-phy",
        "in_port=wire",
        ethernet(at.mac, at.far_mac, 0x0800, at.udp(VXLAN, vxlan(7, marked(1)))).hex(),
        arguments=["ofproto/trace", "br-phy", "in_port=wire", "a VXLAN packet"],
    )
    tunneled = "tun_src=10.9.0.2,tun_dst=10.9.0.1,dl_src=02:00:00:00:00:02,dl_dst=02:00:00:00:00:01"
    for fields in (
        f"in_port=v1,tun_id=7,{tunneled},tcp",
        f"in_port=v1,tun_id=6,{tunneled}",
        f"in_port=g1,tun_id=7,tun_metadata0=5,{tunneled}",
        f"in_port=g1,tun_id=7,{tunneled}",
        "in_port=v1,dl_src=02:00:00:00:00:02",
    ):
        story.say("ofproto/trace", "br-int", fields)
    # Flooding: a tunnel's branch is a bridge of its own within.
    for name in ("v2", "v3", "v4", "g1", "g2", "g3", "r2", "r3", "u1"):
        at.switch.vsctl("del-port", name)
    at.switch.flows("actions=NORMAL", bridge="br-int")
    story.say(
        "ofproto/trace",
        "br-int",
        f"in_port=in,tcp,{ends},tcp_dst=1",
        arguments=["ofproto/trace", "br-int", "flooded"],
    )
    compare(lab, "traces", story.answers)


BAD = [
    ("vxlan", []),
    ("vxlan", ["remote_ip=nonsense"]),
    ("vxlan", ["remote_ip=10.9.0.300"]),
    ("vxlan", ["remote_ip="]),
    ("vxlan", ["remote_ip=host.example"]),
    ("vxlan", ["remote_ip=::"]),
    ("vxlan", ["remote_ip=0.0.0.0"]),
    ("vxlan", ["remote_ip=224.0.0.1"]),
    ("geneve", ["remote_ip=ff02::1"]),
    ("gre", []),
    ("gtpu", ["remote_ip=x"]),
    ("vxlan", ["remote_ip=10.9.0.2", "key=16777216"]),
    ("vxlan", ["remote_ip=10.9.0.2", "key=x"]),
    ("vxlan", ["remote_ip=10.9.0.2", "key=-1"]),
    ("gre", ["remote_ip=10.9.0.2", "key=4294967296"]),
    ("vxlan", ["remote_ip=10.9.0.2", "dst_port=70000"]),
    ("vxlan", ["remote_ip=10.9.0.2", "dst_port=0"]),
    ("vxlan", ["remote_ip=10.9.0.2", "dst_port=x"]),
    ("vxlan", ["remote_ip=10.9.0.2", "nonsense=1"]),
    ("vxlan", ["remote_ip=10.9.0.2", "tos=300"]),
    ("vxlan", ["remote_ip=10.9.0.2", "tos=x"]),
    ("vxlan", ["remote_ip=10.9.0.2", "ttl=300"]),
    ("vxlan", ["remote_ip=10.9.0.2", "ttl=x"]),
    ("vxlan", ["remote_ip=10.9.0.2", "ttl=0"]),
    ("vxlan", ["remote_ip=10.9.0.2", "csum=maybe"]),
    ("vxlan", ["remote_ip=10.9.0.2", "df_default=maybe"]),
    ("vxlan", ["remote_ip=10.9.0.2", "local_ip=x"]),
    ("vxlan", ["remote_ip=10.9.0.2", "local_ip=fd09::1"]),
    ("vxlan", ["remote_ip=10.9.0.2", "local_ip=flow"]),
    ("vxlan", ["remote_ip=10.9.0.2", "exts=foo"]),
    ("vxlan", ["remote_ip=10.9.0.2", "exts=gpe"]),
    ("vxlan", ["remote_ip=10.9.0.2", "packet_type=legacy_l3"]),
    ("vxlan", ["remote_ip=10.9.0.2", "packet_type=foo"]),
    ("geneve", ["remote_ip=10.9.0.2", "exts=gbp"]),
    ("geneve", ["remote_ip=10.9.0.2", "packet_type=legacy_l3"]),
    ("gre", ["remote_ip=10.9.0.2", "packet_type=ptap"]),
    ("gre", ["remote_ip=10.9.0.2", "dst_port=5"]),
    ("gre", ["remote_ip=fd09::2"]),
    ("ip6gre", ["remote_ip=10.9.0.2"]),
    ("gtpu", ["remote_ip=10.9.0.2", "packet_type=legacy_l2"]),
    ("vxlan", ["remote_ip=10.9.0.40", "key=7"]),
    ("vxlan", ["remote_ip=10.9.0.40", "key=0x7"]),
    ("vxlan", ["remote_ip=10.9.0.40", "key=7", "exts=gbp"]),
    ("vxlan", ["remote_ip=10.9.0.2", "peer=x"]),
    ("gre", ["remote_ip=10.9.0.2", "pmtud=true", "ipsec=yes"]),
    ("lisp", ["remote_ip=10.9.0.2"]),
    ("stt", ["remote_ip=10.9.0.2"]),
    ("erspan", ["remote_ip=10.9.0.2"]),
    ("gre64", ["remote_ip=10.9.0.2"]),
    ("bareudp", ["remote_ip=10.9.0.2", "payload_type=mpls"]),
    ("srv6", ["remote_ip=fd09::3", "srv6_segs=fd09::3"]),
    ("vxlan", ["remote_ip=10.9.0.2", "egress_pkt_mark=x"]),
    ("vxlan", ["remote_ip=10.9.0.2", "key=5", "in_key=6"]),
]
# They stay, so that what comes after is in their way.
KEPT = (["remote_ip=10.9.0.40", "key=7"],)


@test()
def bad_options_are_told(lab):
    """Options that cannot be: the interface's error and the log say what Open vSwitch says. (Where
    that takes a value that is too large or no number and cuts it, the record shows no error;
    refusing it is a difference to explain.)"""
    switch = site(lab)
    answers = {}
    for number, (kind, options) in enumerate(BAD):
        name, begin = f"t{number}", len(switch.log())
        done = tunnel(switch, name, kind, None, *options, ok=False)
        error = switch.get("Interface", name, "error")
        told = switch.log()[begin:]
        lines = [
            f"ofport {'-1' if switch.get('Interface', name, 'ofport') == -1 else 'N'}",
            f"error {error}" if error else "no error",
            *(line for line in done.stderr.splitlines() if "Error detected" in line),
        ]
        # What warnings say of it, without time and number.
        lines += [
            re.sub(r"^.*?\|\d+\|", "", line)
            for line in told.splitlines()
            if re.search(r"\|(netdev_vport|tunnel)\|(WARN|ERR)\||^t\d", line)
        ]
        lines += [
            line
            for line in switch.appctl("ofproto/list-tunnels").splitlines()
            if f" {name} " in line
        ]
        text = "".join(f"{line}\n" for line in lines)
        text = re.sub(r"\bt\d+\b", lambda found: "OTHER" if found[0] != name else "T", text)
        text = re.sub(r"(?:\b|^)(dp port=|port )\d+", r"\1N", text, flags=re.M)
        answers[f"{kind} {' '.join(options)}".strip()] = re.sub(
            r"  See ovs-vswitchd log for details\.", "", text
        )
        if options not in KEPT:
            switch.vsctl("del-port", name)
    switch.appctl("version")
    # A good one works after all that, under a name that a bad one had.
    check(tunnel(switch, "t0", "vxlan", 2, "key=77") > 0, "a good tunnel has no number")
    compare(lab, "options", answers)


@test()
def a_bad_option_can_be_mended(lab):
    """A tunnel that was refused works as soon as its options are good; one whose options turn bad
    stops, with an error."""
    at = Watched(lab)
    tunnel(at.switch, "tun", "vxlan", None, "key=7", ok=False)
    equal(at.switch.get("Interface", "tun", "ofport"), -1, "number of a tunnel without a remote")
    at.switch.vsctl("set", "Interface", "tun", "options:remote_ip=10.9.0.2")
    equal(at.switch.get("Interface", "tun", "error"), [], "error when mended")
    check(at.switch.get("Interface", "tun", "ofport") > 0, "a mended tunnel has no number")
    at.pushed()
    at.comes_in(at.udp(VXLAN, vxlan(7, marked(1001))), 1001)
    at.switch.vsctl("set", "Interface", "tun", "options:remote_ip=nonsense", ok=False)
    equal(
        (at.switch.get("Interface", "tun", "ofport"), at.switch.get("Interface", "tun", "error")),
        (-1, "tun: bad vxlan 'remote_ip'\ntun: vxlan type requires valid 'remote_ip' argument"),
        "number and error of a tunnel turned bad",
    )
    at.push_none()
    at.switch.vsctl("set", "Interface", "tun", "options:remote_ip=10.9.0.2")
    at.pushed()
