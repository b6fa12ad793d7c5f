//! Prepares outer headers once, and copies them in front of each packet.

use super::{
    Addresses, ETHERNET_BRIDGING, GBP_FLAGS, GENEVE_CRITICAL, GENEVE_OAM, GRE_CHECKSUM, GRE_KEY,
    GRE_SEQUENCE, GTPU_G_PDU, GTPU_SEQUENCE, GTPU_VERSION, GeneveOptions, IPV4, IPV6, Payload,
    TunnelFlags, TunnelInfo, TunnelKind, UDP_LEN, VXLAN_GBP, VXLAN_VNI, source_port, stt,
};
use crate::checksum::{self, Sum};
use crate::frame::{Frame, Gso, Offload};
use crate::parse::{ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TAG_LEN};
use crate::segment::MIN_TCP_SIZE;

/// Longest header without Geneve options: Ethernet, a tag, IPv6, TCP, STT.
const CAPACITY: usize = ETHERNET_LEN + TAG_LEN + IPV6_LEN + stt::TCP_LEN + stt::HEADER_LEN;

/// Ethernet's MTU, of links whose MTU is not known.
const USUAL_MTU: u16 = 1500;

/// Half of the longest header that [`Header::push_quick`] copies, in two overlapping parts.
const HALF: usize = 32;

/// Length of the usual header of VXLAN and Geneve: Ethernet without a tag, IPv4, UDP, and 8 bytes.
const USUAL: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN + 8;

/// Offset of SCTP's checksum, which is not an Internet checksum.
const SCTP_OFFSET: u16 = 8;

/// A VLAN tag of an outer header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// Its Ethertype: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority (3 bits), drop eligible (1) and VLAN (12).
    pub tci: u16,
}

/// What the outer headers of all packets to one remote endpoint have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderSpec {
    /// The tunnel's protocol.
    pub kind: TunnelKind,
    /// What is carried. Only GRE (not NVGRE) and GTP-U carry bare packets, and GTP-U nothing else.
    /// GRE headers contain the packet's type; GTP-U headers do not.
    pub payload: Payload,
    /// Outer Ethernet source.
    pub eth_src: [u8; 6],
    /// Outer Ethernet destination: the next hop.
    pub eth_dst: [u8; 6],
    /// Outer VLAN tag.
    pub vlan: Option<Vlan>,
    /// Outer addresses: IPv4 only for GRE, IPv6 only for GRE over IPv6.
    pub addresses: Addresses,
    /// Destination port of UDP or TCP (STT); ignored for kinds that are over neither.
    pub dst_port: u16,
    /// "Don't fragment"; ignored over IPv6.
    pub df: bool,
    /// Whether to compute a checksum of UDP or GRE. It is always computed for UDP over IPv6, where
    /// 0 would need an agreement (RFC 6935), and for GTP-U, as in Open vSwitch. NVGRE has none (RFC
    /// 7637 section 3.2); STT always has TCP's.
    pub checksum: bool,
    /// Whether a GRE header has a key. All other kinds always have one.
    pub key: bool,
    /// Whether a GRE header (RFC 2890) or a GTP-U header has a sequence number. Others have none.
    pub sequence: bool,
    /// The longest IP packet that the link takes, in bytes; 0 if unknown (1500). STT only: longer
    /// ones are left to be segmented to it.
    pub mtu: u16,
}

impl HeaderSpec {
    /// Returns Open vSwitch's defaults for this kind and these addresses: a tunnel with a key that
    /// carries Ethernet frames (GTP-U: IPv4) to the registered port, with "don't fragment" and
    /// without an optional checksum.
    pub fn new(kind: TunnelKind, addresses: Addresses) -> HeaderSpec {
        HeaderSpec {
            kind,
            payload: match kind {
                TunnelKind::Gtpu => Payload::Packet(IPV4),
                _ => Payload::Ethernet,
            },
            eth_src: [0; 6],
            eth_dst: [0; 6],
            vlan: None,
            addresses,
            dst_port: kind.usual_port().unwrap_or(0),
            df: true,
            checksum: false,
            key: true,
            sequence: false,
            mtu: USUAL_MTU,
        }
    }
}

