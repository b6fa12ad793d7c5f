"""`sluice up`, `down`, `restart`, `save` and `restore`: a switch in a directory of its own, by
somebody who knows only these; and `sluice top`."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from harness import ROOT, Skip, check, equal, inside, run, test, wait_for
from test_slicing import frame, shape, some_hosts

RULES = os.path.join(ROOT, "packaging", "rules")


class User:
    """Somebody with a shell: the commands, and a directory whose name needs quotes."""

    def __init__(self, lab):
        if lab.is_ovs:
            raise Skip("commands of Sluice's")
        self.programs = os.path.dirname(os.path.abspath(lab.switchd[0]))
        self.directory = os.path.join(lab.directory, "it's a switch")
        self.namespace = lab.namespace("user").quiet()

    def shell(self, script, ok=True, seconds=60):
        """Runs lines in bash, $D being the directory."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("OVS_")}
        env.update(D=self.directory, PATH=f"{self.programs}:{os.environ['PATH']}")
        return run(self.namespace.command(["bash", "-c", script]), env=env, ok=ok, seconds=seconds)

    def pid(self, name="ovs-vswitchd"):
        with open(f"{self.directory}/{name}.pid", encoding="ascii") as file:
            return int(file.read())

    def rules(self):
        """Rules without what passes, groups and meters of br0."""

        def dump(words):
            """What ovs-ofctl prints but for its headings; the test fails where it does."""
            text = self.shell(
                'up=$(sluice up "$D" 2>/dev/null) || exit; eval "$up"; ovs-ofctl -O OpenFlow15 '
                f"{words} br0"
            ).stdout
            return "".join(line for line in text.splitlines(True) if "OFPST" not in line)

        flows, groups, meters = (
            dump(words) for words in ("--no-stats dump-flows", "dump-groups", "dump-meters")
        )
        return sorted(flows.split("\n")), groups, meters


SOME = """
ovs-ofctl -O OpenFlow15 add-meter br0 meter=3,kbps,band=type=drop,rate=1000
ovs-ofctl -O OpenFlow15 add-group br0 group_id=7,type=all,bucket=output:1,bucket=output:2
ovs-ofctl -O OpenFlow15 del-flows br0
ovs-ofctl -O OpenFlow15 add-flow br0 \
cookie=0x5,priority=9,ip,nw_dst=10.0.0.1,actions=meter:3,group:7
ovs-ofctl -O OpenFlow15 add-flow br0 priority=1,arp,actions=NORMAL
"""


@test(timeout=150)
def rules_outlive_a_restart(lab):
    """`restart` keeps rules, groups and meters; `down` and `up` keep bridges only, and `save` and
    `restore` the rest; nothing is left behind."""
    user = User(lab)
    try:
        user.shell(
            'set -e; eval "$(sluice up "$D")"; ovs-vsctl add-br br0 -- set Bridge br0 '
            "datapath_type=netdev\n" + SOME
        )
        wanted = user.rules()
        check(len(wanted[0]) == 3 and "group_id=7" in wanted[1] and "meter=3" in wanted[2], wanted)
        before = user.pid()
        done = user.shell('sluice restart "$D"')
        check(
            "with its rules" in done.stderr and str(before) in done.stderr and not done.stdout,
            done.stderr,
            done.stdout,
        )
        check(user.pid() != before, "the process is the old one")
        equal(user.rules(), wanted, "rules, groups and meters after a restart")
        waits = 'eval "$(sluice up "$D" 2>/dev/null)"; ovs-vsctl get Open_vSwitch . other_config'
        check("flow-restore-wait" not in user.shell(waits).stdout, "packets still wait")

        saved = user.shell('sluice save "$D"').stderr
        check("/saved" in saved, saved)
        said = user.shell('sluice down "$D"').stderr
        check("configuration" in said and "rules, groups and meters are gone" in said, said)
        said = user.shell('sluice up "$D"').stderr
        check("br0" in said and "are gone" in said and "sluice restore" in said, said)
        equal(
            [len(user.rules()[0]), "group_id" in user.rules()[1]],
            [2, False],
            "what is there after down and up: one rule, NORMAL",
        )
        # Twice: what was saved stays, and what is there then goes.
        for more in (
            "true",
            (
                "ovs-ofctl -O OpenFlow15 add-group br0 group_id=8,type=all; ovs-ofctl add-flow "
                "br0 tcp,actions=drop"
            ),
        ):
            user.shell(f'eval "$(sluice up "$D" 2>/dev/null)"; {more}; sluice restore "$D"')
            equal(user.rules(), wanted, "rules, groups and meters after they were restored")
        check("flow-restore-wait" not in user.shell(waits).stdout, "packets still wait")

        # A switch that cannot tell its rules is not restarted without being asked.
        before = user.pid()
        done = user.shell('OVS_SAVE=/bin/false sluice restart "$D"', ok=False)
        check(
            done.returncode == 1 and "--without-rules" in done.stderr and user.pid() == before,
            done.stderr,
        )
        equal(user.rules(), wanted, "rules of the switch that was not restarted")
        user.shell('sluice restart --without-rules "$D"')
        check(user.pid() != before and len(user.rules()[0]) == 2, "the switch is not a new one")
    finally:
        user.shell('sluice down "$D"', ok=False)
    wait_for(
        "all have ended",
        lambda: (
            not re.search(
                "sluiced|ovsdb-server",
                subprocess.run(
                    ["ps", "-eo", "comm"], capture_output=True, text=True, check=True
                ).stdout,
            )
        ),
    )


