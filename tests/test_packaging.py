"""The Debian packages, `make install` below any prefix, and the container image: what is in them;
and, on request (`make deb-check`, after `make deb`), how they install, run, upgrade and go in a
clean Debian 12 with a service manager of its own."""

import fcntl
import functools
import glob
import json
import os
import re
import signal
import subprocess

from documents import blocks, commands, text_of
from harness import PATIENCE, ROOT, Failure, Skip, check, equal, run, test, wait_for

PACKAGING = os.path.join(ROOT, "packaging")
PACKAGES = os.path.join(ROOT, ".build", "deb")
DAEMON = "/usr/sbin/sluiced"


def binaries_of(lab):
    """The directory of the binaries under test."""
    if lab.is_ovs:
        raise Skip("Sluice's packages")
    directory = os.path.dirname(os.path.abspath(lab.switchd[0]))
    check(os.access(f"{directory}/sluice", os.X_OK), f"{directory}/sluice is not built")
    return directory


def make(target, ok=True, umask="022", **variables):
    """Runs a target of the Makefile."""
    words = [
        "make",
        "--no-print-directory",
        "-C",
        ROOT,
        target,
        *(f"{name}={value}" for name, value in variables.items()),
    ]
    return run(["sh", "-c", f'umask {umask}; exec "$@"', "-", *words], seconds=60, ok=ok)


def files_below(directory):
    """All files, by their paths below the directory."""
    return {
        os.path.relpath(os.path.join(where, name), directory)
        for where, _, names in os.walk(directory)
        for name in names
    }


def help_of(binaries, *words):
    return run([f"{binaries}/{words[0]}", *words[1:], "--help"]).stdout


def commands_of(binaries, *words):
    """The words of all commands of sluice."""
    found = [words]
    listed = re.search(r"^Commands:\n((?:  .*\n)+)", help_of(binaries, *words), re.M)
    for name in re.findall(r"^  (\w\S*)", listed[1] if listed else "", re.M):
        if name != "help":
            found += commands_of(binaries, *words, name)
    return found


def words_of(page):
    """The text of a manual page in one line, without its markup."""
    lines = [
        line.removeprefix(".SH ")
        for line in page.splitlines()
        if line.startswith(".SH ") or not re.match(r"\.[A-Zb]", line)
    ]
    text = " ".join(lines).replace("\\fB", "").replace("\\fR", "").replace("\\&", "")
    for escape, character in (("\\(aq", "'"), ("\\(ga", "`"), ("\\-", "-"), ("\\e", "\\")):
        text = text.replace(escape, character)
    return " ".join(text.split())


def check_manual(binaries, manual):
    """There is a page for each program and command, and it says what --help says: every option,
    every usage, every text."""
    pages = {"-".join(words): (1, words) for words in commands_of(binaries, "sluice")}
    check(len(pages) > 5, "commands of sluice:", pages)
    pages["sluiced"] = (8, ("sluiced",))
    equal(
        {os.path.basename(path) for path in files_below(manual)},
        {f"{name}.{section}" for name, (section, _) in pages.items()},
        "manual pages",
    )
    for name, (section, words) in pages.items():
        page = (
            text_of(f"{manual}/man{section}/{name}.{section}")
            .replace("\\-", "-")
            .replace("\\fB", "")
            .replace("\\fR", "")
        )
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", help_of(binaries, *words)))
        check(
            options and not {option for option in options if option not in page},
            f"{name}({section}) lacks options:",
            options,
            page,
        )
        said = words_of(text_of(f"{manual}/man{section}/{name}.{section}")).lower()
        for line in help_of(binaries, *words).splitlines():
            for piece in re.split(
                r"\s{2,}", re.sub(r"^(usage|sluiced): +", "", line.strip(), flags=re.I)
            ):
                check(
                    piece.removesuffix(":").lower() in said,
                    f"{name}({section}) does not say what --help says:",
                    piece,
                )


def complete(file, *words):
    """What bash offers for the last of these words."""
    script = (
        f'. "{file}"; COMP_WORDS=({" ".join(repr(word) for word in words)}); '
        f'COMP_CWORD={len(words) - 1}; _{words[0]}; echo "${{COMPREPLY[@]}}"'
    )
    return set(run(["bash", "-c", script]).stdout.split())


