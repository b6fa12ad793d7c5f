//! Compares a prediction's counts with the rules evaluated one by one, and with a worker's
//! counters.

use openflow::flow::FlowMod;
use pipeline::reference::{self, Effect};
use predict::ports::{Edge, PortCost, Shares};
use predict::rules::Rules;
use predict::spread::Spread;
use predict::traffic::Traffic;
use predict::{Effort, Prediction, trace};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Returns a few tables of rules of all kinds, different for each seed.
fn generated(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |end: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % end
    };
    let mut text = String::from("# generated\n");
    let depth = 1 + below(3);
    for table in 0..depth {
        for number in 0..1 + below(60) {
            let matching = match below(6) {
                0 => format!("in_port={}", 1 + below(2)),
                1 => format!("ip,nw_dst=10.{}.0.0/16", below(4)),
                2 => format!("udp,tp_dst={}", below(40)),
                3 => format!("tcp,nw_src=10.0.{}.0/24,tp_dst=80", below(20)),
                4 => format!("dl_src=02:00:00:00:00:{:02x}", below(200)),
                _ => format!("dl_vlan={}", 1 + below(4)),
            };
            let end = match below(4) {
                0 => "drop".to_owned(),
                1 => "output:3,output:4".to_owned(),
                2 if table + 1 < depth => format!("resubmit(,{})", table + 1),
                _ => format!("mod_dl_dst:02:00:00:00:01:01,output:{}", 3 + below(2)),
            };
            let _ = writeln!(
                text,
                "table={table},priority={number},{matching},actions={end}"
            );
        }
    }
    text
}

/// Returns the lookups that found a rule, and packets by port.
fn counted_by_reference(rules: &Rules, traffic: &Traffic) -> (u64, BTreeMap<u32, u64>) {
    let mut ports = BTreeMap::new();
    let mut hits = 0;
    for arrival in &traffic.arrivals {
        let outcome = reference::evaluate(&rules.pipeline, arrival.in_port, &arrival.bytes);
        hits += outcome.hits.len() as u64;
        for effect in outcome.effects {
            if let Effect::Output { port, .. } = effect {
                *ports.entry(port).or_default() += 1;
            }
        }
    }
    (hits, ports)
}

#[test]
fn the_trace_is_what_the_rules_say() {
    for seed in 1..=12 {
        let text = generated(seed);
        let rules = Rules::read("generated", &text, &openflow::parse::no_names).unwrap();
        let traffic = Traffic::of_rules(&rules, 1).unwrap();
        let trace = trace::trace(&rules, &traffic).unwrap();
        let (hits, ports) = counted_by_reference(&rules, &traffic);
        let matches: u64 = trace.tables.iter().map(|table| table.matches).sum();
        assert_eq!(
            (matches, &trace.out_ports),
            (hits, &ports),
            "seed {seed}\n{text}"
        );
        assert!(hits > 0, "seed {seed} exercises nothing");
        for table in &trace.tables {
            let counted = rules.bridge().table_counters(table.table);
            assert_eq!(
                (table.lookups, table.matches),
                counted,
                "seed {seed}, table {}",
                table.table
            );
        }
        let packets: u64 = trace.paths.iter().map(|path| path.packets).sum();
        assert_eq!(packets, traffic.arrivals.len() as u64);
    }
}

/// Makes a prediction from a few slices. Other tests use the processor meanwhile, so it may take
/// several attempts.
fn predicted(rules: &Rules, traffic: &Traffic, ports: &PortCost, shares: Shares) -> Prediction {
    predicted_with(rules, traffic, ports, shares, Shares::NONE)
}

fn predicted_with(
    rules: &Rules,
    traffic: &Traffic,
    ports: &PortCost,
    shares: Shares,
    policed: Shares,
) -> Prediction {
    let effort = Effort {
        cpu: None,
        rounds: 3,
    };
    let attempt = || {
        let trace = trace::trace(rules, traffic).unwrap();
        let edge = Edge {
            ports: &[(ports, shares)],
            policed,
        };
        predict::predict(rules, traffic, trace, edge, effort)
    };
    for _ in 0..9 {
        match attempt() {
            Ok(prediction) => return prediction,
            Err(error) => assert!(error.to_string().contains("too busy"), "{error}"),
        }
    }
    attempt().unwrap()
}

