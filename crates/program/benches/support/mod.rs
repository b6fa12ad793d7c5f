//! Shared by the benchmarks of this crate: small frames, a host that keeps what is sent, rule sets,
//! and a switch with them.
#![allow(dead_code)] // each benchmark uses what it needs

use packet::{Field, Frame, Match, Offload, Value};
use program::Program;
use program::actions::{Op, OpList, ToController};
use program::epoch::Reader;
use program::host::{Context, DropReason, Host};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter};
use std::sync::Arc;

/// Packets of a burst.
pub const BURST: usize = 32;

/// A 60-byte frame with headroom in memory of its own.
pub struct Buffer(Box<[u8; 128]>, u8);

impl Frame for Buffer {
    fn len(&self) -> usize {
        128 - usize::from(self.1)
    }
    fn head(&self) -> &[u8] {
        &self.0[usize::from(self.1)..]
    }
    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.0[usize::from(self.1)..]
    }
    fn headroom(&self) -> usize {
        usize::from(self.1)
    }
    fn push_front(&mut self, n: usize) -> bool {
        let fits = n <= usize::from(self.1);
        if fits {
            self.1 -= n as u8;
        }
        fits
    }
    fn pull_front(&mut self, n: usize) -> bool {
        self.1 += n as u8;
        true
    }
    fn truncate(&mut self, _: usize) {}
    fn linearize(&mut self, _: usize) -> bool {
        true
    }
    fn segment_count(&self) -> usize {
        1
    }
    fn segment(&self, index: usize) -> Option<&[u8]> {
        (index == 0).then(|| self.head())
    }
    fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        (index == 0).then(|| self.head_mut())
    }
    fn duplicate(&self) -> Option<Self> {
        Some(Buffer(self.0.clone(), self.1))
    }
    fn sibling(&self, _: &[u8]) -> Option<Self> {
        None
    }
    fn offload(&self) -> Offload {
        Offload::default()
    }
    fn set_offload(&mut self, _: Offload) {}
}

/// Returns a UDP packet in such a frame.
pub fn frame(source: u32, destination: u32, source_port: u16, destination_port: u16) -> Buffer {
    let mut bytes = [0_u8; 128];
    let b = &mut bytes[68..];
    b[5] = 2;
    b[11] = 1;
    b[12..14].copy_from_slice(&[8, 0]);
    b[14] = 0x45;
    b[16..18].copy_from_slice(&46_u16.to_be_bytes());
    b[22] = 64;
    b[23] = 17;
    b[26..30].copy_from_slice(&source.to_be_bytes());
    b[30..34].copy_from_slice(&destination.to_be_bytes());
    b[34..36].copy_from_slice(&source_port.to_be_bytes());
    b[36..38].copy_from_slice(&destination_port.to_be_bytes());
    b[38..40].copy_from_slice(&26_u16.to_be_bytes());
    Buffer(Box::new(bytes), 68)
}

/// Returns a UDP packet of IPv6 in such a frame, of 64 bytes, between addresses that differ in
/// their last four bytes.
pub fn frame6(source: u32, destination: u32, source_port: u16, destination_port: u16) -> Buffer {
    let mut bytes = [0_u8; 128];
    let b = &mut bytes[64..];
    b[5] = 2;
    b[11] = 1;
    b[12..14].copy_from_slice(&[0x86, 0xdd]);
    b[14] = 0x60;
    b[18..20].copy_from_slice(&10_u16.to_be_bytes());
    b[20] = 17;
    b[21] = 64;
    b[22..24].copy_from_slice(&[0x20, 1]);
    b[34..38].copy_from_slice(&source.to_be_bytes());
    b[38..40].copy_from_slice(&[0x20, 1]);
    b[50..54].copy_from_slice(&destination.to_be_bytes());
    b[54..56].copy_from_slice(&source_port.to_be_bytes());
    b[56..58].copy_from_slice(&destination_port.to_be_bytes());
    b[58..60].copy_from_slice(&10_u16.to_be_bytes());
    b[60..62].copy_from_slice(&[1, 2]);
    Buffer(Box::new(bytes), 64)
}

