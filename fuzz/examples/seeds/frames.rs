//! Frames with every kind of header, valid and invalid, with edits of every kind.

use crate::Corpus;
use packet::build::Builder;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SRC: u32 = 0x0a00_0001;
const DST: u32 = 0x0a00_0002;
const SRC6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const DST6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// Valid frames with names.
pub fn sound() -> Vec<(&'static str, Vec<u8>)> {
    let ethernet = || Builder::ethernet(A, B);
    let ipv4 = || ethernet().ipv4(SRC, DST);
    let ipv6 = || ethernet().ipv6(SRC6, DST6);
    let frames = [
        ("ethernet", ethernet().eth_type(0x88cc).payload(b"lldp")),
        (
            "llc",
            ethernet()
                .eth_type(20)
                .payload(&[0x42, 0x42, 3, 0, 0, 0, 0, 0]),
        ),
        ("snap", ethernet().snap().ipv4(SRC, DST).udp(1, 2)),
        ("arp", ethernet().arp(1, A, SRC, [0; 6], DST).padding(18)),
        ("rarp", ethernet().arp(3, A, SRC, A, 0).eth_type(0x8035)),
        ("udp", ipv4().udp(53, 4000).payload(b"query")),
        (
            "tcp",
            ipv4()
                .tcp(80, 4000, 0x18)
                .payload(b"GET / HTTP/1.0\r\n\r\n"),
        ),
        (
            "tcp-options",
            ipv4().tcp_with_options(80, 4000, 2, &[2, 4, 5, 0xb4, 4, 2, 1, 1]),
        ),
        ("sctp", ipv4().sctp(9, 10).payload(&[1; 20])),
        ("icmp", ipv4().icmp(8, 0, 0x0007_0001).payload(b"abcdefgh")),
        (
            "igmp",
            ipv4()
                .with_ipv4(|ip| ip.set_protocol(2))
                .payload(&[0x11, 0, 0xee, 0xff, 0, 0, 0, 0]),
        ),
        (
            "gre",
            ipv4().with_ipv4(|ip| ip.set_protocol(47)).payload(&[0; 12]),
        ),
        (
            "ipv4-options",
            ipv4().ipv4_options(&[7, 7, 4, 0, 0, 0, 0, 0]).udp(1, 2),
        ),
        (
            "ipv4-first-fragment",
            ipv4()
                .with_ipv4(|ip| ip.set_fragment(0x2000))
                .udp(1, 2)
                .payload(&[9; 16]),
        ),
        (
            "ipv4-later-fragment",
            ipv4()
                .with_ipv4(|ip| ip.set_fragment(0x00b9))
                .udp(1, 2)
                .payload(&[9; 16]),
        ),
        ("ipv4-padding", ipv4().udp(1, 2).padding(18)),
        ("ipv6-udp", ipv6().udp(53, 4000).payload(b"query")),
        ("ipv6-tcp", ipv6().tcp(80, 4000, 0x10).payload(&[5; 40])),
        ("ipv6-sctp", ipv6().sctp(9, 10).payload(&[1; 16])),
        (
            "ipv6-ping",
            ipv6().icmpv6(128, 0, 0x0007_0001).payload(b"abcdefgh"),
        ),
        ("solicitation", ipv6().neighbour(135, DST6, &[(1, A)])),
        ("advertisement", ipv6().neighbour(136, DST6, &[(2, B)])),
        (
            "two-addresses",
            ipv6().neighbour(136, DST6, &[(2, B), (2, A)]),
        ),
        (
            "hop-by-hop",
            ipv6().extension(0, &[0, 5, 2, 0, 0, 1, 0]).udp(1, 2),
        ),
        (
            "routing",
            ipv6().extension(43, &[0, 4, 1, 0, 0, 0, 0]).tcp(1, 2, 0),
        ),
        (
            "authentication",
            ipv6()
                .extension(51, &[2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 7, 7, 7, 7])
                .udp(1, 2),
        ),
        (
            "destination-options",
            ipv6()
                .extension(60, &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
                .udp(1, 2),
        ),
        (
            "all-extensions",
            ipv6()
                .extension(0, &[0, 5, 2, 0, 0, 1, 0])
                .extension(60, &[0, 1, 4, 0, 0, 0, 0])
                .extension(43, &[0, 4, 0, 0, 0, 0, 0])
                .fragment(1)
                .udp(1, 2),
        ),
        (
            "ipv6-first-fragment",
            ipv6().fragment(1).udp(1, 2).payload(&[9; 16]),
        ),
        (
            "ipv6-later-fragment",
            ipv6().fragment(0x00b9).udp(1, 2).payload(&[9; 16]),
        ),
        (
            "no-next-header",
            ipv6().extension(60, &[0, 1, 4, 0, 0, 0, 0]),
        ),
        ("vlan", ethernet().vlan(7).ipv4(SRC, DST).udp(1, 2)),
        (
            "vlan-priority",
            ethernet().tag(0x8100, 0xe00a).ipv6(SRC6, DST6).tcp(1, 2, 2),
        ),
        (
            "service-tag",
            ethernet()
                .tag(0x88a8, 100)
                .tag(0x8100, 7)
                .ipv4(SRC, DST)
                .icmp(0, 0, 1),
        ),
        (
            "three-tags",
            ethernet()
                .tag(0x88a8, 100)
                .tag(0x8100, 7)
                .vlan(8)
                .ipv4(SRC, DST)
                .udp(1, 2),
        ),
        ("vlan-arp", ethernet().vlan(7).arp(2, A, SRC, B, DST)),
        (
            "mpls",
            ethernet().mpls(0x0001_0140).ipv4(SRC, DST).udp(1, 2),
        ),
        (
            "mpls-stack",
            ethernet()
                .mpls(0x0001_0040)
                .mpls(0x0002_0040)
                .mpls(0x0003_0040)
                .mpls(0x0004_0140)
                .ipv4(SRC, DST)
                .udp(1, 2),
        ),
    ];
    frames
        .into_iter()
        .map(|(name, frame)| (name, frame.bytes()))
        .collect()
}

/// Frames whose length fields contradict each other.
fn lying() -> Vec<(&'static str, Vec<u8>)> {
    let udp = Builder::ethernet(A, B)
        .ipv4(SRC, DST)
        .udp(1, 2)
        .payload(b"abcdefgh")
        .bytes();
    let tcp6 = Builder::ethernet(A, B)
        .ipv6(SRC6, DST6)
        .tcp(1, 2, 2)
        .bytes();
    let changed = |bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        bytes
    };
    vec![
        ("empty", Vec::new()),
        ("one-byte", vec![0xff]),
        ("half-ethernet", udp[..13].to_vec()),
        (
            "half-tag",
            Builder::ethernet(A, B).vlan(7).bytes()[..16].to_vec(),
        ),
        (
            "half-label",
            Builder::ethernet(A, B).mpls(0x0001_0040).bytes(),
        ),
        (
            "half-arp",
            Builder::ethernet(A, B).arp(1, A, SRC, B, DST).bytes()[..41].to_vec(),
        ),
        ("half-ipv4", udp[..33].to_vec()),
        ("half-udp", udp[..41].to_vec()),
        ("half-ipv6", tcp6[..53].to_vec()),
        ("header-length-0", changed(&udp, 14, 0x40)),
        ("header-length-60", changed(&udp, 14, 0x4f)),
        ("total-length-long", changed(&udp, 16, 0xff)),
        ("total-length-short", changed(&udp, 17, 19)),
        ("payload-length-long", changed(&tcp6, 18, 0xff)),
        ("data-offset-0", changed(&tcp6, 66, 0)),
        ("data-offset-60", changed(&tcp6, 66, 0xf0)),
        (
            "extension-beyond",
            Builder::ethernet(A, B)
                .ipv6(SRC6, DST6)
                .extension(0, &[200, 0, 0, 0, 0, 0, 0])
                .udp(1, 2)
                .bytes(),
        ),
        ("udp-length-0", changed(&changed(&udp, 38, 0), 39, 0)),
    ]
}

pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    // One special edit, then fields, whole and masked, in sequence over all seeds.
    let mut kind = 0_u8;
    let mut step = || {
        kind = kind.wrapping_add(1);
        [kind, kind.wrapping_mul(37)]
    };
    let kinds = sound()
        .into_iter()
        .map(|named| (named, true))
        .chain(lying().into_iter().map(|named| (named, false)));
    for (number, ((name, bytes), right)) in (0_u8..).zip(kinds) {
        let segmentation = match name {
            "tcp" | "tcp-options" => 1,
            "ipv6-tcp" => 2,
            "udp" | "ipv6-udp" => 3,
            _ => 0,
        };
        let steps: Vec<u8> =
            [[number % 5, number], step(), step(), [1, 0], step(), step()].concat();
        let options = number & 1 | u8::from(right) << 1;
        corpus.add(
            name,
            &[
                &[number * 3 % 80, 0, options, segmentation, 0, 7],
                &steps,
                &bytes,
            ],
        )?;
    }
    Ok(())
}
