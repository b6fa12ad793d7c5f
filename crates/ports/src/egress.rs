//! Prepares frames for devices that cannot send them as they are.
//!
//! A frame may need something that the device does not do: a checksum filled in, a 64 KiB TCP frame
//! cut into segments, a chain of buffers sent as one. Most frames need nothing, and a burst of
//! those costs one scan over words that are in the cache. The rest are prepared here, in software,
//! before the device gets them.

use crate::mbuf::{self, Mbuf};
use crate::raw::flag;
use packet::frame::{Frame, Gso, Offload};
use packet::io::{BURST, TxOutcome};
use packet::segment::{Cut, SegmentError};

/// Capabilities of a device.
pub(crate) struct Abilities {
    /// Longest frame, in bytes, after segmentation.
    pub longest: u32,
    /// Whether it fills in TCP and UDP checksums.
    pub checksum: bool,
    /// Whether it segments TCP over IPv4 and IPv6.
    pub tcp_segmentation: bool,
    /// Whether it segments UDP.
    pub udp_segmentation: bool,
    /// Whether it takes frames of several buffers.
    pub chains: bool,
}

/// Results of scanning a burst.
pub(crate) struct Scan {
    /// Whether some frame has offload work, or is too long.
    pub special: bool,
    /// Whether some frame has several buffers.
    pub chained: bool,
    /// Bytes of all frames.
    pub bytes: u64,
}

/// Scans a burst; `longest` is the longest frame that may pass.
#[inline]
pub(crate) fn scan(frames: &[Mbuf], longest: u32) -> Scan {
    let mut flags = 0;
    let mut segments = 0;
    let mut bytes = 0;
    // The highest bit is set once a frame is too long. Only one instruction per frame depends on
    // the frame before.
    let mut over = 0;
    for frame in frames {
        let raw = frame.raw();
        let length = u64::from(raw.packet_len);
        flags |= raw.flags;
        segments |= raw.segments;
        over |= u64::from(longest).wrapping_sub(length);
        bytes += length;
    }
    Scan {
        special: flags & mbuf::WORK != 0 || over >> 63 != 0,
        // Each frame has at least one segment.
        chained: segments > 1,
        bytes,
    }
}

/// Frames that are prepared and held before they are sent: a frame of 64 KiB may become more than a
/// thousand, and a whole burst of them would take all buffers.
pub(crate) const SLICE: usize = BURST;

/// Replaces frames that the device cannot send by ones that it can, in the same order, and passes
/// them to `send`, a slice of [`SLICE`] at a time. Frames that cannot be sent at all are counted.
/// If the device has no room for any frame of a slice, the frames behind it are not cut but counted
/// as `full`. `frames` and `slice` are empty afterwards; `send` must leave the latter empty.
#[cold]
pub(crate) fn send_in_slices(
    frames: &mut Vec<Mbuf>,
    slice: &mut Vec<Mbuf>,
    abilities: &Abilities,
    mut send: impl FnMut(&mut Vec<Mbuf>) -> TxOutcome,
) -> TxOutcome {
    let mut outcome = TxOutcome::default();
    let mut work = Preparation {
        frames: frames.drain(..),
        cut: None,
        abilities,
    };
    while work.fill(slice, &mut outcome) {
        let sent = send(slice);
        outcome += sent;
        if sent.packets == 0 && sent.full > 0 {
            outcome.full += work.left();
            break;
        }
    }
    outcome
}

/// Frames for a device that cannot send all of them as they are.
struct Preparation<'a> {
    frames: std::vec::Drain<'a, Mbuf>,
    /// The frame being cut into segments.
    cut: Option<Cut<Mbuf>>,
    abilities: &'a Abilities,
}

impl Preparation<'_> {
    /// Puts the next frames into `slice`, which is empty; false when there are none left.
    fn fill(&mut self, slice: &mut Vec<Mbuf>, outcome: &mut TxOutcome) -> bool {
        while slice.len() < SLICE {
            if let Some(cut) = &mut self.cut {
                match cut.next() {
                    Some(Ok(segment)) if segment.len() > self.abilities.longest as usize => {
                        outcome.too_long += 1;
                    }
                    Some(Ok(segment)) => {
                        finish(segment, &Offload::default(), slice, self.abilities, outcome);
                    }
                    Some(Err(_)) => outcome.failed += 1,
                    None => self.cut = None,
                }
                continue;
            }
            let Some(frame) = self.frames.next() else {
                break;
            };
            self.cut = prepare_one(frame, slice, self.abilities, outcome);
        }
        !slice.is_empty()
    }

    /// Returns how many frames have not been put into a slice.
    fn left(&self) -> u64 {
        let segments = self.cut.as_ref().map_or(0, Cut::left);
        (segments + self.frames.len()) as u64
    }
}

