"""Coverage counters, dummies and other equipment that scripts of Open vSwitch's users and its own
tests rely on."""

import os
import re
import socket
import struct

from harness import (
    OPEN_VSWITCH,
    Skip,
    becomes,
    check,
    equal,
    switchd_command,
    test,
    wait_for,
)

SECURE = ("fail_mode=secure", "datapath_type=dummy", "protocols=[OpenFlow10,OpenFlow13,OpenFlow15]")
# What monitoring sums up.
DROPS = tuple(
    f"drop_action_{name}"
    for name in (
        "bridge_not_found",
        "congestion",
        "forwarding_disabled",
        "invalid_tunnel_metadata",
        "no_recirculation_context",
        "of_pipeline",
        "recirculation_conflict",
        "recursion_too_deep",
        "stack_too_deep",
        "too_many_mpls_labels",
        "too_many_resubmit",
        "unsupported_packet_type",
    )
) + tuple(
    f"datapath_drop_{name}"
    for name in (
        "invalid_bond",
        "invalid_port",
        "invalid_tnl_port",
        "lock_error",
        "meter",
        "nsh_decap_error",
        "recirc_error",
        "rx_invalid_packet",
        "sample_error",
        "tunnel_pop_error",
        "tunnel_push_error",
        "upcall_error",
        "userspace_action_error",
    )
)


def dummies(lab, *options, ports=2, name="s", command=None):
    """A switch with a bridge of dummies p1, p2, ..."""
    options = ("--enable-dummy=override", *options)
    switch = lab.switch(name, command=command, options=options)
    switch.vsctl("add-br", "br0", "--", "set", "Bridge", "br0", *SECURE)
    for number in range(1, ports + 1):
        switch.vsctl(
            "add-port",
            "br0",
            f"p{number}",
            "--",
            "set",
            "Interface",
            f"p{number}",
            "type=dummy",
            f"ofport_request={number}",
        )
    return switch


def udp(source, destination="02:00:00:00:00:99", port=1):
    """A datapath flow of a packet from 10.0.0.`source`."""
    return (
        f"in_port({port}),eth(src=02:00:00:00:00:{source:02x},dst={destination}),eth_type(0x0800),"
        f"ipv4(src=10.0.0.{source},dst=10.9.9.9,proto=17,tos=0,ttl=64,frag=no),udp(src=1,dst=2)"
    )


