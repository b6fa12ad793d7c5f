#!/usr/bin/env python3
"""A controller for steering: chooses a mode for each host, makes senders write the virtual
machine's id into the outer header of their tunnels (SET_FCF), and adds an entry for it to the
receiving host's steering table. docs/protocol-extensions.md describes the messages.

    VSE_NETWORK=network.json osken-manager examples/vse_controller.py

The network file has what a cloud's database would know: for each host, by its bridge's datapath
id, the tunnel port to each other host; for each virtual machine, by its id, its MAC address.

    {"hosts": {"1": {"tunnels": {"2": "vx0"}}, "2": {"tunnels": {"1": "vx0"}}},
     "vms": {"5": {"mac": "02:00:00:00:00:05"}}}

The switches report where virtual machines are (`external_ids:vm-id` of interfaces). All other
traffic is forwarded by NORMAL. A virtual machine whose id does not fit its host's layout is steered
by the inner header instead, which is not readable in fragments and encrypted tunnels.
"""

import json
import os
import struct

from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    HANDSHAKE_DISPATCHER,
    MAIN_DISPATCHER,
    set_ev_cls,
)
from os_ken.ofproto import ofproto_v1_3

EXPERIMENTER = 0x0002534C
(CAPABILITIES_REQUEST, CAPABILITIES_REPLY, MODE_REQUEST, MODE_REPLY, VM_STATUS, STEERING_MOD) = (
    range(1, 7)
)
SET_FCF, STEER = 1, 2
MODES = ("off", "rss", "adaptive", "auto")
STARTED, MOVED, STOPPED = range(3)
ADD, DELETE = 0, 2
PER_ENTRY = 1
RSS, WORKERS = 1, 16
LAYOUTS = {1: 31, 2: 127, 3: 4094}  # the highest VM id that fits each layout
NO_CORE, NO_VM = 0xFFFFFFFF, 0xFFFF
PRECEDENCE = 100


class Host:
    """A connected switch: its abilities, and its ports' numbers."""

    def __init__(self, datapath):
        self.datapath = datapath
        self.layout, self.devices, self.ports, self.ready = 0, [], {}, False


class Vm:
    """Where a virtual machine is, and what was installed for it."""

    def __init__(self, host, priority, tenant):
        self.host, self.priority, self.tenant = host, priority, tenant


