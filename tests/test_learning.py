"""Rules that packets ask for: `learn`, its limits and timeouts, `fin_timeout`, and packets that a
controller lets go on."""

import os
import re
import struct
import threading
import time

from harness import Skip, check, equal, ethernet, test, wait_for

MACS = {1: "02:00:00:00:00:01", 2: "02:00:00:00:00:02", 3: "02:00:00:00:00:03"}
# The example of ovs-actions(7): what is seen is learned into another table, which says where
# answers go.
MAC_LEARNING = (
    "table=0,priority=100,dl_src=01:00:00:00:00:00/01:00:00:00:00:00,actions=drop",
    "table=0,priority=1,actions=learn(table=10,hard_timeout=300,priority=99,"
    "NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]),"
    "resubmit(,10),resubmit(,1)",
    "table=10,priority=0,actions=load:0->NXM_NX_REG0[0..15]",
    "table=1,priority=10,reg0=0,actions=flood",
    "table=1,priority=0,actions=output:NXM_NX_REG0[0..15]",
)


def udp(source, destination, sport=1000, dport=2000, payload=b"x" * 18):
    """A UDP packet between two hosts' addresses, without a checksum."""
    body = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload
    return ethernet(MACS[destination], MACS[source], 0x0800, ip(17, body))


def tcp(source, destination, flags, sport=1000, dport=80):
    """A TCP segment without payload."""
    body = struct.pack("!HHIIBBHHH", sport, dport, 1, 1, 0x50, flags, 1024, 0, 0)
    return ethernet(MACS[destination], MACS[source], 0x0800, ip(6, body))


def ip(protocol, body):
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(body),
        0,
        0,
        64,
        protocol,
        0,
        bytes([10, 0, 0, 1]),
        bytes([10, 0, 0, 2]),
    )
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return (
        head[:10]
        + struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)
        + head[12:]
        + body
    )


def three_ports(lab, *rules, options=()):
    """A switch with three ports, raw sockets on their other ends, and rules."""
    switch = lab.switch(config=options)
    switch.bridge("br0", "fail_mode=secure")
    ends = {}
    for number in (1, 2, 3):
        host = lab.host(f"h{number}", switch, quiet=True)
        switch.vsctl("set", "Interface", f"h{number}-p", f"ofport_request={number}")
        ends[number] = host.raw()
    wait_for(
        "ports have their numbers",
        lambda: (
            [switch.get("Interface", f"h{number}-p", "ofport") for number in (1, 2, 3)] == [1, 2, 3]
        ),
    )
    switch.flows(*rules)
    return switch, ends


def learned(switch, table, bridge="br0"):
    """The rules of a table."""
    return [rule for rule in switch.rules(bridge) if f"table={table}, " in rule]


def arrives(end, frame, seconds=2.0):
    """Whether a frame comes out."""
    return bool(end.receive(seconds, wanted=lambda got: got[: len(frame)] == frame, until=1))


@test(timeout=60)
def mac_learning_by_rules(lab):
    """The example of ovs-actions(7): the first packet is flooded, its answer and all after it go
    one way; a host that moves is found."""
    switch, ends = three_ports(lab, *MAC_LEARNING)
    ends[1].send(udp(1, 2))
    check(
        arrives(ends[2], udp(1, 2)) and arrives(ends[3], udp(1, 2)),
        "the first packet is not flooded",
    )
    ends[2].send(udp(2, 1))
    check(arrives(ends[1], udp(2, 1)), "no answer")
    check(not arrives(ends[3], udp(2, 1), 0.3), "the answer is flooded")
    ends[1].send(udp(1, 2, 1001))
    check(arrives(ends[2], udp(1, 2, 1001)), "the second packet is lost")
    check(not arrives(ends[3], udp(1, 2, 1001), 0.3), "the second packet is flooded")
    rules = sorted(learned(switch, 10))
    equal(
        rules,
        [
            (
                "table=10, hard_timeout=300, priority=99,dl_dst=02:00:00:00:00:01 "
                "actions=load:0x1->NXM_NX_REG0[0..15]"
            ),
            (
                "table=10, hard_timeout=300, priority=99,dl_dst=02:00:00:00:00:02 "
                "actions=load:0x2->NXM_NX_REG0[0..15]"
            ),
            "table=10, priority=0 actions=load:0->NXM_NX_REG0[0..15]",
        ],
        "learned rules",
    )
    # The host moves.
    ends[3].send(udp(1, 2, 1002))
    check(arrives(ends[2], udp(1, 2, 1002)), "the moved host's packet is lost")
    ends[2].send(udp(2, 1, 1003))
    check(arrives(ends[3], udp(2, 1, 1003)), "the moved host is not found")
    check(not arrives(ends[1], udp(2, 1, 1003), 0.3), "the place that it left gets its packets")