/// Why there is no header for a specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// GRE over IPv6 addresses, or GRE-over-IPv6 over IPv4 addresses.
    #[error("the tunnel's protocol does not go over addresses of this family")]
    Addresses,
    /// The tunnel's protocol cannot carry this.
    #[error("the tunnel's protocol cannot carry this type of packet")]
    Payload,
    /// NVGRE or STT with a checksum or a sequence number, a kind other than GRE without a key, or a
    /// sequence number for a kind that has none.
    #[error("the tunnel's protocol has no header with these fields")]
    Fields,
}

/// Why no header was put in front of a frame. The frame is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum PushError {
    /// The frame is still to be segmented ([`crate::segment`]), and each segment needs its own
    /// outer header: segment it first. STT carries TCP's whole, where its header can say so.
    #[error("the frame must be segmented first")]
    Segment,
    /// No room in front of the frame.
    #[error("no room for the tunnel's header")]
    NoRoom,
    /// The outer packet would be longer than an IP packet can be, or the link takes none that STT
    /// could be segmented to.
    #[error("too long for the tunnel")]
    TooLong,
    /// The frame's partial checksum lies outside it, or more than 64 KiB from its start.
    #[error("the partial checksum lies outside the frame")]
    Checksum,
}

impl PushError {
    /// Every reason, in order.
    pub const ALL: [PushError; 4] = [
        PushError::Segment,
        PushError::NoRoom,
        PushError::TooLong,
        PushError::Checksum,
    ];

    /// Returns the name of its counter.
    pub fn name(self) -> &'static str {
        match self {
            PushError::Segment => "tunnel_push_segment",
            PushError::NoRoom => "tunnel_push_no_room",
            PushError::TooLong => "tunnel_push_too_long",
            PushError::Checksum => "tunnel_push_checksum",
        }
    }
}

/// The parts of a header that differ from packet to packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerPacket<'a> {
    /// The key; bits beyond the kind's width ([`TunnelKind::key_bits`]) are dropped.
    pub id: u64,
    /// Outer DSCP and ECN ([`super::outer_tos`]).
    pub tos: u8,
    /// Outer TTL or hop limit ([`super::outer_ttl`]).
    pub ttl: u8,
    /// A hash of the inner packet's flow ([`super::flow_hash`]), from which the source port and
    /// NVGRE's FlowID are derived.
    pub hash: u32,
    /// The sequence number, if the header has one; GTP-U uses its low 16 bits. For STT, a number
    /// that no other STT frame to the same address has that may still be on its way.
    pub sequence: u32,
    /// Identification of IPv4 packets that may be fragmented. It is 0 for others, as in Open
    /// vSwitch: there it has no meaning (RFC 6864 section 4.1).
    pub identification: u16,
    /// Whether this is a control packet; Geneve only.
    pub oam: bool,
    /// VXLAN Group Policy ID. If it and the flags are 0, the extension is left out.
    pub gbp_id: u16,
    /// VXLAN Group Policy flags: 0x40, do not learn; 0x08, policy applied; others are dropped.
    pub gbp_flags: u8,
    /// Options; Geneve only.
    pub options: GeneveOptions<'a>,
}

impl PerPacket<'static> {
    /// Converts `info`. The hash and the sequence number are 0, and there are no options.
    pub fn of(info: &TunnelInfo) -> PerPacket<'static> {
        PerPacket {
            id: info.id,
            tos: info.tos,
            ttl: info.ttl,
            oam: info.flags.contains(TunnelFlags::OAM),
            gbp_id: info.gbp_id,
            gbp_flags: info.gbp_flags,
            ..PerPacket::default()
        }
    }
}

