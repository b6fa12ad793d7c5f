"""os-ken's simple_switch_13, unmodified, as the controller; and fail modes when it dies."""

import contextlib
import os
import re
import socket
import ssl
import threading

from harness import ROOT, Skip, check, equal, inside, test, wait_for

VENV = os.path.join(ROOT, ".build/venv")
APPLICATION = os.path.join(VENV, "examples/simple_switch_13.py")


class Controller:
    """os-ken running one application in a namespace, listening on a TCP port of its loopback."""

    def __init__(
        self, lab, namespace, port=6653, application=APPLICATION, address="127.0.0.1", env=None
    ):
        if not os.path.exists(application):
            raise Skip(f"no {application}: run scripts/setup")
        self.process = namespace.start(
            [
                f"{VENV}/bin/python",
                "-W",
                "ignore",
                f"{VENV}/bin/osken-manager",
                "--verbose",
                "--ofp-listen-host",
                address,
                "--ofp-tcp-listen-port",
                str(port),
                application,
            ],
            "controller.out",
            env=env,
        )
        wait_for(
            "the controller listens", lambda: f":{port}" in namespace.run("ss -Hltn").stdout, 30
        )

    def die(self):
        """Ends it at once."""
        self.process.kill()
        self.process.wait(10)


def connected(switch, bridge="br0"):
    """Whether the database says that the bridge's controller is connected."""
    identifier = switch.get("Bridge", bridge, "controller")
    return switch.get(
        "Controller", identifier if isinstance(identifier, str) else identifier[0], "is_connected"
    )


@test(timeout=120)
def learning_controller_and_fail_modes(lab):
    """Hosts reach each other through rules the controller adds; without it standalone learns by
    itself and secure goes on with its rules."""
    switch = lab.switch()
    switch.bridge(
        "br0",
        "protocols=OpenFlow13",
        "fail_mode=secure",
        "other_config:datapath-id=00000000000000a1",
        "other_config:disable-in-band=true",
    )
    hosts = [lab.host(f"h{n}", switch, ip=f"10.5.0.{n}/24", quiet=True) for n in (1, 2, 3)]
    equal(
        hosts[0].ping("10.5.0.2", 1, ok=False), 0, "pings answered by a secure bridge without rules"
    )
    controller = Controller(lab, switch.namespace)
    switch.vsctl(
        "set-controller",
        "br0",
        "tcp:127.0.0.1:6653",
        "--",
        "set",
        "Controller",
        "br0",
        "max_backoff=1000",
        "inactivity_probe=2000",
    )
    wait_for("the controller is connected", lambda: connected(switch))
    hosts[0].reaches("10.5.0.2")
    for here in hosts:
        for there in (1, 2, 3):
            here.ping(f"10.5.0.{there}", 3)
    wait_for(
        "the controller's rules are there",
        lambda: (
            len([rule for rule in switch.rules("br0", "-O", "OpenFlow13") if "dl_dst=" in rule])
            >= 6
        ),
    )
    rules = switch.rules("br0", "-O", "OpenFlow13")
    check(
        any("priority=0" in rule and "CONTROLLER:65535" in rule for rule in rules),
        "no table-miss rule among",
        rules,
    )
    # A large packet that meets no rule of the controller's goes by way of it, whole.
    switch.ofctl("-O", "OpenFlow13", "del-flows", "br0", "in_port=1")
    switch.ofctl("-O", "OpenFlow13", "del-flows", "br0", "in_port=2")
    hosts[0].ping("10.5.0.2", 1, size=1000)
    wait_for(
        "the rules are back",
        lambda: (
            len([rule for rule in switch.rules("br0", "-O", "OpenFlow13") if "dl_dst=" in rule])
            >= len(rules) - 1
        ),
    )
    rules = switch.rules("br0", "-O", "OpenFlow13")
    # Secure: what the controller left goes on working; nothing is added.
    controller.die()
    wait_for("the controller is gone", lambda: not connected(switch))
    hosts[0].ping("10.5.0.2", 3)
    equal(
        sorted(switch.rules("br0", "-O", "OpenFlow13")),
        sorted(rules),
        "rules of a secure bridge after its controller died",
    )
    switch.flows(version="OpenFlow13")
    equal(
        hosts[0].ping("10.5.0.2", 1, ok=False),
        0,
        "pings answered by a secure bridge without rules or controller",
    )
    # Standalone: the switch learns by itself.
    switch.vsctl("set-fail-mode", "br0", "standalone")
    hosts[0].reaches("10.5.0.2", 20)
    hosts[2].ping("10.5.0.1", 3)
    # The controller comes back: the switch finds it by itself and is ruled by it again.
    controller = Controller(lab, switch.namespace)
    wait_for("the controller is connected again", lambda: connected(switch), 20)
    wait_for(
        "the table-miss rule is back",
        lambda: any("CONTROLLER:65535" in rule for rule in switch.rules("br0", "-O", "OpenFlow13")),
    )
    hosts[1].reaches("10.5.0.3")
    wait_for(
        "its rules are back",
        lambda: any("dl_dst=" in rule for rule in switch.rules("br0", "-O", "OpenFlow13")),
    )
    check(
        re.search(r"role\s*:\s*other", switch.vsctl("list", "Controller")),
        "the controller's role is not `other`",
    )