@test(timeout=120)
def answers_never_overtake_rules(lab):
    """A host that answers at once, and packets sent back to back: the second always obeys what the
    first has taught, thousands of times, on two workers."""
    rounds = 3000
    # A packet from port 1 teaches where its source port's answers go; what has not been taught goes
    # to port 3.
    switch, ends = three_ports(
        lab,
        "priority=5,in_port=1,udp,actions=learn(table=1,priority=9,dl_type=0x800,nw_proto=17,"
        "NXM_OF_UDP_DST[]=NXM_OF_UDP_SRC[],"
        "output:NXM_OF_IN_PORT[]),resubmit(,2)",
        "priority=4,in_port=2,udp,actions=resubmit(,1)",
        "table=1,priority=1,actions=output:3",
        # Of two packets with one source port the second finds what the first has taught.
        "table=2,priority=1,actions=output:2",
        options=("other_config:pmd-cpu-mask=3",),
    )
    stop = threading.Event()
    answered = []

    def answer():
        while not stop.is_set():
            frame = ends[2].receive_one(0.2)
            if frame and frame[12:14] == b"\x08\x00" and frame[23] == 17:
                sport, dport = struct.unpack("!HH", frame[34:38])
                ends[2].send(udp(2, 1, dport, sport))
                answered.append(sport)

    thread = threading.Thread(target=answer)
    thread.start()
    wrong = []
    try:
        for number in range(rounds):
            sport = 2000 + number
            ends[1].send(udp(1, 2, sport, 7))
            back = ends[1].receive(
                5.0,
                wanted=lambda got, port=sport: (
                    got[12:14] == b"\x08\x00" and got[36:38] == struct.pack("!H", port)
                ),
                until=1,
            )
            if not back:
                wrong.append(sport)
    finally:
        stop.set()
        thread.join()
    strays = ends[3].receive(0.3, wanted=lambda got: got[12:14] == b"\x08\x00")
    equal(
        (len(wrong), len(strays)),
        (0, 0),
        f"of {rounds} answers (of which {len(answered)} were sent): lost, and gone by the rule "
        "before",
    )


@test(timeout=120)
def back_to_back(lab):
    """Two packets of which the first teaches what becomes of the second, sent without a pause: the
    second always obeys."""
    rounds = 3000
    switch, ends = three_ports(
        lab,
        "priority=5,in_port=1,udp,tp_dst=7,actions=load:2->NXM_NX_REG1[],learn(table=0,priority=9,"
        "dl_type=0x800,nw_proto=17,NXM_OF_UDP_SRC[],"
        "udp_dst=8,output:NXM_NX_REG1[])",
        "priority=4,in_port=1,udp,tp_dst=8,actions=output:3",
    )
    if switch.is_ovs:
        raise Skip(
            "Open vSwitch forwards the second by its cache, or while the first is on its way "
            "through ovs-vswitchd"
        )
    got = []
    for number in range(0, rounds, 50):
        for sport in range(2000 + number, 2050 + number):
            ends[1].send(udp(1, 2, sport, 7), udp(1, 2, sport, 8))
        got += ends[2].receive(5.0, wanted=lambda frame: frame[36:38] == b"\x00\x08", until=50)
    strays = ends[3].receive(0.3, wanted=lambda frame: frame[36:38] == b"\x00\x08")
    equal((len(got), len(strays)), (rounds, 0), "second packets that obeyed, and that did not")
    equal(
        int(re.search(r"flow_count=(\d+)", switch.ofctl("dump-aggregate", "br0")).group(1)),
        rounds + 2,
        "rules",
    )


