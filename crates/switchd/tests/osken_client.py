"""A controller made of os-ken's parsers: asks the bridge behind a Unix socket everything and prints
one line for each answer.

usage: osken_client.py SOCKET VERSION

VERSION is the number in OpenFlow's headers, 1 for 1.0 and so on.
"""

import importlib
import socket
import struct
import sys

from os_ken.ofproto import ofproto_parser, ofproto_protocol

version = int(sys.argv[2])
name = {1: "v1_0", 3: "v1_2", 4: "v1_3", 5: "v1_4", 6: "v1_5"}[version]
ofp = importlib.import_module(f"os_ken.ofproto.ofproto_{name}")
parser = importlib.import_module(f"os_ken.ofproto.ofproto_{name}_parser")
datapath = ofproto_protocol.ProtocolDesc(version=version)
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(20)
connection.connect(sys.argv[1])
xids = iter(range(1, 1000))


def send(message):
    message.set_xid(next(xids))
    message.serialize()
    connection.sendall(message.buf)


def exactly(count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            sys.exit("the connection was closed")
        data += part
    return data


def receive():
    head = exactly(8)
    its_version, kind, length, xid = struct.unpack("!BBHI", head)
    message = ofproto_parser.msg(
        datapath, its_version, kind, length, xid, head + exactly(length - 8)
    )
    if message is None:
        sys.exit(f"os-ken cannot parse type {kind}")
    return message


def ask(message, text=lambda answer: ""):
    send(message)
    answer = receive()
    print(type(answer).__name__, text(answer))


send(parser.OFPHello(datapath))
print(type(receive()).__name__)
ask(
    parser.OFPFeaturesRequest(datapath), lambda answer: f"{answer.datapath_id:#x} {answer.n_tables}"
)
ask(parser.OFPGetConfigRequest(datapath), lambda answer: f"{answer.flags} {answer.miss_send_len}")
ask(parser.OFPEchoRequest(datapath, b"hello"), lambda answer: answer.data.decode())

if version == 1:
    match = parser.OFPMatch(dl_type=0x0800, nw_proto=6, nw_src="10.1.2.3", tp_dst=80)
    send(
        parser.OFPFlowMod(
            datapath,
            match,
            7,
            ofp.OFPFC_ADD,
            priority=9,
            actions=[parser.OFPActionOutput(2), parser.OFPActionStripVlan()],
        )
    )
else:
    match = parser.OFPMatch(
        eth_type=0x0800,
        ip_proto=6,
        ipv4_src=("10.1.0.0", "255.255.0.0"),
        tcp_dst=80,
        metadata=(5, 0xFF),
    )
    actions = [parser.OFPActionSetField(ipv4_dst="10.9.9.9"), parser.OFPActionOutput(2)]
    instructions = [
        parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions),
        parser.OFPInstructionGotoTable(3),
    ]
    send(parser.OFPFlowMod(datapath, cookie=7, priority=9, match=match, instructions=instructions))
ask(parser.OFPBarrierRequest(datapath))


def flow(answer):
    (stats,) = answer.body
    if version == 1:
        return (
            f"{stats.cookie} {stats.priority} {stats.match.nw_src} {stats.match.tp_dst} "
            f"{[action.port for action in stats.actions if hasattr(action, 'port')]}"
        )
    names = [type(action).__name__ for action in stats.instructions[0].actions]
    return (
        f"{stats.cookie} {stats.priority} {sorted(stats.match.items())} {names} "
        f"{stats.instructions[1].table_id}"
    )


if version == 1:
    ask(parser.OFPFlowStatsRequest(datapath, 0, parser.OFPMatch(), 0xFF, ofp.OFPP_NONE), flow)
    ask(
        parser.OFPAggregateStatsRequest(datapath, 0, parser.OFPMatch(), 0xFF, ofp.OFPP_NONE),
        lambda answer: f"{answer.body[0].flow_count}",
    )
    ask(parser.OFPDescStatsRequest(datapath, 0), lambda answer: f"{answer.body.mfr_desc}")
    ask(
        parser.OFPPortStatsRequest(datapath, 0, ofp.OFPP_NONE),
        lambda answer: f"{[(p.port_no, p.rx_packets) for p in answer.body]}",
    )
    ask(parser.OFPTableStatsRequest(datapath, 0), lambda answer: f"{len(answer.body)}")
    ask(
        parser.OFPFlowMod(datapath, parser.OFPMatch(), 0, ofp.OFPFC_ADD, priority=666, actions=[]),
        lambda answer: f"{answer.type} {answer.code}",
    )
else:
    flow_request = getattr(parser, "OFPFlowDescStatsRequest", None) or parser.OFPFlowStatsRequest
    ask(flow_request(datapath), flow)
    ask(parser.OFPDescStatsRequest(datapath), lambda answer: f"{answer.body.mfr_desc}")
    ask(
        parser.OFPPortStatsRequest(datapath, flags=0, port_no=ofp.OFPP_ANY),
        lambda answer: f"{[(p.port_no, p.rx_packets) for p in answer.body]}",
    )
    if version >= 4:
        if version < 6:
            ask(
                parser.OFPAggregateStatsRequest(
                    datapath, 0, ofp.OFPTT_ALL, ofp.OFPP_ANY, ofp.OFPG_ANY, 0, 0, parser.OFPMatch()
                ),
                lambda answer: f"{answer.body.flow_count}",
            )
        ask(
            parser.OFPPortDescStatsRequest(datapath),
            lambda answer: f"{[(p.port_no, p.name) for p in answer.body]}",
        )
        ask(parser.OFPTableStatsRequest(datapath, 0), lambda answer: f"{len(answer.body)}")
        ask(parser.OFPGroupFeaturesStatsRequest(datapath, 0), lambda answer: f"{answer.body.types}")
        if version < 6:  # in 1.5 the answer has Open vSwitch's length, not os-ken's
            ask(
                parser.OFPMeterFeaturesStatsRequest(datapath, 0),
                lambda answer: f"{answer.body[0].max_meter}",
            )
        ask(
            parser.OFPRoleRequest(
                datapath,
                role=ofp.OFPCR_ROLE_MASTER,
                generation_id=3,
                **({"short_id": 0} if version == 6 else {}),
            ),
            lambda answer: f"{answer.role} {answer.generation_id}",
        )
        ask(parser.OFPGetAsyncRequest(datapath))
    ask(parser.OFPFlowMod(datapath, priority=666), lambda answer: f"{answer.type} {answer.code}")
print("done")
