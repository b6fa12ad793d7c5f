"""What `sluice predict` says that packets do is what they do in the running switch: lookups,
matches, ports. No time is asserted."""

import json
import os
import re

import oracle
from harness import Skip, becomes, check, equal, ethernet, run, test, wait_for

RULES = """\
# port security, routing, an access list
table=0,priority=10,in_port=uplink,actions=load:7->NXM_NX_REG0[],resubmit(,1)
table=0,priority=0,actions=drop
table=1,priority=10,ip,nw_dst=11.0.0.0/24,actions=dec_ttl,resubmit(,2)
table=1,priority=10,ip,nw_dst=11.0.1.0/24,actions=mod_dl_dst:02:00:00:00:01:01,resubmit(,2)
table=1,priority=10,ip,nw_dst=11.0.2.0/23,actions=resubmit(,2),output:3
add table=2,priority=10,reg0=7,udp,tp_dst=80,actions=output:2
table=2,priority=10,reg0=7,udp,tp_dst=81,actions=output:2,output:3
"""
PORTS = "uplink=1,sink=2,other=3"


def sluice(lab):
    """The command beside the daemon under test."""
    if lab.is_ovs:
        raise Skip("Open vSwitch does not predict")
    return os.path.join(os.path.dirname(lab.switchd[0]), "sluice")


def predicted(command, seconds, **options):
    """What `sluice predict` prints.

    It measures, which takes a processor for itself now and then: where it says that there was none,
    it is asked again."""
    for _ in range(3):
        done = run(command, seconds=seconds, ok=False, **options)
        if "too busy" not in done.stderr:
            break
    check(done.returncode == 0, f"sluice predict ended with {done.returncode}:", done.stderr)
    return done


def packets():
    """Of all kinds that the rules tell apart, and others."""
    frames = []
    for number in range(600):
        address = bytes([11, 0, number % 5, number % 251])
        udp = bytes([4, number % 256, 0, 80 + number % 3, 0, 26, 0, 0]) + bytes(18)
        frames.append(
            ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x0800, ipv4(address, udp))
        )
    frames += [ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(46))] * 40
    return frames


def ipv4(destination, payload):
    """An IPv4 packet with a right checksum."""
    header = bytearray(
        b"\x45\0"
        + (20 + len(payload)).to_bytes(2, "big")
        + b"\0\0\0\0\x40\x11\0\0\x0a\0\0\x01"
        + destination
    )
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, 20, 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    header[10:12] = (total ^ 0xFFFF).to_bytes(2, "big")
    return bytes(header) + payload


@test(timeout=180)
def counts_are_those_of_the_switch(lab):
    """Lookups and matches of each table and packets of each port, predicted and counted."""
    command = sluice(lab)
    flows, capture = os.path.join(lab.directory, "flows"), os.path.join(lab.directory, "in.pcap")
    with open(flows, "w", encoding="ascii") as file:
        file.write(RULES)
    frames = packets()
    oracle.write_pcap(capture, frames)
    done = predicted(
        [
            command,
            "predict",
            "--json",
            "--flows",
            flows,
            "--ports",
            PORTS,
            "--traffic",
            capture,
            "--rounds",
            "3",
            "--sluiced",
            lab.switchd[0],
        ],
        seconds=50,
    )
    trace = json.loads(done.stdout)["prediction"]["trace"]
    equal(trace["packets"], len(frames), "packets")

    switch = lab.switch()
    switch.enable_dpdk(cores=1)
    switch.bridge("br0", "fail_mode=secure")
    switch.flows(*RULES.replace("uplink", "1").splitlines())
    for number, name in ((2, "sink"), (3, "other")):
        switch.port(
            name,
            "type=dpdk",
            f"options:dpdk-devargs=net_null{number},no-rx=1",
            f"ofport_request={number}",
        )
    switch.port(
        "uplink",
        "type=dpdk",
        f"options:dpdk-devargs=net_pcap1,rx_pcap={capture},tx_pcap={lab.directory}/out.pcap",
        "ofport_request=1",
    )
    wait_for(
        "all frames are in", lambda: switch.counters()["uplink"]["rx"]["pkts"] >= len(frames), 20
    )

    def counted():
        found = re.findall(
            r"table (\d+).*?lookup=(\d+), matched=(\d+)", switch.ofctl("dump-tables", "br0"), re.S
        )
        return {
            int(table): (int(lookups), int(matches))
            for table, lookups, matches in found
            if int(lookups)
        }

    # What packets have met is counted a moment after they came.
    becomes(
        counted,
        {table["table"]: (table["lookups"], table["matches"]) for table in trace["tables"]},
        "lookups and matches by table, counted and predicted",
    )

    def sent():
        return {
            number: switch.counters()[name]["tx"]["pkts"]
            for number, name in ((2, "sink"), (3, "other"))
        }

    becomes(
        sent,
        {int(port): packets for port, packets in trace["out_ports"].items()},
        "packets by port, counted and predicted",
    )
    equal(sum(path["packets"] for path in trace["paths"]), len(frames), "packets of all paths")
    lab.note(f"{len(trace['paths'])} paths, {trace['lookups']:.2f} lookups a packet")


