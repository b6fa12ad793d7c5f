"""The plot of the forwarding figures: it says what the table says, and can be read.

`python3 -m unittest discover -s bench`."""

import math
import os
import re
import unittest
import xml.etree.ElementTree as tree

import plot
from cases import CASES

SVG = "{http://www.w3.org/2000/svg}"
# How wide letters are on average at most, as a share of their size: DejaVu Sans, the widest of the
# fonts named, has 0.5 and 0.6.
LETTER = {"normal": 0.57, "bold": 0.67}


def table():
    """The forwarding table of docs/performance.md: for each case the medians, least and most of the
    limit, Open vSwitch and Sluice, and the ratio."""
    with open(os.path.join(plot.ROOT, "docs", "performance.md"), encoding="utf-8") as file:
        section = (
            file.read().split("\n## Forwarding, one core\n")[1].split("\n### ")[0].split("\n## ")[0]
        )
    figures = r"([\d.]+) \[([\d.]+)-([\d.]+)\]"
    found = re.findall(
        rf"^\| (\S+) \| {figures} \| {figures} \| {figures} \| ([\d.,]+) x", section, re.M
    )
    return {
        row[0]: [[float(word) for word in row[start : start + 3]] for start in (1, 4, 7)]
        + [float(row[10].replace(",", ""))]
        for row in found
    }


def luminance(colour):
    """The relative luminance of #rrggbb, as the Web Content Accessibility Guidelines have it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, other):
    """The contrast of two colours, 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class Figures(unittest.TestCase):
    """The data file."""

    def setUp(self):
        self.data = plot.read(plot.DATA)

    def test_the_figures_are_those_of_the_table_in_its_order(self):
        wanted = table()
        self.assertGreater(len(wanted), 10)
        self.assertEqual([case["case"] for case in self.data["cases"]], list(wanted))
        for case in self.data["cases"]:
            self.assertEqual(
                [case["limit"], case["open_vswitch"], case["sluice"], case["times"]],
                wanted[case["case"]],
                case["case"],
            )

    def test_ratios_are_those_of_the_medians_but_for_rounding(self):
        for case in self.data["cases"]:
            self.assertAlmostEqual(
                case["sluice"][0] / case["open_vswitch"][0] / case["times"],
                1,
                delta=0.025,
                msg=case["case"],
            )

    def test_where_they_come_from_is_what_the_document_says(self):
        with open(os.path.join(plot.ROOT, "docs", "performance.md"), encoding="utf-8") as file:
            text = file.read()
        for word in (self.data["commit"], self.data["date"], self.data["command"]):
            self.assertIn(word, text)
        self.assertTrue(
            os.access(os.path.join(plot.ROOT, self.data["command"].split()[0]), os.X_OK)
        )

    def test_the_readme_says_no_more_than_the_figures(self):
        with open(os.path.join(plot.ROOT, "README.md"), encoding="utf-8") as file:
            beginning = " ".join(file.read().split("\n## ")[0].split())
        said = re.search(
            r"([\d.]+) to ([\d.]+) times as many packets with everyday rules, ([\d.]+) to "
            r"([\d.]+) times as many .* and ([\d,]+) times as many",
            beginning,
        )
        ratios = sorted(case["times"] for case in self.data["cases"])
        everyday, many = (
            [ratio for ratio in ratios if ratio < 10],
            [ratio for ratio in ratios[:-1] if ratio > 10],
        )
        self.assertEqual(
            [float(word.replace(",", "")) for word in said.groups()],
            [everyday[0], everyday[-1], many[0], many[-1], ratios[-1]],
        )
        self.assertIn("](docs/forwarding.svg)", beginning)

    def test_every_case_can_be_measured_again(self):
        for case in self.data["cases"]:
            self.assertIn(case["case"], CASES)


