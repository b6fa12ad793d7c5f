//! Reads what the tracker needs from a packet, and refuses packets that are not what they say.

use crate::counters::Counter;
use crate::established::Short;
use crate::key::{Address, ICMP, ICMPV6, Key, SCTP, TCP, UDP};
use crate::tcp::{Segment, flag};
use packet::Frame;
use packet::checksum::{self, Sum};
use packet::parse::Layers;

/// What a packet is to its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PacketProtocol {
    Tcp(Segment),
    Icmp,
    Other,
}

/// A packet that belongs to a connection or may begin one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub key: Key,
    pub kind: PacketProtocol,
    /// Whether it is an ICMP error; then `key` is the reverse of that of the packet it quotes.
    pub related: bool,
}

/// Bytes of a quoted packet in which headers are searched.
pub(crate) const QUOTE: usize = 256;
/// Bytes of a quoted transport header that must be there (RFC 792).
const QUOTED_TRANSPORT: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;

/// An IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Network {
    pub v6: bool,
    pub protocol: u8,
    pub addresses: [Address; 2],
    /// Length with options or extension headers.
    pub length: usize,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads an IP header at the beginning of `bytes`, including all extension headers.
pub(crate) fn network(bytes: &[u8]) -> Result<Network, Counter> {
    let short = Counter::InvalidHeaders;
    match bytes.first().ok_or(short)? >> 4 {
        4 => ipv4(bytes).ok_or(short)?,
        6 => ipv6(bytes).ok_or(short)?,
        _ => Err(short),
    }
}

/// None if the header is not complete.
fn ipv4(bytes: &[u8]) -> Option<Result<Network, Counter>> {
    let length = usize::from(bytes[0] & 15) * 4;
    let header = bytes.get(..length).filter(|_| length >= IPV4_LEN)?;
    // More fragments, or an offset.
    if be16(header, 6)? & 0x3fff != 0 {
        return Some(Err(Counter::InvalidFragment));
    }
    let address = |at| Some([0, u64::from(be32(header, at)?)]);
    Some(Ok(Network {
        v6: false,
        protocol: header[9],
        addresses: [address(12)?, address(16)?],
        length,
    }))
}

/// None if the headers are not complete.
fn ipv6(bytes: &[u8]) -> Option<Result<Network, Counter>> {
    let header = bytes.get(..IPV6_LEN)?;
    let address = |at| Some([be64(header, at)?, be64(header, at + 8)?]);
    let (mut protocol, mut at) = (header[6], IPV6_LEN);
    loop {
        let length = match protocol {
            // Hop-by-hop options, routing, destination options, mobility.
            0 | 43 | 60 | 135 => usize::from(*bytes.get(at + 1)?) * 8 + 8,
            44 => {
                if be16(bytes, at + 2)? & !6 != 0 {
                    return Some(Err(Counter::InvalidFragment));
                }
                8
            }
            51 => usize::from(*bytes.get(at + 1)?) * 4 + 8,
            _ => break,
        };
        protocol = *bytes.get(at)?;
        at += length;
    }
    if at > bytes.len() {
        return None;
    }
    Some(Ok(Network {
        v6: true,
        protocol,
        addresses: [address(8)?, address(24)?],
        length: at,
    }))
}

/// Reads the tuple of packets that most are, IPv4 with UDP or TCP in one piece. None for all
/// others, and for those that are not sound.
#[inline(always)]
pub(crate) fn common<F: Frame>(frame: &F, layers: &Layers, zone: u16) -> Option<Short> {
    let short = Short::read(packet::tuple::read(frame, layers), zone);
    (short != Short::NONE).then_some(short)
}

/// Whether a packet's checksum is known to be right, or has not been made yet.
#[inline(always)]
fn is_summed<F: Frame>(frame: &F) -> bool {
    let offload = frame.offload();
    offload.checksum_valid || offload.partial_checksum
}

/// Reads the key of further packets that many are, with all headers in the frame's first segment:
/// UDP and TCP over IPv6 without extension headers, and ICMP's requests and replies over both
/// families. None for all others, and for those that are not sound.
#[inline]
pub(crate) fn common_key<F: Frame>(frame: &F, layers: &Layers, zone: u16) -> Option<Key> {
    let (start, end) = (usize::from(layers.l3), layers.end as usize);
    let packet = frame.head().get(start..end)?;
    let length = layers.l4.wrapping_sub(layers.l3);
    let is_summed = is_summed(frame);
    match (packet.first()? >> 4, usize::from(length)) {
        (4, IPV4_LEN) => short_icmp(packet, is_summed, zone),
        (6, IPV6_LEN) => wide(packet, is_summed, zone),
        _ => None,
    }
}

