"""`sluice gen`: what it sends is what arrives, over real interfaces and through a real switch, and
what does not arrive is counted."""

import glob
import json
import os
import signal
import struct
import subprocess
import time

from harness import PATIENCE, Failure, Skip, check, equal, run, test, wait_for
from test_vhost import settled


def command(lab, *words):
    """The command with its arguments."""
    if lab.is_ovs:
        raise Skip("a command of Sluice's")
    program = os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")
    return [program, "gen", *map(str, words)]


def report(done):
    """The report that was printed."""
    told = json.loads(done.stdout)
    equal(told["schema"], 1, "the report's schema")
    return told


def veth(lab):
    """A namespace with an interface on each end of a wire."""
    namespace = lab.namespace("gen").quiet()
    namespace.run("ip link add h1 type veth peer name h2")
    for name in ("h1", "h2"):
        namespace.run(f"ip link set {name} up")
    return namespace


def all_right(told, what, sink=0):
    """Everything that was sent came once, in order; returns the streams that came."""
    received = told["sinks"][sink]
    for sent, arrived in zip(told["streams"], received["streams"]):
        check(sent["packets"] > 0, f"{what}: nothing was sent: {sent}")
        found = {name: arrived[name] for name in ("lost", "duplicates", "reordered", "stale")}
        equal(found, dict.fromkeys(found, 0), f"{what}: {sent['name']}")
        equal(arrived["packets"], sent["packets"], f"{what}: {sent['name']} packets")
    equal(received["bytes"], sum(sent["bytes"] for sent in told["streams"]), f"{what}: bytes")
    return received["streams"]


@test(timeout=90)
def everything_arrives_over_interfaces(lab):
    """Frames of all kinds, from one end of a wire to the other."""
    namespace = veth(lab)
    usual = ["--from", "interface:h2", "--to", "interface:h1", "--seconds", 1, "--warm-up", 0.2]
    for words in (
        ["--pps", 5000, "--flows", 100],
        ["--pps", 2000, "--vlan", 7, "--flows", 50, "--by", "udp_dst=5", "--by", "eth_src"],
        ["--poisson", 2000, "--tcp", "--size", "60-200", "--flows", 1000, "--order", "zipf:1.1"],
        ["--pps", 2000, "--burst", 20, "--ip-src", "fd00::5", "--size", "100-1514", "--flows", 20]
        + ["--order", "random"],
    ):
        done = run(namespace.command(command(lab, *usual, *words, "--json")), seconds=40)
        told = report(done)
        (arrived,) = all_right(told, " ".join(map(str, words)))
        equal(told["sinks"][0]["foreign"], 0, "foreign frames")
        equal(arrived["latency"]["count"], arrived["packets"], "latencies")
        check(told["generator"]["calibration"]["most_pps"] > 0, told["generator"])
    done = run(namespace.command(command(lab, *usual, "--pps", 100)), seconds=40)
    check("0 lost, 0 duplicates" in done.stdout, done.stdout)


@test(timeout=60)
def steps_of_a_rate_are_told_apart(lab):
    """A rate that changes while it runs: each step has its frames, and all of them arrive."""
    namespace = veth(lab)
    words = ["--from", "interface:h2", "--to", "interface:h1", "--seconds", 1, "--warm-up", 0.2]
    words += ["--pps", 5000, "--step", "0.5=1000", "--no-calibration"]
    told = report(run(namespace.command(command(lab, *words, "--json")), seconds=40))
    (arrived,) = all_right(told, "steps")
    steps = told["streams"][0]["steps"]
    equal([step["from_ns"] for step in steps], [0, 500_000_000], "when steps begin")
    equal([step["packets"] for step in steps], [2500, 500], "frames of the steps")
    equal(arrived["steps"], [2500, 500], "frames of the steps that came")
    check("last_lost_ns" not in arrived, arrived)
    text = run(namespace.command(command(lab, *words)), seconds=40).stdout
    check("from 0.500000 s: 500 frames sent, 0 refused" in text, text)


