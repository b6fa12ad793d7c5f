//! Generated rules and packets. They use few values, so that packets match rules.

pub mod groups;
pub mod ways;

use crate::common;
use openflow::action::{Action, Instruction, Subfield};
use openflow::flow::{FlowMod, FlowModCommand, TABLE_ALL};
use openflow::meter::{Band, BandKind, MeterConfig, MeterFlags};
use openflow::port;
use packet::build::Builder;
use packet::{Field, Match, Value};
use std::collections::HashMap;

/// Number of tables used: rules are in table 0 and up.
pub const TABLES: u64 = 5;

/// A small random number generator (xorshift64*): the seed alone reproduces a failure.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const MACS: [[u8; 6]; 4] = [
    [2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 2],
    [2, 0, 0, 0, 9, 2],
    [0xff; 6],
];
const ADDRESSES: [u32; 4] = [0x0a00_0001, 0x0a00_0002, 0x0a00_0102, 0xc0a8_0001];
const PORTS: [u16; 4] = [53, 80, 443, 8080];

fn ipv6(random: &mut Random) -> [u8; 16] {
    let mut address = [0; 16];
    address[0] = 0xfd;
    address[15] = random.below(3) as u8;
    address
}

/// Generates a frame with correct checksums that ends with `tail`.
pub fn frame(random: &mut Random, tail: [u8; 2]) -> Vec<u8> {
    let mut builder = Builder::ethernet(random.pick(&MACS), random.pick(&MACS));
    for _ in 0..random.pick(&[0, 0, 0, 1, 1, 2, 3]) {
        builder = builder.tag(
            random.pick(&[0x8100, 0x8100, 0x88a8]),
            random.pick(&[5, 7, 0x2005, 0xa007, 0x1005]),
        );
    }
    let (ttl, tos) = (random.pick(&[1, 2, 64, 255]), random.pick(&[0, 0x20, 0xb9]));
    let (src, dst) = (random.pick(&ADDRESSES), random.pick(&ADDRESSES));
    let family = random.below(12);
    let builder = match family {
        0 => builder.arp(
            random.pick(&[1, 2]),
            random.pick(&MACS),
            src,
            random.pick(&MACS),
            dst,
        ),
        1 => builder.eth_type(0x88b5),
        2 => builder
            .mpls(random.pick(&[0x0010_0140, 0x0020_0702]))
            .eth_type(0x8847),
        10 => return labelled(random, builder, ttl, tail),
        11 => return serviced(random, builder, tail),
        3..=4 => builder
            .ipv6(ipv6(random), ipv6(random))
            .with_ipv6(|header| header.set_hop_limit(ttl)),
        5 => builder.ipv4(src, dst).ipv4_options(&[1, 1, 1, 1]),
        _ => builder.ipv4(src, dst).with_ipv4(|header| {
            header.set_ttl(ttl);
            header.set_tos(tos);
        }),
    };
    let (from, to) = (random.pick(&PORTS), random.pick(&PORTS));
    let builder = match (family, random.below(6)) {
        (0..=2, _) => builder,
        (3..=4, 0) => builder.icmpv6(128, 0, 7),
        (3..=4, 1) => builder.neighbour(
            random.pick(&[135, 136]),
            ipv6(random),
            &[(1, MACS[0]), (2, MACS[1])],
        ),
        (_, 0) => builder.icmp(random.pick(&[0, 8]), 0, 7),
        (_, 1..=2) => builder.tcp(from, to, random.pick(&[2, 0x10, 0x18])),
        (_, 3) => builder.sctp(from, to),
        _ => builder.udp(from, to),
    };
    let mut payload = vec![random.next() as u8; random.below(20) as usize + 40];
    payload.extend_from_slice(&tail);
    builder.payload(&payload).bytes()
}

