"""Which worker serves which receive queue: `pmd-rxq-assign`, `pmd-rxq-isolate`, `pmd-auto-lb`."""

import os
import re
import threading
import time

from harness import Skip, check, equal, ethernet, test, wait_for


def configure(switch, **keys):
    """Sets keys of `other_config`, in Python's spelling."""
    pairs = [f"other_config:{key.replace('_', '-')}={value}" for key, value in keys.items()]
    switch.vsctl("set", "Open_vSwitch", ".", *pairs)


def served(switch):
    """For each worker, in the order of their processors: the ports whose queues it serves."""
    text = switch.appctl("dpif-netdev/pmd-rxq-show")
    blocks = re.split(r"^pmd thread .*core_id \d+:$", text, flags=re.M)[1:]
    return [re.findall(r"port: (p\d+) ", block) for block in blocks]


def two_workers(lab, ports):
    """A switch with two workers and these kernel ports, whose hosts have raw sockets."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's PMD threads serve DPDK's ports only")
    if os.cpu_count() < 2:
        raise Skip("one core: no second worker")
    # So that there is `time/warp`.
    switch = lab.switch(options=["--enable-dummy"], config=["other_config:pmd-cpu-mask=0x3"])
    switch.bridge("br0", "fail_mode=secure")
    return switch, switch.raw_hosts(ports)


@test(timeout=60)
def values_are_taken_and_named(lab):
    """Each value is logged as Open vSwitch logs it; what cannot be is refused by its words."""
    switch = lab.switch()
    switch.bridge("br0", "datapath_type=netdev")
    configure(switch, pmd_rxq_assign="fast")
    switch.logged(
        r"Unsupported rx queue to PMD assignment mode in pmd-rxq-assign\. Defaulting to 'cycles'\."
    )
    for mode in ("group", "roundrobin", "cycles", "group"):
        configure(switch, pmd_rxq_assign=mode)
        switch.logged(f"Rxq to PMD assignment mode changed to: '{mode}'\\.")
    configure(switch, pmd_rxq_isolate="false")
    switch.logged("pmd-rxq-affinity does not isolate PMD core")
    configure(switch, pmd_rxq_assign="cycles")
    switch.logged("pmd-rxq-isolate can only be set false when using pmd-rxq-assign=group")
    switch.logged("pmd-rxq-affinity isolates PMD core")
    configure(switch, pmd_auto_lb_rebal_interval=10)
    switch.logged("PMD auto load balance interval set to 10 mins")
    configure(switch, pmd_auto_lb_load_threshold=70)
    switch.logged("PMD auto load balance load threshold set to 70%")
    configure(switch, pmd_auto_lb_improvement_threshold=20)
    switch.logged("PMD auto load balance improvement threshold set to 20%")
    configure(switch, pmd_auto_lb="true")
    switch.logged(
        "PMD auto load balance is enabled, interval 10 mins, pmd load threshold 70%, "
        r"improvement threshold 20%\."
    )
    # Too much is the default again, and so is an interval of 0.
    configure(switch, pmd_auto_lb_load_threshold=101, pmd_auto_lb_improvement_threshold=101)
    switch.logged("PMD auto load balance load threshold set to 95%")
    switch.logged("PMD auto load balance improvement threshold set to 25%")
    configure(switch, pmd_auto_lb_rebal_interval=0)
    switch.logged("PMD auto load balance interval set to 1 mins")
    configure(switch, pmd_auto_lb="false")
    switch.logged("PMD auto load balance is disabled")


@test(timeout=60)
def idle_queues_are_assigned_as_configured(lab):
    """A change of `pmd-rxq-assign` assigns all queues anew; what is pinned stays."""
    switch, _ = two_workers(lab, 6)

    def become(one, other):
        wait_for(f"{one} and {other}", lambda: served(switch) == [one.split(), other.split()])

    # The bridge's own port comes first.
    configure(switch, pmd_rxq_assign="roundrobin")
    become("p2 p4 p6", "p1 p3 p5")
    # Pinned to a worker, which serves no other queue.
    switch.vsctl("set", "Interface", "p1", "other_config:pmd-rxq-affinity=0:0")
    become("p1", "p2 p3 p4 p5 p6")
    configure(switch, pmd_rxq_isolate="false")
    switch.logged("pmd-rxq-isolate can only be set false")
    become("p1", "p2 p3 p4 p5 p6")
    configure(switch, pmd_rxq_assign="group")
    wait_for("others are served beside it", lambda: len(served(switch)[0]) > 1)
    check("p1" in served(switch)[0], "the pinned queue has moved")
    equal(switch.appctl("dpif-netdev/pmd-rxq-rebalance"), "pmd rxq rebalance requested.\n", "")
    check("p1" in served(switch)[0], "the pinned queue has moved")


class Sender(threading.Thread):
    """Sends numbered frames by a socket until told to end, and counts what comes by another."""

    def __init__(self, sender, receiver):
        super().__init__(daemon=True)
        self.sender, self.receiver, self.over = sender, receiver, threading.Event()
        self.sent, self.arrived, self.wrong = 0, 0, None

    def run(self):
        while not self.over.is_set():
            for _ in range(32):
                payload = self.sent.to_bytes(8, "big") + bytes(50)
                self.sender.send(
                    ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x88B5, payload)
                )
                self.sent += 1
            self.take(32)
        deadline = time.monotonic() + 10
        while self.arrived < self.sent and time.monotonic() < deadline:
            self.take(32)

    def take(self, most):
        for _ in range(most):
            frame = self.receiver.receive_one(0.5 if self.arrived < self.sent else 0)
            if frame is None:
                return
            number = int.from_bytes(frame[14:22], "big")
            if number != self.arrived and self.wrong is None:
                self.wrong = f"{number} where {self.arrived} is next"
            self.arrived += 1

    def end(self):
        """Ends it; every frame must have arrived, in order."""
        self.over.set()
        self.join(60)
        check(self.wrong is None, self.wrong)
        equal(self.arrived, self.sent, "frames that arrived")


@test(timeout=120)
def busy_queues_move_apart_by_themselves(lab):
    """`pmd-auto-lb`: of two busy queues of one worker, one moves to the other after a minute, under
    load; nothing is lost or overtaken. Before that time, and while it is off, none moves."""
    switch, hosts = two_workers(lab, 6)
    configure(
        switch,
        pmd_rxq_assign="group",
        pmd_auto_lb_load_threshold=1,
        pmd_auto_lb_rebal_interval=1,
    )
    wait_for("both serve", lambda: all(len(ports) >= 2 for ports in served(switch)))
    before = served(switch)
    busy = before[0][:2]
    idle = [f"p{number}" for number in range(1, 7) if f"p{number}" not in busy][:2]
    numbers = [(int(one[1:]), int(other[1:])) for one, other in zip(busy, idle)]
    switch.flows(*(f"in_port={one},actions=output:{other}" for one, other in numbers))
    senders = [Sender(hosts[one - 1], hosts[other - 1]) for one, other in numbers]
    for sender in senders:
        sender.start()

    def minutes(count):
        """Lets so much time pass by the switch's clock, with frames in every part of it."""
        for _ in range(12 * count):
            sent = [sender.arrived for sender in senders]
            wait_for(
                "frames",
                lambda sent=sent: all(
                    sender.arrived > before + 100 for sender, before in zip(senders, sent)
                ),
            )
            switch.appctl("time/warp", "5000")
            time.sleep(0.05)

    minutes(3)
    equal(served(switch), before, "who serves while it is off")
    configure(switch, pmd_auto_lb="true")
    minutes(3)
    switch.logged(r"PMD auto load balance dry run\. Requesting datapath reconfigure\.")
    after = served(switch)
    for worker in after:
        equal(len(set(worker) & set(busy)), 1, f"busy queues of a worker: {after}, busy: {busy}")
    for sender in senders:
        sender.end()
    lab.note(f"{sum(sender.sent for sender in senders)} frames")
