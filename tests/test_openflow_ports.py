"""OpenFlow's ports and queues in every version, as Open vSwitch shows them; and what the
configuration bits do to packets."""

import os
import re
import time

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

VERSIONS = ("OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15")
WORDS = (
    "down",
    "up",
    "no-flood",
    "flood",
    "no-receive",
    "receive",
    "no-receive-stp",
    "receive-stp",
    "no-forward",
    "forward",
    "no-packet-in",
    "packet-in",
    "no-stp",
    "stp",
)


def clean(text):
    text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", text)
    text = re.sub(r"duration[:=][\d.]+s?", "duration=T", text)
    text = re.sub(r"\b(?!02:(?:00|aa|bb|cc))[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", "MAC", text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    # Open vSwitch lists ports and queues in the order of their hashes.
    if text.startswith("OFPT_QUEUE_GET_CONFIG_REPLY (xid=X):"):
        return "\n".join(sorted(text.splitlines())) + "\n"
    # What else the switch can do is not told of here.
    text = re.sub(r"^capabilities: .*\n", "", text, flags=re.M)
    head, _, rest = text.partition("\n")
    if head.startswith(("OFPST_PORT", "OFPST_QUEUE", "OFPT_QUEUE")):
        blocks = re.split(r"\n(?=  port| *\d+\(| LOCAL|\S)", "\n" + rest)
        text = head + "\n" + "\n".join(sorted(block.strip("\n") for block in blocks)) + "\n"
    return text


def told(lab, name, command=None):
    """What the tools print of ports and queues along a story of changes: [(command, output)]."""
    switch = lab.switch(name, command=command)
    switch.bridge(
        "br0",
        "other_config:hwaddr=02:aa:00:00:00:01",
        "other_config:datapath-id=00000000000000b0",
        "fail_mode=secure",
        f"protocols={','.join(VERSIONS)}",
    )
    for number in (1, 2):
        host = lab.namespace(f"{name}{number}").quiet()
        switch.pair(host, f"p{number}")
        for end, device, digit in ((switch.namespace, f"p{number}", 1), (host, "eth0", 2)):
            end.run(["ip", "link", "set", device, "address", f"02:bb:00:00:0{digit}:0{number}"])
        switch.port(f"p{number}", f"ofport_request={number}")
    switch.vsctl(
        "add-port",
        "br0",
        "pa0",
        "--",
        "set",
        "Interface",
        "pa0",
        "type=patch",
        "options:peer=pa1",
        "ofport_request=7",
        'mac="02:cc:00:00:00:07"',
    )
    switch.vsctl(
        "add-port",
        "br0",
        "a-very-long-name",
        "--",
        "set",
        "Interface",
        "a-very-long-name",
        "type=patch",
        "options:peer=b-very-long-name",
        "ofport_request=8",
        ok=False,
    )
    switch.vsctl(
        "--",
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
        "queues:3=@a",
        "queues:7=@b",
        "--",
        "--id=@a",
        "create",
        "Queue",
        "other-config:min-rate=100000",
        "other-config:max-rate=500000",
        "--",
        "--id=@b",
        "create",
        "Queue",
        "other-config:max-rate=700000",
    )
    switch.vsctl(
        "--",
        "set",
        "Port",
        "p2",
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        "type=linux-htb",
        "queues:0=@a",
        "--",
        "--id=@a",
        "create",
        "Queue",
        "dscp=5",
    )
    time.sleep(0.5)
    story = []

    def step(*words, version="OpenFlow10"):
        done = switch.tool("ovs-ofctl", "-O", version, *words, ok=False)
        story.append(
            (
                f"-O {version} {' '.join(words)}",
                clean(done.stdout + done.stderr) + f"({done.returncode})",
            )
        )

    for version in VERSIONS:
        for words in (
            ["show", "br0"],
            ["dump-ports", "br0"],
            ["dump-ports", "br0", "p1"],
            ["dump-ports", "br0", "LOCAL"],
            ["dump-ports", "br0", "55"],
            ["dump-ports-desc", "br0"],
            ["dump-ports-desc", "br0", "p1"],
            ["dump-ports-desc", "br0", "7"],
            ["dump-ports-desc", "br0", "55"],
            ["queue-stats", "br0"],
            ["queue-stats", "br0", "p1"],
            ["queue-stats", "br0", "1", "3"],
            ["queue-stats", "br0", "ALL", "3"],
            ["queue-stats", "br0", "1", "4"],
            ["queue-stats", "br0", "99"],
            ["queue-stats", "br0", "99", "3"],
            ["queue-stats", "br0", "LOCAL"],
            ["queue-get-config", "br0"],
            ["queue-get-config", "br0", "1"],
            ["queue-get-config", "br0", "p2"],
            ["queue-get-config", "br0", "LOCAL"],
            ["queue-get-config", "br0", "1", "3"],
            ["queue-get-config", "br0", "1", "4"],
            ["queue-get-config", "br0", "ANY", "7"],
            ["queue-get-config", "br0", "99"],
        ):
            step(*words, version=version)
    monitors = []
    for version in VERSIONS:
        output = os.path.join(switch.directory, f"monitor.{version}")
        monitors.append((version, output))
        switch.namespace.start(
            ["ovs-ofctl", "-O", version, "monitor", switch_target(switch), "128", "-P", "standard"],
            f"{name}.{version}.monitor",
            env=switch.env,
        )

    def printed(version):
        with open(
            os.path.join(lab.directory, f"{name}.{version}.monitor"), encoding="utf-8"
        ) as file:
            return file.read()

    wait_for(
        "the monitors are connected",
        lambda: (
            len(re.findall(r"ESTAB.*br0\.mgmt", switch.namespace.run("ss -xH").stdout))
            >= len(VERSIONS)
        ),
    )
    time.sleep(0.7)
    for version in VERSIONS:
        for word in WORDS:
            step("mod-port", "br0", "p2", word, version=version)
            if version in ("OpenFlow10", "OpenFlow13", "OpenFlow15"):
                step("dump-ports-desc", "br0", version=version)
        for port in ("LOCAL", "99", "7"):
            step("mod-port", "br0", port, "no-forward", version=version)
            step("mod-port", "br0", port, "forward", version=version)
    step("mod-port", "br0", "p1", "nonsense")
    switch.vsctl("del-port", "pa0")
    switch.vsctl(
        "add-port",
        "br0",
        "pa9",
        "--",
        "set",
        "Interface",
        "pa9",
        "type=patch",
        "options:peer=pa8",
        "ofport_request=9",
        'mac="02:cc:00:00:00:09"',
    )
    switch.namespace.run("ip link set p1 down")
    time.sleep(1.5)
    end = time.monotonic() + 5
    while (
        not all(re.search("ADD: *9", printed(version)) for version in VERSIONS)
        and time.monotonic() < end
    ):
        time.sleep(0.05)
    for version, _ in monitors:
        told_of = re.findall(
            r"OFPT_PORT_STATUS.*: (ADD|DEL|MOD): *(\S+): addr:(\S+)\n +config: +(.*)\n",
            printed(version),
        )
        check(len(told_of) > 20, f"{version}: few port status messages:", told_of)
        # When the kernel reports a link's state, before or after the next change, is a matter of
        # moments: only changes of the configuration are compared.
        configs, distinct = {"1(p1)": "0", "2(p2)": "0"}, []
        for reason, port, address, config in told_of:
            if reason != "MOD" or configs.get(port, config) != config:
                distinct.append(clean(f"{reason} {port} {address} {config}"))
            configs[port] = config
        story.append((f"{version} monitor", "\n".join(distinct)))
    for version in VERSIONS:
        step("show", "br0", version=version)
    switch.stop()
    return story


def switch_target(switch):
    return f"unix:{switch.directory}/br0.mgmt"


@test(timeout=200)
def told_as_open_vswitch(lab):
    """Ports, queues, their counters, port mods and port status messages in every version."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted = told(lab, "r", switchd_command("ovs"))
    if os.environ.get("SHOW"):
        with open(os.environ["SHOW"], "w", encoding="utf-8") as file:
            file.write("\n".join(f"$ {command}\n{text}" for command, text in wanted))
    got = told(lab, "t")
    if os.environ.get("SHOW"):
        with open(os.environ["SHOW"] + ".got", "w", encoding="utf-8") as file:
            file.write("\n".join(f"$ {command}\n{text}" for command, text in got))
    wrong = [
        f"{command}\n  Open vSwitch: {reference}\n  this daemon:  {text}"
        for (command, reference), (_, text) in zip(wanted, got)
        if explained(command, reference) != without_rates(command, text)
    ]
    if wrong:
        raise Failure(f"{len(wrong)} differ\n" + "\n".join(wrong[:10]))


def explained(command, reference):
    """What is to be told where Open vSwitch tells the reference."""
    # A queue that is not there is an error that the specification names, also in 1.4 and later.
    if "queue-get-config" in command:
        reference = reference.replace("NXQOFC_QUEUE_ERROR", "OFPQOFC_BAD_QUEUE")
    return reference


def without_rates(command, text):
    """Without the rates of queues, which Open vSwitch's userspace never tells
    (h_policing.queues_are_told looks at them)."""
    return re.sub(r" (min|max)_rate:[\d.]+%", "", text) if "queue-get-config" in command else text


def some_hosts(lab, count=3):
    """A bridge with some hosts' raw sockets."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow15")
    return switch, switch.raw_hosts(count)


def received(switch):
    """Frames that the bridge's ports have received."""
    return sum(
        int(value) for value in re.findall(r"rx pkts=(\d+)", switch.ofctl("dump-ports", "br0"))
    )


@test(timeout=90)
def configuration_bits_act(lab):
    """no-receive, no-forward, no-flood and down do what they say; what they drop has a name."""
    switch, (one, two, three) = some_hosts(lab)
    frame = ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60))
    stp = ethernet("01:80:c2:00:00:00", "02:00:00:00:00:01", 0x88B5, bytes(60))
    switch.flows(
        "priority=5,in_port=1,dl_dst=02:00:00:00:00:02,actions=FLOOD",
        "priority=5,in_port=1,dl_dst=01:80:c2:00:00:00,actions=output:2",
        "priority=5,in_port=2,actions=ALL",
    )

    def arrived(sender, sent, wanted):
        """The frame comes to the sockets that are to have it and to no other."""
        before = received(switch)
        sender.send(sent)
        wait_for("the frame is counted", lambda: received(switch) > before)
        equal(
            [len(socket.receive(0.2)) for socket in (one, two, three)],
            wanted,
            "frames that arrived",
        )

    arrived(one, frame, [0, 1, 1])
    for word, back, sender, sent, wanted, name in (
        ("no-flood", "flood", one, frame, [0, 0, 1], None),
        ("no-flood", "flood", one, stp, [0, 1, 0], None),
        ("no-forward", "forward", one, frame, [0, 0, 1], None),
        ("no-forward", "forward", one, stp, [0, 0, 0], "no_forward"),
        ("no-receive", "receive", two, frame, [0, 0, 0], "no_receive"),
        ("no-receive", "receive", one, frame, [0, 1, 1], None),
        ("no-receive-stp", "receive-stp", two, stp, [0, 0, 0], "no_receive"),
        ("no-receive-stp", "receive-stp", two, frame, [1, 0, 1], None),
    ):
        before = switch.drops(name) if name else 0
        switch.ofctl("mod-port", "br0", "p2", word)
        arrived(sender, sent, wanted)
        if name:
            equal(switch.drops(name), before + 1, f"drops named {name} after {word}")
        switch.ofctl("mod-port", "br0", "p2", back)
    arrived(one, frame, [0, 1, 1])
    switch.ofctl("mod-port", "br0", "p2", "down")
    check("PORT_DOWN" in switch.ofctl("dump-ports-desc", "br0"), "the port is not shown as down")
    one.send(frame)
    equal(
        [len(socket.receive(0.3)) for socket in (one, three)],
        [0, 1],
        "frames that arrived while a port was down",
    )
    switch.ofctl("mod-port", "br0", "p2", "up")
    wait_for(
        "the port is up", lambda: "state:      0" in switch.ofctl("dump-ports-desc", "br0", "p2")
    )


