//! One direction of a control connection in which addresses are replaced: which bytes were, and
//! what that does to sequence numbers.
//!
//! Sequence numbers *as sent* become numbers *as received*: behind a replaced text, they differ by
//! the difference in length. A replaced text stays replaced when it is sent again, in whatever
//! segment, so the receiver never sees two versions of one byte.

use super::ftp::Text;

/// Texts that are remembered. Older ones are forgotten once they are acknowledged.
const EDITS: usize = 4;
/// How far a text lies behind when its place is no longer of interest. Sequence numbers are
/// compared modulo 2^32, so nothing may be compared with what lies 2^31 behind.
const FAR: u32 = 1 << 30;

/// Whether `a` is behind or at `b`, modulo 2^32.
fn not_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

/// A text that is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edit {
    /// Its first byte, as sent, and its length.
    pub start: u32,
    pub length: u8,
    pub text: Text,
    /// The length of `text`.
    written: u8,
}

impl Edit {
    pub fn new(start: u32, length: u8, text: Text) -> Edit {
        Edit {
            start,
            length,
            text,
            written: text.write().bytes().len() as u8,
        }
    }

    fn end(&self) -> u32 {
        self.start.wrapping_add(self.length.into())
    }

    fn growth(&self) -> u32 {
        u32::from(self.written).wrapping_sub(self.length.into())
    }
}

/// What of a segment is to be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Overlap {
    Nothing,
    /// A text that lies in it as a whole.
    Whole(Edit),
    /// Part of a text, or several.
    Part,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The sum of all growths that are no longer in `edits`.
    base: u32,
    /// In order.
    edits: Vec<Edit>,
    /// What the receiver has acknowledged, as sent.
    acknowledged: Option<u32>,
}

impl Stream {
    /// Takes note of a segment that begins at a number, as sent.
    pub fn sent(&mut self, sequence: u32) {
        while let Some(first) = self.edits.first()
            && sequence.wrapping_sub(first.end()).wrapping_sub(FAR) < FAR
        {
            self.forget();
        }
    }

    /// Takes note of an acknowledgement, as the receiver sends it.
    pub fn acknowledged(&mut self, number: u32) {
        let number = self.back(number);
        if self
            .acknowledged
            .is_none_or(|before| not_before(number, before))
        {
            self.acknowledged = Some(number);
        }
    }

    fn forget(&mut self) {
        let first = self.edits.remove(0);
        self.base = self.base.wrapping_add(first.growth());
    }

    /// Returns the number of a segment's first byte as it is received.
    pub fn forward(&self, sequence: u32) -> u32 {
        let passed = self
            .edits
            .iter()
            .filter(|edit| not_before(sequence, edit.end()));
        let growth = passed.fold(self.base, |sum, edit| sum.wrapping_add(edit.growth()));
        sequence.wrapping_add(growth)
    }

    /// Returns the number, as sent, that a number as received stands for; inside a replaced text,
    /// that of its beginning.
    pub fn back(&self, number: u32) -> u32 {
        let mut growth = self.base;
        for edit in &self.edits {
            let start = edit.start.wrapping_add(growth);
            if not_before(start, number) {
                break;
            }
            if !not_before(number, start.wrapping_add(edit.written.into())) {
                return edit.start;
            }
            growth = growth.wrapping_add(edit.growth());
        }
        number.wrapping_sub(growth)
    }

    /// Returns what of a segment is to be replaced.
    pub fn overlap(&self, sequence: u32, length: u32) -> Overlap {
        let end = sequence.wrapping_add(length);
        let mut found = Overlap::Nothing;
        for edit in self.edits.iter().filter(|_| length > 0) {
            if not_before(edit.start, end) || not_before(sequence, edit.end()) {
                continue;
            }
            let whole = not_before(edit.start, sequence) && not_before(end, edit.end());
            found = match found {
                Overlap::Nothing if whole => Overlap::Whole(*edit),
                _ => return Overlap::Part,
            };
        }
        found
    }

    /// Whether [`Stream::replace`] would succeed.
    pub fn has_room(&self) -> bool {
        let Some(first) = self.edits.first() else {
            return true;
        };
        let done = self
            .acknowledged
            .is_some_and(|number| not_before(number, first.end()));
        self.edits.len() < EDITS || done
    }

    /// Has a text replaced, which must lie behind all others. Returns false, and changes nothing,
    /// if the receiver has not acknowledged any of the last ones.
    pub fn replace(&mut self, edit: Edit) -> bool {
        if !self.has_room() {
            return false;
        }
        if self.edits.len() == EDITS {
            self.forget();
        }
        self.edits.push(edit);
        true
    }
}