@test(timeout=120)
def a_flapping_address(lab):
    """Two hosts send from one address before a rule that learns: each of their frames goes on, and
    afterwards packets to that address go to the host that sends last."""
    if lab.is_ovs:
        raise Skip("Open vSwitch learns from flows that it has cached in rounds of its own")
    switch, ends = three_ports(
        lab,
        "priority=9,dl_type=0x88b5,actions=learn(table=10,priority=9,"
        "NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),output:3",
        "priority=8,in_port=3,actions=resubmit(,10)",
    )
    address, frames = "02:00:00:00:00:77", 2000

    def frame(number):
        return ethernet(MACS[3], address, 0x88B5, struct.pack("!I", number) + bytes(42))

    for last in (1, 2, 1):
        # At once fewer than may wait for control, which may be without a processor.
        for first in range(0, frames, 250):
            numbers = range(first, first + 250)
            for number in numbers:
                ends[1 + number % 2].send(frame(number))
            got = ends[3].receive(20, lambda frame: frame[12:14] == b"\x88\xb5", until=250)
            sent_on = {struct.unpack("!I", frame[14:18])[0] for frame in got}
            equal(sent_on, set(numbers), "frames that were sent on")
        ends[last].send(frame(frames))
        check(arrives(ends[3], frame(frames)), "the last frame is not sent on")
        wanted = f"table=10, priority=9,dl_dst={address} actions=output:{last}"
        wait_for("the last one counts", lambda wanted=wanted: learned(switch, 10) == [wanted])
        answer = ethernet(address, MACS[3], 0x0800, bytes(46))
        ends[3].send(answer)
        check(arrives(ends[last], answer), f"packets to the address do not reach h{last}")


@test(timeout=60)
def limit_and_delete_learned(lab):
    """`limit` with `result_dst`, `delete_learned` when the last teacher goes, and the flow-removed
    messages of learned rules."""
    switch, ends = three_ports(
        lab,
        "cookie=1,priority=5,in_port=1,actions=learn(table=3,cookie=0x77,limit=2,"
        "result_dst=NXM_NX_REG1[0],delete_learned,NXM_OF_ETH_SRC[]),"
        "resubmit(,2)",
        "cookie=2,priority=5,in_port=2,actions=learn(table=3,cookie=0x77,delete_learned,"
        "NXM_OF_ETH_SRC[])",
        "table=2,reg1=1/1,actions=output:2",
        "table=2,reg1=0/1,actions=output:3",
    )
    frames = [
        ethernet(MACS[2], f"02:00:00:00:01:{number:02x}", 0x88B5, bytes(46)) for number in range(4)
    ]
    for number, frame in enumerate(frames):
        ends[1].send(frame)
        end = ends[2] if number < 2 else ends[3]
        check(arrives(end, frame), f"packet {number} took the wrong way")
    ends[1].send(frames[0])
    check(arrives(ends[2], frames[0]), "a packet whose rule is there took the wrong way")
    equal(len(learned(switch, 3)), 2, "rules learned with a limit of 2")
    switch.ofctl("del-flows", "br0", "table=3,dl_src=02:00:00:00:01:00")
    ends[1].send(frames[3])
    check(
        arrives(ends[2], frames[3]),
        "a packet for whose rule there is room again took the wrong way",
    )
    # The last rule that teaches takes what it taught with it.
    switch.ofctl("del-flows", "br0", "cookie=2/-1")
    equal(len(learned(switch, 3)), 2, "learned rules after one of two teachers has gone")
    switch.ofctl("add-flow", "br0", "table=3,cookie=0x78,priority=3,actions=drop")
    switch.ofctl("del-flows", "br0", "cookie=1/-1")
    equal(
        [rule for rule in learned(switch, 3) if "0x77" in rule],
        [],
        "learned rules after both teachers have gone",
    )
    equal(len(learned(switch, 3)), 1, "rules of another cookie")


