"""Quality of service as an Open vSwitch user configures it: policers of what ports send and
receive, what the tools say of them, queues in every version, mistakes.

Rates are so low that nothing comes back during a test, so bursts of known size meet buckets of
known size, and what passes is a number."""

import os
import re

from harness import (
    OPEN_VSWITCH,
    Failure,
    Skip,
    check,
    equal,
    ethernet,
    switchd_command,
    test,
    wait_for,
)

VERSIONS = "protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15"


def frame(size, number=0):
    """A frame of so many bytes behind its Ethernet header, which policers leave out."""
    return ethernet(
        "02:00:00:00:00:02",
        "02:00:00:00:00:01",
        0x88B5,
        number.to_bytes(4, "big") + bytes(size - 4),
    )


def shape(switch, port, kind, options=(), queues=()):
    """Gives a port a QoS of this kind."""
    command = [
        "--",
        "set",
        "Port",
        port,
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        f"type={kind}",
        *(f"other-config:{option}" for option in options),
    ]
    command += [f"queues:{number}=@q{number}" for number, _ in queues]
    for number, own in queues:
        # ovs-vsctl wants a column.
        command += [
            "--",
            f"--id=@q{number}",
            "create",
            "Queue",
            "external-ids:of=test",
            *(f"other-config:{option}" for option in own),
        ]
    switch.vsctl(*command)


def two_hosts(lab, *options):
    """A switch with two hosts whose traffic is only the test's, at ports 1 and 2."""
    switch = lab.switch(options=list(options))
    switch.bridge("br0", "fail_mode=secure", VERSIONS)
    return switch, *switch.raw_hosts()


def only_sluice():
    if switchd_command()[0] == OPEN_VSWITCH:
        raise Skip("Open vSwitch polices ports of DPDK only")


def statistics(switch, port, *names):
    """Counters of an interface, once they have been written."""
    counters = switch.get("Interface", port, "statistics")
    return tuple(counters.get(name) for name in names)


# --- beside Open vSwitch


