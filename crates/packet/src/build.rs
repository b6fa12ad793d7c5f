//! Builds packets for tests layer by layer: `Builder::ethernet(a, b).vlan(7).ipv4(c, d).udp(1,
//! 2).payload(b"x").frame()`.
//!
//! Lengths, next-header numbers, Ethertypes and checksums are filled in at the end. To make an
//! invalid packet, change its bytes.

use crate::checksum::{self, Sum};
use crate::frame::{Frame, HeapFrame, Offload};
use crate::key::{FlowKey, at};
use crate::parse;
use crate::wire::{Arp, Icmp, Ipv4, Ipv6, Sctp, Tcp, Udp};

/// One layer.
#[derive(Clone, Debug)]
enum Layer {
    Vlan {
        tpid: u16,
        tci: u16,
    },
    Snap,
    Mpls(u32),
    Pbb {
        tci: u32,
        dst: [u8; 6],
        src: [u8; 6],
    },
    Arp(Vec<u8>),
    Ipv4(Vec<u8>),
    Ipv6(Vec<u8>),
    Extension {
        kind: u8,
        bytes: Vec<u8>,
    },
    Tcp(Vec<u8>),
    Udp(Vec<u8>),
    Sctp(Vec<u8>),
    Icmp(Vec<u8>),
    Icmpv6(Vec<u8>),
}

/// A packet being built.
#[derive(Clone, Debug)]
pub struct Builder {
    dst: [u8; 6],
    src: [u8; 6],
    eth_type: Option<u16>,
    layers: Vec<Layer>,
    payload: Vec<u8>,
    padding: usize,
    partial: bool,
}

impl Builder {
    /// Begins with an Ethernet header.
    pub fn ethernet(dst: [u8; 6], src: [u8; 6]) -> Builder {
        Builder {
            dst,
            src,
            eth_type: None,
            layers: Vec::new(),
            payload: Vec::new(),
            padding: 0,
            partial: false,
        }
    }

    /// Sets the Ethertype of what comes last, if no layer determines it.
    pub fn eth_type(mut self, eth_type: u16) -> Builder {
        self.eth_type = Some(eth_type);
        self
    }

    fn push(mut self, layer: Layer) -> Builder {
        self.layers.push(layer);
        self
    }

    /// Adds a tag with TPID 0x8100 and priority 0.
    pub fn vlan(self, vid: u16) -> Builder {
        self.tag(0x8100, vid)
    }

    /// Adds a tag.
    pub fn tag(self, tpid: u16, tci: u16) -> Builder {
        self.push(Layer::Vlan { tpid, tci })
    }

    /// Adds 802.2 LLC and SNAP headers, behind a length instead of an Ethertype.
    pub fn snap(self) -> Builder {
        self.push(Layer::Snap)
    }

    /// Adds an MPLS label stack entry, which includes the bottom-of-stack bit.
    pub fn mpls(self, entry: u32) -> Builder {
        self.push(Layer::Mpls(entry))
    }

    /// Adds a PBB service tag and the customer's addresses.
    pub fn pbb(self, tci: u32, dst: [u8; 6], src: [u8; 6]) -> Builder {
        self.push(Layer::Pbb { tci, dst, src })
    }

    /// Adds an ARP packet for Ethernet and IPv4.
    pub fn arp(self, operation: u16, sha: [u8; 6], spa: u32, tha: [u8; 6], tpa: u32) -> Builder {
        let mut arp = Arp::new_checked(vec![0; 28]).expect("28 bytes");
        arp.set_ethernet_ipv4();
        arp.set_operation(operation);
        arp.set_sha(sha);
        arp.set_spa(spa);
        arp.set_tha(tha);
        arp.set_tpa(tpa);
        self.push(Layer::Arp(arp.into_inner()))
    }

    /// Adds an IPv4 header with TTL 64.
    pub fn ipv4(self, src: u32, dst: u32) -> Builder {
        let mut header = Ipv4::new_checked(vec![0; 20]).expect("20 bytes");
        header.set_version_length(0x45);
        header.set_ttl(64);
        header.set_src(src);
        header.set_dst(dst);
        self.push(Layer::Ipv4(header.into_inner()))
    }

