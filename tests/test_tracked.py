"""Packets that rules track several times on their way: what becomes of them, and of the
connections, is the same as with Open vSwitch, byte for byte."""

import glob
import json
import os
import re
import socket
import time

from harness import OPEN_VSWITCH, Failure, Skip, check, equal, switchd_command, test, wait_for
from oracle import read_pcap
from tracked_scenarios import scenarios

PORTS = {"br0": (1, 2, 3), "br1": (4, 5, 6)}


class Told:
    """A switch with two bridges, whose ports record what they send."""

    def __init__(self, lab, name, command):
        self.switch = lab.switch(name, command=command, options=("--enable-dummy=override",))
        self.files = {}
        words = []
        for number, (bridge, ports) in enumerate(PORTS.items()):
            words += ["--", "add-br", bridge, "--", "set", "Bridge", bridge, "fail_mode=secure"]
            words += ["datapath_type=dummy", f"other_config:hwaddr=02:aa:00:00:00:0{number}"]
            for port in ports:
                self.files[port] = os.path.join(lab.directory, f"{name}{port}.pcap")
                words += ["--", "add-port", bridge, f"p{port}"]
                words += ["--", "set", "Interface", f"p{port}", "type=dummy"]
                words += [f"ofport_request={port}", f"options:tx_pcap={self.files[port]}"]
        for bridge, port, peer in (("br0", "pa", "pb"), ("br1", "pb", "pa")):
            words += ["--", "add-port", bridge, port, "--", "set", "Interface", port, "type=patch"]
            words += [f"options:peer={peer}", f"ofport_request={11 if port == 'pa' else 12}"]
        self.switch.vsctl(*words[1:])
        self.seen = dict.fromkeys(self.files, 0)
        # A process for each command would take most of the time.
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.control.settimeout(20)
        pattern = os.path.join(self.switch.directory, "*switchd.*.ctl")
        wait_for("control socket", lambda: glob.glob(pattern))
        self.control.connect(glob.glob(pattern)[0])

    def command(self, method, *words):
        """What ovs-appctl prints."""
        request = {"id": 0, "method": method, "params": words}
        self.control.sendall(json.dumps(request).encode())
        answer = b""
        while True:
            part = self.control.recv(65536)
            check(part, "the daemon closed the connection")
            answer += part
            try:
                told = json.loads(answer)
            except ValueError:
                continue
            check(told["error"] is None, method, words, told["error"])
            return told["result"]

    def begin(self, rules):
        """Puts these rules in the place of all others, and forgets connections."""
        for bridge in PORTS:
            of_bridge = [rule for owner, rule in rules if owner == bridge]
            text = "\n".join(of_bridge) or "priority=1,actions=drop"
            self.switch.ofctl("--bundle", "replace-flows", bridge, "-", stdin=text)
        self.command("revalidator/wait")
        self.command("dpctl/flush-conntrack")

    def send(self, port, frame):
        """What a packet leads to: frames by port, and the connections there are then."""
        self.command("netdev-dummy/receive", f"p{port}", frame.hex())
        if not self.switch.is_ovs:
            self.command("revalidator/wait")
        sent = self.new()
        # Nothing says when Open vSwitch is done (or takes half a second to say it).
        deadline = time.monotonic() + (0.3 if self.switch.is_ovs else 0)
        while not sent and time.monotonic() < deadline:
            time.sleep(0.002)
            sent = self.new()
        if self.switch.is_ovs:
            time.sleep(0.005)  # more may come, and the last frame may not be whole yet
            sent = self.new()
        for number, frames in sent.items():
            self.seen[number] += len(frames)
        # Open vSwitch sends what recirculates last.
        for frames in sent.values():
            frames.sort()
        lines = self.command("dpctl/dump-conntrack").splitlines()
        # Open vSwitch counts connections of ICMPv6 nowhere.
        figures = self.command("dpctl/ct-stats-show", "-m")
        if "icmpv6," in str(lines):
            figures = re.sub(r"  ICMP: .*\n", "", figures)
        return sent, [*sorted(lines), figures]

    def new(self):
        """The frames that were sent since the last packet, by port."""
        sent = {}
        for number, path in self.files.items():
            frames = read_pcap(path)[self.seen[number] :]
            if frames:
                sent[number] = [bytes(each).hex() for each in frames]
        return sent


