"""What OpenFlow says between connections and switch, beside Open vSwitch: tables, bundles, roles,
asynchronous configuration, flow monitors, evictions; and what a connection that does not read is
told in the end, and that it keeps nobody waiting."""

import difflib
import os
import re
import socket
import struct
import subprocess
import time

from harness import OPEN_VSWITCH, Skip, check, equal, switchd_command, test, wait_for

ALL = "protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15"
ERROR, ECHO_REQUEST, ECHO_REPLY, EXPERIMENTER, FLOW_MOD = 1, 2, 3, 4, 14
BARRIER_XID = 0x7FFF0000


class Client:
    """A connection in one version that says bytes and hears all that comes back before a
    barrier."""

    def __init__(self, switch, version, bridge="br0"):
        self.version = version
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(f"{switch.directory}/{bridge}.mgmt")
        self.file = self.socket.makefile("rb")
        self.socket.sendall(self.message(0, b"", 1))
        self.read()
        self.xid = 100

    def message(self, kind, body, xid):
        return struct.pack("!BBHI", self.version, kind, 8 + len(body), xid) + body

    def read(self):
        head = self.file.read(8)
        if len(head) < 8:
            raise ConnectionError("the switch closed the connection")
        _, kind, length, xid = struct.unpack("!BBHI", head)
        body = self.file.read(length - 8)
        if kind == ECHO_REQUEST:
            self.socket.sendall(self.message(ECHO_REPLY, body, xid))
            return self.read()
        return kind, xid, body

    def send(self, kind, body=b"", xid=None):
        self.xid += 1
        self.socket.sendall(self.message(kind, body, xid or self.xid))

    def barrier(self):
        self.socket.sendall(self.message(18 if self.version == 1 else 20, b"", BARRIER_XID))
        heard = []
        while True:
            kind, xid, body = self.read()
            if xid == BARRIER_XID:
                return heard
            heard.append((kind, body))

    def ask(self, kind, body=b"", xid=None):
        """Sends, and returns what comes back in words that compare: errors without what they
        quote."""
        self.send(kind, body, xid)
        return [shown(kind, body) for kind, body in self.barrier()]


def shown(kind, body):
    if kind == ERROR:
        return (
            "error "
            + (
                body[:12]
                if body[:2] in (b"\xb0\xc2",)
                else body[:8]
                if body[:2] == b"\xff\xff"
                else body[:4]
            ).hex()
        )
    return f"{kind} {body[:200].hex()}"


def oxm(*fields):
    """A match in OXM."""
    body = b"".join(fields)
    return struct.pack("!HH", 1, 4 + len(body)) + body + bytes(-(4 + len(body)) % 8)


IN_PORT = bytes.fromhex("80000004")


def port_is(number):
    return IN_PORT + struct.pack("!I", number)


def output(port):
    return struct.pack("!HH4xHHIH6x", 4, 24, 0, 16, port, 0)


def flow_mod(
    *fields, command=0, priority=10, cookie=0, out=1, table=0, flags=0, idle=0, instructions=None
):
    """A flow mod's body, 1.2 and later."""
    head = struct.pack(
        "!QQBBHHHIIIHH",
        cookie,
        0,
        table,
        command,
        idle,
        0,
        priority,
        0xFFFFFFFF,
        0xFFFFFFFF,
        0xFFFFFFFF,
        flags,
        0,
    )
    return head + oxm(*fields) + (output(out) if instructions is None else instructions)


def raw_story(switch):
    """What raw messages are answered, step by step: [(what, answers)]."""
    told = []

    def step(client, what, kind, body=b"", xid=None):
        told.append((f"1.{client.version - 1} {what}", client.ask(kind, body, xid)))

    tables(switch, step)
    bundles(switch, step)
    roles(switch, step)
    asynchronous(switch, step)
    return told


