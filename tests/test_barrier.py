"""After a barrier reply every packet obeys the rules before it: under load, from several
connections at once."""

import struct
import threading

from harness import check, equal, ethernet, test
from openflow_client import BARRIER_REQUEST, Connection, header

CONNECTIONS, ROUNDS, LOAD = 4, 250, 60000
FLOW_MOD = 14


def mac_of(connection, turn):
    """An address for each turn, since a packet that is still on its way may meet the rules of later
    turns, which is no mistake."""
    return f"02:00:00:{connection:02x}:{turn >> 8:02x}:{turn & 255:02x}"


def flow_mod(connection, turn, port, xid):
    """Sends packets to this turn's address out of a port: an add that takes the place of the rule
    before it."""
    wildcards = 0x3FFFFF & ~(1 << 3)  # all but dl_dst
    match = struct.pack(
        "!IH6s6s22x",
        wildcards,
        0,
        bytes(6),
        bytes.fromhex(mac_of(connection, turn).replace(":", "")),
    )
    actions = struct.pack("!HHHH", 0, 8, port, 0)
    body = (
        match + struct.pack("!QHHHHIHH", connection, 0, 0, 0, 100, 0xFFFFFFFF, 0xFFFF, 0) + actions
    )
    return header(FLOW_MOD, len(body), xid) + body


def probe(connection, turn):
    """The packet of a turn."""
    return ethernet(
        mac_of(connection, turn),
        "02:00:00:00:00:01",
        0x88B5,
        struct.pack("!HH", connection, turn) + bytes(42),
    )


def flipping(switch, connection, sender, ports, sent, problems):
    """One connection: change, barrier, packet, again and again."""
    try:
        client = Connection(f"{switch.directory}/br0.mgmt")
        for turn in range(ROUNDS):
            port = ports[turn % 2]
            client.socket.sendall(
                flow_mod(connection, turn, port, 2 * turn + 1)
                + header(BARRIER_REQUEST, 0, 2 * turn + 2)
            )
            client.wait_for(19, 2 * turn + 2)
            sender.send(probe(connection, turn))
            sent.append((connection, turn, port))
        if client.errors:
            problems.append(f"connection {connection} got {len(client.errors)} errors")
    except OSError as error:
        problems.append(f"connection {connection}: {error}")


@test(timeout=120)
def packets_after_a_barrier_obey(lab):
    """Four connections change their rules a thousand times, with a packet right behind each barrier
    reply, while other packets flood the same worker."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    source, load, *outs = [
        lab.host(name, switch, quiet=True) for name in ("in", "load", "out1", "out2")
    ]
    # Each address leads to the wrong port until its turn. The flood is looked up in the same table,
    # and goes nowhere that anybody looks.
    wrong = [
        f"priority=100,dl_dst={mac_of(connection, turn)},actions=output:{outs[(turn + 1) % 2].port}"
        for connection in range(CONNECTIONS)
        for turn in range(ROUNDS)
    ]
    switch.flows(
        *wrong,
        f"in_port={load.port},priority=5,actions=drop",
        *[
            f"priority=10,dl_type=0x88b6,dl_dst=02:00:00:00:02:{n:02x},actions=drop"
            for n in range(50)
        ],
    )
    sockets = [out.raw() for out in outs]
    # Every packet has been through once before: a switch with a cache knows the old answer.
    warm, every = (
        source.raw(),
        [(connection, turn) for connection in range(CONNECTIONS) for turn in range(ROUNDS)],
    )
    for connection, turn in every:
        warm.send(probe(connection, turn))
    for receiver in sockets:
        equal(
            len(
                receiver.receive(
                    5, wanted=lambda frame: frame[12:14] == b"\x88\xb5", until=len(every) // 2
                )
            ),
            len(every) // 2,
            "packets before the changes",
        )
    flood, sent, problems = load.raw(), [], []
    noise = ethernet("02:00:00:00:02:01", "02:00:00:00:00:02", 0x88B6, bytes(46))
    flooding = threading.Thread(target=lambda: [flood.send(noise) for _ in range(LOAD)])
    # A raw socket for each: a thread must not wait for another one's packet.
    threads = [
        threading.Thread(
            target=flipping,
            args=(switch, number, source.raw(), (outs[0].port, outs[1].port), sent, problems),
        )
        for number in range(CONNECTIONS)
    ]
    for thread in (flooding, *threads):
        thread.start()
    for thread in (*threads, flooding):
        thread.join()
    check(not problems, *problems)
    wanted = {outs[0].port: set(), outs[1].port: set()}
    for connection, turn, port in sent:
        wanted[port].add((connection, turn))
    for out, receiver in zip(outs, sockets):
        frames = receiver.receive(
            2, wanted=lambda frame: frame[12:14] == b"\x88\xb5", until=len(wanted[out.port])
        )
        got = {struct.unpack("!HH", frame[14:18]) for frame in frames}
        equal(
            len(got - wanted[out.port]),
            0,
            f"packets at port {out.port} that belong to the rule of before the barrier",
        )
        equal(len(wanted[out.port] - got), 0, f"packets that did not come out of port {out.port}")
