"""The process and its service: panics, long turns, the monitor, the service manager, confinement,
another user, rules that outlive a restart."""

import json
import os
import re
import signal
import socket
import subprocess
import time

import confined
from harness import Skip, becomes, check, equal, run, test, wait_for
from test_moved_ports import counter

HERE = os.path.dirname(os.path.abspath(__file__))
RULES = os.path.join(os.path.dirname(HERE), "packaging", "rules")


def ours(lab, **options):
    """A daemon with faults on demand."""
    if lab.is_ovs:
        raise Skip("Sluice's own")
    switch = lab.switch(**options)
    switch.expected += ["assertion failed", "as sluice/panic", "commands/faults.rs"]
    return switch


def stats(switch):
    return json.loads(switch.appctl("sluice/stats"))


def pid_of(switch):
    with open(f"{switch.directory}/ovs-vswitchd.pid", encoding="ascii") as file:
        return int(file.read())


@test(timeout=180)
def panics_end_the_process(lab):
    """A panic in any task or thread of the control side ends the daemon as a crash does; one in a
    worker costs that worker's packets."""
    switch = ours(lab, options=["--enable-dummy"])
    switch.bridge()
    switch.appctl("sluice/panic", "worker")
    switch.logged("failed \\(1 times so far")
    switch.port("d0", "type=dummy")
    switch.appctl(
        "netdev-dummy/receive",
        "d0",
        "in_port(1),eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),eth_type(0x1234)",
    )
    wait_for("the worker goes on", lambda: switch.counters()["d0"]["rx"]["pkts"] == 1)
    for place in ("command", "task", "shared-task", "blocking", "thread", "devices", "log"):
        switch.appctl("sluice/panic", place, ok=False)
        try:
            code = switch.process.wait(20)
        except subprocess.TimeoutExpired:
            code = None
        equal(code, -signal.SIGABRT, f"how the daemon ended after a panic in a {place}")
        if place != "log":
            check(
                "as sluice/panic has asked" in switch.log(),
                "the log does not say why:",
                switch.tail(),
            )
        switch.start()


def monitored(lab):
    switch = ours(lab, options=["--enable-dummy", "--monitor"])
    switch.bridge()
    return switch


def is_new(switch, before):
    """Whether another daemon has come and answers."""

    def there():
        try:
            return pid_of(switch) != before and switch.appctl("version", ok=False).returncode == 0
        except (OSError, ValueError):
            return False

    wait_for("the monitor has started another", there, 30)


