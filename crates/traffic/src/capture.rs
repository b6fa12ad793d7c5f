//! Reads pcap and pcapng files, and writes pcap files.
//!
//! Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. Only Ethernet frames that were
//! captured whole are taken: others cannot be sent as they were.

// By its path, since the fuzz target has this module by its own path.
#[path = "capture/error.rs"]
mod error;

pub use self::error::{BlockDefect, CaptureError};

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

/// Most bytes of a file.
pub const MOST_BYTES: u64 = 1 << 30;
/// Longest frame, bytes.
pub const LONGEST: usize = 65_000;
/// Most interfaces of a pcapng section.
const INTERFACES: usize = 1 << 16;

const ETHERNET: u32 = 1;
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// A frame of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recorded {
    /// Nanoseconds after the first frame; never less than that of the frame before.
    time: u64,
    start: usize,
    length: usize,
}

/// The frames of a file.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    bytes: Vec<u8>,
    frames: Vec<Recorded>,
}

impl Capture {
    /// Reads a file of up to 1 GiB.
    pub fn open(path: &Path) -> Result<Capture, CaptureError> {
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(CaptureError::TooLarge);
        }
        Capture::read(bytes)
    }

    /// Reads the contents of a file.
    pub fn read(bytes: Vec<u8>) -> Result<Capture, CaptureError> {
        let mut found = Found::default();
        let first: [u8; 4] = bytes
            .get(..4)
            .and_then(|first| first.try_into().ok())
            .ok_or(CaptureError::TooShort)?;
        match (u32::from_le_bytes(first), u32::from_be_bytes(first)) {
            (SECTION, _) => blocks(&bytes, &mut found)?,
            (0xa1b2_c3d4, _) => records(&bytes, false, 1_000, &mut found)?,
            (0xa1b2_3c4d, _) => records(&bytes, false, 1, &mut found)?,
            (_, 0xa1b2_c3d4) => records(&bytes, true, 1_000, &mut found)?,
            (_, 0xa1b2_3c4d) => records(&bytes, true, 1, &mut found)?,
            (magic, _) => return Err(CaptureError::Format(magic)),
        }
        Ok(Capture {
            bytes,
            frames: found.frames,
        })
    }

    /// Returns how many frames there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the bytes of a frame.
    ///
    /// # Panics
    /// If there are not so many frames.
    #[inline(always)]
    pub fn frame(&self, number: usize) -> &[u8] {
        let frame = self.frames[number];
        &self.bytes[frame.start..frame.start + frame.length]
    }

    /// Returns the times of the frames in nanoseconds after the first; they never decrease.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        self.frames.iter().map(|frame| frame.time)
    }
}

/// What has been found so far.
#[derive(Default)]
struct Found {
    frames: Vec<Recorded>,
    first: Option<u128>,
}

impl Found {
    /// Adds a frame that was recorded at this time, in nanoseconds; None: at that of the last one.
    fn add(
        &mut self,
        time: Option<u128>,
        start: usize,
        length: usize,
        whole: usize,
    ) -> Result<(), CaptureError> {
        let number = self.frames.len() + 1;
        if length != whole {
            return Err(CaptureError::FrameCut {
                number,
                captured: length,
                length: whole,
            });
        }
        if !(14..=LONGEST).contains(&length) {
            return Err(CaptureError::FrameLength { number, length });
        }
        let last = self.frames.last().map_or(0, |frame| frame.time);
        let time = time.map_or(last, |time| {
            let first = *self.first.get_or_insert(time);
            u64::try_from(time.saturating_sub(first)).unwrap_or(u64::MAX)
        });
        self.frames.push(Recorded {
            time: time.max(last),
            start,
            length,
        });
        Ok(())
    }
}

/// Bytes with numbers in one byte order.
#[derive(Clone, Copy)]
struct Numbers<'a> {
    bytes: &'a [u8],
    big: bool,
}

impl Numbers<'_> {
    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(match self.big {
            true => u32::from_be_bytes(bytes),
            false => u32::from_le_bytes(bytes),
        })
    }

    fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(match self.big {
            true => u16::from_be_bytes(bytes),
            false => u16::from_le_bytes(bytes),
        })
    }
}

fn check_link(link: u32) -> Result<(), CaptureError> {
    match link {
        ETHERNET => Ok(()),
        other => Err(CaptureError::LinkType(other)),
    }
}

