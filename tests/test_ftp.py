"""Helpers of connection tracking: FTP in both modes and TFTP between real hosts, with and without
translation, on Open vSwitch and here."""

import ftplib
import io
import re
import socket
import struct
import threading

from harness import check, equal, inside, test
from openflow_client import Connection, header

PAYLOAD = bytes(range(256)) * 2000

# Has the switch answer for an address that no host has.
ARP = (
    "table=0,priority=20,arp,arp_tpa={ip},arp_op=1,actions="
    "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],set_field:02:00:00:00:00:{last}->eth_src,"
    "load:2->NXM_OF_ARP_OP[],move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],"
    "load:0x0200000000{last}->NXM_NX_ARP_SHA[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],"
    "load:0x{hex}->NXM_OF_ARP_SPA[],in_port"
)
CLIENT, SERVER = "10.1.0.1", "10.1.0.2"
CLIENT6, SERVER6 = "fd00:1::1", "fd00:1::2"


class FtpServer:
    """A small FTP server: one file, both modes, PORT, PASV, EPRT and EPSV."""

    def __init__(self, host, address, family=socket.AF_INET):
        self.host, self.address, self.family = host, address, family
        self.stored = b""
        self.peers = []
        with inside(host):
            self.socket = socket.create_server((address, 21), family=family, reuse_port=True)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        """Serves each control connection in a thread of its own."""
        while True:
            try:
                control, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(control,), daemon=True).start()

    def data(self, waiting, target):
        """The data connection, opened in whichever mode was announced."""
        if waiting:
            with waiting:
                waiting.settimeout(5)
                return waiting.accept()[0]
        with inside(self.host):
            data = socket.socket(self.family, socket.SOCK_STREAM)
        data.settimeout(3)
        data.connect(target)
        return data

    def serve(self, control):
        """Answers commands until the client goes."""
        waiting = target = None

        def say(line):
            control.sendall(line.encode() + b"\r\n")

        with control, control.makefile("rb") as lines:
            say("220 ready")
            for line in lines:
                word, _, rest = line.decode().strip().partition(" ")
                word = word.upper()
                if word in ("PASV", "EPSV"):
                    with inside(self.host):
                        waiting = socket.create_server((self.address, 0), family=self.family)
                    port = waiting.getsockname()[1]
                    high_low = f"{port >> 8},{port & 255}"
                    if word == "PASV":
                        own = self.address.replace(".", ",")
                        say(f"227 Entering Passive Mode ({own},{high_low}).")
                    else:
                        say(f"229 Entering Extended Passive Mode (|||{port}|)")
                elif word == "PORT":
                    parts = rest.split(",")
                    target = ".".join(parts[:4]), int(parts[4]) * 256 + int(parts[5])
                    say("200 fine")
                elif word == "EPRT":
                    parts = rest.split(rest[0])
                    target = parts[2], int(parts[3])
                    say("200 fine")
                elif word in ("RETR", "STOR"):
                    say("150 here it comes")
                    try:
                        with self.data(waiting, target) as data:
                            self.peers.append((data.getpeername(), target))
                            if word == "RETR":
                                data.sendall(PAYLOAD)
                            else:
                                with data.makefile("rb") as file:
                                    self.stored = file.read()
                        say("226 done")
                    except OSError as error:
                        say(f"425 {error}")
                    waiting = target = None
                elif word == "QUIT":
                    say("221 bye")
                    return
                else:
                    say(
                        "230 in"
                        if word == "PASS"
                        else "331 go on"
                        if word == "USER"
                        else "200 fine"
                    )

    def close(self):
        """Stops serving."""
        self.socket.close()


def transfer(client, address, passive):
    """Reads and writes the file several times; returns what was read."""
    with inside(client):
        ftp = ftplib.FTP(timeout=10)
        ftp.connect(address, 21)
        ftp.set_pasv(passive)
        ftp.login()
        found = []
        for number in range(5):
            if number % 2:
                ftp.storbinary("STOR file", io.BytesIO(PAYLOAD[:70_000]))
                continue
            got = []
            ftp.retrbinary("RETR file", got.append)
            found.append(b"".join(got))
        ftp.quit()
    return found


def mac(host):
    """The MAC address of a host."""
    return re.search(r"link/ether (\S+)", host.run("ip link show eth0").stdout)[1]


def pair(lab):
    """A switch with a client at port 1 and a server at port 2."""
    switch = lab.switch()
    switch.bridge()
    found = []
    for number in (1, 2):
        host = lab.namespace(f"h{number}")
        switch.pair(host, f"p{number}", ip=f"10.1.0.{number}/24", ip6=f"fd00:1::{number}/64")
        switch.port(f"p{number}", f"ofport_request={number}")
        found.append(host)
    return switch, *found


