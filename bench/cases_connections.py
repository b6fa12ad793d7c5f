"""Connection tracking: a stateful access list as OVN makes it (`ct`, then a match on the state),
and connections whose packets come in both directions.

`CASES` maps a name to a function that returns rules (lines for ovs-ofctl, with {in} and {out} for
ports) and frames to be replayed:

    ct-N       N established UDP connections
    ct-tcp-N   N TCP connections, each with a handshake, then data and acknowledgements
    ct-new-N   UDP packets, each of which ends its connection and begins the next, of N at a time
    ct-nat-N   N established UDP connections to one address, which is translated to a server's
    ct-none-N  the packets of ct-N, by the same rules without `ct`
    ct-hand-N  N TCP connections of four packets each: a handshake, then a reset, so that the next
               handshake begins a new one. Rules have cookies: 1 sees packets that begin one
    ct-hand-nat-N  the same to one address, which is translated to a server's
"""

import struct

from frames import FRAMES, TCP, address_text, flow, frame

ESTABLISHED = [
    "table=0,priority=10,ip,actions=ct(table=1)",
    "table=1,priority=10,ct_state=+trk+new,ip,actions=ct(commit),output:{out}",
    "table=1,priority=10,ct_state=+trk+est,ip,actions=output:{out}",
]
NEW = ["table=0,priority=10,ip,actions=ct(commit,force,table=1)", *ESTABLISHED[1:]]
SERVER = 0x0AC80001, 8080
NAT = [
    "table=0,priority=10,ip,actions=ct(table=1,nat)",
    "table=1,priority=10,ct_state=+trk+new,ip,"
    f"actions=ct(commit,nat(dst={address_text(SERVER[0])}:{SERVER[1]})),output:{{out}}",
    "table=1,priority=10,ct_state=+trk+est,ip,actions=output:{out}",
]
NONE = [
    "table=0,priority=10,ip,actions=resubmit(,1)",
    "table=1,priority=10,udp,tp_dst=80,actions=output:{out}",
    "table=1,priority=10,udp,tp_src=80,actions=output:{out}",
]
# Packets of a connection of ct-hand.
HAND = 4
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16


def ends(number):
    """Client and server of connection `number`: addresses and ports."""
    client = 0x0A000000 + number, 1024 + number % 50000
    return client, (0x0B000000 + number * 7919 % 65536, 80)


def reply(number):
    """A packet against the direction of flow `number`."""
    client, server = ends(number)
    return frame(server[0], client[0], server[1], client[1])


def servers_reply(number):
    """The reply of the server to which flow `number` is translated."""
    client, _ = ends(number)
    return frame(SERVER[0], client[0], SERVER[1], client[1])


def segment(source, destination, flags, sequence, acknowledgement):
    """A TCP segment of 6 bytes of data, or with SYN none, and with its checksum."""
    data = frame(source[0], destination[0], source[1], destination[1], TCP)
    header = struct.pack(
        "!HHIIBBHHH", source[1], destination[1], sequence, acknowledgement, 0x50, flags, 8192, 0, 0
    )
    pseudo = struct.pack("!IIHH", source[0], destination[0], TCP, 26)
    total = sum(struct.unpack("!19H", pseudo + header + bytes(6)))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    checksum = struct.pack("!H", 0xFFFF ^ total)
    return data[:34] + header[:16] + checksum + header[18:] + bytes(6)


def rounds(connections, *packets):
    """Frames of all connections, the first packet of each, then the second, and so on, as often as
    there is room."""
    frames = []
    while len(frames) + len(packets) * connections <= FRAMES:
        for packet in packets:
            frames += [packet(number) for number in range(connections)]
    return frames


def established(connections):
    """As many connections, each with packets of both directions, one after the other."""
    return ESTABLISHED, rounds(connections, flow, reply)


def tcp(connections):
    """As many connections. When the frames come again, so do the handshakes, whose SYNs belong to
    connections that are open."""

    def packet(backwards, flags, sequence, acknowledgement):
        def made(number):
            source, destination = reversed(ends(number)) if backwards else ends(number)
            return segment(source, destination, flags, sequence, acknowledgement)

        return made

    # Acknowledgements have data of their own; both sides send the same 6 bytes again and again.
    data = [packet(False, ACK, 1001, 2001), packet(True, ACK, 2001, 1007)]
    handshake = [packet(False, SYN, 1000, 0), packet(True, SYN | ACK, 2000, 1001)]
    frames = [make(number) for make in handshake for number in range(connections)]
    more = rounds(connections, *data)
    return ESTABLISHED, frames + more[: FRAMES - len(frames)]


def marked(rules):
    """Rules with cookies, from 0 on."""
    return [f"cookie={number},{rule}" for number, rule in enumerate(rules)]


def handshakes(connections, server=None):
    """As many TCP connections, each begun and reset again and again; `server` is where replies come
    from, if packets are translated."""

    def packet(backwards, flags, sequence, acknowledgement):
        def made(number):
            client, asked = ends(number)
            if backwards:
                return segment(server or asked, client, flags, sequence, acknowledgement)
            return segment(client, asked, flags, sequence, acknowledgement)

        return made

    packets = [
        packet(False, SYN, 1000, 0),
        packet(True, SYN | ACK, 2000, 1001),
        packet(False, ACK, 1001, 2001),
        packet(False, RST | ACK, 1007, 2001),
    ]
    assert len(packets) == HAND
    return marked(NAT if server else ESTABLISHED), rounds(connections, *packets)


CASES = {
    "ct-1": lambda: established(1),
    "ct-1k": lambda: established(1000),
    "ct-10k": lambda: established(10000),
    "ct-50k": lambda: established(50000),
    "ct-tcp-1k": lambda: tcp(1000),
    "ct-tcp-10k": lambda: tcp(10000),
    "ct-new-1k": lambda: (NEW, rounds(1000, flow, reply)),
    "ct-new-50k": lambda: (NEW, rounds(50000, flow, reply)),
    "ct-nat-1k": lambda: (NAT, rounds(1000, flow, servers_reply)),
    "ct-hand-1k": lambda: handshakes(1000),
    "ct-hand-nat-1k": lambda: handshakes(1000, SERVER),
    "ct-none-1": lambda: (NONE, rounds(1, flow, reply)),
    "ct-none-10k": lambda: (NONE, rounds(10000, flow, reply)),
}