def tables(switch, step):
    mod = 17
    for version in (2, 3, 4, 5, 6):
        client = Client(switch, version)
        for what, table, config in (
            ("nothing", 0, 0),
            ("continue", 0, 1),
            ("drop", 0, 2),
            ("254", 254, 0),
            ("all", 255, 0),
        ):
            step(client, f"table mod {what}", mod, struct.pack("!BxxxI", table, config))
    client = Client(switch, 5)
    describe = struct.pack("!HHI", 14, 0, 0)

    def vacancy(down, up):
        return struct.pack("!HHBBBx", 3, 8, down, up, 0)

    for what, table, config, properties in (
        ("evict", 0, 4, b""),
        ("vacancy", 0, 8, vacancy(20, 80)),
        ("equal thresholds", 2, 8, vacancy(20, 20)),
        ("thresholds crossed", 0, 8, vacancy(80, 20)),
        ("threshold above 100", 0, 8, vacancy(50, 101)),
        ("short property", 0, 8, struct.pack("!HHB3x", 3, 5, 0)),
        ("both, all tables", 255, 12, vacancy(10, 90)),
        ("none", 255, 0, b""),
    ):
        step(client, f"table mod {what}", mod, struct.pack("!BxxxI", table, config) + properties)
        step(client, "table description", 18, describe)
    # Names are what can be changed of the features.
    for version in (4, 5, 6):
        client = Client(switch, version)
        client.send(18, struct.pack("!HHI", 12, 0, 0))
        first = client.barrier()[0][1][8:]
        first = first[: struct.unpack("!H", first[:2])[0]]

        def changed(at, value, item=first):
            return struct.pack("!HHI", 12, 0, 0) + item[:at] + value + item[at + len(value) :]

        if version < 6:
            step(client, "one table of features", 18, changed(0, b""))
            continue
        for what, at, value in (
            ("replace one", 3, b"\0"),
            ("enable", 3, b"\2"),
            ("disable", 3, b"\3"),
            ("no such table", 2, b"\xfe"),
            ("all tables", 2, b"\xff"),
        ):
            step(client, f"features: {what}", 18, changed(at, value))
        modify = changed(3, b"\1")[8:]
        for what, at, value in (
            ("other size", 60, struct.pack("!I", 5)),
            ("other config", 56, struct.pack("!I", 4)),
        ):
            step(client, f"features: {what}", 18, changed(at, value, modify))


def bundles(switch, step):
    for version in (4, 5, 6):
        client = Client(switch, version)

        def control(what, number, command, flags, client=client):
            body = struct.pack("!IHH", number, command, flags)
            if client.version == 4:
                step(client, what, EXPERIMENTER, struct.pack("!II", 0x4F4E4600, 2300) + body)
            else:
                step(client, what, 33, body)

        def add(what, number, flags, kind, body, xid=77, inner=None, client=client, wire=None):
            message = (
                struct.pack(
                    "!BBHI",
                    wire or client.version,
                    kind,
                    8 + len(body),
                    xid if inner is None else inner,
                )
                + body
            )
            head = struct.pack("!IHH", number, 0, flags)
            if client.version == 4:
                step(
                    client,
                    what,
                    EXPERIMENTER,
                    struct.pack("!II", 0x4F4E4600, 2301) + head + message,
                    xid,
                )
            else:
                step(client, what, 34, head + message, xid)

        # Overlaps what is before it in the bundle.
        good, bad = flow_mod(port_is(1)), flow_mod(flags=2)
        control("open", 1, 0, 3)
        control("open again", 1, 0, 3)
        control("open anew", 1, 0, 3)
        add("add", 1, 3, FLOW_MOD, good)
        add("add with other flags", 1, 1, FLOW_MOD, good)
        control("commit what is gone", 1, 4, 3)
        control("close unknown", 9, 2, 3)
        control("discard unknown", 9, 6, 3)
        control("commit unknown", 9, 4, 3)
        control("a reply", 9, 1, 3)
        add("add opens", 2, 2, FLOW_MOD, good)
        add("other xid", 2, 2, FLOW_MOD, good, inner=5)
        add("a barrier", 2, 2, 20, b"")
        control("close", 2, 2, 2)
        control("close again", 2, 2, 2)
        add("add opens", 3, 3, FLOW_MOD, flow_mod(port_is(2)))
        add("add what fails", 3, 3, FLOW_MOD, bad)
        control("commit and fail", 3, 4, 3)
        add("add opens", 4, 3, FLOW_MOD, flow_mod(port_is(3), out=2))
        add("a port that is not there", 4, 3, 16, port_mod(client.version, 4711))
        said = (
            client.ask(EXPERIMENTER, struct.pack("!IIIHH", 0x4F4E4600, 2300, 4, 4, 3))
            if version == 4
            else client.ask(33, struct.pack("!IHH", 4, 4, 3))
        )
        # Open vSwitch says the bundle's error twice, not the port's.
        equal(
            (len(said), said[-1]),
            (2, "error ffff09094f4e4600" if version == 4 else "error 0011000d"),
            "a port that is not there",
        )
        add("add opens", 5, 3, FLOW_MOD, flow_mod(port_is(4), out=2))
        add("a port", 5, 3, 16, port_mod(client.version, 1))
        control("close", 5, 2, 3)
        add("add to a closed one", 5, 3, FLOW_MOD, good)
        control("commit what is gone", 5, 4, 3)
        add("add opens", 6, 3, FLOW_MOD, flow_mod(port_is(5), out=2))
        add("delete", 6, 3, FLOW_MOD, flow_mod(port_is(9), command=3))
        control("close", 6, 2, 3)
        control("commit", 6, 4, 3)
        control("commit again", 6, 4, 3)
        for command, what in enumerate(
            ("add", "modify", "modify strictly", "delete", "delete strictly")
        ):
            add(
                f"{what} in table 254",
                7 + command,
                3,
                FLOW_MOD,
                flow_mod(port_is(6), table=254, command=command),
            )
            control(f"commit what has {what} in table 254", 7 + command, 4, 3)


