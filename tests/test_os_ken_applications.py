"""Programs that were written for Open vSwitch do their work, unmodified: os-ken's REST router, REST
firewall and REST QoS."""

import http.client
import json
import os

from harness import ROOT, Skip, check, equal, inside, test, wait_for

VENV = os.path.join(ROOT, ".build/venv-applications")
# What os-ken 1.4 imports from eventlet is gone from newer releases: a mark that its web server only
# hands back.
LAUNCH = """import sys, eventlet.wsgi
eventlet.wsgi.ALREADY_HANDLED = object()
from os_ken.cmd.manager import main
sys.exit(main())"""
REST = ("127.0.0.1", 8080)


class Program:
    """An os-ken application in a switch's namespace, with its REST interface."""

    def __init__(self, switch, *applications, reads=None):
        """`reads` is what makes the program read its rules back from the switch: a request answered
        in order, behind all that it was told before."""
        if not os.path.exists(f"{VENV}/bin/python"):
            raise Skip("no .build/venv-applications: run scripts/setup")
        self.switch, self.reads = switch, reads
        self.process = switch.namespace.start(
            [
                f"{VENV}/bin/python",
                "-W",
                "ignore",
                "-c",
                LAUNCH,
                "--ofp-listen-host",
                "127.0.0.1",
                "--ofp-tcp-listen-port",
                "6653",
                "--wsapi-host",
                REST[0],
                "--wsapi-port",
                str(REST[1]),
                *[f"os_ken.app.{name}" for name in applications],
            ],
            "program.out",
        )
        wait_for(
            "the program listens",
            lambda: (
                ":6653" in switch.namespace.run("ss -Hltn").stdout
                and ":8080" in switch.namespace.run("ss -Hltn").stdout
            ),
            30,
        )

    def connect(self, *bridges):
        """Makes it the controller of bridges and waits until it is."""
        for bridge in bridges:
            self.switch.vsctl(
                "set-controller",
                bridge,
                "tcp:127.0.0.1:6653",
                "--",
                "set",
                "Controller",
                bridge,
                "max_backoff=1000",
                "connection_mode=out-of-band",
            )
            identifier = self.switch.get("Bridge", bridge, "controller")
            wait_for(
                f"{bridge} is connected",
                lambda name=identifier: self.switch.get("Controller", name, "is_connected"),
                20,
            )

    def ask(self, method, path, body=None):
        """One REST request; returns the status and what it answered."""
        with inside(self.switch.namespace):
            connection = http.client.HTTPConnection(*REST, timeout=20)
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
        return answer.status, json.loads(text) if text else None

    def tell(self, method, path, body=None):
        """A request that has to be carried out on every switch it is for.

        The program answers when it has sent its rules, so what follows waits for the switch to have
        read them."""
        status, answer = self.ask(method, path, body)
        check(
            status == 200 and "failure" not in json.dumps(answer),
            f"{method} {path} {body}: {status} {answer}",
        )
        if self.reads and method != "GET":
            equal(self.ask("GET", self.reads)[0], 200, f"status of {self.reads}")
        return answer


def datapath(number):
    """A datapath id as os-ken writes it."""
    return f"{number:016x}"


def secure_bridge(switch, name, number):
    """A bridge for a controller of OpenFlow 1.3."""
    switch.bridge(
        name,
        "protocols=OpenFlow13",
        "fail_mode=secure",
        f"other_config:datapath-id={datapath(number)}",
        "other_config:disable-in-band=true",
    )


