#!/usr/bin/python3
"""Draws the forwarding figures of docs/performance.md as docs/forwarding.svg, README.md's plot.

    bench/plot.py [--data bench/forwarding.json] [--output docs/forwarding.svg]

The figures, and the commit, machine and command that they come from, are in the data file. A row
is a case: the medians of Sluice, of Open vSwitch and of the limit, with a thin line from the
least to the most of the rounds. The axis is logarithmic, since the figures span four orders of
magnitude. Colours follow the reader's preference for light or dark; the plot has its own
background, so it can be read on any page.
"""

import argparse
import json
import math
import os
from html import escape

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(ROOT, "bench", "forwarding.json")
OUTPUT = os.path.join(ROOT, "docs", "forwarding.svg")

SERIES = {
    "sluice": "Sluice",
    "open_vswitch": "Open vSwitch",
    "limit": "limit: DPDK's testpmd, which reads no packet",
}
COLOURS = {
    "light": {
        "ground": "#ffffff",
        "text": "#1f2328",
        "dim": "#57606a",
        "grid": "#d8dee4",
        "band": "#f3f5f8",
        "sluice": "#0969da",
        "open_vswitch": "#b4470a",
        "limit": "#57606a",
    },
    "dark": {
        "ground": "#0d1117",
        "text": "#e6edf3",
        "dim": "#9aa4af",
        "grid": "#30363d",
        "band": "#151b23",
        "sluice": "#58a6ff",
        "open_vswitch": "#f0883e",
        "limit": "#9aa4af",
    },
}

WIDTH, LEFT, RIGHT = 900, 280, 810  # of the picture; where the axis begins and ends
TOP, ROW = 96, 24  # where the first row begins; its height
SIZE, SMALL = 13, 11  # of letters


def read(path):
    """The data file."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def decades(data):
    """The powers of ten, as exponents of Mpps, from the one below all figures to the one above."""
    figures = [figure for case in data["cases"] for name in SERIES for figure in case[name]]
    return list(
        range(math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures))) + 1)
    )


def packets(exponent):
    """How a tick of 10^exponent Mpps is written, in packets per second."""
    units, thousands = "", exponent + 6
    for unit, below in (("G", 9), ("M", 6), ("k", 3)):
        if thousands >= below:
            units, thousands = unit, thousands - below
            break
    return f"{10**thousands:g} {units}".strip()


def times(ratio):
    """A ratio as it is written: 2.7x, 12,960x."""
    return f"{ratio:,.1f}x" if ratio < 10 else f"{ratio:,.0f}x"


def scale(exponents):
    """A function from Mpps to the place on the axis."""
    first, last = exponents[0], exponents[-1]
    return lambda figure: LEFT + (RIGHT - LEFT) * (math.log10(figure) - first) / (last - first)


def text(x, y, words, kind="text", anchor="start", size=SIZE, weight="normal"):
    """A line of text."""
    bold = f' font-weight="{weight}"' if weight != "normal" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" font-size="{size}" '
        f'text-anchor="{anchor}"{bold}>{escape(words)}</text>'
    )


def mark(series, x, y):
    """The mark of a series: they differ in shape as well as in colour."""
    if series == "limit":
        return f'<path d="M{x:.1f} {y - 8:.1f}v16" class="limit" fill="none" stroke-width="2.5"/>'
    if series == "open_vswitch":
        return (
            f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" class="ground open_vswitch" '
            'stroke-width="2"/>'
        )
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" class="sluice solid"/>'


def rules(colours):
    """The classes in some colours. They are written out, for not every renderer knows variables."""
    parts = [
        f".text{{fill:{colours['text']}}}",
        f".dim{{fill:{colours['dim']}}}",
        f".grid{{stroke:{colours['grid']}}}",
        f".ground{{fill:{colours['ground']}}}",
        f".band{{fill:{colours['band']}}}",
    ]
    parts += [f".{name}{{stroke:{colours[name]}}}" for name in SERIES]
    return "".join([*parts, f".solid{{fill:{colours['sluice']}}}"])


def style():
    """The colours: light ones, and dark ones for readers who prefer these."""
    return (
        f"<style>{rules(COLOURS['light'])}@media "
        f"(prefers-color-scheme:dark){{{rules(COLOURS['dark'])}}}</style>"
    )


def draw(data):
    """The plot, as text of an SVG file."""
    exponents = decades(data)
    place = scale(exponents)
    bottom = TOP + ROW * len(data["cases"])
    height = bottom + 92
    title = "Packets per second through one core, 64-byte frames"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 '
        f'{WIDTH} {height}" role="img" '
        f"font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">",
        f"<title>{title}: Sluice, Open vSwitch and the limit</title>",
        style(),
        f'<rect width="{WIDTH}" height="{height}" rx="8" class="ground"/>',
        text(16, 28, title, size=17, weight="bold"),
    ]
    x = 22
    for series, name in SERIES.items():
        out += [mark(series, x, 50), text(x + 12, 54.5, name)]
        x += 46 + 8 * len(name)
    out.append(text(WIDTH - 16, 54.5, "Sluice / Open vSwitch", "dim", "end", SMALL))
    for number in range(0, len(data["cases"]), 2):
        out.append(
            f'<rect x="8" y="{TOP + ROW * number}" width="{WIDTH - 16}" height="{ROW}" '
            'class="band"/>'
        )
    for exponent in exponents:
        x = place(10**exponent)
        out.append(f'<path d="M{x:.1f} {TOP - 4}V{bottom + 4}" class="grid"/>')
        out += [
            text(x, y, packets(exponent), "dim", "middle", SMALL) for y in (TOP - 10, bottom + 18)
        ]
    for number, case in enumerate(data["cases"]):
        y = TOP + ROW * number + ROW / 2
        out += [f'<g id="{case["case"]}">', text(16, y + 4.5, case["what"])]
        for series in reversed(SERIES):
            median, least, most = case[series]
            # What is drawn last is on top: Sluice.
            out.append(
                f'<path d="M{place(least):.1f} {y:.1f}H{place(most):.1f}" class="{series}" '
                'fill="none" stroke-width="1"/>'
            )
            out.append(mark(series, place(median), y))
        out += [
            text(WIDTH - 16, y + 4.5, times(case["times"]), anchor="end", weight="bold"),
            "</g>",
        ]
    out.append(
        text(
            (LEFT + RIGHT) / 2,
            bottom + 35,
            "packets per second, logarithmic: median, least and most of the rounds",
            "dim",
            "middle",
            SMALL,
        )
    )
    for line, words in enumerate(
        (
            f"Commit {data['commit']}, {data['date']}; {data['versions']}",
            data["machine"],
            f"{data['command']} ({data['remark']})",
        )
    ):
        out.append(text(16, bottom + 53 + 15 * line, words, "dim", size=SMALL))
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--output", default=OUTPUT)
    options = parser.parse_args()
    drawn = draw(read(options.data))
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(drawn)


if __name__ == "__main__":
    main()
