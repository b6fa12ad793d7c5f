//! Arguments of a trace: which packet to follow, and where it comes in.

use super::super::compose::compose;
use super::super::datapaths::{self, Numbers};
use super::super::odp;
use crate::switch::{Bridge, Switch};
use openflow::parse;
use openflow::port::{self, PortNo};
use packet::key::at;
use packet::{FlowKey, Match};
use std::rc::Rc;

/// Most bytes behind a transport header (`--l7-len`).
const PAYLOAD_MAX: usize = 64_000;
/// Shortest packet.
const ETHERNET: usize = 14;
/// Longest packet.
const LONGEST: usize = 65_535 + ETHERNET;

/// A parsed request.
pub(super) struct Request {
    /// The bridge that receives the packet.
    pub bridge: Rc<Bridge>,
    /// The packet's key; its headers are those of the frame. An Ethertype of zero means that the
    /// flow did not name one.
    pub key: FlowKey,
    /// The packet's bytes.
    pub frame: Vec<u8>,
    /// Whether a real packet is traced and not only a flow; only then addresses are learned.
    pub given: bool,
    /// Whether ports are written by name.
    pub names: bool,
    /// The connection states that `ct` actions find, one after the other.
    pub states: Vec<u32>,
}

impl Request {
    pub fn in_port(&self) -> PortNo {
        self.key.u32(at::IN_PORT)
    }
}

/// Options of the command.
#[derive(Default)]
struct Options<'w> {
    generate: bool,
    names: bool,
    states: Vec<u32>,
    words: Vec<&'w str>,
}

/// Reads the arguments; the errors are Open vSwitch's.
pub(super) fn read(
    switch: &Switch,
    numbers: &Numbers,
    words: &[String],
    packet_out: bool,
) -> Result<Request, String> {
    let Options {
        generate,
        names,
        states,
        mut words,
    } = options(words, packet_out)?;
    let mut packet = None;
    if !generate && words.len() > 1 {
        match hexadecimal(words[words.len() - 1]) {
            Ok(bytes) => {
                packet = Some(bytes);
                words.pop();
            }
            Err(error) if words.len() > 2 => return Err(error),
            Err(_) => {}
        }
    }
    let (place, flow) = match words[..] {
        [place, flow] => (Some(place), flow),
        [flow] => (None, flow),
        _ => return Err("Syntax error".into()),
    };
    let given = generate || packet.is_some();
    let (bridge, mut key, frame) = match datapath_flow(flow) {
        Ok(parsed) => {
            let datapath = datapaths::named(switch, place).ok_or("Cannot find the datapath")?;
            let (bridge, in_port) = datapath_port(switch, numbers, &datapath, flow)?;
            let mut key = metadata(flow);
            key.set_u32(at::IN_PORT, in_port);
            // Open vSwitch notes a frame without an Ethertype (802.2) as type 1 in this form.
            key.set_u16(at::ETH_TYPE, 1);
            (bridge, key, compose(&parsed, None)?)
        }
        Err(error) => {
            let Some(name) = place else {
                return Err(format!("{error} (or the bridge name was omitted)"));
            };
            let bridge = switch
                .bridge(name)
                .ok_or_else(|| format!("{name}: unknown bridge"))?;
            let ports = |name: &str| bridge.number_of(name).map(port::from_u16);
            let matching = parse::packet(flow, &ports)
                .map_err(|error| format!("Bad openflow flow syntax: {error}"))?;
            // Only options that the bridge's map has are in the packet.
            let key = key_of(&bridge.with_places(&matching));
            let frame = compose(&flow_of(&key), None)?;
            (bridge, key, frame)
        }
    };
    let frame = match packet {
        Some(bytes) => {
            key.set_u16(at::ETH_TYPE, 1);
            bytes
        }
        None => frame,
    };
    Ok(Request {
        bridge,
        key,
        frame,
        given,
        names,
        states,
    })
}

