"""`sluice top` where something is wrong: ports that could not be opened, a switch that does not
answer, readers that have had enough, terminals of odd sizes."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

from harness import becomes, check, equal, inside, run, test, wait_for
from test_predictions import sluice
from test_sluice_command import User


def text_of(command, switch, *options):
    """What one reading prints."""
    top = run([command, "top", "-n", "1", "-i", "0.1", *options], env=switch.env)
    return top.stdout


@test(timeout=60)
def ports_that_could_not_be_opened_are_shown(lab):
    """With the error that the database has, until it is gone; of all bridges, first on the page."""
    command = sluice(lab)
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    switch.bridge("br1")
    switch.port("good", "type=dummy")
    for bridge, name, kind in (("br0", "odd", "vxlam"), ("br1", "missing", "system")):
        switch.vsctl(
            "add-port", bridge, name, "--", "set", "Interface", name, f"type={kind}", ok=False
        )
    errors = {name: switch.get("Interface", name, "error") for name in ("odd", "missing")}
    told = {port["name"]: port for port in json.loads(switch.appctl("sluice/stats"))["port_errors"]}
    equal(
        {name: port["error"] for name, port in told.items()}, errors, "errors, as in the database"
    )
    equal(
        (told["odd"]["bridge"], told["odd"]["type"], told["odd"]["open"]),
        ("br0", "vxlam", False),
        "a port with an unknown type",
    )
    equal(told["missing"]["bridge"], "br1", "the bridge of the port without a device")
    lines = text_of(command, switch).splitlines()
    check("2 not opened" in lines[0], lines[0])
    at = lines.index("Ports with errors")
    for name, bridge, kind in (("odd", "br0", "vxlam"), ("missing", "br1", "system")):
        wanted = f"{name} ({bridge}, {kind}) not opened: {errors[name]}"
        check(wanted in lines[at + 1 : at + 3], wanted, lines)
    check(at < lines.index("Ports"), lines)
    switch.vsctl("del-port", "br0", "odd")
    switch.namespace.run("ip link add missing type veth peer name other")
    wait_for(
        "no port has an error",
        lambda: not json.loads(switch.appctl("sluice/stats"))["port_errors"],
        15,
    )
    text = text_of(command, switch)
    check("not opened" not in text and "Ports with errors" not in text, text)


@test(timeout=60)
def names_do_nothing_to_the_terminal(lab):
    """A name may be anything that the database takes: what a terminal would obey is shown as
    `?`."""
    command = sluice(lab)
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    name = "p\x1b[2J\u202e\u6f22"
    switch.vsctl("add-port", "br0", name, "--", "set", "Interface", name, "type=nonsense", ok=False)
    text = text_of(command, switch)
    check("p?[2J?\u6f22 (br0, nonsense) not opened" in text, text)
    check(not any(bad in text for bad in "\x1b\u202e"), repr(text))


@test(timeout=60)
def whoever_has_read_enough_ends_it(lab):
    """A closed pipe ends `top` and `predict` without a word; a full disk is a failure that is
    said."""
    command = sluice(lab)
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    for words in ("top -n 50 -i 0.1", "predict queue --rate 500M --load 98%"):
        script = f'set -o pipefail; "{command}" {words} | head -n 1 >/dev/null'
        done = run(["bash", "-c", script], env=switch.env, seconds=20)
        equal(done.stderr, "", words)
        full = run(["bash", "-c", f'"{command}" {words} >/dev/full'], env=switch.env, ok=False)
        check(
            full.returncode == 1 and "cannot print: No space left" in full.stderr,
            words,
            full.stderr,
        )
    # Nobody reads what is said of errors, either.
    done = run(
        ["bash", "-c", f'"{command}" top 2>&1 /nonexistent | true; exit "${{PIPESTATUS[0]}}"'],
        env=switch.env,
        ok=False,
    )
    check(done.returncode in (1, 2) and "panic" not in done.stderr, done.returncode, done.stderr)


def served(lab, name, answer):
    """A socket whose connections are handed to `answer`."""
    path = os.path.join(lab.directory, name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)

    def serve():
        while True:
            try:
                answer(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    return path


@test(timeout=120)
def a_switch_that_does_not_answer_is_said(lab):
    """No switch, one that has ended, one that stands, one that says nonsense, and one of Open
    vSwitch."""
    command = sluice(lab)
    env = dict(os.environ, OVS_RUNDIR=lab.directory)

    def refused(*options, seconds=30):
        began = time.monotonic()
        done = run(
            [command, "top", "-n", "1", "-i", "0.1", *options], env=env, ok=False, seconds=seconds
        )
        check(done.returncode == 1 and done.stdout == "", done.returncode, done.stdout)
        lab.note(f"{time.monotonic() - began:.1f} s: {done.stderr.strip()}")
        return done.stderr

    check("no daemon seems to run" in refused() and "sluice up" in refused(), "nothing runs there")
    check("no daemon seems to run" in refused("/nonexistent"), "no such directory")
    for content, words in (
        ("4194999\n", "the daemon has ended"),
        ("", "not a process id"),
        ("x" * 100000, "not a process id"),
    ):
        with open(f"{lab.directory}/ovs-vswitchd.pid", "w", encoding="ascii") as file:
            file.write(content)
        said = refused(lab.directory)
        check(words in said, words, said)
    reply = '{"id": %d, "result": null, "error": "\\"sluice/stats\\" is not a valid command"}'

    def other(connection):
        for number in range(1, 9):
            if not connection.recv(65536):
                return
            connection.sendall((reply % number).encode())

    check("it is not Sluice" in refused("-t", served(lab, "other", other)), "another daemon")
    check(
        "not JSON"
        in refused(
            "-t",
            served(
                lab,
                "odd",
                lambda connection: (
                    connection.recv(65536) and connection.sendall(b"HTTP/1.1 400 Bad Request")
                ),
            ),
        ),
        "another protocol",
    )

    def slow(connection):
        for byte in b"{" + b" " * 60:
            connection.sendall(bytes([byte]))
            time.sleep(1)

    check(
        "not complete after 30 s" in refused("-t", served(lab, "slow", slow), seconds=50),
        "a byte a second",
    )
    switch = lab.switch()
    switch.bridge()
    os.kill(switch.process.pid, signal.SIGSTOP)
    try:
        check("does not answer" in refused(switch.directory), "a switch that stands")
    finally:
        os.kill(switch.process.pid, signal.SIGCONT)
    check(
        "1 ports" in text_of(command, switch, switch.directory),
        "the directory instead of OVS_RUNDIR",
    )


@test(timeout=60)
def small_and_missing_terminals(lab):
    """Twenty by five: it scrolls to the end and ends at q.

    Without any: one reading, or what to do."""
    command = sluice(lab)
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    for number in range(30):
        switch.port(f"d{number}", "type=dummy")
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(switch.env, TERM="xterm")
        time.sleep(0.3)  # until the terminal has its size
        os.execv(command, ["sluice", "top", "-i", "0.2"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 20, 0, 0))
    seen = ""

    def read():
        nonlocal seen
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                pass  # it has ended

    def shows(pattern):
        read()
        return re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen))

    wait_for("the first lines", lambda: shows("up ?00:"), 15)
    for key, pattern in ((b"G", "Tables"), (b"g", "up ?00:")):
        seen = ""
        os.write(terminal, key)
        wait_for(f"what {key} shows", lambda: shows(pattern), 15)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 1, 1, 0, 0))
    time.sleep(0.5)
    os.write(terminal, b"q")

    status = None

    def has_ended():
        nonlocal status
        read()
        pid, status = os.waitpid(process, os.WNOHANG)
        return pid == process

    wait_for("it has ended", has_ended)
    equal(status, 0, "how it ended")
    alone = subprocess.run(
        [command, "top", "-i", "0.1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=switch.env,
        start_new_session=True,
        timeout=30,
        check=False,
    )
    check(alone.returncode == 0 and "31 ports" in alone.stdout, alone.stdout, alone.stderr)


@test(timeout=60)
def ports_that_are_renamed_while_they_are_watched(lab):
    """The old name goes, the new one comes, and `top` goes on."""
    command = sluice(lab)
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    switch.port("before", "type=dummy")
    with subprocess.Popen(
        [command, "top", "-n", "6", "-i", "0.5"],
        env=switch.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as top:
        time.sleep(0.8)
        switch.vsctl(
            "del-port",
            "before",
            "--",
            "add-port",
            "br0",
            "after",
            "--",
            "set",
            "Interface",
            "after",
            "type=dummy",
        )
        text, errors = top.communicate(timeout=30)
    check(top.returncode == 0 and errors == "", errors)
    pages = text.split("\nup ")
    check("after" in pages[-1] and "before" not in pages[-1], pages[-1])


def command_line(process):
    """A process's command; empty once it has ended, whether or not its parent knows."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@test(timeout=90)