/// Reads pcap; `unit` is a fraction's nanoseconds.
fn records(bytes: &[u8], big: bool, unit: u128, found: &mut Found) -> Result<(), CaptureError> {
    let numbers = Numbers { bytes, big };
    let link = numbers.u32(20).ok_or(CaptureError::HeaderCut)?;
    // The most significant bits tell about frame check sequences.
    check_link(link & 0xffff)?;
    let mut at = 24;
    while at < bytes.len() {
        let cut = || CaptureError::RecordCut(at);
        let word = |index: usize| numbers.u32(at + 4 * index).ok_or_else(cut);
        let (seconds, fraction, length, whole) = (word(0)?, word(1)?, word(2)?, word(3)?);
        let (length, whole) = (length as usize, whole as usize);
        let start = at + 16;
        if length > bytes.len() - start {
            return Err(cut());
        }
        let time = u128::from(seconds) * 1_000_000_000 + u128::from(fraction) * unit;
        found.add(Some(time), start, length, whole)?;
        at = start + length;
    }
    Ok(())
}

/// An interface of a pcapng section.
#[derive(Clone, Copy)]
struct Interface {
    link: u32,
    /// Time stamps a second.
    rate: u128,
    /// Seconds to add.
    offset: i64,
}

impl Interface {
    fn time(&self, high: u32, low: u32) -> u128 {
        let stamp = u128::from(high) << 32 | u128::from(low);
        let ns = stamp * 1_000_000_000 / self.rate;
        ns.saturating_add_signed(i128::from(self.offset) * 1_000_000_000)
    }
}

/// Reads pcapng.
fn blocks(bytes: &[u8], found: &mut Found) -> Result<(), CaptureError> {
    let mut big = false;
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let cut = || CaptureError::BlockCut(at);
        let bad = |defect| CaptureError::Block { at, defect };
        let is_section = bytes.get(at..at + 4) == Some(&SECTION.to_be_bytes()[..]);
        if is_section {
            let order = Numbers { bytes, big: true }.u32(at + 8).ok_or_else(cut)?;
            big = match order {
                BYTE_ORDER => true,
                other if other.swap_bytes() == BYTE_ORDER => false,
                _ => return Err(bad(BlockDefect::ByteOrder)),
            };
            interfaces.clear();
        }
        let numbers = Numbers { bytes, big };
        let kind = numbers.u32(at).ok_or_else(cut)?;
        let length = numbers.u32(at + 4).ok_or_else(cut)? as usize;
        if length < 12 || !length.is_multiple_of(4) {
            return Err(bad(BlockDefect::Length(length)));
        }
        if length > bytes.len() - at {
            return Err(cut());
        }
        let end = at + length - 4;
        if numbers.u32(end) != Some(length as u32) {
            return Err(bad(BlockDefect::Lengths));
        }
        // The block's own numbers.
        let body = Numbers {
            bytes: &bytes[..end],
            big,
        };
        let word = |index: usize| {
            body.u32(at + 8 + 4 * index)
                .ok_or_else(|| bad(BlockDefect::TooShort))
        };
        let mut add = |interface: usize, time: Option<(u32, u32)>, start: usize, length, whole| {
            let interface = interfaces
                .get(interface)
                .ok_or_else(|| bad(BlockDefect::Interface))?;
            check_link(interface.link)?;
            if length > end.saturating_sub(start) {
                return Err(bad(BlockDefect::Frame));
            }
            let time = time.map(|(high, low)| interface.time(high, low));
            found.add(time, start, length, whole)
        };
        match kind {
            // Interface description
            1 => {
                if interfaces.len() >= INTERFACES {
                    return Err(bad(BlockDefect::TooManyInterfaces));
                }
                let link = u32::from(body.u16(at + 8).ok_or_else(|| bad(BlockDefect::TooShort))?);
                word(1)?;
                interfaces.push(interface(&body, link, at + 16).map_err(bad)?);
            }
            // Simple packet: without a time, on the first interface
            3 => {
                let whole = word(0)? as usize;
                let start = at + 12;
                add(0, None, start, whole.min(end - start), whole)?;
            }
            // Enhanced packet
            6 => {
                let (interface, high, low) = (word(0)? as usize, word(1)?, word(2)?);
                let (length, whole) = (word(3)? as usize, word(4)? as usize);
                add(interface, Some((high, low)), at + 28, length, whole)?;
            }
            // Packet (obsolete)
            2 => {
                let interface =
                    usize::from(body.u16(at + 8).ok_or_else(|| bad(BlockDefect::TooShort))?);
                let (high, low) = (word(1)?, word(2)?);
                let (length, whole) = (word(3)? as usize, word(4)? as usize);
                add(interface, Some((high, low)), at + 28, length, whole)?;
            }
            // Others (name resolution, statistics, secrets) say nothing about frames.
            _ => {}
        }
        at += length;
    }
    Ok(())
}

