use super::*;
use ::qos::policer::{IngressSpec, Profile, Rates};
use proptest::prelude::*;

fn strings(pairs: &[(&str, &str)]) -> Strings {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn row(kind: &str, port: Pairs<'_>, queues: &[(i64, Pairs<'_>)]) -> vswitch::QoS {
    let queue = |pairs| vswitch::Queue {
        other_config: strings(pairs),
        ..Default::default()
    };
    vswitch::QoS {
        kind: kind.to_owned(),
        queues: queues
            .iter()
            .map(|(number, pairs)| (*number, queue(pairs)))
            .collect(),
        other_config: strings(port),
        ..Default::default()
    }
}

fn read_row(row: &vswitch::QoS) -> (Qos, Vec<String>) {
    let mut problems = Problems::default();
    let qos = read("p1", Some(row), &mut problems);
    (
        qos,
        problems
            .0
            .into_iter()
            .map(|problem| problem.message)
            .collect(),
    )
}

fn read_one(kind: &str, port: Pairs<'_>, queues: &[(i64, Pairs<'_>)]) -> (Qos, Vec<String>) {
    read_row(&row(kind, port, queues))
}

/// Returns the error that such rows lead to; the previous QoS must stay in force.
fn refused(kind: &str, port: Pairs<'_>, queues: &[(i64, Pairs<'_>)]) -> String {
    let (mut qos, problems) = read_one(kind, port, queues);
    let error = qos.error.clone().expect("an error");
    let text = error.to_string();
    let said = text
        .strip_prefix(&format!("QoS {kind}: "))
        .expect("the type");
    assert_eq!(
        problems.last(),
        Some(&format!("{said}; what was configured before stays so"))
    );
    let before = read_one("linux-htb", &[("max-rate", "9000000")], &[(3, &[])]).0;
    qos.keep(Some(&before));
    assert_eq!(
        qos,
        Qos {
            error: Some(error.clone()),
            ..before
        }
    );
    qos.keep(None);
    assert_eq!(
        qos,
        Qos {
            error: Some(error.clone()),
            ..Qos::default()
        }
    );
    said.to_owned()
}

#[test]
fn queues_mark_whatever_the_type() {
    for kind in [
        "linux-htb",
        "linux-hfsc",
        "trtcm-policer",
        "egress-policer",
        "linux-noop",
    ] {
        let rates: Pairs<'_> = &[("cir", "1000000"), ("cbs", "100000")];
        let mut row = row(kind, rates, &[(7, &[]), (3, &[]), (0, &[])]);
        for (number, dscp) in [(7, 46), (0, 64)] {
            row.queues.get_mut(&number).unwrap().dscp = Some(dscp);
        }
        let qos = read_row(&row).0;
        assert_eq!(qos.error, None, "{kind}");
        assert_eq!(qos.marks, [(7, 46)], "{kind}");
    }
}

#[test]
fn rows_become_a_shape() {
    let queue: Pairs<'_> = &[
        ("min-rate", "10000000"),
        ("max-latency-us", "2000"),
        ("ecn", "true"),
        ("priority", "99"),
    ];
    let (qos, problems) = read_one(
        "linux-htb",
        &[("max-rate", "100000000")],
        &[(3, queue), (7, &[])],
    );
    assert_eq!(problems, Vec::<String>::new());
    let Shape::Queues(port) = &qos.shape else {
        panic!("{qos:?}")
    };
    assert_eq!(
        (port.max_rate, qos.kind.as_str()),
        (100_000_000, "linux-htb")
    );
    assert_eq!(qos.queues, [0, 3, 7], "the default queue is there, too");
    let bounded = &port.queues[0];
    assert_eq!(
        (bounded.min_rate, bounded.max_rate, bounded.priority),
        (10_000_000, 100_000_000, 7)
    );
    assert_eq!(
        (bounded.max_latency_ns, bounded.mark_ns),
        (Some(2_000_000), Some(1_000_000))
    );
}

