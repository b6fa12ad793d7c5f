"""The examples of Open vSwitch's documentation (documents_ovs.txt, and those about devices in
documents_ovs_devices.txt): each is answered alike by Open vSwitch and by the daemon under test, but
for what is explained in the lists of differences beside them. Some are carried out with packets."""

import json
import os
import random
import re
import shlex

import test_trace
from differences import hold
from harness import (
    OPEN_VSWITCH,
    Failure,
    Skip,
    becomes,
    check,
    equal,
    ethernet,
    switchd_command,
    test,
    wait_for,
)

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "documents_ovs.txt")
DEVICES = os.path.join(HERE, "documents_ovs_devices.txt")
TOOLS = ("ovs-vsctl", "ovs-ofctl", "ovs-appctl", "ip ")
# Flows are shown, and tried, as these see them: without instructions, with them, and with the
# latest actions.
VERSIONS = {"1.0": "OpenFlow10", "1.3": "OpenFlow13", "1.5": "OpenFlow15"}
# What stays in the database when its bridges have gone.
ROOTS = ("QoS", "Queue")


def scenes(path=EXAMPLES):
    """[(title, [(line, standard input)])] of a file of examples."""
    found = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if line.startswith("== "):
                found.append((line[3:], []))
            elif line.startswith("    ") and found and found[-1][1]:
                command, stdin = found[-1][1].pop()
                found[-1][1].append((command, stdin + line.strip() + "\n"))
            elif line.startswith((*TOOLS, "bridge ", "flow ")) and found:
                found[-1][1].append((line, ""))
            elif line and not line.startswith("#"):
                raise Failure(
                    f"{path}:{number}: neither a scene, an example, its input nor a comment"
                )
    return found


def commands(line):
    """[(how it is shown, its words)] of a line."""
    if line.startswith("flow "):
        return [
            (f"-O {version} {line}", ["ovs-ofctl", "-O", name, "add-flow", "br0", line[5:]])
            for version, name in VERSIONS.items()
        ]
    if line.startswith("bridge "):
        bridge, *ports = line.split()[1:]
        words = ["ovs-vsctl", "add-br", bridge, "--", "set", "Bridge", bridge, "fail_mode=secure"]
        for number, port in enumerate(ports, 1):
            words += [
                "--",
                "add-port",
                bridge,
                port,
                "--",
                "set",
                "Interface",
                port,
                f"ofport_request={number}",
            ]
        return [(line, words)]
    return [(line, shlex.split(line))]


def play(switch, path):
    """The answers of one daemon to a file of examples, [(scene: command, text)], in order."""
    answers = []

    def ask(scene, shown, words, stdin=None):
        words = [word.replace("RUNDIR", switch.directory) for word in words]
        if path == DEVICES and "add-br" in words and not re.search("datapath_type=", shown):
            # One that is given none is the kernel's in Open vSwitch, which is not there.
            bridge = words[words.index("add-br") + 1]
            words += ["--", "set", "Bridge", bridge, "datapath_type=netdev"]
        if words[0] == "ip":
            done = switch.namespace.run(words, ok=False)
            links_are_known(switch)
        else:
            done = switch.tool(*words, ok=False, stdin=stdin or None)
        text = (
            done.stdout
            + done.stderr
            + (f"ended with {done.returncode}\n" if done.returncode else "")
        )
        answers.append((f"{scene}: {shown}", normal(shown, text, switch)))

    for scene, lines in scenes(path):
        for line, stdin in lines:
            for shown, words in commands(line):
                ask(scene, shown, words, stdin)
        bridges = switch.vsctl("list-br").split()
        ask(
            scene,
            "interfaces",
            ["ovs-vsctl", "--columns=name,type,ofport,error,mtu", "list", "Interface"],
        )
        for bridge in bridges:
            for version, protocol in VERSIONS.items():
                ask(
                    scene,
                    f"-O {version} flows of {bridge}",
                    ["ovs-ofctl", "-O", protocol, "--no-stats", "dump-flows", bridge],
                )
            ask(
                scene,
                f"groups of {bridge}",
                ["ovs-ofctl", "-O", "OpenFlow15", "dump-groups", bridge],
            )
            ask(
                scene,
                f"meters of {bridge}",
                ["ovs-ofctl", "-O", "OpenFlow15", "dump-meters", bridge],
            )
        for bridge in bridges:
            switch.vsctl("--if-exists", "del-br", bridge)
        switch.vsctl(*(word for root in ROOTS for word in ("--", "--all", "destroy", root)))
        if path == DEVICES:
            remove_devices(switch.namespace)
    switch.stop()
    return answers