def vhost_switch(lab):
    """A switch with two guests' ports, and how the generator names their other ends."""
    switch = lab.switch()
    switch.enable_dpdk()
    switch.bridge("br0", "fail_mode=secure")
    paths = [f"{switch.directory}/v{number}.sock" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        switch.port(
            f"v{number}",
            "type=dpdkvhostuserclient",
            f"options:vhost-server-path={path}",
            f"ofport_request={number}",
        )
    return switch, [{"virtio-user": {"path": path, "server": True}} for path in paths]


@test(timeout=120, dpdk=True)
def everything_arrives_through_guests_ports(lab):
    """Two streams through a switch, one each way; the switch counts the same.

    A machine that takes a processor away for a quarter of a second fills a ring of 256: what a ring
    did not take is counted by whoever could not put it there, and no other frame is missing.
    """
    switch, ports = vhost_switch(lab)
    switch.flows("in_port=1,actions=output:2", "in_port=2,actions=output:1")
    flows = {"count": 1000, "by": [{"field": "ip_src"}]}
    spec = {
        "seconds": 2,
        "warm_up": 0.5,
        "sinks": [ports[1], ports[0]],
        "streams": [
            {
                "name": "there",
                "port": ports[0],
                "rate": {"constant": {"pps": 1000}},
                "flows": flows,
            },
            {"name": "back", "port": ports[1], "rate": {"poisson": {"pps": 700}}, "size": "imix"},
        ],
    }
    done = run(command(lab, "-", "--json"), stdin=json.dumps(spec), seconds=60)
    told = report(done)
    counted = settled(switch)
    for at, name in enumerate(("there", "back")):
        sent, arrived = told["streams"][at], told["sinks"][at]["streams"][at]
        equal(sent["name"], name, "the stream's name")
        check(sent["packets"] > 1000 and sent["refused"] < sent["packets"] / 2, sent)
        full = counted[f"v{2 - at}"]["tx"]["drop"]
        check(arrived["lost"] <= full, f"{name}: {arrived['lost']} lost", counted)
        equal(arrived["packets"] + arrived["lost"], sent["packets"], f"{name}: packets")
        equal((arrived["duplicates"], arrived["reordered"]), (0, 0), f"{name}: order")
        # Nothing of the other stream came here.
        equal(told["sinks"][at]["streams"][1 - at]["packets"], 0, f"{name}: the other stream")
    if told["sinks"][0]["streams"][0]["lost"] == 0:
        equal(told["sinks"][0]["bytes"], told["streams"][0]["bytes"], "bytes there")
    check(counted["v1"]["rx"]["pkts"] >= told["streams"][0]["packets"], counted)


@test(timeout=120, dpdk=True)
def what_a_rule_drops_is_lost(lab):
    """A rule that drops every other flow: half of the frames are lost, and no others."""
    switch, ports = vhost_switch(lab)
    drops = [f"priority=2,udp,in_port=1,tp_dst={2048 + n},actions=drop" for n in range(0, 10, 2)]
    switch.flows("priority=1,in_port=1,actions=output:2", *drops)
    spec = {
        "seconds": 2,
        "warm_up": 0.5,
        "sinks": [ports[1]],
        "streams": [
            {
                "port": ports[0],
                "rate": {"constant": {"pps": 1000}},
                "flows": {"count": 10, "by": [{"field": "udp_dst"}]},
            }
        ],
    }
    path = os.path.join(lab.directory, "spec.yaml")
    with open(path, "w", encoding="ascii") as file:
        json.dump(spec, file)
    told = report(run(command(lab, path, "--json"), seconds=60))
    sent, arrived = told["streams"][0], told["sinks"][0]["streams"][0]
    # A machine that takes a processor away fills the ring; each time that it does, what the ring
    # did not take may be a frame more of one half than of the other, as where the time begins and
    # ends.
    check(sent["packets"] >= 1000 and sent["refused"] < sent["packets"] / 5, sent)
    uneven = 2 + sent["refused"]
    check(abs(2 * arrived["lost"] - sent["packets"]) <= uneven, sent, arrived["lost"])
    equal(arrived["lost"] + arrived["packets"], sent["packets"], "lost and received")
    equal(arrived["reordered"], 0, "reordered")


def capture(frames):
    """A pcap file, a frame each millisecond."""
    blob = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    for number, frame in enumerate(frames):
        blob += struct.pack("<IIII", 5, number * 1_000_000, len(frame), len(frame)) + frame
    return blob


def frames_of(path):
    """The frames of a pcap file that the generator wrote, with their times in nanoseconds."""
    with open(path, "rb") as file:
        blob = file.read()
    equal(struct.unpack_from("<I", blob)[0], 0xA1B23C4D, "the file's kind")
    at, frames, times = 24, [], []
    while at < len(blob):
        seconds, ns, length, whole = struct.unpack_from("<IIII", blob, at)
        equal(length, whole, "captured bytes")
        frames.append(blob[at + 16 : at + 16 + length])
        times.append(seconds * 1_000_000_000 + ns)
        at += 16 + length
    return frames, times


@test(timeout=60)
def a_replayed_file_arrives_byte_by_byte(lab):
    """Frames of any contents, as they were recorded, once each."""
    namespace = veth(lab)
    frames = [
        bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5]) + os.urandom(46 + number * 5)
        for number in range(250)
    ]
    paths = [os.path.join(lab.directory, name) for name in ("in.pcap", "out.pcap")]
    with open(paths[0], "wb") as file:
        file.write(capture(frames))
    for words in ((), ("--pps", 2000)):
        words = ["--to", "interface:h1", "--from", "interface:h2", "--replay", paths[0], *words]
        words += ["--from", f"file:{paths[1]}", "--seconds", 20, "--json"]
        told = report(run(namespace.command(command(lab, *words)), seconds=40))
        all_right(told, "replayed")
        equal(told["sinks"][0]["foreign"], 0, "foreign frames")
        found, times = frames_of(paths[1])
        equal(len(found), len(frames), "frames in the file")
        check(found == frames, "the bytes differ")
        check(times == sorted(times), "the times are out of order")
        check(told["seconds"] < 10, f"the file has 0.25 s, the run took {told['seconds']} s")


