#!/usr/bin/python3
"""Paper c's experiments that need the kernel (C1, C3, C4, C7 to C10) for the lab: each prints its
cells as lines of JSON, as bench/lab_slicing.py does. C2, C5, C6 and C11 are simulated by the lab
itself, since they need four cores.

    bench/lab_steering.py C1|C3|C4|C7|C8|C9|C10 [--mode quick|normal|full] [--subject NAME]...
                          [--rounds N] [--seconds S] [--sluice COMMAND]

Subjects are `default` (everything is received on core 1), `rss` (receive packet steering by a hash
by which both flows fall on core 1), `rss-best` (by which each has a core) and `sluice` (`sluice
steer`). Two namespaces are joined by a veth pair; the receiver decrypts VXLAN payloads with
AES-256-CBC (bpf_crypto in tc). The sender has core 0.

Needs what bench/steering.py needs: root, gcc, clang, iproute2, libbpf-dev, two cores.
"""

import os
import subprocess
import sys
import time

import steering
import test_steer
from contender import ROOT, Results, harness, stderr, switchd
from harness import ethernet
from lab_slicing import by_mode, command_of, emit, measure, words_of

# Experiments that one measurement serves.
COLLISIONS = ["C1", "C3", "C4"]
NAMES = {"default": "default", "rss": "rss", "apart": "rss-best", "steering": "sluice"}
# What each flow offers of what a core can decrypt.
SHARE = 0.9
ESP = 50


def wanted(options, subject):
    """Whether this subject is asked for."""
    return not options.subject or subject in options.subject


def prepared(lab, options):
    """Builds sender, receiver and the decrypting program, and measures what a core decrypts of
    packets of `steering.LENGTH`: each once."""
    if not hasattr(options, "most"):
        steering.prepare(lab, options)
        options.most = {}
    size = steering.LENGTH
    if size not in options.most:
        options.most[size] = steering.capacity(lab, options)
        stderr(f"one core decrypts {options.most[size]:.0f} packets/s of {size} bytes")
    return options.most[size]


def collisions(lab, options):
    """Two flows that fall on one core, by who spreads them: what arrives (C1), on which core it is
    worked on (C3), and what is lost (C4). The lab takes from each line what an experiment asks for,
    so that one measurement serves all three."""
    for size in by_mode(options, [1344], [64, 1344]):
        steering.LENGTH = size
        most = prepared(lab, options)
        for mode, subject in NAMES.items():
            if not wanted(options, subject):
                continue
            results = Results(None)
            try:
                options.number = getattr(options, "number", 0) + 1
                steering.collision(lab, options.number, mode, SHARE * most, options, results)
            except harness.Failure as failure:
                emit(subject, {"size": size}, missing=failure, of=COLLISIONS)
                continue
            found = {
                row.removeprefix("collision: "): values[mode][-1]
                for row, values in results.rows.items()
                if values.get(mode)
            }
            emit(
                subject,
                {"size": size},
                {
                    "delivered": found["delivered, packets/s"] * size * 8 / 1e6,
                    "packets": found["delivered, packets/s"] / 1e3,
                    "core0": found["on core 0"] / 1e3,
                    "core1": found["on core 1"] / 1e3,
                    "lost": found["not delivered, %"],
                },
                of=COLLISIONS,
            )


def steered(lab, options, *words):
    """`tests/test_steer.py`'s two namespaces, steered."""
    lab.switchd = [os.path.join(os.path.dirname(options.sluice[0]), "sluiced")]
    return test_steer.Steered(lab, *words)


def remove(*names):
    """Removes namespaces, so that the next ones can have their names."""
    for name in names:
        harness.run(["ip", "netns", "del", name])


def c7(lab, options):
    """Encrypted packets, whole and in fragments, with and without the flow control field: how many
    are known to be for their virtual machine."""
    test_steer.pinned(0)
    each = 200
    for field, words in (("without", ["--layout", "dscp6"]),
                         ("with", ["--layout", "dscp6", "--fcf-trusted"])):  # fmt: skip
        at = steered(lab, options, *words)
        at.set("add", "fcf_vm=3", "--vm", "3")
        sender = at.a.raw()

        def send(tos, fragment=0, ident=0, at=at, sender=sender):
            sender.send(
                ethernet(
                    test_steer.B,
                    test_steer.A,
                    0x800,
                    test_steer.ipv4(
                        "10.0.0.1",
                        "10.0.0.2",
                        ESP,
                        os.urandom(800),
                        tos=tos,
                        fragment=fragment,
                        ident=ident,
                    ),  # fmt: skip
                )
            )

        tos = 3 << 2 if field == "with" else 0
        for kind in ("whole", "fragments"):
            before = at.flows()["entries"][0]["packets"]
            for number in range(each):
                if kind == "whole":
                    send(tos)
                    continue
                for fragment in (0x2000, 0x2000 | 100, 200):
                    send(tos, fragment, number)
            count = each * (1 if kind == "whole" else 3)
            harness.wait_for(
                "all are counted",
                lambda at=at, least=count + (each if kind == "fragments" else 0): (
                    at.show()["counters"]["received"] >= least
                ),
            )
            found = at.flows()["entries"][0]["packets"] - before
            emit("sluice", {"field": field, "packets": kind}, {"found": 100 * found / count})
        at.command("stop")
        at.process.wait(10)
        remove("a", "b")