def rules(switch, client, server, nat="", nat_new=""):
    """Control connections begin at the client; everything else must belong to one. `nat` is added
    to all ct actions, `nat_new` to those that commit a control connection."""
    back = ",nat" if nat else ""
    switch.flows(
        ARP.format(ip="10.1.0.200", last="c8", hex="0a0100c8"),
        ARP.format(ip="10.1.0.9", last="09", hex="0a010009"),
        "table=0,priority=10,arp,actions=NORMAL",
        "table=0,priority=10,icmp6,actions=NORMAL",
        f"table=0,priority=5,ip,actions=ct(table=1,zone=3{back})",
        f"table=0,priority=5,ipv6,actions=ct(table=1,zone=3{back})",
        "table=1,priority=20,ct_state=+inv,actions=drop",
        f"table=1,priority=10,tcp,in_port=1,ct_state=+new-rel,tp_dst=21,"
        f"actions=ct(commit,zone=3,alg=ftp{nat_new},exec(set_field:7->ct_mark),table=2)",
        f"table=1,priority=10,tcp6,in_port=1,ct_state=+new-rel,tp_dst=21,"
        f"actions=ct(commit,zone=3,alg=ftp{nat_new if not nat else ''},"
        "exec(set_field:7->ct_mark),table=2)",
        f"table=1,priority=10,udp,in_port=1,ct_state=+new-rel,tp_dst=69,"
        f"actions=ct(commit,zone=3,alg=tftp{nat_new},exec(set_field:7->ct_mark),table=2)",
        f"table=1,priority=10,ip,ct_state=+new+rel,ct_mark=7,"
        f"actions=ct(commit,zone=3{back},table=2)",
        f"table=1,priority=10,ipv6,ct_state=+new+rel,ct_mark=7,"
        f"actions=ct(commit,zone=3{back},table=2)",
        "table=1,priority=10,ip,ct_state=+est,actions=resubmit(,2)",
        "table=1,priority=10,ipv6,ct_state=+est,actions=resubmit(,2)",
        f"table=2,ip,nw_dst={CLIENT},actions=set_field:{mac(client)}->eth_dst,output:1",
        f"table=2,ip,nw_dst={SERVER},actions=set_field:{mac(server)}->eth_dst,output:2",
        f"table=2,ipv6,ipv6_dst={CLIENT6},actions=output:1",
        f"table=2,ipv6,ipv6_dst={SERVER6},actions=output:2",
    )


def connections(switch):
    """The lines of dpctl/dump-conntrack, sorted."""
    return sorted(switch.appctl("dpctl/dump-conntrack").splitlines())


@test(timeout=120)
def data_connections_of_ftp_are_related(lab):
    """Active and passive, IPv4 and IPv6; only they come through."""
    switch, client, server = pair(lab)
    rules(switch, client, server)
    for address, family in ((SERVER, socket.AF_INET), (SERVER6, socket.AF_INET6)):
        ftp = FtpServer(server, address, family)
        for passive in (True, False):
            equal(transfer(client, address, passive) == [PAYLOAD] * 3, True, "what was read")
            equal(ftp.stored == PAYLOAD[:70_000], True, "what was written")
        ftp.close()
    lines = connections(switch)
    control = [line for line in lines if line.endswith(",helper=ftp")]
    equal(len(control), 4, "control connections")
    others = [line for line in lines if ",helper=" not in line and line.startswith("tcp")]
    equal(len(others), 20, "data connections")
    check(all(",mark=7," in line for line in lines if line.startswith("tcp")), lines)
    # What nobody has announced stays outside.
    with inside(server):
        with socket.create_server((SERVER, 5555)), inside(client):
            with socket.socket() as other:
                other.settimeout(1)
                equal(other.connect_ex((SERVER, 5555)) != 0, True, "is refused")


def other_addresses(switch):
    """Addresses that stand for a host: as long as its own, and longer. Open vSwitch loses the
    stream where a translated command becomes longer."""
    return ["10.1.0.9"] if switch.is_ovs else ["10.1.0.9", "10.1.0.200"]


@test(timeout=120)
def ftp_passes_source_translation(lab):
    """The server sees the client by another address."""
    switch, client, server = pair(lab)
    ftp = FtpServer(server, SERVER)
    for seen in other_addresses(switch):
        rules(switch, client, server, "nat", f",nat(src={seen})")
        switch.appctl("dpctl/flush-conntrack")
        ftp.peers.clear()
        for passive in (True, False):
            equal(transfer(client, SERVER, passive) == [PAYLOAD] * 3, True, "what was read")
            equal(ftp.stored == PAYLOAD[:70_000], True, "what was written")
        equal({peer[0] for peer, _ in ftp.peers}, {seen}, "who the server saw")
        wanted = rf"tcp,orig=\(src=10.1.0.2,dst={seen},sport=\d+,dport=(\d+)\),"
        wanted += r"reply=\(src=10.1.0.1,dst=10.1.0.2,sport=\1,dport=\d+\),zone=3,mark=7"
        lines = connections(switch)
        found = [line for line in lines if re.match(wanted, line)]
        equal(len(found), 5, "active data connections")
    for host in (client, server):
        equal(host.checksum_errors(), {}, "checksum errors")
    ftp.close()