def links_are_known(switch):
    """Waits until the database says of kernel interfaces whether they are up: the kernel tells of
    that in its own time."""
    links = {
        link["ifname"]: "up" if "UP" in link["flags"] else "down"
        for link in json.loads(switch.namespace.run("ip -j link").stdout)
    }

    def known():
        listed = switch.vsctl("--format=json", "--columns=name,admin_state", "list", "Interface")
        return all(
            links.get(name, state) == state
            for name, state in json.loads(listed)["data"]
            if isinstance(state, str)
        )

    wait_for("the database says which links are up", known)


def remove_devices(namespace):
    """Removes the veth pairs and TAPs that a scene has made."""
    for link in json.loads(namespace.run("ip -j link").stdout):
        if link["link_type"] == "ether":
            # The other end of a pair has gone with the first.
            namespace.run(["ip", "link", "del", link["ifname"]], ok=False)


def normal(shown, text, switch):
    """The text without what differs between two runs of one daemon, in an order that does not."""
    text = text.replace(switch.directory, "RUNDIR").replace(switch.name + "/", "")
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z\|\d+\|", "", text)
    # What a tool says that has waited for a processor.
    text = re.sub(r"^timeval\|WARN\|.*\n", "", text, flags=re.M)
    text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", text)
    # Who closes first where no version suits both: ovs-ofctl's message may come too late.
    text = re.sub(
        r"(failed to connect to socket) \((Broken pipe|Connection reset by peer|Protocol error)\)",
        r"\1 (no version)",
        text,
    )
    text = re.sub(r"(duration|idle_age)=[\d.]+s?", r"\1=T", text)
    # Told only where it differs from the duration, by the second in which a rule was changed.
    text = re.sub(r"hard_age=\d+, ", "", text)
    text = re.sub(r"duration:[\d.]+s", "duration:T", text)
    text = re.sub(r"dpid:(?!0123456789abcdef|0{15}1)[0-9a-f]{16}", "dpid:DPID", text)
    # Addresses of dummies go by their number since the daemon began, and are drawn for some.
    text = re.sub(r"addr:[0-9a-f:]{17}", "addr:MAC", text)
    if shown.startswith("ip "):
        text = re.sub(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", "MAC", text)
    if "dpif-netdev/pmd-" in shown:
        # What was busy how long, and in which unit.
        text = re.sub(r"(pmd usage|overhead): +(NOT AVAIL|\d+ ?%)", "usage", text)
        # A histogram is as long as what was measured.
        text = re.sub(
            r"^Histograms$.*?(?=^(Time|pmd thread)|\Z)", "Histograms\n", text, flags=re.M | re.S
        )
        text = re.sub(r"-nan|\d+(\.\d+)?", "N", text)
        text = re.sub(r"([(]?) +", r"\1 ", text).replace("( ", "(")
    if shown.endswith(" statistics"):
        text = re.sub(r"=\d+", "=N", text)
    if "dpctl/show" in shown:
        text = re.sub(r"(flows|hit|missed|lost):( ?)\d+", r"\1:\2N", text)
    if "ofproto/trace" in shown:
        text = in_order(test_trace.normal(text))
    if "fdb/show" in shown:
        text = re.sub(r"^(.*\S)\s+\d+$", r"\1 AGE", text, flags=re.M)
    if shown == "interfaces" or " list " in shown:
        text = "\n\n".join(sorted(record.strip() for record in text.split("\n\n")))
    elif re.search(r"dump-| of |show", shown):
        text = "\n".join(sorted(text.splitlines()))
    return re.sub(r"[ \t]+$", "", text, flags=re.M).strip() + "\n"


def in_order(text):
    """A trace with what each port gets in the order of ports where `NORMAL` or a flood sends to
    several: the order is open, and so is by which pushes and pops the daemon comes from one port's
    tags to the next one's."""
    found = re.search(r"^Datapath actions: (.*)$", text, re.M)
    flow = re.search(r"^Flow: .*?dl_vlan=(\d+),dl_vlan_pcp=(\d+)", text, re.M)
    if not found or not re.search("NORMAL|FLOOD|ALL", text):
        return text
    tags, sent, marks = [f"vid={flow[1]},pcp={flow[2]}"] if flow else [], [], ""
    for action in re.findall(r"[a-z_]+\((?:[^()]|\([^()]*\))*\)|[^,]+", found[1]):
        if action.isdigit():
            sent.append(f"{action:>3} {' '.join(tags) or 'untagged'}{marks}")
        elif action.startswith("push_vlan("):
            tags = [*tags, action[10:-1]]
        elif action == "pop_vlan":
            tags = tags[:-1]
        elif action.startswith(("set(skb_priority", "meter(")):
            marks = " " + action
        else:
            return text
    return (
        text.replace(found[0], "Datapath actions:\n  " + "\n  ".join(sorted(sent)))
        if sent
        else text
    )


@test(timeout=480)
def examples_of_its_documentation_are_answered_alike(lab):
    """Every command and flow of Open vSwitch's manual pages, tutorials, FAQ and guides on both
    daemons."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    options = ("--enable-dummy=override",)
    wanted, got = (
        play(lab.switch(name, command=command, options=options), EXAMPLES)
        for name, command in (("r", switchd_command("ovs")), ("t", lab.switchd))
    )
    compare(lab, EXAMPLES, wanted, got)


@test(timeout=300, hugepages=448)
def examples_about_devices_are_answered_alike(lab):
    """Examples about tunnels, IPsec, guests, vhost-user, DPDK and AF_XDP, on such devices."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = (
        play(with_dpdk(lab, name, command), DEVICES)
        for name, command in (("r", switchd_command("ovs")), ("t", lab.switchd))
    )
    compare(lab, DEVICES, wanted, got)


