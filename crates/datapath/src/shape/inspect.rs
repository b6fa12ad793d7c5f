//! What a shaped port reads of a frame (its flow, its length on the wire) and the marks it writes.

use packet::Frame;
use packet::frame::Gso;

/// Returns the bytes of a frame once it has been segmented: each segment of a TCP frame has headers
/// of its own.
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

/// Returns a hash shared by the frames of one flow: of addresses, protocol and ports of IPv4 and
/// IPv6, behind up to two VLAN tags; of the Ethernet header for other frames.
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
            // Only first fragments have ports; without them all fragments stay together.
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

/// Sets ECN's "congestion experienced" in a packet of an ECN-capable sender (RFC 3168).
pub(super) fn mark<F: Frame>(frame: &mut F) {
    change_tos(frame, |tos| match tos & 3 {
        1 | 2 => tos | 3,
        _ => tos,
    });
}

/// Writes the DSCP of an IPv4 or IPv6 packet (RFC 2474).
pub(crate) fn set_dscp<F: Frame>(frame: &mut F, dscp: u8) {
    change_tos(frame, |tos| dscp << 2 | tos & 3);
}

/// Changes the type of service (traffic class) of an IPv4 or IPv6 packet, behind up to two VLAN
/// tags.
pub(crate) fn change_tos<F: Frame>(frame: &mut F, change: impl Fn(u8) -> u8) {
    // Headers are in the first segment, except in frames that are split on purpose.
    if frame.head().len() < 14 + 8 + 20 && !frame.linearize(14 + 8 + 20) {
        return;
    }
    let bytes = frame.head_mut();
    let mut at = 12;
    while at < 20 && matches!(be16(bytes, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    let (kind, ip) = (be16(bytes, at), at + 2);
    let Some(header) = bytes.get_mut(ip..ip + 20) else {
        return;
    };
    let old = be16(header, 0);
    match kind {
        0x0800 if header[0] >> 4 == 4 => {
            header[1] = change(header[1]);
            // RFC 1624: HC' = ~(~HC + ~m + m').
            let mut sum = u32::from(!be16(header, 10)) + u32::from(!old);
            sum += u32::from(be16(header, 0));
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        0x86dd if header[0] >> 4 == 6 => {
            let tos = u16::from(change((old >> 4) as u8));
            header[..2].copy_from_slice(&(old & 0xf00f | tos << 4).to_be_bytes());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::HeapFrame;
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

    fn sum_is_right(header: &[u8]) -> bool {
        let sum: u32 = (0..10).map(|at| u32::from(be16(header, at * 2))).sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn a_dscp_leaves_the_rest_of_the_packet_and_a_right_checksum() {
        for (dscp, ecn, tagged, ident) in (0..64 * 4 * 2).map(|n: u16| {
            let random = u32::from(n).wrapping_mul(0x9e37_79b9) >> 16;
            (n as u8 >> 3, n as u8 & 3, n >> 2 & 1 == 1, random as u16)
        }) {
            let mut bytes = ip(5);
            bytes[15] = ident as u8 & !3 | ecn;
            bytes[18..20].copy_from_slice(&ident.to_be_bytes());
            bytes[24..26].copy_from_slice(&[0, 0]);
            let sum: u32 = (7..17).map(|at| u32::from(be16(&bytes, at * 2))).sum();
            let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            let at = if tagged {
                bytes.splice(12..12, [0x81, 0, 0, 7]);
                18
            } else {
                14
            };
            assert!(sum_is_right(&bytes[at..at + 20]));
            let mut frame = HeapFrame::new(&bytes);
            set_dscp(&mut frame, dscp);
            let now = frame.to_vec();
            assert_eq!(now[at + 1], dscp << 2 | ecn);
            assert!(sum_is_right(&now[at..at + 20]), "{dscp} {ecn} {ident:x}");
            bytes[at + 1] = now[at + 1];
            bytes[at + 10..at + 12].copy_from_slice(&now[at + 10..at + 12]);
            assert_eq!(now, bytes);
        }
    }

    #[test]
    fn a_dscp_of_ipv6_is_the_traffic_classs() {
        let mut bytes = vec![0; 14 + 40];
        bytes[12..16].copy_from_slice(&[0x86, 0xdd, 0x6a, 0xbc]);
        let mut frame = HeapFrame::new(&bytes);
        set_dscp(&mut frame, 46);
        // 0xab was DSCP 42 with ECN 3; the first digit of the flow label stays.
        assert_eq!(frame.to_vec()[14..16], [0x6b, 0xbc]);
        mark(&mut frame);
        assert_eq!(frame.to_vec()[14..16], [0x6b, 0xbc]);
    }

    #[test]
    fn packets_without_a_whole_ip_header_are_not_marked() {
        for bytes in [&[0; 60][..], &ip(5)[..30], &ip(5)[..3], &[]] {
            let mut frame = HeapFrame::new(bytes);
            set_dscp(&mut frame, 46);
            mark(&mut frame);
            assert_eq!(frame.to_vec(), bytes);
        }
    }
}
