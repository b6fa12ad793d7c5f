//! A guest's device, as set up by the messages of one connection (QEMU's
//! docs/interop/vhost-user.rst).
//!
//! A ring can be used once it has a size, an address in the guest's memory, and a kick, and is
//! enabled. The device exists while the first pair of rings can be used. Messages that change what
//! workers read are handled while no worker reads ([`Shared::message_begins`]); workers read a
//! [`Table`].
//!
//! Descriptors are given back in the order in which they were taken, each before the next burst. So
//! the used ring's index says where a ring stands even if this process dies, and a restarted ring
//! continues there: no descriptor is lost. For that reason the memory from `GET_INFLIGHT_FD` needs
//! no entries.

use super::call::{Call, set_nonblocking};
use super::memory::{DirtyLog, Memory, NOT_SHARED, Refusal};
use super::message::{
    Protocol, Request, RingFile, VhostUserInflight, VhostUserVringAddr, VhostUserVringState,
};
use super::ring::{Log, RingAddresses, View};
use super::{MAX_PAIRS, Shared, feature};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use vm_memory::ByteValued;

/// Most rings of a device: a pair for each queue pair.
const MOST_RINGS: usize = MAX_PAIRS * 2;

/// Most descriptors of a ring (virtio 1.1 section 2.6).
const MOST_DESCRIPTORS: u32 = 32_768;

/// Offered protocol features.
pub(super) const PROTOCOL: Protocol = Protocol::MQ
    .union(Protocol::LOG_SHMFD)
    .union(Protocol::RARP)
    .union(Protocol::REPLY_ACK)
    .union(Protocol::MTU)
    .union(Protocol::INFLIGHT_SHMFD);

/// A ring's position. Written by the queue that uses it, and by the device while none does.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The next entry of the available ring.
    pub next: AtomicU16,
    /// The next element of the used ring.
    pub used: AtomicU16,
}

impl Position {
    fn set(&self, number: u16) {
        self.next.store(number, Ordering::Relaxed);
        self.used.store(number, Ordering::Relaxed);
    }
}

/// A ring of the table.
pub(super) struct Entry {
    /// Addresses of its parts, and its size.
    pub addresses: RingAddresses,
    pub position: Arc<Position>,
    pub kick: Option<Arc<OwnedFd>>,
    pub call: Option<Arc<Call>>,
    /// The guest's address of its used ring, for the log of written pages.
    log_used: Option<u64>,
}

/// What queues read of a device; replaced as a whole.
pub(super) struct Table {
    features: u64,
    regions: Vec<super::ring::Region>,
    log: Option<Arc<DirtyLog>>,
    /// The rings by number; None for those that cannot be used.
    pub rings: Vec<Option<Entry>>,
    pub numa_node: i32,
}

impl Table {
    /// Returns a ring that can be used.
    pub fn ring(&self, index: u16) -> Option<&Entry> {
        self.rings.get(usize::from(index))?.as_ref()
    }

    /// Returns the rings that can be used, and how many descriptors each has.
    pub fn sizes(&self) -> impl Iterator<Item = (usize, u16)> {
        let rings = self.rings.iter().enumerate();
        rings.filter_map(|(number, ring)| Some((number, ring.as_ref()?.addresses.size)))
    }

    /// Returns a ring and the memory of its descriptors; None if the ring is not completely mapped.
    pub fn view(&self, index: u16) -> Option<View> {
        let entry = self.ring(index)?;
        let log = self.log.as_ref().map(|log| Log {
            pages: Arc::clone(log),
            used: entry.log_used,
        });
        View::of(&entry.addresses, self.regions.clone(), self.features, log)
    }
}

/// Parts of a reply.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub payload: Vec<u8>,
    pub file: Option<OwnedFd>,
}

impl Answer {
    fn of(payload: &[u8]) -> Option<Answer> {
        Some(Answer {
            payload: payload.to_vec(),
            file: None,
        })
    }
}

#[derive(Default)]
struct Ring {
    size: u16,
    address: Option<VhostUserVringAddr>,
    position: Arc<Position>,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<Call>>,
    /// Whether a kick was set, even one without a descriptor.
    started: bool,
    enabled: bool,
    /// Whether workers have been told of it.
    known: bool,
}

