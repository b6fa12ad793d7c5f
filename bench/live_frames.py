#!/usr/bin/python3
"""A sender that costs next to nothing: frames made by the kernel and handed to an interface, a few
hundred at a time.

    bench/live_frames.py INTERFACE DESTINATION-MAC

Sends 64-byte UDP frames (without FCS 60 bytes), each of one of 64 flows, chosen at random, from
INTERFACE, until it is ended. BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES (linux/bpf.h) makes the
frames and runs a short XDP program on each, which chooses its flow and redirects it to the
interface: no system call, no socket buffer and no copy for each. A veth takes redirected frames
while its peer has GRO on.

When a call ends, the kernel waits for all processors before the program may go (RCU, 20 to 50 ms),
and sends nothing meanwhile. So calls are long: of 51,200 frames each, they were bursts of 5 ms at
10 Mpps with four times as long a silence after each, in which every switch was idle.
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
PRANDOM_U32, REDIRECT = 7, 23
# A power of two.
FLOWS = 64
# Where the source port lies in a frame.
SOURCE_PORT = 34
BATCH = 256
# A call that takes half a second at the least, so that its end costs next to nothing; a signal ends
# it sooner.
REPEAT = BATCH * 20_000

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    """The system call; its result."""
    buffer = ctypes.create_string_buffer(attributes, 128)
    result = libc.syscall(SYSCALL_BPF, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result


def redirecting(index):
    """A program that sends every frame to interface `index`, as one of a flow chosen at random:
    frames of a batch are of the same age, so one that counted would send runs of one flow."""

    def step(code, registers=0, offset=0, value=0):
        return struct.pack("<BBhi", code, registers, offset, value)

    program = b"".join(
        [
            step(0xBF, 0x16),  # r6 = r1, as calls take the others
            step(0x85, 0, 0, PRANDOM_U32),  # r0 = bpf_get_prandom_u32()
            step(0x57, 0x00, 0, FLOWS - 1),  # r0 &= FLOWS - 1
            step(0x61, 0x62),  # r2 = r6->data
            step(0x61, 0x63, 4),  # r3 = r6->data_end
            step(0xBF, 0x24),  # r4 = r2
            step(0x07, 0x04, 0, 60),  # r4 += 60
            step(0x2D, 0x34, 1),  # if r4 > r3 goto redirect, which the verifier wants to see
            step(0x73, 0x02, SOURCE_PORT + 1),  # the source port's lower byte = r0
            step(0xB7, 0x01, 0, index),  # redirect: r1 = index
            step(0xB7, 0x02),  # r2 = 0
            step(0x85, 0, 0, REDIRECT),  # r0 = bpf_redirect(r1, r2)
            step(0x95),  # return r0
        ]
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    license_text = ctypes.create_string_buffer(b"GPL")
    return bpf(
        PROG_LOAD,
        struct.pack(
            "<IIQQ",
            TYPE_XDP,
            len(program) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(license_text),
        ),
    )


def frame(destination, source_port):
    """A UDP frame from 10.9.0.1 to 10.9.0.200."""
    udp = struct.pack("!HHHH", source_port, 9, 26, 0) + bytes(18)
    ip = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(udp),
        0,
        0,
        64,
        17,
        0,
        bytes([10, 9, 0, 1]),
        bytes([10, 9, 0, 200]),
    )
    total = sum(struct.unpack("!10H", ip))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return (
        destination
        + bytes([2, 0, 0, 0, 0, 8])
        + b"\x08\x00"
        + ip[:10]
        + struct.pack("!H", checksum)
        + ip[12:]
        + udp
    )


def main():
    interface, destination = sys.argv[1], bytes.fromhex(sys.argv[2].replace(":", ""))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    program = redirecting(socket.if_nametoindex(interface))
    data = ctypes.create_string_buffer(frame(destination, 1024), 60)
    while True:
        bpf(
            PROG_RUN,
            struct.pack(
                "<IIIIQQIIIIQQIII",
                program,
                0,
                60,
                0,
                ctypes.addressof(data),
                0,
                REPEAT,
                0,
                0,
                0,
                0,
                0,
                LIVE_FRAMES,
                0,
                BATCH,
            ),
        )


if __name__ == "__main__":
    main()
