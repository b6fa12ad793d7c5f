//! Receiving from a guest.

use super::access::{Look, Quick};
use super::ring::{RingPosition, Taken, View};
use super::shared::Shared;
use super::sizes::Tally;
use crate::gate::Key;
use crate::mbuf::Mbuf;
use crate::pool::Pool;
use crate::raw;
use crate::turn::Turn;
use packet::io::{BURST, QueueDrops, RxQueue};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use stages::Stage;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Most invalid chains that are given back in one turn.
pub(super) const REFUSALS: usize = BURST;

/// Bytes of a frame that announces a guest (reverse ARP, RFC 903).
pub(super) const ANNOUNCEMENT: usize = 60;

/// Returns a reverse ARP request for a MAC address, sent by that address itself: switches on the
/// way learn its new place.
pub(super) fn announcement(address: u64) -> [u8; ANNOUNCEMENT] {
    let mac = &address.to_le_bytes()[..6];
    let mut frame = [0; ANNOUNCEMENT];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(mac);
    // Reverse ARP for Ethernet and IPv4: operation 3.
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(mac);
    frame[32..38].copy_from_slice(mac);
    frame
}

/// Receive queue for one queue pair of a guest.
pub(super) struct VhostRx {
    pub(super) shared: Arc<Shared>,
    pub(super) ring: u16,
    /// The only key to the ring's gate.
    pub(super) key: Key,
    pub(super) pair: u16,
    pub(super) pool: Pool,
    pub(super) epoll: OwnedFd,
    /// The descriptor that the guest kicks.
    pub(super) kick: Option<Arc<OwnedFd>>,
    pub(super) generation: u32,
    pub(super) armed: bool,
    pub(super) quick: Quick,
    /// Whether frames have been taken since the last check whether the guest wants a notification.
    pub(super) untold: bool,
    pub(super) drops: QueueDrops,
    /// Most frames taken at a time, at most [`BURST`].
    pub(super) most: usize,
}

impl VhostRx {
    pub(super) fn new(shared: Arc<Shared>, pair: u16, pool: Pool) -> Result<VhostRx, i32> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Errno::raw_os_error)?;
        watch(&epoll, &shared.wake[usize::from(pair)]).map_err(Errno::raw_os_error)?;
        let ring = pair * 2 + 1;
        let doors = &shared.rings[usize::from(ring)];
        Ok(VhostRx {
            key: doors.gate.key(),
            quick: Quick::new(doors.quick.key(), true),
            shared,
            ring,
            pair,
            pool,
            epoll,
            kick: None,
            generation: u32::MAX,
            armed: false,
            untold: false,
            drops: QueueDrops::default(),
            most: BURST,
        })
    }

    /// Updates the queue after a change of the device.
    #[cold]
    pub(super) fn catch_up(&mut self) {
        self.generation = self.shared.generation.load(Ordering::SeqCst);
        if let Some(kick) = self.kick.take() {
            // The kernel would keep watching while any process has the description open, so remove
            // it.
            let _ = epoll::delete(&self.epoll, &kick);
        }
        let ring = &self.shared.rings[usize::from(self.ring)];
        let Some(_inside) = self.key.try_enter() else {
            return;
        };
        if !ring.enabled.load(Ordering::SeqCst) {
            return;
        }
        // A notification about frames taken just before may be outstanding, and the guest may wait
        // for it.
        self.untold = true;
        let table = self.shared.table();
        let entry = table.as_ref().and_then(|table| table.ring(self.ring));
        self.kick = entry.and_then(|entry| entry.kick.clone());
        if let Some(kick) = &self.kick
            && watch(&self.epoll, kick).is_err()
        {
            // The descriptor cannot be waited for: the queue is polled.
            self.kick = None;
        }
    }

    /// Takes frames from the ring.
    #[inline]
    pub(super) fn take(&mut self, out: &mut Vec<Mbuf>) -> usize {
        let shared = &*self.shared;
        let ring = &shared.rings[usize::from(self.ring)];
        if !ring.enabled.load(Ordering::Relaxed) {
            return 0;
        }
        out.reserve(BURST);
        let before = out.len();
        let pool = self.pool.as_raw();
        let (untold, drops) = (&mut self.untold, &mut self.drops);
        let mut sizes = Tally::NONE;
        let most = self.most;
        let allocate = |room, count| {
            let _stage = stages::enter(Stage::Memory, count as usize);
            // SAFETY: the pool lives as long as the EAL, and the array has room for as many.
            unsafe { raw::sluice_pool_get(pool, room, count) == 0 }
        };
        let take = |view: &View, at: &mut RingPosition| {
            // SAFETY: inside the gate the view is valid, and only this queue takes from the ring.
            let tell = std::mem::take(untold) && unsafe { view.wants_call(at) };
            let mut turn = Turn::default();
            let (mut refused, mut common) = (0, true);
            while out.len() - before < most && refused < REFUSALS && !turn.is_over() {
                let (len, most) = (out.len(), most - (out.len() - before));
                if common {
                    // SAFETY: as above. There is room for BURST more pointers, as many of which are
                    // valid as is said.
                    let done = unsafe {
                        let room = out.as_mut_ptr().add(len).cast();
                        let done = view.take(at, most, room, allocate);
                        out.set_len(len + done.frames);
                        done
                    };
                    *untold |= done.frames > 0;
                    sizes.join(done.sizes);
                    if done.exhausted || done.frames == most {
                        break;
                    }
                    // Most often more frames like this one follow.
                    common = done.frames > 0;
                }
                // SAFETY: as above.
                match unsafe { view.take_one(at, allocate) } {
                    Taken::Frame(frame) => {
                        turn.spend(&frame);
                        sizes.add(frame.raw().packet_len as usize);
                        out.push(frame);
                    }
                    Taken::Refused => {
                        refused += 1;
                        drops.malformed += 1;
                    }
                    Taken::Nothing | Taken::NoBuffer => break,
                }
                *untold = true;
            }
            tell
        };
        if self.quick.with(shared, self.ring, take) == Look::Done(true) {
            self.quick.tell();
        }
        shared.received[usize::from(self.pair)].add(sizes);
        out.len() - before
    }

    /// Tells the guest whether to kick. Returns true if it has put something into the ring, or if
    /// the ring cannot be read just now.
    pub(super) fn ask_for_kicks(&mut self, wanted: bool) -> bool {
        let untold = &mut self.untold;
        let ask = |view: &View, at: &mut RingPosition| {
            // SAFETY: inside the gate the view is valid, and only this queue takes from the ring.
            unsafe {
                view.ask_for_kicks(at, wanted);
                let tell = wanted && std::mem::take(untold) && view.wants_call(at);
                // The guest must see the request for kicks before the last check of the ring.
                fence(Ordering::SeqCst);
                (tell, wanted && view.is_waiting(at))
            }
        };
        match self.quick.with(&self.shared, self.ring, ask) {
            Look::Done((tell, waiting)) => {
                if tell {
                    self.quick.tell();
                }
                waiting
            }
            Look::Busy => self.is_on(),
            Look::NoRing => false,
        }
    }

    /// Returns whether frames may come.
    pub(super) fn is_on(&self) -> bool {
        let ring = &self.shared.rings[usize::from(self.ring)];
        self.shared.connected() && ring.enabled.load(Ordering::SeqCst)
    }

    /// Resets the events that woke the worker, without reading the guest's descriptor.
    pub(super) fn drain(&self) {
        // The event does not block.
        let wake = &self.shared.wake[usize::from(self.pair)];
        let _ = rustix::io::read(wake, &mut [0_u8; 8]);
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
        // Does not wait.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
    }
}