@test(timeout=60)
def shells_are_told_where_the_switch_is(lab):
    """What `up` prints names every directory and survives a shell; errors of ovs-vsctl name the
    right log; a failure fails under eval."""
    user = User(lab)
    try:
        done = user.shell(
            'eval "$(sluice up "$D")" || exit 3; ovs-vsctl add-br br0 -- set Bridge br0 '
            "datapath_type=netdev; ovs-vsctl add-port br0 nothing; "
            'echo "$OVS_RUNDIR|$OVS_LOGDIR|$OVS_DBDIR"'
        )
        equal(done.stdout.strip(), "|".join([user.directory] * 3), "what a shell reads")
        check(
            f'log directory is "{user.directory}"' in done.stderr,
            "where ovs-vsctl says that the log is:",
            done.stderr,
        )
        again = user.shell('sluice up "$D" --set other_config:x=y', ok=False)
        check(again.returncode == 1 and "--set" in again.stderr, again.stderr)
        # Whoever is in the place of the process that wrote a pidfile is none of ours.
        user.shell('sluice down "$D"')
        with open(f"{user.directory}/ovs-vswitchd.pid", "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        check(
            "No switch ran" in user.shell('sluice down "$D"').stderr, "a process that is no switch"
        )
        failed = user.shell('eval "$(sluice up /dev/null/x)"', ok=False)
        check(
            failed.returncode == 1 and "/dev/null/x" in failed.stderr,
            failed.returncode,
            failed.stderr,
        )
        # As nobody: what will not work is said, and where to go.
        nobody = user.shell(
            "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all sluice up",
            ok=False,
        )
        check(
            "NET_ADMIN" in nobody.stderr and "sluice up DIRECTORY" in nobody.stderr, nobody.stderr
        )
    finally:
        user.shell('sluice down "$D"', ok=False)


