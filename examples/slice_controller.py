#!/usr/bin/env python3
"""A controller for bandwidth slices: tasks ask for a rate and a latency between two hosts, and get
a queue of their own on every switch in between, or the reason why not (Powell et al., "Predictable
Bandwidth Slicing with Open vSwitch", sections IV-A and V; docs/slicing.md has a description).

    SLICE_NETWORK=network.yaml osken-manager examples/slice_controller.py

The network file (YAML or JSON) has what the controller cannot ask for:

    listen: 127.0.0.1:8181        # where tasks are asked for; no password, so a loopback address
    switches:
      s1: {datapath: 1, bridge: br0, ovsdb: "unix:/var/run/openvswitch/db.sock"}
      s2: {datapath: 2, bridge: br0, ovsdb: "tcp:10.0.0.2:6640"}
    links:
      - {between: ["s1:up", "s2:up"], rate: 1G, delay: 50us}
    hosts:
      camera: {at: "s1:p1", address: 10.0.1.1, rate: 1G}
      fog: {at: "s2:p2", address: 10.0.1.2, rate: 1G}
    controller: {at: "s1:p9", address: 10.0.0.9, link: 1G, rate: 2M, latency: 100ms}
                                  # (where it reaches the switches over these links)
    reserve: 5%                   # of each link, for what belongs to no task
    group: 1                      # packets that queues send together (ovs-appctl qos/predict)
    sluice: sluice                # the command whose `predict` decides
    id: default                   # differs where several such controllers share a switch

Then, over HTTP:

    curl -X PUT 127.0.0.1:8181/tasks/video -d '{"from": "camera", "to": "fog", "protocol": "udp",
        "port": 5000, "rate": "20M", "latency": "5ms", "burst": "48k", "seconds": 600}'
    curl 127.0.0.1:8181/tasks
    curl 127.0.0.1:8181/links
    curl -X DELETE 127.0.0.1:8181/tasks/video

Rates are bit/s of frames without FCS. What is promised holds for packets of a task that keeps to
its rate and its burst (a token bucket). Other traffic is forwarded by NORMAL in queue 0.
"""

import collections
import ipaddress
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import time
import zlib

import eventlet
import eventlet.wsgi
import yaml
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    HANDSHAKE_DISPATCHER,
    MAIN_DISPATCHER,
    set_ev_cls,
)
from os_ken.lib import hub
from os_ken.ofproto import ofproto_v1_3

RATES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
BITS = {"": 1, "k": 1e3, "M": 1e6, "B": 8, "kB": 8e3}
SHARES = {"": 1, "%": 0.01}
FRAME = 1514  # bytes, without FCS
LONGEST = 4.0  # the longest `max-latency-us` of a queue, in seconds
SLOWEST, FASTEST = 8e3, 400e9  # rates that a queue may have
MOST_PACKETS = 1000  # the largest burst, in packets of the task's size
MOST_WAITING = 2048  # packets that a queue is given at most: half of a port's
MOST_TASKS = 10_000
MOST_PATHS, MOST_HOPS = 16, 16  # paths that are tried, and their length
MOST_BODY = 65_536  # bytes of a request
PATIENCE = 5.0  # seconds that a switch or its database has for an answer
OWNER, TASK, SPEC = "slice-controller", "slice-task", "slice-spec"  # external_ids of our rows
CONTROL_QUEUE, FIRST_QUEUE = 1, 2
TAG = 0x51CE  # the upper 16 bits of our cookies; below are 16 of the id and 32 of the task
OTHER_TRAFFIC, CONTROL_TRAFFIC = 0xFFFFFFFF, 0xFFFFFFFE
TASKS, PORTS = 0x100, 0x200  # priorities begin here; the more a match says the higher it is
CONTROL_PRIORITY = 0x1000
PROTOCOLS = {"any": None, "icmp": 1, "tcp": 6, "udp": 17}
MODS_IN_PACKET = 10  # flow_mods of tasks that fit a packet


class Bad(Exception):
    """A request or file that cannot be understood."""


class Refused(Exception):
    """A task for which there is no room."""


class Unavailable(Exception):
    """A switch, its database or the predicting command does not do what it should."""


# Numbers with units, and objects with known keys.


def number(value, units, what, example):
    """Reads a number with a unit, above 0."""
    found = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found = float(value) if "" in units and abs(value) < 1e15 else None
    # What tasks say is kept in the database: no endless spaces or zeros.
    elif isinstance(value, str) and len(value) <= 32:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?) *([A-Za-z/%]*)", value.strip())
        if match and match[2] in units:
            found = float(match[1]) * units[match[2]]
    if found is None or not 0 < found < 1e15:
        raise Bad(f"{what}: {json.dumps(value, default=str)} is not {example}")
    return found


def rate_of(value, what):
    """Reads bit/s."""
    found = number(value, RATES, what, 'a rate in bit/s above 0, such as "20M"')
    if not SLOWEST <= found <= FASTEST:
        raise Bad(f"{what}: {show_rate(found)} is not from 8 kbit/s to 400 Gbit/s")
    return found


def time_of(value, what):
    """Reads seconds."""
    return number(value, TIMES, what, 'a time above 0 with its unit, such as "5ms"')


def fields(value, what, needed, optional=()):
    """Checks that a value is an object with these keys."""
    if not isinstance(value, dict):
        raise Bad(f"{what}: must be an object, not {json.dumps(value, default=str)[:60]}")
    for key in needed:
        if value.get(key) is None:
            raise Bad(f"{what}: {key} is missing")
    for key in value:
        if key not in needed and key not in optional:
            known = ", ".join([*needed, *optional])
            raise Bad(f"{what}: {json.dumps(key, default=str)} is not known here; {known} are")
    return value


def whole(value, what, low, high):
    """Reads a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Bad(f"{what}: {json.dumps(value, default=str)} is not from {low} to {high}")
    return value


def show_rate(rate):
    """Formats bit/s as people write them."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if rate >= size:
            return f"{rate / size:.6g} {unit}"
    return f"{rate / 1e3:.4g} kbit/s"


def show_time(seconds):
    """Formats seconds as people write them."""
    return f"{seconds * 1e6:.0f} us" if seconds < 0.01 else f"{seconds * 1e3:.4g} ms"


# What the network file says.


Switch = collections.namedtuple("Switch", "name datapath bridge ovsdb")
Host = collections.namedtuple("Host", "name at address rate delay")
Control = collections.namedtuple("Control", "at address rate latency burst")
# A switch's port as it is left by: the link's rate and delay, and the port of a switch that it
# leads to (None for a host's).
Port = collections.namedtuple("Port", "name switch port rate delay leads_to")
# A switch on a path: the ports of arrival and of departure.
Hop = collections.namedtuple("Hop", "switch arrival departure")


