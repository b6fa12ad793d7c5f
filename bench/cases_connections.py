"""Connection tracking: a stateful access list as OVN makes it (`ct`, then a match on the state),
and UDP connections whose packets come in both directions, so that they are established after their
first two packets.

`CASES` maps a name to a function that returns rules (lines for ovs-ofctl, with {in} and {out} for
ports) and frames to be replayed.
"""

from frames import FRAMES, flow, frame

RULES = [
    "table=0,priority=10,udp,actions=ct(table=1)",
    "table=1,priority=10,ct_state=+trk+new,udp,actions=ct(commit),output:{out}",
    "table=1,priority=10,ct_state=+trk+est,udp,actions=output:{out}",
]


def reply(number):
    """A packet against the direction of flow `number`."""
    return frame(0x0B000000 + number * 7919 % 65536, 0x0A000000 + number, 80, 1024 + number % 50000)


def established(connections):
    """As many connections, each with packets of both directions, one after the other."""
    frames = []
    while len(frames) + 2 * connections <= FRAMES:
        frames += [flow(number) for number in range(connections)]
        frames += [reply(number) for number in range(connections)]
    return RULES, frames


CASES = {
    "ct-1": lambda: established(1),
    "ct-1k": lambda: established(1000),
    "ct-50k": lambda: established(50000),
}
