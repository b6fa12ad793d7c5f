"""Guests, controllers and peers that mean harm: whoever else uses the switch goes on, and the
daemon is there afterwards.

bench/adversary.py measures how much the others notice; here it is only asked whether they are
served at all."""

import contextlib
import os
import socket
import struct
import time

from harness import Skip, check, equal, ethernet, run, test, wait_for
from openflow_client import Connection
from vhost_frontend import (
    CSUM,
    HOST_TSO4,
    INFLIGHT,
    LOG_ALL,
    LOG_SHMFD,
    REPLY_ACK,
    RING_BYTES,
    SET_VRING_CALL,
    SET_VRING_KICK,
    FrontEnd,
    Refused,
    tcp_frame,
    tcp_header,
)

FRAME = ethernet("02:00:00:00:00:32", "02:00:00:00:00:31", 0x88B5, bytes(range(46)))


def with_guests(lab, *names, kind="dpdkvhostuserclient"):
    """A switch with two hosts on kernel ports that ping each other, and a front end for each name,
    which has no connection yet."""
    switch = lab.switch()
    switch.enable_dpdk(cores=1)
    switch.bridge("br0", "fail_mode=secure")
    a, b = (
        lab.host("h1", switch, ip="10.9.4.1/24", quiet=True),
        lab.host("h2", switch, ip="10.9.4.2/24", quiet=True),
    )
    guests = []
    for number, name in enumerate(names, 11):
        guest = FrontEnd(
            f"{switch.directory}/{name}"
            if kind == "dpdkvhostuser"
            else f"{switch.directory}/{name}.sock"
        )
        if kind == "dpdkvhostuser":
            switch.port(name, f"type={kind}", f"ofport_request={number}")
        else:
            guest.listen()
            switch.port(
                name,
                f"type={kind}",
                f"options:vhost-server-path={guest.path}",
                f"ofport_request={number}",
            )
        guests.append(guest)
    switch.flows(
        f"priority=9,in_port={a.port},actions=output:{b.port}",
        f"priority=9,in_port={b.port},actions=output:{a.port}",
        "priority=9,in_port=11,actions=output:12",
        "priority=9,in_port=12,actions=output:11",
    )
    a.reaches("10.9.4.2")
    return switch, a, guests


def serves(switch, host, what):
    """Hosts, controllers and the control socket are served."""
    host.ping("10.9.4.2", 5)
    with contextlib.closing(Connection(f"{switch.directory}/br0.mgmt", 10)) as client:
        client.barrier(1)
    check(
        "Open vSwitch" in switch.appctl("version"), what, "and the control socket no longer answers"
    )
    check(switch.process.poll() is None, what, "and the daemon has gone")


@test(timeout=60, dpdk=True)
def friendly_front_ends(lab):
    """Frames between two front ends made by hand arrive whole, in both directions, also after they
    have hung up and come back."""
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    for turn in range(3):
        for guest in (one, two):
            guest.accept().start()
        for name in ("v1", "v2"):
            wait_for(
                f"{name} is up",
                lambda name=name: switch.get("Interface", name, "link_state") == "up",
            )
        for source, target in ((one, two), (two, one)):
            frames = [
                FRAME + struct.pack("!I", number) + bytes(number % 900) for number in range(700)
            ]
            got = []
            for first in range(0, 700, 100):
                source.send(*frames[first : first + 100])
                got += target.receive(5, until=100)
            equal(got, frames, f"turn {turn}: what came")
        if turn < 2:
            for guest in (one, two):
                guest.hang_up()
                wait_for(
                    "the switch lets go",
                    lambda: (
                        "up"
                        not in (
                            switch.get("Interface", "v1", "link_state"),
                            switch.get("Interface", "v2", "link_state"),
                        )
                        or guest is one
                    ),
                )
    serves(switch, host, "guests that came back")


