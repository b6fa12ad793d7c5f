//! The one table of match fields. Codecs, parser, printer and documentation read it.
//!
//! A field has two shapes. In the *key* it lies at `offset`, `bytes` long, its lowest bit `shift`
//! bits up. On the *wire* (NXM and OXM TLVs) it is a number of `wire_bytes` bytes of its own.
//! [`FieldDef::to_wire`] and [`FieldDef::from_wire`] go between the two; everything inside Sluice
//! uses the key's shape. Facts are those of Open vSwitch 3.1 (`ovs-fields(7)`) and OpenFlow 1.5.1
//! section 7.2.3.

mod table;

use crate::key::{WordSet, at};
use crate::matching::Match;
use crate::value::Value;
use std::sync::LazyLock;

pub use table::FIELDS;

/// Experimenter id of the Open Networking Foundation, used by OXM fields between two OpenFlow
/// versions.
pub const ONF: u32 = 0x4f4e_4600;

/// How a field may be masked in a match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maskable {
    /// Exact or absent.
    No,
    /// Any bits.
    Bitwise,
}

/// What else a match must say before it may name a field (OpenFlow 1.5.1 section 7.2.3.6; the same
/// rules hold for NXM).
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
    /// IP, and a connection tracking state that says that the original direction is known (`+new`,
    /// `+est`, `+rel`, `+rpl` or `+trk-inv`).
    Tracked,
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
    /// Width in bits, as a match sees it.
    pub bits: usize,
    /// Width in bits as `load`, `move` and `set_field` see it. Differs from `bits` where the
    /// number they use has another form: 16 for `in_port` and `arp_op`, 12 for `vlan_vid`
    /// (without the bit that says present), 8 for `nw_tos`.
    pub action_bits: usize,
    /// First byte in the key.
    pub offset: usize,
    /// Bytes in the key.
    pub bytes: usize,
    /// Bytes in NXM and OXM.
    pub wire_bytes: usize,
    /// Bits between the field's lowest bit and the lowest bit of its last byte in the key: 2 for a
    /// DSCP inside a ToS byte, 13 for a VLAN PCP inside a TCI.
    pub shift: usize,
    /// The same on the wire: 2 for `nw_tos`, else 0.
    pub wire_shift: usize,
    /// How it may be masked.
    pub maskable: Maskable,
    /// What it needs.
    pub prerequisite: Prerequisite,
    /// Whether `set_field`, `load` and `move` may write it.
    pub writable: bool,
    /// NXM header without the mask bit and with the unmasked length, as in Open vSwitch's
    /// `meta-flow.h`; 0 when there is none.
    pub nxm: u32,
    /// OXM header likewise (class, field, length); 0 when there is none.
    pub oxm: u32,
    /// The first OpenFlow version (wire number: 3 for 1.2, 4 for 1.3 ...) whose own OXM holds it;
    /// 0: Nicira only.
    pub since: u8,
    /// Header of an experimenter OXM (class 0xffff, length with the four bytes of the experimenter
    /// id) that says the same in OpenFlow 1.3 and later versions before `since`; 0 when there
    /// is none.
    pub oxm_experimenter_header: u32,
    /// The experimenter of that header ([`ONF`]); 0 when there is none.
    pub oxm_experimenter: u32,
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

    /// The header that names the field to a peer of this OpenFlow version (wire number; 1 means
    /// NXM), and its experimenter or 0.
    ///
    /// It is the newest that the version knows; where it knows none, the oldest there is, as Open
    /// vSwitch sends it. None for fields that have no number.
    pub fn header(&self, version: u8) -> Option<(u32, u32)> {
        let standard = (self.oxm, 0);
        let experimenter = (self.oxm_experimenter_header, self.oxm_experimenter);
        if self.oxm != 0 && version >= self.since {
            Some(standard)
        } else if experimenter.0 != 0 && version >= 4 {
            Some(experimenter)
        } else if self.nxm != 0 {
            Some((self.nxm, 0))
        } else if experimenter.0 != 0 {
            Some(experimenter)
        } else if self.oxm != 0 {
            Some(standard)
        } else {
            None
        }
    }

    /// From the key's bytes (`bytes` of them, in place) to the wire's. Bits outside the field are
    /// dropped.
    ///
    /// `in_port` is a 16-bit number in NXM: reserved ports keep their meaning, other ports above
    /// 0xfeff their low 16 bits.
    pub fn to_wire(&self, value: &[u8]) -> Value {
        if self.field.tunnel_option().is_some() {
            return Value::from_bytes(value);
        }
        let mut inside = Value::from_bytes(value);
        for (byte, place) in inside.iter_mut().zip(self.place().iter()) {
            *byte &= place;
        }
        let number = inside.to_u128() >> self.shift << self.wire_shift;
        Value::from_u128(number, self.wire_bytes)
    }

    /// An option of a tunnel, of any length that it can have, right-aligned in the field's bytes.
    fn aligned(&self, wire: &[u8]) -> Option<Value> {
        let from = self.bytes.checked_sub(wire.len())?;
        let mut all = Value::zero(self.bytes);
        all[from..].copy_from_slice(wire);
        Some(all)
    }

    /// From the wire's bytes to the key's. None when the length is not `wire_bytes` or a bit is set
    /// that the field does not have (`OFPBMC_BAD_LEN`, `OFPBMC_BAD_VALUE`), and for 32-bit port
    /// numbers between 0xff00 and 0xfffffeff.
    pub fn from_wire(&self, wire: &[u8]) -> Option<Value> {
        if self.field.tunnel_option().is_some() {
            return self.aligned(wire);
        }
        if wire.len() != self.wire_bytes {
            return None;
        }
        let number = Value::from_bytes(wire).to_u128();
        if self.field == Field::InPort {
            let reserved = if number >= 0xff00 { 0xffff_0000 } else { 0 };
            return Some(Value::from_u128(number | reserved, self.bytes));
        }
        let port = matches!(self.field, Field::InPortOxm | Field::InPhyPort);
        if port && (0xff00..0xffff_ff00).contains(&number) {
            return None;
        }
        let width = if self.bits >= 128 {
            u128::MAX
        } else {
            (1 << self.bits) - 1
        };
        let bits = number >> self.wire_shift;
        if bits & !width != 0 || bits << self.wire_shift != number {
            return None;
        }
        Some(Value::from_u128(bits << self.shift, self.bytes))
    }

    /// A mask from the wire's bytes to the key's. Bits that the field does not have are ignored.
    /// None when the length is wrong.
    pub fn mask_from_wire(&self, wire: &[u8]) -> Option<Value> {
        if self.field.tunnel_option().is_some() {
            return self.aligned(wire);
        }
        if wire.len() != self.wire_bytes {
            return None;
        }
        let mut mask = Value::from_u128(
            Value::from_bytes(wire).to_u128() >> self.wire_shift << self.shift,
            self.bytes,
        );
        if self.field == Field::InPort {
            mask[0] = wire[0];
            mask[1] = wire[0];
        }
        for (byte, place) in mask.iter_mut().zip(self.place().iter()) {
            *byte &= place;
        }
        Some(mask)
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
    Fcf,
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
    TunMetadata0,
    TunMetadata1,
    TunMetadata2,
    TunMetadata3,
    TunMetadata4,
    TunMetadata5,
    TunMetadata6,
    TunMetadata7,
    TunMetadata8,
    TunMetadata9,
    TunMetadata10,
    TunMetadata11,
    TunMetadata12,
    TunMetadata13,
    TunMetadata14,
    TunMetadata15,
    TunMetadata16,
    TunMetadata17,
    TunMetadata18,
    TunMetadata19,
    TunMetadata20,
    TunMetadata21,
    TunMetadata22,
    TunMetadata23,
    TunMetadata24,
    TunMetadata25,
    TunMetadata26,
    TunMetadata27,
    TunMetadata28,
    TunMetadata29,
    TunMetadata30,
    TunMetadata31,
    TunMetadata32,
    TunMetadata33,
    TunMetadata34,
    TunMetadata35,
    TunMetadata36,
    TunMetadata37,
    TunMetadata38,
    TunMetadata39,
    TunMetadata40,
    TunMetadata41,
    TunMetadata42,
    TunMetadata43,
    TunMetadata44,
    TunMetadata45,
    TunMetadata46,
    TunMetadata47,
    TunMetadata48,
    TunMetadata49,
    TunMetadata50,
    TunMetadata51,
    TunMetadata52,
    TunMetadata53,
    TunMetadata54,
    TunMetadata55,
    TunMetadata56,
    TunMetadata57,
    TunMetadata58,
    TunMetadata59,
    TunMetadata60,
    TunMetadata61,
    TunMetadata62,
    TunMetadata63,
}

