//! MPLS labels, PBB headers, and fields that say which header follows.

use super::{IPV4, IPV6, Packet};
use packet::FlowKey;
use packet::key::at;

const BOTTOM: u32 = 0x100;

impl Packet {
    fn eth_type_at(&self) -> usize {
        12 + 4 * self.tags
    }

    /// Returns the label stack entry of the outermost label.
    pub fn label(&self) -> Option<u32> {
        let at = self.eth_type_at();
        let mpls = [0x8847, 0x8848].contains(&self.u16(at)) && self.bytes.len() >= at + 6;
        mpls.then(|| u32::from(self.u16(at + 2)) << 16 | u32::from(self.u16(at + 4)))
    }

    /// Returns whether there is a service tag with the customer's addresses behind it.
    pub fn has_service(&self) -> bool {
        let at = self.eth_type_at();
        self.u16(at) == 0x88e7 && self.bytes.len() >= at + 18
    }

    /// Pushes a label. `key` is the packet's own, used because its IP header may be malformed.
    pub fn push_mpls(&mut self, ethertype: u16, key: &FlowKey) {
        let at = self.eth_type_at();
        let entry = match (self.label(), self.u16(at)) {
            (Some(entry), _) => entry & !BOTTOM,
            (None, kind @ (IPV4 | IPV6)) => {
                let label: u32 = if kind == IPV6 { 2 } else { 0 };
                let class = u32::from(key.u8(at::IP_TOS)) >> 2 & 7;
                let ttl = match u32::from(key.u8(at::IP_TTL)) {
                    0 => 64,
                    ttl => ttl,
                };
                label << 12 | class << 9 | BOTTOM | ttl
            }
            _ => BOTTOM | 64,
        };
        let mut new = ethertype.to_be_bytes().to_vec();
        new.extend_from_slice(&entry.to_be_bytes());
        self.bytes.splice(at..at + 2, new);
    }

    pub fn pop_mpls(&mut self, ethertype: u16) {
        if self.label().is_some() {
            let at = self.eth_type_at();
            self.bytes.splice(at..at + 6, ethertype.to_be_bytes());
            self.see_first_tag();
        }
    }

    /// Returns the position of the TTL behind the outermost label.
    fn inner_ttl(&self) -> Option<usize> {
        let next = self.eth_type_at() + 6;
        let left = self.bytes.len().saturating_sub(next);
        if self.label()? & BOTTOM == 0 {
            return (left >= 4).then_some(next + 3);
        }
        let first = *self.bytes.get(next)?;
        match first >> 4 {
            4 if left >= 20 && first & 15 >= 5 => Some(next + 8),
            6 if left >= 8 => Some(next + 7),
            _ => None,
        }
    }

    /// Copies a TTL between the outermost label and the header behind it: outwards if `out`.
    pub fn copy_ttl(&mut self, out: bool) {
        let Some(inner) = self.inner_ttl() else {
            return;
        };
        let outer = self.eth_type_at() + 5;
        if out {
            self.bytes[outer] = self.bytes[inner];
            return;
        }
        let (old, new) = (self.bytes[inner], self.bytes[outer]);
        self.bytes[inner] = new;
        let next = self.eth_type_at() + 6;
        if inner == next + 8 {
            // One's complement: subtract the old word, add the new one.
            let sum = u64::from(!self.u16(next + 10))
                + u64::from(!(u16::from(old) << 8))
                + (u64::from(new) << 8);
            self.put(next + 10, !super::folded(sum));
        }
    }

    pub fn push_pbb(&mut self) {
        let priority = if self.tags > 0 {
            self.bytes[14] & 0xe0
        } else {
            0
        };
        let mut header = self.bytes[..12].to_vec();
        header.extend_from_slice(&[0x88, 0xe7, priority, 0, 0, 0]);
        if self.has_service() {
            let service = self.eth_type_at() + 3;
            header[15..18].copy_from_slice(&self.bytes[service..service + 3]);
        }
        self.bytes.splice(0..0, header);
        self.tags = 0;
    }

    pub fn pop_pbb(&mut self) {
        if self.has_service() {
            let at = self.eth_type_at();
            let customer = self.bytes[at + 6..at + 18].to_vec();
            let tags = self.bytes[12..at].to_vec();
            self.bytes.splice(0..at + 18, [customer, tags].concat());
            self.see_first_tag();
        }
    }

    /// Writes the protocol of an IP header and updates the checksums that include it.
    pub fn write_protocol(&mut self, protocol: u8) {
        let headers = self.headers();
        if !headers.ip {
            return;
        }
        let length = if headers.eth_type == IPV4 { 9 } else { 6 };
        let place = headers.l3 + length;
        // The correct checksums before, and after it with the new number in header and pseudo
        // header.
        let before = self.checksums(&headers);
        let Some((old, l4, end)) = headers.transport else {
            // A later fragment. In IPv6 its content does not begin with a protocol's header.
            if headers.eth_type == IPV4 {
                self.bytes[place] = protocol;
                self.fix_checksums(&headers, before);
            }
            return;
        };
        if headers.eth_type == IPV6 && l4 != headers.l3 + 40 {
            return; // extension headers are not handled here
        }
        self.bytes[place] = protocol;
        self.fix_checksums(&headers, before);
        let checksum = match old {
            6 => l4 + 16,
            17 if self.u16(l4 + 6) != 0 => l4 + 6,
            58 if headers.eth_type == IPV6 => l4 + 2,
            _ => return,
        };
        debug_assert!(checksum < end);
        // One's complement: subtract the old number, add the new one.
        let sum = u64::from(!self.u16(checksum)) + u64::from(!u16::from(old)) + u64::from(protocol);
        let mut new = !super::folded(sum);
        if old == 17 && new == 0 {
            new = 0xffff;
        }
        self.put(checksum, new);
    }
}