def c8(options):
    """What the controller of examples/ does, by its end-to-end tests."""
    command = os.path.join(ROOT, "tests", "run")
    is_installed = not os.path.exists(command)
    steps = {
        "two hosts": "a_controller_steers_two_hosts",
        "OpenFlow 1.0": "messages_of_1_0",
        "fields at ports": "ports_write_clear_and_take_off_the_field",
        "fields outside tunnels": "tunnels_have_the_field_outside",
        "a guest's core": "a_guests_core_is_that_of_its_process",
        "machines that move": "machines_that_change_ports_stop_before_they_start",
    }
    for step, name in steps.items():
        if is_installed:
            emit("sluice", {"step": step}, missing="only where Sluice's sources are")
            continue
        began = time.monotonic()
        done = subprocess.run(
            [command, f"vse_controller.{name}"],
            env=os.environ | {"SWITCHD": options.daemon or switchd()},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        stderr(done.stdout[-2000:])
        seconds = time.monotonic() - began
        if " 1 skipped" in done.stdout:
            emit("sluice", {"step": step}, missing="skipped here: " + done.stdout.strip()[-200:])
            continue
        works = 100 * (done.returncode == 0)
        emit("sluice", {"step": step}, {"works": works, "seconds": seconds})


def c9(lab, options):
    """A live flow that is moved again and again between two cores."""
    for rate in by_mode(options, [10, 200], [10, 50, 200]):
        at = steered(lab, options)
        at.set("add", "udp,tp_dst=77", "--core", "1")
        stream = test_steer.Stream(at, 77, rate=5000)
        harness.wait_for("packets come", lambda at=at: at.choice(0))
        end, moves, began = time.monotonic() + options.seconds + 1, 0, time.monotonic()
        while time.monotonic() < end:
            if "error" not in at.ask(do="move", entry=0, flow=None, core=moves % 2):
                moves += 1
            time.sleep(1 / rate)
        seconds = time.monotonic() - began
        lost, late = stream.end()
        done = sum(choice["moves"] for choice in at.flows()["choices"])
        emit(
            "sluice",
            {"asked": rate},
            {
                "moves": done / seconds,
                "rate": stream.sent / seconds / 1e3,
                "lost": lost,
                "late": late,
            },
        )
        at.command("stop")
        at.process.wait(10)
        remove("a", "b")


def c10(lab, options):
    """A virtual machine starts on a flow's core."""
    steering.LENGTH = 1344
    most = prepared(lab, options)
    if not hasattr(options, "alone"):
        options.alone = [
            max(steering.speed(steering.worker(options, core, 0.5))[1] for _ in range(3))
            for core in (0, 1)
        ]
    results = Results(None)
    options.number = getattr(options, "number", 0) + 1
    steering.avoidance(lab, options.number, 0.2 * most, options, results)
    found = {row.removeprefix("avoidance: "): values["steering"][-1] for row, values in
             results.rows.items()}  # fmt: skip
    emit(
        "sluice",
        {"event": "a VM starts"},
        {
            "left": found["left after, ms"],
            "kept": found["VM's speed, % of alone"],
            "lost": found["lost packets"],
            "late": found["late packets"],
        },
    )


EXPERIMENTS = {
    "C1": collisions,
    "C3": collisions,
    "C4": collisions,
    "C7": c7,
    "C8": c8,
    "C9": c9,
    "C10": c10,
}


def main():
    """Runs one experiment."""
    words = words_of(__doc__, EXPERIMENTS)
    words.add_argument("--sluice", help="the command (default: sluice beside sluiced)")
    options = words.parse_args()
    daemon = options.daemon or switchd()
    options.sluice = [options.sluice or command_of(daemon)]

    if options.experiment == "C8":
        for _ in range(options.rounds):
            c8(options)
        return

    measure(options, EXPERIMENTS, 0)


if __name__ == "__main__":
    sys.exit(main())
