"""Meters: what the tools say of them, as Open vSwitch says it; and what they do to packets, on a
stopped clock."""

import os
import re
import time

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

VERSIONS = ("OpenFlow13", "OpenFlow14", "OpenFlow15")


def mod(switch, command, meter, *, version="OpenFlow13", bridge="br0"):
    """An ovs-ofctl meter command; what it printed and how it ended."""
    done = switch.tool(
        "ovs-ofctl", "-O", version, command, bridge, *([meter] if meter else []), ok=False
    )
    return clean(done.stdout + done.stderr) + f"({done.returncode})"


def clean(text):
    text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", text)
    text = re.sub(r"(duration|idle_age)[:=][\d.]+s?", r"\1=T", text)
    # Open vSwitch lists meters in the order of their hashes.
    head, _, rest = text.partition("\n")
    if head.startswith(("OFPST_METER reply", "OFPST_METER_CONFIG reply")):
        text = (
            head + "\n" + "\n\n".join(sorted(block.strip() for block in rest.split("\n\n"))) + "\n"
        )
    return text


def told(lab, name, command=None):
    """What the tools print along a story of meters that come, change and go: [(command,
    output)]."""
    switch = lab.switch(name, command=command)
    switch.bridge(
        "br0",
        "fail_mode=secure",
        "protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15",
    )
    story = []

    def step(command, meter=None, version="OpenFlow13"):
        story.append(
            (f"-O {version} {command} {meter or ''}", mod(switch, command, meter, version=version))
        )

    def look():
        for version in VERSIONS:
            for command in ("dump-meters", "meter-stats", "dump-flows"):
                step(command, version=version)

    for version in VERSIONS:
        step("meter-features", version=version)
    look()
    step("add-meter", "meter=1 kbps band=type=drop rate=1000")
    step("add-meter", "meter=2 pktps burst band=type=drop rate=100 burst_size=20", "OpenFlow14")
    step(
        "add-meter",
        "meter=3 kbps burst stats bands=type=drop rate=1000 burst_size=5 type=drop rate=2000 "
        "burst_size=6",
        "OpenFlow15",
    )
    step("add-meter", "meter=4 kbps burst band=type=drop rate=7")
    step("add-meter", "meter=1 kbps band=type=drop rate=1")
    step("add-meter", "meter=5 kbps pktps band=type=drop rate=1")
    step("add-meter", "meter=6 kbps band=type=drop rate=0")
    step("add-meter", "meter=7 band=type=drop rate=9")
    step("add-meter", "meter=4294901760 kbps band=type=drop rate=3")
    step("add-meter", "meter=4294901761 kbps band=type=drop rate=3")
    step("add-meter", "meter=0 kbps band=type=drop rate=3")
    step("add-meter", "meter=controller pktps stats band=type=drop rate=10")
    step("add-meter", "meter=slowpath pktps stats band=type=drop rate=10")
    step("add-meter", "meter=all pktps stats band=type=drop rate=10")
    step("add-meter", "meter=8 kbps")
    step(
        "add-meter",
        "meter=9 kbps bands=" + " ".join(f"type=drop rate={rate}" for rate in range(1, 9)),
    )
    step(
        "add-meter",
        "meter=10 kbps bands=" + " ".join(f"type=drop rate={rate}" for rate in range(1, 10)),
    )
    look()
    step("mod-meter", "meter=1 pktps band=type=drop rate=5")
    step("mod-meter", "meter=77 pktps band=type=drop rate=5")
    step("mod-meter", "meter=2 kbps pktps band=type=drop rate=5")
    for version in VERSIONS:
        step("add-flow", f"in_port={version[-1]},actions=meter:1,output:2", version)
    step("add-flow", "in_port=7,actions=meter:55,output:2")
    step("add-flow", "in_port=7,actions=meter:55,output:2", "OpenFlow15")
    step("add-flow", "in_port=8,actions=meter:2,output:2", "OpenFlow15")
    step("add-flow", "in_port=9,actions=meter:2,meter:3,output:2", "OpenFlow15")
    step("add-flow", "in_port=10,actions=output:3,meter:3,output:2", "OpenFlow15")
    step("add-flow", "in_port=11,actions=meter:2,meter:3,output:2", "OpenFlow13")
    step("add-flow", "in_port=12,actions=controller(meter_id=3)")
    step("add-flow", "in_port=13,actions=controller(meter_id=99)")
    step("add-flow", "in_port=14,actions=write_actions(meter:1)", "OpenFlow15")
    step("add-flow", "in_port=15,actions=meter:0,output:1", "OpenFlow15")
    step("add-flow", "in_port=15,actions=meter:4294967294,output:1", "OpenFlow13")
    step("add-flow", "in_port=16,actions=meter:1,output:1", "OpenFlow10")
    step("add-flow", "in_port=17,actions=meter:1", "OpenFlow13")
    step(
        "add-flow",
        "in_port=18,actions=meter:1,clear_actions,write_actions(output:1),goto_table:1",
        "OpenFlow13",
    )
    step(
        "add-flow",
        "in_port=19,actions=meter:1,clear_actions,write_actions(output:1),goto_table:1",
        "OpenFlow15",
    )
    look()
    for version in ("OpenFlow10", "OpenFlow11", "OpenFlow12"):
        step("dump-flows", version=version)
    for meter in ("meter=1", "meter=2", "meter=99", "meter=controller", "meter=all", "meter=0"):
        step("dump-meters", meter)
        step("meter-stats", meter)
    step("del-meters", "meter=2")
    step("del-meters", "meter=99")
    step("del-meters", "meter=0")
    step("del-meters", "meter=controller")
    look()
    step("del-meters")
    look()
    step("dump-meters", version="OpenFlow12")
    step("add-meter", "meter=1 kbps band=type=drop rate=1000", version="OpenFlow11")
    switch.stop()
    return story


