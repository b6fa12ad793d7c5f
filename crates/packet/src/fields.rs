//! The table of match fields, which codecs, parser, printer and documentation read.
//!
//! A field has two forms. In the *key* it has `bytes` bytes from `offset`, and its lowest bit is
//! `shift` bits up. On the *wire* (NXM and OXM TLVs) it is a number of `wire_bytes` bytes.
//! [`FieldDef::to_wire`] and [`FieldDef::from_wire`] convert; everything inside Sluice uses the
//! form of the key. Facts are those of Open vSwitch 3.1 (`ovs-fields(7)`) and OpenFlow 1.5.1
//! section 7.2.3.

mod table;

use crate::key::{WordSet, at};
use crate::matching::Match;
use crate::value::Value;
use std::sync::LazyLock;

pub use table::FIELDS;

/// Experimenter id of the Open Networking Foundation, for OXM fields that appeared between two
/// OpenFlow versions.
pub const ONF: u32 = 0x4f4e_4600;

/// How a field may be masked in a match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maskable {
    /// Only as a whole.
    No,
    /// Any bits.
    Bitwise,
}

/// What a match must contain before it may name a field (OpenFlow 1.5.1 section 7.2.3.6; the same
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
    /// IP, and a connection tracking state that implies that the original direction is known
    /// (`+new`, `+est`, `+rel`, `+rpl` or `+trk-inv`).
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
    /// The field.
    pub field: Field,
    /// The name that `ovs-ofctl` prints and reads.
    pub name: &'static str,
    /// A second name, or empty.
    pub alias: &'static str,
    /// Width in bits in a match.
    pub bits: usize,
    /// Width in bits for `load`, `move` and `set_field`. Differs from `bits` where these use
    /// another form of the number: 16 for `in_port` and `arp_op`, 12 for `vlan_vid` (without the
    /// present bit), 8 for `nw_tos`.
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
    /// The same for the wire: 2 for `nw_tos`, else 0.
    pub wire_shift: usize,
    /// Whether a match may mask it.
    pub maskable: Maskable,
    /// What a match that names it needs.
    pub prerequisite: Prerequisite,
    /// Whether `set_field`, `load` and `move` may write it.
    pub writable: bool,
    /// NXM header without the mask bit and with the unmasked length, as in Open vSwitch's
    /// `meta-flow.h`; 0 if there is none.
    pub nxm: u32,
    /// OXM header likewise (class, field, length); 0 if there is none.
    pub oxm: u32,
    /// First OpenFlow version (wire number: 3 for 1.2, 4 for 1.3 ...) that has it as a standard
    /// OXM; 0: Nicira only.
    pub since: u8,
    /// Header of the experimenter OXM (class 0xffff, length including the four bytes of the
    /// experimenter id) that stands for it in OpenFlow 1.3 and later versions before `since`; 0 if
    /// there is none.
    pub oxm_experimenter_header: u32,
    /// The experimenter of that header ([`ONF`]); 0 if there is none.
    pub oxm_experimenter: u32,
}

impl FieldDef {
    /// Returns which bits of the field's bytes belong to it.
    pub fn place(&self) -> Value {
        Value::ones_at(self.shift, self.bits, self.bytes)
    }

    /// Returns the words of the key that contain it.
    pub const fn words(&self) -> WordSet {
        WordSet::of_bytes(self.offset, self.bytes)
    }

    /// Returns the header that names the field to a peer of this OpenFlow version (wire number; 1
    /// means NXM), and its experimenter or 0.
    ///
    /// Picks the newest header that the version knows; if it knows none, the oldest there is, as
    /// Open vSwitch does. None for fields that have no number.
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

    /// Converts the key's bytes (`bytes` of them) to the wire's. Drops bits outside the field.
    ///
    /// In NXM, `in_port` has 16 bits: reserved ports keep their meaning, other ports above 0xfeff
    /// become their low 16 bits.
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

    /// Right-aligns a tunnel option, of any length that it can have, in the field's bytes.
    fn aligned(&self, wire: &[u8]) -> Option<Value> {
        let from = self.bytes.checked_sub(wire.len())?;
        let mut all = Value::zero(self.bytes);
        all[from..].copy_from_slice(wire);
        Some(all)
    }

    /// Converts the wire's bytes to the key's. None if the length is not `wire_bytes` or a bit
    /// outside the field is set (`OFPBMC_BAD_LEN`, `OFPBMC_BAD_VALUE`), and for 32-bit port numbers
    /// between 0xff00 and 0xfffffeff.
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

    /// Converts a mask from the wire's bytes to the key's, ignoring bits outside the field. None if
    /// the length is wrong.
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

/// The fields. Comments in [`FIELDS`] explain what is unusual about one.
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

/// All headers of one kind (NXM, OXM, experimenter) with their fields.
struct Numbers {
    /// Indexed by [`likely`]: nearly always contains the right one.
    likely: Box<[(u32, Field)]>,
    /// All, ascending by header.
    all: Vec<(u32, Field)>,
}

/// Returns a header's index in [`Numbers::likely`]: the field number and the lowest bit of the
/// class.
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
    /// Returns the field's row of the table.
    pub fn def(self) -> &'static FieldDef {
        &FIELDS[self as usize]
    }

    /// Returns the field of a standard OXM header: mask bit off, length without a mask.
    pub fn from_oxm(header: u32) -> Option<Field> {
        static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| numbers(|def| def.oxm));
        look_up(&NUMBERS, header)
    }

    /// Returns the field of an experimenter OXM header (class 0xffff) without mask; the length
    /// includes the experimenter id.
    pub fn from_experimenter(header: u32, experimenter: u32) -> Option<Field> {
        static NUMBERS: LazyLock<Numbers> =
            LazyLock::new(|| numbers(|def| def.oxm_experimenter_header));
        look_up(&NUMBERS, header).filter(|field| field.def().oxm_experimenter == experimenter)
    }

    /// Returns the field of an NXM header without mask.
    pub fn from_nxm(header: u32) -> Option<Field> {
        static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| numbers(|def| def.nxm));
        look_up(&NUMBERS, header)
    }

    /// Returns the field of a name or alias.
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

/// Ethertypes of prerequisites.
mod ethertype {
    pub const IPV4: u64 = 0x0800;
    pub const ARP: u64 = 0x0806;
    pub const RARP: u64 = 0x8035;
    pub const IPV6: u64 = 0x86dd;
    pub const MPLS: u64 = 0x8847;
    pub const MPLS_MULTICAST: u64 = 0x8848;
    pub const PBB: u64 = 0x88e7;
}

/// Bit of a match's VLAN TCI that says a tag is present.
const VLAN_PRESENT: u64 = 0x1000;
/// Bit of the fragment byte for all fragments but the first.
const FRAGMENT_LATER: u64 = 2;

impl Prerequisite {
    /// Returns whether the match satisfies the prerequisite.
    pub fn met_by(self, matching: &Match) -> bool {
        use Prerequisite::*;
        // A bit that is not matched reads as zero here, and zero satisfies no prerequisite except
        // the ICMP code of neighbour discovery.
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

    /// Adds what the prerequisite demands to the match, if that is unique: IPv4 for `Ipv4`, ARP
    /// (not RARP) for `Arp`, unicast for `Mpls`, IP protocol 6 for `Tcp`. Returns whether the
    /// prerequisite is met afterwards: `IpAny` and those that build on it need an Ethertype in the
    /// match already, `Nd` a type, `Tracked` a state.
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