/// Returns an ARP request in such a frame.
pub fn arp_frame(sender: u32, target: u32) -> Buffer {
    let mut bytes = [0_u8; 128];
    let b = &mut bytes[68..];
    b[..6].fill(0xff);
    b[11] = 1;
    b[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    b[27] = 1;
    b[28..32].copy_from_slice(&sender.to_be_bytes());
    b[38..42].copy_from_slice(&target.to_be_bytes());
    Buffer(Box::new(bytes), 68)
}

/// The host at which packets end.
#[derive(Default)]
pub struct Sink {
    /// Frames that were sent, for reuse.
    pub out: Vec<Buffer>,
    /// Number of frames that were not sent.
    pub lost: usize,
}

impl Host<Buffer> for Sink {
    fn port_is_live(&self, _: u32) -> bool {
        true
    }
    fn output(&mut self, context: Context<'_>, _: u32, frame: Buffer, _: bool) {
        *context.sent = true;
        self.out.push(frame);
    }
    fn output_all(&mut self, _: Context<'_>, frame: Buffer, _: bool) {
        self.out.push(frame);
    }
    fn normal(&mut self, _: Context<'_>, frame: Buffer) {
        self.out.push(frame);
    }
    fn controller(&mut self, _: Context<'_>, _: &ToController, _: &Buffer) {}
    fn malformed(&mut self, _: packet::parse::Malformed) {
        self.lost += 1;
    }
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn dropped(&mut self, _: DropReason) {
        self.lost += 1;
    }
}

/// Table, match, precedence and steps of each rule.
pub type Rules = Vec<(u8, Match, u32, Vec<Op>)>;

/// Returns a match on UDP over IPv4.
pub fn udp() -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, 0x0800);
    matching.set_exact(Field::IpProto, 17);
    matching
}

/// Returns one rule for everything that comes in by port 1.
pub fn one_port() -> Rules {
    let mut matching = Match::any();
    matching.set_exact(Field::InPort, 1);
    vec![(0, matching, 1, vec![Op::Output(2)])]
}

/// Returns one rule for UDP to port 80.
pub fn one_service() -> Rules {
    let mut matching = udp();
    matching.set_exact(Field::UdpDst, 80);
    vec![(0, matching, 10, vec![Op::Output(2)])]
}

/// Returns a match on UDP over IPv6.
pub fn udp6() -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, 0x86dd);
    matching.set_exact(Field::IpProto, 17);
    matching
}

/// Returns one rule for UDP over IPv6 to port 80.
pub fn one_service6() -> Rules {
    let mut matching = udp6();
    matching.set_exact(Field::UdpDst, 80);
    vec![(0, matching, 10, vec![Op::Output(2)])]
}

/// Returns an address of [`frame6`].
fn address6(number: u32) -> u128 {
    0x2001 << 112 | u128::from(number)
}

/// Returns a rule for each IPv6 source address.
pub fn exact6(count: u32) -> Rules {
    let rule = |index| {
        let mut matching = udp6();
        matching.set_exact(Field::Ipv6Src, address6(0x0a00_0000 + index));
        (0, matching, 10, vec![Op::Output(2)])
    };
    (0..count).map(rule).collect()
}

/// Returns one rule for ARP.
pub fn arp() -> Rules {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, 0x0806);
    vec![(0, matching, 10, vec![Op::Output(2)])]
}

/// Returns a rule for each IPv4 source address, and as many for those of IPv6, in one table.
pub fn dual(count: u32) -> Rules {
    exact(count).into_iter().chain(exact6(count)).collect()
}

/// Returns a rule for each source address from 10.0.0.0 on.
pub fn exact(count: u32) -> Rules {
    let rule = |index| {
        let mut matching = udp();
        matching.set_exact(Field::Ipv4Src, u128::from(0x0a00_0000 + index));
        (0, matching, 10, vec![Op::Output(2)])
    };
    (0..count).map(rule).collect()
}

/// Returns a rule for each flow of [`frames`], by both addresses and both ports.
pub fn exact_with_ports(count: u32) -> Rules {
    let rule = |index: u32| {
        let mut matching = udp();
        matching.set_exact(Field::Ipv4Src, u128::from(0x0a00_0000 + index));
        matching.set_exact(Field::Ipv4Dst, u128::from(0x0b00_0000 + index % 65536));
        matching.set_exact(Field::UdpSrc, u128::from(1024 + index % 50_000));
        matching.set_exact(Field::UdpDst, 80);
        (0, matching, 10, vec![Op::Output(2)])
    };
    (0..count).map(rule).collect()
}