@test()
def coverage_counters_have_their_names(lab):
    """Counters of drops, of learned addresses and of packets from and to controllers are there by
    Open vSwitch's names, and count."""
    switch = dummies(lab)

    def counter(name):
        return int(switch.appctl("coverage/read-counter", name))

    for name in DROPS:
        equal(counter(name), 0, name)
    equal(
        switch.appctl("coverage/read-counter", "packet_inn", ok=False).stderr.splitlines()[0],
        "No such counter",
        "a counter that is not there",
    )
    switch.ofctl(
        "-O",
        "OpenFlow13",
        "add-meter",
        "br0",
        "meter=1,pktps,burst,band=type=drop,rate=1,burst_size=1",
    )
    loop = ",".join(["resubmit(,2)"] * 70)
    switch.flows(
        "ip,nw_src=10.0.0.1,actions=drop",
        "ip,nw_src=10.0.0.2,actions=resubmit(,1)",
        f"table=1,actions={loop}",
        f"table=2,actions={loop.replace('(,2', '(,3')}",
        "table=3,actions=output:2",
        "ip,nw_src=10.0.0.3,actions=meter:1,output:2",
        "ip,nw_src=10.0.0.4,actions=normal",
        "ip,nw_src=10.0.0.6,actions=controller",
        version="OpenFlow13",
    )
    # 5 meets no rule.
    for source, packets in ((1, 3), (2, 2), (3, 6), (4, 2), (5, 4)):
        switch.appctl("netdev-dummy/receive", "p1", *[udp(source)] * packets)
    becomes(
        lambda: counter("drop_action_of_pipeline"), 3 + 4, "packets that a rule or no rule drops"
    )
    becomes(
        lambda: counter("drop_action_too_many_resubmit"),
        2,
        "packets that are resubmitted too often",
    )
    sent = int(switch.counters()["p2"]["tx"]["pkts"])
    metered = counter("datapath_drop_meter")
    # All but a few of six packets within a moment are above one a second; the two of 10.0.0.4 were
    # flooded.
    check(metered > 0, "no packet above the meter's rate")
    equal(sent + metered, 6 + 2, "packets that the meter let through, and those it dropped")
    becomes(lambda: counter("mac_learning_learned"), 1, "addresses learned")
    extracted = counter("flow_extract")
    switch.appctl("netdev-dummy/receive", "p1", udp(6), udp(6))
    becomes(lambda: counter("flow_extract") - extracted, 2, "packets that go to controllers")
    switch.vsctl("del-br", "br0", "--", "add-br", "br0", "--", "set", "Bridge", "br0", *SECURE)
    equal(counter("mac_learning_learned"), 1, "addresses learned, after their bridge has gone")
    equal(counter("drop_action_of_pipeline"), 7, "drops, after the bridge has gone")
    handled = counter("ofproto_packet_out")
    switch.ofctl(
        "packet-out",
        "br0",
        "in_port=controller packet=" + "02" * 12 + "88cc" + "00" * 46 + " actions=drop",
    )
    becomes(lambda: counter("ofproto_packet_out") - handled, 1, "packets from controllers")
    becomes(lambda: counter("drop_action_of_pipeline"), 8, "drops, with one of a packet-out")
    shown = switch.appctl("coverage/show")
    for name in (
        "drop_action_of_pipeline",
        "drop_action_too_many_resubmit",
        "datapath_drop_meter",
        "mac_learning_learned",
        "flow_extract",
        "ofproto_packet_out",
    ):
        found = re.search(rf"^{name} .*total: (\d+)$", shown, re.M)
        check(found, f"{name} is not in coverage/show:", shown)
        equal(int(found[1]), counter(name), f"{name} in coverage/show")


@test()
def a_trace_says_that_the_stack_is_too_deep(lab):
    """A packet that pushes more than either switch keeps is dropped, and the last line has Open
    vSwitch's name for it."""
    switch = dummies(lab)
    pushes = ",".join(["push:NXM_NX_XXREG0[]"] * 1000)
    switch.flows("actions=" + ",".join(["resubmit(,1)"] * 9), f"table=1,actions={pushes}")
    text = switch.appctl("ofproto/trace", "br0", "in_port=1,udp")
    equal(
        text.splitlines()[-1],
        "Translation failed (Stack too deep), packet is dropped.",
        "the last line",
    )
    equal(text.splitlines()[-2], "Datapath actions: drop", "the line above")
    check(
        re.search(r">>>> .*stack <<<<", text), "no line says that it was the stack:", text[-2000:]
    )