/// Generates a stack of labels with something behind it.
fn labelled(random: &mut Random, mut builder: Builder, ttl: u8, tail: [u8; 2]) -> Vec<u8> {
    for label in 0..random.below(4) as u32 {
        builder = builder.mpls(label << 12 | random.pick(&[0, 0xe00]) | random.pick(&[1, 2, 64]));
    }
    builder = builder.mpls(random.pick(&[0x0010_0140, 0x0020_0702]));
    let (src, dst) = (random.pick(&ADDRESSES), random.pick(&ADDRESSES));
    builder = match random.below(4) {
        0 => builder.arp(1, MACS[0], src, MACS[1], dst),
        1 => builder
            .ipv6(ipv6(random), ipv6(random))
            .with_ipv6(|header| header.set_hop_limit(ttl))
            .tcp(random.pick(&PORTS), random.pick(&PORTS), 2),
        _ => builder
            .ipv4(src, dst)
            .with_ipv4(|header| header.set_ttl(ttl))
            .udp(random.pick(&PORTS), random.pick(&PORTS)),
    };
    let payload = [&[random.next() as u8; 40][..], &tail].concat();
    builder.payload(&payload).bytes()
}

/// Generates a customer's frame behind a service tag.
fn serviced(random: &mut Random, builder: Builder, tail: [u8; 2]) -> Vec<u8> {
    let tag = random.pick(&[5, 0x0800_0006, 0xe000_0105]);
    let mut builder = builder.pbb(tag, random.pick(&MACS), random.pick(&MACS));
    for _ in 0..random.below(3) {
        builder = builder.tag(random.pick(&[0x8100, 0x88a8]), random.pick(&[5, 0x2005]));
    }
    let (src, dst) = (random.pick(&ADDRESSES), random.pick(&ADDRESSES));
    let builder = match random.below(3) {
        0 => builder.arp(1, MACS[0], src, MACS[1], dst),
        1 => builder.mpls(0x0010_0140).ipv4(src, dst),
        _ => builder
            .ipv4(src, dst)
            .udp(random.pick(&PORTS), random.pick(&PORTS)),
    };
    let payload = [&[random.next() as u8; 40][..], &tail].concat();
    builder.payload(&payload).bytes()
}

fn matching(random: &mut Random) -> Match {
    let mut all = Match::any();
    if random.one_in(5) {
        return all;
    }
    if random.one_in(5) {
        all.set_exact(Field::InPort, (1 + random.below(3)).into());
    }
    if random.one_in(4) {
        let mask = random.pick(&[
            [0xff; 6],
            [1, 0, 0, 0, 0, 0],
            [0xff, 0xff, 0xff, 0xff, 0, 0xff],
        ]);
        all.set(
            random.pick(&[Field::EthDst, Field::EthSrc]),
            &random.pick(&MACS),
            &mask,
        );
    }
    match random.below(8) {
        0 => all.set(Field::VlanTci, &[0, 0], &[0xff, 0xff]),
        1 => all.set(Field::VlanTci, &[0x10, 0], &[0x10, 0]),
        2 => all.set_exact(Field::VlanVid, (0x1000 | random.pick(&[5_u64, 7])).into()),
        _ => {}
    }
    match random.below(12) {
        0 => {
            all.set_exact(Field::EthType, 0x0806);
            if random.one_in(2) {
                all.set_exact(Field::ArpOp, 1);
            }
        }
        1 | 2 => {
            all.set_exact(Field::EthType, 0x86dd);
            if random.one_in(2) {
                all.set(Field::Ipv6Dst, &ipv6(random), &[0xff; 16]);
            }
            transport(random, &mut all);
        }
        3..=8 => {
            all.set_exact(Field::EthType, 0x0800);
            if random.one_in(2) {
                let mask = random.pick(&[0xffff_ffff_u32, 0xffff_ff00, 0xff00_00ff, 0xff00_0000]);
                let address = random.pick(&ADDRESSES);
                all.set(
                    random.pick(&[Field::Ipv4Src, Field::Ipv4Dst]),
                    &address.to_be_bytes(),
                    &mask.to_be_bytes(),
                );
            }
            if random.one_in(6) {
                all.set_exact(Field::IpTtl, random.pick(&[1, 63, 64]));
            }
            transport(random, &mut all);
        }
        9 => {
            all.set_exact(Field::EthType, 0x8847);
            if random.one_in(3) {
                let (field, value) = random.pick(&[
                    (Field::MplsBos, 0),
                    (Field::MplsTtl, 64),
                    (Field::MplsLabel, 0x100),
                ]);
                all.set_exact(field, value);
            }
        }
        10 => {
            all.set_exact(Field::EthType, 0x88e7);
            if random.one_in(2) {
                all.set(Field::PbbIsid, &[0, 0, 5], &[0, 0, random.pick(&[4, 0xff])]);
            }
        }
        _ => {}
    }
    ways::matching(random, &mut all);
    if random.one_in(5) {
        let (field, bytes) = random.pick(&[
            (Field::Reg0, 4),
            (Field::Reg1, 4),
            (Field::Metadata, 8),
            (Field::Xreg1, 8),
        ]);
        let mut mask = vec![0; bytes];
        mask[bytes - 1] = random.pick(&[0xff, 1, 3]);
        let mut value = vec![0; bytes];
        value[bytes - 1] = random.below(4) as u8 & mask[bytes - 1];
        all.set(field, &value, &mask);
    }
    all
}

