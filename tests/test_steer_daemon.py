"""`other_config:sluice-steer`: the daemon itself steers kernel interfaces."""

import json
import os
import re
import struct
import time

from harness import Skip, check, equal, mac, run, test, wait_for
from test_steer import A, frame, pinned
from test_vse_controller import CAPABILITIES_REPLY, Client, steering_mod

WIRE = "wire"
# `udp` as entries are shown.
UDP = "dl_type=0x800,nw_proto=17"


class Steering:
    """A daemon whose namespace has an interface `wire`, whose other end is eth0 in namespace a."""

    def __init__(self, lab, *config, link=True):
        if lab.is_ovs:
            raise Skip("an extension of Sluice's")
        if os.cpu_count() < 2:
            raise Skip("one core: nothing to steer to")
        self.lab = lab
        self.sluice = os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")
        self.switch = lab.switch(config=[f"other_config:sluice-steer{key}" for key in config])
        self.far = lab.namespace("a").quiet()
        if link:
            self.link()

    def link(self, name=WIRE, device="eth0"):
        """Makes an interface."""
        self.switch.namespace.run(
            f"ip link add {name} type veth peer name {device} address {A} netns {self.far.name}"
        )
        self.switch.namespace.run(f"ip link set {name} up")
        self.far.run(f"ip link set {device} up")

    def set(self, value, key=""):
        """Sets a key."""
        self.switch.vsctl("set", "Open_vSwitch", ".", f"other_config:sluice-steer{key}={value}")

    def unset(self, key=""):
        """Removes a key."""
        self.switch.vsctl("remove", "Open_vSwitch", ".", "other_config", f"sluice-steer{key}")

    def state(self, name=WIRE):
        """What `sluice/steered` says of an interface, or None."""
        found = re.search(rf"^{name}: (.*)$", self.switch.appctl("sluice/steered"), re.M)
        return found and found.group(1)

    def is_up(self, name=WIRE):
        """Waits until the daemon steers an interface, and its socket answers."""
        wait_for(
            f"{name} is steered", lambda: (self.state(name) or "").startswith("steered in "), 20
        )
        wait_for(f"{name} answers", lambda: self.command("show", name, ok=False).returncode == 0)

    def says(self, pattern, name=WIRE):
        """Waits until `sluice/steered` says this of an interface."""
        wait_for(
            f"{name}: {pattern}", lambda: re.search(pattern, self.state(name) or "nothing"), 20
        )

    def command(self, *words, ok=True):
        """`sluice steer WORDS`."""
        words = [str(word) for word in words]
        return run([self.sluice, "steer", *words, "--rundir", self.switch.directory], ok=ok)

    def add(self, match, *words, device=WIRE):
        """Adds an entry."""
        return self.command("set", "add", match, *words, "--device", device)

    def show(self, name=WIRE):
        """The session's status."""
        return json.loads(self.command("show", name, "--json").stdout)

    def shows(self, what, condition, name=WIRE):
        """Waits until the session's status fulfils a condition: a new session may not answer
        yet."""

        def fulfils():
            done = self.command("show", name, "--json", ok=False)
            return done.returncode == 0 and condition(json.loads(done.stdout))

        wait_for(what, fulfils, 20)

    def entries(self, name=WIRE):
        """Matches and targets of entries."""
        flows = json.loads(self.command("flows", name, "--json").stdout)
        return [(entry["match"], entry["target"]) for entry in flows["entries"]]

    def programs(self, name=WIRE):
        """XDP programs of an interface, as `ip` shows them."""
        link = json.loads(self.switch.namespace.run(f"ip -j -d link show {name}").stdout)[0]
        return link.get("xdp", {}).get("attached", [])

    def socket(self, name=WIRE):
        """Whether an interface's socket is there."""
        return os.path.exists(f"{self.switch.directory}/steer-{name}.sock")

    def resident(self, log, rundir=None):
        """`sluice steer run` for the interface."""
        rundir = rundir or self.switch.directory
        return self.switch.namespace.start(
            [self.sluice, "steer", "run", WIRE, "--mode", "generic", "--rundir", rundir], log
        )

    def printed(self, log):
        """What a process has printed."""
        with open(os.path.join(self.lab.directory, log), encoding="utf-8") as file:
            return file.read()


