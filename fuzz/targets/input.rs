//! Reads structured data from a fuzzer's bytes. Beyond the end everything reads as zero, so every
//! input is valid.

/// The bytes that are not read yet.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn u16(&mut self) -> u16 {
        u16::from(self.u8()) << 8 | u16::from(self.u8())
    }

    /// Reads up to `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Reads exactly `n` bytes, padded with zeros.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = self.take(n).to_vec();
        bytes.resize(n, 0);
        bytes
    }
}
