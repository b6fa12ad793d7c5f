"""What surrounds the switching: starting, ending, logs, the database going away, ports that come
and go, waiting tools."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import time

from harness import (
    PATIENCE,
    SCHEMA,
    Failure,
    Skip,
    Switch,
    check,
    equal,
    ethernet,
    run,
    test,
    threads,
    wait_for,
)


@test(timeout=60)
def detach_pidfile_and_end(lab):
    """--detach returns when the first configuration is applied; pidfile, lock and control socket
    are where tools look, and go at the end."""
    switch = lab.switch(start=False)
    switch.vsctl("--no-wait", "add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev")
    done = switch.namespace.run([*switch.arguments(), "--detach"], env=switch.env, seconds=40)
    equal(done.stdout, "", "what --detach prints")
    pidfile = f"{switch.directory}/ovs-vswitchd.pid"
    with open(pidfile, encoding="ascii") as file:
        pid = int(file.read())
    wanted, applied = (
        switch.get("Open_vSwitch", ".", "next_cfg"),
        switch.get("Open_vSwitch", ".", "cur_cfg"),
    )
    equal(applied, wanted, "cur_cfg right after --detach returned")
    equal(
        switch.get("Interface", "br0", "ofport"),
        65534,
        "ofport of the bridge right after --detach returned",
    )
    check(
        os.path.exists(f"{switch.directory}/ovs-vswitchd.{pid}.ctl"),
        "no control socket named after the process",
    )
    check(os.path.exists(f"{switch.directory}/br0.mgmt"), "no OpenFlow socket of the bridge")
    switch.expected.append("already running as pid")
    again = switch.namespace.run(
        [*switch.arguments(), "--detach"], env=switch.env, seconds=40, ok=False
    )
    check(
        again.returncode != 0 and f"already running as pid {pid}" in again.stderr,
        "a second daemon with the same pidfile:",
        again.returncode,
        again.stderr,
    )
    equal(int(open(pidfile, encoding="ascii").read()), pid, "the pidfile after that")
    os.kill(pid, signal.SIGTERM)
    wait_for("the daemon ends", lambda: not os.path.exists(f"/proc/{pid}"), 15)
    check(not os.path.exists(pidfile), "the pidfile is still there after SIGTERM")
    check(
        not os.path.exists(f"{switch.directory}/ovs-vswitchd.{pid}.ctl"),
        "the control socket is still there after SIGTERM",
    )
    switch.start()  # and nothing of the first one is in its way
    switch.appctl("exit")
    wait_for("the daemon ends after `exit`", lambda: switch.process.poll() is not None)
    equal(switch.process.returncode, 0, "how the daemon ended after `exit`")
    switch.process = None


@test(timeout=60)
def exit_cleanup_removes_devices(lab):
    """`exit` leaves nothing that hinders the next daemon; `exit --cleanup` takes internal ports
    away."""
    switch = lab.switch()
    switch.bridge()
    switch.port("in0", "type=internal")
    devices = switch.namespace.run("ip -br link").stdout
    check("in0" in devices and "br0" in devices, "internal ports are no kernel devices:", devices)
    switch.appctl("exit", "--cleanup")
    wait_for("the daemon ends", lambda: switch.process.poll() is not None)
    switch.process = None
    devices = switch.namespace.run("ip -br link").stdout
    check(
        "in0" not in devices and "br0" not in devices, "devices left after exit --cleanup:", devices
    )


@test(timeout=60)
def control_keeps_off_workers(lab):
    """A worker has the processor of pmd-cpu-mask to itself: the control thread runs on the others,
    and on all again when the mask goes."""
    cpus = sorted(os.sched_getaffinity(0))
    switch = lab.switch()
    if switch.is_ovs:
        raise Skip("Open vSwitch leaves its main thread to the scheduler")
    if len(cpus) < 2:
        raise Skip("one processor")
    switch.bridge()

    def processors():
        found = threads(switch.process.pid).values()
        return [where for name, where in found if name.startswith("pmd")], sorted(
            os.sched_getaffinity(switch.process.pid)
        )

    switch.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={1 << cpus[-1]:#x}")
    wait_for("control has left the worker's processor", lambda: processors()[1] == cpus[:-1])
    equal(processors()[0], [cpus[-1:]], "where the worker runs")
    every = sum(1 << cpu for cpu in cpus)
    switch.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={every:#x}")
    wait_for(
        "control runs everywhere where workers have all processors",
        lambda: processors()[1] == cpus,
    )
    switch.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={1 << cpus[0]:#x}")
    wait_for("control has left the worker's processor again", lambda: processors()[1] == cpus[1:])
    switch.vsctl("remove", "Open_vSwitch", ".", "other_config", "pmd-cpu-mask")
    wait_for(
        "all threads run everywhere",
        lambda: all(where == cpus for where in [*processors()[0], processors()[1]]),
    )


@test(timeout=60)
def workers_beyond_the_daemons_processors(lab):
    """A daemon that was started on one processor puts a worker on another where pmd-cpu-mask names
    it, and runs itself where it was started."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skip("one processor")
    os.sched_setaffinity(0, cpus[:1])
    try:
        switch = lab.switch()
    finally:
        os.sched_setaffinity(0, cpus)
    if switch.is_ovs:
        raise Skip("Open vSwitch has such threads with DPDK only")
    switch.bridge()
    switch.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={1 << cpus[-1]:#x}")

    def workers():
        found = threads(switch.process.pid).values()
        return [where for name, where in found if name.startswith("pmd")]

    wait_for("the worker is where the mask says", lambda: workers() == [cpus[-1:]])
    equal(sorted(os.sched_getaffinity(switch.process.pid)), cpus[:1], "where control runs")


@test(timeout=60)
def version_and_wrong_options(lab):
    """--version and --help answer; an unknown option or too many arguments end with 1 and say
    why."""
    command = lab.switchd
    version = run([*command, "--version"]).stdout
    check(re.match(r"\S.* \d+\.\d+", version.splitlines()[0]), "first line of --version:", version)
    check("Open vSwitch" in version, "--version does not name Open vSwitch:", version)
    check("--pidfile" in run([*command, "--help"]).stdout, "--help does not tell of --pidfile")
    for words, wanted in (
        (["--no-such-option"], "no-such-option"),
        (["a", "b"], "at most one non-option argument"),
        (["-vnonsense:file:dbg"], "nonsense"),
    ):
        done = run([*command, *words], ok=False)
        check(
            done.returncode == 1 and wanted in done.stderr,
            " ".join(words),
            "ended with",
            done.returncode,
            "and said",
            done.stderr,
        )


@test(timeout=60)
def log_levels_and_reopen(lab):
    """vlog/set, vlog/reopen and SIGHUP work as logrotate and people expect."""
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    moved = switch.log_file + ".1"
    os.rename(switch.log_file, moved)
    switch.appctl("vlog/reopen")
    wait_for("the log is a new file", lambda: os.path.exists(switch.log_file))
    switch.port("in0", "type=internal")
    switch.logged("in0")
    if not switch.is_ovs:  # Open vSwitch 3.1 ends on SIGHUP
        os.rename(switch.log_file, moved)
        os.kill(switch.process.pid, signal.SIGHUP)
        wait_for("the log is a new file after SIGHUP", lambda: os.path.exists(switch.log_file))
    switch.appctl("vlog/set", "bridge:file:dbg")
    listed = switch.appctl("vlog/list")
    check(
        re.search(r"^bridge\s+OFF\s+\S+\s+DBG", listed, re.M),
        "vlog/list after vlog/set bridge:file:dbg:\n" + listed,
    )
    done = switch.appctl("vlog/set", "nonsense:file:dbg", ok=False)
    check(
        done.returncode == 2 and "nonsense" in done.stderr,
        "vlog/set of an unknown module:",
        done.stderr,
    )
    # Who audits a machine reads of every port, however many come at once.
    many = [f"many{index}" for index in range(260)]
    switch.vsctl(
        *" -- ".join(
            f"add-port br0 {name} -- set Interface {name} type=dummy" for name in many
        ).split()
    )
    switch.logged("added interface many259 on")
    with open(switch.log_file, encoding="utf-8") as file:
        text = file.read()
    equal(
        [name for name in many if f"added interface {name} on" not in text],
        [],
        "ports that the log does not name",
    )


@test(timeout=90)
def a_database_that_refuses_values(lab):
    """A value that the schema does not allow and a column that it has not: all else is written,
    each is told once, and is written when it is allowed."""
    with open(SCHEMA, encoding="utf-8") as file:
        schema = json.load(file)
    schema["tables"]["Interface"]["columns"]["mtu"]["type"]["key"] = {
        "type": "integer",
        "maxInteger": 1500,
    }
    del schema["tables"]["Bridge"]["columns"]["datapath_version"]
    with open(f"{lab.directory}/schema", "w", encoding="utf-8") as file:
        json.dump(schema, file)
    switch = lab.switch(schema=f"{lab.directory}/schema")
    if switch.is_ovs:
        raise Skip("Open vSwitch writes nothing at all")
    switch.expected += ["refuses a value", "lacks column"]
    switch.bridge()
    switch.port("in0", "type=internal", "mtu_request=2000")
    refused = (
        r"refuses a value of in0, .*: column mtu of row .* of table Interface: constraint "
        r"violation: .*2000"
    )
    switch.logged(refused)
    switch.port("in1", "type=internal", "mtu_request=1400")
    equal(switch.get("Interface", "in0", "mtu"), [], "the MTU that is not allowed")
    equal(switch.get("Interface", "in1", "mtu"), 1400, "an MTU that is")
    wait_for(
        "statistics are written",
        lambda: "rx_packets" in switch.get("Interface", "in0", "statistics"),
        15,
    )
    equal(
        switch.get("Interface", "in0", "admin_state"),
        "down",
        "another column of the row, of an interface that nobody has set up",
    )
    time.sleep(4)  # it is tried a few times meanwhile
    equal(
        len(re.findall("refuses a value of in0", switch.log())), 1, "how often the refusal is told"
    )
    equal(
        len(re.findall("lacks column datapath_version of table Bridge", switch.log())),
        1,
        "how often it is told that there is no such column",
    )
    switch.vsctl("set", "Interface", "in0", "mtu_request=1300")
    wait_for(
        "the MTU is written when it is allowed",
        lambda: switch.get("Interface", "in0", "mtu") == 1300,
    )


@test(timeout=90)
def database_restart(lab):
    """Forwarding goes on while the database is away, and the daemon takes up changes when it is
    back."""
    switch = lab.switch()
    switch.bridge()
    a = lab.host("h1", switch, ip="10.8.0.1/24")
    lab.host("h2", switch, ip="10.8.0.2/24")
    a.ping("10.8.0.2")
    switch.flows("cookie=0x77,priority=3,actions=NORMAL")
    if switch.is_ovs:
        raise Skip(
            "Open vSwitch 3.1 stops forwarding on kernel interfaces while its database is away"
        )
    ping = a.start(["ping", "-n", "-i", "0.02", "-c", "150", "10.8.0.2"], "ping.out")
    switch.stop_database()
    a.ping("10.8.0.2", 20)
    switch.start_database()
    equal(ping.wait(30), 0, "how ping ended")
    with open(os.path.join(lab.directory, "ping.out"), encoding="utf-8") as file:
        text = file.read()
    check("150 received" in text, "packets were lost while the database restarted:\n" + text[-400:])
    c = lab.host("h3", switch, ip="10.8.0.3/24")
    c.ping("10.8.0.1")
    check(
        any("cookie=0x77" in rule for rule in switch.rules()),
        "rules were lost when the database restarted",
    )


@test(timeout=90)
def second_daemon_waits_for_the_lock(lab):
    """A daemon that does not hold the database lock configures and forwards nothing; it takes over
    when the first one ends."""
    switch = lab.switch()
    switch.bridge()
    second = Switch(lab, "s2", database=False)
    second.db = switch.db
    second.start(bridges=False)
    wait_for(
        "the second daemon says so",
        lambda: re.search(r"another ovs-vswitchd process is running", second.log()),
        10,
    )
    switch.port("in0", "type=internal")
    time.sleep(1)
    equal(
        second.namespace.run("ip -br link show type tun").stdout,
        "",
        "devices of a daemon without the lock",
    )
    check(
        not os.path.exists(f"{second.directory}/br0.mgmt"),
        "a daemon without the lock opened the bridge's OpenFlow socket",
    )
    switch.stop()
    wait_for(
        "the second daemon takes over", lambda: os.path.exists(f"{second.directory}/br0.mgmt"), 20
    )
    wait_for("its ports exist", lambda: "in0" in second.namespace.run("ip -br link").stdout)
    second.ofctl("show", "br0")


@test(timeout=60)
def results_come_with_cur_cfg(lab):
    """Whoever waits for cur_cfg finds ofport and error beside it: a monitor sees them in the same
    update."""
    switch = lab.switch()
    switch.bridge()
    watch = Monitor(switch, {"Open_vSwitch": ["cur_cfg"], "Interface": ["name", "ofport", "error"]})
    for name, kind, error in (
        ("in0", "internal", None),
        ("nodev", "", "could not open network device nodev (No such device)"),
        ("in1", "internal", None),
    ):
        done = switch.vsctl(
            "add-port",
            "br0",
            name,
            "--",
            "set",
            "Interface",
            name,
            f"type={kind or 'system'}",
            ok=False,
        )
        equal(done.returncode, 0, f"how ovs-vsctl add-port {name} ended")
        check(
            (error or "") in done.stderr and bool(error) == bool(done.stderr),
            f"add-port {name} says:",
            done.stderr,
        )
        wanted = switch.get("Open_vSwitch", ".", "next_cfg")
        update = watch.until(
            lambda tables: any(
                row.get("new", {}).get("cur_cfg") == wanted
                for row in tables.get("Open_vSwitch", {}).values()
            )
        )
        rows = [
            row["new"]
            for row in update.get("Interface", {}).values()
            if row.get("new", {}).get("name") == name
        ]
        check(rows, f"the update that brings cur_cfg={wanted} says nothing about {name}:", update)
        check(
            rows[0]["error"] == error if error else rows[0]["ofport"] > 0,
            f"what comes with cur_cfg about {name}:",
            rows,
        )


class Monitor:
    """A client of the database server (RFC 7047) that reads the updates of some columns, one
    transaction at a time."""

    def __init__(self, switch, tables):
        self.socket, self.text = socket.socket(socket.AF_UNIX), ""
        self.socket.connect(f"{switch.directory}/db.sock")
        self.decoder = json.JSONDecoder()
        request = {
            "id": 1,
            "method": "monitor",
            "params": [
                "Open_vSwitch",
                None,
                {table: {"columns": columns} for table, columns in tables.items()},
            ],
        }
        self.socket.sendall(json.dumps(request).encode())
        self.message(10)

    def message(self, seconds):
        """The next message."""
        end = time.monotonic() + seconds * PATIENCE
        while True:
            try:
                found, size = self.decoder.raw_decode(self.text.lstrip())
                self.text = self.text.lstrip()[size:]
                return found
            except ValueError:
                pass
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                self.text += self.socket.recv(65536).decode()
            except TimeoutError:
                raise Failure(f"no update came from the database in {seconds} s") from None

    def until(self, condition):
        """The first update that fulfils the condition."""
        while True:
            message = self.message(10)
            if message.get("method") == "update" and condition(message["params"][1]):
                return message["params"][1]


@test(timeout=60)
def rules_before_ports(lab):
    """Rules may name ports that do not exist yet, and keep their counters when ports go and
    come."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    switch.flows("cookie=0x1,in_port=5,actions=output:6", "cookie=0x2,in_port=6,actions=output:5")
    a, b = lab.namespace("h1").quiet(), lab.namespace("h2").quiet()
    for host, number in ((a, 5), (b, 6)):
        switch.pair(host, f"p{number}", ip=f"10.8.1.{number}/24")
        equal(
            switch.port(f"p{number}", f"ofport_request={number}"),
            number,
            "the requested port number",
        )
    a.ping("10.8.1.6", 5)
    switch.vsctl("del-port", "p6")
    equal(a.ping("10.8.1.6", 1, ok=False), 0, "pings answered through a port that was deleted")
    equal(switch.port("p6", "ofport_request=6"), 6, "the requested port number")
    a.ping("10.8.1.6", 5)
    wait_for("the rules have counted", lambda: switch.rule_packets().get(1, 0) >= 12)


@test(timeout=120)
def ports_come_and_go_under_traffic(lab):
    """While ports are added, deleted and changed, the traffic of the other ports loses nothing."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    a, b = lab.host("h1", switch, quiet=True), lab.host("h2", switch, quiet=True)
    switch.flows(f"in_port={a.port},actions=output:{b.port}")
    sender, receiver = a.raw(), b.raw()
    spare = lab.namespace("spare").quiet()
    for number in range(3):
        switch.pair(spare, f"x{number}", f"eth{number}")
    # Warm: the first packets of a port may meet an empty cache.
    sender.send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
    check(receiver.receive(3, until=1), "nothing is forwarded")
    count, changes = 0, 0
    got = set()
    for round_ in range(4):
        for words in (
            [["add-port", "br0", f"x{number}"] for number in range(3)]
            + [
                [
                    "add-port",
                    "br0",
                    f"i{round_}",
                    "--",
                    "set",
                    "Interface",
                    f"i{round_}",
                    "type=internal",
                ],
                ["set", "Port", "x0", f"tag={round_ + 1}"],
                [
                    "add-br",
                    f"bx{round_}",
                    "--",
                    "set",
                    "Bridge",
                    f"bx{round_}",
                    "datapath_type=netdev",
                ],
                ["del-br", f"bx{round_}"],
            ]
            + [["del-port", f"x{number}"] for number in range(3)]
        ):
            process = subprocess.Popen(
                ["ovs-vsctl", f"--db={switch.db}", "--timeout=20", *words], env=switch.env
            )
            while process.poll() is None:
                # No more on their way than a port holds while nobody has a processor for its
                # worker.
                for _ in range(4 if count - len(got) < 200 else 0):
                    sender.send(
                        ethernet(
                            "02:00:00:00:00:02",
                            "02:00:00:00:00:01",
                            0x88B5,
                            struct.pack("!I", count) + bytes(60),
                        )
                    )
                    count += 1
                time.sleep(0.001)
                while (frame := receiver.receive_one(0)) is not None:
                    got.add(frame[14:18])
            equal(process.returncode, 0, " ".join(words))
            changes += 1
    for frame in receiver.receive(2, until=count - len(got)):
        got.add(frame[14:18])
    lab.note(f"{count} frames during {changes} changes")
    lost = count - len({number for number in got if struct.unpack("!I", number)[0] < count})
    equal(lost, 0, f"frames lost of {count} while {changes} changes were made")


@test(timeout=60)
def mirrors(lab):
    """A mirror copies a port's traffic to another port, and a VLAN mirror to a VLAN."""
    switch = lab.switch()
    switch.bridge()
    a, b, m = (lab.host(name, switch, quiet=True) for name in ("h1", "h2", "m"))
    t = lab.host("t", switch, quiet=True, port_settings=["tag=99"])
    raws = {host.name: host.raw() for host in (a, b, m, t)}

    def send(number):
        send.source = send.source % 250 + 1  # a flow of its own each time, so that no cache answers
        for raw in raws.values():
            raw.drain()
        mark = struct.pack("!I", 0xFEED0000 + number)
        raws["h1"].send(
            ethernet(
                "02:00:00:00:00:02", f"02:00:00:00:01:{send.source:02x}", 0x88B5, mark + bytes(60)
            )
        )
        return {
            name
            for name, raw in raws.items()
            if raw.receive(0.4, wanted=lambda frame: mark in frame, until=1)
        }

    send.source = 0
    raws["h2"].send(ethernet("02:00:00:00:00:01", "02:00:00:00:00:02", 0x88B5, bytes(60)))
    raws["h1"].send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
    wait_for("h2 is learned", lambda: "02:00:00:00:00:02" in switch.appctl("fdb/show", "br0"))
    equal(send(1), {"h2"}, "who sees a frame without a mirror")
    switch.vsctl(
        "--",
        "--id=@a",
        "get",
        "Port",
        "h1-p",
        "--",
        "--id=@m",
        "get",
        "Port",
        "m-p",
        "--",
        "--id=@mirror",
        "create",
        "Mirror",
        "name=m0",
        "select-src-port=@a",
        "output-port=@m",
        "--",
        "set",
        "Bridge",
        "br0",
        "mirrors=@mirror",
    )
    wait_for("the mirror shows the frame", lambda: send(2) == {"h2", "m"})
    switch.vsctl("clear", "Bridge", "br0", "mirrors")
    switch.vsctl(
        "--",
        "--id=@a",
        "get",
        "Port",
        "h1-p",
        "--",
        "--id=@mirror",
        "create",
        "Mirror",
        "name=m1",
        "select-src-port=@a",
        "output-vlan=99",
        "--",
        "set",
        "Bridge",
        "br0",
        "mirrors=@mirror",
    )
    wait_for("the VLAN mirror shows the frame", lambda: {"h2", "t"} <= send(3))
    wait_for(
        "mirror statistics are written",
        lambda: switch.get("Mirror", "m1", "statistics").get("tx_packets", 0) > 0,
        15,
    )


@test(timeout=90)
def idle_costs_little(lab):
    """Prints how much of a core an idle switch takes and how soon the first packet after a rest is
    answered."""
    switch = lab.switch()
    switch.bridge()
    a = lab.host("h1", switch, ip="10.8.2.1/24", quiet=True)
    lab.host("h2", switch, ip="10.8.2.2/24", quiet=True)
    a.ping("10.8.2.2", 5)

    def used():
        with open(f"/proc/{switch.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(2)
    before, begin = used(), time.monotonic()
    time.sleep(5)
    share = (used() - before) / (time.monotonic() - begin)
    answers = []
    for _ in range(5):
        time.sleep(0.5)
        text = a.run("ping -n -c 1 10.8.2.2").stdout
        answers.append(float(re.search(r"time=([\d.]+) ms", text).group(1)) * 1000)
    lab.note(
        f"idle: {share * 100:.2f}% of a core, first answer after a rest {sorted(answers)[2]:.0f} us"
    )
    a.ping("10.8.2.2", 5)


@test(timeout=60)
def openflow_1_0_and_1_3_flow_mods(lab):
    """Strict and loose changes and deletions, overlap check, timeouts, cookies, flow_removed, and
    errors with their names."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13")
    for version in ("OpenFlow10", "OpenFlow13"):
        of = ["-O", version]

        def rules():
            return sorted(
                re.sub(r"^\s*(cookie=\S+ )?", "", rule) for rule in switch.rules("br0", *of)
            )

        switch.flows(
            "priority=5,tcp,tp_dst=80,actions=output:1",
            "priority=6,tcp,tp_dst=80,actions=output:2",
            "priority=5,udp,actions=output:3",
            version=version,
        )
        equal(len(rules()), 3, "rules after add-flows")
        switch.ofctl(*of, "mod-flows", "br0", "tcp,actions=output:9")
        equal(sum("output:9" in rule for rule in rules()), 2, "rules changed by a loose mod-flows")
        switch.ofctl(
            *of, "--strict", "mod-flows", "br0", "priority=6,tcp,tp_dst=80,actions=output:8"
        )
        equal(sum("output:8" in rule for rule in rules()), 1, "rules changed by a strict mod-flows")
        switch.ofctl(*of, "--strict", "del-flows", "br0", "priority=5,tcp,tp_dst=81")
        equal(len(rules()), 3, "rules after a strict del-flows that fits none")
        switch.ofctl(*of, "--strict", "del-flows", "br0", "priority=5,tcp,tp_dst=80")
        equal(len(rules()), 2, "rules after a strict del-flows")
        switch.ofctl(*of, "del-flows", "br0", "out_port=3")
        equal(len(rules()), 1, "rules after del-flows by output port")
        done = switch.ofctl(
            *of, "add-flow", "br0", "check_overlap,priority=6,tcp,actions=drop", ok=False
        )
        check("OFPFMFC_OVERLAP" in done.stderr, "an overlapping rule:", done.stderr)
        switch.ofctl(
            *of, "add-flow", "br0", "priority=1,hard_timeout=1,send_flow_rem,arp,actions=drop"
        )
        wait_for("the rule has timed out", lambda: len(rules()) == 1)
    switch.flows("cookie=0xa1,priority=1,ip,actions=drop", "cookie=0xa2,priority=2,ip,actions=drop")
    switch.ofctl("del-flows", "br0", "cookie=0xa1/-1")
    equal(len(switch.rules()), 1, "rules after del-flows by cookie")
    packets = switch.ofctl("-O", "OpenFlow13", "dump-aggregate", "br0")
    check("flow_count=1" in packets, "dump-aggregate:", packets)


@test(timeout=60)
def controller_messages(lab):
    """packet_in, packet_out and port_status as ovs-ofctl monitor shows them."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13")
    a, b = lab.host("h1", switch, quiet=True), lab.host("h2", switch, quiet=True)
    raw, other = a.raw(), b.raw()
    monitor = lab.start(
        ["stdbuf", "-oL", "ovs-ofctl", "-O", "OpenFlow13", "monitor", "br0", "65535"],
        "monitor.out",
        env=switch.env,
    )

    def seen(pattern):
        with open(
            os.path.join(lab.directory, "monitor.out"), encoding="utf-8", errors="replace"
        ) as file:
            return re.search(pattern, file.read(), re.S)

    switch.flows("priority=9,dl_type=0x88b5,actions=CONTROLLER:40")

    def told():
        # The monitor may not be there yet.
        raw.send(ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, bytes(60)))
        return seen(r"(?:OFPT|NXT)_PACKET_IN.*in_port=%d.*dl_type=0x88b5" % a.port)

    wait_for("packet_in arrives", told)
    switch.flows(
        "priority=9,dl_type=0x88b5,actions=CONTROLLER:40",
        "priority=1,ip,idle_timeout=1,send_flow_rem,cookie=0x42,actions=drop",
    )
    wait_for(
        "flow_removed arrives", lambda: seen(r"OFPT_FLOW_REMOVED.*ip.*reason=idle.*cookie:?=?0x42")
    )
    switch.port("in0", "type=internal")
    wait_for("port_status arrives", lambda: seen(r"OFPT_PORT_STATUS.*ADD:.*in0"))
    other.drain()
    packet = ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B6, b"hello" + bytes(60)).hex()
    switch.ofctl(
        "-O",
        "OpenFlow13",
        "packet-out",
        "br0",
        f"in_port={a.port},packet={packet},actions=output:{b.port}",
    )
    check(
        other.receive(3, wanted=lambda frame: b"hello" in frame, until=1),
        "packet_out did not come out",
    )
    raw.drain()
    switch.ofctl("packet-out", "br0", "none", f"output:{a.port}", packet)
    check(
        raw.receive(3, wanted=lambda frame: b"hello" in frame, until=1),
        "packet_out of OpenFlow 1.0 did not come out",
    )
    check(monitor.poll() is None, "the monitor's connection closed")
