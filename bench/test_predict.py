"""How predictions and measurements are compared: windows during which the machine moved, pairs, and
what counts as right. `python3 -m unittest discover -s bench`."""

import unittest
from unittest import mock

import predict
from predict import Window


def seen(additions=10.0, memory_ns=100.0):
    """A look at the machine."""
    return {"additions": additions, "memory_ns": memory_ns}


def window(mpps, told=(10.0, 10.0), before=None, after=None):
    """A measurement with its predictions; the machine stands still unless told otherwise."""
    return Window(mpps, before or seen(), after or seen(), 0.0, told)


def verdict(predictions, windows):
    """What is said of them when all are wanted."""
    return predict.judge(
        predictions,
        windows,
        [look for each in windows for look in (each.before, each.after)],
        len(windows),
    )


class Judging(unittest.TestCase):
    """`judge`, and what a verdict says."""

    def test_the_interval_is_that_of_the_windows(self):
        self.assertEqual(predict.error_beyond(10, [9, 10, 11]), 0)
        self.assertAlmostEqual(predict.error_beyond(12, [9, 10, 11]), 0.1)
        self.assertAlmostEqual(predict.error_beyond(8, [9, 10, 11]), 0.1)

    def test_on_a_machine_that_stands_still_pairs_change_nothing(self):
        for rates in ([9.0, 10.0, 10.5], [8.0, 8.2, 8.4], [8.6, 8.65, 8.69], [12.0, 12.5, 13.0]):
            found = verdict([10.0] * 4, [window(rate) for rate in rates])
            self.assertGreaterEqual(found.beyond, predict.error_beyond(10.0, rates))
            if min(rates) <= 10 <= max(rates):
                self.assertEqual(found.beyond, 0)

    def test_windows_of_a_faster_machine_excuse_no_pair(self):
        # The machine is at twice its speed in the last turn: as figures stand all is inside the
        # interval, but each pair is 40% wrong.
        windows = [
            window(10.0, (14.0, 14.0)),
            window(10.0, (14.0, 14.0)),
            window(20.0, (28.0, 28.0)),
        ]
        found = verdict([14.0, 14.0, 14.0, 28.0], windows)
        self.assertEqual(predict.error_beyond(found.predicted, found.rates), 0)
        self.assertGreater(found.beyond, 0.15)
        self.assertFalse(found.right)
        self.assertAlmostEqual(found.error, 0.4)

    def test_pairs_excuse_no_figures(self):
        # And the other way round: right in each pair, where these were of different machines, and
        # wrong as figures stand.
        windows = [window(10.0, (10.0, 10.0)), window(10.1, (10.1, 10.1))]
        found = verdict([13.0, 13.0, 13.0], windows)
        self.assertFalse(found.right)

    def test_a_moving_machine_that_is_followed_is_right(self):
        windows = [
            window(10.0, (10.0, 10.4)),
            window(15.0, (15.0, 15.2)),
            window(20.0, (20.0, 20.4)),
        ]
        found = verdict([10.0, 10.4, 15.2, 20.4], windows)
        self.assertTrue(found.right)
        self.assertLess(abs(found.error), 0.03)

    def test_looks_lie_as_far_apart_as_the_one_that_moved_more(self):
        self.assertEqual(predict.spread_of([seen(), seen()]), 0)
        self.assertAlmostEqual(predict.spread_of([seen(10.0), seen(8.0), seen(9.0)]), 0.25)
        self.assertAlmostEqual(predict.spread_of([seen(10.0, 100.0), seen(9.8, 130.0)]), 0.3)

    def test_a_look_that_saw_nothing_is_an_error(self):
        with self.assertRaises(RuntimeError):
            predict.spread_of([seen(), seen(0.0, 0.0)])

    def test_windows_that_stood_still_come_first_and_then_those_that_moved_least(self):
        moved = [
            window(1.0, after=seen(9.0)),
            window(2.0),
            window(3.0, after=seen(5.0)),
            window(4.0, after=seen(9.2)),
            window(5.0, after=seen(10.2)),
        ]
        found = predict.judge([10.0], moved, [], 3)
        self.assertEqual((found.rates, found.discarded, found.moving), ([2.0, 5.0, 4.0], 2, 1))


