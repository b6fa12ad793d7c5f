"""A QEMU guest with virtio-net over vhost-user, and a namespace on a veth, on one bridge."""

import hashlib
import os
import re

from guest import Guest
from harness import check, equal, test, wait_for


def guest_and_host(lab):
    """A switch with a guest (10.2.0.1, fd02::1) and a namespace (10.2.0.2, fd02::2)."""
    switch = lab.switch()
    switch.enable_dpdk()
    switch.bridge()
    socket = os.path.join(switch.directory, "guest.sock")
    guest = Guest(lab, "guest", socket, ip="10.2.0.1/24", ip6="fd02::1/64")
    number = switch.port("vm1", "type=dpdkvhostuserclient", f"options:vhost-server-path={socket}")
    host = lab.host("host", switch, ip="10.2.0.2/24", ip6="fd02::2/64")
    guest.wait_ready()
    return switch, guest, host, number


@test(timeout=150, dpdk=True)
def ping_tcp_restart(lab):
    """Pings both ways, TCP both ways, and the guest's network comes back by itself after the daemon
    restarts."""
    switch, guest, host, _ = guest_and_host(lab)
    guest.ping("10.2.0.2")
    host.ping("10.2.0.1", 10)
    guest.ping("fd02::2")
    host.ping("fd02::1", 10)
    transfer(lab, guest, host)
    rates = []
    for direction in ([], ["-R"]):
        report = host.iperf("10.2.0.1", *direction)
        check(report["end"]["sum_received"]["bytes"] > 100_000, "TCP moved almost nothing")
        rates.append(report["end"]["sum_received"]["bits_per_second"] / 1e9)
    lab.note(f"TCP to the guest {rates[0]:.2f} Gbit/s, from it {rates[1]:.2f}")
    equal(host.checksum_errors(), {}, "bad checksums counted in the namespace")
    equal(guest.checksum_errors(), {}, "bad checksums counted in the guest")
    link_state(switch, "up")
    switch.restart()
    guest.reaches("10.2.0.2", 20)
    host.ping("10.2.0.1", 5)
    transfer(lab, guest, host)
    switch.kill()
    switch.start()
    guest.reaches("10.2.0.2", 20)
    host.ping("10.2.0.1", 5)


@test(timeout=120, dpdk=True)
def guest_comes_and_goes(lab):
    """The link follows the guest, a killed guest loses only its own port, and the next one on the
    same socket works."""
    switch, guest, host, number = guest_and_host(lab)
    other = lab.host("other", switch, ip="10.2.0.3/24")
    guest.ping("10.2.0.2")
    link_state(switch, "up")
    guest.process.kill()
    guest.process.wait()
    link_state(switch, "down")
    host.ping("10.2.0.3", 5)
    check(
        re.search(r"^ *%d\(vm1\)" % number, switch.ofctl("show", "br0"), re.M),
        "the guest's port left the bridge",
    )
    os.unlink(f"{switch.directory}/guest.sock")
    guest = Guest(
        lab,
        "guest2",
        f"{switch.directory}/guest.sock",
        ip="10.2.0.1/24",
        address="52:54:00:00:00:09",
    ).wait_ready()
    guest.reaches("10.2.0.2")
    host.ping("10.2.0.1", 5)
    switch.vsctl("del-port", "vm1")
    other.ping("10.2.0.2", 5)
    equal(host.ping("10.2.0.1", 1, ok=False), 0, "pings answered by a guest whose port was deleted")
    switch.port(
        "vm1",
        "type=dpdkvhostuserclient",
        f"options:vhost-server-path={switch.directory}/guest.sock",
    )
    guest.reaches("10.2.0.2")


def link_state(switch, wanted):
    """Waits until the database shows the guest's link state."""
    wait_for(
        f"vm1's link_state is {wanted}",
        lambda: switch.get("Interface", "vm1", "link_state") == wanted,
    )


def transfer(lab, guest, host):
    """Moves a file to the guest and another from it by HTTP, and compares their digests."""
    directory = os.path.join(lab.directory, "www")
    os.makedirs(directory, exist_ok=True)
    data = os.urandom(3_000_000)
    with open(os.path.join(directory, "to-guest"), "wb") as file:
        file.write(data)
    server = host.start(
        ["/usr/bin/python3", "-m", "http.server", "-d", directory, "8000"], "http.server"
    )
    wait_for("the web server listens", lambda: ":8000" in host.run("ss -Hltn").stdout)
    digest = guest.run("wget -q -O - http://10.2.0.2:8000/to-guest | sha256sum", 60).split()[0]
    equal(digest, hashlib.sha256(data).hexdigest(), "what the guest fetched")
    server.kill()
    server.wait()
    digest = guest.run(
        "head -c 3000000 /dev/urandom >/srv/from-guest; sha256sum /srv/from-guest", 60
    ).split()[0]
    script = (
        "import hashlib,urllib.request as u; "
        "print(hashlib.sha256(u.urlopen('http://10.2.0.1/from-guest', "
        "timeout=40).read()).hexdigest())"
    )
    equal(
        host.run(["/usr/bin/python3", "-c", script], seconds=60).stdout.strip(),
        digest,
        "what the namespace fetched",
    )
