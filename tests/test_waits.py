"""How long packets wait: what a running queue says of itself, metrics, and predictions from
numbers."""

import json
import os
import random
import re
import socket
import time
import urllib.error
import urllib.request

from harness import Skip, check, equal, inside, run, test, wait_for
from test_slicing import frame, shape, some_hosts


def send_unevenly(host, packets):
    """Packets of 996 bytes at some 60% of 8 Mbit/s, a few at a time."""
    chance = random.Random(1)
    while packets > 0:
        some = min(packets, chance.randint(1, 6))
        host.send(*(frame(number) for number in range(some)))
        packets -= some
        time.sleep(some * 0.001 / 0.6)


@test(timeout=90)
def queues_forecast_their_waits(lab):
    """`qos/predict` watches a queue once asked, then forecasts from what came; metrics show the
    same; bad questions have answers."""
    switch, one, _ = some_hosts(lab)
    shape(switch, 1000000000, min_rate=8000000, max_rate=8000000)
    check(
        "watched from now on" in switch.appctl("qos/predict", "p2", "1"),
        "it begins when somebody asks",
    )
    send_unevenly(one, 1500)
    wait_for(
        "all have left",
        lambda: json.loads(switch.appctl("qos/predict", "--json", "p2", "1"))[0]["packets"] == 1500,
    )
    text = switch.appctl("qos/predict", "p2", "1")
    for words in ("came: 1500 packets", "utilization:", "waited:"):
        check(words in text, f"{words} in {text}")
    told = json.loads(switch.appctl("qos/predict", "--json", "p2", "1"))[0]["told"]
    wait, seen = told["forecast"]["wait"], told["waited"]["mean"]
    check(
        wait["low"] <= seen <= wait["high"],
        f"what was seen, {seen}, lies in what is forecast: {wait}",
    )
    # `sluice top` shows what was measured, what is forecast, and the 99th percentile.
    sluice = os.path.join(os.path.dirname(os.path.abspath(lab.switchd[0])), "sluice")
    shown = run([sluice, "top", "-n", "1", "-i", "0.2"], env=switch.env).stdout
    time_of = r"[\d.]+(us|ms|s)"
    check(
        re.search(
            rf"^ *p2 +1 .* {time_of} +({time_of} \({time_of} to {time_of}\)|cannot tell) "
            rf"+{time_of} ",
            shown,
            re.M,
        ),
        shown,
    )
    metrics = switch.appctl("sluice/metrics")
    for line in (
        'sluice_queue_sent_packets_total{port="p2",queue="1"} 1500',
        'sluice_queue_wait_seconds_count{port="p2",queue="1"} 1500',
        'reason="over_bound"',
        'sluice_queue_utilization{port="p2",queue="1"}',
        'sluice_queue_prediction_cannot_tell{port="p2",queue="1"}',
    ):
        check(line in metrics, f"{line} in {metrics}")
    check(
        "  at 16.000 Mbit/s: " in switch.appctl("qos/predict", "--rate=16000000", "p2", "1"),
        "another rate can be asked about",
    )
    faster = json.loads(switch.appctl("qos/predict", "--json", "--rate=16e6", "p2", "1"))[0]["at"]
    check(
        faster["forecast"]["wait"]["value"] < wait["value"],
        f"twice the rate makes waits shorter: {faster}",
    )
    in_prometheus_format(metrics)
    check(
        "nonsense: not a rate"
        in switch.appctl("qos/predict", "--rate=nonsense", "p2", ok=False).stderr,
        "a rate is a number",
    )
    for words in (
        ("qos/predict", "nothing"),
        ("qos/predict", "p1"),
        ("qos/predict", "p2", "9"),
        ("qos/predict", "p2", "x"),
    ):
        check(words[-1] in switch.appctl(*words, ok=False).stderr, f"{words} is refused by name")


SAMPLE = re.compile(
    r'([a-z_]+)(?:{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)})? (-?[0-9.]+(?:e[+-]?[0-9]+)?|\+Inf|NaN)'
)


