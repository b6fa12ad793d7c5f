//! Rings in memory of the test's own, with guests honest and hostile, beside an obvious model.

use super::*;
use proptest::prelude::*;

const SIZE: u16 = 16;
const GUEST: u64 = 0x10_0000;
const MEMORY: usize = 64 << 10;
/// Where the guest's buffers begin; the ring lies in front.
const BUFFERS: usize = 4096;

/// A guest's memory with a ring in it.
struct Guest {
    memory: Vec<u64>,
    header: u32,
}

impl Guest {
    fn new(header: u32) -> Guest {
        let mut guest = Guest {
            memory: vec![0; MEMORY / 8],
            header,
        };
        for (at, byte) in guest.bytes().iter_mut().enumerate().skip(BUFFERS) {
            *byte = (at * 7 % 251) as u8;
        }
        guest
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the vector's own bytes.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), MEMORY) }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn describe(&mut self, number: usize, descriptor: Descriptor) {
        self.write(number * 16, &descriptor.address.to_le_bytes());
        self.write(number * 16 + 8, &descriptor.length.to_le_bytes());
        self.write(number * 16 + 12, &descriptor.flags.to_le_bytes());
    }

    fn make_available(&mut self, at: u16, head: u16) {
        let place = 1024 + 4 + usize::from(at % SIZE) * 2;
        self.write(place, &head.to_le_bytes());
        self.write(1024 + 2, &at.wrapping_add(1).to_le_bytes());
    }

    fn view(&mut self, offloads: bool) -> View {
        let base = self.bytes().as_mut_ptr();
        View {
            descriptors: base.cast::<Descriptor>().cast_const(),
            available: base.wrapping_add(1024).cast::<u16>().cast_const(),
            used: base.wrapping_add(2048).cast(),
            mask: SIZE - 1,
            header: self.header,
            offloads,
            event_index: false,
            // In two parts, with a hole between the guest's addresses.
            regions: vec![
                VhostRegion {
                    guest: GUEST,
                    host: base,
                    size: MEMORY as u64 / 2,
                },
                VhostRegion {
                    guest: GUEST + MEMORY as u64,
                    host: base.wrapping_add(MEMORY / 2),
                    size: MEMORY as u64 / 2,
                },
            ],
        }
    }

    /// What the guest's address stands for, byte by byte.
    fn find(&self, address: u64, length: u32) -> Option<usize> {
        let part = |first: u64, at: usize| {
            let end = u128::from(address) + u128::from(length);
            let inside = address >= first && end <= u128::from(first) + MEMORY as u128 / 2;
            inside.then(|| at + (address - first) as usize)
        };
        part(GUEST, 0).or_else(|| part(GUEST + MEMORY as u64, MEMORY / 2))
    }

    fn used(&mut self, at: u16) -> (u32, u32) {
        let place = 2048 + 4 + usize::from(at % SIZE) * 8;
        let word = |place: usize, bytes: &[u8]| {
            u32::from_ne_bytes(bytes[place..place + 4].try_into().unwrap())
        };
        (word(place, self.bytes()), word(place + 4, self.bytes()))
    }

    fn used_index(&mut self) -> u16 {
        u16::from_ne_bytes(self.bytes()[2050..2052].try_into().unwrap())
    }
}

/// Buffers without a pool; they stay with the test.
struct Buffers(Vec<(Box<RawMbuf>, Vec<u8>)>);

impl Buffers {
    fn new(count: usize) -> Buffers {
        let one = || {
            let mut bytes = vec![0; usize::from(HEADROOM + DATA_ROOM)];
            // SAFETY: all zeroes is a valid mbuf, if not one to use.
            let mut raw: Box<RawMbuf> = Box::new(unsafe { std::mem::zeroed() });
            raw.buffer = bytes.as_mut_ptr();
            raw.buffer_len = HEADROOM + DATA_ROOM;
            (raw, bytes)
        };
        Buffers((0..count).map(|_| one()).collect())
    }

