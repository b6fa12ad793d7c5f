//! Frames of every kind of tunnel, valid and invalid.

use crate::Corpus;
use packet::build::Builder;
use packet::tunnel::{
    Addresses, GeneveOptions, Header, HeaderSpec, Payload, PerPacket, TunnelKind, Vlan,
    strip_ethernet,
};
use packet::{Frame, HeapFrame};

const V4: Addresses = Addresses::V4 {
    src: 0x0a00_0001,
    dst: 0x0a00_0002,
};
const V6: Addresses = Addresses::V6 {
    src: [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    dst: [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
};
/// An option that the target's map has, and one of class 7 that it lacks.
const OPTIONS: [u8; 12] = [0xff, 0xff, 0x80, 1, 1, 2, 3, 4, 0, 7, 1, 0];

/// Returns the kind's number in an input.
fn number(kind: TunnelKind) -> u8 {
    let number = TunnelKind::ALL.iter().position(|one| *one == kind);
    number.unwrap_or(0) as u8
}

fn frame(spec: &HeaderSpec) -> Vec<u8> {
    let ethernet = Builder::ethernet([2; 6], [4; 6]);
    // Supports ECN, so that congestion can be propagated.
    let inner = ethernet.ipv4(1, 2).with_ipv4(|ip| ip.set_tos(2));
    let mut frame = inner.tcp(3, 4, 0x10).payload(b"data").frame();
    if spec.payload != Payload::Ethernet {
        strip_ethernet(&mut frame, 14);
    }
    let packet = PerPacket {
        id: 0x01_0203,
        tos: 3,
        ttl: 64,
        gbp_id: 7,
        gbp_flags: 0x48,
        options: GeneveOptions::new(&OPTIONS).unwrap_or_default(),
        ..PerPacket::default()
    };
    if let Ok(header) = Header::new(spec) {
        let _ = header.push(&mut frame, &packet);
    }
    // STT leaves the outer checksum to a device.
    packet::checksum::finish_partial(&mut frame);
    HeapFrame::to_vec(&frame)
}

pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    for kind in TunnelKind::ALL {
        let name = match kind {
            TunnelKind::Vxlan { gbp: true } => "vxlan-gbp",
            other => other.name(),
        };
        let add = |name: String, options: u8, bytes: &[u8]| {
            corpus.add(&name, &[&[number(kind), 60, options, 0, 0, 0], bytes])
        };
        for (family, addresses) in [("v4", V4), ("v6", V6)] {
            let plain = HeaderSpec::new(kind, addresses);
            if Header::new(&plain).is_err() {
                continue;
            }
            let bytes = frame(&plain);
            add(format!("{name}-{family}"), 1, &bytes)?;
            add(
                format!("{name}-{family}-short"),
                1,
                &bytes[..bytes.len() - 50],
            )?;
            let all = HeaderSpec {
                checksum: true,
                sequence: true,
                vlan: Some(Vlan {
                    tpid: 0x8100,
                    tci: 5,
                }),
                ..plain
            };
            let checked = HeaderSpec {
                sequence: false,
                ..all
            };
            let full = [all, checked]
                .into_iter()
                .find(|spec| Header::new(spec).is_ok());
            if let Some(full) = full {
                add(format!("{name}-{family}-full"), 1, &frame(&full))?;
            }
        }
    }
    // Linux's limit of nested tunnels in front of GRE.
    let mut bytes = frame(&HeaderSpec::new(TunnelKind::Ip6Gre, V6));
    bytes[20] = 60;
    bytes[19] += 8;
    bytes.splice(54..54, [47, 0, 4, 1, 4, 1, 0, 0]);
    let plan = [number(TunnelKind::Ip6Gre), 30, 0, 0, 0, 0];
    corpus.add("ip6gre-extension", &[&plan, &bytes])?;
    // A bare packet in GRE, and 5G's extension header in GTP-U, without a checksum.
    let bare = HeaderSpec {
        payload: Payload::Packet(0x0800),
        ..HeaderSpec::new(TunnelKind::Gre, V4)
    };
    let plan = [number(TunnelKind::Gre), 0, 1, 0, 0, 0];
    corpus.add("gre-bare", &[&plan, &frame(&bare)])?;
    let spec = HeaderSpec::new(TunnelKind::Gtpu, V4);
    let mut bytes = frame(&spec);
    bytes.splice(50..50, [0, 0, 0, 0x85, 1, 0x10, 9, 0]);
    for length in [17, 39, 45] {
        bytes[length] += 8;
    }
    bytes[40..43].copy_from_slice(&[0, 0, 0x34]);
    let plan = [number(TunnelKind::Gtpu), 44, 1, 0, 0, 0];
    corpus.add("gtpu-extension", &[&plan, &bytes])?;
    // Partial checksums: the outer one, and an inner one.
    for (name, start, offset) in [("partial-outer", 34, 6), ("partial-inner", 84, 16)] {
        let spec = HeaderSpec {
            checksum: true,
            ..HeaderSpec::new(TunnelKind::Vxlan { gbp: false }, V4)
        };
        let plan = [0, 70, 1 | 4, start, offset, 0];
        corpus.add(name, &[&plan, &frame(&spec)])?;
    }
    Ok(())
}