/// [`common_key`] for a packet of IPv4. `is_summed` says that its checksum is known to be right.
fn short_icmp(packet: &[u8], is_summed: bool, zone: u16) -> Option<Key> {
    let (header, message) = packet.split_first_chunk::<IPV4_LEN>()?;
    let is_whole = header[0] == 0x45 && be16(header, 6)? & 0x3fff == 0;
    let sum = |bytes: &[u8]| {
        let mut sum = Sum::new();
        sum.add_bytes(bytes);
        sum.fold()
    };
    // What is no request or reply is read elsewhere, and need not be summed twice.
    let is_known = answer(false, *message.first()?).is_some();
    if header[9] != ICMP || !is_whole || !is_known || sum(header) != 0xffff {
        return None;
    }
    if !is_summed && sum(message) != 0xffff {
        return None;
    }
    let address = |at| Some([0, u64::from(be32(header, at)?)]);
    let mut key = Key {
        addresses: [address(12)?, address(16)?],
        zone,
        protocol: ICMP,
        ..Key::default()
    };
    read_icmp(&mut key, message).then_some(key)
}

/// Fills in identifier and types of a message of ICMP; false if it has none.
fn read_icmp(key: &mut Key, message: &[u8]) -> bool {
    message.first_chunk().is_some_and(|header| {
        let other = answer(key.v6, header[0]);
        other.is_some_and(|other| set_icmp(key, header, other).is_ok())
    })
}

/// [`common_key`] for a packet of IPv6.
fn wide(packet: &[u8], is_summed: bool, zone: u16) -> Option<Key> {
    let (header, segment) = packet.split_first_chunk::<IPV6_LEN>()?;
    let transport: &[u8; 8] = segment.first_chunk()?;
    let protocol = header[6];
    match protocol {
        UDP => {
            let length = usize::from(u16::from_be_bytes([transport[4], transport[5]]));
            // Without a checksum it is not sound (RFC 8200, section 8.1).
            if length < transport.len() || length > segment.len() || transport[6..] == [0, 0] {
                return None;
            }
        }
        TCP => {
            let length = usize::from(segment.get(12)? >> 4) * 4;
            if length < TCP_LEN || length > segment.len() {
                return None;
            }
        }
        // As in `short_icmp`.
        ICMPV6 if answer(true, transport[0]).is_some() => {}
        _ => return None,
    }
    if !is_summed {
        // Addresses and transport header lie one behind the other, as in the pseudo header.
        let mut whole = Sum::new();
        whole.add_bytes(packet.get(8..)?);
        whole.add_u16(protocol.into());
        whole.add_u32(segment.len() as u32);
        if whole.fold() != 0xffff {
            return None;
        }
    }
    let address = |at| Some([be64(header, at)?, be64(header, at + 8)?]);
    let mut key = Key {
        addresses: [address(8)?, address(24)?],
        ports: [be16(transport, 0)?, be16(transport, 2)?],
        kinds: [0; 2],
        zone,
        protocol,
        v6: true,
    };
    let is_sound = match protocol {
        ICMPV6 => read_icmp(&mut key, segment),
        _ => !key.ports.contains(&0),
    };
    is_sound.then_some(key)
}

/// Reads what [`common`] has found sound.
fn packet_of<F: Frame>(short: Short, frame: &F, layers: &Layers) -> Option<Packet> {
    packet_with(short.key(), frame, layers)
}

/// The same of what [`common_key`] has found sound.
#[inline]
fn packet_with<F: Frame>(key: Key, frame: &F, layers: &Layers) -> Option<Packet> {
    let kind = match key.protocol {
        TCP => PacketProtocol::Tcp(segment(frame, layers)?),
        _ if key.is_icmp() => PacketProtocol::Icmp,
        _ => PacketProtocol::Other,
    };
    Some(Packet {
        key,
        kind,
        related: false,
    })
}

/// Reads the TCP segment of a packet that [`common`] has found sound.
#[inline(always)]
pub(crate) fn segment<F: Frame>(frame: &F, layers: &Layers) -> Option<Segment> {
    let bytes = frame
        .head()
        .get(usize::from(layers.l4)..layers.end as usize)?;
    let header: &[u8; TCP_LEN] = bytes.first_chunk()?;
    let length = usize::from(header[12] >> 4) * 4;
    let flags = u16::from_be_bytes([header[12], header[13]]) & 0x0fff;
    let scale = match flags & flag::SYN {
        0 => None,
        _ => window_scale(bytes.get(TCP_LEN..length)?),
    };
    Some(Segment {
        sequence: be32(header, 4)?,
        acknowledgement: be32(header, 8)?,
        window: u16::from_be_bytes([header[14], header[15]]),
        flags,
        length: (bytes.len() - length) as u32,
        scale,
    })
}

