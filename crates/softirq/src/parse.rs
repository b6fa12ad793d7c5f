//! The reference for `bpf/parse.h`: what the XDP program reads from a frame, in simple code. Tests
//! compare the program with it.

use crate::key::{INNER, Key, OUTER, VLAN_NONE, at};
use crate::layout::KEY_BYTES;

/// Position of the flow control field (defined with the paper's VM id and priority bit).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Layout {
    /// There is none.
    #[default]
    None = 0,
    /// In the DSCP: bit 5 is the priority, bits 4 to 0 the VM id. The ECN bits are not used.
    Dscp6 = 1,
    /// In the whole ToS: bit 7 is the priority, bits 6 to 0 the VM id.
    Tos8 = 2,
    /// In the outermost 802.1Q tag: the top PCP bit is the priority, the VLAN id the VM id.
    Vlan = 3,
}

/// Parameters for reading frames.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Position of the flow control field.
    pub layout: Layout,
    /// Whether it is trusted.
    pub trusted: bool,
    /// VXLAN's UDP port.
    pub vxlan_port: u16,
    /// The interface's index.
    pub in_port: u32,
}

const EXTENSIONS_MAX: usize = 6;
const EXTENSIONS: [u8; 4] = [0, 43, 60, 51];
const FRAGMENT: u8 = 44;

fn two(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Parts of one frame.
struct Frame<'a> {
    headers: [u8; 56],
    /// The IP header and what follows it.
    ip: Option<&'a [u8]>,
    /// What follows a complete UDP header.
    udp: Option<&'a [u8]>,
}

fn headers(frame: &[u8]) -> Option<Frame<'_>> {
    let mut out = [0; 56];
    out[at::DL_VLAN..at::DL_VLAN + 2].copy_from_slice(&VLAN_NONE.to_be_bytes());
    let mut found = Frame {
        headers: out,
        ip: None,
        udp: None,
    };
    if frame.len() < 14 {
        return None;
    }
    out[..12].copy_from_slice(&frame[..12]);
    let mut kind = two(frame, 12)?;
    let mut rest = &frame[14..];
    for tag in 0..2 {
        if ![0x8100, 0x88a8].contains(&kind) || rest.len() < 4 {
            break;
        }
        if tag == 0 {
            let control = two(rest, 0)?;
            out[at::DL_VLAN..at::DL_VLAN + 2].copy_from_slice(&(control & 0xfff).to_be_bytes());
            out[at::DL_VLAN_PCP] = (control >> 13) as u8;
        }
        kind = two(rest, 2)?;
        rest = &rest[4..];
    }
    let shown = if kind < 0x600 { 0x5ff } else { kind };
    out[at::DL_TYPE..at::DL_TYPE + 2].copy_from_slice(&shown.to_be_bytes());
    match kind {
        0x0800 => {
            found.ip = Some(rest);
            found.udp = ipv4(rest, &mut out);
        }
        0x86dd => {
            found.ip = Some(rest);
            found.udp = ipv6(rest, &mut out);
        }
        0x0806 if rest.len() >= 28 && rest[..6] == [0, 1, 8, 0, 6, 4] => {
            out[at::NW_PROTO] = rest[7];
            out[at::NW_SRC..at::NW_SRC + 4].copy_from_slice(&rest[14..18]);
            out[at::NW_DST..at::NW_DST + 4].copy_from_slice(&rest[24..28]);
        }
        _ => {}
    }
    found.headers = out;
    Some(found)
}

fn ipv4<'a>(rest: &'a [u8], out: &mut [u8; 56]) -> Option<&'a [u8]> {
    if rest.len() < 20 || rest[0] >> 4 != 4 || rest[0] & 15 < 5 {
        return None;
    }
    out[at::NW_TOS] = rest[1] & 0xfc;
    out[at::NW_PROTO] = rest[9];
    out[at::NW_SRC..at::NW_SRC + 4].copy_from_slice(&rest[12..16]);
    out[at::NW_DST..at::NW_DST + 4].copy_from_slice(&rest[16..20]);
    let fragment = two(rest, 6)?;
    if fragment & 0x3fff != 0 {
        out[at::FRAG] = if fragment & 0x1fff == 0 { 1 } else { 3 };
        return None;
    }
    let length = usize::from(rest[0] & 15) * 4;
    transport(rest.get(length..)?, rest[9], out)
}

