"""`examples/slice_controller.py` over two switches, in band: who gets a slice and what is promised
to it, who does not and why, and that nothing is left of what has ended."""

import bisect
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
import urllib.error
import urllib.request

from harness import (
    PATIENCE,
    ROOT,
    Failure,
    Skip,
    check,
    equal,
    ethernet,
    inside,
    run,
    test,
    threads,
    wait_for,
)
from test_controller import VENV, Controller, connected

EXAMPLE = os.path.join(ROOT, "examples/slice_controller.py")
# Addresses in the frames that bench/traffic.c makes. Nobody has this MAC address, so that hosts
# do not answer.
SOURCE, TARGET, NOBODY = "10.9.0.1", "10.9.0.77", "02:00:00:00:0b:ff"
BASE = 10000
FLOOD = 256  # flows: enough to fill every flow queue of a queue
MEGABIT = 1_000_000
SECONDS = 1.5
TASK = {
    "from": "camera",
    "to": "fog",
    "protocol": "udp",
    "port": BASE,
    "rate": "4M",
    "latency": "40ms",
    "burst": "10kB",
    "size": 1000,
}


def sluice(lab):
    """The command beside the daemon under test."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's userspace datapath has no such queues")
    return os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")


def network(lab, switches, **more):
    """Writes a network file and returns its path."""
    path = os.path.join(lab.directory, "network.json")
    text = {
        "sluice": sluice(lab),
        "switches": {
            name: {"datapath": at, "ovsdb": remote}
            for at, (name, remote) in enumerate(switches.items(), 1)
        },
        "links": [{"between": ["s1:uplink", "s2:uplink"], "rate": "20M"}],
        "hosts": {
            "camera": {"at": "s1:camera", "address": SOURCE, "rate": "1G"},
            "fog": {"at": "s2:fog", "address": TARGET, "rate": "20M"},
        },
        **more,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(text, file)
    return path


class Slices:
    """The controller, and questions to it."""

    def __init__(self, lab, namespace, path):
        self.namespace = namespace
        self.controller = Controller(
            lab,
            namespace,
            application=EXAMPLE,
            address="0.0.0.0",
            env=dict(os.environ, SLICE_NETWORK=path),
        )
        wait_for("it answers", lambda: self.ask("GET", "/links")[0] == 200, 20)

    def ask(self, method, where, body=None, raw=None):
        """A request; the status and what is answered."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:8181{where}", data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with inside(self.namespace), opener.open(request, timeout=30 * PATIENCE) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError as error:
            return None, str(error)

    def put(self, name, **changes):
        """Asks for a task: TASK with changes; None takes a key away."""
        body = {key: value for key, value in {**TASK, **changes}.items() if value is not None}
        return self.ask("PUT", f"/tasks/{name}", body)

    def admitted(self, name, **changes):
        """A task that is admitted."""
        status, answer = self.put(name, **changes)
        equal(status, 201, f"status of {name}: {answer}")
        return answer

    def delete(self, name):
        """Ends a task."""
        equal(self.ask("DELETE", f"/tasks/{name}"), (200, {"task": name, "freed": True}), "the end")


def queues(switch):
    """Our queues of a switch: {(port, number): other_config}; and checks that no row is loose."""
    rows = {
        table: json.loads(switch.vsctl("--format=json", f"--columns={columns}", "list", table))
        for table, columns in (
            ("Port", "name,qos"),
            ("QoS", "_uuid,queues"),
            ("Queue", "_uuid,other_config"),
        )
    }
    configs = {identity[1]: dict(config[1]) for identity, config in rows["Queue"]["data"]}
    qos = {identity[1]: dict(map_of[1]) for identity, map_of in rows["QoS"]["data"]}
    found, used = {}, set()
    for name, identity in rows["Port"]["data"]:
        for number, queue in qos.get(identity[1], {}).items() if identity[0] == "uuid" else ():
            found[name, number] = configs[queue[1]]
            used.add(queue[1])
    equal(len(configs), len(used), "queues, and those that a port has")
    return found


