"""What is wrong is said where people look: in the database, by its name, as loudly as Open vSwitch
says it; and what follows from outside changes."""

import re
import time

from harness import Skip, Switch, becomes, check, equal, ethernet, test, wait_for


def problem(switch, name):
    """The error of an interface that could not be made."""
    equal(switch.get("Interface", name, "ofport"), -1, f"ofport of {name}")
    return switch.get("Interface", name, "error")


def add(switch, name, *settings):
    """Adds a port that may fail, and waits until the daemon has tried."""
    words = ["--", "set", "Interface", name, *settings] if settings else []
    equal(
        switch.vsctl("add-port", "br0", name, *words, ok=False).returncode,
        0,
        f"how ovs-vsctl ended for {name}",
    )


def veth(switch, name):
    """A veth pair in the switch's namespace, both ends up."""
    switch.namespace.run(f"ip link add {name} type veth peer name {name}x")
    switch.namespace.run(f"ip link set {name} up")
    switch.namespace.run(f"ip link set {name}x up")


def levels(switch, pattern):
    """Levels of the log's lines that match."""
    return [
        line.split("|")[3]
        for line in switch.log().splitlines()
        if re.search(pattern, line) and line.count("|") > 3
    ]


@test(timeout=60, dpdk=True)
def errors_name_what_is_wrong(lab):
    """Types that are not there, and what DPDK says of a device, stand in Interface.error."""
    switch = lab.switch()
    switch.enable_dpdk()
    switch.bridge()
    add(switch, "x1", "type=vxlam")
    add(switch, "x2", "type=lisp")
    add(
        switch,
        "x3",
        "type=dpdk",
        f"options:dpdk-devargs=net_pcap7,rx_pcap={lab.directory}/none.pcap",
    )
    add(switch, "x4", "type=dpdk", "options:dpdk-devargs=net_nonsense0")
    add(switch, "x5")
    errors = {name: problem(switch, name) for name in ("x1", "x3", "x4", "x5")}
    equal(
        errors["x5"],
        "could not open network device x5 (No such device)",
        "error of a device that is not there",
    )
    check(errors["x4"].startswith("Error attaching device 'net_nonsense0' to DPDK"), errors["x4"])
    if switch.is_ovs:
        # It has the type lisp, and says of others, and of DPDK's devices, no more than this.
        equal(
            errors["x1"],
            "could not open network device x1 (Address family not supported by protocol)",
            "error of a type that is not there",
        )
        return
    known = (
        "there are afxdp, dpdk, dpdkvhostuser, dpdkvhostuserclient, geneve, gre, gtpu, internal, "
        "ip6gre, nvgre, patch, stt, system, tap, vxlan"
    )
    begin = "could not open network device {} (Address family not supported by protocol): "
    equal(
        errors["x1"],
        begin.format("x1") + f'type "vxlam" does not exist; {known}',
        "error of a type that is not there",
    )
    equal(
        problem(switch, "x2"),
        begin.format("x2") + f'type "lisp" is not supported yet; {known}',
        "error of a tunnel",
    )
    check("none.pcap" in errors["x3"] and "No such file or directory" in errors["x3"], errors["x3"])
    check(errors["x4"] != "Error attaching device 'net_nonsense0' to DPDK", errors["x4"])


@test(timeout=60)
def what_is_ignored_stands_in_the_database(lab):
    """Keys that are misspelt, and features that are missing, are in the rows' status as long as
    they are set."""
    switch = lab.switch()
    switch.bridge()
    veth(switch, "p1")
    switch.port("p1")
    switch.vsctl(
        "--",
        "set",
        "Bridge",
        "br0",
        "stp_enable=true",
        "other_config:stp-pryority=3",
        "netflow=@n",
        "--",
        "--id=@n",
        "create",
        "NetFlow",
        'targets="127.0.0.1:2055"',
    )
    switch.vsctl(
        "set",
        "Port",
        "p1",
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        "type=linux-htb",
        "other-config:max-rate=1000000",
        "other-config:max-rte=5",
        "queues:1=@one",
        "--",
        "--id=@one",
        "create",
        "Queue",
        "other-config:min-rat=5",
    )
    equal(switch.get("Interface", "p1", "error"), [], "the error of a port that works")
    if switch.is_ovs:
        return  # it has STP and NetFlow, and says nothing of keys that it does not know

    def said(table, record):
        return switch.get(table, record, "status").get("sluice_problems", "")

    for text in (
        "stp_enable: not supported yet",
        "netflow: not supported yet",
        "other_config:stp-pryority: there is no such key",
    ):
        check(text in said("Bridge", "br0"), f"{text}:", said("Bridge", "br0"))
    for text in (
        "qos: unknown key other_config:max-rte",
        "qos: queue 1: unknown key other_config:min-rat",
    ):
        check(text in said("Port", "p1"), f"{text}:", said("Port", "p1"))
    switch.vsctl("set", "Interface", "p1", "cfm_mpid=1")
    check("cfm_mpid: not supported yet" in said("Interface", "p1"), said("Interface", "p1"))
    # Statistics are written by themselves, and leave it alone.
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=5000")
    time.sleep(6)
    check(
        said("Bridge", "br0") and said("Port", "p1") and said("Interface", "p1"),
        "it has gone with the next statistics",
    )
    switch.vsctl(
        "clear",
        "Bridge",
        "br0",
        "netflow",
        "other_config",
        "--",
        "set",
        "Bridge",
        "br0",
        "stp_enable=false",
        "--",
        "clear",
        "Port",
        "p1",
        "qos",
        "--",
        "clear",
        "Interface",
        "p1",
        "cfm_mpid",
    )
    equal(
        [said("Bridge", "br0"), said("Port", "p1"), said("Interface", "p1")],
        ["", "", ""],
        "what is said when all is right",
    )


