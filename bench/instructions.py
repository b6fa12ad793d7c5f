#!/usr/bin/python3
"""Instructions per packet of parsing, classifying, acting and whole walks, held against those that
are on record.

    bench/instructions.py check     counts, compares with bench/instructions.txt, and ends with 1
                                    where a count has grown by more than 3%
    bench/instructions.py accept    counts, and puts the counts on record (`make bench-accept`)

valgrind's callgrind counts what the benchmark `instructions` of the crate `program` executes for a
fixed number of packets. No clock, cache or chance takes part, so the counts are the same on every
machine that compiles with the compiler named in the record, which scripts/setup installs where it
is not the default. Sluice is told to take its portable ways (SLUICE_VECTOR; valgrind has no
AVX-512, and not every machine AVX2), and glibc to use no vectors for copies either.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RECORD = os.path.join(ROOT, "bench", "instructions.txt")
LIMIT = 0.03
BUILD = [
    "bench",
    "--locked",
    "-p",
    "sluice-program",
    "--bench",
    "instructions",
    "--profile",
    "count",
    "--no-run",
    "--message-format=json",
]
FUNCTION = "instructions::counted"
# glibc chooses among its ways to copy by what the processor has; with these off every x86-64 takes
# the same one.
PLAIN_COPIES = "glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-AVX2,-AVX,-SSSE3,-ERMS,-FSRM"
HEAD = """# Instructions per packet, counted by bench/instructions.py. `make test` fails where one \
grows by more than 3%; `make bench-accept` puts what it counts
# on record here. Say in the commit what a growth buys.
"""


class NotComparable(Exception):
    """There is no compiler here whose counts could be compared; no fault of the code."""


class Trouble(Exception):
    """Why nothing could be counted."""


def read_record(text):
    """The compiler and the counts by name that a record holds."""
    compiler, counts = "", {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        found = re.fullmatch(r"compiler (rustc \S+)|([0-9]+(?:\.[0-9]+)?) +(\S.*)", line.strip())
        if not found:
            raise Trouble(f"{RECORD}:{number}: neither a compiler nor a count: {line!r}")
        if found.group(1):
            compiler = found.group(1)
        elif found.group(3) in counts:
            raise Trouble(f"{RECORD}:{number}: {found.group(3)!r} is there twice")
        else:
            counts[found.group(3)] = float(found.group(2))
    if not compiler:
        raise Trouble(f"{RECORD} names no compiler")
    return compiler, counts


def write_record(compiler, counts):
    """A record's text."""
    return f"{HEAD}compiler {compiler}\n" + "".join(
        f"{count:10.2f} {name}\n" for name, count in counts.items()
    )


def compare(recorded, counted):
    """What is to be said of each benchmark that changed, and whether the check fails."""
    lines, failed = [], False
    for name, count in counted.items():
        before = recorded.get(name)
        if before is None:
            lines.append(f"NEW     {name}: {count:.2f} instructions per packet, none on record")
            failed = True
        elif count > before * (1 + LIMIT):
            lines.append(
                f"GROWN   {name}: {count:.2f} instructions per packet, {before:.2f} on record "
                f"({count / before - 1:+.1%})"
            )
            failed = True
        elif count < before * (1 - LIMIT):
            lines.append(
                f"shrunk  {name}: {count:.2f} instructions per packet, {before:.2f} on record "
                f"({count / before - 1:+.1%})"
            )
    for name in recorded:
        if name not in counted:
            lines.append(f"GONE    {name}: {recorded[name]:.2f} on record, not counted any more")
            failed = True
    if lines:
        lines.append(
            "`make bench-accept` puts the new counts on record"
            + ("" if failed else ", so that they stay so low")
        )
    return lines, failed


def cargo(compiler):
    """How cargo is called so that it uses the compiler."""
    version = compiler.split()[1]
    if this_compiler() == compiler:
        return ["cargo"]
    if shutil.which("rustup"):
        installed = subprocess.run(
            ["rustup", "run", version, "rustc", "--version"],
            capture_output=True,
            text=True,
            check=False,
        )
        if installed.stdout.startswith(compiler + " "):
            return ["rustup", "run", version, "cargo"]
    raise NotComparable(
        f"the counts on record are of {compiler}, and this is {this_compiler()}: run "
        "scripts/setup, which installs it beside yours where it can be had, or accept the counts "
        "of yours"
    )


def this_compiler():
    """The default compiler: name and version."""
    return " ".join(
        subprocess.run(
            ["rustc", "--version"], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.split()[:2]
    )


def build(command):
    """Builds the benchmark and returns the program's path."""
    done = subprocess.run(
        [*command, *BUILD], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise Trouble("the benchmark does not build")
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if (
            message.get("reason") == "compiler-artifact"
            and message.get("executable")
            and message["target"]["name"] == "instructions"
        ):
            return message["executable"]
    raise Trouble("cargo names no program")


def count(program):
    """Instructions per packet by benchmark, in the program's order."""
    if not shutil.which("valgrind"):
        raise Trouble("valgrind is missing: run scripts/setup")
    with tempfile.TemporaryDirectory(prefix="instructions.") as directory:
        out = os.path.join(directory, "out")
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            f"--zero-before={FUNCTION}",
            f"--dump-after={FUNCTION}",
            program,
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            cwd=directory,
            env=dict(os.environ, GLIBC_TUNABLES=PLAIN_COPIES, SLUICE_VECTOR="portable"),
        )
        if done.returncode:
            raise Trouble(f"the benchmark failed under valgrind:\n{done.stderr[-2000:]}")
        counts = {}
        # One file for each call, in the order in which the program printed its lines.
        for number, line in enumerate(done.stdout.splitlines(), 1):
            packets, _, name = line.partition(" ")
            with open(f"{out}.{number}", encoding="utf-8") as file:
                text = file.read()
            trigger, total = (
                re.search(r"^desc: Trigger: (.*)$", text, re.M),
                re.search(r"^totals: (\d+)$", text, re.M),
            )
            if (
                not trigger
                or trigger.group(1) != f"--dump-after={FUNCTION}"
                or not total
                or name in counts
            ):
                raise Trouble(f"callgrind's file for {name!r} is not what was expected")
            counts[name] = int(total.group(1)) / int(packets)
        if not counts or os.path.exists(f"{out}.{len(counts) + 1}"):
            raise Trouble("callgrind counted other calls than the benchmark named")
        return counts


def check():
    """Compares with the record; returns the process's exit code."""
    with open(RECORD, encoding="utf-8") as file:
        compiler, recorded = read_record(file.read())
    counted = count(build(cargo(compiler)))
    lines, failed = compare(recorded, counted)
    print(
        "\n".join(lines)
        or f"{len(counted)} counts of instructions per packet are within 3% of those on record"
    )
    return int(failed)


def accept():
    """Replaces the record; returns the process's exit code."""
    counted = count(build(["cargo"]))
    recorded = {}
    if os.path.exists(RECORD):
        with open(RECORD, encoding="utf-8") as file:
            recorded = read_record(file.read())[1]
    print("\n".join(line for line in compare(recorded, counted)[0][:-1]))
    with open(RECORD, "w", encoding="utf-8") as file:
        file.write(write_record(this_compiler(), counted))
    return 0


def main():
    if sys.argv[1:] not in (["check"], ["accept"]):
        sys.exit(__doc__)
    try:
        sys.exit(check() if sys.argv[1] == "check" else accept())
    except NotComparable as reason:
        print(f"instructions are NOT COMPARED: {reason}")
        sys.exit(0)
    except Trouble as trouble:
        print(f"instructions: {trouble}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
