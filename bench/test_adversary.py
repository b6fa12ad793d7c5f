"""What bench/adversary.py computes. `python3 -m unittest discover -s bench`."""

import contextlib
import io
import os
import socket
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")
)
import adversary
import vhost_frontend


def port(**lost):
    """A port's counters as ovs-ofctl tells of them."""
    return {
        way: {"pkts": 1000, "bytes": 64000, "drop": 0, "errs": 0, **lost} for way in ("rx", "tx")
    }


class Figures(unittest.TestCase):
    """Rates, waits and shares."""

    def test_time_without_a_processor_does_not_count(self):
        self.assertEqual(adversary.of_its_time(300, 3_000_000_000, 0), 100)
        self.assertEqual(adversary.of_its_time(300, 3_000_000_000, 1_500_000_000), 200)

    def test_a_thread_that_only_waited_has_no_rate(self):
        self.assertIsNone(adversary.of_its_time(0, 1_000_000, 1_000_000))

    def test_percentiles_are_values_that_occurred(self):
        self.assertIsNone(adversary.percentile([], 99))
        self.assertEqual(adversary.percentile([7], 99), 7)
        self.assertEqual(adversary.percentile(range(1, 101), 99), 99)
        self.assertEqual(adversary.percentile(range(1, 101), 50), 50)
        self.assertEqual(adversary.percentile([3, 1, 2], 100), 3)

    def test_waits_are_excused_by_what_threads_waited_for_a_processor_and_no_more(self):
        self.assertAlmostEqual(adversary.excused(0.080, 20_000_000, 15_000_000), 45)
        self.assertEqual(adversary.excused(0.001, 5_000_000), 0)

    def test_waits_are_read_from_schedstat(self):
        self.assertEqual(adversary.waited_ns("123 456 7\n"), 456)
        self.assertGreaterEqual(adversary.waits_of(os.getpid(), os.getpid()), 0)
        self.assertEqual(adversary.waits_of(os.getpid(), 1 << 30), 0)

    def test_lost_packets_are_those_that_no_counter_names(self):
        self.assertEqual(adversary.uncounted(1000, 900, 60, 40), 0)
        self.assertEqual(adversary.uncounted(1000, 900, 0, 40), 60)
        self.assertEqual(adversary.uncounted(1000, 1000, 0, 1), -1)

    def test_counters_of_lost_packets_are_summed_over_their_places_only(self):
        before = {"v1": port(drop=5), "v2": port()}
        after = {"v1": port(drop=7, errs=1, frame=None), "v2": port(drop=10)}
        self.assertEqual(adversary.dropped(before, after, ("v1", "rx"), ("v2", "tx")), 13)
        self.assertEqual(adversary.dropped(before, after, ("v1", "rx")), 3)

    def test_a_round_is_compared_with_itself(self):
        first = {"memory": 10.0, "kernel": 0.8, "guest": 0.0, "echo ms": 1}
        beside = {"memory": 4.0, "kernel": 0.8, "guest": 0.0, "echo ms": 9}
        found = adversary.compared(first, beside, {"memory": 5.0})
        self.assertEqual(
            (
                found["memory kept"],
                found["memory after"],
                found["kernel kept"],
                found["guest kept"],
            ),
            (0.4, 0.5, 1, None),
        )
        self.assertEqual((found["echo ms"], found["alone: echo ms"]), (9, 1))
        self.assertNotIn("memory kept", adversary.compared(first, None, None))


