#!/usr/bin/python3
"""Papers a's and b's experiments that look inside (A3, A7, A9, A10, A12, B3, B5, B7 to B10), and
those of sets of rules (E1, E2), for the lab: each prints its cells as lines of JSON, as
bench/lab_slicing.py does.

    bench/lab_forwarding.py A3|A7|A9|A10|A12|B3|B5|B7|B8|B9|B10|E1|E2 [--mode quick|normal|full]
                            [--subject NAME]... [--rounds N] [--seconds S] [--daemon COMMAND]

Sluice and Open vSwitch forward 64-byte frames from memory (net_pcap) to null devices on core 1, the
Linux bridge and Linux IP forwarding between veth pairs, of which core 0 feeds one: or on the two
that SLUICE_BENCH_CORES names (1,0).

Needs root, gcc, iproute2, ethtool, perf for B7 and B8, Open vSwitch with DPDK, two cores, and huge
pages.
"""

import collections
import json
import os
import re
import statistics
import subprocess
import sys
import time

import cases
from contender import (
    BOTH_CORES,
    OTHER_CORE,
    WORKER_CORE,
    contender,
    limit,
    rate_of,
    stderr,
    switchd,
)
from curve import cycles_per_ns, settled
from frames import uniform, write_pcap
from kernel import PEER, SENDER
from lab_slicing import by_mode, command_of, emit, with_traffic, words_of
from slicing_peers import harness, peer, result, stream
from testpmd import Testpmd

PAGES = 2400
RULES = ["in_port={in},actions=output:{out}"]
SETTLE = 1
COUNTERS = """
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define relaxed memory_order_relaxed
/* Counts as for a packet: a rule's packets and bytes, in cells of each thread or in shared ones. */
static struct { _Alignas(64) _Atomic uint64_t packets, bytes; } cells[64];
static _Atomic int stop, shared;
struct job { pthread_t thread; int core, own; uint64_t done; };
static void *count(void *argument)
{
    struct job *job = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(job->core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    uint64_t done = 0;
    for (; !stop; done += 64)
        for (int i = 0; i < 64; i++)
            if (shared) {
                atomic_fetch_add_explicit(&cells[0].packets, 1, relaxed);
                atomic_fetch_add_explicit(&cells[0].bytes, 60, relaxed);
            } else {
                int own = job->own;
                uint64_t packets = atomic_load_explicit(&cells[own].packets, relaxed);
                uint64_t bytes = atomic_load_explicit(&cells[own].bytes, relaxed);
                atomic_store_explicit(&cells[own].packets, packets + 1, relaxed);
                atomic_store_explicit(&cells[own].bytes, bytes + 60, relaxed);
            }
    job->done = done;
    return 0;
}
int main(int argc, char **argv)
{
    struct job jobs[64];
    int threads = argc > 4 ? atoi(argv[2]) : 0;
    if (threads < 1 || threads > 64 || argc < 4 + threads)
        return 2;
    shared = !strcmp(argv[1], "shared");
    for (int i = 0; i < threads; i++) {
        jobs[i].core = atoi(argv[4 + i]);
        jobs[i].own = i;
        pthread_create(&jobs[i].thread, 0, count, &jobs[i]);
    }
    struct timespec pause = {0, (long)(atof(argv[3]) * 1e9)};
    if (pause.tv_nsec >= 1000000000)
        pause = (struct timespec){pause.tv_nsec / 1000000000, pause.tv_nsec % 1000000000};
    nanosleep(&pause, 0);
    stop = 1;
    uint64_t all = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(jobs[i].thread, 0);
        all += jobs[i].done;
    }
    printf("%lu\\n", all);
    return 0;
}
"""


