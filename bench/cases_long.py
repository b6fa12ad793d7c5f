"""A long pipeline: what a network engine such as OVN compiles one logical switch to, and traffic
for it.

Thirty tables, one after the other by `resubmit`. Registers carry what was found out on the way:
`metadata` the logical switch, `reg14` the logical port of entry, `reg15` that of exit, `reg10`
flags, `reg0` hints. Half of the tables have but one rule that passes everything on, as most stages
of a logical switch have that does not use them; the others look up ports, addresses, hundreds of
access rules and hundreds of MAC addresses:

     0      logical port of entry, by ingress port and source MAC             64 rules
     1, 25  port security: the port's own addresses (a resubmit that comes back)
     5      what needs an access list
     9      access list of entry, four kinds of match                        400 rules
    18      ARP answers (no traffic here)                                    256 rules
    19, 21  DHCP and DNS (no traffic here)                                    65 rules
    23      destination by MAC                                               256 rules
    24      local or remote                                                  256 rules
    27      access list of exit                                              200 rules
    28      port security of exit                                            256 rules
    29      physical port of exit, by reg15                                  256 rules

`CASES` maps a name to a function that returns rules (lines for ovs-ofctl, with {in}, {out} and
{out2} for ports), frames to be replayed, and for each frame the cookie of the rule that must count
it: rules of the last table alone have cookies other than 0.
"""

import random
import struct

PORTS = 64
HOSTS = 256
SERVICES = [22, 25, 80, 110, 143, 443, 993, 3306, 5432, 6379, 8080, 8443, 9000, 9090, 27017, 50051]
LAST = 29


def source_mac(port):
    return 0x020000000100 + port


def host_mac(host):
    return 0x020000010000 + host


def text_of_mac(number):
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


def text_of_address(number):
    return ".".join(str(byte) for byte in number.to_bytes(4, "big"))


def source_address(port):
    return 0x0A000000 | port << 8 | 10


def host_address(host):
    return 0x0B000000 | host << 8 | 20


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF ^ total


def frame(port, host, protocol, source_port, destination_port):
    """A packet of 64 bytes, of which the check sequence is not written."""
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        46,
        0,
        0,
        64,
        protocol,
        0,
        source_address(port).to_bytes(4, "big"),
        host_address(host).to_bytes(4, "big"),
    )
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    if protocol == 17:
        transport = struct.pack("!HHHH", source_port, destination_port, 26, 0)
    else:
        transport = struct.pack(
            "!HHIIBBHHH", source_port, destination_port, 0, 0, 0x50, 0x10, 8192, 0, 0
        )
    ethernet = host_mac(host).to_bytes(6, "big") + source_mac(port).to_bytes(6, "big") + b"\x08\0"
    return (ethernet + header + transport).ljust(60, b"\0")


def rule(table, priority, match, actions, cookie=0):
    match = f",{match}" if match else ""
    return f"cookie={cookie},table={table},priority={priority}{match},actions={actions}"


def rules_of_entry():
    """Ports, port security, and what needs an access list."""
    rules = [rule(0, 0, "", "drop")]
    for port in range(PORTS):
        mac = text_of_mac(source_mac(port))
        load = f"load:1->OXM_OF_METADATA[],load:{port + 1}->NXM_NX_REG14[],resubmit(,1)"
        rules.append(rule(0, 100, f"in_port={{in}},dl_src={mac}", load))
        own = f"reg14={port + 1},metadata=1,dl_src={mac}"
        rules.append(
            rule(
                25,
                90,
                f"{own},ip,nw_src={text_of_address(source_address(port))}",
                "load:0->NXM_NX_REG10[12]",
            )
        )
        rules.append(rule(25, 90, f"{own},arp", "load:0->NXM_NX_REG10[12]"))
        rules.append(rule(25, 80, f"reg14={port + 1},metadata=1", "load:1->NXM_NX_REG10[12]"))
    rules += [
        rule(1, 100, "metadata=1,dl_src=01:00:00:00:00:00/01:00:00:00:00:00", "drop"),
        rule(1, 50, "metadata=1", "load:0->NXM_NX_REG10[12],resubmit(,25),resubmit(,2)"),
        rule(2, 50, "reg10=0x1000/0x1000,metadata=1", "drop"),
        rule(2, 0, "", "resubmit(,3)"),
        rule(5, 110, "metadata=1,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00", "resubmit(,6)"),
        rule(5, 100, "ip,metadata=1", "load:1->NXM_NX_REG0[0],resubmit(,6)"),
        rule(5, 0, "", "resubmit(,6)"),
        rule(7, 100, "reg0=0x4/0x4,metadata=1", "drop"),
        rule(7, 0, "", "resubmit(,8)"),
    ]
    return rules


