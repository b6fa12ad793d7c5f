"""os-ken's switch certification tests (the former Ryu suite), run against the daemon under test.

Two daemons stand opposite each other, with three veth pairs between them: the target, and a tester,
which is always Open vSwitch, with its cache off because that answers with stale rules for some
milliseconds after a change. os-ken's own test application, unmodified, is the controller of both:
it gives the target rules, has the tester send packets, and compares what comes back and what was
counted.

A test is named FILE: DESCRIPTION, with FILE below the suite's folder (of13/match/06_VLAN_VID.json).
Tests that cannot pass stand in conformance/expected-failures-VERSION.txt, each with its reason: a
line is a FILE, or FILE: DESCRIPTION, then two spaces, # and why.
"""

import glob
import json
import os
import random
import re

from harness import ROOT, Skip, check, run, switchd_command, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".build/venv")
VERSIONS = {"of10": "OpenFlow10", "of13": "OpenFlow13", "of14": "OpenFlow14"}
# Tests that hold a rate of what os-ken's sender makes, in Python, against the rate that it was
# asked for. They judge the sender where others want the processor, and take half a minute each:
# `make conformance` runs them, the sample does not. (test_groups and test_meters count exactly.)
MEASURES_A_RATE = re.compile(r"\d+([KM]?bps|pktps)\(")
# How often a test that is expected to pass may be tried.
TRIES = 3
PORTS = 3


def suite():
    """Where os-ken keeps its test files."""
    found = glob.glob(f"{VENV}/lib/python3*/site-packages/os_ken/tests/switch")
    if not found:
        raise Skip("no os-ken in .build/venv: run scripts/setup")
    return found[0]


def catalogue(version):
    """All tests of a version: (file, description), in order."""
    tests, top = [], suite()
    for path in sorted(glob.glob(f"{top}/{version}/**/*.json", recursive=True)):
        with open(path, encoding="utf-8") as file:
            tests += [
                (os.path.relpath(path, top), test["description"])
                for test in json.load(file)
                if isinstance(test, dict)
            ]
    return tests


def kind(name):
    """What a test is about: action, set-field, match, group or meter."""
    return "set-field" if "SET_FIELD" in name[0] else name[0].split("/")[1]


def expected_failures(version):
    """What cannot pass: {file or (file, description): reason}."""
    reasons = {}
    path = os.path.join(HERE, f"conformance/expected-failures-{version}.txt")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if not line.strip() or line.startswith("#"):
                    continue
                name, separator, reason = line.strip().partition("  # ")
                check(separator and reason, f"{path}: no reason behind {line.strip()!r}")
                file_name, _, description = name.strip().partition(": ")
                if not file_name.startswith(version + "/"):
                    file_name = f"{version}/{file_name}"
                reasons[(file_name, description) if description else file_name] = reason
    return reasons


def is_expected(name, reasons):
    """Whether a test stands in the list."""
    return name in reasons or name[0] in reasons


def sample(version, count, seed):
    """Some tests of a version: one of every file, then at random; none that measures a rate."""
    chosen = random.Random(f"{seed} {version}")
    tests = [name for name in catalogue(version) if not MEASURES_A_RATE.search(name[1])]
    files = sorted({name[0] for name in tests})
    wanted = set()
    for file in chosen.sample(files, min(len(files), count)):
        wanted.add(chosen.choice([name for name in tests if name[0] == file]))
    rest = [name for name in tests if name not in wanted]
    wanted.update(chosen.sample(rest, max(0, min(len(rest), count - len(wanted)))))
    return [name for name in tests if name in wanted]


def write_files(tests, directory):
    """Puts the chosen tests into files of the suite's form below a directory."""
    by_file = {}
    for file, description in tests:
        by_file.setdefault(file, set()).add(description)
    for name, descriptions in by_file.items():
        with open(os.path.join(suite(), name), encoding="utf-8") as file:
            content = json.load(file)
        # The head line tells os-ken's report which file a test is from.
        kept = [name] + [
            test
            for test in content
            if isinstance(test, dict) and test["description"] in descriptions
        ]
        path = os.path.join(directory, name.replace("/", "__"))
        with open(path, "w", encoding="utf-8") as file:
            json.dump(kept, file)