@test(timeout=120)
def the_database_says_what_is_steered(lab):
    """An interface that does not exist is waited for and then steered; options and entries take
    effect while packets come; without the key it is released."""
    steering = Steering(lab, f"={WIRE}", link=False)
    switch = steering.switch
    pinned(0)
    steering.says("not steered: wire: there is no such interface")
    steering.link()
    steering.is_up()
    equal(
        len(re.findall(r"there is no such interface.*it is waited for", switch.log())),
        1,
        "messages that it is waited for",
    )
    equal(len(steering.programs()), 1, "programs")
    equal(steering.show()["pid"], switch.process.pid, "whose the programs are")
    for port, core in ((1, 0), (2, 1)):
        steering.add(f"udp,tp_dst={port}", "--core", core)
    steering.add("udp,tp_dst=3", "--hard-timeout", "600", "--idle-timeout", "300", "--vm", "7")
    sender, receiver = steering.far.raw(), switch.namespace.raw(WIRE)
    before = {core["core"]: core for core in steering.show()["cores"]}
    sent = [frame(1 + number % 2, source=2000 + number) for number in range(200)]
    sender.send(*sent)
    got = receiver.receive(3, wanted=lambda data: data[6:12] == mac(A), until=200)
    equal(sorted(got), sorted(sent), "frames that arrived")

    def grown(kind, core):
        after = {core["core"]: core for core in steering.show()["cores"]}
        return after[core][kind] - before[core][kind]

    equal((grown("direct", 0), grown("redirected", 1)), (100, 100), "packets by core")
    # Constants change in place; other options need a new session, which has the same entries.
    choices = steering.show()["choices"]
    steering.set("high=90,hold=400", "-set")
    steering.shows("another constant", lambda shown: shown["constants"]["high"] == 90)
    shown = steering.show()
    equal((shown["constants"]["hold"], shown["choices"]), (400, choices), "hold, and choices")
    check(shown["counters"]["received"] >= 200, "another session:", shown["counters"])
    entries = steering.entries()
    equal(len(entries), 3, "entries")
    steering.set("dscp6", "-layout")
    steering.shows("another layout", lambda shown: shown["layout"] == "dscp6")
    equal(steering.entries(), entries, "entries")
    equal(steering.show()["constants"]["high"], 90, "a constant")
    check(steering.show()["counters"]["received"] < 200, "no other session")
    # What cannot be had any more is named.
    steering.set("0", "-cores")
    steering.shows("fewer cores", lambda shown: [core["core"] for core in shown["cores"]] == [0])
    equal([match for match, _ in steering.entries()], [m for m, t in entries if t != "core 1"], "")
    switch.logged(r"wire: not kept: entry .*tp_dst=2.*core 1: packets are steered to cores 0 only")
    # A second interface, and then that one alone.
    steering.link("wire2", "eth1")
    steering.set(f"{WIRE},wire2")
    steering.is_up("wire2")
    equal(len(steering.programs()), 1, "programs of the first")
    steering.set("wire2")
    wait_for("the first is released", lambda: not steering.programs() and not steering.socket())
    equal((steering.state(), len(steering.programs("wire2"))), (None, 1), "the other")
    # A name that is wanted anew begins without entries.
    steering.set(f"{WIRE},wire2")
    steering.is_up()
    equal(steering.entries(), [], "entries of the first")
    steering.unset()
    wait_for(
        "both are released",
        lambda: not steering.programs() and not steering.programs("wire2"),
    )
    wait_for("no socket is left", lambda: not steering.socket() and not steering.socket("wire2"))
    equal(switch.appctl("sluice/steered"), "", "what is steered")
    sender.send(*sent[:50])
    equal(len(receiver.receive(3, lambda data: data[6:12] == mac(A), 50)), 50, "frames afterwards")


