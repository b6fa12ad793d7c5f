"""Ports whose devices are moved to other network namespaces, renamed and deleted there; what the
kernel tells of its interfaces; devices that outlive the daemon."""

import json
import os
import re
import time

from harness import Skip, becomes, check, equal, run, test, wait_for

KEEPS = "Open vSwitch loses sight of the device, and makes another one when it starts again"


def device(namespace, name):
    """What `ip` shows of an interface, or None when there is none."""
    done = namespace.run(["ip", "-j", "-d", "addr", "show", "dev", name], ok=False)
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


def state(switch, name):
    """What the database says of a port's device."""
    return {
        column: switch.get("Interface", name, column)
        for column in (
            "ofport",
            "mac_in_use",
            "mtu",
            "ifindex",
            "admin_state",
            "link_state",
            "error",
        )
    }


def counter(switch, name):
    """One of the daemon's coverage counters."""
    done = switch.appctl("coverage/read-counter", name, ok=False)
    return int(done.stdout) if done.returncode == 0 else 0


def bridge_and_host(lab):
    """A switch with a bridge and a host 10.0.0.1 at it, and another namespace."""
    switch = lab.switch()
    switch.bridge()
    host = lab.host("h1", switch, ip="10.0.0.1/24", quiet=True)
    return switch, host, lab.namespace("x").quiet()


@test(timeout=120)
def a_moved_port_goes_on(lab):
    """An internal port carries packets in the namespace that it is moved to, and the database and
    OpenFlow tell how it is there."""
    switch, host, there = bridge_and_host(lab)
    number = switch.port("tap0", "type=internal")
    before = state(switch, "tap0")
    switch.namespace.run("ip link set tap0 netns x")
    there.run("ip addr add 10.0.0.2/24 dev tap0")
    there.run("ip link set tap0 up")
    there.reaches("10.0.0.1")
    there.ping("10.0.0.1")
    host.ping("10.0.0.2")
    equal(device(switch.namespace, "tap0"), None, "a device of its name where it was")
    equal(switch.get("Interface", "tap0", "ofport"), number, "its number")
    if switch.is_ovs:
        raise Skip(KEEPS)
    wanted = dict(before, admin_state="up", link_state="up")
    becomes(lambda: state(switch, "tap0"), wanted, "what the database says of it")
    shown = re.search(
        r"\d+\(tap0\): addr:(\S+)\n +config: +(\S+)\n +state: +(\S+)", switch.ofctl("show", "br0")
    )
    equal(shown.groups(), (before["mac_in_use"], "0", "0"), "what OpenFlow says of it")
    # It is down, another name, another MTU and another address.
    for command in (
        "set tap0 down",
        "set tap0 name foo",
        "set foo mtu 1300",
        "set foo address 02:00:00:00:00:77",
    ):
        there.run(f"ip link {command}")
    wanted.update(mtu=1300, mac_in_use="02:00:00:00:00:77", admin_state="down", link_state="down")
    becomes(
        lambda: state(switch, "tap0"),
        wanted,
        "what the database says of it when it is renamed and down",
    )
    there.run("ip link set foo up")
    there.reaches("10.0.0.1")
    wanted.update(admin_state="up", link_state="up")
    becomes(
        lambda: state(switch, "tap0"), wanted, "what the database says of it when it is up again"
    )
    # What is asked of the port is done to the device, where it is, and not to another one of its
    # name.
    switch.namespace.run("ip link add tap0 type veth peer name other")
    namesake = device(switch.namespace, "tap0")
    switch.vsctl("set", "Interface", "tap0", "mtu_request=1280", 'mac="02:00:00:00:00:78"')
    wanted.update(mtu=1280, mac_in_use="02:00:00:00:00:78")
    becomes(
        lambda: state(switch, "tap0"),
        wanted,
        "what the database says of it when it has been changed",
    )
    shown = device(there, "foo")
    equal((shown["mtu"], shown["address"]), (1280, "02:00:00:00:00:78"), "the device")
    switch.ofctl("mod-port", "br0", "tap0", "down")
    becomes(
        lambda: "UP" in device(there, "foo")["flags"],
        False,
        "whether it is up when OpenFlow has set it down",
    )
    switch.ofctl("mod-port", "br0", "tap0", "up")
    there.reaches("10.0.0.1")
    equal(device(switch.namespace, "tap0"), namesake, "the device of the same name where it was")
    wanted.update(admin_state="up", link_state="up")
    becomes(
        lambda: state(switch, "tap0"),
        wanted,
        "what the database says of it beside another one of its name",
    )
    switch.namespace.run("ip link del tap0")
    # And back.
    there.run(f"ip link set foo netns {switch.name}")
    switch.namespace.run("ip addr add 10.0.0.3/24 dev foo")
    switch.namespace.run("ip link set foo up")
    switch.namespace.reaches("10.0.0.1")
    becomes(
        lambda: state(switch, "tap0"),
        dict(wanted, ifindex=device(switch.namespace, "foo")["ifindex"]),
        "what the database says of it when it is back",
    )
    equal(len(re.findall("added interface tap0", switch.log())), 1, "how often it was opened")
    switch.vsctl("del-port", "tap0")
    equal(device(switch.namespace, "foo"), None, "the device of a port that is no more")


