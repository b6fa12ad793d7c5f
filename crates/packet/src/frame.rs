//! The trait that packet buffers implement, and a buffer on the heap.

/// Offload work that is still to be done to a frame, or checks that were done, in the terms of
/// `virtio_net_hdr` (virtio 1.1 section 5.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The checksum from `csum_start` to the frame's end is to be computed and stored at
    /// `csum_start + csum_offset`, where the pseudo header's sum already is.
    pub partial_checksum: bool,
    /// The transport checksum has been verified or need not be (the bytes never left this host).
    pub checksum_valid: bool,
    /// First byte of the checksummed area, from the start of the frame.
    pub csum_start: u16,
    /// Offset of the checksum from `csum_start`.
    pub csum_offset: u16,
    /// How the frame is to be segmented.
    pub gso: Gso,
    /// Payload bytes in each segment; 0 exactly when `gso` is `None`.
    pub gso_size: u16,
}

/// Kinds of segmentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gso {
    /// Not segmented.
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
/// Lengths are in bytes, without the FCS. A frame begins with its Ethernet header. VLAN tags are
/// always in the bytes, never in metadata: ports insert them on receive.
pub trait Frame: Sized + Send {
    /// Total length over all segments.
    fn len(&self) -> usize;

    /// Prefetches the frame's metadata, but not its bytes.
    fn prefetch(&self) {}

    /// Prefetches, for writing, the memory that the next `count` frames from this frame's source
    /// will be received into. Useful where another processor processes the frames than receives
    /// them, since the memory is then in that one's caches.
    fn prefetch_next(&self, count: usize) {
        let _ = count;
    }

    /// Returns whether the frame has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first segment's bytes.
    fn head(&self) -> &[u8];

    /// Returns the first segment's bytes, for editing.
    fn head_mut(&mut self) -> &mut [u8];

    /// Returns how many bytes can be prepended without moving data.
    fn headroom(&self) -> usize;

    /// Prepends `n` bytes with undefined contents. Returns false, and changes nothing, if there is
    /// no room. Implementations give received frames at least 64 bytes of headroom.
    fn push_front(&mut self, n: usize) -> bool;

    /// Removes `n` bytes from the front of the first segment. Returns false, and changes nothing,
    /// if it is shorter.
    fn pull_front(&mut self, n: usize) -> bool;

    /// Shortens the frame to `len` bytes; does nothing if it is not longer.
    fn truncate(&mut self, len: usize);

    /// Moves the first `n` bytes (or the whole frame, if shorter) into the first segment. Returns
    /// false if memory ran out.
    fn linearize(&mut self, n: usize) -> bool;

    /// Returns the number of segments, at least 1.
    fn segment_count(&self) -> usize;

    /// Returns the bytes of segment `index`, None past the last.
    fn segment(&self, index: usize) -> Option<&[u8]>;

    /// Returns the bytes of segment `index` for editing, None past the last.
    fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]>;

    /// Returns a frame with the same bytes and offload flags that can be edited without changing
    /// this one; None if memory ran out.
    fn duplicate(&self) -> Option<Self>;

    /// Returns a new, independent frame holding `bytes`, with the usual headroom, from the same
    /// memory pool as this one; None if memory ran out.
    fn sibling(&self, bytes: &[u8]) -> Option<Self>;

    /// Like [`Frame::sibling`], with at least so many bytes of headroom, where buffers are long
    /// enough.
    fn sibling_behind(&self, _headroom: usize, bytes: &[u8]) -> Option<Self> {
        self.sibling(bytes)
    }

    /// Returns the offload work that is still to be done.
    fn offload(&self) -> Offload;

    /// Sets the offload work that is still to be done.
    fn set_offload(&mut self, offload: Offload);

    /// Copies `out.len()` bytes from `offset` on. Returns false, with `out` undefined, if the frame
    /// is shorter.
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

    /// Copies all bytes into one vector; for the slow path.
    fn to_vec(&self) -> Vec<u8> {
        (0..self.segment_count())
            .filter_map(|index| self.segment(index))
            .flatten()
            .copied()
            .collect()
    }
}

/// A frame on the heap, for tests, tracing and tools, with segments of any sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapFrame {
    /// The segments; bytes before `start` in the first one are headroom.
    segments: Vec<Vec<u8>>,
    start: usize,
    offload: Offload,
}

/// Headroom of new heap frames, as DPDK's `RTE_PKTMBUF_HEADROOM`.
const HEADROOM: usize = 128;

impl HeapFrame {
    /// Makes a frame of one segment that holds `bytes`.
    pub fn new(bytes: &[u8]) -> HeapFrame {
        HeapFrame::with_segments(&[bytes])
    }

    /// Makes a frame of the given segments; an empty list gives one empty segment.
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
    fn sibling_behind(&self, headroom: usize, bytes: &[u8]) -> Option<Self> {
        let start = headroom.max(HEADROOM);
        let first = [&vec![0; start], bytes].concat();
        Some(HeapFrame {
            segments: vec![first],
            start,
            offload: Offload::default(),
        })
    }
    fn offload(&self) -> Offload {
        self.offload
    }
    fn set_offload(&mut self, offload: Offload) {
        self.offload = offload;
    }
}
