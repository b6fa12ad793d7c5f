//! Builds frames: copies a template of the right length, writes the flow's fields and the stamp,
//! and computes the checksums from those of the template.
//!
//! A template is a whole frame in which all that differs is zero, with the sums of what is left. So
//! the work for a frame does not depend on its length, but for the copy.

use crate::plan::Problem;
use crate::spec::{Field, Headers, Tunnel};
use crate::stamp::{Layout, Stamp};
use packet::build::Builder;
use packet::checksum::Sum;
use std::net::{IpAddr, Ipv4Addr};

pub(crate) const ETHERNET: usize = 14;
pub(crate) const VLAN: usize = 4;
pub(crate) const IPV4: usize = 20;
pub(crate) const IPV6: usize = 40;
const UDP: usize = 8;
const TCP: usize = 20;
/// VXLAN's header, and Geneve's without options.
const TUNNEL: usize = 8;
/// Bytes of the headers around a tunnelled frame, over IPv4.
pub(crate) const OUTER: usize = ETHERNET + IPV4 + UDP + TUNNEL;

/// Names of the fields that can tell flows apart.
const FIELDS: &str = "eth_src, eth_dst, vlan_vid, ip_src, ip_dst, ipv6_src, ipv6_dst, udp_src, \
                      udp_dst, tcp_src, tcp_dst";

/// A field that differs between flows.
#[derive(Clone, Debug)]
struct Edit {
    at: usize,
    bits: u8,
    base: u128,
    step: u128,
    values: u64,
    /// Whether the IPv4 header's checksum covers it.
    in_ip: bool,
    /// Whether the UDP or TCP checksum covers it.
    in_transport: bool,
}

/// A whole frame of one length.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) bytes: Vec<u8>,
    /// The sum of the IPv4 header, without what differs.
    pub(crate) ip: u64,
    /// The sum that the UDP or TCP checksum is of, without what differs.
    pub(crate) transport: u64,
}

/// Builds frames, each from the bytes of a template.
pub trait Make {
    /// Returns the bytes that a frame of this flow begins as, of the length of this number.
    fn begin(&self, size: usize, flow: u64) -> &[u8];

    /// Makes a frame that holds those bytes the one of this flow, with this stamp. `frame` must
    /// hold at least the headers and the stamp.
    fn finish(&self, size: usize, frame: &mut [u8], flow: u64, stamp: &Stamp);
}

/// Builds the frames of one stream.
#[derive(Clone, Debug)]
pub struct Maker {
    templates: Vec<Template>,
    edits: Vec<Edit>,
    /// Where the IPv4 header's checksum is; None with IPv6.
    ip_checksum: Option<usize>,
    transport_checksum: usize,
    udp: bool,
    /// Where the outer source port is, by which receivers spread tunnelled flows.
    entropy: Option<usize>,
    stamp_at: usize,
    layout: Layout,
}

/// Addresses and places that follow from headers.
pub(crate) struct Parsed {
    pub(crate) eth_src: u64,
    pub(crate) eth_dst: u64,
    pub(crate) ip_src: IpAddr,
    pub(crate) ip_dst: IpAddr,
    pub(crate) udp: bool,
    /// Where the inner Ethernet header begins.
    pub(crate) inner: usize,
    /// Where the inner IP header begins.
    pub(crate) network: usize,
    /// Where the inner UDP or TCP header begins.
    pub(crate) transport: usize,
    /// Where the payload begins.
    payload: usize,
}

