//! The one table of match fields. Codecs, parser, printer and documentation read it.

use crate::key::WordSet;
use crate::value::Value;

/// How a field may be masked in a match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maskable {
    /// Exact or absent.
    No,
    /// Any bits.
    Bitwise,
}

/// What else a match must say before it may name a field (OpenFlow 1.5.1 section 7.2.3.6; the same rules hold for NXM).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names say which packets are meant
pub enum Prerequisite {
    None,
    VlanPresent,
    Mpls,
    Ipv4,
    Ipv6,
    Arp,
    Rarp,
    IpAny,
    Tcp,
    Udp,
    Sctp,
    Icmpv4,
    Icmpv6,
    /// Neighbour solicitation or advertisement.
    Nd,
    NdSolicit,
    NdAdvert,
    Pbb,
}

/// One match field.
#[derive(Debug)]
pub struct FieldDef {
    /// Which.
    pub field: Field,
    /// The name that `ovs-ofctl` prints and reads.
    pub name: &'static str,
    /// A second name, or empty.
    pub alias: &'static str,
    /// Width in bits.
    pub bits: usize,
    /// First byte in the key.
    pub offset: usize,
    /// Bytes in the key (and in OXM, where the field has a number).
    pub bytes: usize,
    /// Bits between the field's lowest bit and the lowest bit of its last byte in the key: 2 for a DSCP inside a ToS byte,
    /// 13 for a VLAN PCP inside a TCI. On the wire the field is not shifted.
    pub shift: usize,
    /// How it may be masked.
    pub maskable: Maskable,
    /// What it needs.
    pub prerequisite: Prerequisite,
    /// Whether `set_field`, `load` and `move` may write it.
    pub writable: bool,
    /// NXM header without the mask bit and with the unmasked length, as in Open vSwitch's `meta-flow.h`; 0 when there is none.
    pub nxm: u32,
    /// OXM header likewise (class, field, length); for experimenter OXM (class 0xffff) the experimenter is ONF.
    pub oxm: u32,
    /// The first OpenFlow version (wire number: 1 for 1.0, 4 for 1.3 ...) whose own OXM holds it; 0: Nicira only.
    pub since: u8,
}

impl FieldDef {
    /// The bits of the field's bytes that belong to it.
    pub fn place(&self) -> Value {
        Value::ones_at(self.shift, self.bits, self.bytes)
    }

    /// The words of the key that it lies in.
    pub const fn words(&self) -> WordSet {
        WordSet::of_bytes(self.offset, self.bytes)
    }
}

/// Every field's name here. The comments in [`FIELDS`] say what is unusual about one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // the names are those of OpenFlow and of `ovs-fields(7)`
pub enum Field {
    InPort,
    InPortOxm,
    InPhyPort,
    Metadata,
    TunId,
    TunSrc,
    TunDst,
    TunIpv6Src,
    TunIpv6Dst,
    TunFlags,
    TunGbpId,
    TunGbpFlags,
    TunTos,
    TunTtl,
    PktMark,
    CtState,
    CtZone,
    CtMark,
    CtLabel,
    CtNwProto,
    CtNwSrc,
    CtNwDst,
    CtIpv6Src,
    CtIpv6Dst,
    CtTpSrc,
    CtTpDst,
    DpHash,
    RecircId,
    ConjId,
    PacketType,
    ActsetOutput,
    SkbPriority,
    Reg0,
    Reg1,
    Reg2,
    Reg3,
    Reg4,
    Reg5,
    Reg6,
    Reg7,
    Reg8,
    Reg9,
    Reg10,
    Reg11,
    Reg12,
    Reg13,
    Reg14,
    Reg15,
    Xreg0,
    Xreg1,
    Xreg2,
    Xreg3,
    Xreg4,
    Xreg5,
    Xreg6,
    Xreg7,
    Xxreg0,
    Xxreg1,
    Xxreg2,
    Xxreg3,
    EthSrc,
    EthDst,
    EthType,
    VlanTci,
    DlVlan,
    DlVlanPcp,
    VlanVid,
    VlanPcp,
    MplsLabel,
    MplsTc,
    MplsBos,
    MplsTtl,
    PbbIsid,
    PbbUca,
    Ipv4Src,
    Ipv4Dst,
    Ipv6Src,
    Ipv6Dst,
    Ipv6Label,
    Ipv6Ext,
    IpProto,
    IpDscp,
    IpDscpShifted,
    IpEcn,
    IpTtl,
    IpFrag,
    ArpOp,
    ArpSpa,
    ArpTpa,
    ArpSha,
    ArpTha,
    TcpSrc,
    TcpDst,
    TcpFlags,
    UdpSrc,
    UdpDst,
    SctpSrc,
    SctpDst,
    Icmpv4Type,
    Icmpv4Code,
    Icmpv6Type,
    Icmpv6Code,
    NdTarget,
    NdSll,
    NdTll,
    NdOptionsType,
}

/// The table, in the order of [`Field`].
pub static FIELDS: &[FieldDef] = &[];

impl Field {
    /// What the table says about it.
    pub fn def(self) -> &'static FieldDef {
        &FIELDS[self as usize]
    }
}
