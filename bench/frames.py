"""Frames that benchmarks replay: 64 bytes on a wire, of which the check sequence is not written."""

import random
import socket
import struct

SOURCE_MAC, DESTINATION_MAC = 0x020000000001, 0x020000000002
TCP, UDP = 6, 17
# A port of the daemons takes that many frames to replay; with more, its pool of buffers would not
# do.
FRAMES = 100000


def address_text(number):
    """10.0.0.1 for 0x0a000001."""
    return socket.inet_ntoa(struct.pack("!I", number & 0xFFFFFFFF))


def mac_text(number):
    """02:00:00:00:00:01 for 0x020000000001."""
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


def prefix_mask(bits):
    """The netmask of a prefix."""
    return 0xFFFFFFFF << (32 - bits) & 0xFFFFFFFF


def frame(
    source,
    destination,
    source_port,
    destination_port,
    protocol=UDP,
    source_mac=SOURCE_MAC,
    destination_mac=DESTINATION_MAC,
):
    """A UDP or TCP packet of one flow."""
    header = struct.pack("!BBHHHBBHII", 0x45, 0, 46, 0, 0, 64, protocol, 0, source, destination)
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    header = header[:10] + struct.pack("!H", 0xFFFF ^ total) + header[12:]
    if protocol == UDP:
        transport = struct.pack("!HHHH", source_port, destination_port, 26, 0)
    else:
        transport = struct.pack(
            "!HHIIBBHHH", source_port, destination_port, 0, 0, 0x50, 0x10, 8192, 0, 0
        )
    ethernet = destination_mac.to_bytes(6, "big") + source_mac.to_bytes(6, "big") + b"\x08\0"
    return (ethernet + header + transport).ljust(60, b"\0")


def flow(number):
    """A packet of flow `number`: source, destination and source port differ, the destination port
    is 80."""
    return frame(0x0A000000 + number, 0x0B000000 + number * 7919 % 65536, 1024 + number % 50000, 80)


def uniform(flows):
    """As many packets of each flow, shuffled."""
    order = [number % flows for number in range(max(flows, 4096))]
    random.Random(7).shuffle(order)
    return [flow(number) for number in order]


def zipf(flows):
    """Packets whose flows are as popular as Zipf's law with exponent 1 says."""
    weights = [1 / (rank + 1) for rank in range(flows)]
    return [flow(number) for number in random.Random(9).choices(range(flows), weights, k=FRAMES)]


def write_pcap(path, frames):
    """A capture file that net_pcap replays."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for data in frames:
            file.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)