def a_switch_without_its_database_gets_it_back(lab):
    """`up` on a switch that runs starts the database that has died beside it; the switch goes
    on."""
    user = User(lab)
    tools = 'eval "$(sluice up "$D")" && '
    try:
        user.shell(tools + "ovs-vsctl add-br br0 -- set Bridge br0 datapath_type=netdev")
        switch, database = user.pid(), user.pid("ovsdb-server")
        os.kill(database, signal.SIGKILL)
        wait_for("the database has ended", lambda: not command_line(database))
        done = user.shell(
            tools + "ovs-vsctl --timeout=30 add-port br0 p -- set Interface p type=internal && "
            "ovs-vsctl list-ports br0",
            seconds=70,
        )
        check("was started" in done.stderr and done.stdout.strip() == "p", done.stdout, done.stderr)
        equal(user.pid(), switch, "the switch's process")
        # One that stands is not killed by the way, and it is said what is.
        os.kill(switch, signal.SIGSTOP)
        done = user.shell('sluice down "$D"', ok=False)
        check(done.returncode == 1 and f"kill -9 {switch}" in done.stderr, done.stderr)
        os.kill(switch, signal.SIGCONT)
        user.shell('sluice down "$D"')
    finally:
        user.shell('sluice down "$D"', ok=False)


