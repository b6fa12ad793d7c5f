"""The lab's report in a browser, as people see it: phone and desk, light and dark, paper.

Debian's chromium is asked by its own protocol over a pipe. Screenshots and PDFs, for a person to
look at, are left in .build/lab-report.
"""

import base64
import glob
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from harness import PATIENCE, ROOT, Skip, check, equal, run, test

SHOTS = os.path.join(ROOT, ".build", "lab-report")
PHONE, DESK = (360, 740), (1280, 800)

# What a page is asked. All plots are drawn twice, for phones and for others; one is shown.
LOOK = """(() => {
  const shown = (element) => element.getBoundingClientRect().width > 0;
  const figures = [...document.querySelectorAll("main figure.plot")];
  const found = {
    title: document.title,
    plots: document.querySelectorAll("section.experiment figure.plot").length,
    refused: document.querySelectorAll("section.experiment .no-plot").length,
    overflow: document.documentElement.scrollWidth - innerWidth,
    ground: getComputedStyle(document.body).backgroundColor,
    intruders: document.querySelectorAll("img, iframe, script[src], link, main script").length,
    wrong: [],
  };
  const wrong = (words) => found.wrong.push(words);
  const ids = new Set();
  for (const element of document.querySelectorAll("[id]")) {
    if (ids.has(element.id)) wrong(`two elements are called ${element.id}`);
    ids.add(element.id);
  }
  for (const link of document.querySelectorAll("a[href^='#']")) {
    if (!ids.has(link.hash.slice(1))) wrong(`${link.hash} leads nowhere`);
  }
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) wrong(`H${next} after H${level}: ${heading.textContent}`);
    level = next;
  }
  for (const figure of figures) {
    const name = figure.querySelector("figcaption").textContent.slice(0, 40);
    const visible = [...figure.querySelectorAll("svg")].filter(shown);
    if (visible.length !== 1) {
      wrong(`${name}: ${visible.length} drawings are shown`);
      continue;
    }
    const svg = visible[0], view = svg.viewBox.baseVal, box = svg.getBoundingClientRect();
    if (!(box.width > 100 && box.height > 60)) wrong(`${name}: ${box.width} x ${box.height}`);
    if (svg.getAttribute("role") !== "img" || svg.getAttribute("aria-label").length < 10) {
      wrong(`${name}: nothing is said of it`);
    }
    if (!svg.querySelector(".line, .bar, .part, .stem, .solid")) wrong(`${name}: is empty`);
    if (/NaN|Infinity/.test(svg.outerHTML.replace(/aria-label="[^"]*"/, ""))) {
      wrong(`${name}: has what is no number`);
    }
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => text.getBBox());
    boxes.forEach((one, number) => {
      const words = texts[number].textContent;
      if (one.x < -1 || one.y < -1 || one.x + one.width > view.width + 1
          || one.y + one.height > view.height + 1) {
        wrong(`${name}: "${words.slice(0, 40)}" is outside`);
      }
      for (let other = number + 1; other < boxes.length && other < number + 60; other++) {
        const two = boxes[other];
        const wide = Math.min(one.x + one.width, two.x + two.width) - Math.max(one.x, two.x);
        const high = Math.min(one.y + one.height, two.y + two.height) - Math.max(one.y, two.y);
        // A line's box has room above and below its letters.
        const beneath = texts[other].textContent;
        if (wide > 1 && high > 4 && words !== "†" && beneath !== "†") {
          wrong(`${name}: "${words.slice(0, 30)}" lies on "${beneath.slice(0, 30)}"`);
        }
      }
    });
  }
  found.wrong = found.wrong.slice(0, 12);
  return JSON.stringify(found);
})()"""

# Sorts the first table by its last but one column, as a click does; shows a mark's figure.
USE = """(() => {
  const tables = [...document.querySelectorAll("table.sortable")];
  const table = tables.find((table) => table.tBodies[0].rows.length > 3);
  const heads = table.tHead.rows[0].cells;
  const column = [...heads].findIndex((head) => head.textContent.startsWith("Median"));
  heads[column].querySelector("button").click();
  const values = [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.v)
    .filter((value) => value !== undefined).map(Number);
  const mark = [...document.querySelectorAll("svg.plot > *")].find(
    (mark) => mark.querySelector("title") && mark.getBoundingClientRect().width > 0);
  mark.scrollIntoView({block: "center"});
  mark.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
  const tip = document.querySelector(".tip");
  return JSON.stringify({
    sorted: values.length > 3 && values.every((v, i) => i === 0 || values[i - 1] <= v),
    tip: tip.hidden ? "" : tip.textContent,
  });
})()"""


