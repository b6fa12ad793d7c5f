"""Packets into tunnels, out of them, and from one into another, for bench/forwarding.py: VXLAN,
Geneve as OVN uses it, and STT, whose frames are one segment each here.

Two bridges: br0 with the tunnels, and br-phy, the underlay, whose local port has the host's
address. A packet of 64 bytes that goes in by br0 leaves by br-phy with 50 bytes more (VXLAN; with
72 by STT); what comes by br-phy leaves by br0. In between it passes both bridges' rules and no
device, in Sluice as in Open vSwitch.
"""

import dataclasses
import socket
import struct

from frames import DESTINATION_MAC, FRAMES, SOURCE_MAC, TCP, UDP, flow, frame

HOST, GATEWAY, REMOTES = "172.16.0.1", "172.16.0.2", "172.17"
HOST_MAC, GATEWAY_MAC = "02:00:00:00:10:01", "02:00:00:00:10:02"
VXLAN = 4789
# OpenFlow numbers of tunnels; those of other ports are below.
FIRST = 100
GENEVE = 6081
STT = 7471
# OVN's option: logical input port (15 bits) and output port (16 bits).
OPTION = "{class=0x102,type=0x80,len=4}->tun_metadata0"
# As many packets in a file as make every flow and every tunnel be met.
LEAST = 4096


def remote(number):
    """The other end of a tunnel."""
    return f"{REMOTES}.{number >> 8}.{number & 255}"