fn options(words: &[String], packet_out: bool) -> Result<Options<'_>, String> {
    let mut options = Options::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let mut argument = || {
            rest.next()
                .ok_or_else(|| format!("Missing argument for option {word}"))
        };
        match word.as_str() {
            "-generate" | "--generate" => options.generate = true,
            "--names" => options.names = true,
            "--no-names" => options.names = false,
            "-consistent" | "--consistent" if packet_out => {}
            "--ct-next" => options.states.push(connection_state(argument()?)?),
            "--l7" => {
                _ = hexadecimal_bytes(argument()?).ok_or("Trailing garbage in packet data")?
            }
            "--l7-len" => {
                let length = argument()?;
                if length
                    .parse::<usize>()
                    .is_ok_and(|length| length > PAYLOAD_MAX)
                {
                    return Err(format!("{length}: too much L7 data"));
                }
            }
            word if word.starts_with('-') => return Err(format!("{word}: unknown option")),
            _ if options.words.len() >= 3 => return Err("too many arguments".into()),
            word => options.words.push(word),
        }
    }
    Ok(options)
}

/// Reads the connection state that the next `ct` action finds.
fn connection_state(text: &str) -> Result<u32, String> {
    const NEW: u32 = 1;
    const EST: u32 = 2;
    const RPL: u32 = 8;
    const INV: u32 = 16;
    const TRK: u32 = 32;
    let state = parse::ct_state(text).map_err(|error| error.to_string())?;
    let has = |bits: u32| state & bits == bits;
    let why = match state {
        0 => return Ok(state),
        _ if !has(TRK) => "If \"trk\" is unset, no other flags are set",
        _ if has(INV) && state & !(TRK | INV) != 0 => {
            "when \"inv\" is set, only \"trk\" may also be set"
        }
        _ if has(NEW | EST) => "\"new\" and \"est\" are mutually exclusive",
        _ if has(NEW | RPL) => "\"new\" and \"rpl\" are mutually exclusive",
        _ => return Ok(state),
    };
    Err(format!("{text}: invalid connection state: {why}"))
}

fn hexadecimal_bytes(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let pair = |pair: &[u8]| match pair {
        [high, low] => {
            let digit = |byte: &u8| char::from(*byte).to_digit(16);
            Some((digit(high)? << 4 | digit(low)?) as u8)
        }
        _ => None,
    };
    digits.chunks(2).map(pair).collect()
}

/// Reads a packet in hexadecimal digits.
fn hexadecimal(text: &str) -> Result<Vec<u8>, String> {
    match hexadecimal_bytes(text) {
        None => Err("Trailing garbage in packet data".into()),
        Some(bytes) if bytes.len() < ETHERNET => Err("Packet data too short for Ethernet".into()),
        Some(bytes) if bytes.len() > LONGEST => Err("Packet data too long for Ethernet".into()),
        Some(bytes) => Ok(bytes),
    }
}

fn datapath_flow(text: &str) -> Result<odp::Flow, String> {
    odp::Flow::parse(text)
}

/// Returns the value of `name(...)` in a datapath flow.
fn attribute<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ', '\t', '\n']);
        let open = rest.find('(')?;
        let close = open + rest[open..].find(')')?;
        if &rest[..open] == name {
            return Some(&rest[open + 1..close]);
        }
        rest = &rest[close + 1..];
    }
}

/// Reads a datapath flow's metadata.
fn metadata(text: &str) -> FlowKey {
    let mut key = FlowKey::ZERO;
    let number = |name| attribute(text, name).and_then(odp::number);
    key.set_u32(at::PKT_MARK, number("skb_mark").unwrap_or(0) as u32);
    key.set_u32(at::SKB_PRIORITY, number("skb_priority").unwrap_or(0) as u32);
    key.set_u32(at::DP_HASH, number("dp_hash").unwrap_or(0) as u32);
    key
}

