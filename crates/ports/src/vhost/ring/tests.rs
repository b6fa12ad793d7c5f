//! Compares rings in the test's own memory, with honest and hostile guests, with a simple model.

use super::*;
use proptest::prelude::*;

const SIZE: u16 = 16;
const GUEST: u64 = 0x10_0000;
const MEMORY: usize = 64 << 10;
/// Offset of the guest's buffers; the ring is in front.
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
        self.write(number * 16 + 14, &descriptor.next.to_le_bytes());
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
            mergeable: false,
            indirect: false,
            event_index: false,
            // Two regions, with a hole between their guest addresses.
            regions: vec![
                Region {
                    guest: GUEST,
                    host: base,
                    size: MEMORY as u64 / 2,
                },
                Region {
                    guest: GUEST + MEMORY as u64,
                    host: base.wrapping_add(MEMORY / 2),
                    size: MEMORY as u64 / 2,
                },
            ],
            log: None,
        }
    }

    fn read(&mut self, number: usize) -> Descriptor {
        self.read_at(number * 16)
    }

    fn read_at(&mut self, at: usize) -> Descriptor {
        let bytes: [u8; 16] = self.bytes()[at..at + 16].try_into().unwrap();
        Descriptor {
            address: u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            length: u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
            flags: u16::from_le_bytes(bytes[12..14].try_into().unwrap()),
            next: u16::from_le_bytes(bytes[14..].try_into().unwrap()),
        }
    }

    /// Returns the pieces of a chain, as (offset, length); None if it is invalid. Stops beyond
    /// `most` bytes.
    fn chain(
        &mut self,
        head: u16,
        write: bool,
        most: usize,
        pieces: usize,
    ) -> Option<Vec<(usize, usize)>> {
        let first = (head < SIZE).then(|| self.read(head.into()))?;
        let (mut table, mut entries, mut number) = (0, usize::from(SIZE), usize::from(head));
        if first.flags & 4 != 0 {
            if first.flags & 1 != 0 || first.length % 16 != 0 || first.length / 16 > 256 {
                return None;
            }
            table = self.find(first.address, first.length)?;
            (entries, number) = (first.length as usize / 16, 0);
        }
        let mut parts = Vec::new();
        loop {
            if number >= entries || parts.len() == pieces {
                return None;
            }
            let one = self.read_at(table + number * 16);
            if one.flags & 4 != 0 || (one.flags & 2 != 0) != write || one.length == 0 {
                return None;
            }
            parts.push((self.find(one.address, one.length)?, one.length as usize));
            let sum: usize = parts.iter().map(|part| part.1).sum();
            if one.flags & 1 == 0 || sum > most {
                return Some(parts);
            }
            number = one.next.into();
        }
    }

    /// Translates the guest's address, byte by byte.
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

