//! Matches packets against patterns in place: finds the first pattern that a packet matches without
//! reading its mini key.
//!
//! A table that only sends or drops what matches needs to know only a packet's pattern and length.
//! For each common kind of packet ([`super::kinds`]), a [`Pattern`] is translated to bits of the
//! packet's own bytes, together with the bits that make a packet one of the kind. So a packet that
//! matches the first pattern costs one comparison of 32 bytes (two if the bits are further apart)
//! and a check of its length fields, and nothing is written. Packets of other kinds are read into
//! mini keys.

use super::kinds::{JUDGED, Judged, index, judge, l3, l4, least, moves};
use super::{NO_PATTERN, Pattern, Read, Variant};
use crate::frame::Frame;
use crate::io::Lengths;
use crate::key::at;
use crate::parse::MINI_KEY_WORDS;
use std::marker::PhantomData;

/// Bytes compared at a time.
const WIDTH: usize = 32;
/// The largest number of bytes that a pattern and a kind look at in a packet.
const MOST: usize = least(true, true, true);
/// Bytes of a mini key's words.
const KEY: usize = MINI_KEY_WORDS * 8;

/// Consecutive packets whose first matching pattern is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The pattern's number, [`NO_PATTERN`] for none.
    pub found: u8,
    /// Number of packets; not 0.
    pub packets: u32,
    /// Their total length in bytes.
    pub bytes: u64,
}

/// A list of patterns prepared for [`prefilter_burst`].
#[derive(Debug)]
pub struct RawPrefilter {
    /// Indexed by [`index`].
    kinds: [PacketType; 8],
    /// Ingress port that each pattern demands; empty if none demands one.
    ports: Box<[Port]>,
    patterns: Box<[Pattern]>,
}

#[derive(Debug)]
struct Port {
    mask: u32,
    value: u32,
}

/// One kind of common packet.
#[derive(Debug)]
#[repr(C)] // in the order in which a burst reads the fields
struct PacketType {
    l3: usize,
    least: usize,
    /// The patterns that packets of this kind can match, in order.
    entries: Box<[Bits]>,
    /// The bits that make a packet one of this kind.
    itself: Bits,
}

/// Bits of a packet with their wanted values: those of a kind and those of a pattern.
#[derive(Debug)]
#[repr(C)] // in the order in which the check of a packet reads the fields
struct Bits {
    first: Window,
    /// Offsets of the windows in the packet.
    from: [u8; 2],
    /// Whether `second` has bits that are not in `first`.
    two: bool,
    /// The pattern's number.
    pattern: u8,
    second: Window,
}

/// Masked bits of [`WIDTH`] consecutive bytes.
#[derive(Debug)]
#[repr(C, align(32))]
struct Window {
    care: [u8; WIDTH],
    expect: [u8; WIDTH],
}

/// Masked bits over the whole length that any kind looks at.
#[derive(Clone, Copy)]
struct Wanted {
    care: [u8; MOST],
    expect: [u8; MOST],
    /// Bit n is set if byte n has masked bits.
    bytes: u128,
}

const _: () = assert!(MOST <= 128);

impl Wanted {
    const NOTHING: Wanted = Wanted {
        care: [0; MOST],
        expect: [0; MOST],
        bytes: 0,
    };

    /// Adds bits of one byte; None if they contradict those already there.
    fn and(&mut self, byte: usize, mask: u8, value: u8) -> Option<()> {
        let (care, expect) = (&mut self.care[byte], &mut self.expect[byte]);
        let both = *care & mask;
        if (*expect ^ value) & both != 0 {
            return None;
        }
        *care |= mask;
        *expect |= value & mask;
        self.bytes |= u128::from(mask != 0) << byte;
        Some(())
    }

    /// Covers the bits with windows that do not reach beyond the first `least` bytes; None if two
    /// windows are not enough.
    fn bits(&self, least: usize, pattern: u8) -> Option<Bits> {
        let window = |from: usize| {
            let (mut care, mut expect) = ([0; WIDTH], [0; WIDTH]);
            care.copy_from_slice(&self.care[from..from + WIDTH]);
            expect.copy_from_slice(&self.expect[from..from + WIDTH]);
            Window { care, expect }
        };
        let begin = (self.bytes.trailing_zeros() as usize).min(MOST);
        let (first, second) = (begin.min(least - WIDTH), least - WIDTH);
        let held = |from: usize| ((1_u128 << WIDTH) - 1) << from;
        let beyond = self.bytes & !held(first);
        let all = beyond & !held(second) == 0;
        all.then(|| Bits {
            first: window(first),
            from: [first as u8, second as u8],
            two: beyond != 0,
            pattern,
            second: window(second),
        })
    }
}