@test()
def test_equipment_is_there(lab):
    """--dummy-numa, commands to stop revalidators, what dummies count and do not know, and their
    queue 0."""
    switch = dummies(lab, "--dummy-numa=1,1,1,1")
    for command in ("pause", "resume", "purge", "wait"):
        equal(switch.appctl(f"revalidator/{command}"), "", f"revalidator/{command}")
    listed = switch.appctl("list-commands")
    check(
        "revalidator/purge" in listed and "revalidator/pause" not in listed,
        "list-commands:",
        listed,
    )
    switch.flows("in_port=1,actions=output:2")
    for queue in ("0", "1"):
        done = switch.appctl("netdev-dummy/receive", "p1", "--qid", queue, udp(1), udp(2), ok=False)
        equal(
            (done.returncode, done.stderr.splitlines()[:1]),
            (0, []) if queue == "0" else (2, ["bad rx queue id."]),
            f"receive by queue {queue}",
        )
    wait_for("both are sent", lambda: switch.counters()["p2"]["tx"]["pkts"] == 2)
    lines = switch.ofctl("dump-ports", "br0", "p1").splitlines()
    equal(
        [line.strip() for line in lines[1:]],
        [
            "port  1: rx pkts=2, bytes=212, drop=?, errs=?, frame=?, over=?, crc=?",
            "tx pkts=0, bytes=0, drop=?, errs=?, coll=?",
        ],
        "a dummy's counters",
    )

    def statistics(name):
        return {
            key: value
            for key, value in switch.get("Interface", name, "statistics").items()
            if "custom" not in key
        }

    wanted = {
        "rx_packets": 2,
        "rx_bytes": 212,
        "tx_packets": 0,
        "tx_bytes": 0,
        "rx_q0_packets": 2,
        "rx_q0_bytes": 212,
        "tx_q0_packets": 0,
        "tx_q0_bytes": 0,
    }
    becomes(lambda: statistics("p1"), wanted, "Interface.statistics of a dummy", 20)
    for version in ("OpenFlow10", "OpenFlow13"):
        lines = sorted(
            line.strip()
            for line in switch.ofctl("-O", version, "queue-stats", "br0").splitlines()[1:]
        )
        equal(
            lines,
            [
                f"port {port} queue 0: bytes=?, pkts=?, errors=?, duration=?"
                for port in ("1", "2", "LOCAL")
            ],
            f"queues in {version}",
        )
    check(
        "queue 0:" in switch.ofctl("queue-get-config", "br0", "1"), "no queue 0 in queue-get-config"
    )
    done = switch.ofctl("queue-stats", "br0", "1", "1", ok=False)
    check(
        "OFPQOFC_BAD_QUEUE" in done.stdout + done.stderr,
        "a queue that is not there:",
        done.stdout,
        done.stderr,
    )
    switch.vsctl(
        "add-port",
        "br0",
        "p7",
        "--",
        "set",
        "Interface",
        "p7",
        "type=dummy-pmd",
        "options:n_rxq=2",
        "options:numa_id=1",
    )
    wait_for(
        "a worker is shown on the dummy's node",
        lambda: "pmd thread numa_id 1 core_id 0:" in switch.appctl("dpif-netdev/pmd-rxq-show"),
    )
    equal(
        switch.appctl("netdev-dummy/receive", "p7", "--qid", "1", udp(3)),
        "",
        "receive by the second queue of a dummy-pmd",
    )


@test()
def dummies_are_connected_by_streams(lab):
    """A dummy with options:pstream sends to whoever connects and receives from him; one with
    options:stream connects by itself."""
    switch = dummies(lab)
    path = f"{switch.directory}/p8.sock"
    switch.port("p8", "type=dummy", f"options:pstream=punix:{path}", "ofport_request=8")
    switch.flows("in_port=1,actions=output:8", "in_port=8,actions=output:2")
    wait_for("the dummy listens", lambda: os.path.exists(path))
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(path)
    frame = bytes.fromhex("02" * 12 + "88cc" + "55" * 50)

    def pass_through(source):
        """Sends a frame into p1 until the peer has it: connections are accepted now and then."""
        source.setblocking(False)
        data = b""

        def received():
            nonlocal data
            switch.appctl("netdev-dummy/receive", "p1", frame.hex())
            try:
                data += source.recv(65536)
            except BlockingIOError:
                pass
            return len(data) >= 2 + len(frame)

        wait_for("the peer has a frame", received)
        source.setblocking(True)
        equal(
            data[: 2 + len(frame)], struct.pack(">H", len(frame)) + frame, "what the peer received"
        )

    pass_through(peer)
    before = switch.counters()["p2"]["tx"]["pkts"]
    peer.sendall(struct.pack(">H", len(frame)) + frame[:30])
    peer.sendall(frame[30:] + struct.pack(">H", len(frame)) + frame)
    wait_for(
        "both frames of the peer are forwarded",
        lambda: switch.counters()["p2"]["tx"]["pkts"] == before + 2,
    )
    # A length that no frame has ends the connection.
    peer.settimeout(10)
    peer.sendall(struct.pack(">H", 3) + b"abc")

    def ended():
        try:
            return peer.recv(65536) == b""
        except ConnectionError:
            return True

    wait_for("the connection is closed", ended)
    check(
        switch.appctl("netdev-dummy/conn-state", "p8") == "p8: unknown\n",
        "the state of a port that listens",
    )
    switch.port("p9", "type=dummy", f"options:stream=unix:{path}", "ofport_request=9")
    becomes(
        lambda: switch.appctl("netdev-dummy/conn-state", "p9"),
        "p9: connected\n",
        "the state of a port that connects",
    )
    equal(switch.appctl("netdev-dummy/conn-state"), "p9: connected\n", "all states")
    switch.flows("in_port=1,actions=output:9", "in_port=8,actions=output:2")
    before = switch.counters()["p2"]["tx"]["pkts"]
    switch.appctl("netdev-dummy/receive", "p1", frame.hex())
    wait_for(
        "the frame has gone by both ends",
        lambda: switch.counters()["p2"]["tx"]["pkts"] == before + 1,
    )
    switch.vsctl("del-port", "p8")
    becomes(
        lambda: switch.appctl("netdev-dummy/conn-state", "p9"),
        "p9: disconnected\n",
        "the state when the other end has gone",
    )


