//! Holds fragments until their packet is complete.

use super::{Datagram, Fragment, Refusal, join};
use crate::frame::Frame;
use crate::keyed::Keyed;
use crate::tunnel::Addresses;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};

/// Limits on what is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Packets at a time; another one displaces the oldest.
    pub packets: usize,
    /// Packets from one source address, so that a sender of first fragments alone leaves room to
    /// others.
    pub packets_of_one: usize,
    /// Fragments of all packets; to make room for another, the oldest packets are dropped.
    pub fragments: usize,
    /// Fragments of one packet.
    pub fragments_of_one: usize,
    /// How long a packet's fragments wait, in milliseconds from the first that came.
    pub wait_ms: u64,
}

impl Default for Limits {
    /// A packet of 64 KiB has 46 fragments on Ethernet, and 119 of 576 bytes. Fragments follow each
    /// other within milliseconds, so what has not come after two seconds is lost. Linux waits for
    /// 30 s, which lets a sender of first fragments fill any table.
    fn default() -> Limits {
        Limits {
            packets: 256,
            packets_of_one: 64,
            fragments: 1024,
            fragments_of_one: 128,
            wait_ms: 2000,
        }
    }
}

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<F> {
    /// It waits for other fragments of its packet.
    Waits,
    /// It completed this packet.
    Whole(F),
    /// The packet is not to be reassembled here, or its source has too many packets waiting to find
    /// that out: forward these fragments of it unchanged.
    Passes(SmallVec<[F; 4]>),
    /// It was refused, mostly with the fragments of its packet that were held; the number lost.
    Refused(Refusal, u64),
}

/// Whether a packet's fragments are to be reassembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// Not known: the first fragment has not come.
    Unknown,
    Yes,
    /// No: its fragments pass.
    No,
}

#[derive(Debug)]
struct Partial<F> {
    /// The fragments that have come, in order.
    fragments: SmallVec<[(Fragment, F); 4]>,
    /// Payload bytes that have come, and the packet's payload length, if known.
    came: usize,
    whole: Option<usize>,
    wanted: Wanted,
    /// Distinguishes it from a later packet with the same identification.
    serial: u64,
}

/// A worker's fragments that wait for the rest of their packets.
#[derive(Debug)]
pub struct Reassembly<F> {
    limits: Limits,
    packets: HashMap<Datagram, Partial<F>, Keyed>,
    /// Packets in order of arrival of their first-seen fragment: time at which they expire, serial,
    /// packet.
    order: VecDeque<(u64, u64, Datagram)>,
    fragments: usize,
    serial: u64,
}

impl<F: Frame> Reassembly<F> {
    /// Makes a reassembly that holds nothing.
    pub fn new(limits: Limits) -> Reassembly<F> {
        Reassembly {
            limits,
            packets: HashMap::default(),
            order: VecDeque::new(),
            fragments: 0,
            serial: 0,
        }
    }