@test(timeout=60)
def limit_counts_what_the_step_before_has_changed(lab):
    """A rule that gets the cookie by one `learn` counts for the `limit` of the next."""
    switch, ends = three_ports(
        lab,
        "table=2,reg1=1/1,actions=output:2",
        "table=2,reg1=0/1,actions=output:3",
    )
    for limit, end in ((1, 3), (2, 2)):
        switch.ofctl("del-flows", "br0", "table=3")
        switch.ofctl("add-flow", "br0", "table=3,cookie=0x4,priority=10,in_port=1,actions=drop")
        switch.ofctl(
            "add-flow",
            "br0",
            "priority=5,in_port=1,actions=learn(table=3,cookie=0x77,priority=10,NXM_OF_IN_PORT[]),"
            f"learn(table=3,cookie=0x77,limit={limit},result_dst=NXM_NX_REG1[0],NXM_OF_ETH_SRC[]),"
            "resubmit(,2)",
        )
        frame = ethernet(MACS[2], f"02:00:00:00:01:{limit:02x}", 0x88B5, bytes(46))
        ends[1].send(frame)
        check(arrives(ends[end], frame), f"limit {limit}: the packet took the wrong way")
        equal(len(learned(switch, 3)), limit, f"rules with a limit of {limit}")


@test(timeout=60)
def the_last_of_several_results_counts(lab):
    """Of two `learn` in a row that write one bit, the second says what it is, also where the first
    is refused for its limit and the rule of the second is there."""
    switch, ends = three_ports(
        lab,
        "priority=5,in_port=1,actions="
        "learn(table=3,cookie=0x77,limit=1,result_dst=NXM_NX_REG1[0],NXM_OF_ETH_SRC[]),"
        "learn(table=4,cookie=0x77,result_dst=NXM_NX_REG1[0],NXM_OF_IN_PORT[]),"
        "resubmit(,2)",
        "table=2,reg1=1/1,actions=output:2",
        "table=2,reg1=0/1,actions=output:3",
    )
    for number in range(3):
        frame = ethernet(MACS[2], f"02:00:00:00:01:{number:02x}", 0x88B5, bytes(46))
        ends[1].send(frame)
        check(arrives(ends[2], frame), f"packet {number} took the wrong way")
    equal(len(learned(switch, 3)), 1, "rules learned with a limit of 1")


@test(timeout=60)
def a_packet_may_change_its_mind(lab):
    """A packet that learns one rule several times leaves what it has learned last, also where the
    rule did just that before it came."""
    learn = "learn(table=3,NXM_OF_ETH_SRC[],output:NXM_NX_REG2[])"
    steps = ",".join(f"load:{port}->NXM_NX_REG2[],{learn}" for port in (2, 3, 2))
    switch, ends = three_ports(lab, f"priority=5,in_port=1,actions={steps},output:2")
    for number in range(3):
        frame = ethernet(MACS[2], "02:00:00:00:01:01", 0x88B5, bytes([number]) * 46)
        ends[1].send(frame)
        check(arrives(ends[2], frame), f"packet {number} is not sent on")
        rules = learned(switch, 3)
        check(
            len(rules) == 1 and rules[0].endswith("actions=output:2"),
            f"after packet {number}: {rules}",
        )