/// Where a byte of the mini key comes from: its bits `keep` are bits of packet byte `from`, shifted
/// left by `shift` (right if negative).
struct Source {
    to: usize,
    keep: u8,
    from: usize,
    shift: i8,
}

/// Returns all sources for a kind, and the values of the mini key's bytes that have none.
fn sources(tagged: bool, tcp: bool, six: bool) -> (Vec<Source>, [u8; KEY]) {
    let (l3, l4) = (l3(tagged), l4(tagged, six));
    let mut all = Vec::new();
    for (to, from, len) in moves(tagged, tcp, six) {
        for byte in 0..len {
            let keep = match to + byte {
                at::TCP_FLAGS => 0x0f,
                // All but the bit that says a tag is present.
                at::VLAN_TCI => 0xef,
                _ => 0xff,
            };
            if to + byte < KEY {
                all.push(Source {
                    to: to + byte,
                    keep,
                    from: from + byte,
                    shift: 0,
                });
            }
        }
    }
    if six {
        let class = |keep, from, shift| Source {
            to: at::IP_TOS,
            keep,
            from,
            shift,
        };
        all.extend([class(0xf0, l3, 4), class(0x0f, l3 + 1, -4)]);
    }
    if six && tcp {
        let flags = |byte, keep| Source {
            to: at::TCP_FLAGS + byte,
            keep,
            from: l4 + 12 + byte,
            shift: 0,
        };
        all.extend([flags(0, 0x0f), flags(1, 0xff)]);
    }
    let mut fixed = [0; KEY];
    if tagged {
        fixed[at::VLAN_TCI] = 0x10;
    }
    (all, fixed)
}