#[test]
fn the_default_queue_is_guaranteed_a_little() {
    let queues: [(i64, Pairs<'_>); 2] = [
        (1, &[("min-rate", "80000000")]),
        (2, &[("min-rate", "20000000")]),
    ];
    let (qos, problems) = read_one("linux-htb", &[("max-rate", "100000000")], &queues);
    assert_eq!((qos.error.as_ref(), problems), (None, Vec::new()));
    let Shape::Queues(port) = &qos.shape else {
        panic!("{qos:?}")
    };
    let rates: BTreeMap<u32, u64> = port
        .queues
        .iter()
        .map(|queue| (queue.number, queue.min_rate))
        .collect();
    let wanted = BTreeMap::from([(0, 12_000), (1, 79_990_400), (2, 19_997_600)]);
    assert_eq!(rates, wanted);
    assert_eq!(
        qos.lowered,
        BTreeMap::from([(1, 80_000_000), (2, 20_000_000)])
    );
    // All guarantees fit.
    let (qos, _) = read_one("linux-htb", &[("max-rate", "200000000")], &queues);
    assert_eq!(qos.lowered, BTreeMap::new());
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let cases: [(Pairs<'_>, Pairs<'_>, &str); 15] = [
        (
            &[("max-rate", "-5")],
            &[],
            "max-rate: \"-5\" is not a whole number from 0 on",
        ),
        (
            &[("max-rate", "0")],
            &[],
            "max-rate: 0 bit/s is not a rate between 8000 and 400000000000 bit/s",
        ),
        (
            &[("max-rate", "99999999999999")],
            &[],
            "max-rate: 99999999999999 bit/s is not a rate between 8000 and 400000000000 bit/s",
        ),
        (
            &[("max-rate", "1000000")],
            &[("min-rate", "2000000")],
            "port: guaranteed rates add up to 2000000 bit/s, more than its 1000000 bit/s",
        ),
        (
            &[],
            &[("burst", "much")],
            "queue 1: burst: \"much\" is not a whole number from 0 on",
        ),
        (
            &[],
            &[("min-rate", "90000"), ("max-rate", "80000")],
            "queue 1: guaranteed rate 90000 bit/s is above the maximum of 80000 bit/s",
        ),
        (
            &[],
            &[("max-rate", "0")],
            "queue 1: max-rate: 0 bit/s is not a rate between 8000 and 400000000000 bit/s",
        ),
        (
            &[],
            &[("min-rate", "9223372036854775808")],
            "queue 1: min-rate: 9223372036854775808 bit/s is not a rate between 0 and 400000000000 bit/s",
        ),
        (
            &[("tenant-a-max-rate", "7")],
            &[],
            "tenant-a-max-rate: 7 bit/s is not a rate between 8000 and 400000000000 bit/s",
        ),
        (
            &[],
            &[("max-latency-us", "4000001")],
            "queue 1: max-latency-us: 4000001 is more than 4000000",
        ),
        (
            &[],
            &[("ecn", "yes")],
            "queue 1: ecn: \"yes\" is neither true nor false",
        ),
        (
            &[],
            &[("limit-packets", "0")],
            "queue 1: a limit of 0 is not between 1 and 4096",
        ),
        (
            &[],
            &[("queue-limit", "5000")],
            "queue 1: queue-limit: 5000 is more than 4096",
        ),
        (
            &[("overhead", "9999")],
            &[],
            "overhead: 9999 is more than 1000",
        ),
        (
            &[("burst", "2000000001")],
            &[],
            "port: a burst of 2000000001 bits is more than 2000000000",
        ),
    ];
    for (port, queue, text) in cases {
        assert_eq!(refused("linux-hfsc", port, &[(1, queue)]), text);
    }
    for kind in ["linux-htb", "trtcm-policer"] {
        assert_eq!(
            refused(kind, &[], &[(i64::from(u32::MAX), &[])]),
            "queue 4294967295: numbers are 0 to 4294967294"
        );
    }
}

#[test]
fn there_are_only_so_many_queues() {
    let mut many = row("linux-htb", &[], &[]);
    many.queues = (0..=MOST_QUEUES as i64)
        .map(|number| (number, Default::default()))
        .collect();
    assert_eq!(
        read_row(&many)
            .0
            .error
            .map(|error| error.to_string())
            .as_deref(),
        Some("QoS linux-htb: 100001 queues are more than 100000")
    );
    many.queues.remove(&0);
    let (qos, problems) = read_row(&many);
    assert_eq!((qos.queues.len(), problems.len()), (MOST_QUEUES + 1, 0));
}

#[test]
fn types_and_keys_that_are_unknown_are_named() {
    let noop = Qos {
        kind: "linux-noop".into(),
        ..Qos::default()
    };
    assert_eq!(read_one("linux-noop", &[], &[(7, &[])]), (noop, vec![]));
    assert_eq!(
        read_one("", &[("max-rate", "x")], &[]),
        (Qos::default(), vec![])
    );
    assert_eq!(
        refused("gold", &[], &[]),
        "type \"gold\" does not exist; \
         there are linux-htb, linux-hfsc, linux-noop, egress-policer, trtcm-policer"
    );
    assert_eq!(
        refused("linux-netem", &[], &[]),
        "type \"linux-netem\" is not supported yet; \
         there are linux-htb, linux-hfsc, linux-noop, egress-policer, trtcm-policer"
    );
    let (qos, problems) = read_one("linux-htb", &[("colour", "red")], &[(0, &[("size", "1")])]);
    assert!(matches!(qos.shape, Shape::Queues(_)));
    assert_eq!(
        problems,
        [
            "unknown key other_config:colour, ignoring it",
            "queue 0: unknown key other_config:size, ignoring it"
        ]
    );
    let (_, problems) = read_one(
        "trtcm-policer",
        &[("max-rate", "1")],
        &[(2, &[("min-rate", "1")])],
    );
    assert_eq!(
        problems,
        [
            "unknown key other_config:max-rate, ignoring it",
            "queue 2: unknown key other_config:min-rate, ignoring it",
            "neither cir nor eir is there: nothing passes once its bursts are used up"
        ]
    );
    let (_, problems) = read_one(
        "trtcm-policer",
        &[("eir", "1"), ("ebs", "2")],
        &[(2, &[]), (3, &[("cir", "1"), ("cbs", "2")])],
    );
    assert_eq!(
        problems,
        ["queue 2: neither cir nor eir is there: nothing passes once its bursts are used up"]
    );
    let (_, problems) = read_one(
        "egress-policer",
        &[("cir", "1"), ("cbs", "2"), ("eir", "1")],
        &[(2, &[])],
    );
    assert_eq!(
        problems,
        [
            "unknown key other_config:eir, ignoring it",
            "an egress-policer has no queues, ignoring them"
        ]
    );
}

#[test]
fn policers_have_their_rates() {
    let profile = |rate, burst| Profile { rate, burst };
    let (qos, problems) = read_one(
        "egress-policer",
        &[("cir", "46000000"), ("cbs", "2048")],
        &[],
    );
    assert_eq!(
        qos.shape,
        Shape::Policer(Arc::new(PolicerSpec::One(profile(46_000_000, 2048))))
    );
    assert_eq!((qos.queues.len(), problems.len()), (0, 0));
    let port = Rates {
        committed: profile(1000, 5000),
        excess: profile(100, 2000),
    };
    let keys: Pairs<'_> = &[
        ("cir", "1000"),
        ("cbs", "5000"),
        ("eir", "100"),
        ("ebs", "2000"),
    ];
    let read = |queues: &[(i64, Pairs<'_>)]| match read_one("trtcm-policer", keys, queues).0.shape {
        Shape::Policer(spec) => (*spec).clone(),
        other => panic!("{other:?}"),
    };
    let own = Rates {
        committed: profile(7, 9),
        excess: profile(0, 0),
    };
    // Without a row the default queue has the port's rates; other queues then have none, and let
    // nothing pass.
    assert_eq!(
        read(&[(3, &[("cir", "7"), ("cbs", "9")])]),
        PolicerSpec::Queues {
            port,
            queues: vec![(0, port), (3, own)]
        }
    );
    assert_eq!(
        read(&[(0, &[]), (4, &[])]),
        PolicerSpec::Queues {
            port,
            queues: vec![(0, port), (4, Rates::default())]
        }
    );
    assert_eq!(
        read(&[(0, &[("cir", "7"), ("cbs", "9")])]),
        PolicerSpec::Queues {
            port,
            queues: vec![(0, own)]
        }
    );
    assert_eq!(
        read_one("trtcm-policer", keys, &[(3, &[])]).0.queues,
        [0, 3]
    );
}

#[test]
fn policers_that_cannot_be_are_refused() {
    assert_eq!(
        refused("egress-policer", &[("cbs", "2048")], &[]),
        "cir is missing: nothing would pass"
    );
    assert_eq!(
        refused("egress-policer", &[("cir", "1000")], &[]),
        "cir of 1000 bytes a second needs cbs, the bytes that may come at once"
    );
    assert_eq!(
        refused("egress-policer", &[("cir", "x"), ("cbs", "1")], &[]),
        "cir: \"x\" is not a whole number from 0 on"
    );
    assert_eq!(
        refused("egress-policer", &[("cir", "-1"), ("cbs", "1")], &[]),
        "cir: \"-1\" is not a whole number from 0 on"
    );
    assert_eq!(
        refused("trtcm-policer", &[("eir", "5")], &[]),
        "eir of 5 bytes a second needs ebs, the bytes that may come at once"
    );
    assert_eq!(
        refused(
            "trtcm-policer",
            &[],
            &[(3, &[("cir", "99999999999999"), ("cbs", "1")])]
        ),
        "queue 3: cir: 99999999999999 bytes a second are more than 50000000000"
    );
    assert_eq!(
        refused("trtcm-policer", &[], &[(3, &[("cbs", "1.5")])]),
        "queue 3: cbs: \"1.5\" is not a whole number from 0 on"
    );
}

#[test]
fn tenants_stand_between_the_port_and_queues() {
    let port: Pairs<'_> = &[
        ("max-rate", "100000000"),
        ("tenant-a-b-max-rate", "40000000"),
        ("tenant-idle-min-rate", "1000000"),
    ];
    let member =
        |tenant: &'static str, rate: &'static str| [("tenant", tenant), ("min-rate", rate)];
    let (one, two, three) = (
        member("a-b", "3000000"),
        member("a-b", "4000000"),
        member("c", "5000000"),
    );
    let (qos, problems) = read_one(
        "linux-htb",
        port,
        &[(1, &one), (2, &two), (3, &three), (4, &[])],
    );
    assert_eq!(problems, Vec::<String>::new());
    let Shape::Queues(spec) = &qos.shape else {
        panic!("{qos:?}")
    };
    let tenant = |name: &str| {
        spec.tenants
            .iter()
            .find(|tenant| tenant.number == qos.tenants[name])
            .unwrap()
    };
    assert_eq!(
        (tenant("a-b").min_rate, tenant("a-b").max_rate),
        (7_000_000, 40_000_000)
    );
    assert_eq!(
        (tenant("c").min_rate, tenant("c").max_rate),
        (5_000_000, 100_000_000)
    );
    assert_eq!((tenant("idle").min_rate, qos.tenants.len()), (1_000_000, 3));
    let of = |number: u32| {
        spec.queues
            .iter()
            .find(|queue| queue.number == number)
            .unwrap()
            .tenant
    };
    assert_eq!(
        (of(1), of(2), of(3), of(4), of(0)),
        (
            Some(qos.tenants["a-b"]),
            of(1),
            Some(qos.tenants["c"]),
            None,
            None
        )
    );
    // Names keep their numbers when others are added or removed.
    let (other, _) = read_one("linux-htb", &[], &[(1, &member("c", "5000000"))]);
    assert_eq!(other.tenants["c"], qos.tenants["c"]);

    assert_eq!(
        refused(
            "linux-htb",
            &[("tenant-c-min-rate", "4000000")],
            &[(3, &three)]
        ),
        "tenant c: guaranteed rates add up to 5000000 bit/s, more than its 4000000 bit/s"
    );
    assert_eq!(
        refused(
            "linux-htb",
            &[
                ("tenant-c-min-rate", "5000000"),
                ("tenant-c-max-rate", "4000000")
            ],
            &[(3, &three)]
        ),
        "tenant c: guaranteed rate 5000000 bit/s is above the maximum of 4000000 bit/s"
    );
    assert_eq!(
        refused("linux-htb", &[("tenant-c-burst", "x")], &[]),
        "tenant-c-burst: \"x\" is not a whole number from 0 on"
    );
    assert_eq!(
        refused("linux-htb", &[], &[(3, &[("tenant", "")])]),
        "tenant: a name has at least one character"
    );
}

