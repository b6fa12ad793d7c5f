"""The commands of the README and of the user guide, as they stand there."""

import os
import re
import shutil
import subprocess

from documents import DOCUMENTS, blocks, commands, complaints, parse, strict, text_of
from harness import ROOT, Skip, check, equal, run, test, wait_for

# Printed ahead of each block's output; no document has it.
NEXT = "\x1e"


def tour(lab, path, seconds):
    """Runs the blocks of a document in one shell, which stops at the first command that fails.

    Returns for each block its heading and what it printed."""
    if lab.is_ovs:
        raise Skip("the documents are about Sluice")
    parts = [block for block in blocks(path) if block.runs]
    check(len(parts) >= 6, f"{path} has no tour")
    # Others on this machine may follow the same documents; this mount goes with the test's
    # namespaces. The test's own directory stays.
    run(["mount", "--bind", lab.directory, "/mnt"])
    run("mount -t tmpfs tmpfs /tmp")
    os.makedirs(lab.directory)
    run(["mount", "--bind", "/mnt", lab.directory])
    before = set(os.listdir("/tmp"))
    binaries = os.path.dirname(lab.switchd[0])
    script = "".join(f"printf '{NEXT}'\n{strict(block.text)}" for block in parts).replace(
        "$PWD/target/release", binaries
    )
    # A shell that is not interactive has no %1 unless it is told to have jobs.
    done = run(
        ["bash", "-c", "set -e -o pipefail -m; exec 2>&1\n" + script],
        cwd=ROOT,
        seconds=seconds,
        ok=False,
    )
    printed = done.stdout.split(NEXT)[1:]
    last = parts[len(printed) - 1]
    check(
        done.returncode == 0,
        f"the commands of {path}, line {last.line} and on, ended with {done.returncode}:\n"
        f"{done.stdout[-3000:]}",
    )
    equal(len(printed), len(parts), "blocks that ran")
    equal(set(os.listdir("/tmp")) - before, set(), f"what {path} leaves in /tmp")
    equal(run("ip netns list").stdout, "", f"namespaces that {path} leaves")
    # The kernel takes its time with the devices of namespaces that are gone.
    wait_for(f"{path} leaves no devices", lambda: not run("ip -br link show type veth").stdout)
    nothing_runs()
    return [(block.heading, output) for block, output in zip(parts, printed)]


def nothing_runs():
    """Waits until everything that the documents start has ended."""

    def left():
        return subprocess.run(
            ["ps", "-eo", "comm"], capture_output=True, text=True, check=True
        ).stdout

    wait_for(
        "what the tour started has ended",
        lambda: (
            not re.search(
                r"sluiced|vswitchd|ovsdb-server|qemu|testcontroller|iperf3|tcpdump", left()
            )
        ),
    )


def received(output):
    """Mbit/s that the receivers of some runs of iperf3 have got, in their order."""
    units = {"K": 1e-3, "M": 1, "G": 1e3}
    return [
        float(rate) * units[unit]
        for rate, unit in re.findall(r"([\d.]+) ([KMG])bits/sec.* receiver$", output, re.M)
    ]


@test(timeout=170)
def readme(lab):
    """The five-minute tour of README.md."""
    tour(lab, "README.md", 150)