/// A prepared outer header. Everything that differs from packet to packet is zero in it.
#[derive(Clone, Debug)]
pub struct Header {
    bytes: [u8; CAPACITY],
    len: u8,
    /// First byte of the IP header.
    l3: u8,
    /// First byte of the UDP or GRE header.
    l4: u8,
    kind: TunnelKind,
    ipv6: bool,
    /// Whether it says "don't fragment".
    df: bool,
    /// Offset of the UDP or GRE checksum; 0 without one.
    checksum_at: u8,
    /// Offset of the key; 0 without one.
    key_at: u8,
    /// Offset of the sequence number; 0 without one.
    sequence_at: u8,
    /// Bytes of STT in one segment, at most.
    segment: u16,
    /// Sum over the IPv4 header.
    ip_sum: u16,
    /// Sum over the pseudo header without the length; 0 for GRE, whose checksum includes none.
    pseudo_sum: u16,
    /// Whether [`Header::push_quick`] supports this header.
    quick: bool,
    /// Whether it is of VXLAN or Geneve, [`USUAL`] bytes long and without a checksum.
    usual: bool,
}

impl Header {
    /// Prepares a header.
    pub fn new(spec: &HeaderSpec) -> Result<Header, SpecError> {
        check(spec)?;
        let mut header = Header {
            bytes: [0; CAPACITY],
            len: 0,
            l3: 0,
            l4: 0,
            kind: spec.kind,
            ipv6: spec.addresses.is_ipv6(),
            df: spec.df,
            checksum_at: 0,
            key_at: 0,
            sequence_at: 0,
            segment: 0,
            ip_sum: 0,
            pseudo_sum: 0,
            quick: false,
            usual: false,
        };
        header.put_ethernet(spec);
        header.put_ip(spec);
        header.l4 = header.len;
        if spec.kind.is_udp() {
            header.put_udp(spec);
        }
        match spec.kind {
            TunnelKind::Vxlan { .. } => {
                header.put(&[VXLAN_VNI, 0, 0, 0]);
                header.key_at = header.put(&[0; 4]);
            }
            TunnelKind::Geneve => {
                let [high, low] = ETHERNET_BRIDGING.to_be_bytes();
                header.put(&[0, 0, high, low]);
                header.key_at = header.put(&[0; 4]);
            }
            TunnelKind::Gtpu => header.put_gtpu(spec),
            TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Nvgre => header.put_gre(spec),
            TunnelKind::Stt => header.put_stt(spec),
        }
        header.quick = !header.ipv6
            && header.df
            && header.sequence_at == 0
            && spec.kind != TunnelKind::Gtpu
            && (HALF..=2 * HALF).contains(&header.header_len());
        header.usual = header.quick
            && matches!(spec.kind, TunnelKind::Vxlan { .. } | TunnelKind::Geneve)
            && header.header_len() == USUAL
            && header.checksum_at == 0;
        Ok(header)
    }