class Browser:
    """Headless Chromium, spoken to over a pipe."""

    def __init__(self, program, place):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        options = (
            "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
            "--disable-background-networking --disable-component-update --hide-scrollbars "
            f"--remote-debugging-pipe --user-data-dir={place}/profile about:blank"
        )
        # It reads commands from 3 and writes answers to 4.
        command = f'exec "$0" {options} 3<&{theirs_in} 4>&{theirs_out}'
        self.log = open(f"{place}/chromium.log", "w")
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command, program],
            pass_fds=(theirs_in, theirs_out),
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "HOME": place},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output, self.rest = ours_in, ours_out, b""
        self.number, self.events, self.session = 0, [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def message(self, end):
        """The next message."""
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.input], [], [], max(0, end - time.monotonic()))
            check(ready, "chromium does not answer")
            read = os.read(self.input, 1 << 20)
            check(read, "chromium ended")
            self.rest += read
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)

    def ask(self, method, **parameters):
        """What it answers."""
        self.number += 1
        question = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            question["sessionId"] = self.session
        os.write(self.output, json.dumps(question).encode() + b"\0")
        end = time.monotonic() + 60 * PATIENCE
        while True:
            message = self.message(end)
            if message.get("id") == self.number:
                check("error" not in message, method, message.get("error"))
                return message["result"]
            self.events.append(message)

    def value(self, expression):
        """What an expression is in the page."""
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        check("exceptionDetails" not in done, done.get("exceptionDetails"))
        return done["result"].get("value")

    def open(self, path, size, colours="light", media=""):
        """Opens a file on a screen of that size."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=size == PHONE,
        )
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)
        self.events = []
        self.ask("Page.navigate", url=f"file://{path}")
        end = time.monotonic() + 60 * PATIENCE
        while self.value("document.readyState + location.protocol") != "completefile:":
            check(time.monotonic() < end, path, "does not load")
            time.sleep(0.05)

    def complaints(self):
        """Errors of scripts, and whatever the browser finds wrong."""
        self.value("0")
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif event.get("method") == "Log.entryAdded":
                found.append(parameters["entry"])
            elif event.get("method") == "Runtime.consoleAPICalled":
                found.append(parameters["args"])
        return found

    def shot(self, path, whole=False):
        """A picture of what is on the screen, or of the beginning of the page."""
        options = {}
        if whole:
            size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            height = min(size["height"], 12000)
            clip = {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}
            options = {"clip": clip, "captureBeyondViewport": True}
        picture = base64.b64decode(self.ask("Page.captureScreenshot", **options)["data"])
        check(picture.startswith(b"\x89PNG"), "no picture")
        with open(path, "wb") as file:
            file.write(picture)

    def close(self):
        """Ends it."""
        try:
            self.session = None
            self.ask("Browser.close")
            self.process.wait(20 * PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()


def samples(lab, place):
    """Sample reports: how many plots each has, by name."""
    target = os.path.dirname(os.path.dirname(os.path.abspath(lab.switchd[0])))
    programs = glob.glob(os.path.join(target, "*", "examples", "sample_report"))
    if not programs:
        raise Skip("cargo build -p sluice-lab --example sample_report makes what this looks at")
    program = max(programs, key=os.path.getmtime)
    lines = run([program, place], seconds=60).stdout.split("\n")
    return {name: int(plots) for name, plots in (line.split() for line in lines if line)}


def browser(place):
    """A browser, where there is one."""
    program = shutil.which("chromium")
    if program is None:
        raise Skip("Debian's chromium (412 MB) is not installed; apt-get install chromium")
    return Browser(program, place)


@test(timeout=240)
def every_plot_is_drawn(lab):
    """On a phone and on a desk, light and dark, all plots of all samples are there, no text is
    outside of them, the page is no wider than the screen, and nothing is complained of."""
    if lab.is_ovs:
        raise Skip("Open vSwitch has no lab")
    os.makedirs(SHOTS, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        names = samples(lab, place)
        equal(sorted(names), ["adversarial", "compared", "empty", "sample"], "samples")
        chromium = browser(place)
        for name, plots in names.items():
            for device, size in (("phone", PHONE), ("desk", DESK)):
                for colours in ("light", "dark"):
                    what = f"{name}, {device}, {colours}"
                    chromium.open(f"{place}/{name}.html", size, colours)
                    found = json.loads(chromium.value(LOOK))
                    print(what, found)
                    chromium.shot(f"{SHOTS}/{name}-{device}-{colours}.png")
                    if colours == "light":
                        chromium.shot(f"{SHOTS}/{name}-{device}-whole.png", whole=True)
                    equal(found["wrong"], [], what)
                    equal(found["plots"] + found["refused"], plots, f"plots of {what}")
                    if name in ("sample", "compared"):
                        equal(found["refused"], 2, f"plots without figures in {what}")
                    check(found["overflow"] <= 0, what, f"is {found['overflow']} too wide")
                    equal(found["intruders"], 0, f"what data brought into {what}")
                    check(found["title"].startswith("Sluice lab: "), what, found["title"])
                    dark = found["ground"] == "rgb(13, 17, 23)"
                    equal(dark, colours == "dark", f"ground of {what}")
                    equal(chromium.complaints(), [], f"complaints of {what}")
        chromium.close()


@test(timeout=120)
def tables_are_sorted_and_marks_tell_their_figures(lab):
    """What the report's script adds works; on paper, and where one prefers dark, it is light."""
    if lab.is_ovs:
        raise Skip("Open vSwitch has no lab")
    os.makedirs(SHOTS, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        samples(lab, place)
        chromium = browser(place)
        chromium.open(f"{place}/sample.html", DESK)
        used = json.loads(chromium.value(USE))
        check(used["sorted"], "the table is not sorted by its medians")
        check(any(letter.isdigit() for letter in used["tip"]), "tip:", used["tip"])
        equal(chromium.complaints(), [], "complaints")
        for name in ("sample", "adversarial"):
            chromium.open(f"{place}/{name}.html", DESK, "dark", media="print")
            found = json.loads(chromium.value(LOOK))
            equal(found["ground"], "rgb(255, 255, 255)", "ground on paper")
            equal(found["wrong"], [], "on paper")
            printed = chromium.ask("Page.printToPDF", printBackground=False, paperWidth=8.27)
            data = base64.b64decode(printed["data"])
            check(data.startswith(b"%PDF") and len(data) > 20000, "it is not printed")
            with open(f"{SHOTS}/{name}.pdf", "wb") as file:
                file.write(data)
        chromium.close()
