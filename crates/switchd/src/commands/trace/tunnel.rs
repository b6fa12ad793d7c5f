//! Traces a packet into a tunnel, and out of one.

use super::actions::{Actions, Headers};
use super::print::{LineType, Node};
use super::walk::{Here, Walk};
use datapath::tunnel::{Carries, TunnelSpec};
use datapath::{BridgeId, PortId};
use packet::key::at;
use packet::parse::{self, PACKET_WORDS};
use packet::tunnel::{
    Addresses, GeneveOptions, Header, HeaderSpec, OptionBuffer, PerPacket, TunnelInfo, TunnelKind,
    outer_tos, outer_ttl, strip_ethernet,
};
use packet::{FlowKey, Frame, HeapFrame};
use pipeline::reference::Sent;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use underlay::{Hop, Mac, Unresolved};

fn mac(bytes: Mac) -> String {
    let digits = bytes.map(|byte| format!("{byte:02x}"));
    digits.join(":")
}

/// Formats a number like C's `%#x`.
fn hexadecimal(number: u64) -> String {
    match number {
        0 => "0".into(),
        number => format!("{number:#x}"),
    }
}

impl Walk<'_> {
    /// Puts a tunnel's outer headers in front of the packet and goes on in the underlay's bridge.
    pub(super) fn tunnel(
        &mut self,
        port: PortId,
        sent: &Sent,
        key: &FlowKey,
        now: &Headers,
        here: &Here<'_>,
        out: &mut Vec<Node>,
    ) {
        let spec = {
            let ports = here.bridge.ports.borrow();
            let port = ports.values().find(|other| other.id == port);
            port.and_then(|port| port.config.tunnel.clone())
        };
        let Some(spec) = spec else { return };
        let info = match spec.reads_packets() {
            true => TunnelInfo::from_key(key),
            false => TunnelInfo::default(),
        };
        let Some((local, remote)) = spec.ends_of(&info) else {
            let text = "Not tunneling to our own address";
            return out.push(Node::new(LineType::Warning, text));
        };
        out.push(Node::new(LineType::Detail, "output to native tunnel"));
        let view = self
            .switch
            .with_datapath(|datapath| datapath.underlay().cloned());
        let Some(view) = view.ok().flatten() else {
            return out.push(Node::new(LineType::Warning, "native tunnel routing failed"));
        };
        let found = view.resolve(remote, local, spec.mark);
        let device = match &found {
            Ok(hop) => hop.device,
            Err(Unresolved::Neighbour { device, .. }) => *device,
            Err(Unresolved::NoRoute) => {
                return out.push(Node::new(LineType::Warning, "native tunnel routing failed"));
            }
        };
        let Some(name) = view.device(device).map(|device| device.name.clone()) else {
            return;
        };
        let detail = |text: String| Node::new(LineType::Detail, text);
        out.push(detail(format!("tunneling to {remote} via {name}")));
        let hop = match found {
            Ok(hop) => hop,
            Err(unresolved) => {
                if let Unresolved::Neighbour { address, .. } = unresolved {
                    let question = if address.is_ipv4() { "ARP" } else { "ND" };
                    out.push(detail(format!(
                        "neighbor cache miss for {address} on bridge {name}, sending {question} request"
                    )));
                }
                return;
            }
        };
        out.push(detail(format!(
            "tunneling from {} {} to {} {remote}",
            mac(hop.eth_src),
            hop.source,
            mac(hop.eth_dst)
        )));
        self.actions.commit(now);
        let Some((outer, header)) = self.with_header(&spec, &hop, remote, &info, sent, key, here)
        else {
            return;
        };
        let Some(bridge) = self.switch.bridge(&name) else {
            return;
        };
        let shared = self.datapath_port(here.bridge, port);
        let local_id = {
            let ports = bridge.ports.borrow();
            let local = ports.get(&crate::config::ofport::LOCAL);
            local.map(|local| local.id)
        };
        let Some(local_id) = local_id else { return };
        let own = self.datapath_port(&bridge, local_id);
        let push = format!("tnl_push(tnl_port({shared}),header({header}),out_port({own}))");
        // Actions of the underlay's bridge are listed inside the push.
        let at_end = self.at_end;
        let inner = Actions::new(Headers::of(&outer, &FlowKey::ZERO));
        let before = std::mem::replace(&mut self.actions, inner);
        let sent = Sent {
            in_port: openflow::port::LOCAL,
            queue: None,
            bytes: outer,
        };
        // A tunnel counts twice against the limit of bridges in a trace.
        self.walks += 1;
        self.patch(bridge.id, openflow::port::LOCAL, &sent, &FlowKey::ZERO, out);
        let under = std::mem::replace(&mut self.actions, before).list;
        if under.is_empty() {
            return;
        }
        let under = under.join(",");
        if spec.carries == Carries::Packets {
            self.actions.list.push("pop_eth".into());
        }
        self.actions.list.push(match at_end {
            true => format!("{push},{under}"),
            false => format!("clone({push},{under})"),
        });
    }

    /// Returns the packet with its outer headers, and these as Open vSwitch's datapath action. None
    /// if the packet cannot have them.
    #[allow(clippy::too_many_arguments)] // what is known of one packet
    fn with_header(
        &self,
        spec: &TunnelSpec,
        hop: &Hop,
        remote: IpAddr,
        info: &TunnelInfo,
        sent: &Sent,
        key: &FlowKey,
        here: &Here<'_>,
    ) -> Option<(Vec<u8>, String)> {
        let mut frame = HeapFrame::new(&sent.bytes);
        let mut inner = FlowKey::ZERO;
        let layers = parse::parse_frame(&mut frame, 0, PACKET_WORDS, &mut inner);
        let eth_type = inner.u16(at::ETH_TYPE);
        let is_ip = matches!(eth_type, 0x0800 | 0x86dd);
        let carried = match spec.carries {
            Carries::Frames => 0,
            Carries::Packets => eth_type,
        };
        if carried != 0 && !(is_ip && strip_ethernet(&mut frame, layers.l3.into())) {
            return None;
        }
        let header = spec.header(hop, remote, carried)?;
        let map = here.bridge.option_map();
        let options = match spec.reads_packets() {
            true => OptionBuffer::from_key(&map[..], key).unwrap_or_default(),
            false => OptionBuffer::new(),
        };
        let packet = PerPacket {
            id: spec.key_of(info),
            tos: outer_tos(spec.tos, is_ip.then(|| inner.u8(at::IP_TOS))),
            ttl: outer_ttl(spec.ttl, is_ip.then(|| inner.u8(at::IP_TTL))),
            options: options.options(),
            ..PerPacket::of(info)
        };
        let prepared = Header::new(&header).ok()?;
        prepared.push(&mut frame, &packet).ok()?;
        let size = prepared.header_len() + packet.options.bytes().len();
        let text = described(&header, &packet, size);
        Some((frame.to_vec(), text))
    }

    /// Returns the datapath's port of the tunnels that claim this packet, if it is sent to a local
    /// port.
    pub(super) fn taken_by(&self, bridge: BridgeId, number: u32, frame: &[u8]) -> Option<String> {
        if number != openflow::port::LOCAL {
            return None;
        }
        let (kind, dst_port) = self
            .switch
            .with_datapath(|datapath| datapath.tunnels_for(bridge, frame))
            .ok()??;
        let bridges = self.switch.bridges.borrow();
        bridges.values().find_map(|bridge| {
            let ports = bridge.ports.borrow();
            let tunnel = ports.values().find(|port| {
                let spec = port.config.tunnel.as_ref();
                spec.is_some_and(|spec| spec.kind == kind && spec.dst_port == dst_port)
            });
            tunnel.map(|port| self.datapath_port(bridge, port.id))
        })
    }
}

