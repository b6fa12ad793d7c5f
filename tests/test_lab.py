"""`sluice lab`: experiments are listed, run with whatever switches are there, ended and resumed,
and nothing is left behind. No figure is asserted but that there is one.

Labs have their directories side by side, so tests that look for what is left behind must not run
beside others: they ask for a huge page, which has them run one by one."""

import json
import os
import re
import signal
import struct
import subprocess
import time

from harness import Skip, check, equal, ethernet, run, test, wait_for

OWN = """\
id: own
title: Frames of two sizes
purpose: To see whether the lab works.
topology: Frames from one port to another.
method: throughput
subjects: [sluice, nobody]
sweep:
  - {name: size, title: Frame, unit: bytes, values: [64, 256]}
settings: {path: p-p, job: cross}
measures:
  - {name: rate, title: Throughput, unit: Mpps, better: higher}
plots:
  - {title: Throughput, kind: line, x: size, y: [rate], series: subject}
expect:
  - text: There is a figure.
    left: {measure: rate, subject: sluice, at: {size: 64}}
    is: above
    factor: 0.0001
    right: {measure: rate, subject: sluice, at: {size: 256}}
"""


# A program of the lab's that starts something which leaves its group, prints a cell, and stays.
PROGRAM = """\
#!/usr/bin/python3
import subprocess, time
subprocess.Popen(["setsid", "sleep", "1000"])
print('{"subject": "sluice", "figures": {"rate": 1}}', flush=True)
time.sleep(1000)
"""
BY_PROGRAM = """\
id: own
title: A program
purpose: To see whether what it starts is found.
topology: Nothing is set up.
method: program
settings: {program: stays.py}
subjects: [sluice]
measures:
  - {name: rate, title: Throughput, unit: Mpps}
"""


def udp(port):
    """A UDP packet of 60 bytes to a port."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 46, 0, 0, 64, 17, 0)
    addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    data = head + addresses + struct.pack("!HHHH", 1024, port, 26, 0) + bytes(18)
    return ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x0800, data)


class User:
    """Somebody who runs the lab in a directory of their own."""

    def __init__(self, lab):
        if lab.is_ovs:
            raise Skip("a command of Sluice's")
        self.daemon = os.path.abspath(lab.switchd[0])
        self.command = os.path.join(os.path.dirname(self.daemon), "sluice")
        self.directory = lab.directory
        self.output = os.path.join(lab.directory, "results")

    def write(self, text=OWN, name="own.yaml"):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def words(self, *words):
        return [self.command, "lab", *words]

    def run(self, *words, ok=True, seconds=150):
        return run(self.words(*words), ok=ok, seconds=seconds)

    def start(self, *words, **environment):
        """Starts a run whose progress goes to a file."""
        self.log = os.path.join(self.directory, "log")
        with open(self.log, "wb") as log:
            return subprocess.Popen(
                self.words(*words), stdout=log, stderr=log, env=os.environ | environment
            )

    def windows(self):
        """Whole windows in the journal."""
        try:
            with open(f"{self.output}/journal.jsonl", "rb") as file:
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [entry["window"] for entry in map(json.loads, lines) if "window" in entry]

    def results(self):
        with open(f"{self.output}/results.json", encoding="utf-8") as file:
            return json.load(file)

    def cells(self):
        """Cells of the experiment of one's own."""
        experiments = {one["id"]: one for one in self.results()["experiments"]}
        return experiments["own"]["cells"]


def left_behind():
    """What labs have that have ended: directories, namespaces, processes. Another lab may run on
    this machine, and keeps what it has."""
    names = []
    for directory in ("/run/sluice-lab", "/run/netns"):
        if os.path.isdir(directory):
            names += [(name, name) for name in os.listdir(directory)]
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        mark = b"SLUICE_LAB="
        names += [(word[len(mark) :].decode(), process) for word in words if word.startswith(mark)]
    return [name for owner, name in names if owner.startswith("sluicelab") and not lives(owner)]


def lives(owner):
    """Whether the lab runs whose name begins with its process's number."""
    number = re.match(r"sluicelab(\d+)", owner)[1]
    try:
        with open(f"/proc/{number}/comm", encoding="ascii") as file:
            return file.read() == "sluice\n"
    except OSError:
        return False