def with_dpdk(lab, name, command):
    """A daemon with DPDK."""
    switch = lab.switch(name, command=command)
    switch.enable_dpdk()
    return switch


def compare(lab, path, wanted, got):
    """Holds the answers of both to a file of examples against each other."""
    check(
        [shown for shown, _ in wanted] == [shown for shown, _ in got],
        "the daemons were asked other things: bridges differ",
    )
    answers = [(shown, reference, answer) for (shown, reference), (_, answer) in zip(wanted, got)]
    with open(os.path.join(lab.directory, "answers.txt"), "w", encoding="utf-8") as file:
        for shown, reference, answer in answers:
            file.write(
                f"#### {shown}\n{reference}"
                + ("" if answer == reference else f"#### but\n{answer}")
            )
    examples = [
        line
        for _, lines in scenes(path)
        for line, _ in lines
        if not line.startswith(("bridge ", "ip "))
    ]
    lab.note(
        f"{len(examples)} examples, "
        f"{sum(reference == answer for _, reference, answer in answers)} of {len(answers)} "
        "answers the same"
    )
    hold(lab, path.replace(".txt", "_differences.txt"), answers)


# The switch of the tutorial: a trunk and three access ports; untagged packets of the trunk are in
# VLAN 0.
ACCESS = {2: 20, 3: 30, 4: 30}
MEMBERS = {20: (1, 2), 30: (1, 3, 4)}
HOSTS = [f"52:00:00:00:00:{number:02x}" for number in range(1, 7)]
EVERYBODY, GROUP, BPDU = "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:05", "01:80:c2:00:00:05"