impl Maker {
    /// Makes a maker of frames of these lengths, in bytes. `place` is the stream's in the spec, for
    /// errors; `flows` is how many flows there are.
    pub fn new(
        place: &str,
        headers: &Headers,
        sizes: &[u16],
        by: &[Field],
        flows: u64,
    ) -> Result<Maker, Problem> {
        let parsed = Parsed::new(place, headers)?;
        let least = usize::from(sizes.iter().copied().min().unwrap_or(0));
        let payload = least.saturating_sub(parsed.payload);
        let Some(layout) = Layout::fitting(payload, !parsed.udp) else {
            let needed = match parsed.udp {
                true => Layout::Short,
                false => Layout::Tcp,
            };
            let (headers, needed) = (parsed.payload, needed.bytes());
            return Err(Problem::new(
                format!("{place}.size"),
                format!(
                    "{least} bytes are too few: the headers take {headers}, and what a frame carries for measuring takes {needed}, which makes {}",
                    headers + needed
                ),
            ));
        };
        let edits = edits(place, headers, by, flows, &parsed)?;
        let outer = match &headers.tunnel {
            Some(tunnel) => Some(outer(&format!("{place}.headers.tunnel"), tunnel)?),
            None => None,
        };
        let mut maker = Maker {
            templates: Vec::new(),
            ip_checksum: parsed.ip_src.is_ipv4().then_some(parsed.network + 10),
            transport_checksum: parsed.transport + if parsed.udp { 6 } else { 16 },
            udp: parsed.udp,
            entropy: outer.is_some().then_some(ETHERNET + IPV4),
            stamp_at: parsed.payload,
            layout,
            edits,
        };
        for &size in sizes {
            let template = maker.template(headers, &parsed, outer.as_ref(), usize::from(size));
            maker.templates.push(template);
        }
        Ok(maker)
    }

    /// Makes the frame of one length.
    fn template(
        &self,
        headers: &Headers,
        parsed: &Parsed,
        outer: Option<&(Builder, Vec<u8>)>,
        size: usize,
    ) -> Template {
        let mac = |address: u64| -> [u8; 6] {
            let [_, _, rest @ ..] = address.to_be_bytes();
            rest
        };
        let mut builder = Builder::ethernet(mac(parsed.eth_dst), mac(parsed.eth_src));
        if let Some(vlan) = headers.vlan {
            builder = builder.vlan(vlan);
        }
        builder = match (parsed.ip_src, parsed.ip_dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => builder.ipv4(src.to_bits(), dst.to_bits()),
            (IpAddr::V6(src), IpAddr::V6(dst)) => builder.ipv6(src.octets(), dst.octets()),
            _ => unreachable!("families were compared"),
        };
        let (src, dst) = (headers.port_src, headers.port_dst);
        builder = match parsed.udp {
            true => builder.udp(src, dst),
            // ACK
            false => builder.tcp(src, dst, 0x10),
        };
        let mut bytes = builder.payload(&vec![0; size - parsed.payload]).bytes();
        let network = parsed.network - parsed.inner;
        if parsed.ip_src.is_ipv4() {
            bytes[network + 1] = headers.tos;
            // Do not fragment.
            bytes[network + 6] = 0x40;
        } else {
            bytes[network] |= headers.tos >> 4;
            bytes[network + 1] |= headers.tos << 4;
        }
        if let Some((builder, tunnel)) = outer {
            let inner = [&tunnel[..], &bytes].concat();
            bytes = builder.clone().payload(&inner).bytes();
            // VXLAN and Geneve over IPv4 have no checksum (RFC 7348 section 5, RFC 8926 section
            // 3.3).
            bytes[ETHERNET + IPV4 + 6..][..2].fill(0);
        }
        // Take out what differs.
        for edit in &self.edits {
            clear(&mut bytes, edit);
        }
        if !parsed.udp {
            bytes[parsed.transport + 4..parsed.transport + 12].fill(0);
        }
        if let Some(at) = self.ip_checksum {
            bytes[at..at + 2].fill(0);
        }
        bytes[self.transport_checksum..][..2].fill(0);
        let (mut ip, mut transport) = (Sum::new(), Sum::new());
        let area = &bytes[parsed.transport..];
        let addresses = match self.ip_checksum {
            Some(_) => {
                ip.add_bytes(&bytes[parsed.network..parsed.network + IPV4]);
                parsed.network + 12..parsed.network + IPV4
            }
            None => parsed.network + 8..parsed.network + IPV6,
        };
        let protocol = if parsed.udp { 17 } else { 6 };
        transport.add_pseudo_header(&bytes[addresses], &[], protocol, area.len() as u32);
        transport.add_bytes(area);
        Template {
            ip: u64::from(ip.fold()),
            transport: u64::from(transport.fold()),
            bytes,
        }
    }

