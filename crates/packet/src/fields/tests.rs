//! Checks the table for consistency and against numbers from `ovs-fields(7)`.

use super::*;
use std::collections::HashSet;

#[test]
fn rows_are_in_the_order_of_the_enum_and_inside_the_key() {
    assert_eq!(FIELDS.len(), Field::TunMetadata63 as usize + 1);
    for (index, def) in FIELDS.iter().enumerate() {
        assert_eq!(def.field as usize, index, "{}", def.name);
        assert!(
            def.offset + def.bytes <= crate::key::WORDS * 8,
            "{}",
            def.name
        );
        let single = def.offset % 8 + def.bytes <= 8;
        assert!(
            !single || def.offset / 8 < crate::key::SINGLE,
            "{}",
            def.name
        );
        assert!(def.shift + def.bits <= def.bytes * 8, "{}", def.name);
        // Only NXM's in_port is narrower on the wire.
        let fits = def.bits + def.wire_shift <= def.wire_bytes * 8;
        assert_eq!(fits, def.field != Field::InPort, "{}", def.name);
        assert!(def.action_bits <= def.wire_bytes * 8, "{}", def.name);
    }
}

#[test]
fn names_are_unique_and_lead_back() {
    let mut seen = HashSet::new();
    for def in FIELDS {
        for name in [def.name, def.alias] {
            if !name.is_empty() {
                assert!(seen.insert(name), "{name} twice");
                assert_eq!(Field::by_name(name), Some(def.field));
            }
        }
    }
    assert_eq!(Field::by_name(""), None);
    assert_eq!(Field::by_name("no_such_field"), None);
}

#[test]
fn headers_are_unique_and_lead_back() {
    let mut seen = HashSet::new();
    for def in FIELDS {
        if def.nxm != 0 {
            assert!(seen.insert(def.nxm), "{}", def.name);
            assert_eq!(Field::from_nxm(def.nxm), Some(def.field), "{}", def.name);
            assert_eq!(def.nxm & 0xff, def.wire_bytes as u32);
        }
        if def.oxm != 0 {
            assert!(seen.insert(def.oxm), "{}", def.name);
            assert_eq!(Field::from_oxm(def.oxm), Some(def.field));
            assert_ne!(def.since, 0);
        }
        if def.oxm_experimenter != 0 {
            let header = def.oxm_experimenter_header;
            assert!(seen.insert(header), "{}", def.name);
            assert_eq!(Field::from_experimenter(header, ONF), Some(def.field));
            assert_eq!(Field::from_experimenter(header, 1), None);
        }
    }
    assert_eq!(Field::from_oxm(0), None);
    assert_eq!(Field::from_nxm(0), None);
}

