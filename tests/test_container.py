"""The container image by a real engine, on request (`make container-check`): podman builds it from
the Containerfile, and the guide's blocks start and upgrade it.

It runs in the test's own network, which is the host's to podman, with a base image made from
Debian's packages, so it needs no registry and no network."""

import json
import os
import resource
import shutil

from documents import blocks, commands
from harness import ROOT, becomes, check, equal, run, test, wait_for
from test_packaging import binaries_of, newer, packages

BASE = "docker.io/library/debian:12-slim"


class Podman:
    """podman with images, volumes and settings of its own, which go with the test."""

    def __init__(self, lab):
        check(shutil.which("podman"), "there is no podman: `make container-check` installs it")
        self.directory = f"{lab.directory}/podman"
        os.mkdir(self.directory)
        run(["mount", "-t", "tmpfs", "-o", "size=6G,mode=755", "tmpfs", self.directory])
        self.cgroups()
        run("mkdir -p /run/openvswitch")
        run("mount -t tmpfs tmpfs /run/openvswitch")

        def limit(name, which):
            soft, hard = resource.getrlimit(which)
            return f'"{name}={soft}:{hard}"'

        limits = ", ".join(
            [limit("nofile", resource.RLIMIT_NOFILE), limit("nproc", resource.RLIMIT_NPROC)]
        )
        # Control groups are left alone, limits are those that there are: neither needs more than
        # this process may.
        self.write(
            "containers.conf",
            f"""[containers]
            cgroups = "disabled"
            netns = "host"
            default_ulimits = [{limits}]
            log_driver = "k8s-file"
            [engine]
            cgroup_manager = "cgroupfs"
            events_logger = "file"
            lock_type = "file"
            tmp_dir = "{self.directory}/tmp"
            """,
        )
        self.driver = self.find_driver()
        self.write(
            "storage.conf",
            f"""[storage]
            driver = "{self.driver}"
            graphroot = "{self.directory}/root"
            runroot = "{self.directory}/run"
            """,
        )
        # Steps of a build run without a runtime, which would want more than this process may.
        self.env = dict(
            os.environ,
            BUILDAH_ISOLATION="chroot",
            CONTAINERS_CONF=f"{self.directory}/containers.conf",
            CONTAINERS_STORAGE_CONF=f"{self.directory}/storage.conf",
            TMPDIR=self.directory,
        )

    def write(self, name, text):
        with open(f"{self.directory}/{name}", "w", encoding="ascii") as file:
            file.write("".join(line.strip() + "\n" for line in text.splitlines()))

    @staticmethod
    def cgroups():
        """One hierarchy of control groups: podman refuses where old and new ones lie side by
        side."""
        if not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            run("umount -R /sys/fs/cgroup", ok=False)
            run("mount -t cgroup2 cgroup2 /sys/fs/cgroup")

    def find_driver(self):
        """How layers are kept: one upon the other where the kernel can, else each as a whole
        copy."""
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{self.directory}/{name}")
        options = ",".join(
            f"{name}dir={self.directory}/{name}" for name in ("lower", "upper", "work")
        )
        mounted = (
            run(
                ["mount", "-t", "overlay", "overlay", "-o", options, f"{self.directory}/merged"],
                ok=False,
            ).returncode
            == 0
        )
        if mounted:
            run(["umount", f"{self.directory}/merged"])
        return "overlay" if mounted else "vfs"

    def run(self, *words, **options):
        return run(["podman", *words], env=self.env, **{"seconds": 60, **options})

    def says(self, *words):
        return self.run(*words).stdout.strip()

    def shell(self, command, seconds, ok=True):
        """A command of the guide, in a directory in which it finds its files."""
        return run(
            ["bash", "-c", command],
            env=self.env,
            cwd=f"{self.directory}/checkout",
            seconds=seconds,
            ok=ok,
        )

    def state(self, name):
        """Whether a container runs, and the code with which it has ended."""
        found = json.loads(self.says("inspect", name))[0]["State"]
        return found["Running"], found["ExitCode"]

    def base(self):
        """The image that the Containerfile names, as registries have it: a Debian whose packages
        start nothing when they are installed."""
        tar = run(
            [os.path.join(ROOT, "scripts", "debian-root"), packages("sluice")], seconds=500
        ).stdout.strip()
        self.run("import", tar, "localhost/root", seconds=300)
        os.mkdir(f"{self.directory}/base")
        self.write(
            "base/Containerfile",
            "FROM localhost/root\nRUN echo exit 101 >/usr/sbin/policy-rc.d && chmod 755 "
            "/usr/sbin/policy-rc.d\n",
        )
        self.run("build", "-t", BASE, f"{self.directory}/base", seconds=300)

    def checkout(self, package):
        """What the guide's commands find in the checkout, with this package."""
        shutil.rmtree(f"{self.directory}/checkout", ignore_errors=True)
        os.makedirs(f"{self.directory}/checkout/.build/deb")
        shutil.copy(package, f"{self.directory}/checkout/.build/deb")
        os.symlink(os.path.join(ROOT, "packaging"), f"{self.directory}/checkout/packaging")


