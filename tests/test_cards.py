"""Real PCI drivers: the daemon in a guest of QEMU, on emulated network cards (card_guest.py)."""

import os
import re
import struct
import time

from card_guest import CardGuest
from guest import Guest
from harness import Failure, becomes, check, equal, ethernet, test, wait_for

VIRTIO, VMXNET3 = "0000:01:00.0", "0000:02:00.0"
FLOWS = 64
OUTSIDE, PEER = "192.0.2.1", "192.0.2.2"


def datagram(flow, length=26):
    """A UDP datagram of one of many flows, to nobody, of so many bytes behind the IP header."""
    payload = struct.pack("!HHHH", 1000 + flow, 4000, length, 0) + bytes(length - 8)
    header = struct.pack(
        "!BBHHHBBH4s4s",
        *(0x45, 0, 20 + length, 0, 0, 64, 17, 0),
        *(b"\xc0\0\2\x09", b"\xc0\0\2\x0a"),
    )
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    header = header[:10] + struct.pack("!H", ~total & 0xFFFF) + header[12:]
    return ethernet("02:00:00:00:00:99", "02:00:00:00:00:01", 0x0800, header + payload)


class Cards:
    """A guest with two cards: virtio-net is driven by packets from outside, and behind vmxnet3 is
    another guest."""

    def __init__(self, lab):
        self.outside = lab.namespace("outside").quiet()
        self.outside.run("ip tuntap add dev tap0 mode tap multi_queue vnet_hdr")
        self.outside.run("ip link set tap0 up mtu 9000")
        self.outside.run(f"ip addr add {OUTSIDE}/24 dev tap0")
        here, there = (os.path.join(lab.directory, name) for name in ("here", "there"))

        def wire(name, one, other):
            ends = f"local.type=unix,local.path={one},remote.type=unix,remote.path={other}"
            return f"dgram,id={name},{ends}"

        self.peer = Guest(lab, "peer", None, ip=f"{PEER}/24", netdev=wire("net", there, here))
        self.guest = CardGuest(
            lab,
            "switch",
            self.outside,
            [
                # Cards in slots of their own can be taken out.
                "-device",
                "pcie-root-port,id=slot1,chassis=1,addr=3",
                "-device",
                "pcie-root-port,id=slot2,chassis=2,addr=4",
                "-netdev",
                "tap,id=tap,ifname=tap0,script=no,downscript=no,queues=2,vhost=off",
                "-device",
                "virtio-net-pci,netdev=tap,id=virtio,bus=slot1,mac=02:00:00:00:00:a1,romfile=,"
                "mq=on,rss=on,vectors=6,disable-legacy=on,iommu_platform=on,host_mtu=9000",
                "-netdev",
                wire("wire", here, there),
                "-device",
                "vmxnet3,netdev=wire,id=vmxnet3,bus=slot2,mac=02:00:00:00:00:a2,romfile=",
            ],
        )
        self.raw = self.outside.raw("tap0")

    def by_worker(self):
        """Packets that each worker has received."""
        text = self.guest.appctl("dpif-netdev/pmd-stats-show").split("main thread")[0]
        return [int(count) for count in re.findall(r"packets received: (\d+)", text)]

    def send(self, rounds=10, length=26):
        """Sends datagrams of all flows, and returns how many came by each worker's queues. Some
        may be lost in front of the card, for whose queues an emulated machine is slow."""
        before, sent, come = self.by_worker(), 0, []
        for _ in range(rounds):
            self.raw.send(*(datagram(flow, length) for flow in range(FLOWS)))
            sent += FLOWS
            time.sleep(0.05)

        def enough():
            come[:] = [now - then for now, then in zip(self.by_worker(), before)]
            return sum(come) >= sent // 2

        try:
            wait_for(f"half of {sent} frames come", enough, 20)
        except Failure as failure:
            stats = self.guest.appctl("dpif-netdev/pmd-stats-show")
            ports = self.guest.run("ovs-ofctl dump-ports br0")
            raise Failure(f"{failure}; by worker {come}:\n{stats}\n{ports}") from failure
        return come

    def add(self, port, address, *settings):
        """Adds a port with two receive queues on a card."""
        words = ["add-port", "br0", port, "--", "set", "Interface", port, "type=dpdk"]
        words += [f"options:dpdk-devargs={address}", "options:n_rxq=2", *settings]
        return self.guest.vsctl(*words)


@test(timeout=180)
def cards_driven_by_pci_drivers_in_a_guest(lab):
    """virtio-net and vmxnet3: link, queues, traffic to another guest's card, hash, MTU, removal."""
    cards = Cards(lab)
    guest, outside = cards.guest, cards.outside
    guest.wait_ready(90)

    guest.vsctl("add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev")
    cards.add("virtio", VIRTIO)
    cards.add("vmxnet3", VMXNET3)
    for port in ("virtio", "vmxnet3"):
        becomes(lambda port=port: guest.get(port, "link_state"), "up", f"link of {port}", 20)
        equal(guest.get(port, "status:driver_name"), f"net_{port}", "driver")
        equal(guest.get(port, "status:n_rxq"), "2", f"receive queues of {port}")
    served = guest.appctl("dpif-netdev/pmd-rxq-show").split("pmd thread")[1:]
    equal(len(served), 2, "workers")
    for text in served:
        for port in ("virtio", "vmxnet3"):
            equal(len(re.findall(rf"port: {port} ", text)), 1, f"queues of {port} in {text}")

    # Traffic between the virtio card and the vmxnet3 card, behind which is another guest.
    cards.peer.wait_ready(60)
    outside.reaches(PEER, 30)
    outside.ping(PEER, 5)
    outside.ping(PEER, 5, size=1400)

    # virtio-net spreads flows over its queues by a hash.
    guest.run("ovs-ofctl add-flow br0 priority=40000,udp,actions=drop")
    come = cards.send()
    check(len(come) == 2 and min(come) > FLOWS, f"frames of {FLOWS} flows by worker: {come}")

    # A shorter MTU, for which the device is stopped.
    guest.vsctl("set", "Interface", "virtio", "mtu_request=1400")
    guest.vsctl("set", "Interface", "vmxnet3", "mtu_request=1400")
    for port in ("virtio", "vmxnet3"):
        becomes(lambda port=port: guest.get(port, "mtu"), "1400", f"MTU of {port}")
    outside.reaches(PEER)
    come = cards.send()
    check(min(come) > FLOWS, f"frames by worker after a restart: {come}")

    # A card with a longer MTU takes longer frames.
    guest.vsctl("del-port", "br0", "virtio")
    cards.add("virtio", VIRTIO, "mtu_request=9000")
    equal(guest.get("virtio", "mtu"), "9000", "MTU of virtio")
    sizes = guest.get("virtio", "statistics:rx_bytes")
    cards.send(rounds=1, length=8000)
    wait_for(
        "long frames come",
        lambda: int(guest.get("virtio", "statistics:rx_bytes")) - int(sizes) >= FLOWS * 8000,
        20,
    )

    # A card that is taken out is released when its port is removed, and nothing else suffers.
    guest.qmp("device_del", id="vmxnet3")
    guest.vsctl("del-port", "br0", "vmxnet3")
    wait_for(
        "the card is gone",
        lambda: guest.run(f"ls -d /sys/bus/pci/devices/{VMXNET3}", ok=False) and guest.status,
        20,
    )
    said = cards.add("vmxnet3", VMXNET3)
    check("Cannot find device" in said, f"a card that is gone is added: {said}")
    cards.send(rounds=1)
    log = guest.log()
    check("panic" not in log, f"the daemon's log:\n{log[-3000:]}")