fn transport(random: &mut Random, all: &mut Match) {
    let (protocol, src, dst) = random.pick(&[
        (6, Field::TcpSrc, Field::TcpDst),
        (17, Field::UdpSrc, Field::UdpDst),
        (132, Field::SctpSrc, Field::SctpDst),
    ]);
    if random.one_in(2) {
        all.set_exact(Field::IpProto, protocol);
        if random.one_in(2) {
            all.set_exact(random.pick(&[src, dst]), random.pick(&PORTS).into());
        }
    }
}

/// Fields that actions write, with their width in moves and loads.
const WRITTEN: [Field; 34] = [
    Field::Reg0,
    Field::Reg1,
    Field::Reg2,
    Field::Reg3,
    Field::Xreg1,
    Field::Metadata,
    Field::TunId,
    Field::InPort,
    Field::EthSrc,
    Field::EthDst,
    Field::VlanTci,
    Field::VlanVid,
    Field::VlanPcp,
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::Ipv6Label,
    Field::IpDscp,
    Field::IpDscpShifted,
    Field::IpEcn,
    Field::IpTtl,
    Field::ArpOp,
    Field::ArpSpa,
    Field::ArpTha,
    Field::TcpDst,
    Field::UdpSrc,
    Field::SctpDst,
    Field::MplsLabel,
    Field::MplsTtl,
    Field::MplsTc,
    Field::MplsBos,
    Field::PbbIsid,
    Field::PbbUca,
];

fn subfield(random: &mut Random, most: u16) -> Subfield {
    let field = random.pick(&WRITTEN);
    let width = field.def().action_bits as u16;
    if random.one_in(2) && width <= most {
        return Subfield {
            field,
            start: 0,
            bits: width,
        };
    }
    let bits = 1 + random.below(width.min(most).into()) as u16;
    Subfield {
        field,
        start: random.below(u64::from(width - bits) + 1) as u16,
        bits,
    }
}

fn set_field(random: &mut Random) -> Action {
    let field = if random.one_in(40) {
        Field::EthType
    } else {
        random.pick(&WRITTEN)
    };
    let def = field.def();
    let place = def.place();
    let narrow = random.one_in(3) && !matches!(field, Field::InPort);
    let mut value = Value::zero(def.bytes);
    let mut mask = place.clone();
    for index in 0..def.bytes {
        if narrow {
            mask[index] &= random.next() as u8;
        }
        value[index] = random.next() as u8 & mask[index];
    }
    match field {
        Field::InPort => value = Value::from_u128((1 + random.below(4)).into(), 4),
        Field::VlanVid if !narrow => value[0] |= 0x10,
        Field::EthType => {
            let kind: u16 = random.pick(&[0x0800, 0x86dd, 0x8847, 0x88e7, 0x88b5, 0x8100]);
            value = Value::from_u128(kind.into(), 2);
            mask = place;
        }
        Field::Reg0 | Field::Reg1 | Field::Metadata => {
            value = Value::from_u128(random.below(4).into(), def.bytes);
            mask = place;
        }
        _ => {}
    }
    Action::SetField { field, value, mask }
}

/// Number of groups that rules and buckets name.
pub const GROUPS: u64 = 6;

pub fn action(random: &mut Random, table: u8, nested: bool) -> Action {
    if random.one_in(16) {
        return Action::Group(random.below(GROUPS) as u32);
    }
    other_action(random, table, nested)
}