@test(timeout=90)
def moved_and_deleted_with_its_namespace(lab):
    """A device that goes with the namespace that it was moved to is made anew; where it cannot be,
    the port says why until it can."""
    switch, _, there = bridge_and_host(lab)
    number = switch.port("tap0", "type=internal")
    if switch.is_ovs:
        raise Skip("Open vSwitch does not notice")
    for blocked in (False, True):
        switch.namespace.run("ip link set tap0 netns x")
        there.run("ip link set tap0 up")
        becomes(
            lambda: switch.get("Interface", "tap0", "link_state"),
            "up",
            "the link of the moved port",
        )
        if blocked:
            switch.namespace.run("ip link add tap0 type veth peer name other")
        run("ip netns del x")
        if blocked:
            becomes(
                lambda: (
                    "could not open network device tap0"
                    in str(switch.get("Interface", "tap0", "error"))
                ),
                True,
                "whether its error is told",
            )
            equal(switch.get("Interface", "tap0", "ofport"), -1, "its number")
            switch.namespace.run("ip link del tap0")
        wait_for(
            "there is a device again",
            lambda: (
                (device(switch.namespace, "tap0") or {}).get("linkinfo", {}).get("info_kind")
                == "tun"
            ),
        )
        becomes(
            lambda: (
                switch.get("Interface", "tap0", "ofport"),
                switch.get("Interface", "tap0", "error"),
            ),
            (number, []),
            "its number and error",
        )
        switch.namespace.run("ip addr add 10.0.0.2/24 dev tap0")
        switch.namespace.run("ip link set tap0 up")
        switch.namespace.reaches("10.0.0.1")
        switch.namespace.run("ip link set tap0 down")
        switch.namespace.run("ip addr flush dev tap0")
        if not blocked:
            there = lab.namespace("x").quiet()


@test(timeout=60)
def a_system_interface_that_leaves_and_returns(lab):
    """A port whose interface is moved to another namespace says that there is no such device, and
    carries packets when it is back."""
    switch, host, there = bridge_and_host(lab)
    other = lab.host("h2", switch, ip="10.0.0.2/24", quiet=True)
    other.ping("10.0.0.1")
    number = switch.get("Interface", "h2-p", "ofport")
    switch.namespace.run("ip link set h2-p netns x")
    if switch.is_ovs:
        raise Skip("Open vSwitch says nothing until the configuration changes")
    becomes(
        lambda: switch.get("Interface", "h2-p", "error"),
        "could not open network device h2-p (No such device)",
        "its error",
    )
    equal(switch.get("Interface", "h2-p", "ofport"), -1, "its number")
    check(device(there, "h2-p"), "the interface is not where it was moved to")
    there.run(f"ip link set h2-p netns {switch.name}")
    switch.namespace.run("ip link set h2-p up")
    becomes(
        lambda: (
            switch.get("Interface", "h2-p", "error"),
            switch.get("Interface", "h2-p", "ofport"),
        ),
        ([], number),
        "its error and number",
    )
    host.reaches("10.0.0.2")