    /// Adds an IPv6 header with hop limit 64.
    pub fn ipv6(self, src: [u8; 16], dst: [u8; 16]) -> Builder {
        let mut header = Ipv6::new_checked(vec![0; 40]).expect("40 bytes");
        header.set_flow(6 << 28);
        header.set_hop_limit(64);
        header.set_src(src);
        header.set_dst(dst);
        self.push(Layer::Ipv6(header.into_inner()))
    }

    /// Changes the IPv4 header added last; options may change its length by a multiple of 4 bytes.
    pub fn with_ipv4(mut self, change: impl FnOnce(&mut Ipv4<Vec<u8>>)) -> Builder {
        if let Some(Layer::Ipv4(bytes)) = self.layers.last_mut() {
            let mut header = Ipv4::new_checked(std::mem::take(bytes)).expect("whole header");
            change(&mut header);
            *bytes = header.into_inner();
        }
        self
    }

    /// Changes the IPv6 header added last.
    pub fn with_ipv6(mut self, change: impl FnOnce(&mut Ipv6<Vec<u8>>)) -> Builder {
        if let Some(Layer::Ipv6(bytes)) = self.layers.last_mut() {
            let mut header = Ipv6::new_checked(std::mem::take(bytes)).expect("whole header");
            change(&mut header);
            *bytes = header.into_inner();
        }
        self
    }

    /// Sets the options of the IPv4 header added last, a multiple of 4 bytes up to 40.
    pub fn ipv4_options(mut self, options: &[u8]) -> Builder {
        if let Some(Layer::Ipv4(bytes)) = self.layers.last_mut() {
            bytes.truncate(20);
            bytes.extend_from_slice(options);
            bytes[0] = 0x40 | (bytes.len() / 4) as u8;
        }
        self
    }

    /// Adds an IPv6 extension header of this kind; `body` is what follows its next-header byte,
    /// including its length byte.
    pub fn extension(self, kind: u8, body: &[u8]) -> Builder {
        let mut bytes = vec![0];
        bytes.extend_from_slice(body);
        self.push(Layer::Extension { kind, bytes })
    }

    /// Adds an IPv6 fragment header; `offset_flags` as on the wire.
    pub fn fragment(self, offset_flags: u16) -> Builder {
        let [high, low] = offset_flags.to_be_bytes();
        self.extension(44, &[0, high, low, 0, 0, 0, 7])
    }

    /// Adds a TCP header without options.
    pub fn tcp(self, src: u16, dst: u16, flags: u16) -> Builder {
        self.tcp_with_options(src, dst, flags, &[])
    }

    /// Adds a TCP header with options, a multiple of 4 bytes up to 40.
    pub fn tcp_with_options(self, src: u16, dst: u16, flags: u16, options: &[u8]) -> Builder {
        let mut header = Tcp::new_checked(vec![0; 20]).expect("20 bytes");
        header.set_src(src);
        header.set_dst(dst);
        header.set_sequence(0xffff_fff0);
        header.set_window(0x1000);
        let words = 5 + options.len() as u16 / 4;
        header.set_offset_flags(words << 12 | flags & 0x0fff);
        let mut bytes = header.into_inner();
        bytes.extend_from_slice(options);
        self.push(Layer::Tcp(bytes))
    }

    /// Adds a UDP header.
    pub fn udp(self, src: u16, dst: u16) -> Builder {
        let mut header = Udp::new_checked(vec![0; 8]).expect("8 bytes");
        header.set_src(src);
        header.set_dst(dst);
        self.push(Layer::Udp(header.into_inner()))
    }

    /// Adds an SCTP common header.
    pub fn sctp(self, src: u16, dst: u16) -> Builder {
        let mut header = Sctp::new_checked(vec![0; 12]).expect("12 bytes");
        header.set_src(src);
        header.set_dst(dst);
        header.set_tag(0x0102_0304);
        self.push(Layer::Sctp(header.into_inner()))
    }