@test(timeout=320)
def user_guide(lab):
    """The examples of docs/user-guide.md, and that they show what the text says of them."""
    printed = tour(lab, "docs/user-guide.md", 300)

    def of(heading):
        found = [output for name, output in printed if name == heading]
        check(found, f"the guide has no block under {heading}")
        return found

    shaped, policed = of("Quality of service")
    bounded, guaranteed, other = received(shaped)
    check(3 < bounded < 10.5, "Mbit/s of the queue that may have 10:", bounded)
    check(
        50 < guaranteed < 80,
        "Mbit/s of the queue that is sure of 60 beside one that is sure of 30:",
        guaranteed,
    )
    check(20 < other < 80, "Mbit/s of the other queue, which is alone for some of its time:", other)
    check("over_bound" in shaped, "what qos/show says of drops:", shaped)
    # A policer lets a burst pass on top: 1 Mbit and 125 kB, in 2 s.
    by_p1, by_p3 = received(policed)
    check(6 < by_p1 < 22, "Mbit/s that came in by p1, which may have 20:", by_p1)
    check(3 < by_p3 < 12, "Mbit/s that left by p3, which may have 10:", by_p3)
    lost = {name: int(count) for name, count in re.findall(r"^(\w+_policer) +(\d+)", policed, re.M)}
    check(
        lost.get("ingress_policer", 0) > 100 and lost.get("egress_policer", 0) > 100,
        "packets that the policers dropped:",
        lost,
    )

    card = of("A network card and its address")[0]
    equal(
        re.search(r"lladdr (\S+)", card)[1],
        re.search(r"^br0 +\w+ +(\S+)", card, re.M)[1],
        "who answers ARP for the bridge's address",
    )
    equal(of("OVN and OpenStack"), [""], "a firewall before any packet")
    tunnels = of("Tunnels")[0]
    keys = re.findall(
        r"vxlan0 \(vxlan: ::->198\.51\.100\.2, key=(0x\w+), legacy_l2, dp port=\d+, ttl=64\)",
        tunnels,
    )
    numbers = re.findall(r"^ofport +: (\d+)$", tunnels, re.M)
    check(
        keys == ["0x7", "0x8"] and len(numbers) == 2 and len(set(numbers)) == 1,
        "a tunnel that gets another key:",
        tunnels,
    )
    check("tunnel_egress_iface=br-phy" in tunnels, "where the tunnel leaves:", tunnels)

    equal(len(re.findall(r"ICMP echo", of("Mirrors")[0])), 4, "packets that the mirror showed")
    replayed = of("DPDK devices")[0]
    check(
        int(re.search(r"tx pkts=(\d+)", replayed)[1]) >= 10,
        "what was replayed from a file:",
        replayed,
    )
    plain, tls = of("Controllers")
    check(
        re.search(r"is_connected *: true", plain) and re.search(r"^true$", tls, re.M),
        "the controllers:",
        plain,
        tls,
    )
    for output in of("Upgrade and restart"):
        check("tp_dst=9" in output, "a rule that outlives a restart:", output)

    mistake, rule = of("When packets do not arrive")
    trace = re.search(r"Datapath actions: (.*)", mistake)[1]
    ports = {
        name: re.search(rf'name +: "?{name}"?\nofport +: (\d+)', mistake)[1]
        for name in ("p1", "p3")
    }
    check(
        trace != "drop" and ports["p3"] not in trace.split(","),
        "a flood that does not reach p3:",
        ports,
        trace,
    )
    check(re.search(r'name +: "?p3"?\ntag +: 30', mistake), "the tag of p3:", mistake)
    check(
        re.search(r"icmp,nw_dst=10.0.0.3, priority 40", rule) and "Datapath actions: drop" in rule,
        "the trace of a rule that drops:",
        rule,
    )
    check(
        int(re.search(r"n_packets=(\d+).*priority=40,icmp", rule)[1]) >= 2,
        "what the rule counted:",
        rule,
    )
    check(re.search(r"\baction\D+[1-9]", rule), "what the switch says it dropped:", rule)
    asked, answered = (
        re.split(r"(?m)^\[ *\d+\]|iperf Done", of("Knowing how long packets will wait")[1])[index]
        for index in (0, -1)
    )
    check(
        "watch" in asked and re.search(r"\d+(\.\d+)? [um]s", answered),
        "what is said of a queue:",
        asked,
        answered,
    )