    /// Returns the layout of the stamps, and where they begin.
    pub fn layout(&self) -> (Layout, usize) {
        (self.layout, self.stamp_at)
    }

    /// Gives its templates away, by size.
    pub(crate) fn into_templates(self) -> Vec<Template> {
        self.templates
    }
}

impl Make for Maker {
    #[inline(always)]
    fn begin(&self, size: usize, _flow: u64) -> &[u8] {
        &self.templates[size].bytes
    }

    #[inline(always)]
    fn finish(&self, size: usize, frame: &mut [u8], flow: u64, stamp: &Stamp) {
        let template = &self.templates[size];
        let (mut ip, mut transport) = (template.ip, template.transport);
        let mut rest = flow;
        for edit in &self.edits {
            let index = match edit.values {
                0 => std::mem::take(&mut rest),
                values => match (u32::try_from(rest), u32::try_from(values)) {
                    (Ok(small), Ok(values)) => {
                        rest = u64::from(small / values);
                        u64::from(small % values)
                    }
                    _ => {
                        let index = rest % values;
                        rest /= values;
                        index
                    }
                },
            };
            let sum = edit.apply(frame, index);
            // No branches that depend on the field.
            ip += sum * u64::from(edit.in_ip);
            transport += sum * u64::from(edit.in_transport);
        }
        transport += self.layout.write(frame, self.stamp_at, stamp);
        if let Some(at) = self.ip_checksum {
            frame[at..at + 2].copy_from_slice(&(!fold(ip)).to_be_bytes());
        }
        let mut checksum = !fold(transport);
        if checksum == 0 && self.udp {
            checksum = 0xffff;
        }
        let at = self.transport_checksum;
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        if let Some(at) = self.entropy {
            let hash = (flow.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u16;
            frame[at..at + 2].copy_from_slice(&(0xc000 | hash).to_be_bytes());
        }
    }
}

impl Edit {
    /// Writes the value of this index; returns the sum of its words.
    #[inline(always)]
    fn apply(&self, frame: &mut [u8], index: u64) -> u64 {
        if self.bits == 128 {
            let value = self
                .base
                .wrapping_add(self.step.wrapping_mul(u128::from(index)));
            frame[self.at..self.at + 16].copy_from_slice(&value.to_be_bytes());
            return halves((value >> 64) as u64) + halves(value as u64);
        }
        let value = (self.base as u64).wrapping_add((self.step as u64).wrapping_mul(index));
        match self.bits {
            12 => {
                let value = (value & 0xfff) as u16;
                frame[self.at..self.at + 2].copy_from_slice(&value.to_be_bytes());
                0
            }
            16 => {
                let value = value as u16;
                frame[self.at..self.at + 2].copy_from_slice(&value.to_be_bytes());
                u64::from(value)
            }
            32 => {
                let value = value as u32;
                frame[self.at..self.at + 4].copy_from_slice(&value.to_be_bytes());
                u64::from(value)
            }
            _ => {
                frame[self.at..self.at + 6].copy_from_slice(&value.to_be_bytes()[2..]);
                0
            }
        }
    }
}

/// Returns the two halves of a word added up, which leaves its one's complement sum as it is.
#[inline(always)]
pub(crate) fn halves(word: u64) -> u64 {
    (word >> 32) + (word & 0xffff_ffff)
}

/// Adds the carries of a one's complement sum of 16-bit words.
#[inline(always)]
pub(crate) fn fold(sum: u64) -> u16 {
    let sum = halves(sum);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

fn clear(bytes: &mut [u8], edit: &Edit) {
    let length = usize::from(edit.bits).div_ceil(8);
    bytes[edit.at..edit.at + length].fill(0);
}

impl Parsed {
    pub(crate) fn new(place: &str, headers: &Headers) -> Result<Parsed, Problem> {
        let at = |name: &str| format!("{place}.headers.{name}");
        let ip = |name: &str, text: &str| -> Result<IpAddr, Problem> {
            text.parse()
                .map_err(|_| Problem::new(at(name), format!("{text:?} is not an IP address")))
        };
        let ip_src = ip("ip_src", &headers.ip_src)?;
        let ip_dst = ip("ip_dst", &headers.ip_dst)?;
        if ip_src.is_ipv4() != ip_dst.is_ipv4() {
            return Err(Problem::new(
                at("ip_dst"),
                format!("{ip_dst} is not of the family of ip_src, {ip_src}"),
            ));
        }
        let udp = match headers.protocol.as_str() {
            "udp" => true,
            "tcp" => false,
            other => {
                return Err(Problem::new(
                    at("protocol"),
                    format!("{other:?}: there are udp and tcp"),
                ));
            }
        };
        if let Some(vlan) = headers.vlan
            && vlan > 4095
        {
            return Err(Problem::new(at("vlan"), format!("{vlan} is above 4095")));
        }
        let inner = match headers.tunnel {
            Some(_) => OUTER,
            None => 0,
        };
        let network = inner + ETHERNET + headers.vlan.map_or(0, |_| VLAN);
        let transport = network + if ip_src.is_ipv4() { IPV4 } else { IPV6 };
        Ok(Parsed {
            eth_src: mac(&at("eth_src"), &headers.eth_src)?,
            eth_dst: mac(&at("eth_dst"), &headers.eth_dst)?,
            ip_src,
            ip_dst,
            udp,
            inner,
            network,
            transport,
            payload: transport + if udp { UDP } else { TCP },
        })
    }
}

/// Reads an Ethernet address.
fn mac(place: &str, text: &str) -> Result<u64, Problem> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| match part.len() {
            1 | 2 => u8::from_str_radix(part, 16).ok(),
            _ => None,
        })
        .collect();
    match bytes.as_deref() {
        Some(&[a, b, c, d, e, f]) => Ok(u64::from_be_bytes([0, 0, a, b, c, d, e, f])),
        _ => Err(Problem::new(
            place,
            format!("{text:?} is not an Ethernet address"),
        )),
    }
}