class VseController(app_manager.OSKenApp):
    """The application."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with open(os.environ["VSE_NETWORK"], encoding="utf-8") as file:
            network = json.load(file)
        self.tunnels = {
            int(host): {int(peer): port for peer, port in entry["tunnels"].items()}
            for host, entry in network["hosts"].items()
        }
        self.macs = {int(vm): entry["mac"] for vm, entry in network["vms"].items()}
        self.hosts, self.vms = {}, {}

    # Incoming messages.

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def connected(self, event):
        """Handles a new switch: adds a rule for NORMAL, and requests its ports and abilities."""
        datapath = event.msg.datapath
        self.hosts[datapath.id] = Host(datapath)
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        normal = [parser.OFPActionOutput(ofproto.OFPP_NORMAL)]
        self.rule(datapath, ofproto.OFPFC_ADD, 0, parser.OFPMatch(), normal)
        datapath.send_msg(parser.OFPPortDescStatsRequest(datapath, 0))
        self.tell(datapath, CAPABILITIES_REQUEST)

    @set_ev_cls(ofp_event.EventOFPStateChange, DEAD_DISPATCHER)
    def gone(self, event):
        """Handles a lost connection: the switch keeps its rules until it returns."""
        if event.datapath.id in self.hosts:
            del self.hosts[event.datapath.id]

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def ports(self, event):
        """Stores the ports' numbers by name."""
        host = self.hosts[event.msg.datapath.id]
        host.ports.update({port.name.decode(): port.port_no for port in event.msg.body})
        self.install_all()

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port(self, event):
        """Handles a port that was added, deleted or changed."""
        message, host = event.msg, self.hosts.get(event.msg.datapath.id)
        if host is None:
            return
        if message.reason == message.datapath.ofproto.OFPPR_DELETE:
            host.ports.pop(message.desc.name.decode(), None)
        else:
            host.ports[message.desc.name.decode()] = message.desc.port_no
            if message.reason == message.datapath.ofproto.OFPPR_ADD:
                self.install_all()

    @set_ev_cls(
        ofp_event.EventOFPErrorMsg, [HANDSHAKE_DISPATCHER, CONFIG_DISPATCHER, MAIN_DISPATCHER]
    )
    def refused(self, event):
        """Logs an error; for a message inside a packet-out, the data is that message."""
        message = event.msg
        self.logger.error(
            "host %s refuses: type %s code %s xid %s: %s",
            message.datapath.id,
            message.type,
            message.code,
            message.xid,
            message.data[:64].hex(),
        )

    @set_ev_cls(ofp_event.EventOFPExperimenter, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def heard(self, event):
        """Handles a message of the extension."""
        message = event.msg
        host = self.hosts.get(message.datapath.id)
        if message.experimenter != EXPERIMENTER or host is None:
            return
        if message.exp_type == CAPABILITIES_REPLY:
            self.capabilities(host, message.data)
        elif message.exp_type == MODE_REPLY:
            mode, source, _ = struct.unpack_from("!BBB", message.data)
            self.logger.info(
                "host %s: mode %s by %s",
                message.datapath.id,
                MODES[mode],
                ("nobody", "a controller", "the database")[source],
            )
        elif message.exp_type == VM_STATUS:
            reason, flags, vm, _, tenant, _ = struct.unpack_from("!BBHIII", message.data)
            self.vm_status(message.datapath.id, reason, vm, bool(flags & 1), tenant)

    def capabilities(self, host, data):
        """Reads a host's abilities and chooses its mode."""
        cores, workers, _, _, _, host.layout, abilities = struct.unpack_from("!HHBBBBI", data)
        host.devices = []
        for place in range(16, len(data), 24):
            name, _, layout, flags = struct.unpack_from("!16sBBB", data, place)
            # An entry for the field is useful only if the device reads the layout in use.
            host.devices.append((name.rstrip(b"\0"), layout, bool(flags & 1)))
        if workers < 2:
            mode = "off"
        elif abilities & RSS or not abilities & WORKERS:
            mode = "rss"
        else:
            mode = "adaptive"
        self.logger.info(
            "host %s: %s cores, %s workers, layout %s, devices %s: %s",
            host.datapath.id,
            cores,
            workers,
            host.layout,
            host.devices,
            mode,
        )
        self.tell(host.datapath, MODE_REQUEST, struct.pack("!B7x", MODES.index(mode)))
        host.ready = True
        self.install_all()

    def vm_status(self, where, reason, vm, priority, tenant):
        """Handles a virtual machine that has started, moved or stopped on a host."""
        self.logger.info(
            "host %s: VM %s %s, priority %s",
            where,
            vm,
            ("started", "moved", "stopped")[reason],
            priority,
        )
        known = self.vms.get(vm)
        if reason == STOPPED:
            self.entry(where, vm, DELETE)
            # It may have started elsewhere already.
            if known and known.host == where:
                self.senders(vm, install=False)
                del self.vms[vm]
            return
        if known and known.host != where:
            self.entry(known.host, vm, DELETE)
        self.vms[vm] = Vm(where, priority, tenant)
        self.install(vm)

    # Outgoing messages.

    def install_all(self):
        """Installs rules and entries of all known virtual machines, replacing existing ones."""
        for vm in self.vms:
            self.install(vm)

    def install(self, vm):
        """Installs the receiver's entry first, so that it knows the packets that senders mark."""
        self.entry(self.vms[vm].host, vm, ADD)
        self.senders(vm, install=True)

    def fits(self, vm):
        """Returns whether a virtual machine's id fits its host's layout."""
        host = self.hosts.get(self.vms[vm].host)
        return host is not None and vm <= LAYOUTS.get(host.layout, 0)

    def senders(self, vm, install):
        """Makes all other hosts send traffic for it through the tunnel to its host, marked."""
        if vm not in self.macs:
            return self.logger.warning("VM %s: its MAC address is not known", vm)
        there = self.vms[vm].host
        for number, host in self.hosts.items():
            port = host.ports.get(self.tunnels.get(number, {}).get(there))
            datapath = host.datapath
            parser, ofproto = datapath.ofproto_parser, datapath.ofproto
            match = parser.OFPMatch(eth_dst=self.macs[vm])
            if number == there or not install:
                self.rule(datapath, ofproto.OFPFC_DELETE_STRICT, PRECEDENCE, match, [])
                continue
            if port is None or not host.ready:
                continue
            actions = [parser.OFPActionOutput(port)]
            # If the id does not fit here or there, packets are sent without the field.
            if self.fits(vm) and vm <= LAYOUTS.get(host.layout, 0):
                fcf = struct.pack("!HHB3x", SET_FCF, vm, self.vms[vm].priority)
                actions.insert(0, parser.OFPActionExperimenterUnknown(EXPERIMENTER, fcf))
            self.rule(datapath, ofproto.OFPFC_ADD, PRECEDENCE, match, actions, cookie=vm)

    def entry(self, number, vm, command):
        """Changes a virtual machine's entry in the steering tables of its host's devices."""
        host = self.hosts.get(number)
        if host is None:
            return
        known = self.vms.get(vm)
        priority = bool(known and known.priority)
        for name, layout, trusted in host.devices:
            if trusted and layout == host.layout and vm <= LAYOUTS.get(layout, 0):
                match = f"fcf_vm={vm}"
            elif vm in self.macs:
                match = f"udp,tp_dst=4789,inner_dl_dst={self.macs[vm]}"
            else:
                continue
            text = match.encode()
            body = (
                struct.pack(
                    "!QBBHIHHHHH",
                    vm,
                    command,
                    PER_ENTRY,
                    PRECEDENCE,
                    NO_CORE,
                    0,
                    0,
                    vm,
                    priority,
                    len(text),
                )
                + text
            )
            self.proxy(host.datapath, name, body + bytes(-len(body) % 8))

    def proxy(self, datapath, device, body):
        """Sends a change of a device's steering table through its host's switch, and a barrier."""
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        inner = (
            struct.pack(
                "!BBHIII",
                ofproto.OFP_VERSION,
                ofproto.OFPT_EXPERIMENTER,
                16 + len(body),
                0,
                EXPERIMENTER,
                STEERING_MOD,
            )
            + body
        )
        steer = struct.pack("!HBx16s4x", STEER, 1, device)
        datapath.send_msg(
            parser.OFPPacketOut(
                datapath,
                ofproto.OFP_NO_BUFFER,
                ofproto.OFPP_CONTROLLER,
                [parser.OFPActionExperimenterUnknown(EXPERIMENTER, steer)],
                inner,
            )
        )
        datapath.send_msg(parser.OFPBarrierRequest(datapath))

    @staticmethod
    def tell(datapath, kind, body=b""):
        """Sends a message of the extension."""
        datapath.send_msg(
            datapath.ofproto_parser.OFPExperimenter(datapath, EXPERIMENTER, kind, body)
        )

    @staticmethod
    def rule(datapath, command, priority, match, actions, cookie=0):
        """Adds or deletes a rule of the first table."""
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        apply = parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath,
                cookie=cookie,
                command=command,
                priority=priority,
                match=match,
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
                instructions=[apply] if actions else [],
            )
        )
