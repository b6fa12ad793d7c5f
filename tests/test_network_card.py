"""A network card that becomes a port, and the address that it had: what the user guide says of it,
on both daemons."""

import struct

from harness import becomes, check, equal, ethernet, mac, test, wait_for

CARD, BRIDGE, OUTSIDE, GUEST = "192.0.2.2", "192.0.2.4", "192.0.2.1", "192.0.2.3"


def answers_for(outside, address):
    """The MAC addresses from which an ARP request of a host outside for an address is answered."""

    def number(text):
        return bytes(int(part) for part in text.split("."))

    raw = outside.raw()
    own = mac(outside.address())
    raw.send(
        ethernet(
            "ff:ff:ff:ff:ff:ff",
            own,
            0x0806,
            struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
            + own
            + number(OUTSIDE)
            + bytes(6)
            + number(address),
        )
    )
    replies = raw.receive(
        1,
        lambda frame: (
            frame[12:14] == b"\x08\x06"
            and frame[20:22] == b"\0\2"
            and frame[28:32] == number(address)
        ),
        until=3,
    )
    return {frame[22:28].hex(":") for frame in replies}


@test(timeout=90)
def a_network_card_and_its_address(lab):
    """An address that stays on the card answers the network past the switch and nobody on the
    bridge; the bridge's is answered for by the card, too, unless arp_ignore forbids it; a bridge
    with the card's MAC address gets each packet twice."""
    switch = lab.switch()
    switch.bridge()
    machine, outside = switch.namespace, lab.namespace("outside").quiet()
    switch.pair(outside, "nic0", ip=f"{OUTSIDE}/24")
    machine.run(f"ip addr add {CARD}/24 dev nic0")
    outside.reaches(CARD)
    switch.port("nic0")
    guest = lab.host("guest", switch, ip=f"{GUEST}/24", quiet=True)
    outside.ping(CARD)
    guest.ping(OUTSIDE)
    equal(guest.ping(CARD, 2, ok=False), 0, "answers of the card's address to the bridge")

    # The bridge's own port has another address, and both answer for it.
    machine.run("ip addr flush dev nic0")
    machine.run(f"ip addr add {BRIDGE}/24 dev br0")
    machine.run("ip link set br0 up")
    card, bridge = machine.address("nic0"), machine.address("br0")
    check(card != bridge, "the bridge has the card's MAC address")
    outside.reaches(BRIDGE)
    guest.reaches(BRIDGE)
    equal(answers_for(outside, BRIDGE), {card, bridge}, "who answers for the bridge's address")
    machine.run("sysctl -qw net.ipv4.conf.nic0.arp_ignore=1")
    equal(
        answers_for(outside, BRIDGE),
        {bridge},
        "who answers for the bridge's address with arp_ignore",
    )
    outside.run("ip neigh flush all")
    outside.ping(BRIDGE)

    def twice():
        return "DUP!" in outside.run(f"ping -n -c 3 -i 0.1 -W 1 {BRIDGE}", ok=False).stdout

    check(not twice(), "packets come twice to a bridge with a MAC address of its own")
    switch.vsctl("set", "Bridge", "br0", f'other_config:hwaddr="{card}"')
    becomes(lambda: machine.address("br0"), card, "the bridge's MAC address")
    outside.run("ip neigh flush all")
    wait_for("packets come twice to a bridge with the card's MAC address", twice)
