"""The blocks of code in README.md and in the user guide: those that a test runs as they stand, and
what keeps the others from it.

A shell block is fenced as ```sh, and the line above says how it is tested:

    <!-- tour -->             runs as it stands, after the others of its document, in one shell
                              (test_tour.py)
    <!-- needs: REASON -->    does not run on every machine: it needs what REASON says, one of
                              `NEEDS`, and shows that it does
"""

import dataclasses
import os
import re
import xml.etree.ElementTree as tree

from harness import ROOT

DOCUMENTS = ("README.md", "docs/user-guide.md")
# What a block may need, and a pattern for the command in it that needs it.
NEEDS = {
    "make": r"^make \w+",
    "a service manager": r"^systemctl \w+",
    "podman": r"^podman run ",
    "a PCI device": r"dpdk-devargs=[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b",
}
WIDTH = 100


@dataclasses.dataclass
class Block:
    """A fenced block: where it stands, under which heading, what the line above says, its language
    and its text."""

    line: int
    heading: str
    mark: str
    language: str
    text: str

    @property
    def runs(self):
        """Whether it is part of the tour."""
        return self.mark == "<!-- tour -->"

    @property
    def needs(self):
        """The reason for which it does not run everywhere, if it has one."""
        found = re.fullmatch(r"<!-- needs: (.+) -->", self.mark)
        return found[1] if found else None


def text_of(path):
    """A document."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def parse(text):
    """The blocks of a document, and the numbers of its lines that look like a block which is only
    indented. A fence that is left open ends with the document."""
    blocks, indented, heading, above, open_block = [], [], "", "", None
    for number, line in enumerate(text.splitlines(), 1):
        if open_block:
            if line == "```":
                open_block = None
            else:
                open_block.text += line + "\n"
            continue
        if line.startswith("```"):
            open_block = Block(number, heading, above, line[3:], "")
            blocks.append(open_block)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
        elif re.match(r"    |\t", line) and not above:
            indented.append(number)
        above = line
    return blocks, indented


def blocks(path):
    """The blocks of a document of this repository."""
    return parse(text_of(path))[0]


def complaints(text):
    """What is wrong with a document: blocks that nobody tests, reasons that are none, lines that
    are too long."""
    found, indented = parse(text)
    wrong = [
        f"line {number}: code that is indented, not fenced, is not tested" for number in indented
    ]
    for block in found:
        where = f"line {block.line}"
        if block.language == "xml":
            try:
                tree.fromstring(f"<all>{block.text}</all>")
            except tree.ParseError as error:
                wrong.append(f"{where}: {error}")
        elif block.language != "sh":
            wrong.append(f"{where}: nobody tests a block of {block.language or 'no language'}")
        elif not block.runs and block.needs is None:
            wrong.append(f"{where}: neither part of the tour nor marked with what it needs")
        elif not block.runs and block.needs not in NEEDS:
            wrong.append(f"{where}: {block.needs} is no reason that a test knows")
        elif not block.runs and not re.search(NEEDS[block.needs], block.text, re.M):
            wrong.append(f"{where}: it needs no {block.needs}, so it can run")
        elif not commands(block):
            wrong.append(f"{where}: it has no command")
    wrong += [
        f"line {number}: {len(line)} columns"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > WIDTH
    ]
    return wrong


def strict(text):
    """A block as a shell has to be given it that stops at the first command which fails: to bash, a
    command that fails because `!` stands before it is none."""
    return re.sub(r"^(! (?:.*\\\n)*.*)$", r"{ \1\n} || exit 1", text, flags=re.M)


def commands(block):
    """The commands of a block, one a line, without comments."""
    lines = re.sub(r"\\\n *", "", block.text).splitlines()
    return [
        command
        for command in (re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines)
        if command
    ]
