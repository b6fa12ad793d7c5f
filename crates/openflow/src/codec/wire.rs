//! Reading and writing bytes in network order.

use crate::model::error::Error;

/// Reads from the front of a slice. A read past the end fails with the error that the reader was
/// created with, so that a short match is a match error and a short action an action error.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    short: Error,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], short: Error) -> Reader<'a> {
        Reader { rest: bytes, short }
    }

    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    /// Returns the bytes that are left, without consuming them.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next `n` bytes.
    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(self.short)?;
        self.rest = tail;
        Ok(head)
    }

    /// Reads all bytes left.
    pub(crate) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns a reader over the next `n` bytes, whose short reads fail with `short`.
    pub(crate) fn part(&mut self, n: usize, short: Error) -> Result<Reader<'a>, Error> {
        Ok(Reader::new(self.take(n)?, short))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(self.short)?;
        self.rest = tail;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(crate) fn mac(&mut self) -> Result<[u8; 6], Error> {
        self.array()
    }

    /// Skips padding, whatever its contents (OpenFlow 1.3.5 section 7: padding is ignored on
    /// receipt).
    #[inline]
    pub(crate) fn skip(&mut self, n: usize) -> Result<(), Error> {
        self.take(n).map(|_| ())
    }

    /// Reads a text in a field of `n` bytes, up to the first zero.
    pub(crate) fn text(&mut self, n: usize) -> Result<String, Error> {
        let bytes = self.take(n)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(n);
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Reads seconds and nanoseconds as nanoseconds. All ones in both (unknown) give all ones.
    pub(crate) fn duration(&mut self) -> Result<u64, Error> {
        let (seconds, nanoseconds) = (self.u32()?, self.u32()?);
        if (seconds, nanoseconds) == (u32::MAX, u32::MAX) {
            return Ok(u64::MAX);
        }
        Ok(u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds))
    }

    /// Reads a type-length-value item (`ofp_prop_header`): its type and content. `length` counts
    /// from the type to the content's end, and the item is padded to 8 bytes; a last item may lack
    /// its padding.
    pub(crate) fn property(&mut self, bad_length: Error) -> Result<(u16, Reader<'a>), Error> {
        let (kind, length) = (self.u16()?, usize::from(self.u16()?));
        if length < 4 || length - 4 > self.len() {
            return Err(bad_length);
        }
        let content = self.part(length - 4, bad_length)?;
        self.skip((length.next_multiple_of(8) - length).min(self.len()))?;
        Ok((kind, content))
    }
}

/// Appends values to a message.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put(&mut self, bytes: &[u8]);
    /// Appends `n` zero bytes.
    fn pad(&mut self, n: usize);
    /// Appends zero bytes until the length since `start` is a multiple of 8.
    fn align(&mut self, start: usize);
    /// Writes the length since `start` over the two bytes at `at`.
    fn set_length(&mut self, at: usize, start: usize);
    /// Appends `text` in `n` bytes, cut so that at least one zero follows it.
    fn put_text(&mut self, text: &str, n: usize);
    /// Appends nanoseconds as seconds and nanoseconds; all ones stay all ones.
    fn put_duration(&mut self, nanoseconds: u64);
}

impl Put for Vec<u8> {
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    #[inline]
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    #[inline]
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    #[inline]
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    #[inline]
    fn pad(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }
    fn align(&mut self, start: usize) {
        let length = self.len() - start;
        self.pad(length.next_multiple_of(8) - length);
    }
    fn set_length(&mut self, at: usize, start: usize) {
        // Callers bound the length; should it not fit all the same, it is clamped rather than
        // truncated to its low bits.
        let length = (self.len() - start).min(usize::from(u16::MAX)) as u16;
        self[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    fn put_text(&mut self, text: &str, n: usize) {
        let mut end = text.len().min(n - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.put(&text.as_bytes()[..end]);
        self.pad(n - end);
    }
    fn put_duration(&mut self, nanoseconds: u64) {
        if nanoseconds == u64::MAX {
            self.put_u64(u64::MAX);
            return;
        }
        self.put_u32((nanoseconds / 1_000_000_000).min(u64::from(u32::MAX)) as u32);
        self.put_u32((nanoseconds % 1_000_000_000) as u32);
    }
}