/// Headers of one kind and their fields.
struct Numbers {
    /// By the field's number and the last bit of its class: nearly always the one that is meant.
    likely: Box<[(u32, Field)]>,
    /// Ascending.
    all: Vec<(u32, Field)>,
}

/// Where a header stands among those that are likely.
fn likely(header: u32) -> usize {
    (header >> 9 & 0xff) as usize
}

fn numbers(header: impl Fn(&FieldDef) -> u32) -> Numbers {
    let mut all: Vec<(u32, Field)> = FIELDS
        .iter()
        .map(|def| (header(def), def.field))
        .filter(|(header, _)| *header != 0)
        .collect();
    all.sort_unstable();
    let mut places = vec![(0, FIELDS[0].field); likely(u32::MAX) + 1];
    for entry in &all {
        places[likely(entry.0)] = *entry;
    }
    Numbers {
        likely: places.into(),
        all,
    }
}

fn look_up(numbers: &Numbers, header: u32) -> Option<Field> {
    let (likely, field) = numbers.likely[likely(header)];
    if likely == header && header != 0 {
        return Some(field);
    }
    let at = numbers
        .all
        .binary_search_by_key(&header, |(header, _)| *header);
    at.ok().map(|index| numbers.all[index].1)
}

impl Field {
    /// What the table says about it.
    pub fn def(self) -> &'static FieldDef {
        &FIELDS[self as usize]
    }

    /// The field of a standard OXM header without mask: mask bit off, length that of the value
    /// alone.
    pub fn from_oxm(header: u32) -> Option<Field> {
        static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| numbers(|def| def.oxm));
        look_up(&NUMBERS, header)
    }

    /// The field of an experimenter OXM header (class 0xffff) without mask; the length counts the
    /// experimenter id.
    pub fn from_experimenter(header: u32, experimenter: u32) -> Option<Field> {
        static NUMBERS: LazyLock<Numbers> =
            LazyLock::new(|| numbers(|def| def.oxm_experimenter_header));
        look_up(&NUMBERS, header).filter(|field| field.def().oxm_experimenter == experimenter)
    }

    /// The field of an NXM header without mask.
    pub fn from_nxm(header: u32) -> Option<Field> {
        static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| numbers(|def| def.nxm));
        look_up(&NUMBERS, header)
    }

    /// The field of a name or alias.
    pub fn by_name(name: &str) -> Option<Field> {
        static NAMES: LazyLock<Vec<(&str, Field)>> = LazyLock::new(|| {
            let mut all: Vec<_> = FIELDS
                .iter()
                .flat_map(|def| [(def.name, def.field), (def.alias, def.field)])
                .filter(|(name, _)| !name.is_empty())
                .collect();
            all.sort_unstable();
            all
        });
        let index = NAMES.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        Some(NAMES[index].1)
    }
}