@test(timeout=60)
def mistakes_are_told_by_name_and_place(lab):
    """Keys that look like others, and what is wrong with mirrors and controllers (whose rows have
    no place for it), with monitors, QoS and certificates."""
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    switch.port("p1", "type=dummy")
    if switch.is_ovs:
        raise Skip("Open vSwitch says nothing of this, or in its log alone")

    def told(table, record, *texts):
        got = switch.get(table, record, "status").get("sluice_problems", "")
        for text in texts:
            check(text in got, f"{text}:", got)

    def changed(*words):
        """Changes something, and returns what the log says then."""
        before = len(switch.log())
        switch.vsctl(*words)
        return switch.log()[before:]

    mirror = ["--id=@m", "create", "Mirror", "name=m1"]
    changed("--", *mirror, "--", "set", "Bridge", "br0", "mirrors=@m")
    told("Bridge", "br0", "mirror m1 output_port: bridge br0: does not specify output")
    changed("clear", "Bridge", "br0", "mirrors")
    controllers = "nonsense:1:2", "tcp:127.0.0.1:1"
    changed("set-controller", "br0", *controllers)
    told(
        "Bridge",
        "br0",
        'controller nonsense:1:2 target: bridge br0: unsupported controller "nonsense',
    )
    right = 'target="tcp:127.0.0.1:1"'
    row = switch.vsctl("--bare", "--columns=_uuid", "find", "Controller", right)
    changed("set", "Controller", row, "other_config:dcsp=3", "local_ip=x")
    told("Bridge", "br0", "127.0.0.1:1 other_config:dcsp: there is no such key", "1 local_ip: ")
    changed("del-controller", "br0")
    equal(switch.get("Bridge", "br0", "status"), {}, "the bridge's status when all is right")

    changed(
        "set",
        "Bridge",
        "br0",
        "other_config:mac_ageing-time=60",
        "auto_attach=@a",
        "--",
        "--id=@a",
        "create",
        "AutoAttach",
        "system_name=x",
        "system_description=y",
    )
    told(
        "Bridge",
        "br0",
        "mac_ageing-time: there is no such key, ignoring it (mac-aging-time exists)",
    )
    told("Bridge", "br0", "auto_attach: not supported yet")
    changed("set", "Port", "p1", "lacp=active", "other_config:priorty-tags=true")
    told("Port", "p1", "lacp: not supported yet", "priorty-tags: there is no such key")
    changed("set", "Interface", "p1", "bfd:enabled=true", "other_config:pmd-rxq-afinity=0:0")
    told("Interface", "p1", "bfd:enabled: there is no such key", "(pmd-rxq-affinity exists)")
    log = changed("set", "Open_vSwitch", ".", "other_config:pmd-cpu-msk=1", "other_config:mine=1")
    check("pmd-cpu-msk: there is no such key, ignoring it (pmd-cpu-mask exists)" in log, log)
    check("other_config:mine" not in log, "somebody else's key:", log)

    # Of two rates, the one that is wrong.
    large = str(2**63)
    qos = ["--id=@q", "create", "QoS", "type=linux-htb", "queues:1=@one", "--", "--id=@one"]
    changed(
        "set",
        "Port",
        "p1",
        "qos=@q",
        "--",
        *qos,
        "create",
        "Queue",
        f"other-config:min-rate={large}",
    )
    error = switch.get("Interface", "p1", "error")
    check(error.startswith(f"QoS linux-htb: queue 1: min-rate: {large} bit/s is not a rate"), error)
    log = changed("set-ssl", "/nowhere/key", "/nowhere/certificate", "/nowhere/ca")
    for text in (
        "private key /nowhere/key",
        "certificate /nowhere/certificate",
        "CA certificate /",
    ):
        check(f"stream_ssl|ERR|ssl: {text}" in log, f"{text}:", log)