/// Reads the options of an interface, which begin at `at`.
fn interface(body: &Numbers<'_>, link: u32, mut at: usize) -> Result<Interface, BlockDefect> {
    let mut found = Interface {
        link,
        rate: 1_000_000,
        offset: 0,
    };
    while let (Some(code), Some(length)) = (body.u16(at), body.u16(at + 2)) {
        let length = usize::from(length);
        let start = at + 4;
        let value = body
            .bytes
            .get(start..start + length)
            .ok_or(BlockDefect::Option)?;
        match (code, value) {
            (0, _) => break,
            // if_tsresol
            (9, &[resolution]) => {
                let exponent = u32::from(resolution & 0x7f);
                let base: u128 = if resolution & 0x80 != 0 { 2 } else { 10 };
                found.rate = base
                    .checked_pow(exponent)
                    .filter(|rate| *rate <= 1 << 64)
                    .ok_or(BlockDefect::Resolution)?;
            }
            // if_tsoffset
            (14, value) if length == 8 => {
                let bytes = value.try_into().unwrap_or_default();
                found.offset = match body.big {
                    true => i64::from_be_bytes(bytes),
                    false => i64::from_le_bytes(bytes),
                };
            }
            _ => {}
        }
        at = start + length.next_multiple_of(4);
    }
    Ok(found)
}

/// Writes a pcap file with times in nanoseconds.
#[derive(Debug)]
pub struct Writer(BufWriter<File>);

impl Writer {
    /// Makes the file, in place of one of this name.
    pub fn create(path: &Path) -> std::io::Result<Writer> {
        let mut writer = Writer(BufWriter::new(File::create(path)?));
        let words = [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65_535, ETHERNET];
        for word in words {
            writer.0.write_all(&u32::to_le_bytes(word))?;
        }
        Ok(writer)
    }

    /// Adds a frame, in its parts, with a time in nanoseconds.
    pub fn add<'a>(
        &mut self,
        time: u64,
        length: usize,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> std::io::Result<()> {
        let (seconds, ns) = (time / 1_000_000_000, time % 1_000_000_000);
        for word in [seconds as u32, ns as u32, length as u32, length as u32] {
            self.0.write_all(&word.to_le_bytes())?;
        }
        for part in parts {
            self.0.write_all(part)?;
        }
        Ok(())
    }