@test(timeout=120)
def others_and_the_daemon_leave_each_other_alone(lab):
    """Whoever steers first keeps the interface, and the other says so; `stop` is refused with a
    hint."""
    steering = Steering(lab, f"={WIRE}", "-mode=generic")
    switch = steering.switch
    steering.is_up()
    equal(steering.state(), "steered in generic mode: as asked for", "the state")
    refused = steering.command("stop", WIRE, ok=False)
    check(
        refused.returncode and "take it out of other_config:sluice-steer" in refused.stderr,
        refused.stderr,
    )
    program = steering.programs()
    check("generic mode" in steering.command("show", WIRE).stdout, "show says the mode")
    check("core 0" in steering.command("watch", WIRE, "-n", "1").stdout, "watch shows cores")
    for log, rundir, pattern in (
        ("same.out", None, "wire: is steered already, by the process at "),
        ("other.out", f"{switch.directory}/other", "carries another XDP program .* left alone"),
    ):
        process = steering.resident(log, rundir)
        check(process.wait(20), f"sluice steer run did not fail ({log})")
        check(re.search(pattern, steering.printed(log)), steering.printed(log))
        equal(steering.programs(), program, "programs")
    steering.unset()

    def released():
        # The socket goes after the program, and who comes meanwhile is told that it is there.
        return not steering.programs() and not steering.socket()

    wait_for("it is released", released)
    # Now the others are first, with their sockets elsewhere and here.
    for log, rundir, pattern in (
        (
            "first.out",
            f"{switch.directory}/other",
            r"not steered: wire: carries another XDP program \(number \d+, generic mode\)",
        ),
        ("second.out", None, "not steered: wire: is steered already, by the process at "),
    ):
        process = steering.resident(log, rundir)
        wait_for("it is steered", lambda log=log: "steered in generic" in steering.printed(log), 20)
        program = steering.programs()
        steering.set(WIRE)
        steering.says(pattern)
        time.sleep(2.5)
        equal(steering.programs(), program, "programs")
        equal(len(re.findall(f"WARN.{pattern}", switch.log())), 1, "warnings")
        process.terminate()
        equal(process.wait(10), 0, "status of sluice steer run")
        steering.is_up()
        steering.unset()
        wait_for("it is released again", released)


@test(timeout=120)
def programs_go_with_the_daemon_and_the_interface(lab):
    """After kill -9 no program is left, and the next daemon steers again; after the daemon's own
    end nothing is left; an interface that is made anew is steered with the entries that it had."""
    steering = Steering(lab, f"={WIRE}")
    switch = steering.switch
    steering.is_up()
    steering.add("udp,tp_dst=2", "--core", 1)
    steering.command("set", "vm", 5, "--core", 0, "--device", WIRE)
    entries = steering.entries()
    switch.namespace.run(f"ip link del {WIRE}")
    steering.says("not steered: wire: ")
    steering.link()
    steering.is_up()
    equal(steering.entries(), entries, "entries of the interface that was made anew")
    equal([vm["vm"] for vm in steering.show()["vms"]], [5], "virtual machines")
    switch.kill()
    wait_for("the program is gone", lambda: not steering.programs())
    check(steering.socket(), "the killed daemon's socket is what the next one has to replace")
    switch.start()
    steering.is_up()
    equal((len(steering.programs()), steering.entries()), (1, []), "programs and entries")
    switch.stop()
    equal((steering.programs(), steering.socket()), ([], False), "what is left")
    switch.start()
    steering.is_up()
    switch.appctl("exit")
    equal(switch.process.wait(20), 0, "status")
    switch.process = None
    equal((steering.programs(), steering.socket()), ([], False), "what is left after exit")
    switch.start()


