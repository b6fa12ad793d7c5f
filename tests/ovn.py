"""OVN for tests: its databases and ovn-northd (`Central`), and hosts (`Cloud`): each a network
namespace with a database, a daemon and an ovn-controller of its own, joined by a network over which
their tunnels run."""

import os
import subprocess

from harness import Skip, run, switchd_command, takes_connections, wait_for
from tunnels import MTU, no_offloads

SCHEMAS = "/usr/share/ovn"


class Central:
    """OVN's databases and ovn-northd, in the test's directory."""

    def __init__(self, lab):
        if not os.path.exists(f"{SCHEMAS}/ovn-nb.ovsschema"):
            raise Skip("OVN is not installed")
        self.lab, self.directory = lab, os.path.join(lab.directory, "ovn")
        os.makedirs(self.directory)
        self.env = dict(
            os.environ,
            OVN_RUNDIR=self.directory,
            OVN_LOGDIR=self.directory,
            OVN_DBDIR=self.directory,
            OVS_RUNDIR=self.directory,
            OVS_LOGDIR=self.directory,
        )
        for name in ("nb", "sb"):
            file, socket = f"{self.directory}/{name}.db", f"{self.directory}/{name}.sock"
            run(["ovsdb-tool", "create", file, f"{SCHEMAS}/ovn-{name}.ovsschema"])
            lab.start(
                [
                    "ovsdb-server",
                    file,
                    f"--remote=punix:{socket}",
                    f"--unixctl={self.directory}/{name}.ctl",
                    "-vconsole:off",
                ],
                f"ovn-{name}.out",
                env=self.env,
            )
            wait_for(f"{name}'s database listens", lambda path=socket: takes_connections(path))
        self.nb, self.sb = (f"unix:{self.directory}/{name}.sock" for name in ("nb", "sb"))
        lab.start(
            [
                "ovn-northd",
                f"--ovnnb-db={self.nb}",
                f"--ovnsb-db={self.sb}",
                f"--unixctl={self.directory}/northd.ctl",
                f"--log-file={self.directory}/northd.log",
                "-vconsole:off",
            ],
            "ovn-northd.out",
            env=self.env,
        )

    def nbctl(self, *words, seconds=30, wait="hv"):
        """ovn-nbctl; waits until every host has done what it says (`wait="sb"`: until northd
        has)."""
        command = ["ovn-nbctl", f"--db={self.nb}", f"--wait={wait}", f"--timeout={seconds}", *words]
        return run(command, env=self.env, seconds=seconds + 5).stdout

    def sbctl(self, *words):
        """ovn-sbctl; returns what it printed."""
        return run(["ovn-sbctl", f"--db={self.sb}", *words], env=self.env).stdout

    def join(self, switch, address, *settings):
        """Starts ovn-controller for a switch, and makes it a chassis."""
        switch.vsctl(
            "set",
            "Open_vSwitch",
            ".",
            f"external_ids:system-id={switch.name}",
            f"external_ids:ovn-remote={self.sb}",
            "external_ids:ovn-encap-type=geneve",
            f"external_ids:ovn-encap-ip={address}",
            "external_ids:ovn-bridge-datapath-type=netdev",
            *settings,
        )
        switch.controller = switch.namespace.start(
            [
                "ovn-controller",
                switch.db,
                f"--log-file={switch.directory}/ovn-controller.log",
                "-vconsole:off",
            ],
            f"{switch.name}.ovn-controller",
            env=dict(self.env, OVS_RUNDIR=switch.directory, OVN_RUNDIR=switch.directory),
        )
        wait_for(
            "the integration bridge is there",
            lambda: "br-int" in switch.vsctl("list-br"),
            30,
        )