@test(timeout=120)
def told_as_open_vswitch(lab):
    """add-, mod-, del-, dump-meters, meter-stats and meter-features, and rules with meters, in 1.3,
    1.4 and 1.5."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = told(lab, "r", switchd_command("ovs")), told(lab, "t")
    if os.environ.get("SHOW"):
        open(os.environ["SHOW"], "w").write(
            "\n".join(f"$ {command}\n{text}" for command, text in wanted)
        )
    wrong = [
        f"{command}\n  Open vSwitch: {reference}\n  this daemon:  {text}"
        for (command, reference), (_, text) in zip(wanted, got)
        if explained(command, reference) != text
    ]
    if wrong:
        raise Failure("\n".join(wrong))


def explained(command, reference):
    """What is to be told where Open vSwitch tells the reference."""
    # Its datapath drops only; here a band can also remark.
    if "meter-features" in command:
        return reference.replace("band_types: drop\n", "band_types: drop dscp_remark\n")
    return reference


def frame(length, dscp=0, last=b""):
    """An IPv4 packet of so many bytes."""
    head = (
        bytes([0x45, dscp << 2])
        + (length - 14).to_bytes(2, "big")
        + bytes.fromhex("000000004011")
        + b"\0\0"
        + bytes([10, 0, 0, 1, 10, 0, 0, 2])
    )
    words = [int.from_bytes(head[at : at + 2], "big") for at in range(0, 20, 2)]
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + (0xFFFF - total).to_bytes(2, "big") + head[12:]
    return ethernet(
        "02:00:00:00:00:02",
        "02:00:00:00:00:01",
        0x0800,
        head + bytes(length - 34 - len(last)) + last,
    )


def metered_switch(lab):
    """A switch with two hosts' raw sockets at ports 1 and 2, and a clock that stands."""
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge(
        "br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15"
    )
    sockets = switch.raw_hosts()
    switch.appctl("time/stop")
    return switch, *sockets


def stats(switch, meter):
    """(packets in, bytes in, [(packets, bytes) of each band])."""
    text = mod(switch, "meter-stats", f"meter={meter}")
    head = re.search(r"packet_in_count:(\d+) byte_in_count:(\d+)", text)
    bands = re.findall(r"^\d+: packet_count:(\d+) byte_count:(\d+)", text, re.M)
    return int(head[1]), int(head[2]), [(int(packets), int(size)) for packets, size in bands]