@test(timeout=60)
def passive_and_secure_channels(lab):
    """ovs-ofctl over ptcp: and pssl:, OpenFlow 1.0 and 1.3; ssl: to a controller; a peer without
    the right certificate is refused."""
    switch = lab.switch()
    pki = os.path.join(switch.directory, "pki")
    make_certificates(switch, pki)
    switch.vsctl("set-ssl", f"{pki}/sw.key", f"{pki}/sw.crt", f"{pki}/ca.crt")
    switch.bridge("br0", "protocols=OpenFlow10,OpenFlow13", "fail_mode=secure")
    switch.vsctl(
        "set-controller",
        "br0",
        "ptcp:6653:127.0.0.1",
        "pssl:6654:127.0.0.1",
        f"punix:{switch.directory}/br0.own",
        f"punix:{lab.directory}/elsewhere.sock",
    )
    keys = ["-p", f"{pki}/cl.key", "-c", f"{pki}/cl.crt", "-C", f"{pki}/ca.crt"]
    other = ["-p", f"{pki}/xx.key", "-c", f"{pki}/xx.crt", "-C", f"{pki}/ca.crt"]

    def ofctl(*words, ok=True):
        return switch.namespace.run(["ovs-ofctl", *words], env=switch.env, ok=ok)

    for version in ("OpenFlow10", "OpenFlow13"):
        for target in (
            ["tcp:127.0.0.1:6653"],
            ["ssl:127.0.0.1:6654", *keys],
            [f"unix:{switch.directory}/br0.own"],
        ):
            wait_for(
                f"{target[0]} speaks {version}",
                lambda: ofctl("-O", version, "show", *target, ok=False).returncode == 0,
            )
            ofctl("-O", version, "add-flow", *target, "priority=7,dl_type=0x800,actions=drop")
            check(
                "priority=7" in ofctl("-O", version, "dump-flows", *target).stdout,
                "the rule is not there",
            )
            ofctl("-O", version, "del-flows", *target)
    switch.logged("[Nn]ot adding Unix domain socket controller.*elsewhere.sock")
    check(
        not os.path.exists(f"{lab.directory}/elsewhere.sock"),
        "the database made the daemon create a socket outside its directory",
    )
    done = ofctl("-t", "3", "show", "ssl:127.0.0.1:6654", *other, ok=False)
    check(done.returncode != 0, "a client whose certificate the CA did not sign was let in")
    done = ofctl("-O", "OpenFlow14", "show", "tcp:127.0.0.1:6653", ok=False)
    check(
        done.returncode != 0 and "version negotiation failed" in done.stderr,
        "a version that the bridge does not allow:",
        done.stderr,
    )


