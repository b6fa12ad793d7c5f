"""A small OpenFlow 1.0 client for tests and measurements: it sends bytes as they are given and
waits for one kind of message."""

import socket
import struct

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY, BARRIER_REQUEST, BARRIER_REPLY = 0, 1, 2, 3, 18, 19


def header(kind, length, xid, version=1):
    """The head of a message whose body has this length."""
    return struct.pack("!BBHI", version, kind, 8 + length, xid)


class Connection:
    """A connection to a bridge's management socket."""

    def __init__(self, path, seconds=60):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds)
        self.socket.connect(path)
        self.buffer = b""
        self.errors = []
        self.socket.sendall(header(HELLO, 0, 0))
        self.wait_for(HELLO)

    def next_message(self):
        """Reads one message: its type, its transaction and all of it.

        Answers echo requests and keeps errors."""
        while len(self.buffer) < 8 or len(self.buffer) < struct.unpack("!H", self.buffer[2:4])[0]:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the switch closed the connection")
            self.buffer += data
        _, got, length, number = struct.unpack("!BBHI", self.buffer[:8])
        message, self.buffer = self.buffer[:length], self.buffer[length:]
        if got == ERROR:
            self.errors.append(message)
        elif got == ECHO_REQUEST:
            self.socket.sendall(header(ECHO_REPLY, length - 8, number) + message[8:])
        return got, number, message

    def wait_for(self, kind, xid=None):
        """Reads up to a message of this type and transaction, which it returns."""
        while True:
            got, number, message = self.next_message()
            if got == kind and xid in (None, number):
                return message

    def barrier(self, xid):
        """Waits until the switch has done all that was sent before."""
        self.socket.sendall(header(BARRIER_REQUEST, 0, xid))
        self.wait_for(BARRIER_REPLY, xid)

    def close(self):
        """Ends the connection."""
        self.socket.close()
