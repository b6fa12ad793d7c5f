use super::*;
use ovsdb::vswitch::Strings;

/// Reads the options of an interface `t`; returns the result with the problems' texts.
fn read_row(
    interface_type: &str,
    options: &[(&str, &str)],
) -> (Result<TunnelSpec, String>, Vec<String>) {
    let map = options.iter();
    let interface = vswitch::Interface {
        name: "t".into(),
        kind: interface_type.into(),
        options: map
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect::<Strings>(),
        ..Default::default()
    };
    let mut problems = Problems::default();
    let kind = kind_of(interface_type).unwrap();
    let spec = super::read(&interface, kind, &mut problems).map_err(|error| error.to_string());
    let texts = problems.0.into_iter();
    let texts = texts.map(|problem| format!("{}: {}", problem.column, problem.message));
    (spec, texts.collect())
}

/// Reads the options of a valid tunnel with `remote_ip=flow`.
fn with(interface_type: &str, options: &[(&str, &str)]) -> (TunnelSpec, Vec<String>) {
    let flow = [("remote_ip", "flow")];
    let (spec, problems) = read_row(interface_type, &[&flow, options].concat());
    (spec.unwrap(), problems)
}

fn fine(interface_type: &str, options: &[(&str, &str)]) -> TunnelSpec {
    let (spec, problems) = with(interface_type, options);
    assert_eq!(problems, [""; 0], "{interface_type} {options:?}");
    spec
}

