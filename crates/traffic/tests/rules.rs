//! Flows from sets of rules: every frame made from a rule meets that rule, in the opinion of a
//! matcher that reads frames byte by byte and knows rules as what their text was written from.

use proptest::prelude::*;
use std::collections::HashSet;
use traffic::frames::Make;
use traffic::plan::{Plan, Problem};
use traffic::rule_sets::{self, SetKind};
use traffic::rules::{self, Format, Header, Rule};
use traffic::sample::{Explosion, Sampler};
use traffic::spec::Headers;
use traffic::stamp::{Stamp, payload_at};
use traffic::table::Table;

/// A rule, before its text is written.
#[derive(Clone, Debug)]
struct Wanted {
    six: bool,
    src: (u128, u32),
    dst: (u128, u32),
    /// The protocol; None: any.
    protocol: Option<u8>,
    /// Ranges of ports, for ClassBench; the first is also the value in OpenFlow, with this mask.
    src_ports: (u16, u16),
    dst_ports: (u16, u16),
    port_mask: u16,
    /// For OpenFlow only.
    station: Option<u64>,
    vlan: Option<u16>,
    tos: Option<u8>,
}

/// A frame, as this test reads it.
#[derive(Debug)]
struct Read {
    dst_station: u64,
    vlan: Option<u16>,
    six: bool,
    src: u128,
    dst: u128,
    tos: u8,
    protocol: u8,
    /// What ports or type and code are.
    pair: (u16, u16),
    flags: u8,
}

fn be(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0, |all, &byte| all << 8 | u128::from(byte))
}

fn read(frame: &[u8]) -> Read {
    let mut at = 14;
    let mut kind = be(&frame[12..14]);
    let mut vlan = None;
    if kind == 0x8100 {
        vlan = Some(be(&frame[14..16]) as u16);
        kind = be(&frame[16..18]);
        at = 18;
    }
    let six = kind == 0x86dd;
    assert!(six || kind == 0x0800, "{kind:x}");
    let (src, dst, tos, protocol, above) = match six {
        true => (
            be(&frame[at + 8..at + 24]),
            be(&frame[at + 24..at + 40]),
            (be(&frame[at..at + 2]) >> 4) as u8,
            frame[at + 6],
            at + 40,
        ),
        false => (
            be(&frame[at + 12..at + 16]),
            be(&frame[at + 16..at + 20]),
            frame[at + 1],
            frame[at + 9],
            at + 20,
        ),
    };
    let half = |at: usize| be(&frame[at..at + 2]) as u16;
    let pair = match protocol {
        6 | 17 => (half(above), half(above + 2)),
        _ => (frame[above].into(), frame[above + 1].into()),
    };
    let sum = |bytes: &[u8]| -> u32 { bytes.chunks(2).map(word).sum() };
    let is_right = |mut sum: u32| {
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum == 0xffff
    };
    let area = &frame[above..];
    if six {
        assert_eq!(be(&frame[at + 4..at + 6]) as usize, area.len());
    } else {
        assert!(is_right(sum(&frame[at..at + 20])), "the IP checksum");
        assert_eq!(be(&frame[at + 2..at + 4]) as usize, area.len() + 20);
    }
    let addresses = if six {
        at + 8..at + 40
    } else {
        at + 12..at + 20
    };
    let pseudo = sum(&frame[addresses]) + u32::from(protocol) + area.len() as u32;
    match (protocol, six) {
        (6 | 17, _) | (58, true) => assert!(is_right(pseudo + sum(area)), "{protocol}"),
        (1, false) => assert!(is_right(sum(area)), "ICMP"),
        _ => {}
    }
    Read {
        dst_station: be(&frame[..6]) as u64,
        vlan,
        six,
        src,
        dst,
        tos,
        protocol,
        pair,
        flags: if protocol == 6 { frame[above + 13] } else { 0 },
    }
}

fn word(two: &[u8]) -> u32 {
    u32::from(two[0]) << 8 | u32::from(two.get(1).copied().unwrap_or(0))
}

impl Wanted {
    fn width(&self) -> u32 {
        if self.six { 128 } else { 32 }
    }

    fn has_ports(&self) -> bool {
        matches!(self.protocol, Some(6 | 17))
    }

