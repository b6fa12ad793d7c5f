//! Whole frames of every kind, byte for byte. Wireshark decodes them to the same fields, with right
//! checksums.

use super::*;

/// A hash that makes the source port 46884 (0xb724), in the middle of the range.
const HASH: u32 = 0x8000_00ab;

const ETHERNET: &str = "0a0000000002 0a0000000001";
const V6_ADDRESSES: &str =
    "20010db8 00000000 00000000 00000001 20010db8 00000000 00000000 00000002";
const PLAIN: &str = "020000000002 020000000001 88b5 64617461";
const BARE: &str = "45000018 00000000 40fdf5e5 c0000201 c0000202 64617461";

fn spec(kind: TunnelKind, addresses: Addresses) -> HeaderSpec {
    HeaderSpec {
        eth_src: [0x0a, 0, 0, 0, 0, 1],
        eth_dst: [0x0a, 0, 0, 0, 0, 2],
        ..HeaderSpec::new(kind, addresses)
    }
}

fn packet(id: u64) -> PerPacket<'static> {
    PerPacket {
        id,
        tos: 0x48,
        ttl: 63,
        hash: HASH,
        sequence: 9,
        ..PerPacket::default()
    }
}

/// Returns what these frames' outer headers say, given what differs.
fn info(spec: &HeaderSpec, id: u64, flags: TunnelFlags) -> TunnelInfo {
    TunnelInfo {
        id,
        addresses: Some(spec.addresses),
        flags,
        tos: 0x48,
        ttl: 63,
        ..TunnelInfo::default()
    }
}

/// Checks that `inner` becomes `outer` when pushed, and that parsing and removing that returns
/// `inner` and `info`.
fn holds(
    spec: &HeaderSpec,
    packet: &PerPacket<'_>,
    inner: &str,
    outer: &[&str],
    info: &TunnelInfo,
) {
    let (inner, outer) = (hex(inner), hex(&outer.concat()));
    assert_eq!(encapsulated(spec, packet, &inner), outer);
    let mut frame = frame(&outer, &[]);
    let found = parse(&mut frame, spec.kind).unwrap();
    assert_eq!(found.info, *info);
    assert_eq!(found.payload, spec.payload);
    assert_eq!(found.options(&frame), packet.options);
    decapsulate(&mut frame, &found).unwrap();
    assert_eq!(frame.to_vec(), inner);
}

#[test]
fn vxlan() {
    let spec = spec(TunnelKind::Vxlan { gbp: false }, V4);
    let outer = [
        ETHERNET,
        "0800 45480036 00004000 3f11e704 c6336401 c6336402",
        "b724 12b5 0022 0000",
        "08000000 12345600",
        PLAIN,
    ];
    let info = info(&spec, 0x123456, TunnelFlags::DF | TunnelFlags::KEY);
    // Ids have 24 bits.
    holds(&spec, &packet(0xff12_3456), PLAIN, &outer, &info);
}

#[test]
fn vxlan_with_a_group_policy_over_tagged_ipv6() {
    let kind = TunnelKind::Vxlan { gbp: true };
    let spec = HeaderSpec {
        vlan: Some(Vlan {
            tpid: 0x8100,
            tci: 0x6005,
        }),
        ..spec(kind, V6)
    };
    let outer = [
        ETHERNET,
        "8100 6005 86dd 64800000 0022113f",
        V6_ADDRESSES,
        "b724 12b5 0022 845c",
        "88480007 12345600",
        PLAIN,
    ];
    let packet = PerPacket {
        gbp_id: 7,
        gbp_flags: 0xff,
        ..packet(0x123456)
    };
    let info = TunnelInfo {
        gbp_id: 7,
        gbp_flags: 0x48,
        ..info(&spec, 0x123456, TunnelFlags::CSUM | TunnelFlags::KEY)
    };
    holds(&spec, &packet, PLAIN, &outer, &info);
    // A receiver without the extension must not accept such a frame as a plain one.
    let mut frame = frame(&hex(&outer.concat()), &[]);
    let plain = TunnelKind::Vxlan { gbp: false };
    assert_eq!(parse(&mut frame, plain), Err(Reason::Flags));
}