/// Headers from captures of `ovs-ofctl` and from OpenFlow 1.3.5 section 7.2.3.7.
#[test]
fn known_numbers() {
    let oxm = [
        (Field::InPortOxm, 0x8000_0004),
        (Field::Metadata, 0x8000_0408),
        (Field::EthDst, 0x8000_0606),
        (Field::EthSrc, 0x8000_0806),
        (Field::EthType, 0x8000_0a02),
        (Field::VlanVid, 0x8000_0c02),
        (Field::VlanPcp, 0x8000_0e01),
        (Field::IpDscpShifted, 0x8000_1001),
        (Field::IpEcn, 0x8000_1201),
        (Field::IpProto, 0x8000_1401),
        (Field::Ipv4Src, 0x8000_1604),
        (Field::TcpDst, 0x8000_1c02),
        (Field::UdpSrc, 0x8000_1e02),
        (Field::SctpDst, 0x8000_2402),
        (Field::Icmpv4Type, 0x8000_2601),
        (Field::ArpOp, 0x8000_2a02),
        (Field::ArpTha, 0x8000_3206),
        (Field::Ipv6Src, 0x8000_3410),
        (Field::Ipv6Label, 0x8000_3804),
        (Field::Icmpv6Code, 0x8000_3c01),
        (Field::NdTarget, 0x8000_3e10),
        (Field::NdTll, 0x8000_4206),
        (Field::MplsLabel, 0x8000_4404),
        (Field::MplsBos, 0x8000_4801),
        (Field::PbbIsid, 0x8000_4a03),
        (Field::TunId, 0x8000_4c08),
        (Field::Ipv6Ext, 0x8000_4e02),
        (Field::TcpFlags, 0x8000_5402),
        (Field::PacketType, 0x8000_5804),
        (Field::Xreg7, 0x8001_0e08),
    ];
    for (field, header) in oxm {
        assert_eq!(field.def().oxm, header, "{field:?}");
    }
    let nxm = [
        (Field::InPort, 0x0000_0002),
        (Field::EthDst, 0x0000_0206),
        (Field::VlanTci, 0x0000_0802),
        (Field::IpDscp, 0x0000_0a01),
        (Field::Ipv4Dst, 0x0000_1004),
        (Field::ArpTpa, 0x0000_2204),
        (Field::Reg0, 0x0001_0004),
        (Field::Reg15, 0x0001_1e04),
        (Field::TunId, 0x0001_2008),
        (Field::ArpSha, 0x0001_2206),
        (Field::Ipv6Dst, 0x0001_2810),
        (Field::IpFrag, 0x0001_3401),
        (Field::TcpFlags, 0x0001_4402),
        (Field::CtState, 0x0001_d204),
        (Field::Xxreg3, 0x0001_e410),
        (Field::CtTpDst, 0x0001_fa02),
    ];
    for (field, header) in nxm {
        assert_eq!(field.def().nxm, header, "{field:?}");
    }
    assert_eq!(Field::TcpFlags.def().oxm_experimenter_header, 0xffff_5406);
}

#[test]
fn header_depends_on_the_version() {
    let tcp_flags = Field::TcpFlags.def();
    assert_eq!(tcp_flags.header(1), Some((tcp_flags.nxm, 0)));
    assert_eq!(tcp_flags.header(4), Some((0xffff_5406, ONF)));
    assert_eq!(tcp_flags.header(6), Some((tcp_flags.oxm, 0)));
    assert_eq!(Field::EthDst.def().header(1), Some((0x206, 0)));
    assert_eq!(Field::EthDst.def().header(4), Some((0x8000_0606, 0)));
    assert_eq!(Field::Reg1.def().header(4), Some((0x0001_0204, 0)));
    assert_eq!(Field::Metadata.def().header(1), Some((0x8000_0408, 0)));
    assert_eq!(Field::SkbPriority.def().header(4), None);
}

#[test]
fn wire_and_key_forms_lead_to_each_other() {
    for def in FIELDS {
        // The options differ by their place in the key only.
        if cfg!(miri)
            && def
                .field
                .tunnel_option()
                .is_some_and(|option| option % 16 != 0)
        {
            continue;
        }
        let all = def.place();
        let wire = def.to_wire(&all);
        assert_eq!(wire.len(), def.wire_bytes, "{}", def.name);
        assert_eq!(def.from_wire(&wire), Some(all.clone()), "{}", def.name);
        assert_eq!(def.mask_from_wire(&wire), Some(all), "{}", def.name);
        let ones = vec![0xff; def.wire_bytes];
        assert_eq!(def.mask_from_wire(&ones), Some(def.place()), "{}", def.name);
        assert_eq!(def.from_wire(&vec![0; def.wire_bytes + 1]), None);
        // Tunnel options may be shorter.
        let short = def.field.tunnel_option().map(|_| Value::zero(def.bytes));
        assert_eq!(def.mask_from_wire(&[]), short);
        // A number with a bit outside the field is rejected.
        let fits = def.bits + def.wire_shift == def.wire_bytes * 8 && def.wire_shift == 0;
        if def.field != Field::InPort {
            assert_eq!(def.from_wire(&ones).is_some(), fits, "{}", def.name);
        }
    }
}