/// Returns 1000 rules on prefixes of ten lengths, each with a precedence of its own, and one for
/// the rest.
pub fn masks() -> Rules {
    let rule = |index: u32| {
        let mut matching = udp();
        let mask = u32::MAX << (index % 10);
        let address = (0x0a00_0000 + index * 97) & mask;
        matching.set(Field::Ipv4Src, &address.to_be_bytes(), &mask.to_be_bytes());
        (0, matching, 10 + index, vec![Op::Output(2)])
    };
    let rest = [(0, Match::any(), 1, vec![Op::Output(3)])];
    (0..1000).map(rule).chain(rest).collect()
}

/// A reproducible pseudorandom generator.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as u32
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next() as usize % of.len()]
    }
}

/// Source, destination, ports and protocol: of a packet, or masks of a rule.
type Five = [u32; 4];

/// Returns the case of this name of `make bench`: a thousand rules over this many masks of
/// addresses, ports and protocols, each with a precedence of its own, one for the rest, two ports
/// out; and frames that meet them.
pub fn access_list(masks: usize, count: usize) -> (Rules, Vec<Buffer>) {
    let prefix = |length: u32| u32::MAX << (32 - length);
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let mut shape = || -> (Five, u32) {
        let source = prefix(draw.one_of(&[8, 12, 16, 20, 24, 28, 32]));
        let destination = prefix(draw.one_of(&[8, 16, 20, 24, 28, 32]));
        let source_port = draw.one_of(&[0, 0xf000, 0xff00, 0xffff]);
        let destination_port = draw.one_of(&[0, 0xff00, 0xffff]);
        let masks = [source, destination, source_port, destination_port];
        (masks, draw.one_of(&[6, 17]))
    };
    let shapes: Vec<(Five, u32)> = (0..masks).map(|_| shape()).collect();
    let mut rules: Rules = vec![(0, Match::any(), 1, vec![Op::Output(2)])];
    let mut values = Vec::new();
    for number in 0..1000 {
        let (mask, protocol) = shapes[number as usize % masks];
        let value: Five = mask.map(|mask| mask & draw.next());
        values.push((value, mask, protocol));
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        matching.set_exact(Field::IpProto, protocol.into());
        let [source, destination] =
            [0, 1].map(|at| (value[at].to_be_bytes(), mask[at].to_be_bytes()));
        matching.set(Field::Ipv4Src, &source.0, &source.1);
        matching.set(Field::Ipv4Dst, &destination.0, &destination.1);
        // Ports of TCP and UDP are at the same place of a key.
        for (field, at) in [(Field::UdpSrc, 2), (Field::UdpDst, 3)] {
            let [value, mask] = [value[at], mask[at]].map(|part| (part as u16).to_be_bytes());
            if mask != [0, 0] {
                matching.set(field, &value, &mask);
            }
        }
        rules.push((0, matching, 10 + number, vec![Op::Output(2 + number % 2)]));
    }
    let one = |_| {
        let (value, mask, protocol) = draw.one_of(&values);
        let [source, destination, source_port, destination_port] =
            [0, 1, 2, 3].map(|at| value[at] | draw.next() & !mask[at]);
        let ports = (source_port as u16, destination_port as u16);
        let mut frame = frame(source, destination, ports.0, ports.1);
        if protocol == 6 {
            let head = frame.head_mut();
            head[23] = 6;
            head[38..46].fill(0);
            head[46] = 0x50;
        }
        frame
    };
    let frames = (0..count).map(one).collect();
    (rules, frames)
}

/// Returns the step that sets a field to a value.
pub fn set(field: Field, value: u128) -> Op {
    let def = field.def();
    let value = Value::from_u128(value << def.shift, def.bytes);
    let mask = def.place();
    Op::SetField { field, value, mask }
}