@test(timeout=1200, on_request=True)
def podman_builds_runs_and_upgrades_the_image(lab):
    """The guide's blocks: the image is built and started, carries packets between two namespaces by
    the host's tools, is stopped and upgraded with its configuration and its rules; a second
    container beside it and one with a network of its own."""
    binaries_of(lab)
    podman = Podman(lab)
    lab.note(f"{podman.says('--version')}, storage driver {podman.driver}")
    podman.base()
    first, upgrade = (
        [command for command in commands(block) if command != "make deb"]
        for block in blocks("docs/user-guide.md")
        if block.needs == "podman"
    )
    podman.checkout(packages("sluice"))
    for command in first:
        podman.shell(command, 400)

    def healthy(name="sluice"):
        return podman.run("healthcheck", "run", name, ok=False).returncode == 0

    def up():
        wait_for("the container is healthy", healthy, 60)

    # Two namespaces, each by a veth pair whose other end is the host's: the host's tools make it a
    # port.
    up()
    hosts = []
    for number in (1, 2):
        host = lab.namespace(f"h{number}")
        run(
            [
                "ip",
                "link",
                "add",
                f"p{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                host.name,
            ]
        )
        run(["ip", "link", "set", f"p{number}", "up"])
        host.run("ip link set eth0 up")
        host.run(f"ip addr add 10.0.0.{number}/24 dev eth0")
        hosts.append(host)
    run(
        "ovs-vsctl --timeout=20 add-br br0 -- set Bridge br0 datapath_type=netdev -- add-port br0 "
        "p1 -- add-port br0 p2"
    )
    equal(
        podman.says("exec", "sluice", "ovs-appctl", "version").splitlines()[0],
        "ovs-vswitchd (Open vSwitch) 3.1.0",
        "who answers",
    )
    hosts[0].ping("10.0.0.2")
    run("ovs-ofctl add-flow br0 cookie=0x77,priority=9,udp,actions=drop")
    run("ovs-ofctl -O OpenFlow13 add-meter br0 meter=3,kbps,bands=type=drop,rate=1000")

    # A second one would take the first one's sockets away.
    second = podman.run(
        "run", "--rm", "-v", "/run/openvswitch:/run/openvswitch", "sluice", ok=False
    )
    check(
        second.returncode == 1 and "another database is served" in second.stderr,
        "a second container beside it:",
        second.returncode,
        second.stderr,
    )
    # One of its own disturbs nobody; options behind the image's name are the switch's.
    podman.run(
        "run",
        "-d",
        "--name",
        "other",
        "--network=none",
        "--device=/dev/net/tun",
        "--cap-add=NET_ADMIN,NET_RAW,IPC_LOCK",
        "sluice",
        "-vconsole:dbg",
    )
    wait_for("the other container is healthy", lambda: healthy("other"), 60)
    podman.run(
        "exec",
        "other",
        "ovs-vsctl",
        "--timeout=20",
        "add-br",
        "br9",
        "--",
        "set",
        "Bridge",
        "br9",
        "datapath_type=netdev",
    )
    equal(
        (
            podman.says("exec", "other", "ovs-vsctl", "list-br"),
            run("ovs-vsctl list-br").stdout.strip(),
        ),
        ("br9", "br0"),
        "bridges of both",
    )
    podman.run("stop", "--time=60", "other")
    equal(podman.state("other"), (False, 0), "how a container ends that is stopped")

    # Whoever dies is not left half alive.
    pid = podman.says("exec", "sluice", "cat", "/run/openvswitch/ovs-vswitchd.pid")
    podman.run("exec", "sluice", "kill", "-9", pid)
    wait_for("the container has ended with its switch", lambda: not podman.state("sluice")[0], 30)
    check(podman.state("sluice")[1] != 0, "it ends well although its switch died")
    podman.run("start", "sluice")
    up()
    hosts[0].reaches("10.0.0.2")
    check(
        "cookie=0x77" not in run("ovs-ofctl dump-flows br0").stdout,
        "rules of a switch that was killed",
    )

    # Stopped and upgraded, by the guide's second block.
    run("ovs-ofctl add-flow br0 cookie=0x78,priority=9,udp,actions=drop")
    run("ovs-ofctl -O OpenFlow13 add-meter br0 meter=3,kbps,bands=type=drop,rate=1000")
    identity = run("ovs-vsctl get Open_vSwitch . external_ids:system-id").stdout
    package, version = newer(packages("sluice"), podman.directory)
    podman.checkout(package)
    for command in upgrade:
        podman.shell(command, 400)
        if command.startswith("podman stop"):
            equal(podman.state("sluice"), (False, 0), "how the container ends when it is stopped")
            equal(hosts[0].ping("10.0.0.2", 1, ok=False), 0, "answers while there is no switch")
    up()
    equal(
        podman.says("exec", "sluice", "dpkg-query", "-W", "-f", "${Version}", "sluice"),
        version,
        "the version after the upgrade",
    )
    equal(run("ovs-vsctl get Open_vSwitch . external_ids:system-id").stdout, identity, "system-id")
    becomes(
        lambda: run("ovs-vsctl get Open_vSwitch . other_config").stdout.strip(),
        "{}",
        "what is left of the restoring",
        30,
    )
    hosts[0].reaches("10.0.0.2")
    wait_for(
        "the rules are back", lambda: "cookie=0x78" in run("ovs-ofctl dump-flows br0").stdout, 20
    )
    check(
        "meter=3" in run("ovs-ofctl -O OpenFlow13 dump-meters br0").stdout,
        "the meter is gone after the upgrade",
    )
    podman.run("stop", "sluice", seconds=70)
    equal(podman.state("sluice"), (False, 0), "how the upgraded container ends")

    # With the host's process ids the host's ovs-appctl finds it, too.
    podman.run("rm", "sluice")
    with_host_ids = upgrade[-1].replace("podman run", "podman run --pid=host")
    begun = podman.shell(with_host_ids, 60, ok=False)
    if "must create a private PID namespace" in begun.stderr:
        lab.note("this podman starts no container with the host's process ids without cgroups")
        return
    equal(begun.returncode, 0, f"how a container with the host's process ids begins: {begun}")
    up()
    equal(
        run("ovs-appctl version").stdout.splitlines()[0],
        "ovs-vswitchd (Open vSwitch) 3.1.0",
        "who answers the host's ovs-appctl",
    )
    podman.run("stop", "sluice", seconds=70)
    equal(podman.state("sluice"), (False, 0), "how a container with the host's process ids ends")
