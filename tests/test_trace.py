"""`ofproto/trace` says of the same rules and packets what Open vSwitch says."""

import difflib
import os
import re

from harness import OPEN_VSWITCH, Failure, Skip, check, equal, switchd_command, test
from trace_scenarios import CALLS, FLOWS, METERS, OLD_FLOWS, PACKET_OUTS, PEER_FLOWS, TRACKED


def bridges(lab, name, command):
    """A switch with br0 and br1, which patch ports link."""
    switch = lab.switch(name, command=command, options=("--enable-dummy=override",))
    switch.vsctl(
        "add-br",
        "br0",
        "--",
        "set",
        "Bridge",
        "br0",
        "fail_mode=secure",
        "datapath_type=dummy",
        "protocols=[OpenFlow10,OpenFlow13,OpenFlow15]",
        "other_config:hwaddr=02:aa:00:00:00:01",
        "--",
        "add-br",
        "br1",
        "--",
        "set",
        "Bridge",
        "br1",
        "fail_mode=secure",
        "datapath_type=dummy",
        "other_config:hwaddr=02:aa:00:00:00:02",
    )
    for number in (1, 2, 3):
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
    switch.vsctl(
        "add-port",
        "br0",
        "pa",
        "--",
        "set",
        "Interface",
        "pa",
        "type=patch",
        "options:peer=pb",
        "ofport_request=11",
        "--",
        "add-port",
        "br1",
        "pb",
        "--",
        "set",
        "Interface",
        "pb",
        "type=patch",
        "options:peer=pa",
        "ofport_request=12",
        "--",
        "add-port",
        "br1",
        "q7",
        "--",
        "set",
        "Interface",
        "q7",
        "type=dummy",
        "ofport_request=1",
    )
    return switch


def texts(lab, name, command):
    """{arguments: what was answered}."""
    switch = bridges(lab, name, command)
    for meter in METERS:
        switch.ofctl("-O", "OpenFlow13", "add-meter", "br0", meter)
    for flow in FLOWS:
        switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", flow)
    for flow in OLD_FLOWS:
        switch.ofctl("add-flow", "br0", flow)
    for flow in PEER_FLOWS:
        switch.ofctl("add-flow", "br1", flow)
    answers = {}
    for verb, calls in (("trace", CALLS), ("trace-packet-out", PACKET_OUTS)):
        for call in calls:
            done = switch.appctl(f"ofproto/{verb}", *call, ok=False)
            shown = f"{verb} {' '.join(call)}"
            answers[shown] = normal(done.stdout + done.stderr)
    for command in (
        ("dump-flows", "br0", "table=65"),
        ("dump-flows", "br0", "table=67"),
        ("dump-flows", "br1"),
    ):
        answers["ovs-ofctl " + " ".join(command)] = normal(
            "\n".join(sorted(switch.rules(*command[1:])))
        )
    answers["fdb/show"] = sorted(
        line.split()[:3] for line in switch.appctl("fdb/show", "br0").splitlines()
    )
    switch.stop()
    return answers


def normal(text):
    """Without what must differ: the number of a packet that Open vSwitch keeps for a controller,
    the order in which ports are flooded, the daemon's name, the bits of a flow in its cache, which
    depend on how its classifier searches, meters' numbers in the datapath, and the reason that Open
    vSwitch would really give for a packet-out's packet-in (packet_out, not action). And without
    Open vSwitch's word that its datapath hands a flow to userspace because it cannot write ARP,
    ICMP or neighbour messages: here it can."""
    text = text.replace(
        "This flow is handled by the userspace slow path because it:\n"
        "  - Uses action(s) not supported by datapath.\n",
        "",
    )
    text = re.sub(r"recirc_id=0?[1-9a-fx][0-9a-f]*", "recirc_id=N", text)
    text = re.sub(
        r"^ovs-appctl: .*: server returned an error$", "ovs-appctl: error", text, flags=re.MULTILINE
    )
    # What a rule says about the version that it came with, and the place of a missing rule in
    # another bridge.
    text = text.replace("strip_vlan", "pop_vlan").replace("reg0=0x2, priority 0", "No match.")
    text = re.sub(r"\bmeter\(\d+\)", "meter(N)", text)
    text = text.replace("reason=5,", "reason=1,")
    text = re.sub(r"^Megaflow: .*$", "Megaflow: ...", text, flags=re.MULTILINE)
    return re.sub(
        r"^(Datapath actions: )([\d,]+)$",
        lambda match: match[1] + ",".join(sorted(match[2].split(","))),
        text,
        flags=re.MULTILINE,
    )


def tracked_texts(lab, name, command):
    """{arguments: what was answered} for packets that are tracked."""
    switch = bridges(lab, name, command)
    answers = {}
    for number, (rules, peer_rules, calls) in enumerate(TRACKED):
        for bridge, of_bridge in (("br0", rules), ("br1", peer_rules)):
            text = "\n".join(of_bridge) or "priority=1,actions=drop"
            switch.ofctl("del-flows", bridge)
            switch.ofctl("add-flows", bridge, "-", stdin=text)
        for call in calls:
            done = switch.appctl("ofproto/trace", "br0", *call, ok=False)
            text = normal(done.stdout + done.stderr)
            # Open vSwitch numbers passes from where the last trace ended.
            passes = list(dict.fromkeys(re.findall(r"recirc\((0x[0-9a-f]+)\)", text)))
            for index, found in enumerate(passes):
                text = text.replace(f"recirc({found})", f"recirc(pass {index})")
            answers[f"{number}: {' '.join(call)}"] = text
    switch.stop()
    return answers


@test(timeout=120)
def traces_of_tracked_packets_are_open_vswitchs(lab):
    """Each pass behind `ct`, with the states of --ct-next, also behind patch ports."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    ours = tracked_texts(lab, "ours", switchd_command())
    theirs = tracked_texts(lab, "theirs", switchd_command("ovs"))
    check("resume conntrack" in str(theirs), "Open vSwitch has traced no pass")
    compare(lab, ours, theirs)


@test(timeout=120)
def trace_is_open_vswitchs(lab):
    """Some 80 packets through pipelines, groups, meters, NORMAL and patch ports, and calls with
    errors."""
    command = switchd_command()
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    ours, theirs = texts(lab, "ours", command), texts(lab, "theirs", switchd_command("ovs"))
    check(len(ours) >= 80, "only", len(ours), "calls")
    # Of four rules that traces have taught, two had the end of their connection traced with
    # -generate.
    taught = re.findall(
        r"idle_timeout=(\d+), hard_timeout=(\d+), ", theirs["ovs-ofctl dump-flows br0 table=67"]
    )
    equal(sorted(taught), [("300", "500")] * 2 + [("900", "1000")] * 2, "timeouts of learned rules")
    compare(lab, ours, theirs)


def compare(lab, ours, theirs):
    """Fails where answers differ."""
    differences = []
    for call, expected in theirs.items():
        if ours[call] != expected:
            theirs_lines, our_lines = (
                [str(line) for line in text] if isinstance(text, list) else text.splitlines()
                for text in (expected, ours[call])
            )
            lines = difflib.unified_diff(
                theirs_lines, our_lines, "Open vSwitch", "ours", n=1, lineterm=""
            )
            differences.append(f"{call}\n    " + "\n    ".join(lines))
    if differences:
        with open(os.path.join(lab.directory, "differences.log"), "w") as file:
            file.write("\n".join(differences))
        raise Failure(f"{len(differences)} of {len(theirs)} differ:\n" + "\n".join(differences))
