//! Writing into packets of control connections: replaced texts, and the numbers that they move.

use super::ftp::Text;
use crate::key::TCP;
use packet::Frame;
use packet::checksum::{self, Delta, Sum};
use packet::parse::Layers;

/// What is to be written into a TCP segment besides a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rewrite {
    /// Added to the sequence number, modulo 2^32.
    pub(crate) sequence: u32,
    /// Added to the acknowledgement number, modulo 2^32.
    pub(crate) acknowledgement: u32,
    /// A text that is replaced.
    pub(crate) edit: Option<Replace>,
}

impl Rewrite {
    /// Returns whether a text is replaced: then the whole segment must be in one frame.
    pub fn replaces_text(&self) -> bool {
        self.edit.is_some()
    }
}

/// A text that is to be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Replace {
    /// Where in the payload it begins.
    pub at: u32,
    pub length: u8,
    pub text: Text,
}

fn u16_at(frame: &impl Frame, at: usize) -> Option<u16> {
    let mut bytes = [0; 2];
    frame
        .read_at(at, &mut bytes)
        .then(|| u16::from_be_bytes(bytes))
}

fn u32_at(frame: &impl Frame, at: usize) -> Option<u32> {
    let mut bytes = [0; 4];
    frame
        .read_at(at, &mut bytes)
        .then(|| u32::from_be_bytes(bytes))
}

/// See [`crate::Tracker::rewrite`].
pub(crate) fn rewrite<F: Frame>(frame: &mut F, layers: &mut Layers, rewrite: &Rewrite) -> bool {
    if rewrite.edit.is_none() {
        return numbers(frame, usize::from(layers.l4), rewrite).is_some();
    }
    text(frame, layers, rewrite).is_some()
}

/// Writes the numbers, and corrects the checksum.
fn numbers<F: Frame>(frame: &mut F, l4: usize, rewrite: &Rewrite) -> Option<()> {
    let mut delta = Delta::new();
    let mut write = |at: usize, add: u32| {
        let old = u32_at(frame, at)?;
        let new = old.wrapping_add(add);
        delta.words(old, new);
        checksum::write_at(frame, at, &new.to_be_bytes()).then_some(())
    };
    write(l4 + 4, rewrite.sequence)?;
    write(l4 + 8, rewrite.acknowledgement)?;
    if !is_partial(frame, l4) {
        let new = delta.applied_to(u16_at(frame, l4 + 16)?);
        checksum::write_at(frame, l4 + 16, &new.to_be_bytes()).then_some(())?;
    }
    Some(())
}

/// Whether the transport's checksum is computed later; until then, the sum of the pseudo header is
/// in its place.
fn is_partial<F: Frame>(frame: &F, l4: usize) -> bool {
    let offload = frame.offload();
    offload.partial_checksum && usize::from(offload.csum_start) == l4
}

/// Where a packet's length is, and what it is with the text replaced.
struct Length {
    at: usize,
    old: u16,
    new: u16,
}

/// Replaces the text and writes the numbers. None, with the frame unchanged, if it does not fit.
fn text<F: Frame>(frame: &mut F, layers: &mut Layers, rewrite: &Rewrite) -> Option<()> {
    let edit = rewrite.edit?;
    let (l3, l4, end) = (
        usize::from(layers.l3),
        usize::from(layers.l4),
        layers.end as usize,
    );
    let mut first = [0; 1];
    let mut header = [0; 20];
    if l4 <= l3 || !frame.read_at(l3, &mut first) || !frame.read_at(l4, &mut header) {
        return None;
    }
    let v6 = first[0] >> 4 == 6;
    let begin = l4 + usize::from(header[12] >> 4) * 4 + edit.at as usize;
    let behind = begin + usize::from(edit.length);
    if behind > end || end > frame.len() {
        return None;
    }
    let written = edit.text.write();
    let new = written.bytes();
    let growth = new.len() as i32 - i32::from(edit.length);
    let at = if v6 { l3 + 4 } else { l3 + 2 };
    let old = u16_at(frame, at)?;
    let length = Length {
        at,
        old,
        new: u16::try_from(i32::from(old) + growth)
            .ok()
            .filter(|_| old != 0)?,
    };
    if !frame.linearize(behind) {
        return None;
    }
    // What is in front of the text moves, which is less than what is behind it may be.
    if let Ok(more) = usize::try_from(growth) {
        if !frame.push_front(more) {
            return None;
        }
        frame.head_mut().copy_within(more..more + begin, 0);
    } else {
        let less = growth.unsigned_abs() as usize;
        frame.head_mut().copy_within(..begin, less);
        frame.pull_front(less);
    }
    frame.head_mut()[begin..begin + new.len()].copy_from_slice(new);
    layers.end = (end as i32 + growth) as u32;
    lengths(frame, layers, v6, &length)?;
    numbers(frame, l4, rewrite)?;
    if is_partial(frame, l4) {
        return Some(());
    }
    // Bytes may have moved from even to odd places, so the sum is made anew.
    checksum::write_at(frame, l4 + 16, &[0; 2]).then_some(())?;
    let mut sum = Sum::new();
    sum.add_u16(checksum::frame_sum(frame, l4, layers.end as usize));
    let (mut addresses, size) = ([0; 32], if v6 { 16 } else { 4 });
    let place = if v6 { l3 + 8 } else { l3 + 12 };
    frame
        .read_at(place, &mut addresses[..2 * size])
        .then_some(())?;
    let (source, destination) = addresses[..2 * size].split_at(size);
    sum.add_pseudo_header(source, destination, TCP, layers.end - u32::from(layers.l4));
    checksum::write_at(frame, l4 + 16, &sum.finish().to_be_bytes()).then_some(())
}

/// Writes the packet's length, and corrects the sums that it is in.
fn lengths<F: Frame>(frame: &mut F, layers: &Layers, v6: bool, length: &Length) -> Option<()> {
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    let mut delta = Delta::new();
    delta.word(length.old, length.new);
    checksum::write_at(frame, length.at, &length.new.to_be_bytes()).then_some(())?;
    if !v6 {
        let new = delta.applied_to(u16_at(frame, l3 + 10)?);
        checksum::write_at(frame, l3 + 10, &new.to_be_bytes()).then_some(())?;
    }
    if is_partial(frame, l4) {
        // The pseudo header has the length of the segment, which has changed by as much.
        let new = delta.applied_to_sum(u16_at(frame, l4 + 16)?);
        checksum::write_at(frame, l4 + 16, &new.to_be_bytes()).then_some(())?;
    }
    Some(())
}