@test(dpdk=True)
def dpdk_commands(lab):
    """What DPDK says of itself, and what is done to its devices, by `dpdk/...` and
    `netdev-dpdk/...`."""
    switch = lab.switch()
    switch.enable_dpdk(cores=1)
    switch.bridge("br0", "datapath_type=netdev")
    switch.port("null0", "type=dpdk", "options:dpdk-devargs=net_null0")
    switch.port("plain", "type=internal")

    def refused(text, *command):
        done = switch.appctl(*command, ok=False)
        check(done.returncode != 0 and text in done.stderr, f"{command} says:", done.stderr)

    check("lcore" in switch.appctl("dpdk/lcore-list"), "no processors")
    check("Heap_size" in switch.appctl("dpdk/get-malloc-stats"), "no heaps")
    levels = switch.appctl("dpdk/log-list")
    check(re.search(r"id \d+: lib\.eal, level is \w+", levels), "no levels:", levels)

    def level():
        return re.search(r": lib\.eal, level is (\w+)", switch.appctl("dpdk/log-list"))[1]

    for words, wanted in (
        (("warning",), "warning"),
        (("lib.*:error", "nothing:info"), "error"),
        (("pmd*:debug",), "error"),
        ((), "debug"),
        (("lib.eal:notice",), "notice"),
    ):
        equal(switch.appctl("dpdk/log-set", *words), "", "dpdk/log-set")
        equal(level(), wanted, f"the level after {words}")
    refused("invalid log level: 'loud'", "dpdk/log-set", "loud")
    refused("invalid log level: ''", "dpdk/log-set", "lib.eal:")
    equal(level(), "notice", "the level after a refusal")
    # Not of a guest that never came: Open vSwitch 3.1 dies of that.
    for words in ((), ("null0",)):
        pools = switch.appctl("netdev-dpdk/get-mempool-info", *words)
        check(re.search(r"mempool <\S+>@", pools), f"no pool of {words}:", pools)
        counted = re.findall(r"count: avail \(\d+\), in use \(\d+\)", pools)
        equal(len(counted), len(words), f"how often buffers are counted for {words}")
    for name in ("plain", "br0", "nobody"):
        refused("Not a DPDK Interface", "netdev-dpdk/get-mempool-info", name)
        refused("Not a DPDK Interface", "netdev-dpdk/set-admin-state", name, "up")
    refused("Invalid Admin State", "netdev-dpdk/set-admin-state", "null0", "sideways")
    for words in (("null0", "down"), ("null0", "UP"), ("down",), ("up",)):
        equal(switch.appctl("netdev-dpdk/set-admin-state", *words).strip(), "OK", "the answer")
    refused(
        "Device 'net_null0' is being used by the following interfaces: null0. "
        "Remove them before detaching.",
        "netdev-dpdk/detach",
        "net_null0",
    )
    refused("Device '0000:01:00.0' not found in DPDK", "netdev-dpdk/detach", "0000:01:00.0")
    # A device that was there before any port has it.
    switch.vsctl("del-port", "null0")
    switch.appctl("netdev-dpdk/detach", "net_null0", ok=False)
    refused("Device 'net_null0' not found in DPDK", "netdev-dpdk/detach", "net_null0")
    switch.port("null0", "type=dpdk", "options:dpdk-devargs=net_null0")
    equal(switch.get("Interface", "null0", "error"), [], "the error of a device that came again")