@test(timeout=120)
def the_monitor_starts_what_was_killed(lab):
    """The monitor starts another daemon after a panic in a task and after SIGKILL, but not when
    that follows a SIGTERM which was not obeyed."""
    switch = monitored(lab)
    switch.expected += ["died, killed"]
    first = pid_of(switch)
    switch.appctl("sluice/panic", "task", ok=False)
    is_new(switch, first)
    second = pid_of(switch)
    os.kill(second, signal.SIGKILL)
    is_new(switch, second)
    third = pid_of(switch)
    wait_for(
        "the bridge is back", lambda: switch.appctl("fdb/show", "br0", ok=False).returncode == 0
    )
    # A daemon that hangs: start scripts kill it when it does not end, and want no other.
    stalled = subprocess.Popen(
        ["ovs-appctl", "sluice/stall", "command", "60000"],
        env=switch.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(
        "the control thread hangs",
        lambda: (
            subprocess.run(
                ["ovs-appctl", "-T", "1", "version"],
                env=switch.env,
                capture_output=True,
                check=False,
            ).returncode
            != 0
        ),
    )
    os.kill(third, signal.SIGTERM)
    time.sleep(0.2)
    os.kill(third, signal.SIGKILL)
    switch.process.wait(30)
    stalled.kill()
    stalled.wait()
    check(not os.path.exists(f"/proc/{third}"), "the daemon is still there")
    switch.process = None


@test(timeout=60)
def long_turns_are_told(lab):
    """The longest turn of control and of each worker, with what it was, in sluice/stats,
    coverage/show, metrics and the log, until they are cleared."""
    switch = ours(lab, options=["--enable-dummy", "-vdpif_netdev:file:dbg"])
    switch.bridge()
    switch.appctl("sluice/stall", "task", "1500")
    switch.appctl("sluice/stall", "worker", "1500")
    switch.logged(
        r"timeval\|WARN\|control: \d+ turns of 50 ms or more; the longest took \d{4,}\.\d ms "
        r"\(\d+\.\d of them without a processor\)"
    )
    switch.logged(
        r"dpif_netdev\|DBG\|pmd-any/id:\d+: \d+ turns of 10 ms or more; the longest took "
        r"\d{4,}\.\d ms .*, mostly a command of control"
    )
    now = stats(switch)
    control, worker = now["control"], now["workers"][0]
    check(
        control["longest_turn_us"] >= 1_500_000
        and control["longest_turn_away_us"] >= 1_000_000
        and control["long_turns"] >= 1,
        "control:",
        control,
    )
    check(
        worker["longest_turn_us"] >= 1_500_000
        and worker["longest_turn_away_us"] >= 1_000_000
        and worker["long_turns"] >= 1,
        "worker:",
        worker,
    )
    equal(worker["longest_turn_doing"], "a command of control", "what the worker was doing")
    coverage = switch.appctl("coverage/show")
    for name in ("control", worker["name"]):
        found = re.search(rf"^longest_turn_us_{re.escape(name)} .*total: (\d+)$", coverage, re.M)
        check(
            found and int(found[1]) >= 1_500_000,
            f"longest_turn_us_{name} in coverage/show:",
            coverage,
        )
    metrics = switch.appctl("sluice/metrics")
    for name in ("sluice_control_longest_turn_seconds", "sluice_worker_longest_turn_seconds"):
        found = re.search(rf"^{name}{{.*}} ([\d.]+)$", metrics, re.M)
        check(found and float(found[1]) >= 1.5, f"{name} in metrics:", metrics)
    # A command's own name.
    switch.appctl("sluice/stall", "command", "2500")
    equal(
        stats(switch)["control"]["longest_turn_doing"],
        "control socket: sluice/stall",
        "what control was doing",
    )
    switch.appctl("sluice/turns-clear")
    now = stats(switch)
    check(
        now["control"]["longest_turn_us"] < 1_500_000
        and now["workers"][0]["longest_turn_us"] < 1_500_000,
        "after sluice/turns-clear:",
        now["control"],
        now["workers"],
    )


@test(timeout=90)
def others_go_on_while_a_device_takes_long(lab):
    """A port is set down while the thread that changes devices is busy, as when the kernel holds
    its lock of network devices: its controller waits, others are answered, and what was asked for
    stays so."""
    switch = ours(lab, options=["--enable-dummy", "-vvconn:file:dbg"])
    switch.bridge()
    switch.port("d0", "type=dummy")
    number = lab.host("a", switch, quiet=True).port
    switch.appctl("sluice/stall", "devices", "6000")
    slow = [
        subprocess.Popen(command, env=switch.env, stdout=subprocess.PIPE, text=True)
        for command in (
            ["ovs-ofctl", "-OOpenFlow13", "mod-port", "br0", str(number), "down"],
            ["ovs-appctl", "netdev-dummy/set-admin-state", "d0", "down"],
            ["ovs-appctl", "dpdk/get-malloc-stats"],
        )
    ]

    def described():
        return switch.ofctl("-OOpenFlow15", "dump-ports-desc", "br0", str(number))

    try:
        switch.logged("received: OFPT_PORT_MOD")
        switch.ofctl("add-flow", "br0", "priority=5,actions=drop")
        check("priority=5" in switch.ofctl("dump-flows", "br0"), "the rule")
        # Ports are looked at once a second: what is not done yet must not be taken back.
        turns = counter(switch, "device_turn")
        wait_for("ports are looked at", lambda: counter(switch, "device_turn") >= turns + 2)
        equal([process.poll() for process in slow], [None] * 3, "what waits for devices")
        before = described()
        check("LIVE" in before and "DOWN" not in before, "meanwhile:", before)
    finally:
        answers = [process.communicate(timeout=60)[0] for process in slow]
    equal([process.returncode for process in slow], [0] * 3, "how the slow ones ended")
    equal(answers[1], "OK\n", "netdev-dummy/set-admin-state")
    check("Heap" in answers[2], "dpdk/get-malloc-stats:", answers[2])
    after = described()
    check("PORT_DOWN" in after and "LINK_DOWN" in after, "in the end:", after)
    shown = switch.namespace.run("ip link show a-p").stdout
    check("state DOWN" in shown, "the interface:", shown)
    wait_for(
        "the dummy is down in the database",
        lambda: switch.get("Interface", "d0", "admin_state") == "down",
    )


class Manager:
    """The socket of a service manager."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.told = []

    def listen(self):
        """All that has come."""
        while True:
            try:
                self.told += self.socket.recv(4096, socket.MSG_DONTWAIT).decode().split("\n")
            except BlockingIOError:
                return self.told

    def hears(self, word, seconds=20):
        wait_for(
            f"the manager hears {word}",
            lambda: any(line.startswith(word) for line in self.listen()),
            seconds,
        )


@test(timeout=120)
def the_service_manager_is_told(lab):
    """READY when the first configuration is in force, WATCHDOG while control and every worker go
    on, STATUS, STOPPING."""
    switch = ours(lab, start=False, options=["--enable-dummy"])
    switch.vsctl("--no-wait", "add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev")
    manager = Manager(lab.directory)
    switch.env.update(NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="4000000")
    switch.start(wait=False)
    manager.hears("READY=1")
    equal(
        switch.get("Interface", "br0", "ofport"), 65534, "ofport of the bridge when READY was told"
    )
    manager.hears("WATCHDOG=1")
    manager.hears("STATUS=1 bridges, 1 ports")
    switch.appctl("sluice/stall", "worker", "15000")
    switch.logged("has been in one turn for .*hears no more of us", 20)
    manager.hears("STATUS=1 bridges, 1 ports; stuck: pmd-any")
    manager.told.clear()
    time.sleep(3)
    if "goes on" not in switch.log():
        check(
            "WATCHDOG=1" not in manager.listen(), "the watchdog is fed although a worker is stuck"
        )
    manager.told.clear()
    switch.logged("goes on", 30)
    manager.hears("WATCHDOG=1")
    # Control itself.
    switch.stop()
    manager.hears("STOPPING=1")


def every_port(lab, switch, dummy=True):
    """A port of every kind, and traffic through those that a host can be behind."""
    switch.bridge()
    switch.bridge("br1")
    left = lab.host("left", switch, ip="10.1.0.1/24")
    right = lab.host("right", switch, ip="10.1.0.2/24")
    fast = lab.namespace("fast")
    switch.pair(fast, "x0", ip="10.1.0.3/24")
    switch.port("x0", "type=afxdp")
    switch.port("in0", "type=internal")
    switch.namespace.run("ip addr add 10.1.0.4/24 dev in0")
    switch.namespace.run("ip link set in0 up")
    switch.port("tap0", "type=tap")
    switch.port("null0", "type=dpdk", "options:dpdk-devargs=net_null0,no-rx=1")
    switch.port(
        "pcap0", "type=dpdk", f"options:dpdk-devargs=net_pcap0,tx_pcap={switch.directory}/out.pcap"
    )
    switch.port("vs0", "type=dpdkvhostuser")
    check(os.path.exists(f"{switch.directory}/vs0"), "the port made no socket")
    # A hypervisor's socket, in a directory of its user's.
    place = os.path.join(switch.directory, "guests")
    os.mkdir(place)
    guest = socket.socket(socket.AF_UNIX)
    guest.bind(f"{place}/g.sock")
    guest.listen()
    guest.settimeout(20)
    for path in (f"{place}/g.sock", place):
        os.chmod(path, 0o755)
        os.chown(path, 65533, 65533)
    switch.port("vc0", "type=dpdkvhostuserclient", f"options:vhost-server-path={place}/g.sock")
    guest.accept()[0].close()
    guest.close()
    switch.port("pa", "type=patch", "options:peer=pb")
    switch.port("pb", "type=patch", "options:peer=pa", bridge="br1")
    if dummy:
        switch.port("d0", "type=dummy")
    for target in ("10.1.0.2", "10.1.0.3", "10.1.0.4"):
        left.reaches(target)
        left.ping(target)
    right.ping("10.1.0.3")
    # A port that only the privileged may listen on.
    switch.vsctl("set-controller", "br1", "ptcp:853:127.0.0.1")
    wait_for(
        "a controller can connect",
        lambda: (
            switch.namespace.run(["ovs-ofctl", "show", "tcp:127.0.0.1:853"], ok=False).returncode
            == 0
        ),
    )


def command_of(lab, *options):
    return [
        "/usr/bin/python3",
        os.path.join(HERE, "confined.py"),
        "--write",
        lab.directory,
        *options,
        "--",
        *lab.switchd,
    ]


@test(timeout=180)
def confined_as_the_unit_says(lab):
    """With the unit's capabilities, read-only file systems and filters of system calls every kind
    of port works, and nothing else is possible."""
    if lab.is_ovs:
        raise Skip("Sluice's unit")
    switch = lab.switch(command=command_of(lab), options=["--enable-dummy"], start=False)
    switch.start()
    with open(f"/proc/{switch.process.pid}/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    numbers = [
        confined.CAPABILITIES.index(name)
        for name in confined.settings()["CapabilityBoundingSet"][0].split()
    ]
    wanted = sum(1 << number for number in numbers)
    for name in ("CapPrm", "CapEff", "CapBnd"):
        equal(int(status[name], 16), wanted, f"{name} of the daemon")
    equal(
        (status["NoNewPrivs"], status["Seccomp"]),
        ("1", "2"),
        "NoNewPrivs and Seccomp of the daemon",
    )
    outside = run(
        ["nsenter", "-t", str(switch.process.pid), "-m", "--", "touch", "/etc/sluice-was-here"],
        ok=False,
    )
    check(
        outside.returncode != 0 and "Read-only" in outside.stderr,
        "/etc can be written to:",
        outside.stderr,
    )
    every_port(lab, switch)
    check(
        not re.search(
            r"Operation not permitted|Permission denied|Read-only file system", switch.log()
        ),
        "something was refused:\n" + switch.tail(60),
    )
    switch.stop()


@test(timeout=120)
def another_user(lab):
    """--user: the daemon and its monitor are that user, with a switch's capabilities; ports
    work."""
    if lab.is_ovs:
        raise Skip("Debian's Open vSwitch keeps fewer")
    switch = lab.switch(start=False, options=["--user=nobody:nogroup", "--enable-dummy"])
    for path in (os.path.dirname(lab.directory), lab.directory, switch.directory):
        os.chmod(path, 0o755)
    os.chown(switch.directory, 65534, 65534)
    os.chown(f"{switch.directory}/db.sock", 65534, 65534)
    switch.start()
    with open(f"/proc/{switch.process.pid}/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    equal(
        (status["Uid"].split(), status["Gid"].split()),
        (["65534"] * 4, ["65534"] * 4),
        "who the daemon is",
    )
    effective = int(status["CapEff"], 16)
    kept = {confined.CAPABILITIES[number] for number in range(41) if effective >> number & 1}
    check({"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK"} <= kept, "capabilities kept:", kept)
    check(
        not kept
        & {"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SETUID", "CAP_SYS_MODULE", "CAP_SYS_PTRACE"},
        "capabilities kept:",
        kept,
    )
    equal(os.stat(switch.log_file).st_uid, 65534, "whose the log is")
    switch.bridge()
    one = lab.host("one", switch, ip="10.1.0.1/24")
    lab.host("two", switch, ip="10.1.0.2/24")
    switch.port("in0", "type=internal")
    switch.namespace.run("ip addr add 10.1.0.4/24 dev in0")
    switch.namespace.run("ip link set in0 up")
    for target in ("10.1.0.2", "10.1.0.4"):
        one.reaches(target)
        one.ping(target)
    switch.stop()
    for user, wanted in (
        ("no-such-user", "user no-such-user not found"),
        ("nobody:no-such", "group no-such not found"),
    ):
        done = run([*lab.switchd, f"--user={user}"], ok=False)
        check(
            done.returncode == 1 and wanted in done.stderr,
            f"--user={user}:",
            done.returncode,
            done.stderr,
        )
    done = run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            *lab.switchd,
            "--user=nobody",
        ],
        ok=False,
    )
    check(
        done.returncode == 1 and "only root can use --user" in done.stderr,
        "--user of somebody else:",
        done.stderr,
    )


def everything(switch, bridge="br0"):
    """What a controller has put into a bridge: rules without their counters, groups, meters."""
    version = ("-O", "OpenFlow14")
    rules = sorted(
        re.sub(r"\b(idle|hard)_age=\d+,? ?", "", line)
        for line in switch.ofctl(*version, "--no-stats", "dump-flows", bridge).splitlines()
        if "actions=" in line
    )
    groups = sorted(switch.ofctl(*version, "dump-groups", bridge).splitlines()[1:])
    meters = switch.ofctl(*version, "dump-meters", bridge).splitlines()[1:]
    return rules, groups, meters


@test(timeout=150)
def rules_outlive_a_restart(lab):
    """What the unit does around a restart, with Open vSwitch's tools unmodified: rules, groups and
    meters are there again before packets come."""
    switch = lab.switch()
    if not os.path.exists("/usr/share/openvswitch/scripts/ovs-save"):
        raise Skip("ovs-save is not installed")
    switch.bridge()
    switch.bridge("br1")  # standalone, with the rule that switches everything
    switch.bridge("br2")  # without any rule
    one = lab.host("one", switch, ip="10.1.0.1/24", port_settings=[])
    lab.host("two", switch, ip="10.1.0.2/24")
    version = ("-O", "OpenFlow14")
    switch.ofctl("del-flows", "br2")
    switch.ofctl("del-flows", "br0")
    switch.ofctl(
        *version,
        "add-group",
        "br0",
        "group_id=7,type=select,bucket=weight:3,actions=output:2,bucket=weight:1,actions=output:2",
    )
    switch.ofctl(*version, "add-group", "br0", "group_id=8,type=indirect,bucket=actions=output:1")
    switch.ofctl(
        *version,
        "add-meter",
        "br0",
        "meter=3 pktps burst stats bands=type=drop rate=100000 burst_size=1000",
    )
    switch.ofctl(
        *version,
        "add-meter",
        "br0",
        "meter=4 kbps bands=type=drop rate=100000 type=drop rate=200000",
    )
    switch.ofctl(
        *version,
        "add-flows",
        "br0",
        "-",
        stdin="\n".join(
            [
                "cookie=0x1234,priority=10,in_port=1 actions=meter:3,group:7",
                (
                    "cookie=0x5678,priority=10,in_port=2,idle_timeout=600,hard_timeout=3600,"
                    "send_flow_rem actions=group:8"
                ),
                (
                    "table=5,priority=7,tcp,nw_src=192.0.2.0/24,tp_dst=80 "
                    "actions=set_field:10.0.0.9->ip_dst,goto_table:6"
                ),
                "table=6,priority=1,ip,nw_proto=2,importance=5 actions=drop",
                (
                    "table=7,priority=1 actions=learn(table=8,hard_timeout=60,"
                    "NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],"
                    "output:NXM_OF_IN_PORT[]),output:1"
                ),
            ]
        )
        + "\n",
    )
    one.ping("10.1.0.2")
    before = {bridge: everything(switch, bridge) for bridge in ("br0", "br1", "br2")}
    equal(
        [len(part) for part in before["br0"]],
        [5, 2, len(before["br0"][2])],
        "rules and groups before",
    )
    env = dict(switch.env, SLUICE_RULES=f"{lab.directory}/rules")

    def rules(word):
        return run([RULES, word], env=env, seconds=60)

    equal(rules("save").stderr, "", "what saving says")
    switch.stop()
    equal(rules("before-start").stderr, "", "what is said before the start")
    equal(
        switch.get("Open_vSwitch", ".", "other_config").get("flow-restore-wait"),
        "true",
        "flow-restore-wait before the start",
    )
    switch.start()
    # Up, and nothing is received yet.
    wait_for(
        "the ports are there", lambda: isinstance(switch.get("Interface", "two-p", "ofport"), int)
    )
    equal(one.ping("10.1.0.2", count=2, ok=False), 0, "answers while rules are restored")
    rules("restore")
    wait_for(
        "packets are waited for no more",
        lambda: "flow-restore-wait" not in switch.get("Open_vSwitch", ".", "other_config"),
    )
    for bridge, wanted in before.items():
        for got, want, what in zip(
            everything(switch, bridge), wanted, ("rules", "groups", "meters")
        ):
            equal(got, want, f"{what} of {bridge} after the restart")
    one.reaches("10.1.0.2")
    one.ping("10.1.0.2")
    for bridge, wanted in before.items():
        equal(everything(switch, bridge)[0], wanted[0], f"rules of {bridge} after packets came")
    # Nothing was saved this time: nobody waits.
    switch.stop()
    rules("before-start")
    switch.start()
    rules("restore")
    rules("after-stop")
    check(
        "flow-restore-wait" not in switch.get("Open_vSwitch", ".", "other_config"),
        "flow-restore-wait was left behind",
    )
    wait_for(
        "the bridge is there",
        lambda: switch.tool("ovs-ofctl", "show", "br0", ok=False).returncode == 0,
    )
    # The rule that stands in for a controller comes a moment after the bridge.
    becomes(lambda: len(everything(switch)[0]), 1, "rules that nobody restored")


@test(timeout=60)
def a_failed_restore_leaves_nobody_waiting(lab):
    """Where saved rules cannot be restored, or the switch does not start, packets do not wait for
    them for good."""
    switch = lab.switch(start=False)
    env = dict(switch.env, SLUICE_RULES=f"{lab.directory}/rules")
    os.mkdir(env["SLUICE_RULES"])
    script = f"{env['SLUICE_RULES']}/restore.sh"

    def config():
        return switch.get("Open_vSwitch", ".", "other_config")

    def saved(text):
        with open(script, "w", encoding="ascii") as file:
            file.write(text)

    saved("ovs-ofctl add-flow no-such-bridge actions=drop\nexit 1\n")
    run([RULES, "before-start"], env=env)
    equal(config().get("flow-restore-wait"), "true", "flow-restore-wait")
    done = run([RULES, "after-stop"], env=env)
    check("flow-restore-wait" not in config(), "the next start would wait:", done.stderr)
    run([RULES, "before-start"], env=env)
    switch.start()
    done = run([RULES, "restore"], env=env)
    check(
        "not all rules are restored" in done.stderr and "flow-restore-wait" not in config(),
        "a restore that fails:",
        done.stderr,
    )
    # What is old is not restored.
    saved("exit 0\n")
    os.utime(script, (time.time() - 3600, time.time() - 3600))
    run([RULES, "before-start"], env=env)
    check(
        "flow-restore-wait" not in config() and not os.path.exists(script),
        "rules of an hour ago are restored",
    )
    # A tool that says that the machine is slow has saved; one that could not ask has not.
    switch.bridge()
    tool = f"{lab.directory}/ovs-save"
    for said, kept in (
        ("2026-11-23T16:41:26Z|00001|timeval|WARN|Unreasonably long 1862ms poll interval", True),
        ("ovs-ofctl: br0: failed to connect to socket (Broken pipe)", False),
    ):
        with open(tool, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\necho true\necho '{said}' >&2\n")
        os.chmod(tool, 0o755)
        run([RULES, "save"], env=dict(env, OVS_SAVE=tool))
        equal(os.path.exists(script), kept, f"whether rules are kept by a tool that says '{said}'")
    # Without a switch to ask nothing is kept.
    switch.stop()
    done = run([RULES, "save"], env=env)
    check(
        done.returncode == 0 and not os.path.exists(script), "saving without a switch:", done.stderr
    )


@test(timeout=30)
def the_unit_is_valid(lab):
    """systemd reads the unit without a complaint, and it restarts the daemon without a limit."""
    if lab.is_ovs:
        raise Skip("Sluice's unit")
    path = f"{lab.directory}/sluiced.service"
    with open(confined.UNIT, encoding="utf-8") as file:
        text = file.read()
    prefix = f"{lab.directory}/a prefix"
    for name in ("sbin/sluiced", "lib/sluice/rules", "lib/sluice/await-database"):
        os.makedirs(os.path.dirname(f"{prefix}/{name}"), exist_ok=True)
        os.symlink("/bin/true", f"{prefix}/{name}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            text.replace("@PREFIX@", prefix)
            .replace("@SYSCONFDIR@", f"{prefix}/etc")
            .replace("@DOCDIR@", f"{prefix}/doc")
        )
    done = run(["systemd-analyze", "verify", "--man=no", path], ok=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "sluiced.service" in line]
    equal(said, [], "what systemd says of the unit")
    for line in ("Type=notify", "StartLimitIntervalSec=0", "Restart=on-failure"):
        check(line in text.splitlines(), f"the unit has no {line}")
