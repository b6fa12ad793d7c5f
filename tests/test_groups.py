"""Groups: what the tools say of them, as Open vSwitch says it; and what they do to packets, also
when a link goes."""

import os
import re
import time

from harness import OPEN_VSWITCH, Skip, check, equal, ethernet, switchd_command, test, wait_for

VERSIONS = ("OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15")
ALL = ",".join(VERSIONS)


def group(switch, command, *words, version="OpenFlow13", options=(), stdin=None):
    """An ovs-ofctl group command; what it printed, with groups in the order of their numbers, and
    how it ended."""
    done = switch.tool(
        "ovs-ofctl", "-O", version, *options, command, "br0", *words, ok=False, stdin=stdin
    )
    text = re.sub(
        r"xid=0x[0-9a-f]+", "xid=X", (done.stdout + done.stderr).replace(switch.directory, "RUNDIR")
    )
    text = re.sub(r"duration=[\d.]+s?", "duration=T", text)
    text = re.sub(r"^\S+Z\|\d+\|", "", text, flags=re.M)
    if command.startswith("dump"):
        lines = text.splitlines()
        text = (
            "\n".join(lines[:1] + sorted(lines[1:])) + "\n"
            if command != "dump-group-features"
            else text
        )
    return text + f"({done.returncode})"


def told(lab, name, command=None):
    """What the tools print along a story of groups that come, change and go: [(command,
    output)]."""
    switch = lab.switch(name, command=command)
    switch.bridge("br0", "fail_mode=secure", f"protocols={ALL}")
    story = []

    def step(*words, **options):
        story.append(
            (
                " ".join([options.get("version", "OpenFlow13"), *words]),
                group(switch, *words, **options),
            )
        )

    def look(stats=True):
        for version in VERSIONS:
            step("dump-groups", version=version)
            if stats:
                step("dump-group-stats", version=version)

    for version in VERSIONS:
        step("dump-group-features", version=version)
    look()
    step("add-group", "group_id=1,type=all,bucket=output:1,bucket=output:2")
    step("add-group", "group_id=1,type=all,bucket=output:1")
    step(
        "add-group",
        "group_id=2,type=select,bucket=weight:5,output:1,bucket=weight:0,actions=output:2,"
        "bucket=watch_port:1,output:3",
        version="OpenFlow11",
    )
    step("add-group", "group_id=3,type=indirect,bucket=dec_ttl,output:2", version="OpenFlow12")
    step(
        "add-group",
        "group_id=4,type=ff,bucket=watch_port:1,output:1,bucket=watch_group:77,output:2",
        version="OpenFlow14",
    )
    step("add-group", "group_id=5,type=all,bucket=group:99", version="OpenFlow10")
    step("add-group", "group_id=6,type=all")
    step(
        "add-group",
        "group_id=7,type=all,bucket=controller,bucket=drop,bucket=in_port,bucket=flood,"
        "bucket=resubmit(,3)",
    )
    step(
        "add-group",
        "group_id=8,type=select,selection_method=hash,selection_method_param=5,fields(eth_dst,"
        "ip_dst=255.255.255.0,reg0),bucket=bucket_id=3,weight:5,output:1,bucket=bucket_id=1,"
        "output:2",
        version="OpenFlow15",
    )
    step(
        "add-group",
        "group_id=9,type=select,selection_method=dp_hash,selection_method_param=4294967297,"
        "bucket=output:1",
        version="OpenFlow15",
    )
    step(
        "add-group",
        "group_id=10,type=select,selection_method=hash,fields=ip_dst,bucket=output:1",
        version="OpenFlow10",
    )
    step(
        "add-group",
        "group_id=11,type=select,selection_method=foo,bucket=output:1",
        version="OpenFlow15",
    )
    step(
        "add-group",
        "group_id=11,type=all,selection_method=hash,bucket=output:1",
        version="OpenFlow15",
    )
    step(
        "add-group",
        "group_id=11,type=all,bucket=bucket_id=3,output:1,bucket=bucket_id=3,output:2",
        version="OpenFlow15",
    )
    step("mod-group", "group_id=99,type=all,bucket=output:3")
    step("mod-group", "group_id=12,type=all,bucket=output:3", options=["--may-create"])
    step("mod-group", "group_id=12,type=indirect,bucket=output:4", options=["--may-create"])
    look()
    for words in (
        "group_id=1,command_bucket_id=first,bucket=bucket_id=9,output:3",
        "group_id=1,command_bucket_id=0,bucket=bucket_id=12,output:1",
        (
            "group_id=1,command_bucket_id=last,bucket=bucket_id=13,output:1,bucket=bucket_id=14,"
            "output:2"
        ),
        "group_id=1,command_bucket_id=55,bucket=bucket_id=15,output:1",
        "group_id=1,command_bucket_id=last,bucket=bucket_id=9,output:1",
        "group_id=77,command_bucket_id=last,bucket=bucket_id=9,output:1",
        "group_id=2,command_bucket_id=last,bucket=bucket_id=9,weight=7,output:1",
    ):
        step("insert-buckets", words, version="OpenFlow15")
    look()
    for words in (
        "group_id=1,command_bucket_id=55",
        "group_id=1,command_bucket_id=12",
        "group_id=1,command_bucket_id=first",
        "group_id=1,command_bucket_id=last",
        "group_id=2,command_bucket_id=all",
        "group_id=2,command_bucket_id=first",
        "group_id=77,command_bucket_id=all",
    ):
        step("remove-buckets", words, version="OpenFlow15")
    look()
    step("dump-groups", "4", version="OpenFlow15")
    step("dump-groups", "98", version="OpenFlow15")
    step("dump-group-stats", "group_id=3", version="OpenFlow15")
    step("dump-group-stats", "group_id=98")
    step("add-flow", "actions=group:98")
    step("add-flow", "in_port=1,actions=output:2,group:1")
    step("add-flow", "in_port=2,actions=write_actions(group:1)")
    step("add-flow", "in_port=3,actions=group:3")
    step("dump-flows", "out_group=1")
    step("dump-group-stats")
    step("del-groups", "group_id=98")
    step("del-groups", "group_id=1")
    step("dump-flows")
    bundle = [
        "group add group_id=20,type=all,bucket=output:1",
        "flow add in_port=7,actions=group:20",
    ]
    step("bundle", "-", version="OpenFlow14", stdin="\n".join(bundle) + "\n")
    step("dump-groups", "20", version="OpenFlow15")
    step("dump-flows", "in_port=7")
    # Open vSwitch 3.1 does not survive a bundle that fails behind a group that goes with rules, nor
    # a rule that names a group twice.
    bundle = [
        "group modify group_id=20,type=indirect,bucket=output:2",
        "group add group_id=21,type=all,bucket=output:1",
        "flow add in_port=7,actions=group:22",
    ]
    step("bundle", "-", version="OpenFlow14", stdin="\n".join(bundle) + "\n")
    look(stats=False)
    step("del-groups")
    look()
    step("dump-flows")
    switch.stop()
    return story