@test(timeout=150)
def router(lab):
    """rest_router: two routers with three networks behind them, static routes, and what becomes of
    packets that have no route."""
    switch = lab.switch()
    for number in (1, 2):
        secure_bridge(switch, f"r{number}", number)
    # The link between the routers.
    for here, there in (("r1", "r2"), ("r2", "r1")):
        switch.vsctl(
            "add-port",
            here,
            f"{here}-{there}",
            "--",
            "set",
            "Interface",
            f"{here}-{there}",
            "type=patch",
            f"options:peer={there}-{here}",
        )
    hosts = {}
    for name, bridge, network in (
        ("a", "r1", "172.16.20"),
        ("b", "r1", "172.16.10"),
        ("c", "r2", "192.168.30"),
    ):
        hosts[name] = lab.host(name, switch, ip=f"{network}.10/24", quiet=True, bridge=bridge)
        hosts[name].run(f"ip route add default via {network}.1")
    program = Program(switch, "rest_router")
    program.connect("r1", "r2")
    wait_for("both routers are known", lambda: len(program.ask("GET", "/router/all")[1]) == 2, 20)
    for number, addresses in (
        (1, ["172.16.20.1/24", "172.16.10.1/24", "10.10.10.1/24"]),
        (2, ["192.168.30.1/24", "10.10.10.2/24"]),
    ):
        for address in addresses:
            program.tell("POST", f"/router/{datapath(number)}", {"address": address})
    # The router answers pings to its own addresses, and routes between networks that it is in.
    hosts["a"].reaches("172.16.20.1", 20)
    hosts["a"].reaches("172.16.10.10", 20)
    hosts["b"].ping("172.16.20.10", 5)
    equal(hosts["a"].ping("192.168.30.10", 1, ok=False), 0, "answers without a route")
    program.tell("POST", f"/router/{datapath(1)}", {"gateway": "10.10.10.2"})
    program.tell(
        "POST", f"/router/{datapath(2)}", {"destination": "172.16.0.0/16", "gateway": "10.10.10.1"}
    )
    hosts["a"].reaches("192.168.30.10", 30)
    hosts["c"].ping("172.16.10.10", 5)
    # Two routers on the way: the TTL of what arrives is 2 lower.
    text = hosts["a"].run("ping -n -c 1 -W 2 192.168.30.10").stdout
    check("ttl=62" in text, "the TTL behind two routers:", text)
    hosts["c"].start("iperf3 -s -1", "iperf.out")
    wait_for("iperf3 listens", lambda: ":5201" in hosts["c"].run("ss -Hltn").stdout)
    report = hosts["a"].iperf("192.168.30.10", seconds=1)
    check(
        report["end"]["sum_received"]["bytes"] > 1 << 20,
        "TCP through two routers carried",
        report["end"]["sum_received"],
    )
    routes = program.tell("GET", f"/router/{datapath(2)}")[0]["internal_network"][0]["route"]
    program.tell("DELETE", f"/router/{datapath(2)}", {"route_id": str(routes[0]["route_id"])})
    # The controller answers before its message to the switch has left.
    wait_for("the route back goes", lambda: hosts["a"].ping("192.168.30.10", 1, ok=False) == 0, 20)
    equal(hosts["a"].ping("192.168.30.10", 2, ok=False), 0, "answers after the route back went")
    hosts["a"].ping("172.16.10.10", 2)


@test(timeout=120)
def firewall(lab):
    """rest_firewall: nothing passes until a rule says so; denials go before permissions; each
    packet that is refused is reported."""
    switch = lab.switch()
    secure_bridge(switch, "br0", 1)
    hosts = [
        lab.host(
            f"h{number}", switch, ip=f"10.7.0.{number}/24", ip6=f"fd07::{number}/64", bridge="br0"
        )
        for number in (1, 2, 3)
    ]
    program = Program(switch, "rest_firewall", reads=f"/firewall/rules/{datapath(1)}")
    program.connect("br0")
    wait_for(
        "the firewall has the switch", lambda: program.ask("GET", "/firewall/module/status")[1], 20
    )
    equal(
        program.tell("GET", "/firewall/module/status")[0]["status"],
        "disable",
        "the firewall's state at first",
    )
    equal(hosts[0].ping("10.7.0.2", 1, ok=False), 0, "answers through a firewall that is off")
    program.tell("PUT", f"/firewall/module/enable/{datapath(1)}")
    equal(hosts[0].ping("10.7.0.2", 1, ok=False), 0, "answers without a rule")
    for source, target in ((1, 2), (2, 1)):
        program.tell(
            "POST",
            f"/firewall/rules/{datapath(1)}",
            {"nw_src": f"10.7.0.{source}/32", "nw_dst": f"10.7.0.{target}/32", "nw_proto": "ICMP"},
        )
    hosts[0].reaches("10.7.0.2")
    hosts[0].ping("10.7.0.2", 5)
    equal(hosts[0].ping("10.7.0.3", 1, ok=False), 0, "answers of a host that no rule names")
    # TCP is allowed to one port only, and IPv6 altogether.
    for body in (
        {"nw_dst": "10.7.0.2/32", "nw_proto": "TCP", "tp_dst": "5201"},
        {"nw_src": "10.7.0.2/32", "nw_proto": "TCP", "tp_src": "5201"},
        {"dl_type": "IPv6", "nw_proto": "ICMPv6"},
    ):
        program.tell("POST", f"/firewall/rules/{datapath(1)}", body)
    hosts[2].ping("fd07::1", 2)
    hosts[1].start("iperf3 -s", "iperf.out")
    hosts[1].start("iperf3 -s -p 5202", "iperf2.out")
    wait_for("iperf3 listens", lambda: ":5202" in hosts[1].run("ss -Hltn").stdout)
    hosts[0].iperf("10.7.0.2", seconds=1)
    refused = hosts[0].run("iperf3 -c 10.7.0.2 -p 5202 -t 1 --connect-timeout 1500", ok=False)
    check(refused.returncode != 0, "TCP to a port that no rule names went through")
    # A denial of higher priority wins, and goes again.
    program.tell(
        "POST",
        f"/firewall/rules/{datapath(1)}",
        {"nw_src": "10.7.0.1/32", "nw_proto": "ICMP", "actions": "DENY", "priority": "10"},
    )
    equal(hosts[0].ping("10.7.0.2", 2, ok=False), 0, "answers behind a denial")
    rules = program.tell("GET", f"/firewall/rules/{datapath(1)}")[0]["access_control_list"][0][
        "rules"
    ]
    denial = [rule["rule_id"] for rule in rules if rule["actions"] == "DENY"]
    equal(len(denial), 1, "denials among the firewall's rules")
    program.tell("DELETE", f"/firewall/rules/{datapath(1)}", {"rule_id": str(denial[0])})
    hosts[0].ping("10.7.0.2", 3)
    # What no rule allowed has been reported to the firewall, which writes it to its log.
    with open(
        os.path.join(lab.directory, "program.out"), encoding="utf-8", errors="replace"
    ) as file:
        wait_for("the firewall logs refused packets", lambda: "Blocked packet" in file.read(), 10)
    program.tell("PUT", f"/firewall/module/disable/{datapath(1)}")
    equal(hosts[0].ping("10.7.0.2", 2, ok=False), 0, "answers through a firewall that is off again")