/// Returns the headers around a tunnelled frame: those that the builder makes, and the tunnel's.
fn outer(place: &str, tunnel: &Tunnel) -> Result<(Builder, Vec<u8>), Problem> {
    let at = |name: &str| format!("{place}.{name}");
    let ip = |name: &str, text: &str| -> Result<Ipv4Addr, Problem> {
        text.parse()
            .map_err(|_| Problem::new(at(name), format!("{text:?} is not an IPv4 address")))
    };
    if tunnel.vni > 0xff_ffff {
        return Err(Problem::new(
            at("vni"),
            format!("{} is above 16777215", tunnel.vni),
        ));
    }
    let vni = (tunnel.vni << 8).to_be_bytes();
    let (port, first) = match tunnel.kind.as_str() {
        "vxlan" => (4789, [8, 0, 0, 0]),
        // Ethernet inside
        "geneve" => (6081, [0, 0, 0x65, 0x58]),
        other => {
            return Err(Problem::new(
                at("kind"),
                format!("{other:?}: there are vxlan and geneve"),
            ));
        }
    };
    let bytes = |address: u64| -> [u8; 6] {
        let [_, _, rest @ ..] = address.to_be_bytes();
        rest
    };
    let dst = bytes(mac(&at("eth_dst"), &tunnel.eth_dst)?);
    let src = bytes(mac(&at("eth_src"), &tunnel.eth_src)?);
    let builder = Builder::ethernet(dst, src)
        .ipv4(
            ip("ip_src", &tunnel.ip_src)?.to_bits(),
            ip("ip_dst", &tunnel.ip_dst)?.to_bits(),
        )
        .udp(0xc000, port);
    Ok((builder, [first, vni].concat()))
}