fn other_action(random: &mut Random, table: u8, nested: bool) -> Action {
    let later = table + 1 + random.below((TABLES - u64::from(table)).max(1)) as u8;
    match random.below(37) {
        36 => ways::action(random),
        0..=4 => common::output(1 + random.below(4) as u32),
        5 => common::output(random.pick(&[
            port::IN_PORT,
            port::NORMAL,
            port::FLOOD,
            port::ALL,
            port::LOCAL,
        ])),
        6 => Action::Output {
            port: port::CONTROLLER,
            max_len: 128,
        },
        7 => Action::Controller {
            max_len: 64,
            controller_id: 3,
            reason: random.pick(&[0, 1, 2]),
            userdata: vec![1, 2],
            pause: false,
            meter_id: None,
        },
        8 => Action::OutputReg {
            source: Subfield {
                field: Field::Reg0,
                start: 0,
                bits: 16,
            },
            max_len: 0,
        },
        9 => Action::OutputTrunc {
            port: 1 + random.below(3) as u32,
            max_len: 14 + random.below(60) as u32,
        },
        10..=14 => set_field(random),
        15..=16 => {
            let dst = subfield(random, 64);
            let value = random.next() & (u64::MAX >> (64 - dst.bits));
            Action::Load { dst, value }
        }
        17..=18 => {
            let src = subfield(random, 128);
            let mut dst = subfield(random, 128);
            let bits = src.bits.min(dst.bits);
            dst.bits = bits;
            Action::Move {
                src: Subfield { bits, ..src },
                dst,
            }
        }
        19 => Action::PushVlan(random.pick(&[0x8100, 0x88a8])),
        20 => Action::PopVlan,
        21 => Action::SetVlanVid {
            vid: random.below(4096) as u16,
            push: random.one_in(2),
        },
        22 => Action::SetVlanPcp {
            pcp: random.below(8) as u8,
            push: random.one_in(2),
        },
        23 => Action::DecTtl(random.pick(&[&[0][..], &[1, 2], &[]]).to_vec()),
        24 if random.one_in(3) => Action::PopQueue,
        24 => Action::SetQueue(random.below(3) as u32),
        25 => Action::Enqueue { port: 2, queue: 5 },
        26..=27 if !nested && u64::from(table) < TABLES => Action::Resubmit {
            in_port: random.one_in(3).then_some(2),
            table: Some(later),
            with_ct_orig: false,
        },
        28 => Action::StackPush(subfield(random, 128)),
        29 => Action::StackPop(subfield(random, 128)),
        30 if !nested => Action::Clone(
            (0..random.below(4))
                .map(|_| action(random, table, true))
                .collect(),
        ),
        32 => Action::PushMpls(random.pick(&[0x8847, 0x8848])),
        33 => Action::PopMpls(random.pick(&[0x0800, 0x0800, 0x86dd, 0x8847, 0x0806])),
        34 => random
            .pick(&[
                &Action::DecMplsTtl,
                &Action::SetMplsTtl(3),
                &Action::CopyTtlIn,
                &Action::CopyTtlOut,
            ])
            .clone(),
        35 if random.one_in(2) => Action::PushPbb(0x88e7),
        35 => Action::PopPbb,
        31 => match random.below(8) {
            0 => Action::Exit,
            6 => Action::Meter(1 + random.below(4) as u32),
            7 => Action::Controller {
                max_len: 70,
                controller_id: 0,
                reason: 1,
                userdata: Vec::new(),
                pause: false,
                // Meter 5 does not exist.
                meter_id: Some(1 + random.below(5) as u32),
            },
            1 => Action::Note(vec![0; 6]),
            2 => Action::SetIpv4Dst(random.pick(&ADDRESSES)),
            3 => Action::SetEthSrc(random.pick(&MACS)),
            4 => Action::SetL4Dst(random.pick(&PORTS)),
            _ => Action::SetL4Src(random.pick(&PORTS)),
        },
        _ => common::output(1),
    }
}

