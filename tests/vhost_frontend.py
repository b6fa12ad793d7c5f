"""The guest's side of vhost-user by hand: sockets, shared memory and rings, so that tests decide
every message and every descriptor.

`FrontEnd` speaks the protocol (QEMU's docs/interop/vhost-user.rst), `Ring` is a split virtqueue
(virtio 1.1, section 2.6) in memory that both sides share. A front end listens, as one for ports of
type dpdkvhostuserclient does, or connects (dpdkvhostuser). What a friendly guest does takes a few
lines:

    guest = FrontEnd(path).listen()
    ...                                     # the port is added
    guest.accept().start()
    guest.send(frame)                       # to the switch, by ring 1
    frames = guest.receive()                # from the switch, by ring 0

What a hostile one does has methods of its own: `unread`, `half`, `bad_memory`, `truncate`,
`offer_endless`.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import select
import socket
import struct
import time

# Requests of a front end.
GET_FEATURES, SET_FEATURES, SET_OWNER, RESET_OWNER, SET_MEM_TABLE, SET_LOG_BASE = 1, 2, 3, 4, 5, 6
(
    SET_VRING_NUM,
    SET_VRING_ADDR,
    SET_VRING_BASE,
    GET_VRING_BASE,
    SET_VRING_KICK,
    SET_VRING_CALL,
    SET_VRING_ERR,
) = 8, 9, 10, 11, 12, 13, 14
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_VRING_ENABLE = 15, 16, 17, 18
GET_INFLIGHT_FD, SET_INFLIGHT_FD = 31, 32

# Feature bits: virtio-net's (virtio 1.1, section 5.1.3), the ring's (section 6), and vhost-user's
# own.
CSUM, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, HOST_TSO4, HOST_TSO6, MERGEABLE = (
    1 << 0,
    1 << 1,
    1 << 7,
    1 << 8,
    1 << 11,
    1 << 12,
    1 << 15,
)
LOG_ALL, INDIRECT, EVENT_INDEX, PROTOCOL_FEATURES, VERSION_1 = (
    1 << 26,
    1 << 28,
    1 << 29,
    1 << 30,
    1 << 32,
)
# Bits of the protocol's own features.
MULTIQUEUE, LOG_SHMFD, REPLY_ACK, INFLIGHT = 1 << 0, 1 << 1, 1 << 3, 1 << 12

VERSION, REPLY, NEED_REPLY = 1, 1 << 2, 1 << 3
NEXT, WRITE, IS_INDIRECT = 1, 2, 4
NO_INTERRUPT = 1
# The header before each frame (struct virtio_net_hdr_v1).
HEADER = 12
NEEDS_CSUM, TCPV4 = 1, 1

# Where the front end says that its memory begins in its own address space: nobody reads there, the
# other side only subtracts it.
USER_BASE = 0x7F0000000000
# What a ring takes: descriptors, then the available ring, then the used one. Enough for 1024 slots.
RING_BYTES, AVAILABLE, USED = 0x10000, 0x4000, 0x6000
MOST_SLOTS = 1024
BUFFER = 2048


class Refused(Exception):
    """The other side answered that it could not do what it was asked for."""


class Memory:
    """Shared memory of a front end. It may lie at any address of the guest."""

    def __init__(self, size, guest_base=0):
        self.size, self.guest_base = size, guest_base
        self.fd = os.memfd_create("frontend", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)

    def region(self):
        """As SET_MEM_TABLE tells of it: guest address, size, user address, offset in the file."""
        return struct.pack("<QQQQ", self.guest_base, self.size, USER_BASE, 0)

    def truncate(self, size=0):
        """Takes the memory away while the other side has it mapped: whoever touches it gets SIGBUS.

        This side lets go of it first."""
        if self.map is not None:
            self.map.close()
            self.map = None
        os.ftruncate(self.fd, size)

    def close(self):
        """Gives it back."""
        if self.map is not None:
            self.map.close()
            self.map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Ring:
    """A split virtqueue at an offset of a memory."""

    def __init__(self, memory, offset, size=256, buffers=None):
        if size & size - 1 or not 1 <= size <= MOST_SLOTS:
            raise ValueError(f"a ring of {size} slots")
        self.memory, self.offset, self.size, self.buffers = memory, offset, size, buffers
        self.available = self.seen = 0
        self.free = list(range(size))
        self.kick, self.call = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        # The other side need not wake this one up, which looks for itself.
        struct.pack_into("<HH", memory.map, offset + AVAILABLE, NO_INTERRUPT, 0)

    def describe(self, slot, address, length, flags=0, following=0):
        """Writes a descriptor; the address counts from the memory's beginning."""
        struct.pack_into(
            "<QIHH",
            self.memory.map,
            self.offset + slot * 16,
            self.memory.guest_base + address,
            length,
            flags,
            following,
        )

    def offer(self, *heads):
        """Puts chains into the available ring and shows them to the other side."""
        for head in heads:
            struct.pack_into(
                "<H",
                self.memory.map,
                self.offset + AVAILABLE + 4 + self.available % self.size * 2,
                head,
            )
            self.available = self.available + 1 & 0xFFFF
        # In one store, which the machine's own order of bytes is written by ("<H" goes byte by
        # byte): the other side reads meanwhile.
        struct.pack_into("@H", self.memory.map, self.offset + AVAILABLE + 2, self.available)

    def notify(self):
        """Kicks the other side."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.kick, 1)

    def used(self):
        """How far the other side has come, modulo 65536."""
        return struct.unpack_from("@H", self.memory.map, self.offset + USED + 2)[0]

    def left(self):
        """Chains that the other side has not given back."""
        return self.available - self.used() & 0xFFFF

    def taken(self):
        """Heads and lengths of chains that came back since the last call."""
        result, until = [], self.used()
        while self.seen != until:
            result.append(
                struct.unpack_from(
                    "<II", self.memory.map, self.offset + USED + 4 + self.seen % self.size * 8
                )
            )
            self.seen = self.seen + 1 & 0xFFFF
        return result

    def close(self):
        """Gives descriptors back."""
        for fd in (self.kick, self.call):
            os.close(fd)


class FrontEnd:
    """A virtio-net device of one queue pair: ring 0 is what it receives by, ring 1 what it sends
    by."""

    def __init__(
        self,
        path,
        memory=8 << 20,
        slots=256,
        features=VERSION_1 | INDIRECT | PROTOCOL_FEATURES,
        protocol=REPLY_ACK,
        seconds=10,
    ):
        self.path, self.slots, self.features, self.protocol, self.seconds = (
            path,
            slots,
            features,
            protocol,
            seconds,
        )
        self.size = memory
        self.listener = self.peer = self.memory = None
        self.rings, self.agreed, self.agreed_protocol = [], 0, 0

    # Sockets.

    def listen(self):
        """Waits for a switch that connects; takes the path from whoever had it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(4)
        return self

    def accept(self, seconds=None):
        """Takes the switch's connection."""
        self.listener.settimeout(seconds or 3 * self.seconds)
        self.peer, _ = self.listener.accept()
        self.peer.settimeout(self.seconds)
        return self

    def connect(self):
        """Connects to a switch that listens; one that is being set up is waited for."""
        end = time.monotonic() + self.seconds
        while True:
            self.peer = socket.socket(socket.AF_UNIX)
            self.peer.settimeout(self.seconds)
            try:
                self.peer.connect(self.path)
                return self
            except (FileNotFoundError, ConnectionRefusedError):
                self.peer.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def hang_up(self):
        """Closes the connection and keeps everything else."""
        if self.peer is not None:
            self.peer.close()
            self.peer = None

    def close(self):
        """Lets go of everything; may be called twice."""
        self.forget()
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def forget(self):
        """Hangs up and gives memory and rings back; the next connection makes new ones."""
        self.hang_up()
        for ring in self.rings:
            ring.close()
        self.rings = []
        if self.memory is not None:
            self.memory.close()
            self.memory = None

    # Messages.

    def say(self, request, payload=b"", fds=(), flags=0):
        """Sends one message and waits for no answer."""
        socket.send_fds(
            self.peer,
            [struct.pack("<III", request, VERSION | flags, len(payload)) + payload],
            list(fds),
        )

    def answer(self, request):
        """Reads one answer, which must be to this request."""
        head = self.exactly(12)
        got, flags, size = struct.unpack("<III", head)
        if got != request or flags & 3 != VERSION or not flags & REPLY or size > 4096:
            raise ConnectionError(f"a strange answer to request {request}: {head.hex()}")
        return self.exactly(size)

    def exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.peer.recv(size - len(data))
            if not part:
                raise ConnectionError("the switch closed the connection")
            data += part
        return data

    def ask(self, request, payload=b"", fds=()):
        """Sends one message that has an answer of its own."""
        self.say(request, payload, fds)
        return self.answer(request)

    def tell(self, request, payload=b"", fds=()):
        """Sends one message, and where the other side can say so, waits until it has been obeyed;
        `Refused` where it could not be."""
        if not self.agreed_protocol & REPLY_ACK:
            self.say(request, payload, fds)
            return
        self.say(request, payload, fds, NEED_REPLY)
        (status,) = struct.unpack("<Q", self.answer(request))
        if status:
            raise Refused(f"request {request}: {status}")

    # What a friendly guest says.

    def negotiate(self):
        """Agrees on features."""
        (offered,) = struct.unpack("<Q", self.ask(GET_FEATURES))
        self.agreed, self.agreed_protocol = self.features & offered, 0
        if self.agreed & PROTOCOL_FEATURES:
            (offered,) = struct.unpack("<Q", self.ask(GET_PROTOCOL_FEATURES))
            self.say(SET_PROTOCOL_FEATURES, struct.pack("<Q", self.protocol & offered))
            self.agreed_protocol = self.protocol & offered
        self.tell(SET_OWNER)
        self.tell(SET_FEATURES, struct.pack("<Q", self.agreed))
        return self

    def share(self):
        """Makes memory and rings, if there are none yet, and shares the memory."""
        if self.memory is None:
            self.memory = Memory(self.size)
            area = (self.size - 2 * RING_BYTES) // 2
            for index in (0, 1):
                first = 2 * RING_BYTES + index * area
                buffers = [
                    first + slot * BUFFER
                    for slot in range(self.slots)
                    if (slot + 1) * BUFFER <= area
                ]
                self.rings.append(Ring(self.memory, index * RING_BYTES, self.slots, buffers))
        self.tell(SET_MEM_TABLE, struct.pack("<II", 1, 0) + self.memory.region(), [self.memory.fd])
        return self

    def bring_up(self, index, enable=True):
        """Tells of one ring."""
        ring = self.rings[index]
        base = USER_BASE + ring.offset
        self.tell(SET_VRING_NUM, struct.pack("<II", index, ring.size))
        self.tell(SET_VRING_BASE, struct.pack("<II", index, ring.used()))
        self.tell(
            SET_VRING_ADDR, struct.pack("<IIQQQQ", index, 0, base, base + USED, base + AVAILABLE, 0)
        )
        self.tell(SET_VRING_CALL, struct.pack("<Q", index), [ring.call])
        self.tell(SET_VRING_KICK, struct.pack("<Q", index), [ring.kick])
        if enable and self.agreed & PROTOCOL_FEATURES:
            self.enable(index, True)

    def enable(self, index, on, told=True):
        """Switches a ring on or off; with `told`, waits until that is done."""
        (self.tell if told else self.say)(SET_VRING_ENABLE, struct.pack("<II", index, int(on)))

    def start(self, receive=True):
        """All that makes a connection a device.

        With `receive`, empty buffers are offered to the switch."""
        self.negotiate().share()
        if receive:
            self.offer_buffers()
        for index in (0, 1):
            self.bring_up(index)
        return self

    def inflight(self):
        """Asks for in-flight state for both rings, and gives it back, as a front end does that
        comes back; returns its size."""
        self.say(GET_INFLIGHT_FD, struct.pack("<QQHH4x", 0, 0, 2, self.slots))
        head, fds, _, _ = socket.recv_fds(self.peer, 12, 1)
        request, _, length = struct.unpack("<III", head)
        if request != GET_INFLIGHT_FD or len(fds) != 1:
            raise ConnectionError(
                f"a strange answer to GET_INFLIGHT_FD: {head.hex()}, {len(fds)} descriptors"
            )
        told = self.exactly(length)
        try:
            self.tell(SET_INFLIGHT_FD, told, fds)
        finally:
            os.close(fds[0])
        return struct.unpack_from("<Q", told)[0]

    def log_writes(self, pages):
        """Has the switch note in a log what it writes from now on: as a guest is told that is to be
        moved. Returns the log, a bit a page."""
        fd = os.memfd_create("log", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, 4096)
            log = mmap.mmap(fd, 4096)
            self.ask(SET_LOG_BASE, struct.pack("<QQ", -(-pages // 8), 0), [fd])
        finally:
            os.close(fd)
        self.agreed |= LOG_ALL
        self.tell(SET_FEATURES, struct.pack("<Q", self.agreed))
        for index, ring in enumerate(self.rings):
            base = USER_BASE + ring.offset
            used = self.memory.guest_base + ring.offset + USED
            self.tell(
                SET_VRING_ADDR,
                struct.pack("<IIQQQQ", index, 1, base, base + USED, base + AVAILABLE, used),
            )
        return log

    # Frames.

    def offer_buffers(self):
        """Offers every free slot of ring 0 to the switch."""
        ring = self.rings[0]
        slots = [slot for slot in ring.free if slot < len(ring.buffers)]
        for slot in slots:
            ring.describe(slot, ring.buffers[slot], BUFFER, WRITE)
            ring.free.remove(slot)
        ring.offer(*slots)
        if slots:
            ring.notify()

    def send(self, *frames, header=bytes(HEADER), seconds=5):
        """Sends frames to the switch, each in one buffer; waits for slots."""
        ring, end = self.rings[1], time.monotonic() + seconds
        for frame in frames:
            while not ring.free:
                ring.free += [head for head, _ in ring.taken()]
                if not ring.free and time.monotonic() > end:
                    raise TimeoutError("the switch takes no frames")
            slot = ring.free.pop(0)
            data = header + frame
            if len(data) > BUFFER:
                raise ValueError("a frame longer than a buffer")
            address = ring.buffers[slot % len(ring.buffers)]
            self.memory.map[address : address + len(data)] = data
            ring.describe(slot, address, len(data))
            ring.offer(slot)
        ring.notify()

    def receive(self, seconds=1.0, wanted=None, until=None):
        """Frames that come within some seconds; stops early after `until` of those `wanted`."""
        ring, frames, end = self.rings[0], [], time.monotonic() + seconds
        while until is None or len(frames) < until:
            for slot, length in ring.taken():
                frame = bytes(
                    self.memory.map[ring.buffers[slot] + HEADER : ring.buffers[slot] + length]
                )
                if wanted is None or wanted(frame):
                    frames.append(frame)
                ring.free.append(slot)
            self.offer_buffers()
            if time.monotonic() > end:
                break
            time.sleep(0.001)
        return frames

    # What a hostile one does.

    def unread(self, most=100_000):
        """Asks for features again and again and reads no answer, until the other side takes no
        more; returns how many questions it took."""
        message = struct.pack("<III", GET_FEATURES, VERSION, 0)
        self.peer.setblocking(False)
        try:
            for asked in range(most):
                try:
                    if self.peer.send(message) < len(message):
                        return asked
                except OSError as error:
                    # Whether it waits or has hung up is for the caller to find out.
                    if error.errno in (errno.EAGAIN, errno.EPIPE, errno.ECONNRESET):
                        return asked
                    raise
            return most
        finally:
            self.peer.settimeout(self.seconds)

    def half(self, request=SET_MEM_TABLE, promised=40, given=8):
        """Sends the beginning of a message, whose head promises so many bytes: the head and `given`
        of them; where that is negative, less than the head."""
        message = struct.pack("<III", request, VERSION, promised) + bytes(promised)
        self.peer.send(message[: 12 + given])

    def bad_memory(self, fd=None, size=1 << 20):
        """A memory table whose descriptor cannot be mapped (by default, a pipe's), or none at all
        with fd=-1."""
        ends = os.pipe() if fd is None else ()
        fds = [ends[0]] if ends else [] if fd < 0 else [fd]
        try:
            self.tell(
                SET_MEM_TABLE,
                struct.pack("<II", 1, 0) + struct.pack("<QQQQ", 0, size, USER_BASE, 0),
                fds,
            )
        finally:
            for end in ends:
                os.close(end)

    def truncate(self, size=0):
        """Takes the memory away while the switch has it mapped."""
        self.memory.truncate(size)

    def chain(self, total, part=1 << 20, index=1, flags=0, at=2 * RING_BYTES):
        """Describes one chain of `total` bytes, in parts that all lie at one place of the memory;
        returns the chain's length in descriptors. Its head is slot 0."""
        ring = self.rings[index]
        part = min(part, self.memory.size - at)
        count = -(-total // part)
        if count > ring.size:
            raise ValueError(f"a chain of {count} descriptors in a ring of {ring.size}")
        for slot in range(count):
            last = slot == count - 1
            ring.describe(
                slot,
                at,
                total - part * (count - 1) if last else part,
                flags | (0 if last else NEXT),
                0 if last else slot + 1,
            )
        return count

    def offer_endless(self, head=0, index=1):
        """Fills the available ring with one chain, as often as it goes in; to be called again and
        again. Returns how many were added."""
        ring = self.rings[index]
        room = ring.size - ring.left()
        if room > 0:
            ring.offer(*[head] * room)
            ring.notify()
        return max(0, room)

    def closed_by_switch(self, seconds=5):
        """Whether the switch closes the connection in that time; answers that come meanwhile are
        read."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.peer], [], [], left)[0]:
                return False
            try:
                if not self.peer.recv(65536):
                    return True
            except ConnectionResetError:
                return True
        return False


def tcp_header(gso_size, length):
    """A header before a TCP/IPv4 frame of so many bytes that is to be cut into segments of
    gso_size."""
    if length > 65535 + 14:
        raise ValueError("longer than an IPv4 packet")
    return struct.pack("<BBHHHHH", NEEDS_CSUM, TCPV4, 54, gso_size, 34, 16, 0)


def tcp_frame(length, source="020000000031", target="020000000032"):
    """A TCP/IPv4 frame of so many bytes, whose checksum is left to whoever cuts it: only the pseudo
    header's sum is there."""
    total = length - 14
    addresses = bytes([10, 8, 0, 1, 10, 8, 0, 2])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, total, 0, 0x4000, 64, 6, 0) + addresses
    ip = ip[:10] + struct.pack("!H", 0xFFFF ^ folded(ip)) + ip[12:]
    pseudo = addresses + struct.pack("!HH", 6, total - 20)
    tcp = struct.pack("!HHIIBBHHH", 4000, 5001, 1, 1, 0x50, 0x10, 8192, folded(pseudo), 0)
    return (bytes.fromhex(target) + bytes.fromhex(source) + b"\x08\x00" + ip + tcp).ljust(
        length, b"x"
    )


def folded(data):
    """The one's complement sum of words of 16 bits."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def die_with_parent():
    """The calling process ends when its parent does (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, 9)
