//! `ofp_match` of OpenFlow 1.0 (section 5.2.3): forty bytes, wildcards as bits, address masks as
//! prefixes.
//!
//! The meaning of a field depends on the Ethertype (`nw_proto` is the opcode of ARP, `tp_src` the
//! type of ICMP); as in Open vSwitch, fields that mean nothing for the Ethertype are ignored.

use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::port;
use packet::key::at;
use packet::{Field, Match, Value};

/// Length in bytes.
pub(crate) const LENGTH: usize = 40;

const IN_PORT: u32 = 1 << 0;
const DL_VLAN: u32 = 1 << 1;
const DL_SRC: u32 = 1 << 2;
const DL_DST: u32 = 1 << 3;
const DL_TYPE: u32 = 1 << 4;
const NW_PROTO: u32 = 1 << 5;
const TP_SRC: u32 = 1 << 6;
const TP_DST: u32 = 1 << 7;
const NW_SRC_SHIFT: u32 = 8;
const NW_DST_SHIFT: u32 = 14;
const DL_VLAN_PCP: u32 = 1 << 20;
const NW_TOS: u32 = 1 << 21;
const ALL: u32 = (1 << 22) - 1;

/// `OFP_VLAN_NONE`: packets without a tag.
const VLAN_NONE: u16 = 0xffff;
const VLAN_PRESENT: u16 = 0x1000;

/// A decoded match of 1.0.
pub(crate) struct Match10 {
    pub(crate) matching: Match,
    /// Nothing was wildcarded, so the rule has the highest priority (section 3.4).
    pub(crate) exact: bool,
}

struct Raw {
    wildcards: u32,
    in_port: u16,
    dl_src: [u8; 6],
    dl_dst: [u8; 6],
    dl_vlan: u16,
    dl_vlan_pcp: u8,
    dl_type: u16,
    nw_tos: u8,
    nw_proto: u8,
    nw_src: u32,
    nw_dst: u32,
    tp_src: u16,
    tp_dst: u16,
}

impl Raw {
    fn take(reader: &mut Reader<'_>) -> Result<Raw, Error> {
        let mut r = reader.part(LENGTH, Error::BadLength)?;
        let wildcards = r.u32()?;
        let in_port = r.u16()?;
        let (dl_src, dl_dst) = (r.mac()?, r.mac()?);
        let (dl_vlan, dl_vlan_pcp) = (r.u16()?, r.u8()?);
        r.skip(1)?;
        let (dl_type, nw_tos, nw_proto) = (r.u16()?, r.u8()?, r.u8()?);
        r.skip(2)?;
        Ok(Raw {
            wildcards,
            in_port,
            dl_src,
            dl_dst,
            dl_vlan,
            dl_vlan_pcp,
            dl_type,
            nw_tos,
            nw_proto,
            nw_src: r.u32()?,
            nw_dst: r.u32()?,
            tp_src: r.u16()?,
            tp_dst: r.u16()?,
        })
    }

    fn has(&self, bit: u32) -> bool {
        self.wildcards & bit == 0
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.wildcards);
        out.put_u16(self.in_port);
        out.put(&self.dl_src);
        out.put(&self.dl_dst);
        out.put_u16(self.dl_vlan);
        out.put_u8(self.dl_vlan_pcp);
        out.pad(1);
        out.put_u16(self.dl_type);
        out.put_u8(self.nw_tos);
        out.put_u8(self.nw_proto);
        out.pad(2);
        out.put_u32(self.nw_src);
        out.put_u32(self.nw_dst);
        out.put_u16(self.tp_src);
        out.put_u16(self.tp_dst);
    }
}

/// Decodes a match.
pub(crate) fn take_match(reader: &mut Reader<'_>) -> Result<Match10, Error> {
    let raw = Raw::take(reader)?;
    let mut matching = Match::any();
    if raw.has(IN_PORT) {
        matching.set_exact(Field::InPortOxm, port::from_u16(raw.in_port).into());
    }
    if raw.has(DL_SRC) {
        matching.set_bytes(at::ETH_SRC, &raw.dl_src, &[0xff; 6]);
    }
    if raw.has(DL_DST) {
        matching.set_bytes(at::ETH_DST, &raw.dl_dst, &[0xff; 6]);
    }
    add_vlan(&mut matching, &raw);
    if raw.has(DL_TYPE) {
        matching.set_exact(Field::EthType, raw.dl_type.into());
        add_network(&mut matching, &raw);
    }
    Ok(Match10 {
        matching,
        exact: raw.wildcards & ALL == 0,
    })
}

fn add_vlan(matching: &mut Match, raw: &Raw) {
    let (mut tci, mut mask) = (VLAN_PRESENT, 0);
    if raw.has(DL_VLAN) && raw.dl_vlan == VLAN_NONE {
        // A priority contradicts "no tag"; it is ignored.
        (tci, mask) = (0, 0xffff);
    } else {
        if raw.has(DL_VLAN) {
            tci |= raw.dl_vlan & 0xfff;
            mask |= VLAN_PRESENT | 0xfff;
        }
        if raw.has(DL_VLAN_PCP) {
            tci |= u16::from(raw.dl_vlan_pcp & 7) << 13;
            mask |= VLAN_PRESENT | 0xe000;
        }
    }
    matching.set_bytes(
        at::VLAN_TCI,
        &(tci & mask).to_be_bytes(),
        &mask.to_be_bytes(),
    );
}