/// What is known of a packet before it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Read {
    Nothing,
    /// [`common`] has said this, and [`common_key`] nothing.
    Common(Option<Short>),
    /// [`common_key`] has said this.
    Key(Key),
}

/// Reads a frame.
pub(crate) fn extract<F: Frame>(
    frame: &F,
    layers: &Layers,
    zone: u16,
    read: Read,
) -> Result<Packet, Counter> {
    let packet = match read {
        Read::Common(short) => short.and_then(|short| packet_of(short, frame, layers)),
        Read::Nothing => {
            common(frame, layers, zone).and_then(|short| packet_of(short, frame, layers))
        }
        Read::Key(key) => packet_with(key, frame, layers),
    };
    match packet {
        Some(packet) => Ok(packet),
        None => extract_any(frame, layers, zone),
    }
}

#[inline(never)]
fn extract_any<F: Frame>(frame: &F, layers: &Layers, zone: u16) -> Result<Packet, Counter> {
    let (l3, l4, end) = (
        usize::from(layers.l3),
        usize::from(layers.l4),
        layers.end as usize,
    );
    if l4 <= l3 || end < l4 || end > frame.len() {
        return Err(Counter::InvalidHeaders);
    }
    let mut copied = [0; packet::parse::HEADERS_LIMIT];
    let header = &mut copied[..(l4 - l3).min(packet::parse::HEADERS_LIMIT)];
    if !frame.read_at(l3, header) {
        return Err(Counter::InvalidHeaders);
    }
    let ip = network(header)?;
    if l3 + ip.length != l4 {
        return Err(Counter::InvalidHeaders);
    }
    if !ip.v6 && checksum::frame_sum(frame, l3, l4) != 0xffff {
        return Err(Counter::InvalidIpChecksum);
    }
    let mut key = Key {
        addresses: ip.addresses,
        zone,
        protocol: ip.protocol,
        v6: ip.v6,
        ..Key::default()
    };
    let transport = Transport {
        frame,
        ip: &ip,
        l4,
        end,
    };
    match (ip.v6, ip.protocol) {
        (_, TCP) => transport.tcp(key),
        (_, UDP) => transport.udp(key),
        (_, SCTP) => transport.sctp(key),
        (false, ICMP) | (true, ICMPV6) => transport.icmp(key),
        _ => {
            key.ports = [0; 2];
            Ok(Packet {
                key,
                kind: PacketProtocol::Other,
                related: false,
            })
        }
    }
}

struct Transport<'a, F> {
    frame: &'a F,
    ip: &'a Network,
    l4: usize,
    end: usize,
}