/// The device of one connection.
pub(super) struct Device {
    /// Its number in [`Shared`].
    id: i32,
    shared: Arc<Shared>,
    features: u64,
    memory: Memory,
    log: Option<Arc<DirtyLog>>,
    rings: Vec<Ring>,
    /// Whether workers have been told of it.
    arrived: bool,
}

impl Device {
    pub fn new(id: i32, shared: Arc<Shared>) -> Device {
        Device {
            id,
            shared,
            features: 0,
            memory: Memory::default(),
            log: None,
            rings: Vec::new(),
            arrived: false,
        }
    }

    /// Carries a message out. A refusal leaves the device as it was, except for memory that cannot
    /// be mapped: the earlier memory is no longer the guest's, so its rings stop.
    pub fn handle(
        &mut self,
        request: Request,
        files: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, Refusal> {
        match request {
            Request::GetFeatures => Ok(Answer::of(&feature::OFFERED.to_ne_bytes())),
            Request::GetProtocolFeatures => Ok(Answer::of(&PROTOCOL.bits().to_ne_bytes())),
            Request::GetQueueNum => Ok(Answer::of(&(MAX_PAIRS as u64).to_ne_bytes())),
            Request::SetProtocolFeatures(bits) => {
                let unknown = bits & !PROTOCOL.bits();
                let sound = unknown == 0;
                sound.then_some(None).ok_or_else(|| {
                    Refusal(format!("protocol features 0x{unknown:x} were not offered"))
                })
            }
            // Descriptors of these messages are closed: errors are not reported to front ends, and
            // the MTU concerns only the front end.
            Request::SetOwner | Request::SetLogFd | Request::SetVringErr => Ok(None),
            Request::NetSetMtu(mtu) => {
                let sound = (68..=65_535).contains(&mtu);
                sound
                    .then_some(None)
                    .ok_or_else(|| Refusal(format!("an MTU of {mtu}")))
            }
            Request::SendRarp(address) => {
                if self.arrived && self.serves() {
                    self.shared.announce(address);
                }
                Ok(None)
            }
            Request::GetInflight(wanted) => inflight(&wanted).map(Some),
            Request::SetInflight if files.len() == 1 => Ok(None),
            Request::SetInflight => Err(Refusal("in-flight state without a file".into())),
            other => self.change(other, files),
        }
    }

    /// Carries out a message that changes what workers read, while they are kept out.
    fn change(&mut self, request: Request, files: Vec<OwnedFd>) -> Result<Option<Answer>, Refusal> {
        let serves = self.serves();
        if serves {
            self.shared.message_begins();
        }
        let result = self.apply(request, files);
        self.publish();
        if serves {
            self.shared.message_done();
        }
        result
    }

    fn apply(&mut self, request: Request, files: Vec<OwnedFd>) -> Result<Option<Answer>, Refusal> {
        match request {
            Request::SetFeatures(features) => {
                let unknown = features & !feature::OFFERED;
                if unknown != 0 {
                    return Err(Refusal(format!("features 0x{unknown:x} were not offered")));
                }
                self.features = features;
            }
            Request::Reset => {
                for ring in &mut self.rings {
                    (ring.started, ring.enabled) = (false, false);
                    (ring.kick, ring.call) = (None, None);
                }
            }
            Request::SetMemTable(list) => {
                // New memory is refused then: each truncation costs a worker a fault.
                if self.memory.was_taken_back() {
                    return Err(Refusal("it took back memory in use".into()));
                }
                // Unmap the old memory first: both may not fit into the address space.
                self.memory = Memory::default();
                self.memory = Memory::map(&list, &files)?;
                let left_out = list.len() - self.memory.regions().len();
                if left_out > 0 {
                    tracing::warn!(target: "vhost", "{left_out} of a guest's memory regions are left out: {NOT_SHARED}");
                }
            }
            Request::SetLogBase(log) => {
                let [file] = &files[..] else {
                    return Err(Refusal("a log without a file descriptor".into()));
                };
                self.log = Some(Arc::new(DirtyLog::map(&log, file)?));
                // The front end waits for this reply whatever it has requested.
                return Ok(Answer::of(&0u64.to_ne_bytes()));
            }
            Request::SetVringNum(VhostUserVringState { index, num }) => {
                let sound = num.is_power_of_two() && num <= MOST_DESCRIPTORS;
                if !sound {
                    return Err(Refusal(format!("ring {index} of {num} descriptors")));
                }
                self.ring(index)?.size = num as u16;
            }
            Request::SetVringAddr(address) => {
                self.ring(address.index)?.address = Some(address);
            }
            Request::SetVringBase(VhostUserVringState { index, num }) => {
                self.ring(index)?.position.set(num as u16);
            }
            Request::GetVringBase(VhostUserVringState { index, .. }) => {
                let ring = self.ring(index)?;
                (ring.started, ring.kick, ring.call) = (false, None, None);
                let next = ring.position.next.load(Ordering::Relaxed);
                let stands = VhostUserVringState::new(index, next.into());
                return Ok(Answer::of(stands.as_slice()));
            }
            Request::SetVringKick(file) => {
                let protocol = self.features & feature::PROTOCOL_FEATURES != 0;
                let kick = event_of(file, files, "kick")?.map(Arc::new);
                let ring = self.ring(file.ring)?;
                ring.kick = kick;
                ring.started = true;
                // Without protocol features rings are enabled from the start.
                ring.enabled |= !protocol;
            }
            Request::SetVringCall(file) => {
                let call = event_of(file, files, "call")?.map(Call::new);
                let call = call.transpose().map_err(|error| {
                    Refusal(format!("the call of ring {} ({error})", file.ring))
                })?;
                // The guest has not been notified of what happened without a call descriptor.
                call.iter().for_each(|call| call.tell());
                self.ring(file.ring)?.call = call;
            }
            Request::SetVringEnable(VhostUserVringState { index, num }) => {
                if num > 1 {
                    return Err(Refusal(format!("ring {index} is to be enabled by {num}")));
                }
                self.ring(index)?.enabled = num == 1;
            }
            _ => {}
        }
        Ok(None)
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring, Refusal> {
        let wanted = usize::try_from(index).unwrap_or(usize::MAX);
        if wanted >= MOST_RINGS {
            return Err(Refusal(format!("ring {index}: there are {MOST_RINGS}")));
        }
        if self.rings.len() <= wanted {
            self.rings.resize_with(wanted + 1, Ring::default);
        }
        Ok(&mut self.rings[wanted])
    }

    /// Publishes the device's state to workers.
    fn publish(&mut self) {
        if !self.serves() {
            // Another connection's device is served now.
            self.arrived = false;
            self.rings.iter_mut().for_each(|ring| ring.known = false);
        }
        let table = self.table();
        let usable = |index: usize| table.rings.get(index).is_some_and(Option::is_some);
        let is_there = usable(0) && usable(1);
        let changes: Vec<(u16, bool)> = (0..self.rings.len())
            .filter(|index| self.rings[*index].known != usable(*index))
            .map(|index| (index as u16, usable(index)))
            .collect();
        let comes = is_there && !self.arrived;
        if self.serves() || comes || changes.iter().any(|change| change.1) {
            // Release the device served before.
            self.shared.turn_to(self.id);
            self.shared.show(Arc::new(table));
        }
        for (index, usable) in changes {
            self.rings[usize::from(index)].known = usable;
            self.shared.ring_changed(self.id, index, usable);
        }
        if comes {
            self.shared.arrive(self.id, self.features);
        } else if self.arrived && !is_there {
            self.shared.leave(self.id);
        } else if self.arrived {
            self.shared.agreed(self.id, self.features);
        }
        self.arrived = is_there;
    }

    /// Makes the table for workers.
    fn table(&mut self) -> Table {
        let regions = self.memory.regions();
        let mut table = Table {
            features: self.features,
            regions: regions.clone(),
            log: (self.features & feature::LOG_ALL != 0)
                .then(|| self.log.clone())
                .flatten(),
            rings: Vec::new(),
            numa_node: self.memory.numa_node(),
        };
        for (index, ring) in self.rings.iter_mut().enumerate() {
            let entry = ring.entry(&self.memory);
            let view = entry
                .as_ref()
                .and_then(|entry| View::of(&entry.addresses, regions.clone(), self.features, None));
            if let Some(view) = &view
                && !ring.known
            {
                // SAFETY: the memory is mapped, and no queue uses a ring that nobody has been told
                // of.
                let used = unsafe { view.used_index() };
                if ring.position.used.load(Ordering::Relaxed) != used {
                    // The guest's ring is right: the process that used it before may have died.
                    tracing::info!(target: "vhost", "ring {index} goes on at {used}, where it was left");
                    ring.position.set(used);
                }
            }
            table.rings.push(view.and(entry));
        }
        table
    }

    /// Returns whether the port serves this device.
    pub fn serves(&self) -> bool {
        self.shared.serves(self.id)
    }

    /// Returns whether one of the mappings of its memory begins there.
    pub fn has_memory_at(&self, address: usize) -> bool {
        self.memory.begins_at(address)
    }

    /// Ends the device, because its memory was truncated.
    pub fn end(&mut self) {
        self.shared.disconnect(self.id);
        self.arrived = false;
        self.rings.clear();
        self.memory = Memory::default();
    }

    /// Returns whether the front end has made a call descriptor block since this was last asked.
    pub fn has_blocked(&self) -> bool {
        let calls = self.rings.iter().filter_map(|ring| ring.call.as_ref());
        // Ask every one, whatever the first ones were.
        calls.filter(|call| call.has_blocked()).count() > 0
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ring {
    fn entry(&self, memory: &Memory) -> Option<Entry> {
        let address = self.address?;
        let (descriptor, available, used) = (address.descriptor, address.available, address.used);
        let usable = self.started && self.enabled && self.size > 0;
        usable.then(|| Entry {
            addresses: RingAddresses {
                descriptors: memory.by_user(descriptor),
                available: memory.by_user(available),
                used: memory.by_user(used),
                size: self.size,
            },
            position: Arc::clone(&self.position),
            kick: self.kick.clone(),
            call: self.call.clone(),
            log_used: (address.flags & 1 != 0).then_some(address.log),
        })
    }
}

/// Returns the event of a `SET_VRING_KICK` or `_CALL`. Anything else than an eventfd could block
/// its writer, or might not work with epoll.
fn event_of(
    file: RingFile,
    mut files: Vec<OwnedFd>,
    what: &str,
) -> Result<Option<OwnedFd>, Refusal> {
    let ring = file.ring;
    match (file.has_file, files.len()) {
        (false, 0) => return Ok(None),
        (true, 1) => {}
        (_, count) => {
            return Err(Refusal(format!(
                "{what} of ring {ring} with {count} file descriptors"
            )));
        }
    }
    let Some(event) = files.pop() else {
        return Ok(None);
    };
    if !is_event(&event) {
        return Err(Refusal(format!(
            "the {what} of ring {ring} is not an eventfd"
        )));
    }
    set_nonblocking(&event);
    Ok(Some(event))
}

fn is_event(file: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Raises an event. One whose counter is full stays raised.
pub(super) fn tell(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Returns the memory for in-flight state, which stays empty; see the module.
fn inflight(wanted: &VhostUserInflight) -> Result<Answer, Refusal> {
    // The layout of DPDK and QEMU: a head of 16 bytes, 16 bytes for each descriptor, rounded up to
    // whole cache lines.
    let each = (16 + 16 * u64::from(wanted.queue_size)).next_multiple_of(64);
    let size = each * u64::from(wanted.num_queues);
    if usize::from(wanted.num_queues) > MOST_RINGS
        || u32::from(wanted.queue_size) > MOST_DESCRIPTORS
    {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        return Err(Refusal(format!(
            "in-flight state of {queues} rings of {size} descriptors"
        )));
    }
    let no_memory = |error: Errno| {
        let why = crate::describe(error.raw_os_error());
        Refusal(format!("no memory for in-flight state ({why})"))
    };
    let file = memfd_create(c"inflight", MemfdFlags::CLOEXEC).map_err(no_memory)?;
    ftruncate(&file, size).map_err(no_memory)?;
    let told = VhostUserInflight::new(size, 0, wanted.num_queues, wanted.queue_size);
    Ok(Answer {
        payload: told.as_slice().to_vec(),
        file: Some(file),
    })
}

#[cfg(test)]
mod tests;