    /// Adds an ICMP message; `rest` is its second word.
    pub fn icmp(self, kind: u8, code: u8, rest: u32) -> Builder {
        self.push(Layer::Icmp(icmp(kind, code, rest)))
    }

    /// Adds an ICMPv6 message; `rest` is its second word.
    pub fn icmpv6(self, kind: u8, code: u8, rest: u32) -> Builder {
        self.push(Layer::Icmpv6(icmp(kind, code, rest)))
    }

    /// Adds a neighbour solicitation (135) or advertisement (136) with link-layer address options
    /// (1: source, 2: target).
    pub fn neighbour(self, kind: u8, target: [u8; 16], options: &[(u8, [u8; 6])]) -> Builder {
        let mut bytes = icmp(kind, 0, 0);
        bytes.extend_from_slice(&target);
        for (option, address) in options {
            bytes.extend_from_slice(&[*option, 1]);
            bytes.extend_from_slice(address);
        }
        self.push(Layer::Icmpv6(bytes))
    }

    /// Sets the payload of the innermost header.
    pub fn payload(mut self, payload: &[u8]) -> Builder {
        self.payload = payload.to_vec();
        self
    }

    /// Appends zero bytes behind the packet.
    pub fn padding(mut self, bytes: usize) -> Builder {
        self.padding = bytes;
        self
    }

    /// Leaves the pseudo header's sum in the TCP, UDP or ICMPv6 checksum field, like a sender whose
    /// device finishes it.
    pub fn partial_checksum(mut self) -> Builder {
        self.partial = true;
        self
    }