@test(timeout=120)
def bad_values_are_named(lab):
    """A bad value is named with its key and ignored, and what is good is applied."""
    steering = Steering(lab, "=a/b,wire,name-of-16-bytes")
    switch = steering.switch
    steering.is_up()
    for pattern in ('"a/b" is no interface', '"name-of-16-bytes" is no interface'):
        switch.logged(f"open_vswitch other_config:sluice-steer: {pattern}")
    equal(switch.appctl("sluice/steered").count("\n"), 1, "interfaces")
    steering.add("udp", "--core", 1)
    sender = steering.far.raw()
    sender.send(frame())
    wait_for("it is counted", lambda: steering.show()["counters"]["received"] >= 1)
    before = steering.show()["counters"]["samples"]
    for key, value, pattern in (
        ("-mode", "fast", '"fast" is not one of driver, generic'),
        ("-cores", "1-", '"1-" is no list of cores'),
        ("-cores", "4000", "no core 4000 can be steered to"),
        ("-layout", "dscp", '"dscp" is not one of none, dscp6, tos8, vlan'),
        ("-fcf-trusted", "yes", '"yes" is neither true nor false'),
        ("-fcf-strip", "2", '"2" is neither true nor false'),
        ("-vxlan-port", "vxlan", '"vxlan" is not an integer'),
        ("-entries", "x", '"x" is not an integer'),
        ("-flows", "x", '"x" is not an integer'),
        ("-set", "low=3", '"low=3": low: there is no such constant'),
        ("-set", "high=0", "high: 0.0% is not above 0%"),
        ("-proc-stat", "maybe", '"maybe" is neither true nor false'),
        ("-core", "1", "there is no such key"),
    ):
        steering.set(value, key)
        switch.logged(f"open_vswitch other_config:sluice-steer{key}: {re.escape(pattern)}")
        steering.unset(key)
    # The session has not been disturbed by any of it.
    shown = steering.show()
    check(shown["counters"]["samples"] > before, "another session:", shown["counters"])
    equal(steering.entries(), [(UDP, "core 1")], "entries")
    # What only the kernel can refuse is said, and mended.
    steering.set("lo,wire")
    steering.is_up("lo")
    steering.set("driver", "-mode")
    steering.says("not steered: lo: its driver has no driver-mode XDP", "lo")
    steering.is_up()
    steering.unset("-mode")
    steering.is_up("lo")
    equal(steering.entries(), [(UDP, "core 1")], "entries in the end")


@test(timeout=120)
def controllers_are_told_of_interfaces_that_are_steered_anew(lab):
    """A controller that has asked for capabilities gets them again when an interface is steered
    later or anew, and its entries are taken there."""
    steering = Steering(lab)
    switch = steering.switch
    switch.bridge("br0", "fail_mode=secure")
    client = Client(f"{switch.directory}/br0.mgmt", 60)
    client.wants_port_status()
    client.capabilities()

    def told(*wanted):
        """Waits for a message with these interfaces; one may come between two states."""
        while True:
            body = client.hears(CAPABILITIES_REPLY)
            devices = [struct.unpack_from("!16sBB", body, at) for at in range(16, len(body), 24)]
            if [(name.rstrip(b"\0").decode(), *how) for name, *how in devices] == list(wanted):
                return

    def entries_are_taken():
        client.proxied(1, WIRE, steering_mod("udp,tp_dst=9", how=3, core=1), 77)
        equal(client.told(78), [], "errors")
        equal(steering.entries(), [(f"{UDP},tp_dst=9", "core 1")], "entries")

    steering.set("generic", "-mode")
    steering.set(WIRE)
    told((WIRE, 2, 0))
    entries_are_taken()
    steering.set("tos8", "-layout")
    told((WIRE, 2, 2))
    steering.unset()
    told()
    # So it is with the command.
    process = steering.resident("run.out")
    told((WIRE, 2, 0))
    entries_are_taken()
    process.terminate()
    equal(process.wait(10), 0, "status of sluice steer run")
    told()