def port_mod(version, number):
    if version == 4:
        return struct.pack("!I4x6s2xIII4x", number, bytes(6), 0, 0, 0)
    return struct.pack("!I4x6s2xII", number, bytes(6), 0, 0)


def roles(switch, step):
    for version in (3, 4, 5, 6):
        one, two = Client(switch, version), Client(switch, version)

        def role(client, what, number, generation):
            step(client, f"role {what}", 24, struct.pack("!I4xQ", number, generation))

        base = version * 1000
        role(one, "asked", 0, 0)
        role(one, "primary", 2, base + 5)
        role(two, "stale", 2, base + 4)
        role(two, "secondary", 3, base + 5)
        step(two, "secondary writes", FLOW_MOD, flow_mod(port_is(7)))
        for number, what in ((0, "opens"), (2, "closes"), (4, "commits"), (6, "discards")):
            body = struct.pack("!IHH", 9, number, 3)
            if version == 4:
                step(
                    two,
                    f"secondary {what} a bundle",
                    EXPERIMENTER,
                    struct.pack("!II", 0x4F4E4600, 2300) + body,
                )
            elif version > 4:
                step(two, f"secondary {what} a bundle", 33, body)
        step(
            two,
            "secondary reads",
            18,
            struct.pack("!HHIB3xII4xQQ", 1, 0, 0, 77, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + oxm(),
        )
        role(two, "primary", 2, base + 6)
        step(two, "nothing", 20 if version == 1 else 2, b"hello")
        role(one, "asked", 0, 0)
        step(one, "deposed writes", FLOW_MOD, flow_mod(port_is(7)))
        role(one, "equal", 1, 3)
        role(one, "unknown", 4, base + 7)
        # Older by less than half of all numbers is stale, by more it is newer.
        role(one, "far ahead", 3, (base + 6 + (1 << 63) - 1) % (1 << 64))
        role(one, "back around", 3, base + 6)
    one = Client(switch, 1)
    for number in (1, 2, 0, 3):
        step(one, f"Nicira's role {number}", EXPERIMENTER, struct.pack("!III", 0x2320, 10, number))


def asynchronous(switch, step):
    for version in (4, 5, 6):
        client = Client(switch, version)
        if version == 4:
            step(client, "asynchronous configuration", 26)
            step(client, "set", 28, struct.pack("!6I", 1, 2, 3, 4, 5, 6))
            step(client, "get", 26)
            continue

        def change(kind, mask):
            return struct.pack("!HHI", kind, 8, mask)

        step(
            client,
            "set",
            28,
            change(1, 3)
            + change(2, 1)
            + change(5, 0x20)
            + change(8, 8)
            + change(9, 0x18)
            + change(11, 3),
        )
        step(client, "get", 26)
        step(client, "set unknown kind", 28, change(12, 1))
        step(client, "set short", 28, struct.pack("!HHI", 1, 6, 0))


def text_story(switch):
    """What the tools print, step by step."""
    told = []

    def ofctl(*words, stdin=None, version="OpenFlow14"):
        done = switch.ofctl("-O", version, *words, stdin=stdin, ok=False)
        told.append(
            (
                " ".join((version, *words)),
                [clean(done.stdout + done.stderr) + f"({done.returncode})"],
            )
        )

    # A bundle that fails in the middle changes nothing.
    ofctl("add-flow", "br0", "priority=1,actions=drop")
    ofctl(
        "--bundle",
        "add-flows",
        "br0",
        "-",
        stdin="in_port=1,actions=output:2\ndelete\nin_port=2,actions=output:1\n"
        "check_overlap,actions=drop\n",
    )
    ofctl("dump-flows", "br0")
    ofctl(
        "--bundle",
        "add-flows",
        "br0",
        "-",
        stdin="in_port=1,actions=output:2\nin_port=2,actions=output:1\n",
    )
    ofctl("--bundle", "replace-flows", "br0", "-", stdin="in_port=1,actions=output:7\n")
    ofctl("dump-flows", "br0")
    ofctl(
        "bundle",
        "br0",
        "-",
        stdin="flow delete\nflow add in_port=5,actions=output:1\npacket-out "
        "in_port=1,packet=ffffffffffff0202020202020800,actions=drop\n",
    )
    ofctl("dump-flows", "br0")
    for version in ("OpenFlow10", "OpenFlow13", "OpenFlow15"):
        ofctl("--sort", "dump-flows", "br0", version=version)
    # Tables.
    for words in (("evict",), ("vacancy:20,80",), ("noevict",), ("novacancy",)):
        ofctl("mod-table", "br0", "3", *words)
        ofctl("dump-table-desc", "br0", "3")
    ofctl("mod-table", "br0", "9", "name:nine", version="OpenFlow15")
    ofctl("mod-table", "br0", "8", "name:eight", version="OpenFlow13")
    ofctl("add-flow", "br0", "table=nine,priority=3,actions=drop")
    ofctl("--names", "dump-flows", "br0", "table=9")
    for words in (("2", "drop"), ("all", "controller"), ("3", "continue")):
        ofctl("mod-table", "br0", *words, version="OpenFlow11")
    # What is evicted, and what cannot be.
    ofctl("del-flows", "br0")
    switch.vsctl(
        "set",
        "Bridge",
        "br0",
        "flow_tables:4=@t",
        "--",
        "--id=@t",
        "create",
        "Flow_Table",
        "name=four",
        "flow_limit=4",
        "overflow_policy=evict",
        'groups="NXM_OF_IN_PORT[]"',
    )
    for rule in (
        "in_port=1,ip,nw_src=10.0.0.1,idle_timeout=90",
        "in_port=1,ip,nw_src=10.0.0.2,idle_timeout=60",
        "in_port=1,ip,nw_src=10.0.0.3,idle_timeout=80",
        "in_port=2,idle_timeout=30",
        "in_port=3,idle_timeout=500",
        "in_port=4,hard_timeout=400",
    ):
        ofctl("add-flow", "br0", f"table=4,{rule},actions=drop")
        ofctl("--sort", "--names", "dump-flows", "br0", "table=4")
    switch.vsctl("clear", "Bridge", "br0", "flow_tables")
    ofctl("add-flow", "br0", "table=4,in_port=10,actions=drop")
    switch.vsctl(
        "set",
        "Bridge",
        "br0",
        "flow_tables:5=@t",
        "--",
        "--id=@t",
        "create",
        "Flow_Table",
        "flow_limit=2",
    )
    for number in (1, 2, 3):
        ofctl("add-flow", "br0", f"table=5,in_port={number},actions=drop")
    ofctl("mod-table", "br0", "5", "evict")
    ofctl("add-flow", "br0", "table=5,in_port=3,actions=drop")
    ofctl("del-flows", "br0", "table=5,in_port=1")
    ofctl("add-flow", "br0", "table=5,in_port=1,importance=7,idle_timeout=5,actions=drop")
    ofctl("add-flow", "br0", "table=5,in_port=4,importance=1,idle_timeout=500,actions=drop")
    ofctl("--sort", "dump-flows", "br0", "table=5")
    for mode in ("drop", "nx-match", "normal"):
        ofctl("set-frags", "br0", mode)
        ofctl("get-frags", "br0")
    return told


def clean(text):
    text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", text)
    text = re.sub(r"duration=[\d.]+s", "duration=T", text)
    text = re.sub(r"(idle|hard)_age=\d+, ", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z\|.*\n", "", text)
    text = re.sub(r"unix:\S+/br0", "unix:br0", text)
    return text


def watched_story(switch):
    """What `ovs-ofctl monitor` prints in each version while rules come and go."""
    told = []
    for version, filters in (
        ("OpenFlow10", ""),
        ("OpenFlow12", "!actions"),
        ("OpenFlow13", "table=1"),
        ("OpenFlow14", "out_port=2"),
        ("OpenFlow15", "!initial,!modify"),
    ):
        switch.ofctl("del-flows", "br0")
        switch.flows(
            "priority=5,in_port=1,actions=output:2", "table=1,priority=5,in_port=1,actions=output:1"
        )
        path = os.path.join(switch.directory, f"watch.{version}")
        log = open(path, "w", encoding="utf-8")
        command = switch.namespace.command(
            ["ovs-ofctl", "-O", version, "monitor", "br0", f"watch:{filters}"]
        )
        watcher = subprocess.Popen(command, env=switch.env, stdout=log, stderr=subprocess.STDOUT)

        def tells(probe):
            """Whether the monitor has told of a rule that comes and goes for this alone, behind all
            that it tells of before."""
            switch.ofctl("add-flow", "br0", f"table=1,priority=1,{probe},actions=output:2")
            switch.ofctl("--strict", "del-flows", "br0", f"table=1,priority=1,{probe}")
            return probe in open(path, encoding="utf-8").read()

        wait_for("the monitor has begun", lambda: tells("in_port=77"))
        switch.ofctl(
            "add-flow",
            "br0",
            "table=1,priority=3,cookie=3,in_port=2,idle_timeout=60,actions=output:2",
        )
        switch.ofctl("mod-flows", "br0", "table=1,in_port=2,actions=output:1")
        switch.ofctl("mod-flows", "br0", "table=1,in_port=2,actions=output:1")
        switch.ofctl("add-flow", "br0", "table=1,priority=3,cookie=4,in_port=2,actions=output:2")
        switch.ofctl(
            "-O",
            "OpenFlow14",
            "--bundle",
            "add-flows",
            "br0",
            "-",
            stdin="in_port=4,actions=output:2\ndelete_strict priority=5,in_port=1\n",
        )
        switch.ofctl("add-flow", "br0", "priority=9,hard_timeout=1,in_port=9,actions=output:2")
        wait_for(
            "the timeout",
            lambda: "in_port=9" not in switch.ofctl("--no-names", "dump-flows", "br0"),
        )
        switch.ofctl("del-flows", "br0", "table=1,in_port=2")
        wait_for("the monitor has told of all", lambda: tells("in_port=78"))
        watcher.terminate()
        watcher.wait()
        log.close()
        text = clean(open(path, encoding="utf-8").read())
        told.append(
            (
                f"watched in {version}",
                [
                    line
                    for line in text.splitlines()
                    if ("event=" in line or "error" in line)
                    and not re.search("in_port=7[78]", line)
                ],
            )
        )
    return told


def sent_story(switch):
    """What packets without a rule, of table-miss rules and of others look like to `ovs-ofctl
    monitor` in each version: whole, and for the same reasons."""
    switch.namespace.quiet()
    switch.namespace.run("ip link set p1 up")
    source = switch.namespace.raw("p1")
    udp = bytes.fromhex(
        "ffffffffffff02020202020108004500014800010000011100000a0000010a00000204d2162e01340000"
    ) + bytes(300)
    rules = (
        "",
        "priority=0,actions=controller",
        "priority=0,actions=controller:100",
        "priority=1,actions=controller:50",
        "priority=1,actions=resubmit(,3)",
        "priority=0,actions=controller(reason=no_match,max_len=40)",
        "priority=1,ip,actions=dec_ttl,output:2",
    )
    told = []
    for version, words in (
        ("OpenFlow10", ()),
        ("OpenFlow10", ("invalid_ttl",)),
        ("OpenFlow11", ("invalid_ttl",)),
        ("OpenFlow12", ()),
    ):
        switch.ofctl("del-flows", "br0")
        path = os.path.join(switch.directory, f"sent.{len(told)}")
        with open(path, "w", encoding="utf-8") as log:
            command = switch.namespace.command(
                ["ovs-ofctl", "-O", version, "monitor", "br0", "128", *words]
            )
            watcher = subprocess.Popen(
                command, env=switch.env, stdout=log, stderr=subprocess.STDOUT
            )

        def seen():
            return [
                line
                for line in open(path, encoding="utf-8").read().splitlines()
                if "PACKET_IN" in line or "ERROR" in line
            ]

        # The monitor is there when it hears of what a rule of the highest priority sends it.
        switch.flows("priority=65535,udp,tp_dst=9,actions=controller")
        hello = bytearray(udp[:60])
        hello[36:38] = bytes((0, 9))

        def heard():
            source.send(bytes(hello))
            return any("total_len=60 " in line for line in seen())

        wait_for(f"the monitor of {version} hears", heard)
        for rule in rules:
            switch.ofctl("del-flows", "br0")
            if rule:
                switch.flows(rule, "table=3,priority=0,actions=controller")
            else:
                time.sleep(0.2)
            before = len(seen())
            source.send(udp)

            def new():
                return [
                    re.sub(r" \(xid=[^)]*\)", "", line)
                    for line in seen()[before:]
                    if "total_len=60 " not in line
                ]

            # Nothing may come, which only time tells.
            end = time.monotonic() + 1
            while not new() and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.1)
            lines = new()
            told.append((f"sent in {version} {words} by {rule!r}", lines))
        watcher.terminate()
        watcher.wait()
    return told


def stories(lab, name, command=None):
    # Open vSwitch without its cache, which answers with stale rules for some milliseconds after a
    # change.
    switch = lab.switch(name, command=command, config=["other_config:flow-limit=0"])
    switch.bridge("br0", "fail_mode=secure", ALL)
    for number in (1, 2):
        switch.vsctl(
            "add-port",
            "br0",
            f"p{number}",
            "--",
            "set",
            "Interface",
            f"p{number}",
            "type=internal",
            f"ofport_request={number}",
        )
    told = raw_story(switch) + text_story(switch) + watched_story(switch) + sent_story(switch)
    switch.stop()
    return told


@test(timeout=240)
def the_same_answers(lab):
    """Tables, bundles, roles, asynchronous configuration, evictions and monitors, beside Open
    vSwitch."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    theirs = stories(lab, "theirs", switchd_command("ovs"))
    ours = stories(lab, "ours")
    problems = []
    for (what, wanted), (_, got) in zip(theirs, ours, strict=True):
        if wanted != got and what not in DIFFERENCES:
            lines = (
                [line for answer in wanted for line in answer.splitlines()],
                [line for answer in got for line in answer.splitlines()],
            )
            problems.append(
                what
                + ":\n"
                + "\n".join(difflib.unified_diff(*lines, "Open vSwitch", "here", lineterm="", n=0))
            )
    if os.environ.get("SHOW"):
        with open(os.environ["SHOW"], "w", encoding="utf-8") as file:
            file.write("\n".join(problems))
    check(not problems, "\n".join(problems))


# Where the answers differ, and why.
DIFFERENCES = {}


@test(timeout=120)
def who_watches_without_reading_knows_all_in_the_end(lab):
    """A flow monitor whose connection does not read pauses, and is told what it missed; it keeps
    nobody waiting."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", ALL)
    watcher, other = Client(switch, 1), Client(switch, 4)
    watcher.send(
        16,
        struct.pack("!HHIII", 0xFFFF, 0, 0x2320, 2, 0)
        + struct.pack("!IHHHB5x", 7, 0x3F, 0xFFFF, 0, 255),
    )
    known, counts = {}, {"paused": 0, "resumed": 0, "told": 0}

    def hear(kind, body):
        if kind == EXPERIMENTER:
            number = struct.unpack("!I", body[4:8])[0]
            counts["paused" if number == 22 else "resumed"] += 1
            return
        equal((kind, body[8:12]), (17, bytes([0, 0, 0, 2])), "a message to the watcher")
        rest = body[16:]
        while rest:
            length, event = struct.unpack("!HH", rest[:4])
            _, _, _, _, size, _, _, cookie = struct.unpack("!HHHHHBBQ", rest[4:24])
            match, rest = rest[24 : 24 + size], rest[length:]
            counts["told"] += 1
            if event == 1:
                check(
                    known.pop(match, None) is not None,
                    "a rule went that was not told of",
                    match.hex(),
                )
            else:
                known[match] = cookie

    for kind, body in watcher.barrier():
        hear(kind, body)
    wanted = {}

    def change(what):
        other.socket.sendall(b"".join(other.message(FLOW_MOD, body, 5) for body in what))
        equal(other.barrier(), [], "errors")

    def match_of(number):
        return bytes.fromhex("00000002") + struct.pack("!H", number)

    numbers = range(1, 30001)
    change(flow_mod(port_is(number), cookie=number) for number in numbers)
    wanted.update((match_of(number), number) for number in numbers)
    change(flow_mod(port_is(number), command=4) for number in numbers if number % 3 == 0)
    change(
        flow_mod(port_is(number), cookie=number + 7, out=2) for number in numbers if number % 5 == 0
    )
    for number in numbers:
        if number % 3 == 0:
            wanted.pop(match_of(number), None)
        if number % 5 == 0:
            wanted[match_of(number)] = number + 7
    # Only now it reads.
    for kind, body in watcher.barrier():
        hear(kind, body)
    while counts["paused"] > counts["resumed"]:
        kind, _, body = watcher.read()
        hear(kind, body)
    check(counts["paused"] >= 1, "the monitor never paused")
    equal(known, wanted, f"what the watcher knows ({counts})")
    # From here on all is told again.
    change([flow_mod(port_is(40000), cookie=9)])
    for kind, body in watcher.barrier():
        hear(kind, body)
    equal(known.get(match_of(40000)), 9, "a rule added after the pause")