# An access control list, a rule of each of its fields.
ACL = """priority=3,tcp,tp_dst=80,actions=output:2
priority=2,tcp,nw_src=10.0.0.0/8,actions=output:2
priority=1,tcp,tp_src=4444,actions=output:2
priority=0,actions=drop
"""


def listed(lab, name, text):
    """A file of rules."""
    path = os.path.join(lab.directory, name)
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


@test(timeout=120, dpdk=True)
def flows_from_rules_meet_them(lab):
    """A set of rules that is made, in a switch: all flows made from it come through; of those that
    are to meet none, none does; and so it is with a dump of the switch's rules."""
    switch, ports = vhost_switch(lab)
    made = command(lab, "rules", "--kind", "acl", "--count", 200, "--seed", 5)
    filters = listed(lab, "filters", run(made).stdout)
    equal(len(run(made).stdout.splitlines()), 200, "rules")
    equal(run([*made[:2], "rules", "--file", filters]).stdout, run(made).stdout, "read again")
    flows = run([*made, "--openflow", "output:2"]).stdout
    flows += "priority=0,actions=drop\n"
    switch.ofctl("add-flows", "br0", listed(lab, "flows", flows))
    dumped = listed(lab, "dump", switch.ofctl("dump-flows", "br0"))
    spec = {
        "seconds": 2,
        "warm_up": 0.5,
        "sinks": [ports[1]],
        "streams": [
            {
                "name": "these",
                "port": ports[0],
                "rate": {"constant": {"pps": 1000}},
                "size": {"fixed": 100},
                "flows": {"count": 300, "rules": {"file": filters}},
            },
            {
                "name": "those",
                "port": ports[0],
                "rate": {"constant": {"pps": 1000}},
                "size": {"fixed": 100},
                "flows": {"count": 0, "rules": {"file": filters, "miss": 1}},
            },
            {
                "name": "dumped",
                "port": ports[0],
                "rate": {"constant": {"pps": 1000}},
                "size": {"fixed": 80},
                "flows": {"count": 300, "rules": {"file": dumped}},
            },
        ],
    }
    told = report(run(command(lab, "-", "--json"), stdin=json.dumps(spec), seconds=60))
    full = settled(switch)["v2"]["tx"]["drop"]
    these, those, again = (
        (sent["packets"], arrived["packets"], arrived["duplicates"])
        for sent, arrived in zip(told["streams"], told["sinks"][0]["streams"])
    )
    check(these[0] > 500 and these[0] - full <= these[1] <= these[0], these, full)
    check(those[0] > 500 and those[1] == 0, "of those that meet no rule:", those)
    # One flow of the dump is made from the last rule, which drops it.
    check(again[0] > 500 and 0.9 * again[0] - full <= again[1] <= again[0], again, full)
    equal(told["sinks"][0]["foreign"], 0, "foreign frames")


