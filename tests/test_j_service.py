"""The process and its service: panics, the monitor, long turns."""
import json
import os
import re
import signal
import subprocess
import time

from harness import Skip, check, equal, test, wait_for


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
    """A panic in any task or thread of the control side ends the daemon as a crash does; one in a worker costs that worker's packets."""
    switch = ours(lab, options=["--enable-dummy"])
    switch.bridge()
    switch.appctl("sluice/panic", "worker")
    switch.logged("failed \\(1 times so far")
    switch.port("d0", "type=dummy")
    switch.appctl("netdev-dummy/receive", "d0", "in_port(1),eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),eth_type(0x1234)")
    wait_for("the worker goes on", lambda: switch.counters()["d0"]["rx"]["pkts"] == 1)
    for place in ("command", "task", "shared-task", "blocking", "thread", "log"):
        switch.appctl("sluice/panic", place, ok=False)
        try:
            code = switch.process.wait(20)
        except subprocess.TimeoutExpired:
            code = None
        equal(code, -signal.SIGABRT, f"how the daemon ended after a panic in a {place}")
        if place != "log":
            check("as sluice/panic has asked" in switch.log(), "the log does not say why:", switch.tail())
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
    """The monitor starts another daemon after a panic in a task and after SIGKILL, but not when that follows a SIGTERM which was not obeyed."""
    switch = monitored(lab)
    switch.expected += ["died, killed"]
    first = pid_of(switch)
    switch.appctl("sluice/panic", "task", ok=False)
    is_new(switch, first)
    second = pid_of(switch)
    os.kill(second, signal.SIGKILL)
    is_new(switch, second)
    third = pid_of(switch)
    wait_for("the bridge is back", lambda: switch.appctl("fdb/show", "br0", ok=False).returncode == 0)
    # A daemon that hangs: start scripts kill it when it does not end, and want no other.
    stalled = subprocess.Popen(["ovs-appctl", "sluice/stall", "command", "60000"], env=switch.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("the control thread hangs", lambda: subprocess.run(["ovs-appctl", "-T", "1", "version"], env=switch.env, capture_output=True, check=False).returncode != 0)
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
    """The longest turn of control and of each worker, with what it was, in sluice/stats, coverage/show, metrics and the log, until they are cleared."""
    switch = ours(lab, options=["--enable-dummy", "-vdpif_netdev:file:dbg"])
    switch.bridge()
    switch.appctl("sluice/stall", "task", "1500")
    switch.appctl("sluice/stall", "worker", "1500")
    switch.logged(r"timeval\|WARN\|control: \d+ turns of 50 ms or more; the longest took \d{4,}\.\d ms \(\d+\.\d of them without a processor\)")
    switch.logged(r"dpif_netdev\|DBG\|pmd-any/id:\d+: \d+ turns of 10 ms or more; the longest took \d{4,}\.\d ms .*, mostly a command of control")
    now = stats(switch)
    control, worker = now["control"], now["workers"][0]
    check(control["longest_turn_us"] >= 1_500_000 and control["longest_turn_away_us"] >= 1_000_000 and control["long_turns"] >= 1, "control:", control)
    check(worker["longest_turn_us"] >= 1_500_000 and worker["longest_turn_away_us"] >= 1_000_000 and worker["long_turns"] >= 1, "worker:", worker)
    equal(worker["longest_turn_doing"], "a command of control", "what the worker was doing")
    coverage = switch.appctl("coverage/show")
    for name in ("control", worker["name"]):
        found = re.search(rf"^longest_turn_us_{re.escape(name)} .*total: (\d+)$", coverage, re.M)
        check(found and int(found[1]) >= 1_500_000, f"longest_turn_us_{name} in coverage/show:", coverage)
    metrics = switch.appctl("sluice/metrics")
    for name in ("sluice_control_longest_turn_seconds", "sluice_worker_longest_turn_seconds"):
        found = re.search(rf"^{name}{{.*}} ([\d.]+)$", metrics, re.M)
        check(found and float(found[1]) >= 1.5, f"{name} in metrics:", metrics)
    # A command's own name.
    switch.appctl("sluice/stall", "command", "2500")
    equal(stats(switch)["control"]["longest_turn_doing"], "control socket: sluice/stall", "what control was doing")
    switch.appctl("sluice/turns-clear")
    now = stats(switch)
    check(now["control"]["longest_turn_us"] < 1_500_000 and now["workers"][0]["longest_turn_us"] < 1_500_000, "after sluice/turns-clear:", now["control"], now["workers"])