# Takes a part of a core away from whatever else runs there, in slices of a millisecond.
SPINNER = """
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <time.h>
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[1]), &set);
    double taken = atof(argv[2]), begin = now(), end = begin + atof(argv[3]);
    struct sched_param first = {.sched_priority = 1};
    if (sched_setaffinity(0, sizeof set, &set) || sched_setscheduler(0, SCHED_FIFO, &first))
        return 1;
    for (double due = begin; due < end; due += 1e-3) {
        while (now() < due + taken * 1e-3)
            ;
        double left = due + 1e-3 - now();
        struct timespec pause = {0, (long)(left * 1e9)};
        if (left > 0)
            nanosleep(&pause, 0);
    }
    return 0;
}
"""
# Time of a load from memory by the size of what is read at random, ns.
CHASE = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(int argc, char **argv)
{
    size_t lines = argc == 2 ? strtoull(argv[1], 0, 10) / 64 : 0;
    if (lines < 2)
        return 2;
    uint64_t (*all)[8] = aligned_alloc(64, lines * 64), seed = 88172645463325252ull, at = 0;
    if (!all)
        return 1;
    for (size_t i = 0; i < lines; i++)
        all[i][0] = i;
    /* Sattolo's shuffle: one cycle through all lines. */
    for (size_t i = lines - 1; i > 0; i--) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        size_t other = seed % i;
        uint64_t kept = all[i][0];
        all[i][0] = all[other][0], all[other][0] = kept;
    }
    struct timespec begin, end;
    size_t steps = lines < 1 << 22 ? 1 << 23 : 1 << 24;
    for (size_t i = 0; i < lines && i < 1 << 22; i++)
        at = all[at][0];
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (size_t i = 0; i < steps; i++)
        at = all[at][0];
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (end.tv_sec - begin.tv_sec) * 1e9 + end.tv_nsec - begin.tv_nsec;
    printf("%.3f\\n", at == lines ? 0 : ns / steps);
    return 0;
}
"""


def built(lab, name, text, *more):
    """A program of a few lines."""
    source, program = f"{lab.directory}/{name}.c", f"{lab.directory}/{name}"
    if not os.path.exists(program):
        with open(source, "w", encoding="ascii") as file:
            file.write(text)
        harness.run(["gcc", "-O2", "-o", program, source, *more], seconds=60)
    return program


def wanted(options, subject):
    """Whether this subject is asked for."""
    return not options.subject or subject in options.subject


def daemons(options):
    """Sluice and Open vSwitch, as far as they are asked for and there."""
    known = {"sluice": options.daemon or switchd(), "ovs-dpdk": "ovs"}
    result = {}
    for subject, command in known.items():
        if not wanted(options, subject):
            continue
        command = harness.switchd_command(command)
        if os.access(command[0], os.X_OK):
            result[subject] = command
        else:
            emit(subject, {}, missing=f"there is no daemon at {command[0]}")
    return result


def capture(lab, flows=1):
    """A file of 64-byte frames."""
    path = f"{lab.directory}/in-{flows}.pcap"
    if not os.path.exists(path):
        write_pcap(path, uniform(flows))
    return path


def forwarding(lab, options, flows=1, **more):
    """The daemons, each forwarding from memory."""
    for subject, command in daemons(options).items():
        try:
            with contender(lab, subject, command, **more) as switch:
                switch.sinks()
                switch.rules_from(RULES)
                switch.source(capture(lab, flows))
                time.sleep(SETTLE)
                yield subject, switch
        except (harness.Failure, OSError) as failure:
            stderr(f"{subject}: {failure}")
            emit(subject, {}, missing=failure)


def a3(lab, options):
    """Counters that all workers share, and one for each."""
    program = built(lab, "counters", COUNTERS, "-lpthread")
    for kind, subject in (("shared", "one counter"), ("own", "a counter for each core")):
        # Each is a start of its own, and so a run; they take little time.
        for workers in (1, 2) * 4:
            if wanted(options, subject):
                seconds = options.seconds / 4
                cores = [str(WORKER_CORE), str(OTHER_CORE)]
                words = [program, kind, str(workers), str(seconds), *cores]
                done = harness.run(words, seconds=60)
                rate = int(done.stdout) / seconds / 1e6
                emit(subject, {"workers": workers}, {"counted": rate})
    if not wanted(options, "sluice"):
        return
    command = daemons(options).get("sluice")
    for workers in (1, 2):
        cores = (1 << WORKER_CORE) if workers == 1 else BOTH_CORES
        with contender(lab, "sluice", command, cores=cores) as switch:
            switch.sinks()
            switch.rules_from(RULES)
            switch.source(capture(lab, 1000), f"options:n_rxq={workers}", queues=workers)
            time.sleep(SETTLE)
            emit("sluice", {"workers": workers}, {"rate": switch.rate(options.seconds)})


def context_switches():
    """Of all cores since the machine's start."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(re.search(r"^ctxt (\d+)", file.read(), re.M)[1])