    /// Whether the first `length` bits of two addresses are the same, bit by bit.
    fn same(&self, one: u128, (other, length): (u128, u32)) -> bool {
        (0..length).all(|bit| {
            let bit = self.width() - 1 - bit;
            one >> bit & 1 == other >> bit & 1
        })
    }

    fn common(&self, frame: &Read) -> bool {
        self.six == frame.six
            && self.same(frame.src, self.src)
            && self.same(frame.dst, self.dst)
            && self
                .protocol
                .is_none_or(|protocol| protocol == frame.protocol)
    }

    fn met_in_class_bench(&self, frame: &Read) -> bool {
        let within = |port: u16, (low, high): (u16, u16)| low <= port && port <= high;
        self.common(frame)
            && (!self.has_ports()
                || within(frame.pair.0, self.src_ports) && within(frame.pair.1, self.dst_ports))
    }

    fn met_in_open_flow(&self, frame: &Read) -> bool {
        let masked = |port: u16, wanted: u16| port & self.port_mask == wanted & self.port_mask;
        self.common(frame)
            && (!self.has_ports()
                || masked(frame.pair.0, self.src_ports.0) && frame.pair.1 == self.dst_ports.0)
            && self
                .station
                .is_none_or(|station| station == frame.dst_station)
            && self.vlan.is_none_or(|vlan| frame.vlan == Some(vlan))
            && self.tos.is_none_or(|tos| tos == frame.tos & 0xfc)
    }

    fn prefix(&self, (address, length): (u128, u32)) -> String {
        match self.six {
            true => format!("{}/{length}", std::net::Ipv6Addr::from_bits(address)),
            false => format!("{}/{length}", std::net::Ipv4Addr::from_bits(address as u32)),
        }
    }

    fn class_bench(&self) -> String {
        let ports = |(low, high): (u16, u16)| match self.has_ports() {
            true => format!("{low} : {high}"),
            false => "0 : 65535".into(),
        };
        let protocol = match self.protocol {
            Some(protocol) => format!("0x{protocol:02x}/0xFF"),
            None => "0x00/0x00".into(),
        };
        format!(
            "@{}\t{} {} {} {protocol} 0x0000/0x0000",
            self.prefix(self.src),
            self.prefix(self.dst),
            ports(self.src_ports),
            ports(self.dst_ports)
        )
    }

