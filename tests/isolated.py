"""Processes in PID, mount and network namespaces of their own: when such a process ends, however it
ends, the kernel ends all it started and takes back every interface and namespace it made."""

import ctypes
import os
import signal
import subprocess
import sys
import traceback

import harness


def start(command, **options):
    """Starts a command as process 1 of new namespaces.

    It must call `as_first`. It ends when this process ends."""
    # The last two options matter: no process inside outlives this one, even when that is killed.
    # A session of its own keeps what is typed at the terminal (^C) for the caller.
    return subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--net", "--kill-child=KILL", *command],
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        start_new_session=True,
        **options,
    )


def die_with_parent():
    """PR_SET_PDEATHSIG: when the caller goes, this process goes, and with it the PID namespace
    below it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def as_first(work):
    """Runs `work`, which returns an exit code, in a child, and collects orphans as process 1 has
    to; returns the code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for mount in ("/run/netns", "/run/dpdk"):
                os.makedirs(mount, exist_ok=True)
                harness.run(["mount", "-t", "tmpfs", "tmpfs", mount])
            harness.run("mount --make-shared /run/netns")
            harness.run("ip link set lo up")
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)
