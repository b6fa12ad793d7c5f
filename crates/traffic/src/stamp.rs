//! What frames carry: whose they are, their number, their flow and when they were scheduled.
//!
//! A stamp begins where the payload of the innermost UDP or TCP header begins, and with other
//! protocols 8 bytes behind the IP header. All numbers are in network byte order:
//!
//! | bytes | what |
//! | --- | --- |
//! | 2 | `51 1c` |
//! | 1 | the stream |
//! | 1 | the run, so that frames left from another run are nobody's |
//! | 4 | the sequence number, modulo 2^32 |
//! | 6 | the scheduled time in nanoseconds of the sender's clock, modulo 2^48 (78 hours) |
//! | 4 | the flow ([`Layout::Full`] only) |
//!
//! So a frame of 60 bytes has room for the whole with UDP over IPv4 (18 of 18 bytes), and for all
//! but the flow with a VLAN tag (14 of 14); a flow that is not carried follows from the sequence
//! number. With TCP over IPv4 there are 6 bytes ([`Layout::Tcp`]): the first four, the time's most
//! significant 16 bits; the sequence number is TCP's own, the rest of the time in the
//! acknowledgement number.

/// The first two bytes.
pub const MAGIC: u16 = 0x511c;

/// Distance of TCP's sequence number from its payload, behind a header without options.
const TCP_SEQUENCE: usize = 16;

/// Which parts a stamp has, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// All of it: 18 bytes.
    Full,
    /// Without the flow: 14 bytes.
    Short,
    /// 6 bytes, and two numbers of the TCP header in front of it.
    Tcp,
}

/// A stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The stream.
    pub stream: u8,
    /// The run.
    pub run: u8,
    /// The sequence number.
    pub sequence: u32,
    /// The flow, where the layout has it.
    pub flow: u32,
    /// The scheduled time, nanoseconds; 48 bits.
    pub time: u64,
}

impl Layout {
    /// Returns the bytes of payload that it takes.
    pub const fn bytes(self) -> usize {
        match self {
            Layout::Full => 18,
            Layout::Short => 14,
            Layout::Tcp => 6,
        }
    }

    /// Returns the layout for frames with this much payload; None if there is too little room.
    pub fn fitting(payload: usize, tcp: bool) -> Option<Layout> {
        match payload {
            18.. => Some(Layout::Full),
            14.. => Some(Layout::Short),
            6.. if tcp => Some(Layout::Tcp),
            _ => None,
        }
    }

    /// Writes a stamp into a frame whose payload begins at `at`, and returns the one's complement
    /// sum of its words, not folded. The frame must have room for it.
    #[inline(always)]
    pub fn write(self, frame: &mut [u8], at: usize, stamp: &Stamp) -> u64 {
        let who = u64::from(MAGIC) << 16 | u64::from(stamp.stream) << 8 | u64::from(stamp.run);
        let first = who << 32 | u64::from(stamp.sequence);
        let time = stamp.time & 0xffff_ffff_ffff;
        match self {
            Layout::Full => {
                let place = &mut frame[at..at + 18];
                let second = time << 16 | u64::from(stamp.flow >> 16);
                let third = stamp.flow as u16;
                place[..8].copy_from_slice(&first.to_be_bytes());
                place[8..16].copy_from_slice(&second.to_be_bytes());
                place[16..].copy_from_slice(&third.to_be_bytes());
                halves(first) + halves(second) + u64::from(third)
            }
            Layout::Short => {
                let place = &mut frame[at..at + 14];
                place[..8].copy_from_slice(&first.to_be_bytes());
                place[8..].copy_from_slice(&time.to_be_bytes()[2..]);
                halves(first) + halves(time)
            }
            Layout::Tcp => {
                let place = &mut frame[at - TCP_SEQUENCE..at + 6];
                let numbers = u64::from(stamp.sequence) << 32 | time & 0xffff_ffff;
                let behind = who << 16 | time >> 32;
                place[..8].copy_from_slice(&numbers.to_be_bytes());
                place[TCP_SEQUENCE..].copy_from_slice(&behind.to_be_bytes()[2..]);
                halves(numbers) + halves(behind)
            }
        }
    }

    /// Reads the stamp of a frame whose payload begins at `at`. None if it is not one of this run;
    /// the caller looks up the stream's layout with [`owner`].
    #[inline(always)]
    pub fn read(self, frame: &[u8], at: usize) -> Option<Stamp> {
        let (stream, run) = owner(frame, at)?;
        let word = |from: usize| -> Option<u32> {
            let bytes = frame.get(from..from + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().ok()?))
        };
        let half = |from: usize| -> Option<u16> {
            let bytes = frame.get(from..from + 2)?;
            Some(u16::from_be_bytes(bytes.try_into().ok()?))
        };
        let (sequence, time, flow) = match self {
            Layout::Tcp => {
                let numbers = at.checked_sub(TCP_SEQUENCE)?;
                let time = u64::from(half(at + 4)?) << 32 | u64::from(word(numbers + 4)?);
                (word(numbers)?, time, 0)
            }
            Layout::Full | Layout::Short => {
                let time = u64::from(half(at + 8)?) << 32 | u64::from(word(at + 10)?);
                let flow = match self {
                    Layout::Full => word(at + 14)?,
                    _ => 0,
                };
                (word(at + 4)?, time, flow)
            }
        };
        Some(Stamp {
            stream,
            run,
            sequence,
            flow,
            time,
        })
    }
}