#[test]
fn a_prediction_is_the_sum_of_its_stages() {
    let text = "udp,tp_dst=80,actions=output:2\ntcp,actions=dec_ttl,resubmit(,5)\ntable=5,tcp,nw_dst=10.0.0.0/8,actions=output:3\n";
    let rules = Rules::read("rules", text, &openflow::parse::no_names).unwrap();
    let traffic = Traffic::of_rules(&rules, 1).unwrap();
    let ports = PortCost {
        touched: Some(Spread::exact(1000.0)),
        send_packet: Spread::exact(50.0),
        look: Spread::exact(500.0),
        ..PortCost::default()
    };
    let prediction = predicted(&rules, &traffic, &ports, Shares::ALL);
    let names: Vec<&str> = prediction
        .stages
        .iter()
        .map(|stage| &stage.name[..])
        .collect();
    assert_eq!(
        names[..4],
        ["receive", "parse", "lookup in table 0", "lookup in table 5"]
    );
    let sum: f64 = prediction.stages.iter().map(|stage| stage.cycles).sum();
    let cycles = prediction.cycles;
    assert!((sum - cycles.median).abs() < 1e-6, "{sum} {cycles:?}");
    assert!(cycles.low <= cycles.median && cycles.median <= cycles.high);
    let mpps = prediction.hz as f64 / 1e6 / cycles.median;
    assert!((prediction.mpps.median - mpps).abs() < 1e-6);
    // Policers are a separate stage, before packets leave; if the machine's speed varies by more
    // than they cost, they may not be visible.
    let policed = predicted_with(&rules, &traffic, &ports, Shares::ALL, Shares::ALL);
    let sum: f64 = policed.stages.iter().map(|stage| stage.cycles).sum();
    assert!(
        (sum - policed.cycles.median).abs() < 1e-6,
        "{sum} {policed:?}"
    );
    let of_policers = policed
        .stages
        .iter()
        .filter(|stage| stage.name == "policers");
    assert!(of_policers.into_iter().all(|stage| stage.cycles > 0.0));
    assert!(
        prediction
            .stages
            .iter()
            .all(|stage| stage.name != "policers")
    );
}

/// More ports than a worker's mailbox holds commands.
#[test]
fn thousands_of_ports_are_predicted() {
    let mut text = String::new();
    for port in 1..=2000 {
        let _ = writeln!(text, "in_port={port},actions=output:3000");
    }
    let rules = Rules::read("rules", &text, &openflow::parse::no_names).unwrap();
    let traffic = Traffic::of_rules(&rules, 1).unwrap();
    assert_eq!(traffic.in_ports().len(), 2000);
    let prediction = predicted(&rules, &traffic, &PortCost::default(), Shares::NONE);
    let packets = traffic.arrivals.len() as u64;
    assert_eq!(
        prediction.trace.out_ports,
        BTreeMap::from([(3000, packets)])
    );
    assert!(prediction.cycles.median > 1.0);
}

#[test]
fn descriptions_say_flows_sizes_and_popularity() {
    let names = &openflow::parse::no_names;
    let different = |traffic: &Traffic| {
        let mut frames: Vec<_> = traffic
            .arrivals
            .iter()
            .map(|arrival| &arrival.bytes)
            .collect();
        frames.sort();
        frames.dedup();
        frames.len()
    };
    let traffic = Traffic::described("udp,tp_dst=80,flows=100,size=128", names, 1).unwrap();
    assert_eq!((traffic.arrivals.len(), different(&traffic)), (4096, 100));
    assert!(
        traffic
            .arrivals
            .iter()
            .all(|arrival| arrival.bytes.len() == 124)
    );
    assert!(
        traffic
            .arrivals
            .iter()
            .all(|arrival| arrival.bytes[36..38] == [0, 80])
    );
    let traffic = Traffic::described("tcp,flows=1000,zipf,in_port=9", names, 1).unwrap();
    assert_eq!(traffic.arrivals.len(), 100_000);
    assert_eq!(traffic.in_ports(), [9]);
    assert!((900..=1000).contains(&different(&traffic)));
    for (text, wrong) in [
        ("udp,flows=0", "flows is a number from 1 to 200000"),
        ("udp,size=9000", "size is a number from 64 to 1522"),
        ("udp,zipf=x", "zipf is a number from 0 to 10"),
        ("udp,tp_dst=x", "tp_dst"),
        ("nonsense", "unknown field nonsense"),
    ] {
        let error = Traffic::described(text, names, 1).unwrap_err().to_string();
        assert!(error.contains(wrong), "{error}");
    }
}