@test(timeout=120)
def what_is_in_the_way_is_named(lab):
    """Several commands at once, a switch or database that does not answer, somebody else's switch,
    settings that are not taken, and words that mean nothing."""
    user = User(lab)
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all"
    try:
        # The second one waits for the first, and finds its switch.
        both = user.shell(
            '(sluice up "$D" 2>&1; echo "status $?") & (sluice up "$D" 2>&1; echo "status $?") & '
            "wait"
        ).stdout
        equal(both.count("status 0"), 2, f"attempts at once that did well:\n{both}")
        equal(both.count("sluiced runs already"), 1, f"attempts that found the other's:\n{both}")
        # What is to be typed is as a shell wants it.
        directory = "'" + user.directory.replace("'", r"'\''") + "'"
        quoted = f"sluice save {directory}"
        told = user.shell('sluice down "$D"').stderr
        check(quoted in told, told)
        told = user.shell('sluice up --set other_config:pmd-cpu-mask=zz "$D"').stderr
        check('warning: other_config:pmd-cpu-mask: "zz" is not' in told, told)
        # Whoever may not talk to it is not told that it works.
        for place in (lab.directory, os.path.dirname(lab.directory)):
            os.chmod(place, 0o755)
        told = user.shell(f'{nobody} "$(command -v sluice)" up "$D"', ok=False)
        check(told.returncode == 1 and "are you root?" in told.stderr, told.stderr)
        check("NET_ADMIN" not in told.stderr, told.stderr)
        for name, what in (("ovs-vswitchd", "the switch: "), ("ovsdb-server", "database: ")):
            pid = user.pid(name)
            os.kill(pid, signal.SIGSTOP)
            try:
                for words in ("up", "save", "restore", "restart"):
                    told = user.shell(f'sluice {words} "$D"', ok=False)
                    equal(told.returncode, 1, f"status of {words} beside a stopped {name}")
                    equal(told.stdout, "false\n" if words == "up" else "", f"what {words} prints")
                    check(
                        what in told.stderr
                        and "does not answer" in told.stderr
                        and f"kill -9 {pid}" in told.stderr,
                        f"{words} beside a stopped {name}:",
                        told.stderr,
                    )
            finally:
                os.kill(pid, signal.SIGCONT)
        user.shell(
            'eval "$(sluice up "$D")"; ovs-vsctl add-br br0 -- set Bridge br0 '
            'datapath_type=netdev; sluice save "$D"'
        )
        told = user.shell('sluice down "$D"; sluice up "$D"').stderr
        check(f"sluice restore {directory}" in told, told)
    finally:
        user.shell('sluice down "$D"', ok=False)
    # Wrong words fail under eval, too.
    for words in ('""', '"$D" more', "--nonsense", "-x"):
        failed = user.shell(f'eval "$(sluice up {words})"', ok=False)
        equal(failed.returncode, 1, f"status of eval with sluice up {words}: {failed.stderr}")
    equal(user.shell('eval "$(sluice up --version)" || true').stderr.count("false"), 0, "a version")
    told = user.shell("sluice down /nowhere/at/all").stderr
    equal(told, "No switch ran in /nowhere/at/all: there is no such directory.\n", "down, misspelt")


@test(timeout=60)
def a_long_name_is_no_obstacle(lab):
    """A directory in which no socket's path fits an address: all commands work."""
    user = User(lab)
    user.directory = os.path.join(lab.directory, "long" * 30)
    try:
        user.shell(
            'eval "$(sluice up "$D")" && ovs-vsctl add-br br0 -- set Bridge br0 '
            'datapath_type=netdev && sluice save "$D" && sluice restart "$D" && '
            "ovs-ofctl dump-flows br0"
        )
        check("br0" in user.shell('sluice top "$D"').stdout, "top does not show the bridge")
    finally:
        user.shell('sluice down "$D"', ok=False)


