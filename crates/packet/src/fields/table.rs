//! The rows of the table of match fields: each field's place, prerequisite and numbers. By default
//! a field is not maskable, writable and without prerequisite.

use super::{Field, FieldDef, Maskable, ONF, Prerequisite};
use crate::key::at;
use crate::options;

/// OXM classes (OpenFlow 1.5.1 section 7.2.3.3) and the older NXM "vendors".
mod class {
    pub const NXM_OF: u32 = 0x0000;
    pub const NXM_NX: u32 = 0x0001;
    pub const ERICSSON: u32 = 0x1000;
    pub const OPENFLOW: u32 = 0x8000;
    pub const PACKET_REGISTERS: u32 = 0x8001;
    pub const EXPERIMENTER: u32 = 0xffff;
}

/// Wire numbers of OpenFlow versions.
const V12: u8 = 3;
const V13: u8 = 4;
const V14: u8 = 5;
const V15: u8 = 6;

/// Returns a row for a field of `bits` bits in `bytes` bytes of the key from `offset`, with the
/// same bytes on the wire.
const fn row(
    field: Field,
    name: &'static str,
    alias: &'static str,
    offset: usize,
    bytes: usize,
    bits: usize,
) -> FieldDef {
    FieldDef {
        field,
        name,
        alias,
        bits,
        action_bits: bits,
        offset,
        bytes,
        wire_bytes: bytes,
        shift: 0,
        wire_shift: 0,
        maskable: Maskable::No,
        prerequisite: Prerequisite::None,
        writable: true,
        nxm: 0,
        oxm: 0,
        since: 0,
        oxm_experimenter_header: 0,
        oxm_experimenter: 0,
    }
}

/// Setters for what differs from the defaults. Set the form first: the numbers contain the wire's
/// length.
impl FieldDef {
    const fn shifted(mut self, shift: usize) -> FieldDef {
        self.shift = shift;
        self
    }

    const fn wire(mut self, bytes: usize) -> FieldDef {
        self.wire_bytes = bytes;
        self
    }

    const fn action_bits(mut self, bits: usize) -> FieldDef {
        self.action_bits = bits;
        self
    }

    const fn masked(mut self) -> FieldDef {
        self.maskable = Maskable::Bitwise;
        self
    }

    const fn read_only(mut self) -> FieldDef {
        self.writable = false;
        self
    }

    const fn needs(mut self, prerequisite: Prerequisite) -> FieldDef {
        self.prerequisite = prerequisite;
        self
    }

    const fn header_of(&self, class: u32, number: u32) -> u32 {
        class << 16 | number << 9 | self.wire_bytes as u32
    }

    const fn nxm_of(mut self, number: u32) -> FieldDef {
        self.nxm = self.header_of(class::NXM_OF, number);
        self
    }

    const fn nxm_nx(mut self, number: u32) -> FieldDef {
        self.nxm = self.header_of(class::NXM_NX, number);
        self
    }

    const fn ericsson(mut self, number: u32) -> FieldDef {
        self.nxm = self.header_of(class::ERICSSON, number);
        self
    }

    const fn oxm(mut self, number: u32, since: u8) -> FieldDef {
        self.oxm = self.header_of(class::OPENFLOW, number);
        self.since = since;
        self
    }

    const fn packet_register(mut self, number: u32) -> FieldDef {
        self.oxm = self.header_of(class::PACKET_REGISTERS, number);
        self.since = V13;
        self
    }

    const fn onf(mut self, number: u32) -> FieldDef {
        self.oxm_experimenter_header = self.header_of(class::EXPERIMENTER, number) + 4;
        self.oxm_experimenter = ONF;
        self
    }
}

const fn register(field: Field, name: &'static str, number: usize) -> FieldDef {
    row(field, name, "", at::REG0 + 4 * number, 4, 32)
        .masked()
        .nxm_nx(number as u32)
}

const fn wide_register(field: Field, name: &'static str, number: usize) -> FieldDef {
    row(field, name, "", at::REG0 + 8 * number, 8, 64)
        .masked()
        .packet_register(number as u32)
}

const fn widest_register(field: Field, name: &'static str, number: usize) -> FieldDef {
    row(field, name, "", at::REG0 + 16 * number, 16, 128)
        .masked()
        .nxm_nx(111 + number as u32)
}

