"""Reserves huge pages for the time of a test and gives them back whatever happens.

Pages are the machine's: several runs may ask at the same time. So everybody adds its number to the
kernel's and takes the same number away afterwards, under one lock. That is done by a small process
which waits for the end of a pipe: it gives the pages back also when the runner is killed. A test
that has reserved none sees none.

    python3 tests/hugepages.py COUNT COMMAND...    runs a command with that many more pages
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"
LOCK = "/run/lock/sluice-hugepages"


class Shortage(Exception):
    """The kernel could not give the pages."""


def read(name):
    """A figure of the kernel's pool of huge pages."""
    with open(f"{POOL}/{name}", encoding="ascii") as file:
        return int(file.read())


def write(path, text):
    """Writes to a file of the kernel; False where it takes no such thing."""
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return True
    except OSError:
        return False


def change(difference):
    """Adds pages to the pool (or takes some away) and returns by how many it really grew.

    Where memory is in too many pieces, as after a build that has filled it with files, the kernel
    puts it together, and if that is not enough forgets what it remembers of files."""
    with open(LOCK, "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read("nr_hugepages")
        wanted = max(0, before + difference)
        for attempt, make_room in enumerate(
            (
                (),
                ("compact_memory",),
                ("drop_caches", "compact_memory"),
                ("drop_caches", "compact_memory"),
            )
        ):
            # What has just ended gives its memory back within moments.
            time.sleep(attempt)
            for name in make_room:
                write(f"/proc/sys/vm/{name}", "1")
            write(f"{POOL}/nr_hugepages", str(wanted))
            if read("nr_hugepages") >= wanted:
                break
        return read("nr_hugepages") - before


def keeper(count):
    """Reserves pages, says so, and gives them back when its input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    got = change(count)
    if got < count:
        change(-got)
        got = 0
    os.write(1, f"{got}\n".encode())
    while os.read(0, 1):
        pass
    if got:
        change(-got)


def hide():
    """Keeps processes of this mount namespace from seeing that there are any.

    What is free now may be what another run has reserved, or gone when it is wanted."""
    if os.path.isdir(os.path.dirname(POOL)):
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", os.path.dirname(POOL)], check=True
        )


@contextlib.contextmanager
def reserved(count):
    """While it lasts, `count` more pages of 2 MB are in the pool."""
    if not count:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--keeper", str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        if int(process.stdout.readline() or 0) < count:
            with open("/proc/buddyinfo", encoding="ascii") as file:
                raise Shortage(
                    f"the kernel has no memory for {count} huge pages of 2 MB in one piece, not "
                    f"even after it was asked to make room; free pieces:\n{file.read()}"
                )
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--keeper":
        keeper(int(sys.argv[2]))
    elif len(sys.argv) > 2:
        with reserved(int(sys.argv[1])):
            sys.exit(subprocess.call(sys.argv[2:]))
    else:
        sys.exit(__doc__)