/// Prepares one frame and puts it into `out`, or counts it. Returns a frame that must be cut in
/// software.
fn prepare_one(
    frame: Mbuf,
    out: &mut Vec<Mbuf>,
    abilities: &Abilities,
    outcome: &mut TxOutcome,
) -> Option<Cut<Mbuf>> {
    let offload = frame.offload();
    if offload.gso == Gso::None {
        if frame.len() > abilities.longest as usize {
            outcome.too_long += 1;
        } else {
            finish(frame, &offload, out, abilities, outcome);
        }
        return None;
    }
    if packet::segment::asks_too_much(&frame) {
        // Segments this small would also overload devices and the kernel.
        outcome.tiny_segments += 1;
        return None;
    }
    let able = match offload.gso {
        Gso::UdpL4 => abilities.udp_segmentation,
        _ => abilities.tcp_segmentation,
    };
    match transport(&frame, &offload) {
        Some(found) if able && abilities.chains => {
            let segment = u32::from(found.l2 + found.l3 + found.l4) + u32::from(offload.gso_size);
            if segment > abilities.longest {
                outcome.too_long += 1;
            } else {
                out.push(frame);
            }
            None
        }
        _ => match Cut::new(frame) {
            Ok(cut) => Some(cut),
            Err(SegmentError::Size) => {
                outcome.tiny_segments += 1;
                None
            }
            Err(_) => {
                outcome.failed += 1;
                None
            }
        },
    }
}

/// Does the remaining work on a frame that needs no segmentation.
fn finish(
    mut frame: Mbuf,
    offload: &Offload,
    out: &mut Vec<Mbuf>,
    abilities: &Abilities,
    outcome: &mut TxOutcome,
) {
    let by_device = abilities.checksum && transport(&frame, offload).is_some();
    let whole =
        !offload.partial_checksum || by_device || packet::checksum::finish_partial(&mut frame);
    if whole && (abilities.chains || frame.linearize(usize::MAX)) {
        out.push(frame);
    } else {
        outcome.failed += 1;
    }
}

/// Positions of a frame's headers, as devices need them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transport {
    /// Bytes before the IP header.
    pub l2: u16,
    /// Bytes of the IP header, with IPv6 extension headers.
    pub l3: u16,
    /// Bytes of the TCP or UDP header.
    pub l4: u16,
    pub ipv6: bool,
    pub tcp: bool,
}

/// Most VLAN tags in front of the IP header that are skipped.
const MAX_TAGS: usize = 4;

/// Most IPv6 extension headers that are skipped.
const MAX_EXTENSIONS: usize = 8;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Finds the TCP or UDP header of an Ethernet frame that is not a fragment, in its first segment.
pub(crate) fn locate(bytes: &[u8]) -> Option<Transport> {
    let mut at = 12;
    let mut tags = 0;
    let ethertype = loop {
        match be16(bytes, at)? {
            0x8100 | 0x88a8 | 0x9100 if tags < MAX_TAGS => {
                tags += 1;
                at += 4;
            }
            other => break other,
        }
    };
    let l2 = at + 2;
    let (l3, protocol, ipv6) = match ethertype {
        0x0800 => {
            let first = *bytes.get(l2)?;
            let header = usize::from(first & 15) * 4;
            let fragment = be16(bytes, l2 + 6)? & 0x3fff != 0;
            if first >> 4 != 4 || header < 20 || fragment {
                return None;
            }
            (header, *bytes.get(l2 + 9)?, false)
        }
        0x86dd => {
            let (header, protocol) = ipv6_headers(bytes, l2)?;
            (header, protocol, true)
        }
        _ => return None,
    };
    let l4_at = l2 + l3;
    let (l4, tcp) = match protocol {
        6 => (usize::from(*bytes.get(l4_at + 12)? >> 4) * 4, true),
        17 => (8, false),
        _ => return None,
    };
    if l4 < 8 || (tcp && l4 < 20) || bytes.len() < l4_at + l4 {
        return None;
    }
    Some(Transport {
        l2: l2 as u16,
        l3: l3 as u16,
        l4: l4 as u16,
        ipv6,
        tcp,
    })
}