@test(timeout=60)
def unknown_options_are_told_and_change_nothing(lab):
    """An option that a kernel interface does not have is in the log, and the port goes on as it is,
    without a pause."""
    switch = lab.switch()
    switch.bridge()
    a, _ = lab.host("h1", switch, ip="10.9.0.1/24"), lab.host("h2", switch, ip="10.9.0.2/24")
    a.ping("10.9.0.2")
    before = switch.log().count("added interface h1-p")
    switch.vsctl("set", "Interface", "h1-p", "options:nonsense=1")
    switch.logged(r"\|WARN\|.*h1-p.*arguments provided to device that is not configurable")
    switch.vsctl("set", "Interface", "h1-p", "options:nonsense=2")
    a.ping("10.9.0.2")
    equal(
        (switch.log().count("added interface h1-p"), switch.log().count("deleted interface h1-p")),
        (before, 0),
        "times that the port came and went",
    )
    if not switch.is_ovs:
        check(
            "options:nonsense" in switch.get("Interface", "h1-p", "status")["sluice_problems"],
            "the status says nothing",
        )


@test(timeout=60)
def devices_of_others_are_refused(lab):
    """A device that a Linux bridge or another switch has is no port, until it is let go of."""
    switch = lab.switch()
    switch.bridge()
    for name in ("p1", "p2"):
        veth(switch, name)
    switch.namespace.run("ip link add lb0 type bridge")
    switch.namespace.run("ip link set p1 master lb0")
    add(switch, "p1")
    if switch.is_ovs:
        # Its kernel datapath refuses such a device (EBUSY); its userspace datapath takes it, and
        # both carry its frames.
        check(switch.get("Interface", "p1", "ofport") != -1, "it is refused")
        return
    busy = "could not add network device p1 to ofproto (Device or resource busy): "
    equal(
        problem(switch, "p1"),
        busy + "it is part of Linux bridge lb0",
        "error of a device in a Linux bridge",
    )
    switch.namespace.run("ip link set p1 nomaster")
    becomes(
        lambda: switch.get("Interface", "p1", "error"), [], "the error when it has been let go of"
    )
    # Another daemon in the same namespace, with a database of its own.
    other = Switch(lab, "other", namespace=switch.namespace)
    other.vsctl("add-br", "br9", "--", "set", "Bridge", "br9", "datapath_type=netdev")
    other.vsctl("add-port", "br9", "p1", ok=False)
    equal(
        problem(other, "p1"),
        busy + "another switch has it",
        "error of a device that another switch has",
    )
    other.vsctl("add-port", "br9", "p2")
    check(other.get("Interface", "p2", "ofport") > 0, "a device that is free is refused")
    switch.vsctl("del-port", "p1")
    becomes(
        lambda: other.get("Interface", "p1", "error"),
        [],
        "the error when the other switch has let go of it",
    )
    # One that dies holds nothing.
    other.kill()
    add(switch, "p2")
    check(switch.get("Interface", "p2", "ofport") > 0, "a device of a daemon that died is refused")


@test(timeout=150)
def a_daemon_without_its_database_says_so(lab):
    """Attempts are told until the pauses are at their longest; then that the rest is not, and once
    a minute that it is still away."""
    switch = lab.switch()
    switch.bridge()
    switch.stop_database()
    switch.logged(r"reconnect\|INFO\|unix:\S+db\.sock: connection attempt failed \(", 20)
    switch.logged(r"reconnect\|INFO\|unix:\S+db\.sock: waiting 2 seconds before reconnect", 20)
    switch.logged(
        r"reconnect\|INFO\|unix:\S+db\.sock: continuing to reconnect in the background but "
        r"suppressing further logging",
        40,
    )
    so_far = len(switch.log())
    if not switch.is_ovs:
        switch.logged(
            r"reconnect\|WARN\|unix:\S+db\.sock: connection attempt failed .*; away for \d+ "
            r"seconds, \d+ more attempts not logged",
            80,
        )
        equal(
            len(re.findall(r"reconnect\|", switch.log()[so_far:])),
            1,
            "lines about the database in that minute",
        )
    switch.start_database()
    switch.logged(r"(?s)suppressing further logging.*reconnect\|INFO\|\S+db\.sock: connected", 30)