class Bench:
    """Target and tester with the links between them."""

    def __init__(self, lab, version):
        self.lab, self.version, self.runs = lab, version, 0
        self.target = lab.switch("target")
        self.tester = lab.switch(
            "tester", command=switchd_command("ovs"), config=["other_config:flow-limit=0"]
        )
        here, there = self.target.namespace, self.tester.namespace
        # The controller is in the target's namespace; the tester reaches it over this pair.
        here.run(
            ["ip", "link", "add", "m0", "type", "veth", "peer", "name", "m1", "netns", there.name]
        )
        for namespace, device, address in (
            (here, "m0", "10.77.0.1/24"),
            (there, "m1", "10.77.0.2/24"),
        ):
            namespace.run(["ip", "addr", "add", address, "dev", device])
            namespace.run(["ip", "link", "set", device, "up"])
        for number in range(1, PORTS + 1):
            here.run(
                [
                    "ip",
                    "link",
                    "add",
                    f"s{number}",
                    "mtu",
                    "2000",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    f"t{number}",
                    "mtu",
                    "2000",
                    "netns",
                    there.name,
                ]
            )
            for namespace, device in ((here, f"s{number}"), (there, f"t{number}")):
                namespace.run(
                    f"ethtool -K {device} tx off rx off gso off tso off gro off txvlan off rxvlan "
                    "off",
                    ok=False,
                )
                namespace.run(["ip", "link", "set", device, "up"])
        self.configure(self.target, 1, "s", "127.0.0.1")
        self.configure(self.tester, 2, "t", "10.77.0.1")

    def configure(self, switch, identifier, prefix, controller):
        """A bridge as the suite wants it."""
        switch.bridge(
            "br",
            "fail_mode=secure",
            f"protocols={VERSIONS[self.version]}",
            f"other-config:datapath-id={identifier:016x}",
            "other-config:disable-in-band=true",
        )
        for number in range(1, PORTS + 1):
            switch.port(f"{prefix}{number}", f"ofport_request={number}", bridge="br")
        switch.vsctl(
            "set-controller",
            "br",
            f"tcp:{controller}:6653",
            "--",
            "set",
            "controller",
            "br",
            "connection_mode=out-of-band",
            "max_backoff=1000",
        )

    def run(self, tests, seconds):
        """Runs tests; returns {(file, description): None or what went wrong} for those that were
        run."""
        self.runs += 1
        directory = os.path.join(self.lab.directory, f"tests-{self.runs}")
        os.makedirs(directory)
        write_files(tests, directory)
        log = f"os-ken-{self.runs}.log"
        version = VERSIONS[self.version].lower()
        process = self.target.namespace.start(
            [
                f"{VENV}/bin/python",
                "-W",
                "ignore",
                f"{VENV}/bin/osken-manager",
                "--ofp-tcp-listen-port",
                "6653",
                "--ofp-listen-host",
                "0.0.0.0",
                "--test-switch-target-version",
                version,
                "--test-switch-tester-version",
                version,
                "--test-switch-interval",
                "0",
                "--test-switch-dir",
                directory,
                "os_ken.tests.switch.tester",
            ],
            log,
        )
        wait_for("the certification tests end", lambda: process.poll() is not None, seconds)
        return results(os.path.join(self.lab.directory, log))


def results(log):
    """What os-ken's report says of each test."""
    found, current, pending = {}, None, None
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("---  Test end"):
                break
            head = re.match(r"(of1\d/\S+\.json)$", line)
            test = re.match(r"    (\S.*?)\s+(OK|ERROR)$", line)
            if head:
                current = head.group(1)
            elif test and current:
                pending = (current, test.group(1))
                found[pending] = None if test.group(2) == "OK" else "failed"
            elif pending and found.get(pending) and line.startswith("        "):
                found[pending] = line.strip()
                pending = None
    return found


def certify(lab, version, tests):
    """Runs tests and fails when one that is not expected to fail did, each time.

    Tells how many passed."""
    check(os.path.exists(os.path.join(suite(), version)), f"os-ken has no tests of {version}")
    reasons = expected_failures(version)
    bench = Bench(lab, version)
    patience = 120 + sum(60 if kind(name) == "meter" else 6 for name in tests)
    found = bench.run(tests, patience)
    missing = [name for name in tests if name not in found]
    check(not missing, f"{len(missing)} tests of {version} were not run, the first: {missing[:1]}")
    failed = [name for name in tests if found[name] is not None]
    # The suite waits for packets in real time, and measures rates of what a Python program sends
    # (groups, meters; not in samples): on a loaded machine packets come late or too few. What is
    # wrong fails every time.
    again = [name for name in failed if not is_expected(name, reasons)]
    new = again
    for _ in range(TRIES - 1):
        retried = bench.run(new, patience) if new else {}
        new = [name for name in new if retried.get(name, "was not run again") is not None]
    for name in again:
        if name not in new:
            print(f"passed when tried again: {name[0]}: {name[1]}: {found[name]}")
    for name in failed:
        if name not in again:
            print(f"expected: {name[0]}: {name[1]}: {found[name]}")
    lab.note(
        f"{version}: {len(tests) - len(failed) + len(again) - len(new)} of {len(tests)} passed"
    )
    surprises = sorted({name[0] for name in tests if found[name] is None and name in reasons})
    if surprises:
        lab.note(f"passed though expected to fail: {' '.join(surprises)}")
    for name in new:
        print(f"{name[0]}: {name[1]}: {found[name]}")
    check(
        not new,
        f"{len(new)} tests of {version} that are not in "
        f"conformance/expected-failures-{version}.txt failed:",
        "; ".join(f"{name[0]}: {name[1]}" for name in new[:20]),
    )


def seed():
    """What picks the sample: SEED, else the commit, so that runs of one commit agree and others see
    other tests."""
    given = os.environ.get("SEED")
    if given:
        return given
    commit = run(
        ["git", "-C", ROOT, "-c", "safe.directory=*", "rev-parse", "--short=8", "HEAD"], ok=False
    ).stdout.strip()
    return commit or "1"
