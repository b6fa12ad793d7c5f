"""Tunnels that the daemon itself carries (no kernel's): to the kernel's VXLAN device and to Open vSwitch."""
from harness import check, equal, test, wait_for
from tunnels import both_ways, host, no_offloads, site, tunnel, underlay, wired


def kernel_end(switch, vni=42, port=4789, *words):
    """The kernel's VXLAN device at the other end of the wire, in a bridge with a host `k2` (10.1.0.2)."""
    far = wired(switch)
    far.run(["ip", "link", "add", "vx", "type", "vxlan", "id", str(vni), "dstport", str(port),
             "local", underlay(2, switch.ip6), "remote", underlay(1, switch.ip6), "dev", "eth0", *words])
    far.run("ip link add name kbr type bridge")
    far.run("ip link set vx master kbr up")
    far.run("ip link set kbr up")
    behind = switch.lab.namespace("k2")
    far.run(["ip", "link", "add", "behind", "type", "veth", "peer", "name", "eth0", "mtu", "1400",
             "netns", behind.name])
    far.run("ip link set behind master kbr up")
    no_offloads(behind)
    for command in ("ip link set eth0 up", "ip addr add 10.1.0.2/24 dev eth0", "ip addr add fd01::2/64 dev eth0"):
        behind.run(command)
    return behind


@test()
def vxlan_reaches_the_kernels_device(lab):
    """Pings and TCP between a host of the bridge and one behind the kernel's VXLAN device, in both directions."""
    switch = site(lab)
    tunnel(switch, "vx", "vxlan", 2, "key=42")
    both_ways(host(switch, "h1", 1), kernel_end(switch), "10.1.0.1", "10.1.0.2")


@test()
def vxlan_over_ipv6_reaches_the_kernels_device(lab):
    """The same with an underlay of IPv6, whose checksums the kernel does not ask for."""
    switch = site(lab, ip6=True)
    tunnel(switch, "vx", "vxlan", 2, "key=42")
    far = kernel_end(switch, 42, 4789, "udp6zerocsumtx", "udp6zerocsumrx")
    both_ways(host(switch, "h1", 1), far, "fd01::1", "fd01::2")