@test(timeout=60)
def mtu_follows_ports(lab):
    """A bridge's MTU follows its ports' when somebody changes these; what somebody gives the bridge
    itself stays while it is below."""
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    veth(switch, "p1")
    veth(switch, "p2")
    switch.port("p1")
    switch.port("p2")

    def mtus(*names):
        return [switch.get("Interface", name, "mtu") for name in names]

    def set_mtu(name, mtu):
        switch.namespace.run(f"ip link set {name} mtu {mtu}")

    becomes(lambda: mtus("br0", "p1"), [1500, 1500], "MTUs in the beginning")
    # Also where the switch has never given it one.
    set_mtu("br0", 1300)
    becomes(lambda: mtus("br0"), [1300], "the bridge's first MTU of somebody's")
    time.sleep(0.5)
    equal(mtus("br0"), [1300], "the bridge's first MTU of somebody's, later")
    set_mtu("p1", 1400)
    becomes(lambda: mtus("br0", "p1", "p2"), [1400, 1400, 1500], "MTUs when one port's is less")
    for name in ("p1", "p2"):
        set_mtu(name, 1600)
    becomes(lambda: mtus("br0"), [1600], "the bridge's MTU when its ports' are more")
    set_mtu("br0", 1300)
    becomes(lambda: mtus("br0"), [1300], "the bridge's MTU as somebody has set it")
    # Whatever changes without the lowest MTU leaves it.
    switch.namespace.run("ip link set p2 down")
    becomes(lambda: switch.get("Interface", "p2", "admin_state"), "down", "p2's state")
    time.sleep(0.5)
    equal(mtus("br0"), [1300], "the bridge's MTU after another change")
    set_mtu("br0", 2000)
    becomes(lambda: mtus("br0"), [1600], "the bridge's MTU when somebody sets it above")
    switch.port("d1", "type=dummy", "mtu_request=1450")
    becomes(lambda: mtus("d1", "br0"), [1450, 1450], "MTUs with a dummy that wants one")
    switch.vsctl("set", "Interface", "d1", "mtu_request=1350")
    becomes(lambda: mtus("d1", "br0"), [1350, 1350], "MTUs when the dummy wants another")
    # What cannot be leaves it what it has, above that of the bridge too.
    switch.port("i1", "type=internal", "mtu_request=1370")
    becomes(lambda: mtus("i1", "br0"), [1370, 1350], "MTUs with an internal port that wants one")
    for impossible in (67, 65535, 65536, 2**63 - 1):
        switch.vsctl("set", "Interface", "i1", f"mtu_request={impossible}")
        equal(mtus("i1", "br0"), [1370, 1350], f"MTUs when it wants {impossible}")
    switch.vsctl("clear", "Interface", "i1", "mtu_request")
    becomes(lambda: mtus("i1", "br0"), [1350, 1350], "MTUs when it wants none")

    # Dummies only.
    switch.vsctl(
        "add-br",
        "br1",
        "--",
        "set",
        "Bridge",
        "br1",
        "datapath_type=dummy",
        "--",
        "add-port",
        "br1",
        "d2",
        "--",
        "set",
        "Interface",
        "d2",
        "type=dummy",
        "mtu_request=1340",
    )
    becomes(lambda: mtus("d2", "br1"), [1340, 1340], "MTUs of a dummy bridge")
    switch.vsctl("set", "Interface", "d2", "mtu_request=1330")
    becomes(
        lambda: mtus("d2", "br1"),
        [1330, 1330],
        "MTUs of a dummy bridge when its port wants another",
    )