/// Returns the row of a tunnel option. Each bridge defines its length; here it is the longest
/// possible, so the first places begin before the bytes for options: nothing may be written there.
const fn tunnel_option(field: Field, name: &'static str, number: usize) -> FieldDef {
    let bytes = options::LONGEST;
    row(
        field,
        name,
        "",
        options::end(number) - bytes,
        bytes,
        bytes * 8,
    )
    .masked()
    .nxm_nx(40 + number as u32)
}

/// The table, in the order of [`Field`].
pub static FIELDS: &[FieldDef] = &{
    use Field::*;
    use Prerequisite as P;
    [
        // The key keeps 32 bits; NXM, OpenFlow 1.0 and actions see 16, in which the reserved ports
        // are 0xff00 and above.
        row(InPort, "in_port", "", at::IN_PORT, 4, 32)
            .wire(2)
            .action_bits(16)
            .nxm_of(0),
        row(InPortOxm, "in_port_oxm", "", at::IN_PORT, 4, 32).oxm(0, V12),
        // Sluice has no ports on top of ports, so it equals `in_port`.
        row(InPhyPort, "in_phy_port", "", at::IN_PORT, 4, 32)
            .read_only()
            .oxm(1, V12),
        row(Metadata, "metadata", "", at::METADATA, 8, 64)
            .masked()
            .oxm(2, V12),
        row(TunId, "tun_id", "tunnel_id", at::TUN_ID, 8, 64)
            .masked()
            .nxm_nx(16)
            .oxm(38, V13),
        row(TunSrc, "tun_src", "", at::TUN_SRC, 4, 32)
            .masked()
            .nxm_nx(31),
        row(TunDst, "tun_dst", "", at::TUN_DST, 4, 32)
            .masked()
            .nxm_nx(32),
        row(TunIpv6Src, "tun_ipv6_src", "", at::TUN_IPV6_SRC, 16, 128)
            .masked()
            .nxm_nx(109),
        row(TunIpv6Dst, "tun_ipv6_dst", "", at::TUN_IPV6_DST, 16, 128)
            .masked()
            .nxm_nx(110),
        row(TunFlags, "tun_flags", "", at::TUN_FLAGS, 2, 1)
            .masked()
            .nxm_nx(104),
        row(TunGbpId, "tun_gbp_id", "", at::TUN_GBP_ID, 2, 16)
            .masked()
            .nxm_nx(38),
        row(TunGbpFlags, "tun_gbp_flags", "", at::TUN_GBP_FLAGS, 1, 8)
            .masked()
            .nxm_nx(39),
        row(TunTos, "tun_tos", "", at::TUN_TOS, 1, 8).read_only(),
        row(TunTtl, "tun_ttl", "", at::TUN_TTL, 1, 8).read_only(),
        row(PktMark, "pkt_mark", "", at::PKT_MARK, 4, 32)
            .masked()
            .nxm_nx(33),
        row(CtState, "ct_state", "", at::CT_STATE, 4, 32)
            .masked()
            .read_only()
            .nxm_nx(105),
        row(CtZone, "ct_zone", "", at::CT_ZONE, 2, 16)
            .read_only()
            .nxm_nx(106),
        row(CtMark, "ct_mark", "", at::CT_MARK, 4, 32)
            .masked()
            .nxm_nx(107),
        row(CtLabel, "ct_label", "", at::CT_LABEL, 16, 128)
            .masked()
            .nxm_nx(108),
        row(CtNwProto, "ct_nw_proto", "", at::CT_NW_PROTO, 1, 8)
            .read_only()
            .needs(P::Tracked)
            .nxm_nx(119),
        row(CtNwSrc, "ct_nw_src", "", at::CT_NW_SRC, 4, 32)
            .masked()
            .read_only()
            .needs(P::Tracked)
            .nxm_nx(120),
        row(CtNwDst, "ct_nw_dst", "", at::CT_NW_DST, 4, 32)
            .masked()
            .read_only()
            .needs(P::Tracked)
            .nxm_nx(121),
        row(CtIpv6Src, "ct_ipv6_src", "", at::CT_IPV6_SRC, 16, 128)
            .masked()
            .read_only()
            .needs(P::Tracked)
            .nxm_nx(122),
        row(CtIpv6Dst, "ct_ipv6_dst", "", at::CT_IPV6_DST, 16, 128)
            .masked()
            .read_only()
            .needs(P::Tracked)
            .nxm_nx(123),
        row(CtTpSrc, "ct_tp_src", "", at::CT_TP_SRC, 2, 16)
            .masked()
            .read_only()
            .needs(P::Tracked)
            .nxm_nx(124),
        row(CtTpDst, "ct_tp_dst", "", at::CT_TP_DST, 2, 16)
            .masked()
            .read_only()
            .needs(P::Tracked)
            .nxm_nx(125),
        row(DpHash, "dp_hash", "", at::DP_HASH, 4, 32)
            .masked()
            .read_only()
            .nxm_nx(35),
        row(RecircId, "recirc_id", "", at::RECIRC_ID, 4, 32)
            .read_only()
            .nxm_nx(36),
        row(ConjId, "conj_id", "", at::CONJ_ID, 4, 32)
            .read_only()
            .nxm_nx(37),
        row(PacketType, "packet_type", "", at::PACKET_TYPE, 4, 32)
            .read_only()
            .oxm(44, V15),
        row(ActsetOutput, "actset_output", "", at::ACTSET_OUTPUT, 4, 32)
            .read_only()
            .oxm(43, V15)
            .onf(43),
        row(SkbPriority, "skb_priority", "", at::SKB_PRIORITY, 4, 32).read_only(),
        // Written by `set_fcf`; it has no number, so only that action can name it.
        row(Fcf, "fcf", "", at::FCF, 2, 16),
        register(Reg0, "reg0", 0),
        register(Reg1, "reg1", 1),
        register(Reg2, "reg2", 2),
        register(Reg3, "reg3", 3),
        register(Reg4, "reg4", 4),
        register(Reg5, "reg5", 5),
        register(Reg6, "reg6", 6),
        register(Reg7, "reg7", 7),
        register(Reg8, "reg8", 8),
        register(Reg9, "reg9", 9),
        register(Reg10, "reg10", 10),
        register(Reg11, "reg11", 11),
        register(Reg12, "reg12", 12),
        register(Reg13, "reg13", 13),
        register(Reg14, "reg14", 14),
        register(Reg15, "reg15", 15),
        wide_register(Xreg0, "xreg0", 0),
        wide_register(Xreg1, "xreg1", 1),
        wide_register(Xreg2, "xreg2", 2),
        wide_register(Xreg3, "xreg3", 3),
        wide_register(Xreg4, "xreg4", 4),
        wide_register(Xreg5, "xreg5", 5),
        wide_register(Xreg6, "xreg6", 6),
        wide_register(Xreg7, "xreg7", 7),
        widest_register(Xxreg0, "xxreg0", 0),
        widest_register(Xxreg1, "xxreg1", 1),
        widest_register(Xxreg2, "xxreg2", 2),
        widest_register(Xxreg3, "xxreg3", 3),
        row(EthSrc, "eth_src", "dl_src", at::ETH_SRC, 6, 48)
            .masked()
            .nxm_of(2)
            .oxm(4, V12),
        row(EthDst, "eth_dst", "dl_dst", at::ETH_DST, 6, 48)
            .masked()
            .nxm_of(1)
            .oxm(3, V12),
        row(EthType, "eth_type", "dl_type", at::ETH_TYPE, 2, 16)
            .nxm_of(3)
            .oxm(5, V12),
        // All five VLAN fields share one TCI, whose bit 0x1000 says that there is a tag. `dl_vlan`
        // and `dl_vlan_pcp` are OpenFlow 1.0's: matching one of them implies that bit, which the
        // decoder must add.
        row(VlanTci, "vlan_tci", "", at::VLAN_TCI, 2, 16)
            .masked()
            .nxm_of(4),
        row(DlVlan, "dl_vlan", "", at::VLAN_TCI, 2, 12),
        row(DlVlanPcp, "dl_vlan_pcp", "", at::VLAN_TCI, 2, 3)
            .shifted(13)
            .wire(1),
        row(VlanVid, "vlan_vid", "", at::VLAN_TCI, 2, 13)
            .action_bits(12)
            .masked()
            .oxm(6, V12),
        row(VlanPcp, "vlan_pcp", "", at::VLAN_TCI, 2, 3)
            .shifted(13)
            .wire(1)
            .needs(P::VlanPresent)
            .oxm(7, V12),
        row(MplsLabel, "mpls_label", "", at::MPLS_LSE, 4, 20)
            .shifted(12)
            .needs(P::Mpls)
            .oxm(34, V12),
        row(MplsTc, "mpls_tc", "", at::MPLS_LSE + 2, 1, 3)
            .shifted(1)
            .needs(P::Mpls)
            .oxm(35, V12),
        row(MplsBos, "mpls_bos", "", at::MPLS_LSE + 2, 1, 1)
            .needs(P::Mpls)
            .oxm(36, V13),
        row(MplsTtl, "mpls_ttl", "", at::MPLS_LSE + 3, 1, 8)
            .needs(P::Mpls)
            .nxm_nx(30),
        row(PbbIsid, "pbb_isid", "", at::PBB_ISID + 1, 3, 24)
            .masked()
            .needs(P::Pbb)
            .oxm(37, V13),
        row(PbbUca, "pbb_uca", "", at::PBB_UCA, 1, 1)
            .needs(P::Pbb)
            .oxm(41, V14),
        row(Ipv4Src, "ip_src", "nw_src", at::IPV4_SRC, 4, 32)
            .masked()
            .needs(P::Ipv4)
            .nxm_of(7)
            .oxm(11, V12),
        row(Ipv4Dst, "ip_dst", "nw_dst", at::IPV4_DST, 4, 32)
            .masked()
            .needs(P::Ipv4)
            .nxm_of(8)
            .oxm(12, V12),
        row(Ipv6Src, "ipv6_src", "", at::IPV6_SRC, 16, 128)
            .masked()
            .needs(P::Ipv6)
            .nxm_nx(19)
            .oxm(26, V12),
        row(Ipv6Dst, "ipv6_dst", "", at::IPV6_DST, 16, 128)
            .masked()
            .needs(P::Ipv6)
            .nxm_nx(20)
            .oxm(27, V12),
        row(Ipv6Label, "ipv6_label", "", at::IPV6_LABEL, 4, 20)
            .masked()
            .needs(P::Ipv6)
            .nxm_nx(27)
            .oxm(28, V12),
        // Not in Open vSwitch.
        row(Ipv6Ext, "ipv6_exthdr", "", at::IPV6_EXT, 2, 9)
            .masked()
            .read_only()
            .needs(P::Ipv6)
            .oxm(39, V13),
        row(IpProto, "nw_proto", "ip_proto", at::IP_PROTO, 1, 8)
            .needs(P::IpAny)
            .nxm_of(6)
            .oxm(10, V12),
        // The DSCP in its place in the ToS byte, and the DSCP as a number: one place in the key,
        // two forms on the wire.
        FieldDef {
            wire_shift: 2,
            ..row(IpDscp, "nw_tos", "", at::IP_TOS, 1, 6)
        }
        .shifted(2)
        .action_bits(8)
        .needs(P::IpAny)
        .nxm_of(5),
        row(IpDscpShifted, "ip_dscp", "", at::IP_TOS, 1, 6)
            .shifted(2)
            .needs(P::IpAny)
            .oxm(8, V12),
        row(IpEcn, "nw_ecn", "ip_ecn", at::IP_TOS, 1, 2)
            .needs(P::IpAny)
            .nxm_nx(28)
            .oxm(9, V12),
        row(IpTtl, "nw_ttl", "", at::IP_TTL, 1, 8)
            .needs(P::IpAny)
            .nxm_nx(29),
        row(IpFrag, "ip_frag", "nw_frag", at::IP_FRAG, 1, 2)
            .masked()
            .read_only()
            .needs(P::IpAny)
            .nxm_nx(26),
        // 16 bits on the wire; the key has the low byte, and opcodes above 255 read as zero, as in
        // Open vSwitch.
        row(ArpOp, "arp_op", "", at::IP_PROTO, 1, 8)
            .wire(2)
            .action_bits(16)
            .needs(P::Arp)
            .nxm_of(15)
            .oxm(21, V12),
        row(ArpSpa, "arp_spa", "", at::IPV4_SRC, 4, 32)
            .masked()
            .needs(P::Arp)
            .nxm_of(16)
            .oxm(22, V12),
        row(ArpTpa, "arp_tpa", "", at::IPV4_DST, 4, 32)
            .masked()
            .needs(P::Arp)
            .nxm_of(17)
            .oxm(23, V12),
        row(ArpSha, "arp_sha", "", at::ARP_SHA, 6, 48)
            .masked()
            .needs(P::Arp)
            .nxm_nx(17)
            .oxm(24, V12),
        row(ArpTha, "arp_tha", "", at::ARP_THA, 6, 48)
            .masked()
            .needs(P::Arp)
            .nxm_nx(18)
            .oxm(25, V12),
        row(TcpSrc, "tcp_src", "tp_src", at::TP_SRC, 2, 16)
            .masked()
            .needs(P::Tcp)
            .nxm_of(9)
            .oxm(13, V12),
        row(TcpDst, "tcp_dst", "tp_dst", at::TP_DST, 2, 16)
            .masked()
            .needs(P::Tcp)
            .nxm_of(10)
            .oxm(14, V12),
        row(TcpFlags, "tcp_flags", "", at::TCP_FLAGS, 2, 12)
            .masked()
            .read_only()
            .needs(P::Tcp)
            .nxm_nx(34)
            .oxm(42, V15)
            .onf(42),
        row(UdpSrc, "udp_src", "", at::TP_SRC, 2, 16)
            .masked()
            .needs(P::Udp)
            .nxm_of(11)
            .oxm(15, V12),
        row(UdpDst, "udp_dst", "", at::TP_DST, 2, 16)
            .masked()
            .needs(P::Udp)
            .nxm_of(12)
            .oxm(16, V12),
        row(SctpSrc, "sctp_src", "", at::TP_SRC, 2, 16)
            .masked()
            .needs(P::Sctp)
            .oxm(17, V12),
        row(SctpDst, "sctp_dst", "", at::TP_DST, 2, 16)
            .masked()
            .needs(P::Sctp)
            .oxm(18, V12),
        // Type and code are in the low bytes of the port fields.
        row(Icmpv4Type, "icmp_type", "", at::TP_SRC + 1, 1, 8)
            .needs(P::Icmpv4)
            .nxm_of(13)
            .oxm(19, V12),
        row(Icmpv4Code, "icmp_code", "", at::TP_DST + 1, 1, 8)
            .needs(P::Icmpv4)
            .nxm_of(14)
            .oxm(20, V12),
        row(Icmpv6Type, "icmpv6_type", "", at::TP_SRC + 1, 1, 8)
            .needs(P::Icmpv6)
            .nxm_nx(21)
            .oxm(29, V12),
        row(Icmpv6Code, "icmpv6_code", "", at::TP_DST + 1, 1, 8)
            .needs(P::Icmpv6)
            .nxm_nx(22)
            .oxm(30, V12),
        row(NdTarget, "nd_target", "", at::ND_TARGET, 16, 128)
            .masked()
            .needs(P::Nd)
            .nxm_nx(23)
            .oxm(31, V12),
        row(NdSll, "nd_sll", "", at::ARP_SHA, 6, 48)
            .masked()
            .needs(P::NdSolicit)
            .nxm_nx(24)
            .oxm(32, V12),
        row(NdTll, "nd_tll", "", at::ARP_THA, 6, 48)
            .masked()
            .needs(P::NdAdvert)
            .nxm_nx(25)
            .oxm(33, V12),
        row(
            NdOptionsType,
            "nd_options_type",
            "",
            at::ND_OPTIONS_TYPE,
            1,
            8,
        )
        .read_only()
        .needs(P::Nd)
        .ericsson(2),
        tunnel_option(TunMetadata0, "tun_metadata0", 0),
        tunnel_option(TunMetadata1, "tun_metadata1", 1),
        tunnel_option(TunMetadata2, "tun_metadata2", 2),
        tunnel_option(TunMetadata3, "tun_metadata3", 3),
        tunnel_option(TunMetadata4, "tun_metadata4", 4),
        tunnel_option(TunMetadata5, "tun_metadata5", 5),
        tunnel_option(TunMetadata6, "tun_metadata6", 6),
        tunnel_option(TunMetadata7, "tun_metadata7", 7),
        tunnel_option(TunMetadata8, "tun_metadata8", 8),
        tunnel_option(TunMetadata9, "tun_metadata9", 9),
        tunnel_option(TunMetadata10, "tun_metadata10", 10),
        tunnel_option(TunMetadata11, "tun_metadata11", 11),
        tunnel_option(TunMetadata12, "tun_metadata12", 12),
        tunnel_option(TunMetadata13, "tun_metadata13", 13),
        tunnel_option(TunMetadata14, "tun_metadata14", 14),
        tunnel_option(TunMetadata15, "tun_metadata15", 15),
        tunnel_option(TunMetadata16, "tun_metadata16", 16),
        tunnel_option(TunMetadata17, "tun_metadata17", 17),
        tunnel_option(TunMetadata18, "tun_metadata18", 18),
        tunnel_option(TunMetadata19, "tun_metadata19", 19),
        tunnel_option(TunMetadata20, "tun_metadata20", 20),
        tunnel_option(TunMetadata21, "tun_metadata21", 21),
        tunnel_option(TunMetadata22, "tun_metadata22", 22),
        tunnel_option(TunMetadata23, "tun_metadata23", 23),
        tunnel_option(TunMetadata24, "tun_metadata24", 24),
        tunnel_option(TunMetadata25, "tun_metadata25", 25),
        tunnel_option(TunMetadata26, "tun_metadata26", 26),
        tunnel_option(TunMetadata27, "tun_metadata27", 27),
        tunnel_option(TunMetadata28, "tun_metadata28", 28),
        tunnel_option(TunMetadata29, "tun_metadata29", 29),
        tunnel_option(TunMetadata30, "tun_metadata30", 30),
        tunnel_option(TunMetadata31, "tun_metadata31", 31),
        tunnel_option(TunMetadata32, "tun_metadata32", 32),
        tunnel_option(TunMetadata33, "tun_metadata33", 33),
        tunnel_option(TunMetadata34, "tun_metadata34", 34),
        tunnel_option(TunMetadata35, "tun_metadata35", 35),
        tunnel_option(TunMetadata36, "tun_metadata36", 36),
        tunnel_option(TunMetadata37, "tun_metadata37", 37),
        tunnel_option(TunMetadata38, "tun_metadata38", 38),
        tunnel_option(TunMetadata39, "tun_metadata39", 39),
        tunnel_option(TunMetadata40, "tun_metadata40", 40),
        tunnel_option(TunMetadata41, "tun_metadata41", 41),
        tunnel_option(TunMetadata42, "tun_metadata42", 42),
        tunnel_option(TunMetadata43, "tun_metadata43", 43),
        tunnel_option(TunMetadata44, "tun_metadata44", 44),
        tunnel_option(TunMetadata45, "tun_metadata45", 45),
        tunnel_option(TunMetadata46, "tun_metadata46", 46),
        tunnel_option(TunMetadata47, "tun_metadata47", 47),
        tunnel_option(TunMetadata48, "tun_metadata48", 48),
        tunnel_option(TunMetadata49, "tun_metadata49", 49),
        tunnel_option(TunMetadata50, "tun_metadata50", 50),
        tunnel_option(TunMetadata51, "tun_metadata51", 51),
        tunnel_option(TunMetadata52, "tun_metadata52", 52),
        tunnel_option(TunMetadata53, "tun_metadata53", 53),
        tunnel_option(TunMetadata54, "tun_metadata54", 54),
        tunnel_option(TunMetadata55, "tun_metadata55", 55),
        tunnel_option(TunMetadata56, "tun_metadata56", 56),
        tunnel_option(TunMetadata57, "tun_metadata57", 57),
        tunnel_option(TunMetadata58, "tun_metadata58", 58),
        tunnel_option(TunMetadata59, "tun_metadata59", 59),
        tunnel_option(TunMetadata60, "tun_metadata60", 60),
        tunnel_option(TunMetadata61, "tun_metadata61", 61),
        tunnel_option(TunMetadata62, "tun_metadata62", 62),
        tunnel_option(TunMetadata63, "tun_metadata63", 63),
    ]
};