def in_prometheus_format(text):
    """Each metric has its help and type once, before its samples; no sample comes twice; counters
    end with _total and no other does."""
    kinds, samples, last = {}, {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            last = line.split()[2]
            check(last not in kinds, f"{last} is there twice")
        elif line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            equal(name, last, "help comes before the type")
            check(
                kind in ("counter", "gauge", "summary")
                and (kind == "counter") == name.endswith("_total"),
                line,
            )
            kinds[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            check(found, f"a sample: {line}")
            name, labels, value = found.groups()
            check(
                name == last
                or kinds[last] == "summary"
                and name in (f"{last}_sum", f"{last}_count"),
                f"{name} stands with {last}",
            )
            check((name, labels) not in samples, f"{line} is there twice")
            samples[name, labels] = float(value)
    check(
        any(name.startswith("sluice_port_") for name in kinds)
        and any(name.startswith("sluice_worker_") for name in kinds),
        "ports and workers are told of",
    )
    return samples


def fetch(switch, path, port=19464):
    """Status and text that an HTTP server in the switch's namespace answers; (None, "") without
    one."""
    try:
        # Whatever proxy the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with (
            inside(switch.namespace),
            opener.open(f"http://127.0.0.1:{port}{path}", timeout=20) as answer,
        ):
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return None, ""


@test(timeout=60)
def metrics_are_served_where_asked(lab):
    """Nothing listens until the configuration says where; then `/metrics` and nothing else is
    answered, until it says otherwise."""
    switch, host, _ = some_hosts(lab)
    shape(switch, 1000000000, min_rate=8000000)
    switch.namespace.run("ip link set lo up")
    equal(fetch(switch, "/metrics")[0], None, "nothing listens at first")
    switch.vsctl("set", "Open_vSwitch", ".", "other_config:sluice-metrics=19464")
    wait_for(
        "metrics are served",
        lambda: (
            'sluice_queue_min_rate_bits{port="p2",queue="1"} 8000000'
            in fetch(switch, "/metrics")[1]
        ),
    )
    equal(fetch(switch, "/else")[0], 404, "another path")
    samples = in_prometheus_format(fetch(switch, "/metrics")[1])
    host.send(*(frame(number) for number in range(20)))
    wait_for(
        "ports count",
        lambda: (
            in_prometheus_format(fetch(switch, "/metrics")[1])[
                "sluice_port_received_packets_total", 'port="p1"'
            ]
            >= samples["sluice_port_received_packets_total", 'port="p1"'] + 20
        ),
    )
    equal(samples["sluice_connections", None], 0, "tracked connections")
    equal(samples["sluice_connections_limit", None], 3_000_000, "their number at most")
    equal(samples["sluice_connection_events_total", 'event="created"'], 0, "connections so far")
    busy = [value for (name, _), value in samples.items() if name == "sluice_worker_busy_share"]
    check(busy and all(0 <= value <= 1 for value in busy), busy)
    with inside(switch.namespace):
        silent = [socket.create_connection(("127.0.0.1", 19464)) for _ in range(12)]
    equal(fetch(switch, "/metrics")[0], 200, "twelve that say nothing keep nobody out")
    for one in silent:
        one.close()
    switch.vsctl("remove", "Open_vSwitch", ".", "other_config", "sluice-metrics")
    wait_for("nothing listens any more", lambda: fetch(switch, "/metrics")[0] is None)


@test(timeout=30)
def predictions_from_numbers(lab):
    """`sluice predict` knows the paper's figures, and refuses nonsense by name."""
    if lab.is_ovs:
        raise Skip("a command of Sluice's")
    sluice = os.path.join(os.path.dirname(lab.switchd[0]), "sluice")

    def predict(*words, ok=True):
        done = run([sluice, "predict", *words], ok=ok)
        return done.stdout if ok else done.stderr

    queue = ["queue", "--rate", "500M", "--load", "98%", "--size", "1500", "--group", "16"]
    answer = json.loads(predict(*queue, "--model", "paper", "--json"))
    check(abs(answer["forecast"]["wait"]["value"] - 0.0192) < 1e-5, answer)
    check("cannot tell" in predict(*queue, "--error", "2.5%"), "1 - rho is inside the error")
    plans = json.loads(
        predict(
            "message",
            "--rate",
            "192M",
            "--group",
            "16",
            "--plan",
            "20",
            "--plan",
            "7|8|5",
            "--plan",
            "15+5",
            "--work",
            "500us",
            "--json",
        )
    )["plans"]
    equal(min(plans, key=lambda plan: plan["done"])["plan"], "15+5", "the best plan")
    check(
        "end to end"
        in predict(
            "path", "--hop", "queue:rate=100M,offered=50M", "--hop", "link:rate=1G,delay=5us"
        ),
        "a way",
    )
    check(
        "ovs-vsctl -- set port p1"
        in predict("place", "--task", "a:rate=1M,latency=5ms", "--port", "p1:rate=100M"),
        "a placement",
    )
    more = predict("place", "--task", "a:rate=1M,latency=5ms,burst=200k", "--port", "p1:rate=100M")
    check(
        "more than it sends, since its burst of 200000 bits" in more,
        "why it needs more than was asked:",
        more,
    )
    for words in (
        ["queue", "--rate", "-5"],
        ["path", "--hop", "tunnel:"],
        ["message", "--rate", "1M", "--group", "0", "--data", "1", "--command", "1"],
        ["place", "--task", "a:rate=1G,latency=1us", "--port", "p1:rate=1M"],
    ):
        check(predict(*words, ok=False).strip() != "", f"{words} are refused")
