"""The commands of the README and of the user guide, as they stand there."""
import os
import re
import shutil
import subprocess

from harness import ROOT, Skip, check, run, test, wait_for


def blocks(path):
    """The shell blocks that follow a `<!-- tour -->` mark, joined."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return "\n".join(re.findall(r"<!-- tour -->\n```sh\n(.*?)```", file.read(), re.S))


def tour(lab, path):
    """Runs the blocks of a document in one shell, which stops at the first command that fails."""
    if lab.is_ovs:
        raise Skip("the documents are about Sluice")
    binaries = os.path.dirname(lab.switchd[0])
    script = blocks(path).replace("$PWD/target/release", binaries)
    check(len(script.splitlines()) > 10, f"{path} has no tour")
    # A shell that is not interactive has no %1 unless it is told to have jobs.
    done = run(["bash", "-c", "set -e -o pipefail -m\n" + script], cwd=ROOT, seconds=150, ok=False)
    check(done.returncode == 0, f"the commands of {path} ended with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")


@test(timeout=170)
def readme(lab):
    """The five-minute tour of README.md."""
    shutil.rmtree("/tmp/sluice-tour", ignore_errors=True)
    try:
        tour(lab, "README.md")
        check(not os.path.exists("/tmp/sluice-tour"), "the tour left /tmp/sluice-tour")

        def left():
            return subprocess.run(["ps", "-eo", "comm"], capture_output=True, text=True, check=True).stdout
        wait_for("what the tour started has ended", lambda: not re.search(r"sluiced|vswitchd|ovsdb-server|qemu", left()))
    finally:
        shutil.rmtree("/tmp/sluice-tour", ignore_errors=True)


@test(timeout=170)
def user_guide(lab):
    """The examples of docs/user-guide.md."""
    try:
        tour(lab, "docs/user-guide.md")
    finally:
        shutil.rmtree("/tmp/sluice-guide", ignore_errors=True)