/// Formats outer headers as Open vSwitch's datapath does (`format_odp_tnl_push_header`).
fn described(spec: &HeaderSpec, packet: &PerPacket<'_>, size: usize) -> String {
    let kind = spec.kind;
    let number = match kind {
        TunnelKind::Gre | TunnelKind::Nvgre => 3,
        TunnelKind::Vxlan { .. } => 4,
        TunnelKind::Geneve => 5,
        TunnelKind::Stt => 106,
        TunnelKind::Ip6Gre => 109,
        TunnelKind::Gtpu => 110,
    };
    let (protocol, is_udp) = (kind.ip_protocol(), kind.is_udp());
    let eth_type = if spec.addresses.is_ipv6() {
        0x86dd
    } else {
        0x0800
    };
    let mut text = format!(
        "size={size},type={number},eth(dst={},src={},dl_type=0x{eth_type:04x}),",
        mac(spec.eth_dst),
        mac(spec.eth_src)
    );
    let PerPacket { tos, ttl, id, .. } = *packet;
    let tos = hexadecimal(tos.into());
    let _ = match spec.addresses {
        Addresses::V4 { src, dst } => write!(
            text,
            "ipv4(src={},dst={},proto={protocol},tos={tos},ttl={ttl},frag=0x{:x}),",
            Ipv4Addr::from(src),
            Ipv4Addr::from(dst),
            if spec.df { 0x4000 } else { 0 }
        ),
        Addresses::V6 { src, dst } => write!(
            text,
            "ipv6(src={},dst={},label=0,proto={protocol},tclass=0x{:x},hlimit={ttl}),",
            Ipv6Addr::from(src),
            Ipv6Addr::from(dst),
            packet.tos
        ),
    };
    if is_udp {
        let sum = if spec.checksum || spec.addresses.is_ipv6() {
            0xffff
        } else {
            0
        };
        let _ = write!(text, "udp(src=0,dst={},csum=0x{sum:x}),", spec.dst_port);
    }
    if kind == TunnelKind::Stt {
        let _ = write!(text, "tcp(src=0,dst={}),", spec.dst_port);
    }
    let _ = match kind {
        TunnelKind::Vxlan { gbp } => {
            let policy = gbp && (packet.gbp_id != 0 || packet.gbp_flags != 0);
            let flags = match policy {
                true => 0x8800_0000 | u32::from(packet.gbp_flags) << 16 | u32::from(packet.gbp_id),
                false => 0x0800_0000,
            };
            write!(text, "vxlan(flags=0x{flags:x},vni=0x{id:x})")
        }
        TunnelKind::Geneve => write!(
            text,
            "geneve({}vni=0x{id:x}{})",
            marks(packet),
            listed(packet.options)
        ),
        TunnelKind::Stt => write!(text, "stt(id=0x{id:x})"),
        TunnelKind::Gtpu => write!(text, "gtpu(flags=0x30,msgtype=255,teid=0x{id:x})"),
        TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Nvgre => {
            let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
            let flags =
                bit(spec.checksum, 0x8000) | bit(spec.key, 0x2000) | bit(spec.sequence, 0x1000);
            let protocol = match spec.payload {
                packet::tunnel::Payload::Ethernet => 0x6558,
                packet::tunnel::Payload::Packet(eth_type) => eth_type,
            };
            let _ = write!(text, "gre((flags=0x{flags:x},proto=0x{protocol:x})");
            if spec.checksum {
                text += ",csum=0x0";
            }
            if spec.key {
                let id = if kind == TunnelKind::Nvgre {
                    id << 8
                } else {
                    id
                };
                let _ = write!(text, ",key=0x{id:x}");
            }
            if spec.sequence {
                text += ",seq=0x0";
            }
            write!(text, ")")
        }
    };
    text
}

/// Formats the flags of a Geneve header.
fn marks(packet: &PerPacket<'_>) -> String {
    let mut text = String::new();
    if packet.oam {
        text += "oam,";
    }
    if packet.options.has_critical() {
        text += "crit,";
    }
    text
}

/// Formats the options of a Geneve header.
fn listed(options: GeneveOptions<'_>) -> String {
    let mut text = String::new();
    for option in options.iter() {
        let value = option.body.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}");
            digits
        });
        let value = match value.trim_start_matches('0') {
            "" => "0",
            value => value,
        };
        let _ = write!(
            text,
            "{{class=0x{:x},type=0x{:x},len={},0x{value}}}",
            option.class,
            option.kind,
            option.body.len()
        );
    }
    match text.is_empty() {
        true => text,
        false => format!(",options({text})"),
    }
}
