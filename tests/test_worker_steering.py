"""`other_config:sluice-steering`: workers that process flows which another receives."""

import os
import re
import struct
import threading
import time

from harness import Skip, check, equal, ethernet, run, test, wait_for
from test_steer import frame
from tunnels import udp

FLOWS = 64
CORES = 3


def steered(lab, mode=None, hosts=2):
    """A switch with two workers, and hosts' raw sockets at its ports."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's workers do not share a queue")
    if os.cpu_count() < 2:
        raise Skip("one core: no second worker")
    config = [f"other_config:pmd-cpu-mask={CORES:#x}"] + (
        [f"other_config:sluice-steering={mode}"] if mode else []
    )
    switch = lab.switch(config=config)
    switch.bridge("br0", "fail_mode=secure")
    sockets = switch.raw_hosts(hosts)
    switch.flows("in_port=1,actions=output:2", "in_port=2,actions=output:1")
    return switch, sockets


def workers(switch):
    """Mode, and what is said of each worker."""
    text = switch.appctl("sluice/steering")
    mode = re.match(r"steering: (\w+) \((\w+) asked for\)\n", text)
    names = ("load", "away", "given", "taken", "refused", "parked", "moves", "given up")
    found = re.findall(r"^\d+ +\S+ +(\d+)%" + r" +(\d+)" * (len(names) - 1), text, re.M)
    return mode.groups(), [dict(zip(names, map(int, values))) for values in found]


def total(switch, what):
    """The sum over all workers."""
    return sum(worker[what] for worker in workers(switch)[1])


def numbered(flow, number):
    """A UDP packet of a flow with a number."""
    return ethernet(
        "02:00:00:00:00:02",
        "02:00:00:00:00:01",
        0x800,
        udp("10.0.0.1", f"10.0.1.{flow}", 9, struct.pack("!II", flow, number), sport=1000 + flow),
    )


class Stream(threading.Thread):
    """Sends numbered packets of all flows until told to end, a burst at a time, and holds the order
    of what arrives against it."""

    def __init__(self, sender, receiver):
        super().__init__(daemon=True)
        self.sender, self.receiver = sender, receiver
        self.over, self.sent, self.arrived, self.wrong = (
            threading.Event(),
            [0] * FLOWS,
            [0] * FLOWS,
            None,
        )

    def run(self):
        rounds = 0
        while not self.over.is_set() and rounds < 100_000:
            for flow in range(FLOWS):
                self.sender.send(numbered(flow, rounds))
                self.sent[flow] += 1
            rounds += 1
            self.take(FLOWS)
        deadline = time.monotonic() + 10
        while sum(self.arrived) < sum(self.sent) and time.monotonic() < deadline:
            self.take(FLOWS)

    def take(self, most):
        """Looks at what has arrived."""
        for _ in range(most):
            frame = self.receiver.receive_one(0.5 if sum(self.arrived) < sum(self.sent) else 0)
            if frame is None:
                return
            flow, number = struct.unpack_from("!II", frame, 42)
            if number != self.arrived[flow] and self.wrong is None:
                self.wrong = f"flow {flow}: {number} where {self.arrived[flow]} is next"
            self.arrived[flow] += 1

    def end(self):
        """Ends it; every packet must have arrived, in order."""
        self.over.set()
        self.join(60)
        check(self.wrong is None, self.wrong)
        equal(self.arrived, self.sent, "packets that arrived")


@test(timeout=60)
def flows_are_spread_over_workers_in_order(lab):
    """With `rss` another worker processes half of what one receives, whatever changes meanwhile;
    nothing is lost or overtaken. With `off` all comes back."""
    switch, (first, second) = steered(lab, "rss")
    wait_for("buckets are spread", lambda: total(switch, "away") == 512)
    equal(workers(switch)[0], ("rss", "rss"), "the mode")
    stream = Stream(first, second)
    stream.start()
    wait_for("another worker has some", lambda: total(switch, "taken") > 1000)
    for mode in ("off", "rss", "adaptive", "rss"):
        switch.vsctl("set", "Open_vSwitch", ".", f"other_config:sluice-steering={mode}")
        wait_for(f"{mode}", lambda: workers(switch)[0] == (mode, mode))
        if mode == "off":
            wait_for("all came back", lambda: total(switch, "away") == 0)
    # Workers that come and go.
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x1")
    wait_for("one worker", lambda: len(workers(switch)[1]) == 1)
    equal(workers(switch)[0], ("off", "rss"), "with one worker")
    switch.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={CORES:#x}")
    wait_for("buckets are spread", lambda: total(switch, "away") == 512)
    switch.appctl("dpif-netdev/pmd-rxq-rebalance")
    wait_for("buckets are spread again", lambda: total(switch, "away") == 512)
    stream.end()
    equal(total(switch, "refused"), 0, "refused")
    lab.note(f"{sum(stream.sent)} packets")


@test(timeout=60)
def top_shows_what_workers_do_for_each_other(lab):
    """`sluice top` has a table of what workers hand over, while they do; with `off` there is
    none."""
    switch, (first, second) = steered(lab, "rss")
    wait_for("buckets are spread", lambda: total(switch, "away") == 512)
    sluice = os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")

    def table():
        text = run([sluice, "top", "-n", "1", "-i", "0.5"], env=switch.env).stdout
        _, found, rest = text.partition("Steering between workers\n")
        return [line.split() for line in rest.split("\n\n")[0].splitlines()] if found else None

    stream = Stream(first, second)
    stream.start()
    try:
        names, *rows = wait_for("somebody is given frames", lambda: busy(table()))
    finally:
        stream.end()
    equal(" ".join(names[:6]), "worker own/s handed/s taken/s lost/s parked", "columns")
    equal(len(rows), 2, "workers")
    check(" given up load % keeps" in " ".join(names), "columns:", names)
    # All frames come by the queue of one worker, which gives half of them away.
    for name, _, _, _, lost, parked, away, *_ in rows:
        check(name.startswith("pmd-c0"), "no worker's name:", name)
        equal((lost, parked, away), ("0", "0", "256"), "lost, parked, buckets away")
    [giver] = [row for row in rows if row[2] != "0"]
    [taker] = [row for row in rows if row[3] != "0"]
    check(giver is not taker and giver[1] != "0", "who gives, and who takes:", rows)
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:sluice-steering=off")
    wait_for("no table", lambda: table() is None)


def busy(table):
    """The table, if a worker has given frames away and another has taken some."""
    given, taken = ([row[at] for row in (table or [])[1:]] for at in (2, 3))
    return table if set(given) - {"0"} and set(taken) - {"0"} else None


@test(timeout=60)
def forced_moves_keep_the_order(lab):
    """Buckets that are moved to and fro by hand under traffic: every packet arrives, in order."""
    switch, (first, second) = steered(lab, "adaptive")
    stream = Stream(first, second)
    stream.start()
    end, to = time.monotonic() + 6, 0
    while time.monotonic() < end:
        to = 1 - to
        for bucket in range(0, 512, 32):
            for giver in (0, 1):
                switch.appctl(
                    "sluice/steering-move", str(giver), str(bucket + (to * 7) % 32), str(to)
                )
    stream.end()
    moves = total(switch, "moves")
    check(moves > 20, f"{moves} moves")
    lab.note(f"{moves} moves, {sum(stream.sent)} packets")


@test(timeout=60)
def connections_of_hosts_go_through_another_worker(lab):
    """TCP with the kernel's offloads and large frames, and pings, through a worker that did not
    receive them: no wrong checksum."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's workers do not share a queue")
    switch = lab.switch(
        config=[f"other_config:pmd-cpu-mask={CORES:#x}", "other_config:sluice-steering=rss"]
    )
    switch.bridge()
    one, two = (lab.host(f"h{number}", switch, ip=f"10.0.0.{number}/24") for number in (1, 2))
    wait_for("buckets are spread", lambda: total(switch, "away") == 512)
    one.ping("10.0.0.2", 20)
    two.start(["iperf3", "-s"], "iperf.log")
    report = one.iperf("10.0.0.2", "-P", "4", seconds=2)
    check(report["end"]["sum_received"]["bytes"] > 1_000_000, "iperf3 sent next to nothing")
    check(total(switch, "taken") > 0, "no worker has taken anything")
    for host in (one, two):
        equal(host.checksum_errors(), {}, f"wrong checksums at {host.name}")