@test(timeout=60)
def no_packet_in_keeps_misses_from_controllers(lab):
    """A port with no-packet-in causes no packet-in by packets that meet no rule, and they are
    counted by name."""
    switch, (one, two) = some_hosts(lab, 2)
    switch.vsctl("set-controller", "br0", "ptcp:6653:127.0.0.1")
    wait_for("the bridge listens", lambda: ":6653" in switch.namespace.run("ss -Hltn").stdout)
    switch.flows("priority=0,actions=CONTROLLER", version="OpenFlow13")
    switch.namespace.start(
        ["ovs-ofctl", "monitor", "tcp:127.0.0.1:6653", "128"], "monitor", env=switch.env
    )

    def told():
        with open(os.path.join(lab.directory, "monitor"), encoding="utf-8") as file:
            text = file.read()
        return text.count("in_port=1"), text.count("in_port=2")

    def asked():
        one.send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
        return told()[0]

    wait_for("misses are told of", asked)
    switch.ofctl("mod-port", "br0", "p1", "no-packet-in")
    time.sleep(0.3)
    # What the first port has sent so far is told of, or counted, before this is told of.
    two.send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
    wait_for("the other port's first packet is told of", lambda: told()[1] == 1)
    before, dropped = told(), switch.drops("no_packet_in")
    for _ in range(3):
        one.send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
    two.send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
    wait_for("the other port's packet is told of", lambda: told()[1] == before[1] + 1)
    wait_for("the misses are counted", lambda: switch.drops("no_packet_in") == dropped + 3)
    equal(told()[0], before[0], "packet-ins of the port")