class Picture(unittest.TestCase):
    """The SVG file."""

    def setUp(self):
        self.data = plot.read(plot.DATA)
        self.text = plot.draw(self.data)
        self.root = tree.fromstring(self.text)

    def rows(self):
        """The groups of the cases."""
        return {group.get("id"): group for group in self.root.iter(f"{SVG}g")}

    def test_the_file_in_docs_is_drawn_from_the_figures(self):
        with open(plot.OUTPUT, encoding="utf-8") as file:
            self.assertEqual(file.read(), self.text, "bench/plot.py draws it again")

    def test_marks_stand_where_their_figures_are(self):
        exponents = plot.decades(self.data)
        width = (plot.RIGHT - plot.LEFT) / (exponents[-1] - exponents[0])
        rows = self.rows()
        for case in self.data["cases"]:
            marks = {"sluice": float(rows[case["case"]].find(f"{SVG}circle").get("cx"))}
            for path in rows[case["case"]].iter(f"{SVG}path"):
                if "v16" in path.get("d") or "l6 6" in path.get("d"):
                    marks[path.get("class").split()[-1]] = float(path.get("d")[1:].split()[0])
            self.assertEqual(set(marks), set(plot.SERIES))
            for series, x in marks.items():
                figure = 10 ** (exponents[0] + (x - plot.LEFT) / width)
                self.assertAlmostEqual(
                    figure / case[series][0], 1, delta=0.003, msg=f"{case['case']} {series}"
                )

    def test_a_figure_that_changes_moves_its_mark(self):
        self.data["cases"][0]["sluice"][0] *= 2
        self.assertNotEqual(plot.draw(self.data), self.text)

    def test_ticks_are_powers_of_ten_with_a_unit_and_hold_all_figures(self):
        exponents = plot.decades(self.data)
        place = plot.scale(exponents)
        self.assertEqual(
            (place(10 ** exponents[0]), place(10 ** exponents[-1])), (plot.LEFT, plot.RIGHT)
        )
        for case in self.data["cases"]:
            for series in plot.SERIES:
                self.assertLessEqual(case[series][1], case[series][0])
                self.assertLessEqual(case[series][0], case[series][2])
                for figure in case[series]:
                    self.assertTrue(plot.LEFT <= place(figure) <= plot.RIGHT)
        shown = [
            words.text
            for words in self.root.iter(f"{SVG}text")
            if re.fullmatch(r"10* [kM]", words.text)
        ]
        self.assertEqual(shown[::2], [plot.packets(exponent) for exponent in exponents])
        self.assertEqual(
            [plot.packets(exponent) for exponent in (-6, -4, -3, -1, 0, 2, 3)],
            ["1", "100", "1 k", "100 k", "1 M", "100 M", "1 G"],
        )

    def test_what_is_not_text_is_explained_by_text(self):
        said = [words.text for words in self.root.iter(f"{SVG}text")]
        for wanted in (
            *plot.SERIES.values(),
            *(case["what"] for case in self.data["cases"]),
            *(plot.times(case["times"]) for case in self.data["cases"]),
        ):
            self.assertIn(wanted, said)
        for part in ("commit", "machine", "command"):
            self.assertTrue(any(self.data[part] in words for words in said), part)

    def test_text_stays_in_the_picture_and_beside_other_text(self):
        boxes = []
        for words in self.root.iter(f"{SVG}text"):
            x, y, size = (float(words.get(name)) for name in ("x", "y", "font-size"))
            width = LETTER[words.get("font-weight", "normal")] * size * len(words.text)
            left = x - {"start": 0, "middle": width / 2, "end": width}[words.get("text-anchor")]
            boxes.append((left, left + width, y - 0.8 * size, y + 0.2 * size, words.text))
            self.assertTrue(
                0 <= left and left + width <= plot.WIDTH, f"{words.text} is wider than the picture"
            )
            self.assertTrue(size >= 11 and 0 < y < float(self.root.get("height")) - 4, words.text)
        for number, one in enumerate(boxes):
            for other in boxes[:number]:
                apart = (
                    one[0] >= other[1]
                    or other[0] >= one[1]
                    or one[2] >= other[3]
                    or other[2] >= one[3]
                )
                self.assertTrue(apart, f"{one[4]} lies on {other[4]}")
        for case in self.data["cases"]:
            self.assertLess(
                16 + LETTER["normal"] * plot.SIZE * len(case["what"]), plot.LEFT, case["what"]
            )

    def test_it_can_be_read_in_light_and_in_dark(self):
        for name, colours in plot.COLOURS.items():
            for ground in ("ground", "band"):
                for kind, least in (
                    ("text", 7),
                    ("dim", 4.5),
                    *((series, 4.5) for series in plot.SERIES),
                ):
                    self.assertGreaterEqual(
                        contrast(colours[kind], colours[ground]),
                        least,
                        f"{name}: {kind} on {ground}",
                    )
        light, dark = self.root.find(f"{SVG}style").text.split("@media (prefers-color-scheme:dark)")
        # Each colour of the one is replaced in the other, and the ground is the picture's own.
        self.assertEqual(re.findall(r"\.(\w+){", light), re.findall(r"\.(\w+){", dark))
        ground = self.root.find(f"{SVG}rect")
        self.assertEqual(
            (ground.get("class"), ground.get("width"), ground.get("height")),
            ("ground", self.root.get("width"), self.root.get("height")),
        )

    def test_it_needs_nothing_from_elsewhere(self):
        self.assertNotRegex(
            self.text.replace("http://www.w3.org/2000/svg", ""),
            r"https?:|url\(|<script|<image|@import|href",
        )

    def test_scales_hold_for_other_figures(self):
        data = {
            **self.data,
            "cases": [
                {
                    "case": "x",
                    "what": "x",
                    "limit": [100, 100, 100],
                    "open_vswitch": [1, 1, 1],
                    "sluice": [10, 10, 10],
                    "times": 10,
                }
            ],
        }
        self.assertEqual(plot.decades(data), [0, 1, 2])
        self.assertTrue(math.isclose(plot.scale([0, 1, 2])(10), (plot.LEFT + plot.RIGHT) / 2))


if __name__ == "__main__":
    unittest.main()