def plain(shown):
    """What of a device stays whether or not somebody has it open."""
    return shown and {
        "ifindex": shown["ifindex"],
        "address": shown["address"],
        "mtu": shown["mtu"],
        "up": "UP" in shown["flags"],
        "addresses": sorted(entry["local"] for entry in shown["addr_info"]),
    }


@test(timeout=120)
def internal_ports_stay_over_a_restart(lab):
    """Internal ports and the bridge's own keep their addresses and routes while the daemon ends and
    starts, or is killed and starts."""
    switch, host, _ = bridge_and_host(lab)
    switch.port("in0", "type=internal", "mtu_request=1400")
    ns = switch.namespace
    for command in (
        "addr add 10.0.0.2/24 dev in0",
        "link set in0 up",
        "route add 10.9.0.0/16 via 10.0.0.1 dev in0",
        "addr add 10.1.0.1/24 dev br0",
        "link set br0 up",
        "route add 10.8.0.0/16 dev br0",
    ):
        ns.run(f"ip {command}")
    ns.reaches("10.0.0.1")

    def all_of_it():
        routes = sorted(
            line.replace(" linkdown", "").strip()
            for line in ns.run("ip -4 route").stdout.splitlines()
        )
        return plain(device(ns, "in0")), plain(device(ns, "br0")), routes

    before = all_of_it()
    for end in (switch.stop, switch.kill):
        end()
        equal(all_of_it(), before, f"devices and routes after {end.__name__}")
        switch.start()
        switch.vsctl("show")
        ns.reaches("10.0.0.1")
        host.ping("10.0.0.2")
        equal(all_of_it(), before, f"devices and routes after {end.__name__} and a start")
    switch.vsctl("del-port", "in0")
    equal(device(ns, "in0"), None, "the device of a port that is no more")
    switch.vsctl("del-br", "br0")
    equal(device(ns, "br0"), None, "the device of a bridge that is no more")


@test(timeout=120)
def moved_ports_are_found_again(lab):
    """A daemon that starts takes up the devices that its ports have in other namespaces, with their
    addresses there; what a port no longer has, it deletes."""
    switch, _, there = bridge_and_host(lab)
    if switch.is_ovs:
        raise Skip(KEEPS)
    number = switch.port("tap0", "type=internal")
    switch.port("tap1", "type=internal")
    switch.port("tap2", "type=internal")
    for name in ("tap0", "tap1"):
        switch.namespace.run(f"ip link set {name} netns x")
        there.run(f"ip link set {name} up")
    there.run("ip link set tap0 down")
    there.run("ip link set tap0 name foo")
    there.run("ip addr add 10.0.0.2/24 dev foo")
    there.run("ip link set foo up")
    there.run("ip route add 10.9.0.0/16 via 10.0.0.1 dev foo")
    there.reaches("10.0.0.1")
    becomes(
        lambda: switch.get("Interface", "tap1", "link_state"), "up", "the link of the other one"
    )
    shown = plain(device(there, "foo"))
    for end in (switch.stop, switch.kill):
        end()
        equal(plain(device(there, "foo")), shown, "the device while there is no daemon")
        switch.start()
        there.reaches("10.0.0.1")
        equal(plain(device(there, "foo")), shown, "the device after a start")
        check("10.9.0.0/16" in there.run("ip route").stdout, "the route is gone")
        equal(
            (device(switch.namespace, "tap0"), device(switch.namespace, "tap1")),
            (None, None),
            "devices of their names where they were",
        )
        equal(switch.get("Interface", "tap0", "ofport"), number, "its number")
        becomes(lambda: switch.get("Interface", "tap0", "link_state"), "up", "its link")
    # Ports that go while there is no daemon: their devices go when there is one, wherever they are.
    switch.stop()
    for name in ("tap1", "tap2"):
        switch.vsctl("--no-wait", "del-port", name)
    check(device(there, "tap1") and device(switch.namespace, "tap2"), "the devices went too early")
    switch.start()
    wait_for(
        "the device of a port that went is deleted, elsewhere too",
        lambda: not device(there, "tap1") and not device(switch.namespace, "tap2"),
    )
    check(device(there, "foo") and device(switch.namespace, "br0"), "other devices went too")
    there.ping("10.0.0.1")
    # `exit --cleanup` takes what is elsewhere too.
    switch.appctl("exit", "--cleanup")
    wait_for("the daemon ends", lambda: switch.process.poll() is not None)
    switch.process = None
    equal(
        (device(there, "foo"), device(switch.namespace, "br0")),
        (None, None),
        "devices after exit --cleanup",
    )
    switch.start()
    becomes(
        lambda: bool(device(switch.namespace, "tap0")), True, "whether the device was made anew"
    )