/// Returns the bridge and port that a datapath's port number stands for.
fn datapath_port(
    switch: &Switch,
    numbers: &Numbers,
    datapath: &str,
    flow: &str,
) -> Result<(Rc<Bridge>, PortNo), String> {
    // Nothing recirculates, so no datapath flow comes from the middle of a pipeline.
    match attribute(flow, "recirc_id").and_then(odp::number) {
        None | Some(0) => {}
        Some(id) => return Err(format!("no recirculation data for recirc_id {id:#x}")),
    }
    let Some(named) = attribute(flow, "in_port") else {
        return Err("no OpenFlow port for datapath port 4294967295".into());
    };
    numbers.refresh(switch);
    for bridge in datapaths::bridges_of(switch, datapath) {
        let found = bridge.ports.borrow().values().find_map(|port| {
            let number = numbers.of(port)?;
            (odp::number(named) == Some(number.into()) || port.config.interface_name == named)
                .then(|| port.openflow_number())
        });
        if let Some(number) = found {
            return Ok((bridge, number));
        }
    }
    Err(format!("no OpenFlow port for datapath port {named}"))
}

/// Makes a key of a flow's match; without `in_port`, or with `in_port=0`, it has no ingress port.
fn key_of(matching: &Match) -> FlowKey {
    let mut key = FlowKey::ZERO;
    for word in matching.words() {
        let place = &mut key.words[usize::from(word.word)];
        *place = *place & !word.mask | word.value;
    }
    if key.u32(at::IN_PORT) == 0 {
        key.set_u32(at::IN_PORT, port::ANY);
    }
    key
}

/// Returns the packet that a key describes, as a datapath flow.
fn flow_of(key: &FlowKey) -> odp::Flow {
    let mac = |offset: usize| {
        let mut bytes = [0; 6];
        bytes.copy_from_slice(&key.bytes()[offset..offset + 6]);
        bytes
    };
    let ipv6 = |offset: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&key.bytes()[offset..offset + 16]);
        bytes.into()
    };
    let fragment = match key.u8(at::IP_FRAG) & 3 {
        0 => odp::Fragment::No,
        1 => odp::Fragment::First,
        _ => odp::Fragment::Later,
    };
    let protocol = key.u8(at::IP_PROTO);
    let network = match key.u16(at::ETH_TYPE) {
        0x0800 => odp::Network::Ipv4 {
            src: key.u32(at::IPV4_SRC).into(),
            dst: key.u32(at::IPV4_DST).into(),
            protocol,
            tos: key.u8(at::IP_TOS),
            ttl: key.u8(at::IP_TTL),
            fragment,
        },
        0x86dd => odp::Network::Ipv6 {
            src: ipv6(at::IPV6_SRC),
            dst: ipv6(at::IPV6_DST),
            label: key.u32(at::IPV6_LABEL) & 0xfffff,
            protocol,
            class: key.u8(at::IP_TOS),
            hop_limit: key.u8(at::IP_TTL),
            fragment,
        },
        0x0806 | 0x8035 => odp::Network::Arp {
            spa: key.u32(at::IPV4_SRC).into(),
            tpa: key.u32(at::IPV4_DST).into(),
            operation: protocol.into(),
            sha: mac(at::ARP_SHA),
            tha: mac(at::ARP_THA),
        },
        0x8847 | 0x8848 => odp::Network::Mpls(key.u32(at::MPLS_LSE)),
        _ => odp::Network::None,
    };
    let tags = [at::VLAN_TCI, at::VLAN_TCI2].map(|offset| key.u16(offset));
    let neighbour = (key.u16(at::ETH_TYPE) == 0x86dd && protocol == 58).then(|| odp::Neighbour {
        target: ipv6(at::ND_TARGET),
        sll: mac(at::ARP_SHA),
        tll: mac(at::ARP_THA),
        // A flow has both addresses, so that actions that write them are shown.
        with_options: true,
    });
    odp::Flow {
        src: mac(at::ETH_SRC),
        dst: mac(at::ETH_DST),
        tags: tags
            .into_iter()
            .filter(|tci| tci & 0x1000 != 0)
            .map(|tci| (0x8100, tci & !0x1000))
            .collect(),
        eth_type: match key.u16(at::ETH_TYPE) {
            0 | 0x05ff => None,
            eth_type => Some(eth_type),
        },
        network,
        transport: odp::Transport {
            src: key.u16(at::TP_SRC),
            dst: key.u16(at::TP_DST),
        },
        tcp_flags: key.u16(at::TCP_FLAGS),
        neighbour,
    }
}
