#!/usr/bin/python3
"""A sender that costs next to nothing: frames made by the kernel and handed to an interface, a few hundred at a time.

    bench/live_frames.py INTERFACE DESTINATION-MAC

Sends 64-byte UDP frames (without FCS 60 bytes) of 64 flows from INTERFACE, until it is ended. BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES (linux/bpf.h) makes the frames and runs an XDP program of four
instructions on each, which redirects it to the interface: no system call, no socket buffer and no copy for each. A veth takes redirected frames while its
peer has GRO on.
"""
import ctypes
import os
import signal
import socket
import struct
import sys

SYSCALL_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
PROG_LOAD, PROG_RUN = 5, 10
TYPE_XDP, LIVE_FRAMES = 6, 1 << 1
REDIRECT = 23
BATCH = 256
# A call that is long enough to cost nothing, and short enough to be ended.
REPEAT = BATCH * 200

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    """The system call; its result."""
    buffer = ctypes.create_string_buffer(attributes, 128)
    result = libc.syscall(SYSCALL_BPF, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result


def redirecting(index):
    """A program that sends every frame to interface `index`."""
    def step(code, registers=0, value=0):
        return struct.pack("<BBhi", code, registers, 0, value)
    # r1 = index; r2 = 0; r0 = bpf_redirect(r1, r2); return r0
    program = ctypes.create_string_buffer(step(0xb7, 1, index) + step(0xb7, 2, 0) + step(0x85, 0, REDIRECT) + step(0x95))
    license_text = ctypes.create_string_buffer(b"GPL")
    return bpf(PROG_LOAD, struct.pack("<IIQQ", TYPE_XDP, 4, ctypes.addressof(program), ctypes.addressof(license_text)))


def frame(destination, source_port):
    """A UDP frame from 10.9.0.1 to 10.9.0.200."""
    udp = struct.pack("!HHHH", source_port, 9, 26, 0) + bytes(18)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([10, 9, 0, 1]), bytes([10, 9, 0, 200]))
    total = sum(struct.unpack("!10H", ip))
    checksum = ~((total & 0xffff) + (total >> 16)) & 0xffff
    return destination + bytes([2, 0, 0, 0, 0, 8]) + b"\x08\x00" + ip[:10] + struct.pack("!H", checksum) + ip[12:] + udp


def main():
    interface, destination = sys.argv[1], bytes.fromhex(sys.argv[2].replace(":", ""))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    program = redirecting(socket.if_nametoindex(interface))
    frames = [ctypes.create_string_buffer(frame(destination, 1024 + number), 60) for number in range(64)]
    number = 0
    while True:
        data = frames[number % len(frames)]
        number += 1
        bpf(PROG_RUN, struct.pack("<IIIIQQIIIIQQIII", program, 0, 60, 0, ctypes.addressof(data), 0, REPEAT, 0, 0, 0, 0, 0, LIVE_FRAMES, 0, BATCH))


if __name__ == "__main__":
    main()
