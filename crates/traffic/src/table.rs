//! Builds frames of flows that are listed one by one, as those of a set of rules are: any headers,
//! in any order.
//!
//! A flow is a row of 64 bytes. Frames begin as the template of their kind (tag, family, protocol)
//! and length, in which all that a row has is zero; so writing a row and adding its sums to the
//! template's is all that is left, and takes the same time for all.

use crate::frames::{ETHERNET, IPV4, IPV6, Make, Maker, OUTER, Template, VLAN, fold};
use crate::plan::Problem;
use crate::rules::{Header, TCP, UDP, icmp_of};
use crate::spec::Headers;
use crate::stamp::{Layout, Stamp};
use std::sync::Arc;

/// Most flows of a list.
pub const ROWS_MAX: usize = 1 << 20;

/// A list of flows.
#[derive(Clone, Debug)]
pub struct Table {
    kinds: Arc<[FrameType]>,
    rows: Arc<[Row]>,
    /// Whether there is a tunnel, by whose outer source port receivers spread flows.
    has_tunnel: bool,
}

/// What frames of one kind have in common.
#[derive(Clone, Debug)]
struct FrameType {
    /// By size.
    templates: Vec<Template>,
    /// Where the inner Ethernet header begins, the IP header and the one above it.
    inner: usize,
    network: usize,
    transport: usize,
    has_tag: bool,
    six: bool,
    above: Above,
    layout: Layout,
    stamp_at: usize,
}

/// What is above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    Udp,
    Tcp,
    /// 8 bytes, as ICMP has, and the stamp behind them as behind UDP's header.
    Bare,
}

impl Above {
    fn of(protocol: u8) -> Above {
        match protocol {
            UDP => Above::Udp,
            TCP => Above::Tcp,
            _ => Above::Bare,
        }
    }
}

/// A flow.
#[derive(Clone, Copy, Debug)]
struct Row {
    src: [u8; 16],
    dst: [u8; 16],
    /// Destination and source.
    stations: [u8; 12],
    /// Both ports, or an ICMP message's type and code and nothing.
    ports: [u8; 4],
    vlan: [u8; 2],
    tos: u8,
    protocol: u8,
    flags: u8,
    /// The number of its kind.
    kind: u8,
    /// What it adds to the sum of the IPv4 header, and to that of the header above.
    ip: u32,
    above: u32,
}

/// Returns a number that tells kinds apart.
fn kind_of(header: &Header) -> u8 {
    (Above::of(header.protocol) as u8) << 2
        | u8::from(header.six) << 1
        | u8::from(header.vlan.is_some())
}

impl Table {
    /// Makes a table of flows, at least one and at most [`ROWS_MAX`], whose frames have these
    /// lengths and the tunnel of `headers`. `place` is the stream's in the spec, for errors.
    pub fn new(
        place: &str,
        headers: &Headers,
        sizes: &[u16],
        flows: &[Header],
    ) -> Result<Table, Problem> {
        let mut kinds = Vec::new();
        // Where a kind's number is in `kinds`.
        let mut places: [Option<u8>; 12] = [None; 12];
        let mut rows = Vec::with_capacity(flows.len());
        for flow in flows {
            let of = &mut places[usize::from(kind_of(flow))];
            let kind = match *of {
                Some(kind) => kind,
                None => {
                    kinds.push(FrameType::new(place, headers, sizes, flow)?);
                    *of.insert(kinds.len() as u8 - 1)
                }
            };
            rows.push(Row::new(flow, kind));
        }
        Ok(Table {
            kinds: kinds.into(),
            rows: rows.into(),
            has_tunnel: headers.tunnel.is_some(),
        })
    }

    /// Returns how many flows there are.
    pub fn count(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Returns where stamps begin, for each kind of frames.
    pub fn stamps_at(&self) -> Vec<usize> {
        self.kinds.iter().map(|kind| kind.stamp_at).collect()
    }

    /// Returns the layout of the stamps of frames whose payload begins at `at`.
    #[inline(always)]
    pub fn layout_at(&self, at: usize) -> Option<Layout> {
        // Frames of TCP have their payload elsewhere than all others, which have the same layout
        // where it begins at the same place.
        let mut kinds = self.kinds.iter();
        kinds
            .find(|kind| kind.stamp_at == at)
            .map(|kind| kind.layout)
    }
}

impl FrameType {
    /// Prepares the kind of a flow.
    fn new(
        place: &str,
        headers: &Headers,
        sizes: &[u16],
        flow: &Header,
    ) -> Result<FrameType, Problem> {
        let zero = if flow.six { "::" } else { "0.0.0.0" };
        let above = Above::of(flow.protocol);
        let empty = Headers {
            eth_src: "0:0:0:0:0:0".into(),
            eth_dst: "0:0:0:0:0:0".into(),
            vlan: flow.vlan.map(|_| 0),
            ip_src: zero.into(),
            ip_dst: zero.into(),
            protocol: if above == Above::Tcp { "tcp" } else { "udp" }.into(),
            port_src: 0,
            port_dst: 0,
            tos: 0,
            tunnel: headers.tunnel.clone(),
        };
        let maker = Maker::new(place, &empty, sizes, &[], 1)?;
        let (layout, stamp_at) = maker.layout();
        let inner = if headers.tunnel.is_some() { OUTER } else { 0 };
        let network = inner + ETHERNET + flow.vlan.map_or(0, |_| VLAN);
        let transport = network + if flow.six { IPV6 } else { IPV4 };
        let mut kind = FrameType {
            templates: maker.into_templates(),
            inner,
            network,
            transport,
            has_tag: flow.vlan.is_some(),
            six: flow.six,
            above,
            layout,
            stamp_at,
        };
        if above == Above::Bare {
            kind.strip();
        }
        if above == Above::Tcp {
            // The flags, which are a row's.
            for template in &mut kind.templates {
                template.bytes[transport + 13] = 0;
                template.transport += u64::from(!0x10_u16);
            }
        }
        Ok(kind)
    }