#[test]
fn shifted_forms() {
    let pcp = Field::VlanPcp.def();
    assert_eq!(&pcp.from_wire(&[5]).unwrap()[..], [0xa0, 0]);
    assert_eq!(&pcp.to_wire(&[0xbf, 0xff])[..], [5]);
    assert_eq!(pcp.from_wire(&[8]), None);
    let label = Field::MplsLabel.def();
    assert_eq!(
        &label.from_wire(&[0, 1, 2, 3]).unwrap()[..],
        [0x10, 0x20, 0x30, 0]
    );
    assert_eq!(&Field::IpDscp.def().from_wire(&[0xb8]).unwrap()[..], [0xb8]);
    assert_eq!(Field::IpDscp.def().from_wire(&[0xb9]), None);
    assert_eq!(
        &Field::IpDscpShifted.def().from_wire(&[0x2e]).unwrap()[..],
        [0xb8]
    );
    assert_eq!(&Field::ArpOp.def().to_wire(&[2])[..], [0, 2]);
    assert_eq!(Field::ArpOp.def().from_wire(&[1, 0]), None);
}

#[test]
fn port_numbers() {
    let narrow = Field::InPort.def();
    assert_eq!(&narrow.from_wire(&[0, 7]).unwrap()[..], [0, 0, 0, 7]);
    assert_eq!(
        &narrow.from_wire(&[0xff, 0xfe]).unwrap()[..],
        [0xff, 0xff, 0xff, 0xfe]
    );
    assert_eq!(&narrow.to_wire(&[0xff, 0xff, 0xff, 0xfe])[..], [0xff, 0xfe]);
    for field in [Field::InPortOxm, Field::InPhyPort] {
        let wide = field.def();
        assert_eq!(wide.from_wire(&[0, 0, 0xff, 0]), None);
        assert!(wide.from_wire(&[0xff, 0xff, 0xff, 0]).is_some());
    }
}

#[test]
fn prerequisites() {
    use Prerequisite::*;
    let mut any = Match::any();
    assert!(None.met_by(&any));
    for needy in [
        VlanPresent,
        Mpls,
        Ipv4,
        Ipv6,
        Arp,
        Rarp,
        IpAny,
        Tcp,
        Nd,
        Tracked,
        Pbb,
    ] {
        assert!(!needy.met_by(&any), "{needy:?}");
    }
    for ambiguous in [IpAny, Nd, Tracked] {
        assert!(!ambiguous.apply(&mut Match::any()), "{ambiguous:?}");
    }
    for clear in [
        VlanPresent,
        Mpls,
        Ipv4,
        Ipv6,
        Arp,
        Rarp,
        Icmpv4,
        Icmpv6,
        NdSolicit,
        NdAdvert,
        Pbb,
    ] {
        let mut matching = Match::any();
        assert!(clear.apply(&mut matching), "{clear:?}");
        assert!(clear.met_by(&matching));
    }
    assert!(!Tcp.apply(&mut any));
    any.set_exact(Field::EthType, 0x86dd);
    assert!(Tcp.met_by(&any) && !Udp.met_by(&any) && IpAny.met_by(&any));
    any.set_exact(Field::IpFrag, 3);
    assert!(!Tcp.met_by(&any), "later fragments have no ports");
}

#[test]
fn neighbour_discovery_needs_type_and_no_code() {
    use Prerequisite::*;
    let mut matching = Match::any();
    assert!(NdSolicit.apply(&mut matching));
    assert!(Nd.met_by(&matching) && !NdAdvert.met_by(&matching));
    matching.set_exact(Field::Icmpv6Code, 1);
    assert!(!Nd.met_by(&matching));
}

#[test]
fn connection_tracking_state() {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, 0x0800);
    matching.set(Field::CtState, &[0, 0, 0, 0x20], &[0, 0, 0, 0x20]);
    assert!(!Prerequisite::Tracked.met_by(&matching));
    matching.set(Field::CtState, &[0, 0, 0, 0], &[0, 0, 0, 0x10]);
    assert!(Prerequisite::Tracked.met_by(&matching));
}