@test(timeout=90)
def what_others_made_is_theirs(lab):
    """A TAP device of somebody else's is used by a port of its name, as by Open vSwitch, but not
    deleted with it; nor is one that has taken the place of a device of ours."""
    switch, host, _ = bridge_and_host(lab)
    if switch.is_ovs:
        raise Skip("Open vSwitch deletes it with the port")
    ns = switch.namespace
    ns.run("ip tuntap add mode tap name t0")
    ns.run("ip addr add 10.0.0.2/24 dev t0")
    before = device(ns, "t0")["ifindex"]
    switch.port("t0", "type=tap")
    ns.run("ip link set t0 up")
    ns.reaches("10.0.0.1")
    switch.vsctl("del-port", "t0")
    equal(device(ns, "t0")["ifindex"], before, "the device of a port that is no more")
    # Left behind, deleted and made anew by somebody else while there was no daemon.
    for name in ("in0", "in1"):
        switch.port(name, "type=internal")
    switch.stop()
    for name in ("in0", "in1"):
        ns.run(f"ip link del {name}")
        ns.run(f"ip tuntap add mode tap name {name}")
    theirs = {name: device(ns, name)["ifindex"] for name in ("in0", "in1")}
    switch.vsctl("--no-wait", "del-port", "in1")
    switch.start()
    wait_for(
        "nothing is noted of the port that went",
        lambda: not os.path.exists(f"{switch.directory}/internal-ports/in1"),
    )
    equal(
        device(ns, "in1")["ifindex"],
        theirs["in1"],
        "the device with the name of a port that is no more",
    )
    equal(switch.get("Interface", "in0", "error"), [], "the error of the port")
    switch.vsctl("del-port", "in0")
    equal(device(ns, "in0")["ifindex"], theirs["in0"], "the device with the name of another one")
    # One that somebody has open is not taken away from him.
    ns.run("ip tuntap add mode tap name t1")
    holder = (
        "import fcntl,struct,time;f=open('/dev/net/tun','r+b',0);fcntl.ioctl(f,0x400454ca,"
        "struct.pack('16sH14x',b't1',0x1002));print('held',flush=True);time.sleep(300)"
    )
    ns.start(["python3", "-c", holder], "holder.out")
    wait_for(
        "somebody has it open",
        lambda: "held" in open(f"{lab.directory}/holder.out", encoding="ascii").read(),
    )
    switch.vsctl("add-port", "br0", "t1", "--", "set", "Interface", "t1", "type=internal")
    equal(
        switch.get("Interface", "t1", "error"),
        "could not open network device t1 (Device or resource busy)",
        "the error of a port whose device is somebody else's",
    )


