"""Generated frames from pcap files, through generated rules, into pcap files: byte for byte what
the rules say."""

import os
import time

import generate
import oracle
from harness import Failure, check, equal, test, wait_for

# A switch may lose the first frames of a port while it makes it known to its tables; these go ahead
# of those that count.
FORERUNNER = bytes.fromhex("0200000000aa0200000000bb88b6") + bytes(46)
FORERUNNERS = 20_000
SEED = int(os.environ.get("SLUICE_TEST_SEED", "2611"))


def compare(lab, seed, edits, damage, rule_count, templates, repeats):
    """Sends frames of two ports through generated rules and compares what comes out of five with
    the reference's answer."""
    random = oracle.chooser(seed)
    rules = generate.rules(random, rule_count, edits)
    flows = [generate.Template(random) for _ in range(templates)]
    inputs = {1: [], 2: []}  # port: [(frame, which flow)]
    for repeat in range(repeats):
        for number, flow in enumerate(flows):
            frame = flow.frame(repeat * len(flows) + number)
            if damage:
                frame = generate.damaged(random, frame)
            inputs[random.choice([1, 2]) if damage else 1 + number % 2].append(
                (frame, number if not damage else frame)
            )
    reference = oracle.Reference(rules)
    wanted = {port: [] for port in (1, 2, 3, 4, 5)}
    flow_of, origin = {}, {}
    for port, frames in inputs.items():
        for frame, flow in frames:
            for out, result in reference.process(frame, port):
                wanted[out].append(result)
                flow_of[result], origin[result] = flow, (port, frame)
    switch, outputs = replay(
        lab,
        rules,
        reference,
        {port: [frame for frame, _ in frames] for port, frames in inputs.items()},
    )
    differ = {
        cookie: (switch.counted[cookie], reference.hits.get(cookie, 0))
        for cookie in switch.counted
        if switch.counted[cookie] != reference.hits.get(cookie, 0)
    }
    for cookie, (got, right) in differ.items():
        print(f"{got} frames met a rule that {right} should have met: {rules[cookie - 1]}")
    for port, frames in wanted.items():
        same(port, outputs[port], frames, flow_of, origin, reference)
    total = sum(len(frames) for frames in wanted.values())
    lab.note(
        f"seed {seed}: {len(rules)} rules, {sum(map(len, inputs.values()))} frames in, {total} "
        f"out, {len(reference.hits)} rules hit"
    )
    check(
        total > 1000 and len(reference.hits) > len(rules) / 4,
        "the generated case exercises too little",
    )
    return switch, reference


def replay(lab, rules, reference, inputs):
    """Runs the switch on the frames; returns it and the frames that came out of each port."""
    switch = lab.switch()
    switch.enable_dpdk(cores=1)
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13")
    # The rules name ports that do not exist yet; the inputs come last, so that no frame arrives
    # before its output is there.
    switch.flows(
        "table=0,priority=65535,dl_type=0x88b6,actions=drop", *map(str, rules), version="OpenFlow13"
    )
    files = {port: os.path.join(lab.directory, f"out{port}.pcap") for port in (1, 2, 3, 4, 5)}
    for port in (3, 4, 5):
        switch.port(
            f"p{port}",
            "type=dpdk",
            f"options:dpdk-devargs=net_pcap{port},tx_pcap={files[port]}",
            f"ofport_request={port}",
        )
    for port in (1, 2):
        source = os.path.join(lab.directory, f"in{port}.pcap")
        oracle.write_pcap(source, [FORERUNNER] * FORERUNNERS + inputs[port])
        switch.port(
            f"p{port}",
            "type=dpdk",
            f"options:dpdk-devargs=net_pcap{port},rx_pcap={source},tx_pcap={files[port]}",
            f"ofport_request={port}",
        )

        def all_in():
            received = switch.counters()[f"p{port}"]["rx"]
            return received["pkts"] + (received["drop"] or 0) >= len(inputs[port]) + FORERUNNERS

        # Open vSwitch loses frames while another port is added.
        wait_for("all frames are in", all_in, 20)
    # Open vSwitch brings its rules' counters up to date twice a second.
    end = time.monotonic() + 5
    while True:
        switch.counted = switch.rule_packets("br0", "OpenFlow13")
        if (
            all(reference.hits.get(cookie, 0) == count for cookie, count in switch.counted.items())
            or time.monotonic() > end
        ):
            break
        time.sleep(0.1)
    switch.ports_counted = switch.counters()
    switch.stop()  # closes the files
    return switch, {port: oracle.read_pcap(path) for port, path in files.items()}


def same(port, got, wanted, flow_of, origin, reference):
    """The same frames, and those of one flow in the same order."""

    def by_flow(frames):
        flows = {}
        for frame in frames:
            flows.setdefault(flow_of.get(frame), []).append(frame)
        return flows

    ours, theirs = by_flow(got), by_flow(wanted)
    strange = ours.pop(None, [])
    missing = [frame for frame in wanted if frame not in set(got)]
    if strange or missing:
        lines = [
            (
                f"port {port}: {len(strange)} of {len(got)} frames are wrong, {len(missing)} of "
                f"{len(wanted)} are missing"
            )
        ]
        for frame in missing[:2]:
            lines += [
                f"missing: {frame[:120].hex()} ({len(frame)} bytes)",
                f"   from: {origin[frame][1][:120].hex()} at port {origin[frame][0]}",
            ]
            lines += [
                f"  meets: {rule}" for rule in reference.trail(origin[frame][1], origin[frame][0])
            ]
            near = [
                other for other in strange if len(other) == len(frame) and other[-4:] == frame[-4:]
            ]
            if near:
                nearest = min(near, key=lambda other: sum(a != b for a, b in zip(other, frame)))
                lines.append(f" rather: {nearest[:120].hex()}")
        for frame in strange[:2]:
            lines.append(f"  wrong: {frame[:120].hex()} ({len(frame)} bytes)")
        raise Failure("\n".join(lines))
    for flow, frames in theirs.items():
        if ours[flow] != frames:
            raise Failure(
                f"port {port}: {len(ours[flow])} frames of a flow came out instead of "
                f"{len(frames)}, or in another order; the first: {frames[0][:80].hex()}"
            )


@test(timeout=90, dpdk=True)
def every_byte_as_the_rules_say(lab):
    """400 rules in five tables that edit, push, pop, move and resubmit; 6000 valid frames."""
    switch, reference = compare(lab, SEED, True, False, 400, 400, 15)
    equal(
        switch.counted,
        {cookie: reference.hits.get(cookie, 0) for cookie in switch.counted},
        "packets counted on each rule",
    )


@test(timeout=90, dpdk=True)
def another_seed(lab):
    """The same with fewer rules and other frames."""
    compare(lab, SEED + 1, True, False, 120, 500, 8)


@test(timeout=90, dpdk=True)
def truncated_and_lying_frames(lab):
    """Frames that are cut off or lie about lengths and protocols match only what they really have,
    and are forwarded whole."""
    switch, _ = compare(lab, SEED + 2, False, True, 300, 600, 10)
    short = switch.ports_counted
    check(
        all(
            counter is None or counter >= 0
            for port in short.values()
            for counter in port["rx"].values()
        ),
        "a counter ran backwards",
    )