@test(timeout=60, dpdk=True)
def refused_memory(lab):
    """A memory table that cannot be mapped is answered as one, or ends the connection, and the next
    connection is served."""
    if lab.is_ovs:
        raise Skip(
            "Open vSwitch: its worker waits for ever for the lock of a device whose memory table "
            "was refused"
        )
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    two.accept().start()
    for fd in (None, -1):
        one.accept().negotiate()
        with contextlib.suppress(Refused, ConnectionError, TimeoutError):
            one.bad_memory(fd)
            check(False, "memory that cannot be mapped was taken")
        serves(switch, host, "a bad memory table")
        one.hang_up()
    one.accept().start()
    # The same again for a device that runs.
    with contextlib.suppress(Refused, ConnectionError, TimeoutError):
        one.bad_memory()
    serves(switch, host, "a bad memory table of a running device")
    one.hang_up()
    one.accept().start()
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    one.send(FRAME)
    equal(two.receive(5, until=1), [FRAME], "what the next connection sends")


def half_a_message(lab, given, running):
    """One front end sends the beginning of a message and no more; others, the control thread, and
    the end of its own port do not wait for the rest."""
    switch, host, (one, two, three) = with_guests(lab, "v1", "v2", "v3")
    for guest in (two, three):
        guest.accept().start()
    one.accept()
    if running:
        one.start()
    one.half(given=given)
    time.sleep(0.3)
    # Another guest hangs up and comes back, which takes the thread that handles messages.
    two.hang_up()
    two.accept(20).start()
    switch.flows(
        "in_port=12,actions=output:13",
        "in_port=13,actions=output:12",
        f"in_port={host.port},actions=normal",
        "priority=0,actions=normal",
    )
    for name in ("v2", "v3"):
        wait_for(
            f"{name} is up", lambda name=name: switch.get("Interface", name, "link_state") == "up"
        )
    two.send(FRAME)
    equal(three.receive(5, until=1), [FRAME], "what others send")
    serves(switch, host, "half a message")
    switch.vsctl("del-port", "br0", "v1")
    serves(switch, host, "the end of the port of half a message")


@test(timeout=90, dpdk=True)
def half_a_message_before_anything(lab):
    """Part of a head, on a fresh connection."""
    half_a_message(lab, -7, False)


@test(timeout=90, dpdk=True)
def half_a_message_of_a_running_device(lab):
    """A head without all that it promises, while rings are in use."""
    half_a_message(lab, 8, True)


@test(timeout=90, dpdk=True)
def a_head_without_its_message(lab):
    """A whole head and nothing of what it promises, while rings are in use."""
    if lab.is_ovs:
        raise Skip("Open vSwitch: its thread for guests' messages waits for the rest")
    half_a_message(lab, 0, True)


@test(timeout=90, dpdk=True)
def unread_answers(lab):
    """A front end that asks and reads no answer; others, the control thread, and the end of its own
    port do not wait for it."""
    if lab.is_ovs:
        raise Skip("Open vSwitch: its thread for guests' messages waits until this one reads")
    switch, host, (one, two, three) = with_guests(lab, "v1", "v2", "v3")
    for guest in (one, two, three):
        guest.accept().start()
    asked = one.unread()
    check(asked > 10, "the switch took only", asked, "questions")
    time.sleep(0.3)
    two.hang_up()
    two.accept(20).start()
    switch.flows(
        "in_port=12,actions=output:13", "in_port=11,actions=drop", "priority=0,actions=normal"
    )
    wait_for("v2 is up", lambda: switch.get("Interface", "v2", "link_state") == "up")
    two.send(FRAME)
    equal(three.receive(5, until=1), [FRAME], "what others send")
    # Frames for it are somebody else's time, too.
    switch.flows("in_port=12,actions=output:11,output:13", "priority=0,actions=normal")
    two.send(*[FRAME] * 20)
    equal(len(three.receive(5, until=20)), 20, "what others get that it gets, too")
    serves(switch, host, "unread answers")
    switch.vsctl("del-port", "br0", "v1")
    serves(switch, host, "the end of the port of unread answers")