#[test]
fn geneve_with_options() {
    let spec = HeaderSpec {
        checksum: true,
        ..spec(TunnelKind::Geneve, V4)
    };
    let options = hex("ffff8001 01020304 01010200");
    let packet = PerPacket {
        oam: true,
        options: GeneveOptions::new(&options).unwrap(),
        ..packet(0x123456)
    };
    let outer = [
        ETHERNET,
        "0800 45480042 00004000 3f11e6f8 c6336401 c6336402",
        "b724 17c1 002e 1e71",
        "03c06558 12345600 ffff8001 01020304 01010200",
        PLAIN,
    ];
    holds(
        &spec,
        &packet,
        PLAIN,
        &outer,
        &info(&spec, 0x123456, TunnelFlags::all()),
    );
}

#[test]
fn gre_with_all_its_fields() {
    let spec = HeaderSpec {
        checksum: true,
        sequence: true,
        ..spec(TunnelKind::Gre, V4)
    };
    let outer = [
        ETHERNET,
        "0800 45480036 00004000 3f2fe6e6 c6336401 c6336402",
        "b0006558 811c0000 01020304 00000009",
        PLAIN,
    ];
    let flags = TunnelFlags::DF | TunnelFlags::CSUM | TunnelFlags::KEY;
    let info = info(&spec, 0x0102_0304, flags);
    holds(&spec, &packet(0x0102_0304), PLAIN, &outer, &info);
}

#[test]
fn gre_with_no_field_around_a_bare_packet() {
    let spec = HeaderSpec {
        payload: Payload::Packet(0x0800),
        key: false,
        ..spec(TunnelKind::Gre, V4)
    };
    let outer = [
        ETHERNET,
        "0800 45480030 00004000 3f2fe6ec c6336401 c6336402",
        "00000800",
        BARE,
    ];
    let info = info(&spec, 0, TunnelFlags::DF);
    holds(&spec, &packet(5), BARE, &outer, &info);
}

#[test]
fn gre_over_ipv6() {
    let spec = spec(TunnelKind::Ip6Gre, V6);
    let outer = [
        ETHERNET,
        "86dd 64800000 001a2f3f",
        V6_ADDRESSES,
        "20006558 01020304",
        PLAIN,
    ];
    let info = info(&spec, 0x0102_0304, TunnelFlags::KEY);
    holds(&spec, &packet(0x0102_0304), PLAIN, &outer, &info);
}

#[test]
fn nvgre() {
    let spec = spec(TunnelKind::Nvgre, V4);
    let outer = [
        ETHERNET,
        "0800 4548002e 00004000 3f2fe6ee c6336401 c6336402",
        // The last byte is the FlowID.
        "20006558 123456ab",
        PLAIN,
    ];
    let info = info(&spec, 0x123456, TunnelFlags::DF | TunnelFlags::KEY);
    holds(&spec, &packet(0x123456), PLAIN, &outer, &info);
}

#[test]
fn gtpu_with_a_sequence_number() {
    let spec = HeaderSpec {
        sequence: true,
        ..spec(TunnelKind::Gtpu, V4)
    };
    let outer = [
        ETHERNET,
        "0800 45480040 00004000 3f11e6fa c6336401 c6336402",
        "b724 0868 002c dbb1",
        "32ff001c 01020304 00090000",
        BARE,
    ];
    let flags = TunnelFlags::DF | TunnelFlags::CSUM | TunnelFlags::KEY;
    let info = TunnelInfo {
        gtpu_flags: 0x32,
        gtpu_message: 255,
        ..info(&spec, 0x0102_0304, flags)
    };
    holds(&spec, &packet(0x0102_0304), BARE, &outer, &info);
}
