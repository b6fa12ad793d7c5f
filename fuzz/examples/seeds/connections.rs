//! Packets of connections and requests for them, see `targets/conntrack.rs`.

use crate::Corpus;
use packet::build::Builder;

const COMMIT: u8 = 1;
const FORCE: u8 = 2;
const RAW: u8 = 4;
const AGAIN: u8 = 8;
const V6: u8 = 16;

/// Kinds of translation, as in the second byte of a record.
const AS_COMMITTED: u8 = 1 << 2;
const SOURCE: u8 = 4 << 2;
const DESTINATION_PORTS: u8 = 7 << 2;
/// Housekeeping, likewise.
const FLUSH: u8 = 2 << 5;
const UNCHECKED: u8 = 3 << 5;
const POLICY: u8 = 4 << 5;
const EXPIRE: u8 = 5 << 5;

const SYN: u16 = 2;
const ACK: u16 = 16;
const FIN: u16 = 1;

/// Returns a record; `cut` is in the middle of the headers.
fn record(flags: u8, what: u8, time: u8, range: u8, packet: Builder) -> Vec<u8> {
    let frame = packet.bytes();
    let mut bytes = vec![flags, what, time, range, 30, frame.len() as u8];
    bytes.extend(frame);
    bytes
}

fn ethernet() -> Builder {
    Builder::ethernet([2; 6], [4; 6])
}

fn address(last: u32) -> u32 {
    0x0a00_0000 + last
}

fn address_v6(last: u8) -> [u8; 16] {
    let mut bytes = [0xff; 16];
    bytes[..8].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0]);
    bytes[14] = 0xff;
    bytes[15] = last;
    bytes
}

fn between(v6: bool, source: u8, destination: u8) -> Builder {
    match v6 {
        true => ethernet().ipv6(address_v6(source), address_v6(destination)),
        false => ethernet().ipv4(address(source.into()), address(destination.into())),
    }
}

fn icmp(v6: bool, source: u8, destination: u8, kinds: [u8; 2]) -> Builder {
    let packet = between(v6, source, destination);
    match v6 {
        true => packet.icmpv6(kinds[1], 0, 0x0007_0000),
        false => packet.icmp(kinds[0], 0, 0x0007_0000),
    }
}

/// An error that quotes a packet.
fn error(v6: bool, destination: u8, quoted: &Builder) -> Builder {
    let quote = quoted.bytes().split_off(14);
    icmp(v6, 9, destination, [3, 1]).payload(&quote)
}

pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    for (family, v6) in [("v4", false), ("v6", true)] {
        let six = if v6 { V6 } else { 0 };
        let add = |name: &str, parts: &[&[u8]]| corpus.add(&format!("{name}-{family}"), parts);
        let there = |flags| between(v6, 1, 2).tcp(1000, 80, flags);
        let back = |flags| between(v6, 2, 1).tcp(80, 1000, flags);
        let plain = |flags, packet| record(flags | six, 0, 0x31, 0, packet);
        add(
            "tcp",
            &[
                &plain(COMMIT, there(SYN)),
                &plain(0, back(SYN | ACK)),
                &plain(RAW, there(ACK).payload(b"data")),
                &record(six, UNCHECKED, 1, 0, there(FIN | ACK)),
                &plain(0, back(FIN | ACK)),
                &plain(COMMIT, there(SYN)),
                &plain(COMMIT | FORCE, back(SYN)),
            ],
        )?;
        // Two senders with the same port, one address for both.
        let udp = |source, destination, from, to| {
            between(v6, source, destination).udp(from, to).payload(b"d")
        };
        let sent = |source| udp(source, 2, 1000, 80);
        let translate = |packet| record(COMMIT | AGAIN | six, SOURCE, 1, 5, packet);
        let answer = |packet| record(six, AS_COMMITTED, 1, 0, packet);
        add(
            "source-nat",
            &[
                &translate(sent(1)),
                &translate(sent(3)),
                &answer(udp(2, 5, 80, 1000)),
                &answer(error(v6, 5, &udp(5, 2, 1000, 80))),
                &record(six, FLUSH, 0, 17, sent(1)),
            ],
        )?;
        let sctp = |port| between(v6, 1, 2).sctp(port, 80).payload(b"data");
        let ports = |port| record(COMMIT | six, DESTINATION_PORTS, 1, 0x0b, sctp(port));
        let parts: Vec<u8> = (1..5).flat_map(ports).collect();
        add("destination-nat", &[&parts])?;
        let slow = |time, packet| record(COMMIT | FORCE | six, POLICY, time, 0x26, packet);
        add(
            "echo",
            &[
                &slow(0, icmp(v6, 1, 2, [8, 128])),
                &slow(1, icmp(v6, 2, 1, [0, 129])),
                &plain(COMMIT, error(v6, 1, &icmp(v6, 1, 2, [8, 128]))),
                &record(COMMIT | six, EXPIRE, 0xff, 0, icmp(v6, 1, 2, [8, 128])),
            ],
        )?;
        // More than the limits of all and of zone 1 admit.
        let zone = |zone| {
            move |port| {
                record(
                    COMMIT | six,
                    zone,
                    1,
                    0,
                    between(v6, 1, 2).tcp(port, 80, SYN),
                )
            }
        };
        let parts: Vec<u8> = (1..14)
            .flat_map(zone(0))
            .chain((1..6).flat_map(zone(1)))
            .collect();
        add("many", &[&parts])?;
    }
    Ok(())
}
