//! A packet as a vector of bytes, edited the plain way: find the header, write the bytes, compute
//! checksums from scratch.
//!
//! Correct for packets whose checksums were correct. Headers behind 802.2 are not parsed: fields
//! there count as absent.

mod encapsulation;

use packet::Field;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Packet {
    bytes: Vec<u8>,
    /// Number of tags that rules can see: the first of those that the packet came with, and all
    /// that were pushed. As with Open vSwitch's default `vlan-limit`, nothing behind an unseen tag
    /// is seen either.
    tags: usize,
}

/// The positions of headers.
struct Headers {
    eth_type: u16,
    /// Position behind the Ethertype.
    l3: usize,
    /// IP protocol, position of the transport header, end of the datagram; only if it is whole and
    /// well-formed.
    transport: Option<(u8, usize, usize)>,
    /// There is a well-formed IP header.
    ip: bool,
}

impl Packet {
    pub fn new(bytes: &[u8]) -> Packet {
        let mut packet = Packet {
            bytes: bytes.to_vec(),
            tags: 0,
        };
        packet.see_first_tag();
        packet
    }

    fn see_first_tag(&mut self) {
        let tagged = [0x8100, 0x88a8].contains(&self.u16(12)) && self.bytes.len() >= 18;
        self.tags = self.tags.max(tagged.into());
    }

    /// Returns the frame without pushed tags, as the parser expects it: only the innermost of the
    /// seen tags is left.
    pub fn as_received(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.drain(12..12 + 4 * self.tags.saturating_sub(1));
        bytes
    }