@test(timeout=180)
def a_change_of_very_many_rules_reaches_who_watches(lab):
    """One message that deletes 200,000 rules is told to a monitor that does not read meanwhile, and
    to one that begins while rules come and go."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", ALL)
    other, early, late = Client(switch, 4), Client(switch, 5), Client(switch, 5)
    numbers = range(1, 200001)

    def metadata_is(number):
        return bytes.fromhex("80000408") + struct.pack("!Q", number)

    def watch(client):
        # Initial, added, removed, modified; every table.
        client.send(
            18,
            struct.pack("!HHI", 16, 0, 0)
            + struct.pack("!IIIHBB", 7, 0xFFFFFFFF, 0xFFFFFFFF, 0xF, 255, 0)
            + oxm(),
            42,
        )

    def hear(client, known, until):
        """Reads until what is known is as it should be."""
        paused = 0
        while paused or not until(known):
            kind, _, body = client.read()
            equal((kind, body[:2]), (19, bytes([0, 16])), "a message to a watcher")
            rest = body[8:]
            while rest:
                length, event = struct.unpack("!HH", rest[:4])
                if event in (5, 6):
                    paused += 1 if event == 5 else -1
                elif event != 4:
                    match = rest[24:length]
                    if event == 2:
                        check(
                            known.pop(match, None) is not None,
                            "a rule went that was not told of",
                            match.hex(),
                        )
                    else:
                        known[match] = rest[16:24]
                rest = rest[length:]
        return known

    other.socket.sendall(
        b"".join(
            other.message(FLOW_MOD, flow_mod(metadata_is(number), cookie=number), 5)
            for number in numbers
        )
    )
    equal(other.barrier(), [], "errors")
    watch(early)
    known = hear(early, {}, lambda known: len(known) == len(numbers))
    # Begins while rules change, and does not read until they are all gone but the last few.
    watch(late)
    other.socket.sendall(
        b"".join(
            other.message(FLOW_MOD, flow_mod(metadata_is(number), command=4), 5)
            for number in numbers[::2]
        )
    )
    other.socket.sendall(
        b"".join(
            other.message(FLOW_MOD, flow_mod(metadata_is(number), cookie=5, out=2, command=2), 5)
            for number in numbers[1::4]
        )
    )
    equal(other.barrier(), [], "errors")
    other.socket.sendall(other.message(FLOW_MOD, flow_mod(command=3), 5))
    equal(other.barrier(), [], "errors")
    other.socket.sendall(other.message(FLOW_MOD, flow_mod(metadata_is(4711), cookie=9), 5))
    equal(other.barrier(), [], "errors")
    for client, seen in ((early, known), (late, {})):
        seen = hear(
            client,
            seen,
            lambda known: len(known) == 1 and list(known.values()) == [struct.pack("!Q", 9)],
        )
        equal(len(seen), 1, "rules that a watcher knows of")


@test(timeout=120)
def a_dump_that_nobody_reads_keeps_nobody_waiting(lab):
    """Others are served while a dump of many rules waits for its reader; every rule that is there
    throughout comes once."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", ALL)
    slow, other = Client(switch, 4), Client(switch, 4)
    numbers = range(1, 40001)
    other.socket.sendall(
        b"".join(
            other.message(FLOW_MOD, flow_mod(port_is(number), cookie=number), 5)
            for number in numbers
        )
    )
    equal(other.barrier(), [], "errors")
    slow.send(
        18, struct.pack("!HHIB3xII4xQQ", 1, 0, 0, 255, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + oxm(), 42
    )
    time.sleep(0.3)
    # While it waits, rules go and come.
    other.socket.sendall(
        b"".join(
            other.message(FLOW_MOD, flow_mod(port_is(number), command=4), 5)
            for number in numbers
            if number % 4 == 0
        )
    )
    other.socket.sendall(
        b"".join(
            other.message(FLOW_MOD, flow_mod(port_is(number), cookie=number), 5)
            for number in range(40001, 45001)
        )
    )
    equal(other.barrier(), [], "errors")
    seen, more = [], True
    while more:
        kind, xid, body = slow.read()
        equal((kind, xid), (19, 42), "a part of the dump")
        more, rest = struct.unpack("!HH", body[:4])[1] & 1, body[8:]
        while rest:
            seen.append(struct.unpack("!Q", rest[24:32])[0])
            rest = rest[struct.unpack("!H", rest[:2])[0] :]
    equal(len(seen), len(set(seen)), "rules and different rules in the dump")
    missing = {number for number in numbers if number % 4} - set(seen)
    equal(missing, set(), "rules that are missing in the dump")


VERSIONS = ("OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15")


@test(timeout=90)
def versions_are_agreed_on_and_may_be_taken_back(lab):
    """Every version by itself and among others, with ovs-ofctl and by bitmap; connections of a
    version that is no longer allowed end."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    for allowed in (
        *VERSIONS,
        "OpenFlow10,OpenFlow13",
        "OpenFlow12,OpenFlow15",
        ",".join(VERSIONS),
    ):
        switch.vsctl("set", "Bridge", "br0", f"protocols={allowed}")
        for version in VERSIONS:
            done = switch.ofctl("-O", version, "show", "br0", ok=False)
            equal(
                done.returncode == 0,
                version in allowed,
                f"{version} where {allowed} is allowed: {done.stderr}",
            )
        highest = max(VERSIONS.index(version) for version in VERSIONS if version in allowed) + 1
        spoken = switch.ofctl("-O", ",".join(VERSIONS), "show", "br0")
        check(
            f"(OF1.{highest - 1})" in spoken or highest == 1 and "(OF1." not in spoken,
            f"{allowed}:",
            spoken.splitlines()[0],
        )
    switch.vsctl("set", "Bridge", "br0", "protocols=OpenFlow10,OpenFlow13,OpenFlow14")
    old, kept = Client(switch, 5), Client(switch, 4)
    switch.vsctl("set", "Bridge", "br0", "protocols=OpenFlow10,OpenFlow13")
    try:
        check(
            old.file.read(8) == b"", "the connection of a version that is no longer allowed goes on"
        )
    except ConnectionError:
        pass
    equal(kept.barrier(), [], "messages on the connection that is allowed")


class Listener:
    """A controller that waits for the switch to connect."""

    def __init__(self, switch, name):
        self.path = os.path.join(switch.directory, name)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen(4)
        self.socket.settimeout(20)

    def accept(self, version):
        """Takes the switch's connection up in a version."""
        client = object.__new__(Client)
        client.version, client.xid = version, 100
        client.socket = self.socket.accept()[0]
        client.socket.settimeout(60)
        client.file = client.socket.makefile("rb")
        client.socket.sendall(client.message(0, b"", 1))
        client.read()
        return client


@test(timeout=90)
def controllers_side_by_side(lab):
    """Two primary controllers with roles, and a third that does not read: rules that go, ports that
    change and forwarded requests reach those who want them."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure", ALL)
    listeners = [Listener(switch, f"controller{number}") for number in range(3)]
    switch.vsctl("set-controller", "br0", *(f"unix:{listener.path}" for listener in listeners))
    one, two, deaf = (listener.accept(5) for listener in listeners)
    wait_for(
        "all are connected",
        lambda: all(
            switch.get("Controller", uuid, "is_connected")
            for uuid in switch.vsctl("--bare", "--columns=_uuid", "list", "Controller").split()
        ),
    )
    for client, number in ((one, 2), (two, 3)):
        client.send(24, struct.pack("!I4xQ", number, 1))
        client.barrier()
    # The secondary wants to know of forwarded requests and of rules that go.
    two.send(28, struct.pack("!HHIHHI", 10, 8, 3, 4, 8, 0x3F))
    two.barrier()
    # Many rules go, each of which all are told of; one connection does not read, and the others
    # hear all.
    count = 20000
    one.socket.sendall(
        b"".join(
            one.message(FLOW_MOD, flow_mod(port_is(number), cookie=number, flags=1), 5)
            for number in range(1, count + 1)
        )
    )
    equal(one.barrier(), [], "errors")
    one.send(FLOW_MOD, flow_mod(command=3, table=255))
    gone = {kind for kind, _ in one.barrier()}
    equal(gone, {11}, "what the primary hears")
    heard = two.barrier()
    equal(
        len([kind for kind, _ in heard if kind == 11]),
        count,
        "rules of which the secondary hears that they went",
    )
    # A meter is changed by one, the other hears of it as it was said, inside another message.
    body = struct.pack("!HHI", 0, 1, 7) + struct.pack("!HHII4x", 1, 16, 1000, 0)
    one.send(29, body, 0x4711)
    equal(one.barrier(), [], "answers to the meter mod")
    forwarded = [body for kind, body in two.barrier() if kind == 32]
    equal(len(forwarded), 1, "forwarded requests")
    equal(forwarded[0][4:8], struct.pack("!I", 0x4711), "the forwarded request's transaction")
    # The secondary becomes primary, and the other is told so.
    two.send(24, struct.pack("!I4xQ", 2, 2))
    two.barrier()
    roles = [body for kind, body in one.barrier() if kind == 30]
    equal([struct.unpack("!IB3xQ", body) for body in roles], [(3, 0, 2)], "role status")
    deaf.socket.close()
    equal(one.ask(2, b"alive"), ["3 " + b"alive".hex()], "an echo")
