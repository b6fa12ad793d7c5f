//! Makes frames from datapath flows, as Open vSwitch's `flow_compose` does: 64 bytes of payload
//! (counting upwards) behind TCP, UDP and ICMP, with right checksums.

use super::odp::{Flow, Fragment, Network};
use packet::checksum::{Sum, ipv4_header};

/// Bytes behind a transport header unless a length is requested.
const PAYLOAD: usize = 64;
/// TCP flags of segments that carry no payload: FIN, SYN, RST.
const EMPTY_SEGMENTS: u16 = 0x07;
/// ICMPv6 neighbour solicitation and advertisement.
const NEIGHBOUR: [u8; 2] = [135, 136];

/// Returns the frame of a flow, padded to `length` bytes if that is given. The error is Open
/// vSwitch's when the headers alone are longer.
pub(super) fn compose(flow: &Flow, length: Option<usize>) -> Result<Vec<u8>, String> {
    let headers = frame(flow, &[]);
    let carries = carries_payload(flow);
    match length {
        Some(length) if length < headers.len() => Err("too small packet len".into()),
        Some(length) => {
            let missing = vec![0; length - headers.len()];
            let mut frame = if carries {
                frame(flow, &missing)
            } else {
                headers
            };
            frame.resize(length, 0);
            Ok(frame)
        }
        None if carries => Ok(frame(
            flow,
            &(0..PAYLOAD).map(|byte| byte as u8).collect::<Vec<_>>(),
        )),
        None => Ok(headers),
    }
}

/// Returns the protocol of an IP packet and which fragment it is.
fn ip(flow: &Flow) -> Option<(u8, Fragment)> {
    match flow.network {
        Network::Ipv4 {
            protocol, fragment, ..
        }
        | Network::Ipv6 {
            protocol, fragment, ..
        } => Some((protocol, fragment)),
        _ => None,
    }
}

fn is_ipv6(flow: &Flow) -> bool {
    flow.eth_type == Some(0x86dd)
}

fn carries_payload(flow: &Flow) -> bool {
    match ip(flow) {
        Some((_, Fragment::Later)) | None => false,
        Some((6, _)) => flow.tcp_flags & EMPTY_SEGMENTS == 0,
        Some((17, _)) => true,
        Some((1, _)) => !is_ipv6(flow),
        Some((58, _)) => is_ipv6(flow) && !NEIGHBOUR.contains(&(flow.transport.src as u8)),
        _ => false,
    }
}

fn frame(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [flow.dst, flow.src].concat();
    for (tpid, tci) in &flow.tags {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend(tci.to_be_bytes());
    }
    // An 802.2 frame has its length here, in front of the LLC header.
    let eth_type = flow.eth_type.unwrap_or((bytes.len() + 2) as u16);
    bytes.extend(eth_type.to_be_bytes());
    match eth_type {
        0x0800 => bytes.extend(ipv4(flow, payload)),
        0x86dd => bytes.extend(ipv6(flow, payload)),
        0x0806 | 0x8035 => bytes.extend(arp(flow)),
        0x8847 | 0x8848 => {
            let entry = if let Network::Mpls(entry) = flow.network {
                entry
            } else {
                0
            };
            bytes.extend(entry.to_be_bytes());
        }
        _ => {}
    }
    bytes
}