    /// Returns the length of the header without Geneve options, in bytes.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        self.len.into()
    }

    /// Appends bytes and returns where they begin.
    fn put(&mut self, bytes: &[u8]) -> u8 {
        let from = self.len;
        let to = usize::from(from) + bytes.len();
        self.bytes[usize::from(from)..to].copy_from_slice(bytes);
        self.len = to as u8;
        from
    }

    fn put_ethernet(&mut self, spec: &HeaderSpec) {
        self.put(&spec.eth_dst);
        self.put(&spec.eth_src);
        if let Some(Vlan { tpid, tci }) = spec.vlan {
            self.put(&tpid.to_be_bytes());
            self.put(&tci.to_be_bytes());
        }
        let eth_type = if self.ipv6 { IPV6 } else { IPV4 };
        self.put(&eth_type.to_be_bytes());
        self.l3 = self.len;
    }

    /// Appends the IP header without DSCP, ECN, TTL, length and identification.
    fn put_ip(&mut self, spec: &HeaderSpec) {
        let protocol = spec.kind.ip_protocol();
        match spec.addresses {
            Addresses::V4 { src, dst } => {
                let fragment = if spec.df { 0x40 } else { 0 };
                self.put(&[0x45, 0, 0, 0, 0, 0, fragment, 0]);
                self.put(&[0, protocol, 0, 0]);
                self.put(&src.to_be_bytes());
                self.put(&dst.to_be_bytes());
                let mut sum = Sum::new();
                sum.add_bytes(&self.bytes[usize::from(self.l3)..usize::from(self.len)]);
                self.ip_sum = sum.fold();
            }
            Addresses::V6 { src, dst } => {
                self.put(&[6 << 4, 0, 0, 0, 0, 0, protocol, 0]);
                self.put(&src);
                self.put(&dst);
            }
        }
    }

    fn put_udp(&mut self, spec: &HeaderSpec) {
        let from = self.put(&[0; 2]);
        self.put(&spec.dst_port.to_be_bytes());
        self.put(&[0; 4]);
        if spec.checksum || self.ipv6 || spec.kind == TunnelKind::Gtpu {
            self.checksum_at = from + 6;
            self.put_pseudo_sum(spec);
        }
    }

    fn put_pseudo_sum(&mut self, spec: &HeaderSpec) {
        let protocol = spec.kind.ip_protocol();
        let mut sum = Sum::new();
        match spec.addresses {
            Addresses::V4 { src, dst } => {
                sum.add_pseudo_header(&src.to_be_bytes(), &dst.to_be_bytes(), protocol, 0);
            }
            Addresses::V6 { src, dst } => sum.add_pseudo_header(&src, &dst, protocol, 0),
        }
        self.pseudo_sum = sum.fold();
    }

    /// Appends TCP's and STT's headers: offset 5, ACK and PSH, the largest window.
    fn put_stt(&mut self, spec: &HeaderSpec) {
        self.put(&[0; 2]);
        self.put(&spec.dst_port.to_be_bytes());
        self.sequence_at = self.put(&[0; 4]);
        self.put(&[0; 4]);
        self.put(&[5 << 4, 0x18, 0xff, 0xff]);
        self.checksum_at = self.put(&[0; 4]);
        self.put(&[0; stt::HEADER_LEN]);
        self.put_pseudo_sum(spec);
        let headers = stt::TCP_LEN + if self.ipv6 { IPV6_LEN } else { IPV4_LEN };
        let mtu = if spec.mtu == 0 { USUAL_MTU } else { spec.mtu };
        self.segment = mtu.saturating_sub(headers as u16);
    }

    fn put_gtpu(&mut self, spec: &HeaderSpec) {
        let sequence = if spec.sequence { GTPU_SEQUENCE } else { 0 };
        self.put(&[GTPU_VERSION | sequence, GTPU_G_PDU, 0, 0]);
        self.key_at = self.put(&[0; 4]);
        if spec.sequence {
            // Sequence number, N-PDU number, type of the next extension header (none).
            self.sequence_at = self.put(&[0; 4]);
        }
    }

    fn put_gre(&mut self, spec: &HeaderSpec) {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let flags = flag(spec.checksum, GRE_CHECKSUM)
            | flag(spec.key, GRE_KEY)
            | flag(spec.sequence, GRE_SEQUENCE);
        let protocol = match spec.payload {
            Payload::Ethernet => ETHERNET_BRIDGING,
            Payload::Packet(eth_type) => eth_type,
        };
        self.put(&flags.to_be_bytes());
        self.put(&protocol.to_be_bytes());
        if spec.checksum {
            self.checksum_at = self.put(&[0; 4]);
        }
        if spec.key {
            self.key_at = self.put(&[0; 4]);
        }
        if spec.sequence {
            self.sequence_at = self.put(&[0; 4]);
        }
    }

    /// Puts the header in front of a frame. On an error the frame is unchanged.
    ///
    /// The frame must be what the tunnel carries: for bare packets, without its Ethernet header
    /// ([`super::strip_ethernet`]).
    ///
    /// An inner partial checksum stays partial, and `Offload::csum_start` moves with it. An outer
    /// checksum is computed as if the inner one were finished, which needs only what is known
    /// already (Linux calls this local checksum offload). An inner one that is not an Internet
    /// checksum (SCTP's), or at an odd offset, is finished first. `Offload::checksum_valid` is set
    /// if an outer checksum was computed, and else stays: a receiver applies it to the first
    /// checksum that it meets, the inner one.
    ///
    /// STT's header says what is left to do to the inner frame, so that its receiver has it left
    /// to do, and `Offload` is about the outer packet: its TCP checksum is partial, and it is to be
    /// segmented if it is longer than the MTU. A tag may move into STT's header.
    #[inline]
    pub fn push<F: Frame>(&self, frame: &mut F, packet: &PerPacket<'_>) -> Result<(), PushError> {
        if self.kind == TunnelKind::Stt {
            return self.push_stt(frame, packet);
        }
        let options = match self.kind {
            TunnelKind::Geneve => packet.options.bytes(),
            _ => &[],
        };
        let length = self.header_len() + options.len();
        let total = length + frame.len();
        let uncounted = usize::from(self.l3) + if self.ipv6 { IPV6_LEN } else { 0 };
        let ip_length = u16::try_from(total - uncounted).map_err(|_| PushError::TooLong)?;
        let offload = moved(frame, length)?;
        if !frame.push_front(length) {
            return Err(PushError::NoRoom);
        }
        let (header, rest) = frame.head_mut()[..length].split_at_mut(self.header_len());
        header.copy_from_slice(&self.bytes[..self.header_len()]);
        rest.copy_from_slice(options);
        let identification = if self.df { 0 } else { packet.identification };
        self.fill_ip(header, ip_length, packet.tos, packet.ttl, identification);
        // No longer than the IP packet.
        self.fill_tunnel(header, (total - usize::from(self.l4)) as u16, packet);
        frame.set_offload(offload);
        if self.checksum_at != 0 {
            self.fill_checksum(frame);
        }
        Ok(())
    }

    fn push_stt<F: Frame>(&self, frame: &mut F, packet: &PerPacket<'_>) -> Result<(), PushError> {
        let mut said = stt::Said::tag_of(frame);
        // The Ethernet addresses of a frame that loses its tag move by its length.
        let (length, tag) = (self.header_len(), said.tag_len());
        let total = length + frame.len() - tag;
        let uncounted = usize::from(self.l3) + if self.ipv6 { IPV6_LEN } else { 0 };
        let ip_length = u16::try_from(total - uncounted).map_err(|_| PushError::TooLong)?;
        // No longer than the IP packet.
        let tcp_length = (total - usize::from(self.l4)) as u16;
        let stt_length = tcp_length - stt::TCP_LEN as u16;
        let segments = stt_length > self.segment;
        if segments && self.segment < MIN_TCP_SIZE {
            return Err(PushError::TooLong);
        }
        if frame.headroom() < length - tag {
            return Err(PushError::NoRoom);
        }
        said.note_offload(frame)?;
        if !frame.push_front(length - tag) {
            return Err(PushError::NoRoom);
        }
        let head = frame.head_mut();
        if tag != 0 {
            let from = length - tag;
            head.copy_within(from..from + 2 * 6, length);
        }
        let header = &mut head[..length];
        header.copy_from_slice(&self.bytes[..length]);
        let identification = if self.df { 0 } else { packet.identification };
        self.fill_ip(header, ip_length, packet.tos, packet.ttl, identification);
        let tcp = &mut header[usize::from(self.l4)..];
        tcp[..2].copy_from_slice(&stt::source_port(packet.hash).to_be_bytes());
        // The length, and the offset 0.
        tcp[4..6].copy_from_slice(&stt_length.to_be_bytes());
        tcp[8..12].copy_from_slice(&packet.sequence.to_be_bytes());
        let mut sum = Sum::new();
        sum.add_u16(self.pseudo_sum);
        sum.add_u16(tcp_length);
        let checksum = usize::from(stt::TCP_CHECKSUM);
        tcp[checksum..checksum + 2].copy_from_slice(&sum.fold().to_be_bytes());
        tcp[stt::TCP_LEN..].copy_from_slice(&said.bytes(packet.id));
        let gso = match (segments, self.ipv6) {
            (false, _) => Gso::None,
            (true, false) => Gso::Tcp4,
            (true, true) => Gso::Tcp6,
        };
        frame.set_offload(Offload {
            partial_checksum: true,
            checksum_valid: false,
            csum_start: self.l4.into(),
            csum_offset: stt::TCP_CHECKSUM,
            gso,
            gso_size: if segments { self.segment } else { 0 },
        });
        Ok(())
    }

    /// Returns whether [`Header::push_quick`] supports this header, for most frames.
    #[inline(always)]
    pub fn is_quick(&self) -> bool {
        self.quick
    }

    /// Puts the header in front of a frame without offload work, and without policies and flags.
    /// Returns false, and changes nothing, if the header has uncommon fields (a sequence number),
    /// or there is no room: then use [`Header::push`].
    #[inline(always)]
    pub fn push_quick<F: Frame>(
        &self,
        frame: &mut F,
        id: u64,
        tos: u8,
        ttl: u8,
        hash: u32,
        options: GeneveOptions<'_>,
    ) -> bool {
        if self.usual {
            return self.push_usual(frame, id, tos, ttl, hash, options);
        }
        let behind = self.behind(options);
        let length = self.header_len() + behind.len();
        let total = length + frame.len();
        let ip_length = total - usize::from(self.l3);
        if !self.quick || ip_length > usize::from(u16::MAX) || !frame.push_front(length) {
            return false;
        }
        let Some(header) = frame.head_mut().get_mut(..length) else {
            return false; // cannot happen: the bytes were just added
        };
        let (header, rest) = header.split_at_mut(self.header_len());
        rest.copy_from_slice(behind);
        // Two overlapping copies of constant length.
        if let Some(first) = header.first_chunk_mut::<HALF>() {
            first.copy_from_slice(&self.bytes[..HALF]);
        }
        if let (Some(last), Some(from)) = (
            header.last_chunk_mut::<HALF>(),
            self.bytes[..self.header_len()].last_chunk::<HALF>(),
        ) {
            *last = *from;
        }
        self.fill_ip(header, ip_length as u16, tos, ttl, 0);
        let packet = PerPacket {
            id,
            hash,
            options,
            ..PerPacket::default()
        };
        self.fill_tunnel(header, (total - usize::from(self.l4)) as u16, &packet);
        if self.checksum_at != 0 {
            self.fill_checksum(frame);
        }
        true
    }

    /// [`Header::push_quick`] for headers whose fields are where most of VXLAN and Geneve are: no
    /// place needs to be looked up or checked.
    #[inline(always)]
    fn push_usual<F: Frame>(
        &self,
        frame: &mut F,
        id: u64,
        tos: u8,
        ttl: u8,
        hash: u32,
        options: GeneveOptions<'_>,
    ) -> bool {
        const IP: usize = ETHERNET_LEN;
        const UDP: usize = IP + IPV4_LEN;
        const TUNNEL: usize = UDP + UDP_LEN;
        let behind = self.behind(options);
        let length = frame.len() + USUAL + behind.len() - IP;
        if length > usize::from(u16::MAX) || !frame.push_front(USUAL + behind.len()) {
            return false;
        }
        let head = frame.head_mut().split_first_chunk_mut::<USUAL>();
        let (Some((header, rest)), Some(from)) = (head, self.bytes.first_chunk()) else {
            return false; // cannot happen: the bytes were just added
        };
        *header = *from;
        if !behind.is_empty() {
            rest[..behind.len()].copy_from_slice(behind);
            header[TUNNEL] = (behind.len() / 4) as u8;
            if options.has_critical() {
                header[TUNNEL + 1] |= GENEVE_CRITICAL;
            }
        }
        let sum = self.ip_sum_of(length as u16, tos, ttl).finish();
        header[IP + 1] = tos;
        header[IP + 2..IP + 4].copy_from_slice(&(length as u16).to_be_bytes());
        header[IP + 8] = ttl;
        header[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
        header[UDP..UDP + 2].copy_from_slice(&source_port(hash).to_be_bytes());
        let length = (length - IPV4_LEN) as u16;
        header[UDP + 4..UDP + 6].copy_from_slice(&length.to_be_bytes());
        header[TUNNEL + 4..].copy_from_slice(&((id as u32) << 8).to_be_bytes());
        true
    }

    /// Returns the options that follow this header.
    #[inline(always)]
    fn behind<'o>(&self, options: GeneveOptions<'o>) -> &'o [u8] {
        match self.kind {
            TunnelKind::Geneve => options.bytes(),
            _ => &[],
        }
    }

    /// Returns the sum over the IPv4 header with these fields, and without an identification.
    #[inline(always)]
    fn ip_sum_of(&self, length: u16, tos: u8, ttl: u8) -> Sum {
        let mut sum = Sum::new();
        sum.add_u16(self.ip_sum);
        sum.add_u16(tos.into());
        sum.add_u16(length);
        sum.add_u16(u16::from(ttl) << 8);
        sum
    }

    /// Writes length, DSCP, ECN, TTL and the IPv4 header's identification and checksum.
    #[inline(always)]
    fn fill_ip(&self, header: &mut [u8], length: u16, tos: u8, ttl: u8, identification: u16) {
        let ip = &mut header[usize::from(self.l3)..usize::from(self.l4)];
        let [high, low] = length.to_be_bytes();
        if self.ipv6 {
            ip[0] = 6 << 4 | tos >> 4;
            ip[1] = tos << 4;
            (ip[4], ip[5], ip[7]) = (high, low, ttl);
            return;
        }
        let mut sum = self.ip_sum_of(length, tos, ttl);
        if identification != 0 {
            sum.add_u16(identification);
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
        }
        (ip[1], ip[2], ip[3], ip[8]) = (tos, high, low, ttl);
        ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    }

    /// Writes what follows the IP header; `length` is its length, payload included. Checksums stay
    /// zero.
    #[inline(always)]
    fn fill_tunnel(&self, header: &mut [u8], length: u16, packet: &PerPacket<'_>) {
        let id = packet.id as u32;
        let key = match self.kind {
            TunnelKind::Vxlan { .. } | TunnelKind::Geneve => id << 8,
            TunnelKind::Nvgre => id << 8 | packet.hash & 0xff,
            TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Gtpu => id,
            TunnelKind::Stt => return, // has a way of its own
        };
        let key_at = usize::from(self.key_at);
        if key_at != 0 {
            header[key_at..key_at + 4].copy_from_slice(&key.to_be_bytes());
        }
        let sequence_at = usize::from(self.sequence_at);
        if sequence_at != 0 && self.kind != TunnelKind::Gtpu {
            header[sequence_at..sequence_at + 4].copy_from_slice(&packet.sequence.to_be_bytes());
        }
        if !self.kind.is_udp() {
            return;
        }
        let udp = &mut header[usize::from(self.l4)..];
        udp[..2].copy_from_slice(&source_port(packet.hash).to_be_bytes());
        udp[4..6].copy_from_slice(&length.to_be_bytes());
        let tunnel = &mut udp[UDP_LEN..];
        match self.kind {
            TunnelKind::Vxlan { gbp } => {
                let flags = packet.gbp_flags & GBP_FLAGS;
                if gbp && (packet.gbp_id != 0 || flags != 0) {
                    tunnel[0] |= VXLAN_GBP;
                    tunnel[1] = flags;
                    tunnel[2..4].copy_from_slice(&packet.gbp_id.to_be_bytes());
                }
            }
            TunnelKind::Geneve => {
                tunnel[0] = (packet.options.bytes().len() / 4) as u8;
                if packet.oam {
                    tunnel[1] |= GENEVE_OAM;
                }
                if packet.options.has_critical() {
                    tunnel[1] |= GENEVE_CRITICAL;
                }
            }
            TunnelKind::Gtpu => {
                // Bytes after the first 8 of its header (TS 29.281 section 5.1).
                let length = length - 2 * UDP_LEN as u16;
                tunnel[2..4].copy_from_slice(&length.to_be_bytes());
                if sequence_at != 0 {
                    let sequence = packet.sequence as u16;
                    tunnel[8..10].copy_from_slice(&sequence.to_be_bytes());
                }
            }
            TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Nvgre | TunnelKind::Stt => {}
        }
    }

    /// Computes the UDP or GRE checksum, over everything from that header on.
    fn fill_checksum<F: Frame>(&self, frame: &mut F) {
        let mut offload = frame.offload();
        // The shortcut below needs an inner Internet checksum that is an aligned word of its area.
        // A guest can ask for others.
        let is_internet =
            offload.csum_offset != SCTP_OFFSET && offload.csum_offset.is_multiple_of(2);
        if offload.partial_checksum && !is_internet {
            // Cannot fail: `moved` has checked it.
            checksum::finish_partial(frame);
            offload = frame.offload();
        }
        let (from, end) = (usize::from(self.l4), frame.len());
        let is_udp = self.kind.is_udp();
        let mut sum = Sum::new();
        if is_udp {
            sum.add_u16(self.pseudo_sum);
            sum.add_u16((end - from) as u16);
        }
        if offload.partial_checksum {
            let start = usize::from(offload.csum_start);
            sum.add_u16(checksum::frame_sum(frame, from, start));
            // All bytes from `start` on, with the finished checksum, sum up to 0xffff together with
            // the pseudo header, whose sum is in the checksum field now.
            let mut field = [0; 2];
            frame.read_at(start + usize::from(offload.csum_offset), &mut field);
            let rest = !u16::from_be_bytes(field);
            let is_odd = (start - from) % 2 == 1;
            sum.add_u16(if is_odd { rest.swap_bytes() } else { rest });
        } else {
            sum.add_u16(checksum::frame_sum(frame, from, end));
        }
        let checksum = match sum.finish() {
            // In UDP, 0 means "no checksum"; 0xffff is the same number in one's complement.
            0 if is_udp => 0xffff,
            checksum => checksum,
        };
        let at = usize::from(self.checksum_at);
        frame.head_mut()[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        offload.checksum_valid = true;
        frame.set_offload(offload);
    }
}

