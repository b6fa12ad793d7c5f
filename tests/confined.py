#!/usr/bin/python3
"""Runs a command as the unit packaging/sluiced.service confines it, where there is no systemd to do
so.

    confined.py [--write PATH]... [--user USER] -- COMMAND...

Capabilities, NoNewPrivileges, ProtectSystem, ProtectHome, ReadWritePaths, SystemCallFilter,
RestrictAddressFamilies, RestrictNamespaces, LockPersonality, RestrictRealtime and limits are read
from the unit itself. A setting that this does not know ends it with an error, so that what is
tested and what is installed stay the same. PATHs may be written to besides: they stand for the
directories of the unit.
"""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys

UNIT = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "packaging", "sluiced.service"
)
EPERM, ENOSYS = 1, 38
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NOT_EQUAL, EQUAL, MASKED = 1, 4, 7  # SCMP_CMP_NE, SCMP_CMP_EQ, SCMP_CMP_MASKED_EQ
CLONE_NEW = {
    "cgroup": 0x02000000,
    "ipc": 0x08000000,
    "net": 0x40000000,
    "mnt": 0x00020000,
    "pid": 0x20000000,
    "user": 0x10000000,
    "uts": 0x04000000,
}
FAMILIES = {
    "AF_UNIX": 1,
    "AF_INET": 2,
    "AF_INET6": 10,
    "AF_NETLINK": 16,
    "AF_PACKET": 17,
    "AF_XDP": 44,
    "AF_VSOCK": 40,
    "AF_ALG": 38,
}
# What is not about confinement, and what the capabilities and namespaces above leave nothing to do
# for.
ELSEWHERE = {
    "Type",
    "NotifyAccess",
    "WatchdogSec",
    "Restart",
    "RestartSec",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "RuntimeDirectory",
    "RuntimeDirectoryPreserve",
    "LogsDirectory",
    "Environment",
    "EnvironmentFile",
    "UnsetEnvironment",
    "ExecStartPre",
    "ExecStart",
    "ExecStartPost",
    "ExecStop",
    "ExecStopPost",
    "ExecReload",
    "OOMScoreAdjust",
    "PrivateTmp",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectControlGroups",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
}
libc = ctypes.CDLL(None, use_errno=True)


def settings():
    """The [Service] section: values in order, by name."""
    found, section = {}, ""
    with open(UNIT, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if line.startswith("["):
                section = line
            elif section == "[Service]" and line and not line.startswith("#"):
                name, value = line.split("=", 1)
                found.setdefault(name, []).append(value)
    return found


def checked(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), what)


def mount(source, target, kind, flags, data=None):
    def encode(text):
        return text.encode() if text is not None else None

    checked(
        libc.mount(encode(source), encode(target), encode(kind), flags, encode(data)),
        f"mount {target}",
    )


def protect(writable):
    """Makes all file systems read-only but those below /dev, /proc, /sys and what is writable."""
    rdonly, bind, remount, rec, private = 1, 4096, 32, 16384, 1 << 18
    checked(libc.unshare(CLONE_NEW["mnt"]), "unshare")
    mount(None, "/", None, rec | private)
    for path in writable:
        mount(path, path, None, bind | rec)
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split() for line in file]
    known = {
        "nosuid": 2,
        "nodev": 4,
        "noexec": 8,
        "noatime": 1024,
        "nodiratime": 2048,
        "relatime": 1 << 21,
    }
    for fields in mounts:
        target = fields[4].encode().decode("unicode_escape")
        below = any(
            (target + "/").startswith(path.rstrip("/") + "/")
            for path in ["/dev", "/proc", "/sys", *writable]
        )
        if not below:
            flags = sum(known.get(option, 0) for option in fields[5].split(","))
            mount(None, target, None, rdonly | bind | remount | flags)
    for path in ("/home", "/root", "/run/user"):
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", rdonly, "mode=000")


class Filter:
    """A filter of system calls, by libseccomp."""

    def __init__(self, default):
        self.library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(ctypes.c_uint32(default)))

    def rule(self, action, name, *comparison):
        """A call of that name; with (argument, operator, a, b) only where it is so.

        Names that the library does not know are passed over, as systemd does."""
        number = self.library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            return

        class Argument(ctypes.Structure):
            _fields_ = [
                ("arg", ctypes.c_uint),
                ("op", ctypes.c_int),
                ("a", ctypes.c_uint64),
                ("b", ctypes.c_uint64),
            ]

        arguments = (Argument * 1)(Argument(*comparison)) if comparison else None
        result = self.library.seccomp_rule_add_array(
            self.context, ctypes.c_uint32(action), number, len(comparison) // 4, arguments
        )
        if result not in (0, -EPERM):  # -EPERM: it is the default action
            raise OSError(-result, f"seccomp rule for {name}")

    def load(self):
        self.library.seccomp_attr_set(self.context, 4, 0)  # SCMP_FLTATR_CTL_NNP: as the unit says
        result = self.library.seccomp_load(self.context)
        if result:
            raise OSError(-result, "seccomp_load")


