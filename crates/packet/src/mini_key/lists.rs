//! The lists that vector code reads a burst into, and the progress through them.

use super::kinds::l3;
use super::{MiniKey, Pattern, Read};
use crate::frame::Frame;

/// The lists that a burst is read into, all of equal length, and how many packets have been read.
pub struct Lists<'a, F> {
    frames: &'a [F],
    hot: &'a mut [MiniKey],
    found: &'a mut [u8],
    pub in_port: u32,
    patterns: &'a [Pattern],
    pub read: Read,
}

impl<'a, F: Frame> Lists<'a, F> {
    pub fn new(
        frames: &'a [F],
        in_port: u32,
        patterns: &'a [Pattern],
        hot: &'a mut [MiniKey],
        found: &'a mut [u8],
    ) -> Lists<'a, F> {
        let all = frames.len().min(hot.len()).min(found.len());
        Lists {
            frames: &frames[..all],
            hot: &mut hot[..all],
            found: &mut found[..all],
            in_port,
            patterns,
            read: Read::default(),
        }
    }

    /// Returns the first pattern, which callers keep in registers, and the others.
    #[inline(always)]
    pub fn patterns(&self) -> (Pattern, &'a [Pattern]) {
        match self.patterns {
            [] => (Pattern::NEVER, &[]),
            [only, more @ ..] => (*only, more),
        }
    }

    /// Iterates over the packets that have not been read.
    #[inline(always)]
    pub fn rest(&mut self) -> impl Iterator<Item = ((&F, &mut MiniKey), &mut u8)> {
        let start = self.read.count;
        (self.frames[start..].iter())
            .zip(&mut self.hot[start..])
            .zip(&mut self.found[start..])
    }

    /// Returns whether packets were read since the count was `before`, and the next one is of
    /// another kind.
    #[inline(always)]
    pub fn is_mixed(&self, before: usize) -> bool {
        (before + 1..self.frames.len()).contains(&self.read.count)
    }

    /// Returns whether the next packet is IPv6.
    #[inline(always)]
    pub fn next_is_six(&self) -> bool {
        let next = self.frames.get(self.read.count).map(Frame::head);
        next.is_some_and(|head| {
            let eth_type = |at: usize| head.get(at..at + 2);
            let tagged = eth_type(12) == Some(&[0x81, 0x00]);
            eth_type(l3(tagged) - 2) == Some(&[0x86, 0xdd])
        })
    }

    /// Returns whether the burst's reading ends here: all packets are read, or vector code has read
    /// none since the count was `before` and the next packet is of no common kind. Reads packets of
    /// common kinds that vector code does not handle.
    #[inline(always)]
    pub fn is_at_end(&mut self, before: usize) -> bool {
        self.read.count == self.frames.len() || self.read.count == before && !self.read_others()
    }

    /// Reads the following packets that are not IPv4; returns whether there were any.
    #[inline(never)]
    fn read_others(&mut self) -> bool {
        let mut read = self.read;
        let start = read.count;
        let mut places = self.hot[start..].iter_mut().zip(&mut self.found[start..]);
        super::read_others(
            &self.frames[start..],
            self.in_port,
            self.patterns,
            |hot, first| {
                if let Some((to, found)) = places.next() {
                    (*to, *found) = (*hot, first);
                    read.count += 1;
                    read.bytes += u64::from(hot.len);
                }
            },
        );
        self.read = read;
        read.count > start
    }
}

impl Pattern {
    /// A pattern that matches nothing: the words behind the mini key's own never have all bits set.
    const NEVER: Pattern = Pattern {
        mask: [0, 0, 0, 0, 0, 0, 0, 1],
        value: [0, 0, 0, 0, 0, 0, 0, 1],
    };
}