/// Returns the offload work of a frame after `by` bytes are put in front of it.
#[inline(always)]
fn moved<F: Frame>(frame: &F, by: usize) -> Result<Offload, PushError> {
    let mut offload = frame.offload();
    if offload.gso != Gso::None {
        return Err(PushError::Segment);
    }
    if offload.partial_checksum {
        let start = usize::from(offload.csum_start);
        let width = if offload.csum_offset == SCTP_OFFSET {
            4
        } else {
            2
        };
        if start + usize::from(offload.csum_offset) + width > frame.len() {
            return Err(PushError::Checksum);
        }
        offload.csum_start = u16::try_from(start + by).map_err(|_| PushError::Checksum)?;
    }
    Ok(offload)
}

fn check(spec: &HeaderSpec) -> Result<(), SpecError> {
    let kind = spec.kind;
    if !kind.allows(spec.addresses.is_ipv6()) {
        return Err(SpecError::Addresses);
    }
    let fits = match (kind, spec.payload) {
        (TunnelKind::Gre | TunnelKind::Ip6Gre, Payload::Packet(eth_type)) => {
            eth_type >= crate::parse::ETH_TYPE_MIN && eth_type != ETHERNET_BRIDGING
        }
        (TunnelKind::Gtpu, Payload::Packet(eth_type)) => matches!(eth_type, IPV4 | IPV6),
        (TunnelKind::Gtpu, Payload::Ethernet) => false,
        (_, payload) => payload == Payload::Ethernet,
    };
    if !fits {
        return Err(SpecError::Payload);
    }
    let fits = match kind {
        TunnelKind::Gre | TunnelKind::Ip6Gre => true,
        TunnelKind::Nvgre | TunnelKind::Stt => spec.key && !spec.checksum && !spec.sequence,
        TunnelKind::Gtpu => spec.key,
        TunnelKind::Vxlan { .. } | TunnelKind::Geneve => spec.key && !spec.sequence,
    };
    if fits { Ok(()) } else { Err(SpecError::Fields) }
}