def told(lab, name, command=None):
    """What the tools say of the same policers on a port of DPDK, and what passes: [(what,
    output)]."""
    switch = lab.switch(name, command=command)
    switch.enable_dpdk(cores=1)
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=5000")
    switch.bridge("br0", "fail_mode=secure", VERSIONS)
    switch.port(
        "p2", "type=dpdk", f"options:dpdk-devargs=net_null{name},no-rx=1", "ofport_request=2"
    )
    host = lab.namespace(f"h{name}").quiet()
    switch.pair(host, f"p1{name}")
    switch.port(f"p1{name}", "ofport_request=1")
    socket = host.raw()
    story = []

    def step(*words):
        done = switch.tool(*words, ok=False)
        text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", done.stdout + done.stderr)
        text = re.sub(r"duration=[\d.?]+s?", "duration=T", text)
        story.append((" ".join(words), text))

    def look():
        step("ovs-appctl", "qos/show", "p2")
        for version in ("OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"):
            step("ovs-ofctl", "-O", version, "queue-get-config", "br0", "2")
            step("ovs-ofctl", "-O", version, "queue-stats", "br0", "2")

    def burst(count, size, queue):
        switch.flows(f"in_port=1,dl_type=0x88b5,actions={queue}output:2")
        before = switch.counters()["p2"]["tx"]
        socket.send(*(frame(size, number) for number in range(count)))

        def met():
            now = switch.counters()["p2"]["tx"]
            passed, dropped = now["pkts"] - before["pkts"], now["drop"] - before["drop"]
            return passed + dropped == count and (passed, dropped)

        story.append(
            (
                f"{count} packets of {size} through {queue}",
                wait_for("every packet has its end", met),
            )
        )

    for words in (
        ("qos/show-types", "p2"),
        ("qos/show-types", "nowhere"),
        ("qos/show", "nowhere"),
        ("qos/show", "p2"),
    ):
        step("ovs-appctl", *words)
    look()
    shape(switch, "p2", "egress-policer", ["cir=100", "cbs=50000"])
    look()
    burst(60, 1000, "")
    burst(20, 900, "set_queue:3,")
    shape(switch, "p2", "egress-policer", ["cir=100", "cbs=7000"])
    burst(60, 1000, "")
    two = [(3, ["cir=100", "cbs=3000"]), (4, ["cir=1", "cbs=1", "eir=100", "ebs=2000"]), (5, [])]
    shape(switch, "p2", "trtcm-policer", ["cir=100", "cbs=6000", "eir=100", "ebs=9000"], two)
    look()
    burst(20, 1000, "set_queue:3,")
    burst(20, 1000, "set_queue:4,")
    burst(20, 1000, "set_queue:5,")
    burst(30, 1000, "set_queue:9,")
    look()
    shape(switch, "p2", "trtcm-policer", ["cir=100", "cbs=50000"], [(0, ["cir=100", "cbs=4000"])])
    burst(20, 1000, "")
    dropped = switch.counters()["p2"]["tx"]["drop"]
    wait_for(
        "statistics are written",
        lambda: statistics(switch, "p2", "ovs_tx_qos_drops", "tx_dropped") == (dropped, dropped),
        15,
    )
    switch.vsctl("clear", "Port", "p2", "qos")
    burst(20, 1000, "")
    look()
    for words in (
        ["queue-stats", "br0", "9"],
        ["queue-stats", "br0", "2", "77"],
        ["queue-stats", "br0", "ANY", "77"],
        ["queue-get-config", "br0", "9"],
        ["queue-get-config", "br0", "ANY"],
        ["-OOpenFlow14", "queue-get-config", "br0", "9"],
        ["-OOpenFlow14", "queue-get-config", "br0", "2", "77"],
        ["-OOpenFlow15", "queue-get-config", "br0", "ANY", "77"],
        ["add-flow", "br0", "actions=enqueue:9:1"],
        ["add-flow", "br0", "actions=enqueue:LOCAL:99"],
        ["add-flow", "br0", "actions=enqueue:NORMAL:1"],
        ["add-flow", "br0", "actions=enqueue:IN_PORT:1"],
        ["-OOpenFlow13", "add-flow", "br0", "actions=set_queue:4294967295,pop_queue,output:2"],
        ["dump-flows", "br0", "--no-stats"],
    ):
        step("ovs-ofctl", *words)
    return story


def arranged(text):
    """Blocks and lines whose order Open vSwitch takes from hashes, sorted."""
    if not isinstance(text, str):
        return text
    blocks = [block.strip().splitlines() for block in text.split("\n\n")]
    return sorted((block[:1], sorted(block[1:])) for block in blocks if block)


def explained(what, reference, text):
    """Whether Open vSwitch's answer and this daemon's differ for a reason."""
    # Every port may have every type.
    if what.endswith("qos/show-types p2"):
        return set(reference.splitlines()) <= set(text.splitlines())
    # Open vSwitch says nothing about queues of its trtcm-policer.
    if "queue-stats br0 2" in what and "0 queues" in reference:
        return re.search(r"queue 0: .*queue 3: .*queue 4: ", text, re.S)
    # Open vSwitch counts a packet as sent that its queue has passed and the port has dropped.
    if what.endswith("qos/show p2"):
        counted = r"  tx_packets: (\d+)\n  tx_bytes: \d+\n  tx_errors: (\d+)"

        def met(story):
            return sorted(sum(map(int, queue)) for queue in re.findall(counted, story))

        return arranged(re.sub(counted, "", reference)) == arranged(
            re.sub(counted, "", text)
        ) and met(reference) == met(text)
    return False