fn refused(interface_type: &str, options: &[(&str, &str)]) -> String {
    read_row(interface_type, options).0.unwrap_err()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn types_are_those_of_open_vswitch_and_two_more() {
    let all: Vec<&str> = types().collect();
    assert_eq!(
        all,
        ["vxlan", "geneve", "gre", "ip6gre", "nvgre", "gtpu", "stt"]
    );
    assert_eq!(kind_of("vxlan"), Some(TunnelKind::Vxlan { gbp: false }));
    assert_eq!(kind_of("erspan"), None);
}

#[test]
fn without_options_it_is_what_open_vswitch_has() {
    for (name, port, carries) in [
        ("vxlan", 4789, Carries::Frames),
        ("geneve", 6081, Carries::Frames),
        ("gtpu", 2152, Carries::Packets),
        ("gre", 0, Carries::Frames),
        ("ip6gre", 0, Carries::Frames),
        ("nvgre", 0, Carries::Frames),
        ("stt", 7471, Carries::Frames),
    ] {
        let spec = fine(name, &[]);
        assert_eq!(spec, TunnelSpec::new(kind_of(name).unwrap(), None));
        assert_eq!((spec.dst_port, spec.carries), (port, carries), "{name}");
        assert_eq!((spec.tos, spec.ttl, spec.df), (Some(0), Some(64), true));
        assert!(!spec.csum && !spec.sequence);
    }
}

#[test]
fn the_remote_address_is_required() {
    let missing = "t: vxlan type requires valid 'remote_ip' argument";
    assert_eq!(refused("vxlan", &[]), missing);
    for nowhere in ["::", "0.0.0.0"] {
        assert_eq!(refused("vxlan", &[("remote_ip", nowhere)]), missing);
    }
    for bad in ["foo", "fe80::zz", "fe80::1%eth0", "10.0.0", ""] {
        let error = refused("vxlan", &[("remote_ip", bad)]);
        assert_eq!(error, format!("t: bad vxlan 'remote_ip'\n{missing}"));
    }
    for many in ["224.0.0.1", "ff02::1"] {
        let error = refused("geneve", &[("remote_ip", many)]);
        assert_eq!(error, format!("t: multicast remote_ip={many} not allowed"));
    }
    for (text, wanted) in [
        ("10.0.0.2", "10.0.0.2"),
        ("fd00::2", "fd00::2"),
        ("::ffff:10.0.0.2", "10.0.0.2"),
    ] {
        let (spec, problems) = read_row("vxlan", &[("remote_ip", text)]);
        assert_eq!(spec.unwrap().remote, Some(address(wanted)));
        assert_eq!(problems, [""; 0]);
    }
}

#[test]
fn the_local_address_may_be_given() {
    let local = |remote, local| {
        let (spec, problems) = read_row("vxlan", &[("remote_ip", remote), ("local_ip", local)]);
        (spec.map(|spec| spec.local), problems.len())
    };
    let fixed = LocalAddress::Address(address("10.0.0.1"));
    assert_eq!(local("10.0.0.2", "10.0.0.1"), (Ok(fixed), 0));
    assert_eq!(local("flow", "10.0.0.1"), (Ok(fixed), 0));
    assert_eq!(local("flow", "flow"), (Ok(LocalAddress::Flow), 0));
    assert_eq!(local("flow", "::"), (Ok(LocalAddress::Any), 0));
    assert_eq!(local("flow", "foo"), (Ok(LocalAddress::Any), 1));
    let error = "t: vxlan type requires 'remote_ip=flow' with 'local_ip=flow'";
    assert_eq!(local("10.0.0.2", "flow").0, Err(error.into()));
    let error = "t: 'remote_ip' and 'local_ip' has to be of the same address family";
    assert_eq!(local("10.0.0.2", "fd00::1").0, Err(error.into()));
    let (_, problems) = with("vxlan", &[("local_ip", "foo")]);
    assert_eq!(
        problems,
        ["options:local_ip: bad vxlan 'local_ip', ignoring it"]
    );
}

#[test]
fn gre_is_of_its_addresses_family() {
    let kind = |name, options: &[(&str, &str)]| read_row(name, options).0.unwrap().kind;
    let (v4, v6) = ("10.0.0.2", "fd00::2");
    for name in ["gre", "ip6gre"] {
        assert_eq!(kind(name, &[("remote_ip", v4)]), TunnelKind::Gre);
        assert_eq!(kind(name, &[("remote_ip", v6)]), TunnelKind::Ip6Gre);
        let local = [("remote_ip", "flow"), ("local_ip", v6)];
        assert_eq!(kind(name, &local), TunnelKind::Ip6Gre);
    }
    assert_eq!(kind("gre", &[("remote_ip", "flow")]), TunnelKind::Gre);
    assert_eq!(kind("nvgre", &[("remote_ip", v6)]), TunnelKind::Nvgre);
    // Problems name the interface's type even so.
    let (_, problems) = read_row("gre", &[("remote_ip", v6), ("dst_port", "5")]);
    let text = "options:dst_port: unknown gre argument 'dst_port', ignoring it";
    assert_eq!(problems, [text]);
}

#[test]
fn keys_are_numbers_flow_or_none() {
    let keys = |options: &[(&str, &str)]| {
        let spec = fine("vxlan", options);
        (spec.in_key, spec.out_key)
    };
    use TunnelKey::{Fixed, Flow, None};
    assert_eq!(keys(&[]), (None, None));
    assert_eq!(keys(&[("key", "flow")]), (Flow, Flow));
    assert_eq!(
        keys(&[("key", "0xffffff")]),
        (Fixed(0xff_ffff), Fixed(0xff_ffff))
    );
    assert_eq!(keys(&[("key", "010")]), (Fixed(8), Fixed(8)));
    assert_eq!(keys(&[("in_key", "5")]), (Fixed(5), None));
    assert_eq!(keys(&[("in_key", "5"), ("key", "0")]), (Fixed(5), Fixed(0)));
    assert_eq!(
        keys(&[("in_key", "flow"), ("out_key", "7")]),
        (Flow, Fixed(7))
    );
}

#[test]
fn keys_that_cannot_be_are_told() {
    let (spec, problems) = with("vxlan", &[("key", "16777216")]);
    assert_eq!(spec.in_key, TunnelKey::Fixed(1 << 24));
    assert_eq!(
        problems,
        [
            "options:key: 16777216 has more than the 24 bits of a key: no packet comes in with it, \
          and its low bits are sent"
        ]
    );
    assert_eq!(fine("gre", &[("key", "16777216")]).in_key, spec.in_key);
    assert_eq!(with("gtpu", &[("out_key", "0x100000000")]).1.len(), 1);
    assert_eq!(
        fine("stt", &[("key", "0xffffffffffffffff")]).out_key,
        TunnelKey::Fixed(u64::MAX)
    );
    for bad in ["abc", "-1", "+1", "", "0x", "08", "18446744073709551616"] {
        let (spec, problems) = with("gre", &[("in_key", bad)]);
        assert_eq!(spec.in_key, TunnelKey::Fixed(0), "{bad}");
        let text = format!("options:in_key: \"{bad}\" is neither a number nor flow, using 0");
        assert_eq!(problems, [text]);
    }
    let (_, problems) = with("gre", &[("key", "zz"), ("in_key", "1"), ("out_key", "2")]);
    let text = "options:key: there are in_key and out_key, ignoring it";
    assert_eq!(problems, [text]);
}

#[test]
fn the_udp_port_has_a_range() {
    assert_eq!(fine("vxlan", &[("dst_port", "8472")]).dst_port, 8472);
    assert_eq!(fine("gtpu", &[("dst_port", "65535")]).dst_port, 65535);
    assert_eq!(fine("stt", &[("dst_port", "7472")]).dst_port, 7472);
    for bad in ["0", "65536", "abc", "-1"] {
        let (spec, problems) = with("geneve", &[("dst_port", bad)]);
        assert_eq!((spec.dst_port, problems.len()), (6081, 1), "{bad}");
    }
    let (spec, problems) = with("gre", &[("dst_port", "5")]);
    assert_eq!((spec.dst_port, problems.len()), (0, 1));
}

#[test]
fn tos_and_ttl_are_numbers_or_the_inner_packets() {
    let tos = |text| {
        let (spec, problems) = with("vxlan", &[("tos", text)]);
        (spec.tos, problems.len())
    };
    assert_eq!(tos("inherit"), (None, 0));
    assert_eq!(tos("0xfc"), (Some(0xfc), 0));
    assert_eq!(tos("12"), (Some(12), 0));
    for bad in ["1", "256", "x", "-4", "0x100"] {
        assert_eq!(tos(bad), (Some(0), 1), "{bad}");
    }
    let text = "options:tos: invalid TOS 1, using 0";
    assert_eq!(with("vxlan", &[("tos", "1")]).1, [text]);
    let ttl = |text| {
        let (spec, problems) = with("gre", &[("ttl", text)]);
        (spec.ttl, problems.len())
    };
    assert_eq!(ttl("inherit"), (None, 0));
    assert_eq!(ttl("255"), (Some(255), 0));
    // As in Open vSwitch, 0 means the default.
    assert_eq!(ttl("0"), (Some(64), 0));
    for bad in ["256", "300", "abc", "-1"] {
        assert_eq!(ttl(bad), (Some(64), 1), "{bad}");
    }
}

#[test]
fn switches_are_those_that_the_kind_has() {
    assert!(fine("vxlan", &[("csum", "true")]).csum);
    assert!(!fine("gre", &[("csum", "false")]).csum);
    assert!(fine("gre", &[("seq", "true")]).sequence);
    assert!(fine("gtpu", &[("seq", "true")]).sequence);
    assert!(!fine("nvgre", &[("df_default", "false")]).df);
    for (kind, key) in [
        ("gtpu", "csum"),
        ("nvgre", "csum"),
        ("nvgre", "seq"),
        ("stt", "csum"),
        ("stt", "seq"),
        ("stt", "exts"),
        ("vxlan", "seq"),
        ("geneve", "exts"),
    ] {
        let (spec, problems) = with(kind, &[(key, "true")]);
        assert!(!spec.csum && !spec.sequence);
        let text = format!("options:{key}: unknown {kind} argument '{key}', ignoring it");
        assert_eq!(problems, [text]);
    }
    let (spec, problems) = with("vxlan", &[("csum", "yes")]);
    assert_eq!((spec.csum, problems.len()), (false, 1));
}

#[test]
fn vxlan_has_group_policies_and_nothing_else() {
    let gbp = TunnelKind::Vxlan { gbp: true };
    assert_eq!(fine("vxlan", &[("exts", "gbp")]).kind, gbp);
    let (spec, problems) = with("vxlan", &[("exts", "foo,gbp")]);
    assert_eq!(spec.kind, gbp);
    assert_eq!(
        problems,
        ["options:exts: unknown extension 'foo', ignoring it"]
    );
    let error = refused("vxlan", &[("remote_ip", "flow"), ("exts", "gbp,gpe")]);
    assert_eq!(error, "t: extension 'gpe' is not supported yet");
}

#[test]
fn a_tunnel_carries_what_its_kind_can() {
    let carries = |kind, word| {
        let options = [("remote_ip", "flow"), ("packet_type", word)];
        let (spec, problems) = read_row(kind, &options);
        (spec.map(|spec| spec.carries), problems.len())
    };
    assert_eq!(carries("gre", "legacy_l3"), (Ok(Carries::Packets), 0));
    assert_eq!(carries("gre", "legacy_l2"), (Ok(Carries::Frames), 0));
    assert_eq!(carries("gtpu", "legacy_l3"), (Ok(Carries::Packets), 0));
    assert_eq!(carries("gre", "ptap"), (Ok(Carries::Frames), 1));
    assert_eq!(carries("gtpu", "ptap"), (Ok(Carries::Packets), 1));
    let error = |kind, word| carries(kind, word).0.unwrap_err();
    assert_eq!(
        error("vxlan", "legacy_l3"),
        "t: legacy_l3 configured on VXLAN (without GPE) tunnel that cannot carry L3 traffic"
    );
    assert_eq!(
        error("ip6gre", "legacy_l3"),
        "t: legacy_l3 configured on ip6gre tunnel that cannot carry L3 traffic"
    );
    assert_eq!(
        error("gtpu", "legacy_l2"),
        "t: legacy_l2 configured on gtpu tunnel that cannot carry L2 traffic"
    );
    assert_eq!(error("gre", "foo"), "t: unknown packet_type 'foo'");
}

#[test]
fn tunnels_with_ipsec_options_are_refused() {
    for key in ["psk", "remote_cert", "remote_name"] {
        let error = refused("gre", &[("remote_ip", "10.0.0.2"), (key, "x")]);
        let text = format!("t: options:{key} asks for IPsec, which is not supported yet");
        assert_eq!(error, text);
    }
}

#[test]
fn unknown_tunnel_options_are_reported() {
    let (_, problems) = with("vxlan", &[("foo", "bar"), ("erspan_ver", "1")]);
    assert_eq!(
        problems,
        [
            "options:erspan_ver: unknown vxlan argument 'erspan_ver', ignoring it",
            "options:foo: unknown vxlan argument 'foo', ignoring it",
        ]
    );
    let (_, problems) = with("vxlan", &[("egress_pkt_mark", "4294967296")]);
    let text = "options:egress_pkt_mark: \"4294967296\" is not a number of 32 bits, using 0";
    assert_eq!(problems, [text]);
    assert_eq!(fine("vxlan", &[("egress_pkt_mark", "7")]).mark, 7);
}

#[test]
fn tunnels_that_receive_the_same_packets_cannot_be_together() {
    let spec = |kind, options: &[(&str, &str)]| read_row(kind, options).0.unwrap();
    let remote = ("remote_ip", "10.0.0.2");
    let mut together = Together::default();
    let mut add = |name, kind, options: &[(&str, &str)]| {
        let added = together.add(name, &spec(kind, options));
        added.map_err(|conflict| conflict.to_string())
    };
    assert_eq!(add("a", "vxlan", &[remote, ("key", "5")]), Ok(()));
    // Options for sent packets (`out_key`) do not tell tunnels apart.
    assert_eq!(
        add("b", "vxlan", &[remote, ("in_key", "5"), ("out_key", "6")]),
        Err(
            "could not add network device b to ofproto (File exists): attempting to add tunnel \
             port with same config as port 'a' (::->10.0.0.2, key=0x5, legacy_l2)"
                .into()
        )
    );
    for (name, options) in [
        ("c", &[remote, ("key", "6")][..]),
        ("d", &[remote]),
        ("e", &[remote, ("key", "flow")]),
        ("f", &[remote, ("key", "5"), ("local_ip", "10.0.0.1")]),
        ("g", &[remote, ("key", "5"), ("dst_port", "8472")]),
        ("h", &[("remote_ip", "flow"), ("key", "5")]),
        (
            "i",
            &[("remote_ip", "flow"), ("key", "5"), ("local_ip", "flow")],
        ),
    ] {
        assert_eq!(add(name, "vxlan", options), Ok(()), "{name}");
    }
    // No key is the same as key 0.
    let error = add("j", "vxlan", &[remote, ("key", "0")]).unwrap_err();
    assert!(error.ends_with("port 'd' (::->10.0.0.2, key=0, legacy_l2)"));
    assert_eq!(add("k", "gre", &[remote, ("key", "5")]), Ok(()));
    let l3 = ("packet_type", "legacy_l3");
    assert_eq!(add("l", "gre", &[remote, ("key", "5"), l3]), Ok(()));
    assert_eq!(add("m", "ip6gre", &[("remote_ip", "fd00::2")]), Ok(()));
    assert!(add("n", "gre", &[("remote_ip", "fd00::2")]).is_err());
}

#[test]
fn one_port_has_tunnels_of_one_kind() {
    let mut together = Together::default();
    let mut add = |name, kind, options: &[(&str, &str)]| {
        let added = together.add(name, &with(kind, options).0);
        added.map_err(|conflict| conflict.to_string())
    };
    assert_eq!(add("a", "vxlan", &[]), Ok(()));
    assert_eq!(
        add("b", "vxlan", &[("exts", "gbp"), ("key", "1")]),
        Err(
            "b: VXLAN-GBP, and non-VXLAN-GBP tunnels can't be configured on the same dst_port"
                .into()
        )
    );
    let other = [("exts", "gbp"), ("dst_port", "4790")];
    assert_eq!(add("c", "vxlan", &other), Ok(()));
    assert_eq!(
        add("d", "geneve", &[("dst_port", "4789")]),
        Err("d: geneve cannot have UDP port 4789, which vxlan port 'a' has".into())
    );
    assert_eq!(add("e", "gre", &[]), Ok(()));
    assert_eq!(
        add("f", "nvgre", &[]),
        Err("f: nvgre cannot be told from gre, which port 'e' has".into())
    );
    // A port of TCP is another than that of UDP with the same number.
    assert_eq!(add("g", "stt", &[("dst_port", "4789")]), Ok(()));
    assert!(add("h", "stt", &[("dst_port", "4789")]).is_err());
    assert_eq!(
        add("i", "stt", &[("dst_port", "4789"), ("key", "1")]),
        Ok(())
    );
}