fn ipv6<'a>(mut rest: &'a [u8], out: &mut [u8; 56]) -> Option<&'a [u8]> {
    if rest.len() < 40 || rest[0] >> 4 != 6 {
        return None;
    }
    out[at::NW_TOS] = (rest[0] << 4 | rest[1] >> 4) & 0xfc;
    out[at::NW_SRC..at::NW_SRC + 16].copy_from_slice(&rest[8..24]);
    out[at::NW_DST..at::NW_DST + 16].copy_from_slice(&rest[24..40]);
    let mut next = rest[6];
    rest = &rest[40..];
    for _ in 0..EXTENSIONS_MAX {
        out[at::NW_PROTO] = next;
        if next == FRAGMENT {
            let header = rest.get(..8)?;
            out[at::NW_PROTO] = header[0];
            out[at::FRAG] = if two(header, 2)? & 0xfff8 == 0 { 1 } else { 3 };
            return None;
        }
        if !EXTENSIONS.contains(&next) {
            return transport(rest, next, out);
        }
        let header = rest.get(..8)?;
        let length = match next {
            51 => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        next = header[0];
        out[at::NW_PROTO] = next;
        // If the frame is too short the rest is empty.
        rest = rest.get(length..).unwrap_or(&[]);
    }
    match EXTENSIONS.contains(&next) || next == FRAGMENT {
        true => None,
        false => transport(rest, next, out),
    }
}

fn transport<'a>(rest: &'a [u8], protocol: u8, out: &mut [u8; 56]) -> Option<&'a [u8]> {
    match protocol {
        6 | 17 | 132 => {
            out[at::TP_SRC..at::TP_SRC + 4].copy_from_slice(rest.get(..4)?);
            rest.get(8..).filter(|_| protocol == 17)
        }
        1 | 58 => {
            let header = rest.get(..2)?;
            (out[at::TP_SRC + 1], out[at::TP_DST + 1]) = (header[0], header[1]);
            None
        }
        _ => None,
    }
}

/// Returns a frame's key; none if its Ethernet header is incomplete.
pub fn key(frame: &[u8], reading: &Reading) -> Option<Key> {
    let outer = headers(frame)?;
    let mut key = [0; KEY_BYTES];
    key[..4].copy_from_slice(&reading.in_port.to_be_bytes());
    key[OUTER..INNER].copy_from_slice(&outer.headers);
    if let Some(udp) = outer.udp
        && two(&outer.headers, at::TP_DST) == Some(reading.vxlan_port)
        && udp.len() >= 8
        && udp[0] & 8 != 0
    {
        key[4] = 1;
        key[5..8].copy_from_slice(&udp[4..7]);
        let none = || {
            let mut headers = [0; 56];
            headers[at::DL_VLAN..at::DL_VLAN + 2].copy_from_slice(&VLAN_NONE.to_be_bytes());
            headers
        };
        let inner = headers(&udp[8..]).map_or_else(none, |inner| inner.headers);
        key[INNER..].copy_from_slice(&inner);
    }
    if let Some((vm, priority)) = fcf(&outer, reading.layout)
        && reading.trusted
    {
        key[8..10].copy_from_slice(&vm.to_be_bytes());
        key[10] = u8::from(priority);
        key[11] = 1;
    }
    Some(key)
}

/// Returns the flow control field: VM id and priority bit. A field of zeros counts as none.
fn fcf(outer: &Frame<'_>, layout: Layout) -> Option<(u16, bool)> {
    let tos = || {
        let ip = outer.ip?;
        let kind = two(&outer.headers, at::DL_TYPE)?;
        match (kind, ip.first()? >> 4) {
            (0x0800, 4) => ip.get(1).copied(),
            (0x86dd, 6) => Some(ip[0] << 4 | ip.get(1)? >> 4),
            _ => None,
        }
    };
    let found = match layout {
        Layout::None => None,
        Layout::Dscp6 => tos().map(|tos| (u16::from(tos >> 2 & 31), tos & 0x80 != 0)),
        Layout::Tos8 => tos().map(|tos| (u16::from(tos & 127), tos & 0x80 != 0)),
        Layout::Vlan => {
            let id = two(&outer.headers, at::DL_VLAN)?;
            let pcp = outer.headers[at::DL_VLAN_PCP];
            (1..=4094).contains(&id).then_some((id, pcp & 4 != 0))
        }
    };
    found.filter(|field| *field != (0, false))
}

fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

/// Returns the hash that identifies a key's flow.
pub fn flow(key: &Key, seed: u64) -> u64 {
    let start = if key[4] != 0 { INNER } else { OUTER };
    let mut headers = [0; 56];
    headers.copy_from_slice(&key[start..start + 56]);
    headers[at::DL_VLAN_PCP] = 0;
    headers[at::NW_TOS] = 0;
    headers[at::FRAG] = 0;
    let tunnel = u32::from_ne_bytes([key[4], key[5], key[6], key[7]]);
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    let words = headers.chunks_exact(8).map(word);
    words.fold(mix(seed, u64::from(tunnel)), mix)
}
