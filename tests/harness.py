"""What the end-to-end tests stand on: network namespaces, veth pairs, a daemon with a real
ovsdb-server, raw sockets, guests, and the rule that nothing outlives a test.

A test is a function marked with @test that takes a Lab. `tests/run` calls each in a process of its
own, inside PID, mount and network namespaces of its own: when that process ends, however it ends,
the kernel ends every process the test started and takes back every interface and namespace it made.
So tests need no cleaning code, cannot see each other, and two runs side by side cannot either. What
namespaces do not cover (huge pages) the runner gives back.

The daemon under test comes from the environment variable SWITCHD, a command called like
ovs-vswitchd (default: target/release/sluiced). SWITCHD=ovs means Debian's Open vSwitch with DPDK,
on which every test is proven too.
"""

import contextlib
import ctypes
import json
import os
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPEN_VSWITCH = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
TESTS = []
# Slow machines get more time with SLUICE_TEST_PATIENCE=3; no test asserts a duration.
PATIENCE = float(os.environ.get("SLUICE_TEST_PATIENCE", "1"))


class Failure(Exception):
    """What a test found wrong."""


class Skip(Exception):
    """Why a test says nothing about this daemon."""


def test(timeout=60, hugepages=0, dpdk=False, on_request=False):
    """Marks a test.

    `timeout` is in seconds; `hugepages` counts 2 MB pages that must be free while it runs (without
    any it sees none, whatever others have); `dpdk` says that it uses DPDK ports, for which Open
    vSwitch (not Sluice) needs huge pages too; `on_request` tests run only when named."""

    def mark(function):
        function.timeout, function.hugepages, function.dpdk = timeout * PATIENCE, hugepages, dpdk
        function.on_request = on_request
        TESTS.append(function)
        return function

    return mark


def check(condition, *explanation):
    """Fails the test unless `condition` holds."""
    if not condition:
        raise Failure(" ".join(str(part) for part in explanation) or "condition does not hold")


def equal(got, wanted, what):
    """Fails the test unless both are the same."""
    if got != wanted:
        raise Failure(f"{what}: got {got!r}, wanted {wanted!r}")