@test(timeout=60)
def experiments_are_listed_with_their_cells(lab):
    """Every experiment of the papers, and the cells of one."""
    user = User(lab)
    listed = user.run("list").stdout
    names = [line.split()[0] for line in listed.splitlines()]
    for paper, count in (("A", 12), ("B", 11), ("C", 11), ("D", 13)):
        missing = [n for n in range(1, count + 1) if f"{paper}{n}" not in names]
        equal(missing, [], f"experiments of paper {paper} that are missing")
    cells = user.run("list", "A4", "--quick").stdout
    check("flows=2000\n" in cells and "flows=10000\n" not in cells, cells)
    check("flows=10000\n" in user.run("list", "A4").stdout, "all values without --quick")
    equal(user.run("list", user.write()).stdout.count("size="), 4, "cells of one's own")


@test(timeout=60, hugepages=1)
def what_is_wrong_is_said_with_its_place(lab):
    """Bad files, unknown experiments and switches end with a message and nothing else."""
    user = User(lab)

    def complaint(*words):
        done = user.run(*words, ok=False)
        check(done.returncode != 0, "succeeded:", words)
        check("panicked" not in done.stderr, done.stderr)
        return done.stderr

    for old, new, words in (
        ("title: Frames", "titel: Frames", ["own.yaml", "titel"]),
        ("unit: bytes", "unti: bytes", ["own.yaml", "unti"]),
        ("method: throughput", "method: guess", ["method", "guess", "throughput"]),
        ("[64, 256]", "[64, 6]", ["size", '"6"', "64 and 9018"]),
        ("x: size", "x: weight", ["plots[0].x", "weight", '"size"']),
        ("job: cross", "job: fly", ["job", "fly", "stations"]),
    ):
        text = complaint("run", user.write(OWN.replace(old, new)), "--output", user.output)
        for word in words:
            check(word in text, word, "is not in", text)
    check("A4" in complaint("run", "Z9"), "unknown experiments")
    check("no such file" in complaint("run", "./none.yaml").lower(), "files that are not there")
    own = user.write()
    text = complaint("run", own, "--subject", "cisco", "--output", user.output)
    check("cisco" in text and "sluice" in text, text)
    check("0.01" in complaint("run", own, "--seconds", "0"), "seconds")
    check("64" in complaint("run", own, "--core", "64"), "cores")
    check("results.json" in complaint("report", user.directory), "no results")
    check(not os.path.exists(f"{user.output}/results.json"), "there are results")
    equal(left_behind(), [], "left behind")


def were_measured(figure, rounds):
    """Whether a figure has so many runs. Where the machine was in another state than usual windows
    are measured once more, and those in its rare state put aside."""
    return rounds - 1 <= len(figure["runs"]) <= rounds + 1


@test(timeout=240, hugepages=1)
def an_experiment_of_ones_own_is_run(lab):
    """Cells have figures with intervals, what is missing its reason, and nothing is left behind."""
    user = User(lab)
    done = user.run(
        *("run", user.write(), "--output", user.output, "--rounds", "3", "--seconds", "0.2"),
        *("--sluiced", user.daemon),
    )
    check("left]" in done.stderr and "3/3" in done.stderr, done.stderr)
    results = user.results()
    equal(results["made"]["interrupted"], False, "interrupted")
    for cell in user.cells():
        if cell["subject"] == "sluice":
            figure = cell["figures"]["rate"]
            check(were_measured(figure, 3), figure)
            # The interval of figures that spread widely begins at 0.
            check(0 <= figure["low"] <= figure["median"] <= figure["high"], figure)
            check(figure["median"] > 0, figure)
        else:
            check(cell["missing"], cell)
    equal(len(user.cells()), 4, "cells")
    own = next(one for one in results["experiments"] if one["id"] == "own")
    equal(own["state"], "done", "state")
    equal([finding["holds"] for finding in own["findings"]], [True], "findings")
    machine = results["machine"]
    check(machine["processor"] and machine["limits"] and machine["headroom"], machine)
    check(machine["tsc_mhz"] > 100, machine["tsc_mhz"])
    equal(left_behind(), [], "left behind")
    # The same results do not differ from themselves.
    text = user.run("compare", user.output, f"{user.output}/results.json").stdout
    check("2 figures compared: 0 better, 0 worse" in text, text)
    # Another run does not overwrite it.
    again = user.run("run", user.write(), "--output", user.output, ok=False)
    check(again.returncode != 0 and "--resume" in again.stderr, again.stderr)