@test(timeout=120)
def quality_of_service(lab):
    """rest_qos: a meter bounds one kind of traffic and leaves others alone, a rule marks packets;
    both go when they are deleted."""
    switch = lab.switch()
    secure_bridge(switch, "br0", 1)
    hosts = [
        lab.host(f"h{number}", switch, ip=f"10.8.0.{number}/24", quiet=True, bridge="br0")
        for number in (1, 2)
    ]
    program = Program(switch, "rest_qos", "rest_conf_switch", reads=f"/qos/rules/{datapath(1)}")
    program.connect("br0")
    # The program's rules stand in table 0 and send on to table 1, where its tutorial has a learning
    # switch.
    switch.ofctl("-O", "OpenFlow13", "add-flow", "br0", "table=1,priority=1,actions=normal")
    hosts[0].reaches("10.8.0.2", 20)
    program.tell(
        "POST",
        f"/qos/meter/{datapath(1)}",
        {"meter_id": "1", "flags": "KBPS", "bands": [{"type": "DROP", "rate": "2000"}]},
    )
    check(
        "meter=1 kbps" in switch.ofctl("-O", "OpenFlow13", "dump-meters", "br0"),
        "meters:",
        switch.ofctl("-O", "OpenFlow13", "dump-meters", "br0"),
    )
    program.tell(
        "POST",
        f"/qos/rules/{datapath(1)}",
        {
            "match": {"nw_dst": "10.8.0.2", "nw_proto": "UDP", "tp_dst": "5001"},
            "actions": {"meter": "1"},
        },
    )
    program.tell(
        "POST",
        f"/qos/rules/{datapath(1)}",
        {"match": {"nw_dst": "10.8.0.2", "nw_proto": "ICMP"}, "actions": {"mark": "26"}},
    )
    for port in (5001, 5002):
        hosts[1].start(f"iperf3 -s -p {port}", f"iperf-{port}.out")
    wait_for(
        "iperf3 listens",
        lambda: all(f":{port}" in hosts[1].run("ss -Hltn").stdout for port in (5001, 5002)),
    )

    def received(port):
        report = hosts[0].iperf("10.8.0.2", "-u", "-b", "10M", "-l", "1000", seconds=3, port=port)
        total = report["end"]["sum"]
        return total["packets"] - total["lost_packets"], total["packets"]

    metered, of = received(5001)
    free, of_free = received(5002)
    # 2 of 10 Mbit/s, and the burst of a second at most.
    check(metered < 0.6 * of, f"{metered} of {of} packets passed a meter of a fifth of their rate")
    check(metered > 0.1 * of, f"only {metered} of {of} packets passed the meter")
    check(free > 2 * metered, f"{free} of {of_free} packets passed that no meter is for")
    receiver = hosts[1].raw()
    hosts[0].ping("10.8.0.2", 2)
    pings = receiver.receive(
        2,
        wanted=lambda frame: frame[12:14] == b"\x08\0" and frame[23] == 1 and frame[34] == 8,
        until=2,
    )
    equal([frame[15] >> 2 for frame in pings], [26, 26], "DSCP of marked pings")
    program.tell("DELETE", f"/qos/rules/{datapath(1)}", {"qos_id": "all"})
    program.tell("DELETE", f"/qos/meter/{datapath(1)}", {"meter_id": "1"})
    equal(
        switch.ofctl("-O", "OpenFlow13", "dump-meters", "br0").count("meter="),
        0,
        "meters after the delete",
    )