fn add_network(matching: &mut Match, raw: &Raw) {
    let (ip, arp) = (
        matches!(raw.dl_type, 0x0800 | 0x86dd),
        matches!(raw.dl_type, 0x0806 | 0x8035),
    );
    if (ip || arp) && raw.has(NW_PROTO) {
        matching.set_bytes(at::IP_PROTO, &[raw.nw_proto], &[0xff]);
    }
    if raw.dl_type == 0x0800 || arp {
        let (src, dst) = (
            prefix_mask(raw.wildcards >> NW_SRC_SHIFT),
            prefix_mask(raw.wildcards >> NW_DST_SHIFT),
        );
        matching.set_bytes(
            at::IPV4_SRC,
            &(raw.nw_src & src).to_be_bytes(),
            &src.to_be_bytes(),
        );
        matching.set_bytes(
            at::IPV4_DST,
            &(raw.nw_dst & dst).to_be_bytes(),
            &dst.to_be_bytes(),
        );
    }
    if !ip {
        return;
    }
    if raw.has(NW_TOS) {
        matching.set_bytes(at::IP_TOS, &[raw.nw_tos & 0xfc], &[0xfc]);
    }
    let protocol = if raw.has(NW_PROTO) { raw.nw_proto } else { 0 };
    let icmp = if raw.dl_type == 0x0800 { 1 } else { 58 };
    for (bit, offset, value) in [
        (TP_SRC, at::TP_SRC, raw.tp_src),
        (TP_DST, at::TP_DST, raw.tp_dst),
    ] {
        if !raw.has(bit) {
            continue;
        }
        if protocol == icmp && value < 0x100 {
            // In the form of later versions' ICMP fields, so that both match the same rule.
            let field = match (icmp, bit) {
                (1, TP_SRC) => Field::Icmpv4Type,
                (1, _) => Field::Icmpv4Code,
                (_, TP_SRC) => Field::Icmpv6Type,
                _ => Field::Icmpv6Code,
            };
            matching.set_exact(field, value.into());
        } else if protocol == icmp || matches!(protocol, 6 | 17 | 132) {
            matching.set_bytes(offset, &value.to_be_bytes(), &[0xff; 2]);
        }
    }
}

/// Returns the mask of a prefix from the number of low bits to ignore, all of them from 32 on.
fn prefix_mask(ignored: u32) -> u32 {
    u32::MAX.checked_shl(ignored & 0x3f).unwrap_or(0)
}

/// Encodes a match. Bits that 1.0 cannot express are left out.
pub(crate) fn put_match(out: &mut Vec<u8>, matching: &Match) {
    let number = |value: &Value| value.to_u64();
    let field = |offset, bytes| {
        let (value, mask) = matching.bytes(offset, bytes);
        (number(&value), !mask.is_zero())
    };
    let mut wildcards = 0;
    let mut take = |offset, bytes, bit| {
        let (value, present) = field(offset, bytes);
        if !present {
            wildcards |= bit;
        }
        value
    };
    let in_port = take(at::IN_PORT, 4, IN_PORT) as u32;
    let (dl_src, dl_dst) = (take(at::ETH_SRC, 6, DL_SRC), take(at::ETH_DST, 6, DL_DST));
    let dl_type = take(at::ETH_TYPE, 2, DL_TYPE) as u16;
    let nw_proto = take(at::IP_PROTO, 1, NW_PROTO) as u8;
    let (tp_src, tp_dst) = (take(at::TP_SRC, 2, TP_SRC), take(at::TP_DST, 2, TP_DST));
    let (tos, tos_mask) = matching.bytes(at::IP_TOS, 1);
    if tos_mask[0] & 0xfc == 0 {
        wildcards |= NW_TOS;
    }
    for (offset, shift) in [(at::IPV4_SRC, NW_SRC_SHIFT), (at::IPV4_DST, NW_DST_SHIFT)] {
        let mask = matching.bytes(offset, 4).1.to_u64() as u32;
        wildcards |= (32 - mask.leading_ones()) << shift;
    }
    let (dl_vlan, dl_vlan_pcp, vlan_wildcards) = vlan_of(matching);
    let raw = Raw {
        wildcards: wildcards | vlan_wildcards,
        in_port: in_port as u16,
        dl_src: mac(dl_src),
        dl_dst: mac(dl_dst),
        dl_vlan,
        dl_vlan_pcp,
        dl_type,
        nw_tos: tos[0] & 0xfc,
        nw_proto,
        nw_src: field(at::IPV4_SRC, 4).0 as u32,
        nw_dst: field(at::IPV4_DST, 4).0 as u32,
        tp_src: tp_src as u16,
        tp_dst: tp_dst as u16,
    };
    raw.put(out);
}

fn vlan_of(matching: &Match) -> (u16, u8, u32) {
    let (tci, mask) = matching.bytes(at::VLAN_TCI, 2);
    let (tci, mask) = (tci.to_u64() as u16, mask.to_u64() as u16);
    if mask == 0 {
        return (0, 0, DL_VLAN | DL_VLAN_PCP);
    }
    if mask & VLAN_PRESENT != 0 && tci & VLAN_PRESENT == 0 {
        return (VLAN_NONE, 0, 0);
    }
    let (mut vid, mut pcp, mut wildcards) = (0, 0, 0);
    if mask & 0xfff == 0 {
        wildcards |= DL_VLAN;
    } else {
        vid = tci & 0xfff;
    }
    if mask & 0xe000 == 0 {
        wildcards |= DL_VLAN_PCP;
    } else {
        pcp = (tci >> 13) as u8;
    }
    (vid, pcp, wildcards)
}

fn mac(number: u64) -> [u8; 6] {
    let bytes = number.to_be_bytes();
    [bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}