@test(timeout=120, dpdk=True)
def an_explosion_meets_no_rule(lab):
    """Each flow of a tuple-space explosion differs from what the rules allow in one bit of each
    field, so all are dropped by the last rule, and each is another flow."""
    switch, ports = vhost_switch(lab)
    rules = listed(lab, "acl", ACL)
    switch.ofctl("add-flows", "br0", rules)
    out = os.path.join(lab.directory, "out.pcap")
    stream = {
        "rate": {"constant": {"pps": 2000}},
        "size": {"fixed": 60},
        "flows": {"count": 0, "rules": {"file": rules, "explode": True}},
    }
    spec = {
        "seconds": 2,
        "warm_up": 0.5,
        "sinks": [ports[1]],
        "streams": [{"port": ports[0], **stream}, {"port": {"file": out}, **stream}],
    }
    told = report(run(command(lab, "-", "--json"), stdin=json.dumps(spec), seconds=60))
    sent, arrived = told["streams"][0], told["sinks"][0]["streams"][0]
    check(sent["packets"] > 1000, sent)
    equal(arrived["packets"], 0, "what the rules let through")
    dropped = switch.ofctl("dump-flows", "br0")
    counts = {
        line.split("priority=")[1][0]: line for line in dropped.splitlines() if "prio" in line
    }
    for priority in "123":
        check("n_packets=0," in counts[priority], counts)
    # Source address, source and destination port.
    frames, _ = frames_of(out)
    seen = {(frame[26:30], frame[34:36], frame[36:38]) for frame in frames}
    equal(len(seen), min(len(frames), 8 * 16 * 16), "distinct flows")
    for address, source, target in seen:
        for found, wanted in (
            (address[0], 10),
            (int.from_bytes(source, "big"), 4444),
            (int.from_bytes(target, "big"), 80),
        ):
            equal(bin(found ^ wanted).count("1"), 1, f"bits of {found} that are not {wanted}'s")


@test(timeout=60)
def a_delay_line_is_measured_right(lab):
    """The self-test: what is measured in a loop with a known delay is at least that delay, and not
    much more for the frame that met with least; of frames that a stop of the generator is in the
    latency of, it says so."""
    for delay in (50, 500, 5000):
        words = ("--loop", delay, "--pps", 10000, "--seconds", 0.5, "--json")
        told = report(run(command(lab, *words)))
        (arrived,) = all_right(told, f"{delay} us")
        clear = arrived.get("undisturbed", arrived["latency"])
        equal(
            clear["count"] + arrived["disturbed"], arrived["packets"], "those with a stop and not"
        )
        if clear["count"] == 0:
            lab.note(f"{delay} us: the generator was stopped all the time")
            continue
        least = clear["min"] / 1000
        check(delay <= least < delay + 50, f"{delay} us: {least} us")
        check(clear["p50"] >= delay * 1000, arrived["latency"])
        lab.note(f"{delay} us: {clear['p50'] / 1000:.1f} us")