    fn frames(&mut self) -> Vec<Mbuf> {
        let raw = self.0.iter_mut().map(|(raw, _)| &raw mut **raw);
        // SAFETY: the test forgets the frames before the buffers go.
        raw.map(|raw| unsafe { Mbuf::from_raw(std::ptr::NonNull::new(raw).unwrap()) })
            .collect()
    }
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let half = MEMORY as u64 / 2;
    let address = prop_oneof![
        6 => (BUFFERS as u64..half - 4096).prop_map(|at| GUEST + at),
        3 => (0..half - 4096).prop_map(move |at| GUEST + MEMORY as u64 + at),
        1 => (half - 100..half + 100).prop_map(|at| GUEST + at),
        1 => any::<u64>(),
    ];
    let length = prop_oneof![8 => 10_u32..400, 1 => 2000_u32..2100, 1 => any::<u32>()];
    let flags = prop_oneof![8 => Just(0_u16), 8 => Just(WRITE), 1 => any::<u16>()];
    (address, length, flags).prop_map(|(address, length, flags)| Descriptor {
        address,
        length,
        flags,
        next: 0,
    })
}

proptest! {
    /// Frames are taken as long as they are common ones, each is what lies where its descriptor says, and what is hostile is left alone.
    #[test]
    fn takes_what_is_common(
        descriptors in prop::collection::vec(descriptor(), usize::from(SIZE)),
        heads in prop::collection::vec(prop_oneof![9 => 0..SIZE, 1 => any::<u16>()], 0..=usize::from(SIZE)),
        start: u16,
        long: bool,
        offloads: bool,
    ) {
        let mut guest = Guest::new(if long { 12 } else { 10 });
        for (number, one) in descriptors.iter().enumerate() {
            guest.describe(number, *one);
        }
        guest.write(1024 + 2, &start.to_le_bytes());
        for (step, head) in heads.iter().enumerate() {
            guest.make_available(start.wrapping_add(step as u16), *head);
        }
        let mut wanted = Vec::new();
        for head in &heads {
            let Some(one) = descriptors.get(usize::from(*head)) else { break };
            let common = one.flags == 0 && one.length > guest.header && one.length <= u32::from(DATA_ROOM) + guest.header;
            let Some(at) = common.then(|| guest.find(one.address, one.length)).flatten() else { break };
            if offloads && guest.bytes()[at..at + 2] != [0, 0] {
                break;
            }
            let end = at + one.length as usize;
            let begin = at + guest.header as usize;
            wanted.push(guest.bytes()[begin..end].to_vec());
        }
        let view = guest.view(offloads);
        let mut at = Place { next: start, used: start.wrapping_add(5), known: 0 };
        let mut buffers = Buffers::new(usize::from(SIZE));
        let mut room = [std::ptr::null_mut(); BURST];
        // SAFETY: ring and buffers are this test's.
        let done = unsafe {
            view.take(&mut at, room.as_mut_ptr(), |room, count| {
                for (step, (raw, _)) in buffers.0.iter_mut().take(count as usize).enumerate() {
                    room.add(step).write(&raw mut **raw);
                }
                true
            })
        };
        prop_assert_eq!(done.frames, wanted.len());
        prop_assert_eq!(done.exhausted, wanted.len() == heads.len());
        for (step, bytes) in wanted.iter().enumerate() {
            let (raw, buffer) = &buffers.0[step];
            prop_assert_eq!(raw.packet_len as usize, bytes.len());
            prop_assert_eq!(usize::from(raw.data_len), bytes.len());
            prop_assert_eq!(&buffer[usize::from(HEADROOM)..usize::from(HEADROOM) + bytes.len()], &bytes[..]);
            prop_assert_eq!(guest.used(start.wrapping_add(5 + step as u16)), (u32::from(heads[step]), 0));
        }
        let count = wanted.len() as u16;
        prop_assert_eq!((at.next, at.used), (start.wrapping_add(count), start.wrapping_add(5 + count)));
        if count > 0 {
            prop_assert_eq!(guest.used_index(), at.used);
        }
    }

    /// Frames are put as long as guest and frames are common; not one byte outside of what the descriptor gives is written, nor behind the frame.
    #[test]
    fn puts_what_is_common(
        descriptors in prop::collection::vec(descriptor(), usize::from(SIZE)),
        lengths in prop::collection::vec(prop_oneof![9 => 1_u16..300, 1 => 300_u16..2048], 1..20),
        available in 0..=SIZE,
        start: u16,
        long: bool,
    ) {
        let mut guest = Guest::new(if long { 12 } else { 10 });
        for (number, one) in descriptors.iter().enumerate() {
            guest.describe(number, *one);
        }
        guest.write(1024 + 2, &start.to_le_bytes());
        for step in 0..available {
            guest.make_available(start.wrapping_add(step), step);
        }
        let mut buffers = Buffers::new(lengths.len());
        for ((raw, bytes), length) in buffers.0.iter_mut().zip(&lengths) {
            (raw.data_off, raw.data_len, raw.packet_len, raw.segments) = (HEADROOM, *length, u32::from(*length), 1);
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u16 ^ *length) as u8);
        }
        let mut wanted = guest.bytes().to_vec();
        let mut count = 0;
        for ((step, one), length) in descriptors.iter().enumerate().take(usize::from(available)).zip(&lengths) {
            let header = guest.header as usize;
            let whole = guest.header + u32::from(*length);
            let common = one.flags == WRITE && one.length >= whole;
            let Some(at) = common.then(|| guest.find(one.address, whole)).flatten() else { break };
            wanted[at..at + header].fill(0);
            if header == 12 {
                wanted[at + 10] = 1;
            }
            let from = usize::from(HEADROOM);
            wanted[at + header..at + whole as usize].copy_from_slice(&buffers.0[step].1[from..from + usize::from(*length)]);
            count += 1;
        }
        let view = guest.view(false);
        let mut at = Place { next: start, used: start, known: 0 };
        let frames = buffers.frames();
        // SAFETY: ring and buffers are this test's.
        let done = unsafe { view.put(&mut at, &frames) };
        frames.into_iter().for_each(std::mem::forget);
        prop_assert_eq!(done.frames, count);
        prop_assert_eq!(done.exhausted, count == usize::from(available) && count < lengths.len());
        for (step, length) in lengths.iter().enumerate().take(count) {
            let length = guest.header + u32::from(*length);
            prop_assert_eq!(guest.used(start.wrapping_add(step as u16)), (step as u32, length));
        }
        let rings = 2048..2048 + 4 + 8 * usize::from(SIZE);
        let mut found = guest.bytes().to_vec();
        found[rings.clone()].fill(0);
        wanted[rings].fill(0);
        prop_assert!(found == wanted, "memory differs");
    }
}

