"""Tests of what benchmarks share."""

import importlib
import os
import unittest
from unittest import mock

import contender


class Cores(unittest.TestCase):
    """The cores that benchmarks use."""

    def test_two_different_ones_are_named(self):
        self.assertEqual(contender.two_cores("3,12"), (3, 12))
        for text in ("", "1", "1,1", "1,0,2", "1,-2", "a,b"):
            with self.assertRaises(SystemExit, msg=text) as raised:
                contender.two_cores(text)
            self.assertIn(repr(text), str(raised.exception))

    def test_they_are_those_of_the_environment(self):
        try:
            with mock.patch.dict(os.environ, SLUICE_BENCH_CORES="4,2"):
                module = importlib.reload(contender)
                found = module.WORKER_CORE, module.OTHER_CORE, module.BOTH_CORES
        finally:
            importlib.reload(contender)
        self.assertEqual(found, (4, 2, 0b10100))


if __name__ == "__main__":
    unittest.main()