@test(timeout=60)
def spoofed_sources_fill_no_memory(lab):
    """Rules that packets add count for the limit on all rules of the switch, as a controller's do;
    packets go on without their rules, and when there is room, they are made."""
    if lab.is_ovs:
        raise Skip("Open vSwitch has no such limit")
    teacher = "priority=5,in_port=1,actions=learn(table=3,NXM_OF_ETH_SRC[]),output:2"
    limit = 30
    switch, ends = three_ports(lab, teacher, options=[f"other_config:sluice-rule-limit={limit}"])
    own = len(switch.rules("br0"))
    frames = [
        ethernet(MACS[2], f"02:00:00:00:01:{number:02x}", 0x88B5, bytes(46)) for number in range(80)
    ]

    def all_arrive(what):
        for frame in frames:
            ends[1].send(frame)
        got = ends[2].receive(10, lambda got: got[12:14] == b"\x88\xb5", until=len(frames))
        equal(len({frame[6:12] for frame in got}), len(frames), what)

    all_arrive("frames that went on, most without a rule")
    equal(len(learned(switch, 3)), limit - own, "rules learned up to the limit")
    refused = switch.ofctl("add-flow", "br0", "table=4,actions=drop", ok=False).stderr
    check("OFPFMFC_TABLE_FULL" in refused, f"a controller's rule beyond the limit: {refused}")
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:sluice-rule-limit=1000")
    switch.ofctl("add-flow", "br0", "table=4,actions=drop")
    all_arrive("frames that went on with a rule each")
    equal(len(learned(switch, 3)), len(frames), "rules when there is room")


@test(timeout=90)
def timeouts(lab):
    """An idle learned rule goes, one that is learned again and again stays beyond its hard timeout;
    a FIN shortens timeouts; controllers are told."""
    switch, ends = three_ports(
        lab,
        "priority=5,in_port=1,udp,actions=learn(table=4,hard_timeout=2,cookie=0x5,"
        "NXM_OF_ETH_SRC[]),output:2",
        "priority=5,in_port=1,tcp,actions=learn(table=5,idle_timeout=60,hard_timeout=90,"
        "fin_idle_timeout=2,fin_hard_timeout=30,"
        "dl_type=0x800,nw_proto=6,NXM_OF_TCP_SRC[],output:NXM_OF_IN_PORT[]),resubmit(,5),output:2",
        "table=5,priority=0,actions=drop",
    )
    end = time.monotonic() + 5
    while time.monotonic() < end:
        ends[1].send(udp(1, 2))
        time.sleep(0.2)
    equal(len(learned(switch, 4)), 1, "rules with a hard timeout of 2 s that was learned for 5 s")
    wait_for("it goes when nobody teaches it any more", lambda: not learned(switch, 4), 10)
    # The packet that teaches a rule does not meet it; the next does.
    ends[1].send(tcp(1, 2, 0x02))
    check(arrives(ends[2], tcp(1, 2, 0x02)), "no SYN")
    wait_for("the rule is there", lambda: len(learned(switch, 5)) == 2)
    rule = [rule for rule in learned(switch, 5) if "tcp" in rule][0]
    check(
        "idle_timeout=60, hard_timeout=90" in rule
        and "fin_timeout(idle_timeout=2,hard_timeout=30)" in rule,
        "the rule:",
        rule,
    )
    ends[1].send(tcp(1, 2, 0x11))
    wait_for(
        "the FIN shortens timeouts",
        lambda: any("idle_timeout=2, hard_timeout=30" in rule for rule in learned(switch, 5)),
    )
    wait_for("the idle rule goes", lambda: len(learned(switch, 5)) == 1, 10)