def wait_for(what, condition, seconds=10):
    """Waits until `condition()` is true and returns its value; fails the test with `what`
    otherwise."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"waited {seconds:g} s in vain until {what}")
        time.sleep(0.05)


def becomes(get, wanted, what, seconds=10):
    """Waits until `get()` is as wanted; fails the test with the difference otherwise."""
    end = time.monotonic() + seconds * PATIENCE
    while (got := get()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    equal(got, wanted, what)


def threads(process):
    """A process's threads: their names and the processors that they may use, by number, without
    those that end meanwhile."""
    found = {}
    for thread in os.listdir(f"/proc/{process}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{process}/task/{thread}/comm", encoding="ascii") as file:
                name = file.read().strip()
            found[int(thread)] = name, sorted(os.sched_getaffinity(int(thread)))
    return found


def run(command, seconds=30, ok=True, stdin=None, env=None, cwd=None):
    """Runs a command to its end and returns it with .stdout and .stderr; fails the test when it
    fails or takes longer."""
    if isinstance(command, str):
        command = shlex.split(command)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds * PATIENCE,
            input=stdin,
            env=env,
            cwd=cwd,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            errors="replace",
        )
    except subprocess.TimeoutExpired as late:
        raise Failure(
            f"{shlex.join(command)} took more than {seconds:g} s; so far it printed:\n"
            f"{late.stdout}\n{late.stderr}"
        ) from None
    if ok and done.returncode:
        raise Failure(
            f"{shlex.join(command)} ended with {done.returncode}:\n"
            f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done


_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace):
    """Moves this thread into a network namespace for a while: sockets opened meanwhile stay
    there."""
    with open("/proc/thread-self/ns/net", "rb") as home, open(namespace.path, "rb") as there:
        for file in (there,):
            if _libc.setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns to {namespace.name}")
        try:
            yield
        finally:
            if _libc.setns(home.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns back")


class Namespace:
    """A network namespace, with commands that run in it."""

    def __init__(self, lab, name):
        self.lab, self.name, self.path = lab, name, f"/run/netns/{name}"
        run(["ip", "netns", "add", name])
        self.run("ip link set lo up")
        # A link is usable at once, without the second that duplicate address detection takes.
        self.run("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")

    def command(self, command):
        """The command as it has to be called from outside."""
        if isinstance(command, str):
            command = shlex.split(command)
        return ["nsenter", f"--net={self.path}", "--", *command]

    def run(self, command, **options):
        """As run(), in the namespace."""
        return run(self.command(command), **options)

    def start(self, command, log, **options):
        """Starts a program in the namespace; it ends with the test.

        Its output goes to the file `log` in the test's directory."""
        return self.lab.start(self.command(command), log, **options)

    def quiet(self):
        """No IPv6 in this namespace, so that only the test's own packets are on its links."""
        self.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        return self

    def address(self, device="eth0"):
        """The MAC address of a device."""
        return json.loads(self.run(["ip", "-j", "link", "show", device]).stdout)[0]["address"]

    def ping(self, target, count=3, ok=True, size=56, interval=0.05, device=None):
        """Pings; returns how many answers came. With ok, fails the test unless all came."""
        command = [
            "ping",
            "-n",
            "-c",
            str(count),
            "-i",
            str(interval),
            "-W",
            "2",
            "-s",
            str(size),
            target,
        ]
        if device:
            command[1:1] = ["-I", device]
        done = self.run(command, seconds=20 + count * 2.5, ok=False)
        found = re.search(r"(\d+) received", done.stdout)
        answers = int(found.group(1)) if found else 0
        if ok and answers != count:
            raise Failure(
                f"{self.name} pinged {target} {count} times and got {answers} answers:\n"
                f"{done.stdout}{done.stderr}"
            )
        return answers

    def reaches(self, target, seconds=10):
        """Waits until one ping is answered."""
        wait_for(f"{self.name} reaches {target}", lambda: self.ping(target, 1, ok=False), seconds)

    def iperf(self, target, *options, seconds=2, port=5201):
        """iperf3 to a server that runs already; returns its report.

        A server that ends its last test closes its socket and listens again a moment later, so a
        test that is refused, or reset before it has begun, is tried again."""

        def attempt():
            done = self.run(
                ["iperf3", "-J", "-c", target, "-p", str(port), "-t", str(seconds), *options],
                seconds=seconds + 40,
                ok=False,
            )
            report = json.loads(done.stdout)
            error = report.get("error", "")
            again = re.search("refused|busy", error) or (
                "reset" in error and not report.get("intervals")
            )
            return None if again else report

        report = wait_for(f"iperf3 at {target} takes a test", attempt, 10)
        check("error" not in report, f"iperf3 to {target}:", report.get("error"))
        return report

    def checksum_errors(self):
        """How many packets with a bad checksum the kernel of this namespace has counted, by
        protocol."""
        errors = {}
        with inside(self):
            with open("/proc/thread-self/net/snmp", encoding="ascii") as file:
                lines = file.read().splitlines()
            for names, values in zip(lines[::2], lines[1::2]):
                for name, value in zip(names.split()[1:], values.split()[1:]):
                    if "Csum" in name:
                        errors[names.split(":")[0] + name] = int(value)
            with open("/proc/thread-self/net/snmp6", encoding="ascii") as file:
                for line in file:
                    if "Csum" in line:
                        errors[line.split()[0]] = int(line.split()[1])
        return {name: count for name, count in errors.items() if count}

    def raw(self, device="eth0"):
        """A raw socket on a device."""
        return Raw(self, device)


