//! The parser for every packet: header by header.

use super::{HEADERS_LIMIT, Layers, Malformed};
use crate::key::{FlowKey, WordSet, at};

/// Bit of a TCI in the key that says there is a tag.
pub const VLAN_PRESENT: u16 = 0x1000;
/// The Ethertype of frames that have none (802.2 without SNAP).
pub const ETH_TYPE_NONE: u16 = 0x05ff;
/// Smaller numbers are lengths (IEEE 802.3 clause 3.2.6).
pub const ETH_TYPE_MIN: u16 = 0x0600;

/// Provider backbone bridges' service tag (IEEE 802.1Q table 9-1).
const PBB: u16 = 0x88e7;

const FRAGMENT: u8 = 1;
const FRAGMENT_LATER: u8 = 2;

/// Bits of `OXM_OF_IPV6_EXTHDR` (OpenFlow 1.3.5 table 13).
mod extension {
    pub const NO_NEXT: u16 = 1;
    pub const ESP: u16 = 1 << 1;
    pub const AUTHENTICATION: u16 = 1 << 2;
    pub const DESTINATION: u16 = 1 << 3;
    pub const FRAGMENT: u16 = 1 << 4;
    pub const ROUTER: u16 = 1 << 5;
    pub const HOP_BY_HOP: u16 = 1 << 6;
    pub const REPEATED: u16 = 1 << 7;
    pub const OUT_OF_ORDER: u16 = 1 << 8;
}

/// The bytes that are still to be read.
struct Reader<'a> {
    head: &'a [u8],
    /// Offset of the next header.
    at: usize,
    /// Offset of the enclosing layer's end.
    end: usize,
}

/// Why bytes are not available.
enum Missing {
    /// The enclosing layer, or the part of a frame that is searched for headers, ends before them.
    Short,
    /// They lie beyond the bytes at hand (the first segment).
    Split,
}

impl Missing {
    /// Returns the reason for a packet to be malformed; `short` is the header's own reason for a
    /// packet that ends too early.
    fn reason(self, short: Malformed) -> Malformed {
        match self {
            Missing::Short => short,
            Missing::Split => Malformed::Split,
        }
    }
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.end - self.at
    }

    /// Returns the next `n` bytes without advancing.
    #[inline(always)]
    fn peek(&self, n: usize) -> Result<&'a [u8], Missing> {
        if n > self.left() || self.at + n > HEADERS_LIMIT {
            return Err(Missing::Short);
        }
        self.head.get(self.at..self.at + n).ok_or(Missing::Split)
    }

    #[inline(always)]
    fn take(&mut self, n: usize) -> Result<&'a [u8], Missing> {
        let bytes = self.peek(n)?;
        self.at += n;
        Ok(bytes)
    }
}

#[inline(always)]
fn be16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([bytes[offset], bytes[offset + 1]])
}

#[inline(always)]
fn copy(key: &mut FlowKey, offset: usize, bytes: &[u8]) {
    key.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Implements [`super::parse`]; reads `vlan_limit` tags.
pub fn extract(
    head: &[u8],
    total_len: usize,
    in_port: u32,
    needed: WordSet,
    key: &mut FlowKey,
    vlan_limit: u8,
) -> Layers {
    key.clear(needed.union(WordSet::MINI_KEY));
    key.set_u32(at::IN_PORT, in_port);
    let mut layers = Layers {
        end: total_len as u32,
        ..Layers::default()
    };
    let mut reader = Reader {
        head: &head[..head.len().min(HEADERS_LIMIT)],
        at: 0,
        end: total_len,
    };
    let mut packet = Packet {
        key,
        layers: &mut layers,
        needed,
        through: false,
    };
    layers.malformed = packet.ethernet(&mut reader, vlan_limit).err();
    layers
}

/// Implements [`super::innermost`]. Every header has at least 4 bytes, so the walk ends.
pub fn innermost(head: &[u8], total_len: usize, key: &mut FlowKey) -> Layers {
    key.clear(WordSet::MINI_KEY);
    let mut layers = Layers {
        end: total_len as u32,
        ..Layers::default()
    };
    let mut reader = Reader {
        head: &head[..head.len().min(HEADERS_LIMIT)],
        at: 0,
        end: total_len,
    };
    let mut packet = Packet {
        key,
        layers: &mut layers,
        needed: WordSet::EMPTY,
        through: true,
    };
    let mut result = packet.ethernet(&mut reader, u8::MAX);
    while result.is_ok() && packet.key.u16(at::ETH_TYPE) == PBB {
        // The customer's addresses are the first bytes of an Ethernet header.
        reader.at -= 12;
        packet.key.set_u16(at::ETH_TYPE, 0);
        packet.layers.vlans = 0;
        result = packet.ethernet(&mut reader, u8::MAX);
    }
    layers.malformed = result.err();
    layers
}

/// Where results are stored.
struct Packet<'k> {
    key: &'k mut FlowKey,
    layers: &'k mut Layers,
    needed: WordSet,
    /// Whether to read what follows MPLS labels, too.
    through: bool,
}

