"""The comparison of instruction counts: what grows fails, what shrinks is told.

`python3 -m unittest discover -s bench`."""

import unittest

import instructions


class Comparing(unittest.TestCase):
    """`compare`, from which the check's result comes."""

    def test_the_same_counts_pass_without_a_word(self):
        self.assertEqual(instructions.compare({"parse": 100.0}, {"parse": 100.0}), ([], False))

    def test_growth_within_the_limit_passes(self):
        self.assertEqual(instructions.compare({"parse": 100.0}, {"parse": 103.0}), ([], False))

    def test_growth_beyond_the_limit_fails_and_names_the_benchmark_and_both_counts(self):
        lines, failed = instructions.compare(
            {"parse": 100.0, "act": 50.0}, {"parse": 103.1, "act": 50.0}
        )
        self.assertTrue(failed)
        self.assertEqual(len(lines), 2)
        for part in ("GROWN", "parse", "103.10", "100.00", "+3.1%"):
            self.assertIn(part, lines[0])
        self.assertIn("make bench-accept", lines[1])

    def test_shrinking_passes_and_is_told(self):
        lines, failed = instructions.compare({"parse": 100.0}, {"parse": 90.0})
        self.assertFalse(failed)
        self.assertIn("shrunk  parse: 90.00", lines[0])

    def test_a_benchmark_without_a_record_fails(self):
        self.assertTrue(instructions.compare({}, {"parse": 1.0})[1])

    def test_a_record_without_a_benchmark_fails(self):
        lines, failed = instructions.compare({"parse": 1.0}, {})
        self.assertTrue(failed)
        self.assertIn("GONE    parse", lines[0])


class Records(unittest.TestCase):
    """The file with the counts."""

    def test_what_is_written_is_read(self):
        counts = {"parse udp, all words": 41.25, "walk l2l3": 1234.5}
        self.assertEqual(
            instructions.read_record(instructions.write_record("rustc 1.95.0", counts)),
            ("rustc 1.95.0", counts),
        )

    def test_a_damaged_record_is_refused(self):
        for text in (
            "",
            "12 parse\n",
            "compiler rustc 1.95.0\nparse 12\n",
            "compiler rustc 1.95.0\n1 parse\n2 parse\n",
        ):
            with self.assertRaises(instructions.Trouble):
                instructions.read_record(text)

    def test_the_record_on_file_is_sound(self):
        with open(instructions.RECORD, encoding="utf-8") as file:
            compiler, counts = instructions.read_record(file.read())
        self.assertTrue(compiler.startswith("rustc ") and counts)


if __name__ == "__main__":
    unittest.main()