impl<F: Frame> Transport<'_, F> {
    fn size(&self) -> usize {
        self.end - self.l4
    }

    /// Reads the header's first bytes.
    fn header<const N: usize>(&self) -> Result<[u8; N], Counter> {
        let mut header = [0; N];
        if self.size() < N || !self.frame.read_at(self.l4, &mut header) {
            return Err(Counter::InvalidTransport);
        }
        Ok(header)
    }

    /// Whether the checksum was verified by others, or is not yet computed.
    fn is_trusted(&self) -> bool {
        let offload = self.frame.offload();
        offload.checksum_valid || offload.partial_checksum
    }

    fn verify(&self, pseudo_header: bool) -> Result<(), Counter> {
        if self.is_trusted() {
            return Ok(());
        }
        let mut sum = Sum::new();
        sum.add_u16(checksum::frame_sum(self.frame, self.l4, self.end));
        if pseudo_header {
            for [high, low] in self.ip.addresses {
                sum.add_bytes(&high.to_be_bytes());
                sum.add_bytes(&low.to_be_bytes());
            }
            sum.add_u16(self.ip.protocol.into());
            sum.add_u32(self.size() as u32);
        }
        if sum.fold() == 0xffff {
            Ok(())
        } else {
            Err(Counter::InvalidTransportChecksum)
        }
    }

    fn with_ports(
        &self,
        mut key: Key,
        header: &[u8],
        kind: PacketProtocol,
    ) -> Result<Packet, Counter> {
        let ports = [be16(header, 0), be16(header, 2)].map(Option::unwrap_or_default);
        if ports.contains(&0) {
            return Err(Counter::InvalidTransport);
        }
        key.ports = ports;
        Ok(Packet {
            key,
            kind,
            related: false,
        })
    }

    fn tcp(&self, key: Key) -> Result<Packet, Counter> {
        let header: [u8; 20] = self.header()?;
        let length = usize::from(header[12] >> 4) * 4;
        if length < header.len() || length > self.size() {
            return Err(Counter::InvalidTransport);
        }
        self.verify(true)?;
        let flags = u16::from_be_bytes([header[12], header[13]]) & 0x0fff;
        let number = |at| be32(&header, at).unwrap_or_default();
        let scale = if flags & flag::SYN != 0 {
            let mut options = [0; 40];
            let options = &mut options[..length - header.len()];
            if !self.frame.read_at(self.l4 + header.len(), options) {
                return Err(Counter::InvalidTransport);
            }
            window_scale(options)
        } else {
            None
        };
        let segment = Segment {
            sequence: number(4),
            acknowledgement: number(8),
            window: u16::from_be_bytes([header[14], header[15]]),
            flags,
            length: (self.size() - length) as u32,
            scale,
        };
        self.with_ports(key, &header, PacketProtocol::Tcp(segment))
    }

    fn udp(&self, key: Key) -> Result<Packet, Counter> {
        let header: [u8; 8] = self.header()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if length < header.len() || length > self.size() {
            return Err(Counter::InvalidTransport);
        }
        if header[6..] != [0, 0] {
            self.verify(true)?;
        } else if self.ip.v6 {
            // Only IPv4 has packets without a checksum.
            return Err(Counter::InvalidTransportChecksum);
        }
        self.with_ports(key, &header, PacketProtocol::Other)
    }

    fn sctp(&self, key: Key) -> Result<Packet, Counter> {
        let header: [u8; 12] = self.header()?;
        let sum = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if !self.is_trusted() && checksum::sctp(self.frame, self.l4, self.end) != sum {
            return Err(Counter::InvalidTransportChecksum);
        }
        self.with_ports(key, &header, PacketProtocol::Other)
    }

    fn icmp(&self, mut key: Key) -> Result<Packet, Counter> {
        let header: [u8; 8] = self.header()?;
        self.verify(self.ip.v6)?;
        if let Some(other) = answer(self.ip.v6, header[0]) {
            set_icmp(&mut key, &header, other)?;
            return Ok(Packet {
                key,
                kind: PacketProtocol::Icmp,
                related: false,
            });
        }
        if !is_error(self.ip.v6, header[0]) {
            return Err(Counter::InvalidIcmp);
        }
        let mut quote = [0; QUOTE];
        let quote = &mut quote[..(self.size() - header.len()).min(QUOTE)];
        if !self.frame.read_at(self.l4 + header.len(), quote) {
            return Err(Counter::InvalidIcmp);
        }
        self.quoted(key, quote)
    }

    /// Reads the packet that an error quotes.
    fn quoted(&self, outer: Key, quote: &[u8]) -> Result<Packet, Counter> {
        let bad = Counter::InvalidIcmp;
        let ip = network(quote).map_err(|_| bad)?;
        // Errors go to whom sent the quoted packet.
        if ip.v6 != outer.v6 || ip.addresses[0] != outer.addresses[1] {
            return Err(bad);
        }
        let mut key = Key {
            addresses: ip.addresses,
            ports: [0; 2],
            kinds: [0; 2],
            zone: outer.zone,
            protocol: ip.protocol,
            v6: ip.v6,
        };
        if key.has_ports() || key.is_icmp() {
            let transport = &quote[ip.length..];
            let header: &[u8; QUOTED_TRANSPORT] = transport.first_chunk().ok_or(bad)?;
            if key.is_icmp() {
                let other = answer(ip.v6, header[0]).ok_or(bad)?;
                set_icmp(&mut key, header, other)?;
            } else {
                key.ports = [
                    u16::from_be_bytes([header[0], header[1]]),
                    u16::from_be_bytes([header[2], header[3]]),
                ];
                if key.ports.contains(&0) {
                    return Err(bad);
                }
            }
        }
        Ok(Packet {
            key: key.reversed(),
            kind: PacketProtocol::Icmp,
            related: true,
        })
    }
}

/// Fills in the identifier and types.
fn set_icmp(key: &mut Key, header: &[u8; 8], other: u8) -> Result<(), Counter> {
    if header[1] != 0 {
        return Err(Counter::InvalidIcmp);
    }
    key.ports = [u16::from_be_bytes([header[4], header[5]]); 2];
    key.kinds = [header[0], other];
    Ok(())
}

