"""OVN itself (ovn-northd, ovn-controller) on top of the switch."""

import os

from harness import Skip, becomes, check, equal, run, test, wait_for
from test_conntrack import Echo, ask

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
            wait_for(f"{name}'s database listens", lambda path=socket: os.path.exists(path))
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

    def nbctl(self, *words, seconds=30):
        """ovn-nbctl; waits until every host has done what it says."""
        command = ["ovn-nbctl", f"--db={self.nb}", "--wait=hv", f"--timeout={seconds}", *words]
        return run(command, env=self.env, seconds=seconds + 5).stdout

    def join(self, switch, address):
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
        )
        switch.namespace.start(
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


def attach(switch, host, number, ip):
    """A host behind the logical port `lpN`."""
    switch.pair(host, f"v{number}", ip=f"{ip}/24")
    host.run(["ip", "link", "set", "eth0", "address", f"02:00:00:00:00:0{number}"])
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


@test(timeout=180)
def ovn_switches_routes_and_filters(lab):
    """A logical switch with stateful access lists, a router to a second one, source NAT and a load
    balancer, on one host."""
    central = Central(lab)
    switch = lab.switch()
    central.join(switch, "127.0.0.1")
    hosts = [lab.namespace(f"h{number}").quiet() for number in (1, 2, 3)]
    for number, (host, ip) in enumerate(zip(hosts, ("10.0.0.1", "10.0.0.2", "10.0.1.3")), 1):
        attach(switch, host, number, ip)
        gateway = ip.rsplit(".", 1)[0] + ".254"
        host.run(["ip", "route", "add", "default", "via", gateway])
    nb = central.nbctl
    nb("ls-add", "ls0", "--", "ls-add", "ls1", "--", "lr-add", "lr0")
    for number, (ls, ip) in enumerate(
        (("ls0", "10.0.0.1"), ("ls0", "10.0.0.2"), ("ls1", "10.0.1.3")), 1
    ):
        port, address = f"lp{number}", f"02:00:00:00:00:0{number} {ip}"
        nb("lsp-add", ls, port, "--", "lsp-set-addresses", port, address)
    for index in (0, 1):
        nb(
            *("lrp-add", "lr0", f"r{index}", f"02:00:00:00:01:0{index}", f"10.0.{index}.254/24"),
            *("--", "lsp-add", f"ls{index}", f"ls{index}-r"),
            *("--", "lsp-set-type", f"ls{index}-r", "router"),
            *("--", "lsp-set-addresses", f"ls{index}-r", "router"),
            *("--", "lsp-set-options", f"ls{index}-r", f"router-port=r{index}"),
        )
    one, two, three = hosts
    one.reaches("10.0.0.2", 20)
    one.reaches("10.0.1.3", 20)
    servers = [Echo(host, 80) for host in hosts]
    equal(ask(one, "10.0.0.2", 80, source=4000), "10.0.0.1 4000", "switched")
    equal(ask(one, "10.0.1.3", 80, source=4001), "10.0.0.1 4001", "routed")
    # Only host 1 may begin connections with host 2.
    nb(
        *(
            "acl-add",
            "ls0",
            "to-lport",
            "1000",
            'outport == "lp2" && ip4.src == 10.0.0.1',
            "allow-related",
        ),
        *("--", "acl-add", "ls0", "to-lport", "900", 'outport == "lp2" && ip', "drop"),
        *("--", "acl-add", "ls0", "to-lport", "900", 'outport == "lp1" && ip', "drop"),
        *("--", "acl-add", "ls0", "from-lport", "1000", 'inport == "lp1" && ip', "allow-related"),
    )
    becomes(
        lambda: ask(one, "10.0.0.2", 80, source=4002, seconds=2), "10.0.0.1 4002", "allowed", 20
    )
    equal(ask(two, "10.0.0.1", 80, seconds=1), None, "the other way")
    equal(ask(three, "10.0.0.2", 80, seconds=1), None, "from elsewhere")
    # A load balancer in front of host 3.
    nb(
        *("lb-add", "lb0", "172.16.0.1:8080", "10.0.1.3:80", "tcp"),
        *("--", "ls-lb-add", "ls0", "lb0"),
    )
    becomes(
        lambda: ask(one, "172.16.0.1", 8080, source=4003, seconds=2),
        "10.0.0.1 4003",
        "balanced",
        20,
    )
    lines = switch.appctl("dpctl/dump-conntrack").splitlines()
    check(any("dst=172.16.0.1" in line and "src=10.0.1.3" in line for line in lines), lines)
    for server in servers:
        server.close()