class Cloud:
    """Hosts c1, c2 and so on, and OVN over them. Their addresses 10.9.0.1 and up are at the local
    port of `br-phy`, where tunnels of Open vSwitch's userspace datapath leave. The namespace `lan`
    has a bridge `lan` of the kernel's that joins them. Hosts whose numbers are in `reference` run
    Open vSwitch, whatever is under test."""

    def __init__(self, lab, count=2, settings=(), mappings=False, reference=()):
        self.lab = lab
        self.central = Central(lab)
        self.nb = self.central.nbctl
        self.lan = lab.namespace("lan").quiet()
        self.lan.run("ip link add name lan type bridge mcast_snooping 0")
        self.lan.run("ip link set lan up")
        self.chassis, self.addresses = [], {}
        for number in range(1, count + 1):
            command = switchd_command("ovs") if number in reference else None
            self.chassis.append(self.add(number, settings, mappings, command))

    def add(self, number, settings, mappings, command):
        """One more host."""
        switch = self.lab.switch(f"c{number}", command=command)
        # Else the kernel answers for the address of br-phy at the wire as well.
        switch.namespace.run("sysctl -qw net.ipv4.conf.all.arp_ignore=1")
        switch.bridge("br-phy")
        self.wire(switch, f"c{number}")
        switch.port("wire", bridge="br-phy")
        switch.namespace.run(["ip", "address", "add", f"10.9.0.{number}/24", "dev", "br-phy"])
        switch.namespace.run("ip link set br-phy up")
        settings = list(settings)
        if mappings:
            switch.bridge("br-ex")
            self.wire(switch, f"x{number}", "outer", bridge="ext")
            switch.port("outer", bridge="br-ex")
            settings.append("external_ids:ovn-bridge-mappings=outside:br-ex")
        self.central.join(switch, f"10.9.0.{number}", *settings)
        return switch

    def wire(self, switch, name, device="wire", bridge="lan"):
        """A veth pair between a device of the switch's and a bridge in the namespace `lan`."""
        if bridge != "lan" and not self.addresses.get(bridge):
            self.lan.run(f"ip link add name {bridge} type bridge mcast_snooping 0")
            self.lan.run(f"ip link set {bridge} up")
            self.addresses[bridge] = True
        self.lan.run(
            f"ip link add {name} type veth peer name {device} netns {switch.namespace.name}"
        )
        self.lan.run(f"ip link set {name} master {bridge} up")
        switch.namespace.run(f"ip link set {device} up")
        if switch.is_ovs:
            no_offloads(self.lan, name)

    def host(self, chassis, number, ip=None, gateway=None, ip6=None):
        """A host behind the logical port `lpN` at the chassis of this index (from 0), with the MAC
        address 02:00:00:00:00:NN."""
        switch = self.chassis[chassis]
        host = self.lab.namespace(f"h{number}")
        if not ip6:
            host.quiet()
        attach(switch, host, number, ip, ip6)
        if gateway:
            host.run(["ip", "route", "add", "default", "via", gateway])
        return host


def mac_of(number):
    """The MAC address of the host of this number."""
    return f"02:00:{number >> 8:02x}:00:00:{number & 255:02x}"


def attach(switch, host, number, ip=None, ip6=None):
    """A host behind the logical port `lpN`."""
    switch.pair(host, f"v{number}", mtu=MTU)
    # Open vSwitch 3.1 drops frames that leave something to a device before tunnels.
    if switch.is_ovs:
        no_offloads(host)
    host.run(["ip", "link", "set", "eth0", "address", mac_of(number)])
    if ip:
        host.run(["ip", "address", "add", f"{ip}/24", "dev", "eth0"])
    if ip6:
        host.run(["ip", "address", "add", f"{ip6}/64", "dev", "eth0", "nodad"])
    switch.vsctl(
        "--",
        "add-port",
        "br-int",
        f"v{number}",
        "--",
        "set",
        "Interface",
        f"v{number}",
        f"external_ids:iface-id=lp{number}",
    )


def port(switch, number, *ips):
    """Words for ovn-nbctl that add the logical port `lpN` to a logical switch."""
    name = f"lp{number}"
    addresses = " ".join((mac_of(number), *ips))
    return ("--", "lsp-add", switch, name, "--", "lsp-set-addresses", name, addresses)


def router_port(router, switch, number, *networks):
    """Words for ovn-nbctl that join a logical switch to a logical router, by its port `rSWITCH`
    with the MAC address 02:00:00:00:01:NN and networks such as 10.0.0.254/24."""
    inner, outer = f"{switch}-r", f"r{switch}"
    return (
        *("--", "lrp-add", router, outer, f"02:00:00:00:01:{number:02x}", *networks),
        *("--", "lsp-add", switch, inner, "--", "lsp-set-type", inner, "router"),
        *("--", "lsp-set-addresses", inner, "router"),
        *("--", "lsp-set-options", inner, f"router-port={outer}"),
    )


def kill(process):
    """Ends a program at once and waits for its end."""
    process.kill()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        raise AssertionError("a killed program does not end") from None