/// Returns the type of the messages that answer those of this type or are answered by them.
pub(crate) fn answer(v6: bool, kind: u8) -> Option<u8> {
    Some(match (v6, kind) {
        // Echo, timestamp, information.
        (false, 8) => 0,
        (false, 0) => 8,
        (false, 13 | 15) | (true, 128) => kind + 1,
        (false, 14 | 16) | (true, 129) => kind - 1,
        _ => return None,
    })
}

/// Whether messages of this type may begin a connection.
pub(crate) fn is_icmp_request(v6: bool, kind: u8) -> bool {
    match v6 {
        false => matches!(kind, 8 | 13 | 15),
        true => kind == 128,
    }
}

fn is_error(v6: bool, kind: u8) -> bool {
    match v6 {
        // Unreachable, source quench, redirect, time exceeded, parameter problem.
        false => matches!(kind, 3 | 4 | 5 | 11 | 12),
        // Unreachable, too big, time exceeded, parameter problem.
        true => matches!(kind, 1..=4),
    }
}

/// Finds the window scale option.
fn window_scale(mut options: &[u8]) -> Option<u8> {
    let mut scale = None;
    while options.len() >= 3 {
        let step = match options[0] {
            0 => break,
            1 => 1,
            kind => {
                if kind == 3 {
                    scale = Some(options[2]);
                }
                usize::from(options[1]).max(2)
            }
        };
        options = options.get(step..).unwrap_or_default();
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build::Builder;
    use packet::parse::parse_frame;
    use packet::{FlowKey, HeapFrame, Offload, WordSet};
    use proptest::prelude::*;

    /// What a packet is of, its payload's length, what is overwritten, whether checksums are right
    /// behind that, where the second segment begins, and padding.
    type Made = (u8, usize, Vec<(usize, u8)>, bool, usize, usize);

    fn made() -> impl Strategy<Value = Made> {
        // Most change what says something: types, lengths, flags.
        let byte = prop_oneof![Just(0_u8), Just(8), Just(1), Just(0x45), any::<u8>()];
        let changes = prop_oneof![
            1 => Just(Vec::new()),
            2 => prop::collection::vec((14..80_usize, byte), 1..3),
        ];
        let cut = prop_oneof![4 => Just(usize::MAX), 1 => 14..80_usize];
        (
            0..7_u8,
            0..20_usize,
            changes,
            any::<bool>(),
            cut,
            0..8_usize,
        )
    }

    fn frame((sort, length, changes, right, cut, padding): &Made) -> (HeapFrame, Layers) {
        let ethernet = Builder::ethernet([2; 6], [4; 6]);
        let ip = match sort {
            0..3 => ethernet.ipv4(0x0a00_0001, 0xff00_0002),
            _ => ethernet.ipv6([1; 16], [2; 16]),
        };
        let packet = match sort {
            0 | 1 => ip.icmp(8 - 8 * sort, 0, 0x0007_0001),
            2 => ip.icmp(13, 0, 0x0007_0001),
            3 | 4 => ip.icmpv6(125 + sort, 0, 0x0007_0001),
            5 => ip.udp(1025, 53),
            _ => ip.tcp(1025, 80, 16),
        };
        let mut bytes = packet.payload(&vec![7; *length]).bytes();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(*at) {
                *byte = *value;
            }
        }
        if *right && *sort < 3 {
            bytes[24..26].fill(0);
            let mut sum = Sum::new();
            sum.add_bytes(&bytes[14..34]);
            bytes[24..26].copy_from_slice(&sum.finish().to_be_bytes());
        }
        bytes.resize(bytes.len() + padding, 0xee);
        let mut key = FlowKey::ZERO;
        let mut whole = HeapFrame::new(&bytes);
        let layers = parse_frame(&mut whole, 1, WordSet::MINI_KEY, &mut key);
        let (head, tail) = bytes.split_at((*cut).min(bytes.len()));
        let mut frame = HeapFrame::with_segments(&[head, tail]);
        frame.set_offload(Offload {
            checksum_valid: *right,
            ..Offload::default()
        });
        (frame, layers)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// What is read at once is what is read step by step; nothing that is refused there.
        #[test]
        fn common_keys_are_those_of_packets(made in made()) {
            let (frame, layers) = frame(&made);
            let whole = extract_any(&frame, &layers, 9);
            if let Some(key) = common_key(&frame, &layers, 9) {
                prop_assert_eq!(packet_with(key, &frame, &layers).ok_or(key), whole.map_err(|_| key));
            } else if made.2.is_empty() && made.4 == usize::MAX {
                prop_assert!(false, "it has not been read: {:?}", whole);
            }
        }
    }
}
