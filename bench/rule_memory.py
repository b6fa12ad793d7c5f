#!/usr/bin/python3
"""What rules take: the daemon's memory for a million of them in several shapes, and the time to
change and delete them.

    bench/rule_memory.py [--daemon LABEL=COMMAND]... [--rules 1000000] [--only SHAPE]...

COMMAND as for bench/rule_changes.py; without --daemon: sluice=target/release/sluiced. For each
shape a fresh daemon without traffic gets the rules, flow mods of OpenFlow 1.3 written to one
connection; memory is the growth of its resident set, five seconds after the last barrier. Then the
rules are modified one by one (strictly), the first tenth is deleted one by one (strictly), and the
rest in one message: by cookie, by table, and all. The rules of shape "checked" look at eight sets
of fields and are added with CHECK_OVERLAP. Needs root and 2.8 GiB that can become huge pages.
"""

import socket
import struct
import sys
import threading
import time

from contender import Connection, contender, contenders, harness, header, parser, run, switchd
from openflow_client import HELLO
from rule_changes import check_rules

FLOW_MOD, BARRIER_REQUEST, BARRIER_REPLY = 14, 20, 21
ADD, MODIFY_STRICT, DELETE, DELETE_STRICT = 0, 2, 3, 4
COOKIE, TABLE, ALL = 0x5A5A, 0, 255
(
    IN_PORT,
    ETH_DST,
    ETH_SRC,
    ETH_TYPE,
    IP_PROTO,
    IPV4_SRC,
    IPV4_DST,
    TCP_SRC,
    TCP_DST,
    IPV6_SRC,
    IPV6_DST,
) = 0, 3, 4, 5, 10, 11, 12, 13, 14, 26, 27


def field(number, value, mask=None):
    """A field of a match (OpenFlow 1.3.5 section 7.2.3.2)."""
    body = value + (mask or b"")
    return struct.pack("!HBB", 0x8000, number << 1 | (mask is not None), len(body)) + body


def short(number):
    return struct.pack("!H", number)


def word(number):
    return struct.pack("!I", number)


def address6(number):
    return bytes.fromhex("20010db8000000000000") + bytes(2) + word(number)


def mac(number):
    return b"\2\0" + word(number)


IPV4, IPV6, TCP = (
    field(ETH_TYPE, short(0x0800)),
    field(ETH_TYPE, short(0x86DD)),
    field(IP_PROTO, b"\6"),
)


def optional(number):
    """Fields that some rules look at and others do not: eight kinds."""
    fields = (
        field(IN_PORT, word(1)),
        field(IPV4_SRC, word(0x0B000001)),
        field(TCP_DST, short(443)),
    )
    return b"".join(one for bit, one in enumerate(fields) if number >> bit & 1)


SHAPES = {
    "routes": lambda n: IPV4 + field(IPV4_DST, word(n << 8), word(0xFFFFFF00)),
    "macs": lambda n: (
        field(IN_PORT, word(1 + n % 64))
        + field(ETH_DST, mac(n))
        + field(ETH_SRC, mac(n * 7919 % 65536))
    ),
    "tcp": lambda n: (
        IPV4
        + TCP
        + field(IPV4_SRC, word(0x14000000 + n))
        + field(IPV4_DST, word(0x1E000000 + n * 7919 % 65536))
        + field(TCP_DST, short(n % 1000 + 1))
    ),
    "tcp6": lambda n: (
        IPV6
        + TCP
        + field(IPV6_SRC, address6(n))
        + field(IPV6_DST, address6(n * 7919 % 65536))
        + field(TCP_SRC, short(n % 50000))
        + field(TCP_DST, short(443))
    ),
    "checked": lambda n: IPV4 + TCP + field(IPV4_DST, word(0x14000000 + n)) + optional(n),
}
CHECK_OVERLAP = 2