@test(timeout=240)
def the_tools_say_what_they_say_of_open_vswitch(lab):
    """Every group command of ovs-ofctl in every version, line by line."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = told(lab, "r", switchd_command("ovs")), told(lab, "t")
    differing = [
        f"{what}\n- {reference}\n+ {text}"
        for (what, reference), (_, text) in zip(wanted, got, strict=True)
        if reference != text
    ]
    check(
        not differing,
        f"{len(differing)} of {len(wanted)} differ (- Open vSwitch, + this daemon):\n"
        + "\n".join(differing),
    )
    lab.note(f"{len(wanted)} commands")


def bench(lab, hosts=4):
    """A bridge with raw sockets on the far ends of its ports 1 to `hosts`."""
    switch = lab.switch("s")
    switch.bridge("br0", "fail_mode=secure", f"protocols={ALL}")
    return switch, [None, *switch.raw_hosts(hosts)]


def frame(number, size=60):
    """A TCP segment of connection `number`."""
    ip = bytes.fromhex("450000280000000040060000") + bytes(
        [10, 0, number >> 8, number & 255, 10, 0, 0, 250]
    )
    payload = (
        ip
        + (1024 + number).to_bytes(2, "big")
        + bytes([0, 80])
        + bytes(8)
        + bytes([0x50, 0x10])
        + bytes(6)
    )
    return ethernet(
        "02:00:00:00:00:02", "02:00:00:00:00:01", 0x0800, payload + bytes(size - 14 - len(payload))
    )


def counters(switch, number):
    """(packets, [packets of each bucket]) of a group."""
    text = group(switch, "dump-group-stats", f"group_id={number}")
    found = [int(count) for count in re.findall(r"packet_count=(\d+)", text)]
    return found[0], found[1:]


def received(raw, wanted, seconds=5):
    def is_ours(data):
        return data[12:14] == b"\x08\x00"

    return raw.receive(seconds, wanted=is_ours, until=wanted) + raw.receive(0.2, wanted=is_ours)


@test(timeout=90)
def groups_send_what_they_should(lab):
    """All, indirect and select groups, chained and with changes of the packet; counters are
    exact."""
    switch, raw = bench(lab)
    group(
        switch,
        "add-group",
        "group_id=1,type=all,bucket=mod_dl_src:02:00:00:00:00:99,output:2,bucket=output:3",
    )
    group(switch, "add-group", "group_id=2,type=indirect,bucket=group:1")
    switch.flows("in_port=1,actions=group:2,output:4", version="OpenFlow13")
    raw[1].send(*[frame(number) for number in range(20)])
    changed, plain, after = (received(raw[port], 20) for port in (2, 3, 4))
    equal((len(changed), len(plain), len(after)), (20, 20, 20), "frames out of the ports")
    equal(
        {data[6:12].hex() for data in changed},
        {"020000000099"},
        "the source that the first bucket writes",
    )
    equal({data[6:12].hex() for data in plain + after}, {"020000000001"}, "the source elsewhere")
    wait_for(
        "the counters are exact",
        lambda: (counters(switch, 1), counters(switch, 2)) == ((20, [20, 20]), (20, [20])),
    )
    # Select: each connection to one port, all ports used, weight 0 never.
    group(
        switch,
        "add-group",
        "group_id=3,type=select,bucket=weight:1,output:2,bucket=weight:0,actions=output:3,"
        "bucket=weight:1,output:4",
    )
    switch.flows("in_port=1,actions=group:3", version="OpenFlow13")
    raw[1].send(*[frame(number) for number in range(100) for _ in range(3)])
    two, four = received(raw[2], None, 1), received(raw[4], None, 1)
    equal(len(two) + len(four), 300, "frames out of the select group")
    of = [{data[26:30] for data in frames} for frames in (two, four)]
    check(not of[0] & of[1], "a connection was split")
    check(min(map(len, of)) >= 20, "nearly all connections in one bucket:", *map(len, of))
    equal(received(raw[3], None, 0.2), [], "frames to a bucket of weight 0")
    total, buckets = counters(switch, 3)
    equal((total, buckets), (300, [len(two), 0, len(four)]), "counters of the select group")


@test(timeout=90)
def a_link_that_goes_takes_its_bucket_out(lab):
    """Fast failover and select with watched ports: a dead link, a group that is watched, and
    back."""
    switch, raw = bench(lab)
    group(
        switch,
        "add-group",
        "group_id=1,type=ff,bucket=watch_port:2,output:2,bucket=watch_port:3,output:3",
    )
    group(
        switch,
        "add-group",
        "group_id=2,type=ff,bucket=watch_group:1,group:1,bucket=watch_port:4,output:4",
    )
    group(
        switch,
        "add-group",
        "group_id=3,type=select,bucket=watch_port:2,output:2,bucket=watch_port:3,output:3",
    )
    switch.flows(
        "in_port=1,dl_vlan=0xffff,actions=group:2",
        "in_port=1,dl_vlan=5,actions=strip_vlan,group:3",
        version="OpenFlow13",
    )

    def lands():
        """The ports that frames of one connection come out of."""
        for socket in raw[2:]:
            socket.drain()
        raw[1].send(frame(1))
        time.sleep(0.1)
        return [port for port in (2, 3, 4) if received(raw[port], None, 0.1)]

    wait_for("the first bucket takes all", lambda: lands() == [2])
    for device, expected in (("p2", [3]), ("p3", [4])):
        switch.namespace.run(f"ip link set {device} down")
        wait_for(
            f"{device} is down and {expected} has the packets",
            lambda wanted=expected: lands() == wanted,
        )
    switch.namespace.run("ip link set p2 up")
    wait_for("the first bucket has come back", lambda: lands() == [2])
    # One of two: all connections of the select group go where it is up.
    for socket in raw[2:]:
        socket.drain()
    raw[1].send(
        *[
            ethernet(
                "02:00:00:00:00:02", "02:00:00:00:00:01", 0x0800, frame(number)[14:], [(0x8100, 5)]
            )
            for number in range(30)
        ]
    )
    equal(
        (len(received(raw[2], 30)), received(raw[3], None, 0.2)),
        (30, []),
        "frames where one of two links is down",
    )
    # All gone: dropped and counted.
    for device in ("p2", "p3", "p4"):
        switch.namespace.run(f"ip link set {device} down")
    wait_for("nothing leaves", lambda: lands() == [])
    if not lab.is_ovs:
        wait_for("the drop has its name", lambda: "no_live_bucket" in switch.appctl("sluice/drops"))