def busy_ticks(core):
    """Ticks that the kernel counts as busy, and all."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = re.search(rf"^cpu{core} (.*)", file.read(), re.M)[1].split()
    ticks = [int(each) for each in ticks[:8]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


KERNEL = {"linux-bridge": "htb", "sluice": "sluice"}


def kernel_peers(lab, options):
    """Sluice's kernel interfaces and the Linux bridge, unshaped."""
    for subject, name in KERNEL.items():
        if wanted(options, subject):
            with peer(lab, name, options) as (switch, hosts):
                switch.shape(0, [])
                yield subject, switch, hosts


def a7(lab, options):
    """Context switches by load, and what is lost."""
    loads = by_mode(options, [10, 100], [5, 20, 50, 100, 150, 200])
    for subject, _, hosts in kernel_peers(lab, options):
        for load in loads:
            receiver = hosts.receive(1, options.seconds, 0.3)
            sender = hosts.send(options.seconds + 0.5, stream(load * 1000, 60))
            time.sleep(0.4)
            before, began = context_switches(), time.monotonic()
            time.sleep(max(0.2, options.seconds - 0.4))
            switches = (context_switches() - before) / (time.monotonic() - began)
            got, sent = result(receiver), result(sender)
            rate = got["packets"] / got["seconds"]
            offered = sent["sent"] / sent["seconds"]
            emit(
                subject,
                {"load": load},
                {
                    "switches": switches / 1000,
                    "delivered": rate / 1000,
                    "lost": max(0.0, 100 * (1 - rate / max(offered, 1))),
                    "p99": got["p99"],
                },
            )


def a9(lab, options):
    """Workers that are pinned and workers that are not, beside a busy process and without one."""
    for subject, switch in forwarding(lab, options):
        worker = next(
            int(thread)
            for thread in os.listdir(f"/proc/{switch.process.pid}/task")
            if open(f"/proc/{switch.process.pid}/task/{thread}/comm", encoding="ascii")
            .read()
            .startswith("pmd")
        )
        for affinity, cores in (("pinned", {WORKER_CORE}), ("free", {WORKER_CORE, OTHER_CORE})):
            os.sched_setaffinity(worker, cores)
            for neighbours in (0, 1, 2):
                loop = ["sh", "-c", "while :; do :; done"]
                busy = [
                    lab.start(["taskset", "-c", str(core), *loop], "busy")
                    for core in (WORKER_CORE, OTHER_CORE)[:neighbours]
                ]
                time.sleep(0.5)
                rate = switch.rate(options.seconds)
                for process in busy:
                    process.kill()
                    process.wait()
                emit(subject, {"worker": affinity, "busy": neighbours}, {"rate": rate})


def a10(lab, options):
    """The load that the kernel's ticks see on the core that forwards, and what a task of the lowest
    priority misses of it."""
    loads = by_mode(options, [20, 100], [5, 20, 50, 100, 150])
    for subject, _, hosts in kernel_peers(lab, options):
        for load in loads:
            sender = hosts.send(2 * options.seconds + 1.5, stream(load * 1000, 60))
            time.sleep(0.4)
            before = busy_ticks(WORKER_CORE)
            time.sleep(options.seconds)
            busy, ticks = (after - then for after, then in zip(busy_ticks(WORKER_CORE), before))
            probe = result(hosts.start(hosts.source, "idle", WORKER_CORE, options.seconds))
            result(sender)
            emit(
                subject,
                {"load": load},
                {
                    "seen": 100 * busy / max(ticks, 1),
                    "real": 100 * probe["lost"] / probe["seconds"],
                },
            )