class SecureController:
    """Accepts TLS connections one after the other, asks for the client's certificate, says hello in
    OpenFlow 1.3 and listens until it is told to hang up."""

    def __init__(self, namespace, pki, name, port=6655):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(f"{pki}/{name}.crt", f"{pki}/{name}.key")
        self.context.load_verify_locations(f"{pki}/ca.crt")
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.socket, self.subjects, self.refused = None, [], 0
        with inside(namespace):
            self.listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                plain, _ = self.listener.accept()
            except OSError:
                return
            try:
                plain.settimeout(30)
                self.socket = self.context.wrap_socket(plain, server_side=True)
                self.subjects.append(self.socket.getpeercert()["subject"][0][0][1])
                self.socket.sendall(bytes([4, 0, 0, 8, 0, 0, 0, 1]))
                while self.socket.recv(4096):
                    pass
            except OSError:
                self.refused += 1
                plain.close()

    def hang_up(self):
        """Ends the connection that is up, and listens no more."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        if self.socket:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


@test(timeout=120)
def secure_controllers_and_pauses(lab):
    """ssl: to a controller: one with a certificate of another authority is refused and the database
    says so; pauses grow to max_backoff and begin anew."""
    switch = lab.switch()
    pki = os.path.join(switch.directory, "pki")
    make_certificates(switch, pki)
    switch.vsctl("set-ssl", f"{pki}/sw.key", f"{pki}/sw.crt", f"{pki}/ca.crt")
    switch.bridge(
        "br0", "protocols=OpenFlow13", "fail_mode=secure", "other_config:disable-in-band=true"
    )

    def status(key):
        identifier = switch.get("Bridge", "br0", "controller")
        done = switch.vsctl(
            "--if-exists",
            "get",
            "Controller",
            identifier if isinstance(identifier, str) else identifier[0],
            f"status:{key}",
        )
        return done.strip('"')

    def pauses():
        return [
            int(seconds)
            for seconds in re.findall(
                r"ssl:127.0.0.1:6655: waiting (\d+) seconds before reconnect", switch.log()
            )
        ]

    stranger = SecureController(switch.namespace, pki, "xx")
    switch.vsctl(
        "set-controller",
        "br0",
        "ssl:127.0.0.1:6655",
        "--",
        "set",
        "Controller",
        "br0",
        "max_backoff=4000",
        "inactivity_probe=0",
        "connection_mode=out-of-band",
    )
    wait_for("the stranger is refused", lambda: stranger.refused >= 2, 30)
    check(
        not connected(switch),
        "the switch is connected to a controller whose certificate the CA did not sign",
    )
    equal(stranger.subjects, [], "certificates shown to a stranger")
    wait_for("the database says why", lambda: status("last_error"), 10)
    check(status("state") in ("BACKOFF", "CONNECTING"), "state", status("state"))
    # Of the longest pause the log says that it will say no more of it.
    wait_for(
        "the pauses are at their longest", lambda: "suppressing further logging" in switch.log(), 60
    )
    equal(sorted(set(pauses())), sorted(pauses()[: len(set(pauses()))]), "pauses, in order")
    equal(max(pauses()), 2, "the longest pause that the log tells of")
    stranger.hang_up()
    friend = SecureController(switch.namespace, pki, "cl")
    wait_for("the friend is accepted", lambda: connected(switch), 30)
    equal(friend.subjects, ["sw"], "the switch's certificate")
    check(status("state") in ("ACTIVE", "IDLE"), "state", status("state"))
    # A connection that has held for longer than the last pause makes the next one short.
    wait_for("it has held for a while", lambda: int(status("sec_since_connect") or 0) >= 6, 30)
    before = len(pauses())
    friend.hang_up()
    wait_for("the switch waits again", lambda: len(pauses()) > before, 20)
    check(
        pauses()[before] == 1, "the first pauses after a connection that held:", pauses()[before:]
    )


def make_certificates(switch, directory):
    """A CA, and certificates of the switch, a client, and somebody the CA does not know."""
    os.makedirs(directory)

    def openssl(*words):
        switch.tool("openssl", *words, seconds=60)

    for name in ("ca", "other"):
        openssl(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "30",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{directory}/{name}.key",
            "-out",
            f"{directory}/{name}.crt",
        )
    for name, authority in (("sw", "ca"), ("cl", "ca"), ("xx", "other")):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{directory}/{name}.key",
            "-out",
            f"{directory}/{name}.csr",
        )
        openssl(
            "x509",
            "-req",
            "-days",
            "30",
            "-in",
            f"{directory}/{name}.csr",
            "-CA",
            f"{directory}/{authority}.crt",
            "-CAkey",
            f"{directory}/{authority}.key",
            "-CAcreateserial",
            "-out",
            f"{directory}/{name}.crt",
        )
