//! Reading structured things from a fuzzer's bytes: what is not there any more reads as zero, so
//! every input means something.

/// Bytes not read yet.
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

    /// Up to `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Exactly `n` bytes, zeroes at the end where there are fewer.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = self.take(n).to_vec();
        bytes.resize(n, 0);
        bytes
    }
}
