"""What the sender of frames sends. `python3 -m unittest discover -s bench`; needs root."""
import ctypes
import json
import os
import struct
import subprocess
import unittest
from unittest import mock

import live_frames

PEER = bytes.fromhex("020000000009")
CLONE_NEWNET = 0x40000000
XDP_REDIRECT = 4


def after(times):
    """A frame's source port, and what the program says, once it has run on the frame so many times."""
    frame = live_frames.frame(PEER, 1024)
    data, out = ctypes.create_string_buffer(frame, len(frame)), ctypes.create_string_buffer(len(frame))
    # struct bpf_attr.test: prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat.
    attributes = ctypes.create_string_buffer(struct.pack("<IIIIQQI", live_frames.redirecting(1), 0, len(frame), len(frame), ctypes.addressof(data), ctypes.addressof(out), times), 128)
    if live_frames.libc.syscall(live_frames.SYSCALL_BPF, live_frames.PROG_RUN, attributes, 128):
        raise OSError(ctypes.get_errno(), "BPF_PROG_RUN")
    same = out.raw[:live_frames.SOURCE_PORT] + out.raw[live_frames.SOURCE_PORT + 2:] == frame[:live_frames.SOURCE_PORT] + frame[live_frames.SOURCE_PORT + 2:]
    return int.from_bytes(out.raw[live_frames.SOURCE_PORT:][:2], "big"), struct.unpack_from("<I", attributes, 4)[0], same


class OneCall(Exception):
    """Enough has been sent."""


def sent_by_one_call():
    """Frames that leave a veth in a network namespace of the calling process while the sender makes its first call."""
    if live_frames.libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    for command in ("ip link add name va type veth peer name vb", "ip link set dev va up", "ip link set dev vb up", "ethtool -K vb gro on"):
        subprocess.run(command.split(), check=True)

    def once(command, attributes, real=live_frames.bpf):
        result = real(command, attributes)
        if command == live_frames.PROG_RUN:
            raise OneCall
        return result
    with mock.patch.object(live_frames, "bpf", once), mock.patch("sys.argv", ["live_frames.py", "va", PEER.hex(":")]):
        try:
            live_frames.main()
        except OneCall:
            pass
    done = subprocess.run("ip -j -s link show dev va".split(), check=True, capture_output=True)
    return json.loads(done.stdout)[0]["stats64"]["tx"]["packets"]


def elsewhere(work):
    """What `work` returns in a child process, so that this one stays in its namespaces."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="ascii") as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Sending(unittest.TestCase):
    """The program, and how it is run."""

    def test_a_frames_memory_goes_through_all_flows(self):
        self.assertEqual([after(times)[0] for times in (1, 2, 63, 64, 65)], [1025, 1026, 1087, 1024, 1025])
        self.assertEqual(after(1)[1:], (XDP_REDIRECT, True))

    def test_a_call_is_long_beside_the_silence_after_it(self):
        # At 10 million a second, half a second: the kernel is silent for 20 to 50 ms after each call.
        self.assertGreater(elsewhere(sent_by_one_call), 4_000_000)


if __name__ == "__main__":
    unittest.main()