def a12(lab, options):
    """What a guest's interface costs the host: into it, out of it, and through it."""
    paths = {
        "into the guest": ("rxonly", "in_port={in},actions=output:v1"),
        "out of the guest": ("txonly", "in_port=v1,actions=output:{out}"),
        "through the guest": ("io", "in_port={in},actions=output:v1"),
    }
    for subject, command in daemons(options).items():
        for path, (mode, rule) in paths.items():
            with contender(lab, subject, command) as switch:
                switch.sinks()
                tester = Testpmd(
                    lab,
                    [f"{switch.directory}/v.sock"],
                    f"guest{len(lab.programs)}",
                    ["--nb-cores=1"],
                    cores=("--lcores", f"0@{OTHER_CORE},1@{OTHER_CORE}"),
                )
                # Behind those of net_pcap and net_null.
                switch.port(
                    "v",
                    "type=dpdkvhostuserclient",
                    f"options:vhost-server-path={switch.directory}/v.sock",
                    "ofport_request=9",
                )
                tester.wait_ready()
                harness.wait_for(
                    "the guest is up",
                    lambda switch=switch: switch.get("Interface", "v", "link_state") == "up",
                    30,
                )
                rules = [rule.replace("v1", "9")]
                if mode == "io":
                    rules.append("in_port=9,actions=output:{out}")
                switch.rules_from(rules)
                tester.forward(mode)
                if mode != "txonly":
                    switch.source(capture(lab))
                time.sleep(SETTLE)
                before, began = tester.counters()[0], time.monotonic()
                passed = switch.count(options.seconds)
                seconds, after = time.monotonic() - began, tester.counters()[0]
                received = (after[0] - before[0]) / seconds / 1e6
                out = passed["out"] / passed["time"] / 1e6
                rate = received if mode == "rxonly" else out
                tester.stop()
                tester.quit()
            emit(subject, {"path": path}, {"rate": rate, "cores": 2 / max(rate, 1e-6)})


def b3(lab, options):
    """The rate by how much of its core's time who forwards has."""
    program = built(lab, "spinner", SPINNER)
    parts = by_mode(options, [50, 75, 100], [50, 60, 70, 80, 90, 100])

    def measure(subject, rate):
        for part in parts:
            spinner = None
            if part < 100:
                words = [str(WORKER_CORE), str(1 - part / 100), str(options.seconds + 1)]
                spinner = subprocess.Popen([program, *words])
                time.sleep(0.4)
            measured = rate(options.seconds)
            if spinner and spinner.wait(30):
                emit(subject, {"part": part}, missing="no real-time process may run here")
            else:
                emit(subject, {"part": part}, {"rate": measured})

    for subject, path in kernel_paths(lab, options):
        measure(subject, lambda seconds, path=path: path.rate(seconds) / 1e6)
    for subject, switch in forwarding(lab, options):
        measure(subject, switch.rate)


def b5(lab, options):
    """Cycles that a packet waits for memory as its rules and flows outgrow the caches, and how many
    loads from memory that is."""
    program = built(lab, "chase", CHASE)
    size = by_mode(options, 256, 512) << 20
    latency = float(harness.run([program, str(size)], seconds=120).stdout)
    stderr(f"a load from memory takes {latency:.1f} ns")
    base = {}
    for rules in by_mode(options, [1, 20_000], [1, 100, 1000, 10_000, 100_000]):
        case = cases.exact(rules)
        pcap = f"{lab.directory}/rules-{rules}.pcap"
        write_pcap(pcap, case.frames)
        for subject, command in daemons(options).items():
            with contender(lab, subject, command) as switch:
                switch.sinks()
                switch.rules_from(case.rules)
                switch.source(pcap)
                settled(switch)
                rate = switch.rate(options.seconds)
            ns = 1e3 / rate
            base.setdefault(subject, ns)
            waits = max(0.0, ns - base[subject])
            emit(
                subject,
                {"rules": rules},
                {
                    "rate": rate,
                    "cycles": ns * cycles_per_ns(),
                    "misses": waits / latency,
                    "total": waits / latency * rate,
                },
            )