@test(timeout=60)
def rates_are_exact_on_a_stopped_clock(lab):
    """Packets and bits above the rate are dropped, the burst passes, and time gives back what the
    rate says."""
    switch, one, two = metered_switch(lab)
    mod(switch, "add-meter", "meter=1 pktps burst stats band=type=drop rate=10 burst_size=5")
    mod(switch, "add-meter", "meter=2 kbps burst stats band=type=drop rate=8 burst_size=16")
    switch.flows(
        "in_port=1,nw_tos=0,ip,actions=meter:1,output:2",
        "in_port=1,nw_tos=32,ip,actions=meter:2,output:2",
        version="OpenFlow13",
    )

    def passed(packets):
        for packet in packets:
            one.send(packet)
        wait_for(
            "the meters have met them",
            lambda: stats(switch, 1)[0] + stats(switch, 2)[0] == sent[0] + len(packets),
        )
        sent[0] += len(packets)
        return len(two.receive(0.3))

    sent = [0]
    equal(passed([frame(100)] * 12), 5, "packets of the burst")
    switch.appctl("time/warp", "300")
    equal(passed([frame(100)] * 12), 3, "packets after 300 ms at 10 a second")
    switch.appctl("time/warp", "100000")
    equal(passed([frame(100)] * 12), 5, "packets after a long rest")
    # 16 kbit are 16 packets of 125 bytes; 8 kbit/s are one a 125 ms.
    equal(passed([frame(125, dscp=8)] * 30), 16, "packets of the burst of bits")
    switch.appctl("time/warp", "250")
    equal(passed([frame(125, dscp=8)] * 30), 2, "packets after 250 ms at 8 kbit/s")
    equal(stats(switch, 1), (36, 3600, [(23, 2300)]), "counts of the meter of packets")
    equal(stats(switch, 2), (60, 7500, [(42, 5250)]), "counts of the meter of bits")
    drops = switch.appctl("sluice/drops")
    check(re.search(r"\bmeter\D+65\b", drops), "no 65 drops by meters in", drops)
    # Every packet met its rule.
    rules = switch.ofctl("-O", "OpenFlow13", "dump-flows", "br0")
    equal(sum(map(int, re.findall(r"n_packets=(\d+)", rules))), 96, "packets of the rules")
    # A changed meter begins anew; a deleted one takes its rules along.
    mod(switch, "mod-meter", "meter=1 pktps burst stats band=type=drop rate=10 burst_size=2")
    equal(stats(switch, 1), (0, 0, [(0, 0)]), "counts of a changed meter")
    sent[0] = stats(switch, 2)[0]
    equal(passed([frame(100)] * 12), 2, "packets of the new burst")
    mod(switch, "del-meters", "meter=1")
    equal(len(switch.rules("br0", "-O", "OpenFlow13")), 1, "rules left")


@test(timeout=60)
def classes_are_lowered(lab):
    """A DSCP remark band raises the drop precedence of assured forwarding classes and leaves
    others; the checksum stays right."""
    switch, one, two = metered_switch(lab)
    mod(
        switch,
        "add-meter",
        "meter=1 pktps burst bands=type=dscp_remark rate=1 burst_size=1 prec_level=1 type=drop "
        "rate=2 burst_size=4",
    )
    switch.flows("in_port=1,ip,actions=meter:1,output:2", version="OpenFlow13")
    for dscp in (10, 10, 14, 46, 10):
        one.send(frame(100, dscp))
        time.sleep(0.02)
    got = two.receive(0.5)
    equal([packet[15] >> 2 for packet in got], [10, 12, 14, 46], "code points that arrived")
    for packet in got:
        total = sum(int.from_bytes(packet[at : at + 2], "big") for at in range(14, 34, 2))
        equal((total & 0xFFFF) + (total >> 16), 0xFFFF, "the header's checksum")
