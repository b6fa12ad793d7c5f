"""The same scenario on Open vSwitch and on the daemon under test: what the tools show differs only
by what is explained in test_same_as_ovs_differences.txt beside this file."""

import os
import re
import time

from differences import hold
from harness import OPEN_VSWITCH, Skip, ethernet, switchd_command, test, wait_for

EXPLAINED = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "test_same_as_ovs_differences.txt"
)


def scenario(lab, name, command=None):
    """Bridges, ports of several kinds, rules, an exact number of frames; returns {command: what it
    printed}."""
    switch = lab.switch(name, command=command)
    switch.bridge(
        "br0",
        "other_config:hwaddr=02:aa:00:00:00:01",
        "other_config:datapath-id=00000000000000b0",
        "other_config:mac-aging-time=600",
    )
    switch.bridge(
        "br1",
        "other_config:hwaddr=02:aa:00:00:00:02",
        "other_config:datapath-id=00000000000000b1",
        "fail_mode=secure",
    )
    raw = []
    for number, settings in ((1, ["tag=10"]), (2, ["tag=10"]), (3, ["trunks=10,20"]), (4, [])):
        host = lab.namespace(f"{name}{number}").quiet()
        switch.pair(host, f"p{number}")
        for end, device, digit in ((switch.namespace, f"p{number}", 1), (host, "eth0", 2)):
            end.run(["ip", "link", "set", device, "address", f"02:bb:00:00:0{digit}:0{number}"])
        switch.port(f"p{number}", f"ofport_request={number}", bridge="br0", port_settings=settings)
        raw.append(host.raw())
    switch.vsctl(
        "add-port",
        "br0",
        "in0",
        "--",
        "set",
        "Interface",
        "in0",
        "type=internal",
        "ofport_request=10",
        'mac="02:aa:00:00:00:10"',
        "mtu_request=1400",
    )
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
        "ofport_request=11",
        "--",
        "add-port",
        "br1",
        "pa1",
        "--",
        "set",
        "Interface",
        "pa1",
        "type=patch",
        "options:peer=pa0",
        "ofport_request=1",
    )
    missing = switch.vsctl(
        "add-port", "br0", "nodev", "--", "set", "Interface", "nodev", "ofport_request=12", ok=False
    )
    switch.vsctl(
        "add-port", "br0", "strange", "--", "set", "Interface", "strange", "type=strange", ok=False
    )
    switch.vsctl("add-port", "br0", "lo", ok=False)
    switch.vsctl(
        "add-port", "br0", "ta0", "--", "set", "Interface", "ta0", "type=tap", "ofport_request=13"
    )
    switch.vsctl(
        "add-port",
        "br0",
        "pa2",
        "--",
        "set",
        "Interface",
        "pa2",
        "type=patch",
        "ofport_request=15",
        ok=False,
    )
    switch.vsctl("set", "Bridge", "br0", "flood_vlans=30")
    switch.flows(
        "table=0,priority=10,cookie=0x10,in_port=1,ip,nw_dst=10.0.0.0/8,actions=mod_nw_tos:32,"
        "resubmit(,2)",
        "table=0,priority=10,cookie=0x11,in_port=3,dl_vlan=20,actions=strip_vlan,output:4",
        "table=0,priority=5,cookie=0x12,arp,idle_timeout=600,hard_timeout=1200,actions=NORMAL",
        "table=0,priority=5,cookie=0x13,ipv6,ipv6_src=fd00::/16,actions=drop",
        "table=0,priority=4,cookie=0x14,tcp,tp_dst=80,reg3=0x5/0xff,"
        "actions=load:0x7->NXM_NX_REG1[0..7],move:NXM_OF_IP_SRC[]->NXM_NX_REG2[],output:2,IN_PORT",
        "table=0,priority=0,cookie=0x15,actions=NORMAL",
        "table=2,priority=1,cookie=0x20,dl_src=02:00:00:00:00:00/ff:ff:ff:ff:ff:00,"
        "actions=dec_ttl,output:2,CONTROLLER:128",
    )
    switch.flows(
        "cookie=0x30,in_port=1,actions=drop",
        "table=3,cookie=0x31,vlan_tci=0x1000/0x1000,actions=set_field:5->reg0,mod_vlan_vid:7,"
        "output:1",
        bridge="br1",
    )
    send(raw)

    def settled():
        before = switch.ofctl("dump-ports", "br0"), switch.ofctl("--no-names", "dump-flows", "br0")
        time.sleep(1.2)
        after = switch.ofctl("dump-ports", "br0"), switch.ofctl("--no-names", "dump-flows", "br0")
        return re.sub(r"(duration|age)=[\d.]+s?", "", str(before)) == re.sub(
            r"(duration|age)=[\d.]+s?", "", str(after)
        )

    wait_for("the counters stand still", settled)
    wait_for(
        "the database has the statistics",
        lambda: switch.get("Interface", "p1", "statistics").get("rx_packets") == 8,
        15,
    )
    # Only Open vSwitch is given this setting (see harness.py).
    switch.vsctl(
        "--if-exists", "remove", "Open_vSwitch", ".", "other_config", "userspace-tso-enable"
    )
    # A link that comes.
    switch.namespace.quiet().run("ip link set ta0 up")
    wait_for("a link has come", lambda: switch.get("Interface", "ta0", "link_state") == "up", 15)
    texts = {"add-port nodev": normal("add-port", missing.stderr, switch)}
    for words in (
        ["ovs-vsctl", f"--db={switch.db}", "show"],
        ["ovs-vsctl", f"--db={switch.db}", "list", "Bridge"],
        ["ovs-vsctl", f"--db={switch.db}", "list", "Port"],
        ["ovs-vsctl", f"--db={switch.db}", "list", "Interface"],
        ["ovs-vsctl", f"--db={switch.db}", "list", "Open_vSwitch"],
        ["ovs-ofctl", "show", "br0"],
        ["ovs-ofctl", "-O", "OpenFlow13", "show", "br1"],
        ["ovs-ofctl", "dump-flows", "br0"],
        ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", "br0"],
        ["ovs-ofctl", "dump-flows", "br1"],
        ["ovs-ofctl", "dump-aggregate", "br0"],
        ["ovs-ofctl", "dump-ports", "br0"],
        ["ovs-ofctl", "-O", "OpenFlow13", "dump-ports", "br0"],
        ["ovs-ofctl", "dump-ports-desc", "br0"],
        ["ovs-ofctl", "dump-desc", "br0"],
        ["ovs-ofctl", "dump-tables", "br0"],
        ["ovs-ofctl", "-O", "OpenFlow13", "dump-tables", "br0"],
        ["ovs-ofctl", "dump-ports", "br0", "p1"],
        ["ovs-ofctl", "get-frags", "br0"],
        ["ovs-appctl", "fdb/show", "br0"],
        ["ovs-appctl", "dpif/show"],
        ["ovs-appctl", "ofproto/list"],
        ["ovs-appctl", "bridge/dump-flows", "br1"],
        ["ovs-appctl", "fdb/show", "nobridge"],
        ["ovs-appctl", "nocommand"],
        ["ovs-appctl", "vlog/list"],
        ["ovs-appctl", "fdb/show"],
        ["ovs-vsctl", f"--db={switch.db}", "add-br", "br0"],
        ["ovs-vsctl", f"--db={switch.db}", "list-ports", "br0"],
        ["ovs-ofctl", "add-flow", "br0", "table=255,actions=drop"],
        ["ovs-ofctl", "add-flow", "br0", "actions=output:99"],
        [
            "ovs-ofctl",
            "-O",
            "OpenFlow13",
            "add-flow",
            "br0",
            "check_overlap,priority=0,actions=drop",
        ],
        ["ovs-ofctl", "mod-port", "br0", "99", "up"],
        ["ovs-ofctl", "dump-ports", "br0", "99"],
        ["ovs-ofctl", "-O", "OpenFlow13", "dump-ports", "br0", "99"],
        ["ovs-ofctl", "-O", "OpenFlow13", "dump-ports-desc", "br0"],
        ["ovs-ofctl", "-O", "OpenFlow13", "queue-stats", "br0"],
    ):
        done = switch.tool(*words, ok=False)
        shown = " ".join(word for word in words if not word.startswith("--db="))
        texts[shown] = normal(
            shown,
            done.stdout
            + done.stderr
            + (f"ended with {done.returncode}\n" if done.returncode else ""),
            switch,
        )
    switch.stop()
    return texts