@test(timeout=60)
def queues_are_counted(lab):
    """set_queue and enqueue choose a queue that counts what it sends; the rest is the default
    queue's."""
    switch, (one, two) = some_hosts(lab, 2)
    switch.vsctl(
        "--",
        "set",
        "Port",
        "p2",
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        "type=linux-htb",
        "queues:3=@a",
        "queues:7=@b",
        "--",
        "--id=@a",
        "create",
        "Queue",
        "dscp=1",
        "--",
        "--id=@b",
        "create",
        "Queue",
        "dscp=2",
    )
    wait_for("the queues are there", lambda: "3 queues" in switch.ofctl("queue-stats", "br0"))
    switch.flows(
        "dl_type=0x88b5,in_port=1,dl_src=02:00:00:00:00:03,actions=enqueue:2:3",
        "dl_type=0x88b5,in_port=1,dl_src=02:00:00:00:00:07,actions=set_queue:7,output:2",
        "dl_type=0x88b5,in_port=1,dl_src=02:00:00:00:00:09,actions=set_queue:9,output:2",
        "priority=1,in_port=1,actions=output:2",
    )
    for source, count in ((3, 2), (7, 3), (9, 4), (1, 5)):
        for _ in range(count):
            one.send(
                ethernet("02:00:00:00:00:02", f"02:00:00:00:00:{source:02x}", 0x88B5, bytes(86))
            )
    equal(len(two.receive(1)), 14, "frames that arrived")

    def counts(version):
        text = switch.ofctl("-O", version, "queue-stats", "br0", "2")
        return {
            int(queue): (int(packets), int(size))
            for queue, size, packets in re.findall(r"queue (\d+): bytes=(\d+), pkts=(\d+)", text)
        }

    for version in ("OpenFlow10", "OpenFlow13", "OpenFlow15"):
        equal(
            counts(version),
            {0: (9, 900), 3: (2, 200), 7: (3, 300)},
            "packets and bytes of the queues",
        )
    switch.vsctl("clear", "Port", "p2", "qos")
    wait_for("the queues are gone", lambda: "0 queues" in switch.ofctl("queue-stats", "br0"))