#[test]
fn captures_come_back_and_limits_hold() {
    let names = &openflow::parse::no_names;
    let traffic = Traffic::described("udp,flows=50", names, 3).unwrap();
    let again = Traffic::capture("file", &traffic.to_capture(), 3).unwrap();
    assert_eq!(again.arrivals, traffic.arrivals);
    let empty = Traffic {
        arrivals: Vec::new(),
    }
    .to_capture();
    let error = Traffic::capture("file", &empty, 1).unwrap_err().to_string();
    assert_eq!(error, "file: there are no packets");
    let mut long = traffic.clone();
    long.arrivals[7].bytes.resize(9000, 0);
    let error = Traffic::capture("file", &long.to_capture(), 1)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "file: packet 8 has 9000 bytes; 14 to 1518 can be predicted"
    );
}

#[test]
fn rules_are_refused_with_file_and_line() {
    let error = |text: &str| match Rules::read("file", text, &openflow::parse::no_names) {
        Ok(_) => panic!("{text:?} was taken"),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        error("\n# x\n  priority=1 # no actions\n"),
        "file:3: must specify an action"
    );
    assert_eq!(
        error("modify actions=drop\n"),
        "file:1: modify: only rules to add can be predicted"
    );
    assert!(error("in_port=eth0,actions=drop").starts_with("file:1: "));
    assert_eq!(
        error("actions=drop\nactions=group:1\n"),
        "file:2: OFPBAC_BAD_OUT_GROUP (--groups takes a file of groups)"
    );
}

#[test]
fn tables_have_the_lookup_that_a_switch_gives_them_in_the_end() {
    let mut text = String::from("priority=1,actions=output:2\n");
    for number in 0..400_u32 {
        let (bits, other) = (8 + number % 20, 9 + number % 19);
        let address = number.wrapping_mul(0x9e37_79b9);
        let dotted =
            |value: u32, bits: u32| std::net::Ipv4Addr::from(value & u32::MAX << (32 - bits));
        let _ = writeln!(
            text,
            "priority={},udp,nw_src={}/{bits},nw_dst={}/{other},actions=output:3",
            10 + number,
            dotted(address, bits),
            dotted(address.rotate_left(7), other),
        );
    }
    let rules = Rules::read("rules", &text, &openflow::parse::no_names).unwrap();
    let traffic = Traffic::of_rules(&rules, 1).unwrap();
    let trace = trace::trace(&rules, &traffic).unwrap();
    let (hits, ports) = counted_by_reference(&rules, &traffic);
    assert_eq!((trace.tables[0].matches, &trace.out_ports), (hits, &ports));
    assert_eq!(trace.tables[0].template, "trees");
}

/// Returns rules that use groups and meters, from files as `ovs-ofctl` prints them.
fn grouped() -> Rules {
    let flows = "NXST_FLOW reply (xid=0x4):\n cookie=0x7, duration=1.5s, table=0, n_packets=3, n_bytes=180, idle_age=2, priority=9,udp actions=group:1\n\
                 priority=9,tcp,actions=meter:5,output:4\npriority=1,actions=resubmit(,1)\ntable=1,arp,actions=group:2\n";
    let groups = "OFPST_GROUP_DESC reply (OF1.5) (xid=0x2):\n group_id=1,type=select,bucket=bucket_id:0,weight:1,actions=output:2,bucket=bucket_id:1,weight:3,actions=output:3\n\
                  group_id=2,type=all,bucket=output:2,bucket=output:3,group:1 # both\n";
    let meters = "OFPST_METER_CONFIG reply (OF1.3) (xid=0x2):\nmeter=5 pktps stats bands=\ntype=drop rate=100000000\n";
    Rules::read_all(
        ("flows", flows),
        Some(("groups", groups)),
        Some(("meters", meters)),
        &openflow::parse::no_names,
    )
    .unwrap()
}