    fn open_flow(&self) -> String {
        let family = if self.six { "6" } else { "" };
        let mut text = " cookie=0x7, duration=9.1s, table=0, n_packets=3, n_bytes=180, idle_age=1, priority=7,".to_owned();
        text += &match self.protocol {
            None if self.six => "ipv6".into(),
            None => "ip".into(),
            Some(6) => format!("tcp{family}"),
            Some(17) => format!("udp{family}"),
            Some(other) if self.six => format!("dl_type=0x86dd,nw_proto={other}"),
            Some(other) => format!("ip,nw_proto={other}"),
        };
        let names = if self.six {
            ["ipv6_src", "ipv6_dst"]
        } else {
            ["nw_src", "ip_dst"]
        };
        text += &format!(
            ",{}={},{}={}",
            names[0],
            self.prefix(self.src),
            names[1],
            self.prefix(self.dst)
        );
        if self.has_ports() {
            text += &format!(",tp_src=0x{:x}/0x{:x}", self.src_ports.0, self.port_mask);
            let name = if self.protocol == Some(6) {
                "tcp_dst"
            } else {
                "udp_dst"
            };
            text += &format!(",{name}={}", self.dst_ports.0);
        }
        if let Some(station) = self.station {
            let bytes: Vec<String> = station.to_be_bytes()[2..]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            text += &format!(",dl_dst={}", bytes.join(":"));
        }
        if let Some(vlan) = self.vlan {
            text += &format!(",dl_vlan={vlan}");
        }
        if let Some(tos) = self.tos {
            text += &format!(",nw_tos={tos}");
        }
        text + " actions=output:2,nw_src=1"
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let protocol = prop_oneof![
        3 => Just(Some(6)),
        3 => Just(Some(17)),
        1 => Just(None),
        1 => Just(Some(1)),
        1 => Just(Some(58)),
        1 => Just(Some(47)),
    ];
    let ports = || {
        prop_oneof![
            Just((0, u16::MAX)),
            any::<(u16, u16)>().prop_map(|(a, b)| (a.min(b), a.max(b))),
            any::<u16>().prop_map(|port| (port, port)),
        ]
    };
    let prefix = || (any::<u128>(), 0_u32..=128);
    let beyond = (
        proptest::option::of(0_u64..1 << 48),
        proptest::option::of(0_u16..4096),
        proptest::option::of((0_u8..64).prop_map(|dscp| dscp << 2)),
    );
    let all = (
        any::<bool>(),
        prefix(),
        prefix(),
        protocol,
        ports(),
        ports(),
        any::<u16>(),
        beyond,
    );
    all.prop_map(
        |(six, src, dst, protocol, src_ports, dst_ports, port_mask, beyond)| {
            let fit = |(address, length): (u128, u32)| match six {
                true => (address, length),
                false => (address & 0xffff_ffff, length % 33),
            };
            let (station, vlan, tos) = beyond;
            Wanted {
                six,
                src: fit(src),
                dst: fit(dst),
                protocol,
                src_ports,
                dst_ports,
                port_mask,
                station,
                vlan,
                tos,
            }
        },
    )
}

fn usual() -> Header {
    Header {
        eth_src: 0x0200_0000_0001,
        eth_dst: 0x0200_0000_0002,
        src: 1,
        dst: 2,
        protocol: 17,
        ..Header::default()
    }
}

const SIZES: [u16; 2] = [120, 1400];

/// Makes the frames of flows, and checks that their stamps are found and read.
fn frames(flows: &[Header], size: usize) -> Vec<Vec<u8>> {
    let table = Table::new("s", &Headers::default(), &SIZES, flows).unwrap();
    let frame = |flow: usize| {
        let mut bytes = table.begin(size, flow as u64).to_vec();
        assert_eq!(bytes.len(), usize::from(SIZES[size]));
        let stamp = Stamp {
            stream: 4,
            run: 200,
            sequence: 0xfffe_0000 + flow as u32,
            flow: flow as u32,
            time: 0x8765_4321_1234,
        };
        table.finish(size, &mut bytes, flow as u64, &stamp);
        let at = payload_at(&bytes).unwrap();
        let layout = table.layout_at(at).unwrap();
        assert_eq!(layout.read(&bytes, at), Some(stamp));
        bytes
    };
    (0..flows.len()).map(frame).collect()
}

proptest! {
    #[test]
    fn frames_meet_the_rules_that_they_are_made_from(
        set in proptest::collection::vec(wanted(), 1..6), seed: u64, open_flow: bool,
    ) {
        let (format, text): (_, fn(&Wanted) -> String) = match open_flow {
            true => (Format::OpenFlow, Wanted::open_flow),
            false => (Format::ClassBench, Wanted::class_bench),
        };
        let lines: Vec<String> = set.iter().map(text).collect();
        let file = format!("# a comment\n\n{}\n", lines.join("\n"));
        prop_assert_eq!(rules::format_of(&file), format);
        let rules = rules::read(&file, format).unwrap();
        prop_assert_eq!(rules.len(), set.len());
        let sampler = Sampler { usual: usual(), seed };
        let meets = |wanted: &Wanted, frame: &Read| match open_flow {
            true => wanted.met_in_open_flow(frame),
            false => wanted.met_in_class_bench(frame),
        };
        for (at, (rule, wanted)) in rules.iter().zip(&set).enumerate() {
            prop_assert_eq!(rule.line, at + 3);
            let flows: Vec<Header> = (0..8).map(|n| sampler.meeting(rule, n)).collect();
            for (bytes, flow) in frames(&flows, at % 2).iter().zip(&flows) {
                let found = read(bytes);
                prop_assert!(meets(wanted, &found), "{} {:?}", lines[at], found);
                // The other rules are met in both opinions, or in none.
                for (rule, wanted) in rules.iter().zip(&set) {
                    prop_assert_eq!(rule.meets(flow), meets(wanted, &found));
                }
                if found.protocol == 6 {
                    prop_assert_eq!(found.flags, 0x10);
                }
            }
        }
        let mut compared = 0;
        for n in 0..4 {
            if let Some(flow) = sampler.missing(&rules, n, &mut compared) {
                let found = read(&frames(&[flow], 0)[0]);
                for (rule, wanted) in rules.iter().zip(&set) {
                    prop_assert!(rule.is_any() || !meets(wanted, &found), "{wanted:?} {found:?}");
                }
            } else {
                prop_assert!(compared > 0);
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\n\t]{0,200}") {
        for format in [Format::ClassBench, Format::OpenFlow] {
            let _ = rules::read(&text, format);
        }
    }
}

fn only(text: &str) -> Rule {
    let mut rules = rules::read(text, rules::format_of(text)).unwrap();
    assert_eq!(rules.len(), 1, "{text}");
    rules.remove(0)
}

#[test]
fn flags_are_tcps_with_their_bytes_exchanged() {
    let rule = only("@1.0.0.0/8 2.0.0.0/8 0 : 65535 80 : 80 0x06/0xFF 0x0200/0x1200");
    let flow = Sampler {
        usual: usual(),
        seed: 1,
    }
    .meeting(&rule, 0);
    let found = read(&frames(&[flow], 0)[0]);
    assert_eq!(found.flags & 0x12, 0x02, "SYN without ACK");
    // ICMP has none.
    only("@1.0.0.0/8 2.0.0.0/8 0 : 65535 0 : 65535 0x01/0xFF 0x1000/0x1000");
}

#[test]
fn icmp_messages_have_what_rules_say() {
    for (text, wanted) in [
        ("icmp,icmp_type=3,icmp_code=4 actions=drop", (1, (3, 4))),
        ("icmp,tp_src=5 actions=drop", (1, (5, 0))),
        ("icmp6,icmp_type=134,actions=drop", (58, (134, 0))),
        ("icmpv6_type=135,actions=drop", (58, (135, 0))),
        ("icmp actions=drop", (1, (8, 0))),
        ("icmp6 actions=drop", (58, (128, 0))),
    ] {
        let flow = Sampler {
            usual: usual(),
            seed: 1,
        }
        .meeting(&only(text), 0);
        let found = read(&frames(&[flow], 0)[0]);
        let (protocol, pair) = wanted;
        assert_eq!((found.protocol, found.pair.0), (protocol, pair.0), "{text}");
        assert!(!text.contains("code=") || found.pair.1 == pair.1, "{text}");
    }
}

/// A range that goes beyond what ICMP's types are; found by fuzzing.
#[test]
fn ranges_of_icmp_types_are_written_one_by_one() {
    let rule = only("@fd00::/8 ::/0 5 : 4000 0 : 65535 0x3a/0xFF");
    let text = rule_sets::open_flow(&rule, 1, "drop").unwrap();
    let again = rules::read(&text, Format::OpenFlow).unwrap();
    assert_eq!(again.len(), 251);
    for kind in 0..=255 {
        let flow = Header {
            six: true,
            src: 0xfd00 << 112,
            protocol: 58,
            port_src: kind,
            ..Header::default()
        };
        let met = again.iter().filter(|rule| rule.meets(&flow)).count();
        assert_eq!((met == 1, met < 2), (rule.meets(&flow), true), "{kind}");
    }
}

#[test]
fn errors_name_line_and_word() {
    for (text, wanted) in [
        (
            "@1.0.0.0/33 2.0.0.0/8 0 : 1 0 : 1 0x06/0xFF",
            "line 1: \"1.0.0.0/33\" is not an IP address or prefix",
        ),
        (
            "@1.0.0.0/8 2.0.0.0/8 0 : 65536 0 : 1 0x06/0xFF",
            "source ports: \"65536\" is not a number from 0 to 65535",
        ),
        (
            "@1.0.0.0/8 2.0.0.0/8 0 : 1 9 : 1 0x06/0xFF",
            "destination ports: no port is from 9 to 1",
        ),
        (
            "@1.0.0.0/8 fd00::/8 0 : 1 9 : 1 0x06/0xFF",
            "it is both for IPv4 and for IPv6",
        ),
        (
            "@1.0.0.0/8 2.0.0.0/8 0 : 1 0 : 1",
            "PROTOCOL/MASK is missing",
        ),
        (
            "@1.0.0.0/8 2.0.0.0/8 0 : 1 0 : 1 0x06/0xFF 0/0 7",
            "\"7\": nothing is known behind the flags",
        ),
        (
            "@1.0.0.0/8 2.0.0.0/8 0 : 1 0 : 1 0x32/0xFF",
            "of protocol 50, have none",
        ),
        ("@1.0.0.0/8\n", "the destination address is missing"),
        (
            "@1.0.0.0/8 2.0.0.0/8 0 : 1 0 : 1 0x06/0xFF 0x0001/0x0001",
            "TCP has no such flags",
        ),
        (
            "@0.0.0.0/0 0.0.0.0/0 0:65535 0:65535 0/0\n1.0.0.0/8",
            "line 2: \"1.0.0.0/8\": a rule begins with @",
        ),
        (
            "\nct_state=+trk,ip actions=drop",
            "line 2: \"ct_state=+trk\": flows cannot be made for this match",
        ),
        ("arp actions=drop", "\"arp\": flows cannot be made"),
        (
            "dl_type=0x88cc actions=drop",
            "\"dl_type=0x88cc\": flows cannot be made",
        ),
        (
            "ip,nw_src=1.2.3.x actions=drop",
            "nw_src: \"1.2.3.x\" is not an IP address",
        ),
        (
            "ip,nw_src=fd00::1 actions=drop",
            "nw_src: \"fd00::1\" is of the other family",
        ),
        ("tcp,udp_dst=4 actions=drop", "udp_dst: its protocol is 6"),
        (
            "tcp,tp_dst=70000 actions=drop",
            "tp_dst: \"70000\" is not a number from 0 to 65535",
        ),
        (
            "ip,nw_proto=47,tp_dst=4 actions=drop",
            "of protocol 47, have none",
        ),
        ("icmp,tp_src=300 actions=drop", "are from 0 to 255"),
        (
            "dl_src=1:2:3 actions=drop",
            "dl_src: \"1:2:3\" is not an Ethernet address",
        ),
        ("dl_vlan=5000 actions=drop", "dl_vlan: 5000 is above 4095"),
        ("ip,nw_tos=3 actions=drop", "has ECN bits"),
        ("priority=5,ip", "a rule has actions="),
        ("delete ip", "\"delete\": flows cannot be made"),
    ] {
        let told = rules::read(text, rules::format_of(text))
            .unwrap_err()
            .to_string();
        assert!(told.contains(wanted), "{told:?} has no {wanted:?}");
    }
}

#[test]
fn dumps_are_read() {
    let text = "NXST_FLOW reply (xid=0x4):\n \
        cookie=0x0, duration=2.5s, table=0, n_packets=1, n_bytes=60, priority=9,tcp,in_port=\"eth1\",tp_dst=0x50/0xfff0 actions=output:2\n \
        cookie=0x0, duration=2.5s, table=3, n_packets=1, n_bytes=60, priority=9,metadata=7 actions=drop\n\
        add table=0,priority=1,udp6,dl_vlan=0xffff,actions=drop\n\
        priority=0 actions=NORMAL\n";
    let rules = rules::read(text, Format::OpenFlow).unwrap();
    assert_eq!(rules.len(), 3);
    assert_eq!(
        (rules[0].in_port.as_deref(), rules[0].line),
        (Some("eth1"), 2)
    );
    assert!(rules[2].is_any());
    assert_eq!(rules[1].six, Some(true));
}

/// The ACL of the paper's: what is not allowed differs in every field.
const ACL: &str = "priority=3,tcp,tp_dst=80 actions=output:2\n\
                   priority=2,tcp,nw_src=10.0.0.0/8 actions=output:2\n\
                   priority=1,tcp,tp_src=0x3039 actions=output:2\n\
                   priority=0 actions=drop\n";

#[test]
fn an_explosion_has_one_bit_of_each_field_turned_over() {
    let rules = rules::read(ACL, Format::OpenFlow).unwrap();
    let explosion = Explosion::new(&rules, usual()).unwrap();
    assert_eq!(explosion.count(), 16 * 16 * 8);
    let flows = explosion.packets(&rules, 1 << 20).unwrap();
    assert_eq!(flows.len(), 16 * 16 * 8);
    let mut seen = HashSet::new();
    for bytes in frames(&flows, 0) {
        let found = read(&bytes);
        assert_eq!(found.protocol, 6);
        let bits = [
            found.pair.1 ^ 80,
            found.pair.0 ^ 0x3039,
            (found.src >> 24) as u16 ^ 10,
        ];
        assert!(bits.iter().all(|bits| bits.count_ones() == 1), "{found:?}");
        assert!(seen.insert(bits), "{found:?} comes twice");
    }
    assert_eq!(explosion.packets(&rules, 100).unwrap().len(), 100);
    let none = rules::read("ip actions=drop", Format::OpenFlow).unwrap();
    assert!(
        Explosion::new(&none, usual())
            .unwrap_err()
            .to_string()
            .contains("no rule matches")
    );
}

#[test]
fn packets_of_an_explosion_meet_no_rule() {
    // One bit beside 80 is 81, which another rule allows.
    let text = "tcp,tp_dst=80 actions=output:2\ntcp,tp_dst=81 actions=output:2\n";
    let rules = rules::read(text, Format::OpenFlow).unwrap();
    let flows = Explosion::new(&rules, usual())
        .unwrap()
        .packets(&rules, 1000)
        .unwrap();
    assert_eq!(flows.len(), 30, "15 bits of each");
    assert!(
        flows
            .iter()
            .all(|flow| !rules.iter().any(|rule| rule.meets(flow)))
    );
}

#[test]
fn sets_follow_from_their_seed_and_are_read_again() {
    for kind in [SetKind::Acl, SetKind::Fw, SetKind::Ipc] {
        let set = rule_sets::make(kind, 2000, 7);
        assert_eq!(set, rule_sets::make(kind, 2000, 7));
        assert_ne!(set, rule_sets::make(kind, 2000, 8));
        let text = rule_sets::class_bench_set(&set).unwrap();
        assert_eq!(rules::read(&text, Format::ClassBench).unwrap(), set);
        let lines: HashSet<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2000, "no rule comes twice");
        // What is printed for Open vSwitch is met by the same packets, at the rule's priority.
        let flows = rule_sets::open_flow_set(&set, "output:2").unwrap();
        let printed = rules::read(&flows, Format::OpenFlow).unwrap();
        let priority = |line: &str| -> usize {
            let text = line.strip_prefix("priority=").unwrap();
            text.split(',').next().unwrap().parse().unwrap()
        };
        let priorities: Vec<usize> = flows.lines().map(priority).collect();
        let sampler = Sampler {
            usual: usual(),
            seed: 3,
        };
        for (at, rule) in set.iter().enumerate().step_by(37) {
            let mine = |n: &usize| priorities[*n] == 65_535 - at;
            let mine: Vec<&Rule> = (0..printed.len())
                .filter(mine)
                .map(|n| &printed[n])
                .collect();
            assert!(!mine.is_empty());
            for n in 0..20 {
                let flow = sampler.meeting(rule, n);
                let met = mine.iter().filter(|rule| rule.meets(&flow)).count();
                assert_eq!(met, 1, "{} {flow:?}", rule_sets::class_bench(rule));
                let flow = sampler.meeting(mine[n as usize % mine.len()], n);
                assert!(
                    rule.meets(&flow),
                    "{} {flow:?}",
                    rule_sets::class_bench(rule)
                );
            }
        }
    }
}

/// Shares of a set, in per cent, are within three standard deviations of those stated.
#[test]
fn sets_have_their_shares() {
    let set = rule_sets::make(SetKind::Acl, 20_000, 1);
    let share =
        |what: fn(&Rule) -> bool| set.iter().filter(|rule| what(rule)).count() as f64 / 200.0;
    let near = |found: f64, wanted: f64, name: &str| {
        assert!(
            (found - wanted).abs() < 1.1,
            "{name}: {found}% and not {wanted}%"
        );
    };
    near(
        share(|rule| rule.dst.mask == 0xffff_ffff),
        50.0,
        "destinations of 32 bits",
    );
    near(share(|rule| rule.protocol.value == 6), 75.0, "TCP");
    near(share(|rule| rule.src.mask == 0), 5.0, "sources of 0 bits");
}

#[test]
fn sets_that_cannot_be_written_say_so() {
    let rules = rules::read("ip,dl_vlan=5 actions=drop", Format::OpenFlow).unwrap();
    let told = rule_sets::class_bench_set(&rules).unwrap_err().to_string();
    assert!(told.contains("line 1: a VLAN"), "{told}");
    let odd = rules::read("tcp,tp_dst=0x1/0x1 actions=drop", Format::OpenFlow).unwrap();
    assert!(
        rule_sets::class_bench_set(&odd)
            .unwrap_err()
            .to_string()
            .contains("no range")
    );
    let flags = only("@1.0.0.0/8 2.0.0.0/8 0 : 65535 80 : 80 0x06/0xFF 0x0200/0x0200");
    assert!(
        rule_sets::open_flow_set(&[flags], "drop")
            .unwrap_err()
            .to_string()
            .contains("flags")
    );
    let many = rule_sets::make(SetKind::Fw, 65_536, 1);
    assert!(
        rule_sets::open_flow_set(&many, "drop")
            .unwrap_err()
            .to_string()
            .contains("65536 rules")
    );
}

fn planned(rules: &str, flows: &str) -> Result<Plan, Problem> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules");
    std::fs::write(&path, rules).unwrap();
    let text = format!(
        "seconds: 1\nstreams:\n- port: {{dpdk: a}}\n  rate: most\n  size: {{fixed: 100}}\n  flows: {}\n",
        flows.replace("FILE", path.to_str().unwrap())
    );
    Plan::new(&traffic::plan::read(&text)?, 0)
}

