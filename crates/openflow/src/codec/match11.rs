//! `ofp_match` of OpenFlow 1.1 (section A.2.3): 88 bytes, with masks for addresses and metadata in
//! which a set bit means "ignore".

use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::port;
use packet::key::at;
use packet::{Field, Match};

/// Length in bytes.
pub(crate) const LENGTH: usize = 88;

const IN_PORT: u32 = 1 << 0;
const DL_VLAN: u32 = 1 << 1;
const DL_VLAN_PCP: u32 = 1 << 2;
const DL_TYPE: u32 = 1 << 3;
const NW_TOS: u32 = 1 << 4;
const NW_PROTO: u32 = 1 << 5;
const TP_SRC: u32 = 1 << 6;
const TP_DST: u32 = 1 << 7;
const MPLS_LABEL: u32 = 1 << 8;
const MPLS_TC: u32 = 1 << 9;

/// `OFPVID_ANY` and `OFPVID_NONE`.
const VLAN_ANY: u16 = 0xfffe;
const VLAN_NONE: u16 = 0xffff;
const VLAN_PRESENT: u16 = 0x1000;

/// Decodes a match with its header (type 0, length 88).
pub(crate) fn take_match(reader: &mut Reader<'_>) -> Result<Match, Error> {
    let bytes = reader.take(LENGTH).map_err(|_| Error::BadMatchLength)?;
    let mut r = Reader::new(bytes, Error::BadMatchLength);
    let (_kind, length) = (r.u16()?, r.u16()?);
    if usize::from(length) != LENGTH {
        return Err(Error::BadMatchLength);
    }
    let mut matching = Match::any();
    let (in_port, wildcards) = (r.u32()?, r.u32()?);
    let has = |bit| wildcards & bit == 0;
    if has(IN_PORT) {
        port::to_u16(in_port).ok_or(Error::BadMatchValue)?;
        matching.set_exact(Field::InPortOxm, in_port.into());
    }
    for offset in [at::ETH_SRC, at::ETH_DST] {
        let (address, ignored) = (r.mac()?, r.mac()?);
        matching.set_bytes(offset, &address, &ignored.map(|byte| !byte));
    }
    let (vlan, pcp) = (r.u16()?, r.u8()?);
    r.skip(1)?;
    if has(DL_VLAN) {
        add_vlan(&mut matching, vlan, has(DL_VLAN_PCP).then_some(pcp))?;
    }
    let dl_type = r.u16()?;
    let (tos, protocol) = (r.u8()?, r.u8()?);
    let addresses = [
        (at::IPV4_SRC, r.u32()?, !r.u32()?),
        (at::IPV4_DST, r.u32()?, !r.u32()?),
    ];
    let ports = [
        (TP_SRC, at::TP_SRC, r.u16()?),
        (TP_DST, at::TP_DST, r.u16()?),
    ];
    let (label, tc) = (r.u32()?, r.u8()?);
    r.skip(3)?;
    if has(DL_TYPE) {
        matching.set_exact(Field::EthType, dl_type.into());
        let ipv4 = dl_type == 0x0800;
        if ipv4 && has(NW_TOS) {
            if tos & 3 != 0 {
                return Err(Error::BadMatchValue);
            }
            matching.set_bytes(at::IP_TOS, &[tos], &[0xfc]);
        }
        if ipv4 || matches!(dl_type, 0x0806 | 0x8035) {
            if has(NW_PROTO) {
                matching.set_bytes(at::IP_PROTO, &[protocol], &[0xff]);
            }
            for (offset, address, mask) in addresses {
                matching.set_bytes(offset, &address.to_be_bytes(), &mask.to_be_bytes());
            }
        }
        if ipv4 && has(NW_PROTO) {
            for (bit, offset, value) in ports {
                if has(bit) {
                    add_port(&mut matching, protocol, offset, value)?;
                }
            }
        }
        if matches!(dl_type, 0x8847 | 0x8848) {
            if has(MPLS_LABEL) {
                set(&mut matching, Field::MplsLabel, label)?;
            }
            if has(MPLS_TC) {
                set(&mut matching, Field::MplsTc, tc.into())?;
            }
        }
    }
    let (metadata, ignored) = (r.u64()?, r.u64()?);
    matching.set_bytes(
        at::METADATA,
        &metadata.to_be_bytes(),
        &(!ignored).to_be_bytes(),
    );
    Ok(matching)
}

fn set(matching: &mut Match, field: Field, value: u32) -> Result<(), Error> {
    if u64::from(value) >> field.def().bits != 0 {
        return Err(Error::BadMatchValue);
    }
    matching.set_exact(field, value.into());
    Ok(())
}