/// Returns the bytes of a pattern's words.
fn bytes_of(words: &[u64; 8]) -> [u8; KEY] {
    let mut bytes = [0; KEY];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

impl PacketType {
    /// Prepares the patterns for a kind; None if two windows do not cover one of them.
    fn new(patterns: &[Pattern], tagged: bool, tcp: bool, six: bool) -> Option<PacketType> {
        let (l3, least) = (l3(tagged), least(tagged, tcp, six));
        let mut itself = Wanted::NOTHING;
        let (care, expect) = Judged::new(tagged, tcp, six).bits();
        for (byte, (care, expect)) in care.into_iter().zip(expect).enumerate() {
            itself.and(JUDGED + byte, care, expect)?;
        }
        let (sources, fixed) = sources(tagged, tcp, six);
        let mut entries = Vec::new();
        for (number, pattern) in patterns.iter().enumerate() {
            if let Some(wanted) = wanted(pattern, &itself, &sources, &fixed) {
                entries.push(wanted.bits(least, number as u8)?);
            }
        }
        Some(PacketType {
            l3,
            least,
            entries: entries.into(),
            itself: itself.bits(least, NO_PATTERN)?,
        })
    }
}

/// Returns the bits of a packet of a kind that matches the pattern, without its ingress port; None
/// if there is no such packet.
fn wanted(
    pattern: &Pattern,
    itself: &Wanted,
    sources: &[Source],
    fixed: &[u8; KEY],
) -> Option<Wanted> {
    let (mask, value) = (bytes_of(&pattern.mask), bytes_of(&pattern.value));
    let mut left = mask;
    left[at::IN_PORT..at::IN_PORT + 4].fill(0);
    let mut wanted = *itself;
    for source in sources {
        let keep = mask[source.to] & source.keep;
        if keep == 0 {
            continue;
        }
        let shifted = |bits: u8| match source.shift {
            0 => bits,
            left if left > 0 => bits >> left,
            right => bits << -right,
        };
        wanted.and(source.from, shifted(keep), shifted(value[source.to] & keep))?;
        left[source.to] &= !source.keep;
    }
    let fits = |at: usize| (value[at] ^ fixed[at]) & left[at] == 0;
    (0..KEY).all(fits).then_some(wanted)
}

impl RawPrefilter {
    /// Prepares patterns, at most [`Pattern::MOST`]; None if there are more or one needs more than
    /// two windows.
    pub fn new(patterns: &[Pattern]) -> Option<RawPrefilter> {
        if patterns.len() > Pattern::MOST {
            return None;
        }
        let mut kinds = Vec::new();
        for number in 0..8 {
            let (six, tagged, tcp) = (number & 4 != 0, number & 2 != 0, number & 1 != 0);
            debug_assert_eq!(index(tagged, tcp, six), number);
            kinds.push(PacketType::new(patterns, tagged, tcp, six)?);
        }
        let port = |words: &[u64; 8]| {
            let [a, b, c, d, ..] = words[at::IN_PORT / 8].to_ne_bytes();
            const _: () = assert!(at::IN_PORT == 0);
            u32::from_be_bytes([a, b, c, d])
        };
        let ports = patterns.iter().map(|pattern| Port {
            mask: port(&pattern.mask),
            value: port(&pattern.value),
        });
        let mut ports: Box<[Port]> = ports.collect();
        if ports.iter().all(|port| port.mask == 0) {
            ports = Box::default();
        }
        Some(RawPrefilter {
            kinds: kinds.try_into().ok()?,
            ports,
            patterns: patterns.into(),
        })
    }

    /// Returns the patterns that a packet from this port can match, as a bit set.
    #[inline(always)]
    fn fitting(&self, in_port: u32) -> u64 {
        if self.ports.is_empty() {
            return u64::MAX;
        }
        let mut fit = 0;
        for (at, port) in self.ports.iter().enumerate() {
            fit |= u64::from((in_port ^ port.value) & port.mask == 0) << at;
        }
        fit
    }
}

/// Matches the packets that [`super::read_burst`] would read, without storing mini keys. Clears
/// `runs` and fills it with the packets' first patterns. Also returns the packets' lengths.
#[inline]
pub fn prefilter_burst<F: Frame>(
    frames: &[F],
    in_port: u32,
    sorting: &RawPrefilter,
    runs: &mut Vec<Run>,
) -> (Read, Lengths) {
    // SAFETY: `Variant::used` returns only a variant that the processor has.
    unsafe { sort_by(Variant::used(), frames, in_port, sorting, runs) }
}

/// Like [`prefilter_burst`], with a given variant; uses the portable one if the processor lacks it.
pub fn sort_burst_by<F: Frame>(
    variant: Variant,
    frames: &[F],
    in_port: u32,
    sorting: &RawPrefilter,
    runs: &mut Vec<Run>,
) -> (Read, Lengths) {
    // SAFETY: `or_portable` returns a variant that the processor has.
    unsafe { sort_by(variant.or_portable(), frames, in_port, sorting, runs) }
}

/// [`prefilter_burst`] with a given variant.
///
/// # Safety
/// The processor must have the variant.
#[inline(always)]
unsafe fn sort_by<F: Frame>(
    variant: Variant,
    frames: &[F],
    in_port: u32,
    sorting: &RawPrefilter,
    runs: &mut Vec<Run>,
) -> (Read, Lengths) {
    match variant {
        // 32 bytes at a time are enough: wider registers would not save anything.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise; a processor with AVX-512 has AVX2.
        Variant::Avx512 | Variant::Avx2 => unsafe { avx2::sort(frames, in_port, sorting, runs) },
        // SAFETY: `Portable` needs nothing that a processor could lack.
        _ => unsafe { sort::<F, Portable>(frames, in_port, sorting, runs) },
    }
}

/// An instruction set for comparing packets with windows.
trait Compare {
    /// Returns whether a packet's bytes differ from what the window wants.
    ///
    /// # Safety
    /// [`WIDTH`] bytes must be readable from `bytes` on, and the processor must have the
    /// instructions.
    unsafe fn differs(window: &Window, bytes: *const u8) -> bool;

    /// Calls [`matching`], in a function of its own so that its values stay in registers.
    ///
    /// # Safety
    /// As for [`matching`]; the processor must have the instructions, too.
    unsafe fn matching<F: Frame, const TCP: bool, const SIX: bool, const TWO: bool>(
        frames: &[F],
        kind: &PacketType,
        bits: &Bits,
    ) -> (usize, Lengths);
}

/// Counts the leading packets that are valid, of a kind, and have these bits; returns their
/// lengths, too. `TWO` is `bits.two`. `first` and `second` return whether a packet's bytes differ
/// from the first and second window; they are called only if the packet has those bytes.
///
/// # Safety
/// `kind` must be a kind that `TCP` and `SIX` describe, and `bits` must belong to `kind`: then its
/// packets have all bytes that are read.
#[inline(always)]
unsafe fn matching<F: Frame, const TCP: bool, const SIX: bool, const TWO: bool>(
    frames: &[F],
    kind: &PacketType,
    bits: &Bits,
    first: impl Fn(*const u8) -> bool,
    second: impl Fn(*const u8) -> bool,
) -> (usize, Lengths) {
    let (l3, least) = (kind.l3, kind.least);
    let from = bits.from.map(usize::from);
    let (mut count, mut lengths) = (0, Lengths::default());
    for frame in frames {
        let (head, len) = (frame.head(), frame.len());
        if head.len() < least {
            break;
        }
        let at = |from: usize| head.as_ptr().wrapping_add(from);
        if first(at(from[0])) || TWO && second(at(from[1])) {
            break;
        }
        // SAFETY: `head` has at least the bytes of the kind, and the caller promises that `TCP` and
        // `SIX` describe that kind.
        if unsafe { judge::<TCP, SIX>(head, l3, len) }.is_none() {
            break;
        }
        count += 1;
        lengths.add(len);
    }
    (count, lengths)
}

/// Compares 64-bit words.
struct Portable;

impl Compare for Portable {
    #[inline(always)]
    unsafe fn differs(window: &Window, bytes: *const u8) -> bool {
        // SAFETY: the caller's promise; a read of bytes needs no alignment.
        let bytes = unsafe { bytes.cast::<[u8; WIDTH]>().read() };
        let word = |bytes: &[u8; WIDTH], at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_ne_bytes(word)
        };
        let bits = |at| (word(&bytes, at) ^ word(&window.expect, at)) & word(&window.care, at);
        bits(0) | bits(1) | bits(2) | bits(3) != 0
    }

    #[inline(never)]
    unsafe fn matching<F: Frame, const TCP: bool, const SIX: bool, const TWO: bool>(
        frames: &[F],
        kind: &PacketType,
        bits: &Bits,
    ) -> (usize, Lengths) {
        // SAFETY: `matching` calls this only with enough bytes.
        let differs = |window, bytes| unsafe { Portable::differs(window, bytes) };
        let (first, second) = (&bits.first, &bits.second);
        // SAFETY: the caller's promise.
        unsafe {
            matching::<F, TCP, SIX, TWO>(
                frames,
                kind,
                bits,
                |bytes| differs(first, bytes),
                |bytes| differs(second, bytes),
            )
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Bits, Compare, Frame, Lengths, PacketType, RawPrefilter, Read, Run, Window};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub(super) fn sort<F: Frame>(
        frames: &[F],
        in_port: u32,
        sorting: &RawPrefilter,
        runs: &mut Vec<Run>,
    ) -> (Read, Lengths) {
        // SAFETY: this function is called only where the processor has AVX2.
        unsafe { super::sort::<F, Avx2>(frames, in_port, sorting, runs) }
    }

    /// Compares 32-byte registers.
    struct Avx2;

    /// A window in registers.
    #[derive(Clone, Copy)]
    struct Loaded {
        care: __m256i,
        expect: __m256i,
    }

    impl Loaded {
        #[target_feature(enable = "avx2")]
        #[inline]
        fn new(window: &Window) -> Loaded {
            // SAFETY: a window's parts are 32 bytes long and 32-byte aligned.
            unsafe {
                Loaded {
                    care: _mm256_load_si256(window.care.as_ptr().cast()),
                    expect: _mm256_load_si256(window.expect.as_ptr().cast()),
                }
            }
        }

        /// [`Compare::differs`].
        ///
        /// # Safety
        /// As for [`Compare::differs`].
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn differs(self, bytes: *const u8) -> bool {
            // SAFETY: the caller's promise; the load needs no alignment.
            let bytes = unsafe { _mm256_loadu_si256(bytes.cast()) };
            _mm256_testz_si256(_mm256_xor_si256(bytes, self.expect), self.care) == 0
        }
    }

    impl Compare for Avx2 {
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn differs(window: &Window, bytes: *const u8) -> bool {
            // SAFETY: the caller's promise.
            unsafe { Loaded::new(window).differs(bytes) }
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn matching<F: Frame, const TCP: bool, const SIX: bool, const TWO: bool>(
            frames: &[F],
            kind: &PacketType,
            bits: &Bits,
        ) -> (usize, Lengths) {
            // SAFETY: the caller's promise.
            unsafe { matching::<F, TCP, SIX, TWO>(frames, kind, bits) }
        }
    }

    /// [`Compare::matching`].
    ///
    /// # Safety
    /// As for [`Compare::matching`].
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    unsafe fn matching<F: Frame, const TCP: bool, const SIX: bool, const TWO: bool>(
        frames: &[F],
        kind: &PacketType,
        bits: &Bits,
    ) -> (usize, Lengths) {
        let (first, second) = (Loaded::new(&bits.first), Loaded::new(&bits.second));
        // SAFETY: the caller's promise; `super::matching` calls `differs` only with enough bytes.
        unsafe {
            super::matching::<F, TCP, SIX, TWO>(
                frames,
                kind,
                bits,
                |bytes| first.differs(bytes),
                |bytes| second.differs(bytes),
            )
        }
    }
}

/// A burst while it is being matched.
struct Sorted<'a, F, C> {
    compare: PhantomData<C>,
    frames: &'a [F],
    sorting: &'a RawPrefilter,
    /// Bit set of the patterns that fit the ingress port.
    fit: u64,
    runs: &'a mut Vec<Run>,
    /// The first pattern of the current run's packets; None before the first packet.
    found: Option<u8>,
    /// What was matched before the current run, and all that has been matched.
    before: Read,
    read: Read,
    /// [`Lengths::most`] of all that has been matched.
    most: u64,
}

/// [`prefilter_burst`] with a given instruction set.
///
/// # Safety
/// The processor must have the instructions of `C`.
#[inline(always)]
unsafe fn sort<F: Frame, C: Compare>(
    frames: &[F],
    in_port: u32,
    sorting: &RawPrefilter,
    runs: &mut Vec<Run>,
) -> (Read, Lengths) {
    runs.clear();
    let mut sorted = Sorted::<F, C> {
        compare: PhantomData,
        frames,
        sorting,
        fit: sorting.fitting(in_port),
        runs,
        found: None,
        before: Read::default(),
        read: Read::default(),
        most: 0,
    };
    while let Some(frame) = frames.get(sorted.read.count) {
        let before = sorted.read.count;
        // A burst is mostly of one kind: match each kind for as long as it lasts.
        let kind = kind_of(frame.head());
        // SAFETY: the caller's promise.
        unsafe {
            match kind {
                Some(kind @ (0 | 2)) => sorted.kind::<false, false>(kind),
                Some(kind @ (1 | 3)) => sorted.kind::<true, false>(kind),
                Some(kind @ (4 | 6)) => sorted.kind::<false, true>(kind),
                Some(kind @ (5 | 7)) => sorted.kind::<true, true>(kind),
                _ => {}
            }
        }
        if sorted.read.count > before {
            continue;
        }
        if !sorted.others(in_port) {
            break;
        }
    }
    sorted.end_run();
    let (read, most) = (sorted.read, sorted.most);
    let bytes = read.bytes;
    (read, Lengths { bytes, most })
}

/// Returns the only kind, by [`index`], that the packet can be of.
#[inline(always)]
fn kind_of(head: &[u8]) -> Option<usize> {
    let front: &[u8; 28] = head.first_chunk()?;
    let tagged = front[12..14] == [0x81, 0x00];
    let l3 = l3(tagged);
    let (six, protocol) = match [front[l3 - 2], front[l3 - 1]] {
        [0x08, 0x00] => (false, front[l3 + 9]),
        [0x86, 0xdd] => (true, front[l3 + 6]),
        _ => return None,
    };
    match protocol {
        6 => Some(index(tagged, true, six)),
        17 => Some(index(tagged, false, six)),
        _ => None,
    }
}

impl<F: Frame, C: Compare> Sorted<'_, F, C> {
    /// Matches packets of one kind, up to the first of another.
    ///
    /// # Safety
    /// `kind`, by [`index`], must be one that `TCP` and `SIX` describe, and the processor must have
    /// the instructions of `C`.
    #[inline(always)]
    unsafe fn kind<const TCP: bool, const SIX: bool>(&mut self, kind: usize) {
        let Some(kind) = self.sorting.kinds.get(kind) else {
            return;
        };
        let fit = self.fit;
        let fits = |bits: &&Bits| fit >> (bits.pattern % 64) & 1 != 0;
        let at = kind.entries.iter().position(|bits| fits(&bits));
        let (bits, more) = match at.map(|at| kind.entries.split_at(at).1) {
            Some([bits, more @ ..]) => (bits, more),
            _ => (&kind.itself, &[][..]),
        };
        loop {
            // Most packets match the first pattern that fits: a separate loop for them stays in
            // registers.
            let next = &self.frames[self.read.count..];
            // SAFETY: the caller's promise; these bits are of this kind.
            let (count, lengths) = unsafe {
                if bits.two {
                    C::matching::<F, TCP, SIX, true>(next, kind, bits)
                } else {
                    C::matching::<F, TCP, SIX, false>(next, kind, bits)
                }
            };
            self.meet(count, lengths, bits.pattern);
            loop {
                let Some(frame) = self.frames.get(self.read.count) else {
                    return;
                };
                let (head, len) = (frame.head(), frame.len());
                if head.len() < kind.least {
                    return;
                }
                // SAFETY: `head` is at least that long.
                if unsafe { judge::<TCP, SIX>(head, kind.l3, len) }.is_none() {
                    return;
                }
                let bytes = head.as_ptr();
                // SAFETY: the caller's promise, and there are as many bytes as packets of this kind
                // have at least.
                let differ = |bits: &Bits| unsafe { Self::differ(bits, bytes) };
                if !differ(bits) {
                    self.meet(1, Lengths::of(len), bits.pattern);
                    break;
                }
                let mut more = more.iter().filter(fits);
                let found = more.find(|bits| !differ(bits));
                if found.is_none() && differ(&kind.itself) {
                    return;
                }
                let found = found.map_or(NO_PATTERN, |bits| bits.pattern);
                self.meet(1, Lengths::of(len), found);
            }
        }
    }

    /// Matches the following packets of other common kinds; returns whether there were any.
    #[inline(never)]
    fn others(&mut self, in_port: u32) -> bool {
        let (sorting, before) = (self.sorting, self.read.count);
        let frames = &self.frames[before..];
        super::read_others(frames, in_port, &sorting.patterns, |hot, found| {
            self.meet(1, Lengths::of(hot.len as usize), found);
        });
        self.read.count > before
    }

    /// Returns whether a packet's bytes differ from `bits`.
    ///
    /// # Safety
    /// There must be as many bytes as packets of the bits' kind have at least, and the processor
    /// must have the instructions of `C`.
    #[inline(always)]
    unsafe fn differ(bits: &Bits, bytes: *const u8) -> bool {
        let at = |from: u8| bytes.wrapping_add(from.into());
        let [first, second] = bits.from;
        // SAFETY: the caller's promise: windows do not reach beyond these bytes.
        unsafe {
            C::differs(&bits.first, at(first)) || bits.two && C::differs(&bits.second, at(second))
        }
    }

    /// Records that the next `count` packets, of these lengths, match pattern `found` first.
    #[inline(always)]
    fn meet(&mut self, count: usize, lengths: Lengths, found: u8) {
        if count != 0 && self.found != Some(found) {
            self.end_run();
            self.found = Some(found);
        }
        self.read.count += count;
        self.read.bytes += lengths.bytes;
        self.most |= lengths.most;
    }

    /// Ends the current run.
    #[inline(always)]
    fn end_run(&mut self) {
        if let Some(found) = self.found {
            self.runs.push(Run {
                found,
                packets: (self.read.count - self.before.count) as u32,
                bytes: self.read.bytes - self.before.bytes,
            });
            self.before = self.read;
        }
    }
}
