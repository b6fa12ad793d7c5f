"""`examples/grafana`: the dashboard is one that Grafana reads, all its metrics are exported by a
running switch, and Prometheus, where there is one, answers all its expressions from them."""

import json
import os
import re
import shutil
import threading
import time
import urllib.parse

from harness import PATIENCE, ROOT, Failure, Skip, check, equal, ethernet, run, test, wait_for
from test_waits import SAMPLE, fetch
from test_worker_steering import steered
from tunnels import udp

EXAMPLE = os.path.join(ROOT, "examples/grafana")
SCHEMA = os.path.join(ROOT, "tests/grafana-dashboard.schema.json")
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}
# What a selector may name that is no metric of the switch's, but Prometheus adds.
ADDED = {"instance", "job"}
VARIABLES = {"$__rate_interval": "15s", "$instance": ".*", "$port": ".*"}


def dashboard():
    """The dashboard."""
    with open(os.path.join(EXAMPLE, "sluice.json"), encoding="utf-8") as file:
        return json.load(file)


def expressions():
    """(panel, refId, expression) of all targets, as they are written."""
    return [
        (panel["title"], target["refId"], target["expr"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ]


def filled(expression):
    """An expression with values for the dashboard's variables."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    check("$" not in expression, f"a variable that there is not: {expression}")
    return expression


def program(name):
    """A program of Prometheus: an installed one, or what scripts/setup has fetched."""
    fetched = os.path.join(ROOT, ".build/prometheus/usr/bin", name)
    found = shutil.which(name) or (fetched if os.access(fetched, os.X_OK) else None)
    if not found:
        raise Skip(f"no {name}: run scripts/setup")
    return found


def errors(value, schema, top, where="$"):
    """What contradicts a schema; only the keywords that it uses are known."""
    known = {
        *("$comment", "definitions", "$ref", "anyOf", "enum", "type", "required", "properties"),
        *("additionalProperties", "items", "minItems", "maxItems", "minLength", "maxLength"),
        *("minimum", "maximum"),
    }
    check(set(schema) <= known, f"keywords of the schema: {set(schema) - known}")
    if "$ref" in schema:
        return errors(value, top["definitions"][schema["$ref"]], top, where)
    if "anyOf" in schema:
        each = [errors(value, one, top, where) for one in schema["anyOf"]]
        return [] if not all(each) else min(each, key=len)
    if "enum" in schema and not any(
        type(value) is type(one) and value == one for one in schema["enum"]
    ):
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        numbers = (int,) if kind == "integer" else (int, float)
        if not isinstance(value, numbers) or isinstance(value, bool):
            return [f"{where}: {value!r} is no {kind}"]
    elif kind and not isinstance(value, TYPES[kind]):
        return [f"{where}: {value!r} is no {kind}"]
    found = []
    for least, most, size in (
        ("minItems", "maxItems", value if isinstance(value, list) else None),
        ("minLength", "maxLength", value if isinstance(value, str) else None),
    ):
        if size is not None and not schema.get(least, 0) <= len(size) <= schema.get(most, 1e9):
            found.append(f"{where}: {len(size)} long")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            found.append(f"{where}: {value} is too small or large")
    if isinstance(value, list):
        for at, item in enumerate(value):
            found += errors(item, schema.get("items", {}), top, f"{where}[{at}]")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        found += [
            f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value
        ]
        for key, item in value.items():
            if key in properties:
                found += errors(item, properties[key], top, f"{where}.{key}")
            elif schema.get("additionalProperties") is False:
                found.append(f"{where}: {key} is not known")
    return found


@test(timeout=30)
def grafana_reads_the_dashboard(lab):
    """It keeps to what Grafana's schema says of its parts; panels lie beside each other, and their
    numbers and queries are told apart; files name each other rightly."""
    if lab.is_ovs:
        raise Skip("a dashboard of Sluice's")
    with open(SCHEMA, encoding="utf-8") as file:
        schema = json.load(file)
    board = dashboard()
    equal(errors(board, schema, schema), [], "what contradicts the schema")
    # The schema finds something at all.
    for change in ({"panels": [{"type": "graph"}]}, {"uid": 5}, {"colour": "red"}):
        check(errors({**board, **change}, schema, schema), f"{change} is taken")
    ids = [panel["id"] for panel in board["panels"]]
    equal(len(ids), len(set(ids)), "panels' numbers")
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        check(at["x"] + at["w"] <= 24, f"{panel['title']} is too far right")
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        check(not taken & cells, f"{panel['title']} lies on another panel")
        taken |= cells
        references = [target["refId"] for target in panel.get("targets", [])]
        equal(len(references), len(set(references)), f"queries of {panel['title']}")
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            check(override["matcher"]["options"] in references, f"{panel['title']}: {override}")
    for panel, _, expression in expressions():
        filled(expression)
        check('instance=~"$instance"' in expression, f"{panel}: not of the chosen switch")
    with open(os.path.join(EXAMPLE, "compose.yaml"), encoding="utf-8") as file:
        for name in re.findall(r"- \./([^:]+):", file.read()):
            check(os.path.exists(os.path.join(EXAMPLE, name)), f"compose.yaml names {name}")


def busy_switch(lab):
    """A switch with metrics on 9464, two workers that share flows, a queue, one that is flooded, a
    policed port, and tracked connections; and a thread that sends until its event is set."""
    switch, (one, _, three) = steered(lab, "rss", hosts=3)
    switch.namespace.run("ip link set lo up")
    switch.vsctl(
        *("set", "Open_vSwitch", ".", "other_config:sluice-metrics=9464"),
        # Neither is there, which is said.
        *("other_config:sluice-steer=eth9", "--", "set-controller", "br0", "tcp:127.0.0.1:6653"),
        *("--", "set", "Interface", "p3", "ingress_policing_rate=100"),
        *("--", "set", "Port", "p2", "qos=@q", "--", "--id=@q", "create", "QoS"),
        *("type=linux-htb", "other-config:max-rate=100000000", "queues:1=@a", "queues:2=@b"),
        *("--", "--id=@a", "create", "Queue", "other-config:min-rate=8000000"),
        *("other-config:max-rate=8000000", "other-config:max-latency-us=500000"),
        *("--", "--id=@b", "create", "Queue", "other-config:max-rate=100000"),
        *("other-config:max-latency-us=1000",),
    )
    switch.appctl("sluice/stages", "on")
    switch.flows(
        "priority=2,in_port=1,udp,tp_dst=7,actions=set_queue:2,output:2",
        "priority=1,in_port=1,udp,actions=ct(commit,zone=5),set_queue:1,output:2",
        "in_port=3,actions=output:2",
        "priority=0,actions=drop",
    )

    def packet(flow, port, sport=1000):
        return ethernet(
            *("02:00:00:00:00:02", "02:00:00:00:00:01", 0x800),
            udp("10.0.0.1", f"10.0.1.{flow}", port, bytes(600), sport=sport),
        )

    wanted, flooded = ([packet(flow, port) for flow in range(1, 65)] for port in (9, 7))
    done = threading.Event()

    def send():
        at = 0
        while not done.is_set():
            # The second one begins a connection.
            one.send(wanted[at % 64], packet(at % 64, 9, 2000 + at % 60_000))
            if at % 8 == 0:
                one.send(*flooded[:8])
                three.send(*wanted[:32])
            at += 1
            time.sleep(0.002)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return switch, done, thread


def exported(text):
    """{metric: the labels of its samples}; sums and counts of summaries stand for themselves."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, _ = SAMPLE.fullmatch(line).groups()
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


@test(timeout=120)
def every_metric_is_exported(lab):
    """Each metric and label of the dashboard is one that a switch with traffic, queues, connections
    and steering has."""
    if lab.is_ovs:
        raise Skip("a dashboard of Sluice's")
    switch, done, thread = busy_switch(lab)
    wait_for("metrics are served", lambda: fetch(switch, "/metrics", 9464)[0] == 200)
    missing = []

    def complete():
        metrics = exported(fetch(switch, "/metrics", 9464)[1])
        missing[:] = []
        for panel, reference, expression in expressions():
            for name, selector in re.findall(r"(sluice_\w+){([^}]*)}", expression):
                labels = set(re.findall(r"(\w+)=~?\"", selector)) - ADDED
                if name not in metrics:
                    missing.append(f"{panel} {reference}: {name}")
                elif not labels <= metrics[name]:
                    missing.append(f"{panel} {reference}: {labels - metrics[name]} of {name}")
            bare = re.findall(r"\bsluice_\w+", expression)
            selected = re.findall(r"\bsluice_\w+(?={)", expression)
            check(bare == selected, f"{panel}: a metric without a selector: {expression}")
        for panel in dashboard()["panels"]:
            for target in panel.get("targets", []):
                names = re.findall(r"(sluice_\w+){", target["expr"])
                for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                    known = set().union(*(metrics.get(name, set()) for name in names))
                    if label not in known:
                        missing.append(f"{panel['title']}: legend {label}")
        return not missing

    try:
        wait_for("every metric is there", complete, 60)
    except Failure:
        raise Failure(f"not exported: {missing}") from None
    finally:
        done.set()
        thread.join()


@test(timeout=60)
def promtool_takes_metrics_and_expressions(lab):
    """promtool finds nothing in what a switch exports, the scrape configuration and the
    expressions."""
    if lab.is_ovs:
        raise Skip("a dashboard of Sluice's")
    promtool = program("promtool")
    switch, done, thread = busy_switch(lab)
    try:
        text = wait_for("metrics are served", lambda: fetch(switch, "/metrics", 9464)[1])
        found = run([promtool, "check", "metrics"], stdin=text, ok=False)
        # Rates of queues are in bit/s as in the database.
        said = [
            line
            for line in (found.stdout + found.stderr).splitlines()
            if not re.match('sluice_queue_m(in|ax)_rate_bits use base unit "bytes"', line)
        ]
        check(found.returncode in (0, 3) and not said, f"promtool check metrics: {said}")
    finally:
        done.set()
        thread.join()
    run([promtool, "check", "config", os.path.join(EXAMPLE, "prometheus.yml")])
    rules = [
        {"record": f"sluice:panel{number}", "expr": filled(expression)}
        for number, (_, _, expression) in enumerate(expressions())
    ]
    path = os.path.join(lab.directory, "rules.yml")

    def checked(rules):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        return run([promtool, "check", "rules", path], ok=False)

    good = checked(rules)
    check(
        good.returncode == 0 and f"{len(rules)} rules found" in good.stdout,
        good.stdout + good.stderr,
    )
    check(checked([{"record": "x", "expr": "rate(x[5s)"}]).returncode, "a bad one is taken")


# What need not have a value here: forecasts are judged, and can be made, only after many packets,
# and in the mode `rss` workers give away all that they should.
LATER = ("sluice_queue_predictions_", "sluice_queue_predicted_", "sluice_steering_keeps")


@test(timeout=150)
def prometheus_answers_every_expression(lab):
    """A real Prometheus, with the configuration of the example but for its interval, scrapes a busy
    switch, and has a value for every expression of the dashboard."""
    if lab.is_ovs:
        raise Skip("a dashboard of Sluice's")
    prometheus = program("prometheus")
    switch, done, thread = busy_switch(lab)
    config = os.path.join(lab.directory, "prometheus.yml")
    with (
        open(os.path.join(EXAMPLE, "prometheus.yml"), encoding="utf-8") as example,
        open(config, "w", encoding="utf-8") as file,
    ):
        file.write(example.read().replace("scrape_interval: 5s", "scrape_interval: 1s"))
    switch.namespace.start(
        [
            prometheus,
            f"--config.file={config}",
            f"--storage.tsdb.path={lab.directory}/tsdb",
            "--web.listen-address=127.0.0.1:9090",
        ],
        "prometheus.out",
    )

    def answered(expression):
        status, text = fetch(
            switch, "/api/v1/query?" + urllib.parse.urlencode({"query": filled(expression)}), 9090
        )
        if status != 200:
            return None
        answer = json.loads(text)
        equal(answer["status"], "success", expression)
        return len(answer["data"]["result"])

    silent = []

    def complete():
        silent[:] = [
            (panel, reference)
            for panel, reference, expression in expressions()
            if not answered(expression) and not any(name in expression for name in LATER)
        ]
        return not silent

    try:
        wait_for("Prometheus reads the switch", lambda: answered("sluice_connections"), 40)
        wait_for("every expression has a value", complete, 60)
    except Failure:
        raise Failure(f"without a value after {60 * PATIENCE:g} s: {silent}") from None
    finally:
        done.set()
        thread.join()