@test(timeout=90)
def a_full_disk_loses_no_rules(lab):
    """`save` and `restart` fail where there is no room for the rules, whether for none or for a
    part of them; the switch goes on, and what was saved before stays."""
    user = User(lab)
    os.mkdir(user.directory)
    run(["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", user.directory])
    rules = "".join(
        f"priority=1,ip,nw_dst=10.{n >> 8}.{n & 255}.1,actions=drop\n" for n in range(5000)
    )
    with open(f"{lab.directory}/rules", "w", encoding="ascii") as file:
        file.write(rules)
    fill = f"{user.directory}/fill"

    def plain(told):
        """What is told of rules without how they were added."""
        return [rule.replace("reset_counts ", "") for rule in told[0]]

    try:
        user.shell(
            'eval "$(sluice up "$D")" && ovs-vsctl add-br br0 -- set Bridge br0 '
            f"datapath_type=netdev && ovs-ofctl add-flows br0 {lab.directory}/rules"
        )
        saved = user.rules()
        user.shell(
            'sluice save "$D" && eval "$(sluice up "$D")" && '
            "ovs-ofctl add-flow br0 priority=2,arp,actions=drop"
        )
        before, pid = user.rules(), user.pid()
        for left in (0, 64):
            with open(fill, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            with open(fill, "r+b") as file:
                file.truncate(max(0, os.path.getsize(fill) - left * 1024))
            for words in ("save", "restart"):
                told = user.shell(f'sluice {words} "$D"', ok=False)
                equal(
                    told.returncode, 1, f"status of {words}, {left} KiB being left: {told.stderr}"
                )
                check("No space left" in told.stderr, told.stderr)
            equal((user.rules(), user.pid()), (before, pid), f"the switch, {left} KiB being left")
            os.unlink(fill)
        user.shell('sluice restart "$D"')
        equal(plain(user.rules()), plain(before), "rules after a restart with room")
        user.shell('sluice restore "$D"')
        equal(plain(user.rules()), plain(saved), "rules saved before there was no room")
    finally:
        user.shell('sluice down "$D"', ok=False)


@test(timeout=60)
def another_ones_switch_is_left_alone(lab):
    """`down` and `restart` refuse a switch that `up` has not started; `save` and `restore` work on
    it, and on Open vSwitch."""
    switch = lab.switch()
    switch.bridge("br0", "protocols=[OpenFlow10,OpenFlow13,OpenFlow15]")
    switch.ofctl("-OOpenFlow13", "add-meter", "br0", "meter=3,pktps,band=type=drop,rate=1000")
    switch.ofctl("-OOpenFlow15", "add-group", "br0", "group_id=7,type=all,bucket=output:1")
    switch.ofctl("-OOpenFlow13", "add-flow", "br0", "tcp,actions=meter:3,group:7")
    env = dict(switch.env, SLUICE_RULES=f"{lab.directory}/it's saved", SLUICE_RULES_STRICT="1")

    def everything():
        return (
            sorted(
                switch.ofctl("-OOpenFlow15", "--no-stats", "dump-flows", "br0").splitlines()[1:]
            ),
            switch.ofctl("-OOpenFlow15", "dump-groups", "br0").splitlines()[1:],
            switch.ofctl("-OOpenFlow15", "dump-meters", "br0").splitlines()[1:],
        )

    wanted = everything()
    run([RULES, "save"], env=env)
    switch.ofctl("-OOpenFlow15", "del-groups", "br0")
    switch.ofctl("-OOpenFlow15", "add-group", "br0", "group_id=9,type=all,bucket=output:2")
    switch.ofctl("-OOpenFlow13", "del-meters", "br0")
    check(everything() != wanted, "nothing has changed")
    run([RULES, "put-back"], env=env)
    equal(everything(), wanted, "rules, groups and meters after they were put back")
    check(
        "flow-restore-wait" not in switch.get("Open_vSwitch", ".", "other_config"),
        "packets still wait",
    )
    # A rule that is refused is no success.
    script = f"{env['SLUICE_RULES']}/restore.sh"
    with open(script, "a", encoding="ascii") as file:
        file.write("ovs-ofctl add-flow nowhere actions=drop\ntrue\n")
    failed = run([RULES, "put-back"], env=env, ok=False)
    check(
        failed.returncode == 1 and "nowhere" in failed.stderr and "not all rules" in failed.stderr,
        failed.returncode,
        failed.stderr,
    )
    if lab.is_ovs:
        return
    os.rename(f"{switch.directory}/conf.db", f"{switch.directory}/elsewhere.db")
    sluice = os.path.join(os.path.dirname(lab.switchd[0]), "sluice")
    for word in ("down", "restart"):
        refused = run([sluice, word, switch.directory], ok=False)
        check(refused.returncode == 1 and "has not started" in refused.stderr, refused.stderr)
    equal(everything(), wanted, "the switch that was left alone")


def send_for(host, seconds):
    """Some packets a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        host.send(*(frame(number) for number in range(5)))
        time.sleep(0.02)


@test(timeout=90)
def top_shows_what_is_busy(lab):
    """Ports, queues with waits, drops by port, the busiest rules; the busiest first, all of it in
    text."""
    if lab.is_ovs:
        raise Skip("a command of Sluice's")
    switch, one, _ = some_hosts(lab)
    sluice = os.path.join(os.path.dirname(lab.switchd[0]), "sluice")
    shape(switch, 1000000000, min_rate=8000000, max_rate=8000000)
    quiet = switch.appctl("sluice/busiest", "1000")
    rules = len(switch.rules())
    switch.ofctl("add-flow", "br0", "table=9,priority=3,udp,actions=drop")
    before = json.loads(switch.appctl("sluice/busiest"))
    check(
        json.loads(quiet)["left_out"] == 0 and all(rule["packets"] > 0 for rule in before["rules"]),
        quiet,
        before,
    )
    send_for(one, 0.2)
    check("1 to 1000" in switch.appctl("sluice/busiest", "0", ok=False).stderr, "a count of 0")
    with inside(switch.namespace):
        top = subprocess.Popen(
            [sluice, "top", "-n", "1", "-i", "2"], env=switch.env, stdout=subprocess.PIPE, text=True
        )
    send_for(one, 2.5)
    text = top.communicate(timeout=20)[0]
    check(top.returncode == 0, text)
    lines = text.splitlines()
    found = re.match(r"up (\d\d:\d\d:\d\d), (\d+) ports", lines[0])
    check(found and lines[1].startswith("in ") and f" {rules + 1} rules" in lines[0], lines[:2])

    def rows(title):
        """The rows of a section, as words."""
        at = next(number for number, line in enumerate(lines) if line.startswith(title))
        end = next(
            (number for number, line in enumerate(lines) if number > at and not line), len(lines)
        )
        return [line.split() for line in lines[at + 2 : end]]

    ports = rows("Ports")
    equal(sorted(row[0] for row in ports[:2]), ["p1", "p2"], "the busy ports are first")
    check(all(row[4] == "up" for row in ports[:2]), ports)
    queue = next(row for row in rows("Queues") if row[:2] == ["p2", "1"])
    check(
        queue == rows("Queues")[0]
        and int(queue[3]) > 50
        and re.match("[0-9.]+(us|ms|s)$", queue[6]),
        "the busy queue is first, with its wait:",
        queue,
    )
    check(
        re.match("[0-9.]+(us|ms|s)$", queue[-3]) and queue[-3] != "0.0us",
        "its p99 stands before its drops:",
        queue,
    )
    turns = {row[0]: row[1:4] for row in rows("Longest turns")}
    check(
        "control" in turns
        and any(name.startswith("pmd-") for name in turns)
        and all(re.match("[0-9.]+(us|ms|s)$", turn) for turn, _, _ in turns.values()),
        "the longest turns of control and workers:",
        turns,
    )
    busiest = rows("Busiest rules")[0]
    check(float(busiest[0]) > 50 and "enqueue:2:1" == busiest[-1], busiest)
    told = json.loads(switch.appctl("sluice/queues"))
    check(told["left_out"] == 0 and any(queue["packets"] for queue in told["queues"]), told)


@test(timeout=60)
def top_is_live(lab):
    """In a terminal of 80 by 24: it scrolls, says when figures are old, finds the switch again, and
    ends at q."""
    if lab.is_ovs:
        raise Skip("a command of Sluice's")
    switch = lab.switch(options=["--enable-dummy"])
    switch.bridge()
    for number in range(40):
        switch.port(f"d{number}", "type=dummy")
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(switch.env, TERM="xterm")
        program = os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")
        os.execv(program, ["sluice", "top", "-i", "0.2"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen = ""

    def shows(pattern, seconds=15):
        """Waits until what came since the last look has such words."""
        nonlocal seen
        text, end = "", time.monotonic() + seconds
        while not re.search(pattern, text):
            check(time.monotonic() < end, f"no {pattern} on the screen:", text[-3000:])
            if select.select([terminal], [], [], 0.2)[0]:
                # Cells that stay are passed over by moves of the cursor.
                seen += os.read(terminal, 65536).decode(errors="replace")
                text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
        seen = ""

    shows("Ports")
    os.write(terminal, b"G")
    shows("Tables")
    os.kill(switch.process.pid, signal.SIGSTOP)
    shows("STALE: figures are \\d+ s old")
    os.kill(switch.process.pid, signal.SIGCONT)
    shows("lines \\d+ to")
    switch.stop()
    shows("STALE: figures are")
    switch.start()
    shows("lines \\d+ to")
    os.write(terminal, b"q")

    def ended():
        if select.select([terminal], [], [], 0)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:
                pass
        return os.waitpid(process, os.WNOHANG)[0] == process

    wait_for("top has ended", ended)