class Network:
    """The network file: switches, links, hosts, and paths between them."""

    def __init__(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                text = yaml.safe_load(file)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise Bad(f"{path}: {error}") from None
        optional = ("hosts", "links", "controller", "reserve", "group", "sluice", "id", "listen")
        fields(text, path, ("switches",), optional)
        self.id = str(text.get("id", "default"))
        self.sluice = str(text.get("sluice", "sluice"))
        self.group = whole(text.get("group", 1), "group", 1, 1000)
        self.reserve = number(text.get("reserve", "5%"), SHARES, "reserve", "a part, such as 5%")
        if self.reserve >= 1:
            raise Bad("reserve: all of each link is left to what belongs to no task")
        host, _, port = str(text.get("listen", "127.0.0.1:8181")).rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise Bad(f"listen: {text['listen']} is not ADDRESS:PORT")
        self.listen = host.strip("[]"), int(port)
        # Who may ask is not asked for a name: only this machine may.
        try:
            if not ipaddress.ip_address(self.listen[0]).is_loopback:
                raise Bad(
                    f"listen: {self.listen[0]} is no address of this machine's own (127.0.0.1)"
                )
        except ValueError:
            raise Bad(f"listen: {self.listen[0]} is not an IP address") from None
        self.switches, self.ports, self.hosts, self.control = {}, {}, {}, None
        for name, entry in self.section(text, "switches", dict).items():
            what = f"switches: {name}"
            fields(entry, what, ("datapath", "ovsdb"), ("bridge",))
            self.switches[str(name)] = Switch(
                str(name),
                whole(entry["datapath"], f"{what}: datapath", 1, 2**64 - 1),
                str(entry.get("bridge", "br0")),
                Database(str(entry["ovsdb"]), what),
            )
        if len({switch.datapath for switch in self.switches.values()}) < len(self.switches):
            raise Bad("switches: a datapath is there twice")
        for at, entry in enumerate(self.section(text, "links", list), 1):
            what = f"links: number {at}"
            fields(entry, what, ("between", "rate"), ("delay",))
            if not isinstance(entry["between"], list) or len(entry["between"]) != 2:
                raise Bad(f"{what}: between: must be two ports, SWITCH:PORT")
            ends = [self.end(str(end), f"{what}: between") for end in entry["between"]]
            for end, other in (ends, reversed(ends)):
                self.add_port(end, entry, what, ":".join(other))
        for name, entry in self.section(text, "hosts", dict).items():
            what = f"hosts: {name}"
            fields(entry, what, ("at", "address", "rate"), ("delay",))
            end = self.end(str(entry["at"]), f"{what}: at")
            port = self.add_port(end, entry, what, None)
            address = self.address(entry["address"], what)
            self.hosts[str(name)] = Host(str(name), port.name, address, port.rate, port.delay)
        if "controller" in text:
            what = "controller"
            needed = ("at", "address", "link", "rate", "latency")
            entry = fields(text[what], what, needed, ("burst",))
            end = self.end(str(entry["at"]), f"{what}: at")
            port = self.add_port(end, {"rate": entry["link"]}, what, None)
            burst = entry.get("burst", 10 * FRAME * 8)
            self.control = Control(
                port.name,
                self.address(entry["address"], what),
                rate_of(entry["rate"], "controller: rate"),
                time_of(entry["latency"], "controller: latency"),
                number(burst, BITS, "controller: burst", 'bits, such as "48k", or bytes, "6kB"'),
            )
        self.control_rates = collections.Counter()
        if self.control:
            start = self.ports[self.control.at].switch
            for switch in self.switches:
                for way in self.control_ways(start, switch):
                    for hop in way:
                        self.control_rates[hop.departure] += self.control.rate

    @staticmethod
    def section(text, key, kind):
        """A part of the file that is an object or a list."""
        value = kind() if text.get(key) is None else text[key]
        if not isinstance(value, kind):
            raise Bad(f"{key}: must be {'an object' if kind is dict else 'a list'}")
        return value

    @staticmethod
    def address(value, what):
        """Reads an IPv4 address."""
        try:
            return str(ipaddress.IPv4Address(value))
        except ValueError:
            raise Bad(f"{what}: address: {value} is not an IPv4 address") from None

    def end(self, text, what):
        """Reads SWITCH:PORT."""
        switch, _, port = text.partition(":")
        if not port:
            raise Bad(f"{what}: {text} is not SWITCH:PORT")
        if switch not in self.switches:
            raise Bad(f"{what}: there is no switch {switch}")
        return switch, port

    def add_port(self, end, entry, what, leads_to):
        """Notes what a port leads to."""
        name = ":".join(end)
        if name in self.ports:
            raise Bad(f"{what}: port {name} is used twice")
        delay = time_of(entry["delay"], f"{what}: delay") if "delay" in entry else 0.0
        rate = rate_of(entry["rate"], f"{what}: rate")
        self.ports[name] = Port(name, *end, rate, delay, leads_to)
        return self.ports[name]

    def ways(self, start, arrival, goal):
        """Returns paths from a switch to another, the shortest first, as lists of hops whose last
        has no departure."""
        found, wave = [], [([], start, arrival)]
        while wave and len(found) < MOST_PATHS:
            longer = []
            for hops, here, came in wave:
                if here == goal:
                    found.append([*hops, Hop(here, came, None)])
                elif len(hops) < MOST_HOPS:
                    longer += [
                        ([*hops, Hop(here, came, port.name)], there, port.leads_to)
                        for port in self.ports.values()
                        if port.switch == here and port.leads_to
                        for there in [self.ports[port.leads_to].switch]
                        if there not in {hop.switch for hop in hops}
                    ]
            wave = longer[: 16 * MOST_PATHS]
        return found[:MOST_PATHS]

    def paths(self, source, target):
        """Returns paths from a host to another: hops that all have a departure."""
        there = self.hosts[target].at
        start, goal = (self.ports[self.hosts[host].at].switch for host in (source, target))
        return [
            [*way[:-1], way[-1]._replace(departure=there)]
            for way in self.ways(start, self.hosts[source].at, goal)
        ]

    def control_ways(self, start, switch):
        """Returns the shortest paths from the controller to a switch and back; arrivals are those
        of the way there. The first is empty for the switch that the controller is at."""
        ways = self.ways(start, self.control.at, switch)
        if not ways:
            raise Bad(f"controller: no links lead from {self.control.at} to {switch}")
        back = [Hop(hop.switch, None, hop.arrival) for hop in reversed(ways[0])]
        return ways[0][:-1], back


# OVSDB (RFC 7047).


class Database:
    """A switch's database server; each transaction has a connection of its own."""

    def __init__(self, remote, what):
        self.remote = remote
        kind, _, rest = remote.partition(":")
        host, _, port = rest.rpartition(":")
        if kind == "unix" and rest:
            self.target = rest
        elif kind == "tcp" and host and port.isdigit() and 0 < int(port) < 65536:
            self.target = host.strip("[]"), int(port)
        else:
            raise Bad(f"{what}: ovsdb: {remote} is neither unix:FILE nor tcp:ADDRESS:PORT")

    def transact(self, *operations):
        """Carries out operations, all or none, and returns their results."""
        try:
            with eventlet.Timeout(PATIENCE, TimeoutError("no answer")):
                if isinstance(self.target, str):
                    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    connection.connect(self.target)
                else:
                    connection = socket.create_connection(self.target)
                with connection:
                    request = {"method": "transact", "id": 0}
                    request["params"] = ["Open_vSwitch", *operations]
                    connection.sendall(json.dumps(request).encode())
                    reply = self.read(connection)
        except (OSError, ValueError) as error:
            raise Unavailable(f"database {self.remote}: {error}") from None
        results = reply.get("result") or [{"error": reply.get("error")}]
        for result in results:
            if result and "error" in result:
                reason = f"{result['error']}: {result.get('details', '')}"
                raise Unavailable(f"database {self.remote}: {reason}")
        return results

    @staticmethod
    def read(connection):
        """Reads one reply."""
        data = bytearray()
        while True:
            more = connection.recv(1 << 20)
            if not more:
                raise OSError("the connection was closed")
            data += more
            # A reply ends with a brace, but so do parts of it.
            if data.rstrip().endswith(b"}"):
                try:
                    return json.loads(data)
                except ValueError:
                    pass

    def apply(self, operations):
        """Carries out changes, and waits until the daemon has applied them."""
        count = {"op": "mutate", "table": "Open_vSwitch", "where": []}
        count["mutations"] = [["next_cfg", "+=", 1]]
        wanted = self.transact(*operations, count, self.configuration("next_cfg"))[-1]
        wanted = wanted["rows"][0]["next_cfg"]
        end = time.monotonic() + PATIENCE
        while self.transact(self.configuration("cur_cfg"))[0]["rows"][0]["cur_cfg"] < wanted:
            if time.monotonic() > end:
                raise Unavailable(f"database {self.remote}: no daemon applies its changes")
            hub.sleep(0.02)

    @staticmethod
    def configuration(column):
        """A query for a column of the only row of Open_vSwitch."""
        return {"op": "select", "table": "Open_vSwitch", "where": [], "columns": [column]}


def plain(value):
    """A database's value as Python's: sets are lists, maps dictionaries, identifiers text."""
    if isinstance(value, list) and value and value[0] == "map":
        return {key: plain(item) for key, item in value[1]}
    if isinstance(value, list) and value and value[0] == "set":
        return [plain(item) for item in value[1]]
    if isinstance(value, list) and value and value[0] == "uuid":
        return value[1]
    return value


def as_map(value):
    """A dictionary as a database's map."""
    return ["map", [[key, item] for key, item in value.items()]]


def row(identifier):
    """The condition that is true for one row."""
    return [["_uuid", "==", ["uuid", identifier]]]


class Rows:
    """The rows of a switch's database that matter here, and the operations that make them those
    that are wanted."""

    def __init__(self, switch, owner):
        self.switch, self.owner, self.operations = switch, owner, []
        select = [
            {"op": "select", "table": "QoS", "where": []},
            {"op": "select", "table": "Queue", "where": []},
            {"op": "select", "table": "Bridge", "where": [["name", "==", switch.bridge]]},
            {"op": "select", "table": "Port", "where": [], "columns": ["name", "qos"]},
        ]
        results = [
            [{key: plain(value) for key, value in row.items()} for row in result["rows"]]
            for result in switch.ovsdb.transact(*select)
        ]
        self.qos = {row["_uuid"]: row for row in results[0]}
        self.queues = {row["_uuid"]: row for row in results[1] if self.is_ours(row)}
        if not results[2]:
            raise Unavailable(f"{switch.name} has no bridge {switch.bridge}")
        self.bridge = results[2][0]
        # The QoS of each port, None without one; also of ports that an earlier network file had.
        self.ports = {row["name"]: row["qos"] or None for row in results[3]}

    def is_ours(self, row):
        """Returns whether this controller has made a row."""
        return row["external_ids"].get(OWNER) == self.owner

    def qos_of(self, port):
        """Returns a port's QoS that is ours, None if it has none."""
        found = self.qos.get(self.ports.get(port))
        if found and not self.is_ours(found):
            raise Unavailable(
                f"{self.switch.name}:{port} has a QoS that is not this controller's "
                f"({found['_uuid']})"
            )
        return found

    def of_tasks(self):
        """Returns {(port, queue number): external_ids} of our queues."""
        return {
            (port, number): self.queues[queue]["external_ids"]
            for port, identifier in self.ports.items()
            if identifier and self.is_ours(self.qos[identifier])
            for number, queue in self.qos[identifier]["queues"].items()
            if queue in self.queues
        }

    def change(self, wanted, in_band):
        """Makes each port's queues those that are wanted: {port: (rate, {number: (other_config,
        external_ids)})}, and what else was ours go."""
        keep_qos, keep_queues = set(), set()
        for port, (rate, queues) in wanted.items():
            if port not in self.ports:
                raise Unavailable(f"{self.switch.name} has no port {port}")
            old = self.qos_of(port)
            references = []
            for number, (config, identity) in queues.items():
                have = self.queues.get(old["queues"].get(number)) if old else None
                columns = {"other_config": as_map(config), "external_ids": as_map(identity)}
                if have is None:
                    name = f"q{len(self.operations)}"
                    self.add("insert", "Queue", row=columns, **{"uuid-name": name})
                    references.append([number, ["named-uuid", name]])
                    continue
                if have["other_config"] != config or have["external_ids"] != identity:
                    self.add("update", "Queue", where=row(have["_uuid"]), row=columns)
                keep_queues.add(have["_uuid"])
                references.append([number, ["uuid", have["_uuid"]]])
            config = {"max-rate": str(int(rate))}
            columns = {
                "type": "linux-htb",
                "other_config": as_map(config),
                "external_ids": as_map({OWNER: self.owner}),
                "queues": ["map", references],
            }
            if old is None:
                name = f"q{len(self.operations)}"
                self.add("insert", "QoS", row=columns, **{"uuid-name": name})
                where = [["name", "==", port]]
                # Nothing is done if somebody else has given it a QoS meanwhile.
                unchanged = {"columns": ["qos"], "rows": [{"qos": ["set", []]}]}
                self.add("wait", "Port", where=where, until="==", timeout=0, **unchanged)
                self.add("update", "Port", where=where, row={"qos": ["named-uuid", name]})
                continue
            keep_qos.add(old["_uuid"])
            have = {str(number): queue for number, queue in old["queues"].items()}
            same = {str(number): reference[1] for number, reference in references} == have
            if not same or old["other_config"] != config or old["type"] != "linux-htb":
                self.add("update", "QoS", where=row(old["_uuid"]), row=columns)
        for port, identifier in self.ports.items():
            if identifier and identifier not in keep_qos and self.is_ours(self.qos[identifier]):
                where = [["name", "==", port]]
                self.add("update", "Port", where=where, row={"qos": ["set", []]})
        for identifier, columns in self.qos.items():
            if self.is_ours(columns) and identifier not in keep_qos:
                self.add("delete", "QoS", where=row(identifier))
        for identifier in self.queues:
            if identifier not in keep_queues:
                self.add("delete", "Queue", where=row(identifier))
        key = "in-band-queue"
        if self.bridge["other_config"].get(key) != in_band:
            change = [["other_config", "delete", ["set", [key]]]]
            if in_band is not None:
                change.append(["other_config", "insert", as_map({key: in_band})])
            if in_band is not None or self.bridge["other_config"].get(key) == str(CONTROL_QUEUE):
                self.add("mutate", "Bridge", where=row(self.bridge["_uuid"]), mutations=change)

    def add(self, operation, table, **words):
        """Adds an operation."""
        self.operations.append({"op": operation, "table": table, **words})


# Tasks.


Flow = collections.namedtuple("Flow", "direction source target hops reserved promised")


class Request:
    """What a task asks for, checked."""

    def __init__(self, body, network):
        optional = ("burst", "size", "protocol", "port", "back", "seconds", "priority", "message")
        fields(body, "task", ("from", "to", "rate", "latency"), optional)
        self.body = body
        self.ends = body["from"], body["to"]
        for key in ("from", "to"):
            if not isinstance(body[key], str) or body[key] not in network.hosts:
                known = ", ".join(network.hosts)
                raise Bad(f"{key}: there is no host {json.dumps(body[key])}; there are {known}")
        if body["from"] == body["to"]:
            raise Bad(f"to: {body['to']} is where the task begins")
        self.protocol = body.get("protocol", "any")
        if not isinstance(self.protocol, str) or self.protocol not in PROTOCOLS:
            raise Bad(f"protocol: {json.dumps(self.protocol)} is none of {', '.join(PROTOCOLS)}")
        self.port = body.get("port")
        if self.port is not None:
            whole(self.port, "port", 1, 65535)
            if self.protocol not in ("tcp", "udp"):
                raise Bad("port: only tcp and udp have ports; protocol says which")
        self.seconds = body.get("seconds")
        if self.seconds is not None:
            self.seconds = number(self.seconds, {"": 1}, "seconds", "a number of seconds above 0")
        self.priority = body.get("priority", "command")
        if self.priority not in ("command", "bulk"):
            raise Bad(f"priority: {json.dumps(self.priority)} is neither command nor bulk")
        size = whole(body.get("size", FRAME), "size", 60, 9014)
        self.message = None
        least = size * 8
        if "message" in body:
            entry = fields(body["message"], "message", ("data", "command"), ("work",))
            packets = [
                whole(entry[key], f"message: {key}", 1, MOST_PACKETS) for key in ("data", "command")
            ]
            work = time_of(entry["work"], "message: work") if "work" in entry else 0.0
            self.message = (*packets, work)
            least = sum(packets) * size * 8
        self.demands = [self.demand(body, "", size, least)]
        back = body.get("back", False)
        if back is True:
            self.demands.append(self.demands[0])
        elif back is not False:
            fields(back, "back", (), ("rate", "latency", "burst", "size"))
            size = whole(back.get("size", size), "back: size", 60, 9014)
            self.demands.append(self.demand({**body, **back}, "back: ", size, size * 8))

    @staticmethod
    def demand(body, what, size, least):
        """Returns what one direction needs: rate, latency, burst (bits) and size (bytes)."""
        rate = rate_of(body["rate"], f"{what}rate")
        latency = time_of(body["latency"], f"{what}latency")
        example = 'bits, such as "48k", or bytes, such as "6kB"'
        burst = number(body.get("burst", max(least, 4 * size * 8)), BITS, f"{what}burst", example)
        if burst < least:
            words = "a message" if least > size * 8 else "a packet"
            raise Bad(f"{what}burst: {burst:.0f} bits are less than {words}, {least}")
        if burst > MOST_PACKETS * size * 8:
            raise Bad(f"{what}burst: {burst:.0f} bits are more than {MOST_PACKETS} packets")
        return rate, latency, burst, size

    def directions(self):
        """Returns (direction, from, to, demand) of each."""
        ends = [("there", *self.ends), ("back", *reversed(self.ends))]
        return [(*end, demand) for end, demand in zip(ends, self.demands)]

    def matches(self):
        """Returns what tells packets of the task from others, for comparison."""
        return {
            (source, target, self.protocol, self.port, direction if self.port else None)
            for direction, source, target, _ in self.directions()
        }


class Task:
    """An admitted task."""

    def __init__(self, name, slot, cookie, request, flows, until, message):
        self.name, self.slot, self.request, self.flows = name, slot, request, flows
        self.cookie, self.until, self.message = cookie, until, message
        self.spec = json.dumps(
            {
                "slot": slot,
                "cookie": cookie,
                "until": until,
                "request": request.body,
                "message": message,
                "flows": [
                    [[list(hop) for hop in flow.hops], flow.reserved, flow.promised]
                    for flow in flows
                ],
            },
            sort_keys=True,
        )

    @staticmethod
    def restored(name, spec, network):
        """Reads a task from what its rows say; None if the network is another now."""
        try:
            spec = json.loads(spec)
            request = Request(spec["request"], network)
            flows = []
            for (direction, source, target, _), (hops, reserved, promised) in zip(
                request.directions(), spec["flows"], strict=True
            ):
                hops = [Hop(*hop) for hop in hops]
                if hops not in network.paths(source, target):
                    return None
                flows.append(Flow(direction, source, target, hops, reserved, promised))
            slot = whole(spec["slot"], "slot", 0, 1 << 16)
            cookie = whole(spec["cookie"], "cookie", 0, (1 << 32) - 1)
            until = spec["until"] if spec["until"] is None else float(spec["until"])
            return Task(name, slot, cookie, request, flows, until, spec["message"])
        except (Bad, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def queue(self, flow):
        """Returns a flow's queue number, the same on every switch."""
        return FIRST_QUEUE + 2 * self.slot + (flow.direction == "back")

    def queues(self, switch, network, owner):
        """Returns {(port, number): (other_config, external_ids)} on a switch."""
        found = {}
        for flow, demand in zip(self.flows, self.request.demands):
            for hop in flow.hops:
                if hop.switch != switch:
                    continue
                # What cannot leave within the promise is dropped instead of delaying the rest.
                wait = min(flow.promised, LONGEST)
                # Its burst may come in the shortest packets.
                packets = min(MOST_WAITING, math.ceil(demand[2] / (60 * 8)) + 16)
                config = {
                    "min-rate": str(int(flow.reserved)),
                    "max-latency-us": str(int(wait * 1e6) + 1),
                    "limit-packets": str(packets),
                    "priority": "0" if self.request.priority == "command" else "7",
                }
                identity = {OWNER: owner, TASK: self.name, SPEC: self.spec}
                found[network.ports[hop.departure].port, self.queue(flow)] = config, identity
        return found

    def describe(self):
        """What answers say of it."""
        answer = {
            "task": self.name,
            "request": self.request.body,
            "flows": [
                {
                    "direction": flow.direction,
                    "path": [hop.departure for hop in flow.hops],
                    "queue": self.queue(flow),
                    "reserved": flow.reserved,
                    "promised_us": round(flow.promised * 1e6),
                }
                for flow in self.flows
            ],
        }
        if self.until is not None:
            answer["seconds_left"] = max(0, round(self.until - time.time()))
        if self.message:
            answer["message"] = self.message
        return answer


# Connections to switches.


class Outbox:
    """What is sent to a switch: commands before bulk, and of bulk no more at once than the control
    queue sends in a group, so that a command never waits behind more (paper d, IV-A)."""

    def __init__(self, datapath, group):
        self.datapath, self.most = datapath, group * MODS_IN_PACKET
        self.commands, self.bulk = collections.deque(), collections.deque()
        self.ready, self.current, self.closed = hub.Event(), None, False
        hub.spawn(self.run)

    def send(self, messages, bulk=False):
        """Sends messages and waits until the switch has carried them out."""
        if self.closed:
            raise Unavailable(f"datapath {self.datapath.id}: the connection has ended")
        queue = self.bulk if bulk else self.commands
        most = self.most if bulk else len(messages) or 1
        parts = [Part(messages[at : at + most]) for at in range(0, len(messages), most)]
        queue.extend(parts)
        self.ready.set()
        for part in parts:
            if not part.done.wait(PATIENCE * (1 + len(parts))) or part.error:
                raise Unavailable(f"datapath {self.datapath.id}: {part.error or 'no answer'}")

    def run(self):
        """Sends, until the connection ends."""
        while not self.closed:
            queue = self.commands or self.bulk
            if not queue:
                self.ready.clear()
                self.ready.wait()
                continue
            self.current = part = queue.popleft()
            for message in part.messages:
                self.datapath.set_xid(message)
                part.xids.add(message.xid)
                self.datapath.send_msg(message)
            barrier = self.datapath.ofproto_parser.OFPBarrierRequest(self.datapath)
            self.datapath.set_xid(barrier)
            part.barrier = barrier.xid
            self.datapath.send_msg(barrier)
            if not part.answered.wait(PATIENCE):
                part.error = part.error or "no answer to a barrier"
            part.done.set()
        for part in [*self.commands, *self.bulk]:
            part.error = "the connection has ended"
            part.done.set()

    def close(self):
        """The connection has ended."""
        self.closed = True
        if self.current and not self.current.answered.is_set():
            self.current.error = "the connection has ended"
            self.current.answered.set()
        self.ready.set()


class Part:
    """Messages that are sent together, with a barrier behind them."""

    def __init__(self, messages):
        self.messages, self.xids, self.barrier, self.error = messages, set(), None, None
        self.answered, self.done = hub.Event(), hub.Event()


class SliceController(app_manager.OSKenApp):
    """The application."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        path = os.environ.get("SLICE_NETWORK")
        if not path:
            raise SystemExit("slice_controller: SLICE_NETWORK names no network file")
        try:
            self.network = Network(path)
            self.check_control()
        except (Bad, Refused, Unavailable) as error:
            raise SystemExit(f"slice_controller: {error}") from None
        self.cookies = TAG << 48 | (zlib.crc32(self.network.id.encode()) & 0xFFFF) << 32
        self.names = {switch.datapath: switch.name for switch in self.network.switches.values()}
        self.tasks, self.outboxes, self.numbers = {}, {}, {}
        # Switches whose database rows or rules may not be as wanted.
        self.dirty_rows, self.dirty_rules = set(self.network.switches), set()
        self.lock, self.ready, self.ending = hub.Semaphore(1), False, False
        self.complaints = {}
        for number_of in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number_of, self.end)

    def start(self):
        """Begins to listen, and to look after tasks."""
        thread = super().start()
        try:
            family = socket.AF_INET6 if ":" in self.network.listen[0] else socket.AF_INET
            listener = eventlet.listen(self.network.listen, family=family)
        except OSError as error:
            host, port = self.network.listen
            raise SystemExit(f"slice_controller: listen: {host}:{port}: {error}") from None
        hub.spawn(
            eventlet.wsgi.server,
            listener,
            self.answer,
            log_output=False,
            socket_timeout=10,
            max_size=32,
            keepalive=False,
        )
        hub.spawn(self.look_after)
        return thread

    def end(self, _signal, _frame):
        """Notes that the program is to end: queues and rules are freed before."""
        self.ending = True

    # Prediction.

    def predict(self, what, *words):
        """`sluice predict`; returns its answer."""
        command = [self.network.sluice, "predict", what, *words, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"{self.network.sluice}: {error}") from None
        if done.returncode:
            raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise Unavailable(f"{' '.join(command)}: no JSON: {done.stdout[:100]}") from None

    def bound(self, first, hops, reserved, demand):
        """Returns how long no packet of a flow takes that keeps to its rate and burst, in seconds.

        A packet waits for its own queue, and on each link for a frame that is under way."""
        rate, _, burst, size = demand
        words = []
        if first:
            words += ["--hop", f"link:rate={first.rate:.0f},delay={first.delay * 1e9:.0f}ns"]
        for hop in hops:
            port = self.network.ports[hop.departure]
            behind = max(FRAME, size) * 8 / port.rate + port.delay
            # Commas and equals signs would end the name.
            name = re.sub("[,=]", "_", port.name)
            words += [
                "--hop",
                f"queue:rate={reserved:.0f},offered={rate:.0f},name={name}",
                "--hop",
                f"link:rate={port.rate:.0f},delay={behind * 1e9:.0f}ns",
            ]
        words += ["--flow-rate", f"{rate:.0f}", "--flow-burst", f"{burst:.0f}", "--size", str(size)]
        bound = self.predict("path", *words)["bound"]
        if bound is None:
            raise Unavailable(f"{self.network.sluice} predict path: no bound")
        return bound

    def check_control(self):
        """Checks that the queues for the way to the switches are as fast as is asked."""
        control = self.network.control
        if not control:
            return
        for port, rate in self.network.control_rates.items():
            room = self.network.ports[port].rate * (1 - self.network.reserve)
            if rate > room:
                raise Refused(
                    f"controller: link {port}: {show_rate(rate)} asked, {show_rate(room)} left"
                )
        start = self.network.ports[control.at].switch
        for switch in self.network.switches:
            for way in self.network.control_ways(start, switch):
                demand = control.rate, control.latency, control.burst, FRAME
                took = self.bound(None, way, control.rate, demand) if way else 0
                if took > control.latency:
                    raise Refused(
                        f"controller: needs {show_time(control.latency)} to or from {switch}, "
                        f"{show_time(took)} predicted at {show_rate(control.rate)}"
                    )

    def left(self, name):
        """Returns the rate of a port that nobody has been promised."""
        port = self.network.ports[name]
        taken = sum(
            flow.reserved
            for task in self.tasks.values()
            for flow in task.flows
            for hop in flow.hops
            if hop.departure == name
        )
        control = self.network.control_rates.get(name, 0)
        return max(0.0, port.rate * (1 - self.network.reserve) - taken - control)

    def fit(self, source, hops, demand):
        """Returns the lowest rate that a flow needs on a path, and what it is promised."""
        rate, latency, _, _ = demand
        first = self.network.hosts[source]
        if rate > first.rate:
            raise Refused(
                f"link of {source}: {show_rate(rate)} asked, {show_rate(first.rate)} there"
            )
        left = {hop.departure: self.left(hop.departure) for hop in hops}
        for name, most in left.items():
            if rate > most:
                raise Refused(f"link {name}: {show_rate(rate)} asked, {show_rate(most)} left")
        narrowest = min(left, key=left.get)
        low, high = rate, left[narrowest]
        promised = self.bound(first, hops, high, demand)
        if promised > latency:
            raise Refused(
                f"link {narrowest}: needs {show_time(latency)}, {show_time(promised)} predicted "
                f"with all of the {show_rate(high)} that are left"
            )
        took = self.bound(first, hops, low, demand)
        if took <= latency:
            return low, took
        # To within a thousandth of what there is to choose from.
        for _ in range(10):
            middle = (low + high) / 2
            took = self.bound(first, hops, middle, demand)
            if took <= latency:
                high, promised = middle, took
            else:
                low = middle
        return high, promised

    def admit(self, name, request):
        """Returns a task that fits, or raises why it does not."""
        flows = []
        for direction, source, target, demand in request.directions():
            reasons = []
            for hops in self.network.paths(source, target):
                try:
                    reserved, promised = self.fit(source, hops, demand)
                except Refused as reason:
                    if str(reason) not in reasons:
                        reasons.append(str(reason))
                    continue
                flows.append(Flow(direction, source, target, hops, reserved, promised))
                break
            else:
                words = "; ".join(reasons) or f"no links lead from {source} to {target}"
                raise Refused(words)
        message = self.split(request, flows[0].reserved) if request.message else None
        until = time.time() + request.seconds if request.seconds else None
        used = {task.slot for task in self.tasks.values()}
        slot = next(slot for slot in range(MOST_TASKS + 1) if slot not in used)
        # Not one that rules on a switch that cannot be reached may have.
        cookie = random.randrange(CONTROL_TRAFFIC)
        return Task(name, slot, cookie, request, flows, until, message)

    def split(self, request, rate):
        """Returns how the task best cuts its messages: what is done with them is done first."""
        data, command, work = request.message
        size = request.demands[0][3]
        words = ["--rate", f"{rate:.0f}", "--group", str(self.network.group), "--size", str(size)]
        words += ["--data", str(data), "--command", str(command), "--work", f"{work * 1e9:.0f}ns"]
        found = self.predict("message", *words)
        best = min(found["plans"], key=lambda plan: plan["done"])
        return {
            "plan": best["plan"],
            "data_us": round(best["data"] * 1e6),
            "command_us": round(best["command"] * 1e6),
            "done_us": round(best["done"] * 1e6),
            "others": {
                plan["plan"]: round(plan["done"] * 1e6)
                for plan in found["plans"]
                if plan["plan"] != best["plan"]
            },
        }

    # Rows and rules.

    def wanted(self, switch):
        """Returns the queues that a switch is to have, by port."""
        queues = collections.defaultdict(dict)
        for task in self.tasks.values():
            found = task.queues(switch, self.network, self.network.id)
            for (port, number_of), row in found.items():
                queues[port][number_of] = row
        control = self.network.control
        if control and not self.ending:
            for name, rate in self.network.control_rates.items():
                port = self.network.ports[name]
                if port.switch == switch:
                    config = {
                        "min-rate": str(int(rate)),
                        "max-rate": str(int(rate)),
                        "max-latency-us": str(int(min(control.latency, LONGEST) * 1e6)),
                        "priority": "0",
                    }
                    identity = {OWNER: self.network.id, TASK: "", SPEC: "control"}
                    queues[port.port][CONTROL_QUEUE] = config, identity
        return {
            port: (self.network.ports[f"{switch}:{port}"].rate, dict(sorted(rows.items())))
            for port, rows in queues.items()
        }

    def rows(self, switch):
        """Reads the rows of a switch."""
        return Rows(self.network.switches[switch], self.network.id)

    def write_rows(self, switch):
        """Makes the database have what is wanted, and nothing else of ours."""
        self.dirty_rows.add(switch)
        in_band = str(CONTROL_QUEUE) if self.network.control and not self.ending else None
        rows = self.rows(switch)
        rows.change(self.wanted(switch), in_band)
        if rows.operations:
            self.network.switches[switch].ovsdb.apply(rows.operations)
        self.dirty_rows.discard(switch)

    def rules_of(self, task, switch):
        """Returns the flow_mods of a task on a switch."""
        datapath = self.outboxes[switch].datapath
        parser = datapath.ofproto_parser
        rules = []
        for flow in task.flows:
            for hop in flow.hops:
                if hop.switch != switch:
                    continue
                match = {
                    "in_port": self.port_number(hop.arrival),
                    "eth_type": 0x800,
                    "ipv4_src": self.network.hosts[flow.source].address,
                    "ipv4_dst": self.network.hosts[flow.target].address,
                }
                priority = TASKS
                if task.request.protocol != "any":
                    match["ip_proto"] = PROTOCOLS[task.request.protocol]
                    priority += 1
                if task.request.port:
                    end = "dst" if flow.direction == "there" else "src"
                    match[f"{task.request.protocol}_{end}"] = task.request.port
                    priority = PORTS + (flow.direction == "there")
                actions = [
                    parser.OFPActionSetQueue(task.queue(flow)),
                    parser.OFPActionOutput(self.port_number(hop.departure)),
                ]
                rules.append(self.rule(datapath, task.cookie, priority, match, actions))
        return rules

    def base_rules(self, switch):
        """Returns the flow_mods for what belongs to no task."""
        datapath = self.outboxes[switch].datapath
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        normal = parser.OFPActionOutput(ofproto.OFPP_NORMAL)
        rules = [self.rule(datapath, OTHER_TRAFFIC, 0, {}, [normal])]
        if self.network.control:
            queue = parser.OFPActionSetQueue(CONTROL_QUEUE)
            for end in ("ipv4_src", "ipv4_dst"):
                match = {"eth_type": 0x800, "ip_proto": 6, end: self.network.control.address}
                rules.append(
                    self.rule(datapath, CONTROL_TRAFFIC, CONTROL_PRIORITY, match, [queue, normal])
                )
        return rules

    def rule(self, datapath, cookie, priority, match, actions):
        """Returns a flow_mod that adds a rule."""
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        return parser.OFPFlowMod(
            datapath,
            cookie=self.cookies | cookie,
            priority=priority,
            match=parser.OFPMatch(**match),
            instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)],
        )

    def removal(self, datapath, cookie):
        """Returns a flow_mod that deletes rules with a cookie."""
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        return parser.OFPFlowMod(
            datapath,
            cookie=cookie,
            cookie_mask=0xFFFFFFFFFFFFFFFF,
            table_id=ofproto.OFPTT_ALL,
            command=ofproto.OFPFC_DELETE,
            out_port=ofproto.OFPP_ANY,
            out_group=ofproto.OFPG_ANY,
            match=parser.OFPMatch(),
        )

    def port_number(self, name):
        """Returns a port's OpenFlow number."""
        port = self.network.ports[name]
        found = self.numbers.get(port.switch, {}).get(port.port)
        if found is None:
            raise Unavailable(f"{port.switch} has no port {port.port}")
        return found

    def outbox(self, switch):
        """Returns the connection to a switch."""
        if switch not in self.outboxes:
            raise Unavailable(f"switch {switch} is not connected")
        return self.outboxes[switch]

    def write_rules(self, switch):
        """Installs all rules of a switch, and asks for those that are there."""
        outbox = self.outbox(switch)
        rules = self.base_rules(switch)
        for task in self.tasks.values():
            rules += self.rules_of(task, switch)
        outbox.send(rules, bulk=True)
        parser, ofproto = outbox.datapath.ofproto_parser, outbox.datapath.ofproto
        stats = parser.OFPFlowStatsRequest(
            outbox.datapath,
            0,
            ofproto.OFPTT_ALL,
            ofproto.OFPP_ANY,
            ofproto.OFPG_ANY,
            self.cookies,
            0xFFFFFFFF00000000,
            parser.OFPMatch(),
        )
        outbox.send([stats], bulk=True)
        self.dirty_rules.discard(switch)

    def install(self, task):
        """Writes a task's queues, then its rules, on every switch."""
        switches = [hop.switch for flow in task.flows for hop in flow.hops]
        for switch in dict.fromkeys(switches):
            self.outbox(switch)
        self.tasks[task.name] = task
        try:
            for switch in dict.fromkeys(switches):
                self.write_rows(switch)
            for switch in dict.fromkeys(switches):
                self.outbox(switch).send(self.rules_of(task, switch))
        except BaseException:  # whatever it is, no part of the task stays
            self.remove(task)
            raise

    def remove(self, task):
        """Deletes a task's rules, then its queues; returns the switches where that has to wait."""
        self.tasks.pop(task.name, None)
        waiting = set()
        for switch in dict.fromkeys(hop.switch for flow in task.flows for hop in flow.hops):
            try:
                outbox = self.outbox(switch)
                outbox.send([self.removal(outbox.datapath, self.cookies | task.cookie)])
            except Unavailable as error:
                # Upon the next connection rules of no task are deleted.
                self.dirty_rules.add(switch)
                self.complain(switch, error)
                waiting.add(switch)
            try:
                self.write_rows(switch)
            except Unavailable as error:
                self.complain(switch, error)
                waiting.add(switch)
        return waiting

    def complain(self, about, error):
        """Logs what goes wrong, once until it is something else."""
        if self.complaints.get(about) != str(error):
            self.complaints[about] = str(error)
            self.logger.warning("%s: %s", about, error)

    # What happens by itself.

    def look_after(self):
        """Takes over what an earlier controller left, keeps all as it should be, and frees
        everything at the end."""
        while not self.ready and not self.ending:
            try:
                with self.lock:
                    self.take_over()
                    self.ready = True
            except Exception as error:  # whatever it is, it is tried again until this is to end
                self.complain("at start", error)
                hub.sleep(0.5)
        while not self.ending:
            try:
                with self.lock:
                    self.tidy()
            except Exception:  # whatever it is, the other tasks go on
                self.logger.exception("unexpected")
            hub.sleep(0.2)
        try:
            with self.lock:
                for task in list(self.tasks.values()):
                    self.remove(task)
                for switch in self.network.switches:
                    if switch in self.outboxes:
                        self.attempt(self.end_rules, switch)
                    self.attempt(self.write_rows, switch)
            self.logger.info("all is freed")
        except Exception:  # it ends in any case; the next controller frees the rest
            self.logger.exception("at the end")
        finally:
            # os-ken's main program waits for applications that do not end by themselves.
            os._exit(0)

    def tidy(self):
        """Ends tasks whose time is over, and tries again what has failed."""
        for task in list(self.tasks.values()):
            if task.until is not None and task.until <= time.time():
                self.logger.info("task %s: its time is over", task.name)
                self.remove(task)
        for switch in sorted(self.dirty_rows):
            self.attempt(self.write_rows, switch)
        for switch in sorted(self.dirty_rules & set(self.outboxes)):
            self.attempt(self.write_rules, switch)

    def end_rules(self, switch):
        """Deletes the rules that send to the control queue, which ends."""
        outbox = self.outbox(switch)
        outbox.send([self.removal(outbox.datapath, self.cookies | CONTROL_TRAFFIC)])

    def attempt(self, what, switch):
        """Does something for a switch that may fail and is tried again."""
        try:
            what(switch)
            self.complaints.pop(switch, None)
        except Unavailable as error:
            self.complain(switch, error)

    def take_over(self):
        """Finds tasks in the databases: those that are complete go on, others are freed."""
        queues, specs = {}, {}
        for switch in self.network.switches:
            for (port, number_of), identity in self.rows(switch).of_tasks().items():
                queues[f"{switch}:{port}", int(number_of)] = identity
                if identity.get(TASK):
                    specs[identity[TASK]] = identity.get(SPEC, "")
        for name, spec in specs.items():
            task = Task.restored(name, spec, self.network)
            wanted = task and [
                (hop.departure, task.queue(flow)) for flow in task.flows for hop in flow.hops
            ]
            if task and all(queues.get(key, {}).get(SPEC) == task.spec for key in wanted):
                self.logger.info("task %s goes on", name)
                self.tasks[name] = task
            else:
                self.logger.info("task %s is incomplete and is freed", name)
        self.dirty_rows = set(self.network.switches)
        self.dirty_rules = set(self.network.switches)

    # Incoming messages.

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def connected(self, event):
        """Handles a new connection; os-ken asks for its ports."""
        datapath = event.msg.datapath
        name = self.names.get(datapath.id)
        if name is None:
            self.logger.warning("datapath %s is in no network file", datapath.id)
            return
        if name in self.outboxes:
            # Whoever of both is the switch comes back; the other is not believed meanwhile.
            self.outboxes[name].close()
            self.outboxes[name].datapath.close()
        self.outboxes[name] = Outbox(datapath, self.network.group)

    @set_ev_cls(ofp_event.EventOFPStateChange, DEAD_DISPATCHER)
    def gone(self, event):
        """Handles a lost connection: the switch keeps its rules until it returns."""
        name = self.names.get(event.datapath.id)
        if name in self.outboxes and self.outboxes[name].datapath is event.datapath:
            self.outboxes.pop(name).close()

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def ports(self, event):
        """Stores the ports' numbers by name; rules can be written now."""
        name = self.names.get(event.msg.datapath.id)
        if name is not None:
            self.numbers.setdefault(name, {}).update(
                {port.name.decode(): port.port_no for port in event.msg.body}
            )
            self.dirty_rules.add(name)

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port(self, event):
        """Handles a port that was added, deleted or changed."""
        message = event.msg
        name = self.names.get(message.datapath.id)
        if name is None:
            return
        ports, port = self.numbers.setdefault(name, {}), message.desc.name.decode()
        if message.reason == message.datapath.ofproto.OFPPR_DELETE:
            ports.pop(port, None)
        elif ports.get(port) != message.desc.port_no:
            ports[port] = message.desc.port_no
            # A port that came back has no QoS, and its number may be another.
            self.dirty_rules.add(name)
            self.dirty_rows.add(name)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def barrier(self, event):
        """What was sent is carried out."""
        outbox = self.outboxes.get(self.names.get(event.msg.datapath.id))
        if outbox and outbox.current and outbox.current.barrier == event.msg.xid:
            outbox.current.answered.set()

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def found_rules(self, event):
        """Deletes rules of tasks that there are no more."""
        datapath = event.msg.datapath
        outbox = self.outboxes.get(self.names.get(datapath.id))
        known = {self.cookies | task.cookie for task in self.tasks.values()}
        known.add(self.cookies | OTHER_TRAFFIC)
        if self.network.control:
            known.add(self.cookies | CONTROL_TRAFFIC)
        stale = sorted({flow.cookie for flow in event.msg.body} - known)
        if outbox and stale and self.ready:
            self.logger.info("%s rules of no task on datapath %s", len(stale), datapath.id)
            messages = [self.removal(datapath, cookie) for cookie in stale]
            hub.spawn(outbox.send, messages, bulk=True)

    @set_ev_cls(
        ofp_event.EventOFPErrorMsg, [HANDSHAKE_DISPATCHER, CONFIG_DISPATCHER, MAIN_DISPATCHER]
    )
    def refused(self, event):
        """Notes and logs an error."""
        message = event.msg
        text = f"refuses a message: type {message.type} code {message.code}"
        self.logger.error("datapath %s %s", message.datapath.id, text)
        outbox = self.outboxes.get(self.names.get(message.datapath.id))
        if outbox and outbox.current and message.xid in outbox.current.xids:
            outbox.current.error = text

    # Requests.

    def answer(self, environment, start_response):
        """Answers a request over HTTP."""
        try:
            status, found = self.request(environment)
        except Bad as error:
            status, found = "400 Bad Request", {"error": str(error)}
        except Refused as error:
            status, found = "409 Conflict", {"refused": str(error)}
        except Unavailable as error:
            status, found = "503 Service Unavailable", {"error": str(error)}
        body = (json.dumps(found, indent=1) + "\n").encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if status.startswith("405"):
            headers.append(("Allow", "GET, PUT, DELETE"))
        start_response(status, headers)
        return [body]

    def request(self, environment):
        """Returns the status and what the answer says."""
        method = environment["REQUEST_METHOD"]
        where = environment["PATH_INFO"].strip("/").split("/")
        if method not in ("GET", "PUT", "DELETE"):
            return "405 Method Not Allowed", {"error": f"{method}: must be GET, PUT or DELETE"}
        if where == ["links"] and method == "GET":
            return "200 OK", self.links()
        if where == ["tasks"] and method == "GET":
            return "200 OK", [task.describe() for task in self.tasks.values()]
        if len(where) != 2 or where[0] != "tasks":
            words = "there are /tasks, /tasks/NAME and /links"
            return "404 Not Found", {"error": f"{environment['PATH_INFO']}: {words}"}
        name = where[1]
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise Bad(f"{name[:80]}: a name has 1 to 64 letters, digits and _.-")
        if method == "GET":
            if name not in self.tasks:
                return "404 Not Found", {"error": f"there is no task {name}"}
            return "200 OK", self.tasks[name].describe()
        if method == "PUT":
            request = Request(self.body(environment), self.network)
        if not self.ready or self.ending:
            raise Unavailable(self.complaints.get("at start", "the controller starts or ends"))
        with self.lock:
            return self.put(name, request) if method == "PUT" else self.delete(name)

    @staticmethod
    def body(environment):
        """Reads a request's body."""
        length = environment.get("CONTENT_LENGTH") or "0"
        if not length.isdigit() or int(length) > MOST_BODY:
            raise Bad(f"a body of {length[:20]} bytes: at most {MOST_BODY} are read")
        data = environment["wsgi.input"].read(int(length))
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Bad(f"not JSON: {error}") from None

    def put(self, name, request):
        """Admits a task."""
        old = self.tasks.get(name)
        if old and old.request.body == request.body:
            return "200 OK", old.describe()
        if old:
            raise Refused(f"task {name} is there already, and asks for something else")
        if len(self.tasks) >= MOST_TASKS:
            raise Refused(f"there are {MOST_TASKS} tasks already")
        for other in self.tasks.values():
            if other.request.matches() & request.matches():
                raise Refused(f"task {other.name} has the same packets")
        try:
            task = self.admit(name, request)
        except Refused as reason:
            self.logger.info("task %s is refused: %s", name, reason)
            raise
        self.install(task)
        self.logger.info("task %s is admitted", name)
        return "201 Created", task.describe()

    def delete(self, name):
        """Ends a task."""
        if name not in self.tasks:
            return "404 Not Found", {"error": f"there is no task {name}"}
        task = self.tasks[name]
        waiting = sorted(self.remove(task))
        self.logger.info("task %s has ended", name)
        if waiting:
            return "202 Accepted", {"task": name, "waits_for": waiting}
        return "200 OK", {"task": name, "freed": True}

    def links(self):
        """Returns what each link has left."""
        return {
            name: {
                "rate": port.rate,
                "control": self.network.control_rates.get(name, 0),
                "left": self.left(name),
                "tasks": sorted(
                    task.name
                    for task in self.tasks.values()
                    if any(hop.departure == name for flow in task.flows for hop in flow.hops)
                ),
            }
            for name, port in self.network.ports.items()
            if not self.network.control or name != self.network.control.at
        }
