"""What is kept of a rule that is added again, and how long a bundle may wait."""

import re
import socket
import struct
import time

from harness import check, equal, test

OPENFLOW14 = 5
HELLO, ERROR, BUNDLE_CONTROL = 0, 1, 33
OPEN_REQUEST, OPEN_REPLY = 0, 1
BUNDLE_FAILED, TIMEOUT = 17, 14


@test(timeout=60)
def a_rule_that_is_added_again_keeps_its_idle_age(lab):
    """Whether its counters go on (from 1.3) or start anew (before, and by `reset_counts`)."""
    switch = lab.switch()
    switch.bridge(
        "br0", "fail_mode=secure", "protocols=[OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13]"
    )
    cases = {
        ("OpenFlow10", ""),
        ("OpenFlow11", ""),
        ("OpenFlow13", ""),
        ("OpenFlow13", "reset_counts,"),
    }
    rules = {case: f"priority={number}" for number, case in enumerate(sorted(cases), 5)}
    for (version, _), rule in rules.items():
        switch.ofctl("-O", version, "add-flow", "br0", f"{rule},actions=drop")
    time.sleep(3)
    for (version, text), rule in rules.items():
        switch.ofctl("-O", version, "add-flow", "br0", f"{text}{rule},actions=drop")
    found = re.findall(r"idle_age=(\d+).*?priority=(\d+)", switch.ofctl("dump-flows", "br0"))
    ages = {int(priority): int(age) for age, priority in found}
    equal(len(ages), len(cases), "rules")
    check(min(ages.values()) >= 3, f"idle ages by priority: {ages}")


class Bundling:
    """A connection of 1.4 that opens bundles."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self.socket.sendall(struct.pack("!BBHI", OPENFLOW14, HELLO, 8, 1))
        self.message(HELLO)

    def message(self, *kinds):
        """The next message of one of these types."""
        while True:
            head = self.socket.recv(8, socket.MSG_WAITALL)
            _, kind, length, _ = struct.unpack("!BBHI", head)
            body = self.socket.recv(length - 8, socket.MSG_WAITALL) if length > 8 else b""
            if kind in kinds:
                return kind, body

    def idle_seconds(self, number):
        """How long a bundle may wait, and the error that says that it has waited for too long."""
        self.socket.sendall(
            struct.pack("!BBHIIHH", OPENFLOW14, BUNDLE_CONTROL, 16, number, number, OPEN_REQUEST, 1)
        )
        kind, body = self.message(BUNDLE_CONTROL, ERROR)
        equal(
            (kind, struct.unpack("!IH", body[:6])),
            (BUNDLE_CONTROL, (number, OPEN_REPLY)),
            "the bundle opens",
        )
        begun = time.monotonic()
        kind, body = self.message(BUNDLE_CONTROL, ERROR)
        equal(
            (kind, struct.unpack("!HH", body[:4])),
            (ERROR, (BUNDLE_FAILED, TIMEOUT)),
            "what ends it",
        )
        return time.monotonic() - begun


@test(timeout=90)
def bundles_wait_as_long_as_the_database_says(lab):
    """`other_config:bundle-idle-timeout`, in seconds; 10 when it is not there, and also when it
    goes."""
    switch = lab.switch()
    switch.bridge("br0", "protocols=OpenFlow14")
    client = Bundling(f"{switch.directory}/br0.mgmt")
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:bundle-idle-timeout=1")
    check(client.idle_seconds(1) < 9, "the bundle was kept for longer than the database says")
    switch.vsctl("remove", "Open_vSwitch", ".", "other_config", "bundle-idle-timeout")
    check(client.idle_seconds(2) > 8, "the bundle was thrown away sooner than without the key")
