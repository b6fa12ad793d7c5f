"""dpdk-testpmd with virtio-user devices: DPDK's own traffic generator as the peer of vhost-user
ports."""

import os
import re
import select
import subprocess
import time

from harness import PATIENCE, Failure


class Testpmd:
    """One testpmd process whose ports are virtio-user devices that listen on the given sockets."""

    def __init__(
        self, lab, sockets, name="testpmd", options=(), devices=(), cores=("-l", "0,1"), before=()
    ):
        self.lab, self.name, self.text = lab, name, ""
        # Its output is read while it runs, so it must not be held back in a buffer.
        command = [
            *before,
            "stdbuf",
            "-o0",
            "dpdk-testpmd",
            *cores,
            "--no-pci",
            "--in-memory",
            "--single-file-segments",
            "-m",
            "256",
            f"--file-prefix={name}{os.getpid()}",
        ]
        for number, path in enumerate(sockets):
            command += ["--vdev", f"net_virtio_user{number},path={path},queues=1,server=1"]
        for device in devices:
            command += ["--vdev", device]
        command += ["--", "-i", "--no-mlockall", "--total-num-mbufs=8192", *options]
        self.process = lab.start(
            command, f"{name}.err", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def wait_ready(self):
        """Waits until testpmd takes commands, which it does once the switch has connected to every
        socket."""
        self.wait("testpmd> ", 60)
        return self

    def wait(self, pattern, seconds=30):
        """Reads until the pattern appears; returns the text so far."""
        end = time.monotonic() + seconds * PATIENCE
        while True:
            found = re.search(pattern, self.text)
            if found:
                text, self.text = self.text[: found.end()], self.text[found.end() :]
                return text
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failure(
                    f"{self.name}: waited {seconds:g} s in vain for /{pattern}/; it said:\n"
                    f"{self.text[-2000:]}"
                )
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise Failure(
                    f"{self.name} ended with {self.process.wait(10)}:\n{self.text[-2000:]}"
                )
            self.text += data.decode(errors="replace")

    def command(self, text, seconds=30):
        """Gives a command and returns what it printed."""
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()
        return self.wait("testpmd> ", seconds)

    def forward(self, mode, first=0):
        """Starts forwarding in a mode; sends so many bursts first, which then circulate."""
        self.command(f"set fwd {mode}")
        self.command(f"start tx_first {first}" if first else "start")

    def stop(self):
        """Stops forwarding."""
        self.command("stop")

    def counters(self):
        """Each port's packets since the start: [(received, sent), ...]."""
        text = self.command("show port stats all")
        pairs = re.findall(r"RX-packets:\s+(\d+).*?TX-packets:\s+(\d+)", text, re.S)
        return [(int(received), int(sent)) for received, sent in pairs]

    def settle(self):
        """Receives what is still in the rings: until a second brings nothing more.

        Returns the counters."""
        self.forward("rxonly")
        before, end = self.counters(), time.monotonic() + 20 * PATIENCE
        while True:
            time.sleep(0.5)
            now = self.counters()
            if now == before:
                break
            before = now
            if time.monotonic() > end:
                raise Failure(f"{self.name}: packets keep arriving: {now}")
        self.stop()
        return self.counters()

    def quit(self):
        """Ends testpmd."""
        self.process.stdin.write(b"quit\n")
        self.process.stdin.flush()
        try:
            self.process.wait(20 * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} does not end") from None
