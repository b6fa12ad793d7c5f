"""A QEMU guest on a vhost-user port: Debian's cloud kernel and a busybox initramfs (made by
scripts/setup), emulated, so that it runs where there is no KVM. Its serial line has a shell,
through which run() gives commands."""

import os
import re
import socket
import time

from harness import PATIENCE, ROOT, Failure, Skip, wait_for

IMAGES = os.path.join(ROOT, ".build/guest")


class Guest:
    """A guest whose only network device is the vhost-user port with the socket `path` (QEMU
    listens, the switch connects), or the other end of QEMU's `netdev` with the id "net"."""

    def __init__(
        self,
        lab,
        name,
        path,
        ip=None,
        ip6=None,
        address="52:54:00:00:00:01",
        memory=160,
        mtu=None,
        device_options="",
        queues=1,
        netdev=None,
    ):
        words = ["console=ttyS0", "quiet", "panic=1", "mitigations=off", "tsc=unstable"]
        for key, value in (("ip", ip), ("ip6", ip6), ("mtu", mtu)):
            if value:
                words.append(f"sluice.{key}={value}")
        many = ",mq=on" if queues > 1 else ""
        if netdev is None:
            net = ["-chardev", f"socket,id=net,path={path},server=on,wait=off"]
            net += ["-netdev", f"vhost-user,id=net,chardev=net,queues={queues}"]
        else:
            net = ["-netdev", netdev]
        self.boot(
            lab,
            name,
            (f"{IMAGES}/vmlinuz", f"{IMAGES}/initramfs"),
            words,
            [
                # vhost-user needs memory that two processes can map; a memfd needs no huge pages.
                "-machine",
                "q35,accel=tcg,memory-backend=ram",
                "-object",
                f"memory-backend-memfd,id=ram,size={memory}M,share=on",
                "-smp",
                str(queues),
                "-m",
                str(memory),
                *net,
                # No MSI-X with one queue pair: QEMU 7.2 without KVM dies when a guest masks the
                # control queue's vector of a vhost device.
                "-device",
                (
                    f"virtio-net-pci,netdev=net,mac={address},romfile=,"
                    f"vectors={2 * queues + 2 if queues > 1 else 0}{many}{device_options}"
                ),
            ],
        )
        if path is not None:
            wait_for(f"QEMU of {name} listens", lambda: os.path.exists(path))

    def boot(self, lab, name, images, words, devices, start=None):
        """Starts QEMU with a kernel and an initramfs, words of the kernel's command line and
        arguments for the rest of the machine, and connects to its serial line. `start` starts it,
        else the lab does."""
        self.lab, self.name, self.marker = lab, name, 0
        kernel, initramfs = images
        for file in images:
            if not os.path.exists(file):
                raise Skip(f"no {file}: run scripts/setup")
        console = os.path.join(lab.directory, f"{name}.serial")
        self.process = (start or lab.start)(
            [
                "qemu-system-x86_64",
                "-cpu",
                "max",
                "-kernel",
                kernel,
                "-initrd",
                initramfs,
                "-append",
                " ".join(words),
                *devices,
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
                "-chardev",
                f"socket,id=serial,path={console},server=on,wait=off",
                "-serial",
                "chardev:serial",
            ],
            f"{name}.qemu",
        )
        wait_for(f"QEMU of {name} has its serial line", lambda: os.path.exists(console))
        self.serial = socket.socket(socket.AF_UNIX)
        self.serial.connect(console)
        self.transcript = ""

    def read(self, pattern, seconds):
        """Reads the serial line until the pattern matches; returns the match.

        What is after it stays unread."""
        end = time.monotonic() + seconds * PATIENCE
        while True:
            found = re.search(pattern, self.transcript, re.S)
            if found:
                self.transcript = self.transcript[found.end() :]
                return found
            if self.process.poll() is not None:
                raise Failure(f"QEMU of {self.name} ended with {self.process.returncode}")
            left = end - time.monotonic()
            if left <= 0:
                raise Failure(
                    f"{self.name}: waited {seconds:g} s in vain for /{pattern}/; the serial line "
                    f"said:\n{self.transcript[-2000:]}"
                )
            self.serial.settimeout(left)
            try:
                data = self.serial.recv(65536)
            except TimeoutError:
                continue
            if not data:
                raise Failure(
                    f"{self.name}: QEMU ended with {self.process.wait(10)}; its serial line "
                    f"said:\n{self.transcript[-3000:]}"
                )
            self.transcript = (self.transcript + data.decode(errors="replace"))[-1_000_000:]

    def wait_ready(self, seconds=60):
        """Waits until the guest's shell is there."""
        self.read(r"guest-ready", seconds)
        self.run("true", 20)
        return self

    def run(self, command, seconds=30, ok=True):
        """Runs a shell command in the guest; returns what it printed.

        With ok, fails the test when it fails."""
        self.marker += 1
        # The marker is written in two parts so that an echo of the command line cannot be taken for
        # its end.
        self.serial.sendall(f'{command}; echo "en"d-{self.marker}-$?-\n'.encode())
        found = self.read(rf"(.*?)end-{self.marker}-(\d+)-", seconds)
        text = found.group(1).replace("\r", "").strip()
        self.status = int(found.group(2))
        if ok and self.status:
            raise Failure(f"{self.name}: `{command}` ended with {self.status}:\n{text}")
        return text

    def ping(self, target, count=3, ok=True):
        """Pings; returns how many answers came. With ok, fails the test unless all came."""
        text = self.run(f"ping -c {count} -W 2 {target}", 15 + 3 * count, ok=False)
        found = re.search(r"(\d+) packets received", text)
        answers = int(found.group(1)) if found else 0
        if ok and answers != count:
            raise Failure(
                f"{self.name} pinged {target} {count} times and got {answers} answers:\n{text}"
            )
        return answers

    def reaches(self, target, seconds=15):
        """Waits until one ping is answered."""
        wait_for(f"{self.name} reaches {target}", lambda: self.ping(target, 1, ok=False), seconds)

    def checksum_errors(self):
        """Packets with a bad checksum that the guest's kernel counted."""
        text = self.run("cat /proc/net/snmp; grep Csum /proc/net/snmp6")
        errors, lines = {}, text.splitlines()
        for names, values in zip(lines, lines[1:]):
            if names.split(":")[0] == values.split(":")[0]:
                for name, value in zip(names.split()[1:], values.split()[1:]):
                    if "Csum" in name and value.isdigit() and int(value):
                        errors[names.split(":")[0] + name] = int(value)
        for line in lines:
            if re.match(r"\w*Csum\w*\s+[1-9]", line):
                errors[line.split()[0]] = int(line.split()[1])
        return errors
