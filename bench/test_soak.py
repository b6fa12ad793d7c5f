"""What bench/soak.py computes. `python3 -m unittest discover -s bench`."""

import random
import unittest

import soak

GOOD = {
    "memory MB": 100,
    "mappings": 1000,
    "descriptors": 500,
    "threads": 8,
    "kernel uncounted": 0,
    "guest uncounted": 0,
    "others uncounted": 0,
    "echo ms": 20,
}


def rows(count=50, **changes):
    """Turns, a minute apart, of which each figure named in `changes` is a function of the turn."""
    return [
        GOOD
        | {"seconds": 60.0 * turn}
        | {name.replace("_", " "): change(turn) for name, change in changes.items()}
        for turn in range(count)
    ]


class Trends(unittest.TestCase):
    """Slopes, and what a run is judged by."""

    def test_single_values_that_stand_out_do_not_matter(self):
        samples = [(turn, 100 + 2 * turn) for turn in range(40)]
        samples[20] = (20, 1e9)
        self.assertAlmostEqual(soak.slope(samples), 2)

    def test_without_two_times_there_is_no_slope(self):
        self.assertEqual(soak.slope([]), 0)
        self.assertEqual(soak.slope([(1, 5), (1, 9)]), 0)

    def test_the_first_fifth_may_grow(self):
        growth, middle = soak.grown([(turn, min(turn, 10) * 50) for turn in range(50)])
        self.assertEqual((growth, middle), (0, 500))

    def test_long_runs_are_thinned_and_say_the_same(self):
        growth, _ = soak.grown([(turn, turn * 0.5) for turn in range(5000)])
        self.assertAlmostEqual(growth, 2000, delta=10)

    def test_a_run_without_faults_passes(self):
        draw = random.Random(1)
        self.assertEqual(
            soak.verdict(
                rows(
                    memory_MB=lambda _: 100 + draw.random() * 5,
                    descriptors=lambda _: 500 + draw.randrange(5),
                )
            ),
            [],
        )

    def test_each_fault_is_told(self):
        for changes in (
            {"memory_MB": lambda turn: 100 + turn},
            {"mappings": lambda turn: 1000 + 2 * turn},
            {"descriptors": lambda turn: 500 + turn // 3},
            {"threads": lambda turn: 8 + turn // 10},
            {"kernel_uncounted": lambda turn: int(turn == 7)},
            {"guest_uncounted": lambda turn: -int(turn == 7)},
            {"others_uncounted": lambda turn: int(turn == 49)},
            {"echo_ms": lambda turn: 20 if turn else 1001},
        ):
            with self.subTest(list(changes)):
                self.assertEqual(len(soak.verdict(rows(**changes))), 1)

    def test_a_run_without_turns_fails(self):
        self.assertEqual(soak.verdict([]), ["no turn was completed"])


class Turns(unittest.TestCase):
    """The daemon's own longest turns."""

    def test_they_are_found_wherever_they_are_told(self):
        stats = {
            "time_us": 7,
            "workers": [{"name": "pmd-c01", "longest_turn_us": 120, "packets": 5}],
            "control": {"longest_us": 900},
        }
        coverage = (
            "control_longest_turn   0.0/sec  0.0/sec   0.0/sec   total: 42\n"
            "packets 1.0/sec 1/sec 1/sec total: 7\n"
        )
        self.assertEqual(
            soak.longest_turns(stats, coverage),
            {
                "workers pmd-c01 longest_turn_us": 120,
                "control longest_us": 900,
                "control_longest_turn": 42,
            },
        )

    def test_a_daemon_that_tells_of_none(self):
        self.assertEqual(soak.longest_turns({"workers": [{"name": "a", "packets": 5}]}, ""), {})


if __name__ == "__main__":
    unittest.main()
