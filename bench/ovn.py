#!/usr/bin/python3
"""How long OVN's users wait: three hosts with so many logical ports, on Sluice and on Open vSwitch.

    bench/ovn.py [--ports N] [--rounds N] [--switchd COMMAND] [--only LABEL]

The hosts are network namespaces, each with its daemon, ovn-controller and database, joined by
Geneve. N logical ports (100) are at each; they are in three logical switches behind one router,
with an access list for all of them by a port group. Measured is the time from a command to its
answer with --wait=hv, which comes when every host has done it:

    all      everything is asked for in one command (ports of the hosts are there)
    port     one more logical port, whose interface is there
    acl      an access list for a group of all ports
    gone     that access list is removed
    restart  a host's daemon is killed and started: until its machine answers again

The least of some rounds counts for port, acl and gone. Ends with 0 unless Sluice is slower (by more
than a tenth and 20 ms) in all, port, acl or gone; restart is mostly ovn-controller's pause before
it connects again, and only printed. Needs root and OVN; takes some minutes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(ROOT, "tests"))
import harness  # noqa: E402
import isolated  # noqa: E402
from ovn import Cloud, port, router_port  # noqa: E402

CHASSIS = 3
ROWS = ("all", "port", "acl", "gone", "restart")
NOISE_S, NOISE = 0.02, 1.1


def timed(act):
    """How long something takes, s."""
    began = time.monotonic()
    act()
    return time.monotonic() - began


def names(number):
    """Number, switch and address of a logical port."""
    index = number % CHASSIS
    return f"ls{index}", f"10.{index}.{number // 250}.{number % 250 + 1}"


def measure(directory, ports, rounds):
    """Times by row, s."""
    lab = harness.Lab(directory)
    cloud = Cloud(lab, CHASSIS)
    total = ports * CHASSIS
    # Machines of the first port of each host; the others are interfaces without one.
    machines = []
    for chassis in range(CHASSIS):
        number = chassis + CHASSIS  # 3, 4, 5: address .4, .5, .6 of its switch
        switch, address = names(number)
        machine = cloud.host(chassis, number, address)
        machine.run(["ip", "address", "del", f"{address}/24", "dev", "eth0"])
        machine.run(["ip", "address", "add", f"{address}/16", "dev", "eth0"])
        machine.run(["ip", "route", "add", "default", "via", f"10.{chassis}.9.254"])
        machines.append((machine, address))
    taken = {chassis + CHASSIS for chassis in range(CHASSIS)}
    for chassis, switch in enumerate(cloud.chassis):
        words = []
        for number in range(chassis, total, CHASSIS):
            if number not in taken:
                words += internal(number)
        switch.vsctl(*words, seconds=120)
    words = []
    for index in range(CHASSIS):
        words += ["--", "ls-add", f"ls{index}"]
    words += ["--", "lr-add", "lr0"]
    for index in range(CHASSIS):
        words += router_port("lr0", f"ls{index}", index, f"10.{index}.9.254/16")
    for number in range(total):
        switch, address = names(number)
        words += port(switch, number, address)
    everyone = [f"lp{number}" for number in range(total)]
    words += ["--", "pg-add", "everyone", *everyone]
    words += ["--", "acl-add", "everyone", "to-lport", "1000", "outport == @everyone && ip4"]
    words += ["allow-related"]
    times = {"all": timed(lambda: cloud.nb(*words[1:], seconds=300))}
    machines[0][0].reaches(machines[1][1], 60)
    single = {row: [] for row in ("port", "acl", "gone")}
    for attempt in range(rounds):
        number = total + attempt * CHASSIS
        switch, address = names(number)
        cloud.chassis[number % CHASSIS].vsctl(*internal(number))
        single["port"].append(timed(lambda: cloud.nb(*port(switch, number, address)[1:])))
        match = ("outport == @everyone && tcp.dst == 9", "drop")
        acl = ("acl-add", "everyone", "to-lport", "1001", *match)
        single["acl"].append(timed(lambda acl=acl: cloud.nb(*acl)))
        gone = ("acl-del", "everyone", "to-lport", "1001", match[0])
        single["gone"].append(timed(lambda gone=gone: cloud.nb(*gone)))
    times |= {row: min(values) for row, values in single.items()}
    rules = cloud.chassis[0].ofctl("dump-aggregate", "br-int").split("flow_count=")[1].strip()

    def restart():
        cloud.chassis[0].kill()
        cloud.chassis[0].start()
        machines[0][0].reaches(machines[1][1], 60)

    times["restart"] = timed(restart)
    for program in reversed(lab.programs):
        program.kill()
    return times | {"rules": int(rules)}


def internal(number):
    """Words for ovs-vsctl that add an interface without a machine for a logical port."""
    name = f"v{number}"
    words = ["--", "add-port", "br-int", name, "--", "set", "Interface", name, "type=internal"]
    return [*words, f"external_ids:iface-id=lp{number}"]


def inside(directory, ports, rounds):
    """Measures in this process's namespaces and leaves the result in the directory."""
    times = measure(os.path.join(directory, "lab"), ports, rounds)
    with open(os.path.join(directory, "times.json"), "w", encoding="utf-8") as file:
        json.dump(times, file)
    return 0


def run(command, ports, rounds):
    """The times of a daemon, measured in namespaces of their own."""
    directory = tempfile.mkdtemp(prefix="ovn-", dir="/tmp")
    os.makedirs(os.path.join(directory, "lab"))
    try:
        words = [sys.executable, os.path.abspath(__file__), "--inside", directory]
        words += ["--ports", str(ports), "--rounds", str(rounds)]
        process = isolated.start(words, env=dict(os.environ, SWITCHD=command))
        try:
            process.wait(900)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with open(os.path.join(directory, "times.json"), encoding="utf-8") as file:
            return json.load(file)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main():
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ports", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--switchd", default=os.path.join(ROOT, "target/release/sluiced"))
    parser.add_argument("--only", choices=("sluice", "ovs"))
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        work = (options.inside, options.ports, options.rounds)
        sys.exit(isolated.as_first(lambda: inside(*work)))
    if os.geteuid() != 0:
        sys.exit("ovn: network namespaces need root")
    daemons = {"sluice": options.switchd, "ovs": "ovs"}
    results = {}
    for label, command in daemons.items():
        if options.only in (None, label):
            try:
                results[label] = run(command, options.ports, options.rounds)
            except OSError as problem:
                sys.exit(f"ovn: {label} could not be measured: {problem}")
            print(label, {name: round(value, 3) for name, value in results[label].items()})
    if len(results) < 2:
        return 0
    ours, theirs = results["sluice"], results["ovs"]
    slower = []
    print(f"\n{'':10}{'sluice':>10}{'ovs':>10}   s, {CHASSIS} x {options.ports} ports")
    for row in ROWS:
        print(f"{row:10}{ours[row]:10.3f}{theirs[row]:10.3f}")
        if row != "restart" and ours[row] > theirs[row] * NOISE + NOISE_S:
            slower.append(row)
    if slower:
        print(f"slower than Open vSwitch: {', '.join(slower)}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