@test(timeout=90, dpdk=True)
def memory_that_goes_away(lab):
    """A front end truncates its memory while the switch has it mapped: its device ends, and nobody
    else's."""
    if lab.is_ovs:
        raise Skip("Open vSwitch: it takes no guest any more after that")
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    for turn in range(3):
        for guest in (one, two):
            if guest.peer is None:
                guest.accept(30).start()
        for name in ("v1", "v2"):
            wait_for(
                f"{name} is up",
                lambda name=name: switch.get("Interface", name, "link_state") == "up",
                20,
            )
        one.send(FRAME)
        equal(two.receive(5, until=1), [FRAME], f"turn {turn}: what comes before")
        # All of it; what lies behind the rings; nothing but the last page of the buffers.
        one.truncate((0, 2 * RING_BYTES, one.size // 2)[turn])
        for ring in one.rings:
            ring.notify()
        two.send(*[FRAME] * 64)
        time.sleep(0.3)
        serves(switch, host, "memory that has gone")
        one.close()
        one.listen()


@test(timeout=90, dpdk=True)
def two_for_one_socket(lab):
    """Front ends that take a socket's path from each other, many times, and one that is connected
    all the time: whoever has it last is served."""
    if lab.is_ovs:
        raise Skip("Open vSwitch: its worker waits for ever for the lock of a device that has gone")
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    two.accept().start()
    rivals = [one]
    for turn in range(12):
        one.accept(20)
        if turn % 3:
            one.start()
        if turn % 3 == 2:
            one.send(FRAME)
        rivals.append(FrontEnd(one.path).listen())
        if turn % 2:
            one.enable(0, False, told=False) if one.agreed else None
        one.close()
        one = rivals[-1]
    one.accept(20).start()
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    two.receive(0.2)
    one.send(FRAME)
    equal(two.receive(5, until=1), [FRAME], "what the last one sends")
    serves(switch, host, "a fight for a socket")


@test(timeout=90, dpdk=True)
def two_connections_to_one_port(lab):
    """Two front ends connected to a socket of the switch's (dpdkvhostuser) at the same time, both
    with rings: nothing that is sent is lost uncounted."""
    if lab.is_ovs:
        raise Skip(
            "Open vSwitch: it serves the first of two connections, and tells of counters seconds "
            "later"
        )
    switch, host, (one, two) = with_guests(lab, "v1", "v2", kind="dpdkvhostuser")
    two.connect().start()
    one.connect().start()
    rival = FrontEnd(one.path).connect().start()
    for turn in range(10):
        for guest in (one, rival):
            with contextlib.suppress(OSError, Refused, TimeoutError, ConnectionError):
                guest.enable(0, turn % 2)
                guest.enable(0, True)
                guest.send(FRAME)
    two.send(*[FRAME] * 50)
    got = one.receive(1) + rival.receive(1)
    ports = switch.counters()
    wait_for(
        "counters stand",
        lambda: switch.counters() == ports or (ports.update(switch.counters()) or False),
    )
    sent = ports["v1"]["tx"]
    equal(ports["v2"]["rx"]["pkts"], 50, "what came from v2")
    equal(
        sent["pkts"] + (sent["drop"] or 0) + (sent["errs"] or 0),
        50,
        "sent to v1, and dropped there",
    )
    equal(
        len(got),
        ports["v1"]["tx"]["pkts"],
        "what rivals got, against what the port says it has sent",
    )
    rival.hang_up()
    serves(switch, host, "two connections to one port")


@test(timeout=90, dpdk=True)
def endless_chains(lab):
    """A front end offers chains of 64 MiB as fast as they go: others' frames and pings go through
    meanwhile."""
    switch, host, (one, two, three) = with_guests(lab, "v1", "v2", "v3")
    one.size = 8 << 20
    for guest in (one, two, three):
        guest.accept().start()
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    switch.flows(
        "in_port=12,actions=output:13", "in_port=11,actions=drop", "priority=0,actions=normal"
    )
    one.chain(64 << 20)
    for number in range(20):
        one.offer_endless()
        two.send(FRAME)
        check(three.receive(10, until=1), "frame", number, "of others does not come through")
    serves(switch, host, "endless chains")


@test(timeout=90, dpdk=True)
def tiny_segments(lab):
    """A front end sends 64 KiB frames to be cut into segments of 32 bytes, towards a port that
    takes no large frames: others are served."""
    switch, host, (one, two, three) = with_guests(lab, "v1", "v2", "v3")
    one.features |= CSUM | HOST_TSO4
    for guest in (one, two, three):
        guest.accept().start()
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    check(one.agreed & HOST_TSO4, "the switch takes no large frames")
    switch.flows(
        "in_port=12,actions=output:13", "in_port=11,actions=output:13", "priority=0,actions=normal"
    )
    data = tcp_header(32, 65535) + tcp_frame(65535)
    at = 2 * RING_BYTES
    one.memory.map[at : at + len(data)] = data
    one.chain(len(data), part=len(data))
    end, came = time.monotonic() + 4, 0
    while time.monotonic() < end:
        one.offer_endless()
        two.send(FRAME)
        came += len(three.receive(0.02, wanted=lambda frame: frame == FRAME))
    drops = switch.appctl("sluice/drops") if not switch.is_ovs else ""
    lab.note(f"{came} frames of others came through; {' '.join(drops.split())}")
    one.hang_up()
    three.receive(0.5)
    two.send(FRAME)
    check(
        three.receive(5, wanted=lambda frame: frame == FRAME, until=1),
        "others' frames no longer come",
    )
    serves(switch, host, "tiny segments")


@test(timeout=90, dpdk=True)
def rings_that_flap(lab):
    """A front end switches its rings on and off as fast as it can: others are served, and its own
    frames go on afterwards."""
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    for guest in (one, two):
        guest.accept().start()
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for index in (0, 1):
            one.enable(index, False)
            one.enable(index, True)
    host.ping("10.9.4.2", 5)
    one.send(FRAME)
    equal(two.receive(5, until=1), [FRAME], "what it sends afterwards")
    serves(switch, host, "rings that flap")


@test(timeout=60)
def half_openflow_messages(lab):
    """Many controllers that send half a message each: others are served."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    clients = []
    for number in range(200):
        with contextlib.suppress(OSError):
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(1)
            client.connect(f"{switch.directory}/br0.mgmt")
            client.sendall(
                bytes.fromhex("0100000800000001")
                + struct.pack("!BBHI", 1, 14, 65535, 7)
                + bytes(number * 300)
            )
            clients.append(client)
    wait_for(
        "another one is served", lambda: switch.ofctl("dump-flows", "br0", ok=False).returncode == 0
    )
    for client in clients:
        client.close()
    switch.flows("cookie=0x2,priority=3,actions=drop")
    equal(len(switch.rules()), 1, "rules")


@test(timeout=60)
def full_disk_for_the_log(lab):
    """A log on a file system without room: lines are lost, and nothing else."""
    switch = lab.switch(start=False)
    place = f"{lab.directory}/full"
    os.makedirs(place)
    run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", place])
    switch.log_file = f"{place}/log"
    switch.start()
    switch.bridge("br0", "fail_mode=secure")
    switch.appctl("vlog/set", "file:dbg")
    for number in range(20):
        switch.flows(
            *[f"priority={number + 1},tp_dst={each},udp,actions=drop" for each in range(200)]
        )
    check(os.statvfs(place).f_bavail == 0, "the log has room left")
    equal(len(switch.rules()), 200, "rules")
    check("Open vSwitch" in switch.appctl("version"), "the control socket does not answer")
    switch.expected.append("")


@test(timeout=90, dpdk=True)
def refused_memory_again_and_again(lab):
    """A front end whose memory cannot be mapped although its rings are in use, and which comes back
    for more: its device ends, and nobody else's."""
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    two.accept().start()
    for _ in range(8):
        with contextlib.suppress(OSError, Refused, ConnectionError, TimeoutError):
            one.accept(3).start()
            one.bad_memory()
        two.send(*[FRAME] * 32)
        one.forget()
    serves(switch, host, "memory that could not be mapped")


@test(timeout=120)
def more_connections_than_are_taken(lab):
    """More controllers than a bridge takes stop in the middle of a message: in the end others are
    served again."""
    switch = lab.switch()
    switch.bridge("br0", "fail_mode=secure")
    clients = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            client = socket.socket(socket.AF_UNIX)
            clients.append(client)
            client.settimeout(1)
            client.connect(f"{switch.directory}/br0.mgmt")
            client.sendall(
                bytes.fromhex("0100000800000001")
                + struct.pack("!BBHI", 1, 14, 65535, 7)
                + bytes(1000)
            )
    wait_for(
        "another controller is served",
        lambda: switch.ofctl("dump-flows", "br0", ok=False).returncode == 0,
        60,
    )
    for client in clients:
        client.close()


@test(timeout=90, dpdk=True)
def memory_in_use_that_goes_away_ends_the_connection(lab):
    """A front end that truncates its memory is hung up on, and the log says why."""
    if lab.is_ovs:
        raise Skip("Open vSwitch: it takes no guest any more after that")
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    for guest in (one, two):
        guest.accept().start()
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    one.truncate()
    two.send(*[FRAME] * 8)
    check(one.closed_by_switch(10), "the connection is still there")
    wait_for(
        "the log says why",
        lambda: "took back memory in use; closing the connection" in switch.log(),
    )
    serves(switch, host, "memory that has gone")


@test(timeout=60, dpdk=True)
def descriptors_that_are_no_events(lab):
    """Kicks and calls that are pipes, files or sockets are refused, and the device they are for
    goes on."""
    if lab.is_ovs:
        raise Skip("Open vSwitch takes whatever comes")
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    for guest in (one, two):
        guest.accept().start()
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    ends = os.pipe()
    with open("/dev/null", "rb") as null:
        for request in (SET_VRING_CALL, SET_VRING_KICK):
            for fd in (*ends, null.fileno(), one.peer.fileno()):
                try:
                    one.tell(request, struct.pack("<Q", 0), [fd])
                    check(False, f"request {request} took descriptor {fd}")
                except Refused:
                    pass
    two.send(FRAME)
    equal(one.receive(5, until=1), [FRAME], "what comes after refused descriptors")
    serves(switch, host, "descriptors that are no events")


@test(timeout=60, dpdk=True)
def calls_that_block(lab):
    """A front end makes its call descriptors block, and full, again and again: workers do not wait
    for it."""
    if lab.is_ovs:
        raise Skip("Open vSwitch: its worker waits for ever")
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    for guest in (one, two):
        guest.accept().start()
    for ring in one.rings:
        # The guest wants to be told of everything.
        struct.pack_into("<H", one.memory.map, ring.offset + 0x4000, 0)
    wait_for("v1 is up", lambda: switch.get("Interface", "v1", "link_state") == "up")
    for turn in range(20):
        for ring in one.rings:
            os.set_blocking(ring.call, True)
            if not turn % 4:
                with contextlib.suppress(BlockingIOError):
                    os.set_blocking(ring.call, False)
                    os.eventfd_read(ring.call)
            os.set_blocking(ring.call, False)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(ring.call, 2**64 - 2)
            os.set_blocking(ring.call, True)
        two.send(*[FRAME] * 5)
        host.ping("10.9.4.2", 2)
        one.receive(0.05)
    serves(switch, host, "calls that block")


@test(timeout=90, dpdk=True)
def a_crowd_at_one_socket(lab):
    """Hundreds of connections to one socket of the switch's, which say nothing or half of
    something: who is served is served on, and the rest is let go of."""
    if lab.is_ovs:
        raise Skip("Open vSwitch takes them all")
    switch, host, (one, two) = with_guests(lab, "v1", "v2", kind="dpdkvhostuser")
    one.connect().start()
    two.connect().start()
    crowd = []
    for number in range(300):
        client = socket.socket(socket.AF_UNIX)
        # Before it has a limit: with one it would not wait for room among those that are to be
        # accepted.
        client.connect(one.path)
        client.settimeout(5)
        if number % 2:
            client.sendall(struct.pack("<II", 5, 1))
        crowd.append(client)
    two.send(FRAME)
    equal(one.receive(5, until=1), [FRAME], "what comes beside a crowd")
    served = len([name for name in os.listdir(f"/proc/{switch.process.pid}/fd") if name])
    check(served < 200, "the switch keeps", served, "descriptors")
    serves(switch, host, "a crowd")
    for client in crowd:
        client.close()


@test(timeout=60, dpdk=True)
def what_is_written_is_logged(lab):
    """A guest that is to be moved: pages that frames and used rings are written to are noted, and
    no others."""
    if lab.is_ovs:
        raise Skip("the layout of the log is Open vSwitch's own affair")
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    one.features |= LOG_ALL
    one.protocol = REPLY_ACK | LOG_SHMFD
    one.accept().negotiate().share()
    one.offer_buffers()
    for index in (0, 1):
        one.bring_up(index)
    two.accept().start()
    for name in ("v1", "v2"):
        wait_for(
            f"{name} is up", lambda name=name: switch.get("Interface", name, "link_state") == "up"
        )
    log = one.log_writes(one.size // 4096)
    two.send(FRAME)
    equal(one.receive(5, until=1), [FRAME], "what comes while writes are logged")
    one.send(FRAME)
    equal(two.receive(5, until=1), [FRAME], "what goes while writes are logged")
    noted = {page for page in range(one.size // 4096) if log[page // 8] >> page % 8 & 1}
    first, second = one.rings
    wanted = {
        first.buffers[0] // 4096,
        (first.offset + 0x6000) // 4096,
        (second.offset + 0x6000) // 4096,
    }
    equal(noted, wanted, "pages noted")
    serves(switch, host, "a log of writes")


@test(timeout=120, dpdk=True)
def no_descriptor_is_lost_when_the_switch_dies(lab):
    """The daemon is killed with -9 under traffic, many times: all that was in the guest's rings
    comes back, in order, and frames flow again."""
    if lab.is_ovs:
        raise Skip("Open vSwitch's own promise; not compared")
    switch, host, (one, two) = with_guests(lab, "v1", "v2")
    for guest in (one, two):
        guest.protocol = REPLY_ACK | INFLIGHT
        guest.accept().start()
        check(guest.inflight() >= 2 * 16 * guest.slots, "in-flight state that is too small")
    for turn in range(4):
        for name in ("v1", "v2"):
            wait_for(
                f"{name} is up",
                lambda name=name: switch.get("Interface", name, "link_state") == "up",
                20,
            )
        for _ in range(20):
            one.send(*[FRAME] * 30)
            two.receive(0)
        switch.kill()
        # What is in the rings now, whoever comes next must deal with.
        one.send(*[FRAME] * 10) if len(one.rings[1].free) >= 10 else None
        switch.start()
        switch.flows(
            "priority=9,in_port=11,actions=output:12", "priority=9,in_port=12,actions=output:11"
        )
        for guest in (one, two):
            guest.hang_up()
            guest.accept(30).negotiate().inflight()
            guest.share()
            for index in (0, 1):
                guest.bring_up(index)
        ring = one.rings[1]
        wait_for("all that was sent is given back", lambda: ring.left() == 0)
        ring.free += [head for head, _ in ring.taken()]
        equal(sorted(ring.free), list(range(ring.size)), f"turn {turn}: slots that came back")
        two.receive(0.3)
        ring = two.rings[0]
        equal(
            ring.left(),
            len(ring.buffers[: ring.size]),
            f"turn {turn}: empty buffers that the switch has",
        )
        one.send(FRAME)
        equal(two.receive(5, until=1), [FRAME], f"turn {turn}: what comes afterwards")


# Takes minutes, so only on request. bench/soak.py has seen more frames taken than were sent (seed
# 3); this has not shown it.
@test(timeout=300, dpdk=True, on_request=True)
def guests_that_come_back(lab):
    """Front ends that come back many times, with other rings each time, while others send: nothing
    is taken from their rings that they have not sent."""
    switch, host, (one, two, three, four) = with_guests(lab, "v1", "v2", "v3", "v4")
    switch.ofctl("add-flow", "br0", "in_port=13,actions=output:14")
    for guest in (three, four):
        guest.accept().start()
    sent = got = 0
    for turn in range(60):
        for guest in (one, two):
            guest.slots = (64, 256, 1024)[turn * turn % 3]
            guest.accept(20).start()
        for name in ("v1", "v2"):
            wait_for(
                f"{name} is up",
                lambda name=name: switch.get("Interface", name, "link_state") == "up",
            )
        count = 1 + turn * 7 % 64
        three.send(*[FRAME] * 20)
        one.send(*[FRAME] * count)
        sent, got = sent + count, got + len(two.receive(3, until=count))
        four.receive(0)
        if turn % 2:
            one.enable(0, False)
            one.enable(0, True)
        ports = switch.counters()
        equal(
            (ports["v1"]["rx"]["pkts"], ports["v2"]["tx"]["pkts"], got),
            (sent, sent, sent),
            f"turn {turn}: taken from v1, given to v2, and what it got",
        )
        for guest in (one, two):
            guest.forget()
        for name in ("v1", "v2"):
            wait_for(
                f"{name} is down",
                lambda name=name: switch.get("Interface", name, "link_state") != "up",
                20,
            )
    serves(switch, host, "guests that came back")