class Goal(unittest.TestCase):
    """What is said of a daemon."""

    GOOD = {
        "memory kept": 0.95,
        "kernel kept": 1.0,
        "guest kept": 0.91,
        "kernel uncounted": 0,
        "guest uncounted": 0,
        "echo ms": 50,
        "message ms": 3,
        "ended": 0,
    }

    def test_who_keeps_it_is_not_blamed(self):
        self.assertEqual(adversary.missed(self.GOOD), [])

    def test_each_part_of_it_is_looked_at(self):
        for change in (
            {"memory kept": 0.89},
            {"kernel kept": 0.0},
            {"guest kept": 0.5},
            {"kernel uncounted": 1},
            {"guest uncounted": -1},
            {"echo ms": 51},
            {"message ms": 1001},
            {"did: disconnected": 1},
            {"ended": 1},
        ):
            with self.subTest(change):
                self.assertEqual(len(adversary.missed(self.GOOD | change)), 1)

    def test_guests_that_send_take_their_share_of_the_worker_but_not_the_streams(self):
        self.assertEqual(adversary.missed(self.GOOD | {"memory kept": 0.3}, shared=True), [])
        self.assertEqual(len(adversary.missed(self.GOOD | {"guest kept": 0.3}, shared=True)), 1)
        for resting, wrong in ((2.6, 0), (2.4, 1)):
            rates = {"memory kept": 0.9, "memory resting": resting, "alone: memory": 9.0}
            figures = self.GOOD | rates
            self.assertEqual(len(adversary.missed(figures, shared=True, least=0.25)), wrong)

    def test_whoever_shares_the_memorys_worker_leaves_it_some_of_its_rate(self):
        for name, kind in adversary.ADVERSARIES.items():
            with self.subTest(name):
                self.assertEqual(kind.shared, kind.least > 0)

    def test_what_the_machine_takes_is_not_the_adversarys(self):
        self.assertEqual(
            adversary.missed(self.GOOD | {"memory kept": 0.7}, nobody={"memory kept": 0.75}), []
        )
        self.assertEqual(
            len(adversary.missed(self.GOOD | {"memory kept": 0.7}, nobody={"memory kept": 1.2})), 1
        )
        self.assertEqual(len(adversary.missed(self.GOOD | {"memory kept": 0.7}, nobody={})), 1)

    def test_medians_leave_out_what_could_not_be_measured(self):
        results = adversary.Results(None)
        for value in (0.2, None, 0.9, 1.0):
            results.add("churn", "s: memory kept", value)
        results.add("churn", "s: ended", 0)
        self.assertEqual(adversary.medians(results, "churn", "s"), {"memory kept": 0.9, "ended": 0})
        results.add("churn", "s: ended", 1)
        self.assertEqual(adversary.medians(results, "churn", "s")["ended"], 1)
        self.assertEqual(adversary.medians(results, "churn", "other"), {})

    def test_adversaries_have_names_of_their_own(self):
        for name, kind in adversary.ADVERSARIES.items():
            self.assertRegex(name, "^[a-z-]+$")
            self.assertTrue(kind.__doc__.startswith(f"{name}: "))


class Reports(unittest.TestCase):
    """What is printed, and how the program ends."""

    def report(self, figures, wanted=("nobody", "churn"), open_vswitch=False):
        results = adversary.Results(None)
        for name, row in figures.items():
            for what, value in row.items():
                results.add(name, f"s: {what}", value)
        out = io.StringIO()
        with (
            mock.patch.object(adversary.harness, "is_open_vswitch", lambda _: open_vswitch),
            contextlib.redirect_stdout(out),
        ):
            return adversary.report(results, {"s": ["daemon"]}, list(wanted)), out.getvalue()

    def test_what_holds_ends_well(self):
        code, text = self.report(
            {"nobody": {"memory kept": 0.5}, "churn": {"memory kept": 0.95, "did: seconds": 4.0}}
        )
        self.assertEqual(code, 0)
        self.assertIn("churn: seconds 4", text)

    def test_what_does_not_hold_ends_badly_but_for_open_vswitch(self):
        self.assertEqual(
            self.report({"nobody": {"memory kept": 1.0}, "churn": {"memory kept": 0.5}})[0], 1
        )
        self.assertEqual(
            self.report(
                {"nobody": {"memory kept": 1.0}, "churn": {"memory kept": 0.5}}, open_vswitch=True
            )[0],
            0,
        )

    def test_what_was_not_measured_does_not_hold(self):
        self.assertEqual(self.report({"nobody": {"memory kept": 1.0}})[0], 1)