/// Returns the fields that differ between flows. Where none is named, there are several flows and
/// they differ in the source address.
fn edits(
    place: &str,
    headers: &Headers,
    by: &[Field],
    flows: u64,
    parsed: &Parsed,
) -> Result<Vec<Edit>, Problem> {
    let usual = [Field {
        field: if parsed.ip_src.is_ipv4() {
            "ip_src".into()
        } else {
            "ipv6_src".into()
        },
        values: 0,
        step: 1,
    }];
    let by = match by.is_empty() && flows > 1 {
        true => &usual[..],
        false => by,
    };
    let mut edits: Vec<Edit> = Vec::new();
    let mut combinations = 1_u64;
    for (number, field) in by.iter().enumerate() {
        let place = format!("{place}.flows.by[{number}]");
        let edit = edit(&place, headers, field, parsed)?;
        if edits.iter().any(|other| other.at == edit.at) {
            return Err(Problem::new(
                format!("{place}.field"),
                format!("{:?} is named twice", field.field),
            ));
        }
        if field.step == 0 && field.values != 1 {
            return Err(Problem::new(
                format!("{place}.step"),
                "0: all values would be the same",
            ));
        }
        let wanted = match field.values {
            // As many as there are flows that the fields before do not tell apart.
            0 => flows.div_ceil(combinations).max(1),
            values => values,
        };
        let shift = edit.step.trailing_zeros().min(u32::from(edit.bits));
        let most = 1_u128 << (u32::from(edit.bits) - shift).min(64);
        if u128::from(wanted) > most {
            return Err(Problem::new(
                format!("{place}.values"),
                format!(
                    "{wanted} values are more than {} has at a distance of {}: {most}",
                    field.field, field.step
                ),
            ));
        }
        combinations = combinations.saturating_mul(wanted);
        edits.push(Edit {
            values: wanted,
            ..edit
        });
    }
    if combinations < flows {
        return Err(Problem::new(
            format!("{place}.flows.count"),
            format!(
                "{flows} flows are more than the fields in flows.by tell apart: {combinations}"
            ),
        ));
    }
    // The last one needs no division: what is left of the flow is less than its values.
    if let Some(last) = edits.last_mut() {
        last.values = 0;
    }
    Ok(edits)
}