def flow_mod(command, oxms, xid, table=TABLE, by_cookie=False, actions=True, flags=0):
    """A flow mod (section 7.3.4.1) whose rule sends to port 2."""
    match = struct.pack("!HH", 1, 4 + len(oxms)) + oxms
    match += bytes(-len(match) % 8)
    instructions = struct.pack("!HHIHHIHH4x", 4, 24, 0, 0, 16, 2, 0, 0) if actions else b""
    body = struct.pack(
        "!QQBBHHHIIIHxx",
        COOKIE,
        2**64 - 1 if by_cookie else 0,
        table,
        command,
        0,
        0,
        100,
        0xFFFFFFFF,
        0xFFFFFFFF,
        0xFFFFFFFF,
        flags,
    )
    return (
        header(FLOW_MOD, len(body) + len(match) + len(instructions), xid, 4)
        + body
        + match
        + instructions
    )


class Connection13(Connection):
    """A connection that speaks OpenFlow 1.3."""

    def __init__(self, path):  # pylint: disable=super-init-not-called
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(300)
        self.socket.connect(path)
        self.buffer, self.errors = b"", []
        self.socket.sendall(header(HELLO, 0, 0, 4))
        self.wait_for(HELLO)

    def barrier(self, xid):
        self.socket.sendall(header(BARRIER_REQUEST, 0, xid, 4))
        self.wait_for(BARRIER_REPLY, xid)

    def send(self, messages):
        """Sends messages made one by one and waits until all have been carried out; seconds,
        without the making of them."""
        taken = 0.0
        for first in range(0, len(messages), 50000):
            blob = b"".join(messages[first : first + 50000])
            begin = time.monotonic()
            sender = threading.Thread(target=self.socket.sendall, args=(blob,))
            sender.start()
            sender.join()
            self.barrier(0x7FFFFFFF)
            taken += time.monotonic() - begin
        return taken


def measure(switch, count, shape):
    """One line of figures."""
    connection = Connection13(switch.management)
    before = switch.memory_mb()
    matches = [SHAPES[shape](number) for number in range(count)]
    flags = CHECK_OVERLAP if shape == "checked" else 0
    adding = connection.send(
        [flow_mod(ADD, oxms, number, flags=flags) for number, oxms in enumerate(matches)]
    )
    time.sleep(5)
    grown = switch.memory_mb() - before
    check_rules(switch, count)
    modifying = connection.send(
        [flow_mod(MODIFY_STRICT, oxms, number) for number, oxms in enumerate(matches)]
    )
    some, others = matches[: count // 10], matches[count // 10 :]
    deleting = connection.send(
        [flow_mod(DELETE_STRICT, oxms, number, actions=False) for number, oxms in enumerate(some)]
    )
    at_once = []
    for name, arguments in (
        ("cookie", {"by_cookie": True}),
        ("table", {"table": TABLE}),
        ("all", {"table": ALL}),
    ):
        if at_once:
            connection.send([flow_mod(ADD, oxms, number) for number, oxms in enumerate(others)])
            time.sleep(2)
        taken = connection.send([flow_mod(DELETE, b"", 1, actions=False, **arguments)])
        at_once.append(f"{name} {taken / len(others) * 1e6:.2f}")
        check_rules(switch, 0)
    if connection.errors:
        raise harness.Failure(f"{switch.label}: refused: {connection.errors[0].hex()}")
    return (
        f"{switch.label:8}{shape:8}{grown:8.0f} MiB {grown * 2**20 / count:6.0f} bytes a rule; "
        f"microseconds a rule: add {adding / count * 1e6:.2f}, modify strictly "
        f"{modifying / count * 1e6:.2f}, delete strictly {deleting / len(some) * 1e6:.2f}; delete "
        f"at once by {', '.join(at_once)}"
    )


def work(options, daemons):
    """All shapes."""

    def measured(lab):
        for shape in options.only or SHAPES:
            for label, command in daemons.items():
                with contender(lab, label, command) as switch:
                    switch.sinks()
                    switch.ofctl("del-flows", switch.management)
                    print(measure(switch, options.rules, shape), flush=True)

    return measured


def main():
    options = parser(__doc__)
    options.add_argument("--rules", type=int, default=1000000)
    options.add_argument("--only", action="append", choices=SHAPES)
    options = options.parse_args()
    options.daemon = options.daemon or [f"sluice={switchd()}"]
    daemons = contenders(options)
    run(work(options, daemons), daemons)


if __name__ == "__main__":
    sys.exit(main())
