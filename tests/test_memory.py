"""Where memory for packet buffers is short: ports share what there is, and the log says so."""

import os
import re

import oracle
from harness import Skip, check, equal, ethernet, test

# Megabytes that hold the first pool of buffers and no second.
LITTLE = 24


@test(timeout=60, dpdk=True)
def a_device_without_memory_of_its_own_shares_buffers(lab):
    """A DPDK device for whose own buffers there is no memory comes up all the same, and its frames
    pass whole."""
    if lab.is_ovs:
        raise Skip("Open vSwitch takes its memory at once, or ends")
    capture = os.path.join(lab.directory, "in.pcap")
    frames = [
        ethernet(
            "02:00:00:00:00:bb",
            "02:00:00:00:00:aa",
            0x88B5,
            number.to_bytes(4, "big") + bytes(46 + number % 1400),
        )
        for number in range(20_000)
    ]
    oracle.write_pcap(capture, frames)
    switch = lab.switch(
        config=[
            "other_config:dpdk-init=true",
            f"other_config:dpdk-alloc-mem={LITTLE}",
            f'other_config:dpdk-extra="--no-pci --file-prefix=little{os.getpid()}"',
        ]
    )
    switch.bridge("br0", "fail_mode=secure")
    (sink,) = switch.raw_hosts(1)
    switch.flows("in_port=2,actions=output:1")
    switch.port(
        "device",
        "type=dpdk",
        f"options:dpdk-devargs=net_pcap1,rx_pcap={capture},tx_pcap={lab.directory}/out.pcap",
        "ofport_request=2",
    )
    equal(switch.get("Interface", "device", "error"), [], "what is wrong with the device")
    with open(switch.log_file, encoding="utf-8") as file:
        said = [line for line in file if "|WARN|" in line and "the port shares" in line]
    check(
        len(said) == 1 and "no memory for 4096 packet buffers" in said[0],
        "what the log says:",
        said,
    )
    # Some of the first may come before the port is known, and a socket has so much room.
    got = sink.receive(10, wanted=lambda frame: frame[12:14] == b"\x88\xb5", until=1000)
    check(
        len(got) == 1000 and set(got) <= set(frames),
        f"{len(got)} frames came, or others than were sent",
    )


@test(timeout=120)
def af_xdp_ports_give_their_buffers_back(lab):
    """The buffers in an AF_XDP port's rings, 2,048 at least, are free again when it has gone,
    wherever in the pool's memory they lie."""
    if lab.is_ovs:
        raise Skip("Open vSwitch has a memory of its own for each of these ports")
    switch = lab.switch()
    switch.bridge()
    host = lab.namespace("h1").quiet()
    switch.pair(host, "x1", ip="10.0.0.1/24")
    other = lab.host("h2", switch, "10.0.0.2/24", quiet=True)
    host.run("ethtool -K eth0 tx off", ok=False)

    def free():
        """Free buffers of the pools together."""
        text = switch.appctl("netdev-dpdk/get-mempool-info")
        counts = re.findall(
            r"(?:common_pool_count|total_cache_count|cache_count\[\d+\])=(\d+)", text
        )
        return sum(int(count) for count in counts)

    counts, times = [], 40
    for _ in range(times):
        switch.port("x1", "type=afxdp")
        switch.vsctl("del-port", "x1")
        counts.append(free())
    # The first one makes the pool. Without giving back each would lose 2,048. The kernel may keep
    # a few of each.
    lost = counts[0] - counts[-1]
    check(lost < 2048, "free buffers, with no AF_XDP port:", counts)
    lab.note(f"{lost} of {times * 2048} buffers lost")
    switch.port("x1", "type=afxdp")
    other.reaches("10.0.0.1")