fn edit(place: &str, headers: &Headers, field: &Field, parsed: &Parsed) -> Result<Edit, Problem> {
    let problem = |what: String| Problem::new(format!("{place}.field"), what);
    let name = field.field.as_str();
    let (v4, v6) = match (parsed.ip_src, parsed.ip_dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => (Some([src, dst]), None),
        (IpAddr::V6(src), IpAddr::V6(dst)) => (None, Some([src, dst])),
        _ => (None, None),
    };
    let edit = |at: usize, bits: u8, base: u128| Edit {
        at,
        bits,
        base,
        step: u128::from(field.step),
        values: field.values,
        in_ip: false,
        in_transport: false,
    };
    let address4 = |side: usize| {
        let [src, dst] = v4?;
        let base = [src, dst][side].to_bits();
        let mut edit = edit(parsed.network + 12 + 4 * side, 32, base.into());
        (edit.in_ip, edit.in_transport) = (true, true);
        Some(edit)
    };
    let address6 = |side: usize| {
        let [src, dst] = v6?;
        let base = [src, dst][side].to_bits();
        let mut edit = edit(parsed.network + 8 + 16 * side, 128, base);
        edit.in_transport = true;
        Some(edit)
    };
    let port = |side: usize, udp: bool| {
        let base = [headers.port_src, headers.port_dst][side];
        let mut edit = edit(parsed.transport + 2 * side, 16, base.into());
        edit.in_transport = true;
        (udp == parsed.udp).then_some(edit)
    };
    let found = match name {
        "eth_dst" => Some(edit(parsed.inner, 48, parsed.eth_dst.into())),
        "eth_src" => Some(edit(parsed.inner + 6, 48, parsed.eth_src.into())),
        "vlan_vid" => headers
            .vlan
            .map(|vlan| edit(parsed.inner + ETHERNET, 12, vlan.into())),
        "ip_src" | "nw_src" => address4(0),
        "ip_dst" | "nw_dst" => address4(1),
        "ipv6_src" => address6(0),
        "ipv6_dst" => address6(1),
        "udp_src" => port(0, true),
        "udp_dst" => port(1, true),
        "tcp_src" => port(0, false),
        "tcp_dst" => port(1, false),
        other => {
            return Err(problem(format!("{other:?}: there are {FIELDS}")));
        }
    };
    found.ok_or_else(|| problem(format!("{name:?}: the stream's headers have no such field")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::HeapFrame;
    use packet::key::{FlowKey, WordSet, at};
    use packet::parse;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Headers of one kind of frame, by the bits of a number: a tag, IPv6, TCP, and a tunnel.
    fn headers(kind: u8, tos: u8) -> Headers {
        let six = kind & 2 != 0;
        let tunnel = |name: &str| Tunnel {
            kind: name.into(),
            vni: 0x12_3456,
            eth_src: "2:0:0:0:0:3".into(),
            eth_dst: "2:0:0:0:0:4".into(),
            ip_src: "192.0.2.1".into(),
            ip_dst: "192.0.2.2".into(),
        };
        Headers {
            vlan: (kind & 1 != 0).then_some(100),
            ip_src: if six { "fd00::1" } else { "10.1.0.1" }.into(),
            ip_dst: if six { "fd00::2:1" } else { "10.2.0.1" }.into(),
            protocol: if kind & 4 != 0 { "tcp" } else { "udp" }.into(),
            tunnel: match kind >> 3 & 3 {
                0 => None,
                1 => Some(tunnel("vxlan")),
                _ => Some(tunnel("geneve")),
            },
            tos,
            ..Headers::default()
        }
    }

    fn field(name: &str, values: u64, step: u64) -> Field {
        Field {
            field: name.into(),
            values,
            step,
        }
    }

    /// Sums a whole header or segment with its checksum: 0xffff if that is right.
    fn is_right(bytes: &[u8], at: usize, six: bool, udp: bool, transport: usize) -> bool {
        let mut ip = Sum::new();
        let (addresses, protocol) = match six {
            true => (at + 8..at + 40, if udp { 17 } else { 6 }),
            false => {
                ip.add_bytes(&bytes[at..at + 20]);
                if ip.fold() != 0xffff {
                    return false;
                }
                (at + 12..at + 20, bytes[at + 9])
            }
        };
        let mut sum = Sum::new();
        let area = &bytes[transport..];
        sum.add_pseudo_header(&bytes[addresses], &[], protocol, area.len() as u32);
        sum.add_bytes(area);
        sum.fold() == 0xffff
    }

    proptest! {
        #[test]
        fn built_frames_are_parsed_as_specified(
            kind in 0_u8..24, tos: u8, flow in 0_u64..60_000, sequence: u32, time in 0_u64..1 << 48,
            extra in 0_u16..1200, step in 1_u64..5,
        ) {
            let headers = headers(kind, tos);
            let (six, udp) = (kind & 2 != 0, kind & 4 == 0);
            let port = if udp { "udp_dst" } else { "tcp_dst" };
            let source = if six { "ipv6_src" } else { "ip_src" };
            let by = [field(port, 10, step), field("eth_src", 3, 1), field(source, 0, 1)];
            let least = Parsed::new("s", &headers).unwrap().payload as u16;
            let size = least + if udp { 14 } else { 6 } + extra;
            let maker = Maker::new("s", &headers, &[size, 1500], &by, 60_000).unwrap();
            let stamp = Stamp { stream: 3, run: 9, sequence, flow: flow as u32, time };
            let mut bytes = maker.begin(0, flow).to_vec();
            prop_assert_eq!(bytes.len(), usize::from(size));
            maker.finish(0, &mut bytes, flow, &stamp);

            // The stamp is found and read.
            let (layout, at) = maker.layout();
            prop_assert_eq!(crate::stamp::payload_at(&bytes), Some(at));
            let read = layout.read(&bytes, at).unwrap();
            prop_assert_eq!(Stamp { flow: stamp.flow, ..read }, stamp);

            // The parser agrees, of the inner frame, and finds the fields of the flow.
            let inner = Parsed::new("s", &headers).unwrap();
            let mut key = FlowKey::ZERO;
            let mut frame = HeapFrame::new(&bytes[inner.inner..]);
            let layers = parse::parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
            prop_assert!(layers.transport);
            prop_assert_eq!(usize::from(layers.l4) + inner.inner, inner.transport);
            let [first, second, third] = [flow % 10, flow / 10 % 3, flow / 30];
            prop_assert_eq!(u64::from(key.u16(at::TP_DST)), 2048 + first * step);
            prop_assert_eq!(bytes[inner.inner + 11], 1 + second as u8);
            if !six {
                prop_assert_eq!(u64::from(key.u32(at::IPV4_SRC)), 0x0a01_0001 + third);
            }
            prop_assert_eq!(key.u8(at::IP_TOS), tos);

            // All checksums are right.
            prop_assert!(is_right(&bytes, inner.network, six, udp, inner.transport));
            if inner.inner > 0 {
                let mut outer = Sum::new();
                outer.add_bytes(&bytes[14..34]);
                prop_assert_eq!(outer.fold(), 0xffff);
                let length = u16::from_be_bytes([bytes[38], bytes[39]]);
                prop_assert_eq!(usize::from(length), bytes.len() - 34);
            }
        }
    }

    #[test]
    fn all_flows_differ() {
        let plain = headers(0, 0);
        let by = [field("udp_src", 7, 3), field("ip_dst", 11, 256)];
        let maker = Maker::new("s", &plain, &[60], &by, 70).unwrap();
        let mut seen = HashSet::new();
        for flow in 0..70 {
            let stamp = Stamp {
                stream: 0,
                run: 0,
                sequence: 0,
                flow: 0,
                time: 0,
            };
            let mut bytes = maker.begin(0, flow).to_vec();
            maker.finish(0, &mut bytes, flow, &stamp);
            seen.insert(bytes);
        }
        assert_eq!(seen.len(), 70);
    }

    #[test]
    fn problems_name_the_field() {
        let told = |headers: &Headers, sizes: &[u16], by: &[Field], flows: u64| {
            let problem = Maker::new("streams[1]", headers, sizes, by, flows).err();
            problem
                .map(|problem| problem.to_string())
                .unwrap_or_default()
        };
        let plain = headers(0, 0);
        let says = |text: String, wanted: &str| assert!(text.contains(wanted), "{text}");
        says(
            told(&plain, &[60], &[field("ip_foo", 0, 1)], 2),
            "streams[1].flows.by[0].field: \"ip_foo\": there are eth_src",
        );
        says(
            told(&plain, &[60], &[field("tcp_src", 0, 1)], 2),
            "\"tcp_src\": the stream's headers have no such field",
        );
        says(
            told(&plain, &[60], &[field("udp_src", 0, 2)], 40_000),
            "streams[1].flows.by[0].values: 40000 values are more than udp_src has at a distance of 2: 32768",
        );
        says(
            told(&plain, &[60], &[field("udp_src", 10, 1)], 11),
            "streams[1].flows.count: 11 flows are more than the fields in flows.by tell apart: 10",
        );
        says(
            told(
                &plain,
                &[60],
                &[field("udp_src", 10, 1), field("udp_src", 10, 1)],
                11,
            ),
            "streams[1].flows.by[1].field: \"udp_src\" is named twice",
        );
        says(
            told(&plain, &[55], &[], 1),
            "streams[1].size: 55 bytes are too few: the headers take 42, and what a frame carries for measuring takes 14, which makes 56",
        );
        let changed = |change: fn(&mut Headers)| {
            let mut headers = headers(8, 0);
            change(&mut headers);
            told(&headers, &[200], &[], 1)
        };
        says(
            changed(|headers| headers.eth_src = "02:00".into()),
            "streams[1].headers.eth_src: \"02:00\" is not an Ethernet address",
        );
        says(
            changed(|headers| headers.ip_dst = "fd00::1".into()),
            "streams[1].headers.ip_dst: fd00::1 is not of the family of ip_src",
        );
        says(
            changed(|headers| headers.protocol = "sctp".into()),
            "streams[1].headers.protocol: \"sctp\": there are udp and tcp",
        );
        says(
            changed(|headers| headers.vlan = Some(4096)),
            "streams[1].headers.vlan: 4096 is above 4095",
        );
        says(
            changed(|headers| {
                if let Some(tunnel) = &mut headers.tunnel {
                    tunnel.kind = "gre".into();
                }
            }),
            "streams[1].headers.tunnel.kind: \"gre\": there are vxlan and geneve",
        );
        assert_eq!(changed(|_| {}), "");
    }
}