/// Returns the stream and the run of the stamp at `at`, if there is one.
#[inline(always)]
pub fn owner(frame: &[u8], at: usize) -> Option<(u8, u8)> {
    let bytes = frame.get(at..at.checked_add(4)?)?;
    let [high, low, stream, run] = *bytes else {
        return None;
    };
    (u16::from_be_bytes([high, low]) == MAGIC).then_some((stream, run))
}

/// Adds the halves of a word, which leaves its one's complement sum as it is.
#[inline(always)]
fn halves(word: u64) -> u64 {
    (word >> 32) + (word & 0xffff_ffff)
}

const ETHERNET: usize = 14;
/// Headers inside headers that are followed, of tags and of tunnels.
const NESTED: usize = 8;

/// Returns where the payload of a frame's innermost header above IP begins: behind VLAN tags, and
/// in VXLAN (UDP port 4789) and Geneve (6081). Headers of other protocols than UDP and TCP are
/// taken for 8 bytes long, as ICMP's are. None if there is no such header.
pub fn payload_at(frame: &[u8]) -> Option<usize> {
    let half = |at: usize| -> Option<u16> {
        let bytes = frame.get(at..at.checked_add(2)?)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let mut start = 0;
    for _ in 0..NESTED {
        let mut at = start + ETHERNET;
        let mut kind = half(at - 2)?;
        for _ in 0..NESTED {
            if !matches!(kind, 0x8100 | 0x88a8) {
                break;
            }
            kind = half(at + 2)?;
            at += 4;
        }
        let protocol = match kind {
            0x0800 => {
                let first = *frame.get(at)?;
                let length = usize::from(first & 15) * 4;
                // Only the first fragment has the header.
                if first >> 4 != 4 || length < 20 || half(at + 6)? & 0x1fff != 0 {
                    return None;
                }
                let protocol = *frame.get(at + 9)?;
                at += length;
                protocol
            }
            0x86dd => {
                let protocol = *frame.get(at + 6)?;
                at += 40;
                protocol
            }
            _ => return None,
        };
        match protocol {
            6 => {
                let length = usize::from(*frame.get(at + 12)? >> 4) * 4;
                return (length >= 20).then_some(at + length);
            }
            17 => {
                let inner = match half(at + 2)? {
                    4789 => at + 16,
                    6081 => at + 16 + usize::from(*frame.get(at + 8)? & 63) * 4,
                    _ => return Some(at + 8),
                };
                // A frame that only looks like a tunnel's carries its stamp right here.
                if owner(frame, at + 8).is_some() || frame.len() < inner + ETHERNET {
                    return Some(at + 8);
                }
                start = inner;
            }
            // ICMP, and what generated frames have for other protocols.
            _ => return Some(at + 8),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build::Builder;
    use packet::checksum::Sum;
    use proptest::prelude::*;

    fn folded(mut sum: u64) -> u16 {
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn a_stamp_is_read_as_written(
            stream: u8, run: u8, sequence: u32, flow: u32, time in 0_u64..1 << 48, kind in 0..3,
        ) {
            let layout = [Layout::Full, Layout::Short, Layout::Tcp][kind as usize];
            let mut frame = vec![0; 80];
            let stamp = Stamp { stream, run, sequence, flow, time };
            let sum = layout.write(&mut frame, 54, &stamp);
            let mut whole = Sum::new();
            whole.add_bytes(&frame);
            prop_assert_eq!(folded(sum), whole.fold());
            let read = layout.read(&frame, 54).unwrap();
            prop_assert_eq!(read.flow, if layout == Layout::Full { flow } else { 0 });
            prop_assert_eq!(Stamp { flow, ..read }, stamp);
            // Nothing is written outside.
            let end = 54 + layout.bytes();
            prop_assert!(frame[end..].iter().all(|&byte| byte == 0));
        }

        #[test]
        fn any_bytes_are_looked_through(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(at) = payload_at(&bytes) {
                for layout in [Layout::Full, Layout::Short, Layout::Tcp] {
                    layout.read(&bytes, at);
                }
            }
        }
    }

    #[test]
    fn payloads_are_found() {
        let plain = || Builder::ethernet([2; 6], [4; 6]);
        let udp = plain().ipv4(1, 2).udp(3, 4).payload(&[9; 20]);
        assert_eq!(payload_at(&udp.bytes()), Some(42));
        let tagged = plain().vlan(5).ipv4(1, 2).tcp(3, 4, 16).payload(&[9; 6]);
        assert_eq!(payload_at(&tagged.bytes()), Some(58));
        let six = plain().ipv6([1; 16], [2; 16]).udp(3, 4).payload(&[9; 20]);
        assert_eq!(payload_at(&six.bytes()), Some(62));
        let inner = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &udp.bytes()].concat();
        let vxlan = plain().ipv4(1, 2).udp(3, 4789).payload(&inner);
        assert_eq!(payload_at(&vxlan.bytes()), Some(92));
        let inner = [
            &[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4],
            &udp.bytes()[..],
        ]
        .concat();
        let geneve = plain().ipv4(1, 2).udp(3, 6081).payload(&inner);
        assert_eq!(payload_at(&geneve.bytes()), Some(96));
        let mut icmp = udp.bytes();
        icmp[23] = 1;
        assert_eq!(payload_at(&icmp), Some(42));
        assert_eq!(
            payload_at(&plain().arp(1, [2; 6], 1, [0; 6], 2).bytes()),
            None
        );
    }
}
