//! Compares the devices of two connections to one port with a model, for any messages in any order.

use super::*;
use crate::vhost::message::VhostUserMemoryRegion;
use proptest::prelude::*;
use vhost::vhost_user::message::{VhostUserLog, VhostUserVringAddrFlags};

/// Bytes of a guest's memory, and its address for descriptors and for the front end.
const BYTES: u64 = 64 << 10;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;

/// Rings in messages, and a ring number that is too large.
const RINGS: u32 = 4;
const BEYOND: u32 = MOST_RINGS as u32;

/// A front end's message.
#[derive(Debug, Clone)]
enum Sent {
    Features(u64),
    Reset,
    /// Memory, valid or not mappable.
    Memory(bool),
    Log(bool),
    Size(u32, u32),
    /// An address in the memory, at its end, or outside.
    Address(u32, u64),
    Base(u32, u32),
    GetBase(u32),
    Kick(u32, File),
    Call(u32, File),
    Enable(u32, u32),
    /// The guest's used ring has this index.
    Used(u32, u16),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum File {
    Event,
    None,
    /// A descriptor is expected, but missing.
    Missing,
    /// Another kind of descriptor.
    Other,
}

fn sent() -> impl Strategy<Value = Sent> {
    let ring = || prop_oneof![20 => 0..RINGS, 1 => Just(BEYOND), 1 => Just(u32::MAX)];
    let file = || {
        prop_oneof![
            8 => Just(File::Event),
            2 => Just(File::None),
            1 => Just(File::Missing),
            1 => Just(File::Other)
        ]
    };
    let sizes = prop_oneof![6 => Just(8u32), 2 => Just(4u32), 1 => Just(0), 1 => Just(3), 1 => Just(32_768), 1 => Just(65_536)];
    let places =
        prop_oneof![8 => Just(0u64), 1 => Just(BYTES - 512), 1 => Just(BYTES), 1 => Just(1)];
    prop_oneof![
        2 => prop_oneof![
            Just(feature::OFFERED),
            Just(0),
            Just(feature::PROTOCOL_FEATURES),
            Just(feature::LOG_ALL),
            Just(1 << 34)
        ]
        .prop_map(Sent::Features),
        1 => Just(Sent::Reset),
        3 => prop::bool::weighted(0.8).prop_map(Sent::Memory),
        1 => any::<bool>().prop_map(Sent::Log),
        4 => (ring(), sizes).prop_map(|(ring, size)| Sent::Size(ring, size)),
        4 => (ring(), places).prop_map(|(ring, place)| Sent::Address(ring, place)),
        1 => (ring(), any::<u32>()).prop_map(|(ring, base)| Sent::Base(ring, base)),
        2 => ring().prop_map(Sent::GetBase),
        4 => (ring(), file()).prop_map(|(ring, file)| Sent::Kick(ring, file)),
        2 => (ring(), file()).prop_map(|(ring, file)| Sent::Call(ring, file)),
        4 => (ring(), 0..3u32).prop_map(|(ring, to)| Sent::Enable(ring, to)),
        2 => (0..RINGS, any::<u16>()).prop_map(|(ring, used)| Sent::Used(ring, used)),
        1 => Just(Sent::End),
    ]
}

/// Returns a file as another process might pass it.
fn file(bytes: u64) -> OwnedFd {
    let file = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// Returns the addresses of a ring's parts: four rings lie side by side from `place` on.
fn parts(ring: u32, place: u64) -> [u64; 3] {
    let first = place + u64::from(ring) * 1024;
    [first, first + 256, first + 512]
}

#[derive(Debug, Clone, Default)]
struct ModelRing {
    size: u32,
    place: Option<u64>,
    started: bool,
    enabled: bool,
    next: u16,
    used: u16,
}

/// The expected device.
#[derive(Debug, Clone, Default)]
struct Model {
    features: u64,
    has_memory: bool,
    rings: [ModelRing; RINGS as usize],
    /// Rings that the port has been told of.
    known: [bool; RINGS as usize],
}

impl Model {
    fn is_usable(&self, number: usize) -> bool {
        let ring = &self.rings[number];
        let Some(place) = ring.place else {
            return false;
        };
        let [descriptors, available, used] = parts(number as u32, place);
        let size = u64::from(ring.size);
        let fits = |from: u64, length: u64| from < BYTES && BYTES - from >= length;
        let lies = fits(descriptors, size * 16)
            && fits(available, 6 + size * 2)
            && fits(used, 6 + size * 8)
            && place.is_multiple_of(16);
        ring.started && ring.enabled && ring.size > 0 && self.has_memory && lies
    }

    /// Applies a message; None if it must be refused. Refused memory is gone even so.
    fn takes(&mut self, sent: &Sent) -> Option<()> {
        let ring = |number: u32| (number < MOST_RINGS as u32).then_some(number as usize);
        match *sent {
            Sent::Features(features) => {
                (features & !feature::OFFERED == 0).then(|| self.features = features)
            }
            Sent::Reset => {
                for ring in &mut self.rings {
                    (ring.started, ring.enabled) = (false, false);
                }
                Some(())
            }
            Sent::Memory(whole) => {
                self.has_memory = whole;
                whole.then_some(())
            }
            Sent::Log(whole) => whole.then_some(()),
            Sent::Size(number, size) => {
                let sound = size.is_power_of_two() && size <= MOST_DESCRIPTORS;
                let number = ring(number).filter(|_| sound)?;
                self.rings[number].size = size;
                Some(())
            }
            Sent::Address(number, place) => {
                self.rings[ring(number)?].place = Some(place);
                Some(())
            }
            Sent::Base(number, base) => {
                let ring = &mut self.rings[ring(number)?];
                (ring.next, ring.used) = (base as u16, base as u16);
                Some(())
            }
            Sent::GetBase(number) => {
                self.rings[ring(number)?].started = false;
                Some(())
            }
            Sent::Kick(number, file) => {
                let sound = matches!(file, File::Event | File::None);
                let protocol = self.features & feature::PROTOCOL_FEATURES != 0;
                let ring = &mut self.rings[ring(number).filter(|_| sound)?];
                (ring.started, ring.enabled) = (true, ring.enabled || !protocol);
                Some(())
            }
            Sent::Call(number, file) => {
                let sound = matches!(file, File::Event | File::None);
                ring(number).filter(|_| sound).map(drop)
            }
            Sent::Enable(number, to) => {
                let number = ring(number).filter(|_| to < 2)?;
                self.rings[number].enabled = to == 1;
                Some(())
            }
            Sent::Used(..) | Sent::End => Some(()),
        }
    }
}

/// One connection's device, its model, and the guest's memory.
struct Side {
    device: Device,
    model: Model,
    memory: OwnedFd,
}

fn write_used(memory: &OwnedFd, ring: u32, place: u64, used: u16) {
    let at = parts(ring, place)[2] + 2;
    let bytes = used.to_ne_bytes();
    // SAFETY: two readable bytes.
    unsafe {
        libc::pwrite(
            memory.as_raw_fd(),
            bytes.as_ptr().cast(),
            2,
            at as libc::off_t,
        )
    };
}

fn read_used(memory: &OwnedFd, ring: u32, place: u64) -> u16 {
    let mut bytes = [0; 2];
    let at = parts(ring, place)[2] + 2;
    // SAFETY: two writable bytes.
    unsafe {
        libc::pread(
            memory.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            2,
            at as libc::off_t,
        )
    };
    u16::from_ne_bytes(bytes)
}

impl Side {
    fn new(id: i32, shared: &Arc<Shared>) -> Side {
        Side {
            device: Device::new(id, Arc::clone(shared)),
            model: Model::default(),
            memory: file(BYTES),
        }
    }

    fn send(&mut self, sent: &Sent) -> Result<Option<Answer>, Refusal> {
        let state = VhostUserVringState::new;
        let ring_file = |ring: u32, file: File| RingFile {
            ring,
            has_file: !matches!(file, File::None),
        };
        let files = |kind: File| match kind {
            File::Event => vec![crate::vhost::event().expect("a descriptor")],
            File::Other => vec![file(8)],
            File::None | File::Missing => Vec::new(),
        };
        let (request, files) = match *sent {
            Sent::Features(features) => (Request::SetFeatures(features), Vec::new()),
            Sent::Reset => (Request::Reset, Vec::new()),
            Sent::Memory(whole) => {
                let size = if whole { BYTES } else { BYTES * 2 };
                let region = VhostUserMemoryRegion::new(GUEST, size, USER, 0);
                let copy = self.memory.try_clone().expect("a descriptor");
                (Request::SetMemTable(vec![region]), vec![copy])
            }
            Sent::Log(whole) => {
                let log = VhostUserLog::new(4096, 0);
                let files = whole.then(|| file(4096)).into_iter();
                (Request::SetLogBase(log), files.collect())
            }
            Sent::Size(ring, size) => (Request::SetVringNum(state(ring, size)), Vec::new()),
            Sent::Address(index, place) => {
                let [descriptor, available, used] = parts(index.min(RINGS), place);
                let flags = VhostUserVringAddrFlags::empty();
                let address = VhostUserVringAddr::new(
                    index,
                    flags,
                    USER + descriptor,
                    USER + used,
                    USER + available,
                    0,
                );
                (Request::SetVringAddr(address), Vec::new())
            }
            Sent::Base(ring, base) => (Request::SetVringBase(state(ring, base)), Vec::new()),
            Sent::GetBase(ring) => (Request::GetVringBase(state(ring, 0)), Vec::new()),
            Sent::Kick(ring, file) => (Request::SetVringKick(ring_file(ring, file)), files(file)),
            Sent::Call(ring, file) => (Request::SetVringCall(ring_file(ring, file)), files(file)),
            Sent::Enable(ring, to) => (Request::SetVringEnable(state(ring, to)), Vec::new()),
            Sent::Used(..) | Sent::End => return Ok(None),
        };
        self.device.handle(request, files)
    }
}

proptest! {
    #[test]
    fn devices_are_as_their_messages_say(
        messages in prop::collection::vec((prop::bool::weighted(0.8), sent()), 1..120),
    ) {
        let shared = Arc::new(Shared::new(Box::new([]), 1518));
        let mut sides = [Side::new(0, &shared), Side::new(1, &shared)];
        // The connection that the port serves.
        let mut owner: Option<usize> = None;
        for (first, sent) in messages {
            let which = usize::from(!first);
            let side = &mut sides[which];
            if let Sent::Used(ring, used) = sent {
                // While workers use a ring nobody else writes to it.
                if !side.model.known[ring as usize]
                    && let Some(place) = side.model.rings[ring as usize].place
                {
                    write_used(&side.memory, ring, place, used);
                }
                continue;
            }
            if matches!(sent, Sent::End) {
                side.device.end();
                *side = Side::new(which as i32, &shared);
                owner = owner.filter(|owner| *owner != which);
            } else {
                let stands = side.model.rings.clone();
                let taken = side.model.takes(&sent);
                let answer = side.send(&sent);
                prop_assert_eq!(answer.is_ok(), taken.is_some(), "{:?}: {:?}", sent, answer);
                if owner != Some(which) {
                    side.model.known = Default::default();
                }
                let usable: [bool; RINGS as usize] =
                    std::array::from_fn(|ring| side.model.is_usable(ring));
                for (number, usable) in usable.iter().enumerate() {
                    let came = *usable && !side.model.known[number];
                    if came {
                        owner = Some(which);
                        let ring = &mut side.model.rings[number];
                        let used = read_used(&side.memory, number as u32, ring.place.unwrap_or(0));
                        if ring.used != used {
                            (ring.next, ring.used) = (used, used);
                        }
                    }
                }
                if owner == Some(which) {
                    side.model.known = usable;
                }
                if let (Sent::GetBase(ring), Ok(Some(answer))) = (&sent, answer) {
                    let next = stands[*ring as usize].next;
                    let wanted = VhostUserVringState::new(*ring, next.into());
                    prop_assert_eq!(answer.payload.as_slice(), wanted.as_slice());
                }
            }
            // What workers see.
            let served = owner.map(|owner| &sides[owner].model);
            let table = shared.table();
            prop_assert_eq!(table.is_some(), served.is_some());
            let is_there = served.is_some_and(|model| model.known[0] && model.known[1]);
            let vid = shared.vid.load(Ordering::SeqCst);
            prop_assert_eq!(vid, if is_there { owner.map_or(-1, |owner| owner as i32) } else { -1 });
            for number in 0..RINGS as usize {
                let usable = served.is_some_and(|model| model.known[number]);
                let ring = &shared.rings[number];
                prop_assert_eq!(ring.enabled.load(Ordering::SeqCst), usable, "ring {}", number);
                let entry = table.as_ref().and_then(|table| table.ring(number as u16));
                prop_assert_eq!(entry.is_some(), usable);
                let open = ring.gate.key().try_enter().is_some();
                prop_assert_eq!(open, is_there, "the gate of ring {}", number);
                if is_there {
                    prop_assert!(ring.quick.key().enter().is_some());
                }
                if usable {
                    let view = table.as_ref().and_then(|table| table.view(number as u16));
                    let view = view.expect("a ring that can be used");
                    // SAFETY: its memory is mapped, and no other thread is here.
                    let used = unsafe { view.used_index() };
                    let owner = owner.map(|owner| &sides[owner]).expect("who is served");
                    let place = owner.model.rings[number].place.unwrap_or(0);
                    prop_assert_eq!(used, read_used(&owner.memory, number as u32, place));
                    let stands = entry.map(|entry| Arc::clone(&entry.position));
                    let stands = stands.expect("a ring that can be used");
                    let wanted = &owner.model.rings[number];
                    prop_assert_eq!(stands.next.load(Ordering::Relaxed), wanted.next);
                    prop_assert_eq!(stands.used.load(Ordering::Relaxed), wanted.used);
                }
            }
        }
        drop(sides);
        prop_assert!(shared.table().is_none() && shared.vid.load(Ordering::SeqCst) == -1);
    }
}