def checksum(data):
    """The Internet's checksum of an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF ^ total


def flow_over_ipv6(number):
    """A frame of 64 bytes of flow `number`: UDP over IPv6."""
    source, destination = (
        socket.inet_pton(socket.AF_INET6, f"fd00::{host}:{number:x}") for host in (1, 2)
    )
    udp = struct.pack("!HHHH", 1024 + number % 60000, 80, 10, 0) + bytes(2)
    ip = struct.pack("!IHBB", 6 << 28, len(udp), UDP, 64) + source + destination
    return flow(number)[:12] + struct.pack("!H", 0x86DD) + ip + udp


def wrapped(inner, number, kind="vxlan"):
    """A frame as it comes by tunnel `number`, whose key is `number` + 1."""
    source, destination = (
        struct.unpack("!I", socket.inet_aton(address))[0] for address in (remote(number), HOST)
    )
    mac = [int(text.replace(":", ""), 16) for text in (GATEWAY_MAC, HOST_MAC)]
    port, sender = {"vxlan": VXLAN, "geneve": GENEVE, "stt": STT}[kind], 40000 + number % 5000
    if kind == "stt":
        # The sequence number is the length of all segments; the next one identifies the frame.
        payload = struct.pack("!BBBBHHQH", 0, 0, 0, 0, 0, 0, number + 1, 0) + inner
        said = struct.pack("!HHHHIBBH", sender, port, len(payload), 0, number, 0x50, 0x18, 0xFFFF)
        pseudo = struct.pack("!IIII", source, destination, TCP, 20 + len(payload))
        value = checksum(pseudo + said + struct.pack("!HH", 0, 0) + payload)
        payload = said + struct.pack("!HH", value, 0) + payload
    else:
        if kind == "geneve":
            option = struct.pack("!HBBI", 0x102, 0x80, 1, 7 << 16 | 3)
            payload = struct.pack("!BBHI", 2, 0x40, 0x6558, 1 << 8) + option + inner
        else:
            payload = struct.pack("!II", 8 << 24, (number + 1) << 8) + inner
        payload = struct.pack("!HHHH", sender, port, 8 + len(payload), 0) + payload
    protocol = TCP if kind == "stt" else UDP
    outer = bytearray(frame(source, destination, 0, 0, protocol, *mac)[:34])
    outer[16:18] = struct.pack("!H", 20 + len(payload))
    outer[24:26] = b"\0\0"
    outer[24:26] = struct.pack("!H", checksum(outer[14:34]))
    return bytes(outer) + payload


@dataclasses.dataclass
class Tunnels:
    """So many tunnels, and which way packets go: "in", "out" (also by the learning switch:
    "switch") or "through"."""

    count: int
    way: str
    kind: str = "vxlan"
    ipv6: bool = False

    @property
    def geneve(self):
        """Whether rules have to do with OVN's option."""
        return self.kind == "geneve"

    @property
    def is_ours_alone(self):
        """Whether Open vSwitch's userspace datapath has no such tunnels."""
        return self.kind == "stt"

    def frames(self, flows):
        """What comes in; flow and tunnel go together, as far as they can."""
        numbers = [number % flows for number in range(max(flows, LEAST, self.count))][:FRAMES]
        if self.way == "in":
            return [(flow_over_ipv6 if self.ipv6 else flow)(number) for number in numbers]
        if self.way == "switch":
            # A host behind each tunnel.
            inner = [
                flow(number)[:6]
                + (SOURCE_MAC + 0x10000 + number % self.count).to_bytes(6, "big")
                + flow(number)[12:]
                for number in numbers
            ]
        else:
            inner = [flow(number) for number in numbers]
        return [
            wrapped(bare, number % self.count, self.kind)
            for bare, number in zip(inner, numbers, strict=True)
        ]

    def build(self, switch, pcap):
        """Bridges, tunnels, rules and the ports that packets come and go by."""
        switch.bridge("br-phy", "fail_mode=secure", f'other_config:hwaddr="{HOST_MAC}"')
        switch.managements.append(f"{switch.directory}/br-phy.mgmt")
        for command in (
            ["addr", "add", f"{HOST}/24", "dev", "br-phy"],
            ["link", "set", "br-phy", "up"],
            ["route", "add", f"{REMOTES}.0.0/16", "via", GATEWAY, "dev", "br-phy"],
        ):
            switch.namespace.run(["ip", *command])
        comes, goes = (
            ("br0", "br-phy")
            if self.way == "in"
            else ("br-phy", "br-phy" if self.way == "through" else "br0")
        )
        words = []
        # Packets that go through come by the first half of the tunnels and leave by the second.
        total = self.count * 2 if self.way == "through" else self.count
        for number in range(total):
            words += [
                "--",
                "add-port",
                "br0",
                f"vx{number}",
                "--",
                "set",
                "Interface",
                f"vx{number}",
                f"type={self.kind}",
                f"options:remote_ip={remote(number)}",
                f"options:key={'flow' if self.geneve else number + 1}",
                f"ofport_request={FIRST + number}",
            ]
        switch.vsctl(*words[1:], seconds=120)
        switch.sinks(bridge=goes)
        wide = self.count - 1
        mask = f"0.0.{wide >> 8}.{wide & 255}"
        rules = []
        if self.geneve:
            switch.ofctl("add-tlv-map", switch.management, OPTION)
            rules = self.stages()
        if self.way == "switch":
            rules.append("actions=NORMAL")
            switch.learn({DESTINATION_MAC: "out"})
        for number in range(self.count if self.way != "switch" else 0):
            if self.geneve and self.way == "in":
                # As OVN's table of remote ports: where to, by which key and with which option.
                rules.append(
                    f"table=3,priority=10,reg15={number + 1},metadata=1,"
                    "actions=load:1->NXM_NX_TUN_ID[0..23],load:3->NXM_NX_TUN_METADATA0[0..15],"
                    "move:NXM_NX_REG14[0..14]->NXM_NX_TUN_METADATA0[16..30],"
                    f"output:{FIRST + number}"
                )
            elif self.geneve:
                rules.append(
                    f"priority=10,in_port={FIRST + number},"
                    "actions=move:NXM_NX_TUN_ID[0..23]->OXM_OF_METADATA[0..23],"
                    "move:NXM_NX_TUN_METADATA0[16..30]->NXM_NX_REG14[0..14],"
                    "move:NXM_NX_TUN_METADATA0[0..15]->NXM_NX_REG15[0..15],resubmit(,3)"
                )
            elif self.way == "in":
                low = f"0.0.{number >> 8}.{number & 255}"
                match = f"ip,nw_src={low}/{mask}" if self.count > 1 else "in_port=1"
                rules.append(f"priority=10,{match},actions=output:{FIRST + number}")
            else:
                action = (
                    "output:2" if self.way == "out" else f"output:{FIRST + self.count + number}"
                )
                rules.append(f"priority=10,in_port={FIRST + number},actions={action}")
        switch.rules_from(rules)
        under = {
            "in": ["in_port=LOCAL,actions=output:2"],
            "out": ["in_port=1,actions=LOCAL"],
            "switch": ["in_port=1,actions=LOCAL"],
            "through": ["in_port=1,actions=LOCAL", "in_port=LOCAL,actions=output:2"],
        }[self.way]
        switch.ofctl("add-flows", switch.managements[-1], "-", stdin="\n".join(under) + "\n")
        switch.appctl("tnl/neigh/set", "br-phy", GATEWAY, GATEWAY_MAC)
        switch.source(pcap, bridge=comes)

    def stages(self):
        """Rules around those of the tunnels, as in OVN: registers are set by the port a packet came
        by, then tables follow."""
        if self.way == "out":
            return [
                "table=3,priority=10,reg15=3,metadata=1,actions=resubmit(,4)",
                "table=4,priority=10,ip,metadata=1,reg14=7,actions=load:1->NXM_NX_REG10[0],"
                "resubmit(,5)",
                "table=5,priority=10,metadata=1,reg15=3,actions=output:2",
            ]
        wide = self.count - 1
        mask = f"0.0.{wide >> 8}.{wide & 255}"
        return [
            "priority=10,in_port=1,actions=load:1->OXM_OF_METADATA[],load:7->NXM_NX_REG14[],"
            "resubmit(,1)",
            "table=1,priority=10,metadata=1,reg14=7,actions=resubmit(,2)",
        ] + [
            f"table=2,priority=10,ip,metadata=1,nw_src=0.0.{number >> 8}.{number & 255}/{mask},"
            f"actions=load:{number + 1}->NXM_NX_REG15[],resubmit(,3)"
            for number in range(self.count)
        ]


def cases(case):
    """Every case by its name; `case` makes one of frames and tunnels."""
    result = {}
    for way, name in (
        ("in", "vxlan-in"),
        ("in", "vxlan-in6"),
        ("out", "vxlan-out"),
        ("through", "vxlan-through"),
        ("switch", "vxlan-switch"),
        ("in", "geneve-in"),
        ("out", "geneve-out"),
        ("in", "stt-in"),
        ("out", "stt-out"),
    ):
        kind, ipv6 = name.split("-")[0], name.endswith("6")
        # A learning switch with a few tunnels is a common use, too.
        counts = [(1, 1), (10000, 1), (10000, 1024)] + [(10000, 8)] * (way == "switch")
        for flows, tunnels in counts:
            if ipv6 and tunnels > 1:
                continue  # rules of many tunnels choose by IPv4 addresses

            def make(way=way, flows=flows, tunnels=tunnels, kind=kind, ipv6=ipv6):
                these = Tunnels(tunnels, way, kind, ipv6)
                return case(these.frames(flows), these)

            many = {1: "", 1024: "-1k"}.get(tunnels, f"-{tunnels}")
            result[f"{name}-{flows if flows < 1000 else '10k'}{many}"] = make
    return result