fn ipv4(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let (src, dst, protocol, tos, ttl, fragment) = match flow.network {
        Network::Ipv4 {
            src,
            dst,
            protocol,
            tos,
            ttl,
            fragment,
        } => (src.octets(), dst.octets(), protocol, tos, ttl, fragment),
        _ => ([0; 4], [0; 4], 0, 0, 0, Fragment::No),
    };
    let inner = transport(flow, protocol, fragment, &src, &dst, payload);
    // A first fragment has the more-fragments bit; a later one begins at byte 800.
    let place: u16 = match fragment {
        Fragment::No => 0,
        Fragment::First => 0x2000,
        Fragment::Later => 0x2000 | 100,
    };
    let mut header = vec![0x45, tos];
    header.extend(((20 + inner.len()) as u16).to_be_bytes());
    header.extend([0, 0]);
    header.extend(place.to_be_bytes());
    header.extend([ttl, protocol, 0, 0]);
    header.extend(src);
    header.extend(dst);
    let checksum = ipv4_header(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header.extend(inner);
    header
}

fn ipv6(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let (src, dst, label, protocol, class, hop_limit, fragment) = match flow.network {
        Network::Ipv6 {
            src,
            dst,
            label,
            protocol,
            class,
            hop_limit,
            fragment,
        } => (
            src.octets(),
            dst.octets(),
            label,
            protocol,
            class,
            hop_limit,
            fragment,
        ),
        _ => ([0; 16], [0; 16], 0, 0, 0, 0, Fragment::No),
    };
    let mut inner = transport(flow, protocol, fragment, &src, &dst, payload);
    // Open vSwitch leaves the fragment header out; with it the packet matches its flow.
    let next = match fragment {
        Fragment::No => protocol,
        Fragment::First | Fragment::Later => {
            let place: u16 = if fragment == Fragment::First {
                1
            } else {
                100 << 3 | 1
            };
            let [high, low] = place.to_be_bytes();
            inner.splice(0..0, [protocol, 0, high, low, 0, 0, 0, 0]);
            44
        }
    };
    let mut header = (6 << 28 | u32::from(class) << 20 | label)
        .to_be_bytes()
        .to_vec();
    header.extend((inner.len() as u16).to_be_bytes());
    header.extend([next, hop_limit]);
    header.extend(src);
    header.extend(dst);
    header.extend(inner);
    header
}

fn arp(flow: &Flow) -> Vec<u8> {
    let mut bytes = vec![0, 1, 8, 0, 6, 4];
    if let Network::Arp {
        spa,
        tpa,
        operation,
        sha,
        tha,
    } = flow.network
    {
        bytes.extend(operation.to_be_bytes());
        bytes.extend(sha);
        bytes.extend(spa.octets());
        bytes.extend(tha);
        bytes.extend(tpa.octets());
    }
    bytes.resize(28, 0);
    bytes
}

/// Returns the transport header with its payload and checksum; nothing for protocols without one
/// and for later fragments.
fn transport(
    flow: &Flow,
    protocol: u8,
    fragment: Fragment,
    src: &[u8],
    dst: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    if fragment == Fragment::Later {
        return Vec::new();
    }
    let ports = [
        flow.transport.src.to_be_bytes(),
        flow.transport.dst.to_be_bytes(),
    ]
    .concat();
    let kind = [flow.transport.src as u8, flow.transport.dst as u8];
    let v6 = src.len() == 16;
    let (mut bytes, place) = match protocol {
        6 => {
            let offset_flags = (5 << 12 | flow.tcp_flags).to_be_bytes();
            ([&ports[..], &[0; 8], &offset_flags, &[0; 6]].concat(), 16)
        }
        17 => {
            let length = ((8 + payload.len()) as u16).to_be_bytes();
            ([&ports[..], &length, &[0; 2]].concat(), 6)
        }
        // SCTP without a checksum, as Open vSwitch makes it.
        132 => return [&ports[..], &[0; 8]].concat(),
        1 | 2 if !v6 => ([&kind[..], &[0; 6]].concat(), 2),
        58 if v6 => ([&kind[..], &[0; 6], &neighbour(flow)].concat(), 2),
        _ => return Vec::new(),
    };
    bytes.extend(payload);
    let mut sum = Sum::new();
    if !matches!(protocol, 1 | 2) {
        sum.add_pseudo_header(src, dst, protocol, bytes.len() as u32);
    }
    sum.add_bytes(&bytes);
    let checksum = match sum.finish() {
        0 if protocol == 17 => 0xffff,
        checksum => checksum,
    };
    bytes[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// Returns what follows a neighbour message's header: the target, and an option for each given
/// address.
fn neighbour(flow: &Flow) -> Vec<u8> {
    if !NEIGHBOUR.contains(&(flow.transport.src as u8)) || flow.transport.dst != 0 {
        return Vec::new();
    }
    let Some(neighbour) = flow.neighbour else {
        return vec![0; 16];
    };
    let mut bytes = neighbour.target.octets().to_vec();
    for (option, address) in [(1, neighbour.sll), (2, neighbour.tll)] {
        if address != [0; 6] || neighbour.with_options {
            bytes.extend([option, 1]);
            bytes.extend(address);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str, length: Option<usize>) -> Result<String, String> {
        let bytes = compose(&Flow::parse(text)?, length)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    const ADDRESSES: &str = "eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02)";
    const ETHERNET: &str = "505400000002505400000001";

    /// Compares with what Open vSwitch 3.1.0 put into its dummy port for the same flow.
    fn same(flow: &str, expected: &str) {
        let expected = format!("{ETHERNET}{}", expected.replace(' ', ""));
        assert_eq!(
            hex(&format!("{ADDRESSES},{flow}"), None),
            Ok(expected),
            "{flow}"
        );
    }

    #[test]
    fn frames_are_those_that_open_vswitch_makes() {
        let payload: String = (0..64).map(|byte| format!("{byte:02x}")).collect();
        let with = |header: &str| format!("{header}{payload}");
        same(
            "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=4,ttl=64,frag=no),udp(src=1,dst=2)",
            &with("0800 4504005c000000004011668b0a0000010a000002 0001000200480755"),
        );
        same(
            "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=6,tos=0,ttl=64,frag=no),tcp(src=1,dst=2),tcp_flags(ack)",
            &with(
                "0800 45000068000000004006668e0a0000010a000002 0001000200000000000000005010 0000b78b0000",
            ),
        );
        same(
            "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=1,tos=0,ttl=64,frag=no),icmp(type=8,code=0)",
            &with("0800 4500005c000000004001669f0a0000010a000002 080013fc00000000"),
        );
        same(
            "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=later)",
            "0800 450000140000206440114673 0a0000010a000002",
        );
        same(
            "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=132,tos=0,ttl=64,frag=no),sctp(src=8,dst=9)",
            "0800 450000200000000040846658 0a0000010a000002 000800090000000000000000",
        );
        same(
            "eth_type(0x0806),arp(sip=10.0.0.1,tip=10.0.0.2,op=1,sha=50:54:00:00:00:01,tha=00:00:00:00:00:00)",
            "0806 0001080006040001 5054000000010a000001 0000000000000a000002",
        );
        same(
            "eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=0,proto=58,tclass=0,hlimit=255,frag=no),icmpv6(type=135,code=0),\
             nd(target=fe80::2,sll=50:54:00:00:00:01,tll=00:00:00:00:00:00)",
            "86dd 6000000000203aff fe800000000000000000000000000001 fe800000000000000000000000000002 \
             87002bc700000000 fe800000000000000000000000000002 0101505400000001",
        );
        same(
            "eth_type(0x86dd),ipv6(src=fe80::1,dst=fe80::2,label=0,proto=6,tclass=0,hlimit=64,frag=no),tcp(src=1,dst=2),tcp_flags(syn|ack)",
            "86dd 6000000000140640 fe800000000000000000000000000001 fe800000000000000000000000000002 \
             00010002000000000000000050120000b2cb0000",
        );
        same(
            "eth_type(0x8100),vlan(vid=10,pcp=3),encap(eth_type(0x88cc))",
            "8100600a88cc",
        );
        same(
            "eth_type(0x8847),mpls(label=5,tc=1,ttl=64,bos=1)",
            "884700005340",
        );
        same("", "000e");
    }

    #[test]
    fn a_length_is_kept_and_one_that_is_too_short_refused() {
        let flow = format!(
            "{ADDRESSES},eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,ttl=64),udp(src=1,dst=2)"
        );
        let long = hex(&flow, Some(200)).unwrap();
        assert_eq!(long.len(), 400);
        assert_eq!(&long[32..36], "00ba", "IPv4 total length");
        assert_eq!(&long[76..80], "00a6", "UDP length");
        assert_eq!(hex(&flow, Some(20)), Err("too small packet len".into()));
    }
}