class Turns(unittest.TestCase):
    """`take_turns`, with a machine that moves as it is told."""

    def run_with(self, looks, rounds=3, discards=4):
        """What is done, in order, and the verdict."""
        done, speeds = [], iter(looks)

        def predicting():
            done.append("predict")
            return {"mpps": {"median": 10.0, "low": 9.0, "high": 11.0}}

        def measuring():
            done.append("measure")
            return 10.0, 0.01

        def looking():
            done.append("look")
            return seen(next(speeds))

        _, found = predict.take_turns(predicting, measuring, looking, rounds, discards)
        return done, found

    def test_each_window_stands_between_looks_and_these_between_predictions(self):
        done, found = self.run_with([10.0] * 6)
        self.assertEqual(done, ["predict"] + ["look", "measure", "look", "predict"] * 3)
        self.assertEqual((len(found.windows), found.discarded, found.moving), (3, 0, 0))

    def test_windows_are_taken_again_where_the_machine_moved(self):
        done, found = self.run_with([10.0, 8.0] + [10.0, 10.0] * 2 + [8.0, 10.0] + [10.0, 10.3])
        self.assertEqual(done.count("measure"), 5)
        self.assertEqual((len(found.windows), found.discarded, found.moving), (3, 2, 0))

    def test_a_machine_that_always_moves_is_not_waited_for(self):
        done, found = self.run_with([10.0, 5.0] * 20)
        self.assertEqual(done.count("measure"), 7)
        self.assertEqual((len(found.windows), found.discarded, found.moving), (3, 4, 3))

    def test_there_are_never_fewer_windows_than_rounds(self):
        done, found = self.run_with([10.0, 5.0] * 20, rounds=3, discards=0)
        self.assertEqual((done.count("measure"), len(found.windows), found.moving), (3, 3, 3))
        done, found = self.run_with([10.0, 10.0] + [10.0, 5.0] * 20, rounds=3, discards=1)
        self.assertEqual(
            (done.count("measure"), len(found.windows), found.moving, found.discarded), (4, 3, 2, 1)
        )


class Standing(unittest.TestCase):
    """A daemon stands still but for its windows; a process that counts seconds is one."""

    def test_it_goes_for_windows_only(self):
        said = []

        class Process:
            """Notes signals."""

            send_signal = staticmethod(said.append)

        class Switch:
            """Forwards five million packets a second."""

            process = Process

            @staticmethod
            def count(seconds):
                said.append("count")
                return {"in": seconds * 5e6, "out": 0, "out2": 0, "time": seconds}

            @staticmethod
            def appctl(_):
                return "worker   hits  cache\n0          12  on: packets cost less with it\n"

        turns = predict.Turns(Switch, 0.01)
        with mock.patch.object(predict, "LOOK", 0.01):
            turns.settle()
        self.assertEqual(said, ["count", "count", predict.signal.SIGSTOP])
        said.clear()
        rate, stolen = turns.measure()
        self.assertAlmostEqual(rate, 5.0)
        self.assertTrue(0 <= stolen <= 1)
        self.assertEqual(said, [predict.signal.SIGCONT, "count", predict.signal.SIGSTOP])
        said.clear()
        self.assertEqual(turns.cache(), "on: packets cost less with it")
        self.assertEqual(said, [predict.signal.SIGCONT, predict.signal.SIGSTOP])

    def test_a_processor_that_is_not_there_is_named(self):
        with (
            mock.patch.object(predict, "WORKER_CORE", 100000),
            self.assertRaisesRegex(RuntimeError, "processor 100000"),
        ):
            predict.stolen_ticks()


class Showing(unittest.TestCase):
    """The table's lines."""

    def test_a_line_has_what_its_head_says(self):
        found = verdict([10.0, 10.0], [window(10.0), window(8.0, after=seen(9.0))])
        row = predict.row_of("case", predict.Case(["rule"], []), found)
        self.assertEqual(len(row), len(predict.HEAD))
        self.assertEqual(row[8], "yes (1 moved)")


if __name__ == "__main__":
    unittest.main()
