"""What bench/agreement.py says of figures."""

import unittest

import agreement
from agreement import Figure, chosen, disagreements, figure_of, verdict


class Agreement(unittest.TestCase):
    def test_intervals_are_those_of_the_lab(self):
        # crates/lab/src/statistics.rs: 4.303 times the deviation, 1, times the root of 2 * 0.4487.
        found = figure_of([9.0, 10.0, 11.0])
        self.assertEqual(found.middle, 10)
        self.assertAlmostEqual(found.high - 10, 4.0764, places=3)
        self.assertAlmostEqual(10 - found.low, 4.0764, places=3)

    def test_a_prediction_is_as_wide_as_it_says(self):
        found = figure_of([10.0, 10.0], [8.0, 11.0])
        self.assertEqual((found.low, found.middle, found.high), (8, 10, 11))

    def test_who_has_nothing_in_common_disagrees(self):
        figures = {
            "predict": Figure(10, 9, 11),
            "bench": Figure(12, 11, 13),
            "lab": Figure(13, 12, 14),
        }
        self.assertEqual(disagreements(figures), [("predict", "lab")])
        text, code = verdict(figures)
        self.assertEqual((text, code), ("predict and lab DISAGREE", 1))

    def test_what_is_wide_agrees_with_everything_and_tells_nothing(self):
        figures = {"predict": Figure(10, 9, 11), "bench": Figure(12, 5, 19)}
        self.assertEqual(verdict(figures), ("too wide to tell: bench", 2))
        figures["bench"] = Figure(11, 10, 12)
        self.assertEqual(verdict(figures), ("agree", 0))

    def test_rounds_in_which_the_machine_moved_come_last(self):
        rounds = [("a", 0.5), ("b", 0.01), ("c", 0.2), ("d", 0.04)]
        self.assertEqual([name for name, _ in chosen(rounds, 3)], ["b", "d", "c"])

    def test_constants_are_those_of_the_lab(self):
        path = f"{agreement.__file__.rpartition('/')[0]}/../crates/lab/src/statistics.rs"
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for values in (agreement.T, agreement.MEDIAN_VARIANCE):
            self.assertIn(f"[{', '.join(map(str, values))}]", text)


if __name__ == "__main__":
    unittest.main()