@test(timeout=180)
def traffic_from_rules_meets_them(lab):
    """Without traffic, packets are made that meet every table; the sum of the stages is the
    figure."""
    done = predicted(
        [
            sluice(lab),
            "predict",
            "--json",
            "--flows",
            "-",
            "--ports",
            "uplink=1:memory,2:memory,3:memory",
            "--rounds",
            "3",
        ],
        seconds=50,
        stdin=RULES,
    )
    prediction = json.loads(done.stdout)["prediction"]
    tables = {table["table"]: table for table in prediction["trace"]["tables"]}
    check(set(tables) == {0, 1, 2} and tables[2]["matches"] > 100, tables)
    stages = sum(stage["cycles"] for stage in prediction["stages"])
    check(abs(stages - prediction["cycles"]["median"]) < 1, stages, prediction["cycles"])
    for what in ("cycles", "mpps"):
        check(
            0 < prediction[what]["low"] <= prediction[what]["median"] <= prediction[what]["high"],
            prediction[what],
        )
    # With it stands how fast the machine was, which can be asked for alone.
    alone = json.loads(
        run([sluice(lab), "predict", "machine", "--json", "--readings", "3"], seconds=20).stdout
    )["machine"]
    for machine in (prediction["machine"], alone):
        check(
            machine["readings"] >= 3 and machine["moved"] >= 0 and machine["memory_moved"] >= 0,
            machine,
        )
        for what in ("additions", "memory_ns"):
            check(
                0 < machine[what]["low"] <= machine[what]["median"] <= machine[what]["high"]
                and machine["mean"][what] > 0,
                machine,
            )


@test(timeout=120)
def the_answer_comes_first(lab):
    """A figure, or that there is none since the machine moved; a warning where all packets drop;
    --anyway tells figures always."""
    command = sluice(lab)

    def told(rules, *options):
        return predicted(
            [
                command,
                "predict",
                "--flows",
                "-",
                "--ports",
                "1:memory,2:memory",
                "--rounds",
                "3",
                *options,
            ],
            seconds=50,
            stdin=rules,
        ).stdout

    dropped = told(
        "in_port=2,actions=output:1\nactions=drop\n", "--in-port", "1", "--traffic", "udp"
    )
    check(
        "warning: all packets are dropped" in dropped and "--ports NAME=NUMBER" in dropped, dropped
    )
    check(re.match(r"[0-9.]+ Mpps on one core \(|unreliable, run again: ", dropped), dropped)
    equal(
        "cycles per packet" in dropped,
        not dropped.startswith("unreliable"),
        "whether cycles are told",
    )
    sent = told("actions=output:2\n", "--anyway")
    check(re.match(r"[0-9.]+ Mpps on one core \(", sent) and "dropped" not in sent, sent)


FIGURES = re.compile(r"^([0-9.]+) (cycles per packet|Mpps on one core) \(", re.M)