def access_rules(table, following, count, seed):
    """Of four kinds, a quarter each."""
    chance = random.Random(seed)
    allow = f"load:1->NXM_NX_REG0[16],resubmit(,{following})"
    seen, rules = set(), []
    while len(rules) < count:
        service = chance.choice(SERVICES)
        protocol = chance.choice(["tcp", "udp"])
        address = host_address(chance.randrange(HOSTS))
        match = [
            f"metadata=1,{protocol},nw_dst={text_of_address(address)},tp_dst={service}",
            f"metadata=1,{protocol},nw_src=10.0.{chance.randrange(PORTS)}.0/24,tp_dst={service}",
            (
                f"reg14={chance.randrange(PORTS) + 1},metadata=1,{protocol},"
                f"tp_dst={chance.randrange(1, 256) << 8:#x}/0xff00"
            ),
            (
                f"metadata=1,ip,nw_src=10.0.{chance.randrange(PORTS)}.0/24,"
                f"nw_dst=11.0.{chance.randrange(HOSTS)}.0/24"
            ),
        ][len(rules) % 4]
        if match not in seen:
            seen.add(match)
            rules.append(rule(table, 1000 + 10 * (len(rules) % 4), f"{match},reg0=0x1/0x1", allow))
    return rules + [rule(table, 1, "metadata=1", f"resubmit(,{following})")]


def rules_of_services():
    """What answers for others: ARP, DHCP, DNS."""
    rules = []
    for host in range(HOSTS):
        rules.append(
            rule(
                18,
                50,
                f"arp,metadata=1,arp_op=1,arp_tpa={text_of_address(host_address(host))}",
                f"mod_dl_src:{text_of_mac(host_mac(host))},in_port",
            )
        )
    for port in range(PORTS):
        rules.append(
            rule(
                19,
                100,
                f"udp,reg14={port + 1},metadata=1,dl_src={text_of_mac(source_mac(port))},"
                "tp_src=68,tp_dst=67",
                "drop",
            )
        )
    rules.append(rule(21, 100, "udp,metadata=1,tp_dst=53", "drop"))
    return rules + [rule(table, 0, "", f"resubmit(,{table + 1})") for table in (18, 19, 21)]


def rules_of_exit():
    """Destination, port security and the physical port."""
    rules = [rule(23, 70, "metadata=1,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00", "drop")]
    for host in range(HOSTS):
        mac, out = text_of_mac(host_mac(host)), f"reg15={host + 1},metadata=1"
        rules += [
            rule(
                23, 50, f"metadata=1,dl_dst={mac}", f"load:{host + 1}->NXM_NX_REG15[],resubmit(,24)"
            ),
            rule(24, 100, out, "load:0->NXM_NX_REG0[],load:1->NXM_NX_REG0[0],resubmit(,26)"),
            rule(
                28,
                90,
                f"{out},dl_dst={mac},ip,nw_dst={text_of_address(host_address(host))}",
                f"resubmit(,{LAST})",
            ),
            rule(LAST, 100, out, "output:{out2}" if host % 2 else "output:{out}", host + 1),
        ]
    return rules


def pipeline():
    """All rules."""
    rules = (
        rules_of_entry()
        + access_rules(9, 10, 400, 21)
        + rules_of_services()
        + rules_of_exit()
        + access_rules(27, 28, 200, 22)
    )
    passing = [3, 4, 6, 8, *range(10, 18), 20, 22]
    rules += [rule(table, 0, "", f"resubmit(,{table + 1})") for table in passing]
    return rules + [rule(26, 0, "", "resubmit(,27)")]


def flows(count, seed=23):
    """Different flows, and the cookie of the last rule that each meets."""
    chance = random.Random(seed)
    seen, frames, cookies = set(), [], []
    while len(frames) < count:
        port, host = chance.randrange(PORTS), chance.randrange(HOSTS)
        flow = (
            port,
            host,
            chance.choice([6, 17]),
            chance.randrange(1024, 65536),
            chance.choice(SERVICES),
        )
        if flow not in seen:
            seen.add(flow)
            frames.append(frame(*flow))
            cookies.append(host + 1)
    return frames, cookies


def ovn(count):
    """The pipeline, and so many flows in turn."""
    frames, cookies = flows(count)
    return pipeline(), frames, cookies


# Frames of `ovn-new` come again after 100,000 others: for a cache of less each is a new flow.
CASES = {
    "ovn-10k": lambda: ovn(10000),
    "ovn-new": lambda: ovn(100000),
}
