"""`sluice predict` over veth, guests' ports and policers: measured by the command itself on this
machine, within a limit, and nothing is left behind. No time is asserted."""

import json
import os
import signal
import subprocess

import oracle
from harness import PATIENCE, Skip, check, equal, run, test, wait_for
from test_predictions import predicted, sluice

RULES = "in_port=1,actions=output:2\n"


def links():
    """Interfaces of this network namespace."""
    return sorted(os.listdir("/sys/class/net"))


def command(lab, *options, rounds=3):
    """The command, on few slices; what it writes lies in the test's directory."""
    words = [
        sluice(lab),
        "predict",
        "--flows",
        "-",
        "--rounds",
        str(rounds),
        "--sluiced",
        lab.switchd[0],
        *options,
    ]
    return ["env", f"TMPDIR={lab.directory}", *words]


def leftovers(lab):
    """What predictions have left in the test's directory."""
    return [name for name in os.listdir(lab.directory) if name.startswith("sluice-predict-")]


def helpers(lab):
    """Processes that measure ports for this test."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read()
        except OSError:
            continue
        if "--calibrate-ports" in words and lab.directory in words:
            found.append(process)
    return found


@test(timeout=300)
def veth_and_guests_are_measured(lab):
    """In by a veth pair, out to a guest, and the other way; both cost something, and it is said how
    they were measured."""
    before = links()
    for ports in ("1:veth,2:vhost", "1:dpdkvhostuserclient,2:veth"):
        done = predicted(command(lab, "--json", "--ports", ports), seconds=130, stdin=RULES)
        told = json.loads(done.stdout)
        equal(told["ports"], "veth, vhost", ports)
        stages = {stage["name"]: stage["cycles"] for stage in told["prediction"]["stages"]}
        check(stages["receive"] > 0 and stages["send"] > 0, stages)
        total = told["prediction"]["cycles"]["median"]
        check(abs(sum(stages.values()) - total) < 1, stages, total)
        notes = " ".join(told["notes"])
        check("veth ports are measured" in notes and "vhost ports are measured" in notes, notes)
        check("net_pcap" not in notes, notes)
        lab.note(f"{ports}: {stages}")
    equal(links(), before, "interfaces of the machine")
    equal(leftovers(lab), [], "files")
    equal(helpers(lab), [], "processes")


@test(timeout=300)
def taps_and_af_xdp_are_measured(lab):
    """Internal ports and those through AF_XDP are kinds of their own, each with its cost."""
    before = links()
    costs = {}
    for ports in ("1:tap,2:memory", "1:afxdp,2:memory", "1:memory,2:tap", "1:memory,2:afxdp"):
        done = predicted(
            command(lab, "--anyway", "--json", "--ports", ports), seconds=130, stdin=RULES
        )
        told = json.loads(done.stdout)
        kind = "tap" if "tap" in ports else "afxdp"
        equal(told["ports"], f"{kind}, memory", ports)
        stages = {stage["name"]: stage["cycles"] for stage in told["prediction"]["stages"]}
        check(max(stages.get("receive", 0), stages.get("send", 0)) > 0, ports, stages)
        check(any(f"{kind} " in note for note in told["notes"]), told["notes"])
        costs[ports] = stages
    lab.note(costs)
    equal(links(), before, "interfaces of the machine")
    equal(leftovers(lab), [], "files")
    equal(helpers(lab), [], "processes")


@test(timeout=120)
def policers_are_measured(lab):
    """The cost of policers is a stage of its own; ports that no packet meets are named, and those
    that are not there refused."""
    memory = ("--ports", "in=1:memory,2:memory")
    done = predicted(
        command(lab, "--json", *memory, "--policed", "in", "--policed-out", "all"),
        seconds=60,
        stdin=RULES,
    )
    told = json.loads(done.stdout)
    stages = {stage["name"]: stage["cycles"] for stage in told["prediction"]["stages"]}
    # Where the machine moves more than a policer costs, there is none to be seen.
    check(
        stages.get("policers", 1) > 0 and not any("policer" in note for note in told["notes"]),
        stages,
        told["notes"],
    )
    lab.note(f"policers: {stages.get('policers')}")
    done = predicted(command(lab, "--anyway", *memory, "--policed", "7"), seconds=60, stdin=RULES)
    check(
        "no packet meets a policer of --policed 7" in done.stdout and "policers" not in done.stdout,
        done.stdout,
    )
    for words in (("--policed", "nobody"), ("--policed-out", ""), ("--policed", "0")):
        refused = run(command(lab, *memory, *words), ok=False, stdin=RULES)
        check(refused.returncode == 1 and words[0] in refused.stderr, refused.stderr)


@test(timeout=240)
def a_running_switch_predicts_for_its_own_ports(lab):
    """`sluice/predict` measures what a bridge's ports are: kernel interfaces here, and a patch port
    costs nothing. What is like another kind is named."""
    sluice(lab)
    switch = lab.switch()
    for bridge in ("br0", "br1"):
        switch.bridge(bridge, "fail_mode=secure")
    for number in (1, 2):
        switch.link(
            lab.namespace(f"h{number}").quiet(), f"p{number}", "eth0", f"ofport_request={number}"
        )
    for name, bridge, peer, number in (("a", "br0", "b", 3), ("b", "br1", "a", 1)):
        switch.port(
            name, "type=patch", f"options:peer={peer}", f"ofport_request={number}", bridge=bridge
        )
    before = links()

    def ask(rule):
        switch.ofctl("del-flows", "br0")
        switch.ofctl("add-flow", "br0", rule)
        asked = switch.tool(
            "ovs-appctl", "sluice/predict", "--anyway", "br0", ok=False, seconds=110
        )
        if "too busy" in asked.stderr:
            raise Skip("the machine is too busy to measure on")
        check(asked.returncode == 0, asked.stderr)
        return asked.stdout

    asked = ask("in_port=1,actions=output:2")
    check(
        "br0: veth ports, packets made from the rules" in asked
        and "veth ports are measured" in asked
        and "may cost more" not in asked,
        asked,
    )
    check("net_pcap" not in asked, asked)
    asked = ask("in_port=1,actions=output:3")
    check("br0: veth, memory ports" in asked, asked)
    asked = ask("in_port=1,actions=local")
    check("br0: veth, tap ports" in asked and "may cost more" not in asked, asked)
    equal(links(), before, "interfaces of the machine")


@test(timeout=180)
def nothing_is_left_where_it_is_ended(lab):
    """By Ctrl-C or SIGTERM: files, helper and interfaces go; by SIGKILL the helper and its
    interfaces do."""
    before = links()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        words = command(lab, "--ports", "1:veth,2:veth", rounds=1000)
        with subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            process.stdin.write(RULES)
            process.stdin.close()
            wait_for("the helper is at work", lambda: helpers(lab), 60)
            check(leftovers(lab), "there are files")
            process.send_signal(number)
            equal(process.wait(20 * PATIENCE), -number, "how it ended")
        wait_for("the helper has ended", lambda: not helpers(lab))
        if number != signal.SIGKILL:
            equal(leftovers(lab), [], f"files after {number.name}")
    equal(links(), before, "interfaces of the machine")


@test(timeout=60)
def without_root_no_pair_is_made_on_the_machine(lab):
    """It is refused with the reason: the pair must not appear among the machine's own
    interfaces."""
    before = links()
    program = os.path.abspath(lab.switchd[0])
    sluice(lab)  # skips where there is none
    capture = os.path.join(lab.directory, "in.pcap")
    oracle.write_pcap(capture, [bytes(60)])
    words = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    words += [program, "--calibrate-ports", capture, "ordinary", "0", "3", "veth"]
    done = run(words, ok=False)
    check(done.returncode == 1 and "need root" in done.stderr, done.stderr)
    for words in (
        ["x"],
        [capture, "ordinary", "0", "3", "gre"],
        [capture, "ordinary", "x", "3", "dpdk"],
    ):
        done = run([program, "--calibrate-ports", *words], ok=False, seconds=30)
        check(
            done.returncode == 1 and done.stderr.startswith("sluiced: --calibrate-ports: "),
            done.stderr,
        )
    equal(links(), before, "interfaces of the machine")
