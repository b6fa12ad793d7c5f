//! The header in front of frames from and to the kernel that says what must still be done to them:
//! `struct virtio_net_hdr` (virtio 1.1 section 5.1.6), ten bytes in this machine's byte order.

use crate::egress::Transport;
use packet::frame::{Gso, Offload};

/// The header's length.
pub(crate) const LENGTH: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Decodes the header of a frame of `frame_len` bytes. None if it is invalid for that frame.
pub(crate) fn decode(header: &[u8; LENGTH], frame_len: usize) -> Option<Offload> {
    if *header == [0; LENGTH] {
        return Some(Offload::default());
    }
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let mut offload = Offload {
        checksum_valid: header[0] & (DATA_VALID | NEEDS_CSUM) != 0,
        ..Offload::default()
    };
    if header[0] & NEEDS_CSUM != 0 {
        offload.partial_checksum = true;
        offload.csum_start = word(6);
        offload.csum_offset = word(8);
        if usize::from(offload.csum_start) + usize::from(offload.csum_offset) + 2 > frame_len {
            return None;
        }
    }
    offload.gso = match header[1] & !GSO_ECN {
        0 => Gso::None,
        GSO_TCPV4 => Gso::Tcp4,
        GSO_TCPV6 => Gso::Tcp6,
        GSO_UDP_L4 => Gso::UdpL4,
        _ => return None,
    };
    if offload.gso != Gso::None {
        offload.gso_size = word(4);
        if offload.gso_size == 0 {
            return None;
        }
    }
    Some(offload)
}

/// Encodes the header for `offload`; `headers` gives the positions of the frame's headers, if
/// known.
pub(crate) fn encode(offload: &Offload, headers: Option<Transport>) -> [u8; LENGTH] {
    let mut header = [0; LENGTH];
    if offload.partial_checksum {
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&offload.csum_start.to_ne_bytes());
        header[8..10].copy_from_slice(&offload.csum_offset.to_ne_bytes());
    }
    header[1] = match offload.gso {
        Gso::None => return header,
        Gso::Tcp4 => GSO_TCPV4,
        Gso::Tcp6 => GSO_TCPV6,
        Gso::UdpL4 => GSO_UDP_L4,
    };
    if let Some(found) = headers {
        header[2..4].copy_from_slice(&(found.l2 + found.l3 + found.l4).to_ne_bytes());
    }
    header[4..6].copy_from_slice(&offload.gso_size.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nonsense_is_refused() {
        let needs = |start: u16, offset: u16| {
            let mut header = [0; LENGTH];
            header[0] = NEEDS_CSUM;
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..10].copy_from_slice(&offset.to_ne_bytes());
            header
        };
        assert!(decode(&needs(34, 16), 52).is_some());
        assert!(decode(&needs(34, 16), 51).is_none());
        assert!(decode(&needs(65535, 65535), 65535).is_none());
        assert!(
            decode(&[0, 3, 0, 0, 9, 9, 0, 0, 0, 0], 100).is_none(),
            "UDP fragmentation is not known"
        );
        assert!(
            decode(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 100).is_none(),
            "no segment size"
        );
    }

    proptest! {
        #[test]
        fn a_header_is_read_as_written(partial: bool, start in 0u16..200, offset in 0u16..20, kind in 0usize..4, size in 1u16..) {
            let gso = [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::UdpL4][kind];
            let offload = Offload {
                partial_checksum: partial,
                checksum_valid: partial,
                csum_start: if partial { start } else { 0 },
                csum_offset: if partial { offset } else { 0 },
                gso,
                gso_size: if gso == Gso::None { 0 } else { size },
            };
            prop_assert_eq!(decode(&encode(&offload, None), 1000), Some(offload));
        }

        #[test]
        fn any_bytes_are_answered(header: [u8; LENGTH], len in 0usize..70000) {
            if let Some(offload) = decode(&header, len) {
                prop_assert!(!offload.partial_checksum || usize::from(offload.csum_start) + usize::from(offload.csum_offset) + 2 <= len);
                prop_assert_eq!(offload.gso == Gso::None, offload.gso_size == 0);
            }
        }
    }
}