def anchors(path):
    """The anchors of a document's headings, as they are made from them everywhere."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ +(.*?) *$", text_of(path), re.M)
    }


def check_links(directory):
    """Every link between documents leads somewhere."""
    count = 0
    for name in files_below(directory):
        if not name.endswith(".md"):
            continue
        path = os.path.join(directory, name)
        for target in re.findall(r"\]\(([^)\s]+)\)", text_of(path)):
            if re.match(r"\w+:", target):
                continue
            count += 1
            file, _, anchor = target.partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
            check(
                os.path.isfile(there) and os.path.commonpath([there, directory]) == directory,
                f"{name} links to {target}, which is not installed",
            )
            check(
                not anchor or anchor in anchors(there),
                f"{name} links to {target}, which has no such heading",
            )
    check(count > 8, f"only {count} links were found")


@test(timeout=120)
def a_prefix_moves_everything(lab):
    """`make install` puts everything below PREFIX, what it installs names no other, and `make
    uninstall` takes it away but for what administrators change; so it is where paths have spaces,
    and whatever the umask of who installs."""
    binaries = binaries_of(lab)
    for prefix in ("/opt/switch", "/opt/my switch"):
        top = f"{lab.directory}/top of {prefix[5:]}"
        there = f"{top}{prefix}"
        make("install-built", umask="077", DESTDIR=top, PREFIX=prefix, BINARIES=binaries)
        files = files_below(top)
        equal(
            [name for name in files if not name.startswith(f"{prefix[1:]}/")],
            [],
            "files outside of the prefix",
        )
        check(
            {
                "sbin/sluiced",
                "bin/sluice",
                "lib/sluice/rules",
                "lib/systemd/system/sluiced.service",
                "etc/default/sluiced",
                "share/doc/sluice/README.md",
                "share/sluice/lab/bench/lab_forwarding.py",
                "share/sluice/lab/tests/harness.py",
            }
            <= files_below(there),
            "what is installed:",
            files,
        )
        hidden = [
            path
            for path, _, names in os.walk(top)
            for path in (path, *(f"{path}/{name}" for name in names))
            if path != top and not os.stat(path).st_mode & 4
        ]
        equal(hidden, [], "what others may not read")
        unit = text_of(f"{there}/lib/systemd/system/sluiced.service")
        check(
            "@" not in re.sub(r"@system-service", "", unit),
            "the unit has places that were not filled in:",
            unit,
        )
        named = re.findall(rf'{prefix}/[^"\s]+', unit)
        check(len(named) > 5, "places in the unit:", named)
        for name in named:
            check(os.path.exists(top + name), f"the unit names {name}, which is not installed")
        equal(re.findall(r"/usr/(?:local|sbin|lib)\S*", unit), [], "other places in the unit")
        check_links(f"{there}/share/doc/sluice")
        check_manual(binaries, f"{there}/share/man")
        # What has been changed stays when it is installed again.
        for name in ("default/sluiced", "logrotate.d/sluice"):
            with open(f"{there}/etc/{name}", "a", encoding="utf-8") as file:
                file.write("# changed\n")
        make("install-built", DESTDIR=top, PREFIX=prefix, BINARIES=binaries)
        for name in ("default/sluiced", "logrotate.d/sluice"):
            check(
                "# changed" in text_of(f"{there}/etc/{name}"),
                f"a second installation has written over {name}",
            )
        make("uninstall", DESTDIR=top, PREFIX=prefix)
        equal(
            files_below(there),
            {"etc/default/sluiced", "etc/logrotate.d/sluice"},
            "what `make uninstall` leaves",
        )


EXPERIMENT = """
id: nothing
title: Nothing
purpose: None.
topology: None.
method: program
settings: {program: lab_steering.py}
subjects: [sluice]
sweep: [{name: field, title: Field, values: []}]
measures: [{name: found, title: Found, unit: "%", better: higher}]
plots: []
"""


@test(timeout=120)
def an_installed_lab_has_its_programs(lab):
    """The programs that measure experiments are installed with all that they import and compile,
    the installed command finds them and runs them, and nothing appears beside them."""
    binaries = binaries_of(lab)
    top, prefix = f"{lab.directory}/top", "/opt/my switch"
    there = f"{top}{prefix}"
    make("install-built", DESTDIR=top, PREFIX=prefix, BINARIES=binaries)
    programs = f"{there}/share/sluice/lab"
    before = files_below(programs)
    for name in ("lab_forwarding", "lab_slicing", "lab_steering"):
        # Without what the caller's directory and environment have.
        done = run(
            [f"{programs}/bench/{name}.py", "--help"],
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        check("--mode" in done.stdout, done.stdout)
        text = text_of(f"{programs}/bench/{name}.py")
        for used in re.findall(r'os\.path\.join\(HERE, "([^"]+)"\)', text):
            check(f"bench/{used}" in before, f"{name} uses {used}")
    for name in (name for name in before if name.endswith(".py")):
        for used in re.findall(r'HERE, "([^"]+\.c)"', text_of(f"{programs}/{name}")):
            check(f"bench/{used}" in before, f"{name} uses {used}, which is not installed")
    path = f"{lab.directory}/nothing.yaml"
    with open(path, "w", encoding="ascii") as file:
        file.write(EXPERIMENT)

    def told(name):
        command = [f"{there}/bin/sluice", "lab", "run", path, "--quick", "--rounds", "1"]
        output = f"{lab.directory}/{name}"
        run([*command, "--output", output], seconds=90, ok=False)
        return text_of(f"{output}/results.json")

    # It is found and run, and refuses an experiment that it does not have.
    text = told("found")
    check("lab_steering.py ended with exit status: 2" in text, text[-3000:])
    equal(files_below(programs), before, "what is below share/sluice/lab afterwards")
    make("uninstall", DESTDIR=top, PREFIX=prefix)
    check(not os.path.exists(f"{there}/share/sluice"), files_below(there))
    make("install-built", DESTDIR=top, PREFIX=prefix, BINARIES=binaries)
    os.remove(f"{programs}/bench/lab_steering.py")
    text = told("gone")
    check("is in none of" in text and "share/sluice/lab/bench" in text, text[-3000:])


@test(timeout=60)
def places_are_looked_at_first(lab):
    """What a unit cannot name is refused before anything is installed; where PREFIX is /usr,
    however it is written, configuration is in /etc; a directory that others use stays theirs."""
    binaries = binaries_of(lab)
    top = f"{lab.directory}/top"
    for prefix, why in (
        ("switch", "is not absolute"),
        ("/opt/50%", "has a character"),
        ('/opt/"x"', "has a character"),
        ("/opt/it's", "has a character"),
    ):
        refused = make("install-built", ok=False, DESTDIR=top, PREFIX=prefix, BINARIES=binaries)
        check(
            refused.returncode and f"the place '{prefix}' {why}" in refused.stderr,
            f"PREFIX={prefix}:",
            refused.stderr,
        )
    check(not os.path.exists(top), "something was installed all the same")
    documents = f"{top}/usr/share/doc"
    os.makedirs(documents)
    with open(f"{documents}/others", "w", encoding="ascii") as file:
        file.write("not Sluice's\n")
    variables = {
        "DESTDIR": top,
        "PREFIX": "/usr/",
        "DOCDIR": "/usr/share/doc",
        "BINARIES": binaries,
    }
    make("install-built", **variables)
    check(
        {"etc/default/sluiced", "usr/sbin/sluiced", "usr/share/doc/README.md"} <= files_below(top),
        "what is installed:",
        files_below(top),
    )
    check(
        "EnvironmentFile=-/etc/default/sluiced"
        in text_of(f"{top}/usr/lib/systemd/system/sluiced.service").splitlines(),
        "where the unit looks for options",
    )
    make("uninstall", **variables)
    equal(
        files_below(top),
        {"etc/default/sluiced", "etc/logrotate.d/sluice", "usr/share/doc/others"},
        "what `make uninstall` leaves",
    )


@test(timeout=170)
def a_package_is_whole(lab):
    """The Debian packages: dependencies, stripped binaries and their symbols by build id, manual,
    completion, configuration files, scripts, sums."""
    binaries = binaries_of(lab)
    out, root, symbols = (f"{lab.directory}/{name}" for name in ("out", "root", "symbols"))
    run(
        [f"{PACKAGING}/deb", binaries, out],
        seconds=160,
        env=dict(os.environ, DEB_COMPRESSION="-Znone"),
    )
    release = run([f"{binaries}/sluice", "--version"]).stdout.split()[-1]
    architecture = run("dpkg --print-architecture").stdout.strip()
    version = os.path.basename(glob.glob(f"{out}/sluice_*.deb")[0]).split("_")[1]
    # A newer one is to be newer for apt, too.
    check(
        re.fullmatch(
            re.escape(release) + r"(\+git\d{14}\.[0-9a-f]{8}(\.changed\d{14})?)?", version
        ),
        "the package's version:",
        version,
    )
    run(["dpkg", "--compare-versions", version, "ge", release])
    run(["dpkg", "--compare-versions", version, "lt", f"{release}.1"])
    names = {
        name: f"{out}/{name}_{version}_{architecture}.deb" for name in ("sluice", "sluice-dbgsym")
    }
    equal(sorted(glob.glob(f"{out}/*")), sorted(names.values()), "packages")
    for name, where in (("sluice", root), ("sluice-dbgsym", symbols)):
        run(["dpkg-deb", "-R", names[name], where], seconds=60)
        sums = dict(
            reversed(line.split("  ", 1))
            for line in text_of(f"{where}/DEBIAN/md5sums").splitlines()
        )
        equal(
            set(sums),
            {path for path in files_below(where) if not path.startswith("DEBIAN/")},
            f"files with a sum in {name}",
        )
        run(["md5sum", "--quiet", "-c", "DEBIAN/md5sums"], cwd=where)
    depends = run(["dpkg-deb", "-f", names["sluice"], "Depends"]).stdout
    for wanted in (r"openvswitch-switch \(>= 3\.1\)", r"libc6 \(>= ", r"libssl3"):
        check(re.search(wanted, depends), f"{wanted} is no dependency:", depends)
    for binary in ("usr/bin/sluice", "usr/sbin/sluiced"):
        sections = run(["readelf", "-SW", f"{root}/{binary}"]).stdout
        check(
            ".debug_line" not in sections and ".symtab" not in sections, f"{binary} is not stripped"
        )
        build_id = re.search(
            r"Build ID: ([0-9a-f]+)", run(["readelf", "-n", f"{root}/{binary}"]).stdout
        )[1]
        kept = f"{symbols}/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        sections = run(["readelf", "-SW", kept]).stdout
        check(
            ".debug_line" in sections and ".symtab" in sections, f"{kept} has no symbols:", sections
        )
        check(
            build_id in run(["dpkg-deb", "-f", names["sluice-dbgsym"], "Build-Ids"]).stdout,
            f"{build_id} is not among Build-Ids",
        )
        equal(
            run([f"{root}/{binary}", "--version"]).stdout,
            run([f"{binaries}/{os.path.basename(binary)}", "--version"]).stdout,
            f"what {binary} says",
        )
    configuration = text_of(f"{root}/DEBIAN/conffiles").split()
    equal(
        sorted(configuration),
        ["/etc/default/sluiced", "/etc/logrotate.d/sluice"],
        "configuration files",
    )
    run(["find", f"{root}/usr/share/man", "-name", "*.gz", "-exec", "gunzip", "{}", "+"])
    check_manual(binaries, f"{root}/usr/share/man")
    check_links(f"{root}/usr/share/doc/sluice")
    completions = f"{root}/usr/share/bash-completion/completions"
    equal(complete(f"{completions}/sluice", "sluice", "u"), {"up"}, "sluice u")
    equal(
        complete(f"{completions}/sluice", "sluice", "predict", "qu"), {"queue"}, "sluice predict qu"
    )
    check(
        {"--rate", "--offered"}
        <= complete(f"{completions}/sluice", "sluice", "predict", "queue", "--"),
        "options of sluice predict queue",
    )
    equal(
        complete(f"{completions}/sluice", "sluice", "predict", "--flows", ""),
        set(),
        "the value of an option, which is left to names of files",
    )
    equal(complete(f"{completions}/sluiced", "sluiced", "--det"), {"--detach"}, "sluiced --det")
    for script in ("postinst", "prerm", "postrm"):
        path = f"{root}/DEBIAN/{script}"
        check(os.access(path, os.X_OK), f"{script} cannot be executed")
        run(["sh", "-n", path])
    for path in (
        "usr/lib/sluice/rules",
        "usr/lib/sluice/container",
        "usr/lib/sluice/await-database",
    ):
        check(os.access(f"{root}/{path}", os.X_OK), f"{path} cannot be executed")
    run(["bash", "-n", f"{root}/usr/lib/sluice/container"])
    unit = text_of(f"{root}/lib/systemd/system/sluiced.service").splitlines()
    # As Open vSwitch's own: ahead of what brings interfaces up, and last to be killed for want of
    # memory.
    for line in (
        "DefaultDependencies=no",
        "Requires=ovsdb-server.service",
        "OOMScoreAdjust=-900",
        "EnvironmentFile=-/etc/default/sluiced",
        "Alias=ovs-vswitchd.service",
    ):
        check(line in unit, f"the unit has no {line}")
    before, after = (
        " ".join(line.split("=", 1)[1] for line in unit if line.startswith(f"{word}=")).split()
        for word in ("Before", "After")
    )
    check(
        {"network.target", "networking.service"} <= set(before)
        and {"ovsdb-server.service", "network-pre.target"} <= set(after),
        "order:",
        before,
        after,
    )


@test(timeout=60)
def a_container_robs_nobody(lab):
    """The image's entry point, with the host's directory of sockets: it refuses to start beside a
    switch that runs, with its database and without, and beside another container; sockets stay."""
    binaries_of(lab)
    switch = lab.switch()
    run("mkdir -p /run/openvswitch")
    run(["mount", "--bind", switch.directory, "/run/openvswitch"])

    def refused(what):
        done = run([f"{PACKAGING}/container"], ok=False)
        check(
            done.returncode == 1 and f"container: another {what}" in done.stderr,
            "the container's entry point:",
            done.returncode,
            done.stderr,
        )
        equal(switch.appctl("version", ok=False).returncode, 0, "who asks the switch")

    refused("database is served")
    switch.stop_database()
    refused("switch answers")
    switch.stop()
    with open(f"{switch.directory}/sluice-container.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run([f"{PACKAGING}/container"], ok=False)
    check(
        done.returncode == 1 and "another container has not ended" in done.stderr,
        "beside another container:",
        done.returncode,
        done.stderr,
    )


def newer(package, directory):
    """Makes a package of a higher version from one, in this directory; returns its path and its
    version."""
    root = f"{directory}/newer"
    run(["dpkg-deb", "-R", package, root], seconds=60)
    control = text_of(f"{root}/DEBIAN/control")
    version = re.search(r"^Version: (.*)", control, re.M)[1] + "+next"
    with open(f"{root}/DEBIAN/control", "w", encoding="utf-8") as file:
        file.write(re.sub(r"^Version: .*", f"Version: {version}", control, flags=re.M))
    path = f"{directory}/sluice_{version}_next.deb"
    run(["dpkg-deb", "-Znone", "--build", root, path], seconds=60)
    run(["rm", "-r", root])
    return path, version


def packages(name):
    """The package that `make deb` has made."""
    found = glob.glob(f"{PACKAGES}/{name}_*.deb")
    check(len(found) == 1, f"`make deb` comes first; in {PACKAGES} there is {found}")
    return found[0]


class Debian:
    """A clean Debian 12 in memory, which goes with the test."""

    def __init__(self, lab, name):
        self.lab, self.name, self.root, self.process, self.group = (
            lab,
            name,
            f"{lab.directory}/{name}",
            None,
            None,
        )
        os.mkdir(self.root)
        run(["mount", "-t", "tmpfs", "-o", "size=2G,mode=755", "tmpfs", self.root])
        tar = run(
            [os.path.join(ROOT, "scripts", "debian-root"), packages("sluice")], seconds=500
        ).stdout.strip()
        run(["tar", "-C", self.root, "-xf", tar], seconds=120)
        for package in glob.glob(f"{PACKAGES}/*.deb"):
            run(["cp", package, f"{self.root}/root/"])

    def enter(self, command, cgroup=None):
        """Starts a command as process 1 of this Debian, with namespaces, devices and control groups
        of its own."""
        script = f"""set -e
            R={self.root}
            mount --make-rprivate /
            mount --bind $R $R
            mount -t proc proc $R/proc; mount -t sysfs sysfs $R/sys
            mount -t tmpfs tmpfs $R/run; mount -t tmpfs tmpfs $R/dev -o mode=755
            mkdir $R/dev/net $R/dev/pts $R/dev/shm
            for device in null zero full random urandom tty net/tun; do
                touch $R/dev/$device; mount --bind /dev/$device $R/dev/$device
            done
            touch $R/dev/console; mount --bind {self.root}/../{self.name}.console $R/dev/console
            {"mount -t cgroup2 cgroup2 $R/sys/fs/cgroup" if cgroup else ""}
            ip link set lo up
            cd $R; mkdir -p .old; pivot_root . .old; umount -l /.old
            exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@" """
        open(f"{self.root}.console", "a", encoding="ascii").close()
        flags = [
            "--mount",
            "--pid",
            "--net",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child=KILL",
            *(["--cgroup"] if cgroup else []),
        ]
        join = f"echo $$ >{cgroup}/cgroup.procs; " if cgroup else ""
        self.process = self.lab.start(
            [
                "bash",
                "-c",
                f'{join}exec unshare "$@"',
                "-",
                *flags,
                "bash",
                "-c",
                script,
                "-",
                *command,
            ],
            f"{self.name}.log",
        )
        return self.process

    def first(self):
        """The process id of its process 1, as it is here."""

        def child():
            done = subprocess.run(
                ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
            )
            return done.stdout.split()[:1]

        return int(wait_for(f"{self.name} runs", child)[0])

    def boot(self):
        """Starts its service manager, and waits until everything has been started."""
        mounts = [line.split() for line in text_of("/proc/mounts").splitlines()]
        top = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
        check(top, "there is no unified hierarchy of control groups, which systemd needs")
        self.group = f"{top}/sluice-{os.getpid()}-{self.name}"
        os.makedirs(self.group, exist_ok=True)
        self.enter(["/lib/systemd/systemd", "--system", "--show-status=0"], self.group)
        self.first()
        done = wait_for("the system has started", lambda: self.started() or None, 60)
        check(done in ("running", "degraded"), "the system is", done)

    def started(self):
        """The state of the system, once it has started."""
        state = self.run("systemctl is-system-running", ok=False).stdout.strip()
        return state if state in ("running", "degraded") else ""

    def halt(self):
        """Takes its power away, if it is on."""
        if self.process is None or self.process.poll() is not None:
            return
        os.kill(self.first(), signal.SIGKILL)
        self.process.wait(20)
        self.process = None
        if self.group:

            def removed():
                for where, _, _ in os.walk(self.group, topdown=False):
                    try:
                        os.rmdir(where)
                    except OSError:
                        return False
                return True

            wait_for("its control groups are gone", removed)

    def run(self, command, **options):
        """A command inside."""
        words = ["bash", "-c", command] if isinstance(command, str) else command
        return run(
            [
                "nsenter",
                "-t",
                str(self.first()),
                "-m",
                "-p",
                "-n",
                "-u",
                "-i",
                *(["-C"] if self.group else []),
                "--",
                "env",
                "-i",
                "LC_ALL=C.UTF-8",
                "DEBIAN_FRONTEND=noninteractive",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME=/root",
                *words,
            ],
            **options,
        )

    def says(self, command):
        return self.run(command).stdout.strip()

    def switch(self):
        """The program and the process that are ovs-vswitchd.service now."""
        pid = self.says("systemctl show -P MainPID ovs-vswitchd.service")
        return (self.says(f"readlink /proc/{pid}/exe"), pid) if pid != "0" else ("", pid)