class InProcesses(unittest.TestCase):
    """Functions aside, and what lies between a daemon and its database."""

    def test_what_is_asked_to_end_says_what_it_did(self):
        aside = adversary.Aside(lambda stop: {"waited": stop.wait(10)})
        self.assertEqual(aside.result(), {"waited": True})

    def test_what_fails_says_so(self):
        def fail(_stop):
            raise ValueError("no")

        self.assertEqual(adversary.Aside(fail).result(), {"problem": "ValueError: no"})

    def test_what_does_not_end_is_killed(self):
        aside = adversary.Aside(lambda stop: time.sleep(60))
        self.assertEqual(aside.result(0.2), {})
        self.assertFalse(aside.process.is_alive())

    def test_a_proxy_passes_on_and_holds_back(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        directory = place.name
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        server.bind(f"{directory}/db")
        server.listen()
        proxy = adversary.Proxy(f"{directory}/proxy", f"{directory}/db")
        self.addCleanup(proxy.listener.close)
        self.addCleanup(proxy.aside.result, 2)
        client = socket.socket(socket.AF_UNIX)
        self.addCleanup(client.close)
        client.connect(f"{directory}/proxy")
        server.settimeout(10)
        other, _ = server.accept()
        self.addCleanup(other.close)
        other.settimeout(10)
        client.sendall(b"asked")
        self.assertEqual(other.recv(100), b"asked")
        proxy.mode.value = proxy.STOP
        time.sleep(0.2)
        client.sendall(b"held back")
        other.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            other.recv(100)
        proxy.mode.value = proxy.SLOW
        other.settimeout(10)
        self.assertEqual(other.recv(100), b"held back")


class Rings(unittest.TestCase):
    """The front end's rings, with this test as the switch."""

    def setUp(self):
        self.guest = vhost_frontend.FrontEnd("/nowhere", slots=8)
        self.guest.memory = vhost_frontend.Memory(self.guest.size)
        self.addCleanup(self.guest.close)
        for index in (0, 1):
            first = 2 * vhost_frontend.RING_BYTES + index * (1 << 20)
            self.guest.rings.append(
                vhost_frontend.Ring(
                    self.guest.memory,
                    index * vhost_frontend.RING_BYTES,
                    8,
                    [first + slot * 2048 for slot in range(8)],
                )
            )

    def give_back(self, ring, *pairs):
        """What a switch does with chains it is done with."""
        for head, length in pairs:
            at = ring.used()
            vhost_frontend.struct.pack_into(
                "<II",
                ring.memory.map,
                ring.offset + vhost_frontend.USED + 4 + at % ring.size * 8,
                head,
                length,
            )
            vhost_frontend.struct.pack_into(
                "<H", ring.memory.map, ring.offset + vhost_frontend.USED + 2, at + 1 & 0xFFFF
            )

    def test_slots_are_used_again_past_the_counters_end(self):
        ring = self.guest.rings[1]
        for number in range(70_000):
            self.guest.send(b"x" * 60)
            head = ring.memory.map[ring.offset + vhost_frontend.AVAILABLE + 4 + number % 8 * 2]
            self.assertEqual(ring.left(), 1)
            self.give_back(ring, (head, 0))
        self.assertEqual(ring.used(), 70_000 & 0xFFFF)

    def test_a_full_ring_is_waited_for_and_given_up(self):
        self.guest.send(*[b"x" * 60] * 8)
        with self.assertRaises(TimeoutError):
            self.guest.send(b"x" * 60, seconds=0.05)

    def test_frames_come_without_their_header_and_buffers_are_offered_again(self):
        self.guest.offer_buffers()
        ring = self.guest.rings[0]
        self.assertEqual(ring.left(), 8)
        at = ring.buffers[3]
        self.guest.memory.map[at + 12 : at + 16] = b"data"
        self.give_back(ring, (3, 16))
        self.assertEqual(self.guest.receive(0.05), [b"data"])
        self.assertEqual(ring.left(), 8)

    def test_a_long_chain_ends_where_it_is_to(self):
        self.guest.rings[1] = ring = vhost_frontend.Ring(
            self.guest.memory, vhost_frontend.RING_BYTES, 256
        )
        self.assertEqual(self.guest.chain((64 << 20) + 5), 65)
        lengths, slot = [], 0
        while True:
            _, length, flags, following = vhost_frontend.struct.unpack_from(
                "<QIHH", ring.memory.map, ring.offset + slot * 16
            )
            lengths.append(length)
            if not flags & vhost_frontend.NEXT:
                break
            slot = following
        self.assertEqual((len(lengths), sum(lengths)), (65, (64 << 20) + 5))
        with self.assertRaises(ValueError):
            self.guest.chain(1 << 40)

    def test_a_frame_to_be_cut_has_right_sums(self):
        frame = vhost_frontend.tcp_frame(65535)
        self.assertEqual(len(frame), 65535)
        self.assertEqual(vhost_frontend.folded(frame[14:34]), 0xFFFF)
        with self.assertRaises(ValueError):
            vhost_frontend.tcp_header(32, 70_000)


if __name__ == "__main__":
    unittest.main()