@test(timeout=240)
def the_daemon_says_the_same_of_its_rules(lab):
    """`sluice/predict`, and `sluice predict` of what dump-flows, dump-groups and dump-meters print:
    the same tables, lookups and paths; the figure goes to the database."""
    command = sluice(lab)
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=[OpenFlow10,OpenFlow13,OpenFlow15]")
    text = [rule.replace("uplink", "1") for rule in RULES.splitlines()] + [
        "table=2,priority=10,reg0=7,udp,tp_dst=82,actions=meter:4,group:3"
    ]
    switch.ofctl("-OOpenFlow13", "add-meter", "br0", "meter=4,pktps,bands=type=drop,rate=1000000")
    switch.ofctl(
        "-OOpenFlow15",
        "add-group",
        "br0",
        "group_id=3,type=select,bucket=actions=output:2,bucket=weight:2,actions=output:3",
    )
    for rule in text:
        if rule and not rule.startswith("#"):
            switch.ofctl("-OOpenFlow13", "add-flow", "br0", rule.removeprefix("add "))
    files = {}
    for what, version in (("flows", 13), ("groups", 15), ("meters", 13)):
        files[what] = os.path.join(lab.directory, what)
        with open(files[what], "w", encoding="ascii") as file:
            file.write(switch.ofctl(f"-OOpenFlow{version}", f"dump-{what}", "br0"))
    options = [word for what, path in files.items() for word in (f"--{what}", path)]
    traffic = "udp,nw_dst=11.0.0.0/23,tp_dst=82,flows=500"

    def ask(*words):
        # It is made when nobody else wants the processor, which may take its time.
        options = [word for word in words if word.startswith("--")]
        asked = switch.tool(
            "ovs-appctl",
            "sluice/predict",
            *options,
            "br0",
            *words[len(options) :],
            ok=False,
            seconds=100,
        )
        if "too busy" in asked.stderr:
            raise Skip("the machine is too busy to measure on")
        check(asked.returncode == 0, asked.stderr)
        return asked.stdout

    asked = ask(traffic)
    told = predicted(
        [
            command,
            "predict",
            *options,
            "--traffic",
            traffic,
            "--rounds",
            "5",
            "--sluiced",
            lab.switchd[0],
        ],
        seconds=100,
    )
    equal(counts(asked), counts(told.stdout), "tables, lookups and paths")
    check("0 > 1 > 2: port 2" in asked and "0 > 1 > 2: port 3" in asked, asked)
    # Of what the rules ask for themselves the figure is kept, of other traffic not.
    check(
        "sluice_mpps" not in switch.get("Bridge", "br0", "status"),
        "the figure of somebody's traffic is in the database",
    )
    for _ in range(5):
        asked = ask()
        if not asked.startswith("unreliable, run again"):
            break
        check(
            "Mpps" not in asked and "sluice_mpps" not in switch.get("Bridge", "br0", "status"),
            "a figure of a machine that moved:",
            asked,
        )
    else:
        # It does not stand still. Figures of such a machine are told to who wants them anyway, and
        # are kept from the database.
        asked = ask("--anyway")
    figures = {unit: float(value) for value, unit in FIGURES.findall(asked)}
    check(len(figures) == 2 and min(figures.values()) > 0, figures, asked)
    check("\nthis machine: " in asked and "\nthis machine: " in told.stdout, asked, told.stdout)
    if "others use this machine" in asked:
        lab.note("the machine does not stand still: no figure for the database")
        check(
            "sluice_mpps" not in switch.get("Bridge", "br0", "status"),
            "a figure of a machine that moved is in the database",
        )
        return
    wait_for(
        "the figure is in the database",
        lambda: (
            abs(
                float(switch.get("Bridge", "br0", "status").get("sluice_mpps", 0))
                - figures["Mpps on one core"]
            )
            < 0.06
        ),
        20,
    )
    status = switch.get("Bridge", "br0", "status")
    check(
        float(status["sluice_mpps_least"])
        <= float(status["sluice_mpps"])
        <= float(status["sluice_mpps_most"]),
        status,
    )


def counts(text):
    """What a prediction counts: of tables the lookup, rules, lookups and matches; of paths the
    share, lookups and way. How many lines of memory rules of one priority are found in goes by the
    order in which they came, which a dump does not tell."""
    tables, _, paths = (
        text.partition("\ntable ")[2].partition("\nstage ")[0].partition("\npackets ")
    )
    # Behind the paths the machine, what was asked and notes are told.
    ways = [line.split() for line in paths.splitlines()[1:] if re.match(r"\s*[\d.]+%", line)]
    return [line.split()[:5] for line in tables.splitlines()[1:] if line], [
        (way[:2], way[6:]) for way in ways
    ]


@test(timeout=60)
def mistakes_are_named(lab):
    """Files, lines, ports, traffic."""
    command = sluice(lab)

    def refused(rules, *options):
        done = run([command, "predict", "--flows", "-", *options], ok=False, stdin=rules)
        check(done.returncode == 1 and not done.stdout, done.returncode, done.stdout)
        return done.stderr.strip()

    drop = "actions=drop\n"
    equal(
        refused("\n# nothing\nip,nw_dst=10.0.0.300,actions=drop\n")[:13],
        "sluice: -:3: ",
        "file and line",
    )
    equal(refused("priority=1\n"), "sluice: -:1: must specify an action", "no action")
    equal(
        refused(drop + "delete ip\n"),
        "sluice: -:2: delete: only rules to add can be predicted",
        "another command",
    )
    unknown = refused("in_port=nowhere,actions=drop\n")
    check(
        "-:1: " in unknown and "--ports NAME=NUMBER" in unknown, "an unknown port's name:", unknown
    )
    equal(
        refused("actions=group:7\n"),
        "sluice: -:1: OFPBAC_BAD_OUT_GROUP (--groups takes a file of groups)",
        "a group that there is not",
    )
    equal(
        refused("table=1,actions=drop\n"),
        "sluice: -: table 0 has no rules: no packet would meet any",
        "nothing to meet",
    )
    equal(
        refused(drop, "--ports", "a=1,b=1"), "sluice: --ports b=1: port 1 is named twice", "ports"
    )
    equal(
        refused(drop, "--in-port", "nowhere"), "sluice: --in-port nowhere: no such port", "port in"
    )
    check(
        "neither a file nor a description" in refused(drop, "--traffic", "/nonexistent.pcap"),
        "no traffic",
    )
    check("size is a number from 64 to 1522" in refused(drop, "--traffic", "udp,size=63"), "a size")
    check("not a pcap file" in refused(drop, "--traffic", "/etc/hostname"), "not a capture")
    check("not a processor" in refused(drop, "--cpu", "5000"), "processor")
    done = run([command, "predict", "--flows", "/nonexistent"], ok=False)
    equal(
        done.stderr.strip(),
        "sluice: /nonexistent: No such file or directory (os error 2)",
        "no file",
    )
