"""`sluice/stages`: what workers' cycles go to. Its stages add up to the time stamp counter, the
packets are those that were sent, each kind of work has its own stage, and off it counts nothing."""

import json

from harness import OPEN_VSWITCH, Skip, becomes, check, equal, ethernet, switchd_command, test
from test_conntrack import FIREWALL, Echo, ask, hosts
from test_policing import shape
from test_predictions import sluice
from test_watching import text_of
from tunnels import VXLAN, Watched, marked, tunnel, vxlan

IDLE = ("empty_polls", "rest")
# Of an idle switch, too, and of the control thread's commands.
ALWAYS = {"control", "memory", *IDLE}


def only_sluice():
    if switchd_command()[0] == OPEN_VSWITCH:
        raise Skip("Open vSwitch does not account its stages")


def told(switch):
    return json.loads(switch.appctl("sluice/stages", "show", "--json"))


def stages(switch):
    """The stages of all workers by name, after each worker's have been held against the clock."""
    figures = told(switch)
    for worker in figures["workers"]:
        cycles = sum(stage["cycles"] for stage in worker["stages"])
        equal(cycles, worker["stage_cycles"], "the sum of the stages")
        check(worker["elapsed_cycles"] > 0, "some time has passed", worker)
        check(
            abs(cycles - worker["elapsed_cycles"]) <= 0.01 * worker["elapsed_cycles"],
            "stages add up to what has elapsed",
            worker,
        )
    return {stage["name"]: stage for stage in figures["total"]["stages"]}


def busy(switch):
    """The names of the stages that have begun, other than those of every switch."""
    return {name for name, stage in stages(switch).items() if stage["calls"]} - ALWAYS


def frames(count):
    return [
        ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes([number]) * 46)
        for number in range(count)
    ]


def switch_with_hosts(lab, *rules):
    only_sluice()
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    raw = switch.raw_hosts()
    switch.flows(*rules)
    for name in ("p1", "p2"):
        becomes(lambda name=name: switch.get("Interface", name, "link_state"), "up", name)
    return switch, *raw


@test(timeout=60)
def stages_add_up_to_the_clock(lab):
    """Whoever asks sees each packet in each stage of its path, and all cycles since it was put on;
    clear begins at zero, and off leaves the figures as they are."""
    switch, one, two = switch_with_hosts(lab, "in_port=1,dl_type=0x88b5,actions=output:2")
    equal(told(switch)["on"], False, "at first")
    equal(told(switch)["workers"], [], "workers that have counted, at first")
    check("stages: off" in switch.appctl("sluice/stages", "show"), "the text")
    equal(json.loads(switch.appctl("sluice/stats"))["stages"], None, "sluice/stats")

    def cross(count):
        one.send(*frames(count))
        equal(len(two.receive(10, until=count)), count, "frames that came out")

    cross(3)
    equal(switch.appctl("sluice/stages", "on"), "", "the answer")
    cross(50)
    becomes(lambda: stages(switch)["receive"]["packets"], 50, "received packets")
    found = stages(switch)
    equal(found["send"]["packets"], 50, "sent packets")
    equal(busy(switch), {"receive", "parse", "lookup", "actions", "send"}, "the path's stages")
    for name in ("receive", "lookup", "actions", "send", "control"):
        check(found[name]["cycles"] > 0, name, found[name])
    check(sum(found[name]["cycles"] for name in IDLE) > 0, "the idle stages", found)
    check(found["empty_polls"]["calls"] > 0, "empty polls", found)
    text = switch.appctl("sluice/stages", "show")
    check("stages: on" in text and "50 packets in" in text, text)
    check("differs from it by" in text and "tunnel" not in text, text)
    # Put on once more nothing changes; cleared, it begins at zero.
    switch.appctl("sluice/stages", "on")
    equal(stages(switch)["receive"]["packets"], 50, "after another on")
    switch.appctl("sluice/stages", "clear")
    equal(stages(switch)["receive"]["packets"], 0, "after clear")
    cross(7)
    becomes(lambda: stages(switch)["receive"]["packets"], 7, "since then")
    before = told(switch)["total"]["elapsed_cycles"]
    check(told(switch)["total"]["elapsed_cycles"] > before, "it goes on")
    switch.appctl("sluice/stages", "off")
    cross(20)
    becomes(lambda: told(switch)["on"], False, "off")
    at_the_end = told(switch)["total"]
    cross(20)
    equal(told(switch)["total"], at_the_end, "what is counted while it is off")
    equal(stages(switch)["receive"]["packets"], 7, "received packets of when it was on")
    switch.appctl("sluice/stages", "on")
    cross(5)
    becomes(lambda: stages(switch)["receive"]["packets"], 5, "on again it begins at zero")