@test(timeout=120, hugepages=200, dpdk=True)
def policers_are_those_of_open_vswitch(lab):
    """The same bursts through the same egress-policer and trtcm-policer: packets that pass, what is
    dropped, and what the tools say."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = told(lab, "1", switchd_command("ovs")), told(lab, "2")
    wrong = [
        f"{what}\n  Open vSwitch: {reference}\n  this daemon:  {text}"
        for (what, reference), (_, text) in zip(wanted, got)
        if arranged(reference) != arranged(text) and not explained(what, reference, text)
    ]
    if os.environ.get("SHOW"):
        with open(os.environ["SHOW"], "w", encoding="utf-8") as file:
            file.write("\n".join(f"$ {what}\n{text}" for what, text in got))
    if wrong:
        raise Failure("\n".join(wrong))


# --- of this daemon alone


@test(timeout=60)
def what_ports_receive_is_policed(lab):
    """ingress_policing_* in kilobits and thousands of packets, on kernel interfaces, on a clock
    that stands; drops are counted by name and by interface."""
    only_sluice()
    switch, one, two = two_hosts(lab, "--enable-dummy")
    switch.flows("in_port=1,dl_type=0x88b5,actions=output:2")
    switch.appctl("time/stop")

    def passed(count, size):
        before = switch.counters()["p1"]["rx"]["pkts"]
        one.send(*(frame(size, number) for number in range(count)))
        wait_for(
            "all have come in", lambda: switch.counters()["p1"]["rx"]["pkts"] - before == count
        )
        return len(two.receive(0.4))

    switch.vsctl("set", "Interface", "p1", "ingress_policing_rate=8", "ingress_policing_burst=80")
    equal(passed(30, 1000), 10, "packets of 80 kbit")
    switch.appctl("time/warp", "3000")
    equal(passed(30, 1000), 3, "packets after 3 s at 8 kbit/s")
    equal(switch.drops("ingress_policer"), 47, "drops by name")
    equal(switch.counters()["p1"]["rx"]["drop"], 47, "drops of the port")
    switch.vsctl(
        "set",
        "Interface",
        "p1",
        "ingress_policing_rate=0",
        "ingress_policing_kpkts_rate=1",
        "ingress_policing_kpkts_burst=1",
    )
    equal(passed(900, 100) + passed(600, 100), 1000, "packets of a burst of 1000")
    switch.appctl("time/warp", "20")
    equal(passed(100, 100), 20, "packets after 20 ms at 1000 a second")
    # A change of something else gives no tokens back.
    switch.vsctl("set", "Port", "p1", "protected=true")
    equal(passed(50, 100), 0, "packets after another change")
    switch.vsctl("set", "Port", "p1", "protected=false")
    switch.vsctl(
        "set", "Interface", "p1", "ingress_policing_kpkts_rate=0", "ingress_policing_burst=0"
    )
    equal(passed(500, 1000), 500, "packets where nothing is policed")
    switch.vsctl("set", "Interface", "p1", "ingress_policing_rate=1")
    # A kernel interface keeps some thousand packets for the switch, so not all at once.
    equal(
        passed(700, 1000) + passed(500, 1000),
        1000,
        "packets of 8000 kbit, which is what no burst means",
    )
    equal(
        switch.counters()["p1"]["rx"]["drop"],
        47 + 500 + 80 + 50 + 200,
        "drops of the port in the end",
    )


@test(timeout=60)
def every_port_may_be_policed(lab):
    """What leaves by a kernel interface, and what comes in and leaves by a patch port to another
    bridge, by queues."""
    only_sluice()
    switch, one, two = two_hosts(lab, "--enable-dummy")
    switch.vsctl(
        "add-br", "br1", "--", "set", "Bridge", "br1", "datapath_type=netdev", "fail_mode=secure"
    )
    switch.vsctl(
        "add-port",
        "br0",
        "a",
        "--",
        "set",
        "Interface",
        "a",
        "type=patch",
        "options:peer=b",
        "ofport_request=5",
        "--",
        "add-port",
        "br1",
        "b",
        "--",
        "set",
        "Interface",
        "b",
        "type=patch",
        "options:peer=a",
        "ofport_request=6",
    )
    switch.flows("actions=in_port", bridge="br1")
    switch.appctl("time/stop")

    def passed(count, rule):
        switch.flows("in_port=5,actions=output:2", f"in_port=1,dl_type=0x88b5,actions={rule}")
        before = switch.counters()["p1"]["rx"]["pkts"]
        one.send(*(frame(1000, number) for number in range(count)))
        wait_for(
            "all have come in", lambda: switch.counters()["p1"]["rx"]["pkts"] - before == count
        )
        return len(two.receive(0.4))

    equal(passed(40, "output:5"), 40, "packets by the patch")
    shape(
        switch,
        "a",
        "trtcm-policer",
        ["cir=1", "cbs=20000"],
        [(0, ["cir=1", "cbs=5000"]), (7, ["eir=1", "ebs=9000"])],
    )
    equal(passed(40, "output:5"), 5, "packets that name no queue")
    equal(passed(40, "enqueue:5:7"), 0, "yellow packets where the port has no excess")
    equal(passed(40, "enqueue:5:3"), 0, "packets that name a queue that is not there")
    found = re.findall(
        r"port a queue (\d+): bytes=(\d+), pkts=(\d+), errors=(\d+)",
        switch.ofctl("--names", "queue-stats", "br0"),
    )
    equal(found, [("0", "5000", "5", "75"), ("7", "0", "0", "40")], "counts of queues")
    equal(switch.drops("egress_policer"), 115, "drops by name")
    shape(switch, "a", "egress-policer", ["cir=1", "cbs=12000"])
    equal(passed(40, "output:5"), 12, "packets of one rate")
    switch.vsctl("clear", "Port", "a", "qos")
    switch.vsctl("set", "Interface", "a", "ingress_policing_rate=1", "ingress_policing_burst=64")
    equal(passed(40, "output:5"), 8, "packets that come back")
    switch.vsctl("set", "Interface", "a", "ingress_policing_rate=0")
    shape(switch, "p2", "egress-policer", ["cir=1", "cbs=3000"])
    equal(passed(40, "output:5"), 3, "packets by the interface")
    switch.vsctl("set", "QoS", switch.get("Port", "p2", "qos"), "other_config:cbs=4000")
    equal(passed(40, "NORMAL"), 4, "packets by NORMAL after a change")
    # NORMAL floods to the patch, too, from where all come again.
    equal(switch.counters()["p2"]["tx"]["drop"], 37 + 36 + 40, "drops of the interface")


@test(timeout=60)
def mistakes_are_said_and_change_nothing(lab):
    """Values, types and sums that cannot be: Interface.error and the log say it, what was in force
    goes on; a good value ends the error."""
    only_sluice()
    switch, one, two = two_hosts(lab, "--enable-dummy")
    switch.flows("in_port=1,dl_type=0x88b5,actions=set_queue:3,output:2")
    switch.appctl("time/stop")
    shape(switch, "p2", "trtcm-policer", ["cir=1", "cbs=90000"], [(3, ["cir=1", "cbs=20000"])])
    before = switch.appctl("qos/show", "p2")

    def refused(kind, text, options=(), queues=(), same=True):
        shape(switch, "p2", kind, options, queues)
        equal(switch.get("Interface", "p2", "error"), f"QoS {kind}: {text}", "error")
        switch.logged(re.escape(f"{text}; what was configured before stays so"))
        if same:
            equal(switch.appctl("qos/show", "p2"), before, "what is in force")

    types = "there are linux-htb, linux-hfsc, linux-noop, egress-policer, trtcm-policer"
    refused("gold", f'type "gold" does not exist; {types}')
    refused("linux-sfq", f'type "linux-sfq" is not supported yet; {types}')
    refused("egress-policer", "cir is missing: nothing would pass", ["cbs=1000"])
    refused("egress-policer", 'cir: "-5" is not a whole number from 0 on', ["cir=-5", "cbs=1000"])
    refused(
        "trtcm-policer",
        "queue 4: eir of 7 bytes a second needs ebs, the bytes that may come at once",
        queues=[(4, ["eir=7"])],
    )
    refused(
        "linux-htb",
        "port: guaranteed rates add up to 2000000 bit/s, more than its 1000000 bit/s",
        ["max-rate=1000000"],
        [(1, ["min-rate=1500000"]), (2, ["min-rate=500000"])],
    )
    refused("linux-htb", "queue 4294967295: numbers are 0 to 4294967294", queues=[(4294967295, [])])
    equal(switch.get("Interface", "p2", "ofport"), 2, "its number")
    one.send(*(frame(1000, number) for number in range(30)))
    equal(len(two.receive(5, until=20)), 20, "packets by the old policer")
    shape(
        switch, "p2", "linux-htb", ["max-rate=100000000"], [(3, ["min-rate=1000000", "colour=red"])]
    )
    equal(switch.get("Interface", "p2", "error"), [], "error of a good value")
    switch.logged("queue 3: unknown key other_config:colour, ignoring it")
    before = switch.appctl("qos/show", "p2")
    refused(
        "linux-htb",
        "queue 3: guaranteed rate 20000 bit/s is above the maximum of 10000 bit/s",
        queues=[(3, ["min-rate=20000", "max-rate=10000"])],
        same=False,
    )
    equal(
        re.findall(r"rate: \d+", switch.appctl("qos/show", "p2")),
        re.findall(r"rate: \d+", before),
        "rates in force",
    )
    switch.vsctl("set", "Interface", "p1", "ingress_policing_rate=4294967296")
    equal(
        switch.get("Interface", "p1", "error"),
        "ingress_policing_rate: 4294967296 is not between 0 and 4294967295",
        "error of the rate",
    )
    switch.vsctl(
        "set", "Interface", "p1", "ingress_policing_rate=0", "--", "clear", "Port", "p2", "qos"
    )
    equal(
        (switch.get("Interface", "p1", "error"), switch.get("Interface", "p2", "error")),
        ([], []),
        "errors in the end",
    )
    equal(
        switch.appctl("qos/show", "p2"), "QoS not configured on p2\n", "what is in force in the end"
    )


@test(timeout=60)
def queues_are_told(lab):
    """qos/show says rates, tenants, promises and drops; queue descriptions say rates as parts of
    the port's."""
    only_sluice()
    switch, one, two = two_hosts(lab)
    queues = [
        (1, ["min-rate=10000000", "max-rate=20000000", "burst=80000", "priority=3"]),
        (2, ["min-rate=5000000", "tenant=blue"]),
        (3, ["min-rate=1000000", "max-latency-us=3000", "ecn=true", "tenant=blue"]),
    ]
    shape(
        switch, "p2", "linux-htb", ["max-rate=100000000", "tenant-blue-max-rate=50000000"], queues
    )
    switch.flows("in_port=1,dl_type=0x88b5,actions=enqueue:2:3")
    one.send(*(frame(1000, number) for number in range(5)))
    received = len(two.receive(2, until=5))
    zero = "  tx_packets: 0\n  tx_bytes: 0\n  tx_errors: 0\n"

    def shown():
        """What is shown, without what depends on moments: a packet that a busy machine keeps for
        longer than the bound is dropped, by one reason or another, and one that it keeps for half
        as long may be marked."""
        text = re.sub(r"late_sent: \d+", "late_sent: N", switch.appctl("qos/show", "p2"))
        dropped = sum(int(count) for count in re.findall(r"^  dropped_\w+: (\d+)", text, re.M))
        return re.sub(r"^(  dropped_\w+|  marked): \d+", r"\1: N", text, flags=re.M), dropped

    wait_for("every packet is counted", lambda: shown()[1] == 5 - received)
    text, dropped = shown()
    promise = re.search(r"promised-latency-us: (\d+)", text)
    check(promise and 3000 < int(promise[1]) < 4000, text)
    equal(
        text,
        "QoS: p2 linux-htb\nmax-rate: 100000000\ntenant-blue-min-rate: 6000000\n"
        "tenant-blue-max-rate: 50000000\nlate_sent: N\n"
        f"\nDefault:\n  burst: 18112\n  min-rate: 12000\n  max-rate: 100000000\n{zero}"
        "\nQueue 1:\n  burst: 80000\n  priority: 3\n  min-rate: 10000000\n  max-rate: 20000000\n"
        f"{zero}"
        "\nQueue 2:\n  burst: 18112\n  min-rate: 5000000\n  max-rate: 100000000\n  tenant: blue\n"
        f"{zero}"
        "\nQueue 3:\n  burst: 18112\n  min-rate: 1000000\n  max-rate: 100000000\n  tenant: blue\n"
        f"  ecn: true\n  max-latency-us: 3000\n  {promise[0]}\n"
        f"  tx_packets: {received}\n  tx_bytes: {1014 * received}\n  tx_errors: {dropped}\n"
        "  dropped_over_bound: N\n  dropped_queue_full: N\n  dropped_port_full: N\n"
        "  dropped_late: N\n  marked: N\n  waiting: 0\n",
        "qos/show",
    )
    for version in ("OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"):
        text = switch.ofctl("-O", version, "queue-get-config", "br0", "2")
        equal(
            text.split("\n", 1)[1],
            "queue 0:\nqueue 1: min_rate:10.0%"
            + (" max_rate:20.0%" if version != "OpenFlow10" else "")
            + "\nqueue 2: min_rate:5.0%\nqueue 3: min_rate:1.0%\n",
            version,
        )
    shape(switch, "p2", "linux-noop", [], [(1, [])])
    equal(switch.appctl("qos/show", "p2"), "QoS: p2 linux-noop\n", "linux-noop")
    equal(
        switch.ofctl("queue-stats", "br0", "2").split(": ", 1)[1],
        "0 queues\n",
        "queues of linux-noop",
    )