/// Returns the length of the IPv6 header at `l2` with its extension headers, and the protocol
/// behind them.
fn ipv6_headers(bytes: &[u8], l2: usize) -> Option<(usize, u8)> {
    if bytes.get(l2)? >> 4 != 6 {
        return None;
    }
    let mut next = *bytes.get(l2 + 6)?;
    let mut length = 40;
    for _ in 0..MAX_EXTENSIONS {
        match next {
            0 | 43 | 60 => {
                next = *bytes.get(l2 + length)?;
                length += usize::from(*bytes.get(l2 + length + 1)?) * 8 + 8;
            }
            _ => return Some((length, next)),
        }
    }
    None
}

/// Returns the headers to which `offload` refers, if they are those that [`locate`] finds and not,
/// say, those inside a tunnel.
pub(crate) fn transport(frame: &Mbuf, offload: &Offload) -> Option<Transport> {
    let found = locate(frame.head())?;
    let offset = if found.tcp { 16 } else { 6 };
    (offload.csum_start == found.l2 + found.l3 && offload.csum_offset == offset).then_some(found)
}

/// Sets the frame's flags for the work that the driver has to do. Returns whether there is any.
pub(crate) fn mark_for_driver(frame: &mut Mbuf) -> bool {
    if !frame.has_work() {
        return false;
    }
    let offload = frame.offload();
    let found = transport(frame, &offload);
    frame.clear_flags();
    let Some(found) = found else {
        return false;
    };
    let raw = frame.raw_mut();
    raw.flags |= if found.ipv6 {
        flag::TX_IPV6
    } else {
        flag::TX_IPV4
    };
    raw.flags |= if found.tcp {
        flag::TX_TCP_CKSUM
    } else {
        flag::TX_UDP_CKSUM
    };
    raw.tx_offload = u64::from(found.l2) | u64::from(found.l3) << 7;
    if matches!(offload.gso, Gso::Tcp4 | Gso::Tcp6) {
        raw.flags |= flag::TX_TCP_SEG;
        if !found.ipv6 {
            // Segments have different lengths, so the device must compute their IP checksums.
            raw.flags |= flag::TX_IP_CKSUM;
        }
        raw.tx_offload |= u64::from(found.l4) << 16 | u64::from(offload.gso_size) << 24;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::RawMbuf;
    use std::mem::ManuallyDrop;
    use std::ptr::NonNull;

    /// Scans frames with these flags, lengths and numbers of segments.
    fn scanned(frames: &[(u64, u32, u16)], longest: u32) -> (bool, bool, u64) {
        let raw = |&(flags, packet_len, segments): &(u64, u32, u16)| {
            // SAFETY: all zeroes is a valid value.
            let mut raw: RawMbuf = unsafe { std::mem::zeroed() };
            (raw.flags, raw.packet_len, raw.segments) = (flags, packet_len, segments);
            raw
        };
        let mut raw: Vec<RawMbuf> = frames.iter().map(raw).collect();
        // SAFETY: these are not frames of a pool, as `from_raw` requires. But only `scan` uses
        // them, which reads the three fields that are set, and they are never dropped.
        let of = |raw: &mut RawMbuf| unsafe { Mbuf::from_raw(NonNull::from(raw)) };
        let frames = ManuallyDrop::new(raw.iter_mut().map(of).collect::<Vec<Mbuf>>());
        let scan = scan(&frames, longest);
        (scan.special, scan.chained, scan.bytes)
    }

    #[test]
    fn a_scan_sees_work_chains_and_long_frames() {
        let plain = (flag::RX_L4_CKSUM_GOOD, 60, 1);
        let with = |one| scanned(&[plain, one, plain], 1518);
        assert_eq!(scanned(&[], 1518), (false, false, 0));
        assert_eq!(with((0, 1518, 1)), (false, false, 1638));
        assert_eq!(with((0, 1519, 1)), (true, false, 1639));
        assert_eq!(with((0, u32::MAX, 1)), (true, false, 120 + 0xffff_ffff));
        assert_eq!(with((mbuf::WORK, 60, 1)), (true, false, 180));
        assert_eq!(with((0, 60, 2)), (false, true, 180));
        assert_eq!(with((0, 60, u16::MAX)), (false, true, 180));
        assert_eq!(scanned(&[plain; 64], u32::MAX), (false, false, 3840));
    }
}