@test(timeout=60)
def ports_go_while_their_flows_are_elsewhere(lab):
    """A port is deleted and added while its frames are with another worker: others lose nothing."""
    switch, (first, second, third) = steered(lab, "rss", hosts=3)
    wait_for("buckets are spread", lambda: total(switch, "away") == 512)
    stream = Stream(first, second)
    stream.start()
    for _ in range(5):
        for number in range(200):
            third.send(numbered(number % FLOWS, number))
        switch.vsctl("del-port", "p3")
        switch.port("p3", "ofport_request=3")
    stream.end()


@test(timeout=30)
def wrong_values_are_named(lab):
    """A mode that there is not is named and ignored; moves that cannot be are refused."""
    switch, _ = steered(lab)
    # Two workers and two queues: each has its own.
    equal(workers(switch)[0], ("off", "auto"), "the mode")
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:sluice-steering=fast")
    switch.logged(r"sluice-steering.*fast")
    equal(workers(switch)[0], ("off", "auto"), "the mode")

    def refused(pattern, *words):
        done = switch.appctl("sluice/steering-move", *words, ok=False)
        check(done.returncode and re.search(pattern, done.stderr), f"{words}: {done.stderr!r}")

    refused("there is no worker 2", "0", "0", "2")
    refused("there is no bucket 512", "0", "512", "1")
    refused('BUCKET: "x" is not a number', "0", "x", "1")
    # A queue less than workers: they help by themselves.
    switch.vsctl("del-port", "p2")
    wait_for("adaptive by itself", lambda: workers(switch)[0] == ("adaptive", "auto"))