@test(timeout=60)
def packet_ins_have_a_rate(lab):
    """Above the rate packet-ins wait in turn of their ports and a flood loses its own; the database
    tells how many."""
    switch, (one, two) = some_hosts(lab, 2)
    switch.vsctl(
        "set-controller",
        "br0",
        "ptcp:6653:127.0.0.1",
        "--",
        "set",
        "Controller",
        "br0",
        "controller_rate_limit=100",
        "controller_burst_limit=25",
    )
    wait_for("the bridge listens", lambda: ":6653" in switch.namespace.run("ss -Hltn").stdout)
    switch.flows("priority=1,actions=controller")
    switch.namespace.start(
        ["ovs-ofctl", "monitor", "tcp:127.0.0.1:6653", "128"], "monitor", env=switch.env
    )
    identifier = switch.get("Bridge", "br0", "controller")
    identifier = identifier if isinstance(identifier, str) else identifier[0]
    wait_for(
        "the controller is connected", lambda: switch.get("Controller", identifier, "is_connected")
    )

    def told():
        with open(os.path.join(lab.directory, "monitor"), encoding="utf-8") as file:
            text = file.read()
        return text.count("in_port=1"), text.count("in_port=2")

    # Not all at once: the worker's own queue of packet-ins, which knows no ports, is not what this
    # is about.
    for number in range(2000):
        one.send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
        if number % 50 == 49:
            time.sleep(0.01)
    two.send(ethernet("02:00:00:00:00:01", "02:00:00:00:00:02", 0x88B5, bytes(60)))
    wait_for("the other port's packet is told of", lambda: told()[1] == 1)

    def status(word):
        return int(
            switch.get("Controller", identifier, "status").get(f"packet-in-action-{word}", -1)
        )

    wait_for(
        "the database knows that nothing waits any more",
        lambda: (
            status("backlog") == 0
            and status("bypassed") + status("queued") + switch.drops("packet_in_queue_full") == 2001
        ),
        20,
    )
    bypassed, queued, dropped = status("bypassed"), status("queued"), status("dropped")
    check(bypassed >= 25, "the burst did not go at once:", bypassed)
    check(dropped > 200, "dropped", dropped)
    wait_for(
        "those that were not dropped are told of",
        lambda: sum(told()) == bypassed + queued - dropped,
    )
    found = re.search(
        r"openflow_packet_in_rate_limited.*total: (\d+)", switch.appctl("coverage/show")
    )
    equal(
        int(found[1]) if found else 0,
        dropped,
        "packet-ins that the rate limit dropped, in coverage/show",
    )