class Raw:
    """Sends and receives whole Ethernet frames on a kernel interface.

    Received frames have their VLAN tag in place, which the kernel hands over beside the packet
    (PACKET_AUXDATA), and are complete even where a checksum was left to hardware."""

    SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING, PACKET_MR_PROMISC = (
        263,
        1,
        8,
        23,
        1,
    )

    def __init__(self, namespace, device):
        with inside(namespace):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            index = socket.if_nametoindex(device)
            self.socket.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
            self.socket.setsockopt(self.SOL_PACKET, self.PACKET_IGNORE_OUTGOING, 1)
            self.socket.setsockopt(self.SOL_PACKET, self.PACKET_AUXDATA, 1)
            self.socket.setsockopt(
                self.SOL_PACKET,
                self.PACKET_ADD_MEMBERSHIP,
                struct.pack("IHH8s", index, self.PACKET_MR_PROMISC, 0, b""),
            )
            self.socket.bind((device, 3))  # ETH_P_ALL

    def send(self, *frames):
        """Sends frames as they are."""
        for frame in frames:
            self.socket.send(frame)

    def receive_one(self, seconds):
        """The next frame, or None when none comes in time."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return None
        frame, ancillary, _, _ = self.socket.recvmsg(70000, 256)
        for level, kind, data in ancillary:
            if (level, kind) == (self.SOL_PACKET, self.PACKET_AUXDATA):
                status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", data[:20])
                if status & 0x10:  # TP_STATUS_VLAN_VALID
                    frame = (
                        frame[:12]
                        + struct.pack("!HH", tpid if status & 0x40 else 0x8100, tci)
                        + frame[12:]
                    )
        return frame

    def receive(self, seconds=1.0, wanted=None, until=None):
        """Frames that arrive within some seconds, and those that have arrived when they are over,
        however long this process stood still meanwhile; stops early after `until` of them. `wanted`
        filters."""
        frames, end = [], time.monotonic() + seconds * PATIENCE
        while until is None or len(frames) < until:
            left = end - time.monotonic()
            # Where frames come without an end it does not go on for ever.
            frame = self.receive_one(max(left, 0)) if left > -5 else None
            if frame is None:
                break
            if wanted is None or wanted(frame):
                frames.append(frame)
        return frames

    def drain(self):
        """Throws away what has arrived."""
        while self.receive_one(0) is not None:
            pass


class Switch:
    """A daemon with a database server of its own, in a directory and a network namespace of its
    own."""

    def __init__(
        self,
        lab,
        name="s",
        namespace=None,
        command=None,
        options=(),
        config=(),
        database=True,
        start=True,
        schema=SCHEMA,
    ):
        """`command` is the daemon's (default: the one under test), `options` are added to it,
        `config` is what ovs-vsctl sets in the Open_vSwitch row before the daemon starts, `schema`
        is the database's, a file."""
        self.lab, self.name, self.options = lab, name, list(options)
        self.command = command or lab.switchd
        self.is_ovs = lab.is_ovs if command is None else is_open_vswitch(command)
        self.directory = os.path.join(lab.directory, name)
        os.makedirs(self.directory, exist_ok=True)
        self.namespace = namespace or lab.namespace(name).quiet()
        self.env = dict(
            os.environ,
            OVS_RUNDIR=self.directory,
            OVS_LOGDIR=self.directory,
            OVS_DBDIR=self.directory,
            OVS_SYSCONFDIR=self.directory,
            OVS_PKGDATADIR="/usr/share/openvswitch",
        )
        self.db = f"unix:{self.directory}/db.sock"
        self.process = self.ovsdb = None
        self.log_file = f"{self.directory}/ovs-vswitchd.log"
        self.expected = []  # what the log may say although it looks bad
        lab.switches.append(self)
        if database:
            run(["ovsdb-tool", "create", f"{self.directory}/conf.db", schema], env=self.env)
            self.start_database()
            self.vsctl("--no-wait", "init")
            if self.is_ovs:
                # Without it Open vSwitch forwards frames whose checksum was left to the device as
                # they are.
                self.vsctl(
                    "--no-wait",
                    "set",
                    "Open_vSwitch",
                    ".",
                    "other_config:userspace-tso-enable=true",
                )
            if config:
                self.vsctl("--no-wait", "set", "Open_vSwitch", ".", *config)
            if start:
                self.start()

    def start_database(self):
        """Starts ovsdb-server on the database file."""
        self.ovsdb = self.lab.start(
            [
                "ovsdb-server",
                f"{self.directory}/conf.db",
                f"--remote=punix:{self.directory}/db.sock",
                "--remote=db:Open_vSwitch,Open_vSwitch,manager_options",
                f"--unixctl={self.directory}/ovsdb.ctl",
                "-vconsole:off",
                f"--log-file={self.directory}/ovsdb-server.log",
            ],
            f"{self.name}.ovsdb",
            env=self.env,
        )
        # The socket is there a moment before it takes connections.
        listening = f"{self.directory}/db.sock"
        wait_for("ovsdb-server listens", lambda: takes_connections(listening))

    def stop_database(self):
        """Ends ovsdb-server."""
        self.ovsdb.terminate()
        self.ovsdb.wait(10)

    def arguments(self):
        """The daemon's command line."""
        return [
            *self.command,
            self.db,
            "--pidfile",
            "--no-chdir",
            f"--log-file={self.log_file}",
            "-vconsole:off",
            *self.options,
        ]

    def start(self, wait=True, bridges=True):
        """Starts the daemon in the foreground and waits until it answers, and until its bridges
        do."""
        self.process = self.namespace.start(self.arguments(), f"{self.name}.out", env=self.env)
        if wait:
            self.wait_up()
        if wait and bridges:
            self.wait_bridges()

    def wait_up(self):
        """Waits until the daemon answers on its control socket."""

        def up():
            if self.process is not None and self.process.poll() is not None:
                raise Failure(
                    f"{self.name}: the daemon ended with {self.process.returncode}:\n{self.tail()}"
                )
            return self.appctl("version", ok=False).returncode == 0

        wait_for(f"{self.name}: the daemon answers", up, 30)

    def wait_bridges(self):
        """Waits until the bridges that the database has take OpenFlow's connections: the control
        socket answers before. None without a database."""
        if self.ovsdb is None or self.ovsdb.poll() is not None:
            return
        for bridge in self.vsctl("--no-wait", "--real", "list-br").split():
            wait_for(
                f"{self.name}: {bridge} takes connections",
                lambda bridge=bridge: takes_connections(f"{self.directory}/{bridge}.mgmt"),
                30,
            )

    def stop(self):
        """Ends the daemon with SIGTERM; fails the test unless it ends cleanly."""
        self.process.terminate()
        try:
            code = self.process.wait(20 * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name}: the daemon does not end after SIGTERM") from None
        self.process = None
        # Open vSwitch leaves the signal to the system once it has cleaned up; both are a clean end.
        check(
            code in (0, -signal.SIGTERM),
            f"{self.name}: the daemon ended with {code} after SIGTERM:\n{self.tail()}",
        )

    def kill(self):
        """Ends the daemon at once, as a crash would."""
        self.process.kill()
        self.process.wait(10)
        self.process = None

    def restart(self):
        """Ends and starts the daemon."""
        self.stop()
        self.start()

    def tail(self, lines=25):
        """The last lines of the daemon's log and of what it printed."""
        text = ""
        for path in (self.log_file, os.path.join(self.lab.directory, f"{self.name}.out")):
            with (
                contextlib.suppress(OSError),
                open(path, encoding="utf-8", errors="replace") as file,
            ):
                text += "".join(file.readlines()[-lines:])
        return text

    def log(self):
        """All of the daemon's log."""
        with open(self.log_file, encoding="utf-8", errors="replace") as file:
            return file.read()

    def logged(self, pattern, seconds=5):
        """Waits until the log has a line that the pattern matches."""
        return wait_for(
            f"{self.name} logs /{pattern}/", lambda: re.search(pattern, self.log()), seconds
        )

    def tool(self, *command, ok=True, seconds=20, stdin=None):
        """Runs one of Open vSwitch's tools against this daemon and returns the finished process."""
        return run(
            [str(word) for word in command], env=self.env, ok=ok, seconds=seconds, stdin=stdin
        )

    def vsctl(self, *arguments, ok=True, seconds=20):
        """ovs-vsctl; returns what it printed.

        Without --no-wait it returns after the daemon has applied the change."""
        if ok is not True:
            return self.tool(
                "ovs-vsctl",
                f"--db={self.db}",
                f"--timeout={int(seconds)}",
                *arguments,
                ok=False,
                seconds=seconds + 5,
            )
        return self.tool(
            "ovs-vsctl",
            f"--db={self.db}",
            f"--timeout={int(seconds * PATIENCE)}",
            *arguments,
            seconds=seconds + 5,
        ).stdout.strip()

    def ofctl(self, *arguments, ok=True, stdin=None, seconds=20):
        """ovs-ofctl; returns what it printed, or the process where ok is False."""
        done = self.tool("ovs-ofctl", *arguments, ok=ok, stdin=stdin, seconds=seconds)
        return done.stdout if ok else done

    def appctl(self, *arguments, ok=True):
        """ovs-appctl to the daemon; returns what it printed, or the process where ok is False."""
        done = self.tool("ovs-appctl", *arguments, ok=ok)
        return done.stdout if ok else done

    def get(self, table, record, column):
        """One column of the database as a Python value: sets are lists, maps dictionaries."""
        done = json.loads(self.vsctl("--format=json", f"--columns={column}", "list", table, record))

        def plain(value):
            if isinstance(value, list) and len(value) == 2 and value[0] in ("set", "map", "uuid"):
                if value[0] == "set":
                    return [plain(item) for item in value[1]]
                if value[0] == "map":
                    return {plain(key): plain(item) for key, item in value[1]}
                return value[1]
            return value

        return plain(done["data"][0][0])

    def bridge(self, name="br0", *settings):
        """Adds a userspace bridge."""
        self.vsctl("add-br", name, "--", "set", "Bridge", name, "datapath_type=netdev", *settings)
        return name

    def port(self, name, *settings, bridge="br0", port_settings=()):
        """Adds a port and returns its OpenFlow number; fails when the daemon reports an error."""
        command = ["add-port", bridge, name, *port_settings]
        if settings:
            command += ["--", "set", "Interface", name, *settings]
        self.vsctl(*command)
        number = self.get("Interface", name, "ofport")
        check(
            isinstance(number, int) and number > 0,
            f"port {name} has ofport {number}: {self.get('Interface', name, 'error')}",
        )
        return number

    def flows(self, *rules, bridge="br0", version=None):
        """Replaces all rules of a bridge."""
        versions = ["-O", version] if version else []
        self.ofctl(*versions, "del-flows", bridge)
        if rules:
            self.ofctl(
                *versions, "add-flows", bridge, "-", stdin="\n".join(rules) + "\n", seconds=60
            )

    def rules(self, bridge="br0", *arguments):
        """The rules of a bridge, a line each, without counters and times."""
        text = self.ofctl("--no-stats", "dump-flows", bridge, *arguments)
        return [line.strip() for line in text.splitlines() if "actions=" in line]

    def rule_packets(self, bridge="br0", version="OpenFlow10"):
        """The packet counter of each rule, by cookie (rules without one are left out)."""
        counts = {}
        for cookie, packets in re.findall(
            r"cookie=(0x[0-9a-f]+),.*?n_packets=(\d+)",
            self.ofctl("-O", version, "dump-flows", bridge),
        ):
            if int(cookie, 16):
                counts[int(cookie, 16)] = counts.get(int(cookie, 16), 0) + int(packets)
        return counts

    def counters(self, bridge="br0"):
        """OpenFlow port counters: {port: {"rx": {...}, "tx": {...}}} with the names ovs-ofctl
        prints (pkts, bytes, drop, errs)."""
        ports, current = {}, None
        for line in self.ofctl("--names", "dump-ports", bridge).splitlines():
            found = re.match(r"\s+port\s+\"?([^\":]+)\"?\s*:\s*rx (.*)", line)
            if found:
                current = ports.setdefault(found.group(1), {})
                current["rx"] = counts(found.group(2))
            elif current is not None and line.strip().startswith("tx "):
                current["tx"] = counts(line.strip()[3:])
        return ports

    def link(
        self,
        host,
        name,
        device="eth0",
        *settings,
        ip=None,
        ip6=None,
        bridge="br0",
        mtu=None,
        port_settings=(),
    ):
        """A veth pair, one end `device` in the namespace `host`, the other a port `name` of the
        switch, with the kernel's defaults (offloads on). Returns the OpenFlow port number."""
        self.pair(host, name, device, ip=ip, ip6=ip6, mtu=mtu)
        return self.port(name, *settings, bridge=bridge, port_settings=port_settings)

    def pair(self, host, name, device="eth0", ip=None, ip6=None, mtu=None):
        """The veth pair of link() without the port."""
        size = ["mtu", str(mtu)] if mtu else []
        self.namespace.run(
            [
                "ip",
                "link",
                "add",
                name,
                *size,
                "type",
                "veth",
                "peer",
                "name",
                device,
                *size,
                "netns",
                host.name,
            ]
        )
        self.namespace.run(["ip", "link", "set", name, "up"])
        host.run(["ip", "link", "set", device, "up"])
        for address in (ip, ip6):
            if address:
                host.run(["ip", "addr", "add", address, "dev", device])

    def raw_hosts(self, count=2):
        """Raw sockets of hosts whose traffic is only the test's, in namespaces h1, h2 and so on, at
        the ports of br0 with their numbers."""
        sockets = []
        for number in range(1, count + 1):
            host = self.lab.namespace(f"h{number}").quiet()
            self.pair(host, f"p{number}")
            self.port(f"p{number}", f"ofport_request={number}")
            sockets.append(host.raw())
        return sockets

    def drops(self, reason):
        """How many frames have been dropped by the reason of this name."""
        found = re.search(rf"\b{reason}\D+(\d+)", self.appctl("sluice/drops"))
        return int(found[1]) if found else 0

    def enable_dpdk(self, cores=None):
        """Settings for DPDK ports, written before a bridge exists.

        Open vSwitch gets huge pages, Sluice runs without unless the test reserved some."""
        settings = ["other_config:dpdk-init=true"]
        if cores is not None:
            settings.append(f"other_config:pmd-cpu-mask={cores:#x}")
        extra = f"--no-pci --file-prefix=sl{os.getpid()}{self.name}"
        if self.is_ovs:
            settings.append("other_config:dpdk-socket-mem=384")
        settings.append(f'other_config:dpdk-extra="{extra}"')
        self.vsctl("set", "Open_vSwitch", ".", *settings, seconds=60)