/// Returns the steps of a router with address translation.
pub fn rewrite() -> Vec<Op> {
    vec![
        set(Field::EthSrc, 0x0200_0000_0102),
        set(Field::EthDst, 0x0200_0000_0103),
        set(Field::Ipv4Src, 0x0b00_0001),
        set(Field::Ipv4Dst, 0x0b00_0002),
        set(Field::UdpSrc, 1024),
        set(Field::IpTtl, 63),
        Op::Output(2),
    ]
}

/// Returns one rule that packets meet, and `count` rules that they do not.
pub fn strangers(count: u32) -> Rules {
    let mut rules = one_service();
    rules.extend((0..count).map(|index| {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        matching.set_exact(Field::IpProto, 6);
        matching.set_exact(Field::Ipv4Src, u128::from(0x1400_0000 + index));
        matching.set_exact(Field::Ipv4Dst, u128::from(0x1e00_0000 + index % 65536));
        matching.set_exact(Field::TcpDst, u128::from(index % 1000 + 1));
        (0, matching, 100, vec![Op::Output(2)])
    }));
    rules
}

/// Returns a router's rules: prefixes as long as those of the Internet's table, each with one of
/// 256 next hops. TTLs are set and not decremented, since the frames are reused.
pub fn router(count: usize) -> Rules {
    let lengths = [
        24, 24, 24, 24, 24, 24, 24, 24, 24, 23, 22, 23, 22, 21, 20, 19, 18, 16, 32, 14,
    ];
    let mut seen = std::collections::HashSet::new();
    let mut number = 0x9e37_79b9_u64;
    let mut rules = Rules::new();
    while rules.len() < count {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        let length = lengths[(number >> 40) as usize % lengths.len()];
        let mask = u32::MAX << (32 - length);
        let address = (number as u32 & 0x7fff_ffff) & mask;
        if !seen.insert((address, length)) {
            continue;
        }
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        matching.set(Field::Ipv4Dst, &address.to_be_bytes(), &mask.to_be_bytes());
        let hop = u128::from(number >> 50 & 0xff);
        let steps = vec![
            set(Field::IpTtl, 63),
            set(Field::EthSrc, 0x0200_0000_0200),
            set(Field::EthDst, 0x0200_0000_0100 + hop),
            Op::Output(2 + (hop & 1) as u32),
        ];
        rules.push((0, matching, 100 + length, steps));
    }
    rules
}

/// Returns frames of flows to addresses that these prefixes hold.
pub fn routed(count: usize, rules: &Rules) -> Vec<Buffer> {
    let destination = |index: usize| {
        let (_, matching, _, _) = &rules[index * 7919 % rules.len()];
        let word = packet::key::at::IPV4_DST / 8;
        let mut bytes = [0; 8];
        if let Some(word) = matching
            .words()
            .iter()
            .find(|other| usize::from(other.word) == word)
        {
            bytes = word.value.to_ne_bytes();
        }
        let from = packet::key::at::IPV4_DST % 8;
        u32::from_be_bytes(bytes[from..from + 4].try_into().unwrap())
    };
    (0..count)
        .map(|index| frame(0x0a00_0000 + index as u32, destination(index), 1024, 80))
        .collect()
}

/// Returns a station's Ethernet address.
fn station(number: usize) -> u128 {
    0x0200_0010_0000 + number as u128
}

/// Returns a rule for each of `count` Ethernet destinations, which are behind two ports.
pub fn stations(count: usize) -> Rules {
    let rule = |number| {
        let mut matching = Match::any();
        matching.set_exact(Field::EthDst, station(number));
        let port = 2 + (number & 1) as u32;
        (0, matching, 10, vec![Op::Output(port)])
    };
    (0..count).map(rule).collect()
}

/// Returns [`stations`] and a rule that floods all else.
pub fn stations_and_flood(count: usize) -> Rules {
    let rest = [(0, Match::any(), 0, vec![Op::All { flood: true }])];
    stations(count).into_iter().chain(rest).collect()
}

/// Returns [`exact_with_ports`] and a rule for all else.
pub fn exact_with_ports_and_rest(count: u32) -> Rules {
    let rest = [(0, Match::any(), 0, vec![Op::Output(3)])];
    exact_with_ports(count).into_iter().chain(rest).collect()
}