/// Ethertypes that prerequisites speak of.
mod ethertype {
    pub const IPV4: u64 = 0x0800;
    pub const ARP: u64 = 0x0806;
    pub const RARP: u64 = 0x8035;
    pub const IPV6: u64 = 0x86dd;
    pub const MPLS: u64 = 0x8847;
    pub const MPLS_MULTICAST: u64 = 0x8848;
    pub const PBB: u64 = 0x88e7;
}

/// Bits of a match's VLAN TCI: a tag is present.
const VLAN_PRESENT: u64 = 0x1000;
/// Bit of the fragment byte: not the first fragment.
const FRAGMENT_LATER: u64 = 2;

impl Prerequisite {
    /// Whether the match says what the field needs.
    pub fn met_by(self, matching: &Match) -> bool {
        use Prerequisite::*;
        // A bit that is not matched reads as zero here, and zero satisfies no prerequisite but the
        // ICMP code of neighbour discovery.
        let value = |offset, bytes| matching.bytes(offset, bytes).0.to_u64();
        let eth_type = value(at::ETH_TYPE, 2);
        let first = value(at::IP_FRAG, 1) & FRAGMENT_LATER == 0;
        let transport = |types: &[u64], protocol| {
            types.contains(&eth_type) && value(at::IP_PROTO, 1) == protocol && first
        };
        let ip = [ethertype::IPV4, ethertype::IPV6];
        let nd_type = || {
            let neighbour = transport(&[ethertype::IPV6], 58) && value(at::TP_DST, 2) == 0;
            neighbour.then(|| value(at::TP_SRC, 2))
        };
        match self {
            None => true,
            VlanPresent => value(at::VLAN_TCI, 2) & VLAN_PRESENT != 0,
            Mpls => [ethertype::MPLS, ethertype::MPLS_MULTICAST].contains(&eth_type),
            Ipv4 => eth_type == ethertype::IPV4,
            Ipv6 => eth_type == ethertype::IPV6,
            Arp => [ethertype::ARP, ethertype::RARP].contains(&eth_type),
            Rarp => eth_type == ethertype::RARP,
            IpAny => ip.contains(&eth_type),
            Tcp => transport(&ip, 6),
            Udp => transport(&ip, 17),
            Sctp => transport(&ip, 132),
            Icmpv4 => transport(&[ethertype::IPV4], 1),
            Icmpv6 => transport(&[ethertype::IPV6], 58),
            Tracked => {
                let (state, mask) = matching.bytes(at::CT_STATE, 4);
                let (state, mask) = (state.to_u64(), mask.to_u64());
                let valid = state & 0x20 != 0 && mask & 0x10 != 0 && state & 0x10 == 0;
                ip.contains(&eth_type) && (state & 0x0f != 0 || valid)
            }
            Nd => matches!(nd_type(), Some(135 | 136)),
            NdSolicit => nd_type() == Some(135),
            NdAdvert => nd_type() == Some(136),
            Pbb => eth_type == ethertype::PBB,
        }
    }

