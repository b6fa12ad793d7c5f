"""What the sender of frames sends. `python3 -m unittest discover -s bench`; needs root."""

import ctypes
import os
import struct
import unittest
from unittest import mock

import live_frames

PEER = bytes.fromhex("020000000009")
XDP_REDIRECT = 4


def after(program):
    """A frame's source port, what the program says, and whether all else is as before, once it has
    run on the frame."""
    frame = live_frames.frame(PEER, 1024)
    data, out = (
        ctypes.create_string_buffer(frame, len(frame)),
        ctypes.create_string_buffer(len(frame)),
    )
    # struct bpf_attr.test: prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat.
    attributes = ctypes.create_string_buffer(
        struct.pack(
            "<IIIIQQI",
            program,
            0,
            len(frame),
            len(frame),
            ctypes.addressof(data),
            ctypes.addressof(out),
            1,
        ),
        128,
    )
    if live_frames.libc.syscall(live_frames.SYSCALL_BPF, live_frames.PROG_RUN, attributes, 128):
        raise OSError(ctypes.get_errno(), "BPF_PROG_RUN")
    same = (
        out.raw[: live_frames.SOURCE_PORT] + out.raw[live_frames.SOURCE_PORT + 2 :]
        == frame[: live_frames.SOURCE_PORT] + frame[live_frames.SOURCE_PORT + 2 :]
    )
    return (
        int.from_bytes(out.raw[live_frames.SOURCE_PORT :][:2], "big"),
        struct.unpack_from("<I", attributes, 4)[0],
        same,
    )


class OneCall(Exception):
    """Enough has been asked for."""


def asked_for_by_one_call():
    """How many frames, and with which flags, the sender asks the kernel for at a time."""
    asked = []

    def ask(command, attributes):
        if command == live_frames.PROG_RUN:
            asked.append(struct.unpack_from("<IIIIQQIIIIQQIII", attributes))
            raise OneCall
        return 0

    with (
        mock.patch.object(live_frames, "bpf", ask),
        mock.patch("sys.argv", ["live_frames.py", "lo", PEER.hex(":")]),
        mock.patch("signal.signal"),
    ):
        try:
            live_frames.main()
        except OneCall:
            pass
    return asked[0][6], asked[0][12]


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Sending(unittest.TestCase):
    """The program, and how it is run."""

    def test_frames_are_of_all_flows_in_no_order(self):
        program = live_frames.redirecting(1)
        self.addCleanup(os.close, program)
        ports = [after(program)[0] for _ in range(3000)]
        self.assertEqual(set(ports), set(range(1024, 1088)))
        alike = sum(one == other for one, other in zip(ports, ports[1:]))
        self.assertLess(alike, 300, "neighbours of one flow: 47 are to be expected")
        self.assertEqual(after(program)[1:], (XDP_REDIRECT, True))

    def test_a_call_is_long_beside_the_silence_after_it(self):
        # At 10 million a second, half a second: the kernel is silent for 20 to 50 ms after each
        # call.
        repeat, flags = asked_for_by_one_call()
        self.assertGreater(repeat, 4_000_000)
        self.assertEqual(flags, live_frames.LIVE_FRAMES)


if __name__ == "__main__":
    unittest.main()