@test(timeout=60)
def tracked_connections_are_shown(lab):
    """How many there are, new, expired, refused and evicted, and the largest zones; nothing without
    any."""
    command = sluice(lab)
    switch = lab.switch()
    switch.bridge()
    host = lab.namespace("h1").quiet()
    switch.pair(host, "p1", ip="10.1.0.1/24")
    switch.port("p1", "ofport_request=1")
    host.run("ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev eth0")
    switch.flows(
        "udp,tp_dst=5,actions=ct(commit,zone=5)",
        "udp,tp_dst=7,actions=ct(commit,zone=7)",
        "udp,tp_dst=9,actions=ct(commit,zone=9,nat(src=10.9.9.9:7-7))",
        "tcp,actions=ct(commit,zone=11)",
    )
    switch.appctl("dpctl/ct-set-limits", "zone=7,limit=2")
    switch.appctl("dpctl/ct-set-maxconns", "1000")

    def told():
        return json.loads(switch.appctl("sluice/stats"))["connections"]

    equal(told()["count"], 0, "connections at first")
    check("Connections" not in text_of(command, switch).splitlines(), "a table without connections")
    with inside(host):
        # Two find no free port; two that nobody has answered give way to others of their zone.
        for port in [5] * 5 + [7] * 4 + [9] * 3:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"?", ("10.1.0.2", port))
    becomes(lambda: (told()["created"], told()["refused"]), (10, 2), "connections and refusals")
    equal(
        told(),
        {
            "count": 8,
            "limit": 1000,
            "expected": 0,
            "created": 10,
            "expired": 0,
            "refused": 2,
            "evicted": 2,
            "zones": [
                {"zone": 5, "count": 5, "limit": None},
                {"zone": 7, "count": 2, "limit": 2},
                {"zone": 9, "count": 1, "limit": None},
            ],
        },
        "figures",
    )
    lines = text_of(command, switch).splitlines()
    at = lines.index("Connections")
    rows = [line.split() for line in lines[at + 1 : at + 6]]
    equal(
        rows,
        [
            ["zone", "connections", "limit", "new/s", "expired/s", "refused/s", "evicted/s"],
            ["all", "8", "1000", "0", "0", "0", "0"],
            ["5", "5", "-", "-", "-", "-", "-"],
            ["7", "2", "2", "-", "-", "-", "-"],
            ["9", "1", "-", "-", "-", "-", "-"],
        ],
        "the table",
    )
    # A half-open connection gives way to the next one.
    switch.appctl("dpctl/ct-set-maxconns", "9")
    with inside(host):
        for _ in range(2):
            with socket.socket() as opener:
                opener.setblocking(False)
                opener.connect_ex(("10.1.0.2", 80))
            time.sleep(0.2)
    becomes(lambda: told()["evicted"], 3, "evicted connections")


@test(timeout=60)
def bfd_sessions_are_shown(lab):
    """How many there are and how many are up, and which are not; nothing without any."""
    command = sluice(lab)
    switch = lab.switch()
    switch.bridge()
    switch.raw_hosts()

    def told():
        return json.loads(switch.appctl("sluice/stats"))["monitors"]

    equal(told(), None, "sessions at first")
    check("BFD sessions" not in text_of(command, switch).splitlines(), "a table without sessions")
    check("sluice_bfd_" not in switch.appctl("sluice/metrics"), "metrics without sessions")
    switch.vsctl("set", "Interface", "p1", "bfd:enable=true")
    down = {
        "count": 1,
        "states": {"admin_down": 0, "down": 1, "init": 0, "up": 0},
        "forwarding": 0,
        "flaps": 0,
        "not_up": [
            {
                "interface": "p1",
                "state": "down",
                "diagnostic": "No Diagnostic",
                "remote_state": "down",
            }
        ],
    }
    becomes(told, down, "a session that nobody answers")
    lines = text_of(command, switch).splitlines()
    at = lines.index("BFD sessions")
    rows = [line.split() for line in lines[at + 1 : at + 4]]
    equal(rows[1], ["all", "0", "of", "1", "up", "0", "forward", "-", "0"], "the sum")
    equal(rows[2], ["p1", "down", "No", "Diagnostic", "down", "-"], "the session")
    metrics = switch.appctl("sluice/metrics")
    check('sluice_bfd_sessions{state="down"} 1' in metrics, metrics)
    switch.vsctl("set", "Interface", "p1", "bfd:enable=false")
    becomes(told, None, "sessions in the end")
