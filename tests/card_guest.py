"""A QEMU guest in which the daemon itself runs, on emulated network cards that DPDK's PCI drivers
drive: Debian's standard kernel (made available by scripts/setup), vfio behind an emulated IOMMU
(that kernel has no vfio without one), and an initramfs of the host's binaries. Its serial line has
a shell, as other guests' (guest.py)."""

import importlib.machinery
import importlib.util
import json
import os
import shutil
import socket
import subprocess

from guest import Guest
from harness import PATIENCE, ROOT, SCHEMA, Failure, Skip, switchd_command

IMAGES = os.path.join(ROOT, ".build/card-guest")
TOOLS = ["ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl"]

# Two processors are the workers', which poll; everything else shares the third.
INIT = """#!/bin/sh
export PATH=/bin HOME=/ PS1='' PS2=''
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/hugepages /dev/shm /run/openvswitch /var/log/openvswitch /etc/openvswitch /var/run
mount -t hugetlbfs none /dev/hugepages
mount -t tmpfs none /dev/shm
for module in irqbypass vfio vfio_virqfd vfio_iommu_type1 vfio-pci-core vfio-pci tun af_packet; do
  [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko || echo "no module $module"
done
for device in /sys/bus/pci/devices/*; do
  case $(cat $device/class) in
    0x0200*)
      echo vfio-pci >$device/driver_override
      echo ${device##*/} >/sys/bus/pci/drivers_probe
      echo "card ${device##*/} $(cat $device/vendor):$(cat $device/device)";;
  esac
done
ip link set lo up
export OVS_RUNDIR=/run/openvswitch OVS_LOGDIR=/var/log/openvswitch OVS_SYSCONFDIR=/etc
ovsdb-tool create /etc/openvswitch/conf.db /vswitch.ovsschema
taskset 1 ovsdb-server /etc/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock \\
  --detach --no-chdir --pidfile -vconsole:off --log-file=/var/log/openvswitch/ovsdb-server.log
ovs-vsctl --no-wait init
ovs-vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true \\
  other_config:pmd-cpu-mask=6 other_config:dpdk-lcore-mask=1
sluiced unix:/run/openvswitch/db.sock --pidfile --no-chdir -vconsole:off \\
  --log-file=/var/log/openvswitch/ovs-vswitchd.log >/sluiced.out 2>&1 &
stty -F /dev/ttyS0 -echo -onlcr
while :; do
  echo guest-ready
  setsid sh </dev/ttyS0 >/dev/ttyS0 2>&1
done
"""


def image_writer():
    """scripts/guest-image as a module."""
    path = os.path.join(ROOT, "scripts/guest-image")
    loader = importlib.machinery.SourceFileLoader("guest_image", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("guest_image", loader))
    loader.exec_module(module)
    return module


def build_image(output, switchd):
    """Writes the initramfs: the daemon, Open vSwitch's tools, busybox, kernel modules."""
    image = image_writer()
    stripped = output + ".sluiced"
    subprocess.run(["strip", "-o", stripped, switchd], check=True, timeout=60)
    programs = {"sluiced": stripped}
    programs.update({tool: shutil.which(tool) for tool in TOOLS})
    files = {"init": (0o100755, INIT.encode()), "vswitch.ovsschema": (0o100644, image.read(SCHEMA))}
    for name, path in programs.items():
        if path is None:
            raise Skip(f"no {name}: run scripts/setup")
        files["bin/" + name] = (0o100755, image.read(path))
        for library in image.libraries(path):
            files.setdefault(library.lstrip("/"), (0o100755, image.read(library)))
    os.unlink(stripped)
    files["bin/busybox"] = (0o100755, image.read("/bin/busybox"))
    for applet in [*image.APPLETS, "taskset", "tee", "timeout"]:
        files["bin/" + applet] = (0o120777, b"busybox")
    modules = os.path.join(IMAGES, "modules")
    for name in sorted(os.listdir(modules)):
        files["modules/" + name] = (0o100644, image.read(os.path.join(modules, name)))
    image.write(output, files)


class CardGuest(Guest):
    """A guest with cards, which runs the daemon under test.

    `cards` are arguments of QEMU. They are attached when QEMU runs in the namespace."""

    def __init__(self, lab, name, namespace, cards, memory=1024, huge_pages=192):
        for file in ("vmlinuz", "modules"):
            if not os.path.exists(os.path.join(IMAGES, file)):
                raise Skip(f"no {IMAGES}/{file}: run scripts/setup")
        initramfs = os.path.join(lab.directory, f"{name}.initramfs")
        build_image(initramfs, switchd_command()[0])
        words = ["console=ttyS0", "quiet", "panic=1", "mitigations=off", "tsc=unstable"]
        words += ["intel_iommu=on", f"hugepages={huge_pages}"]
        self.qmp_path = os.path.join(lab.directory, f"{name}.qmp")
        self.boot(
            lab,
            name,
            (f"{IMAGES}/vmlinuz", initramfs),
            words,
            [
                "-machine",
                "q35,accel=tcg,kernel-irqchip=off",
                # DPDK gives the cards addresses of 47 bits.
                "-device",
                "intel-iommu,aw-bits=48",
                "-smp",
                "3",
                "-m",
                str(memory),
                "-qmp",
                f"unix:{self.qmp_path},server=on,wait=off",
                *cards,
            ],
            start=namespace.start,
        )

    def appctl(self, *arguments, ok=True, seconds=30):
        """What ovs-appctl in the guest prints."""
        words = " ".join(f"'{word}'" for word in arguments)
        return self.run(f"ovs-appctl -t ovs-vswitchd {words} 2>&1", seconds, ok)

    def vsctl(self, *arguments, ok=True, seconds=60):
        """What ovs-vsctl in the guest prints."""
        words = " ".join(f"'{word}'" for word in arguments)
        return self.run(f"ovs-vsctl {words} 2>&1", seconds, ok)

    def get(self, interface, column):
        """A column of an interface."""
        return self.vsctl("get", "Interface", interface, column).strip('"')

    def qmp(self, command, **arguments):
        """Sends QEMU's monitor a command."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(20 * PATIENCE)
            monitor.connect(self.qmp_path)
            lines = monitor.makefile("rw")
            lines.readline()
            for asked, given in (("qmp_capabilities", {}), (command, arguments)):
                lines.write(json.dumps({"execute": asked, "arguments": given}) + "\n")
                lines.flush()
                answer = {}
                while not {"return", "error"} & answer.keys():
                    answer = json.loads(lines.readline())
            if "error" in answer:
                raise Failure(f"QEMU refuses {command}: {answer['error']}")
            return answer["return"]