@test(timeout=120)
def ftp_passes_destination_translation(lab):
    """The client sees the server by another address."""
    switch, client, server = pair(lab)
    rules(switch, client, server, "nat", f",nat(dst={SERVER})")
    ftp = FtpServer(server, SERVER)
    for seen in other_addresses(switch):
        for passive in (True, False):
            equal(transfer(client, seen, passive) == [PAYLOAD] * 3, True, "what was read")
            equal(ftp.stored == PAYLOAD[:70_000], True, "what was written")
    for host in (client, server):
        equal(host.checksum_errors(), {}, "checksum errors")
    ftp.close()


@test(timeout=60)
def a_client_that_lies_opens_nothing(lab):
    """PORT with another's address, and half a command, have no data connection come through."""
    switch, client, server = pair(lab)
    rules(switch, client, server)
    for command in ("PORT 10,1,0,7,21,179\r\n", "PORT 10,1,0,1,21", "PORT 10,1,0,1,21,256\r\n"):
        ftp = FtpServer(server, SERVER)
        with inside(client):
            control = socket.create_connection((SERVER, 21), timeout=5)
            waiting = socket.create_server((CLIENT, 5555))
        with control, waiting:
            check(control.recv(100).startswith(b"220"), "the control connection works")
            control.sendall(command.encode())
            control.settimeout(1)
            try:
                equal(control.recv(100), b"", "an answer to a lie")
            except TimeoutError:
                pass
            with inside(server), socket.socket() as data:
                data.settimeout(1)
                check(data.connect_ex((CLIENT, 5555)) != 0, "a lie opens", command)
        ftp.close()
    if not switch.is_ovs:
        shown = switch.appctl("coverage/read-counter", "conntrack_invalid_announcement")
        check(int(shown) >= 3, shown)


@test(timeout=60)
def helpers_that_do_not_exist(lab):
    """A number of none is kept and shown, and does nothing; so is it in Open vSwitch."""
    switch = lab.switch()
    switch.bridge()
    control = Connection(f"{switch.directory}/br0.mgmt")
    # An OpenFlow 1.0 flow mod that matches TCP, with a ct action that commits.
    wildcards = 0x3820FF & ~(1 << 4) & ~(1 << 5)
    match = struct.pack(
        "!IHIHIHHBxHBB2xIIHH", wildcards, 0, 0, 0, 0, 0, 0xFFFF, 0, 0x800, 0, 6, 0, 0, 0, 0
    )
    for helper in (0, 21, 99):
        action = struct.pack("!HHIHHIHB3xH", 0xFFFF, 24, 0x2320, 35, 1, 0, 0, 0xFF, helper)
        body = match + struct.pack("!QHHHHIHH", 0, 0, 0, 0, 7, 0xFFFFFFFF, 0xFFFF, 0) + action
        control.socket.sendall(header(14, len(body), helper) + body)
        control.barrier(1000 + helper)
        equal(control.errors, [], f"errors for helper {helper}")
        shown = {0: "", 21: ",alg=ftp", 99: ",alg=99"}[helper]
        check(f"priority=7,tcp actions=ct(commit{shown})" in switch.rules(), switch.rules())
    control.close()
    for words in ("alg=99", "alg=sip"):
        done = switch.ofctl("add-flow", "br0", f"tcp,actions=ct({words})", ok=False)
        check(done.returncode != 0, words, "is accepted")


def tftp_serve(host, address):
    """Answers one request in three blocks, each from the same new port."""
    with inside(host):
        asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        asked.bind((address, 69))

    def serve():
        while True:
            try:
                _, peer = asked.recvfrom(600)
            except OSError:
                return
            with inside(host):
                data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with data:
                data.bind((address, 0))
                data.settimeout(5)
                for block in range(1, 4):
                    part = PAYLOAD[:512] if block < 3 else PAYLOAD[:100]
                    data.sendto(struct.pack("!HH", 3, block) + part, peer)
                    try:
                        data.recvfrom(600)
                    except OSError:
                        break

    threading.Thread(target=serve, daemon=True).start()
    return asked


def tftp_get(host, address):
    """Reads a file; None if nothing comes."""
    got = b""
    with inside(host):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with client:
        client.settimeout(3)
        client.sendto(b"\0\x01file\0octet\0", (address, 69))
        while True:
            try:
                packet, peer = client.recvfrom(600)
            except TimeoutError:
                return got or None
            got += packet[4:]
            client.sendto(b"\0\x04" + packet[2:4], peer)
            if len(packet) < 516:
                return got


@test(timeout=120)
def tftp_answers_from_a_new_port(lab):
    """Without translation, and with either kind."""
    switch, client, server = pair(lab)
    asked = tftp_serve(server, SERVER)
    for address, nat, new in (
        (SERVER, "", ""),
        (SERVER, "nat", ",nat(src=10.1.0.200)"),
        ("10.1.0.200", "nat", f",nat(dst={SERVER})"),
    ):
        rules(switch, client, server, nat, new)
        switch.appctl("dpctl/flush-conntrack")
        equal(tftp_get(client, address), PAYLOAD[:512] * 2 + PAYLOAD[:100], "the file")
        lines = connections(switch)
        check(any(",helper=tftp" in line for line in lines), lines)
    asked.close()
