"""Mininet, by its Python API, with the daemon under test as its switch."""

import os

from harness import equal, run, test


@test(timeout=180)
def tree_of_depth_two(lab):
    """pingAll on a tree of depth 2 and fan-out 3 has no loss, also after a link went down and came
    back; iperf3 runs across it."""
    # Mininet keeps its switches' ports in the namespace it runs in, which is the test's own; so
    # does the daemon.
    import sys

    sys.path.insert(0, "/usr/lib/python3/dist-packages")
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.node import OVSSwitch
    from mininet.topolib import TreeTopo

    class Here:
        """The namespace of the test itself."""

        name, path = "test", "/proc/self/ns/net"

        @staticmethod
        def start(command, log, **options):
            return lab.start(command, log, **options)

        @staticmethod
        def run(command, **options):
            return run(command, **options)

    switch = lab.switch(namespace=Here)
    os.environ.update(
        {
            name: switch.env[name]
            for name in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")
        }
    )
    setLogLevel("warning")

    class Switch(OVSSwitch):
        """A userspace bridge that learns by itself."""

        def __init__(self, name, **options):
            OVSSwitch.__init__(self, name, datapath="user", failMode="standalone", **options)

    net = Mininet(
        topo=TreeTopo(depth=2, fanout=3), switch=Switch, controller=None, waitConnected=False
    )
    net.start()
    try:
        for one in net.switches:
            equal(one.connected(), True, f"{one.name} is connected")
        equal(net.pingAll(timeout="3"), 0, "percent of pings lost")
        net.configLinkStatus("s1", "s2", "down")
        equal(
            net.ping([net.get("h1"), net.get("h4")], timeout="1"),
            100,
            "percent of pings lost while a link on their way is down",
        )
        net.configLinkStatus("s1", "s2", "up")
        equal(net.pingAll(timeout="3"), 0, "percent of pings lost after the link came back")
        # Mininet's own iperf() calls the older iperf, which is not installed.
        server, client = net.get("h9"), net.get("h1")
        server.cmd("iperf3 -s -D -1")
        report = client.cmd(
            "for i in 1 2 3 4 5; do iperf3 -c "
            + server.IP()
            + " -t 1 -f m && break; sleep 0.2; done"
        )
        equal("receiver" in report, True, "iperf3 across the tree: " + report)
    finally:
        net.stop()