/// Buffers without a pool, owned by the test.
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
    /// Common frames are taken, with the contents that their descriptors give; at the first
    /// uncommon or invalid one it stops.
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
        let mut at = RingPosition { next: start, used: start.wrapping_add(5), ..RingPosition::default() };
        let mut buffers = Buffers::new(usize::from(SIZE));
        let mut room = [std::ptr::null_mut(); BURST];
        // SAFETY: ring and buffers are this test's.
        let done = unsafe {
            view.take(&mut at, BURST, room.as_mut_ptr(), |room, count| {
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

    /// Frames are put while they and the guest's buffers are common; no byte is written outside of
    /// the descriptor's buffer, nor behind the frame.
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
        let mut at = RingPosition { next: start, used: start, ..RingPosition::default() };
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
fn a_guest_that_says_there_is_more_than_the_ring_has_gets_nothing() {
    let mut guest = Guest::new(12);
    guest.write(1024 + 2, &(SIZE + 1).to_le_bytes());
    let view = guest.view(false);
    let mut at = RingPosition::default();
    // SAFETY: the ring is this test's, and nothing is taken.
    let done = unsafe { view.take(&mut at, BURST, std::ptr::null_mut(), |_, _| false) };
    assert!(done.frames == 0 && !done.exhausted);
    // SAFETY: as above.
    let taken = unsafe { view.take_one(&mut at, |_, _| false) };
    assert!(matches!(taken, Taken::Nothing), "{taken:?}");
    // SAFETY: as above.
    assert!(!unsafe { view.is_waiting(&mut at) });
}

/// rust-vmm accepts addresses of rings that it has found to be truncated.
#[test]
fn a_ring_that_is_not_whole_in_the_guests_memory_is_not_used() {
    let mut guest = Guest::new(12);
    let base = guest.bytes().as_mut_ptr();
    let half = MEMORY / 2;
    let read = |descriptors: usize, available: usize, used: usize, size: u16| {
        let at = |offset: usize| base.wrapping_add(offset).cast();
        let ring = RingAddresses {
            descriptors: at(descriptors),
            available: at(available),
            used: at(used),
            size,
        };
        let parts = [(GUEST, 0), (GUEST + MEMORY as u64, half)];
        let regions = parts.map(|(guest, from)| Region {
            guest,
            host: base.wrapping_add(from),
            size: half as u64,
        });
        // The second region is further on in the guest's addresses, so a part that reaches over the
        // end of the first is invalid, although there is memory behind it here.
        View::of(&ring, regions.to_vec(), 0, None).is_some()
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

/// Generates descriptors of which many are parts of chains, or refer to the table behind the rings.
fn linked() -> impl Strategy<Value = Descriptor> {
    let plain = descriptor();
    let length = prop_oneof![6 => 1_u32..600, 3 => 600_u32..4000, 1 => 20_000_u32..28_000];
    let flags = prop_oneof![
        4 => Just(0_u16), 8 => Just(NEXT), 3 => Just(WRITE), 8 => Just(WRITE | NEXT), 1 => any::<u16>()
    ];
    let next = prop_oneof![20 => 0..SIZE, 1 => any::<u16>()];
    let part = (plain, length, flags, next).prop_map(|(plain, length, flags, next)| Descriptor {
        length,
        flags,
        next,
        ..plain
    });
    let tables = prop_oneof![6 => 1_u32..=16, 1 => 0_u32..400].prop_map(|entries| entries * 16);
    let table = (tables, prop_oneof![9 => Just(INDIRECT), 1 => any::<u16>()]).prop_map(
        |(length, flags)| Descriptor {
            address: GUEST + TABLE as u64,
            length,
            flags,
            next: 1,
        },
    );
    prop_oneof![5 => part, 1 => table]
}

/// Offset of the table.
const TABLE: usize = 3072;

/// Returns a guest with these descriptors in its ring and in its table.
fn guest_with(header: u32, ring: &[Descriptor], table: &[Descriptor]) -> Guest {
    let mut guest = Guest::new(header);
    for (number, one) in ring.iter().enumerate() {
        guest.describe(number, *one);
    }
    for (number, one) in table.iter().enumerate() {
        guest.describe(TABLE / 16 + number, *one);
    }
    guest
}

fn taken(buffers: &mut Buffers, view: &View, at: &mut RingPosition) -> (Taken, usize) {
    let mut asked = 0;
    // SAFETY: ring and buffers are the test's.
    let taken = unsafe {
        view.take_one(at, |room, count| {
            asked = count as usize;
            for (step, (raw, _)) in buffers.0.iter_mut().take(asked).enumerate() {
                raw.next = std::ptr::null_mut();
                room.add(step).write(&raw mut **raw);
            }
            asked <= buffers.0.len()
        })
    };
    (taken, asked)
}

proptest! {
    /// For any ring: a frame has the contents of its chain, or the chain is given back and no frame
    /// is taken.
    #[test]
    fn any_chain_is_taken_whole_or_refused(
        ring in prop::collection::vec(linked(), usize::from(SIZE)),
        table in prop::collection::vec(linked(), usize::from(SIZE)),
        heads in prop::collection::vec(prop_oneof![19 => 0..SIZE, 1 => any::<u16>()], 1..=usize::from(SIZE)),
        start: u16,
        long: bool,
        work in prop::option::weighted(0.3, (1_u16..3000, any::<bool>())),
    ) {
        let header = if long { 12 } else { 10 };
        let mut guest = guest_with(header, &ring, &table);
        guest.write(1024 + 2, &start.to_le_bytes());
        for (step, head) in heads.iter().enumerate() {
            guest.make_available(start.wrapping_add(step as u16), *head);
        }
        let mut view = guest.view(work.is_some());
        view.indirect = true;
        let mut at = RingPosition { next: start, used: start.wrapping_add(5), ..RingPosition::default() };
        let mut buffers = Buffers::new(MAX_BUFFERS);
        let mut listed = 0;
        for head in &heads {
            let parts = guest.chain(*head, false, header as usize + LONGEST as usize, 256);
            let length: usize = parts.iter().flatten().map(|part| part.1).sum();
            if let (Some(parts), Some((size, good))) = (&parts, work) {
                // The guest requests an offload, in the first descriptor if that is long enough.
                let (place, room) = parts[0];
                if room >= 10 && length > 40 {
                    let mut asks = [1, 1, 0, 0, 0, 0, 20, 0, 6, 0];
                    asks[4..6].copy_from_slice(&size.to_ne_bytes());
                    asks[1] = if good { 1 } else { 77 };
                    guest.write(place, &asks);
                }
            }
            let fits = length > header as usize && length <= (header + LONGEST) as usize;
            let bytes: Vec<u8> = parts.iter().flatten().flat_map(|(place, room)| guest.bytes()[*place..place + room].to_vec()).collect();
            let offload = match fits && work.is_some() {
                true => vnet::decode(bytes[..10].try_into().unwrap(), length - header as usize),
                false => Some(Offload::default()),
            };
            let (taken, asked) = taken(&mut buffers, &view, &mut at);
            match taken {
                Taken::Frame(frame) => {
                    let frame = std::mem::ManuallyDrop::new(frame);
                    prop_assert!(fits && offload.is_some());
                    prop_assert_eq!(Some(frame.offload()), offload);
                    prop_assert!(frame.to_vec() == bytes[header as usize..], "bytes differ");
                    prop_assert_eq!((frame.len(), frame.segment_count()), (length - header as usize, asked));
                }
                Taken::Refused => prop_assert!(asked == 0 && !(fits && offload.is_some())),
                other => prop_assert!(false, "{other:?}"),
            }
            if *head < SIZE {
                prop_assert_eq!(guest.used(start.wrapping_add(5 + listed)), (u32::from(*head), 0));
                listed += 1;
            }
            prop_assert_eq!(at.used, start.wrapping_add(5 + listed));
        }
        prop_assert!(matches!(taken(&mut buffers, &view, &mut at).0, Taken::Nothing));
        prop_assert!(listed == 0 || guest.used_index() == at.used);
    }

    /// For any ring: a frame is written to its chains, byte by byte, and nowhere else.
    #[test]
    fn any_frame_is_put_whole_or_not_at_all(
        ring in prop::collection::vec(linked(), usize::from(SIZE)),
        table in prop::collection::vec(linked(), usize::from(SIZE)),
        available in 0..=SIZE,
        lengths in prop::collection::vec(1_u16..2048, 1..4),
        start: u16,
        mergeable: bool,
        work: bool,
    ) {
        let mut guest = guest_with(12, &ring, &table);
        guest.write(1024 + 2, &start.to_le_bytes());
        for step in 0..available {
            guest.make_available(start.wrapping_add(step), step);
        }
        // A frame with one buffer for each length.
        let mut buffers = Buffers::new(lengths.len());
        let mut bytes = Vec::new();
        let mut following = std::ptr::null_mut();
        for ((raw, buffer), length) in buffers.0.iter_mut().zip(&lengths).rev() {
            (raw.data_len, raw.segments, raw.next) = (*length, lengths.len() as u16, following);
            buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u16 ^ *length) as u8);
            following = &raw mut **raw;
        }
        for ((_, buffer), length) in buffers.0.iter().zip(&lengths) {
            bytes.extend_from_slice(&buffer[..usize::from(*length)]);
        }
        buffers.0[0].0.packet_len = bytes.len() as u32;
        // SAFETY: a chain of the test's own, which is not freed.
        let frame = unsafe { Mbuf::from_raw(NonNull::from(&mut *buffers.0[0].0)) };
        let mut frame = std::mem::ManuallyDrop::new(frame);
        let offload = Offload { partial_checksum: work, checksum_valid: work, ..Offload::default() };
        frame.set_offload(offload);
        let wanted = 12 + bytes.len();
        // What a guest would expect, chain by chain.
        let (mut chains, mut outcome) = (Vec::new(), None);
        let room = |chains: &Vec<Vec<(usize, usize)>>| chains.iter().flatten().map(|part| part.1).sum::<usize>();
        for head in 0..available {
            let left = wanted - room(&chains);
            let known = chains.iter().flatten().count();
            let Some(chain) = guest.chain(head, true, left - 1, 256 - known) else {
                outcome = Some(Put::Refused);
                break;
            };
            chains.push(chain);
            if room(&chains) >= wanted { outcome = Some(Put::Done); break }
            if !mergeable { outcome = Some(Put::TooSmall); break }
        }
        let expected = outcome.unwrap_or(Put::Full);
        let mut memory = guest.bytes().to_vec();
        if expected == Put::Done {
            let mut all = vec![u8::from(work), 0, 0, 0, 0, 0, 0, 0, 0, 0, chains.len() as u8, 0];
            all.extend_from_slice(&bytes);
            // A guest may name the same memory twice; the last byte written there stays.
            for (place, byte) in chains.iter().flatten().flat_map(|(place, room)| *place..place + room).zip(&all) {
                memory[place] = *byte;
            }
        }
        let mut view = guest.view(false);
        (view.indirect, view.mergeable) = (true, mergeable);
        let mut at = RingPosition { next: start, used: start, ..RingPosition::default() };
        // SAFETY: ring and frame are this test's.
        let put = unsafe { view.put_one(&mut at, &frame) };
        prop_assert_eq!(&put, &expected);
        let rings = 2048..2048 + 4 + 8 * usize::from(SIZE);
        let mut found = guest.bytes().to_vec();
        found[rings.clone()].fill(0);
        memory[rings].fill(0);
        // A guest whose buffers overlap its ring gets what it asked for.
        prop_assert!(found == memory, "memory differs");
        if put == Put::Done {
            prop_assert_eq!(usize::from(at.used.wrapping_sub(start)), chains.len());
            let written: u32 = (0..chains.len() as u16).map(|step| guest.used(start.wrapping_add(step)).1).sum();
            prop_assert_eq!(written as usize, wanted);
        } else if put != Put::Refused {
            prop_assert_eq!((at.next, at.used), (start, start));
        }
    }
}

/// 64 MiB in each chain of a full ring: nothing is copied, no buffer allocated.
#[test]
fn a_chain_of_64_mib_costs_no_buffer() {
    let mut guest = Guest::new(12);
    for number in 0..SIZE {
        let half = MEMORY as u64 / 2;
        let one = Descriptor {
            address: GUEST,
            length: half as u32,
            flags: NEXT,
            next: (number + 1) % SIZE,
        };
        guest.describe(number.into(), one);
        guest.make_available(number, number);
    }
    let view = guest.view(false);
    let mut at = RingPosition::default();
    for number in 0..SIZE {
        let (taken, asked) = taken(&mut Buffers::new(0), &view, &mut at);
        assert!(matches!(taken, Taken::Refused), "{taken:?}");
        assert_eq!((asked, at.used), (0, number + 1));
        assert_eq!(guest.used(number), (number.into(), 0));
    }
}

/// The guest is notified when it asks for it: with the event index, once that is passed.
#[test]
fn a_guest_is_told_when_its_wish_is_passed() {
    let mut guest = Guest::new(12);
    let mut view = guest.view(false);
    let tells = |view: &View, at: &mut RingPosition, used| {
        at.used = used;
        // SAFETY: the ring is this test's.
        unsafe { view.wants_call(at) }
    };
    let mut at = RingPosition::default();
    assert!(tells(&view, &mut at, 1));
    guest.write(1024, &NO_INTERRUPT.to_le_bytes());
    assert!(!tells(&view, &mut at, 2));
    view.event_index = true;
    let mut at = RingPosition::default();
    let wish = 1024 + 4 + 2 * usize::from(SIZE);
    assert!(tells(&view, &mut at, 65530), "not asked before");
    guest.write(wish, &65534_u16.to_le_bytes());
    assert!(!tells(&view, &mut at, 65534));
    assert!(tells(&view, &mut at, 65535));
    assert!(!tells(&view, &mut at, 3));
    guest.write(wish, &3_u16.to_le_bytes());
    assert!(tells(&view, &mut at, 10));
    assert!(!tells(&view, &mut at, 10), "nothing new");
}

#[test]
fn kicks_are_asked_for_as_the_ring_has_it() {
    let mut guest = Guest::new(12);
    let mut view = guest.view(false);
    let at = RingPosition {
        next: 77,
        ..RingPosition::default()
    };
    let number = |guest: &mut Guest, at: usize| {
        u16::from_le_bytes(guest.bytes()[at..at + 2].try_into().unwrap())
    };
    let wish = 2048 + 4 + 8 * usize::from(SIZE);
    for (wanted, flags) in [(true, 0), (false, NO_KICKS), (true, 0)] {
        // SAFETY: the ring is this test's.
        unsafe { view.ask_for_kicks(&at, wanted) };
        assert_eq!(
            (number(&mut guest, 2048), number(&mut guest, wish)),
            (flags, 0)
        );
    }
    view.event_index = true;
    // SAFETY: as above.
    unsafe { view.ask_for_kicks(&at, true) };
    assert_eq!(
        (number(&mut guest, 2048), number(&mut guest, wish)),
        (0, 77)
    );
}

/// A guest rewrites descriptors while they are read: the lengths that were checked are used.
#[test]
fn descriptors_that_change_while_they_are_read_change_nothing() {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    const ROUNDS: usize = 20_000;
    let mut guest = Guest::new(12);
    let view = guest.view(false);
    let place = guest.bytes().as_mut_ptr() as usize;
    let stop = AtomicBool::new(false);
    // SAFETY: aligned words of the guest's memory, which both sides only touch atomically or as
    // shared memory.
    let word = |at: usize| unsafe { &*((place + at) as *const AtomicU64) };
    let half = MEMORY as u64 / 2;
    let number = |at: &mut u64| {
        *at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *at >> 33
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 1;
            while !stop.load(Ordering::Relaxed) {
                let at = number(&mut seed) as usize % usize::from(SIZE) * 16;
                let length = [1, 40, 4000, half, half + 1, 0xffff_ffff];
                let length = length[number(&mut seed) as usize % length.len()];
                let flags = number(&mut seed) % 8;
                let next = number(&mut seed) % u64::from(SIZE + 1);
                word(at).store(GUEST + number(&mut seed) % half, Ordering::Relaxed);
                word(at + 8).store(length | flags << 32 | next << 48, Ordering::Relaxed);
            }
        });
        let mut at = RingPosition::default();
        let mut buffers = Buffers::new(MAX_BUFFERS);
        for round in 0..ROUNDS {
            // Make one more entry available.
            let index = word(1024).load(Ordering::Relaxed) & !0xffff_0000;
            let next = u64::from(at.next.wrapping_add(1)) << 16;
            word(1024).store(index | next, Ordering::Relaxed);
            let (taken, asked) = taken(&mut buffers, &view, &mut at);
            assert_eq!(usize::from(at.next), (round + 1) & 0xffff);
            match taken {
                Taken::Frame(frame) => {
                    let length: usize = frame.segments().map(<[u8]>::len).sum();
                    assert_eq!((frame.len(), frame.segment_count()), (length, asked));
                    assert!(length <= LONGEST as usize && asked <= MAX_BUFFERS);
                    std::mem::forget(frame);
                }
                Taken::Refused => assert_eq!(asked, 0),
                other => panic!("{other:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