fn instructions(random: &mut Random, table: u8) -> Vec<Instruction> {
    let mut all = Vec::new();
    let some = |random: &mut Random, most| -> Vec<Action> {
        (0..random.below(most))
            .map(|_| action(random, table, false))
            .collect()
    };
    if random.one_in(10) {
        all.push(Instruction::Meter(1 + random.below(4) as u32));
    }
    if !random.one_in(4) {
        all.push(Instruction::ApplyActions(some(random, 6)));
    }
    if random.one_in(8) {
        all.push(Instruction::ClearActions);
    }
    if random.one_in(3) {
        let mut set = some(random, 4);
        set.retain(|action| !matches!(action, Action::Resubmit { .. } | Action::Meter(_)));
        if random.one_in(2) {
            set.push(common::output(1 + random.below(4) as u32));
        }
        all.push(Instruction::WriteActions(set));
    }
    if random.one_in(6) {
        all.push(Instruction::WriteMetadata {
            value: random.below(4),
            mask: 3,
        });
    }
    if random.one_in(3) && u64::from(table) < TABLES {
        all.push(Instruction::GotoTable(
            table + 1 + random.below(TABLES - u64::from(table)) as u8,
        ));
    }
    all
}

/// Returns meters 1 to 4: one that nothing exceeds; one that drops and one that remarks all packets
/// after the first while the clock stands; and one that has all three bands.
pub fn meters() -> Vec<MeterConfig> {
    let band = |kind, rate| Band {
        kind,
        rate,
        burst: rate,
    };
    let (drop, remark) = (BandKind::Drop, BandKind::DscpRemark(1));
    let bands = [
        vec![band(drop, u32::MAX)],
        vec![band(drop, 1)],
        vec![band(remark, 1)],
        vec![
            band(drop, u32::MAX),
            band(BandKind::DscpRemark(2), 2),
            band(drop, 1),
        ],
    ];
    let config = |(bands, meter)| MeterConfig {
        meter,
        flags: MeterFlags::PKTPS,
        bands,
    };
    bands.into_iter().zip(1..).map(config).collect()
}

/// Generates a flow mod, which may be refused. Different matches in a table have different
/// priorities, because it is undefined which of two equal ones wins.
pub fn change(random: &mut Random, known: &mut HashMap<(u8, u16), Match>) -> FlowMod {
    let table = random.below(TABLES + 1) as u8;
    if random.one_in(5) {
        return ways::part(random, table, known);
    }
    let mut matching = matching(random);
    let mut priority = random.below(40) as u16;
    let command = match random.below(10) {
        0 => FlowModCommand::Modify,
        1 => FlowModCommand::ModifyStrict,
        2 => FlowModCommand::Delete,
        3 => FlowModCommand::DeleteStrict,
        _ => FlowModCommand::Add,
    };
    let shared = known
        .keys()
        .any(|(place, priority)| *place == table && *priority >= ways::SHARED);
    let command = match command {
        // It would turn parts of conjunctions, which share a priority, into ordinary rules.
        FlowModCommand::Modify if shared => FlowModCommand::ModifyStrict,
        other => other,
    };
    let all: Vec<_> = known
        .iter()
        .filter(|((place, priority), _)| *place == table && *priority < ways::SHARED)
        .collect();
    let mut all: Vec<_> = all
        .into_iter()
        .map(|((_, priority), matching)| (*priority, matching.clone()))
        .collect();
    all.sort_by_key(|(priority, _)| *priority);
    if command != FlowModCommand::Add && !all.is_empty() && random.one_in(2) {
        (priority, matching) = all[random.below(all.len() as u64) as usize].clone();
    }
    if command == FlowModCommand::Add || command == FlowModCommand::ModifyStrict {
        matching = known.entry((table, priority)).or_insert(matching).clone();
    }
    let mut change = common::flow(command, matching, priority);
    change.table = table;
    if command == FlowModCommand::Delete && random.one_in(10) {
        change.table = TABLE_ALL;
    }
    change.cookie = random.below(5);
    // A modify with a cookie never adds: an added rule could have the priority of another match.
    change.cookie_mask = if command == FlowModCommand::Modify {
        1
    } else {
        random.pick(&[0, 0, 1])
    };
    change.flags.reset_counts = random.one_in(4);
    change.instructions = instructions(random, table).into();
    change
}