@test(timeout=120)
def flows_with_priority_keep_their_worker(lab):
    """While a worker is overloaded, it keeps the flow with priority, which loses nothing, or hardly
    anything where others want the processors; the others leave it and share the other worker.
    Afterwards it is a worker like others."""
    switch, (sender, receiver) = steered(lab, "adaptive")
    switch.vsctl(
        *("set", "Bridge", "br0", "other_config:sluice-fcf-layout=dscp6"),
        *("--", "set", "Interface", "p1", "other_config:sluice-fcf-underlay=true"),
        *("--", "set", "Interface", "p1", "other_config:pmd-rxq-affinity=0:0"),
    )
    # Those without priority are dear enough to fill both workers.
    few, many = (",".join(["output:2"] * count) for count in (4, 60))
    switch.flows(
        f"cookie=1,priority=40000,in_port=1,udp,tp_src=1000,actions={few}",
        f"cookie=2,in_port=1,udp,actions={many}",
    )

    def lines():
        text = switch.appctl("sluice/steering")
        return [line for line in text.splitlines() if re.match(r"\d", line)]

    def reserved():
        return [line for line in lines() if line.endswith("- (reserved for priority)")]

    def processed():
        """Frames processed so far, with priority and without."""
        found = switch.rule_packets()
        return found[1], found[2]

    over, paused, sent = threading.Event(), threading.Event(), [0, 0]

    def flood():
        # Layout dscp6: VM 1, with the priority bit in one flow of eight.
        burst = [frame(9, source=1000 + flow, tos=4 if flow else 0x84) for flow in range(8)]
        while not over.is_set():
            if paused.is_set():
                time.sleep(0.001)
                continue
            sender.send(*burst)
            sent[0] += 1
            sent[1] += 7
            time.sleep(0.0001)

    def settled():
        """What has been sent and processed, when nothing is under way."""
        paused.set()
        seen = [None]

        def steady():
            before, seen[0] = seen[0], (*sent, *processed())
            return before == seen[0]

        wait_for("all is processed", steady)
        paused.clear()
        return seen[0]

    flooder = threading.Thread(target=flood, daemon=True)
    flooder.start()
    try:
        wait_for("a worker is reserved", reserved, 40)
        [line] = reserved()
        check("pmd-c00" in line, "another worker:", line)
        wait_for("flows leave it", lambda: workers(switch)[1][0]["given"] > 0)
        time.sleep(1)
        before = settled()
        wait_for("many more", lambda: sent[0] > before[0] + 10000, 60)
        after = settled()
    finally:
        over.set()
        flooder.join()
    urgent_sent, others_sent, urgent, others = (b - a for a, b in zip(before, after))
    lost, others_lost = 1 - urgent / urgent_sent, 1 - others / others_sent
    lab.note(f"lost with priority {lost:.2%}, without {others_lost:.2%}")
    if others_lost < 0.2:
        raise Skip("the machine is too busy: what it sends does not overload the workers")
    # Without contention for processors those with priority lose nothing.
    check(lost < others_lost / 4, f"lost {lost:.2%} with priority, {others_lost:.2%} without")
    wait_for("it is no longer reserved", lambda: not reserved(), 20)
    receiver.drain()