#[test]
fn more_than_the_ring_has_is_for_the_library() {
    let mut guest = Guest::new(12);
    guest.write(1024 + 2, &(SIZE + 1).to_le_bytes());
    let view = guest.view(false);
    let mut at = Place::default();
    // SAFETY: the ring is this test's, and nothing is taken.
    let done = unsafe { view.take(&mut at, std::ptr::null_mut(), |_, _| false) };
    assert!(done.frames == 0 && !done.exhausted);
}

/// The library leaves addresses of rings in place that it has found to be cut short.
#[test]
fn a_ring_that_is_not_whole_in_the_guests_memory_is_not_used() {
    let mut guest = Guest::new(12);
    let base = guest.bytes().as_mut_ptr();
    let half = MEMORY / 2;
    let read = |descriptors: usize, available: usize, used: usize, size: u16| {
        let at = |offset: usize| base.wrapping_add(offset).cast();
        let ring = VhostRing {
            descriptors: at(descriptors),
            available: at(available),
            used: at(used),
            size,
        };
        let parts = [(GUEST, 0), (GUEST + MEMORY as u64, half)];
        let regions = parts.map(|(guest, from)| VhostRegion {
            guest,
            host: base.wrapping_add(from),
            size: half as u64,
        });
        // The second part is further on in the guest's addresses, so what reaches over the end of the first is no ring, though there is memory behind it here.
        View::of(&ring, regions.to_vec(), 0).is_some()
    };
    let sizes = [16 * 16, 6 + 16 * 2, 6 + 16 * 8];
    assert!(read(0, 1024, 2048, 16));
    for part in 0..3 {
        for end in [half, MEMORY] {
            let last = (end - sizes[part]) & !15;
            let mut places = [0, 1024, 2048];
            places[part] = last;
            assert!(read(places[0], places[1], places[2], 16), "{places:?}");
            places[part] = last + 16;
            assert!(!read(places[0], places[1], places[2], 16), "{places:?}");
        }
    }
    assert!(!read(0, 1024, 2048, 32768));
    assert!(!read(0, 1024, 2048, 15));
    assert!(!read(0, 1024, 2048, 0));
    assert!(!read(0, 1025, 2048, 16));
}
