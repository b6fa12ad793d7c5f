//! The long pipeline of `bench/cases_long.py` in its compiled form: thirty tables, half of which
//! only pass packets on.

use super::support::{Buffer, Rules, frame, set};
use packet::{Field, Frame, Match};
use program::actions::Op;

const PORTS: u32 = 64;
const HOSTS: u32 = 256;
const SERVICES: [u16; 16] = [
    22, 25, 80, 110, 143, 443, 993, 3306, 5432, 6379, 8080, 8443, 9000, 9090, 27017, 50051,
];

fn mixed(number: u32) -> u32 {
    let mixed = (number ^ number >> 16).wrapping_mul(0x45d9_f3b5);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2c1b_3c6d);
    mixed ^ mixed >> 16
}

fn source_mac(port: u32) -> u128 {
    0x0200_0000_0100 + u128::from(port)
}

fn host_mac(host: u32) -> u128 {
    0x0200_0001_0000 + u128::from(host)
}

fn source_address(port: u32) -> u32 {
    0x0a00_000a | port << 8
}

fn host_address(host: u32) -> u32 {
    0x0b00_0014 | host << 8
}

/// Returns a packet of flow `number`.
pub fn flow(number: u32) -> Buffer {
    let chance = mixed(number);
    let (port, host) = (chance % PORTS, chance >> 8 & (HOSTS - 1));
    let service = SERVICES[chance as usize >> 20 & 15];
    let (from, to) = (source_address(port), host_address(host));
    let mut packet = frame(from, to, 1024 + (number % 64_000) as u16, service);
    let head = packet.head_mut();
    head[..6].copy_from_slice(&host_mac(host).to_be_bytes()[10..]);
    head[6..12].copy_from_slice(&source_mac(port).to_be_bytes()[10..]);
    packet
}

fn resubmit(table: u8) -> Op {
    Op::Resubmit {
        in_port: None,
        table: Some(table),
    }
}

fn exact(fields: &[(Field, u128)]) -> Match {
    let mut matching = Match::any();
    fields
        .iter()
        .for_each(|(field, value)| matching.set_exact(*field, *value));
    matching
}

fn bit(field: Field, bit: u32, value: u32) -> Op {
    Op::SetField {
        field,
        value: packet::Value::from_u128(u128::from(value << bit), 4),
        mask: packet::Value::from_u128(1 << bit, 4),
    }
}

fn network(matching: &mut Match, field: Field, address: u32) {
    matching.set(field, &address.to_be_bytes(), &[0xff, 0xff, 0xff, 0]);
}

fn access(rules: &mut Rules, table: u8, following: u8, count: u32, seed: u32) {
    for number in 0..count {
        let chance = mixed(number ^ seed);
        let (port, host) = (chance % PORTS, chance >> 8 & (HOSTS - 1));
        let service = u128::from(SERVICES[chance as usize >> 20 & 15]);
        let mut matching = exact(&[(Field::Metadata, 1), (Field::EthType, 0x0800)]);
        matching.set(Field::Reg0, &[0, 0, 0, 1], &[0, 0, 0, 1]);
        if number % 4 < 3 {
            matching.set_exact(Field::IpProto, 17);
        }
        match number % 4 {
            0 => {
                matching.set_exact(Field::Ipv4Dst, host_address(host).into());
                matching.set_exact(Field::UdpDst, service);
            }
            1 => {
                network(&mut matching, Field::Ipv4Src, source_address(port) & !0xff);
                matching.set_exact(Field::UdpDst, service);
            }
            2 => {
                matching.set_exact(Field::Reg14, u128::from(port + 1));
                matching.set(Field::UdpDst, &[(chance >> 24) as u8, 0], &[0xff, 0]);
            }
            _ => {
                network(&mut matching, Field::Ipv4Src, source_address(port) & !0xff);
                network(&mut matching, Field::Ipv4Dst, host_address(host) & !0xff);
            }
        }
        let steps = vec![bit(Field::Reg0, 16, 1), resubmit(following)];
        rules.push((table, matching, 1000 + 10 * (number % 4), steps));
    }
    let switch = exact(&[(Field::Metadata, 1)]);
    rules.push((table, switch, 1, vec![resubmit(following)]));
}

fn entry(rules: &mut Rules) {
    let switch = || exact(&[(Field::Metadata, 1)]);
    for port in 0..PORTS {
        let number = u128::from(port + 1);
        let from = exact(&[(Field::InPort, 1), (Field::EthSrc, source_mac(port))]);
        let steps = vec![
            set(Field::Metadata, 1),
            set(Field::Reg14, number),
            resubmit(1),
        ];
        rules.push((0, from, 100, steps));
        let mut own = switch();
        own.set_exact(Field::Reg14, number);
        rules.push((25, own.clone(), 80, vec![bit(Field::Reg10, 12, 1)]));
        own.set_exact(Field::EthSrc, source_mac(port));
        own.set_exact(Field::EthType, 0x0800);
        own.set_exact(Field::Ipv4Src, source_address(port).into());
        rules.push((25, own, 90, vec![bit(Field::Reg10, 12, 0)]));
    }
    let security = vec![bit(Field::Reg10, 12, 0), resubmit(25), resubmit(2)];
    rules.push((1, switch(), 50, security));
    let mut refused = switch();
    refused.set(Field::Reg10, &[0, 0, 0x10, 0], &[0, 0, 0x10, 0]);
    rules.push((2, refused, 50, vec![]));
    rules.push((2, Match::any(), 0, vec![resubmit(3)]));
    let mut ip = switch();
    ip.set_exact(Field::EthType, 0x0800);
    rules.push((5, ip, 100, vec![bit(Field::Reg0, 0, 1), resubmit(6)]));
    rules.push((5, Match::any(), 0, vec![resubmit(6)]));
}

fn exit(rules: &mut Rules) {
    for host in 0..HOSTS {
        let number = u128::from(host + 1);
        let mac = exact(&[(Field::Metadata, 1), (Field::EthDst, host_mac(host))]);
        let found = vec![set(Field::Reg15, number), resubmit(24)];
        rules.push((23, mac, 50, found));
        let out = exact(&[(Field::Metadata, 1), (Field::Reg15, number)]);
        let again = vec![set(Field::Reg0, 1), resubmit(26)];
        rules.push((24, out.clone(), 100, again));
        let mut own = out.clone();
        own.set_exact(Field::EthDst, host_mac(host));
        own.set_exact(Field::EthType, 0x0800);
        own.set_exact(Field::Ipv4Dst, host_address(host).into());
        rules.push((28, own, 90, vec![resubmit(29)]));
        rules.push((29, out, 100, vec![Op::Output(2 + host % 2)]));
    }
}

/// Returns all rules.
pub fn rules() -> Rules {
    let mut rules = Vec::new();
    entry(&mut rules);
    access(&mut rules, 9, 10, 400, 21);
    exit(&mut rules);
    access(&mut rules, 27, 28, 200, 22);
    for port in 0..PORTS {
        let mut dhcp = exact(&[(Field::Metadata, 1), (Field::EthSrc, source_mac(port))]);
        dhcp.set_exact(Field::EthType, 0x0800);
        dhcp.set_exact(Field::IpProto, 17);
        dhcp.set_exact(Field::UdpSrc, 68);
        dhcp.set_exact(Field::UdpDst, 67);
        rules.push((19, dhcp, 100, vec![]));
    }
    let passing = [3, 4, 6, 7, 8].into_iter().chain(10..23).chain([26]);
    rules.extend(passing.map(|table| (table, Match::any(), 0, vec![resubmit(table + 1)])));
    rules
}