GIVEN = """\
id: given
title: Rules and frames of one's own
purpose: To see whether they are taken.
topology: Frames from one port to two others.
method: throughput
subjects: [sluice]
settings: {job: given, outputs: 2, openflow: flows.txt, capture: frames.pcap}
measures:
  - {name: rate, title: Throughput, unit: Mpps}
  - {name: loss, title: Dropped, unit: "%"}
"""


@test(timeout=180, hugepages=1)
def rules_and_frames_of_ones_own_are_measured(lab):
    """Of four frames one goes to each of two ports by given rules, and two are dropped."""
    user = User(lab)
    user.write("in_port=1,udp,tp_dst=1,actions=output:2\nudp,tp_dst=2,actions=3\n", "flows.txt")
    frames = [udp(port) for port in (1, 2, 3, 4)] * 64
    with open(os.path.join(user.directory, "frames.pcap"), "wb") as file:
        file.write(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    words = ["run", user.write(GIVEN, "given.yaml"), "--output", user.output]
    words += ["--rounds", "1", "--seconds", "0.5", "--sluiced", user.daemon]
    # Names of files are those of where the command runs.
    done = subprocess.run(
        user.words(*words), cwd=user.directory, capture_output=True, text=True, timeout=150
    )
    equal(done.returncode, 0, done.stderr)
    found = next(one for one in user.results()["experiments"] if one["id"] == "given")
    (cell,) = found["cells"]
    check(cell["figures"]["rate"]["median"] > 0, cell)
    check(abs(cell["figures"]["loss"]["median"] - 50) < 1, cell)
    text = user.run(
        "run", os.path.join(user.directory, "given.yaml"), "--output", user.output + "2", ok=False
    )
    check("frames.pcap" in text.stdout + text.stderr, text.stdout + text.stderr)


@test(timeout=360, hugepages=1)
def a_killed_run_is_cleaned_up_after_and_goes_on(lab):
    """After kill -9 at most one window is lost; `clean` removes the rest, `--resume` goes on."""
    user = User(lab)
    words = [
        *("run", user.write(), "--output", user.output, "--rounds", "3", "--seconds", "0.2"),
        *("--sluiced", user.daemon, "--subject", "sluice"),
    ]
    process = user.start(*words)
    wait_for("two windows are measured", lambda: len(user.windows()) >= 2, 100)
    process.kill()
    process.wait()
    before = user.windows()
    check(2 <= len(before) < 6, f"{len(before)} windows before it was killed")
    check(left_behind(), "nothing was left behind: the test does not test")
    other = user.run(*words, ok=False)
    check("--resume" in other.stderr, other.stderr)
    cleaned = user.run("clean").stdout
    check("removed" in cleaned, cleaned)
    equal(left_behind(), [], "left behind after clean")
    check("nothing was left" in user.run("clean").stdout, "clean again")
    changed = user.run(*words[:5], "4", *words[6:], "--resume", ok=False)
    check("cannot resume" in changed.stderr and "rounds" in changed.stderr, changed.stderr)
    user.run(*words, "--resume")
    after = user.windows()
    equal(after[: len(before)], before, "what was measured before")
    # Those in rare states of the machine are measured again.
    check(len(after) >= 6, f"{len(after)} windows")
    for cell in user.cells():
        check(were_measured(cell["figures"]["rate"], 3), cell)
    equal(user.results()["made"]["interrupted"], False, "interrupted")
    equal(left_behind(), [], "left behind")


@test(timeout=240, hugepages=1)
def control_c_ends_in_good_order(lab):
    """What has been measured is in the results, marked as interrupted; nothing is left behind."""
    user = User(lab)
    process = user.start(
        *("run", user.write(), "--output", user.output, "--rounds", "50", "--seconds", "0.2"),
        *("--sluiced", user.daemon),
    )
    wait_for("a window is measured", lambda: user.windows(), 100)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    check(process.wait(100) != 0, "it ended with 0")
    results = user.results()
    equal(results["made"]["interrupted"], True, "interrupted")
    own = next(one for one in results["experiments"] if one["id"] == "own")
    equal(own["state"], "interrupted", "state")
    check(any(cell["figures"] for cell in user.cells()), "no figures", time.monotonic() - begun)
    equal(left_behind(), [], "left behind")


@test(timeout=240, hugepages=1)
def labs_take_turns_on_cores(lab):
    """A second lab says who has the cores, waits as long as told, and gets them after kill -9."""
    user = User(lab)
    own = user.write()
    more = ("--seconds", "0.2", "--sluiced", user.daemon, "--subject", "sluice")
    process = user.start("run", own, "--output", user.output, "--rounds", "100", *more)
    wait_for("a window is measured", lambda: user.windows(), 100)
    other = os.path.join(user.directory, "other")
    words = ("run", own, "--output", other, "--rounds", "1", *more, "--wait")
    refused = user.run(*words, "1", ok=False)
    check(refused.returncode != 0, "both measured on the same cores")
    for word in (
        f"process {process.pid} (lab run",
        "waiting for up to 1 s",
        "for 1 s: wait longer",
    ):
        check(word in refused.stderr, word, "is not in", refused.stderr)
    check(not os.path.exists(other), "it began nevertheless")
    process.kill()
    process.wait()
    user.run("clean")
    user.run(*words, "0")
    equal(left_behind(), [], "left behind")


@test(timeout=120, hugepages=1)
def what_a_killed_labs_program_started_is_found(lab):
    """Programs carry the run's mark, and so does what they start: `clean` ends all of it."""
    user = User(lab)
    program = user.write(PROGRAM, "stays.py")
    os.chmod(program, 0o755)
    own = user.write(BY_PROGRAM)
    process = user.start(
        *("run", own, "--output", user.output, "--rounds", "1"), SLUICE_LAB_PROGRAMS=user.directory
    )

    def started():
        try:
            with open(f"{user.output}/journal.jsonl", encoding="utf-8") as file:
                return '"line"' in file.read()
        except FileNotFoundError:
            return False

    wait_for("the program has printed a cell", started, 60)
    process.kill()
    process.wait()
    processes = [name for name in left_behind() if name.isdigit()]
    check(len(processes) >= 2, "the program and what it started are not found", left_behind())
    cleaned = user.run("clean").stdout
    check("(sleep)" in cleaned, cleaned)
    equal(left_behind(), [], "left behind after clean")


# Prints what two experiments ask for, or fails.
SHARED = """\
#!/usr/bin/python3
import json, sys
if sys.argv[1] == "broken":
    sys.exit("nothing is connected")
print(json.dumps({"subject": "sluice", "figures": {"rate": 1}}))
print(json.dumps({"subject": "sluice", "figures": {"rate": 2, "more": 3}, "of": ["other"]}))
"""


@test(timeout=120)
def one_program_serves_several_experiments(lab):
    """In a quick run an experiment takes what another one's program printed for it, and only that;
    a run in which one fails ends with an error that says last which and why."""
    user = User(lab)
    os.chmod(user.write(SHARED, "stays.py"), 0o755)
    other = BY_PROGRAM.replace("id: own", "id: other") + "quick_with: [own]\n"
    broken = BY_PROGRAM.replace("id: own", "id: broken")
    files = [
        user.write(text, name)
        for text, name in ((BY_PROGRAM, "own.yaml"), (other, "other.yaml"), (broken, "bad.yaml"))
    ]

    def lab_run(*words):
        process = user.start(
            *("run", *words, "--output", user.output), SLUICE_LAB_PROGRAMS=user.directory
        )
        code = process.wait(100)
        with open(user.log, encoding="utf-8") as log:
            return code, log.read()

    def rates(name):
        found = next(one for one in user.results()["experiments"] if one["id"] == name)
        return found["topology"], [cell["figures"]["rate"]["runs"] for cell in found["cells"]]

    code, said = lab_run(*files[:2], "--quick", "--rounds", "1", "--commit", "0123ABCD")
    equal(code, 0, said)
    equal(rates("own")[1], [[1.0]], "its own line only")
    topology, found = rates("other")
    equal(found, [[2.0]], "what was printed for it, once")
    check("Measured together with own." in topology, topology)
    check(", commit 0123abcd" in user.results()["made"]["version"], user.results()["made"])

    # Published elsewhere, with its figures.
    there = os.path.join(user.directory, "published")
    user.run("report", user.output, "--publish", there)
    equal(sorted(os.listdir(there)), ["report.html", "results.json"], "published")
    with open(f"{there}/report.html", encoding="utf-8") as file:
        check("commit 0123abcd" in file.read(), "the report does not name its commit")

    user.output = os.path.join(user.directory, "failed")
    code, said = lab_run(files[2], "--quick", "--rounds", "1")
    check(code != 0, "a run that failed ended with 0:", said)
    last = said.strip().splitlines()[-1]
    check(last.startswith("broken: stays.py ended with exit status: 1: nothing is connected"), said)
    with open(f"{user.output}/report.html", encoding="utf-8") as file:
        check("It failed: " in file.read(), "the report does not say that it failed")
    equal(left_behind(), [], "left behind")


@test(timeout=60)
def windows_of_one_start_are_one_run(lab):
    """How far figures spread (B10) is told from starts; a start's windows are its median."""
    User(lab)
    bench = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench")
    code = "import json, lab_forwarding; print(json.dumps(lab_forwarding.start_of([9, 10, 14])))"
    figures = json.loads(run(["/usr/bin/python3", "-c", code], cwd=bench).stdout)
    equal(figures["rate"], 10, "the median")
    check(26 < figures["within"] < 27, figures)


PARTS = """
import json, lab_forwarding as lab
places = [("receive", ""), ("transmit", ""), ("idle", "")]
found = lab.shares_of({"receive": 30, "other": 10}, places)
stages = [{"name": "receive", "cycles": 3000}, {"name": "send", "cycles": 1000},
          {"name": "lookup", "cycles": 4000}, {"name": "rest", "cycles": 2000}]
told = {"total": {"packets": 100, "stages": stages}}
print(json.dumps([found, lab.with_idle(found, 40, 0.1), lab.stages_of(told, 20, 2.5e9)]))
"""


@test(timeout=60)
def parts_of_a_packets_cycles_add_up(lab):
    """What was not sampled counts as 0, an idle core's time as idle; cycles by stage times the rate
    are held against the clock (B7, B8)."""
    User(lab)
    bench = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench")
    said = run(["/usr/bin/python3", "-c", PARTS], cwd=bench).stdout
    found, with_idle, stages = json.loads(said)
    equal(found, {"receive": 75, "transmit": 0, "idle": 0, "other": 25}, "shares")
    # 40 of 400 samples.
    equal(with_idle, {"receive": 7.5, "transmit": 0, "idle": 90, "other": 2.5}, "with idle time")
    equal([stages["total"], stages["ends"], stages["rate"]], [100, 40, 20], "cycles")
    # 20 million times 100 cycles, of 2,500 million.
    equal(round(stages["identity"], 6), -20, "identity")


@test(timeout=300, hugepages=1)
def recovery_is_measured_in_one_run_of_the_generator(lab):
    """An overload that ends: frames are lost until after the change at most, and the figures say
    so; an overload that the generator cannot make is said to be none."""
    user = User(lab)
    text = OWN.replace("method: throughput", "method: recovery")
    text = text.replace("[sluice, nobody]", "[sluice]").replace("[64, 256]", "[64]")
    text = text.replace("settings: {", "settings: {width: 20, ")
    text = text.replace(
        "{name: rate, title: Throughput, unit: Mpps, better: higher}",
        "{name: recovery, title: Recovery, unit: us}\n  - {name: lost, title: Lost}",
    )
    text = text.replace("y: [rate]", "y: [recovery]")
    text = text[: text.index("expect:")]
    # A generator whose processor others use for so long sends nothing in shorter windows.
    words = ("--output", user.output, "--rounds", "1", "--seconds", "1")
    user.run("run", user.write(text), *words, "--sluiced", user.daemon, seconds=280)
    (cell,) = user.cells()
    recovery, lost = (cell["figures"][name]["median"] for name in ("recovery", "lost"))
    lab.note(f"{recovery} us, {lost} frames, {cell['limited_by']}")
    check(0 <= recovery <= 1e6, cell)
    check((lost > 0) == (recovery > 0) or recovery == 0, cell)


@test(timeout=240, hugepages=1)
def rules_change_while_packets_pass(lab):
    """Packets obey each change, of Sluice and of Open vSwitch, and statistics come meanwhile."""
    user = User(lab)
    user.run(
        *("run", "E3", "--quick", "--rounds", "1", "--seconds", "0.3", "--output", user.output),
        *("--sluiced", user.daemon),
    )
    experiments = {one["id"]: one for one in user.results()["experiments"]}
    cells = experiments["E3"]["cells"]
    equal(len(cells), 4, "cells")
    for cell in cells:
        if cell["subject"] != "sluice" and "not installed" in (cell["missing"] or ""):
            continue
        figures = {name: figure["median"] for name, figure in cell["figures"].items()}
        check(figures.get("changes", 0) >= 3, cell)
        for name in ("setup", "barrier", "statistics"):
            check(name in figures, name, "is missing in", cell)
        check(0 < figures["setup"] <= figures["setup_p99"], figures)
        check(0 < figures["statistics"], figures)
    equal(left_behind(), [], "left behind")