fn add_vlan(matching: &mut Match, vlan: u16, pcp: Option<u8>) -> Result<(), Error> {
    let (mut tci, mut mask) = match vlan {
        VLAN_NONE => (0, 0xffff),
        VLAN_ANY => (VLAN_PRESENT, VLAN_PRESENT),
        0..=0xfff => (VLAN_PRESENT | vlan, VLAN_PRESENT | 0xfff),
        _ => return Err(Error::BadMatchValue),
    };
    // A priority contradicts "no tag"; it is ignored, as in 1.0.
    if let Some(pcp) = pcp
        && vlan != VLAN_NONE
    {
        if pcp > 7 {
            return Err(Error::BadMatchValue);
        }
        tci |= u16::from(pcp) << 13;
        mask |= 0xe000;
    }
    matching.set_bytes(at::VLAN_TCI, &tci.to_be_bytes(), &mask.to_be_bytes());
    Ok(())
}

fn add_port(matching: &mut Match, protocol: u8, offset: usize, value: u16) -> Result<(), Error> {
    match protocol {
        1 if value > 0xff => return Err(Error::BadMatchField),
        1 if offset == at::TP_SRC => matching.set_exact(Field::Icmpv4Type, value.into()),
        1 => matching.set_exact(Field::Icmpv4Code, value.into()),
        6 | 17 | 132 => matching.set_bytes(offset, &value.to_be_bytes(), &[0xff; 2]),
        _ => {}
    }
    Ok(())
}

/// Encodes a match with its header. Bits that 1.1 cannot express are left out.
pub(crate) fn put_match(out: &mut Vec<u8>, matching: &Match) {
    let mut wildcards = 0;
    let mut take = |field: Field, bit| {
        let (value, mask) = matching.get(field);
        let speaks = !mask.is_zero() && field.def().prerequisite.met_by(matching);
        if !speaks {
            wildcards |= bit;
            return 0;
        }
        value.to_u64() >> field.def().shift
    };
    let in_port = take(Field::InPortOxm, IN_PORT) as u32;
    let dl_type = take(Field::EthType, DL_TYPE) as u16;
    let tos = (take(Field::IpDscpShifted, NW_TOS) << 2) as u8;
    let (label, tc) = (
        take(Field::MplsLabel, MPLS_LABEL) as u32,
        take(Field::MplsTc, MPLS_TC) as u8,
    );
    let raw = |offset, bytes| {
        let (value, mask) = matching.bytes(offset, bytes);
        (value, mask)
    };
    let mut present = |offset, bytes, bit| {
        let (value, mask) = raw(offset, bytes);
        if mask.is_zero() {
            wildcards |= bit;
        }
        value.to_u64()
    };
    let protocol = present(at::IP_PROTO, 1, NW_PROTO) as u8;
    let ports = (
        present(at::TP_SRC, 2, TP_SRC) as u16,
        present(at::TP_DST, 2, TP_DST) as u16,
    );
    let (vlan, pcp, vlan_wildcards) = vlan_of(matching);
    out.put_u16(0);
    out.put_u16(LENGTH as u16);
    out.put_u32(in_port);
    out.put_u32(wildcards | vlan_wildcards);
    let put_masked = |out: &mut Vec<u8>, offset, bytes| {
        let (value, mask) = raw(offset, bytes);
        out.put(&value);
        out.extend(mask.iter().map(|byte| !byte));
    };
    put_masked(out, at::ETH_SRC, 6);
    put_masked(out, at::ETH_DST, 6);
    out.put_u16(vlan);
    out.put_u8(pcp);
    out.pad(1);
    out.put_u16(dl_type);
    out.put_u8(tos);
    out.put_u8(protocol);
    put_masked(out, at::IPV4_SRC, 4);
    put_masked(out, at::IPV4_DST, 4);
    out.put_u16(ports.0);
    out.put_u16(ports.1);
    out.put_u32(label);
    out.put_u8(tc);
    out.pad(3);
    put_masked(out, at::METADATA, 8);
}

fn vlan_of(matching: &Match) -> (u16, u8, u32) {
    let (tci, mask) = matching.bytes(at::VLAN_TCI, 2);
    let (tci, mask) = (tci.to_u64() as u16, mask.to_u64() as u16);
    if mask == 0 {
        return (0, 0, DL_VLAN | DL_VLAN_PCP);
    }
    if mask & VLAN_PRESENT != 0 && tci & VLAN_PRESENT == 0 {
        return (VLAN_NONE, 0, DL_VLAN_PCP);
    }
    let vid = if mask & 0xfff == 0 {
        VLAN_ANY
    } else {
        tci & 0xfff
    };
    if mask & 0xe000 == 0 {
        return (vid, 0, DL_VLAN_PCP);
    }
    (vid, (tci >> 13) as u8, 0)
}