@test(timeout=60)
def every_block_runs_or_says_why_not(lab):
    """No block of README.md and of the guide is left to itself: it runs in a test here, or in `make
    deb-check` or `make container-check`, or shows what it needs and is held to what can be known
    without that."""
    if lab.is_ovs:
        raise Skip("the documents are about Sluice")
    seen = set()
    for path in DOCUMENTS:
        equal(complaints(text_of(path)), [], f"what is wrong with {path}")
        for block in blocks(path):
            where = f"{path}, line {block.line}"
            if block.language == "sh":
                parsed = run(["bash", "-n", "-c", block.text], ok=False)
                check(
                    parsed.returncode == 0 and not parsed.stderr,
                    f"{where} is no shell: {parsed.stderr}",
                )
            seen.add(block.needs)
            if block.needs:
                for target in re.findall(r"^make (\w+)", block.text, re.M):
                    run(["make", "--no-print-directory", "-n", target], cwd=ROOT)
            if block.needs == "podman":
                # `make container-check` carries it out; this holds the words to those at the head
                # of the Containerfile.
                head = re.sub(
                    r"\\\n# *", "", text_of("packaging/Containerfile").split("\nFROM")[0]
                ).replace("#", "")
                for command in commands(block):
                    check(
                        any(
                            set(command.split()) == set(line.split()) for line in head.splitlines()
                        ),
                        f"{where}: packaging/Containerfile does not say",
                        command,
                    )
            if block.needs == "a PCI device":
                without_the_card(lab, where, block)
    check({"make", "a service manager", "podman", "a PCI device"} <= seen, "reasons found:", seen)


def without_the_card(lab, where, block):
    """What a block about a network card says is understood, and the port says that there is no such
    card."""
    switch = lab.switch()
    switch.bridge()
    address = re.search(r"devargs=(\S+)", block.text)[1]
    check(
        not os.path.exists(f"/sys/bus/pci/devices/{address}"),
        f"this machine has {address}, which {where} may not take",
    )
    for command in commands(block):
        words = command.split()
        check(shutil.which(words[0]), f"{where}: there is no {words[0]}")
        if words[0] == "ovs-vsctl":
            switch.vsctl(*words[1:], ok=False)
            name = words[words.index("add-port") + 2]
            error = switch.get("Interface", name, "error")
            check(address in str(error), f"{where}: the port says", error)
            equal(
                switch.get("Interface", name, "status").get("sluice_problems"),
                None,
                f"{where}: what is not obeyed",
            )


@test(timeout=20)
def blocks_without_a_test_are_found(lab):
    """What `every_block_runs_or_says_why_not` would miss nothing of, on documents made for it."""
    del lab

    def said(text):
        return " ".join(complaints(text))

    good = (
        "# A\n\nSo:\n\n<!-- tour -->\n```sh\nls\n```\n\n```xml\n<a/><b/>\n```\n\n- one\n  two\n\n"
        "<!-- needs: podman -->\n```sh\npodman run x\n```\n"
    )
    equal(complaints(good), [], "a document with nothing wrong")
    found, indented = parse(good)
    equal(
        ([(block.line, block.heading, block.runs, block.needs) for block in found], indented),
        ([(6, "A", True, None), (10, "A", False, None), (18, "A", False, "podman")], []),
        "its blocks",
    )
    for text, wanted in (
        ("```sh\nls\n```\n", "neither part of the tour"),
        ("<!-- tour -->\n\n```sh\nls\n```\n", "neither part of the tour"),
        ("<!-- needs: patience -->\n```sh\nls\n```\n", "patience is no reason"),
        ("<!-- needs: podman -->\n```sh\nls\n```\n", "so it can run"),
        ("So:\n\n    ls\n", "line 3: code that is indented"),
        ("```\nls\n```\n", "no language"),
        ("```console\n$ ls\n```\n", "console"),
        ("```xml\n<a>\n```\n", "mismatched"),
        ("x" * 101 + "\n", "101 columns"),
        ("<!-- tour -->\n```sh\n# nothing\n```\n", "no command"),
    ):
        check(wanted in said(text), f"{text!r} is not found to be wrong:", said(text))
    equal(
        commands(parse("```sh\na b \\\n  --c # why\n# no\nd '#1'x#y\n```\n")[0][0]),
        ["a b --c", "d '#1'x#y"],
        "commands",
    )
    for text, status in (
        ("! false # as it should be\ntrue\n", 0),
        ("! true\ntrue\n", 1),
        ("! test 1 = \\\n  1\ntrue\n", 1),
        ("! test 1 = \\\n  2\ntrue\n", 0),
        ("if ! true; then\n  false\nfi\ntrue\n", 0),
        ("false\ntrue\n", 1),
    ):
        done = run(["bash", "-c", "set -e\n" + strict(text)], ok=False)
        equal((done.returncode, done.stderr), (status, ""), f"what the tour makes of {text!r}")
