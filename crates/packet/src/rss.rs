//! The hash by which network cards spread flows over their receive queues (receive-side scaling):
//! for devices that do not report it with each frame.
//!
//! The hash is Toeplitz's, over addresses and ports as they are in the headers ("RSS hashing
//! types", Microsoft's specification for NDIS; virtio 1.2, section 5.1.6.4.3). VLAN tags are
//! skipped. Devices differ in what they hash for fragments, tunnels and extension headers, so what
//! is returned for those may be another hash than the device's.

use crate::flow_hash::behind_tags;

/// Most bytes of a key that devices use.
pub const KEY_MAX: usize = 52;
/// Bytes hashed at most: two IPv6 addresses and two ports.
const INPUT_MAX: usize = 36;

/// Which packets are hashed by what; all others have the hash 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// IPv4 packets by their addresses.
    pub ipv4: bool,
    /// TCP over IPv4 also by ports.
    pub tcp4: bool,
    /// UDP over IPv4 also by ports.
    pub udp4: bool,
    /// IPv6 packets by their addresses.
    pub ipv6: bool,
    /// TCP over IPv6 also by ports.
    pub tcp6: bool,
    /// UDP over IPv6 also by ports.
    pub udp6: bool,
}

/// A device's hash.
#[derive(Clone, Debug)]
pub struct Rss {
    key: [u8; KEY_MAX],
    kinds: Kinds,
}

impl Rss {
    /// Creates it from a device's key, of which at most [`KEY_MAX`] bytes count; missing ones are
    /// 0.
    pub fn new(key: &[u8], kinds: Kinds) -> Rss {
        let mut all = [0; KEY_MAX];
        let length = key.len().min(KEY_MAX);
        all[..length].copy_from_slice(&key[..length]);
        Rss { key: all, kinds }
    }

    /// Returns the hash of a frame that begins with these bytes.
    pub fn hash(&self, head: &[u8]) -> u32 {
        let mut input = [0; INPUT_MAX];
        match self.input(head, &mut input) {
            Some(length) => self.toeplitz(&input[..length]),
            None => 0,
        }
    }

    /// Writes what is hashed of a frame; returns its length, None if that is nothing.
    fn input(&self, head: &[u8], input: &mut [u8; INPUT_MAX]) -> Option<usize> {
        let (ethertype, at) = behind_tags(head)?;
        let (addresses, protocol, transport, kinds) = match ethertype {
            0x0800 => {
                let header = head.get(at..at + 20)?;
                // "More fragments" is set, or the offset is not 0.
                let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
                let transport = at + usize::from(header[0] & 15) * 4;
                let kinds = (self.kinds.ipv4, self.kinds.tcp4, self.kinds.udp4);
                let protocol = if is_fragment { 0 } else { header[9] };
                (&header[12..20], protocol, transport, kinds)
            }
            0x86dd => {
                let header = head.get(at..at + 40)?;
                let kinds = (self.kinds.ipv6, self.kinds.tcp6, self.kinds.udp6);
                (&header[8..40], header[6], at + 40, kinds)
            }
            _ => return None,
        };
        let (by_addresses, tcp, udp) = kinds;
        let ports = match protocol {
            6 if tcp => head.get(transport..transport + 4),
            17 if udp => head.get(transport..transport + 4),
            _ => None,
        };
        if ports.is_none() && !by_addresses {
            return None;
        }
        let length = addresses.len();
        input[..length].copy_from_slice(addresses);
        let Some(ports) = ports else {
            return Some(length);
        };
        input[length..length + 4].copy_from_slice(ports);
        Some(length + 4)
    }

    /// Returns Toeplitz's hash: for each bit that is set, the 32 bits of the key from there on.
    fn toeplitz(&self, input: &[u8]) -> u32 {
        let mut hash = 0;
        let mut window = u64::from_be_bytes(self.key.first_chunk().copied().unwrap_or_default());
        for (at, byte) in input.iter().enumerate() {
            for bit in 0..8 {
                if byte & (0x80 >> bit) != 0 {
                    hash ^= (window >> 32) as u32;
                }
                window <<= 1;
            }
            window |= u64::from(self.key.get(at + 8).copied().unwrap_or(0));
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the packets by which Microsoft's specification has hashes verified.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    const ALL: Kinds = Kinds {
        ipv4: true,
        tcp4: true,
        udp4: true,
        ipv6: true,
        tcp6: true,
        udp6: true,
    };

    fn ethernet(tags: usize, ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 5]));
        frame.extend(ethertype);
        frame.extend(payload);
        frame
    }

    fn ipv4(protocol: u8, fragment: u16, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let mut packet = vec![0x46, 0, 0, 44, 0, 0];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0]);
        packet.extend(from.0);
        packet.extend(to.0);
        packet.extend([1; 4]); // options
        packet.extend(from.1.to_be_bytes());
        packet.extend(to.1.to_be_bytes());
        packet.extend([0; 16]);
        packet
    }

    #[test]
    fn hashes_are_those_of_the_specification() {
        let cases = [
            (
                ([66, 9, 149, 187], 2794),
                ([161, 142, 100, 80], 1766),
                0x323e_8fc2,
                0x51cc_c178,
            ),
            (
                ([199, 92, 111, 2], 14230),
                ([65, 69, 140, 83], 4739),
                0xd718_262a,
                0xc626_b0ea,
            ),
        ];
        let rss = Rss::new(&KEY, ALL);
        for (from, to, by_addresses, by_ports) in cases {
            for (tags, protocol, fragment, wanted) in [
                (0, 6, 0x4000, by_ports),
                (2, 17, 0, by_ports),
                (1, 1, 0, by_addresses),
                (0, 17, 0x2000, by_addresses),
                (0, 6, 1, by_addresses),
            ] {
                let packet = ipv4(protocol, fragment, from, to);
                let frame = ethernet(tags, [8, 0], &packet);
                assert_eq!(rss.hash(&frame), wanted, "{protocol} {fragment} {from:?}");
            }
        }
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        packet.extend([0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff]);
        packet.extend([0, 0, 0, 0, 0, 0, 0, 7]);
        packet.extend([0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x00, 0x03]);
        packet.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        packet.extend(2794u16.to_be_bytes());
        packet.extend(1766u16.to_be_bytes());
        let frame = ethernet(0, [0x86, 0xdd], &packet);
        assert_eq!(rss.hash(&frame), 0x4020_7d3d);
        let only_addresses = Rss::new(&KEY, Kinds { tcp6: false, ..ALL });
        assert_eq!(only_addresses.hash(&frame), 0x2cc1_8cd5);
        let nothing = Rss::new(&KEY, Kinds::default());
        assert_eq!(nothing.hash(&frame), 0);
    }

    #[test]
    fn frames_cut_anywhere_are_hashed_by_what_is_there() {
        let rss = Rss::new(&KEY, ALL);
        let packet = ipv4(17, 0, ([10, 0, 0, 1], 1), ([10, 0, 0, 2], 2));
        let frame = ethernet(1, [8, 0], &packet);
        let whole = rss.hash(&frame);
        let by_addresses = rss.hash(&ethernet(1, [8, 0], &packet[..24]));
        for length in 0..frame.len() {
            let wanted = match length {
                0..38 => 0,
                38..46 => by_addresses,
                _ => whole,
            };
            assert_eq!(rss.hash(&frame[..length]), wanted, "{length}");
        }
    }
}