def rules(switch, priority=0x100):
    """What rules of tasks do on a switch."""
    return [
        rule
        for rule in switch.rules("br0", "-O", "OpenFlow13")
        if int(re.search(r"priority=(\d+)", rule)[1]) in range(priority, priority + 0x200)
    ]


class Site:
    """Two switches whose controller is at the first and reaches the second over the link that tasks
    use."""

    def __init__(self, lab):
        sluice(lab)
        if not shutil.which("gcc"):
            raise Skip("no gcc, which builds what sends and receives")
        self.lab, self.control = lab, lab.namespace("control")
        self.one, self.two = lab.switch("s1"), lab.switch("s2")
        self.switches = {"s1": self.one, "s2": self.two}
        for number, switch in enumerate(self.switches.values(), 1):
            switch.bridge(
                "br0",
                "fail_mode=secure",
                "protocols=OpenFlow10,OpenFlow13",
                f"other_config:datapath-id={number:016x}",
            )
            switch.namespace.run(f"ip address add 10.0.0.{number}/24 dev br0")
            switch.namespace.run("ip link set br0 up")
        there = self.two.namespace
        self.one.namespace.run(
            [
                "ip",
                "link",
                "add",
                "uplink",
                "type",
                "veth",
                "peer",
                "name",
                "uplink",
                "netns",
                there.name,
            ]
        )
        for switch in self.switches.values():
            switch.namespace.run("ip link set uplink up")
            switch.port("uplink")
        self.one.link(self.control, "control", ip="10.0.0.100/24")
        self.hosts = {}
        for name, switch in (
            ("camera", self.one),
            ("noise", self.one),
            ("fog", self.two),
        ):
            self.hosts[name] = lab.namespace(name).quiet()
            switch.link(self.hosts[name], name)
            self.hosts[name].run(["ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off"])
        self.path = network(
            lab,
            {name: f"unix:{switch.directory}/db.sock" for name, switch in self.switches.items()},
            controller={
                "at": "s1:control",
                "address": "10.0.0.100",
                "link": "1G",
                "rate": "1M",
                "latency": "1s",
            },
        )
        self.program = os.path.join(lab.directory, "traffic")
        source = os.path.join(ROOT, "bench/traffic.c")
        run(["gcc", "-O2", "-o", self.program, source, "-lm", "-lpthread"], seconds=60)

    def connect(self):
        """Makes it the bridges' controller."""
        for switch in self.switches.values():
            switch.vsctl(
                "set-controller",
                "br0",
                "tcp:10.0.0.100:6653",
                "--",
                "set",
                "Controller",
                "br0",
                "max_backoff=1000",
                "inactivity_probe=30000",
            )
        self.connected()

    def connected(self):
        """Waits until both are connected and have the rule for other traffic."""
        for name, switch in self.switches.items():
            wait_for(f"{name} is connected", lambda: connected(switch), 40)
            wait_for(
                f"{name} forwards",
                lambda: any(
                    "priority=0" in rule for rule in switch.rules("br0", "-O", "OpenFlow13")
                ),
                20,
            )

    def start(self, host, *words):
        """Starts the program in a host."""
        return self.lab.start(
            self.hosts[host].command([self.program, *map(str, words)]),
            f"traffic{len(self.lab.programs)}.err",
            stdout=subprocess.PIPE,
        )

    def teach(self):
        """Makes the switches know where NOBODY is."""
        frame = ethernet("ff:ff:ff:ff:ff:ff", NOBODY, 0x88B5, bytes(46))
        self.hosts["fog"].raw().send(frame, frame)

    def flood(self, seconds):
        """Starts twice what the link takes, in many flows, from the same addresses."""
        return self.start(
            "noise",
            *("send", 0, "eth0", self.hosts["noise"].address(), NOBODY, seconds),
            f"1:{FLOOD}:1000:5000:calm:1",
        )

    def window(self, rate=480):
        """Packets of the task for a while beside the flood: each packet's (sent, received)
        in ns, the share that arrived, and when something was stopped."""
        seconds = SECONDS + 1
        self.teach()
        dump = os.path.join(self.lab.directory, "packets")
        flood = self.flood(seconds + 0.5)
        receiver = self.start("fog", "receive", 1, "eth0", 1, SECONDS, 0.3, 0, dump)
        receiver.stdout.readline()
        stops = [self.start("fog", "probe", core, seconds) for core in range(os.cpu_count())]
        stops += [
            self.start("fog", "preempted", 0, thread, seconds)
            for switch in self.switches.values()
            for thread in workers(switch)
        ]
        time.sleep(0.3)
        sender = self.start(
            "camera",
            *("send", 1, "eth0", self.hosts["camera"].address(), NOBODY, SECONDS + 0.5),
            f"0:1:1000:{rate}:calm:1",
        )
        sent = result(sender)
        got = result(receiver)
        stalls = together([*map(result, stops), sent["stops"]])
        result(flood)
        with open(dump, "rb") as file:
            packets = [record[:2] for record in struct.iter_unpack("3Q", file.read())]
        return packets, got["packets"] / (SECONDS * rate), stalls