impl Packet<'_> {
    fn ethernet(&mut self, reader: &mut Reader, vlan_limit: u8) -> Result<(), Malformed> {
        let header = reader
            .take(14)
            .map_err(|missing| missing.reason(Malformed::Ethernet))?;
        copy(self.key, at::ETH_DST, &header[..6]);
        copy(self.key, at::ETH_SRC, &header[6..12]);
        let mut eth_type = be16(header, 12);
        while matches!(eth_type, 0x8100 | 0x88a8) && self.layers.vlans < vlan_limit {
            let tag = match reader.take(4) {
                Ok(tag) => tag,
                Err(missing) => {
                    self.key.set_u16(at::ETH_TYPE, eth_type);
                    self.layers.l3 = reader.at as u16;
                    return Err(missing.reason(Malformed::Vlan));
                }
            };
            if let Some(place) = [at::VLAN_TCI, at::VLAN_TCI2].get(usize::from(self.layers.vlans)) {
                self.key.set_u16(*place, be16(tag, 0) | VLAN_PRESENT);
            }
            eth_type = be16(tag, 2);
            self.layers.vlans += 1;
        }
        if eth_type < ETH_TYPE_MIN {
            eth_type = snap(reader)?;
        }
        self.key.set_u16(at::ETH_TYPE, eth_type);
        self.layers.l3 = reader.at as u16;
        match eth_type {
            0x0800 => self.ipv4(reader),
            0x86dd => self.ipv6(reader),
            0x0806 | 0x8035 => self.arp(reader),
            0x8847 | 0x8848 => self.mpls(reader),
            PBB => self.pbb(reader),
            _ => Ok(()),
        }
    }

    /// Reads the service tag (IEEE 802.1Q clause 9.7): priority, use-customer-address bit, service,
    /// and the customer's addresses. Does not read the customer's frame.
    fn pbb(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let tag = reader
            .take(16)
            .map_err(|missing| missing.reason(Malformed::Pbb))?;
        copy(self.key, at::PBB_ISID, &[0, tag[1], tag[2], tag[3]]);
        self.key.set_u8(at::PBB_UCA, tag[0] >> 3 & 1);
        Ok(())
    }

    /// Reads labels up to the bottom of the stack, and nothing behind them.
    fn mpls(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let places = [at::MPLS_LSE, at::MPLS_LSE1, at::MPLS_LSE2];
        let mut depth = 0;
        loop {
            let entry = match reader.take(4) {
                Ok(entry) => entry,
                Err(missing) => {
                    self.layers.l3 = reader.at as u16;
                    return Err(missing.reason(Malformed::Mpls));
                }
            };
            if let Some(place) = places.get(depth) {
                copy(self.key, *place, entry);
                depth += 1;
                self.key.set_u8(at::MPLS_DEPTH, depth as u8);
            }
            if entry[2] & 1 == 1 {
                self.layers.l3 = reader.at as u16;
                return if self.through {
                    self.behind_labels(reader)
                } else {
                    Ok(())
                };
            }
        }
    }

    /// Reads the IP header behind labels. Labels do not say what they carry; the version field of
    /// an IP header does.
    fn behind_labels(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let Ok(first) = reader.peek(1) else {
            return Ok(());
        };
        match first[0] >> 4 {
            4 => {
                self.key.set_u16(at::ETH_TYPE, 0x0800);
                self.ipv4(reader)
            }
            6 => {
                self.key.set_u16(at::ETH_TYPE, 0x86dd);
                self.ipv6(reader)
            }
            _ => Ok(()),
        }
    }

    /// Reads ARP and RARP for Ethernet and IPv4; other kinds have no fields.
    fn arp(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let arp = reader
            .take(28)
            .map_err(|missing| missing.reason(Malformed::Arp))?;
        if arp[..6] != [0, 1, 8, 0, 6, 4] {
            return Ok(());
        }
        copy(self.key, at::IPV4_SRC, &arp[14..18]);
        copy(self.key, at::IPV4_DST, &arp[24..28]);
        if arp[6] == 0 {
            self.key.set_u8(at::IP_PROTO, arp[7]);
        }
        copy(self.key, at::ARP_SHA, &arp[8..14]);
        copy(self.key, at::ARP_THA, &arp[18..24]);
        Ok(())
    }

    fn ipv4(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let header = reader
            .peek(20)
            .map_err(|missing| missing.reason(Malformed::Ipv4Short))?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        if header_len < 20 || header_len > reader.left() {
            return Err(Malformed::Ipv4HeaderLength);
        }
        let length = usize::from(be16(header, 2));
        // More than 64 KiB behind the packet is not padding; Open vSwitch cannot count it.
        if length > reader.left() || length < header_len || reader.left() - length > 0xffff {
            return Err(Malformed::Ipv4TotalLength);
        }
        if reader.peek(header_len).is_err() {
            return Err(Malformed::Split);
        }
        reader.end = reader.at + length;
        reader.at += header_len;
        self.layers.end = reader.end as u32;
        self.layers.l4 = reader.at as u16;
        copy(self.key, at::IPV4_SRC, &header[12..20]);
        self.key.set_u8(at::IP_PROTO, header[9]);
        self.key.set_u8(at::IP_TOS, header[1]);
        self.key.set_u8(at::IP_TTL, header[8]);
        let fragment = be16(header, 6);
        if fragment & 0x3fff != 0 {
            let later = if fragment & 0x1fff != 0 {
                FRAGMENT_LATER
            } else {
                0
            };
            self.key.set_u8(at::IP_FRAG, FRAGMENT | later);
        }
        if fragment & 0x1fff != 0 {
            return Ok(());
        }
        self.transport(reader, header[9])
    }

    fn ipv6(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let header = reader
            .take(40)
            .map_err(|missing| missing.reason(Malformed::Ipv6Short))?;
        let length = usize::from(be16(header, 4));
        if length > reader.left() || reader.left() - length > 0xffff {
            return Err(Malformed::Ipv6PayloadLength);
        }
        reader.end = reader.at + length;
        self.layers.end = reader.end as u32;
        copy(self.key, at::IPV6_SRC, &header[8..40]);
        let mut fragment = 0;
        let protocol = self.extensions(reader, header[6], &mut fragment)?;
        self.layers.l4 = reader.at as u16;
        copy(
            self.key,
            at::IPV6_LABEL,
            &[0, header[1] & 0x0f, header[2], header[3]],
        );
        self.key.set_u8(at::IP_PROTO, protocol);
        self.key.set_u8(at::IP_TOS, header[0] << 4 | header[1] >> 4);
        self.key.set_u8(at::IP_TTL, header[7]);
        self.key.set_u8(at::IP_FRAG, fragment);
        if fragment & FRAGMENT_LATER != 0 {
            return Ok(());
        }
        self.transport(reader, protocol)
    }

    /// Skips extension headers and returns the protocol of what follows, which is 44 in later
    /// fragments. Every header has at least 8 bytes, so the walk ends.
    fn extensions(
        &mut self,
        reader: &mut Reader,
        first: u8,
        fragment: &mut u8,
    ) -> Result<u8, Malformed> {
        let mut protocol = first;
        let mut seen = Extensions::default();
        let broken = |missing: Missing| missing.reason(Malformed::Ipv6Extension);
        let result = loop {
            seen.note(protocol);
            if !matches!(protocol, 0 | 43 | 44 | 51 | 60) {
                break Ok(protocol);
            }
            let header = match reader.peek(8) {
                Ok(header) => header,
                Err(missing) => break Err(broken(missing)),
            };
            let length = match protocol {
                44 => 8,
                51 => (usize::from(header[1]) + 2) * 4,
                _ => (usize::from(header[1]) + 1) * 8,
            };
            // An authentication header with a length field of 0 has 8 bytes, too.
            if let Err(missing) = reader.take(length) {
                break Err(broken(missing));
            }
            let was = protocol;
            protocol = header[0];
            let offset = be16(header, 2);
            if was == 44 && offset != 0 {
                *fragment = FRAGMENT;
                if offset & 0xfff8 != 0 {
                    *fragment |= FRAGMENT_LATER;
                    break Ok(44);
                }
            }
        };
        self.key.set_u16(at::IPV6_EXT, seen.bits);
        result
    }

    fn transport(&mut self, reader: &mut Reader, protocol: u8) -> Result<(), Malformed> {
        let length = match protocol {
            6 => 20,
            17 | 1 | 2 | 58 => 8,
            132 => 12,
            _ => return Ok(()),
        };
        let header = reader
            .take(length)
            .map_err(|missing| missing.reason(Malformed::Transport))?;
        if protocol == 6 {
            // A data offset that is too small, or past the segment, makes the transport header
            // invalid, as in Open vSwitch.
            let options = (usize::from(header[12] >> 4) * 4).checked_sub(length);
            if options.is_none_or(|options| options > reader.left()) {
                return Err(Malformed::Transport);
            }
        }
        self.layers.transport = true;
        match protocol {
            1 | 2 | 58 => {
                self.key.set_u16(at::TP_SRC, header[0].into());
                self.key.set_u16(at::TP_DST, header[1].into());
            }
            _ => copy(self.key, at::TP_SRC, &header[..4]),
        }
        if protocol == 6 {
            self.key.set_u16(at::TCP_FLAGS, be16(header, 12) & 0x0fff);
        }
        let discovery = WordSet::of_bytes(at::ND_TARGET, 24 + 6);
        let wanted = !self.needed.intersect(discovery).is_empty();
        if wanted && protocol == 58 && matches!(header[0], 135 | 136) && header[1] == 0 {
            return self.neighbour(reader);
        }
        Ok(())
    }

    /// Reads target and link-layer addresses. A second address of one kind invalidates all of them,
    /// as in Open vSwitch.
    fn neighbour(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let target = match reader.take(16) {
            Ok(target) => target,
            Err(Missing::Short) => return Ok(()),
            Err(Missing::Split) => return Err(Malformed::Split),
        };
        let mut addresses = [[0; 6]; 2];
        let mut options_type = 0;
        let mut sound = true;
        while reader.left() >= 8 {
            let option = match reader.peek(8) {
                Ok(option) => option,
                Err(Missing::Short) => break, // beyond the limit for headers
                Err(Missing::Split) => return Err(Malformed::Split),
            };
            let length = usize::from(option[1]) * 8;
            if length == 0 || length > reader.left() {
                break;
            }
            if matches!(option[0], 1 | 2) && length == 8 {
                let address = &mut addresses[usize::from(option[0] - 1)];
                if *address != [0; 6] {
                    sound = false;
                    break;
                }
                address.copy_from_slice(&option[2..]);
                if options_type == 0 {
                    options_type = option[0];
                }
            }
            match reader.take(length) {
                Ok(_) => {}
                Err(Missing::Short) => break,
                Err(Missing::Split) => return Err(Malformed::Split),
            }
        }
        self.key.set_u8(at::ND_OPTIONS_TYPE, options_type);
        if sound {
            copy(self.key, at::ND_TARGET, target);
            copy(self.key, at::ARP_SHA, &addresses[0]);
            copy(self.key, at::ARP_THA, &addresses[1]);
        }
        Ok(())
    }
}