def send(raw):
    """The frames of the scenario: each kind once or a few times, so that every counter has a figure
    of its own."""
    one, two, three = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
    ip = (
        bytes.fromhex("4500001c0000000040110000")
        + bytes([10, 0, 0, 1, 10, 0, 0, 2])
        + bytes.fromhex("0001000200080000")
    )
    everybody = "ff:ff:ff:ff:ff:ff"
    plan = (
        [(0, ethernet(everybody, one, 0x88B5, bytes(50)))] * 3
        + [(1, ethernet(one, two, 0x88B5, bytes(60)))] * 2
        + [(0, ethernet(two, one, 0x88B5, bytes(70)))] * 4
    )
    plan += [(0, ethernet(two, one, 0x0800, ip + bytes(30)))]
    plan += [
        (2, ethernet(one, three, 0x88B5, bytes(50), [(0x8100, 10)])),
        (2, ethernet(everybody, three, 0x88B5, bytes(50), [(0x8100, 20)])),
        (3, ethernet(everybody, three, 0x86DD, b"\x60" + bytes(60))),
    ]
    plan += [(2, ethernet("01:80:c2:00:00:00", three, 0x0027, bytes(39)))]
    for port, frame in plan:
        raw[port].send(frame)
        time.sleep(0.02)


def normal(shown, text, switch):
    """The text without what differs between two runs of the same daemon."""
    text = text.replace(switch.directory, "RUNDIR")
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"(duration|idle_age)=[\d.]+s?", r"\1=T", text)
    # Told only where it differs from the duration, by the second in which a rule was changed.
    text = re.sub(r"hard_age=\d+, ", "", text)
    text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", text)
    text = re.sub(r"(ifindex\s*: )\d+", r"\1N", text)
    text = re.sub(r"\b(cur_cfg|next_cfg)(\s*: )\d+", r"\1\2N", text)
    text = re.sub(r"duration (\w+)=", r"\1=", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z\|\d+\|", "", text)
    text = re.sub(
        r"\b(?!02:(?:00|aa|bb))[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", "MAC", text
    )  # drawn at random
    if shown == "ovs-vsctl show" or "dump-ports" in shown or " show br" in shown:
        text = in_order(text.splitlines())
    if "fdb/show" in shown:
        text = re.sub(r"^(.*\S)\s+\d+$", r"\1 AGE", text, flags=re.M)
        text = "\n".join(sorted(text.splitlines()))
    if shown.endswith((" list Bridge", " list Port", " list Interface")):
        # Records in the order of their names, not of their UUIDs.
        records = [record.strip() for record in text.split("\n\n")]
        text = "\n\n".join(
            sorted(records, key=lambda record: re.search(r"^name\s*: (.*)$", record, re.M).group(1))
        )
        text = re.sub(r"\[[^]\n]*UUID[^]\n]*\]", "[UUIDS]", text)
    if "dump-flows" in shown:
        text = "\n".join(sorted(text.splitlines()))
    return re.sub(r"[ \t]+$", "", text, flags=re.M).strip() + "\n"


def in_order(lines):
    """An indented outline with the entries of every level sorted, each with what stands below
    it."""
    entries = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if not entries or depth <= len(entries[0][0]) - len(entries[0][0].lstrip()):
            entries.append([line])
        else:
            entries[-1].append(line)
    return "".join(
        entry[0] + "\n" + (in_order(entry[1:]) if entry[1:] else "") for entry in sorted(entries)
    )


@test(timeout=120)
def outputs_differ_only_as_explained(lab):
    """vsctl, ofctl and appctl on both daemons, line by line."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = scenario(lab, "r", switchd_command("ovs")), scenario(lab, "t")
    for shown, text in got.items():
        with open(
            os.path.join(lab.directory, re.sub(r"\W+", "-", shown) + ".txt"), "w", encoding="utf-8"
        ) as file:
            file.write(f"# Open vSwitch\n{wanted[shown]}\n# this daemon\n{text}")
    hold(lab, EXPLAINED, [(shown, reference, got[shown]) for shown, reference in wanted.items()])
