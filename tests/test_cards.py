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
LOGS = "/var/log/openvswitch/ovs-vswitchd.log /sluiced.out"
OUTSIDE, PEER = "192.0.2.1", "192.0.2.2"


# The key of virtio-net's driver: the one of Microsoft's specification.
RSS_KEY = bytes.fromhex(
    "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
)


def entry_of(flow, entries):
    """The entry of the card's indirection table to which a flow's datagrams belong."""
    data = b"\xc0\0\2\x09" + b"\xc0\0\2\x0a" + struct.pack("!HH", 1000 + flow, 4000)
    key, total = int.from_bytes(RSS_KEY, "big"), 0
    for at in range(len(data) * 8):
        if data[at // 8] >> (7 - at % 8) & 1:
            total ^= key >> (len(RSS_KEY) * 8 - 32 - at) & 0xFFFFFFFF
    return total % entries


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


def entries_of(guest, port):
    """The queue and the packets of each entry of a card's indirection table."""
    lines = guest.appctl("sluice/steering-entries", port).splitlines()[1:]
    return [tuple(int(word) for word in line.split()[1:]) for line in lines]


def move_all(guest, port, count, queue):
    """Moves the first entries of a card's indirection table to a queue."""
    for first in range(0, count, 32):
        last = min(first + 31, count - 1)

        def moved(first=first, last=last):
            words = ["sluice/steering-move-entries", port, f"{first}-{last}", str(queue)]
            return "try again" not in guest.appctl(*words, ok=False)

        wait_for("earlier moves have ended", moved, 20)

    def there():
        return {queue for queue, _ in entries_of(guest, port)[:count]} == {queue}

    wait_for(f"{count} entries at queue {queue}", there, 20)


@test(timeout=240)
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

    # Which flow comes by which queue is told by the card's table, whose entries can be moved, and
    # keep their places when the device is stopped for a shorter MTU.
    table = entries_of(guest, "virtio")
    check(len(table) >= 64 and {queue for queue, _ in table} == {0, 1}, f"table: {table}")
    used = {entry_of(flow, len(table)) for flow in range(FLOWS)}
    guest.vsctl("set", "Open_vSwitch", ".", "other_config:sluice-steering=adaptive")
    before = entries_of(guest, "virtio")
    cards.send()
    counted = [
        now - then for (_, now), (_, then) in zip(entries_of(guest, "virtio"), before, strict=True)
    ]
    # Other packets, of ARP and neighbour discovery, are few.
    of_flows = sum(counted[entry] for entry in used)
    check(of_flows > 4 * (sum(counted) - of_flows), f"by entry: {counted}, used: {used}")
    guest.vsctl("set", "Open_vSwitch", ".", "other_config:sluice-steering=off")
    move_all(guest, "virtio", len(table), 0)
    come = cards.send()
    check(max(come) > FLOWS and min(come) == 0, f"frames by worker, by one queue only: {come}")
    guest.vsctl("set", "Interface", "virtio", "mtu_request=1450")
    becomes(lambda: guest.get("virtio", "mtu"), "1450", "MTU of virtio")
    outside.reaches(PEER)
    before = entries_of(guest, "virtio")
    check({queue for queue, _ in before} == {0}, f"table after a restart: {before}")
    come = cards.send()
    check(max(come) > FLOWS and min(come) == 0, f"frames by worker after a restart: {come}")
    move_all(guest, "virtio", len(table) // 2, 1)
    come = cards.send()
    check(min(come) > FLOWS, f"frames by worker, by both queues again: {come}")
    said = guest.appctl("sluice/steering")
    moved = re.search(r"card virtio: .* moved (\d+), of these .* refused 0; parked 0", said)
    least = len(table) + len(table) // 2
    check(moved and int(moved[1]) >= least, f"sluice/steering: {said}")

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
    # All of the log takes the serial line of an emulated machine half a minute.
    panics = guest.run(f"grep -i -A 20 panic {LOGS}", ok=False)
    equal(panics.strip(), "", "panics in the daemon's log")