    /// Returns the frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut inner = self.payload.clone();
        // The type number by which the layer around `inner` names it.
        let mut eth_type = self.eth_type.unwrap_or(0xffff);
        let mut protocol = 59;
        for (index, layer) in self.layers.iter().enumerate().rev() {
            inner = match layer {
                Layer::Vlan { tpid, tci } => {
                    let mut bytes = tci.to_be_bytes().to_vec();
                    let next = self.type_or_length(index, eth_type, inner.len());
                    bytes.extend_from_slice(&next.to_be_bytes());
                    bytes.extend(inner);
                    eth_type = *tpid;
                    bytes
                }
                Layer::Snap => {
                    let mut bytes = vec![0xaa, 0xaa, 3, 0, 0, 0];
                    bytes.extend_from_slice(&eth_type.to_be_bytes());
                    bytes.extend(inner);
                    bytes
                }
                Layer::Mpls(entry) => {
                    let mut bytes = entry.to_be_bytes().to_vec();
                    bytes.extend(inner);
                    eth_type = 0x8847;
                    bytes
                }
                Layer::Pbb { tci, dst, src } => {
                    let mut bytes = tci.to_be_bytes().to_vec();
                    bytes.extend([*dst, *src].concat());
                    bytes.extend_from_slice(&eth_type.to_be_bytes());
                    bytes.extend(inner);
                    eth_type = 0x88e7;
                    bytes
                }
                Layer::Arp(bytes) => {
                    eth_type = 0x0806;
                    [bytes.clone(), inner].concat()
                }
                Layer::Ipv4(bytes) => {
                    eth_type = 0x0800;
                    ipv4(bytes, protocol, inner)
                }
                Layer::Ipv6(bytes) => {
                    eth_type = 0x86dd;
                    ipv6(bytes, protocol, inner)
                }
                Layer::Extension { kind, bytes } => {
                    let mut bytes = bytes.clone();
                    bytes[0] = protocol;
                    bytes.extend(inner);
                    protocol = *kind;
                    bytes
                }
                transport => {
                    let (bytes, number) = self.transport(transport, index, inner);
                    protocol = number;
                    bytes
                }
            };
        }
        let mut bytes = [self.dst, self.src].concat();
        let next = self.type_or_length(usize::MAX, eth_type, inner.len());
        bytes.extend_from_slice(&next.to_be_bytes());
        bytes.extend(inner);
        bytes.resize(bytes.len() + self.padding, 0);
        bytes
    }

    /// Returns the frame on the heap, with the offload flags that a partial checksum needs.
    pub fn frame(&self) -> HeapFrame {
        let mut frame = HeapFrame::new(&self.bytes());
        let mut key = FlowKey::ZERO;
        let layers = parse::innermost(&mut frame, &mut key);
        let csum_offset = match key.u8(at::IP_PROTO) {
            6 => 16,
            17 => 6,
            58 => 2,
            _ => return frame,
        };
        if self.partial && layers.transport {
            frame.set_offload(Offload {
                partial_checksum: true,
                csum_start: layers.l4,
                csum_offset,
                ..Offload::default()
            });
        }
        frame
    }

    /// Returns the Ethertype, or the length if an LLC header follows. `index` is the layer that
    /// asks, `usize::MAX` for the Ethernet header.
    fn type_or_length(&self, index: usize, eth_type: u16, length: usize) -> u16 {
        match self.layers.get(index.wrapping_add(1)) {
            Some(Layer::Snap) => length as u16,
            _ => eth_type,
        }
    }

    /// Returns a transport header with length, checksum and payload, and its protocol number.
    fn transport(&self, layer: &Layer, index: usize, payload: Vec<u8>) -> (Vec<u8>, u8) {
        let (header, protocol, place) = match layer {
            Layer::Tcp(header) => (header, 6, 16),
            Layer::Udp(header) => (header, 17, 6),
            Layer::Icmpv6(header) => (header, 58, 2),
            Layer::Icmp(header) => (header, 1, 2),
            Layer::Sctp(header) => (header, 132, 8),
            _ => unreachable!("only transport layers come here"),
        };
        let mut bytes = [&header[..], &payload[..]].concat();
        if protocol == 17 {
            let length = (bytes.len() as u16).to_be_bytes();
            bytes[4..6].copy_from_slice(&length);
        }
        if protocol == 132 {
            let crc = checksum::sctp(&HeapFrame::new(&bytes), 0, bytes.len());
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            return (bytes, protocol);
        }
        let mut sum = Sum::new();
        if protocol != 1 {
            let (src, dst) = self.addresses_outside(index);
            sum.add_pseudo_header(&src, &dst, protocol, bytes.len() as u32);
        }
        let checksum = if self.partial && protocol != 1 {
            sum.fold()
        } else {
            sum.add_bytes(&bytes);
            match sum.finish() {
                0 if protocol == 17 => 0xffff,
                checksum => checksum,
            }
        };
        bytes[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
        (bytes, protocol)
    }

    /// Returns the addresses of the IP header around layer `index`.
    fn addresses_outside(&self, index: usize) -> (Vec<u8>, Vec<u8>) {
        for layer in self.layers[..index].iter().rev() {
            match layer {
                Layer::Ipv4(header) => return (header[12..16].to_vec(), header[16..20].to_vec()),
                Layer::Ipv6(header) => return (header[8..24].to_vec(), header[24..40].to_vec()),
                _ => {}
            }
        }
        Default::default()
    }
}

fn icmp(kind: u8, code: u8, rest: u32) -> Vec<u8> {
    let mut header = Icmp::new_checked(vec![0; 8]).expect("8 bytes");
    header.set_kind(kind);
    header.set_code(code);
    header.set_rest(rest);
    header.into_inner()
}

fn ipv4(header: &[u8], protocol: u8, payload: Vec<u8>) -> Vec<u8> {
    let length = (header.len() + payload.len()) as u16;
    let mut header = Ipv4::new_checked(header.to_vec()).expect("whole header");
    header.set_total_length(length);
    header.set_protocol(protocol);
    header.fill_checksum();
    [header.into_inner(), payload].concat()
}

fn ipv6(header: &[u8], next: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut header = Ipv6::new_checked(header.to_vec()).expect("whole header");
    header.set_payload_length(payload.len() as u16);
    header.set_next_header(next);
    [header.into_inner(), payload].concat()
}
