//! Captures of both formats, and frames as `sluice gen` makes them.

use crate::Corpus;
use packet::build::Builder;

fn words(big: bool, words: &[u32]) -> Vec<u8> {
    let bytes = |word: &u32| match big {
        true => word.to_be_bytes(),
        false => word.to_le_bytes(),
    };
    words.iter().flat_map(bytes).collect()
}

/// A block of pcapng.
fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = padded as u32 + 12;
    let mut bytes = words(big, &[kind, length]);
    bytes.extend(body);
    bytes.resize(8 + padded, 0);
    bytes.extend(words(big, &[length]));
    bytes
}

fn frame() -> Vec<u8> {
    let builder = Builder::ethernet([2; 6], [4; 6]).ipv4(1, 2).udp(3, 4);
    builder.payload(b"seventeen letters").bytes()
}

/// Writes files.
pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    let frame = frame();
    let length = frame.len() as u32;
    for big in [false, true] {
        let order = if big { "big" } else { "little" };
        for (magic, unit) in [(0xa1b2_c3d4, "us"), (0xa1b2_3c4d, "ns")] {
            let version = if big { 2 << 16 | 4 } else { 2 | 4 << 16 };
            let header = words(big, &[magic, version, 0, 0, 65_535, 1]);
            let record = words(big, &[7, 9, length, length]);
            let parts: [&[u8]; 5] = [&header, &record, &frame, &record, &frame];
            corpus.add(&format!("pcap-{order}-{unit}"), &parts)?;
        }
        let half = |half: u32| if big { half << 16 } else { half };
        let section = words(big, &[0x1a2b_3c4d, half(1), u32::MAX, u32::MAX]);
        let option = |code: u32, length: u32| match big {
            true => code << 16 | length,
            false => code | length << 16,
        };
        let resolution = [words(big, &[half(1), 0, option(9, 1)]), vec![9, 0, 0, 0]].concat();
        let offset = words(big, &[option(14, 8), 0, 5, 0]);
        let interface = [resolution, offset].concat();
        let enhanced = [words(big, &[0, 1, 2, length, length]), frame.clone()].concat();
        let simple = [words(big, &[length]), frame.clone()].concat();
        let parts: [&[u8]; 5] = [
            &block(big, 0x0a0d_0d0a, &section),
            &block(big, 1, &interface),
            &block(big, 6, &enhanced),
            &block(big, 3, &simple),
            &block(big, 2, &enhanced),
        ];
        corpus.add(&format!("pcapng-{order}"), &parts)?;
    }
    Ok(())
}

/// Writes frames with stamps.
pub fn write_stamps(corpus: &Corpus) -> std::io::Result<()> {
    let stamp = [0x51, 0x1c, 3, 9, 0, 0, 1, 2, 0, 0, 0, 5, 6, 7, 0, 0, 0, 8];
    let plain = || Builder::ethernet([2; 6], [4; 6]);
    let udp = plain().ipv4(1, 2).udp(3, 4).payload(&stamp).bytes();
    corpus.add("udp", &[&[0], &udp])?;
    let tagged = plain().vlan(5).ipv6([1; 16], [2; 16]).udp(3, 4);
    corpus.add("tagged", &[&[1], &tagged.payload(&stamp[..14]).bytes()])?;
    let tcp = plain().ipv4(1, 2).tcp(3, 4, 16).payload(&stamp[..6]);
    corpus.add("tcp", &[&[2], &tcp.bytes()])?;
    let inner = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &udp].concat();
    let vxlan = plain().ipv4(1, 2).udp(3, 4789).payload(&inner);
    corpus.add("vxlan", &[&[0], &vxlan.bytes()])?;
    let inner = [&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4], &udp[..]].concat();
    let geneve = plain().ipv4(1, 2).udp(3, 6081).payload(&inner);
    corpus.add("geneve", &[&[0], &geneve.bytes()])
}