class TutorialSwitch:
    """What the tutorial says its switch does."""

    def __init__(self):
        self.learned = {}

    def forward(self, port, source, destination, vlan):
        """{port: VLAN of the tag or None} for a packet that came in by a port, `vlan` being that of
        its tag."""
        if source == GROUP or destination == BPDU or (port in ACCESS and vlan is not None):
            return {}
        vid = ACCESS.get(port, vlan or 0)
        ports = MEMBERS.get(vid, (1,))
        if destination not in (EVERYBODY, GROUP) and (vid, destination) in self.learned:
            ports = (self.learned[vid, destination],)
        # A packet does not meet what it teaches itself.
        self.learned[vid, source] = port
        return {number: vid if number == 1 else None for number in ports if number != port}


@test(timeout=120)
def the_tutorials_switch_learns_and_forwards(lab):
    """The rules of the advanced tutorial, with packets: each goes where the tutorial says, tagged
    as it says, from the first packet of a host on."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    hosts = dict(enumerate(switch.raw_hosts(4), 1))
    lines = next(lines for title, lines in scenes() if title.startswith("ovs-advanced"))
    rules = [(line, stdin) for line, stdin in lines if "add-flow" in line]
    equal(len(rules), 12, "commands of the tutorial that add rules")
    for line, stdin in rules:
        switch.tool(*shlex.split(line), stdin=stdin or None)

    def met():
        return sum(
            int(packets)
            for packets in re.findall(
                r"n_packets=(\d+)", switch.ofctl("dump-flows", "br0", "table=0")
            )
        )

    said, draw = TutorialSwitch(), random.Random(7)
    for number in range(120):
        port = draw.randint(1, 4)
        source = draw.choice(HOSTS) if draw.random() < 0.95 else GROUP
        destination = (
            draw.choice(HOSTS) if draw.random() < 0.8 else draw.choice((EVERYBODY, GROUP, BPDU))
        )
        vlan = draw.choice((20, 30, 30, 55, None)) if port == 1 or draw.random() < 0.1 else None

        def frame(vid):
            return ethernet(
                destination,
                source,
                0x88B5,
                number.to_bytes(2, "big") + bytes(50),
                [(0x8100, vid)] if vid else (),
            )

        wanted = said.forward(port, source, destination, vlan)
        hosts[port].send(frame(vlan))
        for to, vid in wanted.items():
            received = hosts[to].receive(10, until=1)
            equal(
                received,
                [frame(vid)],
                f"packet {number} from port {port}, {source} to {destination} in VLAN {vlan}, at "
                f"port {to}",
            )
        if switch.is_ovs:
            # Its cache may go by what was learned before.
            switch.appctl("revalidator/wait")
        if not wanted:
            # Nothing else says that it has come, and the next one, by another port, may overtake
            # it.
            becomes(met, number + 1, f"packets that have met table 0 after packet {number}")
    for port, host in hosts.items():
        equal(host.receive(0.5), [], f"what else port {port} sent")
    learned = re.findall(
        r"vlan_tci=0x(\w+)/0x0fff,dl_dst=(\S+) actions=load:0x(\d)->NXM_NX_REG0\[0..15\]",
        "\n".join(switch.rules("br0", "table=10")),
    )
    equal(
        {(int(vid, 16), mac): int(port) for vid, mac, port in learned},
        said.learned,
        "what the switch has learned",
    )


@test()
def a_span_port_takes_nothing(lab):
    """The FAQ: what arrives on a mirror's output port is dropped, whatever the rules say of it."""
    switch = lab.switch(options=("--enable-dummy=override",))
    switch.vsctl(*commands("bridge br0 p1 p2 p3")[0][1][1:])
    switch.vsctl(
        "--",
        "--id=@p",
        "get",
        "port",
        "p3",
        "--",
        "--id=@m",
        "create",
        "mirror",
        "name=m0",
        "select-all=true",
        "output-port=@p",
        "--",
        "set",
        "bridge",
        "br0",
        "mirrors=@m",
    )
    switch.flows(
        "in_port=1,actions=drop",
        "in_port=2,cookie=2,actions=output:1",
        "in_port=3,cookie=3,actions=output:1",
    )

    def send(port):
        switch.appctl(
            "netdev-dummy/receive",
            f"p{port}",
            f"in_port({port}),eth(src=02:00:00:00:00:0{port},dst=02:00:00:00:00:09),"
            "eth_type(0x88b5)",
        )

    def sent():
        return {
            port: counters["tx"]["pkts"]
            for port, counters in switch.counters().items()
            if port not in ("br0", "LOCAL")
        }

    for port in (3, 3, 3, 2):
        send(port)
    becomes(lambda: switch.rule_packets()[2], 1, "packets of the port that is not the mirror's")
    becomes(sent, {"p1": 1, "p2": 0, "p3": 1}, "what was sent: one packet and its copy")
    switch.vsctl("clear", "bridge", "br0", "mirrors")
    if switch.is_ovs:
        # Its cache keeps dropping them: taking a mirror away makes it look over nothing.
        switch.appctl("revalidator/purge")
    send(3)
    becomes(lambda: sent()["p1"], 2, "an ordinary port again")