@test(timeout=60)
def normal_is_a_stage(lab):
    switch, one, two = switch_with_hosts(lab, "actions=NORMAL")
    switch.appctl("sluice/stages", "on")
    one.send(*frames(9))
    equal(len(two.receive(10, until=9)), 9, "frames that came out")
    becomes(lambda: stages(switch)["normal"]["packets"] >= 9, True, "packets of NORMAL")
    check(stages(switch)["normal"]["cycles"] > 0, "cycles of NORMAL")
    check(not busy(switch) & {"track", "tunnel", "queue"}, busy(switch))


@test(timeout=60)
def connections_are_a_stage(lab):
    only_sluice()
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    inner, outer = hosts(lab, switch)
    switch.flows(*FIREWALL)
    switch.appctl("sluice/stages", "on")
    echo = Echo(outer, 80)
    try:
        check(ask(inner, "10.1.0.2", 80), "an answer")
    finally:
        echo.close()
    # Packets of a connection, in both directions.
    becomes(lambda: stages(switch)["track"]["packets"] >= 5, True, "tracked packets")
    check(stages(switch)["track"]["cycles"] > 0, "cycles of the tracker")
    check(not busy(switch) & {"tunnel", "queue"}, busy(switch))


@test(timeout=90)
def tunnels_are_a_stage(lab):
    """Both ways: headers are added, and taken off."""
    only_sluice()
    watched = Watched(lab)
    switch = watched.switch
    tunnel(switch, "tun", "vxlan", 2, "key=42")
    watched.pushed()
    switch.appctl("sluice/stages", "on")
    watched.pushed()
    becomes(lambda: stages(switch)["tunnel"]["packets"] > 0, True, "packets into the tunnel")
    check(stages(switch)["tunnel"]["cycles"] > 0, "cycles of the tunnel")
    check(not busy(switch) & {"track", "queue"}, busy(switch))
    switch.appctl("sluice/stages", "clear")
    watched.comes_in(watched.udp(VXLAN, vxlan(42, marked(9))), 9)
    becomes(lambda: stages(switch)["tunnel"]["packets"] > 0, True, "packets out of the tunnel")
    check(stages(switch)["tunnel"]["cycles"] > 0, "cycles of the tunnel")


@test(timeout=60)
def queues_are_a_stage(lab):
    switch, one, two = switch_with_hosts(lab, "in_port=1,actions=output:2")
    shape(switch, "p2", "linux-htb", ["max-rate=1000000000"], [(0, ["max-rate=1000000000"])])
    becomes(lambda: "max-rate" in switch.appctl("qos/show", "p2"), True, "the port has its queues")
    switch.appctl("sluice/stages", "on")
    one.send(*frames(9))
    equal(len(two.receive(10, until=9)), 9, "frames that came out")
    becomes(lambda: stages(switch)["queue"]["packets"], 9, "queued packets")
    found = stages(switch)
    check(found["queue"]["cycles"] > 0 and found["send"]["cycles"] > 0, found)
    check(not busy(switch) & {"track", "tunnel"}, busy(switch))


@test(timeout=60)
def what_is_no_word_of_it_is_named(lab):
    switch, _, _ = switch_with_hosts(lab, "actions=drop")
    for words, wanted in (
        (["of"], "of: not on, off, clear or show"),
        (["show", "all"], "all: one argument too many"),
        (["on", "--json"], "on: has nothing to say in JSON"),
        ([], "requires at least 1 argument"),
    ):
        done = switch.appctl("sluice/stages", *words, ok=False)
        check(done.returncode != 0 and wanted in done.stderr, words, done.stderr)
    equal(told(switch)["on"], False, "still off")


@test(timeout=60)
def other_reports_have_them(lab):
    """`sluice top` and the metrics show stages while they are accounted, and only then."""
    command = sluice(lab)
    switch, one, two = switch_with_hosts(lab, "in_port=1,actions=output:2")
    check("Stages" not in text_of(command, switch).splitlines(), "a table without figures")
    check("sluice_stage_" not in switch.appctl("sluice/metrics"), "metrics without figures")
    switch.appctl("sluice/stages", "on")
    one.send(*frames(9))
    equal(len(two.receive(10, until=9)), 9, "frames that came out")
    becomes(lambda: stages(switch)["receive"]["packets"], 9, "received packets")
    figures = json.loads(switch.appctl("sluice/stats"))["stages"]
    equal(figures["on"], True, "sluice/stats")
    lines = text_of(command, switch).splitlines()
    rows = [line.split() for line in lines[lines.index("Stages") + 1 :]]
    equal(rows[0][:3], ["stage", "cycles/packet", "share"], "the table's head")
    check({"receive", "send", "rest"} <= {row[0] for row in rows if row}, rows)
    metrics = switch.appctl("sluice/metrics")
    total = sum(
        float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("sluice_stage_packets_total{") and 'stage="receive"' in line
    )
    equal(total, 9, "sluice_stage_packets_total")
    check("sluice_stages_elapsed_cycles_total{" in metrics, "the time that has passed")
    switch.appctl("sluice/stages", "off")
    becomes(lambda: told(switch)["on"], False, "off")
    check("Stages" not in text_of(command, switch).splitlines(), "a table after off")