    /// Writes what has been kept back.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pcap(big: bool, ns: bool, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let word = |word: u32| match big {
            true => word.to_be_bytes(),
            false => word.to_le_bytes(),
        };
        let half = |half: u16| match big {
            true => half.to_be_bytes(),
            false => half.to_le_bytes(),
        };
        let mut bytes = word(if ns { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
        bytes.extend([half(2), half(4)].concat());
        bytes.extend([0, 0, 65_535, 1].map(word).concat());
        for (time, frame) in frames {
            let fraction = (time % 1_000_000_000) as u32 / if ns { 1 } else { 1000 };
            let length = frame.len() as u32;
            bytes.extend(
                [(time / 1_000_000_000) as u32, fraction, length, length]
                    .map(word)
                    .concat(),
            );
            bytes.extend(frame);
        }
        bytes
    }

    fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
        let word = |word: u32| match big {
            true => word.to_be_bytes(),
            false => word.to_le_bytes(),
        };
        let padded = body.len().next_multiple_of(4);
        let length = word(padded as u32 + 12);
        let mut bytes = [word(kind), length].concat();
        bytes.extend(body);
        bytes.resize(8 + padded, 0);
        bytes.extend(length);
        bytes
    }

    fn pcapng(big: bool, resolution: u8, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let word = |word: u32| match big {
            true => word.to_be_bytes(),
            false => word.to_le_bytes(),
        };
        let half = |half: u16| match big {
            true => half.to_be_bytes(),
            false => half.to_le_bytes(),
        };
        let section = [&word(BYTE_ORDER)[..], &half(1), &half(0), &[0xff; 8]].concat();
        let mut bytes = block(big, SECTION, &section);
        let options = [&half(9)[..], &half(1), &[resolution, 0, 0, 0], &[0; 4]].concat();
        let interface = [&half(1)[..], &half(0), &word(0), &options].concat();
        bytes.extend(block(big, 1, &interface));
        bytes.extend(block(big, 5, &[0; 12]));
        for (time, frame) in frames {
            let stamp = match resolution {
                9 => *time,
                6 => time / 1000,
                _ => (u128::from(*time) << (resolution & 0x7f)).div_euclid(1_000_000_000) as u64,
            };
            let length = frame.len() as u32;
            let numbers = [0, (stamp >> 32) as u32, stamp as u32, length, length];
            bytes.extend(block(
                big,
                6,
                &[numbers.map(word).concat(), frame.clone()].concat(),
            ));
        }
        bytes
    }

    fn frames() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        let frame = (
            0_u64..1 << 40,
            proptest::collection::vec(any::<u8>(), 14..100),
        );
        proptest::collection::vec(frame, 0..10).prop_map(|mut frames| {
            frames.sort_by_key(|(time, _)| *time);
            frames
        })
    }

    proptest! {
        #[test]
        fn captures_are_read_as_written(frames in frames(), big: bool, kind in 0..5) {
            let (bytes, tolerated) = match kind {
                0 => (pcap(big, false, &frames), 1_000),
                1 => (pcap(big, true, &frames), 0),
                2 => (pcapng(big, 9, &frames), 0),
                3 => (pcapng(big, 6, &frames), 1_000),
                _ => (pcapng(big, 0x80 | 20, &frames), 2_000),
            };
            let capture = Capture::read(bytes).unwrap();
            prop_assert_eq!(capture.len(), frames.len());
            for (number, time) in capture.times().enumerate() {
                prop_assert_eq!(capture.frame(number), &frames[number].1);
                let exact = frames[number].0 - frames[0].0;
                prop_assert!(time.abs_diff(exact) <= tolerated, "{time} {exact}");
            }
        }

        #[test]
        fn cut_files_are_refused(frames in frames(), ng: bool, cut: prop::sample::Index) {
            let bytes = match ng {
                true => pcapng(false, 9, &frames),
                false => pcap(false, true, &frames),
            };
            let length = cut.index(bytes.len());
            // All that can be left is the first frames.
            if let Ok(capture) = Capture::read(bytes[..length].to_vec()) {
                prop_assert!(capture.len() <= frames.len());
                for (number, (_, frame)) in frames.iter().take(capture.len()).enumerate() {
                    prop_assert_eq!(capture.frame(number), frame);
                }
            }
        }

        #[test]
        fn changed_files_do_no_harm(
            frames in frames(), ng: bool, at: prop::sample::Index, value: u8,
        ) {
            let mut bytes = match ng {
                true => pcapng(true, 9, &frames),
                false => pcap(true, true, &frames),
            };
            let place = at.index(bytes.len());
            bytes[place] = value;
            let _ = Capture::read(bytes);
        }
    }

    #[test]
    fn the_writers_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pcap");
        let mut writer = Writer::create(&path).unwrap();
        let frame = [7; 30];
        writer
            .add(3_000_000_007, 30, [&frame[..10], &frame[10..]].into_iter())
            .unwrap();
        writer
            .add(3_000_000_009, 14, [&frame[..14]].into_iter())
            .unwrap();
        writer.flush().unwrap();
        let capture = Capture::open(&path).unwrap();
        assert_eq!(capture.times().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(
            (capture.frame(0), capture.frame(1)),
            (&frame[..], &frame[..14])
        );
    }

    #[test]
    fn invalid_captures_have_an_error() {
        let told = |bytes: Vec<u8>| Capture::read(bytes).unwrap_err().to_string();
        let good = pcap(false, true, &[(5, vec![1; 20])]);
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            told(bytes)
        };
        assert!(told(vec![1, 2, 3]).contains("shorter than a header"));
        assert!(changed(0, 0).contains("neither pcap nor pcapng"));
        assert!(changed(20, 113).contains("link type is 113"));
        assert!(
            changed(36, 21).contains("frame 1 is cut: 20 of 21"),
            "{}",
            changed(36, 21)
        );
        assert!(changed(32, 21).contains("ends within the record at byte 24"));
        let short = pcap(false, true, &[(5, vec![1; 13])]);
        assert!(told(short).contains("frame 1 has 13 bytes"));
        let ng = pcapng(false, 9, &[(5, vec![1; 20])]);
        let mut bytes = ng.clone();
        bytes[4] = 30;
        assert!(told(bytes).contains("has a length of 30"));
        let mut bytes = ng.clone();
        let last = bytes.len() - 4;
        bytes[last] = 0;
        assert!(told(bytes).contains("ends with another length"));
        let section = ng[..28].to_vec();
        let frame = block(false, 6, &[0; 40]);
        assert!(told([section, frame].concat()).contains("names an interface that there is not"));
    }
}
