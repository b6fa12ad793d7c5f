//! What is refused, and what unusual packets are not.

use super::reference::checksum;
use super::*;
use crate::frame::{Gso, Offload};

const VXLAN: TunnelKind = TunnelKind::Vxlan { gbp: false };

/// Returns a frame in a tunnel of this kind, without an outer checksum if that is optional.
fn outer(kind: TunnelKind, addresses: Addresses) -> Vec<u8> {
    let packet = PerPacket {
        id: 5,
        ttl: 64,
        ..PerPacket::default()
    };
    let inner = match kind {
        TunnelKind::Gtpu => vec![0x45; 30],
        _ => plain(),
    };
    encapsulated(&HeaderSpec::new(kind, addresses), &packet, &inner)
}

/// Corrects the IPv4 header's checksum.
fn righted(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = 14 + usize::from(bytes[14] & 0x0f) * 4;
    bytes[24..26].fill(0);
    let sum = checksum(&bytes[14..end]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn result(kind: TunnelKind, bytes: &[u8]) -> Result<Decapsulated, Reason> {
    parse(&mut frame(bytes, &[]), kind)
}

/// Returns why the frame is refused after a change, with its IPv4 checksum corrected.
fn refused(kind: TunnelKind, change: impl FnOnce(&mut Vec<u8>)) -> Option<Reason> {
    let mut bytes = outer(kind, V4);
    change(&mut bytes);
    result(kind, &righted(bytes)).err()
}

#[test]
fn lies_of_the_ip_header() {
    let vxlan = |change: &dyn Fn(&mut Vec<u8>)| refused(VXLAN, |bytes| change(bytes));
    assert_eq!(vxlan(&|_| ()), None);
    assert_eq!(vxlan(&|bytes| bytes[14] = 0x65), Some(Reason::Ip));
    assert_eq!(vxlan(&|bytes| bytes[14] = 0x44), Some(Reason::Ip));
    assert_eq!(vxlan(&|bytes| bytes[17] += 1), Some(Reason::Ip));
    assert_eq!(vxlan(&|bytes| bytes[17] = 19), Some(Reason::Ip));
    assert_eq!(vxlan(&|bytes| bytes[23] = 6), Some(Reason::Protocol));
    assert_eq!(vxlan(&|bytes| bytes[12] = 9), Some(Reason::Protocol));
    assert_eq!(vxlan(&|bytes| bytes[20] = 0x20), Some(Reason::Fragment));
    assert_eq!(vxlan(&|bytes| bytes[21] = 1), Some(Reason::Fragment));
    let mut bytes = outer(VXLAN, V4);
    bytes[15] = 1;
    assert_eq!(result(VXLAN, &bytes), Err(Reason::IpChecksum));
    for length in 0..42 {
        assert!(matches!(
            result(VXLAN, &bytes[..length]),
            Err(Reason::Short | Reason::Ip)
        ));
    }
    // GRE over the other address family is another kind of tunnel.
    let (v4, v6) = (outer(TunnelKind::Gre, V4), outer(TunnelKind::Ip6Gre, V6));
    assert_eq!(result(TunnelKind::Ip6Gre, &v4), Err(Reason::Protocol));
    assert_eq!(result(TunnelKind::Gre, &v6), Err(Reason::Protocol));
}

#[test]
fn ip_options_are_passed_over() {
    let mut bytes = outer(VXLAN, V4);
    bytes.splice(34..34, [1; 8]);
    bytes[14] = 0x47;
    bytes[17] += 8;
    assert!(result(VXLAN, &righted(bytes)).is_ok());
}

/// Inserts extension headers, the first of which has number `kind`.
fn with_extensions(kind: u8, extensions: &[u8]) -> Vec<u8> {
    let mut bytes = outer(TunnelKind::Ip6Gre, V6);
    bytes[20] = kind;
    bytes[19] += extensions.len() as u8;
    bytes.splice(54..54, extensions.iter().copied());
    bytes
}

#[test]
fn ipv6_extension_headers() {
    let found = |kind: u8, extensions: &[u8]| {
        result(TunnelKind::Ip6Gre, &with_extensions(kind, extensions)).map(|found| found.start)
    };
    let plain = outer(TunnelKind::Ip6Gre, V6).len() - plain().len();
    // Linux's limit of nested tunnels.
    assert_eq!(found(60, &[47, 0, 4, 1, 4, 1, 0, 0]), Ok(plain + 8));
    let two = [[60, 0, 1, 4, 0, 0, 0, 0], [47, 0, 1, 4, 0, 0, 0, 0]].concat();
    assert_eq!(found(0, &two), Ok(plain + 16));
    // Fragments are refused, but not a whole packet with a fragment header.
    assert_eq!(found(44, &[47, 0, 0, 0, 1, 2, 3, 4]), Ok(plain + 8));
    assert_eq!(found(44, &[47, 0, 0, 1, 1, 2, 3, 4]), Err(Reason::Fragment));
    assert_eq!(found(44, &[47, 0, 0, 8, 1, 2, 3, 4]), Err(Reason::Fragment));
    // A routing header without and with segments left.
    assert_eq!(found(43, &[47, 0, 4, 0, 0, 0, 0, 0]), Ok(plain + 8));
    assert_eq!(found(43, &[47, 0, 4, 1, 0, 0, 0, 0]), Err(Reason::Protocol));
    assert_eq!(found(17, &[0; 8]), Err(Reason::Protocol));
    let long = found(60, &[47, 9, 1, 4, 0, 0, 0, 0]);
    assert_eq!(long, Err(Reason::Ipv6Extension));
    // Endless options.
    let mut many = [60, 0, 1, 4, 0, 0, 0, 0].repeat(25);
    many[192] = 47;
    assert_eq!(found(60, &many), Ok(plain + 200));
    for kind in [60, 44] {
        let mut bytes = with_extensions(kind, &[]);
        bytes.splice(54..54, [kind, 0, 0, 0, 0, 0, 0, 0].repeat(130));
        let length = (bytes.len() - 54) as u16;
        bytes[18..20].copy_from_slice(&length.to_be_bytes());
        let endless = result(TunnelKind::Ip6Gre, &bytes);
        assert_eq!(endless, Err(Reason::Ipv6Extension));
    }
}

#[test]
fn lies_of_the_udp_header() {
    assert_eq!(
        refused(VXLAN, |bytes| bytes[39] += 1),
        Some(Reason::UdpLength)
    );
    assert_eq!(
        refused(VXLAN, |bytes| bytes[39] = 7),
        Some(Reason::UdpLength)
    );
    assert_eq!(refused(VXLAN, |bytes| bytes[39] = 15), Some(Reason::Short));
    assert_eq!(
        refused(VXLAN, |bytes| bytes[39] = 16 + 13),
        Some(Reason::InnerShort)
    );
    // Bytes behind the UDP packet are not part of the inner one.
    let mut bytes = outer(VXLAN, V4);
    bytes[39] -= 1;
    let found = result(VXLAN, &bytes).unwrap();
    assert_eq!(found.end, bytes.len() - 1);
    assert_eq!(
        refused(VXLAN, |bytes| bytes[41] = 1),
        Some(Reason::Checksum)
    );
    // Over IPv6, too, 0 means "no checksum" (RFC 6935).
    let mut bytes = outer(VXLAN, V6);
    bytes[60..62].fill(0);
    let found = result(VXLAN, &bytes).unwrap();
    assert!(!found.info.flags.contains(TunnelFlags::CSUM));
}

#[test]
fn a_checksum_is_looked_at_once() {
    let mut bytes = outer(VXLAN, V4);
    bytes[41] = 1;
    let with = |offload: Offload| {
        let mut frame = frame(&bytes, &[]);
        frame.set_offload(offload);
        parse(&mut frame, VXLAN).map(|found| {
            decapsulate(&mut frame, &found).unwrap();
            (
                found.info.flags.contains(TunnelFlags::CSUM),
                frame.offload(),
            )
        })
    };
    let none = Offload::default();
    assert_eq!(with(none), Err(Reason::Checksum));
    let valid = Offload {
        checksum_valid: true,
        ..none
    };
    assert_eq!(with(valid), Ok((true, none)));
    // The outer checksum is partial.
    let partial = |csum_start: u16| Offload {
        partial_checksum: true,
        csum_start,
        csum_offset: 6,
        ..none
    };
    assert_eq!(with(partial(34)), Ok((true, none)));
    // The inner checksum is partial.
    let inner = Offload {
        csum_start: 8,
        ..partial(0)
    };
    assert_eq!(with(partial(58)), Ok((true, inner)));
    // Another checksum is partial.
    for elsewhere in [0, 33, 35, 49, 68, 900] {
        assert_eq!(with(partial(elsewhere)), Err(Reason::PartialChecksum));
    }
    let large = Offload {
        gso: Gso::UdpL4,
        gso_size: 100,
        ..none
    };
    assert_eq!(with(large), Err(Reason::Segment));
}

#[test]
fn lies_of_tunnel_headers() {
    let vxlan = |at: usize, byte: u8| refused(VXLAN, |bytes| bytes[at] = byte);
    // Reserved bits, and bits of extensions.
    for (at, byte) in [(42, 0), (42, 0x0c), (42, 0x88), (43, 1), (45, 1), (49, 1)] {
        assert_eq!(vxlan(at, byte), Some(Reason::Flags), "{at} {byte}");
    }
    let geneve = |at: usize, byte: u8| refused(TunnelKind::Geneve, |bytes| bytes[at] = byte);
    assert_eq!(geneve(42, 0x40), Some(Reason::Flags));
    assert_eq!(geneve(42, 5), Some(Reason::Options));
    assert_eq!(geneve(42, 2), Some(Reason::InnerShort));
    // An option longer than all options together.
    let long = |bytes: &mut Vec<u8>| (bytes[42], bytes[53]) = (1, 1);
    assert_eq!(refused(TunnelKind::Geneve, long), Some(Reason::Options));
    assert_eq!(geneve(45, 0x59), Some(Reason::Payload));
    // These reserved bits are ignored.
    assert_eq!(geneve(43, 0x3f), None);
    assert_eq!(geneve(49, 0xff), None);
    let gre = |at: usize, byte: u8| refused(TunnelKind::Gre, |bytes| bytes[at] = byte);
    assert_eq!(gre(34, 0x60), Some(Reason::Flags));
    assert_eq!(gre(35, 1), Some(Reason::Flags));
    assert_eq!(gre(36, 5), Some(Reason::Payload));
    assert_eq!(gre(34, 0xa0), Some(Reason::Checksum));
    // A sequence number is skipped; here it consumes the first bytes of the frame.
    assert_eq!(gre(34, 0x30), None);
    let nvgre = |at: usize, byte: u8| refused(TunnelKind::Nvgre, |bytes| bytes[at] = byte);
    assert_eq!(nvgre(34, 0), Some(Reason::Flags));
    assert_eq!(nvgre(34, 0x30), Some(Reason::Flags));
    assert_eq!(nvgre(36, 8), Some(Reason::Payload));
}

/// Returns a GTP-U frame without a UDP checksum, with these bytes behind the TEID, and these flags.
fn gtpu(flags: u8, message: u8, behind: &[u8]) -> Vec<u8> {
    let mut bytes = outer(TunnelKind::Gtpu, V4);
    bytes.truncate(50);
    bytes.extend(behind);
    bytes[42] = flags;
    bytes[43] = message;
    let length = behind.len() as u16;
    bytes[16..18].copy_from_slice(&(length + 36).to_be_bytes());
    bytes[38..40].copy_from_slice(&(length + 16).to_be_bytes());
    bytes[40..42].fill(0);
    bytes[44..46].copy_from_slice(&length.to_be_bytes());
    righted(bytes)
}

#[test]
fn gtpu_headers() {
    let found = |flags: u8, behind: &[u8]| {
        let result = result(TunnelKind::Gtpu, &gtpu(flags, 255, behind));
        result.map(|found| (found.start - 50, found.payload))
    };
    let v4 = Payload::Packet(0x0800);
    let v6 = Payload::Packet(0x86dd);
    assert_eq!(found(0x30, &[0x45]), Ok((0, v4)));
    assert_eq!(found(0x30, &[0x60]), Ok((0, v6)));
    assert_eq!(found(0x30, &[0x50]), Err(Reason::Payload));
    assert_eq!(found(0x30, &[]), Err(Reason::InnerShort));
    assert_eq!(found(0x50, &[0x45]), Err(Reason::Flags));
    assert_eq!(found(0x20, &[0x45]), Err(Reason::Flags));
    // Any of the flags makes the header longer.
    for flags in [0x31, 0x32, 0x33] {
        assert_eq!(found(flags, &[0, 0, 0, 0x85, 0x45]), Ok((4, v4)));
    }
    assert_eq!(found(0x32, &[0, 0, 0]), Err(Reason::Length));
    // A PDU session container, as in 5G, and another one behind it.
    let container = [0, 0, 0, 0x85, 1, 0x10, 9, 0, 0x60];
    assert_eq!(found(0x34, &container), Ok((8, v6)));
    let two = [
        0, 0, 0, 0x85, 1, 0x10, 9, 0x20, 2, 0, 0, 0, 0, 0, 0, 0, 0x45,
    ];
    assert_eq!(found(0x34, &two), Ok((16, v4)));
    for (at, byte) in [(4, 0), (4, 9), (8, 0), (8, 255)] {
        let mut broken = two;
        broken[at] = byte;
        assert_eq!(found(0x34, &broken), Err(Reason::Options), "{at} {byte}");
    }
    // Endless extension headers.
    let endless = [&[0, 0, 0, 0x85][..], &[1, 0, 0, 0x85].repeat(400)].concat();
    assert_eq!(found(0x34, &endless), Err(Reason::Options));
}

#[test]
fn the_length_in_a_gtpu_header_counts() {
    let kind = TunnelKind::Gtpu;
    let mut bytes = gtpu(0x30, 255, &[0x45; 20]);
    bytes[45] = 18;
    let found = result(kind, &bytes).unwrap();
    assert_eq!((found.start, found.end), (50, 68));
    bytes[45] = 21;
    assert_eq!(result(kind, &bytes), Err(Reason::Length));
}

#[test]
fn other_gtpu_messages_keep_their_headers() {
    let bytes = gtpu(0x32, 1, &[0; 4]);
    let mut frame = frame(&bytes, &[]);
    let found = parse(&mut frame, TunnelKind::Gtpu).unwrap();
    assert_eq!((found.start, found.end), (0, bytes.len()));
    assert_eq!(found.payload, Payload::Ethernet);
    assert_eq!((found.info.gtpu_message, found.info.id), (1, 5));
    decapsulate(&mut frame, &found).unwrap();
    assert_eq!(frame.to_vec(), bytes);
}

#[test]
fn invalid_header_specs_are_refused() {
    let error = |spec: HeaderSpec| Header::new(&spec).err();
    let new = HeaderSpec::new;
    assert_eq!(error(new(TunnelKind::Gre, V6)), Some(SpecError::Addresses));
    assert_eq!(
        error(new(TunnelKind::Ip6Gre, V4)),
        Some(SpecError::Addresses)
    );
    let carrying = |kind: TunnelKind, payload: Payload| {
        error(HeaderSpec {
            payload,
            ..new(kind, V4)
        })
    };
    let payload = Some(SpecError::Payload);
    assert_eq!(carrying(VXLAN, Payload::Packet(IPV4)), payload);
    assert_eq!(carrying(TunnelKind::Nvgre, Payload::Packet(IPV4)), payload);
    assert_eq!(carrying(TunnelKind::Gtpu, Payload::Ethernet), payload);
    assert_eq!(carrying(TunnelKind::Gtpu, Payload::Packet(0x8847)), payload);
    assert_eq!(carrying(TunnelKind::Gre, Payload::Packet(0x5ff)), payload);
    assert_eq!(carrying(TunnelKind::Gre, Payload::Packet(0x8847)), None);
    let fields = Some(SpecError::Fields);
    for kind in [VXLAN, TunnelKind::Geneve, TunnelKind::Nvgre] {
        let sequence = true;
        assert_eq!(
            error(HeaderSpec {
                sequence,
                ..new(kind, V4)
            }),
            fields
        );
        let key = false;
        assert_eq!(
            error(HeaderSpec {
                key,
                ..new(kind, V4)
            }),
            fields
        );
    }
    let nvgre = HeaderSpec {
        checksum: true,
        ..new(TunnelKind::Nvgre, V4)
    };
    assert_eq!(error(nvgre), fields);
}

#[test]
fn frames_that_cannot_be_sent_stay_as_they_are() {
    let header = Header::new(&HeaderSpec::new(VXLAN, V4)).unwrap();
    assert_eq!(header.header_len(), 50);
    let fails = |frame: &HeapFrame| {
        let mut after = frame.clone();
        let error = header.push(&mut after, &PerPacket::default()).unwrap_err();
        assert_eq!(after, *frame);
        error
    };
    let mut cramped = HeapFrame::new(&plain());
    assert!(cramped.push_front(79));
    assert_eq!(fails(&cramped), PushError::NoRoom);
    let long = frame(&vec![1; 65535 - 36 + 1], &[]);
    assert_eq!(fails(&long), PushError::TooLong);
    let with = |offload: Offload| {
        let mut frame = frame(&plain(), &[]);
        frame.set_offload(offload);
        frame
    };
    let large = Offload {
        gso: Gso::Tcp4,
        gso_size: 1000,
        ..Offload::default()
    };
    assert_eq!(fails(&with(large)), PushError::Segment);
    let beyond = Offload {
        partial_checksum: true,
        csum_start: 14,
        csum_offset: 3,
        ..Offload::default()
    };
    assert_eq!(fails(&with(beyond)), PushError::Checksum);
    let mut far = frame(&vec![1; 65535 - 36], &[]);
    assert!(header.push(&mut far.clone(), &PerPacket::default()).is_ok());
    far.set_offload(Offload {
        csum_start: 65535 - 49,
        csum_offset: 0,
        ..beyond
    });
    assert_eq!(fails(&far), PushError::Checksum);
}

/// A guest may ask for a checksum from any byte on, stored anywhere.
#[test]
fn an_outer_checksum_is_right_whatever_the_inner_one_is() {
    for (csum_start, csum_offset) in [(14, 2), (13, 2), (13, 3), (15, 1), (0, 0), (0, 8), (3, 8)] {
        for kind in [VXLAN, TunnelKind::Geneve, TunnelKind::Gre] {
            let spec = HeaderSpec {
                checksum: true,
                ..HeaderSpec::new(kind, V4)
            };
            let mut frame = frame(&plain(), &[7]);
            frame.set_offload(Offload {
                partial_checksum: true,
                csum_start,
                csum_offset,
                ..Offload::default()
            });
            let header = Header::new(&spec).unwrap();
            header.push(&mut frame, &PerPacket::default()).unwrap();
            assert!(crate::checksum::finish_partial(&mut frame));
            frame.set_offload(Offload::default());
            assert!(
                parse(&mut frame, kind).is_ok(),
                "{csum_start} {csum_offset}"
            );
        }
    }
}

#[test]
fn verified_outer_checksums_are_reported() {
    let push = |spec: HeaderSpec, checksum_valid: bool| {
        let mut frame = frame(&plain(), &[]);
        frame.set_offload(Offload {
            checksum_valid,
            ..Offload::default()
        });
        let header = Header::new(&spec).unwrap();
        header.push(&mut frame, &PerPacket::default()).unwrap();
        frame.offload().checksum_valid
    };
    let without = HeaderSpec::new(VXLAN, V4);
    assert!(!push(without, false));
    assert!(push(without, true));
    assert!(push(HeaderSpec::new(VXLAN, V6), false));
}