@test(timeout=90)
def what_cannot_be_done_is_told(lab):
    """Fields that are wrong, devices that are not there, peers that nobody is."""
    namespace = veth(lab)

    def told(*words, stdin=None):
        done = run(namespace.command(command(lab, *words)), ok=False, seconds=40, stdin=stdin or "")
        check(done.returncode != 0, f"{words} was taken: {done.stdout}")
        return done.stderr

    def spec(**stream):
        stream = {"port": {"interface": "h1"}, "rate": "most", **stream}
        return told("-", stdin=json.dumps({"seconds": 1, "streams": [stream]}))

    for text, wanted in (
        (
            spec(flows={"count": 2, "by": [{"field": "ip_foo"}]}),
            'streams[0].flows.by[0].field: "ip_foo": there are',
        ),
        (spec(rate={"constant": {"pps": 0}}), "streams[0].rate.constant.pps: 0:"),
        (spec(rate="fast"), "streams[0].rate: unknown variant `fast`"),
        (
            spec(size={"fixed": 2000}),
            "streams[0].size: 2000 bytes are more than interface:h1 takes",
        ),
        (
            spec(rate={"replay": {"file": "/none.pcap"}}),
            "streams[0].rate.replay.file: /none.pcap: No such file",
        ),
        (told("--to", "interface:h9"), "streams[0].port: interface:h9:"),
        (
            told("--to", "interface:h1", "--rules", listed(lab, "bad", "ip,actions=drop\narp\n")),
            'bad:2: "arp": flows cannot be made for this match',
        ),
        (told("rules", "--count", 0), "--count 0: must be a number from 1"),
        (told("rules", "--file", "/none"), "/none: No such file"),
        (told("--to", "interface:h1", "--from", "interface:h9"), "sinks[0]: interface:h9:"),
        (told("--to", "dpdk:0000:ff:1f.7"), "streams[0].port: dpdk:0000:ff:1f.7:"),
    ):
        check(wanted in text, f"{text!r} has no {wanted!r}")
    socket = os.path.join(lab.directory, "none.sock")
    text = told("--to", f"virtio-user:{socket}", "--wait", 0.5)
    check(f"virtio-user:{socket}" in text and "nobody listens" in text, text)
    text = told("--to", f"virtio-user:{socket},server", "--wait", 0.5)
    check("nobody connects" in text, text)
    check(not os.path.exists(socket), "the socket is left")
    namespace.run("ip link set h2 down")
    text = told("--to", "interface:h1", "--wait", 0.5)
    check("it has no link" in text, text)


def running(lab, namespace):
    """A run that would take an hour, once it is under way."""

    def received():
        link = json.loads(namespace.run("ip -j -s link show h2").stdout)[0]
        return link["stats64"]["rx"]["packets"]

    before = received()
    process = subprocess.Popen(
        namespace.command(
            command(lab, "--to", "interface:h1", "--from", "interface:h2", "--pps", 1000)
            + ["--seconds", "3600", "--warm-up", "0", "--json"]
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    lab.programs.append(process)

    def moving():
        if process.poll() is not None:
            raise Failure(f"it ended: {process.communicate()[1].decode()}")
        return received() > before + 100

    wait_for("frames are on the wire", moving, 30)
    return process


def generators():
    """What DPDK keeps in files for generators."""
    return set(glob.glob("/var/run/dpdk/sluice-gen-*"))


@test(timeout=90)
def it_can_be_ended_at_any_time(lab):
    """A signal ends it with what it has found so far; when it is killed, nothing is left."""
    namespace = veth(lab)
    before = generators()
    for number in (signal.SIGINT, signal.SIGTERM):
        process = running(lab, namespace)
        os.kill(process.pid, number)
        output, errors = process.communicate(timeout=20 * PATIENCE)
        equal(process.returncode, 0, f"signal {number}: {errors.decode()}")
        told = json.loads(output)
        check(0 < told["seconds"] < 3600, told["seconds"])
        all_right(told, f"signal {number}")
    process = running(lab, namespace)
    process.kill()
    process.communicate(timeout=20 * PATIENCE)
    time.sleep(0.2)
    equal(generators() - before, set(), "what a killed one has left")
    # The next one is not disturbed.
    words = ("--to", "interface:h1", "--from", "interface:h2", "--pps", 1000, "--seconds", 0.3)
    all_right(report(run(namespace.command(command(lab, *words, "--json")))), "the next one")