@test(timeout=300)
def packets_are_tracked_as_by_open_vswitch(lab):
    """Several `ct` in one walk, in several passes, and behind patch ports."""
    command = switchd_command()
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    ours, theirs = Told(lab, "ours", command), Told(lab, "theirs", switchd_command("ovs"))
    differences, packets = [], 0
    for name, (rules, frames) in scenarios().items():
        ours.begin(rules)
        theirs.begin(rules)
        for index, (port, frame) in enumerate(frames):
            (our_frames, our_lines), (their_frames, their_lines) = (
                told.send(port, frame) for told in (ours, theirs)
            )
            packets += bool(their_frames)
            if (our_frames, our_lines) != (their_frames, their_lines):
                differences.append(
                    f"{name}, packet {index} ({frame.hex()}):\n"
                    f"  Open vSwitch sent {shown(their_frames)}\n  ours {shown(our_frames)}\n"
                    f"  its connections {their_lines}\n  ours {our_lines}"
                )
                break
    check(packets > 300, "only", packets, "packets left Open vSwitch")
    if differences:
        with open(os.path.join(lab.directory, "differences.log"), "w") as file:
            file.write("\n".join(differences))
        raise Failure(f"{len(differences)} differ (differences.log):\n{differences[0]}")


def shown(frames):
    """Frames by port, in short: VLAN, and addresses and ports."""

    def one(text):
        vlan = re.match(r"[0-9a-f]{24}8100(....)(....)(.*)", text)
        return f"vlan {int(vlan[1], 16)} {vlan[3][24:]}" if vlan else text[28:]

    return {port: [one(each) for each in each_port] for port, each_port in frames.items()}


LIMITS = (
    ("get",),
    ("set", "default=5"),
    ("get",),
    ("get", "zone=1"),
    ("set", "zone=1,limit=0"),
    ("get",),
    ("set", "default=0"),
    ("get",),
    ("del", "zone=1"),
    ("get",),
    ("del", "zone=1,2"),
    ("del", "zone=9"),
    ("del",),
    ("del", "x"),
    ("del", "default"),
    ("set",),
    ("set", "default=x"),
    ("set", "default="),
    ("set", "default=4294967294"),
    ("get",),
    ("set", "zone=1,limit=7", "default=3"),
    ("set", "default=3", "default=4"),
    ("set", "default=3", "zone=1,limit=7", "zone=2,limit=0"),
    ("get",),
    ("set", "nodp", "default=6"),
    ("get", "nodp"),
    ("set", "zone=1"),
    ("set", "zone=1,limit="),
    ("set", "zone=1,limit=x"),
    ("set", "limit=4"),
    ("set", "zone=1,limit=4,more=3"),
    ("set", "zone=1,limit=4", "zone=x,limit=3"),
    ("get",),
    ("set", "zone=65535,limit=1", "zone=0x10,limit=0x20"),
    ("get", "zone=65535,16"),
    ("get", "zone=3", "zone=4"),
    ("get", "zone=3,"),
    ("get", "zone=x"),
    ("get", "default"),
    ("del", "zone=16,65535"),
    ("del", "zone=1", "zone=2"),
    ("get", "zone=1,2,16,65535"),
)


@test(timeout=120)
def limits_are_answered_as_by_open_vswitch(lab):
    """dpctl/ct-set-limits, ct-get-limits and ct-del-limits, with and without errors."""
    command = switchd_command()
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    answers = []
    for name, daemon in (("ours", command), ("theirs", switchd_command("ovs"))):
        switch = Told(lab, name, daemon).switch
        told = [
            switch.appctl(f"dpctl/ct-{verb}-limits", *words, ok=False) for verb, *words in LIMITS
        ]
        # Errors begin with the daemon's name.
        answers.append(
            [re.sub(r"(?m)^(ovs-appctl: )?\S+: ", "", done.stdout + done.stderr) for done in told]
        )
        switch.stop()
    for words, ours, theirs in zip(LIMITS, *answers, strict=True):
        equal(sorted(ours.splitlines()), sorted(theirs.splitlines()), f"ct-*-limits {words}")