@test(timeout=60)
def the_userspace_tunnels_guide_joins_two_hosts(lab):
    """The howto, command by command, on two hosts: their guests reach each other through VXLAN."""
    sites = []
    for number, other in ((1, 2), (2, 1)):
        switch, guest = lab.switch(f"s{number}"), lab.namespace(f"vm{number}").quiet()
        switch.pair(guest, "tap0", ip=f"192.168.1.{number}/24", mtu=1400)
        sites.append((switch, guest, other))
    sites[0][0].namespace.run(
        [
            "ip",
            "link",
            "add",
            "eth1",
            "type",
            "veth",
            "peer",
            "name",
            "eth1",
            "netns",
            sites[1][0].namespace.name,
        ]
    )
    for number, (switch, _, other) in enumerate(sites, 1):
        switch.vsctl(
            "--may-exist",
            "add-br",
            "br-int",
            "--",
            "set",
            "Bridge",
            "br-int",
            "datapath_type=netdev",
            "--",
            "br-set-external-id",
            "br-int",
            "bridge-id",
            "br-int",
            "--",
            "set",
            "bridge",
            "br-int",
            "fail-mode=standalone",
        )
        switch.vsctl("add-port", "br-int", "tap0")
        switch.vsctl(
            "add-port",
            "br-int",
            "vxlan0",
            "--",
            "set",
            "interface",
            "vxlan0",
            "type=vxlan",
            f"options:remote_ip=172.168.1.{other}",
        )
        address = switch.namespace.address("eth1")
        switch.vsctl(
            "--may-exist",
            "add-br",
            "br-phy",
            "--",
            "set",
            "Bridge",
            "br-phy",
            "datapath_type=netdev",
            "--",
            "br-set-external-id",
            "br-phy",
            "bridge-id",
            "br-phy",
            "--",
            "set",
            "bridge",
            "br-phy",
            "fail-mode=standalone",
            f"other_config:hwaddr={address}",
        )
        switch.vsctl("--timeout", "10", "add-port", "br-phy", "eth1")
        for words in (
            f"addr add 172.168.1.{number}/24 dev br-phy",
            "link set br-phy up",
            "addr flush dev eth1",
            "link set eth1 up",
        ):
            switch.namespace.run(f"ip {words}")
    (first, guest, _), (second, _, _) = sites
    guest.reaches("192.168.1.2")
    guest.ping("192.168.1.2", 5)
    routes = first.appctl("ovs/route/show")
    check("172.168.1.0/24 dev br-phy" in routes, routes)
    neighbour = re.search(r"172\.168\.1\.2\s+(\S+)\s+br-phy", first.appctl("tnl/arp/show"))
    address = second.namespace.address("br-phy")
    equal(neighbour and neighbour[1], address, "the other host's address")