/// Adds a descriptor to the epoll set, edge-triggered.
fn watch(epoll: &OwnedFd, fd: &impl AsFd) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)
}

impl VhostRx {
    /// Returns whether this queue must announce a guest that has migrated here.
    pub(super) fn announces(&self) -> bool {
        self.pair == 0 && self.shared.announced.load(Ordering::Relaxed) != 0
    }

    /// Receives the frame that announces a guest which has migrated here, if that is due.
    pub(super) fn announce(&self, out: &mut Vec<Mbuf>) -> bool {
        if !self.announces() {
            return false;
        }
        let address = self.shared.announced.swap(0, Ordering::SeqCst);
        let frame = (address != 0).then(|| self.pool.frame(&announcement(address)));
        let frame = frame.flatten();
        let made = frame.is_some();
        out.extend(frame);
        made
    }
}

impl RxQueue<Mbuf> for VhostRx {
    fn receive(&mut self, out: &mut Vec<Mbuf>) -> usize {
        if self.generation != self.shared.generation.load(Ordering::Relaxed) {
            self.catch_up();
            if self.announce(out) {
                return 1;
            }
        }
        self.take(out)
    }

    fn limit(&mut self, most: usize) {
        self.most = most.min(BURST);
    }

    fn is_costly(&self) -> bool {
        false // a look at shared memory
    }

    fn is_dormant(&self) -> bool {
        let ring = &self.shared.rings[usize::from(self.ring)];
        !ring.enabled.load(Ordering::Relaxed)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        let ring = &self.shared.rings[usize::from(self.ring)];
        let polled = self.shared.connected()
            && ring.enabled.load(Ordering::Relaxed)
            && (self.kick.is_none()
                || self.generation != self.shared.generation.load(Ordering::Relaxed));
        (!polled).then(|| self.epoll.as_raw_fd())
    }

    fn arm(&mut self) -> bool {
        self.drain();
        if self.generation != self.shared.generation.load(Ordering::SeqCst) {
            self.catch_up();
        }
        if self.announces() {
            // Let `receive` handle the change.
            self.generation = self.generation.wrapping_sub(1);
            return true;
        }
        self.armed = true;
        // No frames are taken here: a worker that goes to sleep may lose the queue before it polls
        // again. A ring that cannot be read is locked by a front end's message, which does not take
        // long.
        let waiting = self.is_on() && self.ask_for_kicks(true);
        let changed = self.generation != self.shared.generation.load(Ordering::SeqCst);
        if changed || waiting {
            self.disarm();
            return true;
        }
        false
    }

    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.ask_for_kicks(false);
            self.drain();
        }
    }

    fn drops(&self) -> QueueDrops {
        self.drops
    }
}
