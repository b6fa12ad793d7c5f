"""Answers of two daemons held against each other line by line, and the list that explains where
they differ.

A list has commands (`== PATTERN`), and below each the lines that only Open vSwitch (`- PATTERN`) or
only the daemon under test (`+ PATTERN`) prints; patterns are regular expressions for the whole
command or line. A difference that is not explained fails the test, and so does an explanation that
nothing needs any more.
"""

import difflib
import re

from harness import Failure, check


def explanations(path):
    """[(line number, command pattern, sign, line pattern)] of a list of differences; see its head
    for the format."""
    entries, command = [], None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if not line or line.startswith("#"):
                continue
            if line.startswith("== "):
                command = re.compile(line[3:])
            elif line.startswith(("- ", "+ ")) and command:
                entries.append((number, command, line[0], re.compile(line[2:])))
            else:
                raise Failure(
                    f"{path}:{number}: neither '== COMMAND', '- LINE', '+ LINE' nor a comment"
                )
    return entries


def hold(lab, path, answers):
    """Compares `answers`, (command, Open vSwitch's answer, the other's) each, but for what the list
    explains."""
    entries, used, unexplained, differing = explanations(path), set(), {}, 0
    for shown, reference, answer in answers:
        for line in difflib.unified_diff(
            reference.splitlines(), answer.splitlines(), n=0, lineterm=""
        ):
            if line.startswith(("---", "+++", "@@")):
                continue
            differing += 1
            entry = next(
                (
                    entry
                    for entry in entries
                    if entry[1].fullmatch(shown)
                    and entry[2] == line[0]
                    and entry[3].fullmatch(line[1:].strip())
                ),
                None,
            )
            if entry:
                used.add(entry[0])
            else:
                unexplained.setdefault(shown, []).append(line)
    lab.note(f"{len(answers)} answers, {differing} lines differ, {len(entries)} explanations")
    lines = [
        (
            f"{sum(map(len, unexplained.values()))} lines differ without an explanation (- Open "
            "vSwitch, + this daemon):"
        )
    ]
    for shown, differ in unexplained.items():
        lines += [
            f"== {shown}",
            *(f"{line[0]} {line[1:].strip()}" for line in differ[:12]),
            *([f"   and {len(differ) - 12} more"] if len(differ) > 12 else []),
        ]
    check(not unexplained, "\n".join(lines))
    stale = [f"line {number}" for number, *_ in entries if number not in used]
    check(lab.is_ovs or not stale, f"{path} explains what no longer differs: {', '.join(stale)}")