def in_debian(name):
    """A test in a Debian of that name, whose control groups go with it however it ends."""

    def mark(function):
        @functools.wraps(function)
        def whole(lab):
            binaries_of(lab)
            debian = Debian(lab, name)
            try:
                function(debian)
            finally:
                debian.halt()

        return whole

    return mark


def documented(path, heading):
    """The commands of the first block under a heading that wants a service manager, but for `make
    deb`; and those of the second, if there is one. The packages are where the test has put them."""
    found = [
        block
        for block in blocks(path)
        if block.heading == heading and block.needs == "a service manager"
    ]
    check(found, f"{path} says nothing of systemctl under {heading}")
    return [
        [
            command.replace("./.build/deb/", "/root/")
            for command in commands(block)
            if command != "make deb"
        ]
        for block in found
    ]


def interfaces(debian):
    """What ifupdown is to do: a bridge of the switch's with an address."""
    with open(f"{debian.root}/etc/network/interfaces", "w", encoding="ascii") as file:
        file.write(
            "auto br0\niface br0 inet static\n  address 10.9.0.1/24\n  ovs_type OVSBridge\n"
            "  ovs_extra set bridge br0 datapath_type=netdev\n"
        )


@test(timeout=600, on_request=True)
@in_debian("debian")
def clean_debian_takes_the_package_and_gives_it_back(debian):
    """In a clean Debian 12 that has booted: installed with its dependencies, put in the place of
    ovs-vswitchd, in peace with ifupdown's hook, its log rotated, upgraded with its rules, booted
    again ahead of networking; removed, which puts Open vSwitch back, and purged without a trace."""
    debian.boot()
    debian.run("! command -v sluiced && ! command -v ovs-vsctl")
    # Nobody is there to say yes.
    debian.run(
        "echo 'APT::Get::Assume-Yes true; APT::Install-Recommends false;' "
        ">/etc/apt/apt.conf.d/90test"
    )
    ((install, *replace),) = documented("README.md", "Installing")
    debian.run(install, seconds=240)
    # As installed Open vSwitch's daemon goes on.
    wait_for(
        "Open vSwitch runs",
        lambda: debian.switch()[0].startswith("/usr/lib/openvswitch-switch/"),
        30,
    )
    equal(
        debian.run("systemctl is-active sluiced", ok=False).stdout.strip(),
        "inactive",
        "sluiced after the installation",
    )
    for command in replace:
        debian.run(command, seconds=60)
    equal(debian.switch()[0], DAEMON, "the switch")
    # Back, and over again, as the user guide says.
    over, back = documented("docs/user-guide.md", "Beside the distribution's ovsdb-server")
    for command in back:
        debian.run(command, seconds=60)
    wait_for(
        "Open vSwitch runs again",
        lambda: debian.switch()[0].startswith("/usr/lib/openvswitch-switch/"),
        30,
    )
    debian.run(
        "ovs-vsctl --timeout=20 add-br br8 -- set bridge br8 datapath_type=netdev && ovs-ofctl "
        "add-flow br8 cookie=0x88,priority=9,udp,actions=drop"
    )
    for command in over:
        debian.run(command, seconds=60)
    check(
        "cookie=0x88" in debian.says("ovs-ofctl dump-flows br8"),
        "the rules of ovs-vswitchd are gone",
    )
    debian.run("ovs-vsctl --timeout=20 del-br br8")
    equal(debian.switch()[0], DAEMON, "the switch after going back and over again")
    equal(
        debian.says(
            "systemctl is-active sluiced ovs-vswitchd openvswitch-switch ovsdb-server"
        ).split(),
        ["active"] * 4,
        "units",
    )
    equal(
        debian.says("ovs-appctl version").splitlines()[0],
        "ovs-vswitchd (Open vSwitch) 3.1.0",
        "who answers",
    )
    # Where the machine's own manager may say so, the kernel has it too.
    equal(debian.says("systemctl show -P OOMScoreAdjust sluiced"), "-900", "OOMScoreAdjust")
    # The hook of ifupdown, with openvswitch-switch.service running and not: it would start
    # ovs-vswitchd.
    interfaces(debian)
    debian.run("ifup br0")
    check("10.9.0.1/24" in debian.says("ip addr show br0"), "br0 has no address")
    # Two at once: systemd then stops the database after it was asked to start the switch, which
    # starts it again.
    debian.run(
        "ifdown br0 && systemctl disable --now openvswitch-switch && systemctl start sluiced",
        seconds=60,
    )
    for _ in range(5):
        debian.run("systemctl start openvswitch-switch", seconds=60)
        debian.run("systemctl stop openvswitch-switch && systemctl start sluiced", seconds=60)
    # Rules that were being saved meanwhile are lost with the database, and the journal says so.
    since = debian.says("sleep 1; date +%s")
    before = debian.switch()
    equal(
        (before[0], debian.run("systemctl is-active openvswitch-switch", ok=False).stdout.strip()),
        (DAEMON, "inactive"),
        "the switch alone",
    )
    debian.run("ifup br0")
    check("10.9.0.1/24" in debian.says("ip addr show br0"), "br0 has no address")
    equal(debian.switch(), before, "the switch after ifup")
    debian.run("systemctl enable openvswitch-switch")
    # Options, and logs.
    debian.run(
        "echo 'SLUICED_OPTIONS=\"--mlockall -vfile:dbg\"' >/etc/default/sluiced && systemctl "
        "restart sluiced",
        seconds=60,
    )
    line = debian.says(f"tr '\\0' ' ' </proc/{debian.switch()[1]}/cmdline")
    check(line.endswith("--mlockall -vfile:dbg"), "options of /etc/default/sluiced:", line)
    said = debian.run("logrotate -f /etc/logrotate.conf").stderr
    equal(said, "", "what logrotate says")
    log = "/var/log/openvswitch/ovs-vswitchd.log"
    debian.run(f"ls {log}.1*")
    check("opened log file" in debian.says(f"cat {log}"), "the log was not opened anew")
    # The log of what `sluice up` starts is rotated by the package's own file.
    debian.run("mkdir -p /run/sluice && sluice up >/dev/null 2>&1", seconds=60)
    debian.run(
        "logrotate -f /etc/logrotate.d/sluice && ls /run/sluice/ovs-vswitchd.log.1.gz && grep -q "
        "'opened log file' /run/sluice/ovs-vswitchd.log && sluice down",
        seconds=60,
    )
    # The manual and the completion, as users reach them.
    for page in ("8 sluiced", "1 sluice", "1 sluice-predict-queue"):
        shown = debian.run(f"MANROFFOPT= MANWIDTH=100 man --warnings -P cat {page}")
        check("NAME" in shown.stdout and "SYNOPSIS" in shown.stdout, f"man {page}:", shown.stdout)
        equal(
            [text for text in shown.stderr.splitlines() if "cannot adjust" not in text],
            [],
            f"what man says of {page}",
        )
    equal(
        debian.says(
            ". /usr/share/bash-completion/bash_completion; _completion_loader sluice; complete -p "
            "sluice"
        ),
        "complete -o default -F _sluice sluice",
        "completion",
    )
    # An upgrade keeps rules, and an administrator's file.
    debian.run("ovs-ofctl add-flow br0 cookie=0x77,priority=9,udp,actions=drop")
    before = debian.switch()
    debian.run("dpkg -i --force-confold /root/sluice_*.deb", seconds=120)
    check(
        debian.switch()[0] == DAEMON and debian.switch()[1] != before[1],
        "the new daemon does not run:",
        before,
        debian.switch(),
    )
    check(
        "cookie=0x77" in debian.says("ovs-ofctl dump-flows br0"),
        "the rules are gone after an upgrade",
    )
    # Symbols for debuggers.
    debian.run("dpkg -i /root/sluice-dbgsym_*.deb && dpkg -P sluice-dbgsym", seconds=60)
    ((install, *look),) = documented("docs/user-guide.md", "Upgrade and restart")
    debian.run("rm /root/sluice*.deb")
    _, version = newer(packages("sluice"), f"{debian.root}/root")
    before = debian.switch()
    debian.run(install, seconds=120)
    check(
        debian.switch()[0] == DAEMON and debian.switch()[1] != before[1],
        "the guide's upgrade does not restart the switch:",
        before,
        debian.switch(),
    )
    equal(
        debian.says("dpkg-query -W -f '${Version}' sluice"),
        version,
        "the version after the guide's upgrade",
    )
    check(
        "cookie=0x77" in debian.says("ovs-ofctl dump-flows br0"),
        "the rules are gone after the guide's upgrade",
    )
    # Open vSwitch's own package is installed anew beside it, which starts its units.
    debian.run("apt-get install -qy --reinstall openvswitch-switch", seconds=120)
    wait_for("Sluice is still the switch", lambda: debian.switch()[0] == DAEMON, 30)
    equal(
        debian.says(
            "systemctl is-active sluiced ovs-vswitchd openvswitch-switch ovsdb-server"
        ).split(),
        ["active"] * 4,
        "units after Open vSwitch's package was installed anew",
    )
    for command in look:
        check(
            "luice" in debian.says(command),
            f"{command} says nothing of the switch:",
            debian.says(command),
        )
    check(
        "mlockall" in debian.says("cat /etc/default/sluiced"),
        "an upgrade has written over /etc/default/sluiced",
    )
    errors = debian.says(f"journalctl -q --no-pager -u sluiced -p err --since=@{since}")
    equal(errors, "", "errors in the journal")
    # A second boot: interfaces are brought up by ifupdown when the switch is there.
    debian.halt()
    debian.boot()
    wait_for(
        "br0 is back", lambda: "10.9.0.1/24" in debian.run("ip addr show br0", ok=False).stdout
    )
    equal(debian.switch()[0], DAEMON, "the switch after a boot")
    times = {
        unit: int(debian.says(f"systemctl show -P {what} {unit}"))
        for unit, what in (
            ("sluiced", "ActiveEnterTimestampMonotonic"),
            ("networking", "InactiveExitTimestampMonotonic"),
        )
    }
    check(
        0 < times["sluiced"] <= times["networking"],
        "networking was not started after the switch:",
        times,
    )
    # And back.
    debian.run("apt-get remove -qy sluice", seconds=120)
    wait_for(
        "Open vSwitch is the switch again",
        lambda: debian.switch()[0].startswith("/usr/lib/openvswitch-switch/"),
        30,
    )
    equal(
        debian.run(
            "ls /etc/systemd/system/ovs-vswitchd.service /usr/sbin/sluiced 2>/dev/null", ok=False
        ).stdout,
        "",
        "what removing leaves",
    )
    debian.run("apt-get purge -qy sluice", seconds=60)
    left = debian.says(
        "find / /run -xdev -iname '*sluice*' -not -path '/run/systemd/*' -not -path '/root/*' "
        "-not -path '/proc/*' -not -path '/sys/*'"
    )
    equal(left, "", "what purging leaves")


