//! What a packet buffer must offer.

/// What is still to be done to a frame, or has been checked, in the terms of `virtio_net_hdr`
/// (virtio 1.1 section 5.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The checksum from `csum_start` to the end is to be computed and put at `csum_start +
    /// csum_offset`; the pseudo header's sum is there already.
    pub partial_checksum: bool,
    /// The transport checksum has been verified or need not be (the bytes never left this host).
    pub checksum_valid: bool,
    /// First byte of the checksummed area, from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum goes, from `csum_start`.
    pub csum_offset: u16,
    /// How the frame is to be segmented.
    pub gso: Gso,
    /// Payload bytes in each segment; 0 exactly when `gso` is `None`.
    pub gso_size: u16,
}

/// Kinds of segmentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gso {
    /// One frame as it is.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP segmentation (virtio `GSO_UDP_L4`), IPv4 or IPv6.
    UdpL4,
}

/// A packet buffer of one or more segments.
///
/// Lengths are in bytes and leave out the FCS. A frame begins with its Ethernet header. A VLAN tag
/// is always in the bytes, never in metadata: ports put it there on receive.
pub trait Frame: Sized + Send {
    /// Total length over all segments.
    fn len(&self) -> usize;

    /// Asks the processor to fetch what belongs to the frame besides its bytes.
    fn prefetch(&self) {}

    /// Asks the processor to fetch the memory that the next `count` frames from the same place as
    /// this one will be received into, to be written. Worth it where frames are processed by
    /// another processor than the one that receives them, whose caches then have it.
    fn prefetch_next(&self, count: usize) {
        let _ = count;
    }

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first segment's bytes.
    fn head(&self) -> &[u8];

    /// The first segment's bytes, to edit.
    fn head_mut(&mut self) -> &mut [u8];

    /// Bytes that can be put in front without moving data.
    fn headroom(&self) -> usize;

    /// Makes room for `n` bytes in front (contents undefined until written). False, and nothing
    /// changed, when there is no room. Implementations give at least 64 bytes on received
    /// frames.
    fn push_front(&mut self, n: usize) -> bool;

    /// Drops `n` bytes from the front of the first segment. False, and nothing changed, when it is
    /// shorter.
    fn pull_front(&mut self, n: usize) -> bool;

    /// Shortens the frame to `len` bytes; nothing happens when it is not longer.
    fn truncate(&mut self, len: usize);

    /// Makes the first `n` bytes (or the whole frame, when shorter) lie in the first segment. False
    /// when memory ran out.
    fn linearize(&mut self, n: usize) -> bool;

    /// Number of segments, at least 1.
    fn segment_count(&self) -> usize;

    /// The bytes of segment `index`, or None past the last.
    fn segment(&self, index: usize) -> Option<&[u8]>;

    /// The bytes of segment `index`, to edit, or None past the last.
    fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]>;

    /// A frame with the same bytes and offload flags that can be edited without changing this one.
    /// None when memory ran out.
    fn duplicate(&self) -> Option<Self>;

    /// A new, independent frame holding `bytes` with the usual headroom, from the same memory as
    /// this one. None when memory ran out.
    fn sibling(&self, bytes: &[u8]) -> Option<Self>;

    /// What is still to be done to it.
    fn offload(&self) -> Offload;

    /// Says what is still to be done to it.
    fn set_offload(&mut self, offload: Offload);

    /// Copies `out.len()` bytes from `offset`; false, with `out` undefined, when the frame is
    /// shorter.
    fn read_at(&self, mut offset: usize, mut out: &mut [u8]) -> bool {
        let mut index = 0;
        while !out.is_empty() {
            let Some(segment) = self.segment(index) else {
                return false;
            };
            index += 1;
            if offset >= segment.len() {
                offset -= segment.len();
                continue;
            }
            let n = out.len().min(segment.len() - offset);
            out[..n].copy_from_slice(&segment[offset..offset + n]);
            out = &mut out[n..];
            offset = 0;
        }
        true
    }

    /// All bytes in one vector; for the slow path.
    fn to_vec(&self) -> Vec<u8> {
        (0..self.segment_count())
            .filter_map(|index| self.segment(index))
            .flatten()
            .copied()
            .collect()
    }
}

/// A frame on the heap, for tests, tracing and tools; its segments can be set to any shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapFrame {
    /// The segments; bytes before `start` in the first are headroom.
    segments: Vec<Vec<u8>>,
    start: usize,
    offload: Offload,
}

/// Headroom of new heap frames, as DPDK's `RTE_PKTMBUF_HEADROOM`.
const HEADROOM: usize = 128;

impl HeapFrame {
    /// One segment holding `bytes`.
    pub fn new(bytes: &[u8]) -> HeapFrame {
        HeapFrame::with_segments(&[bytes])
    }

    /// A frame of the given segments; an empty list is one empty segment.
    pub fn with_segments(segments: &[&[u8]]) -> HeapFrame {
        let mut first = vec![0; HEADROOM];
        first.extend_from_slice(segments.first().copied().unwrap_or_default());
        let mut all = vec![first];
        all.extend(segments.iter().skip(1).map(|segment| segment.to_vec()));
        HeapFrame {
            segments: all,
            start: HEADROOM,
            offload: Offload::default(),
        }
    }
}

impl Frame for HeapFrame {
    fn len(&self) -> usize {
        self.segments.iter().map(Vec::len).sum::<usize>() - self.start
    }
    fn head(&self) -> &[u8] {
        &self.segments[0][self.start..]
    }
    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.segments[0][self.start..]
    }
    fn headroom(&self) -> usize {
        self.start
    }
    fn push_front(&mut self, n: usize) -> bool {
        if n > self.start {
            return false;
        }
        self.start -= n;
        true
    }
    fn pull_front(&mut self, n: usize) -> bool {
        if n > self.head().len() {
            return false;
        }
        self.start += n;
        true
    }
    fn truncate(&mut self, len: usize) {
        let mut keep = len;
        for (index, segment) in self.segments.iter_mut().enumerate() {
            let skipped = if index == 0 { self.start } else { 0 };
            let n = keep.min(segment.len() - skipped);
            segment.truncate(n + skipped);
            keep -= n;
        }
        let mut index = 0;
        self.segments.retain(|segment| {
            index += 1;
            index == 1 || !segment.is_empty()
        });
    }
    fn linearize(&mut self, n: usize) -> bool {
        let n = n.min(self.len());
        while self.head().len() < n {
            let missing = n - self.head().len();
            let moved: Vec<u8> = {
                let next = &mut self.segments[1];
                let take = missing.min(next.len());
                next.drain(..take).collect()
            };
            self.segments[0].extend_from_slice(&moved);
            if self.segments[1].is_empty() {
                self.segments.remove(1);
            }
        }
        true
    }
    fn segment_count(&self) -> usize {
        self.segments.len()
    }
    fn segment(&self, index: usize) -> Option<&[u8]> {
        let skipped = if index == 0 { self.start } else { 0 };
        self.segments.get(index).map(|segment| &segment[skipped..])
    }
    fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let skipped = if index == 0 { self.start } else { 0 };
        self.segments
            .get_mut(index)
            .map(|segment| &mut segment[skipped..])
    }
    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }
    fn sibling(&self, bytes: &[u8]) -> Option<Self> {
        Some(HeapFrame::new(bytes))
    }
    fn offload(&self) -> Offload {
        self.offload
    }
    fn set_offload(&mut self, offload: Offload) {
        self.offload = offload;
    }
}