@test(timeout=60)
def through_a_patch_port(lab):
    """Rules learned in the bridge behind a patch port, and by packet-outs."""
    switch, ends = three_ports(lab, "in_port=1,actions=output:10", "in_port=10,actions=output:1")
    switch.bridge("br1", "fail_mode=secure")
    switch.vsctl(
        "add-port",
        "br0",
        "p01",
        "--",
        "set",
        "Interface",
        "p01",
        "type=patch",
        "options:peer=p10",
        "ofport_request=10",
    )
    switch.vsctl(
        "add-port",
        "br1",
        "p10",
        "--",
        "set",
        "Interface",
        "p10",
        "type=patch",
        "options:peer=p01",
        "ofport_request=11",
    )
    wait_for("the patch has its number", lambda: switch.get("Interface", "p01", "ofport") == 10)
    switch.flows(
        "table=0,priority=2,actions=learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],"
        "output:NXM_OF_IN_PORT[]),resubmit(,1)",
        "table=1,priority=0,actions=drop",
        bridge="br1",
    )
    ends[1].send(udp(1, 2))
    wait_for("br1 has learned", lambda: len(learned(switch, 1, "br1")) == 2)
    frame = udp(2, 1)
    switch.ofctl("packet-out", "br1", f"in_port=local,packet={frame.hex()},actions=resubmit(,1)")
    check(arrives(ends[1], frame), "the packet-out does not find the way that was learned")
    switch.ofctl(
        "packet-out",
        "br1",
        f"in_port=local,packet={frame.hex()},actions=learn(table=7,NXM_OF_ETH_SRC[],"
        "output:NXM_OF_IN_PORT[]),learn(table=7,NXM_OF_ETH_DST[])",
    )
    wait_for("the packet-out has taught", lambda: len(learned(switch, 7, "br1")) == 2)


@test(timeout=60)
def pause_and_resume(lab):
    """`controller(pause)`: the packet waits for Open vSwitch's own client, which sends it back, and
    it goes on where it stopped."""
    switch, ends = three_ports(
        lab,
        "in_port=1,actions=load:5->NXM_NX_REG0[],resubmit(,1),output:3",
        "table=1,actions=push:NXM_NX_REG0[],load:6->NXM_NX_REG0[],controller(userdata=01.02,"
        "pause),pop:NXM_NX_REG2[],resubmit(,2)",
        "table=2,reg0=6,reg2=5,actions=mod_tp_dst:99,output:2",
    )
    ends[1].send(udp(1, 2))
    check(not arrives(ends[2], udp(1, 2), 0.3), "a packet goes on that nobody has resumed")
    log = os.path.join(lab.directory, "monitor.log")
    lab.start(
        ["ovs-ofctl", "monitor", "br0", "resume", "-P", "nxt_packet_in2"],
        "monitor.log",
        env=switch.env,
    )
    # Until the client is there, nobody sends a packet back.
    first = struct.pack("!H", 2999)

    def comes_back():
        ends[1].send(udp(1, 2, 2999))
        return ends[2].receive(0.2, wanted=lambda frame: frame[34:36] == first, until=1)

    wait_for("the client sends packets back", comes_back)
    for number in range(20):
        ends[1].send(udp(1, 2, 3000 + number))
        got = ends[2].receive(
            5.0, wanted=lambda frame: frame[12:14] == b"\x08\x00" and frame[34:36] != first, until=1
        )
        check(
            got and got[0][34:38] == struct.pack("!HH", 3000 + number, 99),
            "packet",
            number,
            "does not go on:",
            got,
        )
        got = ends[3].receive(
            5.0, wanted=lambda frame: frame[12:14] == b"\x08\x00" and frame[34:36] != first, until=1
        )
        check(
            got and got[0][34:38] == struct.pack("!HH", 3000 + number, 99),
            "packet",
            number,
            "does not come back:",
            got,
        )
    text = open(log, encoding="utf-8", errors="replace").read()
    check(
        "userdata=01.02" in text and "reg0=0x6" in text and "continuation" in text,
        "what the client saw:",
        text[:2000],
    )