    /// Adds to the match what the prerequisite demands, where that is one thing: IPv4 for `Ipv4`,
    /// ARP (not RARP) for `Arp`, unicast for `Mpls`, IP protocol 6 for `Tcp`. Whether it is met
    /// afterwards: `IpAny` and what builds on it are not without an Ethertype in the match
    /// already, `Nd` not without a type, `Tracked` not without a state.
    pub fn apply(self, matching: &mut Match) -> bool {
        use Prerequisite::*;
        if self.met_by(matching) {
            return true;
        }
        let mut set = |field, value| matching.set_exact(field, value);
        let eth_type = match self {
            Mpls => Some(ethertype::MPLS),
            Ipv4 | Icmpv4 => Some(ethertype::IPV4),
            Ipv6 | Icmpv6 | NdSolicit | NdAdvert => Some(ethertype::IPV6),
            Arp => Some(ethertype::ARP),
            Rarp => Some(ethertype::RARP),
            Pbb => Some(ethertype::PBB),
            _ => Option::None,
        };
        if let Some(eth_type) = eth_type {
            set(Field::EthType, eth_type.into());
        }
        match self {
            Tcp => set(Field::IpProto, 6),
            Udp => set(Field::IpProto, 17),
            Sctp => set(Field::IpProto, 132),
            Icmpv4 => set(Field::IpProto, 1),
            Icmpv6 | NdSolicit | NdAdvert => set(Field::IpProto, 58),
            _ => {}
        }
        match self {
            NdSolicit => set(Field::Icmpv6Type, 135),
            NdAdvert => set(Field::Icmpv6Type, 136),
            VlanPresent => {
                let present = (VLAN_PRESENT as u16).to_be_bytes();
                matching.set_bytes(at::VLAN_TCI, &present, &present);
            }
            _ => {}
        }
        self.met_by(matching)
    }
}

#[cfg(test)]
mod tests;