# Where the kernel's functions belong, first match first: the paper's columns.
PLACES = [
    ("idle", r"idle|pv_native_safe_halt|mwait|cpu_startup|default_idle|acpi_"),
    ("memory", r"kmem_cache|kmalloc|kfree|slab|page_frag|alloc_pages|free_frozen|get_page|put_page"
               r"|memcpy|memset|memmove|copy_|csum_partial_copy|__alloc_frozen|clear_page"),
    ("skb", r"skb"),
    ("transmit", r"xmit|dev_queue|validate_|netdev_core_pick|qdisc|dst_output|ip_finish_output2"
                 r"|veth_forward|neigh_"),
    ("receive", r"netif_receive|napi|net_rx|backlog|gro|rps|veth_poll|veth_xdp|eth_type_trans"
                r"|softirq|ksoftirqd|ip_rcv_core"),
    ("processing", r"\bbr_|fdb|nf_|ip_|fib|route|dst_|iptable|ipv4|inet"),
]  # fmt: skip
# And those of daemons, by what their functions are called.
OWN = [
    (
        "receive",
        r"net_pcap|eth_pcap|rx_burst|netdev_dpdk_rxq_recv|RxQueue|receive|rte_pktmbuf_alloc",
    ),
    ("memory", r"memcpy|memmove|mempool|mbuf|malloc|cfree|pool"),
    (
        "transmit",
        r"net_null|eth_null_tx|tx_burst|netdev_dpdk_send|eth_send|output|send|flush|TxQueue",
    ),
    # Debian's Open vSwitch has no symbols: its own work cannot be told apart.
    ("switch", r"ovs-vswitchd"),
    ("parse", r"miniflow_extract|parse|mini_key|read_burst|flow_hash"),
    ("lookup", r"dpcls|emc|smc|cmap|classif|lookup|Classify|table|dp_netdev_input"),
    ("actions", r"action|execute|edit|rewrite|lanes|exec|Turn|Worker"),
    ("counters", r"counter|stats|ovs_mutex|account"),
]


def place(symbol, places):
    """What a function, with the file it is in, belongs to."""
    for name, pattern in places:
        if re.search(pattern, symbol):
            return name
    return "other"


# Samples of a core's clock in a second.
SAMPLES = 4000


def shares(lab, core, seconds, places):
    """Shares of a core's working time by what it worked on, from samples of its clock; and how many
    samples there were: an idle core has fewer."""
    file = f"{lab.directory}/perf.data"
    harness.run(
        ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES), "-C", str(core), "-o", file,
         "--", "sleep", str(seconds)],
        seconds=60,
    )  # fmt: skip
    text = harness.run(["perf", "script", "-i", file, "-F", "ip,sym,dso"], seconds=120).stdout
    counts = collections.Counter(
        place(line.strip().partition(" ")[2], places) for line in text.splitlines() if line.strip()
    )
    if os.environ.get("SLUICE_LAB_SYMBOLS"):
        others = collections.Counter(
            line.strip().partition(" ")[2]
            for line in text.splitlines()
            if line.strip() and place(line.strip().partition(" ")[2], places) == "other"
        )
        stderr(others.most_common(25))
    return shares_of(counts, places), sum(counts.values())


def shares_of(counts, places):
    """Shares by place of so many samples; what has none has a share of 0, not an unknown one."""
    total = max(sum(counts.values()), 1)
    names = [name for name, _ in places] + ["other"]
    return {name: 100 * counts.get(name, 0) / total for name in names}


def with_idle(found, samples, seconds):
    """Shares of all of a core's time, of shares of the time in which it worked."""
    working = min(samples / (SAMPLES * seconds), 1)
    spent = {name: share * working for name, share in found.items()}
    return spent | {"idle": spent.get("idle", 0) + 100 * (1 - working)}