#[test]
fn plans_have_the_flows_that_are_asked_for() {
    let count = |rules: &str, flows: &str| planned(rules, flows).unwrap().streams[0].flows();
    assert_eq!(count(ACL, "{count: 0, rules: {file: FILE}}"), 4);
    assert_eq!(
        count(ACL, "{count: 10, rules: {file: FILE, miss: 0.5}}"),
        10
    );
    assert_eq!(
        count(ACL, "{count: 0, rules: {file: FILE, explode: true}}"),
        2048
    );
    assert_eq!(
        count(ACL, "{count: 7, rules: {file: FILE, explode: true}}"),
        7
    );
    for (flows, wanted) in [
        (
            "{count: 9, rules: {file: /none}}",
            "flows.rules.file: /none: No such file",
        ),
        (
            "{count: 9, rules: {file: FILE, miss: 2}}",
            "flows.rules.miss: 2: must be a share from 0 to 1",
        ),
        (
            "{count: 9, rules: {file: FILE}, by: [{field: udp_dst}]}",
            "flows.by: flows that are made",
        ),
        (
            "{count: 3000, rules: {file: FILE, explode: true}}",
            "explode: there are 2048 such flows",
        ),
        (
            "{count: 2000000, rules: {file: FILE}}",
            "flows.count: 2000000 is above 1048576",
        ),
        (
            "{count: 9, rules: {file: FILE, format: classbench}}",
            "rules:1: \"priority=3",
        ),
        (
            "{count: 9, order: {pareto: {a: 0, b: 1}}}",
            "flows.order.pareto.a: 0: must be a number",
        ),
        (
            "{count: 1000000, order: {pareto: {a: 0.1, b: 1}}}",
            "takes more than 16777216 frames",
        ),
    ] {
        let told = planned(ACL, flows).unwrap_err().to_string();
        assert!(told.contains(wanted), "{told:?} has no {wanted:?}");
    }
    let ported = "in_port=1,tcp actions=output:2\nin_port=2,udp actions=output:1\n";
    let told = planned(ported, "{count: 2, rules: {file: FILE}}")
        .unwrap_err()
        .to_string();
    assert!(
        told.contains(":1: in_port: flows.rules.in_port must say"),
        "{told}"
    );
    assert_eq!(
        count(ported, "{count: 0, rules: {file: FILE, in_port: '1'}}"),
        1
    );
    let none = planned(ported, "{count: 0, rules: {file: FILE, in_port: '3'}}").unwrap_err();
    assert!(none.to_string().contains("there is no rule"), "{none}");
    let most = "tcp actions=drop\nudp actions=drop\nicmp actions=drop\n";
    assert_eq!(count(most, "{count: 9, rules: {file: FILE, miss: 1}}"), 9);
    let all =
        "tcp actions=drop\nip,nw_src=0.0.0.0/1 actions=drop\nip,nw_src=128.0.0.0/1 actions=drop\n";
    let told = planned(all, "{count: 9, rules: {file: FILE, miss: 1}}")
        .unwrap_err()
        .to_string();
    assert!(
        told.contains("no packet was found that meets no rule"),
        "{told}"
    );
}