@test(timeout=60)
def vlan_limit(lab):
    """With other_config:vlan-limit the second tag of a packet, and what it carries, are read, or
    not, from then on."""
    # Open vSwitch asks once, at its start, what its datapath can do, and strips no tags where that
    # was less.
    switch = lab.switch(config=["other_config:vlan-limit=2"])
    switch.bridge()
    one, two = switch.raw_hosts()
    payload = bytes.fromhex("4500001c00010000401166cf0a0000010a000002") + bytes.fromhex(
        "0001000200080000"
    )
    frame = ethernet(
        "02:00:00:00:00:02",
        "02:00:00:00:00:01",
        0x0800,
        payload + bytes(18),
        vlans=[(0x88A8, 5), (0x8100, 6)],
    )
    # Behind the outer tag is the inner one.
    switch.flows("in_port=1,dl_vlan=5,actions=strip_vlan,output:2")
    one.send(frame)
    equal(
        two.receive(3, wanted=lambda got: got[:6] == frame[:6], until=1),
        [frame[:12] + frame[16:]],
        "what leaves without its outer tag",
    )
    switch.flows(
        "cookie=1,priority=9,in_port=1,dl_vlan=5,ip,nw_dst=10.0.0.2,actions=output:2",
        "cookie=2,priority=8,in_port=1,dl_vlan=5,dl_type=0x8100,actions=output:2",
        "cookie=3,priority=1,in_port=1,actions=drop",
        version="OpenFlow13",
    )

    def meets(cookie, what):
        before = switch.rule_packets(version="OpenFlow13")
        one.send(frame)
        got = two.receive(3, wanted=lambda got: got[:6] == frame[:6], until=1)
        equal(got, [frame], f"what leaves {what}")
        wait_for(
            f"rule {cookie} counts the packet {what}",
            lambda: switch.rule_packets(version="OpenFlow13")[cookie] == before[cookie] + 1,
        )

    meets(1, "with vlan-limit=2 from the start")
    for limit, cookie in (("1", 2), ("2", 1), ("1", 2), ("0", 1)):
        switch.vsctl("set", "Open_vSwitch", ".", f"other_config:vlan-limit={limit}")
        meets(cookie, f"with vlan-limit={limit}")
    switch.vsctl("remove", "Open_vSwitch", ".", "other_config", "vlan-limit")
    switch.flows(
        "cookie=1,priority=9,in_port=1,ip,actions=drop",
        "cookie=2,priority=8,in_port=1,actions=output:2",
    )
    meets(2, "when it is taken away")


@test(timeout=90)
def log_levels_are_open_vswitchs(lab):
    """Attempts, invalid values and unused keys are logged at Open vSwitch's levels; a start warns
    of nothing."""
    switch = lab.switch()
    equal(levels(switch, r"\|(WARN|ERR|EMER)\|"), [], "warnings of the start")
    switch.bridge()
    switch.port("p0", "type=internal")
    switch.vsctl(
        "set-controller", "br0", "tcp:127.0.0.1:1", f"punix:{lab.directory}/elsewhere.sock"
    )
    switch.vsctl("set", "Bridge", "br0", "other_config:disable-in-band=true")
    switch.logged(
        r"rconn\|INFO\|br0<->tcp:127\.0\.0\.1:1: continuing to retry connections in the "
        r"background but suppressing further logging",
        30,
    )
    equal(set(levels(switch, r"rconn.*: connecting\.\.\.")), {"INFO"}, "level of attempts")
    equal(
        set(levels(switch, r"rconn.*: connection failed \(Connection refused\)")),
        {"WARN"},
        "level of refusals",
    )
    equal(
        levels(switch, r"rconn.*: waiting [124] seconds before reconnect"),
        ["INFO"] * 3,
        "level of pauses",
    )
    equal(
        set(levels(switch, "Not adding Unix domain socket controller")),
        {"ERR"},
        "the level of an unsafe punix target",
    )
    attempts, failures = (
        len(levels(switch, f"rconn.*127.0.0.1:1: {what}"))
        for what in ("(connecting|waiting)", "connection failed")
    )
    wait_for(
        "another attempt has failed",
        lambda: len(levels(switch, "rconn.*127.0.0.1:1: connection failed")) > failures,
        20,
    )
    equal(
        len(levels(switch, "rconn.*127.0.0.1:1: (connecting|waiting)")),
        attempts,
        "lines about attempts after that",
    )
    switch.vsctl("set", "Interface", "p0", 'mac="01:00:00:00:00:01"')
    switch.logged("cannot set MAC to multicast address")
    equal(
        set(levels(switch, "cannot set MAC to multicast address")),
        {"ERR"},
        "the level of an impossible address",
    )
    # What tunes what is not there does no harm.
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:n-revalidator-threads=3")
    switch.vsctl("set", "Interface", "p0", "other_config:emc-enable=true")
    equal(
        [
            level
            for level in levels(switch, "n-revalidator-threads|emc-enable")
            if level not in ("INFO", "DBG")
        ],
        [],
        "levels of keys that do nothing",
    )
    # Messages, for who wants to see them.
    equal(levels(switch, r"\|vconn\|"), [], "lines of messages before somebody asks for them")
    switch.appctl("vlog/set", "vconn:file:dbg")
    switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", "actions=drop")
    switch.logged(
        r"\|vconn\|DBG\|\S*unix#\d+: received: OFPT_FLOW_MOD \(OF1\.3\) \(xid=0x[0-9a-f]+\):"
    )
    switch.logged(
        r"\|vconn\|DBG\|\S*unix#\d+: sent \(Success\): OFPT_HELLO \(OF1\.\d\) \(xid=0x[0-9a-f]+\):"
    )