class KernelPath:
    """The kernel's bridge or IP forwarding between two veth pairs, fed as fast as core 0 can."""

    def __init__(self, lab, kind, number):
        self.lab, self.kind = lab, kind
        self.middle = lab.namespace(f"{kind}{number}").quiet()
        self.hosts = [lab.namespace(f"{kind}{number}{side}").quiet() for side in "ab"]
        for at, host in enumerate(self.hosts):
            self.middle.run(
                ["ip", "link", "add", f"p{at}", "type", "veth", "peer", "name", "eth0", "netns",
                 host.name]
            )  # fmt: skip
            host.run("ip link set eth0 up")
            host.run(f"ip addr add 10.{at}.0.2/24 dev eth0")
            self.middle.run(f"ip link set p{at} up")
            # So that both ends' frames go through NAPI, as a card's do.
            self.middle.run(["ethtool", "-K", f"p{at}", "gro", "on"])
        self.middle.run(
            ["ip", "netns", "exec", self.middle.name, "sh", "-c",
             f"echo {1 << WORKER_CORE:x} > /sys/class/net/p0/queues/rx-0/rps_cpus"]
        )  # fmt: skip
        if kind == "linux-bridge":
            self.middle.run("ip link add br0 type bridge")
            self.middle.run("ip link set br0 up")
            for at in (0, 1):
                self.middle.run(f"ip link set p{at} master br0")
            self.middle.run(["bridge", "fdb", "add", PEER, "dev", "p1", "master", "static"])
            self.target = PEER
        else:
            self.middle.run(
                "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 "
                "net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.p0.rp_filter=0 "
                "net.ipv4.conf.p0.send_redirects=0 net.ipv4.conf.all.send_redirects=0"
            )
            for at in (0, 1):
                self.middle.run(f"ip addr add 10.{at}.0.1/24 dev p{at}")
            # live_frames sends to this address, whatever the frames say: the route decides.
            self.middle.run("ip route add default via 10.1.0.2")
            self.middle.run(f"ip neigh add 10.1.0.2 lladdr {PEER} dev p1")
            self.target = json.loads(self.middle.run("ip -j link show p0").stdout)[0]["address"]
        self.sender = self.hosts[0].start(
            ["taskset", "-c", str(OTHER_CORE), sys.executable, SENDER, "eth0", self.target],
            "sender.out",
        )

    def arrived(self):
        """Packets at the other end."""
        text = self.hosts[1].run("ip -j -s link show eth0").stdout
        return json.loads(text)[0]["stats64"]["rx"]["packets"]

    def rate(self, seconds):
        """Packets a second that arrive."""
        before, began = self.arrived(), time.monotonic()
        time.sleep(seconds)
        return (self.arrived() - before) / (time.monotonic() - began)

    def close(self):
        """Ends the traffic."""
        self.sender.terminate()
        self.sender.wait(20)


def kernel_paths(lab, options):
    """The kernel's two ways, running."""
    for kind in ("linux-bridge", "linux-ip"):
        if not wanted(options, kind):
            continue
        options.number = getattr(options, "number", 0) + 1
        path = KernelPath(lab, kind, options.number)
        try:
            harness.wait_for("packets arrive", lambda path=path: path.arrived() > 1000, 30)
            yield kind, path
        except harness.Failure as failure:
            emit(kind, {}, missing=failure)
        finally:
            path.close()


def b7(lab, options):
    """Where the core's time goes by load."""
    loads = by_mode(options, [20, 100], [10, 50, 100, 150])
    for subject, _, hosts in kernel_peers(lab, options):
        places = PLACES if subject != "sluice" else PLACES[:1] + OWN + PLACES[1:]
        for load in loads:
            sender = hosts.send(options.seconds + 1.5, stream(load * 1000, 60))
            time.sleep(0.4)
            found, samples = shares(lab, WORKER_CORE, options.seconds, places)
            result(sender)
            found = with_idle(found, samples, options.seconds)
            emit(subject, {"load": load}, found | {"samples": samples})