def takes_connections(path):
    """Whether somebody listens on a Unix socket."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client, contextlib.suppress(OSError):
        client.connect(path)
        return True
    return False


def counts(text):
    """'pkts=1, bytes=2, drop=?' as a dictionary; what is not known is None."""
    return {
        name: None if value == "?" else int(value)
        for name, value in re.findall(r"(\w+)=(\d+|\?)", text)
    }


def is_open_vswitch(command):
    """Whether a daemon's command is the real Open vSwitch."""
    done = run([*command, "--version"], ok=False)
    check(
        done.returncode == 0 and done.stdout,
        f"{shlex.join(command)} --version ended with {done.returncode}: {done.stderr}",
    )
    return "sluice" not in done.stdout.lower()


def switchd_command(text=None):
    """The command of the daemon under test."""
    text = text or os.environ.get("SWITCHD") or os.path.join(ROOT, "target/release/sluiced")
    if text == "ovs":
        # It names its files after its program: Debian's alternatives call this one ovs-vswitchd as
        # well.
        is_source = os.path.exists(os.path.join(ROOT, "Cargo.toml"))
        place = os.path.join(ROOT, ".build") if is_source else "/run/sluice-lab"
        link = os.path.join(place, "open-vswitch/ovs-vswitchd")
        os.makedirs(os.path.dirname(link), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(OPEN_VSWITCH, link)
        return [link]
    command = shlex.split(text)
    if "/" in command[0]:
        command[0] = os.path.abspath(command[0])
    return command


class Lab:
    """What a test has: a directory, namespaces, switches, programs."""

    def __init__(self, directory, switchd=None):
        self.directory = directory
        self.switchd = switchd or switchd_command()
        self.is_ovs = is_open_vswitch(self.switchd)
        self.switches, self.programs, self.notes = [], [], []

    def note(self, text):
        """A figure or remark that the runner prints beside the result."""
        self.notes.append(text)

    def namespace(self, name):
        """A new network namespace."""
        return Namespace(self, name)

    def host(self, name, switch, ip=None, ip6=None, device="eth0", quiet=False, **options):
        """A new namespace with one link to a switch; the port is called NAME-p."""
        namespace = self.namespace(name)
        if quiet:
            namespace.quiet()
        namespace.port = switch.link(namespace, f"{name}-p", device, ip=ip, ip6=ip6, **options)
        return namespace

    def switch(self, name="s", **options):
        """A running daemon with its database."""
        return Switch(self, name, **options)

    def start(self, command, log, env=None, stdin=subprocess.DEVNULL, stdout=None, pass_fds=()):
        """Starts a program that ends with the test; its output goes to a file of that name in the
        test's directory."""
        with open(os.path.join(self.directory, log), "ab") as file:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=stdout or file, stderr=file, env=env, pass_fds=pass_fds
            )
        self.programs.append(process)
        return process

    def finish(self):
        """After a test that found nothing wrong: every daemon still runs, ends cleanly, and never
        panicked."""
        for switch in self.switches:
            if switch.process is not None:
                code = switch.process.poll()
                check(
                    code is None,
                    f"{switch.name}: the daemon had ended with {code}:\n{switch.tail()}",
                )
                switch.stop()
            for path in (switch.log_file, os.path.join(self.directory, f"{switch.name}.out")):
                if os.path.exists(path):
                    with open(path, encoding="utf-8", errors="replace") as file:
                        for line in file:
                            bad = re.search(
                                r"panicked at|\|EMER\||AddressSanitizer|Segmentation fault", line
                            )
                            check(
                                not bad or any(text in line for text in switch.expected),
                                f"{switch.name} wrote: {line.strip()}",
                            )


def ethernet(destination, source, kind, payload=b"", vlans=()):
    """An Ethernet frame; vlans are (tag protocol, tag control) pairs, outermost first.

    Not padded."""
    head = mac(destination) + mac(source)
    for protocol, control in vlans:
        head += struct.pack("!HH", protocol, control)
    return head + struct.pack("!H", kind) + payload


def mac(text):
    """Six bytes of aa:bb:cc:dd:ee:ff."""
    return bytes.fromhex(text.replace(":", "")) if isinstance(text, str) else text