#[test]
fn groups_and_meters_do_their_part() {
    let rules = grouped();
    let traffic = |text: &str| Traffic::described(text, &openflow::parse::no_names, 1).unwrap();
    let ports = |text: &str| {
        let traced = trace::trace(&rules, &traffic(text)).unwrap();
        let packets = traced.packets;
        let share = move |(port, count): (u32, u64)| (port, count as f64 / packets as f64);
        traced.out_ports.into_iter().map(share).collect::<Vec<_>>()
    };
    let [(2, one), (3, other)] = ports("udp,flows=4000")[..] else {
        panic!("{:?}", ports("udp,flows=4000"));
    };
    assert!((0.2..0.3).contains(&one) && (0.7..0.8).contains(&other));
    assert_eq!(ports("tcp"), [(4, 1.0)]);
    let both: f64 = ports("arp").iter().map(|(_, share)| share).sum();
    // A bucket is an action set, in which a group takes precedence over an output (1.5 section
    // 5.6).
    assert_eq!(both, 2.0);
}

#[test]
fn another_process_gets_the_same_rules() {
    let rules = grouped();
    let copy = Rules::of_messages(&rules.to_messages().unwrap()).unwrap();
    for text in ["udp,flows=500", "tcp", "arp", "icmp"] {
        let traffic = Traffic::described(text, &openflow::parse::no_names, 1).unwrap();
        let [one, other] =
            [&rules, &copy].map(|rules| trace::trace(rules, &traffic).unwrap().out_ports);
        assert_eq!(one, other, "{text}");
    }
    for seed in 1..=6 {
        let text = generated(seed);
        let rules = Rules::read("generated", &text, &openflow::parse::no_names).unwrap();
        let copy = Rules::of_messages(&rules.to_messages().unwrap()).unwrap();
        let traffic = Traffic::of_rules(&rules, 1).unwrap();
        let [one, other] = [&rules, &copy].map(|rules| {
            let traced = trace::trace(rules, &traffic).unwrap();
            let tables = traced
                .tables
                .into_iter()
                .map(|table| (table.table, table.matches));
            (traced.out_ports, tables.collect::<Vec<_>>())
        });
        assert_eq!(one, other, "seed {seed}");
    }
    // Only 1.0 accepts a rule whose match lacks the prerequisites of its actions.
    let lax = "tcp,actions=dec_ttl,resubmit(,3)\npriority=1,actions=dec_ttl,mod_nw_tos:32,output:3\ntable=3,reg0=1,actions=dec_ttl,output:2\n\
               table=3,priority=7,udp6,ipv6_dst=fc00::/7,tp_src=0x10/0xfff0,actions=dec_ttl,mod_nw_src:10.0.0.1,output:2\ntable=3,priority=5,actions=dec_ttl,goto_table:4\n";
    let lax = Rules::read("lax", lax, &openflow::parse::no_names).unwrap();
    // 1.0 has no goto_table: the last rule cannot be expressed, and so none are returned.
    assert_eq!(lax.to_messages(), None);
    let (lax, refused) = Rules::of(lax.flows[..4].iter().cloned(), &[], &[]);
    assert_eq!(refused, 0);
    let copy = Rules::of_messages(&lax.to_messages().unwrap()).unwrap();
    assert_eq!(lax.flows.len(), copy.flows.len());
    for (flow, copy) in lax.flows.iter().zip(&copy.flows) {
        let rule = |flow: &FlowMod| (flow.table, flow.priority, flow.matching.clone());
        assert_eq!(rule(flow), rule(copy));
        assert_eq!(flow.instructions, copy.instructions);
    }
    let bytes = rules.to_messages().unwrap();
    assert!(Rules::of_messages(&bytes[..bytes.len() - 1]).is_err());
    assert!(Rules::of_messages(b"nonsense").is_err());
}

#[test]
fn missing_meters_are_named() {
    let error = match Rules::read(
        "f",
        "actions=meter:1,output:2\n",
        &openflow::parse::no_names,
    ) {
        Err(error) => error.to_string(),
        Ok(_) => String::new(),
    };
    // Bands are lines of their own, and count as lines.
    let meters = "meter=1 kbps bands=\ntype=drop rate=1\ntype=drop rate=2\nmeter=2 nonsense\n";
    let wrong = Rules::read_all(
        ("f", "actions=drop\n"),
        None,
        Some(("m", meters)),
        &openflow::parse::no_names,
    );
    let wrong = wrong.err().map(|error| error.to_string());
    assert!(
        wrong.as_ref().is_some_and(|text| text.starts_with("m:4: ")),
        "{wrong:?}"
    );
    assert_eq!(
        error,
        "f:1: OFPMMFC_INVALID_METER (--meters takes a file of meters)"
    );
}