def b8(lab, options):
    """Cycles of a packet by what they are spent on, where the core has nothing else to do."""
    clock = 1e9 * cycles_per_ns()
    for subject, path in kernel_paths(lab, options):
        rate = path.rate(options.seconds)
        found, _ = shares(lab, WORKER_CORE, options.seconds, PLACES)
        rate = (rate + path.rate(options.seconds)) / 2
        by_stage(subject, found, clock / rate, rate)
    for subject, switch in forwarding(lab, options):
        stages = None
        if subject == "sluice":
            stages = own_stages(switch, options.seconds, clock)
        rate = switch.rate(options.seconds) * 1e6
        if stages:
            emit(subject, {"measured": "by the switch"}, stages)
        found, _ = shares(lab, WORKER_CORE, options.seconds, OWN)
        by_stage(subject, found, clock / rate, rate)


def by_stage(subject, found, cycles, rate):
    """Prints shares of a core as cycles of a packet."""
    figures = {name: share / 100 * cycles for name, share in found.items()}
    total = sum(figures.values())
    figures["ends"] = figures["receive"] + figures["transmit"]
    emit(
        subject,
        {"measured": "by samples"},
        figures | {"total": total, "rate": rate / 1e6},
    )


def own_stages(switch, seconds, clock):
    """Cycles of a packet by stage, as Sluice counts them itself, and its rate in Mpps meanwhile;
    None where it does not. `clock`: cycles of a second."""
    if switch.appctl("sluice/stages", "on", ok=False).returncode:
        return None
    switch.appctl("sluice/stages", "clear")
    rate = switch.rate(seconds)
    text = switch.appctl("sluice/stages", "show", "--json")
    switch.appctl("sluice/stages", "off")
    return stages_of(json.loads(text), rate, clock)


# Names of Sluice's stages where the paper's are others.
PAPERS_NAMES = {"send": "transmit"}
KNOWN = ("receive", "transmit", "memory", "parse", "lookup", "actions")


def stages_of(told, rate, clock):
    """The figures of `sluice/stages show --json`, of a switch that forwards `rate` Mpps on a core
    with so many cycles a second: as many as all packets of a second together should have."""
    total = told["total"]
    packets = max(total["packets"], 1)
    figures = collections.Counter()
    for stage in total["stages"]:
        name = PAPERS_NAMES.get(stage["name"], stage["name"])
        figures[name if name in KNOWN else "other"] += stage["cycles"] / packets
    each = sum(stage["cycles"] for stage in total["stages"]) / packets
    return dict(figures) | {
        "total": each,
        "ends": figures["receive"] + figures["transmit"],
        "rate": rate,
        "identity": 100 * (each * rate * 1e6 / clock - 1),
    }


def b9(lab, options):
    """What looking costs: the rate with and without profiling."""
    for subject, switch in forwarding(lab, options):
        emit(subject, {"looked": "not at all"}, {"rate": switch.rate(options.seconds)})
        file = f"{lab.directory}/perf.data"
        perf = subprocess.Popen(
            ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-C", str(WORKER_CORE), "-o",
             file, "--", "sleep", str(options.seconds + 1)]
        )  # fmt: skip
        time.sleep(0.3)
        emit(subject, {"looked": "by perf, 4 kHz"}, {"rate": switch.rate(options.seconds)})
        perf.wait(30)
        if subject == "sluice" and not switch.appctl("sluice/stages", "on", ok=False).returncode:
            emit(subject, {"looked": "by stages"}, {"rate": switch.rate(options.seconds)})
            switch.appctl("sluice/stages", "off")


def b10(lab, options):
    """How far the same figure spreads: from start to start, each of which is a run; and from window
    to window of one start, which have in common what a start decides (where memory lies)."""
    starts = by_mode(options, 1, 3, 5)
    windows = by_mode(options, 3, 10, 30)
    for _ in range(starts):
        if wanted(options, "testpmd"):
            emit("testpmd", {"path": "memory"}, {"rate": limit(lab, capture(lab), options.seconds)})
        for subject, switch in forwarding(lab, options):
            rates = [rate_of(switch.count(options.seconds)) for _ in range(windows)]
            emit(subject, {"path": "memory"}, start_of(rates))