@test(timeout=60)
def waits_are_told(lab):
    """Port.status says how long packets of measured queues have waited, p50, p99 and the longest,
    and none longer than promised; then nothing, where none leave."""
    only_sluice()
    switch, one, two = two_hosts(lab)
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=5000")
    shape(
        switch,
        "p2",
        "linux-htb",
        ["max-rate=100000000"],
        [
            (1, ["max-rate=4000000", "max-latency-us=60000", "measure-latency=true"]),
            (2, ["max-latency-us=60000"]),
            (3, ["max-rate=4000000", "measure-latency=true"]),
        ],
    )
    switch.flows(
        "in_port=1,dl_type=0x88b5,dl_vlan=0xffff,actions=enqueue:2:1,enqueue:2:2,enqueue:2:3"
    )

    def told():
        """Sends a few packets, and reads what is said of them."""
        one.send(*(frame(1000, number) for number in range(20)))
        return switch.get("Port", "p2", "status")

    wait_for(
        "two queues are told",
        lambda: {"queue-1-latency-us", "queue-3-latency-us"} == set(told()),
        30,
    )
    for text in switch.get("Port", "p2", "status").values():
        found = re.fullmatch(r"p50=([\d.]+) p99=([\d.]+) max=([\d.]+) packets=(\d+)", text)
        check(found, text)
        median, p99, longest, packets = map(float, found.groups())
        check(0 <= median <= p99 <= longest and packets > 0, text)
    shown = switch.appctl("qos/show", "p2")
    equal(len(re.findall(r"^  latency-us: p50=", shown, re.M)), 2, f"queues with waits in {shown}")
    wait_for(
        "nothing is told where nothing leaves", lambda: switch.get("Port", "p2", "status") == {}, 30
    )