/// Returns a rule for each of `count` neighbours by IPv4 address: rewrites to its own Ethernet
/// address, behind two ports.
pub fn neighbours(count: u32) -> Rules {
    let rule = |index| {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        matching.set_exact(Field::Ipv4Src, u128::from(0x0a00_0000 + index));
        let steps = vec![
            set(Field::EthDst, station(index as usize)),
            Op::Output(2 + (index & 1)),
        ];
        (0, matching, 10, steps)
    };
    (0..count).map(rule).collect()
}

/// Returns `count` frames to these stations, in no order that their ports would follow.
pub fn bridged(count: usize, stations: usize) -> Vec<Buffer> {
    let one = |index: usize| {
        let number = (index * 7919 + index / stations) % stations;
        let number = number ^ (number >> 3 & 1);
        let mut frame = frame(0x0a00_0000 + number as u32, 0x0b00_0000, 1024, 80);
        let address = station(number % stations).to_be_bytes();
        frame.head_mut()[..6].copy_from_slice(&address[10..]);
        frame
    };
    (0..count).map(one).collect()
}

/// Changes a frame's destination to another of `stations`, each in turn.
pub fn next_station(frame: &mut Buffer, stations: usize) {
    let head = frame.head_mut();
    let mut bytes = [0; 16];
    bytes[10..].copy_from_slice(&head[..6]);
    let number = (u128::from_be_bytes(bytes) - station(0)) as usize;
    let next = station((number + 3371) % stations).to_be_bytes();
    head[..6].copy_from_slice(&next[10..]);
}

/// Returns the case of this name of `make bench`: port security, routing by 256 prefixes, an access
/// list. TTLs are set and not decremented, since the frames are reused.
pub fn l2l3() -> Rules {
    let resubmit = |table| Op::Resubmit {
        in_port: None,
        table: Some(table),
    };
    let mut port = Match::any();
    port.set_exact(Field::InPort, 1);
    let mut rules = vec![
        (0, port, 10, vec![set(Field::Reg0, 7), resubmit(1)]),
        (0, Match::any(), 0, vec![]),
        (2, Match::any(), 1, vec![]),
    ];
    for network in 0..256_u32 {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        let address = 0x0b00_0000 | network << 8;
        matching.set(
            Field::Ipv4Dst,
            &address.to_be_bytes(),
            &[0xff, 0xff, 0xff, 0],
        );
        let steps = vec![
            set(Field::Reg1, network.into()),
            set(Field::IpTtl, 63),
            set(Field::EthDst, 0x0200_0000_0100 + u128::from(network)),
            resubmit(2),
        ];
        rules.push((1, matching, 10, steps));
    }
    for port in 70..90 {
        let mut matching = udp();
        matching.set_exact(Field::Reg0, 7);
        matching.set_exact(Field::UdpDst, port);
        rules.push((2, matching, 10, vec![Op::Output(2)]));
    }
    rules
}

/// Returns the case of this name of `make bench`, with its matches and steps: as [`l2l3`], except
/// that a source address is matched, and TTLs are decremented.
pub fn l2l3_10k() -> Rules {
    let mut rules = l2l3();
    for (table, matching, _, steps) in &mut rules {
        match table {
            0 if !steps.is_empty() => {
                matching.set_exact(Field::EthSrc, 1);
            }
            1 => steps[1] = Op::DecTtl([0].into()),
            _ => {}
        }
    }
    rules
}

/// Returns its packets: destinations in all 256 networks, in random order, equally many of each
/// flow.
pub fn frames_l2l3(count: usize, flows: u32) -> Vec<Buffer> {
    let mut order: Vec<u32> = (0..count as u32).map(|index| index % flows).collect();
    let mut draw = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..count).rev() {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        order.swap(last, draw as usize % (last + 1));
    }
    let one = |flow: u32| {
        frame(
            0x0a00_0000 + flow,
            0x0b00_0000 + flow.wrapping_mul(7919) % 65536,
            1024 + (flow % 50_000) as u16,
            80,
        )
    };
    order.into_iter().map(one).collect()
}

/// Restores the TTL of such a frame.
pub fn renew(frame: &mut Buffer) {
    frame.head_mut()[22] = 64;
}