def workers(switch):
    """The threads that forward packets."""
    found = threads(switch.process.pid).items()
    return [str(thread) for thread, (name, _) in found if name.startswith("pmd")]


def result(process, seconds=60):
    """What a program prints."""
    try:
        text = process.communicate(timeout=seconds * PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failure(f"{process.args[3:]} does not end") from None
    # Where the kernel does not say when a thread had to wait, nothing is excused by that.
    if process.returncode and "preempted" in process.args:
        return []
    equal(process.returncode, 0, f"how {process.args[3:]} ends")
    return json.loads(text)


def together(lists):
    """Intervals (begin, length) of some lists in the order of time, without overlaps."""
    united = []
    for at, length in sorted(map(tuple, itertools.chain(*lists))):
        if united and at <= sum(united[-1]):
            united[-1][1] = max(united[-1][1], at + length - united[-1][0])
        else:
            united.append([at, length])
    return united


def stalled(stalls, begin, end):
    """Nanoseconds of an interval that lie in stalls."""
    first = max(0, bisect.bisect(stalls, [begin]) - 1)
    within = 0
    for at, length in itertools.islice(stalls, first, None):
        if at >= end:
            break
        within += max(0, min(end, at + length) - max(begin, at))
    return within


def p99(packets):
    """The delay that 99 of 100 packets do not exceed, in us."""
    delays = sorted(came - left for left, came in packets)
    return delays[int(0.99 * len(delays))] / 1e3


def keeps(site, promised_us):
    """Checks that the p99 of a task lies in what it was promised. Windows whose late packets the
    machine's stops explain are repeated; where it stops in all of them, nothing can be told."""
    said = []
    for _ in range(6):
        packets, share, stalls = site.window()
        # What a stopped switch or sender delays beyond its burst may be dropped, too.
        lost = share <= 0.95 and sum(length for _, length in stalls) < 50e6
        if len(packets) <= 100:
            check(not lost, f"{len(packets)} packets arrived")
            said.append(f"{len(packets)} packets arrived beside stops")
            continue
        delay = p99(packets)
        late = [
            (left, came)
            for left, came in packets
            if came - left > promised_us * 1000
            and came - left - stalled(stalls, left, came) > promised_us * 1000
        ]
        said.append(f"p99 {delay:.0f} us, {len(late)} of {len(packets)} late without a stop")
        if delay <= promised_us and share > 0.95:
            site.lab.note(f"{promised_us} us promised: {said[-1]}")
            return
        if len(late) > len(packets) / 100 or lost:
            raise Failure(f"{promised_us} us promised: {said}; {share:.1%} arrived")
    raise Skip(f"the machine is too busy: it stops whatever waits; {said[-1]}")


@test(timeout=240)
def slices_over_two_switches(lab):
    """Admitted tasks have queues and rules on both switches, and their p99 lies in what they were
    promised beside a flood; one too many is refused with the link and the figure; the end of a task
    frees its queues."""
    site = Site(lab)
    slices = Slices(lab, site.control, site.path)
    site.connect()
    control = {
        "s1": {("uplink", 1), ("control", 1)},
        "s2": {("uplink", 1)},
    }

    def ours():
        return {name: set(queues(switch)) for name, switch in site.switches.items()}

    wait_for("the way to the switches has queues", lambda: ours() == control)
    bounded = queues(site.one)["uplink", 1]
    equal(
        (bounded["max-rate"], bounded["max-latency-us"]),
        ("1000000", "1000000"),
        "the bounds of the way to the switches",
    )
    wait_for(
        "messages take it",
        lambda: re.search(
            r"queue 1: bytes=[1-9]", site.one.ofctl("-O", "OpenFlow13", "queue-stats", "br0")
        ),
    )
    # The flood alone makes packets wait or get lost.
    packets, share, _ = site.window()
    without = p99(packets) if len(packets) > 10 else None
    # A task there and back, whose promise follows from its rate and burst.
    answer = slices.admitted("video", back={"rate": "1M"})
    there, back = answer["flows"]
    equal(
        (there["path"], back["path"]),
        (["s1:uplink", "s2:fog"], ["s2:uplink", "s1:camera"]),
        "paths",
    )
    check(20_000 < there["promised_us"] <= 40_000, f"80 kbit at 4 Mbit/s: {answer}")
    check(back["promised_us"] <= 40_000 and back["reserved"] > 1e6, f"its burst needs more: {back}")
    check(
        without is None or without > there["promised_us"] or share < 0.9,
        f"a flood does not matter: {without} us, {share:.1%}",
    )
    number, other = there["queue"], back["queue"]
    wanted = {
        "s1": control["s1"] | {("uplink", number), ("camera", other)},
        "s2": control["s2"] | {("fog", number), ("uplink", other)},
    }
    equal(ours(), wanted, "queues of the task")
    equal(queues(site.two)["fog", number]["min-rate"], "4000000", "what it is guaranteed")
    for switch in site.switches.values():
        text = " ".join(rules(switch))
        check(
            len(rules(switch)) == 2
            and f"set_queue:{number}" in text
            and f"set_queue:{other}" in text
            and f"udp_dst={BASE}" in text.replace("tp_dst", "udp_dst")
            and f"udp_src={BASE}" in text.replace("tp_src", "udp_src"),
            text,
        )
    equal(slices.put("video", back={"rate": "1M"})[0], 200, "the same once more")
    status, said = slices.put("video", rate="5M")
    check(status == 409 and "asks for something else" in said["refused"], said)
    status, said = slices.put("twin")
    check(status == 409 and "task video has the same packets" in said["refused"], said)
    slices.admitted("second", port=BASE + 1000, rate="8M")
    keeps(site, there["promised_us"])
    check(
        re.search(
            rf"queue {number}: bytes=[1-9]",
            site.two.ofctl("-O", "OpenFlow13", "queue-stats", "br0"),
        ),
        "the task's packets went by its queue",
    )
    # 20 less 5% for what is nobody's, 1 for the way to the switches, 4 and 8 leave 6.
    left = slices.ask("GET", "/links")[1]["s1:uplink"]
    equal((left["left"], left["tasks"]), (6e6, ["second", "video"]), "what is left")
    status, said = slices.put("third", port=BASE + 1001, rate="8M")
    equal(
        (status, said["refused"]),
        (409, "link s1:uplink: 8 Mbit/s asked, 6 Mbit/s left"),
        "too many",
    )
    status, said = slices.put("third", port=BASE + 1001, rate="4M", latency="8ms")
    check(
        status == 409
        and re.fullmatch(
            r"link s1:uplink: needs 8000 us, [\d.]+ (us|ms) predicted with all of the 6 Mbit/s "
            "that are left",
            said["refused"],
        ),
        said,
    )
    equal(ours()["s1"] - wanted["s1"], {("uplink", number + 2)}, "what refused tasks leave behind")
    # What a message is best cut into: the data first, the command behind it.
    answer = slices.admitted(
        "message",
        port=BASE + 1002,
        rate="2M",
        burst=None,
        latency="400ms",
        message={"data": 15, "command": 5, "work": "10ms"},
    )
    equal(answer["message"]["plan"], "15+5", f"the plan: {answer}")
    slices.delete("message")
    # The end of a task's time, and of a task.
    slices.admitted("brief", port=BASE + 1003, rate="1M", latency="200ms", seconds=1)
    wait_for("its time is over", lambda: slices.ask("GET", "/tasks/brief")[0] == 404)
    slices.delete("second")
    equal(ours(), wanted, "queues after the ends")
    slices.delete("video")
    equal(ours(), control, "queues in the end")
    equal([rules(switch) for switch in site.switches.values()], [[], []], "rules in the end")
    equal(slices.ask("DELETE", "/tasks/video")[0], 404, "an end too many")
    slices.controller.process.send_signal(signal.SIGTERM)
    equal(slices.controller.process.wait(20 * PATIENCE), 0, "how the controller ends")
    equal(ours(), {"s1": set(), "s2": set()}, "queues without a controller")
    equal(site.one.vsctl("list", "QoS"), "", "QoS rows")
    check("in-band-queue" not in site.two.vsctl("list", "Bridge", "br0"), "the in-band queue")


@test(timeout=180)
def a_killed_controller_leaves_nothing(lab):
    """Who is started after a killed controller goes on with its tasks until they end, and frees
    what is incomplete, and what nobody asked for any more."""
    site = Site(lab)
    slices = Slices(lab, site.control, site.path)
    site.connect()
    kept = slices.admitted("kept", latency="200ms")
    slices.admitted("broken", port=BASE + 1, latency="200ms")
    slices.admitted("expired", port=BASE + 2, latency="200ms", seconds=2)
    before = queues(site.two)["fog", kept["flows"][0]["queue"]]
    slices.controller.die()
    # A row of one task goes, as if the controller had been killed between two switches.
    identity = site.two.vsctl(
        "--bare", "--columns=_uuid", "find", "Queue", "external_ids:slice-task=broken"
    )
    qos = site.two.get("Port", "fog", "qos")
    number = next(
        number for number, queue in site.two.get("QoS", qos, "queues").items() if queue == identity
    )
    site.two.vsctl("remove", "QoS", qos, "queues", str(number), "--", "destroy", "Queue", identity)
    time.sleep(2)
    slices = Slices(lab, site.control, site.path)
    site.connected()
    wait_for(
        "one task goes on",
        lambda: [task["task"] for task in slices.ask("GET", "/tasks")[1]] == ["kept"],
        20,
    )
    wait_for("rules of the others are gone", lambda: len(rules(site.one)) == 1, 20)
    wait_for(
        "queues of the others are gone",
        lambda: (
            {number for (port, number) in queues(site.one) if port == "uplink"}
            == {1, kept["flows"][0]["queue"]}
        ),
    )
    equal(queues(site.two)["fog", kept["flows"][0]["queue"]], before, "its queue")
    # The next one has no such task, nor a control path: an empty network but for the links.
    slices.delete("kept")
    slices.admitted("last", latency="200ms")
    slices.controller.die()
    with open(site.path, encoding="utf-8") as file:
        text = json.load(file)
    del text["controller"], text["hosts"]["camera"]
    with open(site.path, "w", encoding="utf-8") as file:
        json.dump(text, file)
    slices = Slices(lab, site.control, site.path)
    wait_for("no queue is left", lambda: not any(map(queues, site.switches.values())), 20)
    for switch in site.switches.values():
        equal(switch.vsctl("list", "QoS") + switch.vsctl("list", "Queue"), "", "rows")
    site.connected()
    wait_for("no rule is left", lambda: not any(map(rules, site.switches.values())), 20)
    # Somebody else's QoS is left alone, and said.
    site.one.vsctl(
        "set", "Port", "uplink", "qos=@q", "--", "--id=@q", "create", "QoS", "type=linux-htb"
    )
    slices.controller.die()
    path = network(
        lab, {name: f"unix:{switch.directory}/db.sock" for name, switch in site.switches.items()}
    )
    slices = Slices(lab, site.control, path)
    site.connected()

    def answer():
        status, said = slices.put("refused")
        return said.get("error", "") if status == 503 else ""

    wait_for("it is said", lambda: "has a QoS that is not this controller's" in answer(), 20)
    wait_for("nothing is left of it", lambda: not queues(site.two) and not rules(site.two))


@test(timeout=120)
def requests_that_cannot_be_read(lab):
    """Each bad request is answered with what is wrong in it, also where no switch can be reached;
    and so are network files."""
    there = os.path.join(lab.directory, "nowhere.sock")
    path = network(lab, {"s1": f"unix:{there}", "s2": "tcp:127.0.0.1:1"})
    control = lab.namespace("control")
    slices = Slices(lab, control, path)
    for changes, words in (
        ({"from": "nobody"}, 'from: there is no host "nobody"; there are camera, fog'),
        ({"from": ["camera"]}, "from: there is no host"),
        ({"to": "camera"}, "to: camera is where the task begins"),
        ({"rate": None}, "task: rate is missing"),
        ({"rate": "-4M"}, 'rate: "-4M" is not a rate'),
        ({"rate": "4 Mbps"}, 'rate: "4 Mbps" is not a rate'),
        ({"rate": True}, "rate: true is not a rate"),
        ({"rate": "0" * 60_000 + "4M"}, "is not a rate"),
        ({"rate": 10**400}, "rate: 1000000"),
        ({"rate": 7}, "is not from 8 kbit/s to 400 Gbit/s"),
        ({"latency": 5}, "latency: 5 is not a time above 0 with its unit"),
        ({"latency": "0ms"}, "latency:"),
        ({"burst": "100B"}, "burst: 800 bits are less than a packet, 8000"),
        ({"burst": "9MB"}, "burst:"),
        ({"burst": "9M", "message": {"data": 1, "command": 1}}, "more than 1000 packets"),
        ({"message": {"data": 15, "command": 5}}, "less than a message, 160000"),
        ({"message": {"data": 15}}, "message: command is missing"),
        ({"size": 10}, "size: 10 is not from 60 to 9014"),
        ({"protocol": "sctp"}, 'protocol: "sctp" is none of any, icmp, tcp, udp'),
        ({"protocol": {}}, "protocol: {} is none of"),
        ({"port": 65536}, "port: 65536 is not from 1 to 65535"),
        ({"protocol": "icmp"}, "port: only tcp and udp have ports"),
        ({"back": 1}, "back: must be an object"),
        ({"back": {"rate": "x"}}, 'back: rate: "x" is not a rate'),
        ({"seconds": "soon"}, 'seconds: "soon" is not a number of seconds'),
        ({"priority": "high"}, 'priority: "high" is neither command nor bulk'),
        ({"colour": "red"}, 'task: "colour" is not known here'),
    ):
        status, said = slices.put("t", **changes)
        check(status == 400 and words in said["error"], f"{changes}: {status} {said}")
    for raw, words in (
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[]", "task: must be an object"),
        (b" " * 70_000, "at most 65536 are read"),
    ):
        status, said = slices.ask("PUT", "/tasks/t", raw=raw)
        check(status == 400 and words in said["error"], f"{raw[:20]}: {status} {said}")
    status, said = slices.ask("PUT", "/tasks/a%20b", TASK)
    check(status == 400 and "a name has 1 to 64 letters" in said["error"], said)
    equal(slices.ask("PATCH", "/tasks/t", TASK)[0], 405, "a method that there is not")
    equal(slices.ask("GET", "/else")[0], 404, "a path that there is not")
    equal(slices.ask("GET", "/tasks"), (200, []), "the tasks")
    status, said = slices.put("t")
    check(status == 503 and f"database unix:{there}:" in said["error"], f"no database: {said}")
    slices.controller.process.send_signal(signal.SIGTERM)
    equal(slices.controller.process.wait(20 * PATIENCE), 0, "how it ends without switches")
    with open(path, encoding="utf-8") as file:
        good = json.load(file)
    links, hosts = good["links"], good["hosts"]
    way = {"at": "s1:c", "address": "10.0.0.9", "link": "1G", "rate": "2M", "latency": "1s"}
    for changes, words in (
        ({"switches": {"s1": {"datapath": 1, "ovsdb": "file"}}}, "s1: ovsdb: file is neither"),
        ({"switches": []}, "switches: must be an object"),
        ({"links": [{**links[0], "rate": "fast"}]}, 'links: number 1: rate: "fast" is not a rate'),
        ({"links": links * 2}, "links: number 2: port s1:uplink is used twice"),
        ({"links": [{**links[0], "between": ["s3:a", "s1:b"]}]}, "there is no switch s3"),
        ({"hosts": {"a": {**hosts["fog"], "address": "x"}}}, "address: x is not an IPv4 address"),
        ({"reserve": "100%"}, "reserve: all of each link"),
        ({"controller": None}, "controller: must be an object"),
        (
            {"controller": {**way, "rate": "30M"}},
            "controller: link s1:uplink: 30 Mbit/s asked, 19 Mbit/s left",
        ),
        ({"controller": {**way, "latency": "1ms"}}, "controller: needs 1000 us to or from s1"),
        ({"controller": way, "sluice": "/nowhere"}, "/nowhere: "),
        ({"listen": "0.0.0.0:8181"}, "listen: 0.0.0.0 is no address of this machine's own"),
        ({"listen": "localhost:8181"}, "listen: localhost is not an IP address"),
    ):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**good, **changes}, file)
        done = control.run(
            [
                f"{VENV}/bin/python",
                *("-W", "ignore", f"{VENV}/bin/osken-manager", EXAMPLE),
            ],
            env=dict(os.environ, SLICE_NETWORK=path),
            ok=False,
            seconds=20,
        )
        check(
            done.returncode == 1 and "slice_controller: " in done.stderr and words in done.stderr,
            f"{changes}: {done.returncode} {done.stderr[-300:]}",
        )