    /// Makes templates of UDP those of another protocol: a row has its number.
    fn strip(&mut self) {
        for template in &mut self.templates {
            let protocol = self.network + if self.six { 6 } else { 9 };
            template.bytes[protocol] = 0;
            template.bytes[self.transport..self.transport + 8].fill(0);
            template.ip += u64::from(!17_u16);
            // ICMPv6 sums the addresses, its length and its number (RFC 4443, section 2.3).
            let length = (template.bytes.len() - self.transport) as u64;
            template.transport = if self.six { length } else { 0 };
        }
    }
}

impl Row {
    fn new(flow: &Header, kind: u8) -> Row {
        let address = |address: u128| match flow.six {
            true => address.to_be_bytes(),
            false => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&(address as u32).to_be_bytes());
                bytes
            }
        };
        let mut stations = [0; 12];
        stations[..6].copy_from_slice(&flow.eth_dst.to_be_bytes()[2..]);
        stations[6..].copy_from_slice(&flow.eth_src.to_be_bytes()[2..]);
        let [src, dst] = [flow.port_src, flow.port_dst];
        let is_ported = matches!(flow.protocol, TCP | UDP);
        let ports = match is_ported {
            true => [src.to_be_bytes(), dst.to_be_bytes()].concat(),
            false => vec![src as u8, dst as u8, 0, 0],
        };
        let ports: [u8; 4] = ports.try_into().unwrap_or_default();
        let sum = |bytes: &[u8]| -> u64 {
            let words = bytes.chunks_exact(2);
            words
                .map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])))
                .sum()
        };
        let (from, to) = (address(flow.src), address(flow.dst));
        let addresses = sum(&from) + sum(&to);
        let protocol = match (is_ported, flow.six) {
            // The template has it.
            (true, _) => 0,
            (false, _) => u64::from(flow.protocol),
        };
        let pseudo = match (is_ported, flow.six) {
            (false, false) => 0,
            _ => addresses + protocol,
        };
        Row {
            src: from,
            dst: to,
            stations,
            ports,
            vlan: flow.vlan.unwrap_or(0).to_be_bytes(),
            tos: flow.tos,
            protocol: flow.protocol,
            flags: flow.flags,
            kind,
            ip: (u64::from(flow.tos) + addresses + protocol) as u32,
            above: (pseudo + sum(&ports) + u64::from(flow.flags)) as u32,
        }
    }
}

impl Make for Table {
    #[inline(always)]
    fn begin(&self, size: usize, flow: u64) -> &[u8] {
        let row = &self.rows[flow as usize];
        &self.kinds[usize::from(row.kind)].templates[size].bytes
    }

    #[inline(always)]
    fn finish(&self, size: usize, frame: &mut [u8], flow: u64, stamp: &Stamp) {
        let row = &self.rows[flow as usize];
        let kind = &self.kinds[usize::from(row.kind)];
        let template = &kind.templates[size];
        let (network, transport) = (kind.network, kind.transport);
        frame[kind.inner..kind.inner + 12].copy_from_slice(&row.stations);
        if kind.has_tag {
            frame[kind.inner + 14..kind.inner + 16].copy_from_slice(&row.vlan);
        }
        if kind.six {
            frame[network] = 0x60 | row.tos >> 4;
            frame[network + 1] = row.tos << 4;
            frame[network + 6] = row.protocol;
            frame[network + 8..network + 24].copy_from_slice(&row.src);
            frame[network + 24..network + 40].copy_from_slice(&row.dst);
        } else {
            frame[network + 1] = row.tos;
            frame[network + 9] = row.protocol;
            frame[network + 12..network + 16].copy_from_slice(&row.src[..4]);
            frame[network + 16..network + 20].copy_from_slice(&row.dst[..4]);
            let sum = !fold(template.ip + u64::from(row.ip));
            frame[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
        }
        frame[transport..transport + 4].copy_from_slice(&row.ports);
        let stamped = kind.layout.write(frame, kind.stamp_at, stamp);
        let checksum = !fold(template.transport + u64::from(row.above) + stamped);
        let at = match kind.above {
            Above::Udp => Some(6),
            Above::Tcp => {
                frame[transport + 13] = row.flags;
                Some(16)
            }
            Above::Bare if row.protocol == icmp_of(kind.six) => Some(2),
            Above::Bare => None,
        };
        if let Some(at) = at {
            let checksum = match (checksum, kind.above) {
                (0, Above::Udp) => 0xffff,
                _ => checksum,
            };
            frame[transport + at..transport + at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        if self.has_tunnel {
            let hash = (flow.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u16;
            frame[ETHERNET + IPV4..ETHERNET + IPV4 + 2]
                .copy_from_slice(&(0xc000 | hash).to_be_bytes());
        }
    }
}