@test(timeout=60)
def the_af_xdp_guides_script_joins_two_namespaces(lab):
    """The install guide's script of namespaces and veth pairs of type afxdp, with the rule that it
    leaves out: a bridge in mode `secure` has none."""
    switch = lab.switch()
    switch.vsctl(
        "--",
        "add-br",
        "br0",
        "--",
        "set",
        "Bridge",
        "br0",
        "protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14",
        "fail-mode=secure",
        "datapath_type=netdev",
    )
    hosts = []
    for number in (0, 1):
        host = lab.namespace(f"at_ns{number}").quiet()
        switch.pair(host, f"afxdp-p{number}", f"p{number}", ip=f"10.1.1.{number + 1}/24")
        # Addresses are asked for in packets whose checksums nobody completes.
        host.run(f"ethtool -K p{number} tx off")
        switch.vsctl(
            "add-port",
            "br0",
            f"afxdp-p{number}",
            "--",
            "set",
            "interface",
            f"afxdp-p{number}",
            f'external-ids:iface-id="p{number}"',
            'type="afxdp"',
        )
        equal(switch.get("Interface", f"afxdp-p{number}", "error"), [], "the port's error")
        hosts.append(host)
    switch.tool("ovs-ofctl", "add-flow", "br0", "actions=normal")
    hosts[0].reaches("10.1.1.2")
    hosts[0].ping("10.1.1.2", 5, interval=0.2)


@test(timeout=60, dpdk=True)
def dpdks_virtual_devices_carry_packets(lab):
    """The topic on virtual devices: ports that use DPDK's af_packet driver join two hosts."""
    switch = lab.switch()
    switch.enable_dpdk()
    switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
    hosts = []
    for number in (0, 1):
        host = lab.namespace(f"h{number}").quiet()
        switch.pair(host, f"veth{number}", "eth0", ip=f"10.1.1.{number + 1}/24")
        # The driver hands packets on as they are, unfinished checksums too.
        host.run("ethtool -K eth0 tx off")
        switch.port(
            f"myeth{number}",
            "type=dpdk",
            f"options:dpdk-devargs=eth_af_packet{number},iface=veth{number}",
        )
        hosts.append(host)
    hosts[0].reaches("10.1.1.2")
    hosts[0].ping("10.1.1.2", 5)


@test(timeout=60)
def ovs_tcpdump_shows_a_ports_packets(lab):
    """ovs-tcpdump(8) makes a mirror, and a port for it, shows what passes and takes both away."""
    switch = lab.switch()
    switch.bridge()
    first = lab.host("h1", switch, "10.0.0.1/24", quiet=True)
    lab.host("h2", switch, "10.0.0.2/24", quiet=True)
    first.reaches("10.0.0.2")
    # Where there is no device of this name it makes one, of a type that not every kernel has.
    switch.namespace.run("ip link add mi0 type veth peer name mi0x")
    for device in ("mi0", "mi0x"):
        switch.namespace.run(f"ip link set {device} up")
    dump = switch.namespace.start(
        [
            "ovs-tcpdump",
            "--db-sock",
            switch.db,
            "-i",
            "h1-p",
            "--mirror-to",
            "mi0",
            "-n",
            "-c",
            "4",
            "icmp",
        ],
        "dump",
        env=switch.env,
    )

    def shown():
        with open(os.path.join(lab.directory, "dump"), encoding="utf-8") as file:
            return re.findall(r"IP (\S+) > (\S+): ICMP echo (request|reply)", file.read())

    def mirrors():
        return switch.vsctl("--bare", "--columns=name", "list", "Mirror").split()

    becomes(lambda: len(mirrors()), 1, "mirrors while ovs-tcpdump runs")

    def ended():
        first.ping("10.0.0.2", 2)
        return dump.poll() is not None

    wait_for("ovs-tcpdump has seen four packets", ended)
    equal(len(shown()), 4, "packets that ovs-tcpdump has shown")
    both = {("10.0.0.1", "10.0.0.2", "request"), ("10.0.0.2", "10.0.0.1", "reply")}
    equal(set(shown()), both, "what they are")
    becomes(mirrors, [], "mirrors when ovs-tcpdump has ended")
    equal(sorted(switch.vsctl("list-ports", "br0").split()), ["h1-p", "h2-p"], "ports")
