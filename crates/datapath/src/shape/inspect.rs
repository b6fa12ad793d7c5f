//! What a shaped port reads of a frame: which flow it belongs to, how long it is on the wire; and the mark it leaves.

use packet::Frame;
use packet::frame::Gso;

/// Bytes of a frame once it has been cut: each segment of a TCP frame has headers of its own.
#[inline]
pub(super) fn len_on_the_wire<F: Frame>(frame: &F) -> u32 {
    let (len, offload) = (frame.len(), frame.offload());
    let segment = usize::from(offload.gso_size);
    let start = usize::from(offload.csum_start);
    let header = match offload.gso {
        Gso::None => return len as u32,
        Gso::Tcp4 | Gso::Tcp6 => {
            let mut offset = [0];
            if !frame.read_at(start + 12, &mut offset) {
                return len as u32;
            }
            start + usize::from(offset[0] >> 4) * 4
        }
        Gso::UdpL4 => start + 8,
    };
    let segments = len.saturating_sub(header).div_ceil(segment.max(1)).max(1);
    (len + (segments - 1) * header) as u32
}

/// A hash that the frames of one flow share: addresses, protocol and ports of IPv4 and IPv6, behind up to two VLAN tags; the Ethernet header of others.
pub(super) fn flow_of(bytes: &[u8]) -> u32 {
    let mut at = 12;
    let mut kind = be16(bytes, at);
    while at < 20 && matches!(kind, 0x8100 | 0x88a8) {
        at += 4;
        kind = be16(bytes, at);
    }
    let ip = at + 2;
    let part = match kind {
        0x0800 => {
            let fragment = be16(bytes, ip + 6) & 0x3fff != 0;
            let header = usize::from(bytes.get(ip).map_or(0, |first| first & 15)) * 4;
            // Fragments have no ports but the first, and stay together without.
            let ports = if fragment { 0 } else { 4 };
            return mix(
                mix(0, bytes.get(ip + 12..ip + 20)),
                bytes.get(ip + header..ip + header + ports),
            );
        }
        0x86dd => ip + 8..ip + 44,
        _ => 0..14,
    };
    mix(0, bytes.get(part))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

fn mix(start: u32, bytes: Option<&[u8]>) -> u32 {
    let words = bytes.unwrap_or_default().chunks_exact(4);
    words.fold(start, |hash, word| {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        (hash.rotate_left(5) ^ word).wrapping_mul(0x27d4_eb2d)
    })
}

/// Says to a sender that takes part (RFC 3168) that its packet met a queue.
pub(super) fn mark<F: Frame>(frame: &mut F) {
    let bytes = frame.head_mut();
    let mut at = 12;
    while at < 20 && matches!(be16(bytes, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    let (kind, ip) = (be16(bytes, at), at + 2);
    let Some(header) = bytes.get_mut(ip..ip + 20) else {
        return;
    };
    match kind {
        0x0800 if matches!(header[1] & 3, 1 | 2) => {
            // RFC 1624: HC' = ~(~HC + ~m + m').
            let old = u32::from(be16(header, 0));
            header[1] |= 3;
            let new = u32::from(be16(header, 0));
            let mut sum = u32::from(!be16(header, 10)) + (!old & 0xffff) + new;
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        0x86dd if matches!(header[1] >> 4 & 3, 1 | 2) => header[1] |= 0x30,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build::Builder;

    fn ip(ports: u16) -> Vec<u8> {
        Builder::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
            .ipv4(0x0a00_0001, 0x0a00_0002)
            .udp(ports, 9)
            .payload(&[0; 18])
            .bytes()
    }

    #[test]
    fn flows_are_told_apart_by_their_addresses_and_ports() {
        assert_eq!(flow_of(&ip(5)), flow_of(&ip(5)));
        assert_ne!(flow_of(&ip(5)), flow_of(&ip(6)));
        let mut other = ip(5);
        other[29] ^= 1;
        assert_ne!(flow_of(&ip(5)), flow_of(&other));
        for len in 0..60 {
            flow_of(&ip(5)[..len]);
        }
    }
}