@test(timeout=90, dpdk=True)
def dpdk_ports_show_why_they_drop_and_what_their_driver_counts(lab):
    """Interface.statistics and port statistics of 1.4 and later have what Open vSwitch counts of a
    DPDK device beside the device itself, and what its driver counts for each queue."""
    switch = lab.switch()
    switch.enable_dpdk(cores=1)
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=5000")
    switch.bridge("br0", "fail_mode=secure", "protocols=[OpenFlow10,OpenFlow13,OpenFlow14]")
    host = lab.namespace("h1").quiet()
    switch.pair(host, "p1", mtu=2000)
    switch.port("p1", "ofport_request=1", "mtu_request=2000")
    switch.port("n0", "type=dpdk", "options:dpdk-devargs=net_null0,no-rx=1", "ofport_request=2")
    switch.port(
        "v0",
        "type=dpdkvhostuserclient",
        f"options:vhost-server-path={switch.directory}/v0.sock",
        "ofport_request=3",
    )
    switch.flows("in_port=1,actions=output:2")
    socket = host.raw()
    frame = ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(100))
    too_long = ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(1700))
    socket.send(*[frame] * 20, *[too_long] * 7)
    names = (
        "ovs_tx_failure_drops",
        "ovs_tx_mtu_exceeded_drops",
        "ovs_tx_qos_drops",
        "ovs_rx_qos_drops",
    )

    def statistics(port):
        return switch.get("Interface", port, "statistics")

    wanted = (0, 7, 0, 0)
    becomes(lambda: tuple(statistics("n0").get(name) for name in names), wanted, "drops of n0", 20)
    counted = statistics("n0")
    equal((counted["tx_packets"], counted["tx_dropped"]), (20, sum(wanted)), "what n0 sends")
    sent = [value for name, value in counted.items() if re.fullmatch(r"tx_q\d+_packets", name)]
    equal(sum(sent), 20, "what its queues send")
    for name in ("rx_q0_packets", "rx_q0_bytes", "rx_q0_errors", "rx_mbuf_allocation_errors"):
        equal(counted.get(name), 0, name)
    equal([statistics("v0").get(name) for name in names], [0] * 4, "drops of v0")

    def shown(version, port):
        """The counters with names of a port in a message of port statistics."""
        text = switch.ofctl("-O", version, "dump-ports", "br0", str(port))
        _, _, custom = text.partition("CUSTOM Statistics")
        return [(name, int(value)) for name, value in re.findall(r"(\w+)=(\d+),", custom)]

    equal(shown("OpenFlow13", 2), [], "counters with names in 1.3")
    found = shown("OpenFlow14", 2)
    equal(
        [entry for entry in found if entry[0] in names],
        list(zip(names, wanted, strict=True)),
        "counters with names",
    )
    equal(
        {name: value for name, value in found if "_q" in name or "error" in name},
        {name: value for name, value in counted.items() if "_q" in name or "error" in name},
        "queues and errors with names",
    )
    equal(
        [entry for entry in shown("OpenFlow14", 3) if entry[0] in names],
        [(name, 0) for name in names],
        "counters of v0 with names",
    )
    equal(shown("OpenFlow14", 1), [], "counters of a kernel interface with names")