# A stand-in for a connection notes messages, and answers barriers once the command is waiting.
ORDER = """
import sys
from os_ken.lib import hub
hub.patch(thread=False)
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from slice_controller import MODS_IN_PACKET, Outbox

sent, waiting = [], hub.Event()
def answer():
    waiting.wait()
    outbox.current.answered.set()
class Datapath:
    id, xid = 1, 0
    def set_xid(self, message):
        self.xid += 1
        message.xid = self.xid
    def send_msg(self, message):
        sent.append(message.name)
        if message.name == "barrier":
            hub.spawn(answer)
    ofproto_parser = SimpleNamespace(OFPBarrierRequest=lambda _: SimpleNamespace(name="barrier"))

outbox = Outbox(Datapath(), 2)
def messages(name, count):
    return [SimpleNamespace(name=name) for _ in range(count)]
bulk = hub.spawn(outbox.send, messages("bulk", 5 * MODS_IN_PACKET), bulk=True)
while "barrier" not in sent:
    hub.sleep(0)
command = hub.spawn(outbox.send, messages("command", 3))
while not outbox.commands:
    hub.sleep(0)
waiting.set()
command.wait()
bulk.wait()
print(MODS_IN_PACKET, *sent)
"""


@test(timeout=30)
def commands_go_before_bulk(lab):
    """Rules of a new task wait for no more of those that are renewed than leave together."""
    sluice(lab)
    done = run(
        [f"{VENV}/bin/python", "-W", "ignore", "-c", ORDER, os.path.dirname(EXAMPLE)], seconds=20
    )
    packet, *sent = done.stdout.split()
    runs = [(name, len(list(some))) for name, some in itertools.groupby(sent)]
    group = 2 * int(packet)
    equal(
        runs,
        [
            *(("bulk", group), ("barrier", 1), ("command", 3), ("barrier", 1)),
            *(("bulk", group), ("barrier", 1), ("bulk", group // 2), ("barrier", 1)),
        ],
        "the order",
    )


# Tasks that no switch has to carry out: only what would be admitted, and where.
ADMISSION = """
import json, sys
sys.path.insert(0, sys.argv[1])
from slice_controller import Network, Refused, Request, SliceController

controller = SliceController.__new__(SliceController)
controller.network, controller.tasks = Network(sys.argv[2]), {}
for number, asked in enumerate(json.loads(sys.argv[3])):
    try:
        task = controller.admit(f"t{number}", Request(asked, controller.network))
        controller.tasks[task.name] = task
        print(*(hop.departure for hop in task.flows[0].hops), f"{task.flows[0].reserved:.0f}")
    except Refused as reason:
        print(reason)
"""


@test(timeout=30)
def the_next_path_is_taken_where_the_first_is_full(lab):
    """The shortest path is tried first, then others; who fits none is told of all. A latency that
    the task's own rate does not give makes it reserve more."""
    path = network(
        lab,
        {f"s{number}": f"unix:{lab.directory}/{number}" for number in (1, 2, 3)},
        reserve="1%",
        links=[
            {"between": ["s1:direct", "s2:direct"], "rate": "10M"},
            {"between": ["s1:over", "s3:a"], "rate": "10M"},
            {"between": ["s3:b", "s2:back"], "rate": "8M"},
        ],
        hosts={
            "camera": {"at": "s1:camera", "address": SOURCE, "rate": "1G"},
            "fog": {"at": "s2:fog", "address": TARGET, "rate": "1G"},
        },
    )
    asked = {"from": "camera", "to": "fog", "latency": "100ms", "burst": "12kB"}
    tasks = [
        {**asked, "rate": "6M"},
        {**asked, "rate": "6M"},
        {**asked, "rate": "5M"},
        # 96 kbit within 40 ms, less what links and slack take: more than it sends.
        {**asked, "rate": "1M", "latency": "40ms"},
    ]
    done = run(
        [
            *(f"{VENV}/bin/python", "-W", "ignore", "-c", ADMISSION),
            *(os.path.dirname(EXAMPLE), path, json.dumps(tasks)),
        ],
        seconds=20,
    )
    *lines, last = done.stdout.splitlines()
    equal(
        lines,
        [
            "s1:direct s2:fog 6000000",
            "s1:over s3:b s2:fog 6000000",
            "link s1:direct: 5 Mbit/s asked, 3.9 Mbit/s left; "
            "link s1:over: 5 Mbit/s asked, 3.9 Mbit/s left",
        ],
        "what is admitted",
    )
    *hops, reserved = last.split()
    equal(hops, ["s1:direct", "s2:fog"], "the last one's path")
    check(2_400_000 < int(reserved) < 2_600_000, f"what it reserves: {reserved}")