/// Returns rules that spread flows over two ports by their hash (bench/vhost.py).
pub fn spread() -> Rules {
    let reg0 = program::actions::Bits {
        field: Field::Reg0,
        start: 0,
        bits: 32,
    };
    let choose = Op::Multipath(Box::new(program::actions::Multipath {
        fields: program::actions::multipath::HashFields::SymmetricL4,
        basis: 1024,
        choice: program::actions::multipath::Choice::Modulo,
        ways: 2,
        dst: reg0,
    }));
    let resubmit = Op::Resubmit {
        in_port: None,
        table: Some(1),
    };
    let mut matching = udp();
    matching.set_exact(Field::InPort, 1);
    let ways = (0..2).map(|way| {
        let mut matching = Match::any();
        matching.set_exact(Field::Reg0, way);
        (1, matching, 10, vec![Op::Output(2 + way as u32)])
    });
    let first = (0, matching, 10, vec![choose, resubmit]);
    std::iter::once(first).chain(ways).collect()
}

/// Returns [`l2l3`] for IPv6.
pub fn l2l3_6() -> Rules {
    let mut rules = l2l3();
    rules.retain(|(table, ..)| *table == 0);
    for network in 0..256_u32 {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x86dd);
        let address = address6(0x0b00_0000 | network << 8).to_be_bytes();
        let mask = (u128::MAX << 8).to_be_bytes();
        matching.set(Field::Ipv6Dst, &address, &mask);
        let steps = vec![
            set(Field::Reg1, network.into()),
            set(Field::IpTtl, 63),
            set(Field::EthDst, 0x0200_0000_0100 + u128::from(network)),
            Op::Resubmit {
                in_port: None,
                table: Some(2),
            },
        ];
        rules.push((1, matching, 10, steps));
    }
    for port in 70..90 {
        let mut matching = udp6();
        matching.set_exact(Field::Reg0, 7);
        matching.set_exact(Field::UdpDst, port);
        rules.push((2, matching, 10, vec![Op::Output(2)]));
    }
    rules
}

/// A bridge with rules, one worker's reader, and the writer.
pub struct Switch {
    /// The program of the bridge.
    pub program: Arc<Program>,
    /// The bridge.
    pub bridge: Arc<Bridge>,
    /// Its writer.
    pub writer: BridgeWriter,
    /// A worker's epoch reader.
    pub reader: Reader,
}

impl Switch {
    /// Creates a switch with these rules, published.
    pub fn new(rules: &Rules) -> Switch {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        let reader = program.domain.reader().unwrap();
        program.counters.add_worker(reader.index());
        let mut lists = std::collections::HashMap::new();
        for (table, matching, priority, ops) in rules {
            let counter = program.counters.allocate().unwrap();
            // Rules with the same actions share a list, as in a switch.
            let list = lists.entry(format!("{ops:?}"));
            let ops = Arc::clone(list.or_insert_with(|| Arc::new(OpList::new(ops.clone()))));
            writer.insert(
                *table,
                RuleSpec {
                    matching: matching.clone(),
                    priority: *priority,
                    ops,
                    counter,
                    cookie: 0,
                },
            );
        }
        writer.commit();
        program.domain.publish();
        Switch {
            program,
            bridge,
            writer,
            reader,
        }
    }

    /// Creates a switch whose tables have the lookups that fit best.
    pub fn shaped(rules: &Rules) -> Switch {
        let mut switch = Switch::new(rules);
        switch.writer.shape_now();
        switch.program.domain.publish();
        switch
    }
}

/// Returns `count` frames of `flows` flows in turn.
pub fn frames(count: usize, flows: u32) -> Vec<Buffer> {
    of_flows(count, flows, frame)
}

/// Returns `count` IPv6 frames of `flows` flows in turn.
pub fn frames6(count: usize, flows: u32) -> Vec<Buffer> {
    of_flows(count, flows, frame6)
}

fn of_flows(count: usize, flows: u32, frame: impl Fn(u32, u32, u16, u16) -> Buffer) -> Vec<Buffer> {
    let one = |index: u32| {
        let flow = index.wrapping_mul(7919) % flows;
        frame(
            0x0a00_0000 + flow,
            0x0b00_0000 + flow % 65536,
            1024 + (flow % 50_000) as u16,
            80,
        )
    };
    (0..count as u32).map(one).collect()
}