#[test]
fn queues_are_measured_that_ask_for_it() {
    let measured = |queues: &[(i64, Pairs<'_>)]| read_one("linux-htb", &[], queues).0.measured;
    let asks: Pairs<'_> = &[("measure-latency", "true")];
    let bound: Pairs<'_> = &[("max-latency-us", "100"), ("measure-latency", "false")];
    assert_eq!(
        measured(&[(9, asks), (4, bound), (5, &[]), (6, asks)]),
        [6, 9]
    );
    let many: Vec<(i64, Pairs<'_>)> = (1..1026).map(|number| (number, asks)).collect();
    assert_eq!(
        refused("linux-htb", &[], &many),
        "measure-latency: 1025 queues are more than 1024"
    );
    assert_eq!(
        refused("linux-htb", &[], &[(1, &[("measure-latency", "1")])]),
        "queue 1: measure-latency: \"1\" is neither true nor false"
    );
}

#[test]
fn receiving_is_policed() {
    let read = |rate, burst, kpkts_rate, kpkts_burst| {
        let row = vswitch::Interface {
            ingress_policing_rate: rate,
            ingress_policing_burst: burst,
            ingress_policing_kpkts_rate: kpkts_rate,
            ingress_policing_kpkts_burst: kpkts_burst,
            ..Default::default()
        };
        let mut problems = Problems::default();
        let ingress = policing::ingress(&row, &mut problems).map_err(|error| error.to_string());
        (ingress, problems.0.len())
    };
    let spec = |kbits_rate, kbits_burst, kpkts_rate, kpkts_burst| IngressSpec {
        kbits_rate,
        kbits_burst,
        kpkts_rate,
        kpkts_burst,
    };
    assert_eq!(read(1000, 100, 5, 6), (Ok(spec(1000, 100, 5, 6)), 0));
    assert_eq!(
        read(1 << 32, 0, 0, 0),
        (
            Err("ingress_policing_rate: 4294967296 is not between 0 and 4294967295".into()),
            1
        )
    );
    assert_eq!(
        read(0, -1, 0, 0).0.unwrap_err(),
        "ingress_policing_burst: -1 is not between 0 and 4294967295"
    );
    assert_eq!(
        read(0, 0, 4_294_968, 0).0.unwrap_err(),
        "ingress_policing_kpkts_rate: 4294968 is not between 0 and 4294967"
    );
}

proptest! {
    /// Any rows become a valid shape, or an error.
    #[test]
    fn any_rows_are_answered(
        kind in prop::sample::select(&TYPES[..]),
        port in prop::collection::btree_map(key(), value(), 0..5),
        queues in prop::collection::btree_map(number_of_queue(), prop::collection::btree_map(key(), value(), 0..5), 0..4),
    ) {
        let queue = |pairs: BTreeMap<String, String>| vswitch::Queue { other_config: pairs, ..Default::default() };
        let row = vswitch::QoS {
            kind: kind.to_owned(),
            other_config: port,
            queues: queues.into_iter().map(|(number, pairs)| (number, queue(pairs))).collect(),
            ..Default::default()
        };
        let (qos, problems) = read_row(&row);
        prop_assert_eq!(&read_row(&row).0, &qos);
        match &qos.shape {
            Shape::Queues(spec) => prop_assert_eq!(spec.check(), Ok(())),
            Shape::Policer(spec) => prop_assert_eq!(spec.check(), Ok(())),
            Shape::None => prop_assert!(qos.error.is_some() != (kind == "linux-noop"), "{:?}", qos),
        }
        prop_assert!(qos.error.is_none() || !problems.is_empty());
        prop_assert!(qos.queues.is_sorted());
    }
}

fn number_of_queue() -> impl Strategy<Value = i64> {
    prop_oneof![
        0..4_i64,
        Just(0xffff_fffe),
        Just(0xffff_ffff),
        Just(i64::MAX)
    ]
}

fn key() -> impl Strategy<Value = String> {
    let keys = [
        "max-rate",
        "min-rate",
        "burst",
        "overhead",
        "priority",
        "max-latency-us",
        "ecn",
        "limit-packets",
        "queue-limit",
        "tenant",
        "tenant-a-min-rate",
        "tenant-a-max-rate",
        "tenant--burst",
        "cir",
        "cbs",
        "eir",
        "ebs",
        "colour",
    ];
    prop::sample::select(keys.map(str::to_owned).to_vec())
}

fn value() -> impl Strategy<Value = String> {
    let words = [
        "",
        "0",
        "1",
        "true",
        "a",
        "-1",
        "1e9",
        " 8000 ",
        "18446744073709551615",
        "18446744073709551616",
    ];
    prop_oneof![
        prop::sample::select(words.map(str::to_owned).to_vec()),
        (0..20_000_000_u64).prop_map(|value| value.to_string()),
        any::<u64>().prop_map(|value| value.to_string()),
    ]
}