    /// Returns the two outermost seen tags, in the key's form.
    pub fn tcis(&self) -> [u16; 2] {
        [0, 1].map(|index| {
            if index < self.tags {
                self.u16(14 + 4 * index) | 0x1000
            } else {
                0
            }
        })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    fn u16(&self, at: usize) -> u16 {
        match self.bytes.get(at..at + 2) {
            Some(bytes) => u16::from(bytes[0]) << 8 | u16::from(bytes[1]),
            None => 0,
        }
    }

    fn headers(&self) -> Headers {
        let eth_type = self.u16(12 + 4 * self.tags);
        let l3 = 14 + 4 * self.tags;
        let (ip, transport) = match eth_type {
            IPV4 => self.ipv4(l3),
            IPV6 => self.ipv6(l3),
            _ => (false, None),
        };
        Headers {
            eth_type,
            l3,
            transport,
            ip,
        }
    }

    fn ipv4(&self, l3: usize) -> (bool, Option<(u8, usize, usize)>) {
        let Some(header) = self.bytes.get(l3..l3 + 20) else {
            return (false, None);
        };
        let header_len = usize::from(header[0] & 15) * 4;
        let total = usize::from(self.u16(l3 + 2));
        if header_len < 20 || total < header_len || l3 + total > self.bytes.len() {
            return (false, None);
        }
        let later = self.u16(l3 + 6) & 0x1fff != 0;
        (
            true,
            whole(&self.bytes, header[9], l3 + header_len, l3 + total).filter(|_| !later),
        )
    }

    fn ipv6(&self, l3: usize) -> (bool, Option<(u8, usize, usize)>) {
        let Some(header) = self.bytes.get(l3..l3 + 40) else {
            return (false, None);
        };
        let end = l3 + 40 + usize::from(self.u16(l3 + 4));
        if end > self.bytes.len() {
            return (false, None);
        }
        // Extension headers: a datagram in which they do not end is not well-formed.
        let (mut kind, mut at) = (header[6], l3 + 40);
        while [0, 43, 44, 51, 60].contains(&kind) {
            let length = match (kind, self.bytes.get(at + 1)) {
                (_, None) => return (false, None),
                (44, _) => 8,
                (51, Some(units)) => (usize::from(*units) + 2) * 4,
                (_, Some(units)) => (usize::from(*units) + 1) * 8,
            };
            if at + length.max(8) > end {
                return (false, None);
            }
            if kind == 44 && self.u16(at + 2) & 0xfff8 != 0 {
                return (true, None);
            }
            kind = self.bytes[at];
            at += length;
        }
        (true, whole(&self.bytes, kind, at, end))
    }

    pub fn ttl(&self) -> Option<u8> {
        let headers = self.headers();
        let at = headers.l3 + if headers.eth_type == IPV6 { 7 } else { 8 };
        headers.ip.then(|| self.bytes[at])
    }

    pub fn push_vlan(&mut self, ethertype: u16) {
        let [high, low] = ethertype.to_be_bytes();
        self.bytes.splice(12..12, [high, low, 0, 0]);
        self.tags += 1;
    }

    pub fn pop_vlan(&mut self) {
        if self.tags > 0 {
            self.bytes.drain(12..16);
            self.tags -= 1;
            self.see_first_tag();
        }
    }

    /// Writes bits of the outermost tag; an untagged packet first gets one if `push`.
    pub fn set_tag(&mut self, push: bool, mask: u16, value: u16) {
        if self.tags == 0 {
            if !push {
                return;
            }
            self.push_vlan(0x8100);
        }
        let tci = self.u16(14) & !mask | value & mask;
        self.bytes[14..16].copy_from_slice(&tci.to_be_bytes());
    }

    /// Writes a whole field from a number, if the packet has the field.
    pub fn write(&mut self, field: Field, number: u128) {
        match field {
            Field::VlanTci if number & 0x1000 == 0 => return self.pop_vlan(),
            Field::VlanTci => return self.set_tag(true, 0xefff, number as u16),
            Field::VlanVid | Field::DlVlan => return self.set_tag(false, 0x0fff, number as u16),
            Field::VlanPcp | Field::DlVlanPcp => {
                return self.set_tag(false, 0xe000, (number as u16) << 13);
            }
            Field::IpProto => return self.write_protocol(number as u8),
            _ => {}
        }
        let headers = self.headers();
        if let Some((at, start, bits)) = self.place(field, &headers) {
            let len = (start + bits).div_ceil(8);
            let checksums = self.checksums(&headers);
            let Some(bytes) = self.bytes.get_mut(at..at + len) else {
                return;
            };
            let old = bytes
                .iter()
                .fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
            let mask = if bits == 128 {
                u128::MAX
            } else {
                ((1 << bits) - 1) << start
            };
            let new = old & !mask | number << start & mask;
            bytes.copy_from_slice(&new.to_be_bytes()[16 - len..]);
            if field == Field::ArpOp {
                self.bytes[at - 1] = 0;
            }
            if field == Field::EthType {
                return self.see_first_tag();
            }
            // Fields in front of the IP header are in no checksum. Fixing checksums would still
            // change those that are wrong only by their kind of zero (0 or 0xffff).
            if at >= headers.l3 {
                self.fix_checksums(&headers, checksums);
            }
        }
    }

    /// Returns a field's position: its first byte, and its lowest bit and width within the number
    /// that begins there.
    fn place(&self, field: Field, headers: &Headers) -> Option<(usize, usize, usize)> {
        use Field::*;
        let l3 = headers.l3;
        let v4 = headers.ip && headers.eth_type == IPV4;
        let v6 = headers.ip && headers.eth_type == IPV6;
        let arp = [0x0806, 0x8035].contains(&headers.eth_type)
            && self
                .bytes
                .get(l3..l3 + 28)
                .is_some_and(|arp| arp.starts_with(&[0, 1, 8, 0, 6, 4]));
        let mpls = [0x8847, 0x8848].contains(&headers.eth_type) && self.bytes.len() >= l3 + 4;
        let transport = |wanted, header| match headers.transport {
            Some((protocol, l4, end)) if protocol == wanted && end - l4 >= header => Some(l4),
            _ => None,
        };
        let when = |condition: bool, at, start, bits| condition.then_some((at, start, bits));
        match field {
            EthDst => when(self.bytes.len() >= 14, 0, 0, 48),
            EthSrc => when(self.bytes.len() >= 14, 6, 0, 48),
            MplsLabel => when(mpls, l3, 12, 20),
            MplsTc => when(mpls, l3, 9, 3).map(|_| (l3 + 2, 1, 3)),
            MplsTtl => when(mpls, l3 + 3, 0, 8),
            MplsBos => when(mpls, l3 + 2, 0, 1),
            PbbIsid => when(self.has_service(), l3 + 1, 0, 24),
            PbbUca => when(self.has_service(), l3, 3, 1),
            EthType => when(l3 <= self.bytes.len(), l3 - 2, 0, 16),
            ArpOp => when(arp, l3 + 7, 0, 8),
            ArpSha => when(arp, l3 + 8, 0, 48),
            ArpSpa => when(arp, l3 + 14, 0, 32),
            ArpTha => when(arp, l3 + 18, 0, 48),
            ArpTpa => when(arp, l3 + 24, 0, 32),
            IpDscp | IpDscpShifted if v6 => Some((l3, 6, 6)),
            IpDscp | IpDscpShifted => when(v4, l3 + 1, 2, 6),
            IpEcn if v6 => Some((l3 + 1, 4, 2)),
            IpEcn => when(v4, l3 + 1, 0, 2),
            IpTtl if v6 => Some((l3 + 7, 0, 8)),
            IpTtl => when(v4, l3 + 8, 0, 8),
            Ipv4Src => when(v4, l3 + 12, 0, 32),
            Ipv4Dst => when(v4, l3 + 16, 0, 32),
            Ipv6Label => when(v6, l3 + 1, 0, 20),
            Ipv6Src => when(v6, l3 + 8, 0, 128),
            Ipv6Dst => when(v6, l3 + 24, 0, 128),
            TcpSrc => transport(6, 20).map(|l4| (l4, 0, 16)),
            TcpDst => transport(6, 20).map(|l4| (l4 + 2, 0, 16)),
            UdpSrc => transport(17, 8).map(|l4| (l4, 0, 16)),
            UdpDst => transport(17, 8).map(|l4| (l4 + 2, 0, 16)),
            SctpSrc => transport(132, 12).map(|l4| (l4, 0, 16)),
            SctpDst => transport(132, 12).map(|l4| (l4 + 2, 0, 16)),
            Icmpv4Type if v4 => transport(1, 8).map(|l4| (l4, 0, 8)),
            Icmpv4Code if v4 => transport(1, 8).map(|l4| (l4 + 1, 0, 8)),
            Icmpv6Type if v6 => transport(58, 8).map(|l4| (l4, 0, 8)),
            Icmpv6Code if v6 => transport(58, 8).map(|l4| (l4 + 1, 0, 8)),
            NdTarget | NdSll | NdTll if v6 => self.neighbour(field, headers.transport?),
            _ => None,
        }
    }

    /// Returns the position of a field of neighbour discovery (RFC 4861 sections 4.3, 4.4 and
    /// 4.6.1). A message with two addresses of one kind has none.
    fn neighbour(
        &self,
        field: Field,
        (protocol, l4, end): (u8, usize, usize),
    ) -> Option<(usize, usize, usize)> {
        let message = &self.bytes[l4..end];
        let kinds: &[u8] = match field {
            Field::NdSll => &[135],
            Field::NdTll => &[136],
            _ => &[135, 136],
        };
        if protocol != 58 || message.len() < 24 || !kinds.contains(&message[0]) || message[1] != 0 {
            return None;
        }
        let mut options: Vec<(u8, usize)> = Vec::new();
        let mut from = 24;
        while message.len() >= from + 8 && message[from + 1] != 0 {
            if message[from + 1] == 1 {
                options.push((message[from], from + 2));
            }
            from += usize::from(message[from + 1]) * 8;
        }
        let of = |kind: u8| options.iter().filter(move |(other, _)| *other == kind);
        if of(1).count() > 1 || of(2).count() > 1 {
            return None;
        }
        match field {
            Field::NdSll => of(1).next().map(|(_, place)| (l4 + place, 0, 48)),
            Field::NdTll => of(2).next().map(|(_, place)| (l4 + place, 0, 48)),
            _ => Some((l4 + 8, 0, 128)),
        }
    }

    fn put(&mut self, at: usize, number: u16) {
        self.bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
    }

    /// Returns the position of each checksum, and its correct value.
    fn checksums(&self, headers: &Headers) -> Vec<(usize, Checksum)> {
        let mut all = Vec::new();
        let l3 = headers.l3;
        if headers.ip && headers.eth_type == IPV4 {
            let mut header = self.bytes[l3..l3 + usize::from(self.bytes[l3] & 15) * 4].to_vec();
            header[10..12].fill(0);
            all.push((l3 + 10, Checksum::Ones(!folded(sum(&header)))));
        }
        let Some((protocol, l4, end)) = headers.transport else {
            return all;
        };
        let mut segment = self.bytes[l4..end].to_vec();
        let place = match protocol {
            6 => 16,
            17 if self.u16(l4 + 6) != 0 => 6,
            1 | 58 => 2,
            132 => {
                segment[8..12].fill(0);
                all.push((l4 + 8, Checksum::Crc(crc32c(&segment))));
                return all;
            }
            _ => return all,
        };
        segment[place..place + 2].fill(0);
        let addresses = if headers.eth_type == IPV4 {
            l3 + 12..l3 + 20
        } else {
            l3 + 8..l3 + 40
        };
        let pseudo = match (protocol, headers.eth_type) {
            (1, _) | (58, IPV4) => 0,
            _ => sum(&self.bytes[addresses]) + u64::from(protocol) + (end - l4) as u64,
        };
        all.push((l4 + place, Checksum::Ones(!folded(pseudo + sum(&segment)))));
        all
    }

    /// Updates checksums after an edit: correct ones stay correct, wrong ones stay wrong by the
    /// same amount. `before`: the correct values before the edit.
    fn fix_checksums(&mut self, headers: &Headers, before: Vec<(usize, Checksum)>) {
        let udp = matches!(headers.transport, Some((17, ..)));
        for ((place, old), (_, new)) in before.into_iter().zip(self.checksums(headers)) {
            match (old, new) {
                (Checksum::Crc(old), Checksum::Crc(new)) => {
                    for (byte, change) in self.bytes[place..]
                        .iter_mut()
                        .zip((old ^ new).to_le_bytes())
                    {
                        *byte ^= change;
                    }
                }
                (Checksum::Ones(old), Checksum::Ones(new)) => {
                    let stored = self.u16(place);
                    // No error may show as 0 or as 0xffff.
                    let wrong = folded(u64::from(stored) + u64::from(!old));
                    let mut sum = match wrong {
                        0 | 0xffff => new,
                        _ => folded(u64::from(wrong) + u64::from(new)) % 0xffff,
                    };
                    if udp && sum == 0 && place != headers.l3 + 10 {
                        sum = 0xffff;
                    }
                    self.put(place, sum);
                }
                _ => unreachable!("the protocol is the same"),
            }
        }
    }
}

/// The correct value of a checksum.
enum Checksum {
    Ones(u16),
    Crc(u32),
}

/// Returns a transport header if it is whole; otherwise its fields and checksum count as absent.
fn whole(bytes: &[u8], protocol: u8, l4: usize, end: usize) -> Option<(u8, usize, usize)> {
    let length = end.checked_sub(l4)?;
    let fits = match protocol {
        6 if length >= 20 => (20..=length).contains(&(usize::from(bytes[l4 + 12] >> 4) * 4)),
        6 => false,
        1 | 2 | 17 | 58 => length >= 8,
        132 => length >= 12,
        _ => true,
    };
    fits.then_some((protocol, l4, end))
}

fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Computes CRC32c bit by bit (RFC 9260 appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}