def start_of(rates):
    """The figures of one start, of the rates of its windows: their median, and their standard
    deviation in percent of it."""
    middle = statistics.median(rates)
    return {"rate": middle, "within": 100 * statistics.stdev(rates) / middle}


# Frames of a capture of flows from rules.
FRAMES = 20_000
# The rules of the paper's attack: what is denied differs from all of them.
ALLOWED = [
    "priority=3,tcp,tp_dst=80,actions=output:{out}",
    "priority=2,tcp,nw_src=10.0.0.1,actions=output:{out}",
    "priority=1,tcp,tp_src=4444,actions=output:{out}",
    "priority=0,actions=output:{out}",
]


def generated(lab, options, name, rules, *words):
    """A file of frames of flows that `sluice gen` makes from these rules."""
    path = f"{lab.directory}/{name}"
    with open(f"{path}.rules", "w", encoding="ascii") as file:
        file.write(rules)
    # In a tenth of a second.
    harness.run(
        [command_of(options.daemon or switchd()), "gen", "--to", f"file:{path}.pcap"]
        + ["--rules", f"{path}.rules", "--size", "60", "--pps", str(10 * FRAMES)]
        + ["--seconds", "0.1", "--warm-up", "0", "--drain", "0", "--no-calibration", *words],
        seconds=60,
    )
    return f"{path}.pcap"


def under_rules(lab, options, at, rules, pcap):
    """The rate of each daemon with these rules and frames."""
    for subject, command in daemons(options).items():
        try:
            with contender(lab, subject, command) as switch:
                switch.sinks()
                switch.rules_from(rules)
                switch.source(pcap)
                settled(switch)
                emit(subject, at, {"rate": switch.rate(options.seconds)})
        except (harness.Failure, OSError) as failure:
            stderr(f"{subject}: {failure}")
            emit(subject, at, missing=failure)


def e1(lab, options):
    """Forwarding by sets of rules of three kinds, a flow for each rule and some that meet none."""
    sluice = command_of(options.daemon or switchd())
    for kind in by_mode(options, ["acl", "fw"], ["acl", "fw", "ipc"]):
        for count in by_mode(options, [1000], [100, 1000, 5000]):
            made = [sluice, "gen", "rules", "--kind", kind, "--count", str(count)]
            text = harness.run(made).stdout
            rules = harness.run([*made, "--openflow", "output:{out}"]).stdout.splitlines()
            flows = ["--flows", str(count + count // 9), "--miss", "0.1"]
            pcap = generated(lab, options, f"{kind}-{count}", text, *flows)
            rules.append("priority=0,actions=output:{out}")
            under_rules(lab, options, {"kind": kind, "rules": count}, rules, pcap)


def e2(lab, options):
    """A tuple-space explosion of so many flows."""
    text = "\n".join(ALLOWED) + "\n"
    for flows in by_mode(options, [1, 8192], [1, 16, 128, 1024, 8192]):
        pcap = generated(
            lab, options, f"explosion-{flows}", text, "--explode", "--flows", str(flows)
        )
        under_rules(lab, options, {"flows": flows}, ALLOWED, pcap)


EXPERIMENTS = {
    function.__name__.upper(): function
    for function in (a3, a7, a9, a10, a12, b3, b5, b7, b8, b9, b10, e1, e2)
}


# Experiments whose figures are rates of packets: a short window is as good as a long one.
RATES = ("A9", "A12", "B3", "B5", "B9", "B10", "E1", "E2")


def main():
    """Runs one experiment."""
    options = words_of(__doc__, EXPERIMENTS).parse_args()
    least = 0.3 if options.experiment in RATES else 1
    with_traffic(options, EXPERIMENTS, PAGES, least)


if __name__ == "__main__":
    sys.exit(main())