# Commands of `dpctl`, and words that they take or refuse. Left out is what differs: names of
# datapaths without their types, which Sluice takes; names in front of flush-conntrack's words,
# which Open vSwitch 3.1 takes for a tuple; limits of more than 32 bits, which Sluice refuses; and
# what crashes Open vSwitch ("ct-get-limits zone=").
DATAPATH_WORDS = """
dump-flows
dump-flows -m
dump-flows -q
dump-flows --foo
dump-flows -mx
dump-flows dummy@ovs-dummy
dump-flows nonsense
dump-flows nonsense x
dump-flows type=ovs
dump-flows type=
dump-flows type=ovs,tc,dpdk,offloaded,non-offloaded,partially-offloaded,all
dump-flows type=foo
dump-flows type=ovs,foo
dump-flows type=ovs type=tc
dump-flows filter=tcp
dump-flows filter=tcp,in_port=p1
dump-flows filter=in_port=1
dump-flows filter=in_port=nonsense
dump-flows filter=foo
dump-flows filter=foo=1
dump-flows filter=ip,nw_src=10.0.0.0/8
dump-flows filter=nw_src=10.0.0.1
dump-flows filter=tcp filter=udp
dump-flows filter=tcp type=foo
dump-flows type=foo filter=x
dump-flows filter=
dump-flows pmd=0
dump-flows pmd=-1
dump-flows pmd=x
dump-flows pmd=
dump-flows pmd=99
dump-flows filter=tcp ovs-dummy
dump-flows a b c d e f g
dump-flows x -m
flush-conntrack
flush-conntrack nonsense
flush-conntrack nonsense zone=1
flush-conntrack zone=
flush-conntrack zone=x
flush-conntrack zone=70000
flush-conntrack zone=1x
flush-conntrack zone=1 zone=2
flush-conntrack zone=1 nonsense
flush-conntrack ct_nw_src=10.0.0.1
flush-conntrack ct_nw_src=x
flush-conntrack ct_nw_src=
flush-conntrack ct_nw_src
flush-conntrack ct_nw_src=10.0.0.1,ct_nw_src=10.0.0.2
flush-conntrack ct_nw_src=10.0.0.1 ct_ipv6_src=::1
flush-conntrack ct_nw_proto=256
flush-conntrack ct_nw_proto=x
flush-conntrack ct_nw_proto=0x11
flush-conntrack ct_tp_src=1
flush-conntrack ct_nw_proto=6,ct_tp_src=1
flush-conntrack ct_tp_src=1,ct_nw_proto=6
flush-conntrack ct_nw_proto=6,ct_tp_src=70000
flush-conntrack icmp_id=1
flush-conntrack ct_nw_proto=1,icmp_id=1
flush-conntrack ct_nw_proto=6,icmp_id=1
flush-conntrack ct_nw_proto=1,icmp_type=300
flush-conntrack ct_foo=1
flush-conntrack ct_nw_proto=6 ct_tp_src=1
flush-conntrack a b c d
flush-conntrack -m
flush-conntrack -q
flush-conntrack ct_nw_proto=6 zone=1
dump-conntrack
dump-conntrack -m
dump-conntrack -ms
dump-conntrack --names
dump-conntrack --foo
dump-conntrack zone=1
dump-conntrack zone=x
dump-conntrack zone=1x
dump-conntrack zone=70000
dump-conntrack nonsense
dump-conntrack nonsense zone=1
dump-conntrack zone=1 zone=2
dump-conntrack a b c
dump-conntrack a b
ct-stats-show
ct-stats-show -m
ct-stats-show zone=1
ct-stats-show zone=x
ct-stats-show verbose
ct-stats-show zone=1 verbose
ct-stats-show verbose zone=1
ct-stats-show nonsense
ct-stats-show nonsense zone=1
ct-bkts gt=x
ct-bkts nonsense
ct-bkts nonsense gt=1
ct-get-nconns x
ct-get-maxconns x
ct-set-maxconns
ct-set-maxconns x
ct-set-maxconns -1
ct-set-maxconns 4294967295
ct-get-maxconns
ct-set-maxconns 3000000
ct-set-maxconns x 10
ct-enable-tcp-seq-chk x
ct-get-tcp-seq-chk x
ct-set-limits
ct-set-limits default=4294967295
ct-get-limits
ct-set-limits default=x
ct-set-limits zone=1,limit=4294967295
ct-set-limits zone=2,limit=4294967294
ct-set-limits zone=3,limit=0
ct-set-limits zone=4,limit=x
ct-set-limits zone=4
ct-set-limits limit=4
ct-set-limits zone=65536,limit=4
ct-set-limits zone=5,limit=0x10
ct-set-limits nonsense zone=7,limit=1
ct-set-limits nonsense
ct-set-limits zone=8,limit=1 default=3
ct-set-limits default=3 default=4
ct-set-limits default=
ct-get-limits
ct-get-limits zone=1,9
ct-get-limits zone=x
ct-get-limits nonsense
ct-get-limits nonsense zone=1
ct-get-limits a b c
ct-del-limits
ct-get-limits dummy@ovs-dummy
ct-set-limits dummy@ovs-dummy zone=6,limit=1
ct-set-limits dummy@ovs-dummy default=7 zone=6,limit=1
ct-get-limits dummy@ovs-dummy zone=6
ct-del-limits dummy@ovs-dummy zone=6
ct-set-maxconns dummy@ovs-dummy 10
ct-set-maxconns dummy@ovs-dummy x
ct-stats-show dummy@ovs-dummy zone=1 verbose
ct-stats-show a b c
ct-stats-show a b
dump-conntrack dummy@ovs-dummy zone=1
dump-conntrack dummy@ovs-dummy x
ct-enable-tcp-seq-chk x y
ct-get-nconns dummy@ovs-dummy
ipf-set-enabled dummy@ovs-dummy v6
ct-del-limits zone=1
ct-del-limits zone=1
ct-del-limits zone=2,3,x
ct-del-limits nonsense
ct-del-limits nonsense zone=5
ct-get-limits
ipf-set-enabled
ipf-set-enabled v4
ipf-set-enabled v5
ipf-set-enabled nonsense v6
ipf-set-disabled v4
ipf-set-enabled v4
ipf-set-min-frag v4 1000
ipf-set-min-frag v4 x
ipf-set-min-frag v4 1
ipf-set-min-frag x 1000
ipf-set-max-nfrags x
ipf-set-max-nfrags 4294967295
ipf-set-max-nfrags 1000
ipf-get-status
ipf-get-status x
ipf-get-status -m
ipf-get-status -q
show nonsense
show -q
show -s nonsense
dump-dps x
dump-dps
"""


@test(timeout=120)
def words_of_datapath_commands(lab):
    """Commands of `dpctl` take, refuse and ignore the words that Open vSwitch does, and say so in
    its words."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")

    def answers(name, command):
        switch = dummies(lab, name=name, command=command)
        found = {}
        for number, line in enumerate(DATAPATH_WORDS.split("\n")):
            if not line:
                continue
            verb, *words = line.split()
            done = switch.appctl(f"dpctl/{verb}", *words, ok=False)
            text = re.sub(r"ovs-appctl: .*: server returned an error\n", "", done.stderr)
            # A command that comes twice may say something else.
            found[number, line] = done.stdout + text.replace("sluiced:", "ovs-vswitchd:")
        return found

    ours = answers("ours", switchd_command())
    theirs = answers("theirs", switchd_command("ovs"))
    differences = [
        f"{line}: {ours[number, line]!r}, and from Open vSwitch {told!r}"
        for (number, line), told in theirs.items()
        if told != ours[number, line]
    ]
    check(not differences, "\n".join(differences))