def calls(name):
    """The system calls of a group, or the one of that name."""
    if not name.startswith("@"):
        return {name}
    text = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", name],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = [line.strip() for line in text.splitlines()[1:]]
    return set().union(*(calls(line) for line in lines if line and not line.startswith("#")))


def filters(unit):
    """The filters, the one that forbids most last."""
    deny = Filter(ALLOW)
    families = unit["RestrictAddressFamilies"][0].split()
    # A comparison for each family that is not there: few enough, and a filter of negations would
    # need all at once.
    allowed = {FAMILIES[name] for name in families}
    for family in range(64):
        if family not in allowed:
            deny.rule(ERRNO | 97, "socket", 0, EQUAL, family, 0)
    kept = set(unit["RestrictNamespaces"][0].split())
    for name, flag in CLONE_NEW.items():
        if name not in kept:
            for call, argument in (("unshare", 0), ("clone", 0), ("setns", 1)):
                deny.rule(ERRNO | EPERM, call, argument, MASKED, flag, flag)
    deny.rule(ERRNO | EPERM, "setns", 1, EQUAL, 0, 0)
    deny.rule(ERRNO | ENOSYS, "clone3")
    if unit["LockPersonality"] == ["yes"]:
        deny.rule(ERRNO | EPERM, "personality", 0, NOT_EQUAL, 0, 0)
    if unit["RestrictRealtime"] == ["yes"]:
        for policy in (1, 2, 6):
            deny.rule(ERRNO | EPERM, "sched_setscheduler", 1, EQUAL, policy, 0)
    allow = Filter(ERRNO | EPERM)
    wanted = set()
    for line in unit["SystemCallFilter"]:
        for name in line.lstrip("~").split():
            wanted = wanted - calls(name) if line.startswith("~") else wanted | calls(name)
    # To start the command at all; systemd allows them always.
    for name in (
        wanted
        | calls("@default")
        | {"execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn"}
    ):
        allow.rule(ALLOW, name)
    return deny, allow


def main():
    arguments = sys.argv[1:]
    at = arguments.index("--")
    options, command = arguments[:at], arguments[at + 1 :]
    unit = settings()
    known = {
        "CapabilityBoundingSet",
        "NoNewPrivileges",
        "ProtectSystem",
        "ProtectHome",
        "ReadWritePaths",
        "SystemCallFilter",
        "SystemCallErrorNumber",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "LockPersonality",
        "RestrictRealtime",
        "LimitNOFILE",
        "LimitMEMLOCK",
    }
    unknown = set(unit) - known - ELSEWHERE
    if unknown:
        sys.exit(
            f"confined: the unit has settings that are not tested: {', '.join(sorted(unknown))}"
        )
    if (
        unit["ProtectSystem"] != ["strict"]
        or unit["ProtectHome"] != ["yes"]
        or unit["NoNewPrivileges"] != ["yes"]
        or unit["SystemCallErrorNumber"] != ["EPERM"]
    ):
        sys.exit("confined: the unit says otherwise")
    forbidding = filters(unit)  # asks systemd-analyze, while that may run
    writable = [path.lstrip("-") for line in unit["ReadWritePaths"] for path in line.split()]
    writable += [options[index + 1] for index, option in enumerate(options) if option == "--write"]
    protect([path for path in writable if os.path.exists(path)])
    if unit["LimitMEMLOCK"] != ["infinity"]:
        sys.exit("confined: the unit says otherwise")
    files = int(unit["LimitNOFILE"][0])
    for limit, value in (
        (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY),
        (resource.RLIMIT_NOFILE, files),
    ):
        with contextlib.suppress(ValueError):  # the root of a container may not raise limits
            resource.setrlimit(limit, (value, value))
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    names = {name: number for number, name in enumerate(CAPABILITIES)}
    kept = {names[name] for name in unit["CapabilityBoundingSet"][0].split()}
    for number in range(last + 1):
        if number not in kept:
            checked(libc.prctl(24, number, 0, 0, 0), "PR_CAPBSET_DROP")
    checked(libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    for one in forbidding:
        one.load()
    os.execvp(command[0], command)


CAPABILITIES = [
    f"CAP_{name}"
    for name in """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
    LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER
    SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE
    SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
    MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF
    CHECKPOINT_RESTORE""".split()
]

if __name__ == "__main__":
    main()