def steps(path):
    """The instructions of a Containerfile."""
    text = re.sub(r"^#.*\n", "", text_of(path), flags=re.M).replace("\\\n", "")
    return [line.split(" ", 1) for line in text.splitlines() if line.strip()]


@test(timeout=400, on_request=True)
@in_debian("image")
def clean_debian_as_a_container(debian):
    """The steps of the Containerfile, carried out in a clean Debian 12; then its entry point:
    database and switch run, configuration outlives the container, it ends well when it is stopped,
    and badly when its database dies."""
    # As in the images that the first step names.
    with open(f"{debian.root}/usr/sbin/policy-rc.d", "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexit 101\n")
    os.chmod(f"{debian.root}/usr/sbin/policy-rc.d", 0o755)
    entry = health = volume = None
    debian.enter(["sleep", "1000"])
    for name, words in steps(f"{PACKAGING}/Containerfile"):
        if name == "FROM":
            equal(words, "debian:12-slim", "the image that is built upon")
        elif name == "COPY":
            pattern, target = words.split()
            for package in glob.glob(f"{PACKAGES}/{pattern}"):
                run(["cp", package, debian.root + target])
        elif name == "RUN":
            debian.run(["sh", "-c", words], seconds=240)
        elif name == "VOLUME":
            volume = words
        elif name == "HEALTHCHECK":
            health = words.removeprefix("CMD ")
        elif name == "ENTRYPOINT":
            entry = json.loads(words)
        else:
            raise Failure(f"the test does not know {name}")
    debian.halt()
    check(
        entry and health and volume == "/var/lib/openvswitch",
        "the image has no entry point, health check or volume",
    )

    def started():
        process = debian.enter([*entry, "-vfile:off"])
        wait_for(
            "the container is healthy", lambda: debian.run(health, ok=False).returncode == 0, 40
        )
        return process

    def ended(process):
        """The code with which the container has ended: that of its first process."""
        return process.wait(30 * PATIENCE)

    process = started()
    debian.run("ovs-vsctl --timeout=20 add-br br0 -- set Bridge br0 datapath_type=netdev")
    debian.run("ovs-ofctl show br0")
    identity = debian.says("ovs-vsctl get Open_vSwitch . external_ids:system-id")
    check(len(identity) > 30, "system-id:", identity)
    second = debian.run(entry, ok=False)
    check(
        second.returncode == 1 and "another database is served" in second.stderr,
        "a second container beside it:",
        second.returncode,
        second.stderr,
    )
    debian.run(health)
    os.kill(debian.first(), signal.SIGTERM)
    equal(ended(process), 0, "how the container ends when it is stopped")
    process = started()
    equal(debian.says("ovs-vsctl list-br"), "br0", "bridges of the second container")
    equal(
        debian.says("ovs-vsctl get Open_vSwitch . external_ids:system-id"),
        identity,
        "system-id of the second container",
    )
    debian.run("kill -9 $(cat /run/openvswitch/ovsdb-server.pid)")
    check(ended(process) not in (0, None), "the container ends well although its database died")