@test(timeout=180)
def changes_are_told_by_the_kernel(lab):
    """Interfaces are not asked again and again how they are; one that flaps ten thousand times is
    told of in the end, and in between the daemon answers."""
    switch = lab.switch()
    if switch.is_ovs:
        raise Skip("counters of Sluice's")
    switch.bridge()
    there = lab.namespace("x").quiet()
    count = 200
    batch = "".join(
        f"link add p{n} type veth peer name e{n} netns x\nlink set p{n} up\n" for n in range(count)
    )
    switch.namespace.run("ip -batch -", stdin=batch, seconds=60)
    there.run("ip -batch -", stdin="".join(f"link set e{n} up\n" for n in range(count)), seconds=60)
    switch.vsctl(
        *[word for n in range(count) for word in ("--", "add-port", "br0", f"p{n}")], seconds=60
    )
    becomes(
        lambda: switch.get("Interface", f"p{count - 1}", "link_state"), "up", "the link of the last"
    )

    # What the kernel has to tell of ports that have just come is told first.
    def is_quiet():
        turn, looks = counter(switch, "device_turn"), counter(switch, "device_look")
        wait_for("a second has passed", lambda: counter(switch, "device_turn") >= turn + 2)
        return counter(switch, "device_look") - looks <= 3 * 32

    wait_for("nothing more is told of ports that have come", is_quiet, 20)
    # Nothing happens: a few are looked at in each second, however many there are. 32 is what is
    # stated.
    turn, looks = counter(switch, "device_turn"), counter(switch, "device_look")
    wait_for("some seconds have passed", lambda: counter(switch, "device_turn") >= turn + 4)
    looks, turns = counter(switch, "device_look") - looks, counter(switch, "device_turn") - turn
    check(looks <= 32 * (turns + 1), f"{looks} looks in {turns} s")
    lab.note(f"{count} ports: {looks / turns:.0f} looks a second when nothing happens")
    # One changes ten thousand times as fast as it can, another one's link comes and goes.
    looks, changes, flaps = counter(switch, "device_look"), 10_000, 100
    changing = switch.namespace.start(
        ["ip", "-batch", "-"],
        "changes.out",
        stdin=batch_file(
            lab, "changes", "link set p8 mtu 1400\nlink set p8 mtu 1300\n", changes // 2
        ),
    )
    flapping = there.start(
        ["ip", "-batch", "-"],
        "flaps.out",
        stdin=batch_file(lab, "flaps", "link set e7 down\nlink set e7 up\n", flaps),
    )
    while flapping.poll() is None or changing.poll() is None:
        check(switch.appctl("version"), "no answer")
        time.sleep(0.05)
    equal((changing.returncode, flapping.returncode), (0, 0), "how the changes ended")
    becomes(lambda: switch.get("Interface", "p8", "mtu"), 1300, "the MTU of the one in the end")
    becomes(
        lambda: switch.get("Interface", "p7", "link_resets"),
        2 * flaps,
        "how often the other one's link came and went",
    )
    becomes(lambda: switch.get("Interface", "p7", "link_state"), "up", "its link in the end")
    looks = counter(switch, "device_look") - looks
    check(looks < changes, f"{looks} looks for {changes} changes")
    lab.note(
        f"{changes} changes of one interface, {2 * flaps} of another: {looks} looks, news lost "
        f"{counter(switch, 'device_news_lost')} times"
    )
    # All of them at once: what the kernel cannot keep is looked up.
    there.run(
        "ip -batch -", stdin="".join(f"link set e{n} down\n" for n in range(count)), seconds=60
    )
    wait_for(
        "all links are down",
        lambda: (
            switch.vsctl("--bare", "--columns=name", "find", "Interface", "link_state=up") == ""
        ),
        20,
    )


def batch_file(lab, name, lines, count):
    """An open file with lines for `ip -batch`, many times."""
    path = os.path.join(lab.directory, name)
    with open(path, "w", encoding="ascii") as file:
        file.write(lines * count)
    return open(path, "rb")