    /// Returns whether packets are remembered: then call [`Reassembly::expire`] now and then.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        !self.packets.is_empty()
    }

    /// Returns the number of fragments held.
    pub fn len(&self) -> usize {
        self.fragments
    }

    /// Returns whether no fragment is held.
    pub fn is_empty(&self) -> bool {
        self.fragments == 0
    }

    /// Adds a fragment at a time in milliseconds, which never goes back. `wanted` says whether its
    /// packet is to be reassembled, if this fragment decides that: only the first one has the
    /// ports. Returns what became of the fragment, and how many fragments of other packets were
    /// dropped to make room.
    pub fn add(
        &mut self,
        fragment: Fragment,
        frame: F,
        wanted: Option<bool>,
        now_ms: u64,
    ) -> (Outcome<F>, u64) {
        let datagram = fragment.datagram;
        let mut lost = 0;
        if !self.packets.contains_key(&datagram) {
            if self.of_source(&datagram.addresses) >= self.limits.packets_of_one {
                return match wanted {
                    Some(true) => (Outcome::Refused(Refusal::Full, 1), 0),
                    // It may belong to a packet that is not to be reassembled here: let the
                    // receiver decide about that.
                    _ => (Outcome::Passes(SmallVec::from_iter([frame])), 0),
                };
            }
            if self.packets.len() >= self.limits.packets {
                lost += self.forget_oldest();
            }
            self.begin(datagram, now_ms);
        }
        while self.fragments >= self.limits.fragments {
            lost += self.forget_oldest();
        }
        // Making room may have dropped its own packet, if that was the oldest.
        if !self.packets.contains_key(&datagram) {
            return (Outcome::Refused(Refusal::Full, 1), lost);
        }
        (self.add_to(fragment, frame, wanted), lost)
    }

    fn add_to(&mut self, fragment: Fragment, frame: F, wanted: Option<bool>) -> Outcome<F> {
        let datagram = fragment.datagram;
        let Some(partial) = self.packets.get_mut(&datagram) else {
            return Outcome::Refused(Refusal::Full, 1);
        };
        match wanted {
            Some(true) => partial.wanted = Wanted::Yes,
            Some(false) => partial.wanted = Wanted::No,
            None => {}
        }
        if partial.wanted == Wanted::No {
            // Sorted by offset.
            let mut passing = SmallVec::new();
            let held = std::mem::take(&mut partial.fragments);
            self.fragments -= held.len();
            partial.came += fragment.length;
            partial.whole = whole(partial.whole, &fragment);
            let all_came = partial.whole.is_some_and(|whole| partial.came >= whole);
            let at = held.partition_point(|(other, _)| other.offset < fragment.offset);
            passing.extend(held.into_iter().map(|(_, frame)| frame));
            passing.insert(at, frame);
            if all_came {
                self.packets.remove(&datagram);
            }
            return Outcome::Passes(passing);
        }
        let held = &partial.fragments;
        let at = held.partition_point(|(other, _)| other.offset < fragment.offset);
        let before = at.checked_sub(1).map(|at| held[at].0);
        let after = held.get(at).map(|(fragment, _)| *fragment);
        if after.is_some_and(|other| {
            (other.offset, other.length, other.more)
                == (fragment.offset, fragment.length, fragment.more)
        }) {
            // Duplicated by the network: the packet loses nothing.
            return Outcome::Refused(Refusal::Twice, 1);
        }
        let overlaps = before.is_some_and(|other| other.end() > fragment.offset)
            || after.is_some_and(|other| fragment.end() > other.offset);
        // Compares its end with what is known of the packet's length.
        let last_end = held.last().map_or(0, |(last, _)| last.end());
        let contradicts = match (partial.whole, fragment.more) {
            (Some(whole), true) => fragment.end() >= whole,
            (Some(whole), false) => fragment.end() != whole,
            (None, true) => false,
            (None, false) => last_end > fragment.end(),
        };
        let refusal = match (overlaps || contradicts, held.len()) {
            (true, _) => Some(Refusal::Contradiction),
            (_, held) if held >= self.limits.fragments_of_one => Some(Refusal::Full),
            _ => None,
        };
        if let Some(refusal) = refusal {
            let lost = self.forget(&datagram) + 1;
            return Outcome::Refused(refusal, lost);
        }
        partial.came += fragment.length;
        partial.whole = whole(partial.whole, &fragment);
        partial.fragments.insert(at, (fragment, frame));
        self.fragments += 1;
        if partial.whole != Some(partial.came) {
            return Outcome::Waits;
        }
        // There are no overlaps, so with all bytes counted there is no gap.
        let Some(partial) = self.packets.remove(&datagram) else {
            return Outcome::Waits;
        };
        self.fragments -= partial.fragments.len();
        match join(&partial.fragments) {
            Ok(packet) => Outcome::Whole(packet),
            Err(refusal) => Outcome::Refused(refusal, partial.fragments.len() as u64),
        }
    }

    /// Drops packets whose time is over; returns the number of fragments lost.
    pub fn expire(&mut self, now_ms: u64) -> u64 {
        let mut lost = 0;
        while let Some(&(until_ms, serial, datagram)) = self.order.front() {
            let is_there = self.is_there(serial, &datagram);
            if is_there && until_ms > now_ms {
                break;
            }
            self.order.pop_front();
            if is_there {
                lost += self.forget(&datagram);
            }
        }
        lost
    }

    /// Drops all packets; returns the number of fragments lost.
    pub fn clear(&mut self) -> u64 {
        self.packets.clear();
        self.order.clear();
        std::mem::take(&mut self.fragments) as u64
    }

    fn of_source(&self, addresses: &Addresses) -> usize {
        // A linear search: once for each new packet, and there are few.
        self.packets
            .keys()
            .filter(|other| match (&other.addresses, addresses) {
                (Addresses::V4 { src, .. }, Addresses::V4 { src: of, .. }) => src == of,
                (Addresses::V6 { src, .. }, Addresses::V6 { src: of, .. }) => src == of,
                _ => false,
            })
            .count()
    }

    fn begin(&mut self, datagram: Datagram, now_ms: u64) {
        self.serial += 1;
        self.packets.insert(
            datagram,
            Partial {
                fragments: SmallVec::new(),
                came: 0,
                whole: None,
                wanted: Wanted::Unknown,
                serial: self.serial,
            },
        );
        let until_ms = now_ms + self.limits.wait_ms;
        self.order.push_back((until_ms, self.serial, datagram));
        // Entries of completed packets stay here until they reach the front; limits how many.
        if self.order.len() > 2 * self.limits.packets {
            let packets = &self.packets;
            self.order.retain(|(_, serial, datagram)| {
                (packets.get(datagram)).is_some_and(|partial| partial.serial == *serial)
            });
        }
    }

    fn is_there(&self, serial: u64, datagram: &Datagram) -> bool {
        (self.packets.get(datagram)).is_some_and(|partial| partial.serial == serial)
    }

    fn forget(&mut self, datagram: &Datagram) -> u64 {
        let gone = self.packets.remove(datagram);
        let lost = gone.map_or(0, |partial| partial.fragments.len());
        self.fragments -= lost;
        lost as u64
    }

    /// Drops the oldest packet; returns the number of its fragments.
    fn forget_oldest(&mut self) -> u64 {
        while let Some((_, serial, datagram)) = self.order.pop_front() {
            if self.is_there(serial, &datagram) {
                return self.forget(&datagram);
            }
        }
        0
    }
}

/// Returns the packet's payload length, if it was known or this fragment is the last.
fn whole(known: Option<usize>, fragment: &Fragment) -> Option<usize> {
    match fragment.more {
        true => known,
        false => Some(known.map_or(fragment.end(), |known| known.max(fragment.end()))),
    }
}