/// Reads the Ethertype of an 802.2 LLC and SNAP header; advances past it if there is one.
fn snap(reader: &mut Reader) -> Result<u16, Malformed> {
    let header = match reader.peek(8) {
        Ok(header) => header,
        Err(Missing::Short) => return Ok(ETH_TYPE_NONE),
        Err(Missing::Split) => return Err(Malformed::Split),
    };
    if header[..6] != [0xaa, 0xaa, 3, 0, 0, 0] {
        return Ok(ETH_TYPE_NONE);
    }
    reader.at += 8;
    let eth_type = be16(header, 6);
    Ok(if eth_type < ETH_TYPE_MIN {
        ETH_TYPE_NONE
    } else {
        eth_type
    })
}

/// The extension headers met, and whether they were in the order of RFC 8200 section 4.1.
#[derive(Default)]
struct Extensions {
    bits: u16,
    /// Rank in that order of the last one.
    last: u8,
    /// Number of destination options headers met.
    destinations: u8,
}

impl Extensions {
    fn note(&mut self, protocol: u8) {
        use extension::*;
        let (bit, mut rank) = match protocol {
            0 => (HOP_BY_HOP, 1),
            60 => (DESTINATION, 2),
            43 => (ROUTER, 3),
            44 => (FRAGMENT, 4),
            51 => (AUTHENTICATION, 5),
            50 => (ESP, 6),
            59 => (NO_NEXT, 8),
            _ => return,
        };
        let mut repeated = self.bits & bit != 0;
        if bit == DESTINATION {
            // Allowed once before a routing header and once at the end.
            repeated = self.destinations >= 2;
            self.destinations = self.destinations.saturating_add(1);
            if self.last >= 2 {
                rank = 7;
            }
        }
        if repeated {
            self.bits |= REPEATED;
        }
        if rank < self.last {
            self.bits |= OUT_OF_ORDER;
        }
        self.last = rank;
        self.bits |= bit;
    }
}
